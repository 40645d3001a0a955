//! `crossmesh run`: starts the ranks of a program, shows what they print, ends the job as a whole.
//!
//! In: ranks, roles and a program. Out: the job's output, the first cause of a failure, its exit code. Guarantee:
//! nothing is left running; the first failure is named once; the exit code is that of the first cause.
//!
//! ```text
//! arguments ─► JobPlan ─► StarterCommand        pure: plan, starter, environment, words, dry_run
//!                              │ starts N agents (this binary), which start the program
//! agents ─► Event ─► Supervisor ─► Action       pure: supervise, protocol, lines
//!                              │ at the end
//!                           Record ─► Verdict   pure: verdict
//! ```
//!
//! Effects: `launch` (the loop), `gate`, `connection`, `output`, `starter_process`, `signals`, `host`, `detect`; in
//! the other processes `agent`, `bindings`, `rank_process`, `program`.

pub(crate) mod agent;
mod bindings;
mod connection;
mod detect;
mod dry_run;
mod environment;
mod error;
mod gate;
mod host;
mod launch;
mod lines;
mod output;
mod plan;
pub(crate) mod program;
mod protocol;
mod rank_process;
mod rendezvous;
mod signals;
mod starter;
mod starter_process;
mod supervise;
mod verdict;
mod words;

use crate::failure::Failure;
use crossmesh::base::env;
use crossmesh::topology::interface;
use error::RunError;
use plan::{JobPlan, Role};
use starter::{Bind, StartRequest, Starter, StarterCommand, StarterOptions};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// `CROSSMESH_INIT_TIMEOUT` when it is not set.
const INIT_LIMIT: Duration = Duration::from_secs(120);

const USAGE: &str = "crossmesh run [OPTIONS] -n N -- PROGRAM [ARGUMENTS]
       crossmesh run [OPTIONS] --role NAME=COUNT [--role NAME=COUNT] -- PROGRAM [ARGUMENTS]";

/// Arguments of `crossmesh run`.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Arguments {
    /// Number of ranks; may be left out when roles count them
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: Option<u32>,
    /// A role and its number of ranks; the first role has the first ranks
    #[arg(long = "role", value_name = "NAME=COUNT")]
    roles: Vec<Role>,
    /// Cut the ranks into so many contiguous domains
    #[arg(long, value_name = "N")]
    domains: Option<u32>,
    /// What starts the ranks
    #[arg(long, value_enum, default_value_t)]
    starter: detect::Choice,
    /// Time for the other ranks to end by themselves after the first failure
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    grace: Duration,
    /// Longest duration of the whole job
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Hosts, passed on to the starter
    #[arg(long, value_name = "LIST")]
    host: Option<String>,
    /// File with hosts, passed on to the starter
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Further arguments of the starter, in one text
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true, hide_default_value = true)]
    starter_args: String,
    /// Where ranks may run
    #[arg(long, value_enum, default_value_t)]
    bind: Bind,
    /// Show where each rank runs, in one table on standard error
    #[arg(long)]
    report_bindings: bool,
    /// Also write what each rank prints to rank-N.out and rank-N.err here
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// What stands in front of every line that ranks print
    #[arg(long, value_enum, default_value_t)]
    prefix: Prefix,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What stands in front of every line that ranks print.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Prefix {
    /// [role:rank host]
    #[default]
    Auto,
    /// Nothing: lines as they are
    Never,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok().and_then(|number| Duration::try_from_secs_f64(number).ok());
    // Sums of times must not overflow.
    number.filter(|duration| duration.as_secs() <= 1 << 32).ok_or_else(|| "give seconds, such as 10 or 0.5".to_string())
}

/// What is settled before anything is started.
#[derive(Debug)]
struct Prepared {
    plan: JobPlan,
    starter: Starter,
    command: StarterCommand,
    exported: Vec<String>,
    /// Whether all ranks run on this host.
    local: bool,
}

/// Runs a job; the exit code is that of its first cause.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    for name in env::unknown() {
        log::warn!("{name} is set and is no variable of crossmesh; crossmesh env lists those that are");
    }
    let prepared = prepare(arguments)?;
    if arguments.dry_run {
        let text = dry_run::render(&prepared.plan, prepared.starter.name(), &prepared.command, &prepared.exported);
        io::stdout().write_all(text.as_bytes()).map_err(|cause| Failure::new(1, cause))?;
        return Ok(ExitCode::SUCCESS);
    }
    let verdict = execute(arguments, prepared)?;
    let mut report = verdict.lines.join("\n");
    report.extend((!report.is_empty()).then_some('\n'));
    // Nobody may be left to read it; the exit code says the same.
    let _ = io::stderr().write_all(report.as_bytes());
    Ok(ExitCode::from(verdict.exit_code))
}

fn prepare(arguments: &Arguments) -> Result<Prepared, RunError> {
    let plan = JobPlan::new(arguments.ranks, arguments.roles.clone(), arguments.domains)?;
    let words = words::split(&arguments.starter_args)
        .ok_or_else(|| RunError::StarterArguments { text: arguments.starter_args.clone() })?;
    let in_allocation = std::env::var_os("SLURM_JOB_ID").is_some();
    let (starter, path) = detect::detect(arguments.starter, in_allocation)?;
    if starter == Starter::Local {
        let given = [
            ("--host", arguments.host.is_some()),
            ("--hostfile", arguments.hostfile.is_some()),
            ("--starter-args", !words.is_empty()),
        ];
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
            return Err(RunError::LocalOnly { option });
        }
    }
    let elsewhere = in_allocation || arguments.host.is_some() || arguments.hostfile.is_some() || !words.is_empty();
    let names: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    let exported = environment::exported(&names, &[env::LAUNCHER.name, env::LAUNCHER_KEY.name, env::UNIQUE_ID.name]);
    let request = StartRequest {
        size: plan.size(),
        crossmesh: std::env::current_exe().map_err(|source| RunError::System { what: "find this program", source })?,
        program: arguments.program.clone(),
        options: StarterOptions {
            bind: if starter_binds(&words) { Bind::None } else { arguments.bind },
            host: arguments.host.clone(),
            hostfile: arguments.hostfile.clone(),
            arguments: words,
        },
        cores: host::cores(),
        tasks: std::env::var("SLURM_NTASKS").ok().and_then(|tasks| tasks.parse().ok()),
        root: nix::unistd::geteuid().is_root(),
        exported: exported.clone(),
    };
    let command = starter::command(starter, path, &request);
    Ok(Prepared { plan, starter, command, exported, local: starter == Starter::Local || !elsewhere })
}

/// Whether the caller has the starter bind.
fn starter_binds(words: &[String]) -> bool {
    let options = ["--bind-to", "-bind-to", "--cpu-bind", "--map-by", "-map-by"];
    words.iter().any(|word| options.iter().any(|option| word.split('=').next() == Some(option)))
}

fn execute(arguments: &Arguments, prepared: Prepared) -> Result<verdict::Verdict, RunError> {
    let Prepared { plan, starter, command, local, .. } = prepared;
    let system = |what| move |source| RunError::System { what, source };
    let began = Instant::now();
    let init = env::seconds(env::INIT_TIMEOUT)?.unwrap_or(INIT_LIMIT);
    host::raise_descriptor_limit(plan.size());
    // Before any thread, so that none of them takes a signal.
    let signals = signals::Signals::block().map_err(|error| system("read signals")(error.into()))?;
    let output = output::Output::new(plan.size(), arguments.log_dir.clone())
        .map_err(|source| RunError::Output { directory: arguments.log_dir.clone(), source })?;
    // Also of a local job, whose ranks could only fail on a choice that is not there.
    let reachable = interface::addresses(env::text(env::INTERFACE).as_deref())?;
    let addresses: Vec<IpAddr> = if local { vec![Ipv4Addr::LOCALHOST.into()] } else { reachable };
    let key = protocol::LauncherKey::random().map_err(|error| system("make a key")(error.into()))?;
    let key_text = key.to_hex();
    let gate = gate::Gate::open(&addresses, key, plan.size()).map_err(system("listen for agents"))?;
    let rendezvous = rendezvous::serve(plan.size(), local).map_err(system("serve a rendezvous"))?;
    let variables = [
        (env::LAUNCHER.name, gate.address_text().map_err(system("listen for agents"))?),
        (env::LAUNCHER_KEY.name, key_text),
        (env::UNIQUE_ID.name, rendezvous.unique_id.clone()),
    ];
    let names: Vec<OsString> = std::env::vars_os().map(|(name, _)| name).collect();
    let removed = environment::inherited(&names);
    let process = signals
        .unblocked(|| starter_process::StarterProcess::start(starter, &command, plan.size(), &removed, &variables))
        .map_err(|error| system("unblock signals")(error.into()))?
        .map_err(|source| RunError::Start { program: command.program.clone(), source })?;
    let limits = supervise::Limits { init, grace: arguments.grace, timeout: arguments.timeout };
    let show = launch::Show {
        prefix: arguments.prefix == Prefix::Auto,
        terminal: io::stderr().is_terminal(),
        bindings: arguments.report_bindings,
    };
    let parts = launch::Parts { plan, limits, starter, signals, gate, process, output, show, began };
    launch::launch(parts).map_err(system("go on watching the job"))
}
