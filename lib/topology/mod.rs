//! Where ranks are.
//!
//! In: facts that every rank states about itself. Out: [`Topology`], the node and the NVLink domain of every
//! rank. Guarantee: a pure function of the facts, equal on all ranks; contradictory facts are an error.

pub mod discover;
pub mod facts;
pub mod hierarchy;
pub mod interface;
pub mod machine;
pub mod synthetic;

pub use facts::RankFacts;
pub use hierarchy::{Place, Topology, TopologyError};
pub use interface::InterfaceError;
pub use machine::{LinkRate, Machine};
pub use synthetic::{Synthetic, SyntheticError};
