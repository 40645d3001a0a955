//! What happens to elements on their way. In: what was asked for, the types at both ends. Out: the types that travel.
//! Guarantee: pure; a tensor whose types differ without a transform is refused, and so is one that nothing can convert.

use super::{PlanError, TensorSpec};
use crate::layout::{Dtype, Layout};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What happens to elements on their way; a place for quantisation with block scales beside the plain cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Transform {
    /// Nothing: both ends have one type.
    #[default]
    None,
    /// They become elements of the destination's type, rounded to nearest, ties to even: F32, F16 and BF16 to each other.
    Cast,
}

impl fmt::Display for Transform {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::None => "none",
            Self::Cast => "cast",
        })
    }
}

/// Types that a cast takes and makes.
pub(super) const CASTABLE: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::BF16];

impl Transform {
    /// Whether it takes a tensor from one type to the other.
    pub(super) fn check(self, name: &str, source: &Layout, destination: &Layout) -> Result<(), PlanError> {
        let (source_dtype, destination_dtype) = (source.dtype(), destination.dtype());
        let name = || name.to_string();
        match self {
            _ if source_dtype == destination_dtype => Ok(()),
            Self::None => Err(PlanError::Dtype { name: name(), source_dtype, destination_dtype }),
            Self::Cast if CASTABLE.contains(&source_dtype) && CASTABLE.contains(&destination_dtype) => Ok(()),
            Self::Cast => Err(PlanError::Cast { name: name(), source_dtype, destination_dtype }),
        }
    }
}

impl TensorSpec {
    /// Type of whole elements at the source: that of their sums where ranks hold terms.
    pub fn held_dtype(&self) -> Dtype {
        let dtype = self.source.dtype();
        self.source.reduction().map_or(dtype, |reduction| reduction.dtype(dtype))
    }

    /// Type of its elements while they travel: the destination's, unless the source's is smaller. So a cast that narrows
    /// is made before the wire, one that widens after it, and the fewer bytes cross.
    pub fn wire_dtype(&self) -> Dtype {
        let (held, wanted) = (self.held_dtype(), self.destination.dtype());
        if held.bytes() < wanted.bytes() { held } else { wanted }
    }

    /// Whether whole elements change on their way.
    pub fn is_cast(&self) -> bool {
        self.held_dtype() != self.destination.dtype()
    }
}
