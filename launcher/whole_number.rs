//! Whole numbers of the command line. In: a word. Out: a number. Guarantee: what is no such number is refused with those
//! that are.

/// A number of 32 bits.
pub(crate) fn whole_number(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("give a whole number from 0 to {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        assert_eq!((whole_number("0"), whole_number("4294967295")), (Ok(0), Ok(u32::MAX)));
        for word in ["", "-1", "1.5", "4294967296", "three"] {
            assert_eq!(whole_number(word).unwrap_err(), "give a whole number from 0 to 4294967295", "{word}");
        }
    }
}
