//! `crossmesh plan`: what a transfer costs, before a byte moves.
//!
//! In: a model with two parallel specs, or cases with explicit layouts; a cluster that nobody has to own. Out: bytes of
//! every link, bounds, predicted and simulated times of every route, a choice and its reason, as tables, JSON and a page.
//! Guarantee: needs no ranks; every plan is proved; all results are written, or none.

mod arguments;
mod error;
mod evaluate;
mod expected;
mod explained;
mod job;
mod page;
mod progress;
mod report;
mod saved;
mod stages;
mod table;

pub(crate) use arguments::Arguments;

use crate::apart::{self, SameFile};
use crate::case;
use crate::failure::{BAD_INPUT, Failure};
use crate::result_file::{self, ResultFile};
use crossmesh::base::Rank;
use error::PlanCommandError;
use evaluate::{Asked, Evaluated, evaluate};
use job::Job;
use progress::Progress;
use report::Report;
use saved::Loaded;
use std::fmt::Write;
use std::process::ExitCode;

/// Exit code of a plan that is not as it should be.
const FAILED: u8 = 1;

/// Plans and shows what was asked for.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match plan(arguments) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::new(if error.is_bad_input() { BAD_INPUT } else { FAILED }, error)),
    }
}

fn plan(arguments: &Arguments) -> Result<(), PlanCommandError> {
    check_targets(arguments)?;
    let loaded = arguments.load.as_deref().map(Loaded::read).transpose()?;
    let asked = match &loaded {
        Some(loaded) => loaded.asked(arguments.simulate)?,
        None => Asked::new(arguments.route.as_deref(), arguments.injection.as_deref(), arguments.simulate)?,
    };
    let jobs = match &loaded {
        Some(loaded) => vec![loaded.job(arguments)?],
        None => job::jobs(arguments)?,
    };
    for job in &jobs {
        check_explained(job, arguments.explain)?;
        job.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    }
    let mut evaluated = Vec::with_capacity(jobs.len());
    let progress = Progress::new(jobs.len());
    for job in &jobs {
        let mut one = evaluate(job, &asked, &progress)?;
        one.report.as_expected = expected::compare(&one.report, job.expect.as_ref())?;
        one.report.explained = arguments.explain.map(|rank| explained::explained(job, &one, Rank(rank)));
        evaluated.push(one);
    }
    drop(progress);
    write(arguments, &jobs, &evaluated)
}

/// Finds out whether all results can be written, before anything is planned.
fn check_targets(arguments: &Arguments) -> Result<(), PlanCommandError> {
    check_apart(arguments)?;
    if let Some(path) = arguments.save.as_deref().filter(|path| result_file::is_standard_output(path)) {
        return Err(PlanCommandError::SaveTarget { path: path.to_path_buf() });
    }
    for (option, path) in [("json", &arguments.json), ("html", &arguments.html), ("save", &arguments.save)] {
        if let Some(path) = path {
            ResultFile::try_path(path).map_err(|source| PlanCommandError::Target { option, source })?;
        }
    }
    Ok(())
}

/// Refuses a result in the place of another one or of a file that is read.
fn check_apart(arguments: &Arguments) -> Result<(), SameFile> {
    let case = arguments.case.as_deref().map(case::path);
    let read = [
        ("--load", &arguments.load),
        ("--case", &case),
        ("--model", &arguments.model),
        ("--system", &arguments.system),
        ("--rules", &arguments.rules),
        ("--expert-map-src", &arguments.expert_map_src),
        ("--expert-map-dst", &arguments.expert_map_dst),
    ];
    let written = [("--save", &arguments.save), ("--json", &arguments.json), ("--html", &arguments.html)];
    apart::check(
        &read.map(|(option, path)| (option, path.as_deref())),
        &written.map(|(option, path)| (option, path.as_deref())),
    )
}

fn check_explained(job: &Job, rank: Option<u32>) -> Result<(), PlanCommandError> {
    let ranks = job.machine.topology.size();
    match rank {
        Some(rank) if rank as usize >= ranks => {
            let (title, last) = (job.title.clone(), ranks.saturating_sub(1));
            Err(PlanCommandError::Explained { rank, title, last })
        }
        _ => Ok(()),
    }
}

/// All results, or none: files get their names when all are on disk.
fn write(arguments: &Arguments, jobs: &[Job], evaluated: &[Evaluated]) -> Result<(), PlanCommandError> {
    let target = |option| move |source| PlanCommandError::Target { option, source };
    let reports: Vec<&Report> = evaluated.iter().map(|one| &one.report).collect();
    let mut results = Vec::new();
    let mut shows_tables = true;
    if let Some(path) = &arguments.json {
        let in_one_line = result_file::is_standard_output(path);
        shows_tables = !in_one_line;
        let text = json(&reports, arguments.case.is_some(), in_one_line);
        results.push(ResultFile::prepare(path, text).map_err(target("json"))?);
    }
    if let Some(path) = &arguments.html {
        let text = page::page(jobs, evaluated);
        shows_tables &= !result_file::is_standard_output(path);
        results.push(ResultFile::prepare(path, text).map_err(target("html"))?);
    }
    if let (Some(path), [job], [one]) = (&arguments.save, jobs, evaluated) {
        let bytes = saved::bytes(job, one, path)?;
        results.push(ResultFile::prepare(path, bytes).map_err(target("save"))?);
    }
    for result in results {
        result.place()?;
    }
    if shows_tables {
        result_file::print(&tables(&reports))?;
    }
    Ok(())
}

/// A list for a file of cases, one object for a model.
fn json(reports: &[&Report], is_list: bool, in_one_line: bool) -> String {
    // Numbers, texts and lists of them always have a JSON form.
    let text = match (reports, is_list, in_one_line) {
        ([report], false, true) => serde_json::to_string(report),
        ([report], false, false) => serde_json::to_string_pretty(report),
        (all, _, true) => serde_json::to_string(all),
        (all, _, false) => serde_json::to_string_pretty(all),
    };
    text.unwrap_or_default() + "\n"
}

fn tables(reports: &[&Report]) -> String {
    let mut text = String::new();
    for (number, report) in reports.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        text.push_str(&table::table(report));
        if let Some(explained) = &report.explained {
            let _ = write!(text, "\n{}", explained.text());
        }
    }
    text
}
