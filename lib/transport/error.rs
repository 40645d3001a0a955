//! What can go wrong on a link. In: nothing. Out: [`TransportError`]. Guarantee: every message names the peer or
//! region and what to do; errors can be cloned, because a lost connection reports its cause more than once.

use super::RegionId;
use crate::base::Rank;
use crate::memory::MemoryError;
use crate::topology::InterfaceError;
use nix::errno::Errno;
use std::time::Duration;
use thiserror::Error;

/// A call that failed or a connection that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TransportError {
    /// A region that this link does not have.
    #[error("region {} is not registered; register it first, and do not use it after deregister", region.0)]
    UnknownRegion {
        /// The region.
        region: RegionId,
    },
    /// A region registered without the right that a call needs.
    #[error("region {} was registered without the right {right}; register it with it", region.0)]
    MissingRight {
        /// The region.
        region: RegionId,
        /// The right.
        right: &'static str,
    },
    /// A slice outside its local region.
    #[error("bytes {offset}..+{bytes} lie outside local region {} of {limit} bytes", region.0)]
    LocalRange {
        /// The region.
        region: RegionId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Size of the region.
        limit: u64,
    },
    /// A place outside a peer's region.
    #[error("bytes {offset}..+{bytes} lie outside the region of {limit} bytes that rank {peer} exported")]
    RemoteRange {
        /// The peer.
        peer: Rank,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Size of the region.
        limit: u64,
    },
    /// A word at a place that is not aligned.
    #[error("a word cannot be put at byte {offset} of a region of rank {peer}; use a multiple of 8")]
    MisalignedWord {
        /// The peer.
        peer: Rank,
        /// The place.
        offset: u64,
    },
    /// A signal index that does not fit 24 bits.
    #[error("signal index {index} does not fit 24 bits; use an index below 16777216")]
    SignalIndex {
        /// The index.
        index: u32,
    },
    /// A region that queued puts still read.
    #[error("region {} is the source of {puts} queued puts; poll until they complete or abort their peer", region.0)]
    RegionInUse {
        /// The region.
        region: RegionId,
        /// Number of puts.
        puts: u32,
    },
    /// A region that a peer may still be writing.
    #[error(
        "region {} may still be written by rank {peer}, whose process stopped in the middle of a copy; end that process",
        region.0
    )]
    StillWritten {
        /// The region.
        region: RegionId,
        /// The peer.
        peer: Rank,
    },
    /// A target that peers cannot map.
    #[error(
        "{bytes} bytes at {address:#x} are in no published shared segment, so that peers cannot put into them; use a shared buffer"
    )]
    NotShared {
        /// First address.
        address: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// A peer that was never connected.
    #[error("rank {peer} is not connected; connect to it first")]
    NotConnected {
        /// The peer.
        peer: Rank,
    },
    /// A peer's address that cannot be used.
    #[error("the address of rank {peer} cannot be used: {what}; exchange addresses of the same link among all ranks")]
    Address {
        /// The peer.
        peer: Rank,
        /// What is wrong.
        what: String,
    },
    /// The network interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The link could not be set up.
    #[error("cannot set up the {link} link: {operation} failed for {subject}")]
    Setup {
        /// Which link.
        link: &'static str,
        /// The system call.
        operation: &'static str,
        /// What it was about.
        subject: String,
        /// The system's error.
        #[source]
        source: Errno,
    },
    /// Peers that did not connect in time.
    #[error("{} did not connect within {limit:?}; {last}", ranks(missing))]
    ConnectDeadline {
        /// Those missing.
        missing: Vec<Rank>,
        /// How long was waited.
        limit: Duration,
        /// What was seen of them last.
        last: String,
    },
    /// Peers that did not say goodbye in time.
    #[error("{} did not close within {limit:?}; what was posted to them may be lost", ranks(peers))]
    CloseDeadline {
        /// Those missing.
        peers: Vec<Rank>,
        /// How long was waited.
        limit: Duration,
    },
    /// A connection that the system ended.
    #[error("connection to rank {peer} lost: {operation} failed; look for the end of that process or for the network")]
    Socket {
        /// The peer.
        peer: Rank,
        /// The system call.
        operation: &'static str,
        /// Its error.
        #[source]
        source: Errno,
    },
    /// A connection that ended without a goodbye.
    #[error("connection to rank {peer} lost: it ended without a goodbye; look for the end of that process")]
    EndOfStream {
        /// The peer.
        peer: Rank,
    },
    /// A peer that has closed its link.
    #[error("rank {peer} has closed its link; it takes no more puts or signals")]
    PeerLeft {
        /// The peer.
        peer: Rank,
    },
    /// A connection that this rank closed.
    #[error("the link to rank {peer} was closed by this rank")]
    Closed {
        /// The peer.
        peer: Rank,
    },
    /// A connection that this rank aborted.
    #[error("the connection to rank {peer} was aborted by this rank")]
    Aborted {
        /// The peer.
        peer: Rank,
    },
    /// A peer that broke the protocol.
    #[error("connection to rank {peer} ended because of what it sent: {fault}")]
    BadFrame {
        /// The peer.
        peer: Rank,
        /// What it sent.
        fault: FrameFault,
    },
    /// A put that the owner of the region no longer takes.
    #[error("connection to rank {peer} ended because of what was put there: {fault}")]
    RefusedByPeer {
        /// The peer.
        peer: Rank,
        /// What was put.
        fault: FrameFault,
    },
    /// A fault injected by a test.
    #[error("connection to rank {peer} ended by an injected fault at frame {frame}")]
    Injected {
        /// The peer.
        peer: Rank,
        /// Number of the frame.
        frame: u64,
    },
    /// Memory that could not be reached.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// What is wrong with something a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameFault {
    /// A frame of unknown kind.
    #[error("frame kind {0} is unknown; run one version of crossmesh everywhere")]
    UnknownKind(u8),
    /// A region that is not, or no longer, registered.
    #[error("region slot {slot} is not registered or was revoked")]
    UnknownRegion {
        /// Its slot; the key is not shown.
        slot: u32,
    },
    /// A region that peers may not write.
    #[error("region slot {slot} may not be written by peers")]
    NotWritable {
        /// Its slot.
        slot: u32,
    },
    /// Bytes outside their region.
    #[error("bytes {offset}..+{bytes} lie outside a region of {limit} bytes")]
    Range {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Size of the region.
        limit: u64,
    },
    /// A word at a place that is not aligned.
    #[error("a word at byte {offset} is not aligned in memory")]
    Misaligned {
        /// The place.
        offset: u64,
    },
    /// An impossible signal.
    #[error("signal {0:#x} does not fit 32 bits")]
    Signal(u64),
    /// A frame after the peer's goodbye.
    #[error("a frame after its goodbye")]
    AfterGoodbye,
}

fn ranks(ranks: &[Rank]) -> String {
    let list = ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list}") } else { format!("ranks {list}") }
}
