//! NUMA nodes and cores. In: `/sys/devices/system`. Out: plain facts. Guarantee: a kernel without NUMA has one node, 0,
//! with all processors.

use super::tree::Tree;
use crate::topology::CpuSet;
use crate::topology::facts::{Core, NumaNode};
use std::collections::BTreeSet;

const NODES: &str = "sys/devices/system/node";
const CPUS: &str = "sys/devices/system/cpu";

/// NUMA nodes, also those without processors.
pub(super) fn numa_nodes(tree: &Tree) -> Vec<NumaNode> {
    let nodes = tree.numbers(NODES, "node");
    let found: Vec<NumaNode> = nodes
        .into_iter()
        .map(|index| NumaNode {
            index,
            cpus: tree.value(&format!("{NODES}/node{index}/cpulist")).unwrap_or_default(),
            memory_bytes: total(&tree.text(&format!("{NODES}/node{index}/meminfo")).unwrap_or_default()),
        })
        .collect();
    if !found.is_empty() {
        return found;
    }
    let cpus: CpuSet = tree.value(&format!("{CPUS}/online")).unwrap_or_default();
    let memory_bytes = total(&tree.text("proc/meminfo").unwrap_or_default());
    vec![NumaNode { index: 0, cpus, memory_bytes }]
}

/// `MemTotal` of a `meminfo`, which counts in KiB; the line begins with `Node 0` in that of a node.
fn total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.split_once("MemTotal:"));
    let kibibytes = line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or_default().saturating_mul(1024)
}

/// Cores that are online.
pub(super) fn cores(tree: &Tree) -> Vec<Core> {
    let mut seen = BTreeSet::new();
    let mut cores = Vec::new();
    for cpu in tree.numbers(CPUS, "cpu") {
        if seen.contains(&cpu) {
            continue;
        }
        let topology = format!("{CPUS}/cpu{cpu}/topology");
        // Older kernels have the second name only; a processor without either is offline.
        let mut names = ["core_cpus_list", "thread_siblings_list"].iter();
        let threads = names.find_map(|name| tree.value::<CpuSet>(&format!("{topology}/{name}")));
        let Some(cpus) = threads.filter(|cpus| cpus.contains(cpu)) else { continue };
        let package = tree.numa(&format!("{topology}/physical_package_id")).unwrap_or_default();
        seen.extend(cpus.iter());
        cores.push(Core { package, cpus });
    }
    cores
}

/// Model of the processors, as the kernel names it.
pub(super) fn model(tree: &Tree) -> String {
    let text = tree.text("proc/cpuinfo").unwrap_or_default();
    let named = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.split_once(':'));
    // Arm kernels have no name, only numbers.
    let found = named("model name").or_else(|| named("CPU part"));
    found.map(|(_, name)| name.trim().to_string()).unwrap_or_default()
}
