//! A report as one page. In: jobs and their reports. Out: HTML. Guarantee: self-contained: no script, nothing fetched;
//! readable in light and dark; every text is escaped.

mod bands;
mod flows;
mod loads;
mod shape;
mod times;

use super::evaluate::Evaluated;
use super::job::Job;
use super::report::Report;
use super::table::{brief, time};
use crate::counted::counted;
use crate::markup::escape;
use crossmesh::base::bytes::human;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Nothing is fetched; styles stand in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
/// Tensors that are named where there are many.
const SHOWN: usize = 20;

/// The page.
pub(super) fn page(jobs: &[Job], evaluated: &[Evaluated]) -> String {
    let title = match evaluated {
        [one] => one.report.name.clone(),
        all => format!("{} plans", all.len()),
    };
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        escape(&title)
    );
    if evaluated.len() > 1 {
        text.push_str("<nav><ol>\n");
        for (number, one) in evaluated.iter().enumerate() {
            let _ = writeln!(text, "<li><a href=\"#plan{number}\">{}</a></li>", escape(&one.report.name));
        }
        text.push_str("</ol></nav>\n");
    }
    for (number, (job, one)) in jobs.iter().zip(evaluated).enumerate() {
        section(&mut text, number, job, one);
    }
    text.push_str("</body>\n</html>\n");
    text
}

fn section(text: &mut String, number: usize, job: &Job, one: &Evaluated) {
    let report = &one.report;
    let _ = writeln!(text, "<section id=\"plan{number}\">\n<h1>{}</h1>", escape(&report.name));
    let _ = writeln!(
        text,
        "<p class=\"quiet\">{}: {} in {}, {}, {}; {}</p>",
        escape(&report.topology),
        counted(report.ranks, "rank"),
        counted(report.domains, "domain"),
        counted(report.sources, "source"),
        counted(report.destinations, "destination"),
        counted(report.tensors, "tensor")
    );
    tiles(text, report);
    if let Some(route) = report.chosen_route() {
        let _ = writeln!(text, "<p><b>Chosen: {}.</b> {}.</p>", escape(&route.title()), sentence(&report.reason));
    }
    let _ = writeln!(text, "<h2>Time of every route</h2>\n{}", times::picture(report));
    let _ = writeln!(
        text,
        "<h2>Where the bytes go</h2>\n<p class=\"quiet\">A square is a rank, the darker the more its card carries; a box is \
         an NVLink domain; a band is as wide as the bytes from one domain to another. Point at anything for its numbers.</p>\n{}",
        flows::picture(job, one)
    );
    let _ = writeln!(
        text,
        "<h2>Load of every link</h2>\n<p class=\"quiet\">Up: sent. Down: received. A bar for each rank, by domain.</p>\n{}",
        loads::picture(report)
    );
    routes(text, report);
    gaps(text, report);
    if let Some(explained) = &report.explained {
        let _ = writeln!(text, "<h2>One rank</h2>\n<pre>{}</pre>", escape(&explained.text()));
    }
    text.push_str("</section>\n");
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    escape(&(first + letters.as_str()))
}

fn tiles(text: &mut String, report: &Report) {
    let route = report.chosen_route();
    let simulated = route.and_then(|route| route.simulated);
    text.push_str("<div class=\"tiles\">\n");
    let mut tile = |value: String, what: &str| {
        let _ = writeln!(text, "<div class=\"tile\"><b>{value}</b><span>{what}</span></div>");
    };
    tile(human(report.bytes), "in all tensors, each once");
    tile(human(report.delivered_bytes), "delivered to all destinations");
    tile(brief(report.bound_seconds), "at least, whatever the route");
    if !report.stages.is_empty() {
        let what = format!("at least, one of {} stages at a time", report.stages.len());
        tile(brief(report.stages_one_by_one_seconds), &what);
    }
    if let Some(route) = route {
        tile(brief(route.predicted_seconds), "predicted by the chosen route");
    }
    if let Some(simulated) = simulated {
        let over = simulated.over_bound.map_or(String::new(), |over| format!(", {over:.3} of its bound"));
        tile(brief(simulated.seconds), &format!("simulated{over}"));
    }
    let class = if report.without_source_bytes == 0 { "tile" } else { "tile wrong" };
    let _ = writeln!(
        text,
        "<div class=\"{class}\"><b>{}</b><span>coverage: every destination byte with a source, written once</span></div>\n</div>",
        report.coverage
    );
}

/// Tensors that the two sides do not cover alike.
fn gaps(text: &mut String, report: &Report) {
    if report.gaps.is_empty() {
        return;
    }
    text.push_str("<h2>Not on both sides</h2>\n<table>\n<tr><th>tensor<th>without source<th>wanted by nobody</tr>\n");
    for gap in report.gaps.iter().take(SHOWN) {
        let _ = writeln!(
            text,
            "<tr><td>{}<td>{}<td>{}</tr>",
            escape(&gap.tensor),
            human(gap.without_source_bytes),
            human(gap.untaken_bytes)
        );
    }
    text.push_str("</table>\n");
    if report.gaps.len() > SHOWN {
        let _ = writeln!(text, "<p class=\"quiet\">and {} more tensors</p>", report.gaps.len() - SHOWN);
    }
}

fn routes(text: &mut String, report: &Report) {
    text.push_str(
        "<h2>Routes in numbers</h2>\n<table>\n<tr><th>route<th>predicted<th>simulated<th>bound<th>busiest card\
         <th>idlest card<th>busiest NVLink<th>between domains<th>flows<th>chunks<th>staging</tr>\n",
    );
    for route in &report.routes {
        let class = if report.is_chosen(route) { " class=\"chosen\"" } else { "" };
        let simulated = route.simulated.map_or("-".into(), |simulated| time(simulated.seconds));
        let _ = writeln!(
            text,
            "<tr{class}><td>{}<td>{}<td>{simulated}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escape(&route.title()),
            time(route.predicted_seconds),
            time(route.bound_seconds),
            human(route.max_nic_bytes),
            human(route.min_nic_bytes),
            human(route.max_nvlink_bytes),
            human(route.inter_domain_bytes),
            route.flows,
            route.chunks,
            human(route.staging_bytes)
        );
    }
    text.push_str("</table>\n");
}
