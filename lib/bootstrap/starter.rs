//! What started this process, and what follows from it.
//!
//! In: the environment, as a function from names to values. Out: [`Choice`]. Guarantee: pure; the same environment
//! gives the same choice; what cannot be decided is an error that says what was seen and what to type.

use super::error::BootstrapError;
use crate::base::{Rank, env};
use std::fmt;

/// An MPI with an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mpi {
    OpenMpi,
    Mpich,
}

impl Mpi {
    pub(super) fn name(self) -> &'static str {
        match self {
            Mpi::OpenMpi => "Open MPI",
            Mpi::Mpich => "MPICH",
        }
    }
}

/// Who started the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Starter {
    /// `CROSSMESH_RANK` and `CROSSMESH_SIZE`: `crossmesh run`, or the user.
    Crossmesh,
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's mpirun, or another that speaks PMI.
    Hydra,
    /// srun with one of its MPI plugins.
    Srun(Option<Mpi>),
    /// Something that speaks PMIx.
    Pmix,
    Nobody,
}

impl Starter {
    /// The MPI it starts processes for.
    pub(super) fn mpi(self) -> Option<Mpi> {
        match self {
            Starter::OpenMpi | Starter::Pmix => Some(Mpi::OpenMpi),
            Starter::Hydra => Some(Mpi::Mpich),
            Starter::Srun(mpi) => mpi,
            Starter::Crossmesh | Starter::Nobody => None,
        }
    }
}

impl fmt::Display for Starter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Starter::Crossmesh => "whoever set CROSSMESH_RANK and CROSSMESH_SIZE",
            Starter::OpenMpi => "Open MPI's mpirun",
            Starter::Hydra => "MPICH's mpirun",
            Starter::Srun(Some(Mpi::OpenMpi)) => "srun --mpi=pmix",
            Starter::Srun(Some(Mpi::Mpich)) => "srun --mpi=pmi2",
            Starter::Srun(None) => "srun without an MPI plugin",
            Starter::Pmix => "a PMIx starter",
            Starter::Nobody => "no starter",
        })
    }
}

/// The starter with the rank and size that it states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) starter: Starter,
    pub(super) rank: Option<Rank>,
    pub(super) size: Option<u32>,
}

impl Seen {
    /// Recognises the starter. The innermost comes first: mpirun may itself run under srun, and `crossmesh run` under
    /// both.
    pub(super) fn look(get: impl Fn(&str) -> Option<String>) -> Self {
        let has = |name: &str| get(name).is_some();
        let number = |names: &[&str]| names.iter().find_map(|name| get(name)?.trim().parse().ok());
        let step = has("SLURM_STEP_ID") || has("SLURM_STEPID");
        let plugin = get("SLURM_MPI_TYPE").unwrap_or_default();
        let starter = if has(env::RANK.name) && has(env::SIZE.name) {
            Starter::Crossmesh
        } else if has("OMPI_COMM_WORLD_SIZE") {
            Starter::OpenMpi
        } else if has("PMI_SIZE") {
            // Hydra starts its agents through srun, whose plugin then is the agents', unless it is PMI itself.
            if step && plugin == "pmi2" { Starter::Srun(Some(Mpi::Mpich)) } else { Starter::Hydra }
        } else if step && plugin.starts_with("pmix") {
            Starter::Srun(Some(Mpi::OpenMpi))
        } else if has("PMIX_RANK") {
            Starter::Pmix
        } else if step && has("SLURM_PROCID") {
            Starter::Srun(None)
        } else {
            Starter::Nobody
        };
        let (rank, size): (&[&str], &[&str]) = match starter {
            Starter::Crossmesh | Starter::Nobody => (&[env::RANK.name], &[env::SIZE.name]),
            Starter::OpenMpi => (&["OMPI_COMM_WORLD_RANK"], &["OMPI_COMM_WORLD_SIZE"]),
            Starter::Hydra | Starter::Srun(Some(Mpi::Mpich)) => (&["PMI_RANK"], &["PMI_SIZE"]),
            Starter::Srun(_) => (&["SLURM_PROCID"], &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"]),
            Starter::Pmix => (&["PMIX_RANK"], &[]),
        };
        Self { starter, rank: number(rank).map(Rank), size: number(size) }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.starter)?;
        if let Some(rank) = self.rank {
            write!(formatter, ", rank {rank}")?;
        }
        if let Some(size) = self.size {
            write!(formatter, " of {size}")?;
        }
        Ok(())
    }
}

/// What `CROSSMESH_BOOTSTRAP` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    #[default]
    Auto,
    Mpi,
    Tcp,
}

impl std::str::FromStr for Mode {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Mode::Auto),
            "mpi" => Ok(Mode::Mpi),
            "tcp" => Ok(Mode::Tcp),
            _ => Err(()),
        }
    }
}

/// How ranks find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Through the adapter of this MPI.
    Mpi(Mpi),
    /// Through the rendezvous of the unique id.
    Tcp { rank: Rank, size: u32 },
    /// There is nobody to find.
    Solo,
}

/// What else the choice depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Means {
    /// `CROSSMESH_UNIQUE_ID` is set.
    pub(super) unique_id: bool,
    /// `CROSSMESH_MPI_ADAPTER` is set.
    pub(super) adapter_named: bool,
    /// There is an adapter for the starter's MPI.
    pub(super) adapter_found: bool,
}

const START: &str = "start it with crossmesh run, mpirun or srun --mpi=pmix, or set CROSSMESH_UNIQUE_ID, CROSSMESH_RANK and CROSSMESH_SIZE";

/// Decides how ranks find each other.
pub(super) fn choose(mode: Mode, seen: Seen, means: Means) -> Result<Choice, BootstrapError> {
    let mpi = seen.starter.mpi();
    // A named adapter decides by itself which MPI it is for.
    let forced = mpi.or(means.adapter_named.then_some(Mpi::OpenMpi));
    match (mode, forced, mpi) {
        (Mode::Tcp, ..) => tcp(seen, means),
        (Mode::Mpi, Some(mpi), _) => Ok(Choice::Mpi(mpi)),
        (Mode::Mpi, None, _) => undecided(seen, "CROSSMESH_BOOTSTRAP=mpi", "start it with mpirun or srun --mpi=pmix"),
        (Mode::Auto, _, Some(mpi)) if means.adapter_found => Ok(Choice::Mpi(mpi)),
        (Mode::Auto, ..) if means.unique_id => tcp(seen, means),
        (Mode::Auto, ..) if seen.starter == Starter::Nobody || seen.size == Some(1) => Ok(Choice::Solo),
        // The adapter's own error says where it was looked for.
        (Mode::Auto, _, Some(mpi)) => Ok(Choice::Mpi(mpi)),
        (Mode::Auto, ..) => undecided(seen, "no unique id", START),
    }
}

fn tcp(seen: Seen, means: Means) -> Result<Choice, BootstrapError> {
    match (means.unique_id, seen.rank, seen.size) {
        (true, Some(rank), Some(size)) => Ok(Choice::Tcp { rank, size }),
        (true, ..) => {
            undecided(seen, "CROSSMESH_UNIQUE_ID but no rank and size", "set CROSSMESH_RANK and CROSSMESH_SIZE")
        }
        (false, ..) => undecided(seen, "CROSSMESH_BOOTSTRAP=tcp but no unique id", START),
    }
}

fn undecided(seen: Seen, found: &str, remedy: &str) -> Result<Choice, BootstrapError> {
    Err(BootstrapError::Undecided { seen: format!("{found}; {seen}"), remedy: remedy.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(variables: &[(&str, &str)]) -> Seen {
        Seen::look(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn starters_are_recognised() {
        let ompi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "1")];
        let hydra = [("PMI_RANK", "2"), ("PMI_SIZE", "3"), ("PMI_FD", "7")];
        let srun =
            [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "5"), ("SLURM_NTASKS", "9"), ("SLURM_STEP_NUM_TASKS", "8")];
        let plugin =
            |plugin| [&srun[..], &[("SLURM_MPI_TYPE", plugin), ("PMI_RANK", "0"), ("PMIX_RANK", "0")]].concat();
        let ours = [("CROSSMESH_RANK", "6"), ("CROSSMESH_SIZE", "7")];
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "1")];
        let cases = [
            (ompi.to_vec(), Starter::OpenMpi, Some(1), Some(4)),
            (hydra.to_vec(), Starter::Hydra, Some(2), Some(3)),
            ([&ompi[..], &srun].concat(), Starter::OpenMpi, Some(1), Some(4)),
            ([&hydra[..], &srun].concat(), Starter::Hydra, Some(2), Some(3)),
            (plugin("pmix_v4"), Starter::Srun(Some(Mpi::OpenMpi)), Some(5), Some(8)),
            ([&hydra[..], &plugin("pmix")].concat(), Starter::Hydra, Some(2), Some(3)),
            ([&hydra[..], &plugin("pmi2")].concat(), Starter::Srun(Some(Mpi::Mpich)), Some(2), Some(3)),
            ([&srun[..], &[("SLURM_MPI_TYPE", "none")]].concat(), Starter::Srun(None), Some(5), Some(8)),
            ([&ours[..], &ompi].concat(), Starter::Crossmesh, Some(6), Some(7)),
            (batch.to_vec(), Starter::Nobody, None, None),
            (vec![("PMIX_RANK", "3")], Starter::Pmix, Some(3), None),
        ];
        for (variables, starter, rank, size) in cases {
            assert_eq!(look(&variables), Seen { starter, rank: rank.map(Rank), size }, "{variables:?}");
        }
    }

    fn seen(starter: Starter, rank: Option<u32>, size: Option<u32>) -> Seen {
        Seen { starter, rank: rank.map(Rank), size }
    }

    #[test]
    fn choices_follow_mode_starter_and_means() {
        // i: there is a unique id, n: an adapter is named, f: an adapter is found.
        let means = |text: &str| {
            let has = |letter| text.contains(letter);
            Means { unique_id: has('i'), adapter_named: has('n'), adapter_found: has('f') }
        };
        let tcp = Some(Choice::Tcp { rank: Rank(1), size: 3 });
        let open = Some(Choice::Mpi(Mpi::OpenMpi));
        let mpich = Some(Choice::Mpi(Mpi::Mpich));
        let mpirun = seen(Starter::OpenMpi, Some(1), Some(3));
        let hydra = seen(Starter::Hydra, Some(1), Some(3));
        let srun = seen(Starter::Srun(None), Some(1), Some(3));
        let ours = seen(Starter::Crossmesh, Some(1), Some(3));
        let nobody = seen(Starter::Nobody, None, None);
        let cases = [
            (Mode::Auto, mpirun, "f", open),
            (Mode::Auto, mpirun, "fi", open),
            (Mode::Auto, mpirun, "i", tcp),
            (Mode::Auto, mpirun, "", open),
            (Mode::Auto, hydra, "f", mpich),
            (Mode::Auto, ours, "fi", tcp),
            (Mode::Auto, ours, "f", None),
            (Mode::Auto, srun, "i", tcp),
            (Mode::Auto, srun, "", None),
            (Mode::Auto, seen(Starter::Srun(None), Some(0), Some(1)), "", Some(Choice::Solo)),
            (Mode::Auto, seen(Starter::OpenMpi, Some(0), Some(1)), "", Some(Choice::Solo)),
            (Mode::Auto, nobody, "", Some(Choice::Solo)),
            (Mode::Auto, nobody, "i", None),
            (Mode::Mpi, mpirun, "", open),
            (Mode::Mpi, hydra, "i", mpich),
            (Mode::Mpi, nobody, "", None),
            (Mode::Mpi, nobody, "nf", open),
            (Mode::Tcp, mpirun, "fi", tcp),
            (Mode::Tcp, nobody, "i", None),
            (Mode::Tcp, ours, "", None),
        ];
        for (mode, seen, given, expected) in cases {
            let choice = choose(mode, seen, means(given));
            assert_eq!(choice.as_ref().ok().copied(), expected, "{mode:?} {seen:?} {given:?}: {choice:?}");
        }
    }

    #[test]
    fn an_undecided_start_says_what_was_seen_and_what_to_type() {
        let means = Means { unique_id: false, adapter_named: false, adapter_found: false };
        let text = choose(Mode::Auto, seen(Starter::Srun(None), Some(1), Some(3)), means).unwrap_err().to_string();
        assert!(text.contains("srun without an MPI plugin, rank 1 of 3") && text.contains("crossmesh run"), "{text}");
    }
}
