//! Who takes part in a channel. In: the device of each rank. Out: how they reach each other. Guarantee: collective; every rank
//! returns the same verdict; an error on one rank is an error on all.

use super::CollectiveError;
use crate::base::{Deadline, Rank};
use crate::collective::Connection;
use crate::execute::{ExecuteError, Group, PeerAccess, are_near, gather, peer_access};
use crate::memory::device::Device;
use crate::memory::device::collective::params::MAX_RANKS;
use serde::{Deserialize, Serialize};

/// What a rank says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    uuid: [u8; 16],
    pid: u32,
    capability: (u32, u32),
    multiprocessors: u32,
}

impl Member {
    pub(super) fn new(device: &Device) -> Self {
        let properties = device.properties();
        Self {
            uuid: properties.uuid,
            pid: std::process::id(),
            capability: properties.capability,
            multiprocessors: properties.multiprocessors,
        }
    }
}

/// How ranks are placed, the same on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) connection: Connection,
    /// Blocks of 512 threads that a call may have: together, those of all ranks and channels that share a device are resident.
    pub(super) most_blocks: u16,
    /// Whether no two ranks share a device.
    pub(super) alone: bool,
    /// Lowest compute capability.
    pub(super) capability: (u32, u32),
}

/// How members are placed; `nvlink` says whether all pairs are joined by it, `reached` whether all reach each other, `at_once`
/// how many channels run calls at the same time.
pub(super) fn placed(members: &[Member], nvlink: bool, reached: bool, at_once: u32) -> Placed {
    let sharers = |member: &Member| members.iter().filter(|other| other.uuid == member.uuid).count() as u32;
    let most_sharers = members.iter().map(sharers).max().unwrap_or(1).max(1);
    let by_processes = members.iter().any(|one| members.iter().any(|two| one.uuid == two.uuid && one.pid != two.pid));
    let connection = match (by_processes || !reached, nvlink) {
        (true, _) => Connection::Ordered,
        (false, true) => Connection::FullNvlink,
        (false, false) => Connection::Partial,
    };
    let blocks = members.iter().map(|member| member.multiprocessors / most_sharers / at_once.max(1)).min().unwrap_or(1);
    Placed {
        connection,
        most_blocks: u16::try_from(blocks.max(1)).unwrap_or(u16::MAX),
        alone: most_sharers == 1,
        capability: members.iter().map(|member| member.capability).min().unwrap_or_default(),
    }
}

/// Whether `device` is joined to all other members that this process sees by NVLink, and whether it reaches them.
pub(super) fn reach(device: &Device, members: &[Member]) -> Result<(bool, bool), CollectiveError> {
    let (mut nvlink, mut reached) = (true, true);
    for ordinal in 0..Device::count()? {
        let peer = Device::open(ordinal)?;
        let is_member = members.iter().any(|member| member.uuid == peer.properties().uuid);
        if !is_member || peer == *device {
            continue;
        }
        nvlink &= device.has_nvlink_to(&peer);
        reached &= device.can_access(&peer)?;
    }
    Ok((nvlink, reached))
}

/// The error of ranks that no channel joins.
pub(super) fn too_far(group: &Group, why: String) -> CollectiveError {
    CollectiveError::TooFar { ranks: group.size(), most: MAX_RANKS, why }
}

/// All ranks must be of one host or one NVLink domain, and as many as a channel takes.
pub(super) fn expect_near(group: &Group) -> Result<(), CollectiveError> {
    if group.size() > MAX_RANKS {
        return Err(too_far(group, "there are too many".into()));
    }
    let host = |rank| group.topology.host(rank);
    let far = (0..group.size() as u32).map(Rank).find(|&rank| !are_near(&group.topology, Rank(0), rank));
    match far {
        Some(rank) => Err(too_far(
            group,
            format!(
                "rank 0 is on host {}, rank {rank} on {}, and no NVLink fabric joins their GPUs (crossmesh topo)",
                host(Rank(0)),
                host(rank)
            ),
        )),
        None => Ok(()),
    }
}

/// Whether links between the members' GPUs are tested or trusted; collective. Where they may not be used at all there is no
/// channel, unless all members are on one GPU.
pub(super) fn expect_access(
    group: &Group,
    members: &[Member],
    deadline: Deadline,
) -> Result<PeerAccess, CollectiveError> {
    // Read in any case: a word that is no setting is an error.
    match peer_access(group, deadline)? {
        _ if !on_several(members) => Ok(PeerAccess::Trusted),
        (PeerAccess::Off, rank) => {
            let who = format!("rank {rank} on host {}", group.topology.host(rank));
            Err(CollectiveError::NoPeerAccess { who })
        }
        (access, _) => Ok(access),
    }
}

/// The same for members of this process alone, whose links are not tested.
pub(super) fn expect_access_here(members: &[Member]) -> Result<(), CollectiveError> {
    if PeerAccess::of_process()? == PeerAccess::Off && on_several(members) {
        return Err(CollectiveError::NoPeerAccess { who: "this process".into() });
    }
    Ok(())
}

/// Whether the members are on more than one GPU.
fn on_several(members: &[Member]) -> bool {
    members.iter().any(|member| member.uuid != members[0].uuid)
}

/// The fields must be the same on all ranks.
pub(super) fn expect_equal(
    group: &Group,
    fields: &[(&'static str, String)],
    deadline: Deadline,
) -> Result<(), CollectiveError> {
    let mine: Vec<&str> = fields.iter().map(|(_, value)| value.as_str()).collect();
    let all: Vec<Vec<String>> = gather(group, &mine, deadline)?;
    for (index, &(what, _)) in fields.iter().enumerate() {
        let value = |rank: usize| all[rank].get(index).cloned().unwrap_or_else(|| "not stated".into());
        if let Some(other) = (1..all.len()).find(|&rank| value(rank) != value(0)) {
            let (first_value, other_value) = (value(0), value(other));
            let (first, other) = (Rank(0), Rank(other as u32));
            return Err(ExecuteError::OptionsDiffer { first, other, what, first_value, other_value }.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(gpu: u8, pid: u32) -> Member {
        Member { uuid: [gpu; 16], pid, capability: (9, 0), multiprocessors: 132 }
    }

    #[test]
    fn processes_on_one_gpu_are_ordered_by_hosts() {
        let of = |members: &[Member]| placed(members, true, true, 1);
        let apart = of(&[member(1, 10), member(2, 11)]);
        assert_eq!((apart.connection, apart.most_blocks, apart.alone), (Connection::FullNvlink, 132, true));
        let shared = of(&[member(1, 10), member(2, 11), member(1, 12), member(2, 13)]);
        assert_eq!((shared.connection, shared.most_blocks, shared.alone), (Connection::Ordered, 66, false));
        let threads = of(&[member(1, 10), member(2, 10), member(1, 10)]);
        assert_eq!((threads.connection, threads.most_blocks), (Connection::FullNvlink, 66));
        assert_eq!(placed(&[member(1, 10), member(2, 11)], true, true, 3).most_blocks, 44);
    }

    #[test]
    fn only_members_on_several_gpus_need_access_to_peers() {
        assert!(!on_several(&[]));
        assert!(!on_several(&[member(1, 10), member(1, 11), member(1, 10)]));
        assert!(on_several(&[member(1, 10), member(1, 11), member(2, 10)]));
    }

    #[test]
    fn what_is_not_reached_is_ordered_by_hosts() {
        let members = [member(1, 10), member(2, 11)];
        assert_eq!(placed(&members, false, true, 2).connection, Connection::Partial);
        assert_eq!(placed(&members, true, false, 2).connection, Connection::Ordered);
    }
}
