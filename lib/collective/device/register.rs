//! Buffers that peers reach. In: a buffer of each rank. Out: rows of addresses in device memory. Guarantee: collective, in
//! the same order on all ranks; peers' memory stays mapped until the channel is dropped.

use super::{Channel, CollectiveError};
use crate::base::{Deadline, Rank};
use crate::execute::{commit, gather};
use crate::memory::Buffer;
use crate::memory::device::{Device, DeviceMemory, PeerMemory, Pinned, SharedBuffer, SharedHandle, Stream, share};
use std::sync::Arc;

/// Room for rows: the least that is allocated at once.
const ROOM: u64 = 2 << 20;

/// Addresses of all ranks' buffers, a row for each registration, in device memory.
#[derive(Debug)]
pub(super) struct Rows {
    device: Device,
    ranks: u64,
    memory: Vec<Arc<DeviceMemory>>,
    used: u64,
}

/// A buffer of this rank and those of its peers.
#[derive(Debug)]
pub(super) struct Registered {
    /// First byte of this rank's.
    pub(super) start: u64,
    /// Bytes that all ranks have.
    pub(super) bytes: u64,
    /// Where the addresses of all ranks' are.
    pub(super) row: u64,
    /// All ranks', as this device sees them.
    pub(super) peers: Vec<PeerMemory>,
    _buffer: Buffer,
    _shared: Option<SharedBuffer>,
}

impl Rows {
    pub(super) fn new(device: &Device, ranks: usize) -> Self {
        Self { device: device.clone(), ranks: ranks as u64, memory: Vec::new(), used: ROOM }
    }

    /// A new row with these addresses.
    fn push(&mut self, addresses: &[u64], stream: &Stream, deadline: Deadline) -> Result<u64, CollectiveError> {
        let bytes = self.ranks * 8;
        if self.used + bytes > ROOM {
            self.memory.push(Arc::new(DeviceMemory::new(&self.device, ROOM)?));
            self.used = 0;
        }
        let row = self.memory.last().map_or(0, |memory| memory.address()) + self.used;
        let mut host = Pinned::new(&self.device, bytes)?;
        for (place, address) in host.bytes_mut().chunks_exact_mut(8).zip(addresses) {
            place.copy_from_slice(&address.to_le_bytes());
        }
        // SAFETY: both ranges are of our own and live until the copy was waited for; nobody knows the row yet.
        unsafe { stream.copy(row, host.device_address(), bytes)? };
        stream.synchronize(deadline)?;
        self.used += bytes;
        Ok(row)
    }
}

impl Channel {
    /// Lets kernels of all ranks read and write `buffer` directly: pulls and two-shots then copy nothing through staging.
    /// Collective, in the same order on all ranks; a call uses it when each of its operands lies at the same offset of the
    /// same registration on every rank.
    pub fn register(&mut self, buffer: &Buffer, deadline: Deadline) -> Result<(), CollectiveError> {
        let Some(group) = self.group.clone() else {
            return Self::register_all(std::slice::from_mut(self), std::slice::from_ref(buffer), deadline);
        };
        let (start, device) = (buffer.as_ptr() as u64, self.device().clone());
        let shared = share(&group.server, &device, start, buffer.bytes(), self.handles).map_err(CollectiveError::from);
        let (handle, shared) = commit(&group, shared, deadline)?;
        let handles: Vec<(SharedHandle, u64)> = gather(&group, &(handle, buffer.bytes()), deadline)?;
        let opened = handles.iter().enumerate().map(|(rank, (handle, bytes))| {
            let rank = Rank(rank as u32);
            if rank == group.rank {
                return Ok(PeerMemory::local(&device, &device, start, *bytes)?);
            }
            Ok(PeerMemory::open(&device, handle, &group.segments, group.server_of(rank), deadline)?)
        });
        let peers = commit(&group, opened.collect::<Result<Vec<_>, CollectiveError>>(), deadline)?;
        let added = self.add(buffer, peers, Some(shared), deadline);
        commit(&group, added, deadline)
    }

    /// As [`register`](Self::register), for the channels of [`all`](Self::all) and the buffer of each.
    pub fn register_all(channels: &mut [Self], buffers: &[Buffer], deadline: Deadline) -> Result<(), CollectiveError> {
        let ranks = channels.first().map_or(0, |channel| channel.ranks);
        let given = channels.len().min(buffers.len());
        if given != ranks as usize {
            return Err(CollectiveError::Together { given, ranks });
        }
        let devices: Vec<Device> = channels.iter().map(|channel| channel.device().clone()).collect();
        for (channel, buffer) in channels.iter_mut().zip(buffers) {
            let device = channel.device().clone();
            let peers = buffers
                .iter()
                .zip(&devices)
                .map(|(peer, owner)| Ok(PeerMemory::local(&device, owner, peer.as_ptr() as u64, peer.bytes())?));
            let peers = peers.collect::<Result<Vec<_>, CollectiveError>>()?;
            channel.add(buffer, peers, None, deadline)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        buffer: &Buffer,
        peers: Vec<PeerMemory>,
        shared: Option<SharedBuffer>,
        deadline: Deadline,
    ) -> Result<(), CollectiveError> {
        let addresses: Vec<u64> = peers.iter().map(PeerMemory::address).collect();
        let row = self.rows.push(&addresses, &self.own_stream, deadline)?;
        self.registered.push(Registered {
            start: buffer.as_ptr() as u64,
            bytes: peers.iter().map(PeerMemory::bytes).min().unwrap_or(0),
            row,
            peers,
            _buffer: buffer.clone(),
            _shared: shared,
        });
        Ok(())
    }

    /// Number of the registration that has `bytes` bytes from `address` on, and the offset in it. The latest is taken.
    pub(super) fn find_registered(&self, address: u64, bytes: u64) -> Option<(usize, u64)> {
        let has = |known: &Registered| {
            let offset = address.checked_sub(known.start)?;
            (offset.checked_add(bytes)? <= known.bytes).then_some(offset)
        };
        self.registered.iter().enumerate().rev().find_map(|(number, known)| Some((number, has(known)?)))
    }
}
