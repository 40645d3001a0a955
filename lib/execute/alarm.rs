//! What wakes this process's sleepers: mapped peers by the bell, this process by the alarm, the network by its link. In:
//! news. Out: threads that look again. Guarantee: news told after a sleeper has armed the bell wakes it, wherever it
//! sleeps; what is told while nobody sleeps costs two loads.
//!
//! A thread that sleeps in a network link cannot sleep on the bell, whose peers know no descriptor of this process. So a
//! second thread sleeps on the bell for it, and passes a ring on to a descriptor that the first one polls too.

use super::ExecuteError;
use super::rest::LONGEST;
use crate::memory::Bell;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Wakes the sleepers of one process.
pub(super) struct Alarm {
    bell: Bell,
    event: EventFd,
    /// Threads that sleep on the descriptor, or are about to.
    sleepers: AtomicUsize,
    listening: Mutex<Listening>,
    asked: Condvar,
}

/// What the listener does.
#[derive(Default)]
struct Listening {
    /// Number of rings from which on it should listen.
    wanted: Option<u32>,
    /// Number of rings from which on it listens.
    since: Option<u32>,
    stop: bool,
    thread: Option<JoinHandle<()>>,
}

/// A thread that is about to sleep on the descriptor.
pub(super) struct Sleeper<'a>(&'a Alarm);

impl Alarm {
    pub(super) fn new(bell: Bell) -> Result<Self, ExecuteError> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|errno| ExecuteError::Thread { source: errno.into() })?;
        let listening = Mutex::default();
        Ok(Self { bell, event, sleepers: AtomicUsize::new(0), listening, asked: Condvar::new() })
    }

    /// What mapped peers ring.
    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Wakes every sleeper of this process, for news stored before.
    pub(super) fn ring(&self) {
        self.bell.ring();
        // After the fence in `Bell::ring`, which pairs with the one in `Bell::arm`.
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.pass_on();
        }
    }

    /// Counts the caller as a sleeper on the descriptor; before it arms the bell and looks once more.
    pub(super) fn sleeper(&self) -> Sleeper<'_> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Who told something before this is seen by the look that follows.
        let _ = self.event.read();
        Sleeper(self)
    }

    /// What a sleeper polls.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Lets a ring after number `rings`, which the caller has armed, be passed on to the descriptor.
    pub(super) fn listen(self: &Arc<Self>, rings: u32) -> Result<(), ExecuteError> {
        let mut listening = self.lock();
        // Listening since another number means that the bell has rung: it looks here again at once.
        if listening.since == Some(rings) || listening.stop {
            return Ok(());
        }
        listening.wanted = Some(rings);
        self.start(&mut listening)?;
        drop(listening);
        self.asked.notify_one();
        Ok(())
    }

    /// Starts the listener, unless it runs: a transfer that may need it does so at init, since a thread allocates.
    pub(super) fn prepare(self: &Arc<Self>) -> Result<(), ExecuteError> {
        self.start(&mut self.lock())
    }

    fn start(self: &Arc<Self>, listening: &mut Listening) -> Result<(), ExecuteError> {
        if listening.thread.is_none() && !listening.stop {
            let alarm = self.clone();
            let thread = std::thread::Builder::new().name("crossmesh-bell".into()).spawn(move || alarm.run());
            listening.thread = Some(thread.map_err(|source| ExecuteError::Thread { source })?);
        }
        Ok(())
    }

    /// Ends the listener.
    pub(super) fn stop(&self) {
        let mut listening = self.lock();
        listening.stop = true;
        let thread = listening.thread.take();
        drop(listening);
        self.asked.notify_one();
        // Armed, so that the ring counts although nobody else sleeps.
        let armed = self.bell.arm();
        self.bell.ring();
        drop(armed);
        if thread.is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that listens to the bell panicked");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Listening> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass_on(&self) {
        // It can only be full, and then it is readable already.
        let _ = self.event.write(1);
    }

    /// The listener: asleep until a sleeper asks for it.
    fn run(&self) {
        let mut listening = self.lock();
        while !listening.stop {
            let Some(rings) = listening.wanted.take() else {
                listening = self.asked.wait(listening).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            listening.since = Some(rings);
            drop(listening);
            self.bell.sleep_since(rings, LONGEST);
            listening = self.lock();
            listening.since = None;
            // Also at the limit: whoever sleeps asks again.
            self.pass_on();
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Deadline;
    use crate::memory::{PeerSegments, SegmentServer};
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(20);

    fn alarm() -> (SegmentServer, Arc<Alarm>) {
        let server = SegmentServer::start().unwrap();
        let bell = Bell::create(&server).unwrap();
        (server, Arc::new(Alarm::new(bell).unwrap()))
    }

    /// Sleeps on the descriptor; whether something woke it.
    fn sleep(alarm: &Arc<Alarm>, limit: Duration) -> bool {
        let sleeper = alarm.sleeper();
        let armed = alarm.bell().arm();
        alarm.listen(armed.rings()).unwrap();
        let mut entries = [PollFd::new(alarm.descriptor(), PollFlags::POLLIN)];
        let woken = poll(&mut entries, PollTimeout::try_from(limit).unwrap()).unwrap() > 0;
        drop((armed, sleeper));
        woken
    }

    #[test]
    fn a_ring_of_a_peer_reaches_the_descriptor_every_time() {
        let (server, alarm) = alarm();
        let peer =
            Bell::open(&PeerSegments::new(), &server.address(), alarm.bell().id(), Deadline::seconds(10)).unwrap();
        let begun = Instant::now();
        for _ in 0..50 {
            std::thread::scope(|scope| {
                let woken = scope.spawn(|| sleep(&alarm, LIMIT));
                // Rings in vain until the sleeper has armed.
                while !woken.is_finished() {
                    peer.ring();
                    std::thread::sleep(Duration::from_micros(200));
                }
                assert!(woken.join().unwrap());
            });
        }
        assert!(begun.elapsed() < LIMIT, "a ring was missed");
        alarm.stop();
    }

    #[test]
    fn this_process_wakes_its_sleepers_and_quiet_lets_them_sleep() {
        let (_server, alarm) = alarm();
        assert!(!sleep(&alarm, Duration::from_millis(30)));
        std::thread::scope(|scope| {
            let woken = scope.spawn(|| sleep(&alarm, LIMIT));
            while !woken.is_finished() {
                alarm.ring();
                std::thread::sleep(Duration::from_micros(200));
            }
            assert!(woken.join().unwrap());
        });
        alarm.stop();
        let listening = alarm.lock();
        assert!(listening.thread.is_none() && listening.since.is_none());
    }
}
