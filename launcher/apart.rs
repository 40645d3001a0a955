//! Results apart from what is read and from each other. In: options with their paths. Out: nothing, or the first two that
//! name one place. Guarantee: links are followed; of a checkpoint all files that are read count, whichever of them, or
//! their folder, is named.

use crate::result_file;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Two options for one file.
#[derive(Debug, Error)]
#[error("{} and {} both name {}; give each its own file", options[0], options[1], path.display())]
pub(crate) struct SameFile {
    options: [&'static str; 2],
    path: PathBuf,
}

/// What files of a checkpoint end with.
const CHECKPOINT: [&str; 3] = [".safetensors", ".safetensors.index.json", "config.json"];

/// Refuses a path of `written` in the place of one before it, of one of `read` where something is, or of another file of
/// the same checkpoint.
pub(crate) fn check(
    read: &[(&'static str, Option<&Path>)],
    written: &[(&'static str, Option<&Path>)],
) -> Result<(), SameFile> {
    compare(read, written, is_part)
}

/// The same for the shards of a rank, which may well lie in the folder of the checkpoint.
pub(crate) fn check_shards(
    read: &[(&'static str, Option<&Path>)],
    written: &[(&'static str, Option<&Path>)],
) -> Result<(), SameFile> {
    compare(read, written, |_, _| false)
}

fn compare(
    read: &[(&'static str, Option<&Path>)],
    written: &[(&'static str, Option<&Path>)],
    is_part: impl Fn(&Path, &Path) -> bool,
) -> Result<(), SameFile> {
    let read = read.iter().filter_map(|&(option, path)| Some((option, path.filter(|path| path.exists())?)));
    let mut taken: Vec<(&'static str, PathBuf)> =
        read.map(|(option, path)| (option, result_file::place(path))).collect();
    for &(option, path) in written {
        let Some(path) = path else { continue };
        let place = result_file::place(path);
        let is_taken = |(_, taken): &&(&'static str, PathBuf)| *taken == place || is_part(taken, &place);
        if let Some(&(other, _)) = taken.iter().find(is_taken) {
            return Err(SameFile { options: [other, option], path: path.to_path_buf() });
        }
        taken.push((option, place));
    }
    Ok(())
}

/// Whether the file at `place` is read with the checkpoint at `model`.
fn is_part(model: &Path, place: &Path) -> bool {
    let is_one = |path: &Path| {
        path.file_name().is_some_and(|name| CHECKPOINT.iter().any(|end| name.to_string_lossy().ends_with(end)))
    };
    let folder = if model.is_dir() { Some(model) } else { model.parent().filter(|_| is_one(model)) };
    folder.is_some_and(|folder| place.parent() == Some(folder)) && is_one(place) && place.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_compared_not_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["m.safetensors", "config.json", "other.json"] {
            std::fs::write(path(name), "text").unwrap();
        }
        std::os::unix::fs::symlink("m.safetensors", path("link")).unwrap();
        std::os::unix::fs::symlink("new.json", path("loose")).unwrap();
        let says = |model: &str, written: &[&str]| {
            let written: Vec<PathBuf> = written.iter().map(|name| path(name)).collect();
            let written: Vec<_> =
                ["--json", "--html"].into_iter().zip(written.iter().map(|path| Some(&**path))).collect();
            check(&[("MODEL", Some(&path(model))), ("--rules", None)], &written).err().map(|error| error.options)
        };
        let with_model = Some(["MODEL", "--json"]);
        for (model, written, expected) in [
            ("m.safetensors", &["m.safetensors"][..], with_model),
            ("link", &["m.safetensors"], with_model),
            ("m.safetensors", &["link"], with_model),
            ("m.safetensors", &["config.json"], with_model),
            ("", &["m.safetensors"], with_model),
            ("", &["config.json"], with_model),
            ("", &["other.json", "rank-0.safetensors"], None),
            ("other.json", &["config.json"], None),
            ("other.json", &["new.json", "loose"], Some(["--json", "--html"])),
            ("absent", &["absent"], None),
        ] {
            assert_eq!(says(model, written), expected, "{model} {written:?}");
        }
    }
}
