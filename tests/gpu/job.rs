//! Jobs of the GPU tests. In: kinds, cases, environments. Out: their outcomes. Guarantee: a job ends within its limit; a case
//! without an outcome, and an end that was not expected, is a failure with all that was said.

use crate::collective::{apart, here, soak};
use crate::hosts::Hosts;
use crate::results::{MARK, Outcome};
use crate::{case, faults, mixed, trapped, ways};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longest job.
const LIMIT: Duration = Duration::from_secs(150);

/// Longest job on emulated hosts, some of which compile all kernels.
pub(crate) const LIMIT_ON_HOSTS: Duration = Duration::from_secs(300);

/// What jobs run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    /// Two GPUs or more.
    Gpus,
    /// A driver that stands in for two, and runs no kernels.
    StandIn,
}

/// A job to be started.
pub(crate) struct Job {
    ranks: u32,
    kind: &'static str,
    cases: Vec<String>,
    environment: Vec<(&'static str, &'static str)>,
    /// What rank 1 alone has in its environment.
    at_rank_1: Option<(&'static str, &'static str)>,
    /// Emulated hosts that its ranks are spread over, and how many fabrics join their GPUs; `None` on this one.
    hosts: Option<(u32, u32)>,
    /// Whether it has a cache of its own, empty.
    fresh_cache: bool,
    /// A job that is meant to fail, and what it must say.
    expects: Option<&'static str>,
}

/// Everything through memory of the hosts; no channels of collectives.
const OFF: (&str, &str) = ("CROSSMESH_PEER_ACCESS", "off");
/// Links are not tested.
const TRUSTED: (&str, &str) = ("CROSSMESH_PEER_ACCESS", "trusted");
/// No setting.
const MISSPELT: (&str, &str) = ("CROSSMESH_PEER_ACCESS", "trust");
/// What the driver that stands in writes over a link does not arrive in order.
const BROKEN: (&str, &str) = ("STAND_IN_LINKS", "broken");
/// Two domains, joined by TCP.
const TWO_DOMAINS: (&str, &str) = ("CROSSMESH_DOMAINS", "2");

/// Fabric handles on one host.
const FABRIC: (&str, &str) = ("CROSSMESH_GPU_HANDLES", "fabric");
/// Several parts of what comes into a domain, though tensors are small.
const SMALL_CHUNKS: (&str, &str) = ("CROSSMESH_CHUNK", "256");
/// Runs a rank's program; what is to be set at rank 1 alone comes before it.
const AT_RANK_1: &str = "[ \"$CROSSMESH_RANK\" != 1 ] || export \"$1\"; shift; exec \"$@\"";
/// What no job says that is meant to fail.
const NEVER: [&str; 2] = ["was left waiting", "an error took"];
/// As many GPUs on each emulated host.
const FOUR_DEVICES: (&str, &str) = ("STAND_IN_DEVICES", "4");
/// One for each of eight ranks on one host.
const EIGHT_DEVICES: (&str, &str) = ("STAND_IN_DEVICES", "8");

impl Job {
    fn new(ranks: u32, kind: &'static str, cases: &[&str]) -> Self {
        let cases = cases.iter().map(|case| case.to_string()).collect();
        let (environment, at_rank_1) = (Vec::new(), None);
        Self { ranks, kind, cases, environment, at_rank_1, hosts: None, fresh_cache: false, expects: None }
    }

    fn with(mut self, variable: (&'static str, &'static str)) -> Self {
        self.environment.push(variable);
        self
    }

    /// Meant to fail with these words.
    fn failing(self, words: &'static str) -> Self {
        Self { expects: Some(words), ..self }
    }

    /// Whether it is of this kind.
    pub(crate) fn is_of(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// All of them.
    pub(crate) fn all(machine: Machine) -> Vec<Job> {
        let without_kernels = Self::without_kernels(machine);
        if machine == Machine::StandIn {
            return without_kernels.into_iter().chain(Self::on_hosts()).collect();
        }
        let mut jobs = Vec::new();
        jobs.push(Self::new(2, "links", &[]));
        for ranks in [2, 3, 4, 8] {
            jobs.push(Self::new(ranks, "move", &case::names(ranks)));
        }
        for way in [OFF, TWO_DOMAINS] {
            jobs.push(
                Self::new(2, "move", &["odd", "strided-odd", "contiguous-256MiB", "rows-to-columns-256MiB"]).with(way),
            );
        }
        let here = |name: &&str| Self::new(1, "here", &[*name]).with(("CUDA_DEVICE_MAX_CONNECTIONS", "32"));
        jobs.extend(here::NAMES.iter().map(here));
        jobs.push(Self::new(2, "collective", &apart::NAMES));
        jobs.push(Self::new(2, "soak", &soak::NAMES));
        jobs.push(Self::new(4, "collective", &apart::SHARED));
        jobs.push(Self::new(4, "soak", &["calls"]));
        jobs.push(Self::new(2, "ways", &ways::NAMES));
        for way in [OFF, TWO_DOMAINS] {
            jobs.push(Self::new(2, "ways", &["ordered"]).with(way));
        }
        jobs.push(Self::new(2, "mixed", &mixed::NAMES));
        jobs.push(Self::new(2, "mixed", &["gpu-to-gpu"]).with(OFF));
        jobs.push(Self::new(2, "mixed", &["gpu-to-gpu", "host-to-gpu", "gpu-to-host"]).with(TWO_DOMAINS));
        jobs.push(Self::new(2, "traps", &["pairs"]));
        jobs.push(Self::new(2, "fabric", &["forced"]).with(FABRIC));
        // Hosts' memory in one domain, two GPUs in the other, which pass on what comes.
        let inside = |cases: &[&str]| Self::new(4, "inside", cases).with(TWO_DOMAINS);
        jobs.extend([inside(&["once:host-domain", "two"]), inside(&["once:host-domain", "two"]).with(SMALL_CHUNKS)]);
        jobs.push(inside(&["gone"]).failing("streams went on"));
        jobs.push(Self::new(2, "count", &["rows-16MiB", "rows-16MiB/stream", "grid"]));
        jobs.extend(without_kernels);
        jobs.extend(Self::faults());
        jobs
    }

    /// Jobs in which copy engines and hosts move everything. Where nothing runs kernels, ranks share one device, or bytes go
    /// through the hosts.
    fn without_kernels(machine: Machine) -> Vec<Job> {
        let traps = |ranks, names: &[&str]| Self::new(ranks, "traps", names);
        let direct = match machine {
            Machine::Gpus => traps(8, &trapped::NAMES),
            Machine::StandIn => traps(8, &trapped::NAMES).with(("STAND_IN_DEVICES", "1")),
        };
        let mut jobs = vec![direct];
        jobs.push(traps(8, &["on-gpus"]).with(OFF));
        jobs.push(traps(8, &["on-gpus", "any-memory"]).with(TWO_DOMAINS));
        jobs.push(traps(8, &["on-gpus"]).with(("CROSSMESH_MAPPED", "staged")));
        jobs.push(traps(2, &["pairs"]).with(OFF));
        let count = || Self::new(4, "count", &["rows-16MiB", "grid"]);
        jobs.extend([count(), count().with(OFF), count().with(TWO_DOMAINS)]);
        jobs.extend(Self::channels(machine));
        jobs
    }

    /// Channels of collectives, made under each setting of access to peers.
    fn channels(machine: Machine) -> Vec<Job> {
        let channels = |cases: &[&str]| Self::new(2, "channels", cases);
        let mut jobs = vec![
            channels(&["refused:CROSSMESH_PEER_ACCESS=off, but the GPUs of a channel", "one-gpu"]).with(OFF),
            Self { at_rank_1: Some(OFF), ..channels(&["refused-apart:rank 1 on host"]) },
            channels(&["refused:CROSSMESH_PEER_ACCESS=\"trust\" cannot be used; allowed: off|tested|trusted"])
                .with(MISSPELT),
            channels(&["written"]),
        ];
        if machine == Machine::StandIn {
            jobs.push(channels(&["nvlink"]));
            jobs.push(channels(&["ordered"]).with(BROKEN));
            jobs.push(channels(&["nvlink"]).with(BROKEN).with(TRUSTED));
            jobs.push(Self { ranks: 4, ..channels(&["written"]) }.with(FOUR_DEVICES));
        }
        jobs
    }

    /// Jobs of GPUs that fabric handles join, or could: on emulated hosts, where this user may make them, and on one.
    fn on_hosts() -> Vec<Job> {
        let fabric = |ranks, cases: &[&str], count, fabrics| Self {
            hosts: Some((count, fabrics)),
            ..Self::new(ranks, "fabric", cases).with(FOUR_DEVICES)
        };
        let imex = |state| ("STAND_IN_IMEX", state);
        let mut jobs = vec![
            fabric(2, &["by-fabric", "links", "channel"], 0, 0).with(FABRIC),
            fabric(2, &["without:CUDA_ERROR_NOT_PERMITTED"], 0, 0).with(FABRIC).with(imex("refused")),
            fabric(8, &["inside:with-fabric", "inside:host-domain"], 0, 0).with(TWO_DOMAINS).with(EIGHT_DEVICES),
        ];
        if !crate::hosts::can_emulate() {
            println!("not run: jobs on emulated hosts, which need the right to make namespaces");
            return jobs;
        }
        jobs.push(fabric(8, &["by-fabric"], 2, 1));
        jobs.push(fabric(4, &["links"], 2, 1));
        jobs.push(fabric(2, &["by-fabric", "channel"], 2, 1));
        // Two domains of two trays each; two hosts that nothing joins; trays of one domain whose GPUs cannot be joined.
        jobs.push(fabric(8, &["inside:with-fabric", "inside:any-memory"], 4, 2));
        let inside = |ranks, cases: &[&str]| Self { kind: "inside", ..fabric(ranks, cases, 4, 2) };
        jobs.push(inside(8, &["once:with-fabric", "two"]).with(SMALL_CHUNKS));
        // So little staging that transfers take turns with it.
        jobs.push(inside(8, &["two"]).with(SMALL_CHUNKS).with(("CROSSMESH_STAGING", "2KiB")));
        jobs.push(inside(8, &["gone"]).failing("streams went on"));
        jobs.push(fabric(8, &["inside:with-fabric"], 2, 0));
        jobs.push(fabric(8, &["inside:on-gpus"], 2, 1).with(("CROSSMESH_GPU_HANDLES", "local")));
        let staged = |ranks, why: &str, fabrics| fabric(ranks, &[&format!("staged:{why}")], 2, fabrics);
        jobs.push(fabric(8, &["sometimes:share GPUs"], 2, 1).with(("STAND_IN_DEVICES", "2")));
        jobs.push(staged(2, "CROSSMESH_GPU_HANDLES is local", 1).with(("CROSSMESH_GPU_HANDLES", "local")));
        jobs.push(staged(2, "are in different domains", 0));
        jobs.push(staged(2, "are in different domains", 1).with(TWO_DOMAINS));
        jobs.push(staged(2, "CUDA_ERROR_NOT_PERMITTED", 1).with(imex("refused")));
        jobs.push(staged(2, "cannot map memory of rank 1 on host tray1", 1).with(imex("split")));
        jobs
    }

    fn faults() -> Vec<Job> {
        let fault = |case| Self::new(2, "faults", &[case]);
        let mut jobs = vec![Self::new(2, "faults", &faults::NAMES)];
        jobs.push(fault("killed").failing("rank 1"));
        jobs.push(fault("killed").with(OFF).failing("rank 1"));
        jobs.push(fault("killed").with(TWO_DOMAINS).failing("rank 1"));
        jobs.push(Self::new(4, "faults", &["killed"]).failing("rank 1"));
        jobs.push(fault("after"));
        jobs.push(fault("after").with(("CROSSMESH_CACHE", "/proc/nobody-writes-here")));
        let missing = fault("no-compiler").with(("CROSSMESH_NVRTC", "/nonexistent/libnvrtc.so"));
        jobs.push(missing.with(("CROSSMESH_CACHE", "/nonexistent")));
        for case in ["damaged-kernels", "newer-compiler"] {
            jobs.push(Self { fresh_cache: true, ..fault(case) });
        }
        jobs
    }

    /// Runs it; its outcomes.
    pub(crate) fn run(&self) -> Vec<Outcome> {
        let settings: Vec<String> = self.environment.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let name = format!("{} ranks, {} {}{}", self.ranks, self.kind, self.cases.join(" "), settings.concat());
        println!("== {name}");
        let began = Instant::now();
        let mut command = Command::new("timeout");
        let limit = if self.hosts.is_some() { LIMIT_ON_HOSTS } else { LIMIT };
        command.args(["-k", "5", &limit.as_secs().to_string()]).arg(command_path());
        command.args(["run", "--starter", "local", "-n", &self.ranks.to_string(), "--prefix", "never", "--"]);
        let this = std::env::current_exe().expect("this binary has a path").display().to_string();
        let setting = self.at_rank_1.map(|(name, value)| format!("{name}={value}"));
        let before = setting.map(|setting| ["sh".into(), "-c".into(), AT_RANK_1.into(), "sh".into(), setting]);
        let rank = [this, "rank".into(), self.kind.into()];
        let program: Vec<String> = before.into_iter().flatten().chain(rank).chain(self.cases.iter().cloned()).collect();
        let hosts = self.hosts.map(|(count, fabrics)| (Hosts::new(count), fabrics));
        match &hosts {
            None => command.args(&program),
            Some((hosts, fabrics)) => {
                hosts.enter(&mut command, &program);
                if *fabrics > 0 {
                    hosts.join(*fabrics);
                }
                command.env("STAND_IN_FABRIC", hosts.fabric())
            }
        };
        command.envs(self.environment.iter().copied());
        let cache = self.fresh_cache.then(|| tempfile::tempdir().expect("a folder for the cache"));
        command.envs(cache.iter().map(|cache| ("CROSSMESH_CACHE", cache.path().join("kernels"))));
        let output = command.output().expect("timeout can be started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut outcomes: Vec<Outcome> = text
            .lines()
            .filter_map(|line| line.split_once(MARK))
            .map(|(_, json)| serde_json::from_str(json).expect("a result is JSON"))
            .collect();
        for outcome in &mut outcomes {
            outcome.case.push_str(&settings.concat().replace("CROSSMESH_", ""));
            println!("{}", outcome.line());
        }
        let as_expected = match self.expects {
            None => output.status.success() && outcomes.len() == self.cases.len().max(1),
            Some(words) => {
                !output.status.success() && errors.contains(words) && !NEVER.iter().any(|never| errors.contains(never))
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        println!("   {seconds:.1} s");
        if !as_expected {
            println!("{text}\n{errors}");
            outcomes.push(Outcome::failed(&name, self.ranks, format!("exit {:?}", output.status.code())));
        } else if self.expects.is_some() {
            outcomes.push(Outcome::passed(&name, self.ranks).with("seconds", seconds));
        }
        outcomes
    }
}

/// The `crossmesh` command: named, or beside this binary or its folder.
fn command_path() -> PathBuf {
    let named = std::env::var_os("CROSSMESH_TEST_BIN").map(PathBuf::from);
    let this = std::env::current_exe().expect("this binary has a path");
    let beside = this.ancestors().skip(1).take(2).map(|folder| folder.join("crossmesh")).find(|path| path.is_file());
    named.or(beside).expect("no crossmesh command: build it, or set CROSSMESH_TEST_BIN")
}
