//! Fused tensors of a model. In: fuse rules, a model with its other rules. Out: [`FusedTensor`]s, with the tensors that
//! make them. Guarantee: every rule makes at least one; all parts of one are there, fit each other, and are in no other.

use super::fuse::FuseRule;
use super::{FuseRuleError, Rules, RulesError};
use crate::layout::model::{Model, ModelTensor};
use std::collections::{BTreeMap, HashMap};

/// A tensor that a side stores in place of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedTensor {
    /// Its name.
    pub name: String,
    /// The dimension along which it is fused.
    pub dim: usize,
    /// Numbers of its parts in the model; of a stack those of the first expert, then those of the second, and so on.
    pub tensors: Vec<usize>,
    /// Parts of each expert where it is a stack, whose first dimension counts the slots of a rank.
    pub stacked: Option<usize>,
    /// Number of the rule.
    pub(super) rule: usize,
    /// Extents of the parts along `dim`.
    pub(super) extents: Vec<u64>,
}

impl Rules {
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
    // Of every tensor to be made what its name leaves open, with its experts and one tensor of each.
    let mut open: BTreeMap<Vec<String>, BTreeMap<u64, usize>> = BTreeMap::new();
    for (index, tensor) in model.tensors().iter().enumerate() {
        let components: Vec<&str> = tensor.name.split('.').collect();
        let found = rule.parts.iter().filter_map(|part| Some((part, part.captures(&components)?)));
        for (part, mut captures) in found {
            let place = part.expert_place().filter(|_| rule.stacked);
            let expert = place.map_or(0, |place| captures.remove(place).parse().unwrap_or(u64::MAX));
            open.entry(captures).or_default().entry(expert).or_insert(index);
        }
    }
    if open.is_empty() {
        let parts = rule.parts.iter().map(|part| part.text().to_string()).collect();
        return Err(FuseRuleError::MatchesNothing { model: model.name().to_string(), parts });
    }
    let made = open.into_iter().map(|(captures, experts)| {
        let into = rule.into.filled(&captures);
        let mut tensors = Vec::new();
        for (&expert, &present) in &experts {
            for part in &rule.parts {
                let mut captures = captures.clone();
                if let Some(place) = part.expert_place().filter(|_| rule.stacked) {
                    captures.insert(place, expert.to_string());
                }
                let name = part.filled(&captures);
                let Some(&tensor) = names.get(name.as_str()) else {
                    let (present, into) = (model.tensors()[present].name.clone(), into.clone());
                    return Err(FuseRuleError::Missing { present, missing: name, into });
                };
                tensors.push(tensor);
            }
        }
        let dim = rule.dim + usize::from(rule.stacked);
        let mut extents = extents(&tensors, model, dim)?;
        let parts = rule.parts.len();
        if let Some(other) = (parts..extents.len()).find(|&at| extents[at] != extents[at % parts]) {
            return Err(differ(&model.tensors()[tensors[other % parts]], &model.tensors()[tensors[other]], dim));
        }
        extents.truncate(parts);
        let stacked = rule.stacked.then_some(parts);
        Ok(FusedTensor { name: into, dim, tensors, stacked, rule: number, extents })
    });
    made.collect()
}

/// Two tensors that cannot be parts of one.
pub(super) fn differ(first: &ModelTensor, second: &ModelTensor, dim: usize) -> FuseRuleError {
    FuseRuleError::Differ {
        first: first.name.clone(),
        first_shape: first.shape.clone(),
        second: second.name.clone(),
        second_shape: second.shape.clone(),
        dim,
    }
}

/// Extents along `dim` of tensors that agree in everything else.
fn extents(tensors: &[usize], model: &Model, dim: usize) -> Result<Vec<u64>, FuseRuleError> {
    let first = &model.tensors()[tensors[0]];
    let alike = |tensor: &ModelTensor| {
        let dims = tensor.shape.len();
        let same = |other: usize| other == dim || tensor.shape[other] == first.shape[other];
        dim < dims && dims == first.shape.len() && (0..dims).all(same) && tensor.dtype == first.dtype
    };
    let extent = |&index: &usize| {
        let tensor = &model.tensors()[index];
        if alike(tensor) { Ok(tensor.shape[dim]) } else { Err(differ(first, tensor, dim)) }
    };
    tensors.iter().map(extent).collect()
}
