//! Which route is best on a machine. In: a plan, the links of every rank. Out: what each route costs, the choice and
//! its reason. Guarantee: pure, so every rank chooses alike; the choice has the least predicted time, and of equal ones
//! the first of [`RouteOptions::ALL`].

use super::cost::predicted_seconds;
use super::{Bound, LinkBytes, RouteKind, RouteOptions, Routed, Traffic, route, traffic};
use crate::plan::Plan;
use crate::topology::Machine;

/// What a route costs.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteCost {
    /// The route.
    pub options: RouteOptions,
    /// Bytes of every rank.
    pub traffic: Traffic,
    /// Bytes of every link.
    pub links: LinkBytes,
    /// Time of the most loaded link.
    pub bound: Bound,
    /// Seconds until the last byte.
    pub predicted_seconds: f64,
    /// Number of flows.
    pub flows: usize,
    /// Chunks of all flows.
    pub chunks: u64,
    /// Most edges from a root.
    pub hops: u32,
}

impl RouteCost {
    /// What `routed` costs on `machine` in chunks of `chunk` bytes.
    pub fn new(routed: &Routed, machine: &Machine, chunk: u64) -> Self {
        let traffic = traffic(&routed.flows, &machine.topology);
        let links = LinkBytes::new(&traffic, machine);
        let bound = links.bound(machine);
        let moving = || routed.flows.iter().filter(|flow| flow.nodes.len() > 1);
        Self {
            options: routed.options,
            predicted_seconds: predicted_seconds(&routed.flows, machine, bound, chunk),
            bound,
            flows: routed.flows.len(),
            chunks: moving().map(|flow| flow.bytes.div_ceil(chunk)).sum(),
            hops: routed.hops(),
            traffic,
            links,
        }
    }
}

/// Index of the cheapest; `None` of none.
pub fn cheapest(costs: &[RouteCost]) -> Option<usize> {
    let least = |one: &usize, other: &usize| costs[*one].predicted_seconds.total_cmp(&costs[*other].predicted_seconds);
    (0..costs.len()).min_by(least)
}

/// The route with the least predicted time for `plan`.
pub fn choose(plan: &Plan, machine: &Machine, chunk: u64) -> RouteOptions {
    let cost = |options| RouteCost::new(&route(plan, &machine.topology, options), machine, chunk);
    let costs = RouteOptions::ALL.map(cost);
    cheapest(&costs).map_or_else(RouteOptions::default, |index| costs[index].options)
}

/// Why `costs[chosen]` was chosen, in one sentence.
pub fn reason(costs: &[RouteCost], chosen: usize) -> String {
    let best = &costs[chosen];
    let others: Vec<&RouteCost> =
        costs.iter().enumerate().filter(|&(index, _)| index != chosen).map(|(_, cost)| cost).collect();
    if others.is_empty() {
        return format!("{} is the only one asked for", name(best.options));
    }
    if best.traffic.inter_domain_bytes == 0 && others.iter().all(|cost| cost.traffic.inter_domain_bytes == 0) {
        return format!(
            "{} has the least predicted time, and nothing crosses domains by any route",
            name(best.options)
        );
    }
    let compared = others.iter().map(|cost| {
        let times = cost.predicted_seconds / best.predicted_seconds;
        format!("{} takes {} {}", name(cost.options), factor(times), cause(best, cost))
    });
    format!("{} has the least predicted time: {}", name(best.options), compared.collect::<Vec<_>>().join("; "))
}

/// A route as people call it: the injection counts for the hierarchical one.
pub fn name(options: RouteOptions) -> String {
    match options.kind {
        RouteKind::Hierarchical => format!("{} {}", options.injection, options.kind),
        kind => kind.to_string(),
    }
}

fn factor(times: f64) -> String {
    if times.is_finite() && times > 1.005 { format!("{times:.2}x as long") } else { "as long".into() }
}

/// What sets `cost` apart: its most loaded card, else its most loaded NVLink, else the way through the ranks.
fn cause(best: &RouteCost, cost: &RouteCost) -> String {
    let most = |cost: &RouteCost| cost.links.nics.iter().map(|nic| nic.most()).max().unwrap_or(0);
    let (ours, theirs) = (most(best), most(cost));
    if cost.bound.nvlink_seconds > cost.bound.network_seconds {
        return "(its busiest link is an NVLink)".into();
    }
    if theirs > ours && ours > 0 {
        return format!("(its busiest card carries {:.2}x the bytes)", theirs as f64 / ours as f64);
    }
    if cost.hops > best.hops {
        return format!("(its longest way has {} hops, not {})", cost.hops, best.hops);
    }
    "(its busiest card carries as many bytes)".into()
}
