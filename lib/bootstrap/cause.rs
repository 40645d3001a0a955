//! Why a job ended. In: what the first detector saw. Out: [`Cause`], one value that every survivor holds.
//! Guarantee: its coded form is bounded, so a long message cannot be refused on its way.

use crate::base::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Stands for the rendezvous process, which is no rank, in handshakes and causes.
pub(super) const RENDEZVOUS: Rank = Rank(u32::MAX);

/// Longest text of one field, in bytes; longer ones are cut.
const LONGEST_FIELD: usize = 4096;

/// The first fault of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The rank at fault.
    pub rank: Rank,
    /// Its host.
    pub host: String,
    /// What was going on: `start`, `reshard`, …
    pub phase: String,
    /// What happened.
    pub message: String,
}

impl Cause {
    /// The coded form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let bounded =
            Self { rank: self.rank, host: cut(&self.host), phase: cut(&self.phase), message: cut(&self.message) };
        // A struct of an integer and three strings always has a JSON form.
        serde_json::to_vec(&bounded).unwrap_or_default()
    }

    /// Reads the coded form.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(LONGEST_FIELD);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_string()
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            RENDEZVOUS => write!(formatter, "the rendezvous")?,
            rank => write!(formatter, "rank {rank}")?,
        }
        if !self.host.is_empty() {
            write!(formatter, " on host {}", self.host)?;
        }
        write!(formatter, " {}", self.message)?;
        if !self.phase.is_empty() {
            write!(formatter, " (phase: {})", self.phase)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_display() {
        let cause = Cause {
            rank: Rank(3),
            host: "n1".into(),
            phase: "reshard".into(),
            message: "died (control connection closed)".into(),
        };
        assert_eq!(Cause::decode(&cause.encode()), Some(cause.clone()));
        assert_eq!(cause.to_string(), "rank 3 on host n1 died (control connection closed) (phase: reshard)");
        assert_eq!(Cause::decode(b"{}"), None);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let cause =
            Cause { rank: Rank(0), host: String::new(), phase: String::new(), message: "ü".repeat(LONGEST_FIELD) };
        let read = Cause::decode(&cause.encode()).map(|cause| cause.message);
        assert_eq!(read, Some("ü".repeat(LONGEST_FIELD / 2)));
    }
}
