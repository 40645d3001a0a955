//! Pieces of pictures. In: places and texts. Out: SVG elements. Guarantee: texts are escaped, numbers have one decimal.

use super::escape;
use std::fmt::Write;

/// Side by side in every picture.
pub(super) const WIDTH: f64 = 960.0;

/// Opens a picture that tells `what` to those who do not see it.
pub(super) fn open(height: f64, what: &str) -> String {
    let what = escape(what);
    format!("<svg viewBox=\"0 0 {WIDTH} {height:.1}\" role=\"img\" aria-label=\"{what}\">\n")
}

/// A text.
pub(super) fn words(text: &mut String, (x, y): (f64, f64), anchor: &str, class: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{words}</text>");
}

/// A rectangle with attributes and what it says when pointed at.
pub(super) fn rectangle(text: &mut String, [x, y, width, height]: [f64; 4], attributes: &str, says: &str) {
    let says = if says.is_empty() { String::new() } else { format!("<title>{}</title>", escape(says)) };
    let _ = writeln!(
        text,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {attributes}>{says}</rect>"
    );
}

/// A straight line.
pub(super) fn line(text: &mut String, [x1, y1, x2, y2]: [f64; 4], class: &str) {
    let _ = writeln!(text, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>");
}

/// The share of `part` in `whole`, 0 of nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
