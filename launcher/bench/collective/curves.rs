//! Times by size as curves. In: points. Out: an SVG drawing with logarithmic axes. Guarantee: every curve has a colour and its name
//! beside its end; names are escaped.

use crate::bench::drawing::{open, place};
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 52.0;
const COLORS: [&str; 7] = ["#1f6fb2", "#d1495b", "#2e8b57", "#e08e0b", "#7a4fa3", "#5c5c5c", "#00868b"];
/// Distance of names that would stand on each other.
const LINE: f64 = 15.0;

/// A curve: (bytes, microseconds).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(u64, f64)>,
}

/// A size that is marked by a vertical line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mark {
    pub(super) name: String,
    pub(super) bytes: f64,
}

struct Axes {
    bytes: (f64, f64),
    times: (f64, f64),
}

/// The drawing.
pub(super) fn svg(title: &str, caption: &str, curves: &[Curve], marks: &[Mark]) -> String {
    let axes = Axes::of(curves);
    let mut text = open((WIDTH, HEIGHT), title, caption);
    axes.draw(&mut text);
    for mark in marks.iter().filter(|mark| (axes.bytes.0..=axes.bytes.1).contains(&mark.bytes)) {
        let x = axes.x(mark.bytes);
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>",
            HEIGHT - BOTTOM
        );
        place(&mut text, x + 3.0, TOP + 12.0, "start", "fill=\"#555\" font-size=\"10\"", &mark.name);
    }
    for (curve, color) in curves.iter().zip(COLORS.into_iter().cycle()) {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|&(bytes, time)| format!("{:.1},{:.1}", axes.x(bytes as f64), axes.y(time)))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
    }
    names(&mut text, &axes, curves);
    text.push_str("</svg>\n");
    text
}

/// Names beside the ends of the curves, apart from each other.
fn names(text: &mut String, axes: &Axes, curves: &[Curve]) {
    let ends = curves.iter().zip(COLORS.into_iter().cycle()).filter_map(|(curve, color)| {
        let &(bytes, time) = curve.points.last()?;
        Some((axes.y(time), axes.x(bytes as f64), color, curve.name.as_str()))
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut last = f64::MIN;
    for (y, x, color, name) in ends {
        let y = y.max(last + LINE);
        last = y;
        place(text, x + 6.0, y + 4.0, "start", &format!("fill=\"{color}\""), name);
    }
}

impl Axes {
    fn of(curves: &[Curve]) -> Self {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let range = |values: &mut dyn Iterator<Item = f64>| {
            let (low, high) = values.fold((f64::MAX, 0f64), |(low, high), value| (low.min(value), high.max(value)));
            if high > 0.0 { (low.max(1e-3), high.max(low * 2.0)) } else { (1.0, 2.0) }
        };
        Self {
            bytes: range(&mut points().map(|point| point.0.max(1) as f64)),
            times: range(&mut points().map(|point| point.1)),
        }
    }

    fn x(&self, bytes: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * share(bytes.max(1.0), self.bytes)
    }

    fn y(&self, time: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share(time, self.times)
    }

    fn draw(&self, text: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for power in (0..41).step_by(2) {
            let bytes = 2f64.powi(power);
            if (self.bytes.0..=self.bytes.1).contains(&bytes) {
                let x = self.x(bytes);
                let _ =
                    writeln!(text, "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#eee\"/>");
                place(text, x, bottom + 16.0, "middle", "fill=\"#555\" font-size=\"10\"", &size(1 << power));
            }
        }
        for time in (-1..6).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power))) {
            if (self.times.0..=self.times.1).contains(&time) {
                let y = self.y(time);
                let _ =
                    writeln!(text, "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#eee\"/>");
                place(text, LEFT - 6.0, y + 4.0, "end", "fill=\"#555\"", &format!("{time}"));
            }
        }
        place(text, LEFT, HEIGHT - 12.0, "start", "fill=\"#555\"", "bytes; microseconds of a call");
    }
}

/// Where a value lies between two, by logarithms.
fn share(value: f64, (low, high): (f64, f64)) -> f64 {
    (value / low).ln() / (high / low).ln()
}

/// `64K`, `1M`.
pub(super) fn size(bytes: u64) -> String {
    let units = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let found = units.into_iter().find(|&(unit, _)| bytes >= unit && bytes.is_multiple_of(unit));
    found.map_or(bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_is_drawn_and_named() {
        let curve = |name: &str, slope: f64| Curve {
            name: name.into(),
            points: (10..24).map(|power| (1 << power, 2.0 + slope * f64::from(1 << power))).collect(),
        };
        let marks = [Mark { name: "S* <here>".into(), bytes: 1e5 }, Mark { name: "outside".into(), bytes: 1e12 }];
        let text = svg("a & b", "c", &[curve("push", 1e-5), curve("pull", 1.01e-5)], &marks);
        assert_eq!(text.matches("<polyline").count(), 2);
        assert!(text.contains(">push<") && text.contains(">pull<") && text.contains("a &amp; b"));
        assert!(text.contains("S* &lt;here&gt;") && !text.contains("outside"));
        assert!(!text.contains("NaN") && !text.contains("inf"));
        assert!(!svg("", "", &[], &[]).contains("NaN"));
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([8, 1 << 10, 1536, 3 << 20].map(size), ["8", "1K", "1536", "3M"]);
    }
}
