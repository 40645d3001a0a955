//! Calls on operands of its own, to be measured. In: a channel, how many bytes. Out: what the calls made of the bytes, times of
//! the stream. Guarantee: safe, since all operands lie in memory that it owns until it is dropped, and graphs do not leave it;
//! what is put on the stream is waited for with a deadline.

use super::{Channel, CollectiveError, NormOperands, NormShape, Operand};
use crate::base::{Deadline, Rank};
use crate::collective::{Call, Kind};
use crate::memory::Buffer;
use crate::memory::copy::{CopyTable, Placed};
use crate::memory::device::params::{BOARD_WORDS, NONE};
use crate::memory::device::{
    Capture, DeviceMemory, DeviceSpan, End, Event, Flags, Graph, MoveTable, Mover, Moves, PACK_WARPS, PeerMemory,
    Place, Rows, Stream, Work, uploaded,
};
use std::sync::Arc;

/// A channel with a stream and memory for operands, which are named by their offsets.
#[derive(Debug)]
pub struct Rehearsal {
    channel: Channel,
    stream: Arc<Stream>,
    operands: Buffer,
    /// Written to push everything else out of the device's cache.
    swept: Arc<DeviceMemory>,
    graph: Option<Graph>,
    writes: Option<MoveTable>,
    marks: Vec<Event>,
}

/// Bytes of this rank's operands that a kernel writes into those of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerWrite {
    /// Whose operands are written.
    pub peer: Rank,
    /// First byte of this rank's.
    pub from: u64,
    /// First byte of the peer's.
    pub to: u64,
    /// How many.
    pub bytes: u64,
}

/// Offsets of what the fused call reads and writes, as [`NormOperands`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormOffsets {
    /// This rank's partial sums.
    pub input: u64,
    /// Added to the sum, which takes its place.
    pub residual: u64,
    /// What each column is multiplied by.
    pub weight: u64,
    /// The normed rows.
    pub output: u64,
}

impl Rehearsal {
    /// Takes over a channel that no other stream has used; `bytes` bytes for operands, `swept` to empty the cache with.
    pub fn new(channel: Channel, bytes: u64, swept: u64) -> Result<Self, CollectiveError> {
        let device = channel.device().clone();
        let operands = Buffer::on_device(&Arc::new(DeviceMemory::new(&device, bytes.max(1))?));
        let swept = Arc::new(DeviceMemory::new(&device, swept.max(1))?);
        let stream = Arc::new(Stream::new(&device)?);
        Ok(Self { channel, stream, operands, swept, graph: None, writes: None, marks: Vec::new() })
    }

    /// Its channel.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Bytes for operands.
    pub fn bytes(&self) -> u64 {
        self.operands.bytes()
    }

    /// Registers all operands; collective, as [`Channel::register`].
    pub fn register(&mut self, deadline: Deadline) -> Result<(), CollectiveError> {
        self.channel.register(&self.operands.clone(), deadline)
    }

    /// Puts bytes at an offset.
    pub fn write(&mut self, offset: u64, bytes: &[u8], deadline: Deadline) -> Result<(), CollectiveError> {
        let to = self.address(offset, bytes.len() as u64)?;
        self.copy(End::Device(to), End::Host(bytes.as_ptr() as u64), bytes.len() as u64, deadline)
    }

    /// What lies at an offset.
    pub fn read(&mut self, offset: u64, bytes: &mut [u8], deadline: Deadline) -> Result<(), CollectiveError> {
        let from = self.address(offset, bytes.len() as u64)?;
        self.copy(End::Host(bytes.as_mut_ptr() as u64), End::Device(from), bytes.len() as u64, deadline)
    }

    /// Puts a call on the stream, with operands at these offsets.
    pub fn call(&mut self, call: &Call, input: u64, output: u64) -> Result<(), CollectiveError> {
        let Self { channel, stream, operands: buffer, .. } = self;
        let (input, output) = (Operand { buffer, offset: input }, Operand { buffer, offset: output });
        // SAFETY: the operands lie in memory that this object keeps until it is dropped; the driver unmaps it behind work
        // that uses it, and peers keep their own mapping of it; who gives operands that overlap gets wrong bytes in them.
        unsafe { channel.call(stream, call, input, output) }
    }

    /// Puts a fused call on the stream.
    pub fn call_norm(&mut self, shape: NormShape, offsets: NormOffsets) -> Result<(), CollectiveError> {
        let Self { channel, stream, operands: buffer, .. } = self;
        let at = |offset| Operand { buffer, offset };
        let operands = NormOperands {
            input: at(offsets.input),
            residual: at(offsets.residual),
            residual_output: at(offsets.residual),
            weight: at(offsets.weight),
            output: at(offsets.output),
            scale: None,
        };
        // SAFETY: as in `call`.
        unsafe { channel.all_reduce_norm(stream, &operands, shape) }
    }

    /// Puts a copy between this rank's operands and those of `peer`, which were registered, on the stream: by the copy
    /// engine, `bytes` bytes at `from` to `to`; the peer's are read, or written where `writes`.
    pub fn copy_peer(
        &mut self,
        peer: Rank,
        (from, to): (u64, u64),
        bytes: u64,
        writes: bool,
    ) -> Result<(), CollectiveError> {
        let (there, here) = if writes { (to, from) } else { (from, to) };
        let own = self.address(here, bytes)?;
        let far = self.operands_of(peer, (there, bytes))?.address() + there;
        let (to, from) = if writes { (far, own) } else { (own, far) };
        // SAFETY: this rank's end is memory of this object, the peer's is mapped by the registration, which both keep; bytes
        // that somebody else writes at the same time are wrong and nothing more.
        unsafe { self.stream.copy(to, from, bytes)? };
        Ok(())
    }

    /// Makes ready what [`write_peers`](Self::write_peers) does, in place of what it did: `writes` into peers' operands, which
    /// were registered, by one kernel on all of the device, in this order.
    pub fn prepare_writes(&mut self, writes: &[PeerWrite], deadline: Deadline) -> Result<(), CollectiveError> {
        let device = self.channel.device().clone();
        let board = Arc::new(uploaded(&device, &[0; 4 * BOARD_WORDS as usize], deadline)?);
        let mut spans = vec![DeviceSpan::of_memory(&board), DeviceSpan::of_buffer(&self.operands)];
        let (mut table, mut works) = (CopyTable::new(), Vec::new());
        for &PeerWrite { peer, from, to, bytes } in writes {
            self.address(from, bytes)?;
            spans.push(DeviceSpan::of_peer(self.operands_of(peer, (to, bytes))?));
            let (boxes, destination) = (table.len(), spans.len() as u32 - 1);
            table.push(&[bytes], 1, Placed { offset: from, strides: &[1] }, Placed { offset: to, strides: &[1] })?;
            let boxes = boxes..table.len();
            works.push(Work { source: 1, destination, boxes, gate: NONE, report: NONE, local: false });
        }
        let places: Vec<Place> = spans.iter().map(DeviceSpan::place).collect();
        let warps = u64::from(device.properties().multiprocessors * PACK_WARPS);
        let moves = Moves::lower(&table, &works, &places, Mover::KernelAlone { warps })?;
        let (flags, limit) = (Flags { words: BOARD_WORDS, ..Flags::default() }, self.channel.settled.limit);
        // Its kernel waits for nothing, but what is put on the stream still uses the table before.
        self.stream.synchronize(deadline)?;
        self.writes = Some(MoveTable::build(&device, moves, &flags, spans, limit, deadline)?);
        Ok(())
    }

    /// Puts what was made ready on the stream: one launch. Bytes that a peer uses at the same time are wrong.
    pub fn write_peers(&mut self) -> Result<(), CollectiveError> {
        match &self.writes {
            Some(writes) => Ok(writes.run(&self.stream, false)?),
            None => Ok(()),
        }
    }

    /// Overwrites the memory that is there for it, so that the device's cache holds nothing else.
    pub fn sweep(&mut self) -> Result<(), CollectiveError> {
        Ok(self.stream.clear(&self.swept)?)
    }

    /// Captures the calls that `calls` makes into a graph, in place of the one before.
    pub fn record(
        &mut self,
        calls: impl FnOnce(&mut Self) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let stream = self.stream.clone();
        let capture = Capture::begin(&stream)?;
        calls(self)?;
        self.graph = Some(capture.end()?);
        Ok(())
    }

    /// Puts the graph on the stream.
    pub fn replay(&mut self) -> Result<(), CollectiveError> {
        match &self.graph {
            Some(graph) => Ok(graph.launch(&self.stream)?),
            None => Ok(()),
        }
    }

    /// Marks a moment of the stream.
    pub fn mark(&mut self) -> Result<(), CollectiveError> {
        let event = Event::new(self.channel.device())?;
        event.record(&self.stream)?;
        self.marks.push(event);
        Ok(())
    }

    /// Waits for the stream; whether all calls went well, and the microseconds between each mark and the next. Marks are
    /// forgotten.
    pub fn finish(&mut self, deadline: Deadline) -> Result<Vec<f64>, CollectiveError> {
        self.stream.synchronize(deadline)?;
        self.channel.check()?;
        let marks = std::mem::take(&mut self.marks);
        let pairs = marks.windows(2).map(|pair| Ok(pair[1].microseconds_since(&pair[0])?));
        pairs.collect()
    }

    /// The operands of `peer`, which were registered and have `bytes` bytes from `offset` on.
    fn operands_of(&self, peer: Rank, (offset, bytes): (u64, u64)) -> Result<&PeerMemory, CollectiveError> {
        let registered = self.channel.registered.last().and_then(|known| known.peers.get(peer.index()));
        let has = |memory: &&PeerMemory| offset.checked_add(bytes).is_some_and(|end| end <= memory.bytes());
        registered.filter(has).ok_or_else(|| CollectiveError::OtherMemory {
            kind: Kind::AllGather,
            operand: "peer's operand",
            device: format!("rank {peer}'s registered memory"),
        })
    }

    fn address(&self, offset: u64, bytes: u64) -> Result<u64, CollectiveError> {
        let operand = Operand { buffer: &self.operands, offset };
        operand.address(&self.channel, Kind::AllReduce, "range", bytes)
    }

    fn copy(&mut self, to: End, from: End, bytes: u64, deadline: Deadline) -> Result<(), CollectiveError> {
        if bytes == 0 {
            return Ok(());
        }
        let rows = Rows { source: 0, destination: 0, source_step: bytes, destination_step: bytes, run: bytes, rows: 1 };
        // SAFETY: the device's end was looked at, the host's is borrowed until the copy was waited for.
        unsafe { self.stream.copy_between(to, from, rows)? };
        Ok(self.stream.synchronize(deadline)?)
    }
}
