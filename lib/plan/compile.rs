//! Cells of the manifest, grouped. In: a manifest, and whose cells. Out: a plan. Guarantee: equal layout pairs are
//! refined once; a rank's plan holds exactly the classes in which it is a holder or a wanter, and says of each the same
//! as the plan of all ranks.

use super::cell::{Cell, TensorCells, refine};
use super::family::{Families, Layouts};
use super::{Manifest, PlanError};
use crate::base::Rank;
use crate::layout::{Layout, Placement};
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
    /// Where they begin among all that the same holders hold, in 2^-32 of it; spreads small classes.
    pub source_phase: u32,
    /// Where they begin among all that the same wanters want.
    pub destination_phase: u32,
}

/// What moves.
#[derive(Debug, Clone)]
pub struct Plan {
    manifest: Arc<Manifest>,
    templates: Vec<TensorCells>,
    template_of: Vec<u32>,
    classes: Vec<CellClass>,
    source: Families,
    destination: Families,
}

/// Finds layout pairs seen before: by pointer, then by value.
#[derive(Default)]
struct Templates {
    by_pointer: HashMap<(*const Layout, *const Layout), usize>,
    by_value: HashMap<(u32, u32), usize>,
    /// Layouts of the two sides, of each template.
    layouts: Vec<(u32, u32)>,
}

/// First cell of a class: its layouts, how many tensors had them before, elements before it in its box.
#[derive(Debug, Clone, Copy)]
struct Origin {
    layout: u32,
    tensors: u64,
    elements: u64,
}

/// Holders, terms and wanters of a class.
type Sets = (Vec<Rank>, Vec<Vec<Rank>>, Vec<Rank>);

/// A plan in the making.
struct Compiler {
    of: Option<Rank>,
    templates: Templates,
    cells: Vec<TensorCells>,
    classes: Vec<CellClass>,
    numbers: HashMap<Sets, u32>,
    origins: Vec<(Origin, Origin)>,
    source: Layouts,
    destination: Layouts,
}

impl Plan {
    /// Plans a manifest for all of `size` ranks. Every sum of bytes over cells, ranks and flows fits 64 bits, since
    /// every rank receiving everything does.
    pub fn compile(manifest: Arc<Manifest>, size: usize) -> Result<Self, PlanError> {
        Self::compile_cells(manifest, size, None)
    }

    /// The part of [`Plan::compile`] with the cells that `rank` holds or wants; the cost follows their number. Cells
    /// are numbered among themselves.
    pub fn compile_for(manifest: Arc<Manifest>, size: usize, rank: Rank) -> Result<Self, PlanError> {
        Self::compile_cells(manifest, size, Some(rank))
    }

    fn compile_cells(manifest: Arc<Manifest>, size: usize, of: Option<Rank>) -> Result<Self, PlanError> {
        manifest.check_ranks(size)?;
        let tensors = manifest.tensors().len();
        if u32::try_from(tensors).is_err() {
            return Err(PlanError::TooManyTensors { tensors });
        }
        manifest.check_bytes(size)?;
        let mut compiler = Compiler {
            of,
            templates: Templates::default(),
            cells: Vec::new(),
            classes: Vec::new(),
            numbers: HashMap::new(),
            origins: Vec::new(),
            source: Layouts::default(),
            destination: Layouts::default(),
        };
        let mut template_of = Vec::with_capacity(tensors);
        for index in 0..tensors {
            template_of.push(compiler.add(&manifest, index)? as u32);
        }
        let (source, destination) = (compiler.source.families(), compiler.destination.families());
        for (class, (from, to)) in compiler.classes.iter_mut().zip(&compiler.origins) {
            class.source_phase = source.phase(&class.holders, from.layout, from.tensors, from.elements);
            class.destination_phase = destination.phase(&class.wanters, to.layout, to.tensors, to.elements);
        }
        let (templates, classes) = (compiler.cells, compiler.classes);
        Ok(Self { manifest, templates, template_of, classes, source, destination })
    }

    /// The manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// Classes; over all ranks in order of first appearance.
    pub fn classes(&self) -> &[CellClass] {
        &self.classes
    }

    /// A cell's box.
    pub fn cell(&self, id: CellId) -> &Cell {
        &self.templates[self.template_of[id.tensor as usize] as usize].cells[id.cell as usize]
    }

    /// Cells of a tensor.
    pub fn tensor_cells(&self, tensor: usize) -> &TensorCells {
        &self.templates[self.template_of[tensor] as usize]
    }

    /// Bytes of one element of a tensor while it travels.
    pub fn element_bytes(&self, tensor: u32) -> u64 {
        self.manifest.tensors()[tensor as usize].wire_dtype().bytes()
    }

    /// Whether a conversion on the way to the ranks of which `reaches` holds counts the elements of a cell that become
    /// infinite: the one on the way to the lowest rank that wants it does, so that an element counts once, however many
    /// ranks it reaches by whatever route.
    pub fn counts(&self, cell: CellId, reaches: impl Fn(Rank) -> bool) -> bool {
        let class = &self.classes[self.cell(cell).class.0 as usize];
        self.manifest.tensors()[cell.tensor as usize].is_cast() && class.wanters.first().copied().is_some_and(reaches)
    }

    /// All that source ranks hold, by who holds it alike: over all ranks also in a rank's plan.
    pub(crate) fn source_families(&self) -> &[(Arc<[Rank]>, u64)] {
        self.source.all()
    }

    /// All that destination ranks want, by who wants it alike: over all ranks also in a rank's plan.
    pub(crate) fn destination_families(&self) -> &[(Arc<[Rank]>, u64)] {
        self.destination.all()
    }

    /// Bytes that any destination wants and some source has, each counted once.
    pub fn unique_bytes(&self) -> u64 {
        self.classes.iter().filter(|class| !class.holders.is_empty()).map(|class| class.bytes).sum()
    }

    /// Bytes that some source holds and no destination wants, each counted once: all of them, or those whose lowest
    /// holder is `of`.
    pub fn untaken_bytes(&self, of: Option<Rank>) -> u64 {
        let tensors = (0..self.manifest.tensors().len()).map(|tensor| {
            let counted =
                self.tensor_cells(tensor).untaken.iter().filter(|(holder, _)| of.is_none_or(|of| of == *holder));
            counted.map(|(_, elements)| elements).sum::<u64>() * self.element_bytes(tensor as u32)
        });
        tensors.sum()
    }

    /// Bytes summed over all destination ranks.
    pub fn delivered_bytes(&self) -> u64 {
        let held = self.classes.iter().filter(|class| !class.holders.is_empty());
        held.map(|class| class.bytes * class.wanters.len() as u64).sum()
    }
}

impl Compiler {
    /// Adds the cells of a tensor to their classes; its template.
    fn add(&mut self, manifest: &Manifest, index: usize) -> Result<usize, PlanError> {
        let tensor = &manifest.tensors()[index];
        let template = self.template(&tensor.name, &tensor.source, &tensor.destination)?;
        let element = tensor.wire_dtype().bytes();
        for (position, cell) in self.cells[template].cells.iter().enumerate() {
            let class = &mut self.classes[cell.class.0 as usize];
            class.cells.push(CellId { tensor: index as u32, cell: position as u32 });
            class.bytes += cell.elements() * element;
        }
        let (source, destination) = self.templates.layouts[template];
        self.source.count(source);
        self.destination.count(destination);
        Ok(template)
    }

    fn template(&mut self, name: &str, source: &Arc<Layout>, destination: &Arc<Layout>) -> Result<usize, PlanError> {
        let pointers = (Arc::as_ptr(source), Arc::as_ptr(destination));
        if let Some(&template) = self.templates.by_pointer.get(&pointers) {
            return Ok(template);
        }
        let layouts = (self.source.find(source), self.destination.find(destination));
        let next = self.cells.len();
        let template = match self.templates.by_value.entry(layouts) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => *entry.insert(next),
        };
        if template == next {
            let too_many = |cells| PlanError::TooManyCells { name: name.to_string(), cells };
            self.templates.layouts.push(layouts);
            let refined = refine(source, destination, self.of).map_err(too_many)?;
            let origin = |side: &Layouts, layout, elements| Origin { layout, tensors: side.counted(layout), elements };
            let mut classes = Vec::with_capacity(refined.sets.len());
            for sets in refined.sets {
                let from = origin(&self.source, layouts.0, sets.source_offset);
                let to = origin(&self.destination, layouts.1, sets.destination_offset);
                classes.push(self.number(source, sets.holders, sets.wanters, (from, to)));
            }
            let cell = |(intervals, sets): (_, usize)| Cell { intervals, class: classes[sets] };
            let cells = refined.cells.into_iter().map(cell).collect();
            self.cells.push(TensorCells { cells, untaken: refined.untaken.into_iter().collect() });
        }
        self.templates.by_pointer.insert(pointers, template);
        Ok(template)
    }

    /// The class of these sets.
    fn number(&mut self, source: &Layout, holders: Vec<Rank>, wanters: Vec<Rank>, origin: (Origin, Origin)) -> ClassId {
        // Nobody asks for the class of cells that nobody wants.
        if wanters.is_empty() {
            return ClassId(u32::MAX);
        }
        let next = self.classes.len() as u32;
        let terms = terms(source, &holders);
        let number = *self.numbers.entry((holders.clone(), terms.clone(), wanters.clone())).or_insert(next);
        if number == next {
            let (cells, bytes, source_phase, destination_phase) = (Vec::new(), 0, 0, 0);
            self.classes.push(CellClass { holders, terms, wanters, cells, bytes, source_phase, destination_phase });
            self.origins.push(origin);
        }
        ClassId(number)
    }
}

/// Per replica the ranks that hold the terms of what `holders` hold together.
fn terms(source: &Layout, holders: &[Rank]) -> Vec<Vec<Rank>> {
    if source.reduction().is_none() {
        return Vec::new();
    }
    let (mesh, offsets) = (source.mesh(), source.term_offsets());
    let is_partial = |axis: usize| matches!(source.placements()[axis], Placement::Partial(_));
    let is_first = |slot: &usize| {
        let coordinates = mesh.coordinates(*slot);
        coordinates.iter().enumerate().all(|(axis, &coordinate)| coordinate == 0 || !is_partial(axis))
    };
    let mut first: Vec<usize> = holders.iter().filter_map(|&rank| mesh.slot(rank)).filter(is_first).collect();
    first.sort_unstable();
    first.iter().map(|&slot| offsets.iter().map(|&offset| mesh.rank(slot + offset)).collect()).collect()
}
