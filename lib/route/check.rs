//! Coverage proof. In: plan and flows. Out: counts, or the first fault. Guarantee: by interval arithmetic, without
//! moving data: every destination byte with a source is written exactly once; those without one are counted.

use super::{Flow, Piece};
use crate::base::Rank;
use crate::plan::{CellId, Plan};
use std::collections::BTreeMap;
use thiserror::Error;

/// A routed plan that does not deliver what its plan wants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CheckError {
    /// Elements that no flow delivers.
    #[error("rank {rank} never receives elements {from}..{to} of cell {cell} of tensor {tensor:?}")]
    Missing {
        /// Destination rank.
        rank: Rank,
        /// Tensor.
        tensor: String,
        /// Cell index.
        cell: u32,
        /// First element.
        from: u64,
        /// One past the last.
        to: u64,
    },
    /// Elements that are delivered twice.
    #[error("rank {rank} receives elements from {from} of cell {cell} of tensor {tensor:?} twice")]
    Twice {
        /// Destination rank.
        rank: Rank,
        /// Tensor.
        tensor: String,
        /// Cell index.
        cell: u32,
        /// First element.
        from: u64,
    },
    /// A flow whose root does not hold what it sends, or which delivers to a rank that does not want it.
    #[error("a flow takes cell {cell} of tensor {tensor:?} {what} rank {rank}, which does not {verb} it")]
    Stranger {
        /// `from` or `to`.
        what: &'static str,
        /// `hold` or `want`.
        verb: &'static str,
        /// The rank.
        rank: Rank,
        /// Tensor.
        tensor: String,
        /// Cell index.
        cell: u32,
    },
}

/// What a proof found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Destination bytes that are written, over all ranks.
    pub written: u64,
    /// Destination bytes that no source holds.
    pub without_source: u64,
}

/// Proves that `flows` deliver `plan`.
pub fn check(plan: &Plan, flows: &[Flow]) -> Result<Coverage, CheckError> {
    let mut class_of: BTreeMap<CellId, usize> = BTreeMap::new();
    for (number, class) in plan.classes().iter().enumerate() {
        class_of.extend(class.cells.iter().map(|&cell| (cell, number)));
    }
    let mut parts: BTreeMap<(Rank, CellId), Vec<(u64, u64)>> = BTreeMap::new();
    for flow in flows {
        for piece in &flow.pieces {
            let class = &plan.classes()[class_of[&piece.cell]];
            let stranger = |what, verb, rank| {
                let tensor = plan.manifest().tensors()[piece.cell.tensor as usize].name.clone();
                CheckError::Stranger { what, verb, rank, tensor, cell: piece.cell.cell }
            };
            if class.holders.binary_search(&flow.nodes[0].rank).is_err() {
                return Err(stranger("from", "hold", flow.nodes[0].rank));
            }
            for node in flow.nodes.iter().filter(|node| node.wants) {
                if class.wanters.binary_search(&node.rank).is_err() {
                    return Err(stranger("to", "want", node.rank));
                }
                let Piece { cell, start, end } = *piece;
                parts.entry((node.rank, cell)).or_default().push((start, end));
            }
        }
    }
    let mut coverage = Coverage { written: 0, without_source: 0 };
    for class in plan.classes() {
        if class.holders.is_empty() {
            coverage.without_source += class.bytes * class.wanters.len() as u64;
            continue;
        }
        for &rank in &class.wanters {
            for &cell in &class.cells {
                covered_once(plan, rank, cell, parts.remove(&(rank, cell)).unwrap_or_default())?;
            }
            coverage.written += class.bytes;
        }
    }
    Ok(coverage)
}

/// `parts` must tile the elements of the cell.
fn covered_once(plan: &Plan, rank: Rank, cell: CellId, mut parts: Vec<(u64, u64)>) -> Result<(), CheckError> {
    let tensor = || plan.manifest().tensors()[cell.tensor as usize].name.clone();
    let elements = plan.cell(cell).elements();
    parts.sort_unstable();
    let mut reached = 0;
    for (start, end) in parts {
        if start < reached {
            return Err(CheckError::Twice { rank, tensor: tensor(), cell: cell.cell, from: start });
        }
        if start > reached {
            return Err(CheckError::Missing { rank, tensor: tensor(), cell: cell.cell, from: reached, to: start });
        }
        reached = end;
    }
    if reached < elements {
        return Err(CheckError::Missing { rank, tensor: tensor(), cell: cell.cell, from: reached, to: elements });
    }
    Ok(())
}
