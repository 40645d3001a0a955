//! What destinations store of a plan. In: a plan, its classes one by one. Out: bytes that each fills, bytes of padding.
//! Guarantee: ranks that store stated parts, which may repeat, are looked at place by place, once per pair of layouts;
//! the cells of all classes must fill exactly what such a rank stores.

use super::CheckError;
use crate::base::Rank;
use crate::layout::positions::padded_elements;
use crate::layout::{AxisMap, Layout};
use crate::plan::{CellClass, CellId, Plan};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Storage of the destinations of a plan.
pub(super) struct Storage<'a> {
    plan: &'a Plan,
    /// By source and destination layout, where the destination has stated parts.
    pairs: HashMap<(*const Layout, *const Layout), Pair>,
    padding: u64,
}

/// Tensors with one pair of layouts, whose cells are the same.
struct Pair {
    /// One of them.
    tensor: usize,
    element: u64,
    /// Maps, and elements filled so far, by destination rank.
    ranks: BTreeMap<Rank, (Vec<AxisMap>, u64)>,
    /// Bytes of places beyond the first, over all wanters, by cell.
    repeats: HashMap<u32, u64>,
}

impl<'a> Storage<'a> {
    /// Of all ranks, or of one.
    pub(super) fn new(plan: &'a Plan, of: Option<Rank>) -> Self {
        let mut storage = Self { plan, pairs: HashMap::new(), padding: 0 };
        for (tensor, spec) in plan.manifest().tensors().iter().enumerate() {
            let layout = &spec.destination;
            if layout.has_parts() {
                let key = (Arc::as_ptr(&spec.source), Arc::as_ptr(layout));
                let pair = storage.pairs.entry(key).or_insert_with(|| Pair::new(tensor, layout, of));
                storage.padding = storage.padding.saturating_add(pair.padding());
            }
        }
        storage
    }

    /// Bytes of padding, over all destinations.
    pub(super) fn padding(&self) -> u64 {
        self.padding
    }

    /// Bytes that the cells of a class fill at those of its wanters that are looked at.
    pub(super) fn fill(&mut self, class: &CellClass, wanters: &[Rank]) -> u64 {
        let mut bytes = class.bytes * wanters.len() as u64;
        for &cell in &class.cells {
            let spec = &self.plan.manifest().tensors()[cell.tensor as usize];
            if let Some(pair) = self.pairs.get_mut(&(Arc::as_ptr(&spec.source), Arc::as_ptr(&spec.destination))) {
                bytes = bytes.saturating_add(pair.repeats(self.plan, cell, wanters));
            }
        }
        bytes
    }

    /// Every rank with stated parts is filled.
    pub(super) fn check(&self) -> Result<(), CheckError> {
        let mut pairs: Vec<&Pair> = self.pairs.values().collect();
        pairs.sort_unstable_by_key(|pair| pair.tensor);
        for pair in pairs {
            for (&rank, (maps, filled)) in &pair.ranks {
                let (filled, stored) = (*filled, maps.iter().map(AxisMap::stored).product());
                if filled != stored {
                    let tensor = self.plan.manifest().tensors()[pair.tensor].name.clone();
                    return Err(CheckError::Places { rank, tensor, filled, stored });
                }
            }
        }
        Ok(())
    }
}

impl Pair {
    fn new(tensor: usize, layout: &Layout, of: Option<Rank>) -> Self {
        let maps = |rank| (rank, (layout.axis_maps(rank).unwrap_or_default(), 0));
        let ranks = match of {
            Some(rank) => layout.mesh().slot(rank).map(|_| maps(rank)).into_iter().collect(),
            None => layout.mesh().ranks().map(maps).collect(),
        };
        Self { tensor, element: layout.dtype().bytes(), ranks, repeats: HashMap::new() }
    }

    fn padding(&self) -> u64 {
        self.ranks.values().map(|(maps, _)| padded_elements(maps) * self.element).fold(0, u64::saturating_add)
    }

    /// Bytes of places of a cell beyond the first of every wanter; notes all places when it is the first such cell.
    fn repeats(&mut self, plan: &Plan, id: CellId, wanters: &[Rank]) -> u64 {
        if let Some(&known) = self.repeats.get(&id.cell) {
            return known;
        }
        let cell = plan.cell(id);
        let elements = cell.elements();
        let mut repeats = 0u64;
        for rank in wanters {
            let Some((maps, filled)) = self.ranks.get_mut(rank) else { continue };
            let places = maps.iter().zip(&cell.intervals).map(|(map, &part)| map.places(part).count() as u64);
            let here = elements * places.product::<u64>();
            *filled += here;
            repeats = repeats.saturating_add(here.saturating_sub(elements) * self.element);
        }
        self.repeats.insert(id.cell, repeats);
        repeats
    }
}
