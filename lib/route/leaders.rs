//! Who injects and who leads. In: candidates with their parts, and where a class begins among all that they share. Out:
//! cuts of the class's bytes with one rank each. Guarantee: a function of the class alone, so ranks that share it need no
//! other; large classes are cut by the parts, small ones go to as many candidates as they have grains, in turn.

use super::balance::WHOLE;
use crate::base::Rank;

/// Smallest share worth its own message: below it, splitting a class costs more in per-message time than it wins
/// in balance.
pub(super) const GRAIN: u64 = 4096;

/// A share of a class: bytes `from..to` through `rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) rank: Rank,
}

/// Ranks of which each may carry a class, with the parts that they should carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Carriers {
    ranks: Vec<Rank>,
    /// Sums of the parts up to each rank.
    ends: Vec<u64>,
}

impl Carriers {
    /// Candidates with a part each; without any part all alike.
    pub(super) fn new(candidates: &[Rank], parts: &[u64]) -> Self {
        if parts.iter().all(|&part| part == 0) {
            return Self::alike(candidates);
        }
        let mut sum = 0;
        let used = candidates.iter().zip(parts).filter(|&(_, &part)| part > 0);
        let (ranks, ends) = used
            .map(|(&rank, part)| {
                sum += part;
                (rank, sum)
            })
            .unzip();
        Self { ranks, ends }
    }

    /// Candidates with equal parts.
    pub(super) fn alike(candidates: &[Rank]) -> Self {
        Self { ranks: candidates.to_vec(), ends: (1..=candidates.len() as u64).collect() }
    }

    /// Cuts `bytes` at borders, for a class that begins at `phase` of all that these carry.
    pub(super) fn split(&self, bytes: u64, phase: u32, border: impl Fn(u64) -> u64) -> Vec<Share> {
        let (grains, count) = ((bytes / GRAIN).max(1), self.ranks.len());
        let all = u128::from(self.ends.last().copied().unwrap_or(1));
        if grains >= count as u64 {
            let cut = |end: u64| (u128::from(bytes) * u128::from(end) / all) as u64;
            return self.shares(0..count, |index| cut(self.ends[index]), bytes, border);
        }
        // As many points as grains, at equal distances around the circle of parts, the first where the class begins.
        let point = |grain: u64| {
            let at =
                (u128::from(phase) + u128::from(WHOLE) * u128::from(grain) / u128::from(grains)) % u128::from(WHOLE);
            let at = (at * all / u128::from(WHOLE)) as u64;
            self.ends.partition_point(|&end| end <= at)
        };
        let mut chosen: Vec<usize> = (0..grains).map(point).collect();
        chosen.sort_unstable();
        let equal = |index: usize| (u128::from(bytes) * (index as u128 + 1) / u128::from(grains)) as u64;
        let mut shares = self.shares(chosen.iter().copied(), equal, bytes, border);
        shares.dedup_by(|next, share| {
            let same = next.rank == share.rank;
            if same {
                share.to = next.to;
            }
            same
        });
        shares
    }

    /// One share for each chosen rank, up to `end` of its number among them.
    fn shares(
        &self,
        chosen: impl ExactSizeIterator<Item = usize>,
        end: impl Fn(usize) -> u64,
        bytes: u64,
        border: impl Fn(u64) -> u64,
    ) -> Vec<Share> {
        let last = chosen.len() - 1;
        let mut shares = Vec::with_capacity(chosen.len());
        let mut from = 0;
        for (index, position) in chosen.enumerate() {
            let to = if index == last { bytes } else { border(end(index)) };
            if to > from {
                shares.push(Share { from, to, rank: self.ranks[position] });
                from = to;
            }
        }
        shares
    }
}

/// The rank that carries byte `at`.
pub(super) fn carrier(shares: &[Share], at: u64) -> Rank {
    let index = shares.partition_point(|share| share.to <= at);
    shares[index.min(shares.len() - 1)].rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_classes_take_turns_and_large_ones_split() {
        let carriers = Carriers::alike(&[Rank(4), Rank(6)]);
        let small = [0, 1 << 30, 1 << 31, 3 << 30].map(|phase| carriers.split(16, phase, |at| at)[0].rank);
        assert_eq!(small, [Rank(4), Rank(4), Rank(6), Rank(6)]);
        let large = carriers.split(10 * GRAIN + 1, 7, |at| at / 2 * 2);
        assert_eq!(large.len(), 2);
        assert_eq!((large[0].from, large[0].to, large[1].to), (0, 5 * GRAIN, 10 * GRAIN + 1));
        assert_eq!(carrier(&large, 5 * GRAIN), Rank(6));
        assert!(carriers.split(0, 0, |at| at).is_empty());
    }

    #[test]
    fn parts_are_kept() {
        let ranks = [0, 1, 2, 3].map(Rank);
        let carriers = Carriers::new(&ranks, &[WHOLE / 2, 0, WHOLE / 8, 3 * (WHOLE / 8)]);
        let bytes = |bytes, phase| -> Vec<(u32, u64)> {
            carriers.split(bytes, phase, |at| at).iter().map(|share| (share.rank.0, share.to - share.from)).collect()
        };
        assert_eq!(bytes(80_000, 0), [(0, 40_000), (2, 10_000), (3, 30_000)]);
        // Two grains, half the circle apart.
        assert_eq!(bytes(2 * GRAIN, 0), [(0, GRAIN), (2, GRAIN)]);
        assert_eq!(bytes(2 * GRAIN, 1 << 30), [(0, GRAIN), (3, GRAIN)]);
        assert_eq!(Carriers::new(&ranks, &[0; 4]), Carriers::alike(&ranks));
    }
}
