//! Cut flows against whole ones. In: placements, domains, routes of twelve ranks. Out: nothing. Guarantee: every wanted element
//! is delivered once by the two parts, what is passed on has come before, and both ends of an edge list it alike.

use super::*;
use crate::layout::{Dtype, Layout, Mesh, Placement};
use crate::plan::Manifest;
use crate::route::{RouteKind, plan_for, route_for};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const RANKS: u32 = 12;

fn layout(first: u32, shape: [u32; 2], placements: [Placement; 2]) -> Arc<Layout> {
    let ranks = (first..first + shape[0] * shape[1]).map(Rank).collect();
    let mesh = Arc::new(Mesh::new(shape.to_vec(), ranks).unwrap());
    Arc::new(Layout::new(vec![16, 257], Dtype::F64, mesh, placements.to_vec()).unwrap())
}

/// Every pair of sides, as a tensor each.
fn manifest() -> Arc<Manifest> {
    let kinds = || [Placement::Replicate, Placement::shard(0), Placement::shard(1)];
    let sources = kinds().into_iter().flat_map(|one| {
        let of = move |other| layout(0, [2, 2], [one.clone(), other]);
        [Placement::Replicate, Placement::shard(0)].map(of)
    });
    let mut manifest = Manifest::new();
    for (number, source) in sources.enumerate() {
        for (which, kind) in kinds().into_iter().enumerate() {
            let whole = layout(0, [3, 4], [kind.clone(), Placement::Replicate]);
            manifest.push(format!("whole{number}.{which}"), source.clone(), whole).unwrap();
            let behind = layout(4, [4, 2], [Placement::Replicate, kind]);
            manifest.push(format!("behind{number}.{which}"), source.clone(), behind).unwrap();
        }
    }
    Arc::new(manifest)
}

/// One rank's part.
struct Part {
    plan: Plan,
    cut: CutFlows,
}

/// Tensor, lows of the cell, number in it.
type Element = (u32, Vec<u64>, u64);

/// Elements of pieces, told apart alike by every rank.
fn elements(plan: &Plan, pieces: &[Piece]) -> Vec<Element> {
    let of = |piece: &Piece| {
        let lows: Vec<u64> = plan.cell(piece.cell).intervals.iter().map(|interval| interval.lo).collect();
        let tensor = piece.cell.tensor;
        (piece.start..piece.end).map(move |element| (tensor, lows.clone(), element)).collect::<Vec<_>>()
    };
    pieces.iter().flat_map(of).collect()
}

fn parts(domains: &[u32], options: RouteOptions, cut: &[u32]) -> (Topology, Vec<Part>) {
    let topology = Topology::from_domains(domains);
    let manifest = manifest();
    let of = |rank: u32| {
        let rank = Rank(rank);
        let plan = plan_for(&manifest, &topology, options, rank).unwrap();
        let flows = route_for(&plan, &topology, options, rank);
        let cut = cut_flows(&plan, &topology, options, (&flows, rank), |domain| cut.contains(&domain.0));
        Part { plan, cut }
    };
    let parts = (0..RANKS).map(of).collect();
    (topology, parts)
}

/// What one rank gets, and whether what it passes on was there.
fn check_rank(rank: Rank, part: &Part) {
    let mut got: BTreeMap<Element, u32> = BTreeMap::new();
    let mut count = |flow: &LocalFlow| {
        if flow.place.wants {
            elements(&part.plan, &flow.pieces).into_iter().for_each(|element| *got.entry(element).or_default() += 1);
        }
    };
    part.cut.outside.iter().for_each(&mut count);
    let landed = part.cut.outside.iter().filter(|flow| flow.place.wants);
    let landed: BTreeSet<_> = landed.flat_map(|flow| elements(&part.plan, &flow.pieces)).collect();
    for flow in &part.cut.inside {
        count(flow);
        if flow.path.has_landed() && flow.path.root() == rank {
            let passed = elements(&part.plan, &flow.pieces);
            assert!(passed.iter().all(|element| landed.contains(element)), "rank {rank} passes on what it has not got");
        }
    }
    let mut wanted = 0;
    for class in part.plan.classes().iter().filter(|class| class.wanters.contains(&rank)) {
        for &cell in &class.cells {
            let whole = Piece { cell, start: 0, end: part.plan.cell(cell).elements() };
            for element in elements(&part.plan, &[whole]) {
                assert_eq!(got.get(&element), Some(&1), "rank {rank}, {element:?}");
                wanted += 1;
            }
        }
    }
    assert_eq!(wanted, got.len(), "rank {rank} got what it does not want");
}

/// Edges between two ranks, in order, with what travels on them.
fn edges(part: &Part, inside: bool, is: impl Fn(&LocalFlow) -> bool) -> Vec<(u64, Element)> {
    let flows = if inside { &part.cut.inside } else { &part.cut.outside };
    let of = |flow: &LocalFlow| (flow.bytes, elements(&part.plan, &flow.pieces[..1])[0].clone());
    flows.iter().filter(|flow| is(flow)).map(of).collect()
}

fn check_ends(topology: &Topology, parts: &[Part], cut: &[u32]) -> [usize; 2] {
    let mut counts = [0; 2];
    for (from, to) in (0..RANKS).flat_map(|from| (0..RANKS).map(move |to| (Rank(from), Rank(to)))) {
        for inside in [false, true] {
            let sent = edges(&parts[from.index()], inside, |flow| flow.place.children.iter().any(|end| end.rank == to));
            let parent = |flow: &LocalFlow| flow.place.parent.is_some_and(|parent| parent.rank == from);
            assert_eq!(sent, edges(&parts[to.index()], inside, parent), "{from} to {to}, inside {inside}");
            let home = topology.domain(from);
            let stays = home == topology.domain(to) && cut.contains(&home.0);
            assert!(sent.is_empty() || stays == inside, "{from} to {to}, inside {inside}");
            counts[usize::from(inside)] += sent.len();
        }
    }
    counts
}

#[test]
fn parts_deliver_what_the_whole_delivers() {
    let apart = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
    let across = [0, 1, 0, 1, 0, 1, 0, 1, 2, 2, 2, 2];
    for (domains, cut) in [(apart, &[1, 2][..]), (apart, &[0, 1, 2]), (across, &[0, 1, 2]), (across, &[2])] {
        for kind in [RouteKind::Hierarchical, RouteKind::Flat] {
            for injection in [Injection::Striped, Injection::Single] {
                let (topology, parts) = parts(&domains, RouteOptions { kind, injection }, cut);
                let ranks = (0..RANKS).map(Rank);
                ranks.zip(&parts).for_each(|(rank, part)| check_rank(rank, part));
                let [outside, inside] = check_ends(&topology, &parts, cut);
                assert!(outside > 0);
                assert!(inside > 0 || (kind == RouteKind::Flat && !cut.contains(&0)), "{domains:?}, {cut:?}, {kind:?}");
            }
        }
    }
}

#[test]
fn nothing_is_cut_where_nothing_is_asked_for() {
    let domains = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
    let (topology, parts) = parts(&domains, RouteOptions::default(), &[]);
    for (rank, part) in (0..RANKS).map(Rank).zip(&parts) {
        assert!(part.cut.inside.is_empty());
        assert_eq!(part.cut.outside, route_for(&part.plan, &topology, RouteOptions::default(), rank));
    }
}

/// Parts of what comes, one after the other, are the whole, and every byte is in the part that its number says.
#[test]
fn parts_follow_each_other() {
    let domains = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
    let (_, all) = parts(&domains, RouteOptions::default(), &[1, 2]);
    let mut landed = 0;
    for part in &all {
        for count in [1, 2, 7, 8] {
            let cut = in_parts(&part.plan, part.cut.inside.clone(), count);
            assert_eq!(cut.len() as u32, count + 1);
            assert!(cut[0].iter().all(|flow| !flow.path.has_landed()));
            for flow in part.cut.inside.iter().filter(|flow| flow.path.has_landed()) {
                landed += 1;
                let of = |flows: &[LocalFlow]| -> Vec<Element> {
                    let same = flows.iter().filter(|one| one.path == flow.path && one.place == flow.place);
                    same.flat_map(|one| elements(&part.plan, &one.pieces)).collect()
                };
                let whole = elements(&part.plan, &flow.pieces);
                let mut joined: Vec<Element> = cut[1..].iter().flat_map(|flows| of(flows)).collect();
                let of_this: BTreeSet<&Element> = whole.iter().collect();
                joined.retain(|element| of_this.contains(element));
                assert_eq!(joined, whole);
                let gather = Gather::of_pieces(&part.plan, &flow.pieces);
                for number in 0..count {
                    let (from, to) =
                        (gather.part(number.into(), count.into()), gather.part(number as u64 + 1, count.into()));
                    for at in [from, to.saturating_sub(1)].into_iter().filter(|_| to > from) {
                        assert_eq!(part_of(&gather, at, count), number);
                    }
                }
            }
        }
    }
    assert!(landed > 0);
}

/// One holder beside three that want what it holds sends each byte once.
#[test]
fn a_root_sends_each_byte_once() {
    let mesh = |ranks: &[u32]| {
        Arc::new(Mesh::new(vec![ranks.len() as u32], ranks.iter().copied().map(Rank).collect()).unwrap())
    };
    let layout = |ranks: &[u32]| {
        Arc::new(Layout::new(vec![16, 257], Dtype::F64, mesh(ranks), vec![Placement::Replicate]).unwrap())
    };
    let mut manifest = Manifest::new();
    manifest.push("w", layout(&[0]), layout(&[1, 2, 3])).unwrap();
    let (manifest, topology) = (Arc::new(manifest), Topology::from_domains(&[0; 4]));
    let options = RouteOptions::default();
    let of = |rank: u32| {
        let plan = plan_for(&manifest, &topology, options, Rank(rank)).unwrap();
        let flows = route_for(&plan, &topology, options, Rank(rank));
        cut_flows(&plan, &topology, options, (&flows, Rank(rank)), |_| true).inside
    };
    let sent = |rank: u32| -> u64 { of(rank).iter().map(|flow| flow.bytes * flow.place.children.len() as u64).sum() };
    let bytes = 16 * 257 * 8;
    assert_eq!(sent(0), bytes);
    for reader in 1..4 {
        assert!(sent(reader).abs_diff(2 * bytes / 3) < 16, "{}", sent(reader));
    }
}
