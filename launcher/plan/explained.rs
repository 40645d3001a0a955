//! One rank's part for people. In: a job, its chosen flows, a rank. Out: text. Guarantee: sums agree with the tables.

use super::evaluate::Evaluated;
use super::job::Job;
use super::table::counted;
use crossmesh::base::Rank;
use crossmesh::base::bytes::human;
use crossmesh::route::{Exchanged, explain};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Peers that are listed one by one.
const SHOWN: usize = 16;

/// What `rank` does by the chosen route.
pub(super) fn explained(job: &Job, evaluated: &Evaluated, rank: Rank) -> String {
    let topology = &job.machine.topology;
    let explanation = explain(&evaluated.flows, topology, rank);
    let holds: u64 = job.manifest.tensors().iter().map(|tensor| tensor.source.local_bytes(rank)).sum();
    let wants: u64 = job.manifest.tensors().iter().map(|tensor| tensor.destination.local_bytes(rank)).sum();
    let mut text = format!(
        "rank {rank}: domain {}, node {}, GPU {}, cards {:?}; holds {}, wants {}\n",
        job.domain_labels[topology.domain(rank).index()],
        topology.node(rank),
        job.machine.devices[rank.index()].gpu,
        job.machine.nics_of(rank),
        human(holds),
        human(wants)
    );
    for (what, amount) in [
        ("injects", explanation.injects),
        ("leads into its domain", explanation.leads),
        ("forwards", explanation.forwards),
        ("relays what it does not want", explanation.relays),
        ("copies from itself", explanation.own),
    ] {
        if amount.flows > 0 {
            let _ = writeln!(text, "  {what:<30}{}", exchanged(amount));
        }
    }
    for (what, peers) in [
        ("sends over the network to", &explanation.sent),
        ("receives over the network from", &explanation.received),
        ("is read over NVLink by", &explanation.read_by),
        ("reads over NVLink from", &explanation.read_from),
    ] {
        list(&mut text, what, peers);
    }
    text
}

fn exchanged(amount: Exchanged) -> String {
    format!("{:>12} in {}", human(amount.bytes), counted(amount.flows as u64, "flow"))
}

fn list(text: &mut String, what: &str, peers: &BTreeMap<Rank, Exchanged>) {
    if peers.is_empty() {
        return;
    }
    let sum = peers.values().map(|amount| amount.bytes).sum();
    let _ = writeln!(text, "  {what:<30}{:>12} with {}", human(sum), counted(peers.len() as u64, "rank"));
    for (peer, &amount) in peers.iter().take(SHOWN) {
        let _ = writeln!(text, "    {:<28}{}", format!("rank {peer}"), exchanged(amount));
    }
    if peers.len() > SHOWN {
        let _ = writeln!(text, "    and {} more", counted((peers.len() - SHOWN) as u64, "rank"));
    }
}
