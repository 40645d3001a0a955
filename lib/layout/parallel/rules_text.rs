//! Rules files. In: TOML. Out: rules with their places in the text. Guarantee: unknown keys, empty rules and values
//! outside what is allowed are errors that name file and line.

use super::effect::{Effect, FullySharded, StageWord};
use super::fuse::{FuseRule, FuseText};
use super::pattern::NamePattern;
use super::rules::Rule;
use super::{ParallelAxis, RulesError};
use serde::Deserialize;

/// What a file holds.
pub(super) struct Document {
    pub(super) rules: Vec<Rule>,
    pub(super) layer_words: Vec<String>,
    pub(super) tied: Vec<(String, Vec<String>)>,
    pub(super) fuses: Vec<FuseRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DocumentText {
    #[serde(default)]
    layers: Vec<String>,
    #[serde(default)]
    rule: Vec<toml::Spanned<RuleText>>,
    #[serde(default)]
    tied: Vec<toml::Spanned<TiedText>>,
    #[serde(default)]
    fuse: Vec<toml::Spanned<FuseText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TiedText {
    names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    names: Vec<String>,
    tp: Option<toml::Value>,
    ep: Option<toml::Value>,
    cp: Option<toml::Value>,
    dp: Option<toml::Value>,
    fsdp: Option<toml::Value>,
    experts: Option<String>,
    stage: Option<String>,
    cast: Option<String>,
    #[serde(default)]
    predicts: bool,
}

/// Reads a file; `origin` names it.
pub(super) fn read(text: &str, origin: &str) -> Result<Document, RulesError> {
    let parsed: DocumentText = toml::from_str(text)
        .map_err(|source| RulesError::Unreadable { origin: origin.to_string(), source: Box::new(source) })?;
    let line =
        |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count();
    let place = |offset: usize| format!("{origin}:{}", line(offset));
    let rules = parsed.rule.into_iter().map(|rule| {
        let origin = place(rule.span().start);
        read_rule(rule.into_inner(), origin)
    });
    let rules = rules.collect::<Result<_, _>>()?;
    let tied = parsed.tied.into_iter().map(|group| {
        let origin = place(group.span().start);
        match group.into_inner().names {
            names if names.len() < 2 => Err(RulesError::TiedAlone { group: origin }),
            names => Ok((origin, names)),
        }
    });
    let tied = tied.collect::<Result<_, _>>()?;
    let fuses = parsed.fuse.into_iter().map(|rule| {
        let origin = place(rule.span().start);
        FuseRule::read(rule.into_inner(), origin.clone()).map_err(|source| RulesError::Fuse { rule: origin, source })
    });
    let fuses = fuses.collect::<Result<_, _>>()?;
    Ok(Document { rules, layer_words: parsed.layers, tied, fuses })
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
    let stage = match text.stage {
        None => None,
        Some(word) => Some(StageWord::parse(&word).ok_or_else(|| RulesError::StageValue {
            rule: rule.clone(),
            value: word,
            allowed: StageWord::ALLOWED,
        })?),
    };
    let axes = [
        (ParallelAxis::Tensor, text.tp),
        (ParallelAxis::Context, text.cp),
        (ParallelAxis::Expert, text.ep),
        (ParallelAxis::Data, text.dp),
    ];
    let keeps_dtype = match text.cast.as_deref() {
        None => false,
        Some("never") => true,
        Some(value) => return Err(RulesError::CastValue { rule, value: value.to_string() }),
    };
    let says_nothing = text.fsdp.is_none() && stage.is_none() && axes.iter().all(|(_, value)| value.is_none());
    if !per_tensor_experts && !text.predicts && !keeps_dtype && says_nothing {
        return Err(RulesError::NoAxis { rule });
    }
    let mut dims = Vec::new();
    for (axis, value) in axes {
        if let Some(dim) = value.map_or(Ok(None), |value| read_dim(axis, &value, &rule))? {
            dims.push((axis, dim));
        }
    }
    let fully_sharded = match text.fsdp {
        None => FullySharded::First,
        Some(value) => {
            read_dim(ParallelAxis::FullySharded, &value, &rule)?.map_or(FullySharded::Whole, FullySharded::Stated)
        }
    };
    let names = read_names(&text.names, per_tensor_experts, &rule)?;
    let effect = Effect { dims, fully_sharded, per_tensor_experts, stage, predicts: text.predicts, keeps_dtype };
    Ok(Rule { origin: rule, names, effect })
}

fn read_names(names: &[String], per_tensor_experts: bool, rule: &str) -> Result<Vec<NamePattern>, RulesError> {
    let read = |name: &String| {
        let pattern =
            NamePattern::parse(name).map_err(|source| RulesError::Pattern { rule: rule.to_string(), source })?;
        if pattern.has_expert() != per_tensor_experts {
            return Err(RulesError::ExpertCapture { rule: rule.to_string(), pattern: pattern.text().to_string() });
        }
        Ok(pattern)
    };
    names.iter().map(read).collect()
}

/// The dimension that `axis` shards; `None` for `"replicate"`.
fn read_dim(axis: ParallelAxis, value: &toml::Value, rule: &str) -> Result<Option<usize>, RulesError> {
    match value {
        toml::Value::Integer(dim) if *dim >= 0 => Ok(usize::try_from(*dim).ok()),
        toml::Value::String(word) if word == "replicate" => Ok(None),
        _ => Err(RulesError::AxisValue { rule: rule.to_string(), axis, value: value.to_string() }),
    }
}
