//! What a rank plans for itself is its part of what is planned for all: the same cells, cut alike, on the same ways, in the
//! same order; and the proofs and bytes of the ranks add up to those of all.

use super::random::{Case, cases};
use super::{all_options, partial};
use crossmesh::base::Rank;
use crossmesh::layout::Interval;
use crossmesh::plan::Plan;
use crossmesh::route::{
    Coverage, Flow, Piece, RouteOptions, Sums, check, check_for, plan_for, route, route_for, traffic, traffic_of,
};
use crossmesh::topology::Topology;
use proptest::prelude::*;

/// A piece by its tensor, box and elements: cells are numbered differently in each plan.
type Stretch = (u32, Vec<Interval>, u64, u64);

/// A flow at one rank: parent, children, steps before it, whether it keeps the bytes, what travels, its bytes, and who
/// adds up whose terms before.
type Seen = (Option<u32>, Vec<u32>, u32, bool, Vec<Stretch>, u64, Vec<(u32, Vec<u32>)>);

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

fn adding(sums: Option<&Sums>) -> Vec<(u32, Vec<u32>)> {
    let domains = sums.iter().flat_map(|sums| sums.domains.iter());
    domains.map(|sum| (sum.reducer.0, numbers(&sum.terms))).collect()
}

fn stretches(plan: &Plan, pieces: &[Piece]) -> Vec<Stretch> {
    let stretch = |piece: &Piece| (piece.cell.tensor, plan.cell(piece.cell).intervals.clone(), piece.start, piece.end);
    pieces.iter().map(stretch).collect()
}

/// The part of `flows` that passes `rank`.
fn slice(plan: &Plan, flows: &[Flow], rank: Rank) -> Vec<Seen> {
    let seen = |flow: &Flow| {
        let (adding, stretches) = (adding(flow.sums.as_ref()), stretches(plan, &flow.pieces));
        let Some(node) = flow.nodes.iter().position(|node| node.rank == rank) else {
            let adds = adding.iter().any(|(_, terms)| terms.contains(&rank.0));
            return adds.then(|| (None, Vec::new(), 1, false, stretches, flow.bytes, adding));
        };
        let stages = [0, 1, 3, 3, 3, 3, 3, 3, 3][adding.len()];
        let parent = flow.nodes[node].parent.map(|parent| flow.nodes[parent as usize].rank.0);
        let children = flow.children(node).map(|(_, child)| child.rank.0).collect();
        let wants = flow.nodes[node].wants;
        Some((parent, children, stages + flow.depth(node) as u32, wants, stretches, flow.bytes, adding))
    };
    flows.iter().filter_map(seen).collect()
}

fn own(case: &Case, options: RouteOptions, rank: Rank) -> (Vec<Seen>, Coverage) {
    let plan = plan_for(&case.manifest, &case.topology, options, rank).unwrap();
    let flows = route_for(&plan, &case.topology, options, rank);
    let seen = flows.iter().map(|flow| {
        let place = &flow.place;
        let children = place.children.iter().map(|child| child.rank.0).collect();
        let parent = place.parent.map(|parent| parent.rank.0);
        for (neighbour, is_parent) in
            place.parent.iter().map(|p| (p, true)).chain(place.children.iter().map(|c| (c, false)))
        {
            // What it says of a neighbour is what that rank finds of itself.
            let theirs = flow.path.place(&case.topology, neighbour.rank).expect("on the way");
            assert_eq!(neighbour.wants, theirs.wants);
            assert_eq!(neighbour.is_root, flow.path.root() == neighbour.rank);
            assert!(is_parent || neighbour.is_leaf == theirs.children.is_empty());
        }
        let adding = adding(flow.sums.as_ref());
        (parent, children, place.hop, place.wants, stretches(&plan, &flow.pieces), flow.bytes, adding)
    });
    let seen = seen.collect();
    (seen, check_for(&plan, &flows, rank).unwrap())
}

fn compare(case: &Case) {
    let whole = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
    for options in all_options() {
        let flows = route(&whole, &case.topology, options).flows;
        let counted = traffic(&flows, &case.topology);
        let mut sum = Coverage::default();
        for rank in (0..case.topology.size() as u32).map(Rank) {
            let (seen, coverage) = own(case, options, rank);
            assert_eq!(seen, slice(&whole, &flows, rank), "rank {rank}, {options:?}");
            sum += coverage;
            let plan = plan_for(&case.manifest, &case.topology, options, rank).unwrap();
            let flows = route_for(&plan, &case.topology, options, rank);
            assert_eq!(traffic_of(&flows, &case.topology, rank), counted.ranks[rank.index()]);
        }
        assert_eq!(check(&whole, &flows), Ok(sum), "{options:?}");
    }
}

/// The same with more elements, so that classes are cut among injectors, leaders and domains.
fn enlarged(case: &Case) -> Case {
    let mut manifest = crossmesh::plan::Manifest::new();
    let larger = |layout: &crossmesh::layout::Layout| {
        let mut shape = layout.shape().to_vec();
        shape.push(20_011);
        let (mesh, placements) = (layout.mesh().clone(), layout.placements().to_vec());
        let larger = crossmesh::layout::Layout::new(shape, layout.dtype(), mesh.into(), placements).unwrap();
        std::sync::Arc::new(larger)
    };
    for tensor in case.manifest.tensors() {
        let (source, destination) = (larger(&tensor.source), larger(&tensor.destination));
        manifest.push_with(&tensor.name, source, destination, tensor.transform).unwrap();
    }
    Case { manifest: manifest.into(), topology: case.topology.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_plan_of_a_rank_is_its_part(case in cases()) {
        compare(&case);
    }

    #[test]
    fn also_of_terms(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
        let case = partial::case(bytes);
        compare(&case);
        compare(&enlarged(&case));
    }

    #[test]
    fn also_of_large_tensors(case in cases()) {
        compare(&enlarged(&case));
    }

    #[test]
    fn classes_say_the_same(case in cases()) {
        let whole = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
        for rank in (0..case.topology.size() as u32).map(Rank) {
            let own = Plan::compile_for(case.manifest.clone(), case.topology.size(), rank).unwrap();
            let concerns = |sets: &[Rank]| sets.binary_search(&rank).is_ok();
            let concerned =
                whole.classes().iter().filter(|class| concerns(&class.holders) || concerns(&class.wanters)).count();
            prop_assert_eq!(own.classes().len(), concerned);
            for class in own.classes() {
                let same = whole.classes().iter().find(|other| (&other.holders, &other.wanters) == (&class.holders, &class.wanters));
                let same = same.expect("a class of all ranks");
                prop_assert_eq!((class.bytes, class.cells.len()), (same.bytes, same.cells.len()));
                prop_assert_eq!((class.source_phase, class.destination_phase), (same.source_phase, same.destination_phase));
            }
        }
    }
}

#[test]
fn more_ranks_and_domains_than_random_cases_have() {
    use super::layout;
    use crossmesh::layout::{Dtype, Placement};
    // Two stages of 4 x 3 trainers, uneven, and 4 x 4 generators in domains of 5.
    let mut manifest = crossmesh::plan::Manifest::new();
    for number in 0..14u32 {
        let shape = [48 + u64::from(number % 3), 7000];
        let first = number / 8 * 12;
        let source = match number % 3 {
            0 => layout(&shape, Dtype::BF16, &[4, 3], first..first + 12, &[Placement::Replicate, Placement::shard(0)]),
            1 => layout(&shape, Dtype::BF16, &[12], first..first + 12, &[Placement::Replicate]),
            _ => layout(&shape, Dtype::BF16, &[1], [first + number % 12], &[Placement::Replicate]),
        };
        let placements = [Placement::Replicate, Placement::chunk(number as usize % 2)];
        let destination = layout(&shape, Dtype::BF16, &[4, 4], 24..40, &placements);
        manifest.push(format!("t{number}"), source, destination).unwrap();
    }
    let domains: Vec<u32> = (0..40).map(|rank| rank / 5).collect();
    compare(&Case { manifest: manifest.into(), topology: Topology::from_domains(&domains) });
}
