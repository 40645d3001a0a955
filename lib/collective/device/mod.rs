//! Collectives on the GPUs of a host or NVLink domain.
//!
//! In: a group of ranks, buffers on their devices. Out: work on streams. Guarantee: all ranks get the same bits; a rank that
//! makes another call, or none, is an error on every rank that names both calls, within the limit.
//!
//! [`Channel`] is made once and used for calls in order; `calls` lowers a call to launches, `ordered` to copies that hosts
//! order where no kernel may wait, `register` makes buffers reachable, `verdict` explains a kernel that gave up, `rehearsal`
//! repeats calls so that they can be measured.

mod calls;
mod channel;
mod error;
mod members;
mod norm;
mod operand;
mod options;
mod ordered;
mod register;
mod rehearsal;
mod verdict;

pub use channel::Channel;
pub use error::CollectiveError;
pub use norm::{NormOperands, NormShape};
pub use operand::Operand;
pub use options::ChannelOptions;
pub use rehearsal::{NormOffsets, PeerWrite, Rehearsal};
