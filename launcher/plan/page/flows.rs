//! Meshes, and the bytes between their domains. In: a job, its chosen flows. Out: a picture: source domains on the left,
//! destination domains on the right, a band for every pair of domains as wide as its bytes. Guarantee: bands add up to
//! the bytes that cross domains; what does not fit is said.

use super::shape::{WIDTH, open, rectangle, share, words};
use crate::plan::evaluate::Evaluated;
use crate::plan::job::Job;
use crate::plan::report::RankReport;
use crossmesh::base::bytes::human;
use crossmesh::route::Flow;
use crossmesh::topology::Topology;
use std::collections::BTreeMap;
use std::fmt::Write;

const COLUMNS: usize = 16;
const CELL: f64 = 12.0;
const STEP: f64 = 14.0;
/// Between nodes of a row.
const NODE_GAP: f64 = 3.0;
const BOX: f64 = 264.0;
const HEAD: f64 = 42.0;
const BETWEEN: f64 = 18.0;
/// Left edges of the two columns of boxes.
const SIDES: [f64; 2] = [70.0, WIDTH - 70.0 - BOX];
const WIDEST_BAND: f64 = 34.0;
/// Domains of a side that are drawn.
const MOST_DOMAINS: usize = 24;
/// Bands that are labelled.
const MOST_LABELS: usize = 16;

/// A domain as a box.
struct Place {
    side: usize,
    y: f64,
    height: f64,
}

/// The picture.
pub(super) fn picture(job: &Job, one: &Evaluated) -> String {
    let mut domains: BTreeMap<u32, Vec<&RankReport>> = BTreeMap::new();
    for rank in &one.report.per_rank {
        domains.entry(rank.domain).or_default().push(rank);
    }
    let mut bottoms = [22.0; 2];
    let mut drawn = [0usize; 2];
    let mut places: BTreeMap<u32, Place> = BTreeMap::new();
    for (&domain, ranks) in &domains {
        let side = usize::from(!ranks.iter().any(|rank| rank.is_source));
        drawn[side] += 1;
        if drawn[side] > MOST_DOMAINS {
            continue;
        }
        let height = HEAD + ranks.len().div_ceil(COLUMNS) as f64 * STEP + 6.0;
        places.insert(domain, Place { side, y: bottoms[side], height });
        bottoms[side] += height + BETWEEN;
    }
    let mut text = open(bottoms[0].max(bottoms[1]) + 10.0, "ranks by domain, and the bytes between domains");
    text.push_str(
        "<defs><marker id=\"head\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" markerWidth=\"9\" markerHeight=\"9\" \
         markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" class=\"head\"/></marker></defs>\n",
    );
    for (side, name) in ["source", "destination"].into_iter().enumerate() {
        let more = drawn[side].saturating_sub(MOST_DOMAINS);
        let more = if more > 0 { format!(" (and {more} more domains)") } else { String::new() };
        words(&mut text, (SIDES[side], 14.0), "start", "quiet", &format!("{name}{more}"));
    }
    bands(&mut text, &crossing(&one.flows, &job.machine.topology, &job.domain_labels), &places);
    let most = one.report.per_rank.iter().map(busiest).max().unwrap_or(0);
    for (&domain, place) in &places {
        mesh(&mut text, domain, place, &domains[&domain], most);
    }
    text + "</svg>"
}

fn busiest(rank: &RankReport) -> u64 {
    rank.network_sent.max(rank.network_received)
}

/// Bytes by the domains that they leave and enter.
fn crossing(flows: &[Flow], topology: &Topology, labels: &[u32]) -> BTreeMap<(u32, u32), u64> {
    let mut crossing = BTreeMap::new();
    for flow in flows {
        for node in &flow.nodes {
            let Some(parent) = node.parent else { continue };
            let from = topology.domain(flow.nodes[parent as usize].rank);
            let to = topology.domain(node.rank);
            if from != to {
                *crossing.entry((labels[from.index()], labels[to.index()])).or_default() += flow.bytes;
            }
        }
    }
    crossing
}

fn mesh(text: &mut String, domain: u32, place: &Place, ranks: &[&RankReport], most: u64) {
    let x = SIDES[place.side];
    rectangle(text, [x, place.y, BOX, place.height], "rx=\"6\" class=\"box\"", "");
    words(text, (x + 8.0, place.y + 16.0), "start", "", &format!("domain {domain}, {} ranks", ranks.len()));
    let read: u64 = ranks.iter().map(|rank| rank.nvlink_received).sum();
    let inside = if read > 0 { format!("{} over NVLink inside", human(read)) } else { "nothing over NVLink".into() };
    words(text, (x + 8.0, place.y + 32.0), "start", "quiet", &inside);
    let mut at = x + 8.0;
    for (number, rank) in ranks.iter().enumerate() {
        if number % COLUMNS == 0 {
            at = x + 8.0;
        } else if ranks[number - 1].node != rank.node {
            at += NODE_GAP;
        }
        let y = place.y + HEAD + (number / COLUMNS) as f64 * STEP;
        let class = match (rank.is_source, rank.is_destination) {
            (true, _) => "source",
            (_, true) => "destination",
            _ => "neither",
        };
        let attributes =
            format!("rx=\"2\" class=\"{class}\" fill-opacity=\"{:.2}\"", 0.15 + 0.85 * share(busiest(rank), most));
        let says = format!(
            "rank {} on node {}, GPU {}: network sent {}, received {}; NVLink sent {}, received {}",
            rank.rank,
            rank.node,
            rank.gpu,
            human(rank.network_sent),
            human(rank.network_received),
            human(rank.nvlink_sent),
            human(rank.nvlink_received)
        );
        rectangle(text, [at, y, CELL, CELL], &attributes, &says);
        at += STEP;
    }
}

/// A band for every pair; those of one side go round it, which is where the ring is seen.
fn bands(text: &mut String, crossing: &BTreeMap<(u32, u32), u64>, places: &BTreeMap<u32, Place>) {
    let most = crossing.values().copied().max().unwrap_or(0);
    let drawn: Vec<(u32, u32, u64)> = crossing
        .iter()
        .filter(|((from, to), _)| places.contains_key(from) && places.contains_key(to))
        .map(|(&(from, to), &bytes)| (from, to, bytes))
        .collect();
    // Ends of bands at a box stand below each other, in order.
    let mut ends: BTreeMap<(u32, bool), (usize, usize)> = BTreeMap::new();
    let edge = |domain: u32, other: u32| (domain, places[&domain].side == places[&other].side);
    for &(from, to, _) in &drawn {
        ends.entry(edge(from, to)).or_default().1 += 1;
        ends.entry(edge(to, from)).or_default().1 += 1;
    }
    for &(from, to, bytes) in &drawn {
        let mut y = |domain: u32, other: u32| {
            let end = ends.entry(edge(domain, other)).or_default();
            end.0 += 1;
            places[&domain].y + places[&domain].height * end.0 as f64 / (end.1 + 1) as f64
        };
        let (from_y, to_y) = (y(from, to), y(to, from));
        let width = (WIDEST_BAND * share(bytes, most)).max(1.0);
        let label = (drawn.len() <= MOST_LABELS).then(|| human(bytes));
        let says = format!("domain {from} to domain {to}: {}", human(bytes));
        let ends = [(places[&from].side, from_y), (places[&to].side, to_y)];
        band(text, ends, width, label.as_deref(), &says);
    }
}

fn band(text: &mut String, ends: [(usize, f64); 2], width: f64, label: Option<&str>, says: &str) {
    let [(from_side, from_y), (to_side, to_y)] = ends;
    let outside = |side: usize| if side == 0 { SIDES[0] } else { SIDES[1] + BOX };
    let inside = |side: usize| if side == 0 { SIDES[0] + BOX } else { SIDES[1] };
    let (class, from_x, to_x, bend, middle) = if from_side == to_side {
        let (x, out) = (outside(from_side), if from_side == 0 { -58.0 } else { 58.0 });
        ("ring", x, x, [x + out, x + out], x + out * 0.8)
    } else {
        let (from_x, to_x) = (inside(from_side), inside(to_side));
        let middle = (from_x + to_x) / 2.0;
        ("flow", from_x, to_x, [middle, middle], middle)
    };
    let [first, second] = bend;
    let _ = writeln!(
        text,
        "<path d=\"M{from_x:.1} {from_y:.1}C{first:.1} {from_y:.1} {second:.1} {to_y:.1} {to_x:.1} {to_y:.1}\" \
         class=\"{class}\" stroke-width=\"{width:.1}\" marker-end=\"url(#head)\"><title>{}</title></path>",
        super::escape(says)
    );
    if let Some(label) = label {
        let anchor = if from_side == to_side && from_side == 1 { "end" } else { "middle" };
        let x = if anchor == "end" { WIDTH - 2.0 } else { middle };
        words(text, (x, (from_y + to_y) / 2.0 + 4.0), anchor, "", label);
    }
}
