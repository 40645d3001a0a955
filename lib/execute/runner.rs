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
    /// GPUs, straight to each other. Behind a host the first runs what is there from the start, each other one a part of
    /// what comes.
    pub(super) devices: Vec<DeviceTransfer>,
}

impl Runner {
    /// Begins, behind what `stream` holds if one is given; returns at once.
    pub(super) fn start(&self, stream: Option<&Stream>) -> Result<(), ExecuteError> {
        let Some(host) = &self.host else { return self.devices.iter().try_for_each(|device| device.start(stream)) };
        // Ranks whose GPU passes nothing on have stages without a stream.
        let Some((first, own)) = self.devices.first().and_then(|first| Some((first, first.own_stream()?))) else {
            return host.group.engine.start(host.number, stream);
        };
        let stream = stream.unwrap_or(own);
        host.group.engine.start(host.number, Some(stream))?;
        // The hosts' part is under way now, and after an error nobody waits for it.
        self.pass_on(host, stream).map_err(|error| first.fail(error))
    }

    /// Lets GPUs pass on what there is and what comes, as it comes.
    fn pass_on(&self, host: &Reservation, stream: &Stream) -> Result<(), ExecuteError> {
        let engine = &host.group.engine;
        for (device, stage) in self.devices.iter().zip(0..) {
            engine.follow(host.number, stream, Some(stage))?;
            device.start(Some(stream))?;
        }
        engine.follow(host.number, stream, None)
    }

    /// GPUs that order starts among themselves, so that starts follow each other without a wait and can be captured.
    pub(super) fn devices_alone(&self) -> Option<&DeviceTransfer> {
        self.devices.first().filter(|_| self.host.is_none())
    }

    /// Returns once the start under way has ended here.
    pub(super) fn wait(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        let by_host = self.host.as_ref().map_or(Ok(()), |host| host.group.engine.wait(host.number, deadline));
        if by_host.is_err() {
            // After an abort kernels are told to end when they are asked about.
            self.devices.iter().for_each(|device| drop(device.test()));
        }
        by_host?;
        self.devices.iter().try_for_each(|device| device.wait(deadline))
    }

    /// Makes progress; whether the start under way has ended here.
    pub(super) fn test(&self) -> Result<bool, ExecuteError> {
        let by_host = self.host.as_ref().map_or(Ok(true), |host| host.group.engine.test(host.number))?;
        Ok(by_host && self.devices_are_done()?)
    }

    /// Waits until a start that nobody waits for uses no memory any more.
    pub(super) fn end(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        let by_host = self.host.as_ref().map_or(Ok(()), |host| host.group.engine.wait(host.number, deadline));
        // Each is told to end, whatever became of the others.
        self.devices.iter().fold(by_host, |result, device| result.and(device.end(deadline)))
    }

    /// Steps done and in all; what GPUs do is one.
    pub(super) fn progress(&self, started: bool) -> (u64, u64) {
        let of_host = self.host.as_ref().map_or((0, 0), |host| {
            let mut engine = host.group.engine.lock();
            engine.execution(host.number).map_or((0, 0), |execution| execution.done())
        });
        if self.devices.is_empty() {
            return of_host;
        }
        let ended = !started || (of_host.0 == of_host.1 && self.devices_are_done().unwrap_or(false));
        (of_host.0 + u64::from(ended), of_host.1 + 1)
    }

    fn devices_are_done(&self) -> Result<bool, ExecuteError> {
        self.devices.iter().try_fold(true, |done, device| Ok(done && device.test()?))
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
