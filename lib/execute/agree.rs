//! All ranks want the same, or none goes on. In: each rank's manifest, options, and whether its buffers are good.
//! Out: what the ranks decide together (chunk size, who can be read). Guarantee: every rank returns the same
//! verdict; a difference is named by rank, tensor, field and both values.

use super::tensors::{LocalTensors, Mappable, MemoryOf};
use super::{ExecuteError, Group};
use crate::base::{Deadline, Rank};
use crate::plan::Manifest;
use crate::plan::digest::{ManifestDigest, field_values, first_difference};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::Ordering;

/// What a rank states before anything is prepared.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Hello {
    root: [u8; 32],
    context: [u8; 32],
    /// Why this rank's settings cannot be read.
    unreadable: Option<String>,
    /// What is wrong with its manifest or buffers.
    fault: Option<String>,
    all_shared: bool,
    memory: MemoryOf,
    /// How peers can map its device memory: of sources, of destinations.
    mappable: [Mappable; 2],
    /// Identities of its devices.
    devices: Vec<[u8; 16]>,
    number: u64,
    chunk: u64,
    cores: u32,
}

/// Options and facts that all ranks must share, in the order in which they are compared.
pub(super) const OPTIONS: [&str; 5] = ["version", "route", "injection", "mapped memory (CROSSMESH_MAPPED)", "domains"];

/// What ranks decided together.
#[derive(Debug, Clone)]
pub(super) struct Agreement {
    /// Names this transfer, unlike any other of the job.
    pub(super) context: u64,
    /// Per rank, whether all its buffers are shared.
    pub(super) all_shared: Vec<bool>,
    /// Per rank, where its tensors are.
    pub(super) memory: Vec<MemoryOf>,
    /// Per rank, how peers can map its device memory: of sources, of destinations.
    pub(super) mappable: Vec<[Mappable; 2]>,
    /// Per rank, the identities of its devices.
    pub(super) devices: Vec<Vec<[u8; 16]>>,
    /// Smallest chunk that any rank asked for.
    pub(super) chunk: u64,
    /// Fewest cores that any rank may run on.
    pub(super) cores: u32,
}

impl Agreement {
    /// Whether any rank has tensors on a device.
    pub(super) fn is_on_devices(&self) -> bool {
        self.devices.iter().any(|devices| !devices.is_empty())
    }

    /// Whether no other rank uses a device of `rank`.
    pub(super) fn has_devices_alone(&self, rank: Rank) -> bool {
        let own = &self.devices[rank.index()];
        let mut others = self.devices.iter().enumerate().filter(|&(other, _)| other != rank.index());
        others.all(|(_, devices)| devices.iter().all(|device| !own.contains(device)))
    }
}

/// An error with its sources, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// Compares manifests and options. `settings` says whether this rank could read its own (`options` and `chunk` are
/// defaults if not), `local` is its check of the buffers. A difference goes before a bad buffer, which may follow
/// from it.
pub(super) fn agree(
    group: &Group,
    manifest: &Manifest,
    (options, chunk): (&[String], u64),
    settings: Result<(), ExecuteError>,
    local: Result<LocalTensors, ExecuteError>,
    deadline: Deadline,
) -> Result<(LocalTensors, Agreement), ExecuteError> {
    let digest = ManifestDigest::new(manifest, options.join("\n").as_bytes());
    let hello = Hello {
        root: digest.root,
        context: digest.context,
        unreadable: settings.as_ref().err().map(|error| chain(error)),
        fault: local.as_ref().err().map(|error| chain(error)),
        all_shared: local.as_ref().is_ok_and(LocalTensors::all_shared),
        memory: local.as_ref().map_or(MemoryOf::None, LocalTensors::memory),
        mappable: local.as_ref().map_or_else(|_| Default::default(), |local| local.mappable),
        devices: local.as_ref().map_or_else(|_| Vec::new(), |local| local.identities.clone()),
        number: group.transfers.load(Ordering::Acquire),
        chunk,
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
    };
    let hellos: Vec<Hello> = gather(group, &hello, deadline)?;
    first_fault(group, hellos.iter().map(|hello| hello.unreadable.as_deref()), settings)?;
    if let Some((first, other)) = odd_one_out(&hellos) {
        let contexts_differ = hellos[other].context != hellos[first].context;
        let ranks = (Rank(first as u32), Rank(other as u32));
        return Err(difference(group, manifest, &digest, options, ranks, contexts_differ, deadline)?);
    }
    let local = first_fault(group, hellos.iter().map(|hello| hello.fault.as_deref()), local)?;
    let number = hellos.iter().map(|hello| hello.number).max().unwrap_or(0);
    group.transfers.store(number + 1, Ordering::Release);
    let agreement = Agreement {
        context: context("turns of a transfer", &[group.context, number]),
        all_shared: hellos.iter().map(|hello| hello.all_shared).collect(),
        memory: hellos.iter().map(|hello| hello.memory).collect(),
        mappable: hellos.iter().map(|hello| hello.mappable).collect(),
        devices: hellos.iter().map(|hello| hello.devices.clone()).collect(),
        chunk: hellos.iter().map(|hello| hello.chunk).min().unwrap_or(chunk),
        cores: hellos.iter().map(|hello| hello.cores).min().unwrap_or(1),
    };
    Ok((local, agreement))
}

/// A number for turns, equal on the ranks that take them and unlike that of any others: what they are, and of whom.
pub(super) fn context(what: &str, of: &[u64]) -> u64 {
    let mut hasher = Sha256::new();
    hasher.update(what.as_bytes());
    of.iter().for_each(|number| hasher.update(number.to_le_bytes()));
    hasher.finalize().iter().take(8).fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)) >> 1 | 1
}

/// Tells everybody whether this rank could do its part; an error on any rank is an error on all.
pub(crate) fn commit<T, E: Error + From<ExecuteError>>(
    group: &Group,
    mine: Result<T, E>,
    deadline: Deadline,
) -> Result<T, E> {
    let fault = mine.as_ref().err().map(|error| chain(error));
    let faults: Vec<Option<String>> = gather(group, &fault, deadline)?;
    first_fault(group, faults.iter().map(Option::as_deref), mine)
}

/// An error of this rank, or of the first rank that states one.
pub(super) fn first_fault<'a, T, E: From<ExecuteError>>(
    group: &Group,
    faults: impl Iterator<Item = Option<&'a str>>,
    mine: Result<T, E>,
) -> Result<T, E> {
    let value = mine?;
    match faults.enumerate().find_map(|(rank, fault)| fault.map(|message| (rank, message))) {
        Some((rank, message)) => {
            let rank = Rank(rank as u32);
            let host = group.topology.host(rank).to_string();
            Err(ExecuteError::OtherRank { rank, host, message: message.to_string() }.into())
        }
        None => Ok(value),
    }
}

/// The first rank of the largest number that agree, and the first that differs from it.
fn odd_one_out(hellos: &[Hello]) -> Option<(usize, usize)> {
    let mut counts: HashMap<[u8; 32], usize> = HashMap::new();
    for hello in hellos {
        *counts.entry(hello.root).or_default() += 1;
    }
    let most = counts.values().max();
    let first = hellos.iter().position(|hello| counts.get(&hello.root) == most)?;
    let other = hellos.iter().position(|hello| hello.root != hellos[first].root)?;
    Some((first, other))
}

/// Finds the first difference between the two ranks; every rank runs it.
fn difference(
    group: &Group,
    manifest: &Manifest,
    digest: &ManifestDigest,
    options: &[String],
    (first, other): (Rank, Rank),
    contexts_differ: bool,
    deadline: Deadline,
) -> Result<ExecuteError, ExecuteError> {
    let concerned = first == group.rank || other == group.rank;
    if contexts_differ {
        let values: Vec<Vec<String>> = gather(group, if concerned { options } else { &[] }, deadline)?;
        let (reference, differing) = (&values[first.index()], &values[other.index()]);
        // Equal options in unequal hashes are hashed in another way: another version's.
        let field = (0..OPTIONS.len()).find(|&field| reference.get(field) != differing.get(field)).unwrap_or(0);
        let value = |values: &[String]| values.get(field).cloned().unwrap_or_else(|| "not stated".into());
        let (first_value, other_value) = (value(reference), value(differing));
        return Ok(ExecuteError::OptionsDiffer { first, other, what: OPTIONS[field], first_value, other_value });
    }
    // Eight bytes of a leaf tell tensors apart well enough to find the first that differs.
    let leaves: Vec<u64> =
        digest.leaves.iter().map(|leaf| leaf.iter().take(8).fold(0, |sum, &byte| sum << 8 | u64::from(byte))).collect();
    // Only the two that are compared: all leaves of all ranks would be as many as the job has shards.
    let all: Vec<Vec<u64>> = gather(group, if concerned { &leaves[..] } else { &[] }, deadline)?;
    let (reference, differing) = (&all[first.index()], &all[other.index()]);
    let shorter = reference.len().min(differing.len());
    let tensor = (0..shorter).find(|&index| reference[index] != differing[index]).unwrap_or(shorter);
    let spec = manifest.tensors().get(tensor).filter(|_| concerned);
    let mine = spec.map(|spec| field_values(spec).to_vec()).unwrap_or_default();
    let values: Vec<Vec<String>> = gather(group, &mine, deadline)?;
    let found = first_difference(tensor, &values[first.index()], &values[other.index()]);
    Ok(match found {
        Some(found) => ExecuteError::Disagreement {
            first,
            other,
            tensor,
            name: found.name,
            field: found.field,
            first_value: found.first,
            other_value: found.other,
        },
        None => ExecuteError::OptionsDiffer {
            first,
            other,
            what: "number of tensors",
            first_value: reference.len().to_string(),
            other_value: differing.len().to_string(),
        },
    })
}

/// Everybody's value.
pub(crate) fn gather<T: Serialize + ?Sized, R: for<'a> Deserialize<'a>>(
    group: &Group,
    mine: &T,
    deadline: Deadline,
) -> Result<Vec<R>, ExecuteError> {
    let encoded = postcard::to_allocvec(mine).map_err(|source| unreadable(group.rank, source))?;
    let all = group.allgather(&encoded, deadline)?;
    all.iter()
        .enumerate()
        .map(|(rank, bytes)| postcard::from_bytes(bytes).map_err(|source| unreadable(Rank(rank as u32), source)))
        .collect()
}

pub(super) fn unreadable(peer: Rank, source: postcard::Error) -> ExecuteError {
    ExecuteError::Unreadable { peer, source }
}
