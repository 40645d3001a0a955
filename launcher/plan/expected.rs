//! What a case expects. In: a report, the expectations of its case. Out: nothing, or the first difference. Guarantee:
//! every number that the file states is compared.

use super::error::PlanCommandError;
use super::report::Report;
use crate::case::Expect;

/// Compares `report` with what its case expects; true when anything was expected.
pub(super) fn compare(report: &Report, expect: Option<&Expect>) -> Result<Option<bool>, PlanCommandError> {
    let Some(expect) = expect else { return Ok(None) };
    let crossing = |name: &str| {
        let route = report.routes.iter().find(|route| route.name == name);
        route.map_or(0, |route| route.inter_domain_bytes)
    };
    for (what, found, expected) in [
        ("unique_bytes", report.unique_bytes, expect.unique_bytes),
        ("delivered_bytes", report.delivered_bytes, expect.delivered_bytes),
        ("flat_inter_domain_bytes", crossing("flat"), expect.flat_inter_domain_bytes),
        ("hierarchical_inter_domain_bytes", crossing("hierarchical"), expect.hierarchical_inter_domain_bytes),
    ] {
        if let Some(expected) = expected.filter(|&expected| expected != found) {
            return Err(unexpected(report, what, found.to_string(), expected.to_string()));
        }
    }
    if let Some(expected) = &expect.ingress_per_domain {
        for route in report.routes.iter().filter(|route| route.name == "hierarchical") {
            if &route.ingress_per_domain != expected {
                let text = |bytes| format!("{bytes:?}");
                return Err(unexpected(report, "ingress_per_domain", text(&route.ingress_per_domain), text(expected)));
            }
        }
    }
    Ok(Some(true))
}

fn unexpected(report: &Report, what: &'static str, found: String, expected: String) -> PlanCommandError {
    PlanCommandError::Unexpected { case: report.name.clone(), what, found, expected }
}
