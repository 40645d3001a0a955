//! Joining what peers exported. In: prepared part, peers' invitations. Out: boxes between mapped places, flags. Guarantee:
//! pieces between the same places that wait for the same word share boxes; what waits for nothing but a start comes
//! first, then the others in the order that all ranks share.

use super::super::attach::{padding_parts, pattern_bytes};
use super::super::program::Incoming;
use super::super::tensors::LocalTensors;
use super::super::{ExecuteError, Group, Side};
use super::board::Board;
use super::handles::MappedMemories;
use super::invite::{BoardMemory, DeviceInvitation, Prepared};
use super::opened::{DevicePeer, Opened};
use crate::base::{Deadline, Rank};
use crate::layout::positions::padding_boxes;
use crate::memory::copy::CopyTable;
use crate::memory::device::params::NONE;
use crate::memory::device::{Device, DeviceSpan, Place, Work, uploaded};
use crate::plan::Plan;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

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
    opened: Opened<'a>,
    prepared: &'a Prepared,
    table: CopyTable,
    works: Vec<Work>,
    reports: Vec<Vec<(Rank, u32)>>,
    patterns: HashMap<Vec<u8>, u32>,
}

/// Joins; this rank's board becomes span 0 when it is on the device.
pub(super) fn attach(
    group: &Group,
    plan: &Plan,
    local: &LocalTensors,
    device: &Device,
    prepared: &Prepared,
    theirs: &BTreeMap<Rank, DeviceInvitation>,
    deadline: Deadline,
) -> Result<Attached, ExecuteError> {
    let spans = match &prepared.board_memory {
        Some(BoardMemory::Device(memory)) => vec![DeviceSpan::of_memory(memory)],
        _ => Vec::new(),
    };
    let opened = Opened::new(plan, local, device, spans);
    let reports = vec![Vec::new(); prepared.board.counters.len()];
    let (table, works, patterns) = (CopyTable::new(), Vec::new(), HashMap::new());
    let mut attach = Attach { opened, prepared, table, works, reports, patterns };
    for (&rank, invitation) in theirs {
        attach.opened.open(group, rank, invitation, deadline)?;
    }
    attach.reports()?;
    attach.works(group.rank)?;
    attach.padding(deadline)?;
    let Attach { opened, table, works, reports, .. } = attach;
    let Opened { spans, peers, mapped, .. } = opened;
    Ok(Attached { table, works, spans, peers, reports, mapped })
}

impl Attach<'_> {
    /// Whom this rank tells about items that it has got.
    fn reports(&mut self) -> Result<(), ExecuteError> {
        let (program, board) = (&self.prepared.program, &self.prepared.board);
        for (&rank, peer) in &self.opened.peers {
            let awaited = board.awaited_by(program, rank);
            if awaited.len() != peer.gates.len() {
                let what = format!("{} words for {} chunks that it waits for", peer.gates.len(), awaited.len());
                return Err(ExecuteError::Protocol { peer: rank, what });
            }
            for (item, &word) in awaited.into_iter().zip(&peer.gates) {
                self.reports[board.reports[item as usize] as usize].push((rank, word));
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
        for (source, destination, boxes) in self.opened.boxes(&self.prepared.program, items, &mut self.table)? {
            self.works.push(Work { source, destination, boxes, gate, report, local });
        }
        Ok(())
    }

    /// Padding that layouts ask to be written, from patterns on the device; nobody reads it from here.
    fn padding(&mut self, deadline: Deadline) -> Result<(), ExecuteError> {
        let (plan, local) = (self.opened.plan, self.opened.local);
        for (tensor, spec) in plan.manifest().tensors().iter().enumerate() {
            let boxes = padding_boxes(local.maps(Side::Destination, tensor as u32).unwrap_or_default());
            let Some(element) = spec.destination.padding().filter(|_| !boxes.is_empty()) else { continue };
            let Some(place) = local.destination[tensor].as_ref() else { continue };
            let Some(destination) = self.opened.own_span(Side::Destination, tensor as u32)? else { continue };
            let source = self.pattern(element, deadline)?;
            let first = self.table.len();
            for positions in boxes {
                let at = (place.offset, &place.strides[..], element.len() as u64);
                padding_parts(&positions, at, |extents, from, to| Ok(self.table.push(extents, at.2, from, to)?))?;
            }
            let boxes = first..self.table.len();
            self.works.push(Work { source, destination, boxes, gate: NONE, report: NONE, local: true });
        }
        Ok(())
    }

    /// Span of a pattern, uploaded once.
    fn pattern(&mut self, element: &[u8], deadline: Deadline) -> Result<u32, ExecuteError> {
        if let Some(&span) = self.patterns.get(element) {
            return Ok(span);
        }
        let memory = Arc::new(uploaded(self.opened.device, &pattern_bytes(element), deadline)?);
        self.opened.spans.push(DeviceSpan::of_memory(&memory));
        let span = self.opened.spans.len() as u32 - 1;
        self.patterns.insert(element.to_vec(), span);
        Ok(span)
    }
}
