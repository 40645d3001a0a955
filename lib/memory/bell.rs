//! Waking a sleeping process of the same host. In: a shared segment of two words. Out: sleep and wake. Guarantee: a
//! flag stored before [`Bell::ring`] is seen by a sleeper that looked for it after [`Bell::arm`], or wakes it; a ring
//! while nobody sleeps costs one load.
//!
//! The sleeper counts itself, then looks at the flags once more, then sleeps on the number it read before. The ringer
//! stores its flag, then looks whether anybody sleeps. Both sides have a sequentially consistent fence between their
//! two steps, so at least one of them sees the other (Dekker). A wake in vain costs one look at the flags.

use super::shared::{SegmentId, SharedMemory};
use super::{MemoryError, PeerSegments, SegmentServer};
use crate::base::Deadline;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

const BYTES: u64 = 4096;
/// Counts rings; its low half is what sleepers sleep on.
const RINGS: usize = 0;
/// Counts sleepers; a cache line apart.
const SLEEPERS: usize = 8;

/// A process's bell, its own or a peer's.
#[derive(Debug, Clone)]
pub struct Bell {
    segment: Arc<SharedMemory>,
}

/// A sleeper that has counted itself.
#[derive(Debug)]
pub struct Armed<'a> {
    bell: &'a Bell,
    rings: u32,
}

impl Bell {
    /// This process's bell, which peers may open.
    pub fn create(server: &SegmentServer) -> Result<Self, MemoryError> {
        let segment = Arc::new(SharedMemory::create("crossmesh-bell", BYTES)?);
        server.publish(&segment);
        Self::over(segment)
    }

    /// A peer's bell.
    pub fn open(
        segments: &PeerSegments,
        server: &str,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<Self, MemoryError> {
        Self::over(segments.open(server, segment, deadline)?)
    }

    fn over(segment: Arc<SharedMemory>) -> Result<Self, MemoryError> {
        segment.words(0, BYTES / 8)?;
        Ok(Self { segment })
    }

    /// What peers open it by.
    pub fn id(&self) -> SegmentId {
        self.segment.id()
    }

    fn word(&self, number: usize) -> Option<&AtomicU64> {
        self.segment.words(number as u64 * 8, 1).ok()?.first()
    }

    /// Wakes whoever sleeps, for flags stored before.
    pub fn ring(&self) {
        let (Some(rings), Some(sleepers)) = (self.word(RINGS), self.word(SLEEPERS)) else { return };
        // Pairs with the fence in `arm`.
        fence(Ordering::SeqCst);
        if sleepers.load(Ordering::Relaxed) > 0 {
            rings.fetch_add(1, Ordering::Release);
            wake(rings);
        }
    }

    /// Sleeps until the bell has rung more often than `rings`, or `limit`, for a thread that keeps it armed meanwhile.
    pub fn sleep_since(&self, rings: u32, limit: Duration) {
        if let Some(word) = self.word(RINGS) {
            sleep_on(word, rings, limit);
        }
    }

    /// Counts the caller as a sleeper; it must look at its flags once more before it sleeps.
    pub fn arm(&self) -> Armed<'_> {
        let mut number = 0;
        if let (Some(rings), Some(sleepers)) = (self.word(RINGS), self.word(SLEEPERS)) {
            number = rings.load(Ordering::Acquire) as u32;
            sleepers.fetch_add(1, Ordering::Relaxed);
        }
        // Pairs with the fence in `ring`.
        fence(Ordering::SeqCst);
        Armed { bell: self, rings: number }
    }
}

impl Armed<'_> {
    /// Number of rings when it was armed.
    pub fn rings(&self) -> u32 {
        self.rings
    }

    /// Sleeps until the bell rings, or `limit`; returns at once if it has rung since it was armed.
    pub fn sleep(self, limit: Duration) {
        self.bell.sleep_since(self.rings, limit);
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        if let Some(sleepers) = self.bell.word(SLEEPERS) {
            sleepers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The half of a word that holds its low 32 bits, which is what the kernel compares.
fn low_half(word: &AtomicU64) -> *const u32 {
    let halves: *const u32 = word.as_ptr().cast();
    halves.wrapping_add(usize::from(cfg!(target_endian = "big")))
}

fn wake(word: &AtomicU64) {
    // SAFETY: the address is that of a live word; FUTEX_WAKE reads and writes no memory.
    unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAKE, i32::MAX) };
}

fn sleep_on(word: &AtomicU64, seen: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().min(3600) as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos() as i32),
    };
    // SAFETY: the word and the time limit live across the call; the kernel only reads them. Every outcome, also an
    // error, only means that the caller looks at its flags again.
    unsafe { libc::syscall(libc::SYS_futex, low_half(word), libc::FUTEX_WAIT, seen, &raw const limit) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn flags_are_never_missed() {
        let server = SegmentServer::start().unwrap();
        let bell = Bell::create(&server).unwrap();
        let peer = Bell::open(&PeerSegments::new(), &server.address(), bell.id(), Deadline::seconds(10)).unwrap();
        let flag = AtomicU64::new(0);
        let rounds = 2000;
        let limit = Duration::from_secs(20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    while flag.load(Ordering::Acquire) != 2 * round - 1 {
                        std::thread::yield_now();
                    }
                    flag.store(2 * round, Ordering::Release);
                    peer.ring();
                }
            });
            let begun = Instant::now();
            for round in 1..=rounds {
                flag.store(2 * round - 1, Ordering::Release);
                while flag.load(Ordering::Acquire) != 2 * round {
                    let armed = bell.arm();
                    if flag.load(Ordering::Acquire) != 2 * round {
                        armed.sleep(limit);
                    }
                }
            }
            assert!(begun.elapsed() < limit, "a ring was missed");
        });
    }

    #[test]
    fn sleep_ends_at_its_limit() {
        let bell = Bell::create(&SegmentServer::start().unwrap()).unwrap();
        let begun = Instant::now();
        bell.arm().sleep(Duration::from_millis(30));
        assert!(begun.elapsed() >= Duration::from_millis(29));
        bell.ring();
        assert_eq!(bell.word(SLEEPERS).unwrap().load(Ordering::Relaxed), 0);
    }
}
