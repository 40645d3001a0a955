//! Domains, rails, seats and remarks of small hosts. In: facts made here. Out: pass or fail. Guarantee: what every
//! expectation is follows from the facts beside it.

use super::*;
use crate::topology::PciAddress;
use crate::topology::facts::{Fabric, FabricState, Gpu, Nic, NumaNode, NvLinkPeer, NvLinks};

fn address(bus: u8) -> PciAddress {
    PciAddress { domain: 0, bus, device: 0, function: 0 }
}

fn links(peer: NvLinkPeer, links: u32) -> NvLinks {
    NvLinks { peer, links, bytes_per_second: 0 }
}

/// A host with GPUs on buses 1, 2, … of NUMA node 0.
fn host(gpus: u8) -> HostFacts {
    let gpu = |index: u8| Gpu { index: index.into(), sm: Some(90), numa: Some(0), ..Gpu::at(address(index + 1)) };
    HostFacts {
        host: "h".into(),
        numa_nodes: vec![NumaNode { index: 0, cpus: "0-7".parse().unwrap(), memory_bytes: 0 }],
        gpus: (0..gpus).map(gpu).collect(),
        ..HostFacts::default()
    }
}

fn nic(number: u8) -> Nic {
    let text = format!(r#"{{"device":"mlx5_{number}","port":1,"state":"active","bytes_per_second":50000000000}}"#);
    Nic { pci: Some(address(number + 0x40)), numa: Some(0), ..serde_json::from_str(&text).unwrap() }
}

fn fabric(cluster: &str, clique: u32, state: FabricState) -> Option<Fabric> {
    Some(Fabric { cluster: cluster.into(), clique, state, status: 0, health: 0 })
}

fn domains(hosts: Vec<HostFacts>) -> Vec<Vec<u32>> {
    let cluster = Cluster::new(hosts, &ClusterOptions::default());
    cluster.nodes.iter().map(|node| node.domains.iter().map(|domain| domain.0).collect()).collect()
}

#[test]
fn a_switch_joins_all_and_nothing_joins_the_host() {
    let mut switched = host(4);
    switched.gpus.iter_mut().for_each(|gpu| gpu.nvlinks = vec![links(NvLinkPeer::Switch(None), 18)]);
    assert_eq!(domains(vec![switched.clone(), host(2), switched]), [vec![0; 4], vec![1; 2], vec![2; 4]]);
}

#[test]
fn pairs_make_cliques() {
    // Two groups of three, each all linked, and one link between the groups.
    let pairs = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (2, 3)];
    let mut linked = host(6);
    for (one, other) in pairs {
        // Stated at one end only, as files may have it.
        let peer = NvLinkPeer::Gpu(linked.gpus[other].pci);
        linked.gpus[one].nvlinks.push(links(peer, 2));
    }
    // GPU 5 states none of its own, and so is alone.
    assert_eq!(domains(vec![linked.clone()]), [[0, 0, 0, 1, 1, 2]]);
    let peer = NvLinkPeer::Gpu(linked.gpus[4].pci);
    linked.gpus[5].nvlinks.push(links(peer, 2));
    assert_eq!(domains(vec![linked]), [[0, 0, 0, 1, 1, 1]]);
}

#[test]
fn fabrics_join_hosts_by_cluster_and_clique() {
    let tray = |cluster: &str, clique, state| {
        let mut tray = host(2);
        for gpu in &mut tray.gpus {
            gpu.nvlinks = vec![links(NvLinkPeer::Switch(None), 18)];
            gpu.fabric = fabric(cluster, clique, state);
        }
        tray
    };
    let (done, one, zero) = (FabricState::Completed, "12345678-0000", "00000000-0000-0000-0000-000000000000");
    let hosts = vec![
        tray(one, 1, done),
        tray(one, 1, done),
        tray(one, 2, done),
        tray("9", 1, done),
        tray(zero, 0, done),
        tray(zero, 0, done),
        tray(one, 1, FabricState::InProgress),
    ];
    let expected = [[0, 0], [0, 0], [1, 1], [2, 2], [3, 3], [4, 4], [5, 5]];
    assert_eq!(domains(hosts.clone()), expected);
    let remarks = Cluster::new(hosts, &ClusterOptions::default()).remarks();
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].to_string().contains("2 cliques ([1, 2])"), "{}", remarks[0]);
}

#[test]
fn a_gpu_without_nvlink_among_others_is_alone() {
    let mut tray = host(4);
    for (position, gpu) in tray.gpus.iter_mut().enumerate() {
        gpu.fabric = fabric("1", 0, FabricState::Completed);
        gpu.mig = position == 3;
        gpu.nvlinks = vec![links(NvLinkPeer::Switch(None), 18); usize::from(position != 1)];
    }
    tray.gpus[1].inactive_nvlinks = 18;
    let cluster = Cluster::new(vec![tray], &ClusterOptions::default());
    assert_eq!(cluster.nodes[0].domains, [0, 1, 0, 2].map(DomainId));
    let remarks: Vec<String> = cluster.remarks().iter().map(Remark::to_string).collect();
    let expected = [
        "GPU 1 at 0000:02:00.0 of h has none of its 18 NVLinks up: it reaches no other by NVLink",
        "GPU 3 at 0000:04:00.0 of h is cut into instances (MIG), which have no NVLink: it is a domain of its own",
    ];
    assert_eq!(remarks, expected);
}

#[test]
fn a_host_that_lacks_a_nic_keeps_its_rails() {
    let with = |numbers: &[u8]| HostFacts { nics: numbers.iter().map(|&number| nic(number)).collect(), ..host(4) };
    let rails = |hosts: Vec<HostFacts>, options: &ClusterOptions| -> Vec<Vec<u32>> {
        let cluster = Cluster::new(hosts, options);
        cluster.nodes.iter().map(|node| node.rails.values().copied().collect()).collect()
    };
    let plain = ClusterOptions::default();
    assert_eq!(rails(vec![with(&[0, 1, 2, 3]), with(&[0, 2, 3])], &plain), [vec![0, 1, 2, 3], vec![0, 2, 3]]);
    assert_eq!(rails(vec![with(&[0, 1]), with(&[2, 3])], &plain), [[0, 1], [0, 1]]);
    let mapped = ClusterOptions { rails: "mlx5_0=7, mlx5_1=5".parse().unwrap(), ..plain };
    assert_eq!(rails(vec![with(&[0, 1])], &mapped), [[7, 5]]);
    for text in ["mlx5_0", "mlx5_0=x"] {
        assert!(text.parse::<RailMap>().is_err(), "{text}");
    }
}

#[test]
fn differences_name_the_few() {
    let alike = HostFacts { nics: vec![nic(0), nic(1)], ..host(2) };
    let (mut other, mut third) = (HostFacts { host: "odd".into(), ..alike.clone() }, alike.clone());
    other.nics.pop();
    third.host = "i".into();
    let cluster = Cluster::new(vec![alike.clone(), other, third], &ClusterOptions::default());
    let expected = "NIC mlx5_1 port 1: none on odd; unknown link layer, 50 GB/s, active on 2 of 3";
    let told: Vec<String> = cluster.differences().iter().map(Difference::to_string).collect();
    assert_eq!(told, [expected]);
    assert!(Cluster::new(vec![alike.clone(), alike], &ClusterOptions::default()).differences().is_empty());
}

#[test]
fn ranks_take_visible_gpus_in_turn() {
    let mut facts = HostFacts { nics: (0..4).map(nic).collect(), ..host(4) };
    for (position, gpu) in facts.gpus.iter_mut().enumerate() {
        gpu.uuid = format!("GPU-{position}abc");
    }
    let seats = |facts: &HostFacts, ranks: usize| -> Vec<_> {
        let seat = |rank| seat(facts, "token", rank, &ClusterOptions::default());
        let name = |seat: Seat| (seat.gpu.map_or(0, |gpu| gpu.bus), seat.nics.iter().map(|nic| nic.rail).collect());
        (0..ranks).map(seat).map(name).collect::<Vec<(u8, Vec<u32>)>>()
    };
    assert_eq!(seats(&facts, 5), [(1, vec![0]), (2, vec![1]), (3, vec![2]), (4, vec![3]), (1, vec![0])]);
    facts.limits.cuda_visible_devices = Some("GPU-2, 0,-1,3".into());
    assert_eq!(seats(&facts, 3), [(3, vec![2]), (1, vec![0]), (3, vec![2])]);
    // Nothing is visible: the NICs are taken in turn.
    facts.limits.cuda_visible_devices = Some(String::new());
    assert_eq!(seats(&facts, 2), [(0, vec![0]), (0, vec![1])]);
    assert_eq!(seats(&HostFacts::default(), 1), [(0, vec![])]);
}
