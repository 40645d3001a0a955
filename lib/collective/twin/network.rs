//! Memory whose stores arrive late and out of order. In: accesses, a source of chance. Out: what a rank would see. Guarantee: a
//! word arrives whole; stores of one rank to one word arrive in order; what a rank stored before a fence arrives before what
//! it stores behind it; its own memory it sees at once.

use super::Memory;
use std::cell::RefCell;

/// Random numbers without a crate: SplitMix64.
#[derive(Debug, Clone)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let state = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((state ^ state >> 31) % limit.max(1) as u64) as usize
    }
}

#[derive(Debug, Clone, Copy)]
struct OnTheWay {
    writer: usize,
    fences: u64,
    rank: usize,
    at: usize,
    word: u64,
}

/// Memory of ranks, with what is on the way to it.
#[derive(Debug)]
pub(crate) struct Network {
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    memory: Vec<Vec<u64>>,
    on_the_way: Vec<OnTheWay>,
    fences: Vec<u64>,
    /// Who acts now.
    actor: usize,
}

impl Network {
    pub(crate) fn new(ranks: usize, words: usize) -> Self {
        let memory = vec![vec![0; words]; ranks];
        Self { state: RefCell::new(State { memory, on_the_way: Vec::new(), fences: vec![0; ranks], actor: 0 }) }
    }

    /// Says whose accesses follow.
    pub(crate) fn act_as(&self, rank: usize) {
        self.state.borrow_mut().actor = rank;
    }

    /// Delivers one store that may arrive now; whether there was any.
    pub(crate) fn deliver(&self, chance: &mut Chance) -> bool {
        let mut state = self.state.borrow_mut();
        let way = &state.on_the_way;
        let is_free = |index: &usize| {
            let store = &way[*index];
            let blocks = |earlier: &OnTheWay| {
                let same_word = earlier.rank == store.rank && earlier.at == store.at;
                earlier.writer == store.writer && (earlier.fences < store.fences || same_word)
            };
            !way[..*index].iter().any(blocks)
        };
        let free: Vec<usize> = (0..way.len()).filter(is_free).collect();
        if free.is_empty() {
            return false;
        }
        let index = free[chance.below(free.len())];
        let store = state.on_the_way.remove(index);
        state.memory[store.rank][store.at] = store.word;
        true
    }
}

impl Memory for Network {
    fn load(&self, rank: usize, at: usize) -> u64 {
        self.state.borrow().memory[rank][at]
    }

    fn store(&self, rank: usize, at: usize, word: u64) {
        let mut state = self.state.borrow_mut();
        let writer = state.actor;
        if rank == writer {
            state.memory[rank][at] = word;
            return;
        }
        let fences = state.fences[writer];
        state.on_the_way.push(OnTheWay { writer, fences, rank, at, word });
    }

    fn fence(&self, writer: usize) {
        self.state.borrow_mut().fences[writer] += 1;
    }
}
