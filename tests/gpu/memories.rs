//! Every kind of memory that a user may hand over. In: a kind, a device, a size. Out: a buffer. Guarantee: what the driver
//! gave is kept until the process ends.

use crossmesh::comm::{Buffer, Device, DeviceMemory};
use crossmesh::memory::device::{Origin, inspect};
use cudarc::driver::{CudaContext, sys};
use std::sync::Arc;

/// How memory was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// By crossmesh.
    Library,
    /// By `cudaMalloc`, not from the start of the allocation.
    Malloc,
    /// From a stream-ordered pool, as cudarc's slices.
    Pool,
    /// Two allocations of the virtual memory interface behind one another, as in PyTorch's expandable segments.
    Expandable,
    /// The same without descriptors.
    Unshared,
    /// The same with fabric handles alone, which few machines give.
    Fabric,
    /// A segment of the host.
    HostShared,
    /// Memory of one process.
    HostPrivate,
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] = [
        Kind::Library,
        Kind::Malloc,
        Kind::Pool,
        Kind::Expandable,
        Kind::Unshared,
        Kind::HostShared,
        Kind::HostPrivate,
    ];

    /// Whether GPUs of other processes can read it.
    pub(crate) fn is_mappable(self) -> bool {
        matches!(self, Kind::Library | Kind::Malloc | Kind::Expandable)
    }

    pub(crate) fn is_on_device(self) -> bool {
        !matches!(self, Kind::HostShared | Kind::HostPrivate)
    }

    /// A buffer of `bytes` bytes.
    pub(crate) fn buffer(self, device: u32, bytes: u64) -> Buffer {
        let opened = || Device::open(device).expect("a device of the test");
        let (address, origin) = match self {
            Kind::Library => return Buffer::on_device(&Arc::new(DeviceMemory::new(&opened(), bytes).expect("memory"))),
            Kind::HostShared => return Buffer::shared(bytes).expect("memory of the host"),
            Kind::HostPrivate => return Buffer::private(bytes).expect("memory of the host"),
            Kind::Malloc => (malloc(device, bytes + 3) + 3, Origin::Malloc),
            Kind::Pool => (pool(device, bytes), Origin::Pool),
            Kind::Expandable => (two_parts(device, bytes, POSIX), Origin::Virtual),
            Kind::Unshared => (two_parts(device, bytes, 0), Origin::VirtualUnshared),
            Kind::Fabric => (two_parts(device, bytes, FABRIC), Origin::VirtualUnshared),
        };
        let found = inspect(&opened(), address, bytes).expect("memory that was just made");
        assert_eq!(found.origin, origin, "{self:?}");
        // SAFETY: it is never freed, and only transfers and the copies between them use it.
        unsafe { Buffer::from_device(device, address, bytes) }
    }
}

/// The context that cudarc and crossmesh share, current on this thread from here on.
pub(crate) fn enter(device: u32) -> Arc<CudaContext> {
    let context = CudaContext::new(device as usize).expect("the context of a device");
    context.bind_to_thread().expect("a context");
    context
}

fn malloc(device: u32, bytes: u64) -> u64 {
    std::mem::forget(enter(device));
    // SAFETY: never freed.
    unsafe { cudarc::driver::result::malloc_sync(bytes as usize).expect("memory of cudaMalloc") }
}

fn pool(device: u32, bytes: u64) -> u64 {
    let stream = enter(device).new_stream().expect("a stream");
    // SAFETY: never freed; the stream is waited for.
    let address = unsafe { cudarc::driver::result::malloc_async(stream.cu_stream(), bytes as usize) };
    stream.synchronize().expect("the allocation is made");
    std::mem::forget(stream);
    address.expect("memory of a pool")
}

/// Kinds of handles.
const POSIX: u32 = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
const FABRIC: u32 = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;

/// An address so that `bytes` bytes from it cross from one allocation into the next, which have `handles`.
fn two_parts(device: u32, bytes: u64, handles: u32) -> u64 {
    std::mem::forget(enter(device));
    // SAFETY: structures of integers may be zero; all pointers are to live values; nothing is freed.
    unsafe {
        let mut properties: sys::CUmemAllocationProp = std::mem::zeroed();
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = device as i32;
        properties.requestedHandleTypes.0 |= handles;
        let (mut unit, mut base) = (0, 0);
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        sys::cuMemGetAllocationGranularity(&mut unit, &properties, least).result().expect("granularity");
        let part = (bytes as usize).next_multiple_of(unit);
        sys::cuMemAddressReserve(&mut base, 2 * part, 0, 0, 0).result().expect("addresses");
        for number in 0..2 {
            let mut handle = 0;
            sys::cuMemCreate(&mut handle, part, &properties, 0).result().expect("an allocation");
            sys::cuMemMap(base + (number * part) as u64, part, 0, handle, 0).result().expect("a mapping");
            sys::cuMemRelease(handle).result().expect("the mapping holds it");
        }
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: properties.location, flags };
        sys::cuMemSetAccess(base, 2 * part, &access, 1).result().expect("access");
        base + part as u64 - bytes / 2
    }
}
