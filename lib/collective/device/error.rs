//! What can go wrong with a collective on devices. In: nothing. Out: [`CollectiveError`]. Guarantee: a call that ranks make
//! differently is named with both ranks and both calls; every message says what to do.

use crate::base::Rank;
use crate::collective::{ChooseError, Kind, OperationError, TableError};
use crate::execute::ExecuteError;
use crate::memory::MemoryError;
use crate::memory::device::DeviceError;
use thiserror::Error;

/// A collective on devices that failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// Ranks make different calls.
    #[error(
        "call {sequence} of the channel differs between ranks: rank {rank} makes {mine}, rank {peer} makes {theirs} \
         ({field}: {my_value} and {their_value}); make the same calls in the same order on all ranks, then re-form the \
         channel"
    )]
    Mismatch {
        /// Number of the call.
        sequence: u64,
        /// The rank that noticed.
        rank: Rank,
        /// Its call.
        mine: String,
        /// The other rank.
        peer: Rank,
        /// Its call.
        theirs: String,
        /// First field that differs.
        field: &'static str,
        /// Value of `rank`.
        my_value: String,
        /// Value of `peer`.
        their_value: String,
    },
    /// A peer did not come in time.
    #[error(
        "rank {rank} waited longer than {seconds:.1} s for {phase} of rank {peer} in call {sequence} of the channel \
         ({mine}, block {block}); {theirs}; look whether rank {peer} makes the call, or raise CROSSMESH_TIMEOUT; then \
         re-form the channel"
    )]
    TimedOut {
        /// The rank that waited.
        rank: Rank,
        /// For whom.
        peer: Rank,
        /// For what.
        phase: &'static str,
        /// Number of the call.
        sequence: u64,
        /// Its call.
        mine: String,
        /// Block that waited.
        block: u32,
        /// What the peer did last.
        theirs: String,
        /// Limit.
        seconds: f64,
    },
    /// The host told the kernel to give up.
    #[error(
        "call {sequence} of the channel ({mine}) was given up on rank {rank}, since the job was aborted; re-form the channel"
    )]
    Aborted {
        /// The rank.
        rank: Rank,
        /// Number of the call.
        sequence: u64,
        /// The call.
        mine: String,
    },
    /// Another rank gave up first.
    #[error(
        "rank {peer} gave up a call of the channel, so rank {rank} ended call {sequence} ({mine}): {theirs}; the error \
         of rank {peer} says why; re-form the channel"
    )]
    Poisoned {
        /// This rank.
        rank: Rank,
        /// The rank that gave up.
        peer: Rank,
        /// Number of the call.
        sequence: u64,
        /// This rank's call.
        mine: String,
        /// The other rank's last call.
        theirs: String,
    },
    /// A call on another stream than those before.
    #[error(
        "a channel serves one stream, and this is not the one of its first call; give each stream a channel of its own, \
         or re-form this one"
    )]
    OtherStream,
    /// An operand that is too small.
    #[error("{kind} needs {needed} bytes of {operand} from offset {offset} on, the buffer has {bytes}")]
    TooSmall {
        /// The call.
        kind: Kind,
        /// Which operand.
        operand: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Where it begins.
        offset: u64,
        /// Bytes of the buffer.
        bytes: u64,
    },
    /// An operand that is not on the channel's device.
    #[error("{operand} of {kind} is not in the memory of {device}; channels work on their own device alone")]
    OtherMemory {
        /// The call.
        kind: Kind,
        /// Which operand.
        operand: &'static str,
        /// The channel's device.
        device: String,
    },
    /// An address that does not lie at a multiple of the element, or a length that is none.
    #[error("{operand} of {kind} is at address {address:#x}, which is not a multiple of {multiple} bytes; align it")]
    Misaligned {
        /// The call.
        kind: Kind,
        /// Which operand.
        operand: &'static str,
        /// Its address.
        address: u64,
        /// What it must be a multiple of.
        multiple: u64,
    },
    /// Counts beyond 64 bits.
    #[error("{kind} of {count} elements has more bytes than 64 bits can count")]
    TooMany {
        /// The call.
        kind: Kind,
        /// Elements.
        count: u64,
    },
    /// A root that is no rank.
    #[error("broadcast from rank {root}, but there are {ranks} ranks")]
    NoRoot {
        /// The root.
        root: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// More ranks than one channel takes, or on several hosts without a common domain.
    #[error(
        "a channel takes 1 to {most} ranks of one NVLink domain, not {ranks}: {why}; split the communicator by domain"
    )]
    TooFar {
        /// Number of ranks.
        ranks: usize,
        /// Most ranks.
        most: usize,
        /// What is in the way.
        why: String,
    },
    /// GPUs that may not reach into each other's memory.
    #[error(
        "{who} has CROSSMESH_PEER_ACCESS=off, but the GPUs of a channel need access to each other's memory: none of its \
         bytes go through memory of the hosts; unset it on all ranks, or set it to tested (where a link fails its test, \
         hosts order the calls) or trusted (no test)"
    )]
    NoPeerAccess {
        /// Who forbids it: the first such rank, or this process.
        who: String,
    },
    /// Some of the channels of a process alone.
    #[error(
        "{given} of the {ranks} channels of this process were given; they are registered by register_all and formed anew by \
         reform_all, with all of them, and a buffer for each"
    )]
    Together {
        /// Channels given, or buffers if those are fewer.
        given: usize,
        /// Channels that there are.
        ranks: u32,
    },
    /// A call that these ranks have no way for.
    #[error("{kind} cannot run on this channel: {why}")]
    NotHere {
        /// The call.
        kind: Kind,
        /// Why.
        why: &'static str,
    },
    /// The fused call has no kernel for its type.
    #[error("the fused all-reduce and RMSNorm takes F16 and BF16 and rows of a multiple of 4 elements, not {what}")]
    NoFusedKernel {
        /// What was asked for.
        what: String,
    },
    /// An algorithm that cannot run here.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// An element type that is not reduced.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// What ranks tell each other.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}
