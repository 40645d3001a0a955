//! One connection between the launcher and an agent, without blocking.
//!
//! In: a TCP stream, messages to send. Out: messages received. Guarantee: no call blocks; memory is bounded by what
//! the caller queues and by one round of reading; a dead peer is noticed by keepalive within 15 s also when it is
//! silent.

use super::protocol::{Message, ProtocolError, next_message};
use nix::sys::socket::{setsockopt, sockopt};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use thiserror::Error;

/// Bytes read at most in one round, so that one chatty rank does not starve the others.
const ROUND: usize = 128 * 1024;
/// Keepalive: first probe after, between probes, probes until dead.
const IDLE_SECONDS: u32 = 6;
const PROBE_SECONDS: u32 = 3;
const PROBES: u32 = 3;

/// A connection that can no longer be used.
#[derive(Debug, Error)]
pub(crate) enum ConnectionError {
    /// The operating system says so.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The peer speaks something else.
    #[error("the peer broke the protocol")]
    Protocol(#[from] ProtocolError),
}

/// A framed connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    incoming: Vec<u8>,
    taken: usize,
    outgoing: Vec<u8>,
    sent: usize,
    open: bool,
}

impl Connection {
    /// Takes over a connected stream.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        setsockopt(&stream, sockopt::KeepAlive, &true)?;
        setsockopt(&stream, sockopt::TcpKeepIdle, &IDLE_SECONDS)?;
        setsockopt(&stream, sockopt::TcpKeepInterval, &PROBE_SECONDS)?;
        setsockopt(&stream, sockopt::TcpKeepCount, &PROBES)?;
        Ok(Self { stream, incoming: Vec::new(), taken: 0, outgoing: Vec::new(), sent: 0, open: true })
    }

    /// Also gives the peer up when it acknowledges nothing for 15 s; only for a peer that always reads at once.
    pub(crate) fn give_up_on_silence(&self) -> io::Result<()> {
        Ok(setsockopt(&self.stream, sockopt::TcpUserTimeout, &((IDLE_SECONDS + PROBES * PROBE_SECONDS) * 1000))?)
    }

    /// Reads what is there; `false` once the peer has closed.
    pub(crate) fn fill(&mut self) -> Result<bool, ConnectionError> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        let mut chunk = [0; 16 * 1024];
        let mut total = 0;
        while self.open && total < ROUND {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.open = false,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => self.open = false,
                Ok(count) => {
                    self.incoming.extend_from_slice(&chunk[..count]);
                    total += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.open)
    }

    /// The next whole message of what [`Self::fill`] read.
    pub(crate) fn receive<M: Message>(&mut self) -> Result<Option<M>, ConnectionError> {
        Ok(next_message(&self.incoming[self.taken..])?.map(|(message, length)| {
            self.taken += length;
            message
        }))
    }

    /// Appends `message` to what is to be sent.
    pub(crate) fn queue(&mut self, message: &impl Message) {
        message.encode(&mut self.outgoing);
    }

    /// Bytes not yet given to the operating system.
    pub(crate) fn backlog(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Sends what can be sent now.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.backlog() > 0 {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.backlog() == 0 || self.sent >= ROUND {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{FromAgent, Stream};
    use super::*;
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    #[test]
    fn messages_arrive_in_order_and_the_end_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = Connection::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let mut receiver = Connection::new(listener.accept().unwrap().0).unwrap();
        let count = 3000u32;
        for number in 0..count {
            let mut line = number.to_le_bytes().to_vec();
            line.resize(1000, b'x');
            sender.queue(&FromAgent::Line(Stream::Output, line));
        }
        let until = Instant::now() + Duration::from_secs(20);
        let mut seen = 0u32;
        let mut open = true;
        while open {
            assert!(Instant::now() < until, "{seen} of {count} lines");
            sender.flush().unwrap();
            if sender.backlog() == 0 {
                sender.stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            open = receiver.fill().unwrap();
            while let Some(message) = receiver.receive::<FromAgent>().unwrap() {
                let FromAgent::Line(Stream::Output, line) = message else { panic!("{message:?}") };
                assert_eq!(line[..4], seen.to_le_bytes());
                seen += 1;
            }
        }
        assert_eq!(seen, count);
    }
}
