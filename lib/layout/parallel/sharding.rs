//! Placements of a tensor by rule. In: rules, a name, a shape, a parallel spec. Out: [`Sharding`], one placement per
//! mesh axis. Guarantee: the order of the axes in the spec moves ranks around and never changes the parts.

use super::rules::{Effect, Rule};
use super::{ParallelAxis, ParallelSpec, Rules, RulesError};
use crate::layout::{Interval, Placement, Split};
use std::collections::{BTreeMap, BTreeSet};

/// How a tensor is placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharding {
    /// One placement per mesh axis, in the order of [`ParallelSpec::mesh_axes`].
    pub placements: Vec<Placement>,
    /// File and line of the rule that decided; `None` when no rule knows the name and the tensor is replicated.
    pub rule: Option<String>,
}

/// How the tensors of a model are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSharding {
    /// One sharding per tensor, in the order given.
    pub shardings: Vec<Sharding>,
    /// Names that no rule knows, in the order given; they are replicated.
    pub unmatched: Vec<String>,
}

impl Rules {
    /// Placement of one tensor. `expert_count` is needed only where a rule deals out one tensor per expert over an
    /// expert axis: expert e of E goes to coordinate `floor(e ep / E)`. A rank-0 expert tensor, which cannot be
    /// empty anywhere, is replicated.
    pub fn shard(
        &self,
        tensor: &str,
        shape: &[u64],
        spec: &ParallelSpec,
        expert_count: Option<u64>,
    ) -> Result<Sharding, RulesError> {
        let replicated = |rule| Sharding { placements: vec![Placement::Replicate; spec.mesh_axes().len()], rule };
        let Some((rule, matched)) = self.find(tensor)? else {
            return Ok(replicated(None));
        };
        if rule.effect.per_tensor_experts && shape.is_empty() {
            return Ok(replicated(Some(rule.origin.clone())));
        }
        check_dims(rule, tensor, shape)?;
        let mut placements: Vec<Placement> = spec
            .mesh_axes()
            .map(|(axis, _)| dim_of(&rule.effect, axis).map_or(Placement::Replicate, Placement::shard))
            .collect();
        let expert_axis = spec.mesh_axes().position(|(axis, size)| axis == ParallelAxis::Expert && size > 1);
        if let (Some((expert, _)), Some(at)) = (matched.expert, expert_axis) {
            let coordinate = expert_owner(rule, tensor, expert, expert_count, spec)?;
            placements[at] = whole_on(coordinate, at, &placements, shape, spec).ok_or_else(|| {
                RulesError::ExpertNesting { tensor: tensor.to_string(), shape: shape.to_vec(), spec: spec.to_string() }
            })?;
        }
        Ok(Sharding { placements, rule: Some(rule.origin.clone()) })
    }

    /// Placements of all tensors of a model. The experts of a layer are counted from their names: the text before
    /// the index groups them, and the highest index says how many there are.
    pub fn placements<'a, Tensors>(&self, tensors: Tensors, spec: &ParallelSpec) -> Result<ModelSharding, RulesError>
    where
        Tensors: IntoIterator<Item = (&'a str, &'a [u64])>,
        Tensors::IntoIter: Clone,
    {
        let tensors = tensors.into_iter();
        let mut experts: BTreeMap<&str, u64> = BTreeMap::new();
        let mut groups: Vec<Option<&str>> = Vec::new();
        for (tensor, _) in tensors.clone() {
            let expert = self.find(tensor)?.and_then(|(_, matched)| matched.expert);
            groups.push(expert.map(|(index, component)| {
                let group = leading_components(tensor, component);
                let count = experts.entry(group).or_default();
                *count = (*count).max(index.saturating_add(1));
                group
            }));
        }
        let mut model = ModelSharding { shardings: Vec::with_capacity(groups.len()), unmatched: Vec::new() };
        for ((tensor, shape), group) in tensors.zip(groups) {
            let count = group.and_then(|group| experts.get(group).copied());
            let sharding = self.shard(tensor, shape, spec, count)?;
            if sharding.rule.is_none() {
                model.unmatched.push(tensor.to_string());
            }
            model.shardings.push(sharding);
        }
        Ok(model)
    }
}

fn dim_of(effect: &Effect, axis: ParallelAxis) -> Option<usize> {
    effect.dims.iter().find(|&&(kind, _)| kind == axis).map(|&(_, dim)| dim)
}

fn check_dims(rule: &Rule, tensor: &str, shape: &[u64]) -> Result<(), RulesError> {
    let Some(&(axis, dim)) = rule.effect.dims.iter().find(|&&(_, dim)| dim >= shape.len()) else {
        return Ok(());
    };
    let (rule, tensor, shape) = (rule.origin.clone(), tensor.to_string(), shape.to_vec());
    Err(RulesError::NoSuchDimension { rule, tensor, shape, axis, dim })
}

fn expert_owner(
    rule: &Rule,
    tensor: &str,
    expert: u64,
    expert_count: Option<u64>,
    spec: &ParallelSpec,
) -> Result<u32, RulesError> {
    let ranks = spec.size(ParallelAxis::Expert);
    let (rule, tensor) = (rule.origin.clone(), tensor.to_string());
    let Some(count) = expert_count else {
        return Err(RulesError::ExpertCount { rule, tensor, ranks });
    };
    if expert >= count {
        return Err(RulesError::ExpertIndex { rule, tensor, expert, count });
    }
    // Below `ranks`, since expert < count.
    Ok((u128::from(expert) * u128::from(ranks) / u128::from(count)) as u32)
}

/// A placement of mesh axis `at` that leaves everything to `coordinate`: sizes 0, …, extent, …, 0 along a
/// dimension. A dimension that no outer axis cuts is best, since its extent is the same everywhere; else outer
/// axes must have cut it evenly. `None` when every dimension is cut unevenly.
fn whole_on(
    coordinate: u32,
    at: usize,
    placements: &[Placement],
    shape: &[u64],
    spec: &ParallelSpec,
) -> Option<Placement> {
    let lengths = |dim: usize| {
        let mut lengths = BTreeSet::from([shape[dim]]);
        for (placement, (_, count)) in placements[..at].iter().zip(spec.mesh_axes()) {
            if let Placement::Shard { dim: cut, split } = placement
                && *cut == dim
            {
                let parts = |hi| (0..count).map(move |index| split.part(Interval { lo: 0, hi }, index, count).len());
                lengths = lengths.into_iter().flat_map(parts).collect();
            }
        }
        lengths
    };
    let uncut = |dim: &usize| {
        placements[..at].iter().all(|placement| !matches!(placement, Placement::Shard { dim: cut, .. } if cut == dim))
    };
    let even = |dim: &usize| lengths(*dim).len() == 1;
    let dim = (0..shape.len()).find(uncut).or_else(|| (0..shape.len()).find(even))?;
    let extent = lengths(dim).into_iter().next()?;
    let sizes =
        (0..spec.size(ParallelAxis::Expert)).map(|index| if index == coordinate { extent } else { 0 }).collect();
    Some(Placement::Shard { dim, split: Split::Sizes(sizes) })
}

/// The first `count` dotted components of `name`.
fn leading_components(name: &str, count: usize) -> &str {
    match name.match_indices('.').nth(count.wrapping_sub(1)) {
        Some((end, _)) if count > 0 => &name[..end],
        _ => "",
    }
}

#[cfg(test)]
#[path = "sharding_tests.rs"]
mod tests;
