//! A peer's memory that this process reaches without the peer's help.
//!
//! In: a mapped segment, or a process and an address. Out: checked pointers, and reads through the kernel.
//! Guarantee: nothing outside the region is reached. That the peer keeps its bytes still meanwhile is agreed by
//! ready and done flags above this layer.

use crate::memory::error::check_range;
use crate::memory::process::range;
use crate::memory::{MemoryError, ProcessMemory, SharedMemory};
use libc::iovec;
use std::sync::Arc;

/// A peer's region.
#[derive(Debug, Clone)]
pub enum PeerRegion {
    /// In a segment that is mapped here.
    Mapped(MappedRegion),
    /// In the private memory of a process on this host.
    Process(ProcessRegion),
}

/// Bytes of a mapped segment.
#[derive(Debug, Clone)]
pub struct MappedRegion {
    memory: Arc<SharedMemory>,
    offset: u64,
    bytes: u64,
}

/// Bytes of another process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessRegion {
    memory: ProcessMemory,
    address: u64,
    bytes: u64,
}

impl PeerRegion {
    /// `bytes` bytes at `offset` of a segment.
    pub fn mapped(memory: Arc<SharedMemory>, offset: u64, bytes: u64) -> Result<Self, MemoryError> {
        check_range(offset, bytes, memory.bytes())?;
        Ok(Self::Mapped(MappedRegion { memory, offset, bytes }))
    }

    /// `bytes` bytes at `address` of process `pid`.
    pub fn process(pid: i32, address: u64, bytes: u64) -> Result<Self, MemoryError> {
        check_range(address, bytes, u64::MAX)?;
        Ok(Self::Process(ProcessRegion { memory: ProcessMemory { pid }, address, bytes }))
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Mapped(region) => region.bytes,
            Self::Process(region) => region.bytes,
        }
    }
}

impl MappedRegion {
    /// The byte at `offset`, from which `bytes` bytes are inside the region. The pointer is valid while the region
    /// lives; other processes may write what it points to.
    pub fn mapped_ptr(&self, offset: u64, bytes: u64) -> Result<*const u8, MemoryError> {
        check_range(offset, bytes, self.bytes)?;
        self.memory.pointer(self.offset + offset, bytes).map(<*mut u8>::cast_const)
    }
}

impl ProcessRegion {
    /// The range of the other process that holds `bytes` bytes at `offset` of the region, for [`Self::read`].
    pub fn remote_range(&self, offset: u64, bytes: u64) -> Result<iovec, MemoryError> {
        check_range(offset, bytes, self.bytes)?;
        Ok(range(self.address + offset, bytes))
    }

    /// Copies the `remote` ranges into the `local` ranges, in order; both lists hold the same number of bytes.
    ///
    /// # Safety
    /// Every local range must be valid for writes and not be referenced by anything else meanwhile.
    pub unsafe fn read(&self, local: &[iovec], remote: &[iovec]) -> Result<u64, MemoryError> {
        for entry in remote {
            let (start, bytes) = (entry.iov_base as u64, entry.iov_len as u64);
            check_range(start.wrapping_sub(self.address), bytes, self.bytes)?;
        }
        // SAFETY: forwarded from the caller.
        unsafe { self.memory.read(local, remote) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_pointers_stay_inside() {
        let memory = Arc::new(SharedMemory::create("test", 100).unwrap());
        let region = PeerRegion::mapped(memory.clone(), 40, 60).unwrap();
        assert_eq!(region.bytes(), 60);
        let PeerRegion::Mapped(region) = region else { panic!("{region:?}") };
        assert_eq!(region.mapped_ptr(10, 50).unwrap(), memory.as_ptr().wrapping_add(50).cast_const());
        assert!(region.mapped_ptr(60, 0).is_ok() && region.mapped_ptr(11, 50).is_err());
        assert!(region.mapped_ptr(u64::MAX, 1).is_err());
        assert!(PeerRegion::mapped(memory.clone(), 41, 60).is_err() && PeerRegion::mapped(memory, 100, 0).is_ok());
    }

    #[test]
    fn process_ranges_stay_inside() {
        let source: Vec<u8> = (0..200).collect();
        let address = source.as_ptr() as u64;
        let region = PeerRegion::process(std::process::id() as i32, address + 50, 100).unwrap();
        let PeerRegion::Process(region) = region else { panic!("{region:?}") };
        let mut target = [0u8; 30];
        let start = target.as_mut_ptr() as u64;
        let local = [range(start, 10), range(start + 10, 20)];
        let remote = [region.remote_range(90, 10).unwrap(), region.remote_range(0, 20).unwrap()];
        // SAFETY: the local ranges cover an array that nothing else uses.
        unsafe { region.read(&local, &remote) }.unwrap();
        assert_eq!(target[..10], source[140..150]);
        assert_eq!(target[10..], source[50..70]);
        assert!(region.remote_range(91, 10).is_err() && region.remote_range(100, 0).is_ok());
        for outside in [range(address + 49, 10), range(address + 141, 10), range(u64::MAX, 10)] {
            // SAFETY: as above.
            assert!(unsafe { region.read(&local[..1], &[outside]) }.is_err());
        }
        assert!(PeerRegion::process(1, u64::MAX, 1).is_err());
    }
}
