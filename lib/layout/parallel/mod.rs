//! How models are usually cut, in the words their users use.
//!
//! In: texts such as `tp=2,ep=4,pp=8` ([`ParallelSpec`]), rules that say which dimension of a named tensor each kind of
//! parallelism shards ([`Rules`]), and a model. Out: one layout per tensor ([`SideLayouts`]), on the ranks that hold it.
//! Guarantee: pure; the same texts give the same layouts everywhere, and a name that two rules treat differently is an
//! error.

mod axis;
mod effect;
mod error;
mod fuse;
mod fuse_error;
mod fused;
mod layer_file;
mod pattern;
mod ruled;
mod rules;
mod rules_text;
mod side;
mod spec;
mod system;

pub use axis::ParallelAxis;
pub use error::{ParallelError, RulesError};
pub use fuse::FuseSide;
pub use fuse_error::FuseRuleError;
pub use fused::FusedTensor;
pub use layer_file::{LayerFile, LayerFileError};
pub use pattern::PatternError;
pub use ruled::RuledModel;
pub use rules::Rules;
pub use side::SideLayouts;
pub use spec::{ExpertConvention, ParallelSpec, WeightView};
pub use system::{System, SystemError};
