//! Files that are cut, spliced and overwritten never make reading or what follows from it panic.

use super::fixtures;
use crossmesh::topology::cluster::{ClusterOptions, Paths, hidden_peers};
use crossmesh::topology::{Cluster, CpuSet, HostFacts, PciAddress, Synthetic, binding, file};
use proptest::prelude::*;
use std::fs;
use std::sync::LazyLock;

/// All fixtures, of every form.
static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut paths: Vec<_> = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut texts: Vec<String> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    // Long texts are mutated too thinly.
    texts.iter_mut().for_each(|text| text.truncate(floor(text, 6000)));
    texts.extend(paths.iter().map(|path| fs::read_to_string(path).unwrap()));
    texts
});

#[derive(Debug, Clone)]
enum Change {
    Cut(usize),
    Insert(usize, String),
    /// Replaces a number by another.
    Number(usize, String),
    Copy(usize, usize, usize),
}

/// The last place up to `at` where a letter begins.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

fn change() -> impl Strategy<Value = Change> {
    let number = prop_oneof![
        Just("0".to_string()),
        Just("-1".to_string()),
        Just("4294967295".to_string()),
        Just("18446744073709551615".to_string()),
        Just("1e308".to_string()),
        "[0-9a-f]{1,6}",
    ];
    prop_oneof![
        any::<usize>().prop_map(Change::Cut),
        (any::<usize>(), "[<>\"/{},:0-9a-z]{1,8}").prop_map(|(at, text)| Change::Insert(at, text)),
        (any::<usize>(), number).prop_map(|(at, text)| Change::Number(at, text)),
        (any::<usize>(), any::<usize>(), 1..400usize).prop_map(|(from, to, length)| Change::Copy(from, to, length)),
    ]
}

fn apply(text: &str, change: &Change) -> String {
    let place = |at: usize| floor(text, at % (text.len() + 1));
    match change {
        Change::Cut(at) => text[..place(*at)].to_string(),
        Change::Insert(at, inserted) => {
            let at = place(*at);
            format!("{}{inserted}{}", &text[..at], &text[at..])
        }
        Change::Number(at, number) => {
            let Some(start) = text[place(*at)..].find(|letter: char| letter.is_ascii_digit()) else {
                return text.into();
            };
            let start = place(*at) + start;
            let end = text[start..].find(|letter: char| !letter.is_ascii_digit()).map_or(text.len(), |end| start + end);
            format!("{}{number}{}", &text[..start], &text[end..])
        }
        Change::Copy(from, to, length) => {
            let (from, to) = (place(*from), place(*to));
            let end = floor(text, from + length);
            format!("{}{}{}", &text[..to], &text[from..end.max(from)], &text[to..])
        }
    }
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_never_panic(which in any::<prop::sample::Index>(), changes in prop::collection::vec(change(), 1..6)) {
        let mut text = which.get(&TEXTS).clone();
        changes.iter().for_each(|change| text = apply(&text, change));
        if let Ok(hosts) = file::parse(&text) {
            follow(hosts);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
        let _ = file::parse(&text);
        let _ = (text.parse::<CpuSet>(), CpuSet::from_mask(&text), text.parse::<PciAddress>());
        let _ = text.parse::<Synthetic>().map(|synthetic| synthetic.machine(&[1]));
    }

    #[test]
    fn sets_and_addresses_survive_their_text(numbers in prop::collection::vec(0..5000u32, 0..40), place in any::<(u32, u8, u8, u8)>()) {
        let set: CpuSet = numbers.iter().copied().collect();
        prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
        let mut sorted = numbers;
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), sorted);
        let address = PciAddress { domain: place.0, bus: place.1, device: place.2, function: place.3 };
        prop_assert_eq!(address.to_string().parse::<PciAddress>().unwrap(), address);
    }
}

#[test]
fn every_fixture_is_followed_whole() {
    let read = TEXTS.iter().filter_map(|text| file::parse(text).ok()).map(follow).count();
    assert!(read >= TEXTS.len() / 2, "{read} of {} texts are read", TEXTS.len());
}
