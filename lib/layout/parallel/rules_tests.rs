//! Rules. In: TOML texts. Out: nothing. Guarantee: damaged texts are refused or read, and errors name file and line.

use super::*;
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
    for value in ["-1", "\"replicated\"", "1.0", "true"] {
        let error = fail(&format!("[[rule]]\nnames = [\"a\"]\ntp = {value}"));
        assert!(matches!(error, RulesError::AxisValue { axis: ParallelAxis::Tensor, .. }), "{value}: {error}");
    }
    assert!(matches!(fail("[[rule]]\nnames = [\"a..b\"]\ntp = 0"), RulesError::Pattern { .. }));
    let experts = |name: &str, rest: &str| fail(&format!("[[rule]]\nnames = [\"{name}\"]\n{rest}"));
    assert!(matches!(experts("{expert}", "experts = \"all\""), RulesError::ExpertsValue { .. }));
    assert!(matches!(experts("{expert}", "experts = \"per-tensor\"\nep = 0"), RulesError::ExpertsAndExpertAxis { .. }));
    assert!(matches!(experts("{expert}", "tp = 0"), RulesError::ExpertCapture { .. }));
    assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\nstage = \"middle\""), RulesError::StageValue { .. }));
    assert!(matches!(fail("[[rule]]\nnames = [\"a\"]\ncast = \"always\""), RulesError::CastValue { .. }));
    assert!(matches!(fail("[[tied]]\nnames = [\"a\"]"), RulesError::TiedAlone { .. }));
    assert!(matches!(experts("a", "experts = \"per-tensor\""), RulesError::ExpertCapture { .. }));
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
