//! The JSON of expert maps. In: a text. Out: rows of numbers of experts. Guarantee: what is wrong is said with the key or
//! value and its place.

use crate::base::json::{self, JsonError};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;

/// The rows of a text: those of the object, or the list alone; one list of numbers is one row.
pub(super) fn read_rows(text: &str) -> Result<Vec<Vec<u64>>, JsonError> {
    let Rows(rows) = match text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        true => json::read::<Named>(text)?.physical_to_logical_map,
        false => json::read(text)?,
    };
    Ok(rows)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    physical_to_logical_map: Rows,
}

struct Rows(Vec<Vec<u64>>);

/// An expert, which may not be a list.
struct Expert(u64);

/// What stands in a list.
enum Item {
    Expert(u64),
    Row(Vec<u64>),
}

struct RowsVisitor;

struct ExpertVisitor;

struct ItemVisitor;

impl<'de> Deserialize<'de> for Rows {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RowsVisitor)
    }
}

impl<'de> Deserialize<'de> for Expert {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExpertVisitor)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

impl<'de> Visitor<'de> for RowsVisitor {
    type Value = Rows;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of numbers of experts, or one for each layer")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Rows, A::Error> {
        let (mut rows, mut all) = (Vec::new(), Vec::new());
        while let Some(item) = list.next_element()? {
            match item {
                Item::Expert(expert) if !rows.is_empty() => {
                    return Err(A::Error::custom(format_args!(
                        "expert {expert} stands beside lists; give numbers of experts or lists of them, not both"
                    )));
                }
                Item::Row(_) if !all.is_empty() => {
                    return Err(A::Error::custom(
                        "a list stands beside numbers of experts; give numbers of experts or lists of them, not both",
                    ));
                }
                Item::Expert(expert) => all.push(expert),
                Item::Row(row) => rows.push(row),
            }
        }
        if !all.is_empty() {
            rows.push(all);
        }
        Ok(Rows(rows))
    }
}

impl Visitor<'_> for ExpertVisitor {
    type Value = Expert;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the number of an expert, counted from 0")
    }

    fn visit_u64<E: Error>(self, expert: u64) -> Result<Expert, E> {
        Ok(Expert(expert))
    }
}

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the number of an expert, counted from 0, or a list of them")
    }

    fn visit_u64<E: Error>(self, expert: u64) -> Result<Item, E> {
        Ok(Item::Expert(expert))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Item, A::Error> {
        let mut row = Vec::new();
        while let Some(Expert(expert)) = list.next_element()? {
            row.push(expert);
        }
        Ok(Item::Row(row))
    }
}
