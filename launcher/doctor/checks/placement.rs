//! Where ranks run. In: a state. Out: outcomes. Guarantee: pure.

use crate::doctor::finding::{Finding, Outcome, Severity};
use crate::doctor::system::State;
use crossmesh::topology::CpuSet;
use crossmesh::topology::facts::NumaNode;

/// The CPUs that a rank may use, and the memory it takes.
pub(super) fn cpu_binding(state: &State) -> Outcome {
    let limits = &state.facts.limits;
    if limits.cpus.is_empty() {
        return Outcome::NotRun("the processors of this process are not known".into());
    }
    let mut findings = Vec::new();
    let quota = limits.cpu_quota_thousandths.unwrap_or(u64::MAX);
    if quota < 1000 {
        let what = "the cgroup grants less than one processor's time, so ranks stall";
        findings.push(
            Finding::new("cpu-binding", Severity::Warning, what, state.host())
                .seen(format!("{:.2} processors", quota as f64 / 1000.0), "at least one for each rank")
                .cure("srun --cpus-per-task=4; in docker --cpus=N; in Kubernetes a higher cpu limit"),
        );
    }
    // Memory of GPUs shows as NUMA nodes without CPUs; a rank must not take its host memory there.
    let device_memory = |node: &&NumaNode| node.cpus.is_empty() && limits.memory_nodes.contains(node.index);
    let nodes: CpuSet = state.facts.numa_nodes.iter().filter(device_memory).map(|node| node.index).collect();
    let gpus_have_memory_nodes = state.facts.gpus.iter().any(|gpu| gpu.memory_numa.is_some());
    if gpus_have_memory_nodes && !nodes.is_empty() {
        let hosts = state.facts.numa_nodes.iter().filter(|node| !node.cpus.is_empty());
        let hosts: CpuSet = hosts.map(|node| node.index).collect();
        let what = "host memory may be taken from NUMA nodes that are the GPUs' memory";
        findings.push(
            Finding::new("cpu-binding", Severity::Warning, what, state.host())
                .seen(format!("memory nodes {}", limits.memory_nodes), format!("nodes {hosts}"))
                .cure(format!("numactl --membind={hosts} PROGRAM, or srun --mem-bind=local")),
        );
    }
    findings.into()
}

/// Whether a rank's CPUs are near its NIC and GPU.
pub(super) fn nic_affinity(state: &State) -> Outcome {
    let limits = &state.facts.limits;
    let near = |node: u32| state.facts.numa_nodes.iter().find(|numa| numa.index == node);
    let own = state.facts.gpus.iter().filter(|gpu| state.gpu.as_ref().is_some_and(|own| gpu.pci.to_string() == *own));
    let wanted: CpuSet = own.filter_map(|gpu| gpu.numa).collect();
    if wanted.is_empty() {
        return Outcome::NotRun("needs a job whose ranks have GPUs".into());
    }
    let cpus = wanted.iter().filter_map(near).fold(CpuSet::default(), |all, node| all.union(&node.cpus));
    if cpus.is_empty() || !limits.cpus.intersection(&cpus).is_empty() {
        return Outcome::Passed;
    }
    let what = "the rank runs on another socket than its GPU";
    let finding = Finding::new("nic-affinity", Severity::Warning, what, state.whom())
        .seen(format!("processors {}", limits.cpus), format!("some of {cpus} (NUMA node {wanted})"))
        .cure("crossmesh run binds by itself (--bind auto); srun --cpu-bind=cores --distribution=block:block");
    Outcome::Found(vec![finding])
}

/// Settings of the starter that let a job outlive its failure.
pub(super) fn scheduler(state: &State) -> Outcome {
    let environment = &state.system.environment;
    if !environment.contains_key("SLURM_JOB_ID") {
        return Outcome::NotRun("not in a Slurm job".into());
    }
    let mut findings = Vec::new();
    if let Some(gpus) = environment.get("SLURM_GPUS_PER_TASK") {
        let what = "--gpus-per-task binds each rank to its GPU and hides those of its peers";
        findings.push(
            Finding::new("scheduler", Severity::Failure, what, state.host())
                .seen(format!("--gpus-per-task={gpus}"), "--gpus-per-node and --gpu-bind=none")
                .cure("srun --gpus-per-node=N --ntasks-per-node=N --gpu-bind=none"),
        );
    }
    if environment.get("SLURM_KILL_BAD_EXIT").is_none_or(|value| value == "0") {
        let what = "Slurm lets a job go on when a rank has failed";
        findings.push(
            Finding::new("scheduler", Severity::Warning, what, state.host())
                .seen("no --kill-on-bad-exit", "--kill-on-bad-exit=1")
                .cure("srun --kill-on-bad-exit=1, or start through crossmesh run, which ends the job itself"),
        );
    }
    findings.into()
}
