//! `crossmesh bench reshard`: shapes of tensors, moved in turn by crossmesh and by peers.
//!
//! In: a request. Out: samples of every method, tables, JSON, bars. Guarantee: in a round every method runs once, each
//! round begins with another one; what does not run sleeps.
//!
//! ```text
//! arguments ─► shapes, variants, peers
//! shape ─► moving (crossmesh's transfers)  ┐
//!       ─► peer_job (a program on rank 0)  ┴─► Timing ─► results ─► table, chart
//! ```

mod arena;
mod arguments;
mod chart;
mod moving;
mod peer_job;
mod peers;
mod results;
mod shape;
mod table;

pub(crate) use arguments::{Arguments, Request};

use super::binding::Binding;
use super::error::BenchError;
use super::{Complaint, deadline, output};
use crossmesh::base::Rank;
use crossmesh::comm::Communicator;
use moving::{Moving, Timing};
use peer_job::PeerJob;
use peers::PeerEntry;
use results::{Method, Party, Results, ShapeResults};
use shape::Shape;
use std::fs;

/// Runs the bench on this rank; collective.
pub(super) fn run(world: &Communicator, request: &Request) -> Result<Complaint, BenchError> {
    check_ranks(world, request)?;
    let binding = request.bind.then(|| Binding::in_turn(world.rank())).transpose()?;
    let leads = world.rank() == Rank(0);
    let shows = leads && output::leaves_room_for_a_table(request.json.as_deref());
    let mut results = Results {
        host: world.topology().host(Rank(0)).to_string(),
        crossmesh: crossmesh::BUILD,
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        core_of_rank: cores_of_ranks(world, binding.as_ref())?,
        load_before: load(),
        load_after: None,
        repeat: request.repeat,
        wrong_elements: 0,
        shapes: Vec::new(),
    };
    for shape in &request.shapes {
        let methods = measure(world, request, shape, binding.as_ref())?;
        let shape = ShapeResults::new(shape, methods);
        if shows {
            print!("{}", table::shape(&shape));
        }
        results.shapes.push(shape);
    }
    if !leads {
        return Ok(None);
    }
    results.load_after = load();
    results.wrong_elements =
        results.shapes.iter().flat_map(|shape| &shape.methods).map(|method| method.wrong_elements).sum();
    if shows {
        print!("{}", table::summary(&results));
    }
    if let Some(path) = &request.json {
        output::write_json(&results, path)?;
    }
    if let Some(path) = &request.svg {
        output::write(&chart::svg(&results), path)?;
    }
    Ok(results.complaint())
}

/// Enough ranks, on one host: clocks of two hosts cannot be compared.
fn check_ranks(world: &Communicator, request: &Request) -> Result<(), BenchError> {
    let needed = request.shapes.iter().map(|shape| u64::from(shape.ranks())).max().unwrap_or(0);
    if needed > world.size() as u64 {
        return Err(BenchError::TooFewRanks { needed, ranks: world.size() });
    }
    let host = |rank: usize| world.topology().host(Rank(rank as u32));
    match (0..world.size()).find(|&rank| host(rank) != host(0)) {
        Some(rank) => Err(BenchError::SeveralHosts { rank, first: host(0).to_string(), other: host(rank).to_string() }),
        None => Ok(()),
    }
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Variant(usize),
    /// Number of the job, number of its method.
    Peer(usize, usize),
}

/// All rounds of one shape; on rank 0 with the peers' runs.
fn measure(
    world: &Communicator,
    request: &Request,
    shape: &Shape,
    binding: Option<&Binding>,
) -> Result<Vec<Method>, BenchError> {
    let entries: Vec<&PeerEntry> = request.peers.of(shape).collect();
    let mut turns: Vec<Turn> = (0..request.variants.len()).map(Turn::Variant).collect();
    for (job, entry) in entries.iter().enumerate() {
        turns.extend((0..entry.methods.len()).map(|method| Turn::Peer(job, method)));
    }
    let mut methods: Vec<Method> = turns.iter().map(|&turn| new_method(request, &entries, turn)).collect();
    let mut moving = Moving::new(world, shape, &request.variants)?;
    let leads = world.rank() == Rank(0);
    let mut jobs = if leads { start_peers(&entries, shape, binding)? } else { Vec::new() };
    for round in 0..=request.repeat {
        for step in 0..turns.len() {
            let number = (round as usize + step) % turns.len();
            let seed = seed(round, number);
            let timing = match turns[number] {
                Turn::Variant(variant) => Some(moving.run(world, variant, seed)?),
                Turn::Peer(job, method) => run_peer(&mut jobs, job, &entries[job].methods[method], seed)?,
            };
            if let Some(timing) = timing {
                methods[number].take(round, timing, shape.delivered());
            }
        }
    }
    Ok(methods)
}

fn new_method(request: &Request, entries: &[&PeerEntry], turn: Turn) -> Method {
    match turn {
        Turn::Variant(variant) => {
            let variant = request.variants[variant];
            Method::new(Party::Crossmesh, variant.to_string(), format!("crossmesh {}", variant.memory))
        }
        Turn::Peer(job, method) => {
            let name = &entries[job].methods[method];
            Method::new(Party::Peer, format!("{name} ({})", entries[job].name), name.clone())
        }
    }
}

/// Starts all, then waits for all.
fn start_peers(entries: &[&PeerEntry], shape: &Shape, binding: Option<&Binding>) -> Result<Vec<PeerJob>, BenchError> {
    let started: Result<Vec<PeerJob>, BenchError> =
        entries.iter().map(|entry| PeerJob::start(entry, shape, binding)).collect();
    let mut jobs = started?;
    for job in &mut jobs {
        job.wait_ready(deadline()?)?;
    }
    Ok(jobs)
}

/// On rank 0; the other ranks have no jobs and go on to where they wait for rank 0.
fn run_peer(jobs: &mut [PeerJob], job: usize, method: &str, seed: u32) -> Result<Option<Timing>, BenchError> {
    let Some(job) = jobs.get_mut(job) else { return Ok(None) };
    job.run(method, seed, deadline()?).map(Some)
}

/// Another one for every run.
fn seed(round: u32, number: usize) -> u32 {
    round.wrapping_mul(0x0100_0193).wrapping_add(number as u32).wrapping_mul(0x85eb_ca6b).wrapping_add(1)
}

/// The core that each rank is bound to.
fn cores_of_ranks(world: &Communicator, binding: Option<&Binding>) -> Result<Vec<Option<usize>>, BenchError> {
    let mine = binding.and_then(Binding::core).map(|core| core.to_string()).unwrap_or_default();
    let all = world.allgather(mine.as_bytes(), deadline()?)?;
    Ok(all.iter().map(|text| std::str::from_utf8(text).ok()?.parse().ok()).collect())
}

/// Processes that ran or wanted to in the last minute.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}
