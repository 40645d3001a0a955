//! Results of a bench of collectives. In: figures. Out: columns as nccl-tests has them, JSON. Guarantee: a call whose data was
//! wrong has no time.

use super::arguments::type_name;
use super::samples::{Figures, rate};
use crate::bench::error::BenchError;
use crossmesh::collective::Call;
use serde::Serialize;
use std::fmt::Write;

/// One way to place operands.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Side {
    pub(super) figures: Option<Figures>,
    /// Elements, those of all ranks; `None` when they were not looked at.
    pub(super) wrong: Option<u64>,
}

/// What a rival took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RivalTime {
    pub(super) rival: &'static str,
    /// What it ran, or why it did not.
    pub(super) what: String,
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// A call in one form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Line {
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) dtype: &'static str,
    pub(super) operation: &'static str,
    /// -1 where there is none.
    pub(super) root: i64,
    pub(super) mode: &'static str,
    pub(super) l2: &'static str,
    pub(super) algorithm: &'static str,
    pub(super) blocks: u16,
    pub(super) threads: u16,
    /// From algorithm to bus bandwidth.
    pub(super) bus_factor: f64,
    pub(super) out_of_place: Side,
    pub(super) in_place: Side,
    /// Host's time for a call, where it is made by itself.
    pub(super) host: Option<f64>,
    pub(super) rivals: Vec<RivalTime>,
}

/// The whole bench.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Results {
    pub(super) crossmesh: &'static str,
    pub(super) kind: &'static str,
    pub(super) gpu: String,
    pub(super) ranks: u32,
    pub(super) registered: bool,
    /// What rivals are, with versions; empty where there are none.
    pub(super) rivals: String,
    /// Most that goes over the link each way while both ways are busy, 10^9 bytes a second.
    pub(super) link: Option<f64>,
    pub(super) lines: Vec<Line>,
}

impl Side {
    /// Elements that are wrong, where they were looked at.
    fn is_wrong(&self) -> bool {
        self.wrong.is_some_and(|wrong| wrong > 0)
    }

    /// Figures that may be shown.
    pub(super) fn shown(&self) -> Option<Figures> {
        self.figures.filter(|_| !self.is_wrong())
    }
}

impl Line {
    /// Of a call, without times.
    pub(super) fn new(call: &Call, ranks: u32) -> Self {
        let nothing = Side { figures: None, wrong: None };
        let is_broadcast = call.kind == crossmesh::collective::Kind::Broadcast;
        Self {
            bytes: call.total_bytes(ranks).unwrap_or(u64::MAX),
            count: call.count,
            dtype: type_name(call.dtype),
            operation: if call.kind.reduces() { call.operation.name() } else { "none" },
            root: if is_broadcast { i64::from(call.root) } else { -1 },
            mode: "",
            l2: "",
            algorithm: "",
            blocks: 0,
            threads: 0,
            bus_factor: call.bus_factor(ranks),
            out_of_place: nothing,
            in_place: nothing,
            host: None,
            rivals: Vec::new(),
        }
    }

    /// How long this took over how long a rival took, medians.
    pub(super) fn ratio(&self, rival: &str) -> Option<f64> {
        let other = self.rivals.iter().find(|time| time.rival == rival)?.p50?;
        Some(self.out_of_place.shown()?.p50 / other)
    }

    fn side(&self, side: &Side, text: &mut String) {
        let wrong = side.wrong.map_or("N/A".to_string(), |wrong| wrong.to_string());
        match side.shown() {
            Some(figures) => {
                let algorithm = rate(self.bytes, figures.mean);
                let bus = algorithm * self.bus_factor;
                let _ = write!(text, " {:>9.2} {algorithm:>8.2} {bus:>8.2} {wrong:>6}", figures.mean);
            }
            None => {
                let _ = write!(text, " {:>9} {:>8} {:>8} {wrong:>6}", "-", "-", "-");
            }
        }
    }

    /// One line of the table.
    pub(super) fn text(&self, link: Option<f64>, rivals: &[&str]) -> String {
        let mut text = format!(
            "{:>11} {:>10} {:>8} {:>6} {:>5} {:>6} {:>5} {:>14} {:>6}",
            self.bytes,
            self.count,
            self.dtype,
            self.operation,
            self.root,
            self.mode,
            self.l2,
            self.algorithm,
            self.blocks
        );
        self.side(&self.out_of_place, &mut text);
        self.side(&self.in_place, &mut text);
        let number = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.2}"));
        let shown = self.out_of_place.shown();
        let share = shown.zip(link).map(|(figures, link)| rate(self.bytes, figures.p50) * self.bus_factor / link);
        let columns =
            [shown.map(|figures| figures.p50), shown.map(|figures| figures.p99), shown.map(|figures| figures.skew)];
        for column in columns.into_iter().chain([self.host, share.filter(|_| self.bytes >= super::LARGE)]) {
            let _ = write!(text, " {:>8}", number(column));
        }
        for rival in rivals {
            let time = self.rivals.iter().find(|time| time.rival == *rival).and_then(|time| time.p50);
            let _ = write!(text, " {:>9} {:>6}", number(time), number(self.ratio(rival)));
        }
        text
    }
}

/// Head of the table.
pub(super) fn head(rivals: &[&str]) -> String {
    let mut text = format!(
        "#{:>10} {:>10} {:>8} {:>6} {:>5} {:>6} {:>5} {:>14} {:>6}",
        "size", "count", "type", "redop", "root", "mode", "L2", "algo", "blocks"
    );
    for _ in ["out of place", "in place"] {
        let _ = write!(text, " {:>9} {:>8} {:>8} {:>6}", "time", "algbw", "busbw", "#wrong");
    }
    for column in ["p50", "p99", "skew", "host", "link"] {
        let _ = write!(text, " {column:>8}");
    }
    for rival in rivals {
        let _ = write!(text, " {rival:>9} {:>6}", "ratio");
    }
    text.push_str("\n#     times in us: mean out of place and in place (of the slowest rank), then out of place: median, 99th percentile, skew, the host's; rates in GB/s");
    text
}

impl Results {
    /// What is wrong, in words.
    pub(super) fn complaint(&self) -> Option<BenchError> {
        let wrong = self.lines.iter().flat_map(|line| [(line, line.out_of_place), (line, line.in_place)]);
        let wrong = wrong.filter(|(_, side)| side.is_wrong());
        let words: Vec<String> = wrong
            .map(|(line, side)| {
                let Line { bytes, dtype, mode, algorithm, .. } = line;
                format!(
                    "{} elements of {} of {bytes} bytes of {dtype} ({mode}, {algorithm})",
                    side.wrong.unwrap_or(0),
                    self.kind
                )
            })
            .collect();
        (!words.is_empty()).then(|| BenchError::Wrong(words.join("; ")))
    }

    /// Without the times of what was wrong.
    pub(super) fn for_json(mut self) -> Self {
        for line in &mut self.lines {
            for side in [&mut line.out_of_place, &mut line.in_place] {
                side.figures = side.shown();
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::collective::{Kind, ReduceOperation};
    use crossmesh::layout::Dtype;

    fn line(wrong: u64) -> Line {
        let call = Call {
            kind: Kind::AllReduce,
            count: 1 << 20,
            dtype: Dtype::BF16,
            operation: ReduceOperation::Sum,
            root: 0,
        };
        let figures = Figures { mean: 10.0, p50: 8.0, p99: 12.0, skew: 0.25 };
        let side = Side { figures: Some(figures), wrong: Some(wrong) };
        let rival = RivalTime { rival: "nccl", what: "all_reduce".into(), p50: Some(16.0), p99: None };
        Line {
            mode: "graph",
            l2: "warm",
            out_of_place: side,
            in_place: side,
            rivals: vec![rival],
            ..Line::new(&call, 2)
        }
    }

    #[test]
    fn columns_stand_under_their_names() {
        let rivals = ["nccl"];
        let (head, text) = (head(&rivals), line(0).text(Some(524.288), &rivals));
        let first = head.lines().next().unwrap();
        assert_eq!(first.len(), text.len());
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(
            words.len(),
            first.trim_start_matches('#').split_whitespace().count() - 1,
            "the name of the algorithm is empty"
        );
        assert!(text.contains(" 209.72   209.72      0 "), "{text}");
        assert!(text.ends_with("8.00    12.00     0.25        -     0.50     16.00   0.50"), "{text}");
    }

    #[test]
    fn what_is_wrong_has_no_time() {
        let text = line(3).text(Some(1.0), &["nccl"]);
        assert!(!text.contains("10.00") && !text.contains("8.00") && !text.contains("0.50"), "{text}");
        let results = |wrong| Results {
            crossmesh: "test",
            kind: "all_reduce",
            gpu: "GPU".into(),
            ranks: 2,
            registered: false,
            rivals: String::new(),
            link: None,
            lines: vec![line(wrong)],
        };
        assert!(results(0).complaint().is_none());
        assert!(results(3).complaint().unwrap().to_string().contains("3 elements of all_reduce of 2097152 bytes"));
        assert_eq!(results(3).for_json().lines[0].in_place.figures, None);
    }
}
