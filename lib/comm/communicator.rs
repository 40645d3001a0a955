//! The communicator. In: a world or a split. Out: MPI-style calls. Guarantee: see the module head.

use super::world::{self, World, WorldOptions};
use super::{Buffers, CommError, Reshard, ReshardOptions};
use crate::base::{Deadline, Rank, env};
use crate::bootstrap::Cause;
use crate::collective::device::Channel;
use crate::execute::{Group, LinkFacts, test_links};
use crate::plan::Manifest;
use crate::route::SavedPlan;
use crate::topology::{HostFacts, Topology};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Ranks that act together.
pub struct Communicator {
    // Declared before the world: the engine must be gone before control is.
    pub(super) group: Group,
    splits: AtomicU64,
    /// For collectives that are called here.
    pub(super) channel: Mutex<Option<Channel>>,
    world: Arc<World>,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Communicator(rank {} of {})", self.rank(), self.size())
    }
}

impl Communicator {
    /// All ranks of the job; collective. Finds the others through MPI, a unique id, or alone.
    pub fn world(options: &WorldOptions) -> Result<Self, CommError> {
        let (world, group) = world::connect(options)?;
        Ok(Self { group, splits: AtomicU64::new(0), channel: Mutex::default(), world: Arc::new(world) })
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.group.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// Where the ranks are.
    pub fn topology(&self) -> &Topology {
        &self.group.topology
    }

    /// What this rank knows of its host, as it was when the job came together.
    pub fn host(&self) -> &HostFacts {
        &self.world.host
    }

    /// Deadline of calls that are given none: `CROSSMESH_TIMEOUT` from now.
    pub fn default_deadline() -> Result<Deadline, CommError> {
        Ok(Deadline::after(env::seconds(env::TIMEOUT)?.unwrap_or(DEFAULT_TIMEOUT)))
    }

    /// Returns once every rank has called it.
    pub fn barrier(&self, deadline: Deadline) -> Result<(), CommError> {
        Ok(self.group.barrier(deadline)?)
    }

    /// Everybody's bytes, by rank; for small control data.
    pub fn allgather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>, CommError> {
        Ok(self.group.allgather(mine, deadline)?)
    }

    /// Ranks of equal `color` form a communicator each, ordered by `key`, then by rank; `None` for ranks without a
    /// color (MPI_UNDEFINED). Collective.
    pub fn split(&self, color: Option<u32>, key: u32, deadline: Deadline) -> Result<Option<Self>, CommError> {
        let mut mine = [0u8; 9];
        mine[0] = u8::from(color.is_some());
        mine[1..5].copy_from_slice(&color.unwrap_or(0).to_le_bytes());
        mine[5..].copy_from_slice(&key.to_le_bytes());
        let all = self.group.allgather(&mine, deadline)?;
        let number = self.splits.fetch_add(1, Ordering::AcqRel);
        let Some(color) = color else { return Ok(None) };
        let word = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).unwrap_or(0);
        let mut chosen: Vec<(u32, Rank)> = all
            .iter()
            .enumerate()
            .filter(|(_, bytes)| bytes.len() == mine.len() && bytes[0] == 1 && word(&bytes[1..5]) == color)
            .map(|(rank, bytes)| (word(&bytes[5..]), Rank(rank as u32)))
            .collect();
        chosen.sort_unstable();
        let ranks: Vec<Rank> = chosen.iter().map(|&(_, rank)| rank).collect();
        let position = ranks.iter().position(|&rank| rank == self.rank()).unwrap_or(0);
        let group = Group {
            context: context(self.group.context, number, color),
            transfers: Arc::default(),
            members: Arc::new(ranks.iter().map(|&rank| self.group.world(rank)).collect()),
            rank: Rank(position as u32),
            topology: Arc::new(self.group.topology.select(&ranks)),
            ..self.group.clone()
        };
        Ok(Some(Self { group, splits: AtomicU64::new(0), channel: Mutex::default(), world: self.world.clone() }))
    }

    /// The first ranks, one for each of `domains`, as a communicator with these domains in place of those of this one;
    /// `None` for the other ranks. Collective, with the same domains on all ranks.
    pub fn with_domains(&self, domains: &[u32], deadline: Deadline) -> Result<Option<Self>, CommError> {
        let ranks: Vec<Rank> = (0..domains.len().min(self.size()) as u32).map(Rank).collect();
        // Before anything is collective: every rank finds the same.
        let topology = Arc::new(self.group.topology.select(&ranks).with_domains(domains)?);
        let color = (self.rank().index() < domains.len()).then_some(0);
        let mut part = self.split(color, self.rank().0, deadline)?;
        if let Some(part) = &mut part {
            part.group.topology = topology;
        }
        Ok(part)
    }

    /// Reads a plan that was saved for this topology, that is for these ranks, nodes, domains, rails and card rates, and for
    /// this route; the first difference is an error. Its manifest goes to [`Communicator::reshard_init`]. Every rank reads it, and they compare it there as they compare any manifest.
    pub fn load_plan(&self, path: &Path, options: ReshardOptions) -> Result<SavedPlan, CommError> {
        let plan = SavedPlan::load(path)?;
        plan.expect(self.topology(), options.route.with_environment()?, path)?;
        Ok(plan)
    }

    /// Prepares a persistent transfer; collective. See [`Reshard`].
    pub fn reshard_init(
        &self,
        manifest: &Arc<Manifest>,
        buffers: &Buffers,
        options: ReshardOptions,
        deadline: Deadline,
    ) -> Result<Reshard, CommError> {
        Ok(Reshard::init(&self.group, manifest, buffers, options, deadline)?)
    }

    /// Prepares, runs and frees a transfer; collective.
    pub fn reshard(
        &self,
        manifest: &Arc<Manifest>,
        buffers: &Buffers,
        options: ReshardOptions,
        deadline: Deadline,
    ) -> Result<(), CommError> {
        let mut transfer = self.reshard_init(manifest, buffers, options, deadline)?;
        transfer.start()?;
        Ok(transfer.wait(deadline)?)
    }

    /// Tests the links between the GPUs of each host, `device` being this rank's; collective. See [`test_links`].
    pub fn test_links(&self, device: u32, fresh: bool, deadline: Deadline) -> Result<Vec<LinkFacts>, CommError> {
        Ok(test_links(&self.group, device, fresh, deadline)?)
    }

    /// Ends the whole job with a cause that every rank will report; returns the cause that came first.
    pub fn abort(&self, phase: &str, message: &str) -> Arc<Cause> {
        let host = self.group.topology.host(self.rank()).to_string();
        let rank = self.world.control.rank();
        self.world.control.abort(Cause { rank, host, phase: phase.into(), message: message.into() })
    }

    /// The cause of the job's end, once there is one.
    pub fn abort_cause(&self) -> Option<Arc<Cause>> {
        self.world.control.abort_cause()
    }

    /// Ends the job in order; collective over the world, after all transfers and splits are dropped. Without it,
    /// a rank that leaves counts as dead. After `InUse` it may be called again.
    pub fn finalize(&self, deadline: Deadline) -> Result<(), CommError> {
        drop(self.channel.lock().unwrap_or_else(PoisonError::into_inner).take());
        let users = Arc::strong_count(&self.group.engine) - 1;
        if users > 0 {
            return Err(CommError::InUse { users });
        }
        self.world.control.barrier(world::WORLD_CONTEXT, &self.group.members, deadline)?;
        self.group.engine.close(deadline)?;
        self.world.control.close(deadline)?;
        self.world.finish(true);
        Ok(())
    }
}

/// A number for a split's exchanges, equal on its members and unlike any other's.
fn context(parent: u64, number: u64, color: u32) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(parent.to_le_bytes());
    hasher.update(number.to_le_bytes());
    hasher.update(color.to_le_bytes());
    let digest = hasher.finalize();
    digest.iter().take(8).fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)) >> 1 | 1
}
