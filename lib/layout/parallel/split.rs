//! Tensors that a checkpoint stores as one. In: `[[split]]` tables of rules files. Out: [`SplitRule`], and the parts of a
//! tensor with their [`Origin`]. Guarantee: the parts of a tensor share no element of it.
//!
//! ```toml
//! [[split]]
//! from = "*.self_attn.qkv_proj.{weight,bias}"
//! parts = ["*.self_attn.q_proj.{weight,bias}", "*.self_attn.k_proj.{weight,bias}", "*.self_attn.v_proj.{weight,bias}"]
//! form = "grouped"              # as the checkpoint has it: concatenated (the default), grouped or interleaved
//! heads = "model"               # as in [[fuse]]; without heads parts are equally long, or sizes = [...] says how long
//!
//! [[split]]
//! from = "*.mlp.experts.gate_up_proj"
//! parts = ["*.mlp.experts.{expert}.gate_proj.weight", "*.mlp.experts.{expert}.up_proj.weight"]
//! experts = "stacked"           # the first dimension counts the experts of a layer
//! transposed = true             # the checkpoint has the last two dimensions in the other order
//! ```

use super::FuseRuleError;
use super::fuse::check_open;
use super::heads::{HeadCounts, HeadsFrom, HeadsText, Known, read_form, read_stacked};
use super::pattern::NamePattern;
use crate::layout::model::ModelTensor;
use crate::layout::{AxisMap, FusedAxis, FusedError, FusedForm, HeadSplit, Interval, Split};
use serde::Deserialize;

/// Most experts of a tensor, so that an absurd shape does not fill the memory.
const MOST_EXPERTS: u64 = 1 << 20;

/// A table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with from and parts")]
pub(super) struct SplitText {
    from: String,
    parts: Vec<String>,
    form: Option<String>,
    heads: Option<HeadsText>,
    default_heads: Option<HeadCounts>,
    sizes: Option<Vec<u64>>,
    experts: Option<String>,
    #[serde(default)]
    transposed: bool,
    #[serde(default)]
    dim: usize,
}

/// A rule that takes a tensor apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SplitRule {
    /// File and line, for messages.
    pub(super) origin: String,
    pub(super) from: NamePattern,
    parts: Vec<NamePattern>,
    /// The dimension of a part along which parts follow each other.
    dim: usize,
    form: FusedForm,
    heads: Option<HeadsFrom>,
    sizes: Option<Vec<u64>>,
    stacked: bool,
    transposed: bool,
}

/// Where the elements of a tensor stand in a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Number of the tensor of the model.
    pub tensor: usize,
    /// For every dimension of that tensor which indices; none when the two are the same, row-major.
    pub axes: Vec<OriginAxis>,
}

/// What stands along a dimension of the tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OriginAxis {
    /// This index only.
    At(u64),
    /// Dimension `dim` of the part: `map` gives for its indices those of the whole tensor, as local positions.
    Along {
        /// Dimension of the part.
        dim: usize,
        /// Its indices as global ones, those of the whole as local ones.
        map: AxisMap,
    },
}

impl Origin {
    /// All of tensor number `tensor`.
    pub fn whole(tensor: usize) -> Self {
        Self { tensor, axes: Vec::new() }
    }

    /// The same for a part with another dimension in front.
    pub(super) fn shifted(mut self) -> Self {
        for axis in &mut self.axes {
            if let OriginAxis::Along { dim, .. } = axis {
                *dim += 1;
            }
        }
        self
    }
}

impl SplitRule {
    pub(super) fn read(text: SplitText, origin: String) -> Result<Self, FuseRuleError> {
        let stacked = read_stacked(text.experts.as_deref())?;
        let parts = text.parts.iter().map(|part| NamePattern::parse(part)).collect::<Result<Vec<_>, _>>()?;
        if parts.is_empty() || (parts.len() == 1 && !stacked && !text.transposed) {
            return Err(FuseRuleError::Parts { parts: parts.len() });
        }
        let from = NamePattern::parse(&text.from)?;
        check_open(&parts, &from, stacked)?;
        let heads = HeadsFrom::read(text.heads, text.default_heads)?;
        if heads.is_some() && (parts.len() != 3 || text.sizes.is_some()) {
            return Err(FuseRuleError::HeadKeys);
        }
        let form = read_form(text.form.as_deref())?;
        let (dim, sizes, transposed) = (text.dim, text.sizes, text.transposed);
        Ok(Self { origin, from, parts, dim, form, heads, sizes, stacked, transposed })
    }

    /// The parts of tensor number `number`; none when its name does not fit.
    pub(super) fn apart(
        &self,
        number: usize,
        tensor: &ModelTensor,
        model: Known<'_>,
    ) -> Result<Vec<(ModelTensor, Origin)>, FuseRuleError> {
        let components: Vec<&str> = tensor.name.split('.').collect();
        let Some(captures) = self.from.captures(&components) else { return Ok(Vec::new()) };
        let wrong = || FuseRuleError::Apart {
            from: tensor.name.clone(),
            shape: tensor.shape.clone(),
            parts: self.parts.len(),
            dim: self.dim,
            stacked: self.stacked,
        };
        let leading = usize::from(self.stacked);
        let inner = tensor.shape.get(leading..).filter(|inner| inner.len() > self.dim).ok_or_else(wrong)?;
        // Dimension of a part for every one of the whole behind that of experts.
        let mut order: Vec<usize> = (0..inner.len()).collect();
        if self.transposed {
            let last = inner.len().checked_sub(2).ok_or_else(wrong)?;
            order.swap(last, last + 1);
        }
        let axis =
            self.axis(&tensor.name, inner[order[self.dim]], model).map_err(|error| error.unwrap_or_else(wrong))?;
        let experts = if self.stacked { tensor.shape[0] } else { 1 };
        if tensor.shape.contains(&0) || experts > MOST_EXPERTS {
            return Err(wrong());
        }
        let mut made = Vec::new();
        for (expert, (part, name)) in (0..experts).flat_map(|expert| (0..).zip(&self.parts).map(move |at| (expert, at)))
        {
            let map = |dim: usize| match dim == self.dim {
                true => axis.map(part, 0).cloned().unwrap_or_default(),
                false => AxisMap::new([Interval { lo: 0, hi: inner[order[dim]] }]),
            };
            let shape: Vec<u64> = (0..inner.len()).map(|dim| map(dim).stored()).collect();
            let along = order.iter().map(|&dim| OriginAxis::Along { dim, map: map(dim) });
            let at = self.stacked.then_some(OriginAxis::At(expert));
            let mut captures = captures.clone();
            if let Some(place) = name.expert_place().filter(|_| self.stacked) {
                captures.insert(place, expert.to_string());
            }
            let made_tensor = ModelTensor { name: name.filled(&captures), shape, ..tensor.clone() };
            made.push((made_tensor, Origin { tensor: number, axes: at.into_iter().chain(along).collect() }));
        }
        Ok(made)
    }

    /// How the parts follow each other along the dimension, of `extent` indices; no error of its own where these make
    /// no parts.
    fn axis(&self, from: &str, extent: u64, model: Known<'_>) -> Result<FusedAxis, Option<FuseRuleError>> {
        let failed = |source: FusedError| Some(FuseRuleError::Fused { into: from.to_string(), source });
        if let Some(heads) = self.heads {
            let HeadCounts { query, key_value } = heads.counts(model)?;
            let all = key_value.checked_mul(2).and_then(|both| both.checked_add(query)).filter(|&all| all > 0);
            let size = all.filter(|all| extent.is_multiple_of(*all)).map(|all| extent / all).ok_or(None)?;
            let heads =
                HeadCounts { query, key_value }.of_extents(from, &[query, key_value, key_value].map(|n| n * size))?;
            return FusedAxis::attention(heads, self.form, HeadSplit::Even, 1).map_err(failed);
        }
        let count = self.parts.len() as u64;
        let sizes = match &self.sizes {
            Some(sizes) => sizes.clone(),
            None if extent.is_multiple_of(count) => vec![extent / count; self.parts.len()],
            None => return Err(None),
        };
        let sum = sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size));
        if sizes.len() != self.parts.len() || sum != Some(extent) {
            return Err(None);
        }
        FusedAxis::split(&sizes, self.form, &Split::Floor, 1).map_err(failed)
    }
}
