//! Memory of peers, mapped, and boxes between it and this rank's tensors. In: peers' invitations, a program. Out: spans, boxes.
//! Guarantee: a peer's memory is opened once for each invitation, a buffer of the caller is looked at once; pieces between
//! the same places share boxes.

use super::super::bind::{End, UNCHANGED, append, own_end, own_ends, peer_end};
use super::super::exchange::{Export, ExportedMemory};
use super::super::program::{Incoming, Program, Storage};
use super::super::tensors::LocalTensors;
use super::super::{ExecuteError, Group, Side};
use super::handles::MappedMemories;
use super::invite::{DeviceExport, DeviceInvitation};
use crate::base::{Deadline, Rank};
use crate::layout::{AxisMap, Layout};
use crate::memory::copy::CopyTable;
use crate::memory::device::{Device, DeviceSpan, PeerMemory, inspect};
use crate::memory::{Buffer, SharedMemory};
use crate::plan::Plan;
use crate::route::Piece;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
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

/// What has been opened.
pub(super) struct Opened<'a> {
    pub(super) plan: &'a Plan,
    pub(super) local: &'a LocalTensors,
    pub(super) device: &'a Device,
    pub(super) spans: Vec<DeviceSpan>,
    pub(super) peers: BTreeMap<Rank, DevicePeer>,
    /// How peers' memory was mapped.
    pub(super) mapped: MappedMemories,
    buffers: HashMap<(u64, u64), u32>,
    maps: HashMap<(*const Layout, Rank), Option<Arc<Vec<AxisMap>>>>,
}

impl<'a> Opened<'a> {
    /// Nothing but `spans`.
    pub(super) fn new(plan: &'a Plan, local: &'a LocalTensors, device: &'a Device, spans: Vec<DeviceSpan>) -> Self {
        let (peers, mapped) = (BTreeMap::new(), MappedMemories::default());
        Self { plan, local, device, spans, peers, mapped, buffers: HashMap::new(), maps: HashMap::new() }
    }

    /// Opens a peer's memory.
    pub(super) fn open(
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
            self.spans.push(DeviceSpan::of_peer(&memory));
            self.mapped.add(memory.mapped_by());
            Ok(self.spans.len() as u32 - 1)
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
        self.peers.insert(rank, DevicePeer { board, host_board, started, finished, gates, tensors });
        Ok(())
    }

    /// Boxes of items of a program, added to a table: spans of both ends and which boxes, in the order of first appearance, which
    /// all starts keep.
    pub(super) fn boxes(
        &mut self,
        program: &Program,
        items: &[u32],
        table: &mut CopyTable,
    ) -> Result<Vec<(u32, u32, Range<usize>)>, ExecuteError> {
        let mut order: Vec<(u32, u32)> = Vec::new();
        let mut batches: HashMap<(u32, u32), CopyTable> = HashMap::new();
        for &item in items {
            for piece in program.item_pieces(item) {
                let (source, destination, boxes) = self.piece(program.items[item as usize].incoming, piece)?;
                let batch = batches.entry((source, destination)).or_insert_with(|| {
                    order.push((source, destination));
                    CopyTable::new()
                });
                for index in 0..boxes.len() {
                    batch.push_from(&boxes, index);
                }
            }
        }
        let mut add = |(source, destination): (u32, u32)| {
            let first = table.len();
            table.append_joined(&batches[&(source, destination)]);
            (source, destination, first..table.len())
        };
        Ok(order.into_iter().map(&mut add).collect())
    }

    /// A piece: spans of both ends, its boxes.
    fn piece(&mut self, incoming: Incoming, piece: &Piece) -> Result<(u32, u32, CopyTable), ExecuteError> {
        let (plan, local, tensor) = (self.plan, self.local, piece.cell.tensor);
        let side = |stored| if stored == Storage::Source { Side::Source } else { Side::Destination };
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
        let exported = self.peers.get(&peer).and_then(|known| known.tensors.get(&(side, tensor)));
        let (export, span) = exported.ok_or_else(|| missing(peer))?;
        add(&peer_end(plan, side, &maps, export, 0, piece).ok_or_else(|| missing(peer))?)?;
        Ok((*span, destination_span, table))
    }

    /// Span of the buffer of one of this rank's tensors.
    pub(super) fn own_span(&mut self, side: Side, tensor: u32) -> Result<Option<u32>, ExecuteError> {
        let Some(place) = self.local.side(side)[tensor as usize].as_ref() else { return Ok(None) };
        let key = (place.buffer.as_ptr() as u64, place.buffer.bytes());
        if let Some(&span) = self.buffers.get(&key) {
            return Ok(Some(span));
        }
        self.spans.push(span_of(self.device, &place.buffer)?);
        let span = self.spans.len() as u32 - 1;
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
