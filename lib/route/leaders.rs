//! Who injects and who leads. In: candidates and the bytes they already carry. Out: cuts of a class's bytes with
//! one rank each. Guarantee: equal shares in bytes for large classes; small classes go whole to the least loaded
//! candidate, in class order. The loads of ranks that are always candidates together differ by less than two grains
//! and an element per class, whatever the number of cells.

use crate::base::Rank;

/// Smallest share worth its own message: below it, splitting a class costs more in per-message time than it wins
/// in balance.
pub(super) const GRAIN: u64 = 4096;

/// Network bytes that ranks carry so far, in one direction.
#[derive(Debug, Clone)]
pub(super) struct Loads(Vec<u64>);

/// A share of a class: bytes `from..to` through `rank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) rank: Rank,
}

impl Loads {
    pub(super) fn new(ranks: usize) -> Self {
        Self(vec![0; ranks])
    }

    pub(super) fn add(&mut self, rank: Rank, bytes: u64) {
        self.0[rank.index()] += bytes;
    }

    /// Splits `bytes` among candidates: all of them equally when every share reaches the grain, else as many of
    /// the least loaded as shares of a grain there are.
    pub(super) fn split(&mut self, candidates: &[Rank], bytes: u64, border: impl Fn(u64) -> u64) -> Vec<Share> {
        let count = (bytes / GRAIN).clamp(1, candidates.len() as u64) as usize;
        let mut chosen: Vec<usize> = (0..candidates.len()).collect();
        if count < candidates.len() {
            chosen.sort_by_key(|&position| (self.0[candidates[position].index()], position));
            chosen.truncate(count);
            chosen.sort_unstable();
        }
        let mut shares = Vec::with_capacity(count);
        let mut from = 0;
        for (index, &position) in chosen.iter().enumerate() {
            let ideal = (u128::from(bytes) * (index as u128 + 1) / count as u128) as u64;
            let to = if index + 1 == count { bytes } else { border(ideal) };
            let rank = candidates[position];
            if to > from {
                shares.push(Share { from, to, rank });
                self.add(rank, to - from);
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
    fn small_classes_rotate_and_large_ones_split() {
        let ranks = [Rank(4), Rank(6)];
        let mut loads = Loads::new(8);
        let small: Vec<Rank> = (0..4).map(|_| loads.split(&ranks, 16, |at| at)[0].rank).collect();
        assert_eq!(small, [Rank(4), Rank(6), Rank(4), Rank(6)]);
        let large = loads.split(&ranks, 10 * GRAIN + 1, |at| at / 2 * 2);
        assert_eq!(large.len(), 2);
        assert_eq!((large[0].from, large[0].to, large[1].to), (0, 5 * GRAIN, 10 * GRAIN + 1));
        assert_eq!(carrier(&large, 5 * GRAIN), Rank(6));
        assert!(loads.split(&ranks, 0, |at| at).is_empty());
    }
}
