//! What can go wrong with memory. In: nothing. Out: [`MemoryError`]. Guarantee: every message names the
//! memory concerned and what to do; system errors are kept as the source.

use super::SegmentId;
use super::device::DeviceError;
use crate::base::env::EnvError;
use nix::errno::Errno;
use std::time::Duration;
use thiserror::Error;

/// Memory that cannot be made, reached or used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// A GPU or its memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An environment variable that cannot be used.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A segment or private buffer could not be made.
    #[error(
        "cannot make {bytes} bytes of memory for {name:?}: {operation} failed; check free memory, the cgroup's limit and ulimit -v, -n"
    )]
    Create {
        /// Name given to the memory.
        name: String,
        /// Its bytes.
        bytes: u64,
        /// The system call.
        operation: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
    /// A box whose positions do not fit 64 bits.
    #[error(
        "a box of extents {extents:?} and {element}-byte elements reaches beyond 64-bit positions; use a smaller view"
    )]
    CopyTooLarge {
        /// Elements per dimension.
        extents: Vec<u64>,
        /// Bytes of an element.
        element: u64,
    },
    /// A range outside its memory.
    #[error("bytes {offset}..+{bytes} lie outside memory of {limit} bytes; use a range inside it")]
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Size of the memory.
        limit: u64,
    },
    /// Words at an address that no word can have.
    #[error("offset {offset} is not a multiple of {alignment}; align it")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// Memory of a GPU, which the host cannot read or write.
    #[error("the buffer of {bytes} bytes is on device {device}; copy it to the host to read or write it there")]
    OnDevice {
        /// Size of the buffer.
        bytes: u64,
        /// The device.
        device: u32,
    },
    /// Memory that an active transfer uses.
    #[error(
        "the buffer of {bytes} bytes is in use by an active transfer that {transfer} it; wait for the transfer before {wanted} it"
    )]
    InTransfer {
        /// Size of the buffer.
        bytes: u64,
        /// `reads` or `writes`.
        transfer: &'static str,
        /// `reading` or `writing`.
        wanted: &'static str,
    },
    /// Memory that a guard of the user borrows.
    #[error(
        "the buffer of {bytes} bytes is borrowed by a guard that {guard} it; drop the guard before {wanted} the buffer"
    )]
    Borrowed {
        /// Size of the buffer.
        bytes: u64,
        /// `reads` or `writes`.
        guard: &'static str,
        /// `reading` or `writing`.
        wanted: &'static str,
    },
    /// The private directory of the segment server could not be made.
    #[error("cannot make a private socket directory in any of {tried}; make one of them writable or set TMPDIR")]
    Directory {
        /// Places that were tried.
        tried: String,
        /// The last error.
        #[source]
        source: Errno,
    },
    /// The segment server could not be started.
    #[error("cannot serve memory segments at {address}: {operation} failed")]
    Serve {
        /// Socket path.
        address: String,
        /// What failed.
        operation: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
    /// A peer's segment server could not be reached.
    #[error(
        "cannot ask the peer at {address} for {subject}: {operation} failed; the peer has ended or is on another host"
    )]
    Peer {
        /// Socket path of the peer.
        address: String,
        /// What it was asked for.
        subject: String,
        /// The system call.
        operation: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
    /// A peer's segment server ended the connection.
    #[error("the peer at {address} ended the connection when asked for {subject}; it has ended or refuses this user")]
    PeerClosed {
        /// Socket path of the peer.
        address: String,
        /// What it was asked for.
        subject: String,
    },
    /// A peer that runs as another user.
    #[error("the peer at {address} runs as user {found}, this process as user {own}; run all ranks as one user")]
    OtherUser {
        /// Socket path of the peer.
        address: String,
        /// Its user id.
        found: u32,
        /// This process's user id.
        own: u32,
    },
    /// A segment that the peer does not serve.
    #[error("the peer at {address} serves no segment {segment}; it was withdrawn or freed")]
    MissingSegment {
        /// Socket path of the peer.
        address: String,
        /// The segment.
        segment: SegmentId,
    },
    /// An answer that breaks the protocol.
    #[error("the peer at {address} answered wrongly about {subject}: {what}; run one version of crossmesh everywhere")]
    BadAnswer {
        /// Socket path of the peer.
        address: String,
        /// What it was asked for.
        subject: String,
        /// What was wrong.
        what: &'static str,
    },
    /// No answer in time.
    #[error("the peer at {address} did not answer about {subject} within {limit:?}; check that its process still runs")]
    Deadline {
        /// Socket path of the peer.
        address: String,
        /// What it was asked for.
        subject: String,
        /// How long was waited.
        limit: Duration,
    },
    /// A peer's segment that could not be mapped.
    #[error("cannot map segment {segment} of {bytes} bytes: {operation} failed; check ulimit -v and free memory")]
    Map {
        /// The segment.
        segment: SegmentId,
        /// Its bytes.
        bytes: u64,
        /// The system call.
        operation: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
    /// A peer's segment that could shrink under this process.
    #[error("segment {segment} is not sealed against shrinking; it was not made by crossmesh")]
    Unsealed {
        /// The segment.
        segment: SegmentId,
    },
    /// Another process's memory that could not be read or written.
    #[error(
        "cannot {operation} {bytes} bytes at {address:#x} of process {pid}: {errno}; the process has ended, the range is not mapped, or the system forbids it (ptrace_scope, container without SYS_PTRACE): set CROSSMESH_MAPPED=shared"
    )]
    Process {
        /// `read` or `write`.
        operation: &'static str,
        /// The process.
        pid: i32,
        /// First address that failed.
        address: u64,
        /// Bytes still to move.
        bytes: u64,
        /// The system's reason.
        errno: Errno,
    },
    /// Two lists of ranges of different sums.
    #[error("the local ranges hold {local} bytes and the ranges of process {pid} {remote}; they must be equal")]
    Unequal {
        /// The process.
        pid: i32,
        /// Bytes of the local list.
        local: u64,
        /// Bytes of the remote list.
        remote: u64,
    },
}

/// Checks `offset..offset + bytes` against `limit` without overflow.
pub(crate) fn check_range(offset: u64, bytes: u64, limit: u64) -> Result<(), MemoryError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= limit => Ok(()),
        _ => Err(MemoryError::Range { offset, bytes, limit }),
    }
}

/// The system's number of an error of the standard library.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number),
        None if matches!(error.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock) => {
            Errno::ETIMEDOUT
        }
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => Errno::ECONNRESET,
        None => Errno::EINVAL,
    }
}
