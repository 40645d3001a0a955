//! Clusters that nobody has to own. In: a text such as `gb200-nvl72:4/64` or `4x[8gpu,8nic@50GB,nvlink450GB]`, the sizes
//! of the sides of a job. Out: a [`Machine`], or facts of the hosts. Guarantee: pure; every side starts in a new domain;
//! what does not fit is an error that says what would; cards are those that pairing finds for the facts.

use super::cluster::{ClusterOptions, DomainKey, Seat, seat};
use super::facts::HostFacts;
use super::machine::{LinkRate, Machine};
use super::shape::{NodeShape, Wiring};
use super::{Place, Topology};
use crate::base::{DomainId, NodeId};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A cluster that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SyntheticError {
    /// A name that is none.
    #[error(
        "unknown cluster {name:?} in topology {text:?}; allowed: gb200-nvl72, hgx-h100, dgx-a100, or a shape such as 4x[8gpu,8nic@50GB,nvlink450GB]"
    )]
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
    /// A shape that cannot be read.
    #[error(
        "topology {text:?}: {part:?} cannot be read; write NODESx[COUNTgpu,COUNTnic@RATE,nvlinkRATE] with rates of one card and of one GPU's NVLinks, such as 4x[8gpu,8nic@50GB,nvlink450GB], counts of 1 to 4096"
    )]
    Shape {
        /// As given.
        text: String,
        /// The part.
        part: String,
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
        "topology {text} has {domains} domains of {used} GPUs, and sides of {sides:?} ranks that start in a new domain each need {needed}; write {enough}"
    )]
    TooFewDomains {
        /// As given.
        text: String,
        /// What would do.
        enough: String,
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
#[derive(Debug, Clone, PartialEq, Eq)]
struct Kind {
    /// `None` for a shape, which is its own name.
    name: Option<&'static str>,
    nodes: u32,
    node: NodeShape,
}

impl Kind {
    fn named(name: &str) -> Option<Self> {
        const GIB: u64 = 1 << 30;
        // 18 trays, NVLink 5, four 400 Gb/s cards in each tray.
        let gb200 = NodeShape {
            model: Cow::Borrowed("NVIDIA GB200"),
            gpus: 4,
            nics: 4,
            nic: 50_000_000_000,
            nvlink: 900_000_000_000,
            links: 18,
            sm: 100,
            memory_bytes: 185 * GIB,
            wiring: Wiring::Coherent,
        };
        // NVLink 4, eight 400 Gb/s cards, each beside a GPU.
        let h100 = NodeShape {
            model: Cow::Borrowed("NVIDIA H100 80GB HBM3"),
            gpus: 8,
            nics: 8,
            nvlink: 450_000_000_000,
            sm: 90,
            memory_bytes: 80 * GIB,
            wiring: Wiring::Switches(8),
            ..gb200.clone()
        };
        // NVLink 3, eight 200 Gb/s cards, two of them on a switch with two GPUs.
        let a100 = NodeShape {
            model: Cow::Borrowed("NVIDIA A100-SXM4-80GB"),
            nic: 25_000_000_000,
            nvlink: 300_000_000_000,
            links: 12,
            sm: 80,
            wiring: Wiring::Switches(4),
            ..h100.clone()
        };
        let kinds = [("gb200-nvl72", 18, gb200), ("hgx-h100", 1, h100), ("dgx-a100", 1, a100)];
        let kind = kinds.into_iter().find(|(known, ..)| *known == name);
        kind.map(|(name, nodes, node)| Self { name: Some(name), nodes, node })
    }

    fn gpus(&self) -> u32 {
        self.nodes * self.node.gpus
    }

    /// Cluster uuid and clique of a domain that spans nodes.
    fn fabric(&self, domain: u32) -> Option<(String, u32)> {
        (self.nodes > 1).then(|| (format!("{:032x}", u64::from(domain) + 1), 0))
    }

    fn domain_key(&self, domain: u32, host: &str) -> DomainKey {
        match self.fabric(domain) {
            Some((cluster, clique)) => DomainKey::Fabric(cluster, clique),
            None => DomainKey::Island(host.to_string(), 0),
        }
    }
}

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
        if text.ends_with(']') {
            return Self::from_shape(text);
        }
        let (name, counts) = match text.split_once(':') {
            Some((name, counts)) => (name, Some(counts)),
            None => (text, None),
        };
        let unknown = || SyntheticError::Unknown { text: text.into(), name: name.into() };
        let kind = Kind::named(name).ok_or_else(unknown)?;
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
        let Some(name) = self.kind.name else {
            return write!(formatter, "{}x[{}]", self.domains.unwrap_or(1), self.kind.node);
        };
        formatter.write_str(name)?;
        if let Some(domains) = self.domains {
            write!(formatter, ":{domains}")?;
        }
        if self.used != self.kind.gpus() { write!(formatter, "/{}", self.used) } else { Ok(()) }
    }
}

impl Synthetic {
    fn from_shape(text: &str) -> Result<Self, SyntheticError> {
        let error = |part: &str| SyntheticError::Shape { text: text.into(), part: part.into() };
        let (count, inner) = text.split_once("x[").ok_or_else(|| error(text))?;
        let domains: u32 =
            count.parse().ok().filter(|count| (1..=1 << 20).contains(count)).ok_or_else(|| error(count))?;
        let node = NodeShape::parse(inner.trim_end_matches(']')).map_err(|part| error(&part))?;
        let used = node.gpus;
        Ok(Self { kind: Kind { name: None, nodes: 1, node }, domains: Some(domains), used })
    }

    /// GPUs in use on all [`hosts`](Self::hosts).
    pub fn gpus(&self) -> u64 {
        u64::from(self.domains.unwrap_or(1)) * u64::from(self.used)
    }

    /// Facts of all hosts, as discovery would state them; one domain where their number is left open.
    pub fn hosts(&self) -> Vec<HostFacts> {
        let nodes = self.used.div_ceil(self.kind.node.gpus);
        let host = |domain: u32, node: u32| {
            let host = format!("node{}", domain * self.kind.nodes + node);
            let mut facts = self.kind.node.facts(host, self.kind.fabric(domain));
            let left = self.used - node * self.kind.node.gpus;
            facts.gpus.truncate(left as usize);
            facts
        };
        (0..self.domains.unwrap_or(1))
            .flat_map(|domain| (0..nodes).map(move |node| (domain, node)))
            .map(|(domain, node)| host(domain, node))
            .collect()
    }

    /// Places sides of so many ranks each, one GPU a rank: a side fills domain after domain, the next starts in a new
    /// one. A rank's cards are those that its GPU is paired with.
    pub fn machine(&self, sides: &[u32]) -> Result<Machine, SyntheticError> {
        let needed: u64 = sides.iter().map(|&ranks| u64::from(ranks.div_ceil(self.used))).sum();
        if let Some(domains) = self.domains.filter(|&domains| u64::from(domains) < needed) {
            let enough = Self { domains: u32::try_from(needed).ok(), ..self.clone() }.to_string();
            let (text, used, sides) = (self.to_string(), self.used, sides.to_vec());
            return Err(SyntheticError::TooFewDomains { text, enough, domains, used, sides, needed });
        }
        // All nodes are alike.
        let shape = &self.kind.node;
        let facts = shape.facts(String::new(), None);
        let alike = |gpu: u32| seat(&facts, "", gpu as usize, &ClusterOptions::default());
        let alike: Vec<Seat> = (0..shape.gpus).map(alike).collect();
        let (mut places, mut seats) = (Vec::new(), Vec::new());
        let mut first = 0;
        for &ranks in sides {
            for position in 0..ranks {
                let (domain, gpu) = (first + position / self.used, position % self.used);
                let (node, gpu) = (domain * self.kind.nodes + gpu / shape.gpus, gpu % shape.gpus);
                let host = format!("node{node}");
                let key = self.kind.domain_key(domain, &host);
                seats.push(Seat { domain: Some(key), ..alike[gpu as usize].clone() });
                places.push(Place { host, node: NodeId(node), domain: DomainId(domain) });
            }
            first += ranks.div_ceil(self.used);
        }
        let topology = Topology::from_places(places).seated(seats);
        let machine = Machine::of_seats(self.to_string(), topology, LinkRate::nvlink(shape.nvlink));
        // Every shape has a card, and pairing gives each GPU one.
        Ok(machine.expect("every GPU of a shape has a card"))
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
        // A rank's seat is what it would state at start: rails are those of its tray.
        assert_eq!((machine.topology.rail(Rank(67)), machine.topology.rail(Rank(96))), (Some(3), Some(0)));
        assert_eq!(machine.topology.nics(Rank(66))[0].device, "mlx5_2");
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
        assert!(error.to_string().ends_with("write hgx-h100:3"), "{error}");
    }

    #[test]
    fn shapes_deal_cards_as_pairing_does() {
        let devices = |text: &str, ranks: u32| {
            let machine = machine(text, &[ranks]);
            machine.devices.iter().map(|device| device.nics.clone()).collect::<Vec<_>>()
        };
        assert_eq!(devices("2x[4gpu,2nic@50GB,nvlink450GB]", 6), [[0], [0], [1], [1], [2], [2]]);
        assert_eq!(devices("1x[2gpu,4nic@25GB,nvlink450GB]", 2), [[0, 1], [2, 3]]);
        assert_eq!(devices("dgx-a100:1", 8), [[0], [1], [2], [3], [4], [5], [6], [7]]);
        let text = "3x[8gpu,8nic@50GB,nvlink450GB]";
        let hosts = text.parse::<Synthetic>().unwrap().hosts();
        assert_eq!((hosts.len(), hosts[2].gpus.len(), hosts[2].nics.len()), (3, 8, 8));
        let error = text.parse::<Synthetic>().unwrap().machine(&[25]).unwrap_err().to_string();
        assert!(error.ends_with("write 4x[8gpu,8nic@50GB,nvlink450GB]"), "{error}");
    }

    #[test]
    fn texts() {
        for text in [
            "2x[8gpu,4nic@50GB,nvlink450GB]",
            "gb200-nvl72",
            "gb200-nvl72:4",
            "gb200-nvl72:2/16",
            "hgx-h100:1",
            "dgx-a100:8/4",
        ] {
            assert_eq!(text.parse::<Synthetic>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("gb300:2", "unknown cluster \"gb300\""),
            ("", "unknown cluster"),
            ("x[8gpu,8nic@50GB,nvlink450GB]", "\"\" cannot be read"),
            ("2x[8gpu,8nic@50GB]", "without nvlink"),
            ("2x[8gpu,9gpu,8nic@50GB,nvlink1GB]", "\"9gpu\" cannot be read"),
            ("2x[0gpu,8nic@50GB,nvlink1GB]", "\"0gpu\" cannot be read"),
            ("2x[8gpu,8nic@fast,nvlink1GB]", "\"8nic@fast\" cannot be read"),
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
