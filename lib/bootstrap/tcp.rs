//! Launch without MPI: a rendezvous that any process serves and every rank joins.
//!
//! In: a unique id, rank and size. Out: a [`Bootstrap`]. Guarantee: only holders of the id's key join, each rank once,
//! all with the same size; a rank that is refused is told why; at a deadline the absent ranks are named.

use super::acceptor::Door;
use super::address::{Destination, dial, listen};
use super::cause::{Cause, RENDEZVOUS};
use super::error::BootstrapError;
use super::handshake::Party;
use super::hub::{Hub, HubSetup};
use super::key::JobKey;
use super::member::{Meeting, Member};
use super::unique_id::UniqueId;
use super::wire::{control_stream, waker};
use super::{BROADCAST, Bootstrap};
use crate::base::{Deadline, Rank, env};
use crate::topology::discover::host_name;
use crate::topology::interface;
use std::net::SocketAddr;
use std::sync::Arc;

const PURPOSE: &str = "rendezvous";

/// The place where ranks meet; served by a thread of this process until dropped or all have left.
#[derive(Debug)]
pub struct Rendezvous(Hub);

impl Rendezvous {
    /// Serves a job of `size` ranks at `bind` (a wildcard address stands for all addresses of this host, or those of
    /// `CROSSMESH_INTERFACE`; port 0 for any). Ranks that have come are told who is absent at `deadline`.
    pub fn serve(bind: SocketAddr, size: u32, deadline: Deadline) -> Result<(Self, UniqueId), BootstrapError> {
        if size == 0 {
            return Err(BootstrapError::World { rank: Rank(0), size });
        }
        let addresses: Vec<SocketAddr> = match bind.ip().is_unspecified() {
            false => vec![bind],
            true => interface::addresses(env::text(env::INTERFACE).as_deref())?
                .into_iter()
                .map(|address| SocketAddr::new(address, bind.port()))
                .collect(),
        };
        let key = JobKey::generate().map_err(BootstrapError::Random)?;
        let (listeners, published) = listen(&addresses)?;
        let (waker, woken) = wake_up_pipe()?;
        let waker = Arc::new(waker);
        let party = Party { key: &key, purpose: PURPOSE, rank: RENDEZVOUS, size };
        let hub = Hub::start(HubSetup {
            owner: RENDEZVOUS,
            host: host_name(),
            size,
            door: Arc::new(Door::new(party, PURPOSE, Arc::clone(&waker))),
            listeners,
            waker,
            woken,
            local: None,
            join_by: Some(deadline),
        })?;
        Ok((Self(hub), UniqueId::new(published, key)))
    }

    /// Waits until all ranks have joined and left again; whether they have.
    pub fn wait(&self, deadline: Deadline) -> bool {
        self.0.wait(deadline)
    }

    /// Connections that did not prove the job key and were dropped.
    pub fn stray_connections(&self) -> u64 {
        self.0.strays()
    }
}

pub(super) fn wake_up_pipe() -> Result<(super::wire::Waker, super::wire::Woken), BootstrapError> {
    waker().map_err(|source| BootstrapError::Socket { operation: "making a wake-up pipe", address: None, source })
}

/// A rank that joined a rendezvous.
#[derive(Debug)]
pub struct TcpBootstrap {
    member: Member,
    everyone: Vec<Rank>,
}

impl TcpBootstrap {
    /// Joins the rendezvous of `id`; returns once all `size` ranks have.
    pub fn join(id: &UniqueId, rank: Rank, size: u32, deadline: Deadline) -> Result<Self, BootstrapError> {
        if rank.0 >= size {
            return Err(BootstrapError::World { rank, size });
        }
        let destination = Destination { addresses: id.addresses(), peer: RENDEZVOUS, meant: "the rendezvous" };
        let party = Party { key: id.key(), purpose: PURPOSE, rank, size };
        let stream = dial(destination, party, deadline)?;
        let ended = Cause {
            rank: RENDEZVOUS,
            host: stream.peer_addr().map(|address| address.ip().to_string()).unwrap_or_default(),
            phase: "start".into(),
            message: "ended (connection closed)".into(),
        };
        let stream = control_stream(stream).map_err(|source| BootstrapError::Socket {
            operation: "setting up the connection to the rendezvous",
            address: None,
            source,
        })?;
        let member = Member::start(rank, size, stream, ended)?;
        member.meet(&host_name(), deadline)?;
        Ok(Self { member, everyone: (0..size).map(Rank).collect() })
    }
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> Rank {
        self.member.rank()
    }

    fn size(&self) -> u32 {
        self.member.size()
    }

    fn broadcast(&mut self, message: &[u8], deadline: Deadline) -> Result<Vec<u8>, BootstrapError> {
        let meeting = Meeting { context: BROADCAST, members: &self.everyone, phase: "broadcast of rank 0", deadline };
        let mine = if self.member.rank() == Rank(0) { message } else { &[] };
        // There is one string of each rank, and at least one rank.
        Ok(self.member.gather(meeting, mine)?.into_iter().next().unwrap_or_default())
    }

    fn finish(self: Box<Self>, clean: bool) {
        if clean {
            self.member.leave();
        }
    }
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;
