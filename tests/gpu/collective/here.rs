//! All ranks in one process, several on a GPU. In: numbers of ranks. Out: an outcome for each. Guarantee: every algorithm, kind,
//! type and reduction is compared with the host's result at sizes from nothing to several launches.

use super::make::{before, call, wrong};
use super::trial::{Random, Trial, all_of};
use crate::access::{put, take_first};
use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::collective::{Algorithm, Determinism};
use crossmesh::comm::{Buffer, Channel, ChannelOptions, Device, DeviceMemory, Stream};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn Error>;

/// Cases: numbers of ranks.
pub(crate) const NAMES: [&str; 8] = ["1", "2", "3", "4", "5", "8", "clean", "norm"];
/// Room of a rank's buffer.
const ROOM: u64 = 4 << 20;
/// Small, so that larger calls take several launches.
const PUSH: u64 = 64 << 10;
const LINES: u64 = 600_000;
const STAGING: u64 = 256 << 10;
const RANDOM: usize = 200;

pub(crate) fn run(names: &[String]) -> Result<(), Failure> {
    for name in names {
        let began = Instant::now();
        let outcome = match name.as_str() {
            "clean" => cleaning(),
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
        let count = Device::count()?;
        let devices = (0..ranks).map(|rank| Device::open(rank % count)).collect::<Result<Vec<_>, _>>()?;
        let channels = Channel::all(&devices, options, deadline())?;
        let streams: Vec<Stream> = devices.iter().map(Stream::new).collect::<Result<_, _>>()?;
        let buffer = |device| Ok(Buffer::on_device(&Arc::new(DeviceMemory::new(device, ROOM)?)));
        let buffers = devices.iter().map(buffer).collect::<Result<_, Failure>>()?;
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
        let ranks = self.channels.len() as u32;
        let room = trial.room(ranks).min(ROOM);
        self.of_each(|rank, buffer| put(buffer, &before(trial, rank, ranks, room)));
        for ((channel, stream), buffer) in self.channels.iter_mut().zip(&self.streams).zip(&self.buffers) {
            call(channel, stream, trial, buffer)?;
        }
        for (channel, stream) in self.channels.iter().zip(&self.streams) {
            stream.synchronize(deadline())?;
            channel.check()?;
        }
        let found = self.of_each(|rank, buffer| wrong(trial, rank, ranks, &take_first(buffer, room), ring));
        Ok(found.into_iter().flatten().next())
    }

    /// What comes of every rank's number and buffer: all at once, since the host's part takes longest.
    fn of_each<T: Send>(&self, work: impl Fn(u32, &Buffer) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let work = &work;
            let start = |(rank, buffer)| scope.spawn(move || work(rank as u32, buffer));
            let threads: Vec<_> = self.buffers.iter().enumerate().map(start).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank's part does not panic")).collect()
        })
    }
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
            // The one writes to the outputs of others, the other is for two ranks.
            let is_for_pairs = algorithm == Algorithm::LinePush;
            if algorithm == Algorithm::ShardPush && !registered || is_for_pairs && ranks != 2 {
                continue;
            }
            let [push_bytes, line_bytes, staging_bytes] = [PUSH, LINES, STAGING].map(Some);
            let options = ChannelOptions { push_bytes, line_bytes, staging_bytes, ..ChannelOptions::default() };
            let mut here = Ranks::new(ranks, &ChannelOptions { algorithm: Some(algorithm), ..options })?;
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

/// What an algorithm can do: all sizes of all-reduce; the others by the one-shots.
fn trials(ranks: u32, algorithm: Algorithm) -> Vec<Trial> {
    let one_shot = matches!(algorithm, Algorithm::OneShotPush | Algorithm::OneShotPull);
    let most = if algorithm == Algorithm::OneShotPush { PUSH / 8 } else { 70_001 };
    let sizes = [0, 1, 5, 64, 1027, most / u64::from(ranks)];
    // Of the large ones every third, others for each algorithm.
    let of_size = |(index, &count): (usize, &u64)| {
        let (skipped, step) = if count > 64 { (algorithm as usize % 3, 3) } else { (0, 1) };
        all_of(count, index as u64 + 1).into_iter().skip(skipped).step_by(step)
    };
    let trials = sizes.iter().enumerate().flat_map(of_size);
    let possible = |trial: &Trial| {
        let fits = trial.room(ranks) <= ROOM && (algorithm != Algorithm::OneShotPush || trial.part() <= PUSH);
        fits && trial.root < ranks && (one_shot || trial.kind == crossmesh::collective::Kind::AllReduce)
    };
    trials.filter(possible).collect()
}

fn normed() -> Result<Outcome, Failure> {
    let shapes = [(2, 1, 8192), (2, 64, 8192), (2, 300, 8192), (2, 3, 16384), (2, 3, 132), (3, 5, 4096), (4, 200, 4)];
    for (ranks, tokens, hidden) in shapes {
        for algorithm in [Algorithm::LinePush, Algorithm::OneShotPush] {
            if algorithm == Algorithm::LinePush && ranks != 2 {
                continue;
            }
            if let Some(wrong) = super::norm::wrong(ranks, (tokens, hidden), algorithm)? {
                return Ok(Outcome::failed("", ranks, format!("{tokens} rows of {hidden} by {algorithm}: {wrong}")));
            }
        }
    }
    Ok(Outcome::passed("", 2))
}

/// More calls than there are epochs, with sizes that leave old words in the slots.
fn cleaning() -> Result<Outcome, Failure> {
    let options = ChannelOptions { algorithm: Some(Algorithm::OneShotPush), ..ChannelOptions::default() };
    let mut here = Ranks::new(2, &options)?;
    let mut random = Random(99);
    let rounds = 70_000u64;
    for round in 0..rounds {
        let trial = Trial {
            kind: crossmesh::collective::Kind::AllReduce,
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
                return Ok(Outcome::failed("", 2, format!("after {round} calls: {wrong}")));
            }
            continue;
        }
        for ((channel, stream), buffer) in here.channels.iter_mut().zip(&here.streams).zip(&here.buffers) {
            call(channel, stream, &trial, buffer)?;
        }
    }
    Ok(Outcome::passed("", 2).with("calls", rounds as f64))
}
