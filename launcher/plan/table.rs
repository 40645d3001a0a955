//! A report for people. In: a report. Out: text. Guarantee: figures with their units; nothing that the JSON does not say.

use super::report::{Balance, GapReport, RankReport, Report, RouteReport};
use crate::counted::counted;
use crate::printable::{printable, some_tensors};
use crossmesh::base::bytes::human;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Tensors that are named where there are many.
const SHOWN: usize = 5;

/// The tables.
pub(super) fn table(report: &Report) -> String {
    let mut text = String::new();
    summary(report, &mut text);
    text.push('\n');
    routes(report, &mut text);
    if let Some(route) = report.chosen_route() {
        let _ = writeln!(text, "\nchosen                {}: {}", route.title(), report.reason);
        details(route, &mut text);
    }
    text.push('\n');
    domains(report, &mut text);
    text
}

/// Seconds in a unit that suits them.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        seconds if seconds < 1e-6 => format!("{:.1} ns", seconds * 1e9),
        seconds if seconds < 1e-3 => format!("{:.2} us", seconds * 1e6),
        seconds if seconds < 1.0 => format!("{:.3} ms", seconds * 1e3),
        seconds => format!("{seconds:.3} s"),
    }
}

/// Seconds to three digits.
pub(super) fn brief(seconds: f64) -> String {
    let (value, unit) = match seconds {
        seconds if seconds < 1e-6 => (seconds * 1e9, "ns"),
        seconds if seconds < 1e-3 => (seconds * 1e6, "us"),
        seconds if seconds < 1.0 => (seconds * 1e3, "ms"),
        seconds => (seconds, "s"),
    };
    match value {
        0.0 => "0".into(),
        value if value < 10.0 => format!("{value:.2} {unit}"),
        value if value < 100.0 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

fn exact(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { format!("{bytes} B ({})", human(bytes)) }
}

fn summary(report: &Report, text: &mut String) {
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<22}{value}");
    };
    row("plan", printable(&report.name));
    let ranks = format!(
        "{}: {} in {}, {}, {}",
        report.topology,
        counted(report.ranks, "rank"),
        counted(report.domains, "domain"),
        counted(report.sources, "source"),
        counted(report.destinations, "destination")
    );
    row("cluster", ranks);
    let classes = counted(report.classes, "class");
    row("tensors", format!("{} in {classes} of equal holders and wanters", report.tensors));
    row("bytes", exact(report.bytes));
    row("unique, delivered", format!("{}, {}", exact(report.unique_bytes), exact(report.delivered_bytes)));
    let bound =
        format!("{} for {} through the busiest card", time(report.bound_seconds), exact(report.nic_bound_bytes));
    row("bound", if report.nic_bound_bytes == 0 { "nothing needs to cross domains".into() } else { bound });
    if !report.stages.is_empty() {
        let stages = format!(
            "{} when the {} stages of the source go one after the other",
            time(report.stages_one_by_one_seconds),
            report.stages.len()
        );
        row("bound, stage by stage", stages);
    }
    row("coverage", coverage(report));
    for gap in report.gaps.iter().take(SHOWN) {
        row("", gap_text(gap));
    }
    if report.gaps.len() > SHOWN {
        row("", format!("and {} more tensors (--json lists all)", report.gaps.len() - SHOWN));
    }
    if report.as_expected == Some(true) {
        row("expected", "all byte counts are as the case says".into());
    }
    let unknown = &report.replicated_unknown;
    if !unknown.is_empty() {
        row("no rule, replicated", some_tensors(unknown));
    }
    row("planned in", format!("{:.3} s, all routes proved", report.plan_seconds));
}

fn coverage(report: &Report) -> String {
    let mut text = match report.without_source_bytes {
        0 => "complete: every destination byte is written exactly once".to_string(),
        bytes => format!("incomplete: {} of destinations have no source", exact(bytes)),
    };
    if report.untaken_bytes > 0 {
        let _ = write!(text, "; {} of sources are wanted by nobody", exact(report.untaken_bytes));
    }
    if report.padding_bytes > 0 {
        let _ = write!(text, "; {} are padding", exact(report.padding_bytes));
    }
    text
}

fn gap_text(gap: &GapReport) -> String {
    let mut parts = Vec::new();
    if gap.without_source_bytes > 0 {
        parts.push(format!("{} without source", exact(gap.without_source_bytes)));
    }
    if gap.untaken_bytes > 0 {
        parts.push(format!("{} wanted by nobody", exact(gap.untaken_bytes)));
    }
    format!("{}: {}", printable(&gap.tensor), parts.join(", "))
}

fn routes(report: &Report, text: &mut String) {
    let simulated = report.routes.iter().any(|route| route.simulated.is_some());
    let _ = write!(text, "{:<24}{:>12}", "route", "predicted");
    if simulated {
        let _ = write!(text, "{:>12}{:>9}", "simulated", "/ bound");
    }
    let _ = writeln!(
        text,
        "{:>12}{:>14}{:>14}{:>14}{:>14}{:>8}{:>10}",
        "bound", "busiest card", "idlest card", "busiest NVL", "between doms", "flows", "chunks"
    );
    for route in &report.routes {
        let is_chosen = report.is_chosen(route);
        let name = format!("{} {}", if is_chosen { '*' } else { ' ' }, route.title());
        let _ = write!(text, "{name:<24}{:>12}", time(route.predicted_seconds));
        if let Some(simulated) = route.simulated {
            let over = simulated.over_bound.map_or("-".into(), |over| format!("{over:.3}"));
            let _ = write!(text, "{:>12}{over:>9}", time(simulated.seconds));
        }
        let _ = writeln!(
            text,
            "{:>12}{:>14}{:>14}{:>14}{:>14}{:>8}{:>10}",
            time(route.bound_seconds),
            human(route.max_nic_bytes),
            human(route.min_nic_bytes),
            human(route.max_nvlink_bytes),
            human(route.inter_domain_bytes),
            route.flows,
            route.chunks
        );
    }
}

fn details(route: &RouteReport, text: &mut String) {
    let _ = writeln!(text, "{:<22}{}", "injectors", balance(route.injectors, "source ranks send to other domains"));
    let _ =
        writeln!(text, "{:<22}{}", "leaders", balance(route.leaders, "destination ranks receive from other domains"));
    let staging = format!(
        "{} at most on a rank; {} of {} at most over {}",
        human(route.staging_bytes),
        counted(route.chunks, "chunk"),
        human(route.chunk_bytes),
        counted(u64::from(route.hops), "hop")
    );
    let _ = writeln!(text, "{:<22}{staging}", "staging");
    if let Some(simulated) = route.simulated.filter(|simulated| simulated.chunk_bytes > route.chunk_bytes) {
        let _ = writeln!(
            text,
            "{:<22}in chunks of {}, several real ones at once",
            "simulated",
            human(simulated.chunk_bytes)
        );
    }
}

fn balance(balance: Balance, what: &str) -> String {
    let Balance { active, of, max_bytes, min_bytes } = balance;
    format!("{active} of {of} {what}, {} to {} each", human(min_bytes), human(max_bytes))
}

/// Per domain the most and least that a card carries each way, and the NVLinks.
fn domains(report: &Report, text: &mut String) {
    let mut ranks: BTreeMap<u32, Vec<&RankReport>> = BTreeMap::new();
    for rank in &report.per_rank {
        ranks.entry(rank.domain).or_default().push(rank);
    }
    let _ = writeln!(
        text,
        "{:<11}{:<22}{:>6}  {:<24}{:<24}read over NVLink, each",
        "domain", "role", "ranks", "network sent, each", "received, each"
    );
    for (domain, ranks) in ranks {
        let span = |of: fn(&RankReport) -> u64| {
            let bytes = || ranks.iter().map(|rank| of(rank));
            let (least, most) = (bytes().min().unwrap_or(0), bytes().max().unwrap_or(0));
            if least == most { human(least) } else { format!("{} to {}", human(least), human(most)) }
        };
        let line = format!(
            "{domain:<11}{:<22}{:>6}  {:<24}{:<24}{:<24}",
            role(&ranks),
            ranks.len(),
            span(|rank| rank.network_sent),
            span(|rank| rank.network_received),
            span(|rank| rank.nvlink_received)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn role(ranks: &[&RankReport]) -> &'static str {
    let (source, destination) = (ranks.iter().any(|rank| rank.is_source), ranks.iter().any(|rank| rank.is_destination));
    match (source, destination) {
        (true, true) => "source, destination",
        (true, false) => "source",
        (false, true) => "destination",
        (false, false) => "neither",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (seconds, text) in
            [(0.0, "0"), (3.2e-10, "0.3 ns"), (2.5e-6, "2.50 us"), (0.0093952, "9.395 ms"), (1.6789, "1.679 s")]
        {
            assert_eq!(time(seconds), text);
        }
        for (seconds, text) in
            [(0.0, "0"), (2.5e-6, "2.50 us"), (0.0123456, "12.3 ms"), (95.829, "95.8 s"), (120.4, "120 s")]
        {
            assert_eq!(brief(seconds), text);
        }
        assert_eq!((exact(64), exact(2048)), ("64 B".into(), "2048 B (2.0 KiB)".into()));
    }
}
