//! Limits of the process and settings of the kernel. In: a state. Out: outcomes. Guarantee: a limit that could not be
//! read is not judged.

use crate::doctor::finding::{Finding, Outcome, Severity};
use crate::doctor::system::{Limit, State};
use crossmesh::base::bytes::human;
use crossmesh::base::env::{self, EnvError};

/// Staging of a rank by default and what registration needs beside it.
const LOCKED: u64 = (64 << 20) + (256 << 20);
/// Files of a rank that do not depend on its peers, and files for each peer.
const FILES: (u64, u64) = (64, 8);
/// What large sites set.
const MANY_FILES: u64 = 131_072;
/// Free space below which MPI libraries and frameworks fail to start.
const SHARED_MEMORY: u64 = 64 << 20;
/// Connections of a rank to each of its peers, and those of its MPI.
const CONNECTIONS: u64 = 4;
/// Ranks that connect to rank 0 within one round trip before its backlog matters.
const MANY_RANKS: u32 = 512;
const BACKLOG: u64 = 1024;

/// Memory that may be locked, which registration for RDMA needs.
pub(super) fn memlock(state: &State) -> Outcome {
    if state.facts.nics.is_empty() {
        return Outcome::NotRun("no RDMA device: nothing is registered".into());
    }
    let Some(bytes) = state.facts.limits.locked_memory_bytes else { return Outcome::Passed };
    if bytes >= LOCKED {
        return Outcome::Passed;
    }
    let finding = Finding::new("memlock", Severity::Failure, "too little memory may be locked for RDMA", state.host())
        .seen(human(bytes), format!("at least {}, better unlimited", human(LOCKED)))
        .cure(
            "add '* soft memlock unlimited' and '* hard memlock unlimited' to /etc/security/limits.d/rdma.conf, \
             LimitMEMLOCK=infinity to slurmd's unit and PropagateResourceLimitsExcept=MEMLOCK to slurm.conf; in docker \
             --ulimit memlock=-1; then: srun bash -c 'ulimit -l'",
        );
    Outcome::Found(vec![finding])
}

/// Open files: every peer takes some.
pub(super) fn open_files(state: &State) -> Outcome {
    let Limit::At(files) = state.system.open_files else { return Outcome::Passed };
    let needed = FILES.0 + FILES.1 * u64::from(state.ranks);
    let (severity, limit) = match files {
        _ if files < needed => (Severity::Failure, format!("at least {needed} for {} ranks", state.ranks)),
        _ if files < MANY_FILES && state.ranks >= MANY_RANKS => (Severity::Warning, format!("better {MANY_FILES}")),
        _ => return Outcome::Passed,
    };
    let finding = Finding::new("open-files", severity, "a process may open too few files", state.host())
        .seen(files.to_string(), limit)
        .cure(format!(
            "ulimit -n {MANY_FILES}, or for good '* - nofile {MANY_FILES}' in /etc/security/limits.d/nofile.conf and a \
             restart of slurmd"
        ));
    Outcome::Found(vec![finding])
}

/// An unlimited stack makes some C libraries give every thread 2 MiB only.
pub(super) fn stack(state: &State) -> Outcome {
    if state.system.stack != Limit::Unlimited {
        return Outcome::Passed;
    }
    let finding =
        Finding::new("stack", Severity::Warning, "the stack is unlimited, so threads get 2 MiB each", state.host())
            .seen("unlimited", "8 MiB")
            .cure("ulimit -s 8192");
    Outcome::Found(vec![finding])
}

/// `/dev/shm`, which MPI and frameworks beside crossmesh use.
pub(super) fn shared_memory(state: &State) -> Outcome {
    let Some(space) = state.system.shared_memory else {
        return Outcome::NotRun("/dev/shm is not there".into());
    };
    if space.free_bytes >= SHARED_MEMORY {
        return Outcome::Passed;
    }
    let what = "/dev/shm is nearly full, so MPI and frameworks may die with a bus error";
    let finding = Finding::new("shared-memory", Severity::Warning, what, state.host())
        .seen(
            format!("{} free of {}", human(space.free_bytes), human(space.total_bytes)),
            format!("at least {} free", human(SHARED_MEMORY)),
        )
        .cure("rm stale files that 'ls -lt /dev/shm' shows as yours; in docker --shm-size=1g; RemoveIPC=no in logind.conf");
    Outcome::Found(vec![finding])
}

/// Ports for outgoing connections.
pub(super) fn ports(state: &State) -> Outcome {
    let Some((first, last)) = state.system.port_range else {
        return Outcome::NotRun("net.ipv4.ip_local_port_range cannot be read".into());
    };
    let (count, needed) = (u64::from(last.saturating_sub(first)) + 1, CONNECTIONS * u64::from(state.ranks));
    if count >= needed {
        return Outcome::Passed;
    }
    let finding = Finding::new("ports", Severity::Failure, "too few local ports for connections", state.host())
        .seen(format!("{count} ({first} to {last})"), format!("at least {needed} for {} ranks", state.ranks))
        .cure("sysctl -w net.ipv4.ip_local_port_range=\"20000 65000\"");
    Outcome::Found(vec![finding])
}

/// Connections that may wait until rank 0 accepts them.
pub(super) fn listen_backlog(state: &State) -> Outcome {
    let Some(backlog) = state.system.listen_backlog else {
        return Outcome::NotRun("net.core.somaxconn cannot be read".into());
    };
    if backlog >= BACKLOG || state.ranks < MANY_RANKS {
        return Outcome::Passed;
    }
    let what = "too few connections may wait for rank 0 when all ranks start at once";
    let finding = Finding::new("listen-backlog", Severity::Warning, what, state.host())
        .seen(backlog.to_string(), format!("at least {BACKLOG} for {} ranks", state.ranks))
        .cure("sysctl -w net.core.somaxconn=4096 net.ipv4.tcp_max_syn_backlog=8192");
    Outcome::Found(vec![finding])
}

/// Whether ranks may read each other's private memory.
pub(super) fn process_memory(state: &State) -> Outcome {
    let Some(scope) = state.system.ptrace_scope else { return Outcome::Passed };
    if scope == 0 || state.system.may_trace {
        return Outcome::Passed;
    }
    let what = "ranks of one host may not read each other's private memory, so private buffers are copied twice";
    let finding = Finding::new("process-memory", Severity::Warning, what, state.host())
        .seen(format!("kernel.yama.ptrace_scope = {scope}"), "0, or CAP_SYS_PTRACE")
        .cure("sysctl -w kernel.yama.ptrace_scope=0, in docker --cap-add=SYS_PTRACE; or use shared buffers (Buffer::shared)");
    Outcome::Found(vec![finding])
}

/// Variables that nobody reads, misspelt most likely, and those with a value that no reader takes.
pub(super) fn environment(state: &State) -> Outcome {
    let unknown = state.system.unknown_variables.iter().map(|name| {
        let what = format!("{name} is set and crossmesh knows no such variable");
        Finding::new("environment", Severity::Warning, what, state.host())
            .seen(name, "a variable that crossmesh env lists")
            .cure(format!("unset {name}; crossmesh env shows all variables"))
    });
    let wrong = env::wrongly_set(|variable| state.system.environment.get(variable.name).cloned());
    let wrong = wrong.into_iter().map(|EnvError { name, value, allowed }| {
        let what = format!("{name} is set to what crossmesh cannot use, so commands that read it fail");
        Finding::new("environment", Severity::Failure, what, state.host())
            .seen(value, allowed.replace('|', ", "))
            .cure(format!("unset {name}, or export {name}=VALUE with one of those; crossmesh env shows all variables"))
    });
    unknown.chain(wrong).collect::<Vec<_>>().into()
}
