//! What the link between two devices does. In: memory of both ends. Out: whether writes arrive in order, how fast copies
//! are. Guarantee: ends within its limit; devices are usable afterwards. The driver's word that devices reach each other
//! is not trusted: on some machines it is wrong, and tensors come out as garbage.

use super::allocation::DeviceMemory;
use super::error::DeviceError;
use super::gpu::Device;
use super::kernels::Kernels;
use super::params::{OrderedWrites, Verdict};
use super::stream::{Event, Pinned, Stream};
use super::table::DeviceSpan;
use crate::base::Deadline;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Words of payload of a round.
const WORDS: u32 = 4096;
/// Where the words behind the payload are, each on a line of its own.
const FLAG: u64 = 4 * WORDS as u64;
const ACK: u64 = FLAG + 128;
const WRONG: u64 = ACK + 128;
/// Where the bytes for measuring begin, and how many.
const BULK: u64 = WRONG + 128;
const BULK_BYTES: u64 = 256 << 20;
/// Measured copies.
const COPIES: usize = 5;

/// Memory of one end, made once for the tests with all others.
#[derive(Debug)]
pub struct LinkEnd {
    device: Device,
    memory: Arc<DeviceMemory>,
    stream: Stream,
    kernels: Arc<Kernels>,
    host: Pinned,
    /// Bytes for measuring.
    bulk: u64,
}

impl LinkEnd {
    /// Rounds of a test; epochs of the next test begin behind them.
    pub const ROUNDS: u32 = 200;

    /// An end on `device`, with memory to measure the rate if that is wanted.
    pub fn new(device: &Device, measured: bool, deadline: Deadline) -> Result<Self, DeviceError> {
        let bulk = if measured { BULK_BYTES } else { 0 };
        let memory = Arc::new(DeviceMemory::new(device, BULK + bulk)?);
        let stream = Stream::new(device)?;
        // SAFETY: memory of our own, which lives until the stream is waited for.
        unsafe { stream.set(memory.address(), 0, memory.bytes())? };
        stream.synchronize(deadline)?;
        let host = Pinned::new(device, size_of::<Verdict>() as u64 + 16)?;
        Ok(Self { device: device.clone(), memory, stream, kernels: Kernels::load(device)?, host, bulk })
    }

    /// Memory to share with the other ends.
    pub fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// Writes to `peer`, an end on another device, in rounds from epoch `first` on; the peer reads meanwhile.
    pub fn write_to(&self, peer: &DeviceSpan, first: u32, deadline: Deadline) -> Result<(), DeviceError> {
        let (own, there) = (self.memory.address(), self.peer_address(peer)?);
        self.run(there, there + FLAG, own + ACK, true, first, deadline)
    }

    /// Checks what `peer` writes; the number of words that were wrong when their flag was there.
    pub fn read_from(&self, peer: &DeviceSpan, first: u32, deadline: Deadline) -> Result<u64, DeviceError> {
        let (own, there) = (self.memory.address(), self.peer_address(peer)?);
        let before = self.wrong(deadline)?;
        self.run(own, own + FLAG, there + ACK, false, first, deadline)?;
        Ok(self.wrong(deadline)? - before)
    }

    /// How fast this device reads from `peer` by its copy engine, bytes a second; the fastest of some copies.
    pub fn rate_from(&self, peer: &DeviceSpan, deadline: Deadline) -> Result<f64, DeviceError> {
        let there = self.peer_address(peer)?;
        let (begin, end) = (Event::new(&self.device)?, Event::new(&self.device)?);
        let mut fastest = f64::INFINITY;
        for _ in 0..COPIES {
            begin.record(&self.stream)?;
            // SAFETY: both ends have these bytes and live until the copy has run, which is waited for.
            unsafe { self.stream.copy(self.memory.address() + BULK, there + BULK, self.bulk)? };
            end.record(&self.stream)?;
            end.wait(deadline)?;
            fastest = fastest.min(end.microseconds_since(&begin)?);
        }
        Ok(self.bulk as f64 / fastest * 1e6)
    }

    fn peer_address(&self, peer: &DeviceSpan) -> Result<u64, DeviceError> {
        let place = peer.place();
        if place.bytes < BULK + self.bulk {
            let what = format!("an end of a link test has {} bytes", BULK + self.bulk);
            return Err(DeviceError::BadHandle { bytes: place.bytes, what });
        }
        Ok(place.address)
    }

    fn wrong(&self, deadline: Deadline) -> Result<u64, DeviceError> {
        let at = size_of::<Verdict>() as u64 + 8;
        // SAFETY: eight bytes of memory of our own on both sides.
        unsafe { self.stream.copy(self.host.device_address() + at, self.memory.address() + WRONG, 8)? };
        self.stream.synchronize(deadline)?;
        let word = |number: u64| {
            self.host.word((at / 4 + number) as usize).map_or(0, |word| u64::from(word.load(Ordering::Acquire)))
        };
        Ok(word(1) << 32 | word(0))
    }

    fn run(
        &self,
        payload: u64,
        flag: u64,
        ack: u64,
        writes: bool,
        first: u32,
        deadline: Deadline,
    ) -> Result<(), DeviceError> {
        let verdict = self.host.device_address();
        let test = OrderedWrites {
            payload,
            flag,
            ack,
            wrong: self.memory.address() + WRONG,
            verdict,
            abort: verdict + size_of::<Verdict>() as u64,
            limit: u64::try_from(deadline.remaining().as_nanos()).unwrap_or(u64::MAX),
            words: WORDS,
            rounds: Self::ROUNDS,
            first,
            writes: u32::from(writes),
        };
        if let Some(state) = self.host.word(0) {
            state.store(0, Ordering::Release);
        }
        // SAFETY: all addresses lie inside both ends' memory, which lives until the kernel has ended: it ends by its own
        // limit, and the wait is a little longer.
        unsafe { self.kernels.ordered_writes(&self.stream, &test)? };
        self.stream.synchronize(Deadline::after(deadline.remaining() + std::time::Duration::from_secs(5)))?;
        // Acquire: pairs with the kernel's release of the state.
        if self.host.word(0).is_some_and(|state| state.load(Ordering::Acquire) != 0) {
            let field = |number: usize| self.host.word(number).map_or(0, |word| word.load(Ordering::Relaxed));
            return Err(DeviceError::GaveUp {
                device: self.device.label().to_string(),
                phase: "a test of ordered writes",
                what: if writes { "the answer of the reading device" } else { "the flag of the writing device" }.into(),
                epoch: field(3),
                found: field(4),
            });
        }
        Ok(())
    }
}
