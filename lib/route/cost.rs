//! Bytes of every link and the time they need at least. In: flows, topology, a machine's links. Out: [`Traffic`],
//! [`LinkBytes`], a [`Bound`], the predicted time. Guarantee: exact byte counts; the bound is NCCL M2N's Eqs. 3 to 6
//! generalised to the most loaded link, full duplex.

use super::{Flow, LocalFlow, Sums};
use crate::base::Rank;
use crate::topology::{Machine, Topology};
use serde::{Deserialize, Serialize};

/// Bytes of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RankTraffic {
    /// Sent to other domains.
    pub network_sent: u64,
    /// Received from other domains.
    pub network_received: u64,
    /// Read by others inside the domain.
    pub local_sent: u64,
    /// Read from others inside the domain.
    pub local_received: u64,
}

/// Bytes of a routed plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// Per rank.
    pub ranks: Vec<RankTraffic>,
    /// Bytes that crossed domains.
    pub inter_domain_bytes: u64,
    /// Per domain the bytes that entered it.
    pub ingress_per_domain: Vec<u64>,
}

/// Counts the bytes of `flows`.
pub fn traffic(flows: &[Flow], topology: &Topology) -> Traffic {
    let mut traffic = Traffic {
        ranks: vec![RankTraffic::default(); topology.size()],
        inter_domain_bytes: 0,
        ingress_per_domain: vec![0; topology.domain_count()],
    };
    for flow in flows {
        for (from, to, bytes) in flow.sums.iter().flat_map(Sums::edges) {
            traffic.add(from, to, bytes, topology);
        }
        for node in &flow.nodes {
            if let Some(parent) = node.parent {
                traffic.add(flow.nodes[parent as usize].rank, node.rank, flow.bytes, topology);
            }
        }
    }
    traffic
}

/// Counts the bytes of one rank in the flows that pass it.
pub fn traffic_of(flows: &[LocalFlow], topology: &Topology, rank: Rank) -> RankTraffic {
    let mut counted = RankTraffic::default();
    let inside = |other: Rank| topology.domain(other) == topology.domain(rank);
    for flow in flows {
        for (from, to, bytes) in flow.sums.iter().flat_map(Sums::edges) {
            if from == rank {
                *(if inside(to) { &mut counted.local_sent } else { &mut counted.network_sent }) += bytes;
            } else if to == rank {
                *(if inside(from) { &mut counted.local_received } else { &mut counted.network_received }) += bytes;
            }
        }
        for child in &flow.place.children {
            *(if inside(child.rank) { &mut counted.local_sent } else { &mut counted.network_sent }) += flow.bytes;
        }
        if let Some(parent) = &flow.place.parent {
            *(if inside(parent.rank) { &mut counted.local_received } else { &mut counted.network_received }) +=
                flow.bytes;
        }
    }
    counted
}

impl Traffic {
    /// Puts the counts of all ranks together.
    pub fn of_ranks(ranks: Vec<RankTraffic>, topology: &Topology) -> Self {
        let mut ingress_per_domain = vec![0; topology.domain_count()];
        for (rank, counted) in ranks.iter().enumerate() {
            ingress_per_domain[topology.domain(Rank(rank as u32)).index()] += counted.network_received;
        }
        Self { inter_domain_bytes: ingress_per_domain.iter().sum(), ingress_per_domain, ranks }
    }

    fn add(&mut self, from: Rank, to: Rank, bytes: u64, topology: &Topology) {
        if topology.domain(from) == topology.domain(to) {
            self.ranks[from.index()].local_sent += bytes;
            self.ranks[to.index()].local_received += bytes;
        } else {
            self.ranks[from.index()].network_sent += bytes;
            self.ranks[to.index()].network_received += bytes;
            self.inter_domain_bytes += bytes;
            self.ingress_per_domain[topology.domain(to).index()] += bytes;
        }
    }

    /// Bytes of the most loaded NIC in one direction, where every rank has one.
    pub fn busiest_nic(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.network_sent.max(rank.network_received)).max().unwrap_or(0)
    }

    /// Seconds that the most loaded NIC needs at `nic_rate` bytes per second.
    pub fn bound_seconds(&self, nic_rate: f64) -> f64 {
        if nic_rate > 0.0 { self.busiest_nic() as f64 / nic_rate } else { 0.0 }
    }
}

/// Bytes of a link in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Duplex {
    /// Out.
    pub sent: u64,
    /// In.
    pub received: u64,
}

impl Duplex {
    /// The busier direction.
    pub fn most(&self) -> u64 {
        self.sent.max(self.received)
    }
}

/// Bytes of every link of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkBytes {
    /// Per network card.
    pub nics: Vec<Duplex>,
    /// Per rank, its NVLink.
    pub nvlinks: Vec<Duplex>,
}

/// The time that bytes need at least on the links that carry them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bound {
    /// The most loaded network card, Eq. 3.
    pub network_seconds: f64,
    /// The most loaded NVLink, Eq. 4.
    pub nvlink_seconds: f64,
}

impl Bound {
    /// Both at once, Eq. 5.
    pub fn seconds(&self) -> f64 {
        self.network_seconds.max(self.nvlink_seconds)
    }
}

impl LinkBytes {
    /// Spreads every rank's bytes evenly over its cards.
    pub fn new(traffic: &Traffic, machine: &Machine) -> Self {
        let mut nics = vec![Duplex::default(); machine.nics.len()];
        for (rank, bytes) in traffic.ranks.iter().enumerate() {
            let own = machine.nics_of(Rank(rank as u32));
            let count = own.len() as u64;
            for (&nic, number) in own.iter().zip(0u64..) {
                let share = |bytes: u64| bytes / count + u64::from(number < bytes % count);
                nics[nic as usize].sent += share(bytes.network_sent);
                nics[nic as usize].received += share(bytes.network_received);
            }
        }
        let nvlink = |rank: &RankTraffic| Duplex { sent: rank.local_sent, received: rank.local_received };
        Self { nics, nvlinks: traffic.ranks.iter().map(nvlink).collect() }
    }

    /// What `machine` needs for them at least.
    pub fn bound(&self, machine: &Machine) -> Bound {
        let nics = self.nics.iter().zip(&machine.nics).map(|(bytes, nic)| nic.rate.seconds(bytes.most()));
        let nvlinks = self.nvlinks.iter().map(|bytes| machine.nvlink.seconds(bytes.most()));
        Bound { network_seconds: nics.fold(0.0, f64::max), nvlink_seconds: nvlinks.fold(0.0, f64::max) }
    }
}

/// Seconds until the last byte, by the bound and what a pipeline of chunks adds to it: the flow that takes longest to
/// fill its chain, with the first grant, each hop's latency and one chunk, less the chunk that the bound counts already.
pub(super) fn predicted_seconds(flows: &[Flow], machine: &Machine, bound: Bound, chunk: u64) -> f64 {
    let fill = flows.iter().map(|flow| fill_seconds(flow, machine, chunk)).fold(0.0, f64::max);
    bound.seconds() + fill
}

/// What the chain of a flow takes besides its slowest hop.
fn fill_seconds(flow: &Flow, machine: &Machine, chunk: u64) -> f64 {
    let first = flow.bytes.min(chunk);
    let mut filled = vec![0.0f64; flow.nodes.len()];
    let mut slowest = vec![0.0f64; flow.nodes.len()];
    for (number, node) in flow.nodes.iter().enumerate() {
        let Some(parent) = node.parent.map(|parent| parent as usize) else { continue };
        let from = flow.nodes[parent].rank;
        let (latency, seconds) = hop_seconds(machine, from, node.rank, first);
        if parent == 0 && (!machine.same_domain(from, node.rank) || !node.wants) {
            filled[number] = latency;
        }
        filled[number] += filled[parent] + latency + seconds;
        slowest[number] = slowest[parent].max(seconds);
    }
    filled.iter().zip(&slowest).map(|(filled, slowest)| filled - slowest).fold(0.0, f64::max)
}

/// Latency of a hop, and the time that `bytes` take on it.
fn hop_seconds(machine: &Machine, from: Rank, to: Rank, bytes: u64) -> (f64, f64) {
    if machine.same_domain(from, to) {
        return (machine.nvlink.latency(), machine.nvlink.seconds(bytes));
    }
    let rate = |rank: Rank| machine.nics[machine.nics_of(rank)[0] as usize].rate;
    let (sender, receiver) = (rate(from), rate(to));
    (sender.latency().max(receiver.latency()), sender.seconds(bytes).max(receiver.seconds(bytes)))
}
