//! Sources of terms: what crosses, how work is shared, and a proof that finds every term that is lost or counted twice.

use super::random::{Case, Choices, layout as random_layout};
use super::{all_options, layout, options, plan};
use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Layout, Placement, Reduction};
use crossmesh::plan::{Manifest, Plan, Transform};
use crossmesh::route::{CheckError, DomainSum, Flow, Injection, RouteKind, check, route, traffic};
use crossmesh::topology::Topology;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;

const PARTIAL: Placement = Placement::Partial(Reduction::Sum);

/// Four terms in two domains of two, two replicas of all of it, to two domains that replicate rows.
fn example() -> (Plan, Topology) {
    let placements = [Placement::Replicate, PARTIAL];
    let source = layout(&[64, 1024], Dtype::BF16, &[2, 4], 0..8, &placements);
    let destination = layout(&[64, 1024], Dtype::BF16, &[2, 2], 8..12, &[Placement::Replicate, Placement::shard(0)]);
    (plan([(source, destination)], 12), Topology::from_domains(&[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]))
}

#[test]
fn one_sum_of_each_domain_crosses() {
    let (plan, topology) = example();
    let bytes = 64 * 1024 * 2;
    for (injection, sources) in [(Injection::Striped, 8), (Injection::Single, 4)] {
        let routed = route(&plan, &topology, options(RouteKind::Hierarchical, injection));
        let coverage = check(&plan, &routed.flows).unwrap();
        assert_eq!((coverage.written, coverage.without_source), (2 * bytes, 0));
        let traffic = traffic(&routed.flows, &topology);
        // A sum is binary32: twice the bytes of what travels on to the two destination domains.
        assert_eq!(traffic.inter_domain_bytes, 2 * bytes + 2 * bytes);
        let into = |domains: std::ops::Range<usize>| traffic.ingress_per_domain[domains].iter().sum::<u64>();
        assert_eq!((into(0..4), into(4..6)), (2 * bytes, 2 * bytes));
        // Every source rank of the replicas in use adds up as much as every other.
        let sent: Vec<u64> = traffic.ranks[..8].iter().map(|rank| rank.network_sent).collect();
        let adding = sent.iter().filter(|&&sent| sent > 0).count();
        assert_eq!(adding, sources, "{sent:?}");
        // Terms are read inside domains only, each once.
        let read: u64 = traffic.ranks[..8].iter().map(|rank| rank.local_received).sum();
        assert_eq!(read, 2 * bytes);
    }
    let flat = route(&plan, &topology, options(RouteKind::Flat, Injection::Striped));
    assert_eq!(traffic(&flat.flows, &topology).inter_domain_bytes, 2 * bytes + 2 * bytes);
}

/// A random manifest whose sources hold terms along most axes that would replicate.
pub(super) fn case(bytes: Vec<u8>) -> Case {
    let choices = &mut Choices::new(bytes);
    let size = 2 + choices.below(8);
    let domain_count = 1 + choices.below(4);
    let domains: Vec<u32> = (0..size).map(|_| choices.below(domain_count) as u32).collect();
    let mut manifest = Manifest::new();
    for index in 0..1 + choices.below(3) {
        let shape = [choices.of(&[4, 64, 5]), choices.of(&[1, 300, 3, 64])];
        let (from, to) = choices.of(&[(Dtype::F32, Dtype::F32), (Dtype::BF16, Dtype::BF16), (Dtype::F32, Dtype::F16)]);
        let source = random_layout(choices, &shape, from, size);
        let placements = source.placements().iter().map(|placement| match placement {
            Placement::Shard { .. } if choices.below(3) > 0 => placement.clone(),
            _ if choices.below(4) > 0 => PARTIAL,
            _ => Placement::Replicate,
        });
        let mesh = Arc::new(source.mesh().clone());
        let Ok(source) = Layout::new(shape.to_vec(), from, mesh, placements.collect()) else { continue };
        let destination = Arc::new(random_layout(choices, &shape, to, size));
        let transform = if from == to { Transform::None } else { Transform::Cast };
        manifest.push_with(format!("t{index}"), Arc::new(source), destination, transform).expect("a good tensor");
    }
    Case { manifest: Arc::new(manifest), topology: Topology::from_domains(&domains) }
}

/// Coordinates along the partial axes of a rank's slot.
fn term_of(source: &Layout, rank: Rank) -> Vec<u32> {
    let coordinates = source.mesh().coordinates(source.mesh().slot(rank).expect("a rank of the mesh"));
    let partial = source.placements().iter().map(|placement| *placement == PARTIAL);
    coordinates.into_iter().zip(partial).filter_map(|(at, partial)| partial.then_some(at)).collect()
}

/// Every element of every piece gets each of its terms from one rank that holds it, added in ascending order inside each
/// domain; one sum of each domain reaches the root.
fn adds_up(plan: &Plan, topology: &Topology, flow: &Flow) -> Result<(), TestCaseError> {
    for piece in &flow.pieces {
        let source = &plan.manifest().tensors()[piece.cell.tensor as usize].source;
        let terms: usize = (source.placements().iter().zip(source.mesh().shape()))
            .map(|(placement, &ranks)| if *placement == PARTIAL { ranks as usize } else { 1 })
            .product();
        let Some(sums) = &flow.sums else {
            prop_assert_eq!(terms, 1);
            continue;
        };
        let ranks: Vec<Rank> = sums.domains.iter().flat_map(|domain| domain.terms.iter().copied()).collect();
        let distinct: BTreeSet<Vec<u32>> = ranks.iter().map(|&rank| term_of(source, rank)).collect();
        prop_assert_eq!((ranks.len(), distinct.len()), (terms, terms));
        let domains: BTreeSet<_> = sums.domains.iter().map(|domain| topology.domain(domain.reducer)).collect();
        prop_assert_eq!(domains.len(), sums.domains.len(), "a domain sends two sums");
        let first = |domain: &DomainSum| term_of(source, domain.terms[0]);
        prop_assert!(sums.domains.is_sorted_by_key(first), "domains out of order");
        for domain in sums.domains.iter() {
            let places = domain.terms.iter().all(|&rank| topology.domain(rank) == topology.domain(domain.reducer));
            prop_assert!(places && domain.terms.is_sorted_by_key(|&rank| term_of(source, rank)));
            for &rank in &domain.terms {
                let maps = source.axis_maps(rank).expect("a rank of the mesh");
                let cell = plan.cell(piece.cell);
                prop_assert!(maps.iter().zip(&cell.intervals).all(|(map, &part)| map.locate(part).is_some()));
            }
        }
    }
    Ok(())
}

/// Ways to get the terms of a flow wrong.
const BENDS: [fn(&mut Vec<DomainSum>); 4] = [
    |domains| {
        domains.last_mut().expect("a sum").terms.pop();
    },
    |domains| {
        let rank = domains[0].terms[0];
        domains[0].terms.push(rank);
    },
    |domains| {
        let again = domains.last().expect("a sum").clone();
        domains.push(again);
    },
    |domains| domains[0].terms[0] = Rank(1000),
];

/// Changes the sums of a flow that adds up.
fn bend(flow: &mut Flow, change: impl FnOnce(&mut Vec<DomainSum>)) {
    let sums = flow.sums.as_mut().expect("a flow that adds up");
    let mut domains = sums.domains.to_vec();
    change(&mut domains);
    sums.domains = domains.into();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn every_term_counts_once(
        bytes in proptest::collection::vec(any::<u8>(), 0..160),
        pick in any::<prop::sample::Index>(),
    ) {
        let Case { manifest, topology } = case(bytes);
        let plan = Plan::compile(manifest, topology.size()).expect("a good manifest");
        for options in all_options() {
            let flows = route(&plan, &topology, options).flows;
            let proof = check(&plan, &flows);
            prop_assert!(proof.is_ok(), "{proof:?}");
            for flow in &flows {
                adds_up(&plan, &topology, flow)?;
            }
            let adding: Vec<usize> = (0..flows.len()).filter(|&index| flows[index].sums.is_some()).collect();
            if adding.is_empty() {
                continue;
            }
            let index = adding[pick.index(adding.len())];
            for (number, change) in BENDS.iter().enumerate() {
                let mut bent = flows.clone();
                bend(&mut bent[index], change);
                prop_assert!(check(&plan, &bent).is_err(), "bend {} of {:?}", number, flows[index]);
            }
            let mut bent = flows.clone();
            bent[index].sums = None;
            prop_assert!(check(&plan, &bent).is_err(), "terms sent as if they were whole");
        }
    }
}

#[test]
fn lost_and_doubled_terms_are_named() {
    let (plan, topology) = example();
    let mut flows = route(&plan, &topology, options(RouteKind::Hierarchical, Injection::Striped)).flows;
    bend(&mut flows[0], |domains| {
        domains[1].terms.retain(|rank| rank.0 % 4 != 3);
        domains[1].reducer = domains[1].terms[0];
    });
    let error = check(&plan, &flows).unwrap_err();
    assert!(matches!(error, CheckError::Terms { flow: 0, term: 3, times: 0, .. }), "{error}");
}
