//! A rank that is killed in the middle of a transfer: all others learn who it was, the same on all, soon.

use super::random::Memory;
use super::{soon, world};
use crate::planner::layout;
use crate::rig::process::Finished;
use crate::rig::spmd::{Job, said};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffers, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Placement, View};
use crossmesh::plan::Manifest;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DEAD: Rank = Rank(2);
const ROWS: u64 = 8192;

fn milliseconds() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis()
}

/// Moves rows to columns again and again; rank 2 dies meanwhile.
fn transfers_until_one_dies(memory: Memory) {
    let world = world();
    let rank = world.rank();
    let source = layout(&[ROWS, 1024], Dtype::F32, &[2], [0, 2], &[Placement::shard(0)]);
    let destination = layout(&[ROWS, 1024], Dtype::F32, &[2], [1, 3], &[Placement::shard(1)]);
    let mut manifest = Manifest::new();
    manifest.push("weight", source.clone(), destination.clone()).expect("one shape");
    let manifest = Arc::new(manifest);
    let mut buffers = Buffers::new(&manifest);
    for (side, layout) in [(Side::Source, source), (Side::Destination, destination)] {
        if layout.local_bytes(rank) > 0 {
            buffers.set(side, 0, memory.buffer(rank, 0, layout.local_bytes(rank)), View::contiguous());
        }
    }
    let mut reshard = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), soon()).expect("good");
    if rank == DEAD {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            println!("killed: {}", milliseconds());
            kill(Pid::this(), Signal::SIGKILL)
        });
    }
    let error = loop {
        if let Err(error) = reshard.start().and_then(|()| reshard.wait(soon())) {
            break error;
        }
    };
    println!("returned: {} {error}", milliseconds());
    drop(reshard);
    assert!(world.abort_cause().is_some_and(|cause| cause.rank == DEAD));
    println!("host: {}", world.topology().host(DEAD));
}

fn judge(job: &Finished) {
    let killed: u128 = match said(job, "killed: ")[..] {
        [time] => time.parse().expect("a time"),
        _ => panic!("rank {DEAD} did not come to its end: {job:#?}"),
    };
    let host = said(job, "host: ").first().copied().unwrap_or_default();
    let returned: Vec<_> = said(job, "returned: ").iter().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(returned.len(), 3, "{job:#?}");
    for (time, text) in &returned {
        let took = time.parse::<u128>().expect("a time") - killed;
        assert!(took < 5000, "a survivor returned after {took} ms");
        assert_eq!(*text, returned[0].1);
        assert!(text.starts_with(&format!("rank {DEAD} on host {host} ")), "{text}");
    }
    // 128 and the number of the signal.
    assert_eq!(job.code(), Some(137), "{job:#?}");
}

macro_rules! jobs {
    ($($name:ident: $domains:literal domains, $mapped:literal, $memory:ident;)*) => {$(
        #[test]
        fn $name() {
            let job = Job::of(4).env("CROSSMESH_DOMAINS", $domains).env("CROSSMESH_MAPPED", $mapped);
            judge(&job.run(|| transfers_until_one_dies(Memory::$memory)));
        }
    )*};
}

jobs! {
    mapped_shared: 1 domains, "auto", Shared;
    mapped_private: 1 domains, "auto", Private;
    staged: 1 domains, "staged", Private;
    tcp: 4 domains, "auto", Private;
    tcp_and_mapped: 2 domains, "auto", PerRank;
}
