//! Layouts of a model on one side. In: a model with rules, a spec, ranks. Out: one layout per tensor, shared by tensors
//! that lie alike. Guarantee: the order of the axes in the spec moves ranks around and never changes the parts.

use super::arrange::{Arrangement, Nesting, TensorShape};
use super::effect::StageWord;
use super::idle::idle;
use super::ruled::{Place, RuledTensor};
use super::{IdleAxis, ParallelAxis, ParallelError, ParallelSpec, RuledModel, RulesError, WeightView};
use crate::base::Rank;
use crate::layout::{Dtype, ExpertMap, Layout, LayoutError, Mesh};
use std::collections::HashMap;
use std::sync::Arc;

/// Axes with their sizes, outermost first, and the ranks along them.
type AxesAndMesh = (Vec<(ParallelAxis, u32)>, Arc<Mesh>);

/// Layouts of a model's tensors over the ranks of one side.
#[derive(Debug)]
pub struct SideLayouts<'a> {
    pub(super) ruled: &'a RuledModel<'a>,
    dense: View,
    expert: View,
    /// One past the last layer of every pipeline stage.
    stage_ends: Vec<u64>,
    idle: Vec<IdleAxis>,
    meshes: HashMap<(WeightView, Part), Arc<Mesh>>,
    layouts: HashMap<LayoutKey, Vec<Arc<Layout>>>,
    /// Slots of experts by row of the expert file, if any, and number of experts.
    experts: HashMap<(Option<usize>, u64), Arc<ExpertMap>>,
}

/// All ranks of the side, as dense or expert weights see them.
#[derive(Debug)]
struct View {
    axes: Vec<(ParallelAxis, u32)>,
    mesh: Mesh,
}

/// Which ranks of a view hold a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Part {
    stages: Stages,
    owners: Owners,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stages {
    All,
    One(u32),
    Tied(u32),
}

/// Coordinates along `ep`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owners {
    All,
    One(u32),
    /// Those that hold an expert in the slots of a row of the expert file.
    Slots {
        row: usize,
        expert: u64,
        experts: u64,
    },
}

/// Tensors of one shape that agree in this have one layout.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LayoutKey {
    effect: u32,
    part: Part,
    dtype: Dtype,
    leading: bool,
    fused: Option<FusedPart>,
    /// Row of the expert file, and the expert where it is in a stack.
    slot: Option<(Option<usize>, Option<u64>)>,
    store: Option<u32>,
    /// Of scales: the rule and their weight's shape and `[[store]]` rule.
    scales: Option<(u32, Vec<u64>, Option<u32>)>,
}

/// A part of a fused tensor: rule and extents of all parts, and which one it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FusedPart {
    rule: usize,
    extents: Vec<u64>,
    part: u32,
}

impl<'a> SideLayouts<'a> {
    /// The side of `spec` over `ranks`, in mesh order.
    pub fn new(ruled: &'a RuledModel<'a>, spec: &ParallelSpec, ranks: &[Rank]) -> Result<Self, ParallelError> {
        let view = |view| Ok(View { axes: spec.axes(view), mesh: spec.mesh(view, ranks)? });
        let stage_ends = stage_ends(spec, ruled.layers())?;
        Ok(Self {
            ruled,
            dense: view(WeightView::Dense)?,
            expert: view(WeightView::Expert)?,
            idle: idle(spec, ruled, &stage_ends),
            stage_ends,
            meshes: HashMap::new(),
            layouts: HashMap::new(),
            experts: HashMap::new(),
        })
    }

    /// Axes of the spec that do nothing for the model.
    pub fn idle(&self) -> &[IdleAxis] {
        &self.idle
    }

    /// The layout of tensor number `index` of the model.
    pub fn layout(&mut self, index: usize) -> Result<Arc<Layout>, RulesError> {
        let shape = &self.ruled.model().tensors()[index].shape;
        let key = self.key(index);
        let alike = self.layouts.get(&key).and_then(|all| all.iter().find(|layout| layout.shape() == shape));
        if let Some(layout) = alike {
            return Ok(layout.clone());
        }
        let layout = match self.ruled.tensor(index).scales {
            Some((weight, rule)) => self.scales(index, weight, rule, key.part)?,
            None => self.stored(index, index, key.part)?,
        };
        let layout = Arc::new(layout);
        self.layouts.entry(key).or_default().push(layout.clone());
        Ok(layout)
    }

    fn key(&self, index: usize) -> LayoutKey {
        let ruled = self.ruled;
        let (tensor, known) = (&ruled.model().tensors()[index], ruled.tensor(index));
        let row = ruled.expert_row(index);
        let fused = known.fused.map(|(number, part)| (&ruled.fused()[number as usize], part));
        let stacked = known.expert.filter(|_| fused.is_some_and(|(fused, _)| fused.stacked.is_some()));
        LayoutKey {
            effect: known.effect,
            part: Part { stages: self.stages(known.place), owners: self.owners(known, row) },
            dtype: tensor.dtype,
            leading: ruled.is_leading(index),
            fused: fused.map(|(fused, part)| FusedPart { rule: fused.rule, extents: fused.extents.clone(), part }),
            slot: (row.is_some() || stacked.is_some()).then_some((row, stacked.map(|(expert, _)| expert))),
            store: known.store,
            scales: known.scales.map(|(weight, rule)| {
                (rule, ruled.model().tensors()[weight].shape.clone(), ruled.tensor(weight).store)
            }),
        }
    }

    /// Tensor number `index` in the shape of number `like`, which is itself or, for scales, their weight.
    pub(super) fn stored(&mut self, index: usize, like: usize, part: Part) -> Result<Layout, RulesError> {
        let ruled = self.ruled;
        let known = ruled.tensor(index);
        let (tensor, shape) = (&ruled.model().tensors()[index], &ruled.model().tensors()[like].shape);
        let mut made = self.cut(index, shape)?;
        let (axes, mesh) = self.axes_and_mesh(index, part)?;
        let tensor_axis = axes.iter().position(|&(axis, _)| axis.in_rules() == ParallelAxis::Tensor);
        self.place_experts(index, shape, &axes, &mut made)?;
        let along = |axis: Option<usize>| axis.map_or(1, |axis| mesh.shape()[axis]);
        if let Some((number, fused_part)) = known.fused
            && ruled.is_fused(number)
        {
            let placement = ruled.fused_axis(number, along(tensor_axis))?;
            let placement = placement.placement(fused_part as usize, ruled.fused()[number as usize].dim);
            made.set(tensor_axis, Nesting::Tensor, placement);
        }
        self.deal_out_heads(like, tensor_axis, &mesh, &mut made)?;
        self.arrange_extents(like, &mesh, &mut made)?;
        let layout = made.place(shape, tensor.dtype, mesh);
        let layout = layout.map_err(|source| RulesError::Layout { tensor: tensor.name.clone(), source })?;
        self.fill_padding(index, like, layout)
    }

    /// What the rules alone say of tensor number `index`, of this shape.
    pub(super) fn cut(&self, index: usize, shape: &[u64]) -> Result<Arrangement, RulesError> {
        let ruled = self.ruled;
        let known = ruled.tensor(index);
        let effect = ruled.effect(known.effect);
        let leading = usize::from(ruled.is_leading(index));
        let tensor = &ruled.model().tensors()[index];
        if let Some((axis, dim)) = effect.outside(shape.len() - leading) {
            let rule = ruled.rule(index).unwrap_or_default().to_string();
            let (tensor, shape) = (tensor.name.clone(), shape[leading..].to_vec());
            return Err(RulesError::NoSuchDimension { rule, tensor, shape, axis, dim });
        }
        let stacked = known.fused.is_some_and(|(number, _)| ruled.fused()[number as usize].stacked.is_some());
        Ok(Arrangement::new(&self.view(effect.view()).axes, effect, TensorShape { extents: shape, leading, stacked }))
    }

    pub(super) fn axes_and_mesh(&mut self, index: usize, part: Part) -> Result<AxesAndMesh, RulesError> {
        let ruled = self.ruled;
        let view = ruled.effect(ruled.tensor(index).effect).view();
        let holders = match part.owners {
            Owners::All => None,
            Owners::One(owner) => Some(vec![owner]),
            Owners::Slots { row, expert, experts } => Some(self.experts(index, Some(row), experts)?.holders(expert)),
        };
        let tensor = &ruled.model().tensors()[index].name;
        let mesh = self.mesh(view, part, holders);
        let mesh = mesh.map_err(|source| RulesError::Layout { tensor: tensor.clone(), source })?;
        Ok((self.view(view).axes.clone(), mesh))
    }

    /// Experts lie in their slots: one of each in a stack, or all along a dimension where the model has them so.
    pub(super) fn place_experts(
        &mut self,
        index: usize,
        shape: &[u64],
        axes: &[(ParallelAxis, u32)],
        made: &mut Arrangement,
    ) -> Result<(), RulesError> {
        let ruled = self.ruled;
        let (known, row) = (ruled.tensor(index), ruled.expert_row(index));
        let axis = axes.iter().position(|&(axis, _)| axis == ParallelAxis::Expert);
        let stacked = known.fused.is_some_and(|(number, _)| ruled.fused()[number as usize].stacked.is_some());
        let leading = usize::from(ruled.is_leading(index));
        let dim = ruled.effect(known.effect).dim(ParallelAxis::Expert, shape.len() - leading);
        if let Some((expert, count)) = known.expert.filter(|_| stacked) {
            let placement = self.experts(index, row, count)?.single_at_holders(0, expert);
            made.set(axis, Nesting::Expert, placement.map_err(|source| self.expert_error(index, source))?);
        } else if let (Some(dim), Some(_)) = (dim, row) {
            let placement = self.experts(index, row, shape[dim + leading])?.stacked(dim + leading);
            made.set(axis, Nesting::Expert, placement);
        }
        Ok(())
    }

    /// Slots of a row of the expert file for a layer with so many experts, or all experts in order.
    fn experts(&mut self, index: usize, row: Option<usize>, count: u64) -> Result<Arc<ExpertMap>, RulesError> {
        if let Some(known) = self.experts.get(&(row, count)) {
            return Ok(known.clone());
        }
        let ranks = self.expert_ranks();
        let made = match row {
            Some(row) => ExpertMap::new(count, self.ruled.slots(row).to_vec(), ranks)
                .map_err(|source| self.expert_error(index, source))?,
            None => ExpertMap::in_order(count, ranks),
        };
        let made = Arc::new(made);
        self.experts.insert((row, count), made.clone());
        Ok(made)
    }

    fn view(&self, view: WeightView) -> &View {
        match view {
            WeightView::Dense => &self.dense,
            WeightView::Expert => &self.expert,
        }
    }

    /// Size of `ep`.
    fn expert_ranks(&self) -> u32 {
        self.expert.axes.iter().find(|(axis, _)| *axis == ParallelAxis::Expert).map_or(1, |&(_, size)| size)
    }

    fn owners(&self, known: RuledTensor, row: Option<usize>) -> Owners {
        match (known.expert, row) {
            (Some((expert, experts)), Some(row)) => Owners::Slots { row, expert, experts },
            (Some((expert, count)), None) => self.owner(expert, count).map_or(Owners::All, Owners::One),
            (None, _) => Owners::All,
        }
    }

    /// Coordinate along `ep` of an expert: where floor shards of all experts put it, as if they were stacked. Expert e
    /// of E is below the end floor((i + 1) E / ep) of shard i exactly when (e + 1) ep <= (i + 1) E.
    fn owner(&self, expert: u64, count: u64) -> Option<u32> {
        let &(_, ranks) = self.expert.axes.iter().find(|&&(axis, size)| axis == ParallelAxis::Expert && size > 1)?;
        Some((((u128::from(expert) + 1) * u128::from(ranks) - 1) / u128::from(count)) as u32)
    }

    fn stages(&self, place: Place) -> Stages {
        match place {
            _ if self.stage_ends.len() < 2 => Stages::All,
            Place::Tied(group) => Stages::Tied(group),
            Place::Word(StageWord::All) => Stages::All,
            Place::Word(_) | Place::Layer(_) => Stages::One(self.stage(place)),
        }
    }

    /// The one stage of a place; layers behind the stack go with the last one.
    fn stage(&self, place: Place) -> u32 {
        let last = self.stage_ends.len() - 1;
        match place {
            Place::Layer(layer) => self.stage_ends.partition_point(|&end| end <= layer).min(last) as u32,
            Place::Word(StageWord::Last) => last as u32,
            _ => 0,
        }
    }

    /// The ranks of a part, at these coordinates along `ep`; axes stay, as short as the part is.
    fn mesh(&mut self, view: WeightView, part: Part, owners: Option<Vec<u32>>) -> Result<Arc<Mesh>, LayoutError> {
        if let Some(mesh) = self.meshes.get(&(view, part)) {
            return Ok(mesh.clone());
        }
        let View { axes, mesh } = self.view(view);
        let axis = |wanted| axes.iter().position(|&(axis, _)| axis == wanted);
        let mut mesh = mesh.clone();
        if let (Some(axis), Some(stages)) = (axis(ParallelAxis::Pipeline), self.stage_list(part.stages)) {
            mesh = mesh.select(axis, &stages)?;
        }
        if let (Some(axis), Some(owners)) = (axis(ParallelAxis::Expert), owners) {
            mesh = mesh.select(axis, &owners)?;
        }
        let mesh = Arc::new(mesh);
        self.meshes.insert((view, part), mesh.clone());
        Ok(mesh)
    }

    /// Ascending; `None` for all.
    fn stage_list(&self, stages: Stages) -> Option<Vec<u32>> {
        match stages {
            Stages::All => None,
            Stages::One(stage) => Some(vec![stage]),
            Stages::Tied(group) => {
                let places = self.ruled.tied_places(group);
                if places.contains(&Place::Word(StageWord::All)) {
                    return None;
                }
                let mut list: Vec<u32> = places.iter().map(|&place| self.stage(place)).collect();
                list.sort_unstable();
                list.dedup();
                Some(list)
            }
        }
    }
}

/// One past the last layer of every stage: as stated, or floor shares.
fn stage_ends(spec: &ParallelSpec, layers: u64) -> Result<Vec<u64>, ParallelError> {
    let stages = u64::from(spec.size(ParallelAxis::Pipeline));
    let Some(stated) = spec.stage_layers() else {
        let end = |stage: u64| (u128::from(layers) * u128::from(stage + 1) / u128::from(stages)) as u64;
        return Ok((0..stages).map(end).collect());
    };
    let mut sum = 0u64;
    let ends = stated.iter().map(|&count| {
        sum += u64::from(count);
        sum
    });
    let ends = ends.collect();
    if sum != layers {
        return Err(ParallelError::StageSum { spec: spec.to_string(), sum, layers });
    }
    Ok(ends)
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod head_tests;
#[cfg(test)]
#[path = "side_tests.rs"]
mod tests;
