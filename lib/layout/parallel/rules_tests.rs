//! Rules. In: TOML texts. Out: nothing. Guarantee: damaged texts are refused or read, and errors name file and line.

use super::*;
use crate::layout::model::{Model, published_names};
use crate::layout::parallel::ParallelAxis;
use proptest::prelude::*;

fn fail(text: &str) -> RulesError {
    Rules::parse(text, "my.toml").unwrap_err()
}

fn origin(rules: &Rules, tensor: &str) -> Option<String> {
    find(rules, tensor).unwrap().map(|found| rules.rule(found).origin.clone())
}

fn find(rules: &Rules, tensor: &str) -> Result<Option<Found>, RulesError> {
    rules.find(tensor, &tensor.split('.').collect::<Vec<_>>())
}

#[test]
fn bad_texts_name_file_and_line() {
    let message = |text: &str| fail(text).to_string();
    assert!(matches!(fail("[[rule]"), RulesError::Unreadable { .. }));
    assert!(matches!(fail("rule = 3"), RulesError::Unreadable { .. }));
    assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\npp = 0"), RulesError::Unreadable { .. }));
    assert!(matches!(fail("[[rules]]\nnames = [\"a\"]\ntp = 0"), RulesError::Unreadable { .. }));
    assert!(matches!(fail("[[rule]]\nnames = []\ntp = 0"), RulesError::NoNames { .. }));
    let text = message("# first line\n[[rule]]\nnames = [\"a\"]\n");
    assert!(text.contains("my.toml:2") && text.contains("replicate"), "{text}");
    let split = |dim: &str| message(&format!("[[split]]\nfrom = \"a\"\nparts = [\"b\"]\n{dim}\n"));
    let whole = "expected a whole number from 0 to 18446744073709551615";
    for (line, said) in [
        ("dim = -1", "line 4: dim: invalid value: integer `-1`, "),
        ("dim = 0.5", "line 4: dim: invalid type: floating point `0.5`, "),
        ("dim = 0\nsizes = [3, \"4\"]", "line 5: sizes: invalid type: string \"4\", "),
    ] {
        let error = split(line);
        assert!(error.contains(&format!("{said}{whole}")), "{line}: {error}");
    }
    for value in ["-1", "\"replicated\"", "1.0", "true"] {
        let error = fail(&format!("[[rule]]\nnames = [\"a\"]\ntp = {value}"));
        assert!(matches!(error, RulesError::AxisValue { axis: ParallelAxis::Tensor, .. }), "{value}: {error}");
    }
    assert!(matches!(fail("[[rule]]\nnames = [\"a..b\"]\ntp = 0"), RulesError::Pattern { .. }));
    let experts = |name: &str, rest: &str| fail(&format!("[[rule]]\nnames = [\"{name}\"]\n{rest}"));
    assert!(matches!(experts("{expert}", "experts = \"all\""), RulesError::ExpertsValue { .. }));
    assert!(matches!(experts("{expert}", "experts = \"per-tensor\"\nep = 0"), RulesError::ExpertsAndExpertAxis { .. }));
    assert!(matches!(experts("{expert}", "tp = 0"), RulesError::ExpertCapture { .. }));
    assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\ntp = 0\nheads = \"all\""), RulesError::HeadsValue { .. }));
    assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\nep = 0\nheads = \"query\""), RulesError::HeadsUncut { .. }));
    assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\nstage = \"middle\""), RulesError::StageValue { .. }));
    assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\ncast = \"always\""), RulesError::CastValue { .. }));
    assert!(matches!(fail("[[tied]]\nnames = [\"a\"]"), RulesError::TiedAlone { .. }));
    assert!(matches!(experts("a", "experts = \"per-tensor\""), RulesError::ExpertCapture { .. }));
}

#[test]
fn bad_values_are_named_and_types_are_not() {
    let fuse = |heads: &str| {
        let text = "[[fuse]]\nparts = [\"a.q\", \"a.k\", \"a.v\"]\ninto = \"a.qkv\"\n";
        fail(&format!("{text}{heads}\n")).to_string()
    };
    let store = |line: &str| fail(&format!("[[store]]\nnames = [\"a\"]\n{line}\n")).to_string();
    for (error, part) in [
        (fuse("heads = {query=64, keyvalue=8}"), "unknown field `keyvalue`, expected `query` or `key_value`"),
        (fuse("heads = {query=64}"), "missing field `key_value`"),
        (fuse("heads = 64"), "integer `64`, expected \"model\", or { query = N, key_value = N }"),
        (fuse("heads = {query=-1, key_value=8}"), "integer `-1`"),
        (fuse("heads = \"model\"\ndefault_heads = 3"), "integer `3`, expected { query = N, key_value = N }"),
        (store("pad = 64"), "integer `64`, expected { dim = N, to = N } or { dim = N, multiple = N }"),
        (store("crop = 64"), "integer `64`, expected { dim = N, to = N }"),
        (store("heads = \"query\""), "string \"query\", expected { of = \"query\" } or { of = \"key-value\" }"),
    ] {
        let named = ["struct ", "enum ", "Text"].iter().find(|word| error.contains(**word));
        assert!(error.contains(part) && named.is_none(), "{part}: {error}");
    }
}

#[test]
fn two_rules_may_agree_and_must_not_disagree() {
    let text = "[[rule]]\nnames = [\"*.w\"]\ntp = 0\n[[rule]]\nnames = [\"a.*\"]\ntp = 0\nep = \"replicate\"\n";
    let rules = Rules::parse(text, "x").unwrap();
    assert_eq!(origin(&rules, "a.w"), Some("x:1".to_string()));
    assert_eq!(origin(&rules, "a.v"), Some("x:4".to_string()));
    assert_eq!(origin(&rules, "b.v"), None);
    let rules = Rules::parse(&text.replace("\"replicate\"", "1"), "x").unwrap();
    let error = find(&rules, "a.w").unwrap_err();
    let expected = RulesError::Ambiguous { tensor: "a.w".into(), first: "x:1".into(), second: "x:4".into() };
    assert_eq!(error, expected);
    assert_eq!(origin(&rules, "a.v"), Some("x:4".to_string()));
}

#[test]
fn overrides_win() {
    let user = Rules::parse("[[rule]]\nnames = [\"*.self_attn.*\"]\ntp = \"replicate\"\n", "user.toml").unwrap();
    let rules = Rules::embedded().unwrap().with_overrides(user);
    assert_eq!(origin(&rules, "model.layers.0.self_attn.q_proj.weight"), Some("user.toml:1".to_string()));
    assert!(origin(&rules, "model.layers.0.mlp.up_proj.weight").unwrap().starts_with("llama.toml:"));
    let last = Rules::parse("[[rule]]\nnames = [\"*\"]\ntp = 1", "last.toml").unwrap();
    assert_eq!(origin(&rules.with_overrides(last), "a.self_attn.b"), Some("last.toml:1".to_string()));
    assert_eq!(origin(&Rules::default(), "a"), None);
    assert_eq!(find(&Rules::parse("", "empty.toml").unwrap(), "a"), Ok(None));
}

/// Names of a layer of Mixtral and of BERT with what is around it; those of other families come from published models.
fn other_names() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for layer in 0..2 {
        let bert = format!("bert.encoder.layer.{layer}");
        for part in [
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
            "attention.output.LayerNorm",
            "intermediate.dense",
            "output.dense",
            "output.LayerNorm",
        ] {
            names.extend(["weight", "bias"].map(|kind| format!("{bert}.{part}.{kind}")));
        }
        let mixtral = format!("model.layers.{layer}");
        names.extend(["q", "k", "v", "o"].map(|part| format!("{mixtral}.self_attn.{part}_proj.weight")));
        // Qwen2 has biases, Qwen2 with experts one that every token takes.
        names.extend(["q", "k", "v"].map(|part| format!("{mixtral}.self_attn.{part}_proj.bias")));
        names.extend(["gate", "up", "down"].map(|part| format!("{mixtral}.mlp.shared_expert.{part}_proj.weight")));
        names.push(format!("{mixtral}.mlp.shared_expert_gate.weight"));
        names.push(format!("{mixtral}.block_sparse_moe.gate.weight"));
        for expert in 0..8 {
            let of = |part| format!("{mixtral}.block_sparse_moe.experts.{expert}.{part}.weight");
            names.extend(["w1", "w2", "w3"].map(of));
        }
    }
    let kinds = ["word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"];
    names.extend(kinds.map(|kind| format!("bert.embeddings.{kind}.weight")));
    let others = ["embeddings.LayerNorm.bias", "embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"];
    names.extend(others.map(|kind| format!("bert.{kind}")));
    names.extend(["cls.predictions.bias", "cls.predictions.transform.dense.weight"].map(String::from));
    names.extend(["cls.predictions.decoder.weight", "cls.seq_relationship.bias"].map(String::from));
    names
}

#[test]
fn every_name_of_every_family_is_matched_by_one_rule() {
    let rules = Rules::embedded().unwrap();
    let published = published_names().flat_map(|name| {
        let stacked = Model::published(&format!("{name}-stacked")).ok();
        [Some(Model::published(name).unwrap()), stacked].into_iter().flatten()
    });
    let names =
        published.flat_map(|model| model.tensors().iter().map(|tensor| tensor.name.clone()).collect::<Vec<_>>());
    let mut seen = BTreeSet::new();
    for name in names.chain(other_names()) {
        // Names that differ in the numbers of layers or experts are of one kind.
        let kind: Vec<&str> =
            name.split('.').map(|word| if word.parse::<u64>().is_ok() { "#" } else { word }).collect();
        if !seen.insert(kind.join(".")) {
            continue;
        }
        let components: Vec<&str> = name.split('.').collect();
        let matches = |rule: &&Rule| rule.names.iter().any(|pattern| pattern.matches(&components).is_some());
        let rule_count = rules.tiers.iter().flat_map(|tier| &tier.rules).filter(matches).count();
        let scale_count = rules.scales.iter().filter(|rule| rule.weight_of(&components).is_some()).count();
        let expected = if name.ends_with("_scale_inv") { (0, 1) } else { (1, 0) };
        assert_eq!((rule_count, scale_count), expected, "{name}");
    }
    assert!(seen.len() > 90, "{}", seen.len());
}

#[test]
fn routers_keep_their_type() {
    let rules = Rules::embedded().unwrap();
    for name in ["mlp.gate.weight", "mlp.gate.e_score_correction_bias", "block_sparse_moe.gate.weight"] {
        let found = find(&rules, &format!("model.layers.3.{name}")).unwrap().unwrap();
        assert!(rules.rule(found).effect.keeps_dtype, "{name}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Rules::parse(&String::from_utf8_lossy(&bytes), "any");
    }

    #[test]
    fn damaged_texts_are_read_or_refused(
        file in 0..EMBEDDED.len() + FUSING.len(),
        damage in prop::collection::vec((any::<u16>(), "[\\[\\]{}\"=.,*a0\n]{0,3}"), 1..4),
    ) {
        let mut text = EMBEDDED.iter().chain(&FUSING).nth(file).map(|(_, text)| text.to_string()).unwrap_or_default();
        for (at, inserted) in damage {
            let at = at as usize % text.len();
            text.replace_range(at..=at, &inserted);
        }
        if let Ok(rules) = Rules::parse(&text, "damaged.toml") {
            let _ = find(&rules, "model.layers.0.mlp.experts.1.up_proj.weight");
        }
    }
}
