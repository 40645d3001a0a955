//! Tensors that share bytes. In: where tensors lie: starts, strides, extents. Out: two of them that share a byte, one
//! of which is written. Guarantee: exact for any strides, so that interleaved views of one buffer are told from
//! overlapping ones.

use std::collections::HashSet;

/// The bytes of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Footprint {
    pub(super) start: u64,
    /// Byte stride and extent of every dimension, and (1, bytes) of an element; no extent is 0.
    pub(super) dimensions: Vec<(u64, u64)>,
    pub(super) written: bool,
}

impl Footprint {
    /// Behind the last byte; positions lie in an address space of 64 bits.
    fn end(&self) -> u64 {
        self.start + self.dimensions.iter().map(|&(stride, extent)| stride * (extent - 1)).sum::<u64>() + 1
    }
}

/// Two footprints that share a byte, at least one of them written; the one that begins first comes first.
pub(super) fn first_shared(footprints: &[Footprint]) -> Option<(usize, usize)> {
    let mut order: Vec<usize> = (0..footprints.len()).collect();
    order.sort_by_key(|&index| footprints[index].start);
    // Those that may reach beyond the start of the next.
    let mut open: Vec<usize> = Vec::new();
    for next in order {
        let footprint = &footprints[next];
        open.retain(|&before| footprints[before].end() > footprint.start);
        let clash = open.iter().find(|&&before| {
            (footprints[before].written || footprint.written) && share(&footprints[before], footprint)
        });
        if let Some(&before) = clash {
            return Some((before, next));
        }
        open.push(next);
    }
    None
}

/// Whether some byte is in both: whether `a.start + sum of steps in a == b.start + sum of steps in b` has a solution.
fn share(a: &Footprint, b: &Footprint) -> bool {
    let reach = |footprint: &Footprint| u128::from(footprint.end() - 1 - footprint.start);
    // Steps of b counted down from its end are positive like those of a.
    let target = u128::from(b.start) + reach(b);
    let Some(target) = target.checked_sub(u128::from(a.start)) else { return false };
    let mut steps: Vec<(u128, u128)> = Vec::new();
    for &(stride, extent) in a.dimensions.iter().chain(&b.dimensions).filter(|&&(stride, _)| stride > 0) {
        let (stride, extent) = (u128::from(stride), u128::from(extent));
        // Two loops of one stride reach what one longer loop reaches.
        match steps.iter_mut().find(|(known, _)| *known == stride) {
            Some((_, rounds)) => *rounds += extent - 1,
            None => steps.push((stride, extent)),
        }
    }
    steps.sort_unstable_by(|a, b| b.cmp(a));
    Sum::new(&steps).reaches(0, target)
}

/// Which numbers are sums of `round x step` with `round < rounds` for each of a list of steps, longest first.
struct Sum<'a> {
    steps: &'a [(u128, u128)],
    /// Largest sum of the steps from this one on, and their greatest common divisor.
    rest: Vec<(u128, u128)>,
    /// What has been found out of reach; keeps odd combinations of strides from being tried again and again.
    out_of_reach: HashSet<(usize, u128)>,
}

impl<'a> Sum<'a> {
    fn new(steps: &'a [(u128, u128)]) -> Self {
        let mut rest = vec![(0, 0); steps.len() + 1];
        for (index, &(step, rounds)) in steps.iter().enumerate().rev() {
            let (largest, divisor) = rest[index + 1];
            rest[index] = (largest + step * (rounds - 1), greatest_common_divisor(step, divisor));
        }
        Self { steps, rest, out_of_reach: HashSet::new() }
    }

    /// Whether `target` is a sum of steps `first..`.
    fn reaches(&mut self, first: usize, target: u128) -> bool {
        if target == 0 {
            return true;
        }
        let (largest, divisor) = self.rest[first];
        if target > largest || !target.is_multiple_of(divisor) || self.out_of_reach.contains(&(first, target)) {
            return false;
        }
        let (step, rounds) = self.steps[first];
        let fewest = target.saturating_sub(self.rest[first + 1].0).div_ceil(step);
        let most = (target / step).min(rounds - 1);
        let found = (fewest..=most).any(|round| self.reaches(first + 1, target - round * step));
        if !found {
            self.out_of_reach.insert((first, target));
        }
        found
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(footprint: &Footprint) -> HashSet<u64> {
        footprint.dimensions.iter().fold(HashSet::from([footprint.start]), |starts, &(stride, extent)| {
            starts.iter().flat_map(|&start| (0..extent).map(move |round| start + round * stride)).collect()
        })
    }

    fn footprint(start: u64, dimensions: &[(u64, u64)]) -> Footprint {
        Footprint { start, dimensions: dimensions.to_vec(), written: true }
    }

    #[test]
    fn exact_for_all_small_views() {
        let strides = [0, 1, 2, 3, 5, 7, 12];
        let mut views = Vec::new();
        for outer in strides {
            for inner in strides {
                for extents in [(1, 3), (3, 2), (4, 4)] {
                    views.push(footprint(10, &[(outer, extents.0), (inner, extents.1), (1, 2)]));
                }
            }
        }
        let (mut shared, mut apart) = (0, 0);
        for first in &views {
            for second in views.iter().step_by(5) {
                for start in [0, 9, 11, 23, 40, 61] {
                    let second = Footprint { start, ..second.clone() };
                    let expected = !bytes(first).is_disjoint(&bytes(&second));
                    assert_eq!(share(first, &second), expected, "{first:?} {second:?}");
                    assert_eq!(first_shared(&[first.clone(), second]).is_some(), expected);
                    *(if expected { &mut shared } else { &mut apart }) += 1;
                }
            }
        }
        assert!(shared > 1000 && apart > 1000, "{shared} {apart}");
    }

    #[test]
    fn all_pairs_that_reach_each_other_are_looked_at() {
        // Columns 0 and 1 of rows of 100 bytes, and two short tensors in the gap behind them, the second in the first.
        let columns = [footprint(0, &[(100, 10), (1, 8)]), footprint(8, &[(100, 10), (1, 8)])];
        let short = [footprint(40, &[(1, 20)]), footprint(50, &[(1, 20)])];
        let all: Vec<Footprint> = columns.iter().chain(&short).cloned().collect();
        assert_eq!(first_shared(&all), Some((2, 3)));
        assert_eq!(first_shared(&all[..3]), None);
        let mut read = all.clone();
        read.iter_mut().for_each(|footprint| footprint.written = false);
        assert_eq!(first_shared(&read), None);
        read[2].written = true;
        assert_eq!(first_shared(&read), Some((2, 3)));
    }

    #[test]
    fn large_interleaved_views_are_quick() {
        // Eight dimensions, interleaved element by element, and shifted onto each other by one byte.
        let dimensions: Vec<(u64, u64)> = (0..8).map(|dim| (16 << (4 * dim), 15)).chain([(1, 8)]).collect();
        let first = footprint(1 << 40, &dimensions);
        assert!(!share(&first, &footprint((1 << 40) + 8, &dimensions)));
        assert!(share(&first, &footprint((1 << 40) + 7, &dimensions)));
        assert!(share(&first, &footprint((1 << 40) + (16 << 28) * 14, &dimensions)));
        assert!(!share(&first, &footprint((1 << 40) + (16 << 28) * 14 + 8, &dimensions)));
    }
}
