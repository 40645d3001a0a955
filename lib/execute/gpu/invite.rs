//! What ranks of a device transfer tell each other, once, at init. In: program, board, tensors. Out: one invitation for each
//! peer. Guarantee: a peer learns only about memory that the program makes it read; a buffer is exported once, however many
//! tensors lie in it.

use super::super::program::{Program, Storage};
use super::super::tensors::LocalTensors;
use super::super::{ExecuteError, Group, Side};
use super::board::Board;
use super::place::Places;
use crate::base::Rank;
use crate::memory::device::{Device, DeviceMemory, Handles, SharedBuffer, SharedHandle, Stream, share};
use crate::memory::{Buffer, SegmentId, SharedMemory};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A local tensor as a peer needs to see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceExport {
    pub(super) tensor: u32,
    /// Number of its memory in the invitation.
    pub(super) memory: u32,
    /// Byte of the first element.
    pub(super) offset: u64,
    /// Byte strides.
    pub(super) strides: Vec<u64>,
}

/// What one rank tells one peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub(super) struct DeviceInvitation {
    /// Board on the device.
    pub(super) board: Option<SharedHandle>,
    /// Board on the host.
    pub(super) host_board: Option<SegmentId>,
    /// Number of words of the board.
    pub(super) words: u32,
    /// Where the peer tells that its sources may be read.
    pub(super) started: Option<u32>,
    /// Where the peer tells that it has read everything here.
    pub(super) finished: Option<u32>,
    /// Where the peer tells that it has got items that are read there, in both ends' order.
    pub(super) gates: Vec<u32>,
    /// Memory of the tensors below.
    pub(super) memories: Vec<SharedHandle>,
    /// Source tensors that the peer reads.
    pub(super) source: Vec<DeviceExport>,
    /// Destination tensors that the peer reads.
    pub(super) destination: Vec<DeviceExport>,
}

/// The board's memory.
#[derive(Debug)]
pub(super) enum BoardMemory {
    /// Ranks that have a device each tell each other on their devices.
    Device(Arc<DeviceMemory>),
    /// Ranks that share devices tell each other on the host.
    Host(Arc<SharedMemory>),
}

/// What this rank prepared.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) program: Program,
    pub(super) board: Board,
    pub(super) board_memory: Option<BoardMemory>,
    pub(super) invitations: BTreeMap<Rank, DeviceInvitation>,
    /// Exports, which peers may open as long as they live.
    pub(super) shared: Vec<SharedBuffer>,
}

/// Prepares this rank's part.
pub(super) fn prepare(
    group: &Group,
    places: &Places,
    program: Program,
    local: &LocalTensors,
    deadline: crate::base::Deadline,
) -> Result<Prepared, ExecuteError> {
    let board = Board::of(&program);
    let mut prepared =
        Prepared { program, board, board_memory: None, invitations: BTreeMap::new(), shared: Vec::new() };
    let Some((device, _)) = &places.device else { return Ok(prepared) };
    let mut template = DeviceInvitation { words: prepared.board.words, ..DeviceInvitation::default() };
    let memory = if places.shared {
        let segment = Arc::new(SharedMemory::create("crossmesh-device-board", u64::from(prepared.board.words) * 8)?);
        group.server.publish(&segment);
        template.host_board = Some(segment.id());
        BoardMemory::Host(segment)
    } else {
        let memory = zeroed(device, u64::from(prepared.board.words) * 4, deadline)?;
        let (handle, shared) = share(&group.server, device, memory.address(), memory.bytes(), places.agreed.handles)?;
        prepared.shared.push(shared);
        template.board = Some(handle);
        BoardMemory::Device(memory)
    };
    prepared.board_memory = Some(memory);
    let known = HashMap::new();
    let mut exporter =
        Exporter { group, device, local, handles: places.agreed.handles, known, shared: &mut prepared.shared };
    let peers: BTreeSet<Rank> = prepared.board.parents.keys().chain(prepared.board.readers.keys()).copied().collect();
    for peer in peers {
        let mut invitation = DeviceInvitation {
            started: prepared.board.started.get(&peer).copied(),
            finished: prepared.board.finished.get(&peer).copied(),
            gates: prepared.board.gates_of(&prepared.program, peer),
            ..template.clone()
        };
        if let Some(items) = prepared.board.readers.get(&peer) {
            let of = |storage: Storage| {
                let stored = |item: &u32| prepared.program.items[*item as usize].storage == storage;
                prepared.program.tensors_of(&items.iter().copied().filter(stored).collect::<Vec<_>>())
            };
            exporter.add(&mut invitation, Side::Source, &of(Storage::Source))?;
            exporter.add(&mut invitation, Side::Destination, &of(Storage::Destination))?;
        }
        prepared.invitations.insert(peer, invitation);
    }
    Ok(prepared)
}

/// Memory that holds zeros.
pub(super) fn zeroed(
    device: &Device,
    bytes: u64,
    deadline: crate::base::Deadline,
) -> Result<Arc<DeviceMemory>, ExecuteError> {
    let memory = Arc::new(DeviceMemory::new(device, bytes)?);
    let stream = Stream::new(device)?;
    stream.clear(&memory)?;
    stream.synchronize(deadline)?;
    Ok(memory)
}

/// Invitations to read what programs let others read here; they have no boards.
pub(super) fn invite_readers(
    group: &Group,
    (device, handles): (&Device, Handles),
    programs: &[Program],
    local: &LocalTensors,
) -> Result<(BTreeMap<Rank, DeviceInvitation>, Vec<SharedBuffer>), ExecuteError> {
    let mut read: BTreeMap<Rank, [BTreeSet<u32>; 2]> = BTreeMap::new();
    for program in programs {
        // Those that are only read from get an empty one.
        for &parent in program.pulls.keys().chain(program.fed.keys()) {
            read.entry(parent).or_default();
        }
        for (&reader, items) in program.reads.iter().chain(&program.feeds) {
            let [sources, destinations] = read.entry(reader).or_default();
            let (of_source, others): (Vec<u32>, Vec<u32>) =
                items.iter().partition(|&&item| program.items[item as usize].storage == Storage::Source);
            sources.extend(program.tensors_of(&of_source));
            destinations.extend(program.tensors_of(&others));
        }
    }
    let mut shared = Vec::new();
    let mut exporter = Exporter { group, device, local, handles, known: HashMap::new(), shared: &mut shared };
    let mut invitations = BTreeMap::new();
    for (rank, [sources, destinations]) in read {
        let mut invitation = DeviceInvitation::default();
        exporter.add(&mut invitation, Side::Source, &sources.into_iter().collect::<Vec<_>>())?;
        exporter.add(&mut invitation, Side::Destination, &destinations.into_iter().collect::<Vec<_>>())?;
        invitations.insert(rank, invitation);
    }
    Ok((invitations, shared))
}

/// Exports buffers, each once.
struct Exporter<'a> {
    group: &'a Group,
    device: &'a Device,
    local: &'a LocalTensors,
    handles: Handles,
    known: HashMap<(u64, u64), SharedHandle>,
    shared: &'a mut Vec<SharedBuffer>,
}

impl Exporter<'_> {
    fn add(&mut self, invitation: &mut DeviceInvitation, side: Side, tensors: &[u32]) -> Result<(), ExecuteError> {
        for &tensor in tensors {
            let Some(place) = self.local.side(side)[tensor as usize].as_ref() else { continue };
            let handle = self.handle(&place.buffer)?;
            let known = invitation.memories.iter().position(|memory| *memory == handle);
            let memory = known.unwrap_or_else(|| {
                invitation.memories.push(handle);
                invitation.memories.len() - 1
            }) as u32;
            let export = DeviceExport { tensor, memory, offset: place.offset, strides: place.strides.clone() };
            match side {
                Side::Source => invitation.source.push(export),
                Side::Destination => invitation.destination.push(export),
            }
        }
        Ok(())
    }

    fn handle(&mut self, buffer: &Buffer) -> Result<SharedHandle, ExecuteError> {
        let key = (buffer.as_ptr() as u64, buffer.bytes());
        if let Some(handle) = self.known.get(&key) {
            return Ok(handle.clone());
        }
        let (handle, shared) = share(&self.group.server, self.device, key.0, key.1, self.handles)?;
        self.shared.push(shared);
        self.known.insert(key, handle.clone());
        Ok(handle)
    }
}
