//! How channels of collectives are made, and what a kernel writes over their links. In: names of cases, settings of the job.
//! Out: results of rank 0. Guarantee: every rank's verdict counts; a channel that is refused is refused on every rank alike,
//! and the job goes on.

use crate::job::LIMIT_ON_HOSTS;
use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::base::{Deadline, Rank};
use crossmesh::collective::Connection;
use crossmesh::collective::device::{PeerWrite, Rehearsal};
use crossmesh::comm::{Channel, ChannelOptions, Communicator, Device};
use std::error::Error;

type Failure = Box<dyn Error>;

/// Bytes that a rank writes to each other one: no multiple of any access but the narrowest.
const PART: u64 = 3 * (64 << 10) + 4099;

/// `refused:WORDS`: no channel over several GPUs, with these words, nor in one process; `refused-apart:WORDS`: where ranks have
/// different settings; `one-gpu`: channels of ranks on one GPU; `ordered`,
/// `nvlink`: how the ranks of a channel reach each other; `written`: a kernel writes to all peers.
pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let (kind, words) = name.split_once(':').unwrap_or((name, ""));
    let wrong = match kind {
        "refused" => {
            refused(world, words).and_then(|wrong| if wrong.is_some() { Ok(wrong) } else { refused_here(words) })
        }
        "refused-apart" => refused(world, words),
        "one-gpu" => one_gpu(world),
        "ordered" => connected(world, Connection::Ordered),
        "nvlink" => connected(world, Connection::FullNvlink),
        "written" => written(world),
        other => return Err(format!("no case {other}").into()),
    };
    let wrong = wrong.unwrap_or_else(|error| Some(error.to_string())).unwrap_or_default();
    let all = world.allgather(wrong.as_bytes(), deadline())?;
    let ranks = world.size() as u32;
    Ok(match all.iter().find(|text| !text.is_empty()) {
        None => Outcome::passed(name, ranks),
        Some(text) => Outcome::failed(name, ranks, String::from_utf8_lossy(text).into_owned()),
    })
}

fn options() -> ChannelOptions {
    ChannelOptions { push_bytes: Some(4096), staging_bytes: Some(1 << 20), ..ChannelOptions::default() }
}

/// Kernels of all types are compiled first, where no cache has them.
fn patient() -> Deadline {
    Deadline::seconds(LIMIT_ON_HOSTS.as_secs() / 3)
}

fn own_device(world: &Communicator) -> Result<Device, Failure> {
    Ok(Device::open(world.rank().0 % Device::count()?)?)
}

/// An error with its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn refused(world: &Communicator, words: &str) -> Result<Option<String>, Failure> {
    let device = own_device(world)?;
    let error = match world.channel(&device, &options(), patient()) {
        Ok(channel) => return Ok(Some(format!("rank {} has {channel:?}", world.rank()))),
        Err(error) => chain(&error),
    };
    let all = world.allgather(error.as_bytes(), deadline())?;
    if !error.contains(words) || all.iter().any(|other| *other != all[0]) {
        return Ok(Some(error));
    }
    Ok(None)
}

fn refused_here(words: &str) -> Result<Option<String>, Failure> {
    let devices = (0..Device::count()?).map(Device::open).collect::<Result<Vec<_>, _>>()?;
    match Channel::all(&devices, &options(), patient()) {
        Ok(channels) => Ok(Some(format!("in one process: {channels:?}"))),
        Err(error) => Ok(Some(chain(&error)).filter(|error| !error.contains(words))),
    }
}

fn one_gpu(world: &Communicator) -> Result<Option<String>, Failure> {
    let device = Device::open(0)?;
    let apart = world.channel(&device, &options(), patient())?;
    let here = Channel::all(&[device.clone(), device], &options(), patient())?;
    let found = (apart.connection(), apart.size(), here.len());
    Ok((found != (Connection::Ordered, world.size() as u32, 2)).then(|| format!("{found:?}")))
}

fn connected(world: &Communicator, expected: Connection) -> Result<Option<String>, Failure> {
    let channel = world.channel(&own_device(world)?, &options(), patient())?;
    let found = channel.connection();
    Ok((found != expected).then(|| format!("{found:?}")))
}

fn byte_at(from: u32, to: u32, at: u64) -> u8 {
    (at * 7 + (at >> 8) * 3 + u64::from(from) * 101 + u64::from(to) * 53) as u8
}

/// Each rank's operands: a part for each rank, and behind them room for one of each. Part `to` of rank `from` goes to the room
/// that rank `to` has for rank `from`.
fn written(world: &Communicator) -> Result<Option<String>, Failure> {
    let (ranks, rank) = (world.size() as u32, world.rank().0);
    let channel = world.channel(&own_device(world)?, &options(), patient())?;
    let room = |number: u32| PART * u64::from(number);
    let mut rehearsal = Rehearsal::new(channel, room(2 * ranks), 1)?;
    rehearsal.register(deadline())?;
    let parts = |from: u32, to: u32| (0..PART).map(move |at| byte_at(from, to, at));
    let before: Vec<u8> = (0..ranks).flat_map(|to| parts(rank, to)).collect();
    rehearsal.write(0, &before, deadline())?;
    rehearsal.write(room(ranks), &vec![0; before.len()], deadline())?;
    let write = |peer: u32| PeerWrite { peer: Rank(peer), from: room(peer), to: room(ranks + rank), bytes: PART };
    let writes: Vec<PeerWrite> = (0..ranks).filter(|&peer| peer != rank).map(write).collect();
    let beyond = PeerWrite { to: room(2 * ranks) - PART + 1, ..writes[0] };
    if rehearsal.prepare_writes(&[beyond], deadline()).is_ok() {
        return Ok(Some("a write beyond a peer's operands is made ready".into()));
    }
    rehearsal.prepare_writes(&writes, deadline())?;
    world.barrier(deadline())?;
    for _ in 0..2 {
        rehearsal.write_peers()?;
    }
    rehearsal.finish(deadline())?;
    world.barrier(deadline())?;
    let mut found = vec![0; before.len()];
    rehearsal.read(room(ranks), &mut found, deadline())?;
    // Nobody writes to the room of its own rank.
    let expected = (0..ranks).flat_map(|from| parts(from, rank).map(move |byte| if from == rank { 0 } else { byte }));
    let wrong = expected.zip(&found).filter(|(expected, found)| expected != *found).count();
    let mut kept = vec![0; before.len()];
    rehearsal.read(0, &mut kept, deadline())?;
    Ok((wrong > 0 || kept != before).then(|| format!("{wrong} bytes are wrong at rank {rank}")))
}
