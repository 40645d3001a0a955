//! `crossmesh bench allreduce` and its siblings, `bench crossover`, `bench limits`, `crossmesh tune`: collectives on GPUs.
//!
//! In: sizes, types, forms. Out: columns as of nccl-tests, JSON, curves, tables. Guarantee: one process for each rank, all on one
//! host; the slowest rank counts; a call whose data is wrong has no time and makes the command fail.
//!
//! ```text
//! arguments ─► Request ─► chain, norm (what each call reads and writes, what must come of it; values)
//!                          └─► measure (on a rig: times, wrong elements) ─► samples ─► results
//! launches ─► sweep (the best launch) ─► crossover (closed, curves), tune
//! ```

mod arguments;
mod chain;
mod closed;
pub(crate) mod crossover;
mod curves;
mod launches;
pub(crate) mod limits;
mod measure;
mod norm;
mod results;
mod rig;
mod rivals;
mod samples;
mod sweep;
pub(crate) mod tune;
mod values;

pub(crate) use arguments::{Arguments, Request};

use super::error::BenchError;
use super::{Complaint, output};
use arguments::Rival;
use chain::{Chain, Form};
use crossmesh::base::Rank;
use crossmesh::collective::{Call, Kind};
use crossmesh::comm::Communicator;
use measure::{Effort, Timed, Work, check, prepare, time};
use norm::NormChain;
use results::{Line, Results, RivalTime, Side};
use rig::Rig;
use rivals::{Counts, Rivals};

/// From this size on rates are held against the link's.
const LARGE: u64 = 1 << 20;

/// Runs the bench on this rank; collective.
pub(super) fn run(world: &Communicator, request: &Request) -> Result<Complaint, BenchError> {
    let ranks = world.size() as u32;
    if request.root >= ranks {
        return Err(BenchError::refused("root", request.root, format!("ranks 0 to {}", ranks - 1)));
    }
    let leads = world.rank() == Rank(0);
    let largest = calls(request, ranks).iter().filter_map(|call| call.total_bytes(ranks)).max();
    let link = if largest >= Some(LARGE) { limits::two_way(world)? } else { None };
    let mut rig = Rig::new(world, room(request, world), request.registered, &request.options())?;
    let forms = forms(&mut rig, request)?;
    let mut rivals = match leads && !request.against.is_empty() {
        true => Some(Rivals::start(&request.against, ranks)?),
        false => None,
    };
    let mut results = Results {
        crossmesh: crossmesh::BUILD,
        kind: request.kind.name(),
        gpu: rig.rehearsal.channel().device().properties().name.clone(),
        ranks,
        registered: rig.registered,
        rivals: rivals.as_ref().map_or(String::new(), |rivals| rivals.versions.clone()),
        link: link.map(|link| link.most()),
        lines: Vec::new(),
    };
    let mut names: Vec<&str> = request.against.iter().map(|rival| rival.name()).collect();
    names.extend(has_unfused(request).then_some(UNFUSED));
    let shows = leads && output::leaves_room_for_a_table(request.json.as_deref());
    if shows {
        print!("{}", introduction(&results));
        println!("{}", results::head(&names));
    }
    for call in calls(request, ranks) {
        for &form in &forms {
            let mut line = measure_line(&mut rig, request, &call, form)?;
            line.rivals = rival_times(&mut rig, request, &call, form, rivals.as_mut())?;
            if shows {
                println!("{}", line.text(results.link, &names));
            }
            results.lines.push(line);
        }
    }
    if !leads {
        return Ok(None);
    }
    let complaint = results.complaint();
    if let Some(path) = &request.json {
        output::write_json(&results.for_json(), path)?;
    }
    Ok(complaint)
}

/// Stands among rivals for what the fused call replaces.
const UNFUSED: &str = "unfused";

/// Whether the fused call is held against this library's all-reduce and what PyTorch does after it.
fn has_unfused(request: &Request) -> bool {
    request.kind == Kind::AllReduceNorm && request.against.contains(&Rival::Torch)
}

/// What rivals take for a call; collective, rank 0 has them.
fn rival_times(
    rig: &mut Rig<'_>,
    request: &Request,
    call: &Call,
    form: Form,
    rivals: Option<&mut Rivals>,
) -> Result<Vec<RivalTime>, BenchError> {
    let (calls, samples) = request.counts(call.total_bytes(rig.ranks()).unwrap_or(u64::MAX));
    let counts = Counts { calls, warmups: request.warmups, samples };
    let plain = match has_unfused(request) {
        true => measure_side(rig, request, &Call { kind: Kind::AllReduce, ..*call }, form)?.0.shown(),
        false => None,
    };
    let Some(rivals) = rivals else { return Ok(Vec::new()) };
    let mut times = rivals.times(call, form, request.hidden, counts)?;
    if has_unfused(request) {
        let norm = rivals.norm(call, form, request.hidden, counts)?;
        let p50 = plain.zip(norm.p50).map(|(plain, norm)| plain.p50 + norm);
        times.push(RivalTime {
            rival: UNFUSED,
            what: format!("crossmesh all_reduce, then {}", norm.what),
            p50,
            p99: None,
        });
    }
    Ok(times)
}

fn introduction(results: &Results) -> String {
    let Results { kind, gpu, ranks, registered, rivals, link, .. } = results;
    let operands = if *registered { "registered" } else { "not registered" };
    let mut text = format!("# {kind}, {ranks} ranks on {gpu}, operands {operands}\n");
    if let Some(link) = link {
        text.push_str(&format!("# link, each way while both are busy: {link:.1} GB/s\n"));
    }
    if !rivals.is_empty() {
        text.push_str(&format!("# rivals: {rivals}; ratio: crossmesh's median out of place over the rival's\n"));
    }
    text
}

/// All calls, smaller ones first.
fn calls(request: &Request, ranks: u32) -> Vec<Call> {
    let mut calls = Vec::new();
    for &dtype in &request.dtypes {
        for &operation in &request.operations {
            for count in request.elements(dtype, ranks) {
                calls.push(Call { kind: request.kind, count, dtype, operation, root: request.root });
            }
        }
    }
    calls
}

/// The forms that can be measured here.
fn forms(rig: &mut Rig<'_>, request: &Request) -> Result<Vec<Form>, BenchError> {
    let ordered = rig.is_ordered();
    let forms: Vec<Form> = request.forms().into_iter().filter(|form| !(ordered && form.captured)).collect();
    if forms.is_empty() {
        let allowed = "eager, since hosts order the ranks here and cannot act in a graph";
        return Err(BenchError::refused("modes", "graph", allowed));
    }
    if ordered && rig.rank() == 0 {
        log::warn!(
            "GPUs are shared by processes or do not reach each other: hosts order the ranks, graphs are left out"
        );
    }
    Ok(forms)
}

/// Bytes of operands that any call of the bench needs.
fn room(request: &Request, world: &Communicator) -> u64 {
    let ranks = world.size() as u32;
    let mut most = 0;
    for call in calls(request, ranks) {
        for form in request.forms() {
            for in_place in [false, true] {
                let form = Form { in_place, ..form };
                most = most.max(work(request, &call, form, (world.rank().0, ranks)).bytes());
            }
        }
    }
    most
}

fn work(request: &Request, call: &Call, form: Form, (rank, ranks): (u32, u32)) -> Work {
    let (calls, _) = request.counts(call.total_bytes(ranks).unwrap_or(u64::MAX));
    if call.kind == Kind::AllReduceNorm {
        let hidden = request.hidden;
        let tokens = u32::try_from(call.count / u64::from(hidden)).unwrap_or(u32::MAX);
        return Work::Norms(NormChain { form, dtype: call.dtype, tokens, hidden, rank, ranks, calls });
    }
    Work::Calls(Chain { call: *call, form, rank, ranks, calls })
}

/// A call in a form, out of place and in place.
fn measure_line(rig: &mut Rig<'_>, request: &Request, call: &Call, form: Form) -> Result<Line, BenchError> {
    let registered = rig.registered;
    let choice = rig.rehearsal.channel().explain(call, form.captured, registered)?;
    let mut line = Line {
        mode: if form.captured { "graph" } else { "eager" },
        l2: if form.cold { "cold" } else { "warm" },
        algorithm: choice.algorithm.name(),
        blocks: choice.blocks,
        threads: choice.threads,
        ..Line::new(call, rig.ranks())
    };
    let (side, timed) = measure_side(rig, request, call, form)?;
    line.out_of_place = side;
    line.host = timed.and_then(|timed| timed.host);
    // The fused call has operands of its own for everything.
    if call.kind != Kind::AllReduceNorm {
        (line.in_place, _) = measure_side(rig, request, call, Form { in_place: true, ..form })?;
    }
    Ok(line)
}

fn measure_side(
    rig: &mut Rig<'_>,
    request: &Request,
    call: &Call,
    form: Form,
) -> Result<(Side, Option<Timed>), BenchError> {
    let (_, samples) = request.counts(call.total_bytes(rig.ranks()).unwrap_or(u64::MAX));
    let work = work(request, call, form, (rig.rank(), rig.ranks()));
    prepare(rig, &work)?;
    // Before, so that times are those of calls that compute something, and after, so that they were right under load.
    let mut wrong = if request.checks { Some(check(rig, &work)?) } else { None };
    let timed = time(rig, &work, Effort { warmups: request.warmups, samples })?;
    if let Some(before) = wrong {
        wrong = Some(before.max(check(rig, &work)?));
    }
    Ok((Side { figures: timed.as_ref().map(|timed| timed.figures), wrong }, timed))
}
