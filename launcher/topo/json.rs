//! `crossmesh topo --json`. In: a cluster. Out: its facts in the form of topology files, and beside them what follows.
//! Guarantee: the text can be read again as a topology file.

use super::error::TopoError;
use crossmesh::topology::cluster::{Node, PathKind, Paths};
use crossmesh::topology::{Cluster, file};
use serde::Serialize;

/// Facts as a topology file holds them, with what follows.
#[derive(Debug, Serialize)]
struct Hierarchy {
    domains: Vec<Domain>,
    nodes: Vec<NodeView>,
    differences: Vec<String>,
    remarks: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Domain {
    key: String,
    gpus: usize,
}

#[derive(Debug, Serialize)]
struct NodeView {
    host: String,
    gpus: Vec<GpuView>,
    left_out: Vec<LeftOut>,
}

#[derive(Debug, Serialize)]
struct GpuView {
    index: u32,
    pci: String,
    domain: u32,
    nics: Vec<NicView>,
}

#[derive(Debug, Serialize)]
struct NicView {
    device: String,
    port: u32,
    path: PathKind,
    bytes_per_second: Option<u64>,
    rail: Option<u32>,
    /// GPUs that use it.
    sharers: usize,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    device: String,
    port: u32,
    why: String,
}

/// JSON of `cluster`.
pub(super) fn render(cluster: &Cluster) -> Result<String, TopoError> {
    let facts: Vec<_> = cluster.nodes.iter().map(|node| node.facts.clone()).collect();
    let hierarchy = Hierarchy {
        domains: cluster
            .domains
            .iter()
            .map(|domain| Domain { key: super::tree::key(&domain.key), gpus: domain.gpus.len() })
            .collect(),
        nodes: cluster.nodes.iter().map(node).collect(),
        differences: super::tree::lines(cluster.differences()),
        remarks: super::tree::lines(cluster.remarks()),
    };
    file::to_json_with(&facts, "hierarchy", &hierarchy).map_err(|source| TopoError::Json { source })
}

fn node(node: &Node) -> NodeView {
    let facts = &node.facts;
    let paths = Paths::new(facts);
    let gpus = facts.gpus.iter().enumerate().map(|(position, gpu)| {
        let nic = |&nic: &usize| {
            let path = paths.gpu_to_nic(gpu, &facts.nics[nic]);
            NicView {
                device: facts.nics[nic].device.clone(),
                port: facts.nics[nic].port,
                path: path.kind,
                bytes_per_second: path.bytes_per_second,
                rail: node.rails.get(&nic).copied(),
                sharers: node.pairing.sharers(nic),
            }
        };
        GpuView {
            index: gpu.index,
            pci: gpu.pci.to_string(),
            domain: node.domains[position].0,
            nics: node.pairing.nics_of_gpu[position].iter().map(nic).collect(),
        }
    });
    let left_out = node.pairing.left_out.iter().map(|(nic, why)| LeftOut {
        device: facts.nics[*nic].device.clone(),
        port: facts.nics[*nic].port,
        why: why.to_string(),
    });
    NodeView { host: facts.host.clone(), gpus: gpus.collect(), left_out: left_out.collect() }
}
