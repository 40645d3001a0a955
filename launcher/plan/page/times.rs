//! Routes side by side. In: a report. Out: a picture: a bar for the predicted time, a mark at the bound, a dot at the
//! simulated time. Guarantee: one linear scale from 0; a bar that is cut off, so that the others can be told apart, shows it.

use super::shape::{WIDTH, line, open, rectangle, words};
use crate::plan::report::{Report, RouteReport};
use crate::plan::table::time;
use std::fmt::Write;

const NAMES: f64 = 150.0;
const VALUES: f64 = 300.0;
const STEP: f64 = 30.0;
const BAR: f64 = 16.0;
/// A bar is at most so many times as long as the shortest.
const LONGEST: f64 = 10.0;

/// The picture.
pub(super) fn picture(report: &Report) -> String {
    let all = || report.routes.iter().map(longest);
    let least = all().fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE);
    let most = all().fold(f64::MIN_POSITIVE, f64::max).min(least * LONGEST);
    let mut text = open(report.routes.len() as f64 * STEP + 22.0, "predicted, simulated and least time of every route");
    for (route, number) in report.routes.iter().zip(0u32..) {
        bar(&mut text, report, route, f64::from(number) * STEP + 6.0, most);
    }
    let simulated = report.routes.iter().any(|route| route.simulated.is_some());
    let circle = if simulated { "; circle: simulated" } else { "" };
    let legend = format!("bar: predicted; red mark: what the busiest link needs at least{circle}");
    words(&mut text, (NAMES, report.routes.len() as f64 * STEP + 16.0), "start", "quiet", &legend);
    text + "</svg>"
}

fn longest(route: &RouteReport) -> f64 {
    route.simulated.map_or(0.0, |simulated| simulated.seconds).max(route.predicted_seconds).max(route.bound_seconds)
}

fn bar(text: &mut String, report: &Report, route: &RouteReport, y: f64, most: f64) {
    let scale = (WIDTH - NAMES - VALUES) / most;
    let at = |seconds: f64| NAMES + seconds.min(most) * scale;
    let is_cut = longest(route) > most;
    let is_chosen = report.is_chosen(route);
    words(text, (NAMES - 10.0, y + BAR - 4.0), "end", if is_chosen { "strong" } else { "" }, &route.title());
    let class = if is_chosen { "class=\"best\"" } else { "class=\"bar\"" };
    let says = format!("predicted {}, bound {}", time(route.predicted_seconds), time(route.bound_seconds));
    rectangle(text, [NAMES, y, at(route.predicted_seconds) - NAMES, BAR], class, &says);
    if is_cut {
        let x = at(most) - 26.0;
        let _ = writeln!(text, "<path d=\"M{x:.1} {:.1}l6 -24h7l-6 24z\" class=\"cut\"/>", y + BAR + 4.0);
    } else {
        let bound = at(route.bound_seconds);
        line(text, [bound, y - 4.0, bound, y + BAR + 4.0], "bound");
    }
    let mut value = time(route.predicted_seconds);
    if let Some(simulated) = route.simulated {
        if !is_cut {
            let (x, middle) = (at(simulated.seconds), y + BAR / 2.0);
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"4\" class=\"dot\"/>");
        }
        let _ = write!(value, "; simulated {}", time(simulated.seconds));
    }
    if let Some(chosen) = report.chosen_route().filter(|chosen| !is_chosen && chosen.predicted_seconds > 0.0) {
        let _ = write!(value, "; {:.2}x the chosen", route.predicted_seconds / chosen.predicted_seconds);
    }
    words(text, (at(longest(route)) + 10.0, y + BAR - 4.0), "start", "", &value);
}
