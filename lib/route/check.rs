//! Coverage proof. In: plan and flows. Out: counts, or the first fault. Guarantee: by interval arithmetic, without
//! moving data: every flow is a tree that starts at a holder, or at a rank that adds every term once; every destination
//! byte with a source is written exactly once, those without one and those of padding are counted. The cells of a class
//! stand in one line, in bytes; what a flow carries are few stretches of it, so the cost follows cells and flows, not
//! their product with ranks.

use super::storage::Storage;
use super::{Flow, LocalFlow, Node, Piece, Sums};
use crate::base::Rank;
use crate::plan::{CellClass, CellId, Plan};
use serde::{Deserialize, Serialize};
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

/// What a proof found; of one rank, its part, which adds up to that of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Coverage {
    /// Destination bytes that are written, over all ranks.
    pub written: u64,
    /// Destination bytes that no source holds.
    pub without_source: u64,
    /// Source bytes that no destination wants, each counted once.
    pub untaken: u64,
    /// Destination bytes that no index belongs to: padding, which transfers write only when its layout states a value.
    pub padding: u64,
}

impl std::ops::AddAssign for Coverage {
    fn add_assign(&mut self, other: Self) {
        self.written += other.written;
        self.without_source += other.without_source;
        self.untaken += other.untaken;
        self.padding = self.padding.saturating_add(other.padding);
    }
}

/// A tensor that the two sides do not cover alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Index in the manifest.
    pub tensor: usize,
    /// Destination bytes that no source holds, over all ranks.
    pub without_source: u64,
    /// Source bytes that no destination wants, each counted once.
    pub untaken: u64,
}

/// Tensors of a plan of all ranks with destination bytes that no source holds, or source bytes that nobody takes.
pub fn gaps(plan: &Plan) -> Vec<Gap> {
    let tensors = 0..plan.manifest().tensors().len();
    let gap = |tensor: usize| {
        let cells = plan.tensor_cells(tensor);
        let element = plan.element_bytes(tensor as u32);
        let missing = |cell: &&crate::plan::Cell| plan.classes()[cell.class.0 as usize].holders.is_empty();
        let bytes = cells
            .cells
            .iter()
            .filter(missing)
            .map(|cell| cell.elements() * element * plan.classes()[cell.class.0 as usize].wanters.len() as u64);
        let untaken: u64 = cells.untaken.iter().map(|(_, elements)| elements).sum();
        Gap { tensor, without_source: bytes.sum(), untaken: untaken * element }
    };
    tensors.map(gap).filter(|gap| gap.without_source > 0 || gap.untaken > 0).collect()
}

/// A delivery: bytes `from..to` of a class's line to a rank. Ordered by rank, then place.
type Delivery = (Rank, u64, u64);

/// Proves that `flows` deliver `plan`, a plan of all ranks.
pub fn check(plan: &Plan, flows: &[Flow]) -> Result<Coverage, CheckError> {
    let lines = Lines::new(plan);
    let mut deliveries: Vec<Vec<Delivery>> = vec![Vec::new(); plan.classes().len()];
    for (number, flow) in flows.iter().enumerate() {
        check_tree(&flow.nodes).map_err(|fault| CheckError::Malformed { flow: number, fault })?;
        lines.check_sums(number, flow.nodes[0].rank, flow.sums.as_ref())?;
        let (root, wanting) = (flow.nodes[0].rank, flow.nodes.iter().filter(|node| node.wants));
        for run in lines.runs(number, &flow.pieces, flow.bytes)? {
            let class = &plan.classes()[run.class];
            if class.holders.binary_search(&root).is_err() {
                return Err(lines.stranger(run, "from", "hold", root));
            }
            lines.check_terms(run, number, flow.sums.as_ref())?;
            for node in wanting.clone() {
                if class.wanters.binary_search(&node.rank).is_err() {
                    return Err(lines.stranger(run, "to", "want", node.rank));
                }
                deliveries[run.class].push((node.rank, run.from, run.to));
            }
        }
    }
    lines.cover(deliveries, |class| class.wanters.as_slice(), None)
}

/// Proves that `flows`, all that pass `rank`, deliver what `rank` wants: its part of the proof of all. That both ends of
/// an edge see it alike follows from their equal inputs, which ranks compare.
pub fn check_for(plan: &Plan, flows: &[LocalFlow], rank: Rank) -> Result<Coverage, CheckError> {
    let lines = Lines::new(plan);
    let mut deliveries: Vec<Vec<Delivery>> = vec![Vec::new(); plan.classes().len()];
    for (number, flow) in flows.iter().enumerate() {
        lines.check_sums(number, flow.path.root(), flow.sums.as_ref())?;
        for run in lines.runs(number, &flow.pieces, flow.bytes)? {
            let class = &plan.classes()[run.class];
            if class.holders.binary_search(&flow.path.root()).is_err() {
                return Err(lines.stranger(run, "from", "hold", flow.path.root()));
            }
            lines.check_terms(run, number, flow.sums.as_ref())?;
            if flow.place.wants {
                if class.wanters.binary_search(&rank).is_err() {
                    return Err(lines.stranger(run, "to", "want", rank));
                }
                deliveries[run.class].push((rank, run.from, run.to));
            }
        }
    }
    lines.cover(
        deliveries,
        |class| match class.wanters.binary_search(&rank) {
            Ok(at) => &class.wanters[at..=at],
            Err(_) => &[],
        },
        Some(rank),
    )
}

/// A stretch of a class's line.
#[derive(Debug, Clone, Copy)]
struct Run {
    class: usize,
    from: u64,
    to: u64,
}

/// The cells of every class, one behind the other.
struct Lines<'a> {
    plan: &'a Plan,
    /// Per class the byte at which each cell begins, and the end.
    starts: Vec<Vec<u64>>,
}

impl<'a> Lines<'a> {
    fn new(plan: &'a Plan) -> Self {
        let line = |class: &CellClass| {
            let mut sum = 0;
            let mut starts = vec![0];
            starts.extend(class.cells.iter().map(|&cell| {
                sum += plan.cell(cell).elements() * plan.element_bytes(cell.tensor);
                sum
            }));
            starts
        };
        Self { plan, starts: plan.classes().iter().map(line).collect() }
    }

    /// The stretches that pieces are, in order; those that continue each other are one.
    fn runs(&self, flow: usize, pieces: &[Piece], bytes: u64) -> Result<Vec<Run>, CheckError> {
        let malformed = |fault| CheckError::Malformed { flow, fault };
        let mut runs: Vec<Run> = Vec::new();
        let (mut sum, mut next) = (0u128, 0);
        for &Piece { cell, start, end } in pieces {
            let known = (cell.tensor as usize) < self.plan.manifest().tensors().len();
            let known = known && (cell.cell as usize) < self.plan.tensor_cells(cell.tensor as usize).cells.len();
            if !known {
                return Err(malformed("carries a cell that the plan does not have"));
            }
            let (found, element) = (self.plan.cell(cell), self.plan.element_bytes(cell.tensor));
            if start >= end || end > found.elements() {
                return Err(malformed("carries elements that its cell does not have"));
            }
            let class = found.class.0 as usize;
            let cells = &self.plan.classes()[class].cells;
            // Usually the cell behind the last one.
            let at = if cells.get(next) == Some(&cell) { next } else { cells.partition_point(|&other| other < cell) };
            next = at + 1;
            let begin = self.starts[class][at];
            let run = Run { class, from: begin + start * element, to: begin + end * element };
            sum += u128::from(run.to - run.from);
            match runs.last_mut() {
                Some(last) if last.class == class && last.to == run.from => last.to = run.to,
                _ => runs.push(run),
            }
        }
        if sum != u128::from(bytes) {
            return Err(malformed("has pieces that do not sum to its bytes"));
        }
        Ok(runs)
    }

    /// Sums end at the root, each added up by a rank that holds one of its terms.
    fn check_sums(&self, flow: usize, root: Rank, sums: Option<&Sums>) -> Result<(), CheckError> {
        let Some(sums) = sums else { return Ok(()) };
        if sums.domains.first().is_none_or(|first| first.reducer != root) {
            return Err(CheckError::Malformed { flow, fault: "has a first sum that is not its root's" });
        }
        if sums.domains.iter().any(|domain| !domain.terms.contains(&domain.reducer)) {
            return Err(CheckError::Malformed {
                flow,
                fault: "has a sum that is added up by a rank without a term of it",
            });
        }
        Ok(())
    }

    /// Terms of a class are added exactly once each, whichever replicas they come from; whole elements are not added.
    fn check_terms(&self, run: Run, flow: usize, sums: Option<&Sums>) -> Result<(), CheckError> {
        let class = &self.plan.classes()[run.class];
        let malformed = |fault| Err(CheckError::Malformed { flow, fault });
        let (sums, first) = match (sums, class.terms.first()) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return malformed("sends terms as if they were whole"),
            (Some(_), None) => return malformed("adds up what its holders store whole"),
            (Some(sums), Some(first)) => (sums, first),
        };
        let mut times = vec![0; first.len()];
        for rank in sums.domains.iter().flat_map(|domain| &domain.terms) {
            match class.terms.iter().find_map(|terms| terms.iter().position(|holder| holder == rank)) {
                Some(term) => times[term] += 1,
                None => return malformed("adds up what a rank without a term holds"),
            }
        }
        match times.iter().position(|&times| times != 1) {
            Some(term) => {
                let (tensor, cell, ..) = self.name(run);
                Err(CheckError::Terms { flow, term, times: times[term], tensor, cell })
            }
            None => Ok(()),
        }
    }

    /// Deliveries must tile the line of every class for each of its wanters.
    fn cover(
        &self,
        deliveries: Vec<Vec<Delivery>>,
        wanters: impl Fn(&CellClass) -> &[Rank],
        of: Option<Rank>,
    ) -> Result<Coverage, CheckError> {
        let mut storage = Storage::new(self.plan, of);
        let (untaken, padding) = (self.plan.untaken_bytes(of), storage.padding());
        let mut coverage = Coverage { untaken, padding, ..Coverage::default() };
        for (number, mut deliveries) in deliveries.into_iter().enumerate() {
            let class = &self.plan.classes()[number];
            let wanters = wanters(class);
            let bytes = storage.fill(class, wanters);
            if class.holders.is_empty() {
                coverage.without_source += bytes;
                continue;
            }
            deliveries.sort_unstable();
            self.tile(number, wanters, &deliveries)?;
            coverage.written += bytes;
        }
        storage.check()?;
        Ok(coverage)
    }

    fn tile(&self, class: usize, wanters: &[Rank], deliveries: &[Delivery]) -> Result<(), CheckError> {
        let mut next = deliveries.iter().peekable();
        for &rank in wanters {
            let mut reached = 0;
            while let Some(&(_, from, to)) = next.next_if(|delivery| delivery.0 == rank) {
                if from < reached {
                    let (tensor, cell, from, _) = self.name(Run { class, from, to });
                    return Err(CheckError::Twice { rank, tensor, cell, from });
                }
                if from > reached {
                    return Err(self.missing(rank, Run { class, from: reached, to: from }));
                }
                reached = to;
            }
            let end = self.plan.classes()[class].bytes;
            if reached < end {
                return Err(self.missing(rank, Run { class, from: reached, to: end }));
            }
        }
        Ok(())
    }

    /// Tensor, cell, and elements of the part of a stretch that lies in its first cell.
    fn name(&self, run: Run) -> (String, u32, u64, u64) {
        let starts = &self.starts[run.class];
        let at = starts.partition_point(|&start| start <= run.from) - 1;
        let CellId { tensor, cell } = self.plan.classes()[run.class].cells[at];
        let element = self.plan.element_bytes(tensor);
        let (from, to) = ((run.from - starts[at]) / element, (run.to.min(starts[at + 1]) - starts[at]) / element);
        (self.plan.manifest().tensors()[tensor as usize].name.clone(), cell, from, to)
    }

    fn missing(&self, rank: Rank, run: Run) -> CheckError {
        let (tensor, cell, from, to) = self.name(run);
        CheckError::Missing { rank, tensor, cell, from, to }
    }

    fn stranger(&self, run: Run, what: &'static str, verb: &'static str, rank: Rank) -> CheckError {
        let (tensor, cell, ..) = self.name(run);
        CheckError::Stranger { what, verb, rank, tensor, cell }
    }
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
