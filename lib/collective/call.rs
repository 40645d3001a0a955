//! A collective call as data. In: what a rank asks for. Out: its sizes, and its [`Header`], which all ranks can
//! read. Guarantee: pure; two calls have equal headers exactly when they agree in kind, algorithm, launch, count, type,
//! reduction and root, so that a difference can be named.

use super::Algorithm;
use crate::layout::Dtype;
use crate::memory::device::collective::params::{Header, Operation};
use std::fmt;

/// What a collective does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Every rank gets the reduction of all inputs (`MPI_Allreduce`, `ncclAllReduce`).
    AllReduce,
    /// Every rank gets all inputs in rank order (`MPI_Allgather`, `ncclAllGather`).
    AllGather,
    /// Rank r gets part r of the reduction (`MPI_Reduce_scatter_block`, `ncclReduceScatter`).
    ReduceScatter,
    /// Every rank gets the root's input (`MPI_Bcast`, `ncclBroadcast`).
    Broadcast,
    /// All-reduce, addition of a residual and RMSNorm in one launch.
    AllReduceNorm,
}

impl Kind {
    /// All of them; the place of each is its number in call headers.
    pub const ALL: [Self; 5] =
        [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::Broadcast, Self::AllReduceNorm];

    /// Its name in tables, options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::AllReduceNorm => "all_reduce_norm",
        }
    }

    /// Whether it computes.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::AllReduceNorm)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What a rank asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// What to do.
    pub kind: Kind,
    /// Elements of a rank's part: of the whole vector for all-reduce and broadcast, of one rank's input for all-gather, of
    /// one rank's output for reduce-scatter.
    pub count: u64,
    /// Their type.
    pub dtype: Dtype,
    /// What is computed; of no meaning where nothing is.
    pub operation: Operation,
    /// Rank whose input is broadcast; 0 otherwise.
    pub root: u32,
}

impl Call {
    /// Bytes of a rank's part, `None` beyond 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        self.count.checked_mul(self.dtype.bytes())
    }

    /// Bytes as nccl-tests counts them: of the whole vector, which all-gather has as output and reduce-scatter as input.
    pub fn total_bytes(&self, ranks: u32) -> Option<u64> {
        match self.kind {
            Kind::AllGather | Kind::ReduceScatter => self.bytes()?.checked_mul(u64::from(ranks)),
            _ => self.bytes(),
        }
    }

    /// Bytes that an ideal algorithm moves over a rank's link, over the total: the factor from algorithm to bus bandwidth
    /// (nccl-tests, PERFORMANCE.md).
    pub fn bus_factor(&self, ranks: u32) -> f64 {
        let ranks = f64::from(ranks.max(1));
        match self.kind {
            Kind::AllReduce | Kind::AllReduceNorm => 2.0 * (ranks - 1.0) / ranks,
            Kind::AllGather | Kind::ReduceScatter => (ranks - 1.0) / ranks,
            Kind::Broadcast => 1.0,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {} {} elements", self.kind, self.count, self.dtype)?;
        if self.kind.reduces() {
            write!(formatter, " ({})", self.operation)?;
        }
        if self.kind == Kind::Broadcast {
            write!(formatter, " from rank {}", self.root)?;
        }
        Ok(())
    }
}

/// How a call is launched, as far as ranks must agree in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Launch {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Blocks.
    pub blocks: u16,
    /// Threads of a block.
    pub threads: u16,
    /// Whether peers reach the caller's buffers themselves.
    pub registered: bool,
}

/// Stands in headers for what has no meaning in a call.
const NOTHING: usize = 0xff;
/// Bit of [`Header::detail`] for registered buffers.
const REGISTERED: u32 = 1 << 31;
/// Bits of it that say where operands are.
const OPERANDS: u32 = 0x7fff_ff00;
/// Bits of it for the root.
const ROOT: u32 = 0xff;

/// What a rank tells the others of a call. Its sequence is filled in by the kernel.
pub fn header(call: &Call, launch: &Launch) -> Header {
    let place = |found: Option<usize>| found.unwrap_or(NOTHING) as u32;
    let kind = place(Kind::ALL.iter().position(|&kind| kind == call.kind));
    let algorithm = place(Algorithm::ALL.iter().position(|&algorithm| algorithm == launch.algorithm));
    let dtype = place(Dtype::ALL.iter().position(|&dtype| dtype == call.dtype));
    let operation = Operation::ALL.iter().position(|&operation| operation == call.operation);
    let operation = place(operation.filter(|_| call.kind.reduces()));
    Header {
        what: kind | algorithm << 8 | dtype << 16 | operation << 24,
        bytes: call.count.wrapping_mul(call.dtype.bytes()),
        shape: u32::from(launch.blocks) | u32::from(launch.threads) << 16,
        detail: call.root & ROOT | if launch.registered { REGISTERED } else { 0 },
        ..Header::default()
    }
}

/// A header that also says where operands are, by some bits that ranks must agree in.
pub(super) fn with_operands(header: Header, bits: u32) -> Header {
    Header { detail: header.detail ^ bits << 8 & OPERANDS, ..header }
}

/// A call and its launch, as they stand in a header; `None` when these are no words of one.
pub fn read(header: &Header) -> Option<(Call, Launch)> {
    let byte = |shift: u32| (header.what >> shift & 0xff) as usize;
    let operation = if byte(24) == NOTHING { Operation::Sum } else { *Operation::ALL.get(byte(24))? };
    let dtype = *Dtype::ALL.get(byte(16))?;
    let (kind, algorithm) = (*Kind::ALL.get(byte(0))?, *Algorithm::ALL.get(byte(8))?);
    let root = header.detail & ROOT;
    let call = Call { kind, count: header.bytes / dtype.bytes(), dtype, operation, root };
    let (blocks, threads) = (header.shape as u16, (header.shape >> 16) as u16);
    Some((call, Launch { algorithm, blocks, threads, registered: header.detail & REGISTERED != 0 }))
}

/// The first field in which two calls of one sequence differ, with both values.
pub fn difference(one: &Header, other: &Header) -> Option<(&'static str, String, String)> {
    let (Some((mine, my)), Some((theirs, their))) = (read(one), read(other)) else {
        return (one != other).then(|| ("header", format!("{one:x?}"), format!("{other:x?}")));
    };
    let field = |name, one: String, two: String| (one != two).then_some((name, one, two));
    let texts = |registered: bool| if registered { "registered" } else { "not registered" }.to_string();
    field("kind", mine.kind.to_string(), theirs.kind.to_string())
        .or_else(|| field("type", mine.dtype.to_string(), theirs.dtype.to_string()))
        .or_else(|| field("count", mine.count.to_string(), theirs.count.to_string()))
        .or_else(|| field("reduction", mine.operation.to_string(), theirs.operation.to_string()))
        .or_else(|| field("root", mine.root.to_string(), theirs.root.to_string()))
        .or_else(|| field("algorithm", my.algorithm.to_string(), their.algorithm.to_string()))
        .or_else(|| field("buffers", texts(my.registered), texts(their.registered)))
        .or_else(|| field("blocks", my.blocks.to_string(), their.blocks.to_string()))
        .or_else(|| field("threads", my.threads.to_string(), their.threads.to_string()))
        .or_else(|| {
            let operands = |header: &Header| format!("{:#x}", (header.detail & OPERANDS) >> 8);
            field("places of the operands or length of rows", operands(one), operands(other))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call =
        Call { kind: Kind::AllReduce, count: 4096, dtype: Dtype::BF16, operation: Operation::Sum, root: 0 };
    const LAUNCH: Launch = Launch { algorithm: Algorithm::OneShotPush, blocks: 16, threads: 256, registered: false };

    #[test]
    fn headers_are_read_back() {
        for kind in Kind::ALL {
            for algorithm in Algorithm::ALL {
                for operation in Operation::ALL {
                    let operation = if kind.reduces() { operation } else { Operation::Sum };
                    let call = Call { kind, operation, root: 7, count: u64::MAX / 2, ..CALL };
                    let launch = Launch { algorithm, blocks: u16::MAX, threads: 1024, registered: true };
                    assert_eq!(read(&header(&call, &launch)), Some((call, launch)));
                }
            }
        }
        assert_eq!(read(&Header { what: 200, ..Header::default() }), None);
    }

    #[test]
    fn the_first_difference_is_named() {
        let mine = header(&CALL, &LAUNCH);
        let differs = |call: Call, launch: Launch| difference(&mine, &header(&call, &launch));
        assert_eq!(differs(CALL, LAUNCH), None);
        let other = Call { count: 8192, root: 3, ..CALL };
        assert_eq!(differs(other, LAUNCH), Some(("count", "4096".into(), "8192".into())));
        let other = Launch { algorithm: Algorithm::TwoShot, blocks: 3, ..LAUNCH };
        assert_eq!(differs(CALL, other), Some(("algorithm", "one-shot-push".into(), "two-shot".into())));
        let elsewhere = with_operands(mine, 5);
        assert_eq!(difference(&mine, &elsewhere).unwrap().0, "places of the operands or length of rows");
        assert_eq!(read(&elsewhere), Some((CALL, LAUNCH)));
        let gather = Call { kind: Kind::AllGather, ..CALL };
        assert_eq!(differs(gather, LAUNCH), Some(("kind", "all_reduce".into(), "all_gather".into())));
    }

    #[test]
    fn calls_that_differ_mostly_have_other_fingerprints() {
        let calls = (0..4096u64).map(|count| header(&Call { count, ..CALL }, &LAUNCH).fingerprint());
        let found: Vec<u32> = calls.collect();
        assert!(found.iter().all(|fingerprint| (1..=0xffff).contains(fingerprint)));
        let equal = found.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(equal < 4, "{equal} of 4095 neighbours have the same fingerprint");
    }

    #[test]
    fn sizes_are_those_of_nccl_tests() {
        let gather = Call { kind: Kind::AllGather, count: 8, dtype: Dtype::F32, ..CALL };
        assert_eq!((gather.bytes(), gather.total_bytes(4)), (Some(32), Some(128)));
        assert_eq!(Call { count: u64::MAX, ..CALL }.bytes(), None);
        assert_eq!(CALL.bus_factor(4), 1.5);
        assert_eq!(gather.bus_factor(4), 0.75);
    }
}
