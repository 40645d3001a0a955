//! Bytes on the network and the time they need at least. In: flows, topology, NIC rate. Out: [`Traffic`] and the
//! data-movement bound. Guarantee: exact byte counts; the bound is NCCL M2N's Eqs. 3 to 6 generalised to the most
//! loaded NIC, with one NIC per rank, full duplex.

use super::{Flow, LocalFlow};
use crate::base::Rank;
use crate::topology::Topology;
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

    /// Bytes of the most loaded NIC in one direction.
    pub fn busiest_nic(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.network_sent.max(rank.network_received)).max().unwrap_or(0)
    }

    /// Seconds that the most loaded NIC needs at `nic_rate` bytes per second.
    pub fn bound_seconds(&self, nic_rate: f64) -> f64 {
        if nic_rate > 0.0 { self.busiest_nic() as f64 / nic_rate } else { 0.0 }
    }
}
