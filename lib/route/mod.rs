//! How it moves.
//!
//! In: a [`Plan`](crate::plan::Plan), a topology, options. Out: [`Routed`]: flows, each a tree of ranks with a
//! gather list over the whole manifest. Guarantee: pure and deterministic; in the hierarchical route every byte
//! enters a destination domain once; `check` proves that every wanted byte with a source is written exactly once.

mod check;
mod cost;
mod flow;
mod leaders;
mod options;
mod order;
mod partial;
mod routes;
mod storage;
#[cfg(test)]
mod tests;

pub use check::{CheckError, Coverage, check};
pub use cost::{Traffic, traffic};
pub(crate) use flow::Gather;
pub use flow::{DomainSum, Flow, Node, Piece, Sums};
pub use options::{Injection, RouteKind, RouteOptions};
pub use routes::{Routed, route};
