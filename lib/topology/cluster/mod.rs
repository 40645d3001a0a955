//! World > NVLink domain > node > GPU, NIC.
//!
//! In: facts of hosts, the user's choice of NICs and rails. Out: [`Cluster`], the domain of every GPU, the NICs that
//! it uses, the rail of each, and the [`Seat`] of a rank. Guarantee: pure; the same facts give the same result everywhere.

mod difference;
mod domains;
mod pairing;
mod path;
mod rails;
mod remark;
mod seat;
mod select;
#[cfg(test)]
mod tests;

pub use difference::{Difference, Part, differences};
pub use domains::DomainKey;
pub use pairing::{Pairing, pair};
pub use path::{Path, PathKind, Paths, nvlink_rate_of};
pub use rails::{RailMap, RailMapError};
pub use remark::{GpuPlace, Remark, host_remarks};
pub(super) use seat::merge_rails;
pub use seat::{HiddenBy, HiddenPeers, NicSeat, Seat, hidden_peers, seat, visible};
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

    /// How hosts differ from the others.
    pub fn differences(&self) -> Vec<Difference> {
        differences(&self.nodes.iter().map(|node| &node.facts).collect::<Vec<_>>())
    }

    /// What a person should know: NVLink domains that are not what they look like.
    pub fn remarks(&self) -> Vec<Remark> {
        remark::remarks(self)
    }
}
