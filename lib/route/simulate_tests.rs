//! Simulated times against sums done by hand. In: flows over links of one byte a nanosecond. Out: nothing. Guarantee:
//! every expected time is written out.

use super::super::{LinkBytes, Node, cost, traffic};
use super::*;
use crate::topology::Topology;

const CHUNK: u64 = 1000;
/// Nanoseconds.
const LATENCY: u64 = 50;

/// Ranks with domains as given; the network moves a byte in a nanosecond, NVLink ten.
fn machine(domains: &[u32]) -> Machine {
    let network = LinkRate { bytes_per_second: 1_000_000_000, latency_ns: LATENCY };
    let nvlink = LinkRate { bytes_per_second: 10_000_000_000, latency_ns: 5 };
    Machine::one_nic_each("test", Topology::from_domains(domains), network, nvlink)
}

/// Nodes as (rank, parent), all but the root wanting.
fn flow(bytes: u64, nodes: &[(u32, Option<u32>)]) -> Flow {
    let node = |&(rank, parent): &(u32, Option<u32>)| Node { rank: Rank(rank), parent, wants: parent.is_some() };
    Flow { nodes: nodes.iter().map(node).collect(), pieces: Vec::new(), bytes, sums: None }
}

fn chain(bytes: u64, ranks: &[u32]) -> Flow {
    let nodes: Vec<_> =
        ranks.iter().enumerate().map(|(at, &rank)| (rank, at.checked_sub(1).map(|at| at as u32))).collect();
    flow(bytes, &nodes)
}

#[track_caller]
fn takes(flows: &[Flow], machine: &Machine, nanoseconds: u64) {
    let simulated = simulate(flows, machine, CHUNK);
    assert_eq!((simulated.seconds * 1e12).round() as u64, nanoseconds * 1000);
    assert_eq!(simulated, simulate(flows, machine, CHUNK));
    let bound = LinkBytes::new(&traffic(flows, &machine.topology), machine).bound(machine);
    assert!(simulated.seconds >= bound.seconds());
}

#[test]
fn nothing_takes_no_time() {
    takes(&[], &machine(&[0]), 0);
    takes(&[flow(5, &[(0, None)]), chain(0, &[0, 1])], &machine(&[0, 1]), 0);
}

#[test]
fn one_flow_takes_its_bytes_a_grant_and_a_latency() {
    let machine = machine(&[0, 1]);
    for bytes in [1, 999, 1000, 1001, 100_000, 123_456] {
        let flows = [chain(bytes, &[0, 1])];
        takes(&flows, &machine, LATENCY + bytes + LATENCY);
        let bound = LinkBytes::new(&traffic(&flows, &machine.topology), &machine).bound(&machine);
        let predicted = cost::predicted_seconds(&flows, &machine, bound, CHUNK);
        assert!((predicted - simulate(&flows, &machine, CHUNK).seconds).abs() < 1e-15);
    }
}

#[test]
fn flows_that_share_a_card_take_turns() {
    let machine = machine(&[0, 1, 2, 3]);
    takes(&[chain(50_000, &[0, 1]), chain(50_000, &[0, 2])], &machine, 100_000 + 2 * LATENCY);
    takes(&[chain(50_000, &[0, 2]), chain(50_000, &[1, 2])], &machine, 100_000 + 2 * LATENCY);
    // Other cards, and the other direction of the same: at once.
    takes(&[chain(50_000, &[0, 1]), chain(50_000, &[2, 3])], &machine, 50_000 + 2 * LATENCY);
    takes(&[chain(50_000, &[0, 1]), chain(50_000, &[1, 0])], &machine, 50_000 + 2 * LATENCY);
}

#[test]
fn a_ring_adds_a_chunk_and_a_latency_for_each_hop() {
    let machine = machine(&[0, 1, 2, 3, 4]);
    for domains in 1..5u64 {
        let ranks: Vec<u32> = (0..=domains as u32).collect();
        let flows = [chain(40 * CHUNK, &ranks)];
        takes(&flows, &machine, LATENCY + 40 * CHUNK + (domains - 1) * CHUNK + domains * LATENCY);
        let bound = LinkBytes::new(&traffic(&flows, &machine.topology), &machine).bound(&machine);
        let predicted = cost::predicted_seconds(&flows, &machine, bound, CHUNK);
        assert!((predicted - simulate(&flows, &machine, CHUNK).seconds).abs() < 1e-15, "{domains} domains");
    }
}

#[test]
fn neighbours_read_while_the_network_goes_on() {
    // 0 sends to 1, which 2 and 3 read: the last chunk leaves NVLink twice, 100 ns each.
    let flows = [flow(20 * CHUNK, &[(0, None), (1, Some(0)), (2, Some(1)), (3, Some(1))])];
    takes(&flows, &machine(&[0, 1, 1, 1]), LATENCY + 20 * CHUNK + LATENCY + 2 * 100 + 5);
    // Inside a domain nothing is granted: all chunks to each reader in turn.
    let flows = [flow(20 * CHUNK, &[(0, None), (1, Some(0)), (2, Some(0))])];
    takes(&flows, &machine(&[0, 0, 0]), 2 * 20 * 100 + 5);
}

#[test]
fn slots_of_a_relay_hold_up_what_fills_them() {
    // 1 does not want what it passes on from 0 to 2, so it gathers no faster than its card sends: after the grant of
    // the first chunk and its way over NVLink, one chunk after the other leaves.
    let mut relayed = chain(100 * CHUNK, &[0, 1, 2]);
    relayed.nodes[1].wants = false;
    takes(&[relayed], &machine(&[0, 0, 1]), 5 + 100 + 5 + 100 * CHUNK + LATENCY);
}

#[test]
fn a_faster_sender_does_not_speed_up_a_slower_receiver() {
    let mut machine = machine(&[0, 1, 2]);
    machine.nics[0].rate.bytes_per_second = 4_000_000_000;
    takes(&[chain(10 * CHUNK, &[0, 1])], &machine, LATENCY + 10 * CHUNK + LATENCY);
    takes(&[chain(10 * CHUNK, &[0, 1]), chain(10 * CHUNK, &[0, 2])], &machine, LATENCY + 250 + 10 * CHUNK + LATENCY);
}

#[test]
fn cards_of_a_rank_share_its_chunks() {
    let mut machine = machine(&[0, 1]);
    machine.nics.extend([machine.nics[0]; 2]);
    machine.devices[0].nics = vec![0, 2];
    machine.devices[1].nics = vec![1, 3];
    takes(&[chain(40 * CHUNK, &[0, 1])], &machine, LATENCY + 20 * CHUNK + LATENCY);
}

#[test]
fn very_many_chunks_are_simulated_together() {
    let bytes = 4 * MOST_MOVES * CHUNK;
    let flows = [chain(bytes, &[0, 1])];
    let simulated = simulate(&flows, &machine(&[0, 1]), CHUNK);
    assert_eq!((simulated.chunk_bytes, simulated.moves), (4 * CHUNK, MOST_MOVES));
    takes(&flows, &machine(&[0, 1]), LATENCY + bytes + LATENCY);
}
