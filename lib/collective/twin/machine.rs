//! A rank. In: calls. Out: results or why it gave up. Guarantee: a step is one access to memory, or less.

use super::Memory;

/// How a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// `reduce_push`, and `reduce_push_lines` where the lanes of a warp run together: a line comes whole, as a word does.
    Push,
    /// `reduce_push_lines` where they run apart: data behind which a fence stands, then the word with the flag.
    Lines,
    /// `reduce_two_shot` on registered buffers.
    TwoShot,
}

/// A call: so many words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) protocol: Protocol,
    pub(crate) words: usize,
}

/// Sizes, and rules that can be broken to show that tests notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Slots are used in turn.
    pub(crate) two_parities: bool,
    /// Flags of a barrier or a line are stored behind a fence.
    pub(crate) fences: bool,
    /// The flag of a line is looked at before its data.
    pub(crate) flags_first: bool,
    /// Slots are cleared when the sequence is a multiple of this; 0: never.
    pub(crate) clean_every: u64,
    /// Bits of a sequence that flags carry.
    pub(crate) epoch_bits: u32,
    /// Polls of a wait before the first look at anything else, and until it ends.
    pub(crate) look: u64,
    pub(crate) limit: u64,
}

impl Rules {
    /// None is broken.
    pub(crate) const ALL: Self = Self {
        two_parities: true,
        fences: true,
        flags_first: true,
        clean_every: 4,
        epoch_bits: 3,
        look: 8,
        limit: u64::MAX,
    };
}

/// Where things are in a rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    pub(crate) capacity: usize,
}

const POISON: usize = 0;
const HEADERS: usize = 4;
const PHASES: usize = 2;
/// Words of a line, the last with the flag.
pub(crate) const LINE: usize = 2;

impl Shape {
    fn header(&self, sequence: u64) -> usize {
        1 + (sequence % HEADERS as u64) as usize
    }

    fn cleaned(&self, source: usize) -> usize {
        1 + HEADERS + source
    }

    fn flag(&self, parity: usize, phase: usize, source: usize) -> usize {
        1 + HEADERS + self.ranks + (parity * PHASES + phase) * self.ranks + source
    }

    fn slot(&self, parity: usize, source: usize, word: usize) -> usize {
        1 + HEADERS + self.ranks * (1 + 2 * PHASES) + (parity * self.ranks + source) * self.capacity + word
    }

    /// A word of a line from `source` in the memory of `rank`, which has a slot for each peer.
    fn line(&self, parity: usize, rank: usize, source: usize, word: usize) -> usize {
        let peer = if source < rank { source } else { source - 1 };
        self.slot(2, 0, 0) + (parity * (self.ranks - 1) + peer) * self.capacity + word
    }

    /// Input of the two-shot; the output stands behind it.
    pub(crate) fn input(&self, word: usize) -> usize {
        self.slot(2, 0, 0) + 2 * (self.ranks - 1) * self.capacity + word
    }

    pub(crate) fn output(&self, word: usize) -> usize {
        self.input(self.capacity) + word
    }

    pub(crate) fn words(&self) -> usize {
        self.output(self.capacity)
    }

    /// What cleaning clears: flags and slots.
    fn cleared(&self) -> std::ops::Range<usize> {
        self.flag(0, 0, 0)..self.input(0)
    }
}

/// Why a rank gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    TimedOut { peer: usize },
    Mismatch { peer: usize, mine: u32, theirs: u32 },
    Poison { peer: usize },
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// There is more to do.
    Going,
    /// A wait has not ended.
    Waiting,
    /// The call is done: its result.
    Done(Vec<u32>),
    GaveUp(Reason),
}

/// Combines so that the order shows.
pub(crate) fn combine(sum: u32, term: u32) -> u32 {
    sum.wrapping_mul(31).wrapping_add(term)
}

/// What rank `rank` puts into word `word` of call `sequence`.
pub(crate) fn value(rank: usize, sequence: u64, word: usize) -> u32 {
    (sequence as u32).wrapping_mul(1_000_003) ^ (rank as u32) << 20 ^ word as u32
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Poisoned,
    Header,
    Clear(usize),
    TellCleaned(usize),
    AwaitCleaned(usize),
    Fill(usize),
    Send(usize, usize),
    Receive(usize, usize),
    SendLine(usize, usize, usize),
    TakeLine(usize, usize, usize),
    Tell(usize, usize),
    Await(usize, usize),
    Read(usize, usize),
    Write(usize, usize, u32),
    Collect(usize),
    End,
}

/// One rank in a call.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    rank: usize,
    shape: Shape,
    rules: Rules,
    call: Call,
    sequence: u64,
    stage: Stage,
    polls: u64,
    sum: u32,
    /// Words of a source's line, and of the sum of those before.
    terms: [u32; LINE],
    sums: [u32; LINE],
    result: Vec<u32>,
}

impl Machine {
    pub(crate) fn new(rank: usize, shape: Shape, rules: Rules, call: Call, sequence: u64) -> Self {
        let (stage, result) = (Stage::Poisoned, Vec::new());
        let (terms, sums) = ([0; LINE], [0; LINE]);
        Self { rank, shape, rules, call, sequence, stage, polls: 0, sum: 0, terms, sums, result }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// What a header says of the call, 24 bits.
    fn code(call: &Call) -> u32 {
        (call.words as u32) << 4 | (call.protocol as u32 + 1)
    }

    fn flag(&self) -> u32 {
        let epoch = self.sequence as u32 & ((1 << self.rules.epoch_bits) - 1);
        Self::code(&self.call) << self.rules.epoch_bits | epoch
    }

    fn parity(&self) -> usize {
        if self.rules.two_parities { (self.sequence & 1) as usize } else { 0 }
    }

    /// Words of this rank's shard.
    fn shard(&self) -> (usize, usize) {
        let size = self.call.words.div_ceil(self.shape.ranks);
        let begin = (self.rank * size).min(self.call.words);
        (begin, (begin + size).min(self.call.words))
    }

    fn next_peer(&self, peer: usize) -> Option<usize> {
        (peer..self.shape.ranks).find(|&peer| peer != self.rank)
    }

    /// Words that go to each peer: at least one.
    fn sent(&self) -> usize {
        self.call.words.max(1)
    }

    /// Does the next thing.
    pub(crate) fn step(&mut self, memory: &impl Memory) -> Outcome {
        let (rank, shape, parity) = (self.rank, self.shape, self.parity());
        match self.stage {
            Stage::Poisoned => {
                let poison = memory.load(rank, POISON) as usize;
                if poison != 0 {
                    return Outcome::GaveUp(Reason::Poison { peer: poison - 1 });
                }
                self.stage = Stage::Header;
            }
            Stage::Header => {
                let word = self.sequence << 32 | u64::from(Self::code(&self.call));
                memory.store(rank, shape.header(self.sequence), word);
                let cleans = self.rules.clean_every != 0 && self.sequence.is_multiple_of(self.rules.clean_every);
                self.stage = if cleans { Stage::Clear(shape.cleared().start) } else { self.first() };
            }
            Stage::Clear(at) if at < shape.cleared().end => {
                memory.store(rank, at, 0);
                self.stage = Stage::Clear(at + 1);
            }
            Stage::Clear(_) => {
                memory.fence(rank);
                self.stage = Stage::TellCleaned(0);
            }
            Stage::TellCleaned(peer) => match self.next_peer(peer) {
                Some(peer) => {
                    memory.store(peer, shape.cleaned(rank), self.sequence);
                    self.stage = Stage::TellCleaned(peer + 1);
                }
                None => self.stage = Stage::AwaitCleaned(0),
            },
            Stage::AwaitCleaned(peer) => match self.next_peer(peer) {
                Some(peer) => {
                    let (found, wanted) = (memory.load(rank, shape.cleaned(peer)), self.sequence);
                    return self.awaited(memory, peer, found == wanted, Stage::AwaitCleaned(peer + 1));
                }
                None => self.stage = self.first(),
            },
            Stage::Send(..) | Stage::Receive(..) => return self.push(memory, parity),
            Stage::SendLine(line, peer, place) => self.send_line(memory, parity, (line, peer, place)),
            Stage::TakeLine(line, source, place) => return self.take_line(memory, parity, (line, source, place)),
            Stage::End => return Outcome::Done(std::mem::take(&mut self.result)),
            _ => return self.two_shot(memory, parity),
        }
        Outcome::Going
    }

    fn first(&self) -> Stage {
        match self.call.protocol {
            Protocol::Push => Stage::Send(0, 0),
            Protocol::Lines => Stage::SendLine(0, 0, 0),
            Protocol::TwoShot => Stage::Fill(0),
        }
    }

    fn push(&mut self, memory: &impl Memory, parity: usize) -> Outcome {
        let (rank, shape, flag) = (self.rank, self.shape, u64::from(self.flag()));
        match self.stage {
            Stage::Send(peer, word) => match self.next_peer(peer) {
                Some(peer) if word < self.sent() => {
                    let data = u64::from(value(rank, self.sequence, word));
                    memory.store(peer, shape.slot(parity, rank, word), flag << 32 | data);
                    self.stage = Stage::Send(peer, word + 1);
                }
                Some(peer) => self.stage = Stage::Send(peer + 1, 0),
                None => self.stage = Stage::Receive(0, 0),
            },
            Stage::Receive(word, source) if source < shape.ranks => {
                let found = match source == rank {
                    true => flag << 32 | u64::from(value(rank, self.sequence, word)),
                    false => memory.load(rank, shape.slot(parity, source, word)),
                };
                let came = found >> 32 == flag;
                if came {
                    let term = found as u32;
                    self.sum = if source == 0 { term } else { combine(self.sum, term) };
                }
                return self.awaited(memory, source, came, Stage::Receive(word, source + 1));
            }
            Stage::Receive(word, _) => {
                if word < self.call.words {
                    self.result.push(self.sum);
                }
                self.stage = if word + 1 < self.sent() { Stage::Receive(word + 1, 0) } else { Stage::End };
            }
            _ => {}
        }
        Outcome::Going
    }

    fn lines(&self) -> usize {
        self.call.words.div_ceil(LINE).max(1)
    }

    /// A line is waited for once the next one is sent.
    fn turn(&self, line: usize) -> Stage {
        match line + 1 < self.lines() {
            true => Stage::SendLine(line + 1, 0, 0),
            false => Stage::TakeLine(line, 0, 0),
        }
    }

    /// Sends a word of a line: those without the flag, then that with it.
    fn send_line(&mut self, memory: &impl Memory, parity: usize, (line, peer, place): (usize, usize, usize)) {
        let (rank, word) = (self.rank, line * LINE + place);
        self.stage = match self.next_peer(peer) {
            Some(peer) if place < LINE => {
                let data = u64::from(value(rank, self.sequence, word));
                let is_last = place == LINE - 1;
                if is_last && self.rules.fences {
                    memory.fence(rank);
                }
                let flag = if is_last { u64::from(self.flag()) << 32 } else { 0 };
                memory.store(peer, self.shape.line(parity, peer, rank, word), flag | data);
                Stage::SendLine(line, peer, place + 1)
            }
            Some(peer) => Stage::SendLine(line, peer + 1, 0),
            None if line == 0 => self.turn(0),
            None => Stage::TakeLine(line - 1, 0, 0),
        };
    }

    /// Takes a word of a line: that with the flag, then the others.
    fn take_line(
        &mut self,
        memory: &impl Memory,
        parity: usize,
        (line, source, place): (usize, usize, usize),
    ) -> Outcome {
        let (rank, shape, flag) = (self.rank, self.shape, u64::from(self.flag()));
        if source == shape.ranks {
            let words = (line * LINE..self.call.words).len().min(LINE);
            self.result.extend_from_slice(&self.sums[..words]);
            self.stage = if line + 1 < self.lines() { self.turn(line + 1) } else { Stage::End };
            return Outcome::Going;
        }
        if place == LINE {
            for (sum, &term) in self.sums.iter_mut().zip(&self.terms) {
                *sum = if source == 0 { term } else { combine(*sum, term) };
            }
            self.stage = Stage::TakeLine(line, source + 1, 0);
            return Outcome::Going;
        }
        let at = if self.rules.flags_first { (place + LINE - 1) % LINE } else { place };
        let (word, is_last, then) = (line * LINE + at, at == LINE - 1, Stage::TakeLine(line, source, place + 1));
        let found = match source == rank {
            true => flag << 32 | u64::from(value(rank, self.sequence, word)),
            false => memory.load(rank, shape.line(parity, rank, source, word)),
        };
        self.terms[at] = found as u32;
        let came = !is_last || found >> 32 == flag;
        if is_last && came {
            memory.fence(rank);
        }
        // All of a line is looked at anew.
        self.stage = Stage::TakeLine(line, source, 0);
        self.awaited(memory, source, came, then)
    }

    /// Enter, reduce the shard from all inputs into all outputs, leave.
    fn two_shot(&mut self, memory: &impl Memory, parity: usize) -> Outcome {
        let (rank, shape, flag) = (self.rank, self.shape, u64::from(self.flag()));
        let (begin, end) = self.shard();
        match self.stage {
            Stage::Fill(word) if word < self.call.words => {
                memory.store(rank, shape.input(word), u64::from(value(rank, self.sequence, word)));
                self.stage = Stage::Fill(word + 1);
            }
            Stage::Fill(_) => {
                // Stands for the end of the kernel that made the input.
                memory.fence(rank);
                self.stage = Stage::Tell(0, 0);
            }
            Stage::Tell(phase, peer) => match self.next_peer(peer) {
                Some(peer) => {
                    memory.store(peer, shape.flag(parity, phase, rank), flag);
                    self.stage = Stage::Tell(phase, peer + 1);
                }
                None => self.stage = Stage::Await(phase, 0),
            },
            Stage::Await(phase, peer) => match self.next_peer(peer) {
                Some(peer) => {
                    let came = memory.load(rank, shape.flag(parity, phase, peer)) == flag;
                    return self.awaited(memory, peer, came, Stage::Await(phase, peer + 1));
                }
                None => {
                    memory.fence(rank);
                    self.stage = if phase == 0 { Stage::Read(begin, 0) } else { Stage::Collect(0) };
                }
            },
            Stage::Read(word, source) if word < end && source < shape.ranks => {
                let term = memory.load(source, shape.input(word)) as u32;
                self.sum = if source == 0 { term } else { combine(self.sum, term) };
                self.stage = Stage::Read(word, source + 1);
            }
            Stage::Read(word, _) if word < end => self.stage = Stage::Write(word, 0, self.sum),
            Stage::Read(..) => {
                if self.rules.fences {
                    memory.fence(rank);
                }
                self.stage = Stage::Tell(1, 0);
            }
            Stage::Write(word, target, sum) if target < shape.ranks => {
                memory.store(target, shape.output(word), u64::from(sum));
                self.stage = Stage::Write(word, target + 1, sum);
            }
            Stage::Write(word, ..) => self.stage = Stage::Read(word + 1, 0),
            Stage::Collect(word) if word < self.call.words => {
                self.result.push(memory.load(rank, shape.output(word)) as u32);
                self.stage = Stage::Collect(word + 1);
            }
            _ => self.stage = Stage::End,
        }
        Outcome::Going
    }

    /// Goes on to `then`, or polls again, or gives up.
    fn awaited(&mut self, memory: &impl Memory, peer: usize, came: bool, then: Stage) -> Outcome {
        if came {
            (self.stage, self.polls) = (then, 0);
            return Outcome::Going;
        }
        self.polls += 1;
        if !self.polls.is_multiple_of(self.rules.look) {
            return Outcome::Waiting;
        }
        let Some(reason) = self.look(memory, peer) else { return Outcome::Waiting };
        if !matches!(reason, Reason::Poison { .. }) {
            for rank in 0..self.shape.ranks {
                memory.store(rank, POISON, self.rank as u64 + 1);
            }
        }
        Outcome::GaveUp(reason)
    }

    fn look(&self, memory: &impl Memory, peer: usize) -> Option<Reason> {
        let poison = memory.load(self.rank, POISON) as usize;
        if poison != 0 {
            return Some(Reason::Poison { peer: poison - 1 });
        }
        let header = memory.load(peer, self.shape.header(self.sequence));
        let (mine, theirs) = (Self::code(&self.call), header as u32);
        if header >> 32 == self.sequence && theirs != mine {
            return Some(Reason::Mismatch { peer, mine, theirs });
        }
        (self.polls >= self.rules.limit).then_some(Reason::TimedOut { peer })
    }
}
