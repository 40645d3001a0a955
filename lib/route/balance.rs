//! Who carries how much of what. In: sets of candidate ranks with the bytes that any of them may carry. Out: each
//! candidate's part. Guarantee: exact (integers), equal on every
//! machine; no other division has a lower greatest load, nor a lower second greatest, and so on. Ranks that are candidates
//! of the same sets are one group, so the cost follows the number of kinds, not of ranks.

use super::maximum::Network;
use crate::base::Rank;
use std::collections::HashMap;
use std::sync::Arc;

/// Parts of a set are counted in this many.
pub(super) const WHOLE: u64 = 1 << 32;

/// Ranks of which each may carry any of some bytes.
pub(super) type Candidates = (Arc<[Rank]>, u64);

/// A load as an exact fraction of bytes per rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    bytes: u128,
    ranks: u128,
}

/// Ranks that are candidates of the same sets.
#[derive(Debug, Clone)]
struct Group {
    ranks: u64,
    sets: Vec<usize>,
}

/// Sets that share candidates, directly or through others.
#[derive(Debug, Clone, Default)]
struct Component {
    sets: Vec<usize>,
    groups: Vec<usize>,
}

/// A balanced division of one component, or a part of it.
struct Tight {
    level: Level,
    /// Whether each set, and each group, belongs to the most loaded part.
    sets: Vec<bool>,
    groups: Vec<bool>,
    /// (set, group, bytes times the level's ranks).
    flows: Vec<(usize, usize, u128)>,
}

/// For every set the parts of its candidates, in 2^-32 of its bytes, in their order.
pub(super) fn parts(sets: &[Candidates]) -> Vec<Vec<u64>> {
    let problem = Problem::new(sets);
    // Per set the part of one rank of a group.
    let mut shares: Vec<HashMap<usize, u64>> = vec![HashMap::new(); sets.len()];
    for mut component in problem.components().into_iter().filter(|component| component.sets.len() > 1) {
        while !component.sets.is_empty() {
            let tight = problem.tightest(&component);
            for &(set, group, flow) in &tight.flows {
                let all = u128::from(sets[set].1) * tight.level.ranks * u128::from(problem.groups[group].ranks);
                shares[set].insert(group, scaled(flow, all));
            }
            component = component.without(&tight);
        }
    }
    let equal = |count: usize| vec![WHOLE / count.max(1) as u64; count];
    sets.iter()
        .zip(shares)
        .map(|((ranks, _), shares)| match shares.is_empty() {
            true => equal(ranks.len()),
            false => ranks.iter().map(|rank| shares.get(&problem.group_of[rank]).copied().unwrap_or(0)).collect(),
        })
        .collect()
}

/// `part / all` in 2^-32; a part that is too large to be shifted is close enough without its low bits.
fn scaled(part: u128, all: u128) -> u64 {
    let spare = part.leading_zeros().min(32);
    ((part << spare) / (all >> (32 - spare)).max(1)) as u64
}

struct Problem<'a> {
    sets: &'a [Candidates],
    groups: Vec<Group>,
    group_of: HashMap<Rank, usize>,
}

impl<'a> Problem<'a> {
    fn new(sets: &'a [Candidates]) -> Self {
        let mut sets_of: HashMap<Rank, Vec<usize>> = HashMap::new();
        for (number, (ranks, _)) in sets.iter().enumerate() {
            ranks.iter().for_each(|&rank| sets_of.entry(rank).or_default().push(number));
        }
        let mut numbers: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        let mut group_of = HashMap::with_capacity(sets_of.len());
        // In the order of sets and ranks, so that groups are numbered alike everywhere.
        for rank in sets.iter().flat_map(|(ranks, _)| ranks.iter().copied()) {
            let Some(sets) = sets_of.remove(&rank) else { continue };
            let group = *numbers.entry(sets).or_insert_with_key(|sets| {
                groups.push(Group { ranks: 0, sets: sets.clone() });
                groups.len() - 1
            });
            groups[group].ranks += 1;
            group_of.insert(rank, group);
        }
        Self { sets, groups, group_of }
    }

    /// Sets and groups that hang together.
    fn components(&self) -> Vec<Component> {
        let mut leader: Vec<usize> = (0..self.sets.len()).collect();
        for group in &self.groups {
            for pair in group.sets.windows(2) {
                let (first, second) = (find(&mut leader, pair[0]), find(&mut leader, pair[1]));
                leader[first.max(second)] = first.min(second);
            }
        }
        let mut components: Vec<Component> = vec![Component::default(); self.sets.len()];
        for set in 0..self.sets.len() {
            components[find(&mut leader, set)].sets.push(set);
        }
        for (number, group) in self.groups.iter().enumerate() {
            components[find(&mut leader, group.sets[0])].groups.push(number);
        }
        components.retain(|component| !component.sets.is_empty() && !component.groups.is_empty());
        components
    }

    /// The most loaded part of a component when it is divided best: sets whose bytes, over all their candidates, make the
    /// highest load. Newton's iteration on the load: what does not fit is a part with a higher one.
    fn tightest(&self, component: &Component) -> Tight {
        let mut level = self.level(component, |_| true, |_| true);
        loop {
            let (mut network, middle) = self.network(component, level);
            let sent = network.fill(0, 1);
            let wanted: u128 = component.sets.iter().map(|&set| u128::from(self.sets[set].1) * level.ranks).sum();
            if sent == wanted {
                return self.tight(component, level, &network, &middle);
            }
            let over = network.reached(0);
            level = self.level(component, |set| over[2 + set], |group| over[2 + component.sets.len() + group]);
        }
    }

    /// Bytes of some sets over the ranks of some groups, by position in the component.
    fn level(&self, component: &Component, set: impl Fn(usize) -> bool, group: impl Fn(usize) -> bool) -> Level {
        let sets = component.sets.iter().enumerate().filter(|&(position, _)| set(position));
        let groups = component.groups.iter().enumerate().filter(|&(position, _)| group(position));
        Level {
            bytes: sets.map(|(_, &set)| u128::from(self.sets[set].1)).sum(),
            ranks: groups.map(|(_, &group)| u128::from(self.groups[group].ranks)).sum::<u128>().max(1),
        }
    }

    /// Node 0 feeds the sets, node 1 takes from the groups, which carry `level` each; all times the level's ranks. Also
    /// the edges between sets and groups.
    fn network(&self, component: &Component, level: Level) -> (Network, Vec<(usize, usize, usize)>) {
        let (sets, groups) = (&component.sets, &component.groups);
        let mut network = Network::new(2 + sets.len() + groups.len());
        for (position, &set) in sets.iter().enumerate() {
            network.join(0, 2 + position, u128::from(self.sets[set].1) * level.ranks);
        }
        let mut middle = Vec::new();
        for (position, &group) in groups.iter().enumerate() {
            let node = 2 + sets.len() + position;
            network.join(node, 1, level.bytes * u128::from(self.groups[group].ranks));
            for set in &self.groups[group].sets {
                if let Ok(at) = sets.binary_search(set) {
                    middle.push((*set, group, network.join(2 + at, node, u128::MAX >> 1)));
                }
            }
        }
        (network, middle)
    }

    fn tight(&self, component: &Component, level: Level, network: &Network, middle: &[(usize, usize, usize)]) -> Tight {
        // What can still reach the end could be relieved; the rest is as loaded as it must be.
        let loose = network.reaching(1);
        let sets: Vec<bool> = (0..component.sets.len()).map(|position| !loose[2 + position]).collect();
        let first = 2 + component.sets.len();
        let groups: Vec<bool> = (0..component.groups.len()).map(|position| !loose[first + position]).collect();
        let is_tight = |set: usize| component.sets.binary_search(&set).is_ok_and(|position| sets[position]);
        let of_tight = middle.iter().filter(|&&(set, ..)| is_tight(set));
        let flows = of_tight.map(|&(set, group, edge)| (set, group, network.flow(edge))).collect();
        Tight { level, sets, groups, flows }
    }
}

impl Component {
    /// What is left when the most loaded part is settled.
    fn without(&self, tight: &Tight) -> Self {
        let left = |all: &[usize], settled: &[bool]| {
            all.iter().zip(settled).filter(|&(_, &settled)| !settled).map(|(&number, _)| number).collect()
        };
        Self { sets: left(&self.sets, &tight.sets), groups: left(&self.groups, &tight.groups) }
    }
}

fn find(leader: &mut [usize], mut at: usize) -> usize {
    while leader[at] != at {
        leader[at] = leader[leader[at]];
        at = leader[at];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ranks: &[u32], bytes: u64) -> Candidates {
        (ranks.iter().map(|&rank| Rank(rank)).collect(), bytes)
    }

    /// The definition of the least load that the most loaded rank can have: the highest that any choice of sets makes on
    /// all their candidates together.
    fn least_of_all_choices(sets: &[Candidates]) -> u64 {
        let choices = (1u32..1 << sets.len()).map(|choice| {
            let chosen = || sets.iter().enumerate().filter(move |(number, _)| choice >> number & 1 == 1);
            let ranks: std::collections::BTreeSet<Rank> = chosen().flat_map(|(_, set)| set.0.iter().copied()).collect();
            chosen().map(|(_, set)| set.1).sum::<u64>().div_ceil(ranks.len() as u64)
        });
        choices.max().unwrap_or(0)
    }

    fn loads(sets: &[Candidates]) -> HashMap<Rank, u64> {
        let mut loads: HashMap<Rank, u64> = HashMap::new();
        for ((ranks, bytes), parts) in sets.iter().zip(parts(sets)) {
            assert_eq!(ranks.len(), parts.len());
            let sum: u64 = parts.iter().sum();
            assert!(sum <= WHOLE && WHOLE - sum <= ranks.len() as u64 || *bytes == 0, "{parts:?}");
            for (&rank, part) in ranks.iter().zip(parts) {
                *loads.entry(rank).or_default() += ((u128::from(*bytes) * u128::from(part)) >> 32) as u64;
            }
        }
        loads
    }

    #[test]
    fn what_all_hold_fills_up_those_that_hold_little() {
        let sets = [set(&[0], 100), set(&[1], 40), set(&[2], 10), set(&[0, 1, 2], 60), set(&[7, 8], 1000)];
        // 100 stays; 1 and 2 reach 55 each.
        let loads = loads(&sets);
        for (rank, load) in [(0, 100), (1, 55), (2, 55), (7, 500), (8, 500)] {
            assert!(loads[&Rank(rank)].abs_diff(load) <= 1, "{rank}: {loads:?}");
        }
        assert!(parts(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn the_most_loaded_rank_has_the_least_load(
            sets in proptest::collection::vec((proptest::collection::btree_set(0u32..8, 1..5), 0u64..1 << 40), 1..9),
        ) {
            let mut seen = std::collections::BTreeMap::new();
            sets.into_iter().for_each(|(ranks, bytes)| *seen.entry(ranks).or_insert(0) += bytes);
            let sets: Vec<Candidates> =
                seen.into_iter().map(|(ranks, bytes)| set(&ranks.into_iter().collect::<Vec<_>>(), bytes)).collect();
            let least = least_of_all_choices(&sets);
            let most = loads(&sets).into_values().max().unwrap();
            prop_assert!(most <= least && most + (least >> 28) + 64 >= least, "{} {}", most, least);
        }
    }
}
