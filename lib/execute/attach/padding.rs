//! Copies that write padding. In: destinations whose layouts state a padding element. Out: copies from a pattern, to be
//! run at every start. Guarantee: every padding position is written once, holes are not.

use super::super::bind::Place;
use super::super::{ExecuteError, Side};
use super::Attach;
use crate::layout::positions::{Positions, padding_boxes};
use crate::memory::copy::Placed;
use crate::memory::{Buffer, Span};
use std::collections::HashMap;
use std::ops::Range;

/// Bytes of a pattern, a multiple of every element's: runs of this length are copied at once.
const PATTERN: u64 = 4096;

impl Attach<'_> {
    /// Copies of all padding of this rank's destinations.
    pub(super) fn padding(&mut self) -> Result<Range<u32>, ExecuteError> {
        let first = self.copies.next();
        let mut patterns: HashMap<&[u8], u32> = HashMap::new();
        for (tensor, spec) in self.plan.manifest().tensors().iter().enumerate() {
            let maps = self.local.maps(Side::Destination, tensor as u32).unwrap_or_default();
            let boxes = padding_boxes(maps);
            let Some(element) = spec.destination.padding().filter(|_| !boxes.is_empty()) else { continue };
            let (Some(local), Some(place)) =
                (&self.local.destination[tensor], self.own_place(Side::Destination, tensor as u32))
            else {
                continue;
            };
            let pattern = match patterns.get(element) {
                Some(&pattern) => pattern,
                None => {
                    self.spans.push(pattern_of(element)?);
                    let number = self.spans.len() as u32 - 1;
                    patterns.insert(element, number);
                    number
                }
            };
            for positions in boxes {
                let tensor = (local.offset, &local.strides[..], element.len() as u64);
                padding_parts(&positions, tensor, |extents, from, to| {
                    self.copies.add_box(extents, tensor.2, (from, Place::Span(pattern)), (to, place))
                })?;
            }
        }
        Ok(self.copies.finish(first))
    }
}

/// Copies of a box of padding in a tensor, given its offset, strides and bytes of an element: extents, where in the pattern,
/// where in the tensor's buffer.
pub(in crate::execute) fn padding_parts(
    positions: &[Positions],
    (offset, strides, element): (u64, &[u64], u64),
    mut each: impl FnMut(&[u64], Placed<'_>, Placed<'_>) -> Result<(), ExecuteError>,
) -> Result<(), ExecuteError> {
    let start = positions.iter().zip(strides).fold(offset, |sum, (at, stride)| sum + at.first * stride);
    let mut extents: Vec<u64> = positions.iter().map(|at| at.count).collect();
    let mut strides: Vec<u64> = positions.iter().zip(strides).map(|(at, stride)| at.step * stride).collect();
    // Contiguous dimensions are one run.
    let mut run = 1;
    while let (Some(&extent), Some(&stride)) = (extents.last(), strides.last()) {
        if extent > 1 && stride != run * element {
            break;
        }
        run *= extent;
        extents.pop();
        strides.pop();
    }
    let whole = PATTERN / element;
    let mut part = |counts: [u64; 2], offset: u64| {
        let extents = [&extents[..], &counts].concat();
        let to = [&strides[..], &[PATTERN, element]].concat();
        let from = [&vec![0; strides.len() + 1][..], &[element]].concat();
        each(&extents, Placed { offset: 0, strides: &from }, Placed { offset, strides: &to })
    };
    part([run / whole, whole], start)?;
    part([1, run % whole], start + run / whole * PATTERN)
}

/// One element over and over, as long as a run at most.
pub(in crate::execute) fn pattern_bytes(element: &[u8]) -> Vec<u8> {
    element.iter().copied().cycle().take(PATTERN as usize).collect()
}

/// A pattern in memory of the host.
fn pattern_of(element: &[u8]) -> Result<Span, ExecuteError> {
    let buffer = Buffer::private(PATTERN)?;
    buffer.write()?.copy_from_slice(&pattern_bytes(element));
    Ok(Span::of_buffer(&buffer))
}
