//! Peers find each other's rings.
//!
//! In: addresses of peers on this host. Out: pairs of rings that both ends have mapped. Guarantee: returns by the
//! deadline; a ring can be opened only until its writer has it.

use super::ShmOptions;
use super::address::{Address, Instance};
use super::ring::Ring;
use crate::base::{Backoff, Deadline, Rank};
use crate::memory::{Lifeline, MemoryError};
use crate::transport::TransportError;

/// A connection in the making.
pub(super) struct Pending {
    pub(super) peer: Rank,
    pub(super) address: Address,
    inbound: Ring,
    outbound: Option<(Ring, Lifeline)>,
    failure: Option<MemoryError>,
}

/// A connection that both ends have mapped.
pub(super) struct Ready {
    pub(super) peer: Rank,
    pub(super) address: Address,
    pub(super) inbound: Ring,
    pub(super) outbound: Ring,
    pub(super) lifeline: Lifeline,
}

impl Pending {
    /// Makes and publishes the ring in which `peer` will signal.
    pub(super) fn new(
        peer: Rank,
        address: Address,
        instance: Instance,
        options: &ShmOptions,
    ) -> Result<Self, TransportError> {
        let inbound = Ring::create(instance.ring(peer), options.ring_signals)?;
        options.server.publish(inbound.memory());
        Ok(Self { peer, address, inbound, outbound: None, failure: None })
    }

    /// Tries the next step.
    fn advance(&mut self, rank: Rank, options: &ShmOptions, deadline: Deadline) {
        if self.outbound.is_some() {
            return;
        }
        let open = || {
            let server = &self.address.server;
            let memory = options.segments.open(server, self.address.instance.ring(rank), deadline)?;
            let bytes = memory.bytes();
            let ring = Ring::attach(memory).ok_or(MemoryError::Range { offset: 0, bytes, limit: bytes })?;
            Ok((ring, Lifeline::connect(server, deadline)?))
        };
        match open() {
            Ok((ring, lifeline)) => {
                ring.set_attached();
                self.outbound = Some((ring, lifeline));
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    fn is_ready(&self) -> bool {
        self.outbound.is_some() && self.inbound.is_attached()
    }

    fn finish(self) -> Option<Ready> {
        let Self { peer, address, inbound, outbound, .. } = self;
        let (outbound, lifeline) = outbound?;
        Some(Ready { peer, address, inbound, outbound, lifeline })
    }
}

/// Works on all of `pending` until every one is ready or the deadline has passed; the ready ones are taken out.
pub(super) fn complete(
    pending: &mut Vec<Pending>,
    rank: Rank,
    options: &ShmOptions,
    deadline: Deadline,
) -> (Vec<Ready>, Result<(), TransportError>) {
    let mut ready = Vec::new();
    let mut backoff = Backoff::new();
    loop {
        pending.iter_mut().for_each(|entry| entry.advance(rank, options, deadline));
        let before = ready.len();
        for entry in pending.extract_if(.., |entry| entry.is_ready()).filter_map(Pending::finish) {
            options.server.withdraw(entry.inbound.memory().id());
            ready.push(entry);
        }
        if pending.is_empty() {
            return (ready, Ok(()));
        }
        if deadline.expired() {
            let missing = pending.iter().map(|entry| entry.peer).collect();
            let failure = pending.iter().find_map(|entry| entry.failure.as_ref()).map(MemoryError::to_string);
            let last = failure.unwrap_or_else(|| "nothing was heard of them; look for their processes".into());
            return (ready, Err(TransportError::ConnectDeadline { missing, limit: deadline.limit(), last }));
        }
        if ready.len() > before {
            backoff.reset();
        }
        backoff.snooze();
    }
}
