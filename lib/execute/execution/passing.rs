//! Passing on what is at GPUs, step by step with the other ranks of their domain. In: items that came, launches that ended,
//! steps that all ranks may take. Out: steps that this rank is ready for, words for the stream. Guarantee: a step is
//! asked for once in a start, when what it needs is there; nothing is allocated after init.

use super::super::ExecuteError;
use super::super::gpu::Stages;
use super::super::passing::Step;
use super::super::program::{Incoming, Program};
use super::Execution;
use std::collections::VecDeque;
use std::sync::Arc;

/// Looks at launches for each question whether the device is sound.
const CHECK: u32 = 4096;

/// How far a start is.
#[derive(Debug, Default)]
pub(super) struct PassingOn {
    steps: Vec<Step>,
    stages: Option<Arc<Stages>>,
    /// Per part of what comes, items that it needs, and those that are left.
    part_items: Vec<u32>,
    part_left: Vec<u32>,
    /// Per step, whether this rank has asked for it, and whether all have.
    asked: Vec<bool>,
    come: Vec<bool>,
    /// Steps to be asked for.
    ready: VecDeque<u32>,
    /// Number of the start, as launches count them.
    start: u32,
    /// Whether launches of this start are on no stream yet: each is put on their own one when its step comes.
    launches: bool,
    /// Nobody waits for it any more, and it takes no step.
    abandoned: bool,
    looks: u32,
}

impl PassingOn {
    pub(super) fn new(steps: Vec<Step>, program: &Program) -> Self {
        let parts = steps.iter().filter(|step| matches!(step, Step::Part(_))).count();
        let mut part_items = vec![0; parts];
        for item in program.items.iter().filter(|item| item.wants && item.incoming != Incoming::Held) {
            if let Some(items) = part_items.get_mut(item.part as usize) {
                *items += 1;
            }
        }
        let count = steps.len();
        Self {
            part_left: Vec::with_capacity(parts),
            part_items,
            asked: vec![false; count],
            come: vec![false; count],
            ready: VecDeque::with_capacity(count),
            steps,
            ..Self::default()
        }
    }

    /// Steps that all ranks have taken, and all there are.
    pub(super) fn done(&self) -> (usize, usize) {
        (self.come.iter().filter(|&&come| come).count(), self.come.len())
    }

    /// Begins a start.
    pub(super) fn begin(&mut self) {
        self.part_left.clear();
        self.part_left.extend(&self.part_items);
        self.asked.fill(false);
        self.come.fill(false);
        self.ready.clear();
        self.start = self.start.wrapping_add(1).max(1);
    }

    /// Whether every step has been taken by all ranks.
    pub(super) fn is_done(&self) -> bool {
        self.come.iter().all(|&come| come)
    }

    /// Whether this rank's launch of a step has ended.
    fn has_ended(&self, step: usize) -> bool {
        self.come[step] && self.stages.as_ref().is_none_or(|stages| stages.has_ended(step as u32, self.start))
    }

    /// Whether a launch is under way.
    pub(super) fn is_launched(&self) -> bool {
        (0..self.steps.len()).any(|step| self.come[step] && !self.has_ended(step))
    }

    fn is_ready(&self, number: usize) -> bool {
        let before = self.steps[..number].iter().position(|&step| step == Step::Held);
        match self.steps[number] {
            Step::Held => true,
            Step::Relayed => before.is_none_or(|held| self.has_ended(held)),
            Step::Part(part) => self.part_left[part as usize] == 0,
            Step::Done => (0..number).all(|step| self.has_ended(step)),
        }
    }

    /// Notes steps that this rank has become ready for.
    pub(super) fn look(&mut self) -> Result<bool, ExecuteError> {
        if self.abandoned {
            return Ok(false);
        }
        let mut moved = false;
        for step in 0..self.steps.len() {
            if !self.asked[step] && self.is_ready(step) {
                self.asked[step] = true;
                self.ready.push_back(step as u32);
                moved = true;
            }
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(CHECK) && self.is_launched() {
            self.stages.as_ref().map_or(Ok(()), |stages| stages.check())?;
        }
        Ok(moved)
    }

    /// What is outstanding, for a deadline's message.
    pub(super) fn waiting_for(&self) -> Option<String> {
        let step = (0..self.steps.len()).find(|&step| !self.has_ended(step))?;
        let (number, all) = (step + 1, self.steps.len());
        Some(match (self.asked[step], self.come[step]) {
            (_, true) => format!("step {number} of {all} inside this rank's domain: its GPU has not ended it"),
            (true, false) => {
                format!("step {number} of {all} inside this rank's domain: other ranks are not ready for it")
            }
            (false, false) => format!("step {number} of {all} inside this rank's domain: not all of it has come here"),
        })
    }
}

impl Execution {
    /// Gives it the launches of its steps.
    pub(in crate::execute) fn set_stages(&mut self, stages: Arc<Stages>) {
        self.passing.stages = Some(stages);
    }

    /// An item is where this rank's GPU passes it on from.
    pub(super) fn came(&mut self, item: u32) {
        let item = &self.bound.program.items[item as usize];
        if let Some(left) = self.passing.part_left.get_mut(item.part as usize).filter(|_| item.wants) {
            *left -= 1;
        }
    }

    /// The next step that this rank is ready for and has not asked for.
    pub(in crate::execute) fn next_step(&mut self) -> Option<u32> {
        self.passing.ready.pop_front()
    }

    /// All ranks of the domain are ready for a step: it is launched, or the caller's stream may go on to it.
    pub(in crate::execute) fn take_step(&mut self, step: u32) -> Result<(), ExecuteError> {
        if self.passing.abandoned {
            return Ok(());
        }
        if self.passing.launches
            && let Some(stages) = &self.passing.stages
        {
            stages.launch(step)?;
        }
        self.passing.come[step as usize] = true;
        self.bound.gate.iter().for_each(|gate| gate.finish_stage(step));
        Ok(())
    }

    /// Whether its launches wait for a stream that the caller gave.
    pub(super) fn enter_passing(&mut self, has_stream: bool) {
        self.passing.launches = !has_stream;
    }

    /// Takes no step any more, and lets streams go on.
    pub(in crate::execute) fn abandon(&mut self) {
        self.passing.abandoned = true;
        self.let_go();
    }

    /// Lets streams go on after a failure: peers may be gone, so what is launched then moves nothing.
    pub(in crate::execute) fn let_go(&self) {
        if let Some(stages) = &self.passing.stages {
            stages.abort();
        }
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Rank;
    use crate::execute::program::{Form, Item, Storage};

    /// Three chunks that come, of two parts, and one for others alone.
    fn program() -> Program {
        let from = Rank(9);
        let item = |part, wants| {
            let item = Item::new(0..0, Form::Wire, 1, Storage::Destination, Incoming::Push { from });
            Item { part, wants, ..item }
        };
        Program { items: vec![item(0, true), item(1, true), item(0, true), item(1, false)], ..Program::default() }
    }

    fn ready(passing: &mut PassingOn) -> Vec<u32> {
        passing.look().unwrap();
        passing.ready.drain(..).collect()
    }

    #[test]
    fn each_step_is_asked_for_once_when_it_can_be_taken() {
        let steps = vec![Step::Held, Step::Relayed, Step::Part(0), Step::Part(1), Step::Done];
        let mut passing = PassingOn::new(steps, &program());
        assert_eq!(passing.part_items, [2, 1]);
        for _ in 0..2 {
            passing.begin();
            assert_eq!((ready(&mut passing), ready(&mut passing)), (vec![0], vec![]));
            // What others got is there once all have begun, and this rank's launch has ended.
            passing.come[0] = true;
            assert_eq!(ready(&mut passing), [1]);
            passing.part_left = vec![1, 0];
            assert_eq!(ready(&mut passing), [3], "parts may come in any order");
            passing.part_left[0] = 0;
            assert_eq!((ready(&mut passing), passing.is_done()), (vec![2], false));
            (passing.come[1], passing.come[2]) = (true, true);
            assert_eq!(ready(&mut passing), [] as [u32; 0]);
            passing.come[3] = true;
            assert_eq!((ready(&mut passing), passing.done()), (vec![4], (4, 5)));
            passing.come[4] = true;
            assert!(passing.is_done() && ready(&mut passing).is_empty());
        }
        passing.begin();
        passing.abandoned = true;
        assert_eq!(ready(&mut passing), [] as [u32; 0]);
    }

    #[test]
    fn a_rank_that_passes_nothing_on_is_done_at_once() {
        let mut passing = PassingOn::new(Vec::new(), &program());
        passing.begin();
        assert!(passing.is_done() && ready(&mut passing).is_empty() && passing.waiting_for().is_none());
    }
}
