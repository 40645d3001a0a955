//! What a refit leaves. In: destinations, where to. Out: `rank-N.safetensors` and `rank-N.layout.json` of
//! every destination rank. Guarantee: files appear whole or not at all, and no rank's
//! shards before all ranks' are on disk; places that cannot be written to are found out before anything moves.

use super::Arguments;
use super::error::RefitError;
use super::shards::{SideMemory, swapped};
use crate::apart;
use crate::case;
use crate::checkpoint::{LayoutEntry, LayoutFile, PendingFile, ShardTensor, prepare_shards};
use crate::result_file::ResultFile;
use crossmesh::base::Rank;
use crossmesh::comm::CommError;
use crossmesh::layout::parallel::FusedTensor;
use crossmesh::plan::Manifest;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Kinds of files of a rank.
const SHARDS: &str = "safetensors";
const LAYOUT: &str = "layout.json";

/// Makes the folder for the shards of `rank` and finds out whether files can be made there.
pub(super) fn try_folder(arguments: &Arguments, folder: &Path, rank: Rank) -> Result<(), RefitError> {
    std::fs::create_dir_all(folder).map_err(|source| RefitError::Folder { path: folder.to_path_buf(), source })?;
    let [shards, layout] = [SHARDS, LAYOUT].map(|kind| file_of(folder, rank, kind));
    let written = [("--out", Some(&*shards)), ("--out", Some(&*layout)), ("--json", arguments.json.as_deref())];
    apart::check(&read_by(arguments).each_ref().map(|(option, path)| (*option, path.as_deref())), &written)?;
    try_file("out", &folder.join("rank"))
}

/// Finds out whether the results can be written.
pub(super) fn try_results(arguments: &Arguments) -> Result<(), RefitError> {
    let Some(path) = &arguments.json else { return Ok(()) };
    let read = read_by(arguments);
    apart::check(&read.each_ref().map(|(option, path)| (*option, path.as_deref())), &[("--json", Some(path))])?;
    ResultFile::try_path(path).map_err(|source| RefitError::Target { option: "json", source })
}

/// Options that name files to read.
fn read_by(arguments: &Arguments) -> [(&'static str, Option<PathBuf>); 5] {
    [
        ("MODEL", arguments.model.clone()),
        ("--case", arguments.case.as_deref().map(case::path)),
        ("--rules", arguments.rules.clone()),
        ("--expert-map-src", arguments.expert_map_src.clone()),
        ("--expert-map-dst", arguments.expert_map_dst.clone()),
    ]
}

/// A file of `rank`.
fn file_of(folder: &Path, rank: Rank, kind: &str) -> PathBuf {
    folder.join(format!("rank-{:05}.{kind}", rank.0))
}

fn try_file(option: &'static str, path: &Path) -> Result<(), RefitError> {
    let tried = PendingFile::write(path, 0, |_| Ok(()));
    tried.map(drop).map_err(|source| RefitError::Target { option, source })
}

/// What destinations store otherwise than as the tensors of the manifest.
pub(super) struct Stored {
    /// In place of tensors.
    pub(super) fused: Vec<FusedTensor>,
    /// Numbers of tensors with a dimension of extent 1 in front, which they have in stacks only.
    pub(super) leading: Vec<usize>,
}

/// Writes this rank's shards under no name yet; parts of a fused tensor as that.
pub(super) fn prepare(
    folder: &Path,
    manifest: &Manifest,
    stored: &Stored,
    rank: Rank,
    memory: &SideMemory,
) -> Result<Vec<PendingFile>, RefitError> {
    let mut whole: HashMap<usize, &FusedTensor> = HashMap::new();
    stored.fused.iter().for_each(|fused| whole.extend(fused.tensors.iter().map(|&part| (part, fused))));
    let leads = |index: &usize| {
        stored.leading.binary_search(index).is_ok() && whole.get(index).is_none_or(|fused| fused.stacked.is_none())
    };
    let held = || {
        let tensors = manifest.tensors().iter().zip(&memory.tensors).enumerate();
        tensors.filter_map(|(index, (tensor, place))| Some((index, tensor, place.as_ref()?)))
    };
    let layouts = held().map(|(index, tensor, _)| LayoutEntry {
        name: &tensor.name,
        layout: &tensor.destination,
        within: whole.get(&index).map(|fused| fused.name.as_str()),
        is_leading: leads(&index),
        is_transposed: memory.is_transposed(index),
    });
    let Some(layout_file) = LayoutFile::new(rank, layouts) else { return Ok(Vec::new()) };
    if held().next().is_none() {
        return Ok(Vec::new());
    }
    let bytes = memory.buffer.read().map_err(CommError::from)?;
    // Of a fused tensor every part has the place of the whole; it is written for the first that is here.
    let mut written: HashSet<&str> = HashSet::new();
    let first = held().filter(|(index, ..)| whole.get(index).is_none_or(|fused| written.insert(&fused.name)));
    let shapes: Vec<_> = first
        .map(|(index, tensor, (offset, shape))| {
            let shape = if memory.is_transposed(index) { swapped(shape) } else { shape.clone() };
            (index, tensor, *offset, shape[usize::from(leads(&index))..].to_vec())
        })
        .collect();
    let tensors = shapes.iter().map(|(index, tensor, offset, shape)| ShardTensor {
        name: whole.get(index).map_or(&tensor.name, |fused| &fused.name),
        dtype: tensor.destination.dtype(),
        shape,
        bytes: &bytes[*offset as usize..][..tensor.destination.local_bytes(rank) as usize],
    });
    let metadata = BTreeMap::from([("rank".to_string(), rank.to_string()), ("format".to_string(), "crossmesh".into())]);
    let name = |kind| file_of(folder, rank, kind);
    let shards = prepare_shards(&name("safetensors"), tensors, &metadata)?;
    Ok(vec![shards, layout_file.prepare(&name(LAYOUT))?])
}

/// Gives this rank's shards their names.
pub(super) fn place(files: Vec<PendingFile>) -> Result<(), RefitError> {
    files.into_iter().try_for_each(|file| Ok(file.place()?))
}
