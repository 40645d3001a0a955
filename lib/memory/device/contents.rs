//! Contents of tensors on a device. In: a box of a tensor. Out: its digest, or elements filled in. Guarantee: the digest
//! equals that of the same box on the host; a fill depends on places in the whole tensor alone.

use super::allocation::DeviceMemory;
use super::error::DeviceError;
use super::gpu::Device;
use super::kernels::Kernels;
use super::params::{Box, MAX_RANK};
use super::stream::{Pinned, Stream};
use super::table::DeviceSpan;
use crate::base::Deadline;
use crate::layout::content_digest::{Places, place_steps};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A box of a tensor in device memory.
#[derive(Debug, Clone, Copy)]
pub struct DeviceBox<'a> {
    /// Memory.
    pub memory: &'a DeviceSpan,
    /// Byte of the first element.
    pub offset: u64,
    /// Bytes of an element.
    pub element: u64,
    /// Shape of the whole tensor.
    pub shape: &'a [u64],
    /// Global index of the first element.
    pub lo: &'a [u64],
    /// Extents.
    pub extent: &'a [u64],
    /// Distance in bytes between neighbours, per dimension.
    pub strides: &'a [u64],
}

/// Digests and fills on one device.
#[derive(Debug)]
pub struct Contents {
    kernels: Arc<Kernels>,
    stream: Stream,
    sum: DeviceMemory,
    host: Pinned,
}

impl Contents {
    /// On `device`, with a stream of its own.
    pub fn new(device: &Device) -> Result<Self, DeviceError> {
        Ok(Self {
            kernels: Kernels::load(device)?,
            stream: Stream::new(device)?,
            sum: DeviceMemory::new(device, 8)?,
            host: Pinned::new(device, 8)?,
        })
    }

    /// Sum of the digests of `boxes`, each with its tensor's seed, wrapping.
    pub fn digest<'a>(
        &self,
        boxes: impl IntoIterator<Item = (DeviceBox<'a>, u64)>,
        deadline: Deadline,
    ) -> Result<u64, DeviceError> {
        // SAFETY: eight bytes of our own.
        unsafe { self.stream.set(self.sum.address(), 0, 8)? };
        for (region, seed) in boxes {
            if let Some(lowered) = lower(&region, seed)? {
                // SAFETY: the box was checked to lie inside its memory, which its owner keeps until the stream is waited
                // for below.
                unsafe { self.kernels.digest(&self.stream, &lowered, self.sum.address())? };
            }
        }
        // SAFETY: eight bytes of our own on both sides.
        unsafe { self.stream.copy(self.host.device_address(), self.sum.address(), 8)? };
        self.stream.synchronize(deadline)?;
        let word = |number| self.host.word(number).map_or(0, |word| u64::from(word.load(Ordering::Acquire)));
        Ok(word(1) << 32 | word(0))
    }

    /// Fills a box; every rank that fills the same place of the tensor with this seed writes the same bytes.
    ///
    /// # Safety
    /// Nobody else may use the box meanwhile.
    pub unsafe fn fill(&self, region: &DeviceBox<'_>, seed: u64, deadline: Deadline) -> Result<(), DeviceError> {
        if let Some(lowered) = lower(region, seed)? {
            // SAFETY: the box was checked to lie inside its memory; the rest is the caller's promise.
            unsafe { self.kernels.fill(&self.stream, &lowered)? };
        }
        self.stream.synchronize(deadline)
    }

    /// Sets all bytes of a buffer.
    ///
    /// # Safety
    /// Nobody else may use it meanwhile.
    pub unsafe fn set(&self, memory: &DeviceSpan, byte: u8, deadline: Deadline) -> Result<(), DeviceError> {
        let place = memory.place();
        if place.bytes > 0 {
            // SAFETY: the span is mapped; the rest is the caller's promise.
            unsafe { self.stream.set(place.address, byte, place.bytes)? };
        }
        self.stream.synchronize(deadline)
    }
}

/// The box as the kernels take it; `None` when it is empty.
fn lower(region: &DeviceBox<'_>, seed: u64) -> Result<Option<Box>, DeviceError> {
    let rank = region.extent.len();
    let place = region.memory.place();
    let wrong = |what: String| DeviceError::BadHandle { bytes: place.bytes, what };
    if rank > MAX_RANK || [region.shape.len(), region.lo.len(), region.strides.len()] != [rank; 3] {
        return Err(wrong(format!("a box of {rank} dimensions, or lists of different lengths")));
    }
    if region.extent.contains(&0) {
        return Ok(None);
    }
    let reach =
        region.extent.iter().zip(region.strides).fold(u128::from(region.offset), |reach, (&extent, &stride)| {
            reach + u128::from(extent - 1) * u128::from(stride)
        });
    if reach + u128::from(region.element) > u128::from(place.bytes) {
        return Err(wrong(format!("a box of extents {:?} ends beyond it", region.extent)));
    }
    let Places { first, steps } = place_steps(region.shape, region.lo, seed);
    let mut lowered = Box {
        address: place.address + region.offset,
        place: first,
        elements: region.extent.iter().product(),
        rank: rank as u32,
        element: region.element as u32,
        ..Box::default()
    };
    lowered.extent[..rank].copy_from_slice(region.extent);
    lowered.stride[..rank].copy_from_slice(region.strides);
    lowered.step[..rank].copy_from_slice(&steps);
    Ok(Some(lowered))
}
