//! RDMA devices and their ports. In: a state. Out: outcomes. Guarantee: a host without such devices passes nothing off as
//! checked.

use crate::doctor::finding::{Finding, Outcome, Severity};
use crate::doctor::system::State;
use crossmesh::topology::facts::{LinkLayer, Nic, PortState};

/// InfiniBand and RoCE carry packets of 4096 bytes at most; an interface needs this much for them.
const RDMA_MTU: u32 = 4200;

fn no_device(state: &State) -> Option<Outcome> {
    state.facts.nics.is_empty().then(|| Outcome::NotRun("no RDMA device".into()))
}

fn port_name(nic: &Nic) -> String {
    format!("{} port {}", nic.device, nic.port)
}

fn at(state: &State, nic: &Nic) -> String {
    format!("{} {}", state.host(), port_name(nic))
}

/// Device files and the library of its users.
pub(super) fn uverbs(state: &State) -> Outcome {
    if state.facts.nics.is_empty() {
        let what = "no RDMA device: bytes between hosts go over TCP";
        let finding = Finding::new("uverbs", Severity::Note, what, state.host())
            .seen("nothing in /sys/class/infiniband", "a device, where speed between hosts matters")
            .cure("with such a card: modprobe mlx5_ib (or its driver), apt install rdma-core; in docker --device=/dev/infiniband");
        return Outcome::Found(vec![finding]);
    }
    let files: Vec<_> = state.system.device_files.iter().filter(|file| file.path.contains("uverbs")).collect();
    let mut findings = Vec::new();
    if files.is_empty() {
        let what = "RDMA devices are there and none of their device files is";
        findings.push(
            Finding::new("uverbs", Severity::Failure, what, state.host())
                .seen("no /dev/infiniband/uverbs*", "one for each device")
                .cure("modprobe ib_uverbs; in docker --device=/dev/infiniband; in Slurm add it to the allowed devices of cgroup.conf"),
        );
    }
    for file in files {
        let Some(error) = &file.error else { continue };
        let what = format!("{} cannot be opened", file.path);
        findings.push(
            Finding::new("uverbs", Severity::Failure, what, state.host())
                .seen(error.clone(), "opened for reading and writing")
                .cure("in docker --device=/dev/infiniband; in Slurm ConstrainDevices=no or the device in AllowedDevices; chmod 666 on the host"),
        );
    }
    if state.system.libraries.get("libibverbs.so.1").is_some_and(Option::is_none) {
        findings.push(
            Finding::new("uverbs", Severity::Failure, "the verbs library is not installed", state.host())
                .seen("no libibverbs.so.1", "libibverbs.so.1 and the provider of the device")
                .cure("apt install libibverbs1 ibverbs-providers, or dnf install libibverbs rdma-core"),
        );
    }
    findings.into()
}

/// Ports that should carry traffic.
pub(super) fn port_state(state: &State) -> Outcome {
    if let Some(outcome) = no_device(state) {
        return outcome;
    }
    let finding = |nic: &Nic| {
        let (seen, cure) = match nic.state {
            PortState::Waiting => ("initialising", "start a subnet manager: opensm, or ask the fabric's keeper"),
            PortState::Down => ("down", "check the cable: ibstat, mlxlink -d DEVICE"),
            PortState::Active | PortState::Unknown => return None,
        };
        let what = format!("{} carries no traffic", port_name(nic));
        Some(Finding::new("port-state", Severity::Warning, what, at(state, nic)).seen(seen, "active").cure(cure))
    };
    let mut findings: Vec<Finding> = state.facts.nics.iter().filter_map(finding).collect();
    findings.extend(slower_ports(state));
    findings.into()
}

/// Active ports of the kind that is most frequent here, slower than the fastest of them.
fn slower_ports(state: &State) -> Vec<Finding> {
    let active = || state.facts.nics.iter().filter(|nic| nic.state == PortState::Active && nic.bytes_per_second > 0);
    let layers = [LinkLayer::InfiniBand, LinkLayer::Ethernet, LinkLayer::Efa];
    let count = |layer: &LinkLayer| active().filter(|nic| nic.link_layer == *layer).count();
    let Some(layer) = layers.iter().max_by_key(|layer| count(layer)) else { return Vec::new() };
    let same = || active().filter(|nic| nic.link_layer == *layer);
    let fastest = same().map(|nic| nic.bytes_per_second).max().unwrap_or(0);
    // Several of the fastest: these are for data; one alone may be the odd one out.
    if same().filter(|nic| nic.bytes_per_second == fastest).count() < 2 {
        return Vec::new();
    }
    let gigabits = |rate: u64| format!("{} Gb/s", rate * 8 / 1_000_000_000);
    same()
        .filter(|nic| nic.bytes_per_second < fastest)
        .map(|nic| {
            let what = format!("{} runs slower than its neighbours", port_name(nic));
            Finding::new("port-state", Severity::Warning, what, at(state, nic))
                .seen(gigabits(nic.bytes_per_second), gigabits(fastest))
                .cure(format!("mlxlink -d {0}; a card that is meant to be slower is left out by itself", nic.device))
        })
        .collect()
}

/// Errors that ports have counted.
pub(super) fn port_errors(state: &State) -> Outcome {
    if let Some(outcome) = no_device(state) {
        return outcome;
    }
    let finding = |(name, count): (&String, &u64)| {
        let device = name.split('/').next().unwrap_or(name);
        let what = format!("port counter {name} is not zero");
        Finding::new("port-errors", Severity::Warning, what, state.host())
            .seen(count.to_string(), "0, and not rising")
            .cure(format!("rdma statistic show link {device}; mlxlink -d {device}; if it rises, report the port"))
    };
    state.system.error_counters.iter().map(finding).collect::<Vec<_>>().into()
}

/// A GID of version 2 that is routable, for RoCE.
pub(super) fn gid(state: &State) -> Outcome {
    let roce = || {
        let nics = state.facts.nics.iter();
        nics.filter(|nic| nic.link_layer == LinkLayer::Ethernet && nic.state == PortState::Active)
    };
    if roce().next().is_none() {
        return Outcome::NotRun("no active RoCE port".into());
    }
    let routable = |nic: &Nic| {
        let second = |kind: &Option<String>| kind.as_deref().is_none_or(|kind| kind.contains("v2"));
        nic.gids.iter().any(|gid| second(&gid.kind) && !gid.gid.starts_with("fe80"))
    };
    let finding = |nic: &Nic| {
        let interface = nic.interface.as_deref().unwrap_or("its interface");
        let what = format!("{} has no routable RoCE v2 address", port_name(nic));
        let seen = match nic.gids.is_empty() {
            true => "no GID".to_string(),
            false => nic.gids.iter().map(|gid| format!("{}: {}", gid.index, gid.gid)).collect::<Vec<_>>().join(", "),
        };
        Finding::new("gid", Severity::Failure, what, at(state, nic))
            .seen(seen, "one that is RoCE v2 and not link-local (fe80)")
            .cure(format!("ip address add ADDRESS/PREFIX dev {interface}"))
    };
    roce().filter(|nic| !routable(nic)).map(finding).collect::<Vec<_>>().into()
}

/// Packets of full size.
pub(super) fn mtu(state: &State) -> Outcome {
    let roce = |nic: &&Nic| nic.link_layer == LinkLayer::Ethernet && nic.state == PortState::Active;
    let ports: Vec<_> = state
        .facts
        .nics
        .iter()
        .filter(roce)
        .filter_map(|nic| {
            let named = nic.interface.as_ref()?;
            Some((nic, state.facts.interfaces.iter().find(|interface| interface.name == *named)?))
        })
        .collect();
    if ports.is_empty() {
        return Outcome::NotRun("no active RoCE port".into());
    }
    let short = ports.into_iter().filter(|(_, interface)| interface.mtu > 0 && interface.mtu < RDMA_MTU);
    let finding = |(nic, interface): (&Nic, &crossmesh::topology::facts::Interface)| {
        let what = format!("{} sends packets shorter than RoCE can", interface.name);
        Finding::new("mtu", Severity::Warning, what, at(state, nic))
            .seen(interface.mtu.to_string(), format!("at least {RDMA_MTU}, the same on the whole way"))
            .cure(format!("ip link set {} mtu 9000", interface.name))
    };
    short.map(finding).collect::<Vec<_>>().into()
}

/// Whether NICs can reach GPU memory.
pub(super) fn gpu_direct(state: &State) -> Outcome {
    if state.facts.nics.is_empty() || state.facts.gpus.is_empty() {
        return Outcome::NotRun("needs a GPU and an RDMA device".into());
    }
    let peer_memory = state.system.modules.iter().any(|name| name == "nvidia_peermem" || name == "nv_peer_mem");
    let open_driver = state.system.nvidia_driver.as_deref().is_some_and(|text| text.contains("Open Kernel Module"));
    let shares_buffers = open_driver && version_at_least(&state.system.kernel, (5, 12));
    if peer_memory || shares_buffers {
        return Outcome::Passed;
    }
    let finding = Finding::new("gpu-direct", Severity::Warning, "NICs cannot reach GPU memory", state.host())
        .seen(
            format!(
                "kernel {}, {} driver, nvidia_peermem not loaded",
                state.system.kernel,
                match open_driver {
                    true => "open",
                    false => "closed",
                }
            ),
            "kernel 5.12 or later with the open driver, or nvidia_peermem",
        )
        .cure("modprobe nvidia-peermem; without it bytes of GPUs go through host memory");
    Outcome::Found(vec![finding])
}

fn version_at_least(release: &str, (major, minor): (u32, u32)) -> bool {
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit()).map(|word| word.parse().unwrap_or(0));
    let found: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    found >= (major, minor)
}

/// Links of GPUs and NICs that run below those of their like.
pub(super) fn pcie(state: &State) -> Outcome {
    let facts = &state.facts;
    let gpus = facts.gpus.iter().map(|gpu| (format!("GPU {}", gpu.index), "GPU", gpu.pci));
    let active = facts.nics.iter().filter(|nic| nic.state == PortState::Active && !nic.virtual_function);
    let nics = active.filter_map(|nic| Some((nic.device.clone(), "NIC", nic.pci?)));
    let rated: Vec<(String, &str, u64)> = gpus
        .chain(nics)
        .filter_map(|(name, kind, pci)| Some((name, kind, facts.pci_device(pci)?.link?.bytes_per_second)))
        .collect();
    if rated.is_empty() {
        return Outcome::NotRun("no PCI link of a GPU or RDMA device is known".into());
    }
    let fastest = |kind: &str| rated.iter().filter(|(_, of, _)| *of == kind).map(|&(_, _, rate)| rate).max();
    let gigabytes = |rate: u64| format!("{:.1} GB/s", rate as f64 / 1e9);
    rated
        .iter()
        .filter_map(|(name, kind, rate)| {
            let best = fastest(kind)?;
            let what = format!("the PCI link of {name} runs slower than that of other {kind}s here");
            // An idle GPU lowers the speed of its link and not its width; half of a generation is no fault.
            (*rate * 2 < best).then(|| {
                Finding::new("pcie", Severity::Warning, what, state.host())
                    .seen(gigabytes(*rate), gigabytes(best))
                    .cure("lspci -vv shows LnkSta beside LnkCap; run it under load; reseat the card or update its firmware")
            })
        })
        .collect::<Vec<_>>()
        .into()
}
