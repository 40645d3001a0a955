//! What must agree between the ranks of a job. In: the states of all ranks. Out: outcomes. Guarantee: pure; findings name
//! the ranks or hosts that differ from most.

use crate::doctor::finding::{Finding, Outcome, Severity};
use crate::doctor::system::State;
use crossmesh::topology::facts::{Nic, PortState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Seconds by which clocks may differ before logs of several hosts cannot be read together.
const CLOCK: f64 = 1.0;

/// One state of each host, in order of its first rank.
pub(in crate::doctor) fn hosts(states: &[State]) -> Vec<&State> {
    let mut seen = BTreeSet::new();
    states.iter().filter(|state| seen.insert((&state.host_token, &state.facts.host))).collect()
}

/// Groups by value, most frequent first, then in order of the first rank.
fn groups<'a, T: Ord>(states: &[&'a State], value: impl Fn(&'a State) -> T) -> Vec<(T, Vec<&'a State>)> {
    let mut groups: BTreeMap<T, Vec<&State>> = BTreeMap::new();
    for &state in states {
        groups.entry(value(state)).or_default().push(state);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, states)| (std::cmp::Reverse(states.len()), states[0].rank));
    groups
}

/// One finding for each rank or host whose value is not that of most.
fn differing<T: Ord>(
    states: &[&State],
    value: impl Fn(&State) -> T,
    finding: impl Fn(&T, &T, &State) -> Finding,
) -> Vec<Finding> {
    let groups = groups(states, value);
    let Some(((common, _), others)) = groups.split_first() else { return Vec::new() };
    let differing = others.iter().flat_map(|(value, states)| states.iter().map(move |state| (value, state)));
    differing.map(|(value, state)| finding(common, value, state)).collect()
}

/// The library, the GPU driver.
pub(super) fn versions(states: &[State]) -> Outcome {
    let all: Vec<&State> = states.iter().collect();
    let mut findings = differing(
        &all,
        |state| state.system.crossmesh.clone(),
        |common, other, state| {
            Finding::new("versions", Severity::Failure, "ranks run different versions of crossmesh", state.whom())
                .seen(other, format!("{common}, as most ranks"))
                .cure("start the same file everywhere: put crossmesh on a shared file system, or srun --bcast")
        },
    );
    findings.extend(differing(
        &hosts(states),
        |state| state.system.nvidia_driver.clone(),
        |common, other, state| {
            let name = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "no driver".into());
            Finding::new("versions", Severity::Failure, "hosts have different GPU drivers", state.host())
                .seen(name(other), format!("{}, as most hosts", name(common)))
                .cure("install the driver of the other hosts, or leave the host out: srun --exclude=HOST")
        },
    ));
    findings.into()
}

/// Variables that must be equal everywhere.
pub(super) fn same_environment(states: &[State]) -> Outcome {
    let own: BTreeSet<&String> = states
        .iter()
        .flat_map(|state| state.system.environment.keys())
        .filter(|name| name.starts_with("CROSSMESH_") && !belongs_to_a_rank(name))
        .collect();
    let all: Vec<&State> = states.iter().collect();
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".into());
    let findings: Vec<Finding> = own
        .into_iter()
        .flat_map(|name| {
            differing(
                &all,
                |state| state.system.environment.get(name).cloned(),
                |common, other, state| {
                    let what = format!("{name} differs between ranks");
                    Finding::new("same-environment", Severity::Failure, what, state.whom())
                        .seen(text(other), format!("{}, as most ranks", text(common)))
                        .cure(format!("srun --export=ALL,{name}={}", common.as_deref().unwrap_or_default()))
                },
            )
        })
        .collect();
    findings.into()
}

/// Variables that starters give each rank, or that may differ.
fn belongs_to_a_rank(name: &str) -> bool {
    ["RANK", "DOMAIN", "ROLE", "LOG", "INTERFACE", "TERMINAL"].iter().any(|word| name == format!("CROSSMESH_{word}"))
}

/// Addresses that all hosts can reach.
pub(super) fn interface(states: &[State]) -> Outcome {
    let hosts = hosts(states);
    if hosts.len() < 2 {
        return Outcome::NotRun("one host".into());
    }
    let usable = |state: &State| -> Vec<IpAddr> {
        let addresses = state.system.addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok());
        addresses.filter(|address| !address.is_loopback()).collect()
    };
    let mut findings = Vec::new();
    for state in &hosts {
        if usable(state).is_empty() {
            let what = "the host has no address that others can reach";
            findings.push(
                Finding::new("interface", Severity::Failure, what, state.host())
                    .seen(state.system.addresses.join(", "), "an address that is not the loopback's")
                    .cure("ip -brief address; CROSSMESH_INTERFACE=NAME chooses one on this host"),
            );
        }
    }
    // The first 16 bits, or 64 of the newer kind: networks that large sites route as one.
    let network = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets()[..2].to_vec(),
        IpAddr::V6(address) => address.octets()[..8].to_vec(),
    };
    let networks = |state: &State| usable(state).into_iter().map(network).collect::<BTreeSet<_>>();
    let common = hosts.iter().map(|state| networks(state)).reduce(|all, next| &all & &next).unwrap_or_default();
    if findings.is_empty() && common.is_empty() {
        let list = |state: &&State| format!("{}: {}", state.host(), state.system.addresses.join(" "));
        findings.push(
            Finding::new("interface", Severity::Warning, "hosts share no network", hosts[0].host())
                .seen(hosts.iter().map(list).collect::<Vec<_>>().join("; "), "one network that all hosts are in")
                .cure("CROSSMESH_INTERFACE=NAME with the name of the interface of the common network"),
        );
    }
    findings.into()
}

/// Hosts that look alike and are not, and the reverse.
pub(super) fn host_identity(states: &[State]) -> Outcome {
    let mut tokens: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for state in states {
        tokens.entry(&state.facts.host).or_default().insert(&state.host_token);
    }
    let several = tokens.into_iter().filter(|(_, tokens)| tokens.len() > 1);
    let findings: Vec<Finding> = several
        .map(|(host, tokens)| {
            let what = "ranks of one host name do not share a kernel and its namespaces, so they move bytes over TCP";
            Finding::new("host-identity", Severity::Warning, what, host)
                .seen(format!("{} sets of namespaces", tokens.len()), "one")
                .cure("run all ranks of a host in one container, or share its namespaces: docker --ipc=host --pid=host --uts=host")
        })
        .collect();
    findings.into()
}

/// RDMA devices of every host.
pub(super) fn nic_set(states: &[State]) -> Outcome {
    let hosts = hosts(states);
    if hosts.iter().all(|state| state.facts.nics.is_empty()) {
        return Outcome::NotRun("no RDMA device".into());
    }
    if hosts.len() < 2 {
        return Outcome::NotRun("one host".into());
    }
    let describe =
        |nic: &Nic| format!("{}:{} at {} Gb/s", nic.device, nic.port, nic.bytes_per_second * 8 / 1_000_000_000);
    let active = |nic: &&Nic| nic.state == PortState::Active && !nic.virtual_function;
    let set = |state: &State| state.facts.nics.iter().filter(active).map(describe).collect::<BTreeSet<_>>();
    let list = |names: &BTreeSet<String>| match names.is_empty() {
        true => "none".to_string(),
        false => names.iter().cloned().collect::<Vec<_>>().join(", "),
    };
    let findings = differing(&hosts, set, |common, other, state| {
        Finding::new("nic-set", Severity::Warning, "the host's RDMA devices differ from most hosts'", state.host())
            .seen(
                format!("lacks {}; has besides {}", list(&(common - other)), list(&(other - common))),
                format!("as most hosts: {}", list(common)),
            )
            .cure(format!("ibstat on {}; a port that is down is brought up or the host left out", state.host()))
    });
    findings.into()
}

/// GPUs of one cluster that cannot reach each other.
pub(super) fn clique(states: &[State]) -> Outcome {
    let mut cliques: BTreeMap<&str, BTreeMap<u32, BTreeSet<String>>> = BTreeMap::new();
    for state in states {
        for fabric in state.facts.gpus.iter().filter_map(|gpu| gpu.fabric.as_ref()).filter(|fabric| fabric.is_set()) {
            cliques.entry(&fabric.cluster).or_default().entry(fabric.clique).or_default().insert(state.host());
        }
    }
    if cliques.is_empty() {
        return Outcome::NotRun("no NVLink fabric of several hosts".into());
    }
    let several = cliques.into_iter().filter(|(_, cliques)| cliques.len() > 1);
    let findings: Vec<Finding> = several
        .map(|(cluster, cliques)| {
            let list = cliques.iter().map(|(clique, hosts)| {
                format!("clique {clique}: {}", hosts.iter().cloned().collect::<Vec<_>>().join(" "))
            });
            let what = format!("GPUs of NVLink cluster {cluster} are in several cliques, which the network joins");
            Finding::new("clique", Severity::Warning, what, "job")
                .seen(list.collect::<Vec<_>>().join("; "), "one clique, or one for each side of the job")
                .cure("srun --segment=N with N hosts of one clique")
        })
        .collect();
    findings.into()
}

/// Clocks, by which logs are read.
pub(super) fn clock(states: &[State]) -> Outcome {
    let hosts = hosts(states);
    if hosts.len() < 2 {
        return Outcome::NotRun("one host".into());
    }
    let mut clocks: Vec<f64> = hosts.iter().map(|state| state.system.clock).collect();
    clocks.sort_by(f64::total_cmp);
    let middle = clocks[clocks.len() / 2];
    let far = hosts.iter().filter(|state| (state.system.clock - middle).abs() > CLOCK);
    let finding = |state: &&State| {
        Finding::new(
            "clock",
            Severity::Warning,
            "the host's clock is off, so logs cannot be read together",
            state.host(),
        )
        .seen(format!("{:+.1} s", state.system.clock - middle), format!("within {CLOCK} s"))
        .cure("systemctl restart chronyd (or systemd-timesyncd); chronyc tracking")
    };
    far.map(finding).collect::<Vec<_>>().into()
}
