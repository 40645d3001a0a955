//! Results where the user wants them. In: a path, `-` for standard output, a text. Out: a [`ResultFile`], which is placed
//! when all is well. Guarantee: files appear whole or not at all, links followed; devices and pipes are written to as they
//! are; a reader of standard output that has seen enough is no fault.

use crate::checkpoint::{PendingFile, WriteError};
use crate::standard_output;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Results that cannot be written.
#[derive(Debug, Error)]
pub(crate) enum ResultFileError {
    /// A file.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An open stream.
    #[error("cannot write the results to {path}")]
    Stream {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// A text on its way to a path.
#[derive(Debug)]
#[must_use = "a result that is not placed is dropped"]
pub(crate) enum ResultFile {
    StandardOutput(String),
    File(PendingFile),
    /// A device or pipe.
    Open(PathBuf, String),
}

impl ResultFile {
    /// Gets `text` ready for `path`; nothing is seen of it yet.
    pub(crate) fn prepare(path: &Path, text: String) -> Result<Self, WriteError> {
        Ok(match target(path) {
            Target::StandardOutput => Self::StandardOutput(text),
            Target::Open(path) => Self::Open(path, text),
            Target::File(path) if path.is_dir() => {
                return Err(WriteError::Io { path, source: ErrorKind::IsADirectory.into() });
            }
            Target::File(path) => {
                let write = |file: &mut dyn Write| file.write_all(text.as_bytes());
                Self::File(PendingFile::write(&path, text.len() as u64, |file| write(file))?)
            }
        })
    }

    /// Finds out whether results can be written to `path`.
    pub(crate) fn try_path(path: &Path) -> Result<(), WriteError> {
        Self::prepare(path, String::new()).map(drop)
    }

    /// Lets it be seen.
    pub(crate) fn place(self) -> Result<(), ResultFileError> {
        match self {
            Self::StandardOutput(text) => print(&text),
            Self::File(file) => Ok(file.place()?),
            Self::Open(path, text) => {
                let opened = std::fs::OpenOptions::new().append(true).open(&path);
                opened
                    .and_then(|mut file| file.write_all(text.as_bytes()))
                    .map_err(|source| ResultFileError::Stream { path: path.display().to_string(), source })
            }
        }
    }
}

/// Prints the table, unless standard output is for the JSON, and writes the JSON: in one line there, since lines of others
/// may stand between.
pub(crate) fn publish(
    results: &impl Serialize,
    json: Option<&Path>,
    table: impl FnOnce() -> String,
) -> Result<(), ResultFileError> {
    // Numbers, texts and lists of them always have a JSON form.
    match json {
        Some(path) if is_standard_output(path) => {
            return print(&(serde_json::to_string(results).unwrap_or_default() + "\n"));
        }
        Some(path) => {
            let text = serde_json::to_string_pretty(results).unwrap_or_default() + "\n";
            ResultFile::prepare(path, text)?.place()?;
        }
        None => {}
    }
    print(&table())
}

/// Whether `path` stands for standard output.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == standard_output::NAME
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), ResultFileError> {
    standard_output::print(text).map_err(|source| ResultFileError::Stream { path: "standard output".into(), source })
}

/// What a path for results is.
enum Target {
    StandardOutput,
    File(PathBuf),
    Open(PathBuf),
}

fn target(path: &Path) -> Target {
    if is_standard_output(path) {
        return Target::StandardOutput;
    }
    match std::fs::metadata(path) {
        Ok(facts) if !facts.is_file() && !facts.is_dir() => Target::Open(path.to_path_buf()),
        Ok(_) => Target::File(path.canonicalize().unwrap_or_else(|_| path.to_path_buf())),
        Err(_) => Target::File(path.to_path_buf()),
    }
}
