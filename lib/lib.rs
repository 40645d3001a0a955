//! crossmesh moves distributed tensors from one mesh of ranks to another.
//!
//! The data path, top to bottom; each module uses only modules above it (`tests/layering.rs`):
//!
//! ```text
//! topology (where ranks are) ─┐
//!                             ├─► plan ──► route ──► program ──► execution ──► request
//! layout, manifest ───────────┘  (what)    (how)    (my share)
//! ```
//!
//! | module | in | out |
//! |---|---|---|
//! | [`base`] | - | ids, sizes, deadlines, environment variables |
//! | [`topology`] | facts of every rank | domain and node of every rank |
//! | [`layout`] | shape, mesh, placements | which interval of which dimension a rank holds |
//! | [`plan`] | manifest of tensors | cells: boxes with their holders and wanters |
//! | [`route`] | plan, topology, options | flows: trees of ranks with gather lists |
//! | [`bootstrap`] | environment | rank, size, control connections for life |
//! | [`memory`] | - | shared segments, private buffers, peer access |
//! | [`transport`] | peers | mapped and message links |
//! | [`execute`] | flows, buffers, links | a program, its progress, its completion |
//! | [`collective`] | calls on buffers | algorithm, launch, the same bits on every rank |
//! | [`comm`] | all of it | [`comm::Communicator`], what users hold |

pub mod base;
pub mod bootstrap;
pub mod collective;
pub mod comm;
pub mod execute;
pub mod layout;
pub mod memory;
pub mod plan;
pub mod route;
pub mod topology;
pub mod transport;

/// What this build has, in one line.
pub const BUILD: &str = env!("CROSSMESH_BUILD");

/// Version of the wire and digest formats; ranks that differ refuse each other.
pub const PROTOCOL_VERSION: u32 = 1;
