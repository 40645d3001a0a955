//! One rank's part. In: a job, its chosen flows, a rank. Out: [`RankPart`], as data and as text. Guarantee: sums agree with
//! the tables.

use super::evaluate::Evaluated;
use super::job::Job;
use crate::counted::counted;
use crossmesh::base::Rank;
use crossmesh::base::bytes::human;
use crossmesh::route::{Exchanged, explain};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Peers that are listed one by one in the text.
const SHOWN: usize = 16;

/// What a rank does by the chosen route.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RankPart {
    rank: u32,
    domain: u32,
    node: u32,
    gpu: u32,
    nics: Vec<u32>,
    holds_bytes: u64,
    wants_bytes: u64,
    injects: Amount,
    leads: Amount,
    forwards: Amount,
    relays: Amount,
    own: Amount,
    /// Over the network, by peer; then over NVLink.
    sends_to: BTreeMap<u32, Amount>,
    receives_from: BTreeMap<u32, Amount>,
    is_read_by: BTreeMap<u32, Amount>,
    reads_from: BTreeMap<u32, Amount>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Amount {
    bytes: u64,
    flows: usize,
}

impl From<Exchanged> for Amount {
    fn from(Exchanged { bytes, flows }: Exchanged) -> Self {
        Self { bytes, flows }
    }
}

/// What `rank` does by the chosen route.
pub(super) fn explained(job: &Job, evaluated: &Evaluated, rank: Rank) -> RankPart {
    let topology = &job.machine.topology;
    let explanation = explain(&evaluated.flows, topology, rank);
    let by_peer = |peers: &BTreeMap<Rank, Exchanged>| {
        peers.iter().map(|(peer, &exchanged)| (peer.0, Amount::from(exchanged))).collect()
    };
    RankPart {
        rank: rank.0,
        domain: job.domain_labels[topology.domain(rank).index()],
        node: topology.node(rank).0,
        gpu: job.machine.devices[rank.index()].gpu,
        nics: job.machine.nics_of(rank).to_vec(),
        holds_bytes: job.manifest.tensors().iter().map(|tensor| tensor.source.local_bytes(rank)).sum(),
        wants_bytes: job.manifest.tensors().iter().map(|tensor| tensor.destination.local_bytes(rank)).sum(),
        injects: explanation.injects.into(),
        leads: explanation.leads.into(),
        forwards: explanation.forwards.into(),
        relays: explanation.relays.into(),
        own: explanation.own.into(),
        sends_to: by_peer(&explanation.sent),
        receives_from: by_peer(&explanation.received),
        is_read_by: by_peer(&explanation.read_by),
        reads_from: by_peer(&explanation.read_from),
    }
}

impl RankPart {
    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "rank {}: domain {}, node {}, GPU {}, cards {:?}; holds {}, wants {}\n",
            self.rank,
            self.domain,
            self.node,
            self.gpu,
            self.nics,
            human(self.holds_bytes),
            human(self.wants_bytes)
        );
        for (what, amount) in [
            ("injects", self.injects),
            ("leads into its domain", self.leads),
            ("forwards", self.forwards),
            ("relays what it does not want", self.relays),
            ("copies from itself", self.own),
        ] {
            if amount.flows > 0 {
                let _ = writeln!(text, "  {what:<30}{}", exchanged(amount));
            }
        }
        for (what, peers) in [
            ("sends over the network to", &self.sends_to),
            ("receives over the network from", &self.receives_from),
            ("is read over NVLink by", &self.is_read_by),
            ("reads over NVLink from", &self.reads_from),
        ] {
            list(&mut text, what, peers);
        }
        text
    }
}

fn exchanged(amount: Amount) -> String {
    format!("{:>12} in {}", human(amount.bytes), counted(amount.flows, "flow"))
}

fn list(text: &mut String, what: &str, peers: &BTreeMap<u32, Amount>) {
    if peers.is_empty() {
        return;
    }
    let sum = peers.values().map(|amount| amount.bytes).sum();
    let _ = writeln!(text, "  {what:<30}{:>12} with {}", human(sum), counted(peers.len(), "rank"));
    for (peer, &amount) in peers.iter().take(SHOWN) {
        let _ = writeln!(text, "    {:<28}{}", format!("rank {peer}"), exchanged(amount));
    }
    if peers.len() > SHOWN {
        let _ = writeln!(text, "    and {} more", counted(peers.len() - SHOWN, "rank"));
    }
}
