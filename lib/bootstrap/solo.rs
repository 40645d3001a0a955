//! A job of one process. In: nothing. Out: a [`Bootstrap`] of rank 0 of 1. Guarantee: no I/O.

use super::Bootstrap;
use super::error::BootstrapError;
use crate::base::{Deadline, Rank};

/// The only rank of its job.
#[derive(Debug, Default)]
pub struct Solo;

impl Bootstrap for Solo {
    fn rank(&self) -> Rank {
        Rank(0)
    }

    fn size(&self) -> u32 {
        1
    }

    fn broadcast(&mut self, message: &[u8], _deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        Ok(message.to_vec())
    }

    fn finish(self: Box<Self>, _clean: bool) {}
}
