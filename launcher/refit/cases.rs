//! Cases moved one after the other. In: cases, the world. Out: a table, JSON. Guarantee: a case runs on as many ranks as
//! it needs, in the domains that it states; what does not fit is listed; a wrong byte or byte count ends the job.

use super::Arguments;
use super::consent::agree;
use super::error::RefitError;
use super::job::{SPEAKER, deadline};
use super::output;
use super::report::spread;
use super::room::{self, Claim};
use super::shards::{self, SideLayout, SideMemory};
use super::sides::Settings;
use super::transfer::Transfer;
use crate::case::Case;
use crate::checkpoint::Model;
use crate::result_file;
use crossmesh::base::bytes::human;
use crossmesh::comm::{Communicator, Report, Side};
use crossmesh::layout::Placement;
use crossmesh::layout::model::{self, ModelTensor};
use crossmesh::route::RouteKind;
use serde::Serialize;
use std::fmt::Write;

/// What became of a case.
#[derive(Debug, Clone, Serialize)]
struct Outcome {
    name: String,
    ranks: usize,
    moved: bool,
    /// Why not.
    skipped: Option<String>,
    bytes: u64,
    delivered_bytes: Option<u64>,
    inter_domain_bytes: Option<u64>,
    seconds: Option<f64>,
    /// `None` unless asked for.
    verified: Option<bool>,
}

/// What became of all.
#[derive(Debug, Clone, Serialize)]
struct Outcomes {
    route: String,
    injection: String,
    ranks: usize,
    moved: usize,
    skipped: usize,
    cases: Vec<Outcome>,
}

/// The cases, unless contents cannot be made up for one.
pub(super) fn movable(cases: Vec<Case>) -> Result<Vec<Case>, RefitError> {
    let is_partial = |placement: &Placement| matches!(placement, Placement::Partial(_));
    let has_terms =
        |case: &Case| case.manifest.tensors().iter().any(|tensor| tensor.source.placements().iter().any(is_partial));
    match cases.iter().find(|case| has_terms(case)) {
        Some(case) => Err(RefitError::Terms { case: case.name.clone() }),
        None => Ok(cases),
    }
}

/// Moves every case that fits.
pub(super) fn run(
    world: &Communicator,
    arguments: &Arguments,
    settings: &Settings,
    cases: &[Case],
) -> Result<(), RefitError> {
    let writable = if world.rank() == SPEAKER { output::try_results(arguments) } else { Ok(()) };
    let fits = cases.iter().any(|case| case.ranks <= world.size());
    let needed = cases.iter().map(|case| case.ranks).min().unwrap_or(0);
    let too_many = RefitError::NoCase { cases: cases.len(), ranks: world.size(), needed };
    agree(world, if fits { writable } else { Err(too_many) }, deadline()?)?;
    let mut outcomes = Outcomes {
        route: settings.route.kind.to_string(),
        injection: settings.route.injection.to_string(),
        ranks: world.size(),
        moved: 0,
        skipped: 0,
        cases: Vec::with_capacity(cases.len()),
    };
    for case in cases {
        let outcome = move_case(world, arguments, settings, case)?;
        outcomes.moved += usize::from(outcome.moved);
        outcomes.skipped += usize::from(!outcome.moved);
        outcomes.cases.push(outcome);
    }
    let publish = || result_file::publish(&outcomes, arguments.json.as_deref(), || table(&outcomes));
    let shown = match world.rank() {
        SPEAKER => publish().map_err(RefitError::from).and_then(|()| expect_moved(&outcomes)),
        _ => Ok(()),
    };
    agree(world, shown, deadline()?)
}

/// A job that has moved nothing has failed.
fn expect_moved(outcomes: &Outcomes) -> Result<(), RefitError> {
    let why = outcomes.cases.iter().find_map(|case| Some((&case.name, case.skipped.as_ref()?)));
    match why.filter(|_| outcomes.moved == 0) {
        Some((name, why)) => {
            let message = format!("no case was moved; case {name:?}: {why}");
            Err(RefitError::Agreed { message, bad_input: true })
        }
        None => Ok(()),
    }
}

fn move_case(
    world: &Communicator,
    arguments: &Arguments,
    settings: &Settings,
    case: &Case,
) -> Result<Outcome, RefitError> {
    let mut outcome = Outcome {
        name: case.name.clone(),
        ranks: case.ranks,
        moved: false,
        skipped: None,
        bytes: case.manifest.global_bytes()?,
        delivered_bytes: None,
        inter_domain_bytes: None,
        seconds: None,
        verified: None,
    };
    if case.ranks > world.size() {
        outcome.skipped = Some(format!("needs {} ranks, the job has {}", case.ranks, world.size()));
        return Ok(outcome);
    }
    let members = match &case.domains {
        Some(domains) => world.with_domains(domains, deadline()?)?,
        None => world.split((world.rank().index() < case.ranks).then_some(0), world.rank().0, deadline()?)?,
    };
    let mine = match &members {
        Some(members) => transfer(members, arguments, settings, case).map(Some),
        None => Ok(None),
    };
    // Rank 0 is a member of every case, and what members have agreed on it says for all.
    let mine = match mine {
        Err(error) if world.rank() == SPEAKER => Err(error.of_case(&case.name)),
        Err(RefitError::Agreed { .. }) => Ok(None),
        mine => mine,
    };
    match agree(world, mine, deadline()?)? {
        Some(Moved::Whole { report, seconds }) => {
            outcome.delivered_bytes = Some(report.delivered_bytes);
            outcome.inter_domain_bytes = Some(report.traffic.inter_domain_bytes);
            outcome.seconds = Some(seconds);
        }
        Some(Moved::TooLarge { why }) => {
            outcome.skipped = Some(why);
            return Ok(outcome);
        }
        None => {}
    }
    outcome.moved = true;
    outcome.verified = arguments.verify.then_some(true);
    Ok(outcome)
}

/// What became of a case.
enum Moved {
    /// It was moved, in so many of this rank's seconds.
    Whole { report: Box<Report>, seconds: f64 },
    /// Some host has too little memory for it.
    TooLarge { why: String },
}

/// Moves a case between its ranks, if it fits their memory.
fn transfer(
    members: &Communicator,
    arguments: &Arguments,
    settings: &Settings,
    case: &Case,
) -> Result<Moved, RefitError> {
    let (model, sides, claim) = agree(members, lay_out(members, settings, case), deadline()?)?;
    if let Some(error) = room::lacks(members, &claim, deadline()?)? {
        return Ok(Moved::TooLarge { why: error.to_string() });
    }
    let (source, destination) = agree(members, fill(members, settings, case, &model, sides), deadline()?)?;
    let transfer = Transfer {
        world: members,
        model: &model,
        manifest: &case.manifest,
        source: &source,
        destination: &destination,
        repeat: arguments.repeat,
        verify: arguments.verify,
    };
    let mut reshard = transfer.init(settings.route)?;
    let report = reshard.report().clone();
    let seconds = transfer.run(&mut reshard)?;
    let saturated = transfer.sum(reshard.saturated())?;
    drop(reshard);
    if arguments.verify {
        transfer.check(saturated)?;
    }
    agree(members, compare(case, &report), deadline()?)?;
    Ok(Moved::Whole { report: Box::new(report), seconds: spread(&seconds).0 })
}

/// The case as a model, where this rank's part of its tensor will lie on both sides, and the memory that it takes.
fn lay_out(
    members: &Communicator,
    settings: &Settings,
    case: &Case,
) -> Result<(Model, (SideLayout, SideLayout), Claim), RefitError> {
    let tensors = case.manifest.tensors().iter().map(|tensor| {
        let layout = &tensor.source;
        ModelTensor::new(tensor.name.clone(), layout.shape().to_vec(), layout.dtype())
    });
    let model = Model::described(&model::Model::new(case.name.clone(), tensors.collect())?);
    let side = |side| SideLayout::new(&case.manifest, &[], members.rank(), side);
    let (source, destination) = (side(Side::Source)?, side(Side::Destination)?);
    let claim = Claim::new(members, &case.manifest, [&source, &destination], settings.memory)?;
    Ok((model, (source, destination), claim))
}

/// Memory of both sides, with the sources' contents.
fn fill(
    members: &Communicator,
    settings: &Settings,
    case: &Case,
    model: &Model,
    (source, destination): (SideLayout, SideLayout),
) -> Result<(SideMemory, SideMemory), RefitError> {
    let (source, destination) = (source.allocate(settings.memory)?, destination.allocate(settings.memory)?);
    shards::fill(model, &case.manifest, members.rank(), &source)?;
    Ok((source, destination))
}

/// Byte counts of the transfer against those of the file.
fn compare(case: &Case, report: &Report) -> Result<(), RefitError> {
    let Some(expect) = &case.expect else { return Ok(()) };
    let crossing = match report.route.kind {
        RouteKind::Flat => expect.flat_inter_domain_bytes,
        RouteKind::Hierarchical => expect.hierarchical_inter_domain_bytes,
        RouteKind::GatherBroadcast => None,
    };
    for (what, found, expected) in [
        ("unique_bytes", report.unique_bytes, expect.unique_bytes),
        ("delivered_bytes", report.delivered_bytes, expect.delivered_bytes),
        ("inter_domain_bytes", report.traffic.inter_domain_bytes, crossing),
    ] {
        if let Some(expected) = expected.filter(|&expected| expected != found) {
            return Err(RefitError::Unexpected { case: case.name.clone(), what, found, expected });
        }
    }
    Ok(())
}

fn table(outcomes: &Outcomes) -> String {
    let mut text = format!("route {}, injection {}\n", outcomes.route, outcomes.injection);
    let width = outcomes.cases.iter().map(|case| case.name.chars().count()).max().unwrap_or(0).max(4);
    let _ = writeln!(
        text,
        "{:<width$} {:>6} {:>12} {:>12} {:>14} {:>11}  result",
        "case", "ranks", "bytes", "delivered", "between doms", "seconds"
    );
    for case in &outcomes.cases {
        let bytes = |bytes: Option<u64>| bytes.map_or("-".into(), human);
        let result = match (&case.skipped, case.verified) {
            (Some(reason), _) => format!("skipped: {reason}"),
            (None, Some(true)) => "every byte and digest verified".into(),
            (None, _) => "moved".into(),
        };
        let _ = writeln!(
            text,
            "{:<width$} {:>6} {:>12} {:>12} {:>14} {:>11}  {result}",
            case.name,
            case.ranks,
            human(case.bytes),
            bytes(case.delivered_bytes),
            bytes(case.inter_domain_bytes),
            case.seconds.map_or("-".into(), |seconds| format!("{seconds:.6}")),
        );
    }
    let _ = writeln!(text, "{} moved, {} skipped", outcomes.moved, outcomes.skipped);
    text
}
