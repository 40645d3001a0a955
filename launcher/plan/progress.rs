//! Progress for a person. In: the number of plans. Out: on a terminal a bar with what is being done. Guarantee: nothing
//! elsewhere; the bar is gone before anything else is printed.

use crossmesh::route::RouteOptions;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How often the clock of the bar moves.
const TICK: Duration = Duration::from_millis(200);
/// The pieces, every route, the stages.
const STEPS: usize = 2 + RouteOptions::ALL.len();

/// The progress of all plans; dropped, the bar is gone.
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Progress of so many plans.
    pub(super) fn new(plans: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| bar((plans * STEPS) as u64));
        Self(bar)
    }

    /// Shows what begins now, and that what was shown before is done.
    pub(super) fn step(&self, title: &str, what: &str) {
        if let Some(bar) = &self.0 {
            if !bar.message().is_empty() {
                bar.inc(1);
            }
            bar.set_message(format!("{title}: {what}"));
        }
    }
}

fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("planning {bar:30} {elapsed}  {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
