//! What destinations store of a plan. In: a plan, its classes one by one. Out: bytes that each fills, bytes of padding.
//! Guarantee: ranks that store stated parts, which may repeat, are looked at place by place; the cells of all classes
//! must fill exactly what such a rank stores.

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
    /// The only rank that is looked at, if it is one.
    of: Option<Rank>,
    /// Of ranks of layouts with stated parts.
    maps: HashMap<(*const Layout, Rank), Vec<AxisMap>>,
    /// Elements filled so far, by tensor with stated parts and rank.
    filled: BTreeMap<(u32, Rank), u64>,
}

impl<'a> Storage<'a> {
    pub(super) fn new(plan: &'a Plan, of: Option<Rank>) -> Self {
        let mut storage = Self { plan, of, maps: HashMap::new(), filled: BTreeMap::new() };
        for (tensor, layout) in storage.arranged() {
            for rank in storage.ranks(layout) {
                let maps = || layout.axis_maps(rank).unwrap_or_default();
                storage.maps.entry((Arc::as_ptr(layout), rank)).or_insert_with(maps);
                storage.filled.insert((tensor, rank), 0);
            }
        }
        storage
    }

    /// Destination layouts with stated parts, by tensor.
    fn arranged(&self) -> impl Iterator<Item = (u32, &'a Arc<Layout>)> + use<'a> {
        let tensors = self.plan.manifest().tensors().iter().map(|tensor| &tensor.destination);
        (0..).zip(tensors).filter(|(_, layout)| layout.has_parts())
    }

    /// Ranks of a layout that are looked at.
    fn ranks(&self, layout: &Layout) -> Vec<Rank> {
        match self.of {
            Some(rank) => layout.mesh().slot(rank).map(|_| rank).into_iter().collect(),
            None => layout.mesh().ranks().collect(),
        }
    }

    /// Bytes of padding, over all destinations.
    pub(super) fn padding(&self) -> u64 {
        let mut known: HashMap<*const Layout, u64> = HashMap::new();
        let of = |layout: &Arc<Layout>| -> u64 {
            let ranks = self.ranks(layout).into_iter();
            let maps = ranks.map(|rank| &self.maps[&(Arc::as_ptr(layout), rank)]);
            maps.map(|maps| padded_elements(maps) * layout.dtype().bytes()).fold(0, u64::saturating_add)
        };
        let each = self.arranged().map(|(_, layout)| *known.entry(Arc::as_ptr(layout)).or_insert_with(|| of(layout)));
        each.fold(0, u64::saturating_add)
    }

    /// Bytes that the cells of a class fill at those wanters that are looked at.
    pub(super) fn fill(&mut self, class: &CellClass, wanters: &[Rank]) -> u64 {
        let mut bytes = class.bytes * wanters.len() as u64;
        for &cell in &class.cells {
            let layout = &self.plan.manifest().tensors()[cell.tensor as usize].destination;
            if layout.has_parts() {
                let more: u64 = wanters.iter().map(|&rank| self.fill_at(cell, layout, rank)).sum();
                bytes = bytes.saturating_add(more);
            }
        }
        bytes
    }

    /// Notes the places of a cell at `rank`; bytes of those beyond the first.
    fn fill_at(&mut self, cell: CellId, layout: &Arc<Layout>, rank: Rank) -> u64 {
        let found = self.plan.cell(cell);
        let maps = &self.maps[&(Arc::as_ptr(layout), rank)];
        let places = maps.iter().zip(&found.intervals).map(|(map, &interval)| map.places(interval).count() as u64);
        let elements = found.elements();
        let filled = elements * places.product::<u64>();
        *self.filled.entry((cell.tensor, rank)).or_default() += filled;
        filled.saturating_sub(elements) * layout.dtype().bytes()
    }

    /// Every rank with stated parts is filled.
    pub(super) fn check(&self) -> Result<(), CheckError> {
        for (&(tensor, rank), &filled) in &self.filled {
            let spec = &self.plan.manifest().tensors()[tensor as usize];
            let maps = &self.maps[&(Arc::as_ptr(&spec.destination), rank)];
            let stored = maps.iter().map(AxisMap::stored).product();
            if filled != stored {
                return Err(CheckError::Places { rank, tensor: spec.name.clone(), filled, stored });
            }
        }
        Ok(())
    }
}
