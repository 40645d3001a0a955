//! Calls. In: operands, counts. Out: work on a stream, behind what it holds; what follows on it sees the result. Guarantee: a
//! call that was made before in the same form allocates nothing and asks the driver for the launch alone; its errors are
//! known at once where they are the caller's, by [`Channel::check`] where a peer's.

use super::channel::{Planned, Shape};
use super::{Channel, CollectiveError, Operand};
use crate::base::Rank;
use crate::collective::call::{Call, Kind, Launch, header, with_operands};
use crate::collective::steps::{Ground, steps};
use crate::collective::{Algorithm, Choice, ReduceOperation, Situation, choose, element};
use crate::layout::Dtype;
use crate::memory::device::Stream;
use crate::memory::device::collective::Grid;
use crate::memory::device::collective::params::{BUNDLE_PIECES, Call as Parameters, Element};

/// Where a call's operands are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) input: u64,
    pub(super) output: u64,
    /// Registrations of both, and offsets in them.
    pub(super) registered: Option<[(usize, u64); 2]>,
}

impl Channel {
    /// Every rank's `output` becomes the reduction of all inputs: `count` elements (`MPI_Allreduce`, `ncclAllReduce`). Input
    /// and output may be the same.
    ///
    /// # Safety
    /// The operands must stay mapped until the stream has run the call, on all ranks; nobody else may write the input or use
    /// the output meanwhile. They may be the same, but must not overlap otherwise.
    pub unsafe fn all_reduce(
        &mut self,
        stream: &Stream,
        input: Operand<'_>,
        output: Operand<'_>,
        (count, dtype): (u64, Dtype),
        operation: ReduceOperation,
    ) -> Result<(), CollectiveError> {
        let call = Call { kind: Kind::AllReduce, count, dtype, operation, root: 0 };
        // SAFETY: the caller's promise.
        unsafe { self.call(stream, &call, input, output) }
    }

    /// Every rank's `output` becomes all inputs in the order of ranks: `count` elements of each (`MPI_Allgather`,
    /// `ncclAllGather`). The input may be the rank's own place in the output.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn all_gather(
        &mut self,
        stream: &Stream,
        input: Operand<'_>,
        output: Operand<'_>,
        (count, dtype): (u64, Dtype),
    ) -> Result<(), CollectiveError> {
        let call = Call { kind: Kind::AllGather, count, dtype, operation: ReduceOperation::Sum, root: 0 };
        // SAFETY: the caller's promise.
        unsafe { self.call(stream, &call, input, output) }
    }

    /// Rank r's `output` becomes part r of the reduction: `count` elements of an input of `count` times the number of ranks
    /// (`MPI_Reduce_scatter_block`, `ncclReduceScatter`). The output may be the rank's own place in the input.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(
        &mut self,
        stream: &Stream,
        input: Operand<'_>,
        output: Operand<'_>,
        (count, dtype): (u64, Dtype),
        operation: ReduceOperation,
    ) -> Result<(), CollectiveError> {
        let call = Call { kind: Kind::ReduceScatter, count, dtype, operation, root: 0 };
        // SAFETY: the caller's promise.
        unsafe { self.call(stream, &call, input, output) }
    }

    /// Every rank's `output` becomes the input of rank `root`: `count` elements (`MPI_Bcast`, `ncclBroadcast`). Input and
    /// output may be the same; the input of other ranks is not read.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn broadcast(
        &mut self,
        stream: &Stream,
        input: Operand<'_>,
        output: Operand<'_>,
        (count, dtype): (u64, Dtype),
        root: u32,
    ) -> Result<(), CollectiveError> {
        let call = Call { kind: Kind::Broadcast, count, dtype, operation: ReduceOperation::Sum, root };
        // SAFETY: the caller's promise.
        unsafe { self.call(stream, &call, input, output) }
    }

    /// How a call of these sizes would run, and why; `captured` in a graph, `registered` on registered buffers.
    pub fn explain(&self, call: &Call, captured: bool, registered: bool) -> Result<Choice, CollectiveError> {
        let bytes = self.bytes_of(call)?;
        let situation = Situation {
            kind: call.kind,
            bytes,
            determinism: self.settled.determinism,
            captured,
            registered,
            connection: self.placed.connection,
            pair: self.ranks == 2 && self.placed.alone,
            push_capacity: match call.kind {
                Kind::AllGather | Kind::ReduceScatter => self.settled.layout.slot_words * 8 * u64::from(self.ranks),
                _ => self.settled.layout.slot_words * 8,
            },
            line_capacity: self.settled.layout.bundles() * BUNDLE_PIECES * 16,
            most_blocks: self.placed.most_blocks,
        };
        Ok(choose(&situation, self.settled.table.as_ref(), self.settled.algorithm)?)
    }

    fn bytes_of(&self, call: &Call) -> Result<u64, CollectiveError> {
        let (kind, count) = (call.kind, call.count);
        call.total_bytes(self.ranks).ok_or(CollectiveError::TooMany { kind, count })
    }

    /// Bytes of input and output.
    fn sizes(&self, call: &Call) -> Result<(u64, u64), CollectiveError> {
        let total = self.bytes_of(call)?;
        let part = call.bytes().unwrap_or(total);
        Ok(match call.kind {
            Kind::AllGather => (part, total),
            Kind::ReduceScatter => (total, part),
            _ => (total, total),
        })
    }

    /// Any call but the fused one, which has more operands ([`all_reduce_norm`](Self::all_reduce_norm)).
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn call(
        &mut self,
        stream: &Stream,
        call: &Call,
        input: Operand<'_>,
        output: Operand<'_>,
    ) -> Result<(), CollectiveError> {
        if call.kind == Kind::AllReduceNorm {
            return Err(CollectiveError::NotHere {
                kind: call.kind,
                why: "it has more operands; call all_reduce_norm",
            });
        }
        if call.kind == Kind::Broadcast && call.root >= self.ranks {
            return Err(CollectiveError::NoRoot { root: call.root, ranks: self.ranks });
        }
        if call.kind.reduces() {
            element(call.dtype)?;
        }
        // Entered here once, not anew for every question to the driver.
        let _current = self.device().enter()?;
        let captured = self.enter(stream)?;
        let (needed, made) = self.sizes(call)?;
        let places = Places {
            input: input.address(self, call.kind, "input", needed)?,
            output: output.address(self, call.kind, "output", made)?,
            registered: None,
        };
        let registered = self.registered_operands(call, &places, (needed, made));
        let places = Places { registered, ..places };
        let planned = self.plan(call, captured, &places)?;
        if planned.launch.algorithm == Algorithm::HostOrdered {
            // What hosts order is read from staging.
            let places = Places { registered: None, ..places };
            // SAFETY: the caller's promise.
            return unsafe { self.run_ordered(stream, call, &planned, &places) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.launch_all(stream, call, &planned, &places) }
    }

    /// Registrations of what peers reach: the input, and the output of an all-reduce. Where one operand is a part of the other
    /// it is staged.
    fn registered_operands(
        &self,
        call: &Call,
        places: &Places,
        (input, output): (u64, u64),
    ) -> Option<[(usize, u64); 2]> {
        let found = self.find_registered(places.input, input)?;
        match call.kind {
            Kind::AllReduce => Some([found, self.find_registered(places.output, output)?]),
            _ if is_own_part(call, self.rank, places) => None,
            _ => Some([found, found]),
        }
    }

    /// Looks at the channel and the stream; whether a graph is captured.
    pub(super) fn enter(&mut self, stream: &Stream) -> Result<bool, CollectiveError> {
        if self.end.gave_up() {
            self.check()?;
        }
        let captured = stream.is_capturing()?;
        let identity = stream.identity();
        match self.stream {
            _ if captured => {}
            None => self.stream = Some(identity),
            Some(first) if first != identity => return Err(CollectiveError::OtherStream),
            Some(_) => {}
        }
        Ok(captured)
    }

    /// How the call runs; worked out once for each form.
    pub(super) fn plan(&mut self, call: &Call, captured: bool, places: &Places) -> Result<Planned, CollectiveError> {
        let (registered, in_place) = (places.registered.is_some(), places.input == places.output);
        let shape = Shape { call: *call, captured, registered, in_place };
        if let Some(&planned) = self.known.get(&shape) {
            return Ok(planned);
        }
        let choice = self.explain(call, captured, registered)?;
        log::debug!("rank {}: {call}: {choice}", self.rank);
        let Choice { algorithm, blocks, threads, .. } = choice;
        let all_threads = u64::from(blocks) * u64::from(threads);
        let ground = Ground {
            layout: self.settled.layout,
            ranks: self.ranks,
            threads: all_threads,
            registered,
            in_place,
            early: self.placed.alone,
            few: self.are_few(all_threads),
        };
        let element = element(call.dtype).unwrap_or(Element::U8);
        let launch = Launch { algorithm, blocks, threads, registered };
        let planned = Planned { launch, steps: steps(call, element, algorithm, &ground) };
        self.known.insert(shape, planned);
        Ok(planned)
    }

    /// Whether two launches of so many threads are resident in the channel's part of the device.
    pub(super) fn are_few(&self, threads: u64) -> bool {
        2 * threads <= 512 * u64::from(self.placed.most_blocks)
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    unsafe fn launch_all(
        &self,
        stream: &Stream,
        call: &Call,
        planned: &Planned,
        places: &Places,
    ) -> Result<(), CollectiveError> {
        let mut first = 0;
        loop {
            let count = (call.count - first).min(planned.steps.elements);
            // SAFETY: the caller's promise; the part is inside the operands.
            unsafe { self.launch(stream, call, planned, places, (first, count))? };
            first += count;
            if first >= call.count {
                return Ok(());
            }
        }
    }

    /// Launches elements `first..first + count` of each rank's part.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        call: &Call,
        planned: &Planned,
        places: &Places,
        (first, count): (u64, u64),
    ) -> Result<(), CollectiveError> {
        let Some(kernel) = planned.steps.kernel else { return Ok(()) };
        let element = element(call.dtype).unwrap_or(Element::U8);
        let Some(kernels) = self.kernels.get(&element) else { return Ok(()) };
        let parameters = self.parameters(call, planned, places, (first, count));
        let Launch { blocks, threads, .. } = planned.launch;
        let grid = Grid { blocks: blocks.into(), threads: threads.into() };
        // SAFETY: the caller's promise; the channel's memory lives as long as it; no more blocks were chosen than are
        // resident beside those of other ranks of the device.
        unsafe { kernels.launch(stream, kernel, &parameters, grid)? };
        Ok(())
    }

    /// What a kernel gets to know of elements `first..first + count` of each rank's part.
    pub(super) fn parameters(
        &self,
        call: &Call,
        planned: &Planned,
        places: &Places,
        (first, count): (u64, u64),
    ) -> Parameters {
        let width = call.dtype.bytes();
        let (skipped, part) = (first * width, Call { count, ..*call });
        let launch = Launch { registered: places.registered.is_some(), ..planned.launch };
        let row = |number: usize| places.registered.map(|found| found[number]);
        let address = |number| row(number).map_or(0, |(index, _)| self.registered[index].row);
        let offset = |number| row(number).map_or(0, |(_, offset)| offset + skipped);
        let header = with_operands(header(&part, &launch), mixed(places));
        Parameters {
            channel: *self.end.view(),
            input: places.input + skipped,
            output: places.output + skipped,
            bytes: count * width,
            stride: call.count * width,
            inputs: address(0),
            outputs: address(1),
            input_offset: offset(0),
            output_offset: offset(1),
            fingerprint: header.fingerprint(),
            header,
            operation: call.operation as u32,
            root: call.root,
            parts: planned.steps.parts,
        }
    }
}

/// Whether one operand is the rank's own part of the other, which lies at another offset on each rank.
fn is_own_part(call: &Call, rank: Rank, places: &Places) -> bool {
    let before = u64::from(rank.0) * call.count * call.dtype.bytes();
    match call.kind {
        Kind::AllGather => places.input == places.output + before,
        Kind::ReduceScatter => places.output == places.input + before,
        _ => false,
    }
}

/// Some bits of the registrations and offsets, in which ranks must agree.
fn mixed(places: &Places) -> u32 {
    let Some(found) = places.registered else { return 0 };
    let mix = |state: u64, word: u64| (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    let state = found.iter().fold(1, |state, &(index, offset)| mix(mix(state, index as u64), offset));
    (state >> 24) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_parts_lie_at_other_offsets_on_each_rank() {
        let call = |kind| Call { kind, count: 100, dtype: Dtype::BF16, operation: ReduceOperation::Sum, root: 0 };
        let is = |kind, rank, input, output| {
            is_own_part(&call(kind), Rank(rank), &Places { input, output, registered: None })
        };
        assert!(is(Kind::AllGather, 2, 1400, 1000) && !is(Kind::AllGather, 2, 1000, 1000));
        assert!(is(Kind::ReduceScatter, 1, 1000, 1200) && !is(Kind::ReduceScatter, 1, 1000, 4000));
        assert!(!is(Kind::AllReduce, 0, 1000, 1000));
    }
}
