//! Registered regions of one link.
//!
//! In: memory with rights; slices and keys that name parts of it. Out: pointers. Guarantee: a pointer is given
//! only for bytes inside a live region with the right asked for; a key names one registration, never a later one
//! in the same slot.

use super::{FrameFault, LocalSlice, RegionId, RemoteRegion, Rights, SegmentPlace, TransportError};
use crate::memory::shared::fill_random;

/// All regions of a link.
#[derive(Default)]
pub(super) struct RegionTable {
    slots: Vec<Option<Region>>,
    free: Vec<u32>,
}

pub(super) struct Region {
    start: *mut u8,
    bytes: u64,
    rights: Rights,
    /// Slot in the low half, a random nonce in the high half.
    key: u64,
    /// Queued puts that read it.
    puts: u32,
}

// SAFETY: the pointer is only handed out, to code that upholds the contract of `MessageLink::register`.
unsafe impl Send for Region {}

/// The slot that a key names.
pub(super) fn slot_of(key: u64) -> u32 {
    key as u32
}

impl RegionTable {
    /// Adds a region.
    pub(super) fn insert(&mut self, start: *mut u8, bytes: u64, rights: Rights) -> Result<RegionId, TransportError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        let mut nonce = [0; 4];
        if let Err(error) = fill_random(&mut nonce, "region key") {
            self.free.push(slot);
            return Err(error.into());
        }
        // Never zero, so that zero can mean a revoked region.
        let nonce = u64::from(u32::from_le_bytes(nonce) | 1);
        let key = nonce << 32 | u64::from(slot);
        self.slots[slot as usize] = Some(Region { start, bytes, rights, key, puts: 0 });
        Ok(RegionId(slot))
    }

    /// The key of a region that may be removed, because no queued put reads it.
    pub(super) fn removable(&self, region: RegionId) -> Result<u64, TransportError> {
        match self.get(region)? {
            Region { puts: 0, key, .. } => Ok(*key),
            Region { puts, .. } => Err(TransportError::RegionInUse { region, puts: *puts }),
        }
    }

    /// Removes a region that no queued put reads.
    pub(super) fn remove(&mut self, region: RegionId) -> Result<(), TransportError> {
        self.removable(region)?;
        self.slots[region.0 as usize] = None;
        self.free.push(region.0);
        Ok(())
    }

    /// What peers need to put into `region`.
    pub(super) fn export(
        &self,
        region: RegionId,
        segment: Option<SegmentPlace>,
    ) -> Result<RemoteRegion, TransportError> {
        let found = self.get(region)?;
        if !found.rights.contains(Rights::REMOTE_WRITE) {
            return Err(TransportError::MissingRight { region, right: "REMOTE_WRITE" });
        }
        Ok(RemoteRegion { key: found.key, bytes: found.bytes, segment })
    }

    /// Whether `region` is registered.
    pub(super) fn check(&self, region: RegionId) -> Result<(), TransportError> {
        self.get(region).map(|_| ())
    }

    /// First byte of a slice that a put reads.
    pub(super) fn source(&self, slice: LocalSlice) -> Result<*const u8, TransportError> {
        let LocalSlice { region, offset, bytes } = slice;
        let found = self.get(region)?;
        if !found.rights.contains(Rights::LOCAL_READ) {
            return Err(TransportError::MissingRight { region, right: "LOCAL_READ" });
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= found.bytes => Ok(found.start.wrapping_add(offset as usize)),
            _ => Err(TransportError::LocalRange { region, offset, bytes, limit: found.bytes }),
        }
    }

    /// First byte of what a peer writes by key.
    pub(super) fn target(&self, key: u64, offset: u64, bytes: u64) -> Result<*mut u8, FrameFault> {
        let slot = slot_of(key);
        let found = self.slots.get(slot as usize).and_then(Option::as_ref).filter(|region| region.key == key);
        let found = found.ok_or(FrameFault::UnknownRegion { slot })?;
        if !found.rights.contains(Rights::REMOTE_WRITE) {
            return Err(FrameFault::NotWritable { slot });
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= found.bytes => Ok(found.start.wrapping_add(offset as usize)),
            _ => Err(FrameFault::Range { offset, bytes, limit: found.bytes }),
        }
    }

    /// A put that reads `region` was queued.
    pub(super) fn put_queued(&mut self, region: RegionId) {
        if let Some(found) = self.get_mut(region) {
            found.puts += 1;
        }
    }

    /// A put that read `region` is over.
    pub(super) fn put_over(&mut self, region: RegionId) {
        if let Some(found) = self.get_mut(region) {
            found.puts -= 1;
        }
    }

    fn get(&self, region: RegionId) -> Result<&Region, TransportError> {
        let found = self.slots.get(region.0 as usize).and_then(Option::as_ref);
        found.ok_or(TransportError::UnknownRegion { region })
    }

    fn get_mut(&mut self, region: RegionId) -> Option<&mut Region> {
        self.slots.get_mut(region.0 as usize).and_then(Option::as_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_keys_are_checked() {
        let mut memory = [0u8; 100];
        let start = memory.as_mut_ptr();
        let mut table = RegionTable::default();
        let both = table.insert(start, 100, Rights::all()).unwrap();
        let source = table.insert(start, 10, Rights::LOCAL_READ).unwrap();
        let target = table.insert(start, 10, Rights::REMOTE_WRITE).unwrap();
        let slice = |region, offset, bytes| LocalSlice { region, offset, bytes };
        assert_eq!(table.source(slice(both, 40, 60)), Ok(start.wrapping_add(40).cast_const()));
        assert!(table.source(slice(both, 41, 60)).is_err() && table.source(slice(both, u64::MAX, 1)).is_err());
        assert!(table.source(slice(source, 10, 0)).is_ok() && table.source(slice(target, 0, 1)).is_err());
        assert!(table.source(slice(RegionId(3), 0, 0)).is_err());
        assert!(table.export(source, None).is_err());
        let key = table.export(both, None).unwrap().key;
        assert_eq!(table.target(key, 100, 0), Ok(start.wrapping_add(100)));
        assert_eq!(table.target(key, 99, 2), Err(FrameFault::Range { offset: 99, bytes: 2, limit: 100 }));
        assert_eq!(table.target(key ^ 1 << 40, 0, 1), Err(FrameFault::UnknownRegion { slot: 0 }));
        assert_eq!(table.target(key | 77, 0, 1), Err(FrameFault::UnknownRegion { slot: 77 }));
    }

    #[test]
    fn a_slot_is_reused_under_another_key_and_never_while_read() {
        let mut table = RegionTable::default();
        let region = table.insert(std::ptr::null_mut(), 0, Rights::all()).unwrap();
        let old = table.export(region, None).unwrap().key;
        table.put_queued(region);
        assert_eq!(table.remove(region), Err(TransportError::RegionInUse { region, puts: 1 }));
        table.put_over(region);
        assert_eq!(table.removable(region), Ok(old));
        assert_eq!(table.remove(region), Ok(()));
        assert_eq!(table.remove(region), Err(TransportError::UnknownRegion { region }));
        let again = table.insert(std::ptr::null_mut(), 0, Rights::all()).unwrap();
        assert_eq!(again, region);
        let new = table.export(again, None).unwrap().key;
        assert!(table.target(new, 0, 0).is_ok() && table.target(old, 0, 0).is_err());
    }
}
