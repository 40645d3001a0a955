//! The options --rules and --expert-map. In: the name of rules that come with the library, or the path of a file; paths of
//! expert maps; rules that the model states. Out: the given rules in front of those of the model, or of the built-in ones
//! where it states none. Guarantee: a name that is neither is an error that lists
//! the names.

use crate::plain_file;
use crossmesh::layout::parallel::{ExpertFile, FuseSide, Rules, RulesError};
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
    #[error("cannot read expert map {path:?}")]
    ExpertMap {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Rules(#[from] RulesError),
}

/// The rules `of_model`, or where it has none the built-in ones, behind what is given.
pub(crate) fn read(given: Option<&Path>, of_model: Option<Rules>) -> Result<Rules, RulesOptionError> {
    let last = of_model.map_or_else(Rules::embedded, Ok)?;
    let Some(path) = given else { return Ok(last) };
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
    Ok(last.with_overrides(rules))
}

/// The same rules with the expert maps of either side.
pub(crate) fn with_expert_maps(
    mut rules: Rules,
    source: Option<&Path>,
    destination: Option<&Path>,
) -> Result<Rules, RulesOptionError> {
    for (side, path) in [(FuseSide::Source, source), (FuseSide::Destination, destination)] {
        let Some(path) = path else { continue };
        let text = plain_file::read_text(path)
            .map_err(|source| RulesOptionError::ExpertMap { path: path.to_path_buf(), source })?;
        let file = ExpertFile::parse(&text, &path.display().to_string()).map_err(RulesError::from)?;
        rules = rules.with_experts(side, file);
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files() {
        assert_eq!(read(None, None).unwrap(), Rules::embedded().unwrap());
        assert_ne!(read(Some(Path::new("bert")), None).unwrap(), Rules::embedded().unwrap());
        let error = read(Some(Path::new("berts")), None).unwrap_err().to_string();
        assert!(error.contains("\"berts\"") && error.contains("bert, llama"), "{error}");
        let error = read(Some(Path::new("./berts")), None).unwrap_err().to_string();
        assert!(error.contains("cannot read rules file"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine");
        std::fs::write(&file, "[[rule]]\nnames = [\"a\"]\ntp = 0\n").unwrap();
        assert!(read(Some(&file), None).is_ok());
    }
}
