//! What is moved. In: names, numbers of ranks, bytes. Out: tensors with both layouts. Guarantee: every cut is even, and a
//! peer that gets the same numbers has the same parts on the same ranks.

use crate::bench::error::BenchError;
use crate::bench::pattern::Element;
use crossmesh::base::Rank;
use crossmesh::layout::{Layout, LayoutError, Mesh, Placement};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Tensors of the shapes with many, when no bytes are given.
const MANY: u64 = 10_000;
/// Elements of a contiguous row.
const ROW: u64 = 1024;

/// A dimension that is cut, and into how many parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) dim: usize,
    pub(crate) parts: u32,
}

/// One tensor, or many equal ones, with its layout on sources and destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) element: Element,
    pub(crate) tensors: u64,
    pub(crate) global: [u64; 3],
    pub(crate) source: Cut,
    pub(crate) destination: Cut,
    /// How often each part is wanted.
    pub(crate) replicas: u32,
}

impl Shape {
    pub(crate) fn sources(&self) -> u32 {
        self.source.parts
    }

    pub(crate) fn destinations(&self) -> u32 {
        self.destination.parts * self.replicas
    }

    /// Ranks that take part: sources, then destinations.
    pub(crate) fn ranks(&self) -> u32 {
        self.sources() + self.destinations()
    }

    /// Bytes of one tensor.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        self.global.iter().product::<u64>() * self.element.bytes()
    }

    /// Bytes summed over destinations.
    pub(crate) fn delivered(&self) -> u64 {
        self.tensor_bytes() * self.tensors * u64::from(self.replicas)
    }

    /// Layouts on sources and destinations, whose ranks count from 0.
    pub(crate) fn layouts(&self) -> Result<[Arc<Layout>; 2], LayoutError> {
        let layout = |mesh, placements| {
            let shape = self.global.to_vec();
            Layout::new(shape, self.element.dtype(), Arc::new(mesh), placements).map(Arc::new)
        };
        let sources = Mesh::contiguous(vec![self.sources()], Rank(0))?;
        let destinations = Mesh::contiguous(vec![self.replicas, self.destination.parts], Rank(self.sources()))?;
        Ok([
            layout(sources, vec![Placement::shard(self.source.dim)])?,
            layout(destinations, vec![Placement::Replicate, Placement::shard(self.destination.dim)])?,
        ])
    }

    /// The numbers that a peer's program is given.
    pub(crate) fn words(&self) -> Vec<String> {
        let [first, second, third] = self.global;
        let (source, destination) = (self.source, self.destination);
        let sides = [source.dim as u64, source.parts.into(), destination.dim as u64, destination.parts.into()];
        let numbers = [first, second, third, self.element.bytes(), self.tensors].into_iter().chain(sides);
        numbers.chain([self.replicas.into()]).map(|number| number.to_string()).collect()
    }
}

/// The shapes of `list`, or all of them.
pub(super) fn choose(
    list: &str,
    sources: u32,
    destinations: u32,
    bytes: Option<u64>,
) -> Result<Vec<Shape>, BenchError> {
    let all = catalogue(sources, destinations, bytes);
    if list.trim() == "all" {
        return Ok(all);
    }
    let names: Vec<&str> = all.iter().map(|shape| shape.name).collect();
    let mut chosen: Vec<Shape> = Vec::new();
    for word in list.split(',').map(str::trim) {
        let refuse = |allowed: String| BenchError::refused("shapes", word, allowed);
        let Some(shape) = all.iter().find(|shape| shape.name == word) else {
            return Err(refuse(format!("all, {}", names.join(", "))));
        };
        if chosen.contains(shape) {
            return Err(refuse("each shape once".into()));
        }
        chosen.push(shape.clone());
    }
    Ok(chosen)
}

/// Every shape, of `bytes` bytes or somewhat more or less, as even cuts want it.
fn catalogue(sources: u32, destinations: u32, bytes: Option<u64>) -> Vec<Shape> {
    let (s, d) = (u64::from(sources), u64::from(destinations));
    let total = bytes.unwrap_or(256 * MIB);
    let rows = |row_bytes: u64| (total / row_bytes / (s * d)).max(1) * s * d;
    let shape = |name, meaning, element, global, destination| Shape {
        name,
        meaning,
        element,
        tensors: 1,
        global,
        source: Cut { dim: 0, parts: sources },
        destination,
        replicas: 1,
    };
    let (by_rows, by_columns) = (Cut { dim: 0, parts: destinations }, Cut { dim: 2, parts: destinations });
    let columns = |name, meaning, run: u64| {
        let row = d * run;
        shape(name, meaning, Element::Bf16, [rows(row), 1, row / Element::Bf16.bytes()], by_columns)
    };
    let replicas = if destinations.is_multiple_of(2) { 2 } else { destinations };
    let halves = Cut { dim: 0, parts: destinations / replicas };
    let experts = [32u64.next_multiple_of(s), (total / (32 * 4096 * 2)).max(1).next_multiple_of(d), 4096];
    let small = Small::new(s, d);
    let many = |name, meaning, destination| {
        let tensors = bytes.map_or(MANY, |bytes| (bytes / small.bytes()).max(2));
        Shape { tensors, ..shape(name, meaning, Element::F32, small.global, destination) }
    };
    let single = [(bytes.unwrap_or(1024 * MIB) / (ROW * 4)).max(1), 1, ROW];
    vec![
        shape("contiguous", "rows to rows, f32", Element::F32, [rows(ROW * 4), 1, ROW], by_rows),
        columns("columns-256", "rows to columns, runs of 256 B, bf16", 256),
        columns("columns-1k", "rows to columns, runs of 1 KiB, bf16", 1024),
        columns("columns-14k", "rows to columns, runs of 14 KiB, bf16", 14 * 1024),
        Shape {
            replicas,
            ..shape("replicated", "rows to rows, each part twice, bf16", Element::Bf16, [rows(ROW * 2), 1, ROW], halves)
        },
        shape(
            "experts",
            "experts to columns of experts, bf16",
            Element::Bf16,
            experts,
            Cut { dim: 1, parts: destinations },
        ),
        many("small-1k", "tensors of 4 KiB, rows to rows, f32", by_rows),
        many("small-256", "tensors of 4 KiB, rows to columns, f32", by_columns),
        Shape {
            source: Cut { dim: 0, parts: 1 },
            ..shape("single", "one source to one destination, f32", Element::F32, single, Cut { dim: 0, parts: 1 })
        },
    ]
}

/// A tensor of about 4 KiB that both sides can cut evenly.
struct Small {
    global: [u64; 3],
}

impl Small {
    fn new(sources: u64, destinations: u64) -> Self {
        let common =
            (1..=sources).rev().find(|&n| sources.is_multiple_of(n) && destinations.is_multiple_of(n)).unwrap_or(1);
        let rows = sources / common * destinations;
        let columns = (1024 / rows / destinations).max(1) * destinations;
        Self { global: [rows, 1, columns] }
    }

    fn bytes(&self) -> u64 {
        self.global.iter().product::<u64>() * Element::F32.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_sizes() {
        let bytes = |shape: &Shape| (shape.name, shape.tensor_bytes(), shape.tensors, shape.delivered());
        let all: Vec<_> = catalogue(4, 4, None).iter().map(bytes).collect();
        assert_eq!(all[0], ("contiguous", 256 * MIB, 1, 256 * MIB));
        assert_eq!(all[1], ("columns-256", 256 * MIB, 1, 256 * MIB));
        assert_eq!(all[4], ("replicated", 256 * MIB, 1, 512 * MIB));
        assert_eq!(all[5], ("experts", 256 * MIB, 1, 256 * MIB));
        assert_eq!(all[7], ("small-256", 4096, 10_000, 40_960_000));
        assert_eq!(all[8], ("single", 1024 * MIB, 1, 1024 * MIB));
        let experts = &catalogue(4, 4, None)[5];
        assert_eq!(experts.words().join(" "), "32 1024 4096 2 1 0 4 1 4 1");
    }

    #[test]
    fn cuts_are_even_for_any_ranks_and_bytes() {
        for (sources, destinations) in [(1, 1), (4, 4), (3, 5), (2, 8), (7, 1)] {
            for bytes in [None, Some(0), Some(1), Some(3 * MIB + 17)] {
                for shape in catalogue(sources, destinations, bytes) {
                    let even = |cut: Cut| shape.global[cut.dim].is_multiple_of(u64::from(cut.parts));
                    assert!(even(shape.source) && even(shape.destination), "{sources}+{destinations} {shape:?}");
                    let [source, destination] = shape.layouts().unwrap();
                    let stored =
                        |layout: &Layout| layout.mesh().ranks().map(|rank| layout.local_bytes(rank)).sum::<u64>();
                    assert_eq!(stored(&source), shape.tensor_bytes());
                    assert_eq!(stored(&destination) * shape.tensors, shape.delivered());
                }
            }
        }
    }
}
