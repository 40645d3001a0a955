//! The handle of a transfer. In: group, manifest, buffers, options. Out: a persistent request, MPI style.
//! Guarantee: `init` is collective and fails on all ranks or on none; `start` and `wait` may be repeated; a
//! source may change once `wait` has returned, a destination is complete then.

use super::agree::{Agreement, agree, commit, unreadable};
use super::attach::attach;
use super::budget::DEFAULT_CHUNK;
use super::exchange::Invitation;
use super::execution::Execution;
use super::gpu::{DeviceTransfer, MappedMemories, Stages, Way, find_way, inspect_tensors, unmapped_destination};
use super::passing::{Inside, Passing};
use super::planned::{self, Planned, Routes};
use super::prepare::{Prepared, Reservation, prepare};
use super::runner::{HostRunner, Runner};
use super::{Buffers, ExecuteError, Group, Side, tensors};
use crate::base::{Deadline, Rank, env};
use crate::memory::device::{Stream, StreamGate};
use crate::memory::{Buffer, ReadHold, WriteHold};
use crate::plan::Manifest;
use crate::route::{Coverage, RouteOptions, Traffic, in_parts};
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a connect may keep other transfers of this process from progressing.
const CONNECT_SLICE: Duration = Duration::from_secs(1);
/// How long dropping an active transfer waits for it.
const DROP_LIMIT: Duration = Duration::from_secs(10);

/// What a transfer is made with; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReshardOptions {
    /// Route; `CROSSMESH_ROUTE` and `CROSSMESH_INJECTION` override it.
    pub route: RouteOptions,
}

/// What a transfer moves, known before the first byte.
#[derive(Debug, Clone)]
pub struct Report {
    /// Route in force.
    pub route: RouteOptions,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes wanted by any rank, each counted once.
    pub unique_bytes: u64,
    /// Bytes summed over destination ranks.
    pub delivered_bytes: u64,
    /// Proof of coverage.
    pub coverage: Coverage,
    /// Bytes per rank and domain.
    pub traffic: Traffic,
    /// Number of flows.
    pub flows: usize,
    /// Staging memory that this rank uses for it, its own or shared with others.
    pub staging_bytes: u64,
    /// Chunk of message links.
    pub chunk_bytes: u64,
    /// Time that this rank took to plan, route and prove.
    pub plan_time: Duration,
    /// Why bytes of tensors on GPUs go through memory of the hosts; `None` where they go from GPU to GPU, and where there
    /// are none.
    pub staged: Option<String>,
    /// Whether that is so between domains alone: inside those with a GPU for each rank, GPUs read from each other what is there
    /// and what came.
    pub inside: bool,
    /// How this rank mapped memory of its peers, where bytes go from GPU to GPU.
    pub mapped: MappedMemories,
}

impl Report {
    /// Of a transfer before anything is prepared for it.
    fn of(manifest: &Manifest, route: RouteOptions, planned: &Planned, routes: &Routes, way: &Option<Way>) -> Self {
        Self {
            route,
            tensors: manifest.tensors().len(),
            unique_bytes: routes.unique_bytes,
            delivered_bytes: routes.coverage.written,
            coverage: routes.coverage,
            traffic: routes.traffic.clone(),
            flows: routes.flows,
            staging_bytes: 0,
            chunk_bytes: 0,
            plan_time: planned.time,
            staged: match way {
                Some(Way::Staged(why) | Way::Inside { why, .. }) => Some(why.clone()),
                _ => None,
            },
            inside: routes.inside.iter().any(|inside| *inside != Inside::default()),
            mapped: MappedMemories::default(),
        }
    }

    /// Tells why bytes of GPUs go through memory of the hosts, once for all ranks.
    fn log(&self, group: &Group) {
        if let Some(why) = self.staged.as_ref().filter(|_| group.rank == Rank(0)) {
            let between = if self.inside { " between domains" } else { "" };
            log::info!("tensors on GPUs go through memory of the hosts{between}: {why}");
        }
    }
}

enum Hold {
    Read(#[allow(dead_code)] ReadHold),
    Write(#[allow(dead_code)] WriteHold),
}

/// What is needed of the hosts' part: its memory, its words for streams, bytes of staging and of a chunk.
type Hosts = (Reservation, Option<Arc<StreamGate>>, [u64; 2]);

/// A persistent transfer.
pub struct Reshard {
    // Dropped first: takes the execution out before its memory goes.
    runner: Runner,
    buffers: Vec<(Buffer, bool)>,
    holds: Vec<Hold>,
    report: Report,
    started: bool,
    // Keeps the user's memory alive as long as the transfer.
    _tensors: tensors::LocalTensors,
}

impl std::fmt::Debug for Reshard {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Reshard").field("report", &self.report).field("started", &self.started).finish()
    }
}

impl Reshard {
    /// Prepares a transfer; collective over the group.
    ///
    /// # Errors
    /// Any rank's bad buffer, a manifest or option that differs between ranks (named by rank, tensor, field and
    /// both values), too little staging, a peer that cannot be reached by the deadline.
    pub fn init(
        group: &Group,
        manifest: &Arc<Manifest>,
        buffers: &Buffers,
        options: ReshardOptions,
        deadline: Deadline,
    ) -> Result<Self, ExecuteError> {
        // What cannot be read is told to the others like everything else that is wrong on one rank only.
        let (route_options, chunk, settings) = match settings(options.route) {
            Ok((route_options, chunk)) => (route_options, chunk, Ok(())),
            Err(error) => (options.route, DEFAULT_CHUNK, Err(error)),
        };
        let local = manifest
            .check_ranks(group.size())
            .map_err(ExecuteError::from)
            .and_then(|()| tensors::check(manifest, buffers, group.rank))
            .and_then(inspect_tensors);
        let canonical = canonical_options(group, route_options);
        let (local, agreement) = agree(group, manifest, (&canonical, chunk), settings, local, deadline)?;
        let way =
            agreement.is_on_devices().then(|| find_way(group, manifest, &agreement, route_options.kind, deadline));
        let mut way = way.transpose()?;
        let (planned, routes) = planned_for(group, &way, manifest, route_options, &agreement, deadline)?;
        let (planned, routes) = match &way {
            Some(Way::Direct { places, .. }) if routes.hops > 1 => match unmapped_destination(&agreement, places) {
                Some(why) => {
                    way = Some(Way::Staged(why));
                    planned_for(group, &way, manifest, route_options, &agreement, deadline)?
                }
                None => (planned, routes),
            },
            _ => (planned, routes),
        };
        let report = Report::of(manifest, route_options, &planned, &routes, &way);
        report.log(group);
        if let Some(Way::Direct { places, .. }) = &way {
            let transfer = DeviceTransfer::init(group, &planned.plan, &planned.flows, &local, places, deadline)?;
            let report = Report { mapped: transfer.mapped().clone(), ..report };
            return Ok(Self::over(Runner::Device(Box::new(transfer)), report, local));
        }
        let topology = way.as_ref().and_then(Way::topology).unwrap_or(&group.topology);
        let shape = way.as_ref().and_then(Way::shape);
        let passing = shape.map_or_else(Passing::default, |shape| {
            Passing::of(group, shape, &routes.inside, (agreement.context, agreement.chunk))
        });
        let (reservation, gate, [staging_bytes, chunk_bytes]) =
            Self::by_hosts(group, (topology, &passing), &planned, &local, (&agreement, &routes), deadline)?;
        let mut report = Report { staging_bytes, chunk_bytes, ..report };
        let mut runner = HostRunner { reservation, passing: None };
        if let Some(Way::Inside { places, .. }) = &way {
            let flows = in_parts(&planned.plan, planned.inside, passing.parts);
            let flows = (&flows[..], &passing.stages()[..]);
            let stages = Arc::new(Stages::init(group, &planned.plan, flows, &local, places, deadline)?);
            report.mapped = stages.mapped().clone();
            let mut engine = group.engine.lock();
            let execution = engine.execution(runner.reservation.number);
            execution.into_iter().for_each(|execution| execution.set_stages(stages.clone()));
            runner.passing = gate.filter(|_| !passing.steps.is_empty()).map(|gate| (stages, gate));
        }
        Ok(Self::over(Runner::Host(runner), report, local))
    }

    /// The part that the hosts do; collective.
    fn by_hosts(
        group: &Group,
        (topology, passing): (&Topology, &Passing),
        planned: &Planned,
        local: &tensors::LocalTensors,
        (agreement, routes): (&Agreement, &Routes),
        deadline: Deadline,
    ) -> Result<Hosts, ExecuteError> {
        let (plan, flows) = (&planned.plan, &planned.flows);
        let prepared = prepare(group, (topology, passing), plan, flows, local, agreement, routes);
        let prepared = commit(group, prepared, deadline)?;
        let attached = connect(group, &prepared, deadline)
            .and_then(|()| exchange(group, &prepared, deadline))
            .and_then(|theirs| attach(group, plan, local, &prepared, &theirs, deadline));
        let bound = commit(group, attached, deadline)?;
        let number = prepared.reservation.number;
        let gate;
        {
            let mut engine = group.engine.lock();
            gate = bound.gate.clone();
            engine.insert(number, Execution::new(bound, number));
            if let Some(members) = prepared.turn.clone() {
                engine.turns.add(number, agreement.context, members);
            }
            engine.steps.add(number, passing.contexts.clone(), passing.members.clone());
        }
        Ok((prepared.reservation, gate, [prepared.staging_bytes, prepared.chunk_bytes]))
    }

    fn over(runner: Runner, report: Report, local: tensors::LocalTensors) -> Self {
        let buffers = distinct_buffers(&local);
        let holds = Vec::with_capacity(buffers.len());
        Self { runner, buffers, holds, report, started: false, _tensors: local }
    }

    /// What it moves.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Begins the transfer. Source tensors must be complete; until `wait` returns they must not change and
    /// destination tensors must not be read, which the buffers' guards enforce.
    pub fn start(&mut self) -> Result<(), ExecuteError> {
        self.begin(None)
    }

    /// Begins a transfer of tensors on GPUs behind what `stream` holds; what is put on the stream afterwards sees this rank's
    /// destination tensors complete and may change its source tensors. Returns at once. Starts on one stream may
    /// follow each other without a wait where each rank has a GPU of its own and bytes go from GPU to GPU; so may a capture
    /// of the stream into a graph, after which a launch of the graph is a start.
    ///
    /// # Errors
    /// A rank without tensors on a GPU; a capture of a transfer that the host takes part in.
    pub fn start_on(&mut self, stream: &Stream) -> Result<(), ExecuteError> {
        self.begin(Some(stream))
    }

    fn begin(&mut self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        if let (Runner::Device(transfer), Some(stream)) = (&self.runner, stream)
            && (self.started || stream.is_capturing()?)
        {
            return transfer.start(Some(stream));
        }
        if self.started {
            return Err(ExecuteError::Active);
        }
        if let (Runner::Host(_), Some(why)) = (&self.runner, &self.report.staged)
            && stream.map(Stream::is_capturing).transpose()? == Some(true)
        {
            return Err(ExecuteError::Capture { why: why.clone() });
        }
        for (buffer, write) in &self.buffers {
            let hold =
                if *write { buffer.hold_for_write().map(Hold::Write) } else { buffer.hold_for_read().map(Hold::Read) };
            match hold {
                Ok(hold) => self.holds.push(hold),
                Err(error) => {
                    self.holds.clear();
                    return Err(error.into());
                }
            }
        }
        if let Err(error) = self.runner.start(stream) {
            // What has begun all the same is waited for when this is dropped.
            self.started = self.runner.is_active();
            if !self.started {
                self.holds.clear();
            }
            return Err(error);
        }
        self.started = true;
        Ok(())
    }

    /// Returns once this rank's part is finished: its destinations are complete, its sources are free. After a
    /// deadline the transfer is still active and may be waited for again.
    pub fn wait(&mut self, deadline: Deadline) -> Result<(), ExecuteError> {
        if !self.started {
            return Err(ExecuteError::NotStarted);
        }
        self.runner.wait(deadline)?;
        self.finish();
        Ok(())
    }

    /// Makes progress; whether the transfer is finished.
    pub fn test(&mut self) -> Result<bool, ExecuteError> {
        if !self.started {
            return Err(ExecuteError::NotStarted);
        }
        let finished = self.runner.test()?;
        if finished {
            self.finish();
        }
        Ok(finished)
    }

    /// Steps of this rank's part that are done, and how many there are; what goes from GPU to GPU is one step.
    pub fn progress(&self) -> (u64, u64) {
        self.runner.progress(self.started)
    }

    /// Finite values that became infinite since the last start, where this rank cast them. An element counts once,
    /// however many ranks receive it, so the sum over all ranks says how many there are, whatever the route.
    pub fn saturated(&self) -> u64 {
        self.runner.saturated()
    }

    fn finish(&mut self) {
        self.started = false;
        self.holds.clear();
    }
}

impl Drop for Reshard {
    fn drop(&mut self) {
        if !self.started {
            return;
        }
        if let Err(error) = self.runner.end(Deadline::after(DROP_LIMIT)) {
            // Peers may still read or write this memory: keep it for the life of the process.
            log::error!("a transfer was dropped while active and did not finish: {error}; its memory is kept");
            std::mem::forget(std::mem::take(&mut self.holds));
            std::mem::forget(self._tensors.clone());
            self.runner.keep_memory();
        }
    }
}

/// This rank's plan for a way, and what all ranks' add up to; collective.
fn planned_for(
    group: &Group,
    way: &Option<Way>,
    manifest: &Arc<Manifest>,
    route: RouteOptions,
    agreement: &Agreement,
    deadline: Deadline,
) -> Result<(Planned, Routes), ExecuteError> {
    let topology = way.as_ref().and_then(Way::topology).unwrap_or(&group.topology);
    let shape = way.as_ref().and_then(Way::shape);
    let planned = planned::plan(group, (topology, shape), manifest, route, agreement);
    planned::add_up(group, (topology, shape), planned, deadline)
}

/// Route and chunk size with the environment in force.
fn settings(route: RouteOptions) -> Result<(RouteOptions, u64), ExecuteError> {
    Ok((route.with_environment()?, env::byte_count(env::CHUNK)?.unwrap_or(DEFAULT_CHUNK)))
}

/// The values of [`OPTIONS`](super::agree::OPTIONS).
fn canonical_options(group: &Group, options: RouteOptions) -> [String; 5] {
    let domains: Vec<u32> = (0..group.size()).map(|rank| group.topology.domain(Rank(rank as u32)).0).collect();
    // Neighbours of one domain in one word: this text may be about very many ranks.
    let word = |ranks: &[u32]| match ranks.len() {
        1 => ranks[0].to_string(),
        count => format!("{}*{count}", ranks[0]),
    };
    let domains: Vec<String> = domains.chunk_by(|left, right| left == right).map(word).collect();
    let mapped = format!("{:?}", group.mapped).to_lowercase();
    // Two versions may derive different flows from the same, though they speak one protocol.
    let version = format!("{} of protocol {}", env!("CARGO_PKG_VERSION"), crate::PROTOCOL_VERSION);
    [version, options.kind.to_string(), options.injection.to_string(), mapped, domains.join(" ")]
}

/// Connects to every peer that a message link joins; other transfers of this process progress in between.
fn connect(group: &Group, prepared: &Prepared, deadline: Deadline) -> Result<(), ExecuteError> {
    let mut by_link: BTreeMap<usize, Vec<(Rank, Vec<u8>)>> = BTreeMap::new();
    let program = &prepared.program;
    for &peer in prepared.invitations.keys() {
        if program.arrivals.contains_key(&peer) || program.sends.contains_key(&peer) {
            let link = group.link_to(peer);
            let world = group.world(peer);
            by_link.entry(link).or_default().push((world, group.peering[world.index()].links[link].clone()));
        }
    }
    for (link, peers) in by_link {
        loop {
            let slice = Deadline::after(CONNECT_SLICE.min(deadline.remaining()));
            match group.engine.lock().links.get(link).connect(&peers, slice) {
                Ok(()) => break,
                Err(error) if deadline.expired() => return Err(error.into()),
                Err(error) if group.control.is_aborted() => {
                    let cause = group.control.abort_cause();
                    return Err(cause.map_or(error.into(), ExecuteError::Aborted));
                }
                Err(error) => log::debug!("not yet connected: {error}"),
            }
        }
    }
    Ok(())
}

fn exchange(
    group: &Group,
    prepared: &Prepared,
    deadline: Deadline,
) -> Result<BTreeMap<Rank, Invitation>, ExecuteError> {
    let mut outgoing = vec![Vec::new(); group.size()];
    for (&peer, invitation) in &prepared.invitations {
        outgoing[peer.index()] = postcard::to_allocvec(invitation).map_err(|source| unreadable(group.rank, source))?;
    }
    let incoming = group.exchange(&outgoing, deadline)?;
    prepared
        .invitations
        .keys()
        .map(|&peer| {
            let read = postcard::from_bytes(&incoming[peer.index()]);
            read.map(|invitation| (peer, invitation)).map_err(|source| unreadable(peer, source))
        })
        .collect()
}

/// Buffers that the transfer touches, each once, and whether it writes them.
fn distinct_buffers(local: &tensors::LocalTensors) -> Vec<(Buffer, bool)> {
    let mut known: BTreeMap<u64, (Buffer, bool)> = BTreeMap::new();
    for side in [Side::Source, Side::Destination] {
        for tensor in local.side(side).iter().flatten() {
            let entry = known.entry(tensor.buffer.as_ptr() as u64).or_insert_with(|| (tensor.buffer.clone(), false));
            entry.1 |= side == Side::Destination;
        }
    }
    known.into_values().collect()
}
