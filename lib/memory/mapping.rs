//! Mapped memory. In: a file or nothing, a size. Out: bytes that can be read and written until the mapping is dropped.
//! Guarantee: memory that can hold a huge page begins where a huge page may, so that every process that maps it can use
//! them.

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// Mapped memory of this process.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<c_void>,
    bytes: NonZeroUsize,
}

// SAFETY: a mapping is an address and a count; whoever reads or writes through it vouches for the access.
unsafe impl Send for Mapping {}
// SAFETY: as above; a mapping has no interior state.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Shared memory of a file of at least `bytes` bytes, on a border of `alignment` bytes, a multiple of the page.
    pub(super) fn of_file(file: &File, bytes: NonZeroUsize, alignment: usize) -> Result<Self, Errno> {
        Self::new(Some(file), bytes, alignment)
    }

    /// Zeroed memory of this process only.
    pub(super) fn private(bytes: NonZeroUsize, alignment: usize) -> Result<Self, Errno> {
        Self::new(None, bytes, alignment)
    }

    fn new(file: Option<&File>, bytes: NonZeroUsize, alignment: usize) -> Result<Self, Errno> {
        let start = if alignment <= page() {
            // SAFETY: without an address the kernel takes memory that nothing else uses.
            unsafe { map(file, None, bytes)? }
        } else {
            aligned(file, bytes, alignment)?
        };
        Ok(Self { start, bytes })
    }

    /// Its first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Gives the kernel advice about the first `bytes` bytes.
    pub(super) fn advise(&self, advice: libc::c_int, bytes: usize) -> Result<(), Errno> {
        debug_assert!(bytes <= self.bytes());
        // SAFETY: the range is mapped; the kinds of advice that are given here change no byte of it.
        Errno::result(unsafe { libc::madvise(self.start.as_ptr(), bytes, advice) }).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and its owner gives it up.
        if let Err(errno) = unsafe { munmap(self.start, self.bytes.get()) } {
            log::error!("cannot unmap {} bytes: {errno}", self.bytes);
        }
    }
}

/// # Safety
/// A range at `address` must be memory that the caller owns and that nothing uses.
unsafe fn map(
    file: Option<&File>,
    address: Option<NonZeroUsize>,
    bytes: NonZeroUsize,
) -> Result<NonNull<c_void>, Errno> {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let fixed = if address.is_some() { MapFlags::MAP_FIXED } else { MapFlags::empty() };
    match file {
        // SAFETY: forwarded from the caller.
        Some(file) => unsafe { mmap(address, bytes, access, MapFlags::MAP_SHARED | fixed, file, 0) },
        // SAFETY: as above.
        None => unsafe { mmap_anonymous(address, bytes, access, MapFlags::MAP_PRIVATE | fixed) },
    }
}

/// Maps on a border of huge pages: in the middle of a range that is reserved first and whose ends are given back.
fn aligned(file: Option<&File>, bytes: NonZeroUsize, alignment: usize) -> Result<NonNull<c_void>, Errno> {
    let whole = bytes.get().checked_next_multiple_of(page()).and_then(NonZeroUsize::new).ok_or(Errno::ENOMEM)?;
    let reserved = whole.checked_add(alignment).ok_or(Errno::ENOMEM)?;
    // SAFETY: without an address the kernel takes memory that nothing else uses.
    let range = unsafe {
        mmap_anonymous(None, reserved, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE)?
    };
    let before = range.as_ptr().cast::<u8>().align_offset(alignment);
    let release = |first: usize, count: usize| {
        let start = range.as_ptr().wrapping_byte_add(first);
        match NonNull::new(start) {
            // SAFETY: a part of the reserved range, which nothing uses.
            Some(start) if count > 0 => unsafe { munmap(start, count) },
            _ => Ok(()),
        }
    };
    let address = NonZeroUsize::new(range.addr().get() + before);
    // SAFETY: the range at the address was reserved above and nothing uses it.
    let mapped = match unsafe { map(file, address, bytes) } {
        Ok(mapped) => mapped,
        Err(errno) => {
            release(0, reserved.get())?;
            return Err(errno);
        }
    };
    let end = before + whole.get();
    release(0, before)?;
    release(end, reserved.get() - end)?;
    Ok(mapped)
}

/// Bytes of a page.
pub(super) fn page() -> usize {
    // SAFETY: takes a number, returns a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}
