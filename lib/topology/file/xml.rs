//! Reading attributes. In: an XML document. Out: typed values. Guarantee: a value that cannot be read is an error that
//! says element, line and what is allowed; nothing is fetched from outside the document.

use super::FileError;
use roxmltree::{Document, Node, NodeId, ParsingOptions};
use std::collections::HashMap;
use std::str::FromStr;

/// Reads XML; a document type is allowed, as hwloc writes one, and not looked at.
pub(super) fn document(text: &str) -> Result<Document<'_>, FileError> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|source| FileError::Xml { source })
}

/// All elements, parents before children.
pub(super) fn elements<'a, 'input>(document: &'a Document<'input>) -> impl Iterator<Item = Node<'a, 'input>> {
    document.root_element().descendants().filter(Node::is_element)
}

/// Text of attribute `name`, `None` when it is not there or empty.
pub(super) fn text<'a>(node: &Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.attribute(name).map(str::trim).filter(|text| !text.is_empty())
}

/// Attribute `name`, `None` when it is not there.
pub(super) fn value<T: FromStr>(
    node: &Node<'_, '_>,
    name: &'static str,
    allowed: &'static str,
) -> Result<Option<T>, FileError> {
    read(node, name, allowed, |text| text.parse().ok())
}

/// Attribute `name` as `parse` reads it, `None` when it is not there.
pub(super) fn read<T>(
    node: &Node<'_, '_>,
    name: &'static str,
    allowed: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, FileError> {
    let Some(text) = text(node, name) else { return Ok(None) };
    parse(text).map(Some).ok_or_else(|| FileError::Attribute {
        element: node.tag_name().name().to_string(),
        name,
        value: text.to_string(),
        line: node.document().text_pos_at(node.range().start).row,
        allowed,
    })
}

/// A hexadecimal number with or without `0x`.
pub(super) fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// What children take over from the elements around them, kept while elements come parents first.
#[derive(Debug)]
pub(super) struct Inherited<T>(HashMap<NodeId, T>);

impl<T: Clone + Default> Inherited<T> {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// What the element around `node` leaves to it.
    pub(super) fn of(&self, node: &Node<'_, '_>) -> T {
        node.parent().and_then(|parent| self.0.get(&parent.id())).cloned().unwrap_or_default()
    }

    /// What `node` leaves to its children.
    pub(super) fn leave(&mut self, node: &Node<'_, '_>, value: T) {
        self.0.insert(node.id(), value);
    }
}
