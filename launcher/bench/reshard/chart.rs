//! Rates as bars. In: results. Out: an SVG drawing. Guarantee: every method has a bar with its median and its quartiles;
//! names are escaped.

use super::results::{Method, Party, Results, ShapeResults};
use crate::bench::drawing::{open, place};
use std::fmt::Write;

const WIDTH: f64 = 980.0;
const LABELS: f64 = 300.0;
/// Right of the longest bar: rate and ratio.
const VALUES: f64 = 250.0;
const BAR: f64 = 16.0;
const STEP: f64 = 22.0;
const TITLE: f64 = 34.0;
const TOP: f64 = 54.0;
const AXIS: f64 = 40.0;

/// The drawing.
pub(super) fn svg(results: &Results) -> String {
    let most = results.shapes.iter().flat_map(|shape| &shape.methods).filter_map(|method| method.gb_per_s);
    let tick = tick(most.map(|spread| spread.q3.max(spread.median)).fold(0.0, f64::max));
    let most = tick.0 * tick.1;
    let height = TOP + results.shapes.iter().map(height_of).sum::<f64>() + AXIS;
    let caption = format!(
        "{}, {} cores, {} rounds; after the rate: the first bar of the shape over this one, round by round",
        results.host, results.cores, results.repeat
    );
    let mut text = open((WIDTH, height), "Payload delivered, GB/s: median and quartiles", &caption);
    let scale = (WIDTH - LABELS - VALUES) / most;
    axis(&mut text, tick, scale, height);
    let mut top = TOP;
    for shape in &results.shapes {
        group(&mut text, shape, top, scale);
        top += height_of(shape);
    }
    text.push_str("</svg>\n");
    text
}

fn height_of(shape: &ShapeResults) -> f64 {
    TITLE + shape.methods.len() as f64 * STEP
}

/// Distance of the axis's marks, and how many there are.
fn tick(most: f64) -> (f64, f64) {
    let rough = (most / 6.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|&step| step >= rough * 0.999);
    let step = step.unwrap_or(power * 10.0);
    if most > 0.0 { (step, (most / step).ceil()) } else { (1.0, 1.0) }
}

fn axis(text: &mut String, (step, count): (f64, f64), scale: f64, height: f64) {
    let bottom = height - AXIS + 8.0;
    for mark in 0..=count as u32 {
        let rate = f64::from(mark) * step;
        let x = LABELS + rate * scale;
        let _ = writeln!(text, "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>");
        let label = if step < 1.0 { format!("{rate:.2}") } else { format!("{rate:.0}") };
        place(text, x, bottom + 16.0, "middle", "fill=\"#555\"", &label);
    }
}

fn group(text: &mut String, shape: &ShapeResults, top: f64, scale: f64) {
    let title = format!("{}: {}", shape.name, shape.meaning);
    place(text, 12.0, top + 22.0, "start", "font-weight=\"bold\"", &title);
    let reference = shape.methods.iter().find(|method| method.party == Party::Crossmesh);
    for (method, number) in shape.methods.iter().zip(0u32..) {
        let y = top + TITLE + f64::from(number) * STEP - 4.0;
        bar(text, method, y, scale);
        let Some(rate) = method.gb_per_s else { continue };
        let mut value = format!("{:.2}", rate.median);
        if let Some(ratio) = reference.and_then(|own| shape.ratio(&own.name, &method.name)) {
            let _ = write!(value, "; crossmesh {:.2}x ({:.2}..{:.2})", ratio.median, ratio.q1, ratio.q3);
        }
        let end = LABELS + rate.q3.max(rate.median) * scale + 8.0;
        place(text, end, y + BAR - 4.0, "start", "", &value);
    }
}

fn bar(text: &mut String, method: &Method, y: f64, scale: f64) {
    let color = match method.party {
        Party::Crossmesh => "#1f6fb2",
        Party::Peer => "#b8b8b8",
    };
    place(text, LABELS - 8.0, y + BAR - 4.0, "end", "", &method.name);
    let Some(rate) = method.gb_per_s else { return };
    let _ = writeln!(
        text,
        "<rect x=\"{LABELS}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{color}\"/>",
        rate.median * scale
    );
    let (from, to, middle) = (LABELS + rate.q1 * scale, LABELS + rate.q3 * scale, y + BAR / 2.0);
    let _ = writeln!(
        text,
        "<path d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v6M{to:.1} {:.1}v6\" stroke=\"black\" fill=\"none\"/>",
        middle - 3.0,
        middle - 3.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::reshard::results::tests::example;

    #[test]
    fn every_method_has_a_bar() {
        let mut results = example(0);
        results.host = "a<b&c".into();
        let text = svg(&results);
        assert_eq!(text.matches("height=\"16\" fill=\"#").count(), 5, "{text}");
        assert_eq!(text.matches("x (").count(), 3, "{text}");
        assert!(text.contains("a&lt;b&amp;c") && text.ends_with("</svg>\n"));
        results.shapes[0].methods.iter_mut().for_each(|method| method.gb_per_s = None);
        assert!(!svg(&results).contains("NaN"));
    }

    #[test]
    fn marks_are_round_numbers() {
        assert_eq!(tick(12.8), (5.0, 3.0));
        assert_eq!(tick(23.0), (5.0, 5.0));
        assert_eq!(tick(6.0), (1.0, 6.0));
        assert_eq!(tick(0.0), (1.0, 1.0));
    }
}
