//! Hosts of the job that this process is a rank of. In: the environment. Out: facts of every host, on rank 0. Guarantee:
//! the first rank of each host states its facts; a process that nobody started as a rank is a job of one.

use super::error::TopoError;
use crossmesh::base::Rank;
use crossmesh::comm::{Communicator, WorldOptions};
use crossmesh::topology::HostFacts;

/// Facts of all hosts in rank order on rank 0, `None` on other ranks.
pub(super) fn hosts() -> Result<Option<Vec<HostFacts>>, TopoError> {
    let world = Communicator::world(&WorldOptions::from_environment()?)?;
    let mine = facts(&world)?;
    let all = world.allgather(&mine, Communicator::default_deadline()?)?;
    world.finalize(Communicator::default_deadline()?)?;
    if world.rank() != Rank(0) {
        return Ok(None);
    }
    let stated = all.iter().enumerate().filter(|(_, text)| !text.is_empty());
    let read = |(rank, text): (usize, &Vec<u8>)| {
        serde_json::from_slice(text).map_err(|source| TopoError::Facts { rank, source })
    };
    stated.map(read).collect::<Result<_, _>>().map(Some)
}

/// Nothing from ranks that are not the first of their host.
fn facts(world: &Communicator) -> Result<Vec<u8>, TopoError> {
    let (topology, rank) = (world.topology(), world.rank());
    let is_first = (0..rank.0).all(|lower| topology.node(Rank(lower)) != topology.node(rank));
    if !is_first {
        return Ok(Vec::new());
    }
    serde_json::to_vec(world.host()).map_err(|source| TopoError::Facts { rank: rank.index(), source })
}
