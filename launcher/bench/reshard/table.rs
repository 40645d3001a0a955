//! Results for people. In: results. Out: text. Guarantee: every figure comes with its spread.

use super::results::{Method, Party, Results, ShapeResults};
use crate::bench::statistics::Spread;
use crate::counted::counted;
use crossmesh::base::bytes::human;
use std::fmt::Write;

/// One shape: every method's rate, and how crossmesh compares with each peer.
pub(super) fn shape(results: &ShapeResults) -> String {
    let mut text = format!("\n{}: {}; {}\n", results.name, results.meaning, amount(results));
    let own: Vec<&Method> = results.methods.iter().filter(|method| method.party == Party::Crossmesh).collect();
    let width = results.methods.iter().map(|method| method.name.len()).max().unwrap_or(0);
    let compares = results.methods.len() > own.len();
    let _ = write!(text, "  {:<width$}  {:<24}", "", "GB/s, median (q1..q3)");
    if compares {
        for method in &own {
            let _ = write!(text, "  {:<23}", format!("{} / it", short(method)));
        }
    }
    text = text.trim_end().to_string() + "\n";
    for method in &results.methods {
        let mut line = format!("  {:<width$}  {:<24}", method.name, cell(method.gb_per_s));
        if method.party == Party::Peer {
            for own in &own {
                let _ = write!(line, "  {:<23}", cell(results.ratio(&own.name, &method.name)));
            }
        }
        if method.wrong_elements > 0 {
            let _ = write!(line, "  WRONG: {} elements", method.wrong_elements);
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// All shapes, a line for each way of crossmesh: its rate over that of each peer under the peer's best settings.
pub(super) fn summary(results: &Results) -> String {
    let mut peers: Vec<&str> = Vec::new();
    for group in results.shapes.iter().flat_map(ShapeResults::peer_groups) {
        if !peers.contains(&group) {
            peers.push(group);
        }
    }
    if peers.is_empty() {
        return String::new();
    }
    let headings = ["shape", "crossmesh"].into_iter().map(String::from);
    let mut rows = vec![headings.chain(peers.iter().map(|peer| format!("/ {peer}"))).collect::<Vec<_>>()];
    for shape in &results.shapes {
        for own in shape.methods.iter().filter(|method| method.party == Party::Crossmesh) {
            let ratio = |peer: &&str| cell(shape.best(peer).and_then(|best| shape.ratio(&own.name, &best.name)));
            let names = [shape.name.to_string(), short(own).to_string()];
            rows.push(names.into_iter().chain(peers.iter().map(ratio)).collect());
        }
    }
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let mut text = String::from("\nrate of crossmesh over that of each peer under its best settings\n");
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<width$}", width = width(column)));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// A way of crossmesh by what tells it from the others.
fn short(method: &Method) -> &str {
    method.name.trim_start_matches("crossmesh ")
}

fn amount(results: &ShapeResults) -> String {
    let delivered = human(results.delivered_bytes);
    let ranks = format!("{} to {}", results.sources, counted(results.destinations, "rank"));
    match results.tensors {
        1 => format!("{delivered} delivered, {ranks}"),
        count => format!("{count} tensors, {delivered} delivered, {ranks}"),
    }
}

fn cell(spread: Option<Spread>) -> String {
    spread.map_or("-".into(), |spread| format!("{:.2} ({:.2}..{:.2})", spread.median, spread.q1, spread.q3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::reshard::results::tests::example;

    #[test]
    fn table_has_every_method_and_ratio() {
        let text = shape(&example(0).shapes[0]);
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[0].ends_with("256.0 MiB delivered, 4 to 4 ranks"), "{text}");
        assert!(lines[1].ends_with("shared flat / it         private flat / it"), "{text}");
        assert!(lines[2].contains("13.42 (10.07..13.42)"), "{text}");
        assert!(lines[5].contains("2.00 (1.50..2.25)"), "{text}");
        assert!(!text.contains("WRONG"));
        assert!(shape(&example(3).shapes[0]).contains("WRONG: 3 elements"));
    }

    #[test]
    fn summary_takes_the_best_settings() {
        let text = summary(&example(0));
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 4, "{text}");
        let headings: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(headings, ["shape", "crossmesh", "/", "alltoallw", "/", "pull"], "{text}");
        // Over the faster of two settings of alltoallw.
        assert!(lines[2].contains("shared flat") && lines[2].contains("2.00 (1.50..2.25)"), "{text}");
        let mut alone = example(0);
        alone.shapes[0].methods.truncate(2);
        assert_eq!(summary(&alone), "");
    }
}
