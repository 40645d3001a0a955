//! What runs transfers. In: links, transfers, waiting threads. Out: progress. Guarantee: progress is made by
//! whoever waits; the progress thread runs only while a transfer is active and nobody waits; the first failure
//! ends every transfer with the same cause on every rank.

use super::ExecuteError;
use super::agree::chain;
use super::alarm::Alarm;
use super::execution::Execution;
use super::rest::{self, Rest};
use super::transfers::Inner;
use crate::base::{Backoff, Deadline};
use crate::bootstrap::{Cause, Control};
use crate::memory::Bell;
use crate::memory::device::Stream;
use crate::transport::MessageLink;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a rank that lost a peer waits for the hub's word on who died first.
const VERDICT: Duration = Duration::from_secs(2);

/// How long the progress thread sleeps when nothing wakes it.
const IDLE: Duration = Duration::from_secs(10);

struct Shared {
    inner: Mutex<Inner>,
    control: Arc<Control>,
    host: String,
    /// What wakes this process.
    alarm: Arc<Alarm>,
    /// Per link what a sleeper polls.
    readiness: Vec<Option<OwnedFd>>,
    waiters: AtomicUsize,
    active: AtomicUsize,
    stop: AtomicBool,
    idle: Mutex<()>,
    wake: Condvar,
}

/// Runs the transfers of one process.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Engine({} active)", self.shared.active.load(Ordering::Relaxed))
    }
}

impl Engine {
    /// An engine over `links`, with its progress thread asleep.
    pub fn new(
        links: Vec<Box<dyn MessageLink>>,
        control: Arc<Control>,
        host: String,
        bell: Bell,
    ) -> Result<Self, ExecuteError> {
        let readiness = links.iter().map(|link| link.readiness()).collect();
        let inner = Inner::new(links);
        let alarm = Arc::new(Alarm::new(bell)?);
        let woken = alarm.clone();
        control.on_abort(Box::new(move || woken.ring()));
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            control,
            host,
            alarm,
            readiness,
            waiters: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            idle: Mutex::new(()),
            wake: Condvar::new(),
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("crossmesh-progress".into())
            .spawn(move || for_thread.run())
            .map_err(|source| ExecuteError::Thread { source })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Links and tables, for init and free.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.shared.lock()
    }

    /// Makes ready for a transfer that waits for mapped peers and a network at once.
    pub(super) fn prepare_for_both(&self) -> Result<(), ExecuteError> {
        self.shared.alarm.prepare()
    }

    /// Starts a transfer, behind what `stream` holds if one is given.
    pub(super) fn start(&self, execution: u32, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        let mut inner = self.shared.lock();
        if let Some(cause) = &inner.failure {
            return Err(ExecuteError::Aborted(cause.clone()));
        }
        let Some(starting) = inner.execution(execution) else { return Err(ExecuteError::NotStarted) };
        if starting.is_active() {
            return Err(ExecuteError::Active);
        }
        starting.enter(stream)?;
        let begun = self.shared.begin(&mut inner, execution);
        if begun.is_err() {
            inner.execution(execution).into_iter().for_each(|execution| execution.cancel());
        }
        begun?;
        inner.active += 1;
        self.shared.note_active(&inner);
        drop(inner);
        self.shared.wake_if_needed();
        Ok(())
    }

    /// Lets streams go on that wait for a transfer that nobody waits for any more.
    pub(super) fn give_up(&self, execution: u32) {
        let mut inner = self.shared.lock();
        inner.execution(execution).into_iter().for_each(|execution| execution.abandon());
    }

    /// Makes progress once; whether the transfer is finished.
    pub(super) fn test(&self, execution: u32) -> Result<bool, ExecuteError> {
        self.shared.check_abort()?;
        let mut inner = self.shared.lock();
        self.shared.progress(&mut inner)?;
        Ok(!inner.execution(execution).is_some_and(|execution| execution.is_active()))
    }

    /// Makes progress until the transfer is finished.
    pub(super) fn wait(&self, execution: u32, deadline: Deadline) -> Result<(), ExecuteError> {
        self.shared.waiters.fetch_add(1, Ordering::AcqRel);
        let result = self.wait_inside(execution, deadline);
        self.shared.waiters.fetch_sub(1, Ordering::AcqRel);
        self.shared.wake_if_needed();
        result
    }

    fn wait_inside(&self, execution: u32, deadline: Deadline) -> Result<(), ExecuteError> {
        let mut backoff = Backoff::new();
        let mut rests = 0u32;
        loop {
            self.shared.check_abort()?;
            let mut inner = self.shared.lock();
            let moved = self.shared.progress(&mut inner)?;
            let Some(running) = inner.execution(execution).filter(|execution| execution.is_active()) else {
                return Ok(());
            };
            // Also while something moves: it may be another transfer.
            if deadline.expired() {
                return Err(ExecuteError::Deadline { limit: deadline.limit(), waiting: running.waiting_for() });
            }
            drop(inner);
            if moved {
                backoff.reset();
                rests = 0;
            } else if backoff.is_tired() {
                self.shared.rest(&mut backoff, rests, deadline)?;
                rests = rests.saturating_add(1);
            } else {
                backoff.snooze();
            }
        }
    }

    /// Forgets a transfer and gives its signal indices back.
    pub(super) fn remove(&self, execution: u32) {
        let mut inner = self.shared.lock();
        let gone = inner.remove(execution);
        self.shared.note_active(&inner);
        // What it has on devices goes without the lock: that may wait for streams, which may wait for other transfers.
        drop(inner);
        drop(gone);
    }

    /// Ends all connections after everything queued was sent.
    pub fn close(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        self.stop();
        let mut inner = self.shared.lock();
        for link in &mut inner.links.0 {
            link.close(deadline)?;
        }
        Ok(())
    }

    fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.alarm.stop();
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            log::error!("the progress thread panicked");
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a start, or asks for its turn with the shared slots.
    fn begin(&self, inner: &mut Inner, execution: u32) -> Result<(), ExecuteError> {
        if let Some((context, members)) = inner.turns.context(execution) {
            self.control.ask_turn(context, members)?;
            inner.turns.asked();
            inner.execution(execution).into_iter().for_each(Execution::await_turn);
            return Ok(());
        }
        inner.execution(execution).map_or(Ok(()), Execution::start)
    }

    /// Tells the progress thread how much there is to do; nothing after a failure.
    fn note_active(&self, inner: &Inner) {
        let active = if inner.failure.is_some() { 0 } else { inner.active };
        self.active.store(active, Ordering::Release);
    }

    /// Whether the progress thread should run.
    fn is_needed(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0 && self.waiters.load(Ordering::Acquire) == 0
    }

    fn wake_if_needed(&self) {
        if self.is_needed() {
            self.wake();
        }
    }

    /// Wakes the progress thread, or keeps it from falling asleep: it looks once more with the mutex held.
    fn wake(&self) {
        drop(self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    fn check_abort(&self) -> Result<(), ExecuteError> {
        if !self.control.is_aborted() {
            return Ok(());
        }
        match self.control.abort_cause() {
            Some(cause) => {
                self.lock().fail(cause.clone());
                Err(ExecuteError::Aborted(cause))
            }
            None => Ok(()),
        }
    }

    /// Sleeps until a peer or the network has news: on the bell when only mapped peers are left, in the network link
    /// when it is in use, for a moment when a link can do neither.
    fn rest(&self, backoff: &mut Backoff, rests: u32, deadline: Deadline) -> Result<(), ExecuteError> {
        let _sleeper = self.alarm.sleeper();
        let armed = self.alarm.bell().arm();
        let mut inner = self.lock();
        // Whoever told something before the bell was armed did not ring it.
        if self.progress(&mut inner)? || self.control.is_aborted() {
            backoff.reset();
            return Ok(());
        }
        match inner.rest() {
            Rest::Bell => {
                drop(inner);
                armed.sleep(rest::LONGEST.min(deadline.remaining()));
            }
            Rest::Link { link, mapped } => {
                let busy = inner.links.get(link).wait(Duration::ZERO)?;
                drop(inner);
                if busy {
                    return Ok(());
                }
                if rest::listens(rests, mapped) {
                    self.alarm.listen(armed.rings())?;
                }
                let limit = rest::limit(rests, mapped).min(deadline.remaining());
                rest::sleep_on(self.readiness[link].as_ref(), self.alarm.descriptor(), limit);
            }
            Rest::Moment => {
                drop(inner);
                backoff.snooze();
            }
            Rest::Soon => {
                drop(inner);
                if rests < rest::SOON { std::thread::yield_now() } else { backoff.snooze() }
            }
        }
        Ok(())
    }

    /// One round over links and transfers. An error becomes the job's abort, unless one came first.
    fn progress(&self, inner: &mut Inner) -> Result<bool, ExecuteError> {
        if let Some(cause) = &inner.failure {
            return Err(ExecuteError::Aborted(cause.clone()));
        }
        let begun = self.take_turns(inner);
        let active = inner.active;
        let moved = begun.and_then(|begun| Ok(inner.progress()? || begun));
        let moved = moved.and_then(|moved| self.ask_steps(inner).map(|()| moved));
        if inner.active < active {
            // Another thread may sleep for the transfer that this one finished.
            self.alarm.ring();
        }
        if let Err(error) = &moved {
            let cause = self.control.settle(self.cause(error), VERDICT);
            inner.fail(cause);
        }
        self.note_active(inner);
        match &inner.failure {
            Some(cause) => Err(ExecuteError::Aborted(cause.clone())),
            None => moved,
        }
    }

    /// Begins the transfer whose turn with the shared slots it is; whether there was one. Takes steps that all ranks of this
    /// rank's domain are ready for.
    fn take_turns(&self, inner: &mut Inner) -> Result<bool, ExecuteError> {
        while inner.turns.is_waiting() || inner.steps.is_waiting() {
            let Some(context) = self.control.next_turn() else { break };
            if !inner.take_step(context)? {
                inner.turns.came(context);
            }
        }
        let Some(number) = inner.turns.begin() else { return Ok(false) };
        inner.execution(number).map_or(Ok(()), Execution::start)?;
        Ok(true)
    }

    /// Tells the ranks of this rank's domain which steps it is ready for.
    fn ask_steps(&self, inner: &mut Inner) -> Result<(), ExecuteError> {
        while let Some((context, members)) = inner.next_step() {
            self.control.ask_turn(context, members)?;
            inner.steps.asked(context);
        }
        Ok(())
    }

    fn cause(&self, error: &ExecuteError) -> Cause {
        Cause { rank: self.control.rank(), host: self.host.clone(), phase: "transfer".into(), message: chain(error) }
    }

    /// The progress thread: asleep unless a transfer is active and nobody waits.
    fn run(&self) {
        let mut backoff = Backoff::new();
        while !self.stop.load(Ordering::Acquire) {
            if !self.is_needed() {
                let guard = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                // Whoever makes it needed, or stops it, takes the mutex before the notice.
                if !self.is_needed() && !self.stop.load(Ordering::Acquire) {
                    drop(self.wake.wait_timeout(guard, IDLE));
                }
                backoff.reset();
                continue;
            }
            match self.check_abort().and_then(|()| self.progress(&mut self.lock())) {
                Ok(true) => backoff.reset(),
                Ok(false) => backoff.snooze(),
                // Nothing is needed any more; whoever waits next gets the cause.
                Err(_) => self.note_active(&self.lock()),
            }
        }
    }
}
