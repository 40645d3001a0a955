//! `crossmesh bench idle`: what waiting costs.
//!
//! In: seconds. Out: CPU time of ranks that wait for one that is late: until they sleep, and while they do. Guarantee: every
//! rank but the first waits in an ordinary transfer, inside and across domains as the job has them; the transfer itself
//! is in neither figure.

use super::clock;
use super::error::BenchError;
use super::output::{leaves_room_for_a_table, write_json};
use super::{Complaint, deadline, writing};
use crate::failure::Failure;
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, CommError, Communicator, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, LayoutError, Mesh, Placement, View};
use crossmesh::plan::Manifest;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: u64 = 1 << 20;

/// Arguments of `crossmesh bench idle`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Seconds that the first rank keeps the others waiting
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Write the result as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What waiting cost.
#[derive(Debug, Serialize)]
struct Cost {
    waiting_ranks: usize,
    seconds: f64,
    /// CPU seconds of all waiting ranks together, per second, once they sleep.
    cores_in_all: f64,
    /// The same of the rank that used most.
    cores_at_most: f64,
    /// CPU milliseconds of all waiting ranks together until they sleep: from the start on for a quarter of the wait.
    milliseconds_before: f64,
}

/// CPU seconds of one rank.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// In the first quarter of the wait.
    first: f64,
    /// Per second, in its second and third quarter.
    share: f64,
}

impl Used {
    /// Looks at the clock while another thread waits.
    fn watch(wait: Duration) -> Self {
        let (begun, before) = (Instant::now(), cpu_seconds());
        std::thread::sleep(wait / 4);
        let (asleep, then) = (Instant::now(), cpu_seconds());
        std::thread::sleep((wait * 3 / 4).saturating_sub(begun.elapsed()));
        Self { first: then - before, share: (cpu_seconds() - then) / asleep.elapsed().as_secs_f64().max(1e-9) }
    }

    fn encode(self) -> Vec<u8> {
        [self.first.to_le_bytes(), self.share.to_le_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Self {
        let number =
            |at: usize| bytes.get(at..at + 8).and_then(|eight| eight.try_into().ok()).map_or(0.0, f64::from_le_bytes);
        Self { first: number(0), share: number(8) }
    }
}

/// CPU seconds that this process has used.
fn cpu_seconds() -> f64 {
    clock::cpu_time().map_or(0.0, |time| time.as_secs_f64())
}

/// Lets all ranks but the first wait for it.
pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    writing(&[("json", arguments.json.as_deref())], |world| wait(world, arguments))
}

fn wait(world: &Communicator, arguments: &Arguments) -> Result<Complaint, BenchError> {
    let ranks = world.size();
    if ranks < 2 {
        return Err(BenchError::TooFewRanks { needed: 2, ranks });
    }
    let (source, destination) = layouts(ranks as u32)?;
    let mut manifest = Manifest::new();
    manifest.push("late", source, destination)?;
    let manifest = Arc::new(manifest);
    let mut buffers = Buffers::new(&manifest);
    let side = if world.rank() == Rank(0) { Side::Source } else { Side::Destination };
    buffers.set(side, 0, Buffer::shared(BYTES).map_err(CommError::from)?, View::contiguous());
    let mut transfer = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline()?)?;
    world.barrier(deadline()?)?;
    let wait = Duration::from_secs(arguments.seconds);
    if world.rank() == Rank(0) {
        std::thread::sleep(wait);
    }
    let used = std::thread::scope(|scope| {
        let watch = scope.spawn(|| Used::watch(wait));
        transfer.start().map_err(CommError::from)?;
        transfer.wait(deadline()?).map_err(CommError::from)?;
        // Only the clock and the kernel's count are asked there.
        Ok::<_, BenchError>(watch.join().unwrap_or(Used { first: f64::NAN, share: f64::NAN }))
    })?;
    report(world, arguments, used)?;
    Ok(None)
}

fn layouts(ranks: u32) -> Result<(Arc<Layout>, Arc<Layout>), LayoutError> {
    let on = |mesh: Mesh| Layout::new(vec![BYTES], Dtype::U8, Arc::new(mesh), vec![Placement::Replicate]).map(Arc::new);
    Ok((on(Mesh::contiguous(vec![1], Rank(0))?)?, on(Mesh::contiguous(vec![ranks - 1], Rank(1))?)?))
}

fn report(world: &Communicator, arguments: &Arguments, used: Used) -> Result<(), BenchError> {
    let all: Vec<Used> =
        world.allgather(&used.encode(), deadline()?)?[1..].iter().map(|bytes| Used::decode(bytes)).collect();
    let cost = Cost {
        waiting_ranks: all.len(),
        seconds: arguments.seconds as f64,
        cores_in_all: all.iter().map(|used| used.share).sum(),
        cores_at_most: all.iter().map(|used| used.share).fold(0.0, f64::max),
        milliseconds_before: all.iter().map(|used| used.first * 1e3).sum(),
    };
    if world.rank() != Rank(0) {
        return Ok(());
    }
    if leaves_room_for_a_table(arguments.json.as_deref()) {
        println!(
            "{} ranks waited {} s: {:.3} % of a core together, {:.3} % at most for one; {:.0} ms together before they slept",
            cost.waiting_ranks,
            arguments.seconds,
            100.0 * cost.cores_in_all,
            100.0 * cost.cores_at_most,
            cost.milliseconds_before
        );
    }
    arguments.json.as_deref().map_or(Ok(()), |path| write_json(&cost, path))
}
