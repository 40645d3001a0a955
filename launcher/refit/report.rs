//! Results. In: what a transfer moved and how long it took. Out: a table for people, JSON for scripts. Guarantee:
//! the same numbers in both.

use crate::counted::counted;
use crate::printable::some_tensors;
use crossmesh::base::bytes::human;
use crossmesh::comm::Report;
use serde::Serialize;
use std::fmt::Write;

/// Bytes of one rank.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RankRow {
    pub(super) rank: usize,
    pub(super) host: String,
    pub(super) domain: u32,
    pub(super) network_sent: u64,
    pub(super) network_received: u64,
    pub(super) local_read: u64,
    pub(super) seconds: f64,
    pub(super) staging_bytes: u64,
}

/// Results of a job.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Results {
    pub(super) model: String,
    pub(super) src: String,
    pub(super) dst: String,
    /// Type in which floats arrived, where that was asked for.
    pub(super) cast: Option<String>,
    /// Finite values that became infinite on the way.
    pub(super) saturated: u64,
    pub(super) route: String,
    pub(super) injection: String,
    pub(super) tensors: usize,
    pub(super) bytes: u64,
    pub(super) delivered_bytes: u64,
    pub(super) inter_domain_bytes: u64,
    pub(super) ingress_per_domain: Vec<u64>,
    pub(super) domains: usize,
    pub(super) repeat: u32,
    pub(super) seconds: f64,
    pub(super) seconds_min: f64,
    pub(super) seconds_max: f64,
    pub(super) gb_per_s: f64,
    pub(super) bound_seconds: f64,
    pub(super) nic_rate: Option<f64>,
    pub(super) nic_rate_from: &'static str,
    pub(super) staging_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) flows: usize,
    pub(super) plan_seconds: f64,
    pub(super) verified: Option<bool>,
    /// Ranks whose host has the model, which compare every byte with it.
    pub(super) model_ranks: usize,
    pub(super) ranks: usize,
    pub(super) replicated_unknown: Vec<String>,
    pub(super) per_rank: Vec<RankRow>,
}

/// Where the bound's rate comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct NicRate {
    pub(super) bytes_per_second: Option<f64>,
    pub(super) from: &'static str,
}

/// Median, least and most of some seconds.
pub(super) fn spread(seconds: &[f64]) -> (f64, f64, f64) {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.as_slice() {
        [] => (0.0, 0.0, 0.0),
        all => (all[all.len() / 2], all[0], all[all.len() - 1]),
    }
}

impl Results {
    /// The bound in force for `report`.
    pub(super) fn bound(report: &Report, rate: NicRate) -> f64 {
        rate.bytes_per_second.map_or(0.0, |rate| report.traffic.bound_seconds(rate))
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<22}{value}");
        };
        row("model", self.model.clone());
        row(
            "layouts",
            format!(
                "{} to {} on {}, {}",
                self.src,
                self.dst,
                counted(self.ranks, "rank"),
                counted(self.domains, "domain")
            ),
        );
        row("route", format!("{}, injection {}", self.route, self.injection));
        row("tensors", self.tensors.to_string());
        if let Some(dtype) = &self.cast {
            row("cast", format!("floats to {dtype}, {} finite values became infinite", self.saturated));
        }
        row("bytes", format!("{} ({})", self.bytes, human(self.bytes)));
        row("delivered", format!("{} ({})", self.delivered_bytes, human(self.delivered_bytes)));
        row("crossed domains", format!("{} ({})", self.inter_domain_bytes, human(self.inter_domain_bytes)));
        let spread = match self.repeat {
            1 => String::new(),
            n => format!(" (median of {n}, {:.6} to {:.6})", self.seconds_min, self.seconds_max),
        };
        row("time", format!("{:.6} s{spread}", self.seconds));
        row("rate", format!("{:.3} GB/s of model bytes", self.gb_per_s));
        let bound = match self.nic_rate {
            Some(rate) => {
                format!("{:.6} s at {:.3} GB/s per NIC ({})", self.bound_seconds, rate / 1e9, self.nic_rate_from)
            }
            None => "nothing crosses domains".into(),
        };
        row("data-movement bound", bound);
        row(
            "staging",
            format!("{} at most on a rank, chunks of {}", human(self.staging_bytes), human(self.chunk_bytes)),
        );
        row("planned in", format!("{:.3} s, {} flows", self.plan_seconds, self.flows));
        let verified = match self.verified {
            Some(true) if self.model_ranks == self.ranks => "every byte and digest".into(),
            Some(true) => {
                format!("every digest, every byte on the {} that have the model", counted(self.model_ranks, "rank"))
            }
            _ => "no (--verify)".into(),
        };
        row("verified", verified);
        let unknown = &self.replicated_unknown;
        if !unknown.is_empty() {
            row("no rule, replicated", some_tensors(unknown));
        }
        self.rank_table(&mut text);
        text
    }

    fn rank_table(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "\n{:>5} {:<16} {:>6} {:>14} {:>14} {:>14} {:>10}",
            "rank", "host", "domain", "net sent", "net received", "local read", "seconds"
        );
        for row in &self.per_rank {
            let _ = writeln!(
                text,
                "{:>5} {:<16} {:>6} {:>14} {:>14} {:>14} {:>10.6}",
                row.rank, row.host, row.domain, row.network_sent, row.network_received, row.local_read, row.seconds
            );
        }
    }
}
