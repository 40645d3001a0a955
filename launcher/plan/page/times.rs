//! Routes side by side. In: a report. Out: a picture: a bar for the predicted time, a mark at the bound, a dot at the
//! simulated time. Guarantee: one linear scale from 0.

use super::shape::{WIDTH, line, open, rectangle, words};
use crate::plan::report::Report;
use crate::plan::table::time;
use std::fmt::Write;

const NAMES: f64 = 170.0;
const VALUES: f64 = 190.0;
const STEP: f64 = 30.0;
const BAR: f64 = 16.0;

/// The picture.
pub(super) fn picture(report: &Report) -> String {
    let times = |route: &crate::plan::report::RouteReport| {
        route.simulated.map_or(0.0, |simulated| simulated.seconds).max(route.predicted_seconds).max(route.bound_seconds)
    };
    let most = report.routes.iter().map(times).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - NAMES - VALUES) / most;
    let mut text = open(report.routes.len() as f64 * STEP + 22.0, "predicted, simulated and least time of every route");
    for (route, number) in report.routes.iter().zip(0u32..) {
        let y = f64::from(number) * STEP + 6.0;
        let is_chosen = report.chosen_route().is_some_and(|chosen| chosen.title() == route.title());
        words(&mut text, (NAMES - 10.0, y + BAR - 4.0), "end", "", &route.title());
        let class = if is_chosen { "class=\"best\"" } else { "class=\"bar\"" };
        let says = format!("predicted {}, bound {}", time(route.predicted_seconds), time(route.bound_seconds));
        rectangle(&mut text, [NAMES, y, route.predicted_seconds * scale, BAR], class, &says);
        let bound = NAMES + route.bound_seconds * scale;
        line(&mut text, [bound, y - 4.0, bound, y + BAR + 4.0], "bound");
        let mut value = time(route.predicted_seconds);
        if let Some(simulated) = route.simulated {
            let (x, middle) = (NAMES + simulated.seconds * scale, y + BAR / 2.0);
            let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"4\" class=\"dot\"/>");
            let _ = write!(value, "; simulated {}", time(simulated.seconds));
        }
        words(&mut text, (NAMES + times(route) * scale + 10.0, y + BAR - 4.0), "start", "", &value);
    }
    let legend = "bar: predicted; red mark: what the busiest link needs at least; circle: simulated";
    words(&mut text, (NAMES, report.routes.len() as f64 * STEP + 16.0), "start", "quiet", legend);
    text + "</svg>"
}
