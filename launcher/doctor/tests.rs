//! Every finding from a state that deserves it, and none from a healthy one.

use super::checks::{JOB, LOCAL};
use super::finding::Severity;
use super::gpu_links::GpuLinks;
use super::pairs::Pair;
use super::recorded;
use super::report::{Report, Tried};
use super::system::{DeviceFile, Limit, Space, State, System};
use crossmesh::base::Rank;
use crossmesh::comm::{LinkFacts, LinkVerdict};
use crossmesh::topology::CpuSet;
use crossmesh::topology::facts::{
    Fabric, FabricState, Gid, Gpu, HostFacts, Interface, LinkLayer, Nic, NumaNode, PortState,
};
use std::collections::BTreeSet;

/// Facts of a host in words of its topology file: two GPUs of a fabric, a RoCE and its twin.
fn facts() -> HostFacts {
    let text = r#"{
        "host": "node1", "boot_id": "b",
        "numa_nodes": [{"index": 0, "cpus": "0-7"}, {"index": 1, "cpus": "8-15"}, {"index": 2, "cpus": ""}],
        "pci": [
            {"address": "0000:01:00.0", "class": 197120, "vendor": 4318, "link": {"megatransfers": 32000, "width": 16, "bytes_per_second": 63000000000}},
            {"address": "0000:02:00.0", "class": 197120, "vendor": 4318, "link": {"megatransfers": 32000, "width": 16, "bytes_per_second": 63000000000}}
        ],
        "gpus": [
            {"index": 0, "pci": "0000:01:00.0", "numa": 0, "memory_numa": 2, "nvlinks": [{"peer": {"switch": null}, "links": 18}],
             "fabric": {"cluster": "1a", "clique": 1, "state": "completed"}},
            {"index": 1, "pci": "0000:02:00.0", "numa": 1, "nvlinks": [{"peer": {"switch": null}, "links": 18}],
             "fabric": {"cluster": "1a", "clique": 1, "state": "completed"}}
        ],
        "limits": {"cpus": "0-7", "memory_nodes": "0-1"}
    }"#;
    serde_json::from_str(text).unwrap()
}

fn nic(device: &str, interface: &str) -> Nic {
    let gid = |index, gid: &str| Gid { index, gid: gid.into(), kind: Some("RoCE v2".into()) };
    Nic {
        link_layer: LinkLayer::Ethernet,
        bytes_per_second: 50_000_000_000,
        state: PortState::Active,
        numa: Some(0),
        gids: vec![gid(0, "fe80::1"), gid(3, "::ffff:10.0.0.1")],
        interface: Some(interface.into()),
        openable: Some(true),
        ..Nic::at(device, 1)
    }
}

/// A rank with nothing wrong.
fn healthy(rank: u32, host: &str) -> State {
    let mut facts = facts();
    facts.host = host.into();
    facts.nics = vec![nic("mlx5_0", "eth0"), nic("mlx5_1", "eth1")];
    facts.interfaces = ["eth0", "eth1"]
        .map(|name| Interface { name: name.into(), up: true, mtu: 9000, ..Interface::default() })
        .to_vec();
    let file = |path: &str| DeviceFile { path: path.into(), error: None };
    let libraries = ["libcuda.so.1", "libnvidia-ml.so.1", "libnvrtc.so", "libibverbs.so.1"];
    let environment = [("CROSSMESH_ROUTE", "flat"), ("SLURM_JOB_ID", "7"), ("SLURM_KILL_BAD_EXIT", "1")];
    State {
        rank: Some(rank),
        ranks: 4,
        ranks_here: 2,
        host_token: format!("token of {host}"),
        gpu: Some("0000:01:00.0".into()),
        facts,
        system: System {
            crossmesh: "0.1".into(),
            kernel: "6.8.0".into(),
            open_files: Limit::At(1 << 20),
            stack: Limit::At(8 << 20),
            shared_memory: Some(Space { total_bytes: 1 << 30, free_bytes: 1 << 30 }),
            port_range: Some((32768, 60999)),
            listen_backlog: Some(4096),
            ptrace_scope: Some(0),
            device_files: vec![file("/dev/infiniband/uverbs0"), file("/dev/nvidia-caps-imex-channels/channel0")],
            libraries: libraries.map(|name| (name.to_string(), Some(format!("/usr/lib/{name}")))).into(),
            nvidia_driver: Some("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 580".into()),
            environment: environment.map(|(name, value)| (name.to_string(), value.to_string())).into(),
            addresses: vec![format!("10.0.0.{}", rank + 1), "127.0.0.1".into()],
            clock: 1000.0 + f64::from(rank) * 0.01,
            ..System::default()
        },
    }
}

fn job() -> Vec<State> {
    vec![healthy(0, "node1"), healthy(1, "node1"), healthy(2, "node2"), healthy(3, "node3")]
}

fn pair(ranks: [u32; 2], rate: f64) -> Pair {
    Pair { ranks, link: "tcp".into(), gb_per_s: [rate; 2], error: None }
}

fn link(from: u32, to: u32, verdict: LinkVerdict) -> LinkFacts {
    LinkFacts { from: Rank(from), to: Rank(to), verdict }
}

/// What ranks tried; links of GPUs by their rates in GB/s.
fn tried(pairs: Vec<Pair>, rates: &[(u32, u32, u64)]) -> Tried {
    let good = |&(from, to, rate)| link(from, to, LinkVerdict::Good { rate: Some(rate * 1_000_000_000) });
    Tried { pairs, gpu_links: GpuLinks { links: rates.iter().map(good).collect(), unusable: Vec::new() } }
}

fn ids(report: &Report) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.id).collect()
}

#[test]
fn a_healthy_job_has_no_findings_and_runs_every_check() {
    let report = Report::of(&job(), tried(vec![pair([0, 1], 2.0)], &[(0, 1, 390), (1, 0, 391)]));
    assert_eq!(report.findings, []);
    assert!(report.not_run.is_empty(), "{:?}", report.not_run);
    assert_eq!(report.passed.len(), LOCAL.len() + JOB.len() + 4);
    assert_eq!((report.exit_code(), report.hosts, report.ranks), (0, 3, 4));
}

#[test]
fn a_bare_machine_says_what_it_could_not_look_at() {
    let report = Report::of(&[State { ranks: 1, ..State::default() }], Tried::default());
    assert!(report.findings.iter().all(|finding| finding.severity == Severity::Note), "{:?}", report.findings);
    assert_eq!(ids(&report), ["uverbs", "driver"]);
    assert_eq!(report.exit_code(), 0);
    for id in ["port-state", "nvlink", "clique", "pair-bandwidth", "gpu-link-failure", "gpu-direct"] {
        assert!(report.not_run.contains_key(id), "{id}");
    }
    assert!(report.text().contains("needs a job: crossmesh run -n N -- crossmesh doctor"), "{}", report.text());
}

/// What to break, and the one finding that it must give.
type Case = (&'static str, Severity, fn(&mut State));

const CASES: &[Case] = &[
    ("memlock", Severity::Failure, |state| state.facts.limits.locked_memory_bytes = Some(64 << 10)),
    ("open-files", Severity::Failure, |state| state.system.open_files = Limit::At(64)),
    ("open-files", Severity::Warning, |state| {
        (state.ranks, state.system.open_files) = (600, Limit::At(65536));
    }),
    ("stack", Severity::Warning, |state| state.system.stack = Limit::Unlimited),
    ("shared-memory", Severity::Warning, |state| {
        state.system.shared_memory = Some(Space { total_bytes: 64 << 20, free_bytes: 1 << 20 });
    }),
    ("ports", Severity::Failure, |state| state.system.port_range = Some((60000, 60009))),
    ("listen-backlog", Severity::Warning, |state| {
        (state.ranks, state.system.listen_backlog) = (2000, Some(128));
    }),
    ("process-memory", Severity::Warning, |state| state.system.ptrace_scope = Some(1)),
    ("environment", Severity::Warning, |state| state.system.unknown_variables = vec!["CROSSMESH_ROUT".into()]),
    ("environment", Severity::Failure, |state| {
        state.system.environment.insert("CROSSMESH_ROUTE".into(), "falt".into());
    }),
    ("uverbs", Severity::Failure, |state| state.system.device_files.retain(|file| !file.path.contains("uverbs"))),
    ("uverbs", Severity::Failure, |state| state.system.device_files[0].error = Some("permission denied".into())),
    ("uverbs", Severity::Failure, |state| {
        state.system.libraries.insert("libibverbs.so.1".into(), None);
    }),
    ("port-state", Severity::Warning, |state| state.facts.nics[1].state = PortState::Down),
    ("port-state", Severity::Warning, |state| {
        let mut third = nic("mlx5_2", "eth2");
        third.bytes_per_second /= 2;
        state.facts.nics.push(third);
    }),
    ("port-errors", Severity::Warning, |state| {
        state.system.error_counters.insert("mlx5_0/1/symbol_error".into(), 9);
    }),
    ("gid", Severity::Failure, |state| state.facts.nics[0].gids.truncate(1)),
    ("mtu", Severity::Warning, |state| state.facts.interfaces[0].mtu = 1500),
    ("gpu-direct", Severity::Warning, |state| state.system.kernel = "5.4.0-100-generic".into()),
    ("pcie", Severity::Warning, |state| {
        let link = state.facts.pci[0].link.as_mut().unwrap();
        link.bytes_per_second /= 4;
    }),
    ("driver", Severity::Failure, |state| {
        state.system.libraries.insert("libnvrtc.so".into(), None);
    }),
    ("gpu-visibility", Severity::Failure, |state| {
        // The rank sees its own alone.
        state.facts.gpus.truncate(1);
        state.facts.limits.hidden_gpus = vec!["0000:02:00.0".parse().unwrap()];
    }),
    ("gpu-visibility", Severity::Warning, |state| {
        state.facts.limits.cuda_visible_devices = Some("3".into());
    }),
    ("nvlink", Severity::Failure, |state| state.facts.gpus[1].nvlinks.clear()),
    ("nvlink", Severity::Note, |state| state.facts.gpus[1].mig = true),
    ("nvlink", Severity::Failure, |state| {
        for gpu in &mut state.facts.gpus {
            gpu.nvlinks[0].links = 17;
        }
        state.facts.gpus[0].inactive_nvlinks = 1;
    }),
    ("fabric", Severity::Failure, |state| fabric(state).state = FabricState::InProgress),
    ("fabric", Severity::Failure, |state| fabric(state).status = 999),
    ("imex", Severity::Failure, |state| state.system.device_files.truncate(1)),
    ("framework", Severity::Warning, |state| {
        state.system.environment.insert("NCCL_MNNVL_ENABLE".into(), "0".into());
    }),
    ("cpu-binding", Severity::Warning, |state| state.facts.limits.cpu_quota_thousandths = Some(500)),
    ("cpu-binding", Severity::Warning, |state| state.facts.limits.memory_nodes = CpuSet::range(0, 2)),
    ("nic-affinity", Severity::Warning, |state| state.facts.limits.cpus = CpuSet::range(8, 15)),
    ("scheduler", Severity::Failure, |state| {
        state.system.environment.insert("SLURM_GPUS_PER_TASK".into(), "1".into());
    }),
    ("scheduler", Severity::Warning, |state| drop(state.system.environment.remove("SLURM_KILL_BAD_EXIT"))),
];

/// Breaks of a job, on its rank 3.
const JOB_CASES: &[Case] = &[
    ("versions", Severity::Failure, |state| state.system.crossmesh = "0.2".into()),
    ("versions", Severity::Failure, |state| {
        state.system.nvidia_driver = Some("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 570".into());
    }),
    ("same-environment", Severity::Failure, |state| {
        state.system.environment.insert("CROSSMESH_ROUTE".into(), "hierarchical".into());
    }),
    ("interface", Severity::Failure, |state| state.system.addresses = vec!["127.0.0.1".into()]),
    ("interface", Severity::Warning, |state| state.system.addresses = vec!["192.168.1.4".into()]),
    ("host-identity", Severity::Warning, |state| state.facts.host = "node1".into()),
    ("nic-set", Severity::Warning, |state| state.facts.nics.truncate(1)),
    ("host-parts", Severity::Warning, |state| state.facts.gpus.truncate(1)),
    ("host-parts", Severity::Warning, |state| state.facts.numa_nodes[0].cpus = CpuSet::range(0, 3)),
    ("clique", Severity::Warning, |state| {
        for gpu in &mut state.facts.gpus {
            gpu.fabric.as_mut().unwrap().clique = 2;
        }
    }),
    ("clock", Severity::Warning, |state| state.system.clock += 60.0),
];

fn fabric(state: &mut State) -> &mut Fabric {
    state.facts.gpus[0].fabric.as_mut().unwrap()
}

#[test]
fn every_fault_gives_its_finding_and_no_other() {
    for (cases, first) in [(CASES, 0), (JOB_CASES, 3)] {
        for (number, (id, severity, break_it)) in cases.iter().enumerate() {
            let mut states = job();
            states[first..].iter_mut().for_each(break_it);
            let report = Report::of(&states, Tried::default());
            let told: Vec<_> = report.findings.iter().map(|finding| (finding.id, finding.severity)).collect();
            assert_eq!(told, [(*id, *severity)], "case {number} of {id}");
            let finding = &report.findings[0];
            for text in [&finding.what, &finding.value, &finding.limit, &finding.remedy] {
                assert!(!text.is_empty(), "{finding:?}");
            }
            assert_eq!(report.exit_code(), [0, 1, 2][*severity as usize]);
            assert!(report.text().contains(&finding.remedy));
        }
    }
}

/// What several ranks find out together.
const TOGETHER: [&str; 4] = ["pair-failure", "pair-bandwidth", "gpu-link-failure", "gpu-link-bandwidth"];

#[test]
fn every_check_has_a_fault_and_a_page() {
    let checks: BTreeSet<&str> = LOCAL.iter().map(|check| check.id).chain(JOB.iter().map(|check| check.id)).collect();
    let broken: BTreeSet<&str> = CASES.iter().chain(JOB_CASES).map(|case| case.0).collect();
    assert_eq!(checks, broken);
    let page = include_str!("../../docs/doctor.md");
    let headings: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let expected: BTreeSet<&str> = checks.into_iter().chain(TOGETHER).collect();
    assert_eq!(headings, expected);
}

#[test]
fn a_value_that_no_reader_takes_fails() {
    let mut state = healthy(0, "node1");
    state.system.environment.insert("CROSSMESH_ROUTE".into(), "falt".into());
    state.system.environment.insert("CROSSMESH_STAGING".into(), "32MiB".into());
    let report = Report::of(&[state], Tried::default());
    let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
    assert_eq!((finding.id, finding.severity), ("environment", Severity::Failure));
    assert_eq!((finding.value.as_str(), finding.limit.as_str()), ("falt", "hierarchical, flat, gather-broadcast"));
    assert!(finding.remedy.starts_with("unset CROSSMESH_ROUTE, or export CROSSMESH_ROUTE="), "{}", finding.remedy);
}

#[test]
fn recorded_states_give_the_same_findings() {
    let mut states = job();
    states[2].system.stack = Limit::Unlimited;
    states[3].facts.nics[0].state = PortState::Down;
    let pairs = vec![pair([0, 1], 2.0), pair([0, 2], 2.0), pair([1, 2], 1.0)];
    let mut tried = tried(pairs, &[(0, 1, 390), (1, 0, 300)]);
    tried.gpu_links.unusable.push((3, "no driver".into()));
    let nothing_works = GpuLinks { links: Vec::new(), ..tried.gpu_links.clone() };
    let folder = tempfile::tempdir().unwrap();
    recorded::write(folder.path(), &states, &tried).unwrap();
    let (read, told) = recorded::read(folder.path()).unwrap();
    let (first, second) = (Report::of(&states, tried), Report::of(&read, told));
    assert_eq!(first, second);
    let expected = ["gpu-link-failure", "stack", "port-state", "nic-set", "pair-bandwidth", "gpu-link-bandwidth"];
    assert_eq!(ids(&first), expected);
    let report = Report::of(&states, Tried { gpu_links: nothing_works, ..Tried::default() });
    assert_eq!(report.not_run["gpu-link-bandwidth"], "nothing works that could be measured");
}

#[test]
fn links_between_gpus_are_judged_by_what_they_are() {
    // Ranks 0 and 1 sit on the two GPUs of node1, 2 and 3 on those of a host whose GPUs have no NVLink.
    let mut states = vec![healthy(0, "node1"), healthy(1, "node1"), healthy(2, "node2"), healthy(3, "node2")];
    for (state, gpu) in states.iter_mut().zip([0, 1, 0, 1]) {
        state.gpu = Some(state.facts.gpus[gpu].pci.to_string());
        if state.facts.host == "node2" {
            state.facts.gpus.iter_mut().for_each(|gpu| gpu.nvlinks.clear());
        }
    }
    // Slow and by PCI is as it should be.
    let rates = [(0, 1, 390), (1, 0, 391), (2, 3, 25), (3, 2, 24)];
    let report = Report::of(&states, tried(Vec::new(), &rates));
    assert!(report.passed.contains(&"gpu-link-failure") && report.passed.contains(&"gpu-link-bandwidth"));
    let text = report.text();
    assert!(text.contains("2 links of GPUs by NV18, GB/s by copy engine: 391.0 (least 390.0, most 391.0)"), "{text}");
    assert!(text.contains("2 links of GPUs by SYS, GB/s by copy engine: 25.0"), "{text}");
    let mut bad = tried(Vec::new(), &[(0, 1, 390), (1, 0, 200)]);
    bad.gpu_links.links.push(link(2, 3, LinkVerdict::Broken { wrong: 7 }));
    bad.gpu_links.links.push(link(3, 2, LinkVerdict::Failed { why: "gave up".into() }));
    let report = Report::of(&states, bad);
    let own: Vec<_> = report.findings.iter().filter(|finding| finding.id.starts_with("gpu-link")).collect();
    let told: Vec<_> = own.iter().map(|finding| (finding.id, finding.value.as_str())).collect();
    let expected = [
        ("gpu-link-failure", "7 words were wrong when their flag had come"),
        ("gpu-link-failure", "gave up"),
        ("gpu-link-bandwidth", "200.0 GB/s"),
    ];
    assert_eq!(told, expected);
    let place = "GPU 0000:01:00.0 of rank 2 on node2 to GPU 0000:02:00.0 of rank 3 on node2";
    assert_eq!(own[0].place, [place]);
    assert!(own[2].what.ends_with("by NV18") && own[2].limit == "312.0 GB/s, 0.8 of the median", "{:?}", own[2]);
    assert_eq!(report.exit_code(), 2);
}

#[test]
fn hidden_gpus_outside_of_a_job_are_a_note() {
    let mut state = State { rank: None, ranks: 1, ranks_here: 0, gpu: None, ..healthy(0, "node1") };
    state.facts.limits.cuda_visible_devices = Some("0".into());
    let report = Report::of(&[state], Tried::default());
    let told: Vec<_> = report.findings.iter().map(|finding| (finding.id, finding.severity)).collect();
    assert_eq!(told, [("gpu-visibility", Severity::Note)]);
}

#[test]
fn bad_recordings_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(recorded::read(folder.path()).unwrap_err().to_string().contains("no recorded state"));
    assert!(recorded::read(&folder.path().join("absent")).unwrap_err().is_bad_input());
    for text in ["", "{", r#"{"rank": "x"}"#, r#"{"colour": 1}"#, "7"] {
        std::fs::write(folder.path().join("rank-0.json"), text).unwrap();
        let error = recorded::read(folder.path()).unwrap_err();
        assert!(error.is_bad_input() && error.to_string().contains("rank-0.json"), "{text}: {error}");
    }
}

#[test]
fn absent_records_are_no_fault() {
    // A GPU without any link records and a node without CPUs are facts, not faults of the reader.
    let mut state = healthy(0, "node1");
    let gpu = Gpu { nvlinks: Vec::new(), fabric: None, ..state.facts.gpus[0].clone() };
    state.facts.gpus = vec![gpu];
    state.facts.numa_nodes = vec![NumaNode { index: 5, ..NumaNode::default() }];
    let report = Report::of(&[state], Tried::default());
    assert!(report.not_run.contains_key("nvlink") && report.not_run.contains_key("imex"), "{:?}", report.not_run);
    assert_eq!(ids(&report), [] as [&str; 0]);
}
