//! The parts of a route on their own: cutting bytes at element borders, sharing, the order of flows.

use super::flow::Gather;
use super::leaders::{Carriers, GRAIN, carrier};
use super::order::Order;
use super::{Flow, Injection, Node, Piece, RouteKind};
use crate::base::Rank;
use crate::layout::{Dtype, Layout, Mesh, Placement};
use crate::plan::{Manifest, Plan};
use crate::topology::Topology;
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

/// Order of flows between the two sides of a plan, as (root, first receiver).
fn ordered(sources: u32, destinations: u32, domains: &[u32], edges: &[(u32, Option<u32>)]) -> Vec<(u32, Option<u32>)> {
    let layout = |first: u32, count: u32| {
        let mesh = Arc::new(Mesh::contiguous(vec![count], Rank(first)).unwrap());
        Arc::new(Layout::new(vec![8], Dtype::U8, mesh, vec![Placement::Replicate]).unwrap())
    };
    let mut manifest = Manifest::new();
    manifest.push("t", layout(0, sources), layout(sources, destinations)).unwrap();
    let plan = Plan::compile(Arc::new(manifest), domains.len()).unwrap();
    let cell = plan.classes()[0].cells[0];
    let mut flows: Vec<Flow> = edges
        .iter()
        .map(|&(root, receiver)| {
            let mut nodes = vec![Node { rank: Rank(root), parent: None, wants: receiver.is_none() }];
            nodes.extend(receiver.map(|rank| Node { rank: Rank(rank), parent: Some(0), wants: true }));
            Flow { nodes, pieces: vec![Piece { cell, start: 0, end: 1 }], bytes: 1, sums: None }
        })
        .collect();
    Order::new(&plan, &Topology::from_domains(domains)).arrange(&mut flows);
    flows.iter().map(|flow| (flow.nodes[0].rank.0, flow.nodes.get(1).map(|node| node.rank.0))).collect()
}

#[test]
fn rails_first_then_around_the_circle() {
    let edges: Vec<(u32, Option<u32>)> =
        (0..2).flat_map(|root| [6, 5, 4, 3, 2].map(|to| (root, Some(to)))).chain([(1, None)]).collect();
    // Two domains of two on the receiving side, and a third of one: rails 0, 1, 0, 1, 0.
    let found = ordered(2, 5, &[0, 0, 1, 1, 2, 2, 3], &edges);
    let expected = [
        (1, None),
        // Same rail: root 0 with 2, 4 and 6, root 1 with 3 and 5, by steps from their own positions.
        (0, Some(2)),
        (1, Some(3)),
        (0, Some(4)),
        (1, Some(5)),
        (0, Some(6)),
        (0, Some(3)),
        (1, Some(4)),
        (0, Some(5)),
        (1, Some(6)),
        (1, Some(2)),
    ];
    assert_eq!(found, expected);
}

proptest! {
    #[test]
    fn the_order_does_not_depend_on_what_else_there_is(
        edges in proptest::collection::btree_set((0u32..20, 20u32..50), 0..200),
        chosen in proptest::collection::vec(any::<bool>(), 200),
    ) {
        let domains: Vec<u32> = (0..50).map(|rank| rank / 7).collect();
        let edges: Vec<(u32, Option<u32>)> = edges.into_iter().map(|(root, receiver)| (root, Some(receiver))).collect();
        let some: Vec<_> = edges.iter().zip(&chosen).filter(|&(_, &chosen)| chosen).map(|(&edge, _)| edge).collect();
        let mut all = ordered(20, 30, &domains, &edges);
        all.retain(|edge| some.contains(edge));
        let backwards: Vec<_> = some.iter().rev().copied().collect();
        prop_assert_eq!(ordered(20, 30, &domains, &backwards), all);
    }

    #[test]
    fn shares_tile_and_loads_stay_level(
        sizes in proptest::collection::vec(0u64..20 * GRAIN, 1..40),
        count in 1usize..9,
        element in prop::sample::select(vec![1u64, 2, 4, 8]),
    ) {
        let ranks: Vec<Rank> = (0..count as u32).map(|rank| Rank(3 * rank)).collect();
        let carriers = Carriers::alike(&ranks);
        let sizes: Vec<u64> = sizes.iter().map(|size| size / element * element).collect();
        let all = sizes.iter().sum::<u64>().max(1);
        let mut carried = vec![0u64; 3 * count];
        let mut begun = 0;
        for &bytes in &sizes {
            let phase = ((u128::from(begun) << 32) / u128::from(all)) as u32;
            let shares = carriers.split(bytes, phase, |at| at / element * element);
            let mut reached = 0;
            for share in &shares {
                prop_assert!(share.from == reached && share.to > share.from && share.to % element == 0);
                prop_assert_eq!((carrier(&shares, share.from), carrier(&shares, share.to - 1)), (share.rank, share.rank));
                carried[share.rank.index()] += share.to - share.from;
                reached = share.to;
            }
            prop_assert_eq!(reached, bytes);
            begun += bytes;
        }
        // Small classes go by grains, each of which is less than two grains long.
        let small: u64 = sizes.iter().filter(|&&bytes| bytes < count as u64 * GRAIN).count() as u64;
        let carried: Vec<u64> = ranks.iter().map(|rank| carried[rank.index()]).collect();
        let spread = carried.iter().max().unwrap() - carried.iter().min().unwrap();
        prop_assert!(spread <= (small + 1) * GRAIN * 2 + element * sizes.len() as u64, "{:?}", carried);
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
