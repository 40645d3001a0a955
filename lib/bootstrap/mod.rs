//! Ranks find each other and stay in touch.
//!
//! In: the environment a starter made (mpirun, srun, `crossmesh run`) or a unique id. Out: rank, size, and
//! [`Control`], authenticated connections kept for life. Guarantee: a rank whose connection ends without a
//! goodbye is dead; the first abort with its cause reaches every survivor; MPI carries nothing after start.

use crate::base::{Deadline, Rank};

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

/// Placeholder until the module lands.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {}
