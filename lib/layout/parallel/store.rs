//! How a side stores single tensors. In: `[[store]]` and `[[scales]]` tables of rules files. Out: [`StoreRule`],
//! [`ScaleRule`]. Guarantee: every number is checked as far as it can be without a model.
//!
//! ```toml
//! [[store]]
//! names = ["*.embed_tokens.weight", "lm_head.weight"]
//! side = "destination"          # the default; or source, both
//! crop = { dim = 0, to = 50257 }                     # indices from there on are not wanted; destinations only
//! pad = { dim = 0, multiple = 64, value = 0.0 }      # or to = 50304; per = "rank" makes every rank's share a multiple
//!
//! [[store]]
//! names = ["*.mlp.down_proj.weight"]
//! transposed = true             # the last two dimensions change places in memory
//!
//! [[store]]
//! names = ["*.self_attn.{k,v}_proj.weight"]
//! heads = { of = "key-value" }  # tp deals out whole heads, the key-value heads of a rank's queries, some repeated
//!
//! [[scales]]
//! names = ["*.weight_scale_inv"]
//! weight = ["*.weight"]
//! block = [128, 128]            # a scale for so many indices of the last dimensions of the weight
//! ```

use super::StorageError;
use super::fuse::FuseSide;
use super::heads::{HeadCounts, HeadKind, HeadsFrom, Known, read_split};
use super::pattern::NamePattern;
use crate::layout::{AxisMap, FusedAxis, FusedError, FusedForm, HeadSplit, Heads};
use serde::Deserialize;

/// A `[[store]]` table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with names and how they are stored")]
pub(super) struct StoreText {
    names: Vec<String>,
    side: Option<String>,
    crop: Option<CropText>,
    pad: Option<PadText>,
    #[serde(default)]
    transposed: bool,
    heads: Option<HeadsOfText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ dim = N, to = N }")]
struct CropText {
    #[serde(default)]
    dim: usize,
    to: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ dim = N, to = N } or { dim = N, multiple = N }")]
struct PadText {
    #[serde(default)]
    dim: usize,
    to: Option<u64>,
    multiple: Option<u64>,
    per: Option<String>,
    value: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ of = \"query\" } or { of = \"key-value\" }")]
struct HeadsOfText {
    of: String,
    query: Option<u64>,
    key_value: Option<u64>,
    split: Option<String>,
}

/// A `[[scales]]` table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with names, weight and block")]
pub(super) struct ScaleText {
    names: Vec<String>,
    weight: Vec<String>,
    block: Vec<u64>,
}

/// How a side stores a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreRule {
    /// File and line, for messages.
    pub(super) origin: String,
    pub(super) names: Vec<NamePattern>,
    pub(super) transposed: bool,
    /// Dimension, and the indices that are wanted.
    pub(super) crop: Option<(usize, u64)>,
    pub(super) pad: Option<Pad>,
    pub(super) heads: Option<HeadShares>,
    sides: Vec<FuseSide>,
}

/// Indices behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pad {
    pub(super) dim: usize,
    until: PadUntil,
    /// Bits of the number that destinations hold there.
    value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PadUntil {
    Extent(u64),
    Multiple { of: u64, per_rank: bool },
}

/// A tensor of heads that `tp` deals out by whole heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadShares {
    from: HeadsFrom,
    kind: HeadKind,
    split: HeadSplit,
}

/// Tensors with one element per block of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScaleRule {
    /// File and line, for messages.
    pub(super) origin: String,
    /// Pairs of a pattern of scales and that of their weights.
    pub(super) pairs: Vec<(NamePattern, NamePattern)>,
    /// Of the last dimensions.
    pub(super) block: Vec<u64>,
    /// Whether all that it matches must be such scales: rules of users are meant for the model at hand.
    pub(super) is_for_this_model: bool,
}

impl StoreRule {
    pub(super) fn read(text: StoreText, origin: String) -> Result<Self, StorageError> {
        let word = |key, value: &str, allowed| StorageError::Word { key, value: value.to_string(), allowed };
        if text.names.is_empty() {
            return Err(StorageError::NoNames);
        }
        let names = text.names.iter().map(|name| NamePattern::parse(name)).collect::<Result<Vec<_>, _>>()?;
        let side = text.side.as_deref();
        let sides = FuseSide::read(side);
        let sides = sides.ok_or_else(|| word("side", side.unwrap_or_default(), FuseSide::ALLOWED))?;
        if text.crop.is_none() && text.pad.is_none() && text.heads.is_none() && !text.transposed {
            return Err(StorageError::SaysNothing);
        }
        if text.heads.is_some() && (text.pad.is_some() || text.crop.is_some()) {
            return Err(StorageError::HeadsPadded);
        }
        if text.crop.is_some() && sides.contains(&FuseSide::Source) {
            return Err(StorageError::CropSource);
        }
        let crop = text.crop.map(|crop| (crop.dim, crop.to));
        if crop.is_some_and(|(_, to)| to == 0) {
            return Err(StorageError::Zero { key: "crop" });
        }
        let pad = text.pad.map(|pad| Pad::read(pad, &sides)).transpose()?;
        let heads = text.heads.map(HeadShares::read).transpose()?;
        Ok(Self { origin, names, transposed: text.transposed, crop, pad, heads, sides })
    }

    pub(super) fn is_on(&self, side: FuseSide) -> bool {
        self.sides.contains(&side)
    }
}

impl Pad {
    fn read(text: PadText, sides: &[FuseSide]) -> Result<Self, StorageError> {
        let per_rank = match text.per.as_deref() {
            None => false,
            Some("rank") => true,
            Some(value) => {
                return Err(StorageError::Word { key: "per", value: value.to_string(), allowed: "rank" });
            }
        };
        let until = match (text.to, text.multiple) {
            (Some(0), None) | (None, Some(0)) => return Err(StorageError::Zero { key: "pad" }),
            (Some(to), None) if !per_rank => PadUntil::Extent(to),
            (None, Some(of)) => PadUntil::Multiple { of, per_rank },
            _ => return Err(StorageError::PadKeys),
        };
        if text.value.is_some() && !sides.contains(&FuseSide::Destination) {
            return Err(StorageError::PadValueSource);
        }
        Ok(Self { dim: text.dim, until, value: text.value.unwrap_or(0.0).to_bits() })
    }

    /// What destinations hold in padding.
    pub(super) fn value(&self) -> f64 {
        f64::from_bits(self.value)
    }

    /// The padded extent of `extent` indices that are cut for `ranks` ranks.
    pub(super) fn extent(&self, extent: u64, ranks: u64) -> Result<u64, StorageError> {
        let too_large = StorageError::PadTooLarge { extent, pad: format!("{:?}", self.until) };
        match self.until {
            PadUntil::Extent(to) if to < extent => Err(StorageError::PadShort { extent, to }),
            PadUntil::Extent(to) => Ok(to),
            PadUntil::Multiple { of, per_rank } => {
                let of = of.checked_mul(if per_rank { ranks } else { 1 });
                of.and_then(|of| extent.checked_next_multiple_of(of)).ok_or(too_large)
            }
        }
    }
}

impl HeadShares {
    fn read(text: HeadsOfText) -> Result<Self, StorageError> {
        let unknown = || StorageError::Word { key: "of", value: text.of.clone(), allowed: HeadKind::ALLOWED };
        let kind = HeadKind::parse(&text.of).ok_or_else(unknown)?;
        let from = match (text.query, text.key_value) {
            (None, None) => HeadsFrom::Model { default: None },
            (Some(query), Some(key_value)) => HeadsFrom::Rule(HeadCounts { query, key_value }),
            _ => return Err(StorageError::HeadCounts),
        };
        let split = match read_split(text.split.as_deref())? {
            Some(HeadSplit::Rows) => {
                return Err(StorageError::Word { key: "split", value: "rows".into(), allowed: "even, as-needed" });
            }
            split => split.unwrap_or(HeadSplit::Even),
        };
        Ok(Self { from, kind, split })
    }

    /// The same number of query heads for every rank, counted as the model does.
    pub(super) fn of_model(kind: HeadKind) -> Self {
        Self { from: HeadsFrom::Model { default: None }, kind, split: HeadSplit::Even }
    }

    /// What every rank stores of `tensor`, of `extent` indices; `None` where equal shares end with heads.
    pub(super) fn axis(
        &self,
        tensor: &str,
        extent: u64,
        model: Known<'_>,
        ranks: u32,
    ) -> Result<Option<Vec<AxisMap>>, StorageError> {
        let HeadCounts { query, key_value } = self.from.counts(model)?;
        let (own, part) = match self.kind {
            HeadKind::Query => (query, 0),
            HeadKind::KeyValue => (key_value, 1),
        };
        if own == 0 || !extent.is_multiple_of(own) {
            return Err(StorageError::Heads { tensor: tensor.to_string(), extent, heads: own });
        }
        let heads = Heads { query, key_value, size: extent / own };
        let failed = |source: FusedError| StorageError::Shares { tensor: tensor.to_string(), ranks, source };
        let axis = FusedAxis::attention(heads, FusedForm::Concatenated, self.split, ranks).map_err(failed)?;
        if own.is_multiple_of(u64::from(ranks)) {
            return Ok(None);
        }
        // Without the places of the other tensors.
        let map = |rank| axis.map(part, rank).map(|map| AxisMap::new(map.intervals())).unwrap_or_default();
        Ok(Some((0..ranks).map(map).collect()))
    }
}

impl ScaleRule {
    pub(super) fn read(text: ScaleText, origin: String) -> Result<Self, StorageError> {
        if text.names.is_empty() || text.names.len() != text.weight.len() {
            return Err(StorageError::ScalePairs { names: text.names.len(), weights: text.weight.len() });
        }
        if text.block.is_empty() || text.block.contains(&0) {
            return Err(StorageError::Block { block: text.block });
        }
        let read = |(scale, weight): (&String, &String)| {
            let (scale, weight) = (NamePattern::parse(scale)?, NamePattern::parse(weight)?);
            let (open, first_open) = (weight.open_components(), scale.open_components());
            if open != first_open {
                let (pattern, first) = (weight.text().to_string(), scale.text().to_string());
                return Err(StorageError::Open { pattern, open, first, first_open });
            }
            Ok((scale, weight))
        };
        let pairs = text.names.iter().zip(&text.weight).map(read).collect::<Result<_, _>>()?;
        Ok(Self { origin, pairs, block: text.block, is_for_this_model: false })
    }

    /// The name of the weight beside `scales`.
    pub(super) fn weight_of(&self, scales: &[&str]) -> Option<String> {
        // Most names are no scales, which the last component tells.
        let mut pairs = self.pairs.iter().filter(|(scale, _)| scale.matches(scales).is_some());
        pairs.find_map(|(scale, weight)| Some(weight.filled(&scale.captures(scales)?)))
    }

    /// Extents of a block in every dimension of a weight of `rank` dimensions.
    pub(super) fn blocks(&self, rank: usize) -> Option<Vec<u64>> {
        let leading = rank.checked_sub(self.block.len())?;
        Some([vec![1; leading], self.block.clone()].concat())
    }
}
