//! A model: named tensors and where their contents come from. In: a path. Out: [`Model`]. Guarantee: tensors are
//! sorted by name (by bytes), so every rank that opens the same model numbers them alike, until they are arranged as a
//! manifest has them; every size fits 64 bits.

use super::error::CheckpointError;
use super::header::{Header, HeaderTensor};
use super::layer_file::{self, LayerText};
use super::mapped::MappedFile;
use super::{config, description, files, index};
use crossmesh::layout::Dtype;
use crossmesh::layout::model::{self, Dimensions};
use crossmesh::layout::parallel::{Origin, OriginAxis, Rules};
use crossmesh::plan::Manifest;
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::path::Path;

/// Where the bytes of a tensor come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Bytes `range` of file number `file` of the model.
    File { file: usize, range: Range<u64> },
    /// Made by [`synthesise`](super::synthetic::synthesise).
    Synthetic { seed: u64 },
    /// Not on this host.
    Elsewhere,
    /// Some indices of another tensor, which is no part itself.
    Part { whole: Box<TensorSource>, axes: Vec<OriginAxis> },
}

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorSource {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: Dtype,
    pub(crate) contents: Contents,
}

impl TensorSource {
    /// Bytes of the whole tensor.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        // Checked when the model was opened; a zero extent may stand beside extents whose product overflows.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product::<u64>() * self.dtype.bytes() }
    }
}

/// What a model holds, without its contents; what a rank tells others that do not have the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Catalogue {
    tensors: Vec<(String, Vec<u64>, Dtype)>,
    dimensions: Dimensions,
    tied: Vec<Vec<String>>,
    layers: Option<LayerText>,
}

/// A model that is open for reading.
#[derive(Debug)]
pub(crate) struct Model {
    tensors: Vec<TensorSource>,
    files: Vec<MappedFile>,
    dimensions: Dimensions,
    tied: Vec<Vec<String>>,
    /// The layer file that it was made of.
    layers: Option<LayerText>,
}

impl Model {
    /// Opens a `.safetensors` file, an index or the folder of one, a folder with one `.safetensors` file, or a
    /// description that ends in `.model.json` or is a layer file of NCCL M2N; or, where no file has the name, makes a
    /// built-in model of that name.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        if let Some(name) = path.to_str().filter(|text| is_name(text))
            && !path.exists()
        {
            let unknown = |source| CheckpointError::NoSuchName { name: name.to_string(), source };
            return Ok(Self::described(&model::Model::published(name).map_err(unknown)?));
        }
        let model = Self::open_tensors(path)?;
        Ok(Self { dimensions: model.dimensions.or(config::beside(path)?), ..model })
    }

    fn open_tensors(path: &Path) -> Result<Self, CheckpointError> {
        let metadata = std::fs::metadata(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CheckpointError::Missing { path: path.to_path_buf(), source },
            _ => CheckpointError::Io { action: "open", path: path.to_path_buf(), source },
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if metadata.is_dir() {
            Self::open_folder(path)
        } else if name.ends_with(".safetensors") {
            let (file, header) = open_file(path)?;
            Ok(Self::new(file_tensors(header.tensors, 0).collect(), vec![file]))
        } else if name.ends_with(".safetensors.index.json") {
            Self::open_index(path)
        } else if name.ends_with(".model.json") {
            Ok(Self::described(&description::read(path)?))
        } else {
            let layers =
                layer_file::read(path)?.ok_or_else(|| CheckpointError::NotAModel { path: path.to_path_buf() })?;
            Ok(Self { layers: Some(layers.clone()), ..Self::described(&layers.parse()?.model) })
        }
    }

    fn open_folder(path: &Path) -> Result<Self, CheckpointError> {
        let index = path.join(index::FILE_NAME);
        if index.exists() {
            return Self::open_index(&index);
        }
        let fail = |source| CheckpointError::Io { action: "list", path: path.to_path_buf(), source };
        let files = files::shards_in(path).map_err(fail)?;
        match files.as_slice() {
            [file] => Self::open_tensors(file),
            _ => Err(CheckpointError::Folder { path: path.to_path_buf(), count: files.len() }),
        }
    }

    fn open_index(path: &Path) -> Result<Self, CheckpointError> {
        let (tensors, files) = index::read(path)?;
        Ok(Self::new(tensors, files))
    }

    fn new(mut tensors: Vec<TensorSource>, files: Vec<MappedFile>) -> Self {
        tensors.sort_by(|one, two| one.name.cmp(&two.name));
        Self { tensors, files, dimensions: Dimensions::default(), tied: Vec::new(), layers: None }
    }

    /// A model with synthesised contents.
    pub(crate) fn described(model: &model::Model) -> Self {
        let (dimensions, tied) = (model.dimensions(), model.tied().to_vec());
        Self { dimensions, tied, ..Self::new(description::synthetic(model), Vec::new()) }
    }

    /// What the model holds.
    pub(crate) fn catalogue(&self) -> Catalogue {
        let entry = |tensor: &TensorSource| (tensor.name.clone(), tensor.shape.clone(), tensor.dtype);
        Catalogue {
            tensors: self.tensors.iter().map(entry).collect(),
            dimensions: self.dimensions,
            tied: self.tied.clone(),
            layers: self.layers.clone(),
        }
    }

    /// A model whose contents are on other hosts only.
    pub(crate) fn elsewhere(catalogue: Catalogue) -> Self {
        let tensors = catalogue.tensors.into_iter();
        let contents = Contents::Elsewhere;
        let tensor = |(name, shape, dtype)| TensorSource { name, shape, dtype, contents: contents.clone() };
        let Catalogue { dimensions, tied, layers, .. } = catalogue;
        Self { dimensions, tied, layers, ..Self::new(tensors.map(tensor).collect(), Vec::new()) }
    }

    /// The model without its contents, as plans are made of it; every tensor holds something.
    pub(crate) fn description(&self, name: &str) -> Result<model::Model, model::ModelError> {
        if let Some(TensorSource { name: tensor, shape, .. }) =
            self.tensors.iter().find(|tensor| tensor.shape.contains(&0))
        {
            let (origin, tensor, shape) = (name.to_string(), tensor.clone(), shape.clone());
            return Err(model::ModelError::EmptyTensor { origin, tensor, shape });
        }
        let tensors = self.tensors.iter();
        let tensors =
            tensors.map(|tensor| model::ModelTensor::new(&tensor.name, tensor.shape.clone(), tensor.dtype)).collect();
        Ok(model::Model::new(name, tensors)?.with_dimensions(self.dimensions).with_tied(self.tied.clone()))
    }

    /// What the model itself says of its axes, in place of the rules of model families.
    pub(crate) fn rules(&self) -> Result<Option<Rules>, CheckpointError> {
        self.layers.as_ref().map(|layers| Ok(layers.parse()?.rules)).transpose()
    }

    /// The same contents as the tensors of a manifest, of which each has an origin in this model.
    pub(crate) fn arranged(self, manifest: &Manifest, origins: &[Origin]) -> Self {
        let tensors = manifest.tensors().iter().zip(origins).map(|(tensor, origin)| {
            let whole = &self.tensors[origin.tensor];
            let contents = match origin.axes.as_slice() {
                [] => whole.contents.clone(),
                axes => Contents::Part { whole: Box::new(whole.clone()), axes: axes.to_vec() },
            };
            let (shape, dtype) = (tensor.source.shape().to_vec(), tensor.source.dtype());
            TensorSource { name: tensor.name.clone(), shape, dtype, contents }
        });
        let tensors = tensors.collect();
        self.with_tensors(tensors)
    }

    pub(super) fn with_tensors(self, tensors: Vec<TensorSource>) -> Self {
        Self { tensors, ..self }
    }

    /// Whether the contents are on this host.
    pub(crate) fn is_here(&self) -> bool {
        self.tensors.iter().all(|tensor| match &tensor.contents {
            Contents::Part { whole, .. } => whole.contents != Contents::Elsewhere,
            contents => *contents != Contents::Elsewhere,
        })
    }

    /// The tensors: sorted by name, or as they were arranged.
    pub(crate) fn tensors(&self) -> &[TensorSource] {
        &self.tensors
    }

    /// The files that hold them; none for synthesised contents.
    pub(crate) fn files(&self) -> &[MappedFile] {
        &self.files
    }

    /// Bytes of all tensors; `None` when they do not fit 64 bits.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.tensors.iter().try_fold(0u64, |sum, tensor| sum.checked_add(tensor.bytes()))
    }
}

/// Whether what is no file was meant as the name of a built-in model.
fn is_name(text: &str) -> bool {
    !text.contains('/') && !text.ends_with(".safetensors") && !text.ends_with(".json")
}

/// Maps a safetensors file and reads its header.
pub(super) fn open_file(path: &Path) -> Result<(MappedFile, Header), CheckpointError> {
    let file = MappedFile::open(path)?;
    match Header::parse(file.bytes()) {
        Ok(header) => Ok((file, header)),
        Err(source) => Err(CheckpointError::Header { path: path.to_path_buf(), source }),
    }
}

/// The tensors of a header as those of file number `file`.
pub(super) fn file_tensors(tensors: Vec<HeaderTensor>, file: usize) -> impl Iterator<Item = TensorSource> {
    tensors.into_iter().map(move |HeaderTensor { name, dtype, shape, range }| TensorSource {
        name,
        shape,
        dtype,
        contents: Contents::File { file, range },
    })
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
