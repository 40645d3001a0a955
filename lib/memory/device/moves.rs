//! Boxes as work of a device. In: a table of boxes, where both ends are. Out: pieces and units for the kernel, copies for
//! the copy engine. Guarantee: pure; every byte of every box is moved once, by one of the two; a box that leaves its
//! memory is an error; units keep the order of the boxes.

use super::params::{NONE, Piece, Unit};
use super::stream::Rows;
use crate::memory::MemoryError;
use crate::memory::copy::{BoxCopy, CopyDimension, CopyTable};
use std::ops::Range;

/// Contiguous bytes from which the copy engine is faster than the kernel: 397 against 374 GB/s between two H200, but a
/// launch more and some 25 us until the engine runs.
pub const ENGINE_FROM: u64 = 128 << 20;
/// Most copies of an engine in a start; each costs the host about 2 us.
const ENGINE_COPIES: usize = 64;
/// Bytes that a warp moves in one round of its loop, below which a unit does not pay.
const SMALLEST_UNIT: u64 = 4 << 10;
const LARGEST_UNIT: u64 = 64 << 10;
/// Widest access.
const WIDEST: u64 = 16;

/// Memory that moves read or write: first byte, size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Address, as the device sees it.
    pub address: u64,
    /// Size.
    pub bytes: u64,
}

/// Boxes between two places, under one gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// Number of the source's place.
    pub source: u32,
    /// Number of the destination's place.
    pub destination: u32,
    /// Boxes.
    pub boxes: Range<usize>,
    /// Word that opens it, or [`NONE`].
    pub gate: u32,
    /// Report that its units count for, or [`NONE`].
    pub report: u32,
    /// Whether both ends are on this device: such units nobody waits for are spread among the others, so that the link
    /// is busy meanwhile.
    pub local: bool,
}

impl Rows {
    /// Whether one run goes on where another ends, on both sides.
    pub fn is_continued_by(&self, next: &Rows) -> bool {
        self.rows == 1
            && next.rows == 1
            && self.source + self.run == next.source
            && self.destination + self.run == next.destination
    }

    /// Takes a run that continues it.
    pub fn extend(&mut self, next: &Rows) {
        self.run += next.run;
        (self.source_step, self.destination_step) = (self.run, self.run);
    }
}

/// What a device does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moves {
    /// For the kernel.
    pub pieces: Vec<Piece>,
    /// For the kernel, in order.
    pub units: Vec<Unit>,
    /// For the copy engine.
    pub engine: Vec<Rows>,
    /// Units per report.
    pub reported: Vec<u32>,
}

/// Who moves what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mover {
    /// The kernel, but for long contiguous runs that nobody waits for. The number of warps that share the units.
    Kernel {
        /// Warps.
        warps: u64,
    },
    /// The kernel alone.
    KernelAlone {
        /// Warps that share the units.
        warps: u64,
    },
    /// The copy engine alone.
    Engine,
}

/// Loops of a box around rows: what is left of them for the host to expand, the plane, the row.
struct Shape {
    outer: Vec<CopyDimension>,
    plane: CopyDimension,
    row: CopyDimension,
    run: u64,
}

const ONCE: CopyDimension = CopyDimension { extent: 1, source: 0, destination: 0 };

impl Moves {
    /// Lowers `works` over `table`.
    pub fn lower(table: &CopyTable, works: &[Work], places: &[Place], mover: Mover) -> Result<Self, MemoryError> {
        let mut moves = Self::default();
        let unit = unit_bytes(table, works, mover);
        let reports = works.iter().filter(|work| work.report != NONE).map(|work| work.report + 1).max().unwrap_or(0);
        moves.reported = vec![0; reports as usize];
        let mut local = Vec::new();
        for work in works {
            let first = moves.units.len();
            for index in work.boxes.clone() {
                let (copy, loops) = table.get(index);
                let (source, destination) =
                    ends(copy, places[work.source as usize], places[work.destination as usize])?;
                let engine = match mover {
                    Mover::Engine => true,
                    Mover::KernelAlone { .. } => false,
                    Mover::Kernel { .. } => {
                        work.report == NONE && copy.run >= ENGINE_FROM && moves.engine.len() < ENGINE_COPIES
                    }
                };
                if engine {
                    moves.add_engine(source, destination, loops, copy.run);
                } else {
                    moves.add_kernel(source, destination, loops, copy.run, unit, work);
                }
            }
            if work.local && work.report == NONE {
                local.extend(moves.units.drain(first..));
            }
        }
        moves.units = spread(std::mem::take(&mut moves.units), local);
        Ok(moves)
    }

    fn add_engine(&mut self, source: u64, destination: u64, loops: &[CopyDimension], run: u64) {
        for_each(loops, run, source, destination, &mut |rows| self.engine.push(rows));
    }

    fn add_kernel(&mut self, source: u64, destination: u64, loops: &[CopyDimension], run: u64, unit: u64, work: &Work) {
        // A run longer than a unit is rows of a unit, and what is left over.
        let whole = run / unit;
        if run > unit {
            let mut inner = loops.to_vec();
            inner.push(CopyDimension { extent: whole, source: unit, destination: unit });
            self.add_rows(source, destination, &inner, unit, unit, work);
            let rest = run % unit;
            if rest > 0 {
                self.add_rows(source + whole * unit, destination + whole * unit, loops, rest, unit, work);
            }
        } else {
            self.add_rows(source, destination, loops, run, unit, work);
        }
    }

    fn add_rows(&mut self, source: u64, destination: u64, loops: &[CopyDimension], run: u64, unit: u64, work: &Work) {
        let shape = shape(loops, run);
        let steps = loops.iter().fold(0, |bits, step| bits | step.source | step.destination);
        for_each_start(&shape.outer, source, destination, &mut |source, destination| {
            let piece = self.pieces.len() as u32;
            self.pieces.push(Piece {
                source,
                destination,
                source_row: shape.row.source,
                destination_row: shape.row.destination,
                source_plane: shape.plane.source,
                destination_plane: shape.plane.destination,
                run: shape.run as u32,
                width: width(source | destination | steps | shape.run),
                rows: shape.row.extent as u32,
                unused: 0,
            });
            let rows = shape.row.extent * shape.plane.extent;
            let at_once = (unit / shape.run).max(1);
            for first in (0..rows).step_by(at_once as usize) {
                let rows = at_once.min(rows - first) as u32;
                let (gate, report) = (work.gate, work.report);
                self.units.push(Unit { piece, first: first as u32, rows, gate, report });
                if report != NONE {
                    self.reported[report as usize] += 1;
                }
            }
        });
    }

    /// Bytes that it moves.
    pub fn bytes(&self) -> u64 {
        let kernel: u64 = self.units.iter().map(|unit| u64::from(unit.rows) * self.run_of(unit)).sum();
        kernel + self.engine.iter().map(|copy| copy.rows * copy.run).sum::<u64>()
    }

    fn run_of(&self, unit: &Unit) -> u64 {
        u64::from(self.pieces[unit.piece as usize].run)
    }
}

/// Units small enough that every warp has a few, large enough that a warp's loop is full.
fn unit_bytes(table: &CopyTable, works: &[Work], mover: Mover) -> u64 {
    let (Mover::Kernel { warps } | Mover::KernelAlone { warps }) = mover else { return LARGEST_UNIT };
    let bytes: u64 = works.iter().flat_map(|work| work.boxes.clone()).map(|index| table.bytes_of(index)).sum();
    // One unit for each warp where that is little work; several where there is much, so that all end together.
    let each = bytes.div_ceil(warps.max(1));
    let ideal = if each <= 4 * SMALLEST_UNIT { each } else { each / 4 };
    ideal.next_power_of_two().clamp(SMALLEST_UNIT, LARGEST_UNIT)
}

/// Both lists in their order, the second spread evenly among the first.
fn spread(units: Vec<Unit>, among: Vec<Unit>) -> Vec<Unit> {
    let (count, more) = (units.len() as u64, among.len() as u64);
    let mut spread = Vec::with_capacity(units.len() + among.len());
    let mut rest = among.into_iter();
    let mut taken = 0;
    for (number, unit) in units.into_iter().enumerate() {
        spread.push(unit);
        let due = (number as u64 + 1) * more / count;
        spread.extend(rest.by_ref().take((due - taken) as usize));
        taken = due;
    }
    spread.extend(rest);
    spread
}

/// Addresses of a box's first bytes, once both of its ends lie inside their places.
fn ends(copy: &BoxCopy, source: Place, destination: Place) -> Result<(u64, u64), MemoryError> {
    let (source_end, destination_end) = copy.ends();
    for (end, first, place) in [(source_end, copy.source, source), (destination_end, copy.destination, destination)] {
        if end > place.bytes {
            return Err(MemoryError::Range { offset: first, bytes: end - first, limit: place.bytes });
        }
    }
    Ok((source.address + copy.source, destination.address + copy.destination))
}

/// The two innermost loops as rows and planes, as far as 32 bits count them; the others are expanded.
fn shape(loops: &[CopyDimension], run: u64) -> Shape {
    let most = u64::from(u32::MAX);
    let mut outer = loops.to_vec();
    let mut take = |room: u64| match outer.last() {
        Some(last) if last.extent <= room => outer.pop(),
        _ => None,
    };
    let row = take(most).unwrap_or(ONCE);
    let plane = take(most / row.extent.max(1)).unwrap_or(ONCE);
    Shape { outer, plane, row, run }
}

/// Largest step of rows that a copy engine takes.
const LARGEST_STEP: u64 = i32::MAX as u64;

/// Calls `each` for a box as rows that a copy engine takes, the innermost loop at once where its steps allow it.
pub(super) fn for_each(loops: &[CopyDimension], run: u64, source: u64, destination: u64, each: &mut impl FnMut(Rows)) {
    let fits = |step: u64| (run..=LARGEST_STEP).contains(&step);
    let (outer, rows, source_step, destination_step) = match loops.split_last() {
        Some((row, outer)) if fits(row.source) && fits(row.destination) => {
            (outer, row.extent, row.source, row.destination)
        }
        _ => (loops, 1, run, run),
    };
    for_each_start(outer, source, destination, &mut |source, destination| {
        each(Rows { source, destination, source_step, destination_step, run, rows });
    });
}

/// Calls `each` for every combination of the loops.
fn for_each_start(loops: &[CopyDimension], source: u64, destination: u64, each: &mut impl FnMut(u64, u64)) {
    let Some((outer, inner)) = loops.split_first() else { return each(source, destination) };
    for round in 0..outer.extent {
        for_each_start(inner, source + round * outer.source, destination + round * outer.destination, each);
    }
}

/// The widest access that divides everything in `bits`.
fn width(bits: u64) -> u32 {
    (1 << bits.trailing_zeros().min(WIDEST.trailing_zeros())) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::copy::Placed;
    use proptest::prelude::*;

    /// Source and destination of every byte, in order of destinations.
    fn bytes_of(moves: &Moves) -> Vec<(u64, u64)> {
        let mut bytes = Vec::new();
        for unit in &moves.units {
            let piece = &moves.pieces[unit.piece as usize];
            for row in unit.first..unit.first + unit.rows {
                let (plane, row) = (u64::from(row / piece.rows), u64::from(row % piece.rows));
                let from = piece.source + plane * piece.source_plane + row * piece.source_row;
                let to = piece.destination + plane * piece.destination_plane + row * piece.destination_row;
                let width = u64::from(piece.width);
                assert!([from, to, u64::from(piece.run)].iter().all(|at| at.is_multiple_of(width)), "{piece:?}");
                bytes.extend((0..u64::from(piece.run)).map(|at| (from + at, to + at)));
            }
        }
        for copy in &moves.engine {
            for row in 0..copy.rows {
                let (from, to) = (copy.source + row * copy.source_step, copy.destination + row * copy.destination_step);
                bytes.extend((0..copy.run).map(|at| (from + at, to + at)));
            }
        }
        bytes.sort_unstable_by_key(|&(_, to)| to);
        bytes
    }

    fn expected(table: &CopyTable, base: (u64, u64)) -> Vec<(u64, u64)> {
        let mut bytes = Vec::new();
        table.runs(0..table.len(), |from, to, count| {
            bytes.extend((0..count).map(|at| (base.0 + from + at, base.1 + to + at)));
        });
        bytes.sort_unstable_by_key(|&(_, to)| to);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn every_byte_is_moved_once(
            extents in proptest::collection::vec(1u64..6, 0..5),
            element in prop_oneof![Just(1u64), Just(2), Just(4), Just(8), Just(9000)],
            gaps in proptest::collection::vec(0u64..40, 10),
            offset in 0u64..64,
            kernel in any::<bool>(),
        ) {
            let strides = |gaps: &[u64]| {
                let mut strides = vec![0; extents.len()];
                let mut next = element;
                for dim in (0..extents.len()).rev() {
                    strides[dim] = next;
                    next = next * extents[dim] + gaps[dim];
                }
                (strides, next)
            };
            let ((from, from_bytes), (to, to_bytes)) = (strides(&gaps[..5]), strides(&gaps[5..]));
            let mut table = CopyTable::new();
            let at = |strides| Placed { offset, strides };
            table.push(&extents, element, at(&from), at(&to)).unwrap();
            let places = [
                Place { address: 1 << 20, bytes: from_bytes + offset },
                Place { address: 1 << 30, bytes: to_bytes + offset },
            ];
            let work = Work { source: 0, destination: 1, boxes: 0..table.len(), gate: NONE, report: 0, local: false };
            let mover = if kernel { Mover::Kernel { warps: 4 } } else { Mover::Engine };
            let moves = Moves::lower(&table, std::slice::from_ref(&work), &places, mover).unwrap();
            prop_assert_eq!(bytes_of(&moves), expected(&table, (1 << 20, 1 << 30)));
            prop_assert_eq!(moves.bytes(), expected(&table, (0, 0)).len() as u64);
            prop_assert_eq!(moves.reported.iter().sum::<u32>() as usize, moves.units.len());
            let short = [places[0], Place { bytes: to.iter().zip(&extents).map(|(s, n)| s * (n - 1)).sum::<u64>() + offset, ..places[1] }];
            prop_assert!(Moves::lower(&table, &[work], &short, mover).is_err());
        }
    }

    #[test]
    fn units_on_one_device_are_spread_among_those_of_the_link() {
        let units = |numbers: std::ops::Range<u32>| numbers.map(|piece| Unit { piece, ..Unit::default() }).collect();
        let order = |first: Vec<Unit>, second: Vec<Unit>| -> Vec<u32> {
            spread(first, second).iter().map(|unit| unit.piece).collect()
        };
        assert_eq!(order(units(0..4), units(10..12)), [0, 1, 10, 2, 3, 11]);
        assert_eq!(order(units(0..2), units(10..15)), [0, 10, 11, 1, 12, 13, 14]);
        assert_eq!(order(units(0..0), units(10..12)), [10, 11]);
        assert_eq!(order(units(0..2), units(10..10)), [0, 1]);
    }

    fn unreported(units: Vec<Unit>) -> Vec<Unit> {
        units.into_iter().map(|unit| Unit { report: NONE, ..unit }).collect()
    }

    #[test]
    fn long_runs_go_to_the_engine_unless_others_wait_for_them() {
        let mut table = CopyTable::new();
        table
            .push(&[3 * ENGINE_FROM + 5], 1, Placed { offset: 0, strides: &[1] }, Placed { offset: 0, strides: &[1] })
            .unwrap();
        let place = Place { address: 4096, bytes: 4 * ENGINE_FROM };
        let work = |report| [Work { source: 0, destination: 0, boxes: 0..1, gate: NONE, report, local: false }];
        let mover = Mover::Kernel { warps: 2112 };
        let alone = Moves::lower(&table, &work(NONE), &[place], mover).unwrap();
        assert_eq!((alone.engine.len(), alone.units.len()), (1, 0));
        let awaited = Moves::lower(&table, &work(0), &[place], mover).unwrap();
        assert!(awaited.engine.is_empty() && awaited.bytes() == 3 * ENGINE_FROM + 5);
        assert_eq!(awaited.pieces.iter().map(|piece| piece.width).collect::<Vec<_>>(), [16, 1]);
        let kernel = Moves::lower(&table, &work(NONE), &[place], Mover::KernelAlone { warps: 2112 }).unwrap();
        assert_eq!((kernel.engine.len(), kernel.pieces, kernel.units), (0, awaited.pieces, unreported(awaited.units)));
    }
}
