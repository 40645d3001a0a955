//! Progress for a person. In: a transfer, whether anybody looks. Out: a bar on a terminal, nothing elsewhere.
//! Guarantee: without a terminal the transfer is waited for in one call.

use crossmesh::base::Deadline;
use crossmesh::comm::Reshard;
use crossmesh::execute::ExecuteError;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(100);

/// Waits for `transfer`; `shown` on the rank that speaks for the job.
pub(super) fn wait(transfer: &mut Reshard, shown: bool, deadline: Deadline) -> Result<(), ExecuteError> {
    if !shown || !std::io::stderr().is_terminal() {
        return transfer.wait(deadline);
    }
    let bar = ProgressBar::new(transfer.progress().1);
    if let Ok(style) = ProgressStyle::with_template("moving {bar:40} {pos}/{len} chunks here, {elapsed}") {
        bar.set_style(style);
    }
    loop {
        let slice = Deadline::after(TICK.min(deadline.remaining()));
        match transfer.wait(slice) {
            Err(ExecuteError::Deadline { .. }) if !deadline.expired() => bar.set_position(transfer.progress().0),
            done => {
                bar.finish_and_clear();
                return done;
            }
        }
    }
}
