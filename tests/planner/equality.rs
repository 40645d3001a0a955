//! Plans by twos: digests are equal exactly when manifest, route and topology are; equal digests mean equal cells; and what
//! is shown of a difference is short.

use super::random::from_bytes;
use super::{all_options, layout};
use crossmesh::layout::{AxisMap, Dtype, Interval, Layout, Placement};
use crossmesh::plan::digest::{field_values, first_difference};
use crossmesh::plan::{CellClass, Manifest, Plan, TensorSpec, Transform};
use crossmesh::route::{RouteOptions, SavedPlan};
use crossmesh::topology::Topology;
use std::sync::Arc;

/// A checksum follows the digest at the end of a plan file.
const HASH: usize = 32;

struct Known {
    tensors: Vec<TensorSpec>,
    options: RouteOptions,
    topology: Topology,
    classes: Vec<CellClass>,
    digest: Vec<u8>,
    /// All that a file says besides.
    content: Vec<u8>,
}

fn known(manifest: Arc<Manifest>, options: RouteOptions, topology: Topology) -> Known {
    let plan = SavedPlan::new(manifest.clone(), &topology, options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan");
    plan.save(&path).unwrap();
    let mut content = std::fs::read(path).unwrap();
    content.truncate(content.len() - HASH);
    let digest = content.split_off(content.len() - HASH);
    let classes = Plan::compile(manifest.clone(), topology.size()).unwrap().classes().to_vec();
    Known { tensors: manifest.tensors().to_vec(), options, topology, classes, digest, content }
}

#[test]
fn digests_are_equal_exactly_when_plans_are() {
    let manifests = (0..64u32).map(|bits| from_bytes((0..9).map(|bit| (bits >> bit & 1) as u8).collect()).manifest);
    let size = 16;
    let topologies =
        [1, 4, 8].map(|width| Topology::from_domains(&(0..size).map(|rank| rank / width).collect::<Vec<_>>()));
    let mut world = Vec::new();
    for manifest in manifests {
        for (index, topology) in topologies.iter().enumerate() {
            world.push(known(manifest.clone(), all_options()[index], topology.clone()));
            world.push(known(manifest.clone(), all_options()[0], topology.clone()));
        }
    }
    let mut equal = 0;
    for first in &world {
        for other in &world {
            let same = first.tensors == other.tensors
                && first.options == other.options
                && (0..size).map(crossmesh::base::Rank).all(|rank| {
                    first.topology.domain(rank) == other.topology.domain(rank)
                        && first.topology.node(rank) == other.topology.node(rank)
                });
            assert_eq!(first.digest == other.digest, same, "{:?} {:?}", first.tensors, other.tensors);
            assert_eq!(first.content == other.content, same, "a file says what its digest covers");
            assert!(!same || first.classes == other.classes, "equal digests, other cells");
            equal += usize::from(same);
        }
    }
    assert!(equal > world.len() && equal < world.len() * world.len() / 2, "{equal} equal pairs");
}

/// Two tensors of which the second wants other segments, far behind.
fn long_values(last: u64) -> Vec<String> {
    let source = layout(&[512], Dtype::U8, &[2], 0..2, &[Placement::shard(0)]);
    let segment = |at: u64| Interval { lo: 2 * at, hi: 2 * at + 1 };
    let maps = [AxisMap::new((0..200).map(segment).chain([segment(last)])), AxisMap::new([segment(0)])];
    let wanted: Arc<Layout> = layout(&[512], Dtype::U8, &[2], 2..4, &[Placement::parts(0, maps)]);
    field_values(&TensorSpec { name: "w".into(), source, destination: wanted, transform: Transform::None }).to_vec()
}

#[test]
fn long_values_are_cut_around_the_difference() {
    let (first, other) = (long_values(210), long_values(220));
    let found = first_difference(1, &first, &other).unwrap();
    assert_eq!((found.field, found.name.as_str()), ("destination placements", "w"));
    for (shown, lo, whole) in [(&found.first, "420", &first), (&found.other, "440", &other)] {
        assert!(shown.contains(lo) && shown.starts_with('…') && shown.ends_with('…') && shown.len() < 300, "{shown}");
        assert!(whole.iter().any(|value| value.contains(shown.trim_matches('…'))), "{shown}");
    }
    let gone = first_difference(1, &[], &other).unwrap();
    assert_eq!((gone.first.as_str(), gone.other.as_str()), ("no such tensor", "w"));
}
