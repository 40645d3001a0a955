//! Results as files. In: anything that can be written as JSON, a drawing, a path. Out: a file, or standard output for `-`.
//! Guarantee: an error names the path.

use super::error::BenchError;
use crate::standard_output;
use serde::Serialize;
use std::path::Path;

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
