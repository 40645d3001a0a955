//! Layouts as they are written. In: fields of unknown origin. Out: [`Layout`]. Guarantee: reading checks all that building
//! checks, so a layout that was read is as good as one that was built.

use super::{AxisMap, Dtype, Layout, LayoutError, Mesh, Placement};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A layout's fields as they were read, before anything is made of them.
#[derive(Debug, Serialize, Deserialize)]
pub struct LayoutFields {
    shape: Vec<u64>,
    dtype: Dtype,
    mesh: Arc<Mesh>,
    placements: Vec<Placement>,
    nesting: Vec<Vec<usize>>,
    blocks: Option<(Vec<u64>, Vec<u64>)>,
    padding: Option<Vec<u8>>,
}

impl LayoutFields {
    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }
}

impl From<Layout> for LayoutFields {
    fn from(layout: Layout) -> Self {
        Self {
            shape: layout.shape().to_vec(),
            dtype: layout.dtype(),
            mesh: layout.shared_mesh(),
            placements: layout.placements().to_vec(),
            nesting: layout.nesting().to_vec(),
            blocks: layout.blocks().map(|(weight, blocks)| (weight.to_vec(), blocks.to_vec())),
            padding: layout.padding().map(<[u8]>::to_vec),
        }
    }
}

impl TryFrom<LayoutFields> for Layout {
    type Error = LayoutError;

    fn try_from(value: LayoutFields) -> Result<Self, LayoutError> {
        for placement in &value.placements {
            if let Placement::Parts { dim, maps } = placement {
                maps.iter().try_for_each(|map| check_map(*dim, map))?;
            }
        }
        let shape = value.blocks.as_ref().map_or(&value.shape, |(weight, _)| weight).clone();
        let mut layout = Layout::nested(shape, value.dtype, value.mesh, value.placements, value.nesting)?;
        if let Some((_, blocks)) = &value.blocks {
            layout = layout.block_scales(blocks, value.dtype)?;
        }
        match &value.padding {
            Some(element) => layout.with_padding(element),
            None => Ok(layout),
        }
    }
}

/// Every segment must lie inside the map's extent.
fn check_map(dim: usize, map: &AxisMap) -> Result<(), LayoutError> {
    let fits = map.segments().iter().all(|segment| {
        let last = segment.global.len().checked_sub(1).and_then(|steps| steps.checked_mul(segment.step));
        let last = last.and_then(|steps| segment.local.checked_add(steps));
        segment.step > 0 && last.is_some_and(|last| last < map.extent())
    });
    let ordered = map.segments().is_sorted_by_key(|segment| segment.local)
        && map.padding().iter().all(|span| span.lo <= span.hi && span.hi <= map.extent())
        && map.padding().windows(2).all(|pair| pair[0].hi <= pair[1].lo);
    match fits && ordered {
        true => Ok(()),
        false => Err(LayoutError::MapTorn { dim, extent: map.extent() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rank;

    fn again(layout: &Layout) -> Result<Layout, postcard::Error> {
        postcard::from_bytes(&postcard::to_allocvec(layout).unwrap())
    }

    #[test]
    fn layouts_survive_and_bad_ones_do_not() {
        let mesh = Arc::new(Mesh::contiguous(vec![2, 3], Rank(1)).unwrap());
        let placements = vec![Placement::shard(0), Placement::chunk(0)];
        let plain = Layout::new(vec![384, 256], Dtype::BF16, mesh.clone(), placements.clone()).unwrap();
        let nested = plain.clone().with_nesting(0, &[1, 0]).unwrap();
        let scales = nested.block_scales(&[128, 128], Dtype::F32).unwrap().with_padding(&[0, 0, 128, 63]).unwrap();
        for layout in [plain, nested, scales] {
            assert_eq!(again(&layout).unwrap(), layout);
        }
        let bad = |shape: &[u64], nesting: Vec<Vec<usize>>| LayoutFields {
            shape: shape.to_vec(),
            dtype: Dtype::U8,
            mesh: mesh.clone(),
            placements: placements.clone(),
            nesting,
            blocks: None,
            padding: None,
        };
        assert!(Layout::try_from(bad(&[12], vec![vec![0, 1]])).is_ok());
        assert!(Layout::try_from(bad(&[12], vec![vec![0, 0]])).is_err());
        assert!(Layout::try_from(bad(&[12], vec![])).is_err());
        assert!(Layout::try_from(bad(&[1; 9], vec![vec![0, 1]])).is_err());
        let padded = LayoutFields { padding: Some(vec![1, 2]), ..bad(&[12], vec![vec![0, 1]]) };
        assert!(Layout::try_from(padded).is_err());
    }
}
