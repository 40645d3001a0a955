//! What the command reads: safetensors files, files of cases, and frames between launcher and agents. In: any bytes. Out:
//! whether they are such. Guarantee: the launcher's own modules are what is run, read in by path, since the command is no
//! library.

#[allow(dead_code, unused_imports)]
#[path = "../../../launcher/case/mod.rs"]
mod case;
#[allow(dead_code)]
#[path = "../../../launcher/checkpoint/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../../launcher/checkpoint/header.rs"]
mod header;
#[allow(dead_code)]
#[path = "../../../launcher/run/protocol.rs"]
mod protocol;

use super::{ORIGIN, bytes_of};
use crossmesh::plan::Plan;
use header::{Header, tensor_bytes};
use protocol::{Ending, FromAgent, FromLauncher, Message, Stream, WORD, next_message};
use std::path::Path;

/// Most ranks of cases that are planned.
const MOST_RANKS: usize = 64;

/// A file of cases, of which small ones are planned.
pub(crate) fn cases(bytes: &[u8]) -> bool {
    let Ok(cases) = case::parse(bytes, Path::new(ORIGIN)) else { return false };
    for case in cases.iter().filter(|case| case.ranks <= MOST_RANKS) {
        // Too many bytes for 64 bits are refused here.
        let _ = Plan::compile(case.manifest.clone(), case.ranks).map(|plan| plan.delivered_bytes());
        assert!(case.domains.as_ref().is_none_or(|domains| domains.len() >= case.ranks));
    }
    true
}

pub(crate) fn cases_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[r#"[{"name": "rows to columns", "shape": [8, 6], "dtype": "BF16",
             "src": {"mesh": [2], "ranks": [0, 1], "placements": ["shard(0)"]},
             "dst": {"mesh": [2, 1], "ranks": [2, 3], "placements": ["shard(1,chunk)", "replicate"]},
             "domains": [0, 0, 1, 1], "expect": {"unique_bytes": 96, "ingress_per_domain": {"1": 96}}},
            {"name": "sizes", "shape": [5], "dtype": "U8",
             "src": {"mesh": [2], "ranks": [1, 0], "placements": ["shard(0,sizes=2/3)"]},
             "dst": {"mesh": [2], "ranks": [0, 1], "placements": ["replicate"]}}]"#])
}

/// A safetensors file.
pub(crate) fn safetensors(bytes: &[u8]) -> bool {
    let Ok(header) = Header::parse(bytes) else { return false };
    for tensor in &header.tensors {
        assert_eq!(tensor_bytes(&tensor.shape, tensor.dtype), Some(tensor.range.end - tensor.range.start));
        assert!(tensor.range.end <= bytes.len() as u64);
    }
    true
}

pub(crate) fn safetensors_seeds() -> Vec<Vec<u8>> {
    let file =
        |header: &str, data: usize| [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![7; data]].concat();
    vec![
        file("{}", 0),
        file(
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
               "b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"c":{"dtype":"U8","shape":[0],"data_offsets":[26,26]}}"#,
            26,
        ),
    ]
}

/// Frames of a connection between launcher and agent, in either direction, as long as they can be read.
pub(crate) fn frames(bytes: &[u8]) -> bool {
    all::<FromAgent>(bytes) | all::<FromLauncher>(bytes)
}

/// Whether all of `bytes` are frames; those that are come back the same.
fn all<M: Message>(mut bytes: &[u8]) -> bool {
    while let Ok(Some((message, length))) = next_message::<M>(bytes) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(again, &bytes[..length]);
        bytes = &bytes[length..];
    }
    bytes.is_empty()
}

pub(crate) fn frames_seeds() -> Vec<Vec<u8>> {
    let coded = |messages: &[FromAgent]| {
        messages.iter().fold(Vec::new(), |mut frames, message| {
            message.encode(&mut frames);
            frames
        })
    };
    let mut commands = Vec::new();
    for command in [
        FromLauncher::Challenge([3; WORD]),
        FromLauncher::Welcome { json: b"{}".to_vec(), proof: [9; WORD] },
        FromLauncher::Start { local: 3, ranks: 8 },
        FromLauncher::Forward(2),
        FromLauncher::Goodbye,
    ] {
        command.encode(&mut commands);
    }
    vec![
        coded(&[FromAgent::Hello { json: b"{}".to_vec(), proof: [7; WORD] }, FromAgent::Bound(b"{}".to_vec())]),
        coded(&[
            FromAgent::Line(Stream::Output, b"text".to_vec()),
            FromAgent::Ended { ending: Ending::Signaled(9), clock: 5 },
            FromAgent::Drained,
        ]),
        commands,
    ]
}
