//! Addresses for items. In: program, local tensors, what peers exported. Out: copies and puts as tables. Guarantee:
//! every copy lies inside its memory (checked when the table is built and again when it runs).

use super::boxes::sub_boxes;
use super::exchange::Export;
use super::program::Program;
use super::tensors::{LocalTensors, locate, places};
use super::{ExecuteError, Side};
use crate::layout::{AxisMap, Dtype, Location};
use crate::memory::copy::{CopyTable, Operation, Placed, Sum};
use crate::plan::{Plan, PlanError};
use crate::route::Piece;
use std::borrow::Cow;
use std::ops::Range;

/// Shortest run, on average, that is put straight from or into a tensor; shorter ones are packed.
const DIRECT_RUN: u64 = 16 << 10;

/// Memory that one end of a copy lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A span of [`Bound::spans`](super::execution::Execution): own or mapped from a peer.
    Span(u32),
    /// Private memory of a peer's process, whose boxes count from this address.
    Process { peer: u32, address: u64 },
    /// The slot in which a peer stores the item that is read.
    PeerSlot(u32),
    /// The item's own slot.
    Slot,
    /// A slot for sending.
    SendSlot,
    /// The slot of the sum that the item is a term of.
    SumSlot(u32),
}

/// What a copy does with its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Onto {
    /// Replaces what it holds; values that become infinite on the way are counted or not.
    Replaced { counted: bool },
    /// Adds to what it holds.
    Added,
}

impl Onto {
    /// For all places in which one rank stores the same: values that become infinite count in the first at most.
    pub(super) fn places(counted: bool) -> impl Iterator<Item = Self> {
        std::iter::once(Self::Replaced { counted }).chain(std::iter::repeat(Self::Replaced { counted: false }))
    }
}

/// Boxes between two places.
#[derive(Debug, Clone)]
pub(super) struct CopyOp {
    pub(super) source: Place,
    pub(super) destination: Place,
    pub(super) boxes: Range<u32>,
}

/// A copy of what has one type on both sides.
pub(super) const UNCHANGED: Onto = Onto::Replaced { counted: false };

/// One end of a stretch of a cell.
#[derive(Debug, Clone)]
pub(super) enum End<'a> {
    /// In a tensor: byte position of the cell's first element, byte strides.
    Tensor { offset: u64, strides: Cow<'a, [u64]>, dtype: Dtype },
    /// Packed from this byte on.
    Packed { offset: u64, dtype: Dtype },
}

impl End<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            End::Tensor { dtype, .. } | End::Packed { dtype, .. } => *dtype,
        }
    }
}

/// Appends the boxes of a piece; where the types of its ends differ, elements change on the way.
pub(super) fn append(
    table: &mut CopyTable,
    plan: &Plan,
    piece: &Piece,
    source: &End<'_>,
    destination: &End<'_>,
    onto: Onto,
) -> Result<(), ExecuteError> {
    let extents: Vec<u64> = plan.cell(piece.cell).intervals.iter().map(|interval| interval.len()).collect();
    let (from, to) = (source.dtype(), destination.dtype());
    let operation = match onto {
        Onto::Replaced { counted } => Operation::between(from, to, counted),
        Onto::Added => Sum::of(from, to).map(Operation::Add),
    };
    let operation = operation.ok_or_else(|| no_cast(plan, piece, from, to))?;
    for sub in sub_boxes(&extents, piece.start, piece.end) {
        let place = |end: &End<'_>| match end {
            // Strides may be a peer's. What saturates ends outside of every memory, which the table refuses.
            End::Tensor { offset, strides, .. } => sub
                .lo
                .iter()
                .zip(strides.iter())
                .fold(*offset, |sum, (&index, &stride)| sum.saturating_add(index.saturating_mul(stride))),
            End::Packed { offset, dtype } => offset + (sub.first - piece.start) * dtype.bytes(),
        };
        let strides = |end: &End<'_>| match end {
            End::Tensor { strides, .. } => strides.to_vec(),
            End::Packed { dtype, .. } => row_major(&sub.extents, dtype.bytes()),
        };
        let (read, written) = (strides(source), strides(destination));
        table.push_changed(
            &sub.extents,
            from.bytes(),
            operation,
            Placed { offset: place(source), strides: &read },
            Placed { offset: place(destination), strides: &written },
        )?;
    }
    Ok(())
}

/// A type that a manifest should have refused.
fn no_cast(plan: &Plan, piece: &Piece, source_dtype: Dtype, destination_dtype: Dtype) -> PlanError {
    let name = plan.manifest().tensors()[piece.cell.tensor as usize].name.clone();
    PlanError::Cast { name, source_dtype, destination_dtype }
}

fn row_major(extents: &[u64], element: u64) -> Vec<u64> {
    let mut strides = vec![element; extents.len()];
    for dim in (1..extents.len()).rev() {
        strides[dim - 1] = strides[dim] * extents[dim];
    }
    strides
}

/// A piece's cell in one of this rank's tensors, in the first place if there are several.
pub(super) fn own_end<'a>(plan: &Plan, local: &'a LocalTensors, side: Side, piece: &Piece) -> Option<End<'a>> {
    let tensor = local.side(side)[piece.cell.tensor as usize].as_ref()?;
    let place = locate(local.maps(side, piece.cell.tensor)?, &plan.cell(piece.cell).intervals)?;
    end_at(tensor.offset, &tensor.strides, &place, side_dtype(plan, side, piece.cell.tensor))
}

/// Type of a tensor on one side.
pub(super) fn side_dtype(plan: &Plan, side: Side, tensor: u32) -> Dtype {
    let tensor = &plan.manifest().tensors()[tensor as usize];
    match side {
        Side::Source => tensor.source.dtype(),
        Side::Destination => tensor.destination.dtype(),
    }
}

/// Whether an item's elements travel as they are in the tensors of one side.
pub(super) fn is_unchanged(program: &Program, plan: &Plan, side: Side, item: u32) -> bool {
    let pieces = program.item_pieces(item).iter();
    pieces
        .map(|piece| piece.cell.tensor)
        .all(|tensor| side_dtype(plan, side, tensor) == program.dtype(plan, item, tensor))
}

/// A piece's cell in one of this rank's tensors, in every place.
pub(super) fn own_ends<'a>(plan: &Plan, local: &'a LocalTensors, side: Side, piece: &Piece) -> Option<Vec<End<'a>>> {
    let tensor = local.side(side)[piece.cell.tensor as usize].as_ref()?;
    let places = places(local.maps(side, piece.cell.tensor)?, &plan.cell(piece.cell).intervals);
    let dtype = side_dtype(plan, side, piece.cell.tensor);
    places.iter().map(|place| end_at(tensor.offset, &tensor.strides, place, dtype)).collect()
}

/// A piece's cell in a peer's tensor, in the first place if there are several.
pub(super) fn peer_end<'a>(
    plan: &Plan,
    side: Side,
    maps: &[AxisMap],
    export: &'a Export,
    base: u64,
    piece: &Piece,
) -> Option<End<'a>> {
    let place = locate(maps, &plan.cell(piece.cell).intervals)?;
    let dtype = side_dtype(plan, side, piece.cell.tensor);
    end_at(base.checked_add(export.offset)?, &export.strides, &place, dtype)
}

/// A piece's cell in a peer's tensor, in every place.
pub(super) fn peer_ends<'a>(
    plan: &Plan,
    side: Side,
    maps: &[AxisMap],
    export: &'a Export,
    base: u64,
    piece: &Piece,
) -> Option<Vec<End<'a>>> {
    let offset = base.checked_add(export.offset)?;
    let places = places(maps, &plan.cell(piece.cell).intervals);
    let dtype = side_dtype(plan, side, piece.cell.tensor);
    places.iter().map(|place| end_at(offset, &export.strides, place, dtype)).collect()
}

/// The end at `place` of a tensor; strides may be a peer's, so everything is checked.
fn end_at<'a>(offset: u64, strides: &'a [u64], place: &[Location], dtype: Dtype) -> Option<End<'a>> {
    if strides.len() != place.len() {
        return None;
    }
    let inside = place.iter().zip(strides).map(|(at, &stride)| at.local.checked_mul(stride)).sum::<Option<u64>>()?;
    let strides = if place.iter().all(|at| at.step == 1) {
        Cow::Borrowed(strides)
    } else {
        place.iter().zip(strides).map(|(at, &stride)| at.step.checked_mul(stride)).collect::<Option<_>>()?
    };
    Some(End::Tensor { offset: offset.checked_add(inside)?, strides, dtype })
}

/// A contiguous stretch of a packed chunk that lies contiguously in a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) packed: u64,
    pub(super) tensor: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The runs of an item in the tensors that `end` finds, in packed order; neighbours are joined. Its elements must be
/// unchanged there.
pub(super) fn runs<'a>(
    program: &Program,
    plan: &Plan,
    item: u32,
    end: impl Fn(&Piece) -> Option<End<'a>>,
) -> Result<Vec<Run>, ExecuteError> {
    let mut runs: Vec<Run> = Vec::new();
    let mut packed = 0;
    for piece in program.item_pieces(item) {
        let Some(tensor_end) = end(piece) else { continue };
        let mut table = CopyTable::new();
        let dtype = tensor_end.dtype();
        append(&mut table, plan, piece, &tensor_end, &End::Packed { offset: packed, dtype }, UNCHANGED)?;
        table.runs(0..table.len(), |offset, packed, bytes| match runs.last_mut() {
            Some(last)
                if last.tensor == piece.cell.tensor
                    && last.offset + last.bytes == offset
                    && last.packed + last.bytes == packed =>
            {
                last.bytes += bytes;
            }
            _ => runs.push(Run { packed, tensor: piece.cell.tensor, offset, bytes }),
        });
        packed += (piece.end - piece.start) * dtype.bytes();
    }
    Ok(runs)
}

/// Whether a chunk of so many runs is worth putting without packing.
pub(super) fn is_direct(runs: u64, bytes: u64) -> bool {
    runs <= 1 || bytes / runs >= DIRECT_RUN
}

/// Number of runs of an item in this rank's tensors of one side.
pub(super) fn count_runs(
    program: &Program,
    plan: &Plan,
    local: &LocalTensors,
    side: Side,
    item: u32,
) -> Result<u64, ExecuteError> {
    let mut count = 0;
    for piece in program.item_pieces(item) {
        if let Some(end) = own_end(plan, local, side, piece) {
            let mut table = CopyTable::new();
            append(&mut table, plan, piece, &end, &End::Packed { offset: 0, dtype: end.dtype() }, UNCHANGED)?;
            count += table.run_count(0..table.len());
        }
    }
    Ok(count)
}

/// Whether this rank's tensors of one side store some of an item more than once.
pub(super) fn is_repeated(program: &Program, plan: &Plan, local: &LocalTensors, side: Side, item: u32) -> bool {
    program.item_pieces(item).iter().any(|piece| {
        let maps = local.maps(side, piece.cell.tensor).unwrap_or_default();
        maps.iter().zip(&plan.cell(piece.cell).intervals).any(|(map, &interval)| map.places(interval).nth(1).is_some())
    })
}

/// Cuts two descriptions of the same packed bytes at each other's borders: (first, second, packed, bytes), with
/// positions inside the given runs.
pub(super) fn pair(first: &[Run], second: &[Run], mut each: impl FnMut(&Run, u64, &Run, u64, u64)) {
    let (mut i, mut j, mut at) = (0, 0, 0);
    while let (Some(a), Some(b)) = (first.get(i), second.get(j)) {
        let end = (a.packed + a.bytes).min(b.packed + b.bytes);
        if end > at {
            each(a, a.offset + (at - a.packed), b, b.offset + (at - b.packed), end - at);
            at = end;
        }
        i += usize::from(a.packed + a.bytes <= at);
        j += usize::from(b.packed + b.bytes <= at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_cut_at_both_borders() {
        let run = |packed, tensor, offset, bytes| Run { packed, tensor, offset, bytes };
        let first = [run(0, 1, 100, 10), run(10, 2, 0, 6)];
        let second = [run(0, 7, 0, 4), run(4, 7, 50, 12)];
        let mut seen = Vec::new();
        pair(&first, &second, |a, from, b, to, bytes| seen.push((a.tensor, from, b.tensor, to, bytes)));
        assert_eq!(seen, [(1, 100, 7, 0, 4), (1, 104, 7, 50, 6), (2, 0, 7, 56, 6)]);
    }

    #[test]
    fn long_runs_go_direct() {
        assert!(is_direct(1, 8) && is_direct(4, 64 << 10));
        assert!(!is_direct(5, 64 << 10));
    }
}
