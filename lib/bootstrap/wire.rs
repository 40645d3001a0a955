//! Frames of control connections, and their non-blocking streams.
//!
//! In: authenticated streams, byte strings to send. Out: whole frames. Guarantee: nothing blocks; a frame longer than
//! its kind allows is refused by its header; a payload's memory grows with the bytes that have arrived.

use super::error::Absentees;
use crate::base::Rank;
use socket2::{Socket, TcpKeepalive};
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// A lost host is noticed after the idle time and three missed probes: 11 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_PROBES: u32 = 3;
/// The same for bytes under way, which keepalive does not watch.
const UNACKNOWLEDGED: Duration = Duration::from_secs(11);

/// Bytes that one stream may move before others have their turn.
const TURN: u64 = 4 << 20;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To the hub: the sender's host name.
    Hello,
    /// To the hub: one byte string for each member.
    Exchange,
    /// To the hub: one byte string for all members.
    Gather,
    /// To the hub: who is absent from this exchange?
    Query,
    /// Both ways: the job ends with this cause.
    Abort,
    /// To the hub: this rank ends cleanly.
    Goodbye,
    /// From the hub: one byte string of each member.
    Outcome,
    /// From the hub: a member ended before this exchange.
    Left,
    /// From the hub: the answer to a query.
    Absent,
    /// From the hub: all have said goodbye.
    Closed,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Hello,
        Kind::Exchange,
        Kind::Gather,
        Kind::Query,
        Kind::Abort,
        Kind::Goodbye,
        Kind::Outcome,
        Kind::Left,
        Kind::Absent,
        Kind::Closed,
    ];

    /// Longest payload.
    fn longest(self) -> u64 {
        match self {
            Kind::Query | Kind::Goodbye | Kind::Left | Kind::Closed => 0,
            Kind::Hello | Kind::Absent => 4 << 10,
            Kind::Abort => 256 << 10,
            Kind::Exchange | Kind::Gather | Kind::Outcome => 1 << 40,
        }
    }
}

/// Head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// What the frame says.
    pub(super) kind: Kind,
    /// A rank, where the kind names one.
    pub(super) rank: Rank,
    /// Which exchange: its context …
    pub(super) context: u64,
    /// … and its number within the context.
    pub(super) sequence: u64,
    /// Bytes that follow.
    pub(super) length: u64,
}

impl Header {
    pub(super) const BYTES: usize = 32;

    /// A frame about no exchange.
    pub(super) fn plain(kind: Kind, length: u64) -> Self {
        Self { kind, rank: Rank(0), context: 0, sequence: 0, length }
    }

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let kind = Kind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u32;
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.rank.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.context.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Reader::new(bytes);
        let fields = (rest.word32(), rest.word32(), rest.word64(), rest.word64(), rest.word64());
        let (Some(kind), Some(rank), Some(context), Some(sequence), Some(length)) = fields else {
            return Err("a header was cut short".into());
        };
        let kind = *Kind::ALL.get(kind as usize).ok_or_else(|| format!("frame kind {kind} does not exist"))?;
        if length > kind.longest() {
            return Err(format!("a {kind:?} frame of {length} bytes came; at most {} are allowed", kind.longest()));
        }
        Ok(Self { kind, rank: Rank(rank), context, sequence, length })
    }
}

/// Takes little-endian words and byte strings off a payload; `None` once it is too short.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn word32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(super) fn word64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}

impl Absentees {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.total.to_le_bytes().to_vec();
        self.named.iter().for_each(|rank| bytes.extend(rank.0.to_le_bytes()));
        bytes
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let mut rest = Reader::new(payload);
        let total = rest.word64()?;
        let named = std::iter::from_fn(|| rest.word32().map(Rank)).collect();
        Some(Self { named, total })
    }
}

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A whole frame.
    Frame(Header, Vec<u8>),
    /// No more for now.
    Blocked,
    /// The peer is gone.
    Ended,
    /// The peer sent what is no frame.
    Malformed(String),
}

/// Puts frames together from what a non-blocking stream gives.
#[derive(Debug, Default)]
pub(super) struct FrameReader {
    head: Vec<u8>,
    header: Option<Header>,
    payload: Vec<u8>,
}

impl FrameReader {
    /// The next frame, if it is complete.
    pub(super) fn next(&mut self, stream: &Socket) -> Received {
        let header = match self.header {
            Some(header) => header,
            None => {
                if let Some(stopped) = fill(stream, &mut self.head, Header::BYTES as u64) {
                    return stopped;
                }
                match Header::decode(&self.head) {
                    Ok(header) => *self.header.insert(header),
                    Err(reason) => return Received::Malformed(reason),
                }
            }
        };
        if let Some(stopped) = fill(stream, &mut self.payload, header.length) {
            return stopped;
        }
        self.head.clear();
        self.header = None;
        Received::Frame(header, std::mem::take(&mut self.payload))
    }
}

/// Reads until `bytes` holds `wanted` bytes; says why it stopped before.
fn fill(mut stream: &Socket, bytes: &mut Vec<u8>, wanted: u64) -> Option<Received> {
    let missing = wanted.saturating_sub(bytes.len() as u64);
    if missing == 0 {
        return None;
    }
    let turn = missing.min(TURN);
    match Read::take(&mut stream, turn).read_to_end(bytes) {
        Ok(count) if count as u64 == missing => None,
        // The stream stays readable, so the next poll comes back here.
        Ok(count) if count as u64 == turn => Some(Received::Blocked),
        Ok(_) => Some(Received::Ended),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(Received::Blocked),
        Err(_) => Some(Received::Ended),
    }
}

/// Bytes to send, possibly shared between queues.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Segment {
    pub(super) fn new(bytes: Arc<Vec<u8>>, range: Range<usize>) -> Self {
        Self { bytes, range }
    }

    pub(super) fn len(&self) -> u64 {
        self.range.len() as u64
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl From<Vec<u8>> for Segment {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { bytes: Arc::new(bytes), range }
    }
}

/// What waits to be sent on one stream.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    segments: VecDeque<Segment>,
}

impl SendQueue {
    const SLICES: usize = 16;

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn push(&mut self, segment: Segment) {
        if !segment.range.is_empty() {
            self.segments.push_back(segment);
        }
    }

    pub(super) fn frame(&mut self, header: Header, payload: Vec<u8>) {
        self.push(header.encode().to_vec().into());
        self.push(payload.into());
    }

    /// Sends what the stream takes, up to a turn.
    pub(super) fn flush(&mut self, stream: &Socket) -> io::Result<()> {
        let mut moved = 0;
        while !self.segments.is_empty() && moved < TURN {
            let slices: Vec<IoSlice<'_>> =
                self.segments.iter().take(Self::SLICES).map(|segment| IoSlice::new(segment.as_slice())).collect();
            // A C program may not ignore SIGPIPE.
            match stream.send_vectored_with_flags(&slices, libc::MSG_NOSIGNAL) {
                Ok(sent) => {
                    moved += sent as u64;
                    self.advance(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(first) = self.segments.front_mut() {
            if sent < first.range.len() {
                first.range.start += sent;
                return;
            }
            sent -= first.range.len();
            self.segments.pop_front();
        }
    }
}

/// Makes an authenticated TCP stream a control connection: non-blocking, undelayed, watched for lost hosts.
pub(super) fn control_stream(stream: impl Into<Socket>) -> io::Result<Socket> {
    let socket: Socket = stream.into();
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Ends another thread's poll.
#[derive(Debug)]
pub(super) struct Waker(Socket);

/// The polled end of a [`Waker`].
#[derive(Debug)]
pub(super) struct Woken(Socket);

/// A waker and its polled end.
pub(super) fn waker() -> io::Result<(Waker, Woken)> {
    let (waker, woken) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    Ok((Waker(waker.into()), Woken(woken.into())))
}

impl Waker {
    pub(super) fn wake(&self) {
        // A full buffer means that a wake-up is under way; a closed one that nobody polls any more.
        let _ = self.0.send_with_flags(&[1], libc::MSG_NOSIGNAL);
    }
}

impl Woken {
    /// Takes all wake-ups; call before looking at what they announce.
    pub(super) fn drain(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.0).read(&mut bytes), Ok(1..)) {}
    }
}

impl AsFd for Woken {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Socket, Socket) {
        let (left, right) = UnixStream::pair().unwrap();
        left.set_nonblocking(true).unwrap();
        right.set_nonblocking(true).unwrap();
        (left.into(), right.into())
    }

    #[test]
    fn frames_survive_any_cut() {
        let (near, far) = pair();
        let mut queue = SendQueue::default();
        let mut expected = Vec::new();
        for (index, length) in [0usize, 1, 77, 1 << 20].into_iter().enumerate() {
            let header = Header {
                kind: Kind::Outcome,
                rank: Rank(index as u32),
                context: u64::MAX,
                sequence: 7,
                length: length as u64,
            };
            let payload: Vec<u8> = (0..length).map(|byte| (byte * 31 + index) as u8).collect();
            queue.frame(header, payload.clone());
            expected.push(Received::Frame(header, payload));
        }
        let mut reader = FrameReader::default();
        let mut received = Vec::new();
        while received.len() < expected.len() {
            queue.flush(&near).unwrap();
            match reader.next(&far) {
                Received::Blocked => {}
                other => received.push(other),
            }
        }
        assert!(received == expected);
        assert_eq!(reader.next(&far), Received::Blocked);
        drop(near);
        assert_eq!(reader.next(&far), Received::Ended);
    }

    #[test]
    fn hostile_headers_are_refused_by_length_and_kind() {
        for (kind, length) in [(4u32, 1u64 << 40), (5, 1), (0, 1 << 20), (99, 0), (1, u64::MAX)] {
            let (near, far) = pair();
            let mut bytes = [0; Header::BYTES];
            bytes[..4].copy_from_slice(&kind.to_le_bytes());
            bytes[24..].copy_from_slice(&length.to_le_bytes());
            near.send(&bytes).unwrap();
            assert!(matches!(FrameReader::default().next(&far), Received::Malformed(_)), "{kind} {length}");
        }
    }

    #[test]
    fn wake_ups_are_seen_once() {
        let (waker, woken) = waker().unwrap();
        (0..10_000).for_each(|_| waker.wake());
        woken.drain();
        let mut byte = [0; 1];
        assert_eq!((&woken.0).read(&mut byte).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(woken);
        waker.wake();
    }
}
