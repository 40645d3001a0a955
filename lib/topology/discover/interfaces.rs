//! Network interfaces. In: `/sys/class/net`, the addresses of this host. Out: plain facts. Guarantee: sorted by name; a
//! rate is stated only where the kernel knows one.

use super::tree::Tree;
use crate::topology::facts::Interface;
use crate::topology::interface;

const CLASS: &str = "sys/class/net";
/// `IFF_UP` and `IFF_LOOPBACK` of the kernel.
const UP: u32 = 1;
const LOOPBACK: u32 = 8;

/// All interfaces; addresses only on the live machine, as sysfs does not have them.
pub(super) fn interfaces(tree: &Tree) -> Vec<Interface> {
    let addresses = if tree.is_live() { interface::by_name() } else { Default::default() };
    let read = |name: String| {
        let path = format!("{CLASS}/{name}");
        // bonding_masters is a file, not an interface.
        let flags = tree.hexadecimal(&format!("{path}/flags"))?;
        let megabits = tree.value::<i64>(&format!("{path}/speed")).and_then(|speed| u64::try_from(speed).ok());
        Some(Interface {
            up: flags & UP != 0,
            loopback: flags & LOOPBACK != 0,
            bytes_per_second: megabits.filter(|&speed| speed > 0).map(|speed| speed.saturating_mul(1_000_000) / 8),
            mtu: tree.value(&format!("{path}/mtu")).unwrap_or_default(),
            pci: tree.pci_path(&format!("{path}/device")).last().copied(),
            numa: tree.numa(&format!("{path}/device/numa_node")),
            addresses: addresses.get(&name).cloned().unwrap_or_default(),
            name,
        })
    };
    tree.names(CLASS).into_iter().filter_map(read).collect()
}
