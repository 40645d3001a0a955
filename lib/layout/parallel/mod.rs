//! How models are usually cut, in the words their users use.
//!
//! In: texts such as `tp=2,ep=4,pp=8` ([`ParallelSpec`]), rules that say which dimension of a named tensor each kind of
//! parallelism shards ([`Rules`]), and a model. Out: one layout per tensor ([`SideLayouts`]), on the ranks that hold it.
//! Guarantee: pure; the same texts give the same layouts everywhere, and a name that two rules treat differently is an
//! error.

mod arrange;
mod axis;
mod effect;
mod error;
mod expert_file;
mod expert_text;
mod fuse;
mod fuse_error;
mod fused;
mod heads;
mod idle;
mod layer_file;
mod pattern;
mod prepare;
mod ruled;
mod rules;
mod rules_text;
mod side;
mod side_storage;
mod spec;
mod split;
mod storage;
mod storage_error;
mod store;
mod system;

pub use axis::ParallelAxis;
pub use error::{ParallelError, RulesError};
pub use expert_file::{ExpertFile, ExpertFileError};
pub use fuse::FuseSide;
pub use fuse_error::FuseRuleError;
pub use fused::FusedTensor;
pub use idle::IdleAxis;
pub use layer_file::{LayerFile, LayerFileError};
pub use pattern::PatternError;
pub use prepare::PreparedModel;
pub use ruled::RuledModel;
pub use rules::Rules;
pub use side::SideLayouts;
pub use spec::{ExpertConvention, ParallelSpec, WeightView};
pub use split::{Origin, OriginAxis};
pub use storage_error::StorageError;
pub use system::{System, SystemError};
