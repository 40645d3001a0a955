//! This rank's own part of init. In: agreed manifest, buffers, staging. Out: program, board, segment, regions and
//! one invitation per peer. Guarantee: everything that can fail on this rank alone fails here, before peers are
//! waited for; what it reserved is given back when it is dropped.

use super::agree::Agreement;
use super::bind::{count_runs, is_direct, is_repeated, is_unchanged};
use super::board::{BoardLayout, FEED_WORDS, NO_WORD};
use super::budget::{self, SLOT_ALIGNMENT};
use super::exchange::{Export, ExportedMemory, Invitation};
use super::group::{Group, Mapped};
use super::passing::{Passing, Step};
use super::planned::Routes;
use super::program::{Incoming, Program, Storage, compile};
use super::reach::Reach;
use super::tensors::{LocalTensor, LocalTensors, MemoryOf};
use super::transfers::Inner;
use super::{ExecuteError, Side};
use crate::base::Rank;
use crate::memory::{MemoryKind, SharedMemory, Span};
use crate::plan::Plan;
use crate::route::LocalFlow;
use crate::topology::Topology;
use crate::transport::{Capabilities, RegionId, Rights, register_span};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Slots per hop and for sending when staging allows.
const HOP_SLOTS: u64 = 8;
const SEND_SLOTS: u64 = 4;
/// A chunk may exceed its size by less than one element.
const LARGEST_ELEMENT: u64 = 16;
const BOARD_ALIGNMENT: u64 = 4096;

/// Memory that a transfer reserved; gives it back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) group: Group,
    pub(super) number: u32,
    /// With the board, and the slots unless they are shared.
    pub(super) segment: Arc<SharedMemory>,
    /// With the slots.
    pub(super) slots: Arc<SharedMemory>,
    /// What it took of the budget for itself.
    pub(super) staging: u64,
    /// Registered regions by link, with their memory.
    pub(super) regions: Vec<(usize, RegionId, Span)>,
}

impl Reservation {
    fn register(
        &mut self,
        engine: &mut Inner,
        link: usize,
        memory: Span,
        rights: Rights,
    ) -> Result<RegionId, ExecuteError> {
        let region = register_span(engine.links.get(link), &memory, rights)?;
        self.regions.push((link, region, memory));
        Ok(region)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.group.engine.remove(self.number);
        let mut engine = self.group.engine.lock();
        for &(link, region, _) in &self.regions {
            if let Err(error) = engine.links.get(link).deregister(region) {
                log::warn!("deregistering a region failed: {error}");
            }
        }
        drop(engine);
        self.group.server.withdraw(self.segment.id());
        self.group.staging.release(self.staging);
    }
}

/// Slots of a transfer.
#[derive(Debug, Clone, Default)]
pub(super) struct Slots {
    pub(super) bytes: u64,
    /// Per hop: first slot and count.
    pub(super) hops: Vec<Range<u32>>,
    pub(super) send: Range<u32>,
}

/// What this rank prepared.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) program: Program,
    pub(super) slots: Slots,
    pub(super) slots_offset: u64,
    pub(super) direct: Vec<bool>,
    /// Pushes that are packed.
    pub(super) packed: Vec<bool>,
    pub(super) available_words: Vec<u32>,
    pub(super) release_words: Vec<u32>,
    pub(super) invitations: BTreeMap<Rank, Invitation>,
    /// Region of a buffer, by its address and link.
    pub(super) buffer_regions: HashMap<(u64, usize), RegionId>,
    pub(super) segment_regions: Vec<Option<RegionId>>,
    /// Of the memory with the slots.
    pub(super) slot_regions: Vec<Option<RegionId>>,
    /// Bytes of slots.
    pub(super) staging_bytes: u64,
    /// Who takes turns with these slots, when they are shared.
    pub(super) turn: Option<Vec<Rank>>,
    pub(super) chunk_bytes: u64,
    /// Whether no other rank uses its devices.
    pub(super) alone: bool,
    /// What its GPU does with others of its domain, step by step.
    pub(super) steps: Vec<Step>,
    /// Whether ranks of the domain read this rank's tensors directly.
    readable: bool,
    pub(super) reservation: Reservation,
}

/// How ranks reach each other under an agreement.
pub(super) fn reach(group: &Group, agreement: &Agreement, chunk_bytes: u64) -> Reach {
    let device: Vec<bool> = agreement.devices.iter().map(|devices| !devices.is_empty()).collect();
    let readable = agreement
        .all_shared
        .iter()
        .zip(group.members.iter())
        .zip(&device)
        .map(|((&shared, world), &device)| {
            let by_process = group.mapped == Mapped::Auto && group.peering[world.index()].process_readable;
            shared || (by_process && !device)
        })
        .collect();
    Reach {
        readable,
        shared: agreement.all_shared.clone(),
        mixed: agreement.memory.iter().map(|&memory| memory == MemoryOf::Mixed).collect(),
        device,
        cores: agreement.cores,
        mapped: group.mapped != Mapped::Staged,
        chunk_bytes,
        parts: 0,
    }
}

/// Prepares this rank's part; `topology` has the domains that flows were cut by, `passing` how GPUs pass on what comes.
pub(super) fn prepare(
    group: &Group,
    (topology, passing): (&Topology, &Passing),
    plan: &Plan,
    flows: &[LocalFlow],
    local: &LocalTensors,
    agreement: &Agreement,
    routes: &Routes,
) -> Result<Prepared, ExecuteError> {
    let (chunk, allowance) = budget::share(&routes.staging, agreement.chunk, routes.hops)?;
    let reach = Reach { parts: passing.parts, ..reach(group, agreement, chunk) };
    let helped = (routes.feeders[group.topology.domain(group.rank).index()] as u64) < u64::from(reach.cores);
    let program = compile(plan, flows, topology, &reach, (group.rank, helped));
    let direct = direct_items(group, &program, plan, local)?;
    let packed = packed_pushes(&program, plan, local, &direct)?;
    let slots = slots(&program, &direct, &packed, chunk, allowance.bytes);
    let mut board = BoardLayout::new();
    let (available_words, release_words) = item_words(&program, &mut board);
    let mut invitations = invite(&program, &mut board, &direct, &available_words, &release_words);
    let board_bytes = (u64::from(board.words) * 8).next_multiple_of(BOARD_ALIGNMENT);
    let staging_bytes = slots.bytes * u64::from(slots.send.end);
    let memory = reserve(group, board_bytes, staging_bytes, allowance.is_shared)?;
    if program.is_over_both() {
        group.engine.prepare_for_both()?;
    }
    let (number, links) = {
        let mut engine = group.engine.lock();
        (engine.reserve_execution(), engine.links.len())
    };
    let mut prepared = Prepared {
        segment_regions: vec![None; links],
        slot_regions: vec![None; links],
        reservation: Reservation {
            group: group.clone(),
            number,
            segment: memory.segment,
            slots: memory.slots,
            staging: memory.staging,
            regions: Vec::new(),
        },
        staging_bytes,
        turn: (allowance.is_shared && !(flows.is_empty() && passing.steps.is_empty()))
            .then(|| routes.participants.clone()),
        buffer_regions: HashMap::new(),
        invitations: BTreeMap::new(),
        program,
        slots,
        slots_offset: memory.slots_offset,
        direct,
        packed,
        available_words,
        release_words,
        chunk_bytes: chunk,
        alone: agreement.has_devices_alone(group.rank),
        steps: passing.steps.clone(),
        readable: reach.readable[group.rank.index()],
    };
    prepared.register(local)?;
    prepared.fill(local, &mut invitations)?;
    prepared.invitations = invitations;
    Ok(prepared)
}

/// Board and slots of a transfer.
struct Memory {
    segment: Arc<SharedMemory>,
    slots: Arc<SharedMemory>,
    slots_offset: u64,
    staging: u64,
}

/// Takes memory for a board and slots, which are behind the board or in the shared part.
fn reserve(group: &Group, board: u64, staging: u64, is_shared: bool) -> Result<Memory, ExecuteError> {
    if is_shared {
        let slots = group.staging.shared(|memory| group.server.publish(memory))?;
        let segment = Arc::new(SharedMemory::create("crossmesh-transfer", board)?);
        group.server.publish(&segment);
        return Ok(Memory { segment, slots, slots_offset: 0, staging: 0 });
    }
    let segment = Arc::new(SharedMemory::create("crossmesh-transfer", board + staging)?);
    if !group.staging.reserve(staging) {
        let available = group.staging.left();
        return Err(ExecuteError::Staging { rank: group.rank, available, needed: staging });
    }
    group.server.publish(&segment);
    Ok(Memory { slots: segment.clone(), segment, slots_offset: board, staging })
}

/// Items that are put straight into this rank's tensors.
fn direct_items(
    group: &Group,
    program: &Program,
    plan: &Plan,
    local: &LocalTensors,
) -> Result<Vec<bool>, ExecuteError> {
    let mut direct = vec![false; program.items.len()];
    for (number, item) in program.items.iter().enumerate() {
        if let Incoming::Push { from } = item.incoming
            && item.wants
        {
            let link = group.link_to(from);
            let any = group.engine.lock().links.get(link).capabilities().contains(Capabilities::ANY_MEMORY);
            let runs = count_runs(program, plan, local, Side::Destination, number as u32)?;
            let repeated = is_repeated(program, plan, local, Side::Destination, number as u32);
            let device = item.unpacks || local.touch_device(Side::Destination, &program.tensors_of(&[number as u32]));
            let unchanged = is_unchanged(program, plan, Side::Destination, number as u32);
            direct[number] = any && unchanged && is_direct(runs, item.bytes) && !repeated && !device;
        }
    }
    Ok(direct)
}

/// Whether an item's bytes lie packed in a slot of this rank.
pub(super) fn in_slot(program: &Program, direct: &[bool], item: u32) -> bool {
    let found = &program.items[item as usize];
    let arrived_packed = matches!(found.incoming, Incoming::Push { .. }) && !direct[item as usize];
    arrived_packed || found.storage == Storage::Slot
}

/// Side of this rank's tensors that an item is sent from.
pub(super) fn sending_side(program: &Program, item: u32) -> Side {
    match program.items[item as usize].storage {
        Storage::Source => Side::Source,
        _ => Side::Destination,
    }
}

fn packed_pushes(
    program: &Program,
    plan: &Plan,
    local: &LocalTensors,
    direct: &[bool],
) -> Result<Vec<bool>, ExecuteError> {
    program
        .pushes
        .iter()
        .map(|push| {
            if in_slot(program, direct, push.item) {
                return Ok(false);
            }
            let side = sending_side(program, push.item);
            let runs = count_runs(program, plan, local, side, push.item)?;
            let unchanged = is_unchanged(program, plan, side, push.item);
            Ok(!(unchanged && is_direct(runs, program.items[push.item as usize].bytes)))
        })
        .collect()
}

/// Shares the staging among hops and sending.
fn slots(program: &Program, direct: &[bool], packed: &[bool], chunk: u64, share: u64) -> Slots {
    let bytes = (chunk + LARGEST_ELEMENT).next_multiple_of(SLOT_ALIGNMENT);
    let mut wanted = vec![0u64; program.hops as usize + 1];
    for (number, item) in program.items.iter().enumerate() {
        wanted[item.hop as usize] += u64::from(in_slot(program, direct, number as u32));
    }
    let packs = packed.iter().filter(|&&packed| packed).count() as u64;
    let all = share / bytes;
    let send = packs.min(SEND_SLOTS).min((all / 4).max(1));
    let users = wanted.iter().filter(|&&items| items > 0).count() as u64;
    let each = (all - send.min(all)).checked_div(users).map_or(0, |each| each.clamp(1, HOP_SLOTS));
    let mut next = 0u32;
    let mut take = |count: u64| {
        let first = next;
        next += count as u32;
        first..next
    };
    let hops = wanted.iter().map(|&items| take(items.min(each))).collect();
    Slots { bytes, hops, send: take(send) }
}

/// Words in which items are announced to readers, and in which readers of slots are counted.
fn item_words(program: &Program, board: &mut BoardLayout) -> (Vec<u32>, Vec<u32>) {
    let mut available = vec![NO_WORD; program.items.len()];
    let mut release = vec![NO_WORD; program.items.len()];
    for (number, item) in program.items.iter().enumerate() {
        if item.readers > 0 && item.storage != Storage::Source {
            available[number] = board.reserve(1);
            if item.storage == Storage::Slot {
                release[number] = board.reserve(1);
            }
        }
    }
    (available, release)
}

/// Invitations without memory: words and flags.
fn invite(
    program: &Program,
    board: &mut BoardLayout,
    direct: &[bool],
    available: &[u32],
    release: &[u32],
) -> BTreeMap<Rank, Invitation> {
    let maps = [&program.pulls, &program.reads, &program.arrivals, &program.sends, &program.feeds, &program.fed];
    let peers: BTreeSet<Rank> = maps.iter().flat_map(|map| map.keys().copied()).collect();
    let none = Vec::new();
    peers
        .into_iter()
        .map(|peer| {
            let reads = program.reads.get(&peer).unwrap_or(&none);
            let sends = program.sends.get(&peer).map_or(0, Vec::len);
            let arrivals = program.arrivals.get(&peer).unwrap_or(&none);
            let invitation = Invitation {
                available_words: reads.iter().map(|&item| available[item as usize]).collect(),
                release_words: reads.iter().map(|&item| release[item as usize]).collect(),
                done_word: if reads.is_empty() { NO_WORD } else { board.reserve(1) },
                grant_base: board.reserve(sends),
                feed_word: if program.feeds.contains_key(&peer) { board.reserve(FEED_WORDS) } else { NO_WORD },
                direct: arrivals.iter().map(|&item| direct[item as usize]).collect(),
                ..Invitation::default()
            };
            (peer, invitation)
        })
        .collect()
}

impl Prepared {
    /// Registers board, slots, and the buffers that puts come from or go straight into.
    fn register(&mut self, local: &LocalTensors) -> Result<(), ExecuteError> {
        let group = self.reservation.group.clone();
        let mut wanted: BTreeMap<(usize, u64), (LocalTensor, Rights)> = BTreeMap::new();
        let mut links = BTreeSet::new();
        let mut want = |link: usize, side: Side, tensor: u32, rights: Rights| {
            if let Some(tensor) = &local.side(side)[tensor as usize] {
                let key = (link, tensor.buffer.as_ptr() as u64);
                wanted.entry(key).or_insert_with(|| (tensor.clone(), Rights::empty())).1 |= rights;
            }
        };
        for (&peer, items) in &self.program.arrivals {
            let link = group.link_to(peer);
            links.insert(link);
            let straight: Vec<u32> = items.iter().copied().filter(|&item| self.direct[item as usize]).collect();
            for tensor in self.program.tensors_of(&straight) {
                want(link, Side::Destination, tensor, Rights::REMOTE_WRITE);
            }
        }
        for (&peer, pushes) in &self.program.sends {
            let link = group.link_to(peer);
            links.insert(link);
            for &push in pushes {
                let item = self.program.pushes[push as usize].item;
                if !self.packed[push as usize] && !in_slot(&self.program, &self.direct, item) {
                    for tensor in self.program.tensors_of(&[item]) {
                        want(link, sending_side(&self.program, item), tensor, Rights::LOCAL_READ);
                    }
                }
            }
        }
        let mut engine = group.engine.lock();
        let (segment, slots) = (self.reservation.segment.clone(), self.reservation.slots.clone());
        for link in links {
            let rights = Rights::REMOTE_WRITE | Rights::LOCAL_READ;
            let region = self.reservation.register(&mut engine, link, Span::of_segment(&segment), rights)?;
            self.segment_regions[link] = Some(region);
            self.slot_regions[link] = Some(match Arc::ptr_eq(&segment, &slots) {
                true => region,
                false => self.reservation.register(&mut engine, link, Span::of_segment(&slots), rights)?,
            });
        }
        for ((link, address), (tensor, rights)) in wanted {
            let region = self.reservation.register(&mut engine, link, Span::of_buffer(&tensor.buffer), rights)?;
            self.buffer_regions.insert((address, link), region);
        }
        Ok(())
    }

    /// Adds memory to the invitations.
    fn fill(&self, local: &LocalTensors, invitations: &mut BTreeMap<Rank, Invitation>) -> Result<(), ExecuteError> {
        let group = &self.reservation.group;
        let mut engine = group.engine.lock();
        for (&peer, invitation) in invitations {
            invitation.segment = Some(self.reservation.segment.id());
            invitation.slots = Some(self.reservation.slots.id());
            invitation.slots_offset = self.slots_offset;
            invitation.slot_bytes = self.slots.bytes;
            if let Some(items) = self.program.reads.get(&peer) {
                let of = |storage: Storage| -> Vec<u32> {
                    let stored = |item: &u32| self.program.items[*item as usize].storage == storage;
                    self.program.tensors_of(&items.iter().copied().filter(stored).collect::<Vec<_>>())
                };
                invitation.source = exports(group, local, Side::Source, &of(Storage::Source));
                invitation.destination = exports(group, local, Side::Destination, &of(Storage::Destination));
            }
            if let Some(items) = self.program.feeds.get(&peer).filter(|_| self.program.helped && self.readable) {
                let tensors = self.program.tensors_of(items);
                invitation.fed_source = exports(group, local, Side::Source, &tensors);
            }
            if let Some(items) = self.program.fed.get(&peer) {
                let tensors = self.program.tensors_of(items);
                invitation.fed_destination = exports(group, local, Side::Destination, &tensors);
            }
            let link = group.link_to(peer);
            if let (Some(region), Some(slots)) = (self.segment_regions[link], self.slot_regions[link]) {
                invitation.region = Some(engine.links.get(link).export(region)?);
                invitation.slots_region = Some(engine.links.get(link).export(slots)?);
            }
            if let Some(items) = self.program.arrivals.get(&peer) {
                let count = items.len() as u32;
                invitation.signal_base = engine.signals.reserve(group.world(peer), count, self.reservation.number)?;
                let straight: Vec<u32> = items.iter().copied().filter(|&item| self.direct[item as usize]).collect();
                for tensor in self.program.tensors_of(&straight) {
                    let Some(place) = &local.destination[tensor as usize] else { continue };
                    let Some(&region) = self.buffer_regions.get(&(place.buffer.as_ptr() as u64, link)) else {
                        continue;
                    };
                    let region = engine.links.get(link).export(region)?;
                    let memory = ExportedMemory::Region { region };
                    let (offset, strides) = (place.offset, place.strides.clone());
                    invitation.direct_tensors.push(Export { tensor, memory, offset, strides });
                }
            }
        }
        Ok(())
    }
}

/// Tensors that a peer reads; shared ones are served to it from now on.
fn exports(group: &Group, local: &LocalTensors, side: Side, tensors: &[u32]) -> Vec<Export> {
    tensors
        .iter()
        .filter_map(|&tensor| {
            let place = local.side(side)[tensor as usize].as_ref()?;
            if let Some(segment) = place.buffer.segment() {
                group.server.publish(segment);
            }
            let memory = match place.buffer.kind() {
                MemoryKind::Shared { segment, offset } => ExportedMemory::Shared { segment, offset },
                MemoryKind::Private { address } => ExportedMemory::Private { address },
                // Nobody but its owner reads it.
                MemoryKind::Device { .. } => return None,
            };
            Some(Export { tensor, memory, offset: place.offset, strides: place.strides.clone() })
        })
        .collect()
}
