//! Joining what peers exported. In: prepared part, peers' invitations. Out: an execution that can start.
//! Guarantee: every address it will use is mapped or registered, every table is built.

mod bridging;
mod copies;
mod feeds;
mod padding;
mod pushes;
mod sums;

use super::bind::{End, Onto, Place, own_end, own_ends, peer_end};
use super::exchange::{Export, ExportedMemory, Invitation};
use super::execution::{Bound, BoundItem, BoundPush, Peer, PutOp, Stage};
use super::hop::Hop;
use super::prepare::Prepared;
use super::program::{Form, Incoming, Item, Storage};
use super::tensors::LocalTensors;
use super::{ExecuteError, Group, Mapped, Side};
use crate::base::{Deadline, Rank};
use crate::layout::{AxisMap, Layout};
use crate::memory::copy::Store;
use crate::memory::device::{Bridge, StreamGate};
use crate::memory::{Bell, Buffer, ProcessMemory, SegmentId, Span};
use crate::plan::Plan;
use copies::Copies;
pub(super) use padding::{padding_parts, pattern_bytes};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Bytes that a rank must receive per transfer before its tensors are written past the cache.
const STREAM_FROM: u64 = 4 << 20;

struct Attach<'a> {
    plan: &'a Plan,
    local: &'a LocalTensors,
    prepared: &'a Prepared,
    theirs: Theirs<'a>,
    spans: Vec<Span>,
    /// Memory with this rank's slots.
    slots_span: u32,
    buffer_spans: HashMap<u64, u32>,
    copies: Copies,
    puts: Vec<PutOp>,
    /// For tensors of this rank on devices.
    bridge: Option<Bridge>,
    /// Per number of the bridge, the staging of its copies.
    staging: Vec<Option<Place>>,
    /// Per peer, the distance between its slots.
    peer_slot_bytes: Vec<u64>,
    /// Bytes that this rank's destinations receive.
    written: u64,
}

/// What peers exported.
struct Theirs<'a> {
    plan: &'a Plan,
    peer_numbers: HashMap<Rank, u32>,
    segment_spans: HashMap<SegmentId, u32>,
    source: HashMap<(Rank, u32), Export>,
    destination: HashMap<(Rank, u32), Export>,
    direct: HashMap<(Rank, u32), Export>,
    fed_source: HashMap<(Rank, u32), Export>,
    fed_destination: HashMap<(Rank, u32), Export>,
    /// Senders that this rank may copy along with.
    helped: BTreeSet<Rank>,
    maps: BTreeMap<Rank, PeerMaps>,
}

/// Axis maps by number of tensor.
type TensorMaps = HashMap<u32, Arc<Vec<AxisMap>>>;

/// What a peer holds of the tensors that it exported.
struct PeerMaps {
    source: TensorMaps,
    destination: TensorMaps,
}

/// What `rank` holds of exported tensors, computed once per distinct layout.
fn maps_of<'a>(
    exports: impl Iterator<Item = &'a Export>,
    rank: Rank,
    layout: impl Fn(usize) -> Option<&'a Arc<Layout>>,
) -> TensorMaps {
    let mut known: HashMap<*const Layout, Arc<Vec<AxisMap>>> = HashMap::new();
    let mut maps = TensorMaps::new();
    for export in exports {
        let Some(layout) = layout(export.tensor as usize) else { continue };
        let shared = known.get(&Arc::as_ptr(layout)).cloned();
        if let Some(found) = shared.or_else(|| layout.axis_maps(rank).map(Arc::new)) {
            known.insert(Arc::as_ptr(layout), found.clone());
            maps.insert(export.tensor, found);
        }
    }
    maps
}

/// Builds the execution's tables.
pub(super) fn attach(
    group: &Group,
    plan: &Plan,
    local: &LocalTensors,
    prepared: &Prepared,
    theirs: &BTreeMap<Rank, Invitation>,
    deadline: Deadline,
) -> Result<Bound, ExecuteError> {
    let segment = prepared.reservation.segment.clone();
    let mut attach = Attach::new(plan, local, prepared, theirs);
    attach.bridge = open_bridge(local, prepared)?;
    let mut peers = Vec::with_capacity(theirs.len());
    for (&rank, invitation) in theirs {
        peers.push(attach.peer(group, rank, invitation, deadline)?);
    }
    let items = (0..prepared.program.items.len() as u32).map(|item| attach.item(item)).collect::<Result<_, _>>()?;
    let mut pushes = vec![BoundPush::default(); prepared.program.pushes.len()];
    for (&peer, numbers) in &prepared.program.sends {
        for (position, &push) in numbers.iter().enumerate() {
            pushes[push as usize] = attach.push(group, peer, position, push, &theirs[&peer])?;
        }
    }
    let feeds = attach.feeds(theirs)?;
    let padding = attach.padding()?;
    attach.bridge.as_mut().map_or(Ok(()), |bridge| bridge.finish(deadline))?;
    let gate = attach.bridge.as_ref().and_then(Bridge::device);
    let gate = gate.map(|device| StreamGate::new(device, prepared.steps.len() as u32)).transpose()?.map(Arc::new);
    Ok(Bound {
        bridge: attach.bridge,
        staging: attach.staging,
        gate,
        steps: prepared.steps.clone(),
        items,
        feeds,
        padding,
        pushes,
        hops: hops(prepared, peers.len()),
        copies: attach.copies.list,
        puts: attach.puts,
        table: attach.copies.table,
        spans: attach.spans,
        peers,
        segment,
        slots_span: attach.slots_span,
        slot_regions: prepared.slot_regions.clone(),
        slots_offset: prepared.slots_offset,
        slot_bytes: prepared.slots.bytes,
        send_slots: prepared.slots.send.clone(),
        program: prepared.program.clone(),
    })
}

/// What carries bytes between this rank's devices and its staging.
fn open_bridge(local: &LocalTensors, prepared: &Prepared) -> Result<Option<Bridge>, ExecuteError> {
    let devices = local.devices();
    if devices.is_empty() {
        return Ok(None);
    }
    let mut bridge = Bridge::new(&devices, prepared.alone)?;
    bridge.lock(&prepared.reservation.slots);
    Ok(Some(bridge))
}

/// Grant queues: everything that is put here, and what is read into slots.
fn hops(prepared: &Prepared, peers: usize) -> Vec<Hop> {
    let mut hops: Vec<Hop> = prepared.slots.hops.iter().map(|_| Hop::default()).collect();
    for (number, item) in prepared.program.items.iter().enumerate() {
        let brought = matches!(item.incoming, Incoming::Pull { .. } | Incoming::Pack | Incoming::Sum);
        let reads_into_slot = brought && item.storage == Storage::Slot;
        if reads_into_slot || matches!(item.incoming, Incoming::Push { .. }) {
            hops[item.hop as usize].items.push(number as u32);
        }
    }
    for (hop, slots) in hops.iter_mut().zip(&prepared.slots.hops) {
        hop.prepare(slots.start, slots.len() as u32, peers);
    }
    hops
}

impl Theirs<'_> {
    /// Notes what `rank` exported.
    fn learn(&mut self, rank: Rank, invitation: &Invitation) {
        let index = |exports: &[Export], map: &mut HashMap<(Rank, u32), Export>| {
            map.extend(exports.iter().map(|export| ((rank, export.tensor), export.clone())));
        };
        index(&invitation.source, &mut self.source);
        index(&invitation.destination, &mut self.destination);
        index(&invitation.direct_tensors, &mut self.direct);
        if !invitation.fed_source.is_empty() {
            self.helped.insert(rank);
        }
        index(&invitation.fed_source, &mut self.fed_source);
        index(&invitation.fed_destination, &mut self.fed_destination);
        let tensors = self.plan.manifest().tensors();
        // Only of what it exported: all tensors of all peers would be as many as the job has shards.
        let source = invitation.source.iter().chain(&invitation.fed_source);
        let destination = invitation.destination.iter().chain(&invitation.direct_tensors);
        let destination = destination.chain(&invitation.fed_destination);
        let maps = PeerMaps {
            source: maps_of(source, rank, |tensor| tensors.get(tensor).map(|spec| &spec.source)),
            destination: maps_of(destination, rank, |tensor| tensors.get(tensor).map(|spec| &spec.destination)),
        };
        self.maps.insert(rank, maps);
    }

    /// Where a peer's tensor lies, as this rank reads it.
    fn tensor(&self, from: Rank, stored: Storage, piece: &crate::route::Piece) -> (Option<End<'_>>, Option<Place>) {
        match stored {
            Storage::Source => self.exported(Side::Source, &self.source, &self.maps[&from].source, from, piece),
            _ => self.exported(Side::Destination, &self.destination, &self.maps[&from].destination, from, piece),
        }
    }

    fn exported<'a>(
        &'a self,
        side: Side,
        exports: &'a HashMap<(Rank, u32), Export>,
        maps: &TensorMaps,
        from: Rank,
        piece: &crate::route::Piece,
    ) -> (Option<End<'a>>, Option<Place>) {
        let tensor = piece.cell.tensor;
        let Some(export) = exports.get(&(from, tensor)) else { return (None, None) };
        let (place, base) = match export.memory {
            ExportedMemory::Shared { segment, offset } => {
                (self.segment_spans.get(&segment).map(|&span| Place::Span(span)), offset)
            }
            ExportedMemory::Private { address } => {
                (Some(Place::Process { peer: self.peer_numbers[&from], address }), 0)
            }
            ExportedMemory::Region { .. } => (None, 0),
        };
        (maps.get(&tensor).and_then(|maps| peer_end(self.plan, side, maps, export, base, piece)), place)
    }
}

impl<'a> Attach<'a> {
    fn new(
        plan: &'a Plan,
        local: &'a LocalTensors,
        prepared: &'a Prepared,
        theirs: &BTreeMap<Rank, Invitation>,
    ) -> Self {
        let segment = &prepared.reservation.segment;
        Self {
            plan,
            local,
            prepared,
            theirs: Theirs {
                plan,
                peer_numbers: theirs.keys().enumerate().map(|(number, &rank)| (rank, number as u32)).collect(),
                segment_spans: HashMap::from([(segment.id(), 0)]),
                source: HashMap::new(),
                destination: HashMap::new(),
                direct: HashMap::new(),
                fed_source: HashMap::new(),
                fed_destination: HashMap::new(),
                helped: BTreeSet::new(),
                maps: BTreeMap::new(),
            },
            spans: vec![Span::of_segment(segment), Span::of_segment(&prepared.reservation.slots)],
            slots_span: 1,
            buffer_spans: HashMap::new(),
            copies: Copies::default(),
            puts: Vec::new(),
            bridge: None,
            staging: Vec::new(),
            peer_slot_bytes: Vec::with_capacity(theirs.len()),
            written: prepared.program.items.iter().filter(|item| item.wants).map(|item| item.bytes).sum(),
        }
    }

    fn peer(
        &mut self,
        group: &Group,
        rank: Rank,
        invitation: &Invitation,
        deadline: Deadline,
    ) -> Result<Peer, ExecuteError> {
        let (world, program) = (group.world(rank), &self.prepared.program);
        let peering = &group.peering[world.index()];
        let pulls = program.pulls.get(&rank).cloned().unwrap_or_default();
        invitation.check(rank, pulls.len(), program.sends.get(&rank).map_or(0, Vec::len))?;
        let mut segment = None;
        let mut slots_span = None;
        let maps = !pulls.is_empty() || program.feeds.contains_key(&rank) || program.fed.contains_key(&rank);
        if let (true, Some(id)) = (maps, invitation.segment) {
            let opened = group.segments.open(&peering.server, id, deadline)?;
            let slots = match invitation.slots.filter(|&slots| slots != id) {
                Some(slots) => group.segments.open(&peering.server, slots, deadline)?,
                None => opened.clone(),
            };
            slots_span = Some(self.spans.len() as u32);
            self.spans.push(Span::of_segment(&slots));
            if let Some(bridge) = self.bridge.as_mut().filter(|_| !pulls.is_empty()) {
                bridge.lock(&slots);
            }
            segment = Some(opened);
        }
        let mapped = group.mapped != Mapped::Staged && group.topology.domain(rank) == group.topology.domain(group.rank);
        let bell = mapped.then(|| Bell::open(&group.segments, &peering.server, peering.bell, deadline)).transpose()?;
        self.map_exports(group, &peering.server, invitation, deadline)?;
        self.peer_slot_bytes.push(invitation.slot_bytes);
        self.theirs.learn(rank, invitation);
        let mine = &self.prepared.invitations[&rank];
        let linked = program.arrivals.contains_key(&rank) || program.sends.contains_key(&rank);
        Ok(Peer {
            rank,
            world,
            host: group.topology.host(rank).to_string(),
            link: linked.then(|| group.link_to(rank)),
            bell,
            segment,
            slots_span,
            slots_offset: invitation.slots_offset,
            slot_bytes: invitation.slot_bytes,
            region: invitation.region,
            slots_region: invitation.slots_region,
            process: ProcessMemory { pid: peering.pid },
            pulls,
            pull_words: invitation.available_words.clone(),
            pull_releases: invitation.release_words.clone(),
            done_word: invitation.done_word,
            pull_cursor: 0,
            read: 0,
            arrivals: program.arrivals.get(&rank).cloned().unwrap_or_default(),
            arrival_cursor: 0,
            signal_base: mine.signal_base,
            grant_base: invitation.grant_base,
            pushes: program.sends.get(&rank).cloned().unwrap_or_default(),
            push_cursor: 0,
            reader_word: mine.done_word,
        })
    }

    /// Maps the segments that a peer's tensors lie in, each once.
    fn map_exports(
        &mut self,
        group: &Group,
        server: &str,
        invitation: &Invitation,
        deadline: Deadline,
    ) -> Result<(), ExecuteError> {
        let exports =
            [&invitation.source, &invitation.destination, &invitation.fed_source, &invitation.fed_destination];
        for export in exports.into_iter().flatten() {
            if let ExportedMemory::Shared { segment, .. } = export.memory
                && !self.theirs.segment_spans.contains_key(&segment)
            {
                let opened = group.segments.open(server, segment, deadline)?;
                self.theirs.segment_spans.insert(segment, self.spans.len() as u32);
                self.spans.push(Span::of_segment(&opened));
            }
        }
        Ok(())
    }

    fn buffer_span(&mut self, buffer: &Buffer) -> u32 {
        let next = self.spans.len() as u32;
        let number = *self.buffer_spans.entry(buffer.as_ptr() as u64).or_insert(next);
        if number == next {
            self.spans.push(Span::of_buffer(buffer));
        }
        number
    }

    /// Place of one of this rank's tensors.
    fn own_place(&mut self, side: Side, tensor: u32) -> Option<Place> {
        let buffer = self.local.side(side)[tensor as usize].as_ref()?.buffer.clone();
        Some(Place::Span(self.buffer_span(&buffer)))
    }

    fn missing(&self, peer: Rank, tensor: u32) -> ExecuteError {
        let name = self.plan.manifest().tensors()[tensor as usize].name.clone();
        ExecuteError::Protocol { peer, what: format!("no place for tensor {name:?}") }
    }

    fn item(&mut self, number: u32) -> Result<BoundItem, ExecuteError> {
        let prepared = self.prepared;
        let item = &prepared.program.items[number as usize];
        let first = self.copies.next();
        let direct = prepared.direct[number as usize];
        let arrives = match item.incoming {
            Incoming::Held => false,
            // Without exports the sender copies alone.
            Incoming::Fed { from } => self.theirs.helped.contains(&from),
            // It arrives where it is kept.
            Incoming::Push { .. } => !direct && item.storage != Storage::Slot,
            _ => true,
        };
        if item.incoming == Incoming::Sum {
            self.sum_copies(number)?;
        } else if arrives {
            self.item_copies(number)?;
        }
        let stage = self.stage(first)?;
        Ok(BoundItem {
            stage,
            unpack: if item.unpacks { self.unpack_copies(number)? } else { Stage::default() },
            direct,
            store: self.store(item),
            available_word: prepared.available_words[number as usize],
            release_word: prepared.release_words[number as usize],
        })
    }

    /// Tensors that fill more than the cache are written past it, unless others read them from here at once.
    fn store(&self, item: &Item) -> Store {
        let streams = item.storage == Storage::Destination && item.readers == 0 && self.written >= STREAM_FROM;
        if streams { Store::Streaming } else { Store::Cached }
    }

    fn item_copies(&mut self, number: u32) -> Result<(), ExecuteError> {
        let (plan, local, prepared) = (self.plan, self.local, self.prepared);
        let item = &prepared.program.items[number as usize];
        let mut packed = 0;
        let mut summed = 0;
        for piece in prepared.program.item_pieces(number) {
            let tensor = piece.cell.tensor;
            let dtype = prepared.program.dtype(plan, number, tensor);
            let in_slot = || Some(End::Packed { offset: packed, dtype });
            let sum_dtype = Form::Sum.dtype(&plan.manifest().tensors()[tensor as usize]);
            let (destinations, destination_place) = if let Some(sum) = item.sum {
                (Some(vec![End::Packed { offset: summed, dtype: sum_dtype }]), Some(Place::SumSlot(sum)))
            } else if item.storage == Storage::Slot {
                (in_slot().map(|end| vec![end]), Some(Place::Slot))
            } else {
                (own_ends(plan, local, Side::Destination, piece), self.own_place(Side::Destination, tensor))
            };
            let (source, source_place, peer) = match item.incoming {
                Incoming::Held | Incoming::Sum => return Ok(()),
                Incoming::OwnCopy | Incoming::Pack => {
                    (own_end(plan, local, Side::Source, piece), self.own_place(Side::Source, tensor), None)
                }
                Incoming::Push { from } => (in_slot(), Some(Place::Slot), Some(from)),
                Incoming::Pull { from, stored: Storage::Slot } => {
                    (in_slot(), Some(Place::PeerSlot(self.theirs.peer_numbers[&from])), Some(from))
                }
                Incoming::Fed { from } => {
                    let maps = &self.theirs.maps[&from].source;
                    let (end, place) = self.theirs.exported(Side::Source, &self.theirs.fed_source, maps, from, piece);
                    (end, place, Some(from))
                }
                Incoming::Pull { from, stored } => {
                    let (end, place) = self.theirs.tensor(from, stored, piece);
                    (end, place, Some(from))
                }
            };
            let ends = (source, source_place, destinations, destination_place);
            let (Some(source), Some(source_place), Some(destinations), Some(destination_place)) = ends else {
                return Err(self.missing(peer.unwrap_or_default(), tensor));
            };
            let source = (source, source_place);
            let first = item.sum.is_none_or(|sum| prepared.program.items[sum as usize].terms.start == number);
            for (destination, replaced) in destinations.into_iter().zip(Onto::places(item.counted)) {
                let onto = if first { replaced } else { Onto::Added };
                self.copies.add(plan, piece, &source, &(destination, destination_place), onto)?;
            }
            packed += (piece.end - piece.start) * dtype.bytes();
            summed += (piece.end - piece.start) * sum_dtype.bytes();
        }
        Ok(())
    }
}
