//! Transfers between tensors on the GPUs of one host or NVLink domain.
//!
//! In: an agreed manifest, tensors on devices. Out: work on a stream. Guarantee: with a GPU for each rank a start is one
//! launch (and long contiguous copies between two), ordered on the GPUs alone; where ranks share a GPU no kernel waits
//! for another process: the copy engines move everything and the host orders them. What cannot go from GPU to GPU is
//! told apart here, with the reason, and moved by the host's executor through its staging; where that is so between domains
//! alone, GPUs of a domain still read from each other what came into it.

mod access;
mod attach;
mod board;
mod engine;
mod handles;
mod invite;
mod links;
mod opened;
mod place;
mod shape;
mod stages;
mod transfer;

pub(crate) use access::{PeerAccess, peer_access};
pub use handles::MappedMemories;
pub(crate) use handles::{Agreed, Near, agree_handles, are_near};
pub(crate) use links::broken_link;
pub use links::{LinkFacts, LinkVerdict, test_links};
pub(super) use place::{Way, find_way, inspect_tensors, unmapped_destination};
pub(super) use shape::Shape;
pub(super) use stages::{StageFlows, Stages};
pub(super) use transfer::{DeviceTransfer, settle};
