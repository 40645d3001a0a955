//! What runs a transfer. In: the hosts' part, the GPUs' part, or both. Out: starts and their ends. Guarantee: where there are
//! both, the GPUs pass on what the hosts brought, behind them on one stream; a start has ended when both parts have.

use super::ExecuteError;
use super::gpu::DeviceTransfer;
use super::prepare::Reservation;
use crate::base::Deadline;
use crate::memory::device::Stream;

/// The parts of a transfer.
pub(super) struct Runner {
    /// Threads of the hosts, over memory of the hosts; tensors on GPUs go through it.
    pub(super) host: Option<Reservation>,
    /// GPUs, straight to each other.
    pub(super) device: Option<Box<DeviceTransfer>>,
}

impl Runner {
    /// Begins, behind what `stream` holds if one is given; returns at once.
    pub(super) fn start(&self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        match (&self.host, &self.device) {
            (Some(host), Some(device)) => {
                let stream = stream.or_else(|| device.own_stream());
                host.group.engine.start(host.number, stream)?;
                // The hosts' part is under way and nobody would wait for it.
                device.start(stream).map_err(|error| device.fail(error))
            }
            (Some(host), None) => host.group.engine.start(host.number, stream),
            (None, Some(device)) => device.start(stream),
            (None, None) => Ok(()),
        }
    }

    /// GPUs that order starts among themselves, so that starts follow each other without a wait and can be captured.
    pub(super) fn devices_alone(&self) -> Option<&DeviceTransfer> {
        self.device.as_deref().filter(|_| self.host.is_none())
    }

    /// Returns once the start under way has ended here.
    pub(super) fn wait(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        self.host.as_ref().map_or(Ok(()), |host| host.group.engine.wait(host.number, deadline))?;
        self.device.as_ref().map_or(Ok(()), |device| device.wait(deadline))
    }

    /// Makes progress; whether the start under way has ended here.
    pub(super) fn test(&self) -> Result<bool, ExecuteError> {
        let by_host = self.host.as_ref().map_or(Ok(true), |host| host.group.engine.test(host.number))?;
        Ok(by_host && self.device.as_ref().map_or(Ok(true), |device| device.test())?)
    }

    /// Waits until a start that nobody waits for uses no memory any more.
    pub(super) fn end(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        let by_host = self.host.as_ref().map_or(Ok(()), |host| host.group.engine.wait(host.number, deadline));
        let by_device = self.device.as_ref().map_or(Ok(()), |device| device.end(deadline));
        by_host.and(by_device)
    }

    /// Steps done and in all; what GPUs do is one.
    pub(super) fn progress(&self, started: bool) -> (u64, u64) {
        let of_host = self.host.as_ref().map_or((0, 0), |host| {
            let mut engine = host.group.engine.lock();
            engine.execution(host.number).map_or((0, 0), |execution| execution.done())
        });
        let of_device = self.device.as_ref().map_or((0, 0), |device| {
            let ended = !started || (of_host.0 == of_host.1 && device.test().unwrap_or(false));
            (u64::from(ended), 1)
        });
        (of_host.0 + of_device.0, of_host.1 + of_device.1)
    }

    /// Finite values that became infinite here since the last start; GPUs cast nothing.
    pub(super) fn saturated(&self) -> u64 {
        self.host.as_ref().map_or(0, |host| {
            let mut engine = host.group.engine.lock();
            engine.execution(host.number).map_or(0, |execution| execution.saturated())
        })
    }

    /// Keeps staging for the life of the process: peers may still read or write it.
    pub(super) fn keep_memory(&self) {
        if let Some(host) = &self.host {
            std::mem::forget((host.segment.clone(), host.slots.clone()));
        }
    }
}
