//! The bound against its definition. In: demands, small plans. Out: nothing. Guarantee: random demands are compared with
//! the worst of all their subsets.

use super::super::{LinkBytes, RouteKind, RouteOptions, route, traffic};
use super::*;
use crate::layout::{Dtype, Layout, Mesh, Placement, Reduction};
use crate::plan::Manifest;
use crate::topology::{LinkRate, Topology};
use proptest::prelude::*;
use std::sync::Arc;

fn machine(domains: &[u32]) -> Machine {
    Machine::one_nic_each("test", Topology::from_domains(domains), LinkRate::network(1000), LinkRate::nvlink(9000))
}

fn side(rows: u64, first: u32, mesh: &[u32]) -> Arc<Layout> {
    let mesh = Arc::new(Mesh::contiguous(mesh.to_vec(), Rank(first)).unwrap());
    let placements = vec![Placement::Replicate, Placement::shard(0)];
    Arc::new(Layout::new(vec![rows], Dtype::U8, mesh, placements).unwrap())
}

fn plan(tensors: &[(Arc<Layout>, Arc<Layout>)], ranks: usize) -> Plan {
    let mut manifest = Manifest::new();
    for (index, (source, destination)) in tensors.iter().enumerate() {
        manifest.push(index.to_string(), source.clone(), destination.clone()).unwrap();
    }
    Plan::compile(Arc::new(manifest), ranks).unwrap()
}

#[test]
fn injectors_leaders_and_forwarders() {
    // Figure 3 of NCCL M2N: four sources, two domains of four.
    let figure_3 = plan(&[(side(64, 0, &[1, 4]), side(64, 4, &[4, 2]))], 12);
    let two_domains = machine(&[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(nic_bound(&figure_3, &two_domains, Injection::Striped), NicBound { bytes: 16, seconds: 0.016 });
    // Four replicas of two shards: with one owner each, two cards send all.
    let replicas = plan(&[(side(64, 0, &[4, 2]), side(64, 8, &[1, 8]))], 16);
    let one_domain = machine(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(nic_bound(&replicas, &one_domain, Injection::Striped).bytes, 8);
    assert_eq!(nic_bound(&replicas, &one_domain, Injection::Single).bytes, 32);
    // Nothing crosses.
    assert_eq!(nic_bound(&replicas, &machine(&[0; 16]), Injection::Single), NicBound::default());
    // One source, three domains of one rank: all four cards may send on.
    let broadcast = plan(&[(side(90, 0, &[1, 1]), side(90, 1, &[3, 1]))], 4);
    assert_eq!(nic_bound(&broadcast, &machine(&[0, 1, 2, 3]), Injection::Striped).bytes, 90);
}

#[test]
fn uneven_holders() {
    // Rank 0 alone holds 100 bytes, and 20 together with rank 1.
    let alone = (side(100, 0, &[1, 1]), side(100, 2, &[4, 1]));
    let both = (side(20, 0, &[2, 1]), side(20, 2, &[4, 1]));
    let plan = plan(&[alone, both], 6);
    assert_eq!(nic_bound(&plan, &machine(&[0, 0, 1, 1, 1, 1]), Injection::Striped).bytes, 100);
    let mut fast = machine(&[0, 0, 1, 1, 1, 1]);
    fast.nics[0].rate.bytes_per_second = 10_000;
    let bound = nic_bound(&plan, &fast, Injection::Striped);
    // 120 bytes enter through four cards of 1000 bytes a second; 30 of them are 300 for the fast one.
    assert!((bound.seconds - 0.03).abs() < 1e-9 && bound.bytes == 300, "{bound:?}");
}

#[test]
fn no_route_beats_it() {
    compare(&plan(&[(side(1 << 20, 0, &[4, 2]), side(1 << 20, 8, &[4, 4]))], 24));
}

#[test]
fn no_route_of_terms_beats_it() {
    let mesh = Arc::new(Mesh::contiguous(vec![4, 2], Rank(0)).unwrap());
    let placements = vec![Placement::Partial(Reduction::Sum), Placement::Replicate];
    let terms = Arc::new(Layout::new(vec![1 << 20], Dtype::U8, mesh, placements).unwrap());
    compare(&plan(&[(terms, side(1 << 20, 8, &[4, 4]))], 24));
}

/// Compares every route of a plan from a domain of 8 ranks to two others.
fn compare(plan: &Plan) {
    let domains: Vec<u32> = (0..24).map(|rank| rank / 8).collect();
    let machine = machine(&domains);
    for options in RouteOptions::ALL {
        let bytes =
            LinkBytes::new(&traffic(&route(plan, &machine.topology, options).flows, &machine.topology), &machine);
        let most = bytes.nics.iter().map(|nic| nic.most()).max().unwrap();
        let bound = nic_bound(plan, &machine, options.injection).bytes;
        assert!(most >= bound, "{options:?}: {most} {bound}");
        if options.kind == RouteKind::Hierarchical {
            assert!(most as f64 <= bound as f64 * 1.01, "{options:?}: {most} {bound}");
        }
    }
}

proptest! {
    #[test]
    fn the_worst_subset_decides(
        listed in proptest::collection::vec((proptest::collection::btree_set(0u32..6, 1..4), 1u64..10_000), 1..7),
        rates in proptest::collection::vec(1u64..5, 6),
    ) {
        let mut machine = machine(&[0; 6]);
        for (nic, &rate) in machine.nics.iter_mut().zip(&rates) {
            nic.rate.bytes_per_second = rate;
        }
        let mut demands = Demands::new();
        for (cards, bytes) in &listed {
            *demands.entry(cards.iter().copied().collect()).or_default() += bytes;
        }
        let all: Vec<_> = demands.iter().collect();
        let time_of = |subset: usize| {
            let chosen = || all.iter().enumerate().filter(move |(index, _)| subset >> index & 1 == 1).map(|(_, demand)| demand);
            let cards: std::collections::BTreeSet<u32> = chosen().flat_map(|(cards, _)| cards.iter().copied()).collect();
            let bytes: u64 = chosen().map(|(_, bytes)| **bytes).sum();
            bytes as f64 / cards.iter().map(|&nic| rates[nic as usize]).sum::<u64>() as f64
        };
        let worst = (1..1usize << all.len()).map(time_of).fold(0.0, f64::max);
        let (bytes, rate) = least_time(&demands, &machine);
        let found = bytes as f64 / rate as f64;
        prop_assert!(found <= worst * 1.000_001, "{found} {worst}");
        prop_assert!(found >= worst * 0.999_999, "{found} {worst}");
    }
}
