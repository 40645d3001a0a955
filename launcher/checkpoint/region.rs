//! Boxes of tensors. In: lower bounds and extents. Out: the runs of bytes that a box covers. Guarantee: a checked
//! box lies inside its tensor; runs come in row-major order and are as long as the box allows.

use super::error::RegionError;
use super::model::TensorSource;
use std::convert::Infallible;

/// A box of global indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region<'a> {
    /// First index per dimension.
    pub(crate) lo: &'a [u64],
    /// Number of indices per dimension.
    pub(crate) extent: &'a [u64],
}

/// Bytes next to each other in the tensor and in the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// First byte in the row-major whole tensor.
    pub(crate) global: u64,
    /// First byte in the row-major box.
    pub(crate) local: usize,
    /// Number of bytes.
    pub(crate) bytes: usize,
}

impl Region<'_> {
    /// Checks that the box lies in `tensor` and that a buffer of `given` bytes holds exactly the box.
    pub(crate) fn check(&self, tensor: &TensorSource, given: usize) -> Result<(), RegionError> {
        let (rank, name) = (tensor.shape.len(), || tensor.name.clone());
        let inside = |dim: usize| self.lo[dim].checked_add(self.extent[dim]).is_some_and(|hi| hi <= tensor.shape[dim]);
        if self.lo.len() != rank || self.extent.len() != rank || !(0..rank).all(inside) {
            let (lo, extent) = (self.lo.to_vec(), self.extent.to_vec());
            return Err(RegionError::Outside { tensor: name(), shape: tensor.shape.clone(), lo, extent });
        }
        // No more than the bytes of the tensor, unless that has none: then the product must stop at its zero.
        let needed =
            if self.extent.contains(&0) { 0 } else { self.extent.iter().product::<u64>() * tensor.dtype.bytes() };
        if needed != given as u64 {
            let extent = self.extent.to_vec();
            return Err(RegionError::Buffer { tensor: name(), extent, needed, given: given as u64 });
        }
        Ok(())
    }

    /// Hands every run of the checked box to `visit`, which may stop by an error.
    pub(crate) fn try_for_each_run<E>(
        &self,
        tensor: &TensorSource,
        mut visit: impl FnMut(Run) -> Result<(), E>,
    ) -> Result<(), E> {
        let (shape, element) = (&tensor.shape, tensor.dtype.bytes());
        if self.extent.contains(&0) {
            return Ok(());
        }
        // Dimensions from `inner` on form one run: all but the first of them are covered in full.
        let whole = (0..shape.len()).rev().take_while(|&dim| self.extent[dim] == shape[dim]).count();
        let inner = shape.len().saturating_sub(whole + 1);
        let mut strides = vec![element; shape.len()];
        for dim in (1..shape.len()).rev() {
            strides[dim - 1] = strides[dim] * shape[dim];
        }
        let bytes = (self.extent[inner..].iter().product::<u64>() * element) as usize;
        let mut at = vec![0u64; inner];
        let start: u64 = self.lo.iter().zip(&strides).map(|(&lo, &stride)| lo * stride).sum();
        let mut local = 0;
        loop {
            let global = start + at.iter().zip(&strides).map(|(&at, &stride)| at * stride).sum::<u64>();
            visit(Run { global, local, bytes })?;
            local += bytes;
            let Some(dim) = (0..inner).rev().find(|&dim| at[dim] + 1 < self.extent[dim]) else {
                return Ok(());
            };
            at[dim] += 1;
            at[dim + 1..].fill(0);
        }
    }

    /// [`Region::try_for_each_run`] for what cannot fail.
    pub(crate) fn for_each_run(&self, tensor: &TensorSource, mut visit: impl FnMut(Run)) {
        let Ok(()) = self.try_for_each_run(tensor, |run| {
            visit(run);
            Ok::<(), Infallible>(())
        });
    }
}
