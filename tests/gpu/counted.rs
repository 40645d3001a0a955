//! Replays allocate nothing, on the host or on a device. In: every allocation of this process, what the driver says is free.
//! Out: results of rank 0. Guarantee: all threads are counted.

use crate::case::case;
use crate::memories::enter;
use crate::moving::{deadline, tensors};
use crate::results::Outcome;
use crossmesh::comm::{Buffer, Buffers, Communicator, Device, ReshardOptions, Side, Stream};
use crossmesh::layout::View;
use cudarc::driver::result::mem_get_info;
use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The system's allocator, counted.
struct Counting;

static COUNT: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Layout) -> *mut u8 {
        if COUNT.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: forwarded from the caller.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, start: *mut u8, block: Layout) {
        // SAFETY: forwarded from the caller.
        unsafe { System.dealloc(start, block) }
    }
}

/// Rounds before counting, in which what grows to its size once may do so, counted ones, and those behind: who has done the
/// last one knows that all have begun the one before, so whoever leaves wakes no control connections while others count.
const WARM: usize = 3;
const COUNTED: usize = 20;
const AFTER: usize = 2;
/// Series of rounds, of which the least count is judged: now and then the control connections, which beat once a second,
/// allocate while one is counted.
const SERIES: usize = 3;

pub(crate) fn count(world: &Communicator, name: &str) -> Result<Outcome, Box<dyn Error>> {
    let ranks = world.size() as u32;
    let (name, on_stream) = name.split_once('/').map_or((name, false), |(name, _)| (name, true));
    let case = case(name, ranks)?;
    let manifest = case.manifest.clone();
    let device = Device::open(case.devices[world.rank().index()])?;
    let _context = enter(device.ordinal());
    let source = tensors(world, &case, &device, |tensor| manifest.tensors()[tensor].source.clone())?;
    let destination = tensors(world, &case, &device, |tensor| manifest.tensors()[tensor].destination.clone())?;
    let mut buffers = Buffers::new(&manifest);
    for (side, tensors) in [(Side::Source, &source), (Side::Destination, &destination)] {
        for &(tensor, offset) in &tensors.places {
            buffers.set(side, tensor, Buffer::on_device(&tensors.memory), View::at(offset));
        }
    }
    let mut transfer = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline())?;
    let stream = Stream::new(&device)?;
    // Control connections rest from here on, so that all that moves is the transfer.
    world.barrier(deadline())?;
    std::thread::sleep(Duration::from_millis(200));
    let mut least = u64::MAX;
    let mut taken = 0;
    for _ in 0..SERIES {
        let mut free = 0;
        for round in 0..WARM + COUNTED + AFTER {
            if round == WARM + COUNTED {
                COUNT.store(false, Ordering::SeqCst);
                taken += free as i64 - mem_get_info()?.0 as i64;
            }
            if round == WARM {
                free = mem_get_info()?.0;
                COUNT.store(true, Ordering::SeqCst);
            }
            if on_stream { transfer.start_on(&stream) } else { transfer.start() }?;
            transfer.wait(deadline())?;
        }
        least = least.min(ALLOCATIONS.swap(0, Ordering::SeqCst));
    }
    world.barrier(deadline())?;
    let all = world.allgather(&[least.to_le_bytes(), taken.to_le_bytes()].concat(), deadline())?;
    let staging = transfer.report().staging_bytes;
    let label = format!("{name}{}", if on_stream { "/stream" } else { "" });
    Ok(if all.iter().all(|found| found.iter().all(|&byte| byte == 0)) && staging <= 64 << 20 {
        let outcome = Outcome::passed(&label, ranks).with("starts", (SERIES * COUNTED) as f64);
        outcome.with("staging MiB", staging as f64 / f64::from(1 << 20))
    } else {
        Outcome::failed(&label, ranks, format!("allocations and device bytes by rank: {all:?}, staging {staging}"))
    })
}
