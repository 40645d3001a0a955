//! Bytes between domains as bands. In: boxes of domains, bytes of every pair. Out: SVG. Guarantee: a band is as wide as
//! its bytes; bands between domains of one side go round it, which is where a ring is seen.

use super::shape::{Labels, share};
use crate::markup::escape;
use crossmesh::base::bytes::human;
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDEST: f64 = 34.0;
/// Bands that are labelled.
const MOST_LABELS: usize = 24;
/// How far an arc goes out for its height, at least and at most.
const BULGE: f64 = 0.4;
const OUT: [f64; 2] = [34.0, 88.0];
/// The middle of a cubic arc lies so far on its way out.
const APEX: f64 = 0.75;

/// A domain as a box.
pub(super) struct Place {
    /// 0 left, 1 right.
    pub(super) side: usize,
    /// Left and right edge.
    pub(super) x: [f64; 2],
    pub(super) y: f64,
    pub(super) height: f64,
}

/// Bytes from one domain to another.
pub(super) struct Crossing {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bytes: u64,
}

/// Which sides have bands between domains of their own.
pub(super) fn arcs(crossing: &[Crossing], places: &BTreeMap<u32, Place>) -> [bool; 2] {
    [0, 1].map(|side| crossing.iter().any(|band| [band.from, band.to].iter().all(|domain| places[domain].side == side)))
}

/// Draws all, between domains that have places.
pub(super) fn bands(text: &mut String, crossing: &[Crossing], places: &BTreeMap<u32, Place>) {
    let most = crossing.iter().map(|band| band.bytes).max().unwrap_or(0);
    let mut labels = Labels::default();
    for (band, [from_y, to_y]) in crossing.iter().zip(ends(crossing, places)) {
        let (from, to) = (&places[&band.from], &places[&band.to]);
        let width = (WIDEST * share(band.bytes, most)).max(1.0);
        let says = format!("domain {} to domain {}: {}", band.from, band.to, human(band.bytes));
        let place = if from.side == to.side {
            arc(text, from, [from_y, to_y], width, &says)
        } else {
            across(text, [from, to], [from_y, to_y], width, &says)
        };
        if crossing.len() <= MOST_LABELS {
            labels.add(place, human(band.bytes));
        }
    }
    labels.draw(text);
}

/// Where every band begins and ends: those at one edge of a box stand below each other, in order.
fn ends(crossing: &[Crossing], places: &BTreeMap<u32, Place>) -> Vec<[f64; 2]> {
    let edge = |domain: u32, other: u32| (domain, places[&domain].side == places[&other].side);
    let pairs = || crossing.iter().map(|band| [(band.from, band.to), (band.to, band.from)]);
    let mut counts: BTreeMap<(u32, bool), usize> = BTreeMap::new();
    for (domain, other) in pairs().flatten() {
        *counts.entry(edge(domain, other)).or_default() += 1;
    }
    let mut taken: BTreeMap<(u32, bool), usize> = BTreeMap::new();
    let mut end = |(domain, other)| {
        let edge = edge(domain, other);
        let number = taken.entry(edge).or_default();
        *number += 1;
        places[&domain].y + places[&domain].height * *number as f64 / (counts[&edge] + 1) as f64
    };
    pairs().map(|pair| pair.map(&mut end)).collect()
}

/// A band from one side to the other; the place of its label.
fn across(text: &mut String, [from, to]: [&Place; 2], [from_y, to_y]: [f64; 2], width: f64, says: &str) -> (f64, f64) {
    let direction = if from.side == 0 { 1.0 } else { -1.0 };
    let (from_x, to_x) = (from.x[1 - from.side], to.x[1 - to.side]);
    let tip = tip(width);
    let end = to_x - direction * tip;
    let middle = (from_x + end) / 2.0;
    path(text, "flow", [from_x, from_y, middle, from_y, middle, to_y, end, to_y], width, says);
    head(text, "flow", [to_x, to_y, direction * tip], width);
    (if direction > 0.0 { from_x + 10.0 } else { from_x - 70.0 }, from_y + 4.0)
}

/// A band round one side; the place of its label.
fn arc(text: &mut String, from: &Place, [from_y, to_y]: [f64; 2], width: f64, says: &str) -> (f64, f64) {
    let direction = if from.side == 0 { -1.0 } else { 1.0 };
    let x = from.x[from.side];
    let out = direction * ((to_y - from_y).abs() * BULGE).clamp(OUT[0], OUT[1]);
    let tip = tip(width);
    let end = x + direction * tip;
    path(text, "ring", [x, from_y, x + out, from_y, end + out, to_y, end, to_y], width, says);
    head(text, "ring", [x, to_y, -direction * tip], width);
    let outside = x + out * APEX + direction * (width / 2.0 + 6.0);
    (if direction > 0.0 { outside } else { (outside - 62.0).max(0.0) }, (from_y + to_y) / 2.0 + 4.0)
}

fn tip(width: f64) -> f64 {
    (width * 0.5).clamp(6.0, 14.0)
}

fn path(text: &mut String, class: &str, curve: [f64; 8], width: f64, says: &str) {
    let [x, y, points @ ..] = curve;
    let points: Vec<String> = points.iter().map(|place| format!("{place:.1}")).collect();
    let says = escape(says);
    let _ = writeln!(
        text,
        "<path d=\"M{x:.1} {y:.1}C{}\" class=\"band {class}\" stroke-width=\"{width:.1}\"><title>{says}</title></path>",
        points.join(" ")
    );
}

/// The head of a band that ends at `(x, y)`, from `length` before.
fn head(text: &mut String, class: &str, [x, y, length]: [f64; 3], width: f64) {
    let half = width / 2.0 + 4.0;
    let base = x - length;
    let _ = writeln!(
        text,
        "<path d=\"M{base:.1} {:.1}L{x:.1} {y:.1}L{base:.1} {:.1}z\" class=\"head {class}\"/>",
        y - half,
        y + half
    );
}
