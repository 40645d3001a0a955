//! Moves of a device, ready to run. In: moves, boards, what keeps all memory mapped. Out: launches and copies on a stream.
//! Guarantee: every address was checked when the moves were lowered and stays mapped as long as the table, so that running
//! it is safe; nothing is allocated after it is built.

use super::allocation::DeviceMemory;
use super::error::DeviceError;
use super::gpu::Device;
use super::graph::KernelGraph;
use super::kernels::{Kernels, PACK_WARPS};
use super::moves::{Moves, Place};
use super::params::{PHASE_AWAIT, PHASE_CLOSE, PHASE_MOVE, PHASE_OPEN, Piece, Report, Start, Unit, Verdict};
use super::share::PeerMemory;
use super::stream::{End, Pinned, Rows, Stream};
use crate::base::Deadline;
use crate::memory::Buffer;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Device memory with what keeps it mapped.
#[derive(Clone)]
pub struct DeviceSpan {
    place: Place,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceSpan {
    /// Memory of our own.
    pub fn of_memory(memory: &Arc<DeviceMemory>) -> Self {
        Self { place: Place { address: memory.address(), bytes: memory.bytes() }, _owner: memory.clone() }
    }

    /// Memory of a peer.
    pub fn of_peer(memory: &PeerMemory) -> Self {
        let place = Place { address: memory.address(), bytes: memory.bytes() };
        Self { place, _owner: Arc::new(memory.clone()) }
    }

    /// Memory of the caller, who promised when the buffer was made that it stays. Moves into it may run only while the
    /// transfer holds the buffer for writing.
    pub(crate) fn of_buffer(buffer: &Buffer) -> Self {
        let place = Place { address: buffer.as_ptr() as u64, bytes: buffer.bytes() };
        Self { place, _owner: Arc::new(buffer.clone()) }
    }

    /// Memory of the host, pinned, as a device sees it.
    pub fn of_pinned(memory: &Arc<Pinned>) -> Self {
        Self { place: Place { address: memory.device_address(), bytes: memory.bytes() }, _owner: memory.clone() }
    }

    /// `bytes` bytes of it from `offset` on, which lie in it.
    pub(crate) fn part(&self, offset: u64, bytes: u64) -> Self {
        let place = Place { address: self.place.address + offset, bytes: bytes.min(self.place.bytes - offset) };
        Self { place, _owner: self._owner.clone() }
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl fmt::Debug for DeviceSpan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceSpan({} bytes)", self.place.bytes)
    }
}

/// Words of other ranks' boards that are told, and words of our own that are awaited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// Number of words of the board.
    pub words: u32,
    /// Told at opening: number of a span, word in it.
    pub opened: Vec<(u32, u32)>,
    /// Told at closing.
    pub closed: Vec<(u32, u32)>,
    /// First word awaited before moving, and how many.
    pub await_words: (u32, u32),
    /// First word awaited before leaving, and how many.
    pub leave_words: (u32, u32),
    /// Per report: counter word, who is told.
    pub reports: Vec<(u32, Vec<(u32, u32)>)>,
}

/// A start that can be put on a stream again and again.
pub struct MoveTable {
    device: Device,
    kernels: Arc<Kernels>,
    moves: Moves,
    start: Start,
    blocks: u32,
    /// Verdict, then the word that tells a kernel to give up; in a line of its own, which start is finished.
    host: Pinned,
    /// The launch of a whole start that tells its end, which is repeated.
    repeated: Option<KernelGraph>,
    /// Number of the last start that tells its end.
    number: AtomicU32,
    _tables: DeviceMemory,
    _spans: Vec<DeviceSpan>,
}

/// Adds the addresses of words to be told, given by span and number; where they stand, and how many.
fn tell(targets: &mut Vec<u64>, spans: &[DeviceSpan], told: &[(u32, u32)]) -> Result<(u32, u32), DeviceError> {
    let first = targets.len() as u32;
    for &(span, word) in told {
        let place = spans[span as usize].place;
        let end = 4 * (u64::from(word) + 1);
        if end > place.bytes {
            let what = format!("word {word} lies outside its board");
            return Err(DeviceError::BadHandle { bytes: place.bytes, what });
        }
        targets.push(place.address + 4 * u64::from(word));
    }
    Ok((first, told.len() as u32))
}

/// Word of the host's memory that tells a kernel to give up, behind the verdict.
const ABORT_WORD: usize = size_of::<Verdict>() / 4;
/// Word of the host's memory that says which start succeeded last; the next one, which failed last.
const FINISHED_WORD: usize = 16;

impl MoveTable {
    /// Uploads the tables; `spans[0]` is this rank's board, of `flags.words` words.
    pub fn build(
        device: &Device,
        moves: Moves,
        flags: &Flags,
        spans: Vec<DeviceSpan>,
        limit: Duration,
        deadline: Deadline,
    ) -> Result<Self, DeviceError> {
        let kernels = Kernels::load(device)?;
        let host = Pinned::new(device, (FINISHED_WORD + 2) as u64 * 4)?;
        let mut targets = Vec::new();
        let (open_first, open_count) = tell(&mut targets, &spans, &flags.opened)?;
        let (close_first, close_count) = tell(&mut targets, &spans, &flags.closed)?;
        let mut reports = Vec::with_capacity(flags.reports.len());
        for (number, (counter, told)) in flags.reports.iter().enumerate() {
            let (first, count) = tell(&mut targets, &spans, told)?;
            let units = moves.reported.get(number).copied().unwrap_or(0);
            reports.push(Report { counter: *counter, units, first, count });
        }
        let board = spans[0].place;
        assert!(u64::from(flags.words) * 4 <= board.bytes, "the board has room for its words");
        let (tables, [pieces, units, reports, targets]) =
            upload(device, [raw(&moves.pieces), raw(&moves.units), raw(&reports), raw(&targets)], deadline)?;
        // One source is awaited by blocks; of several each by the warps that read it, so that the first need not wait.
        let awaited = if flags.await_words.1 == 1 { PHASE_AWAIT } else { 0 };
        let start = Start {
            pieces,
            units,
            reports,
            targets,
            board: board.address,
            verdict: host.device_address(),
            abort: host.device_address() + 4 * ABORT_WORD as u64,
            limit: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
            unit_count: moves.units.len() as u32,
            phases: PHASE_OPEN | awaited | PHASE_MOVE | PHASE_CLOSE,
            open_first,
            open_count,
            close_first,
            close_count,
            await_first: flags.await_words.0,
            await_count: flags.await_words.1,
            leave_first: flags.leave_words.0,
            leave_count: flags.leave_words.1,
            source_base: 0,
            destination_base: 0,
            finished: host.device_address() + 4 * FINISHED_WORD as u64,
            tells: 0,
            unused: 0,
        };
        let most = device.properties().multiprocessors.max(1);
        let blocks = (moves.units.len() as u32).div_ceil(PACK_WARPS).clamp(1, most);
        let repeated = match moves.engine.is_empty() {
            true => Some(kernels.repeated_pack(&Start { tells: 1, ..start }, blocks)?),
            false => None,
        };
        let (device, number) = (device.clone(), AtomicU32::new(0));
        Ok(Self { device, kernels, moves, start, blocks, host, repeated, number, _tables: tables, _spans: spans })
    }

    /// Puts a whole start on `stream`: one launch; where the copy engine takes part, one before and one after it. One that
    /// `tells` is asked about by [`is_finished`](Self::is_finished); a captured one, which may run again, does not.
    pub fn run(&self, stream: &Stream, tells: bool) -> Result<(), DeviceError> {
        // What is on the stream already gives up.
        self.enqueue(stream, tells).inspect_err(|_| self.abort())?;
        if tells {
            self.number.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn enqueue(&self, stream: &Stream, tells: bool) -> Result<(), DeviceError> {
        match &self.repeated {
            // SAFETY: as for `launch`.
            Some(repeated) if tells && KernelGraph::allows(stream)? => unsafe { repeated.launch(stream)? },
            Some(_) => self.launch(stream, self.start.phases, self.blocks, tells)?,
            None => {
                self.launch(stream, PHASE_OPEN | PHASE_AWAIT, 1, false)?;
                run_copies(stream, &self.moves.engine)?;
                self.launch(stream, PHASE_MOVE | PHASE_CLOSE, self.blocks, tells)?;
            }
        }
        Ok(())
    }

    fn launch(&self, stream: &Stream, phases: u32, blocks: u32, tells: bool) -> Result<(), DeviceError> {
        // SAFETY: the tables are uploaded and, like all that they point to, mapped as long as this object, which waits
        // for its last start before it is dropped.
        unsafe { self.kernels.pack(stream, &Start { phases, tells: tells.into(), ..self.start }, blocks) }
    }

    /// Whether the last start that tells its end has succeeded; one that fails never does.
    pub fn is_finished(&self) -> bool {
        self.last_finished() == self.number.load(Ordering::Relaxed)
    }

    /// The last start that tells its end and has succeeded; they count from 1.
    pub fn last_finished(&self) -> u32 {
        self.told(FINISHED_WORD)
    }

    /// Whether the last start that tells its end has ended, well or not.
    pub fn has_ended(&self) -> bool {
        self.is_finished() || self.told(FINISHED_WORD + 1) == self.number.load(Ordering::Relaxed)
    }

    fn told(&self, word: usize) -> u32 {
        // Acquire: pairs with the kernel's release of the number, behind everything that it moved.
        self.host.word(word).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Tells kernels of this table, running and to come, to give up.
    pub fn abort(&self) {
        if let Some(word) = self.host.word(ABORT_WORD) {
            word.store(1, Ordering::Release);
        }
    }

    /// Why a kernel gave up, if one did.
    pub fn verdict(&self) -> Option<Verdict> {
        // Acquire: pairs with the kernel's release of the state, which it stores last.
        let state = self.host.word(0)?.load(Ordering::Acquire);
        let field = |word: usize| self.host.word(word).map_or(0, |word| word.load(Ordering::Relaxed));
        (state == 2).then(|| Verdict {
            state,
            phase: field(1),
            word: field(2),
            epoch: field(3),
            found: field(4),
            block: field(5),
            aborted: field(6),
            unused: 0,
        })
    }

    /// What it moves.
    pub fn moves(&self) -> &Moves {
        &self.moves
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl fmt::Debug for MoveTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, copies) = (self.moves.units.len(), self.moves.engine.len());
        write!(formatter, "MoveTable({units} units, {copies} copies on {})", self.device.label())
    }
}

/// Copies by the engine alone, which the host orders.
#[derive(Debug)]
pub struct EngineTable {
    copies: Vec<Rows>,
    _spans: Vec<DeviceSpan>,
}

impl EngineTable {
    /// Copies that were lowered over `spans`.
    pub fn new(copies: Vec<Rows>, spans: Vec<DeviceSpan>) -> Self {
        Self { copies, _spans: spans }
    }

    /// The copies.
    pub fn copies(&self) -> &[Rows] {
        &self.copies
    }

    /// Puts copies `ranges` on `stream`, neighbours that continue each other as one.
    pub fn run(&self, stream: &Stream, ranges: impl Iterator<Item = Range<usize>>) -> Result<(), DeviceError> {
        let mut open: Option<Rows> = None;
        for copy in ranges.flat_map(|range| &self.copies[range]) {
            match &mut open {
                Some(last) if last.is_continued_by(copy) => last.extend(copy),
                _ => {
                    if let Some(last) = open.replace(*copy) {
                        run_copies(stream, &[last])?;
                    }
                }
            }
        }
        open.map_or(Ok(()), |last| run_copies(stream, &[last]))
    }
}

/// Puts copies on a stream whose places were checked.
fn run_copies(stream: &Stream, copies: &[Rows]) -> Result<(), DeviceError> {
    for copy in copies {
        // SAFETY: every row lies inside places that the table keeps mapped.
        unsafe { stream.copy_between(End::Device(copy.destination), End::Device(copy.source), *copy)? };
    }
    Ok(())
}

/// The bytes of a slice of plain structures.
pub(super) fn raw<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `T` is made of integers without padding, so that all its bytes are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// # Safety
/// A structure of integers without padding.
pub(super) unsafe trait Plain {}
// SAFETY: its size, which is asserted, is the sum of its fields'.
unsafe impl Plain for Piece {}
// SAFETY: as above.
unsafe impl Plain for Unit {}
// SAFETY: as above.
unsafe impl Plain for Report {}
// SAFETY: as above.
unsafe impl Plain for Start {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}

/// Copies tables into one allocation; the address of each.
pub(super) fn upload<const N: usize>(
    device: &Device,
    tables: [&[u8]; N],
    deadline: Deadline,
) -> Result<(DeviceMemory, [u64; N]), DeviceError> {
    let mut offsets = [0u64; N];
    let mut total = 0u64;
    for (offset, table) in offsets.iter_mut().zip(&tables) {
        *offset = total;
        total += (table.len() as u64).next_multiple_of(64);
    }
    let mut bytes = vec![0; total as usize];
    for (offset, table) in offsets.iter().zip(&tables) {
        bytes[*offset as usize..][..table.len()].copy_from_slice(table);
    }
    let memory = uploaded(device, &bytes, deadline)?;
    let addresses = offsets.map(|offset| memory.address() + offset);
    Ok((memory, addresses))
}

/// Device memory that holds `bytes`.
pub fn uploaded(device: &Device, bytes: &[u8], deadline: Deadline) -> Result<DeviceMemory, DeviceError> {
    let memory = DeviceMemory::new(device, bytes.len() as u64)?;
    if !bytes.is_empty() {
        let mut staged = Pinned::new(device, bytes.len() as u64)?;
        staged.bytes_mut().copy_from_slice(bytes);
        let stream = Stream::new(device)?;
        // SAFETY: both have these bytes and live until the copy has run, which is waited for.
        unsafe { stream.copy(memory.address(), staged.device_address(), staged.bytes())? };
        stream.synchronize(deadline)?;
    }
    Ok(memory)
}
