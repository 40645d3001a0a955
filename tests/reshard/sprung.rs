//! The traps sprung, on every route and kind of memory. In: their list. Out: every byte compared.

use super::random::Memory;
use super::transfer::Transfer;
use super::traps::{SIZE, Trap, apart, halves, rows, traps};
use super::{finalize, soon, world};
use crate::planner::all_options;
use crate::rig::spmd::Job;
use crossmesh::comm::{Buffers, Communicator, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, Placement, View};
use crossmesh::plan::Manifest;
use std::sync::Arc;

fn spring(world: &Communicator, Trap(name, tensors, place): &Trap) {
    let mut manifest = Manifest::new();
    for (index, (source, destination)) in tensors.iter().enumerate() {
        manifest.push(format!("tensor{index}"), source.clone(), destination.clone()).expect("one shape and dtype");
    }
    let (manifest, rank) = (Arc::new(manifest), world.rank());
    for memory in Memory::ALL {
        let spot = |tensor, side, layout: &Layout| place(tensor, side, &layout.local_shape(rank).unwrap_or_default());
        let name = format!("{name}, {memory:?} memory, rank {rank}");
        let part = Transfer::new(&name, &manifest, rank, spot, |number, bytes| memory.buffer(rank, number, bytes));
        for route in all_options() {
            let options = ReshardOptions { route };
            let reshard = world.reshard_init(&manifest, &part.buffers, options, soon());
            let mut reshard = reshard.unwrap_or_else(|error| panic!("{name}, {route:?}: {error}"));
            for round in 0..2 {
                part.fill(round);
                reshard.start().expect("not active");
                reshard.wait(soon()).unwrap_or_else(|error| panic!("{name}, {route:?}: {error}"));
                part.check(round);
            }
        }
    }
}

/// What went over and came back is what was there, and sending the same again changes nothing.
fn there_and_back(world: &Communicator) {
    let rank = world.rank();
    let (there, back) = halves(&[37, 11], Dtype::F32, Placement::chunk(0), rows(1));
    let pair = |from: &Arc<Layout>, to: &Arc<Layout>| {
        let mut manifest = Manifest::new();
        manifest.push("weight", from.clone(), to.clone()).expect("one shape");
        Arc::new(manifest)
    };
    let (out, home) = (pair(&there, &back), pair(&back, &there));
    let spot = |tensor, side, layout: &Layout| apart(tensor, side, layout.shape());
    let memory = |number, bytes| Memory::PerRank.buffer(rank, number, bytes);
    let part = Transfer::new("there", &out, rank, spot, memory);
    let mut buffers = Buffers::new(&home);
    let mut sent_and_returned = None;
    if let Some(far) = part.buffers.get(Side::Destination, 0) {
        buffers.set(Side::Source, 0, far.buffer.clone(), far.view.clone());
    }
    if let Some(near) = part.buffers.get(Side::Source, 0) {
        let returned = memory(5, there.local_bytes(rank));
        buffers.set(Side::Destination, 0, returned.clone(), View::contiguous());
        sent_and_returned = Some((near.buffer.clone(), returned));
    }
    part.fill(4);
    for _again in 0..2 {
        world.reshard(&out, &part.buffers, ReshardOptions::default(), soon()).expect("there");
        part.check(4);
        world.reshard(&home, &buffers, ReshardOptions::default(), soon()).expect("and back");
        if let Some((sent, returned)) = &sent_and_returned {
            let (sent, returned) = (sent.read().expect("finished"), returned.read().expect("finished"));
            assert!(sent[..returned.len()] == *returned, "rank {rank} got something else back");
        }
    }
}

fn all() {
    let world = world();
    assert_eq!(world.size() as u32, SIZE);
    for trap in traps() {
        spring(&world, &trap);
    }
    there_and_back(&world);
    finalize(world);
}

fn job(domains: u32, mapped: &str) -> Job {
    Job::of(SIZE).env("CROSSMESH_DOMAINS", domains).env("CROSSMESH_MAPPED", mapped)
}

#[test]
fn in_one_domain() {
    job(1, "auto").run(|| all()).expect_success();
}

#[test]
fn staged() {
    job(2, "staged").run(|| all()).expect_success();
}

#[test]
fn in_three_domains() {
    job(3, "auto").run(|| all()).expect_success();
}

#[test]
fn every_rank_in_its_domain() {
    job(8, "auto").run(|| all()).expect_success();
}
