//! From a fresh socket to an agreed connection.
//!
//! In: a socket just dialled or accepted. Out: the peer's rank, proved by the authenticator, and certainty that
//! both ends mean the same link instance. Guarantee: the accepting end counts a connection only after the
//! dialling end has committed to it, so that a dialler that gave up leaves nothing behind.
//!
//! ```text
//! dialler                       acceptor
//!    ───── authenticator's messages ─────
//!    ── greeting (who, whom, instance) ──►
//!    ◄──────────── greeting ─────────────
//!    ─────────────── commit ────────────►
//! ```

use super::TcpOptions;
use crate::PROTOCOL_VERSION;
use crate::base::{Deadline, Rank};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const MAGIC: u64 = 0x6d65_7368_7463_7031;
const GREETING: usize = 32;
const COMMIT: u8 = b'c';

/// This end of a handshake.
#[derive(Clone, Copy)]
pub(super) struct Handshake<'a> {
    pub(super) rank: Rank,
    pub(super) options: &'a TcpOptions,
}

impl Handshake<'_> {
    /// As the end that dialled `peer`, whose address says `instance`.
    pub(super) fn dial(self, stream: &TcpStream, peer: Rank, instance: u64, deadline: Deadline) -> Result<(), String> {
        limit(stream, deadline)?;
        let refused = |error| format!("authentication failed: {error}");
        self.options.authenticate.dial(stream, peer, deadline).map_err(refused)?;
        let greeting = Greeting { from: self.rank, to: peer, instance };
        send(stream, &greeting.encode(), deadline)?;
        let expected = Greeting { from: peer, to: self.rank, instance };
        if receive::<GREETING>(stream, deadline)? != expected.encode() {
            return Err("another process or another version of crossmesh answered".into());
        }
        send(stream, &[COMMIT], deadline)
    }

    /// As the end that accepted; the rank of the dialler.
    pub(super) fn accept(self, stream: &TcpStream, instance: u64, deadline: Deadline) -> Result<Rank, String> {
        limit(stream, deadline)?;
        let refused = |error| format!("authentication failed: {error}");
        let peer = self.options.authenticate.accept(stream, deadline).map_err(refused)?;
        let expected = Greeting { from: peer, to: self.rank, instance };
        if receive::<GREETING>(stream, deadline)? != expected.encode() {
            return Err(format!("rank {peer} meant another link or runs another version of crossmesh"));
        }
        let greeting = Greeting { from: self.rank, to: peer, instance };
        send(stream, &greeting.encode(), deadline)?;
        match receive::<1>(stream, deadline)? {
            [COMMIT] => Ok(peer),
            _ => Err(format!("rank {peer} did not commit")),
        }
    }
}

/// Who talks to whom, about which link.
#[derive(Clone, Copy)]
struct Greeting {
    from: Rank,
    to: Rank,
    instance: u64,
}

impl Greeting {
    fn encode(self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[24..].copy_from_slice(&self.instance.to_le_bytes());
        bytes
    }
}

/// Bounds every blocking call on `stream`.
fn limit(stream: &TcpStream, deadline: Deadline) -> Result<(), String> {
    // A timeout of zero would mean none.
    let remaining = Some(deadline.remaining().max(Duration::from_millis(1)));
    let set = stream.set_read_timeout(remaining).and_then(|()| stream.set_write_timeout(remaining));
    set.map_err(|error| format!("no timeout could be set: {error}"))
}

fn send(mut stream: &TcpStream, bytes: &[u8], deadline: Deadline) -> Result<(), String> {
    limit(stream, deadline)?;
    stream.write_all(bytes).map_err(|error| describe(&error))
}

/// Reads exactly `N` bytes; the deadline holds for all of them, also when they come one by one.
fn receive<const N: usize>(mut stream: &TcpStream, deadline: Deadline) -> Result<[u8; N], String> {
    let (mut bytes, mut got) = ([0; N], 0);
    while got < N {
        if deadline.expired() {
            return Err(describe(&io::ErrorKind::TimedOut.into()));
        }
        limit(stream, deadline)?;
        match stream.read(&mut bytes[got..]) {
            Ok(0) => return Err("the connection was ended during the handshake".into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(describe(&error)),
        }
    }
    Ok(bytes)
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer to the handshake in time".into(),
        _ => format!("handshake broken off: {error}"),
    }
}
