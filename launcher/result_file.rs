//! Results where the user wants them. In: a path, `-` for standard output, a text or bytes. Out: a [`ResultFile`], which is placed
//! when all is well. Guarantee: files appear whole or not at all, links followed; devices and pipes are written to as they
//! are; a reader of standard output that has seen enough is no fault.

use crate::checkpoint::{PendingFile, WriteError};
use crate::standard_output;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Links that lead to links, as many as the kernel follows.
const MOST_LINKS: usize = 40;

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

/// Contents on their way to a path.
#[derive(Debug)]
#[must_use = "a result that is not placed is dropped"]
pub(crate) enum ResultFile {
    StandardOutput(Vec<u8>),
    File(PendingFile),
    /// A device or pipe.
    Open(PathBuf, Vec<u8>),
}

impl ResultFile {
    /// Gets `contents` ready for `path`; nothing is seen of them yet.
    pub(crate) fn prepare(path: &Path, contents: impl Into<Vec<u8>>) -> Result<Self, WriteError> {
        let contents = contents.into();
        Ok(match target(path) {
            Target::StandardOutput => Self::StandardOutput(contents),
            Target::Open(path) => Self::Open(path, contents),
            Target::File => {
                let named = link_end(path).map_err(|source| WriteError::Io { path: path.to_path_buf(), source })?;
                if named.is_dir() {
                    return Err(WriteError::Io { path: named, source: ErrorKind::IsADirectory.into() });
                }
                let write = |file: &mut dyn Write| file.write_all(&contents);
                let file = PendingFile::write(&named, contents.len() as u64, |file| write(file));
                Self::File(file.map_err(|error| match error {
                    WriteError::Io { path: end, source } if path.is_symlink() => {
                        WriteError::Link { path: path.to_path_buf(), end, source }
                    }
                    error => error,
                })?)
            }
        })
    }

    /// Finds out whether results can be written to `path`.
    pub(crate) fn try_path(path: &Path) -> Result<(), WriteError> {
        Self::prepare(path, Vec::new()).map(drop)
    }

    /// Lets it be seen.
    pub(crate) fn place(self) -> Result<(), ResultFileError> {
        match self {
            Self::StandardOutput(contents) => print_bytes(&contents),
            Self::File(file) => Ok(file.place()?),
            Self::Open(path, contents) => {
                let opened = std::fs::OpenOptions::new().append(true).open(&path);
                opened
                    .and_then(|mut file| file.write_all(&contents))
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

/// The place that `path` names, links followed: two that are one place are equal, however they are written.
pub(crate) fn place(path: &Path) -> PathBuf {
    if is_standard_output(path) {
        return path.to_path_buf();
    }
    let end = link_end(path).unwrap_or_else(|_| path.to_path_buf());
    let by_folder = || {
        let folder = end.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(folder.canonicalize().ok()?.join(end.file_name()?))
    };
    end.canonicalize().ok().or_else(by_folder).unwrap_or(end)
}

/// The path behind all links of `path`, whether anything is there or not: where a program that opens `path` to write makes
/// the file.
fn link_end(path: &Path) -> io::Result<PathBuf> {
    let mut end = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&end) {
            Ok(next) => end = end.parent().unwrap_or(Path::new("")).join(next),
            // No link, or nothing at all.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => return Ok(end),
            Err(error) => return Err(error),
        }
    }
    Err(nix::errno::Errno::ELOOP.into())
}

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), ResultFileError> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> Result<(), ResultFileError> {
    standard_output::print_bytes(bytes)
        .map_err(|source| ResultFileError::Stream { path: "standard output".into(), source })
}

/// What a path for results is.
enum Target {
    StandardOutput,
    /// A file or a folder, or nothing yet.
    File,
    Open(PathBuf),
}

fn target(path: &Path) -> Target {
    if is_standard_output(path) {
        return Target::StandardOutput;
    }
    match std::fs::metadata(path) {
        Ok(facts) if !facts.is_file() && !facts.is_dir() => Target::Open(path.to_path_buf()),
        _ => Target::File,
    }
}
