//! Tables of what this rank copies into others' tensors. In: program, exports. Out: [`Feeds`]. Guarantee: what this
//! rank copies alone is sorted by where it lies in its source, so that one sweep reads every line once.

use super::super::ExecuteError;
use super::super::Side;
use super::super::bind::{Onto, Place, append, own_end, peer_ends};
use super::super::board::NO_WORD;
use super::super::claim;
use super::super::execution::{Feeds, Receiver, Sender};
use super::{Attach, STREAM_FROM};
use crate::base::Rank;
use crate::execute::exchange::Invitation;
use crate::memory::copy::{CopyTable, Scatter, Store};
use crate::route::Piece;
use std::collections::BTreeMap;

/// What this rank copies alone: boxes, and the spans that each lies between.
#[derive(Default)]
struct Alone {
    boxes: CopyTable,
    between: Vec<(u32, u32)>,
}

impl Alone {
    /// Takes what was collected between two spans.
    fn take(&mut self, batch: &mut CopyTable, spans: Option<(u32, u32)>) {
        let Some(spans) = spans else { return };
        self.boxes.append_joined(batch);
        self.between.resize(self.boxes.len(), spans);
        batch.clear();
    }
}

impl Attach<'_> {
    /// Everything that this rank feeds or is fed.
    pub(super) fn feeds(&mut self, theirs: &BTreeMap<Rank, Invitation>) -> Result<Feeds, ExecuteError> {
        let program = &self.prepared.program;
        let bytes: u64 = program.feeds.values().flatten().map(|&item| program.items[item as usize].bytes).sum();
        let mut feeds = Feeds {
            helped: program.helped,
            store: if bytes >= STREAM_FROM { Store::Streaming } else { Store::Cached },
            ..Feeds::default()
        };
        let mut alone = Alone::default();
        for (&rank, items) in &program.feeds {
            if items.len() as u64 > u64::from(claim::MOST) {
                return Err(ExecuteError::TooManyChunks { arrivals: items.len() as u64, most: u64::from(claim::MOST) });
            }
            let copies = if program.helped {
                items.iter().map(|&item| self.feed_copies(rank, item)).collect::<Result<_, _>>()?
            } else {
                self.feed_alone(rank, items, &mut alone)?;
                Vec::new()
            };
            let (peer, word) = (self.theirs.peer_numbers[&rank], self.prepared.invitations[&rank].feed_word);
            feeds.receivers.push(Receiver { peer, word, chunks: items.len() as u32, copies });
        }
        feeds.scatter = Scatter::new(&self.spans, &alone.boxes, &alone.between)?;
        for (&rank, items) in &program.fed {
            let invitation = &theirs[&rank];
            debug_assert_ne!(invitation.feed_word, NO_WORD);
            feeds.senders.push(Sender {
                peer: self.theirs.peer_numbers[&rank],
                word: invitation.feed_word,
                items: items.clone(),
                helped: self.theirs.helped.contains(&rank),
                finished: false,
            });
        }
        Ok(feeds)
    }

    /// Copies of one chunk for one receiver.
    fn feed_copies(&mut self, to: Rank, item: u32) -> Result<std::ops::Range<u32>, ExecuteError> {
        let (plan, local, prepared) = (self.plan, self.local, self.prepared);
        let first = self.copies.next();
        for piece in prepared.program.item_pieces(item) {
            let (source_place, destination_place) = self.feed_places(to, piece)?;
            let source = own_end(plan, local, Side::Source, piece);
            let destinations = self.theirs.fed_ends(to, piece);
            let (Some(source), Some(destinations)) = (source, destinations) else {
                return Err(self.missing(to, piece.cell.tensor));
            };
            let source = (source, Place::Span(source_place));
            for (destination, onto) in
                destinations.into_iter().zip(Onto::places(plan.counts(piece.cell, |lowest| lowest == to)))
            {
                self.copies.add(plan, piece, &source, &(destination, Place::Span(destination_place)), onto)?;
            }
        }
        Ok(self.copies.finish(first))
    }

    /// Boxes of all chunks for one receiver.
    fn feed_alone(&mut self, to: Rank, items: &[u32], alone: &mut Alone) -> Result<(), ExecuteError> {
        let (plan, local, prepared) = (self.plan, self.local, self.prepared);
        let mut batch = CopyTable::new();
        let mut spans = None;
        for piece in whole_pieces(items.iter().flat_map(|&item| prepared.program.item_pieces(item))) {
            let places = self.feed_places(to, &piece)?;
            if spans != Some(places) {
                alone.take(&mut batch, spans.replace(places));
            }
            let source = own_end(plan, local, Side::Source, &piece);
            let destinations = self.theirs.fed_ends(to, &piece);
            let (Some(source), Some(destinations)) = (source, destinations) else {
                return Err(self.missing(to, piece.cell.tensor));
            };
            for (destination, onto) in
                destinations.into_iter().zip(Onto::places(plan.counts(piece.cell, |lowest| lowest == to)))
            {
                append(&mut batch, plan, &piece, &source, &destination, onto)?;
            }
        }
        alone.take(&mut batch, spans);
        Ok(())
    }

    /// Spans of a piece in this rank's source and in a receiver's destination.
    fn feed_places(&mut self, to: Rank, piece: &Piece) -> Result<(u32, u32), ExecuteError> {
        let tensor = piece.cell.tensor;
        let source = self.own_place(Side::Source, tensor);
        let destination = self.theirs.fed_place(to, tensor);
        match (source, destination) {
            (Some(Place::Span(source)), Some(destination)) => Ok((source, destination)),
            _ => Err(self.missing(to, tensor)),
        }
    }
}

/// Joins pieces that chunks cut: whole boxes are copied in rows that all receivers share.
fn whole_pieces<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Vec<Piece> {
    let mut whole: Vec<Piece> = Vec::new();
    for piece in pieces {
        match whole.last_mut() {
            Some(last) if last.cell == piece.cell && last.end == piece.start => last.end = piece.end,
            _ => whole.push(*piece),
        }
    }
    whole
}

impl super::Theirs<'_> {
    /// Span of a receiver's tensor.
    fn fed_place(&self, to: Rank, tensor: u32) -> Option<u32> {
        match self.fed_destination.get(&(to, tensor))?.memory {
            super::ExportedMemory::Shared { segment, .. } => self.segment_spans.get(&segment).copied(),
            _ => None,
        }
    }

    /// A piece in a receiver's tensor, in every place.
    fn fed_ends(&self, to: Rank, piece: &Piece) -> Option<Vec<super::End<'_>>> {
        let export = self.fed_destination.get(&(to, piece.cell.tensor))?;
        let super::ExportedMemory::Shared { offset, .. } = export.memory else { return None };
        let maps = self.maps[&to].destination.get(&piece.cell.tensor)?;
        peer_ends(self.plan, Side::Destination, maps, export, offset, piece)
    }
}
