//! Shardings against a naive reading of the rules. In: specs in every axis order. Out: nothing. Guarantee: every
//! test compares intervals of all ranks, not placements.

use super::*;
use crate::base::Rank;
use crate::layout::{Dtype, Layout};
use std::sync::Arc;

/// Per rank and dimension the interval that the rank holds; empty ones as `(0, 0)`.
fn parts(rules: &Rules, tensor: &str, shape: &[u64], spec: &str, experts: Option<u64>) -> Vec<Vec<(u64, u64)>> {
    let spec = ParallelSpec::parse(spec).unwrap();
    let sharding = rules.shard(tensor, shape, &spec, experts).unwrap();
    let ranks: Vec<Rank> = (0..spec.rank_count()).map(Rank).collect();
    let mesh = Arc::new(spec.mesh(&ranks).unwrap());
    let layout = Layout::new(shape.to_vec(), Dtype::BF16, mesh, sharding.placements).unwrap();
    let held = |rank| {
        let maps = layout.axis_maps(rank).unwrap();
        let empty = maps.iter().any(|map| map.extent() == 0);
        let interval = |map: &crate::layout::AxisMap| map.intervals().next().map_or((0, 0), |part| (part.lo, part.hi));
        maps.iter().map(|map| if empty { (0, 0) } else { interval(map) }).collect()
    };
    ranks.into_iter().map(held).collect()
}

fn floor_part(extent: u64, index: u64, count: u64) -> (u64, u64) {
    (extent * index / count, extent * (index + 1) / count)
}

#[test]
fn dense_weights_are_cut_by_tensor_parallelism_only() {
    let rules = Rules::embedded().unwrap();
    let weight = "model.layers.3.self_attn.o_proj.weight";
    for (rank, held) in parts(&rules, weight, &[6, 7], "tp=4,ep=2,dp=3", None).into_iter().enumerate() {
        assert_eq!(held, [(0, 6), floor_part(7, rank as u64 % 4, 4)]);
    }
    for (rank, held) in parts(&rules, weight, &[6, 7], "dp=2,tp=4", None).into_iter().enumerate() {
        assert_eq!(held, [(0, 6), floor_part(7, rank as u64 / 2, 4)]);
    }
    let short = parts(&rules, "lm_head.weight", &[2, 3], "tp=3", None);
    assert_eq!(short, [[(0, 0), (0, 0)], [(0, 1), (0, 3)], [(1, 2), (0, 3)]]);
    assert_eq!(parts(&rules, "lm_head.weight", &[0, 3], "tp=2", None), [[(0, 0); 2]; 2]);
}

/// Coordinates of a rank along the axes of `spec`, the first fastest.
fn coordinate(rank: u64, spec: &ParallelSpec, wanted: ParallelAxis) -> u64 {
    let mut rest = rank;
    for (axis, size) in spec.mesh_axes().rev() {
        if axis == wanted {
            return rest % u64::from(size);
        }
        rest /= u64::from(size);
    }
    0
}

#[test]
fn whole_experts_lie_on_one_coordinate_in_every_axis_order() {
    let rules = Rules::embedded().unwrap();
    let orders = ["tp=2,ep=4,dp=2", "ep=4,tp=2,dp=2", "dp=2,ep=4,tp=2", "ep=4,dp=2,tp=2", "tp=3,ep=2", "ep=2,tp=3"];
    let cases: [(&str, &[u64], usize); 4] = [
        ("up_proj.weight", &[6, 5], 0),
        ("up_proj.weight", &[7, 5], 0),
        ("down_proj.weight", &[5, 7], 1),
        ("up_proj.weight", &[1, 2], 0),
    ];
    for order in orders {
        let spec = ParallelSpec::parse(order).unwrap();
        let (tp, ep) = (u64::from(spec.size(ParallelAxis::Tensor)), u64::from(spec.size(ParallelAxis::Expert)));
        for (weight, shape, dim) in cases {
            for expert in 0..5 {
                let tensor = format!("model.layers.1.mlp.experts.{expert}.{weight}");
                let held = parts(&rules, &tensor, shape, order, Some(5));
                for (rank, held) in held.into_iter().enumerate() {
                    let mut expected: Vec<(u64, u64)> = shape.iter().map(|&extent| (0, extent)).collect();
                    expected[dim] = floor_part(shape[dim], coordinate(rank as u64, &spec, ParallelAxis::Tensor), tp);
                    let owner = coordinate(rank as u64, &spec, ParallelAxis::Expert) == expert * ep / 5;
                    if !owner || expected[dim].0 == expected[dim].1 {
                        expected.fill((0, 0));
                    }
                    assert_eq!(held, expected, "{order}, {tensor} {shape:?}, rank {rank}");
                }
            }
        }
    }
}

#[test]
fn vectors_of_experts_need_an_even_cut_or_ep_outside() {
    let rules =
        Rules::parse("[[rule]]\nnames = [\"e.{expert}.bias\"]\nexperts = \"per-tensor\"\ntp = 0\n", "x").unwrap();
    let even = [[(0, 0)], [(0, 0)], [(0, 3)], [(3, 6)]];
    assert_eq!(parts(&rules, "e.1.bias", &[6], "tp=2,ep=2", Some(2)), even);
    assert_eq!(parts(&rules, "e.1.bias", &[6], "ep=2,tp=2", Some(2)), [even[0], even[2], even[1], even[3]]);
    assert_eq!(parts(&rules, "e.1.bias", &[7], "tp=2,ep=2", Some(2))[3], [(3, 7)]);
    let spec = ParallelSpec::parse("ep=2,tp=2").unwrap();
    let error = rules.shard("e.1.bias", &[7], &spec, Some(2)).unwrap_err();
    assert!(matches!(error, RulesError::ExpertNesting { .. }), "{error}");
    let scalar = rules.shard("e.1.bias", &[], &spec, None).unwrap();
    assert_eq!(scalar.placements, [Placement::Replicate, Placement::Replicate]);
}

#[test]
fn stacked_experts_are_cut_along_their_own_dimension() {
    let rules = Rules::parse("[[rule]]\nnames = [\"*.experts.gate_proj\"]\nep = 0\ntp = 1\n", "x").unwrap();
    for (rank, held) in parts(&rules, "m.experts.gate_proj", &[5, 7, 3], "tp=2,ep=3", None).into_iter().enumerate() {
        let rank = rank as u64;
        assert_eq!(held, [floor_part(5, rank / 2, 3), floor_part(7, rank % 2, 2), (0, 3)]);
    }
}

#[test]
fn experts_are_counted_from_the_names() {
    let rules = Rules::embedded().unwrap();
    let spec = ParallelSpec::parse("ep=2").unwrap();
    let mut names: Vec<String> =
        (0..4).map(|expert| format!("m.layers.0.mlp.experts.{expert}.up_proj.weight")).collect();
    names.extend((0..2).map(|expert| format!("m.layers.1.mlp.experts.{expert}.up_proj.weight")));
    names.extend(["m.layers.0.mlp.gate.weight".to_string(), "strange.tensor".to_string()]);
    let tensors = names.iter().map(|name| (name.as_str(), [3u64, 2].as_slice()));
    let model = rules.placements(tensors, &spec).unwrap();
    let owners: Vec<Option<usize>> = model
        .shardings
        .iter()
        .map(|sharding| match &sharding.placements[0] {
            Placement::Shard { split: Split::Sizes(sizes), .. } => sizes.iter().position(|&size| size == 3),
            _ => None,
        })
        .collect();
    assert_eq!(owners, [Some(0), Some(0), Some(1), Some(1), Some(0), Some(1), None, None]);
    assert_eq!(model.unmatched, ["strange.tensor"]);
    assert_eq!(model.shardings[7].rule, None);
    assert!(model.shardings[6].rule.as_deref().unwrap().starts_with("deepseek.toml:"));
}

#[test]
fn errors_name_rule_tensor_and_shape() {
    let rules = Rules::embedded().unwrap();
    let spec = ParallelSpec::parse("tp=2,ep=2").unwrap();
    let error = rules.shard("m.self_attn.o_proj.weight", &[8], &spec, None).unwrap_err();
    assert!(matches!(&error, RulesError::NoSuchDimension { dim: 1, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(".toml:") && text.contains("m.self_attn.o_proj.weight") && text.contains("[8]"), "{text}");
    let expert = "m.mlp.experts.4.up_proj.weight";
    assert!(matches!(rules.shard(expert, &[4, 4], &spec, None), Err(RulesError::ExpertCount { ranks: 2, .. })));
    assert!(matches!(rules.shard(expert, &[4, 4], &spec, Some(4)), Err(RulesError::ExpertIndex { expert: 4, .. })));
    let alone = ParallelSpec::parse("tp=2").unwrap();
    assert_eq!(rules.shard(expert, &[4, 4], &alone, None).unwrap().placements, [Placement::shard(0)]);
}

/// Names as Hugging Face saves them, with the dimension that tensor parallelism cuts.
#[test]
fn families_are_known() {
    let rules = Rules::embedded().unwrap();
    let spec = ParallelSpec::parse("tp=2").unwrap();
    let known: [(&str, Option<usize>); 28] = [
        ("embeddings.word_embeddings.weight", Some(0)),
        ("bert.embeddings.word_embeddings.weight", Some(0)),
        ("embeddings.position_ids", None),
        ("bert.embeddings.LayerNorm.weight", None),
        ("embeddings.position_embeddings.weight", None),
        ("encoder.layer.0.attention.self.query.weight", Some(0)),
        ("model.encoder.layer.11.attention.self.value.bias", Some(0)),
        ("encoder.layer.0.attention.output.dense.weight", Some(1)),
        ("bert.encoder.layer.0.attention.output.dense.bias", None),
        ("encoder.layer.0.intermediate.dense.bias", Some(0)),
        ("encoder.layer.0.output.dense.weight", Some(1)),
        ("encoder.layer.0.output.LayerNorm.bias", None),
        ("pooler.dense.weight", None),
        ("model.embed_tokens.weight", Some(0)),
        ("model.layers.0.self_attn.k_proj.bias", Some(0)),
        ("layers.0.self_attn.q_norm.weight", None),
        ("model.layers.63.mlp.down_proj.weight", Some(1)),
        ("model.norm.weight", None),
        ("lm_head.weight", Some(0)),
        ("model.layers.0.self_attn.q_a_proj.weight", None),
        ("model.layers.0.self_attn.q_b_proj.weight_scale_inv", Some(0)),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", None),
        ("model.layers.0.self_attn.kv_b_proj.weight", Some(0)),
        ("model.layers.0.self_attn.o_proj.weight_scale_inv", Some(1)),
        ("model.layers.3.mlp.gate.e_score_correction_bias", None),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", Some(1)),
        ("model.layers.3.mlp.experts.255.down_proj.weight_scale_inv", Some(1)),
        ("model.layers.61.shared_head.head.weight", Some(0)),
    ];
    for (tensor, dim) in known {
        let sharding = rules.shard(tensor, &[8, 8], &spec, None).unwrap();
        assert!(sharding.rule.is_some(), "{tensor}");
        assert_eq!(sharding.placements, [dim.map_or(Placement::Replicate, Placement::shard)], "{tensor}");
    }
}
