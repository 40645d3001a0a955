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
mod stages;
mod table;

pub(crate) use arguments::Arguments;

use crate::failure::{BAD_INPUT, Failure};
use crate::result_file::{self, ResultFile};
use crossmesh::base::Rank;
use error::PlanCommandError;
use evaluate::{Asked, Evaluated, evaluate};
use job::Job;
use progress::Progress;
use report::Report;
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
    if let (Some(json), Some(html)) = (&arguments.json, &arguments.html)
        && json == html
    {
        return Err(PlanCommandError::SameFile { path: json.clone() });
    }
    for (option, path) in [("json", &arguments.json), ("html", &arguments.html)] {
        if let Some(path) = path {
            ResultFile::try_path(path).map_err(|source| PlanCommandError::Target { option, source })?;
        }
    }
    let asked = Asked::new(arguments.route.as_deref(), arguments.injection.as_deref(), arguments.simulate)?;
    let jobs = job::jobs(arguments)?;
    for job in &jobs {
        check_explained(job, arguments.explain)?;
    }
    let mut evaluated = Vec::with_capacity(jobs.len());
    let progress = Progress::new(jobs.len());
    for job in &jobs {
        let mut one = evaluate(job, &asked, &progress)?;
        one.report.as_expected = expected::compare(&one.report, job.expect.as_ref())?;
        evaluated.push(one);
    }
    drop(progress);
    write(arguments, &jobs, &evaluated)
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
    for result in results {
        result.place()?;
    }
    if shows_tables {
        result_file::print(&tables(arguments, jobs, evaluated))?;
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

fn tables(arguments: &Arguments, jobs: &[Job], evaluated: &[Evaluated]) -> String {
    let mut text = String::new();
    for (number, (job, one)) in jobs.iter().zip(evaluated).enumerate() {
        if number > 0 {
            text.push('\n');
        }
        text.push_str(&table::table(&one.report));
        if let Some(rank) = arguments.explain {
            let _ = write!(text, "\n{}", explained::explained(job, one, Rank(rank)));
        }
    }
    text
}
