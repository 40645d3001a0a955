//! How each starter is asked for the ranks of a job.
//!
//! In: a job, the starter's path, the caller's options. Out: a [`StarterCommand`]: program, arguments, environment.
//! Guarantee: pure; no secret is ever among the arguments; the starter is told not to end the job by itself, because
//! the launcher does.

use clap::ValueEnum;
use crossmesh::base::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// What starts the per-rank agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starter {
    OpenMpi,
    Mpich,
    Srun,
    Local,
}

impl Starter {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
            Self::Srun => "srun",
            Self::Local => "local",
        }
    }

    /// What messages call it.
    pub(crate) fn subject(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI's mpirun",
            Self::Mpich => "MPICH's mpirun",
            Self::Srun => "srun",
            Self::Local => "the local starter",
        }
    }

    /// The environment variable that tells an agent its rank.
    pub(crate) fn rank_variable(self) -> &'static str {
        match self {
            Self::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Self::Mpich => "PMI_RANK",
            Self::Srun => "SLURM_PROCID",
            Self::Local => env::RANK.name,
        }
    }
}

/// Where ranks may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Bind {
    /// Near the rank's GPU and NICs, on cores of its own where there are two or more for each
    #[default]
    Near,
    /// Each on one core, in turn
    Core,
    /// Wherever the starter puts them
    None,
}

impl Bind {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Core => "core",
            Self::None => "none",
        }
    }
}

/// What the caller passes on to the starter.
#[derive(Debug, Clone, Default)]
pub(crate) struct StarterOptions {
    pub(crate) bind: Bind,
    pub(crate) host: Option<String>,
    pub(crate) hostfile: Option<PathBuf>,
    /// Further arguments, already split.
    pub(crate) arguments: Vec<String>,
}

/// What is to be started.
#[derive(Debug, Clone)]
pub(crate) struct StartRequest {
    pub(crate) size: u32,
    /// This binary.
    pub(crate) crossmesh: PathBuf,
    /// The user's program and its arguments.
    pub(crate) program: Vec<OsString>,
    pub(crate) options: StarterOptions,
    /// Cores of this host, for the starters that refuse more ranks than cores.
    pub(crate) cores: u32,
    /// Tasks of the Slurm allocation, which srun refuses to exceed unless told.
    pub(crate) tasks: Option<u32>,
    /// Whether the caller is root, which Open MPI refuses unless told twice.
    pub(crate) root: bool,
    /// Names of the variables that every agent must find.
    pub(crate) exported: Vec<String>,
}

/// A command, ready to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StarterCommand {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    /// Settings of the starter itself, never secret.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
}

/// The command that starts all agents through `starter` at `path`; for the local starter, the command of one agent.
pub(crate) fn command(starter: Starter, path: PathBuf, request: &StartRequest) -> StarterCommand {
    let mut arguments: Vec<OsString> = match starter {
        Starter::OpenMpi => open_mpi(request),
        Starter::Mpich => mpich(request),
        Starter::Srun => srun(request),
        Starter::Local => Vec::new(),
    };
    let environment = match starter {
        Starter::OpenMpi if request.root => {
            vec![("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]
        }
        _ => Vec::new(),
    };
    let program = if starter == Starter::Local {
        request.crossmesh.clone()
    } else {
        arguments.extend(request.options.arguments.iter().map(OsString::from));
        arguments.push(request.crossmesh.clone().into());
        path
    };
    arguments.extend(["rank-agent", "--rank-variable", starter.rank_variable()].map(OsString::from));
    arguments.extend(["--bind", request.options.bind.name()].map(OsString::from));
    arguments.push("--".into());
    arguments.extend(request.program.iter().cloned());
    StarterCommand { program, arguments, environment }
}

fn open_mpi(request: &StartRequest) -> Vec<OsString> {
    let mut arguments = texts(&["-n", &request.size.to_string(), "--enable-recovery"]);
    if request.size > request.cores {
        arguments.extend(texts(&["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]));
    }
    // The agents bind, which know where GPUs and NICs are.
    arguments.extend(texts(&["--bind-to", "none"]));
    hosts(&mut arguments, &request.options, "--host", "--hostfile");
    for name in &request.exported {
        arguments.extend(texts(&["-x", name]));
    }
    arguments
}

fn mpich(request: &StartRequest) -> Vec<OsString> {
    let mut arguments = texts(&["-n", &request.size.to_string(), "-disable-auto-cleanup", "-genvall"]);
    arguments.extend(texts(&["-bind-to", "none"]));
    hosts(&mut arguments, &request.options, "-hosts", "-f");
    arguments
}

/// Lines of starters that mean nothing to a user of a job that goes well.
pub(crate) fn is_noise(line: &str) -> bool {
    const NOISE: [&str; 2] = ["lacks support for cpu binding", "PMIX ERROR"];
    line.is_empty() || NOISE.iter().any(|noise| line.contains(noise))
}

/// `--mpi` is left to the caller when given: `pmix` and `pmi2` serve programs that call MPI_Init.
fn srun(request: &StartRequest) -> Vec<OsString> {
    let mut arguments =
        texts(&["-n", &request.size.to_string(), "--kill-on-bad-exit=0", "--wait=0", "--export=ALL", "--overlap"]);
    let given = |prefix: &str| request.options.arguments.iter().any(|argument| argument.starts_with(prefix));
    if request.tasks.is_some_and(|tasks| tasks < request.size) {
        arguments.push("--overcommit".into());
    }
    if !given("--mpi") {
        arguments.push("--mpi=none".into());
    }
    if !given("--cpu-bind") {
        arguments.push("--cpu-bind=none".into());
    }
    hosts(&mut arguments, &request.options, "--nodelist", "--nodefile");
    arguments
}

fn hosts(arguments: &mut Vec<OsString>, options: &StarterOptions, host: &str, hostfile: &str) {
    if let Some(list) = &options.host {
        arguments.extend(texts(&[host, list]));
    }
    if let Some(file) = &options.hostfile {
        arguments.push(hostfile.into());
        arguments.push(file.into());
    }
}

fn texts(arguments: &[&str]) -> Vec<OsString> {
    arguments.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(options: StarterOptions) -> StartRequest {
        StartRequest {
            size: 4,
            crossmesh: "/opt/crossmesh".into(),
            program: vec!["prog".into(), "--flag".into(), "a b".into()],
            options,
            cores: 2,
            tasks: Some(4),
            root: true,
            exported: vec!["CROSSMESH_LAUNCHER".into(), "CROSSMESH_LAUNCHER_KEY".into()],
        }
    }

    fn line(starter: Starter, request: &StartRequest) -> String {
        let command = command(starter, "/usr/bin/starter".into(), request);
        let arguments: Vec<_> = command.arguments.iter().map(|argument| argument.to_string_lossy()).collect();
        format!("{} {}", command.program.display(), arguments.join(" "))
    }

    #[test]
    fn plain_commands() {
        let request = request(StarterOptions::default());
        let table = [
            (
                Starter::OpenMpi,
                "/usr/bin/starter -n 4 --enable-recovery --oversubscribe --mca mpi_yield_when_idle 1 --bind-to none \
                 -x CROSSMESH_LAUNCHER -x CROSSMESH_LAUNCHER_KEY \
                 /opt/crossmesh rank-agent --rank-variable OMPI_COMM_WORLD_RANK --bind near -- prog --flag a b",
            ),
            (
                Starter::Mpich,
                "/usr/bin/starter -n 4 -disable-auto-cleanup -genvall -bind-to none \
                 /opt/crossmesh rank-agent --rank-variable PMI_RANK --bind near -- prog --flag a b",
            ),
            (
                Starter::Srun,
                "/usr/bin/starter -n 4 --kill-on-bad-exit=0 --wait=0 --export=ALL --overlap --mpi=none --cpu-bind=none \
                 /opt/crossmesh rank-agent --rank-variable SLURM_PROCID --bind near -- prog --flag a b",
            ),
            (Starter::Local, "/opt/crossmesh rank-agent --rank-variable CROSSMESH_RANK --bind near -- prog --flag a b"),
        ];
        for (starter, expected) in table {
            assert_eq!(line(starter, &request), expected);
        }
    }

    #[test]
    fn options_are_passed_on() {
        let mut request = request(StarterOptions {
            bind: Bind::Core,
            host: Some("a,b".into()),
            hostfile: Some("hosts.txt".into()),
            arguments: vec!["--mpi=pmix".into(), "-v".into()],
        });
        request.cores = 4;
        request.tasks = Some(3);
        let table = [
            (Starter::OpenMpi, "-n 4 --enable-recovery --bind-to none --host a,b --hostfile hosts.txt -x"),
            (Starter::Mpich, "-genvall -bind-to none -hosts a,b -f hosts.txt --mpi=pmix -v /opt/crossmesh"),
            (
                Starter::Srun,
                "--overlap --overcommit --cpu-bind=none --nodelist a,b --nodefile hosts.txt --mpi=pmix -v /opt/crossmesh",
            ),
            (Starter::Local, "CROSSMESH_RANK --bind core -- prog"),
        ];
        for (starter, expected) in table {
            let line = line(starter, &request);
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn noise_is_known() {
        for (line, noise) in [
            ("", true),
            ("srun: cluster configuration lacks support for cpu binding", true),
            ("[n1:7] PMIX ERROR: UNREACHABLE in file server.c at line 1", true),
            ("srun: job 7 queued and waiting for resources", false),
        ] {
            assert_eq!(is_noise(line), noise, "{line}");
        }
    }

    #[test]
    fn open_mpi_is_told_that_root_is_meant() {
        let mut request = request(StarterOptions::default());
        let environment = |starter, request: &StartRequest| command(starter, PathBuf::new(), request).environment.len();
        assert_eq!(environment(Starter::OpenMpi, &request), 2);
        assert_eq!(environment(Starter::Mpich, &request), 0);
        request.root = false;
        assert_eq!(environment(Starter::OpenMpi, &request), 0);
    }
}
