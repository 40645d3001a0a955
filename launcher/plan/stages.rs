//! Stages of a pipeline. In: a manifest, a machine. Out: what each stage costs alone. Guarantee: source ranks that share a
//! tensor, directly or through others, are one stage; the tensors of all stages are those of the manifest.

use super::error::PlanCommandError;
use super::report::StageReport;
use crossmesh::base::Rank;
use crossmesh::plan::{Manifest, Plan};
use crossmesh::route::{Injection, nic_bound};
use crossmesh::topology::Machine;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A stage while it is made.
#[derive(Default)]
struct Stage {
    manifest: Manifest,
    ranks: usize,
}

/// Every stage by its first rank; none when there is only one.
pub(super) fn stages(manifest: &Manifest, machine: &Machine) -> Result<Vec<StageReport>, PlanCommandError> {
    let first = first_ranks(manifest, machine.topology.size());
    let mut stages: BTreeMap<usize, Stage> = BTreeMap::new();
    for tensor in manifest.tensors() {
        let stage = stages.entry(first[tensor.source.mesh().rank(0).index()]).or_default();
        let (source, destination) = (tensor.source.clone(), tensor.destination.clone());
        stage.manifest.push_with(tensor.name.clone(), source, destination, tensor.transform)?;
    }
    if stages.len() < 2 {
        return Ok(Vec::new());
    }
    for rank in manifest.side_ranks(|tensor| &tensor.source) {
        stages.entry(first[rank.index()]).or_default().ranks += 1;
    }
    stages.into_iter().map(|(first, stage)| report(first, stage, machine)).collect()
}

/// Per rank the lowest that it shares a source tensor with, directly or through others; itself without any.
fn first_ranks(manifest: &Manifest, ranks: usize) -> Vec<usize> {
    let mut first: Vec<usize> = (0..ranks).collect();
    for tensor in manifest.tensors() {
        let mesh = tensor.source.mesh();
        let one = root(&first, mesh.rank(0));
        for rank in mesh.ranks() {
            let other = root(&first, rank);
            let one = root(&first, Rank(one as u32));
            first[one.max(other)] = one.min(other);
        }
    }
    (0..ranks).map(|rank| root(&first, Rank(rank as u32))).collect()
}

fn root(first: &[usize], rank: Rank) -> usize {
    let mut at = rank.index();
    while first[at] != at {
        at = first[at];
    }
    at
}

fn report(first: usize, stage: Stage, machine: &Machine) -> Result<StageReport, PlanCommandError> {
    let bytes = stage.manifest.global_bytes()?;
    let plan = Plan::compile(Arc::new(stage.manifest), machine.topology.size())?;
    let bound_seconds = nic_bound(&plan, machine, Injection::Striped).seconds;
    Ok(StageReport { first_rank: first as u32, ranks: stage.ranks, bytes, bound_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::layout::{Dtype, Layout, Mesh, Placement};

    fn layout(ranks: &[u32]) -> Arc<Layout> {
        let mesh = Mesh::new(vec![ranks.len() as u32], ranks.iter().copied().map(Rank).collect()).unwrap();
        let placements = vec![Placement::shard(0)];
        Arc::new(Layout::new(vec![64], Dtype::F32, Arc::new(mesh), placements).unwrap())
    }

    #[test]
    fn ranks_that_share_tensors_through_others_are_one_stage() {
        let mut manifest = Manifest::new();
        for (name, ranks) in [("a", &[5, 4][..]), ("b", &[1, 0]), ("c", &[2, 3]), ("d", &[3, 1]), ("e", &[2])] {
            manifest.push(name, layout(ranks), layout(&[6])).unwrap();
        }
        assert_eq!(first_ranks(&manifest, 7), [0, 0, 0, 0, 4, 4, 6]);
    }
}
