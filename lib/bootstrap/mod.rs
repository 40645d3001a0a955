//! Ranks find each other and stay in touch.
//!
//! In: the environment a starter made (mpirun, srun, `crossmesh run`) or a unique id. Out: rank, size, and
//! [`Control`], authenticated connections kept for life. Guarantee: a rank whose connection ends without a
//! goodbye is dead; the first abort with its cause reaches every survivor; MPI carries nothing after start.
//!
//! ```text
//! select ──► mpi (adapter library) ─┐
//!        ──► tcp (rendezvous) ──────┼──► Bootstrap ──► control ──► member ──► hub (rank 0)
//!        ──► solo ──────────────────┘                     key ──► handshake (data connections too)
//! ```

mod acceptor;
mod address;
mod cause;
mod control;
mod error;
mod gathering;
mod handshake;
mod hub;
mod key;
mod member;
mod member_thread;
mod mpi;
mod mpi_abi;
#[doc(hidden)]
pub mod peer_bytes;
mod select;
mod solo;
mod starter;
mod tcp;
mod unique_id;
mod wire;

pub use cause::Cause;
pub use control::Control;
pub use error::{Absentees, BootstrapError};
pub use handshake::{HandshakeError, Party, Refusal};
pub use key::JobKey;
pub use select::{from_environment, has_starter};
pub use solo::Solo;
pub use tcp::{Rendezvous, TcpBootstrap};
pub use unique_id::UniqueId;

use crate::base::{Deadline, Rank};

/// First context that users of [`Control`] cannot have.
const RESERVED: u64 = 1 << 63;
/// Context of the first meeting.
const START: u64 = RESERVED;
/// Context of questions about goodbyes.
const CLOSING: u64 = RESERVED + 1;
/// Context of rank 0's broadcasts through a rendezvous.
const BROADCAST: u64 = RESERVED + 2;

/// What starts a job: knows rank and size and can hand one message from rank 0 to all.
pub trait Bootstrap: Send {
    /// This process's rank.
    fn rank(&self) -> Rank;
    /// Number of processes.
    fn size(&self) -> u32;
    /// Gives every rank the bytes that rank 0 passed; other ranks' `message` is ignored.
    fn broadcast(&mut self, message: &[u8], deadline: Deadline) -> Result<Vec<u8>, BootstrapError>;
    /// Ends the bootstrap; after an abort (`clean` false) no MPI_Finalize is called.
    fn finish(self: Box<Self>, clean: bool);
}
