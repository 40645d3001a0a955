//! Where a rank's local tensor lies in a buffer. In: strides and offset. Out: byte positions. Guarantee: checked
//! against the buffer once; positions of a checked view are in bounds.

use super::LayoutError;
use serde::{Deserialize, Serialize};

/// Strides and byte offset of a local tensor inside a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// Byte offset of the first element; any, no alignment is needed.
    pub offset: u64,
    /// Distance between neighbours along each dimension, in elements; `None` is row-major contiguous.
    pub strides: Option<Vec<u64>>,
}

impl View {
    /// Row-major contiguous from byte 0.
    pub fn contiguous() -> Self {
        Self { offset: 0, strides: None }
    }

    /// Row-major contiguous from byte `offset`.
    pub fn at(offset: u64) -> Self {
        Self { offset, strides: None }
    }

    /// Any strides, in elements.
    pub fn strided(offset: u64, strides: impl Into<Vec<u64>>) -> Self {
        Self { offset, strides: Some(strides.into()) }
    }

    /// Strides in bytes for a local tensor of `shape` with elements of `element` bytes; checks that it lies
    /// inside `buffer_bytes` and, for a destination, that no byte belongs to two elements.
    pub fn byte_strides(
        &self,
        shape: &[u64],
        element: u64,
        buffer_bytes: u64,
        destination: bool,
    ) -> Result<Vec<u64>, LayoutError> {
        let strides = match &self.strides {
            Some(strides) if strides.len() != shape.len() => {
                return Err(LayoutError::ViewRank { strides: strides.len(), rank: shape.len() });
            }
            Some(strides) => strides.clone(),
            None => contiguous_strides(shape),
        };
        if shape.contains(&0) {
            return Ok(vec![0; shape.len()]);
        }
        let reaches = shape.iter().zip(&strides).map(|(&n, &stride)| u128::from(n - 1) * u128::from(stride));
        let elements = reaches.fold(1u128, u128::saturating_add);
        let end = elements.saturating_mul(u128::from(element)).saturating_add(u128::from(self.offset));
        if end > u128::from(buffer_bytes) {
            return Err(LayoutError::ViewOutside {
                end,
                bytes: buffer_bytes,
                offset: self.offset,
                shape: shape.to_vec(),
                strides,
            });
        }
        if destination && overlaps_itself(shape, &strides) {
            return Err(LayoutError::ViewOverlaps { strides, shape: shape.to_vec() });
        }
        // In bounds of a 64-bit buffer, so the products of dimensions longer than one fit; others never count.
        Ok(strides.iter().zip(shape).map(|(&stride, &n)| if n > 1 { stride * element } else { 0 }).collect())
    }
}

/// Row-major strides in elements.
fn contiguous_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim].max(1));
    }
    strides
}

/// Whether some two elements may coincide: sorted by stride, each dimension must step over the one below it.
fn overlaps_itself(shape: &[u64], strides: &[u64]) -> bool {
    let mut dims: Vec<(u64, u64)> =
        strides.iter().zip(shape).filter(|&(_, &n)| n > 1).map(|(&stride, &n)| (stride, n)).collect();
    dims.sort_unstable();
    let mut reach: u128 = 0;
    for (stride, n) in dims {
        if u128::from(stride) <= reach {
            return true;
        }
        reach += u128::from(stride) * u128::from(n - 1);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_checked() {
        assert_eq!(View::contiguous().byte_strides(&[2, 3], 4, 24, true), Ok(vec![12, 4]));
        assert_eq!(View::at(3).byte_strides(&[2, 3], 4, 27, true), Ok(vec![12, 4]));
        assert!(matches!(
            View::at(4).byte_strides(&[2, 3], 4, 27, true),
            Err(LayoutError::ViewOutside { end: 28, .. })
        ));
        assert_eq!(View::strided(0, [1, 2]).byte_strides(&[2, 3], 2, 12, true), Ok(vec![2, 4]));
        assert!(matches!(
            View::strided(0, [1, 1]).byte_strides(&[2, 3], 2, 99, true),
            Err(LayoutError::ViewOverlaps { .. })
        ));
        assert!(View::strided(0, [0, 1]).byte_strides(&[2, 3], 2, 6, false).is_ok());
        assert!(matches!(View::strided(0, [1]).byte_strides(&[2, 3], 2, 99, true), Err(LayoutError::ViewRank { .. })));
        assert_eq!(View::contiguous().byte_strides(&[0, 3], 4, 0, true), Ok(vec![0, 0]));
        assert_eq!(View::contiguous().byte_strides(&[], 8, 8, true), Ok(vec![]));
        let far = [u64::MAX; 3];
        assert!(View::strided(1, far).byte_strides(&far, 8, u64::MAX, true).is_err());
        assert!(View::strided(0, [u64::MAX, 1]).byte_strides(&[2, 2], 8, u64::MAX, true).is_err());
    }
}
