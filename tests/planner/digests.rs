//! The digest that ranks compare: equal exactly when their manifests are.

use super::random::{cases, from_bytes};
use crossmesh::base::Rank;
use crossmesh::layout::{AxisMap, Dtype, Interval, Layout, Mesh, Part, Placement, Reduction};
use crossmesh::plan::digest::{FIELDS, field_values, first_difference};
use crossmesh::plan::{Difference, Manifest, ManifestDigest, Transform};
use proptest::prelude::*;
use std::sync::Arc;

/// Description of one side, for changing one thing at a time.
#[derive(Debug, Clone)]
struct Side {
    mesh: Vec<u32>,
    first: u32,
    placements: Vec<Placement>,
    reversed: bool,
    /// Indices of a block of rows, for scales of a weight that has so many times the rows.
    block: u64,
    padding: Option<u8>,
}

/// Description of a tensor.
#[derive(Debug, Clone)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    dtype: Dtype,
    /// Of the destination, where it is another.
    wanted: Option<Dtype>,
    transform: Transform,
    source: Side,
    destination: Side,
}

impl Side {
    fn build(&self, shape: &[u64], dtype: Dtype) -> Arc<Layout> {
        let mesh = Mesh::contiguous(self.mesh.clone(), Rank(self.first)).unwrap();
        let mut shape = shape.to_vec();
        shape[0] *= self.block;
        let layout = Layout::new(shape.clone(), dtype, Arc::new(mesh), self.placements.clone()).unwrap();
        let reversed: Vec<usize> = layout.nesting()[0].iter().rev().copied().collect();
        let mut layout = if self.reversed { layout.with_nesting(0, &reversed).unwrap() } else { layout };
        if self.block > 1 {
            let mut blocks = vec![1; shape.len()];
            blocks[0] = self.block;
            layout = layout.block_scales(&blocks, dtype).unwrap();
        }
        if let Some(byte) = self.padding {
            layout = layout.with_padding(&vec![byte; dtype.bytes() as usize]).unwrap();
        }
        Arc::new(layout)
    }
}

fn build(tensors: &[Tensor]) -> Manifest {
    let mut manifest = Manifest::new();
    for tensor in tensors {
        let source = tensor.source.build(&tensor.shape, tensor.dtype);
        let destination = tensor.destination.build(&tensor.shape, tensor.wanted.unwrap_or(tensor.dtype));
        manifest.push_with(tensor.name.clone(), source, destination, tensor.transform).unwrap();
    }
    manifest
}

fn digest(manifest: &Manifest) -> ManifestDigest {
    ManifestDigest::new(manifest, b"context")
}

fn differences(first: &Manifest, other: &Manifest) -> Vec<Difference> {
    let values = |manifest: &Manifest, index: usize| {
        manifest.tensors().get(index).map(|tensor| field_values(tensor).to_vec()).unwrap_or_default()
    };
    let count = first.tensors().len().max(other.tensors().len());
    (0..count).filter_map(|index| first_difference(index, &values(first, index), &values(other, index))).collect()
}

/// Tensors whose both sides shard dimension 0 twice over a 2 x 2 mesh.
fn manifests() -> impl Strategy<Value = Vec<Tensor>> {
    let side = (0u32..4, any::<bool>()).prop_map(|(first, reversed)| Side {
        mesh: vec![2, 2],
        first,
        placements: vec![Placement::shard(0); 2],
        reversed,
        block: 1,
        padding: None,
    });
    let dtype = prop::sample::select(vec![Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::I64]);
    let tensor =
        (1u64..5, 1u64..9, dtype, side.clone(), side).prop_map(|(rows, columns, dtype, source, destination)| Tensor {
            name: String::new(),
            shape: vec![4 * rows, columns],
            dtype,
            wanted: None,
            transform: Transform::None,
            source,
            destination,
        });
    proptest::collection::vec(tensor, 2..5).prop_map(|mut tensors| {
        tensors.iter_mut().enumerate().for_each(|(index, tensor)| tensor.name = format!("tensor {index}"));
        tensors
    })
}

/// One change, and the field that must be named.
type Mutation = (&'static str, fn(&mut Tensor));

const MUTATIONS: [Mutation; 26] = [
    ("name", |tensor| tensor.name.push('x')),
    ("name", |tensor| tensor.name.clear()),
    ("shape", |tensor| tensor.shape[0] += 4),
    ("shape", |tensor| tensor.shape[1] += 1),
    ("shape", |tensor| tensor.shape.push(1)),
    ("shape", |tensor| tensor.shape[1] = 0),
    ("dtype", |tensor| tensor.dtype = Dtype::F8E4M3),
    ("dtype", |tensor| {
        (tensor.dtype, tensor.wanted, tensor.transform) = (Dtype::F32, Some(Dtype::F16), Transform::Cast)
    }),
    ("transform", |tensor| tensor.transform = Transform::Cast),
    ("source placements", |tensor| {
        (tensor.source.reversed, tensor.source.placements[0]) = (false, Placement::Partial(Reduction::Sum))
    }),
    ("source mesh", |tensor| tensor.source.first += 1),
    ("source mesh", |tensor| tensor.source.mesh = vec![4, 1]),
    ("source placements", |tensor| tensor.source.placements[1] = Placement::chunk(0)),
    ("source placements", |tensor| {
        (tensor.source.reversed, tensor.source.placements[1]) = (false, Placement::shard(1))
    }),
    ("source placements", |tensor| {
        (tensor.source.reversed, tensor.source.placements[0]) = (false, Placement::Replicate)
    }),
    ("destination mesh", |tensor| tensor.destination.first += 1),
    ("destination mesh", |tensor| tensor.destination.mesh = vec![1, 4]),
    ("destination placements", |tensor| {
        tensor.destination.reversed = false;
        tensor.destination.placements = vec![Placement::sizes(0, [tensor.shape[0], 0]), Placement::Replicate];
    }),
    ("destination placements", |tensor| {
        tensor.destination.reversed = false;
        tensor.destination.placements = vec![Placement::sizes(0, [0, tensor.shape[0]]), Placement::Replicate];
    }),
    ("nesting", |tensor| tensor.source.reversed = !tensor.source.reversed),
    ("nesting", |tensor| tensor.destination.reversed = !tensor.destination.reversed),
    ("source placements", |tensor| {
        let maps = [(0, 2), (2, 4)].map(|(lo, hi)| AxisMap::new([Interval { lo, hi }]));
        (tensor.source.reversed, tensor.source.placements) =
            (false, vec![Placement::parts(0, maps), Placement::Replicate]);
    }),
    ("destination placements", |tensor| {
        let part = Part::Global(Interval { lo: 0, hi: 4 });
        let maps = [Part::Hole(1), Part::Padding(1)].map(|gap| AxisMap::of_parts([part, gap]).unwrap());
        (tensor.destination.reversed, tensor.destination.placements) =
            (false, vec![Placement::parts(0, maps), Placement::Replicate]);
    }),
    ("blocks", |tensor| tensor.destination.block = 3),
    ("blocks", |tensor| tensor.source.block = 2),
    ("padding", |tensor| tensor.destination.padding = Some(0)),
];

#[test]
fn every_field_is_mutated() {
    for field in FIELDS {
        assert!(MUTATIONS.iter().any(|&(named, _)| named == field), "{field}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn one_changed_field_is_found(tensors in manifests(), pick in any::<prop::sample::Index>()) {
        let index = pick.index(tensors.len());
        let first = build(&tensors);
        prop_assert_eq!(digest(&first), digest(&build(&tensors)));
        prop_assert_eq!(differences(&first, &build(&tensors)), []);
        for (field, mutate) in MUTATIONS {
            let mut changed = tensors.clone();
            mutate(&mut changed[index]);
            let other = build(&changed);
            let (first_digest, other_digest) = (digest(&first), digest(&other));
            prop_assert_ne!(first_digest.root, other_digest.root, "{}", field);
            for leaf in 0..tensors.len() {
                prop_assert_eq!(first_digest.leaves[leaf] != other_digest.leaves[leaf], leaf == index);
            }
            let found = differences(&first, &other);
            prop_assert_eq!(found.len(), 1);
            prop_assert_eq!((found[0].tensor, &found[0].name, found[0].field), (index, &tensors[index].name, field));
            prop_assert_ne!(&found[0].first, &found[0].other);
        }
    }

    #[test]
    fn swapped_dropped_and_added_tensors_are_found(tensors in manifests()) {
        let first = build(&tensors);
        let mut swapped = tensors.clone();
        swapped.swap(0, 1);
        let other = build(&swapped);
        prop_assert_ne!(digest(&first).root, digest(&other).root);
        let found = differences(&first, &other);
        prop_assert_eq!((found.len(), found[0].field, &found[0].other), (2, "name", &tensors[1].name));
        let shorter = build(&tensors[1..]);
        prop_assert_ne!(digest(&first).root, digest(&shorter).root);
        let last = differences(&first, &build(&tensors[..tensors.len() - 1]));
        prop_assert_eq!((last.len(), last[0].other.as_str()), (1, "no such tensor"));
    }

    #[test]
    fn sharing_layouts_changes_nothing(case in cases()) {
        prop_assert_eq!(digest(&case.manifest), digest(&case.apart().manifest));
    }
}

/// Every pair out of a small world of manifests, in which many are equal.
#[test]
fn equal_exactly_when_all_fields_are() {
    let world: Vec<_> = (0..512u32)
        .map(|bits| from_bytes((0..9).map(|bit| (bits >> bit & 1) as u8).collect()).manifest)
        .map(|manifest| (digest(&manifest).root, manifest.tensors().iter().map(field_values).collect::<Vec<_>>()))
        .collect();
    let mut equal = 0;
    for (first_root, first_values) in &world {
        for (other_root, other_values) in &world {
            assert_eq!(first_root == other_root, first_values == other_values, "{first_values:?} {other_values:?}");
            equal += usize::from(first_root == other_root);
        }
    }
    assert!(equal > world.len() && equal < world.len() * world.len() / 2, "{equal} equal pairs");
}

#[test]
fn the_context_counts() {
    let manifest = Manifest::new();
    let roots = [b"".as_slice(), b"a", b"b"].map(|context| ManifestDigest::new(&manifest, context).root);
    assert!(roots[0] != roots[1] && roots[1] != roots[2] && roots[0] != roots[2]);
}
