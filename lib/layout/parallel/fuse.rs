//! Tensors that a side stores as one. In: `[[fuse]]` tables of rules files. Out: [`FuseRule`]. Guarantee: what `*` and
//! `{a,b}` stand for in one part is the same in all parts and in the name that they make together.
//!
//! ```toml
//! [[fuse]]
//! parts = ["*.self.query.{weight,bias}", "*.self.key.{weight,bias}", "*.self.value.{weight,bias}"]
//! into = "*.self.query_key_value.{weight,bias}"
//! form = "grouped"              # concatenated (the default), grouped or interleaved
//! heads = "model"               # attention: as the model says, or { query = 32, key_value = 8 }
//! default_heads = { query = 12, key_value = 12 }   # where the model does not say
//! split = "even"                # the default; or as-needed, rows
//! side = "destination"          # the default; or source, both
//! dim = 0                       # the default
//! ```

use super::FuseRuleError;
use super::pattern::NamePattern;
use crate::layout::model::Dimensions;
use crate::layout::{FusedAxis, FusedError, FusedForm, HeadSplit, Heads, Split};
use serde::Deserialize;

/// Side of a transfer that stores tensors fused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FuseSide {
    /// Where they come from.
    Source,
    /// Where they go.
    Destination,
}

/// A table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FuseText {
    parts: Vec<String>,
    into: String,
    form: Option<String>,
    heads: Option<HeadsText>,
    default_heads: Option<HeadCounts>,
    split: Option<String>,
    side: Option<String>,
    #[serde(default)]
    dim: usize,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum HeadsText {
    Word(String),
    Counts(HeadCounts),
}

/// Numbers of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HeadCounts {
    query: u64,
    key_value: u64,
}

/// Where the numbers of heads come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeadsFrom {
    Rule(HeadCounts),
    Model { default: Option<HeadCounts> },
}

/// A rule that fuses tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FuseRule {
    /// File and line, for messages.
    pub(super) origin: String,
    pub(super) parts: Vec<NamePattern>,
    pub(super) into: NamePattern,
    pub(super) dim: usize,
    sides: Vec<FuseSide>,
    form: FusedForm,
    attention: Option<(HeadsFrom, HeadSplit)>,
}

impl FuseRule {
    pub(super) fn read(text: FuseText, origin: String) -> Result<Self, FuseRuleError> {
        if text.parts.len() < 2 {
            return Err(FuseRuleError::Parts { parts: text.parts.len() });
        }
        let parts = text.parts.iter().map(|part| NamePattern::parse(part)).collect::<Result<Vec<_>, _>>()?;
        let into = NamePattern::parse(&text.into)?;
        for pattern in parts.iter().chain([&into]) {
            let (open, first_open) = (pattern.open_components(), parts[0].open_components());
            if open != first_open {
                let (pattern, first) = (pattern.text().to_string(), parts[0].text().to_string());
                return Err(FuseRuleError::Open { pattern, open, first, first_open });
            }
        }
        let form = match text.form.as_deref() {
            None | Some("concatenated") => FusedForm::Concatenated,
            Some("grouped") => FusedForm::Grouped,
            Some("interleaved") => FusedForm::Interleaved,
            Some(word) => return Err(unknown("form", word, "concatenated, grouped, interleaved")),
        };
        let split = match text.split.as_deref() {
            None => None,
            Some("even") => Some(HeadSplit::Even),
            Some("as-needed") => Some(HeadSplit::AsNeeded),
            Some("rows") => Some(HeadSplit::Rows),
            Some(word) => return Err(unknown("split", word, "even, as-needed, rows")),
        };
        let sides = match text.side.as_deref() {
            None | Some("destination") => vec![FuseSide::Destination],
            Some("source") => vec![FuseSide::Source],
            Some("both") => vec![FuseSide::Source, FuseSide::Destination],
            Some(word) => return Err(unknown("side", word, "destination, source, both")),
        };
        let attention = match (text.heads, text.default_heads) {
            (None, None) if split.is_none() => None,
            (Some(HeadsText::Counts(counts)), None) => Some(HeadsFrom::Rule(counts)),
            (Some(HeadsText::Word(word)), default) if word == "model" => Some(HeadsFrom::Model { default }),
            (Some(HeadsText::Word(word)), _) => {
                return Err(unknown("heads", &word, "\"model\", or { query = N, key_value = N }"));
            }
            _ => return Err(FuseRuleError::HeadKeys),
        };
        if attention.is_some() && parts.len() != 3 {
            return Err(FuseRuleError::HeadKeys);
        }
        let attention = attention.map(|heads| (heads, split.unwrap_or(HeadSplit::Even)));
        Ok(Self { origin, parts, into, dim: text.dim, sides, form, attention })
    }

    pub(super) fn is_on(&self, side: FuseSide) -> bool {
        self.sides.contains(&side)
    }

    /// What ranks store of tensors of these extents along the fused dimension, which make `into`.
    pub(super) fn axis(
        &self,
        into: &str,
        extents: &[u64],
        (model, dimensions): (&str, Dimensions),
        ranks: u32,
    ) -> Result<FusedAxis, FuseRuleError> {
        let failed = |source: FusedError| FuseRuleError::Fused { into: into.to_string(), source };
        let Some((from, split)) = self.attention else {
            return FusedAxis::split(extents, self.form, &Split::Floor, ranks).map_err(failed);
        };
        let stated = dimensions.heads.map(|query| HeadCounts {
            query: query.into(),
            key_value: dimensions.key_value_heads.unwrap_or(query).into(),
        });
        let counts = match from {
            HeadsFrom::Rule(counts) => Some(counts),
            HeadsFrom::Model { default } => stated.or(default),
        };
        let HeadCounts { query, key_value } =
            counts.ok_or_else(|| FuseRuleError::HeadsUnknown { model: model.to_string() })?;
        let size = extents[0].checked_div(query).unwrap_or(0);
        let expected = [query, key_value, key_value].map(|heads| heads.checked_mul(size));
        if !extents.iter().copied().map(Some).eq(expected) {
            let (into, extents) = (into.to_string(), extents.to_vec());
            return Err(FuseRuleError::HeadsDiffer { into, extents, query, key_value });
        }
        FusedAxis::attention(Heads { query, key_value, size }, self.form, split, ranks).map_err(failed)
    }
}

fn unknown(key: &'static str, value: &str, allowed: &'static str) -> FuseRuleError {
    FuseRuleError::Word { key, value: value.to_string(), allowed }
}
