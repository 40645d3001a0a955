//! Our own topology files. In: hosts, or JSON. Out: JSON, or hosts. Guarantee: what is written is read back equal; a
//! file of a later version, or one that is no topology, is refused with what is wrong.

use super::FileError;
use crate::base::json;
use crate::topology::facts::{FACTS_VERSION, HostFacts};
use serde::{Deserialize, Serialize};

/// What a topology file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Dump<H> {
    version: u32,
    hosts: H,
}

/// The version alone, so that a later form is named as such whatever else changed.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// JSON of `hosts`.
pub fn to_json(hosts: &[HostFacts]) -> Result<String, FileError> {
    let dump = Dump { version: FACTS_VERSION, hosts };
    serde_json::to_string_pretty(&dump).map(|text| text + "\n").map_err(|source| FileError::Encode { source })
}

/// JSON of `hosts` with `extra` beside them, which readers of topology files pass over.
pub fn to_json_with(hosts: &[HostFacts], name: &str, extra: &impl Serialize) -> Result<String, FileError> {
    let failed = |source| FileError::Encode { source };
    let dump = Dump { version: FACTS_VERSION, hosts };
    let mut value = serde_json::to_value(&dump).map_err(failed)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert(name.to_string(), serde_json::to_value(extra).map_err(failed)?);
    }
    serde_json::to_string_pretty(&value).map(|text| text + "\n").map_err(failed)
}

/// Hosts of a topology file.
pub fn from_json(text: &str) -> Result<Vec<HostFacts>, FileError> {
    let Versioned { version } = json::read(text).map_err(|source| FileError::Json { source })?;
    if version != FACTS_VERSION {
        return Err(FileError::Version { version });
    }
    let dump: Dump<Vec<HostFacts>> = json::read(text).map_err(|source| FileError::Json { source })?;
    Ok(dump.hosts)
}
