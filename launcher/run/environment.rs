//! Which environment variables go where.
//!
//! In: the names that are set here. Out: the names that a new job must not inherit, and those that it must find on
//! other hosts. Guarantee: pure; ranks of a job inside a job see the inner one only.

use crossmesh::base::env::{self, Variable};
use std::ffi::{OsStr, OsString};

/// What belongs to one job or one rank, and is made anew for each.
const OF_ONE_JOB: [Variable; 8] =
    [env::RANK, env::SIZE, env::ROLE, env::ROLES, env::TERMINAL, env::LAUNCHER, env::LAUNCHER_KEY, env::UNIQUE_ID];

/// Ranks of other starters: when the variable is set, this process is a rank, and what begins like this describes it.
const OUTER_RANKS: [(&str, &[&str]); 3] = [
    ("OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_", "OMPI_MCA_orte_", "OMPI_MCA_ess_", "OMPI_UNIVERSE_SIZE"]),
    ("PMI_RANK", &["PMI_"]),
    ("PMIX_RANK", &["PMIX_"]),
];

/// Those of `names` that describe an outer job or a rank of it.
pub(crate) fn inherited(names: &[OsString]) -> Vec<OsString> {
    let set = |name: &str| names.iter().any(|present| present == name);
    let prefixes: Vec<_> =
        OUTER_RANKS.iter().filter(|(rank, _)| set(rank)).flat_map(|(_, prefixes)| *prefixes).collect();
    let outer = |name: &OsStr| {
        let text = name.to_string_lossy();
        OF_ONE_JOB.iter().any(|variable| variable.name == text)
            || prefixes.iter().any(|prefix| text.starts_with(*prefix))
    };
    names.iter().filter(|name| outer(name)).cloned().collect()
}

/// What a starter must carry to other hosts: the job's own variables and what the caller set of crossmesh's.
pub(crate) fn exported(names: &[OsString], of_job: &[&'static str]) -> Vec<String> {
    let set = |variable: &&Variable| {
        names.iter().any(|name| name == variable.name) && !OF_ONE_JOB.contains(variable) && **variable != env::DOMAIN
    };
    of_job
        .iter()
        .copied()
        .chain(env::VARIABLES.iter().filter(set).map(|variable| variable.name))
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Vec<OsString> {
        texts.iter().map(OsString::from).collect()
    }

    #[test]
    fn an_outer_job_is_not_inherited() {
        let outside =
            names(&["PATH", "PMIX_MCA_gds", "OMPI_MCA_orte_base_help_aggregate", "CROSSMESH_DOMAINS", "PMI_X"]);
        assert!(inherited(&outside).is_empty());
        let inside =
            names(&["PATH", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_x", "PMI_RANK", "PMI_FD", "CROSSMESH_RANK"]);
        assert_eq!(inherited(&inside), inside[1..]);
    }

    #[test]
    fn settings_of_the_caller_reach_the_ranks() {
        let set = names(&["CROSSMESH_CHUNK", "PATH", "CROSSMESH_RANK", "CROSSMESH_LAUNCHER_KEY", "CROSSMESH_DOMAIN"]);
        assert_eq!(exported(&set, &["CROSSMESH_LAUNCHER"]), ["CROSSMESH_LAUNCHER", "CROSSMESH_CHUNK"]);
    }
}
