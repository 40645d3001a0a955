//! Replays allocate nothing.
//!
//! In: every allocation of this test binary. Out: how many there were while counting. Guarantee: counts all threads
//! of the process, the progress thread included.

use super::random::Memory;
use super::transfer::{Spot, Transfer};
use super::{finalize, soon, world};
use crate::planner::layout;
use crate::rig::spmd::Job;
use crossmesh::base::Rank;
use crossmesh::comm::{ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, Placement, Reduction, View};
use crossmesh::plan::{Manifest, Transform};
use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The system's allocator, counted.
struct Counting;

static COUNT: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note() {
    if COUNT.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        note();
        // SAFETY: forwarded from the caller.
        unsafe { System.alloc(block) }
    }

    unsafe fn alloc_zeroed(&self, block: Block) -> *mut u8 {
        note();
        // SAFETY: forwarded from the caller.
        unsafe { System.alloc_zeroed(block) }
    }

    unsafe fn realloc(&self, start: *mut u8, block: Block, size: usize) -> *mut u8 {
        note();
        // SAFETY: forwarded from the caller.
        unsafe { System.realloc(start, block, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, block: Block) {
        // SAFETY: forwarded from the caller.
        unsafe { System.dealloc(start, block) }
    }
}

/// Allocations of all threads while `body` runs.
fn allocations(body: impl FnOnce()) -> u64 {
    ALLOCATIONS.store(0, Ordering::SeqCst);
    COUNT.store(true, Ordering::SeqCst);
    body();
    COUNT.store(false, Ordering::SeqCst);
    ALLOCATIONS.load(Ordering::SeqCst)
}

#[test]
fn allocations_are_counted_on_all_threads() {
    // In processes of its own, where no other test allocates meanwhile.
    Job::of(1)
        .run(|| {
            assert_eq!(allocations(|| ()), 0);
            assert!(allocations(|| drop(std::hint::black_box(vec![1u8]))) > 0);
            let (ask, asked) = std::sync::mpsc::sync_channel::<()>(1);
            let (answer, answered) = std::sync::mpsc::sync_channel::<Vec<u8>>(1);
            let other = std::thread::spawn(move || {
                for () in asked {
                    answer.send(std::hint::black_box(vec![7; 100])).expect("the test waits");
                }
            });
            let counted = allocations(|| {
                ask.send(()).expect("the thread waits");
                drop(answered.recv());
            });
            assert!(counted > 0, "an allocation of another thread");
            drop(ask);
            other.join().expect("the thread ends");
        })
        .expect_success();
}

/// Long rows from two ranks to two others, columns that have to be packed, and what is cast or added up on its way:
/// several chunks each.
fn several_chunks() -> Arc<Manifest> {
    let mut manifest = Manifest::new();
    for (name, to) in [("rows", Placement::shard(0)), ("columns", Placement::shard(1))] {
        let source = layout(&[96, 1024], Dtype::F32, &[2], [0, 1], &[Placement::shard(0)]);
        let destination = layout(&[96, 1024], Dtype::F32, &[2], [2, 3], &[to]);
        manifest.push(name, source, destination).expect("one shape");
    }
    for (name, from) in [("cast", Placement::shard(0)), ("sum", Placement::Partial(Reduction::Sum))] {
        let source = layout(&[40, 1024], Dtype::F32, &[2], [0, 1], &[from]);
        let destination = layout(&[40, 1024], Dtype::BF16, &[2], [2, 3], &[Placement::shard(1)]);
        manifest.push_with(name, source, destination, Transform::Cast).expect("one shape");
    }
    Arc::new(manifest)
}

fn replays_allocate_nothing(memory: Memory) {
    let world = world();
    let rank: Rank = world.rank();
    let manifest = several_chunks();
    let place = |tensor, side, _: &Layout| Spot {
        buffer: 2 * tensor + (side == Side::Source) as usize,
        view: View::contiguous(),
    };
    let name = format!("counted on rank {rank}");
    let transfer = Transfer::new(&name, &manifest, rank, place, |number, bytes| memory.buffer(rank, number, bytes));
    let options = ReshardOptions::default();
    let mut reshard = world.reshard_init(&manifest, &transfer.buffers, options, soon()).expect("a good manifest");
    transfer.fill(0);
    // Control connections rest from here on, so that all that moves is the transfer.
    world.barrier(soon()).expect("all ranks are here");
    std::thread::sleep(Duration::from_millis(200));
    // Nothing but starts, so that all are over before the control connections look around, once a second.
    for round in 0..22 {
        let mut finished = Ok(());
        let counted = allocations(|| {
            finished = reshard.start().and_then(|()| reshard.wait(soon()));
        });
        finished.expect("the transfer ends");
        // The first start may fill what grows to its size once. Who has done the last round knows that all have begun
        // the one before, so whoever leaves wakes no control connections while others count.
        assert!(!(1..20).contains(&round) || counted == 0, "{counted} allocations in round {round} on rank {rank}");
    }
    transfer.check(0);
    drop(reshard);
    finalize(world);
}

fn job(domains: u32, mapped: &str) -> Job {
    let job = Job::of(4).env("CROSSMESH_DOMAINS", domains).env("CROSSMESH_MAPPED", mapped);
    job.env("CROSSMESH_CHUNK", "64KiB").env("CROSSMESH_STAGING", "2MiB")
}

#[test]
fn mapped_shared() {
    job(1, "auto").run(|| replays_allocate_nothing(Memory::Shared)).expect_success();
}

#[test]
fn mapped_private() {
    job(1, "auto").run(|| replays_allocate_nothing(Memory::Private)).expect_success();
}

#[test]
fn staged() {
    job(1, "staged").run(|| replays_allocate_nothing(Memory::Private)).expect_success();
}

#[test]
fn tcp() {
    job(4, "auto").run(|| replays_allocate_nothing(Memory::Private)).expect_success();
}

#[test]
fn tcp_and_fan_out() {
    job(2, "auto").run(|| replays_allocate_nothing(Memory::PerRank)).expect_success();
}
