//! Takes connections in while ranks join.
//!
//! In: listeners, the job key, the number of ranks. Out: authenticated streams with their ranks, strangers counted.
//! Guarantee: one rank joins once; a stranger that stays silent holds one of many places for a limited time and
//! never stops the others; all listeners are closed once every rank has joined.

use super::address::ONE_HANDSHAKE;
use super::error::BootstrapError;
use super::handshake::{HandshakeError, Party, Refusal};
use super::key::JobKey;
use super::wire::Waker;
use crate::base::{Deadline, Rank};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Handshakes at one time.
const PLACES: usize = 64;
/// How often the accepting thread looks whether it should end.
const TICK: Duration = Duration::from_millis(20);

/// Whom to let in, and who came.
#[derive(Debug)]
pub(super) struct Door {
    key: JobKey,
    purpose: &'static str,
    rank: Rank,
    size: u32,
    guests: Mutex<Guests>,
    strays: AtomicU64,
    busy: AtomicUsize,
    shut: AtomicBool,
    waker: Arc<Waker>,
}

#[derive(Debug)]
struct Guests {
    joined: Vec<bool>,
    missing: u32,
    waiting: Vec<(Rank, TcpStream)>,
}

impl Door {
    /// A door of `rank`, which needs no connection to itself; `waker` tells of arrivals.
    pub(super) fn new(party: Party<'_>, purpose: &'static str, waker: Arc<Waker>) -> Self {
        let joined: Vec<bool> = (0..party.size).map(|rank| Rank(rank) == party.rank).collect();
        let missing = joined.iter().filter(|joined| !**joined).count() as u32;
        Self {
            key: party.key.clone(),
            purpose,
            rank: party.rank,
            size: party.size,
            guests: Mutex::new(Guests { joined, missing, waiting: Vec::new() }),
            strays: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            shut: AtomicBool::new(false),
            waker,
        }
    }

    /// Those who came since the last call.
    pub(super) fn arrivals(&self) -> Vec<(Rank, TcpStream)> {
        std::mem::take(&mut self.guests().waiting)
    }

    /// Connections that were dropped because they did not prove the job key.
    pub(super) fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    /// Lets nobody in any more.
    pub(super) fn shut(&self) {
        self.shut.store(true, Ordering::Release);
    }

    fn is_done(&self) -> bool {
        self.shut.load(Ordering::Acquire) || self.guests().missing == 0
    }

    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, rank: Rank) -> Result<(), Refusal> {
        if self.shut.load(Ordering::Acquire) {
            return Err(Refusal::Closed);
        }
        match self.guests().joined.get_mut(rank.index()) {
            Some(joined) if !*joined => *joined = true,
            _ => return Err(Refusal::Duplicate { rank }),
        }
        Ok(())
    }

    /// Runs one handshake; `from` is for messages.
    fn receive(&self, stream: TcpStream, from: SocketAddr) {
        let party = Party { key: &self.key, purpose: self.purpose, rank: self.rank, size: self.size };
        let mut admitted = None;
        let proved = party.accept_if(&stream, Deadline::after(ONE_HANDSHAKE), |rank| {
            self.admit(rank)?;
            admitted = Some(rank);
            Ok(())
        });
        match (proved, admitted) {
            (Ok(rank), _) => {
                let mut guests = self.guests();
                guests.missing -= 1;
                guests.waiting.push((rank, stream));
                drop(guests);
                self.waker.wake();
            }
            // It vanished while it was being told; it may come again.
            (Err(error), Some(rank)) => {
                log::debug!("rank {rank} at {from} was lost while joining: {error}");
                if let Some(joined) = self.guests().joined.get_mut(rank.index()) {
                    *joined = false;
                }
            }
            (Err(HandshakeError::Refused(refusal)), None) => {
                log::warn!("refused a process at {from}: {refusal}");
            }
            (Err(error), None) => {
                let count = self.strays.fetch_add(1, Ordering::Relaxed) + 1;
                log::warn!("dropped a stray connection from {from} ({count} so far): {error}");
            }
        }
    }
}

/// Starts the thread that takes connections in; it ends when all have joined or the door is shut.
pub(super) fn start(door: Arc<Door>, listeners: Vec<TcpListener>) -> Result<JoinHandle<()>, BootstrapError> {
    const NAME: &str = "crossmesh-accept";
    thread::Builder::new()
        .name(NAME.into())
        .spawn(move || {
            while !door.is_done() {
                wait(&listeners);
                listeners.iter().for_each(|listener| accept_all(&door, listener));
            }
        })
        .map_err(|source| BootstrapError::Thread { name: NAME, source })
}

fn wait(listeners: &[TcpListener]) {
    let mut polled: Vec<_> =
        listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)).collect();
    let tick = PollTimeout::try_from(TICK).unwrap_or(PollTimeout::ZERO);
    if poll(&mut polled, tick).is_err() {
        thread::sleep(TICK);
    }
}

fn accept_all(door: &Arc<Door>, listener: &TcpListener) {
    while door.busy.load(Ordering::Acquire) < PLACES {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                thread::sleep(TICK);
                return;
            }
        };
        door.busy.fetch_add(1, Ordering::AcqRel);
        let inside = Arc::clone(door);
        let spawned = thread::Builder::new().name("crossmesh-handshake".into()).spawn(move || {
            inside.receive(stream, from);
            inside.busy.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            log::warn!("cannot start a thread for a connection from {from}: {error}");
            door.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }
    // All places are taken: leave the rest in the backlog for a moment instead of turning in circles.
    thread::sleep(TICK);
}
