//! Mutual proof of the job key on a new TCP connection, before anything else is read from it.
//!
//! In: a connected stream and who each side claims to be. Out: the rank of the peer. Guarantee: both sides hold the
//! same key and agree on protocol version, purpose, world size and both ranks, or the connection yields a
//! [`HandshakeError`]; every frame has a fixed size, every read and write ends by the deadline, and nothing is
//! allocated for a peer before it has proved the key.
//!
//! ```text
//! dialer                                              acceptor
//!   magic, version, ranks, size, purpose, nonce  ──►
//!                                                ◄──  magic, version, nonce, HMAC("accept", both frames)
//!   HMAC("dial", both frames)                    ──►
//!                                                ◄──  verdict, HMAC("verdict", both frames, verdict)
//! ```

use super::key::{JobKey, KEY_BYTES};
use crate::PROTOCOL_VERSION;
use crate::base::{Deadline, Rank};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use thiserror::Error;

/// First bytes of every connection, the same in all versions; the version follows, little-endian.
const MAGIC: [u8; 8] = *b"xmesh\r\n\0";
const PREFIX: usize = 12;
const PURPOSE_BYTES: usize = 32;
/// Prefix, dialer's rank, acceptor's rank, size, purpose, nonce.
const HELLO: usize = PREFIX + 12 + PURPOSE_BYTES + KEY_BYTES;
/// Prefix, nonce, HMAC.
const ANSWER: usize = PREFIX + KEY_BYTES + KEY_BYTES;
/// Code, value, HMAC.
const VERDICT: usize = 8 + KEY_BYTES;
/// How long a peer of another version may take to hang up after it was told so.
const FAREWELL: Duration = Duration::from_millis(200);

/// Why an authenticated peer was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The sides disagree about the number of ranks.
    #[error("the job has {accepted} ranks, but this process was started as one of {claimed}; give all the same size")]
    Size {
        /// The acceptor's size.
        accepted: u32,
        /// The dialer's size.
        claimed: u32,
    },
    /// The rank is not below the size.
    #[error("rank {rank} is out of range; a job of {size} ranks has ranks 0 to {}", size - 1)]
    Range {
        /// The dialer's rank.
        rank: Rank,
        /// Number of ranks.
        size: u32,
    },
    /// Another process already joined under that rank.
    #[error("rank {rank} has already joined; give every process its own rank")]
    Duplicate {
        /// The dialer's rank.
        rank: Rank,
    },
    /// The dialer reached another rank than it meant to.
    #[error("reached rank {reached}, not rank {meant}; the address is stale or belongs to another process")]
    Peer {
        /// Who answered.
        reached: Rank,
        /// Who was meant.
        meant: Rank,
    },
    /// The dialer reached a socket of another purpose.
    #[error("reached a socket that serves another purpose; the address is stale or belongs to another process")]
    Purpose,
    /// The acceptor takes nobody (any more).
    #[error("the job takes no more ranks")]
    Closed,
}

/// Why a connection yields no peer.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// No answer in time.
    #[error("the peer did not complete the handshake in time; it is overloaded, or no crossmesh process")]
    Timeout,
    /// The stream failed.
    #[error("the connection failed during the handshake")]
    Stream {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The peer hung up.
    #[error("the peer closed the connection during the handshake; it may hold another job key")]
    HungUp,
    /// The first bytes are not ours.
    #[error("the peer does not speak the crossmesh protocol")]
    Stranger,
    /// Another version of the protocol.
    #[error("this process speaks protocol version {ours}, the peer version {theirs}; use one build on all ranks")]
    Version {
        /// This process's.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The peer does not hold the job key.
    #[error("the peer does not hold this job's key; it belongs to another job")]
    WrongKey,
    /// The peer was turned away, or turned this process away.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The purpose text is empty or longer than 32 bytes.
    #[error("purpose {purpose:?} cannot be used; use 1 to 32 bytes")]
    Purpose {
        /// As given.
        purpose: String,
    },
    /// No random numbers.
    #[error("the system has no random numbers")]
    Random(#[source] getrandom::Error),
}

impl From<io::Error> for HandshakeError {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::UnexpectedEof => Self::HungUp,
            _ => Self::Stream { source },
        }
    }
}

/// One side of a handshake: what it proves and claims.
#[derive(Debug, Clone, Copy)]
pub struct Party<'a> {
    /// The job key.
    pub key: &'a JobKey,
    /// What the connection is for; equal on both sides, 1 to 32 bytes.
    pub purpose: &'a str,
    /// This side's rank.
    pub rank: Rank,
    /// Number of ranks.
    pub size: u32,
}

impl Party<'_> {
    /// Proves the key to the acceptor at the other end of `stream`, which must be rank `peer`, and checks its proof.
    pub fn dial(&self, stream: &TcpStream, peer: Rank, deadline: Deadline) -> Result<(), HandshakeError> {
        let mut hello = [0; HELLO];
        hello[..PREFIX].copy_from_slice(&prefix());
        let claims = [self.rank.0, peer.0, self.size];
        for (place, claim) in hello[PREFIX..].chunks_exact_mut(4).zip(claims) {
            place.copy_from_slice(&claim.to_le_bytes());
        }
        hello[PREFIX + 12..][..PURPOSE_BYTES].copy_from_slice(&padded(self.purpose)?);
        getrandom::fill(&mut hello[HELLO - KEY_BYTES..]).map_err(HandshakeError::Random)?;
        send(stream, &hello, deadline)?;

        let mut answer = [0; ANSWER];
        receive(stream, &mut answer[..PREFIX], deadline)?;
        check_prefix(&answer)?;
        receive(stream, &mut answer[PREFIX..], deadline)?;
        let (open, proof) = answer.split_at(ANSWER - KEY_BYTES);
        if !self.key.verify(&[b"accept", &hello, open], proof) {
            return Err(HandshakeError::WrongKey);
        }
        send(stream, &self.key.sign(&[b"dial", &hello, &answer]), deadline)?;

        let mut verdict = [0; VERDICT];
        receive(stream, &mut verdict, deadline)?;
        let (open, proof) = verdict.split_at(8);
        if !self.key.verify(&[b"verdict", &hello, &answer, open], proof) {
            return Err(HandshakeError::WrongKey);
        }
        clear_timeouts(stream)?;
        match (word(open, 0), word(open, 4)) {
            (0, _) => Ok(()),
            (1, accepted) => Err(Refusal::Size { accepted, claimed: self.size }.into()),
            (2, size) => Err(Refusal::Range { rank: self.rank, size: size.max(1) }.into()),
            (3, _) => Err(Refusal::Duplicate { rank: self.rank }.into()),
            (4, reached) => Err(Refusal::Peer { reached: Rank(reached), meant: peer }.into()),
            (5, _) => Err(Refusal::Purpose.into()),
            _ => Err(Refusal::Closed.into()),
        }
    }

    /// Lets the dialer at the other end of `stream` prove itself; gives its rank.
    pub fn accept(&self, stream: &TcpStream, deadline: Deadline) -> Result<Rank, HandshakeError> {
        self.accept_if(stream, deadline, |_| Ok(()))
    }

    /// As [`Party::accept`], with the last word left to `admit`, which is asked once the dialer has proved the key.
    pub fn accept_if(
        &self,
        stream: &TcpStream,
        deadline: Deadline,
        admit: impl FnOnce(Rank) -> Result<(), Refusal>,
    ) -> Result<Rank, HandshakeError> {
        let purpose = padded(self.purpose)?;
        let mut hello = [0; HELLO];
        receive(stream, &mut hello[..PREFIX], deadline)?;
        if let Err(error) = check_prefix(&hello) {
            if matches!(error, HandshakeError::Version { .. }) {
                tell_version(stream, deadline);
            }
            return Err(error);
        }
        receive(stream, &mut hello[PREFIX..], deadline)?;

        let mut answer = [0; ANSWER];
        answer[..PREFIX].copy_from_slice(&prefix());
        getrandom::fill(&mut answer[PREFIX..][..KEY_BYTES]).map_err(HandshakeError::Random)?;
        let proof = self.key.sign(&[b"accept", &hello, &answer[..ANSWER - KEY_BYTES]]);
        answer[ANSWER - KEY_BYTES..].copy_from_slice(&proof);
        send(stream, &answer, deadline)?;

        let mut proof = [0; KEY_BYTES];
        receive(stream, &mut proof, deadline)?;
        if !self.key.verify(&[b"dial", &hello, &answer], &proof) {
            return Err(HandshakeError::WrongKey);
        }
        let rank = Rank(word(&hello, PREFIX));
        let judged = self.judge(&hello, &purpose).and_then(|()| admit(rank));
        let mut verdict = [0; VERDICT];
        verdict[..8].copy_from_slice(&verdict_code(judged));
        let proof = self.key.sign(&[b"verdict", &hello, &answer, &verdict[..8]]);
        verdict[8..].copy_from_slice(&proof);
        send(stream, &verdict, deadline)?;
        clear_timeouts(stream)?;
        judged?;
        Ok(rank)
    }

    fn judge(&self, hello: &[u8; HELLO], purpose: &[u8; PURPOSE_BYTES]) -> Result<(), Refusal> {
        let (rank, meant, claimed) =
            (Rank(word(hello, PREFIX)), Rank(word(hello, PREFIX + 4)), word(hello, PREFIX + 8));
        if hello[PREFIX + 12..][..PURPOSE_BYTES] != purpose[..] {
            Err(Refusal::Purpose)
        } else if claimed != self.size {
            Err(Refusal::Size { accepted: self.size, claimed })
        } else if rank.0 >= self.size {
            Err(Refusal::Range { rank, size: self.size })
        } else if meant != self.rank {
            Err(Refusal::Peer { reached: self.rank, meant })
        } else {
            Ok(())
        }
    }
}

fn verdict_code(judged: Result<(), Refusal>) -> [u8; 8] {
    let (code, value) = match judged {
        Ok(()) => (0u32, 0),
        Err(Refusal::Size { accepted, .. }) => (1, accepted),
        Err(Refusal::Range { size, .. }) => (2, size),
        Err(Refusal::Duplicate { .. }) => (3, 0),
        Err(Refusal::Peer { reached, .. }) => (4, reached.0),
        Err(Refusal::Purpose) => (5, 0),
        Err(Refusal::Closed) => (6, 0),
    };
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&code.to_le_bytes());
    bytes[4..].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn prefix() -> [u8; PREFIX] {
    let mut bytes = [0; PREFIX];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes
}

fn check_prefix(frame: &[u8]) -> Result<(), HandshakeError> {
    match (frame[..8] == MAGIC, word(frame, 8)) {
        (false, _) => Err(HandshakeError::Stranger),
        (true, PROTOCOL_VERSION) => Ok(()),
        (true, theirs) => Err(HandshakeError::Version { ours: PROTOCOL_VERSION, theirs }),
    }
}

/// Tells a peer of another version ours, and waits for it to hang up: closing first would throw the answer away.
fn tell_version(stream: &TcpStream, deadline: Deadline) {
    if send(stream, &prefix(), deadline).is_ok() && stream.shutdown(Shutdown::Write).is_ok() {
        let farewell = Deadline::after(FAREWELL.min(deadline.remaining()));
        let mut rest = [0; 256];
        while arm(stream, farewell).is_ok() && matches!((&mut &*stream).read(&mut rest), Ok(1..)) {}
    }
}

fn padded(purpose: &str) -> Result<[u8; PURPOSE_BYTES], HandshakeError> {
    if purpose.is_empty() || purpose.len() > PURPOSE_BYTES {
        return Err(HandshakeError::Purpose { purpose: purpose.to_string() });
    }
    let mut bytes = [0; PURPOSE_BYTES];
    bytes[..purpose.len()].copy_from_slice(purpose.as_bytes());
    Ok(bytes)
}

/// The little-endian word at `offset`; callers pass frames of fixed size.
fn word(frame: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([frame[offset], frame[offset + 1], frame[offset + 2], frame[offset + 3]])
}

fn arm(stream: &TcpStream, deadline: Deadline) -> Result<(), HandshakeError> {
    let remaining = deadline.remaining();
    if remaining.is_zero() {
        return Err(HandshakeError::Timeout);
    }
    stream.set_read_timeout(Some(remaining))?;
    stream.set_write_timeout(Some(remaining))?;
    Ok(())
}

fn clear_timeouts(stream: &TcpStream) -> Result<(), HandshakeError> {
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(())
}

fn send(mut stream: &TcpStream, frame: &[u8], deadline: Deadline) -> Result<(), HandshakeError> {
    arm(stream, deadline)?;
    Ok(stream.write_all(frame)?)
}

/// Fills `frame`; re-arms the timeout before every read, so that a peer that trickles bytes gains no time.
fn receive(mut stream: &TcpStream, frame: &mut [u8], deadline: Deadline) -> Result<(), HandshakeError> {
    let mut filled = 0;
    while filled < frame.len() {
        arm(stream, deadline)?;
        match stream.read(&mut frame[filled..]) {
            Ok(0) => return Err(HandshakeError::HungUp),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
