//! Memory of GPUs mapped by fabric handles: between hosts of one NVLink domain, or on one host where
//! `CROSSMESH_GPU_HANDLES=fabric` says so. In: names of cases. Out: results of rank 0. Guarantee: every byte is compared, and
//! the report of every rank says how memory was mapped; what cannot be had is expected with its words.

use crate::job::LIMIT_ON_HOSTS;
use crate::moving::deadline;
use crate::results::Outcome;
use crate::trapped::{ROUTES, spring, traps_of};
use crossmesh::base::{Deadline, Rank};
use crossmesh::collective::device::Rehearsal;
use crossmesh::comm::{ChannelOptions, Communicator, Device, LinkVerdict, MappedMemories};
use crossmesh::route::RouteKind;
use std::error::Error;

type Failure = Box<dyn Error>;

/// Bytes that a rank reads from each other one.
const PART: u64 = 70_001;

/// `by-fabric`: everything is mapped by fabric handles, or the case fails; `forced`: by fabric handles, or it says why not;
/// `inside:MEMORY`: some through the hosts between domains alone, with memory of these kinds; `staged:WORDS`, `sometimes:WORDS` and `without:WORDS`: all or some through the hosts, or all without fabric handles, for a
/// reason with these words; `links`; `channel`.
pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    match name {
        "links" => links(world),
        "channel" => channel(world),
        _ => tensors(world, name),
    }
}

/// All traps on two routes, the same judgement of every report.
fn tensors(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let device = Device::open(world.rank().0 % Device::count()?)?;
    let (expected, words) = name.split_once(':').unwrap_or((name, ""));
    let kinds = match expected {
        "by-fabric" => "with-fabric",
        "inside" => words,
        _ => "on-gpus",
    };
    let mut sum = MappedMemories::default();
    let (mut transfers, mut staged, mut inside) = (0, 0, 0);
    for trap in traps_of(world.size()) {
        for route in ROUTES.into_iter().filter(|(kind, _)| *kind != RouteKind::GatherBroadcast) {
            let report = spring(world, &device, kinds, &trap, route)?;
            let told = |why: &Option<String>| why.as_ref().is_some_and(|why| why.contains(words));
            let right = match expected {
                "by-fabric" => report.staged.is_none() && report.mapped.without_fabric.is_none(),
                "forced" => report.staged.is_none(),
                "without" => report.staged.is_none() && told(&report.mapped.without_fabric),
                "staged" => told(&report.staged),
                "inside" => !report.inside || report.staged.is_some(),
                "sometimes" => report.staged.is_none() || told(&report.staged),
                other => return Err(format!("no case {other}").into()),
            };
            if !right {
                return Err(format!("{}: staged {:?}, {:?}", trap.0, report.staged, report.mapped).into());
            }
            sum.fabric += report.mapped.fabric;
            sum.descriptors += report.mapped.descriptors;
            sum.without_fabric = report.mapped.without_fabric;
            transfers += 1;
            staged += u32::from(report.staged.is_some());
            inside += u32::from(report.inside);
        }
    }
    let mine = [sum.fabric.to_le_bytes(), sum.descriptors.to_le_bytes()].concat();
    let all = world.allgather(&mine, deadline())?;
    let count = |at: usize| {
        let counts = all.iter().map(|bytes| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes));
        f64::from(counts.sum::<u32>())
    };
    let (fabric, descriptors) = (count(0), count(4));
    let ranks = world.size() as u32;
    let why = sum.without_fabric.unwrap_or_default();
    let outcome = match expected {
        "by-fabric" if fabric == 0.0 => Outcome::failed(name, ranks, "nothing was mapped by a fabric handle".into()),
        "without" | "staged" if fabric > 0.0 => Outcome::failed(name, ranks, "fabric handles were used".into()),
        "inside" if inside == 0 || (words == "with-fabric" && fabric + descriptors == 0.0) => {
            Outcome::failed(name, ranks, "GPUs of a domain did not read from each other".into())
        }
        "sometimes" if staged == 0 => Outcome::failed(name, ranks, "nothing went through the hosts".into()),
        _ => Outcome { why, ..Outcome::passed(name, ranks) },
    };
    let outcome = outcome.with("transfers", f64::from(transfers)).with("through hosts", f64::from(staged));
    let outcome = if inside > 0 { outcome.with("of these inside by GPUs", f64::from(inside)) } else { outcome };
    Ok(outcome.with("by fabric handles", fabric).with("by descriptors", descriptors))
}

/// Every pair of GPUs passes the test of ordered writes, those on two hosts too.
fn links(world: &Communicator) -> Result<Outcome, Failure> {
    let ordinal = world.rank().0 % Device::count()?;
    let links = world.test_links(ordinal, true, deadline())?;
    let ranks = world.size() as u32;
    let bad = links.iter().find(|link| !matches!(link.verdict, LinkVerdict::Good { .. }));
    let outcome = match bad {
        Some(link) => Outcome::failed("links", ranks, format!("{link:?}")),
        None if links.len() as u32 != ranks * (ranks - 1) => Outcome::failed("links", ranks, format!("{links:?}")),
        None => Outcome::passed("links", ranks),
    };
    Ok(outcome.with("pairs", links.len() as f64))
}

fn byte_at(rank: u32, at: u64) -> u8 {
    (at * 7 + (at >> 8) * 3 + u64::from(rank) * 101) as u8
}

/// Buffers that a channel registered, read by every rank from every other one.
fn channel(world: &Communicator) -> Result<Outcome, Failure> {
    // Kernels of all types are compiled first, where no cache has them.
    let patient = || Deadline::seconds(LIMIT_ON_HOSTS.as_secs() - 20);
    let (ranks, rank) = (world.size() as u32, world.rank().0);
    let device = Device::open(rank % Device::count()?)?;
    let options = ChannelOptions { push_bytes: Some(4096), staging_bytes: Some(1 << 20), ..ChannelOptions::default() };
    let channel = world.channel(&device, &options, patient())?;
    let mut rehearsal = Rehearsal::new(channel, PART * u64::from(ranks + 1), 1)?;
    rehearsal.register(deadline())?;
    let own: Vec<u8> = (0..PART).map(|at| byte_at(rank, at)).collect();
    rehearsal.write(0, &own, deadline())?;
    world.barrier(deadline())?;
    let mut wrong = 0;
    for peer in (0..ranks).filter(|&peer| peer != rank) {
        let to = PART * u64::from(peer + 1);
        rehearsal.copy_peer(Rank(peer), (0, to), PART, false)?;
        rehearsal.finish(deadline())?;
        let mut found = vec![0; PART as usize];
        rehearsal.read(to, &mut found, deadline())?;
        wrong += found.iter().zip(0..).filter(|&(&found, at)| found != byte_at(peer, at)).count();
    }
    let all = world.allgather(&[u8::from(wrong > 0)], deadline())?;
    let bad = all.iter().filter(|verdict| verdict[..] != [0]).count();
    Ok(match bad {
        0 => Outcome::passed("channel", ranks),
        bad => Outcome::failed("channel", ranks, format!("{bad} ranks read other bytes")),
    })
}
