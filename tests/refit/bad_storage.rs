//! Rules about storage that cannot be used. In: rules made wrong on purpose. Out: nothing. Guarantee: each ends with exit
//! code 2 and an error on every rank that names file, line and value, and nothing is written.

use crate::job::{Job, entries};
use crate::model::{self, Tensor};
use safetensors::Dtype;

const MODEL: &[Tensor] = &[
    ("lm_head.weight", Dtype::F16, &[10, 4]),
    ("model.layers.0.mlp.gate_proj.weight", Dtype::F16, &[10, 4]),
    ("model.layers.0.mlp.up_proj.weight", Dtype::F16, &[10, 4]),
    ("model.norm.weight", Dtype::F16, &[4]),
];

#[test]
fn bad_rules() {
    let (folder, path) = model::file(MODEL);
    let store = |name: &str, keys: &str| format!("[[store]]\nnames = [\"{name}\"]\n{keys}\n");
    let head = |keys: &str| store("lm_head.weight", keys);
    let fuse = "[[fuse]]\nparts = [\"*.gate_proj.weight\", \"*.up_proj.weight\"]\ninto = \"*.gate_up\"\n";
    let cases: [(String, &[&str]); 27] = [
        (store("*.nothing", "transposed = true"), &["my.toml:1", "no tensor of model", "*.nothing"]),
        (head(""), &["my.toml:1", "says nothing about storage"]),
        (head("side = \"destination\""), &["says nothing about storage"]),
        ("[[store]]\nnames = []\ntransposed = true\n".into(), &["lists no names"]),
        (head("transpose = true"), &["unknown field `transpose`", "`transposed`"]),
        (head("side = \"left\"\ntransposed = true"), &["side = \"left\"", "destination, source, both"]),
        (store("model.norm.weight", "transposed = true"), &["transposed is for dimension 1", "shape [4]"]),
        (head("pad = { dim = 2, to = 12 }"), &["pad is for dimension 2", "shape [10, 4]"]),
        (head("pad = { to = 9 }"), &["pad to 9 indices", "has 10"]),
        (head("pad = { to = 0 }"), &["pad has a number of 0"]),
        (head("pad = { multiple = 0 }"), &["pad has a number of 0"]),
        (head("pad = { to = -1 }"), &["my.toml is no rules file"]),
        (head("pad = { }"), &["either to = N or multiple = N"]),
        (head("pad = { to = 12, per = \"rank\" }"), &["per = \"rank\" beside multiple only"]),
        (head("pad = { multiple = 2, per = \"node\" }"), &["per = \"node\"", "allowed are rank"]),
        (head("pad = { to = 12, value = 0.1 }"), &["0.1 cannot be stored exactly as F16"]),
        (head("side = \"source\"\npad = { to = 12, value = 1.0 }"), &["value for the source"]),
        (head("pad = { to = 9223372036854775807 }"), &["lm_head.weight", "64 bits"]),
        (head("pad = { multiple = 9223372036854775807, per = \"rank\" }"), &["64 bits"]),
        (head("crop = { to = 11 }"), &["crop to 11", "has 10"]),
        (head("crop = { to = 0 }"), &["crop has a number of 0"]),
        (head("side = \"both\"\ncrop = { to = 5 }"), &["crop leaves out indices"]),
        (head("heads = { of = \"keys\" }"), &["of = \"keys\"", "query, key-value"]),
        (head("heads = { of = \"query\" }"), &["does not say how many attention heads"]),
        (head("heads = { of = \"query\", query = 3, key_value = 1 }"), &["10 indices, which are not 3 heads"]),
        (
            format!("{}{}", head("transposed = true"), store("lm_head.*", "transposed = true")),
            &["my.toml:4", "matched by rule", "my.toml:1"],
        ),
        (
            format!("{fuse}{}", store("*.gate_proj.weight", "pad = { to = 12 }")),
            &["pad of tensor", "stored within", "gate_up"],
        ),
    ];
    for (rules, said) in cases {
        let job = Job::new(5, &path).with("--src tp=1 --dst tp=4").rules(&rules);
        let job = job.path("--out", &folder.path().join("out")).path("--json", &folder.path().join("out.json"));
        job.refused(said);
        assert_eq!(entries(folder.path()), ["model.safetensors", "my.toml"], "{rules}");
    }
}
