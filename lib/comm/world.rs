//! Bringing a job together. In: environment, options. Out: control connections, links, engine, places of all
//! ranks. Guarantee: collective; ends by the start deadline on every rank.

use super::CommError;
use crate::base::{Deadline, Rank, env};
use crate::bootstrap::{self, Bootstrap, Control, HandshakeError, Party};
use crate::execute::{DEFAULT_STAGING, Engine, Group, LinkNumbers, Mapped, Peering, StagingBudget};
use crate::memory::{Bell, PeerSegments, ProcessMemory, SegmentId, SegmentServer};
use crate::topology::{ClusterOptions, HostFacts, RankFacts, Seat, Topology, cluster, discover, interface};
use crate::transport::{Authenticate, AuthenticateError, MessageLink, ShmLink, ShmOptions, TcpLink, TcpOptions};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const DEFAULT_INIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Context of the world's exchanges.
pub(super) const WORLD_CONTEXT: u64 = 0;
/// What data connections are for, in the handshake.
const PURPOSE: &str = "data";
const NETWORK: usize = 0;
const LOCAL: usize = 1;

/// How a job comes together.
#[derive(Debug, Clone, Default)]
pub struct WorldOptions {
    /// Ranks at which a new side (role) of the job begins; `CROSSMESH_DOMAINS` cuts there where it can.
    pub side_starts: Vec<Rank>,
    /// Longest wait for all ranks.
    pub deadline: Option<Duration>,
}

impl WorldOptions {
    /// Sides from `CROSSMESH_ROLES`, deadline from `CROSSMESH_INIT_TIMEOUT`.
    pub fn from_environment() -> Result<Self, CommError> {
        let limit = env::seconds(env::INIT_TIMEOUT)?.unwrap_or(DEFAULT_INIT_TIMEOUT);
        let mut side_starts = Vec::new();
        let mut next = 0u32;
        for role in env::text(env::ROLES).unwrap_or_default().split(',').filter(|role| !role.is_empty()) {
            side_starts.push(Rank(next));
            let count = role.rsplit_once('=').and_then(|(_, count)| count.parse::<u32>().ok());
            let count = count.and_then(|count| next.checked_add(count));
            next = count.ok_or_else(|| env::EnvError {
                name: env::ROLES.name,
                value: role.to_string(),
                allowed: env::ROLES.values,
            })?;
        }
        Ok(Self { side_starts, deadline: Some(limit) })
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.deadline.unwrap_or(DEFAULT_INIT_TIMEOUT))
    }
}

/// What one rank states to all others.
#[derive(Debug, Serialize, Deserialize)]
struct Statement {
    facts: RankFacts,
    pid: i32,
    server: String,
    links: Vec<Vec<u8>>,
    bell: SegmentId,
    probe_address: u64,
    probe_word: u64,
}

/// What a job holds for its life.
pub(super) struct World {
    pub(super) control: Arc<Control>,
    pub(super) host: HostFacts,
    bootstrap: Mutex<Option<Box<dyn Bootstrap>>>,
    /// Read by peers that probe whether they may.
    _probe: Box<AtomicU64>,
}

impl World {
    /// Ends the bootstrap once.
    pub(super) fn finish(&self, clean: bool) {
        let bootstrap = self.bootstrap.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(bootstrap) = bootstrap {
            bootstrap.finish(clean);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Not finalized: a fault or an early end; MPI_Finalize would wait for ranks that are gone.
        self.finish(false);
    }
}

/// Proves data connections with the job key.
struct KeyProof {
    control: Arc<Control>,
}

impl KeyProof {
    fn party(&self) -> Party<'_> {
        let (rank, size) = (self.control.rank(), self.control.size());
        Party { key: self.control.key(), purpose: PURPOSE, rank, size }
    }
}

impl Authenticate for KeyProof {
    fn dial(&self, stream: &TcpStream, peer: Rank, deadline: Deadline) -> Result<(), AuthenticateError> {
        self.party().dial(stream, peer, deadline).map_err(proof_error)
    }

    fn accept(&self, stream: &TcpStream, deadline: Deadline) -> Result<Rank, AuthenticateError> {
        self.party().accept(stream, deadline).map_err(proof_error)
    }
}

fn proof_error(error: HandshakeError) -> AuthenticateError {
    Box::new(error)
}

/// Brings the job together.
pub(super) fn connect(options: &WorldOptions) -> Result<(World, Group), CommError> {
    let deadline = options.deadline();
    let mut bootstrap = bootstrap::from_environment(deadline)?;
    let control = Control::connect(&mut *bootstrap, &discover::host_name(), deadline)?;
    let rank = control.rank();
    let members: Vec<Rank> = (0..control.size()).map(Rank).collect();
    let server = Arc::new(SegmentServer::start()?);
    let segments = Arc::new(PeerSegments::new());
    let links = links(&control, &server, &segments)?;
    let bell = Bell::create(&server)?;
    let probe = Box::new(AtomicU64::new(random_word()));
    let statement = Statement {
        facts: discover::this_rank(options.side_starts.contains(&rank))?,
        pid: std::process::id() as i32,
        server: server.address(),
        links: links.iter().map(|link| link.address()).collect(),
        bell: bell.id(),
        probe_address: &raw const *probe as u64,
        probe_word: probe.load(Ordering::Relaxed),
    };
    let statements: Vec<Statement> = gather(&control, &members, &statement, deadline)?;
    let facts: Vec<RankFacts> = statements.iter().map(|statement| statement.facts.clone()).collect();
    let topology = Topology::from_facts(&facts)?;
    let host = discover::this_host()?;
    let seat = seat(rank, &topology, &facts, &host)?;
    let (peering, seats) = peering(&control, &members, statements, &topology, seat, deadline)?;
    let topology = Arc::new(topology.with_seats(in_stated_domains(seats, &facts)));
    let engine = Engine::new(links, control.clone(), discover::host_name(), bell)?;
    let group = Group {
        control: control.clone(),
        context: WORLD_CONTEXT,
        transfers: Arc::default(),
        members: Arc::new(members),
        rank,
        topology,
        engine: Arc::new(engine),
        peering: Arc::new(peering),
        server,
        segments,
        staging: Arc::new(StagingBudget::new(env::byte_count(env::STAGING)?.unwrap_or(DEFAULT_STAGING))),
        mapped: env::value::<Mapped>(env::MAPPED)?.unwrap_or_default(),
        links: LinkNumbers { network: NETWORK, local: LOCAL },
    };
    Ok((World { control, host, bootstrap: Mutex::new(Some(bootstrap)), _probe: probe }, group))
}

/// The message links, in the order of [`LinkNumbers`].
fn links(
    control: &Arc<Control>,
    server: &Arc<SegmentServer>,
    segments: &Arc<PeerSegments>,
) -> Result<Vec<Box<dyn MessageLink>>, CommError> {
    let mut options = TcpOptions::new(Arc::new(KeyProof { control: control.clone() }));
    if let Some(interface) = env::text(env::INTERFACE) {
        options.bind = interface::addresses(Some(&interface))?.first().copied();
        options.device = Some(interface).filter(|text| text.parse::<IpAddr>().is_err());
    }
    let tcp = TcpLink::new(control.rank(), options)?;
    let shm = ShmLink::new(control.rank(), ShmOptions::new(server.clone(), segments.clone()))?;
    Ok(vec![Box::new(tcp), Box::new(shm)])
}

/// The GPU and the NICs of this rank, and a word of warning when its peers are hidden from it.
fn seat(rank: Rank, topology: &Topology, facts: &[RankFacts], host: &HostFacts) -> Result<Seat, CommError> {
    let node = topology.node(rank);
    let here: Vec<u32> = (0..topology.size() as u32).filter(|&other| topology.node(Rank(other)) == node).collect();
    if let Some(hidden) = cluster::hidden_peers(host, here.len()) {
        log::warn!("{hidden}");
    }
    let local = here.iter().position(|&other| other == rank.0).unwrap_or_default();
    Ok(cluster::seat(host, &facts[rank.index()].host_token, local, &ClusterOptions::from_environment()?))
}

/// Seats as the user states domains: where they are stated, no fabric joins GPUs of several hosts.
fn in_stated_domains(mut seats: Vec<Seat>, facts: &[RankFacts]) -> Vec<Seat> {
    if facts.iter().any(|fact| fact.domain.is_some() || fact.domain_count.is_some()) {
        seats.iter_mut().for_each(|seat| seat.domain = None);
    }
    seats
}

/// Finds out, together with all ranks, which domains may read private memory, and where all ranks sit.
fn peering(
    control: &Arc<Control>,
    members: &[Rank],
    statements: Vec<Statement>,
    topology: &Topology,
    seat: Seat,
    deadline: Deadline,
) -> Result<(Vec<Peering>, Vec<Seat>), CommError> {
    let mine = topology.domain(control.rank());
    let readable = statements.iter().enumerate().all(|(rank, statement)| {
        let same = topology.domain(Rank(rank as u32)) == mine;
        let process = ProcessMemory { pid: statement.pid };
        !same || process.probe(statement.probe_address, statement.probe_word)
    });
    if !readable {
        log::info!("process_vm_readv is not allowed between the ranks of this domain; private buffers are staged");
    }
    let all: Vec<(bool, Seat)> = gather(control, members, &(readable, seat), deadline)?;
    let mut domains = vec![true; topology.domain_count()];
    for (rank, &(readable, _)) in all.iter().enumerate() {
        domains[topology.domain(Rank(rank as u32)).index()] &= readable;
    }
    let peering = statements
        .into_iter()
        .enumerate()
        .map(|(rank, statement)| Peering {
            pid: statement.pid,
            server: statement.server,
            links: statement.links,
            bell: statement.bell,
            process_readable: domains[topology.domain(Rank(rank as u32)).index()],
        })
        .collect();
    Ok((peering, all.into_iter().map(|(_, seat)| seat).collect()))
}

fn gather<T: Serialize + DeserializeOwned>(
    control: &Arc<Control>,
    members: &[Rank],
    mine: &T,
    deadline: Deadline,
) -> Result<Vec<T>, CommError> {
    let unreadable = |peer, source| CommError::Unreadable { peer, source };
    let bytes = postcard::to_allocvec(mine).map_err(|source| unreadable(control.rank(), source))?;
    let all = control.allgather(WORLD_CONTEXT, members, &bytes, deadline)?;
    all.iter()
        .enumerate()
        .map(|(rank, bytes)| postcard::from_bytes(bytes).map_err(|source| unreadable(Rank(rank as u32), source)))
        .collect()
}

/// A word that no other process holds at the same address by chance.
fn random_word() -> u64 {
    getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()) << 32 | 0x5eed)
}
