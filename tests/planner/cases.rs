//! The case file that the test bench shares with other tools: byte counts computed by definition, elsewhere.

use super::{all_options, layout, options};
use crossmesh::layout::{Dtype, Layout, Placement};
use crossmesh::plan::{Manifest, Plan};
use crossmesh::route::{Injection, RouteKind, check, route, traffic};
use crossmesh::topology::Topology;
use serde_json::Value;
use std::sync::Arc;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/fixtures/cases/cases.json");

#[test]
fn shared_cases() {
    let Ok(text) = std::fs::read_to_string(PATH) else {
        println!("not run: {PATH} is absent");
        return;
    };
    let cases: Vec<Value> = serde_json::from_str(&text).expect("the case file is a JSON list");
    assert!(!cases.is_empty());
    for case in &cases {
        compare(case);
    }
}

fn compare(case: &Value) {
    let name = case["name"].as_str().expect("a name");
    let domains: Vec<u32> = numbers(&case["domains"]).map(|domain| domain as u32).collect();
    let topology = Topology::from_domains(&domains);
    let mut manifest = Manifest::new();
    manifest.push(name, side(case, "src"), side(case, "dst")).unwrap();
    let plan = Plan::compile(Arc::new(manifest), domains.len()).unwrap();
    let expect = |field: &str| case["expect"][field].as_u64().unwrap_or_else(|| panic!("{name}: {field}"));
    assert_eq!(plan.unique_bytes(), expect("unique_bytes"), "{name}");
    assert_eq!(plan.delivered_bytes(), expect("delivered_bytes"), "{name}");
    for options in all_options() {
        let flows = route(&plan, &topology, options).flows;
        assert_eq!(check(&plan, &flows).unwrap().written, plan.delivered_bytes(), "{name}");
    }
    let counted = |kind| traffic(&route(&plan, &topology, options(kind, Injection::Striped)).flows, &topology);
    assert_eq!(counted(RouteKind::Flat).inter_domain_bytes, expect("flat_inter_domain_bytes"), "{name}");
    let hierarchical = counted(RouteKind::Hierarchical);
    assert_eq!(hierarchical.inter_domain_bytes, expect("hierarchical_inter_domain_bytes"), "{name}");
    let mut ingress = vec![0; topology.domain_count()];
    for (domain, bytes) in case["expect"]["ingress_per_domain"].as_object().expect("bytes by domain") {
        // The topology numbers domains in order of first appearance.
        let rank = domains.iter().position(|known| known.to_string() == *domain).expect("a domain of some rank");
        ingress[topology.domain(crossmesh::base::Rank(rank as u32)).index()] = bytes.as_u64().expect("bytes");
    }
    assert_eq!(hierarchical.ingress_per_domain, ingress, "{name}");
}

fn numbers(value: &Value) -> impl Iterator<Item = u64> + '_ {
    value.as_array().expect("a list").iter().map(|number| number.as_u64().expect("a number"))
}

fn side(case: &Value, side: &str) -> Arc<Layout> {
    let shape: Vec<u64> = numbers(&case["shape"]).collect();
    let dtype = Dtype::parse(case["dtype"].as_str().expect("a type name")).unwrap();
    let mesh: Vec<u32> = numbers(&case[side]["mesh"]).map(|length| length as u32).collect();
    let ranks = numbers(&case[side]["ranks"]).map(|rank| rank as u32);
    let placements = case[side]["placements"].as_array().expect("a list").iter();
    let placements: Vec<Placement> = placements.map(|text| text.as_str().expect("a text").parse().unwrap()).collect();
    layout(&shape, dtype, &mesh, ranks, &placements)
}
