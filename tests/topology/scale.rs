//! How long discovery and merging take. In: this machine, a thousand synthetic nodes. Out: pass or fail. Guarantee: the quickest
//! of some runs counts.

use super::cluster;
use crossmesh::topology::{Synthetic, discover};
use std::time::{Duration, Instant};

/// The quickest of some runs: others may have had to wait for a core.
fn quickest(mut run: impl FnMut()) -> Duration {
    let once = |_| {
        let begun = Instant::now();
        run();
        begun.elapsed()
    };
    (0..5).map(once).min().unwrap_or_default()
}

#[test]
fn a_host_without_gpus_is_discovered_in_50_ms() {
    let facts = discover::this_host().unwrap();
    let taken = quickest(|| drop(discover::this_host()));
    eprintln!("discovery with {} GPUs took {taken:?}", facts.gpus.len());
    assert!(!facts.gpus.is_empty() || taken < Duration::from_millis(50), "{taken:?}");
}

#[test]
fn a_thousand_nodes_are_merged_in_a_second() {
    let mut hosts = "1000x[8gpu,8nic@50GB,nvlink450GB]".parse::<Synthetic>().unwrap().hosts();
    // Uneven ones among them.
    for host in hosts.iter_mut().step_by(7) {
        host.nics.truncate(5);
    }
    let merge = || {
        let cluster = cluster(hosts.clone());
        assert_eq!((cluster.domains.len(), cluster.differences().len()), (1000, 3));
    };
    let taken = quickest(merge);
    eprintln!("a merge of 1000 nodes took {taken:?}");
    assert!(taken < Duration::from_secs(1), "{taken:?}");
}
