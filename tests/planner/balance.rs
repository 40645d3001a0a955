//! Balance of the hierarchical route: one copy per domain, level NICs, turned starts, few flows.

use super::{layout, options, plan};
use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Layout, Placement};
use crossmesh::plan::Plan;
use crossmesh::route::{Flow, Injection, RouteKind, check, route, traffic};
use crossmesh::topology::Topology;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A class below two grains goes whole through one rank.
const UNEVEN: u64 = 2 * 4096;

/// Replicated and sharded sources in domain 0, destination domains with all shards and replicas in each.
#[derive(Debug, Clone)]
struct Even {
    source: [u32; 2],
    shards: u32,
    replicas: u32,
    domains: u32,
    columns: u64,
    dtype: Dtype,
    tensors: usize,
}

impl Even {
    fn size(&self) -> u32 {
        self.source[0] * self.source[1] + self.shards * self.replicas * self.domains
    }

    fn sources(&self) -> u32 {
        self.source[0] * self.source[1]
    }

    fn layouts(&self) -> (Arc<Layout>, Arc<Layout>) {
        let shape = [12, 12, self.columns];
        let source = [Placement::Replicate, Placement::shard(0)];
        let destination = [Placement::Replicate, Placement::shard(1)];
        let rows = [self.replicas * self.domains, self.shards];
        (
            layout(&shape, self.dtype, &self.source, 0..self.sources(), &source),
            layout(&shape, self.dtype, &rows, self.sources()..self.size(), &destination),
        )
    }

    fn topology(&self) -> Topology {
        let (sources, width) = (self.sources(), self.shards * self.replicas);
        let domain = |rank: u32| if rank < sources { 0 } else { 1 + (rank - sources) / width };
        Topology::from_domains(&(0..self.size()).map(domain).collect::<Vec<_>>())
    }

    fn plan(&self) -> Plan {
        plan((0..self.tensors).map(|_| self.layouts()), self.size() as usize)
    }
}

fn evens() -> impl Strategy<Value = Even> {
    let dtype = prop::sample::select(vec![Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64]);
    let source = (1u32..4, prop::sample::select(vec![1u32, 2, 3, 4]));
    let destination = (prop::sample::select(vec![1u32, 2, 3, 4]), 1u32..4, 1u32..4);
    (source, destination, 1u64..3000, dtype, 1usize..4).prop_map(|(source, destination, columns, dtype, tensors)| {
        let (shards, replicas, domains) = destination;
        Even { source: [source.0, source.1], shards, replicas, domains, columns, dtype, tensors }
    })
}

fn hierarchical(plan: &Plan, topology: &Topology, injection: Injection) -> Vec<Flow> {
    let flows = route(plan, topology, options(RouteKind::Hierarchical, injection)).flows;
    assert_eq!(check(plan, &flows).unwrap().written, plan.delivered_bytes());
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn even_layouts_load_all_nics_alike(even in evens()) {
        let (plan, topology) = (even.plan(), even.topology());
        let counted = traffic(&hierarchical(&plan, &topology, Injection::Striped), &topology);
        let bytes = plan.unique_bytes();
        let rounding = even.dtype.bytes() * plan.classes().len() as u64;
        let sources = even.sources() as usize;
        for (domain, &ingress) in counted.ingress_per_domain.iter().enumerate() {
            prop_assert_eq!(ingress, if domain == 0 { 0 } else { bytes }, "one copy per domain");
        }
        let sent = counted.ranks[..sources].iter().map(|rank| rank.network_sent).max().unwrap();
        prop_assert!(sent <= bytes.div_ceil(sources as u64) + UNEVEN + rounding, "egress {} of {}", sent, bytes);
        let receivers = u64::from(even.shards * even.replicas);
        let received = counted.ranks[sources..].iter().map(|rank| rank.network_received).max().unwrap();
        prop_assert!(received <= bytes.div_ceil(receivers) + UNEVEN + rounding, "ingress {} of {}", received, bytes);
    }

    #[test]
    fn single_injection_uses_the_lowest_holder_only(even in evens()) {
        let (plan, topology) = (even.plan(), even.topology());
        let flows = hierarchical(&plan, &topology, Injection::Single);
        // Sources are replicas x shards, row-major: the lowest holders are the first row.
        prop_assert!(flows.iter().all(|flow| flow.nodes[0].rank.0 < even.source[1]));
        let striped = hierarchical(&plan, &topology, Injection::Striped);
        let injectors: BTreeSet<Rank> = striped.iter().map(|flow| flow.nodes[0].rank).collect();
        if plan.classes().iter().all(|class| class.bytes >= 3 * 4096) {
            prop_assert_eq!(injectors.len() as u32, even.sources(), "all replicas inject");
        }
    }

    #[test]
    fn chains_start_in_every_domain(even in evens()) {
        let (plan, topology) = (even.plan(), even.topology());
        let mut starts = vec![0u64; topology.domain_count()];
        let flows = hierarchical(&plan, &topology, Injection::Striped);
        for flow in &flows {
            starts[topology.domain(flow.nodes[1].rank).index()] += flow.bytes;
        }
        let domains = u64::from(even.domains);
        let slices = flows.len() as u64;
        let most = plan.unique_bytes().div_ceil(domains) + slices * even.dtype.bytes() + slices_too_small(&flows) ;
        prop_assert!(starts.iter().all(|&bytes| bytes <= most), "{:?} of {}", starts, most);
    }
}

/// Bytes of slices that are too small to be cut by domain.
fn slices_too_small(flows: &[Flow]) -> u64 {
    flows.iter().map(|flow| flow.bytes).filter(|&bytes| bytes < 3 * 4 * 4096).sum()
}

#[test]
fn small_chains_take_turns() {
    // Twelve classes of a few bytes each, three domains: every domain is first for four of them.
    let source = layout(&[12, 4], Dtype::F32, &[12], 0..12, &[Placement::shard(0)]);
    let destination = layout(&[12, 4], Dtype::F32, &[3], 12..15, &[Placement::Replicate]);
    let plan = plan([(source, destination)], 15);
    let domains: Vec<u32> = (0..15).map(|rank: u32| rank.saturating_sub(11)).collect();
    let flows = hierarchical(&plan, &Topology::from_domains(&domains), Injection::Striped);
    let mut firsts: BTreeMap<u32, u32> = BTreeMap::new();
    flows.iter().for_each(|flow| *firsts.entry(flow.nodes[1].rank.0).or_default() += 1);
    assert_eq!(firsts, BTreeMap::from([(12, 4), (13, 4), (14, 4)]));
}

#[test]
fn first_receivers_of_an_all_to_all_differ() {
    for (sources, destinations, shared) in [(4u32, 4u32, 1), (4, 8, 1), (8, 4, 2), (16, 8, 2), (3, 5, 1), (7, 7, 1)] {
        let extents = [u64::from(sources) * 4, u64::from(destinations) * 4];
        let source = layout(&extents, Dtype::BF16, &[sources], 0..sources, &[Placement::shard(0)]);
        let size = sources + destinations;
        let destination = layout(&extents, Dtype::BF16, &[destinations], sources..size, &[Placement::shard(1)]);
        let plan = plan([(source, destination)], size as usize);
        let domains: Vec<u32> = (0..size).map(|rank| u32::from(rank >= sources)).collect();
        for kind in [RouteKind::Hierarchical, RouteKind::Flat] {
            let flows = route(&plan, &Topology::from_domains(&domains), options(kind, Injection::Striped)).flows;
            let mut first: BTreeMap<Rank, Rank> = BTreeMap::new();
            for flow in &flows {
                first.entry(flow.nodes[0].rank).or_insert(flow.nodes[1].rank);
            }
            let mut times: BTreeMap<Rank, usize> = BTreeMap::new();
            first.values().for_each(|&receiver| *times.entry(receiver).or_default() += 1);
            assert_eq!(first.len() as u32, sources);
            assert_eq!(times.values().max(), Some(&shared), "{sources} to {destinations}, {kind}: {first:?}");
        }
    }
}

#[test]
fn ten_thousand_small_tensors_are_few_flows() {
    let source = layout(&[4, 8], Dtype::BF16, &[2, 4], 0..8, &[Placement::Replicate, Placement::shard(0)]);
    let destination = layout(&[4, 8], Dtype::BF16, &[4, 2], 8..16, &[Placement::Replicate, Placement::shard(0)]);
    let plan = plan((0..10_000).map(|_| (source.clone(), destination.clone())), 16);
    let topology = Topology::from_domains(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    let flows = hierarchical(&plan, &topology, Injection::Striped);
    // Four classes, two injectors and two leaders each, two ways round.
    assert_eq!((plan.classes().len(), flows.len()), (4, 16));
    let pieces: usize = flows.iter().map(|flow| flow.pieces.len()).sum();
    assert!(pieces <= 40_000 + flows.len(), "{pieces} pieces: a tensor is cut only at the ends of flows");
    let counted = traffic(&flows, &topology);
    assert_eq!(counted.ingress_per_domain, [0, 640_000, 640_000]);
    assert!(counted.busiest_nic() <= 640_000 / 4 + 64);
}

#[test]
fn holders_inside_a_domain_share_the_serving() {
    // Replicas on ranks 0 and 1, readers 2 and 3 of the same domain: many small classes, one large.
    let small: Vec<_> = (0..2)
        .map(|reader| {
            let source = layout(&[8], Dtype::F64, &[2], 0..2, &[Placement::Replicate]);
            (source, layout(&[8], Dtype::F64, &[1], [2 + reader], &[Placement::Replicate]))
        })
        .collect();
    let topology = Topology::from_domains(&[0; 4]);
    let plan = plan(small, 4);
    let served = |injection| {
        let counted = traffic(&hierarchical(&plan, &topology, injection), &topology);
        assert_eq!(counted.inter_domain_bytes, 0);
        [counted.ranks[0].local_sent, counted.ranks[1].local_sent]
    };
    assert_eq!(served(Injection::Striped), [64, 64]);
    assert_eq!(served(Injection::Single), [128, 0]);
}
