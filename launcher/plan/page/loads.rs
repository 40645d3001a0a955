//! Bytes of every link. In: a report. Out: a picture with two rows of bars: cards and NVLinks, sent upwards and received
//! downwards. Guarantee: ranks stand by domain; where there are more than fit, a bar is the most of its neighbours.

use super::shape::{WIDTH, line, open, rectangle, share, words};
use crate::plan::report::{RankReport, Report};
use crossmesh::base::bytes::human;

const LEFT: f64 = 90.0;
const HALF: f64 = 70.0;
const TITLE: f64 = 22.0;
const ROW: f64 = TITLE + 2.0 * HALF + 34.0;
/// Bars that can be told apart.
const MOST_BARS: usize = 700;
const GAP: f64 = 8.0;
const WIDEST: f64 = 32.0;

/// Ranks of one domain that share a bar.
struct Bar<'a> {
    domain: u32,
    ranks: Vec<&'a RankReport>,
}

/// The picture.
pub(super) fn picture(report: &Report) -> String {
    let bars = bars(&report.per_rank);
    let mut text = open(2.0 * ROW, "bytes that every card and every NVLink sends and receives");
    let cards: [fn(&RankReport) -> u64; 2] = [|rank| rank.network_sent, |rank| rank.network_received];
    let nvlinks: [fn(&RankReport) -> u64; 2] = [|rank| rank.nvlink_sent, |rank| rank.nvlink_received];
    row(&mut text, 0.0, "network cards", &bars, cards, Some(report.nic_bound_bytes));
    row(&mut text, ROW, "NVLinks", &bars, nvlinks, None);
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

fn row(
    text: &mut String,
    top: f64,
    title: &str,
    bars: &[Bar<'_>],
    [sent, received]: [fn(&RankReport) -> u64; 2],
    bound: Option<u64>,
) {
    let most_of = |bar: &Bar<'_>, of: fn(&RankReport) -> u64| bar.ranks.iter().map(|rank| of(rank)).max().unwrap_or(0);
    let most = bars.iter().map(|bar| most_of(bar, sent).max(most_of(bar, received))).max().unwrap_or(0);
    let middle = top + TITLE + HALF;
    let gaps = bars.windows(2).filter(|pair| pair[0].domain != pair[1].domain).count() as f64;
    let step = ((WIDTH - LEFT - 10.0 - gaps * GAP) / bars.len().max(1) as f64).min(WIDEST);
    words(text, (LEFT, top + 14.0), "start", "", &format!("{title}, {} at most", human(most)));
    words(text, (LEFT - 8.0, middle - HALF + 10.0), "end", "quiet", &human(most));
    words(text, (LEFT - 8.0, middle + 4.0), "end", "quiet", "0");
    words(text, (LEFT - 8.0, middle + HALF), "end", "quiet", &human(most));
    let mut x = LEFT;
    let mut domain_begins = x;
    for (number, bar) in bars.iter().enumerate() {
        let class = match (bar.ranks[0].is_source, bar.ranks[0].is_destination) {
            (true, _) => "class=\"source\"",
            (_, true) => "class=\"destination\"",
            _ => "class=\"neither\"",
        };
        let name = match bar.ranks.as_slice() {
            [rank] => format!("rank {}", rank.rank),
            ranks => format!("ranks {} to {}, the most", ranks[0].rank, ranks[ranks.len() - 1].rank),
        };
        let width = step * 0.85;
        let (up, down) = (most_of(bar, sent), most_of(bar, received));
        let height = HALF * share(up, most);
        rectangle(text, [x, middle - height, width, height], class, &format!("{name}: sent {}", human(up)));
        let height = HALF * share(down, most);
        rectangle(text, [x, middle, width, height], class, &format!("{name}: received {}", human(down)));
        x += step;
        if bars.get(number + 1).is_none_or(|next| next.domain != bar.domain) {
            line(text, [domain_begins, middle, x - 0.5, middle], "axis");
            let label = format!("domain {}", bar.domain);
            if x - domain_begins > 50.0 {
                words(text, ((domain_begins + x) / 2.0, middle + HALF + 16.0), "middle", "quiet", &label);
            }
            x += GAP;
            domain_begins = x;
        }
    }
    if let Some(bound) = bound.filter(|&bound| bound > 0 && bound <= most) {
        for y in [middle - HALF * share(bound, most), middle + HALF * share(bound, most)] {
            line(text, [LEFT, y, WIDTH - 10.0, y], "limit");
        }
        let says = format!("dashed: at least {} through the busiest card", human(bound));
        words(text, (WIDTH - 10.0, top + 14.0), "end", "quiet", &says);
    }
}
