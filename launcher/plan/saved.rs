//! Plans as files, for `--save` and `--load`. In: a job and its chosen route, or a file. Out: bytes, or a job as it was
//! saved. Guarantee: the library's own files; one that is damaged, of another version, or made for another cluster than
//! the one that is named is refused.

use super::Arguments;
use super::error::PlanCommandError;
use super::evaluate::{Asked, Evaluated};
use super::job::{Job, MOST_RANKS};
use crate::counted::counted;
use crate::plain_file;
use crossmesh::route::{PlanFileError, RouteOptions, SavedPlan};
use crossmesh::topology::Synthetic;
use std::path::{Path, PathBuf};

/// The file of the plan of `job` by the chosen route; `path` is its name in errors.
pub(super) fn bytes(job: &Job, evaluated: &Evaluated, path: &Path) -> Result<Vec<u8>, PlanCommandError> {
    let plan = SavedPlan::for_machine(job.manifest.clone(), &job.machine, evaluated.options)?;
    plan.to_bytes(path).map_err(PlanCommandError::Save)
}

/// A plan that was read.
#[derive(Debug)]
pub(super) struct Loaded {
    path: PathBuf,
    plan: SavedPlan,
}

impl Loaded {
    pub(super) fn read(path: &Path) -> Result<Self, PlanCommandError> {
        if path.metadata().is_ok_and(|facts| !facts.is_file()) {
            return Err(PlanCommandError::LoadTarget { path: path.to_path_buf() });
        }
        let unread = |source| PlanFileError::Io { path: path.to_path_buf(), source };
        let bytes = plain_file::read(path).map_err(unread)?;
        Ok(Self { path: path.to_path_buf(), plan: SavedPlan::from_bytes(&bytes, path)? })
    }

    /// Its route, which is the one to choose.
    pub(super) fn asked(&self, simulate: bool) -> Result<Asked, PlanCommandError> {
        let RouteOptions { kind, injection } = self.plan.options;
        Asked::new(Some(&kind.to_string()), Some(&injection.to_string()), simulate)
    }

    /// Its transfer on the cluster that is named, which must be the one that it was made for.
    pub(super) fn job(&self, arguments: &Arguments) -> Result<Job, PlanCommandError> {
        let cluster: Synthetic = arguments.topology.parse()?;
        let manifest = &self.plan.manifest;
        let ranks = self.plan.rank_count() as u32;
        // Destinations follow the sources; stages without a layer may hold nothing.
        let sources = manifest.side_ranks(|tensor| &tensor.destination).first().map_or(ranks, |first| first.0);
        let destinations = ranks - sources;
        if sources.checked_add(destinations).is_none_or(|ranks| ranks > MOST_RANKS) {
            return Err(PlanCommandError::TooManyRanks { sources, destinations, most: MOST_RANKS });
        }
        let machine = cluster.machine(&[sources, destinations])?;
        self.plan.expect_machine(&machine, self.plan.options.with_environment()?, &self.path)?;
        Ok(Job {
            title: format!("{}, as saved", self.path.display()),
            sides: [sources, destinations].map(|ranks| counted(ranks, "rank")),
            coordinates: Vec::new(),
            manifest: manifest.clone(),
            domain_labels: (0..machine.topology.domain_count() as u32).collect(),
            machine,
            expect: None,
            unmatched: Vec::new(),
            warnings: Vec::new(),
        })
    }
}
