//! A link that misbehaves on purpose.
//!
//! In: any message link, a seed. Out: the same link with refusals, delays and a lost connection. Guarantee: the
//! same calls with the same seed meet the same faults; the contract of a message link still holds.

use super::{
    Capabilities, Event, LocalSlice, MessageLink, Posted, RegionId, RemotePlace, RemoteRegion, Rights, Signal, Ticket,
    TransportError,
};
use crate::base::{Deadline, Rank};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Which faults, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultOptions {
    /// Start of the sequence of random numbers.
    pub seed: u64,
    /// Of 1000 posts, how many are refused as busy; below 1000.
    pub busy: u64,
    /// Of 1000 polls, how many move nothing, and of 1000 events, how many hold back themselves and all behind them
    /// until the next poll; below 1000.
    pub delay: u64,
    /// The connection on which this frame (counted from 1 over all peers) is posted is dropped.
    pub drop_at: Option<u64>,
}

/// A message link with injected faults.
pub struct FaultyLink<L> {
    inner: L,
    options: FaultOptions,
    random: u64,
    frames: u64,
    held: VecDeque<Event>,
    found: Vec<Event>,
    /// Peers of reported tickets, so that an abort can take their completions back.
    tickets: HashMap<Ticket, Rank>,
    dropped: Option<(Rank, u64)>,
}

impl<L: MessageLink> FaultyLink<L> {
    /// Wraps `inner`.
    pub fn new(inner: L, options: FaultOptions) -> Self {
        Self {
            inner,
            options,
            random: options.seed,
            frames: 0,
            held: VecDeque::new(),
            found: Vec::new(),
            tickets: HashMap::new(),
            dropped: None,
        }
    }

    /// The wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Whether something that happens `per_mille` times of 1000 happens now (splitmix64).
    fn happens(&mut self, per_mille: u64) -> bool {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % 1000 < per_mille
    }

    /// Posts a frame unless a fault is due.
    fn post(
        &mut self,
        peer: Rank,
        post: impl FnOnce(&mut L) -> Result<Posted, TransportError>,
    ) -> Result<Posted, TransportError> {
        self.health(peer)?;
        if self.happens(self.options.busy) {
            return Ok(Posted::Busy);
        }
        let posted = post(&mut self.inner)?;
        if posted == Posted::Queued {
            self.frames += 1;
            if self.options.drop_at == Some(self.frames) {
                self.forget(peer);
                self.inner.abort(peer);
                self.dropped = Some((peer, self.frames));
                self.held.push_back(Event::Lost { peer, cause: self.injected(peer, self.frames) });
            }
        }
        Ok(posted)
    }

    fn injected(&self, peer: Rank, frame: u64) -> TransportError {
        TransportError::Injected { peer, frame }
    }

    /// Takes back what is held of `peer`.
    fn forget(&mut self, lost: Rank) {
        let tickets = &self.tickets;
        self.held.retain(|event| match event {
            Event::Completed(ticket) => tickets.get(ticket) != Some(&lost),
            Event::Signalled { peer, .. } | Event::Lost { peer, .. } => *peer != lost,
        });
    }
}

impl<L: MessageLink> MessageLink for FaultyLink<L> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn address(&self) -> Vec<u8> {
        self.inner.address()
    }

    unsafe fn register(&mut self, start: *mut u8, bytes: u64, rights: Rights) -> Result<RegionId, TransportError> {
        // SAFETY: forwarded from the caller.
        unsafe { self.inner.register(start, bytes, rights) }
    }

    fn export(&self, region: RegionId) -> Result<RemoteRegion, TransportError> {
        self.inner.export(region)
    }

    fn import(&mut self, peer: Rank, region: RemoteRegion, deadline: Deadline) -> Result<(), TransportError> {
        self.inner.import(peer, region, deadline)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), TransportError> {
        self.inner.deregister(region)
    }

    fn connect(&mut self, peers: &[(Rank, Vec<u8>)], deadline: Deadline) -> Result<(), TransportError> {
        self.inner.connect(peers, deadline)
    }

    fn put(
        &mut self,
        peer: Rank,
        local: LocalSlice,
        remote: RemotePlace,
        ticket: Ticket,
    ) -> Result<Posted, TransportError> {
        let posted = self.post(peer, |inner| inner.put(peer, local, remote, ticket))?;
        if posted == Posted::Queued && ticket != Ticket::SILENT {
            self.tickets.insert(ticket, peer);
        }
        Ok(posted)
    }

    fn put_word(&mut self, peer: Rank, word: u64, remote: RemotePlace) -> Result<Posted, TransportError> {
        self.post(peer, |inner| inner.put_word(peer, word, remote))
    }

    fn signal(&mut self, peer: Rank, signal: Signal) -> Result<Posted, TransportError> {
        self.post(peer, |inner| inner.signal(peer, signal))
    }

    fn is_flushed(&self, peer: Rank) -> bool {
        self.inner.is_flushed(peer)
    }

    fn flush_received(&mut self, region: RegionId) -> Result<(), TransportError> {
        self.inner.flush_received(region)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        if self.happens(self.options.delay) {
            return Ok(());
        }
        self.inner.poll(&mut self.found)?;
        self.held.extend(self.found.drain(..));
        while !self.held.is_empty() && !self.happens(self.options.delay) {
            events.extend(self.held.pop_front());
        }
        Ok(())
    }

    fn readiness(&self) -> Option<OwnedFd> {
        self.inner.readiness()
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        if self.held.is_empty() { self.inner.wait(limit) } else { Ok(true) }
    }

    fn abort(&mut self, peer: Rank) {
        self.forget(peer);
        self.inner.abort(peer);
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        self.inner.close(deadline)
    }

    fn health(&self, peer: Rank) -> Result<(), TransportError> {
        match self.dropped {
            Some((dropped, frame)) if dropped == peer => Err(self.injected(peer, frame)),
            _ => self.inner.health(peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tcp::tests::TrustingPeers;
    use crate::transport::{TcpLink, TcpOptions};
    use std::sync::Arc;

    fn pair(options: FaultOptions) -> (FaultyLink<TcpLink>, TcpLink) {
        let link = |rank| TcpLink::new(Rank(rank), TcpOptions::new(Arc::new(TrustingPeers(Rank(rank))))).unwrap();
        let (mut low, mut high) = (FaultyLink::new(link(0), options), link(1));
        let (low_address, high_address) = (low.address(), high.address());
        std::thread::scope(|scope| {
            scope.spawn(|| low.connect(&[(Rank(1), high_address)], Deadline::seconds(30)).unwrap());
            high.connect(&[(Rank(0), low_address)], Deadline::seconds(30)).unwrap();
        });
        (low, high)
    }

    fn refusals(seed: u64) -> Vec<bool> {
        let (mut link, _peer) = pair(FaultOptions { seed, busy: 500, ..FaultOptions::default() });
        let post = |link: &mut FaultyLink<TcpLink>| link.signal(Rank(1), Signal { epoch: 0, index: 0 }).unwrap();
        (0..100).map(|_| post(&mut link) == Posted::Busy).collect()
    }

    #[test]
    fn a_seed_gives_the_same_faults_again() {
        let first = refusals(7);
        assert_eq!(first, refusals(7));
        assert_ne!(first, refusals(8));
        let busy = first.iter().filter(|busy| **busy).count();
        assert!((25..75).contains(&busy), "{busy} of 100 at 50 %");
    }

    #[test]
    fn the_chosen_frame_drops_its_connection() {
        let (mut link, mut peer) = pair(FaultOptions { drop_at: Some(3), ..FaultOptions::default() });
        for index in 0..3 {
            assert_eq!(link.signal(Rank(1), Signal { epoch: 0, index }), Ok(Posted::Queued));
        }
        let cause = TransportError::Injected { peer: Rank(1), frame: 3 };
        assert_eq!(link.signal(Rank(1), Signal { epoch: 0, index: 3 }), Err(cause.clone()));
        assert_eq!(link.health(Rank(1)), Err(cause));
        let mut events = Vec::new();
        link.poll(&mut events).unwrap();
        assert!(matches!(events[..], [Event::Lost { cause: TransportError::Injected { frame: 3, .. }, .. }]));
        let deadline = Deadline::seconds(30);
        events.clear();
        while events.is_empty() {
            peer.poll(&mut events).unwrap();
            assert!(!deadline.expired());
        }
        assert!(matches!(events[..], [Event::Lost { peer: Rank(0), .. }]), "{events:?}");
    }
}
