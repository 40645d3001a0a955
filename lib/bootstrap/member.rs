//! One rank's end of its control connection.
//!
//! In: an authenticated stream to the hub, calls of any threads of this process. Out: outcomes of exchanges, the first
//! abort. Guarantee: every call ends by its deadline; once a cause is known it stays, and all calls end with it at
//! once; looking whether there is one is a single atomic load.

use super::cause::Cause;
use super::error::{Absentees, BootstrapError};
use super::gathering::{decode_outcome, encode_members};
use super::member_thread::{Question, Shared, State, Waiting};
use super::wire::{Header, Kind, waker};
use super::{CLOSING, START};
use crate::base::{Deadline, Rank};
use socket2::Socket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long the hub may take to decide on an abort.
const VERDICT: Duration = Duration::from_secs(2);

/// A rank's end of its connection; ends without a goodbye when dropped.
#[derive(Debug)]
pub(super) struct Member {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Which exchange, in which role.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meeting<'a> {
    /// Separates independent sequences of exchanges.
    pub(super) context: u64,
    /// World ranks, in order.
    pub(super) members: &'a [Rank],
    /// What it is called in errors.
    pub(super) phase: &'static str,
    /// By when.
    pub(super) deadline: Deadline,
}

impl Member {
    /// Starts the thread of a connection to the hub; `hub` is the cause should the hub vanish.
    pub(super) fn start(rank: Rank, size: u32, stream: Socket, hub: Cause) -> Result<Self, BootstrapError> {
        const NAME: &str = "crossmesh-control";
        let (waker, woken) = waker().map_err(|source| BootstrapError::Socket {
            operation: "making a wake-up pipe",
            address: None,
            source,
        })?;
        let shared = Arc::new(Shared::new(rank, size, waker));
        let inside = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(NAME.into())
            .spawn(move || inside.run(stream, woken, hub))
            .map_err(|source| BootstrapError::Thread { name: NAME, source })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn rank(&self) -> Rank {
        self.shared.rank
    }

    pub(super) fn size(&self) -> u32 {
        self.shared.size
    }

    /// Meets all ranks for the first time; gives every rank's host. An absent rank becomes the cause of an abort, so
    /// that all who were present hold the same.
    pub(super) fn meet(&self, host: &str, deadline: Deadline) -> Result<Vec<String>, BootstrapError> {
        let host: String = host.chars().take(255).collect();
        self.shared.lock().frame(Kind::Hello, host.clone().into_bytes());
        let everyone: Vec<Rank> = (0..self.size()).map(Rank).collect();
        let meeting = Meeting { context: START, members: &everyone, phase: "start", deadline };
        let met = self.gather(meeting, host.as_bytes());
        if let Err(BootstrapError::Absent { absent, limit, .. }) = &met {
            let rank = absent.named.first().copied().unwrap_or_default();
            let message = format!("did not arrive at the start within {limit:?}; absent: {absent}");
            self.abort(Cause { rank, host: String::new(), phase: "start".into(), message });
        }
        Ok(met?.into_iter().map(|host| String::from_utf8_lossy(&host).into_owned()).collect())
    }

    /// Gives `outgoing[i]` to `members[i]`; returns what each gave to this rank.
    pub(super) fn exchange(&self, meeting: Meeting<'_>, outgoing: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        if outgoing.len() != meeting.members.len() {
            let reason = format!("{} byte strings for {} members", outgoing.len(), meeting.members.len());
            return Err(BootstrapError::Members { reason });
        }
        let mut body: Vec<u8> = outgoing.iter().flat_map(|string| (string.len() as u64).to_le_bytes()).collect();
        outgoing.iter().for_each(|string| body.extend_from_slice(string));
        self.contribute(Kind::Exchange, meeting, &body)
    }

    /// Gives `mine` to every member; returns what each gave.
    pub(super) fn gather(&self, meeting: Meeting<'_>, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.contribute(Kind::Gather, meeting, mine)
    }

    fn contribute(&self, kind: Kind, meeting: Meeting<'_>, body: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.check(meeting.members)?;
        let mut payload = encode_members(meeting.members);
        payload.extend_from_slice(body);
        let mut state = self.shared.lock();
        let key = self.send(&mut state, kind, meeting.context, payload, Waiting::Pending(Absentees::default()))?;
        let outcome = self.await_outcome(state, key, meeting)?;
        decode_outcome(&outcome, meeting.members.len()).ok_or(BootstrapError::Unreadable {
            from: "the hub of the control connections",
            reason: "lengths contradict the bytes that came".into(),
        })
    }

    /// Sends a contribution to the next exchange of a context; its key.
    fn send(
        &self,
        state: &mut State,
        kind: Kind,
        context: u64,
        payload: Vec<u8>,
        waiting: Waiting,
    ) -> Result<(u64, u64), BootstrapError> {
        state.usable()?;
        let sequence = state.sequences.entry(context).or_default();
        let key = (context, *sequence);
        *sequence += 1;
        state.waiting.insert(key, waiting);
        let length = payload.len() as u64;
        state.outgoing.frame(Header { kind, rank: Rank(0), context: key.0, sequence: key.1, length }, payload);
        self.shared.wake();
        Ok(key)
    }

    /// Asks for the turn of `context`, which comes when all members have asked.
    pub(super) fn ask_turn(&self, context: u64, members: &[Rank]) -> Result<(), BootstrapError> {
        self.check(members)?;
        let payload = encode_members(members);
        self.send(&mut self.shared.lock(), Kind::Gather, context, payload, Waiting::Turn)?;
        Ok(())
    }

    /// The next context whose turn has come.
    pub(super) fn next_turn(&self) -> Option<u64> {
        self.shared.lock().turns.pop_front()
    }

    fn check(&self, members: &[Rank]) -> Result<(), BootstrapError> {
        let refused = |reason: String| Err(BootstrapError::Members { reason });
        if !members.contains(&self.rank()) {
            return refused(format!("rank {} is no member of it", self.rank()));
        }
        if let Some(rank) = members.iter().find(|rank| rank.0 >= self.size()) {
            return refused(format!("member {rank} does not exist among {} ranks", self.size()));
        }
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => refused(format!("member {} is listed twice", pair[0])),
            None => Ok(()),
        }
    }

    fn await_outcome(
        &self,
        mut state: MutexGuard<'_, State>,
        key: (u64, u64),
        meeting: Meeting<'_>,
    ) -> Result<Vec<u8>, BootstrapError> {
        let (phase, deadline) = (meeting.phase, meeting.deadline);
        let mut question = Question::new(key, deadline);
        loop {
            let expired = deadline.expired();
            match state.waiting.remove(&key) {
                Some(Waiting::Outcome(bytes)) => return Ok(bytes),
                Some(Waiting::Left(rank)) => return Err(BootstrapError::Left { rank, phase }),
                Some(Waiting::Pending(absent)) => {
                    state.usable()?;
                    if expired {
                        return Err(late(absent, phase, deadline));
                    }
                    state.waiting.insert(key, Waiting::Pending(absent));
                }
                // Only the waiting thread removes its entry, and turns have contexts of their own.
                Some(Waiting::Turn) | None => return Err(BootstrapError::Closed),
            }
            state = self.shared.sleep(state, question.pause());
            question.ask(&self.shared, &mut state);
        }
    }

    /// Whether there is a cause to end.
    pub(super) fn is_aborted(&self) -> bool {
        self.shared.is_aborted()
    }

    /// Calls `alarm` when there is one.
    pub(super) fn on_abort(&self, alarm: Box<dyn Fn() + Send + Sync>) {
        self.shared.on_abort(alarm);
    }

    /// The cause that the hub decided on.
    pub(super) fn cause(&self) -> Option<Arc<Cause>> {
        self.shared.lock().cause.clone()
    }

    /// Proposes `cause` to the hub; gives the one that it decided on.
    pub(super) fn abort(&self, cause: Cause) -> Arc<Cause> {
        let mut state = self.shared.lock();
        if state.cause.is_none() && !state.closed {
            state.frame(Kind::Abort, cause.encode());
            self.shared.wake();
        }
        let verdict = Deadline::after(VERDICT);
        while state.cause.is_none() && !state.closed && !verdict.expired() {
            state = self.shared.sleep(state, verdict.remaining());
        }
        self.shared.adopt(&mut state, cause)
    }

    /// Waits up to `limit` for the hub's verdict; without one, aborts with `local`.
    pub(super) fn settle(&self, local: Cause, limit: Duration) -> Arc<Cause> {
        let deadline = Deadline::after(limit);
        let mut state = self.shared.lock();
        loop {
            if let Some(cause) = &state.cause {
                return Arc::clone(cause);
            }
            if deadline.expired() || state.closed {
                break;
            }
            state = self.shared.sleep(state, deadline.remaining());
        }
        drop(state);
        self.abort(local)
    }

    /// Says goodbye and waits until all have; ends the connection in any case.
    pub(super) fn close(&self, deadline: Deadline) -> Result<(), BootstrapError> {
        let closed = self.await_goodbyes(deadline);
        self.stop();
        closed
    }

    fn await_goodbyes(&self, deadline: Deadline) -> Result<(), BootstrapError> {
        const KEY: (u64, u64) = (CLOSING, 0);
        let mut state = self.shared.lock();
        if state.closed {
            return Ok(());
        }
        state.usable()?;
        self.say_goodbye(&mut state);
        state.waiting.insert(KEY, Waiting::Pending(Absentees::default()));
        let mut question = Question::new(KEY, deadline);
        loop {
            if state.closed {
                return Ok(());
            }
            state.usable()?;
            if deadline.expired() {
                let absent = match state.waiting.remove(&KEY) {
                    Some(Waiting::Pending(absent)) => absent,
                    _ => Absentees::default(),
                };
                return Err(late(absent, "close", deadline));
            }
            state = self.shared.sleep(state, question.pause());
            question.ask(&self.shared, &mut state);
        }
    }

    /// Says goodbye without waiting for the others.
    pub(super) fn leave(&self) {
        self.say_goodbye(&mut self.shared.lock());
        self.stop();
    }

    fn say_goodbye(&self, state: &mut State) {
        if !std::mem::replace(&mut state.goodbye, true) {
            state.frame(Kind::Goodbye, Vec::new());
            self.shared.wake();
        }
    }

    /// Ends the thread and with it the connection.
    fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.shared.lock().stopping = true;
        self.shared.wake();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread of a control connection failed; please report this with its output");
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop();
    }
}

fn late(absent: Absentees, phase: &'static str, deadline: Deadline) -> BootstrapError {
    let limit = deadline.limit();
    match absent.total {
        0 => BootstrapError::Timeout { phase, limit },
        _ => BootstrapError::Absent { absent, phase, limit },
    }
}
