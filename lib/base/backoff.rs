//! The one way to wait: spin briefly, yield, then sleep, because ranks may outnumber cores.
//!
//! In: a loop that found nothing to do. Out: time passed. Guarantee: an idle loop costs next to no CPU after
//! a millisecond, and a busy one never gives its core away for longer than a scheduler slice.

use std::time::Duration;

/// Spins that cost less than one cache miss each, before the first yield.
const SPINS: u32 = 100;
/// Yields before sleeping; on an oversubscribed core a handoff takes about 2 us this way and 4 ms by spinning.
const YIELDS: u32 = 200;
const FIRST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// State of one wait loop.
#[derive(Debug, Default)]
pub struct Backoff {
    idle_rounds: u32,
}

impl Backoff {
    /// A wait that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Something happened: begin again with spinning.
    pub fn reset(&mut self) {
        self.idle_rounds = 0;
    }

    /// Whether spinning and yielding are over: a caller that can be woken sleeps its own way now.
    pub fn is_tired(&self) -> bool {
        self.idle_rounds >= SPINS + YIELDS
    }

    /// Nothing happened: wait a little, longer each time.
    pub fn snooze(&mut self) {
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        if self.idle_rounds <= SPINS {
            std::hint::spin_loop();
        } else if self.idle_rounds <= SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let doublings = ((self.idle_rounds - SPINS - YIELDS) / 8).min(10);
            std::thread::sleep((FIRST_SLEEP * (1 << doublings)).min(LONGEST_SLEEP));
        }
    }
}
