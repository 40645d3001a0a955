//! Moving the bytes.
//!
//! In: flows, buffers, links. Out: a request that can be started, waited for and freed, many times. Guarantee:
//! starting and progressing allocate nothing; no byte of a destination is written before its rank has started,
//! no byte of a source is read after its rank's wait has returned; no wait outlives its deadline.
//!
//! `program` turns flows into this rank's items (pure), `bind` gives them addresses, `execution` is the
//! state machine, `engine` runs it under whoever waits, `request` is the handle. `gpu` is what takes their place, or
//! follows them inside domains, for tensors on GPUs.

mod agree;
mod alarm;
mod attach;
mod bind;
mod board;
mod boxes;
mod budget;
mod claim;
mod engine;
mod error;
mod exchange;
mod execution;
mod gpu;
mod group;
mod hop;
mod links;
mod overlap;
mod passing;
#[doc(hidden)]
pub mod peer_bytes;
mod planned;
mod prepare;
mod program;
mod reach;
mod request;
mod rest;
mod runner;
mod signals;
mod steps;
mod sums;
mod tensors;
mod transfers;
mod turns;

pub(crate) use agree::{commit, gather};
pub use budget::{DEFAULT_CHUNK, DEFAULT_STAGING, StagingBudget, StagingShare, first_share};
pub use engine::Engine;
pub use error::ExecuteError;
pub(crate) use gpu::{Agreed, Near, PeerAccess, agree_handles, are_near, broken_link, peer_access};
pub use gpu::{LinkFacts, LinkVerdict, MappedMemories, test_links};
pub use group::{Group, LinkNumbers, Mapped, Peering};
pub use program::{ProgramSummary, program_summary};
pub use request::{Report, Reshard, ReshardOptions};
pub use tensors::{Buffers, Side, TensorBuffer};
