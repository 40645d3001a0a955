//! The PCI tree. In: `/sys/bus/pci/devices`. Out: GPUs, NVSwitches, network cards and all bridges above them.
//! Guarantee: parents come before children; other devices are left out, as a server has hundreds.

use super::tree::Tree;
use crate::topology::PciAddress;
use crate::topology::facts::{PciDevice, PcieLink};
use std::collections::BTreeMap;

const DEVICES: &str = "sys/bus/pci/devices";
/// PCI vendor id of NVIDIA.
pub(super) const NVIDIA: u16 = 0x10de;

/// Devices of interest with what is above them.
pub(super) fn devices(tree: &Tree) -> Vec<PciDevice> {
    let mut found: BTreeMap<(usize, PciAddress), PciDevice> = BTreeMap::new();
    for name in tree.names(DEVICES) {
        let Ok(address) = name.parse::<PciAddress>() else { continue };
        let path = format!("{DEVICES}/{name}");
        if !is_of_interest(tree.hexadecimal(&format!("{path}/class")).unwrap_or_default()) {
            continue;
        }
        let mut way = tree.pci_path(&path);
        if way.last() != Some(&address) {
            way.push(address);
        }
        let mut parent = None;
        for (depth, &place) in way.iter().enumerate() {
            found.entry((depth, place)).or_insert_with(|| device(tree, place, parent));
            parent = Some(place);
        }
    }
    found.into_values().collect()
}

/// Network cards, display and processing accelerators, and what NVSwitches call themselves.
fn is_of_interest(class: u32) -> bool {
    matches!(class >> 16, 0x02 | 0x03 | 0x12) || class >> 8 == 0x06_80
}

/// Whether a device is a GPU of NVIDIA.
pub(super) fn is_gpu(device: &PciDevice) -> bool {
    device.vendor == NVIDIA && device.class >> 16 == 0x03
}

fn device(tree: &Tree, address: PciAddress, parent: Option<PciAddress>) -> PciDevice {
    let path = format!("{DEVICES}/{address}");
    let number = |name: &str| tree.hexadecimal(&format!("{path}/{name}")).unwrap_or_default();
    let text = |name: &str| tree.text(&format!("{path}/{name}")).unwrap_or_default();
    PciDevice {
        address,
        parent,
        class: number("class"),
        vendor: u16::try_from(number("vendor")).unwrap_or_default(),
        device: u16::try_from(number("device")).unwrap_or_default(),
        numa: tree.numa(&format!("{path}/numa_node")),
        link: PcieLink::parse(&text("current_link_speed"), &text("current_link_width")),
        virtual_function: tree.is_there(&format!("{path}/physfn")),
    }
}
