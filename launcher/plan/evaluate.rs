//! A job by every route. In: a job, what is asked for. Out: [`Evaluated`]: the report, and the flows of the chosen route.
//! Guarantee: every route is proved before its numbers are shown; the choice is among what was asked for.

use super::error::PlanCommandError;
use super::job::Job;
use super::progress::Progress;
use super::report::{Balance, GapReport, RankReport, Report, RouteReport, SimulatedReport};
use super::stages::stages;
use crossmesh::base::{Rank, env};
use crossmesh::execute::{DEFAULT_CHUNK, DEFAULT_STAGING, StagingShare, first_share};
use crossmesh::plan::Plan;
use crossmesh::route::{
    Coverage, Flow, Injection, NicBound, RouteCost, RouteKind, RouteOptions, Routed, Sums, cheapest, check, gaps, name,
    nic_bound, reason, route, simulate,
};
use crossmesh::topology::Machine;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) kind: Option<RouteKind>,
    pub(super) injection: Option<Injection>,
    pub(super) simulate: bool,
    staging: u64,
    chunk: u64,
}

/// A job, planned.
#[derive(Debug)]
pub(super) struct Evaluated {
    pub(super) report: Report,
    /// The chosen route.
    pub(super) options: RouteOptions,
    /// Of the chosen route.
    pub(super) flows: Vec<Flow>,
}

impl Asked {
    /// Reads the words of the command line, and what the environment says over them.
    pub(super) fn new(route: Option<&str>, injection: Option<&str>, simulate: bool) -> Result<Self, PlanCommandError> {
        let wrong = |option, value: &str, allowed| PlanCommandError::Option { option, value: value.into(), allowed };
        let kind = match route {
            None | Some("auto") => None,
            Some(text) => Some(text.parse().map_err(|allowed: String| wrong("route", text, allowed + ", auto"))?),
        };
        let injection = injection.map(|text| text.parse().map_err(|allowed| wrong("injection", text, allowed)));
        Ok(Self {
            kind: env::value(env::ROUTE)?.or(kind),
            injection: env::value(env::INJECTION)?.or(injection.transpose()?),
            simulate,
            staging: env::byte_count(env::STAGING)?.unwrap_or(DEFAULT_STAGING),
            chunk: env::byte_count(env::CHUNK)?.unwrap_or(DEFAULT_CHUNK),
        })
    }

    fn allows(&self, options: RouteOptions) -> bool {
        let injection =
            options.kind != RouteKind::Hierarchical || self.injection.is_none_or(|asked| asked == options.injection);
        self.kind.is_none_or(|kind| kind == options.kind) && injection
    }
}

/// A job by one route.
struct Tried {
    cost: RouteCost,
    report: RouteReport,
    flows: Vec<Flow>,
    coverage: Coverage,
    simulation_seconds: f64,
}

/// Plans `job`.
pub(super) fn evaluate(job: &Job, asked: &Asked, progress: &Progress) -> Result<Evaluated, PlanCommandError> {
    let began = Instant::now();
    progress.step(&job.title, "finding pieces");
    let plan = Plan::compile(job.manifest.clone(), job.machine.topology.size())?;
    let mut routes = Vec::new();
    let mut allowed: Vec<RouteCost> = Vec::new();
    // Only the flows of the best so far are kept: those of a large job fill gigabytes.
    let mut kept = Vec::new();
    let mut coverage = Coverage::default();
    let mut simulation_seconds = 0.0;
    for options in RouteOptions::ALL {
        progress.step(&job.title, &name(options));
        let tried = by_route(job, &plan, options, asked)?;
        coverage = tried.coverage;
        simulation_seconds += tried.simulation_seconds;
        routes.push(tried.report);
        if asked.allows(options) {
            allowed.push(tried.cost);
            if cheapest(&allowed) == Some(allowed.len() - 1) {
                kept = tried.flows;
            }
        }
    }
    let Some(chosen) = cheapest(&allowed) else {
        let (kind, injection) = (asked.kind.map(|kind| kind.to_string()), asked.injection.map(|how| how.to_string()));
        let (kind, injection) = (kind.unwrap_or_default(), injection.unwrap_or_default());
        return Err(PlanCommandError::NoRoute { kind, injection });
    };
    progress.step(&job.title, "stages");
    let mut report = report(job, &plan, coverage, routes, &allowed[chosen], reason(&allowed, chosen))?;
    report.plan_seconds = began.elapsed().as_secs_f64() - simulation_seconds;
    Ok(Evaluated { report, options: allowed[chosen].options, flows: kept })
}

/// Routes, proves, costs and maybe simulates.
fn by_route(job: &Job, plan: &Plan, options: RouteOptions, asked: &Asked) -> Result<Tried, PlanCommandError> {
    let routed = route(plan, &job.machine.topology, options);
    let proof = |source| PlanCommandError::Proof { title: job.title.clone(), route: name(options), source };
    let coverage = check(plan, &routed.flows).map_err(proof)?;
    let (cost, share) = cost(&routed, &job.machine, asked)?;
    let simulation = Instant::now();
    let simulated = asked.simulate.then(|| simulate(&routed.flows, &job.machine, share.chunk_bytes));
    let simulation_seconds = simulation.elapsed().as_secs_f64();
    let simulated = simulated.map(|simulated| SimulatedReport {
        seconds: simulated.seconds,
        over_bound: (cost.bound.seconds() > 0.0).then(|| simulated.seconds / cost.bound.seconds()),
        chunk_bytes: simulated.chunk_bytes,
    });
    let report = route_report(job, &routed.flows, &cost, share, simulated);
    Ok(Tried { cost, report, flows: routed.flows, coverage, simulation_seconds })
}

/// What a route costs in the chunks that its hops leave.
fn cost(routed: &Routed, machine: &Machine, asked: &Asked) -> Result<(RouteCost, StagingShare), PlanCommandError> {
    let share = first_share(asked.staging, asked.chunk, routed.hops())?;
    Ok((RouteCost::new(routed, machine, share.chunk_bytes), share))
}

fn route_report(
    job: &Job,
    flows: &[Flow],
    cost: &RouteCost,
    share: StagingShare,
    simulated: Option<SimulatedReport>,
) -> RouteReport {
    let ranks: BTreeSet<Rank> = job.sources().into_iter().chain(job.destinations()).collect();
    let nics: BTreeSet<u32> = ranks.iter().flat_map(|&rank| job.machine.nics_of(rank)).copied().collect();
    let loads = || nics.iter().map(|&nic| cost.links.nics[nic as usize].most());
    let domains = cost.traffic.ingress_per_domain.iter().zip(&job.domain_labels);
    RouteReport {
        name: cost.options.kind.to_string(),
        injection: cost.options.injection.to_string(),
        inter_domain_bytes: cost.traffic.inter_domain_bytes,
        ingress_per_domain: domains.filter(|&(&bytes, _)| bytes > 0).map(|(&bytes, &label)| (label, bytes)).collect(),
        max_nic_bytes: loads().max().unwrap_or(0),
        min_nic_bytes: loads().min().unwrap_or(0),
        max_nvlink_bytes: cost.links.nvlinks.iter().map(|link| link.most()).max().unwrap_or(0),
        network_seconds: cost.bound.network_seconds,
        nvlink_seconds: cost.bound.nvlink_seconds,
        bound_seconds: cost.bound.seconds(),
        predicted_seconds: cost.predicted_seconds,
        simulated,
        injectors: injectors(job, flows),
        leaders: balance(job.destinations().iter().map(|rank| cost.traffic.ranks[rank.index()].network_received)),
        flows: cost.flows,
        chunks: cost.chunks,
        chunk_bytes: share.chunk_bytes,
        hops: cost.hops,
        staging_bytes: if cost.traffic.inter_domain_bytes > 0 { share.bytes } else { 0 },
    }
}

fn balance(bytes: impl Iterator<Item = u64>) -> Balance {
    let bytes: Vec<u64> = bytes.collect();
    let active = || bytes.iter().copied().filter(|&bytes| bytes > 0);
    Balance {
        active: active().count(),
        of: bytes.len(),
        max_bytes: active().max().unwrap_or(0),
        min_bytes: active().min().unwrap_or(0),
    }
}

/// Bytes that sources send to other domains as the first on their way.
fn injectors(job: &Job, flows: &[Flow]) -> Balance {
    let mut bytes: BTreeMap<Rank, u64> = job.sources().into_iter().map(|rank| (rank, 0)).collect();
    for flow in flows {
        for (from, to, sent) in flow.sums.iter().flat_map(Sums::edges) {
            if !job.machine.same_domain(from, to) {
                *bytes.entry(from).or_default() += sent;
            }
        }
        let root = flow.nodes[0].rank;
        let away = flow.children(0).filter(|(_, child)| !job.machine.same_domain(root, child.rank)).count() as u64;
        *bytes.entry(root).or_default() += flow.bytes * away;
    }
    balance(bytes.into_values())
}

fn report(
    job: &Job,
    plan: &Plan,
    coverage: Coverage,
    routes: Vec<RouteReport>,
    chosen: &RouteCost,
    reason: String,
) -> Result<Report, PlanCommandError> {
    let NicBound { bytes: nic_bound_bytes, seconds: bound_seconds } = nic_bound(plan, &job.machine, Injection::Striped);
    let gap = |gap: crossmesh::route::Gap| GapReport {
        tensor: job.manifest.tensors()[gap.tensor].name.clone(),
        without_source_bytes: gap.without_source,
        untaken_bytes: gap.untaken,
    };
    let stages = stages(&job.manifest, &job.machine)?;
    let (sources, destinations) = (job.sources(), job.destinations());
    Ok(Report {
        name: job.title.clone(),
        topology: job.machine.name.clone(),
        ranks: job.machine.topology.size(),
        sources: sources.len(),
        destinations: destinations.len(),
        domains: job.machine.topology.domain_count(),
        tensors: job.manifest.tensors().len(),
        classes: plan.classes().len(),
        bytes: job.manifest.global_bytes()?,
        unique_bytes: plan.unique_bytes(),
        delivered_bytes: plan.delivered_bytes(),
        nic_bound_bytes,
        bound_seconds,
        // Nothing at all adds up to -0.0.
        stages_one_by_one_seconds: 0.0 + stages.iter().map(|stage| stage.bound_seconds).sum::<f64>(),
        stages,
        coverage: if coverage.without_source == 0 { "complete" } else { "incomplete" },
        without_source_bytes: coverage.without_source,
        untaken_bytes: coverage.untaken,
        padding_bytes: coverage.padding,
        gaps: gaps(plan).into_iter().map(gap).collect(),
        replicated_unknown: job.unmatched.clone(),
        warnings: job.warnings.clone(),
        routes,
        chosen: chosen.options.kind.to_string(),
        chosen_injection: chosen.options.injection.to_string(),
        reason,
        per_rank: per_rank(job, chosen, &sources, &destinations),
        explained: None,
        as_expected: None,
        plan_seconds: 0.0,
    })
}

fn per_rank(job: &Job, chosen: &RouteCost, sources: &[Rank], destinations: &[Rank]) -> Vec<RankReport> {
    let topology = &job.machine.topology;
    let rank_report = |(rank, traffic): (u32, &crossmesh::route::RankTraffic)| RankReport {
        rank,
        domain: job.domain_labels[topology.domain(Rank(rank)).index()],
        node: topology.node(Rank(rank)).0,
        gpu: job.machine.devices[rank as usize].gpu,
        nics: job.machine.nics_of(Rank(rank)).to_vec(),
        is_source: sources.binary_search(&Rank(rank)).is_ok(),
        is_destination: destinations.binary_search(&Rank(rank)).is_ok(),
        network_sent: traffic.network_sent,
        network_received: traffic.network_received,
        nvlink_sent: traffic.local_sent,
        nvlink_received: traffic.local_received,
    };
    (0u32..).zip(&chosen.traffic.ranks).map(rank_report).collect()
}
