//! Message link inside one host, through shared memory.
//!
//! In: regions inside shared segments as targets, any memory as source. Out: events. Guarantee: a put is one copy
//! into the peer's segment, done by the sender in `poll`, without system calls; the owner of a region can revoke
//! it, or a whole connection, at any time and knows when no copy is under way any more. That rests on peers of
//! one job keeping the rules of the ring: processes of one user that share memory cannot be kept apart by more.

mod address;
mod connect;
mod pair;
mod ring;
mod table;
#[cfg(test)]
mod tests;

use self::address::{Address, Instance};
use self::connect::Pending;
use self::pair::{Pair, Visit};
use self::table::OwnTable;
use super::region::RegionTable;
use super::{
    Capabilities, Event, LocalSlice, MessageLink, Posted, RegionId, RemotePlace, RemoteRegion, Rights, SegmentPlace,
    Signal, Ticket, TransportError, check,
};
use crate::base::{Backoff, Deadline, Rank};
use crate::memory::{PeerSegments, SegmentServer, SharedMemory};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whether `bytes` are an address, for [`peer_bytes`](super::peer_bytes).
pub(super) fn reads_address(bytes: &[u8]) -> bool {
    Address::decode(Rank(1), bytes).is_ok()
}

/// How a shared-memory link is set up.
#[derive(Debug, Clone)]
pub struct ShmOptions {
    /// Serves this process's segments; targets must be published there.
    pub server: Arc<SegmentServer>,
    /// Opens peers' segments.
    pub segments: Arc<PeerSegments>,
    /// Puts, words and signals that wait per peer before more are refused as busy; at least 1.
    pub queue_items: usize,
    /// Signals that a peer may be behind; rounded up to a power of two.
    pub ring_signals: u64,
    /// How long a revocation waits for a copy that is under way, until its writer counts as stopped.
    pub longest_copy: Duration,
}

impl ShmOptions {
    /// 128 queued items and 1024 signals per direction, 10 seconds for a copy, which takes 50 us by itself.
    pub fn new(server: Arc<SegmentServer>, segments: Arc<PeerSegments>) -> Self {
        Self { server, segments, queue_items: 128, ring_signals: 1024, longest_copy: Duration::from_secs(10) }
    }
}

/// How often it is looked whether peers' processes live: one system call per peer.
const LIFE_CHECK: Duration = Duration::from_millis(100);
/// Longest wait for a peer's segment when a put comes before its import.
const LATE_IMPORT: Duration = Duration::from_secs(10);
/// Entry of a rank without a connection.
const NONE: u32 = u32::MAX;

/// A message link through shared memory.
pub struct ShmLink {
    rank: Rank,
    options: ShmOptions,
    instance: Instance,
    regions: RegionTable,
    table: OwnTable,
    /// Segments of the regions that peers may write; kept mapped while registered.
    shared: HashMap<RegionId, (Arc<SharedMemory>, u64)>,
    pairs: Vec<Pair>,
    /// Addresses of `pairs`, by the same index.
    addresses: Vec<Address>,
    by_rank: Vec<u32>,
    pending: Vec<Pending>,
    /// Pair that the next poll visits first.
    first: usize,
    next_life_check: Instant,
}

impl ShmLink {
    /// A link without peers.
    pub fn new(rank: Rank, options: ShmOptions) -> Result<Self, TransportError> {
        Ok(Self {
            rank,
            options,
            instance: Instance::random()?,
            regions: RegionTable::default(),
            table: OwnTable::new(),
            shared: HashMap::new(),
            pairs: Vec::new(),
            addresses: Vec::new(),
            by_rank: Vec::new(),
            pending: Vec::new(),
            first: 0,
            next_life_check: Instant::now(),
        })
    }

    fn index(&self, peer: Rank) -> Result<usize, TransportError> {
        match self.by_rank.get(peer.index()) {
            Some(&index) if index != NONE => Ok(index as usize),
            _ => Err(TransportError::NotConnected { peer }),
        }
    }

    fn adopt(&mut self, ready: connect::Ready) {
        let connect::Ready { peer, address, inbound, outbound, lifeline } = ready;
        if self.by_rank.len() <= peer.index() {
            self.by_rank.resize(peer.index() + 1, NONE);
        }
        self.by_rank[peer.index()] = self.pairs.len() as u32;
        self.pairs.push(Pair::new(peer, inbound, outbound, lifeline, self.options.queue_items.max(1)));
        self.addresses.push(address);
    }

    /// Maps a region of the peer of pair `index` unless it is mapped.
    fn ensure_import(
        &mut self,
        index: usize,
        region: RemoteRegion,
        deadline: impl FnOnce() -> Deadline,
    ) -> Result<(), TransportError> {
        let Self { pairs, addresses, options, .. } = self;
        if pairs[index].has_import(&region) {
            return Ok(());
        }
        let (Address { instance, server }, deadline) = (&addresses[index], deadline());
        pairs[index].import(
            region,
            |segment| options.segments.open(server, segment, deadline),
            |number| instance.table(number),
        )
    }

    /// The pair of a peer that may be posted to, with `region` mapped.
    fn pair_for(&mut self, peer: Rank, region: RemoteRegion) -> Result<usize, TransportError> {
        let index = self.index(peer)?;
        self.pairs[index].health()?;
        self.ensure_import(index, region, || Deadline::after(LATE_IMPORT))?;
        Ok(index)
    }

    fn end(&mut self, index: usize, cause: TransportError) {
        let Self { pairs, regions, options, .. } = self;
        let pair = &mut pairs[index];
        let was_open = pair.is_open();
        pair.end(cause, regions);
        if was_open && !pair.wait_quiet(Deadline::after(options.longest_copy)) {
            log::error!(
                "rank {} stopped in the middle of a copy into memory of rank {}; its regions stay registered until \
                 that process ends",
                pair.peer(),
                self.rank
            );
        }
    }

    fn flush_goodbyes(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        self.pairs.iter_mut().for_each(Pair::close);
        let (mut events, mut backoff) = (Vec::new(), Backoff::new());
        loop {
            self.poll(&mut events)?;
            events.clear();
            let open = self.pairs.iter().filter(|pair| pair.is_open());
            let peers: Vec<Rank> = open.map(Pair::peer).collect();
            if peers.is_empty() {
                return Ok(());
            }
            if deadline.expired() {
                return Err(TransportError::CloseDeadline { peers, limit: deadline.limit() });
            }
            backoff.snooze();
        }
    }
}

impl MessageLink for ShmLink {
    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn address(&self) -> Vec<u8> {
        Address { instance: self.instance, server: self.options.server.address() }.encode()
    }

    unsafe fn register(&mut self, start: *mut u8, bytes: u64, rights: Rights) -> Result<RegionId, TransportError> {
        if !rights.contains(Rights::REMOTE_WRITE) {
            return self.regions.insert(start, bytes, rights);
        }
        let address = start as u64;
        let place = self.options.server.find(address, bytes).ok_or(TransportError::NotShared { address, bytes })?;
        let region = self.regions.insert(start, bytes, rights)?;
        let key = self.regions.export(region, None)?.key;
        if let Err(error) = self.table.publish(key, bytes, self.instance, &self.options.server) {
            self.regions.remove(region)?;
            return Err(error.into());
        }
        self.shared.insert(region, place);
        Ok(region)
    }

    fn export(&self, region: RegionId) -> Result<RemoteRegion, TransportError> {
        let place = self.shared.get(&region);
        self.regions
            .export(region, place.map(|(memory, offset)| SegmentPlace { segment: memory.id(), offset: *offset }))
    }

    fn import(&mut self, peer: Rank, region: RemoteRegion, deadline: Deadline) -> Result<(), TransportError> {
        let index = self.index(peer)?;
        self.pairs[index].health()?;
        self.ensure_import(index, region, || deadline)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), TransportError> {
        let key = self.regions.removable(region)?;
        if self.shared.contains_key(&region) {
            self.table.revoke(key)?;
            let deadline = Deadline::after(self.options.longest_copy);
            if let Some(pair) = self.pairs.iter().find(|pair| !pair.wait_quiet(deadline)) {
                return Err(TransportError::StillWritten { region, peer: pair.peer() });
            }
            self.shared.remove(&region);
        }
        self.regions.remove(region)
    }

    fn connect(&mut self, peers: &[(Rank, Vec<u8>)], deadline: Deadline) -> Result<(), TransportError> {
        let mut wanted = Vec::new();
        for (peer, text) in peers.iter().filter(|(peer, _)| *peer != self.rank) {
            if let Ok(index) = self.index(*peer) {
                // A ring cannot be used twice: what ended stays ended on this link.
                self.pairs[index].health()?;
            } else {
                wanted.push((*peer, Address::decode(*peer, text)?));
            }
        }
        for (peer, address) in wanted {
            if !self.pending.iter().any(|pending| pending.peer == peer) {
                self.pending.push(Pending::new(peer, address, self.instance, &self.options)?);
            }
        }
        let (ready, result) = connect::complete(&mut self.pending, self.rank, &self.options, deadline);
        ready.into_iter().for_each(|ready| self.adopt(ready));
        result
    }

    fn put(
        &mut self,
        peer: Rank,
        local: LocalSlice,
        remote: RemotePlace,
        ticket: Ticket,
    ) -> Result<Posted, TransportError> {
        self.regions.source(local)?;
        check::remote(peer, remote, local.bytes)?;
        let index = self.pair_for(peer, remote.region)?;
        let Self { pairs, regions, .. } = self;
        pairs[index].post_put(local, remote, ticket, regions)
    }

    fn put_word(&mut self, peer: Rank, word: u64, remote: RemotePlace) -> Result<Posted, TransportError> {
        check::remote_word(peer, remote)?;
        let index = self.pair_for(peer, remote.region)?;
        self.pairs[index].post_word(word, remote)
    }

    fn signal(&mut self, peer: Rank, signal: Signal) -> Result<Posted, TransportError> {
        check::signal(signal)?;
        let index = self.index(peer)?;
        self.pairs[index].post_signal(signal)
    }

    fn is_flushed(&self, peer: Rank) -> bool {
        self.index(peer).map_or(true, |index| self.pairs[index].is_flushed())
    }

    fn flush_received(&mut self, region: RegionId) -> Result<(), TransportError> {
        // The ring's orderings make the bytes visible to whoever sees the signal.
        self.regions.check(region)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        let count = self.pairs.len();
        if count == 0 {
            return Ok(());
        }
        let now = Instant::now();
        let check_life = now >= self.next_life_check;
        if check_life {
            self.next_life_check = now + LIFE_CHECK;
        }
        self.first = (self.first + 1) % count;
        for step in 0..count {
            let index = (self.first + step) % count;
            let Self { pairs, regions, .. } = self;
            let pair = &mut pairs[index];
            if !pair.is_open() {
                continue;
            }
            let peer = pair.peer();
            match pair.visit(check_life, regions, events) {
                Ok(Visit::Open) => {}
                Ok(Visit::Finished) => self.end(index, TransportError::PeerLeft { peer }),
                Err(cause) => {
                    self.end(index, cause.clone());
                    events.push(Event::Lost { peer, cause });
                }
            }
        }
        Ok(())
    }

    fn abort(&mut self, peer: Rank) {
        if let Ok(index) = self.index(peer) {
            self.end(index, TransportError::Aborted { peer });
        }
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        let result = self.flush_goodbyes(deadline);
        for index in 0..self.pairs.len() {
            let peer = self.pairs[index].peer();
            self.end(index, TransportError::Closed { peer });
        }
        result
    }

    fn health(&self, peer: Rank) -> Result<(), TransportError> {
        self.pairs[self.index(peer)?].health()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        // Peers must not write into memory that its owner uses for something else from now on.
        for index in 0..self.pairs.len() {
            let peer = self.pairs[index].peer();
            self.end(index, TransportError::Closed { peer });
        }
    }
}
