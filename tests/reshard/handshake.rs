//! What ranks compare before the first byte, beyond names, shapes, types, meshes and placements: orders of axes, blocks,
//! padding, options of a call, topology and version. Every rank of a job gets the same error, or its own at the door.

use super::bad_input::{Call, ODD, all_say, good, refused_with};
use super::{finalize, world};
use crate::planner::layout;
use crate::rig::spmd::{Job, said};
use crossmesh::PROTOCOL_VERSION;
use crossmesh::bootstrap::UniqueId;
use crossmesh::comm::{Communicator, ReshardOptions, WorldOptions};
use crossmesh::layout::{AxisMap, Dtype, Interval, Layout, Placement};
use crossmesh::route::{Injection, RouteKind, RouteOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

const SHAPE: [u64; 2] = [8, 6];

/// Rows cut by both axes of a mesh, the usual way round.
fn rows() -> Layout {
    Layout::clone(&layout(&SHAPE, Dtype::F32, &[2, 2], 0..4, &[Placement::shard(0), Placement::shard(0)]))
}

fn columns() -> Layout {
    Layout::clone(&layout(&SHAPE, Dtype::F32, &[4], 0..4, &[Placement::shard(1)]))
}

/// The fifth of five tensors has another layout on rank 2.
fn differs(world: &Communicator, odd: (Layout, Layout), expected: &[&str]) {
    let (usual, odd) = ((Arc::new(rows()), Arc::new(columns())), (Arc::new(odd.0), Arc::new(odd.1)));
    let names = ["a", "b", "c", "d", "w", "x"];
    let (source, destination) = if world.rank() == ODD { odd } else { usual.clone() };
    let of = |name: &'static str| match name {
        "w" => (name, source.clone(), destination.clone()),
        _ => (name, usual.0.clone(), usual.1.clone()),
    };
    let call = Call { tensors: names.map(of).to_vec(), spoil: |_, _| () };
    let text = refused_with(world, &call, ReshardOptions::default());
    all_say(world, &text, &[&["tensor 4 (\"w\"), "], expected].concat());
    assert!(text.len() < 1500, "{text}");
}

#[test]
fn what_a_layout_says_besides() {
    let body = || {
        let world = world();
        let nested = rows().with_nesting(0, &[1, 0]).expect("both axes");
        differs(&world, (nested, columns()), &["nesting: ", "[[1, 0], []]", "[[0, 1], []]"]);
        let weight = layout(&[16, 6], Dtype::F32, &[2, 2], 0..4, &[Placement::shard(0), Placement::shard(0)]);
        let scales = weight.block_scales(&[2, 1], Dtype::F32).expect("even blocks");
        differs(&world, (scales, columns()), &["blocks: Some(([16, 6], [2, 1])) to None", "None to None on rank 0"]);
        let padded = columns().with_padding(&[0, 0, 128, 63]).expect("four bytes");
        differs(&world, (rows(), padded), &["padding: None to Some([0, 0, 128, 63])", "None to None on rank 0"]);
        // Very many segments of which the last ones differ: what is shown is about these.
        let wanted = |last: [u64; 2]| {
            let all = (0..50u64).flat_map(|_| 0..6).chain(last).map(|at| Interval { lo: at, hi: at + 1 });
            let maps = vec![AxisMap::new(all.step_by(2)); 4];
            Layout::clone(&layout(&SHAPE, Dtype::F32, &[4], 0..4, &[Placement::parts(1, maps)]))
        };
        differs(
            &world,
            (rows(), wanted([1, 3])),
            &["destination placements: [Parts { dim: 1", "… on rank 2, [Shard { dim: 1"],
        );
        finalize(world);
    };
    Job::of(4).env("CROSSMESH_DOMAINS", 2).run(body).expect_success();
}

#[test]
fn options_of_one_call() {
    let body = || {
        let world = world();
        for (kind, injection, what, values) in [
            (RouteKind::Flat, Injection::Striped, "different route: ", ["flat on rank 2", "hierarchical on rank 0"]),
            (RouteKind::Hierarchical, Injection::Single, "injection: ", ["single on rank 2", "striped on rank 0"]),
        ] {
            let usual = ReshardOptions::default();
            let route = if world.rank() == ODD { RouteOptions { kind, injection } } else { usual.route };
            let text = refused_with(&world, &good(), ReshardOptions { route });
            all_say(&world, &text, &[what, values[0], values[1]]);
        }
        finalize(world);
    };
    Job::of(4).run(body).expect_success();
}

/// What a rank says when its job does not come together.
fn say_why_not(limit: Duration) {
    let options = WorldOptions { deadline: Some(limit), ..WorldOptions::from_environment().expect("options") };
    let error = Communicator::world(&options).expect_err("one rank differs");
    println!(
        "refused: {error}{}",
        std::error::Error::source(&error).map(|inner| format!(": {inner}")).unwrap_or_default()
    );
}

#[test]
fn another_topology_on_one_rank() {
    let (domains, domain) = ("CROSSMESH_DOMAINS", "CROSSMESH_DOMAIN");
    for (job, expected) in [
        (Job::of(4).env(domains, 2).env_on(2, domains, 4), "CROSSMESH_DOMAINS is 2 on rank 0 and 4 on rank 2"),
        (Job::of(4).env_on(2, domains, 4), "CROSSMESH_DOMAINS is not set on rank 0 and 4 on rank 2"),
        (Job::of(4).env_on(2, domain, 1), "CROSSMESH_DOMAIN is set on rank 2 and not on rank 0"),
    ] {
        let job = job.run(|| say_why_not(Duration::from_secs(30))).expect_success();
        let texts = said(&job, "refused: ");
        assert!(texts.len() == 4 && texts.iter().all(|text| text.contains(expected)), "{expected}: {texts:?}");
    }
}

/// Rank 2 speaks the next version of the protocol: it is told this one's, the log names both, and nobody waits for ever.
#[test]
fn another_version_on_one_rank() {
    let body = || {
        if std::env::var("CROSSMESH_RANK").as_deref() != Ok("2") {
            return say_why_not(Duration::from_secs(4));
        }
        let id: UniqueId = std::env::var("CROSSMESH_UNIQUE_ID").expect("a job").parse().expect("an id");
        let mut stream = TcpStream::connect(id.addresses()).expect("a rendezvous");
        let prefix = |version: u32| [&b"xmesh\r\n\0"[..], &version.to_le_bytes()].concat();
        stream.write_all(&prefix(PROTOCOL_VERSION + 1)).expect("a greeting");
        let mut told = [0; 12];
        stream.read_exact(&mut told).expect("an answer");
        assert_eq!(told[..], prefix(PROTOCOL_VERSION));
        println!("told: version {PROTOCOL_VERSION}");
    };
    let job = Job::of(3).run(body).expect_success();
    assert_eq!(said(&job, "told: "), [format!("version {PROTOCOL_VERSION}")]);
    let texts = said(&job, "refused: ");
    assert!(texts.len() == 2 && texts.iter().all(|text| text.contains("rank 2")), "{job:#?}");
    let both = format!("speaks protocol version {PROTOCOL_VERSION}, the peer version {}", PROTOCOL_VERSION + 1);
    assert!(job.errors.contains(&both), "{job:#?}");
}
