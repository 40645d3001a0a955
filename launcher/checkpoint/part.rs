//! Boxes of tensors that are parts of others: one of several that a checkpoint stores as one, one expert of a stack,
//! transposed. In: the whole tensor, which of its indices the part has. Out: bytes. Guarantee: a box of a part reads what
//! lies around it at most, in one piece for each run of indices.

use super::error::RegionError;
use super::model::{Model, TensorSource};
use super::region::Region;
use crossmesh::layout::Segment;
use crossmesh::layout::parallel::OriginAxis;

/// Indices of one dimension of the whole that a box of the part has, at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// First index in the whole.
    first: u64,
    count: u64,
    /// Distance in the whole.
    step: u64,
    /// Dimension of the part, and first index in the box; none for one index that the part has no dimension for.
    place: Option<(usize, u64)>,
}

impl Piece {
    /// Indices of the whole from the first to the last.
    fn reach(&self) -> u64 {
        (self.count - 1) * self.step + 1
    }
}

/// What a box of the part has of one dimension of the whole.
fn pieces(axis: &OriginAxis, region: Region<'_>) -> Vec<Piece> {
    let (dim, map) = match axis {
        &OriginAxis::At(first) => return vec![Piece { first, count: 1, step: 1, place: None }],
        OriginAxis::Along { dim, map } => (*dim, map),
    };
    let (lo, hi) = (region.lo[dim], region.lo[dim] + region.extent[dim]);
    let meet = |&Segment { local, step, global }: &Segment| {
        let (from, to) = (global.lo.max(lo), global.hi.min(hi));
        (from < to).then(|| Piece {
            first: local + (from - global.lo) * step,
            count: to - from,
            step,
            place: Some((dim, from - lo)),
        })
    };
    map.segments().iter().filter_map(meet).collect()
}

/// Row-major strides in bytes.
fn strides(extents: &[u64], element: u64) -> Vec<u64> {
    let mut strides = vec![element; extents.len()];
    for dim in (1..extents.len()).rev() {
        strides[dim - 1] = strides[dim] * extents[dim];
    }
    strides
}

impl Model {
    /// Copies a checked box of a part of `whole` to `out`, row-major without gaps.
    pub(super) fn gather_of_whole(
        &self,
        whole: &TensorSource,
        axes: &[OriginAxis],
        region: Region<'_>,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        let element = whole.dtype.bytes();
        let to = strides(region.extent, element);
        let mut boxes: Vec<Vec<Piece>> = vec![Vec::new()];
        for axis in axes {
            let pieces = pieces(axis, region);
            let with = |earlier: &Vec<Piece>, piece: &Piece| [earlier.as_slice(), &[*piece]].concat();
            boxes = boxes.iter().flat_map(|earlier| pieces.iter().map(move |piece| with(earlier, piece))).collect();
        }
        for pieces in boxes {
            let lo: Vec<u64> = pieces.iter().map(|piece| piece.first).collect();
            let extent: Vec<u64> = pieces.iter().map(Piece::reach).collect();
            let mut read = vec![0u8; (extent.iter().product::<u64>() * element) as usize];
            self.gather_from(whole, Region { lo: &lo, extent: &extent }, &mut read)?;
            let from: Vec<u64> =
                strides(&extent, element).iter().zip(&pieces).map(|(stride, piece)| stride * piece.step).collect();
            let start: u64 = pieces.iter().filter_map(|piece| piece.place).map(|(dim, at)| at * to[dim]).sum();
            let to: Vec<u64> = pieces.iter().map(|piece| piece.place.map_or(0, |(dim, _)| to[dim])).collect();
            let counts: Vec<u64> = pieces.iter().map(|piece| piece.count).collect();
            copy_box(&counts, element, (&read, &from), (out, start, &to));
        }
        Ok(())
    }
}

/// Copies a box between strides in bytes, from byte 0 to byte `start`.
fn copy_box(
    counts: &[u64],
    element: u64,
    (from, from_strides): (&[u8], &[u64]),
    (to, start, to_strides): (&mut [u8], u64, &[u64]),
) {
    // The last dimension is one run unless its elements lie apart.
    let last = counts.len().checked_sub(1).filter(|&last| from_strides[last] == element && to_strides[last] == element);
    let run = (last.map_or(1, |last| counts[last]) * element) as usize;
    let outer = &counts[..last.unwrap_or(counts.len())];
    let mut at = vec![0u64; outer.len()];
    loop {
        let place = |strides: &[u64]| at.iter().zip(strides).map(|(index, stride)| index * stride).sum::<u64>();
        let (source, target) = (place(from_strides) as usize, (start + place(to_strides)) as usize);
        to[target..target + run].copy_from_slice(&from[source..source + run]);
        let Some(dim) = (0..outer.len()).rev().find(|&dim| at[dim] + 1 < outer[dim]) else { return };
        at[dim] += 1;
        at[dim + 1..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::model::Contents;
    use crossmesh::layout::model::{Model as Description, ModelTensor};
    use crossmesh::layout::{AxisMap, Dtype, Interval};

    /// Against one element at a time: a stack of two experts whose last dimension has two tensors in turn, transposed.
    #[test]
    fn any_box_of_a_part() {
        let shape = [2u64, 3, 8];
        let description = Description::new("m", vec![ModelTensor::new("w", shape, Dtype::I16)]).unwrap();
        let model = Model::described(&description);
        let mut all = vec![0u8; 96];
        model.gather(0, Region { lo: &[0, 0, 0], extent: &shape }, &mut all).unwrap();
        let interleaved = AxisMap::interleaved(Interval { lo: 0, hi: 4 }, 1, 2).unwrap();
        let axes = vec![
            OriginAxis::At(1),
            OriginAxis::Along { dim: 1, map: AxisMap::new([Interval { lo: 0, hi: 3 }]) },
            OriginAxis::Along { dim: 0, map: interleaved },
        ];
        let whole = model.tensors()[0].clone();
        let element = |row: u64, column: u64| {
            let at = 2 * (24 + column * 8 + 2 * row + 1) as usize;
            all[at..at + 2].to_vec()
        };
        let part = TensorSource {
            name: "part".into(),
            shape: vec![4, 3],
            dtype: Dtype::I16,
            contents: Contents::Part { whole: Box::new(whole.clone()), axes: axes.clone() },
        };
        let model = model.with_tensors(vec![part]);
        for (row, column) in (0..4u64).flat_map(|row| (0..3u64).map(move |column| (row, column))) {
            for (rows, columns) in (1..=4 - row).flat_map(|rows| (1..=3 - column).map(move |columns| (rows, columns))) {
                let region = Region { lo: &[row, column], extent: &[rows, columns] };
                let mut found = vec![0u8; (2 * rows * columns) as usize];
                model.gather(0, region, &mut found).unwrap();
                let expected = (row..row + rows).flat_map(|row| (column..column + columns).map(move |at| (row, at)));
                let expected: Vec<u8> = expected.flat_map(|(row, at)| element(row, at)).collect();
                assert_eq!(found, expected, "{region:?}");
                model.matches(0, region, &found).unwrap();
                found[2 * (rows * columns) as usize - 1] ^= 1;
                let error = model.matches(0, region, &found).unwrap_err();
                let RegionError::Differs { index, .. } = error else { panic!("{error}") };
                assert_eq!(index, [row + rows - 1, column + columns - 1]);
            }
        }
    }
}
