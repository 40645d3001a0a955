//! Numbers of things for people. In: a number, the word for one. Out: `1 hop`, `2 hops`, `3 classes`. Guarantee: one thing
//! is never called several.

use std::fmt::Display;

/// A number of things, of which one is called `thing`.
pub(crate) fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, thing: &str) -> String {
    let ending = match thing {
        _ if number == N::from(1) => "",
        thing if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_several() {
        let texts = [0u64, 1, 2].map(|number| counted(number, "class"));
        assert_eq!(texts, ["0 classes", "1 class", "2 classes"]);
        assert_eq!((counted(1usize, "domain"), counted(3u32, "hop")), ("1 domain".into(), "3 hops".into()));
    }
}
