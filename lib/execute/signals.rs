//! Which signals of a peer belong to which transfer. In: how many each transfer expects. Out: ranges of indices; the owner
//! of a signal. Guarantee: ranges of one peer do not overlap; those of a removed transfer are given again.

use super::ExecuteError;
use crate::base::Rank;
use crate::transport::Signal;
use std::collections::HashMap;

/// Signal indices of one peer that a transfer reserved.
#[derive(Debug, Clone, Copy)]
struct Reserved {
    first: u32,
    count: u32,
    execution: u32,
}

/// Ranges of all peers.
#[derive(Debug, Default)]
pub(super) struct Signals {
    reserved: HashMap<Rank, Vec<Reserved>>,
}

impl Signals {
    /// Indices for `count` arrivals from `peer`: the first gap that is large enough.
    pub(super) fn reserve(&mut self, peer: Rank, count: u32, execution: u32) -> Result<u32, ExecuteError> {
        let reserved = self.reserved.entry(peer).or_default();
        let mut first = 0u64;
        let mut position = 0;
        for (index, taken) in reserved.iter().enumerate() {
            if first + u64::from(count) <= u64::from(taken.first) {
                break;
            }
            first = u64::from(taken.first) + u64::from(taken.count);
            position = index + 1;
        }
        if first + u64::from(count) > u64::from(Signal::INDICES) {
            return Err(ExecuteError::TooManyChunks {
                arrivals: first + u64::from(count),
                most: u64::from(Signal::INDICES),
            });
        }
        reserved.insert(position, Reserved { first: first as u32, count, execution });
        Ok(first as u32)
    }

    /// The transfer that a signal of `peer` belongs to.
    pub(super) fn owner(&self, peer: Rank, signal: Signal) -> Option<u32> {
        let reserved = self.reserved.get(&peer)?;
        let after = reserved.partition_point(|reserved| reserved.first <= signal.index);
        let found = reserved[..after].last()?;
        (signal.index - found.first < found.count).then_some(found.execution)
    }

    /// Gives the indices of a transfer back.
    pub(super) fn remove(&mut self, execution: u32) {
        for reserved in self.reserved.values_mut() {
            reserved.retain(|reserved| reserved.execution != execution);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_used_again_and_every_signal_has_one_owner() {
        let (mut signals, peer) = (Signals::default(), Rank(3));
        let owner = |signals: &Signals, index| signals.owner(peer, Signal { epoch: 1, index });
        for (execution, first) in [(0, 0), (1, 10), (2, 20)] {
            assert_eq!(signals.reserve(peer, 10, execution).unwrap(), first);
        }
        assert_eq!((owner(&signals, 0), owner(&signals, 19), owner(&signals, 30)), (Some(0), Some(1), None));
        signals.remove(1);
        assert_eq!(owner(&signals, 15), None);
        assert_eq!((signals.reserve(peer, 11, 3).unwrap(), signals.reserve(peer, 9, 4).unwrap()), (30, 10));
        assert_eq!((owner(&signals, 18), owner(&signals, 19), owner(&signals, 40)), (Some(4), None, Some(3)));
        assert_eq!(signals.owner(Rank(0), Signal { epoch: 1, index: 0 }), None);
        assert!(signals.reserve(peer, Signal::INDICES, 5).is_err());
    }
}
