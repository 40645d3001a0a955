//! What is known of a host and of a rank. In: nothing. Out: plain, serialisable data. Guarantee: no interpretation here;
//! what no source told is empty or `None`, and [`HostFacts::sources`] says why.
//!
//! The form is that of topology files: JSON with `version` [`FACTS_VERSION`], fields as named here, PCI addresses as
//! `0000:18:00.0`, processors as `0-3,8`, rates in bytes per second one way, sizes in bytes.

use super::{CpuSet, PciAddress};
use serde::{Deserialize, Serialize};

/// Version of the form of [`HostFacts`]; a file of a later version is refused.
pub const FACTS_VERSION: u32 = 1;

/// Facts of one rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFacts {
    /// Host name, for messages only.
    pub host: String,
    /// Equal exactly for ranks that share a kernel and its IPC namespaces: boot id and namespace inodes.
    pub host_token: String,
    /// `CROSSMESH_DOMAIN`, when set.
    pub domain: Option<u32>,
    /// `CROSSMESH_DOMAINS`, when set.
    pub domain_count: Option<u32>,
    /// Starts a new side of the job (first rank of a role); domains cut by count begin here where they can.
    pub starts_side: bool,
}

/// Everything known of one host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// Host name.
    pub host: String,
    /// Names the running kernel: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Machine architecture, such as `x86_64` or `aarch64`.
    pub architecture: String,
    /// CPU model as the kernel or the file names it.
    pub cpu_model: String,
    /// NUMA nodes, also those without CPUs (memory of a GPU).
    pub numa_nodes: Vec<NumaNode>,
    /// Cores with their hardware threads.
    pub cores: Vec<Core>,
    /// PCI bridges, GPUs and NICs, parents before children.
    pub pci: Vec<PciDevice>,
    /// GPUs by their index.
    pub gpus: Vec<Gpu>,
    /// Ports of RDMA devices.
    pub nics: Vec<Nic>,
    /// Network interfaces, for TCP.
    pub interfaces: Vec<Interface>,
    /// What this process may use of the host.
    pub limits: Limits,
    /// Where the facts are from, and what could not be asked.
    pub sources: Vec<Source>,
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaNode {
    /// Its number in the operating system.
    pub index: u32,
    /// Its hardware threads; none when the memory is a GPU's.
    pub cpus: CpuSet,
    /// Its memory.
    pub memory_bytes: u64,
}

/// A core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Core {
    /// Socket.
    pub package: u32,
    /// Its hardware threads.
    pub cpus: CpuSet,
}

/// A device or bridge on PCI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciDevice {
    /// Where it is.
    pub address: PciAddress,
    /// The bridge above it; `None` at a host bridge.
    #[serde(default)]
    pub parent: Option<PciAddress>,
    /// Class, subclass and programming interface: `0x030200`.
    #[serde(default)]
    pub class: u32,
    /// Vendor id.
    #[serde(default)]
    pub vendor: u16,
    /// Device id.
    #[serde(default)]
    pub device: u16,
    /// NUMA node; `None` when the firmware does not say.
    #[serde(default)]
    pub numa: Option<u32>,
    /// Its link upwards as it runs now; `None` when not told.
    #[serde(default)]
    pub link: Option<PcieLink>,
    /// Whether it is a virtual function of another device.
    #[serde(default)]
    pub virtual_function: bool,
}

/// A PCI Express link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Payload rate one way, after the line code.
    pub bytes_per_second: u64,
    /// Transfers per second of a lane, in millions, 32000 for generation 5; 0 when not told.
    #[serde(default)]
    pub megatransfers: u32,
    /// Lanes; 0 when not told.
    #[serde(default)]
    pub width: u32,
}

impl PcieLink {
    /// The link of `width` lanes at `megatransfers` each.
    pub fn new(megatransfers: u32, width: u32) -> Self {
        // 8b/10b up to generation 2, 128b/130b afterwards.
        let (payload, line) = if megatransfers <= 5_000 { (8, 10) } else { (128, 130) };
        let lane = u64::from(megatransfers) * 1_000_000 / 8 * payload / line;
        Self { bytes_per_second: lane.saturating_mul(u64::from(width)), megatransfers, width }
    }

    /// From texts such as `32.0 GT/s PCIe` and `16`; `None` where they tell nothing.
    pub fn parse(speed: &str, width: &str) -> Option<Self> {
        let gigatransfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
        let width: u32 = width.trim().parse().ok()?;
        // The kernel writes 0 and 255 lanes for a link that is down, and this for one that it cannot ask.
        let told = (0.1..1e5).contains(&gigatransfers) && (1..=64).contains(&width);
        told.then(|| Self::new((gigatransfers * 1000.0) as u32, width))
    }
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its number among the GPUs that the driver shows here.
    pub index: u32,
    /// Where it is.
    pub pci: PciAddress,
    /// `GPU-…`; empty when not told.
    #[serde(default)]
    pub uuid: String,
    /// Model.
    #[serde(default)]
    pub name: String,
    /// Compute capability, 90 for 9.0.
    #[serde(default)]
    pub sm: Option<u32>,
    /// Its memory.
    #[serde(default)]
    pub memory_bytes: u64,
    /// NUMA node of the CPUs it is attached to.
    #[serde(default)]
    pub numa: Option<u32>,
    /// NUMA node that its own memory is, where it is one.
    #[serde(default)]
    pub memory_numa: Option<u32>,
    /// Whether it is cut into instances (MIG): these have no NVLink.
    #[serde(default)]
    pub mig: bool,
    /// NVLinks that are up, by what is at their other end.
    #[serde(default)]
    pub nvlinks: Vec<NvLinks>,
    /// NVLinks that are there and not up.
    #[serde(default)]
    pub inactive_nvlinks: u32,
    /// Its place in a fabric of several hosts, as the driver states it.
    #[serde(default)]
    pub fabric: Option<Fabric>,
    /// Coherent link to its CPU.
    #[serde(default)]
    pub c2c: Option<C2c>,
}

impl Gpu {
    /// A GPU of which only the address is known.
    pub fn at(pci: PciAddress) -> Self {
        Self {
            index: 0,
            pci,
            uuid: String::new(),
            name: String::new(),
            sm: None,
            memory_bytes: 0,
            numa: None,
            memory_numa: None,
            mig: false,
            nvlinks: Vec::new(),
            inactive_nvlinks: 0,
            fabric: None,
            c2c: None,
        }
    }
}

/// NVLinks to one other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvLinks {
    /// The other end.
    pub peer: NvLinkPeer,
    /// How many.
    pub links: u32,
    /// Of one link, one way; 0 when not told.
    #[serde(default)]
    pub bytes_per_second: u64,
}

/// What an NVLink ends at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvLinkPeer {
    /// Another GPU.
    Gpu(PciAddress),
    /// A switch; all GPUs of a host that have one reach each other.
    Switch(Option<PciAddress>),
    /// A CPU.
    Cpu(Option<PciAddress>),
    /// Something that the driver does not name.
    Unknown(Option<PciAddress>),
}

/// A GPU's place in an NVLink fabric of several hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// Cluster uuid, 32 hexadecimal digits in groups; all zero where there is no fabric.
    pub cluster: String,
    /// Clique within the cluster: GPUs of one clique reach each other.
    pub clique: u32,
    /// How far the registration is.
    pub state: FabricState,
    /// NVML's code of the last registration; 0 is success.
    #[serde(default)]
    pub status: u32,
    /// NVML's health bits as they are; 0 when not told.
    #[serde(default)]
    pub health: u32,
}

impl Fabric {
    /// Whether the cluster uuid names a cluster, which the zero uuid does not.
    pub fn is_set(&self) -> bool {
        self.cluster.bytes().any(|byte| !matches!(byte, b'0' | b'-'))
    }
}

/// How far a GPU's registration with its fabric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricState {
    /// No fabric.
    NotSupported,
    /// Not begun.
    NotStarted,
    /// Going on.
    InProgress,
    /// Done.
    Completed,
}

/// A coherent link between GPU and CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct C2c {
    /// How many links.
    pub links: u32,
    /// Of one link, one way.
    pub bytes_per_second: u64,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Device, such as `mlx5_0`.
    pub device: String,
    /// Port, from 1.
    pub port: u32,
    /// What it speaks.
    #[serde(default)]
    pub link_layer: LinkLayer,
    /// Its rate one way; 0 when not told.
    #[serde(default)]
    pub bytes_per_second: u64,
    /// State of the port.
    #[serde(default)]
    pub state: PortState,
    /// Node GUID; empty when not told.
    #[serde(default)]
    pub guid: String,
    /// Where it is; `None` for a software device.
    #[serde(default)]
    pub pci: Option<PciAddress>,
    /// NUMA node; `None` when the firmware does not say.
    #[serde(default)]
    pub numa: Option<u32>,
    /// GIDs that are set.
    #[serde(default)]
    pub gids: Vec<Gid>,
    /// Network interface of the port, where there is one.
    #[serde(default)]
    pub interface: Option<String>,
    /// Whether it is a virtual function.
    #[serde(default)]
    pub virtual_function: bool,
    /// Whether this process may open it; `None` when that was not tried.
    #[serde(default)]
    pub openable: Option<bool>,
}

impl Nic {
    /// A port of which only the name is known.
    pub fn at(device: impl Into<String>, port: u32) -> Self {
        Self {
            device: device.into(),
            port,
            link_layer: LinkLayer::Unknown,
            bytes_per_second: 0,
            state: PortState::Unknown,
            guid: String::new(),
            pci: None,
            numa: None,
            gids: Vec::new(),
            interface: None,
            virtual_function: false,
            openable: None,
        }
    }
}

/// What a port speaks.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
    /// Amazon's EFA.
    Efa,
    /// Not told, or something else.
    #[default]
    Unknown,
}

/// State of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// Carries traffic.
    Active,
    /// Initialising or armed: waits for a subnet manager.
    Waiting,
    /// No link.
    Down,
    /// Not told.
    #[default]
    Unknown,
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its place in the table of the port.
    pub index: u32,
    /// As the kernel writes it.
    pub gid: String,
    /// `IB/RoCE v1` or `RoCE v2`; `None` when the kernel does not tell.
    #[serde(default)]
    pub kind: Option<String>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Its rate; `None` when not told.
    pub bytes_per_second: Option<u64>,
    /// Longest packet.
    pub mtu: u32,
    /// Where its card is; `None` for software interfaces.
    pub pci: Option<PciAddress>,
    /// NUMA node of its card.
    pub numa: Option<u32>,
    /// Its addresses.
    pub addresses: Vec<std::net::IpAddr>,
}

/// What a process may use of its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Hardware threads it may run on: affinity within the cgroup.
    pub cpus: CpuSet,
    /// NUMA nodes it may take memory from; empty when not told.
    pub memory_nodes: CpuSet,
    /// Processors' worth of time that the cgroup grants, in thousandths; `None` without a quota.
    pub cpu_quota_thousandths: Option<u64>,
    /// `CUDA_VISIBLE_DEVICES` as set.
    pub cuda_visible_devices: Option<String>,
    /// GPUs of the host that the driver does not show to this process: hidden by a device cgroup or a container.
    pub hidden_gpus: Vec<PciAddress>,
    /// Lockable memory, in bytes; `None` when unlimited or not told.
    pub locked_memory_bytes: Option<u64>,
}

/// Where facts are from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// `sysfs`, `hwloc`, `nvml`, `verbs`, `interfaces`, a file.
    pub name: String,
    /// Whether it could be asked.
    pub available: bool,
    /// What it gave, or why it could not be asked.
    pub note: String,
}

impl Source {
    /// A source that was asked.
    pub fn asked(name: &str, note: impl Into<String>) -> Self {
        Self { name: name.to_string(), available: true, note: note.into() }
    }

    /// A source that could not be asked.
    pub fn missing(name: &str, note: impl Into<String>) -> Self {
        Self { name: name.to_string(), available: false, note: note.into() }
    }
}

impl HostFacts {
    /// The NUMA node of a device that `stated` is told of: that one, else the only one with processors.
    pub fn node_near(&self, stated: Option<u32>) -> Option<&NumaNode> {
        let mut with_cpus = self.numa_nodes.iter().filter(|node| !node.cpus.is_empty());
        match stated {
            Some(index) => self.numa_nodes.iter().find(|node| node.index == index),
            None => with_cpus.next().filter(|_| with_cpus.next().is_none()),
        }
    }

    /// The device at `address`.
    pub fn pci_device(&self, address: PciAddress) -> Option<&PciDevice> {
        self.pci.iter().find(|device| device.address == address)
    }
}
