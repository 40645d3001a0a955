//! Discovery in a tree of files that is laid out as the kernel does it.

use crossmesh::topology::HostFacts;
use crossmesh::topology::cluster::{ClusterOptions, pair};
use crossmesh::topology::discover::{self, Tree};
use crossmesh::topology::facts::{LinkLayer, PortState};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

struct Recording {
    folder: tempfile::TempDir,
}

impl Recording {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(Path::new(target), path).unwrap();
    }

    /// A device below `above`, such as `pci0000:00/0000:00:01.0`.
    fn pci(&self, above: &str, address: &str, class: &str, vendor: &str, numa: i32) {
        let folder = format!("sys/devices/{above}/{address}");
        let texts = [
            ("class", class),
            ("vendor", vendor),
            ("device", "0x2330"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
        ];
        texts.iter().for_each(|(name, text)| self.write(&format!("{folder}/{name}"), text));
        self.write(&format!("{folder}/numa_node"), &numa.to_string());
        self.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/{above}/{address}"));
    }

    fn nic(&self, device: &str, pci: &str, layer: &str, rate: &str, state: &str) {
        let folder = format!("sys/class/infiniband/{device}");
        self.link(&format!("{folder}/device"), &format!("../../../{pci}"));
        self.write(&format!("{folder}/node_guid"), "9a70:5000:03ae:6d94");
        for (name, text) in [("link_layer", layer), ("rate", rate), ("state", state)] {
            self.write(&format!("{folder}/ports/1/{name}"), text);
        }
        self.write(&format!("{folder}/ports/1/gids/0"), "0000:0000:0000:0000:0000:0000:0000:0000");
        self.write(&format!("{folder}/ports/1/gids/3"), "0000:0000:0000:0000:0000:ffff:c000:0201");
        self.write(&format!("{folder}/ports/1/gid_attrs/types/3"), "RoCE v2");
    }

    fn discover(&self) -> HostFacts {
        discover::host(&Tree::at(self.folder.path()))
    }
}

/// Two sockets; on the first a switch with a GPU and a card; on the second a GPU on a root port, whose node is not told.
fn two_sockets() -> Recording {
    let tree = Recording::new();
    for (node, cpus) in [(0, "0-1,4-5"), (1, "2-3,6-7"), (2, "")] {
        tree.write(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
        tree.write(
            &format!("sys/devices/system/node/node{node}/meminfo"),
            &format!("Node {node} MemTotal:       1024 kB\nNode {node} MemFree: 5 kB"),
        );
    }
    for cpu in 0..8 {
        let core = cpu % 4;
        let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        tree.write(&format!("{topology}/core_cpus_list"), &format!("{core},{}", core + 4));
        tree.write(&format!("{topology}/physical_package_id"), &(core / 2).to_string());
    }
    tree.write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1");
    tree.write("proc/sys/kernel/hostname", "recorded");
    tree.write("proc/driver/nvidia/gpus/0000:12:00.0/information", "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-7");
    let (root, switch) = ("pci0000:00/0000:00:01.0", "pci0000:00/0000:00:01.0/0000:10:00.0");
    tree.pci("pci0000:00", "0000:00:01.0", "0x060400", "0x8086", 0);
    tree.pci(root, "0000:10:00.0", "0x060400", "0x1000", 0);
    tree.pci(switch, "0000:11:00.0", "0x060400", "0x1000", 0);
    tree.pci(switch, "0000:11:01.0", "0x060400", "0x1000", 0);
    tree.pci(&format!("{switch}/0000:11:00.0"), "0000:12:00.0", "0x030200", "0x10de", 0);
    tree.pci(&format!("{switch}/0000:11:01.0"), "0000:13:00.0", "0x020700", "0x15b3", 0);
    tree.pci("pci0000:80", "0000:80:01.0", "0x060400", "0x8086", 1);
    tree.pci("pci0000:80/0000:80:01.0", "0000:81:00.0", "0x030200", "0x10de", -1);
    // A disk, which is of no interest, and a virtual function, which is.
    tree.pci("pci0000:00", "0000:00:1f.2", "0x010601", "0x8086", 0);
    tree.pci(&format!("{switch}/0000:11:01.0"), "0000:13:00.1", "0x020700", "0x15b3", 0);
    tree.link(&format!("sys/devices/{switch}/0000:11:01.0/0000:13:00.1/physfn"), "../0000:13:00.0");
    tree.nic("mlx5_0", "0000:13:00.0", "InfiniBand", "400 Gb/sec (4X NDR)", "4: ACTIVE");
    tree.nic("mlx5_1", "0000:13:00.1", "InfiniBand", "400 Gb/sec (4X NDR)", "1: DOWN");
    tree.write("sys/class/net/eth0/flags", "0x1003");
    tree.write("sys/class/net/eth0/speed", "25000");
    tree.write("sys/class/net/eth0/mtu", "9000");
    tree.write("sys/class/net/lo/flags", "0x9");
    tree.write("sys/class/net/lo/speed", "-1");
    tree.write("sys/class/net/bonding_masters", "bond0");
    tree
}

#[test]
fn a_tree_becomes_facts() {
    let facts = two_sockets().discover();
    assert_eq!((facts.host.as_str(), facts.numa_nodes.len(), facts.cores.len()), ("recorded", 3, 4));
    assert_eq!((facts.numa_nodes[1].cpus.to_string(), facts.numa_nodes[0].memory_bytes), ("2-3,6-7".into(), 1 << 20));
    assert_eq!((facts.cores[3].package, facts.cores[3].cpus.to_string()), (1, "3,7".into()));
    assert_eq!((facts.limits.cpus.to_string(), facts.limits.memory_nodes.to_string()), ("0-3".into(), "0-1".into()));
    let addresses: Vec<String> = facts.pci.iter().map(|device| device.address.to_string()).collect();
    assert!(addresses.iter().any(|address| address == "0000:80:01.0"), "bridges above: {addresses:?}");
    assert!(!addresses.iter().any(|address| address == "0000:00:1f.2"), "disks are left out: {addresses:?}");
    let parents_first = |(position, device): (usize, &crossmesh::topology::facts::PciDevice)| {
        device.parent.is_none_or(|parent| addresses[..position].contains(&parent.to_string()))
    };
    assert!(facts.pci.iter().enumerate().all(parents_first), "{addresses:?}");
    let gpus: Vec<_> =
        facts.gpus.iter().map(|gpu| (gpu.index, gpu.pci.to_string(), gpu.numa, gpu.uuid.as_str())).collect();
    assert_eq!(gpus, [(0, "0000:12:00.0".into(), Some(0), "GPU-7"), (1, "0000:81:00.0".into(), None, "")]);
    let nic = &facts.nics[0];
    assert_eq!((nic.device.as_str(), nic.bytes_per_second, nic.state), ("mlx5_0", 50_000_000_000, PortState::Active));
    assert_eq!((nic.link_layer.clone(), nic.virtual_function, nic.openable), (LinkLayer::InfiniBand, false, None));
    assert_eq!((nic.gids.len(), nic.gids[0].index, nic.gids[0].kind.as_deref()), (1, 3, Some("RoCE v2")));
    assert!(facts.nics[1].virtual_function && facts.nics[1].state == PortState::Down);
    let interfaces: Vec<_> =
        facts.interfaces.iter().map(|own| (own.name.as_str(), own.up, own.loopback, own.mtu)).collect();
    assert_eq!(interfaces, [("eth0", true, false, 9000), ("lo", true, true, 0)]);
    assert_eq!(facts.interfaces[0].bytes_per_second, Some(3_125_000_000));
    assert_eq!(pair(&facts, &ClusterOptions::default().nics).nics_of_gpu, [[0], [0]]);
}

#[test]
fn an_empty_tree_is_a_host_without_anything() {
    let facts = Recording::new().discover();
    assert_eq!((facts.gpus.len(), facts.nics.len(), facts.pci.len(), facts.cores.len()), (0, 0, 0, 0));
    let missing = facts.sources.iter().find(|source| source.name == "verbs").unwrap();
    assert!(!missing.available && missing.note.contains("no RDMA devices"), "{missing:?}");
}
