//! What no choice of injectors and leaders can beat. In: a plan, a machine. Out: seconds and bytes of the most loaded
//! card. Guarantee: a lower bound for every route that delivers the plan, exact for its own two conditions: into each
//! domain without a holder every byte comes once through a card of a wanter there, and it leaves once through a card of
//! a holder, every further time through a card of a holder or of another domain's wanter.

use super::Injection;
use super::maximum::Network;
use super::routes::by_domain;
use crate::base::Rank;
use crate::plan::{CellClass, Plan};
use crate::topology::Machine;
use std::collections::BTreeMap;

/// The least that the most loaded card carries in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct NicBound {
    /// Bytes of a card, the fastest where they differ.
    pub bytes: u64,
    /// Its time.
    pub seconds: f64,
}

/// Bytes by the cards of which any may carry them.
type Demands = BTreeMap<Vec<u32>, u64>;

/// The bound; with [`Injection::Single`] only the lowest holder of a class sends it, or the ranks of the first replica of
/// its terms. Sums on their way to the rank that adds them to its own are not in it.
pub fn nic_bound(plan: &Plan, machine: &Machine, injection: Injection) -> NicBound {
    let (mut leaving, mut entering) = (Demands::new(), Demands::new());
    for class in plan.classes().iter().filter(|class| !class.holders.is_empty() && class.bytes > 0) {
        demand(class, machine, injection, &mut leaving, &mut entering);
    }
    let [one, other] = [leaving, entering].map(|demands| least_time(&demands, machine));
    let (bytes, rate) = if exceeds(one, other) { one } else { other };
    let fastest = machine.nics.iter().map(|nic| nic.rate.bytes_per_second).max().unwrap_or(1);
    NicBound { bytes: ceil_of(bytes, fastest, rate), seconds: bytes as f64 / rate as f64 }
}

fn demand(class: &CellClass, machine: &Machine, injection: Injection, leaving: &mut Demands, entering: &mut Demands) {
    let holding = by_domain(&machine.topology, &class.holders);
    let mut remote = by_domain(&machine.topology, &class.wanters);
    remote.retain(|members| holding.binary_search_by_key(&members.domain, |holders| holders.domain).is_err());
    if remote.is_empty() {
        return;
    }
    for members in &remote {
        *entering.entry(cards(machine, members.ranks.iter())).or_default() += class.bytes;
    }
    let holders = match (injection, class.terms.first()) {
        (Injection::Striped, _) => &class.holders[..],
        (Injection::Single, None) => &class.holders[..1],
        (Injection::Single, Some(terms)) => terms,
    };
    *leaving.entry(cards(machine, holders.iter())).or_default() += class.bytes;
    if remote.len() > 1 {
        let forwarders = holders.iter().chain(remote.iter().flat_map(|members| &members.ranks));
        *leaving.entry(cards(machine, forwarders)).or_default() += class.bytes * (remote.len() as u64 - 1);
    }
}

fn cards<'a>(machine: &Machine, ranks: impl Iterator<Item = &'a Rank>) -> Vec<u32> {
    let mut cards: Vec<u32> = ranks.flat_map(|&rank| machine.nics_of(rank)).copied().collect();
    cards.sort_unstable();
    cards.dedup();
    cards
}

/// Bytes over bytes per second.
type Time = (u128, u128);

fn exceeds(one: Time, other: Time) -> bool {
    one.0 * other.1 > other.0 * one.1
}

fn ceil_of(bytes: u128, times: u64, rate: u128) -> u64 {
    u64::try_from((bytes * u128::from(times)).div_ceil(rate)).unwrap_or(u64::MAX)
}

/// The least time in which cards carry `demands`: starts with all demands over all their cards, and as long as that
/// is too short, goes on with the demands and cards that show it (the minimum cut), which is a longer time.
fn least_time(demands: &Demands, machine: &Machine) -> Time {
    let rate = |nic: u32| u128::from(machine.nics[nic as usize].rate.bytes_per_second);
    let mut listed: Vec<(&[u32], u64)> = demands.iter().map(|(cards, &bytes)| (cards.as_slice(), bytes)).collect();
    let mut time: Time = (0, 1);
    loop {
        let mut cards: Vec<u32> = listed.iter().flat_map(|(cards, _)| cards.iter().copied()).collect();
        cards.sort_unstable();
        cards.dedup();
        let next: Time =
            (listed.iter().map(|&(_, bytes)| u128::from(bytes)).sum(), cards.iter().map(|&nic| rate(nic)).sum());
        if listed.is_empty() || !exceeds(next, time) {
            return time;
        }
        time = next;
        let left = unserved(&listed, &cards, time, rate);
        listed = left.into_iter().map(|index| listed[index]).collect();
    }
}

/// The demands on the source's side of the minimum cut when every card carries for `time`; all in bytes times its
/// divisor, so that nothing is rounded.
fn unserved(demands: &[(&[u32], u64)], cards: &[u32], time: Time, rate: impl Fn(u32) -> u128) -> Vec<usize> {
    const SOURCE: usize = 0;
    const SINK: usize = 1;
    let mut network = Network::new(2 + demands.len() + cards.len());
    let card = |nic: u32| 2 + demands.len() + cards.partition_point(|&other| other < nic);
    for (index, (candidates, bytes)) in demands.iter().enumerate() {
        let wanted = u128::from(*bytes) * time.1;
        network.join(SOURCE, 2 + index, wanted);
        candidates.iter().for_each(|&nic| {
            network.join(2 + index, card(nic), wanted);
        });
    }
    cards.iter().for_each(|&nic| {
        network.join(card(nic), SINK, time.0 * rate(nic));
    });
    network.fill(SOURCE, SINK);
    let reached = network.reached(SOURCE);
    (0..demands.len()).filter(|index| reached[2 + index]).collect()
}

#[cfg(test)]
#[path = "bound_tests.rs"]
mod tests;
