//! Topologies of machines that this one is not.
//!
//! In: facts, XML and trees of files, written by hand or recorded. Out: pass or fail. Guarantee: every expected table was
//! written from the facts, by a person; files that are kept outside the repository are named when they are absent.

mod fuzz;
mod measured;
mod pairs;
mod recorded;
mod scale;
mod sysfs;

use crossmesh::topology::{Cluster, ClusterOptions, HostFacts, file};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/topology/fixtures")
}

fn fixture(name: &str) -> String {
    let path = fixtures().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn hosts(name: &str) -> Vec<HostFacts> {
    file::parse(&fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn cluster(hosts: Vec<HostFacts>) -> Cluster {
    Cluster::new(hosts, &ClusterOptions::default())
}

/// `mlx5_0 mlx5_1`: NICs of every GPU of node `node`.
fn nics(cluster: &Cluster, node: usize) -> Vec<String> {
    let node = &cluster.nodes[node];
    let names =
        |nics: &Vec<usize>| nics.iter().map(|&nic| node.facts.nics[nic].device.as_str()).collect::<Vec<_>>().join(" ");
    node.pairing.nics_of_gpu.iter().map(names).collect()
}

fn domains(cluster: &Cluster, node: usize) -> Vec<u32> {
    cluster.nodes[node].domains.iter().map(|domain| domain.0).collect()
}

/// Devices that are left out, with the reason.
fn left_out(cluster: &Cluster, node: usize) -> Vec<String> {
    let node = &cluster.nodes[node];
    node.pairing.left_out.iter().map(|(nic, why)| format!("{}: {why}", node.facts.nics[*nic].device)).collect()
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}
