//! Message link over TCP: any memory, any hosts, no special hardware.
//!
//! In: regions, puts, signals; peers' addresses. Out: events. Guarantee: one connection per pair of ranks, only
//! with authenticated peers; payloads move between socket and registered memory without another copy; one system
//! call per poll when nothing moves, whatever the number of peers; nothing is allocated after `connect`, except
//! by the caller's list of events when it is too small.
//!
//! A lost peer shows as an end or reset of its connection. A host that vanishes with bytes on the way is found by
//! keepalive only once they are given up by the kernel; the control connections find it sooner. TCP_USER_TIMEOUT
//! is not set on purpose: it also ends connections whose receiver merely does not poll for a while.

mod address;
mod connection;
mod frame;
mod handshake;
mod receive;
mod rendezvous;
mod send;
#[cfg(test)]
pub(super) mod tests;

use self::address::{Address, Listener};
use self::connection::{Connection, Visit};
use self::frame::Frame;
use self::rendezvous::Rendezvous;
use super::region::RegionTable;
use super::{
    Capabilities, Event, LocalSlice, MessageLink, Posted, RegionId, RemotePlace, RemoteRegion, Rights, Signal, Ticket,
    TransportError, check,
};
use crate::base::{Deadline, Rank};
use crate::memory::error::errno_of;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{SockRef, TcpKeepalive};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether `bytes` are a frame, for [`peer_bytes`](super::peer_bytes).
pub(super) fn reads_frame(bytes: &[u8]) -> bool {
    bytes.try_into().is_ok_and(|header| Frame::decode(header).is_ok())
}

/// Whether `bytes` are an address, for [`peer_bytes`](super::peer_bytes).
pub(super) fn reads_address(bytes: &[u8]) -> bool {
    Address::decode(Rank(1), bytes).is_ok()
}

/// Why a peer is not who it should be.
pub type AuthenticateError = Box<dyn std::error::Error + Send + Sync>;

/// Proves who is at the other end of a fresh connection. Both calls may block until the deadline; the stream has
/// its timeouts set accordingly.
pub trait Authenticate: Send + Sync {
    /// As the dialling end: proves this rank, and that the other end is `peer`.
    fn dial(&self, stream: &TcpStream, peer: Rank, deadline: Deadline) -> Result<(), AuthenticateError>;
    /// As the accepting end: proves this rank, and finds out who dialled.
    fn accept(&self, stream: &TcpStream, deadline: Deadline) -> Result<Rank, AuthenticateError>;
}

/// How a TCP link is set up.
#[derive(Clone)]
pub struct TcpOptions {
    /// Local address to listen at and to dial from; all addresses when `None`.
    pub bind: Option<IpAddr>,
    /// Network interface that all packets use (SO_BINDTODEVICE).
    pub device: Option<String>,
    /// Who proves peers.
    pub authenticate: Arc<dyn Authenticate>,
    /// Frames that wait per connection before puts and signals are refused as busy; at least 1.
    pub queue_frames: usize,
}

impl TcpOptions {
    /// All interfaces, 128 frames per connection.
    pub fn new(authenticate: Arc<dyn Authenticate>) -> Self {
        Self { bind: None, device: None, authenticate, queue_frames: 128 }
    }
}

/// Connections found ready by one call of the kernel; the others are found by the next poll.
const READY: usize = 64;
/// Longest sleep of `close` before it looks at the deadline again.
const CLOSE_TICK: Duration = Duration::from_millis(50);
/// Entry of a rank without a connection.
const NONE: u32 = u32::MAX;

/// A message link over TCP.
pub struct TcpLink {
    rank: Rank,
    options: TcpOptions,
    listener: Listener,
    readiness: Epoll,
    regions: RegionTable,
    connections: Vec<Connection>,
    /// Index in `connections` by rank.
    by_rank: Vec<u32>,
    /// Connections that have work, next first; each once.
    active: VecDeque<u32>,
    /// Peers that dialled before they were asked for.
    early: BTreeMap<Rank, TcpStream>,
    strays: AtomicU64,
}

impl TcpLink {
    /// Listens; nothing is connected yet.
    pub fn new(rank: Rank, options: TcpOptions) -> Result<Self, TransportError> {
        let listener = Listener::bind(&options)?;
        let readiness = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|source| TransportError::Setup {
            link: "TCP",
            operation: "epoll_create",
            subject: format!("rank {rank}"),
            source,
        })?;
        Ok(Self {
            rank,
            options,
            listener,
            readiness,
            regions: RegionTable::default(),
            connections: Vec::new(),
            by_rank: Vec::new(),
            active: VecDeque::new(),
            early: BTreeMap::new(),
            strays: AtomicU64::new(0),
        })
    }

    /// Connections dropped because they were no peer's.
    pub fn strays(&self) -> u64 {
        self.strays.load(Ordering::Relaxed)
    }

    fn index(&self, peer: Rank) -> Option<usize> {
        self.by_rank.get(peer.index()).filter(|&&index| index != NONE).map(|&index| index as usize)
    }

    fn connection(&mut self, peer: Rank) -> Result<(usize, &mut Connection), TransportError> {
        let index = self.index(peer).ok_or(TransportError::NotConnected { peer })?;
        Ok((index, &mut self.connections[index]))
    }

    fn list_if_active(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.has_work() && !connection.listed {
            connection.listed = true;
            self.active.push_back(index as u32);
        }
    }

    fn post(&mut self, peer: Rank, frame: Frame) -> Result<Posted, TransportError> {
        let (index, connection) = self.connection(peer)?;
        let posted = connection.post(frame)?;
        self.list_if_active(index);
        Ok(posted)
    }

    /// Asks the kernel which connections became ready, waiting for `timeout` at most.
    fn look(&mut self, timeout: EpollTimeout) -> Result<(), TransportError> {
        if self.connections.is_empty() {
            return Ok(());
        }
        let mut ready = [EpollEvent::empty(); READY];
        let count = match self.readiness.wait(&mut ready, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(source) => {
                let subject = format!("rank {}", self.rank);
                return Err(TransportError::Setup { link: "TCP", operation: "epoll_wait", subject, source });
            }
        };
        for event in &ready[..count] {
            let index = event.data() as usize;
            self.connections[index].note(event.events());
            self.list_if_active(index);
        }
        Ok(())
    }

    /// Takes over an agreed stream.
    fn adopt(&mut self, peer: Rank, stream: TcpStream) -> Result<(), TransportError> {
        let failed = |operation| {
            move |error: std::io::Error| TransportError::Socket { peer, operation, source: errno_of(&error) }
        };
        stream.set_nodelay(true).map_err(failed("set TCP_NODELAY"))?;
        stream.set_nonblocking(true).map_err(failed("set O_NONBLOCK"))?;
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(3));
        let keepalive = keepalive.with_retries(3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(failed("set SO_KEEPALIVE"))?;
        let index = self.index(peer).unwrap_or(self.connections.len());
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let added = self.readiness.add(&stream, EpollEvent::new(edges, index as u64));
        added.map_err(|source| TransportError::Socket { peer, operation: "epoll_ctl", source })?;
        let mut connection = Connection::new(peer, stream, self.options.queue_frames.max(1));
        if index < self.connections.len() {
            connection.listed = self.connections[index].listed;
            self.connections[index] = connection;
        } else {
            self.connections.push(connection);
            self.active.reserve(self.connections.len());
        }
        if self.by_rank.len() <= peer.index() {
            self.by_rank.resize(peer.index() + 1, NONE);
        }
        self.by_rank[peer.index()] = index as u32;
        Ok(())
    }

    fn is_open(&self, peer: Rank) -> bool {
        self.index(peer).is_some_and(|index| self.connections[index].is_open())
    }

    /// Keeps what `connect` found: expected peers are adopted, others wait until they are asked for.
    fn keep(&mut self, streams: BTreeMap<Rank, TcpStream>, expected: &BTreeSet<Rank>) -> Result<(), TransportError> {
        for (peer, stream) in streams {
            if expected.contains(&peer) {
                self.adopt(peer, stream)?;
            } else if self.is_open(peer) {
                self.strays.fetch_add(1, Ordering::Relaxed);
                log::warn!("rank {} dropped a second connection of rank {peer}", self.rank);
            } else {
                self.early.insert(peer, stream);
            }
        }
        Ok(())
    }

    fn end(&mut self, index: usize, cause: TransportError) {
        let Self { connections, regions, .. } = self;
        connections[index].end(cause, regions);
    }

    fn flush_goodbyes(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        for index in 0..self.connections.len() {
            self.connections[index].say_goodbye();
            self.list_if_active(index);
        }
        let mut events = Vec::new();
        while self.connections.iter().any(Connection::is_open) {
            if deadline.expired() {
                let open = self.connections.iter().filter(|connection| connection.is_open());
                let peers = open.map(Connection::peer).collect();
                return Err(TransportError::CloseDeadline { peers, limit: deadline.limit() });
            }
            self.poll(&mut events)?;
            events.clear();
            self.wait(deadline.remaining().min(CLOSE_TICK))?;
        }
        Ok(())
    }
}

impl MessageLink for TcpLink {
    fn capabilities(&self) -> Capabilities {
        Capabilities::ANY_MEMORY | Capabilities::CROSSES_HOSTS
    }

    fn address(&self) -> Vec<u8> {
        self.listener.address.encode()
    }

    unsafe fn register(&mut self, start: *mut u8, bytes: u64, rights: Rights) -> Result<RegionId, TransportError> {
        self.regions.insert(start, bytes, rights)
    }

    fn export(&self, region: RegionId) -> Result<RemoteRegion, TransportError> {
        self.regions.export(region, None)
    }

    fn deregister(&mut self, region: RegionId) -> Result<(), TransportError> {
        self.regions.remove(region)
    }

    fn connect(&mut self, peers: &[(Rank, Vec<u8>)], deadline: Deadline) -> Result<(), TransportError> {
        let (mut dial, mut accept) = (Vec::new(), BTreeSet::new());
        for (peer, text) in peers {
            if *peer == self.rank || self.is_open(*peer) {
                continue;
            }
            let address = Address::decode(*peer, text)?;
            if *peer > self.rank {
                dial.push((*peer, address));
            } else if let Some(stream) = self.early.remove(peer) {
                self.adopt(*peer, stream)?;
            } else {
                accept.insert(*peer);
            }
        }
        let expected: BTreeSet<Rank> = dial.iter().map(|(peer, _)| *peer).chain(accept.iter().copied()).collect();
        let Self { rank, listener, options, strays, .. } = &*self;
        let outcome = Rendezvous { rank: *rank, listener, options, strays, deadline }.run(dial, accept);
        self.keep(outcome.streams, &expected)?;
        let missing: Vec<Rank> = expected.into_iter().filter(|peer| !self.is_open(*peer)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let seen = outcome.failures.iter().next().map(|(peer, failure)| format!("last seen of rank {peer}: {failure}"));
        let last = seen.unwrap_or_else(|| "nothing was heard of them; look for their processes".into());
        Err(TransportError::ConnectDeadline { missing, limit: deadline.limit(), last })
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
        let index = self.index(peer).ok_or(TransportError::NotConnected { peer })?;
        let Self { connections, regions, .. } = self;
        let posted = connections[index].post_put(Frame::put(remote, local.bytes), local, ticket, regions)?;
        self.list_if_active(index);
        Ok(posted)
    }

    fn put_word(&mut self, peer: Rank, word: u64, remote: RemotePlace) -> Result<Posted, TransportError> {
        check::remote_word(peer, remote)?;
        self.post(peer, Frame::word(remote, word))
    }

    fn signal(&mut self, peer: Rank, signal: Signal) -> Result<Posted, TransportError> {
        check::signal(signal)?;
        self.post(peer, Frame::Signal(signal))
    }

    fn is_flushed(&self, peer: Rank) -> bool {
        self.index(peer).is_none_or(|index| self.connections[index].is_flushed())
    }

    fn flush_received(&mut self, region: RegionId) -> Result<(), TransportError> {
        // The processor copied the bytes; they are visible to every reader that the signal reaches.
        self.regions.check(region)
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), TransportError> {
        self.look(EpollTimeout::ZERO)?;
        for _ in 0..self.active.len() {
            let Some(listed) = self.active.pop_front() else { break };
            let index = listed as usize;
            let Self { connections, regions, .. } = self;
            let connection = &mut connections[index];
            connection.listed = false;
            let peer = connection.peer();
            match connection.visit(regions, events) {
                Ok(Visit::Open) => self.list_if_active(index),
                Ok(Visit::Finished) => self.end(index, TransportError::PeerLeft { peer }),
                Err(cause) => {
                    self.end(index, cause.clone());
                    events.push(Event::Lost { peer, cause });
                }
            }
        }
        Ok(())
    }

    fn readiness(&self) -> Option<OwnedFd> {
        self.readiness.0.try_clone().ok()
    }

    fn wait(&mut self, limit: Duration) -> Result<bool, TransportError> {
        if self.active.is_empty() {
            // Rounded up, so that a wait of less than a millisecond does not spin.
            let timeout = limit.saturating_add(Duration::from_micros(999));
            self.look(EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::NONE))?;
        }
        Ok(!self.active.is_empty())
    }

    fn abort(&mut self, peer: Rank) {
        self.early.remove(&peer);
        if let Some(index) = self.index(peer) {
            self.end(index, TransportError::Aborted { peer });
        }
    }

    fn close(&mut self, deadline: Deadline) -> Result<(), TransportError> {
        let result = self.flush_goodbyes(deadline);
        self.early.clear();
        for index in 0..self.connections.len() {
            let peer = self.connections[index].peer();
            self.end(index, TransportError::Closed { peer });
        }
        result
    }

    fn health(&self, peer: Rank) -> Result<(), TransportError> {
        let index = self.index(peer).ok_or(TransportError::NotConnected { peer })?;
        self.connections[index].health()
    }
}
