//! What a job is: its ranks, roles and domains.
//!
//! In: the numbers and names of the command line. Out: a [`JobPlan`]: who is which rank, and what each rank's program
//! finds in its environment. Guarantee: pure; counts agree, every rank has exactly one role when there are roles.

use crossmesh::base::Rank;
use crossmesh::base::env::{self, Variable};
use crossmesh::topology::{RankFacts, Topology};
use std::str::FromStr;
use thiserror::Error;

/// A job that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum PlanError {
    /// Neither a count nor roles.
    #[error("the number of ranks is missing; give -n N, or --role NAME=COUNT for each role")]
    NoCount,
    /// No ranks at all.
    #[error("a job of 0 ranks cannot be started; give -n 1 or more")]
    Empty,
    /// `-n` and the roles disagree.
    #[error("-n {ranks} and the roles {roles} disagree: the roles add up to {sum}; correct one or leave -n out")]
    CountsDisagree {
        /// `-n`.
        ranks: u32,
        /// The roles as given.
        roles: String,
        /// Their sum.
        sum: u64,
    },
    /// More ranks than can be numbered.
    #[error("the roles {roles} add up to {sum} ranks; at most {} can be numbered", u32::MAX)]
    TooMany {
        /// The roles as given.
        roles: String,
        /// Their sum.
        sum: u64,
    },
    /// A role given twice.
    #[error("role {name:?} is given twice; give each role once, its ranks are contiguous")]
    RoleTwice {
        /// Its name.
        name: String,
    },
    /// More domains than ranks, or none.
    #[error("--domains {domains} cannot cut {ranks} ranks; use 1 to {ranks}")]
    Domains {
        /// As given.
        domains: u32,
        /// Ranks of the job.
        ranks: u32,
    },
}

/// A text that is no role.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no role; write NAME=COUNT such as trainer=4: letters, digits, '-', '_', '.', and 1 rank or more")]
pub(crate) struct RoleError {
    text: String,
}

/// Ranks that do the same work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) ranks: u32,
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        let error = || RoleError { text: text.to_string() };
        let (name, count) = text.split_once('=').ok_or_else(error)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match count.parse() {
            Ok(ranks) if ranks > 0 && !name.is_empty() && name.chars().all(plain) => {
                Ok(Self { name: name.to_string(), ranks })
            }
            _ => Err(error()),
        }
    }
}

/// The ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobPlan {
    size: u32,
    roles: Vec<Role>,
    domains: Option<u32>,
}

impl JobPlan {
    /// Ranks are counted by `ranks`, by `roles`, or by both when they agree.
    pub(crate) fn new(ranks: Option<u32>, roles: Vec<Role>, domains: Option<u32>) -> Result<Self, PlanError> {
        for (position, role) in roles.iter().enumerate() {
            if roles[..position].iter().any(|earlier| earlier.name == role.name) {
                return Err(PlanError::RoleTwice { name: role.name.clone() });
            }
        }
        let sum: u64 = roles.iter().map(|role| u64::from(role.ranks)).sum();
        let size = match (ranks, roles.is_empty()) {
            (None, true) => return Err(PlanError::NoCount),
            (Some(ranks), true) => ranks,
            (Some(ranks), false) if u64::from(ranks) != sum => {
                return Err(PlanError::CountsDisagree { ranks, roles: roles_text(&roles), sum });
            }
            (_, false) => u32::try_from(sum).map_err(|_| PlanError::TooMany { roles: roles_text(&roles), sum })?,
        };
        if size == 0 {
            return Err(PlanError::Empty);
        }
        match domains {
            Some(domains) if domains == 0 || domains > size => Err(PlanError::Domains { domains, ranks: size }),
            _ => Ok(Self { size, roles, domains }),
        }
    }

    /// Number of ranks.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Name of the role of `rank`; `None` without roles.
    pub(crate) fn role(&self, rank: u32) -> Option<&str> {
        let mut end = 0u64;
        self.roles.iter().find_map(|role| {
            end += u64::from(role.ranks);
            (u64::from(rank) < end).then_some(role.name.as_str())
        })
    }

    /// Domain of every rank as the library will cut them; `None` without `--domains`.
    pub(crate) fn domains(&self) -> Option<Vec<u32>> {
        self.domains?;
        let fact = |rank| RankFacts {
            domain_count: self.domains,
            starts_side: rank == 0 || self.role(rank) != self.role(rank - 1),
            ..RankFacts::default()
        };
        let topology = Topology::from_facts(&(0..self.size).map(fact).collect::<Vec<_>>()).ok()?;
        Some((0..self.size).map(|rank| topology.domain(Rank(rank)).0).collect())
    }

    /// What stands before every line of `rank`: `[trainer:3 n1] `.
    pub(crate) fn prefix(&self, rank: u32, host: &str) -> String {
        match self.role(rank) {
            Some(role) => format!("[{role}:{rank} {host}] "),
            None => format!("[{rank} {host}] "),
        }
    }

    /// `rank 5 (generator)`.
    pub(crate) fn name(&self, rank: u32) -> String {
        match self.role(rank) {
            Some(role) => format!("rank {rank} ({role})"),
            None => format!("rank {rank}"),
        }
    }

    /// What the program of `rank` finds in its environment because of this plan.
    pub(crate) fn environment(&self, rank: u32) -> Vec<(Variable, String)> {
        let mut variables = vec![(env::RANK, rank.to_string()), (env::SIZE, self.size.to_string())];
        if let Some(role) = self.role(rank) {
            variables.push((env::ROLE, role.to_string()));
            variables.push((env::ROLES, roles_text(&self.roles)));
        }
        if let Some(domains) = self.domains {
            variables.push((env::DOMAINS, domains.to_string()));
        }
        variables
    }
}

fn roles_text(roles: &[Role]) -> String {
    let texts: Vec<_> = roles.iter().map(|role| format!("{}={}", role.name, role.ranks)).collect();
    texts.join(",")
}

/// `0-3, 7`: ascending ranks for people.
pub(crate) fn rank_list(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let texts: Vec<_> = runs
        .iter()
        .map(|&(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(texts: &[&str]) -> Vec<Role> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn roles_are_read() {
        assert_eq!("a.b-c_9=12".parse(), Ok(Role { name: "a.b-c_9".to_string(), ranks: 12 }));
        for text in ["", "a", "=4", "a=", "a=0", "a=-1", "a b=1", "a=1=1", "a,b=1", "a=4294967296"] {
            assert!(text.parse::<Role>().is_err(), "{text}");
        }
    }

    #[test]
    fn counts() {
        for (ranks, texts, size) in
            [(Some(1), &[][..], 1), (None, &["a=3"], 3), (None, &["a=3", "b=2"], 5), (Some(5), &["a=3", "b=2"], 5)]
        {
            assert_eq!(JobPlan::new(ranks, roles(texts), None).unwrap().size(), size);
        }
        let refused = [
            (None, &[][..], None),
            (Some(0), &[], None),
            (Some(4), &["a=3"], None),
            (None, &["a=3", "a=3"], None),
            (None, &["a=4294967295", "b=1"], None),
            (Some(3), &[], Some(4)),
            (Some(3), &[], Some(0)),
        ];
        for (ranks, texts, domains) in refused {
            assert!(JobPlan::new(ranks, roles(texts), domains).is_err(), "{ranks:?} {texts:?} {domains:?}");
        }
    }

    #[test]
    fn ranks_of_roles_are_contiguous() {
        let plan = JobPlan::new(None, roles(&["trainer=2", "generator=3"]), Some(2)).unwrap();
        let names: Vec<_> = (0..6).map(|rank| plan.role(rank)).collect();
        let (t, g) = (Some("trainer"), Some("generator"));
        assert_eq!(names, [t, t, g, g, g, None]);
        assert_eq!(plan.domains(), Some(vec![0, 0, 1, 1, 1]));
        assert_eq!(plan.prefix(2, "n1"), "[generator:2 n1] ");
        let environment: Vec<_> =
            plan.environment(4).into_iter().map(|(variable, value)| format!("{}={value}", variable.name)).collect();
        assert_eq!(
            environment,
            [
                "CROSSMESH_RANK=4",
                "CROSSMESH_SIZE=5",
                "CROSSMESH_ROLE=generator",
                "CROSSMESH_ROLES=trainer=2,generator=3",
                "CROSSMESH_DOMAINS=2"
            ]
        );
    }

    #[test]
    fn without_roles() {
        let plan = JobPlan::new(Some(2), Vec::new(), None).unwrap();
        assert_eq!((plan.role(0), plan.domains()), (None, None));
        assert_eq!(plan.prefix(1, "n1"), "[1 n1] ");
        assert_eq!(plan.environment(1).len(), 2);
    }

    #[test]
    fn lists_of_ranks() {
        for (ranks, text) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[0, 1, 2, 3, 7], "0-3, 7"),
            (&[1, 3, 4], "1, 3-4"),
            (&[u32::MAX], "4294967295"),
        ] {
            assert_eq!(rank_list(ranks.iter().copied()), text);
        }
    }
}
