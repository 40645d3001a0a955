//! Runs transfers between GPUs and compares every element by digest. In: names of cases. Out: results of rank 0. Guarantee:
//! contents depend on the place in the whole tensor alone and are filled on the device; destinations are soiled before, and
//! a start is repeated, by the host, on a stream, and from a graph where that is possible.

use crate::case::{Case, case};
use crate::results::Outcome;
use crossmesh::base::Deadline;
use crossmesh::comm::{Buffer, Buffers, Communicator, Device, DeviceMemory, Reshard, ReshardOptions, Side, Stream};
use crossmesh::layout::content_digest::name_seed;
use crossmesh::layout::{Layout, View};
use crossmesh::memory::device::{Capture, Contents, DeviceBox, DeviceSpan, Event};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// Timed rounds.
const ROUNDS: usize = 15;
/// Bytes of a transfer from which fewer rounds are timed, as of one through the hosts.
const LONG: u64 = 16 << 30;
/// Starts that follow each other in a round.
const CHAIN: usize = 10;
/// What destinations hold before.
const SOIL: u8 = 0xee;

type Failure = Box<dyn Error>;

pub(crate) fn deadline() -> Deadline {
    Deadline::seconds(60)
}

/// A rank's local tensors of one side, all in one allocation.
pub(crate) struct Tensors {
    pub(crate) memory: Arc<DeviceMemory>,
    /// Tensor, byte offset.
    pub(crate) places: Vec<(usize, u64)>,
}

/// Lays a rank's local tensors of one side behind one another.
pub(crate) fn tensors(
    world: &Communicator,
    case: &Case,
    device: &Device,
    layout: impl Fn(usize) -> Arc<Layout>,
) -> Result<Tensors, Failure> {
    let mut places = Vec::new();
    let mut bytes = 0;
    for tensor in 0..case.manifest.tensors().len() {
        if layout(tensor).local_shape(world.rank()).is_some() {
            places.push((tensor, bytes));
            bytes += layout(tensor).local_bytes(world.rank()).next_multiple_of(256);
        }
    }
    Ok(Tensors { memory: Arc::new(DeviceMemory::new(device, bytes.max(1))?), places })
}

/// A box of a local tensor: byte offset, global index, extents.
type LocalBox = (u64, Vec<u64>, Vec<u64>);

/// The boxes of a rank's local tensor, and the strides of all.
fn boxes(layout: &Layout, world: &Communicator, offset: u64) -> (Vec<LocalBox>, Vec<u64>) {
    let maps = layout.axis_maps(world.rank()).unwrap_or_default();
    let shape: Vec<u64> = maps.iter().map(|map| map.extent()).collect();
    let mut strides = vec![layout.dtype().bytes(); shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    let mut boxes: Vec<LocalBox> = vec![(offset, Vec::new(), Vec::new())];
    for (map, stride) in maps.iter().zip(&strides) {
        let mut next = Vec::new();
        for (at, lo, extent) in &boxes {
            let mut local = 0;
            for interval in map.intervals() {
                let mut more = (at + local * stride, lo.clone(), extent.clone());
                more.1.push(interval.lo);
                more.2.push(interval.len());
                local += interval.len();
                next.push(more);
            }
        }
        boxes = next;
    }
    (boxes, strides)
}

/// Calls `each` for every box of every tensor.
pub(crate) fn for_boxes(
    world: &Communicator,
    case: &Case,
    tensors: &Tensors,
    layout: impl Fn(usize) -> Arc<Layout>,
    mut each: impl FnMut(DeviceBox<'_>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let memory = DeviceSpan::of_memory(&tensors.memory);
    for &(tensor, offset) in &tensors.places {
        let layout = layout(tensor);
        let seed = name_seed(&case.manifest.tensors()[tensor].name);
        let (boxes, strides) = boxes(&layout, world, offset);
        for (offset, lo, extent) in &boxes {
            let (element, shape) = (layout.dtype().bytes(), layout.shape());
            each(DeviceBox { memory: &memory, offset: *offset, element, shape, lo, extent, strides: &strides }, seed)?;
        }
    }
    Ok(())
}

fn digest(
    world: &Communicator,
    case: &Case,
    contents: &Contents,
    tensors: &Tensors,
    layout: impl Fn(usize) -> Arc<Layout>,
) -> Result<u64, Failure> {
    let mut sum = 0u64;
    // A digest for each thousand boxes would do; one for each is simple and fast enough.
    for_boxes(world, case, tensors, layout, |region, seed| {
        sum = sum.wrapping_add(contents.digest([(region, seed)], deadline())?);
        Ok(())
    })?;
    Ok(sum)
}

struct Setting<'a> {
    world: &'a Communicator,
    case: &'a Case,
    contents: Contents,
    destination: Tensors,
    expected: u64,
}

impl Setting<'_> {
    fn soil(&self) -> Result<(), Failure> {
        // SAFETY: no transfer is under way, and nobody else uses the memory.
        unsafe { self.contents.set(&DeviceSpan::of_memory(&self.destination.memory), SOIL, deadline())? };
        self.world.barrier(deadline())?;
        Ok(())
    }

    /// The number of ranks whose destinations are not as they should be.
    fn wrong(&self) -> Result<usize, Failure> {
        let layout = |tensor: usize| self.case.manifest.tensors()[tensor].destination.clone();
        let found = digest(self.world, self.case, &self.contents, &self.destination, layout)?;
        let all = self.world.allgather(&[u8::from(found != self.expected)], deadline())?;
        Ok(all.iter().filter(|verdict| verdict[..] != [0]).count())
    }
}

pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let case = case(name, world.size() as u32)?;
    let device = Device::open(case.devices[world.rank().index()])?;
    let contents = Contents::new(&device)?;
    let manifest = case.manifest.clone();
    let source_layout = |tensor: usize| manifest.tensors()[tensor].source.clone();
    let destination_layout = |tensor: usize| manifest.tensors()[tensor].destination.clone();
    let source = tensors(world, &case, &device, source_layout)?;
    let destination = tensors(world, &case, &device, destination_layout)?;
    let fill = |region: DeviceBox<'_>, seed: u64| {
        // SAFETY: the memory is ours and no transfer is under way.
        unsafe { contents.fill(&region, seed, deadline()) }.map_err(Failure::from)
    };
    for_boxes(world, &case, &source, source_layout, fill)?;
    // What should come is what would be filled in there.
    for_boxes(world, &case, &destination, destination_layout, fill)?;
    let expected = digest(world, &case, &contents, &destination, destination_layout)?;
    let setting = Setting { world, case: &case, contents, destination, expected };

    let mut buffers = Buffers::new(&manifest);
    for (side, tensors) in [(Side::Source, &source), (Side::Destination, &setting.destination)] {
        let buffer = Buffer::on_device(&tensors.memory);
        for &(tensor, offset) in &tensors.places {
            buffers.set(side, tensor, buffer.clone(), View::at(offset));
        }
    }
    let begun = Instant::now();
    let mut transfer = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline())?;
    let init = begun.elapsed().as_secs_f64() * 1e3;
    let bytes = transfer.report().delivered_bytes as f64;

    let mut outcome = Outcome::passed(name, world.size() as u32).with("init ms", init);
    for round in 0..2 {
        setting.soil()?;
        transfer.start()?;
        transfer.wait(deadline())?;
        let wrong = setting.wrong()?;
        if wrong > 0 {
            return Ok(Outcome::failed(
                name,
                world.size() as u32,
                format!("round {round}: {wrong} ranks have other bytes"),
            ));
        }
    }
    let stream = Stream::new(&device)?;
    let wrong = on_stream(&setting, &mut transfer, &stream)?;
    if wrong > 0 {
        return Ok(Outcome::failed(name, world.size() as u32, format!("on a stream: {wrong} ranks have other bytes")));
    }
    if case.timed {
        let times = calls(world, &mut transfer)?;
        let call = times[times.len() / 2];
        let chained = chained(world, &mut transfer, &stream)?;
        outcome = outcome
            .with("call us", call)
            .with("call us, worst round", times[times.len() - 1])
            .with("stream us", chained)
            .with("GB/s", bytes / chained.min(call) / 1e3);
        if let Some(replayed) = replayed(&setting, &mut transfer, &stream)? {
            outcome = outcome.with("graph us", replayed);
        }
    }
    drop(transfer);
    world.barrier(deadline())?;
    Ok(outcome)
}

/// A start on a stream, then, where ranks have devices of their own, twice from a graph; ranks with other bytes.
fn on_stream(setting: &Setting<'_>, transfer: &mut Reshard, stream: &Stream) -> Result<usize, Failure> {
    setting.soil()?;
    transfer.start_on(stream)?;
    stream.synchronize(deadline())?;
    transfer.wait(deadline())?;
    let mut wrong = setting.wrong()?;
    if setting.case.has_device_for_each_rank() && transfer.report().staged.is_none() {
        let capture = Capture::begin(stream)?;
        transfer.start_on(stream)?;
        let graph = capture.end()?;
        setting.soil()?;
        graph.launch(stream)?;
        graph.launch(stream)?;
        stream.synchronize(deadline())?;
        wrong += setting.wrong()?;
    }
    Ok(wrong)
}

/// Microseconds of a start and wait among others, of the slowest rank, for some rounds, ascending: ranks follow each other by
/// the transfer itself, so that no barrier is in it.
fn calls(world: &Communicator, transfer: &mut Reshard) -> Result<Vec<f64>, Failure> {
    let report = transfer.report();
    let is_long = report.delivered_bytes >= LONG || report.staged.is_some();
    let rounds = if is_long { ROUNDS / 5 } else { ROUNDS };
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        world.barrier(deadline())?;
        let begun = Instant::now();
        for _ in 0..CHAIN {
            transfer.start()?;
            transfer.wait(deadline())?;
        }
        times.push(slowest(world, begun.elapsed().as_secs_f64() * 1e6 / CHAIN as f64)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Microseconds of a start among starts that follow each other on a stream, by the device's clock, of the slowest rank.
fn chained(world: &Communicator, transfer: &mut Reshard, stream: &Stream) -> Result<f64, Failure> {
    let (begin, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        world.barrier(deadline())?;
        begin.record(stream)?;
        for _ in 0..CHAIN {
            // Where ranks share a device, starts do not follow each other without a wait.
            if transfer.start_on(stream).is_err() {
                transfer.wait(deadline())?;
                transfer.start_on(stream)?;
            }
        }
        end.record(stream)?;
        transfer.wait(deadline())?;
        end.wait(deadline())?;
        best = best.min(slowest(world, end.microseconds_since(&begin)? / CHAIN as f64)?);
    }
    Ok(best)
}

/// Microseconds of a start among starts of one graph, where ranks have devices of their own.
fn replayed(setting: &Setting<'_>, transfer: &mut Reshard, stream: &Stream) -> Result<Option<f64>, Failure> {
    if !setting.case.has_device_for_each_rank() || transfer.report().staged.is_some() {
        return Ok(None);
    }
    let (begin, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
    let capture = Capture::begin(stream)?;
    for _ in 0..CHAIN {
        transfer.start_on(stream)?;
    }
    let graph = capture.end()?;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        setting.world.barrier(deadline())?;
        begin.record(stream)?;
        graph.launch(stream)?;
        end.record(stream)?;
        end.wait(deadline())?;
        best = best.min(slowest(setting.world, end.microseconds_since(&begin)? / CHAIN as f64)?);
    }
    Ok(Some(best))
}

pub(crate) fn slowest(world: &Communicator, mine: f64) -> Result<f64, Failure> {
    let all = world.allgather(&mine.to_le_bytes(), deadline())?;
    let read = |bytes: &Vec<u8>| bytes[..].try_into().map_or(f64::NAN, f64::from_le_bytes);
    Ok(all.iter().map(read).fold(0.0, f64::max))
}
