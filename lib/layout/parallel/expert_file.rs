//! Expert maps as load balancers write them. In: JSON, `{"physical_to_logical_map": [[...], ...]}` or the list alone. Out:
//! [`ExpertFile`]. Guarantee: every layer with experts has one row or, behind the main stack, may have none.
//!
//! A row has the logical expert of every physical slot, as EPLB, vLLM and SGLang count them: slots are dealt out to the
//! ranks of `ep` in order, equally many to each. One row is for all layers; otherwise there is a row for every layer of
//! the model, or for every layer with experts, in order.

use super::expert_text::read_rows;
use std::collections::{BTreeSet, HashMap};
use thiserror::Error;

/// A file that holds no expert maps, or not those of a model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExpertFileError {
    /// Not the JSON of expert maps.
    #[error(
        "{origin} is no expert map; write {{\"physical_to_logical_map\": [[0, 1, ...], ...]}}, the logical expert of every slot \
         for each layer, or one list of them for all layers: {reason}"
    )]
    Unreadable {
        /// Where the text comes from.
        origin: String,
        /// What the JSON reader says.
        reason: String,
    },
    /// Rows for other layers than the model has.
    #[error(
        "expert map {origin} has {rows} rows; give one for all layers, one for each of the {with_experts} layers with experts \
         ({main} of them in the main stack), or one for each of the {layers} layers"
    )]
    Rows {
        /// Where the text comes from.
        origin: String,
        /// Its rows.
        rows: usize,
        /// Layers with experts.
        with_experts: usize,
        /// Those of them in the main stack.
        main: usize,
        /// All layers.
        layers: u64,
    },
    /// A model without experts.
    #[error(
        "expert map {origin} is given, and no rule finds an expert in model {model:?}; leave it out, or write rules with experts or ep"
    )]
    NoExperts {
        /// Where the text comes from.
        origin: String,
        /// The model.
        model: String,
    },
}

/// The slots of every layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertFile {
    origin: String,
    rows: Vec<Vec<u64>>,
}

impl ExpertFile {
    /// Reads a file; `origin` names it in messages, such as its path.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ExpertFileError> {
        let unreadable = |reason| ExpertFileError::Unreadable { origin: origin.to_string(), reason };
        match read_rows(text).map_err(|error| unreadable(error.to_string()))? {
            rows if rows.is_empty() => Err(unreadable("it has no row".to_string())),
            rows => Ok(Self { origin: origin.to_string(), rows }),
        }
    }

    /// Slots of row number `row`.
    pub(super) fn slots(&self, row: usize) -> &[u64] {
        &self.rows[row]
    }

    /// The row of every layer of `with_experts`, of a model whose main stack has `layers` layers. Layers behind the
    /// stack that have none are left out.
    pub(super) fn rows_of(
        &self,
        model: &str,
        with_experts: &BTreeSet<Option<u64>>,
        layers: u64,
    ) -> Result<HashMap<Option<u64>, usize>, ExpertFileError> {
        if with_experts.is_empty() {
            return Err(ExpertFileError::NoExperts { origin: self.origin.clone(), model: model.to_string() });
        }
        let rows = self.rows.len();
        let main = with_experts.iter().filter(|layer| layer.is_none_or(|layer| layer < layers));
        let all = with_experts.iter().flatten().max().map_or(layers, |&last| layers.max(last.saturating_add(1)));
        let in_order = |list: &mut dyn Iterator<Item = &Option<u64>>| list.copied().zip(0..).collect();
        match rows {
            1 => Ok(with_experts.iter().map(|&layer| (layer, 0)).collect()),
            _ if rows == with_experts.len() => Ok(in_order(&mut with_experts.iter())),
            _ if rows == main.clone().count() => Ok(in_order(&mut main.clone())),
            _ if (rows as u64 == layers || rows as u64 == all) && !with_experts.contains(&None) => {
                let row =
                    |layer: &Option<u64>| Some((*layer, usize::try_from((*layer)?).ok().filter(|&row| row < rows)?));
                Ok(with_experts.iter().filter_map(row).collect())
            }
            _ => {
                let (with_experts, main) = (with_experts.len(), main.count());
                Err(ExpertFileError::Rows { origin: self.origin.clone(), rows, with_experts, main, layers: all })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, with_experts: &[u64], layers: u64) -> Result<Vec<(u64, usize)>, ExpertFileError> {
        let with_experts = with_experts.iter().map(|&layer| Some(layer)).collect();
        let rows = ExpertFile::parse(text, "map.json")?.rows_of("m", &with_experts, layers)?;
        let mut rows: Vec<(u64, usize)> = rows.into_iter().filter_map(|(layer, row)| Some((layer?, row))).collect();
        rows.sort_unstable();
        Ok(rows)
    }

    #[test]
    fn rows_are_those_of_layers() {
        let one = "[1, 0, 2]";
        assert_eq!(rows(one, &[3, 4], 5).unwrap(), [(3, 0), (4, 0)]);
        assert_eq!(rows("{\"physical_to_logical_map\": [0, 1]}", &[0], 1).unwrap(), [(0, 0)]);
        assert_eq!(rows("{\"physical_to_logical_map\": [[0], [0]]}", &[3, 4], 5).unwrap(), [(3, 0), (4, 1)]);
        assert_eq!(rows("[[0], [0], [0]]", &[1, 2], 3).unwrap(), [(1, 1), (2, 2)]);
        // Layer 3 predicts, behind a stack of three: with a row or without.
        assert_eq!(rows("[[0], [0]]", &[1, 2, 3], 3).unwrap(), [(1, 0), (2, 1)]);
        assert_eq!(rows("[[0], [0], [0]]", &[1, 2, 3], 3).unwrap(), [(1, 0), (2, 1), (3, 2)]);
        assert_eq!(rows("[[0], [0], [0], [0]]", &[1, 2, 3], 3).unwrap(), [(1, 1), (2, 2), (3, 3)]);
    }

    #[test]
    fn bad_files() {
        for text in ["", "{}", "[]", "[-1]", "[[0], 1]", "{\"physical_to_logical_map\": [0], \"more\": 1}", "[0.5]"] {
            let error = rows(text, &[0], 1).unwrap_err();
            assert!(matches!(&error, ExpertFileError::Unreadable { .. }), "{text}: {error}");
            assert!(error.to_string().contains("map.json"), "{error}");
        }
        for (text, part) in [
            (
                "{\"physical_to_logical_map\": [0], \"more\": 1}",
                "unknown field `more`, expected `physical_to_logical_map`",
            ),
            ("{\"physical_to_logical_map\": [0], \"physical_to_logical_map\": [0]}", "duplicate field"),
            ("{}", "missing field `physical_to_logical_map`"),
            (
                "[-1]",
                "integer `-1`, expected the number of an expert, counted from 0, or a list of them at line 1 column 3",
            ),
            ("[[1, -2]]", "integer `-2`, expected the number of an expert, counted from 0"),
            ("[0.5]", "floating point `0.5`, expected the number of an expert"),
            ("[[0], 1]", "expert 1 stands beside lists"),
            ("[1, [0]]", "a list stands beside numbers of experts"),
            ("[]", "it has no row"),
            ("7", "integer `7`, expected a list of numbers of experts, or one for each layer"),
        ] {
            let error = rows(text, &[0], 1).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("enum") && !error.contains("u64"), "{text}: {error}");
        }
        let error = rows("[[0], [0]]", &[1, 2, 3], 7).unwrap_err().to_string();
        assert!(
            error.contains("2 rows") && error.contains("3 layers with experts") && error.contains("7 layers"),
            "{error}"
        );
        assert!(matches!(rows("[0]", &[], 3), Err(ExpertFileError::NoExperts { .. })));
    }
}
