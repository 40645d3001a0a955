//! What a check says. In: nothing. Out: plain values. Guarantee: a finding has the value that was seen, what is allowed,
//! and the line to type.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// Nothing is wrong; something that others have is not here.
    Note,
    /// Works, and slower or with less warning than it could.
    Warning,
    /// Jobs fail, hang or give wrong data.
    Failure,
}

/// Something that a check found wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Its check, which is its heading in docs/doctor.md.
    pub(crate) id: &'static str,
    pub(crate) severity: Severity,
    /// What is wrong, in one sentence.
    pub(crate) what: String,
    /// Hosts, ranks, devices.
    #[serde(rename = "where")]
    pub(crate) place: Vec<String>,
    /// What was seen.
    pub(crate) value: String,
    /// What is allowed.
    pub(crate) limit: String,
    /// What to type.
    pub(crate) remedy: String,
    /// Where to read more.
    pub(crate) doc: String,
}

impl Finding {
    /// A finding at one place.
    pub(super) fn new(id: &'static str, severity: Severity, what: impl Into<String>, place: impl Into<String>) -> Self {
        Self {
            id,
            severity,
            what: what.into(),
            place: vec![place.into()],
            value: String::new(),
            limit: String::new(),
            remedy: String::new(),
            doc: format!("docs/doctor.md#{id}"),
        }
    }

    /// The evidence.
    pub(super) fn seen(mut self, value: impl Into<String>, limit: impl Into<String>) -> Self {
        (self.value, self.limit) = (value.into(), limit.into());
        self
    }

    /// What to type.
    pub(super) fn cure(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// Whether another finding says the same of another place.
    fn agrees(&self, other: &Self) -> bool {
        (self.id, &self.what, &self.value, &self.remedy) == (other.id, &other.what, &other.value, &other.remedy)
    }
}

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing wrong.
    Passed,
    /// Something wrong.
    Found(Vec<Finding>),
    /// There is nothing that it could look at, and why.
    NotRun(String),
}

impl From<Vec<Finding>> for Outcome {
    fn from(findings: Vec<Finding>) -> Self {
        if findings.is_empty() { Self::Passed } else { Self::Found(findings) }
    }
}

/// One line for all places that have the same trouble, in order of first appearance; failures first.
pub(super) fn merge(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        match merged.iter_mut().find(|earlier| earlier.agrees(&finding)) {
            Some(earlier) => {
                let others = finding.place.into_iter().filter(|place| !earlier.place.contains(place));
                earlier.place.extend(others.collect::<Vec<_>>());
            }
            None => merged.push(finding),
        }
    }
    merged.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_told_once() {
        let at = |id, severity, place: &str, value: &str| {
            Finding::new(id, severity, "what", place).seen(value, "limit").cure("type this")
        };
        let merged = merge(vec![
            at("stack", Severity::Warning, "a", "1"),
            at("memlock", Severity::Failure, "a", "1"),
            at("memlock", Severity::Failure, "b", "1"),
            at("memlock", Severity::Failure, "b", "1"),
            at("memlock", Severity::Failure, "c", "2"),
        ]);
        let told: Vec<(&str, Vec<String>)> = merged.iter().map(|finding| (finding.id, finding.place.clone())).collect();
        let places = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
        let expected = [("memlock", places(&["a", "b"])), ("memlock", places(&["c"])), ("stack", places(&["a"]))];
        assert_eq!(told, expected);
    }
}
