//! Protocols over memory as the language defines it, in every order that a model checker finds. In: nothing. Out: nothing.
//! Guarantee: two ranks; loads and stores of words are relaxed, fences acquire and release.

use super::machine::{combine, value};
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

/// Two ranks make `calls` calls, the first of number `first`; panics where a result is wrong.
fn check(call: Call, rules: Rules, first: u64, calls: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let shape = Shape { ranks: 2, capacity: call.words.max(1) };
        let words = |_| (0..shape.words()).map(|_| AtomicU64::new(0)).collect();
        let memory = Arc::new(Words((0..2).map(words).collect()));
        let run = move |rank: usize, memory: &Words| {
            for sequence in first..first + calls {
                let mut machine = Machine::new(rank, shape, rules, call, sequence);
                let result = loop {
                    match machine.step(memory) {
                        Outcome::Done(result) => break result,
                        Outcome::Waiting => loom::thread::yield_now(),
                        Outcome::Going => {}
                        Outcome::GaveUp(reason) => panic!("{reason:?}"),
                    }
                };
                let sum = |word| combine(value(0, sequence, word), value(1, sequence, word));
                assert_eq!(result, (0..call.words).map(sum).collect::<Vec<_>>(), "call {sequence} of rank {rank}");
            }
        };
        let peer = memory.clone();
        let other = loom::thread::spawn(move || run(1, &peer));
        run(0, &memory);
        other.join().expect("the other rank ends");
    });
}

/// No looks, which would only add orders.
const RULES: Rules =
    Rules { two_parities: true, fences: true, clean_every: 0, epoch_bits: 3, look: u64::MAX, limit: u64::MAX };

#[test]
fn pushes_in_every_order() {
    check(Call { protocol: Protocol::Push, words: 1 }, RULES, 1, 3);
}

#[test]
fn two_shots_in_every_order() {
    check(Call { protocol: Protocol::TwoShot, words: 2 }, RULES, 1, 1);
}

#[test]
#[should_panic(expected = "call 1 of rank")]
fn a_two_shot_without_a_fence_is_found_out() {
    check(Call { protocol: Protocol::TwoShot, words: 2 }, Rules { fences: false, ..RULES }, 1, 1);
}
