//! Opens segments of peers on the host.
//!
//! In: the address of a peer's segment server, an id. Out: the segment, mapped; a lifeline that ends with the
//! peer's process. Guarantee: every wait has a deadline; the peer runs as the same user; size and seals of what
//! it hands over are checked before it is mapped; one mapping per segment.

use super::error::{MemoryError, errno_of};
use super::server::descriptor_space;
use super::shared::{SegmentId, SharedMemory};
use super::wire::{self, Answer};
use crate::base::{Backoff, Deadline};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::HashMap;
use std::fmt;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// Opens peers' segments; keeps one connection per peer.
#[derive(Debug, Default)]
pub struct PeerSegments {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: HashMap<String, Socket>,
    segments: HashMap<SegmentId, Weak<SharedMemory>>,
}

impl PeerSegments {
    /// Nothing is open.
    pub fn new() -> Self {
        Self::default()
    }

    /// The segment `segment` of the peer whose server is at `address`.
    pub fn open(
        &self,
        address: &str,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<Arc<SharedMemory>, MemoryError> {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(memory) = state.segments.get(&segment).and_then(Weak::upgrade) {
            return Ok(memory);
        }
        let (descriptor, bytes) = state.fetch(address, segment, deadline)?;
        let memory = Arc::new(SharedMemory::adopt(segment, descriptor, bytes)?);
        state.segments.retain(|_, segment| segment.strong_count() > 0);
        state.segments.insert(segment, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// The descriptor that the peer whose server is at `address` published as `segment`, with the bytes it states.
    pub fn fetch(&self, address: &str, segment: SegmentId, deadline: Deadline) -> Result<(OwnedFd, u64), MemoryError> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).fetch(address, segment, deadline)
    }
}

impl State {
    fn fetch(&mut self, address: &str, segment: SegmentId, deadline: Deadline) -> Result<(OwnedFd, u64), MemoryError> {
        let asked = Question { address, subject: &format!("segment {segment}"), deadline };
        let (connection, fresh) = match self.connections.remove(address) {
            Some(connection) => (connection, false),
            None => (asked.connect()?, true),
        };
        let (connection, answer) = match asked.ask(&connection, segment) {
            // The server may have been restarted since; a fresh connection tells.
            Err(MemoryError::PeerClosed { .. } | MemoryError::Peer { .. }) if !fresh => {
                let connection = asked.connect()?;
                let answer = asked.ask(&connection, segment)?;
                (connection, answer)
            }
            answer => (connection, answer?),
        };
        self.connections.insert(address.to_string(), connection);
        answer.ok_or_else(|| MemoryError::MissingSegment { address: address.to_string(), segment })
    }
}

/// A connection that lives as long as the peer's segment server.
pub struct Lifeline {
    socket: Socket,
}

impl Lifeline {
    /// Connects to the server at `address`.
    pub fn connect(address: &str, deadline: Deadline) -> Result<Self, MemoryError> {
        let socket = Question { address, subject: "a lifeline", deadline }.connect()?;
        Ok(Self { socket })
    }

    /// Whether the server still runs: one system call that does not wait.
    pub fn is_alive(&self) -> bool {
        let mut descriptors = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        // The server sends nothing unasked, so that anything to read is its end.
        !matches!(poll(&mut descriptors, PollTimeout::ZERO), Ok(1..))
    }
}

impl fmt::Debug for Lifeline {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lifeline").field("alive", &self.is_alive()).finish()
    }
}

/// One question to a peer, with what error messages need.
#[derive(Clone, Copy)]
struct Question<'a> {
    address: &'a str,
    subject: &'a str,
    deadline: Deadline,
}

impl Question<'_> {
    fn failed(self, operation: &'static str, source: Errno) -> MemoryError {
        MemoryError::Peer { address: self.address.into(), subject: self.subject.into(), operation, source }
    }

    fn late(self) -> MemoryError {
        let limit = self.deadline.limit();
        MemoryError::Deadline { address: self.address.into(), subject: self.subject.into(), limit }
    }

    fn closed(self) -> MemoryError {
        MemoryError::PeerClosed { address: self.address.into(), subject: self.subject.into() }
    }

    fn wrong(self, what: &'static str) -> MemoryError {
        MemoryError::BadAnswer { address: self.address.into(), subject: self.subject.into(), what }
    }

    fn connect(self) -> Result<Socket, MemoryError> {
        let failed = |operation| move |error: std::io::Error| self.failed(operation, errno_of(&error));
        let path = SockAddr::unix(self.address).map_err(failed("socket path"))?;
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).map_err(failed("socket"))?;
        socket.set_nonblocking(true).map_err(failed("fcntl(O_NONBLOCK)"))?;
        let mut backoff = Backoff::new();
        loop {
            match socket.connect(&path).map_err(|error| error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)) {
                Ok(()) => break,
                // EAGAIN: the server's queue of connections is full.
                Err(Errno::EAGAIN | Errno::EINTR) if !self.deadline.expired() => backoff.snooze(),
                Err(Errno::EAGAIN | Errno::EINTR) => return Err(self.late()),
                Err(errno) => return Err(self.failed("connect", errno)),
            }
        }
        let credentials = getsockopt(&socket, PeerCredentials).map_err(|errno| self.failed("SO_PEERCRED", errno))?;
        let own = geteuid().as_raw();
        if credentials.uid() != own {
            let address = self.address.to_string();
            return Err(MemoryError::OtherUser { address, found: credentials.uid(), own });
        }
        Ok(socket)
    }

    /// Asks for the descriptor and size of `segment`; `None` when the peer has no such segment.
    fn ask(self, connection: &Socket, segment: SegmentId) -> Result<Option<(OwnedFd, u64)>, MemoryError> {
        let request = wire::encode_request(segment);
        let flags = MsgFlags::MSG_NOSIGNAL;
        match nix::sys::socket::send(connection.as_raw_fd(), &request, flags) {
            Ok(_) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(self.closed()),
            Err(errno) => return Err(self.failed("send", errno)),
        }
        self.wait_readable(connection)?;
        let (answer, descriptor) = self.receive(connection)?;
        match (answer, descriptor) {
            (Answer::Missing { segment: answered }, None) if answered == segment => Ok(None),
            (Answer::Found { segment: answered, bytes }, Some(descriptor)) if answered == segment => {
                Ok(Some((descriptor, bytes)))
            }
            (Answer::Found { .. }, None) => Err(self.failed("receiving its descriptor (ulimit -n)", Errno::EMFILE)),
            _ => Err(self.wrong("another segment")),
        }
    }

    fn wait_readable(self, connection: &Socket) -> Result<(), MemoryError> {
        loop {
            let remaining = self.deadline.remaining();
            let mut descriptors = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
            // Rounded up, so that the last fraction of a millisecond does not spin.
            let timeout = PollTimeout::try_from(remaining + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut descriptors, timeout) {
                Ok(0) if self.deadline.expired() => return Err(self.late()),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(self.failed("poll", errno)),
            }
        }
    }

    fn receive(self, connection: &Socket) -> Result<(Answer, Option<OwnedFd>), MemoryError> {
        let mut packet = [0; wire::ANSWER + 1];
        let mut control = descriptor_space();
        let mut parts = [IoSliceMut::new(&mut packet)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let message = match recvmsg::<()>(connection.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Ok(message) => message,
            Err(Errno::ECONNRESET) => return Err(self.closed()),
            Err(errno) => return Err(self.failed("recvmsg", errno)),
        };
        let mut descriptors = Vec::new();
        for entry in message.cmsgs().map_err(|errno| self.failed("recvmsg", errno))? {
            if let ControlMessageOwned::ScmRights(received) = entry {
                // SAFETY: the kernel has just made these descriptors for this process; nothing else owns them.
                descriptors.extend(received.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
            }
        }
        let length = message.bytes;
        if length == 0 {
            return Err(self.closed());
        }
        let answer = wire::decode_answer(&packet[..length]).ok_or_else(|| self.wrong("unreadable packet"))?;
        if descriptors.len() > 1 {
            return Err(self.wrong("more than one descriptor"));
        }
        Ok((answer, descriptors.pop()))
    }
}
