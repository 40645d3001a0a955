//! A transfer between GPUs that can be started again and again. In: a plan, its flows, tensors. Out: work on streams.
//! Guarantee: init is collective and fails on all ranks or on none; a start is ordered behind what its stream holds and
//! before what follows; a failure ends the kernels of this rank and becomes the job's, with one cause on all ranks.

use super::super::agree::{chain, commit, unreadable};
use super::super::program::compile;
use super::super::reach::Reach;
use super::super::tensors::LocalTensors;
use super::super::{ExecuteError, Group};
use super::attach::{Attached, attach};
use super::board::Board;
use super::engine::Ordered;
use super::handles::MappedMemories;
use super::invite::{BoardMemory, DeviceInvitation, Prepared, prepare};
use super::place::Places;
use crate::base::{Backoff, Deadline, Rank, env};
use crate::bootstrap::Cause;
use crate::memory::device::params::{PHASE_AWAIT, PHASE_CLOSE, Verdict};
use crate::memory::device::{Device, DeviceError, Flags, MoveTable, Mover, Moves, PACK_WARPS, SharedBuffer, Stream};
use crate::plan::Plan;
use crate::route::LocalFlow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait of a kernel where `CROSSMESH_TIMEOUT` states none.
pub(super) const LIMIT: Duration = Duration::from_secs(600);
/// How long a rank that met a failure waits for the hub's word on who was first.
const VERDICT: Duration = Duration::from_secs(2);
/// How long a wait yields before it sleeps: most transfers are over by then, and a sleep lasts longer than small ones.
pub(super) const EAGER: Duration = Duration::from_millis(20);
/// Looks at the word of a kernel for each question to the driver.
const ASK: u32 = 64;
/// How long an aborted kernel may take to end.
const END: Duration = Duration::from_secs(10);

/// Who orders the copies of a rank.
#[derive(Debug)]
enum Order {
    /// This rank has no tensors.
    Nothing,
    /// The devices, each with one rank.
    Kernel(Box<MoveTable>),
    /// The hosts, since ranks share devices.
    Host(Ordered),
}

/// A transfer between GPUs.
#[derive(Debug)]
pub(in crate::execute) struct DeviceTransfer {
    group: Group,
    order: Order,
    /// For starts that name no stream.
    own: Option<Stream>,
    /// Identity of the stream of the last start.
    stream: AtomicUsize,
    names: Vec<(u32, String)>,
    mapped: MappedMemories,
    _shared: Vec<SharedBuffer>,
}

impl DeviceTransfer {
    /// Prepares; collective.
    pub(in crate::execute) fn init(
        group: &Group,
        plan: &Plan,
        flows: &[LocalFlow],
        local: &LocalTensors,
        places: &Places,
        deadline: Deadline,
    ) -> Result<Self, ExecuteError> {
        let reach = Reach { cores: 1, ..Reach::of_shared_memory(group.size(), 0) };
        let program = compile(plan, flows, &places.together, &reach, (group.rank, false));
        let prepared = commit(group, prepare(group, places, program, local, deadline), deadline)?;
        let joined = exchange(group, &prepared.invitations, deadline)
            .and_then(|theirs| Self::join(group, plan, local, places, prepared, &theirs, deadline));
        commit(group, joined, deadline)
    }

    fn join(
        group: &Group,
        plan: &Plan,
        local: &LocalTensors,
        places: &Places,
        prepared: Prepared,
        theirs: &BTreeMap<Rank, DeviceInvitation>,
        deadline: Deadline,
    ) -> Result<Self, ExecuteError> {
        let mapped = MappedMemories { without_fabric: places.agreed.refused.clone(), ..MappedMemories::default() };
        let (group_of_it, order) = (group.clone(), Order::Nothing);
        let mut transfer = Self {
            group: group_of_it,
            order,
            own: None,
            stream: AtomicUsize::new(0),
            names: Vec::new(),
            mapped,
            _shared: Vec::new(),
        };
        let (Some((device, _)), Some(memory)) = (&places.device, &prepared.board_memory) else { return Ok(transfer) };
        let attached = attach(group, plan, local, device, &prepared, theirs, deadline)?;
        transfer.names = names(group, &prepared.board);
        transfer.mapped = MappedMemories { without_fabric: transfer.mapped.without_fabric, ..attached.mapped.clone() };
        let limit = env::seconds(env::TIMEOUT)?.unwrap_or(LIMIT);
        transfer.order = match memory {
            BoardMemory::Device(_) => {
                Order::Kernel(Box::new(kernel(device, &prepared.board, attached, limit, deadline)?))
            }
            BoardMemory::Host(board) => Order::Host(Ordered::new(device, &prepared.board, attached, board, group)?),
        };
        transfer.own = Some(Stream::new(device)?);
        transfer._shared = prepared.shared;
        Ok(transfer)
    }

    /// How memory of peers was mapped.
    pub(in crate::execute) fn mapped(&self) -> &MappedMemories {
        &self.mapped
    }

    /// Puts a start on `stream`, or on a stream of its own; returns at once.
    pub(in crate::execute) fn start(&self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        self.check_abort()?;
        let Some(own) = &self.own else { return Ok(()) };
        match &self.order {
            Order::Nothing => Ok(()),
            Order::Kernel(table) => {
                let is_captured = stream.map(Stream::is_capturing).transpose()? == Some(true);
                self.start_kernel(table, stream.unwrap_or(own), is_captured)
            }
            Order::Host(ordered) => match stream.map(Stream::is_capturing).transpose()? {
                Some(true) => Err(ExecuteError::Capture { why: "several ranks share a GPU".into() }),
                _ => ordered.start(stream),
            },
        }
    }

    /// Starts on one stream follow each other; on two they would use one board at the same time.
    fn start_kernel(&self, table: &MoveTable, stream: &Stream, is_captured: bool) -> Result<(), ExecuteError> {
        if stream.device() != table.device() {
            let (stream, device) = (stream.device().label().to_string(), table.device().label().to_string());
            return Err(DeviceError::OtherStream { stream, device }.into());
        }
        let is_last = self.stream.load(Ordering::Relaxed) == stream.identity();
        if !is_captured && !is_last && !table.is_finished() {
            return Err(ExecuteError::Active);
        }
        table.run(stream, !is_captured).map_err(|error| self.fail(error.into()))?;
        if !is_captured {
            self.stream.store(stream.identity(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the last start is finished.
    pub(in crate::execute) fn test(&self) -> Result<bool, ExecuteError> {
        self.look(true)
    }

    /// Whether the last start is finished: kernels tell it by a word; only the driver, which takes longer, knows what is wrong
    /// with a device on which they cannot.
    fn look(&self, ask_driver: bool) -> Result<bool, ExecuteError> {
        self.check_abort()?;
        let done = match (&self.order, &self.own) {
            // Also one of a graph's replay, which tells no end.
            (Order::Kernel(table), Some(own)) => match table.verdict() {
                Some(verdict) => Err(self.gave_up(table.device(), verdict).into()),
                None if table.is_finished() || !ask_driver => Ok(table.is_finished()),
                None => own.is_idle().map(|_| table.is_finished()).map_err(ExecuteError::from),
            },
            (Order::Host(ordered), _) => ordered.is_done(),
            _ => Ok(true),
        };
        done.map_err(|error| self.fail(error))
    }

    /// Returns once the last start is finished.
    pub(in crate::execute) fn wait(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        let mut backoff = Backoff::new();
        let begun = Instant::now();
        let mut looks = 0u32;
        while !self.look(looks.is_multiple_of(ASK))? {
            looks = looks.wrapping_add(1);
            if deadline.expired() {
                let waiting = "work on its GPU has not ended: a peer has not started, or its copies are not done";
                return Err(ExecuteError::Deadline { limit: deadline.limit(), waiting: waiting.into() });
            }
            if begun.elapsed() < EAGER { std::thread::yield_now() } else { backoff.snooze() }
        }
        Ok(())
    }

    /// Whether its last start uses no memory any more; after a failure kernels are told to end first.
    pub(in crate::execute) fn end(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        let waited = self.wait(deadline);
        if waited.is_err() {
            self.abort();
            if let (Order::Kernel(table), Some(own)) = (&self.order, &self.own) {
                let is_sound = || Ok(own.is_idle().map(|_| ())?);
                wait_for_end(|| table.has_ended(), is_sound, Deadline::after(END))?;
            }
        }
        waited
    }

    fn abort(&self) {
        match &self.order {
            Order::Nothing => {}
            Order::Kernel(table) => table.abort(),
            Order::Host(ordered) => ordered.abort(),
        }
    }

    fn check_abort(&self) -> Result<(), ExecuteError> {
        if !self.group.control.is_aborted() {
            return Ok(());
        }
        self.abort();
        self.group.control.abort_cause().map_or(Ok(()), |cause| Err(ExecuteError::Aborted(cause)))
    }

    /// Makes an error the job's, unless another came first.
    fn fail(&self, error: ExecuteError) -> ExecuteError {
        let settled = settle(&self.group, &error);
        self.abort();
        settled
    }

    fn gave_up(&self, device: &Device, verdict: Verdict) -> DeviceError {
        let phase = match verdict.phase {
            PHASE_AWAIT => "waiting for sources",
            PHASE_CLOSE => "waiting for readers",
            _ => "moving",
        };
        let name = self.names.iter().find(|(word, _)| *word == verdict.word).map(|(_, name)| name.clone());
        let unknown =
            if verdict.aborted != 0 { "what was left when its host told it to end" } else { "a chunk of another rank" };
        let what = name.unwrap_or_else(|| unknown.to_string());
        let (epoch, found) = (verdict.epoch, verdict.found);
        DeviceError::GaveUp { device: device.label().to_string(), phase, what, epoch, found }
    }
}

/// Returns once launches of a transfer that is given up use no memory any more.
pub(super) fn wait_for_end(
    have_ended: impl Fn() -> bool,
    is_sound: impl Fn() -> Result<(), ExecuteError>,
    deadline: Deadline,
) -> Result<(), ExecuteError> {
    let mut backoff = Backoff::new();
    while !have_ended() {
        is_sound()?;
        if deadline.expired() {
            let waiting = "launches of this rank's GPU have not ended: its stream holds other work".into();
            return Err(ExecuteError::Deadline { limit: deadline.limit(), waiting });
        }
        backoff.snooze();
    }
    Ok(())
}

/// Makes an error the job's, unless another came first.
pub(in crate::execute) fn settle(group: &Group, error: &ExecuteError) -> ExecuteError {
    let host = group.topology.host(group.rank).to_string();
    let cause = Cause { rank: group.control.rank(), host, phase: "transfer".into(), message: chain(error) };
    ExecuteError::Aborted(group.control.settle(cause, VERDICT))
}

/// What words of the board are about, for messages.
fn names(group: &Group, board: &Board) -> Vec<(u32, String)> {
    let who = |rank: Rank| format!("rank {rank} on host {}", group.topology.host(rank));
    let started = board.started.iter().map(|(&rank, &word)| (word, format!("the start of {}", who(rank))));
    let finished = board.finished.iter().map(|(&rank, &word)| (word, format!("the end of reading by {}", who(rank))));
    started.chain(finished).collect()
}

/// The table of a rank that has its device for itself.
fn kernel(
    device: &Device,
    board: &Board,
    attached: Attached,
    limit: Duration,
    deadline: Deadline,
) -> Result<MoveTable, ExecuteError> {
    let warps = u64::from(device.properties().multiprocessors * PACK_WARPS);
    let moves = Moves::lower(&attached.table, &attached.works, &attached.places(), Mover::Kernel { warps })?;
    let told = |rank: Rank, word: Option<u32>| {
        let span = attached.peers.get(&rank).and_then(|peer| peer.board);
        match (span, word) {
            (Some(span), Some(word)) => Ok((span, word)),
            _ => Err(ExecuteError::Protocol { peer: rank, what: "no word to tell it by".into() }),
        }
    };
    let word_of = |rank: &Rank, which: fn(&super::opened::DevicePeer) -> Option<u32>| {
        told(*rank, attached.peers.get(rank).and_then(which))
    };
    let flags = Flags {
        words: board.words,
        opened: board.readers.keys().map(|rank| word_of(rank, |peer| peer.started)).collect::<Result<_, _>>()?,
        closed: board.parents.keys().map(|rank| word_of(rank, |peer| peer.finished)).collect::<Result<_, _>>()?,
        await_words: Board::range(&board.started),
        leave_words: Board::range(&board.finished),
        reports: board
            .counters
            .iter()
            .zip(&attached.reports)
            .map(|(&counter, readers)| {
                let targets = readers.iter().map(|&(rank, word)| told(rank, Some(word)));
                Ok((counter, targets.collect::<Result<Vec<_>, ExecuteError>>()?))
            })
            .collect::<Result<_, ExecuteError>>()?,
    };
    Ok(MoveTable::build(device, moves, &flags, attached.spans, limit, deadline)?)
}

/// Gives each peer its invitation, and takes theirs; collective.
pub(super) fn exchange(
    group: &Group,
    invitations: &BTreeMap<Rank, DeviceInvitation>,
    deadline: Deadline,
) -> Result<BTreeMap<Rank, DeviceInvitation>, ExecuteError> {
    let mut outgoing = vec![Vec::new(); group.size()];
    for (&peer, invitation) in invitations {
        outgoing[peer.index()] = postcard::to_allocvec(invitation).map_err(|source| unreadable(group.rank, source))?;
    }
    let incoming = group.exchange(&outgoing, deadline)?;
    let read = |&peer: &Rank| {
        let invitation = postcard::from_bytes(&incoming[peer.index()]);
        invitation.map(|invitation| (peer, invitation)).map_err(|source| unreadable(peer, source))
    };
    invitations.keys().map(read).collect()
}
