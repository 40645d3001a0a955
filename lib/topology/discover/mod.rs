//! Facts of this machine and this process.
//!
//! In: `/sys`, `/proc`, NVML, hwloc, the environment. Out: [`HostFacts`], [`RankFacts`]. Guarantee: every source is
//! optional; a missing one is a fact, and is replaced by one that never claims a shared host wrongly.

mod hwloc;
mod interfaces;
mod limits;
mod nvml;
mod pci;
mod processors;
mod tree;
mod verbs;

pub use tree::Tree;

use super::facts::{Gpu, HostFacts, RankFacts, Source};
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
        seat: None,
    })
}

/// Facts of this host: from the file that `CROSSMESH_TOPOLOGY` names, else from the machine.
pub fn this_host() -> Result<HostFacts, DiscoverError> {
    match env::text(env::TOPOLOGY) {
        Some(path) => from_file(path.into()),
        None => Ok(host(&Tree::at("/"))),
    }
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
    facts.sources.push(Source::asked("file", path.display().to_string()));
    Ok(facts)
}

/// Facts of the host whose `sys` and `proc` stand in `tree`; NVML, hwloc and this process's own settings are asked only
/// where that is the machine itself.
pub fn host(tree: &Tree) -> HostFacts {
    let pci = pci::devices(tree);
    let (nics, verbs) = verbs::nics(tree, &pci);
    let mut facts = HostFacts {
        host: if tree.is_live() { host_name() } else { named_host(tree) },
        boot_id: tree.text("proc/sys/kernel/random/boot_id").unwrap_or_default(),
        architecture: tree.text("proc/sys/kernel/arch").unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        cpu_model: processors::model(tree),
        numa_nodes: processors::numa_nodes(tree),
        cores: processors::cores(tree),
        gpus: Vec::new(),
        nics,
        interfaces: interfaces::interfaces(tree),
        limits: limits::limits(tree),
        sources: Vec::new(),
        pci,
    };
    let counts = (facts.numa_nodes.len(), facts.cores.len(), facts.pci.len());
    let note = format!("{} NUMA nodes, {} cores, {} PCI devices of interest", counts.0, counts.1, counts.2);
    facts.sources.push(Source::asked("sysfs", note));
    facts.sources.push(verbs);
    add_gpus(tree, &mut facts);
    if tree.is_live() {
        hwloc::complete(&mut facts);
    }
    facts
}

/// GPUs as NVML has them; without it, what PCI shows of them.
fn add_gpus(tree: &Tree, facts: &mut HostFacts) {
    let present = facts.pci.iter().filter(|device| pci::is_gpu(device));
    if tree.is_live() {
        let (gpus, source) = nvml::gpus(&facts.pci);
        let shown = |address| gpus.iter().any(|gpu| gpu.pci == address);
        if source.available {
            facts.limits.hidden_gpus =
                present.map(|device| device.address).filter(|&address| !shown(address)).collect();
            facts.gpus = gpus;
            facts.sources.push(source);
            return;
        }
        facts.sources.push(source);
    }
    let present = facts.pci.iter().filter(|device| pci::is_gpu(device) && !device.virtual_function);
    let bare = |(index, device): (usize, &super::facts::PciDevice)| Gpu {
        index: index as u32,
        numa: device.numa,
        ..Gpu::at(device.address)
    };
    facts.gpus = present.enumerate().map(bare).collect();
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
