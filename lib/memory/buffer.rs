//! Memory as users hold it, of the host or of a GPU.
//!
//! In: a size, or memory of the caller. Out: [`Buffer`], a handle that is cheap to clone, guards for reading
//! and writing it, and holds for transfers. Guarantee: many readers or one writer, transfers included, so that
//! safe code cannot touch memory that a transfer moves; taking or releasing a hold allocates nothing.

use super::device::DeviceMemory;
use super::error::{MemoryError, check_range};
use super::mapping::Mapping;
use super::pages::{self, PageChoice, Pages};
use super::shared::{SegmentId, SharedMemory};
use nix::errno::Errno;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Alignment of a buffer without bytes.
const PAGE: usize = 4096;

/// Where a buffer's memory is, for peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// In a segment that peers of this host can map.
    Shared {
        /// The segment.
        segment: SegmentId,
        /// First byte within it.
        offset: u64,
    },
    /// Memory of this process only.
    Private {
        /// First byte.
        address: u64,
    },
    /// Memory of a GPU.
    Device {
        /// Number of the device among the visible ones.
        device: u32,
        /// First byte, as the device sees it.
        address: u64,
    },
}

/// A handle of memory; clones mean the same memory.
#[derive(Clone)]
pub struct Buffer(Arc<Memory>);

struct Memory {
    start: *mut u8,
    bytes: u64,
    owner: Owner,
    borrows: AtomicU64,
}

enum Owner {
    Shared(Arc<SharedMemory>),
    Private { _mapping: Option<Mapping> },
    Caller,
    Device { device: u32, _memory: Option<Arc<DeviceMemory>> },
}

// SAFETY: `start` is only dereferenced through guards and holds, which the atomic borrow state keeps apart.
unsafe impl Send for Memory {}
// SAFETY: as above; the borrow state is atomic.
unsafe impl Sync for Memory {}

impl Buffer {
    /// Zeroed memory that peers on this host can map: what transfers move fastest. All of it is taken at once, in the
    /// pages that `CROSSMESH_PAGES` chooses; in ordinary ones where the system has no others.
    pub fn shared(bytes: u64) -> Result<Self, MemoryError> {
        let pages = PageChoice::of_environment()?;
        let memory = Arc::new(SharedMemory::create_for_tensors("crossmesh-buffer", bytes, pages)?);
        Ok(Self::new(memory.as_ptr(), bytes, Owner::Shared(memory)))
    }

    /// Zeroed memory of this process only.
    pub fn private(bytes: u64) -> Result<Self, MemoryError> {
        if bytes == 0 {
            return Ok(Self::new(std::ptr::without_provenance_mut(PAGE), 0, Owner::Private { _mapping: None }));
        }
        let failed = |source| MemoryError::Create { name: "private buffer".into(), bytes, operation: "mmap", source };
        let length = usize::try_from(bytes).ok().and_then(NonZeroUsize::new).ok_or_else(|| failed(Errno::ENOMEM))?;
        let mapping = Mapping::private(length, pages::alignment(bytes)).map_err(failed)?;
        pages::welcome_huge(&mapping);
        Ok(Self::new(mapping.start(), bytes, Owner::Private { _mapping: Some(mapping) }))
    }

    /// Memory of the caller.
    ///
    /// # Safety
    /// - `start` must be valid for reads and writes of `bytes` bytes until the last clone of the buffer and the
    ///   last hold of a transfer is dropped, and must not be null unless `bytes` is 0.
    /// - Meanwhile all access goes through this buffer and its clones; a second buffer over the same bytes, or a
    ///   reference to them, must not be used while a guard or transfer of this one is active.
    pub unsafe fn from_raw(start: *mut u8, bytes: u64) -> Self {
        Self::new(start, bytes, Owner::Caller)
    }

    /// Memory of a GPU that peers can map.
    pub fn on_device(memory: &Arc<DeviceMemory>) -> Self {
        let start = std::ptr::without_provenance_mut(memory.address() as usize);
        let device = memory.device().ordinal();
        Self::new(start, memory.bytes(), Owner::Device { device, _memory: Some(memory.clone()) })
    }

    /// Memory of the caller on a GPU: `bytes` bytes at `address`, on visible device `device`. How it was allocated is found
    /// out when a transfer is made.
    ///
    /// # Safety
    /// It must stay allocated until the last clone of the buffer and the last transfer that uses it is dropped, and
    /// meanwhile be used only by work that is ordered before a start or after its end.
    pub unsafe fn from_device(device: u32, address: u64, bytes: u64) -> Self {
        let start = std::ptr::without_provenance_mut(address as usize);
        Self::new(start, bytes, Owner::Device { device, _memory: None })
    }

    fn new(start: *mut u8, bytes: u64, owner: Owner) -> Self {
        Self(Arc::new(Memory { start, bytes, owner, borrows: AtomicU64::new(0) }))
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Its first byte. Reading or writing through the pointer needs a guard or a hold.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.start
    }

    /// Whether peers on this host can map it.
    pub fn is_shared(&self) -> bool {
        self.segment().is_some()
    }

    /// Where its memory is.
    pub fn kind(&self) -> MemoryKind {
        match &self.0.owner {
            Owner::Shared(memory) => MemoryKind::Shared { segment: memory.id(), offset: 0 },
            Owner::Private { .. } | Owner::Caller => MemoryKind::Private { address: self.0.start as u64 },
            Owner::Device { device, .. } => MemoryKind::Device { device: *device, address: self.0.start as u64 },
        }
    }

    /// The segment it is in, to be published to peers; `None` for private memory.
    pub fn segment(&self) -> Option<&Arc<SharedMemory>> {
        match &self.0.owner {
            Owner::Shared(memory) => Some(memory),
            Owner::Private { .. } | Owner::Caller | Owner::Device { .. } => None,
        }
    }

    /// The device that it is on; `None` for memory of the host.
    pub fn device(&self) -> Option<u32> {
        match &self.0.owner {
            Owner::Device { device, .. } => Some(*device),
            _ => None,
        }
    }

    /// Pages that shared memory was put into; `None` for private memory, which gets its pages when it is touched.
    pub fn pages(&self) -> Option<Pages> {
        self.segment().map(|memory| memory.pages())
    }

    /// Whether both handles mean exactly the same bytes.
    pub fn same_memory(&self, other: &Buffer) -> bool {
        self.0.start == other.0.start && self.0.bytes == other.0.bytes
    }

    /// Whether some byte is in both.
    pub fn overlaps(&self, other: &Buffer) -> bool {
        let ends = |buffer: &Buffer| (buffer.0.start as u64, (buffer.0.start as u64).saturating_add(buffer.0.bytes));
        let ((a, a_end), (b, b_end)) = (ends(self), ends(other));
        a < b_end && b < a_end && a != a_end && b != b_end
    }

    /// The byte at `offset`, from which `bytes` bytes are inside the buffer.
    pub fn pointer(&self, offset: u64, bytes: u64) -> Result<*mut u8, MemoryError> {
        check_range(offset, bytes, self.0.bytes)?;
        Ok(self.0.start.wrapping_add(offset as usize))
    }

    /// Its bytes for reading.
    pub fn read(&self) -> Result<ReadGuard<'_>, MemoryError> {
        self.check_on_host()?;
        self.0.borrow(Access::Read, Party::User)?;
        Ok(ReadGuard { memory: &self.0 })
    }

    /// Its bytes for writing.
    pub fn write(&self) -> Result<WriteGuard<'_>, MemoryError> {
        self.check_on_host()?;
        self.0.borrow(Access::Write, Party::User)?;
        Ok(WriteGuard { memory: &self.0 })
    }

    fn check_on_host(&self) -> Result<(), MemoryError> {
        self.device().map_or(Ok(()), |device| Err(MemoryError::OnDevice { bytes: self.0.bytes, device }))
    }

    /// Taken by a transfer that reads the buffer; nobody can write it until the hold is dropped.
    pub fn hold_for_read(&self) -> Result<ReadHold, MemoryError> {
        self.0.borrow(Access::Read, Party::Transfer)?;
        Ok(ReadHold { buffer: self.clone() })
    }

    /// Taken by a transfer that writes the buffer; nobody can read or write it until the hold is dropped.
    pub fn hold_for_write(&self) -> Result<WriteHold, MemoryError> {
        self.0.borrow(Access::Write, Party::Transfer)?;
        Ok(WriteHold { buffer: self.clone() })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Buffer").field("kind", &self.kind()).field("bytes", &self.0.bytes).finish()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Who borrows; each has half of the borrow word: 31 bits of readers and one of the writer.
#[derive(Clone, Copy)]
enum Party {
    User,
    Transfer,
}

impl Party {
    fn shift(self) -> u32 {
        match self {
            Party::User => 0,
            Party::Transfer => 32,
        }
    }
}

const READERS: u64 = (1 << 31) - 1;
const WRITER: u64 = 1 << 31;
const WRITERS: u64 = WRITER | WRITER << 32;

impl Access {
    fn unit(self, party: Party) -> u64 {
        match self {
            Access::Read => 1 << party.shift(),
            Access::Write => WRITER << party.shift(),
        }
    }
}

impl Memory {
    fn borrow(&self, access: Access, party: Party) -> Result<(), MemoryError> {
        let mut state = self.borrows.load(Ordering::Relaxed);
        loop {
            let readers = state >> party.shift() & READERS;
            let free = match access {
                Access::Read => state & WRITERS == 0 && readers < READERS,
                Access::Write => state == 0,
            };
            if !free {
                return Err(self.conflict(state, access));
            }
            // Acquire pairs with the Release in `give_back`: what the last borrower wrote is seen here.
            let taken = state + access.unit(party);
            match self.borrows.compare_exchange_weak(state, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => state = now,
            }
        }
    }

    fn give_back(&self, access: Access, party: Party) {
        // Release pairs with the Acquire in `borrow`.
        self.borrows.fetch_sub(access.unit(party), Ordering::Release);
    }

    fn conflict(&self, state: u64, access: Access) -> MemoryError {
        let wanted = if access == Access::Read { "reading" } else { "writing" };
        let how = |half: u64| if half & WRITER != 0 { "writes" } else { "reads" };
        let (user, transfer) = (state & u64::from(u32::MAX), state >> 32);
        let transfer_is_in_the_way = match access {
            Access::Read => transfer & WRITER != 0,
            Access::Write => transfer != 0,
        };
        if transfer_is_in_the_way {
            MemoryError::InTransfer { bytes: self.bytes, transfer: how(transfer), wanted }
        } else {
            MemoryError::Borrowed { bytes: self.bytes, guard: how(user), wanted }
        }
    }
}

/// Bytes of a buffer for reading.
pub struct ReadGuard<'a> {
    memory: &'a Memory,
}

impl Deref for ReadGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is valid as long as the handle lives, and the borrow state admits no writer now.
        unsafe { slice(self.memory) }
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.memory.give_back(Access::Read, Party::User);
    }
}

/// Bytes of a buffer for writing.
pub struct WriteGuard<'a> {
    memory: &'a Memory,
}

impl Deref for WriteGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is valid as long as the handle lives, and this guard is its only borrow.
        unsafe { slice(self.memory) }
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self.memory.bytes {
            0 => &mut [],
            // SAFETY: as above; `&mut self` makes the slice the only one of this guard.
            bytes => unsafe { std::slice::from_raw_parts_mut(self.memory.start, bytes as usize) },
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.memory.give_back(Access::Write, Party::User);
    }
}

/// # Safety
/// Nobody may write the memory while the slice lives.
unsafe fn slice(memory: &Memory) -> &[u8] {
    match memory.bytes {
        // A caller's buffer without bytes may be null.
        0 => &[],
        // SAFETY: valid for `bytes` bytes by construction; not written by the caller's promise.
        bytes => unsafe { std::slice::from_raw_parts(memory.start, bytes as usize) },
    }
}

macro_rules! hold {
    ($(#[$meta:meta])* $name:ident, $access:expr) => {
        $(#[$meta])*
        #[derive(Debug)]
        #[must_use = "dropping the hold ends it"]
        pub struct $name {
            buffer: Buffer,
        }

        impl $name {
            /// The buffer that is held.
            pub fn buffer(&self) -> &Buffer {
                &self.buffer
            }

            /// Ends the hold, as dropping it does.
            pub fn release(self) {}
        }

        impl Drop for $name {
            fn drop(&mut self) {
                self.buffer.0.give_back($access, Party::Transfer);
            }
        }
    };
}

hold!(
    /// A transfer reads the buffer.
    ReadHold,
    Access::Read
);
hold!(
    /// A transfer writes the buffer.
    WriteHold,
    Access::Write
);
