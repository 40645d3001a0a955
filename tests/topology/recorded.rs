//! Files in the forms of other tools: ours, written by hand, and recorded ones that are kept outside the repository.

use super::{cluster, domains, fixture, hosts, left_out, nics};
use crossmesh::topology::cluster::{PathKind, Paths, nvlink_rate_of};
use crossmesh::topology::facts::{C2c, LinkLayer, NvLinkPeer};
use crossmesh::topology::{FileError, HostFacts, file};
use std::path::Path;

/// A recorded file; said when it is not there.
fn recorded(name: &str) -> Option<Vec<HostFacts>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures/topology").join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(file::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"))),
        Err(error) => {
            eprintln!("not run with {}: {error}", path.display());
            None
        }
    }
}

#[test]
fn nccl_files_may_hold_several_hosts() {
    let hosts = hosts("two-hosts.nccl.xml");
    assert_eq!(hosts.len(), 2);
    let (one, other) = (&hosts[0], &hosts[1]);
    assert_eq!(one.numa_nodes[0].cpus.to_string(), "0-15");
    assert_eq!((one.nics[0].link_layer.clone(), one.nics[1].bytes_per_second), (LinkLayer::InfiniBand, 25_000_000_000));
    assert_eq!(one.gpus[0].nvlinks[0].peer, NvLinkPeer::Gpu(one.gpus[1].pci));
    assert_eq!((other.gpus[0].numa, other.gpus[0].nvlinks[0].peer), (None, NvLinkPeer::Switch(None)));
    assert_eq!(other.gpus[0].c2c, Some(C2c { links: 5, bytes_per_second: 44_712_000_000 }));
    assert_eq!((other.nics[0].pci, nvlink_rate_of(&other.gpus[0])), (None, 900_000_000_000));
    let cluster = cluster(hosts);
    // Two ports beside both GPUs: one each.
    assert_eq!(
        (nics(&cluster, 0), nics(&cluster, 1)),
        (vec!["mlx5_0".into(), "mlx5_1".into()], vec!["eth0".to_string()])
    );
    assert_eq!((domains(&cluster, 0), domains(&cluster, 1)), (vec![0, 0], vec![1]));
}

#[test]
fn hwloc_files_give_tree_devices_and_nvlinks() {
    let host = hosts("one-switch.hwloc.xml").swap_remove(0);
    assert_eq!((host.host.as_str(), host.cpu_model.as_str()), ("bench1", "Example 9000"));
    assert_eq!(host.cores.iter().map(|core| core.cpus.to_string()).collect::<Vec<_>>(), ["0,2", "1,3"]);
    assert_eq!((host.numa_nodes.len(), host.numa_nodes[0].memory_bytes), (1, 1 << 30));
    assert_eq!((host.nics[0].device.as_str(), host.interfaces[0].name.as_str()), ("mlx5_0", "ib0"));
    let (one, other) = (&host.gpus[0], &host.gpus[1]);
    assert_eq!((one.uuid.as_str(), one.numa, other.pci.to_string().as_str()), ("GPU-1", Some(0), "0000:00:02.0"));
    let paths = Paths::new(&host);
    let path = paths.gpu_to_nic(one, &host.nics[0]);
    assert_eq!((path.kind, path.bytes_per_second), (PathKind::Switch, Some(63_015_385_000)));
    assert_eq!(paths.gpu_to_nic(other, &host.nics[0]).kind, PathKind::HostBridge);
    assert_eq!(paths.gpu_to_gpu(one, other).bytes_per_second, Some(100_000_000_000));
    // The one card is beside GPU 0; GPU 1 shares it.
    assert_eq!(nics(&cluster(vec![host]), 0), ["mlx5_0", "mlx5_0"]);
}

#[test]
fn dumps_are_read_back_equal() {
    for name in ["gb200-connectx7.json", "hidden-peers.json", "two-hosts.nccl.xml", "one-switch.hwloc.xml"] {
        let hosts = hosts(name);
        assert_eq!(file::from_json(&file::to_json(&hosts).unwrap()).unwrap(), hosts, "{name}");
        let with = file::to_json_with(&hosts, "hierarchy", &[1, 2]).unwrap();
        assert_eq!(file::parse(&with).unwrap(), hosts, "{name}");
    }
}

#[test]
fn what_is_no_topology_is_refused_with_the_reason() {
    let other_version = fixture("one-bus.json").replace("\"version\": 1", "\"version\": 2");
    for (text, part) in [
        ("", "no topology in JSON"),
        ("{\"hosts\": []}", "no topology in JSON"),
        (&other_version, "of version 2; this crossmesh reads version 1"),
        ("<a", "no XML that can be read"),
        ("<rack/>", "begins with <rack>"),
        ("<topology/>", "no version in <topology>"),
        ("<topology version=\"2.0\"/>", "no object of type NUMANode or Core"),
        ("<system/>", "no <cpu>"),
        ("<system>\n<cpu affinity=\"xyz\"/></system>", "affinity=\"xyz\" of <cpu> in line 2 is no mask"),
    ] {
        let error = file::parse(text).unwrap_err();
        assert!(error.to_string().contains(part), "{text:?}: {error}");
    }
    assert!(matches!(file::parse("{"), Err(FileError::Json { .. })));
}

#[test]
fn an_hgx_of_eight_uses_the_cards_beside_its_gpus() {
    let Some(hosts) = recorded("nccl-hgx-h100-oci.xml") else { return };
    let cluster = cluster(hosts);
    let expected = [
        "mlx5_0 mlx5_1",
        "mlx5_3 mlx5_4",
        "mlx5_5 mlx5_6",
        "mlx5_7 mlx5_8",
        "mlx5_9 mlx5_10",
        "mlx5_12 mlx5_13",
        "mlx5_14 mlx5_15",
        "mlx5_16 mlx5_17",
    ];
    assert_eq!(nics(&cluster, 0), expected);
    assert_eq!(domains(&cluster, 0), [0; 8]);
    assert!(left_out(&cluster, 0).is_empty());
    assert_eq!(nvlink_rate_of(&cluster.nodes[0].facts.gpus[0]), 450_000_000_000);
}

#[test]
fn a_dgx2_is_one_domain_and_functions_without_devices_are_no_nics() {
    if let Some(hosts) = recorded("hwloc-dgx2.xml") {
        let cluster = cluster(hosts);
        assert_eq!(domains(&cluster, 0), [0; 16]);
        let gpu = &cluster.nodes[0].facts.gpus[15];
        // Six links of 25 GB/s, one to each switch of its half.
        assert_eq!((gpu.nvlinks.len(), nvlink_rate_of(gpu), gpu.numa), (6, 150_000_000_000, Some(1)));
    }
    if let Some(hosts) = recorded("hwloc-many-vfs.xml") {
        let names: Vec<_> = hosts[0].nics.iter().map(|nic| nic.device.as_str()).collect();
        assert_eq!(names, ["usnic_0", "usnic_1", "usnic_2"]);
        assert_eq!((hosts[0].gpus.len(), hosts[0].cores.len()), (0, 16));
    }
}
