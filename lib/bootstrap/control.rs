//! Control connections, kept for life.
//!
//! In: a [`Bootstrap`]. Out: [`Control`]: exchanges of byte strings among any ranks, the job key for data connections,
//! and the first fault. Guarantee: a star around rank 0, in which every connection has proved the job key; a rank
//! whose connection ends without a goodbye is dead; every call ends by its deadline, or at once with the cause when
//! the job is aborted; all survivors hold the same cause.

use super::acceptor::Door;
use super::address::{Destination, dial, listen};
use super::cause::Cause;
use super::error::BootstrapError;
use super::handshake::Party;
use super::hub::{Hub, HubSetup};
use super::key::JobKey;
use super::member::{Meeting, Member};
use super::tcp::wake_up_pipe;
use super::unique_id::UniqueId;
use super::wire::control_stream;
use super::{Bootstrap, RESERVED};
use crate::base::{Deadline, Rank, env};
use crate::topology::interface;
use socket2::Socket;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const PURPOSE: &str = "control";
const HUB: Rank = Rank(0);

/// This rank's control connection; on rank 0 also the hub. Dropped without [`Control::close`], it is a death.
#[derive(Debug)]
pub struct Control {
    member: Member,
    hub: Mutex<Option<Hub>>,
    key: JobKey,
    hosts: Vec<String>,
}

impl Control {
    /// Connects all ranks of `bootstrap` by `deadline`; `host` is this rank's host in messages.
    pub fn connect(bootstrap: &mut dyn Bootstrap, host: &str, deadline: Deadline) -> Result<Arc<Self>, BootstrapError> {
        Self::connect_by(bootstrap, host, env::text(env::INTERFACE).as_deref(), deadline)
    }

    pub(super) fn connect_by(
        bootstrap: &mut dyn Bootstrap,
        host: &str,
        interface: Option<&str>,
        deadline: Deadline,
    ) -> Result<Arc<Self>, BootstrapError> {
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        let (stream, hub, key, hub_host) = if rank == HUB {
            let (stream, hub, id) = open_hub(host, size, interface)?;
            bootstrap.broadcast(format!("{id} {host}").as_bytes(), deadline)?;
            (stream, Some(hub), id.key().clone(), host.to_string())
        } else {
            let text = bootstrap.broadcast(&[], deadline)?;
            let text = String::from_utf8_lossy(&text);
            let (id, hub_host) = text.split_once(' ').unwrap_or((&text, ""));
            let id: UniqueId = id.parse()?;
            let destination = Destination { addresses: id.addresses(), peer: HUB, meant: "rank 0" };
            let party = Party { key: id.key(), purpose: PURPOSE, rank, size };
            let stream = control_stream(dial(destination, party, deadline)?).map_err(failed)?;
            (stream, None, id.key().clone(), hub_host.to_string())
        };
        let ended = Cause {
            rank: HUB,
            host: hub_host,
            phase: "run".into(),
            message: "died (control connection closed)".into(),
        };
        let member = Member::start(rank, size, stream, ended)?;
        let hosts = member.meet(host, deadline)?;
        Ok(Arc::new(Self { member, hub: Mutex::new(hub), key, hosts }))
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.member.rank()
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.member.size()
    }

    /// The job key, for data connections between ranks.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The host that `rank` stated, for messages; empty for a rank that does not exist.
    pub fn host(&self, rank: Rank) -> &str {
        self.hosts.get(rank.index()).map_or("", String::as_str)
    }

    /// All-to-all of byte strings among `members` (world ranks, in the same order on all of them): `outgoing[i]` goes
    /// to `members[i]`, entry i of the result came from `members[i]`. Calls of one context match in the order that
    /// they are made; different contexts (below 2^63) are independent, also between threads. After an error the
    /// context is out of step and must not be used again.
    pub fn exchange(
        &self,
        context: u64,
        members: &[Rank],
        outgoing: &[Vec<u8>],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.member.exchange(meeting("exchange", context, members, deadline)?, outgoing)
    }

    /// Gives `mine` to every member; entry i of the result came from `members[i]`. Otherwise as [`Control::exchange`].
    pub fn allgather(
        &self,
        context: u64,
        members: &[Rank],
        mine: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.member.gather(meeting("allgather", context, members, deadline)?, mine)
    }

    /// Returns once every member has called it. Otherwise as [`Control::exchange`].
    pub fn barrier(&self, context: u64, members: &[Rank], deadline: Deadline) -> Result<(), BootstrapError> {
        self.member.gather(meeting("barrier", context, members, deadline)?, &[])?;
        Ok(())
    }

    /// Asks for a turn without waiting: it comes when all `members` have asked for the turn of `context`. Turns come in
    /// one order, which all ranks that any two of them concern see alike. A context is for turns or for exchanges.
    pub fn ask_turn(&self, context: u64, members: &[Rank]) -> Result<(), BootstrapError> {
        let deadline = Deadline::after(Duration::ZERO);
        self.member.ask_turn(meeting("turn", context, members, deadline)?.context, members)
    }

    /// The next context whose turn has come, each once.
    pub fn next_turn(&self) -> Option<u64> {
        self.member.next_turn()
    }

    /// Whether the job is aborted: one atomic load.
    pub fn is_aborted(&self) -> bool {
        self.member.is_aborted()
    }

    /// Calls `alarm` when the job is aborted, to wake what sleeps; it must neither block nor use the connection. The first
    /// one that is given stays.
    pub fn on_abort(&self, alarm: Box<dyn Fn() + Send + Sync>) {
        self.member.on_abort(alarm);
    }

    /// The cause of the abort, the same on all survivors.
    pub fn abort_cause(&self) -> Option<Arc<Cause>> {
        self.member.cause()
    }

    /// Aborts the job on all ranks; gives the cause that all hold, which is another one when another came first.
    /// Returns within two seconds; should rank 0 not answer by then, `cause` holds on this rank.
    pub fn abort(&self, cause: Cause) -> Arc<Cause> {
        self.member.abort(cause)
    }

    /// After a local failure of a data link: waits up to `limit` for a cause that the hub has seen (the death of the
    /// peer, usually); without one, aborts with `local`.
    pub fn settle(&self, local: Cause, limit: Duration) -> Arc<Cause> {
        self.member.settle(local, limit)
    }

    /// Says goodbye and waits until all ranks have; afterwards ended connections are no deaths. The connection is
    /// gone when it returns, also with an error: ranks that still exchange with this one get an error that names it.
    pub fn close(&self, deadline: Deadline) -> Result<(), BootstrapError> {
        let closed = self.member.close(deadline);
        drop(self.hub.lock().unwrap_or_else(PoisonError::into_inner).take());
        closed
    }

    /// Connections that did not prove the job key and were dropped; 0 on ranks other than 0.
    pub fn stray_connections(&self) -> u64 {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, Hub::strays)
    }
}

fn meeting<'a>(
    phase: &'static str,
    context: u64,
    members: &'a [Rank],
    deadline: Deadline,
) -> Result<Meeting<'a>, BootstrapError> {
    if context >= RESERVED {
        return Err(BootstrapError::Members { reason: format!("context {context} is reserved; use one below 2^63") });
    }
    Ok(Meeting { context, members, phase, deadline })
}

/// Starts rank 0's hub: rank 0's own connection to it, and how the others reach it.
fn open_hub(host: &str, size: u32, interface: Option<&str>) -> Result<(Socket, Hub, UniqueId), BootstrapError> {
    let key = JobKey::generate().map_err(BootstrapError::Random)?;
    let (listeners, published) = match size {
        1 => (Vec::new(), Vec::new()),
        _ => {
            let addresses = interface::addresses(interface)?;
            listen(&addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect::<Vec<_>>())?
        }
    };
    let (near, far) = UnixStream::pair().map_err(failed)?;
    near.set_nonblocking(true).map_err(failed)?;
    far.set_nonblocking(true).map_err(failed)?;
    let (waker, woken) = wake_up_pipe()?;
    let waker = Arc::new(waker);
    let party = Party { key: &key, purpose: PURPOSE, rank: HUB, size };
    let hub = Hub::start(HubSetup {
        owner: HUB,
        host: host.to_string(),
        size,
        door: Arc::new(Door::new(party, PURPOSE, Arc::clone(&waker))),
        listeners,
        waker,
        woken,
        local: Some(far.into()),
        join_by: None,
    })?;
    Ok((near.into(), hub, UniqueId::new(published, key)))
}

fn failed(source: std::io::Error) -> BootstrapError {
    BootstrapError::Socket { operation: "setting up a control connection", address: None, source }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
