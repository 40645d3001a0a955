//! Calls of one rank. In: a trial, a channel, a buffer. Out: the call on a stream. Guarantee: the buffer is as large as the
//! trial says and lives until the stream was waited for.

use super::trial::Trial;
use crossmesh::collective::device::CollectiveError;
use crossmesh::comm::{Buffer, Channel, Operand, Stream};

/// Puts the trial's call on the stream.
pub(crate) fn call(
    channel: &mut Channel,
    stream: &Stream,
    trial: &Trial,
    buffer: &Buffer,
) -> Result<(), CollectiveError> {
    let (input, output) = trial.offsets(channel.rank().0, channel.size());
    let (input, output) = (Operand { buffer, offset: input }, Operand { buffer, offset: output });
    // SAFETY: callers wait for the stream before they drop or reuse the buffer.
    unsafe { channel.call(stream, &trial.call(), input, output) }
}

/// Contents of a buffer before the call: the input where it belongs, noise elsewhere.
pub(crate) fn before(trial: &Trial, rank: u32, ranks: u32, bytes: u64) -> Vec<u8> {
    let mut contents: Vec<u8> = (0..bytes).map(|at| (at * 37 + 11) as u8).collect();
    let (at, input) = (trial.offsets(rank, ranks).0 as usize, trial.input(rank, ranks));
    contents[at..at + input.len()].copy_from_slice(&input);
    contents
}

/// What is wrong with a buffer after the call, by a ring where the bytes of its slots are stated: the output, or bytes that
/// were not to be touched.
pub(crate) fn wrong(trial: &Trial, rank: u32, ranks: u32, found: &[u8], ring: Option<u64>) -> Option<String> {
    let before = before(trial, rank, ranks, found.len() as u64);
    let (at, size) = (trial.offsets(rank, ranks).1 as usize, trial.sizes(ranks).1 as usize);
    let expected = trial.expected(rank, ranks, ring);
    if let Some(difference) = trial.difference(&found[at..at + size], &expected) {
        return Some(format!("rank {rank}: {difference}"));
    }
    let outside = |place: &usize| !(at..at + size).contains(place);
    let touched = (0..found.len()).filter(outside).find(|&place| found[place] != before[place]);
    touched.map(|place| format!("rank {rank}: {trial:?}: byte {place} outside of the output was written"))
}
