//! Others that do the same: NCCL and PyTorch. In: a call in a form. Out: what they take for it. Guarantee: they run in this job, on
//! the same GPUs, call for call in turn with crossmesh, by the same method (`tests/gpu/collective_rivals.py`); none of them is
//! asked while a kernel of crossmesh runs.

use super::arguments::{Rival, type_name};
use super::chain::Form;
use super::results::RivalTime;
use crate::bench::error::BenchError;
use crate::bench::program::{Program, command};
use crossmesh::base::Deadline;
use crossmesh::collective::Call;
use serde::{Deserialize, Serialize};
use std::io;
use tempfile::TempDir;

const SCRIPT: &str = include_str!("../../../tests/gpu/collective_rivals.py");
const NAME: &str = "collective_rivals.py";
/// For PyTorch to be there, and for one answer.
const START_LIMIT: u64 = 180;
const ANSWER_LIMIT: u64 = 120;

/// The program that runs them.
pub(super) struct Rivals {
    program: Program,
    /// Of what is measured.
    pub(super) versions: String,
    rivals: Vec<Rival>,
    /// Where the script lies; removed when this is dropped.
    _folder: TempDir,
}

/// What a rival is asked.
#[derive(Debug, Serialize)]
struct Question {
    rival: &'static str,
    kind: &'static str,
    count: u64,
    dtype: &'static str,
    operation: &'static str,
    root: u32,
    hidden: u32,
    captured: bool,
    cold: bool,
    calls: u32,
    warmups: u32,
    samples: u32,
}

/// What it says.
#[derive(Debug, Deserialize)]
struct Answer {
    what: String,
    p50: Option<f64>,
    p99: Option<f64>,
}

/// How often a chain runs: calls, chains that are not timed, chains that are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) calls: u32,
    pub(super) warmups: u32,
    pub(super) samples: u32,
}

impl Rivals {
    /// Starts them on `ranks` GPUs.
    pub(super) fn start(rivals: &[Rival], ranks: u32) -> Result<Self, BenchError> {
        let program = "python3".to_string();
        let failed = |source: io::Error| BenchError::PeerStart { job: NAME.into(), program: program.clone(), source };
        let folder = tempfile::tempdir().map_err(failed)?;
        let path = folder.path().join(NAME);
        std::fs::write(&path, SCRIPT).map_err(failed)?;
        let words = [program.clone(), path.to_string_lossy().into_owned(), ranks.to_string()];
        let child = command(&words).spawn().map_err(failed)?;
        let mut program = Program::new(NAME, child);
        let versions = said(&mut program, "ready ", START_LIMIT)?;
        Ok(Self { versions, program, rivals: rivals.to_vec(), _folder: folder })
    }

    /// What each takes for a call of `call` in a chain.
    pub(super) fn times(
        &mut self,
        call: &Call,
        form: Form,
        hidden: u32,
        counts: Counts,
    ) -> Result<Vec<RivalTime>, BenchError> {
        let rivals = self.rivals.clone();
        rivals.into_iter().map(|rival| self.ask(rival, call.kind.name(), call, form, hidden, counts)).collect()
    }

    /// What PyTorch takes for the addition and the norm that follow an all-reduce.
    pub(super) fn norm(
        &mut self,
        call: &Call,
        form: Form,
        hidden: u32,
        counts: Counts,
    ) -> Result<RivalTime, BenchError> {
        self.ask(Rival::Torch, "norm", call, form, hidden, counts)
    }

    fn ask(
        &mut self,
        rival: Rival,
        kind: &'static str,
        call: &Call,
        form: Form,
        hidden: u32,
        counts: Counts,
    ) -> Result<RivalTime, BenchError> {
        let question = Question {
            rival: rival.name(),
            kind,
            count: call.count,
            dtype: type_name(call.dtype),
            operation: call.operation.name(),
            root: call.root,
            hidden,
            captured: form.captured,
            cold: form.cold,
            calls: counts.calls,
            warmups: counts.warmups,
            samples: counts.samples,
        };
        self.program.tell(&serde_json::to_string(&question).unwrap_or_default())?;
        let line = said(&mut self.program, "answer ", ANSWER_LIMIT)?;
        match serde_json::from_str(&line) {
            Ok(Answer { what, p50, p99 }) => Ok(RivalTime { rival: rival.name(), what, p50, p99 }),
            Err(_) => Err(self.program.unexpected(line, "an object with what, p50 and p99")),
        }
    }
}

/// What stands behind `mark` in the next line that begins so; NCCL may say something in between.
fn said(program: &mut Program, mark: &str, limit: u64) -> Result<String, BenchError> {
    let deadline = Deadline::seconds(limit);
    loop {
        let line = program.answer(deadline)?;
        match line.strip_prefix(mark) {
            Some(rest) => return Ok(rest.to_string()),
            None => log::info!("{NAME}: {line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_lines_are_passed_over() {
        let words = ["sh", "-c", "echo NCCL version 2; echo answer 7"].map(String::from);
        let mut program = Program::new("test", command(&words).spawn().unwrap());
        assert_eq!(said(&mut program, "answer ", 20).unwrap(), "7");
        assert!(matches!(said(&mut program, "answer ", 20), Err(BenchError::PeerGone { .. })));
    }

    #[test]
    fn the_script_speaks_as_it_is_read() {
        assert!(SCRIPT.contains("f\"ready PyTorch") && SCRIPT.contains("\"answer \""));
    }
}
