//! Copies that the host orders, for ranks that share a GPU. In: boxes, boards on the host. Out: copies on a stream of our own,
//! one start at a time. Guarantee: no kernel waits for another process, since one on the same GPU could not run meanwhile;
//! the caller's stream waits for a word in memory of the host, which is stored when everything is done or has failed.

use super::super::{ExecuteError, Group};
use super::attach::Attached;
use super::board::Board;
use super::transfer::EAGER;
use crate::base::{Backoff, Rank};
use crate::bootstrap::Control;
use crate::memory::SharedMemory;
use crate::memory::device::params::NONE;
use crate::memory::device::{Device, EngineTable, Event, Mover, Moves, Rows, Stream, StreamGate, Work};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Groups into which what others wait for is joined, for each parent.
const GROUPS: u64 = 16;
/// Smallest such group.
const SMALLEST_GROUP: u64 = 1 << 20;
/// Batches that are looked at beyond the first that cannot go yet.
const LOOKAHEAD: usize = 64;
/// Between two looks of a thread that has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

/// Copies that go together once a word has come.
#[derive(Debug)]
struct Batch {
    gate: u32,
    /// Whether it waits for nothing but a start.
    is_free: bool,
    copies: Range<usize>,
    reports: Vec<u32>,
}

/// A word of a peer's board.
type Told = (Arc<SharedMemory>, u32);

/// What the ordering thread works with.
#[derive(Debug)]
struct Plan {
    table: EngineTable,
    batches: Vec<Batch>,
    board: Arc<SharedMemory>,
    opened: Vec<Told>,
    closed: Vec<Told>,
    leave: (u32, u32),
    /// Per report, who is told.
    reports: Vec<Vec<Told>>,
}

/// A start under way; made once, so that a start allocates nothing.
struct Run {
    active: bool,
    epoch: u32,
    opened: bool,
    issued: Vec<bool>,
    first: usize,
    left: usize,
    /// Events on the stream with the batch whose reports they complete.
    flying: VecDeque<(usize, Option<usize>)>,
    ended: bool,
    closed: bool,
    begun: Instant,
}

impl Run {
    /// Room for starts of so many batches, with so many events.
    fn new(batches: usize, events: usize) -> Self {
        Self {
            active: false,
            epoch: 0,
            opened: false,
            issued: vec![false; batches],
            first: 0,
            left: 0,
            flying: VecDeque::with_capacity(events),
            ended: false,
            closed: false,
            begun: Instant::now(),
        }
    }

    fn begin(&mut self, epoch: u32) {
        (self.active, self.epoch, self.begun) = (true, epoch, Instant::now());
        (self.opened, self.closed) = (false, false);
        self.issued.fill(false);
        (self.first, self.left) = (0, self.issued.len());
        self.ended = self.left == 0;
        self.flying.clear();
    }
}

struct Shared {
    plan: Plan,
    control: Arc<Control>,
    /// For what comes from a source, and for what comes from where another rank got it.
    streams: [Stream; 2],
    gate: StreamGate,
    failed: Mutex<Option<ExecuteError>>,
    aborted: AtomicBool,
    stop: AtomicBool,
    idle: Mutex<()>,
    wake: Condvar,
}

/// Copies of a rank that shares its device.
pub(super) struct Ordered {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Ordered {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Ordered({:?})", self.shared.plan.table)
    }
}

impl Ordered {
    /// Lowers the boxes to copies and starts the thread, asleep.
    pub(super) fn new(
        device: &Device,
        board: &Board,
        attached: Attached,
        memory: &Arc<SharedMemory>,
        group: &Group,
    ) -> Result<Self, ExecuteError> {
        let told = |rank: Rank, word: Option<u32>| {
            let peer = attached.peers.get(&rank).and_then(|peer| peer.host_board.clone());
            let fits = |(segment, word): &Told| segment.words(u64::from(*word) * 8, 1).is_ok();
            peer.zip(word)
                .filter(fits)
                .ok_or_else(|| ExecuteError::Protocol { peer: rank, what: "no word of its board to tell it by".into() })
        };
        let opened = board.readers.keys().map(|&rank| told(rank, attached.peers[&rank].started));
        let closed = board.parents.keys().map(|&rank| told(rank, attached.peers[&rank].finished));
        let reports = attached.reports.iter().map(|readers| {
            readers.iter().map(|&(rank, word)| told(rank, Some(word))).collect::<Result<Vec<Told>, _>>()
        });
        let (opened, closed) = (opened.collect::<Result<_, _>>()?, closed.collect::<Result<_, _>>()?);
        let reports = reports.collect::<Result<_, _>>()?;
        let (copies, batches) = batches(&attached, board)?;
        let plan = Plan {
            table: EngineTable::new(copies, attached.spans),
            batches,
            board: memory.clone(),
            opened,
            closed,
            leave: Board::range(&board.finished),
            reports,
        };
        let shared = Arc::new(Shared {
            plan,
            control: group.control.clone(),
            streams: [Stream::new(device)?, Stream::new(device)?],
            gate: StreamGate::new(device, 0)?,
            failed: Mutex::new(None),
            aborted: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            idle: Mutex::new(()),
            wake: Condvar::new(),
        });
        let events = (0..LOOKAHEAD).map(|_| Event::new(device)).collect::<Result<Vec<_>, _>>()?;
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("crossmesh-gpu".into())
            .spawn(move || for_thread.run(&events))
            .map_err(|source| ExecuteError::Thread { source })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Begins a start, behind what `stream` holds if one is given.
    pub(super) fn start(&self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        let shared = &self.shared;
        if !shared.is_done() {
            return Err(ExecuteError::Active);
        }
        shared.gate.enter(stream)?;
        drop(shared.idle.lock().unwrap_or_else(PoisonError::into_inner));
        shared.wake.notify_one();
        Ok(())
    }

    /// Whether the last start is finished.
    pub(super) fn is_done(&self) -> Result<bool, ExecuteError> {
        match self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(self.shared.is_done()),
        }
    }

    /// Ends the start under way as it is.
    pub(super) fn abort(&self) {
        self.shared.aborted.store(true, Ordering::Release);
    }
}

impl Drop for Ordered {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        drop(self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that ordered copies of a GPU had panicked");
        }
    }
}

/// Copies of all works in order, and the batches they form: what others wait for is joined into a few groups.
fn batches(attached: &Attached, board: &Board) -> Result<(Vec<Rows>, Vec<Batch>), ExecuteError> {
    let places = attached.places();
    let mut copies: Vec<Rows> = Vec::new();
    let mut batches: Vec<Batch> = Vec::new();
    let bytes_of = |work: &Work| -> u64 { work.boxes.clone().map(|index| attached.table.bytes_of(index)).sum() };
    let awaited: u64 = attached.works.iter().filter(|work| work.report != NONE).map(bytes_of).sum();
    let group = (awaited / GROUPS).max(SMALLEST_GROUP);
    let starts = Board::range(&board.started);
    let mut in_last = 0;
    for work in &attached.works {
        let moves = Moves::lower(&attached.table, std::slice::from_ref(work), &places, Mover::Engine)?;
        let bytes = bytes_of(work);
        let is_free = work.gate == NONE || (starts.0..starts.0 + starts.1).contains(&work.gate);
        let joins = batches.last().is_some_and(|last: &Batch| {
            last.gate == work.gate
                && is_free
                && last.reports.is_empty() == (work.report == NONE)
                && in_last + bytes <= group
        });
        if !joins {
            let copies = copies.len()..copies.len();
            batches.push(Batch { gate: work.gate, is_free, copies, reports: Vec::new() });
            in_last = 0;
        }
        in_last += bytes;
        copies.extend(moves.engine);
        if let Some(batch) = batches.last_mut() {
            batch.copies.end = copies.len();
            if work.report != NONE && !batch.reports.contains(&work.report) {
                batch.reports.push(work.report);
            }
        }
    }
    Ok((copies, batches))
}

impl Shared {
    fn is_done(&self) -> bool {
        self.gate.under_way().is_none()
    }

    fn run(&self, events: &[Event]) {
        let mut backoff = Backoff::new();
        let mut run = Run::new(self.plan.batches.len(), events.len());
        while !self.stop.load(Ordering::Acquire) {
            if !run.active
                && let Some(epoch) = self.gate.under_way()
            {
                run.begin(epoch);
                backoff.reset();
            }
            if !run.active {
                let guard = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                if self.is_done() && !self.stop.load(Ordering::Acquire) {
                    drop(self.wake.wait_timeout(guard, IDLE));
                }
                continue;
            }
            let aborted = self.aborted.load(Ordering::Acquire) || self.control.is_aborted();
            match if aborted { Ok((true, true)) } else { self.step(&mut run, events) } {
                Ok((_, true)) => {
                    run.active = false;
                    self.gate.finish();
                }
                Ok((true, false)) => backoff.reset(),
                Ok((false, false)) if run.begun.elapsed() < EAGER => std::thread::yield_now(),
                Ok((false, false)) => backoff.snooze(),
                Err(error) => {
                    *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    run.active = false;
                    self.gate.finish();
                }
            }
        }
    }

    /// Takes the steps that can be taken: (whether any was, whether all are).
    fn step(&self, run: &mut Run, events: &[Event]) -> Result<(bool, bool), ExecuteError> {
        if !run.opened {
            if !self.gate.is_open()? {
                return Ok((false, false));
            }
            run.opened = true;
            self.tell(&self.plan.opened, run.epoch)?;
        }
        let mut moved = self.issue(run, events, true)?;
        moved |= self.issue(run, events, false)?;
        let mut number = 0;
        while let Some(&(event, _)) = run.flying.get(number) {
            if !events[event].is_done()? {
                number += 1;
                continue;
            }
            let told = run.flying.remove(number).and_then(|(_, batch)| batch);
            for &report in told.map_or(&[][..], |batch| &self.plan.batches[batch].reports) {
                self.tell(&self.plan.reports[report as usize], run.epoch)?;
            }
            moved = true;
        }
        if run.ended && run.flying.is_empty() && !run.closed {
            self.tell(&self.plan.closed, run.epoch)?;
            run.closed = true;
            moved = true;
        }
        let left = run.closed && {
            let (first, count) = self.plan.leave;
            (first..first + count)
                .try_fold(true, |all, word| Ok::<_, ExecuteError>(all && self.has_come(word, run.epoch)?))?
        };
        Ok((moved, left))
    }

    /// Puts batches whose words have come on their stream, and one mark behind them.
    fn issue(&self, run: &mut Run, events: &[Event], free: bool) -> Result<bool, ExecuteError> {
        if run.ended || run.flying.len() + 1 >= events.len() {
            return Ok(false);
        }
        let window = run.first..self.plan.batches.len().min(run.first + LOOKAHEAD);
        let mut ready = [0usize; LOOKAHEAD];
        let mut count = 0;
        let mut awaited = None;
        for number in window {
            let batch = &self.plan.batches[number];
            let opened = batch.gate == NONE || self.has_come(batch.gate, run.epoch)?;
            if run.issued[number] || batch.is_free != free || !opened {
                continue;
            }
            run.issued[number] = true;
            ready[count] = number;
            count += 1;
            if !batch.reports.is_empty() {
                // Others wait for it: its mark comes at once.
                awaited = Some(number);
                break;
            }
        }
        let ranges = ready[..count].iter().map(|&number| self.plan.batches[number].copies.clone());
        let stream = &self.streams[usize::from(!free)];
        self.plan.table.run(stream, ranges)?;
        run.left -= count;
        while run.issued.get(run.first) == Some(&true) {
            run.first += 1;
        }
        run.ended = run.left == 0;
        if count > 0 {
            let used = |event: usize| run.flying.iter().any(|&(other, _)| other == event);
            let event = (0..events.len()).find(|&event| !used(event)).unwrap_or(0);
            events[event].record(stream)?;
            run.flying.push_back((event, awaited));
        }
        Ok(count > 0)
    }

    fn tell(&self, words: &[Told], epoch: u32) -> Result<(), ExecuteError> {
        for (segment, word) in words {
            // Release: pairs with the Acquire load in `has_come` of the peer.
            segment.words(u64::from(*word) * 8, 1)?[0].store(u64::from(epoch), Ordering::Release);
        }
        Ok(())
    }

    fn has_come(&self, word: u32, epoch: u32) -> Result<bool, ExecuteError> {
        // Acquire: pairs with the Release store in `tell` of the peer.
        Ok(self.plan.board.words(u64::from(word) * 8, 1)?[0].load(Ordering::Acquire) == u64::from(epoch))
    }
}
