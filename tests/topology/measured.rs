//! A machine that was looked at through NVML: two H200 of one host, in a virtual machine. Expectations are what nvidia-smi
//! said there: `topo -m`, `nvlink -s` and `-q`.

use super::{cluster, domains, hosts, nics, texts};
use crossmesh::topology::cluster::{DomainKey, PathKind, Paths, differences, nvlink_rate_of};
use crossmesh::topology::facts::{FabricState, NvLinkPeer};
use crossmesh::topology::{Binding, ClusterOptions, HostFacts, binding};

fn two_h200() -> HostFacts {
    hosts("two-h200.json").swap_remove(0)
}

#[test]
fn facts_are_those_that_nvidia_smi_states() {
    let host = two_h200();
    let gpus: Vec<_> = host.gpus.iter().map(|gpu| (gpu.index, gpu.pci.to_string(), gpu.name.as_str())).collect();
    assert_eq!(gpus, [(0, "0000:00:06.0".into(), "NVIDIA H200"), (1, "0000:00:07.0".into(), "NVIDIA H200")]);
    for gpu in &host.gpus {
        assert_eq!((gpu.sm, gpu.mig, gpu.inactive_nvlinks, gpu.numa), (Some(90), false, 0, None));
        assert_eq!((gpu.nvlinks.len(), gpu.nvlinks[0].links), (1, 18));
        // A switch that the machine does not show has an address of ones, and is a switch all the same.
        assert!(matches!(gpu.nvlinks[0].peer, NvLinkPeer::Switch(_)), "{:?}", gpu.nvlinks);
        let fabric = gpu.fabric.as_ref().unwrap();
        assert_eq!((fabric.state, fabric.status, fabric.clique), (FabricState::Completed, 0, 0));
        assert_eq!((fabric.cluster.as_str(), fabric.is_set()), ("00000000-0000-0000-0000-000000000000", false));
        // The driver states no rate of a link: that of NVLink 4 stands.
        assert_eq!((gpu.nvlinks[0].bytes_per_second, nvlink_rate_of(gpu)), (0, 450_000_000_000));
        let link = host.pci_device(gpu.pci).and_then(|device| device.link).unwrap();
        assert_eq!((link.megatransfers, link.width), (32_000, 16));
    }
    let near = host.node_near(host.gpus[0].numa).unwrap();
    assert_eq!((near.index, near.cpus.to_string()), (0, "0-31".to_string()));
}

#[test]
fn a_uuid_of_zeros_leaves_the_domain_to_the_links() {
    // Two such hosts have the same uuid and clique, and no NVLink between them.
    let cluster = cluster(vec![two_h200(), two_h200()]);
    assert_eq!((domains(&cluster, 0), domains(&cluster, 1)), (vec![0, 0], vec![1, 1]));
    assert!(cluster.domains.iter().all(|domain| matches!(domain.key, DomainKey::Island(_, 0))));
    assert!(cluster.remarks().is_empty() && cluster.differences().is_empty());
    assert_eq!(nics(&cluster, 0), ["", ""]);
    let facts = &cluster.nodes[0].facts;
    let path = Paths::new(facts).gpu_to_gpu(&facts.gpus[0], &facts.gpus[1]);
    assert_eq!((path.kind, path.bytes_per_second), (PathKind::NvLink(18), Some(450_000_000_000)));
}

#[test]
fn a_link_that_is_lost_is_told() {
    let (whole, mut other) = (two_h200(), HostFacts { host: "other".into(), ..two_h200() });
    other.gpus[1].nvlinks[0].links = 17;
    other.gpus[1].inactive_nvlinks = 1;
    let told = texts(&differences(&[&whole, &whole, &other]));
    assert_eq!(told, ["NVLinks of GPU 1 at 0000:00:07.0: 17 on other; 18 on 2 of 3"]);
    let remarks = texts(&cluster(vec![other]).remarks());
    assert_eq!(remarks, ["GPU 1 at 0000:00:07.0 of other has 17 of its 18 NVLinks up"]);
}

#[test]
fn ranks_take_the_gpus_in_turn_and_share_the_cores() {
    let bound = |ranks| binding::near(&two_h200(), ranks, &ClusterOptions::default());
    let shown = |own: &Binding| (own.cpus.to_string(), own.gpu.unwrap().to_string(), own.shared, own.memory_node);
    let expected = [("0-15", "0000:00:06.0"), ("16-31", "0000:00:07.0")];
    let expected = expected.map(|(cpus, gpu)| (cpus.to_string(), gpu.to_string(), false, None));
    assert_eq!(bound(2).iter().map(shown).collect::<Vec<_>>(), expected);
    let gpus: Vec<_> = bound(4).iter().map(|own| own.gpu.unwrap().device).collect();
    assert_eq!(gpus, [6, 7, 6, 7]);
}
