//! Shared segments.
//!
//! In: a size, or a descriptor that a peer handed over. Out: [`SharedMemory`], mapped bytes that several
//! processes see. Guarantee: the segment has no name in any file system, can neither shrink nor grow, and
//! lives until the last process has dropped it.

use super::error::{MemoryError, check_range, errno_of};
use super::mapping::Mapping;
use super::pages::{self, PageChoice, Pages};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

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
    mapping: Option<Mapping>,
    pages: Pages,
}

impl SharedMemory {
    /// A new zeroed segment; `name` shows in `/proc/<pid>/maps`.
    pub fn create(name: &str, bytes: u64) -> Result<Self, MemoryError> {
        Self::create_as(SegmentId::random()?, name, bytes)
    }

    /// A new zeroed segment with an id that the caller knows to be unique.
    pub fn create_as(id: SegmentId, name: &str, bytes: u64) -> Result<Self, MemoryError> {
        Self::create_in(id, name, bytes, bytes, MFdFlags::empty())
    }

    /// A new zeroed segment for tensors: all of its memory is taken at once, in the pages that are chosen, or in
    /// ordinary ones where the system has no others.
    pub fn create_for_tensors(name: &str, bytes: u64, choice: PageChoice) -> Result<Self, MemoryError> {
        let id = SegmentId::random()?;
        if choice == PageChoice::Reserved {
            match Self::create_reserved(id, name, bytes) {
                Ok(memory) => return Ok(memory.told()),
                Err(error) => log::debug!("no reserved huge pages for {bytes} bytes: {error}"),
            }
        }
        let mut memory = Self::create_as(id, name, bytes)?;
        if let (PageChoice::Huge | PageChoice::Reserved, Some(mapping)) = (choice, &memory.mapping) {
            match pages::collapse(mapping) {
                Ok(()) => memory.pages = Pages::Huge,
                Err(errno) => log::debug!("no huge pages for {bytes} bytes: {errno}"),
            }
        }
        Ok(memory.told())
    }

    /// A segment in huge pages that the administrator reserved.
    pub(super) fn create_reserved(id: SegmentId, name: &str, bytes: u64) -> Result<Self, MemoryError> {
        let failed = |operation, source| MemoryError::Create { name: name.to_string(), bytes, operation, source };
        let page = pages::reserved_size().ok_or_else(|| failed("reading /proc/meminfo", Errno::ENOTSUP))?;
        if bytes < page {
            return Err(failed("memfd_create(MFD_HUGETLB)", Errno::ENOTSUP));
        }
        let whole = bytes.checked_next_multiple_of(page).ok_or_else(|| failed("ftruncate", Errno::EFBIG))?;
        let memory = Self::create_in(id, name, bytes, whole, MFdFlags::MFD_HUGETLB)?;
        if let Some(mapping) = &memory.mapping {
            // A page that cannot be had is an error now, and would be a signal later.
            mapping
                .advise(libc::MADV_POPULATE_WRITE, mapping.bytes())
                .map_err(|errno| failed("madvise(MADV_POPULATE_WRITE)", errno))?;
        }
        Ok(memory)
    }

    fn create_in(id: SegmentId, name: &str, bytes: u64, file_bytes: u64, kind: MFdFlags) -> Result<Self, MemoryError> {
        let failed = |operation, source| MemoryError::Create { name: name.to_string(), bytes, operation, source };
        let descriptor = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING | kind)
            .map_err(|errno| failed("memfd_create", errno))?;
        let file = File::from(descriptor);
        if i64::try_from(file_bytes).is_err() {
            return Err(failed("ftruncate", Errno::EFBIG));
        }
        file.set_len(file_bytes).map_err(|error| failed("ftruncate", errno_of(&error)))?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL))
            .map_err(|errno| failed("fcntl(F_ADD_SEALS)", errno))?;
        Self::over(id, file, bytes).map_err(|errno| failed("mmap", errno))
    }

    /// Maps a sealed file.
    fn over(id: SegmentId, file: File, bytes: u64) -> Result<Self, Errno> {
        let reserved = pages::reserved_page(&file);
        let mapped = bytes.next_multiple_of(reserved.unwrap_or(1));
        let length = usize::try_from(mapped).map_err(|_| Errno::ENOMEM)?;
        // The kernel aligns reserved huge pages itself.
        let alignment = if reserved.is_some() { 1 } else { pages::alignment(bytes) };
        let mapping = NonZeroUsize::new(length).map(|length| Mapping::of_file(&file, length, alignment)).transpose()?;
        if let (Some(mapping), None) = (&mapping, reserved) {
            pages::welcome_huge(mapping);
        }
        let pages = if reserved.is_some() { Pages::Reserved } else { Pages::Small };
        Ok(Self { id, bytes, file, mapping, pages })
    }

    fn told(self) -> Self {
        log::debug!("segment {} of {} bytes lies in {}", self.id, self.bytes, self.pages);
        self
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
        // A file in reserved huge pages is a whole number of them.
        if bytes != expected.next_multiple_of(pages::reserved_page(&file).unwrap_or(1)) {
            return Err(MemoryError::Range { offset: 0, bytes: expected, limit: bytes });
        }
        Self::over(id, file, expected).map_err(|errno| failed("mmap", errno))
    }

    /// What it was put into when it was made; a peer that maps it gets the same pages.
    pub fn pages(&self) -> Pages {
        self.pages
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
        self.mapping.as_ref().map_or(std::ptr::without_provenance_mut(WORD as usize), Mapping::start)
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
