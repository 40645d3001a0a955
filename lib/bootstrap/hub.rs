//! The centre of the star of control connections.
//!
//! In: authenticated connections, one of each rank, and their frames. Out: outcomes of exchanges, the first abort,
//! the final close. Guarantee: one thread, which never blocks on one rank (queues and poll(2)); of all aborts and
//! deaths the first is the cause that every connected rank is told; an exchange is delivered whole or not at all.

use super::acceptor::{self, Door};
use super::cause::Cause;
use super::error::{Absentees, BootstrapError};
use super::gathering::Gathering;
use super::wire::{FrameReader, Header, Kind, Received, SendQueue, Waker, Woken, control_stream};
use super::{CLOSING, START};
use crate::base::{Backoff, Deadline, Rank};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::Socket;
use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Longest sleep of the hub.
const TICK: Duration = Duration::from_secs(1);
/// How long a hub that ends still sends what it has queued.
const LINGER: Duration = Duration::from_secs(1);
/// Frames of one rank in a row before the others have their turn.
const TURN: usize = 64;
/// Descriptors that the process needs beside the connections.
const OTHER_FILES: u64 = 128;

/// What a hub is made of.
pub(super) struct HubSetup {
    /// The rank that owns the hub, and its host.
    pub(super) owner: Rank,
    pub(super) host: String,
    /// Number of ranks.
    pub(super) size: u32,
    /// Whom to let in, where, and what wakes the hub then; no listeners for a job of one.
    pub(super) door: Arc<Door>,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) waker: Arc<Waker>,
    pub(super) woken: Woken,
    /// The connection of the owner, where it is a rank.
    pub(super) local: Option<Socket>,
    /// By when all must have joined; without it their own deadlines decide.
    pub(super) join_by: Option<Deadline>,
}

/// A running hub; ends when dropped.
#[derive(Debug)]
pub(super) struct Hub {
    door: Arc<Door>,
    waker: Arc<Waker>,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Hub {
    /// Starts the hub's thread, and the one that takes connections in.
    pub(super) fn start(setup: HubSetup) -> Result<Self, BootstrapError> {
        const NAME: &str = "crossmesh-hub";
        allow_open_files(setup.size)?;
        let mut hub = Self {
            door: Arc::clone(&setup.door),
            waker: Arc::clone(&setup.waker),
            stopping: Arc::default(),
            threads: Vec::new(),
        };
        if !setup.listeners.is_empty() {
            hub.threads.push(acceptor::start(Arc::clone(&setup.door), setup.listeners)?);
        }
        let stopping = Arc::clone(&hub.stopping);
        let mut connections: Vec<Option<Connection>> = (0..setup.size).map(|_| None).collect();
        if let (Some(socket), Some(place)) = (setup.local, connections.get_mut(setup.owner.index())) {
            *place = Some(Connection::new(socket));
        }
        let state = State {
            owner: setup.owner,
            host: setup.host,
            size: setup.size,
            hosts: vec![String::new(); setup.size as usize],
            departed: vec![false; setup.size as usize],
            connections,
            gatherings: HashMap::new(),
            cause: None,
            started: false,
            closed: false,
        };
        let thread = thread::Builder::new()
            .name(NAME.into())
            .spawn(move || {
                Thread { state, door: setup.door, woken: setup.woken, join_by: setup.join_by, stopping }.run()
            })
            .map_err(|source| BootstrapError::Thread { name: NAME, source })?;
        hub.threads.push(thread);
        Ok(hub)
    }

    /// Connections dropped because they did not prove the job key.
    pub(super) fn strays(&self) -> u64 {
        self.door.strays()
    }

    /// Waits until all ranks have left; whether they have.
    pub(super) fn wait(&self, deadline: Deadline) -> bool {
        let mut backoff = Backoff::new();
        while !self.threads.iter().all(JoinHandle::is_finished) {
            if deadline.expired() {
                return false;
            }
            backoff.snooze();
        }
        true
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.door.shut();
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("the hub of the control connections failed; please report this with its output");
            }
        }
    }
}

/// Raises the limit on open files as far as one connection per rank needs.
fn allow_open_files(size: u32) -> Result<(), BootstrapError> {
    let needed = u64::from(size) + OTHER_FILES;
    let limits = getrlimit(Resource::RLIMIT_NOFILE);
    match limits {
        Ok((soft, _)) if soft >= needed => Ok(()),
        Ok((_, hard)) if hard >= needed && setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_ok() => Ok(()),
        Ok((_, limit)) => Err(BootstrapError::OpenFiles { size, needed, limit }),
        Err(_) => Ok(()),
    }
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    reader: FrameReader,
    queue: SendQueue,
}

impl Connection {
    fn new(socket: Socket) -> Self {
        Self { socket, reader: FrameReader::default(), queue: SendQueue::default() }
    }
}

struct Thread {
    state: State,
    door: Arc<Door>,
    woken: Woken,
    join_by: Option<Deadline>,
    stopping: Arc<AtomicBool>,
}

impl Thread {
    fn run(mut self) {
        let mut linger = None;
        loop {
            let ready = self.wait(if linger.is_some() { LINGER / 50 } else { TICK });
            self.woken.drain();
            self.door.arrivals().into_iter().for_each(|(rank, stream)| self.state.attach(rank, stream));
            ready.into_iter().for_each(|rank| self.state.read(rank));
            if self.join_by.is_some_and(|deadline| deadline.expired()) && !self.state.started {
                self.state.end_unjoined(self.join_by.take());
            }
            let stopping = self.stopping.load(Ordering::Acquire);
            if stopping {
                self.state.end_early();
            }
            self.state.flush();
            if stopping || self.state.is_over() {
                let limit = *linger.get_or_insert_with(|| Deadline::after(LINGER));
                if limit.expired() || self.state.is_flushed() {
                    return;
                }
            }
        }
    }

    /// Sleeps until something can be done; the ranks whose connections can be read or have failed.
    fn wait(&self, limit: Duration) -> Vec<Rank> {
        let live =
            || self.state.connections.iter().zip(0..).filter_map(|(place, rank)| Some((place.as_ref()?, Rank(rank))));
        let interest = |connection: &Connection| match connection.queue.is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLIN | PollFlags::POLLOUT,
        };
        let mut polled = vec![PollFd::new(self.woken.as_fd(), PollFlags::POLLIN)];
        polled.extend(live().map(|(connection, _)| PollFd::new(connection.socket.as_fd(), interest(connection))));
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        if let Err(error) = poll(&mut polled, timeout)
            && error != nix::Error::EINTR
        {
            log::error!("poll failed in the hub of the control connections: {error}");
            thread::sleep(LINGER / 50);
        }
        let readable = PollFlags::POLLIN | PollFlags::POLLERR | PollFlags::POLLHUP;
        let ready = |entry: &PollFd<'_>| entry.revents().is_some_and(|found| found.intersects(readable));
        polled[1..].iter().zip(live()).filter(|(entry, _)| ready(entry)).map(|(_, (_, rank))| rank).collect()
    }
}

/// All that the hub knows.
struct State {
    owner: Rank,
    host: String,
    size: u32,
    hosts: Vec<String>,
    departed: Vec<bool>,
    connections: Vec<Option<Connection>>,
    gatherings: HashMap<(u64, u64), Vec<Gathering>>,
    cause: Option<Arc<Cause>>,
    started: bool,
    closed: bool,
}

impl State {
    fn attach(&mut self, rank: Rank, stream: std::net::TcpStream) {
        match control_stream(stream) {
            Ok(socket) => {
                let mut connection = Connection::new(socket);
                if let Some(cause) = &self.cause {
                    connection.queue.abort(cause);
                }
                self.connections[rank.index()] = Some(connection);
            }
            Err(error) => self.end(rank, format!("could not be connected: {error}")),
        }
    }

    /// Takes frames of `rank`, and notices its end.
    fn read(&mut self, rank: Rank) {
        for _ in 0..TURN {
            let Some(connection) = self.connections[rank.index()].as_mut() else { return };
            match connection.reader.next(&connection.socket) {
                Received::Frame(header, payload) => self.receive(rank, header, payload),
                Received::Blocked => return,
                Received::Ended => {
                    self.connections[rank.index()] = None;
                    if !self.departed[rank.index()] {
                        self.end(rank, "died (control connection closed)".into());
                    }
                }
                Received::Malformed(reason) => {
                    self.connections[rank.index()] = None;
                    self.end(rank, format!("sent a malformed frame: {reason}"));
                }
            }
        }
    }

    fn receive(&mut self, rank: Rank, header: Header, payload: Vec<u8>) {
        match header.kind {
            Kind::Hello => self.hosts[rank.index()] = String::from_utf8_lossy(&payload).into_owned(),
            Kind::Exchange | Kind::Gather if self.cause.is_none() => self.gather(rank, header, payload),
            Kind::Exchange | Kind::Gather => {}
            Kind::Query => self.answer(rank, header),
            Kind::Abort => match Cause::decode(&payload) {
                Some(cause) => self.decide(cause),
                None => self.end(rank, "sent an abort that cannot be read".into()),
            },
            Kind::Goodbye => self.depart(rank),
            Kind::Outcome | Kind::Left | Kind::Absent | Kind::Closed => {
                self.end(rank, format!("sent a frame of kind {:?}, which only the hub sends", header.kind));
            }
        }
    }

    /// Adds a contribution to the exchange of its context and number that its sender is a member of.
    fn gather(&mut self, rank: Rank, header: Header, payload: Vec<u8>) {
        let key = (header.context, header.sequence);
        let meetings = self.gatherings.entry(key).or_default();
        let known = meetings.iter().position(|gathering| gathering.lists(rank));
        let position = known.or_else(|| {
            let opened = Gathering::open(header.kind, rank, &payload, self.size)?;
            // Whoever lists members of another exchange must be listed there, which `add` finds out.
            meetings.iter().position(|gathering| gathering.overlaps(&opened)).or_else(|| {
                meetings.push(opened);
                Some(meetings.len() - 1)
            })
        });
        let added = match position.and_then(|position| meetings.get_mut(position)) {
            Some(gathering) => gathering.add(header.kind, rank, payload).map(|()| gathering.is_complete()),
            None => Err("described an exchange with impossible members".into()),
        };
        match (added, position) {
            (Err(reason), _) => self.end(rank, reason),
            (Ok(true), Some(position)) => {
                let gathering = meetings.swap_remove(position);
                if meetings.is_empty() {
                    self.gatherings.remove(&key);
                }
                self.deliver(key, &gathering);
            }
            (Ok(_), _) if self.departed.contains(&true) => self.fail_abandoned(key),
            (Ok(_), _) => {}
        }
    }

    fn deliver(&mut self, key: (u64, u64), gathering: &Gathering) {
        self.started |= key.0 == START;
        for (member, segments) in gathering.outcomes(key.0, key.1) {
            self.send(member, |queue| segments.into_iter().for_each(|segment| queue.push(segment)));
        }
    }

    /// Tells those who wait in exchanges at `key` for a rank that has left; the exchanges stay open for those to come.
    fn fail_abandoned(&mut self, key: (u64, u64)) {
        let departed = &self.departed;
        let told: Vec<(Rank, Rank)> = self
            .gatherings
            .get(&key)
            .into_iter()
            .flatten()
            .filter_map(|gathering| Some((gathering, gathering.absent().find(|absent| departed[absent.index()])?)))
            .flat_map(|(gathering, left)| gathering.present().map(move |member| (member, left)))
            .collect();
        for (member, left) in told {
            let header = Header { kind: Kind::Left, rank: left, context: key.0, sequence: key.1, length: 0 };
            self.send(member, |queue| queue.frame(header, Vec::new()));
        }
    }

    fn answer(&mut self, rank: Rank, header: Header) {
        let absent = match header.context {
            CLOSING => Absentees::new((0..self.size).map(Rank).filter(|rank| !self.departed[rank.index()])),
            _ => self
                .gatherings
                .get(&(header.context, header.sequence))
                .and_then(|meetings| meetings.iter().find(|gathering| gathering.lists(rank)))
                .map(Gathering::absentees)
                .unwrap_or_default(),
        };
        let payload = absent.encode();
        let header = Header { kind: Kind::Absent, length: payload.len() as u64, ..header };
        self.send(rank, |queue| queue.frame(header, payload));
    }

    fn depart(&mut self, rank: Rank) {
        self.departed[rank.index()] = true;
        let open: Vec<_> = self.gatherings.keys().copied().collect();
        open.into_iter().for_each(|key| self.fail_abandoned(key));
        if self.departed.iter().all(|departed| *departed) {
            self.closed = true;
            let header = Header::plain(Kind::Closed, 0);
            (0..self.size).for_each(|rank| self.send(Rank(rank), |queue| queue.frame(header, Vec::new())));
        }
    }

    fn send(&mut self, rank: Rank, push: impl FnOnce(&mut SendQueue)) {
        if let Some(connection) = &mut self.connections[rank.index()] {
            push(&mut connection.queue);
        }
    }

    /// `rank` failed.
    fn end(&mut self, rank: Rank, message: String) {
        let host = self.hosts.get(rank.index()).cloned().unwrap_or_default();
        let phase = if self.started { "run" } else { "start" };
        self.decide(Cause { rank, host, phase: phase.into(), message });
    }

    /// The first cause ends the job; later ones change nothing.
    fn decide(&mut self, cause: Cause) {
        if self.cause.is_some() || self.closed {
            return;
        }
        log::debug!("the hub of the control connections ends the job: {cause}");
        let cause = Arc::new(cause);
        self.gatherings.clear();
        // The owner last: when it knows the cause and ends the process, the others have been sent it.
        let owner = self.connections.get(self.owner.index()).is_some().then_some(self.owner);
        for rank in (0..self.size).map(Rank).filter(|rank| Some(*rank) != owner).chain(owner) {
            self.send(rank, |queue| queue.abort(&cause));
        }
        self.cause = Some(cause);
    }

    fn end_unjoined(&mut self, deadline: Option<Deadline>) {
        let absent = (0..self.size).map(Rank).filter(|rank| self.connections[rank.index()].is_none());
        let absent = Absentees::new(absent);
        let rank = absent.named.first().copied().unwrap_or(self.owner);
        let limit = deadline.map(|deadline| deadline.limit()).unwrap_or_default();
        self.end(rank, format!("did not join within {limit:?}; absent: {absent}"));
    }

    fn end_early(&mut self) {
        if !self.closed && self.cause.is_none() {
            let message = "ended while other ranks were still connected".into();
            self.decide(Cause { rank: self.owner, host: self.host.clone(), phase: "close".into(), message });
        }
    }

    /// Sends what the connections take, the owner's last.
    fn flush(&mut self) {
        let owner = self.owner.index();
        let order = (0..self.connections.len()).filter(|index| *index != owner).chain([owner]);
        for index in order {
            if let Some(Some(connection)) = self.connections.get_mut(index)
                && connection.queue.flush(&connection.socket).is_err()
            {
                // The next read tells whether it was a death or a goodbye.
                connection.queue = SendQueue::default();
            }
        }
    }

    fn is_flushed(&self) -> bool {
        self.connections.iter().flatten().all(|connection| connection.queue.is_empty())
    }

    /// Nothing can come any more; a job that was aborted while joining still tells late ranks why.
    fn is_over(&self) -> bool {
        let nobody = || self.connections.iter().all(Option::is_none);
        self.closed || (self.started && self.cause.is_some() && nobody())
    }
}

impl SendQueue {
    fn abort(&mut self, cause: &Cause) {
        let payload = cause.encode();
        self.frame(Header::plain(Kind::Abort, payload.len() as u64), payload);
    }
}
