//! The receiving half of a connection.
//!
//! In: bytes of the socket, whatever a peer sent. Out: payloads in registered memory, words, signals. Guarantee:
//! nothing is written outside a live region that peers may write; a frame that asks for it ends the connection.
//!
//! A small staging buffer takes headers and what follows them; the rest of a payload is received straight into
//! its region, and the same system call takes the next headers behind it.

use super::frame::{Frame, HEADER};
use crate::base::Rank;
use crate::memory::process::range;
use crate::transport::region::RegionTable;
use crate::transport::{Event, FrameFault};
use libc::iovec;
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Holds a burst of signals or a few small puts, so that one call takes them all; copying this much costs less than
/// the calls that it saves. Of a large put at most this much is copied.
const STAGING: usize = 16 << 10;
/// Bytes after which one poll turns to the next connection.
const BUDGET: usize = 1 << 20;
/// Longest range handed to the kernel at once.
const LARGEST_RANGE: u64 = 1 << 30;

/// State between two calls.
pub(super) struct Receiver {
    peer: Rank,
    staging: Box<[u8; STAGING]>,
    /// Staged bytes not yet consumed.
    start: usize,
    end: usize,
    payload: Option<Expected>,
    heard_goodbye: bool,
}

/// The part of a payload that is still to come. The region is looked up again for every piece, because it may
/// be deregistered in between.
#[derive(Clone, Copy)]
struct Expected {
    key: u64,
    offset: u64,
    bytes: u64,
}

/// What a call of [`Receiver::receive`] found at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// There may be more.
    More,
    /// The socket is drained.
    Drained,
    /// The peer's half of the connection has ended.
    End,
}

/// Why receiving cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    System(Errno),
    Fault(FrameFault),
}

impl Receiver {
    /// Expects a header of `peer`.
    pub(super) fn new(peer: Rank) -> Self {
        Self { peer, staging: Box::new([0; STAGING]), start: 0, end: 0, payload: None, heard_goodbye: false }
    }

    /// Whether the peer said that nothing more comes.
    pub(super) fn heard_goodbye(&self) -> bool {
        self.heard_goodbye
    }

    /// Receives until the socket is drained or the budget is spent. `until_end`: a short read does not mean
    /// drained, because the end of the stream may already wait behind it.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        until_end: bool,
        regions: &RegionTable,
        events: &mut Vec<Event>,
    ) -> Result<Received, Failure> {
        let mut spent = 0;
        while spent < BUDGET {
            let mut ranges = [range(0, 0); 2];
            let (count, asked) = self.scatter(regions, &mut ranges)?;
            let got = match take(socket, &mut ranges[..count]) {
                Ok(0) => return Ok(Received::End),
                Ok(got) => got,
                Err(Errno::EAGAIN) => return Ok(Received::Drained),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(Failure::System(errno)),
            };
            self.account(got as u64);
            self.consume(regions, events)?;
            spent += got;
            if got < asked && !until_end {
                return Ok(Received::Drained);
            }
        }
        Ok(Received::More)
    }

    /// Where the next bytes go; the number of ranges and their sum.
    fn scatter(&mut self, regions: &RegionTable, ranges: &mut [iovec; 2]) -> Result<(usize, usize), Failure> {
        self.staging.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let mut staged = range(0, (STAGING - self.end) as u64);
        staged.iov_base = self.staging[self.end..].as_mut_ptr().cast();
        let Some(Expected { key, offset, bytes }) = self.payload else {
            ranges[0] = staged;
            return Ok((1, staged.iov_len));
        };
        let target = regions.target(key, offset, bytes).map_err(Failure::Fault)?;
        let direct = bytes.min(LARGEST_RANGE);
        ranges[0] = range(0, direct);
        ranges[0].iov_base = target.cast();
        if direct < bytes {
            return Ok((1, direct as usize));
        }
        ranges[1] = staged;
        Ok((2, direct as usize + staged.iov_len))
    }

    /// Books received bytes: first those of the payload, then staged ones.
    fn account(&mut self, got: u64) {
        let direct = self.payload.map_or(0, |expected| expected.bytes.min(got));
        self.payload_arrived(direct);
        self.end += (got - direct) as usize;
    }

    fn payload_arrived(&mut self, bytes: u64) {
        if let Some(expected) = &mut self.payload {
            expected.offset += bytes;
            expected.bytes -= bytes;
            if expected.bytes == 0 {
                self.payload = None;
            }
        }
    }

    /// Handles what is staged.
    fn consume(&mut self, regions: &RegionTable, events: &mut Vec<Event>) -> Result<(), Failure> {
        loop {
            let staged = &self.staging[self.start..self.end];
            if let Some(Expected { key, offset, bytes }) = self.payload {
                let count = bytes.min(staged.len() as u64);
                if count == 0 {
                    return Ok(());
                }
                let target = regions.target(key, offset, count).map_err(Failure::Fault)?;
                // SAFETY: `target` is valid for `count` bytes inside a live region that peers may write, which by
                // the contract of `register` nothing in this process relies on; staging is no region.
                unsafe { target.copy_from_nonoverlapping(staged.as_ptr(), count as usize) };
                self.start += count as usize;
                self.payload_arrived(count);
            } else {
                let Some(header) = staged.first_chunk::<HEADER>() else { return Ok(()) };
                let frame = Frame::decode(header).map_err(Failure::Fault)?;
                self.start += HEADER;
                self.begin(frame, regions, events).map_err(Failure::Fault)?;
            }
        }
    }

    fn begin(&mut self, frame: Frame, regions: &RegionTable, events: &mut Vec<Event>) -> Result<(), FrameFault> {
        if self.heard_goodbye {
            return Err(FrameFault::AfterGoodbye);
        }
        match frame {
            Frame::Put { key, offset, length } => {
                regions.target(key, offset, length)?;
                self.payload = (length > 0).then_some(Expected { key, offset, bytes: length });
            }
            Frame::Word { key, offset, word } => {
                let target = regions.target(key, offset, 8)?.cast::<u64>();
                if !target.is_aligned() {
                    return Err(FrameFault::Misaligned { offset });
                }
                // SAFETY: eight aligned bytes inside a live region that peers may write.
                let target = unsafe { AtomicU64::from_ptr(target) };
                // Release pairs with the Acquire load of whoever waits for the word: puts before it are seen.
                target.store(word, Ordering::Release);
            }
            Frame::Signal(signal) => events.push(Event::Signalled { peer: self.peer, signal }),
            Frame::Goodbye => self.heard_goodbye = true,
        }
        Ok(())
    }
}

/// One scattering call that does not wait; the number of bytes received.
fn take(socket: BorrowedFd<'_>, ranges: &mut [iovec]) -> Result<usize, Errno> {
    // SAFETY: all zeros is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = ranges.as_mut_ptr();
    message.msg_iovlen = ranges.len() as _;
    // SAFETY: the ranges are the staging buffer and bytes inside a live region that peers may write.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    Errno::result(got).map(|got| got as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{RegionId, Rights, Signal};
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    struct Fixture {
        memory: Vec<u64>,
        regions: RegionTable,
        key: u64,
        receiver: Receiver,
        near: UnixStream,
        far: UnixStream,
        events: Vec<Event>,
    }

    fn fixture(bytes: usize) -> Fixture {
        let mut memory = vec![0u64; bytes / 8];
        let mut regions = RegionTable::default();
        let region = regions.insert(memory.as_mut_ptr().cast(), bytes as u64, Rights::REMOTE_WRITE).unwrap();
        let key = regions.export(region, None).unwrap().key;
        let (near, far) = UnixStream::pair().unwrap();
        Fixture { memory, regions, key, receiver: Receiver::new(Rank(7)), near, far, events: Vec::new() }
    }

    impl Fixture {
        fn receive(&mut self) -> Result<Received, Failure> {
            self.receiver.receive(self.near.as_fd(), false, &self.regions, &mut self.events)
        }
    }

    #[test]
    fn any_cut_of_the_stream_gives_the_same() {
        for piece in [1, 31, 32, 33, 4096, 5000, 100_000] {
            let mut fixture = fixture(80_000);
            let payload: Vec<u8> = (0..50_001u32).map(|index| (index % 241) as u8 + 1).collect();
            let key = fixture.key;
            let mut stream = Frame::Put { key, offset: 8, length: 50_001 }.encode().to_vec();
            stream.extend(&payload);
            stream.extend(Frame::Put { key, offset: 0, length: 0 }.encode());
            stream.extend(Frame::Signal(Signal { epoch: 3, index: 4 }).encode());
            stream.extend(Frame::Word { key, offset: 79_992, word: 0xabcd_ef01_2345_6789 }.encode());
            stream.extend(Frame::Put { key, offset: 60_000, length: 3 }.encode());
            stream.extend(b"end");
            stream.extend(Frame::Goodbye.encode());
            for part in stream.chunks(piece) {
                fixture.far.write_all(part).unwrap();
                assert_eq!(fixture.receive(), Ok(Received::Drained));
            }
            assert!(fixture.receiver.heard_goodbye());
            let Event::Signalled { peer: Rank(7), signal: Signal { epoch: 3, index: 4 } } = fixture.events[0] else {
                panic!("{:?}", fixture.events);
            };
            let mut expected = vec![0; 80_000];
            expected[8..50_009].copy_from_slice(&payload);
            expected[60_000..60_003].copy_from_slice(b"end");
            expected[79_992..].copy_from_slice(&0xabcd_ef01_2345_6789u64.to_ne_bytes());
            let found: Vec<u8> = fixture.memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert!(found == expected, "pieces of {piece}");
            drop(fixture.far);
            fixture.far = UnixStream::pair().unwrap().0;
            assert_eq!(fixture.receive(), Ok(Received::End));
        }
    }

    #[test]
    fn faults_are_named_and_nothing_is_written() {
        type Make = fn(u64) -> Vec<u8>;
        fn stream(frame: Frame) -> Vec<u8> {
            frame.encode().to_vec()
        }
        let range = |offset, bytes| FrameFault::Range { offset, bytes, limit: 64 };
        let cases: [(Make, FrameFault); 7] = [
            (|_| vec![9; HEADER], FrameFault::UnknownKind(9)),
            (|key| stream(Frame::Put { key, offset: 60, length: 5 }), range(60, 5)),
            (|key| stream(Frame::Put { key, offset: u64::MAX, length: 2 }), range(u64::MAX, 2)),
            (
                |key| stream(Frame::Put { key: key ^ 1 << 63, offset: 0, length: 1 }),
                FrameFault::UnknownRegion { slot: 0 },
            ),
            (|key| stream(Frame::Word { key, offset: 57, word: 1 }), range(57, 8)),
            (|key| stream(Frame::Word { key, offset: 12, word: u64::MAX }), FrameFault::Misaligned { offset: 12 }),
            (|_| [stream(Frame::Goodbye), stream(Frame::Goodbye)].concat(), FrameFault::AfterGoodbye),
        ];
        for (make, fault) in cases {
            let mut fixture = fixture(64);
            let mut bytes = make(fixture.key);
            bytes.extend([0xff; 64]);
            fixture.far.write_all(&bytes).unwrap();
            assert_eq!(fixture.receive(), Err(Failure::Fault(fault)));
            assert!(fixture.memory.iter().all(|&word| word == 0), "{fault}");
        }
    }

    #[test]
    fn a_region_revoked_in_the_middle_of_a_put_is_left_alone() {
        let mut fixture = fixture(16_384);
        let put = Frame::Put { key: fixture.key, offset: 0, length: 16_384 };
        fixture.far.write_all(&put.encode()).unwrap();
        fixture.far.write_all(&[1; 8192]).unwrap();
        assert_eq!(fixture.receive(), Ok(Received::Drained));
        fixture.regions.remove(RegionId(0)).unwrap();
        fixture.far.write_all(&[1; 8192]).unwrap();
        assert_eq!(fixture.receive(), Err(Failure::Fault(FrameFault::UnknownRegion { slot: 0 })));
        assert_eq!(fixture.memory[1023], 0x0101_0101_0101_0101);
        assert!(fixture.memory[1024..].iter().all(|&word| word == 0));
    }
}
