//! Bytes on the network and the time they need at least. In: flows, topology, NIC rate. Out: [`Traffic`] and the
//! data-movement bound. Guarantee: exact byte counts; the bound is NCCL M2N's Eqs. 3 to 6 generalised to the most
//! loaded NIC, with one NIC per rank, full duplex.

use super::{Flow, Sums};
use crate::base::Rank;
use crate::topology::Topology;

/// Bytes of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

impl Traffic {
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
