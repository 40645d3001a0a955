//! What no choice of injectors and leaders can beat. In: a plan, a machine. Out: seconds and bytes of the most loaded
//! card. Guarantee: a lower bound for every route that delivers the plan, exact for its own two conditions: into each
//! domain without a holder every byte comes once through a card of a wanter there, and it leaves once through a card of
//! a holder, every further time through a card of a holder or of another domain's wanter.

use super::Injection;
use crate::base::Rank;
use crate::plan::{CellClass, Plan};
use crate::topology::Machine;
use std::collections::{BTreeMap, VecDeque};

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

/// The bound; with [`Injection::Single`] only the lowest holder of a class sends it.
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
    let domain = |&rank: &Rank| machine.topology.domain(rank);
    let mut remote: BTreeMap<_, Vec<Rank>> = BTreeMap::new();
    for wanter in &class.wanters {
        if class.holders.iter().all(|holder| domain(holder) != domain(wanter)) {
            remote.entry(domain(wanter)).or_default().push(*wanter);
        }
    }
    if remote.is_empty() {
        return;
    }
    for wanters in remote.values() {
        *entering.entry(cards(machine, wanters.iter())).or_default() += class.bytes;
    }
    let holders = if injection == Injection::Single { &class.holders[..1] } else { &class.holders[..] };
    *leaving.entry(cards(machine, holders.iter())).or_default() += class.bytes;
    if remote.len() > 1 {
        let forwarders = holders.iter().chain(remote.values().flatten());
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
        // Whole bytes for every card, rounded up: a demand that does not fit even so shows a longer time.
        let capacity = |nic: u32| ceil_of(time.0, rate(nic) as u64, time.1);
        let left = Network::new(&listed, &cards, capacity).unserved();
        listed = left.into_iter().map(|index| listed[index]).collect();
    }
}

/// Source, demands, cards, sink; edges in pairs with their reverse.
struct Network {
    demands: usize,
    edges: Vec<(u32, u64)>,
    from: Vec<Vec<u32>>,
}

const SOURCE: usize = 0;
const SINK: usize = 1;

impl Network {
    fn new(demands: &[(&[u32], u64)], cards: &[u32], capacity: impl Fn(u32) -> u64) -> Self {
        let nodes = 2 + demands.len() + cards.len();
        let mut network = Self { demands: demands.len(), edges: Vec::new(), from: vec![Vec::new(); nodes] };
        let card = |nic: &u32| 2 + demands.len() + cards.partition_point(|other| other < nic);
        for (index, (candidates, bytes)) in demands.iter().enumerate() {
            network.join(SOURCE, 2 + index, *bytes);
            candidates.iter().for_each(|nic| network.join(2 + index, card(nic), *bytes));
        }
        cards.iter().for_each(|nic| network.join(card(nic), SINK, capacity(*nic)));
        network
    }

    fn join(&mut self, from: usize, to: usize, capacity: u64) {
        self.from[from].push(self.edges.len() as u32);
        self.edges.push((to as u32, capacity));
        self.from[to].push(self.edges.len() as u32);
        self.edges.push((from as u32, 0));
    }

    /// Sends all that fits (Dinic); the demands on the source's side of the minimum cut.
    fn unserved(mut self) -> Vec<usize> {
        loop {
            let level = self.levels();
            if level[SINK] == usize::MAX {
                return (0..self.demands).filter(|index| level[2 + index] != usize::MAX).collect();
            }
            let mut next = vec![0; self.from.len()];
            while self.push(SOURCE, u64::MAX, &level, &mut next) > 0 {}
        }
    }

    fn levels(&self) -> Vec<usize> {
        let mut level = vec![usize::MAX; self.from.len()];
        level[SOURCE] = 0;
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(at) = queue.pop_front() {
            for &edge in &self.from[at] {
                let (to, left) = self.edges[edge as usize];
                if left > 0 && level[to as usize] == usize::MAX {
                    level[to as usize] = level[at] + 1;
                    queue.push_back(to as usize);
                }
            }
        }
        level
    }

    /// Pushes up to `limit` from `at` towards the sink, level by level.
    fn push(&mut self, at: usize, limit: u64, level: &[usize], next: &mut [usize]) -> u64 {
        if at == SINK {
            return limit;
        }
        let mut pushed = 0;
        while next[at] < self.from[at].len() {
            let edge = self.from[at][next[at]] as usize;
            let (to, left) = self.edges[edge];
            if left > 0 && level[to as usize] == level[at] + 1 {
                let sent = self.push(to as usize, left.min(limit - pushed), level, next);
                self.edges[edge].1 -= sent;
                self.edges[edge ^ 1].1 += sent;
                pushed += sent;
                if pushed == limit {
                    return pushed;
                }
            }
            next[at] += 1;
        }
        pushed
    }
}

#[cfg(test)]
#[path = "bound_tests.rs"]
mod tests;
