//! What GPUs of a domain pass on to each other while and after hosts bring what comes from outside. In: flows inside the
//! domain, tensors. Out: one launch for each stage, put on a stream behind a word that the hosts store. Guarantee: a launch
//! waits for nothing: ranks begin a stage only when all of the domain have what they pass on in it, and end a transfer
//! when all have ended their last; so no kernel keeps places that another one needs to go on.

use super::super::agree::commit;
use super::super::program::{Incoming, Program, Storage, compile};
use super::super::reach::Reach;
use super::super::tensors::LocalTensors;
use super::super::{ExecuteError, Group};
use super::handles::MappedMemories;
use super::invite::{DeviceInvitation, invite_readers, zeroed};
use super::opened::Opened;
use super::place::Places;
use super::transfer::{LIMIT, exchange, wait_for_end};
use crate::base::{Deadline, Rank};
use crate::memory::copy::CopyTable;
use crate::memory::device::params::{BOARD_WORDS, NONE};
use crate::memory::device::{
    Device, DeviceSpan, Event, Flags, MoveTable, Mover, Moves, PACK_WARPS, SharedBuffer, Stream, Work,
};
use crate::plan::Plan;
use crate::route::LocalFlow;
use std::collections::BTreeMap;

/// Bytes from one board to the next.
const BOARD: u64 = 256;

/// The launches of a rank.
#[derive(Debug)]
pub(in crate::execute) struct Stages {
    /// Per stage; `None` where this rank moves nothing in it.
    tables: Vec<Option<MoveTable>>,
    /// For starts that name no stream, and a mark behind the last launch; `None` for a rank that passes nothing on.
    own: Option<(Stream, Event)>,
    mapped: MappedMemories,
    _shared: Vec<SharedBuffer>,
}

/// A stage: flows whose parts of it run, and whether those that others got before it.
#[derive(Debug, Clone)]
pub(in crate::execute) struct StageFlows {
    /// Number of the group of flows.
    pub(in crate::execute) flows: usize,
    /// Whether it moves what was brought by an earlier stage of these flows, rather than what was there.
    pub(in crate::execute) relayed: bool,
}

impl Stages {
    /// Prepares; collective. Each stage names one of the groups of flows.
    pub(in crate::execute) fn init(
        group: &Group,
        plan: &Plan,
        (flows, stages): (&[Vec<LocalFlow>], &[StageFlows]),
        local: &LocalTensors,
        places: &Places,
        deadline: Deadline,
    ) -> Result<Self, ExecuteError> {
        let reach = Reach { cores: 1, ..Reach::of_shared_memory(group.size(), 0) };
        let program = |flows: &Vec<LocalFlow>| compile(plan, flows, &places.together, &reach, (group.rank, false));
        let programs: Vec<Program> = flows.iter().map(program).collect();
        let device = places.device.as_ref().map(|(device, _)| device);
        let invited = device.map(|device| invite_readers(group, (device, places.agreed.handles), &programs, local));
        let (invitations, shared) = commit(group, invited.transpose(), deadline)?.unwrap_or_default();
        let joined = exchange(group, &invitations, deadline).and_then(|theirs| match device {
            Some(device) => {
                let device = (device, places.agreed.refused.clone());
                Self::join(group, plan, (&programs, stages), local, device, &theirs, deadline)
            }
            None => Ok(Self { tables: Vec::new(), own: None, mapped: MappedMemories::default(), _shared: Vec::new() }),
        });
        let joined = commit(group, joined, deadline)?;
        Ok(Self { _shared: shared, ..joined })
    }

    fn join(
        group: &Group,
        plan: &Plan,
        (programs, stages): (&[Program], &[StageFlows]),
        local: &LocalTensors,
        (device, refused): (&Device, Option<String>),
        theirs: &BTreeMap<Rank, DeviceInvitation>,
        deadline: Deadline,
    ) -> Result<Self, ExecuteError> {
        let boards = DeviceSpan::of_memory(&zeroed(device, BOARD * stages.len().max(1) as u64, deadline)?);
        let mut opened = Opened::new(plan, local, device, vec![boards.clone()]);
        for (&rank, invitation) in theirs {
            opened.open(group, rank, invitation, deadline)?;
        }
        let boxes = stages.iter().map(|stage| works(&mut opened, &programs[stage.flows], stage.relayed, group.rank));
        let boxes: Vec<(CopyTable, Vec<Work>)> = boxes.collect::<Result<_, _>>()?;
        let warps = u64::from(device.properties().multiprocessors * PACK_WARPS);
        let build = |(number, (table, works)): (u64, &(CopyTable, Vec<Work>))| -> Result<_, ExecuteError> {
            if works.is_empty() {
                return Ok(None);
            }
            let mut spans = opened.spans.clone();
            spans[0] = boards.part(number * BOARD, BOARD);
            let places: Vec<_> = spans.iter().map(DeviceSpan::place).collect();
            let moves = Moves::lower(table, works, &places, Mover::Kernel { warps })?;
            let flags = Flags { words: BOARD_WORDS, ..Flags::default() };
            // Its kernels wait for nothing, so the limit does not matter.
            Ok(Some(MoveTable::build(device, moves, &flags, spans, LIMIT, deadline)?))
        };
        let tables = (0..).zip(&boxes).map(build).collect::<Result<_, _>>()?;
        let own = Some((Stream::new(device)?, Event::without_time(device)?));
        let mapped = MappedMemories { without_fabric: refused, ..opened.mapped };
        Ok(Self { tables, own, mapped, _shared: Vec::new() })
    }

    /// How memory of peers was mapped.
    pub(in crate::execute) fn mapped(&self) -> &MappedMemories {
        &self.mapped
    }

    /// Stages in which this rank moves something.
    pub(in crate::execute) fn launches(&self) -> impl Iterator<Item = (u32, &MoveTable)> {
        (0..).zip(&self.tables).filter_map(|(stage, table)| Some((stage, table.as_ref()?)))
    }

    /// Launches a stage on this rank's own stream, if it moves anything in it.
    pub(in crate::execute) fn launch(&self, stage: u32) -> Result<(), ExecuteError> {
        let table = self.tables.get(stage as usize).and_then(Option::as_ref);
        let (Some(table), Some((own, _))) = (table, &self.own) else { return Ok(()) };
        table.run(own, true)?;
        self.mark(own)
    }

    /// Marks the end of what a start has put on a stream.
    pub(in crate::execute) fn mark(&self, stream: &Stream) -> Result<(), ExecuteError> {
        self.own.as_ref().map_or(Ok(()), |(_, last)| Ok(last.record(stream)?))
    }

    /// Returns once a stream has passed the last mark.
    pub(in crate::execute) fn pass_mark(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        self.own.as_ref().map_or(Ok(()), |(_, last)| Ok(last.wait(deadline)?))
    }

    /// Whether this rank's launch of a stage has ended, of the start of this number.
    pub(in crate::execute) fn has_ended(&self, stage: u32, start: u32) -> bool {
        let table = self.tables.get(stage as usize).and_then(Option::as_ref);
        table.is_none_or(|table| table.last_finished().wrapping_sub(start) as i32 >= 0)
    }

    /// What is wrong with the device, if anything is: a launch that fails tells nothing else.
    pub(in crate::execute) fn check(&self) -> Result<(), ExecuteError> {
        self.own.as_ref().map_or(Ok(()), |(_, last)| Ok(last.is_done().map(|_| ())?))
    }

    /// Launches that have not begun move nothing, but for copies of the engine.
    pub(in crate::execute) fn abort(&self) {
        self.launches().for_each(|(_, table)| table.abort());
    }

    /// Returns once all launches have ended, which nothing keeps from it but the caller's stream.
    pub(in crate::execute) fn end(&self, deadline: Deadline) -> Result<(), ExecuteError> {
        wait_for_end(|| self.launches().all(|(_, table)| table.has_ended()), || self.check(), deadline)
    }
}

/// What a stage moves here: own copies apart, which are spread among the others. Whoever reads from many begins with the next
/// rank, so that nobody is everyone's first.
fn works(
    opened: &mut Opened<'_>,
    program: &Program,
    relayed: bool,
    rank: Rank,
) -> Result<(CopyTable, Vec<Work>), ExecuteError> {
    let is_of_stage = |incoming: Incoming| match incoming {
        Incoming::Pull { stored: Storage::Destination, .. } => relayed,
        Incoming::OwnCopy | Incoming::Fed { .. } | Incoming::Pull { .. } => !relayed,
        _ => false,
    };
    let items = (0..program.items.len() as u32).filter(|&item| is_of_stage(program.items[item as usize].incoming));
    let is_own = |&item: &u32| program.items[item as usize].incoming == Incoming::OwnCopy;
    let (own, mut read): (Vec<u32>, Vec<u32>) = items.partition(is_own);
    read.sort_by_key(|&item| match program.items[item as usize].incoming {
        Incoming::Fed { from } | Incoming::Pull { from, .. } => from.0.wrapping_sub(rank.0),
        _ => 0,
    });
    let (mut table, mut works) = (CopyTable::new(), Vec::new());
    for (items, local) in [(read, false), (own, true)] {
        for (source, destination, boxes) in opened.boxes(program, &items, &mut table)? {
            works.push(Work { source, destination, boxes, gate: NONE, report: NONE, local });
        }
    }
    Ok((table, works))
}
