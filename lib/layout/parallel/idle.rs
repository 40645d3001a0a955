//! Axes that do nothing for a model. In: a spec, a model with its rules. Out: [`IdleAxis`]. Guarantee: none of them is an
//! error, since such ranks hold what their spec says; a user may have meant another spec.

use super::{ParallelAxis, ParallelSpec, RuledModel, WeightView};
use std::fmt;

/// An axis of a spec that cuts nothing of a model, or less than its ranks could hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum IdleAxis {
    /// Pipeline stages without a layer, which nobody asked for.
    Stages {
        /// The spec.
        spec: String,
        /// Its stages.
        stages: u32,
        /// Those without a layer.
        empty: usize,
        /// Layers of the model.
        layers: u64,
    },
    /// `ep` for a model without experts.
    Experts {
        /// The spec.
        spec: String,
        /// Ranks along `ep`.
        ranks: u32,
    },
}

impl fmt::Display for IdleAxis {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stages { spec, stages, empty, layers } => write!(
                formatter,
                "{spec}: {empty} of {stages} pipeline stages have no layer, since the model has {layers}; use at most \
                 as many stages, or state the layers of each"
            ),
            Self::Experts { spec, ranks } => write!(
                formatter,
                "{spec}: ep={ranks} deals out nothing, since no tensor of the model is an expert by the rules; use ep=1, or \
                 a rule with experts"
            ),
        }
    }
}

/// Axes of `spec` that do nothing for `ruled`, whose layers end the stages at `stage_ends`.
pub(super) fn idle(spec: &ParallelSpec, ruled: &RuledModel<'_>, stage_ends: &[u64]) -> Vec<IdleAxis> {
    let mut found = Vec::new();
    let starts = [0].iter().chain(stage_ends);
    let empty = stage_ends.iter().zip(starts).filter(|(end, start)| end == start).count();
    if spec.stage_layers().is_none() && stage_ends.len() > 1 && empty > 0 {
        let (stages, layers) = (spec.size(ParallelAxis::Pipeline), ruled.layers());
        found.push(IdleAxis::Stages { spec: spec.to_string(), stages, empty, layers });
    }
    let ranks = spec.size(ParallelAxis::Expert);
    if ranks > 1 && !ruled.tensors.iter().any(|tensor| ruled.effect(tensor.effect).view() == WeightView::Expert) {
        found.push(IdleAxis::Experts { spec: spec.to_string(), ranks });
    }
    found
}
