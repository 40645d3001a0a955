//! Protocols over memory as the language defines it, in every order that a model checker finds. In: nothing. Out: nothing.
//! Guarantee: two or three ranks; loads and stores of words are relaxed, fences acquire and release.

use super::machine::{LINE, combine, value};
use super::{Call, Machine, Memory, Outcome, Protocol, Rules, Shape};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

struct Words(Vec<Vec<AtomicU64>>);

impl Memory for Words {
    fn load(&self, rank: usize, at: usize) -> u64 {
        self.0[rank][at].load(Ordering::Relaxed)
    }

    fn store(&self, rank: usize, at: usize, word: u64) {
        self.0[rank][at].store(word, Ordering::Relaxed);
    }

    fn fence(&self, _writer: usize) {
        fence(Ordering::AcqRel);
    }
}

/// Ranks make `calls` calls, the first of number 1; panics where a result is wrong.
fn check(ranks: usize, call: Call, rules: Rules, calls: u64, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(move || {
        let shape = Shape { ranks, capacity: call.words.max(1).next_multiple_of(LINE) };
        let words = |_| (0..shape.words()).map(|_| AtomicU64::new(0)).collect();
        let memory = Arc::new(Words((0..ranks).map(words).collect()));
        let run = move |rank: usize, memory: &Words| {
            for sequence in 1..=calls {
                let mut machine = Machine::new(rank, shape, rules, call, sequence);
                let result = loop {
                    match machine.step(memory) {
                        Outcome::Done(result) => break result,
                        Outcome::Waiting => loom::thread::yield_now(),
                        Outcome::Going => {}
                        Outcome::GaveUp(reason) => panic!("{reason:?}"),
                    }
                };
                let add = |word| move |sum, rank| combine(sum, value(rank, sequence, word));
                let sum = |word| (1..ranks).fold(value(0, sequence, word), add(word));
                assert_eq!(result, (0..call.words).map(sum).collect::<Vec<_>>(), "call {sequence} of rank {rank}");
            }
        };
        let start = |rank| {
            let memory = memory.clone();
            loom::thread::spawn(move || run(rank, &memory))
        };
        let others: Vec<_> = (1..ranks).map(start).collect();
        run(0, &memory);
        others.into_iter().for_each(|other| other.join().expect("the other rank ends"));
    });
}

/// No looks, which would only add orders.
const RULES: Rules = Rules { clean_every: 0, look: u64::MAX, ..Rules::ALL };

#[test]
fn pushes_in_every_order() {
    check(2, Call { protocol: Protocol::Push, words: 1 }, RULES, 3, 2);
}

#[test]
fn two_shots_in_every_order() {
    check(2, Call { protocol: Protocol::TwoShot, words: 2 }, RULES, 1, 2);
}

const LINES: Call = Call { protocol: Protocol::Lines, words: 2 };

#[test]
fn lines_in_every_order() {
    check(2, LINES, RULES, 3, 2);
}

#[test]
fn lines_of_three_ranks_whatever_loads_see() {
    check(3, LINES, RULES, 2, 0);
}

#[test]
#[should_panic(expected = "call 1 of rank")]
fn lines_without_a_fence_are_found_out() {
    check(3, LINES, Rules { fences: false, ..RULES }, 1, 0);
}

#[test]
#[should_panic(expected = "call 1 of rank")]
fn lines_whose_flags_are_looked_at_last_are_found_out() {
    check(3, LINES, Rules { flags_first: false, ..RULES }, 1, 0);
}

#[test]
#[should_panic(expected = "call 1 of rank")]
fn a_two_shot_without_a_fence_is_found_out() {
    check(2, Call { protocol: Protocol::TwoShot, words: 2 }, Rules { fences: false, ..RULES }, 1, 2);
}
