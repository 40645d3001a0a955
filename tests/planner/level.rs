//! The most loaded network card: within a hundredth of what no route can beat, however uneven the layouts are.

use super::random::{Choices, sizes};
use super::{layout, options};
use crossmesh::base::Rank;
use crossmesh::layout::model::Model;
use crossmesh::layout::parallel::{ParallelSpec, Rules};
use crossmesh::layout::{Dtype, Layout, Placement};
use crossmesh::plan::{Manifest, ModelSide, Plan, model_manifest};
use crossmesh::route::{Injection, RouteKind, check, nic_bound, route, traffic};
use crossmesh::topology::{LinkRate, Machine, Topology};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of the most loaded card at least, when every rank has one.
fn bound(plan: &Plan, topology: &Topology) -> u64 {
    let (network, inside) = (LinkRate::network(1 << 30), LinkRate::nvlink(1 << 30));
    let machine = Machine::one_nic_each("test", topology.clone(), network, inside);
    nic_bound(plan, &machine, Injection::Striped).bytes
}

/// The busiest card and the bound; the flows are proved.
fn loads(plan: &Plan, topology: &Topology) -> (u64, u64) {
    let flows = route(plan, topology, options(RouteKind::Hierarchical, Injection::Striped)).flows;
    assert_eq!(check(plan, &flows).unwrap().written, plan.delivered_bytes());
    (traffic(&flows, topology).busiest_nic(), bound(plan, topology))
}

fn numbered(tensors: Vec<(Arc<Layout>, Arc<Layout>)>, size: u32) -> Plan {
    super::plan(tensors, size as usize)
}

/// Eight holders and eight wanters in two domains each; sets of holders and of wanters that overlap in all ways, tensors
/// of very different sizes, splits into given sizes.
fn uneven(bytes: Vec<u8>) -> (Plan, Topology) {
    let mut choices = Choices::new(bytes);
    let mut tensors = Vec::new();
    for _ in 0..3 + choices.below(10) {
        let rows = 64;
        let shape = [rows, choices.of(&[2000, 8000, 30_000, 100_000])];
        let mut side = |first: u32| {
            let width = choices.of(&[8u32, 4, 2, 1]);
            let begin = first + choices.below(9 - width as usize) as u32;
            let shards = choices.of(&[1u32, 2, 4, 8]).min(width);
            let split = match choices.below(3) {
                0 => Placement::shard(0),
                1 => Placement::chunk(0),
                _ => Placement::sizes(0, sizes(&mut choices, rows, shards)),
            };
            let mesh = [width / shards, shards];
            layout(&shape, Dtype::BF16, &mesh, begin..begin + width, &[Placement::Replicate, split])
        };
        tensors.push((side(0), side(8)));
    }
    (numbered(tensors, 16), Topology::from_domains(&(0..16).map(|rank| rank / 4).collect::<Vec<_>>()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn uneven_layouts_stay_within_a_hundredth(bytes in proptest::collection::vec(any::<u8>(), 40..400)) {
        let (plan, topology) = uneven(bytes);
        let (busiest, bound) = loads(&plan, &topology);
        // Classes below a grain for each candidate go whole, or in a few grains.
        let small: u64 = plan.classes().iter().map(|class| class.bytes.min(8 * 4096)).filter(|&bytes| bytes < 8 * 4096).sum();
        prop_assert!(busiest as f64 <= bound as f64 * 1.01 + small as f64, "{} of {}, {} small", busiest, bound, small);
    }
}

#[test]
fn layers_that_stages_do_not_divide() {
    // 61 layers and a prediction layer over 8 stages, 16 ranks each, to two domains of four copies of 16 shards.
    let model = Model::published("deepseek-v3-stacked").unwrap();
    let rules = Rules::embedded().unwrap();
    let spec = |text| ParallelSpec::parse(text).unwrap();
    let (source, destination) = (spec("ep=16,dp=1,pp=8"), spec("tp=16,dp=8"));
    let ranks: Vec<Rank> = (0..256).map(Rank).collect();
    let from = ModelSide { spec: &source, ranks: &ranks[..128], rules: &rules };
    let to = ModelSide { spec: &destination, ranks: &ranks[128..], rules: &rules };
    let manifest: Manifest = model_manifest(&model, from, to).unwrap().manifest;
    let plan = Plan::compile(Arc::new(manifest), 256).unwrap();
    let topology = Topology::from_domains(&(0..256).map(|rank| rank / 64).collect::<Vec<_>>());
    let flows = route(&plan, &topology, options(RouteKind::Hierarchical, Injection::Striped)).flows;
    let counted = traffic(&flows, &topology);
    let sent = counted.ranks[..128].iter().map(|rank| rank.network_sent);
    assert!(counted.busiest_nic() as f64 <= 1.01 * bound(&plan, &topology) as f64);
    // All replicas of all stages inject, at once: every trainer is the root of flows from the first of its rail on.
    assert!(sent.min().unwrap() > 0);
    let roots: BTreeSet<Rank> = flows[..128 * 8].iter().map(|flow| flow.nodes[0].rank).collect();
    assert_eq!(roots.len(), 128, "the first flows come from every rank of every stage");
}
