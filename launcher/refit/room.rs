//! Whether memory suffices, before any is taken. In: the bytes that each rank will need. Out: an error on every rank, or none.
//! Guarantee: ranks that take from one pool, a host's memory or a cgroup's part of it, are counted together; all ranks
//! state and read what is left before any of them goes on.

use super::consent::agree;
use super::error::RefitError;
use super::shards::SideLayout;
use super::sides::MemoryChoice;
use crossmesh::base::bytes::human;
use crossmesh::base::{Deadline, env};
use crossmesh::comm::Communicator;
use crossmesh::execute::{DEFAULT_CHUNK, DEFAULT_STAGING, first_share};
use crossmesh::memory::PageChoice;
use crossmesh::plan::Manifest;
use crossmesh::topology::discover::{MemoryPool, Tree, memory_pools};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a rank will take, and from where.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Claim {
    host: String,
    tensors: u64,
    staging: u64,
    pools: Vec<MemoryPool>,
}

/// A pool with the ranks that take from it.
#[derive(Debug, Clone, Copy)]
struct Load<'a> {
    pool: &'a MemoryPool,
    host: &'a str,
    ranks: usize,
    tensors: u64,
    staging: u64,
}

impl Claim {
    /// Of a rank that moves `manifest` with its tensors laid out so, and what is left now.
    pub(super) fn new(
        world: &Communicator,
        manifest: &Manifest,
        sides: [&SideLayout; 2],
        memory: MemoryChoice,
    ) -> Result<Self, RefitError> {
        let staging = env::byte_count(env::STAGING)?.unwrap_or(DEFAULT_STAGING);
        let chunk = env::byte_count(env::CHUNK)?.unwrap_or(DEFAULT_CHUNK);
        // Too little staging is refused where the transfer is made, with what it needs.
        let share = first_share(staging, chunk, 1).map_or(staging, |share| share.bytes);
        let pages: Option<PageChoice> = env::value(env::PAGES)?;
        let reserved = memory == MemoryChoice::Shared && pages == Some(PageChoice::Reserved);
        let tensors = sides[0].bytes().saturating_add(sides[1].bytes());
        Ok(Self {
            host: world.topology().host(world.rank()).to_string(),
            tensors,
            // A rank without tensors passes nothing on.
            staging: if tensors == 0 { 0 } else { share.min(manifest.global_bytes()?) },
            pools: memory_pools(&Tree::at("/"), reserved),
        })
    }
}

/// Refuses a transfer for which some host has too little memory; collective.
pub(super) fn check(world: &Communicator, mine: &Claim, deadline: Deadline) -> Result<(), RefitError> {
    // All ranks find the same.
    agree(world, lacks(world, mine, deadline)?.map_or(Ok(()), Err), deadline)
}

/// What some host lacks of the memory for a transfer, the same on all ranks; collective.
pub(super) fn lacks(world: &Communicator, mine: &Claim, deadline: Deadline) -> Result<Option<RefitError>, RefitError> {
    // Texts and numbers always have a JSON form.
    let all = world.allgather(&serde_json::to_vec(mine).unwrap_or_default(), deadline)?;
    let claims: Vec<Claim> = all.iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect();
    Ok(shortage(&claims))
}

/// The pool that lacks most, if any lacks anything.
fn shortage(claims: &[Claim]) -> Option<RefitError> {
    let mut loads: BTreeMap<&str, Load> = BTreeMap::new();
    for claim in claims {
        for pool in &claim.pools {
            let none = Load { pool, host: &claim.host, ranks: 0, tensors: 0, staging: 0 };
            let load = loads.entry(&pool.identity).or_insert(none);
            load.ranks += 1;
            load.tensors = load.tensors.saturating_add(claim.tensors);
            load.staging = load.staging.saturating_add(claim.staging);
            if pool.available_bytes < load.pool.available_bytes {
                load.pool = pool;
            }
        }
    }
    let needed = |load: &Load| load.tensors.saturating_add(load.staging);
    let lacking = |load: &Load| needed(load).saturating_sub(load.pool.available_bytes);
    let worst = loads.into_values().filter(|load| lacking(load) > 0).max_by_key(lacking)?;
    let limit = match &worst.pool.cgroup {
        Some(group) => format!("its cgroup {group} has {} left", human(worst.pool.available_bytes)),
        None => format!("{} are available", human(worst.pool.available_bytes)),
    };
    Some(RefitError::Room {
        host: worst.host.to_string(),
        ranks: worst.ranks,
        needed: needed(&worst),
        tensors: worst.tensors,
        staging: worst.staging,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(identity: &str, cgroup: Option<&str>, available_bytes: u64) -> MemoryPool {
        MemoryPool { identity: identity.into(), cgroup: cgroup.map(String::from), available_bytes }
    }

    fn claim(host: &str, tensors: u64, pools: &[MemoryPool]) -> Claim {
        Claim { host: host.into(), tensors, staging: 10, pools: pools.to_vec() }
    }

    fn says(claims: &[Claim]) -> Option<String> {
        shortage(claims).map(|error| error.to_string())
    }

    #[test]
    fn ranks_of_a_host_are_counted_together() {
        let [one, two] = [("a", 1000), ("b", 900)].map(|(name, bytes)| [pool(name, None, bytes)]);
        assert_eq!(says(&[]), None);
        assert_eq!(says(&[claim("n0", 490, &one), claim("n0", 490, &one), claim("n1", 890, &two)]), None);
        let error = says(&[claim("n0", 490, &one), claim("n1", 890, &two), claim("n0", 491, &one)]).unwrap();
        assert!(error.starts_with("the 2 ranks on host n0 need 1001 B of memory (981 B for tensors"), "{error}");
        assert!(error.contains("and 1000 B are available; start fewer ranks on a host"), "{error}");
        // What is left may have changed between two looks: the less counts.
        let less = [pool("a", None, 900)];
        assert!(says(&[claim("n0", 490, &one), claim("n0", 490, &less)]).unwrap().contains("and 900 B"));
        // Of several the worst is said.
        let error = says(&[claim("n0", 1991, &one), claim("n1", 1991, &two)]).unwrap();
        assert!(error.contains("the 1 rank on host n1 needs 2.0 KiB"), "{error}");
        assert_eq!(says(&[claim("n0", u64::MAX, &[]), claim("n0", u64::MAX, &[])]), None, "nobody told");
        assert!(says(&[claim("n0", u64::MAX, &one), claim("n0", u64::MAX, &one)]).is_some());
    }

    #[test]
    fn a_cgroup_binds_its_own_ranks_only() {
        let host = pool("a", None, 10_000);
        let group = |identity: &str| pool(identity, Some("/sys/fs/cgroup"), 500);
        let of = |identity, tensors| claim("n0", tensors, &[host.clone(), group(identity)]);
        assert_eq!(says(&[of("x", 490), of("y", 490)]), None, "two containers");
        let error = says(&[of("x", 240), of("y", 490), of("x", 241)]).unwrap();
        let parts = ["the 2 ranks on host n0 need 501 B", "its cgroup /sys/fs/cgroup has 500 B left"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}
