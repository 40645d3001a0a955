//! What a person should know of NVLink domains that are not what they look like. In: facts of hosts, their domains. Out:
//! [`Remark`]s. Guarantee: pure; nothing where all is well.

use super::{Cluster, DomainKey};
use crate::topology::PciAddress;
use crate::topology::facts::{Gpu, HostFacts};
use std::collections::BTreeMap;
use std::fmt;

/// A GPU of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPlace {
    /// Its host.
    pub host: String,
    /// Its number there.
    pub index: u32,
    /// Where it is.
    pub pci: PciAddress,
}

impl fmt::Display for GpuPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "GPU {} at {} of {}", self.index, self.pci, self.host)
    }
}

/// Something that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// GPUs of one fabric do not all reach each other.
    Cliques {
        /// Uuid of the fabric.
        cluster: String,
        /// Hosts of each clique.
        cliques: BTreeMap<u32, Vec<String>>,
    },
    /// A GPU that is cut into instances, which have no NVLink.
    Instances(GpuPlace),
    /// A GPU that has lost NVLinks.
    LostLinks {
        /// Which.
        gpu: GpuPlace,
        /// NVLinks that are up.
        up: u32,
        /// NVLinks that it has, or that its neighbours have up.
        should: u32,
    },
}

impl fmt::Display for Remark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cliques { cluster, cliques } => {
                let numbers: Vec<&u32> = cliques.keys().collect();
                write!(formatter, "fabric {cluster} has {} cliques ({numbers:?}): ", cliques.len())?;
                formatter.write_str("GPUs of different cliques do not reach each other by NVLink")
            }
            Self::Instances(gpu) => {
                write!(formatter, "{gpu} is cut into instances (MIG), which have no NVLink: it is a domain of its own")
            }
            Self::LostLinks { gpu, up: 0, should } => {
                write!(formatter, "{gpu} has none of its {should} NVLinks up: it reaches no other by NVLink")
            }
            Self::LostLinks { gpu, up, should } => write!(formatter, "{gpu} has {up} of its {should} NVLinks up"),
        }
    }
}

/// NVLinks of a GPU that are up.
pub(super) fn nvlinks_up(gpu: &Gpu) -> u32 {
    gpu.nvlinks.iter().fold(0, |sum: u32, links| sum.saturating_add(links.links))
}

/// Remarks on the GPUs of one host: each should have as many NVLinks up as it has, or as any other has up.
pub fn host_remarks(facts: &HostFacts) -> Vec<Remark> {
    let most = facts.gpus.iter().map(nvlinks_up).max().unwrap_or(0);
    let remark = |gpu: &Gpu| {
        let place = GpuPlace { host: facts.host.clone(), index: gpu.index, pci: gpu.pci };
        let up = nvlinks_up(gpu);
        let should = most.max(up.saturating_add(gpu.inactive_nvlinks));
        match gpu.mig {
            true => Some(Remark::Instances(place)),
            false => (up < should).then_some(Remark::LostLinks { gpu: place, up, should }),
        }
    };
    facts.gpus.iter().filter_map(remark).collect()
}

/// Remarks on `cluster`.
pub(super) fn remarks(cluster: &Cluster) -> Vec<Remark> {
    let mut remarks: Vec<Remark> = cluster.nodes.iter().flat_map(|node| host_remarks(&node.facts)).collect();
    let mut fabrics: BTreeMap<&str, BTreeMap<u32, Vec<String>>> = BTreeMap::new();
    for domain in &cluster.domains {
        let DomainKey::Fabric(fabric, clique) = &domain.key else { continue };
        let mut nodes: Vec<usize> = domain.gpus.iter().map(|(node, _)| *node).collect();
        nodes.dedup();
        let hosts = nodes.into_iter().map(|node| cluster.nodes[node].facts.host.clone());
        fabrics.entry(fabric).or_default().insert(*clique, hosts.collect());
    }
    let split = fabrics.into_iter().filter(|(_, cliques)| cliques.len() > 1);
    remarks.extend(split.map(|(cluster, cliques)| Remark::Cliques { cluster: cluster.into(), cliques }));
    remarks
}
