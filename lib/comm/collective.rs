//! Collectives on device memory. In: a device, buffers, a stream. Out: channels; calls on a channel of the communicator's own.
//! Guarantee: as [`Channel`]'s.

use super::{CommError, Communicator};
use crate::base::Deadline;
use crate::collective::ReduceOperation;
use crate::collective::device::{Channel, ChannelOptions, Operand};
use crate::layout::Dtype;
use crate::memory::Buffer;
use crate::memory::device::{Device, Stream};
use std::sync::PoisonError;

impl Communicator {
    /// Makes a channel for collectives on `device`, this rank's; collective over the communicator. Each stream takes one of
    /// its own, and so does each graph that is captured.
    pub fn channel(&self, device: &Device, options: &ChannelOptions, deadline: Deadline) -> Result<Channel, CommError> {
        Ok(Channel::new(&self.group, device, options, deadline)?)
    }

    /// Reduces `buffer` over all ranks in place, on a channel of the communicator's own, which the first call makes: all
    /// ranks must come to that one, and its stream is the channel's.
    ///
    /// # Safety
    /// As [`Channel::all_reduce`].
    pub unsafe fn all_reduce(
        &self,
        stream: &Stream,
        buffer: &Buffer,
        dtype: Dtype,
        operation: ReduceOperation,
    ) -> Result<(), CommError> {
        let operand = Operand::from(buffer);
        let elements = (buffer.bytes() / dtype.bytes(), dtype);
        // SAFETY: the caller's promise.
        self.on_channel(stream, |channel| unsafe { channel.all_reduce(stream, operand, operand, elements, operation) })
    }

    /// Fills `output` with the inputs of all ranks in their order; otherwise as [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As [`Channel::all_reduce`].
    pub unsafe fn all_gather(
        &self,
        stream: &Stream,
        input: &Buffer,
        output: &Buffer,
        dtype: Dtype,
    ) -> Result<(), CommError> {
        let elements = (input.bytes() / dtype.bytes(), dtype);
        self.on_channel(stream, |channel| {
            // SAFETY: the caller's promise.
            unsafe { channel.all_gather(stream, input.into(), output.into(), elements) }
        })
    }

    /// Fills `output` with this rank's part of the reduction of all inputs; otherwise as [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As [`Channel::all_reduce`].
    pub unsafe fn reduce_scatter(
        &self,
        stream: &Stream,
        input: &Buffer,
        output: &Buffer,
        dtype: Dtype,
        operation: ReduceOperation,
    ) -> Result<(), CommError> {
        let elements = (output.bytes() / dtype.bytes(), dtype);
        self.on_channel(stream, |channel| {
            // SAFETY: the caller's promise.
            unsafe { channel.reduce_scatter(stream, input.into(), output.into(), elements, operation) }
        })
    }

    /// Fills `buffer` with that of rank `root`; otherwise as [`all_reduce`](Self::all_reduce).
    ///
    /// # Safety
    /// As [`Channel::all_reduce`].
    pub unsafe fn broadcast(&self, stream: &Stream, buffer: &Buffer, root: u32) -> Result<(), CommError> {
        let (operand, elements) = (Operand::from(buffer), (buffer.bytes(), Dtype::U8));
        // SAFETY: the caller's promise.
        self.on_channel(stream, |channel| unsafe { channel.broadcast(stream, operand, operand, elements, root) })
    }

    /// Whether collectives on the communicator's own channel went well, as far as they have run.
    pub fn check_collectives(&self) -> Result<(), CommError> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(channel.as_ref().map_or(Ok(()), Channel::check)?)
    }

    fn on_channel(
        &self,
        stream: &Stream,
        call: impl FnOnce(&mut Channel) -> Result<(), crate::collective::device::CollectiveError>,
    ) -> Result<(), CommError> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = match &mut *channel {
            Some(channel) => channel,
            none => {
                none.insert(self.channel(stream.device(), &ChannelOptions::default(), Self::default_deadline()?)?)
            }
        };
        Ok(call(channel)?)
    }
}
