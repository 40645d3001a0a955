//! How a node of a synthetic cluster is built. In: counts and rates, or their text. Out: facts as discovery would state
//! them. Guarantee: pure; nodes of one shape differ in host name and fabric only.

use super::PciAddress;
use super::facts::{
    C2c, Core, Fabric, FabricState, Gpu, HostFacts, LinkLayer, Nic, NumaNode, NvLinkPeer, NvLinks, PciDevice, PcieLink,
    PortState, Source,
};
use crate::base::bytes;
use std::borrow::Cow;
use std::fmt;

/// A GPU as PCI states it: NVIDIA, 3D controller.
const GPU: (u16, u32) = (0x10de, 0x03_02_00);
/// A ConnectX as PCI states it: Mellanox, InfiniBand.
const CARD: (u16, u32) = (0x15b3, 0x02_07_00);
/// A PCI switch as PCI states it.
const BRIDGE: (u16, u32) = (0x1000, 0x06_04_00);
/// Cores of a socket, where nothing depends on it.
const CORES: u32 = 56;
/// Cores of a Grace.
const GRACE_CORES: u32 = 72;
/// The link between a Grace and a GPU of GB200: five, as NCCL's topology files state it.
const GRACE_LINKS: C2c = C2c { links: 5, bytes_per_second: 44_712_000_000 };

/// What joins GPUs and cards of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wiring {
    /// So many PCI switches, over which GPUs and cards are dealt in order.
    Switches(u32),
    /// Each device has a root port of its own, and GPUs a coherent link to the CPU.
    Coherent,
}

/// How a node is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeShape {
    /// Model of its GPUs.
    pub(super) model: Cow<'static, str>,
    pub(super) gpus: u32,
    pub(super) nics: u32,
    /// Bytes per second of a card.
    pub(super) nic: u64,
    /// Bytes per second of a GPU's NVLinks together, one way.
    pub(super) nvlink: u64,
    /// NVLinks of a GPU.
    pub(super) links: u32,
    /// Compute capability.
    pub(super) sm: u32,
    pub(super) memory_bytes: u64,
    pub(super) wiring: Wiring,
}

impl NodeShape {
    /// Reads `8gpu,8nic@50GB,nvlink450GB`; the part that is wrong otherwise.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut gpus, mut nics, mut nvlink) = (None, None, None);
        for part in text.split(',').map(str::trim) {
            let wrong = || part.to_string();
            let count =
                |text: &str| text.parse::<u32>().ok().filter(|&count| (1..=4096).contains(&count)).ok_or_else(wrong);
            let rate = |text: &str| bytes::parse(text).ok().filter(|&rate| rate > 0).ok_or_else(wrong);
            let slot = if let Some(text) = part.strip_prefix("nvlink") {
                nvlink.replace(rate(text)?).map(|_| ())
            } else if let Some(text) = part.strip_suffix("gpu") {
                gpus.replace(count(text)?).map(|_| ())
            } else if let Some((text, speed)) = part.split_once("nic@") {
                nics.replace((count(text)?, rate(speed)?)).map(|_| ())
            } else {
                return Err(wrong());
            };
            if slot.is_some() {
                return Err(wrong());
            }
        }
        let missing = |what: &str| format!("{text} without {what}");
        let gpus = gpus.ok_or_else(|| missing("gpu"))?;
        let (nics, nic) = nics.ok_or_else(|| missing("nic"))?;
        Ok(Self {
            model: Cow::Borrowed("GPU"),
            gpus,
            nics,
            nic,
            nvlink: nvlink.ok_or_else(|| missing("nvlink"))?,
            links: 1,
            sm: 90,
            memory_bytes: 0,
            wiring: Wiring::Switches(gpus.min(nics)),
        })
    }

    fn nodes(&self) -> u32 {
        if self.gpus.is_multiple_of(2) { 2 } else { 1 }
    }

    /// Facts of one node; `fabric` names the cluster and clique when it is part of one.
    pub(super) fn facts(&self, host: String, fabric: Option<(String, u32)>) -> HostFacts {
        let cores = if self.wiring == Wiring::Coherent { GRACE_CORES } else { CORES };
        let cpus = |node: u32| super::CpuSet::range(node * cores, (node + 1) * cores - 1);
        let node = |index| NumaNode { index, cpus: cpus(index), memory_bytes: 0 };
        let core = |cpu: u32| Core { package: cpu / cores, cpus: super::CpuSet::range(cpu, cpu) };
        let fabric = fabric.map(|(cluster, clique)| Fabric {
            cluster,
            clique,
            state: FabricState::Completed,
            status: 0,
            health: 0,
        });
        let mut facts = HostFacts {
            boot_id: host.clone(),
            host,
            architecture: if self.wiring == Wiring::Coherent { "aarch64" } else { "x86_64" }.into(),
            numa_nodes: (0..self.nodes()).map(node).collect(),
            cores: (0..cores * self.nodes()).map(core).collect(),
            sources: vec![Source::asked("synthetic", self.to_string())],
            ..HostFacts::default()
        };
        facts.limits.cpus = super::CpuSet::range(0, cores * self.nodes() - 1);
        if let Wiring::Switches(switches) = self.wiring {
            facts.pci = (0..switches).map(|switch| self.bridge(switch, switches)).collect();
        }
        for index in 0..self.gpus {
            let device = self.device(GPU, index, self.gpus, 0);
            facts.gpus.push(self.gpu(index, &device, fabric.clone()));
            facts.pci.push(device);
        }
        for index in 0..self.nics {
            let device = self.device(CARD, index, self.nics, 0x40);
            facts.nics.push(self.card(index, &device));
            facts.pci.push(device);
        }
        facts
    }

    /// PCI domains are switches, so that counts have no limit.
    fn bridge(&self, switch: u32, switches: u32) -> PciDevice {
        let address = PciAddress { domain: switch, bus: 1, device: 0, function: 0 };
        let numa = Some(part(switch, switches, self.nodes()));
        pci_device(address, None, BRIDGE, numa, None)
    }

    /// Device `index` of `count` equal ones, on bus 2 or later of its switch, or on a root port of its own.
    fn device(&self, ids: (u16, u32), index: u32, count: u32, first_bus: u8) -> PciDevice {
        let numa = Some(part(index, count, self.nodes()));
        // Generation 5 with 16 lanes; half of that is all that a 25 GB/s card has.
        let link = if self.nic > 30_000_000_000 { PcieLink::new(32_000, 16) } else { PcieLink::new(16_000, 16) };
        let (domain, parent) = match self.wiring {
            Wiring::Switches(switches) => {
                let switch = part(index, count, switches);
                (switch, Some(PciAddress { domain: switch, bus: 1, device: 0, function: 0 }))
            }
            Wiring::Coherent => (index, None),
        };
        // Devices of one switch are told apart by bus, then by device number.
        let place = index % 1024;
        let address = PciAddress {
            domain: domain + if self.wiring == Wiring::Coherent && ids == CARD { 0x10 } else { 0 },
            bus: first_bus + 2 + (place / 32) as u8,
            device: (place % 32) as u8,
            function: 0,
        };
        pci_device(address, parent, ids, numa, Some(link))
    }

    fn gpu(&self, index: u32, device: &PciDevice, fabric: Option<Fabric>) -> Gpu {
        let bytes_per_second = self.nvlink / u64::from(self.links);
        Gpu {
            index,
            name: self.model.to_string(),
            sm: Some(self.sm),
            memory_bytes: self.memory_bytes,
            numa: device.numa,
            nvlinks: vec![NvLinks { peer: NvLinkPeer::Switch(None), links: self.links, bytes_per_second }],
            fabric,
            c2c: (self.wiring == Wiring::Coherent).then_some(GRACE_LINKS),
            ..Gpu::at(device.address)
        }
    }

    fn card(&self, index: u32, device: &PciDevice) -> Nic {
        Nic {
            link_layer: LinkLayer::InfiniBand,
            bytes_per_second: self.nic,
            state: PortState::Active,
            pci: Some(device.address),
            numa: device.numa,
            ..Nic::at(format!("mlx5_{index}"), 1)
        }
    }
}

/// Which of `parts` equal parts item `index` of `count` is in.
fn part(index: u32, count: u32, parts: u32) -> u32 {
    (u64::from(index) * u64::from(parts) / u64::from(count.max(1))) as u32
}

fn pci_device(
    address: PciAddress,
    parent: Option<PciAddress>,
    (vendor, class): (u16, u32),
    numa: Option<u32>,
    link: Option<PcieLink>,
) -> PciDevice {
    PciDevice { address, parent, class, vendor, device: 0, numa, link, virtual_function: false }
}

impl fmt::Display for NodeShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |bytes: u64| match bytes % 1_000_000_000 {
            0 => format!("{}GB", bytes / 1_000_000_000),
            _ => format!("{bytes}B"),
        };
        write!(formatter, "{}gpu,{}nic@{},nvlink{}", self.gpus, self.nics, rate(self.nic), rate(self.nvlink))
    }
}
