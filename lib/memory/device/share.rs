//! Device memory across processes. In: a buffer of this process; or what a peer tells about one of its. Out: a handle to
//! tell; or the peer's bytes, mapped for a device of this process. Guarantee: an allocation of a peer is opened once per
//! device and closed with its last user; what this very process allocated by cudaMalloc is reached directly, since a
//! process cannot open its own handles of that kind.

use super::allocation::{DeviceMemory, Handle};
use super::error::DeviceError;
use super::gpu::Device;
use super::inspect::{Inspected, Origin, inspect, mappings};
use crate::base::Deadline;
use crate::memory::server::Published;
use crate::memory::shared::SegmentId;
use crate::memory::{MemoryError, PeerSegments, SegmentServer};
use cudarc::driver::sys;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// What a rank tells a peer about device memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SharedHandle {
    /// Random id of the process that owns it.
    process: [u8; 16],
    kind: Kind,
    /// First byte of the buffer, from the start of what the handle opens.
    offset: u64,
    /// Size of the buffer.
    bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Kind {
    /// The driver's handle of a whole allocation.
    Ipc { address: u64, device: u32, handle: Vec<u8> },
    /// Descriptors that the segment server hands out, with the bytes of each.
    Descriptors { parts: Vec<(SegmentId, u64)> },
}

/// A buffer that peers may open as long as this lives.
#[derive(Debug, Default)]
pub struct SharedBuffer {
    published: Vec<Arc<Published>>,
}

/// A peer's buffer, mapped for a device of this process.
#[derive(Clone)]
pub struct PeerMemory {
    address: u64,
    bytes: u64,
    _opened: Option<Arc<Opened>>,
}

/// What was opened, to be closed with its last user.
enum Opened {
    Ipc { device: Device, base: u64 },
    Mapped(DeviceMemory),
}

impl Opened {
    fn base(&self) -> u64 {
        match self {
            Self::Ipc { base, .. } => *base,
            Self::Mapped(memory) => memory.address(),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Self::Ipc { device, base } = self
            && let Ok(_current) = device.enter()
        {
            // SAFETY: opened by `open_ipc`, and nobody uses it any more.
            let _ = unsafe { sys::cuIpcCloseMemHandle(*base) };
        }
    }
}

/// Allocations of peers by device and handle.
static OPENED: Mutex<Option<Table>> = Mutex::new(None);

type Table = HashMap<(u32, Kind), Weak<Opened>>;

fn process_id() -> Result<[u8; 16], MemoryError> {
    static ID: OnceLock<Result<SegmentId, MemoryError>> = OnceLock::new();
    ID.get_or_init(SegmentId::random).clone().map(|id| id.0)
}

/// Lets peers map `bytes` bytes at `address` on `device`.
pub fn share(
    server: &SegmentServer,
    device: &Device,
    address: u64,
    bytes: u64,
) -> Result<(SharedHandle, SharedBuffer), MemoryError> {
    let found = inspect(device, address, bytes)?;
    let mut buffer = SharedBuffer::default();
    let process = process_id()?;
    let (kind, start) = match found.origin {
        Origin::Malloc => (ipc_handle(device, address, &found)?, found.base),
        Origin::Virtual => {
            let mapped = mappings(address, address + bytes.max(1));
            let start = mapped.first().map_or(address, |&(base, _)| base);
            let mut parts = Vec::with_capacity(mapped.len());
            for (base, size) in mapped {
                let handle = Handle::of(base).ok_or_else(|| not_shareable(address, Origin::VirtualUnshared))?;
                let published = Published::new(handle.export(device)?, size)?;
                parts.push((published.id(), size));
                server.publish_descriptor(&published);
                buffer.published.push(published);
            }
            (Kind::Descriptors { parts }, start)
        }
        origin => return Err(not_shareable(address, origin).into()),
    };
    Ok((SharedHandle { process, kind, offset: address - start, bytes }, buffer))
}

fn not_shareable(address: u64, origin: Origin) -> DeviceError {
    DeviceError::NotShareable { address, origin: origin.name() }
}

fn ipc_handle(device: &Device, address: u64, found: &Inspected) -> Result<Kind, DeviceError> {
    let _current = device.enter()?;
    // SAFETY: an array of bytes may be zero.
    let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live structure; the base was found by the driver.
    device.check("cuIpcGetMemHandle", unsafe { sys::cuIpcGetMemHandle(&mut handle, found.base) })?;
    let handle = handle.reserved.iter().map(|&byte| byte as u8).collect();
    Ok(Kind::Ipc { address, device: device.ordinal(), handle })
}

impl PeerMemory {
    /// Memory of `owner` in this very process, for `device`.
    pub fn local(device: &Device, owner: &Device, address: u64, bytes: u64) -> Result<Self, MemoryError> {
        let found = inspect(owner, address, bytes)?;
        if device == owner {
            return Ok(Self { address, bytes, _opened: None });
        }
        match found.origin {
            Origin::Malloc => {
                device.enable_access(owner)?;
                Ok(Self { address, bytes, _opened: None })
            }
            Origin::Virtual | Origin::VirtualUnshared => {
                let mapped = mappings(address, address + bytes.max(1));
                let start = mapped.first().map_or(address, |&(base, _)| base);
                let handles = mapped.into_iter().map(|(base, size)| Some((Handle::of(base)?, size)));
                let handles: Option<Vec<_>> = handles.collect();
                let handles = handles.ok_or_else(|| not_shareable(address, found.origin))?;
                let memory = DeviceMemory::map(device, handles)?;
                let address = memory.address() + (address - start);
                Ok(Self { address, bytes, _opened: Some(Arc::new(Opened::Mapped(memory))) })
            }
            Origin::Pool => Err(not_shareable(address, found.origin).into()),
        }
    }

    /// Opens a peer's buffer for `device`; `server` is where the peer's descriptors are served.
    pub fn open(
        device: &Device,
        handle: &SharedHandle,
        segments: &PeerSegments,
        server: &str,
        deadline: Deadline,
    ) -> Result<Self, MemoryError> {
        if let Kind::Ipc { address, device: owner, .. } = handle.kind
            && handle.process == process_id()?
        {
            device.enable_access(&Device::open(owner)?)?;
            return Ok(Self { address, bytes: handle.bytes, _opened: None });
        }
        let opened = {
            let mut table = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
            let table = table.get_or_insert_default();
            let key = (device.ordinal(), handle.kind.clone());
            match table.get(&key).and_then(Weak::upgrade) {
                Some(opened) => opened,
                None => {
                    let opened = Arc::new(open_kind(device, &handle.kind, segments, server, deadline)?);
                    table.retain(|_, opened| opened.strong_count() > 0);
                    table.insert(key, Arc::downgrade(&opened));
                    opened
                }
            }
        };
        let within = match &*opened {
            Opened::Mapped(memory) => memory.bytes(),
            // The driver maps the whole allocation, whose size the owner knows.
            Opened::Ipc { .. } => u64::MAX,
        };
        if handle.offset.checked_add(handle.bytes).is_none_or(|end| end > within) {
            let what = format!("it ends beyond its allocation of {within} bytes");
            return Err(DeviceError::BadHandle { bytes: handle.bytes, what }.into());
        }
        Ok(Self { address: opened.base() + handle.offset, bytes: handle.bytes, _opened: Some(opened) })
    }

    /// Its first byte, as the device that it was opened for sees it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PeerMemory({} bytes)", self.bytes)
    }
}

fn open_kind(
    device: &Device,
    kind: &Kind,
    segments: &PeerSegments,
    server: &str,
    deadline: Deadline,
) -> Result<Opened, MemoryError> {
    match kind {
        Kind::Ipc { handle, .. } => Ok(open_ipc(device, handle)?),
        Kind::Descriptors { parts } => {
            let mut handles = Vec::with_capacity(parts.len());
            for &(id, bytes) in parts {
                let (descriptor, size) = segments.fetch(server, id, deadline)?;
                if size != bytes {
                    let what = format!("it states {bytes} bytes and serves {size}");
                    return Err(DeviceError::BadHandle { bytes, what }.into());
                }
                handles.push((Handle::import(device, std::os::fd::AsFd::as_fd(&descriptor))?, bytes));
            }
            Ok(Opened::Mapped(DeviceMemory::map(device, handles)?))
        }
    }
}

fn open_ipc(device: &Device, bytes: &[u8]) -> Result<Opened, DeviceError> {
    let _current = device.enter()?;
    // SAFETY: an array of bytes may be zero.
    let mut handle: sys::CUipcMemHandle = unsafe { std::mem::zeroed() };
    if bytes.len() != handle.reserved.len() {
        let what = format!("its handle has {} bytes, not {}", bytes.len(), handle.reserved.len());
        return Err(DeviceError::BadHandle { bytes: 0, what });
    }
    for (to, &from) in handle.reserved.iter_mut().zip(bytes) {
        *to = from as std::ffi::c_char;
    }
    let mut base = 0;
    let lazily = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    // SAFETY: the pointer is to a live integer; a handle that is none is refused by the driver.
    device.check("cuIpcOpenMemHandle", unsafe { sys::cuIpcOpenMemHandle_v2(&mut base, handle, lazily) })?;
    Ok(Opened::Ipc { device: device.clone(), base })
}
