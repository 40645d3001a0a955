//! What no route can undercut. In: plan of all ranks, topology. Out: the least load of the most loaded network card in
//! each direction, over all holders that may inject and all wanters that may lead. Guarantee: a lower bound for every
//! route that crosses the network, exact for injection and for arrival each on its own: one copy of every byte leaves a
//! holder, and one enters each domain that wants it and has none. Forwarding between domains is not in it.

use super::balance::{self, Candidates};
use super::routes::by_domain;
use crate::base::Rank;
use crate::plan::Plan;
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of the most loaded rank at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeastLoad {
    /// Sent to other domains by holders.
    pub sent: u64,
    /// Received from other domains.
    pub received: u64,
}

impl LeastLoad {
    /// The busier direction.
    pub fn busiest_nic(&self) -> u64 {
        self.sent.max(self.received)
    }
}

/// The bound of a plan.
pub fn least_load(plan: &Plan, topology: &Topology) -> LeastLoad {
    let mut sending: BTreeMap<Arc<[Rank]>, u64> = BTreeMap::new();
    let mut receiving: BTreeMap<Arc<[Rank]>, u64> = BTreeMap::new();
    for class in plan.classes().iter().filter(|class| !class.holders.is_empty()) {
        let holding = by_domain(topology, &class.holders);
        let mut crosses = false;
        for members in by_domain(topology, &class.wanters) {
            if holding.binary_search_by_key(&members.domain, |holders| holders.domain).is_err() {
                *receiving.entry(members.ranks.into()).or_default() += class.bytes;
                crosses = true;
            }
        }
        if crosses {
            *sending.entry(class.holders.as_slice().into()).or_default() += class.bytes;
        }
    }
    let least =
        |sets: BTreeMap<Arc<[Rank]>, u64>| balance::least_level(&sets.into_iter().collect::<Vec<Candidates>>()).ceil();
    LeastLoad { sent: least(sending), received: least(receiving) }
}
