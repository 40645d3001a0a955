//! All ranks in one process, several on a GPU. In: numbers of ranks. Out: an outcome for each. Guarantee: every algorithm, kind,
//! type and reduction is compared with the host's result at sizes from nothing to several launches.

use super::make::{before, call, wrong};
use super::trial::{Random, Trial, all_of};
use crate::access::{put, take_first};
use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::collective::{Algorithm, Determinism, Kind};
use crossmesh::comm::{Buffer, Channel, ChannelOptions, Device, DeviceMemory, Stream};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn Error>;

/// Cases: numbers of ranks; many calls; many calls by lines; the fused call.
pub(crate) const NAMES: [&str; 9] = ["1", "2", "3", "4", "5", "8", "clean", "lines", "norm"];
/// Room of a rank's buffer.
const ROOM: u64 = 4 << 20;
/// Small, so that larger calls take several launches.
const PUSH: u64 = 64 << 10;
const LINES: u64 = 600_000;
const STAGING: u64 = 256 << 10;
const RANDOM: usize = 200;
/// Most elements of a call by lines, which warps take in several turns; a few bytes less than [`LINES`] of the widest.
const MOST_BY_LINES: u64 = 70_001;
/// Calls by lines that are put on streams together, and how often that is done.
const TOGETHER: usize = 6;
const ROUNDS: usize = 100;

pub(crate) fn run(names: &[String]) -> Result<(), Failure> {
    for name in names {
        let began = Instant::now();
        let outcome = match name.as_str() {
            "clean" => cleaning(),
            "lines" => lines(),
            "norm" => normed(),
            ranks => ranks.parse().map_err(Failure::from).and_then(every_algorithm),
        };
        let outcome = outcome.unwrap_or_else(|error| Outcome::failed(name, 1, format!("{error}")));
        let outcome = Outcome { case: format!("in one process: {name}"), ..outcome };
        outcome.with("seconds", began.elapsed().as_secs_f64()).print();
    }
    Ok(())
}

struct Ranks {
    channels: Vec<Channel>,
    streams: Vec<Stream>,
    buffers: Vec<Buffer>,
}

impl Ranks {
    fn new(ranks: u32, options: &ChannelOptions) -> Result<Self, Failure> {
        let devices = devices(ranks)?;
        let channels = Channel::all(&devices, options, deadline())?;
        let streams: Vec<Stream> = devices.iter().map(Stream::new).collect::<Result<_, _>>()?;
        let buffers = buffers(&devices)?;
        // A stream's first use may wait for kernels of others on its device.
        for (stream, device) in streams.iter().zip(&devices) {
            stream.clear(&Arc::new(DeviceMemory::new(device, 16)?))?;
            stream.synchronize(deadline())?;
        }
        Ok(Self { channels, streams, buffers })
    }

    fn register(&mut self) -> Result<(), Failure> {
        Ok(Channel::register_all(&mut self.channels, &self.buffers, deadline())?)
    }

    /// Makes a call on all ranks, by a ring where the bytes of its slots are stated; what is wrong with its result.
    fn make(&mut self, trial: &Trial, ring: Option<u64>) -> Result<Option<String>, Failure> {
        let buffers = self.buffers.clone();
        self.make_together(&[(*trial, buffers)], ring)
    }

    /// The same of several calls on a buffer of each rank, none of which is waited for before the last is on its stream.
    fn make_together(&mut self, trials: &[(Trial, Vec<Buffer>)], ring: Option<u64>) -> Result<Option<String>, Failure> {
        let ranks = self.channels.len() as u32;
        let room = |trial: &Trial| trial.room(ranks).min(ROOM);
        self.wait()?;
        for (trial, buffers) in trials {
            of_each(buffers, |rank, buffer| put(buffer, &before(trial, rank, ranks, room(trial))));
        }
        for (trial, buffers) in trials {
            for ((channel, stream), buffer) in self.channels.iter_mut().zip(&self.streams).zip(buffers) {
                call(channel, stream, trial, buffer)?;
            }
        }
        self.wait()?;
        let judge = |(trial, buffers): &(Trial, Vec<Buffer>)| {
            of_each(buffers, |rank, buffer| wrong(trial, rank, ranks, &take_first(buffer, room(trial)), ring))
        };
        Ok(trials.iter().flat_map(judge).flatten().next())
    }

    fn wait(&self) -> Result<(), Failure> {
        for (channel, stream) in self.channels.iter().zip(&self.streams) {
            stream.synchronize(deadline())?;
            channel.check()?;
        }
        Ok(())
    }
}

/// What comes of every rank's number and buffer: all at once, since the host's part takes longest.
fn of_each<T: Send>(buffers: &[Buffer], work: impl Fn(u32, &Buffer) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |(rank, buffer)| scope.spawn(move || work(rank as u32, buffer));
        let threads: Vec<_> = buffers.iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank's part does not panic")).collect()
    })
}

fn buffers(devices: &[Device]) -> Result<Vec<Buffer>, Failure> {
    devices.iter().map(|device| Ok(Buffer::on_device(&Arc::new(DeviceMemory::new(device, ROOM)?)))).collect()
}

/// The device of each rank.
fn devices(ranks: u32) -> Result<Vec<Device>, Failure> {
    let count = Device::count()?;
    Ok((0..ranks).map(|rank| Device::open(rank % count)).collect::<Result<_, _>>()?)
}

fn every_algorithm(ranks: u32) -> Result<Outcome, Failure> {
    let all = [
        Algorithm::OneShotPush,
        Algorithm::LinePush,
        Algorithm::OneShotPull,
        Algorithm::TwoShotPush,
        Algorithm::TwoShot,
        Algorithm::ShardPush,
        Algorithm::Ring,
    ];
    let mut calls = 0;
    // As long as these are there, kernels need not be loaded anew.
    let _loaded = Ranks::new(ranks, &ChannelOptions::default())?;
    for algorithm in all {
        let ring = (algorithm == Algorithm::Ring).then_some(PUSH);
        for registered in [false, true] {
            // It writes to the outputs of others.
            if algorithm == Algorithm::ShardPush && !registered {
                continue;
            }
            let mut here = Ranks::new(ranks, &forced(algorithm))?;
            if registered {
                here.register()?;
            }
            for trial in trials(ranks, algorithm) {
                calls += 1;
                if let Some(wrong) = here.make(&trial, ring)? {
                    return Ok(Outcome::failed("", ranks, format!("{algorithm}, registered {registered}: {wrong}")));
                }
            }
        }
    }
    let mut here =
        Ranks::new(ranks, &ChannelOptions { determinism: Determinism::SizeInvariant, ..Default::default() })?;
    let mut random = Random(ranks.into());
    for _ in 0..RANDOM {
        let trial = Trial::random(&mut random, ranks, 60_000 / u64::from(ranks));
        calls += 1;
        if let Some(wrong) = here.make(&trial, None)? {
            return Ok(Outcome::failed("", ranks, wrong));
        }
    }
    Ok(Outcome::passed("", ranks).with("calls", f64::from(calls)))
}

/// A channel with little memory, whose calls all go by `algorithm`.
fn forced(algorithm: Algorithm) -> ChannelOptions {
    let [push_bytes, line_bytes, staging_bytes] = [PUSH, LINES, STAGING].map(Some);
    ChannelOptions { push_bytes, line_bytes, staging_bytes, algorithm: Some(algorithm), ..ChannelOptions::default() }
}

/// What an algorithm can do: all sizes of all-reduce; the others by the one-shots.
fn trials(ranks: u32, algorithm: Algorithm) -> Vec<Trial> {
    let one_shot = matches!(algorithm, Algorithm::OneShotPush | Algorithm::OneShotPull);
    let most = match algorithm {
        Algorithm::OneShotPush => PUSH / 8 / u64::from(ranks),
        Algorithm::LinePush => MOST_BY_LINES,
        _ => 70_001 / u64::from(ranks),
    };
    let sizes = [0, 1, 5, 64, 1027, most];
    // Of the large ones every third, others for each algorithm.
    let of_size = |(index, &count): (usize, &u64)| {
        let (skipped, step) = if count > 64 { (algorithm as usize % 3, 3) } else { (0, 1) };
        all_of(count, index as u64 + 1).into_iter().skip(skipped).step_by(step)
    };
    let trials = sizes.iter().enumerate().flat_map(of_size);
    let possible = |trial: &Trial| {
        let fits = trial.room(ranks) <= ROOM && (algorithm != Algorithm::OneShotPush || trial.part() <= PUSH);
        fits && trial.root < ranks && (one_shot || trial.kind == Kind::AllReduce)
    };
    trials.filter(possible).collect()
}

fn normed() -> Result<Outcome, Failure> {
    let two = [(1, 8192), (64, 8192), (300, 8192), (3, 16384), (3, 132)].map(|(tokens, hidden)| (2, tokens, hidden));
    let others = [(1, 3, 4096), (3, 5, 4096), (3, 100, 8192), (4, 200, 4), (5, 3, 16388), (8, 90, 8192)];
    for (ranks, tokens, hidden) in two.into_iter().chain(others) {
        for algorithm in [Algorithm::LinePush, Algorithm::OneShotPush] {
            if let Some(wrong) = super::norm::wrong(ranks, (tokens, hidden), algorithm)? {
                return Ok(Outcome::failed("", ranks, format!("{tokens} rows of {hidden} by {algorithm}: {wrong}")));
            }
        }
    }
    Ok(Outcome::passed("", 2))
}

/// Many calls of all sizes by lines, with short last pieces, for which lanes of a warp run apart.
fn lines() -> Result<Outcome, Failure> {
    let mut calls = 0;
    for ranks in [3, 4, 5, 8] {
        let mut here = Ranks::new(ranks, &forced(Algorithm::LinePush))?;
        let sets = (0..TOGETHER).map(|_| buffers(&devices(ranks)?)).collect::<Result<Vec<_>, Failure>>()?;
        let mut random = Random(1000 + u64::from(ranks));
        for round in 0..ROUNDS {
            let trial = |buffers: &Vec<Buffer>| {
                let most = if round % 10 == 0 { MOST_BY_LINES } else { 5000 };
                let trial = Trial::random(&mut random, ranks, most);
                (Trial { kind: Kind::AllReduce, ..trial }, buffers.clone())
            };
            let trials: Vec<_> = sets.iter().map(trial).collect();
            calls += trials.len();
            if let Some(wrong) = here.make_together(&trials, None)? {
                return Ok(Outcome::failed("", ranks, format!("{ranks} ranks, round {round}: {wrong}")));
            }
        }
    }
    Ok(Outcome::passed("", 8).with("calls", calls as f64))
}

/// More calls than there are epochs, or than are made between two cleanings, with sizes that leave old words in the slots.
fn cleaning() -> Result<Outcome, Failure> {
    let mut calls = 0;
    for (ranks, algorithm, rounds) in [(2, Algorithm::OneShotPush, 70_000), (3, Algorithm::LinePush, 35_000)] {
        if let Some(wrong) = many(ranks, algorithm, rounds)? {
            return Ok(Outcome::failed("", ranks, format!("{algorithm}, {wrong}")));
        }
        calls += rounds;
    }
    Ok(Outcome::passed("", 3).with("calls", calls as f64))
}

fn many(ranks: u32, algorithm: Algorithm, rounds: u64) -> Result<Option<String>, Failure> {
    let options = ChannelOptions { algorithm: Some(algorithm), ..ChannelOptions::default() };
    let mut here = Ranks::new(ranks, &options)?;
    let mut random = Random(99);
    for round in 0..rounds {
        let trial = Trial {
            kind: Kind::AllReduce,
            dtype: crossmesh::layout::Dtype::I32,
            operation: crossmesh::collective::ReduceOperation::Sum,
            count: random.one_of(&[1, 16, 1000]),
            root: 0,
            in_place: false,
            shift: 0,
            seed: round,
        };
        if round % 1000 == 0 {
            if let Some(wrong) = here.make(&trial, None)? {
                return Ok(Some(format!("after {round} calls: {wrong}")));
            }
            continue;
        }
        for ((channel, stream), buffer) in here.channels.iter_mut().zip(&here.streams).zip(&here.buffers) {
            call(channel, stream, &trial, buffer)?;
        }
    }
    here.wait()?;
    Ok(None)
}
