//! How models are usually cut, in the words their users use.
//!
//! In: texts such as `tp=2,ep=4` ([`ParallelSpec`]) and rules that say which dimension of a named tensor each kind
//! of parallelism shards ([`Rules`]). Out: a mesh, and per tensor one placement per mesh axis. Guarantee: pure; the
//! same texts give the same placements everywhere, and a name that two rules treat differently is an error.

mod axis;
mod error;
mod pattern;
mod rules;
mod sharding;
mod spec;

pub use axis::ParallelAxis;
pub use error::{ParallelError, RulesError};
pub use pattern::PatternError;
pub use rules::Rules;
pub use sharding::{ModelSharding, Sharding};
pub use spec::ParallelSpec;
