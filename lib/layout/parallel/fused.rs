//! Fused tensors of a model. In: fuse rules, a model with its other rules. Out: [`FusedTensor`]s, with the tensors that
//! make them. Guarantee: every rule makes at least one; all parts of one are there, fit each other, and are in no other.

use super::fuse::{FuseRule, FuseSide};
use super::{FuseRuleError, Rules, RulesError};
use crate::layout::model::Model;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// A tensor that a side stores in place of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedTensor {
    /// Its name.
    pub name: String,
    /// The dimension along which it is fused.
    pub dim: usize,
    /// Numbers of its parts in the model.
    pub tensors: Vec<usize>,
    /// Number of the rule.
    pub(super) rule: usize,
    /// Extents of the parts along `dim`.
    pub(super) extents: Vec<u64>,
}

impl Rules {
    /// The rules as they are for one side: fuse rules of the other are left out.
    pub fn on(&self, side: FuseSide) -> Cow<'_, Rules> {
        if self.fuses.iter().all(|rule| rule.is_on(side)) {
            return Cow::Borrowed(self);
        }
        let mut rules = self.clone();
        rules.fuses.retain(|rule| rule.is_on(side));
        Cow::Owned(rules)
    }

    /// All fused tensors of a model.
    pub(super) fn fused_tensors(&self, model: &Model) -> Result<Vec<FusedTensor>, RulesError> {
        if self.fuses.is_empty() {
            return Ok(Vec::new());
        }
        let names: HashMap<&str, usize> =
            model.tensors().iter().enumerate().map(|(index, tensor)| (tensor.name.as_str(), index)).collect();
        let mut made = Vec::new();
        // What has been made or used, by which rule.
        let mut taken: HashMap<String, &str> = HashMap::new();
        for (number, rule) in self.fuses.iter().enumerate() {
            let failed = |source| RulesError::Fuse { rule: rule.origin.clone(), source };
            for fused in groups(rule, number, model, &names).map_err(failed)? {
                let parts = fused.tensors.iter().map(|&tensor| &model.tensors()[tensor].name);
                for name in parts.chain([&fused.name]) {
                    let first = match taken.insert(name.clone(), &rule.origin) {
                        Some(first) => first.to_string(),
                        None if *name == fused.name && names.contains_key(name.as_str()) => "(the model itself)".into(),
                        None => continue,
                    };
                    return Err(failed(FuseRuleError::Twice { name: name.clone(), first }));
                }
                made.push(fused);
            }
        }
        Ok(made)
    }
}

/// The tensors that one rule makes, by name.
fn groups(
    rule: &FuseRule,
    number: usize,
    model: &Model,
    names: &HashMap<&str, usize>,
) -> Result<Vec<FusedTensor>, FuseRuleError> {
    let mut open: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for (index, tensor) in model.tensors().iter().enumerate() {
        let components: Vec<&str> = tensor.name.split('.').collect();
        for captures in rule.parts.iter().filter_map(|part| part.captures(&components)) {
            open.entry(captures).or_insert(index);
        }
    }
    if open.is_empty() {
        let parts = rule.parts.iter().map(|part| part.text().to_string()).collect();
        return Err(FuseRuleError::MatchesNothing { model: model.name().to_string(), parts });
    }
    open.into_iter()
        .map(|(captures, present)| {
            let into = rule.into.filled(&captures);
            let part = |part: &super::pattern::NamePattern| {
                let name = part.filled(&captures);
                names.get(name.as_str()).copied().ok_or_else(|| FuseRuleError::Missing {
                    present: model.tensors()[present].name.clone(),
                    missing: name,
                    into: into.clone(),
                })
            };
            let tensors = rule.parts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
            let extents = extents(&tensors, model, rule.dim)?;
            Ok(FusedTensor { name: into, dim: rule.dim, tensors, rule: number, extents })
        })
        .collect()
}

/// Extents along `dim` of tensors that agree in everything else.
fn extents(tensors: &[usize], model: &Model, dim: usize) -> Result<Vec<u64>, FuseRuleError> {
    let first = &model.tensors()[tensors[0]];
    let rest = |shape: &[u64]| {
        let mut rest = shape.to_vec();
        (dim < rest.len()).then(|| rest.remove(dim))?;
        Some(rest)
    };
    tensors
        .iter()
        .map(|&index| {
            let tensor = &model.tensors()[index];
            let alike = rest(&tensor.shape).is_some() && rest(&tensor.shape) == rest(&first.shape);
            match alike && tensor.dtype == first.dtype {
                true => Ok(tensor.shape[dim]),
                false => Err(FuseRuleError::Differ {
                    first: first.name.clone(),
                    first_shape: first.shape.clone(),
                    second: tensor.name.clone(),
                    second_shape: tensor.shape.clone(),
                    dim,
                }),
            }
        })
        .collect()
}
