//! Which way bytes of GPUs go. In: what all ranks stated about their tensors. Out: straight between the GPUs, with their
//! numbers; or through memory of the hosts, all or between domains alone, with the reason. Guarantee: every rank returns the same verdict; devices are
//! told apart by their identity, whatever numbers processes know them by; GPUs are read from only when a test of their
//! link has passed.

use super::super::agree::{Agreement, commit, gather};
use super::super::tensors::{LocalTensors, Mappable, MemoryOf};
use super::super::{ExecuteError, Group, Mapped, Side};
use super::access::{PeerAccess, peer_access};
use super::handles::{Agreed, Near, agree_handles, are_near};
use super::links::broken_link;
use super::shape::Shape;
use crate::base::{Deadline, Rank};
use crate::memory::device::{Device, Handles, Kernels, inspect};
use crate::plan::Manifest;
use crate::route::RouteKind;
use crate::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What ranks need to read from each other's GPUs.
#[derive(Debug)]
pub(crate) struct Places {
    /// This rank's device with its kernels, loaded before anything runs; `None` for a rank that reads from nobody.
    pub(super) device: Option<(Device, Arc<Kernels>)>,
    /// Whether several ranks use one device.
    pub(super) shared: bool,
    /// By which handles memory is mapped.
    pub(crate) agreed: Agreed,
    /// All ranks in one domain: every rank reaches every other's memory, as far as flows ask for it.
    pub(super) together: Topology,
}

/// Which way bytes go.
#[derive(Debug)]
pub(crate) enum Way {
    /// From GPU to GPU.
    Direct {
        places: Places,
        /// Each device a domain of its own: what routes count crossings by.
        by_device: Topology,
    },
    /// Through memory of the hosts between domains, and from GPU to GPU inside those whose shape says so.
    Inside { places: Places, shape: Shape, why: String },
    /// Through memory of the hosts, and why.
    Staged(String),
}

impl Way {
    /// The domains that the route counts crossings of; those of the hosts where this is `None`.
    pub(crate) fn topology(&self) -> Option<&Topology> {
        match self {
            Self::Direct { by_device, .. } => Some(by_device),
            Self::Inside { shape, .. } => Some(&shape.topology),
            Self::Staged(_) => None,
        }
    }

    /// Where GPUs run what is inside domains.
    pub(crate) fn shape(&self) -> Option<&Shape> {
        match self {
            Self::Inside { shape, .. } => Some(shape),
            _ => None,
        }
    }
}

/// Looks at all device memory of this rank's tensors, each buffer once, and notes how peers can map it, and where it is.
pub(crate) fn inspect_tensors(mut local: LocalTensors) -> Result<LocalTensors, ExecuteError> {
    let (mut mappable, mut identities) = ([Mappable::default(); 2], BTreeSet::new());
    for (side, mappable) in [Side::Source, Side::Destination].into_iter().zip(&mut mappable) {
        let mut known = BTreeSet::new();
        for tensor in local.side(side).iter().flatten() {
            let (address, bytes) = (tensor.buffer.as_ptr() as u64, tensor.buffer.bytes());
            if let Some(device) = tensor.buffer.device()
                && bytes > 0
                && known.insert((address, bytes))
            {
                let device = Device::open(device)?;
                let found = inspect(&device, address, bytes)?;
                identities.insert(device.properties().uuid);
                mappable.local &= found.origin.is_shareable();
                mappable.fabric &= found.fabric;
            }
        }
    }
    (local.mappable, local.identities) = (mappable, identities.into_iter().collect());
    Ok(local)
}

/// Finds out; collective.
pub(crate) fn find_way(
    group: &Group,
    manifest: &Manifest,
    agreement: &Agreement,
    route: RouteKind,
    deadline: Deadline,
) -> Result<Way, ExecuteError> {
    check_unchanged(manifest)?;
    if let Some(why) = why_all_staged(group, route) {
        return Ok(Way::Staged(why));
    }
    let devices: BTreeSet<&[u8; 16]> = agreement.devices.iter().flatten().collect();
    let access = if devices.len() > 1 { peer_access(group, deadline)?.0 } else { PeerAccess::Trusted };
    let apart = why_apart(group, agreement);
    let why = match apart {
        apart if access == PeerAccess::Off => {
            return Ok(Way::Staged(apart.unwrap_or_else(|| "CROSSMESH_PEER_ACCESS is off".into())));
        }
        Some(why) => why,
        None => match find_direct(group, agreement, access, deadline)? {
            Ok(way) => return Ok(way),
            Err(why) => why,
        },
    };
    let mut shape = Shape::of(&group.topology, agreement, true);
    let by_host = Shape::of(&group.topology, agreement, false);
    if shape == by_host {
        shape = None;
    }
    for shape in [shape, by_host].into_iter().flatten() {
        match find_inside(group, agreement, &shape, access, deadline)? {
            Ok(places) => return Ok(Way::Inside { places, shape, why }),
            Err(hindered) if group.rank == Rank(0) => {
                log::info!("GPUs of a domain do not read from each other what comes from outside: {hindered}");
            }
            Err(_) => {}
        }
    }
    Ok(Way::Staged(why))
}

/// From GPU to GPU, or why not; collective.
fn find_direct(
    group: &Group,
    agreement: &Agreement,
    access: PeerAccess,
    deadline: Deadline,
) -> Result<Result<Way, String>, ExecuteError> {
    let memory = &agreement.memory;
    let device = open_device(group, agreement, true, deadline)?;
    let mine: [u8; 16] = device.as_ref().map_or([0; 16], |device| device.properties().uuid);
    let identities: Vec<[u8; 16]> = gather(group, &mine, deadline)?;
    let ranks: Vec<usize> = (0..memory.len()).filter(|&rank| matches!(memory[rank], MemoryOf::Device(_))).collect();
    let mut numbers: BTreeMap<[u8; 16], u32> = BTreeMap::new();
    for &rank in &ranks {
        let next = numbers.len() as u32;
        numbers.entry(identities[rank]).or_insert(next);
    }
    let near = Near::Reachable(&group.topology);
    let needed = agreement.mappable.iter().flatten().any(|memory| !memory.local && memory.fabric);
    let agreed = match agree_handles(group, near, device.as_ref(), needed, deadline)? {
        Ok(agreed) => agreed,
        Err(why) => return Ok(Err(why)),
    };
    let shared = numbers.len() < ranks.len();
    if agreed.spans && shared {
        return Ok(Err(
            "ranks of several hosts share GPUs, and words by which hosts order copies do not leave a host".into()
        ));
    }
    if let Some(rank) = agreement.mappable.iter().position(|[sources, _]| !suits(sources, &agreed, agreed.spans)) {
        let how = if agreed.spans { "cannot map from other hosts: it has no fabric handle" } else { "cannot map" };
        return Ok(Err(format!("rank {rank} has sources in memory that peers {how}")));
    }
    // Ranks without tensors are in no flow; their number does not matter.
    let domains = (0..memory.len()).map(|rank| numbers.get(&identities[rank]).copied().unwrap_or(0));
    let by_device = Topology::from_domains(&domains.collect::<Vec<_>>());
    let places = make_ready(group, near, (device, agreed), shared, access, deadline)?;
    Ok(places.map(|places| Way::Direct { places, by_device }))
}

/// What GPUs need to read from each other inside the domains of a shape, or why they cannot; collective.
fn find_inside(
    group: &Group,
    agreement: &Agreement,
    shape: &Shape,
    access: PeerAccess,
    deadline: Deadline,
) -> Result<Result<Places, String>, ExecuteError> {
    let near = Near::InDomains(&shape.topology);
    let device = open_device(group, agreement, shape.has(group.rank), deadline)?;
    let members = || (0..).map(Rank).zip(&agreement.mappable).filter(|&(rank, _)| shape.has(rank));
    let needed = members().any(|(_, sides)| sides.iter().any(|memory| !memory.local && memory.fabric));
    let agreed = match agree_handles(group, near, device.as_ref(), needed, deadline)? {
        Ok(agreed) => agreed,
        Err(why) => return Ok(Err(why)),
    };
    // Domains of several hosts have fabric handles by their shape.
    let unmapped = members().find(|(_, sides)| sides.iter().any(|memory| !suits(memory, &agreed, false)));
    if let Some((rank, _)) = unmapped {
        return Ok(Err(format!("rank {rank} has tensors in memory that peers cannot map")));
    }
    make_ready(group, near, (device, agreed), false, access, deadline)
}

/// This rank's device, if its tensors are on one and it takes part; collective.
fn open_device(
    group: &Group,
    agreement: &Agreement,
    takes_part: bool,
    deadline: Deadline,
) -> Result<Option<Device>, ExecuteError> {
    let opened = match agreement.memory[group.rank.index()] {
        MemoryOf::Device(ordinal) if takes_part => Device::open(ordinal).map(Some),
        _ => Ok(None),
    };
    commit(group, opened.map_err(ExecuteError::from), deadline)
}

/// Loads kernels and tests the links; what is wrong with these.
fn make_ready(
    group: &Group,
    near: Near<'_>,
    (device, agreed): (Option<Device>, Agreed),
    shared: bool,
    access: PeerAccess,
    deadline: Deadline,
) -> Result<Result<Places, String>, ExecuteError> {
    let kernels = device.as_ref().map(Kernels::load).transpose().map_err(ExecuteError::from);
    let kernels = commit(group, kernels, deadline)?;
    if access == PeerAccess::Tested
        && let Some(why) = broken_link(group, near, device.as_ref(), &agreed, deadline)?
    {
        return Ok(Err(why));
    }
    let together = Topology::from_domains(&vec![0; group.size()]);
    Ok(Ok(Places { device: device.zip(kernels), shared, agreed, together }))
}

/// Tensors whose elements are added up or cast on the way are refused: what moves bytes of devices copies them.
fn check_unchanged(manifest: &Manifest) -> Result<(), ExecuteError> {
    for tensor in manifest.tensors() {
        let change = match tensor.source.reduction() {
            Some(_) => "its terms are added up",
            None if tensor.is_cast() => "its elements are cast",
            None => continue,
        };
        return Err(ExecuteError::ChangeOnDevices { tensor: tensor.name.clone(), change });
    }
    Ok(())
}

/// Whether peers can map memory by the handles that were agreed on, from other hosts too if it is `far`.
fn suits(memory: &Mappable, agreed: &Agreed, far: bool) -> bool {
    match agreed.handles {
        _ if far => memory.fabric,
        Handles::Local => memory.local,
        Handles::Between | Handles::Fabric => memory.local || memory.fabric,
    }
}

/// Why a destination cannot be read from, where the plan has ranks that pass on what they received.
pub(crate) fn unmapped_destination(agreement: &Agreement, places: &Places) -> Option<String> {
    let rank = agreement
        .mappable
        .iter()
        .position(|[_, destinations]| !suits(destinations, &places.agreed, places.agreed.spans))?;
    Some(format!("rank {rank} has destinations in memory that peers cannot map, and others read them"))
}

/// Why no bytes go from GPU to GPU.
fn why_all_staged(group: &Group, route: RouteKind) -> Option<String> {
    if route == RouteKind::GatherBroadcast {
        return Some(format!("route {route} stores bytes at ranks that do not want them"));
    }
    (group.mapped == Mapped::Staged).then(|| "CROSSMESH_MAPPED is staged".to_string())
}

/// Why not all bytes can go from GPU to GPU, by what all ranks stated.
fn why_apart(group: &Group, agreement: &Agreement) -> Option<String> {
    let memory = &agreement.memory;
    let on_host = |memory: &MemoryOf| matches!(memory, MemoryOf::Host | MemoryOf::Mixed);
    if let Some(rank) = memory.iter().position(on_host) {
        let place = if memory[rank] == MemoryOf::Host { "in memory of its host" } else { "in several places" };
        return Some(format!("rank {rank} has tensors {place}"));
    }
    if let Some(rank) = agreement.mappable.iter().position(|[sources, _]| !sources.local && !sources.fabric) {
        return Some(format!("rank {rank} has sources in memory that peers cannot map"));
    }
    let mut ranks = (0..memory.len() as u32).map(Rank).filter(|rank| memory[rank.index()] != MemoryOf::None);
    let first = ranks.next().unwrap_or_default();
    let topology = &group.topology;
    let is_far = |rank: Rank| match topology.node(rank) == topology.node(first) {
        true => topology.domain(rank) != topology.domain(first),
        false => !are_near(topology, rank, first),
    };
    let far = ranks.find(|&rank| is_far(rank))?;
    let (host, other) = (group.topology.host(first), group.topology.host(far));
    Some(format!("ranks {first} on host {host} and {far} on host {other} are in different domains"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Dtype, Layout, Mesh, Placement, Reduction};
    use crate::plan::Transform;

    #[test]
    fn elements_that_change_are_refused() {
        let side = |dtype, placement| {
            let mesh = Arc::new(Mesh::contiguous(vec![2], Rank(0)).unwrap());
            Arc::new(Layout::new(vec![4], dtype, mesh, vec![placement]).unwrap())
        };
        let verdict = |from, placement, to| {
            let mut manifest = Manifest::new();
            let (source, destination) = (side(from, placement), side(to, Placement::shard(0)));
            manifest.push_with("w", source, destination, Transform::Cast).unwrap();
            check_unchanged(&manifest).map_err(|error| error.to_string())
        };
        let (whole, terms) = (Placement::Replicate, Placement::Partial(Reduction::Sum));
        assert_eq!(verdict(Dtype::BF16, whole.clone(), Dtype::BF16), Ok(()));
        let cast = verdict(Dtype::F32, whole, Dtype::BF16).unwrap_err();
        assert!(cast.starts_with("tensor \"w\": its elements are cast on the way"), "{cast}");
        let sum = verdict(Dtype::F32, terms, Dtype::F32).unwrap_err();
        assert!(sum.starts_with("tensor \"w\": its terms are added up on the way"), "{sum}");
    }
}
