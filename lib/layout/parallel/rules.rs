//! Which dimension of a named tensor each axis shards. In: TOML texts. Out: [`Rules`]. Guarantee: a text that is
//! accepted has no unused part; a name that two rules of one tier treat differently is an error that names both.
//!
//! ```toml
//! [[rule]]
//! names = ["*.self_attn.{q,k,v}_proj.weight"]   # * is one dotted component or more
//! tp = 0                                        # the dimension that tensor parallelism cuts
//!
//! [[rule]]
//! names = ["*.mlp.experts.{expert}.gate_proj.weight"]
//! experts = "per-tensor"                        # one tensor per expert: ep deals out whole tensors
//! tp = 0
//!
//! [[rule]]
//! names = ["*.mlp.experts.gate_proj"]           # all experts stacked in one tensor
//! ep = 0
//! tp = 1
//!
//! [[rule]]
//! names = ["*.norm.weight"]
//! tp = "replicate"                              # as every axis that a rule does not mention, but fsdp
//! stage = "last"                                # pp, for a tensor outside the layers: first, last or all
//!
//! [[rule]]
//! names = ["*.mlp.gate.weight"]
//! cast = "never"                                # a cast of the whole model leaves it as it is
//!
//! [[tied]]
//! names = ["model.embed_tokens.weight", "lm_head.weight"]   # one tensor of two names
//! ```
//!
//! `[[fuse]]` tables, of tensors that a side stores as one, are in `fuse`.

use super::RulesError;
use super::effect::Effect;
use super::fuse::FuseRule;
use super::pattern::{Match, NamePattern};
use super::rules_text::{Document, read};
use std::collections::BTreeSet;

/// The rules that come with the library, by file name.
pub(super) const EMBEDDED: [(&str, &str); 4] = [
    ("bert.toml", include_str!("../rules/bert.toml")),
    ("llama.toml", include_str!("../rules/llama.toml")),
    ("moe.toml", include_str!("../rules/moe.toml")),
    ("deepseek.toml", include_str!("../rules/deepseek.toml")),
];

/// Rules that fuse tensors, by file name; they count when they are asked for.
pub(super) const FUSING: [(&str, &str); 5] = [
    ("bert-fused-qkv.toml", include_str!("../rules/bert-fused-qkv.toml")),
    ("llama-fused.toml", include_str!("../rules/llama-fused.toml")),
    ("moe-fused.toml", include_str!("../rules/moe-fused.toml")),
    ("moe-stacked-fused.toml", include_str!("../rules/moe-stacked-fused.toml")),
    ("deepseek-fused.toml", include_str!("../rules/deepseek-fused.toml")),
];

/// Rules for tensors by name, in tiers: the first tier with a rule for a name decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    pub(super) tiers: Vec<Tier>,
    /// Components of names after which the number of a layer stands.
    pub(super) layer_words: BTreeSet<String>,
    /// Groups of names that stand for one tensor, with file and line.
    pub(super) tied: Vec<(String, Vec<String>)>,
    /// Tensors that are stored as one.
    pub(super) fuses: Vec<FuseRule>,
}

/// Rules of one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tier {
    pub(super) rules: Vec<Rule>,
    /// Whether each rule must decide some tensor: rules of users are meant for the model at hand.
    pub(super) is_for_this_model: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// File and line, for messages.
    pub(super) origin: String,
    pub(super) names: Vec<NamePattern>,
    pub(super) effect: Effect,
}

/// A rule by its place, and what its pattern found in the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) tier: usize,
    pub(super) rule: usize,
    pub(super) matched: Match,
}

impl Rules {
    /// The rules of the model families that the library knows: BERT, Llama and Qwen, mixtures of experts, DeepSeek.
    pub fn embedded() -> Result<Self, RulesError> {
        let mut all = Self::default();
        let mut rules = Vec::new();
        for (name, text) in EMBEDDED {
            rules.extend(all.absorb(read(text, name)?));
        }
        all.tiers.push(Tier { rules, is_for_this_model: false });
        Ok(all)
    }

    /// Names of the embedded files, without `.toml`.
    pub fn family_names() -> impl Iterator<Item = &'static str> {
        EMBEDDED.iter().chain(&FUSING).map(|(file, _)| file.trim_end_matches(".toml"))
    }

    /// The text of an embedded file, to read or to begin a file of one's own with.
    pub fn family_text(family: &str) -> Option<&'static str> {
        EMBEDDED.iter().chain(&FUSING).find(|(file, _)| file.trim_end_matches(".toml") == family).map(|&(_, text)| text)
    }

    /// The embedded rules of one family alone.
    pub fn family(family: &str) -> Result<Self, RulesError> {
        let Some(text) = Self::family_text(family) else {
            let known = Self::family_names().collect::<Vec<_>>().join(", ");
            return Err(RulesError::NoFamily { family: family.to_string(), known });
        };
        let mut all = Self::default();
        let rules = all.absorb(read(text, &format!("{family}.toml"))?);
        all.tiers.push(Tier { rules, is_for_this_model: false });
        Ok(all)
    }

    /// Reads rules; `origin` names the text in messages, such as its path. Each must decide some tensor of the model.
    pub fn parse(text: &str, origin: &str) -> Result<Self, RulesError> {
        let mut all = Self::default();
        let rules = all.absorb(read(text, origin)?);
        all.tiers.push(Tier { rules, is_for_this_model: true });
        Ok(all)
    }

    /// These rules behind `overrides`: where a rule of `overrides` matches a name, it alone counts.
    pub fn with_overrides(mut self, mut overrides: Rules) -> Self {
        overrides.tiers.append(&mut self.tiers);
        overrides.layer_words.append(&mut self.layer_words);
        overrides.tied.append(&mut self.tied);
        overrides.fuses.append(&mut self.fuses);
        overrides
    }

    /// Takes all but the rules.
    fn absorb(&mut self, document: Document) -> Vec<Rule> {
        self.layer_words.extend(document.layer_words);
        self.tied.extend(document.tied);
        self.fuses.extend(document.fuses);
        document.rules
    }

    pub(super) fn rule(&self, found: Found) -> &Rule {
        &self.tiers[found.tier].rules[found.rule]
    }

    /// The rule for a name in components; `None` when no rule matches.
    pub(super) fn find(&self, tensor: &str, components: &[&str]) -> Result<Option<Found>, RulesError> {
        for (tier, Tier { rules, .. }) in self.tiers.iter().enumerate() {
            let mut found: Option<Found> = None;
            for (rule, candidate) in rules.iter().enumerate() {
                let Some(matched) = candidate.names.iter().find_map(|pattern| pattern.matches(components)) else {
                    continue;
                };
                match found {
                    None => found = Some(Found { tier, rule, matched }),
                    Some(first) if self.rule(first).effect != candidate.effect || first.matched != matched => {
                        let (first, second) = (self.rule(first).origin.clone(), candidate.origin.clone());
                        return Err(RulesError::Ambiguous { tensor: tensor.to_string(), first, second });
                    }
                    Some(_) => {}
                }
            }
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Whether some pattern spells out `number`, so that names that differ in it only may differ in their rule.
    pub(super) fn spells_number(&self, number: &str) -> bool {
        let rules = self.tiers.iter().flat_map(|tier| &tier.rules);
        rules.flat_map(|rule| &rule.names).any(|pattern| pattern.spells(number))
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
