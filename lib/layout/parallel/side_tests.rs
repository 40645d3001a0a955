//! Layouts of sides against a naive reading of the rules. In: specs in every axis order. Out: nothing. Guarantee: every
//! test compares intervals of all ranks, not placements.

use super::*;
use crate::layout::model::{Dimensions, Model, ModelTensor};
use crate::layout::parallel::Rules;

/// Per dimension the interval that a rank holds; `None` where it holds nothing.
type Held = Option<Vec<(u64, u64)>>;

fn model(tensors: &[(&str, &[u64])]) -> Model {
    let tensors = tensors.iter().map(|&(name, shape)| ModelTensor::new(name, shape.to_vec(), Dtype::BF16));
    Model::new("test", tensors.collect()).unwrap()
}

fn held(layout: &Layout, rank: Rank) -> Held {
    let maps = layout.axis_maps(rank)?;
    let one = |map: &crate::layout::AxisMap| map.intervals().next().map(|part| (part.lo, part.hi));
    maps.iter().map(one).collect()
}

/// What every rank of `spec` holds of tensor number `index`.
fn all_held(rules: &Rules, model: &Model, spec: &str, index: usize) -> Result<Vec<Held>, RulesError> {
    let spec = ParallelSpec::parse(spec).unwrap();
    let ranks: Vec<Rank> = (0..spec.rank_count()).map(Rank).collect();
    let ruled = rules.apply(model)?;
    let layout = SideLayouts::new(&ruled, &spec, &ranks).unwrap().layout(index)?;
    Ok(ranks.into_iter().map(|rank| held(&layout, rank)).collect())
}

fn parts(rules: &Rules, tensor: &str, shape: &[u64], spec: &str) -> Vec<Held> {
    all_held(rules, &model(&[(tensor, shape)]), spec, 0).unwrap()
}

fn floor_part(extent: u64, index: u64, count: u64) -> (u64, u64) {
    (extent * index / count, extent * (index + 1) / count)
}

/// A box, or nothing when one of its intervals is empty.
fn boxed(intervals: Vec<(u64, u64)>) -> Held {
    intervals.iter().all(|&(lo, hi)| lo < hi).then_some(intervals)
}

/// Coordinate of a rank along an axis of a view, the first axis of the text fastest.
fn coordinate(rank: u64, spec: &ParallelSpec, view: WeightView, wanted: ParallelAxis) -> u64 {
    let mut rest = rank;
    for &(axis, size) in spec.axes(view).iter().rev() {
        if axis == wanted {
            return rest % u64::from(size);
        }
        rest /= u64::from(size);
    }
    0
}

#[test]
fn dense_weights_are_cut_by_tensor_parallelism_only() {
    let rules = Rules::embedded().unwrap();
    let weight = "model.layers.3.self_attn.o_proj.weight";
    for (rank, held) in parts(&rules, weight, &[6, 7], "tp=4,ep=2,cp=2,dp=3").into_iter().enumerate() {
        assert_eq!(held, Some(vec![(0, 6), floor_part(7, rank as u64 % 4, 4)]));
    }
    for (rank, held) in parts(&rules, weight, &[6, 7], "dp=2,tp=4").into_iter().enumerate() {
        assert_eq!(held, Some(vec![(0, 6), floor_part(7, rank as u64 / 2, 4)]));
    }
    let short = parts(&rules, "lm_head.weight", &[2, 3], "tp=3");
    assert_eq!(short, [None, Some(vec![(0, 1), (0, 3)]), Some(vec![(1, 2), (0, 3)])]);
    assert_eq!(parts(&rules, "lm_head.weight", &[0, 3], "tp=2"), [None, None]);
}

#[test]
fn whole_experts_lie_on_one_coordinate_in_every_axis_order() {
    let rules = Rules::embedded().unwrap();
    let orders = ["tp=2,ep=4,dp=2", "ep=4,tp=2,dp=2", "dp=2,ep=4,tp=2", "ep=4,dp=2,tp=2", "tp=3,ep=2", "ep=2,tp=3"];
    let two_views = ["tp=4,dp=2,etp=2,ep=4", "dp=2,tp=4,ep=2,edp=2,etp=2", "megatron:cp=2,dp=4,ep=8"];
    let cases: [(&str, &[u64], usize); 4] = [
        ("up_proj.weight", &[6, 5], 0),
        ("up_proj.weight", &[7, 5], 0),
        ("down_proj.weight", &[5, 7], 1),
        ("up_proj.weight", &[1, 2], 0),
    ];
    for order in orders.into_iter().chain(two_views) {
        let spec = ParallelSpec::parse(order).unwrap();
        let inner = match spec.convention() {
            crate::layout::parallel::ExpertConvention::Multiplied => ParallelAxis::Tensor,
            crate::layout::parallel::ExpertConvention::TwoViews => ParallelAxis::ExpertTensor,
        };
        let (tp, ep) = (u64::from(spec.size(inner)), u64::from(spec.size(ParallelAxis::Expert)));
        for (weight, shape, dim) in cases {
            let names: Vec<String> =
                (0..5).map(|expert| format!("model.layers.1.mlp.experts.{expert}.{weight}")).collect();
            let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), shape)).collect();
            for expert in 0..5u64 {
                let held = all_held(&rules, &model(&tensors), order, expert as usize).unwrap();
                for (rank, held) in held.into_iter().enumerate() {
                    let along = |axis| coordinate(rank as u64, &spec, WeightView::Expert, axis);
                    let mut expected: Vec<(u64, u64)> = shape.iter().map(|&extent| (0, extent)).collect();
                    expected[dim] = floor_part(shape[dim], along(inner), tp);
                    let (lo, hi) = floor_part(5, along(ParallelAxis::Expert), ep);
                    let expected = boxed(expected).filter(|_| (lo..hi).contains(&expert));
                    assert_eq!(held, expected, "{order}, expert {expert} {weight} {shape:?}, rank {rank}");
                }
            }
        }
    }
}

#[test]
fn stacked_experts_are_cut_along_their_own_dimension() {
    let rules = Rules::embedded().unwrap();
    let held = parts(&rules, "m.layers.0.mlp.experts.gate_proj.weight", &[5, 7, 3], "tp=2,ep=3");
    for (rank, held) in held.into_iter().enumerate() {
        let rank = rank as u64;
        assert_eq!(held, Some(vec![floor_part(5, rank / 2, 3), floor_part(7, rank % 2, 2), (0, 3)]));
    }
}

#[test]
fn fully_sharded_cuts_what_tensor_parallelism_left() {
    let rules = Rules::embedded().unwrap();
    for order in ["tp=2,fsdp=3", "fsdp=3,tp=2"] {
        let spec = ParallelSpec::parse(order).unwrap();
        // Rows 0 to 5 and 5 to 10 for tp, then torch's chunks of 2, 2, 1.
        let chunks = [[(0, 2), (2, 4), (4, 5)], [(5, 7), (7, 9), (9, 10)]];
        for (rank, held) in parts(&rules, "a.self_attn.q_proj.weight", &[10, 4], order).into_iter().enumerate() {
            let along = |axis| coordinate(rank as u64, &spec, WeightView::Dense, axis) as usize;
            let rows = chunks[along(ParallelAxis::Tensor)][along(ParallelAxis::FullySharded)];
            assert_eq!(held, Some(vec![rows, (0, 4)]), "{order}, rank {rank}");
        }
    }
    // Also names that no rule knows; scalars cannot be cut, buffers are not.
    assert_eq!(parts(&rules, "strange", &[3], "fsdp=2"), [Some(vec![(0, 2)]), Some(vec![(2, 3)])]);
    assert_eq!(parts(&rules, "strange", &[], "fsdp=2"), [Some(vec![]), Some(vec![])]);
    assert_eq!(parts(&rules, "a.rotary_emb.inv_freq", &[3], "fsdp=2"), [Some(vec![(0, 3)]), Some(vec![(0, 3)])]);
    let stated = Rules::parse("[[rule]]\nnames = [\"w\"]\ntp = 0\nfsdp = 1\n", "x").unwrap();
    assert_eq!(parts(&stated, "w", &[2, 3], "fsdp=2"), [Some(vec![(0, 2), (0, 2)]), Some(vec![(0, 2), (2, 3)])]);
    // Experts of one rank of ep, cut by fsdp: two axes on one tensor.
    let experts = parts(&rules, "a.layers.0.mlp.experts.0.up_proj.weight", &[4, 2], "ep=1,fsdp=2");
    assert_eq!(experts, [Some(vec![(0, 2), (0, 2)]), Some(vec![(2, 4), (0, 2)])]);
}

/// Ranks that hold each tensor.
fn holders(model: &Model, rules: &Rules, spec: &str) -> Vec<Vec<usize>> {
    let holds = |(rank, held): (usize, Held)| held.is_some().then_some(rank);
    let tensors = 0..model.tensors().len();
    tensors
        .map(|index| all_held(rules, model, spec, index).unwrap().into_iter().enumerate().filter_map(holds).collect())
        .collect()
}

#[test]
fn layers_are_dealt_out_to_stages() {
    let rules = Rules::embedded().unwrap();
    let norm: &[u64] = &[2];
    let mut names: Vec<String> = (0..5).map(|layer| format!("model.layers.{layer}.input_layernorm.weight")).collect();
    names.extend(["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "strange"].map(String::from));
    let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), norm)).collect();
    let model = model(&tensors);
    // Floor shares of 5 layers over 2 stages are 2 and 3.
    let (first, last, all) = (vec![0, 1], vec![2, 3], vec![0, 1, 2, 3]);
    let expected =
        |layers: [&Vec<usize>; 5]| layers.into_iter().chain([&first, &last, &last, &all]).cloned().collect::<Vec<_>>();
    assert_eq!(holders(&model, &rules, "dp=2,pp=2"), expected([&first, &first, &last, &last, &last]));
    assert_eq!(holders(&model, &rules, "dp=2,pp=4+1"), expected([&first, &first, &first, &first, &last]));
    assert_eq!(holders(&model, &rules, "dp=2,pp=0+5"), expected([&last, &last, &last, &last, &last]));
    let inner = holders(&model, &rules, "pp=2,dp=2");
    assert_eq!((&inner[0], &inner[4]), (&vec![0, 2], &vec![1, 3]));
    let spec = ParallelSpec::parse("pp=2+2").unwrap();
    let ruled = rules.apply(&model).unwrap();
    let error = SideLayouts::new(&ruled, &spec, &[Rank(0), Rank(1)]).unwrap_err();
    assert!(matches!(error, ParallelError::StageSum { sum: 4, layers: 5, .. }), "{error}");
}

/// They are no error: a model of one layer may stand for a larger one.
#[test]
fn axes_that_do_nothing_are_told() {
    let rules = Rules::embedded().unwrap();
    let norms = ["m.layers.0.input_layernorm.weight", "m.layers.1.input_layernorm.weight"];
    let dense = model(&norms.map(|name| (name, &[2u64][..])));
    let expert = model(&[("m.layers.0.mlp.experts.0.up_proj.weight", &[2, 2])]);
    let told = |model: &Model, spec: &str| {
        let spec = ParallelSpec::parse(spec).unwrap();
        let ranks: Vec<Rank> = (0..spec.rank_count()).map(Rank).collect();
        let ruled = rules.apply(model).unwrap();
        let side = SideLayouts::new(&ruled, &spec, &ranks).unwrap();
        side.idle().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (model, spec) in [(&dense, "pp=2"), (&dense, "pp=0+2+0"), (&dense, "tp=2,ep=1"), (&expert, "ep=2")] {
        assert_eq!(told(model, spec), [""; 0], "{spec}");
    }
    let [stages] = &told(&dense, "pp=5")[..] else { panic!() };
    assert!(stages.contains("pp=5: 3 of 5 pipeline stages have no layer, since the model has 2"), "{stages}");
    for spec in ["tp=2,ep=4", "dp=4,etp=1,ep=4"] {
        let [experts] = &told(&dense, spec)[..] else { panic!() };
        assert!(experts.contains(&format!("{spec}: ep=4 deals out nothing")), "{experts}");
    }
}

#[test]
fn layers_that_predict_stand_behind_the_stack() {
    let rules = Rules::embedded().unwrap();
    let norm: &[u64] = &[2];
    let names = ["m.layers.0.enorm.weight", "m.layers.0.input_layernorm.weight", "m.layers.1.input_layernorm.weight"];
    let stack = model(&[(names[1], norm), (names[2], norm), ("m.layers.2.enorm.weight", norm)]);
    assert_eq!(rules.apply(&stack).unwrap().layers(), 2);
    assert_eq!(holders(&stack, &rules, "pp=2"), [vec![0], vec![1], vec![1]]);
    let stated = stack.with_dimensions(Dimensions { layers: Some(3), ..Dimensions::default() });
    assert_eq!(rules.apply(&stated).unwrap().layers(), 3);
}

#[test]
fn tied_tensors_are_one() {
    let rules = Rules::embedded().unwrap();
    let shape: &[u64] = &[6, 2];
    let names = ["model.embed_tokens.weight", "lm_head.weight"];
    let tied = vec![names.map(String::from).to_vec()];
    let both = model(&[(names[0], shape), (names[1], shape)]).with_tied(tied.clone());
    let ruled = rules.apply(&both).unwrap();
    assert_eq!((ruled.is_alias(0), ruled.is_alias(1)), (false, true));
    let halves = [Some(vec![(0, 3), (0, 2)]), Some(vec![(3, 6), (0, 2)])];
    let expected = [halves[0].clone(), halves[1].clone(), None, None, halves[0].clone(), halves[1].clone()];
    assert_eq!(all_held(&rules, &both, "tp=2,pp=3", 0).unwrap(), expected);
    // As checkpoints have it: the second name is not there.
    let one = model(&[(names[0], shape)]).with_tied(tied);
    assert_eq!(all_held(&rules, &one, "tp=2,pp=3", 0).unwrap(), expected);
    let text = "[[tied]]\nnames = [\"model.embed_tokens.weight\", \"lm_head.weight\"]\n";
    let stated = rules.clone().with_overrides(Rules::parse(text, "my.toml").unwrap());
    let plain = model(&[(names[1], shape)]);
    assert_eq!(all_held(&stated, &plain, "tp=2,pp=3", 0).unwrap(), expected);
    let fail = |model: &Model| stated.apply(model).unwrap_err();
    assert!(matches!(fail(&model(&[("w", shape)])), RulesError::TiedMatchesNothing { .. }));
    assert!(matches!(fail(&model(&[(names[0], shape), (names[1], &[6, 3])])), RulesError::TiedDiffer { .. }));
}

#[test]
fn experts_are_counted_from_the_names() {
    let rules = Rules::embedded().unwrap();
    let shape: &[u64] = &[3, 2];
    let mut names: Vec<String> =
        (0..4).map(|expert| format!("m.layers.0.mlp.experts.{expert}.up_proj.weight")).collect();
    names.extend((0..2).map(|expert| format!("m.layers.1.mlp.experts.{expert}.up_proj.weight")));
    names.extend(["m.layers.0.mlp.gate.weight".to_string(), "strange.tensor".to_string()]);
    let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), shape)).collect();
    let model = model(&tensors);
    let (first, second, both) = (vec![0], vec![1], vec![0, 1]);
    let expected = [&first, &first, &second, &second, &first, &second, &both, &both].map(Clone::clone);
    assert_eq!(holders(&model, &rules, "ep=2"), expected);
    let ruled = rules.apply(&model).unwrap();
    assert_eq!(ruled.unmatched(), ["strange.tensor"]);
    assert!(ruled.rule(6).unwrap().starts_with("moe.toml:"));
    let few = model.clone().with_dimensions(Dimensions { experts: Some(3), ..Dimensions::default() });
    assert!(matches!(rules.apply(&few), Err(RulesError::ExpertIndex { expert: 3, count: 3, .. })));
    let last = format!("m.layers.0.mlp.experts.{}.up_proj.weight", u64::MAX);
    let text = rules.apply(&self::model(&[(&last, shape)])).unwrap_err().to_string();
    assert!(text.contains("counted from 0 to 18446744073709551614") && !text.contains("has 18446"), "{text}");
}

#[test]
fn equal_tensors_share_their_layouts() {
    let rules = Rules::embedded().unwrap();
    let shape: &[u64] = &[4, 2];
    let names: Vec<String> = (0..8).map(|expert| format!("m.layers.0.mlp.experts.{expert}.up_proj.weight")).collect();
    let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), shape)).collect();
    let model = model(&tensors);
    let ruled = rules.apply(&model).unwrap();
    let spec = ParallelSpec::parse("ep=2,dp=2").unwrap();
    let mut side = SideLayouts::new(&ruled, &spec, &[0, 1, 2, 3].map(Rank)).unwrap();
    let layouts: Vec<_> = (0..8).map(|index| side.layout(index).unwrap()).collect();
    assert!(Arc::ptr_eq(&layouts[0], &layouts[3]) && Arc::ptr_eq(&layouts[4], &layouts[7]));
    assert!(!Arc::ptr_eq(&layouts[3], &layouts[4]));
}

#[test]
fn errors_name_rule_tensor_and_shape() {
    let rules = Rules::embedded().unwrap();
    let error = all_held(&rules, &model(&[("m.self_attn.o_proj.weight", &[8])]), "tp=2", 0).unwrap_err();
    assert!(matches!(&error, RulesError::NoSuchDimension { dim: 1, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(".toml:") && text.contains("m.self_attn.o_proj.weight") && text.contains("[8]"), "{text}");
    let user = Rules::parse("[[rule]]\nnames = [\"*.q_porj.weight\"]\ntp = 0\n", "my.toml").unwrap();
    let error = rules.with_overrides(user).apply(&model(&[("a.q_proj.weight", &[8])])).unwrap_err().to_string();
    assert!(error.contains("my.toml:1") && error.contains("*.q_porj.weight"), "{error}");
}

/// Names as Hugging Face saves them, with the dimension that tensor parallelism cuts.
#[test]
fn families_are_known() {
    let rules = Rules::embedded().unwrap();
    let known: [(&str, Option<usize>); 34] = [
        ("embeddings.word_embeddings.weight", Some(0)),
        ("bert.embeddings.word_embeddings.weight", Some(0)),
        ("embeddings.position_ids", None),
        ("bert.embeddings.LayerNorm.weight", None),
        ("embeddings.position_embeddings.weight", None),
        ("encoder.layer.0.attention.self.query.weight", Some(0)),
        ("model.encoder.layer.11.attention.self.value.bias", Some(0)),
        ("encoder.layer.0.attention.output.dense.weight", Some(1)),
        ("bert.encoder.layer.0.attention.output.dense.bias", None),
        ("encoder.layer.0.attention.output.LayerNorm.bias", None),
        ("encoder.layer.0.intermediate.dense.bias", Some(0)),
        ("encoder.layer.0.output.dense.weight", Some(1)),
        ("encoder.layer.0.output.LayerNorm.bias", None),
        ("cls.predictions.transform.LayerNorm.weight", None),
        ("pooler.dense.weight", None),
        ("model.embed_tokens.weight", Some(0)),
        ("model.layers.0.self_attn.k_proj.bias", Some(0)),
        ("layers.0.self_attn.q_norm.weight", None),
        ("model.layers.63.mlp.down_proj.weight", Some(1)),
        ("model.norm.weight", None),
        ("lm_head.weight", Some(0)),
        ("model.layers.0.self_attn.q_a_proj.weight", None),
        ("model.layers.0.self_attn.q_b_proj.weight", Some(0)),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", None),
        ("model.layers.0.self_attn.kv_b_proj.weight", Some(0)),
        ("model.layers.0.self_attn.o_proj.weight", Some(1)),
        ("model.layers.3.mlp.gate.e_score_correction_bias", None),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", Some(1)),
        ("model.layers.3.mlp.experts.255.down_proj.weight", Some(1)),
        ("model.layers.61.shared_head.head.weight", Some(0)),
        ("model.layers.61.shared_head.norm.weight", None),
        ("model.layers.0.block_sparse_moe.gate.weight", None),
        ("model.layers.0.block_sparse_moe.experts.7.w2.weight", Some(1)),
        ("model.layers.0.mlp.shared_expert.up_proj.weight", Some(0)),
    ];
    for (tensor, dim) in known {
        let expected: Vec<Held> = (0..2)
            .map(|rank| {
                let mut whole = vec![(0, 512), (0, 512)];
                if let Some(dim) = dim {
                    whole[dim] = floor_part(512, rank, 2);
                }
                Some(whole)
            })
            .collect();
        let model = model(&[(tensor, &[512, 512])]);
        assert!(rules.apply(&model).unwrap().unmatched().is_empty(), "{tensor}");
        assert_eq!(parts(&rules, tensor, &[512, 512], "tp=2"), expected, "{tensor}");
    }
}
