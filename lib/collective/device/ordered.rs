//! Calls where no kernel may wait for another: processes that share a GPU, GPUs that do not reach each other well. In: a
//! call. Out: the same as elsewhere, later. Guarantee: ranks that make different calls all get an error
//! that names both; each part of the call is copied to staging, all hosts meet, a kernel
//! reads what all have staged; staging is written again when all have met once more.

use super::calls::Places;
use super::channel::Planned;
use super::verdict::mismatch;
use super::{Channel, CollectiveError};
use crate::base::{Deadline, Rank};
use crate::collective::call::{Call, Kind, difference};
use crate::execute::{Group, gather};
use crate::memory::device::Stream;
use crate::memory::device::collective::params::Header;

impl Channel {
    /// Runs the call to its end: the host waits for the stream.
    ///
    /// # Safety
    /// As [`Channel::all_reduce`].
    pub(super) unsafe fn run_ordered(
        &mut self,
        stream: &Stream,
        call: &Call,
        planned: &Planned,
        places: &Places,
    ) -> Result<(), CollectiveError> {
        let deadline = Deadline::after(self.settled.limit);
        let Some(group) = self.group.clone() else {
            let (kind, why) = (call.kind, "ranks of one process cannot meet on their hosts");
            return Err(CollectiveError::NotHere { kind, why });
        };
        self.agree(&group, call, planned, places, deadline)?;
        let mut first = 0;
        loop {
            let count = (call.count - first).min(planned.steps.elements);
            // SAFETY: the caller's promise; the part is inside the operands.
            unsafe { self.stage(stream, call, places, (first, count))? };
            stream.synchronize(deadline)?;
            group.barrier(deadline)?;
            // SAFETY: as above.
            unsafe { self.launch(stream, call, planned, places, (first, count))? };
            stream.synchronize(deadline)?;
            // A peer may still read what the next part would overwrite.
            group.barrier(deadline)?;
            first += count;
            if first >= call.count {
                return Ok(());
            }
        }
    }

    /// All ranks must make the same call.
    fn agree(
        &mut self,
        group: &Group,
        call: &Call,
        planned: &Planned,
        places: &Places,
        deadline: Deadline,
    ) -> Result<(), CollectiveError> {
        self.ordered += 1;
        let mine = self.parameters(call, planned, places, (0, call.count)).header;
        let words = (mine.what, mine.bytes, mine.shape, mine.detail);
        let all: Vec<(u32, u64, u32, u32)> = gather(group, &words, deadline)?;
        for (peer, (what, bytes, shape, detail)) in all.into_iter().enumerate() {
            let theirs = Header { what, bytes, shape, detail, ..mine };
            if let Some(found) = difference(&mine, &theirs) {
                return Err(mismatch(self.ordered, (self.rank, &mine), (Rank(peer as u32), &theirs), found));
            }
        }
        Ok(())
    }

    /// Copies this rank's part to staging, as `stage` of staging.cuh lays it out.
    ///
    /// # Safety
    /// As [`Channel::all_reduce`].
    unsafe fn stage(
        &self,
        stream: &Stream,
        call: &Call,
        places: &Places,
        (first, count): (u64, u64),
    ) -> Result<(), CollectiveError> {
        let (layout, width) = (&self.settled.layout, call.dtype.bytes());
        let own = self.end.view().base[self.rank.index()];
        let staging = own + layout.staging;
        let bytes = count * width;
        let shares = if call.kind == Kind::ReduceScatter { u64::from(self.ranks) } else { 1 };
        for share in 0..shares {
            let from = places.input + share * call.count * width + first * width;
            let to = staging + share * bytes.next_multiple_of(16);
            if bytes > 0 {
                // SAFETY: the caller's promise for the input; what steps state fits staging.
                unsafe { stream.copy(to, from, bytes)? };
            }
        }
        Ok(())
    }
}
