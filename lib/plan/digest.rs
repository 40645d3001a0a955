//! Agreement before the first byte. In: manifest, options, topology. Out: a hash over a canonical encoding, as a
//! two-level Merkle tree: a leaf per tensor, a root over all. Guarantee: equal exactly when the encodings are
//! equal (SHA-256); a difference can be found tensor by tensor and field by field.

use super::{Manifest, TensorSpec, Transform};
use crate::layout::{AxisMap, Layout, Mesh, Placement, Reduction, Segment, Split};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// A SHA-256 hash.
pub type Digest = [u8; 32];

/// Hashes of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestDigest {
    /// Over everything.
    pub root: Digest,
    /// Over topology, options and version.
    pub context: Digest,
    /// Per tensor.
    pub leaves: Vec<Digest>,
}

/// Fields of a tensor that ranks can disagree about, in the order in which they are compared.
pub const FIELDS: [&str; 11] = [
    "name",
    "shape",
    "dtype",
    "transform",
    "source mesh",
    "source placements",
    "destination mesh",
    "destination placements",
    "nesting",
    "blocks",
    "padding",
];

/// Where two ranks differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Index of the tensor.
    pub tensor: usize,
    /// Its name on the first rank.
    pub name: String,
    /// Field of [`FIELDS`].
    pub field: &'static str,
    /// The first rank's value.
    pub first: String,
    /// The other rank's value.
    pub other: String,
}

impl ManifestDigest {
    /// Hashes a manifest; `context` is the canonical encoding of topology and options.
    pub fn new(manifest: &Manifest, context: &[u8]) -> Self {
        let mut layouts = Layouts::default();
        let leaves: Vec<Digest> = manifest
            .tensors()
            .iter()
            .map(|tensor| {
                let mut hasher = Sha256::new();
                hash_text(&mut hasher, tensor.name.as_bytes());
                hasher.update(layouts.digest(&tensor.source));
                hasher.update(layouts.digest(&tensor.destination));
                hasher.update([transform_tag(tensor.transform)]);
                hasher.finalize().into()
            })
            .collect();
        let mut context_hasher = Sha256::new();
        context_hasher.update(crate::PROTOCOL_VERSION.to_le_bytes());
        hash_text(&mut context_hasher, context);
        let context: Digest = context_hasher.finalize().into();
        let mut root = Sha256::new();
        root.update(context);
        root.update((leaves.len() as u64).to_le_bytes());
        leaves.iter().for_each(|leaf| root.update(leaf));
        Self { root: root.finalize().into(), context, leaves }
    }
}

/// The fields of a tensor as texts, in the order of [`FIELDS`].
pub fn field_values(tensor: &TensorSpec) -> [String; 11] {
    let layout = &tensor.source;
    let mesh = |layout: &Layout| format!("shape {:?} ranks {}", layout.mesh().shape(), rank_list(layout));
    [
        tensor.name.clone(),
        format!("{:?}", layout.shape()),
        dtypes(tensor),
        tensor.transform.to_string(),
        mesh(&tensor.source),
        format!("{:?}", tensor.source.placements()),
        mesh(&tensor.destination),
        format!("{:?}", tensor.destination.placements()),
        format!("{:?} to {:?}", tensor.source.nesting(), tensor.destination.nesting()),
        format!("{:?} to {:?}", tensor.source.blocks(), tensor.destination.blocks()),
        format!("{:?} to {:?}", tensor.source.padding(), tensor.destination.padding()),
    ]
}

fn dtypes(tensor: &TensorSpec) -> String {
    let (source, destination) = (tensor.source.dtype(), tensor.destination.dtype());
    if source == destination { source.to_string() } else { format!("{source} to {destination}") }
}

/// First field in which `other` differs from `first`.
pub fn first_difference(tensor: usize, first: &[String], other: &[String]) -> Option<Difference> {
    let index = (0..FIELDS.len()).find(|&index| first.get(index) != other.get(index))?;
    let value = |values: &[String]| values.get(index).cloned().unwrap_or_else(|| "no such tensor".into());
    let name = first.first().or(other.first()).cloned().unwrap_or_default();
    Some(Difference { tensor, name, field: FIELDS[index], first: value(first), other: value(other) })
}

fn rank_list(layout: &Layout) -> String {
    let mesh = layout.mesh();
    let (first, last) = (mesh.rank(0), mesh.rank(mesh.slots() - 1));
    match Mesh::contiguous(mesh.shape().to_vec(), first) {
        Ok(contiguous) if contiguous == *mesh && first != last => format!("{first}-{last}"),
        _ => mesh.ranks().map(|rank| rank.to_string()).collect::<Vec<_>>().join(","),
    }
}

/// Digests of layouts and meshes, each computed once.
#[derive(Default)]
struct Layouts {
    layouts: HashMap<*const Layout, Digest>,
    meshes: HashMap<*const Mesh, Digest>,
}

impl Layouts {
    fn digest(&mut self, layout: &Arc<Layout>) -> Digest {
        let mesh = *self.meshes.entry(layout.mesh()).or_insert_with(|| mesh_digest(layout.mesh()));
        *self.layouts.entry(Arc::as_ptr(layout)).or_insert_with(|| layout_digest(layout, &mesh))
    }
}

fn mesh_digest(mesh: &Mesh) -> Digest {
    let mut hasher = Sha256::new();
    hash_numbers(&mut hasher, mesh.shape().iter().map(|&length| u64::from(length)));
    match mesh.as_affine() {
        Some((first, strides)) => {
            hasher.update([1]);
            hasher.update(first.0.to_le_bytes());
            hash_numbers(&mut hasher, strides.iter().map(|&stride| u64::from(stride)));
        }
        None => {
            hasher.update([2]);
            hash_numbers(&mut hasher, mesh.ranks().map(|rank| u64::from(rank.0)));
        }
    }
    hasher.finalize().into()
}

fn layout_digest(layout: &Layout, mesh: &Digest) -> Digest {
    let mut hasher = Sha256::new();
    hash_numbers(&mut hasher, layout.shape().iter().copied());
    hash_text(&mut hasher, layout.dtype().name().as_bytes());
    hasher.update(mesh);
    for placement in layout.placements() {
        hash_placement(&mut hasher, placement);
    }
    for axes in layout.nesting() {
        hash_numbers(&mut hasher, axes.iter().map(|&axis| axis as u64));
    }
    let (weight, blocks) = layout.blocks().unwrap_or_default();
    hash_numbers(&mut hasher, weight.iter().copied());
    hash_numbers(&mut hasher, blocks.iter().copied());
    hash_text(&mut hasher, layout.padding().unwrap_or_default());
    hasher.finalize().into()
}

/// No two transforms have one tag; what a later one says follows its tag.
fn transform_tag(transform: Transform) -> u8 {
    match transform {
        Transform::None => 0,
        Transform::Cast => 1,
    }
}

/// A tag, then what the tag says: no encoding is the beginning of another.
fn hash_placement(hasher: &mut Sha256, placement: &Placement) {
    match placement {
        Placement::Replicate => hasher.update([0]),
        Placement::Partial(Reduction::Sum) => hasher.update([5, 0]),
        Placement::Shard { dim, split } => {
            let tag = match split {
                Split::Floor => 1,
                Split::Chunk => 2,
                Split::Sizes(_) => 3,
            };
            hasher.update([tag]);
            hasher.update((*dim as u64).to_le_bytes());
            if let Split::Sizes(sizes) = split {
                hash_numbers(hasher, sizes.iter().copied());
            }
        }
        Placement::Parts { dim, maps } => {
            hasher.update([4]);
            hasher.update((*dim as u64).to_le_bytes());
            hasher.update((maps.len() as u64).to_le_bytes());
            maps.iter().for_each(|map| hash_map(hasher, map));
        }
    }
}

fn hash_map(hasher: &mut Sha256, map: &AxisMap) {
    let segments = map.segments();
    hash_numbers(hasher, [map.extent(), segments.len() as u64].into_iter());
    for Segment { local, step, global } in segments {
        hash_numbers(hasher, [*local, *step, global.lo, global.hi].into_iter());
    }
    hasher.update((map.padding().len() as u64).to_le_bytes());
    map.padding().iter().for_each(|span| hash_numbers(hasher, [span.lo, span.hi].into_iter()));
}

fn hash_text(hasher: &mut Sha256, text: &[u8]) {
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text);
}

fn hash_numbers(hasher: &mut Sha256, numbers: impl ExactSizeIterator<Item = u64>) {
    hasher.update((numbers.len() as u64).to_le_bytes());
    numbers.for_each(|number| hasher.update(number.to_le_bytes()));
}
