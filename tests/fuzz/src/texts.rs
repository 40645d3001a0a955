//! Topology files, and texts of the command line. In: any bytes. Out: whether they are one. Guarantee: everything that
//! follows from facts is computed; what has a text of its own survives it.

use super::{bytes_of, text};
use crossmesh::layout::parallel::ParallelSpec;
use crossmesh::topology::cluster::{ClusterOptions, Paths, hidden_peers};
use crossmesh::topology::{Cluster, CpuSet, HostFacts, PciAddress, Synthetic, binding, file};
use std::path::Path;

/// A topology: our own dump, hwloc's XML or NCCL's.
pub(crate) fn topology(bytes: &[u8]) -> bool {
    let Some(hosts) = text(bytes).and_then(|text| file::parse(text).ok()) else { return false };
    let written = file::to_json(&hosts).expect("facts have a form");
    assert_eq!(file::parse(&written).expect("what is written is read"), hosts);
    follow(hosts);
    true
}

/// Everything that follows from facts.
fn follow(hosts: Vec<HostFacts>) {
    for host in &hosts {
        let paths = Paths::new(host);
        for gpu in &host.gpus {
            let _: Vec<_> = host.nics.iter().map(|nic| paths.gpu_to_nic(gpu, nic)).collect();
            let _: Vec<_> = host.gpus.iter().map(|peer| paths.gpu_to_gpu(gpu, peer)).collect();
        }
        let _ = binding::near(host, 3, &ClusterOptions::default());
        let _ = binding::cores(host, 3, &ClusterOptions::default());
        let _ = hidden_peers(host, 2);
    }
    let count = hosts.len();
    let cluster = Cluster::new(hosts, &ClusterOptions::default());
    assert_eq!(cluster.nodes.len(), count);
    for node in &cluster.nodes {
        for nics in &node.pairing.nics_of_gpu {
            assert!(nics.iter().all(|nic| node.rails.contains_key(nic)));
        }
        // A usable NIC is either used or left out with a reason, never both.
        let used = node.pairing.used();
        let left: Vec<usize> = node.pairing.left_out.iter().map(|(nic, _)| *nic).collect();
        assert_eq!(used.len() + left.len(), node.facts.nics.len());
        assert!(left.iter().all(|nic| !used.contains(nic)));
    }
    let _ = (cluster.differences(), cluster.remarks());
}

/// The fixtures of the topology tests.
pub(crate) fn topology_seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../topology/fixtures");
    let entries = std::fs::read_dir(folder).expect("the fixtures");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a fixture")).collect()
}

/// The text of a cluster, of processors, of a device.
pub(crate) fn synthetic(bytes: &[u8]) -> bool {
    let Some(text) = text(bytes) else { return false };
    let set = text.parse::<CpuSet>().inspect(|set| assert_eq!(set.to_string().parse::<CpuSet>().as_ref(), Ok(set)));
    let mask = CpuSet::from_mask(text);
    let address = text.parse::<PciAddress>();
    let cluster = text.parse::<Synthetic>().inspect(|cluster| {
        assert_eq!(cluster.to_string().parse::<Synthetic>().as_ref(), Ok(cluster));
        let _ = cluster.machine(&[1, 3]);
    });
    set.is_ok() || mask.is_ok() || address.is_ok() || cluster.is_ok()
}

pub(crate) fn synthetic_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[
        "gb200-nvl72:4/64",
        "hgx-h100:2",
        "dgx-a100",
        "4x[8gpu,8nic@50GB,nvlink450GB]",
        "0-3,8,10-11",
        "ffff,00000001",
        "0000:17:00.1",
    ])
}

/// A parallel spec.
pub(crate) fn spec(bytes: &[u8]) -> bool {
    let Some(spec) = text(bytes).and_then(|text| ParallelSpec::parse(text).ok()) else { return false };
    assert_eq!(ParallelSpec::parse(&spec.to_string()).as_ref(), Ok(&spec));
    super::files::meshes(&spec);
    true
}

pub(crate) fn spec_seeds() -> Vec<Vec<u8>> {
    bytes_of(&["tp=2,pp=4,dp=2", "tp=2,dp=8,etp=1,ep=8,edp=2,pp=4", "megatron:tp=1,dp=8,ep=8", "pp=8+8+7, tp=2"])
}
