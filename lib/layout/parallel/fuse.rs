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
//!
//! [[fuse]]
//! parts = ["*.experts.{expert}.gate_proj.weight", "*.experts.{expert}.up_proj.weight"]   # one part or more
//! into = "*.experts.w13_weight"
//! experts = "stacked"           # all experts of a layer: [slots, 2 x inner, hidden] from tensors [inner, hidden]
//! ```

use super::FuseRuleError;
use super::heads::{HeadCounts, HeadsFrom, HeadsText, Known, read_form, read_split, read_stacked, unknown};
use super::pattern::NamePattern;
use crate::layout::{FusedAxis, FusedError, FusedForm, HeadSplit, Split};
use serde::Deserialize;

/// Side of a transfer that stores tensors fused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FuseSide {
    /// Where they come from.
    Source,
    /// Where they go.
    Destination,
}

impl FuseSide {
    pub(super) const ALLOWED: &'static str = "destination, source, both";

    /// The sides of a word; none for an unknown one.
    pub(super) fn read(word: Option<&str>) -> Option<Vec<FuseSide>> {
        match word {
            None | Some("destination") => Some(vec![FuseSide::Destination]),
            Some("source") => Some(vec![FuseSide::Source]),
            Some("both") => Some(vec![FuseSide::Source, FuseSide::Destination]),
            Some(_) => None,
        }
    }
}

/// A table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with parts and into")]
pub(super) struct FuseText {
    parts: Vec<String>,
    into: String,
    form: Option<String>,
    heads: Option<HeadsText>,
    default_heads: Option<HeadCounts>,
    split: Option<String>,
    side: Option<String>,
    experts: Option<String>,
    #[serde(default)]
    dim: usize,
}

/// A rule that fuses tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FuseRule {
    /// File and line, for messages.
    pub(super) origin: String,
    pub(super) parts: Vec<NamePattern>,
    pub(super) into: NamePattern,
    pub(super) dim: usize,
    /// Whether all experts of a layer make one tensor, with a dimension for their slots in front.
    pub(super) stacked: bool,
    sides: Vec<FuseSide>,
    form: FusedForm,
    attention: Option<(HeadsFrom, HeadSplit)>,
}

impl FuseRule {
    pub(super) fn read(text: FuseText, origin: String) -> Result<Self, FuseRuleError> {
        let stacked = read_stacked(text.experts.as_deref())?;
        if text.parts.len() < if stacked { 1 } else { 2 } {
            return Err(FuseRuleError::Parts { parts: text.parts.len() });
        }
        let parts = text.parts.iter().map(|part| NamePattern::parse(part)).collect::<Result<Vec<_>, _>>()?;
        let into = NamePattern::parse(&text.into)?;
        check_open(&parts, &into, stacked)?;
        let form = read_form(text.form.as_deref())?;
        let split = read_split(text.split.as_deref())?;
        let side = text.side.as_deref();
        let sides = FuseSide::read(side);
        let sides = sides.ok_or_else(|| unknown("side", side.unwrap_or_default(), FuseSide::ALLOWED))?;
        let heads = HeadsFrom::read(text.heads, text.default_heads)?;
        if (heads.is_none() && split.is_some()) || (heads.is_some() && (parts.len() != 3 || stacked)) {
            return Err(FuseRuleError::HeadKeys);
        }
        let attention = heads.map(|heads| (heads, split.unwrap_or(HeadSplit::Even)));
        Ok(Self { origin, parts, into, dim: text.dim, stacked, sides, form, attention })
    }

    pub(super) fn is_on(&self, side: FuseSide) -> bool {
        self.sides.contains(&side)
    }

    /// What ranks store of tensors of these extents along the fused dimension, which make `into`.
    pub(super) fn axis(
        &self,
        into: &str,
        extents: &[u64],
        model: Known<'_>,
        ranks: u32,
    ) -> Result<FusedAxis, FuseRuleError> {
        let failed = |source: FusedError| FuseRuleError::Fused { into: into.to_string(), source };
        match self.attention {
            None => FusedAxis::split(extents, self.form, &Split::Floor, ranks).map_err(failed),
            Some((from, split)) => {
                let heads = from.counts(model)?.of_extents(into, extents)?;
                FusedAxis::attention(heads, self.form, split, ranks).map_err(failed)
            }
        }
    }
}

/// What `*`, `{a,b}` and `{expert}` stand for must be the same in all patterns; the name of a stack has no expert.
pub(super) fn check_open(parts: &[NamePattern], whole: &NamePattern, stacked: bool) -> Result<(), FuseRuleError> {
    if let Some(pattern) = parts.iter().find(|part| stacked && !part.has_expert()) {
        return Err(FuseRuleError::Stacked { pattern: pattern.text().to_string() });
    }
    if stacked && whole.has_expert() {
        return Err(FuseRuleError::Stacked { pattern: whole.text().to_string() });
    }
    let of_all = |pattern: &NamePattern| pattern.open_components() - usize::from(stacked && pattern.has_expert());
    let first_open = of_all(&parts[0]);
    for pattern in parts.iter().chain([whole]) {
        let open = of_all(pattern);
        if open != first_open {
            let (pattern, first) = (pattern.text().to_string(), parts[0].text().to_string());
            return Err(FuseRuleError::Open { pattern, open, first, first_open });
        }
    }
    Ok(())
}
