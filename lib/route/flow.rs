//! The unit of execution. In: nothing. Out: plain data. Guarantee: node 0 is the root and a parent stands before
//! its children.

use crate::base::Rank;
use crate::plan::{CellClass, CellId, Plan};

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

/// Where the cells of a class begin in its concatenated bytes, for cutting it by bytes.
pub(super) struct Gather<'a> {
    plan: &'a Plan,
    class: &'a CellClass,
    starts: Vec<u64>,
}

impl<'a> Gather<'a> {
    pub(super) fn new(plan: &'a Plan, class: &'a CellClass) -> Self {
        let mut starts = Vec::with_capacity(class.cells.len() + 1);
        let mut sum = 0;
        for &cell in &class.cells {
            starts.push(sum);
            sum += plan.cell(cell).elements() * plan.element_bytes(cell.tensor);
        }
        starts.push(sum);
        Self { plan, class, starts }
    }

    /// The largest element border at or below byte `at`.
    pub(super) fn border(&self, at: u64) -> u64 {
        let index = self.starts.partition_point(|&start| start <= at).saturating_sub(1);
        match self.class.cells.get(index) {
            Some(cell) => {
                let element = self.plan.element_bytes(cell.tensor);
                self.starts[index] + (at - self.starts[index]) / element * element
            }
            None => at,
        }
    }

    /// Pieces of bytes `from..to`, both element borders.
    pub(super) fn pieces(&self, from: u64, to: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut index = self.starts.partition_point(|&start| start <= from).saturating_sub(1);
        while index < self.class.cells.len() && self.starts[index] < to {
            let cell = self.class.cells[index];
            let element = self.plan.element_bytes(cell.tensor);
            let lo = from.max(self.starts[index]) - self.starts[index];
            let hi = to.min(self.starts[index + 1]) - self.starts[index];
            if hi > lo {
                pieces.push(Piece { cell, start: lo / element, end: hi / element });
            }
            index += 1;
        }
        pieces
    }
}
