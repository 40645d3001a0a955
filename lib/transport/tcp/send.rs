//! The sending half of a connection.
//!
//! In: frames, in posting order. Out: bytes on the socket, headers and payloads gathered in one system call,
//! payloads straight from registered memory. Guarantee: the queue never grows beyond its capacity and never
//! allocates; a ticket completes when all bytes of its put are with the kernel.

use super::frame::{Frame, HEADER};
use crate::memory::process::range;
use crate::transport::region::RegionTable;
use crate::transport::{Event, LocalSlice, Posted, Ticket};
use libc::iovec;
use nix::errno::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Frames gathered in one call; each takes one or two ranges.
const GATHERED: usize = 32;
/// Bytes after which one poll turns to the next connection.
const BUDGET: usize = 1 << 20;

/// Frames that wait for the socket.
pub(super) struct SendQueue {
    frames: VecDeque<Queued>,
    capacity: usize,
    /// Bytes of the first frame that are with the kernel.
    sent: u64,
    goodbye: Goodbye,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Goodbye {
    NotSaid,
    Queued,
    Sent,
}

struct Queued {
    header: [u8; HEADER],
    payload: Option<Payload>,
}

struct Payload {
    slice: LocalSlice,
    ticket: Ticket,
}

impl Queued {
    fn bytes(&self) -> u64 {
        HEADER as u64 + self.payload.as_ref().map_or(0, |payload| payload.slice.bytes)
    }
}

/// What a call of [`SendQueue::send`] left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// The kernel takes more.
    More,
    /// The kernel's buffer is full.
    Full,
}

impl SendQueue {
    /// A queue of `capacity` frames.
    pub(super) fn new(capacity: usize) -> Self {
        // One more, so that the goodbye always fits.
        let frames = VecDeque::with_capacity(capacity + 1);
        Self { frames, capacity, sent: 0, goodbye: Goodbye::NotSaid }
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the goodbye is with the kernel.
    pub(super) fn goodbye_sent(&self) -> bool {
        self.goodbye == Goodbye::Sent
    }

    /// Whether nothing may be posted any more.
    pub(super) fn goodbye_said(&self) -> bool {
        self.goodbye != Goodbye::NotSaid
    }

    /// Queues a frame without payload.
    pub(super) fn post(&mut self, frame: Frame) -> Posted {
        self.push(Queued { header: frame.encode(), payload: None })
    }

    /// Queues a put of `slice`, which the caller has checked.
    pub(super) fn post_put(
        &mut self,
        frame: Frame,
        slice: LocalSlice,
        ticket: Ticket,
        regions: &mut RegionTable,
    ) -> Posted {
        let posted = self.push(Queued { header: frame.encode(), payload: Some(Payload { slice, ticket }) });
        if posted == Posted::Queued {
            regions.put_queued(slice.region);
        }
        posted
    }

    fn push(&mut self, frame: Queued) -> Posted {
        if self.frames.len() >= self.capacity {
            return Posted::Busy;
        }
        self.frames.push_back(frame);
        Posted::Queued
    }

    /// Queues the last frame, behind all others.
    pub(super) fn say_goodbye(&mut self) {
        if self.goodbye == Goodbye::NotSaid {
            self.frames.push_back(Queued { header: Frame::Goodbye.encode(), payload: None });
            self.goodbye = Goodbye::Queued;
        }
    }

    /// Forgets everything that waits.
    pub(super) fn clear(&mut self, regions: &mut RegionTable) {
        for frame in self.frames.drain(..) {
            if let Some(payload) = frame.payload {
                regions.put_over(payload.slice.region);
            }
        }
        self.sent = 0;
    }

    /// Hands bytes to the kernel until it takes no more, nothing waits, or the budget is spent.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        regions: &mut RegionTable,
        events: &mut Vec<Event>,
    ) -> Result<Sent, Errno> {
        let mut spent = 0;
        while !self.frames.is_empty() && spent < BUDGET {
            let mut ranges = [range(0, 0); 2 * GATHERED];
            let (count, total) = self.gather(regions, &mut ranges);
            let taken = match transmit(socket, &mut ranges[..count]) {
                Ok(taken) => taken,
                Err(Errno::EAGAIN) => return Ok(Sent::Full),
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(errno),
            };
            self.advance(taken as u64, regions, events);
            spent += taken;
            if (taken as u64) < total {
                return Ok(Sent::Full);
            }
        }
        Ok(Sent::More)
    }

    /// Ranges of the frames at the head, from the first byte that is not sent; their number and sum.
    fn gather(&self, regions: &RegionTable, ranges: &mut [iovec; 2 * GATHERED]) -> (usize, u64) {
        let (mut count, mut total) = (0, 0);
        let mut skip = self.sent;
        let mut add = |start: *const u8, bytes: u64| {
            let skipped = skip.min(bytes);
            skip -= skipped;
            if skipped < bytes {
                ranges[count] = range(0, bytes - skipped);
                ranges[count].iov_base = start.wrapping_add(skipped as usize).cast_mut().cast();
                count += 1;
                total += bytes - skipped;
            }
        };
        for frame in self.frames.iter().take(GATHERED) {
            add(frame.header.as_ptr(), HEADER as u64);
            if let Some(payload) = &frame.payload {
                // Checked when it was posted, and a region with queued puts cannot be deregistered.
                let Ok(start) = regions.source(payload.slice) else { break };
                add(start, payload.slice.bytes);
            }
        }
        (count, total)
    }

    /// Takes `bytes` sent bytes off the queue.
    fn advance(&mut self, bytes: u64, regions: &mut RegionTable, events: &mut Vec<Event>) {
        self.sent += bytes;
        while let Some(frame) = self.frames.front() {
            let size = frame.bytes();
            if self.sent < size {
                return;
            }
            self.sent -= size;
            if let Some(payload) = &frame.payload {
                regions.put_over(payload.slice.region);
                if payload.ticket != Ticket::SILENT {
                    events.push(Event::Completed(payload.ticket));
                }
            }
            self.frames.pop_front();
            if self.frames.is_empty() && self.goodbye == Goodbye::Queued {
                self.goodbye = Goodbye::Sent;
            }
        }
    }
}

/// One gathering call that neither waits nor raises SIGPIPE; the number of bytes taken.
fn transmit(socket: BorrowedFd<'_>, ranges: &mut [iovec]) -> Result<usize, Errno> {
    // SAFETY: all zeros is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = ranges.as_mut_ptr();
    message.msg_iovlen = ranges.len() as _;
    // SAFETY: every range is a header in the queue or bytes inside a registered region, which stays mapped while
    // puts of it are queued; the kernel only reads them.
    let taken = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    Errno::result(taken).map(|taken| taken as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Rights, Signal};
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_is_posted_arrives_in_order_through_a_full_socket() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut source: Vec<u8> = (0..3_000_000u32).map(|index| (index % 249) as u8).collect();
        let mut regions = RegionTable::default();
        let region = regions.insert(source.as_mut_ptr(), source.len() as u64, Rights::LOCAL_READ).unwrap();
        let mut queue = SendQueue::new(3);
        let slice = LocalSlice { region, offset: 5, bytes: 2_999_990 };
        let put = Frame::Put { key: 1, offset: 2, length: slice.bytes };
        let empty = LocalSlice { region, offset: 0, bytes: 0 };
        let none = Frame::Put { key: 1, offset: 0, length: 0 };
        let signal = Frame::Signal(Signal { epoch: 1, index: 2 });
        assert_eq!(queue.post_put(none, empty, Ticket(8), &mut regions), Posted::Queued);
        assert_eq!(queue.post_put(put, slice, Ticket(9), &mut regions), Posted::Queued);
        assert_eq!(queue.post(signal), Posted::Queued);
        assert_eq!(queue.post(signal), Posted::Busy);
        queue.say_goodbye();
        let mut expected = none.encode().to_vec();
        expected.extend(put.encode());
        expected.extend(&source[5..2_999_995]);
        expected.extend(signal.encode());
        expected.extend(Frame::Goodbye.encode());

        let (mut events, mut received, mut piece) = (Vec::new(), Vec::<u8>::new(), vec![0; 70_001]);
        while !queue.is_empty() {
            assert!(regions.remove(region).is_err() && !queue.goodbye_sent());
            queue.send(near.as_fd(), &mut regions, &mut events).unwrap();
            if let Some(Event::Completed(ticket)) = events.last() {
                assert!(*ticket == Ticket(8) || received.len() + 1_000_000 > source.len(), "too early");
            }
            let count = far.read(&mut piece).unwrap();
            received.extend(&piece[..count]);
        }
        while received.len() < expected.len() {
            let count = far.read(&mut piece).unwrap();
            received.extend(&piece[..count]);
        }
        assert!(received == expected && queue.goodbye_sent());
        assert!(matches!(events[..], [Event::Completed(Ticket(8)), Event::Completed(Ticket(9))]));
        assert!(regions.remove(region).is_ok());
    }

    #[test]
    fn a_closed_socket_is_an_error_without_a_signal() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let mut queue = SendQueue::new(1);
        assert_eq!(queue.post(Frame::Goodbye), Posted::Queued);
        assert_eq!(queue.send(near.as_fd(), &mut RegionTable::default(), &mut Vec::new()), Err(Errno::EPIPE));
    }
}
