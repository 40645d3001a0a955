//! Processors and memory near a rank's GPU and NICs. In: facts of a host, how many ranks it has. Out: a [`Binding`] for
//! each. Guarantee: pure; within what the process may use; ranks have processors of their own where each can have two
//! cores or more, else they share all of their NUMA node evenly; GPU memory is never bound to.

use super::cluster::{ClusterOptions, seat};
use super::facts::{HostFacts, NumaNode};
use super::{CpuSet, PciAddress};
use serde::{Deserialize, Serialize};

/// Cores that a rank needs for itself: one for its thread, one for its progress.
const CORES_OF_A_RANK: usize = 2;

/// Where a rank runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// Hardware threads that it may run on.
    pub cpus: CpuSet,
    /// NUMA node that its memory comes from first; `None` where there is only one.
    pub memory_node: Option<u32>,
    /// Whether other ranks run on the same hardware threads.
    pub shared: bool,
    /// Its GPU.
    pub gpu: Option<PciAddress>,
    /// Its NICs.
    pub nics: Vec<String>,
}

/// Bindings of `ranks` ranks of one host.
pub fn near(facts: &HostFacts, ranks: usize, options: &ClusterOptions) -> Vec<Binding> {
    // Nodes without processors are memory of GPUs.
    let nodes: Vec<(&NumaNode, CpuSet)> = facts
        .numa_nodes
        .iter()
        .map(|node| (node, node.cpus.intersection(&facts.limits.cpus)))
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect();
    let seats: Vec<_> = (0..ranks).map(|rank| seat(facts, "", rank, options)).collect();
    let node_of = |rank: usize| {
        let gpu = facts.gpus.iter().find(|gpu| Some(gpu.pci) == seats[rank].gpu);
        let nic = facts.nics.iter().find(|nic| seats[rank].nics.iter().any(|own| own.device == nic.device));
        let near = gpu.map_or(nic.and_then(|nic| nic.numa), |gpu| gpu.numa);
        let position = nodes.iter().position(|(node, _)| Some(node.index) == near);
        position.or_else(|| (!nodes.is_empty()).then(|| rank * nodes.len() / ranks))
    };
    let homes: Vec<Option<usize>> = (0..ranks).map(node_of).collect();
    let binding = |rank: usize| {
        let mut binding = Binding {
            cpus: facts.limits.cpus.clone(),
            shared: ranks > 1,
            gpu: seats[rank].gpu,
            nics: seats[rank].nics.iter().map(|nic| nic.device.clone()).collect(),
            ..Binding::default()
        };
        if let Some(home) = homes[rank] {
            let mates: Vec<usize> = (0..ranks).filter(|&mate| homes[mate] == Some(home)).collect();
            let place = mates.iter().position(|&mate| mate == rank).unwrap_or_default();
            binding.shared = mates.len() > 1;
            binding.cpus = nodes[home].1.clone();
            if let Some(own) = share(facts, &nodes[home].1, mates.len(), place) {
                (binding.cpus, binding.shared) = (own, false);
            }
            binding.memory_node = (nodes.len() > 1).then_some(nodes[home].0.index);
        }
        binding
    };
    (0..ranks).map(binding).collect()
}

/// Whole cores among `cpus` for the rank at `place` of `ranks`; `None` where there are too few for all.
fn share(facts: &HostFacts, cpus: &CpuSet, ranks: usize, place: usize) -> Option<CpuSet> {
    let cores: Vec<CpuSet> =
        facts.cores.iter().map(|core| core.cpus.intersection(cpus)).filter(|core| !core.is_empty()).collect();
    let at = |place: usize| place * cores.len() / ranks;
    let own = cores.get(at(place)..at(place + 1))?;
    (cores.len() >= CORES_OF_A_RANK * ranks).then(|| own.iter().fold(CpuSet::default(), |all, core| all.union(core)))
}

/// One core for each rank, in turn.
pub fn cores(facts: &HostFacts, ranks: usize, options: &ClusterOptions) -> Vec<Binding> {
    let allowed = facts.cores.iter().map(|core| core.cpus.intersection(&facts.limits.cpus));
    let cores: Vec<CpuSet> = allowed.filter(|core| !core.is_empty()).collect();
    let mut bindings = near(facts, ranks, options);
    for (rank, binding) in bindings.iter_mut().enumerate() {
        if let Some(core) = cores.get(rank % cores.len().max(1)) {
            binding.cpus = core.clone();
            binding.shared = ranks > cores.len();
            let node = facts.numa_nodes.iter().find(|node| !node.cpus.intersection(core).is_empty());
            binding.memory_node = binding.memory_node.and(node.map(|node| node.index));
        }
    }
    bindings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::facts::Core;
    use crate::topology::{Synthetic, facts::Gpu};

    fn bound(facts: &HostFacts, ranks: usize) -> Vec<(String, Option<u32>, bool)> {
        let bindings = near(facts, ranks, &ClusterOptions::default());
        bindings.into_iter().map(|binding| (binding.cpus.to_string(), binding.memory_node, binding.shared)).collect()
    }

    fn tray() -> HostFacts {
        let mut tray = "gb200-nvl72:1".parse::<Synthetic>().unwrap().hosts().swap_remove(0);
        // GPU memory is a NUMA node without processors.
        tray.numa_nodes.push(NumaNode { index: 2, cpus: CpuSet::default(), memory_bytes: 1 << 37 });
        tray
    }

    #[test]
    fn ranks_have_cores_near_their_gpu() {
        let expected = [("0-35", 0), ("36-71", 0), ("72-107", 1), ("108-143", 1)];
        let expected = expected.map(|(cpus, node)| (cpus.to_string(), Some(node), false));
        assert_eq!(bound(&tray(), 4), expected);
        assert_eq!(bound(&tray(), 1), [("0-71".to_string(), Some(0), false)]);
        let binding = near(&tray(), 3, &ClusterOptions::default()).pop().unwrap();
        assert_eq!((binding.gpu, binding.nics), (Some(tray().gpus[2].pci), vec!["mlx5_2".to_string()]));
    }

    #[test]
    fn nothing_outside_the_limits_is_bound_to() {
        let mut tray = tray();
        tray.limits.cpus = "4-7,80-81".parse().unwrap();
        let node = |cpus: &str, node, shared| (cpus.to_string(), Some(node), shared);
        let expected = [node("4-5", 0, false), node("6-7", 0, false), node("80-81", 1, true), node("80-81", 1, true)];
        assert_eq!(bound(&tray, 4), expected);
        tray.limits.cpus = "0-7".parse().unwrap();
        // The socket of GPUs 2 and 3 is not allowed: they run where they may.
        assert_eq!(bound(&tray, 4)[3], ("6-7".to_string(), None, false));
    }

    #[test]
    fn ranks_that_outnumber_cores_share_all() {
        let cpus: CpuSet = "0-1".parse().unwrap();
        let node = NumaNode { index: 0, cpus: cpus.clone(), memory_bytes: 1 };
        let core = |cpu| Core { package: 0, cpus: CpuSet::range(cpu, cpu) };
        let mut host = HostFacts { numa_nodes: vec![node], cores: vec![core(0), core(1)], ..HostFacts::default() };
        host.limits.cpus = cpus;
        assert_eq!(bound(&host, 1), [("0-1".to_string(), None, false)]);
        for ranks in [2, 7] {
            assert_eq!(bound(&host, ranks), vec![("0-1".to_string(), None, true); ranks]);
        }
        let each = cores(&host, 3, &ClusterOptions::default());
        let each: Vec<_> = each.iter().map(|binding| (binding.cpus.to_string(), binding.shared)).collect();
        assert_eq!(each, ["0", "1", "0"].map(|cpu| (cpu.to_string(), true)));
        assert_eq!(bound(&HostFacts::default(), 1), [(String::new(), None, false)]);
    }

    #[test]
    fn hardware_threads_of_a_core_stay_together() {
        let cpus: CpuSet = "0-7".parse().unwrap();
        let node = NumaNode { index: 0, cpus: cpus.clone(), memory_bytes: 1 };
        let core = |cpu| Core { package: 0, cpus: [cpu, cpu + 4].into_iter().collect() };
        let gpu = Gpu { numa: Some(0), ..Gpu::at("0000:01:00.0".parse().unwrap()) };
        let mut host = HostFacts {
            numa_nodes: vec![node],
            cores: (0..4).map(core).collect(),
            gpus: vec![gpu],
            ..HostFacts::default()
        };
        host.limits.cpus = cpus;
        assert_eq!(bound(&host, 2), [("0-1,4-5".to_string(), None, false), ("2-3,6-7".to_string(), None, false)]);
    }
}
