//! What pictures of benches share. In: sizes, places, words. Out: SVG. Guarantee: words are escaped, numbers have one decimal.

use crate::markup::escape;
use std::fmt::Write;

/// Opens a picture on white ground, with its title and a line of words below.
pub(super) fn open((width, height): (f64, f64), title: &str, caption: &str) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    place(&mut text, 12.0, 24.0, "start", "font-size=\"16\"", title);
    place(&mut text, 12.0, 42.0, "start", "fill=\"#555\"", caption);
    text
}

/// Words at a place.
pub(super) fn place(text: &mut String, x: f64, y: f64, anchor: &str, style: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{words}</text>");
}
