//! Placements as text. In: `replicate`, `shard(d)`, `shard(d,chunk)`, `shard(d,sizes=a/b/c)`, `partial(sum)`. Out: [`Placement`].
//! Guarantee: nothing else is read, and blanks do not count.

use super::{Placement, Reduction, Split};
use std::str::FromStr;
use thiserror::Error;

/// A text that is no placement.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no placement; write replicate, shard(0), shard(0,chunk), shard(0,sizes=5/0/3) or partial(sum)")]
pub struct PlacementError {
    /// The text as given.
    pub text: String,
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        read(text).ok_or_else(|| PlacementError { text: text.to_string() })
    }
}

fn read(text: &str) -> Option<Placement> {
    let text = text.trim();
    match text {
        "replicate" => return Some(Placement::Replicate),
        "partial(sum)" => return Some(Placement::Partial(Reduction::Sum)),
        _ => {}
    }
    let inside = text.strip_prefix("shard(")?.strip_suffix(')')?;
    let (dim, rule) = inside.split_once(',').map_or((inside, None), |(dim, rule)| (dim, Some(rule.trim())));
    let split = match rule {
        None => Split::Floor,
        Some("chunk") => Split::Chunk,
        Some(rule) => {
            let sizes = rule.strip_prefix("sizes=")?.split('/').map(|size| size.trim().parse().ok());
            Split::Sizes(sizes.collect::<Option<Vec<u64>>>()?)
        }
    };
    Some(Placement::Shard { dim: dim.trim().parse().ok()?, split })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        for (text, placement) in [
            ("replicate", Placement::Replicate),
            ("partial(sum)", Placement::Partial(Reduction::Sum)),
            ("shard(0)", Placement::shard(0)),
            (" shard( 2 , chunk ) ", Placement::chunk(2)),
            ("shard(1,sizes=5/0/3)", Placement::sizes(1, [5, 0, 3])),
        ] {
            assert_eq!(text.parse(), Ok(placement), "{text}");
        }
        for text in ["", "shard", "shard()", "shard(-1)", "shard(0", "shard(0,floor)", "shard(0,sizes=)", "Replicate"] {
            let error = text.parse::<Placement>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is no placement")), "{error}");
        }
    }
}
