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

pub mod affinity;
pub mod binding;
pub mod cluster;
mod cpu_set;
pub mod discover;
pub mod facts;
pub mod file;
pub mod hierarchy;
pub mod interface;
pub mod machine;
mod pci_address;
mod shape;
pub mod synthetic;

pub use binding::Binding;
pub use cluster::{Cluster, ClusterOptions, Seat};
pub use cpu_set::{CpuSet, CpuSetError};
pub use facts::{HostFacts, RankFacts};
pub use file::FileError;
pub use hierarchy::{Place, Topology, TopologyError};
pub use interface::InterfaceError;
pub use machine::{LinkRate, Machine};
pub use pci_address::{PciAddress, PciAddressError};
pub use synthetic::{Synthetic, SyntheticError};
