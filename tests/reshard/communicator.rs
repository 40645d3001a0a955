//! What users hold: splits, exchanges, deadlines, guards, and the end of a job.

use super::random::{Memory, manifest, transfer};
use super::transfer::mix;
use super::{finalize, soon, world};
use crate::planner::{all_options, layout};
use crate::rig::spmd::{Job, said, spmd};
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Buffer, Buffers, CommError, Communicator, Reshard, ReshardOptions, Side};
use crossmesh::execute::ExecuteError;
use crossmesh::layout::{Dtype, Placement, View};
use crossmesh::memory::MemoryError;
use crossmesh::plan::Manifest;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One tensor of `bytes` bytes from rank 0 to rank 1.
fn one_tensor(bytes: u64) -> Arc<Manifest> {
    let mut manifest = Manifest::new();
    let side = |rank| layout(&[bytes], Dtype::U8, &[1], [rank], &[Placement::Replicate]);
    manifest.push("weight", side(0), side(1)).expect("one shape");
    Arc::new(manifest)
}

/// Ranks 0 and 1 with a buffer of sevens and one of zeros.
fn sevens(world: &Communicator, bytes: u64) -> (Reshard, Option<Buffer>) {
    let manifest = one_tensor(bytes);
    let mut buffers = Buffers::new(&manifest);
    let buffer = (world.rank().0 < 2).then(|| Buffer::private(bytes).expect("memory"));
    if let Some(buffer) = &buffer {
        let side = if world.rank() == Rank(0) { Side::Source } else { Side::Destination };
        buffer.write().expect("a fresh buffer").fill(if side == Side::Source { 7 } else { 0 });
        buffers.set(side, 0, buffer.clone(), View::contiguous());
    }
    let options = ReshardOptions::default();
    (world.reshard_init(&manifest, &buffers, options, soon()).expect("a good manifest"), buffer)
}

fn assert_sevens(buffer: &Option<Buffer>) {
    assert!(buffer.as_ref().is_none_or(|buffer| buffer.read().expect("finished").iter().all(|&byte| byte == 7)));
}

#[test]
fn splits_and_exchanges() {
    let job = Job::of(8).env("CROSSMESH_DOMAINS", 2);
    let body = || {
        let world = world();
        let rank = world.rank().0;
        // Keys turn the order around; ranks 0 and 7 are in no part.
        let color = (1..7).contains(&rank).then_some(rank % 2);
        let part = world.split(color, 8 - rank, soon()).expect("all ranks split");
        assert_eq!(part.is_some(), color.is_some());
        if let Some(part) = &part {
            let expected: Vec<u32> = (1..7).rev().filter(|other| other % 2 == rank % 2).collect();
            let position = expected.iter().position(|&other| other == rank).expect("a member");
            assert_eq!((part.rank(), part.size()), (Rank(position as u32), 3));
            part.barrier(soon()).expect("all members are here");
            let all = part.allgather(&rank.to_le_bytes(), soon()).expect("all members give");
            assert_eq!(all, expected.iter().map(|other| other.to_le_bytes().to_vec()).collect::<Vec<_>>());
            // Parts of parts: by equal keys, the order is that of the part.
            let half = part.split(Some(u32::from(position == 1)), 0, soon()).expect("all members split");
            let half = half.expect("everyone has a color");
            assert_eq!((half.size(), half.rank().index()), if position == 1 { (1, 0) } else { (2, position / 2) });
            let seed = mix(u64::from(rank % 2) << 8 | u64::from(position == 1)) >> 8;
            for (case, route) in all_options().into_iter().enumerate() {
                super::matrix::replay(&half, seed + case as u64, route, Memory::PerBuffer);
                super::matrix::replay(part, u64::from(rank % 2) + 100 * case as u64, route, Memory::PerRank);
            }
        }
        drop(part);
        finalize(world);
    };
    job.run(body).expect_success();
}

#[test]
fn splits_transfer_at_once_from_threads() {
    let job = Job::of(8).env("CROSSMESH_DOMAINS", 4);
    let body = || {
        let world = world();
        let rank = world.rank().0;
        let parts: Vec<Communicator> = [rank / 4, rank % 2, rank / 2 % 2]
            .map(|color| world.split(Some(color), 0, soon()).expect("all ranks split").expect("a color"))
            .into();
        std::thread::scope(|scope| {
            for (number, part) in parts.iter().enumerate() {
                let color = [rank / 4, rank % 2, rank / 2 % 2][number];
                scope.spawn(move || {
                    for case in 0..30 {
                        let seed = mix((number as u64) << 40 | u64::from(color) << 32 | case) >> 8;
                        let route = all_options()[case as usize % 6];
                        super::matrix::replay(part, seed, route, Memory::ALL[case as usize % 4]);
                    }
                });
            }
        });
        drop(parts);
        finalize(world);
    };
    job.run(body).expect_success();
}

#[test]
fn transfers_alive_refuse_the_end() {
    let body = || {
        let world = world();
        let part = world.split(Some(0), 0, soon()).expect("all ranks split").expect("a color");
        let (mut reshard, buffer) = sevens(&world, 1000);
        world.barrier(soon()).expect("all ranks are here");
        let error = world.finalize(soon()).expect_err("a transfer and a split are alive");
        assert!(matches!(error, CommError::InUse { users: 2 }), "{error}");
        // What is alive still works.
        reshard.start().expect("not active");
        reshard.wait(soon()).expect("the job goes on");
        assert_sevens(&buffer);
        drop((reshard, part));
        finalize(world);
        println!("here: done");
    };
    let job = spmd(3, body).expect_success();
    assert_eq!(said(&job, "here: ").len(), 3, "{job:#?}");
}

/// Rank 1 starts late: who waits for it learns that, and may wait again.
fn short_deadlines() {
    let world = world();
    for bytes in [100, 3 << 20] {
        let (mut reshard, buffer) = sevens(&world, bytes);
        assert!(matches!(reshard.wait(soon()), Err(ExecuteError::NotStarted)));
        assert!(matches!(reshard.test(), Err(ExecuteError::NotStarted)));
        world.barrier(soon()).expect("all ranks are here");
        if world.rank() == Rank(1) {
            std::thread::sleep(Duration::from_millis(600));
        }
        reshard.start().expect("not active");
        assert!(matches!(reshard.start(), Err(ExecuteError::Active)));
        if world.rank() == Rank(0) {
            let began = Instant::now();
            let error = reshard.wait(Deadline::after(Duration::from_millis(100))).expect_err("rank 1 is late");
            assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
            let text = error.to_string();
            assert!(matches!(error, ExecuteError::Deadline { .. }), "{text}");
            let host = world.topology().host(Rank(1));
            assert!(
                text.starts_with("not finished after 100ms: ") && text.contains(&format!("rank 1 on host {host}")),
                "{text}"
            );
            assert!(!reshard.test().expect("nothing is wrong"));
        }
        reshard.wait(soon()).expect("rank 1 comes");
        assert_sevens(&buffer);
    }
    finalize(world);
}

#[test]
fn short_deadlines_mapped() {
    spmd(3, || short_deadlines()).expect_success();
}

#[test]
fn short_deadlines_tcp() {
    Job::of(2).env("CROSSMESH_DOMAINS", 2).run(|| short_deadlines()).expect_success();
}

#[test]
fn guards_while_active() {
    let body = || {
        let world = world();
        let (mut reshard, buffer) = sevens(&world, 5000);
        let buffer = buffer.expect("both ranks have one");
        let source = world.rank() == Rank(0);
        if !source {
            // A guard that is still there refuses the start, and nothing has begun.
            let guard = buffer.read().expect("not active");
            let error = reshard.start().expect_err("a guard is alive");
            assert!(matches!(error, ExecuteError::Memory(MemoryError::Borrowed { .. })), "{error}");
            drop(guard);
        }
        world.barrier(soon()).expect("all ranks are here");
        if source {
            reshard.start().expect("not active");
            world.barrier(soon()).expect("all ranks are here");
            assert!(buffer.read().is_ok_and(|bytes| bytes[0] == 7), "sources may be read");
            assert!(matches!(buffer.write().err(), Some(MemoryError::InTransfer { .. })));
            world.barrier(soon()).expect("all ranks are here");
        } else {
            world.barrier(soon()).expect("all ranks are here");
            world.barrier(soon()).expect("all ranks are here");
            reshard.start().expect("the guard is gone");
            assert!(matches!(buffer.read().err(), Some(MemoryError::InTransfer { .. })));
            assert!(matches!(buffer.write().err(), Some(MemoryError::InTransfer { .. })));
        }
        reshard.wait(soon()).expect("both started");
        assert!(buffer.write().is_ok());
        assert_sevens(&Some(buffer));
        drop(reshard);
        finalize(world);
    };
    spmd(2, body).expect_success();
}

/// Once a rank's wait has returned, nobody waits for it any more.
fn senders_may_leave() {
    let world = world();
    for bytes in [1 << 20, (1 << 20) + 1, 5 << 20] {
        let (mut reshard, buffer) = sevens(&world, bytes);
        for _ in 0..4 {
            world.barrier(soon()).expect("all ranks are here");
            let began = Instant::now();
            reshard.start().expect("not active");
            reshard.wait(Deadline::seconds(10)).expect("both started");
            if world.rank() == Rank(0) {
                std::thread::sleep(Duration::from_millis(300));
            } else {
                assert!(began.elapsed() < Duration::from_millis(250), "{bytes} bytes took {:?}", began.elapsed());
            }
        }
        assert_sevens(&buffer);
    }
    finalize(world);
}

#[test]
fn senders_may_leave_staged() {
    Job::of(2).env("CROSSMESH_MAPPED", "staged").run(|| senders_may_leave()).expect_success();
}

#[test]
fn senders_may_leave_tcp() {
    Job::of(2).env("CROSSMESH_DOMAINS", 2).run(|| senders_may_leave()).expect_success();
}

#[test]
fn dropped_while_active() {
    let body = || {
        let world = world();
        for seed in 0..6 {
            let manifest = manifest(seed, world.size(), 4096);
            let transfer = transfer(seed, &manifest, world.rank(), Memory::ALL[seed as usize % 4]);
            transfer.fill(0);
            let options = ReshardOptions::default();
            let mut reshard = world.reshard_init(&manifest, &transfer.buffers, options, soon()).expect("good");
            reshard.start().expect("not active");
            // Dropping waits for the end, since peers read and write this rank's memory until then.
            drop(reshard);
            transfer.check(0);
        }
        finalize(world);
    };
    Job::of(4).env("CROSSMESH_DOMAINS", 2).run(body).expect_success();
}
