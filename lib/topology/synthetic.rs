//! Clusters that nobody has to own. In: a text such as `gb200-nvl72:4/64`, the sizes of the sides of a job. Out: a
//! [`Machine`]. Guarantee: pure; every side starts in a new domain; what does not fit is an error that says what would.

use super::machine::{Device, LinkRate, Machine, Nic};
use super::{Place, Topology};
use crate::base::{DomainId, NodeId};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A cluster that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SyntheticError {
    /// A name that is none.
    #[error("unknown cluster {name:?} in topology {text:?}; allowed: gb200-nvl72, hgx-h100, dgx-a100")]
    Unknown {
        /// As given.
        text: String,
        /// Before the colon.
        name: String,
    },
    /// Numbers that cannot be read.
    #[error(
        "topology {text:?}: {part:?} is no {what}; write NAME, NAME:DOMAINS or NAME:DOMAINS/USED, such as gb200-nvl72:4/64"
    )]
    Number {
        /// As given.
        text: String,
        /// The part.
        part: String,
        /// What it should be.
        what: &'static str,
    },
    /// More GPUs of a domain than it has.
    #[error("topology {text:?} uses {used} GPUs of a domain that has {gpus}; use 1 to {gpus}")]
    Used {
        /// As given.
        text: String,
        /// GPUs asked for.
        used: u32,
        /// GPUs there are.
        gpus: u32,
    },
    /// Too few domains for the sides.
    #[error(
        "topology {text} has {domains} domains of {used} GPUs, and sides of {sides:?} ranks that start in a new domain each need {needed}; write {name}:{needed}/{used}"
    )]
    TooFewDomains {
        /// As given.
        text: String,
        /// Its kind.
        name: &'static str,
        /// Domains it has.
        domains: u32,
        /// GPUs used of each.
        used: u32,
        /// Ranks of every side.
        sides: Vec<u32>,
        /// Domains that would do.
        needed: u64,
    },
}

/// A kind of NVLink domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    name: &'static str,
    nodes: u32,
    gpus_per_node: u32,
    /// Bytes per second of a card; there is one for each GPU.
    nic: u64,
    /// Bytes per second of a GPU's NVLink, one way.
    nvlink: u64,
}

const KINDS: [Kind; 3] = [
    // 18 trays, NVLink 5 with 18 links, four 400 Gb/s cards in each tray.
    Kind { name: "gb200-nvl72", nodes: 18, gpus_per_node: 4, nic: 50_000_000_000, nvlink: 900_000_000_000 },
    // NVLink 4 with 18 links, eight 400 Gb/s cards.
    Kind { name: "hgx-h100", nodes: 1, gpus_per_node: 8, nic: 50_000_000_000, nvlink: 450_000_000_000 },
    // NVLink 3 with 12 links, eight 200 Gb/s cards.
    Kind { name: "dgx-a100", nodes: 1, gpus_per_node: 8, nic: 25_000_000_000, nvlink: 300_000_000_000 },
];

/// Equal NVLink domains joined by a network without bottlenecks of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Synthetic {
    kind: Kind,
    /// As many as the sides need when not stated.
    domains: Option<u32>,
    used: u32,
}

impl FromStr for Synthetic {
    type Err = SyntheticError;

    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        let (name, counts) = match text.split_once(':') {
            Some((name, counts)) => (name, Some(counts)),
            None => (text, None),
        };
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let &kind = kind.ok_or_else(|| SyntheticError::Unknown { text: text.into(), name: name.into() })?;
        let number = |part: &str, what| match part.parse() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(SyntheticError::Number { text: text.into(), part: part.into(), what }),
        };
        let (domains, used) = match counts.map(|counts| counts.split_once('/').unwrap_or((counts, ""))) {
            None => (None, kind.gpus()),
            Some((domains, "")) if !text.ends_with('/') => (Some(number(domains, "number of domains")?), kind.gpus()),
            Some((domains, used)) => {
                (Some(number(domains, "number of domains")?), number(used, "number of GPUs used of a domain")?)
            }
        };
        if used > kind.gpus() {
            return Err(SyntheticError::Used { text: text.into(), used, gpus: kind.gpus() });
        }
        Ok(Self { kind, domains, used })
    }
}

impl fmt::Display for Synthetic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.kind.name)?;
        if let Some(domains) = self.domains {
            write!(formatter, ":{domains}")?;
        }
        if self.used != self.kind.gpus() { write!(formatter, "/{}", self.used) } else { Ok(()) }
    }
}

impl Kind {
    fn gpus(&self) -> u32 {
        self.nodes * self.gpus_per_node
    }
}

impl Synthetic {
    /// Places sides of so many ranks each, one GPU a rank: a side fills domain after domain, the next starts in a new
    /// one. A rank's card is that of its GPU.
    pub fn machine(&self, sides: &[u32]) -> Result<Machine, SyntheticError> {
        let needed: u64 = sides.iter().map(|&ranks| u64::from(ranks.div_ceil(self.used))).sum();
        if let Some(domains) = self.domains.filter(|&domains| u64::from(domains) < needed) {
            let (text, name, used, sides) = (self.to_string(), self.kind.name, self.used, sides.to_vec());
            return Err(SyntheticError::TooFewDomains { text, name, domains, used, sides, needed });
        }
        let (mut places, mut devices) = (Vec::new(), Vec::new());
        let mut first = 0;
        for &ranks in sides {
            for position in 0..ranks {
                let (domain, gpu) = (first + position / self.used, position % self.used);
                let node = domain * self.kind.nodes + gpu / self.kind.gpus_per_node;
                places.push(Place { host: format!("node{node}"), node: NodeId(node), domain: DomainId(domain) });
                devices.push(Device { gpu: gpu % self.kind.gpus_per_node, nics: vec![devices.len() as u32] });
            }
            first += ranks.div_ceil(self.used);
        }
        Ok(Machine {
            name: self.to_string(),
            topology: Topology::from_places(places),
            nics: vec![Nic { rate: LinkRate::network(self.kind.nic) }; devices.len()],
            devices,
            nvlink: LinkRate::nvlink(self.kind.nvlink),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rank;

    fn machine(text: &str, sides: &[u32]) -> Machine {
        text.parse::<Synthetic>().unwrap().machine(sides).unwrap()
    }

    #[test]
    fn sides_start_in_new_domains() {
        let machine = machine("gb200-nvl72:4/64", &[96, 128]);
        let domain = |rank| machine.topology.domain(Rank(rank)).0;
        assert_eq!((domain(0), domain(63), domain(64), domain(95)), (0, 0, 1, 1));
        assert_eq!((domain(96), domain(159), domain(160), domain(223)), (2, 2, 3, 3));
        assert_eq!((machine.topology.size(), machine.nics.len(), machine.devices.len()), (224, 224, 224));
        // Four GPUs to a tray; rank 64 is the first of its domain.
        let node = |rank| machine.topology.node(Rank(rank));
        assert!(node(0) == node(3) && node(3) != node(4) && node(60) != node(64));
        assert_eq!((machine.devices[67].gpu, &machine.devices[67].nics[..]), (3, &[67][..]));
        assert_eq!(
            (machine.nvlink.bytes_per_second, machine.nics[0].rate.bytes_per_second),
            (900 * 1_000_000_000, 50 * 1_000_000_000)
        );
    }

    #[test]
    fn domains_are_as_many_as_needed_unless_stated() {
        assert_eq!(machine("gb200-nvl72", &[73, 1]).topology.domain_count(), 3);
        assert_eq!(machine("hgx-h100:3", &[8, 9]).topology.domain_count(), 3);
        assert_eq!(machine("dgx-a100:2", &[8, 8]).nvlink.bytes_per_second, 300_000_000_000);
        let error = "hgx-h100:2".parse::<Synthetic>().unwrap().machine(&[8, 9]).unwrap_err();
        assert!(error.to_string().ends_with("write hgx-h100:3/8"), "{error}");
    }

    #[test]
    fn texts() {
        for text in ["gb200-nvl72", "gb200-nvl72:4", "gb200-nvl72:2/16", "hgx-h100:1", "dgx-a100:8/4"] {
            assert_eq!(text.parse::<Synthetic>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("gb300:2", "unknown cluster \"gb300\""),
            ("", "unknown cluster"),
            ("gb200-nvl72:", "\"\" is no number of domains"),
            ("gb200-nvl72:0", "\"0\" is no number of domains"),
            ("gb200-nvl72:2/", "\"\" is no number of GPUs"),
            ("gb200-nvl72:2/x", "\"x\" is no number of GPUs"),
            ("gb200-nvl72:2/73", "uses 73 GPUs of a domain that has 72"),
            ("hgx-h100:99999999999", "is no number of domains"),
        ] {
            let error = text.parse::<Synthetic>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
