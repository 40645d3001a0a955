//! What tests of whole jobs are built from.
//!
//! In: a body that every rank runs, or a command. Out: how the processes ended and what they said. Guarantee: whatever
//! is started has ended when the call returns, at the latest at its limit, with all that it started itself.

pub(crate) mod process;
pub(crate) mod spmd;
