//! Streams, events, copies, memory of the host that devices reach. In: a device. Out: work in order. Guarantee: a call on
//! a stream of another device than its buffers' is the driver's error; nothing here waits without a deadline.

use super::error::DeviceError;
use super::gpu::Device;
use crate::base::{Backoff, Deadline};
use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::AtomicU32;

/// A stream: the caller's, or one of our own.
pub struct Stream {
    device: Device,
    handle: CUstream,
    owned: bool,
}

// SAFETY: a stream handle may be used from any thread; the driver locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream that does not wait for the default stream.
    pub fn new(device: &Device) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is to a live handle.
        device.check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut handle, flags) })?;
        Ok(Self { device: device.clone(), handle, owned: true })
    }

    /// A new stream whose work goes before that of streams without priority, for small copies that somebody waits for. A
    /// stream that waits for the host never holds it up, since streams of different priority share no queue.
    pub fn urgent(device: &Device) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        device.check("cuCtxGetStreamPriorityRange", result)?;
        let mut handle = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is to a live handle.
        let result = unsafe { sys::cuStreamCreateWithPriority(&mut handle, flags, greatest) };
        device.check("cuStreamCreateWithPriority", result)?;
        Ok(Self { device: device.clone(), handle, owned: true })
    }

    /// A stream of the caller: a `cudaStream_t`, `CUstream`, or `torch.cuda.Stream.cuda_stream`; null is the default one.
    ///
    /// # Safety
    /// It must be a stream of `device`'s primary context and live as long as this object.
    pub unsafe fn from_raw(device: &Device, handle: *mut c_void) -> Self {
        Self { device: device.clone(), handle: handle.cast(), owned: false }
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Tells it from other streams of the process.
    pub fn identity(&self) -> usize {
        self.handle as usize
    }

    pub(super) fn handle(&self) -> CUstream {
        self.handle
    }

    /// Copies `bytes` bytes; either address may be of this device, of a peer that was mapped, or pinned host memory.
    ///
    /// # Safety
    /// Both ranges must be mapped until the copy has run, and nobody else may use the destination meanwhile.
    pub unsafe fn copy(&self, destination: u64, source: u64, bytes: u64) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemcpyAsync(destination, source, bytes as usize, self.handle) };
        self.device.check("cuMemcpyAsync", result)
    }

    /// Copies rows between `from` and `to`, which stand for the first bytes that `rows` names.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for all rows; memory of the host may be pageable.
    pub unsafe fn copy_between(&self, to: End, from: End, rows: Rows) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        if rows.rows == 1 {
            let (bytes, stream) = (rows.run as usize, self.handle);
            // SAFETY: the caller's promise.
            let result = unsafe {
                match (to, from) {
                    (End::Host(to), End::Device(from)) => {
                        sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, stream)
                    }
                    (End::Device(to), End::Host(from)) => {
                        sys::cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, stream)
                    }
                    _ => sys::cuMemcpyAsync(to.address(), from.address(), bytes, stream),
                }
            };
            return self.device.check("cuMemcpyAsync", result);
        }
        let ((from_kind, from_host, from_device), (to_kind, to_host, to_device)) = (from.parts(), to.parts());
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: from_kind,
            srcHost: from_host,
            srcDevice: from_device,
            srcArray: std::ptr::null_mut(),
            srcPitch: rows.source_step as usize,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: to_kind,
            dstHost: to_host,
            dstDevice: to_device,
            dstArray: std::ptr::null_mut(),
            dstPitch: rows.destination_step as usize,
            WidthInBytes: rows.run as usize,
            Height: rows.rows as usize,
        };
        // SAFETY: the structure is live during the call; the ranges are the caller's promise.
        self.device.check("cuMemcpy2DAsync", unsafe { sys::cuMemcpy2DAsync_v2(&copy, self.handle) })
    }

    /// Sets `bytes` bytes.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for the destination.
    pub unsafe fn set(&self, address: u64, byte: u8, bytes: u64) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        // SAFETY: the caller's promise.
        let result = unsafe { sys::cuMemsetD8Async(address, byte, bytes as usize, self.handle) };
        self.device.check("cuMemsetD8Async", result)
    }

    /// Zeroes memory of our own, which the caller keeps until the stream has passed.
    pub fn clear(&self, memory: &std::sync::Arc<super::DeviceMemory>) -> Result<(), DeviceError> {
        // SAFETY: the memory is mapped; it is unmapped only after the device has ended its work with it, since the driver
        // orders unmapping behind it.
        unsafe { self.set(memory.address(), 0, memory.bytes()) }
    }

    /// Lets what follows wait for an event.
    pub fn wait_event(&self, event: &Event) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        // SAFETY: both handles are live.
        let result = unsafe { sys::cuStreamWaitEvent(self.handle, event.handle, 0) };
        self.device.check("cuStreamWaitEvent", result)
    }

    /// Lets what follows wait until word `word` of `memory` is `value` or beyond, counting up.
    pub fn wait_word(&self, memory: &Pinned, word: usize, value: u32) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        let flag = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
        let address = memory.device_address() + 4 * word as u64;
        if memory.word(word).is_none() {
            return self.device.check("cuStreamWaitValue32", sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the word is in pinned memory that the caller keeps until the stream has passed.
        let result = unsafe { sys::cuStreamWaitValue32_v2(self.handle, address, value, flag) };
        self.device.check("cuStreamWaitValue32", result)
    }

    /// Whether a graph is being captured from it.
    pub fn is_capturing(&self) -> Result<bool, DeviceError> {
        let _current = self.device.enter()?;
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the pointer is to a live value.
        let result = unsafe { sys::cuStreamIsCapturing(self.handle, &mut status) };
        self.device.check("cuStreamIsCapturing", result)?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Whether everything that was put on it has run; what is wrong with the device, if anything is.
    pub fn is_idle(&self) -> Result<bool, DeviceError> {
        let _current = self.device.enter()?;
        // SAFETY: the stream is live.
        let result = unsafe { sys::cuStreamQuery(self.handle) };
        if result == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.device.check("cuStreamQuery", result).map(|()| true)
    }

    /// Its priority: 0, or less than that for one that goes before others.
    pub(super) fn priority(&self) -> Result<i32, DeviceError> {
        let _current = self.device.enter()?;
        let mut priority = 0;
        // SAFETY: the pointer is to a live integer.
        let result = unsafe { sys::cuStreamGetPriority(self.handle, &mut priority) };
        self.device.check("cuStreamGetPriority", result).map(|()| priority)
    }

    /// Returns once everything before this call has run.
    pub fn synchronize(&self, deadline: Deadline) -> Result<(), DeviceError> {
        let event = Event::new(&self.device)?;
        event.record(self)?;
        event.wait(deadline)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Stream of {}", self.device.label())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owned
            && let Ok(_current) = self.device.enter()
        {
            // SAFETY: created by `new`; work on it goes on to its end.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// Rows of a copy; steps in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// First byte.
    pub source: u64,
    /// First byte.
    pub destination: u64,
    /// Step.
    pub source_step: u64,
    /// Step.
    pub destination_step: u64,
    /// Bytes of a row.
    pub run: u64,
    /// Rows.
    pub rows: u64,
}

/// Where one end of a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// On a device, or wherever the driver finds the address.
    Device(u64),
    /// On the host.
    Host(u64),
}

impl End {
    fn address(self) -> u64 {
        match self {
            Self::Device(address) | Self::Host(address) => address,
        }
    }

    /// Kind of memory, pointer on the host, address on a device.
    fn parts(self) -> (sys::CUmemorytype, *mut c_void, u64) {
        match self {
            Self::Device(address) => (sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED, std::ptr::null_mut(), address),
            Self::Host(address) => (sys::CUmemorytype::CU_MEMORYTYPE_HOST, address as *mut c_void, 0),
        }
    }
}

/// A mark in a stream.
pub struct Event {
    device: Device,
    handle: CUevent,
}

// SAFETY: an event handle may be used from any thread; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that no stream has recorded.
    pub fn new(device: &Device) -> Result<Self, DeviceError> {
        Self::with_flags(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// An event that tells no time, which costs the device less.
    pub fn without_time(device: &Device) -> Result<Self, DeviceError> {
        Self::with_flags(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with_flags(device: &Device, flags: sys::CUevent_flags) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        device.check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags as u32) })?;
        Ok(Self { device: device.clone(), handle })
    }

    /// Marks the end of what `stream` has so far.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        let _current = self.device.enter()?;
        // SAFETY: both handles are live.
        self.device.check("cuEventRecord", unsafe { sys::cuEventRecord(self.handle, stream.handle) })
    }

    /// Whether everything before the mark has run.
    pub fn is_done(&self) -> Result<bool, DeviceError> {
        // SAFETY: the handle is live.
        match unsafe { sys::cuEventQuery(self.handle) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => self.device.check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Returns once everything before the mark has run.
    pub fn wait(&self, deadline: Deadline) -> Result<(), DeviceError> {
        let mut backoff = Backoff::new();
        while !self.is_done()? {
            if deadline.expired() {
                let device = self.device.label().to_string();
                return Err(DeviceError::Late { device, limit: deadline.limit() });
            }
            backoff.snooze();
        }
        Ok(())
    }

    /// Microseconds from `earlier` to this; both must be done.
    pub fn microseconds_since(&self, earlier: &Event) -> Result<f64, DeviceError> {
        let mut milliseconds = 0f32;
        // SAFETY: the pointer is to a live number, both handles are live.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.handle, self.handle) };
        self.device.check("cuEventElapsedTime", result)?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Event of {}", self.device.label())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new` and destroyed once.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

/// Zeroed memory of the host that a device reads and writes.
pub struct Pinned {
    device: Device,
    start: *mut u8,
    address: u64,
    bytes: u64,
}

// SAFETY: it is only accessed as atomic words or copied from and to as a whole by its owner.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `bytes` bytes, zeroed.
    pub fn new(device: &Device, bytes: u64) -> Result<Self, DeviceError> {
        let _current = device.enter()?;
        let mut start = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the pointer is to a live pointer.
        match unsafe { sys::cuMemHostAlloc(&mut start, bytes.max(4) as usize, flags) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => return Err(super::allocation::out_of_memory(device, bytes)),
            result => device.check("cuMemHostAlloc", result)?,
        }
        // SAFETY: just allocated with at least so many bytes.
        unsafe { start.cast::<u8>().write_bytes(0, bytes.max(4) as usize) };
        let mut memory = Self { device: device.clone(), start: start.cast(), address: 0, bytes };
        // SAFETY: pinned and mapped above; the pointer is to a live integer.
        let result = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut memory.address, start, 0) };
        device.check("cuMemHostGetDevicePointer", result)?;
        Ok(memory)
    }

    /// Where this process finds it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Where the device finds it.
    pub fn device_address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its bytes, while no device uses it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised by `new`; the borrow is exclusive, and work on a device that uses it is over,
        // as this method's words ask.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes as usize) }
    }

    /// Word `word` of 32 bits.
    pub fn word(&self, word: usize) -> Option<&AtomicU32> {
        let fits = (word as u64).checked_add(1)?.checked_mul(4)? <= self.bytes;
        // SAFETY: inside the memory, aligned to its page's start plus four times a number, and accessed atomically.
        fits.then(|| unsafe { &*self.start.cast::<AtomicU32>().add(word) })
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Pinned({} bytes)", self.bytes)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: allocated by `new` and freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}
