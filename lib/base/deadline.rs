//! Deadlines. In: a duration. Out: a point in time that every wait takes. Guarantee: no wait in the library is without one.

use std::time::{Duration, Instant};

/// A point in time by which a call must have returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self { start: Instant::now(), limit }
    }

    /// `seconds` from now.
    pub fn seconds(seconds: u64) -> Self {
        Self::after(Duration::from_secs(seconds))
    }

    /// What is left; zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }

    /// Whether it has passed.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The duration it was made with, for messages.
    pub fn limit(&self) -> Duration {
        self.limit
    }
}
