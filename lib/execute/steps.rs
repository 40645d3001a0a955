//! Steps that ranks of a domain take together. In: steps that this rank is ready for. Out: those that all are ready for.
//! Guarantee: a step comes once for each time that it was asked for, also when its transfer is gone by then; transfers that are
//! gone keep nobody awake.

use crate::base::Rank;
use std::collections::HashMap;

/// Steps of the transfers of one process.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Per transfer, the context of each step, and world ranks that take it together.
    transfers: HashMap<u32, (Vec<u64>, Vec<Rank>)>,
    steps: HashMap<u64, Known>,
    /// How many of living transfers have been asked for and have not come.
    asked: usize,
}

#[derive(Debug)]
struct Known {
    /// Transfer and number; `None` where the transfer is gone.
    of: Option<(u32, u32)>,
    asked: bool,
}

impl Steps {
    /// Whether no transfer has any.
    pub(super) fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// A transfer with a step for each context, if it has any.
    pub(super) fn add(&mut self, transfer: u32, contexts: Vec<u64>, members: Vec<Rank>) {
        if contexts.is_empty() {
            return;
        }
        let known = |(&context, number): (&u64, u32)| (context, Known { of: Some((transfer, number)), asked: false });
        self.steps.extend(contexts.iter().zip(0..).map(known));
        self.transfers.insert(transfer, (contexts, members));
    }

    /// What to ask for when this rank is ready for a step.
    pub(super) fn context(&self, transfer: u32, step: u32) -> Option<(u64, &[Rank])> {
        let (contexts, members) = self.transfers.get(&transfer)?;
        Some((*contexts.get(step as usize)?, members))
    }

    /// It has been asked for.
    pub(super) fn asked(&mut self, context: u64) {
        if let Some(known) = self.steps.get_mut(&context) {
            known.asked = true;
            self.asked += 1;
        }
    }

    /// Whether a step may come at any moment.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked > 0
    }

    /// A context's turn has come: `None` if it is of no step, else transfer and number unless the transfer is gone.
    pub(super) fn came(&mut self, context: u64) -> Option<Option<(u32, u32)>> {
        let known = self.steps.get_mut(&context)?;
        let of = known.of;
        match of {
            Some(_) => {
                self.asked -= usize::from(known.asked);
                known.asked = false;
            }
            None => drop(self.steps.remove(&context)),
        }
        Some(of)
    }

    /// A transfer is gone; what was asked for it may still come.
    pub(super) fn remove(&mut self, transfer: u32) {
        let Some((contexts, _)) = self.transfers.remove(&transfer) else { return };
        for context in contexts {
            match self.steps.get_mut(&context) {
                Some(known) if known.asked => {
                    known.of = None;
                    self.asked -= 1;
                }
                _ => drop(self.steps.remove(&context)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_come_once_for_each_time_that_they_were_asked_for() {
        let mut steps = Steps::default();
        steps.add(3, vec![30, 31], vec![Rank(0), Rank(2)]);
        assert_eq!(steps.context(3, 1), Some((31, &[Rank(0), Rank(2)][..])));
        assert_eq!((steps.context(3, 2), steps.context(4, 0), steps.is_waiting()), (None, None, false));
        for _ in 0..2 {
            steps.asked(31);
            assert!(steps.is_waiting());
            assert_eq!((steps.came(7), steps.came(31)), (None, Some(Some((3, 1)))));
            assert!(!steps.is_waiting());
        }
    }

    #[test]
    fn what_was_asked_for_may_come_after_its_transfer_is_gone() {
        let mut steps = Steps::default();
        steps.add(3, vec![30, 31], vec![Rank(0)]);
        steps.asked(30);
        steps.remove(3);
        assert_eq!((steps.is_waiting(), steps.came(31), steps.came(30)), (false, None, Some(None)));
        assert_eq!((steps.is_waiting(), steps.came(30)), (false, None));
    }
}
