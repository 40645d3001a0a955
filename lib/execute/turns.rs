//! Turns with the shared slots. In: transfers that were started, contexts whose turn has come. Out: which one may run.
//! Guarantee: one at a time in this process, in the order in which the hub saw all ranks of each start it.
//!
//! Why nothing waits in a circle: the hub puts all turns of the job into one order, and every rank takes those that
//! concern it in that order. The first transfer of the order that is not finished everywhere has been started by all its
//! ranks, and at each of them everything before it is finished, so it runs there or is the next to.

use crate::base::Rank;
use std::collections::{HashMap, VecDeque};

/// The turns of one process.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Transfers that share the slots: their context, and by context.
    contexts: HashMap<u32, (u64, Vec<Rank>)>,
    transfers: HashMap<u64, u32>,
    /// Started, and waiting for the others.
    asked: usize,
    /// Those whose turn has come.
    queue: VecDeque<u32>,
    running: Option<u32>,
}

impl Turns {
    /// A transfer that takes turns from now on, with these world ranks.
    pub(super) fn add(&mut self, transfer: u32, context: u64, members: Vec<Rank>) {
        self.contexts.insert(transfer, (context, members));
        self.transfers.insert(context, transfer);
    }

    /// What to ask for when `transfer` is started; `None` when its slots are its own.
    pub(super) fn context(&self, transfer: u32) -> Option<(u64, &[Rank])> {
        self.contexts.get(&transfer).map(|(context, members)| (*context, members.as_slice()))
    }

    /// Its turn has been asked for.
    pub(super) fn asked(&mut self) {
        self.asked += 1;
    }

    /// Whether a turn may come at any moment.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked > 0
    }

    /// The turn of `context` has come.
    pub(super) fn came(&mut self, context: u64) {
        self.asked -= 1;
        // A transfer that was dropped meanwhile has nothing to do.
        self.queue.extend(self.transfers.get(&context));
    }

    /// The transfer that may begin now.
    pub(super) fn begin(&mut self) -> Option<u32> {
        if self.running.is_none() {
            self.running = self.queue.pop_front();
            return self.running;
        }
        None
    }

    /// A transfer is finished.
    pub(super) fn finished(&mut self, transfer: u32) {
        self.running = self.running.filter(|&running| running != transfer);
    }

    /// A transfer is gone.
    pub(super) fn remove(&mut self, transfer: u32) {
        self.finished(transfer);
        self.queue.retain(|&queued| queued != transfer);
        if let Some((context, _)) = self.contexts.remove(&transfer) {
            self.transfers.remove(&context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_in_the_order_of_turns() {
        let mut turns = Turns::default();
        for transfer in 0..3 {
            turns.add(transfer, 100 + u64::from(transfer), vec![Rank(0), Rank(1)]);
            turns.asked();
        }
        assert_eq!((turns.context(1), turns.context(7)), (Some((101, &[Rank(0), Rank(1)][..])), None));
        assert_eq!(turns.begin(), None);
        turns.came(102);
        turns.came(100);
        assert_eq!((turns.begin(), turns.begin(), turns.is_waiting()), (Some(2), None, true));
        turns.finished(1);
        assert_eq!(turns.begin(), None);
        turns.finished(2);
        assert_eq!(turns.begin(), Some(0));
        turns.remove(0);
        turns.remove(1);
        turns.came(101);
        assert_eq!((turns.begin(), turns.is_waiting()), (None, false));
    }
}
