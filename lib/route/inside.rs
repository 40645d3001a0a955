//! Flows cut at the borders of domains. In: flows as a rank sees them, domains whose GPUs read from each other. Out: what goes
//! between domains, and what goes on inside the rank's own one, as flows of their own. Guarantee: pure; together they
//! deliver what the whole delivers, each byte once; ranks that share a part cut it alike, and in the same order.

use super::flow::{Gather, LocalFlow, Piece};
use super::leaders::GRAIN;
use super::path::Path;
use super::{Injection, RouteKind, RouteOptions};
use crate::base::{DomainId, Rank};
use crate::plan::Plan;
use crate::topology::Topology;

/// The flows of one rank in two parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct CutFlows {
    /// Between domains, and inside those that are not cut off.
    pub(crate) outside: Vec<LocalFlow>,
    /// Inside the rank's own domain, if that is cut off; they may begin where the others have ended.
    pub(crate) inside: Vec<LocalFlow>,
}

/// Cuts the flows of `rank` where domains are `cut` off. Flows whose elements are added up are left whole.
pub(crate) fn cut_flows(
    plan: &Plan,
    topology: &Topology,
    options: RouteOptions,
    (flows, rank): (&[LocalFlow], Rank),
    cut: impl Fn(DomainId) -> bool,
) -> CutFlows {
    let mut parts = CutFlows::default();
    let home = topology.domain(rank);
    for flow in flows {
        if flow.sums.is_some() {
            parts.outside.push(flow.clone());
            continue;
        }
        if let Some(path) = flow.path.outside(topology, &cut) {
            parts.outside.extend(along(flow, path, topology, rank));
        }
        if cut(home)
            && let Some(path) = flow.path.inside(topology, home)
        {
            spread(plan, topology, options, (flow, path), rank, &mut parts.inside);
        }
    }
    parts
}

/// The same bytes on another way, if it passes `rank`.
fn along(flow: &LocalFlow, path: Path, topology: &Topology, rank: Rank) -> Option<LocalFlow> {
    let place = path.place(topology, rank)?;
    Some(LocalFlow { path, place, pieces: flow.pieces.clone(), bytes: flow.bytes, sums: None })
}

/// Flows of a root to its neighbours. Where there are more of these than ranks that hold the bytes, a part goes by way of
/// each, so that no rank sends every byte several times.
fn spread(
    plan: &Plan,
    topology: &Topology,
    options: RouteOptions,
    (flow, path): (&LocalFlow, Path),
    rank: Rank,
    flows: &mut Vec<LocalFlow>,
) {
    let readers = path.readers().len() as u64;
    let parts = (flow.bytes / GRAIN).min(readers);
    let is_striped = options.kind == RouteKind::Hierarchical && options.injection == Injection::Striped;
    if path.has_landed() || parts < 2 || !is_striped || readers <= holders(plan, topology, flow) {
        flows.extend(along(flow, path, topology, rank));
        return;
    }
    let gather = Gather::of_pieces(plan, &flow.pieces);
    for part in 0..parts {
        let (from, to) = (gather.part(part, parts), gather.part(part + 1, parts));
        // Roots begin with different readers.
        let reader = (u64::from(path.root().0) + part) % readers;
        let way = path.by_reader(topology, reader as usize);
        if let Some(place) = way.place(topology, rank)
            && to > from
        {
            let pieces: Vec<Piece> = gather.pieces(from, to).collect();
            flows.push(LocalFlow { path: way, place, pieces, bytes: to - from, sums: None });
        }
    }
}

/// Flows inside a domain in the order in which they may begin: those of what a rank holds, then `parts` parts of those of what
/// comes to it, as [`part_of`] counts them.
pub(crate) fn in_parts(plan: &Plan, flows: Vec<LocalFlow>, parts: u32) -> Vec<Vec<LocalFlow>> {
    let (landed, held): (Vec<LocalFlow>, Vec<LocalFlow>) = flows.into_iter().partition(|flow| flow.path.has_landed());
    let mut stages = vec![held];
    for part in 0..u64::from(parts) {
        let cut = |flow: &LocalFlow| {
            let gather = Gather::of_pieces(plan, &flow.pieces);
            let (from, to) = (gather.part(part, parts.into()), gather.part(part + 1, parts.into()));
            let pieces: Vec<Piece> = gather.pieces(from, to).collect();
            (to > from).then(|| LocalFlow { pieces, bytes: to - from, ..flow.clone() })
        };
        stages.push(landed.iter().filter_map(cut).collect());
    }
    stages
}

/// The part of a flow that its byte `at` is in.
pub(crate) fn part_of(gather: &Gather<'_>, at: u64, parts: u32) -> u32 {
    (1..parts).rev().find(|&part| gather.part(part.into(), parts.into()) <= at).unwrap_or(0)
}

/// Ranks of the root's domain that send what a flow carries, each a part of its class.
fn holders(plan: &Plan, topology: &Topology, flow: &LocalFlow) -> u64 {
    let Some(piece) = flow.pieces.first() else { return 0 };
    let home = topology.domain(flow.path.root());
    let holders = &plan.classes()[plan.cell(piece.cell).class.0 as usize].holders;
    holders.iter().filter(|&&holder| topology.domain(holder) == home).count() as u64
}

#[cfg(test)]
#[path = "inside_tests.rs"]
mod tests;
