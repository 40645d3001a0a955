//! What a bench of collectives runs on. In: the job, bytes. Out: this rank's GPU with a channel and operands. Guarantee: made
//! collectively; all ranks have operands of one size.

use super::chain::CACHE;
use crate::bench::deadline;
use crate::bench::error::BenchError;
use crossmesh::collective::device::Rehearsal;
use crossmesh::collective::{Connection, TableMachine};
use crossmesh::comm::{ChannelOptions, Communicator, Device};

/// A rank's GPU, ready to be measured.
pub(super) struct Rig<'a> {
    pub(super) world: &'a Communicator,
    pub(super) rehearsal: Rehearsal,
    pub(super) registered: bool,
}

impl<'a> Rig<'a> {
    /// `bytes` bytes of operands on this rank's GPU: the one of its number, counted round.
    pub(super) fn new(
        world: &'a Communicator,
        bytes: u64,
        registered: bool,
        options: &ChannelOptions,
    ) -> Result<Self, BenchError> {
        let device = Device::open(world.rank().0 % Device::count()?.max(1))?;
        let channel = world.channel(&device, options, deadline()?)?;
        let mut rehearsal = Rehearsal::new(channel, bytes, CACHE)?;
        let registered = registered && rehearsal.channel().connection() != Connection::Ordered;
        if registered {
            rehearsal.register(deadline()?)?;
        }
        Ok(Self { world, rehearsal, registered })
    }

    pub(super) fn rank(&self) -> u32 {
        self.world.rank().0
    }

    pub(super) fn ranks(&self) -> u32 {
        self.world.size() as u32
    }

    /// Whether hosts order the ranks, so that nothing can be captured.
    pub(super) fn is_ordered(&mut self) -> bool {
        self.rehearsal.channel().connection() == Connection::Ordered
    }

    /// The machine that a table holds for: this one.
    pub(super) fn machine(&mut self) -> Result<TableMachine, BenchError> {
        Ok(self.rehearsal.channel().machine()?)
    }
}
