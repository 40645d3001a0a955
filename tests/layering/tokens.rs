//! Rust source as tokens, as far as the layering rules need it.
//!
//! In: the text of a source file. Out: words, string literals and punctuation with their lines. Guarantee: nothing in a
//! comment becomes a token, nothing in a string becomes a word; any text ends in some tokens, never in a panic.

/// What a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier or keyword.
    Word(String),
    /// The contents of a string literal, escapes as written.
    Text(String),
    /// `::`.
    Path,
    /// Any other character that is not white space.
    Mark(char),
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Counted from 1.
    pub(super) line: usize,
}

impl Token {
    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(found) if found == word)
    }

    pub(super) fn is_mark(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

/// The tokens of `source`.
pub(super) fn tokens(source: &str) -> Vec<Token> {
    Scanner { rest: source, line: 1, found: Vec::new() }.run()
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    found: Vec<Token>,
}

impl Scanner<'_> {
    fn run(mut self) -> Vec<Token> {
        while let Some(next) = self.rest.chars().next() {
            if next.is_whitespace() {
                self.skip(next.len_utf8());
            } else if self.rest.starts_with("//") {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.skip(block_comment(self.rest));
            } else if let Some(string) = string_literal(self.rest) {
                let text = self.rest[string.contents].to_string();
                self.push(Kind::Text(text), string.length);
            } else if next == '\'' {
                self.push(Kind::Mark(next), character_or_lifetime(self.rest));
            } else if is_word(next) {
                let length = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
                let word = self.rest[..length].to_string();
                self.push(Kind::Word(word), length);
            } else if self.rest.starts_with("::") {
                self.push(Kind::Path, 2);
            } else {
                self.push(Kind::Mark(next), next.len_utf8());
            }
        }
        self.found
    }

    fn push(&mut self, kind: Kind, length: usize) {
        self.found.push(Token { kind, line: self.line });
        self.skip(length);
    }

    fn skip(&mut self, length: usize) {
        let (passed, rest) = self.rest.split_at(length);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Length of the block comment that `text` begins with; block comments nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

struct StringLiteral {
    contents: std::ops::Range<usize>,
    length: usize,
}

/// The string literal that `text` begins with: plain, byte, C or raw.
fn string_literal(text: &str) -> Option<StringLiteral> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        text.strip_prefix(prefix).is_some_and(|rest| {
            rest.starts_with('"') || (prefix.ends_with('r') && rest.trim_start_matches('#').starts_with('"'))
        })
    })?;
    if prefix.ends_with('r') {
        let hashes = text[prefix.len()..].len() - text[prefix.len()..].trim_start_matches('#').len();
        let start = prefix.len() + hashes + 1;
        let close = format!("\"{}", "#".repeat(hashes));
        let end = text[start..].find(&close).map_or(text.len(), |found| start + found);
        return Some(StringLiteral { contents: start..end, length: (end + close.len()).min(text.len()) });
    }
    let start = prefix.len() + 1;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(StringLiteral { contents: start..at, length: at + 1 }),
            _ => {}
        }
    }
    Some(StringLiteral { contents: start..text.len(), length: text.len() })
}

/// Length of the character literal or of the `'` of the lifetime that `text` begins with.
fn character_or_lifetime(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    let Some((_, first)) = characters.next() else { return text.len() };
    if first == '\\' {
        characters.next();
        return characters.find(|&(_, c)| c == '\'').map_or(text.len(), |(at, _)| at + 1);
    }
    match characters.next() {
        Some((at, '\'')) => at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        let word = |token: Token| match token.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        };
        tokens(source).into_iter().filter_map(word).collect()
    }

    #[test]
    fn comments_and_strings_hide_words() {
        for source in [
            "// unsafe\na",
            "/// unsafe\na",
            "/* unsafe /* nested */ unsafe */ a",
            "\"unsafe \\\" unsafe\" a",
            "r\"unsafe\\\" a",
            "r#\"unsafe \" unsafe\"# a",
            "br##\"unsafe \"# unsafe\"## a",
            "b\"unsafe\" a",
            "'\"' a '\"'",
            "'\\'' a '\\u{41}'",
            "'é' a",
        ] {
            assert_eq!(words(source), ["a"], "{source}");
        }
        assert_eq!(words("&'static str"), ["static", "str"]);
        assert_eq!(words("r#type + radius"), ["r", "type", "radius"]);
    }

    #[test]
    fn unfinished_text_ends() {
        for source in ["/*", "/* /* */", "\"a", "\"a\\", "r##\"a\"#", "r\"", "'", "'\\", "'\\n", "b\""] {
            assert!(words(source).is_empty(), "{source}");
        }
    }

    #[test]
    fn lines_and_texts() {
        let found = tokens("a::b\n\"x\ny\" /*\n*/ c!");
        let lines: Vec<_> = found.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 1, 1, 2, 4, 4]);
        assert_eq!(found[1].kind, Kind::Path);
        assert_eq!(found[3].kind, Kind::Text("x\ny".to_string()));
        assert!(found[4].is_word("c") && found[5].is_mark('!'));
    }
}
