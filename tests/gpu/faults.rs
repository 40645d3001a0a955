//! Bad input and faults on GPUs. In: names of cases. Out: results of rank 0. Guarantee: every case ends with an error that names
//! what is wrong, on every rank, and the GPU is usable afterwards.

use crate::case::case;
use crate::memories::enter;
use crate::moving::{deadline, tensors};
use crate::results::Outcome;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Buffer, Buffers, CommError, Communicator, Device, DeviceMemory, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
use crossmesh::memory::device::{KERNELS, Origin, inspect, machine_code};
use crossmesh::plan::Manifest;
use cudarc::driver::result;
use sha2::{Digest, Sha256};
use std::error::Error;
use std::sync::Arc;

/// Cases that end in order.
pub(crate) const NAMES: [&str; 7] =
    ["other-device", "host-pointer", "freed", "too-small", "overlap", "malloc", "out-of-memory"];

type Failure = Box<dyn Error>;
const ROWS: u64 = 1 << 20;

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
pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let (rank, ranks) = (world.rank().0, world.size() as u32);
    if name == "killed" {
        return killed(world);
    }
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
        "overlap" => return overlap(world, &kept),
        "out-of-memory" => return out_of_memory(world, &device),
        "damaged-kernels" => return damaged_kernels(world, &device),
        "newer-compiler" => return newer_compiler(world, &device),
        "malloc" | "after" => return malloc(world, name, &device),
        other => return Err(format!("no case {other}").into()),
    };
    let buffer = if rank == 0 { bad } else { good(&device)? };
    let judged = judge(name, ranks, init(world, buffer)?, words);
    Ok(usable_again(judged, init(world, good(&device)?)?))
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

/// Nothing is left on one device at init; once it is, the same works.
fn out_of_memory(world: &Communicator, device: &Device) -> Result<Outcome, Failure> {
    let _context = enter(device.ordinal());
    let buffer = good(device)?;
    let mut taken = Vec::new();
    let mut bytes: usize = if world.rank().0 == 0 { 1 << 37 } else { 0 };
    while bytes >= 1 << 12 {
        // SAFETY: freed below, and not used.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(address) => taken.push(address),
            Err(_) => bytes /= 2,
        }
    }
    world.barrier(deadline())?;
    let judged = judge("out-of-memory", world.size() as u32, init(world, buffer.clone())?, "memory left");
    for address in taken {
        // SAFETY: allocated above.
        unsafe { result::free_sync(address)? };
    }
    Ok(usable_again(judged, init(world, buffer)?))
}

/// The cache of this job, and the kernels in it.
fn kernel_files() -> Result<Vec<std::path::PathBuf>, Failure> {
    let folder = std::env::var("CROSSMESH_CACHE")?;
    let files = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let is_kernel = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "cubin");
    Ok(files.collect::<Result<Vec<_>, _>>()?.into_iter().filter(is_kernel).collect())
}

/// Compiles all kernels into the cache, then lets rank 0 replace each file.
fn replace_kernels(world: &Communicator, device: &Device, change: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<(), Failure> {
    for kernel in KERNELS {
        machine_code(kernel, None, &device.architecture())?;
    }
    world.barrier(deadline())?;
    if world.rank().0 == 0 {
        for path in kernel_files()? {
            std::fs::write(&path, change(std::fs::read(&path)?))?;
        }
    }
    Ok(world.barrier(deadline())?)
}

/// Damaged entries of the cache are compiled again.
fn damaged_kernels(world: &Communicator, device: &Device) -> Result<Outcome, Failure> {
    let before = machine_code(KERNELS[0], None, &device.architecture())?;
    replace_kernels(world, device, |mut bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        bytes
    })?;
    init(world, good(device)?)??;
    let after = machine_code(KERNELS[0], None, &device.architecture())?;
    let ranks = world.size() as u32;
    Ok(if before == after && kernel_files()?.len() == KERNELS.len() {
        Outcome::passed("damaged-kernels", ranks)
    } else {
        Outcome::failed("damaged-kernels", ranks, format!("files {:?}", kernel_files()?))
    })
}

/// Code that the driver does not take, as that of a compiler that is newer: entries that are whole and mean nothing to it.
fn newer_compiler(world: &Communicator, device: &Device) -> Result<Outcome, Failure> {
    replace_kernels(world, device, |bytes| {
        let code: Vec<u8> = bytes[32..].iter().map(|byte| byte ^ 0xff).collect();
        [&Sha256::digest(&code)[..], &code].concat()
    })?;
    let found = init(world, good(device)?)?;
    let judged = judge("newer-compiler", world.size() as u32, found, "newer than the driver");
    world.barrier(deadline())?;
    if world.rank().0 == 0 {
        kernel_files()?.into_iter().try_for_each(std::fs::remove_file)?;
    }
    world.barrier(deadline())?;
    Ok(usable_again(judged, init(world, good(device)?)?))
}

fn usable_again(judged: Outcome, after: Result<(), CommError>) -> Outcome {
    match after {
        Ok(()) => judged,
        Err(error) => {
            let (name, ranks) = (judged.case.clone(), judged.ranks);
            Outcome::failed(&name, ranks, format!("not usable afterwards: {error:?}"))
        }
    }
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

/// Rank 1 dies while others wait for it: kernels, threads that order copies, or hosts that pass bytes on.
fn killed(world: &Communicator) -> Result<Outcome, Failure> {
    let case = case("contiguous-16MiB", world.size() as u32)?;
    let device = Device::open(case.devices[world.rank().index()])?;
    let layouts = |side: Side| {
        let manifest = case.manifest.clone();
        move |tensor: usize| match side {
            Side::Source => manifest.tensors()[tensor].source.clone(),
            Side::Destination => manifest.tensors()[tensor].destination.clone(),
        }
    };
    let mut buffers = Buffers::new(&case.manifest);
    for side in [Side::Source, Side::Destination] {
        let tensors = tensors(world, &case, &device, layouts(side))?;
        for &(tensor, offset) in &tensors.places {
            buffers.set(side, tensor, Buffer::on_device(&tensors.memory), View::at(offset));
        }
    }
    let mut transfer = world.reshard_init(&case.manifest, &buffers, ReshardOptions::default(), deadline())?;
    world.barrier(deadline())?;
    if world.rank().0 == 1 {
        // Some starts go through, the next one never ends.
        for _ in 0..3 {
            transfer.start()?;
            transfer.wait(deadline())?;
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::process::abort();
    }
    let begun = std::time::Instant::now();
    let error = loop {
        if let Err(error) = transfer.start().and_then(|()| transfer.wait(Deadline::seconds(60))) {
            break error;
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    drop(transfer);
    // The GPU is still there for this process.
    good(&device)?;
    Err(format!("after {seconds:.2} s: {error}").into())
}
