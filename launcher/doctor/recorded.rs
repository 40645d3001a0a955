//! Recorded states: `rank-N.json` of every rank, or `host.json` of a machine without a job, and `pairs.json`. In: a folder.
//! Out: the states in rank order, the pairs. Guarantee: what `write` wrote `read` reads; unknown fields are errors.

use super::error::DoctorError;
use super::pairs::Pair;
use super::system::State;
use crate::plain_file;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::Path;

const PAIRS: &str = "pairs.json";

/// Records states and pairs.
pub(super) fn write(folder: &Path, states: &[State], pairs: &[Pair]) -> Result<(), DoctorError> {
    let refused = |path: &Path, source| DoctorError::Write { path: path.to_path_buf(), source };
    fs::create_dir_all(folder).map_err(|source| refused(folder, source))?;
    for state in states {
        let name = state.rank.map_or("host.json".to_string(), |rank| format!("rank-{rank:05}.json"));
        write_json(&folder.join(name), state)?;
    }
    if !pairs.is_empty() {
        write_json(&folder.join(PAIRS), &pairs)?;
    }
    Ok(())
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), DoctorError> {
    let text = serde_json::to_string_pretty(value).map_err(DoctorError::Encode)?;
    fs::write(path, text + "\n").map_err(|source| DoctorError::Write { path: path.to_path_buf(), source })
}

/// Reads them back; pairs are absent where none were recorded.
pub(super) fn read(folder: &Path) -> Result<(Vec<State>, Option<Vec<Pair>>), DoctorError> {
    let refused = |source| DoctorError::Folder { path: folder.to_path_buf(), source };
    let mut states = Vec::new();
    let mut pairs = None;
    for entry in fs::read_dir(folder).map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        if path.file_name().is_some_and(|name| name == PAIRS) {
            pairs = Some(read_json(&path)?);
        } else {
            states.push(read_json::<State>(&path)?);
        }
    }
    if states.is_empty() {
        return Err(DoctorError::Empty { path: folder.to_path_buf() });
    }
    states.sort_by_key(|state| state.rank);
    Ok((states, pairs))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, DoctorError> {
    let refused = |source| DoctorError::State { path: path.to_path_buf(), source };
    let text = plain_file::read_text(path).map_err(refused)?;
    serde_json::from_str(&text).map_err(|error| refused(error.into()))
}
