//! World > domain > node > rank. In: facts of all ranks. Out: [`Topology`]. Guarantee: pure, deterministic;
//! domain and node ids count up in rank order.

use super::PciAddress;
use super::RankFacts;
use super::cluster::{DomainKey, NicSeat, Seat, merge_rails};
use crate::base::{DomainId, NodeId, Rank};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// Facts that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// Some ranks state a domain, others do not.
    #[error("CROSSMESH_DOMAIN is set on rank {set} and not on rank {unset}; set it on all ranks or on none")]
    DomainOnSomeRanks {
        /// Lowest rank that has it.
        set: Rank,
        /// Lowest rank that has not.
        unset: Rank,
    },
    /// Ranks state different domain counts.
    #[error(
        "CROSSMESH_DOMAINS is {} on rank 0 and {} on rank {rank}; give all ranks the same",
        count_or_unset(.first), count_or_unset(.other)
    )]
    DomainCountDiffers {
        /// Rank 0's.
        first: Option<u32>,
        /// The other's.
        other: Option<u32>,
        /// The other rank.
        rank: Rank,
    },
    /// More domains asked for than ranks, or none.
    #[error("cannot cut {ranks} ranks into {domains} domains; use 1 to {ranks}")]
    DomainCount {
        /// Number of ranks.
        ranks: usize,
        /// Domains asked for.
        domains: u32,
    },
    /// A domain spans hosts that cannot map each other's memory.
    #[error(
        "domain {domain} has rank {first} on host {first_host} and rank {second} on host {second_host}; host memory is mapped within one host only: give each host its own domain"
    )]
    DomainAcrossHosts {
        /// The domain.
        domain: DomainId,
        /// A rank in it.
        first: Rank,
        /// Its host.
        first_host: String,
        /// Another rank in it.
        second: Rank,
        /// Its host.
        second_host: String,
    },
}

/// Place of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Host name, for messages.
    pub host: String,
    /// Host, by token.
    pub node: NodeId,
    /// NVLink domain.
    pub domain: DomainId,
}

/// Places of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    places: Vec<Place>,
    domains: u32,
    /// One for each rank, or none where nobody told.
    seats: Vec<Seat>,
}

impl Topology {
    /// Interprets the facts of ranks 0, 1, …: the explicit domain first, then the domain count, then the host.
    pub fn from_facts(facts: &[RankFacts]) -> Result<Self, TopologyError> {
        let nodes = number(facts.iter().map(|fact| fact.host_token.as_str()));
        let explicit = explicit_domains(facts)?;
        let domains = match explicit {
            Some(ids) => number(ids),
            None => match domain_count(facts)? {
                Some(count) => cut(facts, count)?,
                None => nodes.clone(),
            },
        };
        let places = facts
            .iter()
            .zip(nodes.iter().zip(&domains))
            .map(|(fact, (&node, &domain))| Place {
                host: fact.host.clone(),
                node: NodeId(node),
                domain: DomainId(domain),
            })
            .collect();
        let topology = Self { places, domains: domains.iter().max().map_or(0, |&last| last + 1), seats: Vec::new() };
        topology.check_hosts()?;
        Ok(topology)
    }

    /// Every rank's domain as given, one host each domain; for plans without processes.
    pub fn from_domains(domains: &[u32]) -> Self {
        let ids = number(domains);
        let places =
            ids.iter().map(|&id| Place { host: format!("host{id}"), node: NodeId(id), domain: DomainId(id) }).collect();
        Self { places, domains: ids.iter().max().map_or(0, |&last| last + 1), seats: Vec::new() }
    }

    /// The same places in other domains, one number for each rank; a domain may not span hosts.
    pub fn with_domains(&self, domains: &[u32]) -> Result<Self, TopologyError> {
        let topology = self.in_domains(domains);
        topology.check_hosts()?;
        Ok(topology)
    }

    /// The same places in other domains, one number for each rank, which may span hosts.
    pub(crate) fn in_domains<T: Ord>(&self, domains: impl IntoIterator<Item = T>) -> Self {
        let ids = number(domains);
        let mut topology = self.clone();
        for (place, &id) in topology.places.iter_mut().zip(&ids) {
            place.domain = DomainId(id);
        }
        topology.domains = ids.iter().max().map_or(0, |&last| last + 1);
        topology
    }

    /// Ranks at these places, nodes and domains numbered in order of first appearance; for plans without processes.
    pub fn from_places(places: Vec<Place>) -> Self {
        let ranks: Vec<Rank> = (0..places.len() as u32).map(Rank).collect();
        Self { places, domains: 0, seats: Vec::new() }.select(&ranks)
    }

    /// The same places with seats whose rails are those of the whole job already.
    pub(super) fn seated(self, seats: Vec<Seat>) -> Self {
        Self { seats, ..self }
    }

    /// The places of `ranks`, renumbered from 0 in that order.
    pub fn select(&self, ranks: &[Rank]) -> Self {
        let chosen: Vec<&Place> = ranks.iter().map(|rank| &self.places[rank.index()]).collect();
        let nodes = number(chosen.iter().map(|place| place.node));
        let domains = number(chosen.iter().map(|place| place.domain));
        let places = chosen
            .iter()
            .zip(nodes.iter().zip(&domains))
            .map(|(place, (&node, &domain))| Place {
                host: place.host.clone(),
                node: NodeId(node),
                domain: DomainId(domain),
            })
            .collect();
        let seats = ranks.iter().filter_map(|rank| self.seats.get(rank.index()).cloned()).collect();
        Self { places, domains: domains.iter().max().map_or(0, |&last| last + 1), seats }
    }

    /// The same places, with the GPU and the NICs of every rank; rails are agreed over all nodes.
    pub fn with_seats(self, mut seats: Vec<Seat>) -> Self {
        let nodes: Vec<NodeId> = self.places.iter().map(|place| place.node).collect();
        seats.resize(nodes.len(), Seat::default());
        merge_rails(&mut seats, &nodes);
        self.seated(seats)
    }

    /// The same ranks in the domains of their GPUs' memory: by NVLink, on whatever host they are; ranks without a GPU
    /// keep the domain of their host. `None` where domains were stated, or no rank has a GPU.
    pub fn by_nvlink(&self, facts: &[RankFacts]) -> Option<Self> {
        let stated = facts.iter().any(|fact| fact.domain.is_some() || fact.domain_count.is_some());
        if stated || self.seats.iter().all(|seat| seat.domain.is_none()) {
            return None;
        }
        let keys = self.places.iter().zip(&self.seats).map(|(place, seat)| match &seat.domain {
            Some(key) => (Some(key), None),
            None => (None, Some(place.node)),
        });
        Some(self.in_domains(keys))
    }

    /// NICs of `rank`, nearest first; none where nobody told.
    pub fn nics(&self, rank: Rank) -> &[NicSeat] {
        self.seats.get(rank.index()).map_or(&[], |seat| &seat.nics)
    }

    /// GPU of `rank`, by its PCI address; `None` for a rank without one.
    pub fn gpu(&self, rank: Rank) -> Option<PciAddress> {
        self.seats.get(rank.index())?.gpu
    }

    /// The NVLink fabric of several hosts that the GPU of `rank` is part of.
    pub fn fabric(&self, rank: Rank) -> Option<&DomainKey> {
        let key = self.seats.get(rank.index())?.domain.as_ref();
        key.filter(|key| matches!(key, DomainKey::Fabric(..)))
    }

    /// Rail of the first NIC of `rank`.
    pub fn rail(&self, rank: Rank) -> Option<u32> {
        self.nics(rank).first().map(|nic| nic.rail)
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.places.len()
    }

    /// Number of domains.
    pub fn domain_count(&self) -> usize {
        self.domains as usize
    }

    /// Domain of `rank`.
    pub fn domain(&self, rank: Rank) -> DomainId {
        self.places[rank.index()].domain
    }

    /// Node of `rank`.
    pub fn node(&self, rank: Rank) -> NodeId {
        self.places[rank.index()].node
    }

    /// Host name of `rank`.
    pub fn host(&self, rank: Rank) -> &str {
        &self.places[rank.index()].host
    }

    fn check_hosts(&self) -> Result<(), TopologyError> {
        let mut first_of: BTreeMap<DomainId, usize> = BTreeMap::new();
        for (index, place) in self.places.iter().enumerate() {
            let first = *first_of.entry(place.domain).or_insert(index);
            if self.places[first].node != place.node {
                return Err(TopologyError::DomainAcrossHosts {
                    domain: place.domain,
                    first: Rank(first as u32),
                    first_host: self.places[first].host.clone(),
                    second: Rank(index as u32),
                    second_host: place.host.clone(),
                });
            }
        }
        Ok(())
    }
}

/// Numbers distinct keys from 0 in order of first appearance.
fn number<K: Ord>(keys: impl IntoIterator<Item = K>) -> Vec<u32> {
    let mut seen = BTreeMap::new();
    keys.into_iter()
        .map(|key| {
            let next = seen.len() as u32;
            *seen.entry(key).or_insert(next)
        })
        .collect()
}

fn explicit_domains(facts: &[RankFacts]) -> Result<Option<Vec<u32>>, TopologyError> {
    let set = facts.iter().position(|fact| fact.domain.is_some());
    let unset = facts.iter().position(|fact| fact.domain.is_none());
    match (set, unset) {
        (Some(set), Some(unset)) => {
            Err(TopologyError::DomainOnSomeRanks { set: Rank(set as u32), unset: Rank(unset as u32) })
        }
        (Some(_), None) => Ok(Some(facts.iter().filter_map(|fact| fact.domain).collect())),
        _ => Ok(None),
    }
}

fn count_or_unset(count: &Option<u32>) -> String {
    count.map_or_else(|| "not set".into(), |count| count.to_string())
}

fn domain_count(facts: &[RankFacts]) -> Result<Option<u32>, TopologyError> {
    let first = facts.first().and_then(|fact| fact.domain_count);
    match facts.iter().position(|fact| fact.domain_count != first) {
        Some(rank) => {
            Err(TopologyError::DomainCountDiffers { first, other: facts[rank].domain_count, rank: Rank(rank as u32) })
        }
        None => Ok(first),
    }
}

/// Cuts the ranks into `count` contiguous blocks; every side starts a new block when there are at least as
/// many blocks as sides, and the blocks are shared among the sides in proportion to their ranks.
fn cut(facts: &[RankFacts], count: u32) -> Result<Vec<u32>, TopologyError> {
    let ranks = facts.len();
    let blocks = count as usize;
    if blocks == 0 || blocks > ranks {
        return Err(TopologyError::DomainCount { ranks, domains: count });
    }
    let mut starts: Vec<usize> = (0..ranks).filter(|&rank| rank == 0 || facts[rank].starts_side).collect();
    if starts.len() > blocks {
        starts = vec![0];
    }
    let sides: Vec<usize> =
        starts.iter().enumerate().map(|(side, &start)| starts.get(side + 1).unwrap_or(&ranks) - start).collect();
    let mut shares = vec![1usize; sides.len()];
    for _ in sides.len()..blocks {
        // The side with the most ranks per block that can still be cut takes the next block.
        let widest = (0..sides.len())
            .filter(|&side| shares[side] < sides[side])
            .max_by(|&a, &b| (sides[a] * shares[b]).cmp(&(sides[b] * shares[a])).then(b.cmp(&a)));
        if let Some(side) = widest {
            shares[side] += 1;
        }
    }
    let mut domains = Vec::with_capacity(ranks);
    let mut base = 0u32;
    for (&side, &share) in sides.iter().zip(&shares) {
        domains.extend((0..side).map(|position| base + (position * share / side) as u32));
        base += share as u32;
    }
    Ok(domains)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::PciAddress;

    fn facts(hosts: &[&str]) -> Vec<RankFacts> {
        hosts
            .iter()
            .map(|host| RankFacts { host: host.to_string(), host_token: host.to_string(), ..RankFacts::default() })
            .collect()
    }

    fn domains(topology: &Topology) -> Vec<u32> {
        (0..topology.size()).map(|rank| topology.domain(Rank(rank as u32)).0).collect()
    }

    #[test]
    fn same_host_is_the_default_domain() {
        let topology = Topology::from_facts(&facts(&["b", "a", "b", "c"])).unwrap();
        assert_eq!(domains(&topology), [0, 1, 0, 2]);
        assert_eq!(topology.domain_count(), 3);
    }

    #[test]
    fn a_count_cuts_blocks_and_sides_start_new_ones() {
        for (ranks, count, side, expected) in [
            (8, 2, None, vec![0, 0, 0, 0, 1, 1, 1, 1]),
            (8, 2, Some(2), vec![0, 0, 1, 1, 1, 1, 1, 1]),
            (12, 3, Some(4), vec![0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
            (5, 1, Some(2), vec![0; 5]),
            (5, 2, None, vec![0, 0, 0, 1, 1]),
            (3, 3, Some(1), vec![0, 1, 2]),
        ] {
            let mut facts = facts(&vec!["h"; ranks]);
            for fact in &mut facts {
                fact.domain_count = Some(count);
            }
            if let Some(side) = side {
                facts[side].starts_side = true;
            }
            assert_eq!(domains(&Topology::from_facts(&facts).unwrap()), expected, "{ranks} ranks, {count} domains");
        }
    }

    #[test]
    fn seats_state_nics_rails_and_nvlink_domains() {
        let facts = facts(&["a", "a", "b", "b"]);
        let topology = Topology::from_facts(&facts).unwrap();
        assert_eq!((topology.nics(Rank(0)).len(), topology.rail(Rank(0)), topology.by_nvlink(&facts)), (0, None, None));
        let seat = |bus: u8, key: Option<DomainKey>| {
            let pci = Some(PciAddress { domain: 0, bus, device: 0, function: 0 });
            let device = format!("mlx5_{bus}");
            // Each rank counts the rails of its own host, as far as it sees.
            let nic = NicSeat { device, port: 1, pci, rail: 0, rail_is_given: bus == 9, bytes_per_second: 1 };
            Seat { gpu: pci, domain: key, nics: vec![nic] }
        };
        let fabric = |clique| Some(DomainKey::Fabric("1".into(), clique));
        let seats = vec![seat(1, fabric(1)), seat(2, fabric(2)), seat(2, fabric(1)), seat(9, None)];
        let topology = topology.with_seats(seats);
        let rails: Vec<_> = (0..4).map(|rank| topology.rail(Rank(rank))).collect();
        assert_eq!(rails, [Some(0), Some(1), Some(0), Some(0)]);
        assert_eq!(domains(&topology), [0, 0, 1, 1]);
        let devices = topology.by_nvlink(&facts).unwrap();
        assert_eq!((domains(&devices), devices.domain_count()), (vec![0, 1, 0, 2], 3));
        let one = topology.select(&[Rank(2)]);
        assert_eq!(one.nics(Rank(0))[0].device, "mlx5_2");
        let mut stated = facts;
        stated[0].domain_count = Some(1);
        assert_eq!(topology.by_nvlink(&stated), None);
    }

    #[test]
    fn contradictions_are_errors() {
        let mut some = facts(&["h", "h"]);
        some[1].domain = Some(3);
        assert!(matches!(Topology::from_facts(&some), Err(TopologyError::DomainOnSomeRanks { .. })));
        let mut across = facts(&["h", "i"]);
        across.iter_mut().for_each(|fact| fact.domain = Some(7));
        assert!(matches!(Topology::from_facts(&across), Err(TopologyError::DomainAcrossHosts { .. })));
        let mut many = facts(&["h", "h"]);
        many.iter_mut().for_each(|fact| fact.domain_count = Some(3));
        assert!(matches!(Topology::from_facts(&many), Err(TopologyError::DomainCount { .. })));
        many[1].domain_count = None;
        assert!(matches!(Topology::from_facts(&many), Err(TopologyError::DomainCountDiffers { .. })));
    }
}
