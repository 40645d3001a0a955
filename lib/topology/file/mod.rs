//! Topologies in files.
//!
//! In: text of our own dump (JSON), an hwloc XML (version 2 or 3), an NCCL topology XML. Out: facts of the hosts in it.
//! Guarantee: the form is told by the contents; nothing in a file makes reading panic; what a form does not state is
//! left empty in the facts, and the source says which form it was.

mod dump;
mod hwloc_xml;
mod nccl_xml;
mod xml;

pub use dump::{from_json, to_json, to_json_with};
pub use hwloc_xml::from_hwloc_xml;
pub use nccl_xml::from_nccl_xml;

use super::facts::{FACTS_VERSION, HostFacts};
use crate::base::json::JsonError;
use thiserror::Error;

/// A text that is no topology.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// Not our JSON.
    #[error(
        "it is no topology in JSON; write one with crossmesh topo --json FILE, or give an hwloc XML or an NCCL topology XML"
    )]
    Json {
        /// Where and why.
        source: JsonError,
    },
    /// Facts that have no JSON form.
    #[error("facts of hosts cannot be put into JSON")]
    Encode {
        /// Why.
        source: serde_json::Error,
    },
    /// Our JSON of another version.
    #[error(
        "it is of version {version}; this crossmesh reads version {FACTS_VERSION}: write it again with crossmesh topo --json"
    )]
    Version {
        /// As written.
        version: u32,
    },
    /// Not XML.
    #[error("it is no XML that can be read")]
    Xml {
        /// Where and why.
        source: roxmltree::Error,
    },
    /// XML of something else.
    #[error("its XML begins with <{root}>; allowed: <topology> of hwloc 2 or later, <system> of NCCL")]
    Root {
        /// The outermost element.
        root: String,
    },
    /// An XML without what makes a topology.
    #[error("its XML has no {missing}; is the file cut off?")]
    Missing {
        /// What there is none of.
        missing: &'static str,
    },
    /// An attribute that cannot be read.
    #[error("attribute {name}={value:?} of <{element}> in line {line} is no {allowed}")]
    Attribute {
        /// The element.
        element: String,
        /// The attribute.
        name: &'static str,
        /// Its value.
        value: String,
        /// Line of the file, from 1.
        line: u32,
        /// What it may be.
        allowed: &'static str,
    },
}

/// Hosts of a topology in any of the forms.
pub fn parse(text: &str) -> Result<Vec<HostFacts>, FileError> {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if !start.starts_with('<') {
        return from_json(start);
    }
    let document = xml::document(start)?;
    match document.root_element().tag_name().name() {
        "topology" => Ok(vec![hwloc_xml::read(&document)?]),
        "system" => nccl_xml::read(&document),
        root => Err(FileError::Root { root: root.to_string() }),
    }
}
