//! Collecting copies. In: pieces with both ends. Out: copy operations over a table of boxes. Guarantee: pieces between the
//! same places that continue each other share a box, so that many small tensors cost what their bytes cost.

use super::super::ExecuteError;
use super::super::bind::{CopyOp, End, Onto, Place, append};
use crate::memory::copy::{CopyTable, Placed as BoxPlaced};
use crate::plan::Plan;
use crate::route::Piece;
use std::ops::Range;

/// One end of a piece: where in which place.
pub(super) type Placed<'a> = (End<'a>, Place);

/// Copies so far.
#[derive(Default)]
pub(super) struct Copies {
    pub(super) table: CopyTable,
    pub(super) list: Vec<CopyOp>,
    batch: CopyTable,
    places: Option<(Place, Place)>,
}

impl Copies {
    /// Number of the next operation.
    pub(super) fn next(&self) -> u32 {
        self.list.len() as u32
    }

    /// Adds a piece.
    pub(super) fn add(
        &mut self,
        plan: &Plan,
        piece: &Piece,
        source: &Placed<'_>,
        destination: &Placed<'_>,
        onto: Onto,
    ) -> Result<(), ExecuteError> {
        self.between((source.1, destination.1));
        append(&mut self.batch, plan, piece, &source.0, &destination.0, onto)
    }

    /// Adds a box of `extents` elements of `element` bytes.
    pub(super) fn add_box(
        &mut self,
        extents: &[u64],
        element: u64,
        source: (BoxPlaced<'_>, Place),
        destination: (BoxPlaced<'_>, Place),
    ) -> Result<(), ExecuteError> {
        self.between((source.1, destination.1));
        Ok(self.batch.push(extents, element, source.0, destination.0)?)
    }

    /// What is added next lies between these places.
    fn between(&mut self, places: (Place, Place)) {
        if self.places != Some(places) {
            self.flush();
            self.places = Some(places);
        }
    }

    /// Operations from number `first` on, with everything that was added.
    pub(super) fn finish(&mut self, first: u32) -> Range<u32> {
        self.flush();
        first..self.next()
    }

    fn flush(&mut self) {
        let Some((source, destination)) = self.places.take() else { return };
        let first = self.table.len() as u32;
        self.table.append_joined(&self.batch);
        self.batch.clear();
        self.list.push(CopyOp { source, destination, boxes: first..self.table.len() as u32 });
    }
}
