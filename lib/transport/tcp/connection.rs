//! One connection.
//!
//! In: a connected socket, what epoll says about it. Out: frames moved in both directions, or the cause of the
//! end. Guarantee: once the connection has ended, its socket is closed and nothing of it can be written any more.

use super::frame::Frame;
use super::receive::{Failure, Received, Receiver};
use super::send::{SendQueue, Sent};
use crate::base::Rank;
use crate::transport::region::RegionTable;
use crate::transport::{Event, LocalSlice, Posted, Ticket, TransportError};
use nix::sys::epoll::EpollFlags;
use socket2::SockRef;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

/// A connection to one peer, or what became of it.
pub(super) struct Connection {
    peer: Rank,
    state: State,
    queue: SendQueue,
    receiver: Receiver,
    readable: bool,
    writable: bool,
    /// The end of the stream has been reported; reading goes on until it is reached.
    ending: bool,
    /// In the list of connections that a poll visits.
    pub(super) listed: bool,
}

enum State {
    Open(TcpStream),
    Ended(TransportError),
}

/// What a visit left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// Open.
    Open,
    /// Both ends have said goodbye.
    Finished,
}

impl Connection {
    /// Takes over a connected, non-blocking socket.
    pub(super) fn new(peer: Rank, socket: TcpStream, queue_frames: usize) -> Self {
        Self {
            peer,
            state: State::Open(socket),
            queue: SendQueue::new(queue_frames),
            receiver: Receiver::new(peer),
            readable: false,
            writable: false,
            ending: false,
            listed: false,
        }
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    /// Whether the socket is open.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether frames may be posted; otherwise why not.
    pub(super) fn health(&self) -> Result<(), TransportError> {
        match &self.state {
            State::Ended(cause) => Err(cause.clone()),
            State::Open(_) if self.receiver.heard_goodbye() => Err(TransportError::PeerLeft { peer: self.peer }),
            State::Open(_) if self.queue.goodbye_said() => Err(TransportError::Closed { peer: self.peer }),
            State::Open(_) => Ok(()),
        }
    }

    /// Whether the kernel has everything that was posted.
    pub(super) fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queues a frame without payload.
    pub(super) fn post(&mut self, frame: Frame) -> Result<Posted, TransportError> {
        self.health()?;
        Ok(self.queue.post(frame))
    }

    /// Queues a put whose slice was checked.
    pub(super) fn post_put(
        &mut self,
        frame: Frame,
        slice: LocalSlice,
        ticket: Ticket,
        regions: &mut RegionTable,
    ) -> Result<Posted, TransportError> {
        self.health()?;
        Ok(self.queue.post_put(frame, slice, ticket, regions))
    }

    /// Queues the goodbye.
    pub(super) fn say_goodbye(&mut self) {
        if self.is_open() {
            self.queue.say_goodbye();
        }
    }

    /// Notes what epoll reported. Edges: a flag stays until the socket says otherwise.
    pub(super) fn note(&mut self, flags: EpollFlags) {
        let end = EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        self.readable |= flags.intersects(EpollFlags::EPOLLIN | end);
        self.writable |= flags.intersects(EpollFlags::EPOLLOUT | end);
        self.ending |= flags.intersects(end);
    }

    /// Whether a visit would find something to do.
    pub(super) fn has_work(&self) -> bool {
        self.is_open() && (self.readable || self.writable && !self.queue.is_empty())
    }

    /// Moves a bounded number of bytes in both directions.
    pub(super) fn visit(
        &mut self,
        regions: &mut RegionTable,
        events: &mut Vec<Event>,
    ) -> Result<Visit, TransportError> {
        let State::Open(socket) = &self.state else { return Ok(Visit::Open) };
        let mut ended = false;
        if self.readable {
            match self.receiver.receive(socket.as_fd(), self.ending, regions, events) {
                Ok(Received::More) => {}
                Ok(Received::Drained) => self.readable = false,
                Ok(Received::End) => (self.readable, ended) = (false, true),
                Err(Failure::Fault(fault)) => return Err(TransportError::BadFrame { peer: self.peer, fault }),
                Err(Failure::System(source)) => return Err(self.failed("receive", source)),
            }
        }
        let goodbye = self.receiver.heard_goodbye();
        if ended && !goodbye {
            return Err(TransportError::EndOfStream { peer: self.peer });
        }
        if goodbye {
            self.queue.say_goodbye();
        }
        if self.writable && !self.queue.is_empty() {
            match self.queue.send(socket.as_fd(), regions, events) {
                Ok(Sent::More) => {}
                Ok(Sent::Full) => self.writable = false,
                Err(source) => return Err(self.failed("send", source)),
            }
        }
        if goodbye && self.queue.goodbye_sent() { Ok(Visit::Finished) } else { Ok(Visit::Open) }
    }

    fn failed(&self, operation: &'static str, source: nix::errno::Errno) -> TransportError {
        TransportError::Socket { peer: self.peer, operation, source }
    }

    /// Closes the socket and forgets what waits; the first cause is kept.
    pub(super) fn end(&mut self, cause: TransportError, regions: &mut RegionTable) {
        let State::Open(socket) = &self.state else { return };
        if !matches!(cause, TransportError::PeerLeft { .. } | TransportError::Closed { .. }) {
            // A reset tells the peer at once, and drops what the kernel still holds. An error changes nothing.
            let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
        }
        self.state = State::Ended(cause);
        self.queue.clear(regions);
        (self.readable, self.writable) = (false, false);
    }
}
