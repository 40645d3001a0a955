//! How it moves.
//!
//! In: a [`Plan`](crate::plan::Plan), a topology, options. Out: [`Routed`]: flows, each a tree of ranks with a
//! gather list over the whole manifest. Guarantee: pure and deterministic; in the hierarchical route every byte
//! enters a destination domain once; `check` proves that every wanted byte with a source is written exactly once.

mod bound;
mod check;
mod choose;
mod cost;
mod equations;
mod explain;
mod flow;
mod leaders;
mod options;
mod order;
mod routes;
mod simulate;
#[cfg(test)]
mod tests;

pub use bound::{NicBound, nic_bound};
pub use check::{CheckError, Coverage, check};
pub use choose::{RouteCost, cheapest, choose, name, reason};
pub use cost::{Bound, Duplex, LinkBytes, RankTraffic, Traffic, traffic};
pub use equations::Equations;
pub use explain::{Exchanged, Explanation, explain};
pub(crate) use flow::Gather;
pub use flow::{Flow, Node, Piece};
pub use options::{Injection, RouteKind, RouteOptions};
pub use routes::{Routed, route};
pub use simulate::{Simulated, simulate};
