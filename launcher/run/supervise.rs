//! What the launcher does about what happens: the state of a job as a pure machine.
//!
//! In: events (a rank joined, ended, was lost; a signal; time passed), each with its time since the launcher began.
//! Out: actions for all agents, and in the end a [`Record`] of what happened. Guarantee: no clock, no I/O; whatever
//! happens, the machine is over after a bounded time from the first failure, and without failure never ends a rank.
//!
//! ```text
//! Gathering ──all joined──► Running ──first failure, INT, TERM──► Grace ──► Terminating ──► Killing ──► Over
//!     └── absent, interrupted, starter ended ──► Over     └── time limit ────────┘
//! ```

use super::protocol::Ending;
use nix::libc::{SIGABRT, SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use std::time::Duration;

/// Time between the end request and the kill.
pub(crate) const KILL_DELAY: Duration = Duration::from_secs(2);
/// Time that a killed rank's agent has to say so.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// For all ranks to join.
    pub(crate) init: Duration,
    /// For the others to end by themselves after the first failure.
    pub(crate) grace: Duration,
    /// For the whole job.
    pub(crate) timeout: Option<Duration>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// The agent of this rank proved itself.
    Joined(u32),
    /// The program of this rank ended, at this time.
    Ended { rank: u32, ending: Ending, at: Duration },
    /// This rank will print nothing more.
    Drained(u32),
    /// The connection of this rank's agent is gone.
    Disconnected(u32),
    /// The starter ended, in words.
    StarterEnded { how: String, code: u8 },
    /// The launcher received a signal.
    Signal(i32),
}

/// What every agent is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Start,
    Forward(i32),
    Terminate,
    Kill,
}

/// Why a job did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A rank failed; which one was first, the ends tell.
    RankFailed,
    /// The time limit passed while these ranks had not ended.
    TimedOut { running: Vec<u32> },
    /// The launcher was asked to stop.
    Interrupted(i32),
    /// These ranks did not join in time.
    Absent(Vec<u32>),
    /// The starter ended while these ranks had not joined, or had not ended.
    StarterEnded { how: String, code: u8, ranks: Vec<u32>, started: bool },
}

/// End of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) ending: Ending,
    pub(crate) at: Duration,
    /// Whether it was asked to end, or killed, before.
    pub(crate) by_launcher: bool,
}

impl End {
    /// Whether this end makes a job fail.
    pub(crate) fn is_failure(&self) -> bool {
        self.ending != Ending::Exited(0) && !self.by_launcher
    }
}

/// Whether a rank that ended like this was struck, rather than giving up because of what another did, as a rank does
/// that exits with an error, aborts itself, or writes to a peer that is gone.
fn struck(ending: Ending, forwarded: &[i32]) -> bool {
    matches!(ending, Ending::Signaled(signal) if signal != SIGABRT && signal != SIGPIPE && !forwarded.contains(&signal))
}

/// All that is known at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// `None` when all is well.
    pub(crate) cause: Option<Cause>,
    /// When the programs were started.
    pub(crate) started: Option<Duration>,
    /// One entry a rank; `None` when it never ran.
    pub(crate) ends: Vec<Option<End>>,
    /// How the starter ended when it did so before the job was over.
    pub(crate) starter: Option<String>,
    /// The signals that were passed on to the ranks.
    pub(crate) forwarded: Vec<i32>,
}

impl Record {
    /// The rank whose failure is the cause of the others': the first by the time of its end, but one that a signal
    /// struck goes before those that gave up. On a busy host its end may be noticed after that of a rank that missed it.
    pub(crate) fn first_failure(&self) -> Option<(u32, End)> {
        self.failures().min_by_key(|&(rank, end)| (!struck(end.ending, &self.forwarded), end.at, rank))
    }

    /// When the first rank failed.
    pub(crate) fn failed_at(&self) -> Option<Duration> {
        self.failures().map(|(_, end)| end.at).min()
    }

    /// Every rank that failed; none that the launcher ended after the grace time.
    fn failures(&self) -> impl Iterator<Item = (u32, End)> {
        let ends = (0u32..).zip(&self.ends).filter_map(|(rank, end)| Some((rank, (*end)?)));
        ends.filter(|(_, end)| end.is_failure())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Gathering,
    Running,
    Grace { until: Duration },
    Terminating { until: Duration },
    Killing { until: Duration },
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct RankState {
    joined: bool,
    /// Ended and drained, or lost.
    settled: bool,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Supervisor {
    limits: Limits,
    phase: Phase,
    ranks: Vec<RankState>,
    unsettled: usize,
    unjoined: usize,
    stop_requests: u32,
    record: Record,
    actions: Vec<Action>,
}

impl Supervisor {
    /// A job of `size` ranks of which none is there yet.
    pub(crate) fn new(size: u32, limits: Limits) -> Self {
        let count = size as usize;
        Self {
            limits,
            phase: Phase::Gathering,
            ranks: vec![RankState::default(); count],
            unsettled: count,
            unjoined: count,
            stop_requests: 0,
            record: Record { ends: vec![None; count], ..Record::default() },
            actions: Vec::new(),
        }
    }

    /// Whether there is nothing left to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether the job is being ended, so that noise of the starter is to be expected.
    pub(crate) fn is_ending(&self) -> bool {
        !matches!(self.phase, Phase::Gathering | Phase::Running)
    }

    /// What happened so far.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// When [`Self::tick`] will have something to do.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Gathering => Some(self.limits.init),
            Phase::Running => None,
            Phase::Grace { until } | Phase::Terminating { until } | Phase::Killing { until } => Some(until),
            Phase::Over => return None,
        };
        let limit = self.limits.timeout.filter(|_| self.may_time_out());
        phase.into_iter().chain(limit).min()
    }

    /// Takes `event`, which happened by `now`.
    pub(crate) fn handle(&mut self, event: Event, now: Duration) -> Vec<Action> {
        match event {
            Event::Joined(rank) => self.joined(rank, now),
            Event::Ended { rank, ending, at } => self.ended(rank, ending, at.min(now), now),
            Event::Drained(rank) => self.settle(rank),
            Event::Disconnected(rank) => self.disconnected(rank, now),
            Event::StarterEnded { how, code } => self.starter_ended(how, code, now),
            Event::Signal(signal) => self.signal(signal, now),
        }
        self.tick(now)
    }

    /// Does what is due at `now`.
    pub(crate) fn tick(&mut self, now: Duration) -> Vec<Action> {
        if self.limits.timeout.is_some_and(|limit| now >= limit) && self.may_time_out() {
            let running = self.unsettled_ranks();
            self.record.cause.get_or_insert(Cause::TimedOut { running });
            if self.phase == Phase::Gathering { self.phase = Phase::Over } else { self.terminate(now) }
        }
        match self.phase {
            Phase::Gathering if now >= self.limits.init => {
                let absent = (0u32..).zip(&self.ranks).filter(|(_, state)| !state.joined).map(|(rank, _)| rank);
                self.record.cause = Some(Cause::Absent(absent.collect()));
                self.phase = Phase::Over;
            }
            Phase::Grace { until } if now >= until => self.terminate(now),
            Phase::Terminating { until } if now >= until => self.kill(now),
            Phase::Killing { until } if now >= until => self.phase = Phase::Over,
            _ => {}
        }
        std::mem::take(&mut self.actions)
    }

    fn may_time_out(&self) -> bool {
        matches!(self.phase, Phase::Gathering | Phase::Running | Phase::Grace { .. })
    }

    fn unsettled_ranks(&self) -> Vec<u32> {
        (0u32..).zip(&self.record.ends).filter(|(_, end)| end.is_none()).map(|(rank, _)| rank).collect()
    }

    fn joined(&mut self, rank: u32, now: Duration) {
        let state = &mut self.ranks[rank as usize];
        if !state.joined {
            state.joined = true;
            self.unjoined -= 1;
        }
        if self.unjoined == 0 && self.phase == Phase::Gathering {
            self.phase = Phase::Running;
            self.record.started = Some(now);
            self.actions.push(Action::Start);
        }
    }

    fn ended(&mut self, rank: u32, ending: Ending, at: Duration, now: Duration) {
        let by_launcher = matches!(self.phase, Phase::Terminating { .. } | Phase::Killing { .. });
        let end = End { ending, at, by_launcher };
        if self.record.ends[rank as usize].replace(end).is_none() && end.is_failure() {
            self.begin_grace(Cause::RankFailed, now);
        }
    }

    fn disconnected(&mut self, rank: u32, now: Duration) {
        if self.phase == Phase::Gathering {
            // It comes back, or the deadline or the starter's end will tell.
            let state = &mut self.ranks[rank as usize];
            self.unjoined += usize::from(std::mem::take(&mut state.joined));
            return;
        }
        if self.record.ends[rank as usize].is_none() {
            self.ended(rank, Ending::Lost, now, now);
        }
        self.settle(rank);
    }

    fn settle(&mut self, rank: u32) {
        let state = &mut self.ranks[rank as usize];
        if !std::mem::replace(&mut state.settled, true) {
            self.unsettled -= 1;
        }
        if self.unsettled == 0 {
            self.phase = Phase::Over;
        }
    }

    fn starter_ended(&mut self, how: String, code: u8, now: Duration) {
        if self.phase == Phase::Over {
            return;
        }
        self.record.starter.get_or_insert_with(|| how.clone());
        let started = self.phase != Phase::Gathering;
        let missing =
            |rank: &usize| if started { self.record.ends[*rank].is_none() } else { !self.ranks[*rank].joined };
        let ranks = (0..self.ranks.len()).filter(missing).map(|rank| rank as u32).collect();
        let cause = Cause::StarterEnded { how, code, ranks, started };
        if started {
            self.begin_grace(cause, now);
        } else {
            self.record.cause.get_or_insert(cause);
            self.phase = Phase::Over;
        }
    }

    fn signal(&mut self, signal: i32, now: Duration) {
        let stop = signal == SIGINT || signal == SIGTERM;
        match self.phase {
            Phase::Over => return,
            Phase::Gathering if stop || signal == SIGHUP => {
                self.record.cause.get_or_insert(Cause::Interrupted(signal));
                self.phase = Phase::Over;
                return;
            }
            Phase::Gathering => return,
            _ => {
                if !self.record.forwarded.contains(&signal) {
                    self.record.forwarded.push(signal);
                }
                self.actions.push(Action::Forward(signal));
            }
        }
        if stop {
            self.stop_requests += 1;
            if self.stop_requests >= 2 {
                self.kill(now);
            } else {
                self.begin_grace(Cause::Interrupted(signal), now);
            }
        }
    }

    /// The first cause stays the cause.
    fn begin_grace(&mut self, cause: Cause, now: Duration) {
        self.record.cause.get_or_insert(cause);
        if self.phase == Phase::Running {
            self.phase = Phase::Grace { until: now + self.limits.grace };
        }
    }

    fn terminate(&mut self, now: Duration) {
        self.actions.push(Action::Terminate);
        self.phase = Phase::Terminating { until: now + KILL_DELAY };
    }

    fn kill(&mut self, now: Duration) {
        if !matches!(self.phase, Phase::Killing { .. } | Phase::Over) {
            self.actions.push(Action::Kill);
            self.phase = Phase::Killing { until: now + ANSWER_LIMIT };
        }
    }
}

#[cfg(test)]
#[path = "supervise_tests.rs"]
mod tests;
