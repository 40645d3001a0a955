//! Device memory that other processes can map. In: a device, a size; or descriptors of a peer's allocations. Out: mapped
//! device memory. Guarantee: unmapped and freed when the last owner drops it, never before; exportable as a descriptor,
//! and as a fabric handle where device and system allow; a NIC may read and write it where the device can do that.

use super::error::DeviceError;
use super::gpu::Device;
use cudarc::driver::sys::{
    self, CUmemAccess_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemLocation,
    CUmemLocationType,
};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Device memory of this process, or of a peer, mapped for one device.
pub struct DeviceMemory {
    device: Device,
    address: u64,
    bytes: u64,
    /// Allocations behind one another, with the bytes of each.
    parts: Vec<(Handle, u64)>,
    reserved: u64,
}

const POSIX: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
/// Bytes of a fabric handle.
const FABRIC_BYTES: usize = 64;

/// A reference to a physical allocation.
#[derive(Debug)]
pub(super) struct Handle(sys::CUmemGenericAllocationHandle);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this is one reference, given back once.
        let _ = unsafe { sys::cuMemRelease(self.0) };
    }
}

impl Handle {
    /// The allocation that is mapped at `address`; `None` when it is not memory of the virtual memory interface.
    pub(super) fn of(address: u64) -> Option<Self> {
        let mut handle = 0;
        // SAFETY: the pointer is to a live integer; an address that is not such memory is refused.
        let result = unsafe { sys::cuMemRetainAllocationHandle(&mut handle, address as *mut std::ffi::c_void) };
        (result == sys::CUresult::CUDA_SUCCESS).then_some(Self(handle))
    }

    /// What it may be exported as, which was fixed when it was made: a descriptor, a fabric handle.
    pub(super) fn types(&self, device: &Device) -> Result<(bool, bool), DeviceError> {
        // SAFETY: all fields may be zero.
        let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live structure, the handle is held.
        let result = unsafe { sys::cuMemGetAllocationPropertiesFromHandle(&mut properties, self.0) };
        device.check("cuMemGetAllocationPropertiesFromHandle", result)?;
        let has = |kind: CUmemAllocationHandleType| properties.requestedHandleTypes.0 & kind.0 != 0;
        Ok((has(POSIX), has(FABRIC)))
    }

    /// A descriptor that other processes can map.
    pub(super) fn export(&self, device: &Device) -> Result<OwnedFd, DeviceError> {
        let mut descriptor: std::ffi::c_int = -1;
        // SAFETY: for this kind the function stores a descriptor, an int, at the given place.
        let result = unsafe { sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), self.0, POSIX, 0) };
        device.check("cuMemExportToShareableHandle", result)?;
        // SAFETY: the driver has just made it for this process; nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// The allocation behind a peer's descriptor.
    pub(super) fn import(device: &Device, descriptor: BorrowedFd<'_>) -> Result<Self, DeviceError> {
        let mut handle = 0;
        let number = descriptor.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: for this kind the function takes the descriptor itself in place of a pointer.
        let result = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, number, POSIX) };
        device.check("cuMemImportFromShareableHandle", result)?;
        Ok(Self(handle))
    }

    /// A handle that other hosts of the NVLink domain can map, as long as this reference or a mapping lives.
    pub(super) fn export_fabric(&self, device: &Device) -> Result<Vec<u8>, DeviceError> {
        let mut handle = sys::CUmemFabricHandle { data: [0; FABRIC_BYTES] };
        // SAFETY: for this kind the function stores such a structure at the given place.
        let result = unsafe { sys::cuMemExportToShareableHandle((&raw mut handle).cast(), self.0, FABRIC, 0) };
        device.check("cuMemExportToShareableHandle (fabric)", result)?;
        Ok(handle.data.to_vec())
    }

    /// The allocation behind a peer's fabric handle.
    pub(super) fn import_fabric(device: &Device, bytes: &[u8]) -> Result<Self, DeviceError> {
        let data: [u8; FABRIC_BYTES] = bytes.try_into().map_err(|_| DeviceError::BadHandle {
            bytes: 0,
            what: format!("its fabric handle has {} bytes, not {FABRIC_BYTES}", bytes.len()),
        })?;
        let mut given = sys::CUmemFabricHandle { data };
        let mut handle = 0;
        // SAFETY: both pointers are to live values; a handle that is none is refused by the driver.
        let result = unsafe { sys::cuMemImportFromShareableHandle(&mut handle, (&raw mut given).cast(), FABRIC) };
        device.check("cuMemImportFromShareableHandle (fabric)", result)?;
        Ok(Self(handle))
    }
}

impl DeviceMemory {
    /// New memory of at least `bytes` bytes on `device`; what is in it is not defined.
    pub fn new(device: &Device, bytes: u64) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let granularity = granularity(device, &properties(device, false))?;
        let size = bytes.max(1).checked_next_multiple_of(granularity).ok_or_else(|| out_of_memory(device, bytes))?;
        let handle = match with_fabric(device, size) {
            Some(handle) => handle,
            None => create(device, &properties(device, false), size)?,
        };
        let mut memory = Self::map(device, vec![(handle, size)])?;
        memory.bytes = bytes;
        Ok(memory)
    }

    /// Maps allocations behind one another.
    pub(super) fn map(device: &Device, parts: Vec<(Handle, u64)>) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let total = parts.iter().try_fold(0u64, |sum, &(_, bytes)| sum.checked_add(bytes));
        let total = total.ok_or_else(|| out_of_memory(device, u64::MAX))?;
        let mut address = 0;
        // SAFETY: the pointer is to a live integer.
        let result = unsafe { sys::cuMemAddressReserve(&mut address, total as usize, 0, 0, 0) };
        device.check("cuMemAddressReserve", result)?;
        // From here on dropping it gives everything back; parts that are not mapped yet are not in it.
        let mut memory = Self { device: device.clone(), address, bytes: total, parts: Vec::new(), reserved: total };
        let mut at = address;
        for (handle, bytes) in parts {
            // SAFETY: the range is inside the reservation and not mapped yet.
            device.check("cuMemMap", unsafe { sys::cuMemMap(at, bytes as usize, 0, handle.0, 0) })?;
            memory.parts.push((handle, bytes));
            at += bytes;
        }
        let access = sys::CUmemAccessDesc {
            location: location(device),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the whole range has just been mapped; one descriptor is passed.
        device.check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(address, total as usize, &access, 1) })?;
        Ok(memory)
    }

    /// The device that reads and writes it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceMemory({} bytes on {})", self.bytes, self.device.label())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Ok(_current) = self.device.enter() else { return };
        let mut at = self.address;
        for (_, bytes) in &self.parts {
            // SAFETY: mapped by `map`; whoever uses the memory holds this object.
            let _ = unsafe { sys::cuMemUnmap(at, *bytes as usize) };
            at += bytes;
        }
        // SAFETY: reserved by `map`, nothing is mapped in it any more.
        let _ = unsafe { sys::cuMemAddressFree(self.address, self.reserved as usize) };
    }
}

fn location(device: &Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.ordinal() as i32 }
}

/// What to ask for: a descriptor, and a fabric handle besides.
fn properties(device: &Device, fabric: bool) -> CUmemAllocationProp {
    // SAFETY: all fields may be zero.
    let mut properties: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(device);
    properties.allocFlags.gpuDirectRDMACapable = u8::from(device.properties().direct_rdma);
    properties.requestedHandleTypes = POSIX;
    if fabric {
        properties.requestedHandleTypes.0 |= FABRIC.0;
    }
    properties
}

fn granularity(device: &Device, properties: &CUmemAllocationProp) -> Result<u64, DeviceError> {
    let mut granularity = 0;
    let recommended = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: both pointers are to live values.
    let result = unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, properties, recommended) };
    device.check("cuMemGetAllocationGranularity", result)?;
    Ok((granularity as u64).max(1))
}

/// An allocation with a fabric handle, where there can be one: the driver states it also where the system's IMEX domain does
/// not allow it, which is tried once.
fn with_fabric(device: &Device, bytes: u64) -> Option<Handle> {
    if !device.properties().fabric || device.fabric_refusal().is_some() {
        return None;
    }
    match create(device, &properties(device, true), bytes) {
        Ok(handle) => Some(handle),
        Err(DeviceError::OutOfMemory { .. }) => None,
        Err(error) => {
            device.refuse_fabric(error);
            None
        }
    }
}

fn create(device: &Device, properties: &CUmemAllocationProp, bytes: u64) -> Result<Handle, DeviceError> {
    let mut handle = 0;
    // SAFETY: both pointers are to live values.
    match unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties, 0) } {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(out_of_memory(device, bytes)),
        result => device.check("cuMemCreate", result).map(|()| Handle(handle)),
    }
}

pub(super) fn out_of_memory(device: &Device, bytes: u64) -> DeviceError {
    DeviceError::OutOfMemory { device: device.label().to_string(), bytes }
}
