//! The launcher at work: one loop over signals, the starter, the gate and the agents.
//!
//! In: a planned job with its starter running. Out: its verdict. Guarantee: one thread decides, through the pure
//! [`Supervisor`]; no wait is longer than its next deadline; a slow terminal delays the ranks that print, and neither
//! signals nor deadlines.

use super::bindings::Bindings;
use super::connection::{Connection, ConnectionError};
use super::gate::{Admitted, Gate};
use super::output::Output;
use super::plan::JobPlan;
use super::protocol::{FromAgent, FromLauncher, Welcome};
use super::signals::Signals;
use super::starter::{Starter, is_noise};
use super::starter_process::StarterProcess;
use super::supervise::{Action, Event, KILL_DELAY, Limits, Supervisor};
use super::verdict::{Evidence, Verdict, verdict};
use crossmesh::base::{Deadline, env};
use nix::libc::{SIGCHLD, SIGINT, SIGTERM};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Longest sleep of the loop, whatever the deadlines say.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// How often a full output queue is looked at.
const OUTPUT_PAUSE: Duration = Duration::from_millis(5);
/// How long the starter may take to end once all agents were told goodbye.
const STARTER_LIMIT: Duration = Duration::from_secs(10);

/// How long the starter's words are held back before the start: when all goes well, or when it fails at once and
/// the report shows them, they need not be shown on the way.
const HOLD_BACK: Duration = Duration::from_secs(5);

/// How the job is seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Show {
    /// Whether lines of ranks say whose they are.
    pub(crate) prefix: bool,
    /// Whether standard error is a terminal.
    pub(crate) terminal: bool,
    /// Whether the table of bindings is shown.
    pub(crate) bindings: bool,
}

/// What a launch is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) plan: JobPlan,
    pub(crate) limits: Limits,
    pub(crate) starter: Starter,
    pub(crate) signals: Signals,
    pub(crate) gate: Gate,
    pub(crate) process: StarterProcess,
    pub(crate) output: Output,
    pub(crate) show: Show,
    /// When the launcher began; all times of the job count from here.
    pub(crate) began: Instant,
}

#[derive(Debug)]
struct Agent {
    connection: Connection,
    /// Which kernel's clock it reads.
    boot: String,
    host: String,
}

#[derive(Debug)]
struct Launch {
    parts: Parts,
    supervisor: Supervisor,
    agents: Vec<Option<Agent>>,
    /// Lines of the starter that are not shown yet.
    held_back: Vec<String>,
    /// Launcher time minus agent time, in nanoseconds, by kernel; the smallest seen, which is the least delayed.
    clocks: HashMap<String, i128>,
    bindings: Bindings,
}

/// What poll(2) found.
#[derive(Debug, Default)]
struct Ready {
    signals: bool,
    starter: bool,
    gate: bool,
    agents: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Source {
    Signals,
    Starter,
    Gate,
    Agent(u32),
}

/// Sees the job through to its end.
pub(crate) fn launch(parts: Parts) -> io::Result<Verdict> {
    let size = parts.plan.size();
    let supervisor = Supervisor::new(size, parts.limits);
    let agents = (0..size).map(|_| None).collect();
    let bindings = Bindings::new(size, parts.show.bindings);
    let mut launch = Launch { parts, supervisor, agents, held_back: Vec::new(), clocks: HashMap::new(), bindings };
    // It was started with signals unblocked, so its end may have passed unseen.
    launch.look_at_starter();
    while !launch.supervisor.is_over() {
        launch.turn()?;
    }
    launch.finish()?;
    let verdict = launch.verdict();
    launch.drain_output()?;
    Ok(verdict)
}

impl Launch {
    fn now(&self) -> Duration {
        self.parts.began.elapsed()
    }

    /// One round of the loop.
    fn turn(&mut self) -> io::Result<()> {
        let ready = self.wait()?;
        if ready.starter || !self.held_back.is_empty() {
            self.read_starter();
        }
        if ready.gate {
            self.admit();
        }
        for rank in ready.agents {
            self.hear(rank);
        }
        if ready.signals {
            self.take_signals()?;
        }
        let actions = self.supervisor.tick(self.now());
        self.act(&actions);
        self.flush();
        Ok(())
    }

    /// Waits until there is something to do. Agents are not heard while nobody takes what their ranks print.
    fn wait(&self) -> io::Result<Ready> {
        let hear = self.parts.output.has_room();
        let mut entries = vec![PollFd::new(self.parts.signals.as_fd(), PollFlags::POLLIN)];
        let mut sources = vec![Source::Signals];
        let readable = self.parts.process.readable().into_iter().map(|output| (output, Source::Starter));
        for (descriptor, source) in readable.chain(self.parts.gate.readable().map(|door| (door, Source::Gate))) {
            entries.push(PollFd::new(descriptor, PollFlags::POLLIN));
            sources.push(source);
        }
        for (rank, agent) in (0u32..).zip(&self.agents).filter_map(|(rank, agent)| Some((rank, agent.as_ref()?))) {
            let mut events = PollFlags::empty();
            events.set(PollFlags::POLLIN, hear);
            events.set(PollFlags::POLLOUT, agent.connection.backlog() > 0);
            if !events.is_empty() {
                entries.push(PollFd::new(agent.connection.as_fd(), events));
                sources.push(Source::Agent(rank));
            }
        }
        match poll(&mut entries, self.poll_timeout(hear)) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = Ready::default();
        for (entry, source) in entries.iter().zip(sources).filter(|(entry, _)| entry.any() == Some(true)) {
            match source {
                Source::Signals => ready.signals = true,
                Source::Starter => ready.starter = true,
                Source::Gate => ready.gate = true,
                Source::Agent(rank) if hear || entry.revents().is_some_and(is_broken) => ready.agents.push(rank),
                Source::Agent(_) => {}
            }
        }
        Ok(ready)
    }

    fn poll_timeout(&self, hear: bool) -> PollTimeout {
        let longest = if hear { LONGEST_SLEEP } else { OUTPUT_PAUSE };
        let deadline = self.supervisor.next_deadline().map(|deadline| deadline.saturating_sub(self.now()));
        // Rounded up, so that the deadline has passed when poll returns.
        let milliseconds = deadline.unwrap_or(longest).min(longest).as_millis() as i32 + 1;
        PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::ZERO)
    }

    /// The starter's own words are shown, but not the noise that it makes about a job that is being ended.
    fn read_starter(&mut self) {
        let name = self.parts.starter.name();
        let ending = self.supervisor.is_ending();
        let held_back = &mut self.held_back;
        self.parts.process.read(|line| match ending || is_noise(line) {
            true => log::debug!("{name}: {line}"),
            false => held_back.push(line.to_string()),
        });
        let due = self.supervisor.record().started.is_some() || self.parts.began.elapsed() >= HOLD_BACK;
        if due && !ending {
            self.held_back.drain(..).for_each(|line| self.parts.output.starter_line(name, &line));
        }
    }

    fn admit(&mut self) {
        let Parts { gate, plan, limits, show, .. } = &mut self.parts;
        let terminal = u8::from(show.terminal).to_string();
        let grace_milliseconds = u64::try_from(limits.grace.as_millis()).unwrap_or(u64::MAX);
        let admitted = gate.turn(|rank| Welcome {
            grace_milliseconds,
            environment: plan
                .environment(rank)
                .into_iter()
                .chain([(env::TERMINAL, terminal.clone())])
                .map(|(variable, value)| (variable.name.to_string(), value))
                .collect(),
        });
        for Admitted { connection, hello } in admitted {
            let rank = hello.rank;
            if self.agents[rank as usize].is_some() {
                log::warn!("dropped a second rank {rank}, process {} on host {}", hello.pid, hello.host);
                continue;
            }
            log::debug!("rank {rank} is process {} on host {}", hello.pid, hello.host);
            let offset = self.now().as_nanos() as i128 - i128::from(hello.clock);
            let clock = self.clocks.entry(hello.boot.clone()).or_insert(offset);
            *clock = offset.min(*clock);
            let prefix = if self.parts.show.prefix { self.parts.plan.prefix(rank, &hello.host) } else { String::new() };
            self.parts.output.introduce(rank, hello.host.clone(), prefix);
            self.agents[rank as usize] = Some(Agent { connection, boot: hello.boot, host: hello.host });
            self.handle(Event::Joined(rank));
        }
    }

    /// Takes what `rank` sent.
    fn hear(&mut self, rank: u32) {
        let Some(agent) = &mut self.agents[rank as usize] else { return };
        let open = agent.connection.fill();
        loop {
            let Some(agent) = &mut self.agents[rank as usize] else { return };
            match agent.connection.receive() {
                Ok(Some(message)) => self.take(rank, message),
                Ok(None) => break,
                Err(error) => return self.lose(rank, &error),
            }
        }
        match open {
            Ok(true) => {}
            Ok(false) => self.lose(rank, &ConnectionError::Io(io::ErrorKind::ConnectionAborted.into())),
            Err(error) => self.lose(rank, &error),
        }
    }

    fn take(&mut self, rank: u32, message: FromAgent) {
        match message {
            FromAgent::Line(stream, line) => {
                let now = self.now();
                self.parts.output.line(rank, stream, &line, now);
            }
            FromAgent::Ended { ending, clock } => {
                let at = self.time_of(rank, clock);
                log::debug!("rank {rank} ended: {ending:?} at {at:?}");
                self.handle(Event::Ended { rank, ending, at });
            }
            FromAgent::Drained => self.handle(Event::Drained(rank)),
            FromAgent::Bound(json) => self.report_binding(rank, &json),
            FromAgent::Hello { .. } => log::warn!("rank {rank} said hello twice"),
        }
    }

    /// Shows the table of bindings once all ranks have told theirs.
    fn report_binding(&mut self, rank: u32, json: &[u8]) {
        let host = |agent: &Option<Agent>| agent.as_ref().map(|agent| agent.host.clone()).unwrap_or_default();
        let hosts: Vec<String> = self.agents.iter().map(host).collect();
        if let Some(table) = self.bindings.take(rank, json, &self.parts.plan, &hosts) {
            // Nobody may be left to read it.
            let _ = io::stderr().write_all(table.as_bytes());
        }
    }

    /// Starts the programs; each agent is told how many share its kernel, and so its processors.
    fn start_programs(&mut self) {
        let mut ranks_of: HashMap<String, u32> = HashMap::new();
        for agent in self.agents.iter().flatten() {
            *ranks_of.entry(agent.boot.clone()).or_default() += 1;
        }
        let mut started: HashMap<String, u32> = HashMap::new();
        for agent in self.agents.iter_mut().flatten() {
            let local = started.entry(agent.boot.clone()).or_default();
            let ranks = ranks_of.get(&agent.boot).copied().unwrap_or(1);
            agent.connection.queue(&FromLauncher::Start { local: *local, ranks });
            *local += 1;
        }
    }

    /// Launcher time of a time of this rank's clock.
    fn time_of(&self, rank: u32, clock: u64) -> Duration {
        let agent = self.agents[rank as usize].as_ref();
        let offset = agent.and_then(|agent| self.clocks.get(&agent.boot)).copied().unwrap_or_default();
        Duration::from_nanos(u64::try_from(i128::from(clock) + offset).unwrap_or_default())
    }

    fn lose(&mut self, rank: u32, error: &ConnectionError) {
        log::debug!("the agent of rank {rank} is gone: {error}");
        self.agents[rank as usize] = None;
        self.handle(Event::Disconnected(rank));
    }

    fn take_signals(&mut self) -> io::Result<()> {
        for signal in self.parts.signals.arrived()? {
            if signal != SIGCHLD {
                self.handle(Event::Signal(signal));
                continue;
            }
            self.look_at_starter();
        }
        Ok(())
    }

    fn look_at_starter(&mut self) {
        let begun = self.supervisor.record().started.is_some();
        if let Some(end) = self.parts.process.ended(begun) {
            // Its last words first.
            self.read_starter();
            self.handle(Event::StarterEnded { how: end.how, code: end.code });
        }
    }

    fn handle(&mut self, event: Event) {
        let actions = self.supervisor.handle(event, self.now());
        self.act(&actions);
    }

    fn act(&mut self, actions: &[Action]) {
        for action in actions {
            log::debug!("to all ranks: {action:?}");
            match *action {
                Action::Start => self.start_programs(),
                Action::Forward(signal) => self.tell_all(&FromLauncher::Forward(signal)),
                Action::Terminate => self.tell_all(&FromLauncher::Terminate),
                Action::Kill => self.tell_all(&FromLauncher::Kill),
            }
        }
    }

    fn tell_all(&mut self, message: &FromLauncher) {
        self.agents.iter_mut().flatten().for_each(|agent| agent.connection.queue(message));
    }

    fn flush(&mut self) {
        for rank in 0..self.parts.plan.size() {
            let Some(agent) = &mut self.agents[rank as usize] else { continue };
            if agent.connection.backlog() > 0
                && let Err(error) = agent.connection.flush()
            {
                self.lose(rank, &ConnectionError::Io(error));
            }
        }
    }

    /// Lets the agents go and waits for the starter; one that does not end is ended.
    fn finish(&mut self) -> io::Result<()> {
        self.tell_all(&FromLauncher::Goodbye);
        self.flush();
        let started = self.supervisor.record().started.is_some();
        let patience = if started { STARTER_LIMIT } else { Duration::ZERO };
        for (limit, then) in
            [(patience, Some(Signal::SIGTERM)), (KILL_DELAY, Some(Signal::SIGKILL)), (KILL_DELAY, None)]
        {
            if self.starter_ends_within(limit)? {
                break;
            }
            match then {
                Some(signal) => self.parts.process.signal(signal),
                None => log::error!("{} does not end", self.parts.starter.subject()),
            }
        }
        self.agents.clear();
        if self.parts.gate.strays() > 0 {
            log::warn!("{} connections could not prove this job's launcher key", self.parts.gate.strays());
        }
        Ok(())
    }

    fn starter_ends_within(&mut self, limit: Duration) -> io::Result<bool> {
        let deadline = Deadline::after(limit);
        loop {
            self.read_starter();
            if let Some(end) = self.parts.process.ended(true) {
                self.read_starter();
                if self.supervisor.record().cause.is_none() && end.code != 0 {
                    log::warn!("{} ended with {} after all ranks had succeeded", self.parts.starter.subject(), end.how);
                }
                return Ok(true);
            }
            let impatient = self.parts.signals.arrived()?.iter().any(|&signal| signal == SIGINT || signal == SIGTERM);
            if impatient || deadline.expired() {
                return Ok(false);
            }
            let mut entries = vec![PollFd::new(self.parts.signals.as_fd(), PollFlags::POLLIN)];
            entries.extend(self.parts.process.readable().map(|output| PollFd::new(output, PollFlags::POLLIN)));
            let milliseconds = deadline.remaining().min(LONGEST_SLEEP).as_millis() as i32 + 1;
            match poll(&mut entries, PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::ZERO)) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn verdict(&self) -> Verdict {
        verdict(&Evidence {
            plan: &self.parts.plan,
            limits: self.parts.limits,
            record: self.supervisor.record(),
            traces: &self.parts.output.traces(),
            starter: self.parts.starter.subject(),
            starter_lines: &self.parts.process.last_lines(),
        })
    }

    /// A reader that is slow, such as a pager, has all the time that the job has; an interrupt ends the wait.
    fn drain_output(&mut self) -> io::Result<()> {
        while !self.parts.output.drained(Duration::from_millis(100)) {
            let interrupted = self.parts.signals.arrived()?.iter().any(|&signal| signal == SIGINT || signal == SIGTERM);
            let late = self.parts.limits.timeout.is_some_and(|limit| self.now() >= limit + KILL_DELAY);
            if interrupted || late {
                log::warn!("what ranks printed last is lost: nobody reads it");
                break;
            }
        }
        Ok(())
    }
}

fn is_broken(events: PollFlags) -> bool {
    events.intersects(PollFlags::POLLERR | PollFlags::POLLNVAL)
}
