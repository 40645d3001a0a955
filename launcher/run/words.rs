//! Words of a shell command line, both ways.
//!
//! In: a text with quotes, or a list of words. Out: the list, or the text. Guarantee: pure; splitting a quoted word
//! gives the word back.

use std::ffi::OsStr;

/// Splits at white space; `'…'`, `"…"` and `\x` keep characters together. `None` when a quote is not closed.
pub(crate) fn split(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            quote @ ('\'' | '"') => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        end if end == quote => break,
                        '\\' if quote == '"' => word.push(characters.next()?),
                        inside => word.push(inside),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(characters.next()?),
            space if space.is_whitespace() => words.extend(word.take()),
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Some(words)
}

/// `word` as a shell reads it back.
pub(crate) fn quote(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split() {
        let table: [(&str, Option<&[&str]>); 7] = [
            ("", Some(&[])),
            ("  --mca btl\tself,tcp ", Some(&["--mca", "btl", "self,tcp"])),
            (r#"-x 'A B' "c \" d" e\ f"#, Some(&["-x", "A B", "c \" d", "e f"])),
            ("a'b'\"c\"", Some(&["abc"])),
            ("''", Some(&[""])),
            ("'open", None),
            ("end\\", None),
        ];
        for (text, words) in table {
            let words = words.map(|words| words.iter().map(|word| word.to_string()).collect::<Vec<_>>());
            assert_eq!(split(text), words, "{text}");
        }
    }

    #[test]
    fn quoting_is_undone_by_splitting() {
        for word in ["plain-1.2/x", "", "a b", "it's", "$HOME `x` \"y\" \\", "*"] {
            assert_eq!(split(&quote(OsStr::new(word))), Some(vec![word.to_string()]), "{word}");
        }
        assert_eq!(quote(OsStr::new("--n=4")), "--n=4");
    }
}
