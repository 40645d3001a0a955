//! `crossmesh bench p2p`: rate and latency of a link.
//!
//! In: links, sizes. Out: columns as of perftest, JSON. Guarantee: what is measured is a persistent transfer of one
//! contiguous tensor from start to finish, over the link that is named; another link is an error.

mod arguments;
mod lane;
mod report;

pub(crate) use arguments::{Arguments, Request};

use super::binding::Binding;
use super::error::BenchError;
use super::{Complaint, deadline, output};
use arguments::Link;
use crossmesh::base::{Rank, env};
use crossmesh::comm::{CommError, Communicator};
use crossmesh::execute::Mapped;
use lane::{Lane, Measured, latency, rate};
use report::{Latency, LinkResults, Rate, Results};
use std::time::Duration;

/// Runs the bench on this rank; collective. Ranks 2 and more look on.
pub(super) fn run(world: &Communicator, request: &Request) -> Result<Complaint, BenchError> {
    if world.size() < 2 {
        return Err(BenchError::TooFewRanks { needed: 2, ranks: world.size() });
    }
    let links = links(world, request)?;
    Binding::in_turn(world.rank())?;
    let takes_part = world.rank().0 < 2;
    let Some(group) = world.split(takes_part.then_some(0), 0, deadline()?)? else { return Ok(None) };
    let leads = world.rank() == Rank(0);
    let shows = leads && output::leaves_room_for_a_table(request.json.as_deref());
    let mut results = Results { crossmesh: crossmesh::BUILD, links: Vec::new() };
    for link in links {
        let measured = measure(&group, request, link)?;
        if shows {
            print!("{}", measured.table());
        }
        results.links.push(measured);
    }
    if !leads {
        return Ok(None);
    }
    if let Some(path) = &request.json {
        output::write_json(&results, path)?;
    }
    Ok(results.complaint())
}

/// The links that join ranks 0 and 1, of which those that were asked for.
fn links(world: &Communicator, request: &Request) -> Result<Vec<Link>, BenchError> {
    let topology = world.topology();
    let mapped = env::value::<Mapped>(env::MAPPED).map_err(CommError::from)?.unwrap_or_default();
    let found: &[Link] = if topology.domain(Rank(0)) != topology.domain(Rank(1)) {
        &[Link::Tcp]
    } else {
        match mapped {
            Mapped::Auto => &[Link::Mapped, Link::Process],
            Mapped::Shared => &[Link::Mapped],
            Mapped::Staged => &[Link::Shm],
        }
    };
    match request.links.iter().find(|link| !found.contains(link)) {
        None if request.links.is_empty() => Ok(found.to_vec()),
        None => Ok(request.links.clone()),
        Some(&wanted) => Err(other_link(wanted, &found.iter().map(Link::to_string).collect::<Vec<_>>().join(", "))),
    }
}

fn other_link(wanted: Link, found: &str) -> BenchError {
    let cure = match wanted {
        Link::Tcp => "make two domains: crossmesh run -n 2 --domains 2",
        Link::Shm => "use one domain and CROSSMESH_MAPPED=staged",
        Link::Mapped => "use one domain and unset CROSSMESH_MAPPED",
        Link::Process => "use one domain, unset CROSSMESH_MAPPED, and let ranks read each other by process_vm_readv",
    };
    BenchError::OtherLink { wanted: wanted.to_string(), found: found.to_string(), cure: cure.to_string() }
}

/// All sizes over one link; the figures are rank 0's for the latency and rank 1's, where bytes arrive, for the rate.
fn measure(group: &Communicator, request: &Request, link: Link) -> Result<LinkResults, BenchError> {
    let mut results = LinkResults {
        link: link.to_string(),
        depth: request.depth,
        rates: Vec::new(),
        latencies: Vec::new(),
        wrong_bytes: 0,
    };
    for (&bytes, seed) in request.bytes.iter().zip(1u32..) {
        let lane = |from| Lane::new(group, Rank(from), link, bytes);
        let mut lanes = (0..request.depth).map(|_| lane(0)).collect::<Result<Vec<_>, _>>()?;
        if link == Link::Process && lanes.iter().any(|lane| lane.staging() > 0) {
            return Err(other_link(link, "shm"));
        }
        let measured = rate(group, &mut lanes, request.rate_iterations(bytes), 2 * seed)?;
        results.rates.push(Rate::of(
            bytes,
            request.depth,
            &joined(group, &measured, Rank(1), &mut results.wrong_bytes)?,
        ));
        lanes.truncate(1);
        let Some(there) = lanes.first_mut() else { continue };
        let mut back = lane(1)?;
        let measured = latency(group, [there, &mut back], request.latency_iterations(bytes), 2 * seed + 1)?;
        results.latencies.push(Latency::of(bytes, &joined(group, &measured, Rank(0), &mut results.wrong_bytes)?));
    }
    Ok(results)
}

/// The times of one rank, on both; wrong bytes of both are added up.
fn joined(
    group: &Communicator,
    mine: &Measured,
    whose: Rank,
    wrong_bytes: &mut u64,
) -> Result<Vec<Duration>, BenchError> {
    let words = std::iter::once(mine.wrong).chain(mine.times.iter().map(|time| time.as_nanos() as u64));
    let encoded: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let mut times = Vec::new();
    for (rank, bytes) in group.allgather(&encoded, deadline()?)?.iter().enumerate() {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|&word| u64::from_le_bytes(word));
        *wrong_bytes += words.next().unwrap_or(0);
        if rank == whose.index() {
            times = words.map(Duration::from_nanos).collect();
        }
    }
    Ok(times)
}
