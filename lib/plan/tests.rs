//! Limits and sharing: what the planner refuses, and that equal layouts are refined once however they are shared.

use super::{Manifest, Plan, PlanError, Transform};
use crate::base::Rank;
use crate::layout::{Dtype, Layout, LayoutError, Mesh, Placement, Reduction};
use std::sync::Arc;

fn layout(shape: &[u64], ranks: std::ops::Range<u32>, placement: Placement) -> Arc<Layout> {
    let mesh = Mesh::contiguous(vec![ranks.end - ranks.start], Rank(ranks.start)).unwrap();
    Arc::new(Layout::new(shape.to_vec(), Dtype::U8, Arc::new(mesh), vec![placement]).unwrap())
}

fn manifest(tensors: &[(Arc<Layout>, Arc<Layout>)]) -> Arc<Manifest> {
    let mut manifest = Manifest::new();
    for (index, (source, destination)) in tensors.iter().enumerate() {
        manifest.push(format!("t{index}"), source.clone(), destination.clone()).unwrap();
    }
    Arc::new(manifest)
}

#[test]
fn both_sides_must_describe_one_tensor() {
    let mut manifest = Manifest::new();
    let four = layout(&[4], 0..2, Placement::shard(0));
    let error = manifest.push("w", four.clone(), layout(&[5], 0..2, Placement::shard(0))).unwrap_err();
    assert!(matches!(&error, PlanError::Shape { name, .. } if name == "w"), "{error}");
    let mesh = Arc::new(four.mesh().clone());
    let wide = Arc::new(Layout::new(vec![4], Dtype::F32, mesh, vec![Placement::Replicate]).unwrap());
    assert!(matches!(manifest.push("w", four.clone(), wide), Err(PlanError::Dtype { .. })));
    manifest.push("w", four.clone(), four.clone()).unwrap();
    manifest.push("v", four.clone(), four.clone()).unwrap();
    assert!(matches!(manifest.push("w", four.clone(), four), Err(PlanError::Duplicate { first: 0, second: 2, .. })));
    assert_eq!(manifest.tensors().len(), 2);
}

fn typed(dtype: Dtype, placement: Placement) -> Result<Arc<Layout>, LayoutError> {
    let mesh = Arc::new(Mesh::contiguous(vec![2], Rank(0)).unwrap());
    Layout::new(vec![4], dtype, mesh, vec![placement]).map(Arc::new)
}

#[test]
fn casts_are_asked_for_and_joined_by_floats_only() {
    let of = |dtype| typed(dtype, Placement::shard(0)).unwrap();
    let floats = [Dtype::F32, Dtype::F16, Dtype::BF16];
    for &from in Dtype::ALL {
        for &to in Dtype::ALL {
            let mut manifest = Manifest::new();
            let plain = manifest.push("plain", of(from), of(to));
            let cast = manifest.push_with("cast", of(from), of(to), Transform::Cast);
            if from == to {
                assert!(plain.is_ok() && cast.is_ok());
                continue;
            }
            let error = plain.unwrap_err();
            assert!(
                matches!(error, PlanError::Dtype { .. }) && error.to_string().contains("Transform::Cast"),
                "{error}"
            );
            if floats.contains(&from) && floats.contains(&to) {
                assert_eq!(cast, Ok(()));
                let narrow = if from.bytes() < to.bytes() { from } else { to };
                assert_eq!(manifest.tensors()[0].wire_dtype(), narrow);
                assert_eq!(manifest.global_bytes(), Ok(4 * narrow.bytes()));
            } else {
                let error = cast.unwrap_err();
                assert!(error.to_string().contains(&format!("from {from} to {to}")), "{error}");
            }
        }
    }
}

#[test]
fn all_tensors_of_a_manifest_are_cast_where_they_can_be() {
    let mut manifest = Manifest::new();
    for (name, dtype) in [("a", Dtype::F32), ("b", Dtype::I64), ("c", Dtype::F16), ("d", Dtype::F64)] {
        manifest
            .push(name, typed(dtype, Placement::shard(0)).unwrap(), typed(dtype, Placement::shard(0)).unwrap())
            .unwrap();
    }
    let kept = manifest.cast_to(Dtype::F16, &[0]).unwrap();
    assert_eq!(kept.tensors()[0], manifest.tensors()[0]);
    let cast = manifest.cast_to(Dtype::F16, &[]).unwrap();
    let dtypes: Vec<Dtype> = cast.tensors().iter().map(|tensor| tensor.destination.dtype()).collect();
    assert_eq!(dtypes, [Dtype::F16, Dtype::I64, Dtype::F16, Dtype::F64]);
    assert_eq!(cast.tensors().iter().map(|tensor| tensor.is_cast()).collect::<Vec<_>>(), [true, false, false, false]);
    assert!(cast.tensors().iter().zip(manifest.tensors()).all(|(cast, plain)| cast.source == plain.source));
}

#[test]
fn terms_stand_on_the_source_side_and_can_be_added() {
    let partial = Placement::Partial(Reduction::Sum);
    for dtype in [Dtype::Bool, Dtype::C64, Dtype::F8E4M3, Dtype::F8E8M0] {
        let error = typed(dtype, partial.clone()).unwrap_err();
        assert_eq!(error, LayoutError::PartialDtype { axis: 0, dtype });
        assert!(error.to_string().contains("allowed are F64, F32"), "{error}");
    }
    let (terms, whole) = (typed(Dtype::BF16, partial).unwrap(), typed(Dtype::BF16, Placement::Replicate).unwrap());
    let mut manifest = Manifest::new();
    let error = manifest.push("w", whole.clone(), terms.clone()).unwrap_err();
    assert_eq!(error, PlanError::PartialDestination { name: "w".into() });
    manifest.push("w", terms, whole).unwrap();
    let tensor = &manifest.tensors()[0];
    assert_eq!((tensor.held_dtype(), tensor.wire_dtype()), (Dtype::F32, Dtype::BF16));
    let plan = Plan::compile(Arc::new(manifest), 2).unwrap();
    assert_eq!((plan.classes()[0].terms.clone(), plan.unique_bytes()), (vec![vec![Rank(0), Rank(1)]], 8));
}

#[test]
fn ranks_outside_the_communicator() {
    let pair = (layout(&[4], 0..2, Placement::shard(0)), layout(&[4], 2..4, Placement::shard(0)));
    let manifest = manifest(&[pair.clone(), pair]);
    assert!(Plan::compile(manifest.clone(), 4).is_ok());
    for (size, side, rank) in [(3, "destination", 3), (1, "source", 1), (0, "source", 1)] {
        let last = size.max(1) as u32 - 1;
        let layout = LayoutError::MeshOutside { side, rank: Rank(rank), last };
        assert_eq!(Plan::compile(manifest.clone(), size).unwrap_err(), PlanError::Layout { name: "t0".into(), layout });
    }
}

#[test]
fn sums_that_64_bits_cannot_hold() {
    let tensor =
        |bytes: u64| (layout(&[bytes], 0..2, Placement::shard(0)), layout(&[bytes], 0..2, Placement::Replicate));
    let plan = Plan::compile(manifest(&[tensor(1 << 62)]), 2).unwrap();
    assert_eq!((plan.unique_bytes(), plan.delivered_bytes()), (1 << 62, 1 << 63));
    let refused = |sizes: &[u64], ranks| {
        let tensors: Vec<_> = sizes.iter().map(|&bytes| tensor(bytes)).collect();
        Plan::compile(manifest(&tensors), ranks).unwrap_err()
    };
    assert!(matches!(refused(&[1 << 62], 4), PlanError::TooLarge { .. }));
    assert!(matches!(refused(&[1 << 63], 2), PlanError::TooLarge { .. }));
    let error = refused(&[1 << 62, 1 << 63, 1 << 63], 2);
    let (bytes, largest) = ((1 << 64) + (1 << 62), "t2".to_string());
    assert_eq!(error, PlanError::TooLarge { tensors: 3, bytes, largest, ranks: 2 });
    let text = error.to_string();
    assert!(text.contains("23058430092136939520 bytes") && text.contains("\"t2\", on 2 ranks"), "{text}");
}

#[test]
fn more_cells_than_can_be_numbered() {
    let shape = [1 << 17, 1 << 17];
    let pair = (layout(&shape, 0..1 << 16, Placement::shard(0)), layout(&shape, 0..1 << 16, Placement::shard(1)));
    let error = Plan::compile(manifest(&[pair]), 1 << 16).unwrap_err();
    assert_eq!(error, PlanError::TooManyCells { name: "t0".into(), cells: 1 << 32 });
}

#[test]
fn tensors_without_elements_move_nothing() {
    let pair = (
        layout(&[1 << 40, 0, 1 << 40], 0..2, Placement::shard(0)),
        layout(&[1 << 40, 0, 1 << 40], 0..2, Placement::shard(1)),
    );
    let plan = Plan::compile(manifest(&[pair]), 2).unwrap();
    assert_eq!((plan.classes(), plan.tensor_cells(0).cells.len()), (&[][..], 0));
    let empty = Plan::compile(Arc::new(Manifest::new()), 0).unwrap();
    assert_eq!((empty.unique_bytes(), empty.delivered_bytes()), (0, 0));
}

#[test]
fn sharing_is_seen_by_value() {
    let pair = || (layout(&[4], 0..2, Placement::shard(0)), layout(&[4], 2..4, Placement::Replicate));
    let shared = pair();
    let plan = Plan::compile(manifest(&[shared.clone(), pair(), shared, pair()]), 4).unwrap();
    assert!((1..4).all(|tensor| std::ptr::eq(plan.tensor_cells(0), plan.tensor_cells(tensor))));
    assert_eq!(plan.classes().iter().map(|class| class.cells.len()).collect::<Vec<_>>(), [4, 4]);
    let ranks = plan.manifest().side_ranks(|tensor| &tensor.destination);
    assert_eq!(ranks, [Rank(2), Rank(3)]);
}
