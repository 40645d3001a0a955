//! Which regions of a rank peers may write now.
//!
//! In: registrations and their ends. Out: words in shared segments that writers look at before every copy.
//! Guarantee: after `revoke` and once no writer is inside a copy, no peer writes the region any more.
//!
//! Two words per region, by its slot: key, or zero when there is none, and size. Orderings: `publish` stores the
//! size and then the key, `admits` loads the key and then the size; `revoke` is one half of the Dekker pair that
//! the ring describes, hence SeqCst.

use super::address::Instance;
use crate::memory::{MemoryError, SegmentServer, SharedMemory};
use crate::transport::FrameFault;
use crate::transport::region::slot_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Regions of one segment of the table; more regions mean more segments.
const CHUNK: u32 = 4096;

/// Number of the segment that holds the slot of `key`.
pub(super) fn chunk_of(key: u64) -> u32 {
    slot_of(key) / CHUNK
}

/// The table of this rank.
pub(super) struct OwnTable {
    chunks: Vec<Arc<SharedMemory>>,
}

impl OwnTable {
    /// No regions.
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new() }
    }

    /// Lets peers write the region with `key`.
    pub(super) fn publish(
        &mut self,
        key: u64,
        bytes: u64,
        instance: Instance,
        server: &SegmentServer,
    ) -> Result<(), MemoryError> {
        while self.chunks.len() <= chunk_of(key) as usize {
            let id = instance.table(self.chunks.len() as u32);
            let chunk = SharedMemory::create_as(id, "crossmesh-regions", u64::from(CHUNK) * 16)?;
            let chunk = Arc::new(chunk);
            server.publish(&chunk);
            self.chunks.push(chunk);
        }
        let [key_word, bytes_word] = entry(&self.chunks[chunk_of(key) as usize], key)?;
        bytes_word.store(bytes, Ordering::Relaxed);
        key_word.store(key, Ordering::SeqCst);
        Ok(())
    }

    /// Lets no copy into the region begin any more.
    pub(super) fn revoke(&self, key: u64) -> Result<(), MemoryError> {
        if let Some(chunk) = self.chunks.get(chunk_of(key) as usize) {
            let [key_word, _] = entry(chunk, key)?;
            // A region that peers may not write was never published.
            let _ = key_word.compare_exchange(key, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Whether the owner of `chunk` takes `bytes` bytes at `offset` of the region with `key`. For writers.
pub(super) fn admits(chunk: &SharedMemory, key: u64, offset: u64, bytes: u64) -> Result<(), FrameFault> {
    let unknown = FrameFault::UnknownRegion { slot: slot_of(key) };
    let [key_word, bytes_word] = entry(chunk, key).map_err(|_| unknown)?;
    if key_word.load(Ordering::SeqCst) != key {
        return Err(unknown);
    }
    let limit = bytes_word.load(Ordering::Relaxed);
    match offset.checked_add(bytes) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(FrameFault::Range { offset, bytes, limit }),
    }
}

fn entry(chunk: &SharedMemory, key: u64) -> Result<&[AtomicU64; 2], MemoryError> {
    let offset = u64::from(slot_of(key) % CHUNK) * 16;
    let words = chunk.words(offset, 2)?;
    words.try_into().map_err(|_| MemoryError::Range { offset, bytes: 16, limit: chunk.bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_admitted_until_revoked() {
        let server = SegmentServer::start().unwrap();
        let mut table = OwnTable::new();
        let instance = Instance::random().unwrap();
        let keys =
            [(1, 0), (7, CHUNK - 1), (9, CHUNK), (3, 3 * CHUNK)].map(|(nonce, slot)| nonce << 32 | u64::from(slot));
        for key in keys {
            table.publish(key, 100, instance, &server).unwrap();
        }
        for key in keys {
            let slot = slot_of(key);
            let chunk = table.chunks[chunk_of(key) as usize].clone();
            assert_eq!(admits(&chunk, key, 40, 60), Ok(()));
            assert_eq!(admits(&chunk, key, 41, 60), Err(FrameFault::Range { offset: 41, bytes: 60, limit: 100 }));
            assert!(admits(&chunk, key, u64::MAX, 1).is_err());
            assert_eq!(admits(&chunk, key ^ 1 << 50, 0, 1), Err(FrameFault::UnknownRegion { slot }));
            table.revoke(key ^ 1 << 50).unwrap();
            assert_eq!(admits(&chunk, key, 0, 1), Ok(()));
            table.revoke(key).unwrap();
            assert_eq!(admits(&chunk, key, 0, 0), Err(FrameFault::UnknownRegion { slot }));
        }
        assert_eq!(table.chunks.len(), 4);
        assert_eq!(table.chunks[3].id(), instance.table(3));
        assert!(admits(&SharedMemory::create("test", 8).unwrap(), 1 << 32, 0, 0).is_err());
    }
}
