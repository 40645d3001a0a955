//! How a waiting process sleeps. In: what it waits for. Out: a way and a limit. Guarantee: news of a mapped peer wakes a
//! sleeper on the bell at once, news of the network a sleeper on the link; what cannot wake it is noticed at the limit.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Longest sleep that something wakes from: how late an abort is noticed at most.
pub(super) const LONGEST: Duration = Duration::from_millis(200);
/// First and longest sleep in the network link while mapped peers, which cannot wake it, may have news.
const FIRST_LINK_REST: Duration = Duration::from_millis(1);
const LONGEST_LINK_REST: Duration = Duration::from_millis(20);
/// Sleeps in vain after which the next ones are twice as long.
const RESTS_OF_A_LENGTH: u32 = 16;

/// A way to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Until a mapped peer rings.
    Bell,
    /// Until the network has news; `mapped` peers may have some too.
    Link { link: usize, mapped: bool },
    /// For a moment.
    Moment,
}

/// Limit of a sleep on a link after so many sleeps in vain.
pub(super) fn limit(rests: u32, mapped: bool) -> Duration {
    if !mapped {
        return LONGEST;
    }
    let doublings = (rests / RESTS_OF_A_LENGTH).min(8);
    (FIRST_LINK_REST * (1 << doublings)).min(LONGEST_LINK_REST)
}

/// Sleeps until a link has news; without a descriptor for `limit`, a millisecond at most.
pub(super) fn sleep_on(readiness: Option<&OwnedFd>, limit: Duration) {
    let Some(readiness) = readiness else { return std::thread::sleep(limit.min(FIRST_LINK_REST)) };
    let mut entries = [PollFd::new(readiness.as_fd(), PollFlags::POLLIN)];
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
    fn sleeps_grow_to_their_limit_only_with_mapped_peers() {
        let lengths: Vec<u128> =
            [0, 15, 16, 40, 64, 200, u32::MAX].map(|rests| limit(rests, true).as_millis()).to_vec();
        assert_eq!(lengths, [1, 1, 2, 4, 16, 20, 20]);
        assert_eq!(limit(0, false), LONGEST);
    }
}
