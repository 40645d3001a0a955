//! The tree of `crossmesh topo`. In: a cluster. Out: text. Guarantee: nodes that are alike are shown once, with their
//! number; everything that is left out is named with the reason.

use super::gigabytes;
use crate::counted::counted;
use crossmesh::base::bytes;
use crossmesh::topology::Cluster;
use crossmesh::topology::cluster::{Domain, DomainKey, Node, Paths, nvlink_rate_of, visible};
use crossmesh::topology::facts::{Gpu, Nic};
use std::fmt::Write;

/// Names of hosts that stand in one line.
const NAMES: usize = 4;

/// The summary, the domains, the nodes, what differs.
pub(super) fn render(cluster: &Cluster) -> String {
    let mut text = head(cluster);
    for (hosts, body) in alike(cluster, body) {
        let _ = write!(text, "\n{}\n{body}", names(&hosts));
    }
    text.push_str(&tail(cluster));
    text
}

/// Nodes, GPUs and NICs in one line, then every domain.
pub(super) fn head(cluster: &Cluster) -> String {
    let (domains, nodes) = (cluster.domains.len(), cluster.nodes.len());
    let gpus: usize = cluster.nodes.iter().map(|node| node.facts.gpus.len()).sum();
    let nics: usize = cluster.nodes.iter().map(|node| node.rails.len()).sum();
    let mut text = format!(
        "{}, {}, {}, {} in use\n",
        counted(domains, "NVLink domain"),
        counted(nodes, "node"),
        counted(gpus, "GPU"),
        counted(nics, "NIC")
    );
    for (number, domain) in cluster.domains.iter().enumerate() {
        let hosts = hosts(domain);
        let _ = writeln!(
            text,
            "  domain {number}: {} on {}, by {}",
            counted(domain.gpus.len(), "GPU"),
            counted(hosts, "node"),
            key(&domain.key)
        );
    }
    text
}

fn hosts(domain: &Domain) -> usize {
    let mut hosts: Vec<usize> = domain.gpus.iter().map(|(host, _)| *host).collect();
    hosts.dedup();
    hosts.len()
}

/// Why GPUs are in one domain.
pub(super) fn key(key: &DomainKey) -> String {
    match key {
        DomainKey::Fabric(cluster, clique) => format!("fabric {cluster} clique {clique}"),
        DomainKey::Island(_, island) => format!("NVLink inside the host, island {island}"),
        DomainKey::Host(_) => "the host, which has no NVLink".to_string(),
        DomainKey::Alone(..) => "nothing: it reaches no other".to_string(),
    }
}

/// Remarks and differences, where there are any.
pub(super) fn tail(cluster: &Cluster) -> String {
    let mut text = String::new();
    for (title, lines) in [("remarks", lines(cluster.remarks())), ("nodes differ", lines(cluster.differences()))] {
        if !lines.is_empty() {
            let _ = write!(text, "\n{title}:\n");
            lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        }
    }
    text
}

/// Each in a line.
pub(super) fn lines<T: ToString>(values: Vec<T>) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// Nodes whose `body` is the same, in order of first appearance.
pub(super) fn alike(cluster: &Cluster, body: impl Fn(&Node) -> String) -> Vec<(Vec<&str>, String)> {
    let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for node in &cluster.nodes {
        let text = body(node);
        let place = *places.entry(text.clone()).or_insert_with(|| {
            groups.push((Vec::new(), text));
            groups.len() - 1
        });
        groups[place].0.push(&node.facts.host);
    }
    groups
}

/// `node0`, or `node0, node1, node2, node3 and 14 more: 18 nodes, alike`.
pub(super) fn names(hosts: &[&str]) -> String {
    let shown = hosts[..hosts.len().min(NAMES)].join(", ");
    match hosts.len() {
        0..=1 => shown,
        count if count <= NAMES => format!("{shown}: {count} nodes, alike"),
        count => format!("{shown} and {} more: {count} nodes, alike", count - NAMES),
    }
}

fn body(node: &Node) -> String {
    let facts = &node.facts;
    let mut text = String::new();
    let model = [facts.architecture.as_str(), facts.cpu_model.as_str()].join(" ");
    let _ = writeln!(text, "  {}, {} cores", model.trim(), facts.cores.len());
    for numa in &facts.numa_nodes {
        let cpus = if numa.cpus.is_empty() { "no CPUs".to_string() } else { format!("CPUs {}", numa.cpus) };
        let memory =
            if numa.memory_bytes > 0 { format!(", {}", bytes::human(numa.memory_bytes)) } else { String::new() };
        let _ = writeln!(text, "  NUMA node {}: {cpus}{memory}", numa.index);
        devices(&mut text, node, Some(numa.index));
    }
    if facts.gpus.iter().any(|gpu| facts.node_near(gpu.numa).is_none()) {
        text.push_str("  no NUMA node stated:\n");
        devices(&mut text, node, None);
    }
    for (nic, why) in &node.pairing.left_out {
        let _ = writeln!(text, "  left out: {} ({why})", nic_name(&facts.nics[*nic]));
    }
    for interface in facts.interfaces.iter().filter(|interface| interface.up && !interface.loopback) {
        let addresses: Vec<String> = interface.addresses.iter().map(|address| address.to_string()).collect();
        let rate = interface.bytes_per_second.map(|rate| format!(", {} GB/s", gigabytes(rate))).unwrap_or_default();
        let _ = writeln!(text, "  interface {}{rate}: {}", interface.name, addresses.join(", "));
    }
    limits(&mut text, node);
    for source in &facts.sources {
        let _ = writeln!(text, "  {}: {}", source.name, source.note);
    }
    text
}

/// GPUs near NUMA node `numa`, each with its NICs.
fn devices(text: &mut String, node: &Node, numa: Option<u32>) {
    let facts = &node.facts;
    let paths = Paths::new(facts);
    let near = |gpu: &Gpu| facts.node_near(gpu.numa).map(|node| node.index);
    for (position, gpu) in facts.gpus.iter().enumerate().filter(|(_, gpu)| near(gpu) == numa) {
        let _ = writeln!(text, "    {}, domain {}", gpu_name(gpu), node.domains[position]);
        for &nic in &node.pairing.nics_of_gpu[position] {
            let path = paths.gpu_to_nic(gpu, &facts.nics[nic]);
            let rate = path.bytes_per_second.map(|rate| format!(" {} GB/s", gigabytes(rate))).unwrap_or_default();
            let rail = node.rails.get(&nic).map(|rail| format!(", rail {rail}")).unwrap_or_default();
            let shared = match node.pairing.sharers(nic) {
                0..=1 => String::new(),
                sharers => format!(", shared by {sharers} GPUs"),
            };
            let _ = writeln!(text, "      {} by {}{rate}{rail}{shared}", nic_name(&facts.nics[nic]), path.kind);
        }
    }
}

fn gpu_name(gpu: &Gpu) -> String {
    let mut text = format!("GPU {} {}", gpu.index, gpu.pci);
    if !gpu.name.is_empty() {
        let _ = write!(text, " {}", gpu.name);
    }
    if gpu.memory_bytes > 0 {
        let _ = write!(text, ", {}", bytes::human(gpu.memory_bytes));
    }
    let links: u32 = gpu.nvlinks.iter().map(|links| links.links).sum();
    if links > 0 {
        let _ = write!(text, ", {links} NVLinks {} GB/s", gigabytes(nvlink_rate_of(gpu)));
    }
    if let Some(c2c) = gpu.c2c {
        let _ = write!(text, ", C2C {} GB/s", gigabytes(c2c.bytes_per_second.saturating_mul(c2c.links.into())));
    }
    if gpu.mig { text + ", MIG" } else { text }
}

fn nic_name(nic: &Nic) -> String {
    let place = nic.pci.map(|address| format!(" {address}")).unwrap_or_default();
    format!("NIC {} port {}{place}", nic.device, nic.port)
}

fn limits(text: &mut String, node: &Node) {
    let (facts, limits) = (&node.facts, &node.facts.limits);
    if let Some(list) = &limits.cuda_visible_devices {
        let (shown, all) = (visible(facts).len(), facts.gpus.len());
        let _ = writeln!(text, "  CUDA_VISIBLE_DEVICES={list} shows {shown} of {all} GPUs");
    }
    if !limits.hidden_gpus.is_empty() {
        let hidden: Vec<String> = limits.hidden_gpus.iter().map(|gpu| gpu.to_string()).collect();
        let _ = writeln!(text, "  hidden from this process: GPUs {}", hidden.join(", "));
    }
    let cpus: u64 = facts.cores.iter().map(|core| core.cpus.len()).sum();
    if !limits.cpus.is_empty() && limits.cpus.len() < cpus {
        let _ = writeln!(text, "  this process may run on CPUs {}", limits.cpus);
    }
    if let Some(quota) = limits.cpu_quota_thousandths {
        let _ = writeln!(text, "  this process has the time of {} CPUs", quota as f64 / 1000.0);
    }
}
