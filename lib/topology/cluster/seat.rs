//! The GPU of a rank and the NICs that it uses. In: facts of its host, its place among the ranks there. Out: [`Seat`].
//! Guarantee: pure; small, as every rank sends its own to all.

use super::{ClusterOptions, DomainKey, domains, pair};
use crate::topology::PciAddress;
use crate::topology::facts::{Gpu, HostFacts};
use serde::{Deserialize, Serialize};

/// Where a rank sits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its GPU; `None` on a host without.
    pub gpu: Option<PciAddress>,
    /// GPUs with equal keys reach each other by NVLink.
    pub domain: Option<DomainKey>,
    /// NICs, nearest first; bytes are striped over them.
    pub nics: Vec<NicSeat>,
}

/// A NIC of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSeat {
    /// Device, such as `mlx5_0`.
    pub device: String,
    /// Port, from 1.
    pub port: u32,
    /// Where it is; `None` for a software device.
    pub pci: Option<PciAddress>,
    /// Its rail: NICs of the same rail are on the same leaf switch.
    pub rail: u32,
    /// Rate one way; 0 when not told.
    pub bytes_per_second: u64,
}

/// The seat of the rank that is number `local` among those of its host, which `token` names. Ranks take the visible
/// GPUs in turn; on a host without GPUs they take its NICs in turn.
pub fn seat(facts: &HostFacts, token: &str, local: usize, options: &ClusterOptions) -> Seat {
    let visible = visible(facts);
    let Some(&gpu) = visible.get(local % visible.len().max(1)) else { return without_gpu(facts, local, options) };
    let pairing = pair(facts, &options.nics);
    let rails = super::rails::rails(&[(facts, pairing.used())], &options.rails);
    let nics = pairing.nics_of_gpu[gpu].iter().map(|&nic| nic_seat(facts, nic, rails[0].get(&nic).copied()));
    Seat {
        gpu: Some(facts.gpus[gpu].pci),
        domain: domains::keys(facts, token).into_iter().nth(gpu),
        nics: nics.collect(),
    }
}

fn without_gpu(facts: &HostFacts, local: usize, options: &ClusterOptions) -> Seat {
    let (nics, _) = super::select::usable(facts, &options.nics);
    let rails = super::rails::rails(&[(facts, nics.clone())], &options.rails);
    let own = nics.get(local % nics.len().max(1));
    Seat {
        nics: own.iter().map(|&&nic| nic_seat(facts, nic, rails[0].get(&nic).copied())).collect(),
        ..Seat::default()
    }
}

fn nic_seat(facts: &HostFacts, nic: usize, rail: Option<u32>) -> NicSeat {
    let nic = &facts.nics[nic];
    NicSeat {
        device: nic.device.clone(),
        port: nic.port,
        pci: nic.pci,
        rail: rail.unwrap_or_default(),
        bytes_per_second: nic.bytes_per_second,
    }
}

/// GPUs that CUDA shows to this process, as positions, in its order: all of them, or those that
/// `CUDA_VISIBLE_DEVICES` names by number or by the beginning of the uuid, up to the first that is none.
pub fn visible(facts: &HostFacts) -> Vec<usize> {
    let Some(list) = &facts.limits.cuda_visible_devices else { return (0..facts.gpus.len()).collect() };
    let find = |name: &str| {
        let named = |gpu: &Gpu| match name.parse::<u32>() {
            Ok(number) => gpu.index == number,
            Err(_) => !name.is_empty() && gpu.uuid.starts_with(name),
        };
        facts.gpus.iter().position(named)
    };
    list.split(',').map(str::trim).map_while(find).collect()
}
