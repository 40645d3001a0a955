//! Ranks that transfer together. In: the connected world. Out: collective exchange and facts about members.
//! Guarantee: ranks of a group count from 0; world ranks appear only at links and control.

use super::{Engine, ExecuteError, StagingBudget};
use crate::base::{Deadline, Rank};
use crate::bootstrap::Control;
use crate::memory::{PeerSegments, SegmentId, SegmentServer};
use crate::topology::Topology;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How the other processes are reached; one per world rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peering {
    /// Process id, meaningful on the same node.
    pub pid: i32,
    /// Where its segments are served, on the same node.
    pub server: String,
    /// Its address on every message link.
    pub links: Vec<Vec<u8>>,
    /// What wakes it, on the same node.
    pub bell: SegmentId,
    /// Whether all ranks of its domain read each other's private memory.
    pub process_readable: bool,
}

/// How private buffers are read inside a domain (`CROSSMESH_MAPPED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mapped {
    /// By process_vm_readv where the probe succeeded, else staged.
    #[default]
    Auto,
    /// Shared segments are mapped; private buffers are always staged.
    Shared,
    /// Nothing is mapped but staging: everything is sent.
    Staged,
}

impl std::str::FromStr for Mapped {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "shared" => Ok(Self::Shared),
            "staged" => Ok(Self::Staged),
            _ => Err(format!("unknown mapping {text:?}; allowed: auto, shared, staged")),
        }
    }
}

/// Ranks that transfer together.
#[derive(Debug, Clone)]
pub struct Group {
    /// Control connections of the world.
    pub control: Arc<Control>,
    /// Names the group's exchanges.
    pub context: u64,
    /// Transfers prepared so far.
    pub transfers: Arc<AtomicU64>,
    /// World rank of every member.
    pub members: Arc<Vec<Rank>>,
    /// This process's rank in the group.
    pub rank: Rank,
    /// Places of the members.
    pub topology: Arc<Topology>,
    /// What runs transfers.
    pub engine: Arc<Engine>,
    /// How world ranks are reached.
    pub peering: Arc<Vec<Peering>>,
    /// Serves this process's segments.
    pub server: Arc<SegmentServer>,
    /// Opens peers' segments.
    pub segments: Arc<PeerSegments>,
    /// Staging memory of this process.
    pub staging: Arc<StagingBudget>,
    /// How private buffers are read.
    pub mapped: Mapped,
    /// Number of the link between domains and of the link inside one.
    pub links: LinkNumbers,
}

/// Which link of the engine serves which pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkNumbers {
    /// Between domains.
    pub network: usize,
    /// Inside a domain, for what cannot be mapped.
    pub local: usize,
}

impl Group {
    /// Number of members.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// World rank of a member.
    pub fn world(&self, rank: Rank) -> Rank {
        self.members[rank.index()]
    }

    /// Gives everybody's bytes to everybody.
    pub fn allgather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, ExecuteError> {
        Ok(self.control.allgather(self.context, &self.members, mine, deadline)?)
    }

    /// Gives `outgoing[i]` to member i.
    pub fn exchange(&self, outgoing: &[Vec<u8>], deadline: Deadline) -> Result<Vec<Vec<u8>>, ExecuteError> {
        Ok(self.control.exchange(self.context, &self.members, outgoing, deadline)?)
    }

    /// Returns once every member has called it.
    pub fn barrier(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        Ok(self.control.barrier(self.context, &self.members, deadline)?)
    }

    /// Where the segments and descriptors of `peer` are served; `None` for a rank on another host.
    pub(crate) fn server_of(&self, peer: Rank) -> Option<&str> {
        let is_here = self.topology.node(peer) == self.topology.node(self.rank);
        is_here.then(|| self.peering[self.world(peer).index()].server.as_str())
    }

    /// Number of the link that joins this rank and `peer`.
    pub(super) fn link_to(&self, peer: Rank) -> usize {
        if self.topology.domain(self.rank) == self.topology.domain(peer) {
            self.links.local
        } else {
            self.links.network
        }
    }
}
