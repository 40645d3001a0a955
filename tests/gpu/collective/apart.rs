//! A process for each rank. In: names of cases. Out: results of rank 0. Guarantee: calls are compared on every rank; ranks that
//! disagree all get an error that names both, and the channel is usable once it is formed anew.

use super::make::{before, call, wrong};
use super::trial::{Trial, all_of};
use crate::access::{put, take, take_first};
use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::collective::{Algorithm, Connection, Kind, ReduceOperation};
use crossmesh::comm::{Buffer, Channel, ChannelOptions, Communicator, Device, DeviceMemory, Stream, WorldOptions};
use crossmesh::layout::Dtype;
use crossmesh::memory::device::Capture;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn Error>;

/// Cases of two ranks, a GPU each.
pub(crate) const NAMES: [&str; 9] =
    ["matrix", "registered", "lines", "graph", "patterns", "other-size", "other-type", "absent", "communicator"];
/// Cases of more ranks, which share GPUs where there are not so many.
pub(crate) const SHARED: [&str; 2] = ["matrix", "lines"];

const ROOM: u64 = 8 << 20;
/// Longest wait of a kernel where one is meant to end so.
const LIMIT: Duration = Duration::from_secs(2);

pub(crate) fn run(names: &[String]) -> Result<(), Failure> {
    let world = Communicator::world(&WorldOptions::from_environment()?)?;
    for name in names {
        let here = Rank::new(&world, options(name))?;
        let wrong = run_case(here, name).unwrap_or_else(|error| Some(format!("{error}")));
        let all = world.allgather(wrong.unwrap_or_default().as_bytes(), deadline())?;
        let first = all.iter().find(|text| !text.is_empty());
        let ranks = world.size() as u32;
        let outcome = match first {
            None => Outcome::passed(name, ranks),
            Some(text) => Outcome::failed(name, ranks, String::from_utf8_lossy(text).into_owned()),
        };
        if world.rank().0 == 0 {
            Outcome { case: format!("collectives: {name}"), ..outcome }.print();
        }
    }
    Ok(world.finalize(deadline())?)
}

fn options(name: &str) -> ChannelOptions {
    let fails = ["other-size", "other-type", "absent"].contains(&name);
    let by_lines = name == "lines";
    ChannelOptions {
        limit: fails.then_some(LIMIT),
        algorithm: by_lines.then_some(Algorithm::LinePush),
        line_bytes: by_lines.then_some(ROOM / 2),
        ..ChannelOptions::default()
    }
}

/// What a rank works with.
struct Rank<'a> {
    world: &'a Communicator,
    channel: Channel,
    stream: Stream,
    buffer: Buffer,
}

impl<'a> Rank<'a> {
    fn new(world: &'a Communicator, options: ChannelOptions) -> Result<Self, Failure> {
        let device = Device::open(world.rank().0 % Device::count()?)?;
        let channel = world.channel(&device, &options, deadline())?;
        let buffer = Buffer::on_device(&Arc::new(DeviceMemory::new(&device, ROOM)?));
        Ok(Self { world, channel, stream: Stream::new(&device)?, buffer })
    }

    fn numbers(&self) -> (u32, u32) {
        (self.channel.rank().0, self.channel.size())
    }

    fn fill(&self, trial: &Trial) {
        let (rank, ranks) = self.numbers();
        put(&self.buffer, &before(trial, rank, ranks, trial.room(ranks)));
    }

    fn judge(&self, trial: &Trial) -> Option<String> {
        let (rank, ranks) = self.numbers();
        wrong(trial, rank, ranks, &take_first(&self.buffer, trial.room(ranks)), None)
    }

    fn make(&mut self, trial: &Trial) -> Result<Option<String>, Failure> {
        self.fill(trial);
        call(&mut self.channel, &self.stream, trial, &self.buffer)?;
        self.stream.synchronize(deadline())?;
        self.channel.check()?;
        Ok(self.judge(trial))
    }
}

fn run_case(mut here: Rank<'_>, name: &str) -> Result<Option<String>, Failure> {
    match name {
        "matrix" => matrix(&mut here),
        "registered" => {
            let buffer = here.buffer.clone();
            here.channel.register(&buffer, deadline())?;
            matrix(&mut here)
        }
        "lines" => lines(&mut here),
        "graph" => graph(&mut here),
        "patterns" => patterns(&mut here),
        "communicator" => communicator(&here),
        "other-size" | "other-type" | "absent" => disagree(&mut here, name),
        other => Err(format!("no case {other}").into()),
    }
}

fn matrix(here: &mut Rank<'_>) -> Result<Option<String>, Failure> {
    let (_, ranks) = here.numbers();
    let most = if ranks > 2 { 3001 } else { 500_001 };
    for count in [0, 1, 1027, most / u64::from(ranks)] {
        let trials = all_of(count, count + 7).into_iter().filter(|trial| trial.room(ranks) <= ROOM);
        // Hosts order each call of ranks that share a GPU, which takes its time.
        for trial in trials.step_by(if ranks > 2 { 5 } else { 1 }) {
            if let Some(wrong) = here.make(&trial)? {
                return Ok(Some(wrong));
            }
        }
    }
    Ok(None)
}

/// All-reduces by lines, one process on each GPU; processes that share one are refused.
fn lines(here: &mut Rank<'_>) -> Result<Option<String>, Failure> {
    if here.channel.connection() == Connection::Ordered {
        let refused = call(&mut here.channel, &here.stream, &sum(4096, 1), &here.buffer);
        return Ok(match refused {
            Err(error) if error.to_string().contains("shared by processes") => None,
            other => Some(format!("lines on a shared GPU: {other:?}")),
        });
    }
    for count in [0, 1, 59, 1027, 70_001, 400_001] {
        for trial in all_of(count, count + 9).into_iter().filter(|trial| trial.kind == Kind::AllReduce) {
            if let Some(wrong) = here.make(&trial)? {
                return Ok(Some(wrong));
            }
        }
    }
    Ok(None)
}

fn sum(count: u64, seed: u64) -> Trial {
    let (kind, operation) = (Kind::AllReduce, ReduceOperation::Sum);
    Trial { kind, dtype: Dtype::BF16, operation, count, root: 0, in_place: false, shift: 0, seed }
}

/// A graph of several calls, replayed between others.
fn graph(here: &mut Rank<'_>) -> Result<Option<String>, Failure> {
    let (captured, other) = (sum(5000, 1), sum(777, 2));
    let capture = Capture::begin(&here.stream)?;
    for _ in 0..3 {
        call(&mut here.channel, &here.stream, &captured, &here.buffer)?;
    }
    let graph = capture.end()?;
    for round in 0..50 {
        here.fill(&captured);
        for _ in 0..round % 4 + 1 {
            graph.launch(&here.stream)?;
        }
        here.stream.synchronize(deadline())?;
        here.channel.check()?;
        if let Some(wrong) = here.judge(&captured) {
            return Ok(Some(format!("round {round}: {wrong}")));
        }
        if round % 3 == 0
            && let Some(wrong) = here.make(&other)?
        {
            return Ok(Some(format!("between replays: {wrong}")));
        }
    }
    let second = Stream::new(here.channel.device())?;
    match call(&mut here.channel, &second, &other, &here.buffer) {
        Err(error) if error.to_string().contains("one stream") => Ok(None),
        other => Ok(Some(format!("a call on another stream: {other:?}"))),
    }
}

/// All bit patterns of 16 bits: through an all-gather as they are, through sums as IEEE 754 adds them.
fn patterns(here: &mut Rank<'_>) -> Result<Option<String>, Failure> {
    let (rank, ranks) = here.numbers();
    let all: Vec<u8> = (0..=u16::MAX).flat_map(|pattern| pattern.rotate_left(rank * 5).to_le_bytes()).collect();
    for (kind, part) in [(Kind::AllGather, all.len()), (Kind::AllReduce, all.len())] {
        for dtype in [Dtype::BF16, Dtype::F16] {
            let trial = Trial { kind, dtype, count: part as u64 / 2, ..sum(0, 0) };
            let (input, output) = trial.offsets(rank, ranks);
            let mut contents = vec![0; ROOM as usize];
            contents[input as usize..input as usize + part].copy_from_slice(&all);
            put(&here.buffer, &contents);
            call(&mut here.channel, &here.stream, &trial, &here.buffer)?;
            here.stream.synchronize(deadline())?;
            here.channel.check()?;
            let found = &take(&here.buffer)[output as usize..(output + trial.sizes(ranks).1) as usize];
            let inputs: Vec<Vec<u8>> = (0..ranks)
                .map(|rank| (0..=u16::MAX).flat_map(|bits| bits.rotate_left(rank * 5).to_le_bytes()).collect())
                .collect();
            let mut expected = inputs.concat();
            if kind == Kind::AllReduce {
                expected.truncate(part);
                let parts: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                crossmesh::collective::reduce(dtype, ReduceOperation::Sum, &parts, &mut expected)?;
            }
            if let Some(wrong) = trial.difference(found, &expected) {
                return Ok(Some(wrong));
            }
            let digests = here.world.allgather(&crc(found).to_le_bytes(), deadline())?;
            if digests.iter().any(|digest| *digest != digests[0]) {
                return Ok(Some(format!("{kind} of {dtype}: ranks have different bits")));
            }
        }
    }
    Ok(None)
}

fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(1, |state: u64, &byte| state.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte))
}

/// Rank 1 makes another call than the others, or none.
fn disagree(here: &mut Rank<'_>, name: &str) -> Result<Option<String>, Failure> {
    let (rank, _) = here.numbers();
    let (usual, words): (Trial, &[&str]) = match name {
        "other-size" => (sum(4096, 1), &["4096 BF16", "2048 BF16", "rank 0", "rank 1", "call 2"]),
        "other-type" => (sum(4096, 1), &["4096 BF16", "4096 F16", "rank 0", "rank 1", "call 2"]),
        _ => (sum(4096, 1), &["4096 BF16", "rank 1", "rank 0"]),
    };
    if let Some(wrong) = here.make(&usual)? {
        return Ok(Some(wrong));
    }
    let other = match name {
        "other-size" => Some(Trial { count: 2048, ..usual }),
        "other-type" => Some(Trial { dtype: Dtype::F16, ..usual }),
        _ => None,
    };
    let began = Instant::now();
    let mine = if rank == 1 { other } else { Some(usual) };
    if let Some(mine) = mine {
        call(&mut here.channel, &here.stream, &mine, &here.buffer)?;
    } else {
        // It comes to the next call too late.
        std::thread::sleep(LIMIT + LIMIT / 2);
        call(&mut here.channel, &here.stream, &usual, &here.buffer)?;
    }
    here.stream.synchronize(deadline())?;
    let seconds = began.elapsed().as_secs_f64();
    let text = match here.channel.check() {
        Ok(()) => return Ok(Some(format!("rank {rank}: no error after {seconds:.1} s"))),
        Err(error) => error.to_string(),
    };
    if let Some(word) = words.iter().find(|&&word| !text.contains(word)) {
        return Ok(Some(format!("rank {rank}: {word:?} is not in {text:?}")));
    }
    if call(&mut here.channel, &here.stream, &usual, &here.buffer).is_ok() {
        return Ok(Some("a call after the error is not refused".into()));
    }
    here.channel.reform(deadline())?;
    here.make(&usual)
}

/// Calls of the communicator itself.
fn communicator(here: &Rank<'_>) -> Result<Option<String>, Failure> {
    let (rank, ranks) = here.numbers();
    let buffer = Buffer::on_device(&Arc::new(DeviceMemory::new(here.channel.device(), 400)?));
    let floats = |value: f32| (0..100).flat_map(|_| value.to_le_bytes()).collect::<Vec<u8>>();
    put(&buffer, &floats(rank as f32 + 1.0));
    // SAFETY: the stream is waited for before the buffer is looked at.
    unsafe { here.world.all_reduce(&here.stream, &buffer, Dtype::F32, ReduceOperation::Sum)? };
    here.stream.synchronize(deadline())?;
    here.world.check_collectives()?;
    let expected = floats((ranks * (ranks + 1) / 2) as f32);
    Ok((take(&buffer) != expected).then(|| "the sum of 1, 2, ... is wrong".to_string()))
}
