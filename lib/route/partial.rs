//! Sums on their way. In: a class whose holders store terms. Out: flows whose roots add up. Guarantee: each element is
//! added up once, by one rank, so all ranks that want it get the same bits; terms are added inside each source domain
//! first, in ascending mesh coordinate, then the sums of the domains in the order of their first coordinates; the order
//! depends on layouts, domains and replica alone. Replicas of the terms share the work, each taking another part.

use super::flow::{DomainSum, Flow, Gather, Sums};
use super::leaders::{GRAIN, Share, carrier};
use super::routes::{Router, child, root};
use super::{Injection, Piece};
use crate::base::{DomainId, Rank};
use crate::plan::CellClass;

/// What is common to the slices of one replica's part of a class.
struct Part<'a> {
    gather: &'a Gather<'a>,
    terms: &'a [Rank],
    reducer: Rank,
    /// Per domain that wants the class, its wanters.
    wanters: &'a [(DomainId, Vec<Rank>)],
    /// Where the chain begins, in turn.
    turn: usize,
}

impl Router<'_> {
    /// One flow from the first replica's first rank to every wanter.
    pub(super) fn flat_sum(&mut self, class: &CellClass, terms: &[Rank]) {
        let gather = Gather::of_class(self.plan, class);
        let sums = self.domain_sums(terms);
        let reducer = sums[0].reducer;
        let mut nodes = vec![root(reducer, class.wanters.contains(&reducer))];
        nodes.extend(class.wanters.iter().filter(|&&rank| rank != reducer).map(|&rank| child(rank, 0, true)));
        self.push_sum(&gather, (0, class.bytes), nodes, sums);
    }

    /// Ranks of the first domain of every replica add up a part each; a chain takes it through the domains.
    pub(super) fn hierarchical_sum(&mut self, class: &CellClass) {
        let gather = Gather::of_class(self.plan, class);
        let replicas = if self.injection == Injection::Single { &class.terms[..1] } else { &class.terms[..] };
        let reducers: Vec<Rank> =
            replicas.iter().flat_map(|terms| self.domain_sums(terms).swap_remove(0).terms).collect();
        let wanters: Vec<(DomainId, Vec<Rank>)> = self.by_domain(&class.wanters).into_iter().collect();
        let turn = class.cells.first().map_or(0, |cell| cell.tensor as usize + cell.cell as usize);
        for share in shares(&gather, (0, class.bytes), &reducers, turn) {
            let reducer = share.rank;
            let Some(terms) = replicas.iter().find(|terms| terms.contains(&reducer)) else { continue };
            let part = Part { gather: &gather, terms, reducer, wanters: &wanters, turn };
            self.slices(&part, share.from, share.to);
        }
    }

    /// Cuts a part at every change of a leader or of a rank that adds up in another domain.
    fn slices(&mut self, part: &Part<'_>, from: u64, to: u64) {
        let home = self.domain(part.reducer);
        let share = |ranks: &[Rank]| shares(part.gather, (from, to), ranks, part.turn);
        let sums = self.domain_sums(part.terms);
        let adding: Vec<Vec<Share>> = sums[1..].iter().map(|sum| share(&sum.terms)).collect();
        let away: Vec<&(DomainId, Vec<Rank>)> = part.wanters.iter().filter(|(domain, _)| *domain != home).collect();
        let leading: Vec<Vec<Share>> = away.iter().map(|(_, ranks)| share(ranks)).collect();
        let mut cuts: Vec<u64> = adding.iter().chain(&leading).flatten().map(|share| share.to).collect();
        cuts.push(to);
        cuts.sort_unstable();
        cuts.dedup();
        let mut start = from;
        for (number, end) in cuts.into_iter().enumerate() {
            let mut sums = sums.clone();
            sums[0].reducer = part.reducer;
            for (sum, shares) in sums[1..].iter_mut().zip(&adding) {
                sum.reducer = carrier(shares, start);
            }
            let leaders: Vec<(Rank, &[Rank])> =
                away.iter().zip(&leading).map(|((_, ranks), shares)| (carrier(shares, start), &ranks[..])).collect();
            let nodes = self.tree(part, &leaders, part.turn + number);
            self.push_sum(part.gather, (start, end), nodes, sums);
            start = end;
        }
    }

    /// The root, its own domain's wanters, and a chain of leaders that begins at another domain each turn.
    fn tree(&self, part: &Part<'_>, leaders: &[(Rank, &[Rank])], turn: usize) -> Vec<super::Node> {
        let home = part.wanters.iter().find(|(domain, _)| *domain == self.domain(part.reducer));
        let home: &[Rank] = home.map_or(&[], |(_, ranks)| ranks);
        let mut nodes = vec![root(part.reducer, home.contains(&part.reducer))];
        nodes.extend(home.iter().filter(|&&rank| rank != part.reducer).map(|&rank| child(rank, 0, true)));
        let mut last = 0;
        for step in 0..leaders.len() {
            let (leader, ranks) = leaders[(turn + step) % leaders.len()];
            nodes.push(child(leader, last, true));
            last = nodes.len() - 1;
            nodes.extend(ranks.iter().filter(|&&rank| rank != leader).map(|&rank| child(rank, last, true)));
        }
        nodes
    }

    /// Terms by domain, domains in the order of their first terms; the first rank of each adds up.
    pub(super) fn domain_sums(&self, terms: &[Rank]) -> Vec<DomainSum> {
        let mut sums: Vec<DomainSum> = Vec::new();
        for &rank in terms {
            match sums.iter_mut().find(|sum| self.domain(sum.reducer) == self.domain(rank)) {
                Some(sum) => sum.terms.push(rank),
                None => sums.push(DomainSum { reducer: rank, terms: vec![rank] }),
            }
        }
        sums
    }

    pub(super) fn push_sum(
        &mut self,
        gather: &Gather<'_>,
        (from, to): (u64, u64),
        nodes: Vec<super::Node>,
        domains: Vec<DomainSum>,
    ) {
        if to == from {
            return;
        }
        let pieces: Vec<Piece> = gather.pieces(from, to).collect();
        let (mut term_bytes, mut sum_bytes) = (0, 0);
        for piece in &pieces {
            let tensor = &self.plan.manifest().tensors()[piece.cell.tensor as usize];
            term_bytes += (piece.end - piece.start) * tensor.source.dtype().bytes();
            sum_bytes += (piece.end - piece.start) * tensor.held_dtype().bytes();
        }
        let sums = Some(Sums { domains, term_bytes, sum_bytes });
        self.flows.push(Flow { nodes, pieces, bytes: to - from, sums });
    }
}

/// Cuts bytes `from..to` among candidates: equal shares of at least a grain; where there are fewer grains than
/// candidates, as many of them as there are grains, in turn.
fn shares(gather: &Gather<'_>, (from, to): (u64, u64), candidates: &[Rank], turn: usize) -> Vec<Share> {
    let bytes = to - from;
    let count = (bytes / GRAIN).clamp(1, candidates.len() as u64) as usize;
    let mut shares = Vec::with_capacity(count);
    let mut start = from;
    for index in 0..count {
        let ideal = from + (u128::from(bytes) * (index as u128 + 1) / count as u128) as u64;
        let end = if index + 1 == count { to } else { gather.border(ideal).max(start) };
        if end > start {
            let rank = candidates[(turn * count + index) % candidates.len()];
            shares.push(Share { from: start, to: end, rank });
            start = end;
        }
    }
    shares
}
