//! Tensors on GPUs that go through memory of the hosts. In: names of ways. Out: results of rank 0, with rates. Guarantee: every
//! byte is compared, for sizes from nothing to more than all staging, contiguous and in short rows, for starts of the host and on a stream.

use crate::access::{put, take};
use crate::memories::Kind;
use crate::moving::{deadline, slowest};
use crate::results::Outcome;
use crossmesh::base::Rank;
use crossmesh::comm::{Buffers, Communicator, Device, Reshard, ReshardOptions, Side, Stream};
use crossmesh::layout::{Dtype, Layout, Mesh, Placement, View};
use crossmesh::plan::Manifest;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

type Failure = Box<dyn Error>;

/// Ways between ranks 0 and 1, where each has a GPU or none.
pub(crate) const NAMES: [&str; 6] =
    ["host-to-gpu", "private-to-gpu", "gpu-to-host", "gpu-to-private", "pool-to-gpu", "both-ways"];

/// Bytes of a row.
const ROW: u64 = 256;
/// Rows of a tensor: none, one, an odd number, 64 MiB, more than a rank's staging.
const ROWS: [u64; 5] = [0, 1, 4001, TIMED, (5 << 16) + 3];
/// Rows that are timed, 64 MiB.
const TIMED: u64 = 1 << 18;
/// Timed starts.
const STARTS: u32 = 10;

/// A tensor: who has it, in what memory on both sides.
struct Move {
    from: u32,
    kinds: [Kind; 2],
}

pub(crate) fn run_case(world: &Communicator, name: &str) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::passed(name, world.size() as u32);
    for contiguous in [true, false] {
        for rows in ROWS {
            let rate = move_rows(world, name, rows, contiguous)?;
            let figure = if contiguous { "GB/s" } else { "rows of 256 B GB/s" };
            outcome = if rows == TIMED { outcome.with(figure, rate) } else { outcome };
        }
    }
    Ok(outcome)
}

fn moves(name: &str) -> Result<Vec<Move>, Failure> {
    let one = |source, destination| vec![Move { from: 0, kinds: [source, destination] }];
    Ok(match name {
        "host-to-gpu" => one(Kind::HostShared, Kind::Library),
        "private-to-gpu" => one(Kind::HostPrivate, Kind::Library),
        "gpu-to-host" => one(Kind::Library, Kind::HostShared),
        "gpu-to-private" => one(Kind::Library, Kind::HostPrivate),
        "pool-to-gpu" => one(Kind::Pool, Kind::Library),
        "gpu-to-gpu" => one(Kind::Library, Kind::Library),
        "both-ways" => {
            let to = Move { from: 0, kinds: [Kind::HostShared, Kind::Library] };
            vec![to, Move { from: 1, kinds: [Kind::Library, Kind::HostShared] }]
        }
        other => return Err(format!("no case {other}").into()),
    })
}

/// Where the rows of a local tensor lie: behind one another, or with gaps and from an odd byte on.
fn view(rows: u64, contiguous: bool) -> (View, u64, u64) {
    let (start, step) = if contiguous { (0, ROW) } else { (16, ROW + 48) };
    (View::strided(start, [step, 1]), start, start + rows * step)
}

/// A byte of row `row` of a tensor.
fn byte_at(tensor: usize, row: u64, column: u64, round: u64) -> u8 {
    ((row.wrapping_mul(0x9e37_79b9) >> 7) ^ (column * 29) ^ (round * 101) ^ (tensor as u64 * 59)) as u8
}

/// The bytes of a buffer whose rows hold the values of a round.
fn contents(tensor: usize, rows: u64, contiguous: bool, round: u64) -> Vec<u8> {
    let (_, start, bytes) = view(rows, contiguous);
    let step = if contiguous { ROW } else { ROW + 48 };
    let mut contents = vec![0xee; bytes as usize];
    for row in 0..rows {
        let at = (start + row * step) as usize;
        for (column, byte) in contents[at..at + ROW as usize].iter_mut().enumerate() {
            *byte = byte_at(tensor, row, column as u64, round);
        }
    }
    contents
}

/// Tensors of so many rows at a rank.
struct Part {
    moves: Vec<Move>,
    rows: u64,
    contiguous: bool,
    manifest: Arc<Manifest>,
    buffers: Buffers,
    /// What is said when something is wrong.
    what: String,
}

impl Part {
    fn new(name: &str, rank: Rank, rows: u64, contiguous: bool) -> Result<Self, Failure> {
        let moves = moves(name)?;
        let mut manifest = Manifest::new();
        let layout = |rank| -> Result<Arc<Layout>, Failure> {
            let mesh = Arc::new(Mesh::contiguous(vec![1], Rank(rank))?);
            Ok(Arc::new(Layout::new(vec![rows, ROW], Dtype::U8, mesh, vec![Placement::Replicate])?))
        };
        for (number, moved) in moves.iter().enumerate() {
            manifest.push(format!("tensor{number}"), layout(moved.from)?, layout(1 - moved.from)?)?;
        }
        let manifest = Arc::new(manifest);
        let mut buffers = Buffers::new(&manifest);
        let (view, _, bytes) = view(rows, contiguous);
        for (number, moved) in moves.iter().enumerate().filter(|_| rows > 0) {
            let source = rank.0 == moved.from;
            let side = if source { Side::Source } else { Side::Destination };
            let buffer = moved.kinds[usize::from(!source)].buffer(rank.0, bytes);
            buffers.set(side, number, buffer, view.clone());
        }
        let what = format!("{name}, rank {rank}, {rows} rows, contiguous {contiguous}");
        Ok(Self { moves, rows, contiguous, manifest, buffers, what })
    }

    /// A stream of the GPU that this rank's tensors are on.
    fn stream(&self) -> Result<Option<Stream>, Failure> {
        let own = |number| self.buffers.get(Side::Source, number).or(self.buffers.get(Side::Destination, number));
        let device = (0..self.moves.len()).find_map(|number| own(number)?.buffer.device());
        Ok(device.map(|device| Stream::new(&Device::open(device)?)).transpose()?)
    }

    /// Makes sources hold the values of a round, and destinations nothing of use.
    fn fill(&self, round: u64) {
        for number in 0..self.moves.len() {
            if let Some(source) = self.buffers.get(Side::Source, number) {
                put(&source.buffer, &contents(number, self.rows, self.contiguous, round));
            }
            if let Some(destination) = self.buffers.get(Side::Destination, number) {
                put(&destination.buffer, &vec![0xee; destination.buffer.bytes() as usize]);
            }
        }
    }

    /// Compares every byte of the destinations.
    fn check(&self, round: u64) -> Result<(), Failure> {
        for number in 0..self.moves.len() {
            let Some(destination) = self.buffers.get(Side::Destination, number) else { continue };
            let (found, expected) = (take(&destination.buffer), contents(number, self.rows, self.contiguous, round));
            if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
                return Err(format!("{}, round {round}: byte {at} is wrong", self.what).into());
            }
        }
        Ok(())
    }
}

/// Moves tensors of so many rows, compares them, and times the move if it is for that: GB/s of the slowest rank.
fn move_rows(world: &Communicator, name: &str, rows: u64, contiguous: bool) -> Result<f64, Failure> {
    let part = Part::new(name, world.rank(), rows, contiguous)?;
    let made = world.reshard_init(&part.manifest, &part.buffers, ReshardOptions::default(), deadline());
    let mut transfer = made.map_err(|error| format!("{}: {error:?}", part.what))?;
    if rows > 0 && transfer.report().staged.is_none() {
        return Err(format!("{}: nothing says that it goes through the hosts", part.what).into());
    }
    let stream = part.stream()?;
    for round in 0..3 {
        part.fill(round);
        match stream.as_ref().filter(|_| round == 2) {
            Some(stream) => {
                transfer.start_on(stream)?;
                stream.synchronize(deadline())?;
            }
            None => transfer.start()?,
        }
        transfer.wait(deadline()).map_err(|error| format!("{}: {error:?}", part.what))?;
        part.check(round)?;
        world.barrier(deadline())?;
    }
    if rows == TIMED { rate(world, &mut transfer) } else { Ok(0.0) }
}

fn rate(world: &Communicator, transfer: &mut Reshard) -> Result<f64, Failure> {
    let bytes = transfer.report().delivered_bytes as f64;
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        world.barrier(deadline())?;
        let begun = Instant::now();
        for _ in 0..STARTS {
            transfer.start()?;
            transfer.wait(deadline())?;
        }
        best = best.min(slowest(world, begun.elapsed().as_secs_f64() / f64::from(STARTS))?);
    }
    Ok(bytes / best / 1e9)
}
