//! How two devices of a host reach each other. In: facts. Out: [`Path`]: its kind, as nvidia-smi names it, and its rate.
//! Guarantee: pure; a device that is not among the PCI devices is judged by its NUMA node alone.

use crate::topology::PciAddress;
use crate::topology::facts::{Gpu, HostFacts, Nic, NvLinkPeer, PciDevice};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// What lies between two devices; nearer ones compare as less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// NVLinks, so many.
    NvLink(u32),
    /// One PCI switch.
    Switch,
    /// Several PCI switches and no host bridge.
    Switches,
    /// PCI to the CPU, and from there the coherent link to the GPU.
    CoherentLink,
    /// One host bridge.
    HostBridge,
    /// Host bridges of one NUMA node.
    NumaNode,
    /// The link between sockets, or nobody knows.
    System,
}

impl PathKind {
    /// Whether PCI switches alone join the two: no CPU is passed.
    pub fn is_beside(self) -> bool {
        self <= Self::Switches
    }
}

impl fmt::Display for PathKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NvLink(links) => return formatter.pad(&format!("NV{links}")),
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::CoherentLink => "P2C",
            Self::HostBridge => "PHB",
            Self::NumaNode => "NODE",
            Self::System => "SYS",
        };
        formatter.pad(text)
    }
}

/// A way between two devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Path {
    /// What lies between.
    pub kind: PathKind,
    /// Rate one way of its narrowest known link; `None` when no link's rate is known.
    pub bytes_per_second: Option<u64>,
}

/// PCI devices of a host, ready to be asked for paths.
#[derive(Debug)]
pub struct Paths<'a> {
    facts: &'a HostFacts,
    devices: HashMap<PciAddress, &'a PciDevice>,
}

/// One end of a path.
#[derive(Debug, Clone, Copy)]
struct End {
    pci: Option<PciAddress>,
    numa: Option<u32>,
}

impl<'a> Paths<'a> {
    /// Paths between the devices of `facts`.
    pub fn new(facts: &'a HostFacts) -> Self {
        Self { facts, devices: facts.pci.iter().map(|device| (device.address, device)).collect() }
    }

    /// The way between a GPU and a NIC.
    pub fn gpu_to_nic(&self, gpu: &Gpu, nic: &Nic) -> Path {
        let (from, to) = (End { pci: Some(gpu.pci), numa: gpu.numa }, End { pci: nic.pci, numa: nic.numa });
        let path = self.between(from, to);
        let near_cpu = matches!(path.kind, PathKind::HostBridge | PathKind::NumaNode);
        let (kind, own) = match gpu.c2c {
            // The GPU's side of the way is its coherent link, not its PCI.
            Some(c2c) if near_cpu => {
                let rate = u64::from(c2c.links).saturating_mul(c2c.bytes_per_second);
                let nic_side = to.pci.and_then(|address| self.narrowest(&self.chain(address)));
                (PathKind::CoherentLink, least(nic_side, Some(rate).filter(|&rate| rate > 0)))
            }
            _ => (path.kind, path.bytes_per_second),
        };
        let port = Some(nic.bytes_per_second).filter(|&rate| rate > 0);
        Path { kind, bytes_per_second: least(own, port) }
    }

    /// The way between two GPUs.
    pub fn gpu_to_gpu(&self, one: &Gpu, other: &Gpu) -> Path {
        let links = direct_nvlinks(one, other);
        if links.0 > 0 {
            return Path { kind: PathKind::NvLink(links.0), bytes_per_second: Some(links.1).filter(|&rate| rate > 0) };
        }
        let end = |gpu: &Gpu| End { pci: Some(gpu.pci), numa: gpu.numa };
        self.between(end(one), end(other))
    }

    fn between(&self, one: End, other: End) -> Path {
        let chain = |end: End| end.pci.map(|address| self.chain(address)).unwrap_or_default();
        let (first, second) = (chain(one), chain(other));
        let common = first.iter().position(|step| second.contains(step));
        if let Some(up) = common {
            let down = second.iter().position(|step| *step == first[up]).unwrap_or_default();
            let rate = least(self.narrowest(&first[..up]), self.narrowest(&second[..down]));
            return Path { kind: switches(&first[..up], &second[..down]), bytes_per_second: rate };
        }
        let bytes_per_second = least(self.narrowest(&first), self.narrowest(&second));
        let root = |chain: &[PciAddress]| chain.last().map(|top| (top.domain, top.bus));
        let kind = match (root(&first), root(&second)) {
            (Some(one), Some(other)) if one == other => PathKind::HostBridge,
            _ if self.same_node(one.numa, other.numa) => PathKind::NumaNode,
            _ => PathKind::System,
        };
        Path { kind, bytes_per_second }
    }

    /// A device that no NUMA node is stated of is near all others where there is only one node.
    fn same_node(&self, one: Option<u32>, other: Option<u32>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => one == other,
            _ => self.facts.numa_nodes.iter().filter(|node| !node.cpus.is_empty()).count() <= 1,
        }
    }

    /// The device and the bridges above it, outwards. A file may claim a circle; then the chain ends there.
    fn chain(&self, address: PciAddress) -> Vec<PciAddress> {
        let mut chain = vec![address];
        let mut next = self.devices.get(&address).and_then(|device| device.parent);
        while let Some(address) = next.filter(|address| !chain.contains(address)) {
            chain.push(address);
            next = self.devices.get(&address).and_then(|device| device.parent);
        }
        chain
    }

    fn narrowest(&self, chain: &[PciAddress]) -> Option<u64> {
        chain.iter().filter_map(|address| Some(self.devices.get(address)?.link?.bytes_per_second)).min()
    }
}

/// One switch or several, by the steps on both sides below the bridge that is above both devices. The downstream ports
/// of a switch are on one bus; where files leave these out, the devices follow directly.
fn switches(one: &[PciAddress], other: &[PciAddress]) -> PathKind {
    let port = |side: &[PciAddress]| side.last().map(|port| (port.domain, port.bus));
    match (one.len(), other.len()) {
        (0..=1, 0..=1) => PathKind::Switch,
        (0..=2, 0..=2) if port(one) == port(other) => PathKind::Switch,
        _ => PathKind::Switches,
    }
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Rate of one NVLink one way where the driver did not tell: NVLink 2 to 4 have 25 GB/s, NVLink 5 has 50 GB/s.
fn nvlink_rate(sm: Option<u32>) -> u64 {
    match sm {
        Some(sm) if sm >= 100 => 50_000_000_000,
        Some(sm) if sm >= 70 => 25_000_000_000,
        _ => 0,
    }
}

/// NVLinks of `gpu` that end at peers which `wanted` accepts: how many, and their rate together.
fn nvlinks(gpu: &Gpu, wanted: impl Fn(NvLinkPeer) -> bool) -> (u32, u64) {
    let found = gpu.nvlinks.iter().filter(|links| links.links > 0 && wanted(links.peer));
    found.fold((0, 0), |(count, rate): (u32, u64), links| {
        let each = if links.bytes_per_second > 0 { links.bytes_per_second } else { nvlink_rate(gpu.sm) };
        (count.saturating_add(links.links), rate.saturating_add(each.saturating_mul(links.links.into())))
    })
}

/// Rate of all NVLinks of `gpu` to GPUs and switches, one way.
pub fn nvlink_rate_of(gpu: &Gpu) -> u64 {
    nvlinks(gpu, |peer| matches!(peer, NvLinkPeer::Gpu(_) | NvLinkPeer::Switch(_))).1
}

/// Whether `gpu` has a link to a switch.
pub(super) fn is_switched(gpu: &Gpu) -> bool {
    nvlinks(gpu, |peer| matches!(peer, NvLinkPeer::Switch(_))).0 > 0
}

/// NVLinks by which two GPUs of a host reach each other, and their rate.
pub(super) fn direct_nvlinks(one: &Gpu, other: &Gpu) -> (u32, u64) {
    let to_switch = |peer| matches!(peer, NvLinkPeer::Switch(_));
    if one.mig || other.mig {
        return (0, 0);
    }
    if is_switched(one) && is_switched(other) {
        return nvlinks(one, to_switch).min(nvlinks(other, to_switch));
    }
    let (forth, back) = (
        nvlinks(one, |peer| peer == NvLinkPeer::Gpu(other.pci)),
        nvlinks(other, |peer| peer == NvLinkPeer::Gpu(one.pci)),
    );
    // Both ends state a link; a file may have it at one end only.
    if forth.0 == 0 || back.0 == 0 { forth.max(back) } else { forth.min(back) }
}
