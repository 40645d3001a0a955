//! Random plans. In: bytes of entropy, which proptest shrinks. Out: manifests, ranks and domains. Guarantee: every
//! string of bytes is a valid plan; shorter and smaller strings are simpler plans.

use crossmesh::base::Rank;
use crossmesh::layout::{AxisMap, Dtype, Interval, Layout, Mesh, Part, Placement, Split};
use crossmesh::plan::{Manifest, Plan};
use crossmesh::topology::Topology;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::sync::Arc;

/// A manifest and where its ranks are.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) manifest: Arc<Manifest>,
    pub(super) topology: Topology,
}

impl Case {
    /// The same plan with layouts and meshes built anew for every tensor, as another rank may have built it.
    pub(super) fn apart(&self) -> Case {
        let copy = |layout: &Layout| {
            let mesh = Mesh::new(layout.mesh().shape().to_vec(), layout.mesh().ranks().collect()).expect("a copy");
            let (shape, placements) = (layout.shape().to_vec(), layout.placements().to_vec());
            let mut copy = Layout::new(shape, layout.dtype(), Arc::new(mesh), placements).expect("a copy");
            for (dim, axes) in layout.nesting().iter().enumerate().filter(|(_, axes)| !axes.is_empty()) {
                copy = copy.with_nesting(dim, axes).expect("a copy");
            }
            if let Some(element) = layout.padding() {
                copy = copy.with_padding(element).expect("a copy");
            }
            Arc::new(copy)
        };
        let mut manifest = Manifest::new();
        for tensor in self.manifest.tensors() {
            manifest.push(&tensor.name, copy(&tensor.source), copy(&tensor.destination)).expect("a copy");
        }
        Case { manifest: Arc::new(manifest), topology: self.topology.clone() }
    }
}

/// Most elements of a tensor.
const ELEMENTS: u64 = 4096;

/// Random manifests of 1 to 4 tensors over 1 to 9 ranks in 1 to 4 domains.
pub(super) fn cases() -> impl Strategy<Value = Case> {
    proptest::collection::vec(any::<u8>(), 0..240).prop_map(from_bytes)
}

/// The plan that these bytes choose.
pub(super) fn from_bytes(bytes: Vec<u8>) -> Case {
    case(&mut Choices::new(bytes))
}

/// Choices that bytes make.
pub(crate) struct Choices {
    bytes: Vec<u8>,
    at: usize,
}

impl Choices {
    /// The choices that `bytes` make.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, at: 0 }
    }

    /// A number below `count`; zero once the bytes are used up.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(byte) % count
    }

    /// One of `values`.
    pub(crate) fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

fn case(choices: &mut Choices) -> Case {
    let size = 1 + choices.below(9);
    let domain_count = 1 + choices.below(4);
    let domains: Vec<u32> = (0..size).map(|_| choices.below(domain_count) as u32).collect();
    let mut manifest = Manifest::new();
    for index in 0..1 + choices.below(4) {
        let shape = shape(choices);
        let dtype = choices.of(&[Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64]);
        let source = layout(choices, &shape, dtype, size);
        // Now and then the same ranks, or the very same layout, on both sides.
        let destination = match choices.below(6) {
            0 => source.clone(),
            1 => on_mesh(choices, &shape, dtype, source.mesh().clone()),
            _ => layout(choices, &shape, dtype, size),
        };
        manifest.push(format!("t{index}"), Arc::new(source), Arc::new(destination)).expect("same shape and dtype");
    }
    Case { manifest: Arc::new(manifest), topology: Topology::from_domains(&domains) }
}

fn shape(choices: &mut Choices) -> Vec<u64> {
    let mut left = ELEMENTS;
    (0..choices.below(6))
        .map(|_| {
            let extent = choices.of(&[4, 1, 2, 3, 5, 6, 7, 64, 12, 0, 31]).min(left);
            left /= extent.max(1);
            extent
        })
        .collect()
}

/// A layout over any of `size` ranks, in any order.
pub(crate) fn layout(choices: &mut Choices, shape: &[u64], dtype: Dtype, size: usize) -> Layout {
    let mut slots = 1;
    let lengths: Vec<u32> = (0..1 + choices.below(3))
        .map(|_| {
            let length = 1 + choices.below(4.min(size / slots));
            slots *= length;
            length as u32
        })
        .collect();
    let mut left: Vec<u32> = (0..size as u32).collect();
    let ranks = (0..slots).map(|_| Rank(left.remove(choices.below(left.len())))).collect();
    on_mesh(choices, shape, dtype, Mesh::new(lengths, ranks).expect("as many ranks as slots"))
}

/// A layout over a given mesh.
pub(crate) fn on_mesh(choices: &mut Choices, shape: &[u64], dtype: Dtype, mesh: Mesh) -> Layout {
    // What the next axis on each dimension splits, while all its parts are equally long.
    let mut parts: Vec<Option<u64>> = shape.iter().copied().map(Some).collect();
    let mut placements = Vec::new();
    for &length in mesh.shape() {
        let split = choices.below(8);
        if shape.is_empty() || matches!(split, 0 | 6) {
            placements.push(Placement::Replicate);
            continue;
        }
        let dim = choices.below(shape.len());
        let part = parts[dim];
        parts[dim] = part.filter(|part| part % u64::from(length) == 0).map(|part| part / u64::from(length));
        if let (7, Some(extent)) = (split, part) {
            let maps: Vec<AxisMap> = (0..length).map(|coordinate| map(choices, extent, coordinate, length)).collect();
            let same = maps.windows(2).all(|pair| pair[0].extent() == pair[1].extent());
            parts[dim] = same.then(|| maps[0].extent());
            placements.push(Placement::parts(dim, maps));
            continue;
        }
        let split = match (split, part) {
            (1, _) => Split::Floor,
            (3, Some(part)) => {
                let sizes = sizes(choices, part, length);
                if sizes.windows(2).any(|pair| pair[0] != pair[1]) {
                    parts[dim] = None;
                }
                Split::Sizes(sizes)
            }
            _ => Split::Chunk,
        };
        placements.push(Placement::Shard { dim, split });
    }
    let mut layout = Layout::new(shape.to_vec(), dtype, Arc::new(mesh), placements).expect("sizes sum to their part");
    for dim in 0..shape.len() {
        let mut axes = layout.nesting()[dim].clone();
        // Parts are made for what the axes before them leave.
        if axes.len() > 1 && choices.below(2) == 1 && !layout.has_parts() {
            axes.reverse();
            // Given sizes may not fit the other order.
            layout = layout.clone().with_nesting(dim, &axes).unwrap_or(layout);
        }
    }
    if choices.below(3) == 1 {
        let element: Vec<u8> = (0..dtype.bytes()).map(|byte| 0xe0 | byte as u8).collect();
        layout = layout.with_padding(&element).expect("one element");
    }
    layout
}

/// Parts for a coordinate: its chunk, maybe in two pieces in the wrong order, spread out, or with a piece of anything
/// again; with padding or a hole in front of it, and behind.
fn map(choices: &mut Choices, extent: u64, coordinate: u32, count: u32) -> AxisMap {
    let border = |shard: u32| (u64::from(shard) * extent.div_ceil(u64::from(count))).min(extent);
    let share = Interval { lo: border(coordinate), hi: border(coordinate + 1) };
    let mut below = |end: u64| choices.below(end.min(200) as usize + 1) as u64;
    let middle = share.lo + below(share.len());
    let again = Interval { lo: below(extent), hi: below(extent) };
    let (kind, front, behind) = (below(3), below(4), below(4));
    if kind == 1 {
        return AxisMap::interleaved(share, front % 3, 3).expect("few indices");
    }
    let gap = |kind: u64| match kind {
        1 => Part::Padding(1),
        2 => Part::Padding(2),
        3 => Part::Hole(1),
        _ => Part::Hole(0),
    };
    let pieces = [
        gap(front),
        Part::Global(Interval { lo: middle, hi: share.hi }),
        Part::Global(Interval { lo: share.lo, hi: middle }),
        gap(behind),
        Part::Global(if kind == 2 { again } else { Interval { lo: 0, hi: 0 } }),
    ];
    AxisMap::of_parts(pieces).expect("few indices")
}

pub(super) fn sizes(choices: &mut Choices, part: u64, count: u32) -> Vec<u64> {
    let mut left = part;
    let mut sizes: Vec<u64> = (1..count)
        .map(|_| {
            let size = choices.below(left as usize + 1) as u64;
            left -= size;
            size
        })
        .collect();
    sizes.push(left);
    sizes
}

/// What makes a case worth having; the generator must bring every kind often.
#[test]
fn random_plans_have_all_kinds() {
    type Kind = (&'static str, fn(&Case) -> bool);
    const KINDS: [Kind; 16] = [
        ("several tensors", |case| case.manifest.tensors().len() > 2),
        ("no elements", |case| layouts(case).any(|layout| layout.global_bytes() == 0)),
        ("scalars", |case| layouts(case).any(|layout| layout.shape().is_empty())),
        ("five dimensions", |case| layouts(case).any(|layout| layout.shape().len() == 5)),
        ("three mesh axes", |case| layouts(case).any(|layout| layout.mesh().shape().len() == 3)),
        ("ranks out of order", |case| layouts(case).any(|layout| !layout.mesh().ranks().is_sorted())),
        ("given sizes", |case| {
            let mut placements = layouts(case).flat_map(Layout::placements);
            placements.any(|placement| matches!(placement, Placement::Shard { split: Split::Sizes(_), .. }))
        }),
        ("inner axis outermost", |case| layouts(case).flat_map(Layout::nesting).any(|axes| !axes.is_sorted())),
        ("overlapping meshes", |case| {
            case.manifest.tensors().iter().any(|tensor| {
                let destination = tensor.destination.mesh();
                tensor.source.mesh().ranks().any(|rank| destination.slot(rank).is_some())
            })
        }),
        ("three domains", |case| case.topology.domain_count() > 2),
        ("stated parts", |case| layouts(case).any(Layout::has_parts)),
        ("padding that is written", |case| {
            layouts(case).any(|layout| layout.padding().is_some() && any_map(layout, |map| map.padded() > 0))
        }),
        ("indices apart", |case| {
            layouts(case).any(|layout| any_map(layout, |map| map.segments().iter().any(|s| s.step > 1)))
        }),
        ("indices stored twice", |case| {
            let twice = |map: &AxisMap| {
                let mut ends: Vec<_> = map.intervals().collect();
                ends.sort_unstable();
                ends.windows(2).any(|pair| pair[1].lo < pair[0].hi)
            };
            layouts(case).any(|layout| any_map(layout, twice))
        }),
        ("parts of parts", |case| {
            layouts(case).any(|layout| {
                let is_parts = |axis: &usize| matches!(layout.placements()[*axis], Placement::Parts { .. });
                layout.nesting().iter().any(|axes| axes.len() > 1 && axes.iter().any(is_parts))
            })
        }),
        ("shares above a grain", |case| {
            let plan = Plan::compile(case.manifest.clone(), case.topology.size()).expect("valid by construction");
            plan.classes().iter().any(|class| class.bytes >= 8192 && class.wanters.len() > 1)
        }),
    ];
    let mut runner = TestRunner::deterministic();
    let strategy = cases();
    let drawn: Vec<Case> = (0..400).map(|_| strategy.new_tree(&mut runner).expect("no filters").current()).collect();
    for (kind, is) in KINDS {
        let count = drawn.iter().filter(|case| is(case)).count();
        assert!(count >= 12, "only {count} of {} random plans have {kind}", drawn.len());
    }
}

fn any_map(layout: &Layout, is: impl Fn(&AxisMap) -> bool) -> bool {
    (0..layout.shape().len()).any(|dim| layout.dimension(dim).shards.iter().any(|shard| is(&shard.map)))
}

fn layouts(case: &Case) -> impl Iterator<Item = &Layout> {
    case.manifest.tensors().iter().flat_map(|tensor| [tensor.source.as_ref(), tensor.destination.as_ref()])
}
