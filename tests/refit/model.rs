//! Models for tests. In: names, types, shapes. Out: files. Guarantee: the contents follow from the name, and no two
//! elements next to each other are alike.

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A tensor of a model.
pub(crate) type Tensor = (&'static str, Dtype, &'static [usize]);

/// A small Llama: column-parallel, row-parallel, replicated; extents that 2, 3 and 4 ranks cut unevenly.
pub(crate) const LLAMA: &[Tensor] = &[
    ("model.embed_tokens.weight", Dtype::BF16, &[37, 10]),
    ("model.layers.0.input_layernorm.weight", Dtype::F32, &[10]),
    ("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[14, 10]),
    ("model.layers.0.self_attn.o_proj.weight", Dtype::F64, &[10, 14]),
    ("model.layers.0.mlp.up_proj.weight", Dtype::F8_E4M3, &[23, 10]),
    ("model.layers.0.mlp.down_proj.weight", Dtype::F16, &[10, 23]),
    ("model.norm.weight", Dtype::F32, &[10]),
    ("lm_head.weight", Dtype::BF16, &[1, 10]),
];

/// One tensor that tensor-parallel ranks cut evenly, of [`EXAMPLE_BYTES`] bytes.
pub(crate) const EXAMPLE: &[Tensor] = &[("model.layers.0.mlp.up_proj.weight", Dtype::F32, &[64, 32])];
/// Bytes of [`EXAMPLE`].
pub(crate) const EXAMPLE_BYTES: u64 = 64 * 32 * 4;

/// Contents of a tensor.
pub(crate) fn contents((name, dtype, shape): &Tensor) -> Vec<u8> {
    let count = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    let mut state = name
        .bytes()
        .fold(0x9e37_79b9_7f4a_7c15u64, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// The elements of a tensor.
pub(crate) struct Elements {
    shape: &'static [usize],
    bytes: Vec<u8>,
    size: usize,
}

impl Elements {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { shape: tensor.2, bytes: contents(tensor), size: tensor.1.bitsize() / 8 }
    }

    /// Bytes of the element at `index`.
    pub(crate) fn at(&self, index: &[usize]) -> Vec<u8> {
        let place = index.iter().zip(self.shape).fold(0, |place, (&at, &extent)| {
            assert!(at < extent, "{index:?} in {:?}", self.shape);
            place * extent + at
        });
        self.bytes[place * self.size..][..self.size].to_vec()
    }
}

/// Shape and bytes of a tensor, from its elements one by one.
pub(crate) fn built(shape: &[usize], element: impl Fn(&[usize]) -> Vec<u8>) -> (Vec<usize>, Vec<u8>) {
    let count = shape.iter().product();
    let index = |mut rest: usize| {
        let mut index = vec![0; shape.len()];
        for (at, &extent) in index.iter_mut().zip(shape).rev() {
            (*at, rest) = (rest % extent, rest / extent);
        }
        index
    };
    (shape.to_vec(), (0..count).flat_map(|place| element(&index(place))).collect())
}

/// Writes a safetensors file.
pub(crate) fn write(path: &Path, tensors: &[Tensor]) {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(contents).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, dtype, shape), bytes)| {
        (name.to_string(), TensorView::new(*dtype, shape.to_vec(), bytes).unwrap())
    });
    serialize_to_file(views, None, path).unwrap();
}

/// A folder with `model.safetensors`; the path of the file.
pub(crate) fn file(tensors: &[Tensor]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, tensors);
    (folder, path)
}

/// A checkpoint in two files with an index, in `folder`.
pub(crate) fn write_sharded(folder: &Path, tensors: &[Tensor]) {
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let mut listed = BTreeMap::new();
    for (name, part) in [("model-00001-of-00002.safetensors", first), ("model-00002-of-00002.safetensors", second)] {
        write(&folder.join(name), part);
        listed.extend(part.iter().map(|tensor| (tensor.0, name)));
    }
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": listed});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}
