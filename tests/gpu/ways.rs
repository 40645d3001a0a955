//! Which way bytes go, by how memory was made. In: names of cases. Out: results of rank 0. Guarantee: every pair of kinds of
//! memory is moved right, by the way that it should; starts on streams return at once and are in order; a capture is made
//! or refused.

use crate::access::{put, take};
use crate::memories::Kind;
use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, Communicator, Device, DeviceMemory, Reshard, ReshardOptions, Side, Stream};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
use crossmesh::memory::device::{Capture, DeviceSpan};
use crossmesh::plan::Manifest;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn Error>;

/// Cases of two ranks, a GPU each.
pub(crate) const NAMES: [&str; 2] = ["kinds", "ordered"];
/// Side of the square that is moved, rows to columns.
const SIDE: u64 = 1031;

pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    match name {
        "kinds" => kinds(world),
        "ordered" => ordered(world),
        other => Err(format!("no case {other}").into()),
    }
}

/// A transfer between ranks 0 and 1: rows to columns, everything crosses.
fn manifest(shape: [u64; 2], placements: [Placement; 2]) -> Result<Arc<Manifest>, Failure> {
    let [from, to] = placements;
    let side = |ranks: [u32; 2], placement| -> Result<Arc<Layout>, Failure> {
        let mesh = Arc::new(Mesh::new(vec![2], ranks.map(Rank).to_vec())?);
        Ok(Arc::new(Layout::new(shape.to_vec(), Dtype::U8, mesh, vec![placement])?))
    };
    let mut manifest = Manifest::new();
    manifest.push("weight", side([0, 1], from)?, side([1, 0], to)?)?;
    Ok(Arc::new(manifest))
}

fn byte_at(row: u64, column: u64, round: u64) -> u8 {
    ((row * 131 + column * 17) ^ (row >> 3) ^ (round * 89)) as u8
}

/// Every kind of memory as source with every kind as destination.
fn kinds(world: &Communicator) -> Result<Outcome, Failure> {
    let manifest = manifest([SIDE, SIDE], [Placement::shard(0), Placement::shard(1)])?;
    let rank = world.rank();
    let (source_layout, wanted_layout) = {
        let spec = &manifest.tensors()[0];
        (spec.source.clone(), spec.destination.clone())
    };
    let (mut direct, mut staged) = (0, 0);
    for source in Kind::ALL {
        for destination in Kind::ALL {
            let from = source.buffer(rank.0, source_layout.local_bytes(rank));
            let to = destination.buffer(rank.0, wanted_layout.local_bytes(rank));
            let mut buffers = Buffers::new(&manifest);
            buffers.set(Side::Source, 0, from.clone(), View::contiguous());
            buffers.set(Side::Destination, 0, to.clone(), View::contiguous());
            let what = format!("{source:?} to {destination:?}");
            let made = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline());
            let mut transfer = made.map_err(|error| format!("{what}: {error:?}"))?;
            let expected_direct = source.is_mappable() && destination.is_on_device();
            let on_host = !source.is_on_device() && !destination.is_on_device();
            if transfer.report().staged.is_none() != (expected_direct || on_host) {
                let why = format!("{what}: went by {:?}", transfer.report().staged);
                return Ok(Outcome::failed("kinds", 2, why));
            }
            if expected_direct {
                direct += 1
            } else {
                staged += u32::from(!on_host)
            }
            for round in 0..2 {
                fill(&from, source_layout.local_shape(rank).unwrap_or_default(), rank, round);
                put(&to, &vec![0xee; to.bytes() as usize]);
                world.barrier(deadline())?;
                transfer.start()?;
                transfer.wait(deadline())?;
                let wrong = wrong(&to, rank, round);
                if wrong > 0 {
                    return Err(format!("{what}, rank {rank}, round {round}: {wrong} wrong bytes").into());
                }
            }
        }
    }
    Ok(Outcome::passed("kinds", 2).with("direct", f64::from(direct)).with("through hosts", f64::from(staged)))
}

/// First row, or column, of the half that a rank has as source, or as destination.
fn half(part: u64) -> u64 {
    part * SIDE / 2
}

fn fill(buffer: &Buffer, shape: Vec<u64>, rank: Rank, round: u64) {
    let first = half(rank.0.into());
    let rows = first..first + shape[0];
    let bytes: Vec<u8> = rows.flat_map(|row| (0..SIDE).map(move |column| byte_at(row, column, round))).collect();
    put(buffer, &bytes);
}

fn wrong(buffer: &Buffer, rank: Rank, round: u64) -> usize {
    let part = u64::from(1 - rank.0);
    let columns = half(part)..half(part + 1);
    let expected = (0..SIDE).flat_map(|row| columns.clone().map(move |column| byte_at(row, column, round)));
    take(buffer).into_iter().zip(expected).filter(|(found, expected)| found != expected).count()
}

/// Bytes of a tensor in the test of order.
const BULK: u64 = 256 << 20;
/// Fillings before a start, which take milliseconds.
const FILLS: u8 = 40;

/// A start on a stream comes behind what fills its source, in front of what reads its destination, and returns at once.
fn ordered(world: &Communicator) -> Result<Outcome, Failure> {
    let device = Device::open(world.rank().0)?;
    let stream = Stream::new(&device)?;
    let memory = || Ok::<_, Failure>(Arc::new(DeviceMemory::new(&device, BULK)?));
    let (source, destination, after) = (memory()?, memory()?, memory()?);
    let manifest = manifest([2, BULK], [Placement::shard(0), Placement::shard(0)])?;
    let mut buffers = Buffers::new(&manifest);
    buffers.set(Side::Source, 0, Buffer::on_device(&source), View::contiguous());
    buffers.set(Side::Destination, 0, Buffer::on_device(&destination), View::contiguous());
    let mut transfer = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline())?;
    let mut longest: f64 = 0.0;
    for round in 0..3u8 {
        let mark = 50 * (round + 1) + world.rank().0 as u8;
        world.barrier(deadline())?;
        for fill in 0..FILLS {
            let byte = if fill + 1 == FILLS { mark } else { fill };
            // SAFETY: memory of this case, which lives until the stream has been waited for.
            unsafe { stream.set(source.address(), byte, BULK)? };
        }
        let begun = Instant::now();
        transfer.start_on(&stream)?;
        longest = longest.max(begun.elapsed().as_secs_f64() * 1e6);
        // SAFETY: as above.
        unsafe { stream.copy(after.address(), destination.address(), BULK)? };
        transfer.wait(deadline())?;
        stream.synchronize(deadline())?;
        let expected = 50 * (round + 1) + 1 - world.rank().0 as u8;
        let wrong = take(&Buffer::on_device(&after)).into_iter().filter(|&byte| byte != expected).count();
        if wrong > 0 {
            return Err(format!("round {round}: {wrong} bytes were read before they came").into());
        }
    }
    let captured = capture(&mut transfer, &stream)?;
    let staged = transfer.report().staged.clone();
    let mut outcome = Outcome::passed("ordered", 2).with("start us at most", longest);
    if longest > 3000.0 {
        outcome = Outcome::failed("ordered", 2, format!("a start took {longest:.0} us"));
    }
    if captured.is_none() == staged.is_some()
        || captured.as_ref().is_some_and(|why| !why.contains("captured in a graph"))
    {
        outcome = Outcome::failed("ordered", 2, format!("capture {captured:?}, staged {staged:?}"));
    }
    drop(transfer);
    // What is dropped here must outlive all work.
    drop((DeviceSpan::of_memory(&source), destination, after));
    Ok(outcome)
}

/// The error of a start while its stream is captured.
fn capture(transfer: &mut Reshard, stream: &Stream) -> Result<Option<String>, Failure> {
    let capture = Capture::begin(stream)?;
    let started = transfer.start_on(stream);
    drop(capture);
    Ok(started.err().map(|error| error.to_string()))
}
