//! JSON objects without repeated keys. In: a serde map. Out: its entries in order. Guarantee: a repeated key is an
//! error that names it, where a plain map would keep the last value and hide the first.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

/// Entries of a JSON object in file order, every key once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UniqueKeys<V>(pub Vec<(String, V)>);

/// Hands every key of `map` to `entry`, which reads the value.
pub fn visit_unique<'de, A: MapAccess<'de>>(
    map: &mut A,
    mut entry: impl FnMut(&mut A, &str) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    let mut seen = HashSet::new();
    while let Some(key) = map.next_key::<String>()? {
        if seen.contains(&key) {
            return Err(A::Error::custom(format_args!("key {key:?} stands twice; each may stand once")));
        }
        entry(map, &key)?;
        seen.insert(key);
    }
    Ok(())
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueKeys<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueKeys<V>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                visit_unique(&mut map, |map, key| {
                    entries.push((key.to_string(), map.next_value()?));
                    Ok(())
                })?;
                Ok(UniqueKeys(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_are_named() {
        let read = |text: &str| serde_json::from_str::<UniqueKeys<u64>>(text).map_err(|error| error.to_string());
        assert_eq!(read(r#"{"b": 1, "a": 2}"#), Ok(UniqueKeys(vec![("b".into(), 1), ("a".into(), 2)])));
        assert_eq!(read("{}"), Ok(UniqueKeys(vec![])));
        let error = read(r#"{"a": 1, "b": 2, "a": 1}"#).unwrap_err();
        assert!(error.contains("key \"a\" stands twice"), "{error}");
        assert!(read(r#"{"a": -1}"#).unwrap_err().contains("-1"));
        assert!(read("[1]").unwrap_err().contains("an object"));
    }
}
