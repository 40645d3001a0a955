//! Joining what peers exported. In: prepared part, peers' invitations. Out: boxes between mapped places, flags. Guarantee:
//! pieces between the same places that wait for the same word share boxes; what waits for nothing but a start comes
//! first, then the others in the order that all ranks share.

use super::super::attach::{padding_parts, pattern_bytes};
use super::super::bind::{End, UNCHANGED, append, own_end, own_ends, peer_end};
use super::super::exchange::{Export, ExportedMemory};
use super::super::program::{Incoming, Storage};
use super::super::tensors::LocalTensors;
use super::super::{ExecuteError, Group, Side};
use super::board::Board;
use super::handles::MappedMemories;
use super::invite::{BoardMemory, DeviceExport, DeviceInvitation, Prepared};
use crate::base::{Deadline, Rank};
use crate::layout::positions::padding_boxes;
use crate::layout::{AxisMap, Layout};
use crate::memory::copy::CopyTable;
use crate::memory::device::params::NONE;
use crate::memory::device::{Device, DeviceSpan, PeerMemory, Place, Work, inspect, uploaded};
use crate::memory::{Buffer, SharedMemory};
use crate::plan::Plan;
use crate::route::Piece;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A rank that this rank reads from or is read by.
#[derive(Debug)]
pub(super) struct DevicePeer {
    /// Span of its board, when on its device.
    pub(super) board: Option<u32>,
    /// Its board, when on the host.
    pub(super) host_board: Option<Arc<SharedMemory>>,
    /// Word of its board in which this rank tells that its sources may be read.
    pub(super) started: Option<u32>,
    /// Word of its board in which this rank tells that it has read everything there.
    pub(super) finished: Option<u32>,
    /// Words of its board for items that it waits for, in both ends' order.
    pub(super) gates: Vec<u32>,
    tensors: HashMap<(Side, u32), (Export, u32)>,
}

/// Everything joined.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) table: CopyTable,
    pub(super) works: Vec<Work>,
    pub(super) spans: Vec<DeviceSpan>,
    pub(super) peers: BTreeMap<Rank, DevicePeer>,
    /// Per report, who is told: peer, word of its board.
    pub(super) reports: Vec<Vec<(Rank, u32)>>,
    /// How peers' memory was mapped.
    pub(super) mapped: MappedMemories,
}

impl Attached {
    /// Where all spans are.
    pub(super) fn places(&self) -> Vec<Place> {
        self.spans.iter().map(DeviceSpan::place).collect()
    }
}

struct Attach<'a> {
    plan: &'a Plan,
    local: &'a LocalTensors,
    prepared: &'a Prepared,
    device: &'a Device,
    attached: Attached,
    buffers: HashMap<(u64, u64), u32>,
    patterns: HashMap<Vec<u8>, u32>,
    maps: HashMap<(*const Layout, Rank), Option<Arc<Vec<AxisMap>>>>,
}

/// Joins; this rank's board becomes span 0 when it is on the device.
pub(super) fn attach(
    group: &Group,
    plan: &Plan,
    local: &LocalTensors,
    (device, pads): (&Device, bool),
    prepared: &Prepared,
    theirs: &BTreeMap<Rank, DeviceInvitation>,
    deadline: Deadline,
) -> Result<Attached, ExecuteError> {
    let attached = Attached {
        table: CopyTable::new(),
        works: Vec::new(),
        spans: match &prepared.board_memory {
            Some(BoardMemory::Device(memory)) => vec![DeviceSpan::of_memory(memory)],
            _ => Vec::new(),
        },
        peers: BTreeMap::new(),
        reports: vec![Vec::new(); prepared.board.counters.len()],
        mapped: MappedMemories::default(),
    };
    let (buffers, patterns, maps) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut attach = Attach { plan, local, prepared, device, attached, buffers, patterns, maps };
    for (&rank, invitation) in theirs {
        attach.open(group, rank, invitation, deadline)?;
    }
    attach.reports()?;
    attach.works(group.rank)?;
    if pads {
        attach.padding(deadline)?;
    }
    Ok(attach.attached)
}

impl Attach<'_> {
    /// Opens a peer's memory.
    fn open(
        &mut self,
        group: &Group,
        rank: Rank,
        invitation: &DeviceInvitation,
        deadline: Deadline,
    ) -> Result<(), ExecuteError> {
        let server = group.server_of(rank);
        let mut spans = Vec::with_capacity(invitation.memories.len());
        let mut open = |handle| -> Result<u32, ExecuteError> {
            let memory = PeerMemory::open(self.device, handle, &group.segments, server, deadline)?;
            self.attached.spans.push(DeviceSpan::of_peer(&memory));
            self.attached.mapped.add(memory.mapped_by());
            Ok(self.attached.spans.len() as u32 - 1)
        };
        for handle in &invitation.memories {
            spans.push(open(handle)?);
        }
        let board = invitation.board.as_ref().map(&mut open).transpose()?;
        let open_segment = |id| group.segments.open(server.unwrap_or_default(), id, deadline);
        let host_board = invitation.host_board.map(open_segment).transpose()?;
        let mut tensors = HashMap::new();
        let sides = [(Side::Source, &invitation.source), (Side::Destination, &invitation.destination)];
        for (side, exports) in sides {
            for export in exports {
                let &span = spans.get(export.memory as usize).ok_or_else(|| ExecuteError::Protocol {
                    peer: rank,
                    what: format!("memory {} of {}", export.memory, spans.len()),
                })?;
                tensors.insert((side, export.tensor), (as_export(export), span));
            }
        }
        let (started, finished, gates) = (invitation.started, invitation.finished, invitation.gates.clone());
        self.attached.peers.insert(rank, DevicePeer { board, host_board, started, finished, gates, tensors });
        Ok(())
    }

    /// Whom this rank tells about items that it has got.
    fn reports(&mut self) -> Result<(), ExecuteError> {
        let (program, board) = (&self.prepared.program, &self.prepared.board);
        for (&rank, peer) in &self.attached.peers {
            let awaited = board.awaited_by(program, rank);
            if awaited.len() != peer.gates.len() {
                let what = format!("{} words for {} chunks that it waits for", peer.gates.len(), awaited.len());
                return Err(ExecuteError::Protocol { peer: rank, what });
            }
            for (item, &word) in awaited.into_iter().zip(&peer.gates) {
                self.attached.reports[board.reports[item as usize] as usize].push((rank, word));
            }
        }
        Ok(())
    }

    /// Boxes of all items.
    fn works(&mut self, own: Rank) -> Result<(), ExecuteError> {
        let (program, board): (_, &Board) = (&self.prepared.program, &self.prepared.board);
        let count = program.items.len() as u32;
        let starts: Vec<u32> = board.started.values().copied().chain([NONE]).collect();
        let is_free = |item: u32| starts.contains(&board.gates[item as usize]);
        let awaited = |item: u32| board.reports[item as usize] != NONE;
        let moved = |item: &u32| program.items[*item as usize].incoming != Incoming::Held;
        for item in (0..count).filter(moved).filter(|&item| is_free(item) && awaited(item)) {
            self.work(&[item], board.reports[item as usize])?;
        }
        // Whoever reads from many begins with the next rank, so that nobody is everyone's first.
        let mut senders: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for item in (0..count).filter(moved).filter(|&item| is_free(item) && !awaited(item)) {
            let from = match program.items[item as usize].incoming {
                Incoming::Fed { from } | Incoming::Pull { from, .. } => from,
                _ => own,
            };
            senders.entry(from.0.wrapping_sub(own.0)).or_default().push(item);
        }
        for items in senders.into_values() {
            self.work(&items, NONE)?;
        }
        for item in (0..count).filter(moved).filter(|&item| !is_free(item)) {
            self.work(&[item], board.reports[item as usize])?;
        }
        Ok(())
    }

    /// Boxes of items that wait for the same word, joined where they continue each other.
    fn work(&mut self, items: &[u32], report: u32) -> Result<(), ExecuteError> {
        let Some(&first) = items.first() else { return Ok(()) };
        let gate = self.prepared.board.gates[first as usize];
        let local = self.prepared.program.items[first as usize].incoming == Incoming::OwnCopy;
        // In the order of first appearance, which all starts keep.
        let mut order: Vec<(u32, u32)> = Vec::new();
        let mut batches: HashMap<(u32, u32), CopyTable> = HashMap::new();
        for &item in items {
            for piece in self.prepared.program.item_pieces(item) {
                let (source, destination, table) = self.piece(item, piece)?;
                let batch = batches.entry((source, destination)).or_insert_with(|| {
                    order.push((source, destination));
                    CopyTable::new()
                });
                for index in 0..table.len() {
                    batch.push_from(&table, index);
                }
            }
        }
        for (source, destination) in order {
            let first = self.attached.table.len();
            self.attached.table.append_joined(&batches[&(source, destination)]);
            let boxes = first..self.attached.table.len();
            self.attached.works.push(Work { source, destination, boxes, gate, report, local });
        }
        Ok(())
    }

    /// Padding that layouts ask to be written, from patterns on the device; nobody reads it from here.
    fn padding(&mut self, deadline: Deadline) -> Result<(), ExecuteError> {
        let (plan, local) = (self.plan, self.local);
        for (tensor, spec) in plan.manifest().tensors().iter().enumerate() {
            let boxes = padding_boxes(local.maps(Side::Destination, tensor as u32).unwrap_or_default());
            let Some(element) = spec.destination.padding().filter(|_| !boxes.is_empty()) else { continue };
            let Some(place) = local.destination[tensor].as_ref() else { continue };
            let Some(destination) = self.own_span(Side::Destination, tensor as u32)? else { continue };
            let source = self.pattern(element, deadline)?;
            let first = self.attached.table.len();
            for positions in boxes {
                let at = (place.offset, &place.strides[..], element.len() as u64);
                padding_parts(&positions, at, |extents, from, to| {
                    Ok(self.attached.table.push(extents, at.2, from, to)?)
                })?;
            }
            let boxes = first..self.attached.table.len();
            self.attached.works.push(Work { source, destination, boxes, gate: NONE, report: NONE, local: true });
        }
        Ok(())
    }

    /// Span of a pattern, uploaded once.
    fn pattern(&mut self, element: &[u8], deadline: Deadline) -> Result<u32, ExecuteError> {
        if let Some(&span) = self.patterns.get(element) {
            return Ok(span);
        }
        let memory = Arc::new(uploaded(self.device, &pattern_bytes(element), deadline)?);
        self.attached.spans.push(DeviceSpan::of_memory(&memory));
        let span = self.attached.spans.len() as u32 - 1;
        self.patterns.insert(element.to_vec(), span);
        Ok(span)
    }

    /// A piece: spans of both ends, its boxes.
    fn piece(&mut self, item: u32, piece: &Piece) -> Result<(u32, u32, CopyTable), ExecuteError> {
        let (plan, local, tensor) = (self.plan, self.local, piece.cell.tensor);
        let side = |stored| if stored == Storage::Source { Side::Source } else { Side::Destination };
        let incoming = self.prepared.program.items[item as usize].incoming;
        let from = match incoming {
            Incoming::Fed { from } => Some((from, Side::Source)),
            Incoming::Pull { from, stored } => Some((from, side(stored))),
            _ => None,
        };
        let missing = |peer| ExecuteError::Protocol { peer, what: format!("no place for tensor number {tensor}") };
        let destination_span = self.own_span(Side::Destination, tensor)?.ok_or_else(|| missing(Rank::default()))?;
        let destinations = own_ends(plan, local, Side::Destination, piece).ok_or_else(|| missing(Rank::default()))?;
        let mut table = CopyTable::new();
        let mut add = |source: &End<'_>| {
            let mut each = destinations.iter();
            each.try_for_each(|destination| append(&mut table, plan, piece, source, destination, UNCHANGED))
        };
        let Some((peer, side)) = from else {
            let source_span = self.own_span(Side::Source, tensor)?.ok_or_else(|| missing(Rank::default()))?;
            let source = own_end(plan, local, Side::Source, piece);
            add(&source.ok_or_else(|| missing(Rank::default()))?)?;
            return Ok((source_span, destination_span, table));
        };
        let maps = self.maps_of(side, tensor, peer).ok_or_else(|| missing(peer))?;
        let exported = self.attached.peers.get(&peer).and_then(|known| known.tensors.get(&(side, tensor)));
        let (export, span) = exported.ok_or_else(|| missing(peer))?;
        add(&peer_end(plan, side, &maps, export, 0, piece).ok_or_else(|| missing(peer))?)?;
        Ok((*span, destination_span, table))
    }

    fn own_span(&mut self, side: Side, tensor: u32) -> Result<Option<u32>, ExecuteError> {
        let Some(place) = self.local.side(side)[tensor as usize].as_ref() else { return Ok(None) };
        let key = (place.buffer.as_ptr() as u64, place.buffer.bytes());
        if let Some(&span) = self.buffers.get(&key) {
            return Ok(Some(span));
        }
        self.attached.spans.push(span_of(self.device, &place.buffer)?);
        let span = self.attached.spans.len() as u32 - 1;
        self.buffers.insert(key, span);
        Ok(Some(span))
    }

    /// What a peer holds of a tensor, computed once per layout.
    fn maps_of(&mut self, side: Side, tensor: u32, peer: Rank) -> Option<Arc<Vec<AxisMap>>> {
        let spec = &self.plan.manifest().tensors()[tensor as usize];
        let layout = match side {
            Side::Source => &spec.source,
            Side::Destination => &spec.destination,
        };
        let maps = self.maps.entry((Arc::as_ptr(layout), peer));
        maps.or_insert_with(|| layout.axis_maps(peer).map(Arc::new)).clone()
    }
}

/// The caller's memory, once the driver agrees that it is there.
fn span_of(device: &Device, buffer: &Buffer) -> Result<DeviceSpan, ExecuteError> {
    inspect(device, buffer.as_ptr() as u64, buffer.bytes())?;
    Ok(DeviceSpan::of_buffer(buffer))
}

fn as_export(export: &DeviceExport) -> Export {
    let memory = ExportedMemory::Private { address: 0 };
    Export { tensor: export.tensor, memory, offset: export.offset, strides: export.strides.clone() }
}
