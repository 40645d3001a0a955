//! Every pair of GPUs of a host or NVLink domain: whether writes arrive in order, how fast copies are. In: a communicator, the states of
//! its ranks. Out: what each link did, and findings. Guarantee: collective, equal on all ranks; the driver's word that
//! GPUs reach each other is not taken; a kept rate that looks low is measured again before it is called low.

use super::error::DoctorError;
use super::finding::{Finding, Severity};
use super::outliers;
use super::system::State;
use crossmesh::base::{NodeId, Rank};
use crossmesh::comm::{CommError, Communicator, Device, LinkFacts, LinkVerdict};
use crossmesh::execute::ExecuteError;
use crossmesh::topology::Topology;
use crossmesh::topology::cluster::{Path, PathKind, Paths};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What was found; ranks are those of the job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GpuLinks {
    /// By writing and reading rank; of ranks that share a GPU the first stands for all.
    pub(crate) links: Vec<LinkFacts>,
    /// Ranks whose GPU could not be used, so that nothing on their host was tested, and why.
    pub(crate) unusable: Vec<(u32, String)>,
}

impl GpuLinks {
    /// Whether there was nothing to test.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.unusable.is_empty()
    }
}

/// Ranks whose GPUs may reach each other, where these are several: of a host, or of hosts that an NVLink fabric joins, by the
/// node of the first.
type Islands = BTreeMap<NodeId, Vec<Rank>>;

/// The island of `rank`.
fn island(topology: &Topology, rank: Rank) -> NodeId {
    let fabric = topology.fabric(rank);
    let mut ranks = (0..topology.size() as u32).map(Rank);
    let first = ranks.find(|&other| fabric.is_some() && topology.fabric(other) == fabric);
    topology.node(first.unwrap_or(rank))
}

fn islands(topology: &Topology) -> Islands {
    let mut islands = Islands::new();
    for rank in (0..topology.size() as u32).map(Rank).filter(|&rank| topology.gpu(rank).is_some()) {
        islands.entry(island(topology, rank)).or_default().push(rank);
    }
    let gpus = |ranks: &[Rank]| -> usize {
        ranks.iter().map(|&rank| (topology.node(rank), topology.gpu(rank))).collect::<BTreeSet<_>>().len()
    };
    islands.retain(|_, ranks| gpus(ranks) > 1);
    islands
}

/// Tests all links, islands at the same time. Without `fresh` results that were kept since the host started stand.
pub(super) fn probe(world: &Communicator, states: &[State], fresh: bool) -> Result<GpuLinks, DoctorError> {
    let mut islands = islands(world.topology());
    if islands.is_empty() {
        return Ok(GpuLinks::default());
    }
    let mut found = test(world, &islands, fresh)?;
    let island_of = |link: &LinkFacts| island(world.topology(), link.to);
    let low: BTreeSet<NodeId> =
        low(&found.links, states).into_iter().map(|(number, _)| island_of(&found.links[number])).collect();
    if !fresh && !low.is_empty() {
        islands.retain(|island, _| low.contains(island));
        let again = test(world, &islands, true)?;
        found.links.retain(|link| !low.contains(&island_of(link)));
        found.links.extend(again.links);
        found.unusable.extend(again.unusable);
        found.links.sort_by_key(|link| (link.from, link.to));
    }
    Ok(found)
}

/// Tests the links of `islands`; every rank hears of all.
fn test(world: &Communicator, islands: &Islands, fresh: bool) -> Result<GpuLinks, DoctorError> {
    let node = island(world.topology(), world.rank());
    let members = islands.get(&node).filter(|ranks| ranks.contains(&world.rank()));
    let deadline = Communicator::default_deadline()?;
    let group = world.split(members.map(|_| node.0), world.rank().0, deadline)?;
    let mine = match (members, &group) {
        (Some(members), Some(group)) => test_island(group, members, fresh)?,
        _ => GpuLinks::default(),
    };
    drop(group);
    let encoded = serde_json::to_vec(&mine).map_err(DoctorError::Encode)?;
    let all = world.allgather(&encoded, Communicator::default_deadline()?)?;
    let mut found = GpuLinks::default();
    for bytes in &all {
        let told: GpuLinks = serde_json::from_slice(bytes).map_err(DoctorError::Encode)?;
        found.links.extend(told.links);
        found.unusable.extend(told.unusable);
    }
    found.links.sort_by_key(|link| (link.from, link.to));
    Ok(found)
}

/// What this rank has to tell of its island: the first of the `members` tells of the links, each of itself. An end of the
/// whole job is an error.
fn test_island(group: &Communicator, members: &[Rank], fresh: bool) -> Result<GpuLinks, DoctorError> {
    let own = members[group.rank().index()].0;
    let unusable = |why: String| GpuLinks { unusable: vec![(own, why)], ..GpuLinks::default() };
    let device = own_device(group);
    let usable = group.allgather(&[u8::from(device.is_ok())], Communicator::default_deadline()?)?;
    let device = match device {
        Err(why) => return Ok(unusable(why)),
        Ok(_) if usable.iter().any(|bytes| bytes != &[1]) => return Ok(GpuLinks::default()),
        Ok(device) => device,
    };
    let in_job = |rank: Rank| members[rank.index()];
    let place = |link: LinkFacts| LinkFacts { from: in_job(link.from), to: in_job(link.to), ..link };
    match group.test_links(device, fresh, Communicator::default_deadline()?) {
        Ok(links) if group.rank() == Rank(0) => {
            Ok(GpuLinks { links: links.into_iter().map(place).collect(), unusable: Vec::new() })
        }
        // The rank that failed tells why.
        Ok(_) | Err(CommError::Execute(ExecuteError::OtherRank { .. })) => Ok(GpuLinks::default()),
        Err(error @ CommError::Aborted(_)) => Err(error.into()),
        Err(error) => Ok(unusable(DoctorError::from(error).message())),
    }
}

/// The driver's number of this rank's GPU.
fn own_device(group: &Communicator) -> Result<u32, String> {
    let address = group.topology().gpu(group.rank()).ok_or("no GPU")?;
    match Device::ordinal_at(address) {
        Ok(Some(ordinal)) => Ok(ordinal),
        Ok(None) => Err(format!("the driver shows no device at {address}")),
        Err(error) => Err(crate::failure::Failure::new(1, error).message()),
    }
}

/// What lies between the GPUs of a link, as the facts of its reading rank tell; `None` for GPUs of two hosts.
fn path(states: &[State], link: &LinkFacts) -> Option<Path> {
    let state = |rank: Rank| states.iter().find(|state| state.rank == Some(rank.0));
    let (from, to) = (state(link.from)?, state(link.to)?);
    if from.facts.host != to.facts.host {
        return None;
    }
    let gpu = |state: &State| to.facts.gpus.iter().find(|gpu| Some(gpu.pci.to_string()) == state.gpu);
    Some(Paths::new(&to.facts).gpu_to_gpu(gpu(from)?, gpu(to)?))
}

/// Kinds of paths with the rates of their links in GB/s.
pub(super) fn rates(links: &[LinkFacts], states: &[State]) -> Vec<(Option<PathKind>, f64)> {
    working(links).map(|(_, link, rate)| (path(states, link).map(|path| path.kind), rate)).collect()
}

fn working(links: &[LinkFacts]) -> impl Iterator<Item = (usize, &LinkFacts, f64)> {
    links.iter().enumerate().filter_map(|(number, link)| match link.verdict {
        LinkVerdict::Good { rate: Some(rate) } => Some((number, link, rate as f64 / 1e9)),
        _ => None,
    })
}

/// Links that are slower than most of their kind, with the median.
fn low(links: &[LinkFacts], states: &[State]) -> Vec<(usize, f64)> {
    let numbers: Vec<usize> = working(links).map(|(number, ..)| number).collect();
    let low = outliers::low(&rates(links, states));
    low.into_iter().map(|(place, median)| (numbers[place], median)).collect()
}

/// What is wrong with which links; `name` says who a rank is.
pub(super) fn findings(found: &GpuLinks, states: &[State], name: impl Fn(u32) -> String) -> Vec<Finding> {
    let gpu = |rank: Rank| {
        let state = states.iter().find(|state| state.rank == Some(rank.0));
        let address = state.and_then(|state| state.gpu.clone()).unwrap_or_default();
        format!("GPU {address} of {}", name(rank.0))
    };
    let place = |link: &LinkFacts| format!("{} to {}", gpu(link.from), gpu(link.to));
    let failure = |what: &str, place: String| Finding::new("gpu-link-failure", Severity::Failure, what, place);
    let unusable = found.unusable.iter().map(|(rank, why)| {
        failure("links between the GPUs of a host cannot be tested, as a GPU cannot be used", gpu(Rank(*rank)))
            .seen(why, "a GPU that can be used")
            .cure("what driver and gpu-visibility say comes first; then nvidia-smi -q, and dmesg | grep -i nvrm")
    });
    let broken = found.links.iter().filter_map(|link| match &link.verdict {
        LinkVerdict::Good { .. } => None,
        LinkVerdict::Broken { wrong } => Some(
            failure("writes between two GPUs do not arrive in order: tensors sent over the link are garbage", place(link))
                .seen(format!("{wrong} words were wrong when their flag had come"), "0")
                .cure("lspci -vvv | grep ACSCtl and dmesg | grep -i iommu: switch access control of PCI bridges off, boot with iommu=pt; until then NCCL_P2P_DISABLE=1 for frameworks, host memory for crossmesh"),
        ),
        LinkVerdict::Failed { why } => Some(
            failure("the link between two GPUs could not be tested", place(link))
                .seen(why, "right words in 200 rounds")
                .cure("nvidia-smi topo -p2p w; nvidia-smi nvlink -s; containers of one host share --ipc=host --pid=host; GPUs of two hosts: nvidia-imex-ctl -N"),
        ),
    });
    let low = low(&found.links, states).into_iter().filter_map(|(number, median)| {
        let link = &found.links[number];
        let LinkVerdict::Good { rate: Some(rate) } = link.verdict else { return None };
        let kind = path(states, link).map_or(String::new(), |path| format!(" by {}", path.kind));
        let what = format!("a GPU reads from another more slowly than others do{kind}");
        let limit = format!("{:.1} GB/s, {} of the median", outliers::LOW * median, outliers::LOW);
        Some(
            Finding::new("gpu-link-bandwidth", Severity::Warning, what, place(link))
                .seen(format!("{:.1} GB/s", rate as f64 / 1e9), limit)
                .cure("nvidia-smi nvlink -s and nvidia-smi nvlink -e for links that are down or count errors; nvidia-smi -q -d PERFORMANCE; then crossmesh doctor --fresh"),
        )
    });
    unusable.chain(broken).chain(low).collect()
}
