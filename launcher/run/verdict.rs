//! What is said at the end of a job, and with which code the launcher exits.
//!
//! In: the record of the job, the last lines of each rank and of the starter. Out: lines for standard error and the
//! exit code. Guarantee: pure; the first cause is named once, and its exit code is the launcher's.

use super::plan::{JobPlan, rank_list};
use super::protocol::Ending;
use super::supervise::{Cause, End, Limits, Record};
use crossmesh::base::env;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::time::Duration;

/// Exit code when the time limit passed, as that of timeout(1).
const TIMED_OUT: u8 = 124;
/// How long before the first end an error may have been reported that has to do with it: ranks speak, then end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Exit code for a failure that has no code of its own.
const FAILED: u8 = 1;

/// What the launcher knows about one rank beyond its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RankTrace {
    /// Empty until it joined.
    pub(crate) host: String,
    /// The last lines it printed.
    pub(crate) last_lines: Vec<String>,
    /// When it last wrote to standard error.
    pub(crate) last_error_line: Option<Duration>,
}

/// All that a verdict is made of.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) plan: &'a JobPlan,
    pub(crate) limits: Limits,
    pub(crate) record: &'a Record,
    pub(crate) traces: &'a [RankTrace],
    /// The starter's name.
    pub(crate) starter: &'a str,
    pub(crate) starter_lines: &'a [String],
}

/// The end of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) exit_code: u8,
    pub(crate) lines: Vec<String>,
}

/// Judges.
pub(crate) fn verdict(evidence: &Evidence<'_>) -> Verdict {
    let record = evidence.record;
    let Some(cause) = &record.cause else { return Verdict { exit_code: 0, lines: Vec::new() } };
    let (exit_code, mut lines) = match cause {
        Cause::RankFailed => rank_failed(evidence),
        Cause::TimedOut { running } => (TIMED_OUT, timed_out(evidence, running)),
        Cause::Interrupted(signal) => {
            (signal_code(*signal), vec![format!("crossmesh run: stopped by {}", signal_text(*signal))])
        }
        Cause::Absent(ranks) => (FAILED, absent(evidence, ranks)),
        Cause::StarterEnded { how, code, ranks, started } => {
            (if *code == 0 { FAILED } else { *code }, starter_ended(evidence, how, ranks, *started))
        }
    };
    if record.started.is_some() {
        lines.extend(others(evidence));
    }
    Verdict { exit_code, lines }
}

fn rank_failed(evidence: &Evidence<'_>) -> (u8, Vec<String>) {
    let Some((rank, end)) = evidence.record.first_failure() else { return (FAILED, Vec::new()) };
    let trace = &evidence.traces[rank as usize];
    let elapsed = end.at.saturating_sub(evidence.record.started.unwrap_or_default());
    let (what, why) = match end.ending {
        Ending::Exited(code) => (format!("exited with code {code}"), ""),
        Ending::Signaled(signal) => (format!("ended with {}", signal_text(signal)), ""),
        Ending::Lost => ("was lost".to_string(), ": its host or its agent went away"),
    };
    let said = if trace.last_lines.is_empty() { "; it printed nothing" } else { "; its last lines:" };
    let mut lines = vec![format!(
        "crossmesh run: {} on host {} {what} after {:.1} s{why}{said}",
        evidence.plan.name(rank),
        trace.host,
        elapsed.as_secs_f64()
    )];
    lines.extend(indented(&trace.last_lines));
    if let Some(how) = &evidence.record.starter {
        lines.push(format!("crossmesh run: {} ended with {how}", evidence.starter));
    }
    let exit_code = match end.ending {
        // Codes beyond a byte cannot be passed on; none of them may become 0.
        Ending::Exited(code) => u8::try_from(code).ok().filter(|&code| code != 0).unwrap_or(FAILED),
        Ending::Signaled(signal) => signal_code(signal),
        Ending::Lost => FAILED,
    };
    (exit_code, lines)
}

fn timed_out(evidence: &Evidence<'_>, running: &[u32]) -> Vec<String> {
    let limit = seconds_text(evidence.limits.timeout.unwrap_or_default());
    vec![format!(
        "crossmesh run: the job reached its limit of {limit} s (--timeout); still running: {}",
        ranks_text(running)
    )]
}

fn absent(evidence: &Evidence<'_>, ranks: &[u32]) -> Vec<String> {
    let mut lines = vec![format!(
        "crossmesh run: {} did not start within {} s ({}); {}",
        ranks_text(ranks),
        seconds_text(evidence.limits.init),
        env::INIT_TIMEOUT.name,
        starter_said(evidence)
    )];
    lines.extend(indented(evidence.starter_lines));
    lines
}

fn starter_ended(evidence: &Evidence<'_>, how: &str, ranks: &[u32], started: bool) -> Vec<String> {
    let when = match (started, ranks.len()) {
        (true, 1) => format!("while {} was still running", ranks_text(ranks)),
        (true, _) => format!("while {} were still running", ranks_text(ranks)),
        (false, _) => format!("before {} had started", ranks_text(ranks)),
    };
    let mut lines =
        vec![format!("crossmesh run: {} ended with {how} {when}; {}", evidence.starter, starter_said(evidence))];
    lines.extend(indented(evidence.starter_lines));
    lines
}

fn starter_said(evidence: &Evidence<'_>) -> String {
    match evidence.starter_lines.is_empty() {
        true => format!("{} printed nothing", evidence.starter),
        false => format!("last lines of {}:", evidence.starter),
    }
}

/// How the ranks ended that were not the first cause, one line; none when there are none.
fn others(evidence: &Evidence<'_>) -> Option<String> {
    let record = evidence.record;
    let first = match record.cause {
        Some(Cause::RankFailed) => record.first_failure(),
        _ => None,
    };
    let since = first.and(record.failed_at()).map(|failed| failed.saturating_sub(LAST_WORDS));
    let mut groups: BTreeMap<(u8, String), u32> = BTreeMap::new();
    for (rank, end) in (0u32..).zip(&record.ends) {
        if first.is_none_or(|(failed, _)| failed != rank) {
            let spoke = match (since, evidence.traces[rank as usize].last_error_line) {
                (Some(since), Some(line)) => line >= since,
                _ => false,
            };
            *groups.entry(group(evidence, *end, spoke)).or_default() += 1;
        }
    }
    let texts: Vec<_> = groups.iter().map(|((_, text), count)| format!("{count} {text}")).collect();
    let who = if first.is_some() { "others" } else { "ranks" };
    (!texts.is_empty()).then(|| format!("crossmesh run: {who}: {}", texts.join(", ")))
}

/// Where an end stands in the line, and its words.
fn group(evidence: &Evidence<'_>, end: Option<End>, spoke: bool) -> (u8, String) {
    let Some(end) = end else { return (5, "did not answer".to_string()) };
    match end.ending {
        Ending::Lost => (4, "lost".to_string()),
        _ if end.by_launcher => match &evidence.record.cause {
            Some(Cause::TimedOut { .. }) => (3, "ended by the launcher".to_string()),
            _ => {
                let grace = seconds_text(evidence.limits.grace);
                (3, format!("ended by the launcher after the grace time of {grace} s"))
            }
        },
        Ending::Exited(0) => (1, "exited 0".to_string()),
        Ending::Exited(code) if spoke => (0, format!("reported an error and exited {code}")),
        Ending::Exited(code) => (1, format!("exited {code}")),
        Ending::Signaled(signal) => (2, format!("ended with {}", signal_text(signal))),
    }
}

fn indented(lines: &[String]) -> impl Iterator<Item = String> + '_ {
    lines.iter().map(|line| format!("    {line}"))
}

fn ranks_text(ranks: &[u32]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, rank_list(ranks.iter().copied()))
}

/// `10`, `0.5`: as they were given.
fn seconds_text(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

/// `signal 9 (SIGKILL)`.
pub(crate) fn signal_text(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(name) => format!("signal {signal} ({name})"),
        Err(_) => format!("signal {signal}"),
    }
}

/// The exit code of shells for a process that `signal` ended.
pub(crate) fn signal_code(signal: i32) -> u8 {
    u8::try_from(signal).unwrap_or(u8::MAX).saturating_add(128)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        init: Duration::from_secs(120),
        grace: Duration::from_secs(10),
        timeout: Some(Duration::from_secs(60)),
    };

    fn end(ending: Ending, milliseconds: u64, by_launcher: bool) -> Option<End> {
        Some(End { ending, at: Duration::from_millis(milliseconds), by_launcher })
    }

    fn judge(cause: Option<Cause>, ends: Vec<Option<End>>, started: bool, starter_lines: &[&str]) -> Verdict {
        let roles = vec!["trainer=1".parse().unwrap(), format!("generator={}", ends.len() - 1).parse().unwrap()];
        let traces: Vec<_> = (0..ends.len())
            .map(|rank| RankTrace {
                host: format!("n{rank}"),
                last_lines: if rank == 1 { vec!["a".into(), "b".into()] } else { Vec::new() },
                last_error_line: (rank == 2).then(|| Duration::from_millis(4000)),
            })
            .collect();
        let starter_lines: Vec<_> = starter_lines.iter().map(|line| line.to_string()).collect();
        let started = started.then(|| Duration::from_millis(1000));
        verdict(&Evidence {
            plan: &JobPlan::new(None, roles, None).unwrap(),
            limits: LIMITS,
            record: &Record { cause, started, ends, ..Record::default() },
            traces: &traces,
            starter: "srun",
            starter_lines: &starter_lines,
        })
    }

    #[test]
    fn success_says_nothing() {
        let verdict = judge(None, vec![end(Ending::Exited(0), 1, false); 3], true, &["noise"]);
        assert_eq!(verdict, Verdict { exit_code: 0, lines: Vec::new() });
    }

    #[test]
    fn first_failures() {
        let exited = |code| end(Ending::Exited(code), 4200, false);
        let table = [
            (Ending::Signaled(9), 137, "ended with signal 9 (SIGKILL) after 1.5 s"),
            (Ending::Signaled(40), 168, "ended with signal 40 after 1.5 s"),
            (Ending::Exited(7), 7, "exited with code 7 after 1.5 s"),
            (Ending::Exited(256), 1, "exited with code 256 after 1.5 s"),
            (Ending::Lost, 1, "was lost after 1.5 s: its host or its agent went away"),
        ];
        for (ending, code, what) in table {
            let ends =
                vec![exited(1), end(ending, 2500, false), exited(1), end(Ending::Exited(0), 1, false), exited(3), None];
            let verdict = judge(Some(Cause::RankFailed), ends, true, &[]);
            assert_eq!(verdict.exit_code, code);
            assert_eq!(
                verdict.lines,
                [
                    format!("crossmesh run: rank 1 (generator) on host n1 {what}; its last lines:"),
                    "    a".to_string(),
                    "    b".to_string(),
                    "crossmesh run: others: 1 reported an error and exited 1, 1 exited 0, 1 exited 1, 1 exited 3, \
                     1 did not answer"
                        .to_string()
                ]
            );
        }
    }

    #[test]
    fn a_struck_rank_goes_before_those_that_missed_it() {
        let ends = vec![
            end(Ending::Exited(1), 4100, false),
            end(Ending::Signaled(9), 4900, false),
            end(Ending::Exited(1), 4300, false),
        ];
        let verdict = judge(Some(Cause::RankFailed), ends, true, &[]);
        assert_eq!(verdict.exit_code, 137);
        assert!(verdict.lines[0].contains("rank 1 (generator) on host n1 ended with signal 9 (SIGKILL) after 3.9 s"));
        // Rank 2 spoke shortly before the first end.
        assert_eq!(verdict.lines[3], "crossmesh run: others: 1 reported an error and exited 1, 1 exited 1");
    }

    #[test]
    fn ended_by_the_launcher() {
        let ends = vec![
            end(Ending::Exited(7), 2000, false),
            end(Ending::Signaled(15), 12000, true),
            end(Ending::Exited(0), 12000, true),
            end(Ending::Signaled(6), 2100, false),
        ];
        let verdict = judge(Some(Cause::RankFailed), ends.clone(), true, &[]);
        assert_eq!(
            verdict.lines,
            [
                "crossmesh run: rank 0 (trainer) on host n0 exited with code 7 after 1.0 s; it printed nothing",
                "crossmesh run: others: 1 ended with signal 6 (SIGABRT), \
                 2 ended by the launcher after the grace time of 10 s"
            ]
        );
        let verdict = judge(Some(Cause::TimedOut { running: vec![1, 2] }), ends.clone(), true, &[]);
        assert_eq!(verdict.exit_code, 124);
        assert_eq!(
            verdict.lines[0],
            "crossmesh run: the job reached its limit of 60 s (--timeout); still running: ranks 1-2"
        );
        assert!(verdict.lines[1].ends_with("2 ended by the launcher"), "{:?}", verdict.lines);
        let verdict = judge(Some(Cause::Interrupted(2)), ends, true, &[]);
        assert_eq!(verdict.exit_code, 130);
        assert_eq!(verdict.lines[0], "crossmesh run: stopped by signal 2 (SIGINT)");
    }

    #[test]
    fn jobs_that_never_started() {
        let verdict = judge(Some(Cause::Absent(vec![0, 2])), vec![None; 3], false, &["x", "y"]);
        assert_eq!(verdict.exit_code, 1);
        assert_eq!(
            verdict.lines,
            [
                "crossmesh run: ranks 0, 2 did not start within 120 s (CROSSMESH_INIT_TIMEOUT); last lines of srun:",
                "    x",
                "    y"
            ]
        );
        for (code, exit_code) in [(0, 1), (213, 213)] {
            let cause =
                Cause::StarterEnded { how: format!("exit code {code}"), code, ranks: vec![0, 1, 2], started: false };
            let verdict = judge(Some(cause), vec![None; 3], false, &[]);
            assert_eq!(verdict.exit_code, exit_code);
            assert_eq!(
                verdict.lines,
                [format!(
                    "crossmesh run: srun ended with exit code {code} before ranks 0-2 had started; srun printed nothing"
                )]
            );
        }
    }
}
