//! What a rank's shard file means. In: the layouts of its tensors. Out: a JSON file beside the shards. Guarantee:
//! enough to put the shards together again without this program: the global shape of every tensor, its mesh and
//! placements, and the intervals of every dimension that the rank holds, in storage order.

use super::atomic_file::PendingFile;
use super::error::WriteError;
use crossmesh::base::Rank;
use crossmesh::layout::{AxisMap, Dtype, Interval, Layout, Mesh, Placement};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;

/// Version of this file's form.
const VERSION: u32 = 1;

/// The layout file of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayoutFile {
    version: u32,
    pub(crate) rank: Rank,
    /// Meshes that the tensors name by number.
    pub(crate) meshes: Vec<MeshText>,
    pub(crate) tensors: Vec<TensorText>,
}

/// A mesh: row-major, the last axis fastest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MeshText {
    pub(crate) shape: Vec<u32>,
    pub(crate) ranks: Vec<Rank>,
}

/// A tensor of the rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorText {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: Dtype,
    /// Number of its mesh.
    pub(crate) mesh: usize,
    /// One per mesh axis.
    pub(crate) placements: Vec<Placement>,
    /// What the rank holds: per dimension the intervals `[lo, hi)` in storage order.
    pub(crate) intervals: Vec<Vec<(u64, u64)>>,
    /// The tensor of the shard file that it is part of, when that has another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) within: Option<String>,
    /// Unless intervals simply follow each other: for each the position of its first index in the shard, and the distance
    /// of neighbours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) positions: Option<Vec<Vec<(u64, u64)>>>,
}

impl LayoutFile {
    /// The file of `rank` for these tensors, each with the tensor of the shard file that it is part of if it is no tensor
    /// there itself; `None` when one of the meshes lacks the rank.
    pub(crate) fn new<'a>(
        rank: Rank,
        tensors: impl IntoIterator<Item = (&'a str, &'a Layout, Option<&'a str>)>,
    ) -> Option<Self> {
        let mut file = Self { version: VERSION, rank, meshes: Vec::new(), tensors: Vec::new() };
        let mut meshes: Vec<&Mesh> = Vec::new();
        for (name, layout, within) in tensors {
            let mesh = meshes.iter().position(|&mesh| mesh == layout.mesh()).unwrap_or_else(|| {
                meshes.push(layout.mesh());
                meshes.len() - 1
            });
            let pair = |part: Interval| (part.lo, part.hi);
            let maps = layout.axis_maps(rank)?;
            file.tensors.push(TensorText {
                name: name.to_string(),
                shape: layout.shape().to_vec(),
                dtype: layout.dtype(),
                mesh,
                placements: layout.placements().to_vec(),
                intervals: maps.iter().map(|map| map.intervals().map(pair).collect()).collect(),
                within: within.map(str::to_string),
                positions: positions(&maps),
            });
        }
        file.meshes = meshes
            .iter()
            .map(|mesh| MeshText { shape: mesh.shape().to_vec(), ranks: mesh.ranks().collect() })
            .collect();
        Some(file)
    }

    /// Writes the file, to be placed at `path`.
    pub(crate) fn prepare(&self, path: &Path) -> Result<PendingFile, WriteError> {
        let mut text =
            serde_json::to_vec_pretty(self).map_err(|source| WriteError::Json { path: path.to_path_buf(), source })?;
        text.push(b'\n');
        PendingFile::write(path, text.len() as u64, |file| file.write_all(&text))
    }
}

/// Positions of all intervals, unless they follow each other from 0 to the end.
fn positions(maps: &[AxisMap]) -> Option<Vec<Vec<(u64, u64)>>> {
    let follow = |map: &AxisMap| map.stored() == map.extent() && map.segments().iter().all(|segment| segment.step == 1);
    if maps.iter().all(follow) {
        return None;
    }
    let of = |map: &AxisMap| map.segments().iter().map(|segment| (segment.local, segment.step)).collect();
    Some(maps.iter().map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::layout::Part;
    use std::sync::Arc;

    #[test]
    fn a_written_file_says_what_the_rank_holds() {
        let mesh = |ranks: [u32; 2]| Arc::new(Mesh::new(vec![2], ranks.map(Rank).to_vec()).unwrap());
        let layout = |shape: &[u64], ranks, placement| {
            Layout::new(shape.to_vec(), Dtype::BF16, mesh(ranks), vec![placement]).unwrap()
        };
        let row = layout(&[5, 3], [0, 1], Placement::shard(0));
        let scalar = layout(&[], [1, 0], Placement::Replicate);
        let uneven = layout(&[4], [0, 1], Placement::sizes(0, [4, 0]));
        let tensors = [("row", &row, None), ("scalar", &scalar, Some("all")), ("uneven", &uneven, None)];
        let file = LayoutFile::new(Rank(1), tensors).unwrap();
        assert_eq!(file.meshes.len(), 2);
        assert_eq!(file.tensors.iter().map(|tensor| tensor.mesh).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(file.tensors[0].intervals, [vec![(2, 5)], vec![(0, 3)]]);
        assert_eq!(file.tensors[1].intervals, Vec::<Vec<(u64, u64)>>::new());
        assert_eq!(file.tensors[2].intervals, [vec![]]);
        assert_eq!(file.tensors[1].within.as_deref(), Some("all"));
        assert!(file.tensors.iter().all(|tensor| tensor.positions.is_none()));
        assert_eq!(LayoutFile::new(Rank(2), tensors), None);
        let at = |lo, hi| Part::Global(Interval { lo, hi });
        let holes = [AxisMap::new([]), AxisMap::of_parts([Part::Hole(2), at(3, 5), at(0, 3)]).unwrap()];
        let holed = layout(&[5, 3], [0, 1], Placement::parts(0, holes));
        let file_of_holes = LayoutFile::new(Rank(1), [("holed", &holed, None)]).unwrap();
        assert_eq!(file_of_holes.tensors[0].positions, Some(vec![vec![(2, 1), (4, 1)], vec![(0, 1)]]));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank1.layout.json");
        file.prepare(&path).unwrap().place().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<LayoutFile>(&text).unwrap(), file);
        assert!(text.contains("\"Replicate\"") && text.contains("\"dtype\": \"BF16\""), "{text}");
    }
}
