//! A whole mixture-of-experts model: 61 layers of 256 experts with 3 matrices each, on 256 ranks. The times are
//! printed, not judged.

use super::{all_options, layout, plan};
use crossmesh::base::Rank;
use crossmesh::execute::program_summary;
use crossmesh::layout::{Dtype, Layout, Placement};
use crossmesh::plan::{Manifest, ManifestDigest, Plan};
use crossmesh::route::{RouteKind, check, route, route_for, traffic};
use crossmesh::topology::Topology;
use std::sync::Arc;
use std::time::Instant;

const LAYERS: u32 = 61;
const EXPERTS: u32 = 256;

/// Experts on 32 groups of 4 trainer ranks, sharded by rows; on 16 groups of 2 replicas of 4 generator ranks, sharded
/// by columns. With `shared`, tensors of one expert share their layouts.
fn model(shared: bool) -> Arc<Manifest> {
    let pair = |expert: u32| -> (Arc<Layout>, Arc<Layout>) {
        let shape = [2048, 7168];
        let trainer = expert / 8 * 4;
        let generator = 128 + expert / 16 * 8;
        (
            layout(&shape, Dtype::BF16, &[4], trainer..trainer + 4, &[Placement::shard(0)]),
            layout(
                &shape,
                Dtype::BF16,
                &[2, 4],
                generator..generator + 8,
                &[Placement::Replicate, Placement::shard(1)],
            ),
        )
    };
    let pairs: Vec<_> = (0..EXPERTS).map(pair).collect();
    let mut manifest = Manifest::new();
    for layer in 0..LAYERS {
        for expert in 0..EXPERTS {
            for matrix in ["gate", "up", "down"] {
                let (source, destination) = if shared { pairs[expert as usize].clone() } else { pair(expert) };
                let name = format!("layers.{layer}.experts.{expert}.{matrix}");
                manifest.push(name, source, destination).expect("a tensor of the model");
            }
        }
    }
    Arc::new(manifest)
}

#[test]
fn a_whole_model() {
    let topology = Topology::from_domains(&(0..256).map(|rank| rank / 64).collect::<Vec<_>>());
    let bytes = u64::from(LAYERS * EXPERTS * 3) * 2048 * 7168 * 2;
    for shared in [true, false] {
        let manifest = model(shared);
        let begin = Instant::now();
        let plan = Plan::compile(manifest.clone(), 256).unwrap();
        let compiled = begin.elapsed();
        let begin = Instant::now();
        let digest = ManifestDigest::new(&manifest, b"");
        println!(
            "{} tensors, shared {shared}: compile {compiled:?}, digest {:?}",
            digest.leaves.len(),
            begin.elapsed()
        );
        assert_eq!((plan.unique_bytes(), plan.delivered_bytes()), (bytes, 2 * bytes));
        // Trainer groups of 4, 4 rows by 4 columns each.
        assert_eq!(plan.classes().len(), 32 * 16);
        for options in all_options() {
            let begin = Instant::now();
            let flows = route(&plan, &topology, options).flows;
            let routed = begin.elapsed();
            let begin = Instant::now();
            assert_eq!(check(&plan, &flows).unwrap().written, 2 * bytes);
            let pieces: usize = flows.iter().map(|flow| flow.pieces.len()).sum();
            println!(
                "{} {}: route {routed:?}, check {:?}, {} flows, {pieces} pieces",
                options.kind,
                options.injection,
                begin.elapsed(),
                flows.len()
            );
            let counted = traffic(&flows, &topology);
            match options.kind {
                RouteKind::Hierarchical => assert_eq!(counted.inter_domain_bytes, bytes),
                RouteKind::Flat => assert_eq!(counted.inter_domain_bytes, 2 * bytes),
                RouteKind::GatherBroadcast => assert!(counted.inter_domain_bytes >= 2 * bytes),
            }
        }
    }
}

/// What a rank compiles follows its flows, however long the chain of domains behind it: 200 times as many take no 8 times
/// as long.
#[test]
fn a_program_does_not_follow_the_domains() {
    let fastest = |domains: u32| {
        let size = 64 + domains;
        let held = layout(&[4096, 64], Dtype::BF16, &[64], 0..64, &[Placement::shard(0)]);
        let wanted = layout(&[4096, 64], Dtype::BF16, &[domains], 64..size, &[Placement::Replicate]);
        let topology = Topology::from_domains(&(0..size).map(|rank| rank.saturating_sub(63)).collect::<Vec<_>>());
        let plan = plan([(held, wanted)], size as usize);
        let flows = route_for(&plan, &topology, all_options()[0], Rank(64));
        let times = (0..20).map(|_| {
            let begin = Instant::now();
            let summary = program_summary(&plan, &flows, &topology, Rank(64), 1 << 20);
            assert_eq!((summary.chunks, flows.len()), (64, 64));
            begin.elapsed()
        });
        times.min().unwrap()
    };
    let (few, many) = (fastest(20), fastest(4000));
    println!("64 flows over 20 domains {few:?}, over 4000 domains {many:?}");
    assert!(many < 8 * few, "{many:?} and {few:?}");
}

/// All ranks to all ranks, one class for every pair.
#[test]
fn many_classes() {
    let (side, size) = (192u32, 384u32);
    let source = layout(&[4096, 4096], Dtype::BF16, &[side], 0..side, &[Placement::shard(0)]);
    let destination = layout(&[4096, 4096], Dtype::BF16, &[side], side..size, &[Placement::shard(1)]);
    let topology = Topology::from_domains(&(0..size).map(|rank| rank / 64).collect::<Vec<_>>());
    let begin = Instant::now();
    let plan = plan([(source, destination)], size as usize);
    assert_eq!(plan.classes().len(), 192 * 192);
    let compiled = begin.elapsed();
    let begin = Instant::now();
    let flows = route(&plan, &topology, all_options()[0]).flows;
    println!("{} classes: compile {compiled:?}, route {:?}", plan.classes().len(), begin.elapsed());
    assert_eq!(check(&plan, &flows).unwrap().written, 4096 * 4096 * 2);
    assert_eq!(flows.len(), 192 * 192);
    // Every round is full: each root in turn, each receiver once.
    for round in flows.chunks(192) {
        let mut receivers: Vec<u32> = round.iter().map(|flow| flow.nodes[1].rank.0).collect();
        receivers.sort_unstable();
        assert!(round.is_sorted_by_key(|flow| flow.nodes[0].rank) && receivers == (192..384).collect::<Vec<_>>());
    }
}
