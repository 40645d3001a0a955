//! The steps of a refit, the same on every rank. In: world, arguments. Out: moved weights, results. Guarantee: every
//! collective step is reached by every rank, or the job is aborted.

use super::Arguments;
use super::consent::agree;
use super::error::RefitError;
use super::progress::Progress;
use super::report::{NicRate, RankRow, Results, spread};
use super::shards::{self, SideMemory};
use super::sides::Request;
use super::verify::{self, Held};
use super::{everywhere, nic_rate, output};
use crate::checkpoint::Model;
use crate::rules_option;
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Buffers, CommError, Communicator, Report, Reshard, ReshardOptions, Side};
use crossmesh::layout::parallel::FusedTensor;
use crossmesh::plan::{Manifest, ModelManifest};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A rank's part of the job.
struct Job<'a> {
    world: &'a Communicator,
    arguments: &'a Arguments,
    request: &'a Request,
    model: Model,
    manifest: Arc<Manifest>,
    unknown: Vec<String>,
    /// What destinations store in place of tensors of the manifest.
    fused: Vec<FusedTensor>,
    source: SideMemory,
    destination: SideMemory,
}

/// Runs the job.
pub(super) fn run(world: &Communicator, arguments: &Arguments, request: &Request) -> Result<(), RefitError> {
    let sides = agree(world, request.ranks(world.size()), deadline()?)?;
    let model = everywhere::open(world, &arguments.model, &sides.0, deadline()?)?;
    let job = agree(world, Job::new(world, arguments, request, model, sides), deadline()?)?;
    let mut buffers = Buffers::new(&job.manifest);
    job.source.give(&mut buffers, Side::Source);
    job.destination.give(&mut buffers, Side::Destination);
    let options = ReshardOptions { route: request.route };
    let prepared = world.reshard_init(&job.manifest, &buffers, options, deadline()?);
    let mut transfer = agree(world, prepared.map_err(RefitError::from), deadline()?)?;
    let report = transfer.report().clone();
    let seconds = job.transfer(&mut transfer)?;
    let saturated = job.sum(transfer.saturated())?;
    // The measurement takes staging memory too.
    drop(transfer);
    let rate = job.nic_rate(&report)?;
    if arguments.verify {
        job.verify(saturated)?;
    }
    if let Some(folder) = &arguments.out {
        job.write(folder)?;
    }
    let results = job.results(&report, rate, &seconds, saturated)?;
    let shown = if world.rank() == SPEAKER { output::publish(&results, arguments.json.as_deref()) } else { Ok(()) };
    agree(world, shown, deadline()?)
}

/// The rank that writes the results.
const SPEAKER: Rank = Rank(0);

fn deadline() -> Result<Deadline, RefitError> {
    Ok(Communicator::default_deadline()?)
}

impl<'a> Job<'a> {
    /// Plans, takes memory, reads the sources' shards.
    fn new(
        world: &'a Communicator,
        arguments: &'a Arguments,
        request: &'a Request,
        model: Model,
        (sources, destinations): (Vec<Rank>, Vec<Rank>),
    ) -> Result<Self, RefitError> {
        let rules = rules_option::read(arguments.rules.as_deref())?;
        let ModelManifest { manifest, unmatched: unknown, source_fused, destination_fused: fused, .. } =
            shards::manifest(&model, &rules, request, &sources, &destinations)?;
        let manifest = Arc::new(manifest);
        if let Some(folder) = &arguments.out
            && destinations.contains(&world.rank())
        {
            output::try_folder(folder)?;
        }
        if let Some(path) = &arguments.json
            && world.rank() == SPEAKER
        {
            output::try_results(path)?;
        }
        let allocate = |fused, side| SideMemory::allocate(&manifest, fused, world.rank(), side, request.memory);
        let source = allocate(&source_fused, Side::Source)?;
        let destination = allocate(&fused, Side::Destination)?;
        shards::fill(&model, &manifest, world.rank(), &source)?;
        Ok(Self { world, arguments, request, model, manifest, unknown, fused, source, destination })
    }

    /// The rate for the bound: as given, or measured between two ranks that the network joins.
    fn nic_rate(&self, report: &Report) -> Result<NicRate, RefitError> {
        if let Some(rate) = self.request.nic_rate {
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

    /// Runs the transfer as often as asked; seconds of this rank.
    fn transfer(&self, transfer: &mut Reshard) -> Result<Vec<f64>, RefitError> {
        let mut seconds = Vec::new();
        let progress = Progress::new(transfer, self.arguments.repeat, self.world.rank() == SPEAKER)?;
        for run in 0..self.arguments.repeat {
            progress.between(transfer, run);
            if self.arguments.verify {
                self.destination.buffer.write().map_err(CommError::from)?.fill(verify::POISON);
            }
            self.world.barrier(deadline()?)?;
            let begun = Instant::now();
            transfer.start().map_err(CommError::from)?;
            progress.wait(transfer, run, deadline()?).map_err(CommError::from)?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }

    /// The sum of all ranks' counts.
    fn sum(&self, count: u64) -> Result<u64, RefitError> {
        let all = self.world.allgather(&count.to_le_bytes(), deadline()?)?;
        // Every rank sends eight bytes.
        Ok(all.iter().filter_map(|bytes| bytes.as_slice().try_into().ok()).map(u64::from_le_bytes).sum())
    }

    /// Compares everything that arrived, and the count of values that became infinite.
    fn verify(&self, saturated: u64) -> Result<(), RefitError> {
        let held = |memory| Held { memory, rank: self.world.rank() };
        let promised = verify::promised(&self.manifest, self.world.size(), &held(&self.source));
        let (promised, counted) = agree(self.world, promised, deadline()?)?;
        let counted = self.sum(counted)?;
        let same = if counted == saturated { Ok(()) } else { Err(RefitError::Saturated { saturated, counted }) };
        agree(self.world, same, deadline()?)?;
        let all = self.world.allgather(&verify::encode(&promised), deadline()?)?;
        let expected = verify::expected(self.world.rank(), &all);
        let mine = expected
            .and_then(|expected| verify::check(&self.model, &self.manifest, &held(&self.destination), &expected));
        agree(self.world, mine, deadline()?)
    }

    /// Writes all ranks' shards, or none.
    fn write(&self, folder: &Path) -> Result<(), RefitError> {
        let files = output::prepare(folder, &self.manifest, &self.fused, self.world.rank(), &self.destination);
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
            model: self.arguments.model.display().to_string(),
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
