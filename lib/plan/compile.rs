//! Cells of the whole manifest, grouped. In: a manifest. Out: a plan. Guarantee: classes are numbered in order of
//! first appearance, so every rank numbers them alike; equal layout pairs are refined once.

use super::cell::{Cell, TensorCells, refine};
use super::{Manifest, PlanError};
use crate::base::Rank;
use crate::layout::Layout;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A class of cells, as an index into [`Plan::classes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub u32);

/// A cell: tensor index and cell index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellId {
    /// Index of the tensor in the manifest.
    pub tensor: u32,
    /// Index of the cell among the tensor's.
    pub cell: u32,
}

/// All cells, over the whole manifest, with the same holders, the same terms and the same wanters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellClass {
    /// Source ranks that store them, or terms of them, ascending; empty when no rank does.
    pub holders: Vec<Rank>,
    /// Where ranks store terms: per replica the ranks that hold the terms, in the order in which they are added
    /// (ascending mesh coordinate). Empty where holders store whole elements.
    pub terms: Vec<Vec<Rank>>,
    /// Destination ranks that need them, ascending.
    pub wanters: Vec<Rank>,
    /// The cells in manifest order.
    pub cells: Vec<CellId>,
    /// Their bytes while they travel.
    pub bytes: u64,
}

/// Holders, terms and wanters of a class.
type Sets = (Vec<Rank>, Vec<Vec<Rank>>, Vec<Rank>);

/// What moves.
#[derive(Debug, Clone)]
pub struct Plan {
    manifest: Arc<Manifest>,
    templates: Vec<TensorCells>,
    template_of: Vec<usize>,
    classes: Vec<CellClass>,
}

/// Finds layout pairs seen before: by pointer, then by value.
#[derive(Default)]
struct Templates {
    by_pointer: HashMap<(*const Layout, *const Layout), usize>,
    by_value: HashMap<(Arc<Layout>, Arc<Layout>), usize>,
}

impl Plan {
    /// Plans a manifest for `size` ranks. Every sum of bytes over cells, ranks and flows fits 64 bits, since every
    /// rank receiving everything does.
    pub fn compile(manifest: Arc<Manifest>, size: usize) -> Result<Self, PlanError> {
        manifest.check_ranks(size)?;
        let tensors = manifest.tensors().len();
        if u32::try_from(tensors).is_err() {
            return Err(PlanError::TooManyTensors { tensors });
        }
        manifest.largest_bytes()?.checked_mul(size as u64).ok_or(PlanError::TooLarge)?;
        let mut plan =
            Self { manifest: manifest.clone(), templates: Vec::new(), template_of: Vec::new(), classes: Vec::new() };
        let mut known = Templates::default();
        let mut numbers: HashMap<Sets, u32> = HashMap::new();
        let mut classes_of: Vec<Vec<u32>> = Vec::new();
        for (index, tensor) in manifest.tensors().iter().enumerate() {
            let template = known.find(&tensor.source, &tensor.destination, || {
                let cells = refine(&tensor.source, &tensor.destination)
                    .map_err(|cells| PlanError::TooManyCells { name: tensor.name.clone(), cells })?;
                classes_of.push(plan.number_classes(&cells, &tensor.source, &tensor.destination, &mut numbers));
                plan.templates.push(cells);
                Ok(plan.templates.len() - 1)
            })?;
            plan.template_of.push(template);
            let element = tensor.wire_dtype().bytes();
            for (position, cell) in plan.templates[template].cells.iter().enumerate() {
                let class = &mut plan.classes[classes_of[template][cell.sets] as usize];
                class.cells.push(CellId { tensor: index as u32, cell: position as u32 });
                class.bytes += cell.elements() * element;
            }
        }
        Ok(plan)
    }

    /// Class numbers of a template's sets.
    fn number_classes(
        &mut self,
        cells: &TensorCells,
        source: &Layout,
        destination: &Layout,
        numbers: &mut HashMap<Sets, u32>,
    ) -> Vec<u32> {
        let ranks = |layout: &Layout, slots: &[usize]| {
            let mut ranks: Vec<Rank> = slots.iter().map(|&slot| layout.mesh().rank(slot)).collect();
            ranks.sort_unstable();
            ranks
        };
        let mut classes = Vec::with_capacity(cells.sets.len());
        for (holders, wanters) in &cells.sets {
            let terms = terms(source, holders);
            let mut holders = if terms.is_empty() { ranks(source, holders) } else { terms.concat() };
            holders.sort_unstable();
            let wanters = ranks(destination, wanters);
            let next = self.classes.len() as u32;
            let number = *numbers.entry((holders.clone(), terms.clone(), wanters.clone())).or_insert(next);
            if number == next {
                self.classes.push(CellClass { holders, terms, wanters, cells: Vec::new(), bytes: 0 });
            }
            classes.push(number);
        }
        classes
    }

    /// The manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Classes in order of first appearance.
    pub fn classes(&self) -> &[CellClass] {
        &self.classes
    }

    /// A cell's box.
    pub fn cell(&self, id: CellId) -> &Cell {
        &self.templates[self.template_of[id.tensor as usize]].cells[id.cell as usize]
    }

    /// Cells of a tensor.
    pub fn tensor_cells(&self, tensor: usize) -> &TensorCells {
        &self.templates[self.template_of[tensor]]
    }

    /// Bytes of one element of a tensor while it travels.
    pub fn element_bytes(&self, tensor: u32) -> u64 {
        self.manifest.tensors()[tensor as usize].wire_dtype().bytes()
    }

    /// Whether a conversion for `receivers` counts the elements of a cell: the one on the way to the lowest rank that
    /// wants it does, so that an element counts once, however many ranks it reaches by whatever route.
    pub fn counts_for(&self, cell: CellId, receivers: &[Rank]) -> bool {
        let tensor = &self.manifest.tensors()[cell.tensor as usize];
        if !tensor.is_cast() {
            return false;
        }
        let wanters = &self.tensor_cells(cell.tensor as usize).sets[self.cell(cell).sets].1;
        let lowest = wanters.iter().map(|&slot| tensor.destination.mesh().rank(slot)).min();
        lowest.is_some_and(|lowest| receivers.contains(&lowest))
    }

    /// Bytes that any destination wants and some source has, each counted once.
    pub fn unique_bytes(&self) -> u64 {
        self.classes.iter().filter(|class| !class.holders.is_empty()).map(|class| class.bytes).sum()
    }

    /// Bytes summed over all destination ranks.
    pub fn delivered_bytes(&self) -> u64 {
        let held = self.classes.iter().filter(|class| !class.holders.is_empty());
        held.map(|class| class.bytes * class.wanters.len() as u64).sum()
    }
}

/// Per replica the ranks that hold the terms of a cell, whose first terms stand in these slots.
fn terms(source: &Layout, first: &[usize]) -> Vec<Vec<Rank>> {
    if source.reduction().is_none() {
        return Vec::new();
    }
    let offsets = source.term_offsets();
    let rank = |slot: usize| source.mesh().rank(slot);
    first.iter().map(|&slot| offsets.iter().map(|&offset| rank(slot + offset)).collect()).collect()
}

impl Templates {
    fn find(
        &mut self,
        source: &Arc<Layout>,
        destination: &Arc<Layout>,
        make: impl FnOnce() -> Result<usize, PlanError>,
    ) -> Result<usize, PlanError> {
        let pointers = (Arc::as_ptr(source), Arc::as_ptr(destination));
        if let Some(&template) = self.by_pointer.get(&pointers) {
            return Ok(template);
        }
        let template = match self.by_value.entry((source.clone(), destination.clone())) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(make()?),
        };
        self.by_pointer.insert(pointers, template);
        Ok(template)
    }
}
