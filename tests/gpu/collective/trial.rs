//! A call with its inputs and what must come of it. In: sizes, a seed. Out: bytes of all ranks. Guarantee: inputs are random
//! bits, so that a swapped or torn element shows; what must come is computed on the host by the definition.

use crossmesh::collective::{Call, Kind, ReduceOperation, element, reduce};
use crossmesh::layout::Dtype;

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trial {
    pub(crate) kind: Kind,
    pub(crate) dtype: Dtype,
    pub(crate) operation: ReduceOperation,
    pub(crate) count: u64,
    pub(crate) root: u32,
    pub(crate) in_place: bool,
    /// Elements in front of the operands, so that they are not aligned.
    pub(crate) shift: u64,
    pub(crate) seed: u64,
}

/// Random numbers that need no crate: SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let state = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^ state >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

impl Trial {
    /// Any call of at most `most` elements.
    pub(crate) fn random(random: &mut Random, ranks: u32, most: u64) -> Self {
        let dtypes: Vec<Dtype> = crossmesh::collective::reducible().collect();
        let kinds = [Kind::AllReduce, Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::Broadcast];
        let limit = random.one_of(&[1, 8, 100, 5000, most]).min(most) + 1;
        Self {
            kind: random.one_of(&kinds),
            dtype: random.one_of(&dtypes),
            operation: random.one_of(&ReduceOperation::ALL),
            count: random.below(limit),
            root: random.below(ranks.into()) as u32,
            in_place: random.below(2) == 0,
            shift: random.one_of(&[0, 0, 1, 3]),
            seed: random.next(),
        }
    }

    /// As a channel takes it.
    pub(crate) fn call(&self) -> Call {
        let Self { kind, count, dtype, operation, root, .. } = *self;
        Call { kind, count, dtype, operation, root }
    }

    fn width(&self) -> u64 {
        self.dtype.bytes()
    }

    /// Bytes of a rank's part.
    pub(crate) fn part(&self) -> u64 {
        self.count * self.width()
    }

    /// Bytes of input and output.
    pub(crate) fn sizes(&self, ranks: u32) -> (u64, u64) {
        let all = self.part() * u64::from(ranks);
        match self.kind {
            Kind::AllGather => (self.part(), all),
            Kind::ReduceScatter => (all, self.part()),
            _ => (self.part(), self.part()),
        }
    }

    /// Where input and output begin in a buffer that has room for both behind each other.
    pub(crate) fn offsets(&self, rank: u32, ranks: u32) -> (u64, u64) {
        let shift = self.shift * self.width();
        let (input, _) = self.sizes(ranks);
        match (self.in_place, self.kind) {
            (false, _) => (shift, shift + input.next_multiple_of(256) + self.shift * self.width()),
            (true, Kind::AllGather) => (shift + u64::from(rank) * self.part(), shift),
            (true, Kind::ReduceScatter) => (shift, shift + u64::from(rank) * self.part()),
            (true, _) => (shift, shift),
        }
    }

    /// Bytes of a buffer for input and output.
    pub(crate) fn room(&self, ranks: u32) -> u64 {
        let (input, output) = self.sizes(ranks);
        input + output + 1024
    }

    /// Input of a rank.
    pub(crate) fn input(&self, rank: u32, ranks: u32) -> Vec<u8> {
        let (bytes, _) = self.sizes(ranks);
        let mut random = Random(self.seed ^ (u64::from(rank) << 40));
        let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes());
        words.take(bytes as usize).collect()
    }

    /// Output of a rank; by a ring where the bytes of its slots are stated.
    pub(crate) fn expected(&self, rank: u32, ranks: u32, ring: Option<u64>) -> Vec<u8> {
        let inputs: Vec<Vec<u8>> = (0..ranks).map(|rank| self.input(rank, ranks)).collect();
        let part = self.part() as usize;
        let begin = rank as usize * part;
        match self.kind {
            Kind::AllGather => inputs.concat(),
            Kind::Broadcast => inputs[self.root as usize].clone(),
            Kind::ReduceScatter => {
                let parts: Vec<&[u8]> = inputs.iter().map(|input| &input[begin..begin + part]).collect();
                self.reduced(&parts)
            }
            _ => match ring {
                Some(slot) => self.ringed(&inputs, slot),
                None => self.reduced(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            },
        }
    }

    fn reduced(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut result = vec![0; parts.first().map_or(0, |part| part.len())];
        reduce(self.dtype, self.operation, parts, &mut result).expect("a type that is reduced");
        result
    }

    /// In a ring chunk c is reduced from rank c on. A launch takes as much as slots of `slot` bytes hold: for each word of a
    /// chunk ranks - 1 partial results, as accumulators, and as many results.
    fn ringed(&self, inputs: &[Vec<u8>], slot: u64) -> Vec<u8> {
        let ranks = inputs.len();
        let wide = match self.dtype {
            Dtype::F64 | Dtype::I64 => 8,
            _ => 4,
        };
        let words = (ranks.max(2) - 1) * (1 + wide / self.width() as usize);
        let launch = (slot as usize / 8 / words * 8 * ranks).max(8) / 16 * 16;
        let of_launch = |begin: usize| {
            let end = (begin + launch).min(self.part() as usize);
            let size = (end - begin).div_ceil(8).div_ceil(ranks).max(1) * 8;
            let chunk = move |number: usize| (begin + number * size).min(end)..(begin + (number + 1) * size).min(end);
            let of_chunk = move |number: usize| {
                let turned: Vec<&[u8]> =
                    (0..ranks).map(|step| &inputs[(number + step) % ranks][chunk(number)]).collect();
                self.reduced(&turned)
            };
            (0..ranks).flat_map(of_chunk)
        };
        (0..self.part() as usize).step_by(launch).flat_map(of_launch).collect()
    }

    /// The first element that is not what it should be; any NaN is as good as any other.
    pub(crate) fn difference(&self, found: &[u8], expected: &[u8]) -> Option<String> {
        let width = self.width() as usize;
        let moved = !self.kind.reduces();
        let pairs = found.chunks_exact(width).zip(expected.chunks_exact(width));
        let wrong = |(one, two): &(&[u8], &[u8])| one != two && (moved || !(self.is_nan(one) && self.is_nan(two)));
        let first = pairs.clone().position(|pair| wrong(&pair))?;
        let count = pairs.filter(wrong).count();
        let at = first * width;
        let (one, two) = (&found[at..at + width], &expected[at..at + width]);
        Some(format!("{self:?}: {count} elements are wrong, the first is {first}: {one:x?} and not {two:x?}"))
    }

    fn is_nan(&self, bytes: &[u8]) -> bool {
        let word = bytes.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        let above = |infinity: u64, mask: u64| word & mask > infinity;
        match self.dtype {
            Dtype::F64 => above(0x7ff << 52, u64::MAX >> 1),
            Dtype::F32 => above(0x7f80_0000, 0x7fff_ffff),
            Dtype::F16 => above(0x7c00, 0x7fff),
            Dtype::BF16 => above(0x7f80, 0x7fff),
            Dtype::F8E4M3 => above(0x7e, 0x7f),
            Dtype::F8E5M2 => above(0x7c, 0x7f),
            _ => false,
        }
    }
}

/// All types, reductions and kinds at one size.
pub(crate) fn all_of(count: u64, seed: u64) -> Vec<Trial> {
    let mut trials = Vec::new();
    for dtype in crossmesh::collective::reducible() {
        assert!(element(dtype).is_ok());
        for operation in ReduceOperation::ALL {
            for kind in [Kind::AllReduce, Kind::ReduceScatter] {
                let (in_place, shift) = (trials.len() % 2 == 0, trials.len() as u64 % 3);
                trials.push(Trial { kind, dtype, operation, count, root: 0, in_place, shift, seed });
            }
        }
        for kind in [Kind::AllGather, Kind::Broadcast] {
            for in_place in [false, true] {
                let (operation, root, shift) = (ReduceOperation::Sum, u32::from(in_place), trials.len() as u64 % 3);
                trials.push(Trial { kind, dtype, operation, count, root, in_place, shift, seed });
            }
        }
    }
    trials
}
