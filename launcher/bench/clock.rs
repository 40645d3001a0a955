//! One clock for all ranks of a host, and one of the work of this process.
//!
//! In: a communicator. Out: nanoseconds, a common start, CPU time. Guarantee: the clock is CLOCK_MONOTONIC, the same on every process
//! of a host; waiting ranks sleep.

use super::error::BenchError;
use crossmesh::base::Deadline;
use crossmesh::comm::Communicator;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// From the agreement on a start to the start, so that every rank has heard of it; as in the peers' programs.
const LEAD: Duration = Duration::from_millis(5);

/// Now.
pub(super) fn now() -> Result<Duration, BenchError> {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).map_err(BenchError::Clock)
}

/// CPU time that this process has used.
pub(super) fn cpu_time() -> Result<Duration, BenchError> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_err(BenchError::Usage)?;
    let length = |time: TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    Ok(length(usage.user_time()) + length(usage.system_time()))
}

/// Returns on all ranks at one moment, as near as their kernel wakes them; collective.
pub(super) fn start_together(group: &Communicator, deadline: Deadline) -> Result<(), BenchError> {
    let mine = now()?.as_nanos() as u64;
    let all = group.allgather(&mine.to_le_bytes(), deadline)?;
    let latest = all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok()).map(u64::from_le_bytes).max();
    let start = Duration::from_nanos(latest.unwrap_or(mine)).saturating_add(LEAD);
    std::thread::sleep(start.saturating_sub(now()?));
    Ok(())
}
