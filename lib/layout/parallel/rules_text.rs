//! Rules files. In: TOML. Out: rules with their places in the text. Guarantee: unknown keys, empty rules and values
//! outside what is allowed are errors that name file and line.

use super::effect::{Effect, FullySharded, StageWord};
use super::fuse::{FuseRule, FuseText};
use super::heads::HeadKind;
use super::pattern::NamePattern;
use super::rules::Rule;
use super::split::{SplitRule, SplitText};
use super::store::{ScaleRule, ScaleText, StoreRule, StoreText};
use super::{ParallelAxis, RulesError};
use crate::base::json;
use serde::Deserialize;
use std::ops::Range;

/// What a file holds.
pub(super) struct Document {
    pub(super) rules: Vec<Rule>,
    pub(super) layer_words: Vec<String>,
    pub(super) tied: Vec<(String, Vec<String>)>,
    pub(super) fuses: Vec<FuseRule>,
    pub(super) splits: Vec<SplitRule>,
    pub(super) stores: Vec<StoreRule>,
    pub(super) scales: Vec<ScaleRule>,
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
    #[serde(default)]
    split: Vec<toml::Spanned<SplitText>>,
    #[serde(default)]
    store: Vec<toml::Spanned<StoreText>>,
    #[serde(default)]
    scales: Vec<toml::Spanned<ScaleText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with names")]
struct TiedText {
    names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with names and what axes do")]
struct RuleText {
    names: Vec<String>,
    tp: Option<toml::Value>,
    heads: Option<String>,
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
    let line =
        |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count();
    let parsed: DocumentText = toml::from_str(text).map_err(|error| RulesError::Unreadable {
        origin: origin.to_string(),
        line: error.span().map(|span| line(span.start)),
        reason: key_before(text, error.span()) + &json::plain(&error.message().replace('\n', " ")),
    })?;
    let place = &|offset: usize| format!("{origin}:{}", line(offset));
    let fuse = |rule, source| RulesError::Fuse { rule, source };
    let storage = |rule, source| RulesError::Storage { rule, source };
    Ok(Document {
        rules: each(parsed.rule, place, read_rule)?,
        layer_words: parsed.layers,
        tied: each(parsed.tied, place, |text, group| match text.names {
            names if names.len() < 2 => Err(RulesError::TiedAlone { group }),
            names => Ok((group, names)),
        })?,
        fuses: each(parsed.fuse, place, |text, rule| {
            FuseRule::read(text, rule.clone()).map_err(|source| fuse(rule, source))
        })?,
        splits: each(parsed.split, place, |text, rule| {
            SplitRule::read(text, rule.clone()).map_err(|source| fuse(rule, source))
        })?,
        stores: each(parsed.store, place, |text, rule| {
            StoreRule::read(text, rule.clone()).map_err(|source| storage(rule, source))
        })?,
        scales: each(parsed.scales, place, |text, rule| {
            ScaleRule::read(text, rule.clone()).map_err(|source| storage(rule, source))
        })?,
    })
}

/// The key, with a colon, of a value that begins where `span` does on the line of its key.
fn key_before(text: &str, span: Option<Range<usize>>) -> String {
    let before = span.and_then(|span| text.get(..span.start)).and_then(|before| before.lines().last());
    let (key, value) = before.and_then(|line| line.rsplit_once('=')).unwrap_or_default();
    let key = key.rsplit(['{', ',']).next().unwrap_or_default().trim();
    let is_one = !key.is_empty() && value.chars().all(|letter| " \t[,-+_0123456789".contains(letter));
    if is_one { format!("{key}: ") } else { String::new() }
}

/// Reads tables of one kind, each with its place in the text.
fn each<T, R>(
    tables: Vec<toml::Spanned<T>>,
    place: impl Fn(usize) -> String,
    read: impl Fn(T, String) -> Result<R, RulesError>,
) -> Result<Vec<R>, RulesError> {
    let tables = tables.into_iter().map(|table| {
        let origin = place(table.span().start);
        read(table.into_inner(), origin)
    });
    tables.collect()
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
    let heads = text.heads.map(|word| read_heads(&word, &dims, &rule)).transpose()?;
    let fully_sharded = match text.fsdp {
        None => FullySharded::First,
        Some(value) => {
            read_dim(ParallelAxis::FullySharded, &value, &rule)?.map_or(FullySharded::Whole, FullySharded::Stated)
        }
    };
    let names = read_names(&text.names, per_tensor_experts, &rule)?;
    let effect = Effect { dims, heads, fully_sharded, per_tensor_experts, stage, predicts: text.predicts, keeps_dtype };
    Ok(Rule { origin: rule, names, effect })
}

fn read_heads(word: &str, dims: &[(ParallelAxis, usize)], rule: &str) -> Result<HeadKind, RulesError> {
    let (rule, value) = (rule.to_string(), word.to_string());
    match HeadKind::parse(word) {
        None => Err(RulesError::HeadsValue { rule, value, allowed: HeadKind::ALLOWED }),
        Some(_) if !dims.iter().any(|&(axis, _)| axis == ParallelAxis::Tensor) => {
            Err(RulesError::HeadsUncut { rule, value })
        }
        Some(kind) => Ok(kind),
    }
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
