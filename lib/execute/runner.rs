//! What runs a transfer. In: the hosts' part, what GPUs pass on, or GPUs alone. Out: starts and their ends. Guarantee: where
//! GPUs pass on what hosts bring, a start has ended when both have; an error leaves no stream waiting.

use super::gpu::{DeviceTransfer, Stages, settle};
use super::prepare::Reservation;
use super::{ExecuteError, Group};
use crate::base::Deadline;
use crate::memory::device::{Stream, StreamGate};
use std::sync::Arc;
use std::time::Duration;

/// How long launches may take to end once nothing keeps them any more.
const END: Duration = Duration::from_secs(10);

/// Who moves bytes.
pub(super) enum Runner {
    /// GPUs, straight to each other.
    Device(Box<DeviceTransfer>),
    /// Threads of the hosts, over memory of the hosts; tensors on GPUs go through it.
    Host(HostRunner),
}

/// The hosts, and what GPUs pass on of what they bring.
pub(super) struct HostRunner {
    pub(super) reservation: Reservation,
    pub(super) passing: Option<(Arc<Stages>, Arc<StreamGate>)>,
}

impl Runner {
    /// Begins, behind what `stream` holds if one is given; returns at once.
    pub(super) fn start(&self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        match self {
            Self::Device(device) => device.start(stream),
            Self::Host(host) => host.start(stream),
        }
    }

    /// Returns once the start under way has ended here.
    pub(super) fn wait(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        match self {
            Self::Device(device) => device.wait(deadline),
            Self::Host(host) => host.group().engine.wait(host.reservation.number, deadline),
        }
    }

    /// Makes progress; whether the start under way has ended here.
    pub(super) fn test(&self) -> Result<bool, ExecuteError> {
        match self {
            Self::Device(device) => device.test(),
            Self::Host(host) => host.group().engine.test(host.reservation.number),
        }
    }

    /// Whether a start is under way.
    pub(super) fn is_active(&self) -> bool {
        match self {
            Self::Device(_) => false,
            Self::Host(host) => {
                let mut engine = host.group().engine.lock();
                engine.execution(host.reservation.number).is_some_and(|execution| execution.is_active())
            }
        }
    }

    /// Waits until a start that nobody waits for uses no memory any more.
    pub(super) fn end(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        match self {
            Self::Device(device) => device.end(deadline),
            Self::Host(host) => host.end(deadline),
        }
    }

    /// Steps done and in all; what GPUs do by themselves is one.
    pub(super) fn progress(&self, started: bool) -> (u64, u64) {
        match self {
            Self::Device(device) => (u64::from(!started || device.test().unwrap_or(false)), 1),
            Self::Host(host) => {
                let mut engine = host.group().engine.lock();
                engine.execution(host.reservation.number).map_or((0, 0), |execution| execution.done())
            }
        }
    }

    /// Finite values that became infinite here since the last start; GPUs cast nothing.
    pub(super) fn saturated(&self) -> u64 {
        match self {
            Self::Device(_) => 0,
            Self::Host(host) => {
                let mut engine = host.group().engine.lock();
                engine.execution(host.reservation.number).map_or(0, |execution| execution.saturated())
            }
        }
    }

    /// Keeps what peers or launches may still use for the life of the process.
    pub(super) fn keep_memory(&self) {
        if let Self::Host(HostRunner { reservation, passing }) = self {
            std::mem::forget((reservation.segment.clone(), reservation.slots.clone(), passing.clone()));
        }
    }
}

impl HostRunner {
    fn group(&self) -> &Group {
        &self.reservation.group
    }

    fn start(&self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        self.group().engine.start(self.reservation.number, stream)?;
        let (Some((stages, gate)), Some(stream)) = (&self.passing, stream) else { return Ok(()) };
        // The hosts' part is under way now, and after an error nobody would wait for it.
        pass_on(stages, gate, stream).map_err(|error| settle(self.group(), &error))
    }

    fn end(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        let (engine, number) = (&self.group().engine, self.reservation.number);
        let ended = engine.wait(number, deadline);
        if let (Err(_), Some((stages, _))) = (&ended, &self.passing) {
            engine.give_up(number);
            stages.end(Deadline::after(END))?;
        }
        ended
    }
}

impl Drop for HostRunner {
    fn drop(&mut self) {
        // A stream that still waits for a word would wait for freed memory; it is about to pass.
        if let Some((stages, gate)) = self.passing.take()
            && let Err(error) = stages.pass_mark(Deadline::after(END))
        {
            log::error!("a stream has not passed the end of a transfer that is dropped: {error}; its words are kept");
            std::mem::forget((stages, gate));
        }
    }
}

/// Puts the launches of a start on a stream, each behind the word of its step, and behind them the word of the end.
fn pass_on(stages: &Stages, gate: &StreamGate, stream: &Stream) -> Result<(), ExecuteError> {
    for (stage, table) in stages.launches() {
        gate.follow(stream, Some(stage))?;
        table.run(stream, true)?;
    }
    gate.follow(stream, None)?;
    stages.mark(stream)
}
