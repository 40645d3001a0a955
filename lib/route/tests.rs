//! The parts of a route on their own: cutting bytes at element borders, sharing, the order of flows.

use super::flow::Gather;
use super::leaders::{GRAIN, Loads, carrier};
use super::{Flow, Injection, Node, RouteKind, order};
use crate::base::Rank;
use crate::layout::{Dtype, Layout, Mesh, Placement};
use crate::plan::{Manifest, Plan};
use proptest::prelude::*;
use std::sync::Arc;

/// One class of three cells: 5 elements of 2 bytes, 1 of 8, 7 of 1 byte.
fn three_cells() -> Plan {
    let mut manifest = Manifest::new();
    for (elements, dtype) in [(5, Dtype::BF16), (1, Dtype::F64), (7, Dtype::U8)] {
        let layout = |rank| {
            let mesh = Arc::new(Mesh::contiguous(vec![1], Rank(rank)).unwrap());
            Arc::new(Layout::new(vec![elements], dtype, mesh, vec![Placement::Replicate]).unwrap())
        };
        manifest.push(dtype.name(), layout(0), layout(1)).unwrap();
    }
    Plan::compile(Arc::new(manifest), 2).unwrap()
}

#[test]
fn borders_are_element_borders() {
    let plan = three_cells();
    let gather = Gather::of_class(&plan, &plan.classes()[0]);
    let borders: Vec<u64> = (0..=25).map(|at| gather.border(at)).collect();
    let expected = [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 10, 10, 10, 10, 10, 10, 18, 19, 20, 21, 22, 23, 24, 25];
    assert_eq!(borders, expected);
}

#[test]
fn pieces_of_any_two_borders_join_up() {
    let plan = three_cells();
    let gather = Gather::of_class(&plan, &plan.classes()[0]);
    let mut borders: Vec<u64> = (0..=25).map(|at| gather.border(at)).collect();
    borders.dedup();
    let spans = |from, to| -> Vec<(u32, u64, u64)> {
        gather.pieces(from, to).map(|piece| (piece.cell.tensor, piece.start, piece.end)).collect()
    };
    assert_eq!(spans(0, 25), [(0, 0, 5), (1, 0, 1), (2, 0, 7)]);
    assert_eq!(spans(8, 19), [(0, 4, 5), (1, 0, 1), (2, 0, 1)]);
    assert_eq!(spans(10, 10), []);
    for (index, &from) in borders.iter().enumerate() {
        for &to in &borders[index..] {
            let bytes: u64 =
                spans(from, to).iter().map(|&(tensor, lo, hi)| (hi - lo) * plan.element_bytes(tensor)).sum();
            assert_eq!(bytes, to - from);
        }
    }
}

fn flow(root: u32, receiver: Option<u32>) -> Flow {
    let mut nodes = vec![Node { rank: Rank(root), parent: None, wants: receiver.is_none() }];
    nodes.extend(receiver.map(|rank| Node { rank: Rank(rank), parent: Some(0), wants: true }));
    Flow { nodes, pieces: Vec::new(), bytes: 0, sums: None }
}

fn ends(flows: &[Flow]) -> Vec<(u32, Option<u32>)> {
    flows.iter().map(|flow| (flow.nodes[0].rank.0, flow.nodes.get(1).map(|node| node.rank.0))).collect()
}

#[test]
fn flows_stand_in_rounds() {
    let mut flows: Vec<Flow> = (0..2).flat_map(|root| [4, 6].map(|receiver| flow(root, Some(receiver)))).collect();
    flows.push(flow(9, None));
    flows.push(flow(0, Some(4)));
    order::arrange(&mut flows);
    let receivers = [(9, None), (0, Some(4)), (1, Some(6)), (0, Some(4)), (0, Some(6)), (1, Some(4))];
    assert_eq!(ends(&flows), receivers);
    let mut none = Vec::new();
    order::arrange(&mut none);
    assert!(none.is_empty());
}

proptest! {
    #[test]
    fn the_first_round_leaves_nothing_that_fits(edges in proptest::collection::vec((0u32..70, 0u32..70), 0..300)) {
        let mut flows: Vec<Flow> = edges.iter().map(|&(root, receiver)| flow(root, Some(receiver))).collect();
        order::arrange(&mut flows);
        let ordered = ends(&flows);
        let mut sorted: Vec<_> = edges.iter().map(|&(root, receiver)| (root, Some(receiver))).collect();
        sorted.sort_unstable();
        let mut again = ordered.clone();
        again.sort_unstable();
        prop_assert_eq!(again, sorted, "no flow is lost");
        // No flow could stand in an earlier round: cut greedily where a root or receiver comes again, no root keeps
        // out of the first round a receiver that nobody has there.
        let mut first: Vec<(u32, Option<u32>)> = Vec::new();
        for &edge in &ordered {
            if first.last().is_some_and(|last| last.0 >= edge.0) {
                break;
            }
            first.push(edge);
        }
        for &(root, receiver) in &ordered {
            prop_assert!(first.iter().any(|edge| edge.0 == root || edge.1 == receiver));
        }
    }

    #[test]
    fn shares_tile_and_loads_stay_level(
        sizes in proptest::collection::vec(0u64..20 * GRAIN, 1..40),
        count in 1usize..9,
        element in prop::sample::select(vec![1u64, 2, 4, 8]),
    ) {
        let ranks: Vec<Rank> = (0..count as u32).map(|rank| Rank(3 * rank)).collect();
        let mut loads = Loads::new(3 * count);
        let mut carried = vec![0u64; 3 * count];
        for size in &sizes {
            let bytes = size / element * element;
            let shares = loads.split(&ranks, bytes, |at| at / element * element);
            let mut reached = 0;
            for share in &shares {
                prop_assert!(share.from == reached && share.to > share.from && share.to % element == 0);
                prop_assert_eq!((carrier(&shares, share.from), carrier(&shares, share.to - 1)), (share.rank, share.rank));
                carried[share.rank.index()] += share.to - share.from;
                reached = share.to;
            }
            prop_assert_eq!(reached, bytes);
        }
        let carried: Vec<u64> = ranks.iter().map(|rank| carried[rank.index()]).collect();
        let spread = carried.iter().max().unwrap() - carried.iter().min().unwrap();
        prop_assert!(spread < 2 * GRAIN + element * sizes.len() as u64, "{:?}", carried);
    }
}

#[test]
fn choices_read_what_they_print() {
    for kind in [RouteKind::Hierarchical, RouteKind::Flat, RouteKind::GatherBroadcast] {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
    }
    for injection in [Injection::Striped, Injection::Single] {
        assert_eq!(injection.to_string().parse(), Ok(injection));
    }
    let error = "ring".parse::<RouteKind>().unwrap_err();
    assert_eq!(error, "unknown route \"ring\"; allowed: hierarchical, flat, gather-broadcast");
}
