//! `check` finds every kind of fault: flows dropped, doubled, shifted, given a wrong root or bent out of shape.

use super::random::cases;
use super::{all_options, layout, options, plan};
use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Placement};
use crossmesh::plan::Plan;
use crossmesh::route::{CheckError, Flow, Injection, Piece, RouteKind, check, route};
use crossmesh::topology::Topology;
use proptest::prelude::*;

/// Two sources, two domains of two destination ranks, large enough to be striped and chained.
fn example() -> (Plan, Vec<Flow>) {
    let source = layout(&[64, 4096], Dtype::F32, &[2], 0..2, &[Placement::shard(0)]);
    let destination = layout(&[64, 4096], Dtype::F32, &[2, 2], 2..6, &[Placement::Replicate, Placement::shard(1)]);
    let plan = plan([(source, destination)], 6);
    let topology = Topology::from_domains(&[0, 0, 1, 1, 2, 2]);
    let flows = route(&plan, &topology, options(RouteKind::Hierarchical, Injection::Striped)).flows;
    assert_eq!(check(&plan, &flows).unwrap().written, plan.delivered_bytes());
    (plan, flows)
}

#[test]
fn dropped_and_doubled_flows() {
    let (plan, flows) = example();
    for index in 0..flows.len() {
        let mut dropped = flows.clone();
        dropped.remove(index);
        assert!(matches!(check(&plan, &dropped), Err(CheckError::Missing { .. })), "without flow {index}");
        let mut doubled = flows.clone();
        doubled.push(flows[index].clone());
        assert!(matches!(check(&plan, &doubled), Err(CheckError::Twice { .. })), "flow {index} twice");
    }
    assert!(matches!(check(&plan, &[]), Err(CheckError::Missing { from: 0, .. })));
}

#[test]
fn shifted_pieces() {
    let (plan, flows) = example();
    let shifts: [fn(&mut Piece); 4] = [
        |piece| (piece.start, piece.end) = (piece.start + 1, piece.end + 1),
        |piece| (piece.start, piece.end) = (piece.start.wrapping_sub(1), piece.end - 1),
        |piece| piece.end += 1,
        |piece| piece.start += 1,
    ];
    for index in 0..flows.len() {
        for shift in shifts {
            let mut shifted = flows.clone();
            shift(&mut shifted[index].pieces[0]);
            assert!(check(&plan, &shifted).is_err(), "{:?}", shifted[index]);
            // The same with the byte count made to agree: the tiling itself must be found wrong.
            let elements: u64 = shifted[index].pieces.iter().map(|piece| piece.end.saturating_sub(piece.start)).sum();
            shifted[index].bytes = elements * 4;
            assert!(check(&plan, &shifted).is_err(), "{:?}", shifted[index]);
        }
    }
}

#[test]
fn strangers() {
    let (plan, flows) = example();
    for index in 0..flows.len() {
        let mut wrong = flows.clone();
        wrong[index].nodes[0].rank = Rank(1 - flows[index].nodes[0].rank.0);
        assert!(matches!(check(&plan, &wrong), Err(CheckError::Stranger { what: "from", .. })));
        let mut wrong = flows.clone();
        wrong[index].nodes[0].wants = true;
        assert!(matches!(check(&plan, &wrong), Err(CheckError::Stranger { what: "to", .. })));
        let mut wrong = flows.clone();
        wrong[index].nodes[1].wants = false;
        assert!(matches!(check(&plan, &wrong), Err(CheckError::Missing { .. })));
        // Another column's rank of the same domain.
        let mut wrong = flows.clone();
        let receiver = wrong[index].nodes[1].rank.0;
        wrong[index].nodes[1].rank = Rank(receiver ^ 1);
        assert!(matches!(check(&plan, &wrong), Err(CheckError::Stranger { what: "to", .. })));
    }
}

#[test]
fn malformed_flows() {
    let (plan, flows) = example();
    type Bend = fn(&mut Flow);
    let bends: [(&str, Bend); 9] = [
        ("no root", |flow| flow.nodes.clear()),
        ("root with a parent", |flow| flow.nodes[0].parent = Some(0)),
        ("does not stand before", |flow| flow.nodes[1].parent = Some(2)),
        ("does not stand before", |flow| flow.nodes[1].parent = None),
        ("does not stand before", |flow| flow.nodes[1].parent = Some(1)),
        ("through a rank twice", |flow| flow.nodes[2].rank = flow.nodes[1].rank),
        ("the plan does not have", |flow| flow.pieces[0].cell.tensor = 1),
        ("the plan does not have", |flow| flow.pieces[0].cell.cell = 99),
        ("do not sum", |flow| flow.bytes += 1),
    ];
    for (fault, bend) in bends {
        let mut bent = flows.clone();
        bend(&mut bent[1]);
        let error = check(&plan, &bent).unwrap_err();
        assert!(matches!(error, CheckError::Malformed { flow: 1, .. }), "{error}");
        assert!(error.to_string().contains(fault), "{error} should speak of: {fault}");
    }
    let overrun = Piece { end: u64::MAX, ..flows[0].pieces[0] };
    let mut bent = flows.clone();
    bent[0].pieces = vec![overrun; 3];
    assert!(matches!(check(&plan, &bent), Err(CheckError::Malformed { flow: 0, .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn one_changed_flow_is_one_fault(case in cases(), pick in any::<prop::sample::Index>(), fault in 0..4) {
        let plan = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
        for options in all_options() {
            let mut flows = route(&plan, &case.topology, options).flows;
            if flows.is_empty() {
                continue;
            }
            let index = pick.index(flows.len());
            match fault {
                0 => drop(flows.remove(index)),
                1 => flows.push(flows[index].clone()),
                2 => flows[index].pieces[0].start += 1,
                _ => flows[index].nodes[0].rank = Rank(100),
            }
            prop_assert!(check(&plan, &flows).is_err(), "fault {} in flow {} of {:?}", fault, index, options);
        }
    }
}
