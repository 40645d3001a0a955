//! Raw memory with its owner. In: a start, a size, what keeps it mapped. Out: a handle that copies take.
//! Guarantee: a span that exists is mapped, on the host or on the device that it names; it is never turned into a Rust
//! reference.

use super::{Buffer, MemoryError, SharedMemory};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Memory of this process or mapped from a peer, which others may read or write at any time.
#[derive(Clone)]
pub struct Span {
    start: *mut u8,
    bytes: u64,
    /// Number of the device that it is on; `None` on the host.
    device: Option<u32>,
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a span is an address and a count; every access goes through raw copies or atomics, and the owner is Sync.
unsafe impl Send for Span {}
// SAFETY: as above; a span has no interior state.
unsafe impl Sync for Span {}

impl Span {
    /// A span over `bytes` bytes at `start`.
    ///
    /// # Safety
    /// - The memory must stay mapped, readable and (if any copy writes to it) writable as long as `owner` lives.
    /// - While a copy runs, no Rust reference to bytes that it writes may be in use.
    pub unsafe fn new(start: *mut u8, bytes: u64, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { start, bytes, device: None, _owner: owner }
    }

    /// A whole segment.
    pub fn of_segment(segment: &Arc<SharedMemory>) -> Self {
        // SAFETY: the segment stays mapped as long as the owner that is kept; it is never referenced, only copied.
        unsafe { Self::new(segment.as_ptr(), segment.bytes(), segment.clone()) }
    }

    /// A whole buffer. Copies into it may run only while the transfer holds the buffer for writing.
    pub(crate) fn of_buffer(buffer: &Buffer) -> Self {
        // SAFETY: the buffer stays mapped as long as the owner that is kept; holds keep references out.
        let span = unsafe { Self::new(buffer.as_ptr(), buffer.bytes(), Arc::new(buffer.clone())) };
        Self { device: buffer.device(), ..span }
    }

    /// The device that it is on.
    pub fn device(&self) -> Option<u32> {
        self.device
    }

    /// An error unless it is memory of the host.
    pub(crate) fn check_host(&self) -> Result<(), MemoryError> {
        self.device.map_or(Ok(()), |device| Err(MemoryError::OnDevice { bytes: self.bytes, device }))
    }

    /// First byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Span({} bytes)", self.bytes)
    }
}
