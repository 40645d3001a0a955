//! Names from files on terminals. In: any text. Out: the same with what moves the cursor or hides escaped. Guarantee: one
//! line of visible characters; ordinary names are as they were.

use crate::counted::counted;

/// Names that [`some_tensors`] lists.
const SHOWN: usize = 5;

/// Text as it may stand on a terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\'' | '\\' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}

/// `7 tensors: ` and the first names.
pub(crate) fn some_tensors(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| printable(name)).collect();
    let more = if names.len() > SHOWN { ", … (--json lists all)" } else { "" };
    format!("{}: {}{more}", counted(names.len(), "tensor"), shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_the_cursor_is_escaped() {
        assert_eq!(printable("a.b\"c\\d größe 権"), "a.b\"c\\d größe 権");
        assert_eq!(printable("\u{1b}[2J\nx\ty\u{202e}"), "\\u{1b}[2J\\nx\\ty\\u{202e}");
        let names: Vec<String> = (0..6).map(|index| format!("{index}\r")).collect();
        assert_eq!(some_tensors(&names[..1]), "1 tensor: 0\\r");
        let listed = "6 tensors: 0\\r, 1\\r, 2\\r, 3\\r, 4\\r, … (--json lists all)";
        assert_eq!(some_tensors(&names), listed);
    }
}
