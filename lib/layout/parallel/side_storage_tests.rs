//! Stacks of experts against a reference written from the definition: for every rank the list of its slots, and in each
//! the rows of gate, then those of up. In: maps and numbers of ranks. Out: nothing. Guarantee: every position of every
//! stack is compared, and no two tensors share one.

use super::*;
use crate::base::Rank;
use crate::layout::Dtype;
use crate::layout::model::{Model, ModelTensor};
use crate::layout::parallel::{ExpertFile, FuseSide, ParallelSpec, PreparedModel, Rules};

const ROWS: u64 = 5;

/// A row of a stack: expert, part (0 gate, 1 up), row of the part.
type Row = (u64, u64, u64);

/// Slots of rank `owner` of `owners`, and rows of rank `tensor` of `tensors` in each, as the floor rule deals them out.
fn reference(slots: &[u64], (owner, owners): (usize, usize), (tensor, tensors): (u64, u64)) -> Vec<Row> {
    let own = &slots[slots.len() * owner / owners..slots.len() * (owner + 1) / owners];
    let rows = ROWS * tensor / tensors..ROWS * (tensor + 1) / tensors;
    let part = |expert: u64, part: u64| rows.clone().map(move |row| (expert, part, row)).collect::<Vec<Row>>();
    own.iter().flat_map(|&expert| [part(expert, 0), part(expert, 1)].concat()).collect()
}

fn model(experts: u64) -> Model {
    let name = |expert, part| format!("m.layers.0.mlp.experts.{expert}.{part}_proj.weight");
    let of = |expert| ["gate", "up"].map(|part| ModelTensor::new(name(expert, part), [ROWS, 2], Dtype::BF16));
    Model::new("m", (0..experts).flat_map(of).collect()).unwrap()
}

fn rules() -> Rules {
    let parts = ["gate", "up"].map(|part| format!("\"*.experts.{{expert}}.{part}_proj.weight\"")).join(", ");
    let text = format!("[[fuse]]\nparts = [{parts}]\ninto = \"*.experts.w13\"\nexperts = \"stacked\"\n");
    Rules::embedded().unwrap().with_overrides(Rules::parse(&text, "stack.toml").unwrap())
}

/// Rows of the stack of every rank, in rank order.
fn stacks(rules: &Rules, model: &Model, spec: &str) -> Vec<Vec<Row>> {
    let spec = ParallelSpec::parse(spec).unwrap();
    let ranks: Vec<Rank> = (0..spec.rank_count()).map(Rank).collect();
    let rules = rules.on(FuseSide::Destination);
    let prepared = PreparedModel::new(model, &rules, &rules).unwrap();
    let ruled = rules.apply_to(&prepared).unwrap();
    let mut side = SideLayouts::new(&ruled, &spec, &ranks).unwrap();
    let mut stacks: Vec<Vec<Option<Row>>> = vec![Vec::new(); ranks.len()];
    for index in 0..model.tensors().len() {
        let layout = side.layout(index).unwrap();
        for (rank, stack) in ranks.iter().zip(&mut stacks) {
            let Some(maps) = layout.axis_maps(*rank) else { continue };
            let [slots, rows] = [maps[0].extent(), maps[1].extent()];
            stack.resize((slots * rows) as usize, None);
            for slot in maps[0].segments() {
                for part in maps[1].segments() {
                    for at in 0..part.global.len() {
                        let row = (index as u64 / 2, index as u64 % 2, part.global.lo + at);
                        let place = &mut stack[(slot.local * rows + part.local + at * part.step) as usize];
                        assert_eq!(place.replace(row), None, "two tensors share a row");
                    }
                }
            }
        }
    }
    let whole = |stack: Vec<Option<Row>>| stack.into_iter().map(|row| row.expect("a row of no tensor")).collect();
    stacks.into_iter().map(whole).collect()
}

#[test]
fn stacks_hold_what_their_slots_say() {
    let maps: [(u64, Option<&[u64]>); 6] = [
        (1, None),
        (5, None),
        (6, None),
        (4, Some(&[3, 1, 0, 2])),
        (4, Some(&[2, 2, 0, 1, 3, 2, 0, 0])),
        (3, Some(&[1, 0, 2, 2, 1, 0, 0, 1, 2, 0, 0, 0])),
    ];
    let mut built = 0;
    for (experts, map) in maps {
        let in_order: Vec<u64> = (0..experts).collect();
        let slots = map.unwrap_or(&in_order);
        let mut rules = rules();
        if let Some(map) = map {
            let file = ExpertFile::parse(&format!("{map:?}"), "map.json").unwrap();
            rules = rules.with_experts(FuseSide::Destination, file);
        }
        for (owners, tensors) in (1..=4).flat_map(|owners| (1..=3).map(move |tensors| (owners, tensors))) {
            if map.is_some() && slots.len() % owners != 0 {
                continue;
            }
            let found = stacks(&rules, &model(experts), &format!("tp={tensors},ep={owners}"));
            for (rank, found) in found.into_iter().enumerate() {
                let (tensor, owner) = (rank as u64 % tensors, rank / tensors as usize);
                let expected = reference(slots, (owner, owners), (tensor, tensors));
                assert_eq!(found, expected, "{slots:?}, rank {rank} of ep={owners}, tp={tensors}");
                built += 1;
            }
        }
    }
    assert!(built > 200, "{built}");
}

/// Two experts in four slots over two ranks, of 5 rows over two ranks of `tp`.
#[test]
fn a_table_by_hand() {
    let file = ExpertFile::parse("[0, 1, 1, 0]", "map.json").unwrap();
    let rules = rules().with_experts(FuseSide::Destination, file);
    let text = |stack: &Vec<Row>| {
        let row = |&(expert, part, row): &Row| format!("{expert}{}{row}", ["g", "u"][part as usize]);
        stack.iter().map(row).collect::<Vec<_>>().join(" ")
    };
    let found = stacks(&rules, &model(2), "ep=2,tp=2");
    assert_eq!(text(&found[0]), "0g0 0g1 0u0 0u1 1g0 1g1 1u0 1u1");
    assert_eq!(text(&found[1]), "1g0 1g1 1u0 1u1 0g0 0g1 0u0 0u1");
    assert_eq!(text(&found[2]), "0g2 0g3 0g4 0u2 0u3 0u4 1g2 1g3 1g4 1u2 1u3 1u4");
}

#[test]
fn layouts_of_stacks_come_from_both_sides() {
    let (rules, model) = (rules(), model(2));
    let error = rules.apply(&model).unwrap_err().to_string();
    assert!(error.contains("stack.toml:1"), "{error}");
}
