//! Attention heads in rules. In: keys of rules files, dimensions of a model. Out: numbers of heads, how they are dealt out.
//! Guarantee: numbers that neither the rule nor the model states are an error.

use super::FuseRuleError;
use crate::layout::model::Dimensions;
use crate::layout::{FusedForm, HeadSplit, Heads};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::fmt;

/// `heads` as it is written.
pub(super) enum HeadsText {
    Word(String),
    Counts(HeadCounts),
}

/// Numbers of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ query = N, key_value = N }")]
pub(super) struct HeadCounts {
    pub(super) query: u64,
    pub(super) key_value: u64,
}

/// Which heads a tensor is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum HeadKind {
    Query,
    KeyValue,
}

/// Where the numbers of heads come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadsFrom {
    Rule(HeadCounts),
    Model { default: Option<HeadCounts> },
}

/// A model's name and what is known of it.
pub(super) type Known<'a> = (&'a str, Dimensions);

impl HeadKind {
    pub(super) const ALLOWED: &'static str = "query, key-value";

    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "query" => Some(Self::Query),
            "key-value" => Some(Self::KeyValue),
            _ => None,
        }
    }
}

impl HeadsFrom {
    /// Reads `heads` and `default_heads`; `None` where there are none.
    pub(super) fn read(
        heads: Option<HeadsText>,
        default: Option<HeadCounts>,
    ) -> Result<Option<HeadsFrom>, FuseRuleError> {
        match (heads, default) {
            (None, None) => Ok(None),
            (Some(HeadsText::Counts(counts)), None) => Ok(Some(HeadsFrom::Rule(counts))),
            (Some(HeadsText::Word(word)), default) if word == "model" => Ok(Some(HeadsFrom::Model { default })),
            (Some(HeadsText::Word(word)), _) => {
                Err(unknown("heads", &word, "\"model\", or { query = N, key_value = N }"))
            }
            _ => Err(FuseRuleError::HeadKeys),
        }
    }

    /// The numbers for a model.
    pub(super) fn counts(&self, (model, dimensions): Known<'_>) -> Result<HeadCounts, FuseRuleError> {
        let stated = dimensions.heads.map(|query| HeadCounts {
            query: query.into(),
            key_value: dimensions.key_value_heads.unwrap_or(query).into(),
        });
        let counts = match *self {
            HeadsFrom::Rule(counts) => Some(counts),
            HeadsFrom::Model { default } => stated.or(default),
        };
        counts.ok_or_else(|| FuseRuleError::HeadsUnknown { model: model.to_string() })
    }
}

impl HeadCounts {
    /// The heads of queries, keys and values of these extents, which make `into`.
    pub(super) fn of_extents(self, into: &str, extents: &[u64]) -> Result<Heads, FuseRuleError> {
        let Self { query, key_value } = self;
        let size = extents.first().and_then(|queries| queries.checked_div(query)).unwrap_or(0);
        let expected = [query, key_value, key_value].map(|heads| heads.checked_mul(size));
        if !extents.iter().copied().map(Some).eq(expected) {
            let (into, extents) = (into.to_string(), extents.to_vec());
            return Err(FuseRuleError::HeadsDiffer { into, extents, query, key_value });
        }
        Ok(Heads { query, key_value, size })
    }
}

impl<'de> Deserialize<'de> for HeadsText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'de> Visitor<'de> for Text {
            type Value = HeadsText;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("\"model\", or { query = N, key_value = N }")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<HeadsText, E> {
                Ok(HeadsText::Word(word.to_string()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HeadsText, A::Error> {
                HeadCounts::deserialize(MapAccessDeserializer::new(map)).map(HeadsText::Counts)
            }
        }

        deserializer.deserialize_any(Text)
    }
}

/// The word behind `form`.
pub(super) fn read_form(word: Option<&str>) -> Result<FusedForm, FuseRuleError> {
    match word {
        None | Some("concatenated") => Ok(FusedForm::Concatenated),
        Some("grouped") => Ok(FusedForm::Grouped),
        Some("interleaved") => Ok(FusedForm::Interleaved),
        Some(word) => Err(unknown("form", word, "concatenated, grouped, interleaved")),
    }
}

/// The word behind `split`.
pub(super) fn read_split(word: Option<&str>) -> Result<Option<HeadSplit>, FuseRuleError> {
    match word {
        None => Ok(None),
        Some("even") => Ok(Some(HeadSplit::Even)),
        Some("as-needed") => Ok(Some(HeadSplit::AsNeeded)),
        Some("rows") => Ok(Some(HeadSplit::Rows)),
        Some(word) => Err(unknown("split", word, "even, as-needed, rows")),
    }
}

/// The word behind `experts`, of rules for tensors that all experts of a layer make.
pub(super) fn read_stacked(word: Option<&str>) -> Result<bool, FuseRuleError> {
    match word {
        None => Ok(false),
        Some("stacked") => Ok(true),
        Some(word) => Err(unknown("experts", word, "stacked")),
    }
}

pub(super) fn unknown(key: &'static str, value: &str, allowed: &'static str) -> FuseRuleError {
    FuseRuleError::Word { key, value: value.to_string(), allowed }
}
