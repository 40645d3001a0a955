//! Sums whose order shows: terms that round, on every route, with every kind of link, against a fold in the stated order.

use super::random::Memory;
use super::transfer::mix;
use super::{finalize, soon, world};
use crate::planner::{all_options, layout};
use crate::rig::spmd::Job;
use crossmesh::base::Rank;
use crossmesh::comm::{Buffer, Buffers, Communicator, ReshardOptions, Side};
use crossmesh::layout::{Dtype, Layout, Placement, Reduction, View};
use crossmesh::plan::{Manifest, Transform};
use half::{bf16, f16};
use std::sync::Arc;

const PARTIAL: Placement = Placement::Partial(Reduction::Sum);

/// What terms are made of, and what their sums become.
const DTYPES: [(Dtype, Dtype); 6] = [
    (Dtype::F32, Dtype::F32),
    (Dtype::BF16, Dtype::BF16),
    (Dtype::F16, Dtype::F32),
    (Dtype::F32, Dtype::BF16),
    (Dtype::BF16, Dtype::F16),
    (Dtype::F64, Dtype::F64),
];

/// Term `coordinate` of an element: of many sizes and both signs, so that every other order gives other bits.
fn term(tensor: usize, element: u64, coordinate: u64, round: u64) -> f64 {
    let bits = mix(element ^ (tensor as u64) << 40 ^ coordinate << 50 ^ round << 56);
    let size = f64::from(1u32 << (bits % 11));
    let value = ((bits >> 16 & 0xffff) as f64 / 65536.0 - 0.5) * size;
    // One sum in a few hundred is beyond binary16.
    if (bits >> 40).is_multiple_of(997) { value * 4096.0 } else { value }
}

fn rounded(value: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => value,
        Dtype::F32 => f64::from(value as f32),
        Dtype::F16 => f64::from(f16::from_f32(value as f32).to_f32()),
        _ => f64::from(bf16::from_f32(value as f32).to_f32()),
    }
}

fn encoded(value: f64, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F64 => value.to_le_bytes().to_vec(),
        Dtype::F32 => (value as f32).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(value as f32).to_le_bytes().to_vec(),
        _ => bf16::from_f32(value as f32).to_le_bytes().to_vec(),
    }
}

/// The sum of an element before it is rounded to the destination's type: domain by domain.
fn sum(tensor: usize, element: u64, domains: &[Vec<u64>], dtype: Dtype, round: u64) -> f64 {
    let sum_dtype = if dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
    let add = |sum: Option<f64>, next: f64| Some(sum.map_or(next, |sum| rounded(sum + next, sum_dtype)));
    let of_domain = |terms: &Vec<u64>| {
        terms.iter().fold(None, |sum, &at| add(sum, rounded(term(tensor, element, at, round), dtype)))
    };
    let whole = domains.iter().filter_map(of_domain).fold(None, add);
    whole.expect("an element has terms")
}

/// A transfer of terms: mesh `[terms, replicas]` over the first ranks, to all ranks or to the others.
struct Case {
    manifest: Arc<Manifest>,
    terms: u64,
    /// Terms by domain, in order.
    domains: Vec<Vec<u64>>,
}

fn case(world: &Communicator, terms: u32, replicas: u32, shapes: &[[u64; 2]]) -> Case {
    let size = world.size() as u32;
    let held = terms * replicas;
    let mut manifest = Manifest::new();
    for (number, shape) in shapes.iter().enumerate() {
        for (from, to) in DTYPES {
            let source = layout(shape, from, &[terms, replicas], 0..held, &[PARTIAL, Placement::Replicate]);
            let overlapping = number % 2 == 1 || held == size;
            let first = if overlapping { 0 } else { held };
            let (mesh, placements) = if number % 3 == 2 {
                (size - first, Placement::Replicate)
            } else {
                (size - first, Placement::shard(number % 2))
            };
            let destination = layout(shape, to, &[mesh], first..size, &[placements]);
            let transform = if from == to { Transform::None } else { Transform::Cast };
            manifest
                .push_with(format!("t{number} {from} {to}"), source, destination, transform)
                .expect("a good tensor");
        }
    }
    // Every replica has the same pattern of domains, since replicas stand next to each other.
    let mut domains: Vec<(u32, Vec<u64>)> = Vec::new();
    for at in 0..terms {
        let domain = world.topology().domain(Rank(at * replicas)).0;
        match domains.iter_mut().find(|(known, _)| *known == domain) {
            Some((_, terms)) => terms.push(u64::from(at)),
            None => domains.push((domain, vec![u64::from(at)])),
        }
    }
    let domains = domains.into_iter().map(|(_, terms)| terms).collect();
    Case { manifest: Arc::new(manifest), terms: u64::from(terms), domains }
}

/// A rank's buffers, one for each tensor and side.
fn buffers(case: &Case, rank: Rank, memory: Memory) -> (Buffers, Vec<[Option<Buffer>; 2]>) {
    let mut buffers = Buffers::new(&case.manifest);
    let mut held = Vec::new();
    for (number, tensor) in case.manifest.tensors().iter().enumerate() {
        let make = |layout: &Layout| {
            let bytes = layout.local_bytes(rank);
            (bytes > 0).then(|| memory.buffer(rank, number, bytes))
        };
        let sides = [make(&tensor.source), make(&tensor.destination)];
        for (side, buffer) in [Side::Source, Side::Destination].into_iter().zip(&sides) {
            if let Some(buffer) = buffer {
                buffers.set(side, number, buffer.clone(), View::contiguous());
            }
        }
        held.push(sides);
    }
    (buffers, held)
}

/// Global numbers of a local tensor's elements, in local order.
fn elements(layout: &Layout, rank: Rank) -> Vec<u64> {
    let maps = layout.axis_maps(rank).expect("a rank of the mesh");
    let columns = layout.shape()[1];
    let range = |dim: usize| maps[dim].intervals().flat_map(|interval| interval.lo..interval.hi);
    range(0).flat_map(|row| range(1).map(move |column| row * columns + column)).collect()
}

fn fill(case: &Case, rank: Rank, held: &[[Option<Buffer>; 2]], round: u64) {
    for (number, (tensor, [source, destination])) in case.manifest.tensors().iter().zip(held).enumerate() {
        if let Some(source) = source {
            let mesh = tensor.source.mesh();
            let coordinate = u64::from(mesh.coordinates(mesh.slot(rank).expect("a rank of the mesh"))[0]);
            assert!(coordinate < case.terms);
            let values = elements(&tensor.source, rank).into_iter();
            let bytes: Vec<u8> = values
                .flat_map(|element| encoded(term(number, element, coordinate, round), tensor.source.dtype()))
                .collect();
            source.write().expect("no transfer runs").copy_from_slice(&bytes);
        }
        if let Some(destination) = destination {
            destination.write().expect("no transfer runs").fill(0xa5);
        }
    }
}

/// Compares every destination; how many of all elements became infinite.
fn check(case: &Case, rank: Rank, held: &[[Option<Buffer>; 2]], round: u64, what: &str) {
    for (number, (tensor, [_, destination])) in case.manifest.tensors().iter().zip(held).enumerate() {
        let Some(destination) = destination else { continue };
        let (from, to) = (tensor.source.dtype(), tensor.destination.dtype());
        let found = destination.read().expect("no transfer runs");
        let size = to.bytes() as usize;
        for (at, element) in elements(&tensor.destination, rank).into_iter().enumerate() {
            let right = encoded(sum(number, element, &case.domains, from, round), to);
            let name = &tensor.name;
            assert_eq!(found[at * size..][..size], right[..], "{what}, rank {rank}, {name}, element {element}");
        }
    }
}

fn saturated(case: &Case, round: u64) -> u64 {
    let mut count = 0;
    for (number, tensor) in case.manifest.tensors().iter().enumerate() {
        let (from, to) = (tensor.source.dtype(), tensor.destination.dtype());
        for element in 0..tensor.source.shape().iter().product() {
            let sum = sum(number, element, &case.domains, from, round);
            count += u64::from(sum.is_finite() && rounded(sum, to).is_infinite());
        }
    }
    count
}

const SHAPES: [[u64; 2]; 5] = [[3, 1], [1, 1], [7, 13], [0, 5], [61, 127]];

fn all_routes(terms: u32, replicas: u32, shapes: &[[u64; 2]]) {
    let world = world();
    let rank = world.rank();
    let case = case(&world, terms, replicas, shapes);
    for memory in Memory::ALL {
        let (given, held) = buffers(&case, rank, memory);
        for route in all_options() {
            let what = format!("{route:?}, {memory:?}");
            let reshard = world.reshard_init(&case.manifest, &given, ReshardOptions { route }, soon());
            let mut reshard = reshard.unwrap_or_else(|error| panic!("{what}: {error}"));
            for round in 0..2 {
                fill(&case, rank, &held, round);
                reshard.start().expect("not active");
                reshard.wait(soon()).unwrap_or_else(|error| panic!("{what}: {error}"));
                check(&case, rank, &held, round, &what);
                let all = world.allgather(&reshard.saturated().to_le_bytes(), soon()).expect("all count");
                let all = all.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().expect("a count")));
                assert_eq!(all.sum::<u64>(), saturated(&case, round), "{what}");
            }
        }
    }
    finalize(world);
}

macro_rules! jobs {
    ($($name:ident: $ranks:literal ranks, $domains:literal domains, $mapped:literal, $terms:literal x $replicas:literal;)*) => {$(
        #[test]
        fn $name() {
            let job = Job::of($ranks).env("CROSSMESH_DOMAINS", $domains).env("CROSSMESH_MAPPED", $mapped);
            job.run(|| all_routes($terms, $replicas, &SHAPES)).expect_success();
        }
    )*};
}

jobs! {
    two_ranks: 2 ranks, 1 domains, "auto", 2 x 1;
    two_ranks_apart: 2 ranks, 2 domains, "auto", 2 x 1;
    three_ranks: 3 ranks, 1 domains, "shared", 3 x 1;
    three_ranks_staged: 3 ranks, 3 domains, "staged", 2 x 1;
    four_ranks: 4 ranks, 1 domains, "auto", 2 x 2;
    four_ranks_in_two: 4 ranks, 2 domains, "auto", 3 x 1;
    four_ranks_apart: 4 ranks, 4 domains, "auto", 4 x 1;
    four_ranks_staged: 4 ranks, 2 domains, "staged", 4 x 1;
    eight_ranks: 8 ranks, 2 domains, "auto", 2 x 2;
    eight_ranks_in_four: 8 ranks, 4 domains, "auto", 6 x 1;
    eight_ranks_staged: 8 ranks, 4 domains, "staged", 4 x 1;
    eight_ranks_all: 8 ranks, 4 domains, "shared", 8 x 1;
}

/// Many chunks through slots of the least size.
#[test]
fn little_staging() {
    let job = Job::of(8).env("CROSSMESH_DOMAINS", 4).env("CROSSMESH_STAGING", "16KiB").env("CROSSMESH_CHUNK", "256");
    job.run(|| all_routes(4, 1, &[[61, 33], [17, 40]])).expect_success();
}

/// Several chunks of the usual size.
#[test]
fn large() {
    let job = Job::of(4).env("CROSSMESH_DOMAINS", 2).env("CROSSMESH_CHUNK", "64KiB");
    job.run(|| all_routes(3, 1, &[[300, 257]])).expect_success();
}
