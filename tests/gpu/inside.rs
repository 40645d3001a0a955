//! GPUs of a domain that pass on what comes from outside. In: names of cases, 4 ranks or 8, the second half of which is a domain
//! of GPUs. Out: results of rank 0. Guarantee: every byte is compared; what is planned to cross is counted; nobody waits for ever.

use crate::access::{put, take};
use crate::memories::Kind;
use crate::moving::deadline;
use crate::planner::layout;
use crate::results::Outcome;
use crate::trapped::{ROUTES, spring};
use crate::traps::{Trap, apart, rows};
use crossmesh::base::{Deadline, Rank};
use crossmesh::comm::{Buffer, Buffers, Communicator, Device, Reshard, ReshardOptions, Side, Stream};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
use crossmesh::plan::Manifest;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn Error>;

const SHAPE: [u64; 2] = [1031, 257];
const SMALL: [u64; 2] = [1, 7];

/// `once:MEMORY`: each byte crosses once; `two`: two transfers under way, begun in other orders; `gone`: a rank that dies.
pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    match name {
        "two" => two(world),
        "gone" => gone(world),
        name if name.starts_with("once") => once(world, name),
        other => Err(format!("no case {other}").into()),
    }
}

/// What all ranks of the second domain want is planned to enter it once, and comes in several parts, whatever its trays; what one of them holds does
/// not cross at all.
fn once(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let device = Device::open(world.rank().0 % Device::count()?)?;
    let (ranks, half) = (world.size() as u32, world.size() as u32 / 2);
    let over = |mesh: &[u32], ranks: std::ops::Range<u32>, placements: &[Placement]| {
        layout(&SHAPE, Dtype::BF16, mesh, ranks, placements)
    };
    let whole = || Placement::Replicate;
    let rows = || over(&[half], 0..half, &[rows(0)]);
    let tensors = vec![
        (rows(), over(&[half], half..ranks, &[whole()])),
        (rows(), over(&[half / 2, 2], half..ranks, &[whole(), Placement::shard(1)])),
        (over(&[1], half..half + 1, &[whole()]), over(&[half], half..ranks, &[whole()])),
    ];
    let trap = Trap("once", tensors, apart);
    let kinds = name.split_once(':').map_or("with-fabric", |(_, kinds)| kinds);
    let report = spring(world, &device, kinds, &trap, ROUTES[0])?;
    let (crossed, wanted) = (report.traffic.inter_domain_bytes, 2 * 2 * SHAPE[0] * SHAPE[1]);
    let outcome = match report.inside && crossed == wanted {
        true => Outcome::passed(name, ranks),
        false => Outcome::failed(name, ranks, format!("{crossed} bytes instead of {wanted}: {:?}", report.staged)),
    };
    Ok(outcome.with("bytes between domains", crossed as f64))
}

/// From the first half of the ranks to replicas on the second, which have GPUs; so has the first where there are enough.
struct Replicas {
    shape: [u64; 2],
    transfer: Reshard,
    source: Option<Buffer>,
    destination: Option<Buffer>,
}

impl Replicas {
    fn new(world: &Communicator, device: &Device, shape: [u64; 2]) -> Result<Self, Failure> {
        let (rank, half) = (world.rank(), world.size() as u32 / 2);
        let over = |first: u32, placement| -> Result<Arc<Layout>, Failure> {
            let mesh = Arc::new(Mesh::contiguous(vec![half], Rank(first))?);
            Ok(Arc::new(Layout::new(shape.to_vec(), Dtype::U8, mesh, vec![placement])?))
        };
        let mut manifest = Manifest::new();
        manifest.push("weight", over(0, Placement::shard(0))?, over(half, Placement::Replicate)?)?;
        let manifest = Arc::new(manifest);
        let buffer = |layout: &Layout, kind: Kind| match layout.local_bytes(rank) {
            0 => None,
            bytes => Some(kind.buffer(device.ordinal(), bytes)),
        };
        let kind = if Device::count()? < 2 * half { Kind::HostShared } else { Kind::Library };
        let source = buffer(&manifest.tensors()[0].source, kind);
        let destination = buffer(&manifest.tensors()[0].destination, Kind::Library);
        let mut buffers = Buffers::new(&manifest);
        for (side, buffer) in [(Side::Source, &source), (Side::Destination, &destination)] {
            if let Some(buffer) = buffer {
                buffers.set(side, 0, buffer.clone(), View::contiguous());
            }
        }
        let transfer = world.reshard_init(&manifest, &buffers, ReshardOptions::default(), deadline())?;
        Ok(Self { shape, transfer, source, destination })
    }

    fn fill(&self, stream: &Stream, mark: u8) -> Result<(), Failure> {
        for (buffer, byte) in [(&self.source, mark), (&self.destination, 0xee)] {
            match buffer {
                Some(buffer) if buffer.device().is_some() => {
                    // SAFETY: memory of this case, which lives until the stream has been waited for.
                    unsafe { stream.set(buffer.as_ptr() as u64, byte, buffer.bytes())? };
                }
                Some(buffer) => put(buffer, &vec![byte; buffer.bytes() as usize]),
                None => {}
            }
        }
        Ok(())
    }

    /// Begins behind what the stream holds, where this rank has anything on a GPU.
    fn start_on(&mut self, stream: &Stream) -> Result<(), Failure> {
        let mut own = self.source.iter().chain(&self.destination);
        match own.any(|buffer| buffer.device().is_some()) {
            true => self.transfer.start_on(stream)?,
            false => self.transfer.start()?,
        }
        Ok(())
    }

    /// Bytes of the destination that are not `byte` of the rank whose rows they are in.
    fn wrong(&self, ranks: u64, byte: impl Fn(u64) -> u8) -> usize {
        let Some(destination) = &self.destination else { return 0 };
        let found = take(destination);
        let ([rows, columns], half) = (self.shape, ranks / 2);
        let owner = |row: u64| (0..half).rev().find(|part| part * rows / half <= row).unwrap_or(0);
        let expected = (0..rows).flat_map(|row| std::iter::repeat_n(byte(owner(row)), columns as usize));
        found.iter().zip(expected).filter(|&(&found, expected)| found != expected).count()
    }
}

/// Two transfers under way at the same time, begun in one order on some ranks and in the other on others, with and without
/// streams; many rounds. The first is so small that most ranks get it only from their neighbours.
fn two(world: &Communicator) -> Result<Outcome, Failure> {
    let device = Device::open(world.rank().0 % Device::count()?)?;
    let streams = [Stream::new(&device)?, Stream::new(&device)?];
    let mut both = [Replicas::new(world, &device, SMALL)?, Replicas::new(world, &device, SHAPE)?];
    let (rank, ranks) = (world.rank().0, world.size() as u64);
    if !both.iter().all(|one| one.transfer.report().inside) {
        return Ok(Outcome::failed("two", ranks as u32, "GPUs did not pass anything on".into()));
    }
    for round in 0..20u8 {
        let byte = |which: usize, part: u64| (3 * u64::from(round) + 100 * which as u64 + 31 * part) as u8;
        world.barrier(deadline())?;
        let order = if (rank + u32::from(round)).is_multiple_of(2) { [0, 1] } else { [1, 0] };
        // Now and then some of the second half begin the first only when the other has ended.
        let is_late = rank % 2 == u32::from(round) / 4 % 2 && 2 * u64::from(rank) >= ranks;
        let one_by_one = is_late && round % 4 == 3;
        let turns: &[&[usize]] = if one_by_one { &[&[1], &[0]] } else { &[&order] };
        for turn in turns {
            for &which in *turn {
                both[which].fill(&streams[which], byte(which, rank.into()))?;
                if round.is_multiple_of(3) {
                    streams[which].synchronize(deadline())?;
                    both[which].transfer.start()?;
                } else {
                    both[which].start_on(&streams[which])?;
                }
            }
            for &which in *turn {
                both[which].transfer.wait(deadline())?;
                let wrong = both[which].wrong(ranks, |part| byte(which, part));
                if wrong > 0 {
                    return Err(format!("round {round}, transfer {which}, rank {rank}: {wrong} wrong bytes").into());
                }
            }
        }
    }
    Ok(Outcome::passed("two", ranks as u32))
}

/// The first rank of the second domain dies before a start: the others have an error in time, and their streams go on, though
/// nobody but the application waits for them.
fn gone(world: &Communicator) -> Result<Outcome, Failure> {
    let device = Device::open(world.rank().0 % Device::count()?)?;
    let stream = Stream::new(&device)?;
    let mut replicas = Replicas::new(world, &device, SHAPE)?;
    for round in 0..3 {
        replicas.fill(&stream, round)?;
        replicas.start_on(&stream)?;
        replicas.transfer.wait(deadline())?;
    }
    world.barrier(deadline())?;
    if world.rank().0 == world.size() as u32 / 2 {
        std::process::abort();
    }
    // Nobody moves what the rank that is gone still has of the round before.
    let (stale, begun) = (2, Instant::now());
    replicas.fill(&stream, 3)?;
    replicas.start_on(&stream)?;
    stream.synchronize(Deadline::seconds(20)).map_err(|error| format!("a stream was left waiting: {error}"))?;
    let error = replicas.transfer.wait(deadline()).err().ok_or("no error though a rank is gone")?;
    if replicas.destination.as_ref().is_some_and(|destination| take(destination).contains(&stale)) {
        return Err("a launch that was let go has read from a rank that is gone".into());
    }
    let dropped = Instant::now();
    drop(replicas);
    let (waited, dropped) = (dropped - begun, dropped.elapsed());
    if waited.as_secs() > 5 || dropped.as_secs() > 2 {
        return Err(format!("an error took {waited:?}, the end {dropped:?}").into());
    }
    // Those of the first half have nothing on their streams.
    let what = if 2 * world.rank().0 < world.size() as u32 { "an error in time" } else { "streams went on" };
    Err(format!("{what}, {error}").into())
}
