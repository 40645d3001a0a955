//! Topology files of NCCL (`NCCL_TOPO_DUMP_FILE`). In: XML with `<system>`. Out: facts of every host in it. Guarantee:
//! hosts are told apart by `host_hash`; an NVLink to a switch keeps the switch's address where it is one.

use super::FileError;
use super::xml::{self, Inherited, document, elements, hexadecimal, text, value};
use crate::topology::facts::{
    C2c, Gpu, HostFacts, LinkLayer, NumaNode, NvLinkPeer, NvLinks, PciDevice, PcieLink, PortState, Source,
};
use crate::topology::{CpuSet, PciAddress, facts};
use roxmltree::{Document, Node};
use std::collections::BTreeMap;

/// PCI class of an NVSwitch, as NCCL writes it.
const SWITCH_CLASS: u32 = 0x06_80_00;
/// PCI class of IBM's NVLink bridge of a CPU.
const CPU_LINK_CLASS: u32 = 0x06_80_01;
/// PCI base class of display controllers, which GPUs are.
const DISPLAY: u32 = 0x03;

/// Facts of the hosts in an NCCL topology.
pub fn from_nccl_xml(text: &str) -> Result<Vec<HostFacts>, FileError> {
    read(&document(text)?)
}

/// Where an element stands.
#[derive(Debug, Clone, Default)]
struct Place {
    host: Option<usize>,
    numa: Option<u32>,
    pci: Option<PciAddress>,
}

pub(super) fn read(document: &Document<'_>) -> Result<Vec<HostFacts>, FileError> {
    let mut hosts: Vec<HostFacts> = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut places = Inherited::<Place>::new();
    for node in elements(document) {
        let mut place = places.of(&node);
        if node.tag_name().name() == "cpu" {
            let hash = text(&node, "host_hash").unwrap_or_default().to_string();
            let next = hosts.len();
            let number = *numbers.entry(hash.clone()).or_insert(next);
            if number == next {
                hosts.push(HostFacts { host: format!("host{next}"), boot_id: hash, ..HostFacts::default() });
            }
            place = Place { host: Some(number), ..Place::default() };
        }
        if let Some(host) = place.host.and_then(|number| hosts.get_mut(number)) {
            element(host, &node, &mut place)?;
        }
        places.leave(&node, place);
    }
    if hosts.is_empty() {
        return Err(FileError::Missing { missing: "<cpu>" });
    }
    for host in &mut hosts {
        host.gpus.sort_by_key(|gpu| gpu.index);
        let note = format!("{} GPUs, {} ports", host.gpus.len(), host.nics.len());
        host.sources.push(Source::asked("nccl xml", note));
    }
    Ok(hosts)
}

fn element(host: &mut HostFacts, node: &Node<'_, '_>, place: &mut Place) -> Result<(), FileError> {
    match node.tag_name().name() {
        "cpu" => {
            let index = value::<i64>(node, "numaid", "number")?.and_then(|number| u32::try_from(number).ok());
            place.numa = index;
            let cpus = xml::read(node, "affinity", "mask of processors", |text| CpuSet::from_mask(text).ok())?;
            host.architecture = text(node, "arch").unwrap_or_default().to_string();
            host.cpu_model = text(node, "vendor").unwrap_or_default().to_string();
            let node = NumaNode { index: index.unwrap_or_default(), cpus: cpus.unwrap_or_default(), memory_bytes: 0 };
            host.numa_nodes.push(node);
        }
        "pci" => {
            if let Some(device) = pci_device(node, place)? {
                place.pci = Some(device.address);
                if host.pci_device(device.address).is_none() {
                    host.pci.push(device);
                }
            }
        }
        "gpu" => {
            let known = |address| host.gpus.iter().any(|gpu: &Gpu| gpu.pci == address);
            if let Some(address) = place.pci.filter(|&address| !known(address)) {
                let gpu = gpu(node, host.gpus.len(), address, place.numa)?;
                host.gpus.push(gpu);
            }
        }
        "nvlink" => {
            let links = nvlinks(node)?;
            with_gpu(host, place, |gpu| gpu.nvlinks.push(links));
        }
        "c2c" => {
            let megabytes = value::<u64>(node, "bw", "rate in MB/s")?.unwrap_or_default();
            let links = value(node, "count", "number of links")?.unwrap_or(1);
            let c2c = C2c { links, bytes_per_second: megabytes.saturating_mul(1_000_000) };
            with_gpu(host, place, |gpu| gpu.c2c = Some(c2c));
        }
        "net" => {
            let class = place.pci.and_then(|address| host.pci_device(address)).map(|device| device.class);
            if let Some(nic) = nic(node, place, class)? {
                host.nics.push(nic);
            }
        }
        _ => {}
    }
    Ok(())
}

fn with_gpu(host: &mut HostFacts, place: &Place, change: impl FnOnce(&mut Gpu)) {
    if let Some(gpu) = host.gpus.iter_mut().find(|gpu| Some(gpu.pci) == place.pci) {
        change(gpu);
    }
}

fn pci_device(node: &Node<'_, '_>, place: &Place) -> Result<Option<PciDevice>, FileError> {
    let Some(address) = value(node, "busid", "PCI address")? else { return Ok(None) };
    let number = |name| xml::read(node, name, "hexadecimal number", hexadecimal);
    let short = |name| -> Result<u16, FileError> {
        Ok(number(name)?.and_then(|number| u16::try_from(number).ok()).unwrap_or_default())
    };
    let link =
        PcieLink::parse(text(node, "link_speed").unwrap_or_default(), text(node, "link_width").unwrap_or_default());
    Ok(Some(PciDevice {
        address,
        parent: place.pci,
        class: number("class")?.unwrap_or_default(),
        vendor: short("vendor")?,
        device: short("device")?,
        numa: place.numa,
        link,
        virtual_function: false,
    }))
}

fn gpu(node: &Node<'_, '_>, count: usize, pci: PciAddress, numa: Option<u32>) -> Result<Gpu, FileError> {
    let index = value::<i64>(node, "dev", "number")?.and_then(|number| u32::try_from(number).ok());
    Ok(Gpu {
        index: index.unwrap_or(count as u32),
        sm: value(node, "sm", "compute capability such as 90")?,
        numa,
        ..Gpu::at(pci)
    })
}

fn nvlinks(node: &Node<'_, '_>) -> Result<NvLinks, FileError> {
    // A switch that the driver does not name has letters f in place of an address.
    let target: Option<PciAddress> = text(node, "target").and_then(|text| text.parse().ok());
    let class = xml::read(node, "tclass", "hexadecimal class", hexadecimal)?.unwrap_or(SWITCH_CLASS);
    let peer = match (class, target) {
        (SWITCH_CLASS, target) => NvLinkPeer::Switch(target),
        (CPU_LINK_CLASS, target) => NvLinkPeer::Cpu(target),
        (class, Some(target)) if class >> 16 == DISPLAY => NvLinkPeer::Gpu(target),
        (_, target) => NvLinkPeer::Unknown(target),
    };
    Ok(NvLinks { peer, links: value(node, "count", "number of links")?.unwrap_or(1), bytes_per_second: 0 })
}

fn nic(node: &Node<'_, '_>, place: &Place, class: Option<u32>) -> Result<Option<facts::Nic>, FileError> {
    let Some(device) = text(node, "name") else { return Ok(None) };
    let megabits = value::<u64>(node, "speed", "rate in Mb/s")?.unwrap_or_default();
    let link_layer = match class.map(|class| class >> 8) {
        Some(0x02_07) => LinkLayer::InfiniBand,
        Some(0x02_00) => LinkLayer::Ethernet,
        _ => LinkLayer::Unknown,
    };
    Ok(Some(facts::Nic {
        link_layer,
        bytes_per_second: megabits.saturating_mul(1_000_000) / 8,
        // NCCL lists ports that are up.
        state: PortState::Active,
        guid: text(node, "guid").unwrap_or_default().to_string(),
        pci: place.pci,
        numa: place.numa,
        ..facts::Nic::at(device, value(node, "port", "number of a port")?.unwrap_or(1))
    }))
}
