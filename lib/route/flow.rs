//! The unit of execution. In: nothing. Out: plain data. Guarantee: node 0 is the root and a parent stands before
//! its children.

use super::path::{Path, Place};
use crate::base::Rank;
use crate::layout::Dtype;
use crate::plan::{CellClass, CellId, Plan, TensorSpec};
use std::borrow::Cow;
use std::sync::Arc;

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

/// The sum of the terms of one source domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainSum {
    /// The rank that adds them, one of them.
    pub reducer: Rank,
    /// Ranks whose terms are added, in this order.
    pub terms: Vec<Rank>,
}

/// How the root comes by what it sends, where source ranks hold terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums {
    /// Sums in the order in which the root adds them: its own domain's first, then one from each other domain.
    pub domains: Arc<[DomainSum]>,
    /// Bytes of one rank's terms.
    pub term_bytes: u64,
    /// Bytes of a sum.
    pub sum_bytes: u64,
}

/// A gather list and the tree of ranks that it travels along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Tree in topological order.
    pub nodes: Vec<Node>,
    /// What travels, in order.
    pub pieces: Vec<Piece>,
    /// Its bytes on the tree.
    pub bytes: u64,
    /// Where the root adds up what it sends; `None` where its source tensors hold it.
    pub sums: Option<Sums>,
}

impl Sums {
    /// The sums of a way for what travels on it; `None` where the root's tensors hold it.
    pub(super) fn of(plan: &Plan, pieces: &[Piece], path: &Path) -> Option<Self> {
        let bytes = |dtype: fn(&TensorSpec) -> Dtype| {
            let of = |piece: &Piece| {
                let tensor = &plan.manifest().tensors()[piece.cell.tensor as usize];
                (piece.end - piece.start) * dtype(tensor).bytes()
            };
            pieces.iter().map(of).sum()
        };
        path.sums().map(|domains| Self {
            domains: domains.clone(),
            term_bytes: bytes(|tensor| tensor.source.dtype()),
            sum_bytes: bytes(TensorSpec::held_dtype),
        })
    }

    /// Edges from one rank to another before the root can send, as (from, to, bytes).
    pub fn edges(&self) -> impl Iterator<Item = (Rank, Rank, u64)> + '_ {
        let root = self.domains[0].reducer;
        let terms = self.domains.iter().flat_map(move |domain| {
            let others = domain.terms.iter().filter(|&&rank| rank != domain.reducer);
            others.map(move |&rank| (rank, domain.reducer, self.term_bytes))
        });
        let sums = self.domains[1..].iter().map(move |domain| {
            let bytes = if domain.is_one_term() { self.term_bytes } else { self.sum_bytes };
            (domain.reducer, root, bytes)
        });
        terms.chain(sums)
    }
}

impl DomainSum {
    /// Whether there is nothing to add: the one term goes its way as it is.
    pub(crate) fn is_one_term(&self) -> bool {
        self.terms.len() == 1
    }
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
    /// Its bytes on the tree.
    pub bytes: u64,
    /// Where the root adds up what it sends; `None` where its source tensors hold it.
    pub sums: Option<Sums>,
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

    /// Where part number `part` of `parts` begins, as equal as elements allow.
    pub(crate) fn part(&self, part: u64, parts: u64) -> u64 {
        let bytes = self.starts.last().copied().unwrap_or(0);
        self.border((u128::from(bytes) * u128::from(part) / u128::from(parts.max(1))) as u64)
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
