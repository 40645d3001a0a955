//! Which files are read where a model is named. In: its path. Out: paths as they are named, links not followed. Guarantee:
//! every file that [`Model`](super::Model) would open is among them; what cannot be read is refused where it is opened.

use super::{config, index};
use std::io;
use std::path::{Path, PathBuf};

/// What the name of an index ends with; a folder has one of a fixed name, and others do no harm.
const INDEX: &str = ".safetensors.index.json";

/// The model, its index and what that lists, all shards of a folder without one, and the configuration beside them.
pub(crate) fn files_read(model: &Path) -> Vec<PathBuf> {
    let is_index = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(INDEX));
    let mut files = vec![config::place(model)];
    let named = match model.is_dir() {
        true => entries(model).unwrap_or_default(),
        false => vec![model.to_path_buf()],
    };
    let indices: Vec<&PathBuf> = named.iter().filter(|path| is_index(path)).collect();
    for index in &indices {
        let folder = index.parent().unwrap_or(Path::new(""));
        let mut shards: Vec<String> = index::weight_map(index)
            .map_or_else(|_| Vec::new(), |map| map.0.into_iter().map(|(_, file)| file).collect());
        shards.sort_unstable();
        shards.dedup();
        files.extend(shards.into_iter().map(|shard| folder.join(shard)));
        files.push(index.to_path_buf());
    }
    if indices.is_empty() {
        files.extend(if model.is_dir() { shards_in(model).unwrap_or_default() } else { named });
    }
    files.retain(|file| file.exists());
    files
}

/// Files of a folder that end in `.safetensors`.
pub(super) fn shards_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let is_shard = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "safetensors");
    Ok(entries(folder)?.into_iter().filter(is_shard).collect())
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}
