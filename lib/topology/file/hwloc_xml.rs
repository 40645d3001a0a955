//! Topology files of hwloc (`lstopo --of xml`). In: XML with `<topology version="2.0">` or later. Out: facts of one
//! host. Guarantee: devices keep the bridges above them; a NUMA node is stated where exactly one is near.

use super::FileError;
use super::xml::{self, Inherited, document, elements, hexadecimal, text, value};
use crate::topology::facts::{
    Core, Gpu, HostFacts, Interface, LinkLayer, Nic, NumaNode, NvLinkPeer, NvLinks, PciDevice, PcieLink, PortState,
    Source,
};
use crate::topology::{CpuSet, PciAddress};
use roxmltree::{Document, Node};
use std::collections::{BTreeMap, HashMap};

/// PCI vendor id of NVIDIA.
const NVIDIA: u16 = 0x10de;
/// PCI vendor id of Amazon, whose RDMA device is EFA.
const AMAZON: u16 = 0x1d0f;
/// PCI class of an InfiniBand controller, without its programming interface.
const INFINIBAND: u32 = 0x02_07;

/// Facts of the host in an hwloc topology.
pub fn from_hwloc_xml(text: &str) -> Result<HostFacts, FileError> {
    read(&document(text)?)
}

/// Where an object stands.
#[derive(Debug, Clone, Default)]
struct Place {
    package: u32,
    numa: Option<u32>,
    pci: Option<PciAddress>,
}

pub(super) fn read(document: &Document<'_>) -> Result<HostFacts, FileError> {
    if text(&document.root_element(), "version").is_none() {
        return Err(FileError::Missing { missing: "version in <topology>, which hwloc writes since 2.0" });
    }
    let mut host = HostFacts { host: "host0".into(), ..HostFacts::default() };
    let mut places = Inherited::<Place>::new();
    let mut addresses = HashMap::new();
    for node in elements(document) {
        let mut place = places.of(&node);
        if node.tag_name().name() == "object" {
            object(&mut host, &node, &mut place)?;
            if let (Some(number), Some(address)) = (text(&node, "gp_index"), place.pci) {
                addresses.insert(number, address);
            }
        }
        places.leave(&node, place);
    }
    if host.numa_nodes.is_empty() && host.cores.is_empty() {
        return Err(FileError::Missing { missing: "object of type NUMANode or Core" });
    }
    finish(&mut host);
    nvlinks(&mut host, document, &addresses);
    Ok(host)
}

fn object(host: &mut HostFacts, node: &Node<'_, '_>, place: &mut Place) -> Result<(), FileError> {
    let near = xml::read(node, "nodeset", "mask of NUMA nodes", |text| CpuSet::from_mask(text).ok())?;
    if let Some(near) = near {
        place.numa = near.iter().next().filter(|_| near.len() == 1);
    }
    let cpus = || xml::read(node, "cpuset", "mask of processors", |text| CpuSet::from_mask(text).ok());
    let index = || value::<u32>(node, "os_index", "number");
    match text(node, "type").unwrap_or_default() {
        "Machine" => {
            let info = infos(node);
            let named = |name: &str| info.get(name).map(|text| text.to_string());
            host.host = named("HostName").unwrap_or_else(|| host.host.clone());
            host.architecture = named("Architecture").unwrap_or_default();
            host.limits.cpus = cpus()?.unwrap_or_default();
        }
        "Package" => {
            place.package = index()?.unwrap_or_default();
            host.cpu_model = infos(node).get("CPUModel").map(|text| text.to_string()).unwrap_or_default();
        }
        "NUMANode" => host.numa_nodes.push(NumaNode {
            index: index()?.unwrap_or_default(),
            cpus: cpus()?.unwrap_or_default(),
            memory_bytes: value(node, "local_memory", "byte count")?.unwrap_or_default(),
        }),
        "Core" => host.cores.push(Core { package: place.package, cpus: cpus()?.unwrap_or_default() }),
        "Bridge" | "PCIDev" => {
            if let Some(device) = pci_device(node, place)? {
                place.pci = Some(device.address);
                host.pci.push(device);
            }
        }
        "OSDev" => os_device(host, node, place),
        _ => {}
    }
    Ok(())
}

/// The `<info>` of an object.
fn infos<'a>(node: &Node<'a, '_>) -> BTreeMap<&'a str, &'a str> {
    let infos = node.children().filter(|child| child.has_tag_name("info"));
    infos.filter_map(|info| Some((info.attribute("name")?, info.attribute("value")?))).collect()
}

/// A host bridge has no address, and is none of ours.
fn pci_device(node: &Node<'_, '_>, place: &Place) -> Result<Option<PciDevice>, FileError> {
    let Some(address) = value(node, "pci_busid", "PCI address")? else { return Ok(None) };
    // `0302 [10de:1db8] [10de:131d] a1 00`: class, ids, ids of the board, revision, programming interface.
    let mut words = text(node, "pci_type").unwrap_or_default().split_whitespace();
    let class = words.next().and_then(hexadecimal).unwrap_or_default();
    let ids = words.next().and_then(|word| word.trim_matches(['[', ']']).split_once(':'));
    let id = |text| hexadecimal(text).and_then(|number| u16::try_from(number).ok()).unwrap_or_default();
    let (vendor, device) = ids.map_or((0, 0), |(vendor, device)| (id(vendor), id(device)));
    let gigabytes = value::<f64>(node, "pci_link_speed", "rate in GB/s")?.unwrap_or_default();
    let bytes_per_second = if (0.0..1e6).contains(&gigabytes) { (gigabytes * 1e9) as u64 } else { 0 };
    let link = Some(PcieLink { bytes_per_second, megatransfers: 0, width: 0 }).filter(|_| bytes_per_second > 0);
    Ok(Some(PciDevice {
        address,
        parent: place.pci,
        class: class.checked_mul(256).unwrap_or_default(),
        vendor,
        device,
        numa: place.numa,
        link,
        virtual_function: false,
    }))
}

fn os_device(host: &mut HostFacts, node: &Node<'_, '_>, place: &Place) {
    let (name, infos) = (text(node, "name").unwrap_or_default(), infos(node));
    if let Some(address) = place.pci.filter(|_| infos.contains_key("NVIDIAUUID") || infos.contains_key("GPUModel")) {
        let gpu = gpu_at(host, address, place.numa);
        let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        gpu.index = digits.parse().unwrap_or(gpu.index);
        for (field, info) in [(&mut gpu.uuid, "NVIDIAUUID"), (&mut gpu.name, "GPUModel")] {
            if let Some(text) = infos.get(info) {
                *field = text.to_string();
            }
        }
    } else if let Some(guid) = infos.get("NodeGUID") {
        ports(host, name, guid, &infos, place);
    } else if infos.contains_key("Address") {
        host.interfaces.push(Interface {
            name: name.to_string(),
            loopback: name == "lo",
            pci: place.pci,
            numa: place.numa,
            ..Interface::default()
        });
    }
}

fn gpu_at(host: &mut HostFacts, address: PciAddress, numa: Option<u32>) -> &mut Gpu {
    let position = host.gpus.iter().position(|gpu| gpu.pci == address).unwrap_or_else(|| {
        host.gpus.push(Gpu { index: host.gpus.len() as u32, numa, ..Gpu::at(address) });
        host.gpus.len() - 1
    });
    &mut host.gpus[position]
}

/// One NIC for every port that is described, port 1 where none is.
fn ports(host: &mut HostFacts, device: &str, guid: &str, infos: &BTreeMap<&str, &str>, place: &Place) {
    let pci = place.pci.and_then(|address| host.pci_device(address));
    let link_layer = match pci.map(|device| (device.vendor, device.class >> 8)) {
        Some((AMAZON, _)) => LinkLayer::Efa,
        Some((_, INFINIBAND)) => LinkLayer::InfiniBand,
        Some(_) => LinkLayer::Ethernet,
        None => LinkLayer::Unknown,
    };
    let state = |port: u32| match infos.get(format!("Port{port}State").as_str()) {
        Some(&"4") => PortState::Active,
        Some(&"2" | &"3") => PortState::Waiting,
        Some(_) => PortState::Down,
        None => PortState::Unknown,
    };
    let described: Vec<u32> =
        infos.keys().filter_map(|name| name.strip_prefix("Port")?.strip_suffix("State")?.parse().ok()).collect();
    let numbers = if described.is_empty() { vec![1] } else { described };
    for port in numbers {
        host.nics.push(Nic {
            link_layer: link_layer.clone(),
            state: state(port),
            guid: guid.to_string(),
            pci: place.pci,
            numa: place.numa,
            ..Nic::at(device, port)
        });
    }
}

/// NVIDIA's display controllers are GPUs even where hwloc had no plugin to ask; the order is that of the indices.
fn finish(host: &mut HostFacts) {
    let found: Vec<_> = host
        .pci
        .iter()
        .filter(|device| device.vendor == NVIDIA && device.class >> 16 == 0x03)
        .map(|device| (device.address, device.numa))
        .collect();
    for (address, numa) in found {
        gpu_at(host, address, numa);
    }
    host.gpus.sort_by_key(|gpu| (gpu.index, gpu.pci));
    host.numa_nodes.sort_by_key(|node| node.index);
    let counts = format!("{} GPUs, {} ports, {} PCI devices", host.gpus.len(), host.nics.len(), host.pci.len());
    host.sources.push(Source::asked("hwloc xml", counts));
}

/// The matrix that hwloc calls `NVLinkBandwidth`, in MB/s, between GPUs and switches.
fn nvlinks(host: &mut HostFacts, document: &Document<'_>, addresses: &HashMap<&str, PciAddress>) {
    let named = |node: &Node<'_, '_>| node.attribute("name") == Some("NVLinkBandwidth");
    for matrix in elements(document).filter(named) {
        let words = |tag: &str| {
            let lists = matrix.children().filter(|child| child.has_tag_name(tag));
            lists.filter_map(|list| list.text()).collect::<Vec<_>>().join(" ")
        };
        let (indexes, values) = (words("indexes"), words("u64values"));
        // `OSDev:802`, or only the number where all are of one type.
        let ends: Vec<Option<PciAddress>> = indexes
            .split_whitespace()
            .map(|word| addresses.get(word.rsplit(':').next().unwrap_or_default()).copied())
            .collect();
        for (position, word) in values.split_whitespace().enumerate() {
            let (from, to) = (position / ends.len().max(1), position % ends.len().max(1));
            let (Some(&Some(from)), Some(&Some(to))) = (ends.get(from), ends.get(to)) else { continue };
            let megabytes: u64 = word.parse().unwrap_or_default();
            if from != to && megabytes > 0 {
                add_nvlinks(host, from, to, megabytes);
            }
        }
    }
}

fn add_nvlinks(host: &mut HostFacts, from: PciAddress, to: PciAddress, megabytes: u64) {
    let peer = match host.gpus.iter().any(|gpu| gpu.pci == to) {
        true => NvLinkPeer::Gpu(to),
        false => NvLinkPeer::Switch(Some(to)),
    };
    if let Some(gpu) = host.gpus.iter_mut().find(|gpu| gpu.pci == from) {
        // hwloc adds the links between two ends up; how many they are it does not say.
        gpu.nvlinks.push(NvLinks { peer, links: 1, bytes_per_second: megabytes.saturating_mul(1_000_000) });
    }
}
