//! A whole model as a manifest. In: a model, and for each side a parallel spec, its ranks and rules. Out: a manifest of
//! every tensor. Guarantee: tensors that lie alike share their layouts, so the cost follows the number of tensors and
//! the kinds of layouts, not tensors times ranks.

use super::{Manifest, PlanError};
use crate::base::Rank;
use crate::layout::model::Model;
use crate::layout::parallel::{
    FuseSide, FusedTensor, IdleAxis, Origin, ParallelError, ParallelSpec, PreparedModel, RuledModel, Rules, RulesError,
    SideLayouts,
};

/// How one side lies.
#[derive(Debug, Clone, Copy)]
pub struct ModelSide<'a> {
    /// Sizes of its axes.
    pub spec: &'a ParallelSpec,
    /// Its ranks in mesh order, as many as the spec needs.
    pub ranks: &'a [Rank],
    /// What the axes do to tensors.
    pub rules: &'a Rules,
}

/// What becomes of a model.
#[derive(Debug, Clone)]
pub struct ModelManifest {
    /// The tensors in model order, without aliases of tied ones.
    pub manifest: Manifest,
    /// Names that no rule of some side knows; all ranks of that side hold them, but for `fsdp`.
    pub unmatched: Vec<String>,
    /// Numbers in the manifest of tensors that a cast of the whole model must leave as they are, by the destination's rules.
    pub keep_dtype: Vec<usize>,
    /// What the source stores in place of tensors of the manifest, which these name by their numbers in it.
    pub source_fused: Vec<FusedTensor>,
    /// The same of the destination.
    pub destination_fused: Vec<FusedTensor>,
    /// Axes that do nothing for the model, with the side whose spec has them.
    pub idle: Vec<(&'static str, IdleAxis)>,
    /// Where the elements of every tensor stand in the model.
    pub origins: Vec<Origin>,
    /// Numbers in the manifest of tensors that have a dimension of extent 1 in front, which the model has not: a side
    /// stacks them.
    pub leading: Vec<usize>,
    /// Numbers in the manifest of tensors whose last two dimensions the source has in the other order in memory.
    pub source_transposed: Vec<usize>,
    /// The same of the destination.
    pub destination_transposed: Vec<usize>,
}

/// Every tensor of `model`, from `source` to `destination`. A tied tensor moves once, under the first of its names that
/// the model has, to every pipeline stage where one of its names stands.
pub fn model_manifest(
    model: &Model,
    source: ModelSide<'_>,
    destination: ModelSide<'_>,
) -> Result<ModelManifest, PlanError> {
    let (source_rules, destination_rules) =
        (source.rules.on(FuseSide::Source), destination.rules.on(FuseSide::Destination));
    let prepared = PreparedModel::new(model, &source_rules, &destination_rules).map_err(rules_error("source"))?;
    let from = source_rules.apply_to(&prepared).map_err(rules_error("source"))?;
    let other = match std::ptr::eq(&*source_rules, &*destination_rules) {
        true => None,
        false => Some(destination_rules.apply_to(&prepared).map_err(rules_error("destination"))?),
    };
    let to = other.as_ref().unwrap_or(&from);
    let mut held = SideLayouts::new(&from, source.spec, source.ranks).map_err(spec_error("source"))?;
    let mut wanted = SideLayouts::new(to, destination.spec, destination.ranks).map_err(spec_error("destination"))?;
    let mut made = ModelManifest {
        manifest: Manifest::new(),
        unmatched: Vec::new(),
        keep_dtype: Vec::new(),
        source_fused: Vec::new(),
        destination_fused: Vec::new(),
        idle: [("source", held.idle()), ("destination", wanted.idle())]
            .into_iter()
            .flat_map(|(side, idle)| idle.iter().map(move |axis| (side, axis.clone())))
            .collect(),
        origins: Vec::new(),
        leading: Vec::new(),
        source_transposed: Vec::new(),
        destination_transposed: Vec::new(),
    };
    // Numbers in the manifest of tensors of the model.
    let tensors = prepared.model().tensors();
    let mut numbers = Vec::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        if from.rule(index).is_none() || to.rule(index).is_none() {
            made.unmatched.push(tensor.name.clone());
        }
        numbers.push(made.manifest.tensors().len());
        if from.is_alias(index) || to.is_alias(index) {
            continue;
        }
        let held = held.layout(index).map_err(rules_error("source"))?;
        let wanted = wanted.layout(index).map_err(rules_error("destination"))?;
        let listed = [
            (to.keeps_dtype(index), &mut made.keep_dtype),
            (prepared.is_leading(index), &mut made.leading),
            (from.is_transposed(index), &mut made.source_transposed),
            (to.is_transposed(index), &mut made.destination_transposed),
        ];
        for (_, list) in listed.into_iter().filter(|(is_listed, _)| *is_listed) {
            list.push(made.manifest.tensors().len());
        }
        made.origins.push(prepared.origin(index));
        made.manifest.push(tensor.name.clone(), held, wanted)?;
    }
    let numbered = |ruled: &RuledModel<'_>| {
        let fused = ruled.fused().iter().cloned();
        fused
            .map(|mut fused| {
                fused.tensors.iter_mut().for_each(|tensor| *tensor = numbers[*tensor]);
                fused
            })
            .collect()
    };
    (made.source_fused, made.destination_fused) = (numbered(&from), numbered(to));
    Ok(made)
}

fn rules_error(side: &'static str) -> impl Fn(RulesError) -> PlanError {
    move |source| PlanError::Rules { side, source }
}

fn spec_error(side: &'static str) -> impl Fn(ParallelError) -> PlanError {
    move |source| PlanError::Spec { side, source }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
