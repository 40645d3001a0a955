//! Three ways through the ranks. In: plan, topology, options. Out: flows, of all ranks or of one. Guarantee: pure; each
//! wanter of a class gets each of its bytes by exactly one flow; what a rank derives for itself is its part of what is
//! derived for all, since both cut a class by the class's own data.

use super::balance::{self, Candidates};
use super::flow::{Flow, Gather, LocalFlow, Piece, Sums};
use super::leaders::{Carriers, GRAIN, Share, carrier};
use super::order::Order;
use super::path::{Members, Path};
use super::{Injection, RouteKind, RouteOptions};
use crate::base::{DomainId, Rank};
use crate::plan::{CellClass, Manifest, Plan, PlanError};
use crate::topology::Topology;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A part of a chain that begins in a domain of its own is at least as long.
const TURN: u64 = 4 * GRAIN;

/// A routed plan.
#[derive(Debug, Clone)]
pub struct Routed {
    /// What it was made with.
    pub options: RouteOptions,
    /// Flows in start order.
    pub flows: Vec<Flow>,
}

/// Routes a plan of all ranks.
///
/// # Panics
///
/// When `topology` has fewer ranks than the meshes of the plan name.
pub fn route(plan: &Plan, topology: &Topology, options: RouteOptions) -> Routed {
    let mut flows: Vec<Flow> = Vec::new();
    let mut router = Router::new(plan, topology, options);
    for class in held(plan) {
        let gather = Gather::of_class(plan, class);
        router.class(class, &gather, &mut |from, to, path| {
            let pieces: Vec<Piece> = gather.pieces(from, to).collect();
            let sums = Sums::of(plan, &pieces, &path);
            flows.push(Flow { nodes: path.nodes(), pieces, bytes: to - from, sums });
        });
    }
    Order::new(plan, topology).arrange(&mut flows);
    Routed { options, flows }
}

/// Plans what `rank` needs to know for a route: its own cells, or those of all ranks when it passes on everything.
pub fn plan_for(
    manifest: &Arc<Manifest>,
    topology: &Topology,
    options: RouteOptions,
    rank: Rank,
) -> Result<Plan, PlanError> {
    manifest.check_ranks(topology.size())?;
    let receives =
        |manifest: &Manifest| manifest.tensors().iter().any(|tensor| tensor.destination.mesh().slot(rank).is_some());
    let gathers = |manifest: &Manifest| manifest.side_ranks(|tensor| &tensor.source).first() == Some(&rank);
    match options.kind {
        RouteKind::GatherBroadcast if receives(manifest) || gathers(manifest) => {
            Plan::compile(manifest.clone(), topology.size())
        }
        _ => Plan::compile_for(manifest.clone(), topology.size(), rank),
    }
}

/// The flows that pass `rank`, from a plan that [`plan_for`] made for it: its part of [`route`], in the same order.
///
/// # Panics
///
/// When `topology` has fewer ranks than the meshes of the plan name.
pub fn route_for(plan: &Plan, topology: &Topology, options: RouteOptions, rank: Rank) -> Vec<LocalFlow> {
    let mut flows: Vec<LocalFlow> = Vec::new();
    let mut router = Router::new(plan, topology, options);
    for class in held(plan) {
        let gather = Gather::of_class(plan, class);
        router.class(class, &gather, &mut |from, to, path| {
            if let Some(place) = path.place(topology, rank) {
                let pieces: Vec<Piece> = gather.pieces(from, to).collect();
                let sums = Sums::of(plan, &pieces, &path);
                flows.push(LocalFlow { path, place, pieces, bytes: to - from, sums });
            }
        });
    }
    Order::new(plan, topology).arrange_local(&mut flows);
    flows
}

fn held(plan: &Plan) -> impl Iterator<Item = &CellClass> {
    plan.classes().iter().filter(|class| !class.holders.is_empty() && class.bytes > 0)
}

/// Ranks by domain, both ascending.
pub(super) fn by_domain(topology: &Topology, ranks: &[Rank]) -> Vec<Members> {
    let mut sorted: Vec<(DomainId, Rank)> = ranks.iter().map(|&rank| (topology.domain(rank), rank)).collect();
    sorted.sort_unstable();
    let of_domain = |chunk: &[(DomainId, Rank)]| Members {
        domain: chunk[0].0,
        ranks: chunk.iter().map(|&(_, rank)| rank).collect(),
    };
    sorted.chunk_by(|left, right| left.0 == right.0).map(of_domain).collect()
}

/// Parts that candidates carry of what they share, by the set of candidates.
struct Carrying(HashMap<Arc<[Rank]>, Vec<u64>>);

impl Carrying {
    fn new(sets: Vec<Candidates>) -> Self {
        let parts = balance::parts(&sets);
        Self(sets.into_iter().zip(parts).map(|((ranks, _), parts)| (ranks, parts)).collect())
    }

    fn of(&self, candidates: &[Rank]) -> Carriers {
        self.0.get(candidates).map_or_else(|| Carriers::alike(candidates), |parts| Carriers::new(candidates, parts))
    }
}

pub(super) struct Router<'a> {
    topology: &'a Topology,
    options: RouteOptions,
    injecting: Carrying,
    leading: Carrying,
    /// The root of gather-broadcast, and all destination ranks of the manifest by domain.
    gatherer: Option<Rank>,
    receivers: Vec<Members>,
    /// Wanters by domain, of the sets seen so far.
    wanters: HashMap<Vec<Rank>, Arc<[Members]>>,
}

/// Takes a slice of a class, and its way.
pub(super) type Emit<'a> = &'a mut dyn FnMut(u64, u64, Path);

impl<'a> Router<'a> {
    fn new(plan: &Plan, topology: &'a Topology, options: RouteOptions) -> Self {
        let hierarchical = options.kind == RouteKind::Hierarchical;
        let gathers = options.kind == RouteKind::GatherBroadcast;
        let striped = hierarchical && options.injection == Injection::Striped;
        let sources = if striped { plan.source_families().to_vec() } else { Vec::new() };
        let side = |gathers: bool| gathers.then(|| plan.manifest().side_ranks(|tensor| &tensor.destination));
        Self {
            topology,
            options,
            injecting: Carrying::new(sources),
            leading: Carrying::new(if hierarchical { leaders(plan, topology) } else { Vec::new() }),
            gatherer: gathers.then(|| plan.manifest().side_ranks(|tensor| &tensor.source).first().copied()).flatten(),
            receivers: side(gathers).map_or_else(Vec::new, |ranks| by_domain(topology, &ranks)),
            wanters: HashMap::new(),
        }
    }

    fn class(&mut self, class: &CellClass, gather: &Gather<'_>, emit: Emit<'_>) {
        if !class.terms.is_empty() {
            return self.sums(class, gather, emit);
        }
        match self.options.kind {
            RouteKind::Hierarchical => self.hierarchical(class, gather, emit),
            RouteKind::Flat => flat(class, emit),
            RouteKind::GatherBroadcast => {
                if let Some(path) = self.gathered(class, class.holders[0]) {
                    emit(0, class.bytes, path);
                }
            }
        }
    }

    pub(super) fn topology(&self) -> &'a Topology {
        self.topology
    }

    pub(super) fn kind(&self) -> RouteKind {
        self.options.kind
    }

    pub(super) fn injection(&self) -> Injection {
        self.options.injection
    }

    /// Ranks of one domain that may lead into it.
    pub(super) fn leading(&self, candidates: &[Rank]) -> Carriers {
        self.leading.of(candidates)
    }

    /// From `holder` to the root of all, then once into each destination domain, then to every destination rank there.
    pub(super) fn gathered(&self, class: &CellClass, holder: Rank) -> Option<Path> {
        let gatherer = self.gatherer?;
        let home = self.topology.domain(gatherer);
        let mut domains: Vec<Members> = self.receivers.iter().filter(|at| at.ranks != [holder]).cloned().collect();
        let at_home = domains.binary_search_by_key(&home, |members| members.domain);
        let mut readers = Vec::new();
        let first = at_home.unwrap_or_else(|next| next);
        if holder == gatherer {
            if let Ok(index) = at_home {
                readers = domains.remove(index).ranks;
                readers.retain(|&rank| rank != holder);
            }
        } else {
            // The gatherer leads its own domain.
            if at_home.is_err() {
                domains.insert(first, Members { domain: home, ranks: Vec::new() });
            }
            if let Err(place) = domains[first].ranks.binary_search(&gatherer) {
                domains[first].ranks.insert(place, gatherer);
            }
        }
        let lead = |members: &Members| {
            let own = members.domain == home && holder != gatherer;
            if own { Some(gatherer) } else { members.ranks.iter().copied().find(|&rank| rank != holder) }
        };
        let leaders: Vec<Rank> = domains.iter().filter_map(lead).collect();
        let first = first.checked_rem(domains.len()).unwrap_or(0);
        let path = Path::keeping(holder, readers.into(), Some(class.wanters.as_slice().into()));
        Some(path.through(domains.into(), leaders.into(), first))
    }

    fn hierarchical(&mut self, class: &CellClass, gather: &Gather<'_>, emit: Emit<'_>) {
        let wanting = self.wanting(&class.wanters);
        let holding = by_domain(self.topology, &class.holders);
        let holders_in = |members: &Members| {
            holding
                .binary_search_by_key(&members.domain, |holders| holders.domain)
                .ok()
                .map(|at| &holding[at].ranks[..])
        };
        for members in wanting.iter() {
            if let Some(holders) = holders_in(members) {
                self.local(class, gather, holders, &members.ranks, emit);
            }
        }
        let remote: Arc<[Members]> = match wanting.iter().any(|members| holders_in(members).is_some()) {
            true => wanting.iter().filter(|members| holders_in(members).is_none()).cloned().collect(),
            false => wanting,
        };
        if !remote.is_empty() {
            self.network(class, gather, remote, emit);
        }
    }

    pub(super) fn wanting(&mut self, wanters: &[Rank]) -> Arc<[Members]> {
        if let Some(known) = self.wanters.get(wanters) {
            return known.clone();
        }
        let members: Arc<[Members]> = by_domain(self.topology, wanters).into();
        self.wanters.insert(wanters.to_vec(), members.clone());
        members
    }

    /// A domain that holds the class already: its own replicas serve it, the network is not used.
    fn local(&self, class: &CellClass, gather: &Gather<'_>, holders: &[Rank], wanters: &[Rank], emit: Emit<'_>) {
        let (own, readers): (Vec<Rank>, Vec<Rank>) =
            wanters.iter().partition(|rank| holders.binary_search(rank).is_ok());
        for rank in own {
            emit(0, class.bytes, Path::own_copy(rank));
        }
        if readers.is_empty() {
            return;
        }
        let readers: Arc<[Rank]> = readers.into();
        let holders = if self.options.injection == Injection::Single { &holders[..1] } else { holders };
        for share in Carriers::alike(holders).split(class.bytes, class.source_phase, |at| gather.border(at)) {
            emit(share.from, share.to, Path::keeping(share.rank, readers.clone(), None));
        }
    }

    /// Domains without a holder: striped injection, balanced leaders, a chain through the domains.
    fn network(&self, class: &CellClass, gather: &Gather<'_>, domains: Arc<[Members]>, emit: Emit<'_>) {
        let border = |at| gather.border(at);
        let injectors = match self.options.injection {
            Injection::Single => Carriers::alike(&class.holders[..1]),
            Injection::Striped => self.injecting.of(&class.holders),
        };
        let injected = injectors.split(class.bytes, class.source_phase, border);
        let lead =
            |members: &Members| self.leading.of(&members.ranks).split(class.bytes, class.destination_phase, border);
        let led: Vec<Vec<Share>> = domains.iter().map(lead).collect();
        let phase = class.source_phase.wrapping_add(class.destination_phase);
        let turns = turns(&led[0], domains.len(), phase, border);
        let mut leader_cuts: Vec<u64> = led.iter().flatten().map(|share| share.to).collect();
        leader_cuts.sort_unstable();
        leader_cuts.dedup();
        let mut cuts: Vec<u64> =
            injected.iter().map(|share| share.to).chain(turns.iter().map(|turn| turn.to)).collect();
        cuts.extend(&leader_cuts);
        cuts.sort_unstable();
        cuts.dedup();
        let (mut from, mut injector, mut turn, mut leaders_end) = (0, 0, 0, 0);
        let mut leaders: Arc<[Rank]> = Arc::new([]);
        for to in cuts {
            if from >= leaders_end {
                leaders = led.iter().map(|shares| carrier(shares, from)).collect();
                leaders_end = leader_cuts[leader_cuts.partition_point(|&cut| cut <= from)];
            }
            injector += usize::from(injected[injector].to <= from);
            turn += usize::from(turns[turn].to <= from);
            let path = Path::keeping(injected[injector].rank, Arc::new([]), None);
            emit(from, to, path.through(domains.clone(), leaders.clone(), turns[turn].first));
            from = to;
        }
    }
}

/// A stretch of a class whose chains begin in one domain.
struct Turn {
    to: u64,
    first: usize,
}

/// Cuts every leader's share into a part for each domain, or as many as are long enough; chains begin in one domain after
/// the other.
fn turns(shares: &[Share], domains: usize, phase: u32, border: impl Fn(u64) -> u64) -> Vec<Turn> {
    let offset = ((u64::from(phase) * domains as u64) >> 32) as usize;
    let mut turns = Vec::new();
    let mut number = 0;
    for share in shares {
        let parts = ((share.to - share.from) / TURN).clamp(1, domains as u64);
        let mut start = share.from;
        for part in 1..=parts {
            let ideal = share.from + (u128::from(share.to - share.from) * u128::from(part) / u128::from(parts)) as u64;
            let to = if part == parts { share.to } else { border(ideal) };
            if to > start {
                turns.push(Turn { to, first: (number + offset) % domains });
                start = to;
            }
            number += 1;
        }
    }
    turns
}

/// Candidates for leading into each domain, with the bytes that they want alike.
pub(super) fn leaders(plan: &Plan, topology: &Topology) -> Vec<Candidates> {
    let mut sets: BTreeMap<Arc<[Rank]>, u64> = BTreeMap::new();
    for (wanters, bytes) in plan.destination_families() {
        for members in by_domain(topology, wanters) {
            *sets.entry(members.ranks.into()).or_default() += bytes;
        }
    }
    sets.into_iter().collect()
}

/// Lowest holder to every wanter.
fn flat(class: &CellClass, emit: Emit<'_>) {
    let holder = class.holders[0];
    for &wanter in &class.wanters {
        let path = match wanter == holder {
            true => Path::own_copy(holder),
            false => Path::keeping(holder, Arc::new([wanter]), None),
        };
        emit(0, class.bytes, path);
    }
}
