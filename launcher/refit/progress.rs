//! Progress for a person. In: a transfer that is run a number of times, whether anybody looks. Out: one bar for all
//! runs on a terminal, a line now and then under a launcher that writes to a terminal, nothing elsewhere. Guarantee:
//! where nobody looks a run is waited for in one call; the bar is gone before anything else is printed.

use crossmesh::base::Deadline;
use crossmesh::base::env::{self, EnvError};
use crossmesh::comm::Reshard;
use crossmesh::execute::ExecuteError;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);
/// Time from line to line; a job that is shorter prints none.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// How progress is shown.
enum Shown {
    Bar(ProgressBar),
    /// Lines, with the time of the next one since the beginning.
    Lines(Cell<Duration>),
}

/// The progress of a job; dropped, a bar is gone.
pub(super) struct Progress {
    shown: Option<Shown>,
    chunks: u64,
    began: Instant,
}

impl Progress {
    /// Progress of `runs` runs of `transfer`; `speaks` on the rank that speaks for the job.
    pub(super) fn new(transfer: &Reshard, runs: u32, speaks: bool) -> Result<Self, EnvError> {
        let chunks = transfer.progress().1.saturating_mul(u64::from(runs));
        let shown = match speaks {
            false => None,
            true if std::io::stderr().is_terminal() => Some(Shown::Bar(bar(chunks))),
            true if env::integer(env::TERMINAL)? == Some(1) => Some(Shown::Lines(Cell::new(LINE_EVERY))),
            true => None,
        };
        Ok(Self { shown, chunks, began: Instant::now() })
    }

    /// Waits for run number `run` of `transfer`, counted from 0.
    pub(super) fn wait(&self, transfer: &mut Reshard, run: u32, deadline: Deadline) -> Result<(), ExecuteError> {
        if self.shown.is_none() {
            return transfer.wait(deadline);
        }
        loop {
            let slice = Deadline::after(TICK.min(deadline.remaining()));
            match transfer.wait(slice) {
                Err(ExecuteError::Deadline { .. }) if !deadline.expired() => {
                    let (done, chunks) = transfer.progress();
                    self.show(chunks.saturating_mul(u64::from(run)).saturating_add(done));
                }
                done => return done,
            }
        }
    }

    /// Shows that `run` runs are done; for the time between two runs.
    pub(super) fn between(&self, transfer: &Reshard, run: u32) {
        if run > 0 {
            self.show(transfer.progress().1.saturating_mul(u64::from(run)));
        }
    }

    fn show(&self, done: u64) {
        match &self.shown {
            None => {}
            Some(Shown::Bar(bar)) => bar.set_position(done),
            Some(Shown::Lines(due)) => {
                let elapsed = self.began.elapsed();
                if elapsed >= due.get() {
                    due.set(elapsed + LINE_EVERY);
                    // Nobody may be left to read it.
                    let _ = writeln!(std::io::stderr(), "{}", line(done, self.chunks, elapsed));
                }
            }
        }
    }
}

fn bar(chunks: u64) -> ProgressBar {
    let bar = ProgressBar::new(chunks);
    if let Ok(style) = ProgressStyle::with_template("moving {bar:40} {pos}/{len} chunks of this rank, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

fn line(done: u64, chunks: u64, elapsed: Duration) -> String {
    let percent = u128::from(done) * 100 / u128::from(chunks.max(1));
    format!("moving: {percent} % of the chunks of rank 0, {:.1} s", elapsed.as_secs_f64())
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(Shown::Bar(bar)) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        for (done, chunks, expected) in
            [(0, 0, "0 %"), (7, 20, "35 %"), (20, 20, "100 %"), (u64::MAX, u64::MAX, "100 %")]
        {
            let expected = format!("moving: {expected} of the chunks of rank 0, 4.1 s");
            assert_eq!(line(done, chunks, Duration::from_millis(4120)), expected);
        }
    }
}
