//! All peers at once.
//!
//! In: peers to dial and peers to expect. Out: agreed connections, and what was seen of those that did not come.
//! Guarantee: returns by the deadline; a stray connection costs a thread for a while but delays no peer, and is
//! counted.

use super::TcpOptions;
use super::address::{Address, Listener, open_socket};
use super::handshake::Handshake;
use crate::base::{Deadline, Rank};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Threads that dial.
const DIALLERS: usize = 8;
/// Accepted connections whose handshake runs at the same time.
const HANDSHAKES: usize = 64;
/// First limit of one attempt; doubled per round, so that a place that swallows packets costs little and a slow
/// one is still reached.
const FIRST_ATTEMPT: Duration = Duration::from_secs(2);
/// Limit for an accepted connection to prove itself.
const PROOF: Duration = Duration::from_secs(10);
/// First pause before a peer is dialled again; doubled per round.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long one wait for connections lasts before results are looked at.
const TICK: Duration = Duration::from_millis(5);

/// What came of it.
#[derive(Default)]
pub(super) struct Outcome {
    /// Agreed connections.
    pub(super) streams: BTreeMap<Rank, TcpStream>,
    /// What was seen last of peers that were dialled in vain.
    pub(super) failures: BTreeMap<Rank, String>,
}

/// A rank that looks for its peers.
pub(super) struct Rendezvous<'a> {
    pub(super) rank: Rank,
    pub(super) listener: &'a Listener,
    pub(super) options: &'a TcpOptions,
    pub(super) strays: &'a AtomicU64,
    pub(super) deadline: Deadline,
}

/// A peer that is still to be dialled.
struct Dial {
    peer: Rank,
    address: Address,
    round: u32,
    not_before: Instant,
}

impl Rendezvous<'_> {
    /// Dials all of `dial` and accepts until all of `accept` have come. Authenticated peers that were not
    /// expected yet are among the results too.
    pub(super) fn run(&self, dial: Vec<(Rank, Address)>, mut accept: BTreeSet<Rank>) -> Outcome {
        let threads = dial.len().min(DIALLERS);
        let now = Instant::now();
        let todo = dial.into_iter().map(|(peer, address)| Dial { peer, address, round: 0, not_before: now });
        let todo = Mutex::new(todo.collect());
        let outcome = Mutex::new(Outcome::default());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.dial_all(&todo, &outcome));
            }
            self.accept_all(scope, &mut accept, &outcome);
        });
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes peers off the list until it is empty; those that cannot be reached go back to its end.
    fn dial_all(&self, todo: &Mutex<VecDeque<Dial>>, outcome: &Mutex<Outcome>) {
        loop {
            let Some(mut dial) = lock(todo).pop_front() else { return };
            let pause = dial.not_before.saturating_duration_since(Instant::now());
            std::thread::sleep(pause.min(self.deadline.remaining()));
            match self.dial(&dial) {
                Ok(stream) => {
                    let mut outcome = lock(outcome);
                    outcome.failures.remove(&dial.peer);
                    outcome.streams.insert(dial.peer, stream);
                }
                Err(failure) => {
                    log::debug!("rank {} cannot reach rank {} yet: {failure}", self.rank, dial.peer);
                    if !failure.is_empty() {
                        lock(outcome).failures.insert(dial.peer, failure);
                    }
                    if self.deadline.expired() {
                        continue;
                    }
                    dial.not_before = Instant::now() + (FIRST_PAUSE * (1 << dial.round.min(8))).min(LONGEST_PAUSE);
                    dial.round += 1;
                    lock(todo).push_back(dial);
                }
            }
        }
    }

    /// Tries each place of a peer once; the failure is empty when no time was left for any.
    fn dial(&self, dial: &Dial) -> Result<TcpStream, String> {
        let mut failures = Vec::new();
        for &place in &dial.address.places {
            let remaining = self.deadline.remaining();
            if remaining.is_zero() {
                break;
            }
            let attempt = Deadline::after((FIRST_ATTEMPT * (1 << dial.round.min(10))).min(remaining));
            let handshake = Handshake { rank: self.rank, options: self.options };
            let reached = self.reach(place, attempt).and_then(|stream| {
                handshake.dial(&stream, dial.peer, dial.address.instance, attempt)?;
                Ok(stream)
            });
            match reached {
                Ok(stream) => return Ok(stream),
                Err(failure) => failures.push(format!("{place}: {failure}")),
            }
        }
        Err(failures.join("; "))
    }

    fn reach(&self, place: SocketAddr, attempt: Deadline) -> Result<TcpStream, String> {
        let open = || {
            let socket = open_socket(&place, self.options)?;
            if let Some(own) = self.options.bind.filter(|own| own.is_ipv4() == place.is_ipv4()) {
                socket.bind(&SocketAddr::new(own, 0).into())?;
            }
            socket.connect_timeout(&place.into(), attempt.remaining().max(Duration::from_millis(1)))?;
            Ok(TcpStream::from(socket))
        };
        open().map_err(|error: std::io::Error| error.to_string())
    }

    /// Accepts until all expected peers have come, each handshake on a thread of its own.
    fn accept_all<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        accept: &mut BTreeSet<Rank>,
        outcome: &Mutex<Outcome>,
    ) {
        let (sender, results) = channel();
        let mut pending = BTreeMap::new();
        let mut token = 0;
        while !accept.is_empty() && !self.deadline.expired() {
            if pending.len() < HANDSHAKES
                && let Some(stream) = self.next_connection()
            {
                token += 1;
                self.begin_handshake(scope, token, stream, &sender, &mut pending);
            }
            self.take_results(&results, &mut pending, accept, outcome);
        }
        // Those still at it are strays or peers that dial again; ending their sockets ends their threads.
        for stream in pending.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(sender);
        for result in results {
            self.settle(result, &mut pending, accept, outcome);
        }
    }

    /// Waits a little for a connection.
    fn next_connection(&self) -> Option<TcpStream> {
        let sockets = &self.listener.sockets;
        let mut descriptors: Vec<_> =
            sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO);
        poll(&mut descriptors, timeout).ok()?;
        let ready = descriptors.iter().position(|descriptor| descriptor.any() == Some(true))?;
        sockets[ready].accept().ok().map(|(stream, _)| stream)
    }

    fn begin_handshake<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        token: u64,
        stream: TcpStream,
        results: &Sender<Handshaken>,
        pending: &mut BTreeMap<u64, TcpStream>,
    ) {
        let Ok(handle) = stream.try_clone() else {
            log::warn!("dropped a connection because the process has no descriptor left; raise ulimit -n");
            return;
        };
        let results = results.clone();
        let attempt = Deadline::after(PROOF.min(self.deadline.remaining()));
        pending.insert(token, handle);
        scope.spawn(move || {
            let handshake = Handshake { rank: self.rank, options: self.options };
            let peer = handshake.accept(&stream, self.listener.address.instance, attempt);
            let _ = results.send(Handshaken { token, peer, stream });
        });
    }

    /// Takes what handshakes have come to, waiting a little when there is nothing else to wait for.
    fn take_results(
        &self,
        results: &Receiver<Handshaken>,
        pending: &mut BTreeMap<u64, TcpStream>,
        accept: &mut BTreeSet<Rank>,
        outcome: &Mutex<Outcome>,
    ) {
        if pending.len() >= HANDSHAKES
            && let Ok(result) = results.recv_timeout(TICK)
        {
            self.settle(result, pending, accept, outcome);
        }
        while let Ok(result) = results.try_recv() {
            self.settle(result, pending, accept, outcome);
        }
    }

    fn settle(
        &self,
        result: Handshaken,
        pending: &mut BTreeMap<u64, TcpStream>,
        accept: &mut BTreeSet<Rank>,
        outcome: &Mutex<Outcome>,
    ) {
        pending.remove(&result.token);
        match result.peer {
            Ok(peer) if peer < self.rank => {
                accept.remove(&peer);
                lock(outcome).streams.insert(peer, result.stream);
            }
            Ok(peer) => {
                self.strays.fetch_add(1, Ordering::Relaxed);
                log::warn!("rank {} dropped a connection of rank {peer}, which it has to dial itself", self.rank);
            }
            Err(failure) => {
                self.strays.fetch_add(1, Ordering::Relaxed);
                log::warn!("rank {} dropped a stray connection: {failure}", self.rank);
            }
        }
    }
}

/// A handshake that is over.
struct Handshaken {
    token: u64,
    peer: Result<Rank, String>,
    stream: TcpStream,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
