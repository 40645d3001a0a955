//! `crossmesh tune`: which algorithm and launch is best at which size here. In: the GPUs of a job. Out: a tuning table. Guarantee:
//! collective; all ranks time the same calls, see the times of the slowest and so agree on the table; what wins was checked.

use super::arguments::sizes;
use super::chain::{Chain, Form};
use super::launches::algorithms;
use super::rig::Rig;
use super::sweep::{Tried, best};
use crate::bench::error::BenchError;
use crate::bench::{Complaint, deadline, output, writing};
use crate::failure::Failure;
use crossmesh::collective::{Call, Kind, ReduceOperation, Row, TABLE_VERSION, Table};
use crossmesh::comm::{ChannelOptions, Communicator};
use crossmesh::layout::Dtype;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure which algorithm and launch is best at which size on these GPUs, and write it as a tuning table for CROSSMESH_TUNING
///
/// Run it with as many ranks as the table is for: crossmesh run -n 2 -- crossmesh tune --output table.json
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where to write the table, - for standard output
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Smallest size, in all
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "1K", allow_negative_numbers = true)]
    minbytes: String,
    /// Largest size
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "256M", allow_negative_numbers = true)]
    maxbytes: String,
    /// From a size to the next: times this
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 4, allow_negative_numbers = true)]
    stepfactor: i64,
    /// Collectives, with commas: all_reduce, all_gather, reduce_scatter, broadcast
    #[arg(long, value_name = "LIST", default_value = "all_reduce,all_gather,reduce_scatter,broadcast")]
    kinds: String,
}

const KINDS: [Kind; 4] = [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::Broadcast];

/// Runs the command on this rank.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    writing(&[("output", Some(&arguments.output))], |world| tune(world, arguments))
}

fn tune(world: &Communicator, arguments: &Arguments) -> Result<Complaint, BenchError> {
    let sizes = sizes((&arguments.minbytes, &arguments.maxbytes), arguments.stepfactor, 16)?;
    let kinds = kinds(&arguments.kinds)?;
    if world.size() < 2 {
        return Err(BenchError::TooFewRanks { needed: 2, ranks: world.size() });
    }
    let ranks = world.size() as u32;
    let form = Form { captured: true, cold: false, in_place: false };
    let of = |kind, bytes| Chain { call: call(kind, bytes, ranks), form, rank: world.rank().0, ranks, calls: 2 };
    let most = sizes.last().copied().unwrap_or(0);
    let room = kinds.iter().map(|&kind| of(kind, most).bytes()).max().unwrap_or(0);
    let mut rows = Vec::new();
    let mut machine = None;
    for registered in [false, true] {
        let mut rig = Rig::new(world, room, registered, &ChannelOptions::default())?;
        if rig.is_ordered() {
            return Err(BenchError::Ordered { what: "there is nothing to choose" });
        }
        for &kind in &kinds {
            for captured in [true, false] {
                for &bytes in &sizes {
                    let tried = try_all(&mut rig, &call(kind, bytes, ranks), Form { captured, ..form })?;
                    rows.extend(row(kind, captured, registered, bytes, &tried));
                }
            }
        }
        machine = Some(rig.machine()?);
    }
    let Some(machine) = machine else { return Ok(None) };
    let origin = format!("measured by crossmesh tune ({}) on {} ranks of {}", crossmesh::BUILD, ranks, machine.gpu);
    let table = Table { version: TABLE_VERSION, origin, machine, rows };
    table.check()?;
    expect_agreed(world, &table)?;
    if world.rank().0 == 0 {
        output::write_json(&table, &arguments.output)?;
        if output::leaves_room_for_a_table(Some(&arguments.output)) {
            print!("{}", text(&table));
        }
    }
    Ok(None)
}

fn kinds(text: &str) -> Result<Vec<Kind>, BenchError> {
    let one = |word: &str| {
        let found = KINDS.into_iter().find(|kind| kind.name() == word.trim());
        found.ok_or_else(|| BenchError::refused("kinds", word, KINDS.map(Kind::name).join(", ")))
    };
    text.split(',').map(one).collect()
}

/// A call of `bytes` bytes in all.
fn call(kind: Kind, bytes: u64, ranks: u32) -> Call {
    let parts = if matches!(kind, Kind::AllGather | Kind::ReduceScatter) { u64::from(ranks) } else { 1 };
    Call { kind, count: (bytes / parts / 2).max(1), dtype: Dtype::BF16, operation: ReduceOperation::Sum, root: 0 }
}

fn try_all(rig: &mut Rig<'_>, call: &Call, form: Form) -> Result<Vec<Tried>, BenchError> {
    let mut tried = Vec::new();
    for algorithm in algorithms(call.kind) {
        tried.extend(best(rig, call, form, algorithm)?);
    }
    Ok(tried)
}

/// What the table says about a size: the fastest of what was tried.
fn row(kind: Kind, captured: bool, registered: bool, bytes: u64, tried: &[Tried]) -> Option<Row> {
    let best = tried.iter().min_by(|one, other| one.microseconds.total_cmp(&other.microseconds))?;
    Some(Row {
        kind: kind.name().into(),
        captured,
        registered: Some(registered),
        up_to: bytes,
        algorithm: best.launch.algorithm.name().into(),
        blocks: best.launch.blocks,
        threads: best.launch.threads,
        microseconds: Some((best.microseconds * 100.0).round() / 100.0),
    })
}

/// All ranks must have come to one table.
fn expect_agreed(world: &Communicator, table: &Table) -> Result<(), BenchError> {
    let mine = serde_json::to_vec(table).unwrap_or_default();
    let all = world.allgather(&mine, deadline()?)?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(rank) => Err(BenchError::Wrong(format!("rank 0 and rank {rank} came to different tuning tables"))),
    }
}

fn text(table: &Table) -> String {
    let mut text = format!("# {}\n", table.origin);
    for row in &table.rows {
        let (mode, registered) = (if row.captured { "graph" } else { "eager" }, row.registered == Some(true));
        let operands = if registered { "registered" } else { "staged" };
        let time = row.microseconds.unwrap_or(0.0);
        text.push_str(&format!(
            "{:<14} {mode:<5} {operands:<10} {:>11} {:<14} {:>3} x {:<4} {time:>9.2} us\n",
            row.kind, row.up_to, row.algorithm, row.blocks, row.threads
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::collective::{Algorithm, Launch, TableMachine};

    fn tried(algorithm: Algorithm, microseconds: f64) -> Tried {
        Tried { launch: Launch { algorithm, blocks: 16, threads: 256, registered: true }, microseconds }
    }

    #[test]
    fn the_fastest_becomes_a_row_that_decides() {
        let all = [tried(Algorithm::TwoShot, 5.004), tried(Algorithm::OneShotPush, 2.006), tried(Algorithm::Ring, 9.0)];
        let rows: Vec<Row> =
            [1024, 4096].into_iter().filter_map(|bytes| row(Kind::AllReduce, true, true, bytes, &all)).collect();
        assert_eq!((rows[0].algorithm.as_str(), rows[0].microseconds), ("one-shot-push", Some(2.01)));
        assert_eq!(row(Kind::AllReduce, true, true, 8, &[]), None);
        let machine = TableMachine {
            architecture: "sm_90".into(),
            gpu: "H".into(),
            link: "nvlink".into(),
            ranks: 2,
            driver: "13.0".into(),
        };
        let table = Table { version: TABLE_VERSION, origin: "a test".into(), machine, rows };
        table.check().unwrap();
        assert!(table.row(Kind::AllReduce, true, true, 2000).is_some_and(|row| row.up_to == 4096));
        assert!(table.row(Kind::AllReduce, true, false, 2000).is_none());
        assert_eq!(text(&table).lines().count(), 3);
    }

    #[test]
    fn kinds_are_named() {
        assert_eq!(kinds("all_gather, broadcast").unwrap(), [Kind::AllGather, Kind::Broadcast]);
        assert!(kinds("all_to_all").unwrap_err().to_string().contains("; allowed: all_reduce, all_gather, "));
        assert_eq!(call(Kind::ReduceScatter, 4096, 4).count, 512);
    }
}
