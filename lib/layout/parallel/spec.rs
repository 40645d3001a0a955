//! Sizes of the kinds of parallelism. In: texts such as `tp=2,pp=4,dp=2`. Out: [`ParallelSpec`] and its meshes.
//! Guarantee: sizes are at least 1, no axis repeats, the rank count fits 32 bits, and where expert weights have a view
//! of their own, it has as many ranks as the other one and cuts them into the same pipeline stages.

use super::{ParallelAxis, ParallelError};
use crate::base::Rank;
use crate::layout::Mesh;
use std::fmt;
use std::str::FromStr;

/// What `ep` is to the other axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpertConvention {
    /// NCCL M2N's files, and the default: all axes multiply, `ep` among them. `dp` counts copies of the whole model, and
    /// weights outside experts are the same along `ep`.
    Multiplied,
    /// Megatron's: expert weights see the ranks as pp x edp x ep x etp, all others as pp x dp x cp x tp. `ep` lies across
    /// the ranks of `dp` and `cp`. A spec that has `etp`, `edp` or `efsdp` is meant like this.
    TwoViews,
}

/// Which weights a mesh is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightView {
    /// All but experts.
    Dense,
    /// Experts.
    Expert,
}

/// Sizes of the kinds of parallelism, the first varying fastest from rank to rank (Megatron's order): under
/// `tp=2,dp=2` ranks 0 and 1 are a tensor-parallel pair, and the row-major mesh has the axes `dp`, `tp`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ParallelSpec {
    convention: ExpertConvention,
    /// As written: the fastest first.
    sizes: Vec<(ParallelAxis, u32)>,
    /// Layers of each pipeline stage, where they are stated.
    stage_layers: Option<Vec<u32>>,
    ranks: u32,
}

impl ExpertConvention {
    const ALL: [ExpertConvention; 2] = [ExpertConvention::Multiplied, ExpertConvention::TwoViews];

    /// The name before a colon in a spec: `m2n` or `megatron`.
    pub const fn name(self) -> &'static str {
        match self {
            ExpertConvention::Multiplied => "m2n",
            ExpertConvention::TwoViews => "megatron",
        }
    }

    fn of(sizes: &[(ParallelAxis, u32)]) -> Self {
        match sizes.iter().any(|(axis, _)| axis.is_expert_only()) {
            true => ExpertConvention::TwoViews,
            false => ExpertConvention::Multiplied,
        }
    }
}

impl ParallelSpec {
    /// Reads `tp=4`, `tp=2,dp=2`, `tp=2,ep=4,dp=1`, `tp=2,dp=8,etp=1,ep=16,pp=4`, `megatron:tp=1,dp=8,ep=8`; blanks around
    /// items and signs are ignored. `pp=8+8+7` is three stages with that many layers.
    pub fn parse(text: &str) -> Result<Self, ParallelError> {
        let (convention, items) = match text.split_once(':') {
            None => (None, text),
            Some((name, items)) => {
                let known = ExpertConvention::ALL.into_iter().find(|known| known.name() == name.trim());
                let convention = known.ok_or_else(|| ParallelError::Convention {
                    name: name.trim().to_string(),
                    text: text.to_string(),
                })?;
                (Some(convention), items)
            }
        };
        if items.trim().is_empty() {
            return Err(ParallelError::Empty);
        }
        let mut sizes: Vec<(ParallelAxis, u32)> = Vec::new();
        let mut stage_layers = None;
        for item in items.split(',') {
            let (axis, size, layers) = read_item(item, text)?;
            if sizes.iter().any(|&(earlier, _)| earlier == axis) {
                return Err(ParallelError::Repeated { axis, text: text.to_string() });
            }
            sizes.push((axis, size));
            stage_layers = stage_layers.or(layers);
        }
        let convention = convention.unwrap_or_else(|| ExpertConvention::of(&sizes));
        Self::check(Self { convention, sizes, stage_layers, ranks: 0 }, text)
    }

    /// A spec of these sizes, the fastest first; every axis at most once, no size zero.
    pub fn new(convention: ExpertConvention, sizes: &[(ParallelAxis, u32)]) -> Result<Self, ParallelError> {
        let spec = Self { convention, sizes: sizes.to_vec(), stage_layers: None, ranks: 0 };
        let text = spec.to_string();
        for (index, &(axis, size)) in sizes.iter().enumerate() {
            if size == 0 {
                return Err(ParallelError::Size { axis, size: size.to_string(), text });
            }
            if sizes[..index].iter().any(|&(earlier, _)| earlier == axis) {
                return Err(ParallelError::Repeated { axis, text });
            }
        }
        spec.check(&text)
    }

    /// Counts ranks in both views.
    fn check(mut self, text: &str) -> Result<Self, ParallelError> {
        let text = || text.to_string();
        if self.convention == ExpertConvention::Multiplied
            && let Some(&(axis, _)) = self.sizes.iter().find(|(axis, _)| axis.is_expert_only())
        {
            return Err(ParallelError::ExpertAxis { axis, text: text() });
        }
        let count = |view| self.axes(view).iter().map(|&(_, size)| u128::from(size)).product::<u128>();
        let (dense, expert) = (count(WeightView::Dense), count(WeightView::Expert));
        if dense.max(expert) > u128::from(u32::MAX) {
            return Err(ParallelError::Overflow { text: text() });
        }
        if dense != expert {
            let (dense_view, expert_view) = (self.product(WeightView::Dense), self.product(WeightView::Expert));
            let (dense, expert) = (dense as u32, expert as u32);
            return Err(ParallelError::Views { text: text(), dense_view, dense, expert_view, expert, ranks: None });
        }
        let inside = |view| {
            let axes = self.axes(view);
            let stage = axes.iter().position(|&(axis, size)| axis == ParallelAxis::Pipeline && size > 1)?;
            Some(axes[stage + 1..].iter().map(|&(_, size)| u64::from(size)).product::<u64>())
        };
        let (dense_stride, expert_stride) = (inside(WeightView::Dense), inside(WeightView::Expert));
        if let (Some(dense), Some(expert)) = (dense_stride, expert_stride)
            && dense != expert
        {
            return Err(ParallelError::Stages { text: text(), dense, expert });
        }
        self.ranks = dense as u32;
        Ok(self)
    }

    /// Number of ranks: the product of the sizes, in each view.
    pub fn rank_count(&self) -> u32 {
        self.ranks
    }

    /// What `ep` is to the other axes.
    pub fn convention(&self) -> ExpertConvention {
        self.convention
    }

    /// Size along `axis`, 1 when it is not written.
    pub fn size(&self, axis: ParallelAxis) -> u32 {
        self.sizes.iter().find(|&&(kind, _)| kind == axis).map_or(1, |&(_, size)| size)
    }

    /// Layers of each pipeline stage, where the text states them.
    pub fn stage_layers(&self) -> Option<&[u32]> {
        self.stage_layers.as_deref()
    }

    /// Axes and sizes of a view in mesh order: the slowest first, which is the reverse of the text.
    pub fn axes(&self, view: WeightView) -> Vec<(ParallelAxis, u32)> {
        self.sizes.iter().rev().copied().filter(|&(axis, _)| self.has(view, axis)).collect()
    }

    fn has(&self, view: WeightView, axis: ParallelAxis) -> bool {
        let expert = axis.is_expert_only() || axis == ParallelAxis::Expert;
        match (self.convention, view) {
            (ExpertConvention::Multiplied, _) => true,
            (ExpertConvention::TwoViews, WeightView::Dense) => !expert,
            (ExpertConvention::TwoViews, WeightView::Expert) => expert || axis == ParallelAxis::Pipeline,
        }
    }

    /// The mesh of a view over `ranks`, in the order of [`ParallelSpec::axes`].
    pub fn mesh(&self, view: WeightView, ranks: &[Rank]) -> Result<Mesh, ParallelError> {
        if ranks.len() as u64 != u64::from(self.ranks) {
            return Err(self.rank_count_error(ranks.len()));
        }
        let shape = self.axes(view).iter().map(|&(_, size)| size).collect();
        Mesh::new(shape, ranks.to_vec()).map_err(|source| ParallelError::Mesh { spec: self.to_string(), source })
    }

    fn rank_count_error(&self, given: usize) -> ParallelError {
        ParallelError::RankCount { spec: self.to_string(), needed: self.ranks, given }
    }

    /// `pp=4 x dp=2 x tp=2`, the slowest first.
    fn product(&self, view: WeightView) -> String {
        let axes: Vec<String> = self.axes(view).iter().map(|(axis, size)| format!("{axis}={size}")).collect();
        if axes.is_empty() { "no axis".to_string() } else { axes.join(" x ") }
    }
}

type Item = (ParallelAxis, u32, Option<Vec<u32>>);

/// Axis, size, and the layers of every stage.
fn read_item(item: &str, text: &str) -> Result<Item, ParallelError> {
    let text = || text.to_string();
    let Some((name, size)) = item.split_once('=') else {
        return Err(ParallelError::Unreadable { item: item.trim().to_string(), text: text() });
    };
    let (name, size) = (name.trim(), size.trim());
    let Some(axis) = ParallelAxis::from_name(name) else {
        let axis = name.to_string();
        return Err(match name {
            "" => ParallelError::Unreadable { item: item.trim().to_string(), text: text() },
            _ => ParallelError::UnknownAxis { axis, text: text() },
        });
    };
    if axis == ParallelAxis::Pipeline && size.contains('+') {
        let layers: Option<Vec<u32>> = size.split('+').map(|term| number(term.trim())).collect();
        return match layers {
            Some(layers) => Ok((axis, layers.len() as u32, Some(layers))),
            None => Err(ParallelError::StageLayers { size: size.to_string(), text: text() }),
        };
    }
    match number(size) {
        Some(value) if value > 0 => Ok((axis, value, None)),
        _ => Err(ParallelError::Size { axis, size: size.to_string(), text: text() }),
    }
}

/// A number without sign: `u32::from_str` takes a leading plus, which no one writes on purpose.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for ParallelSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.convention != ExpertConvention::of(&self.sizes) {
            write!(formatter, "{}:", self.convention.name())?;
        }
        for (index, (axis, size)) in self.sizes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(formatter, "{comma}{axis}=")?;
            match (&self.stage_layers, axis) {
                (Some(layers), ParallelAxis::Pipeline) => {
                    let terms: Vec<String> = layers.iter().map(u32::to_string).collect();
                    formatter.write_str(&terms.join("+"))?;
                }
                _ => write!(formatter, "{size}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for ParallelSpec {
    type Err = ParallelError;

    fn from_str(text: &str) -> Result<Self, ParallelError> {
        Self::parse(text)
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
