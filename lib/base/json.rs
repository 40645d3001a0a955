//! JSON that people write. In: a text. Out: a value, or what is wrong. Guarantee: an error says where, as a path of keys and
//! as line and column, and what is allowed in words, not in the names of types.

use serde::de::DeserializeOwned;
use std::fmt;

/// A byte order mark.
const MARK: &[u8] = "\u{feff}".as_bytes();
/// Keys and indices that are told, and letters of each key.
const MOST_LEVELS: usize = 8;
const MOST_LETTERS: usize = 120;

/// A text that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    /// Keys and indices of the value, from the outside; empty for the whole text.
    place: String,
    /// What is wrong and what is allowed.
    reason: String,
    line: usize,
    column: usize,
}

impl std::error::Error for JsonError {}

impl fmt::Display for JsonError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, reason, line, column } = self;
        let colon = if place.is_empty() { "" } else { ": " };
        write!(formatter, "{place}{colon}{reason} at line {line} column {column}")
    }
}

/// Reads a value.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T, JsonError> {
    read_bytes(text.as_bytes())
}

/// Reads a value; bytes that are no text are an error, too.
pub fn read_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    // Editors of some systems put a mark in front that is no part of the text.
    let bytes = bytes.strip_prefix(MARK).unwrap_or(bytes);
    serde_json::from_slice(bytes).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let text = error.to_string();
        let reason = plain(text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text));
        let before = bytes.split(|&byte| byte == b'\n').take(line.saturating_sub(1)).map(|line| line.len() + 1);
        let read = before.sum::<usize>().saturating_add(column).min(bytes.len());
        JsonError { place: place(&bytes[..read], &reason), reason, line, column }
    })
}

/// What a reader says, in words that name no types.
pub fn plain(reason: &str) -> String {
    let (found, expected) = reason.rsplit_once("expected ").unwrap_or((reason, ""));
    let found = found.replace("invalid type: sequence", "invalid type: list").replace("type: map", "type: object");
    let number = |least: i128, most: i128| format!("a whole number from {least} to {most}");
    let expected = match expected {
        "" => return found,
        "u8" => number(0, u8::MAX.into()),
        "u16" => number(0, u16::MAX.into()),
        "u32" => number(0, u32::MAX.into()),
        "u64" | "usize" => number(0, u64::MAX.into()),
        "i32" => number(i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => number(i64::MIN.into(), i64::MAX.into()),
        "f64" | "f32" => "a number".into(),
        "a sequence" => "a list".into(),
        "a map" => "an object".into(),
        other => other.to_string(),
    };
    format!("{found}expected {expected}")
}

/// A list or object that is open.
enum Level {
    /// The number of the entry.
    List(u64),
    /// The key, once it was read.
    Object(Option<String>),
}

/// The value in whose middle, or behind which, a text ends.
fn place(read: &[u8], reason: &str) -> String {
    let mut levels: Vec<Level> = Vec::new();
    let mut rest = read;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        match (byte, levels.last_mut()) {
            (b'{', _) => levels.push(Level::Object(None)),
            (b'[', _) => levels.push(Level::List(0)),
            (b'}' | b']', _) => drop(levels.pop()),
            (b',', Some(Level::List(number))) => *number += 1,
            (b',', Some(Level::Object(key))) => *key = None,
            (b'"', level) => {
                let length = string_length(rest);
                let (string, behind) = rest.split_at(length);
                rest = behind.get(1..).unwrap_or_default();
                if let Some(Level::Object(key @ None)) = level {
                    *key = Some(String::from_utf8_lossy(string).into_owned());
                }
            }
            _ => {}
        }
    }
    // An unknown key stands in the reason.
    if let Some(Level::Object(key)) = levels.last_mut()
        && key.as_ref().is_some_and(|key| reason.contains(&format!("field `{key}`")))
    {
        *key = None;
    }
    let mut place = levels.iter().take(MOST_LEVELS).fold(String::new(), add);
    if levels.len() > MOST_LEVELS {
        place.push('…');
    }
    place
}

/// A path of keys with one level more.
fn add(mut place: String, level: &Level) -> String {
    match level {
        Level::List(number) => place.push_str(&format!("[{number}]")),
        Level::Object(None) => {}
        Level::Object(Some(key)) => {
            if !place.is_empty() {
                place.push('.');
            }
            let is_word = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') && !key.is_empty();
            let short: String = key.chars().take(MOST_LETTERS).collect();
            let rest = if short.len() < key.len() { "…" } else { "" };
            place.push_str(&if is_word { short } else { format!("{short:?}") });
            place.push_str(rest);
        }
    }
    place
}

/// Bytes before the quotation mark that ends a string.
fn string_length(text: &[u8]) -> usize {
    let mut escaped = false;
    let end = text.iter().position(|&byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, expecting = "an object with shape and axis")]
    struct Entry {
        #[serde(rename = "shape")]
        _shape: Vec<u64>,
        #[serde(rename = "axis")]
        _axis: Option<i64>,
    }

    fn error(text: &str) -> String {
        read::<BTreeMap<String, Vec<Entry>>>(text).unwrap_err().to_string()
    }

    #[test]
    fn errors_say_where_and_what_is_allowed() {
        let whole = "expected a whole number from 0 to 18446744073709551615";
        for (text, expected) in [
            (r#"{"a.b": [{"shape": [2, -4]}]}"#, format!("\"a.b\"[0].shape[1]: invalid value: integer `-4`, {whole}")),
            (r#"{"a": [{"shape": []}, {"shape": [1.5]}]}"#, format!("a[1].shape[0]: invalid type: floating point `1.5`, {whole}")),
            (r#"{"x\"]": [{"shape": ["2"]}]}"#, format!(r#""x\\\"]"[0].shape[0]: invalid type: string "2", {whole}"#)),
            (r#"{"a": [{"shape": {}}]}"#, "a[0].shape: invalid type: object, expected a list".into()),
            (r#"{"a": [{"shape": [], "axes": 1}]}"#, "a[0]: unknown field `axes`, expected `shape` or `axis`".into()),
            (r#"{"a": [{"axis": 1}]}"#, "a[0]: missing field `shape`".into()),
            (r#"{"a": [[1]]}"#, "a[0][0]: invalid type: integer `1`, expected a list".into()),
            ("{\"a\": [\n{\"shape\": []},\n 7]}", "a[1]: invalid type: integer `7`, expected an object with shape and axis at line 3".into()),
            (r#"{"a": [{"shape": [], "axis": 9223372036854775808}]}"#, "a[0].axis: invalid value: integer `9223372036854775808`, expected a whole number from -9223372036854775808 to".into()),
            ("[]", "invalid type: list, expected an object at line 1 column 0".into()),
            ("", "EOF while parsing a value at line 1 column 0".into()),
            (r#"{"a": [{"shape": [1,"#, "a[0].shape[1]: EOF while parsing".into()),
        ] {
            assert!(error(text).starts_with(&expected), "{text}: {} instead of {expected}", error(text));
        }
        let (deep, long) = ("[".repeat(100), format!("{{\"{}\": 1}}", "a".repeat(1 << 12)));
        assert!(error(&format!("{{\"a\": {deep}")).starts_with("a[0][0]"));
        assert!(
            read::<serde_json::Value>(&deep).unwrap_err().to_string().starts_with("[0][0][0][0][0][0][0][0]…: EOF")
        );
        assert!(error(&long).len() < 300);
        assert_eq!(read("\u{feff}[1, 2]"), Ok(vec![1, 2]));
        assert!(read_bytes::<Vec<String>>(b"[\"a\", \"\xff\"]").unwrap_err().to_string().starts_with("[1]: invalid"));
    }

    #[test]
    fn words_take_the_place_of_types() {
        assert_eq!(
            plain("invalid type: map, expected u8"),
            "invalid type: object, expected a whole number from 0 to 255"
        );
        assert_eq!(plain("expected value"), "expected value");
        assert_eq!(plain("trailing comma"), "trailing comma");
    }
}
