//! Which core a rank runs on.
//!
//! In: a rank. Out: all threads of the process on one core, ranks in turn over the cores. Guarantee: as ranks of the peers'
//! programs are bound; a process that its starter bound keeps its core; what is started from here may run anywhere.

use super::error::BenchError;
use crossmesh::base::Rank;
use crossmesh::topology::{CpuSet, affinity};

/// The cores of this process.
#[derive(Debug, Clone)]
pub(super) struct Binding {
    own: CpuSet,
    core: Option<usize>,
}

impl Binding {
    /// Puts every thread of this process on the core whose turn it is.
    pub(super) fn in_turn(rank: Rank) -> Result<Self, BenchError> {
        let allowed = affinity::of_thread().map_err(BenchError::Binding)?;
        let cores: Vec<u32> = allowed.iter().collect();
        if cores.len() < 2 {
            return Ok(Self { own: allowed, core: cores.first().map(|&core| core as usize) });
        }
        let core = cores[rank.index() % cores.len()];
        let own = CpuSet::range(core, core);
        affinity::bind_process(&own).map_err(BenchError::Binding)?;
        Ok(Self { own, core: Some(core as usize) })
    }

    /// The core.
    pub(super) fn core(&self) -> Option<usize> {
        self.core
    }

    /// Runs `body` with this thread on any core that the process may have, for what it starts to inherit.
    pub(super) fn anywhere<R>(&self, body: impl FnOnce() -> R) -> Result<R, BenchError> {
        affinity::bind_thread(&affinity::everywhere()).map_err(BenchError::Binding)?;
        let result = body();
        affinity::bind_thread(&self.own).map_err(BenchError::Binding)?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_process_starts_unbound_ones() {
        // Threads of other tests in this process are bound for a moment, too; they are given back at the end.
        let before = affinity::of_thread().unwrap();
        let binding = Binding::in_turn(Rank(1)).unwrap();
        let bound = affinity::of_thread().unwrap();
        assert_eq!(bound.iter().map(|core| core as usize).collect::<Vec<_>>(), [binding.core().unwrap()]);
        let inside = binding.anywhere(|| affinity::of_thread().unwrap()).unwrap();
        assert!(inside.len() >= before.len());
        assert_eq!(affinity::of_thread().unwrap(), bound);
        affinity::bind_process(&before).unwrap();
    }
}
