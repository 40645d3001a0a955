//! Bad input and faults on GPUs. In: names of cases. Out: results of rank 0. Guarantee: every case ends with an error that names
//! what is wrong, on every rank, and the GPU is usable afterwards.

use crate::moving::deadline;
use crate::results::Outcome;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{
    Buffer, Buffers, CommError, Communicator, Device, DeviceMemory, ReshardOptions, Side, WorldOptions,
};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
use crossmesh::memory::device::{Origin, inspect};
use crossmesh::plan::Manifest;
use cudarc::driver::result;
use std::error::Error;
use std::sync::Arc;

/// Cases that end in order.
pub(crate) const NAMES: [&str; 8] =
    ["other-device", "host-pointer", "freed", "too-small", "overlap", "mixed", "pool", "malloc"];

type Failure = Box<dyn Error>;
const ROWS: u64 = 1 << 20;

pub(crate) fn run(names: &[String]) -> Result<(), Failure> {
    let world = Communicator::world(&WorldOptions::from_environment()?)?;
    for name in names {
        let outcome = run_case(&world, name)?;
        if world.rank().0 == 0 {
            outcome.print();
        }
    }
    Ok(world.finalize(deadline())?)
}

fn manifest(tensors: usize) -> Result<Arc<Manifest>, Failure> {
    let side = |rank| -> Result<Arc<Layout>, Failure> {
        let mesh = Arc::new(Mesh::contiguous(vec![1], Rank(rank))?);
        Ok(Arc::new(Layout::new(vec![ROWS], Dtype::U8, mesh, vec![Placement::Replicate])?))
    };
    let (source, destination) = (side(0)?, side(1)?);
    let mut manifest = Manifest::new();
    for number in 0..tensors {
        manifest.push(format!("t{number}"), source.clone(), destination.clone())?;
    }
    Ok(Arc::new(manifest))
}

/// Makes a transfer of rank 0's tensor to rank 1 with `buffer` on this rank, on its side.
fn init(world: &Communicator, buffer: Buffer) -> Result<Result<(), CommError>, Failure> {
    let manifest = manifest(1)?;
    let mut buffers = Buffers::new(&manifest);
    let side = if world.rank().0 == 0 { Side::Source } else { Side::Destination };
    buffers.set(side, 0, buffer, View::contiguous());
    let made = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline());
    Ok(made.and_then(|mut transfer| {
        transfer.start()?;
        Ok(transfer.wait(deadline())?)
    }))
}

fn good(device: &Device) -> Result<Buffer, Failure> {
    Ok(Buffer::on_device(&Arc::new(DeviceMemory::new(device, ROWS)?)))
}

/// Words that the error on rank 0 must have when its buffer is bad, and on rank 1, which is told.
fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let (rank, ranks) = (world.rank().0, world.size() as u32);
    let device = Device::open(rank);
    if name == "no-compiler" {
        let buffer = Buffer::on_device(&Arc::new(DeviceMemory::new(&device?, ROWS)?));
        return Ok(judge(name, ranks, init(world, buffer)?, "libnvrtc"));
    }
    let device = device?;
    let kept = DeviceMemory::new(&device, 2 * ROWS)?;
    let host = vec![0u8; ROWS as usize];
    let raw = |device, address, bytes| {
        // SAFETY: what is wrong with it is found before it is used.
        unsafe { Buffer::from_device(device, address, bytes) }
    };
    let (bad, words) = match name {
        "other-device" => (raw(1 - rank, kept.address(), ROWS), "not of device"),
        "host-pointer" => (raw(rank, host.as_ptr() as u64, ROWS), "not memory of a CUDA device"),
        "freed" => {
            let address = DeviceMemory::new(&device, ROWS)?.address();
            // Its address may be in use again, by something smaller.
            (raw(rank, address, ROWS), "0x")
        }
        "too-small" => (raw(rank, kept.address(), 1 << 40), "beyond its allocation"),
        "mixed" => (Buffer::shared(ROWS)?, "all tensors of a transfer"),
        "overlap" => return overlap(world, &kept),
        "pool" => return pool(world, &device),
        "malloc" | "after" => return malloc(world, name, &device),
        "killed" => return killed(world, &device),
        other => return Err(format!("no case {other}").into()),
    };
    let buffer = if rank == 0 { bad } else { good(&device)? };
    let judged = judge(name, ranks, init(world, buffer)?, words);
    let after = init(world, good(&device)?)?;
    Ok(match after {
        Ok(()) => judged,
        Err(error) => Outcome::failed(name, ranks, format!("not usable afterwards: {error:?}")),
    })
}

fn judge(name: &str, ranks: u32, found: Result<(), CommError>, words: &str) -> Outcome {
    let text = match found {
        Ok(()) => return Outcome::failed(name, ranks, "no error".to_string()),
        Err(error) => chain(&error),
    };
    if text.contains(words) { Outcome::passed(name, ranks) } else { Outcome::failed(name, ranks, text) }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

/// Two destinations that share bytes.
fn overlap(world: &Communicator, memory: &DeviceMemory) -> Result<Outcome, Failure> {
    let manifest = manifest(2)?;
    let mut buffers = Buffers::new(&manifest);
    let side = if world.rank().0 == 0 { Side::Source } else { Side::Destination };
    for tensor in 0..2 {
        // SAFETY: the memory outlives the call, which fails.
        let buffer = unsafe { Buffer::from_device(world.rank().0, memory.address(), 2 * ROWS) };
        buffers.set(side, tensor, buffer, View::at(tensor as u64 * (ROWS / 2)));
    }
    let made = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline());
    Ok(judge("overlap", world.size() as u32, made.map(|_| ()), "share memory"))
}

/// Memory of a stream-ordered pool, which no peer can map.
fn pool(world: &Communicator, device: &Device) -> Result<Outcome, Failure> {
    let context = cudarc::driver::CudaContext::new(device.ordinal() as usize)?;
    let stream = context.default_stream();
    // SAFETY: never read, freed below.
    let memory = unsafe { result::malloc_async(stream.cu_stream(), ROWS as usize)? };
    stream.synchronize()?;
    let origin = inspect(device, memory, ROWS)?.origin;
    // SAFETY: the transfer is not made.
    let buffer = unsafe { Buffer::from_device(device.ordinal(), memory, ROWS) };
    let buffer = if world.rank().0 == 0 { buffer } else { good(device)? };
    let judged = judge("pool", world.size() as u32, init(world, buffer)?, "stream-ordered pool");
    // SAFETY: allocated above on this stream.
    unsafe { result::free_async(memory, stream.cu_stream())? };
    Ok(if origin == Origin::Pool { judged } else { Outcome::failed("pool", 2, format!("seen as {origin:?}")) })
}

/// Memory of cudaMalloc, not at the start of its allocation, is moved right.
fn malloc(world: &Communicator, name: &str, device: &Device) -> Result<Outcome, Failure> {
    let _context = cudarc::driver::CudaContext::new(device.ordinal() as usize)?;
    // SAFETY: freed below, after the transfer.
    let memory = unsafe { result::malloc_sync(3 * ROWS as usize)? };
    let start = memory + ROWS + 1;
    let origin = inspect(device, start, ROWS)?.origin;
    let byte = if world.rank().0 == 0 { 0x5a } else { 0 };
    // SAFETY: the whole allocation.
    unsafe { result::memset_d8_sync(memory, byte, 3 * ROWS as usize)? };
    // SAFETY: freed after the transfer has ended.
    let buffer = unsafe { Buffer::from_device(device.ordinal(), start, ROWS) };
    init(world, buffer)??;
    let mut found = vec![0u8; 3 * ROWS as usize];
    // SAFETY: the room is as long as the allocation.
    unsafe { result::memcpy_dtoh_sync(&mut found, memory)? };
    world.barrier(deadline())?;
    // SAFETY: allocated above, nobody uses it any more.
    unsafe { result::free_sync(memory)? };
    let inside = |at: usize| (ROWS as usize + 1..2 * ROWS as usize + 1).contains(&at);
    let right = |(at, &byte): (usize, &u8)| byte == if world.rank().0 == 0 || inside(at) { 0x5a } else { 0 };
    let all = found.iter().enumerate().all(right);
    let verdicts = world.allgather(&[u8::from(all)], deadline())?;
    let ranks = world.size() as u32;
    Ok(if verdicts.iter().all(|verdict| verdict[..] == [1]) && origin == Origin::Malloc {
        Outcome::passed(name, ranks)
    } else {
        Outcome::failed(name, ranks, format!("bytes right: {verdicts:?}, origin {origin:?}"))
    })
}

/// Rank 1 dies while rank 0's kernel waits for it.
fn killed(world: &Communicator, device: &Device) -> Result<Outcome, Failure> {
    let manifest = manifest(1)?;
    let mut buffers = Buffers::new(&manifest);
    let side = if world.rank().0 == 0 { Side::Source } else { Side::Destination };
    buffers.set(side, 0, good(device)?, View::contiguous());
    let mut transfer = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline())?;
    world.barrier(deadline())?;
    if world.rank().0 == 1 {
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::process::abort();
    }
    transfer.start()?;
    let begun = std::time::Instant::now();
    let error = transfer.wait(Deadline::seconds(60)).expect_err("the peer is dead");
    let seconds = begun.elapsed().as_secs_f64();
    drop(transfer);
    // The GPU is still there for this process.
    good(device)?;
    Err(format!("after {seconds:.2} s: {error}").into())
}
