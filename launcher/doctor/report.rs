//! What the doctor says. In: states, outcomes, pairs. Out: a text for people, JSON, the exit code. Guarantee: checks that
//! did not run are listed with the reason.

use super::checks::{JOB, LOCAL, job};
use super::finding::{Finding, Outcome, Severity, merge};
use super::pairs::{self, Pair};
use super::system::State;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

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
}

impl Report {
    /// Runs all checks over `states`, in rank order; `pairs` is absent where bytes were not moved.
    pub(crate) fn of(states: &[State], pairs: Option<Vec<Pair>>) -> Self {
        let in_job = states.iter().any(|state| state.rank.is_some());
        let mut report = Self {
            crossmesh: crossmesh::BUILD,
            hosts: job::hosts(states).len(),
            ranks: if in_job { states.len() } else { 0 },
            findings: Vec::new(),
            passed: Vec::new(),
            not_run: BTreeMap::new(),
            pairs: Vec::new(),
        };
        for check in LOCAL {
            report.add(check.id, states.iter().map(check.run).collect());
        }
        for check in JOB {
            let outcome = if in_job { (check.run)(states) } else { Outcome::NotRun(OUTSIDE.into()) };
            report.add(check.id, vec![outcome]);
        }
        report.add_pairs(states, pairs);
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

    fn add_pairs(&mut self, states: &[State], pairs: Option<Vec<Pair>>) {
        const IDS: [&str; 2] = ["pair-failure", "pair-bandwidth"];
        let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) else {
            self.not_run.extend(IDS.map(|id| (id, OUTSIDE.into())));
            return;
        };
        let name = |rank: u32| match states.iter().find(|state| state.rank == Some(rank)) {
            Some(state) => state.whom(),
            None => format!("rank {rank}"),
        };
        let findings = pairs::findings(&pairs, name);
        self.passed.extend(IDS.iter().filter(|id| findings.iter().all(|finding| finding.id != **id)));
        self.findings.extend(findings);
        self.pairs = pairs;
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
            ranks => format!("{ranks} ranks on {} hosts\n", self.hosts),
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

    /// The rates, as a triangle while it can be read, else least, median and most.
    fn pair_table(&self, text: &mut String) {
        for link in ["mapped", "tcp"] {
            let mut rates: Vec<f64> = self
                .pairs
                .iter()
                .filter(|pair| pair.link == link && pair.error.is_none())
                .flat_map(|pair| pair.gb_per_s)
                .collect();
            rates.sort_by(f64::total_cmp);
            let (Some(least), Some(most)) = (rates.first(), rates.last()) else { continue };
            let median = rates[rates.len() / 2];
            let _ = writeln!(
                text,
                "\n{} pairs over {link}, GB/s each way: {median:.2} (least {least:.2}, most {most:.2})",
                rates.len() / 2
            );
        }
    }
}

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
