//! Flows against the slow model: every flow is played over plain vectors, element by element.

use super::all_options;
use super::cells::members;
use super::oracle::{self, Ownership};
use super::random::{Case, cases};
use crossmesh::base::Rank;
use crossmesh::plan::Plan;
use crossmesh::route::{Coverage, Flow, RouteKind, RouteOptions, check, route, traffic};
use crossmesh::topology::Topology;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_wanted_element_arrives_exactly_once(case in cases()) {
        let plan = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
        let model = Model::new(&plan);
        for options in all_options() {
            let flows = route(&plan, &case.topology, options).flows;
            model.play(&flows, options);
            let expected = coverage(&case);
            prop_assert_eq!(check(&plan, &flows), Ok(expected), "{:?}", options);
        }
    }

    #[test]
    fn traffic_is_what_the_definition_says(case in cases()) {
        let plan = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
        let model = Model::new(&plan);
        for options in all_options() {
            let counted = traffic(&route(&plan, &case.topology, options).flows, &case.topology);
            let ingress: u64 = counted.ingress_per_domain.iter().sum();
            prop_assert_eq!(ingress, counted.inter_domain_bytes);
            let sent: u64 = counted.ranks.iter().map(|rank| rank.network_sent).sum();
            let received: u64 = counted.ranks.iter().map(|rank| rank.network_received).sum();
            prop_assert_eq!((sent, received), (ingress, ingress));
            match options.kind {
                RouteKind::Hierarchical => {
                    prop_assert_eq!(&counted.ingress_per_domain, &model.once_per_domain(&case.topology));
                }
                RouteKind::Flat => prop_assert_eq!(ingress, model.flat(&case.topology)),
                RouteKind::GatherBroadcast => {
                    prop_assert!(ingress <= plan.unique_bytes() * case.topology.domain_count() as u64);
                }
            }
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_flows(case in cases()) {
        let again = case.apart();
        for options in all_options() {
            let flows = |case: &Case| {
                let plan = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
                route(&plan, &case.topology, options).flows
            };
            prop_assert_eq!(flows(&case), flows(&again));
        }
    }
}

/// Everything has a source: all elements that ranks have are written, the rest of what belongs to tensors is padding.
fn coverage(case: &Case) -> Coverage {
    let mut coverage = Coverage::default();
    for layout in case.manifest.tensors().iter().map(|tensor| &tensor.destination) {
        for what in layout.mesh().ranks().flat_map(|rank| oracle::uses(layout, rank).unwrap()) {
            match what {
                oracle::Use::Global(_) => coverage.written += layout.dtype().bytes(),
                oracle::Use::Padding => coverage.padding += layout.dtype().bytes(),
                oracle::Use::Hole => {}
            }
        }
    }
    coverage
}

/// Who keeps what, per tensor.
struct Model<'a> {
    plan: &'a Plan,
    tensors: Vec<(Ownership, Ownership)>,
}

impl<'a> Model<'a> {
    fn new(plan: &'a Plan) -> Self {
        let tensors = plan.manifest().tensors().iter();
        let tensors =
            tensors.map(|tensor| (oracle::ownership(&tensor.source), oracle::ownership(&tensor.destination))).collect();
        Self { plan, tensors }
    }

    /// Plays flows; then every element must have been brought once to every rank that wants it.
    fn play(&self, flows: &[Flow], options: RouteOptions) {
        let blank = |(_, destinations): &(Ownership, Ownership)| -> BTreeMap<Rank, Vec<u32>> {
            destinations.iter().map(|(&rank, local)| (rank, vec![0; local.len()])).collect()
        };
        let mut written: Vec<BTreeMap<Rank, Vec<u32>>> = self.tensors.iter().map(blank).collect();
        for flow in flows {
            self.tree(flow, options.kind);
            let mut bytes = 0;
            for piece in &flow.pieces {
                let tensor = piece.cell.tensor as usize;
                let shape = self.plan.manifest().tensors()[tensor].source.shape();
                let cell = self.plan.cell(piece.cell);
                assert!(piece.start < piece.end && piece.end <= cell.elements());
                bytes += (piece.end - piece.start) * self.plan.element_bytes(piece.cell.tensor);
                let (sources, destinations) = &self.tensors[tensor];
                for index in members(cell).skip(piece.start as usize).take((piece.end - piece.start) as usize) {
                    let element = oracle::number(&index, shape);
                    assert!(!sources[&flow.nodes[0].rank][element].is_empty(), "the root holds what it sends");
                    for node in flow.nodes.iter().filter(|node| node.wants) {
                        assert!(!destinations[&node.rank][element].is_empty(), "the receiver wants it");
                        written[tensor].get_mut(&node.rank).unwrap()[element] += 1;
                    }
                }
            }
            assert_eq!(bytes, flow.bytes);
        }
        for ((_, destinations), written) in self.tensors.iter().zip(&written) {
            for (rank, times) in written {
                let wanted = destinations[rank].iter().map(|places| u32::from(!places.is_empty()));
                assert!(wanted.eq(times.iter().copied()), "{options:?}, rank {rank}: {times:?}");
            }
        }
    }

    /// Parents first, no rank twice; only the gather-broadcast route takes bytes where nobody below wants them.
    fn tree(&self, flow: &Flow, kind: RouteKind) {
        assert_eq!(flow.nodes[0].parent, None);
        let ranks: BTreeSet<Rank> = flow.nodes.iter().map(|node| node.rank).collect();
        assert_eq!(ranks.len(), flow.nodes.len());
        for (index, node) in flow.nodes.iter().enumerate().skip(1) {
            assert!((node.parent.unwrap() as usize) < index);
            assert!(flow.depth(index) == flow.depth(node.parent.unwrap() as usize) + 1);
            assert!(flow.children(node.parent.unwrap() as usize).any(|(child, _)| child == index));
            assert!(node.wants || kind == RouteKind::GatherBroadcast);
        }
    }

    /// Bytes of every element that the definition of a count selects, given holders and wanters.
    fn each(&self, mut visit: impl FnMut(u64, Vec<Rank>, Vec<Rank>)) {
        for ((sources, destinations), tensor) in self.tensors.iter().zip(self.plan.manifest().tensors()) {
            for element in 0..oracle::elements(tensor.source.shape()) as usize {
                let bytes = tensor.source.dtype().bytes();
                visit(bytes, oracle::keepers(sources, element), oracle::keepers(destinations, element));
            }
        }
    }

    /// Each element once into each domain that wants it and has no holder.
    fn once_per_domain(&self, topology: &Topology) -> Vec<u64> {
        let mut ingress = vec![0; topology.domain_count()];
        self.each(|bytes, holders, wanters| {
            let domains = |ranks: Vec<Rank>| ranks.into_iter().map(|rank| topology.domain(rank)).collect();
            let (holding, wanting): (BTreeSet<_>, BTreeSet<_>) = (domains(holders), domains(wanters));
            wanting.difference(&holding).for_each(|domain| ingress[domain.index()] += bytes);
        });
        ingress
    }

    /// Each element from its lowest holder to each wanter in another domain.
    fn flat(&self, topology: &Topology) -> u64 {
        let mut sum = 0;
        self.each(|bytes, holders, wanters| {
            let home = topology.domain(holders[0]);
            sum += bytes * wanters.iter().filter(|&&rank| topology.domain(rank) != home).count() as u64;
        });
        sum
    }
}
