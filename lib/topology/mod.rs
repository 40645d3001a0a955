//! Where ranks are.
//!
//! In: facts that every rank states about itself. Out: [`Topology`], the node and the NVLink domain of every
//! rank. Guarantee: a pure function of the facts, equal on all ranks; contradictory facts are an error.

pub mod discover;
pub mod facts;
pub mod hierarchy;
pub mod interface;

pub use facts::RankFacts;
pub use hierarchy::{Topology, TopologyError};
pub use interface::InterfaceError;
