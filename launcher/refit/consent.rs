//! One verdict of all ranks. In: what became of a step on this rank. Out: the same, or an error on every rank.
//! Guarantee: a fault on any rank is an error with the same exit code on all; a fault that all ranks have in common
//! is told in full by rank 0 and in short by the others, so that the output of a large job stays readable.

use super::error::RefitError;
use super::{BAD_INPUT, FAILED};
use crate::failure::Failure;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::Communicator;
use serde::{Deserialize, Serialize};

/// Longest error, in characters, of a rank that says what rank 0 says in full.
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

/// What `rank` says of the faults of all ranks.
fn verdict<'a>(faults: &[Option<Fault>], rank: Rank, host: impl Fn(Rank) -> &'a str) -> Option<RefitError> {
    let first = faults.iter().position(Option::is_some)?;
    let fault = faults[first].as_ref()?;
    let bad_input = faults.iter().flatten().all(|fault| fault.bad_input);
    let count = faults.iter().flatten().count();
    let common = faults.iter().all(|other| other.as_ref() == Some(fault));
    let message = match faults.get(rank.index()).and_then(Option::as_ref) {
        Some(_) if common && rank == Rank(0) && count > 1 => format!("{} (on all {count} ranks)", fault.message),
        Some(mine) if common && rank != Rank(0) => shortened(&mine.message),
        Some(mine) => mine.message.clone(),
        None => {
            let more = if count > 1 { format!("; in all, {count} ranks failed") } else { String::new() };
            let first = Rank(first as u32);
            format!("rank {first} on host {} failed: {}{more}", host(first), fault.message)
        }
    };
    Some(RefitError::Agreed { message, bad_input })
}

/// The beginning of a message that rank 0 gives in full.
pub(super) fn shortened(message: &str) -> String {
    match message.char_indices().nth(SHORT) {
        None => message.to_string(),
        Some((end, _)) => format!("{}… (rank 0 says it in full)", message[..end].trim_end()),
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
        assert_eq!(says(&faults[..2], 0), Some(("rank 1 on host n1 failed: disk full".into(), false)));
    }
}
