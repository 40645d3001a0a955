//! How the tensors of a model are stored on a side. In: rules, a model whose tensors were looked up. Out: for every
//! tensor its `[[store]]` rule, its weight where it has scales, its row of the expert file. Guarantee: a rule is for some
//! tensor, and a tensor has one.

use super::heads::Known;
use super::pattern::NamePattern;
use super::ruled::RuledTensor;
use super::rules::Found;
use super::store::{HeadShares, ScaleRule, StoreRule};
use super::{FuseRuleError, RuledModel, Rules, RulesError, StorageError};
use crate::layout::model::Model;
use std::collections::{BTreeSet, HashMap};

impl Rules {
    /// For every tensor with scales the number of its weight and of the rule; not where a rule of a user decides.
    pub(super) fn scales_of(
        &self,
        model: &Model,
        found: &[Option<Found>],
    ) -> Result<Vec<Option<(usize, u32)>>, RulesError> {
        let mut scales = vec![None; model.tensors().len()];
        if self.scales.is_empty() {
            return Ok(scales);
        }
        let tensors = model.tensors();
        let mut numbers: Option<HashMap<&str, usize>> = None;
        for (index, tensor) in tensors.iter().enumerate() {
            if found[index].is_some_and(|found| self.tiers[found.tier].is_for_this_model) {
                continue;
            }
            let name: Vec<&str> = tensor.name.split('.').collect();
            let mut rules = (0..).zip(&self.scales);
            let Some((number, rule, weight)) =
                rules.find_map(|(number, rule): (u32, &ScaleRule)| Some((number, rule, rule.weight_of(&name)?)))
            else {
                continue;
            };
            let numbers = numbers.get_or_insert_with(|| {
                tensors.iter().enumerate().map(|(index, tensor)| (tensor.name.as_str(), index)).collect()
            });
            let held = match numbers.get(weight.as_str()).filter(|&&held| held != index) {
                Some(&held) => check_scales(model, index, held, rule).map(|()| held),
                None => Err(StorageError::NoWeight { scales: tensor.name.clone(), weight }),
            };
            match held {
                Ok(held) => scales[index] = Some((held, number)),
                Err(source) if rule.is_for_this_model => {
                    return Err(RulesError::Storage { rule: rule.origin.clone(), source });
                }
                // Scales of another kind, which no rule knows then.
                Err(_) => {}
            }
        }
        Ok(scales)
    }
}

/// Scales must have an element for every block.
fn check_scales(model: &Model, scales: usize, weight: usize, rule: &ScaleRule) -> Result<(), StorageError> {
    let (scales, weight) = (&model.tensors()[scales], &model.tensors()[weight]);
    let blocks = rule.blocks(weight.shape.len());
    let expected: Option<Vec<u64>> =
        blocks.map(|blocks| weight.shape.iter().zip(&blocks).map(|(extent, &block)| extent.div_ceil(block)).collect());
    if expected.as_ref() != Some(&scales.shape) {
        return Err(StorageError::ScaleShape {
            scales: scales.name.clone(),
            shape: scales.shape.clone(),
            weight: weight.name.clone(),
            weight_shape: weight.shape.clone(),
            block: rule.block.clone(),
            expected,
        });
    }
    Ok(())
}

impl RuledModel<'_> {
    /// Scales lie where their weights do.
    pub(super) fn follow_weights(&mut self) {
        for index in 0..self.tensors.len() {
            if let Some((weight, _)) = self.tensors[index].scales {
                let RuledTensor { effect, rule, expert, place, .. } = self.tensors[weight];
                self.tensors[index] = RuledTensor { effect, rule, expert, place, ..self.tensors[index] };
            }
        }
    }

    /// Notes the `[[store]]` rule of every tensor.
    pub(super) fn store(&mut self) -> Result<(), RulesError> {
        for (number, rule) in (0..).zip(&self.rules.stores) {
            let failed = |source| RulesError::Storage { rule: rule.origin.clone(), source };
            let mut is_used = false;
            for (index, tensor) in self.model.tensors().iter().enumerate() {
                let name: Vec<&str> = tensor.name.split('.').collect();
                if !rule.names.iter().any(|pattern| pattern.matches(&name).is_some()) {
                    continue;
                }
                is_used = true;
                if let Some(other) = self.tensors[index].store {
                    let other = self.rules.stores[other as usize].origin.clone();
                    return Err(failed(StorageError::Twice { tensor: tensor.name.clone(), other }));
                }
                self.check_dimensions(index, rule).map_err(failed)?;
                self.tensors[index].store = Some(number);
            }
            if !is_used {
                let names = rule.names.iter().map(|pattern: &NamePattern| pattern.text().to_string()).collect();
                return Err(failed(StorageError::MatchesNothing { model: self.model.name().to_string(), names }));
            }
        }
        Ok(())
    }

    /// Dimensions of a rule must be there, and no index may be wanted that is not.
    fn check_dimensions(&self, index: usize, rule: &StoreRule) -> Result<(), StorageError> {
        let tensor = &self.model.tensors()[index];
        let shape = &tensor.shape[usize::from(self.is_leading(index))..];
        let lacks = |key, dim| StorageError::Dimension { key, dim, tensor: tensor.name.clone(), shape: shape.to_vec() };
        if rule.transposed && shape.len() < 2 {
            return Err(lacks("transposed", 1));
        }
        if let Some(dim) = rule.pad.map(|pad| pad.dim).filter(|&dim| dim >= shape.len()) {
            return Err(lacks("pad", dim));
        }
        match rule.crop {
            Some((dim, _)) if dim >= shape.len() => Err(lacks("crop", dim)),
            Some((dim, to)) if to > shape[dim] => {
                Err(StorageError::CropLong { tensor: tensor.name.clone(), extent: shape[dim], to })
            }
            _ => Ok(()),
        }
    }

    /// Nothing can be said of parts that would tear them apart.
    pub(super) fn check_parts(&self, into: &str, tensors: &[usize]) -> Result<(), RulesError> {
        for &index in tensors {
            let Some(rule) = self.stored(index) else { continue };
            let keys = [("pad", rule.pad.is_some()), ("crop", rule.crop.is_some()), ("heads", rule.heads.is_some())];
            if let Some((key, _)) = keys.into_iter().find(|&(_, is_said)| is_said) {
                let tensor = self.model.tensors()[index].name.clone();
                let source = StorageError::Part { key, tensor, into: into.to_string() };
                return Err(RulesError::Storage { rule: rule.origin.clone(), source });
            }
        }
        Ok(())
    }

    /// All experts must be in a stack, each with a dimension for it.
    pub(super) fn check_stack(&self, number: u32) -> Result<(), RulesError> {
        let fused = &self.fused[number as usize];
        let parts = fused.stacked.unwrap_or(1);
        let count = self.tensors[fused.tensors[0]].expert.map_or(0, |(_, count)| count);
        let have =
            fused.tensors.iter().step_by(parts).map(|&index| self.tensors[index].expert.map(|(expert, _)| expert));
        let leads = fused.tensors.iter().all(|&index| self.is_leading(index));
        if !leads {
            return Err(self.fuse_error(number, FuseRuleError::NoLeading { into: fused.name.clone() }));
        }
        if !have.eq((0..count).map(Some)) {
            let experts = fused.tensors.len() / parts;
            return Err(self.fuse_error(number, FuseRuleError::Experts { into: fused.name.clone(), experts, count }));
        }
        Ok(())
    }

    /// The row of the expert file of every layer.
    pub(super) fn find_expert_rows(&mut self) -> Result<(), RulesError> {
        let Some((_, file)) = self.rules.expert_files.first() else { return Ok(()) };
        let with_experts: BTreeSet<Option<u64>> = (0..self.tensors.len())
            .filter(|&index| self.tensors[index].expert.is_some() || self.expert_dim(index).is_some())
            .map(|index| self.rules.layer(&self.model.tensors()[index].name))
            .collect();
        self.expert_rows = file.rows_of(self.model.name(), &with_experts, self.layers)?;
        Ok(())
    }

    /// The dimension of tensor number `index` that counts experts.
    fn expert_dim(&self, index: usize) -> Option<usize> {
        let tensor = &self.model.tensors()[index];
        self.effect(self.tensors[index].effect).dim(super::ParallelAxis::Expert, tensor.shape.len())
    }

    /// Row of the expert file for tensor number `index`, where there is one.
    pub(super) fn expert_row(&self, index: usize) -> Option<usize> {
        if self.expert_rows.is_empty() {
            return None;
        }
        self.expert_rows.get(&self.rules.layer(&self.model.tensors()[index].name)).copied()
    }

    /// Slots of a row of the expert file.
    pub(super) fn slots(&self, row: usize) -> &[u64] {
        self.rules.expert_files.first().map_or(&[], |(_, file)| file.slots(row))
    }

    /// The rule that says how tensor number `index` is stored.
    pub(super) fn stored(&self, index: usize) -> Option<&StoreRule> {
        Some(&self.rules.stores[self.tensors[index].store? as usize])
    }

    /// How `ranks` ranks of tensor parallelism share the heads of tensor number `index`, and the rule that says so: one about
    /// its storage, or the one that says what `tp` cuts, where the model says how many heads it has. Padded tensors and parts
    /// of fused ones have no heads by the latter.
    pub(super) fn heads(&self, index: usize, ranks: u32) -> Option<(&str, HeadShares)> {
        let known = self.tensors[index];
        let stored = self.stored(index);
        if let Some((rule, heads)) = stored.and_then(|rule| Some((rule, rule.heads?))) {
            return Some((&rule.origin, heads));
        }
        let is_padded = stored.is_some_and(|rule| rule.pad.is_some() || rule.crop.is_some());
        let is_part = known.fused.is_some_and(|(number, _)| self.is_fused(number));
        let is_counted = self.model.dimensions().heads.is_some();
        let kind = self.effect(known.effect).heads.filter(|_| ranks > 1 && is_counted && !is_padded && !is_part)?;
        Some((self.rule(index)?, HeadShares::of_model(kind)))
    }

    /// Whether fused tensor number `number` has several parts along its dimension.
    pub(super) fn is_fused(&self, number: u32) -> bool {
        self.fused[number as usize].extents.len() > 1
    }

    /// The model's name and dimensions.
    pub(super) fn known(&self) -> Known<'_> {
        (self.model.name(), self.model.dimensions())
    }

    /// The rule of scales of that number.
    pub(super) fn scale_rule(&self, number: u32) -> &ScaleRule {
        &self.rules.scales[number as usize]
    }

    /// Whether the last two dimensions of tensor number `index` change places in memory.
    pub fn is_transposed(&self, index: usize) -> bool {
        self.stored(index).is_some_and(|rule| rule.transposed)
    }

    /// Whether tensor number `index` has a dimension in front for the slots of experts, which rules do not count.
    pub fn is_leading(&self, index: usize) -> bool {
        self.leading.get(index).copied().unwrap_or(false)
    }
}
