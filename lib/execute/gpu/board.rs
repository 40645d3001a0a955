//! Words by which ranks of a device transfer tell each other how far they are. In: a program. Out: numbers of words.
//! Guarantee: every word has one writer, and carries the epoch of the start it belongs to; words that are awaited together
//! stand together.

use super::super::program::{Incoming, Program, Storage};
use crate::base::Rank;
use crate::memory::device::params::{BOARD_WORDS, NONE};
use std::collections::BTreeMap;

/// Items of one peer, in the order in which both ends count them.
pub(super) type Items = BTreeMap<Rank, Vec<u32>>;

/// Words of this rank's board, and what they are about.
#[derive(Debug, Clone, Default)]
pub(super) struct Board {
    /// Number of words.
    pub(super) words: u32,
    /// Items that this rank reads, by whom from.
    pub(super) parents: Items,
    /// Items that others read here, by reader.
    pub(super) readers: Items,
    /// Word in which a parent tells that its sources may be read.
    pub(super) started: BTreeMap<Rank, u32>,
    /// Word in which a reader tells that it has read everything.
    pub(super) finished: BTreeMap<Rank, u32>,
    /// Per item, the word that opens it: of its parent, or its own when the parent must get it first; `NONE` for own copies.
    pub(super) gates: Vec<u32>,
    /// Per item that others wait for, its report.
    pub(super) reports: Vec<u32>,
    /// Word that counts the units of each report.
    pub(super) counters: Vec<u32>,
}

impl Board {
    /// The board of a program whose edges are all read by the receiver.
    pub(super) fn of(program: &Program) -> Self {
        let merged = |first: &Items, second: &Items| {
            let mut items = first.clone();
            for (&peer, more) in second {
                items.entry(peer).or_default().extend(more);
            }
            items
        };
        let mut board = Self {
            words: BOARD_WORDS,
            parents: merged(&program.pulls, &program.fed),
            readers: merged(&program.reads, &program.feeds),
            gates: vec![NONE; program.items.len()],
            reports: vec![NONE; program.items.len()],
            ..Self::default()
        };
        board.started =
            board.parents.keys().copied().collect::<Vec<_>>().into_iter().map(|peer| (peer, board.take())).collect();
        board.finished =
            board.readers.keys().copied().collect::<Vec<_>>().into_iter().map(|peer| (peer, board.take())).collect();
        for (number, item) in program.items.iter().enumerate() {
            board.gates[number] = match item.incoming {
                Incoming::Fed { from } | Incoming::Pull { from, stored: Storage::Source } => board.started[&from],
                Incoming::Pull { .. } => board.take(),
                _ => NONE,
            };
        }
        for items in board.readers.clone().values() {
            for &item in items {
                if is_awaited(program, item) && board.reports[item as usize] == NONE {
                    board.reports[item as usize] = board.counters.len() as u32;
                    let counter = board.take();
                    board.counters.push(counter);
                }
            }
        }
        board
    }

    fn take(&mut self) -> u32 {
        self.words += 1;
        self.words - 1
    }

    /// Words of items that this rank reads from `peer` once the peer has got them, in both ends' order.
    pub(super) fn gates_of(&self, program: &Program, peer: Rank) -> Vec<u32> {
        let items = self.parents.get(&peer).into_iter().flatten();
        items.filter(|&&item| is_late(program, item)).map(|&item| self.gates[item as usize]).collect()
    }

    /// Items that `peer` reads here once this rank has got them, in both ends' order.
    pub(super) fn awaited_by(&self, program: &Program, peer: Rank) -> Vec<u32> {
        let items = self.readers.get(&peer).into_iter().flatten();
        items.copied().filter(|&item| is_awaited(program, item)).collect()
    }

    /// First word of a set of words that stand together, and how many.
    pub(super) fn range(words: &BTreeMap<Rank, u32>) -> (u32, u32) {
        (words.values().min().copied().unwrap_or(0), words.len() as u32)
    }
}

/// Whether the parent of an item must get it first.
fn is_late(program: &Program, item: u32) -> bool {
    matches!(program.items[item as usize].incoming, Incoming::Pull { stored, .. } if stored != Storage::Source)
}

/// Whether readers of an item here must wait until this rank has got it.
fn is_awaited(program: &Program, item: u32) -> bool {
    program.items[item as usize].storage != Storage::Source
}
