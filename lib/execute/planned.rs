//! What the ranks' own plans add up to. In: each rank's plan and flows. Out: numbers that all ranks need and none knows
//! alone: the longest way of any flow, who feeds whom, bytes of all ranks. Guarantee: the same on every rank; collective.

use super::agree::{Agreement, chain, first_fault, gather};
use super::budget::Staging;
use super::gpu::Shape;
use super::passing::Inside;
use super::prepare::reach;
use super::{ExecuteError, Group};
use crate::base::{Deadline, Rank};
use crate::plan::{Manifest, Plan};
use crate::route::{Coverage, LocalFlow, RankTraffic, RouteOptions, Traffic};
use crate::route::{check_for, cut_flows, plan_for, route_for, traffic_of};
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// This rank's own plan.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) flows: Vec<LocalFlow>,
    /// Flows inside its domain that GPUs run behind the others, where a shape says so.
    pub(super) inside: Vec<LocalFlow>,
    pub(super) time: Duration,
    statement: Statement,
}

/// What a rank states about its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Statement {
    hops: u32,
    feeds: bool,
    /// Flows that begin here.
    flows: u64,
    /// Bytes of classes whose lowest holder it is.
    unique: u64,
    coverage: Coverage,
    traffic: RankTraffic,
    /// Whether any flow passes it.
    takes_part: bool,
    /// What it has to do inside its domain.
    inside: Inside,
    staging: Staging,
}

/// What all of them add up to.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    /// Most edges between a root and another rank.
    pub(super) hops: u32,
    /// Per domain of the hosts the ranks that copy into others' tensors.
    pub(super) feeders: Vec<usize>,
    pub(super) flows: usize,
    pub(super) unique_bytes: u64,
    pub(super) coverage: Coverage,
    pub(super) traffic: Traffic,
    /// What there is to do inside each domain whose GPUs read from each other.
    pub(super) inside: Vec<Inside>,
    /// World ranks of those that a flow passes, or whose GPUs read from each other.
    pub(super) participants: Vec<Rank>,
    /// What each rank has for chunks on their way.
    pub(super) staging: Vec<Staging>,
}

/// Plans, routes and proves this rank's share; `topology` is what the route counts crossings by, `shape` says inside which of
/// its domains GPUs run what there is.
pub(super) fn plan(
    group: &Group,
    (topology, shape): (&Topology, Option<&Shape>),
    manifest: &Arc<Manifest>,
    options: RouteOptions,
    agreement: &Agreement,
) -> Result<Planned, ExecuteError> {
    let begun = Instant::now();
    let plan = plan_for(manifest, topology, options, group.rank)?;
    let flows = route_for(&plan, topology, options, group.rank);
    let coverage = check_for(&plan, &flows, group.rank)?;
    let traffic = traffic_of(&flows, topology, group.rank);
    let begins = flows.iter().filter(|flow| flow.path.root() == group.rank).count() as u64;
    let (flows, inside) = match shape {
        Some(shape) => {
            let cut = |domain| shape.is_direct(domain);
            let parts = cut_flows(&plan, topology, options, (&flows, group.rank), cut);
            (parts.outside, parts.inside)
        }
        None => (flows, Vec::new()),
    };
    let lowest = |class: &&crate::plan::CellClass| class.holders.first() == Some(&group.rank);
    let statement = Statement {
        hops: flows.iter().map(|flow| flow.place.hop).max().unwrap_or(0),
        // Who feeds does not depend on the size of chunks.
        feeds: reach(group, agreement, 0).is_feeder(&group.topology, &flows, group.rank),
        flows: begins,
        unique: plan.classes().iter().filter(lowest).map(|class| class.bytes).sum(),
        coverage,
        traffic,
        takes_part: !flows.is_empty(),
        inside: inside_of(&inside, group.rank),
        staging: group.staging.statement(),
    };
    Ok(Planned { plan, flows, inside, time: begun.elapsed(), statement })
}

/// What a rank has to do inside its domain.
fn inside_of(flows: &[LocalFlow], rank: Rank) -> Inside {
    let of = |flow: &LocalFlow| match flow.path.has_landed() {
        true => Inside { passes_on: if flow.path.root() == rank { flow.bytes } else { 0 }, ..Inside::default() },
        false => {
            let relayed = flow.place.parent.is_some_and(|parent| !parent.is_root);
            Inside { held: true, relayed, passes_on: 0 }
        }
    };
    flows
        .iter()
        .map(of)
        .fold(Inside::default(), |sum, one| Inside { passes_on: sum.passes_on + one.passes_on, ..sum.and(one) })
}

/// Puts the ranks' statements together; an error of any rank is an error of all.
pub(super) fn add_up(
    group: &Group,
    (topology, shape): (&Topology, Option<&Shape>),
    planned: Result<Planned, ExecuteError>,
    deadline: Deadline,
) -> Result<(Planned, Routes), ExecuteError> {
    let mine: Result<&Statement, String> =
        planned.as_ref().map(|planned| &planned.statement).map_err(|error| chain(error));
    let all: Vec<Result<Statement, String>> = gather(group, &mine, deadline)?;
    let faults = all.iter().map(|stated| stated.as_ref().err().map(String::as_str));
    let planned = first_fault(group, faults, planned)?;
    let all: Vec<Statement> = all.into_iter().flatten().collect();
    let mut feeders = vec![0; group.topology.domain_count()];
    for (rank, statement) in all.iter().enumerate() {
        feeders[group.topology.domain(Rank(rank as u32)).index()] += usize::from(statement.feeds);
    }
    let mut coverage = Coverage::default();
    all.iter().for_each(|statement| coverage += statement.coverage);
    let mut inside = vec![Inside::default(); topology.domain_count()];
    for (rank, statement) in (0..).map(Rank).zip(&all).filter(|&(rank, _)| shape.is_some_and(|shape| shape.has(rank))) {
        let domain = &mut inside[topology.domain(rank).index()];
        *domain = domain.and(statement.inside);
    }
    let passes_on = |rank: Rank| {
        let is_any = || inside[topology.domain(rank).index()] != Inside::default();
        shape.is_some_and(|shape| shape.has(rank)) && is_any()
    };
    let participants = (0..).map(Rank).zip(&all).filter(|&(rank, statement)| statement.takes_part || passes_on(rank));
    let participants = participants.map(|(rank, _)| group.world(rank)).collect();
    let sum = |of: fn(&Statement) -> u64| all.iter().map(of).sum::<u64>();
    let routes = Routes {
        hops: all.iter().map(|statement| statement.hops).max().unwrap_or(0),
        feeders,
        flows: sum(|statement| statement.flows) as usize,
        unique_bytes: sum(|statement| statement.unique),
        inside,
        coverage,
        participants,
        staging: all.iter().map(|statement| statement.staging).collect(),
        traffic: Traffic::of_ranks(all.iter().map(|statement| statement.traffic).collect(), topology),
    };
    Ok((planned, routes))
}
