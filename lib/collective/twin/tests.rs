//! Protocols over a network that delays and reorders. In: seeds. Out: nothing. Guarantee: for each rule there is a test that
//! fails when the rule is broken.

use super::machine::{combine, value};
use super::network::{Chance, Network};
use super::{Call, Machine, Outcome, Protocol, Reason, Rules, Shape};

const SEEDS: u64 = 400;
const CALLS: u64 = 20;
/// Steps within which everything is over.
const MOST_STEPS: usize = 2_000_000;

/// Call of a rank at a place in the sequence.
type CallOf = fn(usize, u64) -> Option<Call>;

/// What ranks do, and how it ends.
struct Play {
    ranks: usize,
    rules: Rules,
    call: CallOf,
    /// Rank that stops for good, and after how many of its steps.
    dies: Option<(usize, usize)>,
}

/// How a rank ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    AllDone,
    GaveUp(u64, Reason),
    Wrong(u64),
    Dead,
    Hangs,
}

fn expected(ranks: usize, sequence: u64, words: usize) -> Vec<u32> {
    let sum = |word| (1..ranks).fold(value(0, sequence, word), |sum, rank| combine(sum, value(rank, sequence, word)));
    (0..words).map(sum).collect()
}

fn play(play: &Play, seed: u64) -> Vec<End> {
    let (ranks, mut chance) = (play.ranks, Chance(seed));
    let shape = Shape { ranks, capacity: 8 };
    let network = Network::new(ranks, shape.words());
    let machine = |rank, sequence| {
        (sequence <= CALLS)
            .then(|| (play.call)(rank, sequence))
            .flatten()
            .map(|call| (call, Machine::new(rank, shape, play.rules, call, sequence)))
    };
    let mut machines: Vec<_> = (0..ranks).map(|rank| machine(rank, 1)).collect();
    let mut ends: Vec<Option<End>> = vec![None; ranks];
    let mut steps = vec![0; ranks];
    // Some ranks are slow in some plays.
    let weights: Vec<usize> = (0..ranks).map(|_| [1, 3, 20][chance.below(3)]).collect();
    for _ in 0..MOST_STEPS {
        if ends.iter().all(Option::is_some) {
            break;
        }
        if chance.below(3) == 0 {
            network.deliver(&mut chance);
        }
        let rank = chance.below(ranks);
        if ends[rank].is_some() || chance.below(20) >= weights[rank] {
            continue;
        }
        let Some((call, current)) = machines[rank].as_mut() else {
            ends[rank] = Some(End::AllDone);
            continue;
        };
        steps[rank] += 1;
        if play.dies.is_some_and(|(dead, after)| dead == rank && steps[rank] > after) {
            ends[rank] = Some(End::Dead);
            continue;
        }
        network.act_as(rank);
        let sequence = current.sequence();
        match current.step(&network) {
            Outcome::Done(result) if result != expected(ranks, sequence, call.words) => {
                ends[rank] = Some(End::Wrong(sequence));
            }
            Outcome::Done(_) => machines[rank] = machine(rank, sequence + 1),
            Outcome::GaveUp(reason) => ends[rank] = Some(End::GaveUp(sequence, reason)),
            Outcome::Going | Outcome::Waiting => {}
        }
    }
    ends.into_iter().map(|end| end.unwrap_or(End::Hangs)).collect()
}

/// Calls of all sizes by all protocols in turn.
fn mixed(_rank: usize, sequence: u64) -> Option<Call> {
    let protocol = [Protocol::TwoShot, Protocol::Push, Protocol::Lines][(sequence % 3) as usize];
    Some(Call { protocol, words: [3, 0, 1, 8, 2][(sequence % 5) as usize] })
}

fn pushes(_rank: usize, _sequence: u64) -> Option<Call> {
    Some(Call { protocol: Protocol::Push, words: 2 })
}

/// The last line is short.
fn lines(_rank: usize, _sequence: u64) -> Option<Call> {
    Some(Call { protocol: Protocol::Lines, words: 5 })
}

fn two_shots(_rank: usize, _sequence: u64) -> Option<Call> {
    Some(Call { protocol: Protocol::TwoShot, words: 5 })
}

const RIGHT: Play = Play { ranks: 3, rules: RULES, call: mixed, dies: None };
const RULES: Rules = Rules::ALL;

/// Whether all calls of all seeds were right.
fn always_right(of: &Play) -> bool {
    (0..SEEDS).all(|seed| play(of, seed).iter().all(|end| *end == End::AllDone))
}

#[test]
fn all_calls_are_right() {
    for ranks in [1, 2, 3, 4] {
        assert!(always_right(&Play { ranks, ..RIGHT }), "{ranks} ranks");
        assert!(always_right(&Play { ranks, call: pushes, ..RIGHT }), "{ranks} ranks");
        assert!(always_right(&Play { ranks, call: lines, ..RIGHT }), "{ranks} ranks");
        assert!(always_right(&Play { ranks, call: two_shots, ..RIGHT }), "{ranks} ranks");
    }
}

#[test]
fn broken_rules_are_noticed() {
    let limit = 100_000;
    let one_parity = Rules { two_parities: false, limit, ..RULES };
    assert!(!always_right(&Play { rules: one_parity, call: pushes, ..RIGHT }), "slots without turns");
    let no_fence = Rules { fences: false, limit, ..RULES };
    assert!(!always_right(&Play { rules: no_fence, call: two_shots, ..RIGHT }), "a barrier without a fence");
    let no_cleaning = Rules { clean_every: 0, epoch_bits: 1, limit, ..RULES };
    assert!(!always_right(&Play { rules: no_cleaning, call: pushes, ..RIGHT }), "epochs that come round");
}

#[test]
fn broken_rules_of_lines_are_noticed() {
    let limit = 100_000;
    let broken = [
        ("slots without turns", Rules { two_parities: false, limit, ..RULES }),
        ("flags without a fence", Rules { fences: false, limit, ..RULES }),
        ("flags looked at last", Rules { flags_first: false, limit, ..RULES }),
        ("epochs that come round", Rules { clean_every: 0, epoch_bits: 1, limit, ..RULES }),
    ];
    for ranks in [2, 3, 4] {
        for (what, rules) in broken {
            assert!(!always_right(&Play { ranks, rules, call: lines, ..RIGHT }), "{ranks} ranks: {what}");
        }
    }
}

#[test]
fn cleaned_slots_let_epochs_come_round() {
    // Two bits: the epoch of every fourth call is the same, and the slots are cleared in between.
    let rules = Rules { epoch_bits: 2, clean_every: 2, ..RULES };
    assert!(always_right(&Play { rules, ..RIGHT }));
}

#[test]
fn whoever_waits_for_a_dead_rank_gives_up() {
    let rules = Rules { limit: 4000, ..RULES };
    for seed in 0..SEEDS {
        let dies = Some((seed as usize % 3, (seed * 7) as usize % 300));
        let ends = play(&Play { ranks: 3 + seed as usize / 3 % 2, rules, dies, ..RIGHT }, seed);
        let dead = ends.iter().position(|end| *end == End::Dead);
        for (rank, end) in ends.iter().enumerate().filter(|&(rank, _)| Some(rank) != dead) {
            let ended = match end {
                End::GaveUp(_, Reason::TimedOut { .. } | Reason::Poison { .. }) => dead.is_some(),
                other => *other == End::AllDone,
            };
            assert!(ended, "seed {seed}, rank {rank}: {ends:?}");
        }
    }
}

#[test]
fn ranks_that_disagree_all_learn_of_it() {
    let other_size = |rank: usize, sequence: u64| {
        let words = if rank == 1 && sequence == 6 { 4 } else { 2 };
        Some(Call { protocol: Protocol::Push, words })
    };
    let other_protocol = |rank: usize, sequence: u64| {
        let protocol = if rank == 2 && sequence == 6 { Protocol::TwoShot } else { Protocol::Push };
        Some(Call { protocol, words: 3 })
    };
    let other_way = |rank: usize, sequence: u64| {
        let protocol = if rank == 1 && sequence == 6 { Protocol::Push } else { Protocol::Lines };
        Some(Call { protocol, words: 3 })
    };
    let plays: [(usize, CallOf); 4] = [(3, other_size), (3, other_protocol), (3, other_way), (4, other_way)];
    for (ranks, call) in plays {
        for seed in 0..SEEDS {
            let ends = play(&Play { ranks, call, ..RIGHT }, seed);
            let names =
                |end: &&End| matches!(end, End::GaveUp(6, Reason::Mismatch { mine, theirs, .. }) if mine != theirs);
            assert!(ends.iter().any(|end| names(&end)), "seed {seed}: {ends:?}");
            let learns = |end: &End| matches!(end, End::GaveUp(5..=7, Reason::Mismatch { .. } | Reason::Poison { .. }));
            assert!(ends.iter().all(learns), "seed {seed}: {ends:?}");
        }
    }
}

#[test]
fn a_rank_that_makes_no_call_is_missed() {
    let call = |rank: usize, sequence: u64| (rank != 1 || sequence < 5).then(|| pushes(rank, sequence)).flatten();
    for seed in 0..SEEDS / 4 {
        let ends = play(&Play { call, rules: Rules { limit: 4000, ..RULES }, ..RIGHT }, seed);
        for rank in [0, 2] {
            let gave_up = matches!(ends[rank], End::GaveUp(5 | 6, Reason::TimedOut { .. } | Reason::Poison { .. }));
            assert!(gave_up, "seed {seed}: {ends:?}");
        }
        let missed = ends.iter().any(|end| matches!(end, End::GaveUp(_, Reason::TimedOut { peer: 1 })));
        assert!(missed, "seed {seed}: {ends:?}");
    }
}
