//! Which NICs a GPU uses. In: facts of one host, the choice of NICs. Out: NICs of every GPU, and why others are left
//! out. Guarantee: pure; where there is a usable NIC, every GPU has one.
//!
//! NICs beside a GPU (PCI switches alone between them) go to it. Where no NIC is beside any GPU, as on GB200 with
//! ConnectX-7, the i-th GPU of a NUMA node has its i-th NIC, then the same over the whole host. Several NICs of a GPU are
//! striped; fewer NICs than GPUs are shared evenly.

use super::path::{PathKind, Paths};
use super::select::{LeftOut, NicChoice, usable};
use crate::topology::facts::{Gpu, HostFacts};
use std::collections::{BTreeMap, BTreeSet};

/// NICs of the GPUs of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairing {
    /// For every GPU its NICs, as positions in [`HostFacts::nics`], nearest first.
    pub nics_of_gpu: Vec<Vec<usize>>,
    /// NICs that no GPU uses, with the reason.
    pub left_out: Vec<(usize, LeftOut)>,
}

impl Pairing {
    /// GPUs that use NIC `nic`.
    pub fn sharers(&self, nic: usize) -> usize {
        self.nics_of_gpu.iter().filter(|nics| nics.contains(&nic)).count()
    }

    /// NICs that any GPU uses, by position.
    pub fn used(&self) -> Vec<usize> {
        let mut used: Vec<usize> = self.nics_of_gpu.iter().flatten().copied().collect();
        used.sort_unstable();
        used.dedup();
        used
    }
}

/// Pairs the GPUs of a host with its NICs.
pub fn pair(facts: &HostFacts, choice: &NicChoice) -> Pairing {
    let (nics, left_out) = usable(facts, choice);
    let present = present(facts);
    let mut gpus: Vec<usize> = (0..present.len()).collect();
    gpus.sort_by_key(|&gpu| present[gpu].pci);
    let paths = Paths::new(facts);
    let kinds = gpus.iter().map(|&gpu| {
        let to = |&nic: &usize| (nic, paths.gpu_to_nic(&present[gpu], &facts.nics[nic]).kind);
        (gpu, nics.iter().map(to).collect())
    });
    let kinds = kinds.collect();
    let mut table = Table { facts, present: &present, kinds, gpus, free: nics.clone(), nics_of_gpu: BTreeMap::new() };
    table.beside(PathKind::Switch);
    table.beside(PathKind::Switches);
    if table.nics_of_gpu.is_empty() {
        table.by_node();
        table.deal(|_| true, |_| true);
    } else {
        table.even_rest();
    }
    table.share();
    let mut pairing = Pairing { nics_of_gpu: vec![Vec::new(); facts.gpus.len()], left_out };
    for (&gpu, nics) in table.nics_of_gpu.iter().filter(|(gpu, _)| **gpu < facts.gpus.len()) {
        pairing.nics_of_gpu[gpu] = nics.clone();
        let kinds = &table.kinds[&gpu];
        pairing.nics_of_gpu[gpu].sort_by_key(|nic| (kinds[nic], *nic));
    }
    let unused = if present.is_empty() { LeftOut::NoGpu } else { LeftOut::Far };
    pairing.left_out.extend(table.free.iter().map(|&nic| (nic, unused)));
    let used = pairing.used();
    let others = nics.iter().filter(|nic| !used.contains(nic) && !table.free.contains(nic));
    pairing.left_out.extend(others.map(|&nic| (nic, LeftOut::HiddenGpu)));
    pairing.left_out.sort_unstable();
    pairing
}

/// The GPUs of the facts, then those that are hidden from this process: their NICs are theirs all the same.
fn present(facts: &HostFacts) -> Vec<Gpu> {
    let hidden = facts.limits.hidden_gpus.iter().map(|&address| Gpu {
        numa: facts.pci_device(address).and_then(|device| device.numa),
        c2c: facts.gpus.first().and_then(|gpu| gpu.c2c),
        ..Gpu::at(address)
    });
    facts.gpus.iter().cloned().chain(hidden).collect()
}

/// A pairing that is being made.
struct Table<'a> {
    facts: &'a HostFacts,
    present: &'a [Gpu],
    /// In the order of their places on PCI.
    gpus: Vec<usize>,
    /// NICs that no GPU has, in the order of their places on PCI.
    free: Vec<usize>,
    kinds: BTreeMap<usize, BTreeMap<usize, PathKind>>,
    nics_of_gpu: BTreeMap<usize, Vec<usize>>,
}

impl Table<'_> {
    /// Deals free NICs to GPUs without one that are as near as `nearest`: each group of GPUs that are near the same
    /// NICs by itself.
    fn beside(&mut self, nearest: PathKind) {
        let mut groups: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for &gpu in self.gpus.iter().filter(|gpu| !self.nics_of_gpu.contains_key(gpu)) {
            let near: Vec<usize> = self.free.iter().copied().filter(|nic| self.kinds[&gpu][nic] <= nearest).collect();
            if !near.is_empty() {
                groups.entry(near).or_default().push(gpu);
            }
        }
        for (near, gpus) in groups {
            self.deal(|gpu| gpus.contains(&gpu), |nic| near.contains(&nic));
        }
    }

    fn by_node(&mut self) {
        let (facts, present) = (self.facts, self.present);
        let nodes: BTreeSet<u32> = present.iter().filter_map(|gpu| gpu.numa).collect();
        for node in nodes {
            self.deal(|gpu| present[gpu].numa == Some(node), |nic| facts.nics[nic].numa == Some(node));
        }
    }

    /// Deals the free NICs among `nics` to those of `gpus` that have none, in order: contiguous shares when there are as
    /// many NICs or more, else contiguous GPUs to each NIC.
    fn deal(&mut self, gpus: impl Fn(usize) -> bool, nics: impl Fn(usize) -> bool) {
        let takers: Vec<usize> =
            self.gpus.iter().copied().filter(|gpu| gpus(*gpu) && !self.nics_of_gpu.contains_key(gpu)).collect();
        let given: Vec<usize> = self.free.iter().copied().filter(|nic| nics(*nic)).collect();
        if takers.is_empty() || given.is_empty() {
            return;
        }
        for (position, &gpu) in takers.iter().enumerate() {
            let at = |position: usize| position * given.len() / takers.len();
            let share = at(position)..at(position + 1).max(at(position) + 1);
            self.nics_of_gpu.entry(gpu).or_default().extend(&given[share]);
        }
        self.free.retain(|nic| !given.contains(nic));
    }

    /// NICs that are beside no GPU, on a machine where others are, serve the GPUs of their NUMA node when each of these
    /// gets as many; a few more of them are for storage or the front end.
    fn even_rest(&mut self) {
        let node_of = |nic: usize| self.facts.nics[nic].numa;
        let mut rest: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for &nic in &self.free {
            if let Some(node) = node_of(nic) {
                rest.entry(node).or_default().push(nic);
            }
        }
        for (node, nics) in rest {
            let gpus: Vec<usize> =
                self.gpus.iter().copied().filter(|&gpu| self.present[gpu].numa == Some(node)).collect();
            if gpus.is_empty() || nics.len() % gpus.len() != 0 {
                continue;
            }
            for (gpu, share) in gpus.iter().zip(nics.chunks(nics.len() / gpus.len())) {
                self.nics_of_gpu.entry(*gpu).or_default().extend(share);
            }
            self.free.retain(|nic| !nics.contains(nic));
        }
    }

    /// GPUs that are left without a NIC share the nearest, those that fewest use first.
    fn share(&mut self) {
        let mut users: BTreeMap<usize, usize> = BTreeMap::new();
        for &nic in self.nics_of_gpu.values().flatten() {
            *users.entry(nic).or_default() += 1;
        }
        for &gpu in &self.gpus {
            if self.nics_of_gpu.contains_key(&gpu) {
                continue;
            }
            let nearest = users.keys().copied().min_by_key(|nic| (self.kinds[&gpu][nic], users[nic], *nic));
            if let Some(nic) = nearest {
                *users.entry(nic).or_default() += 1;
                self.nics_of_gpu.insert(gpu, vec![nic]);
            }
        }
    }
}
