//! The model on all ranks. In: a path, the source ranks. Out: a model on every rank. Guarantee: source ranks have the
//! contents; a rank that is no source and does not find the model learns from another rank what is in it.

use super::consent::agree;
use super::error::RefitError;
use crate::checkpoint::{Catalogue, Model};
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::Communicator;
use std::path::Path;

/// Opens the model at `path`, or has it described by a rank that could; collective.
pub(super) fn open(
    world: &Communicator,
    path: &Path,
    sources: &[Rank],
    deadline: Deadline,
) -> Result<Model, RefitError> {
    let opened = match Model::open(path) {
        Err(error) if error.is_missing() && !sources.contains(&world.rank()) => Ok(None),
        opened => opened.map(Some).map_err(RefitError::from),
    };
    // Every source has it now, or all ranks have failed.
    let opened = agree(world, opened, deadline)?;
    let here = world.allgather(&[u8::from(opened.is_some())], deadline)?;
    let speaker = here.iter().position(|rank| rank == &[1]).unwrap_or_default();
    if here.iter().all(|rank| rank == &[1]) {
        return opened.ok_or_else(|| lost(speaker));
    }
    let mine = opened.as_ref().filter(|_| world.rank().index() == speaker).map(Model::catalogue);
    // Names and numbers always have a JSON form.
    let all = world.allgather(&serde_json::to_vec(&mine).unwrap_or_default(), deadline)?;
    let told = match opened {
        Some(model) => Ok(model),
        None => {
            log::info!("{} is not on this host; rank {speaker} told what is in it", path.display());
            let catalogue: Option<Catalogue> = all.get(speaker).and_then(|text| serde_json::from_slice(text).ok()?);
            catalogue.map(Model::elsewhere).ok_or_else(|| lost(speaker))
        }
    };
    agree(world, told, deadline)
}

fn lost(speaker: usize) -> RefitError {
    RefitError::Catalogue { rank: Rank(speaker as u32) }
}
