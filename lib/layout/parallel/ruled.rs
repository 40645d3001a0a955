//! The rule of every tensor of a model. In: rules, a model. Out: [`RuledModel`]. Guarantee: names that differ in numbers
//! only are looked up once, unless a pattern spells the number out, so the cost follows the kinds of names.

use super::effect::{Effect, StageWord};
use super::fused::differ;
use super::pattern::plain_number;
use super::rules::Found;
use super::{FuseRuleError, FusedTensor, PreparedModel, Rules, RulesError};
use crate::layout::FusedAxis;
use crate::layout::model::{Model, ModelTensor};
use std::collections::HashMap;

/// A model whose tensors have been looked up in rules.
#[derive(Debug, Clone)]
pub struct RuledModel<'a> {
    pub(super) model: &'a Model,
    pub(super) rules: &'a Rules,
    /// Distinct effects; the first one is that of names that no rule knows.
    effects: Vec<Effect>,
    pub(super) tensors: Vec<RuledTensor>,
    /// For every tied group the places where its names stand in the pipeline.
    tied_places: Vec<Vec<Place>>,
    unmatched: Vec<String>,
    pub(super) layers: u64,
    pub(super) fused: Vec<FusedTensor>,
    /// Tensors with a dimension in front that no rule counts; none where there are none.
    pub(super) leading: &'a [bool],
    /// Rows of the expert file by layer; none where there is no file.
    pub(super) expert_rows: HashMap<Option<u64>, usize>,
}

/// What is known of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RuledTensor {
    /// Number of the effect.
    pub(super) effect: u32,
    pub(super) rule: Option<Found>,
    /// Index and number of experts, where the tensor is one.
    pub(super) expert: Option<(u64, u64)>,
    pub(super) place: Place,
    /// Whether it is planned under another name.
    pub(super) is_alias: bool,
    /// Number of the fused tensor that it is part of, and of the part.
    pub(super) fused: Option<(u32, u32)>,
    /// Number of the rule that says how it is stored.
    pub(super) store: Option<u32>,
    /// Where it has the scales of a weight: number of that, and of the rule.
    pub(super) scales: Option<(usize, u32)>,
}

/// Where a tensor stands in the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// With this layer.
    Layer(u64),
    /// Outside the layers.
    Word(StageWord),
    /// Wherever a name of this tied group stands.
    Tied(u32),
}

/// Looks names up, one of each kind.
struct Finder<'a> {
    rules: &'a Rules,
    known: HashMap<String, Option<Found>>,
    spelled: HashMap<String, bool>,
    key: String,
}

impl Rules {
    /// Looks up the rule of every tensor. A rule of a user's file that decides no tensor is an error.
    pub fn apply<'a>(&'a self, model: &'a Model) -> Result<RuledModel<'a>, RulesError> {
        self.look_up(model, &[])
    }

    /// The same for a model that was prepared for both sides.
    pub fn apply_to<'a>(&'a self, prepared: &'a PreparedModel<'_>) -> Result<RuledModel<'a>, RulesError> {
        self.look_up(prepared.model(), prepared.leading())
    }

    fn look_up<'a>(&'a self, model: &'a Model, leading: &'a [bool]) -> Result<RuledModel<'a>, RulesError> {
        let mut finder = Finder::new(self);
        let found = model.tensors().iter().map(|tensor| finder.find(&tensor.name));
        let found = found.collect::<Result<Vec<_>, _>>()?;
        self.check_used(model, &found)?;
        let (effects, numbers) = self.number_effects(&found);
        let experts = expert_counts(model, &found);
        let mut ruled = RuledModel {
            model,
            rules: self,
            effects,
            tensors: Vec::with_capacity(found.len()),
            tied_places: Vec::new(),
            unmatched: Vec::new(),
            layers: self.layer_count(model, &found),
            fused: self.fused_tensors(model)?,
            leading,
            expert_rows: HashMap::new(),
        };
        let scales = self.scales_of(model, &found)?;
        for (index, (tensor, found)) in model.tensors().iter().zip(&found).enumerate() {
            if found.is_none() && scales[index].is_none() {
                ruled.unmatched.push(tensor.name.clone());
            }
            ruled.tensors.push(RuledTensor {
                effect: found.map_or(0, |found| numbers[found.tier][found.rule]),
                rule: *found,
                expert: self.expert(model, tensor, *found, experts[index])?,
                place: self.place(&tensor.name, *found),
                is_alias: false,
                fused: None,
                store: None,
                scales: scales[index],
            });
        }
        ruled.follow_weights();
        ruled.tie(&mut finder)?;
        ruled.store()?;
        ruled.fuse()?;
        ruled.find_expert_rows()?;
        Ok(ruled)
    }

    /// Every rule of a user's file must decide something.
    fn check_used(&self, model: &Model, found: &[Option<Found>]) -> Result<(), RulesError> {
        let mut used: Vec<Vec<bool>> = self.tiers.iter().map(|tier| vec![false; tier.rules.len()]).collect();
        for found in found.iter().flatten() {
            used[found.tier][found.rule] = true;
        }
        for (tier, used) in self.tiers.iter().zip(&used).filter(|(tier, _)| tier.is_for_this_model) {
            if let Some(idle) = used.iter().position(|&used| !used) {
                // A rule that agrees with an earlier one about all its tensors decides none, and does no harm.
                let rule = &tier.rules[idle];
                if self.matches_any(rule, model) {
                    continue;
                }
                let names = rule.names.iter().map(|pattern| pattern.text().to_string()).collect();
                let (rule, model) = (rule.origin.clone(), model.name().to_string());
                return Err(RulesError::MatchesNothing { rule, names, model });
            }
        }
        Ok(())
    }

    fn matches_any(&self, rule: &super::rules::Rule, model: &Model) -> bool {
        model.tensors().iter().any(|tensor| {
            let components: Vec<&str> = tensor.name.split('.').collect();
            rule.names.iter().any(|pattern| pattern.matches(&components).is_some())
        })
    }

    /// Distinct effects, and the number of each rule's.
    fn number_effects(&self, found: &[Option<Found>]) -> (Vec<Effect>, Vec<Vec<u32>>) {
        let mut effects = vec![Effect::default()];
        let mut numbers: Vec<Vec<u32>> = self.tiers.iter().map(|tier| vec![u32::MAX; tier.rules.len()]).collect();
        for found in found.iter().flatten() {
            let number = &mut numbers[found.tier][found.rule];
            if *number == u32::MAX {
                let effect = &self.rule(*found).effect;
                let known = effects.iter().position(|earlier| earlier == effect);
                *number = known.unwrap_or_else(|| {
                    effects.push(effect.clone());
                    effects.len() - 1
                }) as u32;
            }
        }
        (effects, numbers)
    }

    /// Layers of the main stack: as stated, or as the names have them without those that predict further tokens.
    fn layer_count(&self, model: &Model, found: &[Option<Found>]) -> u64 {
        if let Some(layers) = model.dimensions().layers {
            return u64::from(layers);
        }
        let mut end = 0;
        let mut predicting = u64::MAX;
        for (tensor, found) in model.tensors().iter().zip(found) {
            let Some(layer) = self.layer(&tensor.name) else { continue };
            end = end.max(layer.saturating_add(1));
            if found.is_some_and(|found| self.rule(found).effect.predicts) {
                predicting = predicting.min(layer);
            }
        }
        end.min(predicting)
    }

    /// The layer that a name speaks of.
    pub(super) fn layer(&self, name: &str) -> Option<u64> {
        let mut before = "";
        for component in name.split('.') {
            if self.layer_words.contains(before)
                && let Some(layer) = plain_number(component)
            {
                return Some(layer);
            }
            before = component;
        }
        None
    }

    fn place(&self, name: &str, found: Option<Found>) -> Place {
        let word = || found.and_then(|found| self.rule(found).effect.stage).unwrap_or(StageWord::All);
        self.layer(name).map_or_else(|| Place::Word(word()), Place::Layer)
    }

    fn expert(
        &self,
        model: &Model,
        tensor: &ModelTensor,
        found: Option<Found>,
        counted: u64,
    ) -> Result<Option<(u64, u64)>, RulesError> {
        let Some((found, (expert, _))) = found.and_then(|found| Some((found, found.matched.expert?))) else {
            return Ok(None);
        };
        let stated = model.dimensions().experts.map(u64::from);
        let count = stated.unwrap_or(counted);
        if expert >= count {
            let (rule, tensor) = (self.rule(found).origin.clone(), tensor.name.clone());
            if stated.is_none() {
                return Err(RulesError::ExpertNumber { rule, tensor, expert });
            }
            return Err(RulesError::ExpertIndex { rule, tensor, expert, count });
        }
        Ok(Some((expert, count)))
    }
}

/// Per tensor the experts beside it, counted from their names: the text before the index groups them, and the highest
/// index says how many there are; 0 for tensors that are no expert.
fn expert_counts(model: &Model, found: &[Option<Found>]) -> Vec<u64> {
    let mut counts: HashMap<&str, u64> = HashMap::new();
    let mut groups: Vec<Option<&str>> = Vec::with_capacity(found.len());
    for (tensor, found) in model.tensors().iter().zip(found) {
        let expert = found.and_then(|found| found.matched.expert);
        groups.push(expert.map(|(index, component)| {
            let group = leading_components(&tensor.name, component);
            let count = counts.entry(group).or_default();
            *count = (*count).max(index.saturating_add(1));
            group
        }));
    }
    groups.into_iter().map(|group| group.and_then(|group| counts.get(group).copied()).unwrap_or(0)).collect()
}

/// The first `count` dotted components of `name`.
fn leading_components(name: &str, count: usize) -> &str {
    match name.match_indices('.').nth(count.wrapping_sub(1)) {
        Some((end, _)) if count > 0 => &name[..end],
        _ => "",
    }
}

impl<'a> RuledModel<'a> {
    /// The model.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// Names that no rule knows, in model order. Every rank of a side holds them, but for `fsdp`.
    pub fn unmatched(&self) -> &[String] {
        &self.unmatched
    }

    /// Layers of the main stack.
    pub fn layers(&self) -> u64 {
        self.layers
    }

    /// File and line of the rule that decides tensor number `index`.
    pub fn rule(&self, index: usize) -> Option<&str> {
        self.tensors[index].rule.map(|found| self.rules.rule(found).origin.as_str())
    }

    /// Whether a cast of the whole model must leave tensor number `index` as it is: routers, whose choices change with
    /// a rounded weight, and scales, which belong to weights that no cast takes.
    pub fn keeps_dtype(&self, index: usize) -> bool {
        let tensor = &self.tensors[index];
        let scales = tensor.scales.is_some() || self.model.tensors()[index].name.ends_with("_scale_inv");
        scales || self.effect(tensor.effect).keeps_dtype
    }

    /// Whether tensor number `index` moves under the name of another one that it is tied to.
    pub fn is_alias(&self, index: usize) -> bool {
        self.tensors[index].is_alias
    }

    /// Tensors that are stored in place of others.
    pub fn fused(&self) -> &[FusedTensor] {
        &self.fused
    }

    /// What ranks store of the parts of fused tensor number `number`.
    pub(super) fn fused_axis(&self, number: u32, ranks: u32) -> Result<FusedAxis, RulesError> {
        let FusedTensor { name, rule, extents, .. } = &self.fused[number as usize];
        let rule = &self.rules.fuses[*rule];
        let model = (self.model.name(), self.model.dimensions());
        rule.axis(name, extents, model, ranks).map_err(|source| RulesError::Fuse { rule: rule.origin.clone(), source })
    }

    pub(super) fn fuse_error(&self, number: u32, source: FuseRuleError) -> RulesError {
        RulesError::Fuse { rule: self.rules.fuses[self.fused[number as usize].rule].origin.clone(), source }
    }

    /// Notes which tensors are parts; the other rules must treat the parts of one alike.
    fn fuse(&mut self) -> Result<(), RulesError> {
        for (number, FusedTensor { name, dim, tensors, stacked, .. }) in (0..).zip(&self.fused) {
            let kind = |index: usize| {
                let tensor = &self.tensors[index];
                let expert = tensor.expert.filter(|_| stacked.is_none());
                let effect = self.effect(tensor.effect).without_heads();
                (effect, tensor.place, expert, tensor.is_alias, self.is_transposed(index))
            };
            let first = kind(tensors[0]);
            if let Some(&other) = tensors.iter().find(|&&index| kind(index) != first) {
                let source = differ(&self.model.tensors()[tensors[0]], &self.model.tensors()[other], *dim);
                return Err(self.fuse_error(number, source));
            }
            self.check_parts(name, tensors)?;
            if stacked.is_some() {
                self.check_stack(number)?;
            }
            let parts = stacked.unwrap_or(tensors.len());
            for (part, &index) in tensors.iter().enumerate() {
                self.tensors[index].fused = Some((number, (part % parts) as u32));
            }
        }
        Ok(())
    }

    pub(super) fn tensor(&self, index: usize) -> RuledTensor {
        self.tensors[index]
    }

    pub(super) fn effect(&self, number: u32) -> &Effect {
        &self.effects[number as usize]
    }

    pub(super) fn tied_places(&self, group: u32) -> &[Place] {
        &self.tied_places[group as usize]
    }

    /// Makes one tensor of every tied group: the first of its names that the model has.
    fn tie(&mut self, finder: &mut Finder<'_>) -> Result<(), RulesError> {
        let model = self.model;
        let stated = self.rules.tied.iter().map(|(origin, names)| (origin.clone(), names));
        let own = model.tied().iter().map(|names| (format!("model {:?}", model.name()), names));
        let groups: Vec<(String, &Vec<String>)> = stated.chain(own).collect();
        if groups.is_empty() {
            return Ok(());
        }
        let numbers: HashMap<&str, usize> =
            model.tensors().iter().enumerate().map(|(index, tensor)| (tensor.name.as_str(), index)).collect();
        for (origin, names) in groups {
            let members: Vec<usize> = names.iter().filter_map(|name| numbers.get(name.as_str()).copied()).collect();
            let Some((&first, aliases)) = members.split_first() else {
                return Err(RulesError::TiedMatchesNothing { group: origin, names: names.clone() });
            };
            let group = self.tied_places.len() as u32;
            let mut places = Vec::new();
            for name in names {
                let found = finder.find(name)?;
                let effect = found.map_or(Effect::default(), |found| self.rules.rule(found).effect.clone());
                let mine = self.effect(self.tensors[first].effect);
                let alike = Effect { stage: mine.stage, predicts: mine.predicts, ..effect } == *mine;
                let same = |&index: &usize| {
                    let (one, other) = (&model.tensors()[first], &model.tensors()[index]);
                    one.shape == other.shape && one.dtype == other.dtype && !self.tensors[index].is_alias
                };
                if !alike || !numbers.get(name.as_str()).is_none_or(same) {
                    let (first, second) = (model.tensors()[first].name.clone(), name.clone());
                    return Err(RulesError::TiedDiffer { group: origin, first, second });
                }
                places.push(self.rules.place(name, found));
            }
            self.tied_places.push(places);
            self.tensors[first].place = Place::Tied(group);
            for &alias in aliases {
                self.tensors[alias].is_alias = true;
            }
        }
        Ok(())
    }
}

impl<'a> Finder<'a> {
    fn new(rules: &'a Rules) -> Self {
        Self { rules, known: HashMap::new(), spelled: HashMap::new(), key: String::new() }
    }

    fn find(&mut self, name: &str) -> Result<Option<Found>, RulesError> {
        self.write_key(name);
        if let Some(&known) = self.known.get(&self.key) {
            return Ok(known.map(|found| for_name(found, name)));
        }
        let components: Vec<&str> = name.split('.').collect();
        let found = self.rules.find(name, &components)?;
        self.known.insert(self.key.clone(), found);
        Ok(found)
    }

    /// The name with `#` for every number that no pattern spells out.
    fn write_key(&mut self, name: &str) {
        self.key.clear();
        for component in name.split('.') {
            self.key.push('.');
            if plain_number(component).is_none() || self.is_spelled(component) {
                // A component that begins with the sign itself is told apart by a second one.
                self.key.push_str(if component.starts_with('#') { "#" } else { "" });
                self.key.push_str(component);
            } else {
                self.key.push('#');
            }
        }
    }

    fn is_spelled(&mut self, number: &str) -> bool {
        if let Some(&spelled) = self.spelled.get(number) {
            return spelled;
        }
        let spelled = self.rules.spells_number(number);
        self.spelled.insert(number.to_string(), spelled);
        spelled
    }
}

/// What was found for a name, for another one of its kind.
fn for_name(mut found: Found, name: &str) -> Found {
    if let Some((index, component)) = &mut found.matched.expert
        && let Some(number) = name.split('.').nth(*component).and_then(plain_number)
    {
        *index = number;
    }
    found
}
