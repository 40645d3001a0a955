//! Progress for a person. In: a transfer that is run a number of times, whether anybody looks. Out: one bar for all
//! runs on a terminal, nothing elsewhere. Guarantee: without a terminal a run is waited for in one call; the bar is
//! gone before anything else is printed.

use crossmesh::base::Deadline;
use crossmesh::comm::Reshard;
use crossmesh::execute::ExecuteError;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// The bar of a job; dropped, it is gone.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar for `runs` runs of `transfer`; `shown` on the rank that speaks for the job.
    pub(super) fn new(transfer: &Reshard, runs: u32, shown: bool) -> Self {
        if !shown || !std::io::stderr().is_terminal() {
            return Self { bar: None };
        }
        let chunks = transfer.progress().1.saturating_mul(u64::from(runs));
        let bar = ProgressBar::new(chunks);
        if let Ok(style) = ProgressStyle::with_template("moving {bar:40} {pos}/{len} chunks of this rank, {elapsed}") {
            bar.set_style(style);
        }
        Self { bar: Some(bar) }
    }

    /// Waits for run number `run` of `transfer`, counted from 0.
    pub(super) fn wait(&self, transfer: &mut Reshard, run: u32, deadline: Deadline) -> Result<(), ExecuteError> {
        let Some(bar) = &self.bar else { return transfer.wait(deadline) };
        loop {
            let slice = Deadline::after(TICK.min(deadline.remaining()));
            match transfer.wait(slice) {
                Err(ExecuteError::Deadline { .. }) if !deadline.expired() => show(bar, transfer, run),
                done => return done,
            }
        }
    }

    /// Shows that `run` runs are done; for the time between two runs.
    pub(super) fn between(&self, transfer: &Reshard, run: u32) {
        if let Some(bar) = &self.bar
            && run > 0
        {
            bar.set_position(transfer.progress().1.saturating_mul(u64::from(run)));
        }
    }
}

fn show(bar: &ProgressBar, transfer: &Reshard, run: u32) {
    let (done, chunks) = transfer.progress();
    bar.set_position(chunks.saturating_mul(u64::from(run)).saturating_add(done));
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
