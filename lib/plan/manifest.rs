//! The whole model. In: tensors with two layouts each. Out: an ordered list. Guarantee: names are unique, and the two
//! layouts of a tensor describe the same tensor, or one that its transform makes the other.

use super::transform::CASTABLE;
use super::{PlanError, Transform};
use crate::base::Rank;
use crate::layout::{Dtype, Layout, LayoutError, Mesh, Placement};
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
    /// What happens to its elements on their way.
    pub transform: Transform,
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
        self.push_with(name, source, destination, Transform::None)
    }

    /// Adds a tensor whose elements may change on their way.
    pub fn push_with(
        &mut self,
        name: impl Into<String>,
        source: Arc<Layout>,
        destination: Arc<Layout>,
        transform: Transform,
    ) -> Result<(), PlanError> {
        let name = name.into();
        if source.shape() != destination.shape() {
            return Err(PlanError::Shape {
                name,
                source_shape: source.shape().to_vec(),
                destination_shape: destination.shape().to_vec(),
            });
        }
        if destination.placements().iter().any(|placement| matches!(placement, Placement::Partial(_))) {
            return Err(PlanError::PartialDestination { name });
        }
        transform.check(&name, &source, &destination)?;
        let second = self.tensors.len();
        if let Some(&first) = self.names.get(&name) {
            return Err(PlanError::Duplicate { name, first, second });
        }
        self.names.insert(name.clone(), second);
        self.tensors.push(TensorSpec { name, source, destination, transform });
        Ok(())
    }

    /// The same tensors, of which those that can be cast to `dtype` (F32, F16 and BF16) arrive as such; others, and those
    /// numbered in `keep`, keep their type.
    pub fn cast_to(&self, dtype: Dtype, keep: &[usize]) -> Result<Self, PlanError> {
        let mut known: HashMap<*const Layout, Arc<Layout>> = HashMap::new();
        let mut cast = self.clone();
        for (number, tensor) in cast.tensors.iter_mut().enumerate() {
            let castable = [tensor.source.dtype(), dtype].iter().all(|dtype| CASTABLE.contains(dtype));
            if !castable || keep.contains(&number) {
                continue;
            }
            let made = match known.get(&Arc::as_ptr(&tensor.destination)) {
                Some(made) => made.clone(),
                None => {
                    let made = tensor.destination.with_dtype(dtype);
                    Arc::new(made.map_err(|layout| PlanError::Layout { name: tensor.name.clone(), layout })?)
                }
            };
            // Of the old layout, which the manifest that is being copied keeps alive.
            known.insert(Arc::as_ptr(&tensor.destination), made.clone());
            (tensor.destination, tensor.transform) = (made, Transform::Cast);
        }
        Ok(cast)
    }

    /// The tensors in order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Bytes of all tensors as they travel, each counted once.
    pub fn global_bytes(&self) -> Result<u64, PlanError> {
        self.sum_of_bytes(1, TensorSpec::wire_dtype)
    }

    /// All tensors, in the largest form that they take anywhere, on `ranks` ranks must fit 64 bits.
    pub(super) fn check_bytes(&self, ranks: usize) -> Result<(), PlanError> {
        let largest = |dtypes: [Dtype; 2]| if dtypes[0].bytes() < dtypes[1].bytes() { dtypes[1] } else { dtypes[0] };
        self.sum_of_bytes(ranks, |tensor| largest([tensor.held_dtype(), tensor.destination.dtype()])).map(|_| ())
    }

    /// Bytes of all tensors, each once, which `ranks` times fit 64 bits.
    fn sum_of_bytes(&self, ranks: usize, dtype: impl Fn(&TensorSpec) -> Dtype) -> Result<u64, PlanError> {
        // Elements fit 64 bits, since the bytes of both layouts do; sums do 128 bits.
        let bytes = |tensor: &TensorSpec| {
            let elements = tensor.source.global_bytes() / tensor.source.dtype().bytes();
            u128::from(elements) * u128::from(dtype(tensor).bytes())
        };
        let sum: u128 = self.tensors.iter().map(bytes).sum();
        match u64::try_from(sum).ok().filter(|sum| sum.checked_mul(ranks as u64).is_some()) {
            Some(sum) => Ok(sum),
            None => {
                let largest = self.tensors.iter().max_by_key(|tensor| bytes(tensor));
                let largest = largest.map(|tensor| tensor.name.clone()).unwrap_or_default();
                Err(PlanError::TooLarge { tensors: self.tensors.len(), bytes: sum, largest, ranks })
            }
        }
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
