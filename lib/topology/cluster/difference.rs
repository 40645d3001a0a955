//! How hosts differ from the others. In: facts of hosts. Out: [`Difference`]s. Guarantee: nothing where all are alike;
//! what most hosts have is taken for what is meant.

use super::remark::nvlinks_up;
use crate::topology::facts::{HostFacts, LinkLayer, Nic, PortState};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Kinds of parts of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Processors of its NUMA nodes.
    Processors,
    /// GPUs.
    Gpus,
    /// NVLinks that are up.
    NvLinks,
    /// Ports of RDMA devices.
    Nics,
    /// The GPUs' driver.
    Driver,
}

/// A part that fewer hosts have so than another way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Its kind.
    pub part: Part,
    /// The part, such as `NIC mlx5_1 port 1`.
    pub name: String,
    /// How `hosts` have it; `None` where they have none.
    pub value: Option<String>,
    /// The few.
    pub hosts: Vec<String>,
    /// How most hosts have it; `None` where they have none.
    pub usual: Option<String>,
    /// Hosts that have it as usual.
    pub most: usize,
    /// All hosts.
    pub of: usize,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".into());
        let (value, usual) = (text(&self.value), text(&self.usual));
        let (name, hosts) = (&self.name, list(&self.hosts));
        write!(formatter, "{name}: {value} on {hosts}; {usual} on {} of {}", self.most, self.of)
    }
}

/// What differs, once for each part and value that fewer hosts have.
pub fn differences(hosts: &[&HostFacts]) -> Vec<Difference> {
    let parts: Vec<BTreeMap<(Part, String), String>> = hosts.iter().map(|facts| parts(facts)).collect();
    let keys: BTreeSet<&(Part, String)> = parts.iter().flat_map(BTreeMap::keys).collect();
    keys.into_iter().flat_map(|key| difference(hosts, &parts, key)).collect()
}

fn difference(
    hosts: &[&HostFacts],
    parts: &[BTreeMap<(Part, String), String>],
    key: &(Part, String),
) -> Vec<Difference> {
    let mut values: BTreeMap<Option<&String>, Vec<String>> = BTreeMap::new();
    for (facts, own) in hosts.iter().zip(parts) {
        values.entry(own.get(key)).or_default().push(facts.host.clone());
    }
    let usual = values.iter().max_by_key(|(_, hosts)| hosts.len()).map(|(&value, hosts)| (value, hosts.len()));
    let Some((usual, most)) = usual else { return Vec::new() };
    let few = values.into_iter().filter(|(value, _)| *value != usual);
    few.map(|(value, few)| Difference {
        part: key.0,
        name: key.1.clone(),
        value: value.cloned(),
        hosts: few,
        usual: usual.cloned(),
        most,
        of: hosts.len(),
    })
    .collect()
}

/// Some names, not all of a thousand.
fn list(hosts: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown = hosts[..hosts.len().min(SHOWN)].join(", ");
    if hosts.len() > SHOWN { format!("{shown} and {} more", hosts.len() - SHOWN) } else { shown }
}

/// What hosts that are built and set up alike have in common. Virtual functions beside physical ones come and go with
/// the containers that use them.
fn parts(facts: &HostFacts) -> BTreeMap<(Part, String), String> {
    let mut found = BTreeMap::new();
    let mut add = |part, name: String, value: String| found.insert((part, name), value);
    let cpus: Vec<String> = facts.numa_nodes.iter().map(|node| node.cpus.len().to_string()).collect();
    add(Part::Processors, "processors by NUMA node".into(), cpus.join("+"));
    for gpu in &facts.gpus {
        let place = format!("GPU {} at {}", gpu.index, gpu.pci);
        add(Part::NvLinks, format!("NVLinks of {place}"), nvlinks_up(gpu).to_string());
        let mig = if gpu.mig { ", cut into instances" } else { "" };
        let name = if gpu.name.is_empty() { "GPU" } else { &gpu.name };
        add(Part::Gpus, place, format!("{name}{mig}"));
    }
    let all_virtual = facts.nics.iter().all(|nic| nic.virtual_function);
    for nic in facts.nics.iter().filter(|nic| all_virtual || !nic.virtual_function) {
        add(Part::Nics, format!("NIC {} port {}", nic.device, nic.port), describe(nic));
    }
    if let Some(driver) = facts.sources.iter().find(|source| source.name == "nvml") {
        // Behind the version stands how many GPUs it shows.
        let version = driver.note.split(',').next().unwrap_or_default();
        add(Part::Driver, "nvml".into(), version.to_string());
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
