//! How a waiting process sleeps. In: what it waits for. Out: a way and a limit. Guarantee: news of a mapped peer wakes a
//! sleeper on the bell at once, news of the network a sleeper on the link, and one that has slept there for some time
//! also news of mapped peers.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Longest sleep that something wakes from.
pub(super) const LONGEST: Duration = Duration::from_secs(5);
/// First sleeps in the network link while mapped peers, which do not wake it then, may have news: to be woken by them costs
/// another thread's time.
const LINK_REST: Duration = Duration::from_millis(1);
/// How many there are.
const LINK_RESTS: u32 = 8;

/// Looks in vain at copies of devices before a process sleeps between two: a chunk takes tens of microseconds.
pub(super) const SOON: u32 = 2000;

/// A way to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Until a mapped peer rings.
    Bell,
    /// Until the network has news; `mapped` peers may have some too.
    Link { link: usize, mapped: bool },
    /// For a moment.
    Moment,
    /// Not at all: a device is about to end a copy.
    Soon,
}

/// Whether somebody should listen to the bell while the process sleeps in a link, after so many sleeps in vain.
pub(super) fn listens(rests: u32, mapped: bool) -> bool {
    mapped && rests >= LINK_RESTS
}

/// Limit of a sleep on a link after so many sleeps in vain.
pub(super) fn limit(rests: u32, mapped: bool) -> Duration {
    if mapped && !listens(rests, mapped) { LINK_REST } else { LONGEST }
}

/// Sleeps until a link has news or `alarm` is readable; without a descriptor of the link for `limit`, a millisecond at
/// most.
pub(super) fn sleep_on(readiness: Option<&OwnedFd>, alarm: BorrowedFd<'_>, limit: Duration) {
    let Some(readiness) = readiness else { return std::thread::sleep(limit.min(LINK_REST)) };
    let mut entries = [PollFd::new(readiness.as_fd(), PollFlags::POLLIN), PollFd::new(alarm, PollFlags::POLLIN)];
    // Rounded up, so that a wait of less than a millisecond does not spin.
    let milliseconds = (limit + Duration::from_micros(999)).as_millis() as u64;
    let timeout = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::ZERO);
    // However it ends, the caller looks at everything again.
    let _ = poll(&mut entries, timeout);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_are_short_only_while_nobody_listens_to_mapped_peers() {
        for (rests, mapped, short) in [(0, true, true), (7, true, true), (8, true, false), (0, false, false)] {
            assert_eq!(limit(rests, mapped), if short { LINK_REST } else { LONGEST }, "{rests} {mapped}");
            assert_eq!(listens(rests, mapped), mapped && !short);
        }
    }
}
