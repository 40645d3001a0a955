//! What must agree between the ranks of a job. In: the states of all ranks. Out: outcomes. Guarantee: pure; findings name
//! the ranks or hosts that differ from most.

use crate::doctor::finding::{Finding, Outcome, Severity};
use crate::doctor::system::State;
use crossmesh::topology::cluster::{Difference, DomainKey, Part, Remark, differences};
use crossmesh::topology::{Cluster, ClusterOptions, HostFacts};
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
    let cure = |hosts: &str| format!("ibstat on {hosts}; a port that is down is brought up or the host left out");
    parts(&hosts, "nic-set", "RDMA devices are not as on most hosts", &[Part::Nics], cure)
}

/// GPUs and processors of every host.
pub(super) fn host_parts(states: &[State]) -> Outcome {
    let cure = |hosts: &str| {
        format!(
            "nvidia-smi -L and lscpu on {hosts}; a GPU that is lost comes back by a reset or a reboot; else leave the host out: srun --exclude=HOST"
        )
    };
    let what = "GPUs or processors are not as on most hosts";
    parts(&hosts(states), "host-parts", what, &[Part::Gpus, Part::Processors], cure)
}

/// One finding for the differences that the same hosts have.
fn parts(hosts: &[&State], id: &'static str, what: &str, parts: &[Part], cure: impl Fn(&str) -> String) -> Outcome {
    if hosts.len() < 2 {
        return Outcome::NotRun("one host".into());
    }
    let all = differences(&hosts.iter().map(|state| &state.facts).collect::<Vec<_>>());
    let mut groups: BTreeMap<Vec<String>, Vec<Difference>> = BTreeMap::new();
    for difference in all.into_iter().filter(|difference| parts.contains(&difference.part)) {
        groups.entry(difference.hosts.clone()).or_default().push(difference);
    }
    let list = |differences: &[Difference], value: fn(&Difference) -> &Option<String>| {
        let one = |own: &Difference| format!("{}: {}", own.name, value(own).as_deref().unwrap_or("none"));
        differences.iter().map(one).collect::<Vec<_>>().join("; ")
    };
    let finding = |(hosts, differences): (Vec<String>, Vec<Difference>)| {
        let usual = list(&differences, |own| &own.usual);
        let finding = Finding::new(id, Severity::Warning, what, String::new())
            .seen(list(&differences, |own| &own.value), format!("as most hosts: {usual}"))
            .cure(cure(&hosts.join(",")));
        Finding { place: hosts, ..finding }
    };
    groups.into_iter().map(finding).collect::<Vec<_>>().into()
}

/// GPUs of one cluster that cannot reach each other.
pub(super) fn clique(states: &[State]) -> Outcome {
    let facts: Vec<HostFacts> = hosts(states).iter().map(|state| state.facts.clone()).collect();
    let cluster = Cluster::new(facts, &ClusterOptions::default());
    if !cluster.domains.iter().any(|domain| matches!(domain.key, DomainKey::Fabric(..))) {
        return Outcome::NotRun("no NVLink fabric of several hosts".into());
    }
    let finding = |remark: Remark| {
        let Remark::Cliques { cluster, cliques } = remark else { return None };
        let list = cliques.iter().map(|(clique, hosts)| format!("clique {clique}: {}", hosts.join(" ")));
        let what = format!("GPUs of NVLink cluster {cluster} are in several cliques, which the network joins");
        let seen = list.collect::<Vec<_>>().join("; ");
        let finding = Finding::new("clique", Severity::Warning, what, "job");
        let finding = finding.seen(seen, "one clique, or one for each side of the job");
        Some(finding.cure("srun --segment=N with N hosts of one clique"))
    };
    cluster.remarks().into_iter().filter_map(finding).collect::<Vec<_>>().into()
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
