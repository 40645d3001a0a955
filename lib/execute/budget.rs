//! Memory for chunks on their way. In: what each rank has left. Out: a part for one transfer alone, or the part that all
//! further transfers of a process share. Guarantee: never more than the budget; all ranks decide alike, since they decide
//! from the same statements.
//!
//! The first transfers get slots of their own. When they have taken three quarters of the budget on any rank, what is left
//! there becomes the **shared** part: transfers take turns with it, in an order that all ranks see alike (`engine`), so
//! any number of them can be alive.

use super::ExecuteError;
use crate::base::Rank;
use crate::memory::SharedMemory;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Default of `CROSSMESH_STAGING`.
pub const DEFAULT_STAGING: u64 = 64 << 20;
/// Default of `CROSSMESH_CHUNK`.
pub const DEFAULT_CHUNK: u64 = 1 << 20;
/// Smallest chunk worth having.
const SMALLEST_CHUNK: u64 = 256;
pub(super) const SLOT_ALIGNMENT: u64 = 64;

/// What a transfer takes of the staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingShare {
    /// Largest message.
    pub chunk_bytes: u64,
    /// Most staging memory of a rank.
    pub bytes: u64,
}

/// Staging memory of this process.
#[derive(Debug)]
pub struct StagingBudget {
    bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: u64,
    shared: Option<Arc<SharedMemory>>,
}

/// What a rank has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Staging {
    /// Of its own budget.
    bytes: u64,
    /// Nobody's yet.
    left: u64,
    /// The shared part, once there is one.
    shared: Option<u64>,
}

/// What a transfer may take on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowance {
    pub(super) bytes: u64,
    /// Whether it is the part that transfers take turns with.
    pub(super) is_shared: bool,
}

impl StagingBudget {
    /// A budget of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, state: Mutex::new(State { left: bytes, shared: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this rank states.
    pub(super) fn statement(&self) -> Staging {
        let state = self.lock();
        let shared = state.shared.as_ref().map(|memory| memory.bytes());
        Staging { bytes: self.bytes, left: state.left, shared }
    }

    /// What is left for transfers of their own.
    pub(super) fn left(&self) -> u64 {
        self.lock().left
    }

    /// Reserves `bytes`; false when less is left.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let enough = state.left >= bytes;
        state.left -= if enough { bytes } else { 0 };
        enough
    }

    /// Gives `bytes` back.
    pub(super) fn release(&self, bytes: u64) {
        self.lock().left += bytes;
    }

    /// The shared part: all that is left, when there is none yet; `publish` makes it known to peers.
    pub(super) fn shared(&self, publish: impl FnOnce(&Arc<SharedMemory>)) -> Result<Arc<SharedMemory>, ExecuteError> {
        let mut state = self.lock();
        if let Some(shared) = &state.shared {
            return Ok(shared.clone());
        }
        let shared = Arc::new(SharedMemory::create("crossmesh-shared-staging", state.left)?);
        publish(&shared);
        state.left = 0;
        state.shared = Some(shared.clone());
        Ok(shared)
    }
}

/// What a transfer that needs `needed` bytes at least may take, given what all ranks state.
pub(super) fn allowance(ranks: &[Staging], needed: u64) -> Result<Allowance, ExecuteError> {
    let least = |of: fn(&Staging) -> u64| {
        ranks.iter().map(of).zip(0..).map(|(bytes, rank)| (bytes, Rank(rank))).min().unwrap_or((0, Rank(0)))
    };
    // A quarter of what is left keeps room for more transfers; none takes less than it needs.
    let own = (least(|staging| staging.left).0 / 4).max(needed);
    let is_short = |staging: &Staging| staging.left <= staging.bytes / 4 || staging.left < own.saturating_add(needed);
    let is_shared = ranks.iter().any(|staging| staging.shared.is_some() || is_short(staging));
    let (available, rank) = least(|staging| staging.shared.unwrap_or(staging.left));
    match is_shared {
        true if available < needed => Err(ExecuteError::Staging { rank, available, needed }),
        true => Ok(Allowance { bytes: available, is_shared }),
        false => Ok(Allowance { bytes: own, is_shared }),
    }
}

/// What a transfer of `hops` hops may take on every rank, and its largest chunk, of which `chunk` bytes are asked for.
/// Every hop, and sending, has at least two slots.
pub(super) fn share(ranks: &[Staging], chunk: u64, hops: u32) -> Result<(u64, Allowance), ExecuteError> {
    let slots = 2 * u64::from(hops.max(1)) + 2;
    let allowance = allowance(ranks, slots * (SMALLEST_CHUNK + SLOT_ALIGNMENT))?;
    let largest = chunk.max(SMALLEST_CHUNK);
    Ok(((allowance.bytes / slots - SLOT_ALIGNMENT).clamp(SMALLEST_CHUNK, largest), allowance))
}

/// What the first transfer of `hops` hops takes where every rank has `staging` bytes and chunks of `chunk` bytes are
/// asked for.
pub fn first_share(staging: u64, chunk: u64, hops: u32) -> Result<StagingShare, ExecuteError> {
    let rank = Staging { bytes: staging, left: staging, shared: None };
    share(&[rank], chunk, hops).map(|(chunk_bytes, allowance)| StagingShare { chunk_bytes, bytes: allowance.bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_get_smaller_with_more_hops() {
        let share =
            |staging, chunk, hops| first_share(staging, chunk, hops).map(|share| (share.chunk_bytes, share.bytes));
        assert_eq!(share(DEFAULT_STAGING, DEFAULT_CHUNK, 2).unwrap(), (1 << 20, 16 << 20));
        // 16 MiB for 18 slots.
        assert_eq!(share(DEFAULT_STAGING, DEFAULT_CHUNK, 8).unwrap(), ((16 << 20) / 18 - 64, 16 << 20));
        assert_eq!(share(DEFAULT_STAGING, 1, 0).unwrap(), (256, 16 << 20));
        assert!(matches!(first_share(1279, 1 << 20, 1), Err(ExecuteError::Staging { needed: 1280, .. })));
    }

    fn state(bytes: u64, left: u64, shared: Option<u64>) -> Staging {
        Staging { bytes, left, shared }
    }

    #[test]
    fn three_quarters_are_for_the_first() {
        let budget = StagingBudget::new(1 << 20);
        let mut own = 0;
        loop {
            let Allowance { bytes, is_shared } = allowance(&[budget.statement()], 1000).unwrap();
            if is_shared {
                assert_eq!(bytes, budget.left());
                break;
            }
            assert!(budget.reserve(bytes));
            own += 1;
        }
        assert_eq!((own, budget.left() > 200 << 10), (5, true));
        let shared = budget.shared(|_| {}).unwrap();
        assert_eq!((budget.left(), budget.statement().shared), (0, Some(shared.bytes())));
        assert!(!budget.reserve(1));
        for _ in 0..1000 {
            assert!(allowance(&[budget.statement()], 1000).unwrap().is_shared);
            assert!(Arc::ptr_eq(&shared, &budget.shared(|_| panic!("there is one")).unwrap()));
        }
    }

    #[test]
    fn all_ranks_follow_the_one_that_has_least() {
        let rich = state(1000, 1000, None);
        assert_eq!(allowance(&[rich, rich], 10).unwrap(), Allowance { bytes: 250, is_shared: false });
        let poor = state(1000, 200, None);
        assert_eq!(allowance(&[rich, poor], 10).unwrap(), Allowance { bytes: 200, is_shared: true });
        let sharing = state(1000, 0, Some(120));
        assert_eq!(allowance(&[rich, sharing], 10).unwrap(), Allowance { bytes: 120, is_shared: true });
        let error = allowance(&[rich, sharing], 121).unwrap_err();
        assert!(matches!(error, ExecuteError::Staging { rank: Rank(1), available: 120, needed: 121 }), "{error}");
    }
}
