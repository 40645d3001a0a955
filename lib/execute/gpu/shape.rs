//! Where GPUs pass bytes on to each other although not all of a transfer stays among them. In: places of ranks, what they
//! stated about their tensors. Out: domains, and whether the GPUs of each read from each other. Guarantee: pure, so the same
//! on every rank; a domain of the result holds whole domains of the hosts, so what goes between its own goes between theirs.

use super::super::agree::Agreement;
use super::super::tensors::MemoryOf;
use crate::base::{DomainId, Rank};
use crate::topology::Topology;
use crate::topology::cluster::DomainKey;
use std::collections::{BTreeMap, HashMap};

/// Domains of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// All ranks in them.
    pub(crate) topology: Topology,
    /// Per domain, whether its GPUs read from each other.
    direct: Vec<bool>,
    /// Per rank, whether its GPU takes part in that.
    members: Vec<bool>,
}

/// What is known of a domain of the hosts.
#[derive(Debug, Clone)]
struct Found<'a> {
    /// Each rank with tensors has them on a GPU of its own, in memory that peers map.
    fits: bool,
    /// By fabric handles too.
    has_fabric: bool,
    /// The fabric of all these GPUs.
    fabric: Option<&'a DomainKey>,
    /// Ranks with tensors.
    ranks: u32,
}

impl Shape {
    /// The domains; `joins_hosts` says that GPUs of several hosts may read from each other where a fabric joins them. `None`
    /// where no two GPUs would.
    pub(super) fn of(topology: &Topology, agreement: &Agreement, joins_hosts: bool) -> Option<Self> {
        let found = look(topology, agreement);
        let mut first: BTreeMap<&DomainKey, u32> = BTreeMap::new();
        let joined: Vec<u32> = (0..)
            .zip(&found)
            .map(|(number, domain)| match domain.fabric {
                Some(key) if joins_hosts && domain.fits && domain.has_fabric => *first.entry(key).or_insert(number),
                _ => number,
            })
            .collect();
        let ranks = || (0..topology.size() as u32).map(Rank);
        let shaped = topology.in_domains(ranks().map(|rank| joined[topology.domain(rank).index()]));
        let (mut fits, mut count) = (vec![true; shaped.domain_count()], vec![0; shaped.domain_count()]);
        let mut seen = vec![false; found.len()];
        for rank in ranks() {
            let (of_host, domain) = (topology.domain(rank).index(), shaped.domain(rank).index());
            if !std::mem::replace(&mut seen[of_host], true) {
                fits[domain] &= found[of_host].fits;
                count[domain] += found[of_host].ranks;
            }
        }
        let direct: Vec<bool> = fits.iter().zip(&count).map(|(&fits, &count)| fits && count > 1).collect();
        let takes_part =
            |rank: Rank| direct[shaped.domain(rank).index()] && agreement.memory[rank.index()] != MemoryOf::None;
        let members = ranks().map(takes_part).collect();
        direct.contains(&true).then_some(Self { topology: shaped, direct, members })
    }

    /// Whether GPUs of `domain` read from each other.
    pub(crate) fn is_direct(&self, domain: DomainId) -> bool {
        self.direct[domain.index()]
    }

    /// Ranks of the domain of `rank` whose GPUs read from each other, ascending.
    pub(crate) fn neighbours(&self, rank: Rank) -> impl Iterator<Item = Rank> + '_ {
        let domain = self.topology.domain(rank);
        (0..self.members.len() as u32)
            .map(Rank)
            .filter(move |&other| self.has(other) && self.topology.domain(other) == domain)
    }

    /// Whether the GPU of `rank` reads from others, or is read from.
    pub(crate) fn has(&self, rank: Rank) -> bool {
        self.members[rank.index()]
    }
}

/// Looks at each domain of the hosts.
fn look<'a>(topology: &'a Topology, agreement: &Agreement) -> Vec<Found<'a>> {
    let mut users: HashMap<[u8; 16], u32> = HashMap::new();
    for device in agreement.devices.iter().flatten() {
        *users.entry(*device).or_default() += 1;
    }
    let none = Found { fits: true, has_fabric: true, fabric: None, ranks: 0 };
    let mut found = vec![none; topology.domain_count()];
    for (rank, memory) in agreement.memory.iter().enumerate().filter(|(_, memory)| **memory != MemoryOf::None) {
        let domain = &mut found[topology.domain(Rank(rank as u32)).index()];
        let sides = &agreement.mappable[rank];
        let is_alone = agreement.devices[rank].iter().all(|device| users[device] == 1);
        domain.fits &= matches!(memory, MemoryOf::Device(_))
            && is_alone
            && sides.iter().all(|memory| memory.local || memory.fabric);
        domain.has_fabric &= sides.iter().all(|memory| memory.fabric);
        let fabric = topology.fabric(Rank(rank as u32));
        domain.fabric = if domain.ranks == 0 { fabric } else { domain.fabric.filter(|&key| Some(key) == fabric) };
        domain.ranks += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::NodeId;
    use crate::execute::tensors::Mappable;
    use crate::topology::{Place, Seat};

    /// A rank: its host, the clique of its GPU in the one fabric, where its tensors are, its GPU.
    type Stated = (u32, Option<u32>, MemoryOf, u8);

    fn shape(ranks: &[Stated], unmapped: &[usize], joins_hosts: bool) -> Option<(Vec<u32>, Vec<bool>)> {
        let place =
            |&(node, ..): &Stated| Place { host: format!("h{node}"), node: NodeId(node), domain: DomainId(node) };
        let seat = |&(_, clique, ..): &Stated| Seat {
            domain: clique.map(|clique| DomainKey::Fabric("f".into(), clique)),
            ..Seat::default()
        };
        let topology =
            Topology::from_places(ranks.iter().map(place).collect()).with_seats(ranks.iter().map(seat).collect());
        let mut agreement = Agreement {
            context: 0,
            all_shared: vec![false; ranks.len()],
            memory: ranks.iter().map(|rank| rank.2).collect(),
            mappable: vec![[Mappable::default(); 2]; ranks.len()],
            devices: ranks.iter().map(|rank| vec![[rank.3; 16]]).collect(),
            chunk: 0,
            cores: 1,
        };
        for &rank in unmapped {
            agreement.mappable[rank][1].fabric = false;
        }
        let shape = Shape::of(&topology, &agreement, joins_hosts)?;
        let all = || (0..ranks.len() as u32).map(Rank);
        let domains = all().map(|rank| shape.topology.domain(rank).0).collect();
        Some((domains, all().map(|rank| shape.has(rank)).collect()))
    }

    #[test]
    fn trays_of_one_clique_are_one_domain() {
        let gpu = MemoryOf::Device(0);
        // Four trays of two, in two cliques.
        let trays: Vec<Stated> = (0..8).map(|rank| (rank / 2, Some(rank / 4), gpu, rank as u8)).collect();
        assert_eq!(shape(&trays, &[], true), Some((vec![0, 0, 0, 0, 1, 1, 1, 1], vec![true; 8])));
        let by_host = vec![0, 0, 1, 1, 2, 2, 3, 3];
        assert_eq!(shape(&trays, &[], false), Some((by_host, vec![true; 8])));
        // One whose memory has no fabric handle keeps its tray apart, where it is reached by other handles.
        assert_eq!(shape(&trays, &[2], true), Some((vec![0, 0, 1, 1, 2, 2, 2, 2], vec![true; 8])));
    }

    #[test]
    fn each_rank_of_a_domain_must_have_a_gpu_of_its_own() {
        let gpu = MemoryOf::Device(0);
        let mut ranks = [(0, None, gpu, 0), (0, None, gpu, 1), (1, None, gpu, 2), (1, None, gpu, 3)];
        assert_eq!(shape(&ranks, &[], true), Some((vec![0, 0, 1, 1], vec![true; 4])));
        ranks[1].2 = MemoryOf::Host;
        assert_eq!(shape(&ranks, &[], true), Some((vec![0, 0, 1, 1], vec![false, false, true, true])));
        // Its domain has one GPU left, which has nobody to read from.
        ranks[1].2 = MemoryOf::None;
        assert_eq!(shape(&ranks, &[], true), Some((vec![0, 0, 1, 1], vec![false, false, true, true])));
        ranks[3].3 = 2;
        assert_eq!(shape(&ranks, &[], true), None, "a shared GPU");
    }
}
