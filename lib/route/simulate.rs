//! A transfer by events. In: flows, the links of every rank, a chunk size. Out: [`Simulated`], the time of the last
//! byte. Guarantee: integer picoseconds and a total order of events, so equal everywhere; never less than the bound.
//!
//! What is simulated: flows in chunks; a chunk leaves a rank when it is there and, over the network or into a staging
//! slot, when the receiver has granted it; grants are given for each hop in the order (chunk, flow), as execution gives
//! them, as many at once as a hop has slots. A link serves its chunks one by one, in the same order among those that
//! are ready; a chunk occupies the sender's and the receiver's link for its bytes and arrives a latency later. Between
//! the two links the network has no bottleneck. Copies within a rank take no time, nor do terms on their way to a root that
//! adds them up.

use super::Flow;
use crate::base::Rank;
use crate::topology::{LinkRate, Machine};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Slots that execution reserves for a hop when staging allows.
const SLOTS: u32 = 8;
/// Chunks times hops beyond which chunks are simulated several at once; about a second of work.
const MOST_MOVES: u64 = 1_500_000;
const PICOSECONDS: u128 = 1_000_000_000_000;
const NONE: u32 = u32::MAX;

/// How a simulation went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Simulated {
    /// When the last byte was delivered.
    pub seconds: f64,
    /// Bytes of a simulated chunk: a multiple of the real chunk where that would be too many events.
    pub chunk_bytes: u64,
    /// Chunks times hops.
    pub moves: u64,
}

/// Simulates `flows` in chunks of `chunk` bytes, or several chunks at once where there are very many.
///
/// # Panics
///
/// When `chunk` is 0.
pub fn simulate(flows: &[Flow], machine: &Machine, chunk: u64) -> Simulated {
    let moves_of = |chunk: u64| -> u64 {
        flows.iter().map(|flow| flow.bytes.div_ceil(chunk) * (flow.nodes.len() as u64 - 1)).sum()
    };
    let chunk = chunk.saturating_mul(moves_of(chunk).div_ceil(MOST_MOVES).max(1));
    let mut simulation = Simulation::new(flows, machine, chunk);
    let picoseconds = simulation.run();
    Simulated { seconds: picoseconds as f64 / 1e12, chunk_bytes: chunk, moves: moves_of(chunk) }
}

/// An edge of a flow's tree.
#[derive(Debug, Clone)]
struct Edge {
    sender: Rank,
    receiver: Rank,
    network: bool,
    /// The edge that brings the bytes to the sender; `NONE` at the root.
    parent: u32,
    /// Edges that take them on from the receiver.
    children: Vec<u32>,
    /// Grants that it needs; `NONE` when the receiver reads at will.
    window: u32,
    /// Whether a chunk keeps its slot until all children have it.
    keeps_slot: bool,
    bytes: u64,
    chunks: u32,
    /// Where its chunks begin among those of all edges.
    first: usize,
}

/// Grants of a hop of a rank.
#[derive(Debug, Default)]
struct Window {
    /// (edge, chunk) in the order in which they are granted.
    order: Vec<(u32, u32)>,
    next: usize,
    granted: u32,
}

/// A link in one direction of sending and one of receiving.
#[derive(Debug)]
struct Port {
    rate: LinkRate,
    busy: bool,
    /// (chunk, edge) that may leave.
    ready: BinaryHeap<Reverse<(u32, u32)>>,
    /// When all that was sent here is in.
    received: u64,
}

/// What happens; the order is that of events at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrived { edge: u32, chunk: u32 },
    Granted { edge: u32, chunk: u32 },
    Free { port: u32 },
}

struct Simulation<'a> {
    machine: &'a Machine,
    chunk: u64,
    edges: Vec<Edge>,
    windows: Vec<Window>,
    /// Cards, then the NVLinks of the ranks.
    ports: Vec<Port>,
    /// Per chunk of every edge: what it waits for before it may leave.
    waiting: Vec<u8>,
    /// Per chunk of every edge: children that still have to take it from its slot.
    takers: Vec<u32>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    end: u64,
}

impl<'a> Simulation<'a> {
    fn new(flows: &[Flow], machine: &'a Machine, chunk: u64) -> Self {
        let nics = machine.nics.iter().map(|nic| nic.rate);
        let rates = nics.chain(machine.devices.iter().map(|_| machine.nvlink));
        let port = |rate| Port { rate, busy: true, ready: BinaryHeap::new(), received: 0 };
        let mut simulation = Self {
            machine,
            chunk,
            edges: Vec::new(),
            windows: Vec::new(),
            ports: rates.map(port).collect(),
            waiting: Vec::new(),
            takers: Vec::new(),
            events: BinaryHeap::new(),
            end: 0,
        };
        let mut numbers = BTreeMap::new();
        for flow in flows.iter().filter(|flow| flow.nodes.len() > 1 && flow.bytes > 0) {
            simulation.add(flow, &mut numbers);
        }
        simulation.order_grants();
        simulation
    }

    fn add(&mut self, flow: &Flow, windows: &mut BTreeMap<(Rank, u32), u32>) {
        let first_edge = self.edges.len() as u32;
        let mut hops = vec![0u32];
        for node in &flow.nodes[1..] {
            let Some(parent) = node.parent else { continue };
            let hop = hops[parent as usize] + 1;
            hops.push(hop);
            let sender = flow.nodes[parent as usize].rank;
            let network = !self.machine.same_domain(sender, node.rank);
            let window = if network || !node.wants {
                let next = windows.len() as u32;
                *windows.entry((node.rank, hop)).or_insert(next)
            } else {
                NONE
            };
            let number = self.edges.len() as u32;
            let parent = if parent == 0 { NONE } else { first_edge + parent - 1 };
            if let Some(parent) = self.edges.get_mut(parent as usize) {
                parent.children.push(number);
            }
            let chunks = flow.bytes.div_ceil(self.chunk) as u32;
            let first = self.waiting.len();
            self.waiting.resize(first + chunks as usize, 1 + u8::from(window != NONE));
            self.takers.resize(first + chunks as usize, 0);
            let (receiver, bytes, keeps_slot) = (node.rank, flow.bytes, !node.wants);
            let children = Vec::new();
            let edge = Edge { sender, receiver, network, parent, children, window, keeps_slot, bytes, chunks, first };
            self.edges.push(edge);
        }
        self.windows.resize_with(windows.len(), Window::default);
    }

    /// Lists the chunks of every window: first chunks of all edges, then second ones.
    fn order_grants(&mut self) {
        let mut open: Vec<u32> = (0..self.edges.len() as u32).collect();
        open.retain(|&edge| self.edges[edge as usize].window != NONE);
        for chunk in 0.. {
            open.retain(|&edge| chunk < self.edges[edge as usize].chunks);
            if open.is_empty() {
                return;
            }
            for &edge in &open {
                self.windows[self.edges[edge as usize].window as usize].order.push((edge, chunk));
            }
        }
    }

    /// Runs to the end; the time of the last arrival.
    fn run(&mut self) -> u64 {
        for window in 0..self.windows.len() as u32 {
            self.grant(window, 0);
        }
        for edge in 0..self.edges.len() as u32 {
            if self.edges[edge as usize].parent == NONE {
                (0..self.edges[edge as usize].chunks).for_each(|chunk| self.advance(edge, chunk, 0));
            }
        }
        for port in 0..self.ports.len() as u32 {
            self.serve(port, 0);
        }
        while let Some(Reverse((now, event))) = self.events.pop() {
            match event {
                Event::Arrived { edge, chunk } => self.arrive(edge, chunk, now),
                Event::Granted { edge, chunk } => self.advance(edge, chunk, now),
                Event::Free { port } => self.serve(port, now),
            }
        }
        debug_assert!(self.waiting.iter().all(|&waiting| waiting == 0), "a chunk was never sent");
        self.end
    }

    /// Grants as many chunks as the window has slots for.
    fn grant(&mut self, window: u32, now: u64) {
        let state = &mut self.windows[window as usize];
        while state.granted < SLOTS && state.next < state.order.len() {
            let (edge, chunk) = state.order[state.next];
            state.next += 1;
            state.granted += 1;
            let sender = self.edges[edge as usize].sender;
            let latency = match self.edges[edge as usize].network {
                true => self.machine.nics[self.machine.nics_of(sender)[0] as usize].rate.latency_ns,
                false => self.machine.nvlink.latency_ns,
            };
            let at = now.saturating_add(latency.saturating_mul(1000));
            self.events.push(Reverse((at, Event::Granted { edge, chunk })));
        }
    }

    /// One thing less to wait for; what waits for nothing may leave.
    fn advance(&mut self, edge: u32, chunk: u32, now: u64) {
        let state = &self.edges[edge as usize];
        let waiting = &mut self.waiting[state.first + chunk as usize];
        *waiting -= 1;
        if *waiting == 0 {
            let port = self.port(state.sender, state.network, chunk);
            self.ports[port].ready.push(Reverse((chunk, edge)));
            if !self.ports[port].busy {
                self.serve(port as u32, now);
            }
        }
    }

    /// The port of a rank; several cards take turns.
    fn port(&self, rank: Rank, network: bool, chunk: u32) -> usize {
        if !network {
            return self.machine.nics.len() + rank.index();
        }
        let nics = self.machine.nics_of(rank);
        nics[chunk as usize % nics.len()] as usize
    }

    /// Sends the next chunk of a port that has become free.
    fn serve(&mut self, port: u32, now: u64) {
        let Some(Reverse((chunk, edge))) = self.ports[port as usize].ready.pop() else {
            self.ports[port as usize].busy = false;
            return;
        };
        self.ports[port as usize].busy = true;
        let state = &self.edges[edge as usize];
        let bytes = self.chunk.min(state.bytes - u64::from(chunk) * self.chunk);
        let receiver = self.port(state.receiver, state.network, chunk);
        let sender = self.ports[port as usize].rate;
        let into = &mut self.ports[receiver];
        let sent = now.saturating_add(picoseconds(bytes, sender));
        into.received = into.received.max(now).saturating_add(picoseconds(bytes, into.rate));
        let latency = sender.latency_ns.max(into.rate.latency_ns).saturating_mul(1000);
        let arrived = sent.max(into.received).saturating_add(latency);
        self.events.push(Reverse((sent, Event::Free { port })));
        self.events.push(Reverse((arrived, Event::Arrived { edge, chunk })));
    }

    fn arrive(&mut self, edge: u32, chunk: u32, now: u64) {
        self.end = self.end.max(now);
        let state = &self.edges[edge as usize];
        let (children, parent) = (state.children.len(), state.parent);
        if state.window != NONE {
            if state.keeps_slot && children > 0 {
                self.takers[state.first + chunk as usize] = children as u32;
            } else {
                self.release(state.window, now);
            }
        }
        for child in 0..children {
            self.advance(self.edges[edge as usize].children[child], chunk, now);
        }
        if let Some(parent) = self.edges.get(parent as usize).filter(|parent| parent.keeps_slot) {
            let takers = &mut self.takers[parent.first + chunk as usize];
            *takers -= 1;
            if *takers == 0 {
                self.release(parent.window, now);
            }
        }
    }

    fn release(&mut self, window: u32, now: u64) {
        self.windows[window as usize].granted -= 1;
        self.grant(window, now);
    }
}

/// Time that `bytes` take on a link.
fn picoseconds(bytes: u64, rate: LinkRate) -> u64 {
    let time = (u128::from(bytes) * PICOSECONDS).div_ceil(u128::from(rate.bytes_per_second.max(1)));
    u64::try_from(time).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "simulate_tests.rs"]
mod tests;
