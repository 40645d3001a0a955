//! The traps of the host's tests, with tensors on GPUs and mixtures with memory of the host. In: how memory is chosen. Out:
//! every byte compared, on several routes. Guarantee: the report says which way bytes went.

use crate::memories::Kind;
use crate::moving::deadline;
use crate::planner::layout;
use crate::results::Outcome;
use crate::transfer::{Spot, Transfer, row_major};
use crate::traps::{Place, Trap, apart, rows, traps};
use crossmesh::comm::{Communicator, Device, Report, ReshardOptions, Side, Stream};
use crossmesh::layout::{AxisMap, Dtype, Interval, Layout, Placement, Split, View};
use crossmesh::plan::Manifest;
use crossmesh::route::{Injection, RouteKind, RouteOptions};
use std::error::Error;
use std::sync::Arc;

/// Ways to choose memory; what a job is told.
pub(crate) const NAMES: [&str; 3] = ["on-gpus", "host-to-gpus", "any-memory"];

pub(crate) const ROUTES: [(RouteKind, Injection); 3] = [
    (RouteKind::Hierarchical, Injection::Striped),
    (RouteKind::Flat, Injection::Single),
    (RouteKind::GatherBroadcast, Injection::Striped),
];

/// Memory of buffer `number` of a rank; the traps put sources and destinations in different ones, but for a few.
fn kind(name: &str, (rank, ranks): (u32, u32), number: usize, side: Option<Side>) -> Kind {
    match (name, side) {
        ("with-fabric", _) => [Kind::Library, Kind::Fabric][number % 2],
        ("on-gpus" | "pairs", _) | ("host-to-gpus", Some(Side::Destination)) => Kind::Library,
        ("host-domain", _) if 2 * rank >= ranks => Kind::Library,
        ("host-to-gpus" | "host-domain", _) => [Kind::HostShared, Kind::HostPrivate][rank as usize % 2],
        _ => Kind::ALL[(rank as usize + 3 * number) % Kind::ALL.len()],
    }
}

/// Traps of two ranks, which have a GPU each.
fn pairs() -> Vec<Trap> {
    let all = || vec![Placement::Replicate];
    let over = |shape: &[u64], dtype, ranks: [u32; 2], placements: Vec<Placement>| {
        layout(shape, dtype, &[2], ranks, &placements)
    };
    let swap = |shape: &[u64], dtype, from: Placement, to: Placement| {
        (over(shape, dtype, [0, 1], vec![from]), over(shape, dtype, [1, 0], vec![to]))
    };
    let padded = |(from, to): (Arc<Layout>, Arc<Layout>), element: &[u8]| {
        (from, Arc::new(to.as_ref().clone().with_padding(element).expect("one element")))
    };
    let room = |rows| Placement::padded(0, 37, rows, &Split::Floor, 2).expect("room for all rows");
    let short = padded(swap(&[37, 5], Dtype::BF16, rows(0), room(64)), &[7, 9]);
    // Longer than a pattern of padding.
    let long = padded(swap(&[37, 9], Dtype::F64, rows(1), room(3000)), &[8, 7, 6, 5, 4, 3, 2, 1]);
    let transposed: Place = |tensor, side, shape| {
        let mut strides = row_major(&shape.iter().rev().copied().collect::<Vec<_>>());
        strides.reverse();
        let view = if side == Side::Source { View::at(1) } else { View::strided(5, strides) };
        Spot { view, ..apart(tensor, side, shape) }
    };
    let interleaved: Place = |tensor, side, shape| {
        let view = View::strided(tensor as u64 * 2, [3 * shape[1], 3]);
        Spot { buffer: usize::from(side == Side::Source), view }
    };
    let odd: Place = |tensor, side, shape| Spot { view: View::at(3 + tensor as u64), ..apart(tensor, side, shape) };
    let all_types = Dtype::ALL.iter().map(|&dtype| swap(&[8, 12], dtype, rows(0), rows(1))).collect();
    let deep = [3, 2, 5, 1, 2, 3, 2, 4];
    let pair = |dtype| swap(&[9, 7], dtype, rows(0), rows(1));
    let parts = |first: u64| {
        AxisMap::new((0..3).map(|part| Interval { lo: 12 * part + 6 * first, hi: 12 * part + 6 * first + 6 }))
    };
    let cyclic = Placement::parts(0, vec![parts(0), parts(1)]);
    vec![
        Trap("padding written", vec![short, long], apart),
        Trap("transposed", vec![pair(Dtype::BF16), pair(Dtype::U8)], transposed),
        Trap("interleaved", vec![pair(Dtype::BF16), pair(Dtype::BF16)], interleaved),
        Trap("odd byte offsets", vec![pair(Dtype::F32), pair(Dtype::F64)], odd),
        Trap("all types", all_types, apart),
        Trap("eight dimensions", vec![swap(&deep, Dtype::BF16, rows(7), rows(2))], apart),
        Trap("uneven", vec![swap(&[7, 3], Dtype::F32, Placement::sizes(0, [0, 7]), Placement::chunk(0))], apart),
        Trap("to block-cyclic", vec![swap(&[36, 5], Dtype::F32, Placement::chunk(0), cyclic)], apart),
        Trap(
            "replicas",
            vec![(over(&[31, 6], Dtype::BF16, [0, 1], all()), over(&[31, 6], Dtype::BF16, [1, 0], all()))],
            apart,
        ),
        Trap("the same", vec![(over(&[8], Dtype::U8, [0, 1], all()), over(&[8], Dtype::U8, [0, 1], all()))], apart),
    ]
}

/// The traps of so many ranks: eight, or two with a GPU each.
pub(crate) fn traps_of(ranks: usize) -> Vec<Trap> {
    if ranks == 2 { pairs() } else { traps() }
}

pub(crate) fn spring_all(world: &Communicator, name: &str) -> Result<Outcome, Box<dyn Error>> {
    let (mut sprung, mut staged) = (0, 0);
    // Kept open: its context would be made anew for every buffer otherwise.
    let device = Device::open(world.rank().0 % Device::count()?)?;
    let list = if name == "pairs" { pairs() } else { traps() };
    for trap in list {
        for route in ROUTES {
            staged += u32::from(spring(world, &device, name, &trap, route)?.staged.is_some());
            sprung += 1;
        }
    }
    let outcome = Outcome::passed(name, world.size() as u32);
    Ok(outcome.with("transfers", f64::from(sprung)).with("through hosts", f64::from(staged)))
}

/// Which way its bytes went.
pub(crate) fn spring(
    world: &Communicator,
    device: &Device,
    kinds: &str,
    Trap(name, tensors, place): &Trap,
    (route, injection): (RouteKind, Injection),
) -> Result<Report, Box<dyn Error>> {
    let mut manifest = Manifest::new();
    for (index, (source, destination)) in tensors.iter().enumerate() {
        manifest.push(format!("tensor{index}"), source.clone(), destination.clone())?;
    }
    let (manifest, rank) = (Arc::new(manifest), world.rank());
    let sides = std::cell::RefCell::new(std::collections::HashMap::new());
    let spot = |tensor, side, layout: &Layout| {
        let spot = place(tensor, side, &layout.local_shape(rank).unwrap_or_default());
        sides.borrow_mut().insert(spot.buffer, side);
        spot
    };
    let what = format!("{name}, {kinds}, rank {rank}, {route:?}");
    let places = std::cell::RefCell::new(Vec::new());
    let memory = |number: usize, bytes| {
        let place = (rank.0, world.size() as u32);
        let made = kind(kinds, place, number, sides.borrow().get(&number).copied()).buffer(device.ordinal(), bytes);
        places.borrow_mut().push(made.device());
        made
    };
    let part = Transfer::new(&what, &manifest, rank, spot, memory);
    let options = ReshardOptions { route: RouteOptions { kind: route, injection } };
    let made = world.reshard_init(&manifest, &part.buffers, options, deadline());
    let mut reshard = made.map_err(|error| format!("{what}: {error}"))?;
    let is_on_gpu = !places.borrow().is_empty() && places.borrow().iter().all(Option::is_some);
    let stream = is_on_gpu.then(|| Stream::new(device)).transpose()?;
    for round in 0..3 {
        part.fill(round);
        // Where ranks share a GPU, one may read what another still fills.
        world.barrier(deadline())?;
        match stream.as_ref().filter(|_| round == 1) {
            Some(stream) => {
                reshard.start_on(stream)?;
                // What follows on the stream sees everything.
                stream.synchronize(deadline()).map_err(|error| format!("{what}, on a stream: {error}"))?;
                part.check(round);
            }
            None => reshard.start()?,
        }
        reshard.wait(deadline()).map_err(|error| format!("{what}: {error}"))?;
        part.check(round);
    }
    Ok(reshard.report().clone())
}
