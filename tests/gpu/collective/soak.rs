//! Many random calls on several channels. In: a group of ranks. Out: an outcome. Guarantee: all ranks make the same calls on
//! each channel, but put those of different channels on their streams in an order of their own; graphs are replayed between
//! them; what is looked at is compared with the host's result, and so is a last call of each form.

use super::make::{before, call, wrong};
use super::trial::{Random, Trial};
use crate::access::{put, take_first};
use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::collective::{Kind, ReduceOperation};
use crossmesh::comm::{Buffer, Channel, ChannelOptions, Communicator, Device, DeviceMemory, Stream};
use crossmesh::layout::Dtype;
use crossmesh::memory::device::{Capture, Graph};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

type Failure = Box<dyn Error>;

/// Cases: calls of all forms; large calls, whose blocks fill a GPU.
pub(crate) const NAMES: [&str; 2] = ["calls", "large"];

/// Channels of a rank.
const LANES: usize = 2;
const GRAPHS: u64 = 8;
/// Calls that are put on streams together.
const TOGETHER: usize = 24;
/// Batches between two looks, where that is not more than [`LOOKS`] of them.
const BETWEEN: u64 = 4;
const LOOKS: u64 = 2500;
/// Longest wait of a kernel: channels that keep each other out would wait for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// A channel with what belongs to it.
struct Lane {
    channel: Channel,
    stream: Stream,
    buffer: Buffer,
    graphs: Vec<(Graph, u64)>,
}

/// What is done on a channel.
#[derive(Clone, Copy)]
enum Step {
    Call(Trial),
    Replay(usize),
}

pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let (made, wrong) = match soak(world, name == "large") {
        Ok(found) => found,
        Err(error) => (0, Some(format!("rank {}: {error}", world.rank().0))),
    };
    let all = world.allgather(wrong.unwrap_or_default().as_bytes(), deadline())?;
    let (case, ranks) = (format!("collectives, {LANES} channels: {name}"), world.size() as u32);
    Ok(match all.iter().find(|text| !text.is_empty()) {
        None => Outcome::passed(&case, ranks).with("calls", made as f64),
        Some(text) => Outcome::failed(&case, ranks, String::from_utf8_lossy(text).into_owned()),
    })
}

/// Number of calls: `CROSSMESH_TEST_CALLS`.
fn wanted(large: bool, ranks: u32) -> u64 {
    let named = std::env::var("CROSSMESH_TEST_CALLS").ok().and_then(|text| text.parse::<u64>().ok());
    match (large, ranks) {
        (true, _) => 2000,
        (false, 2) => named.unwrap_or(3000),
        // Hosts order each call of ranks that share a GPU, which takes its time.
        _ => 100,
    }
}

/// Makes calls; how many, and what is wrong.
fn soak(world: &Communicator, large: bool) -> Result<(u64, Option<String>), Failure> {
    let ranks = world.size() as u32;
    let most = if large { 4_000_000 } else { 100_000 } / u64::from(ranks);
    let mut random = Random(if large { 11 } else { 5 });
    let mut lanes: Vec<Lane> = (0..LANES).map(|_| Lane::new(world, most)).collect::<Result<_, _>>()?;
    if ranks == 2 {
        for lane in &mut lanes {
            lane.capture(&mut random, ranks, if large { most } else { 20_000 })?;
        }
    }
    let wanted = wanted(large, ranks);
    let between = BETWEEN.max(wanted / TOGETHER as u64 / LOOKS);
    let (mut made, mut batch) = (0, 0u64);
    while made < wanted {
        let steps: Vec<(usize, Step)> =
            (0..TOGETHER).map(|_| any_step(&mut random, &lanes, ranks, most, large)).collect();
        // The channels in one order here, in another there; but hosts that order calls wait for each other.
        let first = if ranks == 2 { (world.rank().0 as u64 + batch) as usize % LANES } else { 0 };
        for lane in (0..LANES).map(|number| (first + number) % LANES) {
            for (_, step) in steps.iter().filter(|(of, _)| *of == lane) {
                made += lanes[lane].make(step)?;
            }
        }
        batch += 1;
        if batch % between == 0 || made >= wanted {
            for lane in &mut lanes {
                let trial = Trial::random(&mut random, ranks, most.min(100_000));
                if let Some(wrong) = lane.look(&trial, ranks)? {
                    return Ok((made, Some(format!("rank {}, after {made} calls: {wrong}", world.rank().0))));
                }
            }
        }
    }
    Ok((made, None))
}

fn any_step(random: &mut Random, lanes: &[Lane], ranks: u32, most: u64, large: bool) -> (usize, Step) {
    let lane = random.below(LANES as u64) as usize;
    let graphs = lanes[lane].graphs.len() as u64;
    if graphs > 0 && random.below(4) == 0 {
        return (lane, Step::Replay(random.below(graphs) as usize));
    }
    (lane, Step::Call(if large { large_one(random, most) } else { Trial::random(random, ranks, most) }))
}

fn large_one(random: &mut Random, most: u64) -> Trial {
    let (kind, operation) = (Kind::AllReduce, ReduceOperation::Sum);
    let (count, in_place) = (random.one_of(&[100_000, 300_000, most / 4, most]), random.below(2) == 0);
    Trial { kind, dtype: Dtype::BF16, operation, count, root: 0, in_place, shift: 0, seed: random.next() }
}

impl Lane {
    fn new(world: &Communicator, most: u64) -> Result<Self, Failure> {
        let device = Device::open(world.rank().0 % Device::count()?)?;
        let options = ChannelOptions { limit: Some(LIMIT), ..ChannelOptions::default() };
        let channel = world.channel(&device, &options, deadline())?;
        // An all-gather of the largest elements, out of place.
        let room = most * 8 * (world.size() as u64 + 1) + 4096;
        let buffer = Buffer::on_device(&Arc::new(DeviceMemory::new(&device, room)?));
        Ok(Self { channel, stream: Stream::new(&device)?, buffer, graphs: Vec::new() })
    }

    /// Captures graphs of a few calls each.
    fn capture(&mut self, random: &mut Random, ranks: u32, most: u64) -> Result<(), Failure> {
        for _ in 0..GRAPHS {
            let calls = random.below(4) + 1;
            let capture = Capture::begin(&self.stream)?;
            for _ in 0..calls {
                call(&mut self.channel, &self.stream, &Trial::random(random, ranks, most), &self.buffer)?;
            }
            self.graphs.push((capture.end()?, calls));
        }
        Ok(())
    }

    /// Puts a step on the stream; the number of its calls.
    fn make(&mut self, step: &Step) -> Result<u64, Failure> {
        match step {
            Step::Call(trial) => {
                call(&mut self.channel, &self.stream, trial, &self.buffer)?;
                Ok(1)
            }
            Step::Replay(graph) => {
                self.graphs[*graph].0.launch(&self.stream)?;
                Ok(self.graphs[*graph].1)
            }
        }
    }

    /// Makes a call once all that was put on the stream has run, and compares.
    fn look(&mut self, trial: &Trial, ranks: u32) -> Result<Option<String>, Failure> {
        self.stream.synchronize(deadline())?;
        self.channel.check()?;
        let (rank, room) = (self.channel.rank().0, trial.room(ranks));
        put(&self.buffer, &before(trial, rank, ranks, room));
        self.make(&Step::Call(*trial))?;
        self.stream.synchronize(deadline())?;
        self.channel.check()?;
        Ok(wrong(trial, rank, ranks, &take_first(&self.buffer, room), None))
    }
}
