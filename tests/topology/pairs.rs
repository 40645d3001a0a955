//! Which NICs the GPUs of each fixture use, and which domains they are in.

use super::{cluster, domains, hosts, left_out, nics, texts};
use crossmesh::topology::cluster::{PathKind, Paths, hidden_peers};
use crossmesh::topology::{Binding, Cluster, ClusterOptions, Synthetic, binding};

#[test]
fn gb200_with_connectx7_pairs_inside_a_socket() {
    let cluster = cluster(hosts("gb200-connectx7.json"));
    assert_eq!(nics(&cluster, 0), ["mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4"]);
    assert_eq!(domains(&cluster, 0), [0; 4]);
    let front =
        ["mlx5_2", "mlx5_5"].map(|name| format!("{name}: another link layer than the NICs beside it: front end"));
    assert_eq!(left_out(&cluster, 0), front);
    let facts = &cluster.nodes[0].facts;
    let paths = Paths::new(facts);
    let kinds = facts.nics.iter().map(|nic| paths.gpu_to_nic(&facts.gpus[2], nic).kind);
    let (near, far) = (PathKind::CoherentLink, PathKind::System);
    assert_eq!(kinds.collect::<Vec<_>>(), [far, far, far, near, near, near]);
}

#[test]
fn gb200_binds_to_cpus_and_their_memory_only() {
    let facts = hosts("gb200-connectx7.json").swap_remove(0);
    let bindings = binding::near(&facts, 4, &ClusterOptions::default());
    let shown = |own: &Binding| (own.cpus.to_string(), own.memory_node, own.nics.join(" "));
    let expected = [("0-1", 0, "mlx5_0"), ("2-3", 0, "mlx5_1"), ("72-73", 1, "mlx5_3"), ("74-75", 1, "mlx5_4")];
    let expected = expected.map(|(cpus, node, nic)| (cpus.to_string(), Some(node), nic.to_string()));
    assert_eq!(bindings.iter().map(shown).collect::<Vec<_>>(), expected);
}

#[test]
fn efa_beside_the_gpu_comes_first_and_the_rest_is_dealt_evenly() {
    let cluster = cluster(hosts("gb200-efa.json"));
    let expected = [
        "rdmap0s0 rdmap1s0 rdmap8s0 rdmap9s0",
        "rdmap2s0 rdmap3s0 rdmap10s0 rdmap11s0",
        "rdmap4s0 rdmap5s0 rdmap12s0 rdmap13s0",
        "rdmap6s0 rdmap7s0 rdmap14s0 rdmap15s0",
    ];
    assert_eq!(nics(&cluster, 0), expected);
    assert!(left_out(&cluster, 0).is_empty());
    let facts = &cluster.nodes[0].facts;
    let paths = Paths::new(facts);
    let kind = |nic: usize| paths.gpu_to_nic(&facts.gpus[0], &facts.nics[nic]).kind;
    assert_eq!(
        [0, 2, 8, 12].map(kind),
        [PathKind::Switch, PathKind::CoherentLink, PathKind::CoherentLink, PathKind::System]
    );
}

#[test]
fn a_gpu_without_nvlink_records_is_no_part_of_the_domain() {
    let cluster = cluster(hosts("gpu-without-nvlink.json"));
    assert_eq!(domains(&cluster, 0), [0, 0, 1, 0]);
    let expected = "GPU 2 at 0018:01:00.0 of tray0 has none of its 18 NVLinks up: it reaches no other by NVLink";
    assert_eq!(texts(&cluster.remarks()), [expected]);
    // Its NIC is its own all the same.
    assert_eq!(nics(&cluster, 0)[2], "mlx5_3");
}

#[test]
fn a_node_that_lacks_a_nic_shares_and_keeps_its_rails() {
    let cluster = cluster(hosts("nodes-differ.json"));
    assert_eq!(nics(&cluster, 0), ["mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4"]);
    assert_eq!(nics(&cluster, 1), ["mlx5_0", "mlx5_0", "mlx5_3", "mlx5_4"]);
    assert_eq!(domains(&cluster, 2), [0; 4]);
    let rails = |node: usize| cluster.nodes[node].rails.values().copied().collect::<Vec<_>>();
    assert_eq!((rails(0), rails(1)), (vec![0, 1, 2, 3], vec![0, 2, 3]));
    let expected = "NIC mlx5_1 port 1: none on tray1; InfiniBand, 50 GB/s, active on 2 of 3";
    assert_eq!(texts(&cluster.differences()), [expected]);
}

#[test]
fn nodes_of_several_sizes_are_paired_each_by_itself() {
    let mut hosts = hosts("nodes-differ.json");
    // Tray 1 has lost the GPU of its second socket's first NIC, tray 2 a whole socket.
    hosts[1].gpus.remove(2);
    hosts[2].gpus.truncate(2);
    hosts[2].nics.retain(|nic| nic.numa == Some(0));
    let cluster = cluster(hosts);
    assert_eq!(nics(&cluster, 0), ["mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4"]);
    // The one GPU of the socket has both of its NICs.
    assert_eq!(nics(&cluster, 1), ["mlx5_0", "mlx5_0", "mlx5_3 mlx5_4"]);
    assert_eq!(nics(&cluster, 2), ["mlx5_0", "mlx5_1"]);
    assert_eq!((domains(&cluster, 1), domains(&cluster, 2)), (vec![0; 3], vec![0; 2]));
    let rails = |node: usize| cluster.nodes[node].rails.values().copied().collect::<Vec<_>>();
    assert_eq!((rails(0), rails(1), rails(2)), (vec![0, 1, 2, 3], vec![0, 2, 3], vec![0, 1]));
    let told = texts(&cluster.differences());
    for line in [
        "GPU 2 at 0018:01:00.0: NVIDIA GB200 on tray0; none on 2 of 3",
        "GPU 3 at 0019:01:00.0: none on tray2; NVIDIA GB200 on 2 of 3",
        "NIC mlx5_1 port 1: none on tray1; InfiniBand, 50 GB/s, active on 2 of 3",
        "NIC mlx5_3 port 1: none on tray2; InfiniBand, 50 GB/s, active on 2 of 3",
    ] {
        assert!(told.iter().any(|own| own == line), "{line}: {told:?}");
    }
}

#[test]
fn cliques_of_one_uuid_are_domains_and_pair_as_ever() {
    let trays = |fabrics: [(&str, u32); 3]| {
        let mut hosts = hosts("nodes-differ.json");
        for (host, (cluster, clique)) in hosts.iter_mut().zip(fabrics) {
            for fabric in host.gpus.iter_mut().filter_map(|gpu| gpu.fabric.as_mut()) {
                (fabric.cluster, fabric.clique) = (cluster.into(), clique);
            }
        }
        cluster(hosts)
    };
    let own = "3f1c22e0-7a41-4b6e-9c0e-2d5a90c1b7aa";
    let two = trays([(own, 1), (own, 2), (own, 1)]);
    assert_eq!((0..3).map(|node| domains(&two, node)).collect::<Vec<_>>(), [[0; 4], [1; 4], [0; 4]]);
    let said = "fabric 3f1c22e0-7a41-4b6e-9c0e-2d5a90c1b7aa has 2 cliques ([1, 2]): GPUs of different cliques do not reach each other by NVLink";
    assert_eq!(texts(&two.remarks()), [said]);
    // A uuid of zeros names no fabric: each host is its own domain.
    let zero = "00000000-0000-0000-0000-000000000000";
    let none = trays([(zero, 0), (zero, 0), (zero, 0)]);
    assert_eq!((0..3).map(|node| domains(&none, node)).collect::<Vec<_>>(), [[0; 4], [1; 4], [2; 4]]);
    assert!(none.remarks().is_empty());
    for cluster in [&two, &none] {
        assert_eq!(nics(cluster, 1), ["mlx5_0", "mlx5_0", "mlx5_3", "mlx5_4"]);
        assert_eq!(nics(cluster, 2), ["mlx5_0", "mlx5_1", "mlx5_3", "mlx5_4"]);
    }
}

#[test]
fn everything_on_one_bus_is_shared_evenly() {
    let cluster = cluster(hosts("one-bus.json"));
    assert_eq!(nics(&cluster, 0), ["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"]);
    // No NVLink anywhere: the host is the domain.
    assert_eq!(domains(&cluster, 0), [0; 4]);
    let facts = &cluster.nodes[0].facts;
    let path = Paths::new(facts).gpu_to_nic(&facts.gpus[0], &facts.nics[1]);
    assert_eq!((path.kind, path.bytes_per_second), (PathKind::HostBridge, Some(25_000_000_000)));
}

#[test]
fn hidden_peers_keep_their_nics_and_are_told() {
    let hosts = hosts("hidden-peers.json");
    let message = hidden_peers(&hosts[0], 8).unwrap().to_string();
    assert!(message.starts_with("a device cgroup or a container shows 1 of 8 GPUs to a rank of 8 on n0"), "{message}");
    assert!(message.contains("--gpus-per-node=N --gpu-bind=none"), "{message}");
    assert_eq!(hidden_peers(&hosts[0], 1), None);
    let cluster = cluster(hosts);
    assert_eq!(nics(&cluster, 0), ["mlx5_3"]);
    assert_eq!(left_out(&cluster, 0).len(), 7);
    let mut whole = super::hosts("gb200-connectx7.json").swap_remove(0);
    assert_eq!(hidden_peers(&whole, 4), None);
    whole.limits.cuda_visible_devices = Some("2".into());
    assert!(hidden_peers(&whole, 4).unwrap().to_string().starts_with("CUDA_VISIBLE_DEVICES=2 shows 1 of 4 GPUs"));
}

#[test]
fn instances_and_functions_are_no_more_than_they_are() {
    let cluster = cluster(hosts("mig-and-functions.json"));
    assert_eq!(nics(&cluster, 0), ["mlx5_0", "mlx5_1"]);
    assert_eq!(domains(&cluster, 0), [0, 1]);
    assert!(texts(&cluster.remarks()).iter().any(|remark| remark.contains("MIG")));
    let expected = [
        "mlx5_2: a virtual function beside physical ones",
        "mlx5_3: a virtual function beside physical ones",
        "mlx5_4: a virtual function beside physical ones",
        "mlx5_5: a virtual function beside physical ones",
        "mlx5_6: its port is not active",
        "mlx5_7: this process may not open it",
        "rxe0: another link layer than the NICs beside it: front end",
        "mlx5_8: another rate than the NICs beside it: front end",
    ];
    assert_eq!(left_out(&cluster, 0), expected);
}

#[test]
fn a_choice_of_nics_goes_before_every_rule() {
    let with = |choice: &str| {
        let options = ClusterOptions { nics: choice.parse().unwrap(), ..ClusterOptions::default() };
        nics(&Cluster::new(hosts("gb200-connectx7.json"), &options), 0)
    };
    assert_eq!(with("^mlx5_0"), ["mlx5_1", "mlx5_1", "mlx5_3", "mlx5_4"]);
    assert_eq!(with("mlx5_2,mlx5_5"), ["mlx5_2", "mlx5_2", "mlx5_5", "mlx5_5"]);
    assert_eq!(with("mlx5_3"), ["mlx5_3"; 4]);
    assert_eq!(with("ibp*"), [""; 4]);
}

#[test]
fn synthetic_clusters_pass_through_the_same_rules() {
    for (text, domain_count, per_node) in [
        ("gb200-nvl72:2", 2, &["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"][..]),
        ("dgx-a100:3", 3, &["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]),
        ("2x[4gpu,2nic@50GB,nvlink450GB]", 2, &["mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1"]),
        ("1x[2gpu,4nic@25GB,nvlink450GB]", 1, &["mlx5_0 mlx5_1", "mlx5_2 mlx5_3"]),
    ] {
        let cluster = cluster(text.parse::<Synthetic>().unwrap().hosts());
        assert_eq!(cluster.domains.len(), domain_count, "{text}");
        for node in 0..cluster.nodes.len() {
            assert_eq!(nics(&cluster, node), per_node, "{text}");
        }
        assert!(cluster.differences().is_empty() && cluster.remarks().is_empty(), "{text}");
    }
}
