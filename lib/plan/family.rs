//! What each side holds, by who holds it alike. In: the layouts of one side and how many tensors have each. Out:
//! families: sets of ranks with the bytes that exactly these hold. Guarantee: the same on every rank, since it is about
//! all tensors; computed from one side alone, so its cost follows the shards of the layouts, not pairs of them.

use super::cell::families;
use crate::base::Rank;
use crate::layout::Layout;
use std::collections::HashMap;
use std::sync::Arc;

/// Distinct layouts of one side, in order of first appearance.
#[derive(Default)]
pub(super) struct Layouts {
    numbers: HashMap<Arc<Layout>, u32>,
    by_pointer: HashMap<*const Layout, u32>,
    list: Vec<(Arc<Layout>, u64)>,
}

impl Layouts {
    /// The number of a layout.
    pub(super) fn find(&mut self, layout: &Arc<Layout>) -> u32 {
        if let Some(&number) = self.by_pointer.get(&Arc::as_ptr(layout)) {
            return number;
        }
        let next = self.list.len() as u32;
        let number = *self.numbers.entry(layout.clone()).or_insert(next);
        if number == next {
            self.list.push((layout.clone(), 0));
        }
        self.by_pointer.insert(Arc::as_ptr(layout), number);
        number
    }

    /// One more tensor has it.
    pub(super) fn count(&mut self, layout: u32) {
        self.list[layout as usize].1 += 1;
    }

    /// Tensors that have it so far.
    pub(super) fn counted(&self, layout: u32) -> u64 {
        self.list[layout as usize].1
    }

    /// Bytes of every set of ranks, over all tensors.
    pub(super) fn families(&self) -> Families {
        let mut found = Families::default();
        for (number, (layout, tensors)) in self.list.iter().enumerate() {
            let element = layout.dtype().bytes();
            for (ranks, elements) in families(layout) {
                let ranks: Arc<[Rank]> = ranks.into();
                let next = found.all.len();
                let family = *found.numbers.entry(ranks.clone()).or_insert(next);
                if family == next {
                    found.all.push((ranks, 0));
                }
                let bytes = elements * element;
                let before = found.all[family].1;
                let nothing = Start { before, tensor: 0, elements: element * tensors };
                found.starts.entry((family, number as u32)).or_insert(nothing).tensor += bytes;
                found.all[family].1 += bytes * tensors;
            }
        }
        found
    }
}

/// Where a layout's tensors stand in a family.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// Bytes of layouts before it.
    before: u64,
    /// Bytes of one tensor.
    tensor: u64,
    /// Bytes of one element of each of its tensors: a class that begins at an element does so in each of them.
    elements: u64,
}

/// Sets of ranks with what they hold alike.
#[derive(Debug, Clone, Default)]
pub(super) struct Families {
    all: Vec<(Arc<[Rank]>, u64)>,
    numbers: HashMap<Arc<[Rank]>, usize>,
    starts: HashMap<(usize, u32), Start>,
}

impl Families {
    /// All of them, in order of first appearance.
    pub(super) fn all(&self) -> &[(Arc<[Rank]>, u64)] {
        &self.all
    }

    /// How far into the family of `ranks` something stands that has `elements` before it in a tensor of `layout`, which
    /// `tensors` others of that layout precede; in 2^-32 of the family.
    pub(super) fn phase(&self, ranks: &[Rank], layout: u32, tensors: u64, elements: u64) -> u32 {
        let Some(&family) = self.numbers.get(ranks) else { return 0 };
        let Some(start) = self.starts.get(&(family, layout)) else { return 0 };
        let bytes = u128::from(start.before)
            + u128::from(start.tensor) * u128::from(tensors)
            + u128::from(elements) * u128::from(start.elements);
        let all = u128::from(self.all[family].1.max(1));
        // Rounded up, so that a third of the way is not taken for less than a third.
        u32::try_from(((bytes % all) << 32).div_ceil(all)).unwrap_or(u32::MAX)
    }
}
