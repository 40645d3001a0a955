//! System files of NCCL M2N's model bench. In: JSON with the sizes of trainer and generator. Out: two specs. Guarantee: an
//! unknown key is an error that names it, and each side's sizes multiply to its number of GPUs.
//!
//! The files say how many, not which rank is where: as Megatron's default order has it, `tp` varies fastest, then `cp`,
//! `ep`, `fsdp`, `dp`, and `pp` slowest. With `etp_size` or `edp_size`, which the bench does not have, a side is meant as
//! Megatron does: with a view of expert weights.

use super::{ExpertConvention, ParallelAxis, ParallelError, ParallelSpec};
use crate::base::json::{self, JsonError};
use serde::Deserialize;
use thiserror::Error;

/// Both sides of a system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct System {
    /// The trainer.
    pub source: ParallelSpec,
    /// The generator.
    pub destination: ParallelSpec,
}

/// A system file that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SystemError {
    /// Not a system file.
    #[error(
        "{origin} is no system file, which holds {{\"train\": {{\"num_gpus\": 4, \"tp_size\": 4, ...}}, \"generation\": {{...}}}}"
    )]
    Unreadable {
        /// The file.
        origin: String,
        /// What the JSON reader says.
        #[source]
        source: JsonError,
    },
    /// Sizes that are no spec.
    #[error("{origin}, {side}")]
    Spec {
        /// The file.
        origin: String,
        /// `train` or `generation`.
        side: &'static str,
        /// Why.
        #[source]
        source: ParallelError,
    },
    /// The sizes do not multiply to the number of GPUs.
    #[error(
        "{origin}, {side}: num_gpus is {ranks}, and the sizes {spec} multiply to {product} (dp beside ep), or to {dense} \
         without ep (dp across ep); correct the sizes or num_gpus"
    )]
    Count {
        /// The file.
        origin: String,
        /// `train` or `generation`.
        side: &'static str,
        /// GPUs as stated.
        ranks: u32,
        /// The sizes.
        spec: String,
        /// Their product.
        product: u32,
        /// Their product without `ep`.
        dense: u32,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with train and generation")]
struct SystemText {
    #[serde(rename = "_comment")]
    _comment: Option<serde::de::IgnoredAny>,
    train: SideText,
    generation: SideText,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with num_gpus and sizes such as tp_size")]
struct SideText {
    #[serde(rename = "_comment")]
    _comment: Option<serde::de::IgnoredAny>,
    num_gpus: u32,
    tp_size: Option<u32>,
    cp_size: Option<u32>,
    ep_size: Option<u32>,
    fsdp_size: Option<u32>,
    dp_size: Option<u32>,
    pp_size: Option<u32>,
    etp_size: Option<u32>,
    edp_size: Option<u32>,
}

impl System {
    /// Reads a system file; `origin` names it in messages.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SystemError> {
        let SystemText { train, generation, .. } =
            json::read(text).map_err(|source| SystemError::Unreadable { origin: origin.to_string(), source })?;
        Ok(Self {
            source: read_side(&train, "train", origin)?,
            destination: read_side(&generation, "generation", origin)?,
        })
    }
}

fn read_side(text: &SideText, side: &'static str, origin: &str) -> Result<ParallelSpec, SystemError> {
    let convention = match text.etp_size.or(text.edp_size) {
        Some(_) => ExpertConvention::TwoViews,
        None => ExpertConvention::Multiplied,
    };
    let stated = [
        (ParallelAxis::Tensor, text.tp_size),
        (ParallelAxis::ExpertTensor, text.etp_size),
        (ParallelAxis::Context, text.cp_size),
        (ParallelAxis::Expert, text.ep_size),
        (ParallelAxis::FullySharded, text.fsdp_size),
        (ParallelAxis::Data, text.dp_size),
        (ParallelAxis::ExpertData, text.edp_size),
        (ParallelAxis::Pipeline, text.pp_size),
    ];
    let sizes: Vec<(ParallelAxis, u32)> =
        stated.into_iter().filter_map(|(axis, size)| size.map(|size| (axis, size))).collect();
    let spec = ParallelSpec::new(convention, &sizes).map_err(|source| SystemError::Spec {
        origin: origin.to_string(),
        side,
        source: source.of_ranks(text.num_gpus),
    })?;
    if spec.rank_count() != text.num_gpus {
        let (origin, ranks, product) = (origin.to_string(), text.num_gpus, spec.rank_count());
        let dense = match convention {
            ExpertConvention::Multiplied => product / spec.size(ParallelAxis::Expert),
            ExpertConvention::TwoViews => product,
        };
        return Err(SystemError::Count { origin, side, ranks, spec: spec.to_string(), product, dense });
    }
    Ok(spec)
}

#[cfg(test)]
#[path = "system_tests.rs"]
mod tests;
