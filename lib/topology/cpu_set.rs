//! Sets of processors or NUMA nodes. In: kernel lists (`0-3,8`), hexadecimal masks of hwloc and NCCL. Out: [`CpuSet`].
//! Guarantee: ranges stay sorted, apart and as few as can be, so that equal sets are equal values.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A text that is no set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no set of processors; write numbers and ranges such as 0-3,8")]
pub struct CpuSetError {
    /// As given.
    pub text: String,
}

/// A set of processor numbers; written as the kernel does: `0-3,8`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet {
    /// Inclusive ranges, ascending, with a gap between any two.
    ranges: Vec<(u32, u32)>,
}

impl CpuSet {
    /// The numbers `first` to `last`, both included.
    pub fn range(first: u32, last: u32) -> Self {
        Self::from_ranges(vec![(first, last)])
    }

    fn from_ranges(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.retain(|&(first, last)| first <= last);
        ranges.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match joined.last_mut() {
                Some((_, end)) if u64::from(first) <= u64::from(*end) + 1 => *end = last.max(*end),
                _ => joined.push((first, last)),
            }
        }
        Self { ranges: joined }
    }

    /// A mask of 32-bit words, most significant first: `0x00000003,,0xffffffff` or `00000000,000000ff`; an empty word
    /// is 0.
    pub fn from_mask(text: &str) -> Result<Self, CpuSetError> {
        let error = || CpuSetError { text: text.to_string() };
        let mut ranges = Vec::new();
        for (position, word) in text.trim().rsplit(',').enumerate() {
            let digits = word.trim().trim_start_matches("0x");
            let bits = match digits {
                "" => 0,
                // hwloc puts all ones in front of a set without end.
                _ => u32::from_str_radix(digits, 16).map_err(|_| error())?,
            };
            let base = u32::try_from(position).ok().and_then(|position| position.checked_mul(32)).ok_or_else(error)?;
            ranges.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| (base + bit, base + bit)));
        }
        Ok(Self::from_ranges(ranges))
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many numbers are in it.
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|&(first, last)| u64::from(last) - u64::from(first) + 1).sum()
    }

    /// Whether `number` is in it.
    pub fn contains(&self, number: u32) -> bool {
        self.ranges.iter().any(|&(first, last)| (first..=last).contains(&number))
    }

    /// Its numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// What is in both.
    pub fn intersection(&self, other: &Self) -> Self {
        let both = self
            .ranges
            .iter()
            .flat_map(|&(first, last)| other.ranges.iter().map(move |&(begin, end)| (first.max(begin), last.min(end))));
        Self::from_ranges(both.collect())
    }

    /// What is in either.
    pub fn union(&self, other: &Self) -> Self {
        Self::from_ranges(self.ranges.iter().chain(&other.ranges).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self::from_ranges(numbers.into_iter().map(|number| (number, number)).collect())
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let error = || CpuSetError { text: text.to_string() };
        let parts = text.trim().split(',').map(str::trim).filter(|part| !part.is_empty());
        let ranges = parts.map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = (first.parse().map_err(|_| error())?, last.parse().map_err(|_| error())?);
            if range.0 <= range.1 { Ok(range) } else { Err(error()) }
        });
        Ok(Self::from_ranges(ranges.collect::<Result<_, _>>()?))
    }
}

impl TryFrom<String> for CpuSet {
    type Error = CpuSetError;

    fn try_from(text: String) -> Result<Self, CpuSetError> {
        text.parse()
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.to_string()
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, &(first, last)) in self.ranges.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            match first == last {
                true => write!(formatter, "{comma}{first}")?,
                false => write!(formatter, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn lists() {
        for (text, canonical, count) in
            [("", "", 0), ("0\n", "0", 1), ("3,1,2", "1-3", 3), ("0-3,8,2-5", "0-5,8", 7), (" 7 , 9 ", "7,9", 2)]
        {
            assert_eq!((set(text).to_string().as_str(), set(text).len()), (canonical, count), "{text:?}");
        }
        assert_eq!(set("0-4294967295").len(), 1 << 32);
        for text in ["a", "1-", "-1", "3-1", "1--2", "4294967296"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn masks() {
        for (mask, list) in [
            ("0x00000003", "0-1"),
            ("00000000,000000ff,ffffffff", "0-39"),
            ("0x0000ffff,,0x1", "0,64-79"),
            ("0x03000003", "0-1,24-25"),
            ("0x0", ""),
            ("", ""),
        ] {
            assert_eq!(CpuSet::from_mask(mask).unwrap().to_string(), list, "{mask:?}");
        }
        for mask in ["0xfffffffff", "z", "0xf...f"] {
            assert!(CpuSet::from_mask(mask).is_err(), "{mask:?}");
        }
    }

    #[test]
    fn operations() {
        let (one, other) = (set("0-7,16-23"), set("4-17,30"));
        assert_eq!(one.intersection(&other), set("4-7,16-17"));
        assert_eq!(one.union(&other), set("0-23,30"));
        assert!(one.contains(16) && !one.contains(8));
        assert_eq!(set("1-2,5").iter().collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!([5, 1, 2].into_iter().collect::<CpuSet>(), set("1-2,5"));
    }
}
