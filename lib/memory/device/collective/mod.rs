//! The all-reduce family on devices: what its kernels take, and their launches.
//!
//! In: addresses of channels, inputs and outputs. Out: launches on a stream. Guarantee: structures equal those of
//! `kernels/collective.h`; that a grid is resident at once is the
//! caller's promise, since its blocks wait for each other's peers.

mod channel;
mod kernels;
pub mod params;

pub use channel::ChannelEnd;
pub use kernels::{CollectiveKernel, CollectiveKernels, FILES, Grid, define};
