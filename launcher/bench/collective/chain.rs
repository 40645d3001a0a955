//! A chain of calls on operands in one piece of memory. In: a call, its form, how many. Out: where each call of the chain reads
//! and writes, what ranks hold before and after it. Guarantee: pure; where the kind allows it, each call reads what the one
//! before wrote; a chain that shall be cold reads memory that no call has touched since the cache was emptied.

use super::values::Values;
use crossmesh::collective::{Call, Kind, OperationError};

/// Operands that together exceed the caches of today's GPUs (50 MB on H200, 126 MB on B200) are used in turn.
pub(super) const CACHE: u64 = 256 << 20;
const ALIGNMENT: u64 = 256;

/// How calls are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    /// In a graph, or one by one.
    pub(super) captured: bool,
    /// On operands that are not in the device's cache.
    pub(super) cold: bool,
    /// With one operand.
    pub(super) in_place: bool,
}

/// Calls on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) call: Call,
    pub(super) form: Form,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) calls: u32,
}

/// Elements that are to be at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    /// Byte in memory.
    pub(super) offset: u64,
    pub(super) values: Values,
    /// Element of the values that is at the offset.
    pub(super) first: u64,
    /// Elements.
    pub(super) count: u64,
}

impl Chain {
    /// Bytes of memory for operands.
    pub(super) fn bytes(&self) -> u64 {
        self.slots() * self.slot()
    }

    /// Call `number`: what, input and output.
    pub(super) fn step(&self, number: u32) -> (Call, u64, u64) {
        let mut call = self.call;
        if call.kind == Kind::Broadcast {
            call.root = (call.root + number) % self.ranks;
        }
        let base = u64::from(number) % self.slots() * self.slot();
        let own = u64::from(self.rank) * self.part();
        let turned = matches!(call.kind, Kind::AllReduce | Kind::Broadcast) && !self.form.cold;
        let (input, output) = match (self.form.in_place, call.kind) {
            (true, Kind::AllGather) => (own, 0),
            (true, Kind::ReduceScatter) => (0, own),
            (true, _) => (0, 0),
            (false, _) if turned && number % 2 == 1 => (self.pitch(), 0),
            (false, _) => (0, self.pitch()),
        };
        (call, base + input, base + output)
    }

    /// What this rank's memory must hold before the chain: the inputs.
    pub(super) fn before(&self) -> Vec<Expected> {
        let own = Values::of_rank(self.call.dtype, self.rank);
        let count = self.sizes().0 / self.call.dtype.bytes().max(1);
        let inputs = (0..self.slots().min(u64::from(self.calls))).map(|slot| self.step(slot as u32).1);
        inputs.map(|offset| Expected { offset, values: own.clone(), first: 0, count }).collect()
    }

    /// What the output of the last call must hold afterwards.
    pub(super) fn after(&self) -> Result<Vec<Expected>, OperationError> {
        let all: Vec<Values> = (0..self.ranks).map(|rank| Values::of_rank(self.call.dtype, rank)).collect();
        let (_, _, offset) = self.step(self.calls.saturating_sub(1));
        let count = self.call.count;
        let at =
            |part: u64, values: Values, first| Expected { offset: offset + part * self.part(), values, first, count };
        Ok(match self.call.kind {
            Kind::AllGather => all.into_iter().zip(0..).map(|(values, part)| at(part, values, 0)).collect(),
            Kind::Broadcast => vec![at(0, all[self.sender() as usize].clone(), 0)],
            Kind::ReduceScatter => vec![at(0, self.scattered(&all)?, u64::from(self.rank) * count)],
            Kind::AllReduce | Kind::AllReduceNorm => vec![at(0, self.summed(&all)?, 0)],
        })
    }

    /// All ranks reduce, then reduce again what they all have got.
    fn summed(&self, all: &[Values]) -> Result<Values, OperationError> {
        let mut values = Values::reduced(&all.iter().collect::<Vec<_>>(), self.call.operation)?;
        for _ in 1..self.repeats() {
            values = Values::reduced(&vec![&values; all.len()], self.call.operation)?;
        }
        Ok(values)
    }

    /// In place, what a rank has got is its input of the next call, beside the others' first ones.
    fn scattered(&self, all: &[Values]) -> Result<Values, OperationError> {
        let mut values = Values::reduced(&all.iter().collect::<Vec<_>>(), self.call.operation)?;
        for _ in 1..if self.form.in_place { self.repeats() } else { 1 } {
            let mut inputs: Vec<&Values> = all.iter().collect();
            inputs[self.rank as usize] = &values;
            values = Values::reduced(&inputs, self.call.operation)?;
        }
        Ok(values)
    }

    /// Whose values the output of the last broadcast holds.
    fn sender(&self) -> u32 {
        let last = self.calls.saturating_sub(1);
        let number = match (self.form.cold, self.form.in_place) {
            (false, _) => 0,
            (true, true) => (u64::from(last) % self.slots()) as u32,
            (true, false) => last,
        };
        (self.call.root + number) % self.ranks
    }

    /// Calls whose results the last one builds on, with it.
    fn repeats(&self) -> u32 {
        match (self.form.cold, self.form.in_place) {
            (true, false) => 1,
            _ => (u64::from(self.calls.saturating_sub(1)) / self.slots()) as u32 + 1,
        }
    }

    /// Operands, or pairs of them, that are used in turn.
    fn slots(&self) -> u64 {
        if self.form.cold { CACHE.div_ceil(self.slot()).clamp(1, u64::from(self.calls.max(1))) } else { 1 }
    }

    fn slot(&self) -> u64 {
        self.pitch() * if self.form.in_place { 1 } else { 2 }
    }

    fn pitch(&self) -> u64 {
        let (input, output) = self.sizes();
        input.max(output).next_multiple_of(ALIGNMENT).max(ALIGNMENT)
    }

    fn part(&self) -> u64 {
        self.call.count * self.call.dtype.bytes()
    }

    /// Bytes of input and output.
    fn sizes(&self) -> (u64, u64) {
        let all = self.part() * u64::from(self.ranks);
        match self.call.kind {
            Kind::AllGather => (self.part(), all),
            Kind::ReduceScatter => (all, self.part()),
            _ => (self.part(), self.part()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::collective::{ReduceOperation, reduce};
    use crossmesh::layout::Dtype;

    /// Memory of all ranks, on which calls are carried out by their definition.
    struct Host(Vec<Vec<u8>>);

    impl Host {
        fn call(&mut self, steps: &[(Call, u64, u64)]) {
            let (call, ..) = steps[0];
            let (ranks, part) = (steps.len(), (call.count * call.dtype.bytes()) as usize);
            let length = part * if call.kind == Kind::ReduceScatter { ranks } else { 1 };
            let range = |start: u64, length: usize| start as usize..start as usize + length;
            let inputs: Vec<Vec<u8>> =
                steps.iter().zip(&self.0).map(|(step, memory)| memory[range(step.1, length)].to_vec()).collect();
            for (rank, &(_, _, output)) in steps.iter().enumerate() {
                let share = if call.kind == Kind::ReduceScatter { rank * part } else { 0 };
                let parts: Vec<&[u8]> = inputs.iter().map(|input| &input[share..share + part]).collect();
                let mut result = match call.kind {
                    Kind::AllGather => inputs.concat(),
                    Kind::Broadcast => inputs[call.root as usize].clone(),
                    _ => vec![0; part],
                };
                if call.kind.reduces() {
                    reduce(call.dtype, call.operation, &parts, &mut result).unwrap();
                }
                self.0[rank][range(output, result.len())].copy_from_slice(&result);
            }
        }
    }

    fn chains(call: Call, form: Form, ranks: u32, calls: u32) -> Vec<Chain> {
        (0..ranks).map(|rank| Chain { call, form, rank, ranks, calls }).collect()
    }

    fn check(chains: &[Chain]) {
        let mut host = Host(chains.iter().map(|chain| vec![0; chain.bytes() as usize]).collect());
        for (memory, chain) in host.0.iter_mut().zip(chains) {
            for input in chain.before() {
                let bytes = input.values.repeated(input.first, input.count);
                memory[input.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        for number in 0..chains[0].calls {
            host.call(&chains.iter().map(|chain| chain.step(number)).collect::<Vec<_>>());
        }
        for (memory, chain) in host.0.iter().zip(chains) {
            for output in chain.after().unwrap() {
                let length = (output.count * chain.call.dtype.bytes()) as usize;
                let found = &memory[output.offset as usize..][..length];
                assert_eq!(output.values.wrong(output.first, found), 0, "{chain:?}");
            }
        }
    }

    #[test]
    fn what_is_expected_is_what_the_calls_make() {
        for kind in [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::Broadcast] {
            for (dtype, operation) in [(Dtype::BF16, ReduceOperation::Sum), (Dtype::I32, ReduceOperation::Average)] {
                for number in 0..4 {
                    let form = Form { captured: true, cold: number % 2 == 1, in_place: number >= 2 };
                    for (ranks, calls) in [(2, 1), (2, 4), (3, 5)] {
                        let call = Call { kind, count: 1001, dtype, operation, root: 1 };
                        check(&chains(call, form, ranks, calls));
                    }
                }
            }
        }
    }

    #[test]
    fn cold_operands_are_used_in_turn_until_they_exceed_the_cache() {
        let call =
            |count| Call { kind: Kind::AllReduce, count, dtype: Dtype::U8, operation: ReduceOperation::Sum, root: 0 };
        let form = Form { captured: true, cold: true, in_place: false };
        let of = |count, calls| chains(call(count), form, 2, calls)[0];
        assert_eq!(of(1 << 10, 50).slots(), 50);
        assert_eq!(of(16 << 20, 50).slots(), 8);
        assert_eq!(of(256 << 20, 50).slots(), 1);
        assert_eq!(of(16 << 20, 50).step(9).1, 32 << 20);
        assert_eq!(Chain { form: Form { cold: false, ..form }, ..of(16 << 20, 50) }.bytes(), 32 << 20);
    }

    #[test]
    fn a_chain_of_all_reduces_reads_what_the_call_before_wrote() {
        let call =
            Call { kind: Kind::AllReduce, count: 100, dtype: Dtype::U8, operation: ReduceOperation::Sum, root: 0 };
        let chain = chains(call, Form { captured: false, cold: false, in_place: false }, 2, 3)[1];
        for number in 1..3 {
            assert_eq!(chain.step(number).1, chain.step(number - 1).2);
        }
    }
}
