//! `crossmesh bench plan`: what planning costs.
//!
//! In: a model, two parallel specs, ranks per domain. Out: CPU time and memory of one rank's plan, or of the plans and
//! proofs of all ranks in this process, one after the other. Guarantee: one thread; the time is CPU time of this process,
//! so others do not count; building the manifest is counted apart.

use super::clock;
use super::error::BenchError;
use super::output::{leaves_room_for_a_table, place, write_json};
use crossmesh::base::Rank;
use crossmesh::execute::{ProgramSummary, program_summary};
use crossmesh::layout::model::Model;
use crossmesh::layout::parallel::{ParallelSpec, Rules};
use crossmesh::plan::{Manifest, ModelSide, Plan, model_manifest};
use crossmesh::route::{
    Coverage, Injection, RouteOptions, check, check_for, nic_bound, plan_for, route, route_for, traffic,
};
use crossmesh::topology::{LinkRate, Machine, Topology};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Chunk of the programs: the default of `CROSSMESH_CHUNK`.
const CHUNK: u64 = 1 << 20;

/// Arguments of `crossmesh bench plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Built-in model
    #[arg(long, value_name = "MODEL", default_value = "deepseek-v3")]
    model: String,
    /// Parallel spec of the source
    #[arg(long, value_name = "SPEC", default_value = "ep=16,dp=1,pp=8")]
    src: String,
    /// Parallel spec of the destination, whose ranks follow those of the source
    #[arg(long, value_name = "SPEC", default_value = "tp=16,dp=8")]
    dst: String,
    /// Ranks of a domain
    #[arg(long, value_name = "N", default_value_t = 64)]
    domain: u32,
    /// Rank that plans for itself; all of them when it is left out
    #[arg(long, value_name = "RANK")]
    rank: Option<u32>,
    /// Write the result as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// CPU seconds of the steps.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Seconds {
    manifest: f64,
    compile: f64,
    route: f64,
    program: f64,
    check: f64,
    /// Compile, route and program of one rank.
    largest_rank: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    model: String,
    src: String,
    dst: String,
    ranks: u32,
    rank: Option<u32>,
    tensors: usize,
    seconds: Seconds,
    /// Of the process so far.
    peak_bytes: u64,
    flows: usize,
    chunks: usize,
    pieces: usize,
    written_bytes: u64,
    /// Of all ranks: the most loaded network card, and what no route can undercut.
    busiest_nic_bytes: Option<u64>,
    bound_bytes: Option<u64>,
}

/// A job to plan.
struct Job {
    manifest: Arc<Manifest>,
    topology: Topology,
    ranks: u32,
}

/// Counts the CPU time of a step.
struct Clock(Duration);

impl Clock {
    fn start() -> Result<Self, BenchError> {
        Ok(Self(clock::cpu_time()?))
    }

    fn seconds(self) -> Result<f64, BenchError> {
        Ok((clock::cpu_time()?.saturating_sub(self.0)).as_secs_f64())
    }
}

/// Plans, in this process alone.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, BenchError> {
    place("json", arguments.json.as_deref())?;
    let clock = Clock::start()?;
    let job = job(arguments)?;
    let mut results = Results {
        model: arguments.model.clone(),
        src: arguments.src.clone(),
        dst: arguments.dst.clone(),
        ranks: job.ranks,
        rank: arguments.rank,
        tensors: job.manifest.tensors().len(),
        seconds: Seconds { manifest: clock.seconds()?, ..Seconds::default() },
        peak_bytes: 0,
        flows: 0,
        chunks: 0,
        pieces: 0,
        written_bytes: 0,
        busiest_nic_bytes: None,
        bound_bytes: None,
    };
    match arguments.rank {
        Some(rank) if rank < job.ranks => results.plan_one(&job, Rank(rank))?,
        Some(rank) => {
            let allowed = format!("those below the {} ranks of both sides", job.ranks);
            return Err(BenchError::refused("rank", rank, allowed));
        }
        None => results.plan_all(&job)?,
    }
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(BenchError::Usage)?;
    results.peak_bytes = usage.max_rss() as u64 * 1024;
    if leaves_room_for_a_table(arguments.json.as_deref()) {
        print!("{}", results.table());
    }
    if let Some(path) = &arguments.json {
        write_json(&results, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn job(arguments: &Arguments) -> Result<Job, BenchError> {
    let model = Model::published(&arguments.model).map_err(BenchError::Model)?;
    let rules = Rules::embedded()?;
    let spec = |side, text: &str| ParallelSpec::parse(text).map_err(|source| BenchError::Spec { side, source });
    let (source, destination) = (spec("src", &arguments.src)?, spec("dst", &arguments.dst)?);
    let (held, ranks) = (source.rank_count(), source.rank_count() + destination.rank_count());
    let ranks_of = |range: std::ops::Range<u32>| range.map(Rank).collect::<Vec<_>>();
    let (senders, receivers) = (ranks_of(0..held), ranks_of(held..ranks));
    let made = model_manifest(
        &model,
        ModelSide { spec: &source, ranks: &senders, rules: &rules },
        ModelSide { spec: &destination, ranks: &receivers, rules: &rules },
    )?;
    let width = arguments.domain.max(1);
    // The destination begins in a domain of its own.
    let domain = |rank: u32| match rank < held {
        true => rank / width,
        false => held.div_ceil(width) + (rank - held) / width,
    };
    let topology = Topology::from_domains(&(0..ranks).map(domain).collect::<Vec<_>>());
    Ok(Job { manifest: Arc::new(made.manifest), topology, ranks })
}

impl Results {
    /// One rank's plan: what it does at init.
    fn plan_one(&mut self, job: &Job, rank: Rank) -> Result<(), BenchError> {
        let options = RouteOptions::default();
        let clock = Clock::start()?;
        let plan = plan_for(&job.manifest, &job.topology, options, rank)?;
        let compile = clock.seconds()?;
        let clock = Clock::start()?;
        let flows = route_for(&plan, &job.topology, options, rank);
        let route = clock.seconds()?;
        let clock = Clock::start()?;
        let ProgramSummary { chunks, pieces, .. } = program_summary(&plan, &flows, &job.topology, rank, CHUNK);
        let program = clock.seconds()?;
        let clock = Clock::start()?;
        let coverage: Coverage = check_for(&plan, &flows, rank)?;
        self.seconds.check += clock.seconds()?;
        self.seconds.compile += compile;
        self.seconds.route += route;
        self.seconds.program += program;
        self.seconds.largest_rank = self.seconds.largest_rank.max(compile + route + program);
        self.flows += flows.len();
        self.chunks += chunks;
        self.pieces += pieces;
        self.written_bytes += coverage.written;
        Ok(())
    }

    /// Every rank's plan and proof, then the plan of all and its proof, which must say the same.
    fn plan_all(&mut self, job: &Job) -> Result<(), BenchError> {
        for rank in (0..job.ranks).map(Rank) {
            self.plan_one(job, rank)?;
        }
        let clock = Clock::start()?;
        let plan = Plan::compile(job.manifest.clone(), job.topology.size())?;
        self.seconds.compile += clock.seconds()?;
        let clock = Clock::start()?;
        let flows = route(&plan, &job.topology, RouteOptions::default()).flows;
        self.seconds.route += clock.seconds()?;
        let clock = Clock::start()?;
        let coverage = check(&plan, &flows)?;
        self.seconds.check += clock.seconds()?;
        if coverage.written != self.written_bytes {
            let (all, sum) = (coverage.written, self.written_bytes);
            return Err(BenchError::Wrong(format!("ranks receive {sum} bytes and the plan of all delivers {all}")));
        }
        self.busiest_nic_bytes = Some(traffic(&flows, &job.topology).busiest_nic());
        // Every rank has a card of the same rate, whatever it is.
        let (network, inside) = (LinkRate::network(1 << 30), LinkRate::nvlink(1 << 30));
        let machine = Machine::one_nic_each("bench", job.topology.clone(), network, inside);
        self.bound_bytes = Some(nic_bound(&plan, &machine, Injection::Striped).bytes);
        Ok(())
    }

    fn table(&self) -> String {
        let Seconds { manifest, compile, route, program, check, largest_rank } = self.seconds;
        let whose = self.rank.map_or("all ranks, one after the other".into(), |rank| format!("rank {rank}"));
        let mut text = format!(
            "{}, {} tensors, {} to {} on {} ranks: {whose}\n\
             CPU s: manifest {manifest:.3}, compile {compile:.3}, route {route:.3}, program {program:.3}, check {check:.3}; \
             most for one rank {largest_rank:.3}\n\
             {} flows, {} chunks, {} pieces; peak memory {:.1} MB\n",
            self.model,
            self.tensors,
            self.src,
            self.dst,
            self.ranks,
            self.flows,
            self.chunks,
            self.pieces,
            self.peak_bytes as f64 / 1e6,
        );
        if let (Some(busiest), Some(bound)) = (self.busiest_nic_bytes, self.bound_bytes) {
            let over = (busiest as f64 / bound as f64 - 1.0) * 100.0;
            text += &format!("most loaded network card {busiest} bytes, bound {bound} bytes: {over:.3} % over\n");
        }
        text
    }
}
