//! The GPU of a rank and the NICs that it uses. In: facts of its host, its place among the ranks there. Out: [`Seat`].
//! Guarantee: pure; small, as every rank sends its own to all.

use super::{ClusterOptions, DomainKey, domains, pair, rails};
use crate::base::NodeId;
use crate::topology::PciAddress;
use crate::topology::facts::{Gpu, HostFacts};
use serde::{Deserialize, Serialize};
use std::fmt;

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
    /// Whether the user stated the rail.
    pub rail_is_given: bool,
    /// Rate one way; 0 when not told.
    pub bytes_per_second: u64,
}

/// The seat of the rank that is number `local` among those of its host, which `token` names. Ranks take the visible
/// GPUs in turn; on a host without GPUs they take its NICs in turn.
pub fn seat(facts: &HostFacts, token: &str, local: usize, options: &ClusterOptions) -> Seat {
    let visible = visible(facts);
    let Some(&gpu) = visible.get(local % visible.len().max(1)) else {
        let (nics, _) = super::select::usable(facts, &options.nics);
        let own = nics.get(local % nics.len().max(1)).copied();
        return Seat { nics: nic_seats(facts, own.as_slice(), &nics, options), ..Seat::default() };
    };
    let pairing = pair(facts, &options.nics);
    Seat {
        gpu: Some(facts.gpus[gpu].pci),
        domain: domains::keys(facts, token).into_iter().nth(gpu),
        nics: nic_seats(facts, &pairing.nics_of_gpu[gpu], &pairing.used(), options),
    }
}

/// Seats of `nics`, which are among the `used` ones of the host.
fn nic_seats(facts: &HostFacts, nics: &[usize], used: &[usize], options: &ClusterOptions) -> Vec<NicSeat> {
    let rails = rails::rails(&[(facts, used.to_vec())], &options.rails);
    let nic_seat = |&position: &usize| {
        let nic = &facts.nics[position];
        NicSeat {
            device: nic.device.clone(),
            port: nic.port,
            pci: nic.pci,
            rail: rails[0].get(&position).copied().unwrap_or_default(),
            rail_is_given: options.rails.get(&nic.device).is_some(),
            bytes_per_second: nic.bytes_per_second,
        }
    };
    nics.iter().map(nic_seat).collect()
}

/// Rails over all ranks: `seats` with the node of each, where a node may lack a NIC that others have.
pub(in crate::topology) fn merge_rails(seats: &mut [Seat], nodes: &[NodeId]) {
    let count = nodes.iter().map(|node| node.index() + 1).max().unwrap_or(0);
    let mut places = vec![Vec::new(); count];
    let place = |nic: &NicSeat| rails::place(nic.pci, &nic.device, nic.port);
    for (seat, node) in seats.iter().zip(nodes) {
        places[node.index()].extend(seat.nics.iter().map(place));
    }
    let rails = rails::by_places(&places);
    for (seat, node) in seats.iter_mut().zip(nodes) {
        for nic in seat.nics.iter_mut().filter(|nic| !nic.rail_is_given) {
            nic.rail = rails[node.index()][&place(nic)];
        }
    }
}

/// What hides GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HiddenBy {
    /// `CUDA_VISIBLE_DEVICES`, as set.
    Variable(String),
    /// The driver does not show them: a device cgroup or a container.
    Driver,
}

impl HiddenBy {
    /// What follows from it.
    pub fn effect(&self) -> &'static str {
        match self {
            // Measured: memory of the virtual memory interface is mapped all the same, and read at 0.94 of the rate.
            Self::Variable(_) => "memory of cudaMalloc may not be mapped by peers, and transfers are slower",
            Self::Driver => "peers cannot map each other's memory",
        }
    }
}

/// GPUs of its host that a rank does not see while peers use them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenPeers {
    /// The host.
    pub host: String,
    /// Ranks on it.
    pub ranks: usize,
    /// GPUs that the rank sees.
    pub shown: usize,
    /// GPUs that the host has.
    pub all: usize,
    /// What hides the others.
    pub by: HiddenBy,
}

impl HiddenPeers {
    /// What to type.
    pub const REMEDY: &str = "srun --gpus-per-node=N --gpu-bind=none in place of --gpus-per-task or --gpu-bind, and \
                              CUDA_VISIBLE_DEVICES not set: each rank chooses its device; enroot: \
                              ENROOT_RESTRICT_DEV=n; one container for each host";
}

impl fmt::Display for HiddenPeers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            HiddenBy::Variable(list) => write!(formatter, "CUDA_VISIBLE_DEVICES={list}")?,
            HiddenBy::Driver => formatter.write_str("a device cgroup or a container")?,
        }
        let Self { host, ranks, shown, all, .. } = self;
        let effect = self.by.effect();
        write!(formatter, " shows {shown} of {all} GPUs to a rank of {ranks} on {host}: {effect}; {}", Self::REMEDY)
    }
}

/// Whether GPU peers are hidden from one of `ranks` ranks on a host, as `facts` of that rank tell: it sees fewer GPUs
/// than they use.
pub fn hidden_peers(facts: &HostFacts, ranks: usize) -> Option<HiddenPeers> {
    let (shown, hidden) = (visible(facts).len(), facts.limits.hidden_gpus.len());
    let all = facts.gpus.len() + hidden;
    let by = match &facts.limits.cuda_visible_devices {
        Some(list) if hidden == 0 => HiddenBy::Variable(list.clone()),
        _ => HiddenBy::Driver,
    };
    let is_hidden = ranks > 1 && shown < ranks.min(all);
    is_hidden.then(|| HiddenPeers { host: facts.host.clone(), ranks, shown, all, by })
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
