//! The evaluation of NCCL M2N (section VI) by simulation, on its own cluster: one expert layer (Figure 4) and
//! DeepSeek-V3 (the set-up of Figure 5). The tables stand in `docs/paper.md`, line by line as they are computed here.

use super::{layout, plan};
use crossmesh::base::Rank;
use crossmesh::layout::model::Model;
use crossmesh::layout::parallel::{ParallelSpec, Rules};
use crossmesh::layout::{Dtype, Placement};
use crossmesh::plan::{Manifest, ModelSide, Plan, model_manifest};
use crossmesh::route::{
    Equations, Injection, RouteCost, RouteKind, RouteOptions, Simulated, check, name, nic_bound, route, simulate,
};
use crossmesh::topology::{Machine, Synthetic};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The default of `CROSSMESH_CHUNK`.
const CHUNK: u64 = 1 << 20;
/// Expert-parallel ranks of a trainer replica, or of a pipeline stage.
const EXPERT_RANKS: u32 = 16;
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/paper.md");

fn machine(cluster: &str, sides: &[u32]) -> Machine {
    cluster.parse::<Synthetic>().unwrap().machine(sides).unwrap()
}

/// A table of the page.
fn assert_on_page(lines: &[String]) {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let table = lines.join("\n");
    assert!(page.contains(&format!("\n{table}\n")), "docs/paper.md lacks this table:\n{table}");
}

/// A plan by one route: what it costs, and how a simulation went.
struct Run {
    cost: RouteCost,
    simulated: Simulated,
}

impl Run {
    fn new(plan: &Plan, machine: &Machine, options: RouteOptions) -> Self {
        let routed = route(plan, &machine.topology, options);
        assert_eq!(check(plan, &routed.flows).unwrap().written, plan.delivered_bytes());
        let simulated = simulate(&routed.flows, machine, CHUNK);
        Self { cost: RouteCost::new(&routed, machine, CHUNK), simulated }
    }

    fn bound(&self) -> f64 {
        self.cost.bound.seconds()
    }

    fn over_bound(&self) -> f64 {
        self.simulated.seconds / self.bound()
    }
}

/// A point of Figure 4: replicas of the generator and of the trainer, measured milliseconds of the paper.
struct Point {
    replicas: u32,
    trainer_replicas: u32,
    hierarchical: &'static str,
    flat: &'static str,
    gather_broadcast: &'static str,
}

/// The paper states the middle flat one only as 10 % over its bound.
const FIGURE_4: [Point; 3] = [
    Point { replicas: 2, trainer_replicas: 1, hierarchical: "10.251", flat: "20.859", gather_broadcast: "222.065" },
    Point { replicas: 4, trainer_replicas: 2, hierarchical: "13.834", flat: "~39.4", gather_broadcast: "239.649" },
    Point { replicas: 8, trainer_replicas: 4, hierarchical: "9.775", flat: "77.258", gather_broadcast: "-" },
];

impl Point {
    fn machine(&self) -> Machine {
        machine("gb200-nvl72:2", &[EXPERT_RANKS * self.trainer_replicas, 8 * self.replicas])
    }

    /// Gate projections of 256 experts: by expert on the trainer, by rows on the generator.
    fn plan(&self) -> Plan {
        let shape = [256, 2048, 7168];
        let trainers = EXPERT_RANKS * self.trainer_replicas;
        let held = [Placement::Replicate, Placement::shard(0)];
        let source = layout(&shape, Dtype::BF16, &[self.trainer_replicas, EXPERT_RANKS], 0..trainers, &held);
        let wanted = [Placement::Replicate, Placement::shard(1)];
        let generators = trainers..trainers + 8 * self.replicas;
        let destination = layout(&shape, Dtype::BF16, &[self.replicas, 8], generators, &wanted);
        plan([(source, destination)], (trainers + 8 * self.replicas) as usize)
    }

    /// The paper's equations for so many bytes and replicas that inject.
    fn equations(&self, payload: f64, injecting: u32) -> Equations {
        let (sources, replicas) = (f64::from(EXPERT_RANKS * injecting), f64::from(self.replicas));
        Equations { payload, sources, shards: 8.0, replicas, domains: 1.0, nic: 50e9, nvlink: 900e9 }
    }

    /// Bound by the paper's equations.
    fn equation(&self, options: RouteOptions, payload: f64) -> f64 {
        let injecting = if options.injection == Injection::Striped { self.trainer_replicas } else { 1 };
        let equations = self.equations(payload, injecting);
        match options.kind {
            RouteKind::Hierarchical => equations.hierarchical(),
            RouteKind::Flat => equations.flat(),
            RouteKind::GatherBroadcast => equations.gather_broadcast(),
        }
    }

    fn measured(&self, options: RouteOptions) -> &'static str {
        match (options.kind, options.injection) {
            (RouteKind::Hierarchical, Injection::Striped) => "-",
            (RouteKind::Hierarchical, Injection::Single) => self.hierarchical,
            (RouteKind::Flat, _) => self.flat,
            (RouteKind::GatherBroadcast, _) => self.gather_broadcast,
        }
    }
}

#[test]
fn figure_4() {
    let mut lines = vec![
        "| r_d | trainers, generators | route | paper's bound, 7168 MB | its equation, 7168 MiB | our links' bound | simulated | over our bound | measured by the paper |".to_string(),
        "|---|---|---|---|---|---|---|---|---|".to_string(),
    ];
    for point in FIGURE_4 {
        let (plan, machine) = (point.plan(), point.machine());
        assert_eq!(plan.unique_bytes(), 7168 << 20, "the paper counts 7168e6");
        let runs = RouteOptions::ALL.map(|options| Run::new(&plan, &machine, options));
        let [striped, single, flat, _] = &runs;
        for run in [striped, single, flat] {
            let equation = point.equation(run.cost.options, plan.unique_bytes() as f64);
            assert!((run.bound() / equation - 1.0).abs() < 1e-6, "the equations count what the links carry");
        }
        assert!(single.over_bound() < 1.1, "single owner: {}", single.over_bound());
        if point.trainer_replicas == 4 {
            let times = single.bound() / striped.simulated.seconds;
            assert!(times > 3.6, "striped is {times} times under the bound of a single owner");
        }
        lines.extend(runs.iter().map(|run| row(&point, run)));
    }
    assert_on_page(&lines);
}

fn row(point: &Point, run: &Run) -> String {
    let options = run.cost.options;
    let milliseconds = |seconds: f64| format!("{:.3}", seconds * 1e3);
    let paper = match (options.kind, options.injection) {
        (RouteKind::Hierarchical, Injection::Striped) => "-".to_string(),
        _ => format!("{:.2}", point.equation(options, 7168e6) * 1e3),
    };
    format!(
        "| {} | {}, {} | {} | {paper} | {} | {} | {} | {:.3} | {} |",
        point.replicas,
        EXPERT_RANKS * point.trainer_replicas,
        8 * point.replicas,
        name(options),
        milliseconds(point.equation(options, (7168u64 << 20) as f64)),
        milliseconds(run.bound()),
        milliseconds(run.simulated.seconds),
        run.over_bound(),
        point.measured(options),
    )
}

/// DeepSeek-V3 from 8 stages of 16 expert-parallel ranks to 8 replicas of 16 tensor-parallel ones.
fn deepseek() -> Arc<Manifest> {
    let model = Model::published("deepseek-v3").unwrap();
    let rules = Rules::embedded().unwrap();
    let spec = |text: &str| ParallelSpec::parse(text).unwrap();
    let (trainer, generator) = (spec("ep=16,dp=1,pp=8"), spec("tp=16,dp=8"));
    let ranks = |range: std::ops::Range<u32>| range.map(Rank).collect::<Vec<_>>();
    let (held, wanted) = (ranks(0..128), ranks(128..256));
    let source = ModelSide { spec: &trainer, ranks: &held, rules: &rules };
    let destination = ModelSide { spec: &generator, ranks: &wanted, rules: &rules };
    Arc::new(model_manifest(&model, source, destination).unwrap().manifest)
}

/// A manifest for each pipeline stage: what NCCL M2N moves with one communicator after the other.
fn stages(manifest: &Manifest) -> Vec<Arc<Manifest>> {
    let mut stages: BTreeMap<u32, Manifest> = BTreeMap::new();
    for tensor in manifest.tensors() {
        let first = tensor.source.mesh().rank(0).0 / EXPERT_RANKS;
        let stage = stages.entry(first).or_default();
        stage.push(&*tensor.name, tensor.source.clone(), tensor.destination.clone()).unwrap();
    }
    stages.into_values().map(Arc::new).collect()
}

/// Plans that follow each other by one route, with the sums of their times.
struct Sequence {
    options: RouteOptions,
    inter_domain_bytes: u64,
    bound: f64,
    simulated: f64,
    /// The longest.
    chunk_bytes: u64,
}

impl Sequence {
    fn new(plans: &[Plan], machine: &Machine, options: RouteOptions) -> Self {
        let runs: Vec<Run> = plans.iter().map(|plan| Run::new(plan, machine, options)).collect();
        Self {
            options,
            inter_domain_bytes: runs.iter().map(|run| run.cost.traffic.inter_domain_bytes).sum(),
            bound: runs.iter().map(Run::bound).sum(),
            simulated: runs.iter().map(|run| run.simulated.seconds).sum(),
            chunk_bytes: runs.iter().map(|run| run.simulated.chunk_bytes).max().unwrap_or(0),
        }
    }

    fn row(&self, stages: &str) -> String {
        format!(
            "| {stages} | {} | {:.3} | {:.4} | {:.4} | {:.3} | {} |",
            name(self.options),
            self.inter_domain_bytes as f64 / 1e12,
            self.bound,
            self.simulated,
            self.simulated / self.bound,
            self.chunk_bytes >> 20,
        )
    }
}

#[test]
fn figure_5() {
    let machine = machine("gb200-nvl72:4/64", &[128, 128]);
    let manifest = deepseek();
    let whole = Plan::compile(manifest.clone(), 256).unwrap();
    let stages: Vec<Plan> = stages(&manifest).into_iter().map(|stage| Plan::compile(stage, 256).unwrap()).collect();
    assert_eq!(stages.len(), 8);
    assert_eq!(stages.iter().map(Plan::unique_bytes).sum::<u64>(), whole.unique_bytes());
    assert_on_page(&[
        "| tensors | bytes, each once | bytes delivered | classes |".to_string(),
        "|---|---|---|---|".to_string(),
        format!(
            "| {} | {} | {} | {} |",
            manifest.tensors().len(),
            whole.unique_bytes(),
            whole.delivered_bytes(),
            whole.classes().len()
        ),
    ]);

    let mut lines = vec![
        "| stages | route | TB over the network | bound | simulated | over the bound | chunk, MiB |".to_string(),
        "|---|---|---|---|---|---|---|".to_string(),
    ];
    let all = std::slice::from_ref(&whole);
    // A broadcast of all stages takes as long as broadcasts of each.
    for (name, plans, routes) in [("one at a time", &stages[..], 3), ("all at once", all, 4)] {
        let sequences: Vec<_> =
            RouteOptions::ALL[..routes].iter().map(|&options| Sequence::new(plans, &machine, options)).collect();
        let [striped, single, ..] = &sequences[..] else { unreachable!("three routes or four") };
        for sequence in [striped, single] {
            assert!(sequence.simulated < 1.1 * sequence.bound, "{}", sequence.row(name));
            assert_eq!(sequence.inter_domain_bytes, 2 * whole.unique_bytes(), "once into each generator domain");
        }
        let least: f64 = plans.iter().map(|plan| nic_bound(plan, &machine, Injection::Striped).seconds).sum();
        assert!((striped.bound / least - 1.0).abs() < 1e-2, "{} of {least}", striped.bound);
        // 16 cards of a stage send, or the 64 of each generator domain receive.
        let cards = if plans.len() == 8 { 16.0 } else { 64.0 };
        assert!((striped.bound * cards * 50e9 / whole.unique_bytes() as f64 - 1.0).abs() < 1e-2);
        lines.extend(sequences.iter().map(|sequence| sequence.row(name)));
    }
    assert_on_page(&lines);
}
