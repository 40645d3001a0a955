//! Results of cases. In: names and figures. Out: lines that a job prints, a table. Guarantee: a figure has a name with its
//! unit; a case that failed says why.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// In front of a result that rank 0 prints.
pub(crate) const MARK: &str = "RESULT ";

/// What came of a case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) case: String,
    pub(crate) ranks: u32,
    pub(crate) passed: bool,
    pub(crate) why: String,
    pub(crate) figures: BTreeMap<String, f64>,
}

impl Outcome {
    pub(crate) fn passed(case: &str, ranks: u32) -> Self {
        Self { case: case.to_string(), ranks, passed: true, why: String::new(), figures: BTreeMap::new() }
    }

    pub(crate) fn failed(case: &str, ranks: u32, why: String) -> Self {
        Self { passed: false, why, ..Self::passed(case, ranks) }
    }

    pub(crate) fn with(mut self, name: &str, value: f64) -> Self {
        self.figures.insert(name.to_string(), value);
        self
    }

    /// Prints it for the process that started the job.
    pub(crate) fn print(&self) {
        println!("{MARK}{}", serde_json::to_string(self).expect("a result has a JSON form"));
    }

    pub(crate) fn line(&self) -> String {
        let figures: Vec<String> = self.figures.iter().map(|(name, value)| format!("{name} {value:.2}")).collect();
        let verdict = if self.passed { "ok" } else { "FAILED" };
        format!("{:6} {:2} ranks  {:34} {} {}", verdict, self.ranks, self.case, figures.join("  "), self.why)
    }
}

/// All outcomes, one a line.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let lines: Vec<String> = outcomes.iter().map(Outcome::line).collect();
    format!("\n{}\n", lines.join("\n"))
}
