//! A rank of a test.
//!
//! In: a link of the fabric. Out: connected ranks with a target and a source region each, that can meet and wait.
//! Guarantee: every wait ends with a failure of the test after a minute.

use super::fabric::{Fabric, Published};
use crate::base::{Backoff, Deadline, Rank};
use crate::memory::SharedMemory;
use crate::transport::{
    Event, LocalSlice, MessageLink, Posted, RegionId, RemotePlace, RemoteRegion, Rights, Signal, Ticket,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Where ranks give each other what a real job sends through its control connections.
#[derive(Default)]
pub(super) struct Board {
    notes: Mutex<BTreeMap<(u32, u32), Vec<u8>>>,
    changed: Condvar,
}

impl Board {
    fn give(&self, round: u32, rank: u32, note: Vec<u8>) {
        self.notes.lock().unwrap().insert((round, rank), note);
        self.changed.notify_all();
    }

    /// What all gave in this round, once all have.
    fn take(&self, round: u32, size: u32) -> Option<Vec<Vec<u8>>> {
        let notes = self.notes.lock().unwrap();
        (0..size).map(|rank| notes.get(&(round, rank)).cloned()).collect()
    }

    /// Gives `note` to all and waits for theirs.
    fn exchange(&self, round: u32, rank: u32, size: u32, note: Vec<u8>) -> Vec<Vec<u8>> {
        self.give(round, rank, note);
        let incomplete =
            |notes: &mut BTreeMap<(u32, u32), _>| (0..size).any(|rank| !notes.contains_key(&(round, rank)));
        let notes = self.notes.lock().unwrap();
        let (notes, waited) = self.changed.wait_timeout_while(notes, PATIENCE, incomplete).unwrap();
        assert!(!waited.timed_out(), "a rank did not come to round {round}");
        (0..size).map(|rank| notes[&(round, rank)].clone()).collect()
    }
}

/// One rank.
pub(super) struct Member<L> {
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) link: L,
    pub(super) target: Arc<SharedMemory>,
    pub(super) region: RegionId,
    pub(super) source: Vec<u8>,
    pub(super) source_region: RegionId,
    /// Targets of all ranks.
    pub(super) targets: Vec<RemoteRegion>,
    pub(super) events: Vec<Event>,
    _published: Published,
    board: Arc<Board>,
    round: u32,
}

/// Bytes of the memory of every rank.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) target: u64,
    pub(super) source: u64,
}

/// Runs `body` on `size` connected ranks.
pub(super) fn run<F: Fabric>(size: u32, sizes: Sizes, body: impl Fn(Member<F::Link>) + Sync) {
    let board = Arc::new(Board::default());
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (board, body) = (board.clone(), &body);
            scope.spawn(move || body(member::<F>(Rank(rank), size, sizes, board)));
        }
    });
}

fn member<F: Fabric>(rank: Rank, size: u32, sizes: Sizes, board: Arc<Board>) -> Member<F::Link> {
    let (mut link, published) = F::link(rank);
    // A margin on both sides, which must stay zero.
    let target = Arc::new(SharedMemory::create("test", sizes.target + 2 * MARGIN).unwrap());
    published.publish(&target);
    let mut source = vec![0u8; sizes.source as usize];
    let start = target.pointer(MARGIN, sizes.target).unwrap();
    // SAFETY: both live in the member, which drops its link first; the tests write the source only when no put
    // reads it and read the target only when no put writes it.
    let (region, source_region) = unsafe {
        let region = link.register(start, sizes.target, Rights::REMOTE_WRITE).unwrap();
        (region, link.register(source.as_mut_ptr(), sizes.source, Rights::LOCAL_READ).unwrap())
    };
    let addresses = board.exchange(0, rank.0, size, link.address());
    let peers: Vec<_> = addresses.into_iter().enumerate().map(|(rank, address)| (Rank(rank as u32), address)).collect();
    link.connect(&peers, Deadline::after(PATIENCE)).unwrap();
    let exported = serde_json::to_vec(&link.export(region).unwrap()).unwrap();
    let targets = board.exchange(1, rank.0, size, exported);
    let targets = targets.iter().map(|text| serde_json::from_slice(text).unwrap()).collect();
    let (events, round) = (Vec::new(), 2);
    Member {
        rank,
        size,
        link,
        target,
        region,
        source,
        source_region,
        targets,
        events,
        _published: published,
        board,
        round,
    }
}

/// Bytes around the target region.
pub(super) const MARGIN: u64 = 64;

impl<L: MessageLink> Member<L> {
    /// All other ranks.
    pub(super) fn peers(&self) -> impl Iterator<Item = Rank> + use<L> {
        let own = self.rank;
        (0..self.size).map(Rank).filter(move |rank| *rank != own)
    }

    /// Gives `note` to all ranks and returns theirs; polls meanwhile, so that nobody waits for this rank.
    pub(super) fn exchange(&mut self, note: Vec<u8>) -> Vec<Vec<u8>> {
        self.round += 1;
        let (board, round, size) = (self.board.clone(), self.round, self.size);
        board.give(round, self.rank.0, note);
        let mut notes = None;
        self.until("all ranks", |_| {
            notes = board.take(round, size);
            notes.is_some()
        });
        notes.unwrap_or_default()
    }

    /// Waits for all ranks, polling.
    pub(super) fn meet(&mut self) {
        self.exchange(Vec::new());
    }

    /// Polls until `done` is true of this member.
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let (mut backoff, deadline) = (Backoff::new(), Deadline::after(PATIENCE));
        while !done(self) {
            let before = self.events.len();
            self.link.poll(&mut self.events).unwrap();
            if self.events.len() > before {
                backoff.reset();
            }
            assert!(!deadline.expired(), "rank {} waited in vain: {what}; {} events", self.rank, self.events.len());
            backoff.snooze();
        }
    }

    /// Posts, polling while the queue is full.
    pub(super) fn post(&mut self, mut post: impl FnMut(&mut L) -> Posted) {
        self.until("room in the queue", |member| post(&mut member.link) == Posted::Queued);
    }

    /// Puts `bytes` bytes of the source to a peer's target.
    pub(super) fn put(&mut self, peer: Rank, from: u64, bytes: u64, to: u64, ticket: Ticket) {
        let local = LocalSlice { region: self.source_region, offset: from, bytes };
        let remote = RemotePlace { region: self.targets[peer.index()], offset: to };
        self.post(|link| link.put(peer, local, remote, ticket).unwrap());
    }

    /// Signals to a peer.
    pub(super) fn signal(&mut self, peer: Rank, epoch: u8, index: u32) {
        self.post(|link| link.signal(peer, Signal { epoch, index }).unwrap());
    }

    /// Signals so far, with their peers.
    pub(super) fn signals(&self) -> impl Iterator<Item = (Rank, Signal)> {
        self.events.iter().filter_map(|event| match event {
            Event::Signalled { peer, signal } => Some((*peer, *signal)),
            _ => None,
        })
    }

    /// Whether `ticket` has completed.
    pub(super) fn completed(&self, ticket: Ticket) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Completed(done) if *done == ticket))
    }

    /// Whether the loss of `peer` was reported.
    pub(super) fn lost(&self, peer: Rank) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Lost { peer: lost, .. } if *lost == peer))
    }

    /// A copy of the target, and proof that its margins are untouched.
    pub(super) fn seen(&self) -> Vec<u8> {
        let bytes = self.target.bytes();
        let start = self.target.pointer(0, bytes).unwrap();
        // SAFETY: the whole segment; the tests let no put write it now.
        let all = unsafe { std::slice::from_raw_parts(start, bytes as usize) };
        let (margin, end) = (MARGIN as usize, (bytes - MARGIN) as usize);
        assert!(all[..margin].iter().chain(&all[end..]).all(|&byte| byte == 0), "written outside the region");
        all[margin..end].to_vec()
    }
}
