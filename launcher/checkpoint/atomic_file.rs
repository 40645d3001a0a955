//! Files that appear when they are complete. In: a path, a size, a writer. Out: the file. Guarantee: contents and
//! name are on disk when it returns; after an error nothing new is left in the folder and an earlier file of that
//! name is as it was.

use super::error::WriteError;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Small tensors are collected to writes of this size; larger ones pass by.
const BUFFER: usize = 1 << 20;

/// Writes a file of `bytes` bytes by `write` and puts it under `path`.
pub(super) fn write_atomically(
    path: &Path,
    bytes: u64,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> Result<(), WriteError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    place(path, folder, bytes, write).map_err(|source| WriteError::Io {
        path: path.to_path_buf(),
        needed: bytes,
        free: free_bytes(folder),
        source,
    })
}

fn place(
    path: &Path,
    folder: &Path,
    bytes: u64,
    write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    // Dropped on every error below, which removes it. The mode is what the process's mask leaves of 0666.
    let temporary = tempfile::Builder::new()
        .prefix(".crossmesh-")
        .suffix(".part")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    reserve(temporary.as_file(), folder, bytes)?;
    let mut writer = BufWriter::with_capacity(BUFFER, temporary.as_file());
    write(&mut writer)?;
    writer.flush()?;
    drop(writer);
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|failed| failed.error)?;
    File::open(folder)?.sync_all()
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
