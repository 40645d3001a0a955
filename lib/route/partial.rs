//! Sums on their way. In: a class whose holders store terms. Out: flows whose roots add up. Guarantee: each element is
//! added up once, by one rank, so all ranks that want it get the same bits; terms are added inside each source domain
//! first, in ascending mesh coordinate, then the sums of the domains in the order of their first coordinates; the order
//! depends on layouts, domains and replica alone. Replicas of the terms share the work, each taking another part.

use super::flow::{DomainSum, Gather};
use super::leaders::{Carriers, Share, carrier};
use super::path::{Members, Path};
use super::routes::{Emit, Router};
use super::{Injection, RouteKind};
use crate::base::Rank;
use crate::plan::CellClass;
use crate::topology::Topology;
use std::sync::Arc;

/// A stretch of a class, its rank that adds up, and the sums that this adds.
struct Part {
    from: u64,
    to: u64,
    sums: Vec<DomainSum>,
}

impl Router<'_> {
    /// Flows of a class of terms, by any route.
    pub(super) fn sums(&mut self, class: &CellClass, gather: &Gather<'_>, emit: Emit<'_>) {
        let whole = || domain_sums(self.topology(), &class.terms[0]);
        match self.kind() {
            RouteKind::Hierarchical => {
                for part in self.parts(class, gather) {
                    self.slices(class, gather, part, emit);
                }
            }
            RouteKind::Flat => {
                let sums = whole();
                let root = sums[0].reducer;
                let readers = class.wanters.iter().copied().filter(|&rank| rank != root).collect();
                let wanters = Some(class.wanters.as_slice().into());
                emit(0, class.bytes, Path::keeping(root, readers, wanters).adding(sums.into()));
            }
            RouteKind::GatherBroadcast => {
                let sums = whole();
                if let Some(path) = self.gathered(class, sums[0].reducer) {
                    emit(0, class.bytes, path.adding(sums.into()));
                }
            }
        }
    }

    /// Ranks of the first domain of every replica add up a part each, those of other domains the sums for it.
    fn parts(&self, class: &CellClass, gather: &Gather<'_>) -> Vec<Part> {
        let striped = self.injection() == Injection::Striped;
        let replicas = if striped { &class.terms[..] } else { &class.terms[..1] };
        let sums: Vec<Vec<DomainSum>> = replicas.iter().map(|terms| domain_sums(self.topology(), terms)).collect();
        let reducers: Vec<Rank> = sums.iter().flat_map(|sums| sums[0].terms.iter().copied()).collect();
        let mut parts = Vec::new();
        for share in Carriers::alike(&reducers).split(class.bytes, class.source_phase, |at| gather.border(at)) {
            let Some(sums) = sums.iter().find(|sums| sums[0].terms.contains(&share.rank)) else { continue };
            let border = |at| gather.border(share.from + at) - share.from;
            let split =
                |sum: &DomainSum| Carriers::alike(&sum.terms).split(share.to - share.from, class.source_phase, border);
            let adding: Vec<Vec<Share>> = sums[1..].iter().map(split).collect();
            let mut start = 0;
            for end in cuts(adding.iter().flatten(), share.to - share.from) {
                let mut sums = sums.clone();
                sums[0].reducer = share.rank;
                for (sum, shares) in sums[1..].iter_mut().zip(&adding) {
                    sum.reducer = carrier(shares, start);
                }
                parts.push(Part { from: share.from + start, to: share.from + end, sums });
                start = end;
            }
        }
        parts
    }

    /// The wanters of the root's domain read from it; a chain of leaders takes the part through the other domains.
    fn slices(&mut self, class: &CellClass, gather: &Gather<'_>, part: Part, emit: Emit<'_>) {
        let root = part.sums[0].reducer;
        let home = self.topology().domain(root);
        let wanting = self.wanting(&class.wanters);
        let away: Arc<[Members]> = wanting.iter().filter(|members| members.domain != home).cloned().collect();
        let near = wanting.iter().find(|members| members.domain == home);
        let readers: Arc<[Rank]> =
            near.into_iter().flat_map(|members| &members.ranks).copied().filter(|&rank| rank != root).collect();
        let keeps = near.is_some_and(|members| members.ranks.binary_search(&root).is_ok());
        let wanters: Option<Arc<[Rank]>> = keeps.then(|| class.wanters.as_slice().into());
        let border = |at| gather.border(at);
        let led: Vec<Vec<Share>> = away
            .iter()
            .map(|members| self.leading(&members.ranks).split(class.bytes, class.destination_phase, border))
            .collect();
        let sums: Arc<[DomainSum]> = part.sums.into();
        let inside = led.iter().flatten().filter(|share| part.from < share.to && share.to < part.to);
        let mut start = part.from;
        for (number, end) in cuts(inside, part.to).into_iter().enumerate() {
            let leaders: Arc<[Rank]> = led.iter().map(|shares| carrier(shares, start)).collect();
            let turn = ((u64::from(class.source_phase) * away.len() as u64) >> 32) as usize + number;
            let path = Path::keeping(root, readers.clone(), wanters.clone()).adding(sums.clone());
            let first = turn.checked_rem(away.len()).unwrap_or(0);
            emit(start, end, path.through(away.clone(), leaders, first));
            start = end;
        }
    }
}

/// Ends of shares and of everything, ascending, each once.
fn cuts<'a>(shares: impl Iterator<Item = &'a Share>, end: u64) -> Vec<u64> {
    let mut cuts: Vec<u64> = shares.map(|share| share.to).chain([end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// Terms by domain, domains in the order of their first terms; the first rank of each adds up.
fn domain_sums(topology: &Topology, terms: &[Rank]) -> Vec<DomainSum> {
    let mut sums: Vec<DomainSum> = Vec::new();
    for &rank in terms {
        match sums.iter_mut().find(|sum| topology.domain(sum.reducer) == topology.domain(rank)) {
            Some(sum) => sum.terms.push(rank),
            None => sums.push(DomainSum { reducer: rank, terms: vec![rank] }),
        }
    }
    sums
}
