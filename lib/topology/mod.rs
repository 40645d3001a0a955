//! Where ranks are.
//!
//! In: facts that every rank states about itself. Out: [`Topology`], the node and the NVLink domain of every
//! rank. Guarantee: a pure function of the facts, equal on all ranks; contradictory facts are an error.
//!
//! ```text
//! discover (this host) ─┐
//! file (a dump, XML) ───┼─► HostFacts ─► cluster: domains, pairing, rails ─► Seat of a rank ─► RankFacts ─► Topology
//! synthetic (a text) ───┘
//! ```

pub mod cluster;
mod cpu_set;
pub mod discover;
pub mod facts;
pub mod file;
pub mod hierarchy;
pub mod interface;
mod pci_address;

pub use cluster::Seat;
pub use cpu_set::{CpuSet, CpuSetError};
pub use facts::{HostFacts, RankFacts};
pub use file::FileError;
pub use hierarchy::{Topology, TopologyError};
pub use interface::InterfaceError;
pub use pci_address::{PciAddress, PciAddressError};
