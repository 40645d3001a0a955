//! Which rank is on which GPU. In: what all ranks stated about their tensors. Out: this rank's device, numbers of all
//! devices. Guarantee: every rank returns the same verdict; devices are told apart by their identity, whatever numbers
//! processes know them by.

use super::super::agree::{commit, gather};
use super::super::tensors::MemoryOf;
use super::super::{ExecuteError, Group};
use crate::base::{Deadline, Rank};
use crate::memory::device::{Device, Kernels};
use crate::topology::Topology;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Places of all ranks.
#[derive(Debug)]
pub(crate) struct Places {
    /// This rank's device with its kernels, loaded before anything runs; `None` for a rank without tensors.
    pub(super) device: Option<(Device, Arc<Kernels>)>,
    /// Whether several ranks use one device.
    pub(super) shared: bool,
    /// Each device a domain of its own: what routes count crossings by.
    pub(crate) by_device: Topology,
    /// All ranks in one domain: every rank reaches every other's memory.
    pub(super) together: Topology,
}

/// Finds out; collective.
pub(crate) fn identify(group: &Group, memory: &[MemoryOf], deadline: Deadline) -> Result<Places, ExecuteError> {
    check_memory(group, memory)?;
    let opened = match memory[group.rank.index()] {
        MemoryOf::Device(ordinal) => open(ordinal).map(Some),
        _ => Ok(None),
    };
    let device = commit(group, opened, deadline)?;
    let mine: [u8; 16] = device.as_ref().map_or([0; 16], |(device, _)| device.properties().uuid);
    let identities: Vec<[u8; 16]> = gather(group, &mine, deadline)?;
    let ranks: Vec<usize> = (0..memory.len()).filter(|&rank| matches!(memory[rank], MemoryOf::Device(_))).collect();
    let mut numbers: BTreeMap<[u8; 16], u32> = BTreeMap::new();
    for &rank in &ranks {
        let next = numbers.len() as u32;
        numbers.entry(identities[rank]).or_insert(next);
    }
    // Ranks without tensors are in no flow; their number does not matter.
    let domains: Vec<u32> =
        (0..memory.len()).map(|rank| numbers.get(&identities[rank]).copied().unwrap_or(0)).collect();
    Ok(Places {
        device,
        shared: numbers.len() < ranks.len(),
        by_device: Topology::from_domains(&domains),
        together: Topology::from_domains(&vec![0; memory.len()]),
    })
}

fn open(ordinal: u32) -> Result<(Device, Arc<Kernels>), ExecuteError> {
    let device = Device::open(ordinal)?;
    let kernels = Kernels::load(&device)?;
    Ok((device, kernels))
}

/// All tensors must be on devices of one host.
fn check_memory(group: &Group, memory: &[MemoryOf]) -> Result<(), ExecuteError> {
    let devices: Vec<Rank> = (0..memory.len())
        .filter(|&rank| matches!(memory[rank], MemoryOf::Device(_)))
        .map(|rank| Rank(rank as u32))
        .collect();
    let other = devices.first().copied().unwrap_or_default();
    for (rank, memory) in memory.iter().enumerate() {
        let found = match memory {
            MemoryOf::Host => "in the memory of its host",
            MemoryOf::Mixed => "in several places",
            MemoryOf::None | MemoryOf::Device(_) => continue,
        };
        return Err(ExecuteError::MixedMemory { rank: Rank(rank as u32), found, other });
    }
    let far = devices.iter().find(|&&rank| group.topology.node(rank) != group.topology.node(other));
    match far {
        Some(&rank) => Err(ExecuteError::DevicesOfHosts {
            rank,
            host: group.topology.host(rank).to_string(),
            other,
            other_host: group.topology.host(other).to_string(),
        }),
        None => Ok(()),
    }
}
