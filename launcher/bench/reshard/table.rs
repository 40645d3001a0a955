//! Results for people. In: results. Out: text. Guarantee: every figure comes with its spread.

use super::results::{Method, Party, Results, ShapeResults};
use crate::bench::statistics::Spread;
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
            let _ = write!(text, "  {:<23}", method.name.trim_start_matches("crossmesh ").to_string() + " /");
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

/// All shapes: crossmesh against each peer under its best settings.
pub(super) fn summary(results: &Results) -> String {
    let mut rows =
        vec![vec!["shape".to_string(), "crossmesh".into(), "peer, best settings".into(), "ratio (q1..q3)".into()]];
    for shape in &results.shapes {
        let own = shape.methods.iter().filter(|method| method.party == Party::Crossmesh);
        for method in own {
            for group in shape.peer_groups() {
                let Some(best) = shape.best(group) else { continue };
                let name = method.name.trim_start_matches("crossmesh ").to_string();
                let ratio = cell(shape.ratio(&method.name, &best.name));
                rows.push(vec![shape.name.to_string(), name, best.name.clone(), ratio]);
            }
        }
    }
    if rows.len() == 1 {
        return String::new();
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut text = String::from("\n");
    for row in &rows {
        let [first, second, third] = widths;
        let _ = writeln!(text, "{:<first$}  {:<second$}  {:<third$}  {}", row[0], row[1], row[2], row[3]);
    }
    text
}

fn amount(results: &ShapeResults) -> String {
    let delivered = human(results.delivered_bytes);
    let ranks = format!("{} to {} ranks", results.sources, results.destinations);
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
        assert!(lines[1].ends_with("shared flat /            private flat /"), "{text}");
        assert!(lines[2].contains("13.42 (10.07..13.42)"), "{text}");
        assert!(lines[5].contains("2.00 (1.50..2.25)"), "{text}");
        assert!(!text.contains("WRONG"));
        assert!(shape(&example(3).shapes[0]).contains("WRONG: 3 elements"));
    }

    #[test]
    fn summary_takes_the_best_settings() {
        let text = summary(&example(0));
        assert_eq!(text.lines().filter(|line| line.contains("alltoallw (b)")).count(), 2, "{text}");
        assert!(!text.contains("alltoallw (a)"), "{text}");
        assert_eq!(text.lines().filter(|line| !line.is_empty()).count(), 5, "{text}");
    }
}
