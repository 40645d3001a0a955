//! Settings of a host and a process that decide whether a job runs. In: nothing. Out: plain, serialisable data.
//! Guarantee: what could not be asked is `None` or absent, and no check takes it for a value.

use crossmesh::topology::HostFacts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All that one rank, or a machine without a job, knows; the form of the files of `--fixture`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct State {
    /// The rank; `None` outside of a job.
    pub(crate) rank: Option<u32>,
    /// Number of ranks of the job, 1 outside.
    pub(crate) ranks: u32,
    /// Number of ranks on this host, 0 outside.
    pub(crate) ranks_here: u32,
    /// Equal exactly for ranks that share a kernel and its IPC namespaces.
    pub(crate) host_token: String,
    /// PCI address of the rank's GPU.
    pub(crate) gpu: Option<String>,
    pub(crate) facts: HostFacts,
    pub(crate) system: System,
}

/// Settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct System {
    /// Version of crossmesh.
    pub(crate) crossmesh: String,
    /// Release of the kernel.
    pub(crate) kernel: String,
    pub(crate) open_files: Limit,
    pub(crate) stack: Limit,
    /// `/dev/shm`.
    pub(crate) shared_memory: Option<Space>,
    /// Local ports of outgoing connections, first and last.
    pub(crate) port_range: Option<(u32, u32)>,
    /// `net.core.somaxconn`.
    pub(crate) listen_backlog: Option<u64>,
    /// `kernel.yama.ptrace_scope`; `None` where the module is not loaded.
    pub(crate) ptrace_scope: Option<u64>,
    /// Whether this process has `CAP_SYS_PTRACE`, which that setting does not bind.
    pub(crate) may_trace: bool,
    /// Device files: uverbs, IMEX channels.
    pub(crate) device_files: Vec<DeviceFile>,
    /// Libraries that are loaded when they are there, and where each was found.
    pub(crate) libraries: BTreeMap<String, Option<String>>,
    /// Kernel modules of interest that are loaded.
    pub(crate) modules: Vec<String>,
    /// First line of `/proc/driver/nvidia/version`.
    pub(crate) nvidia_driver: Option<String>,
    /// Error counters of ports that are not zero, by `device/port/name`.
    pub(crate) error_counters: BTreeMap<String, u64>,
    /// Variables of crossmesh, and of others that change how GPUs and NICs are used; keys are left out.
    pub(crate) environment: BTreeMap<String, String>,
    /// Variables that look like crossmesh's and are not.
    pub(crate) unknown_variables: Vec<String>,
    /// Interfaces that TCP would use, in order.
    pub(crate) addresses: Vec<String>,
    /// The system's wall clock, in seconds since 1970.
    pub(crate) clock: f64,
}

/// A resource limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limit {
    /// Could not be asked.
    #[default]
    Unknown,
    Unlimited,
    /// So many bytes or files.
    At(u64),
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Space {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
}

/// A device file, and why it cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceFile {
    pub(crate) path: String,
    /// `None` when it can be opened for reading and writing.
    pub(crate) error: Option<String>,
}

impl State {
    /// Whom findings are about.
    pub(crate) fn host(&self) -> String {
        if self.facts.host.is_empty() { "this host".into() } else { self.facts.host.clone() }
    }

    /// Host and rank.
    pub(crate) fn whom(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank} on {}", self.host()),
            None => self.host(),
        }
    }
}
