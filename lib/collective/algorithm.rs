//! Ways to run a collective inside a domain, and what each promises about rounding. In: names. Out: [`Algorithm`],
//! [`Determinism`]. Guarantee: with every algorithm all ranks get the same bits.

use crate::base::env;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A name that is no algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("algorithm {name:?} is unknown; allowed are {}", Algorithm::names())]
pub struct AlgorithmError {
    /// The name as given.
    pub name: String,
}

/// How a collective runs on the GPUs of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Every rank writes its input to every peer, flag and data in one word, and reduces what comes (LL of NCCL, Lamport
    /// one-shot of TensorRT-LLM, without a reserved value). No barrier.
    OneShotPush,
    /// The same with a flag for 120 bytes, where links keep lines of 128 bytes together (LL128 of NCCL). No barrier.
    LinePush,
    /// Every rank reads every peer's input and reduces it (one-shot of vLLM and PyTorch).
    OneShotPull,
    /// Rank r gets shard r of every rank in words with flags, reduces it and writes it to all likewise. No barrier.
    TwoShotPush,
    /// Rank r reads shard r of every rank, reduces it and writes it to all, between two barriers (two-shot of PyTorch).
    TwoShot,
    /// Shards are written to their owners, reduced, and results written to all outputs: nothing is read over a link, since two
    /// GPUs exchange writes faster than reads. Outputs must be registered.
    ShardPush,
    /// Partial sums go round, then results do (NCCL's ring); partials of narrow floats travel as binary32.
    Ring,
    /// The switch reduces and multiplies (NVLS). Only when it is asked for by name.
    Multicast,
    /// For processes that share a GPU: no kernel waits, hosts order copies and reductions.
    HostOrdered,
}

impl Algorithm {
    /// All of them; the place of each is its number in call headers.
    pub const ALL: [Self; 9] = [
        Self::OneShotPush,
        Self::OneShotPull,
        Self::TwoShotPush,
        Self::TwoShot,
        Self::Ring,
        Self::Multicast,
        Self::HostOrdered,
        Self::ShardPush,
        Self::LinePush,
    ];

    /// Its name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneShotPush => "one-shot-push",
            Self::LinePush => "line-push",
            Self::OneShotPull => "one-shot-pull",
            Self::TwoShotPush => "two-shot-push",
            Self::TwoShot => "two-shot",
            Self::ShardPush => "shard-push",
            Self::Ring => "ring",
            Self::Multicast => "multicast",
            Self::HostOrdered => "host-ordered",
        }
    }

    /// The names of those that can run, for messages: what the variable takes.
    pub fn names() -> String {
        env::ALGORITHM.choices().collect::<Vec<_>>().join(", ")
    }

    /// What it promises.
    pub const fn determinism(self) -> Determinism {
        match self {
            Self::Ring | Self::Multicast => Determinism::RankIdentical,
            _ => Determinism::SizeInvariant,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = AlgorithmError;

    fn from_str(name: &str) -> Result<Self, AlgorithmError> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        found.ok_or_else(|| AlgorithmError { name: name.to_string() })
    }
}

/// What is promised about the bits of a result. The greater one includes the lesser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Determinism {
    /// The same bits on every rank, and in every repetition of the same call.
    #[default]
    RankIdentical,
    /// Moreover an element's bits do not depend on how many other elements are in the call: terms are added from rank 0
    /// to the last, whatever the size (batch invariance).
    SizeInvariant,
}

impl Determinism {
    /// Its name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RankIdentical => "rank-identical",
            Self::SizeInvariant => "size-invariant",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
        let error = "oneshot".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.contains("\"oneshot\"") && error.contains("one-shot-push, line-push"), "{error}");
    }

    #[test]
    fn all_that_can_run_are_offered() {
        let mut offered: Vec<Algorithm> = env::ALGORITHM.choices().map(|name| name.parse().unwrap()).collect();
        offered.sort_unstable();
        let mut possible = Algorithm::ALL.to_vec();
        possible.retain(|algorithm| *algorithm != Algorithm::Multicast);
        possible.sort_unstable();
        assert_eq!(offered, possible);
        assert!(!"oneshot".parse::<Algorithm>().unwrap_err().to_string().contains("multicast"));
    }

    #[test]
    fn promises_are_ordered() {
        assert!(Determinism::SizeInvariant > Determinism::RankIdentical);
        assert_eq!(Algorithm::Ring.determinism(), Determinism::RankIdentical);
        assert_eq!(Algorithm::TwoShot.determinism(), Determinism::SizeInvariant);
    }
}
