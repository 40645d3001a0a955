//! Which NICs carry tensors. In: facts of one host, `CROSSMESH_NICS`. Out: usable NICs in PCI order, and why others are
//! not. Guarantee: pure; what the user names is taken whatever it is, as long as it is up and may be opened.

use crate::topology::facts::{HostFacts, LinkLayer, Nic, PortState};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Why a NIC is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// By the user's choice.
    Excluded,
    /// Its port carries no traffic.
    Down,
    /// This process may not open it.
    NotOpenable,
    /// A virtual function, where there are physical ones.
    VirtualFunction,
    /// Another link layer than the NICs that carry tensors.
    OtherLinkLayer,
    /// Another rate than the NICs that carry tensors.
    OtherRate,
    /// Beside no GPU, where other NICs are.
    Far,
    /// Serves a GPU that is hidden from this process.
    HiddenGpu,
    /// No GPU to serve.
    NoGpu,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Excluded => "excluded by CROSSMESH_NICS",
            Self::Down => "its port is not active",
            Self::NotOpenable => "this process may not open it",
            Self::VirtualFunction => "a virtual function beside physical ones",
            Self::OtherLinkLayer => "another link layer than the NICs beside it: front end",
            Self::OtherRate => "another rate than the NICs beside it: front end",
            Self::Far => "beside no GPU, while other NICs are",
            Self::HiddenGpu => "it serves a GPU that is hidden from this process",
            Self::NoGpu => "no GPU",
        })
    }
}

/// A choice of NICs: `mlx5_0,mlx5_3`, `ibp*`, or `^mlx5_2` for all but that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NicChoice {
    wanted: Vec<String>,
    excluded: Vec<String>,
}

/// A text that is no choice.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no choice of NICs; write names with * such as mlx5_0,ibp*, or all after ^ to leave them out")]
pub struct NicChoiceError {
    /// As given.
    pub text: String,
}

impl FromStr for NicChoice {
    type Err = NicChoiceError;

    fn from_str(text: &str) -> Result<Self, NicChoiceError> {
        let mut choice = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (list, name) = match part.strip_prefix('^') {
                Some(name) => (&mut choice.excluded, name),
                None => (&mut choice.wanted, part),
            };
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | '*');
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(NicChoiceError { text: text.to_string() });
            }
            list.push(name.to_string());
        }
        Ok(choice)
    }
}

impl NicChoice {
    fn names(&self, nic: &Nic) -> bool {
        self.wanted.iter().any(|pattern| matches(pattern, &nic.device))
    }

    fn excludes(&self, nic: &Nic) -> bool {
        let excluded = self.excluded.iter().any(|pattern| matches(pattern, &nic.device));
        excluded || (!self.wanted.is_empty() && !self.names(nic))
    }
}

/// Whether `pattern`, in which `*` stands for anything, is `name`.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    let found = middle.iter().try_fold(rest, |rest, part| rest.split_once(part).map(|(_, rest)| rest));
    found.is_some_and(|rest| rest.ends_with(last))
}

/// Usable NICs by their place on PCI, and the others with the reason.
pub(super) fn usable(facts: &HostFacts, choice: &NicChoice) -> (Vec<usize>, Vec<(usize, LeftOut)>) {
    let mut left_out = Vec::new();
    let all_virtual = facts.nics.iter().all(|nic| nic.virtual_function);
    let mut usable: Vec<usize> = (0..facts.nics.len()).collect();
    usable.retain(|&position| {
        let nic = &facts.nics[position];
        let reason = if choice.excludes(nic) {
            LeftOut::Excluded
        } else if matches!(nic.state, PortState::Down | PortState::Waiting) {
            LeftOut::Down
        } else if nic.openable == Some(false) {
            LeftOut::NotOpenable
        } else if nic.virtual_function && !all_virtual && !choice.names(nic) {
            LeftOut::VirtualFunction
        } else {
            return true;
        };
        left_out.push((position, reason));
        false
    });
    if let Some((layer, rate)) = carrying(facts, &usable) {
        usable.retain(|&position| {
            let nic = &facts.nics[position];
            let reason = if choice.names(nic) || (nic.link_layer == layer && nic.bytes_per_second == rate) {
                return true;
            } else if nic.link_layer != layer {
                LeftOut::OtherLinkLayer
            } else {
                LeftOut::OtherRate
            };
            left_out.push((position, reason));
            false
        });
    }
    usable.sort_by_key(|&position| {
        let nic = &facts.nics[position];
        (nic.pci.is_none(), nic.pci, nic.device.len(), nic.device.clone(), nic.port)
    });
    (usable, left_out)
}

/// Link layer and rate of the NICs that together move most, InfiniBand before others that move as much.
fn carrying(facts: &HostFacts, usable: &[usize]) -> Option<(LinkLayer, u64)> {
    let mut groups: BTreeMap<(&LinkLayer, u64), u64> = BTreeMap::new();
    for &position in usable {
        let nic = &facts.nics[position];
        // NICs whose rate is not told count alike.
        let total = groups.entry((&nic.link_layer, nic.bytes_per_second)).or_default();
        *total = total.saturating_add(nic.bytes_per_second.max(1));
    }
    let best = groups.iter().max_by_key(|((layer, rate), total)| (**total, **layer == LinkLayer::InfiniBand, *rate));
    best.map(|((layer, rate), _)| ((*layer).clone(), *rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("mlx5_1", "mlx5_1", true),
            ("mlx5_1", "mlx5_10", false),
            ("mlx5_*", "mlx5_10", true),
            ("*_1*", "mlx5_10", true),
            ("ibp*s0", "ibp12s0", true),
            ("ibp*s0", "ibp12s1", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn rates_that_exceed_64_bits_together_are_the_greatest() {
        let nic = |name: &str, rate| Nic { bytes_per_second: rate, ..Nic::at(name, 1) };
        let nics = vec![nic("mlx5_0", u64::MAX), nic("mlx5_1", 5), nic("mlx5_2", u64::MAX)];
        let facts = HostFacts { nics, ..HostFacts::default() };
        assert_eq!(carrying(&facts, &[0, 1, 2]).map(|(_, rate)| rate), Some(u64::MAX));
    }

    #[test]
    fn choices_are_read() {
        let choice: NicChoice = "mlx5_0, ibp*,^ibp3".parse().unwrap();
        assert_eq!((choice.wanted, choice.excluded), (vec!["mlx5_0".into(), "ibp*".into()], vec!["ibp3".to_string()]));
        for text in ["^", "a b", "mlx5_0=1"] {
            assert!(text.parse::<NicChoice>().is_err(), "{text}");
        }
    }
}
