//! The steps of a refit, the same on every rank. In: world, arguments. Out: moved weights, results. Guarantee: every
//! collective step is reached by every rank, or the job is aborted.

use super::Arguments;
use super::consent::agree;
use super::error::RefitError;
use super::output::Stored;
use super::report::{NicRate, RankRow, Results, spread};
use super::room::{self, Claim};
use super::shards::{self, SideLayout, SideMemory};
use super::sides::Request;
use super::transfer::Transfer;
use super::{everywhere, nic_rate, output};
use crate::checkpoint::Model;
use crate::{result_file, rules_option};
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Communicator, Report, Side};
use crossmesh::plan::{Manifest, ModelManifest};
use std::path::Path;
use std::sync::Arc;

/// A rank's part of the job.
struct Job<'a> {
    world: &'a Communicator,
    arguments: &'a Arguments,
    request: &'a Request,
    model: Model,
    manifest: Arc<Manifest>,
    unknown: Vec<String>,
    stored: Stored,
    source: SideMemory,
    destination: SideMemory,
}

/// The same before it has memory.
struct Planned {
    model: Model,
    manifest: Arc<Manifest>,
    unknown: Vec<String>,
    stored: Stored,
    source: SideLayout,
    destination: SideLayout,
    claim: Claim,
}

/// Runs the job.
pub(super) fn run(world: &Communicator, arguments: &Arguments, request: &Request) -> Result<(), RefitError> {
    let sides = agree(world, request.ranks(world.size()), deadline()?)?;
    let model = everywhere::open(world, &request.model, &sides.0, deadline()?)?;
    let planned = agree(world, Planned::new(world, arguments, request, model, sides), deadline()?)?;
    room::check(world, &planned.claim, deadline()?)?;
    let job = agree(world, Job::new(world, arguments, request, planned), deadline()?)?;
    let mut transfer = job.transfer().init(request.settings.route)?;
    let report = transfer.report().clone();
    let seconds = job.transfer().run(&mut transfer)?;
    let saturated = job.transfer().sum(transfer.saturated())?;
    // The measurement takes staging memory too.
    drop(transfer);
    let rate = job.nic_rate(&report)?;
    if arguments.verify {
        job.transfer().check(saturated)?;
    }
    if let Some(folder) = &arguments.out {
        job.write(folder)?;
    }
    let results = job.results(&report, rate, &seconds, saturated)?;
    let publish = || result_file::publish(&results, arguments.json.as_deref(), || results.table());
    let shown = if world.rank() == SPEAKER { publish().map_err(RefitError::from) } else { Ok(()) };
    agree(world, shown, deadline()?)
}

/// The rank that writes the results.
pub(super) const SPEAKER: Rank = Rank(0);

pub(super) fn deadline() -> Result<Deadline, RefitError> {
    Ok(Communicator::default_deadline()?)
}

impl Planned {
    /// Plans, and finds out whether results can be written.
    fn new(
        world: &Communicator,
        arguments: &Arguments,
        request: &Request,
        model: Model,
        (sources, destinations): (Vec<Rank>, Vec<Rank>),
    ) -> Result<Self, RefitError> {
        let rules = rules_option::read(arguments.rules.as_deref(), model.rules()?)?;
        let maps = (arguments.expert_map_src.as_deref(), arguments.expert_map_dst.as_deref());
        let rules = rules_option::with_expert_maps(rules, maps.0, maps.1)?;
        let made = shards::manifest(&model, &rules, request, &sources, &destinations)?;
        if world.rank() == SPEAKER {
            made.idle.iter().for_each(|(side, axis)| log::warn!("{side} {axis}"));
        }
        let ModelManifest { manifest, unmatched: unknown, source_fused, destination_fused: fused, .. } = made;
        let model = model.arranged(&manifest, &made.origins);
        let manifest = Arc::new(manifest);
        if let Some(folder) = &arguments.out
            && destinations.contains(&world.rank())
        {
            output::try_folder(arguments, folder, world.rank())?;
        }
        if world.rank() == SPEAKER {
            output::try_results(arguments)?;
        }
        let lay_out = |fused, side| SideLayout::new(&manifest, fused, world.rank(), side);
        let source = lay_out(&source_fused, Side::Source)?.with_transposed(&made.source_transposed);
        let destination = lay_out(&fused, Side::Destination)?.with_transposed(&made.destination_transposed);
        let stored = Stored { fused, leading: made.leading };
        let claim = Claim::new(world, &manifest, [&source, &destination], request.settings.memory)?;
        Ok(Self { model, manifest, unknown, stored, source, destination, claim })
    }
}

impl<'a> Job<'a> {
    /// Takes memory, reads the sources' shards.
    fn new(
        world: &'a Communicator,
        arguments: &'a Arguments,
        request: &'a Request,
        planned: Planned,
    ) -> Result<Self, RefitError> {
        let Planned { model, manifest, unknown, stored, source, destination, claim: _ } = planned;
        let memory = request.settings.memory;
        let (source, destination) = (source.allocate(memory)?, destination.allocate(memory)?);
        shards::fill(&model, &manifest, world.rank(), &source)?;
        Ok(Self { world, arguments, request, model, manifest, unknown, stored, source, destination })
    }

    /// The rate for the bound: as given, or measured between two ranks that the network joins.
    fn nic_rate(&self, report: &Report) -> Result<NicRate, RefitError> {
        if let Some(rate) = self.request.settings.nic_rate {
            return Ok(NicRate { bytes_per_second: Some(rate), from: "given" });
        }
        let ranks = &report.traffic.ranks;
        let sender = ranks.iter().position(|rank| rank.network_sent > 0);
        let topology = self.world.topology();
        let pair = sender.and_then(|sender| {
            let home = topology.domain(Rank(sender as u32));
            let away = |&rank: &usize| ranks[rank].network_received > 0 && topology.domain(Rank(rank as u32)) != home;
            Some((Rank(sender as u32), Rank((0..ranks.len()).find(away)? as u32)))
        });
        let Some((from, to)) = pair else { return Ok(NicRate { bytes_per_second: None, from: "not needed" }) };
        let rate = nic_rate::measure(self.world, from, to, deadline()?)?;
        Ok(NicRate { bytes_per_second: Some(rate), from: "measured between two ranks" })
    }

    /// What moves, apart from what is done with it.
    fn transfer(&self) -> Transfer<'_> {
        Transfer {
            world: self.world,
            model: &self.model,
            manifest: &self.manifest,
            source: &self.source,
            destination: &self.destination,
            repeat: self.arguments.repeat,
            verify: self.arguments.verify,
        }
    }

    /// Writes all ranks' shards, or none.
    fn write(&self, folder: &Path) -> Result<(), RefitError> {
        let files = output::prepare(folder, &self.manifest, &self.stored, self.world.rank(), &self.destination);
        let files = agree(self.world, files, deadline()?)?;
        agree(self.world, output::place(files), deadline()?)
    }

    /// Joins all ranks' numbers; the time of a run is that of its slowest rank.
    fn results(&self, report: &Report, rate: NicRate, seconds: &[f64], saturated: u64) -> Result<Results, RefitError> {
        let mine = serde_json::to_vec(&(seconds, report.staging_bytes, self.model.is_here())).unwrap_or_default();
        let all = self.world.allgather(&mine, deadline()?)?;
        let all: Vec<(Vec<f64>, u64, bool)> =
            all.iter().map(|bytes| serde_json::from_slice(bytes).unwrap_or_default()).collect();
        let runs: Vec<f64> = (0..seconds.len())
            .map(|run| all.iter().filter_map(|(seconds, _, _)| seconds.get(run)).copied().fold(0.0, f64::max))
            .collect();
        let (median, least, most) = spread(&runs);
        let bytes = self.manifest.global_bytes()?;
        let topology = self.world.topology();
        let per_rank = all.iter().enumerate().map(|(rank, (seconds, staging_bytes, _))| RankRow {
            rank,
            host: topology.host(Rank(rank as u32)).to_string(),
            domain: topology.domain(Rank(rank as u32)).0,
            network_sent: report.traffic.ranks[rank].network_sent,
            network_received: report.traffic.ranks[rank].network_received,
            local_read: report.traffic.ranks[rank].local_received,
            seconds: spread(seconds).0,
            staging_bytes: *staging_bytes,
        });
        Ok(Results {
            model: self.request.model.display().to_string(),
            src: self.request.src.spec.to_string(),
            dst: self.request.dst.spec.to_string(),
            cast: self.request.cast.map(|dtype| dtype.to_string()),
            saturated,
            route: report.route.kind.to_string(),
            injection: report.route.injection.to_string(),
            tensors: report.tensors,
            bytes,
            delivered_bytes: report.delivered_bytes,
            inter_domain_bytes: report.traffic.inter_domain_bytes,
            ingress_per_domain: report.traffic.ingress_per_domain.clone(),
            domains: topology.domain_count(),
            repeat: self.arguments.repeat,
            seconds: median,
            seconds_min: least,
            seconds_max: most,
            gb_per_s: if median > 0.0 { bytes as f64 / median / 1e9 } else { 0.0 },
            bound_seconds: Results::bound(report, rate),
            nic_rate: rate.bytes_per_second,
            nic_rate_from: rate.from,
            staging_bytes: all.iter().map(|&(_, staging, _)| staging).max().unwrap_or(0),
            chunk_bytes: report.chunk_bytes,
            flows: report.flows,
            plan_seconds: report.plan_time.as_secs_f64(),
            verified: self.arguments.verify.then_some(true),
            model_ranks: all.iter().filter(|(_, _, here)| *here).count(),
            ranks: self.world.size(),
            replicated_unknown: self.unknown.clone(),
            per_rank: per_rank.collect(),
        })
    }
}
