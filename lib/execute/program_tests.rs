//! Programs of ranks whose tensors are in different memory. In: every mixture of four ranks. Out: nothing. Guarantee: both ends
//! of an edge agree, and devices are touched by their owners alone.

use super::*;
use crate::layout::{Dtype, Layout, Mesh, Placement};
use crate::plan::Manifest;
use crate::route::{Injection, RouteKind, RouteOptions, route_for};
use std::sync::Arc;

const RANKS: usize = 4;
/// Where a rank's tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Segment,
    Private,
    Device,
    Mixed,
}

const MEMORY: [Memory; 4] = [Memory::Segment, Memory::Private, Memory::Device, Memory::Mixed];

/// Everything from the first two ranks to all four, in rows, in columns and whole.
fn manifest() -> Arc<Manifest> {
    let layout = |ranks: u32, placement| {
        let mesh = Arc::new(Mesh::contiguous(vec![ranks], Rank(0)).unwrap());
        Arc::new(Layout::new(vec![16, 32], Dtype::U8, mesh, vec![placement]).unwrap())
    };
    let mut manifest = Manifest::new();
    for (number, placement) in [Placement::Replicate, Placement::shard(1)].into_iter().enumerate() {
        manifest.push(format!("rows{number}"), layout(2, Placement::shard(0)), layout(4, placement.clone())).unwrap();
        manifest.push(format!("whole{number}"), layout(2, Placement::Replicate), layout(4, placement)).unwrap();
    }
    Arc::new(manifest)
}

fn reach(memory: [Memory; RANKS], mapped: bool) -> Reach {
    let each = |is: fn(Memory) -> bool| memory.iter().map(|&memory| is(memory)).collect::<Vec<bool>>();
    Reach {
        readable: each(|memory| matches!(memory, Memory::Segment | Memory::Private)),
        shared: each(|memory| memory == Memory::Segment),
        device: each(|memory| matches!(memory, Memory::Device | Memory::Mixed)),
        mixed: each(|memory| memory == Memory::Mixed),
        mapped,
        ..Reach::of_shared_memory(RANKS, 64)
    }
}

/// The programs of all ranks, two domains of two.
fn programs(reach: &Reach, route: RouteOptions) -> Vec<Program> {
    let topology = Topology::from_domains(&[0, 0, 1, 1]);
    let plan = Plan::compile(manifest(), RANKS).unwrap();
    let one = |rank| {
        let flows = route_for(&plan, &topology, route, rank);
        compile(&plan, &flows, &topology, reach, (rank, false))
    };
    (0..RANKS as u32).map(|rank| one(Rank(rank))).collect()
}

fn pieces(program: &Program, item: u32) -> Vec<(CellId, u64, u64)> {
    program.item_pieces(item).iter().map(|piece| (piece.cell, piece.start, piece.end)).collect()
}

/// Both ends of every edge have the same chunks in the same order.
fn check_ends(programs: &[Program], what: &str) {
    let none = Vec::new();
    for (from, sender) in programs.iter().enumerate() {
        for (to, receiver) in programs.iter().enumerate() {
            let (from, to) = (Rank(from as u32), Rank(to as u32));
            let pushes = sender.sends.get(&to).unwrap_or(&none);
            let pushed: Vec<u32> = pushes.iter().map(|&push| sender.pushes[push as usize].item).collect();
            let of = |map: &BTreeMap<Rank, Vec<u32>>, rank| map.get(&rank).cloned().unwrap_or_default();
            for (there, here) in [
                (pushed, of(&receiver.arrivals, from)),
                (of(&sender.reads, to), of(&receiver.pulls, from)),
                (of(&sender.feeds, to), of(&receiver.fed, from)),
            ] {
                let there: Vec<_> = there.into_iter().map(|item| pieces(sender, item)).collect();
                let here: Vec<_> = here.into_iter().map(|item| pieces(receiver, item)).collect();
                assert_eq!(there, here, "{what}: rank {from} to rank {to}");
            }
        }
    }
}

/// Nobody but its owner touches memory of a device, and it goes by way of slots of at most a chunk.
fn check_devices(programs: &[Program], reach: &Reach, what: &str) {
    for (rank, program) in programs.iter().enumerate().filter(|(rank, _)| reach.device[*rank]) {
        assert!(program.feeds.is_empty() && program.fed.is_empty(), "{what}");
        for item in &program.items {
            let what = format!("{what}: rank {rank}, {item:?}");
            let sent = item.readers > 0 || !item.pushes.is_empty();
            assert!(!sent || item.storage == Storage::Slot, "{what}");
            assert!(item.incoming != Incoming::OwnCopy || !reach.mixed[rank], "{what}");
            assert!(!matches!(item.incoming, Incoming::Pull { stored, .. } if stored != Storage::Slot), "{what}");
            assert!(item.bytes <= reach.chunk_bytes || !sent, "{what}");
            let own = item.storage == Storage::Destination || item.unpacks || item.incoming == Incoming::Pack;
            assert!(own || !item.wants, "{what}");
        }
    }
}

#[test]
fn both_ends_agree_whatever_memory_ranks_have() {
    let routes = [
        (RouteKind::Hierarchical, Injection::Striped),
        (RouteKind::Flat, Injection::Single),
        (RouteKind::GatherBroadcast, Injection::Striped),
    ];
    for number in 0..MEMORY.len().pow(RANKS as u32) {
        let memory = std::array::from_fn(|rank| MEMORY[number / MEMORY.len().pow(rank as u32) % MEMORY.len()]);
        for (kind, injection) in routes {
            for mapped in [true, false] {
                let what = format!("{memory:?} by {kind}, mapped {mapped}");
                let reach = reach(memory, mapped);
                let programs = programs(&reach, RouteOptions { kind, injection });
                check_ends(&programs, &what);
                check_devices(&programs, &reach, &what);
            }
        }
    }
}

#[test]
fn who_passes_on_what_it_has_on_a_device_keeps_it_in_a_slot() {
    let reach = reach([Memory::Segment, Memory::Segment, Memory::Device, Memory::Device], true);
    let programs = programs(&reach, RouteOptions::default());
    let passed: Vec<&Item> =
        programs[2..].iter().flat_map(|program| &program.items).filter(|item| item.readers > 0).collect();
    assert!(!passed.is_empty());
    assert!(passed.iter().all(|item| item.unpacks && item.storage == Storage::Slot), "{passed:?}");
}
