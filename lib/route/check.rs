//! Coverage proof. In: plan and flows. Out: counts, or the first fault. Guarantee: by interval arithmetic, without
//! moving data: every flow is a tree that starts at a holder, or at a rank that adds every term once; every destination
//! byte with a source is written exactly once, those without one and those of padding are counted.

use super::storage::Storage;
use super::{Flow, Node, Piece};
use crate::base::Rank;
use crate::plan::{CellClass, CellId, Plan};
use thiserror::Error;

/// A routed plan that does not deliver what its plan wants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
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
    /// Terms that are not added exactly once.
    #[error(
        "flow {flow} adds term {term} of cell {cell} of tensor {tensor:?} {times} times; every term must be added once"
    )]
    Terms {
        /// Index of the flow.
        flow: usize,
        /// Number of the term, in ascending mesh coordinate.
        term: usize,
        /// How often it is added.
        times: usize,
        /// Tensor.
        tensor: String,
        /// Cell index.
        cell: u32,
    },
    /// A rank whose storage is not what the cells fill.
    #[error("the cells of tensor {tensor:?} fill {filled} of {stored} elements that rank {rank} stores")]
    Places {
        /// Destination rank.
        rank: Rank,
        /// Tensor.
        tensor: String,
        /// Elements of all cells, in all their places.
        filled: u64,
        /// Elements with an index.
        stored: u64,
    },
    /// A flow that is no tree or carries what does not exist.
    #[error("flow {flow} {fault}")]
    Malformed {
        /// Index of the flow.
        flow: usize,
        /// What is wrong with it.
        fault: &'static str,
    },
}

/// What a proof found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coverage {
    /// Destination bytes that are written, over all ranks.
    pub written: u64,
    /// Destination bytes that no source holds.
    pub without_source: u64,
    /// Destination bytes that no index belongs to: padding, which transfers write only when its layout states a value.
    pub padding: u64,
}

/// A delivery: elements `start..end` of a cell to a rank. Ordered by rank, then cell, then start.
type Delivery = (Rank, CellId, u64, u64);

/// Proves that `flows` deliver `plan`.
pub fn check(plan: &Plan, flows: &[Flow]) -> Result<Coverage, CheckError> {
    let class_of = classes_of_cells(plan);
    let mut deliveries: Vec<Vec<Delivery>> = vec![Vec::new(); plan.classes().len()];
    for (number, flow) in flows.iter().enumerate() {
        let malformed = |fault| CheckError::Malformed { flow: number, fault };
        check_tree(&flow.nodes).map_err(malformed)?;
        check_sums(flow).map_err(malformed)?;
        let mut bytes = 0u128;
        for piece in &flow.pieces {
            let cells = class_of.get(piece.cell.tensor as usize);
            let class = cells.and_then(|cells| cells.get(piece.cell.cell as usize));
            let &class = class.ok_or_else(|| malformed("carries a cell that the plan does not have"))?;
            if piece.start >= piece.end || piece.end > plan.cell(piece.cell).elements() {
                return Err(malformed("carries elements that its cell does not have"));
            }
            bytes += u128::from(piece.end - piece.start) * u128::from(plan.element_bytes(piece.cell.tensor));
            check_terms(plan, &plan.classes()[class], number, flow, *piece)?;
            deliver(plan, &plan.classes()[class], flow, *piece, &mut deliveries[class])?;
        }
        if bytes != u128::from(flow.bytes) {
            return Err(malformed("has pieces that do not sum to its bytes"));
        }
    }
    let mut storage = Storage::new(plan);
    let mut coverage = Coverage { written: 0, without_source: 0, padding: storage.padding() };
    for (class, deliveries) in plan.classes().iter().zip(&mut deliveries) {
        let bytes = storage.fill(class);
        if class.holders.is_empty() {
            coverage.without_source += bytes;
            continue;
        }
        deliveries.sort_unstable();
        check_class(plan, class, deliveries)?;
        coverage.written += bytes;
    }
    storage.check()?;
    Ok(coverage)
}

/// Per tensor and cell the index of its class.
fn classes_of_cells(plan: &Plan) -> Vec<Vec<usize>> {
    let tensors = 0..plan.manifest().tensors().len();
    let mut class_of: Vec<Vec<usize>> = tensors.map(|tensor| vec![0; plan.tensor_cells(tensor).cells.len()]).collect();
    for (number, class) in plan.classes().iter().enumerate() {
        for cell in &class.cells {
            class_of[cell.tensor as usize][cell.cell as usize] = number;
        }
    }
    class_of
}

/// A root, then nodes whose parents stand before them, no rank twice.
fn check_tree(nodes: &[Node]) -> Result<(), &'static str> {
    match nodes.first() {
        None => return Err("has no root"),
        Some(root) if root.parent.is_some() => return Err("has a root with a parent"),
        Some(_) => {}
    }
    for (index, node) in nodes.iter().enumerate().skip(1) {
        if node.parent.is_none_or(|parent| parent as usize >= index) {
            return Err("has a node whose parent does not stand before it");
        }
    }
    let mut ranks: Vec<Rank> = nodes.iter().map(|node| node.rank).collect();
    ranks.sort_unstable();
    if ranks.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("passes through a rank twice");
    }
    Ok(())
}

/// Sums that end at the root, each added up by a rank that holds one of its terms.
fn check_sums(flow: &Flow) -> Result<(), &'static str> {
    let Some(sums) = &flow.sums else { return Ok(()) };
    if sums.domains.first().is_none_or(|first| first.reducer != flow.nodes[0].rank) {
        return Err("has a first sum that is not its root's");
    }
    if sums.domains.iter().any(|domain| !domain.terms.contains(&domain.reducer)) {
        return Err("has a sum that is added up by a rank without a term of it");
    }
    Ok(())
}

/// Terms of a class are added exactly once each, whichever replicas they come from; whole elements are not added.
fn check_terms(plan: &Plan, class: &CellClass, number: usize, flow: &Flow, piece: Piece) -> Result<(), CheckError> {
    let malformed = |fault| CheckError::Malformed { flow: number, fault };
    let Some(sums) = &flow.sums else {
        return if class.terms.is_empty() { Ok(()) } else { Err(malformed("sends terms as if they were whole")) };
    };
    let Some(first) = class.terms.first() else { return Err(malformed("adds up what its holders store whole")) };
    let mut times = vec![0; first.len()];
    for rank in sums.domains.iter().flat_map(|domain| &domain.terms) {
        let term = class.terms.iter().find_map(|terms| terms.iter().position(|holder| holder == rank));
        times[term.ok_or_else(|| malformed("adds up what a rank without a term holds"))?] += 1;
    }
    match times.iter().position(|&times| times != 1) {
        Some(term) => {
            let (tensor, cell) = (plan.manifest().tensors()[piece.cell.tensor as usize].name.clone(), piece.cell.cell);
            Err(CheckError::Terms { flow: number, term, times: times[term], tensor, cell })
        }
        None => Ok(()),
    }
}

/// Notes who gets a piece; the root must hold it and every receiver that keeps it must want it.
fn deliver(
    plan: &Plan,
    class: &CellClass,
    flow: &Flow,
    piece: Piece,
    deliveries: &mut Vec<Delivery>,
) -> Result<(), CheckError> {
    let Piece { cell, start, end } = piece;
    let stranger = |what, verb, rank| CheckError::Stranger {
        what,
        verb,
        rank,
        tensor: plan.manifest().tensors()[cell.tensor as usize].name.clone(),
        cell: cell.cell,
    };
    let root = flow.nodes[0].rank;
    if class.holders.binary_search(&root).is_err() {
        return Err(stranger("from", "hold", root));
    }
    for node in flow.nodes.iter().filter(|node| node.wants) {
        if class.wanters.binary_search(&node.rank).is_err() {
            return Err(stranger("to", "want", node.rank));
        }
        deliveries.push((node.rank, cell, start, end));
    }
    Ok(())
}

/// The sorted deliveries of a class must tile every cell for every wanter.
fn check_class(plan: &Plan, class: &CellClass, deliveries: &[Delivery]) -> Result<(), CheckError> {
    let mut next = deliveries.iter().peekable();
    for &rank in &class.wanters {
        for &cell in &class.cells {
            let tensor = || plan.manifest().tensors()[cell.tensor as usize].name.clone();
            let missing = |from, to| CheckError::Missing { rank, tensor: tensor(), cell: cell.cell, from, to };
            let mut reached = 0;
            while let Some(&(_, _, start, end)) = next.next_if(|delivery| (delivery.0, delivery.1) == (rank, cell)) {
                if start < reached {
                    return Err(CheckError::Twice { rank, tensor: tensor(), cell: cell.cell, from: start });
                }
                if start > reached {
                    return Err(missing(reached, start));
                }
                reached = end;
            }
            let elements = plan.cell(cell).elements();
            if reached < elements {
                return Err(missing(reached, elements));
            }
        }
    }
    Ok(())
}
