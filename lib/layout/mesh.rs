//! A grid of ranks. In: shape and ranks. Out: slots and coordinates. Guarantee: one rank per slot, none twice.

use super::LayoutError;
use crate::base::{Rank, bytes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A grid of ranks with any number of axes, row-major: the last axis varies fastest (NCCL M2N, Eq. 1, without
/// its demand that ranks be contiguous).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mesh {
    shape: Vec<u32>,
    ranks: Vec<Rank>,
    slots: BTreeMap<Rank, usize>,
}

impl Mesh {
    /// A mesh of `shape` over `ranks`, row-major. A mesh without axes has one slot.
    pub fn new(shape: Vec<u32>, ranks: Vec<Rank>) -> Result<Self, LayoutError> {
        let extents: Vec<u64> = shape.iter().map(|&length| u64::from(length)).collect();
        let slots = bytes::product(&extents)?;
        if slots == 0 {
            return Err(LayoutError::MeshEmpty { shape });
        }
        if slots != ranks.len() as u64 {
            return Err(LayoutError::MeshSize { shape, slots, ranks: ranks.len() });
        }
        let mut by_rank = BTreeMap::new();
        for (slot, &rank) in ranks.iter().enumerate() {
            if by_rank.insert(rank, slot).is_some() {
                return Err(LayoutError::MeshRepeats { rank });
            }
        }
        Ok(Self { shape, ranks, slots: by_rank })
    }

    /// A mesh over `first`, `first + 1`, …
    pub fn contiguous(shape: Vec<u32>, first: Rank) -> Result<Self, LayoutError> {
        let extents: Vec<u64> = shape.iter().map(|&length| u64::from(length)).collect();
        let slots = bytes::product(&extents)?;
        let end = u64::from(first.0).checked_add(slots).filter(|&end| end <= 1 << 32);
        let Some(end) = end else {
            return Err(bytes::SizeError::Overflow { extents }.into());
        };
        Self::new(shape, (u64::from(first.0)..end).map(|rank| Rank(rank as u32)).collect())
    }

    /// Length of every axis.
    pub fn shape(&self) -> &[u32] {
        &self.shape
    }

    /// Ranks in slot order.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Slot of `rank`, if it is in the mesh.
    pub fn slot(&self, rank: Rank) -> Option<usize> {
        self.slots.get(&rank).copied()
    }

    /// Coordinates of a slot.
    pub fn coordinates(&self, slot: usize) -> Vec<u32> {
        let mut rest = slot;
        let mut coordinates = vec![0; self.shape.len()];
        for (coordinate, &length) in coordinates.iter_mut().zip(&self.shape).rev() {
            *coordinate = (rest % length as usize) as u32;
            rest /= length as usize;
        }
        coordinates
    }

    /// Distance in slots between neighbours along `axis`.
    pub fn stride(&self, axis: usize) -> usize {
        self.shape[axis + 1..].iter().map(|&length| length as usize).product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_major_slots() {
        let mesh = Mesh::contiguous(vec![2, 3], Rank(4)).unwrap();
        assert_eq!(mesh.coordinates(mesh.slot(Rank(8)).unwrap()), [1, 1]);
        assert_eq!((mesh.stride(0), mesh.stride(1)), (3, 1));
        assert_eq!(mesh.slot(Rank(3)), None);
        assert_eq!(Mesh::new(vec![], vec![Rank(9)]).unwrap().coordinates(0), Vec::<u32>::new());
    }

    #[test]
    fn bad_meshes() {
        assert!(matches!(Mesh::new(vec![2], vec![Rank(0)]), Err(LayoutError::MeshSize { .. })));
        assert!(matches!(Mesh::new(vec![2], vec![Rank(1), Rank(1)]), Err(LayoutError::MeshRepeats { rank: Rank(1) })));
        assert!(matches!(Mesh::new(vec![2, 0], vec![]), Err(LayoutError::MeshEmpty { .. })));
        assert!(matches!(Mesh::contiguous(vec![0], Rank(0)), Err(LayoutError::MeshEmpty { .. })));
        assert!(Mesh::contiguous(vec![u32::MAX, u32::MAX], Rank(0)).is_err());
        assert!(Mesh::contiguous(vec![2], Rank(u32::MAX)).is_err());
    }
}
