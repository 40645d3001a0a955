//! What is to be planned. In: arguments. Out: [`Job`]s: a manifest on a machine. Guarantee: files are read and
//! contradictions found before anything is planned; nothing here depends on the machine this runs on.

use super::Arguments;
use super::error::PlanCommandError;
use crate::case::{self, Case, Expect};
use crate::checkpoint::Model;
use crate::{cast_option, plain_file, rules_option};
use crossmesh::base::Rank;
use crossmesh::layout::parallel::{ParallelSpec, System, WeightView};
use crossmesh::plan::{Manifest, ModelSide, model_manifest};
use crossmesh::topology::{Machine, Synthetic, Topology};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Most ranks of which all links are planned; a rank's own plan has no limit.
pub(super) const MOST_RANKS: u32 = 1 << 16;

/// A manifest on a machine.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) title: String,
    /// How the source and the destination lie.
    pub(super) sides: [String; 2],
    /// Per rank its coordinates on the axes of its side; none where axes have no names.
    pub(super) coordinates: Vec<String>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) machine: Machine,
    /// Per domain of the machine, its number as the user knows it.
    pub(super) domain_labels: Vec<u32>,
    /// What a case says that is right.
    pub(super) expect: Option<Expect>,
    /// Tensors that no rule knows.
    pub(super) unmatched: Vec<String>,
    /// What may not be meant.
    pub(super) warnings: Vec<String>,
}

impl Job {
    /// Ranks of a side, ascending.
    pub(super) fn sources(&self) -> Vec<Rank> {
        self.manifest.side_ranks(|tensor| &tensor.source)
    }

    /// Ranks of a side, ascending.
    pub(super) fn destinations(&self) -> Vec<Rank> {
        self.manifest.side_ranks(|tensor| &tensor.destination)
    }
}

/// All jobs that the arguments name.
pub(super) fn jobs(arguments: &Arguments) -> Result<Vec<Job>, PlanCommandError> {
    let cluster: Synthetic = arguments.topology.parse()?;
    if let Some(text) = &arguments.case {
        let cases = case::read(text)?;
        return cases.into_iter().map(|case| case_job(case, &cluster)).collect();
    }
    let Some(path) = &arguments.model else { return Ok(Vec::new()) };
    let (source, destination) = sides(arguments)?;
    Ok(vec![model_job(path, arguments, &source, &destination, &cluster)?])
}

fn sides(arguments: &Arguments) -> Result<(ParallelSpec, ParallelSpec), PlanCommandError> {
    if let Some(path) = &arguments.system {
        let text = plain_file::read_text(path)
            .map_err(|source| PlanCommandError::SystemFile { path: path.clone(), source })?;
        let System { source, destination } = System::parse(&text, &path.display().to_string())?;
        return Ok((source, destination));
    }
    let (Some(src), Some(dst)) = (&arguments.src, &arguments.dst) else { return Err(PlanCommandError::NoSides) };
    let spec = |side, text: &String| {
        ParallelSpec::parse(text).map_err(|source| PlanCommandError::Spec { side, text: text.clone(), source })
    };
    Ok((spec("src", src)?, spec("dst", dst)?))
}

fn model_job(
    path: &Path,
    arguments: &Arguments,
    source: &ParallelSpec,
    destination: &ParallelSpec,
    cluster: &Synthetic,
) -> Result<Job, PlanCommandError> {
    let (sources, destinations) = (source.rank_count(), destination.rank_count());
    let ranks = sources.checked_add(destinations).filter(|&ranks| ranks <= MOST_RANKS);
    let ranks = ranks.ok_or(PlanCommandError::TooManyRanks { sources, destinations, most: MOST_RANKS })?;
    let opened = Model::open(path)?;
    let model = opened.description(&path.display().to_string())?;
    if model.tensors().is_empty() {
        return Err(PlanCommandError::NoTensors { path: path.to_path_buf() });
    }
    let rules = rules_option::read(arguments.rules.as_deref(), opened.rules()?)?;
    let maps = (arguments.expert_map_src.as_deref(), arguments.expert_map_dst.as_deref());
    let rules = rules_option::with_expert_maps(rules, maps.0, maps.1)?;
    let all: Vec<Rank> = (0..ranks).map(Rank).collect();
    let (first, second) = all.split_at(sources as usize);
    let side = |spec, ranks| ModelSide { spec, ranks, rules: &rules };
    let made = model_manifest(&model, side(source, first), side(destination, second))?;
    let manifest = match arguments.cast.as_deref() {
        None => made.manifest,
        Some(text) => {
            let wrong = |allowed| PlanCommandError::Option { option: "cast", value: text.into(), allowed };
            made.manifest.cast_to(cast_option::read(text).map_err(wrong)?, &made.keep_dtype)?
        }
    };
    let machine = cluster.machine(&[sources, destinations])?;
    let sides = [source, destination].map(short);
    Ok(Job {
        title: format!("{}, {} to {}", path.display(), sides[0], sides[1]),
        sides,
        coordinates: [source, destination].into_iter().flat_map(coordinates).collect(),
        manifest: Arc::new(manifest),
        domain_labels: (0..machine.topology.domain_count() as u32).collect(),
        machine,
        expect: None,
        unmatched: made.unmatched,
        warnings: made.idle.iter().map(|(side, axis)| format!("{side} {axis}")).collect(),
    })
}

/// The spec without axes of one rank, as far as it reads back as the same spec: with the axes that decide what `ep` is to
/// the others, and at least one.
fn short(spec: &ParallelSpec) -> String {
    let text = spec.to_string();
    let counts = |item: &&str| item.contains(':') || !item.ends_with("=1");
    let items = text.split(',').filter(counts).collect::<Vec<_>>().join(",");
    match ParallelSpec::parse(&items) {
        Ok(read) if read.convention() == spec.convention() => items,
        _ => text,
    }
}

/// Per rank its coordinates on axes of more than one rank, such as `pp 1, tp 0`.
fn coordinates(spec: &ParallelSpec) -> Vec<String> {
    let axes = spec.axes(WeightView::Dense);
    let place = |rank: u32| {
        let mut rest = rank;
        let mut parts = Vec::new();
        for &(axis, size) in axes.iter().rev().filter(|&&(_, size)| size > 1) {
            parts.push(format!("{axis} {}", rest % size));
            rest /= size;
        }
        parts.reverse();
        parts.join(", ")
    };
    (0..spec.rank_count()).map(place).collect()
}

/// A case has its own domains, or its sides have one each; every rank has a GPU and cards as the cluster's first.
fn case_job(case: Case, cluster: &Synthetic) -> Result<Job, PlanCommandError> {
    if case.ranks as u64 > u64::from(MOST_RANKS) {
        return Err(PlanCommandError::CaseRanks { name: case.name, ranks: case.ranks as u64, most: MOST_RANKS });
    }
    let sources: BTreeSet<Rank> = case.manifest.side_ranks(|tensor| &tensor.source).into_iter().collect();
    let two_sides = || (0..case.ranks as u32).map(|rank| u32::from(!sources.contains(&Rank(rank)))).collect();
    let domains: Vec<u32> = case.domains.clone().unwrap_or_else(two_sides);
    let topology = Topology::from_domains(&domains);
    let model = cluster.machine(&[1])?;
    let name = format!("{} with domains as given", model.name);
    let machine = Machine::one_nic_each(name, topology, model.nics[0].rate, model.nvlink);
    let mut domain_labels = vec![0; machine.topology.domain_count()];
    for (rank, &label) in domains.iter().enumerate() {
        domain_labels[machine.topology.domain(Rank(rank as u32)).index()] = label;
    }
    let Case { name: title, sides, manifest, expect, .. } = case;
    Ok(Job {
        title,
        sides,
        coordinates: Vec::new(),
        manifest,
        machine,
        domain_labels,
        expect,
        unmatched: Vec::new(),
        warnings: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossmesh::layout::parallel::ParallelAxis;
    use proptest::prelude::*;

    fn shortened(text: &str) -> String {
        short(&ParallelSpec::parse(text).unwrap())
    }

    #[test]
    fn short_specs_keep_what_counts() {
        assert_eq!(shortened("tp=4,dp=1,pp=1+1"), "tp=4,pp=1+1");
        assert_eq!(shortened("tp=4,ep=4,etp=1,edp=1"), "tp=4,ep=4,etp=1,edp=1");
        assert_eq!(shortened("tp=4,cp=1,dp=2,etp=1,ep=4,edp=2"), "tp=4,dp=2,ep=4,edp=2");
        assert_eq!(shortened("megatron:tp=1,dp=8,ep=8"), "megatron:tp=1,dp=8,ep=8");
        assert_eq!(shortened("tp=1,dp=1"), "tp=1,dp=1");
    }

    proptest! {
        /// What a title says, typed back, is the same spec: ranks, stages, and where they lie in both views.
        #[test]
        fn short_specs_read_back(
            axes in prop::sample::subsequence(ParallelAxis::ALL.to_vec(), 1..=ParallelAxis::ALL.len()).prop_shuffle(),
            sizes in prop::collection::vec(prop::sample::select(vec!["1", "1", "2"]), ParallelAxis::ALL.len()),
            stages in prop::sample::select(vec!["1", "2", "1+2", "0+1"]),
            prefix in prop::sample::select(vec!["", "m2n:", "megatron:"]),
        ) {
            let item = |(axis, size): (&ParallelAxis, &str)| match axis {
                ParallelAxis::Pipeline => format!("{axis}={stages}"),
                axis => format!("{axis}={size}"),
            };
            let items: Vec<String> = axes.iter().zip(sizes).map(item).collect();
            let text = format!("{prefix}{}", items.join(","));
            let Ok(spec) = ParallelSpec::parse(&text) else { return Ok(()) };
            let read = ParallelSpec::parse(&short(&spec)).unwrap();
            prop_assert_eq!(read.rank_count(), spec.rank_count(), "{}", text);
            prop_assert_eq!(read.convention(), spec.convention(), "{}", text);
            prop_assert_eq!(read.stage_layers(), spec.stage_layers(), "{}", text);
            for view in [WeightView::Dense, WeightView::Expert] {
                let cut = |spec: &ParallelSpec| {
                    spec.axes(view).into_iter().filter(|&(_, size)| size > 1).collect::<Vec<_>>()
                };
                prop_assert_eq!(cut(&read), cut(&spec), "{}", text);
            }
        }
    }
}
