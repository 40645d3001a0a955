//! What cannot be: every rank gets an error that says what and where, nothing hangs, and the job goes on.

use super::random::Memory;
use super::{finalize, soon, world};
use crate::planner::{all_options, layout};
use crate::rig::spmd::{Job, said};
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, Communicator, ReshardOptions, Side};
use crossmesh::layout::{Dtype, FusedAxis, FusedForm, HeadSplit, Heads, Layout, Placement, View};
use crossmesh::plan::Manifest;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a rank passes.
pub(super) struct Call {
    pub(super) tensors: Vec<(&'static str, Arc<Layout>, Arc<Layout>)>,
    /// Applied to good buffers.
    pub(super) spoil: fn(&mut Buffers, Rank),
}

/// The rank that differs from all others.
pub(super) const ODD: Rank = Rank(2);

fn matrix(dtype: Dtype, rows: u64, from: &[u32], placement: Placement) -> Arc<Layout> {
    layout(&[rows, 6], dtype, &[from.len() as u32], from.iter().copied(), &[placement])
}

/// Two tensors from ranks 0 and 1 to ranks 1 and 2.
pub(super) fn good() -> Call {
    let pair = |dtype| {
        let source = matrix(dtype, 8, &[0, 1], Placement::shard(0));
        (source, matrix(dtype, 8, &[1, 2], Placement::shard(1)))
    };
    let ((q, q_wanted), (k, k_wanted)) = (pair(Dtype::F32), pair(Dtype::BF16));
    Call { tensors: vec![("q", q, q_wanted), ("k", k, k_wanted)], spoil: |_, _| () }
}

/// Calls init; the error, in one line with its causes.
fn refused(world: &Communicator, call: &Call) -> String {
    refused_with(world, call, ReshardOptions::default())
}

/// The same with options.
pub(super) fn refused_with(world: &Communicator, call: &Call, options: ReshardOptions) -> String {
    let mut manifest = Manifest::new();
    for (name, source, destination) in &call.tensors {
        manifest.push(*name, source.clone(), destination.clone()).expect("one shape and dtype");
    }
    let manifest = Arc::new(manifest);
    let mut buffers = Buffers::new(&manifest);
    for (number, tensor) in manifest.tensors().iter().enumerate() {
        for (side, layout) in [(Side::Source, &tensor.source), (Side::Destination, &tensor.destination)] {
            let bytes = layout.local_bytes(world.rank());
            if bytes > 0 {
                let buffer = Buffer::private(bytes).expect("memory");
                buffer.write().expect("fresh").fill(9);
                buffers.set(side, number, buffer, View::contiguous());
            }
        }
    }
    (call.spoil)(&mut buffers, world.rank());
    let began = Instant::now();
    let error = world.reshard_init(&manifest, &buffers, options, soon()).expect_err("a bad call");
    assert!(began.elapsed() < Duration::from_secs(10), "{error} after {:?}", began.elapsed());
    for number in 0..manifest.tensors().len() {
        let destination = buffers.get(Side::Destination, number);
        let untouched =
            |buffer: &Buffer| buffer.read().is_ok_and(|bytes| bytes.iter().all(|&byte| byte == 9 || byte == 0));
        assert!(destination.is_none_or(|tensor| untouched(&tensor.buffer)), "half written");
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

fn goes_on(world: &Communicator) {
    super::matrix::replay(world, 77, all_options()[0], Memory::PerBuffer);
}

/// `odd` changes what rank 2 passes; all ranks must say the same, with all of `expected` in it.
fn disagreement(world: &Communicator, odd: impl FnOnce(&mut Call), expected: &[&str]) {
    let mut call = good();
    if world.rank() == ODD {
        odd(&mut call);
    }
    all_say(world, &refused(world, &call), expected);
}

/// All ranks say `text`, which has all of `expected` and both ranks in it, and the job goes on.
pub(super) fn all_say(world: &Communicator, text: &str, expected: &[&str]) {
    let all = world.allgather(text.as_bytes(), soon()).expect("the job goes on");
    assert!(all.iter().all(|other| other == text.as_bytes()), "ranks say different things");
    for part in expected.iter().chain(&["rank 2 and rank 0 ", " on rank 2", " on rank 0"]) {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    goes_on(world);
}

#[test]
fn ranks_that_disagree() {
    let body = || {
        let world = world();
        let (all, columns) = (Placement::Replicate, Placement::shard(1));
        disagreement(
            &world,
            |call| {
                call.tensors[1].1 = matrix(Dtype::BF16, 9, &[0, 1], Placement::shard(0));
                call.tensors[1].2 = matrix(Dtype::BF16, 9, &[1, 2], Placement::shard(1));
            },
            &["tensor 1 (\"k\"), shape: [9, 6]", "[8, 6]"],
        );
        disagreement(
            &world,
            |call| {
                call.tensors[0].1 = matrix(Dtype::F16, 8, &[0, 1], Placement::shard(0));
                call.tensors[0].2 = matrix(Dtype::F16, 8, &[1, 2], Placement::shard(1));
            },
            &["tensor 0 (\"q\"), dtype: F16", "F32"],
        );
        disagreement(
            &world,
            |call| call.tensors[0].1 = matrix(Dtype::F32, 8, &[1, 0], Placement::shard(0)),
            &["tensor 0 (\"q\"), source mesh: shape [2] ranks 1,0", "shape [2] ranks 0-1"],
        );
        disagreement(
            &world,
            |call| call.tensors[0].2 = matrix(Dtype::F32, 8, &[1, 2], all.clone()),
            &["tensor 0 (\"q\"), destination placements: [Replicate]", "Shard { dim: 1"],
        );
        disagreement(
            &world,
            |call| call.tensors[1].1 = matrix(Dtype::BF16, 8, &[0, 1], columns.clone()),
            &["tensor 1 (\"k\"), source placements: [Shard { dim: 1", "[Shard { dim: 0"],
        );
        disagreement(
            &world,
            |call| call.tensors.swap(0, 1),
            &["tensor 0 (\"q\"), name: k", ": k on rank 2, q on rank 0"],
        );
        disagreement(&world, |call| call.tensors[1].0 = "v", &["tensor 1 (\"k\"), name: v on rank 2, k on rank 0"]);
        disagreement(&world, |call| drop(call.tensors.pop()), &["tensor 1 (\"k\"), name: no such tensor on rank 2"]);
        // The mesh of one rank's manifest leaves the world: still named as the difference that it is.
        disagreement(
            &world,
            |call| call.tensors[1].2 = matrix(Dtype::BF16, 8, &[1, 9], columns.clone()),
            &["tensor 1 (\"k\"), destination mesh: shape [2] ranks 1,9"],
        );
        finalize(world);
    };
    Job::of(4).env("CROSSMESH_DOMAINS", 2).run(body).expect_success();
}

/// Rank 2 cannot take part: it says why, the others name it and say why.
fn one_cannot(world: &Communicator, spoil: fn(&mut Buffers, Rank), expected: &[&str]) {
    let text = refused(world, &Call { spoil, ..good() });
    let host = world.topology().host(ODD);
    let prefix = format!("rank 2 on host {host} cannot take part: ");
    let own = if world.rank() == ODD {
        text.as_str()
    } else {
        text.strip_prefix(&prefix).unwrap_or_else(|| panic!("{text}"))
    };
    let all = world.allgather(own.as_bytes(), soon()).expect("the job goes on");
    assert!(all.iter().all(|other| other == own.as_bytes()), "ranks say different things: {text}");
    for part in expected {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    goes_on(world);
}

fn replace(buffers: &mut Buffers, side: Side, tensor: usize, bytes: u64, view: View) {
    buffers.set(side, tensor, Buffer::private(bytes).expect("memory"), view);
}

#[test]
fn a_rank_with_bad_buffers() {
    let body = || {
        let world = world();
        // Rank 2 wants 8 rows of 3 columns of each tensor.
        let none: fn(&mut Buffers, Rank) = |buffers, rank| {
            if rank == ODD {
                *buffers = Buffers::default();
            }
        };
        one_cannot(&world, none, &["tensor \"q\": no destination buffer on this rank", "local tensor of shape [8, 3]"]);
        let small: fn(&mut Buffers, Rank) = |buffers, rank| {
            if rank == ODD {
                replace(buffers, Side::Destination, 1, 47, View::contiguous());
            }
        };
        one_cannot(
            &world,
            small,
            &["tensor \"k\", destination: view reaches byte 48 of a buffer of 47 bytes", "[8, 3]"],
        );
        let unexpected: fn(&mut Buffers, Rank) = |buffers, rank| {
            if rank == ODD {
                replace(buffers, Side::Source, 0, 1000, View::contiguous());
            }
        };
        one_cannot(
            &world,
            unexpected,
            &["tensor \"q\": a source buffer on this rank, which is not in the source mesh"],
        );
        let strides: fn(&mut Buffers, Rank) = |buffers, rank| {
            if rank == ODD {
                replace(buffers, Side::Destination, 1, 100, View::strided(1, [1]));
            }
        };
        one_cannot(
            &world,
            strides,
            &["tensor \"k\", destination: view with 1 strides for a local tensor of 2 dimensions"],
        );
        let twice: fn(&mut Buffers, Rank) = |buffers, rank| {
            if rank == ODD {
                replace(buffers, Side::Destination, 1, 100, View::strided(0, [2, 1]));
            }
        };
        one_cannot(
            &world,
            twice,
            &["tensor \"k\", destination: destination view with strides [2, 1] elements", "writes some bytes twice"],
        );
        finalize(world);
    };
    Job::of(4).env("CROSSMESH_DOMAINS", 2).run(body).expect_success();
}

/// Rank 2's two destinations lie in one buffer, by these views.
macro_rules! in_one_buffer {
    ($q:expr, $k:expr) => {
        |buffers: &mut Buffers, rank: Rank| {
            if rank == ODD {
                let buffer = Buffer::private(1000).expect("memory");
                buffers.set(Side::Destination, 0, buffer.clone(), $q);
                buffers.set(Side::Destination, 1, buffer, $k);
            }
        }
    };
}

#[test]
fn destinations_that_overlap() {
    let body = || {
        let world = world();
        let expected = ["destination of tensor \"q\" and destination of tensor \"k\" share memory on this rank"];
        let swapped = ["destination of tensor \"k\" and destination of tensor \"q\" share memory on this rank"];
        // q has 8 rows of 12 bytes, k 8 rows of 6 bytes.
        one_cannot(&world, in_one_buffer!(View::at(0), View::at(95)), &expected);
        one_cannot(&world, in_one_buffer!(View::at(40), View::at(0)), &swapped);
        // Rows with gaps: the second begins in the last byte of a row of the first.
        one_cannot(&world, in_one_buffer!(View::strided(0, [8, 1]), View::strided(11, [16, 1])), &expected);
        // Transposed over contiguous.
        one_cannot(&world, in_one_buffer!(View::strided(3, [1, 20]), View::at(60)), &expected);
        finalize(world);
    };
    Job::of(3).run(body).expect_success();
}

#[test]
fn a_mesh_outside_the_world() {
    let body = || {
        let world = world();
        let mut call = good();
        call.tensors[1].2 = matrix(Dtype::BF16, 8, &[1, 4], Placement::shard(1));
        let text = refused(&world, &call);
        for part in ["tensor \"k\"", "the destination mesh names rank 4; the communicator has ranks 0 to 3"] {
            assert!(text.contains(part), "{text}");
        }
        goes_on(&world);
        finalize(world);
    };
    Job::of(4).run(body).expect_success();
}

/// What every rank says when no transfer can be made because of the environment.
fn say_refusal() {
    let world = world();
    println!("refused: {}", refused(&world, &good()));
    finalize(world);
}

fn refusals(job: Job, run: impl FnOnce(Job) -> crate::rig::process::Finished) -> Vec<String> {
    let job = run(job).expect_success();
    said(&job, "refused: ").into_iter().map(String::from).collect()
}

#[test]
fn another_route_on_one_rank() {
    let job = Job::of(3).env_on(2, "CROSSMESH_ROUTE", "flat");
    let texts = refusals(job, |job| job.run(|| say_refusal()));
    assert_eq!(texts.len(), 3);
    for text in &texts {
        assert_eq!(text, &texts[0]);
        for part in ["rank 2 and rank 0 run with different route", "flat on rank 2", "hierarchical on rank 0"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn another_mapping_on_one_rank() {
    let job = Job::of(3).env_on(1, "CROSSMESH_MAPPED", "staged");
    let texts = refusals(job, |job| job.run(|| say_refusal()));
    assert!(texts.len() == 3 && texts.iter().all(|text| text == &texts[0]), "{texts:?}");
    assert!(texts[0].contains("(CROSSMESH_MAPPED): staged on rank 1, auto on rank 0"), "{texts:?}");
}

#[test]
fn a_setting_of_one_rank_that_cannot_be_read() {
    for (name, value) in [("CROSSMESH_CHUNK", "zebra"), ("CROSSMESH_ROUTE", "scenic")] {
        let job = Job::of(3).env_on(1, name, value);
        let texts = refusals(job, |job| job.run(|| say_refusal()));
        assert_eq!(texts.len(), 3);
        let expected = format!("{name}={value:?} cannot be used");
        assert!(texts.iter().all(|text| text.contains(&expected)), "{texts:?}");
        assert_eq!(texts.iter().filter(|text| text.starts_with("rank 1 on host ")).count(), 2, "{texts:?}");
    }
}

#[test]
fn too_little_staging() {
    let job = Job::of(3).env("CROSSMESH_DOMAINS", 3).env_on(1, "CROSSMESH_STAGING", 1000);
    let texts = refusals(job, |job| job.run(|| say_refusal()));
    assert!(texts.len() == 3 && texts.iter().all(|text| text == &texts[0]), "{texts:?}");
    assert!(
        texts[0].starts_with("1000 bytes of staging are left on rank 1 and this transfer needs at least "),
        "{texts:?}"
    );
    assert!(texts[0].ends_with("raise CROSSMESH_STAGING or free other transfers"), "{texts:?}");
}

/// Queries and keys into one buffer, where both say that they are first.
#[test]
fn fused_tensors_that_overlap() {
    let body = || {
        let world = world();
        let heads = Heads { query: 4, key_value: 4, size: 2 };
        for form in [FusedForm::Concatenated, FusedForm::Grouped, FusedForm::Interleaved] {
            let axis = FusedAxis::attention(heads, form, HeadSplit::Even, 2).expect("heads of the test");
            let wanted = |part| layout(&[8, 6], Dtype::F32, &[2], [1, 2], &[axis.placement(part, 0)]);
            let held = matrix(Dtype::F32, 8, &[0, 1], Placement::shard(0));
            let one_buffer: fn(&mut Buffers, Rank) = |buffers, rank| {
                if rank != Rank(0) && rank != Rank(3) {
                    let shared = Buffer::private(12 * 6 * 4).expect("memory");
                    shared.write().expect("fresh").fill(9);
                    (0..3).for_each(|part| buffers.set(Side::Destination, part, shared.clone(), View::contiguous()));
                }
            };
            let of = |parts: [usize; 3]| {
                let names = ["q", "k", "v"];
                let tensors = parts.iter().zip(names).map(|(&part, name)| (name, held.clone(), wanted(part)));
                Call { tensors: tensors.collect(), spoil: one_buffer }
            };
            let text = refused(&world, &of([0, 0, 2]));
            assert!(text.contains("\"q\"") && text.contains("\"k\"") && text.contains("destination"), "{text}");
            goes_on(&world);
        }
        finalize(world);
    };
    Job::of(4).env("CROSSMESH_DOMAINS", 2).run(body).expect_success();
}
