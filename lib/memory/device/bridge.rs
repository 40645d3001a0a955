//! Copies between tensors on devices and staging in memory of the host, ordered by the host. In: boxes, spans. Out: copies
//! that can be started again and again, each between its tensors and whichever staging a start names. Guarantee: a start
//! returns at once and allocates nothing; copies of a lane end in the order of their starts; every address was checked and
//! stays mapped as long as the bridge, which waits for its copies before it goes.

use super::allocation::DeviceMemory;
use super::error::DeviceError;
use super::gpu::Device;
use super::kernels::{Kernels, PACK_WARPS};
use super::moves::{Mover, Moves, Place, Work};
use super::page_locked::PageLocked;
use super::params::{BOARD_WORDS, NONE, PHASE_MOVE, Piece, Start, Unit};
use super::stream::{End, Event, Rows, Stream};
use super::table::{raw, upload};
use crate::base::Deadline;
use crate::memory::copy::{CopyTable, Operation};
use crate::memory::{MemoryError, SharedMemory, Span};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long the copies under way may take to end when the bridge goes.
const END: Duration = Duration::from_secs(10);
/// Copies of the engine that cost less than a launch of the kernel.
const FEW: usize = 4;
/// Rows from which on the engine takes several as fast as the kernel.
const ENGINE_ROWS: u64 = 16 << 10;

/// One end of boxes.
#[derive(Debug, Clone, Copy)]
pub enum Shore<'a> {
    /// Memory that stays the same: a tensor on the device, or memory of the host that it reaches.
    Fixed(&'a Span),
    /// So many bytes of staging, whose place a start tells.
    Staging(u64),
}

/// Boxes between two places.
#[derive(Debug, Clone)]
pub struct BridgeBoxes<'a> {
    /// Numbers in their table.
    pub boxes: Range<usize>,
    /// Where from.
    pub source: Shore<'a>,
    /// Where to.
    pub destination: Shore<'a>,
}

/// Copies to and from devices.
#[derive(Debug)]
pub struct Bridge {
    shores: Vec<Device>,
    lanes: Vec<Lane>,
    copies: Vec<Copy>,
    rows: Vec<Rows>,
    /// Whether the kernel may be used: it is there, each device has one process, and all staging is locked in memory.
    launches: bool,
    tables: Vec<Tables>,
    kept: Option<Kept>,
}

/// What copies under way use.
#[derive(Debug, Default)]
struct Kept {
    spans: Vec<Span>,
    locked: Vec<Arc<PageLocked>>,
    tables: Vec<DeviceMemory>,
}

/// What the kernel of a device moves.
#[derive(Debug, Default)]
struct Tables {
    kernels: Option<Arc<Kernels>>,
    pieces: Vec<Piece>,
    units: Vec<Unit>,
    start: Start,
}

/// Boxes that are copied together.
#[derive(Debug, Clone)]
struct Copy {
    lane: usize,
    rows: Range<usize>,
    units: Range<usize>,
    from_staging: bool,
    to_staging: bool,
    /// Bytes of staging that it needs.
    staging: u64,
}

/// A stream of a device, with marks behind the copies that are under way.
#[derive(Debug)]
struct Lane {
    stream: Stream,
    marks: Vec<Event>,
    /// The oldest.
    first: usize,
    under_way: usize,
}

/// Where staging is.
#[derive(Debug, Clone, Copy)]
struct Base {
    address: u64,
    locked: bool,
}

impl Bridge {
    /// Copies of a lane that may be under way.
    pub const DEPTH: usize = 16;

    /// A bridge to `devices`, each of them used by this process alone if `alone`.
    pub fn new(devices: &[u32], alone: bool) -> Result<Self, DeviceError> {
        let shores: Vec<Device> = devices.iter().map(|&ordinal| Device::open(ordinal)).collect::<Result<_, _>>()?;
        let mut lanes = Vec::with_capacity(2 * shores.len());
        let mut tables = Vec::with_capacity(shores.len());
        for device in &shores {
            lanes.push(Lane::new(device)?);
            lanes.push(Lane::new(device)?);
            // Loading may wait for work on the device, so it is done before there is any.
            let kernels = if alone { load(device) } else { None };
            tables.push(Tables { kernels, ..Tables::default() });
        }
        let launches = tables.iter().all(|tables| tables.kernels.is_some());
        let kept = Some(Kept::default());
        Ok(Self { shores, lanes, copies: Vec::new(), rows: Vec::new(), launches, tables, kept })
    }

    /// The first device, whose streams starts may be put on.
    pub fn device(&self) -> Option<&Device> {
        self.shores.first()
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Locks staging in memory, before copies with it are added. Where the system refuses that, they are slower and as right.
    pub fn lock(&mut self, segment: &Arc<SharedMemory>) {
        let (Some(device), Some(kept)) = (self.shores.first(), &mut self.kept) else { return };
        match PageLocked::of(device, segment) {
            Ok(locked) => kept.locked.push(locked),
            Err(error) => {
                self.launches = false;
                log::warn!(
                    "staging of {} bytes is not locked in memory, so copies are slower: {error}",
                    segment.bytes()
                );
            }
        }
    }

    /// Adds boxes of `table` that are copied together on `device`; their number.
    pub fn add(&mut self, device: u32, table: &CopyTable, boxes: &[BridgeBoxes<'_>]) -> Result<u32, MemoryError> {
        let Some(shore) = self.shores.iter().position(|shore| shore.ordinal() == device) else {
            return Err(MemoryError::OnDevice { bytes: 0, device });
        };
        let is_staging = |shore: &Shore<'_>| matches!(shore, Shore::Staging(_));
        let from_staging = boxes.iter().any(|boxes| is_staging(&boxes.source));
        let to_staging = boxes.iter().any(|boxes| is_staging(&boxes.destination));
        let (mut places, mut works, mut staging) = (Vec::new(), Vec::new(), 0);
        for BridgeBoxes { boxes, source, destination } in boxes {
            if boxes.clone().any(|index| table.get(index).0.operation != Operation::Move) {
                return Err(MemoryError::OnDevice { bytes: 0, device });
            }
            for end in [source, destination] {
                places.push(match end {
                    Shore::Fixed(span) => Place { address: span.start() as u64, bytes: span.bytes() },
                    Shore::Staging(bytes) => Place { address: 0, bytes: *bytes },
                });
                match end {
                    Shore::Fixed(span) => self.kept.iter_mut().for_each(|kept| kept.spans.push((*span).clone())),
                    Shore::Staging(bytes) => staging = staging.max(*bytes),
                }
            }
            let (source, destination) = (places.len() as u32 - 2, places.len() as u32 - 1);
            works.push(Work { source, destination, boxes: boxes.clone(), gate: NONE, report: NONE, local: false });
        }
        let moves = self.lower(shore, table, &works, &places)?;
        let rows = self.rows.len()..self.rows.len() + moves.engine.len();
        self.rows.extend(moves.engine);
        let units = self.tables[shore].add(moves.pieces, moves.units);
        let lane = 2 * shore + usize::from(from_staging);
        self.copies.push(Copy { lane, rows, units, from_staging, to_staging, staging });
        Ok(self.copies.len() as u32 - 1)
    }

    /// Few long runs go to the copy engine, everything else to the kernel where it may be used.
    fn lower(&self, shore: usize, table: &CopyTable, works: &[Work], places: &[Place]) -> Result<Moves, MemoryError> {
        let moves = Moves::lower(table, works, places, Mover::Engine)?;
        let suits = |rows: &Rows| rows.rows == 1 || rows.run >= ENGINE_ROWS;
        if !self.launches || (moves.engine.len() <= FEW && moves.engine.iter().all(suits)) {
            return Ok(moves);
        }
        let warps = u64::from(self.shores[shore].properties().multiprocessors * PACK_WARPS);
        Moves::lower(table, works, places, Mover::Kernel { warps })
    }

    /// Makes everything that was added ready to be started.
    pub fn finish(&mut self, deadline: Deadline) -> Result<(), DeviceError> {
        for (device, tables) in self.shores.iter().zip(&mut self.tables) {
            if tables.units.is_empty() {
                continue;
            }
            let board = [0u64; BOARD_WORDS as usize];
            let contents = [raw(&tables.pieces), raw(&tables.units), raw(&board)];
            let (memory, [pieces, units, board]) = upload(device, contents, deadline)?;
            tables.start = Start { pieces, units, board, phases: PHASE_MOVE, ..Start::default() };
            if let Some(kept) = &mut self.kept {
                kept.tables.push(memory);
            }
        }
        Ok(())
    }

    /// Whether the lane of copy `number` has room for one more.
    pub fn has_room(&self, number: u32) -> bool {
        self.lanes[self.copies[number as usize].lane].under_way < Self::DEPTH
    }

    /// Puts copy `number`, for which there is room, on its lane; its staging, if it has any, begins at byte `offset` of
    /// `staging`. The number of the lane.
    pub fn start(&mut self, number: u32, staging: Option<(&Span, u64)>) -> Result<usize, MemoryError> {
        let copy = &self.copies[number as usize];
        let base = staging.map(|(span, offset)| self.base(copy, span, offset)).transpose()?;
        let stream = &self.lanes[copy.lane].stream;
        for rows in &self.rows[copy.rows.clone()] {
            let end = |address: u64, base: Option<Base>| match base {
                None => End::Device(address),
                Some(Base { address: base, locked: true }) => End::Device(base + address),
                Some(Base { address: base, .. }) => End::Host(base + address),
            };
            let from = end(rows.source, base.filter(|_| copy.from_staging));
            let to = end(rows.destination, base.filter(|_| copy.to_staging));
            // SAFETY: every row lies inside spans that are kept, or inside the staging, which was checked; the bridge
            // waits for the copy before it lets them go.
            unsafe { stream.copy_between(to, from, *rows)? };
        }
        if !copy.units.is_empty() {
            self.launch(copy, base)?;
        }
        let lane = copy.lane;
        self.lanes[lane].mark()?;
        Ok(lane)
    }

    fn launch(&self, copy: &Copy, base: Option<Base>) -> Result<(), DeviceError> {
        let tables = &self.tables[copy.lane / 2];
        let Some(kernels) = &tables.kernels else { return Ok(()) };
        let base = base.map_or(0, |base| base.address);
        let start = Start {
            units: tables.start.units + (copy.units.start * size_of::<Unit>()) as u64,
            unit_count: copy.units.len() as u32,
            source_base: if copy.from_staging { base } else { 0 },
            destination_base: if copy.to_staging { base } else { 0 },
            ..tables.start
        };
        let blocks = (copy.units.len() as u32).div_ceil(PACK_WARPS);
        // SAFETY: as for rows; the tables are uploaded and kept as well.
        unsafe { kernels.pack(&self.lanes[copy.lane].stream, &start, blocks) }
    }

    /// Where staging begins for a device, once the copy fits.
    fn base(&self, copy: &Copy, span: &Span, offset: u64) -> Result<Base, MemoryError> {
        if offset.checked_add(copy.staging).is_none_or(|end| end > span.bytes()) {
            return Err(MemoryError::Range { offset, bytes: copy.staging, limit: span.bytes() });
        }
        let locked = self.kept.iter().flat_map(|kept| &kept.locked).find(|locked| locked.start() == span.start());
        Ok(match locked {
            Some(locked) => Base { address: locked.address() + offset, locked: true },
            None => Base { address: span.start() as u64 + offset, locked: false },
        })
    }

    /// Whether the oldest copy under way on `lane` has been made; it is forgotten then.
    pub fn landed(&mut self, lane: usize) -> Result<bool, DeviceError> {
        self.lanes[lane].landed()
    }
}

/// The kernels, where they can be had: without them copies are slower and as right.
fn load(device: &Device) -> Option<Arc<Kernels>> {
    let loaded = Kernels::load(device);
    if let Err(error) = &loaded {
        log::warn!("copy engines alone move what is on {}, so short rows are slow: {error}", device.label());
    }
    loaded.ok()
}

impl Tables {
    /// Appends units and their pieces; numbers of the units.
    fn add(&mut self, pieces: Vec<Piece>, units: Vec<Unit>) -> Range<usize> {
        let (first_piece, first) = (self.pieces.len() as u32, self.units.len());
        self.pieces.extend(pieces);
        self.units.extend(units.into_iter().map(|unit| Unit { piece: unit.piece + first_piece, ..unit }));
        first..self.units.len()
    }
}

impl Lane {
    fn new(device: &Device) -> Result<Self, DeviceError> {
        let marks = (0..Bridge::DEPTH).map(|_| Event::without_time(device)).collect::<Result<_, _>>()?;
        Ok(Self { stream: Stream::urgent(device)?, marks, first: 0, under_way: 0 })
    }

    fn mark(&mut self) -> Result<(), DeviceError> {
        let free = (self.first + self.under_way) % self.marks.len();
        self.marks[free].record(&self.stream)?;
        self.under_way += 1;
        Ok(())
    }

    fn landed(&mut self) -> Result<bool, DeviceError> {
        if self.under_way == 0 || !self.marks[self.first].is_done()? {
            return Ok(false);
        }
        self.first = (self.first + 1) % self.marks.len();
        self.under_way -= 1;
        Ok(true)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let deadline = Deadline::after(END);
        let ended =
            self.lanes.iter().filter(|lane| lane.under_way > 0).try_for_each(|lane| lane.stream.synchronize(deadline));
        if let Err(error) = ended {
            log::error!("copies of a transfer that was given up have not ended: {error}; their memory is kept");
            std::mem::forget(self.kept.take());
        }
    }
}
