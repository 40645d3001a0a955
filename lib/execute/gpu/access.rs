//! Whether GPUs reach into each other's memory (`CROSSMESH_PEER_ACCESS`). In: the environment of each rank. Out: the most
//! careful setting of any rank, and which rank has it. Guarantee: the same on all ranks; a value that is none is an error on
//! every rank.

use super::super::agree::{commit, gather};
use super::super::{ExecuteError, Group};
use crate::base::{Deadline, Rank, env};
use serde::{Deserialize, Serialize};

/// Whether GPUs reach into each other's memory; the most careful setting first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) enum PeerAccess {
    /// Never.
    Off,
    /// Where a test of the link has passed.
    #[default]
    Tested,
    /// Without a test.
    Trusted,
}

impl std::str::FromStr for PeerAccess {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self::Off),
            "tested" => Ok(Self::Tested),
            "trusted" => Ok(Self::Trusted),
            _ => Err(()),
        }
    }
}

impl PeerAccess {
    /// The setting of this process.
    pub(crate) fn of_process() -> Result<Self, ExecuteError> {
        Ok(env::value(env::PEER_ACCESS)?.unwrap_or_default())
    }
}

/// The most careful setting of any rank, and the first rank that has it; collective.
pub(crate) fn peer_access(group: &Group, deadline: Deadline) -> Result<(PeerAccess, Rank), ExecuteError> {
    let mine = commit(group, PeerAccess::of_process(), deadline)?;
    Ok(most_careful(&gather::<_, PeerAccess>(group, &mine, deadline)?))
}

fn most_careful(settings: &[PeerAccess]) -> (PeerAccess, Rank) {
    let ranks = (0..).map(Rank);
    settings.iter().copied().zip(ranks).min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_careful_setting_of_any_rank_holds() {
        use PeerAccess::{Off, Tested, Trusted};
        assert_eq!(most_careful(&[Trusted, Trusted]), (Trusted, Rank(0)));
        assert_eq!(most_careful(&[Trusted, Tested, Trusted, Tested]), (Tested, Rank(1)));
        assert_eq!(most_careful(&[Trusted, Tested, Off, Off]), (Off, Rank(2)));
        assert_eq!(PeerAccess::default(), Tested);
    }

    #[test]
    fn settings_are_read_as_the_table_of_variables_names_them() {
        let read: Vec<Result<PeerAccess, ()>> = env::PEER_ACCESS.values.split('|').map(str::parse).collect();
        assert_eq!(read, [Ok(PeerAccess::Off), Ok(PeerAccess::Tested), Ok(PeerAccess::Trusted)]);
        assert_eq!("Off".parse::<PeerAccess>(), Err(()));
        assert_eq!(env::PEER_ACCESS.default.parse(), Ok(PeerAccess::default()));
    }
}
