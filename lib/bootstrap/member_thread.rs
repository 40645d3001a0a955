//! The thread behind a rank's end of its control connection, and what it shares with the callers.
//!
//! In: frames of the hub, frames that callers queue. Out: changes of [`State`], each announced to all waiting threads.
//! Guarantee: the thread never blocks on the stream; what a frame changes is either expected by a caller or dropped.

use super::cause::Cause;
use super::error::{Absentees, BootstrapError};
use super::wire::{FrameReader, Header, Kind, Received, SendQueue, Waker, Woken};
use crate::base::{Deadline, Rank};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// The hub is asked who is absent this long before the deadline, or a quarter of it.
const QUESTION: Duration = Duration::from_millis(500);
/// How long a connection that ends still sends what it has queued.
const LINGER: Duration = Duration::from_secs(1);
/// Longest sleep of the thread.
const TICK: Duration = Duration::from_secs(1);

/// What is known about an exchange that a thread waits for.
#[derive(Debug)]
pub(super) enum Waiting {
    /// Not complete; who was absent when the hub was last asked.
    Pending(Absentees),
    /// Complete.
    Outcome(Vec<u8>),
    /// A member had left.
    Left(Rank),
    /// A turn, which nobody waits for in a call.
    Turn,
}

/// What callers and the thread change under the lock.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Frames to the hub.
    pub(super) outgoing: SendQueue,
    /// Exchanges begun, by context.
    pub(super) sequences: HashMap<u64, u64>,
    /// Exchanges that a thread waits for.
    pub(super) waiting: HashMap<(u64, u64), Waiting>,
    /// Contexts whose turn has come, in the order in which the hub saw all their members ask.
    pub(super) turns: VecDeque<u64>,
    /// The first cause; never changes once set.
    pub(super) cause: Option<Arc<Cause>>,
    /// This rank has said goodbye.
    pub(super) goodbye: bool,
    /// All have said goodbye.
    pub(super) closed: bool,
    /// The thread should end.
    pub(super) stopping: bool,
}

impl State {
    /// Whether exchanges can go on.
    pub(super) fn usable(&self) -> Result<(), BootstrapError> {
        match &self.cause {
            Some(cause) => Err(BootstrapError::Aborted { cause: Arc::clone(cause) }),
            None if self.closed || self.stopping => Err(BootstrapError::Closed),
            None => Ok(()),
        }
    }

    pub(super) fn frame(&mut self, kind: Kind, payload: Vec<u8>) {
        self.outgoing.frame(Header::plain(kind, payload.len() as u64), payload);
    }
}

/// What callers and the thread share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rank: Rank,
    pub(super) size: u32,
    /// Stored with release after `state.cause` is set, loaded with acquire by [`Shared::is_aborted`].
    aborted: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
    alarm: Alarm,
}

/// Who else is told of the cause.
#[derive(Default)]
pub(super) struct Alarm(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for Alarm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Alarm({})", if self.0.get().is_some() { "set" } else { "unset" })
    }
}

impl Shared {
    pub(super) fn new(rank: Rank, size: u32, waker: Waker) -> Self {
        let aborted = AtomicBool::new(false);
        let (state, changed, alarm) = (Mutex::default(), Condvar::new(), Alarm::default());
        Self { rank, size, aborted, state, changed, waker, alarm }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, no longer than `limit`.
    pub(super) fn sleep<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Tells the thread that there is something to send or that it should end.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Keeps `cause` unless there is one; gives the one that is kept.
    pub(super) fn adopt(&self, state: &mut State, cause: Cause) -> Arc<Cause> {
        let kept = Arc::clone(state.cause.get_or_insert_with(|| Arc::new(cause)));
        self.aborted.store(true, Ordering::Release);
        self.changed.notify_all();
        if let Some(alarm) = self.alarm.0.get() {
            alarm();
        }
        kept
    }

    /// Calls `alarm` whenever a cause is adopted, and now when one was before; the first one that is given stays.
    pub(super) fn on_abort(&self, alarm: Box<dyn Fn() + Send + Sync>) {
        let alarm = self.alarm.0.get_or_init(|| alarm);
        if self.is_aborted() {
            alarm();
        }
    }

    /// The thread: moves frames until the connection ends; `hub` is the cause when it ends without a goodbye.
    pub(super) fn run(&self, stream: Socket, woken: Woken, hub: Cause) {
        let mut reader = FrameReader::default();
        let mut linger = None;
        loop {
            let (sending, stopping) = {
                let mut state = self.lock();
                if state.outgoing.flush(&stream).is_err() {
                    // The next read tells what happened.
                    state.outgoing = SendQueue::default();
                }
                (!state.outgoing.is_empty(), state.stopping)
            };
            if stopping {
                let limit = *linger.get_or_insert_with(|| Deadline::after(LINGER));
                if !sending || limit.expired() {
                    return;
                }
            }
            wait(&stream, &woken, sending, if stopping { LINGER / 50 } else { TICK });
            woken.drain();
            if !self.read(&mut reader, &stream, &hub) {
                return;
            }
        }
    }

    /// Takes what has arrived; `false` once the connection has ended.
    fn read(&self, reader: &mut FrameReader, stream: &Socket, hub: &Cause) -> bool {
        loop {
            match reader.next(stream) {
                Received::Frame(header, payload) => self.receive(header, payload),
                Received::Blocked => return true,
                Received::Ended => {
                    let mut state = self.lock();
                    if !state.closed {
                        self.adopt(&mut state, hub.clone());
                    }
                    return false;
                }
                Received::Malformed(reason) => {
                    let message = format!("sent a malformed frame: {reason}");
                    self.adopt(&mut self.lock(), Cause { message, ..hub.clone() });
                    return false;
                }
            }
        }
    }

    fn receive(&self, header: Header, payload: Vec<u8>) {
        let mut state = self.lock();
        let key = (header.context, header.sequence);
        let expected = state.waiting.get_mut(&key);
        match (header.kind, expected) {
            (Kind::Outcome, Some(Waiting::Turn)) => {
                state.waiting.remove(&key);
                state.turns.push_back(header.context);
            }
            (Kind::Left, Some(Waiting::Turn)) => {
                log::warn!("rank {} has left, so a transfer that waits for it will not start", header.rank);
            }
            (Kind::Outcome, Some(waiting)) => *waiting = Waiting::Outcome(payload),
            (Kind::Left, Some(waiting)) => *waiting = Waiting::Left(header.rank),
            (Kind::Absent, Some(Waiting::Pending(absent))) => {
                *absent = Absentees::decode(&payload).unwrap_or_default();
            }
            (Kind::Abort, _) => {
                if let Some(cause) = Cause::decode(&payload) {
                    self.adopt(&mut state, cause);
                }
            }
            (Kind::Closed, _) => state.closed = true,
            // The caller's deadline has passed.
            (Kind::Outcome | Kind::Left | Kind::Absent, _) => {}
            (kind, _) => log::warn!("ignored a frame of kind {kind:?}, which the hub never sends"),
        }
        self.changed.notify_all();
    }
}

fn wait(stream: &Socket, woken: &Woken, sending: bool, limit: Duration) {
    let interest = if sending { PollFlags::POLLIN | PollFlags::POLLOUT } else { PollFlags::POLLIN };
    let mut polled = [PollFd::new(stream.as_fd(), interest), PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    if let Err(error) = poll(&mut polled, timeout)
        && error != nix::Error::EINTR
    {
        log::error!("poll failed on a control connection: {error}");
        thread::sleep(LINGER / 50);
    }
}

/// Asks the hub who is absent, once, shortly before a deadline.
#[derive(Debug)]
pub(super) struct Question {
    key: (u64, u64),
    deadline: Deadline,
    lead: Duration,
    asked: bool,
}

impl Question {
    pub(super) fn new(key: (u64, u64), deadline: Deadline) -> Self {
        Self { key, deadline, lead: QUESTION.min(deadline.limit() / 4), asked: false }
    }

    /// How long the caller may sleep.
    pub(super) fn pause(&self) -> Duration {
        let remaining = self.deadline.remaining();
        if self.asked { remaining } else { remaining.saturating_sub(self.lead) }
    }

    /// Asks if it is time.
    pub(super) fn ask(&mut self, shared: &Shared, state: &mut State) {
        if !self.asked && self.deadline.remaining() <= self.lead {
            self.asked = true;
            let (context, sequence) = self.key;
            let header = Header { kind: Kind::Query, rank: Rank(0), context, sequence, length: 0 };
            state.outgoing.frame(header, Vec::new());
            shared.wake();
        }
    }
}
