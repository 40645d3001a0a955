//! What users hold.
//!
//! In: an environment made by a starter. Out: [`Communicator`]: rank, size, split, barrier, and persistent
//! transfers. Guarantee: MPI's rules for collectives: every member calls them, in the same order; every call ends
//! by its deadline, and after a fault every member gets the same first cause.
//!
//! A complete program; every rank runs it, for example under `crossmesh run -n 8`:
//!
//! ```no_run
//! use crossmesh::base::{Deadline, Rank};
//! use crossmesh::comm::{Buffer, Buffers, Communicator, ReshardOptions, Side, WorldOptions};
//! use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
//! use crossmesh::plan::Manifest;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = Communicator::world(&WorldOptions::from_environment()?)?;
//!
//! // Four trainer ranks hold the weight split by rows; four generator ranks want it in two halves, twice.
//! let trainers = Arc::new(Mesh::contiguous(vec![4], Rank(0))?);
//! let generators = Arc::new(Mesh::contiguous(vec![2, 2], Rank(4))?);
//! let shape = vec![4096, 1024];
//! let source = Arc::new(Layout::new(shape.clone(), Dtype::BF16, trainers, vec![Placement::shard(0)])?);
//! let wanted = vec![Placement::Replicate, Placement::shard(0)];
//! let destination = Arc::new(Layout::new(shape, Dtype::BF16, generators, wanted)?);
//! let mut manifest = Manifest::new();
//! manifest.push("weight", source.clone(), destination.clone())?;
//! let manifest = Arc::new(manifest);
//!
//! // Memory that peers on this host can map moves fastest; `Buffer::private` works too.
//! let mut buffers = Buffers::new(&manifest);
//! let mut received = None;
//! if source.local_shape(world.rank()).is_some() {
//!     let buffer = Buffer::shared(source.local_bytes(world.rank()))?;
//!     buffer.write()?.fill(7);
//!     buffers.set(Side::Source, 0, buffer, View::contiguous());
//! }
//! if destination.local_shape(world.rank()).is_some() {
//!     let buffer = Buffer::shared(destination.local_bytes(world.rank()))?;
//!     buffers.set(Side::Destination, 0, buffer.clone(), View::contiguous());
//!     received = Some(buffer);
//! }
//!
//! // Compiled once, replayed every step.
//! let mut sync = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), Deadline::seconds(60))?;
//! for _step in 0..3 {
//!     sync.start()?;
//!     sync.wait(Deadline::seconds(60))?;
//! }
//! drop(sync);
//! assert!(received.is_none_or(|buffer| buffer.read().is_ok_and(|bytes| bytes.iter().all(|&byte| byte == 7))));
//! world.finalize(Deadline::seconds(60))?;
//! # Ok(())
//! # }
//! ```

mod collective;
mod communicator;
mod error;
mod world;

pub use crate::collective::device::{Channel, ChannelOptions, NormOperands, NormShape, Operand};
pub use crate::collective::{Algorithm, Determinism, ReduceOperation};
pub use crate::execute::{
    Buffers, LinkFacts, LinkVerdict, MappedMemories, Report, Reshard, ReshardOptions, Side, TensorBuffer,
};
pub use crate::memory::Buffer;
pub use crate::memory::device::{Device, DeviceMemory, Stream};
pub use communicator::Communicator;
pub use error::CommError;
pub use world::WorldOptions;
