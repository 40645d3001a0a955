//! Results as files. In: anything that can be written as JSON, a drawing, a path. Out: a file, or standard output for `-`.
//! Guarantee: an error names the path.

use super::error::BenchError;
use crate::result_file::ResultFile;
use crate::standard_output;
use crossmesh::base::env;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A place for results, which one rank writes for all: found out by that rank alone whether it can, before the ranks meet
/// and anything is measured.
pub(super) fn place(option: &'static str, path: Option<&Path>) -> Result<Option<PathBuf>, BenchError> {
    if let Some(path) = path.filter(|_| env::text(env::RANK).is_none_or(|rank| rank == "0")) {
        ResultFile::try_path(path).map_err(|source| BenchError::Target { option, source })?;
    }
    Ok(path.map(Path::to_path_buf))
}

/// For programs.
pub(super) fn write_json(results: &impl Serialize, path: &Path) -> Result<(), BenchError> {
    let text = serde_json::to_string_pretty(results);
    let text = text.map_err(|error| BenchError::Write { path: path.to_path_buf(), source: error.into() })?;
    write(&(text + "\n"), path)
}

/// Any text.
pub(super) fn write(text: &str, path: &Path) -> Result<(), BenchError> {
    standard_output::write(path, text).map_err(|source| BenchError::Write { path: path.to_path_buf(), source })
}

/// Whether the table may go to standard output.
pub(super) fn leaves_room_for_a_table(json: Option<&Path>) -> bool {
    json.is_none_or(|path| path.as_os_str() != standard_output::NAME)
}
