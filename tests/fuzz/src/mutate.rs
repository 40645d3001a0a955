//! Mutations. In: a number to begin with, valid inputs. Out: inputs that are nearly valid. Guarantee: equal numbers give
//! equal inputs on every machine.

/// Changes bytes at random.
#[derive(Debug, Clone)]
pub struct Mutator(u64);

/// What files and messages are made of, and numbers at the ends of their ranges.
const TOKENS: [&[u8]; 22] = [
    b"0",
    b"-1",
    b"1e308",
    b"4294967295",
    b"18446744073709551615",
    b"null",
    b"\"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b"<",
    b"/>",
    b",",
    b":",
    b"=",
    b"*",
    b"\\u0000",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x10",
];

impl Mutator {
    /// Mutations that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `limit`, or 0 (splitmix64).
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit.max(1) as u64) as usize
    }

    /// One of `seeds` with one to four changes.
    pub fn mutated(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = seeds.get(self.below(seeds.len())).cloned().unwrap_or_default();
        for _ in 0..=self.below(4) {
            let other = &seeds[self.below(seeds.len())];
            self.change(&mut bytes, other);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << self.below(8);
                }
            }
            2 => {
                let end = (at + 1 + self.below(8)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            3 => {
                let token = TOKENS[self.below(TOKENS.len())];
                bytes.splice(at..at, token.iter().copied());
            }
            4 => self.replace_number(bytes, at),
            5 => {
                let end = (at + self.below(64)).min(bytes.len());
                let copied = bytes[at..end].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, copied);
            }
            6 => {
                let from = self.below(other.len() + 1);
                let end = (from + self.below(64)).min(other.len());
                bytes.splice(at..at, other[from..end].iter().copied());
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = self.below(256) as u8;
                }
            }
        }
    }

    /// Puts another number in the place of the first after `at`.
    fn replace_number(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let Some(skipped) = bytes[at..].iter().position(u8::is_ascii_digit) else { return };
        let start = at + skipped;
        let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let small = self.below(40).to_string();
        let numbers = [small.as_bytes(), TOKENS[0], TOKENS[1], TOKENS[2], TOKENS[3], TOKENS[4]];
        let number = numbers[self.below(numbers.len())].to_vec();
        bytes.splice(start..start + length, number);
    }
}
