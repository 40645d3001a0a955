//! Signals as something to read.
//!
//! In: a list of signals. Out: a descriptor that is readable when one arrived. Guarantee: nothing runs in a signal
//! handler. Started processes inherit blocked signals, so they are started within [`Signals::unblocked`], or clear
//! their own mask as `crossmesh rank-program` does.

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};

/// Signals that a user or a starter sends.
pub(crate) const REQUESTS: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGUSR2, Signal::SIGCONT];

/// The signals of this process; made before any thread, so that none of them takes one.
#[derive(Debug)]
pub(crate) struct Signals {
    descriptor: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Blocks [`REQUESTS`] and `SIGCHLD` and makes them readable. `SIGHUP` stays ignored under nohup(1).
    pub(crate) fn block() -> Result<Self, Errno> {
        let mut set: SigSet = REQUESTS.into_iter().collect();
        set.add(Signal::SIGCHLD);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if ignored(&status, libc::SIGHUP) {
            set.remove(Signal::SIGHUP);
        }
        let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { descriptor, before })
    }

    /// Does `start` with the signals as they were before: one that arrives meanwhile has its usual effect.
    pub(crate) fn unblocked<T>(&self, start: impl FnOnce() -> T) -> Result<T, Errno> {
        let blocked = self.before.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let started = start();
        blocked.thread_set_mask()?;
        Ok(started)
    }

    /// Those that arrived since the last call.
    pub(crate) fn arrived(&self) -> Result<Vec<i32>, Errno> {
        let mut signals = Vec::new();
        while let Some(signal) = self.descriptor.read_signal()? {
            signals.push(signal.ssi_signo as i32);
        }
        Ok(signals)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether `/proc/self/status` says that `signal` is ignored.
fn ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tx\nSigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        let signals: Vec<_> = (1..=64).filter(|&signal| ignored(status, signal)).collect();
        assert_eq!(signals, [libc::SIGHUP, libc::SIGPIPE]);
        assert!(!ignored("", libc::SIGHUP));
    }
}
