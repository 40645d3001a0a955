//! Links of every rank. In: domains, nodes, seats, rates. Out: [`Machine`], plain data for planning without processes.
//! Guarantee: integers only, so that every computation on it is equal everywhere; a rank always has a NIC.

use super::{PciAddress, Topology};
use crate::base::{NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A link class that needs `latency` once per message and moves `bytes_per_second` in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRate {
    /// Bytes per second, one way; full duplex.
    pub bytes_per_second: u64,
    /// Nanoseconds from the last byte leaving until the receiver may act on it.
    pub latency_ns: u64,
}

/// A network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// What it moves.
    pub rate: LinkRate,
}

/// What a rank runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// GPU within its node.
    pub gpu: u32,
    /// Its cards, as indices into [`Machine::nics`]; at least one. Ranks may share cards.
    pub nics: Vec<u32>,
}

/// Where ranks are and what joins them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// As a person would name it.
    pub name: String,
    /// Domain and node of every rank.
    pub topology: Topology,
    /// Per rank its device.
    pub devices: Vec<Device>,
    /// All cards.
    pub nics: Vec<Nic>,
    /// The link inside a domain, per GPU.
    pub nvlink: LinkRate,
}

/// Host-driven put and its signal over NDR InfiniBand: about 2 us on the wire, the rest progress on both ends.
const NETWORK_LATENCY_NS: u64 = 5_000;
/// Store and flag over NVLink: 1.2 us measured between two H200, and a poll.
const NVLINK_LATENCY_NS: u64 = 2_000;

impl LinkRate {
    /// A network card of `bytes_per_second`.
    pub fn network(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, latency_ns: NETWORK_LATENCY_NS }
    }

    /// An NVLink port of `bytes_per_second`.
    pub fn nvlink(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, latency_ns: NVLINK_LATENCY_NS }
    }

    /// Seconds for `bytes`, without the latency.
    pub fn seconds(&self, bytes: u64) -> f64 {
        bytes as f64 / self.bytes_per_second as f64
    }

    /// The latency in seconds.
    pub fn latency(&self) -> f64 {
        self.latency_ns as f64 / 1e9
    }
}

impl Machine {
    /// The machine of a topology that states the seat of every rank; `None` where a rank has no card.
    pub fn of_seats(name: impl Into<String>, topology: Topology, nvlink: LinkRate) -> Option<Self> {
        let (mut nics, mut devices) = (Vec::new(), Vec::with_capacity(topology.size()));
        let mut cards: BTreeMap<(NodeId, &str, u32), u32> = BTreeMap::new();
        let mut gpus: BTreeMap<NodeId, Vec<Option<PciAddress>>> = BTreeMap::new();
        for rank in (0..topology.size() as u32).map(Rank) {
            let (node, gpu) = (topology.node(rank), topology.gpu(rank));
            let mut own = Vec::new();
            for nic in topology.nics(rank) {
                let next = nics.len() as u32;
                let number = *cards.entry((node, &nic.device, nic.port)).or_insert(next);
                if number == next {
                    nics.push(Nic { rate: LinkRate::network(nic.bytes_per_second) });
                }
                own.push(number);
            }
            if own.is_empty() {
                return None;
            }
            let known = gpus.entry(node).or_default();
            let place = known.iter().position(|known| *known == gpu).unwrap_or_else(|| {
                known.push(gpu);
                known.len() - 1
            });
            devices.push(Device { gpu: place as u32, nics: own });
        }
        Some(Self { name: name.into(), devices, nics, nvlink, topology })
    }

    /// One GPU and one card of its own for every rank.
    pub fn one_nic_each(name: impl Into<String>, topology: Topology, nic: LinkRate, nvlink: LinkRate) -> Self {
        let ranks = topology.size() as u32;
        let mut gpus_of: BTreeMap<NodeId, u32> = BTreeMap::new();
        let devices = (0..ranks).map(|rank| {
            let next = gpus_of.entry(topology.node(Rank(rank))).or_default();
            *next += 1;
            Device { gpu: *next - 1, nics: vec![rank] }
        });
        let devices = devices.collect();
        Self { name: name.into(), devices, nics: vec![Nic { rate: nic }; topology.size()], nvlink, topology }
    }

    /// Cards of a rank.
    pub fn nics_of(&self, rank: Rank) -> &[u32] {
        &self.devices[rank.index()].nics
    }

    /// Whether two ranks reach each other without the network.
    pub fn same_domain(&self, one: Rank, other: Rank) -> bool {
        self.topology.domain(one) == self.topology.domain(other)
    }
}
