//! Shared segments.
//!
//! In: a size, or a descriptor that a peer handed over. Out: [`SharedMemory`], mapped bytes that several
//! processes see. Guarantee: the segment has no name in any file system, can neither shrink nor grow, and
//! lives until the last process has dropped it.

use super::error::{MemoryError, check_range, errno_of};
use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// From this size on, huge pages are asked for.
const HUGE_PAGE: u64 = 2 << 20;
/// Alignment of a word that several processes access atomically.
pub const WORD: u64 = 8;

/// Names a segment among all segments of a job: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SegmentId(pub [u8; 16]);

impl SegmentId {
    /// A fresh id.
    pub fn random() -> Result<Self, MemoryError> {
        let mut id = [0; 16];
        fill_random(&mut id, "segment id")?;
        Ok(Self(id))
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SegmentId({self})")
    }
}

/// Fills `bytes` from the system's random source.
pub(crate) fn fill_random(bytes: &mut [u8], purpose: &str) -> Result<(), MemoryError> {
    getrandom::fill(bytes).map_err(|error| MemoryError::Create {
        name: purpose.to_string(),
        bytes: bytes.len() as u64,
        operation: "getrandom",
        source: error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
    })
}

/// A mapped shared segment.
pub struct SharedMemory {
    id: SegmentId,
    bytes: u64,
    file: File,
    /// `None` for zero bytes, which cannot be mapped.
    mapping: Option<MmapRaw>,
}

impl SharedMemory {
    /// A new zeroed segment; `name` shows in `/proc/<pid>/maps`.
    pub fn create(name: &str, bytes: u64) -> Result<Self, MemoryError> {
        Self::create_as(SegmentId::random()?, name, bytes)
    }

    /// A new zeroed segment with an id that the caller knows to be unique.
    pub fn create_as(id: SegmentId, name: &str, bytes: u64) -> Result<Self, MemoryError> {
        let failed = |operation, source| MemoryError::Create { name: name.to_string(), bytes, operation, source };
        let descriptor = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(|errno| failed("memfd_create", errno))?;
        let file = File::from(descriptor);
        if i64::try_from(bytes).is_err() {
            return Err(failed("ftruncate", Errno::EFBIG));
        }
        file.set_len(bytes).map_err(|error| failed("ftruncate", errno_of(&error)))?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL))
            .map_err(|errno| failed("fcntl(F_ADD_SEALS)", errno))?;
        let mapping = map(&file, bytes).map_err(|errno| failed("mmap", errno))?;
        Ok(Self { id, bytes, file, mapping })
    }

    /// Maps the segment behind a descriptor that a peer handed over; its size must be `expected`.
    pub(crate) fn adopt(id: SegmentId, descriptor: OwnedFd, expected: u64) -> Result<Self, MemoryError> {
        let file = File::from(descriptor);
        let failed = |operation, source| MemoryError::Map { segment: id, bytes: expected, operation, source };
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(|errno| failed("fcntl(F_GET_SEALS)", errno))?;
        if !SealFlag::from_bits_retain(seals).contains(SealFlag::F_SEAL_SHRINK) {
            return Err(MemoryError::Unsealed { segment: id });
        }
        let bytes = file.metadata().map_err(|error| failed("fstat", errno_of(&error)))?.len();
        if bytes != expected {
            return Err(MemoryError::Range { offset: 0, bytes: expected, limit: bytes });
        }
        let mapping = map(&file, bytes).map_err(|errno| failed("mmap", errno))?;
        Ok(Self { id, bytes, file, mapping })
    }

    /// Its name among all segments.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its first byte; dangling and not to be used for zero bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::without_provenance_mut(WORD as usize), MmapRaw::as_mut_ptr)
    }

    /// The byte at `offset`, from which `bytes` bytes are inside the segment.
    pub fn pointer(&self, offset: u64, bytes: u64) -> Result<*mut u8, MemoryError> {
        check_range(offset, bytes, self.bytes)?;
        Ok(self.as_ptr().wrapping_add(offset as usize))
    }

    /// `count` words from byte `offset`, for flags and rings.
    pub fn words(&self, offset: u64, count: u64) -> Result<&[AtomicU64], MemoryError> {
        if !offset.is_multiple_of(WORD) {
            return Err(MemoryError::Misaligned { offset, alignment: WORD });
        }
        let bytes = count.saturating_mul(WORD);
        let start = self.pointer(offset, bytes)?;
        // SAFETY: the range was checked to be inside the mapping, which is page aligned and lives as long as
        // `self`; any bytes are a valid AtomicU64, and all processes access these words atomically.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), count as usize) })
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SharedMemory").field("id", &self.id).field("bytes", &self.bytes).finish()
    }
}

fn map(file: &File, bytes: u64) -> Result<Option<MmapRaw>, Errno> {
    if bytes == 0 {
        return Ok(None);
    }
    let length = usize::try_from(bytes).map_err(|_| Errno::ENOMEM)?;
    let mapping = MmapOptions::new().len(length).map_raw(file).map_err(|error| errno_of(&error))?;
    ask_for_huge_pages(&mapping, bytes);
    Ok(Some(mapping))
}

/// A hint only: kernels may have huge pages switched off.
pub(crate) fn ask_for_huge_pages(mapping: &MmapRaw, bytes: u64) {
    if bytes >= HUGE_PAGE
        && let Err(error) = mapping.advise(Advice::HugePage)
    {
        log::debug!("no huge pages for {bytes} bytes: {error}");
    }
}
