//! Faults that verification must see. In: a model, both sides' memory of all ranks, one fault. Out: nothing.
//! Guarantee: right memory passes; every fault is an error that names the tensor, the rank and the first wrong index.

use super::super::shards::SideLayout;
use super::super::sides::MemoryChoice;
use super::*;
use crossmesh::comm::Side;
use crossmesh::layout::{AxisMap, Dtype, Mesh, Placement};

const MODEL: &str = r#"{"a": {"shape": [6, 5], "dtype": "F32"}, "b": {"shape": [7], "dtype": "U8"},
    "c": {"shape": [], "dtype": "F64"}, "d": {"shape": [4, 3, 8], "dtype": "BF16"}}"#;
const SOURCES: u32 = 2;
const DESTINATIONS: u32 = 3;
const RANKS: u32 = SOURCES + DESTINATIONS;

/// Two sources and three destinations of every tensor, all in one process.
struct Case {
    model: Model,
    manifest: Arc<Manifest>,
    sources: Vec<SideMemory>,
    destinations: Vec<SideMemory>,
    _folder: tempfile::TempDir,
}

fn layout(shape: &[u64], dtype: Dtype, first: u32, count: u32, dim: usize) -> Arc<Layout> {
    let mesh = Arc::new(Mesh::contiguous(vec![count], Rank(first)).unwrap());
    let placement = if dim < shape.len() { Placement::shard(dim) } else { Placement::Replicate };
    Arc::new(Layout::new(shape.to_vec(), dtype, mesh, vec![placement]).unwrap())
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.model.json");
        std::fs::write(&path, MODEL).unwrap();
        let model = Model::open(&path).unwrap();
        let mut manifest = Manifest::new();
        for tensor in model.tensors() {
            let source = layout(&tensor.shape, tensor.dtype, 0, SOURCES, 0);
            let destination = layout(&tensor.shape, tensor.dtype, SOURCES, DESTINATIONS, 1);
            manifest.push(tensor.name.clone(), source, destination).unwrap();
        }
        let manifest = Arc::new(manifest);
        let memory = |side| {
            let allocate = |rank| {
                SideLayout::new(&manifest, &[], Rank(rank), side).unwrap().allocate(MemoryChoice::Private).unwrap()
            };
            (0..RANKS).map(allocate).collect::<Vec<_>>()
        };
        let (sources, destinations) = (memory(Side::Source), memory(Side::Destination));
        for rank in 0..RANKS {
            super::super::shards::fill(&model, &manifest, Rank(rank), &sources[rank as usize]).unwrap();
        }
        let case = Self { model, manifest, sources, destinations, _folder: folder };
        case.deliver();
        case
    }

    /// Puts the right bytes into every destination, element by element.
    fn deliver(&self) {
        for rank in 0..RANKS {
            let memory = &self.destinations[rank as usize];
            let mut bytes = memory.buffer.write().unwrap();
            bytes.fill(POISON);
            for (index, tensor) in self.manifest.tensors().iter().enumerate() {
                let (Some(maps), Some((offset, _))) =
                    (tensor.destination.axis_maps(Rank(rank)), &memory.tensors[index])
                else {
                    continue;
                };
                let element = tensor.destination.dtype().bytes() as usize;
                let mut at = *offset as usize;
                for global in indices(&maps) {
                    let extent = vec![1; global.len()];
                    let region = Region { lo: &global, extent: &extent };
                    self.model.gather(index, region, &mut bytes[at..at + element]).unwrap();
                    at += element;
                }
            }
        }
    }

    /// What verification says on every rank.
    fn check(&self) -> Vec<Result<(), String>> {
        let held = |memory, rank| Held { memory, rank: Rank(rank) };
        let promise = |rank: u32| {
            let held = held(&self.sources[rank as usize], rank);
            encode(&promised(&self.manifest, RANKS as usize, &held).unwrap().0)
        };
        let all: Vec<Vec<u8>> = (0..RANKS).map(promise).collect();
        let judge = |rank: u32| {
            let expected = expected(Rank(rank), &all).unwrap();
            let held = held(&self.destinations[rank as usize], rank);
            check(&self.model, &self.manifest, &held, &expected).map_err(|error| error.to_string())
        };
        (0..RANKS).map(judge).collect()
    }

    /// Bytes of a tensor at a rank's destination, for a fault.
    fn change(&self, rank: u32, tensor: &str, change: impl FnOnce(&mut [u8])) {
        let index = self.manifest.tensors().iter().position(|held| held.name == tensor).unwrap();
        let memory = &self.destinations[rank as usize];
        let offset = memory.tensors[index].as_ref().unwrap().0 as usize;
        let length = self.manifest.tensors()[index].destination.local_bytes(Rank(rank)) as usize;
        change(&mut memory.buffer.write().unwrap()[offset..offset + length]);
    }

    /// Checks that only `rank` finds a fault, which says all of `parts`.
    #[track_caller]
    fn assert_found(&self, rank: u32, parts: &[&str]) {
        for (other, said) in (0..RANKS).zip(self.check()) {
            match said {
                Ok(()) => assert_ne!(other, rank, "the fault passed"),
                Err(text) => {
                    assert_eq!(other, rank, "{text}");
                    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
                    assert!(text.contains(&format!("wrong on rank {rank}")), "{text}");
                }
            }
        }
    }
}

/// Global indices that maps hold, in storage order.
fn indices(maps: &[AxisMap]) -> Vec<Vec<u64>> {
    maps.iter().fold(vec![vec![]], |indices, map| {
        let along: Vec<u64> = map.intervals().flat_map(|interval| interval.lo..interval.hi).collect();
        indices.iter().flat_map(|index| along.iter().map(|&at| [index.as_slice(), &[at]].concat())).collect()
    })
}

#[test]
fn right_memory_passes() {
    assert_eq!(Case::new().check(), vec![Ok(()); RANKS as usize]);
}

#[test]
fn one_wrong_byte_is_found_wherever_it_is() {
    let case = Case::new();
    for rank in SOURCES..RANKS {
        for tensor in case.manifest.tensors() {
            let length = tensor.destination.local_bytes(Rank(rank)) as usize;
            for at in [0, length / 2, length - 1] {
                case.change(rank, &tensor.name, |bytes| bytes[at] ^= 1);
                case.assert_found(rank, &[&format!("tensor {:?}", tensor.name), "at global index ["]);
                case.change(rank, &tensor.name, |bytes| bytes[at] ^= 1);
            }
        }
    }
    // Rank 3 holds column 1 and 2 of 5 of tensor a: its byte 13 is in row 1, second column.
    case.change(3, "a", |bytes| bytes[13] ^= 0x80);
    case.assert_found(3, &["tensor \"a\" (F32)", "global index [1, 2]"]);
}

#[test]
fn swapped_rows_are_found() {
    let case = Case::new();
    // Rank 2 holds a column of 6 rows of 4 bytes.
    case.change(2, "a", |bytes| {
        let (head, tail) = bytes.split_at_mut(4 * 4);
        head[4..8].swap_with_slice(&mut tail[..4]);
    });
    case.assert_found(2, &["tensor \"a\"", "global index [1, 0]"]);
}

#[test]
fn bytes_that_never_came_are_found() {
    let case = Case::new();
    let whole = |bytes: &mut [u8]| bytes.fill(POISON);
    case.change(4, "d", whole);
    case.assert_found(4, &["tensor \"d\" (BF16)", "global index [0, 2, 0]", "[a5, a5]"]);
    case.deliver();
    case.change(2, "b", |bytes| *bytes.last_mut().unwrap() = POISON);
    case.assert_found(2, &["tensor \"b\" (U8)", "global index [6]", "[a5]"]);
}

/// The digests alone: the destinations hold what the model says, and a source did not.
#[test]
fn a_source_that_held_something_else_is_found() {
    let case = Case::new();
    case.sources[1].buffer.write().unwrap()[0] ^= 1;
    let said = case.check();
    // Its first byte is row 3, column 0 of tensor a, which rank 2 wants.
    assert!(said[2].as_ref().is_err_and(|text| text.contains("tensor \"a\"") && text.contains("its sources say")));
    assert_eq!(said.iter().filter(|said| said.is_err()).count(), 1);
}

#[test]
fn digests_that_cannot_be_read_name_their_rank() {
    let all = [encode(&Digests::new()), b"[[1]]".to_vec()];
    assert!(matches!(expected(Rank(0), &all), Err(RefitError::Digests { rank: Rank(1), .. })));
}
