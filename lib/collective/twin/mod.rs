//! The protocols of the kernels, run by threads of the host.
//!
//! In: the calls of a rank, memory of all ranks. Out: the same waits, stores and verdicts as in `kernels/channel.cuh`,
//! `push.cuh`, `push_lines.cuh` and `pull.cuh`, one memory access in a step. Guarantee: a machine touches memory only through [`Memory`], so
//! that a model checker, or a network that delays and reorders, can be put beneath it.
//!
//! What is the same: flags made of a fingerprint and an epoch, two parities, headers of the last calls, poison, cleaning,
//! looks at the peer once a wait is long. What is not: one block and one thread for a rank, words of 32 bits beside their
//! flag, a reduction whose order shows.

mod machine;
mod model;
mod network;
mod tests;

pub(crate) use machine::{Call, Machine, Outcome, Protocol, Reason, Rules, Shape};

/// Memory of all ranks, in words of 64 bits that are read and written whole.
pub(crate) trait Memory {
    /// A word of a rank.
    fn load(&self, rank: usize, at: usize) -> u64;
    /// Writes a word of a rank.
    fn store(&self, rank: usize, at: usize, word: u64);
    /// What `writer` stored before is seen before what it stores from now on, by whoever fences behind his load.
    fn fence(&self, writer: usize);
}
