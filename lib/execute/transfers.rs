//! The transfers of one process. In: links, executions, events. Out: steps of every active transfer. Guarantee: an event goes to
//! the transfer that it is about, or is an error; a transfer that is gone runs no more.

use super::ExecuteError;
use super::execution::Execution;
use super::links::Links;
use super::rest::Rest;
use super::signals::Signals;
use super::steps::Steps;
use super::turns::Turns;
use crate::base::Rank;
use crate::bootstrap::Cause;
use crate::transport::{Capabilities, Event, MessageLink};
use std::sync::Arc;

/// Place of a transfer.
enum Entry {
    Free,
    /// Its init is under way.
    Reserved,
    Ready(Box<Execution>),
}

pub(super) struct Inner {
    pub(super) links: Links,
    executions: Vec<Entry>,
    /// How many of them are active.
    pub(super) active: usize,
    pub(super) signals: Signals,
    events: Vec<Event>,
    pub(super) failure: Option<Arc<Cause>>,
    pub(super) turns: Turns,
    pub(super) steps: Steps,
}

impl Inner {
    /// No transfers yet.
    pub(super) fn new(links: Vec<Box<dyn MessageLink>>) -> Self {
        Self {
            links: Links(links),
            executions: Vec::new(),
            active: 0,
            signals: Signals::default(),
            events: Vec::with_capacity(1024),
            failure: None,
            turns: Turns::default(),
            steps: Steps::default(),
        }
    }

    /// The next step that a transfer is ready for here: its context and the ranks that it concerns.
    pub(super) fn next_step(&mut self) -> Option<(u64, &[Rank])> {
        if self.steps.is_empty() {
            return None;
        }
        let next = |(entry, number): (&mut Entry, u32)| match entry {
            Entry::Ready(execution) => Some((number, execution.next_step()?)),
            _ => None,
        };
        let (number, step) = self.executions.iter_mut().zip(0..).find_map(next)?;
        self.steps.context(number, step)
    }

    /// Lets GPUs take a step that all are ready for; whether `context` is one.
    pub(super) fn take_step(&mut self, context: u64) -> Result<bool, ExecuteError> {
        let Some(step) = self.steps.came(context) else { return Ok(false) };
        if let Some((number, step)) = step
            && let Some(execution) = self.execution(number)
        {
            execution.take_step(step)?;
        }
        Ok(true)
    }

    pub(super) fn execution(&mut self, number: u32) -> Option<&mut Execution> {
        match self.executions.get_mut(number as usize) {
            Some(Entry::Ready(execution)) => Some(execution),
            _ => None,
        }
    }

    /// A transfer number that nobody else has until it is removed.
    pub(super) fn reserve_execution(&mut self) -> u32 {
        let free = self.executions.iter().position(|entry| matches!(entry, Entry::Free));
        let number = free.unwrap_or(self.executions.len());
        if number == self.executions.len() {
            self.executions.push(Entry::Free);
        }
        self.executions[number] = Entry::Reserved;
        number as u32
    }

    pub(super) fn insert(&mut self, number: u32, execution: Execution) {
        self.executions[number as usize] = Entry::Ready(Box::new(execution));
    }

    /// Forgets a transfer; what was it.
    pub(super) fn remove(&mut self, number: u32) -> Option<Box<Execution>> {
        self.signals.remove(number);
        let was_active = self.execution(number).is_some_and(|execution| {
            execution.leave();
            execution.is_active()
        });
        self.active -= usize::from(was_active);
        self.turns.remove(number);
        self.steps.remove(number);
        match std::mem::replace(&mut self.executions[number as usize], Entry::Free) {
            Entry::Ready(execution) => Some(execution),
            _ => None,
        }
    }

    fn ready(&self) -> impl Iterator<Item = &Execution> {
        self.executions.iter().filter_map(|entry| if let Entry::Ready(ready) = entry { Some(&**ready) } else { None })
    }

    pub(super) fn fail(&mut self, cause: Arc<Cause>) {
        self.failure.get_or_insert(cause);
        self.ready().for_each(Execution::let_go);
    }

    /// How to sleep, given the links of the active transfers.
    pub(super) fn rest(&mut self) -> Rest {
        let mut rest = Rest::Bell;
        // A turn rings nobody.
        if self.turns.is_waiting() {
            return Rest::Moment;
        }
        if self.steps.is_waiting() {
            return Rest::Soon;
        }
        for execution in self.ready() {
            // Nor do devices.
            if execution.awaits_stream() {
                return Rest::Moment;
            }
            if execution.is_crossing() {
                return Rest::Soon;
            }
            for link in execution.links().filter(|_| execution.is_running()) {
                if !self.links.0[link].capabilities().contains(Capabilities::CROSSES_HOSTS) {
                    return Rest::Moment;
                }
                let before = matches!(rest, Rest::Link { mapped: true, .. });
                rest = Rest::Link { link, mapped: before || execution.has_mapped_peers() };
            }
        }
        rest
    }

    /// Polls links, hands events out, lets every active transfer take its steps; whether anything moved.
    pub(super) fn progress(&mut self) -> Result<bool, ExecuteError> {
        let mut events = std::mem::take(&mut self.events);
        let polled = self.links.0.iter_mut().try_for_each(|link| link.poll(&mut events));
        let mut moved = !events.is_empty();
        let handled = events.drain(..).try_for_each(|event| self.handle(event));
        self.events = events;
        handled?;
        polled?;
        for (entry, number) in self.executions.iter_mut().zip(0..) {
            if let Entry::Ready(execution) = entry
                && execution.is_running()
            {
                moved |= execution.progress(&mut self.links)?;
                if !execution.is_active() {
                    self.active -= 1;
                    self.turns.finished(number);
                }
            }
        }
        Ok(moved)
    }

    fn handle(&mut self, event: Event) -> Result<(), ExecuteError> {
        match event {
            Event::Completed(ticket) => match self.execution((ticket.0 >> 32) as u32) {
                Some(execution) => execution.completed(ticket.0 as u32),
                None => Ok(()),
            },
            Event::Signalled { peer, signal } => {
                let owner = self.signals.owner(peer, signal);
                match owner.and_then(|owner| self.execution(owner)) {
                    Some(execution) => execution.signalled(peer, signal),
                    None => {
                        Err(ExecuteError::Protocol { peer, what: format!("signal {} of no transfer", signal.index) })
                    }
                }
            }
            Event::Lost { peer, cause } => Err(ExecuteError::Lost { peer, source: cause }),
        }
    }
}
