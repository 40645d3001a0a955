//! The message links of a process. In: links in the order of their numbers. Out: one of them by its number. Guarantee: a
//! number that every rank uses means the same link everywhere.

use crate::transport::MessageLink;

/// The message links of this process.
pub(super) struct Links(pub(super) Vec<Box<dyn MessageLink>>);

impl Links {
    pub(super) fn get(&mut self, number: usize) -> &mut dyn MessageLink {
        &mut *self.0[number]
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
