//! What has come to all GPUs of a domain. In: stages of transfers that are complete at this rank. Out: those that are so at
//! each rank that reads from another. Guarantee: a stage is told once; so GPUs begin to pass on what is there already, and
//! none of their kernels waits for the network or for another kernel's place.

use crate::base::Rank;
use std::collections::HashMap;

/// Stages of the transfers of one process.
#[derive(Debug, Default)]
pub(super) struct Landings {
    /// Per transfer, the context of each stage, and world ranks of those that it concerns.
    transfers: HashMap<u32, (Vec<u64>, Vec<Rank>)>,
    stages: HashMap<u64, Stage>,
    /// How many were told here and have not come everywhere.
    asked: usize,
}

#[derive(Debug)]
struct Stage {
    /// Transfer and number; `None` where the transfer is gone.
    of: Option<(u32, u32)>,
    asked: bool,
}

impl Landings {
    /// A transfer with a stage for each context.
    pub(super) fn add(&mut self, transfer: u32, contexts: Vec<u64>, members: Vec<Rank>) {
        let stage = |(&context, number): (&u64, u32)| (context, Stage { of: Some((transfer, number)), asked: false });
        self.stages.extend(contexts.iter().zip(0..).map(stage));
        self.transfers.insert(transfer, (contexts, members));
    }

    /// What to ask for when a stage has come here.
    pub(super) fn context(&self, transfer: u32, stage: u32) -> Option<(u64, &[Rank])> {
        let (contexts, members) = self.transfers.get(&transfer)?;
        Some((*contexts.get(stage as usize)?, members))
    }

    /// It has been asked for.
    pub(super) fn asked(&mut self, context: u64) {
        if let Some(stage) = self.stages.get_mut(&context) {
            stage.asked = true;
            self.asked += 1;
        }
    }

    /// Whether a stage may come at any moment.
    pub(super) fn is_waiting(&self) -> bool {
        self.asked > 0
    }

    /// A context's turn has come: `None` if it is of no stage, else transfer and number unless the transfer is gone.
    pub(super) fn came(&mut self, context: u64) -> Option<Option<(u32, u32)>> {
        let stage = self.stages.get_mut(&context)?;
        stage.asked = false;
        self.asked -= 1;
        let of = stage.of;
        if of.is_none() {
            self.stages.remove(&context);
        }
        Some(of)
    }

    /// A transfer is gone; what was asked for it may still come.
    pub(super) fn remove(&mut self, transfer: u32) {
        let Some((contexts, _)) = self.transfers.remove(&transfer) else { return };
        for context in contexts {
            match self.stages.get_mut(&context) {
                Some(stage) if stage.asked => stage.of = None,
                _ => drop(self.stages.remove(&context)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_come_once_for_each_time_that_they_were_told() {
        let mut landings = Landings::default();
        landings.add(3, vec![30, 31], vec![Rank(0), Rank(2)]);
        assert_eq!(landings.context(3, 1), Some((31, &[Rank(0), Rank(2)][..])));
        assert_eq!((landings.context(3, 2), landings.context(4, 0), landings.is_waiting()), (None, None, false));
        for _ in 0..2 {
            landings.asked(31);
            assert!(landings.is_waiting());
            assert_eq!((landings.came(7), landings.came(31)), (None, Some(Some((3, 1)))));
            assert!(!landings.is_waiting());
        }
    }

    #[test]
    fn what_was_asked_for_may_come_after_its_transfer_is_gone() {
        let mut landings = Landings::default();
        landings.add(3, vec![30, 31], vec![Rank(0)]);
        landings.asked(30);
        landings.remove(3);
        assert_eq!((landings.is_waiting(), landings.came(31), landings.came(30)), (true, None, Some(None)));
        assert_eq!((landings.is_waiting(), landings.came(30)), (false, None));
    }
}
