//! Facts of this machine and this process.
//!
//! In: `/sys`, `/proc`, NVML, hwloc, the environment. Out: [`HostFacts`], [`RankFacts`], [`MemoryPool`]s. Guarantee: every source is
//! optional; a missing one is a fact, and is replaced by one that never claims a shared host wrongly.

mod hwloc;
mod interfaces;
mod limits;
mod memory;
mod nvml;
mod pci;
mod processors;
mod tree;
mod verbs;

pub use memory::{MemoryPool, memory_pools};
pub use tree::Tree;

use super::facts::{Gpu, HostFacts, Limits, PciDevice, RankFacts, Source};
use super::{FileError, file};
use crate::base::env;
use std::path::PathBuf;
use std::{fs, io};
use thiserror::Error;

/// Facts that were to be read from a file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiscoverError {
    /// The file cannot be read.
    #[error("{}={} cannot be read; give a file of crossmesh topo --json, an hwloc XML, or an NCCL topology XML", env::TOPOLOGY.name, .path.display())]
    Read {
        /// As given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no topology.
    #[error("{}={} cannot be used", env::TOPOLOGY.name, .path.display())]
    File {
        /// As given.
        path: PathBuf,
        /// Why.
        source: FileError,
    },
    /// The file has several hosts, none of which is this one.
    #[error("{}={} has hosts {}, and this is {host}; give a file with this host, or with one host", env::TOPOLOGY.name, .path.display(), .present.join(", "))]
    Host {
        /// As given.
        path: PathBuf,
        /// This host.
        host: String,
        /// Hosts of the file.
        present: Vec<String>,
    },
}

/// Facts of this process; `starts_side` as the caller knows it.
pub fn this_rank(starts_side: bool) -> Result<RankFacts, env::EnvError> {
    Ok(RankFacts {
        host: host_name(),
        host_token: host_token(),
        domain: env::value(env::DOMAIN)?,
        domain_count: env::value(env::DOMAINS)?,
        starts_side,
    })
}

/// Facts of this host: from the file that `CROSSMESH_TOPOLOGY` names, else from the machine. What this process may use is
/// always its own.
pub fn this_host() -> Result<HostFacts, DiscoverError> {
    stated().unwrap_or_else(|| Ok(host(&Tree::at("/"))))
}

/// As [`this_host`], without asking any driver: GPUs have no NVLinks then.
pub fn this_host_by_sysfs() -> Result<HostFacts, DiscoverError> {
    stated().unwrap_or_else(|| Ok(by_sysfs(&Tree::at("/"))))
}

fn stated() -> Option<Result<HostFacts, DiscoverError>> {
    env::text(env::TOPOLOGY).map(|path| from_file(path.into()))
}

fn from_file(path: PathBuf) -> Result<HostFacts, DiscoverError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(DiscoverError::Read { path, source }),
    };
    let mut hosts = match file::parse(&text) {
        Ok(hosts) => hosts,
        Err(source) => return Err(DiscoverError::File { path, source }),
    };
    let host = host_name();
    let position = if hosts.len() == 1 { Some(0) } else { hosts.iter().position(|known| known.host == host) };
    let Some(position) = position else {
        return Err(DiscoverError::Host { path, host, present: hosts.into_iter().map(|known| known.host).collect() });
    };
    let mut facts = hosts.swap_remove(position);
    facts.limits = Limits { hidden_gpus: facts.limits.hidden_gpus, ..limits::limits(&Tree::at("/")) };
    facts.sources.push(Source::asked("file", path.display().to_string()));
    Ok(facts)
}

/// Facts of the host whose `sys` and `proc` stand in `tree`; NVML and hwloc are asked only where that is the machine
/// itself.
pub fn host(tree: &Tree) -> HostFacts {
    let mut facts = by_sysfs(tree);
    if tree.is_live() {
        ask_driver(&mut facts);
        hwloc::complete(&mut facts);
    }
    facts
}

fn by_sysfs(tree: &Tree) -> HostFacts {
    let pci = pci::devices(tree);
    let (nics, verbs) = verbs::nics(tree, &pci);
    let (numa_nodes, cores) = (processors::numa_nodes(tree), processors::cores(tree));
    let note = format!("{} NUMA nodes, {} cores, {} PCI devices of interest", numa_nodes.len(), cores.len(), pci.len());
    HostFacts {
        host: if tree.is_live() { host_name() } else { named_host(tree) },
        boot_id: tree.text("proc/sys/kernel/random/boot_id").unwrap_or_default(),
        architecture: tree.text("proc/sys/kernel/arch").unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        cpu_model: processors::model(tree),
        gpus: gpus(tree, &pci),
        interfaces: interfaces::interfaces(tree),
        limits: limits::limits(tree),
        sources: vec![Source::asked("sysfs", note), verbs],
        numa_nodes,
        cores,
        pci,
        nics,
    }
}

/// GPUs as PCI and the driver's files show them, in the order in which the driver counts them.
fn gpus(tree: &Tree, pci: &[PciDevice]) -> Vec<Gpu> {
    let mut present: Vec<&PciDevice> =
        pci.iter().filter(|device| pci::is_gpu(device) && !device.virtual_function).collect();
    present.sort_by_key(|device| device.address);
    let read = |(index, device): (usize, &&PciDevice)| {
        let text = tree.text(&format!("proc/driver/nvidia/gpus/{}/information", device.address)).unwrap_or_default();
        let stated = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key));
            line.map(|value| value.trim().to_string()).unwrap_or_default()
        };
        let (name, uuid) = (stated("Model:"), stated("GPU UUID:"));
        Gpu { index: index as u32, numa: device.numa, name, uuid, ..Gpu::at(device.address) }
    };
    present.iter().enumerate().map(read).collect()
}

/// GPUs as NVML has them, where it can be asked; those that it does not show are hidden from this process.
fn ask_driver(facts: &mut HostFacts) {
    let (gpus, source) = nvml::gpus(&facts.pci);
    if source.available {
        let shown = |address| gpus.iter().any(|gpu: &Gpu| gpu.pci == address);
        facts.limits.hidden_gpus = facts.gpus.iter().map(|gpu| gpu.pci).filter(|&gpu| !shown(gpu)).collect();
        facts.gpus = gpus;
    }
    facts.sources.push(source);
}

fn named_host(tree: &Tree) -> String {
    tree.text("proc/sys/kernel/hostname").unwrap_or_else(|| "unknown".into())
}

/// The host's name, `unknown` when it has none.
pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "unknown".into())
}

/// Equal for processes that can share descriptors and read each other's memory, never merely by pid.
///
/// The boot id names the kernel; the pid namespace must be shared for `process_vm_readv`, the UTS and IPC
/// namespaces tell emulated hosts on one kernel apart.
fn host_token() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_string())
        .unwrap_or_else(|_| format!("no-boot-id-{}-{}", host_name(), std::process::id()));
    let namespace = |name: &str| {
        fs::read_link(format!("/proc/self/ns/{name}")).map(|link| link.display().to_string()).unwrap_or_default()
    };
    format!("{boot} {} {} {}", namespace("pid"), namespace("uts"), namespace("ipc"))
}
