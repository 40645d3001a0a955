//! What a plan costs, as data. In: nothing. Out: plain values with a JSON form. Guarantee: the table, the page and the
//! JSON show these numbers and no others.

use super::explained::RankPart;
use serde::Serialize;
use std::collections::BTreeMap;

/// A job, planned by every route.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) name: String,
    pub(super) topology: String,
    pub(super) ranks: usize,
    pub(super) sources: usize,
    pub(super) destinations: usize,
    pub(super) domains: usize,
    pub(super) tensors: usize,
    /// Classes of pieces with the same holders and wanters.
    pub(super) classes: usize,
    /// Bytes of all tensors, each once.
    pub(super) bytes: u64,
    /// Bytes that some rank wants and some rank has, each once.
    pub(super) unique_bytes: u64,
    /// Bytes over all destination ranks.
    pub(super) delivered_bytes: u64,
    /// What the most loaded card carries at least, whatever injects and leads, and its time.
    pub(super) nic_bound_bytes: u64,
    pub(super) bound_seconds: f64,
    /// The same for the stages of the source's pipeline, one after the other; nothing without several.
    pub(super) stages: Vec<StageReport>,
    pub(super) stages_one_by_one_seconds: f64,
    /// `complete`, or `incomplete` when destination bytes have no source.
    pub(super) coverage: &'static str,
    pub(super) without_source_bytes: u64,
    /// Source bytes that no rank wants.
    pub(super) untaken_bytes: u64,
    pub(super) padding_bytes: u64,
    /// Tensors that the two sides do not cover alike.
    pub(super) gaps: Vec<GapReport>,
    /// Tensors that no rule knows.
    pub(super) replicated_unknown: Vec<String>,
    /// What may not be meant.
    pub(super) warnings: Vec<String>,
    pub(super) routes: Vec<RouteReport>,
    /// Name and injection of the chosen route.
    pub(super) chosen: String,
    pub(super) chosen_injection: String,
    pub(super) reason: String,
    /// What every rank carries by the chosen route.
    pub(super) per_rank: Vec<RankReport>,
    /// What one rank does by the chosen route, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) explained: Option<RankPart>,
    /// Whether everything is as the case expects; `None` without expectations.
    pub(super) as_expected: Option<bool>,
    /// Seconds to plan, prove and cost all routes, without simulation.
    pub(super) plan_seconds: f64,
}

/// A tensor with destination bytes that no source holds, or source bytes that nobody wants.
#[derive(Debug, Clone, Serialize)]
pub(super) struct GapReport {
    pub(super) tensor: String,
    /// Over all destination ranks.
    pub(super) without_source_bytes: u64,
    /// Each once.
    pub(super) untaken_bytes: u64,
}

/// One stage of a pipeline.
#[derive(Debug, Clone, Serialize)]
pub(super) struct StageReport {
    pub(super) first_rank: u32,
    pub(super) ranks: usize,
    pub(super) bytes: u64,
    pub(super) bound_seconds: f64,
}

/// One route.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RouteReport {
    pub(super) name: String,
    pub(super) injection: String,
    pub(super) inter_domain_bytes: u64,
    /// By domain; those that nothing enters are left out.
    pub(super) ingress_per_domain: BTreeMap<u32, u64>,
    /// Bytes of the busier direction of the most and the least loaded card of the ranks that take part.
    pub(super) max_nic_bytes: u64,
    pub(super) min_nic_bytes: u64,
    pub(super) max_nvlink_bytes: u64,
    /// What the most loaded card, the most loaded NVLink, and both at once need.
    pub(super) network_seconds: f64,
    pub(super) nvlink_seconds: f64,
    pub(super) bound_seconds: f64,
    pub(super) predicted_seconds: f64,
    pub(super) simulated: Option<SimulatedReport>,
    pub(super) injectors: Balance,
    pub(super) leaders: Balance,
    pub(super) flows: usize,
    pub(super) chunks: u64,
    pub(super) chunk_bytes: u64,
    pub(super) hops: u32,
    /// Staging memory of a rank at most.
    pub(super) staging_bytes: u64,
}

/// A simulation.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct SimulatedReport {
    pub(super) seconds: f64,
    /// Times the route's bound; `None` where the bound is 0.
    pub(super) over_bound: Option<f64>,
    pub(super) chunk_bytes: u64,
}

/// Ranks that do something, out of those that might.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Balance {
    pub(super) active: usize,
    pub(super) of: usize,
    /// Most and least bytes of an active one.
    pub(super) max_bytes: u64,
    pub(super) min_bytes: u64,
}

/// One rank.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RankReport {
    pub(super) rank: u32,
    pub(super) domain: u32,
    pub(super) node: u32,
    pub(super) gpu: u32,
    pub(super) nics: Vec<u32>,
    pub(super) is_source: bool,
    pub(super) is_destination: bool,
    pub(super) network_sent: u64,
    pub(super) network_received: u64,
    pub(super) nvlink_sent: u64,
    pub(super) nvlink_received: u64,
}

impl RouteReport {
    /// As people call it.
    pub(super) fn title(&self) -> String {
        match self.name.as_str() {
            "hierarchical" => format!("{} {}", self.injection, self.name),
            name => name.to_string(),
        }
    }
}

impl Report {
    /// Whether `route` is the chosen one.
    pub(super) fn is_chosen(&self, route: &RouteReport) -> bool {
        self.chosen_route().is_some_and(|chosen| chosen.title() == route.title())
    }

    /// The chosen route; every report has one.
    pub(super) fn chosen_route(&self) -> Option<&RouteReport> {
        self.routes.iter().find(|route| route.name == self.chosen && route.injection == self.chosen_injection)
    }
}
