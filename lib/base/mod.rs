//! Plain vocabulary shared by every layer.
//!
//! In: nothing. Out: ids as newtypes, checked byte arithmetic, deadlines, the table of environment
//! variables, JSON and its objects without repeated keys, and the one way to wait. Guarantee: no I/O, no threads, no unsafe code.

pub mod backoff;
pub mod bytes;
pub mod deadline;
pub mod env;
pub mod ids;
pub mod json;
pub mod unique_keys;

pub use backoff::Backoff;
pub use deadline::Deadline;
pub use ids::{DomainId, NodeId, Rank};
