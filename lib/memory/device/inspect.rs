//! What a device pointer is. In: an address, the device that the caller states, a size. Out: its allocation and how it was
//! made. Guarantee: an address that is no device memory, is on another device or ends too soon is an error.

use super::allocation::Handle;
use super::error::DeviceError;
use super::gpu::Device;
use cudarc::driver::sys::{self, CUpointer_attribute as Attribute};
use serde::{Deserialize, Serialize};

/// How memory was allocated, which decides how peers can reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// By `cudaMalloc`: peers open a handle of the whole allocation.
    Malloc,
    /// By the virtual memory interface, with descriptors: crossmesh's own, PyTorch's expandable segments.
    Virtual,
    /// By the virtual memory interface without descriptors: only a fabric handle, if it has one, lets others map it.
    VirtualUnshared,
    /// From a stream-ordered pool: nobody else can map it.
    Pool,
}

impl Origin {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "cudaMalloc",
            Self::Virtual => "virtual memory with descriptors",
            Self::VirtualUnshared => "virtual memory without descriptors",
            Self::Pool => "a stream-ordered pool",
        }
    }

    /// Whether peers on its host can map it without a fabric handle.
    pub fn is_shareable(self) -> bool {
        matches!(self, Self::Malloc | Self::Virtual)
    }
}

/// An allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inspected {
    /// Its first byte.
    pub base: u64,
    /// Its size.
    pub bytes: u64,
    /// How it was made.
    pub origin: Origin,
    /// Whether it can be exported as fabric handles.
    pub fabric: bool,
}

/// Looks at `bytes` bytes from `address`, stated to be on `device`.
pub fn inspect(device: &Device, address: u64, bytes: u64) -> Result<Inspected, DeviceError> {
    let _current = device.enter()?;
    let kind: u32 = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address).unwrap_or(0);
    if kind != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
        return Err(DeviceError::NotDevice { address });
    }
    let found: i32 = attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address).unwrap_or(-1);
    if found != device.ordinal() as i32 {
        return Err(DeviceError::OtherDevice { address, stated: device.ordinal(), found: found.max(0) as u32 });
    }
    let base: u64 = attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address).unwrap_or(address);
    let allocation: u64 = attribute(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, address).unwrap_or(0);
    let end = address.checked_add(bytes);
    let allocation = end.map_or(allocation, |end| with_neighbours(device, base, allocation, end));
    if end.is_none_or(|end| end > base.saturating_add(allocation)) {
        return Err(DeviceError::BeyondAllocation { address, bytes, base, allocation });
    }
    let (origin, fabric) = origin(device, address, end.unwrap_or(address))?;
    Ok(Inspected { base, bytes: allocation, origin, fabric })
}

/// Bytes from `base` on that are mapped without a gap, as far as `end`: memory of the virtual memory interface may consist of
/// several allocations, such as an expandable segment does.
fn with_neighbours(device: &Device, base: u64, first: u64, end: u64) -> u64 {
    let mut bytes = first;
    while let Some(next) = base.checked_add(bytes).filter(|&next| next < end) {
        let found: Option<i32> = attribute(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, next);
        let size: u64 = attribute(Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, next).unwrap_or(0);
        if found != Some(device.ordinal() as i32) || size == 0 || Handle::of(next).is_none() {
            break;
        }
        bytes = bytes.saturating_add(size);
    }
    bytes
}

/// How memory was made, and whether it has fabric handles.
fn origin(device: &Device, address: u64, end: u64) -> Result<(Origin, bool), DeviceError> {
    let legacy: u32 = attribute(Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address).unwrap_or(0);
    let pool: u64 = attribute(Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address).unwrap_or(0);
    if pool != 0 {
        return Ok((Origin::Pool, false));
    }
    if legacy & 0xff != 0 {
        return Ok((Origin::Malloc, false));
    }
    let (mut descriptors, mut fabric) = (true, true);
    for (at, _) in mappings(address, end) {
        let types = Handle::of(at).map_or(Ok((false, false)), |handle| handle.types(device))?;
        descriptors &= types.0;
        fabric &= types.1;
    }
    Ok((if descriptors { Origin::Virtual } else { Origin::VirtualUnshared }, fabric))
}

/// The mappings that `address..end` touches: first byte and size of each.
pub(super) fn mappings(address: u64, end: u64) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut at = address;
    while at < end.max(address + 1) {
        let base: u64 = attribute(Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at).unwrap_or(at);
        let bytes: u64 = attribute(Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at).unwrap_or(0);
        let Some(next) = base.checked_add(bytes).filter(|&next| next > at) else {
            // Not memory of the virtual memory interface after all; asking for its handle will say so.
            found.push((at, 0));
            return found;
        };
        found.push((base, bytes));
        at = next;
    }
    found
}

/// An attribute of an address; `None` where the driver knows none.
fn attribute<T: Copy + Default>(attribute: Attribute, address: u64) -> Option<T> {
    // Room for the widest value; the narrow ones are stored in its first bytes.
    let mut value = [0u64; 2];
    // SAFETY: the place is larger than every attribute that this file asks for.
    let result = unsafe { sys::cuPointerGetAttribute(value.as_mut_ptr().cast(), attribute, address) };
    // SAFETY: `T` is an integer of at most 64 bits, all of whose values are valid, at the aligned start of `value`.
    (result == sys::CUresult::CUDA_SUCCESS).then(|| unsafe { value.as_ptr().cast::<T>().read() })
}
