//! Pieces of pictures. In: places and texts. Out: SVG elements. Guarantee: texts are escaped, numbers have one decimal,
//! labels of a picture do not lie on each other.

use crate::markup::escape;
use std::fmt::Write;

/// Side by side in every picture.
pub(super) const WIDTH: f64 = 960.0;
/// Of a line of words.
const LINE: f64 = 15.0;
/// Of a letter, at most on average.
const LETTER: f64 = 7.0;

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

/// What the colours of a picture mean: squares with words, side by side from `(x, y)` on.
pub(super) fn legend(text: &mut String, (mut x, y): (f64, f64), entries: &[(&str, &str)]) {
    for (class, meaning) in entries {
        rectangle(text, [x, y - 10.0, 11.0, 11.0], &format!("rx=\"2\" class=\"{class}\""), "");
        words(text, (x + 16.0, y), "start", "quiet", meaning);
        x += 16.0 + meaning.chars().count() as f64 * LETTER + 14.0;
    }
}

/// The share of `part` in `whole`, 0 of nothing.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Labels that step out of each other's way.
#[derive(Default)]
pub(super) struct Labels(Vec<Label>);

struct Label {
    left: f64,
    y: f64,
    words: String,
}

impl Labels {
    /// Adds a label that begins at `left`, as near to the height `y` as the others let it.
    pub(super) fn add(&mut self, (left, y): (f64, f64), words: String) {
        let mut label = Label { left, y, words };
        while let Some(other) = self.0.iter().find(|other| other.meets(&label)) {
            label.y = other.y + LINE;
        }
        self.0.push(label);
    }

    /// Draws all.
    pub(super) fn draw(&self, text: &mut String) {
        for label in &self.0 {
            words(text, (label.left, label.y), "start", "label", &label.words);
        }
    }
}

impl Label {
    fn meets(&self, other: &Label) -> bool {
        let right = |label: &Label| label.left + label.words.chars().count() as f64 * LETTER;
        (self.y - other.y).abs() < LINE && self.left < right(other) && other.left < right(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_step_aside() {
        let mut labels = Labels::default();
        for (left, y) in [(10.0, 20.0), (30.0, 22.0), (12.0, 15.0), (200.0, 20.0)] {
            labels.add((left, y), "12.5 GiB".into());
        }
        let heights: Vec<f64> = labels.0.iter().map(|label| label.y).collect();
        assert_eq!(heights, [20.0, 35.0, 50.0, 20.0]);
    }
}
