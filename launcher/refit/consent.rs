//! One verdict of all ranks. In: what became of a step on this rank. Out: the same, or an error on every rank.
//! Guarantee: a fault on any rank is an error with the same exit code on all; every rank says what it is, one in full
//! and the others in short, so that the output of a large job stays readable.

use super::error::RefitError;
use super::{BAD_INPUT, FAILED};
use crate::failure::Failure;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::Communicator;
use serde::{Deserialize, Serialize};

/// Longest error, in characters, of a rank that repeats what another says in full.
const SHORT: usize = 100;

/// What went wrong on a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fault {
    message: String,
    bad_input: bool,
}

impl Fault {
    fn of(error: RefitError) -> Self {
        let bad_input = error.is_bad_input();
        Self { message: Failure::new(if bad_input { BAD_INPUT } else { FAILED }, error).message(), bad_input }
    }
}

/// Ends a step on all ranks alike; collective, unless the job is already lost.
pub(super) fn agree<T>(world: &Communicator, mine: Result<T, RefitError>, deadline: Deadline) -> Result<T, RefitError> {
    let (mine, fault) = match mine {
        Ok(value) => (Some(value), None),
        Err(error) if error.ends_the_job() => return Err(error),
        Err(error) => (None, Some(Fault::of(error))),
    };
    // Both forms are plain texts and numbers, which always have a JSON form.
    let encoded = serde_json::to_vec(&fault).unwrap_or_default();
    let all = world.allgather(&encoded, deadline).inspect_err(|_| {
        if let Some(fault) = &fault {
            log::error!("{}", fault.message);
        }
    })?;
    let faults: Vec<Option<Fault>> = all
        .iter()
        .map(|bytes| {
            serde_json::from_slice(bytes).unwrap_or_else(|error| {
                Some(Fault { message: format!("stated what cannot be read: {error}"), bad_input: false })
            })
        })
        .collect();
    match (verdict(&faults, world.rank(), |rank| world.topology().host(rank)), mine) {
        (None, Some(value)) => Ok(value),
        (Some(error), _) => Err(error),
        // This rank's own fault came back as none, which no exchange does.
        (None, None) => {
            Err(RefitError::Agreed { message: "the ranks lost a fault of this rank".into(), bad_input: false })
        }
    }
}

/// What `rank` says of the faults of all ranks: the lowest of those with a fault tells it in full, and so does rank 0.
fn verdict<'a>(faults: &[Option<Fault>], rank: Rank, host: impl Fn(Rank) -> &'a str) -> Option<RefitError> {
    let first = faults.iter().position(Option::is_some)?;
    let bad_input = faults.iter().flatten().all(|fault| fault.bad_input);
    let count = faults.iter().flatten().count();
    let mine = faults.get(rank.index()).and_then(Option::as_ref);
    let speaker = if mine.is_some() { faults.iter().position(|other| other.as_ref() == mine)? } else { first };
    let message = &faults[speaker].as_ref()?.message;
    let speaker = Rank(speaker as u32);
    let message = match mine {
        Some(_) if rank != speaker => shortened(message, speaker),
        Some(_) if count > 1 && faults.iter().all(|other| other.as_ref() == mine) => {
            format!("{message} (on all {count} ranks)")
        }
        Some(_) => message.clone(),
        None => {
            let more = if count > 1 { format!("; in all, {count} ranks failed") } else { String::new() };
            let text = format!("rank {speaker} on host {} failed: {message}{more}", host(speaker));
            if rank == Rank(0) { text } else { shortened(&text, speaker) }
        }
    };
    Some(RefitError::Agreed { message, bad_input })
}

/// The beginning of a message that `speaker` gives in full.
pub(super) fn shortened(message: &str, speaker: Rank) -> String {
    match message.char_indices().nth(SHORT) {
        None => message.to_string(),
        Some((end, _)) => format!("{}… (rank {speaker} says it in full)", message[..end].trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(message: &str, bad_input: bool) -> Option<Fault> {
        Some(Fault { message: message.into(), bad_input })
    }

    fn says(faults: &[Option<Fault>], rank: u32) -> Option<(String, bool)> {
        match verdict(faults, Rank(rank), |_| "n1")? {
            RefitError::Agreed { message, bad_input } => Some((message, bad_input)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_common_fault_is_told_once_in_full() {
        let long = "x".repeat(SHORT + 1);
        let faults = vec![fault(&long, true); 3];
        assert_eq!(says(&faults, 0), Some((format!("{long} (on all 3 ranks)"), true)));
        let (short, bad_input) = says(&faults, 2).unwrap();
        assert!(bad_input && short.starts_with("xxx") && short.ends_with("x… (rank 0 says it in full)"), "{short}");
        assert_eq!(says(&[fault("short", true)], 0), Some(("short".into(), true)));
        assert_eq!(says(&vec![fault("short", true); 2], 1), Some(("short".into(), true)));
        assert_eq!(says(&[None, None], 1), None);
    }

    #[test]
    fn a_fault_of_some_is_named_on_all() {
        let faults = [None, fault("disk full", false), fault("other", true), None];
        let told = "rank 1 on host n1 failed: disk full; in all, 2 ranks failed";
        assert_eq!(says(&faults, 0), Some((told.into(), false)));
        assert_eq!(says(&faults, 2), Some(("other".into(), false)));
        let long = fault(&"x".repeat(SHORT + 1), true);
        let faults = [None, long.clone(), None, long.clone()];
        assert!(says(&faults, 0).unwrap().0.ends_with("x; in all, 2 ranks failed"));
        assert_eq!(says(&faults, 1).unwrap().0, long.unwrap().message);
        for rank in [2, 3] {
            assert!(says(&faults, rank).unwrap().0.ends_with("x… (rank 1 says it in full)"));
        }
        let faults = [None, fault("disk full", false), fault("other", true), None];
        assert_eq!(says(&faults[..2], 0), Some(("rank 1 on host n1 failed: disk full".into(), false)));
    }
}
