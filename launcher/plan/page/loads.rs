//! Bytes of every link. In: a report. Out: a picture with two rows of bars: cards and NVLinks, sent upwards and received
//! downwards. Guarantee: ranks stand by domain; where there are more than fit, a bar is the most of its neighbours.

use super::shape::{WIDTH, legend, line, open, rectangle, share, words};
use crate::plan::report::{RankReport, Report};
use crossmesh::base::bytes::human;

const LEFT: f64 = 90.0;
const HALF: f64 = 66.0;
const TITLE: f64 = 22.0;
const ROW: f64 = TITLE + 2.0 * HALF + 38.0;
const LEGEND: f64 = 18.0;
/// Bars that can be told apart.
const MOST_BARS: usize = 700;
const GAP: f64 = 10.0;
const WIDEST: f64 = 40.0;
/// A domain whose bars are narrower together has no room for its name.
const NAMED: f64 = 60.0;

/// Ranks of one domain that share a bar.
struct Bar<'a> {
    domain: u32,
    ranks: Vec<&'a RankReport>,
}

/// What a row shows.
struct Row {
    title: &'static str,
    sent: fn(&RankReport) -> u64,
    received: fn(&RankReport) -> u64,
    /// Of the bars upwards and downwards.
    classes: fn(&RankReport) -> [&'static str; 2],
    /// What the busiest link carries at least.
    bound: Option<u64>,
}

/// The picture.
pub(super) fn picture(report: &Report) -> String {
    let bars = bars(&report.per_rank);
    let mut text = open(LEGEND + 2.0 * ROW, "bytes that every card and every NVLink sends and receives");
    let meanings = [
        ("source", "sent by a source"),
        ("destination", "received from another domain"),
        ("ring", "passed on to the next domain"),
        ("nvlink", "over NVLink inside a domain"),
    ];
    legend(&mut text, (LEFT, 12.0), &meanings);
    let cards = Row {
        title: "network card of every rank",
        sent: |rank| rank.network_sent,
        received: |rank| rank.network_received,
        classes: |rank| [if rank.is_source { "source" } else { "ring" }, "destination"],
        bound: Some(report.nic_bound_bytes),
    };
    let nvlinks = Row {
        title: "NVLink of every rank",
        sent: |rank| rank.nvlink_sent,
        received: |rank| rank.nvlink_received,
        classes: |_| ["nvlink"; 2],
        bound: None,
    };
    row(&mut text, LEGEND, &cards, &bars);
    row(&mut text, LEGEND + ROW, &nvlinks, &bars);
    text + "</svg>"
}

fn bars(ranks: &[RankReport]) -> Vec<Bar<'_>> {
    let mut sorted: Vec<&RankReport> = ranks.iter().collect();
    sorted.sort_by_key(|rank| (rank.domain, rank.rank));
    let width = sorted.len().div_ceil(MOST_BARS).max(1);
    let domains = sorted.chunk_by(|one, other| one.domain == other.domain);
    domains
        .flat_map(|domain| domain.chunks(width))
        .map(|ranks| Bar { domain: ranks[0].domain, ranks: ranks.to_vec() })
        .collect()
}

impl Bar<'_> {
    fn most(&self, of: fn(&RankReport) -> u64) -> u64 {
        self.ranks.iter().map(|rank| of(rank)).max().unwrap_or(0)
    }

    fn name(&self) -> String {
        match self.ranks.as_slice() {
            [rank] => format!("rank {}", rank.rank),
            ranks => format!("ranks {} to {}, the most", ranks[0].rank, ranks[ranks.len() - 1].rank),
        }
    }
}

fn row(text: &mut String, top: f64, row: &Row, bars: &[Bar<'_>]) {
    let most = bars.iter().map(|bar| bar.most(row.sent).max(bar.most(row.received))).max().unwrap_or(0);
    let middle = top + TITLE + HALF;
    let gaps = bars.windows(2).filter(|pair| pair[0].domain != pair[1].domain).count() as f64;
    let step = ((WIDTH - LEFT - gaps * GAP) / bars.len().max(1) as f64).min(WIDEST);
    scale(text, row, (middle, most));
    let mut x = LEFT;
    let mut domain_begins = x;
    for (number, bar) in bars.iter().enumerate() {
        let [up_class, down_class] = (row.classes)(bar.ranks[0]).map(|class| format!("class=\"{class}\""));
        let (up, down) = (bar.most(row.sent), bar.most(row.received));
        let (width, height) = (step * 0.85, HALF * share(up, most));
        let says = |what: &str, bytes: u64| format!("{}: {what} {}", bar.name(), human(bytes));
        rectangle(text, [x, middle - height, width, height], &up_class, &says("sent", up));
        rectangle(text, [x, middle, width, HALF * share(down, most)], &down_class, &says("received", down));
        x += step;
        if bars.get(number + 1).is_none_or(|next| next.domain != bar.domain) {
            line(text, [domain_begins, middle, x - step * 0.15, middle], "axis");
            if x - domain_begins > NAMED {
                let place = ((domain_begins + x) / 2.0, middle + HALF + 17.0);
                words(text, place, "middle", "quiet", &format!("domain {}", bar.domain));
            }
            x += GAP;
            domain_begins = x;
        }
    }
    let end = x - GAP - step * 0.15;
    if let Some(bound) = row.bound.filter(|&bound| bound > 0 && bound <= most) {
        for y in [middle - HALF * share(bound, most), middle + HALF * share(bound, most)] {
            line(text, [LEFT, y, end, y], "limit");
        }
    }
}

/// The title and the numbers on the left of a row, whose middle and most bytes are given.
fn scale(text: &mut String, row: &Row, (middle, most): (f64, u64)) {
    let bound = row.bound.filter(|&bound| bound > 0 && bound <= most).map(human);
    let dashed = bound
        .map_or(String::new(), |bound| format!("; dashed: {bound}, which the busiest carries at least by any route"));
    let title = format!("{}, {} at most{dashed}", row.title, human(most));
    words(text, (LEFT, middle - HALF - 8.0), "start", "strong", &title);
    words(text, (LEFT - 8.0, middle - HALF + 10.0), "end", "quiet", &human(most));
    words(text, (LEFT - 8.0, middle - HALF + 24.0), "end", "quiet", "sent");
    words(text, (LEFT - 8.0, middle + HALF - 14.0), "end", "quiet", "received");
    words(text, (LEFT - 8.0, middle + HALF), "end", "quiet", &human(most));
}
