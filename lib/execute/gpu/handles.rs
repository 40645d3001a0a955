//! By which handles ranks map each other's memory on GPUs. In: the device of each rank, which ranks do,
//! `CROSSMESH_GPU_HANDLES`. Out: the handles, or why GPUs of several hosts cannot use any. Guarantee: collective, the same
//! verdict on every rank; fabric handles are used only after every rank has mapped memory of every other rank that it will
//! reach by them, since a handle that opens at home may not open on another host.

use super::super::agree::{chain, commit, gather};
use super::super::{ExecuteError, Group};
use crate::base::{Deadline, NodeId, Rank, env};
use crate::memory::device::{Device, Handles, MappedBy, PeerMemory, SharedHandle, fabric_probe};
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What the user wants (`CROSSMESH_GPU_HANDLES`), the most careful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
enum Choice {
    /// No fabric handles.
    Local,
    /// Between hosts.
    #[default]
    Auto,
    /// On one host too.
    Fabric,
}

impl std::str::FromStr for Choice {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "local" => Ok(Self::Local),
            "auto" => Ok(Self::Auto),
            "fabric" => Ok(Self::Fabric),
            _ => Err(()),
        }
    }
}

/// What ranks decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Which handles.
    pub(crate) handles: Handles,
    /// Whether some reach each other across hosts.
    pub(crate) spans: bool,
    /// Why fabric handles are not used on one host where they were wanted.
    pub(crate) refused: Option<String>,
}

/// Memories of peers that a rank mapped, counted by how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MappedMemories {
    /// Of this process.
    pub pointers: u32,
    /// By the driver's handles of cudaMalloc.
    pub ipc: u32,
    /// By descriptors.
    pub descriptors: u32,
    /// By fabric handles.
    pub fabric: u32,
    /// Why there are no fabric handles where `CROSSMESH_GPU_HANDLES` asked for them on one host.
    pub without_fabric: Option<String>,
}

impl MappedMemories {
    /// Counts one more.
    pub(super) fn add(&mut self, by: MappedBy) {
        match by {
            MappedBy::Pointer => self.pointers += 1,
            MappedBy::Ipc => self.ipc += 1,
            MappedBy::Descriptor => self.descriptors += 1,
            MappedBy::Fabric => self.fabric += 1,
        }
    }
}

impl fmt::Display for MappedMemories {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pointers, ipc, descriptors, fabric, .. } = self;
        write!(formatter, "{fabric} by fabric handles, {descriptors} by descriptors, {ipc} by cudaMalloc's handles, ")?;
        write!(formatter, "{pointers} by pointers")
    }
}

/// Whose GPUs map each other's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Near<'a> {
    /// Those of one host, or of one NVLink fabric.
    Reachable(&'a Topology),
    /// Those of one domain.
    InDomains(&'a Topology),
}

impl Near<'_> {
    pub(super) fn topology(&self) -> &Topology {
        match self {
            Self::Reachable(topology) | Self::InDomains(topology) => topology,
        }
    }

    /// Whether two ranks do.
    pub(super) fn joins(&self, one: Rank, other: Rank) -> bool {
        match self {
            Self::Reachable(topology) => are_near(topology, one, other),
            Self::InDomains(topology) => topology.domain(one) == topology.domain(other),
        }
    }

    /// Whether some of these ranks do so from several hosts.
    fn spans(&self, ranks: impl Iterator<Item = Rank>) -> bool {
        match self {
            Self::Reachable(topology) => {
                is_on_several(topology, ranks.filter_map(|rank| Some((topology.fabric(rank)?, rank))))
            }
            Self::InDomains(topology) => is_on_several(topology, ranks.map(|rank| (topology.domain(rank), rank))),
        }
    }
}

/// Whether the GPUs of two ranks reach each other's memory at all: on one host, or in one NVLink domain.
pub(crate) fn are_near(topology: &Topology, one: Rank, other: Rank) -> bool {
    let fabric = topology.fabric(one);
    topology.node(one) == topology.node(other) || (fabric.is_some() && fabric == topology.fabric(other))
}

/// Decides; collective. `needed` says that some memory has nothing but fabric handles. The inner error is why GPUs on
/// several hosts do not reach each other.
pub(crate) fn agree_handles(
    group: &Group,
    near: Near<'_>,
    device: Option<&Device>,
    needed: bool,
    deadline: Deadline,
) -> Result<Result<Agreed, String>, ExecuteError> {
    let wanted = env::value::<Choice>(env::GPU_HANDLES).map_err(ExecuteError::from);
    let wanted = commit(group, wanted.map(Option::unwrap_or_default), deadline)?;
    let all: Vec<(bool, Choice)> = gather(group, &(device.is_some(), wanted), deadline)?;
    let choice = all.iter().map(|&(_, choice)| choice).min().unwrap_or_default();
    let with_device = all.iter().enumerate().filter(|(_, (has, _))| *has).map(|(rank, _)| Rank(rank as u32));
    let spans = near.spans(with_device);
    let local = Agreed { handles: Handles::Local, spans, refused: None };
    match (choice, spans) {
        (Choice::Local, true) => {
            return Ok(Err("CROSSMESH_GPU_HANDLES is local, and ranks are on several hosts".into()));
        }
        (Choice::Local, false) => return Ok(Ok(local)),
        (Choice::Auto, false) if !needed => return Ok(Ok(local)),
        _ => {}
    }
    let handles = if choice == Choice::Fabric || !spans { Handles::Fabric } else { Handles::Between };
    Ok(match trial(group, near, device, handles, deadline)? {
        None => Ok(Agreed { handles, ..local }),
        Some(why) if spans => Err(why),
        Some(why) => {
            if group.rank == Rank(0) {
                log::warn!("GPUs of this host map each other's memory without fabric handles: {why}");
            }
            Ok(Agreed { refused: Some(why), ..local })
        }
    })
}

/// Whether ranks with the same key are on several hosts.
fn is_on_several<K: Ord>(topology: &Topology, mut ranks: impl Iterator<Item = (K, Rank)>) -> bool {
    let mut first: BTreeMap<K, NodeId> = BTreeMap::new();
    ranks.any(|(key, rank)| *first.entry(key).or_insert(topology.node(rank)) != topology.node(rank))
}

/// Maps a small allocation of every rank that is to be reached by a fabric handle; what is in the way, the same on all.
fn trial(
    group: &Group,
    near: Near<'_>,
    device: Option<&Device>,
    handles: Handles,
    deadline: Deadline,
) -> Result<Option<String>, ExecuteError> {
    let place = |rank: Rank| format!("rank {rank} on host {}", group.topology.host(rank));
    let probe = device.map(fabric_probe).transpose();
    let mine: Result<Option<SharedHandle>, String> = match &probe {
        Ok(probe) => Ok(probe.as_ref().map(|(handle, ..)| handle.clone())),
        Err(error) => Err(chain(error)),
    };
    let all: Vec<Result<Option<SharedHandle>, String>> = gather(group, &mine, deadline)?;
    let refusal = all.iter().enumerate().find_map(|(rank, told)| Some((Rank(rank as u32), told.as_ref().err()?)));
    if let Some((rank, why)) = refusal {
        return Ok(Some(format!("{}: {why}", place(rank))));
    }
    let try_one = |(rank, told): (usize, &Result<Option<SharedHandle>, String>)| {
        let (peer, device, handle) = (Rank(rank as u32), device?, told.as_ref().ok()?.as_ref()?);
        let server = group.server_of(peer);
        let wanted = handles == Handles::Fabric || server.is_none();
        if peer == group.rank || !wanted || !near.joins(group.rank, peer) {
            return None;
        }
        let opened = PeerMemory::open(device, handle, &group.segments, server, deadline);
        opened.err().map(|error| (peer, chain(&error)))
    };
    let failure = all.iter().enumerate().find_map(try_one);
    let failures: Vec<Option<(Rank, String)>> = gather(group, &failure, deadline)?;
    // Until here, so that everybody found it.
    drop(probe);
    Ok(failures.iter().enumerate().find_map(|(rank, failure)| {
        let (peer, why) = failure.as_ref()?;
        let (one, other) = (place(Rank(rank as u32)), place(*peer));
        Some(format!(
            "{one} cannot map memory of {other} by a fabric handle: {why}; look at nvidia-imex-ctl -N: the hosts must be \
             READY in one IMEX domain, and the job's channel the same on both"
        ))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DomainId;
    use crate::topology::cluster::DomainKey;
    use crate::topology::{Place, Seat};

    fn topology(ranks: &[(u32, Option<(&str, u32)>)]) -> Topology {
        let place =
            |&(node, _): &(u32, _)| Place { host: format!("h{node}"), node: NodeId(node), domain: DomainId(node) };
        let seat = |&(_, fabric): &(u32, Option<(&str, u32)>)| Seat {
            domain: fabric.map(|(cluster, clique)| DomainKey::Fabric(cluster.into(), clique)),
            ..Seat::default()
        };
        Topology::from_places(ranks.iter().map(place).collect()).with_seats(ranks.iter().map(seat).collect())
    }

    #[test]
    fn only_one_clique_of_one_fabric_joins_hosts() {
        let (one, other, split) = (Some(("a", 1)), Some(("b", 1)), Some(("a", 2)));
        let joined = topology(&[(0, one), (1, one), (1, other), (2, split), (3, None), (0, None)]);
        let near = |from: u32, to: u32| are_near(&joined, Rank(from), Rank(to));
        assert!(near(0, 1) && near(1, 2), "one fabric; one host");
        assert!(!near(0, 2) && !near(0, 3) && !near(0, 4) && !near(4, 5), "nothing joins these");
        assert!(near(0, 5));
        let of = |ranks: &[u32]| Near::Reachable(&joined).spans(ranks.iter().map(|&rank| Rank(rank)));
        let in_domains = |ranks: &[u32]| Near::InDomains(&joined).spans(ranks.iter().map(|&rank| Rank(rank)));
        assert!(of(&[0, 1]) && of(&[4, 1, 3, 0]) && !in_domains(&[0, 1]));
        assert!(!of(&[0, 2, 3, 4, 5]) && !of(&[]));
    }

    #[test]
    fn the_most_careful_choice_holds() {
        let read = |text: &str| text.parse::<Choice>();
        assert!(read("local") < read("auto") && read("auto") < read("fabric") && read("ipc").is_err());
    }
}
