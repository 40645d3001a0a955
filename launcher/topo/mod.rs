//! `crossmesh topo`: what crossmesh takes a machine for.
//!
//! In: this machine, all hosts of a job, a topology file, or the text of a synthetic cluster. Out: a tree, a matrix of
//! paths, a picture, JSON. Guarantee: every form shows what the library itself computes; under a job rank 0 shows all
//! hosts and how they differ.

mod error;
mod job;
mod json;
mod matrix;
mod svg;
mod tree;

use crate::failure::Failure;
use crate::plain_file;
use crate::result_file::{self, ResultFile};
use crossmesh::topology::{Cluster, ClusterOptions, HostFacts, Synthetic, file};
use error::TopoError;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `crossmesh topo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Instead of this machine: a topology file (crossmesh topo --json, hwloc XML, NCCL XML), or a cluster such as
    /// gb200-nvl72:2, hgx-h100:4, dgx-a100:1 or 4x[8gpu,8nic@50GB,nvlink450GB]
    #[arg(long, value_name = "FILE|CLUSTER")]
    from: Option<String>,
    /// Show the path between every two devices, with its rate in GB/s, in place of the tree
    #[arg(long)]
    matrix: bool,
    /// Draw a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write facts and what follows from them; - for standard output. Can be read again with --from and CROSSMESH_TOPOLOGY
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

/// Shows the topology.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let options = ClusterOptions::from_environment()?;
    let hosts = match &arguments.from {
        Some(text) => Some(from(text)?),
        None => job::hosts()?,
    };
    // Rank 0 shows what all have sent.
    let Some(hosts) = hosts else { return Ok(ExitCode::SUCCESS) };
    let cluster = Cluster::new(hosts, &options);
    show(arguments, &cluster)?;
    Ok(ExitCode::SUCCESS)
}

/// GPUs of a cluster whose hosts are stated one by one, at most.
const MOST_GPUS: u64 = 1 << 16;

/// A file where there is one of that name, else a synthetic cluster.
fn from(text: &str) -> Result<Vec<HostFacts>, TopoError> {
    let path = Path::new(text);
    if path.exists() || text.contains('/') && text.contains('.') {
        let contents =
            plain_file::read_text(path).map_err(|source| TopoError::Read { path: path.to_path_buf(), source })?;
        return file::parse(&contents).map_err(|source| TopoError::File { path: path.to_path_buf(), source });
    }
    let synthetic: Synthetic = text.parse().map_err(|source| TopoError::From { source })?;
    if synthetic.gpus() > MOST_GPUS {
        return Err(TopoError::TooMany { text: text.to_string(), gpus: synthetic.gpus(), most: MOST_GPUS });
    }
    Ok(synthetic.hosts())
}

/// All that was asked for, or nothing: files get their names when all are on disk.
fn show(arguments: &Arguments, cluster: &Cluster) -> Result<(), TopoError> {
    let mut results = Vec::new();
    let mut shows_text = true;
    for (option, path) in [("json", &arguments.json), ("svg", &arguments.svg)] {
        let Some(path) = path else { continue };
        shows_text &= !result_file::is_standard_output(path);
        let text = if option == "json" { json::render(cluster)? } else { svg::render(cluster) };
        results.push(ResultFile::prepare(path, text).map_err(|source| TopoError::Target { option, source })?);
    }
    for result in results {
        result.place()?;
    }
    if shows_text {
        result_file::print(&if arguments.matrix { matrix::render(cluster) } else { tree::render(cluster) })?;
    }
    Ok(())
}

/// `50`, `12.5`: bytes per second in GB/s for people.
fn gigabytes(bytes_per_second: u64) -> String {
    let rounded = (bytes_per_second as f64 / 1e8).round() / 10.0;
    if rounded >= 100.0 { format!("{rounded:.0}") } else { rounded.to_string() }
}
