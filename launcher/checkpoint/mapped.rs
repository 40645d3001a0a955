//! Files as memory. In: a path. Out: [`MappedFile`]. Guarantee: read-only; only regular files are opened.

use super::error::CheckpointError;
use crate::plain_file;
use memmap2::Mmap;
use std::path::Path;

/// A file mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the file at `path`. It must not be shortened while it is mapped: reading beyond its new end would kill
    /// the process.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let fail = |action| {
            let path = path.to_path_buf();
            move |source| CheckpointError::Io { action, path, source }
        };
        let file = plain_file::open(path).map_err(fail("open"))?;
        // SAFETY: the mapping is private to reading and lives as long as `map`; nothing in this program writes to
        // or shortens a checkpoint, since files are replaced by renaming a complete new one over them.
        let map = unsafe { Mmap::map(&file) }.map_err(fail("map"))?;
        Ok(Self { map })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
