//! Recorded states: `rank-N.json` of every rank, or `host.json` of a machine without a job, and what ranks tried,
//! `pairs.json` and `gpu-links.json`. In: a folder. Out: the states in rank order, what they tried. Guarantee: what `write` wrote `read` reads; unknown fields are errors.

use super::error::DoctorError;
use super::report::Tried;
use super::system::State;
use crate::plain_file;
use crossmesh::base::json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::Path;

const PAIRS: &str = "pairs.json";
const GPU_LINKS: &str = "gpu-links.json";

/// Records states and what ranks tried.
pub(super) fn write(folder: &Path, states: &[State], tried: &Tried) -> Result<(), DoctorError> {
    let refused = |path: &Path, source| DoctorError::Write { path: path.to_path_buf(), source };
    fs::create_dir_all(folder).map_err(|source| refused(folder, source))?;
    for state in states {
        let name = state.rank.map_or("host.json".to_string(), |rank| format!("rank-{rank:05}.json"));
        write_json(&folder.join(name), state)?;
    }
    if !tried.pairs.is_empty() {
        write_json(&folder.join(PAIRS), &tried.pairs)?;
    }
    if !tried.gpu_links.is_empty() {
        write_json(&folder.join(GPU_LINKS), &tried.gpu_links)?;
    }
    Ok(())
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), DoctorError> {
    let text = serde_json::to_string_pretty(value).map_err(DoctorError::Encode)?;
    fs::write(path, text + "\n").map_err(|source| DoctorError::Write { path: path.to_path_buf(), source })
}

/// Reads them back.
pub(super) fn read(folder: &Path) -> Result<(Vec<State>, Tried), DoctorError> {
    let refused = |source| DoctorError::Folder { path: folder.to_path_buf(), source };
    let mut states = Vec::new();
    let mut tried = Tried::default();
    for entry in fs::read_dir(folder).map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match path.file_name().and_then(|name| name.to_str()) {
            Some(PAIRS) => tried.pairs = read_json(&path)?,
            Some(GPU_LINKS) => tried.gpu_links = read_json(&path)?,
            _ => states.push(read_json::<State>(&path)?),
        }
    }
    if states.is_empty() {
        return Err(DoctorError::Empty { path: folder.to_path_buf() });
    }
    states.sort_by_key(|state| state.rank);
    Ok((states, tried))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, DoctorError> {
    let refused = |source| DoctorError::State { path: path.to_path_buf(), source };
    let text = plain_file::read_text(path).map_err(refused)?;
    json::read(&text).map_err(|error| refused(std::io::Error::other(error)))
}
