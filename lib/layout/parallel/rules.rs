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
//! tp = "replicate"                              # as every axis that a rule does not mention
//! ```

use super::pattern::{Match, NamePattern};
use super::{ParallelAxis, RulesError};
use serde::Deserialize;

/// The rules that come with the library, by file name.
const EMBEDDED: [(&str, &str); 3] = [
    ("bert.toml", include_str!("../rules/bert.toml")),
    ("llama.toml", include_str!("../rules/llama.toml")),
    ("deepseek.toml", include_str!("../rules/deepseek.toml")),
];

/// Rules for tensors by name, in tiers: the first tier with a rule for a name decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    tiers: Vec<Vec<Rule>>,
}

/// What a rule does to a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Effect {
    /// Axes that shard, with the dimension, in axis order.
    pub(super) dims: Vec<(ParallelAxis, usize)>,
    /// Whether the tensor is one expert.
    pub(super) per_tensor_experts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// File and line, for messages.
    pub(super) origin: String,
    names: Vec<NamePattern>,
    pub(super) effect: Effect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesText {
    #[serde(default)]
    rule: Vec<toml::Spanned<RuleText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    names: Vec<String>,
    tp: Option<toml::Value>,
    ep: Option<toml::Value>,
    dp: Option<toml::Value>,
    experts: Option<String>,
}

impl Rules {
    /// The rules of the model families that the library knows: BERT, Llama and Qwen, DeepSeek.
    pub fn embedded() -> Result<Self, RulesError> {
        let mut tier = Vec::new();
        for (name, text) in EMBEDDED {
            tier.extend(read_rules(text, name)?);
        }
        Ok(Self { tiers: vec![tier] })
    }

    /// Reads rules; `origin` names the text in messages, such as its path.
    pub fn parse(text: &str, origin: &str) -> Result<Self, RulesError> {
        Ok(Self { tiers: vec![read_rules(text, origin)?] })
    }

    /// These rules behind `overrides`: where a rule of `overrides` matches a name, it alone counts.
    pub fn with_overrides(self, overrides: Rules) -> Self {
        let mut tiers = overrides.tiers;
        tiers.extend(self.tiers);
        Self { tiers }
    }

    /// The rule for `tensor`; `None` when no rule matches.
    pub(super) fn find(&self, tensor: &str) -> Result<Option<(&Rule, Match)>, RulesError> {
        let components: Vec<&str> = tensor.split('.').collect();
        for tier in &self.tiers {
            let mut found: Option<(&Rule, Match)> = None;
            for rule in tier {
                let Some(matched) = rule.names.iter().find_map(|pattern| pattern.matches(&components)) else {
                    continue;
                };
                match found {
                    None => found = Some((rule, matched)),
                    Some((first, earlier)) if first.effect != rule.effect || earlier != matched => {
                        let (first, second) = (first.origin.clone(), rule.origin.clone());
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
}

fn read_rules(text: &str, origin: &str) -> Result<Vec<Rule>, RulesError> {
    let parsed: RulesText = toml::from_str(text)
        .map_err(|source| RulesError::Unreadable { origin: origin.to_string(), source: Box::new(source) })?;
    let line =
        |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count();
    parsed
        .rule
        .into_iter()
        .map(|rule| {
            let origin = format!("{origin}:{}", line(rule.span().start));
            read_rule(rule.into_inner(), origin)
        })
        .collect()
}

fn read_rule(text: RuleText, rule: String) -> Result<Rule, RulesError> {
    let per_tensor_experts = match text.experts.as_deref() {
        None => false,
        Some("per-tensor") => true,
        Some(value) => return Err(RulesError::ExpertsValue { rule, value: value.to_string() }),
    };
    if per_tensor_experts && text.ep.is_some() {
        return Err(RulesError::ExpertsAndExpertAxis { rule });
    }
    if text.names.is_empty() {
        return Err(RulesError::NoNames { rule });
    }
    let axes = [(ParallelAxis::Tensor, text.tp), (ParallelAxis::Expert, text.ep), (ParallelAxis::Data, text.dp)];
    if !per_tensor_experts && axes.iter().all(|(_, value)| value.is_none()) {
        return Err(RulesError::NoAxis { rule });
    }
    let mut dims = Vec::new();
    for (axis, value) in axes {
        if let Some(dim) = value.map_or(Ok(None), |value| read_dim(axis, &value, &rule))? {
            dims.push((axis, dim));
        }
    }
    let mut names = Vec::with_capacity(text.names.len());
    for name in &text.names {
        let pattern = NamePattern::parse(name).map_err(|source| RulesError::Pattern { rule: rule.clone(), source })?;
        if pattern.has_expert() != per_tensor_experts {
            return Err(RulesError::ExpertCapture { rule, pattern: pattern.text().to_string() });
        }
        names.push(pattern);
    }
    Ok(Rule { origin: rule, names, effect: Effect { dims, per_tensor_experts } })
}

/// The dimension that `axis` shards; `None` for `"replicate"`.
fn read_dim(axis: ParallelAxis, value: &toml::Value, rule: &str) -> Result<Option<usize>, RulesError> {
    match value {
        toml::Value::Integer(dim) if *dim >= 0 => Ok(usize::try_from(*dim).ok()),
        toml::Value::String(word) if word == "replicate" => Ok(None),
        _ => Err(RulesError::AxisValue { rule: rule.to_string(), axis, value: value.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fail(text: &str) -> RulesError {
        Rules::parse(text, "my.toml").unwrap_err()
    }

    fn origin(rules: &Rules, tensor: &str) -> Option<String> {
        rules.find(tensor).unwrap().map(|(rule, _)| rule.origin.clone())
    }

    #[test]
    fn bad_texts_name_file_and_line() {
        let message = |text: &str| fail(text).to_string();
        assert!(matches!(fail("[[rule]"), RulesError::Unreadable { .. }));
        assert!(matches!(fail("rule = 3"), RulesError::Unreadable { .. }));
        assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\npp = 0"), RulesError::Unreadable { .. }));
        assert!(matches!(fail("[[rules]]\nnames = [\"a\"]\ntp = 0"), RulesError::Unreadable { .. }));
        assert!(matches!(fail("[[rule]]\nnames = []\ntp = 0"), RulesError::NoNames { .. }));
        let text = message("# first line\n[[rule]]\nnames = [\"a\"]\n");
        assert!(text.contains("my.toml:2") && text.contains("replicate"), "{text}");
        for value in ["-1", "\"replicated\"", "1.0", "true"] {
            let error = fail(&format!("[[rule]]\nnames = [\"a\"]\ntp = {value}"));
            assert!(matches!(error, RulesError::AxisValue { axis: ParallelAxis::Tensor, .. }), "{value}: {error}");
        }
        assert!(matches!(fail("[[rule]]\nnames = [\"a..b\"]\ntp = 0"), RulesError::Pattern { .. }));
        let experts = |name: &str, rest: &str| fail(&format!("[[rule]]\nnames = [\"{name}\"]\n{rest}"));
        assert!(matches!(experts("{expert}", "experts = \"all\""), RulesError::ExpertsValue { .. }));
        assert!(matches!(
            experts("{expert}", "experts = \"per-tensor\"\nep = 0"),
            RulesError::ExpertsAndExpertAxis { .. }
        ));
        assert!(matches!(experts("{expert}", "tp = 0"), RulesError::ExpertCapture { .. }));
        assert!(matches!(experts("a", "experts = \"per-tensor\""), RulesError::ExpertCapture { .. }));
    }

    #[test]
    fn two_rules_may_agree_and_must_not_disagree() {
        let text = "[[rule]]\nnames = [\"*.w\"]\ntp = 0\n[[rule]]\nnames = [\"a.*\"]\ntp = 0\nep = \"replicate\"\n";
        let rules = Rules::parse(text, "x").unwrap();
        assert_eq!(origin(&rules, "a.w"), Some("x:1".to_string()));
        assert_eq!(origin(&rules, "a.v"), Some("x:4".to_string()));
        assert_eq!(origin(&rules, "b.v"), None);
        let rules = Rules::parse(&text.replace("\"replicate\"", "1"), "x").unwrap();
        let error = rules.find("a.w").unwrap_err();
        let expected = RulesError::Ambiguous { tensor: "a.w".into(), first: "x:1".into(), second: "x:4".into() };
        assert_eq!(error, expected);
        assert_eq!(origin(&rules, "a.v"), Some("x:4".to_string()));
    }

    #[test]
    fn overrides_win() {
        let user = Rules::parse("[[rule]]\nnames = [\"*.self_attn.*\"]\ntp = \"replicate\"\n", "user.toml").unwrap();
        let rules = Rules::embedded().unwrap().with_overrides(user);
        assert_eq!(origin(&rules, "model.layers.0.self_attn.q_proj.weight"), Some("user.toml:1".to_string()));
        assert!(origin(&rules, "model.layers.0.mlp.up_proj.weight").unwrap().starts_with("llama.toml:"));
        let last = Rules::parse("[[rule]]\nnames = [\"*\"]\ntp = 1", "last.toml").unwrap();
        assert_eq!(origin(&rules.with_overrides(last), "a.self_attn.b"), Some("last.toml:1".to_string()));
        assert_eq!(origin(&Rules::default(), "a"), None);
        assert_eq!(Rules::parse("", "empty.toml").unwrap().find("a"), Ok(None));
    }

    proptest! {
        #[test]
        fn damaged_texts_are_read_or_refused(
            file in 0..EMBEDDED.len(),
            damage in prop::collection::vec((any::<u16>(), "[\\[\\]{}\"=.,*a0\n]{0,3}"), 1..4),
        ) {
            let mut text = EMBEDDED[file].1.to_string();
            for (at, inserted) in damage {
                let at = at as usize % text.len();
                text.replace_range(at..=at, &inserted);
            }
            if let Ok(rules) = Rules::parse(&text, "damaged.toml") {
                let _ = rules.find("model.layers.0.mlp.experts.1.up_proj.weight");
            }
        }
    }
}
