//! Layouts of a model on one side. In: a model with rules, a spec, ranks. Out: one layout per tensor, shared by tensors
//! that lie alike. Guarantee: the order of the axes in the spec moves ranks around and never changes the parts.

use super::effect::{Effect, StageWord};
use super::ruled::Place;
use super::{FuseRuleError, ParallelAxis, ParallelError, ParallelSpec, RuledModel, RulesError, WeightView};
use crate::base::Rank;
use crate::layout::{AxisMap, Dtype, Interval, Layout, LayoutError, Mesh, Placement};
use std::collections::HashMap;
use std::sync::Arc;

/// Layouts of a model's tensors over the ranks of one side.
#[derive(Debug)]
pub struct SideLayouts<'a> {
    ruled: &'a RuledModel<'a>,
    dense: View,
    expert: View,
    /// One past the last layer of every pipeline stage.
    stage_ends: Vec<u64>,
    meshes: HashMap<(WeightView, Part), Arc<Mesh>>,
    layouts: HashMap<LayoutKey, Vec<Arc<Layout>>>,
}

/// All ranks of the side, as dense or expert weights see them.
#[derive(Debug)]
struct View {
    axes: Vec<(ParallelAxis, u32)>,
    mesh: Mesh,
}

/// Which ranks of a view hold a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    stages: Stages,
    /// Coordinate along `ep` of the expert.
    owner: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stages {
    All,
    One(u32),
    Tied(u32),
}

type LayoutKey = (u32, Part, Dtype, Option<FusedPart>);

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
        Ok(Self {
            ruled,
            dense: view(WeightView::Dense)?,
            expert: view(WeightView::Expert)?,
            stage_ends: stage_ends(spec, ruled.layers())?,
            meshes: HashMap::new(),
            layouts: HashMap::new(),
        })
    }

    /// The layout of tensor number `index` of the model.
    pub fn layout(&mut self, index: usize) -> Result<Arc<Layout>, RulesError> {
        let ruled = self.ruled;
        let (tensor, known) = (&ruled.model().tensors()[index], ruled.tensor(index));
        let effect = ruled.effect(known.effect);
        let view = effect.view();
        let owner = known.expert.and_then(|(expert, count)| self.owner(expert, count));
        let part = Part { stages: self.stages(known.place), owner };
        let fused = known.fused.map(|(number, part)| {
            let fused = &ruled.fused()[number as usize];
            FusedPart { rule: fused.rule, extents: fused.extents.clone(), part }
        });
        let key = (known.effect, part, tensor.dtype, fused);
        let alike = self.layouts.get(&key).and_then(|all| all.iter().find(|layout| layout.shape() == tensor.shape));
        if let Some(layout) = alike {
            return Ok(layout.clone());
        }
        if let Some((axis, dim)) = effect.outside(tensor.shape.len()) {
            let rule = ruled.rule(index).unwrap_or_default().to_string();
            let (tensor, shape) = (tensor.name.clone(), tensor.shape.clone());
            return Err(RulesError::NoSuchDimension { rule, tensor, shape, axis, dim });
        }
        let failed = |source| RulesError::Layout { tensor: tensor.name.clone(), source };
        let mesh = self.mesh(view, part).map_err(failed)?;
        let axes = &self.view(view).axes;
        let mut placements: Vec<Placement> =
            axes.iter().map(|&(axis, _)| placement(effect, axis, tensor.shape.len())).collect();
        if let Some((number, part)) = known.fused {
            fuse(&mut placements, ruled, (number, part), axes, &mesh)?;
        }
        let layout = Arc::new(place(&tensor.shape, tensor.dtype, mesh, axes, placements).map_err(failed)?);
        self.layouts.entry(key).or_default().push(layout.clone());
        Ok(layout)
    }

    fn view(&self, view: WeightView) -> &View {
        match view {
            WeightView::Dense => &self.dense,
            WeightView::Expert => &self.expert,
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

    /// The ranks of a part; axes stay, as short as the part is.
    fn mesh(&mut self, view: WeightView, part: Part) -> Result<Arc<Mesh>, LayoutError> {
        if let Some(mesh) = self.meshes.get(&(view, part)) {
            return Ok(mesh.clone());
        }
        let View { axes, mesh } = self.view(view);
        let axis = |wanted| axes.iter().position(|&(axis, _)| axis == wanted);
        let mut mesh = mesh.clone();
        if let (Some(axis), Some(stages)) = (axis(ParallelAxis::Pipeline), self.stage_list(part.stages)) {
            mesh = mesh.select(axis, &stages)?;
        }
        if let (Some(axis), Some(owner)) = (axis(ParallelAxis::Expert), part.owner) {
            mesh = mesh.select(axis, &[owner])?;
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

/// What an axis does to a tensor of `rank` dimensions.
fn placement(effect: &Effect, axis: ParallelAxis, rank: usize) -> Placement {
    let dim = match axis {
        ParallelAxis::Pipeline => None,
        axis => effect.dim(axis.in_rules(), rank),
    };
    match (dim, axis.in_rules()) {
        (None, _) => Placement::Replicate,
        (Some(dim), ParallelAxis::FullySharded) => Placement::chunk(dim),
        (Some(dim), _) => Placement::shard(dim),
    }
}

/// Puts part `part` of a fused tensor where it lies in that: tensor parallelism deals out the fused tensor. Where it is
/// one rank and has no axis, another axis that cuts the same dimension or nothing carries the arrangement.
fn fuse(
    placements: &mut [Placement],
    ruled: &RuledModel<'_>,
    (number, part): (u32, u32),
    axes: &[(ParallelAxis, u32)],
    mesh: &Mesh,
) -> Result<(), RulesError> {
    let fused = &ruled.fused()[number as usize];
    let (dim, part) = (fused.dim, part as usize);
    let is_tensor = |&(axis, _): &(ParallelAxis, u32)| axis.in_rules() == ParallelAxis::Tensor;
    if let Some(axis) = axes.iter().position(is_tensor) {
        placements[axis] = ruled.fused_axis(number, mesh.shape()[axis])?.placement(part, dim);
        return Ok(());
    }
    // The outermost of those that cut the dimension, else one that cuts nothing.
    let cutting = (0..axes.len()).filter(|&axis| placements[axis].dim() == Some(dim));
    let cutting = cutting.min_by_key(|&axis| nesting_rank(axes[axis].0));
    let Some(axis) = cutting.or_else(|| placements.iter().position(|placement| placement.dim().is_none())) else {
        let spec = axes.iter().map(|(axis, size)| format!("{axis}={size}")).collect::<Vec<_>>().join(",");
        return Err(ruled.fuse_error(number, FuseRuleError::NoAxis { into: fused.name.clone(), dim, spec }));
    };
    let ranks = mesh.shape()[axis];
    let Placement::Parts { maps, .. } = ruled.fused_axis(number, 1)?.placement(part, dim) else { return Ok(()) };
    let whole = Interval { lo: 0, hi: maps[0].extent() };
    let share = |rank| match &placements[axis] {
        Placement::Shard { split, .. } => maps[0].compose(&AxisMap::new([split.part(whole, rank, ranks)])),
        _ => maps[0].clone(),
    };
    placements[axis] = Placement::parts(dim, (0..ranks).map(share).collect::<Vec<_>>());
    Ok(())
}

/// A tensor on a mesh with these axes. Axes that cut one dimension nest in a fixed order, `ep` outermost and `fsdp`
/// innermost: `fsdp` cuts what tensor parallelism left, as PyTorch's `fully_shard` does.
fn place(
    shape: &[u64],
    dtype: Dtype,
    mesh: Arc<Mesh>,
    axes: &[(ParallelAxis, u32)],
    placements: Vec<Placement>,
) -> Result<Layout, LayoutError> {
    let mut layout = Layout::new(shape.to_vec(), dtype, mesh, placements)?;
    for dim in 0..shape.len() {
        let mut nested = layout.nesting()[dim].clone();
        if nested.len() > 1 {
            nested.sort_by_key(|&axis| nesting_rank(axes[axis].0));
            layout = layout.with_nesting(dim, &nested)?;
        }
    }
    Ok(layout)
}

/// Outermost first.
fn nesting_rank(axis: ParallelAxis) -> u8 {
    match axis.in_rules() {
        ParallelAxis::Expert => 0,
        ParallelAxis::Tensor => 1,
        ParallelAxis::Context => 2,
        ParallelAxis::Data => 3,
        _ => 4,
    }
}

#[cfg(test)]
#[path = "side_tests.rs"]
mod tests;
