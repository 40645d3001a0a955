//! The tensors that both sides deal with. In: a model as a checkpoint has it, rules of both sides. Out: [`PreparedModel`].
//! Guarantee: it has the elements of the model, each once, with names of which none stands twice; a model that no rule
//! changes is not copied.

use super::split::{Origin, SplitRule};
use super::{FuseRuleError, Rules, RulesError};
use crate::layout::model::{Model, ModelTensor};
use std::borrow::Cow;

/// A model with tensors taken apart, and with a leading dimension for those that a side stacks.
#[derive(Debug, Clone)]
pub struct PreparedModel<'a> {
    model: Cow<'a, Model>,
    /// One for every tensor; none where the model is as it was.
    origins: Vec<Origin>,
    /// Whether a tensor was given a leading dimension of extent 1; none where no tensor was.
    leading: Vec<bool>,
}

impl<'a> PreparedModel<'a> {
    /// Prepares `model` for sides with these rules.
    pub fn new(model: &'a Model, source: &Rules, destination: &Rules) -> Result<Self, RulesError> {
        let mut prepared = Self { model: Cow::Borrowed(model), origins: Vec::new(), leading: Vec::new() };
        let others = destination.splits.iter().filter(|rule| !source.splits.contains(rule));
        let splits: Vec<&SplitRule> = source.splits.iter().chain(others).collect();
        if !splits.is_empty() {
            prepared.take_apart(model, &splits)?;
        }
        let stacks = source.fuses.iter().chain(&destination.fuses).filter(|rule| rule.stacked);
        let patterns: Vec<_> = stacks.flat_map(|rule| &rule.parts).collect();
        if !patterns.is_empty() {
            prepared.lead(|name| patterns.iter().any(|pattern| pattern.matches(name).is_some()))?;
        }
        Ok(prepared)
    }

    /// The model that sides deal with.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Where the elements of tensor number `index` stand in the model that was given.
    pub fn origin(&self, index: usize) -> Origin {
        self.origins.get(index).cloned().unwrap_or_else(|| Origin::whole(index))
    }

    /// Per tensor whether it has a leading dimension; none where no tensor has.
    pub(super) fn leading(&self) -> &[bool] {
        &self.leading
    }

    /// Whether tensor number `index` has a leading dimension of extent 1, for the slots of experts, that its origin lacks.
    pub fn is_leading(&self, index: usize) -> bool {
        self.leading.get(index).copied().unwrap_or(false)
    }

    fn take_apart(&mut self, model: &Model, splits: &[&SplitRule]) -> Result<(), RulesError> {
        let known = (model.name(), model.dimensions());
        let mut tensors = Vec::with_capacity(model.tensors().len());
        let mut used = vec![false; splits.len()];
        for (number, tensor) in model.tensors().iter().enumerate() {
            let mut parts: Vec<(ModelTensor, Origin)> = Vec::new();
            let mut first: Option<&SplitRule> = None;
            for (rule, used) in splits.iter().zip(&mut used) {
                let failed = |source| RulesError::Fuse { rule: rule.origin.clone(), source };
                let made = rule.apart(number, tensor, known).map_err(failed)?;
                if let (Some(first), false) = (first, made.is_empty()) {
                    let (name, first) = (tensor.name.clone(), first.origin.clone());
                    return Err(failed(FuseRuleError::Twice { name, first }));
                }
                if !made.is_empty() {
                    (first, *used, parts) = (Some(*rule), true, made);
                }
            }
            match first {
                Some(_) => tensors.extend(parts),
                None => tensors.push((tensor.clone(), Origin::whole(number))),
            }
        }
        if let Some(idle) = used.iter().position(|&used| !used) {
            let (model, parts) = (model.name().to_string(), vec![splits[idle].from.text().to_string()]);
            let source = FuseRuleError::MatchesNothing { model, parts };
            return Err(RulesError::Fuse { rule: splits[idle].origin.clone(), source });
        }
        let (tensors, origins): (Vec<_>, Vec<_>) = tensors.into_iter().unzip();
        self.replace(tensors, model)?;
        self.origins = origins;
        Ok(())
    }

    /// Gives a dimension of extent 1 to the tensors that are to be stacked.
    fn lead(&mut self, is_stacked: impl Fn(&[&str]) -> bool) -> Result<(), RulesError> {
        let mut tensors = self.model.tensors().to_vec();
        self.leading = vec![false; tensors.len()];
        for (tensor, leading) in tensors.iter_mut().zip(&mut self.leading) {
            *leading = is_stacked(&tensor.name.split('.').collect::<Vec<_>>());
            if *leading {
                tensor.shape.insert(0, 1);
            }
        }
        if let (false, leading) = (self.origins.is_empty(), &self.leading) {
            let shifted = self.origins.drain(..).zip(leading);
            self.origins = shifted.map(|(origin, &leading)| if leading { origin.shifted() } else { origin }).collect();
        }
        let model = self.model.clone().into_owned();
        self.replace(tensors, &model)
    }

    /// The same model with other tensors.
    fn replace(&mut self, tensors: Vec<ModelTensor>, model: &Model) -> Result<(), RulesError> {
        let made =
            Model::new(model.name(), tensors).map_err(|error| RulesError::Model { reason: error.to_string() })?;
        self.model = Cow::Owned(made.with_dimensions(model.dimensions()).with_tied(model.tied().to_vec()));
        Ok(())
    }
}
