//! Files that describe models, sides, rules and plans. In: any bytes. Out: whether they are such a file. Guarantee: what is
//! accepted survives being written and read again, or being used for a small job.

use super::{ORIGIN, bytes_of, text};
use crossmesh::base::Rank;
use crossmesh::layout::model::{Model, ModelTensor};
use crossmesh::layout::parallel::{
    ExpertFile, FuseSide, LayerFile, ParallelSpec, Rules, SideLayouts, System, WeightView,
};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement};
use crossmesh::plan::Manifest;
use crossmesh::route::{PlanFileError, RouteOptions, SavedPlan};
use crossmesh::topology::Topology;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

/// Most ranks of sides that layouts are made for.
const MOST_RANKS: u32 = 64;

/// A model, of NCCL M2N's form or our own.
pub(crate) fn model(bytes: &[u8]) -> bool {
    let Some(model) = text(bytes).and_then(|text| Model::parse(text, ORIGIN).ok()) else { return false };
    let again = Model::parse(&model.to_json(), ORIGIN).expect("what is written is read");
    assert_eq!(
        (again.name(), again.tensors(), again.tied(), again.dimensions()),
        (model.name(), model.tensors(), model.tied(), model.dimensions())
    );
    let _ = (model.bytes(), model.elements(|_| true));
    true
}

pub(crate) fn model_seeds() -> Vec<Vec<u8>> {
    let mut seeds = bytes_of(&[
        r#"{"a.weight": {"shape": [8, 6], "dtype": "BF16"}, "b": {"shape": [], "dtype": "F32", "shard": "x"}}"#,
    ]);
    seeds.push(example().with_tied(vec![vec!["embed.weight".into(), "head.weight".into()]]).to_json().into_bytes());
    seeds
}

/// A system file of NCCL M2N.
pub(crate) fn system(bytes: &[u8]) -> bool {
    let Some(system) = text(bytes).and_then(|text| System::parse(text, ORIGIN).ok()) else { return false };
    for spec in [&system.source, &system.destination] {
        meshes(spec);
    }
    true
}

/// The meshes of a side, if it is small.
pub(crate) fn meshes(spec: &ParallelSpec) {
    if spec.rank_count() <= MOST_RANKS {
        for view in [WeightView::Dense, WeightView::Expert] {
            let mesh = spec.mesh(view, &ranks(spec.rank_count())).expect("both views have so many ranks");
            assert_eq!(mesh.ranks().count(), spec.rank_count() as usize);
        }
    }
}

fn ranks(count: u32) -> Vec<Rank> {
    (0..count).map(Rank).collect()
}

pub(crate) fn system_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[
        r#"{"_comment": "four trainer nodes and two generator nodes of four GPUs each, weights in BF16", "train": {"num_gpus": 16, "tp_size": 2, "cp_size": 1, "pp_size": 4, "dp_size": 2},
            "generation": {"num_gpus": 8, "tp_size": 4, "ep_size": 1, "fsdp_size": 1, "dp_size": 2}}"#,
        r#"{"train": {"num_gpus": 8, "tp_size": 2, "dp_size": 4, "etp_size": 1, "ep_size": 4, "edp_size": 2},
            "generation": {"num_gpus": 1}}"#,
    ])
}

/// A layer file of NCCL M2N; its rules must know its own tensors.
pub(crate) fn layers(bytes: &[u8]) -> bool {
    let Some(file) = text(bytes).and_then(|text| LayerFile::parse(text, ORIGIN, Dtype::BF16).ok()) else {
        return false;
    };
    if file.model.tensors().len() <= 64 {
        lie(&file.model, &file.rules);
    }
    true
}

pub(crate) fn layers_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[r#"{"num_layers": 3, "default_tensors": [
            {"name": "moe", "dims": [16, 4, 8], "tp_shard_dim": 1, "ep_shard_dim": 0, "_comment": "experts"},
            {"name": "norm", "dims": [8], "tp_shard_dim": -1}]}"#])
}

/// Rules, applied to a small model by themselves and in front of the embedded ones.
pub(crate) fn rules(bytes: &[u8]) -> bool {
    let Some(rules) = text(bytes).and_then(|text| Rules::parse(text, ORIGIN).ok()) else { return false };
    let model = example();
    lie(&model, &rules);
    if let Ok(embedded) = Rules::embedded() {
        lie(&model, &embedded.with_overrides(rules));
    }
    true
}

pub(crate) fn rules_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        Rules::family_names().filter_map(Rules::family_text).map(|text| text.as_bytes().to_vec()).collect();
    seeds.extend(bytes_of(&["layers = [\"layers\"]\n\n[[rule]]\nnames = [\"*.{q,k}_proj.weight\"]\ntp = 0\n\n\
        [[rule]]\nnames = [\"head.weight\"]\ntp = \"replicate\"\nstage = \"last\"\ncast = \"never\"\n\n\
        [[tied]]\nnames = [\"embed.weight\", \"head.weight\"]\n"]));
    seeds
}

/// An expert map, for the experts of a small model.
pub(crate) fn experts(bytes: &[u8]) -> bool {
    let Some(file) = text(bytes).and_then(|text| ExpertFile::parse(text, ORIGIN).ok()) else { return false };
    let rules = Rules::embedded().expect("embedded rules").with_experts(FuseSide::Destination, file);
    lie(&example(), &rules);
    true
}

pub(crate) fn experts_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[r#"{"physical_to_logical_map": [[1, 0, 0, 1]]}"#, "[[0, 1], [1, 0]]", "[1, 0]"])
}

/// The layouts of all tensors of `model` on a side that has every axis.
fn lie(model: &Model, rules: &Rules) {
    let Ok(ruled) = rules.apply(model) else { return };
    let spec = ParallelSpec::parse("tp=2,ep=2,fsdp=2,dp=2,pp=2").expect("a spec");
    let Ok(mut side) = SideLayouts::new(&ruled, &spec, &ranks(spec.rank_count())) else { return };
    for index in (0..model.tensors().len()).filter(|&index| !ruled.is_alias(index)) {
        let _ = side.layout(index).map(|layout| assert_eq!(layout.shape(), &model.tensors()[index].shape[..]));
    }
}

fn example() -> Model {
    let names = [
        ("embed.weight", vec![12, 8]),
        ("layers.0.self_attn.q_proj.weight", vec![8, 8]),
        ("layers.0.self_attn.k_proj.weight", vec![4, 8]),
        ("layers.0.self_attn.v_proj.weight", vec![4, 8]),
        ("layers.1.mlp.experts.0.up_proj.weight", vec![6, 8]),
        ("layers.1.mlp.experts.1.up_proj.weight", vec![6, 8]),
        ("layers.1.mlp.experts.gate_proj.weight", vec![2, 6, 8]),
        ("norm.weight", vec![8]),
        ("head.weight", vec![12, 8]),
    ];
    Model::new("example", names.map(|(name, shape)| ModelTensor::new(name, shape, Dtype::BF16)).to_vec())
        .expect("names differ")
}

/// Head and checksum of a plan file.
const MAGIC: &[u8] = b"CMPLAN\r\n";
const HEAD: usize = MAGIC.len() + 4 + 8;
const DIGEST: usize = 32;

/// A plan file, or its content: checksum and digest would turn all others away.
pub(crate) fn plan(bytes: &[u8]) -> bool {
    let path = Path::new(ORIGIN);
    if bytes.starts_with(MAGIC) {
        return SavedPlan::from_bytes(bytes, path).is_ok();
    }
    let mut content = bytes.to_vec();
    let plan = match SavedPlan::from_bytes(&sealed(&content), path) {
        Err(PlanFileError::Digest { expected, .. }) => {
            let at = content.len() - DIGEST;
            for (byte, digits) in content[at..].iter_mut().zip(expected.as_bytes().chunks_exact(2)) {
                *byte = u8::from_str_radix(std::str::from_utf8(digits).expect("digits"), 16).expect("two digits");
            }
            SavedPlan::from_bytes(&sealed(&content), path)
        }
        read => read,
    };
    let Ok(plan) = plan else { return false };
    let again = SavedPlan::from_bytes(&saved(&plan), path).expect("what is written is read");
    assert_eq!((again.manifest.tensors(), again.options), (plan.manifest.tensors(), plan.options));
    let _ = plan.expect(&Topology::from_domains(&[0, 0, 1, 1]), RouteOptions::default(), path);
    true
}

/// The file of a content.
fn sealed(content: &[u8]) -> Vec<u8> {
    let (version, length) = (SavedPlan::VERSION.to_le_bytes(), (content.len() as u64).to_le_bytes());
    [MAGIC, &version, &length, content, &Sha256::digest(content)].concat()
}

fn saved(plan: &SavedPlan) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("plan");
    plan.save(&path).expect("a file");
    std::fs::read(path).expect("the file")
}

pub(crate) fn plan_seeds() -> Vec<Vec<u8>> {
    let layout = |first: u32, placements: [Placement; 2]| {
        let mesh = Mesh::contiguous(vec![2, 1], Rank(first)).expect("a mesh");
        Arc::new(Layout::new(vec![8, 6], Dtype::BF16, Arc::new(mesh), placements.to_vec()).expect("a layout"))
    };
    let source = layout(0, [Placement::shard(0), Placement::Replicate]);
    let wanted = [
        layout(2, [Placement::chunk(1), Placement::shard(0)]),
        layout(2, [Placement::sizes(0, [5, 3]), Placement::Replicate]),
    ];
    let mut manifest = Manifest::new();
    for (name, destination) in ["up", "down"].into_iter().zip(wanted) {
        manifest.push(name, source.clone(), destination).expect("a tensor");
    }
    let topology = Topology::from_domains(&[0, 0, 1, 1]);
    let plan = SavedPlan::new(Arc::new(manifest), &topology, RouteOptions::default()).expect("a plan");
    let file = saved(&plan);
    let content = file[HEAD..file.len() - DIGEST].to_vec();
    vec![content, file]
}
