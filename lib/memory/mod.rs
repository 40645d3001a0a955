//! Memory that tensors live in.
//!
//! In: sizes, user pointers, peers' exports. Out: shared segments (memfd), private buffers, and views of a
//! peer's memory. Guarantee: nothing is left in `/dev/shm`; descriptors pass only between processes of one user.

mod bell;
pub mod buffer;
pub mod client;
pub mod copy;
pub mod device;
mod directory;
pub(crate) mod error;
mod mapping;
mod pages;
#[doc(hidden)]
pub mod peer_bytes;
pub mod policy;
pub mod process;
pub mod server;
pub mod shared;
mod span;
#[cfg(test)]
mod tests;
mod wire;

pub use bell::Bell;
pub use buffer::{Buffer, MemoryKind, ReadGuard, ReadHold, WriteGuard, WriteHold};
pub use client::{Lifeline, PeerSegments};
pub use device::DeviceError;
pub use error::MemoryError;
pub use pages::{PageChoice, Pages};
pub use process::ProcessMemory;
pub use server::{Published, SegmentServer};
pub use shared::{SegmentId, SharedMemory};
pub use span::Span;
