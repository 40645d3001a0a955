//! World > NVLink domain > node > GPU, NIC.
//!
//! In: facts of hosts. Out: [`Seat`] and, over all hosts, the cluster. Guarantee: pure; the same facts give the same
//! result everywhere.

mod seat;

pub use seat::{NicSeat, Seat};
