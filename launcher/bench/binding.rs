//! Which core a rank runs on.
//!
//! In: a rank. Out: all threads of the process on one core, ranks in turn over the cores. Guarantee: as ranks of the peers'
//! programs are bound; a process that its starter bound keeps its core; what is started from here may run anywhere.

use super::error::BenchError;
use crossmesh::base::Rank;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// This thread, to the kernel.
const THIS: Pid = Pid::from_raw(0);

/// The cores of this process.
#[derive(Debug, Clone)]
pub(super) struct Binding {
    own: CpuSet,
    core: Option<usize>,
}

impl Binding {
    /// Puts every thread of this process on the core whose turn it is.
    pub(super) fn in_turn(rank: Rank) -> Result<Self, BenchError> {
        let allowed = sched_getaffinity(THIS).map_err(BenchError::Binding)?;
        let cores: Vec<usize> =
            (0..CpuSet::count()).filter(|&core| allowed.is_set(core).is_ok_and(|is_set| is_set)).collect();
        if cores.len() < 2 {
            return Ok(Self { own: allowed, core: cores.first().copied() });
        }
        let core = cores[rank.index() % cores.len()];
        let mut own = CpuSet::new();
        own.set(core).map_err(BenchError::Binding)?;
        for thread in threads() {
            // A thread may have ended since it was listed.
            if let Err(error) = sched_setaffinity(thread, &own)
                && error != nix::errno::Errno::ESRCH
            {
                return Err(BenchError::Binding(error));
            }
        }
        Ok(Self { own, core: Some(core) })
    }

    /// The core.
    pub(super) fn core(&self) -> Option<usize> {
        self.core
    }

    /// Runs `body` with this thread on any core that the process may have, for what it starts to inherit.
    pub(super) fn anywhere<R>(&self, body: impl FnOnce() -> R) -> Result<R, BenchError> {
        let mut all = CpuSet::new();
        for core in 0..CpuSet::count() {
            all.set(core).map_err(BenchError::Binding)?;
        }
        // The kernel takes away what the process must not have.
        sched_setaffinity(THIS, &all).map_err(BenchError::Binding)?;
        let result = body();
        sched_setaffinity(THIS, &self.own).map_err(BenchError::Binding)?;
        Ok(result)
    }
}

/// All threads of this process.
fn threads() -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc/self/task") else { return vec![THIS] };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_process_starts_unbound_ones() {
        // Threads of other tests in this process are bound for a moment, too; they are given back at the end.
        let before = sched_getaffinity(THIS).unwrap();
        let cores = (0..CpuSet::count()).filter(|&core| before.is_set(core).unwrap()).count();
        let binding = Binding::in_turn(Rank(1)).unwrap();
        let bound = sched_getaffinity(THIS).unwrap();
        let count = |set: &CpuSet| (0..CpuSet::count()).filter(|&core| set.is_set(core).unwrap()).count();
        assert_eq!(count(&bound), 1);
        assert!(bound.is_set(binding.core().unwrap()).unwrap());
        let (inside, after) =
            (binding.anywhere(|| sched_getaffinity(THIS).unwrap()).unwrap(), sched_getaffinity(THIS).unwrap());
        assert!(count(&inside) >= cores);
        assert_eq!(count(&after), 1);
        for thread in threads() {
            let _ = sched_setaffinity(thread, &before);
        }
    }
}
