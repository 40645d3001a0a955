//! Cells and classes against the slow model.

use super::oracle;
use super::random::{Case, cases};
use crossmesh::base::Rank;
use crossmesh::layout::{Interval, Layout};
use crossmesh::plan::{Cell, CellId, Plan};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_element_is_in_one_cell_with_its_holders_and_wanters(case in cases()) {
        let plan = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
        let mut class_of = HashMap::new();
        for (number, class) in plan.classes().iter().enumerate() {
            for &cell in &class.cells {
                prop_assert_eq!(class_of.insert(cell, number), None, "{:?} is in two classes", cell);
            }
        }
        for tensor in 0..plan.manifest().tensors().len() {
            elements_of(&plan, tensor, &class_of);
            maximal(&plan, tensor, &class_of);
        }
    }

    #[test]
    fn classes_are_distinct_and_sum_to_the_model(case in cases()) {
        let plan = Plan::compile(case.manifest.clone(), case.topology.size()).unwrap();
        let mut sets = BTreeSet::new();
        for class in plan.classes() {
            prop_assert!(sets.insert((class.holders.clone(), class.wanters.clone())));
            prop_assert!(class.cells.is_sorted() && !class.wanters.is_empty());
            prop_assert!(class.holders.is_sorted() && class.wanters.is_sorted());
            let bytes: u64 =
                class.cells.iter().map(|&id| plan.cell(id).elements() * plan.element_bytes(id.tensor)).sum();
            prop_assert_eq!(class.bytes, bytes);
        }
        prop_assert_eq!(plan.unique_bytes(), case.manifest.global_bytes().unwrap());
        prop_assert_eq!(plan.delivered_bytes(), delivered(&case));
    }
}

fn delivered(case: &Case) -> u64 {
    let tensors = case.manifest.tensors().iter();
    tensors
        .map(|tensor| {
            let kept: usize = oracle::ownership(&tensor.destination).values().map(|local| kept(local)).sum();
            kept as u64 * tensor.destination.dtype().bytes()
        })
        .sum()
}

/// Elements that a rank has.
fn kept(local: &[Vec<u64>]) -> usize {
    local.iter().filter(|places| !places.is_empty()).count()
}

/// Each element lies in exactly one cell, whose class names exactly the ranks that keep it; and the positions that
/// axis maps give are those of the model.
fn elements_of(plan: &Plan, tensor: usize, class_of: &HashMap<CellId, usize>) {
    let spec = &plan.manifest().tensors()[tensor];
    let (sources, destinations) = (oracle::ownership(&spec.source), oracle::ownership(&spec.destination));
    let shape = spec.source.shape();
    let mut found = vec![0u32; oracle::elements(shape) as usize];
    for (position, cell) in plan.tensor_cells(tensor).cells.iter().enumerate() {
        let id = CellId { tensor: tensor as u32, cell: position as u32 };
        assert_eq!(plan.cell(id), cell);
        let class = &plan.classes()[class_of[&id]];
        for index in members(cell) {
            let element = oracle::number(&index, shape);
            found[element] += 1;
            assert_eq!(class.holders, oracle::keepers(&sources, element), "holders of {index:?}");
            assert_eq!(class.wanters, oracle::keepers(&destinations, element), "wanters of {index:?}");
        }
        let first: Vec<u64> = cell.intervals.iter().map(|interval| interval.lo).collect();
        let element = oracle::number(&first, shape);
        for (layout, ownership, ranks) in
            [(&spec.source, &sources, &class.holders), (&spec.destination, &destinations, &class.wanters)]
        {
            for &rank in ranks {
                let maps = layout.axis_maps(rank).unwrap();
                let local_shape = layout.local_shape(rank).unwrap();
                let mut places: Vec<Vec<u64>> = vec![Vec::new()];
                for (map, &interval) in maps.iter().zip(&cell.intervals) {
                    let along: Vec<u64> = map.places(interval).map(|place| place.local).collect();
                    places =
                        places.iter().flat_map(|at| along.iter().map(|&next| [&at[..], &[next]].concat())).collect();
                }
                let mut places: Vec<u64> = places.iter().map(|at| oracle::number(at, &local_shape) as u64).collect();
                places.sort_unstable();
                assert_eq!(places, ownership[&rank][element]);
            }
        }
    }
    assert!(found.iter().all(|&times| times == 1), "every element in one cell: {found:?}");
    local_sizes(spec.source.as_ref());
    local_sizes(spec.destination.as_ref());
}

fn local_sizes(layout: &Layout) {
    for rank in layout.mesh().ranks() {
        let elements = oracle::uses(layout, rank).unwrap().len() as u64;
        assert_eq!(layout.local_bytes(rank), elements * layout.dtype().bytes());
    }
    let outside = Rank(1000);
    assert_eq!((layout.local_bytes(outside), layout.local_shape(outside)), (0, None));
}

/// No two cells that together form a box, side by side along one dimension, belong to one class, unless some rank has
/// them apart; and cells stand in row-major order.
fn maximal(plan: &Plan, tensor: usize, class_of: &HashMap<CellId, usize>) {
    let spec = &plan.manifest().tensors()[tensor];
    let arranged = spec.source.has_parts() || spec.destination.has_parts();
    // Whether some map ends a segment at `index` of `dim`.
    let is_end = |dim: usize, index: u64| {
        [&spec.source, &spec.destination].into_iter().any(|layout| {
            let shards = layout.dimension(dim).shards;
            shards.iter().flat_map(|shard| shard.map.intervals()).any(|part| part.lo == index || part.hi == index)
        })
    };
    let cells = &plan.tensor_cells(tensor).cells;
    let corner = |cell: &Cell| cell.intervals.iter().map(|interval| interval.lo).collect::<Vec<_>>();
    assert!(cells.is_sorted_by_key(corner));
    let class = |position: usize| class_of[&CellId { tensor: tensor as u32, cell: position as u32 }];
    for (first, left) in cells.iter().enumerate() {
        for (second, right) in cells.iter().enumerate() {
            let dimensions = left.intervals.iter().zip(&right.intervals).enumerate();
            let differing: Vec<(usize, (&Interval, &Interval))> =
                dimensions.filter(|(_, (left, right))| left != right).collect();
            if let [(dim, (left, right))] = differing[..]
                && left.hi == right.lo
                && !(arranged && is_end(dim, left.hi))
            {
                assert_ne!(class(first), class(second), "cells {first} and {second} of tensor {tensor} could be one");
            }
        }
    }
}

/// Indices of a cell in row-major order.
pub(super) fn members(cell: &Cell) -> impl Iterator<Item = Vec<u64>> + '_ {
    let extents: Vec<u64> = cell.intervals.iter().map(Interval::len).collect();
    let inner: Vec<Vec<u64>> = oracle::indices(&extents).collect();
    inner.into_iter().map(|index| index.iter().zip(&cell.intervals).map(|(&at, interval)| interval.lo + at).collect())
}
