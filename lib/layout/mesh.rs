//! A grid of ranks. In: shape and ranks. Out: slots and coordinates. Guarantee: one rank per slot, none twice; a grid
//! whose ranks are a sum over its coordinates costs its axes only, however many ranks it has.

use super::LayoutError;
use crate::base::{Rank, bytes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A grid of ranks with any number of axes, row-major: the last axis varies fastest (NCCL M2N, Eq. 1, without
/// its demand that ranks be contiguous).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "MeshValue", into = "MeshValue")]
pub struct Mesh {
    shape: Vec<u32>,
    members: Members,
}

/// Which ranks stand in the slots. One set of ranks in one order has one form, so that equal meshes compare equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Members {
    Affine(Affine),
    Listed { ranks: Vec<Rank>, slots: BTreeMap<Rank, usize> },
}

/// Rank = first + Σ coordinate · stride, where each stride is longer than all smaller ones together reach, so that a
/// rank tells its coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Affine {
    first: u32,
    /// Per axis; zero for an axis of length 1.
    strides: Vec<u32>,
    /// Axes by stride, the longest first.
    order: Vec<usize>,
}

/// A mesh as it is written.
#[derive(Serialize, Deserialize)]
enum MeshValue {
    Affine { shape: Vec<u32>, first: Rank, strides: Vec<u32> },
    Listed { shape: Vec<u32>, ranks: Vec<Rank> },
}

impl Mesh {
    /// A mesh of `shape` over `ranks`, row-major. A mesh without axes has one slot.
    pub fn new(shape: Vec<u32>, ranks: Vec<Rank>) -> Result<Self, LayoutError> {
        let slots = slot_count(&shape)?;
        if slots != ranks.len() as u64 {
            return Err(LayoutError::MeshSize { shape, slots, ranks: ranks.len() });
        }
        if let Some(affine) = Affine::of_list(&shape, &ranks) {
            return Ok(Self { shape, members: Members::Affine(affine) });
        }
        let mut by_rank = BTreeMap::new();
        for (slot, &rank) in ranks.iter().enumerate() {
            if by_rank.insert(rank, slot).is_some() {
                return Err(LayoutError::MeshRepeats { rank });
            }
        }
        Ok(Self { shape, members: Members::Listed { ranks, slots: by_rank } })
    }

    /// A mesh over `first`, `first + 1`, …
    pub fn contiguous(shape: Vec<u32>, first: Rank) -> Result<Self, LayoutError> {
        slot_count(&shape)?;
        let mut strides = vec![1u32; shape.len()];
        for axis in (1..shape.len()).rev() {
            // An axis of length 1 may have a stride beyond 32 bits only where the mesh has too many slots anyway.
            strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
        }
        Self::affine(shape, first, strides)
    }

    /// A mesh whose rank at some coordinates is `first` + Σ coordinate · stride: a stage of a pipeline, every eighth
    /// rank. No two slots may have one rank.
    pub fn affine(shape: Vec<u32>, first: Rank, strides: Vec<u32>) -> Result<Self, LayoutError> {
        if let Some(mesh) = Self::unlisted(&shape, first, &strides)? {
            return Ok(mesh);
        }
        let rank = |slot: usize| first.0 + dot(&shape, &strides, slot);
        let ranks = (0..slot_count(&shape)? as usize).map(|slot| Rank(rank(slot))).collect();
        Self::new(shape, ranks)
    }

    /// The same; `None` where its ranks have to be listed to know that they differ.
    fn unlisted(shape: &[u32], first: Rank, strides: &[u32]) -> Result<Option<Self>, LayoutError> {
        slot_count(shape)?;
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        if strides.len() != shape.len() {
            return Err(LayoutError::MeshStrides { axes: shape.len(), strides });
        }
        let reach = shape.iter().zip(&strides).map(|(&length, &stride)| u128::from(length - 1) * u128::from(stride));
        if u128::from(first.0) + reach.sum::<u128>() > u128::from(u32::MAX) {
            return Err(LayoutError::MeshTooLarge { shape, first, strides });
        }
        let affine = Affine::new(&shape, first.0, strides);
        Ok(affine.map(|affine| Self { shape, members: Members::Affine(affine) }))
    }

    /// Length of every axis.
    pub fn shape(&self) -> &[u32] {
        &self.shape
    }

    /// Number of slots, and of ranks.
    pub fn slots(&self) -> usize {
        match &self.members {
            Members::Affine(_) => self.shape.iter().map(|&length| length as usize).product(),
            Members::Listed { ranks, .. } => ranks.len(),
        }
    }

    /// The rank in `slot`, which is below [`Mesh::slots`].
    pub fn rank(&self, slot: usize) -> Rank {
        match &self.members {
            Members::Affine(affine) => Rank(affine.first + dot(&self.shape, &affine.strides, slot)),
            Members::Listed { ranks, .. } => ranks[slot],
        }
    }

    /// Ranks in slot order.
    pub fn ranks(&self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator + '_ {
        (0..self.slots()).map(|slot| self.rank(slot))
    }

    /// The greatest rank.
    pub fn greatest_rank(&self) -> Rank {
        match &self.members {
            Members::Affine(_) => self.rank(self.slots() - 1),
            Members::Listed { ranks, slots } => slots.last_key_value().map_or(ranks[0], |(&rank, _)| rank),
        }
    }

    /// First rank and stride per axis (zero along an axis of length 1), where ranks are a sum over coordinates.
    pub fn as_affine(&self) -> Option<(Rank, &[u32])> {
        match &self.members {
            Members::Affine(affine) => Some((Rank(affine.first), &affine.strides)),
            Members::Listed { .. } => None,
        }
    }

    /// Slot of `rank`, if it is in the mesh.
    pub fn slot(&self, rank: Rank) -> Option<usize> {
        match &self.members {
            Members::Affine(affine) => affine.slot(&self.shape, rank.0),
            Members::Listed { slots, .. } => slots.get(&rank).copied(),
        }
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

    /// The same with `count` axes of length 1 behind the others.
    pub fn with_unit_axes(mut self, count: usize) -> Self {
        let axes = self.shape.len();
        self.shape.resize(axes + count, 1);
        if let Members::Affine(affine) = &mut self.members {
            affine.strides.resize(axes + count, 0);
            affine.order.extend(axes..axes + count);
        }
        self
    }

    /// The part of the mesh at these coordinates along `axis`, in the order given; the axis stays, as long as the list.
    pub fn select(&self, axis: usize, coordinates: &[u32]) -> Result<Self, LayoutError> {
        let length = self.shape.get(axis).copied().unwrap_or(0);
        if coordinates.is_empty() || coordinates.iter().any(|&coordinate| coordinate >= length) {
            return Err(LayoutError::MeshSelection { axis, length, coordinates: coordinates.to_vec() });
        }
        let mut shape = self.shape.clone();
        shape[axis] = coordinates.len() as u32;
        let step = coordinates.get(1).map_or(Some(0), |&second| second.checked_sub(coordinates[0]));
        let even = coordinates.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == step);
        if let (Members::Affine(affine), Some(step), true) = (&self.members, step, even) {
            let mut strides = affine.strides.clone();
            let first = Rank(affine.first + coordinates[0] * strides[axis]);
            strides[axis] *= step;
            return Self::affine(shape, first, strides);
        }
        let (inner, outer) = (self.stride(axis), self.slots() / (self.stride(axis) * length as usize));
        let block = |from: usize| (from..from + inner).map(|slot| self.rank(slot));
        let row = |row: usize| coordinates.iter().map(move |&at| (row * length as usize + at as usize) * inner);
        let ranks = (0..outer).flat_map(row).flat_map(block).collect();
        Self::new(shape, ranks)
    }
}

impl Affine {
    /// `None` where some stride is not longer than all smaller ones together reach.
    fn new(shape: &[u32], first: u32, mut strides: Vec<u32>) -> Option<Self> {
        for (stride, &length) in strides.iter_mut().zip(shape) {
            if length == 1 {
                *stride = 0;
            }
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        order.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
        let mut reach = 0u64;
        for &axis in order.iter().rev().filter(|&&axis| shape[axis] > 1) {
            if u64::from(strides[axis]) <= reach {
                return None;
            }
            reach += u64::from(shape[axis] - 1) * u64::from(strides[axis]);
        }
        Some(Self { first, strides, order })
    }

    /// The sum that gives these ranks, one per slot, if there is one.
    fn of_list(shape: &[u32], ranks: &[Rank]) -> Option<Self> {
        let first = ranks.first()?.0;
        let mut strides = vec![0u32; shape.len()];
        let mut neighbour = 1usize;
        for axis in (0..shape.len()).rev() {
            if shape[axis] > 1 {
                strides[axis] = ranks[neighbour].0.checked_sub(first)?;
            }
            neighbour *= shape[axis] as usize;
        }
        let affine = Self::new(shape, first, strides)?;
        let holds =
            |(slot, rank): (usize, &Rank)| affine.first.checked_add(dot(shape, &affine.strides, slot)) == Some(rank.0);
        ranks.iter().enumerate().all(holds).then_some(affine)
    }

    fn slot(&self, shape: &[u32], rank: u32) -> Option<usize> {
        let mut rest = rank.checked_sub(self.first)?;
        let mut slot = 0;
        for &axis in self.order.iter().filter(|&&axis| shape[axis] > 1) {
            let coordinate = rest / self.strides[axis];
            if coordinate >= shape[axis] {
                return None;
            }
            rest -= coordinate * self.strides[axis];
            slot += coordinate as usize * shape[axis + 1..].iter().map(|&length| length as usize).product::<usize>();
        }
        (rest == 0).then_some(slot)
    }
}

/// Number of slots; a mesh has at least one.
fn slot_count(shape: &[u32]) -> Result<u64, LayoutError> {
    let extents: Vec<u64> = shape.iter().map(|&length| u64::from(length)).collect();
    match bytes::product(&extents)? {
        0 => Err(LayoutError::MeshEmpty { shape: shape.to_vec() }),
        slots => Ok(slots),
    }
}

/// Σ coordinate · stride of a slot; wraps where the strides belong to no mesh.
fn dot(shape: &[u32], strides: &[u32], slot: usize) -> u32 {
    let mut rest = slot;
    let mut sum = 0u32;
    for (&length, &stride) in shape.iter().zip(strides).rev() {
        sum = sum.wrapping_add(((rest % length as usize) as u32).wrapping_mul(stride));
        rest /= length as usize;
    }
    sum
}

impl TryFrom<MeshValue> for Mesh {
    type Error = LayoutError;

    fn try_from(value: MeshValue) -> Result<Self, LayoutError> {
        match value {
            // Only meshes that need no list are written so, and a few bytes must not become a list of very many ranks.
            MeshValue::Affine { shape, first, strides } => {
                Self::unlisted(&shape, first, &strides)?.ok_or(LayoutError::MeshUnlisted { shape, strides })
            }
            MeshValue::Listed { shape, ranks } => Self::new(shape, ranks),
        }
    }
}

impl From<Mesh> for MeshValue {
    fn from(mesh: Mesh) -> Self {
        let shape = mesh.shape;
        match mesh.members {
            Members::Affine(Affine { first, strides, .. }) => Self::Affine { shape, first: Rank(first), strides },
            Members::Listed { ranks, .. } => Self::Listed { shape, ranks },
        }
    }
}

#[cfg(test)]
#[path = "mesh_tests.rs"]
mod tests;
