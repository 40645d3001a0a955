//! The best launch of an algorithm. In: a call, its form. Out: the launch and its time. Guarantee: collective; all ranks see the
//! same times, those of the slowest, and so find the same launch best; what it computes is right.

use super::chain::{Chain, Form};
use super::launches::launches;
use super::measure::{Effort, Work, check, prepare, time};
use super::rig::Rig;
use crate::bench::error::BenchError;
use crossmesh::collective::{Algorithm, Call, Launch, Table};

/// A launch and the time of a call with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tried {
    pub(super) launch: Launch,
    pub(super) microseconds: f64,
}

/// Calls of a chain, and chains, up to so many bytes; beyond the last, [`LARGE`].
const COUNTS: [(u64, u32, u32); 3] = [(1 << 20, 30, 7), (16 << 20, 10, 5), (64 << 20, 4, 5)];
const LARGE: (u32, u32) = (2, 4);

/// The best launch of `algorithm` for `call`; `None` where it cannot run.
pub(super) fn best(
    rig: &mut Rig<'_>,
    call: &Call,
    form: Form,
    algorithm: Algorithm,
) -> Result<Option<Tried>, BenchError> {
    let total = call.total_bytes(rig.ranks()).unwrap_or(u64::MAX);
    let found = COUNTS.iter().find(|(up_to, ..)| total <= *up_to);
    let (calls, samples) = found.map_or(LARGE, |&(_, calls, samples)| (calls, samples));
    let most = rig.rehearsal.channel().most_blocks();
    let work = chain(rig, call, form, calls);
    let mut best: Option<Tried> = None;
    for launch in launches(call.kind, algorithm, call.bytes().unwrap_or(u64::MAX), most, rig.registered) {
        if !force(rig, call, form, &launch)? {
            return Ok(None);
        }
        prepare(rig, &work)?;
        let Some(timed) = time(rig, &work, Effort { warmups: 1, samples })? else { continue };
        if best.is_none_or(|best| timed.figures.p50 < best.microseconds) {
            best = Some(Tried { launch, microseconds: timed.figures.p50 });
        }
    }
    let Some(tried) = best else { return Ok(None) };
    force(rig, call, form, &tried.launch)?;
    let work = chain(rig, call, form, 2);
    prepare(rig, &work)?;
    match check(rig, &work)? {
        0 => Ok(best),
        wrong => {
            let Launch { algorithm, blocks, threads, .. } = tried.launch;
            let launch = format!("{algorithm}, {blocks} blocks of {threads} threads");
            Err(BenchError::Wrong(format!("{wrong} elements of {call} by {launch}")))
        }
    }
}

fn chain(rig: &Rig<'_>, call: &Call, form: Form, calls: u32) -> Work {
    Work::Calls(Chain { call: *call, form, rank: rig.rank(), ranks: rig.ranks(), calls })
}

/// Lets calls run by `launch`; whether they can.
pub(super) fn force(rig: &mut Rig<'_>, call: &Call, form: Form, launch: &Launch) -> Result<bool, BenchError> {
    let table = Table::of_launch(rig.machine()?, call.kind, form.captured, launch);
    let registered = rig.registered;
    let channel = rig.rehearsal.channel();
    channel.use_table(Some(table));
    let chosen = channel.explain(call, form.captured, registered)?;
    Ok((chosen.algorithm, chosen.blocks, chosen.threads) == (launch.algorithm, launch.blocks, launch.threads))
}
