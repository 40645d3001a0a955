//! Shards put together again. In: the folder that `--out` wrote. Out: whole tensors. Guarantee: knows nothing but the
//! safetensors crate and the layout files; an element that several ranks hold is the same on all.

use crate::job::read_json;
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor's bytes by element, `None` where no rank holds it.
type Elements = Vec<Option<Vec<u8>>>;

#[derive(Deserialize)]
struct LayoutText {
    version: u32,
    rank: u32,
    tensors: Vec<TensorText>,
}

#[derive(Deserialize)]
struct TensorText {
    name: String,
    shape: Vec<u64>,
    intervals: Vec<Vec<(u64, u64)>>,
}

/// What `--out` wrote.
pub(crate) struct Assembly {
    /// Whole tensors by name.
    pub(crate) tensors: BTreeMap<String, Vec<u8>>,
    /// Bytes by rank and tensor.
    pub(crate) held: BTreeMap<(u32, String), usize>,
}

/// Reads the shards of `ranks` in `folder`; every element of every tensor must be there.
#[track_caller]
pub(crate) fn assemble(folder: &Path, ranks: &[u32]) -> Assembly {
    let mut whole: BTreeMap<String, Elements> = BTreeMap::new();
    let mut held = BTreeMap::new();
    for &rank in ranks {
        let layout: LayoutText =
            serde_json::from_value(read_json(&folder.join(format!("rank-{rank:05}.layout.json")))).unwrap();
        assert_eq!((layout.version, layout.rank), (1, rank));
        let bytes = std::fs::read(folder.join(format!("rank-{rank:05}.safetensors"))).unwrap();
        let shards = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(shards.len(), layout.tensors.len());
        for tensor in &layout.tensors {
            let shard = shards.tensor(&tensor.name).unwrap();
            let count = tensor.shape.iter().product::<u64>() as usize;
            let elements = whole.entry(tensor.name.clone()).or_insert_with(|| vec![None; count]);
            held.insert((rank, tensor.name.clone()), shard.data().len());
            let size = shard.dtype().bitsize() / 8;
            let places = places(&tensor.shape, &tensor.intervals);
            assert_eq!(places.len() * size, shard.data().len(), "{} on rank {rank}", tensor.name);
            for (&place, element) in places.iter().zip(shard.data().chunks(size)) {
                let known = elements[place].get_or_insert_with(|| element.to_vec());
                assert_eq!(known, element, "element {place} of {} on rank {rank}", tensor.name);
            }
        }
    }
    let join = |(name, elements): (String, Elements)| {
        let bytes = elements.into_iter().flat_map(|element| element.unwrap_or_else(|| panic!("{name} has a hole")));
        (name.clone(), bytes.collect())
    };
    Assembly { tensors: whole.into_iter().map(join).collect(), held }
}

/// A tensor of a rank's shard file.
pub(crate) fn shard(folder: &Path, rank: usize, name: &str) -> (Vec<usize>, Vec<u8>) {
    let bytes = std::fs::read(folder.join(format!("rank-{rank:05}.safetensors"))).unwrap();
    let shards = SafeTensors::deserialize(&bytes).unwrap();
    let found = shards.tensor(name).unwrap_or_else(|error| panic!("{name} on rank {rank}: {error}"));
    (found.shape().to_vec(), found.data().to_vec())
}

/// Row-major places of what a rank holds, in storage order.
fn places(shape: &[u64], intervals: &[Vec<(u64, u64)>]) -> Vec<usize> {
    shape.iter().zip(intervals).fold(vec![0], |places, (&extent, held)| {
        let along: Vec<u64> = held.iter().flat_map(|&(lo, hi)| lo..hi).collect();
        places.iter().flat_map(|&place| along.iter().map(move |&at| place * extent as usize + at as usize)).collect()
    })
}
