//! RDMA devices. In: `/sys/class/infiniband`. Out: a [`Nic`] for every port. Guarantee: no library of RDMA is needed; a
//! port that cannot be read is listed with what is known.

use super::tree::Tree;
use crate::topology::facts::{Gid, LinkLayer, Nic, PciDevice, PortState, Source};
use std::fs::OpenOptions;

const CLASS: &str = "sys/class/infiniband";
/// PCI vendor id of Amazon, whose RDMA device is EFA.
const AMAZON: u16 = 0x1d0f;

/// Ports of all RDMA devices, and where that is from.
pub(super) fn nics(tree: &Tree, pci: &[PciDevice]) -> (Vec<Nic>, Source) {
    if !tree.is_there(CLASS) {
        return (Vec::new(), Source::missing("verbs", format!("no /{CLASS}: the kernel has no RDMA devices")));
    }
    let devices = tree.names(CLASS);
    let nics: Vec<Nic> = devices.iter().flat_map(|device| ports(tree, device, pci)).collect();
    let note = format!("{} devices, {} ports", devices.len(), nics.len());
    (nics, Source::asked("verbs", note))
}

fn ports(tree: &Tree, device: &str, pci: &[PciDevice]) -> Vec<Nic> {
    let path = format!("{CLASS}/{device}");
    let address = tree.pci_path(&format!("{path}/device")).last().copied();
    let card = pci.iter().find(|card| Some(card.address) == address);
    let openable = openable(tree, &path);
    let mut numbers: Vec<u32> =
        tree.names(&format!("{path}/ports")).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    let port = |port: u32| {
        let path = format!("{path}/ports/{port}");
        let link_layer = match (card.map(|card| card.vendor), tree.text(&format!("{path}/link_layer")).as_deref()) {
            (Some(AMAZON), _) => LinkLayer::Efa,
            (_, Some("InfiniBand")) => LinkLayer::InfiniBand,
            (_, Some("Ethernet")) => LinkLayer::Ethernet,
            _ => LinkLayer::Unknown,
        };
        Nic {
            device: device.to_string(),
            port,
            link_layer,
            bytes_per_second: tree.text(&format!("{path}/rate")).map_or(0, |text| rate(&text)),
            state: tree.text(&format!("{path}/state")).map_or(PortState::Unknown, |text| state(&text)),
            guid: tree.text(&format!("{CLASS}/{device}/node_guid")).unwrap_or_default(),
            pci: address,
            numa: tree.numa(&format!("{CLASS}/{device}/device/numa_node")).or(card.and_then(|card| card.numa)),
            gids: gids(tree, &path),
            interface: tree.text(&format!("{path}/gid_attrs/ndevs/0")),
            virtual_function: card.is_some_and(|card| card.virtual_function),
            openable,
        }
    };
    numbers.into_iter().map(port).collect()
}

/// `400 Gb/sec (4X NDR)` in bytes per second.
fn rate(text: &str) -> u64 {
    let gigabits: f64 = text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default();
    if (0.0..1e6).contains(&gigabits) { (gigabits * 1e9 / 8.0) as u64 } else { 0 }
}

/// `4: ACTIVE`.
fn state(text: &str) -> PortState {
    match text.split(':').next().map(str::trim) {
        Some("4") => PortState::Active,
        Some("2" | "3") => PortState::Waiting,
        Some("1" | "0" | "5") => PortState::Down,
        _ => PortState::Unknown,
    }
}

/// Those that are set; a table has some hundred places, and one that is not mapped here cannot be read.
fn gids(tree: &Tree, port: &str) -> Vec<Gid> {
    let mut indices: Vec<u32> =
        tree.names(&format!("{port}/gids")).iter().filter_map(|name| name.parse().ok()).collect();
    indices.sort_unstable();
    let read = |index: u32| {
        let gid = tree.text(&format!("{port}/gids/{index}"))?;
        let is_set = gid.bytes().any(|byte| !matches!(byte, b'0' | b':'));
        let kind = || tree.text(&format!("{port}/gid_attrs/types/{index}"));
        is_set.then(|| Gid { index, kind: kind(), gid })
    };
    indices.into_iter().filter_map(read).collect()
}

/// Whether the device's file opens, which a device cgroup may forbid whatever its mode.
fn openable(tree: &Tree, device: &str) -> Option<bool> {
    let name = tree.names(&format!("{device}/device/infiniband_verbs")).into_iter().next()?;
    let file = format!("/dev/infiniband/{name}");
    tree.is_live().then(|| OpenOptions::new().read(true).write(true).open(file).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        for (text, bytes) in
            [("400 Gb/sec (4X NDR)", 50_000_000_000), ("2.5 Gb/sec (1X SDR)", 312_500_000), ("", 0), ("-1 x", 0)]
        {
            assert_eq!(rate(text), bytes, "{text:?}");
        }
        assert_eq!(
            (state("4: ACTIVE"), state("2: INIT"), state("1: DOWN")),
            (PortState::Active, PortState::Waiting, PortState::Down)
        );
        assert_eq!(state("x"), PortState::Unknown);
    }
}
