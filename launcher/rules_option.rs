//! The option --rules. In: the name of rules that come with the library, or the path of a file. Out: these rules in front
//! of the built-in ones. Guarantee: a name that is neither is an error that lists the names.

use crate::plain_file;
use crossmesh::layout::parallel::{Rules, RulesError};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Rules that cannot be read.
#[derive(Debug, Error)]
pub(crate) enum RulesOptionError {
    #[error("cannot read rules file {path:?}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Rules(#[from] RulesError),
}

/// Built-in rules behind what is given.
pub(crate) fn read(given: Option<&Path>) -> Result<Rules, RulesOptionError> {
    let embedded = Rules::embedded()?;
    let Some(path) = given else { return Ok(embedded) };
    // A word without dot or slash that is no file was meant as a name.
    let name = path.to_str().filter(|text| !text.contains(['.', '/']) && !path.exists());
    let rules = match name {
        Some(name) => Rules::family(name)?,
        None => {
            let text = plain_file::read_text(path)
                .map_err(|source| RulesOptionError::File { path: path.to_path_buf(), source })?;
            Rules::parse(&text, &path.display().to_string())?
        }
    };
    Ok(embedded.with_overrides(rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files() {
        assert_eq!(read(None).unwrap(), Rules::embedded().unwrap());
        assert_ne!(read(Some(Path::new("bert"))).unwrap(), Rules::embedded().unwrap());
        let error = read(Some(Path::new("berts"))).unwrap_err().to_string();
        assert!(error.contains("\"berts\"") && error.contains("bert, llama"), "{error}");
        let error = read(Some(Path::new("./berts"))).unwrap_err().to_string();
        assert!(error.contains("cannot read rules file"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine");
        std::fs::write(&file, "[[rule]]\nnames = [\"a\"]\ntp = 0\n").unwrap();
        assert!(read(Some(&file)).is_ok());
    }
}
