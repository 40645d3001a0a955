//! Results apart from what is read and from each other. In: options with their paths. Out: nothing, or the first two that
//! name one place. Guarantee: links are followed; of a model all files that are read with it count.

use crate::checkpoint::files_read;
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

/// Options that name a model: with it other files are read.
const MODELS: [&str; 2] = ["MODEL", "--model"];

/// Refuses a path of `written` in the place of one before it, or of a file that is read.
pub(crate) fn check(
    read: &[(&'static str, Option<&Path>)],
    written: &[(&'static str, Option<&Path>)],
) -> Result<(), SameFile> {
    let mut taken: Vec<(&'static str, PathBuf)> = Vec::new();
    for &(option, path) in read {
        let Some(path) = path.filter(|path| path.exists()) else { continue };
        let files = if MODELS.contains(&option) { files_read(path) } else { vec![path.to_path_buf()] };
        taken.extend(files.iter().map(|file| (option, result_file::place(file))));
    }
    for &(option, path) in written {
        let Some(path) = path else { continue };
        let place = result_file::place(path);
        if let Some(&(other, _)) = taken.iter().find(|(_, taken)| *taken == place) {
            return Err(SameFile { options: [other, option], path: path.to_path_buf() });
        }
        taken.push((option, place));
    }
    Ok(())
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
            ("other.json", &["config.json"], with_model),
            ("other.json", &["new.json", "loose"], Some(["--json", "--html"])),
            ("absent", &["absent"], None),
        ] {
            assert_eq!(says(model, written), expected, "{model} {written:?}");
        }
    }

    /// A folder of links into another one, as the cache of a hub has them, and shards that an index lists.
    #[test]
    fn whatever_is_read_with_a_model_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("blobs")).unwrap();
        std::fs::create_dir_all(path("snap")).unwrap();
        for (blob, name) in [("a", "model.safetensors"), ("b", "config.json")] {
            std::fs::write(path("blobs").join(blob), "text").unwrap();
            std::os::unix::fs::symlink(path("blobs").join(blob), path("snap").join(name)).unwrap();
        }
        std::fs::create_dir_all(path("parts")).unwrap();
        let index = r#"{"weight_map": {"x": "rank-1.safetensors", "y": "rank-1.safetensors"}}"#;
        std::fs::write(path("parts/m.safetensors.index.json"), index).unwrap();
        for shard in ["rank-1.safetensors", "rank-2.safetensors"] {
            std::fs::write(path("parts").join(shard), "text").unwrap();
        }
        let is_refused = |model: &str, written: &str| {
            check(&[("--model", Some(&path(model)))], &[("--save", Some(&path(written)))]).is_err()
        };
        for model in ["snap", "snap/model.safetensors"] {
            for written in ["snap/model.safetensors", "blobs/a", "snap/config.json", "blobs/b"] {
                assert!(is_refused(model, written), "{model} {written}");
            }
            assert!(!is_refused(model, "snap/plan.json") && !is_refused(model, "blobs/c"));
        }
        for model in ["parts", "parts/m.safetensors.index.json"] {
            assert!(is_refused(model, "parts/rank-1.safetensors"), "{model}");
            assert!(is_refused(model, "parts/m.safetensors.index.json"), "{model}");
            assert!(!is_refused(model, "parts/rank-2.safetensors"), "{model}: an earlier result");
        }
        // Other files have nothing beside them.
        let rules = [("--rules", Some(&*path("snap/model.safetensors")))];
        assert!(check(&rules, &[("--json", Some(&path("snap/config.json")))]).is_ok());
        let both = [("--json", Some(&*path("snap/config.json"))), ("--html", Some(&*path("snap/new.safetensors")))];
        assert!(check(&[], &both).is_ok());
    }
}
