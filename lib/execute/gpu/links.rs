//! A test of the links between the GPUs of a job. In: the GPU of each rank. Out: per pair, whether writes arrive in order and
//! how fast copies are. Guarantee: collective, the same on every rank; a pair that fails does not stop the test of the
//! others; a result is kept under the identities of the GPUs, the driver and the boot, and used again only when all agree.

use super::super::agree::{chain, commit, gather, unreadable};
use super::super::{ExecuteError, Group};
use super::handles::{Agreed, Near, agree_handles};
use crate::base::{Deadline, Rank};
use crate::memory::device::{
    Device, DeviceSpan, Driver, Handles, LinkEnd, PeerMemory, SharedBuffer, SharedHandle, kept, share,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longest test of one pair.
const PAIR: Duration = Duration::from_secs(10);

/// What was found about a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkVerdict {
    /// Writes arrive in order.
    Good {
        /// Bytes a second by which the reader copies from the writer, where that was measured.
        rate: Option<u64>,
    },
    /// So many words were wrong when their flag had come: nothing may be sent over this link.
    Broken {
        /// Words.
        wrong: u64,
    },
    /// The test could not be made.
    Failed {
        /// Why.
        why: String,
    },
}

/// A pair of GPUs: what `from` writes is checked by `to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkFacts {
    /// Writing rank.
    pub from: Rank,
    /// Reading rank.
    pub to: Rank,
    /// What was found.
    pub verdict: LinkVerdict,
}

/// What a rank states about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Statement {
    uuid: [u8; 16],
    driver: i32,
    boot: String,
}

/// Tests and measures all pairs of GPUs on each host, and between hosts of one NVLink domain; `device` is this rank's, among
/// those that it sees. Of ranks that share a GPU the first stands for all. With `fresh` kept results are not used.
pub fn test_links(group: &Group, device: u32, fresh: bool, deadline: Deadline) -> Result<Vec<LinkFacts>, ExecuteError> {
    let device = commit(group, Device::open(device).map_err(ExecuteError::from), deadline)?;
    let near = Near::Reachable(&group.topology);
    let agreed = agree_handles(group, near, Some(&device), false, deadline)?;
    let agreed = agreed.as_ref().map_err(String::as_str);
    test(group, near, Some(&device), Test { fresh, measured: true }, agreed, deadline)
}

/// Why data may not be sent between the GPUs of the group: the first link that fails the test of ordered writes, whose
/// result is kept. Nothing is measured; a rank without a device only listens.
pub(crate) fn broken_link(
    group: &Group,
    near: Near<'_>,
    device: Option<&Device>,
    agreed: &Agreed,
    deadline: Deadline,
) -> Result<Option<String>, ExecuteError> {
    Ok(broken(&test(group, near, device, Test { fresh: false, measured: false }, Ok(agreed), deadline)?))
}

/// The first link that did not pass.
fn broken(facts: &[LinkFacts]) -> Option<String> {
    facts.iter().find_map(|LinkFacts { from, to, verdict }| match verdict {
        LinkVerdict::Good { .. } => None,
        LinkVerdict::Broken { wrong } => {
            Some(format!("the link from the GPU of rank {from} to that of rank {to} is broken: {wrong} wrong words"))
        }
        LinkVerdict::Failed { why } => {
            Some(format!("the link from the GPU of rank {from} to that of rank {to} cannot be tested: {why}"))
        }
    })
}

/// What a test is about.
#[derive(Debug, Clone, Copy)]
struct Test {
    /// Whether kept results are not used.
    fresh: bool,
    /// Whether the rate is measured, which takes memory for it.
    measured: bool,
}

/// Tests all pairs; a rank without a device only listens. Pairs on two hosts fail where these cannot map each other's memory.
fn test(
    group: &Group,
    near: Near<'_>,
    device: Option<&Device>,
    test: Test,
    agreed: Result<&Agreed, &str>,
    deadline: Deadline,
) -> Result<Vec<LinkFacts>, ExecuteError> {
    let statement = device.map(statement).transpose();
    let statement = commit(group, statement, deadline)?;
    let statements: Vec<Option<Statement>> = gather(group, &statement, deadline)?;
    let handles = agreed.map_or(Handles::Local, |agreed| agreed.handles);
    let (pairs, hopeless) = pairs(near, &statements, agreed.is_ok());
    let kind = if test.measured { "links" } else { "order" };
    let name = format!("{kind}-{}.json", key(near, &statements, handles, hopeless.len()));
    if let Some(facts) = kept_by_all(group, &name, test.fresh, deadline)? {
        return Ok(facts);
    }
    let own_pairs = pairs.iter().any(|(from, to)| [*from, *to].contains(&group.rank));
    let end = device.filter(|_| own_pairs).map(|device| LinkEnd::new(device, test.measured, deadline)).transpose();
    let end = commit(group, end.map_err(ExecuteError::from), deadline)?;
    let peers = open_peers(group, device.zip(end.as_ref()), &pairs, handles, deadline);
    let (peers, _shared) = commit(group, peers, deadline)?;
    let mut mine = Vec::new();
    for (number, round) in rounds(&pairs, test.measured).into_iter().enumerate() {
        // Words of an end count up from test to test.
        let first = number as u32 * LinkEnd::ROUNDS + 1;
        for (from, to) in round {
            let limit = Deadline::after(PAIR.min(deadline.remaining()));
            let Some(end) = &end else { continue };
            if group.rank == from {
                if let Err(error) = end.write_to(&peers[&to], first, limit) {
                    log::warn!("link test from rank {from} to rank {to}: {error}");
                }
            } else if group.rank == to {
                mine.push(LinkFacts { from, to, verdict: read(end, &peers[&from], (first, test.measured), limit) });
            }
        }
        group.barrier(deadline)?;
    }
    if let (Err(why), Rank(0)) = (agreed, group.rank) {
        let failed =
            |&(from, to): &(Rank, Rank)| LinkFacts { from, to, verdict: LinkVerdict::Failed { why: why.into() } };
        mine.extend(hopeless.iter().map(failed));
    }
    let all: Vec<Vec<LinkFacts>> = gather(group, &mine, deadline)?;
    let mut facts: Vec<LinkFacts> = all.into_iter().flatten().collect();
    facts.sort_by_key(|link| (link.from, link.to));
    // One rank of each host keeps it; a failure may pass, so it is not kept.
    let own = group.topology.node(group.rank);
    let leads = (0..group.rank.0).all(|rank| group.topology.node(Rank(rank)) != own);
    if leads && facts.iter().all(|link| !matches!(link.verdict, LinkVerdict::Failed { .. })) {
        let text = serde_json::to_vec(&facts).unwrap_or_default();
        kept::write(&name, &text);
    }
    Ok(facts)
}

fn statement(device: &Device) -> Result<Statement, ExecuteError> {
    Ok(Statement {
        uuid: device.properties().uuid,
        driver: Driver::load()?.cuda_version(),
        boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
    })
}

fn read(end: &LinkEnd, from: &DeviceSpan, (first, measured): (u32, bool), limit: Deadline) -> LinkVerdict {
    let found = end.read_from(from, first, limit).and_then(|wrong| match wrong {
        0 => {
            let rate = measured.then(|| end.rate_from(from, limit)).transpose()?;
            Ok(LinkVerdict::Good { rate: rate.map(|rate| rate as u64) })
        }
        wrong => Ok(LinkVerdict::Broken { wrong }),
    });
    found.unwrap_or_else(|error| LinkVerdict::Failed { why: chain(&error) })
}

/// Ordered pairs.
type Pairs = Vec<(Rank, Rank)>;

/// Pairs of ranks on different GPUs that reach each other, one rank for each GPU; and those on two hosts of one NVLink domain
/// if `joined` says that these cannot map each other's memory.
fn pairs(near: Near<'_>, statements: &[Option<Statement>], joined: bool) -> (Pairs, Pairs) {
    let topology = near.topology();
    let mut first: BTreeMap<(u32, [u8; 16]), Rank> = BTreeMap::new();
    for (rank, statement) in statements.iter().enumerate() {
        let Some(statement) = statement else { continue };
        let rank = Rank(rank as u32);
        first.entry((topology.node(rank).0, statement.uuid)).or_insert(rank);
    }
    let ranks: Vec<Rank> = first.into_values().collect();
    let others = |from: Rank| ranks.iter().filter(move |&&to| to != from).map(move |&to| (from, to));
    let reached = ranks.iter().flat_map(|&from| others(from)).filter(|&(from, to)| near.joins(from, to));
    reached.partition(|&(from, to)| joined || topology.node(from) == topology.node(to))
}

/// Pairs that are tested at the same time, in which each rank is at most once; one by one where rates are measured.
fn rounds(pairs: &[(Rank, Rank)], measured: bool) -> Vec<Pairs> {
    let mut rounds: Vec<(BTreeSet<Rank>, Pairs)> = Vec::new();
    for &(from, to) in pairs {
        let is_free = |busy: &BTreeSet<Rank>| !measured && !busy.contains(&from) && !busy.contains(&to);
        let free = rounds.iter().position(|(busy, _)| is_free(busy)).unwrap_or_else(|| {
            rounds.push(Default::default());
            rounds.len() - 1
        });
        rounds[free].0.extend([from, to]);
        rounds[free].1.push((from, to));
    }
    rounds.into_iter().map(|(_, pairs)| pairs).collect()
}

/// Names a set of GPUs with their driver and boot, who uses which, and how they are mapped.
fn key(near: Near<'_>, statements: &[Option<Statement>], handles: Handles, hopeless: usize) -> String {
    let mut hasher = Sha256::new();
    hasher.update([handles as u8, u8::from(hopeless > 0)]);
    let topology = near.topology();
    for (rank, statement) in statements.iter().enumerate() {
        let rank = Rank(rank as u32);
        hasher.update(topology.node(rank).0.to_le_bytes());
        if let Near::InDomains(domains) = near {
            hasher.update(domains.domain(rank).0.to_le_bytes());
        }
        if let Some(statement) = statement {
            hasher.update(statement.uuid);
            hasher.update(statement.driver.to_le_bytes());
            hasher.update(statement.boot.trim());
        }
        hasher.update([0]);
    }
    hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A kept result that every rank has and reads alike.
fn kept_by_all(
    group: &Group,
    name: &str,
    fresh: bool,
    deadline: Deadline,
) -> Result<Option<Vec<LinkFacts>>, ExecuteError> {
    let mine = if fresh {
        None
    } else {
        kept::read(name).filter(|text| serde_json::from_slice::<Vec<LinkFacts>>(text).is_ok())
    };
    let all: Vec<Option<Vec<u8>>> = gather(group, &mine, deadline)?;
    let same = all.iter().all(|text| text.is_some() && *text == all[0]);
    Ok(mine.filter(|_| same).and_then(|text| serde_json::from_slice(&text).ok()))
}

type Peers = (BTreeMap<Rank, DeviceSpan>, Option<SharedBuffer>);

/// Opens the ends of all ranks that this rank is paired with.
fn open_peers(
    group: &Group,
    own: Option<(&Device, &LinkEnd)>,
    pairs: &[(Rank, Rank)],
    handles: Handles,
    deadline: Deadline,
) -> Result<Peers, ExecuteError> {
    let export = |(device, end): (&Device, &LinkEnd)| {
        let memory = end.memory();
        share(&group.server, device, memory.address(), memory.bytes(), handles)
    };
    let shared = own.map(export).transpose();
    let handle = shared.as_ref().ok().and_then(|shared| shared.as_ref().map(|(handle, _)| handle.clone()));
    let told: Vec<Option<SharedHandle>> = gather(group, &handle, deadline)?;
    let Some(((device, _), (_, buffer))) = own.zip(shared?) else { return Ok((BTreeMap::new(), None)) };
    let mut peers = BTreeMap::new();
    for &(from, to) in pairs.iter().filter(|(from, to)| [*from, *to].contains(&group.rank)) {
        let peer = if from == group.rank { to } else { from };
        if peers.contains_key(&peer) {
            continue;
        }
        let Some(handle) = &told[peer.index()] else {
            return Err(unreadable(peer, postcard::Error::DeserializeUnexpectedEnd));
        };
        let memory = PeerMemory::open(device, handle, &group.segments, group.server_of(peer), deadline)?;
        peers.insert(peer, DeviceSpan::of_peer(&memory));
    }
    Ok((peers, Some(buffer)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_has_a_round_in_which_its_ranks_do_nothing_else() {
        let ranks = || (0..9).map(Rank);
        let pairs: Pairs =
            ranks().flat_map(|from| ranks().filter(move |&to| to != from).map(move |to| (from, to))).collect();
        let together = rounds(&pairs, false);
        for round in &together {
            let busy: BTreeSet<Rank> = round.iter().flat_map(|&(from, to)| [from, to]).collect();
            assert_eq!(busy.len(), 2 * round.len(), "{round:?}");
        }
        let mut all = together.concat();
        all.sort_unstable();
        assert_eq!(all, pairs);
        assert!(together.len() <= 36 && together.len() >= 18, "{} rounds", together.len());
        assert_eq!(rounds(&pairs, true).len(), pairs.len());
    }

    #[test]
    fn one_bad_link_is_enough() {
        let link = |from, to, verdict| LinkFacts { from: Rank(from), to: Rank(to), verdict };
        let good = link(0, 1, LinkVerdict::Good { rate: None });
        assert_eq!(broken(&[]), None);
        assert_eq!(broken(std::slice::from_ref(&good)), None);
        let why = broken(&[good.clone(), link(1, 0, LinkVerdict::Broken { wrong: 3 })]).unwrap();
        assert!(why.contains("rank 1 to that of rank 0") && why.contains("3 wrong"), "{why}");
        let why = broken(&[link(2, 0, LinkVerdict::Failed { why: "no memory".into() }), good]).unwrap();
        assert!(why.contains("no memory"), "{why}");
    }
}
