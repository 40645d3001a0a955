//! Boxes of local positions. In: a rank's axis maps. Out: what its local tensor stores, and its padding, as products of
//! equally spaced positions. Guarantee: the boxes of one call are disjoint.

use super::AxisMap;

/// Local positions of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// The first.
    pub first: u64,
    /// Distance of neighbours.
    pub step: u64,
    /// How many.
    pub count: u64,
}

impl AxisMap {
    fn stored_positions(&self) -> impl Iterator<Item = Positions> + '_ {
        self.segments().iter().map(|segment| Positions {
            first: segment.local,
            step: segment.step,
            count: segment.global.len(),
        })
    }

    fn padding_positions(&self) -> impl Iterator<Item = Positions> + '_ {
        self.padding().iter().map(|span| Positions { first: span.lo, step: 1, count: span.len() })
    }

    /// Positions of this tensor, which are all but holes.
    fn own_positions(&self) -> Vec<Positions> {
        match self.stored() + self.padded() == self.extent() {
            true if self.extent() == 0 => Vec::new(),
            true => vec![Positions { first: 0, step: 1, count: self.extent() }],
            false => self.stored_positions().chain(self.padding_positions()).collect(),
        }
    }
}

/// Boxes of what has a global index, one position list per dimension.
pub fn stored_boxes(maps: &[AxisMap]) -> Vec<Vec<Positions>> {
    product(maps.iter().map(|map| match map.is_plain() {
        true => map.own_positions(),
        false => map.stored_positions().collect(),
    }))
}

/// Boxes of all that belongs to the tensor: what has a global index, and padding.
pub fn own_boxes(maps: &[AxisMap]) -> Vec<Vec<Positions>> {
    product(maps.iter().map(AxisMap::own_positions))
}

/// Boxes of padding: positions that are padding along some dimension and a hole along none.
pub fn padding_boxes(maps: &[AxisMap]) -> Vec<Vec<Positions>> {
    // By the first dimension along which they are padding.
    (0..maps.len())
        .filter(|&dim| !maps[dim].padding().is_empty())
        .flat_map(|dim| {
            product(maps.iter().enumerate().map(|(other, map)| match other.cmp(&dim) {
                std::cmp::Ordering::Less => map.stored_positions().collect(),
                std::cmp::Ordering::Equal => map.padding_positions().collect(),
                std::cmp::Ordering::Greater => map.own_positions(),
            }))
        })
        .collect()
}

/// Local positions that are padding, of a local tensor with these maps.
pub fn padded_elements(maps: &[AxisMap]) -> u64 {
    let all: u64 = maps.iter().map(|map| map.stored() + map.padded()).product();
    all - maps.iter().map(AxisMap::stored).product::<u64>()
}

fn product(dimensions: impl Iterator<Item = Vec<Positions>>) -> Vec<Vec<Positions>> {
    dimensions.fold(vec![Vec::new()], |boxes, positions| {
        boxes
            .iter()
            .flat_map(|outer| positions.iter().map(move |&inner| outer.iter().copied().chain([inner]).collect()))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Interval, Part};

    fn members(boxes: &[Vec<Positions>]) -> Vec<Vec<u64>> {
        let along = |at: &Positions| (0..at.count).map(|index| at.first + index * at.step).collect::<Vec<_>>();
        let mut members: Vec<Vec<u64>> = boxes
            .iter()
            .flat_map(|dimensions| {
                dimensions.iter().fold(vec![vec![]], |outer: Vec<Vec<u64>>, at| {
                    outer.iter().flat_map(|o| along(at).into_iter().map(|i| [&o[..], &[i]].concat())).collect()
                })
            })
            .collect();
        members.sort_unstable();
        members
    }

    #[test]
    fn padding_goes_round_corners_and_leaves_holes() {
        let part = |lo, hi| Part::Global(Interval { lo, hi });
        let rows = AxisMap::of_parts([part(0, 2), Part::Padding(1), Part::Hole(1)]).unwrap();
        let columns = AxisMap::of_parts([Part::Padding(1), part(5, 6), part(3, 4), Part::Padding(1)]).unwrap();
        let maps = [rows, columns];
        let padding = [[0, 0], [0, 3], [1, 0], [1, 3], [2, 0], [2, 1], [2, 2], [2, 3]].map(|index| index.to_vec());
        assert_eq!(members(&padding_boxes(&maps)), padding);
        assert_eq!(padded_elements(&maps), 8);
        assert_eq!(members(&stored_boxes(&maps)), [[0, 1], [0, 2], [1, 1], [1, 2]].map(|index| index.to_vec()));
        assert_eq!(members(&own_boxes(&maps)).len(), 12);
        let plain = [AxisMap::new([Interval { lo: 4, hi: 9 }])];
        assert_eq!(
            (stored_boxes(&plain), padding_boxes(&plain), padded_elements(&plain)),
            (own_boxes(&plain), vec![], 0)
        );
        assert_eq!((stored_boxes(&[]).len(), padded_elements(&[])), (1, 0));
        assert_eq!(stored_boxes(&[AxisMap::new([])]), Vec::<Vec<Positions>>::new());
    }
}
