//! The unit of execution. In: nothing. Out: plain data. Guarantee: node 0 is the root and a parent stands before
//! its children.

use super::path::{Path, Place};
use crate::base::Rank;
use crate::plan::{CellClass, CellId, Plan};
use std::borrow::Cow;

/// Elements `start..end` of a cell, counted row-major inside its box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Cell.
    pub cell: CellId,
    /// First element.
    pub start: u64,
    /// One past the last element.
    pub end: u64,
}

/// A rank on the way of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Rank.
    pub rank: Rank,
    /// Index of the node it gets the bytes from; `None` for the root, whose source tensors hold them.
    pub parent: Option<u32>,
    /// Whether the rank's destination tensors want the bytes. A node that does not want them passes them on (or,
    /// in the gather-broadcast route, receives them in vain).
    pub wants: bool,
}

/// A gather list and the tree of ranks that it travels along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Tree in topological order.
    pub nodes: Vec<Node>,
    /// What travels, in order.
    pub pieces: Vec<Piece>,
    /// Its bytes.
    pub bytes: u64,
}

impl Flow {
    /// Number of edges from the root to a node.
    pub fn depth(&self, node: usize) -> usize {
        let mut depth = 0;
        let mut at = node;
        while let Some(parent) = self.nodes[at].parent {
            depth += 1;
            at = parent as usize;
        }
        depth
    }

    /// Children of a node.
    pub fn children(&self, node: usize) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter(move |(_, child)| child.parent == Some(node as u32))
    }
}

/// A flow as one of its ranks sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFlow {
    /// Its way.
    pub path: Path,
    /// Where the rank stands on it.
    pub place: Place,
    /// What travels, in order.
    pub pieces: Vec<Piece>,
    /// Its bytes.
    pub bytes: u64,
}

/// Pieces in order and the byte at which each begins, for cutting their concatenation by bytes: a class into flows, a
/// flow into chunks.
pub(crate) struct Gather<'a> {
    plan: &'a Plan,
    pieces: Cow<'a, [Piece]>,
    starts: Vec<u64>,
}

impl<'a> Gather<'a> {
    /// All cells of a class, whole.
    pub(super) fn of_class(plan: &'a Plan, class: &CellClass) -> Self {
        let whole = |&cell: &CellId| Piece { cell, start: 0, end: plan.cell(cell).elements() };
        Self::new(plan, class.cells.iter().map(whole).collect::<Vec<_>>().into())
    }

    /// Pieces as they stand.
    pub(crate) fn of_pieces(plan: &'a Plan, pieces: &'a [Piece]) -> Self {
        Self::new(plan, pieces.into())
    }

    fn new(plan: &'a Plan, pieces: Cow<'a, [Piece]>) -> Self {
        let mut starts = Vec::with_capacity(pieces.len() + 1);
        let mut sum = 0;
        for piece in pieces.iter() {
            starts.push(sum);
            sum += (piece.end - piece.start) * plan.element_bytes(piece.cell.tensor);
        }
        starts.push(sum);
        Self { plan, pieces, starts }
    }

    /// The largest element border at or below byte `at`; the end for everything beyond it.
    pub(crate) fn border(&self, at: u64) -> u64 {
        let index = self.starts.partition_point(|&start| start <= at) - 1;
        match self.pieces.get(index) {
            Some(piece) => {
                let element = self.plan.element_bytes(piece.cell.tensor);
                self.starts[index] + (at - self.starts[index]) / element * element
            }
            None => self.starts[index],
        }
    }

    /// Pieces of bytes `from..to`, both element borders.
    pub(crate) fn pieces(&self, from: u64, to: u64) -> impl Iterator<Item = Piece> + '_ {
        let first = self.starts.partition_point(|&start| start <= from) - 1;
        let starts = self.starts[first..].windows(2);
        starts
            .zip(&self.pieces[first.min(self.pieces.len())..])
            .take_while(move |(starts, _)| starts[0] < to)
            .filter_map(move |(starts, piece)| {
                let element = self.plan.element_bytes(piece.cell.tensor);
                let (lo, hi) = (from.max(starts[0]) - starts[0], to.min(starts[1]) - starts[0]);
                let (start, end) = (piece.start + lo / element, piece.start + hi / element);
                (hi > lo).then_some(Piece { cell: piece.cell, start, end })
            })
    }
}
