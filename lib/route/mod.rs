//! How it moves.
//!
//! In: a [`Plan`](crate::plan::Plan), a topology, options. Out: [`Routed`]: flows, each a tree of ranks with a
//! gather list over the whole manifest. Guarantee: pure and deterministic; in the hierarchical route every byte
//! enters a destination domain once; `check` proves that every wanted byte with a source is written exactly once.

mod balance;
mod bound;
mod check;
mod choose;
mod cost;
mod equations;
mod explain;
mod file;
mod file_topology;
mod flow;
mod inside;
mod leaders;
mod maximum;
mod options;
mod order;
mod partial;
mod path;
mod routes;
mod simulate;
mod storage;
#[cfg(test)]
mod tests;

pub use bound::{NicBound, nic_bound};
pub use check::{CheckError, Coverage, Gap, check, check_for, gaps};
pub use choose::{RouteCost, cheapest, choose, name, reason};
pub use cost::{Bound, Duplex, LinkBytes, RankTraffic, Traffic, traffic, traffic_of};
pub use equations::Equations;
pub use explain::{Exchanged, Explanation, explain};
pub use file::{PlanFileError, SavedPlan};
pub(crate) use flow::Gather;
pub use flow::{DomainSum, Flow, LocalFlow, Node, Piece, Sums};
pub(crate) use inside::{cut_flows, in_parts, part_of};
pub use options::{Injection, RouteKind, RouteOptions};
pub use path::{Neighbour, Path, Place};
pub use routes::{Routed, plan_for, route, route_for};
pub use simulate::{Simulated, simulate};
