//! The three routes. In: plan, topology, options. Out: flows in an order in which no receiver is everyone's
//! first. Guarantee: pure; each wanter of a class gets each of its bytes by exactly one flow.

use super::flow::{Flow, Gather, Node};
use super::leaders::{GRAIN, Loads, Share, carrier};
use super::{Injection, RouteKind, RouteOptions, order};
use crate::base::{DomainId, Rank};
use crate::plan::{CellClass, Plan};
use crate::topology::Topology;
use std::collections::BTreeMap;

/// A routed plan.
#[derive(Debug, Clone)]
pub struct Routed {
    /// What it was made with.
    pub options: RouteOptions,
    /// Flows in start order.
    pub flows: Vec<Flow>,
}

pub(super) struct Router<'a> {
    pub(super) plan: &'a Plan,
    topology: &'a Topology,
    pub(super) injection: Injection,
    egress: Loads,
    ingress: Loads,
    /// Bytes that holders serve to others inside their domain.
    served: Loads,
    /// Counts chains too small to be cut by domain, so that they start in turn at every domain.
    turns: usize,
    pub(super) flows: Vec<Flow>,
}

/// Routes a plan.
///
/// # Panics
///
/// When `topology` has fewer ranks than the meshes of the plan name.
pub fn route(plan: &Plan, topology: &Topology, options: RouteOptions) -> Routed {
    let ranks = topology.size();
    let mut router = Router {
        plan,
        topology,
        injection: options.injection,
        egress: Loads::new(ranks),
        ingress: Loads::new(ranks),
        served: Loads::new(ranks),
        turns: 0,
        flows: Vec::new(),
    };
    let held = plan.classes().iter().filter(|class| !class.holders.is_empty() && class.bytes > 0);
    match options.kind {
        RouteKind::Hierarchical => held.for_each(|class| router.hierarchical(class)),
        RouteKind::Flat => held.for_each(|class| router.flat(class)),
        RouteKind::GatherBroadcast => {
            let root = plan.classes().iter().filter_map(|class| class.holders.first()).min().copied();
            let wanters = plan.manifest().side_ranks(|tensor| &tensor.destination);
            if let Some(root) = root {
                held.for_each(|class| router.gather_broadcast(class, root, &wanters));
            }
        }
    }
    order::arrange(&mut router.flows);
    Routed { options, flows: router.flows }
}

pub(super) fn root(rank: Rank, wants: bool) -> Node {
    Node { rank, parent: None, wants }
}

pub(super) fn child(rank: Rank, parent: usize, wants: bool) -> Node {
    Node { rank, parent: Some(parent as u32), wants }
}

impl Router<'_> {
    pub(super) fn domain(&self, rank: Rank) -> DomainId {
        self.topology.domain(rank)
    }

    pub(super) fn by_domain(&self, ranks: &[Rank]) -> BTreeMap<DomainId, Vec<Rank>> {
        let mut domains: BTreeMap<DomainId, Vec<Rank>> = BTreeMap::new();
        for &rank in ranks {
            domains.entry(self.topology.domain(rank)).or_default().push(rank);
        }
        domains
    }

    fn push(&mut self, gather: &Gather<'_>, from: u64, to: u64, nodes: Vec<Node>) {
        if to > from {
            self.flows.push(Flow { nodes, pieces: gather.pieces(from, to).collect(), bytes: to - from, sums: None });
        }
    }

    /// Lowest holder to every wanter.
    fn flat(&mut self, class: &CellClass) {
        if let Some(terms) = class.terms.first() {
            return self.flat_sum(class, terms);
        }
        let gather = Gather::of_class(self.plan, class);
        let holder = class.holders[0];
        for &wanter in &class.wanters {
            let nodes = if wanter == holder {
                vec![root(holder, true)]
            } else {
                vec![root(holder, false), child(wanter, 0, true)]
            };
            self.push(&gather, 0, class.bytes, nodes);
        }
    }

    /// Lowest holder to the root, then once into each destination domain, then to every destination rank there.
    fn gather_broadcast(&mut self, class: &CellClass, gatherer: Rank, all_wanters: &[Rank]) {
        let gather = Gather::of_class(self.plan, class);
        let sums = class.terms.first().map(|terms| self.domain_sums(terms));
        let holder = sums.as_ref().map_or(class.holders[0], |sums| sums[0].reducer);
        let wants = |rank: Rank| class.wanters.binary_search(&rank).is_ok();
        let mut nodes = vec![root(holder, wants(holder))];
        let mut last = 0;
        if holder != gatherer {
            nodes.push(child(gatherer, 0, wants(gatherer)));
            last = 1;
        }
        let mut domains = self.by_domain(all_wanters);
        let home = domains.remove(&self.topology.domain(gatherer)).unwrap_or_default();
        for rank in home.into_iter().filter(|&rank| rank != gatherer && rank != holder) {
            nodes.push(child(rank, last, wants(rank)));
        }
        for ranks in domains.into_values() {
            let mut members = ranks.into_iter().filter(|&rank| rank != holder);
            let Some(leader) = members.next() else { continue };
            nodes.push(child(leader, last, wants(leader)));
            last = nodes.len() - 1;
            nodes.extend(members.map(|rank| child(rank, last, wants(rank))));
        }
        match sums {
            Some(sums) => self.push_sum(&gather, (0, class.bytes), nodes, sums),
            None => self.push(&gather, 0, class.bytes, nodes),
        }
    }

    fn hierarchical(&mut self, class: &CellClass) {
        if !class.terms.is_empty() {
            return self.hierarchical_sum(class);
        }
        let gather = Gather::of_class(self.plan, class);
        let holders = self.by_domain(&class.holders);
        let mut remote: Vec<(DomainId, Vec<Rank>)> = Vec::new();
        for (domain, wanters) in self.by_domain(&class.wanters) {
            match holders.get(&domain) {
                Some(local) => self.local(class, &gather, local, &wanters),
                None => remote.push((domain, wanters)),
            }
        }
        if !remote.is_empty() {
            self.network(class, &gather, &remote);
        }
    }

    /// A domain that holds the class already: its own replicas serve it, the network is not used.
    fn local(&mut self, class: &CellClass, gather: &Gather<'_>, holders: &[Rank], wanters: &[Rank]) {
        let (own, readers): (Vec<Rank>, Vec<Rank>) =
            wanters.iter().partition(|rank| holders.binary_search(rank).is_ok());
        for rank in own {
            self.push(gather, 0, class.bytes, vec![root(rank, true)]);
        }
        if readers.is_empty() {
            return;
        }
        let holders = if self.injection == Injection::Single { &holders[..1] } else { holders };
        for share in self.served.split(holders, class.bytes, |at| gather.border(at)) {
            let mut nodes = vec![root(share.rank, false)];
            nodes.extend(readers.iter().map(|&reader| child(reader, 0, true)));
            self.push(gather, share.from, share.to, nodes);
        }
    }

    /// Domains without a holder: striped injection, balanced leaders, a chain through the domains.
    fn network(&mut self, class: &CellClass, gather: &Gather<'_>, domains: &[(DomainId, Vec<Rank>)]) {
        let injectors = if self.injection == Injection::Single { &class.holders[..1] } else { &class.holders[..] };
        let border = |at| gather.border(at);
        let injected = self.egress.split(injectors, class.bytes, border);
        let led: Vec<Vec<Share>> =
            domains.iter().map(|(_, wanters)| self.ingress.split(wanters, class.bytes, border)).collect();
        let mut cuts: Vec<u64> = injected.iter().chain(led.iter().flatten()).map(|share| share.to).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut from = 0;
        for to in cuts {
            let injector = carrier(&injected, from);
            let leaders: Vec<Rank> = led.iter().map(|shares| carrier(shares, from)).collect();
            self.chains(gather, (from, to), injector, domains, &leaders);
            from = to;
        }
    }

    /// One slice with one injector and one leader per domain: cut by the number of domains, each part starting
    /// its chain at another domain; a slice too small for that starts where its turn is.
    fn chains(
        &mut self,
        gather: &Gather<'_>,
        (from, to): (u64, u64),
        injector: Rank,
        domains: &[(DomainId, Vec<Rank>)],
        leaders: &[Rank],
    ) {
        let count = domains.len();
        let parts = if (to - from) / count as u64 >= GRAIN { count } else { 1 };
        let mut start = from;
        for part in 0..parts {
            let ideal = from + (u128::from(to - from) * (part as u128 + 1) / parts as u128) as u64;
            let end = if part + 1 == parts { to } else { gather.border(ideal).max(start) };
            let first = if parts > 1 { part } else { self.turns };
            self.turns += 1;
            let mut nodes = vec![root(injector, false)];
            let mut last = 0;
            for index in (0..count).map(|step| (first + step) % count) {
                nodes.push(child(leaders[index], last, true));
                if last > 0 {
                    self.egress.add(nodes[last].rank, end - start);
                }
                last = nodes.len() - 1;
                let followers = domains[index].1.iter().filter(|&&rank| rank != leaders[index]);
                nodes.extend(followers.map(|&rank| child(rank, last, true)));
            }
            self.push(gather, start, end, nodes);
            start = end;
        }
    }
}
