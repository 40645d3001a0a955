//! Device memory across processes and hosts. In: a buffer of this process; or what a peer tells about one of its. Out: a
//! handle to tell; or the peer's bytes, mapped for a device of this process. Guarantee: an allocation of a peer is opened
//! once per device and handle, and closed with its last user; what this very process allocated by cudaMalloc is reached
//! directly, since a process cannot open its own handles of that kind; only a fabric handle leaves the host.

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

/// Which handles a group of ranks uses, the same on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Handles {
    /// Those that stay on a host: the driver's of cudaMalloc, descriptors.
    #[default]
    Local,
    /// Fabric handles besides, for peers on other hosts.
    Between,
    /// Fabric handles on one host too, wherever an allocation has one.
    Fabric,
}

/// What a rank tells a peer about device memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SharedHandle {
    /// Random id of the process that owns it.
    process: [u8; 16],
    /// For a peer on this host.
    near: Option<Kind>,
    /// For a peer on another one.
    far: Option<Kind>,
    /// First byte of the buffer, from the start of what a handle opens.
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
    /// Fabric handles with the bytes of each, and which export they are of: the driver may use handles again.
    Fabric { export: SegmentId, parts: Vec<(Vec<u8>, u64)> },
}

/// How a peer's memory was mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MappedBy {
    /// Not at all: it is this process's own.
    Pointer,
    /// By the driver's handle of cudaMalloc.
    Ipc,
    /// By descriptors.
    Descriptor,
    /// By fabric handles.
    Fabric,
}

/// A buffer that peers may open as long as this lives.
#[derive(Debug, Default)]
pub struct SharedBuffer {
    published: Vec<Arc<Published>>,
    /// A fabric handle keeps nothing alive.
    _held: Vec<Handle>,
}

/// A peer's buffer, mapped for a device of this process.
#[derive(Clone)]
pub struct PeerMemory {
    address: u64,
    bytes: u64,
    by: MappedBy,
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

/// Lets peers map `bytes` bytes at `address` on `device`, by whichever of `handles` the allocation has.
pub fn share(
    server: &SegmentServer,
    device: &Device,
    address: u64,
    bytes: u64,
    handles: Handles,
) -> Result<(SharedHandle, SharedBuffer), MemoryError> {
    let found = inspect(device, address, bytes)?;
    let mut buffer = SharedBuffer::default();
    let mut handle =
        SharedHandle { process: process_id()?, near: None, far: None, offset: address - found.base, bytes };
    if found.origin == Origin::Malloc {
        handle.near = Some(ipc_handle(device, address, &found)?);
        return Ok((handle, buffer));
    }
    let mapped = mappings(address, address + bytes.max(1));
    handle.offset = address - mapped.first().map_or(address, |&(base, _)| base);
    if handles != Handles::Local && found.fabric {
        let far = fabric_handles(device, &mapped, &mut buffer, (address, found.origin))?;
        handle.near = Some(far.clone()).filter(|_| handles == Handles::Fabric);
        handle.far = Some(far);
    }
    if handle.near.is_none() && found.origin == Origin::Virtual {
        let parts = mapped.iter().map(|&(base, size)| {
            let part = Handle::of(base).ok_or_else(|| not_shareable(address, Origin::VirtualUnshared))?;
            let published = Published::new(part.export(device)?, size)?;
            server.publish_descriptor(&published);
            buffer.published.push(published.clone());
            Ok((published.id(), size))
        });
        handle.near = Some(Kind::Descriptors { parts: parts.collect::<Result<_, MemoryError>>()? });
    }
    if handle.near.is_none() && handle.far.is_none() {
        return Err(not_shareable(address, found.origin).into());
    }
    Ok((handle, buffer))
}

/// Fabric handles of all mappings, which `buffer` keeps good.
fn fabric_handles(
    device: &Device,
    mapped: &[(u64, u64)],
    buffer: &mut SharedBuffer,
    (address, origin): (u64, Origin),
) -> Result<Kind, MemoryError> {
    let mut parts = Vec::with_capacity(mapped.len());
    for &(base, size) in mapped {
        let part = Handle::of(base).ok_or_else(|| not_shareable(address, origin))?;
        parts.push((part.export_fabric(device)?, size));
        buffer._held.push(part);
    }
    Ok(Kind::Fabric { export: SegmentId::random()?, parts })
}

/// A small allocation with a fabric handle, to find out whether peers can map one of `device`; the third keeps it.
pub fn fabric_probe(device: &Device) -> Result<(SharedHandle, SharedBuffer, DeviceMemory), MemoryError> {
    let refused = |why: String| DeviceError::NoFabric { device: device.label().to_string(), why };
    if !device.properties().fabric {
        return Err(refused("the driver states that it has none".into()).into());
    }
    let memory = DeviceMemory::new(device, 1)?;
    if !inspect(device, memory.address(), 1)?.fabric {
        let why = device.fabric_refusal().map_or("its memory is full".to_string(), ToString::to_string);
        return Err(refused(why).into());
    }
    let (mapped, mut buffer) = (mappings(memory.address(), memory.address() + 1), SharedBuffer::default());
    let kind = fabric_handles(device, &mapped, &mut buffer, (memory.address(), Origin::Virtual))?;
    let handle =
        SharedHandle { process: process_id()?, near: Some(kind.clone()), far: Some(kind), offset: 0, bytes: 1 };
    Ok((handle, buffer, memory))
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
            return Ok(Self { address, bytes, by: MappedBy::Pointer, _opened: None });
        }
        match found.origin {
            Origin::Malloc => {
                device.enable_access(owner)?;
                Ok(Self { address, bytes, by: MappedBy::Pointer, _opened: None })
            }
            Origin::Virtual | Origin::VirtualUnshared => {
                let mapped = mappings(address, address + bytes.max(1));
                let start = mapped.first().map_or(address, |&(base, _)| base);
                let handles = mapped.into_iter().map(|(base, size)| Some((Handle::of(base)?, size)));
                let handles: Option<Vec<_>> = handles.collect();
                let handles = handles.ok_or_else(|| not_shareable(address, found.origin))?;
                let memory = DeviceMemory::map(device, handles)?;
                let address = memory.address() + (address - start);
                let opened = Some(Arc::new(Opened::Mapped(memory)));
                Ok(Self { address, bytes, by: MappedBy::Pointer, _opened: opened })
            }
            Origin::Pool => Err(not_shareable(address, found.origin).into()),
        }
    }

    /// Opens a peer's buffer for `device`; `server` is where the peer's descriptors are served, `None` for a peer on another
    /// host.
    pub fn open(
        device: &Device,
        handle: &SharedHandle,
        segments: &PeerSegments,
        server: Option<&str>,
        deadline: Deadline,
    ) -> Result<Self, MemoryError> {
        let kind = if server.is_some() { handle.near.as_ref().or(handle.far.as_ref()) } else { handle.far.as_ref() };
        let kind = kind.ok_or_else(|| {
            let what = "it has no fabric handle, and its owner is on another host".to_string();
            DeviceError::BadHandle { bytes: handle.bytes, what }
        })?;
        if let Kind::Ipc { address, device: owner, .. } = *kind
            && handle.process == process_id()?
        {
            device.enable_access(&Device::open(owner)?)?;
            return Ok(Self { address, bytes: handle.bytes, by: MappedBy::Pointer, _opened: None });
        }
        let opened = {
            let mut table = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
            let table = table.get_or_insert_default();
            let key = (device.ordinal(), kind.clone());
            match table.get(&key).and_then(Weak::upgrade) {
                Some(opened) => opened,
                None => {
                    let opened = Arc::new(open_kind(device, kind, segments, server, deadline)?);
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
        let address = opened.base() + handle.offset;
        Ok(Self { address, bytes: handle.bytes, by: kind.mapped_by(), _opened: Some(opened) })
    }

    /// How it was mapped.
    pub fn mapped_by(&self) -> MappedBy {
        self.by
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
    server: Option<&str>,
    deadline: Deadline,
) -> Result<Opened, MemoryError> {
    match kind {
        Kind::Ipc { handle, .. } => Ok(open_ipc(device, handle)?),
        Kind::Descriptors { parts } => {
            let mut handles = Vec::with_capacity(parts.len());
            for &(id, bytes) in parts {
                let (descriptor, size) = segments.fetch(server.unwrap_or_default(), id, deadline)?;
                if size != bytes {
                    let what = format!("it states {bytes} bytes and serves {size}");
                    return Err(DeviceError::BadHandle { bytes, what }.into());
                }
                handles.push((Handle::import(device, std::os::fd::AsFd::as_fd(&descriptor))?, bytes));
            }
            Ok(Opened::Mapped(DeviceMemory::map(device, handles)?))
        }
        Kind::Fabric { parts, .. } => {
            let imported = parts.iter().map(|(bytes, size)| Ok((Handle::import_fabric(device, bytes)?, *size)));
            Ok(Opened::Mapped(DeviceMemory::map(device, imported.collect::<Result<_, DeviceError>>()?)?))
        }
    }
}

impl Kind {
    fn mapped_by(&self) -> MappedBy {
        match self {
            Self::Ipc { .. } => MappedBy::Ipc,
            Self::Descriptors { .. } => MappedBy::Descriptor,
            Self::Fabric { .. } => MappedBy::Fabric,
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
