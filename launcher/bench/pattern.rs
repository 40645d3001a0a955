//! What tensors hold. In: the number of an element, a seed. Out: its value; how many stored elements differ. Guarantee: a
//! value depends on both, so that neither an old value nor a neighbour's passes; the peers' programs use the same.

use crossmesh::layout::Dtype;

/// Byte that destinations are filled with before a run.
pub(super) const POISON: u8 = 0xa5;

/// Element types of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    /// Two bytes.
    Bf16,
    /// Four bytes.
    F32,
}

impl Element {
    pub(super) fn bytes(self) -> u64 {
        self.dtype().bytes()
    }

    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Bf16 => Dtype::BF16,
            Self::F32 => Dtype::F32,
        }
    }
}

fn value(index: u32, seed: u32) -> u32 {
    let mixed = index.wrapping_mul(0x9e37_79b1).wrapping_add(seed);
    mixed ^ mixed >> 15
}

/// Values of a row whose first element is number `first`.
pub(super) fn fill_row(row: &mut [u8], element: Element, first: u32, seed: u32) {
    match element {
        Element::F32 => {
            for (place, index) in row.as_chunks_mut::<4>().0.iter_mut().zip(0u32..) {
                *place = value(first.wrapping_add(index), seed).to_ne_bytes();
            }
        }
        Element::Bf16 => {
            for (place, index) in row.as_chunks_mut::<2>().0.iter_mut().zip(0u32..) {
                *place = (value(first.wrapping_add(index), seed) as u16).to_ne_bytes();
            }
        }
    }
}

/// Elements of a row that are not what [`fill_row`] writes.
pub(super) fn wrong_in_row(row: &[u8], element: Element, first: u32, seed: u32) -> u64 {
    let wrong: u32 = match element {
        Element::F32 => {
            let words = row.as_chunks::<4>().0.iter().zip(0u32..);
            words
                .map(|(&word, index)| u32::from(u32::from_ne_bytes(word) != value(first.wrapping_add(index), seed)))
                .sum()
        }
        Element::Bf16 => {
            let words = row.as_chunks::<2>().0.iter().zip(0u32..);
            words
                .map(|(&word, index)| {
                    u32::from(u16::from_ne_bytes(word) != value(first.wrapping_add(index), seed) as u16)
                })
                .sum()
        }
    };
    u64::from(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_element_is_counted() {
        for element in [Element::F32, Element::Bf16] {
            let size = element.bytes() as usize;
            let mut row = vec![0; 100 * size];
            fill_row(&mut row, element, u32::MAX - 50, 9);
            assert_eq!(wrong_in_row(&row, element, u32::MAX - 50, 9), 0);
            // One bit anywhere, a shifted row, another seed, poison.
            for at in 0..row.len() {
                row[at] ^= 0x10;
                assert_eq!(wrong_in_row(&row, element, u32::MAX - 50, 9), 1, "{element:?} byte {at}");
                row[at] ^= 0x10;
            }
            assert!(wrong_in_row(&row[size..], element, u32::MAX - 50, 9) > 95);
            assert!(wrong_in_row(&row, element, u32::MAX - 50, 10) > 95);
            assert!(wrong_in_row(&vec![POISON; 100 * size], element, 0, 9) > 95);
        }
    }
}
