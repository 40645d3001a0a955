//! The whole model. In: tensors with two layouts each. Out: an ordered list. Guarantee: names are unique and
//! the two layouts of a tensor describe the same tensor.

use super::PlanError;
use crate::base::Rank;
use crate::layout::{Layout, LayoutError, Mesh};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name, unique in the manifest.
    pub name: String,
    /// Where it is.
    pub source: Arc<Layout>,
    /// Where it is wanted.
    pub destination: Arc<Layout>,
}

/// All tensors of a transfer, in an order that every rank must use.
#[derive(Debug, Clone, Default)]
pub struct Manifest {
    tensors: Vec<TensorSpec>,
    names: HashMap<String, usize>,
}

impl Manifest {
    /// No tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor. Layouts may be shared between tensors; sharing them makes planning faster.
    pub fn push(
        &mut self,
        name: impl Into<String>,
        source: Arc<Layout>,
        destination: Arc<Layout>,
    ) -> Result<(), PlanError> {
        let name = name.into();
        if source.shape() != destination.shape() {
            return Err(PlanError::Shape {
                name,
                source_shape: source.shape().to_vec(),
                destination_shape: destination.shape().to_vec(),
            });
        }
        if source.dtype() != destination.dtype() {
            let (source_dtype, destination_dtype) = (source.dtype(), destination.dtype());
            return Err(PlanError::Dtype { name, source_dtype, destination_dtype });
        }
        let second = self.tensors.len();
        if let Some(&first) = self.names.get(&name) {
            return Err(PlanError::Duplicate { name, first, second });
        }
        self.names.insert(name.clone(), second);
        self.tensors.push(TensorSpec { name, source, destination });
        Ok(())
    }

    /// The tensors in order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Bytes of all tensors, each counted once.
    pub fn global_bytes(&self) -> Result<u64, PlanError> {
        self.tensors
            .iter()
            .try_fold(0u64, |sum, tensor| sum.checked_add(tensor.source.global_bytes()))
            .ok_or(PlanError::TooLarge)
    }

    /// Every mesh rank must be below `size`.
    pub fn check_ranks(&self, size: usize) -> Result<(), PlanError> {
        let mut seen: HashSet<*const Mesh> = HashSet::new();
        for tensor in &self.tensors {
            for (side, layout) in [("source", &tensor.source), ("destination", &tensor.destination)] {
                if !seen.insert(layout.mesh()) {
                    continue;
                }
                let rank = layout.mesh().greatest_rank();
                if rank.index() >= size {
                    let last = u32::try_from(size).unwrap_or(u32::MAX).saturating_sub(1);
                    let layout = LayoutError::MeshOutside { side, rank, last };
                    return Err(PlanError::Layout { name: tensor.name.clone(), layout });
                }
            }
        }
        Ok(())
    }

    /// All ranks that any tensor of the given side names, ascending.
    pub fn side_ranks(&self, side: impl Fn(&TensorSpec) -> &Layout) -> Vec<Rank> {
        let mut seen: HashSet<*const Mesh> = HashSet::new();
        let mut ranks: BTreeSet<Rank> = BTreeSet::new();
        for mesh in self.tensors.iter().map(|tensor| side(tensor).mesh()) {
            if seen.insert(mesh) {
                ranks.extend(mesh.ranks());
            }
        }
        ranks.into_iter().collect()
    }
}
