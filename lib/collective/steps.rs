//! A call as launches. In: a call, how it runs, the layout of the channel's memory. Out: [`Steps`]: the kernel, what it
//! does, how many elements a launch takes. Guarantee: pure, the same on every rank; what a launch needs of slots and
//! staging fits.

use super::{Algorithm, Call, Kind};
use crate::memory::device::collective::CollectiveKernel as Kernel;
use crate::memory::device::collective::params::{
    BUNDLE_PIECES, ChannelLayout, Element, PART_EARLY, PART_ENTER, PART_FOLLOWED, PART_LEAVE, PART_STAGE,
};

/// Bytes that a thread of a pull has under way: four pieces of 16 (`UNROLL` in pull.cuh).
const UNDER_WAY: u64 = 64;
/// Pieces that staging is cut into.
const PIECE: u64 = 16;
/// Bytes of a rank's part that a launch can count: pieces and words have 32-bit numbers.
const MOST: u64 = 8 << 30;

/// Launches of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Kernel; `None` for the fused one.
    pub kernel: Option<Kernel>,
    /// Parts that it does.
    pub parts: u32,
    /// Elements of a launch, at most.
    pub elements: u64,
}

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ground {
    /// Memory of the channel.
    pub layout: ChannelLayout,
    /// Number of ranks.
    pub ranks: u32,
    /// Threads of a launch, all blocks together.
    pub threads: u64,
    /// Whether peers reach the operands.
    pub registered: bool,
    /// Whether input and output are the same.
    pub in_place: bool,
    /// Whether a launch may begin before what stands before it has ended.
    pub early: bool,
    /// Whether two launches are resident in the channel's part of the device.
    pub few: bool,
}

/// Launches of `call` by `algorithm`.
pub fn steps(call: &Call, element: Element, algorithm: Algorithm, ground: &Ground) -> Steps {
    let ordered = algorithm == Algorithm::HostOrdered;
    let parts = if ordered { 0 } else { parts(algorithm, ground) };
    let bytes = most_bytes(call.kind, element, algorithm, ground).min(MOST);
    let elements = (bytes / PIECE * PIECE / call.dtype.bytes().max(1)).max(1);
    Steps { kernel: kernel(call.kind, algorithm), parts, elements }
}

fn kernel(kind: Kind, algorithm: Algorithm) -> Option<Kernel> {
    let push = matches!(algorithm, Algorithm::OneShotPush | Algorithm::TwoShotPush);
    match (kind, algorithm) {
        (Kind::AllReduce, Algorithm::OneShotPush) => Some(Kernel::ReducePush),
        (Kind::AllReduce, Algorithm::LinePush) => Some(Kernel::ReducePushLines),
        (Kind::AllReduce, Algorithm::TwoShotPush) => Some(Kernel::ReduceTwoPush),
        (Kind::AllReduce, Algorithm::TwoShot) => Some(Kernel::ReduceTwoShot),
        (Kind::AllReduce, Algorithm::ShardPush) => Some(Kernel::ReducePushShards),
        (Kind::AllReduce, Algorithm::Ring) => Some(Kernel::ReduceRing),
        (Kind::AllReduce, _) => Some(Kernel::ReducePull),
        (Kind::ReduceScatter, _) if push => Some(Kernel::ScatterPush),
        (Kind::ReduceScatter, _) => Some(Kernel::ScatterPull),
        (Kind::AllGather, _) if push => Some(Kernel::GatherPush),
        (Kind::AllGather, _) => Some(Kernel::GatherPull),
        (Kind::Broadcast, _) if push => Some(Kernel::BroadcastPush),
        (Kind::Broadcast, _) => Some(Kernel::BroadcastPull),
        (Kind::AllReduceNorm, _) => None,
    }
}

fn parts(algorithm: Algorithm, ground: &Ground) -> u32 {
    let early = match (ground.early, ground.few) {
        (false, _) => 0,
        (true, false) => PART_EARLY,
        (true, true) => PART_EARLY | PART_FOLLOWED,
    };
    let reads = match algorithm {
        Algorithm::OneShotPull | Algorithm::TwoShot if ground.registered => PART_ENTER | PART_LEAVE,
        Algorithm::OneShotPull | Algorithm::TwoShot => PART_STAGE | PART_ENTER,
        Algorithm::ShardPush => PART_LEAVE,
        _ => 0,
    };
    early | reads
}

/// Bytes of a rank's part that one launch takes.
fn most_bytes(kind: Kind, element: Element, algorithm: Algorithm, ground: &Ground) -> u64 {
    let ranks = u64::from(ground.ranks.max(1));
    let (slot, staging) = (ground.layout.slot_words * 8, ground.layout.staging_bytes);
    match algorithm {
        Algorithm::OneShotPush => slot,
        Algorithm::LinePush => ground.layout.bundles() * BUNDLE_PIECES * PIECE,
        // A shard goes out and comes back, and is at least a word.
        Algorithm::TwoShotPush => (slot / 2).saturating_mul(ranks),
        Algorithm::Ring => {
            let words = (ranks.max(2) - 1) * (1 + element.partial_bytes() / element.bytes());
            (ground.layout.slot_words / words * 8).saturating_mul(ranks)
        }
        Algorithm::OneShotPull if ground.registered && ground.in_place && kind == Kind::AllReduce => {
            // Elements of a byte take twice the registers.
            ground.threads * UNDER_WAY / if element.bytes() == 1 { 2 } else { 1 }
        }
        Algorithm::OneShotPull | Algorithm::TwoShot | Algorithm::Multicast if ground.registered => u64::MAX,
        // Each owner has the shards of its peers.
        Algorithm::ShardPush => (staging / (ranks - 1).max(1) / PIECE * PIECE).saturating_mul(ranks),
        // Inputs and results lie one after the other.
        Algorithm::TwoShot => staging / 2 - (staging / 2) % (ranks * PIECE),
        _ if kind == Kind::ReduceScatter => staging / ranks,
        _ => staging,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::ReduceOperation;
    use crate::layout::Dtype;
    use crate::memory::device::collective::params::{BUNDLE_BYTES, MAX_RANKS};

    fn ground(ranks: u32, registered: bool) -> Ground {
        let layout = ChannelLayout::new(ranks, 1 << 16, 100, 1 << 20);
        Ground { layout, ranks, threads: 8192, registered, in_place: false, early: true, few: false }
    }

    #[test]
    fn what_a_launch_needs_fits() {
        for ranks in [1u32, 2, 3, 7, 8, 72] {
            let ground = ground(ranks, false);
            let (words, staging) = (ground.layout.slot_words, ground.layout.staging_bytes);
            for (dtype, element) in [(Dtype::U8, Element::U8), (Dtype::BF16, Element::Bf16), (Dtype::F64, Element::F64)]
            {
                for kind in Kind::ALL {
                    for algorithm in Algorithm::ALL {
                        let call = Call { kind, count: 1, dtype, operation: ReduceOperation::Sum, root: 0 };
                        let steps = steps(&call, element, algorithm, &ground);
                        let (ranks, bytes) = (u64::from(ranks), steps.elements * dtype.bytes());
                        let shard = bytes.div_ceil(8).div_ceil(ranks);
                        let fits = match algorithm {
                            Algorithm::OneShotPush => bytes.div_ceil(8) <= words,
                            Algorithm::LinePush => bytes.div_ceil(16 * BUNDLE_PIECES) <= ground.layout.bundles(),
                            Algorithm::TwoShotPush => 2 * shard <= words,
                            Algorithm::Ring => {
                                let partials = element.partial_bytes() / element.bytes();
                                (ranks - 1) * (1 + partials) * shard <= words
                            }
                            Algorithm::ShardPush => bytes.div_ceil(16).div_ceil(ranks) * 16 * (ranks - 1) <= staging,
                            Algorithm::TwoShot => 2 * bytes.div_ceil(16).div_ceil(ranks) * 16 * ranks <= staging,
                            _ if kind == Kind::ReduceScatter => ranks * bytes.div_ceil(16) * 16 <= staging,
                            _ => bytes <= staging,
                        };
                        assert!(fits && bytes >= 16, "{ranks} ranks, {call} by {algorithm}: {bytes} bytes");
                    }
                }
            }
        }
    }

    /// Lanes store and load 128 bytes at once, which memory keeps together where they begin at a multiple of that.
    #[test]
    fn slots_of_lines_are_apart_and_begin_at_lines_of_memory() {
        for ranks in 1..=MAX_RANKS as u32 {
            for words in [1, 100, 8191] {
                let layout = ChannelLayout::new(ranks, words, 7, 1000);
                assert!(layout.lines.is_multiple_of(128), "{ranks} ranks: {layout:?}");
                let slots = 2 * u64::from(ranks - 1);
                assert_eq!(layout.staging - layout.lines, slots * 7 * BUNDLE_BYTES, "{ranks} ranks: {layout:?}");
            }
        }
    }

    #[test]
    fn registered_buffers_go_in_one_launch_unless_they_are_read_and_written() {
        let call =
            Call { kind: Kind::AllReduce, count: 1, dtype: Dtype::F32, operation: ReduceOperation::Sum, root: 0 };
        let of = |algorithm, in_place| steps(&call, Element::F32, algorithm, &Ground { in_place, ..ground(2, true) });
        assert_eq!(of(Algorithm::TwoShot, true).elements, MOST / 4);
        assert_eq!(of(Algorithm::OneShotPull, false).elements, MOST / 4);
        assert_eq!(of(Algorithm::OneShotPull, true).elements, 8192 * 64 / 4);
        assert_eq!(of(Algorithm::TwoShot, false).parts, PART_ENTER | PART_LEAVE | PART_EARLY);
        let few = Ground { few: true, ..ground(2, true) };
        assert_eq!(steps(&call, Element::F32, Algorithm::Ring, &few).parts, PART_EARLY | PART_FOLLOWED);
    }

    #[test]
    fn hosts_that_order_leave_nothing_to_wait_for() {
        let call = Call { kind: Kind::AllGather, count: 1, dtype: Dtype::U8, operation: ReduceOperation::Sum, root: 0 };
        let steps = steps(&call, Element::U8, Algorithm::HostOrdered, &ground(4, false));
        assert_eq!((steps.kernel, steps.parts), (Some(Kernel::GatherPull), 0));
    }
}
