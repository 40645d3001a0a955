//! What the doctor says. In: states, outcomes, what ranks tried. Out: a text for people, JSON, the exit code. Guarantee:
//! checks that did not run are listed with the reason.

use super::checks::{JOB, LOCAL, job};
use super::finding::{Finding, Outcome, Severity, merge};
use super::gpu_links::{self, GpuLinks};
use super::outliers;
use super::pairs::{self, Pair};
use super::system::State;
use crate::counted::counted;
use crossmesh::topology::cluster::PathKind;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// What the ranks of a job tried together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tried {
    /// Pairs of ranks that moved bytes.
    pub(crate) pairs: Vec<Pair>,
    /// Pairs of GPUs that wrote to each other.
    pub(crate) gpu_links: GpuLinks,
}

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) crossmesh: &'static str,
    pub(crate) hosts: usize,
    /// 0 outside of a job.
    pub(crate) ranks: usize,
    pub(crate) findings: Vec<Finding>,
    /// Ids of checks that found nothing wrong.
    pub(crate) passed: Vec<&'static str>,
    /// Ids of checks that had nothing to look at, with the reason.
    pub(crate) not_run: BTreeMap<&'static str, String>,
    /// Pairs of ranks that moved bytes.
    pub(crate) pairs: Vec<Pair>,
    /// Pairs of GPUs that wrote to each other.
    pub(crate) gpu_links: GpuLinks,
    /// Kinds of paths between these with the rates in GB/s.
    #[serde(skip)]
    gpu_rates: Vec<(String, f64)>,
}

impl Report {
    /// Runs all checks over `states`, in rank order, and judges what they tried together.
    pub(crate) fn of(states: &[State], tried: Tried) -> Self {
        let in_job = states.iter().any(|state| state.rank.is_some());
        let mut report = Self {
            crossmesh: crossmesh::BUILD,
            hosts: job::hosts(states).len(),
            ranks: if in_job { states.len() } else { 0 },
            findings: Vec::new(),
            passed: Vec::new(),
            not_run: BTreeMap::new(),
            pairs: Vec::new(),
            gpu_links: GpuLinks::default(),
            gpu_rates: Vec::new(),
        };
        for check in LOCAL {
            report.add(check.id, states.iter().map(check.run).collect());
        }
        for check in JOB {
            let outcome = if in_job { (check.run)(states) } else { Outcome::NotRun(OUTSIDE.into()) };
            report.add(check.id, vec![outcome]);
        }
        report.add_tried(states, tried, in_job);
        report.findings = merge(std::mem::take(&mut report.findings));
        report
    }

    /// One check on all ranks: it ran where any of them ran it.
    fn add(&mut self, id: &'static str, outcomes: Vec<Outcome>) {
        let mut reason = None;
        let (mut ran, mut found) = (false, false);
        for outcome in outcomes {
            match outcome {
                Outcome::Passed => ran = true,
                Outcome::Found(findings) => {
                    (ran, found) = (true, true);
                    self.findings.extend(findings);
                }
                Outcome::NotRun(why) => reason = Some(why),
            }
        }
        match reason {
            _ if found => {}
            _ if ran => self.passed.push(id),
            Some(why) => drop(self.not_run.insert(id, why)),
            None => {}
        }
    }

    fn add_tried(&mut self, states: &[State], tried: Tried, in_job: bool) {
        let name = |rank: u32| match states.iter().find(|state| state.rank == Some(rank)) {
            Some(state) => state.whom(),
            None => format!("rank {rank}"),
        };
        let why = |why| if in_job { why } else { OUTSIDE };
        let (pairs, links) = (&tried.pairs, &tried.gpu_links);
        let absent = pairs.is_empty().then(|| why("one rank"));
        let working = pairs.iter().filter(|pair| pair.error.is_none()).count();
        self.add_tries(["pair-failure", "pair-bandwidth"], &pairs::findings(pairs, name), absent, working);
        let absent = links.is_empty().then(|| why("no two GPUs of a host in the job"));
        let rates = gpu_links::rates(&links.links, states);
        let findings = gpu_links::findings(links, states, name);
        self.add_tries(["gpu-link-failure", "gpu-link-bandwidth"], &findings, absent, rates.len());
        let kind = |kind: Option<_>| kind.map_or("an unknown path".into(), |kind: PathKind| kind.to_string());
        self.gpu_rates = rates.into_iter().map(|(path, rate)| (kind(path), rate)).collect();
        (self.pairs, self.gpu_links) = (tried.pairs, tried.gpu_links);
    }

    /// Two checks that were made together, whether things work and how fast those are that do; `absent` says why they
    /// were not made.
    fn add_tries(&mut self, ids: [&'static str; 2], findings: &[Finding], absent: Option<&str>, working: usize) {
        let unmeasured = absent.or((working == 0).then_some("nothing works that could be measured"));
        for (id, absent) in ids.into_iter().zip([absent, unmeasured]) {
            let own: Vec<Finding> = findings.iter().filter(|finding| finding.id == id).cloned().collect();
            let outcome = absent.map_or_else(|| own.into(), |why| Outcome::NotRun(why.into()));
            self.add(id, vec![outcome]);
        }
    }

    /// 0 when all is well or there are notes only, 1 with warnings, 2 with failures.
    pub(crate) fn exit_code(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.severity).max() {
            None | Some(Severity::Note) => 0,
            Some(Severity::Warning) => 1,
            Some(Severity::Failure) => 2,
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = match self.ranks {
            0 => String::from("this machine\n"),
            ranks => format!("{} on {}\n", counted(ranks, "rank"), counted(self.hosts, "host")),
        };
        for finding in &self.findings {
            let severity = match finding.severity {
                Severity::Failure => "FAILURE",
                Severity::Warning => "warning",
                Severity::Note => "note   ",
            };
            let _ = writeln!(text, "\n{severity}  {}: {}", finding.id, finding.what);
            for (name, value) in [
                ("where", &places(&finding.place)),
                ("seen", &finding.value),
                ("should be", &finding.limit),
                ("type", &finding.remedy),
                ("more", &finding.doc),
            ] {
                let _ = writeln!(text, "  {name:<9}  {value}");
            }
        }
        self.pair_table(&mut text);
        let _ = writeln!(text, "\npassed: {}", self.passed.join(", "));
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (id, why) in &self.not_run {
            reasons.entry(why).or_default().push(id);
        }
        for (why, ids) in reasons {
            let _ = writeln!(text, "not run ({why}): {}", ids.join(", "));
        }
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let (failures, warnings) = (count(Severity::Failure), count(Severity::Warning));
        let _ = writeln!(
            text,
            "{failures} failures, {warnings} warnings, {} passed, {} not run",
            self.passed.len(),
            self.not_run.len()
        );
        text
    }

    /// Least, median and most of the rates of each kind.
    fn pair_table(&self, text: &mut String) {
        for link in ["mapped", "tcp"] {
            let working = self.pairs.iter().filter(|pair| pair.link == link && pair.error.is_none());
            let rates: Vec<f64> = working.flat_map(|pair| pair.gb_per_s).collect();
            let pairs = rates.len() / 2;
            if let Some([least, median, most]) = outliers::spread(rates) {
                let rates = format!("{median:.2} (least {least:.2}, most {most:.2})");
                let pairs = counted(pairs, "pair");
                let _ = writeln!(text, "\n{pairs} over {link}, GB/s each way: {rates}");
            }
        }
        let kinds: BTreeSet<&String> = self.gpu_rates.iter().map(|(kind, _)| kind).collect();
        for kind in kinds {
            let own = self.gpu_rates.iter().filter(|(other, _)| other == kind);
            let rates: Vec<f64> = own.map(|(_, rate)| *rate).collect();
            let links = rates.len();
            if let Some([least, median, most]) = outliers::spread(rates) {
                let rates = format!("{median:.1} (least {least:.1}, most {most:.1})");
                let _ = writeln!(text, "\n{links} links of GPUs by {kind}, GB/s by copy engine: {rates}");
            }
        }
    }
}

/// `1 host`, `2 hosts`.
/// Why checks of a job did not run.
const OUTSIDE: &str = "needs a job: crossmesh run -n N -- crossmesh doctor";
/// Places that are shown; JSON has all.
const SHOWN: usize = 6;

fn places(places: &[String]) -> String {
    match places.len() {
        count if count > SHOWN => format!("{} and {} more", places[..SHOWN].join(", "), count - SHOWN),
        _ => places.join(", "),
    }
}
