//! Segments that are locked in memory, so that devices reach them at the link's rate and without the processor. In: a
//! segment, this process's or a peer's. Out: its address as devices see it. Guarantee: a segment is locked once for all
//! devices, and let go with its last user.

use super::error::DeviceError;
use super::gpu::Device;
use crate::memory::SharedMemory;
use cudarc::driver::sys;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What is locked, by the address of its first byte.
static LOCKED: Mutex<Vec<(usize, Weak<PageLocked>)>> = Mutex::new(Vec::new());

/// A locked segment.
pub(super) struct PageLocked {
    device: Device,
    segment: Arc<SharedMemory>,
    address: u64,
}

fn locked() -> MutexGuard<'static, Vec<(usize, Weak<PageLocked>)>> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PageLocked {
    /// Locks `segment`, or returns it when it is locked.
    pub(super) fn of(device: &Device, segment: &Arc<SharedMemory>) -> Result<Arc<Self>, DeviceError> {
        let key = segment.as_ptr() as usize;
        let mut locked = locked();
        if let Some(known) = locked.iter().find(|(start, _)| *start == key).and_then(|(_, known)| known.upgrade()) {
            return Ok(known);
        }
        let memory = Arc::new(Self::new(device, segment)?);
        locked.retain(|(start, _)| *start != key);
        locked.push((key, Arc::downgrade(&memory)));
        Ok(memory)
    }

    fn new(device: &Device, segment: &Arc<SharedMemory>) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let (start, bytes) = (segment.as_ptr().cast(), segment.bytes() as usize);
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the segment is mapped with this size, and stays so until it is let go, since it is kept.
        device.check("cuMemHostRegister", unsafe { sys::cuMemHostRegister_v2(start, bytes, flags) })?;
        let mut address = 0;
        // SAFETY: locked and mapped above; the pointer is to a live integer.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, start, 0) };
        if let Err(error) = device.check("cuMemHostGetDevicePointer", result) {
            // SAFETY: locked above, and nobody has used it.
            let _ = unsafe { sys::cuMemHostUnregister(start) };
            return Err(error);
        }
        Ok(Self { device: device.clone(), segment: segment.clone(), address })
    }

    /// Its first byte, as this process sees it.
    pub(super) fn start(&self) -> *mut u8 {
        self.segment.as_ptr()
    }

    /// Its first byte, as devices see it.
    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

impl fmt::Debug for PageLocked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PageLocked({} bytes)", self.segment.bytes())
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        // Held, so that nobody locks the segment anew before it is let go.
        let mut locked = locked();
        locked.retain(|(_, known)| known.strong_count() > 0);
        if let Ok(_current) = self.device.enter() {
            // SAFETY: locked by `new`; whoever copies from it or to it keeps this object.
            let _ = unsafe { sys::cuMemHostUnregister(self.segment.as_ptr().cast()) };
        }
    }
}
