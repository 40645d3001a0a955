//! The transfers that are tested. In: a name, the number of ranks. Out: a manifest and a device for each rank. Guarantee: with
//! two ranks each has a device of its own; with more, sources are on the first device and destinations on the second, or
//! as the case says.

use crossmesh::base::Rank;
use crossmesh::layout::{Dtype, Layout, LayoutError, Mesh, Placement};
use crossmesh::plan::Manifest;
use std::error::Error;
use std::sync::Arc;

/// A transfer.
pub(crate) struct Case {
    pub(crate) manifest: Arc<Manifest>,
    /// Device of each rank.
    pub(crate) devices: Vec<u32>,
    /// Whether it is timed.
    pub(crate) timed: bool,
}

impl Case {
    /// Whether no two ranks share a device.
    pub(crate) fn has_device_for_each_rank(&self) -> bool {
        let mut devices = self.devices.clone();
        devices.sort_unstable();
        devices.dedup();
        devices.len() == self.devices.len()
    }
}

/// Cases for a number of ranks.
pub(crate) fn names(ranks: u32) -> Vec<&'static str> {
    match ranks {
        2 => vec![
            "odd",
            "empty",
            "scalar",
            "strided-odd",
            "swap",
            "contiguous-16MiB",
            "contiguous-1GiB",
            "rows-256B",
            "rows-1KiB",
            "rows-14KiB",
            "experts",
            "rows-to-columns",
            "replicas-one-each",
            "swap-1GiB",
            "small-10000",
            "qwen3-32b",
        ],
        3 => vec!["odd", "replicas-of-two", "grid"],
        4 => vec!["odd", "grid", "replicas-one-gpu-1GiB", "contiguous-16MiB", "rows-16MiB"],
        _ => vec!["odd", "grid", "uneven", "nested", "contiguous-16MiB", "rows-16MiB", "contiguous-1GiB"],
    }
}

type Shared<T> = Result<Arc<T>, LayoutError>;

fn mesh(shape: &[u32], first: u32) -> Shared<Mesh> {
    Ok(Arc::new(Mesh::contiguous(shape.to_vec(), Rank(first))?))
}

fn layout(shape: &[u64], dtype: Dtype, mesh: &Arc<Mesh>, placements: Vec<Placement>) -> Shared<Layout> {
    Ok(Arc::new(Layout::new(shape.to_vec(), dtype, mesh.clone(), placements)?))
}

// Qwen3-32B: 64 query and 8 key heads of 128.
const VOCABULARY: u64 = 151_936;
const HIDDEN: u64 = 5120;
const LAYERS: u32 = 64;
/// Name, shape, sharded dimension.
const LAYER: [(&str, &[u64], usize); 7] = [
    ("q_proj", &[8192, HIDDEN], 0),
    ("k_proj", &[1024, HIDDEN], 0),
    ("v_proj", &[1024, HIDDEN], 0),
    ("o_proj", &[HIDDEN, 8192], 1),
    ("gate_proj", &[25_600, HIDDEN], 0),
    ("up_proj", &[25_600, HIDDEN], 0),
    ("down_proj", &[HIDDEN, 25_600], 1),
];
/// Name, width.
const NORMS: [(&str, u64); 4] =
    [("input_layernorm", HIDDEN), ("post_attention_layernorm", HIDDEN), ("q_norm", 128), ("k_norm", 128)];

fn rows() -> Vec<Placement> {
    vec![Placement::shard(0)]
}

fn columns() -> Vec<Placement> {
    vec![Placement::shard(1)]
}

fn whole() -> Vec<Placement> {
    vec![Placement::Replicate]
}

/// The case called `name` for `ranks` ranks.
pub(crate) fn case(name: &str, ranks: u32) -> Result<Case, Box<dyn Error>> {
    let half = (ranks / 2).max(1);
    let (trainers, generators) = (mesh(&[half], 0)?, mesh(&[ranks - half], half)?);
    let mut devices: Vec<u32> = (0..ranks).map(|rank| u32::from(rank >= half)).collect();
    let mut manifest = Manifest::new();
    let mut add = |name: &str, shape: &[u64], dtype, from: &Arc<Mesh>, source, to: &Arc<Mesh>, wanted| {
        let (source, wanted) = (layout(shape, dtype, from, source)?, layout(shape, dtype, to, wanted)?);
        manifest.push(name, source, wanted).map_err(Box::<dyn Error>::from)
    };
    let one = |rank| mesh(&[1], rank);
    let mut timed = true;
    match name {
        "odd" => {
            timed = false;
            add("bytes", &[1], Dtype::U8, &trainers, rows(), &generators, rows())?;
            add("prime", &[1009, 7], Dtype::BF16, &trainers, rows(), &generators, columns())?;
            add("wide", &[3, 100_003], Dtype::U8, &trainers, columns(), &generators, rows())?;
            add(
                "deep",
                &[5, 6, 7, 8, 9],
                Dtype::F32,
                &trainers,
                vec![Placement::shard(2)],
                &generators,
                vec![Placement::shard(4)],
            )?;
            add("copies", &[333, 65], Dtype::F64, &trainers, rows(), &generators, whole())?;
        }
        "empty" => {
            timed = false;
            add("nothing", &[0, 8], Dtype::F32, &trainers, rows(), &generators, columns())?;
            add("something", &[8], Dtype::F32, &trainers, rows(), &generators, rows())?;
        }
        "scalar" => {
            timed = false;
            add("scalar", &[], Dtype::F64, &trainers, whole(), &generators, whole())?;
        }
        "strided-odd" => {
            timed = false;
            let (from, to) = (mesh(&[ranks], 0)?, mesh(&[ranks], 0)?);
            add("bf16", &[4097, 1030], Dtype::BF16, &from, rows(), &to, columns())?;
            add("u8", &[997, 3001], Dtype::U8, &from, columns(), &to, rows())?;
        }
        "swap" | "swap-1GiB" => {
            let (from, to) = (mesh(&[2], 0)?, Arc::new(Mesh::new(vec![2], vec![Rank(1), Rank(0)])?));
            let count = if name == "swap" { 1 << 10 } else { 1 << 18 };
            add("weight", &[count, 4096], Dtype::BF16, &from, rows(), &to, rows())?;
        }
        "contiguous-16MiB" => add("weight", &[2048, 4096], Dtype::BF16, &trainers, rows(), &generators, rows())?,
        "contiguous-256MiB" => add("weight", &[32_768, 4096], Dtype::BF16, &trainers, rows(), &generators, rows())?,
        "rows-to-columns-256MiB" => {
            add("weight", &[32_768, 4096], Dtype::BF16, &trainers, rows(), &generators, columns())?
        }
        "contiguous-1GiB" => add("weight", &[131_072, 4096], Dtype::BF16, &trainers, rows(), &generators, rows())?,
        // Rank 1 takes a column of a tensor whose other columns it leaves.
        "rows-256B" | "rows-1KiB" | "rows-14KiB" => {
            let run: u64 = match name {
                "rows-256B" => 128,
                "rows-1KiB" => 512,
                _ => 7168,
            };
            let count = (256 << 20) / (2 * run);
            let both = Arc::new(Mesh::new(vec![2], vec![Rank(1), Rank(0)])?);
            add("weight", &[count, 2 * run], Dtype::BF16, &one(0)?, whole(), &both, columns())?;
        }
        "experts" => {
            let (from, to) = (mesh(&[2], 0)?, Arc::new(Mesh::new(vec![2], vec![Rank(1), Rank(0)])?));
            add("experts", &[64, 2048, 4096], Dtype::BF16, &from, rows(), &to, columns())?;
        }
        "rows-to-columns" => {
            let (from, to) = (mesh(&[2], 0)?, Arc::new(Mesh::new(vec![2], vec![Rank(1), Rank(0)])?));
            add("weight", &[65_536, 8192], Dtype::BF16, &from, rows(), &to, columns())?;
        }
        "replicas-one-each" => {
            let to = mesh(&[2], 0)?;
            add("weight", &[131_072, 4096], Dtype::BF16, &one(0)?, whole(), &to, whole())?;
        }
        "replicas-of-two" => {
            timed = false;
            let to = mesh(&[2], 1)?;
            add("weight", &[4099, 1024], Dtype::BF16, &one(0)?, whole(), &to, whole())?;
        }
        "replicas-one-gpu-1GiB" => {
            devices = vec![0, 1, 1, 0];
            let to = mesh(&[2], 1)?;
            add("weight", &[131_072, 4096], Dtype::BF16, &one(0)?, whole(), &to, whole())?;
        }
        "rows-16MiB" => add("weight", &[2048, 4096], Dtype::BF16, &trainers, rows(), &generators, columns())?,
        "grid" => {
            timed = false;
            devices = (0..ranks).map(|rank| rank % 2).collect();
            let all = mesh(&[ranks], 0)?;
            for number in 0..20u64 {
                let shape = [64 + number * 7, 48 + number];
                add(&format!("w{number}"), &shape, Dtype::BF16, &all, rows(), &all, columns())?;
                add(&format!("b{number}"), &[shape[0]], Dtype::F32, &all, rows(), &all, whole())?;
            }
        }
        "uneven" => {
            timed = false;
            let sizes = |sizes: &[u64]| vec![Placement::sizes(0, sizes.to_vec())];
            add(
                "sizes",
                &[1000, 33],
                Dtype::BF16,
                &trainers,
                sizes(&[1, 0, 998, 1]),
                &generators,
                sizes(&[400, 599, 1, 0]),
            )?;
        }
        "nested" => {
            timed = false;
            let (from, to) = (mesh(&[2, 2], 0)?, mesh(&[2, 2], 4)?);
            let both = vec![Placement::shard(0), Placement::shard(0)];
            add("nested", &[257, 64], Dtype::BF16, &from, both, &to, vec![Placement::Replicate, Placement::shard(1)])?;
        }
        "small-10000" => {
            for number in 0..10_000 {
                add(&format!("t{number}"), &[2048], Dtype::BF16, &one(0)?, whole(), &one(1)?, whole())?;
            }
        }
        // Tensor parallel on both sides, the sides mirrored so that all of it but the norms crosses.
        "qwen3-32b" => {
            let (from, to) = (mesh(&[2], 0)?, Arc::new(Mesh::new(vec![2], vec![Rank(1), Rank(0)])?));
            let mut tensor = |name: String, shape: &[u64], split: fn() -> Vec<Placement>| {
                add(&name, shape, Dtype::BF16, &from, split(), &to, split())
            };
            tensor("embed_tokens".into(), &[VOCABULARY, HIDDEN], rows)?;
            for layer in 0..LAYERS {
                for (part, shape, split) in LAYER {
                    tensor(format!("layers.{layer}.{part}"), shape, if split == 0 { rows } else { columns })?;
                }
                for (part, width) in NORMS {
                    tensor(format!("layers.{layer}.{part}"), &[width], whole)?;
                }
            }
            tensor("norm".into(), &[HIDDEN], whole)?;
            tensor("lm_head".into(), &[VOCABULARY, HIDDEN], rows)?;
        }
        other => return Err(format!("no case {other}").into()),
    }
    Ok(Case { manifest: Arc::new(manifest), devices, timed })
}
