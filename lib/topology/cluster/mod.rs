//! World > NVLink domain > node > GPU, NIC.
//!
//! In: facts of hosts, the user's choice of NICs and rails. Out: [`Cluster`], the domain of every GPU, the NICs that
//! it uses, the rail of each, and the [`Seat`] of a rank. Guarantee: pure; the same facts give the same result everywhere.

mod difference;
mod domains;
mod pairing;
mod path;
mod rails;
mod seat;
mod select;
#[cfg(test)]
mod tests;

pub use difference::differences;
pub use domains::DomainKey;
pub use pairing::{Pairing, pair};
pub use path::{Path, PathKind, Paths, nvlink_rate_of};
pub use rails::{RailMap, RailMapError};
pub(super) use seat::merge_rails;
pub use seat::{NicSeat, Seat, hidden_peers, seat, visible};
pub use select::{LeftOut, NicChoice, NicChoiceError};

use super::facts::HostFacts;
use crate::base::DomainId;
use crate::base::env::{self, EnvError};
use std::collections::BTreeMap;

/// What the user states about NICs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterOptions {
    /// Which NICs carry tensors.
    pub nics: NicChoice,
    /// Rails that are not to be found out.
    pub rails: RailMap,
}

impl ClusterOptions {
    /// From `CROSSMESH_NICS` and `CROSSMESH_RAILS`.
    pub fn from_environment() -> Result<Self, EnvError> {
        Ok(Self {
            nics: env::value(env::NICS)?.unwrap_or_default(),
            rails: env::value(env::RAILS)?.unwrap_or_default(),
        })
    }
}

/// A host with what follows from its facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its facts.
    pub facts: HostFacts,
    /// Domain of every GPU.
    pub domains: Vec<DomainId>,
    /// NICs of every GPU.
    pub pairing: Pairing,
    /// Rail of every NIC that is used.
    pub rails: BTreeMap<usize, u32>,
}

/// GPUs that reach each other by NVLink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Why they are together.
    pub key: DomainKey,
    /// Host and GPU, as positions.
    pub gpus: Vec<(usize, usize)>,
}

/// Hosts together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// In the order given.
    pub nodes: Vec<Node>,
    /// In order of first appearance.
    pub domains: Vec<Domain>,
}

impl Cluster {
    /// What follows from the facts of `hosts`.
    pub fn new(hosts: Vec<HostFacts>, options: &ClusterOptions) -> Self {
        let pairings: Vec<Pairing> = hosts.iter().map(|facts| pair(facts, &options.nics)).collect();
        let used: Vec<_> = hosts.iter().zip(&pairings).map(|(facts, pairing)| (facts, pairing.used())).collect();
        let rails = rails::rails(&used, &options.rails);
        let mut cluster = Self::default();
        let mut numbers: BTreeMap<DomainKey, usize> = BTreeMap::new();
        for (host, ((facts, pairing), rails)) in hosts.into_iter().zip(pairings).zip(rails).enumerate() {
            // Hosts are told apart by position: two containers may have one name.
            let keys = domains::keys(&facts, &host.to_string());
            let ids = keys.into_iter().enumerate().map(|(gpu, key)| {
                let next = cluster.domains.len();
                let number = *numbers.entry(key.clone()).or_insert(next);
                if number == next {
                    cluster.domains.push(Domain { key, gpus: Vec::new() });
                }
                cluster.domains[number].gpus.push((host, gpu));
                DomainId(number as u32)
            });
            let domains = ids.collect();
            cluster.nodes.push(Node { facts, domains, pairing, rails });
        }
        cluster
    }

    /// How hosts differ from the others, one line each.
    pub fn differences(&self) -> Vec<String> {
        differences(&self.nodes.iter().map(|node| &node.facts).collect::<Vec<_>>())
    }

    /// What a person should know: NVLink domains that are not what they look like.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let mut cliques: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for domain in &self.domains {
            match &domain.key {
                DomainKey::Fabric(cluster, clique) => cliques.entry(cluster).or_default().push(*clique),
                DomainKey::Alone(..) => remarks.extend(domain.gpus.first().map(|&(host, gpu)| self.alone(host, gpu))),
                _ => {}
            }
        }
        for (cluster, cliques) in cliques.into_iter().filter(|(_, cliques)| cliques.len() > 1) {
            let count = cliques.len();
            remarks.push(format!(
                "fabric {cluster} has {count} cliques ({cliques:?}): GPUs of different cliques do not reach each other by NVLink"
            ));
        }
        remarks
    }

    fn alone(&self, host: usize, gpu: usize) -> String {
        let facts = &self.nodes[host].facts;
        let gpu = &facts.gpus[gpu];
        let why = match gpu.mig {
            true => "is cut into instances (MIG), which have no NVLink".to_string(),
            false => format!("has no NVLink that is up, unlike others of its host ({} are down)", gpu.inactive_nvlinks),
        };
        format!("GPU {} at {} of {} {why}: it is a domain of its own", gpu.index, gpu.pci, facts.host)
    }
}
