//! GPUs, their links and their fabric. In: a state. Out: outcomes. Guarantee: a host without GPUs passes nothing off as
//! checked.

use crate::doctor::finding::{Finding, Outcome, Severity};
use crate::doctor::system::State;
use crossmesh::topology::cluster::{HiddenBy, HiddenPeers, Remark, hidden_peers, host_remarks};
use crossmesh::topology::facts::{FabricState, Gpu};

fn no_gpu(state: &State) -> Option<Outcome> {
    state.facts.gpus.is_empty().then(|| Outcome::NotRun("no GPU".into()))
}

fn at(state: &State, gpu: &Gpu) -> String {
    format!("{} GPU {} ({})", state.host(), gpu.index, gpu.pci)
}

/// The driver and the libraries that are loaded for GPUs.
pub(super) fn driver(state: &State) -> Outcome {
    let present = state.facts.pci.iter().any(|device| device.vendor == 0x10de && device.class >> 16 == 0x03);
    if !present && state.facts.gpus.is_empty() {
        let finding = Finding::new("driver", Severity::Note, "no GPU: tensors are in host memory only", state.host())
            .seen("no NVIDIA GPU on PCI", "a GPU, where tensors are on one")
            .cure("with a GPU: install the NVIDIA driver; in docker --gpus all, in apptainer --nv, in Slurm --gpus-per-node=N");
        return Outcome::Found(vec![finding]);
    }
    let missing = |library: &str| state.system.libraries.get(library).is_some_and(Option::is_none);
    let mut findings = Vec::new();
    let mut add = |severity, what: &str, seen: &str, limit: &str, cure: &str| {
        findings.push(Finding::new("driver", severity, what, state.host()).seen(seen, limit).cure(cure));
    };
    if missing("libcuda.so.1") {
        let cure = "install the NVIDIA driver, or start the container with --gpus all (docker) or --nv (apptainer)";
        add(Severity::Failure, "there is a GPU and no driver library", "no libcuda.so.1", "libcuda.so.1", cure);
    }
    if missing("libnvidia-ml.so.1") {
        let cure = "in docker set NVIDIA_DRIVER_CAPABILITIES=compute,utility";
        let what = "there is a GPU and NVML is not, so NVLinks and fabric are unknown";
        add(Severity::Warning, what, "no libnvidia-ml.so.1", "libnvidia-ml.so.1", cure);
    }
    if missing("libnvrtc.so") {
        let cure = "apt install cuda-nvrtc, or pip install nvidia-cuda-nvrtc and put its folder into LD_LIBRARY_PATH";
        let what = "the run-time compiler for kernels is not there";
        add(Severity::Failure, what, "no libnvrtc.so", "one of the driver's major version or below", cure);
    }
    findings.into()
}

/// GPUs of the host that this process cannot see while its peers use them. Outside of a job there may be no peers.
pub(super) fn visibility(state: &State) -> Outcome {
    let all = state.facts.gpus.len() + state.facts.limits.hidden_gpus.len();
    if all == 0 {
        return Outcome::NotRun("no GPU".into());
    }
    let ranks = if state.rank.is_some() { state.ranks_here as usize } else { all };
    let Some(hidden) = hidden_peers(&state.facts, ranks) else { return Outcome::Passed };
    let (severity, seen) = match &hidden.by {
        HiddenBy::Variable(_) => (Severity::Warning, "CUDA_VISIBLE_DEVICES"),
        HiddenBy::Driver => (Severity::Failure, "a device cgroup or a container"),
    };
    let severity = if state.rank.is_some() { severity } else { Severity::Note };
    let what = format!("GPUs of the host are hidden: {}", hidden.by.effect());
    let finding = Finding::new("gpu-visibility", severity, what, state.whom())
        .seen(format!("{seen} shows {} of {all} GPUs", hidden.shown), "all GPUs that ranks of the host use")
        .cure(HiddenPeers::REMEDY);
    Outcome::Found(vec![finding])
}

/// NVLinks that are down, and GPUs with fewer than their like.
pub(super) fn nvlink(state: &State) -> Outcome {
    if let Some(outcome) = no_gpu(state) {
        return outcome;
    }
    if state.facts.gpus.iter().all(|gpu| gpu.nvlinks.is_empty() && gpu.inactive_nvlinks == 0) {
        return Outcome::NotRun("no NVLink".into());
    }
    let finding = |remark: Remark| match remark {
        Remark::Cliques { .. } => None,
        Remark::Instances(gpu) => {
            let what = "a GPU that is cut into instances (MIG) has no NVLink";
            let finding = Finding::new("nvlink", Severity::Note, what, gpu.to_string());
            Some(finding.seen("MIG", "whole GPUs").cure(format!("nvidia-smi -i {} -mig 0", gpu.index)))
        }
        Remark::LostLinks { gpu, up, should } => {
            let what = match up {
                0 => "a GPU has lost all its NVLinks; its traffic goes over PCI, many times slower",
                _ => "a GPU has fewer NVLinks up than it should",
            };
            let cure = format!(
                "nvidia-smi nvlink -s -i {0}; nvidia-smi --gpu-reset -i {0}; restart the fabric manager; drain the node",
                gpu.index
            );
            let finding = Finding::new("nvlink", Severity::Failure, what, gpu.to_string());
            Some(finding.seen(format!("{up} up"), format!("{should} up")).cure(cure))
        }
    };
    host_remarks(&state.facts).into_iter().filter_map(finding).collect::<Vec<_>>().into()
}

/// Registration with the NVLink fabric.
pub(super) fn fabric(state: &State) -> Outcome {
    if let Some(outcome) = no_gpu(state) {
        return outcome;
    }
    let asked = || {
        let gpus = state.facts.gpus.iter().filter_map(|gpu| Some((gpu, gpu.fabric.as_ref()?)));
        gpus.filter(|(_, fabric)| fabric.state != FabricState::NotSupported)
    };
    if asked().next().is_none() {
        return Outcome::NotRun("no NVLink fabric of several hosts".into());
    }
    let mut findings = Vec::new();
    for (gpu, fabric) in asked() {
        let (seen, severity) = match (fabric.state, fabric.status) {
            (FabricState::Completed, 0) => continue,
            (FabricState::Completed, status) => (format!("completed with status {status}"), Severity::Failure),
            (FabricState::InProgress, _) => ("registration in progress".to_string(), Severity::Failure),
            _ => ("registration not started".to_string(), Severity::Failure),
        };
        let what = format!("GPU {} is not registered with its NVLink fabric", gpu.index);
        findings.push(
            Finding::new("fabric", severity, what, at(state, gpu))
                .seen(seen, "completed, status 0")
                .cure("nvidia-smi -q | grep -A4 Fabric; wait a minute, then systemctl restart nvidia-fabricmanager; else drain the node"),
        );
    }
    findings.into()
}

/// The channel that GPUs of several hosts share memory through.
pub(super) fn imex(state: &State) -> Outcome {
    if !state.facts.gpus.iter().filter_map(|gpu| gpu.fabric.as_ref()).any(|fabric| fabric.is_set()) {
        return Outcome::NotRun("no NVLink fabric of several hosts".into());
    }
    let channels: Vec<_> = state.system.device_files.iter().filter(|file| file.path.contains("imex")).collect();
    if channels.iter().any(|file| file.error.is_none()) {
        return Outcome::Passed;
    }
    let (seen, cure) = match channels.first() {
        None => (
            "no /dev/nvidia-caps-imex-channels/channel*".to_string(),
            "nvidia-modprobe -s -i 0:1; in Slurm SwitchType=switch/nvidia_imex; in containers NVIDIA_IMEX_CHANNELS=0",
        ),
        Some(file) => (
            format!("{}: {}", file.path, file.error.as_deref().unwrap_or_default()),
            "give this user the channel: Slurm's switch/nvidia_imex does; in containers NVIDIA_IMEX_CHANNELS=0",
        ),
    };
    let what = "no IMEX channel can be opened, so GPUs of other trays cannot be reached over NVLink";
    let finding =
        Finding::new("imex", Severity::Failure, what, state.host()).seen(seen, "one that can be opened").cure(cure);
    Outcome::Found(vec![finding])
}

/// Variables of frameworks that switch paths off.
pub(super) fn framework(state: &State) -> Outcome {
    let switched_off = [
        ("NCCL_CUMEM_ENABLE", "0", "the framework's buffers cannot be shared between hosts"),
        ("NCCL_MNNVL_ENABLE", "0", "the framework does not use NVLink between hosts"),
        ("NCCL_P2P_DISABLE", "1", "the framework does not use NVLink"),
    ];
    let findings: Vec<Finding> = switched_off
        .iter()
        .filter(|(name, value, _)| state.system.environment.get(*name).is_some_and(|set| set == value))
        .map(|(name, value, effect)| {
            Finding::new("framework", Severity::Warning, format!("{name}={value}: {effect}"), state.whom())
                .seen(format!("{name}={value}"), "not set")
                .cure(format!(
                    "unset {name}; 'env | grep {name}' in the job script and the site's profile shows who sets it"
                ))
        })
        .collect();
    findings.into()
}
