//! The examples of NCCL M2N (sections IV and V), with ownership and bytes per rank written out. B = 64 bytes: a
//! 4 x 8 tensor of two-byte elements.

use super::{layout, options, plan};
use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Interval, Layout, Placement};
use crossmesh::plan::Plan;
use crossmesh::route::{Flow, Injection, RouteKind, Traffic, check, route, traffic};
use crossmesh::topology::Topology;
use std::sync::Arc;

const SHAPE: [u64; 2] = [4, 8];
const B: u64 = 64;

fn replicate_then_shard(mesh: [u32; 2], ranks: std::ops::Range<u32>) -> Arc<Layout> {
    layout(&SHAPE, Dtype::BF16, &mesh, ranks, &[Placement::Replicate, Placement::shard(0)])
}

fn rows(layout: &Layout, rank: u32) -> (u64, u64) {
    let maps = layout.axis_maps(Rank(rank)).unwrap();
    assert_eq!(maps[1].segments()[0].global, Interval { lo: 0, hi: 8 });
    (maps[0].segments()[0].global.lo, maps[0].segments()[0].global.hi)
}

fn routed(plan: &Plan, domains: &[u32], kind: RouteKind) -> (Vec<Flow>, Traffic) {
    let topology = Topology::from_domains(domains);
    let flows = route(plan, &topology, options(kind, Injection::Striped)).flows;
    assert_eq!(check(plan, &flows).unwrap().written, plan.delivered_bytes());
    let traffic = traffic(&flows, &topology);
    (flows, traffic)
}

/// Per rank: network bytes sent and received, local bytes sent and received.
fn table(traffic: &Traffic) -> Vec<[u64; 4]> {
    let ranks = traffic.ranks.iter();
    ranks.map(|rank| [rank.network_sent, rank.network_received, rank.local_sent, rank.local_received]).collect()
}

/// The ranks of a flow, root first, each receiver after its parent.
fn path(flow: &Flow) -> Vec<u32> {
    flow.nodes.iter().map(|node| node.rank.0).collect()
}

#[test]
fn example_a_ownership() {
    let (source, destination) = (replicate_then_shard([1, 4], 0..4), replicate_then_shard([2, 2], 4..8));
    let owned: Vec<(u64, u64)> = (0..8).map(|rank| rows(if rank < 4 { &source } else { &destination }, rank)).collect();
    assert_eq!(owned, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (2, 4), (0, 2), (2, 4)]);
    let plan = plan([(source, destination)], 8);
    let classes: Vec<(Vec<u32>, Vec<u32>, u64)> = plan.classes().iter().map(sets).collect();
    let expected: [(u32, [u32; 2]); 4] = [(0, [4, 6]), (1, [4, 6]), (2, [5, 7]), (3, [5, 7])];
    assert_eq!(classes, expected.map(|(holder, wanters)| (vec![holder], wanters.to_vec(), B / 4)));
    assert_eq!((plan.unique_bytes(), plan.delivered_bytes()), (B, 2 * B));
}

fn sets(class: &crossmesh::plan::CellClass) -> (Vec<u32>, Vec<u32>, u64) {
    let ids = |ranks: &[Rank]| ranks.iter().map(|rank| rank.0).collect();
    (ids(&class.holders), ids(&class.wanters), class.bytes)
}

#[test]
fn example_a_bytes() {
    let plan = plan([(replicate_then_shard([1, 4], 0..4), replicate_then_shard([2, 2], 4..8))], 8);
    let domains = [0, 0, 0, 0, 1, 1, 1, 1];

    // Figure 1: both replicas over the network, 2B.
    let (_, flat) = routed(&plan, &domains, RouteKind::Flat);
    assert_eq!(flat.inter_domain_bytes, 2 * B);
    let (trainer, generator) = ([32, 0, 0, 0], [0, 32, 0, 0]);
    assert_eq!(table(&flat), [[trainer; 4], [generator; 4]].concat());

    // One copy over the network, B; each generator leads one row and reads the other.
    let (_, hierarchical) = routed(&plan, &domains, RouteKind::Hierarchical);
    assert_eq!((hierarchical.inter_domain_bytes, hierarchical.busiest_nic()), (B, B / 4));
    let (trainer, generator) = ([16, 0, 0, 0], [0, 16, 16, 16]);
    assert_eq!(table(&hierarchical), [[trainer; 4], [generator; 4]].concat());

    // All to T0, B over its NIC, everything to every generator.
    let (_, broadcast) = routed(&plan, &domains, RouteKind::GatherBroadcast);
    assert_eq!((broadcast.inter_domain_bytes, broadcast.busiest_nic()), (B, B));
    let expected = [
        [B, 0, 0, 48],
        [0, 0, 16, 0],
        [0, 0, 16, 0],
        [0, 0, 16, 0],
        [0, B, 3 * B, 0],
        [0, 0, 0, B],
        [0, 0, 0, B],
        [0, 0, 0, B],
    ];
    assert_eq!(table(&broadcast), expected);
}

#[test]
fn example_b_two_stages_in_one_manifest() {
    // Trainer stages on ranks 0-1 and 2-3, generator on rank 4: two tensors, one per stage.
    let stage = |ranks: std::ops::Range<u32>| replicate_then_shard([1, 2], ranks);
    let generator = layout(&SHAPE, Dtype::BF16, &[1], [4], &[Placement::Replicate]);
    let owned = |layout: &Layout, first: u32| [rows(layout, first), rows(layout, first + 1)];
    assert_eq!((owned(&stage(0..2), 0), owned(&stage(2..4), 2)), ([(0, 2), (2, 4)], [(0, 2), (2, 4)]));
    assert_eq!(rows(&generator, 4), (0, 4));
    let plan = plan([(stage(0..2), generator.clone()), (stage(2..4), generator)], 5);
    let classes: Vec<_> = plan.classes().iter().map(sets).collect();
    assert_eq!(classes, [0, 1, 2, 3].map(|holder| (vec![holder], vec![4], B / 2)));
    assert_eq!((plan.unique_bytes(), plan.delivered_bytes()), (2 * B, 2 * B));
    for kind in [RouteKind::Hierarchical, RouteKind::Flat] {
        let (flows, traffic) = routed(&plan, &[0, 0, 0, 0, 1], kind);
        assert_eq!(traffic.inter_domain_bytes, 2 * B);
        assert_eq!(table(&traffic), [[[32, 0, 0, 0]; 4].as_slice(), &[[0, 2 * B, 0, 0]]].concat());
        assert_eq!(flows.len(), 4);
    }
}

fn figure_3() -> Plan {
    plan([(replicate_then_shard([1, 4], 0..4), replicate_then_shard([4, 2], 4..12))], 12)
}

const FIGURE_3_DOMAINS: [u32; 12] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];

#[test]
fn figure_3_leaders_and_stages() {
    let plan = figure_3();
    let (flows, traffic) = routed(&plan, &FIGURE_3_DOMAINS, RouteKind::Hierarchical);
    // T0 and T1 enter through G4 and G6, T2 and T3 through G5 and G7, and through the same places of the second
    // domain; every other contribution goes round the other way.
    let mut paths: Vec<Vec<u32>> = flows.iter().map(path).collect();
    paths.sort();
    assert_eq!(paths, [[0, 4, 6, 8, 10], [1, 10, 8, 6, 4], [2, 5, 7, 9, 11], [3, 11, 9, 7, 5]]);
    let parents: Vec<Vec<Option<u32>>> =
        flows.iter().map(|flow| flow.nodes.iter().map(|node| node.parent).collect()).collect();
    assert!(parents.iter().all(|parents| parents == &[None, Some(0), Some(1), Some(1), Some(3)]));
    // Each network stage carries B: into the first domain and into the second.
    assert_eq!((traffic.inter_domain_bytes, &traffic.ingress_per_domain[..]), (2 * B, &[0, B, B][..]));
    let injection: u64 = traffic.ranks[..4].iter().map(|rank| rank.network_sent).sum();
    let forwarding: u64 = traffic.ranks[4..].iter().map(|rank| rank.network_sent).sum();
    assert_eq!((injection, forwarding), (B, B));
    // NIC bytes of T0-T3, then G4-G11: sent to other domains, received from them, read by and from neighbours.
    let forwards = [16, 16, 16, 16];
    let ends = [0, 16, 16, 16];
    let expected =
        [[[16, 0, 0, 0]; 4].as_slice(), &[forwards, forwards, ends, ends], &[ends, ends, forwards, forwards]];
    assert_eq!(table(&traffic), expected.concat());
    assert_eq!(traffic.busiest_nic(), B / 4);
}

#[test]
fn figure_3_flat_sends_every_replica() {
    let (_, traffic) = routed(&figure_3(), &FIGURE_3_DOMAINS, RouteKind::Flat);
    assert_eq!((traffic.inter_domain_bytes, &traffic.ingress_per_domain[..]), (4 * B, &[0, 2 * B, 2 * B][..]));
    assert_eq!(table(&traffic), [[[B, 0, 0, 0]; 4].as_slice(), &[[0, 32, 0, 0]; 8]].concat());
}

/// Sources, destination shards, local replicas, destination domains.
struct Model {
    sources: u32,
    shards: u32,
    replicas: u32,
    domains: u32,
}

#[test]
fn data_movement_model() {
    // Equations 3 to 6 and 9, per NIC, for even layouts; sizes are powers of two, so that nothing rounds.
    for (sources, shards, replicas, domains) in
        [(4, 2, 2, 1), (4, 2, 2, 2), (16, 8, 8, 1), (16, 8, 2, 4), (2, 4, 4, 2), (8, 8, 1, 4), (1, 1, 4, 2)]
    {
        model(Model { sources, shards, replicas, domains });
    }
}

fn model(Model { sources, shards, replicas, domains }: Model) {
    let shape = [64, 64, 4096];
    let source = layout(&shape, Dtype::BF16, &[sources], 0..sources, &[Placement::shard(0)]);
    let size = sources + shards * replicas * domains;
    let placements = [Placement::Replicate, Placement::shard(1)];
    let destination = layout(&shape, Dtype::BF16, &[replicas * domains, shards], sources..size, &placements);
    let plan = plan([(source, destination)], size as usize);
    let domain_of = |rank: u32| if rank < sources { 0 } else { 1 + (rank - sources) / (shards * replicas) };
    let domain_of: Vec<u32> = (0..size).map(domain_of).collect();
    let b = plan.unique_bytes();
    let (sources, shards, replicas, domains) =
        (u64::from(sources), u64::from(shards), u64::from(replicas), u64::from(domains));

    let (_, hierarchical) = routed(&plan, &domain_of, RouteKind::Hierarchical);
    assert_eq!(hierarchical.busiest_nic(), b / sources.min(shards * replicas), "equation 3");
    let receivers = &hierarchical.ranks[sources as usize..];
    let local = (replicas - 1) * b / (shards * replicas);
    assert!(receivers.iter().all(|rank| (rank.local_sent, rank.local_received) == (local, local)), "equation 4");
    assert!(receivers.iter().all(|rank| rank.network_received == b / (shards * replicas)));
    let forwarded = b / (shards * replicas) * (domains - 1) / domains;
    assert!(receivers.iter().all(|rank| rank.network_sent == forwarded), "the ring is even");

    let (_, flat) = routed(&plan, &domain_of, RouteKind::Flat);
    let all_replicas = replicas * domains;
    assert_eq!(flat.busiest_nic(), all_replicas * b / sources.min(shards * all_replicas), "equation 6");

    let (_, broadcast) = routed(&plan, &domain_of, RouteKind::GatherBroadcast);
    assert_eq!(broadcast.ranks[0].network_sent, b, "equation 9: the root injects everything");
}
