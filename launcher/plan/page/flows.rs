//! Meshes, and the bytes between their domains. In: a job, its chosen flows. Out: a picture: source domains on the left,
//! destination domains on the right, a square for every rank, a band for every pair of domains as wide as its bytes.
//! Guarantee: bands add up to the bytes that cross domains; what does not fit is said.

use super::bands::{Crossing, Place, arcs, bands};
use super::shape::{WIDTH, legend, open, rectangle, share, words};
use crate::plan::evaluate::Evaluated;
use crate::plan::job::Job;
use crate::plan::report::RankReport;
use crossmesh::base::Rank;
use crossmesh::base::bytes::human;
use crossmesh::route::{Flow, Sums};
use crossmesh::topology::Topology;
use std::collections::{BTreeMap, BTreeSet};

const BOX: f64 = 264.0;
const HEAD: f64 = 42.0;
const FOOT: f64 = 16.0;
const BETWEEN: f64 = 18.0;
const TOP: f64 = 26.0;
const PADDING: f64 = 8.0;
/// Beside the boxes of a side, with and without bands between its domains.
const MARGINS: [f64; 2] = [2.0, 158.0];
/// Domains of a side that are drawn.
const MOST_DOMAINS: usize = 24;
/// Letters of a heading.
const MOST_LETTERS: usize = 56;
/// Ranks of a node from which on nodes stand apart.
const LARGE_NODE: usize = 4;
const NODE_GAP: f64 = 4.0;

/// How the ranks of a domain are laid out.
#[derive(Clone, Copy)]
struct Squares {
    columns: usize,
    side: f64,
    step: f64,
    numbered: bool,
}

const LARGE: Squares = Squares { columns: 8, side: 26.0, step: 29.5, numbered: true };
const SMALL: Squares = Squares { columns: 16, side: 12.0, step: 14.2, numbered: false };

type Domains<'a> = BTreeMap<u32, Vec<&'a RankReport>>;

/// The picture.
pub(super) fn picture(job: &Job, one: &Evaluated) -> String {
    let mut domains = Domains::new();
    for rank in &one.report.per_rank {
        domains.entry(rank.domain).or_default().push(rank);
    }
    let most_ranks = domains.values().map(Vec::len).max().unwrap_or(0);
    let squares = if most_ranks <= 2 * LARGE.columns { LARGE } else { SMALL };
    let (mut places, bottom, drawn) = places(&domains, squares);
    let all = crossing(&one.flows, &job.machine.topology, &job.domain_labels);
    let shown: Vec<Crossing> =
        all.into_iter().filter(|band| places.contains_key(&band.from) && places.contains_key(&band.to)).collect();
    let margins = arcs(&shown, &places).map(|has| MARGINS[usize::from(has)]);
    for place in places.values_mut() {
        let left = if place.side == 0 { margins[0] } else { WIDTH - margins[1] - BOX };
        place.x = [left, left + BOX];
    }
    let mut text = open(bottom + 28.0, "ranks by domain, and the bytes between domains");
    headings(&mut text, job, &places, drawn);
    bands(&mut text, &shown, &places);
    let most = one.report.per_rank.iter().map(busiest).max().unwrap_or(0);
    let most_inside = domains.values().map(|ranks| inside(ranks)).max().unwrap_or(0);
    for (&domain, place) in &places {
        let ranks = &domains[&domain];
        frame(&mut text, domain, place, ranks, most_inside);
        mesh(&mut text, job, place, ranks, squares, most);
    }
    meanings(&mut text, bottom + 20.0);
    text + "</svg>"
}

/// A box for every domain that is drawn, the bottom of the lowest, and how many domains each side has.
fn places(domains: &Domains<'_>, squares: Squares) -> (BTreeMap<u32, Place>, f64, [usize; 2]) {
    let mut bottoms = [TOP; 2];
    let mut drawn = [0usize; 2];
    let mut places = BTreeMap::new();
    for (&domain, ranks) in domains {
        let side = usize::from(!ranks.iter().any(|rank| rank.is_source));
        drawn[side] += 1;
        if drawn[side] > MOST_DOMAINS {
            continue;
        }
        let height = HEAD + ranks.len().div_ceil(squares.columns) as f64 * squares.step + FOOT;
        places.insert(domain, Place { side, x: [0.0; 2], y: bottoms[side], height });
        bottoms[side] += height + BETWEEN;
    }
    let bottom = bottoms[0].max(bottoms[1]);
    for place in places.values_mut() {
        // The shorter column stands in the middle of the other.
        place.y += (bottom - bottoms[place.side]) / 2.0;
    }
    (places, bottom, drawn)
}

fn headings(text: &mut String, job: &Job, places: &BTreeMap<u32, Place>, drawn: [usize; 2]) {
    for (side, name) in ["source", "destination"].into_iter().enumerate() {
        let Some(place) = places.values().find(|place| place.side == side) else { continue };
        let mut heading = format!("{name}: {}", job.sides[side]);
        if drawn[side] > MOST_DOMAINS {
            heading += &format!(" ({} more domains)", drawn[side] - MOST_DOMAINS);
        }
        if heading.chars().count() > MOST_LETTERS {
            heading = heading.chars().take(MOST_LETTERS - 1).chain(['…']).collect();
        }
        let anchor = ["start", "end"][side];
        words(text, (place.x[side], place.y - 10.0), anchor, "strong", &heading);
    }
}

fn meanings(text: &mut String, y: f64) {
    let meanings = [
        ("source", "source rank"),
        ("destination", "destination rank"),
        ("flow", "into a domain"),
        ("ring", "on to the next domain"),
        ("nvlink", "copied inside over NVLink"),
    ];
    legend(text, (MARGINS[0], y), &meanings);
}

fn busiest(rank: &RankReport) -> u64 {
    rank.network_sent.max(rank.network_received)
}

fn inside(ranks: &[&RankReport]) -> u64 {
    ranks.iter().map(|rank| rank.nvlink_received).sum()
}

/// Bytes by the domains that they leave and enter.
fn crossing(flows: &[Flow], topology: &Topology, labels: &[u32]) -> Vec<Crossing> {
    let mut crossing: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let mut add = |from: Rank, to: Rank, bytes: u64| {
        let (from, to) = (topology.domain(from), topology.domain(to));
        if from != to {
            *crossing.entry((labels[from.index()], labels[to.index()])).or_default() += bytes;
        }
    };
    for flow in flows {
        for (from, to, bytes) in flow.sums.iter().flat_map(Sums::edges) {
            add(from, to, bytes);
        }
        for node in &flow.nodes {
            if let Some(parent) = node.parent {
                add(flow.nodes[parent as usize].rank, node.rank, flow.bytes);
            }
        }
    }
    crossing.into_iter().map(|((from, to), bytes)| Crossing { from, to, bytes }).collect()
}

/// The box of a domain, with a bar for what its ranks copy from each other.
fn frame(text: &mut String, domain: u32, place: &Place, ranks: &[&RankReport], most: u64) {
    let [x, right] = place.x;
    rectangle(text, [x, place.y, right - x, place.height], "rx=\"6\" class=\"box\"", "");
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    words(text, (x + PADDING, place.y + 16.0), "start", "", &format!("domain {domain}, {} {noun}", ranks.len()));
    let bytes = inside(ranks);
    let says = match bytes {
        0 => "nothing over NVLink".to_string(),
        bytes => format!("{} inside over NVLink", human(bytes)),
    };
    words(text, (x + PADDING, place.y + 32.0), "start", "quiet", &says);
    let length = (right - x - 2.0 * PADDING) * share(bytes, most);
    if bytes > 0 {
        let bar = [x + PADDING, place.y + place.height - FOOT + 4.0, length, 6.0];
        rectangle(text, bar, "rx=\"2\" class=\"nvlink\"", &says);
    }
}

fn mesh(text: &mut String, job: &Job, place: &Place, ranks: &[&RankReport], squares: Squares, most: u64) {
    let nodes: BTreeSet<u32> = ranks.iter().map(|rank| rank.node).collect();
    let nodes_apart = ranks.len() >= LARGE_NODE * nodes.len();
    let mut x = 0.0;
    for (number, rank) in ranks.iter().enumerate() {
        if number % squares.columns == 0 {
            x = place.x[0] + PADDING;
        } else if nodes_apart && ranks[number - 1].node != rank.node {
            x += NODE_GAP;
        }
        let y = place.y + HEAD + (number / squares.columns) as f64 * squares.step;
        square(text, rank, [x, y, squares.side], squares.numbered, (share(busiest(rank), most), &says(job, rank)));
        x += squares.step;
    }
}

/// A rank; the darker, the larger its load, from 0 to 1.
fn square(text: &mut String, rank: &RankReport, [x, y, side]: [f64; 3], numbered: bool, (load, says): (f64, &str)) {
    let class = match (rank.is_source, rank.is_destination) {
        (true, _) => "source",
        (_, true) => "destination",
        _ => "neither",
    };
    let opacity = 0.15 + 0.85 * load;
    let attributes = format!("rx=\"2\" class=\"{class}\" fill-opacity=\"{opacity:.2}\"");
    rectangle(text, [x, y, side, side], &attributes, says);
    if numbered {
        let class = if opacity > 0.6 { "on" } else { "" };
        words(text, (x + side / 2.0, y + side / 2.0 + 4.0), "middle", class, &rank.rank.to_string());
    }
}

fn says(job: &Job, rank: &RankReport) -> String {
    let place = job.coordinates.get(rank.rank as usize).filter(|place| !place.is_empty());
    let place = place.map_or(String::new(), |place| format!(" ({place})"));
    format!(
        "rank {}{} on node {}, GPU {}: network sent {}, received {}; NVLink sent {}, received {}",
        rank.rank,
        place,
        rank.node,
        rank.gpu,
        human(rank.network_sent),
        human(rank.network_received),
        human(rank.nvlink_sent),
        human(rank.nvlink_received)
    )
}
