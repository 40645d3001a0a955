//! Heads of models that say how many they have, by the rules of their families. In: numbers of heads and ranks. Out:
//! nothing. Guarantee: the rows of every rank are compared with those of its heads, counted out one by one.

use super::*;
use crate::base::Rank;
use crate::layout::Dtype;
use crate::layout::model::{Dimensions, Model, ModelTensor};
use crate::layout::parallel::{ParallelSpec, Rules};

/// Indices of a head.
const SIZE: u64 = 3;
const NAMES: [&str; 4] = ["q_proj.weight", "k_proj.weight", "v_proj.bias", "o_proj.weight"];

/// Attention of so many query and key-value heads; the model says how many when `is_known`.
fn model((query, key_value): (u64, u64), is_known: bool) -> Model {
    let shapes = [vec![query * SIZE, 2], vec![key_value * SIZE, 2], vec![key_value * SIZE], vec![2, query * SIZE]];
    let tensors = NAMES.iter().zip(shapes);
    let tensors =
        tensors.map(|(name, shape)| ModelTensor::new(format!("m.layers.0.self_attn.{name}"), shape, Dtype::BF16));
    let (heads, key_value_heads) = (Some(query as u32), Some(key_value as u32));
    let known = Dimensions { heads, key_value_heads, ..Dimensions::default() };
    let dimensions = if is_known { known } else { Dimensions::default() };
    Model::new("m", tensors.collect()).unwrap().with_dimensions(dimensions)
}

/// The message with its causes.
fn text_of(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(text_of).unwrap_or_default();
    format!("{error}: {cause}")
}

/// Rows of queries, keys, values and columns of the output that every rank of `spec` holds.
fn held(model: &Model, spec: &str, rules: &Rules) -> Result<Vec<[Vec<u64>; 4]>, RulesError> {
    let spec = ParallelSpec::parse(spec).unwrap();
    let ranks: Vec<Rank> = (0..spec.rank_count()).map(Rank).collect();
    let ruled = rules.apply(model)?;
    let mut side = SideLayouts::new(&ruled, &spec, &ranks).unwrap();
    let mut held = vec![[const { Vec::new() }; 4]; ranks.len()];
    for index in 0..4 {
        let layout = side.layout(index)?;
        for rank in &ranks {
            if let Some(maps) = layout.axis_maps(*rank) {
                let map = &maps[usize::from(index == 3)];
                held[rank.index()][index] = map.intervals().flat_map(|part| part.lo..part.hi).collect();
            }
        }
    }
    Ok(held)
}

fn rows(heads: impl Iterator<Item = u64>) -> Vec<u64> {
    heads.flat_map(|head| head * SIZE..(head + 1) * SIZE).collect()
}

#[test]
fn no_head_is_cut_and_key_value_heads_are_repeated() {
    let rules = Rules::embedded().unwrap();
    for heads in [(8, 2), (8, 8), (12, 4), (12, 3), (6, 1)] {
        let (query, key_value) = heads;
        for tensor in (1..=query).filter(|ranks| query % ranks == 0) {
            if key_value % tensor != 0 && tensor % key_value != 0 {
                continue;
            }
            let found = held(&model(heads, true), &format!("tp={tensor}"), &rules).unwrap();
            for (rank, found) in (0..).zip(found) {
                let own = query / tensor * rank..query / tensor * (rank + 1);
                let (queries, mut used) =
                    (rows(own.clone()), own.map(|head| head * key_value / query).collect::<Vec<_>>());
                used.dedup();
                let keys = rows(used.into_iter());
                assert_eq!(
                    found,
                    [queries.clone(), keys.clone(), keys, queries],
                    "{heads:?}, tp={tensor}, rank {rank}"
                );
            }
        }
    }
}

#[test]
fn numbers_that_do_not_divide_are_refused() {
    let rules = Rules::embedded().unwrap();
    for (heads, ranks, counts) in [
        ((8, 2), 3, "8 query heads and 2 key-value heads"),
        ((8, 2), 16, "8 query heads and 2 key-value heads"),
        // Divides the queries; keys are neither divided nor repeated evenly.
        ((12, 4), 6, "12 query heads and 4 key-value heads"),
    ] {
        let Err(RulesError::Storage { rule, source }) = held(&model(heads, true), &format!("tp={ranks}"), &rules)
        else {
            panic!("{heads:?} over {ranks} ranks");
        };
        let text = text_of(&source);
        assert!(rule.starts_with("llama.toml:"), "{rule}");
        let parts = ["\"m.layers.0.self_attn.", &format!("under tp={ranks}"), counts, "as-needed"];
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text}");
    }
}

/// What the refusal says: of 8 query heads floor shares of 2, 3 and 3, of 2 key-value heads those of the rank's queries.
#[test]
fn heads_are_dealt_out_as_needed() {
    let text = "[[store]]\nnames = [\"*.self_attn.{q,o}_proj.*\"]\nside = \"both\"\n\
                heads = { of = \"query\", split = \"as-needed\" }\n\
                [[store]]\nnames = [\"*.self_attn.{k,v}_proj.*\"]\nside = \"both\"\n\
                heads = { of = \"key-value\", split = \"as-needed\" }\n";
    let rules = Rules::embedded().unwrap().with_overrides(Rules::parse(text, "my.toml").unwrap());
    let found = held(&model((8, 2), true), "tp=3", &rules).unwrap();
    let expected = [(0..2, 0..1), (2..5, 0..2), (5..8, 1..2)].map(|(query, key_value)| {
        let (queries, keys) = (rows(query), rows(key_value));
        [queries.clone(), keys.clone(), keys, queries]
    });
    assert_eq!(found, expected);
}

/// Without numbers of heads rows are cut, as by a user's rule that says nothing of heads; padding has no heads either.
#[test]
fn rows_are_cut_where_heads_are_not_known() {
    let floor = |extent: u64, rank: u64| (extent * rank / 5..extent * (rank + 1) / 5).collect::<Vec<u64>>();
    let expected = (0..5).map(|rank| [24, 6, 6, 24].map(|extent| floor(extent, rank))).collect::<Vec<_>>();
    let rules = Rules::embedded().unwrap();
    assert_eq!(held(&model((8, 2), false), "tp=5", &rules).unwrap(), expected);
    let plain = "[[rule]]\nnames = [\"*.self_attn.{q,k,v}_proj.*\"]\ntp = 0\n\
                 [[rule]]\nnames = [\"*.self_attn.o_proj.weight\"]\ntp = 1\n";
    let plain = rules.with_overrides(Rules::parse(plain, "my.toml").unwrap());
    assert_eq!(held(&model((8, 2), true), "tp=5", &plain).unwrap(), expected);
    // A single rank holds all heads, whatever their size.
    let odd = model((8, 2), true).with_dimensions(Dimensions { heads: Some(7), ..Dimensions::default() });
    assert!(held(&odd, "tp=1,dp=2", &Rules::embedded().unwrap()).is_ok());
    let error = held(&odd, "tp=2", &Rules::embedded().unwrap()).unwrap_err();
    assert!(text_of(&error).contains("24 indices, which are not 7 heads of one size"), "{error:?}");
}
