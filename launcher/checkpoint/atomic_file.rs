//! Files that appear when they are complete. In: a path, a size, a writer. Out: a [`PendingFile`], which gets its
//! name when it is placed. Guarantee: contents and name are on disk when placing returns; a file that is not placed,
//! or cannot be, leaves nothing new in the folder and an earlier file of that name as it was.

use super::error::WriteError;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Small tensors are collected to writes of this size; larger ones pass by.
const BUFFER: usize = 1 << 20;

/// A complete file on disk that does not have its name yet; dropped, it is gone.
#[derive(Debug)]
#[must_use = "a file that is not placed is removed"]
pub(crate) struct PendingFile {
    temporary: NamedTempFile,
    path: PathBuf,
}

impl PendingFile {
    /// Writes a file of `bytes` bytes by `write`, to be placed at `path`.
    pub(crate) fn write(
        path: &Path,
        bytes: u64,
        write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<Self, WriteError> {
        let folder = folder_of(path);
        match write_temporary(folder, bytes, write) {
            Ok(temporary) => Ok(Self { temporary, path: path.to_path_buf() }),
            Err(source) if is_full(&source) => {
                Err(WriteError::Full { path: path.to_path_buf(), needed: bytes, free: free_bytes(folder), source })
            }
            Err(source) => Err(WriteError::Io { path: path.to_path_buf(), source }),
        }
    }

    /// Gives the file its name, in place of an earlier file.
    pub(crate) fn place(self) -> Result<(), WriteError> {
        let Self { temporary, path } = self;
        let placed = temporary.persist(&path).map_err(|failed| failed.error);
        let synced = placed.and_then(|_| File::open(folder_of(&path))?.sync_all());
        synced.map_err(|source| WriteError::Io { path, source })
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether the file system, or this user's part of it, has no room.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn write_temporary(
    folder: &Path,
    bytes: u64,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<NamedTempFile> {
    // Dropped on every error below, which removes it. The mode is what the process's mask leaves of it. Opened here,
    // since tempfile would put the temporary name into its errors, where it says nothing and differs between ranks.
    let open = |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(path);
    let temporary = tempfile::Builder::new().prefix(".crossmesh-").suffix(".part").make_in(folder, open)?;
    reserve(temporary.as_file(), folder, bytes)?;
    let mut writer = BufWriter::with_capacity(BUFFER, temporary.as_file());
    write(&mut writer)?;
    writer.flush()?;
    drop(writer);
    temporary.as_file().sync_all()?;
    Ok(temporary)
}

/// Takes the space up front, so that a full disk shows before gigabytes are written. The free space is looked at
/// first, since taking more than there is fills the disk for a moment; file systems that cannot reserve find out
/// while writing.
fn reserve(file: &File, folder: &Path, bytes: u64) -> io::Result<()> {
    if free_bytes(folder).is_some_and(|free| bytes > free) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let Ok(length) = i64::try_from(bytes) else {
        return Err(io::ErrorKind::FileTooLarge.into());
    };
    if length == 0 {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Bytes that this process may still write to the file system of `folder`.
fn free_bytes(folder: &Path) -> Option<u64> {
    let facts = nix::sys::statvfs::statvfs(folder).ok()?;
    facts.blocks_available().checked_mul(facts.fragment_size())
}
