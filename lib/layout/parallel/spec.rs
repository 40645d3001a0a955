//! Sizes of the kinds of parallelism. In: texts such as `tp=2,dp=2`. Out: [`ParallelSpec`] and its mesh. Guarantee:
//! sizes are at least 1, no axis repeats, and the rank count fits 32 bits.

use super::{ParallelAxis, ParallelError};
use crate::base::Rank;
use crate::layout::Mesh;
use std::fmt;
use std::str::FromStr;

/// Sizes of the kinds of parallelism, the first varying fastest from rank to rank (Megatron's order): under
/// `tp=2,dp=2` ranks 0 and 1 are a tensor-parallel pair, and the row-major mesh has the axes `dp`, `tp`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ParallelSpec {
    /// As written: the fastest first.
    sizes: Vec<(ParallelAxis, u32)>,
    ranks: u32,
}

impl ParallelSpec {
    /// Reads `tp=4`, `tp=2,dp=2`, `tp=2,ep=4,dp=1`; blanks around items and signs are ignored.
    pub fn parse(text: &str) -> Result<Self, ParallelError> {
        if text.trim().is_empty() {
            return Err(ParallelError::Empty);
        }
        let mut sizes: Vec<(ParallelAxis, u32)> = Vec::new();
        for item in text.split(',') {
            let (axis, size) = read_item(item, text)?;
            if sizes.iter().any(|&(earlier, _)| earlier == axis) {
                return Err(ParallelError::Repeated { axis, text: text.to_string() });
            }
            sizes.push((axis, size));
        }
        let ranks = sizes
            .iter()
            .try_fold(1u32, |product, &(_, size)| product.checked_mul(size))
            .ok_or_else(|| ParallelError::Overflow { text: text.to_string() })?;
        Ok(Self { sizes, ranks })
    }

    /// Number of ranks: the product of the sizes.
    pub fn rank_count(&self) -> u32 {
        self.ranks
    }

    /// Size along `axis`, 1 when it is not written.
    pub fn size(&self, axis: ParallelAxis) -> u32 {
        self.sizes.iter().find(|&&(kind, _)| kind == axis).map_or(1, |&(_, size)| size)
    }

    /// Axes and sizes in mesh order: the slowest first, which is the reverse of the text.
    pub fn mesh_axes(&self) -> impl DoubleEndedIterator<Item = (ParallelAxis, u32)> + ExactSizeIterator + '_ {
        self.sizes.iter().rev().copied()
    }

    /// The mesh of these sizes over `ranks`, in the order of [`ParallelSpec::mesh_axes`].
    pub fn mesh(&self, ranks: &[Rank]) -> Result<Mesh, ParallelError> {
        if ranks.len() as u64 != u64::from(self.ranks) {
            let spec = self.to_string();
            return Err(ParallelError::RankCount { spec, needed: self.ranks, given: ranks.len() });
        }
        let shape = self.mesh_axes().map(|(_, size)| size).collect();
        Mesh::new(shape, ranks.to_vec()).map_err(|source| ParallelError::Mesh { spec: self.to_string(), source })
    }
}

fn read_item(item: &str, text: &str) -> Result<(ParallelAxis, u32), ParallelError> {
    let text = || text.to_string();
    let Some((name, size)) = item.split_once('=') else {
        return Err(ParallelError::Unreadable { item: item.trim().to_string(), text: text() });
    };
    let (name, size) = (name.trim(), size.trim());
    let Some(axis) = ParallelAxis::from_name(name) else {
        let axis = name.to_string();
        return Err(match name {
            "" => ParallelError::Unreadable { item: item.trim().to_string(), text: text() },
            _ if ParallelAxis::UNSUPPORTED.contains(&name) => ParallelError::Unsupported { axis, text: text() },
            _ => ParallelError::UnknownAxis { axis, text: text() },
        });
    };
    // `u32::from_str` takes a leading plus, which no one writes on purpose.
    let digits = size.bytes().all(|byte| byte.is_ascii_digit());
    match size.parse::<u32>() {
        Ok(value) if value > 0 && digits => Ok((axis, value)),
        _ => Err(ParallelError::Size { axis, size: size.to_string(), text: text() }),
    }
}

impl fmt::Display for ParallelSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (axis, size)) in self.sizes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{axis}={size}")?;
        }
        Ok(())
    }
}

impl FromStr for ParallelSpec {
    type Err = ParallelError;

    fn from_str(text: &str) -> Result<Self, ParallelError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranks(count: u32) -> Vec<Rank> {
        (0..count).map(Rank).collect()
    }

    #[test]
    fn the_first_axis_varies_fastest() {
        let spec = ParallelSpec::parse(" tp=2, dp = 3 ").unwrap();
        assert_eq!(spec.to_string(), "tp=2,dp=3");
        assert_eq!(spec.rank_count(), 6);
        let mesh = spec.mesh(&ranks(6)).unwrap();
        assert_eq!(mesh.shape(), [3, 2]);
        assert_eq!(mesh.coordinates(3), [1, 1]);
        assert_eq!((spec.size(ParallelAxis::Tensor), spec.size(ParallelAxis::Expert)), (2, 1));
        let spec = ParallelSpec::parse("dp=3,tp=2").unwrap();
        assert_eq!(spec.mesh(&ranks(6)).unwrap().shape(), [2, 3]);
        assert_eq!(ParallelSpec::parse("tp=2,ep=4,dp=1").unwrap().mesh(&ranks(8)).unwrap().shape(), [1, 4, 2]);
    }

    #[test]
    fn bad_texts() {
        let fail = |text: &str| ParallelSpec::parse(text).unwrap_err();
        assert_eq!(fail(" "), ParallelError::Empty);
        for text in ["tp", "tp=2,", ",", "=3", "tp=2;dp=2=1,x"] {
            let error = fail(text);
            assert!(matches!(error, ParallelError::Unreadable { .. } | ParallelError::Size { .. }), "{text}: {error}");
        }
        for axis in ParallelAxis::UNSUPPORTED {
            assert!(fail(&format!("tp=2,{axis}=2")).to_string().contains("not supported by refit yet"));
        }
        let unknown = fail("TP=2").to_string();
        assert!(unknown.contains("\"TP\"") && unknown.contains("tp, ep and dp"), "{unknown}");
        for size in ["0", "", "-1", "+2", "2.0", "4294967296", "two", "1_000"] {
            assert!(matches!(fail(&format!("tp={size}")), ParallelError::Size { .. }), "{size}");
        }
        assert!(matches!(fail("tp=2,dp=2,tp=2"), ParallelError::Repeated { axis: ParallelAxis::Tensor, .. }));
        assert!(matches!(fail("tp=65536,dp=65536"), ParallelError::Overflow { .. }));
    }

    #[test]
    fn rank_count_error_says_both() {
        let spec = ParallelSpec::parse("tp=2,dp=2").unwrap();
        let error = spec.mesh(&ranks(3)).unwrap_err().to_string();
        assert!(error.contains("needs 4 ranks and 3 are given"), "{error}");
        let error = spec.mesh(&[Rank(0), Rank(1), Rank(1), Rank(2)]).unwrap_err();
        assert!(matches!(error, ParallelError::Mesh { .. }));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[tepd=,0-9 ]{0,24}") {
            if let Ok(spec) = ParallelSpec::parse(&text) {
                prop_assert_eq!(ParallelSpec::parse(&spec.to_string()), Ok(spec));
            }
        }
    }
}
