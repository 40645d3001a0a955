//! `crossmesh bench limits`: what the links between GPUs carry. In: the GPUs of a job. Out: rates each way while both ways are busy,
//! by copy engines and by kernels. Guarantee: collective; the slowest rank counts; bytes that arrive are checked for the kernels.

use super::chain::{Chain, Expected, Form};
use super::launches::launches;
use super::measure::{Effort, Work, align, check, count_wrong, everyones, prepare, time, total};
use super::rig::Rig;
use super::samples::{Figures, rate};
use super::sweep::force;
use crate::bench::error::BenchError;
use crate::bench::{Complaint, deadline, output, writing};
use crate::failure::Failure;
use crossmesh::base::Rank;
use crossmesh::collective::device::{CollectiveError, PeerWrite, Rehearsal};
use crossmesh::collective::{Algorithm, Call, Connection, Kind, ReduceOperation};
use crossmesh::comm::{ChannelOptions, Communicator};
use crossmesh::layout::Dtype;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// What the links between GPUs carry; run it under crossmesh run -n 2
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Write the results as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Bytes of a transfer, and how many of them are timed together.
const BYTES: u64 = 256 << 20;
const COPIES: u32 = 4;
const SAMPLES: u32 = 5;

/// Rates each way while all ranks are busy, 10^9 bytes a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct TwoWay {
    /// Copy engines, each GPU reading from the next.
    engine_reads: f64,
    /// Copy engines, each GPU writing to the next.
    engine_writes: f64,
    /// A kernel on each GPU that reads from all others.
    kernel_reads: f64,
    /// A kernel on each GPU that writes to all others.
    kernel_writes: f64,
}

impl TwoWay {
    /// The limit that collectives are held against.
    pub(super) fn most(&self) -> f64 {
        self.engine_reads.max(self.engine_writes).max(self.kernel_reads).max(self.kernel_writes)
    }
}

/// Runs the bench on this rank.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    writing(&[("json", arguments.json.as_deref())], |world| limits(world, arguments))
}

fn limits(world: &Communicator, arguments: &Arguments) -> Result<Complaint, BenchError> {
    if world.size() < 2 {
        return Err(BenchError::TooFewRanks { needed: 2, ranks: world.size() });
    }
    let found = two_way(world)?;
    if world.rank() != Rank(0) {
        return Ok(None);
    }
    if output::leaves_room_for_a_table(arguments.json.as_deref()) {
        match &found {
            Some(TwoWay { engine_reads, engine_writes, kernel_reads, kernel_writes }) => println!(
                "GB/s each way, all {} ranks busy: copy engines reading {engine_reads:.1}, writing {engine_writes:.1}; kernels \
                 reading {kernel_reads:.1}, writing {kernel_writes:.1}",
                world.size()
            ),
            None => println!("GPUs are shared by processes or do not reach each other: there is no link to measure"),
        }
    }
    if let Some(path) = &arguments.json {
        output::write_json(&found, path)?;
    }
    Ok(None)
}

/// Measures the links; `None` where ranks share GPUs, do not reach each other, or are alone. Collective.
pub(super) fn two_way(world: &Communicator) -> Result<Option<TwoWay>, BenchError> {
    if world.size() < 2 {
        return Ok(None);
    }
    let chain = gather(world);
    let mut rig = Rig::new(world, chain.bytes().max(2 * BYTES), true, &ChannelOptions::default())?;
    if rig.rehearsal.channel().connection() == Connection::Ordered {
        return Ok(None);
    }
    let (engine_reads, engine_writes) = (engines(&mut rig, false)?, engines(&mut rig, true)?);
    // What kernels write would already be what they are to read, so they read first.
    let (kernel_reads, kernel_writes) = (kernels(&mut rig, &chain)?, pushes(&mut rig, &chain)?);
    Ok(Some(TwoWay { engine_reads, engine_writes, kernel_reads, kernel_writes }))
}

/// An all-gather in which each rank reads [`BYTES`] bytes from others.
fn gather(world: &Communicator) -> Chain {
    let (rank, ranks) = (world.rank().0, world.size() as u32);
    let count = (BYTES / u64::from(ranks.max(2) - 1)).next_multiple_of(256);
    gather_of(count, rank, ranks)
}

fn gather_of(count: u64, rank: u32, ranks: u32) -> Chain {
    let (kind, operation) = (Kind::AllGather, ReduceOperation::Sum);
    let call = Call { kind, count, dtype: Dtype::U8, operation, root: 0 };
    Chain { call, form: Form { captured: true, cold: false, in_place: false }, rank, ranks, calls: COPIES }
}

/// What a rank writes so that others have its part of the same all-gather: to the rank after it first, so that no two ranks
/// write to one at a time.
fn writes(chain: &Chain) -> Vec<PeerWrite> {
    let (call, from, output) = chain.step(chain.calls.saturating_sub(1));
    let bytes = call.count * call.dtype.bytes();
    let to = output + u64::from(chain.rank) * bytes;
    let peers = (1..chain.ranks).map(|step| Rank((chain.rank + step) % chain.ranks));
    peers.map(|peer| PeerWrite { peer, from, to, bytes }).collect()
}

/// What a rank holds once all others have written to it.
fn written(chain: &Chain) -> Result<Vec<Expected>, BenchError> {
    let mut parts = chain.after()?;
    parts.remove(chain.rank as usize);
    Ok(parts)
}

fn engines(rig: &mut Rig<'_>, writes: bool) -> Result<f64, BenchError> {
    let next = Rank((rig.rank() + 1) % rig.ranks());
    moved(rig, BYTES, |rehearsal| rehearsal.copy_peer(next, (0, BYTES), BYTES, writes))
}

/// The rate at which all ranks move `bytes` bytes each, [`COPIES`] times between two marks.
fn moved(
    rig: &mut Rig<'_>,
    bytes: u64,
    mut each: impl FnMut(&mut Rehearsal) -> Result<(), CollectiveError>,
) -> Result<f64, BenchError> {
    rig.world.barrier(deadline()?)?;
    for _ in 0..=SAMPLES {
        align(&mut rig.rehearsal)?;
        rig.rehearsal.mark()?;
        for _ in 0..COPIES {
            each(&mut rig.rehearsal)?;
        }
        rig.rehearsal.mark()?;
    }
    let lengths = rig.rehearsal.finish(deadline()?)?;
    // What lies between two copies is the wait for all ranks; the first warms up.
    let mine: Vec<f64> = lengths.iter().step_by(2).skip(1).map(|length| length / f64::from(COPIES)).collect();
    let figures = Figures::of(&everyones(rig.world, &mine)?);
    Ok(figures.map_or(0.0, |figures| rate(bytes, figures.p50)))
}

/// The kernel of transfers: each rank writes to all others the part that they read above.
fn pushes(rig: &mut Rig<'_>, chain: &Chain) -> Result<f64, BenchError> {
    let writes = writes(chain);
    rig.rehearsal.prepare_writes(&writes, deadline()?)?;
    let best = moved(rig, writes.iter().map(|write| write.bytes).sum(), Rehearsal::write_peers)?;
    for Expected { offset, values, first, count } in chain.before() {
        rig.rehearsal.write(offset, &values.repeated(first, count), deadline()?)?;
    }
    let parts = written(chain)?;
    for part in &parts {
        rig.rehearsal.write(part.offset, &vec![0; part.count as usize], deadline()?)?;
    }
    rig.world.barrier(deadline()?)?;
    rig.rehearsal.write_peers()?;
    rig.rehearsal.finish(deadline()?)?;
    rig.world.barrier(deadline()?)?;
    let wrong = count_wrong(&mut rig.rehearsal, &parts, chain.call.dtype)?;
    match total(rig.world, wrong)? {
        0 => Ok(best),
        wrong => Err(BenchError::Wrong(format!("{wrong} bytes that a kernel wrote to another GPU"))),
    }
}

fn kernels(rig: &mut Rig<'_>, chain: &Chain) -> Result<f64, BenchError> {
    let most = rig.rehearsal.channel().most_blocks();
    let bytes = chain.call.count * u64::from(rig.ranks() - 1);
    let work = Work::Calls(*chain);
    let mut best = 0f64;
    for launch in launches(chain.call.kind, Algorithm::OneShotPull, chain.call.count, most, true) {
        if !force(rig, &chain.call, chain.form, &launch)? {
            continue;
        }
        prepare(rig, &work)?;
        let timed = time(rig, &work, Effort { warmups: 1, samples: SAMPLES })?;
        best = best.max(timed.map_or(0.0, |timed| rate(bytes, timed.figures.p50)));
    }
    match check(rig, &work)? {
        0 => Ok(best),
        wrong => Err(BenchError::Wrong(format!("{wrong} bytes that a kernel read from another GPU"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_gets_the_parts_of_all_others_by_their_writes() {
        for ranks in [2, 3, 5] {
            let chains: Vec<Chain> = (0..ranks).map(|rank| gather_of(1024, rank, ranks)).collect();
            let mut memories: Vec<Vec<u8>> = chains.iter().map(|chain| vec![0; chain.bytes() as usize]).collect();
            for (memory, chain) in memories.iter_mut().zip(&chains) {
                for Expected { offset, values, first, count } in chain.before() {
                    memory[offset as usize..][..count as usize].copy_from_slice(&values.repeated(first, count));
                }
            }
            for chain in &chains {
                for PeerWrite { peer, from, to, bytes } in writes(chain) {
                    assert_ne!(peer.0, chain.rank);
                    let part = memories[chain.rank as usize][from as usize..][..bytes as usize].to_vec();
                    memories[peer.index()][to as usize..][..bytes as usize].copy_from_slice(&part);
                }
            }
            for (memory, chain) in memories.iter().zip(&chains) {
                let parts = written(chain).unwrap();
                assert_eq!(parts.len() as u32, ranks - 1);
                for Expected { offset, values, first, count } in parts {
                    assert_eq!(values.wrong(first, &memory[offset as usize..][..count as usize]), 0, "{chain:?}");
                }
            }
        }
    }

    #[test]
    fn no_two_ranks_write_to_one_at_a_time() {
        let orders: Vec<Vec<PeerWrite>> = (0..4).map(|rank| writes(&gather_of(256, rank, 4))).collect();
        for turn in 0..3 {
            let peers: std::collections::BTreeSet<Rank> = orders.iter().map(|order| order[turn].peer).collect();
            assert_eq!(peers.len(), 4, "turn {turn}");
        }
    }
}
