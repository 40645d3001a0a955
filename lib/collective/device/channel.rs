//! Channels: what calls run on. In: a group of ranks with a device each, or devices of this process. Out: [`Channel`].
//! Guarantee: made collectively; kernels of all types are loaded before the first call, since loading may wait for kernels
//! that run; the number of a call is counted on the device, so that captured calls and others may alternate.

use super::members::{Member, Placed, expect_equal, expect_near, placed, reach, too_far};
use super::options::Settled;
use super::register::{Registered, Rows};
use super::verdict::error_of;
use super::{ChannelOptions, CollectiveError};
use crate::base::{Deadline, Rank};
use crate::collective::steps::Steps;
use crate::collective::{Algorithm, Call, Connection, Launch, Table, TableMachine};
use crate::execute::{Agreed, Group, Near, agree_handles, broken_link, commit, gather};
use crate::memory::device::collective::params::{Element, MAX_RANKS};
use crate::memory::device::collective::{ChannelEnd, CollectiveKernels};
use crate::memory::device::{
    Device, DeviceMemory, DeviceSpan, Driver, Handles, PeerMemory, SharedBuffer, SharedHandle, Stream, share,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// A sequence of collective calls of a group of ranks, on one stream of each. Calls are numbered; all ranks make the same
/// calls in the same order.
pub struct Channel {
    pub(super) group: Option<Group>,
    pub(super) rank: Rank,
    pub(super) ranks: u32,
    pub(super) settled: Settled,
    pub(super) placed: Placed,
    pub(super) end: ChannelEnd,
    pub(super) kernels: BTreeMap<Element, Arc<CollectiveKernels>>,
    pub(super) rows: Rows,
    /// By which handles peers map memory.
    pub(super) handles: Handles,
    pub(super) registered: Vec<Registered>,
    /// How each call that was made runs.
    pub(super) known: HashMap<Shape, Planned>,
    /// Stream of the first call.
    pub(super) stream: Option<usize>,
    /// Calls that hosts have ordered.
    pub(super) ordered: u64,
    /// For what the channel does itself.
    pub(super) own_stream: Stream,
    _shared: Option<SharedBuffer>,
}

/// What decides how a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) call: Call,
    pub(super) captured: bool,
    pub(super) registered: bool,
    pub(super) in_place: bool,
}

/// How a call runs; copied for every call, so that none allocates.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    pub(super) launch: Launch,
    pub(super) steps: Steps,
}

/// What a rank has before it knows the others' memory.
struct Own {
    device: Device,
    stream: Stream,
    memory: Arc<DeviceMemory>,
    kernels: BTreeMap<Element, Arc<CollectiveKernels>>,
}

impl Channel {
    /// Makes a channel on `device`; collective over the group, which must be on one host or in one NVLink domain.
    pub fn new(
        group: &Group,
        device: &Device,
        options: &ChannelOptions,
        deadline: Deadline,
    ) -> Result<Self, CollectiveError> {
        commit(group, expect_near(group), deadline)?;
        let members: Vec<Member> = gather(group, &Member::new(device), deadline)?;
        let near = commit(group, reach(device, &members), deadline)?;
        let near: Vec<(bool, bool)> = gather(group, &near, deadline)?;
        let nvlink = near.iter().all(|&(nvlink, _)| nvlink);
        let agreed = agree_handles(group, Near::Reachable(&group.topology), Some(device), false, deadline)?;
        let agreed = agreed.map_err(|why| too_far(group, why))?;
        let reached = near.iter().all(|&(_, reached)| reached) && links_are_good(group, device, &agreed, deadline)?;
        let placed = placed(&members, nvlink, reached, options.at_once());
        let settled = options.settle(group.size() as u32, &architecture(placed.capability));
        let settled = commit(group, settled, deadline)?;
        expect_equal(group, &settled.fields(), deadline)?;
        let own = commit(group, Own::new(device, &settled, deadline), deadline)?;
        let opened = open_peers(group, &own, agreed.handles, deadline);
        let (spans, shared) = commit(group, opened, deadline)?;
        let made = Self::assemble(group.rank, spans, own, settled, placed);
        let channel = commit(group, made, deadline)?;
        if group.rank.0 == 0 {
            channel.tell_of_other_machines()?;
        }
        Ok(Self { group: Some(group.clone()), handles: agreed.handles, _shared: Some(shared), ..channel })
    }

    /// Channels of all ranks in this process, rank r on `devices[r]` (`ncclCommInitAll`). Several may be on one device: then
    /// `CUDA_DEVICE_MAX_CONNECTIONS` must be 32, set before the driver is loaded, so that no rank's kernel waits behind
    /// another's, and each stream must have been used once.
    pub fn all(devices: &[Device], options: &ChannelOptions, deadline: Deadline) -> Result<Vec<Self>, CollectiveError> {
        let ranks = devices.len();
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(CollectiveError::TooFar { ranks, most: MAX_RANKS, why: "their number does not fit".into() });
        }
        let members: Vec<Member> = devices.iter().map(Member::new).collect();
        let near: Vec<(bool, bool)> = devices.iter().map(|device| reach(device, &members)).collect::<Result<_, _>>()?;
        let nvlink = near.iter().all(|&(nvlink, _)| nvlink);
        let reached = near.iter().all(|&(_, reached)| reached);
        let placed = placed(&members, nvlink, reached, options.at_once());
        let settled = options.settle(ranks as u32, &architecture(placed.capability))?;
        let owns: Vec<Own> =
            devices.iter().map(|device| Own::new(device, &settled, deadline)).collect::<Result<_, _>>()?;
        let memories: Vec<Arc<DeviceMemory>> = owns.iter().map(|own| own.memory.clone()).collect();
        let mut channels = Vec::with_capacity(ranks);
        for (rank, own) in owns.into_iter().enumerate() {
            let span = |memory: &Arc<DeviceMemory>| -> Result<DeviceSpan, CollectiveError> {
                let (address, bytes) = (memory.address(), memory.bytes());
                Ok(DeviceSpan::of_peer(&PeerMemory::local(&own.device, memory.device(), address, bytes)?))
            };
            let spans = memories.iter().map(span).collect::<Result<_, _>>()?;
            let rank = Rank(rank as u32);
            channels.push(Self::assemble(rank, spans, own, settled.clone(), placed)?);
        }
        Ok(channels)
    }

    fn assemble(
        rank: Rank,
        spans: Vec<DeviceSpan>,
        own: Own,
        settled: Settled,
        placed: Placed,
    ) -> Result<Self, CollectiveError> {
        let ranks = spans.len();
        let end = ChannelEnd::new(own.memory, spans, &settled.layout, rank.0, settled.limit)?;
        let end = end.ok_or_else(|| CollectiveError::TooFar {
            ranks,
            most: MAX_RANKS,
            why: "or a peer's memory is shorter than it should be".into(),
        })?;
        Ok(Self {
            group: None,
            rank,
            ranks: ranks as u32,
            settled,
            placed,
            end,
            kernels: own.kernels,
            rows: Rows::new(&own.device, ranks),
            handles: Handles::Local,
            registered: Vec::new(),
            known: HashMap::new(),
            stream: None,
            ordered: 0,
            own_stream: own.stream,
            _shared: None,
        })
    }

    /// The machine that a tuning table for this channel holds for.
    pub fn machine(&self) -> Result<TableMachine, CollectiveError> {
        let (device, version) = (self.device(), Driver::load()?.cuda_version());
        Ok(TableMachine {
            architecture: device.architecture(),
            gpu: device.properties().name.clone(),
            link: if self.connection() == Connection::FullNvlink { "nvlink" } else { "pcie" }.into(),
            ranks: self.ranks,
            driver: format!("{}.{}", version / 1000, version % 1000 / 10),
        })
    }

    /// Warns where the given table was measured elsewhere: it decides all the same.
    fn tell_of_other_machines(&self) -> Result<(), CollectiveError> {
        let Some(table) = self.settled.table.as_ref().filter(|_| self.settled.is_given) else { return Ok(()) };
        if let Some((what, there, here)) = table.machine.difference(&self.machine()?) {
            log::warn!(
                "the tuning table is for {what} {there}, here it is {here}; measure this machine: crossmesh tune"
            );
        }
        Ok(())
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.ranks
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        self.end.device()
    }

    /// How ranks reach each other.
    pub fn connection(&self) -> Connection {
        self.placed.connection
    }

    /// Bytes of device memory that it holds on this rank.
    pub fn bytes(&self) -> u64 {
        self.settled.layout.bytes
    }

    /// Lets `table` decide from now on, or nothing but what can run: the same on all ranks, which see a difference at the
    /// next call. An algorithm that was forced goes before it.
    pub fn use_table(&mut self, table: Option<Table>) {
        self.settled.table = table;
        self.known.clear();
    }

    /// Lets `algorithm` run every call from now on, or the table decide; as [`use_table`](Self::use_table).
    pub fn use_algorithm(&mut self, algorithm: Option<Algorithm>) {
        self.settled.algorithm = algorithm;
        self.known.clear();
    }

    /// Most blocks of a launch.
    pub fn most_blocks(&self) -> u16 {
        self.placed.most_blocks
    }

    /// Whether the calls so far went well, as far as they have run: to be asked once the stream was waited for.
    pub fn check(&self) -> Result<(), CollectiveError> {
        match self.end.verdict() {
            Some(verdict) => Err(error_of(&verdict, self.rank, self.settled.limit)),
            None => Ok(()),
        }
    }

    /// Lets kernels that wait give up.
    pub fn abort(&self) {
        self.end.abort();
    }

    /// Makes the channel usable after an error; collective. All streams that calls were put on must be idle; graphs that
    /// were captured stay good.
    pub fn reform(&mut self, deadline: Deadline) -> Result<(), CollectiveError> {
        let Some(group) = self.group.clone() else {
            if self.ranks > 1 {
                return Err(CollectiveError::Together { given: 1, ranks: self.ranks });
            }
            return Self::reform_all(std::slice::from_mut(self), deadline);
        };
        group.barrier(deadline)?;
        let renewed = self.end.renew(&self.own_stream, deadline).map_err(CollectiveError::from);
        self.stream = None;
        commit(&group, renewed, deadline)
    }

    /// As [`reform`](Self::reform), for channels of [`all`](Self::all).
    pub fn reform_all(channels: &mut [Self], deadline: Deadline) -> Result<(), CollectiveError> {
        for channel in channels {
            channel.end.renew(&channel.own_stream, deadline)?;
            channel.stream = None;
        }
        Ok(())
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Channel(rank {} of {}, {})", self.rank, self.ranks, self.device().label())
    }
}

impl Own {
    fn new(device: &Device, settled: &Settled, deadline: Deadline) -> Result<Self, CollectiveError> {
        let stream = Stream::new(device)?;
        let memory = ChannelEnd::allocate(device, &settled.layout, &stream, deadline)?;
        compile_all(device)?;
        let loaded = Element::ALL.into_iter().map(|element| Ok((element, CollectiveKernels::load(device, element)?)));
        let kernels = loaded.collect::<Result<_, CollectiveError>>()?;
        Ok(Self { device: device.clone(), stream, memory, kernels })
    }
}

/// Compiles what is in no cache yet, all types at once: one after the other takes a minute.
fn compile_all(device: &Device) -> Result<(), CollectiveError> {
    std::thread::scope(|scope| {
        let compile = |element| scope.spawn(move || CollectiveKernels::compile(device, element));
        let threads: Vec<_> = Element::ALL.into_iter().map(compile).collect();
        // A thread that panicked has compiled nothing; loading says what is wrong.
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })?;
    Ok(())
}

fn architecture((major, minor): (u32, u32)) -> String {
    format!("sm_{major}{minor}")
}

/// Whether data may be sent over all links: the driver's word is not trusted.
fn links_are_good(
    group: &Group,
    device: &Device,
    agreed: &Agreed,
    deadline: Deadline,
) -> Result<bool, CollectiveError> {
    let broken = broken_link(group, Near::Reachable(&group.topology), Some(device), agreed, deadline)?;
    if let Some(why) = broken.as_ref().filter(|_| group.rank.0 == 0) {
        log::warn!("{why}; collectives are ordered by hosts");
    }
    Ok(broken.is_none())
}

/// Every rank's memory as this device sees it.
fn open_peers(
    group: &Group,
    own: &Own,
    handles: Handles,
    deadline: Deadline,
) -> Result<(Vec<DeviceSpan>, SharedBuffer), CollectiveError> {
    let shared = share(&group.server, &own.device, own.memory.address(), own.memory.bytes(), handles);
    let handle = shared.as_ref().ok().map(|(handle, _)| handle.clone());
    let told: Vec<Option<SharedHandle>> = gather(group, &handle, deadline)?;
    let (_, buffer) = shared?;
    let mut spans = Vec::with_capacity(told.len());
    for (rank, handle) in told.iter().enumerate() {
        let rank = Rank(rank as u32);
        let Some(handle) = handle.as_ref().filter(|_| rank != group.rank) else {
            spans.push(DeviceSpan::of_memory(&own.memory));
            continue;
        };
        let memory = PeerMemory::open(&own.device, handle, &group.segments, group.server_of(rank), deadline)?;
        spans.push(DeviceSpan::of_peer(&memory));
    }
    Ok((spans, buffer))
}
