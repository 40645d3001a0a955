//! Reductions. In: names as MPI and NCCL users write them. Out: the reduction, and which element types it takes.
//! Guarantee: what a reduction means for each type is fixed here and in `reduce.rs`, the same on host and device.

use crate::layout::Dtype;
use crate::memory::device::collective::params::{Element, Operation as ReduceOperation};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A name or a type that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OperationError {
    /// A name that is no reduction.
    #[error("reduction {name:?} is unknown; allowed are sum, prod, min, max, avg")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// A type that is not reduced.
    #[error("elements of type {dtype} cannot be reduced; allowed are {}", names())]
    Dtype {
        /// The type.
        dtype: Dtype,
    },
}

impl ReduceOperation {
    /// All of them: `MPI_SUM`, `ncclSum` and so on; the place of each is its number in call headers.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Product, Self::Minimum, Self::Maximum, Self::Average];

    /// Its name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "prod",
            Self::Minimum => "min",
            Self::Maximum => "max",
            Self::Average => "avg",
        }
    }
}

impl fmt::Display for ReduceOperation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for ReduceOperation {
    type Err = OperationError;

    fn from_str(name: &str) -> Result<Self, OperationError> {
        let found = Self::ALL.into_iter().find(|operation| operation.name() == name);
        found.ok_or_else(|| OperationError::Unknown { name: name.to_string() })
    }
}

/// Types that are reduced, as kernels know them; narrow floats are accumulated in binary32.
const REDUCIBLE: [(Dtype, Element); 9] = [
    (Dtype::F64, Element::F64),
    (Dtype::F32, Element::F32),
    (Dtype::F16, Element::F16),
    (Dtype::BF16, Element::Bf16),
    (Dtype::F8E4M3, Element::E4m3),
    (Dtype::F8E5M2, Element::E5m2),
    (Dtype::I64, Element::I64),
    (Dtype::I32, Element::I32),
    (Dtype::U8, Element::U8),
];

/// `dtype` as kernels know it.
pub fn element(dtype: Dtype) -> Result<Element, OperationError> {
    let found = REDUCIBLE.iter().find(|(reducible, _)| *reducible == dtype);
    found.map(|&(_, element)| element).ok_or(OperationError::Dtype { dtype })
}

/// Types that are reduced.
pub fn reducible() -> impl Iterator<Item = Dtype> {
    REDUCIBLE.iter().map(|&(dtype, _)| dtype)
}

fn names() -> String {
    reducible().map(Dtype::name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for operation in ReduceOperation::ALL {
            assert_eq!(operation.name().parse(), Ok(operation));
        }
        let error = "SUM".parse::<ReduceOperation>().unwrap_err().to_string();
        assert!(error.contains("\"SUM\"") && error.contains("sum, prod, min, max, avg"), "{error}");
    }

    #[test]
    fn other_types_are_refused_by_name() {
        assert_eq!(element(Dtype::F8E5M2), Ok(Element::E5m2));
        assert!(reducible().all(|dtype| element(dtype).unwrap().bytes() == dtype.bytes()));
        let error = element(Dtype::C64).unwrap_err().to_string();
        assert!(error.contains("C64") && error.contains("BF16"), "{error}");
    }
}
