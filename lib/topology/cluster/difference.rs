//! How hosts differ from the others. In: facts of hosts. Out: lines for people. Guarantee: nothing where all are alike;
//! what most hosts have is taken for what is meant.

use crate::topology::facts::{HostFacts, LinkLayer, Nic, PortState};
use std::collections::BTreeMap;

/// What differs, one line for each property and value that fewer hosts have.
pub fn differences(hosts: &[&HostFacts]) -> Vec<String> {
    let properties: Vec<BTreeMap<String, String>> = hosts.iter().map(|facts| properties(facts)).collect();
    let mut names: Vec<&String> = properties.iter().flat_map(BTreeMap::keys).collect();
    names.sort_unstable();
    names.dedup();
    let mut lines = Vec::new();
    for name in names {
        let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (facts, own) in hosts.iter().zip(&properties) {
            values.entry(own.get(name).map_or("none", String::as_str)).or_default().push(&facts.host);
        }
        let Some((&usual, most)) = values.iter().max_by_key(|(_, hosts)| hosts.len()) else { continue };
        for (value, few) in values.iter().filter(|(value, _)| **value != usual) {
            lines.push(format!("{name}: {value} on {}; {usual} on {} of {}", list(few), most.len(), hosts.len()));
        }
    }
    lines
}

/// Some names, not all of a thousand.
fn list(hosts: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = hosts[..hosts.len().min(SHOWN)].join(", ");
    if hosts.len() > SHOWN { format!("{shown} and {} more", hosts.len() - SHOWN) } else { shown }
}

/// What hosts that are built and set up alike have in common.
fn properties(facts: &HostFacts) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let cpus: Vec<String> = facts.numa_nodes.iter().map(|node| node.cpus.len().to_string()).collect();
    found.insert("processors by NUMA node".into(), cpus.join("+"));
    found.insert("GPUs".into(), facts.gpus.len().to_string());
    for gpu in &facts.gpus {
        let links: u32 = gpu.nvlinks.iter().map(|links| links.links).sum();
        let mig = if gpu.mig { ", cut into instances" } else { "" };
        let name = if gpu.name.is_empty() { "GPU" } else { &gpu.name };
        found.insert(format!("GPU {} at {}", gpu.index, gpu.pci), format!("{name} with {links} NVLinks{mig}"));
    }
    for nic in &facts.nics {
        found.insert(format!("NIC {} port {}", nic.device, nic.port), describe(nic));
    }
    if let Some(driver) = facts.sources.iter().find(|source| source.name == "nvml") {
        found.insert("nvml".into(), driver.note.clone());
    }
    found
}

fn describe(nic: &Nic) -> String {
    let layer = match nic.link_layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Efa => "EFA",
        LinkLayer::Unknown => "unknown link layer",
    };
    let state = match nic.state {
        PortState::Active => "active",
        PortState::Waiting => "waiting for a subnet manager",
        PortState::Down => "down",
        PortState::Unknown => "in unknown state",
    };
    format!("{layer}, {} GB/s, {state}", nic.bytes_per_second as f64 / 1e9)
}
