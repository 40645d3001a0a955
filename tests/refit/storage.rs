//! Tensors that a side stores in a way of its own: padded, cropped, transposed, cut at heads. In: small models. Out:
//! nothing. Guarantee: every shard is compared with elements that are counted out by hand.

use crate::assembly::shard;
use crate::job::Job;
use crate::model::{self, Elements, Tensor, built};
use safetensors::Dtype;

const VOCABULARY: &[Tensor] =
    &[("lm_head.weight", Dtype::F32, &[37, 3]), ("model.embed_tokens.weight", Dtype::BF16, &[37, 3])];

/// -1.5 as BF16.
const VALUE: [u8; 2] = [0xc0, 0xbf];

/// Rows `from..to` of a tensor, and `padding` behind its first `extent` rows.
fn padded(tensor: &Tensor, extent: usize, rows: std::ops::Range<usize>, padding: &[u8]) -> (Vec<usize>, Vec<u8>) {
    let elements = Elements::of(tensor);
    built(&[rows.len(), tensor.2[1]], |at| match rows.start + at[0] {
        row if row < extent => elements.at(&[row, at[1]]),
        _ => padding.to_vec(),
    })
}

#[test]
fn vocabulary_is_padded_on_either_side() {
    let rules = r#"
        [[store]]
        names = ["model.embed_tokens.weight"]
        side = "both"
        pad = { multiple = 8, value = -1.5 }
        [[store]]
        names = ["lm_head.weight"]
        side = "source"
        pad = { dim = 0, to = 48 }
    "#;
    let (folder, path) = model::file(VOCABULARY);
    for (number, (source, destination, bounds)) in
        [("tp=3", "tp=2", [0, 20, 40]), ("fsdp=3", "fsdp=2", [0, 20, 40]), ("dp=3", "dp=2", [0, 40, 40])]
            .into_iter()
            .enumerate()
    {
        let out = folder.path().join(format!("out{number}"));
        let job = Job::new(5, &path).run_with("--domains 2").with("--src").with(source).with("--dst").with(destination);
        job.rules(rules).path("--out", &out).verified();
        for rank in 0..2 {
            let rows = if number == 2 { 0..40 } else { bounds[rank]..bounds[rank + 1] };
            let expected = padded(&VOCABULARY[1], 37, rows, &VALUE);
            assert_eq!(shard(&out, 3 + rank, VOCABULARY[1].0), expected, "{destination}, rank {rank}");
        }
        for (rank, rows) in [0, 18, 37].windows(2).enumerate() {
            // 37 rows by the floor rule, or in chunks of 19.
            let rows = match number {
                0 => rows[0]..rows[1],
                1 => 19 * rank..(19 * rank + 19).min(37),
                _ => 0..37,
            };
            assert_eq!(shard(&out, 3 + rank, "lm_head.weight"), padded(&VOCABULARY[0], 37, rows, &[]), "{destination}");
        }
    }
}

/// A checkpoint that is padded itself; every rank's share is to be a multiple.
#[test]
fn what_a_checkpoint_has_padded_is_cut_off() {
    let rules = r#"
        [[store]]
        names = ["*.embed_tokens.weight", "lm_head.weight"]
        crop = { to = 30 }
        pad = { multiple = 6, per = "rank" }
    "#;
    let (folder, path) = model::file(VOCABULARY);
    let out = folder.path().join("out");
    let job = Job::new(5, &path).with("--src tp=2 --dst tp=3 --memory private");
    job.rules(rules).path("--out", &out).verified();
    for (tensor, zero) in [(&VOCABULARY[0], &[0u8; 4][..]), (&VOCABULARY[1], &[0; 2])] {
        for rank in 0..3 {
            let expected = padded(tensor, 30, 12 * rank..12 * rank + 12, zero);
            assert_eq!(shard(&out, 2 + rank, tensor.0), expected, "{} on rank {rank}", tensor.0);
        }
    }
    let cropped = "[[store]]\nnames = [\"lm_head.weight\"]\ncrop = { dim = 1, to = 2 }\n";
    let out = folder.path().join("cropped");
    Job::new(2, &path).with("--src tp=1 --dst tp=1").rules(cropped).path("--out", &out).verified();
    let elements = Elements::of(&VOCABULARY[0]);
    assert_eq!(shard(&out, 1, "lm_head.weight"), built(&[37, 2], |at| elements.at(at)));
}

#[test]
fn transposed_in_memory() {
    const MLP: &[Tensor] = &[
        ("model.layers.0.mlp.down_proj.weight", Dtype::BF16, &[10, 6]),
        ("model.layers.0.mlp.gate_proj.weight", Dtype::F32, &[6, 10]),
        ("model.layers.0.mlp.up_proj.weight", Dtype::F32, &[6, 10]),
        ("model.layers.0.self_attn.o_proj.weight", Dtype::F8_E4M3, &[10, 7]),
    ];
    let rules = r#"
        [[store]]
        names = ["*.mlp.{gate,up}_proj.weight"]
        transposed = true
        [[store]]
        names = ["*.down_proj.weight"]
        side = "source"
        transposed = true
        [[store]]
        names = ["*.o_proj.weight"]
        side = "both"
        transposed = true
        [[fuse]]
        parts = ["*.mlp.gate_proj.weight", "*.mlp.up_proj.weight"]
        into = "*.mlp.gate_up.weight"
    "#;
    let (folder, path) = model::file(MLP);
    let out = folder.path().join("out");
    let job = Job::new(5, &path).run_with("--domains 2").with("--src tp=3 --dst tp=2");
    job.rules(rules).path("--out", &out).verified();
    let [down, gate, up, attention] = [0, 1, 2, 3].map(|at| Elements::of(&MLP[at]));
    for rank in 0..2 {
        let found = |name: &str| shard(&out, 3 + rank, &format!("model.layers.0.{name}.weight"));
        assert_eq!(found("mlp.down_proj"), built(&[10, 3], |at| down.at(&[at[0], 3 * rank + at[1]])));
        let fused = built(&[10, 6], |at| match at[1] {
            row if row < 3 => gate.at(&[3 * rank + row, at[0]]),
            row => up.at(&[3 * rank + row - 3, at[0]]),
        });
        assert_eq!(found("mlp.gate_up"), fused);
        // Columns 0 to 3, and 3 to 7.
        let expected = built(&[3 + rank, 10], |at| attention.at(&[at[1], 3 * rank + at[0]]));
        assert_eq!(found("self_attn.o_proj"), expected);
    }
    let layout = std::fs::read_to_string(out.join("rank-00003.layout.json")).unwrap();
    assert_eq!(layout.matches("\"transposed\": true").count(), 3);
}

/// Key and value heads that several ranks use are on all of these, whatever the ratio.
#[test]
fn heads_are_not_cut() {
    const ATTENTION: &[Tensor] = &[
        ("model.layers.0.self_attn.k_proj.weight", Dtype::BF16, &[6, 5]),
        ("model.layers.0.self_attn.q_proj.weight", Dtype::BF16, &[24, 5]),
    ];
    let (folder, path) = model::file(ATTENTION);
    std::fs::write(folder.path().join("config.json"), r#"{"num_attention_heads": 8, "num_key_value_heads": 2}"#)
        .unwrap();
    let rules = |split: &str| {
        format!(
            "[[store]]\nnames = [\"*.k_proj.weight\"]\nheads = {{ of = \"key-value\", split = \"{split}\" }}\n\
             [[store]]\nnames = [\"*.q_proj.weight\"]\nheads = {{ of = \"query\", query = 8, key_value = 2, split = \"{split}\" }}\n"
        )
    };
    let key = Elements::of(&ATTENTION[0]);
    // For every rank the key-value heads: each rank's share of 8 query heads by four.
    let cases: [(&str, &str, &[&[usize]]); 5] = [
        ("tp=1", "even", &[&[0, 1]]),
        ("tp=2", "even", &[&[0], &[1]]),
        ("tp=4", "even", &[&[0], &[0], &[1], &[1]]),
        ("tp=8", "even", &[&[0], &[0], &[0], &[0], &[1], &[1], &[1], &[1]]),
        ("tp=3", "as-needed", &[&[0], &[0, 1], &[1]]),
    ];
    for (number, (spec, split, heads)) in cases.into_iter().enumerate() {
        let out = folder.path().join(format!("out{number}"));
        let job = Job::new(1 + heads.len(), &path).with("--src tp=1 --dst").with(spec);
        job.rules(&rules(split)).path("--out", &out).verified();
        for (rank, heads) in heads.iter().enumerate() {
            let expected = built(&[3 * heads.len(), 5], |at| key.at(&[3 * heads[at[0] / 3] + at[0] % 3, at[1]]));
            assert_eq!(shard(&out, 1 + rank, ATTENTION[0].0), expected, "{spec}, rank {rank}");
        }
    }
    // The rules of the family say the same.
    let out = folder.path().join("built-in");
    Job::new(10, &path).with("--src tp=2 --dst tp=8").path("--out", &out).verified();
    for rank in 0..8 {
        let expected = built(&[3, 5], |at| key.at(&[3 * (rank / 4) + at[0], at[1]]));
        assert_eq!(shard(&out, 2 + rank, ATTENTION[0].0), expected, "rank {rank}");
    }
    let out = folder.path().join("uneven");
    Job::new(4, &path).with("--src tp=1 --dst tp=3").path("--out", &out).refused(&[
        "rule llama.toml:",
        "self_attn.k_proj.weight",
        "under tp=3",
        "8 query heads and 2 key-value heads",
    ]);
    assert!(!out.exists(), "nothing is written");
    let uneven = Job::new(4, &path).with("--src tp=1 --dst tp=3").rules(&rules("even"));
    uneven.refused(&["my.toml", "8 query heads and 2 key-value heads", "evenly to 3 ranks", "as-needed"]);
}
