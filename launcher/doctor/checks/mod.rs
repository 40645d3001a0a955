//! The checks. In: states of one rank, or of all. Out: outcomes. Guarantee: pure, so that recorded states give the
//! findings that the machine gave.

mod gpu;
pub(super) mod job;
mod limits;
mod placement;
mod rdma;

use super::finding::Outcome;
use super::system::State;

/// A check of one rank or host.
pub(super) struct LocalCheck {
    pub(super) id: &'static str,
    pub(super) run: fn(&State) -> Outcome,
}

/// A check of all ranks together, in rank order.
pub(super) struct JobCheck {
    pub(super) id: &'static str,
    pub(super) run: fn(&[State]) -> Outcome,
}

macro_rules! checks {
    ($type:ident, $($id:literal => $run:path),* $(,)?) => {
        &[$($type { id: $id, run: $run }),*]
    };
}

/// All checks of one rank or host.
pub(super) const LOCAL: &[LocalCheck] = checks!(LocalCheck,
    "memlock" => limits::memlock,
    "open-files" => limits::open_files,
    "stack" => limits::stack,
    "shared-memory" => limits::shared_memory,
    "ports" => limits::ports,
    "listen-backlog" => limits::listen_backlog,
    "process-memory" => limits::process_memory,
    "environment" => limits::environment,
    "uverbs" => rdma::uverbs,
    "port-state" => rdma::port_state,
    "port-errors" => rdma::port_errors,
    "gid" => rdma::gid,
    "mtu" => rdma::mtu,
    "gpu-direct" => rdma::gpu_direct,
    "pcie" => rdma::pcie,
    "driver" => gpu::driver,
    "gpu-visibility" => gpu::visibility,
    "nvlink" => gpu::nvlink,
    "fabric" => gpu::fabric,
    "imex" => gpu::imex,
    "framework" => gpu::framework,
    "cpu-binding" => placement::cpu_binding,
    "nic-affinity" => placement::nic_affinity,
    "scheduler" => placement::scheduler,
);

/// All checks of a whole job.
pub(super) const JOB: &[JobCheck] = checks!(JobCheck,
    "versions" => job::versions,
    "same-environment" => job::same_environment,
    "interface" => job::interface,
    "host-identity" => job::host_identity,
    "nic-set" => job::nic_set,
    "host-parts" => job::host_parts,
    "clique" => job::clique,
    "clock" => job::clock,
);
