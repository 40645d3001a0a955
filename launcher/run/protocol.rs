//! What the launcher and its agents say to each other, and how they prove that they hold the job's launcher key.
//!
//! In: messages. Out: frames `length (4 bytes, little endian) kind (1 byte) body`. Guarantee: a frame longer than
//! [`LONGEST_FRAME`] or with an unreadable body is an error, never an allocation; the key itself is never sent, both
//! sides prove it with HMAC-SHA256 over fresh random numbers.
//!
//! ```text
//! launcher                                   agent
//!    ├── Challenge(random) ────────────────►  │
//!    │  ◄──────────────── Hello(json, proof) ─┤   proof over challenge and json, json has the agent's random
//!    ├── Welcome(json, proof) ──────────────► │   proof over challenge, the agent's random, and json
//!    ├── Start ─────────────────────────────► │   once all ranks are there
//!    │  ◄──── Bound ──────────────────────────┤   where the program runs
//!    │  ◄──── Line … Ended … Drained ─────────┤
//!    ├── Forward, Terminate, Kill ──────────► │   any time after Start
//!    ├── Goodbye ───────────────────────────► │   exits with 0
//! ```

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use thiserror::Error;

/// Longest frame body: a piece of a line, or the variables of a rank.
pub(crate) const LONGEST_FRAME: usize = 64 * 1024;
/// Bytes before a body.
pub(crate) const HEADER: usize = 5;
/// Bytes of a random number, a proof, the key.
pub(crate) const WORD: usize = 32;

/// 256 random or derived bits.
pub(crate) type Word = [u8; WORD];

/// A peer that does not keep to the protocol.
#[derive(Debug, Error)]
pub(crate) enum ProtocolError {
    /// A length beyond the limit.
    #[error("a frame of {length} bytes was announced; at most {LONGEST_FRAME} are allowed")]
    TooLong {
        /// As announced.
        length: usize,
    },
    /// A body that cannot be read.
    #[error("a frame of kind {kind} with {length} bytes cannot be read; are both sides the same crossmesh version?")]
    Unreadable {
        /// Its kind.
        kind: u8,
        /// Length of its body.
        length: usize,
    },
}

/// Which stream a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    Error,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// With an exit code.
    Exited(i32),
    /// By a signal.
    Signaled(i32),
    /// Nobody can say: its host or agent is gone.
    Lost,
}

/// What an agent says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) rank: u32,
    pub(crate) pid: u32,
    pub(crate) host: String,
    /// Which kernel `clock` belongs to.
    pub(crate) boot: String,
    /// The monotonic clock of that kernel, in nanoseconds.
    pub(crate) clock: u64,
    /// The agent's random number.
    pub(crate) random: Word,
}

/// What an agent needs to start its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Time between the end request and the kill when the launcher is gone.
    pub(crate) grace_milliseconds: u64,
    /// Variables of this rank; never secret.
    pub(crate) environment: Vec<(String, String)>,
}

/// From an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromAgent {
    /// First frame: JSON of [`Hello`] and its proof.
    Hello { json: Vec<u8>, proof: Word },
    /// One line of the program, without newline.
    Line(Stream, Vec<u8>),
    /// The program ended, at this time of the agent's clock.
    Ended { ending: Ending, clock: u64 },
    /// Nothing more will be printed.
    Drained,
    /// Where the program runs: JSON of a binding.
    Bound(Vec<u8>),
}

/// From the launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromLauncher {
    /// First frame.
    Challenge(Word),
    /// JSON of [`Welcome`] and its proof.
    Welcome { json: Vec<u8>, proof: Word },
    /// Start the program, as number `local` of `ranks` on its kernel.
    Start { local: u32, ranks: u32 },
    /// Send this signal to the program's process group.
    Forward(i32),
    /// End the program's process group.
    Terminate,
    /// Kill the program's process group.
    Kill,
    /// The job is over.
    Goodbye,
}

/// A message that travels in frames.
pub(crate) trait Message: Sized {
    /// Appends the frame of `self`.
    fn encode(&self, frames: &mut Vec<u8>);
    /// Reads a frame.
    fn decode(kind: u8, body: &[u8]) -> Option<Self>;
}

fn frame(frames: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // Bodies are bounded by construction: pieces of lines and short JSON texts.
    frames.extend_from_slice(&(length as u32).to_le_bytes());
    frames.push(kind);
    for part in parts {
        frames.extend_from_slice(part);
    }
}

/// Takes the next whole frame off the front of `bytes`: message and frame length; `None` until it is whole.
pub(crate) fn next_message<M: Message>(bytes: &[u8]) -> Result<Option<(M, usize)>, ProtocolError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if length > LONGEST_FRAME {
        return Err(ProtocolError::TooLong { length });
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let kind = header[4];
    let message = M::decode(kind, body).ok_or(ProtocolError::Unreadable { kind, length })?;
    Ok(Some((message, HEADER + length)))
}

impl Message for FromAgent {
    fn encode(&self, frames: &mut Vec<u8>) {
        match self {
            Self::Hello { json, proof } => frame(frames, 1, &[proof, json]),
            Self::Line(Stream::Output, line) => frame(frames, 2, &[line]),
            Self::Line(Stream::Error, line) => frame(frames, 3, &[line]),
            Self::Ended { ending, clock } => {
                let (how, value) = match *ending {
                    Ending::Exited(code) => (0u8, code),
                    Ending::Signaled(signal) => (1, signal),
                    Ending::Lost => (2, 0),
                };
                frame(frames, 4, &[&[how], &value.to_le_bytes(), &clock.to_le_bytes()]);
            }
            Self::Drained => frame(frames, 5, &[]),
            Self::Bound(json) => frame(frames, 6, &[json]),
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        match (kind, body) {
            (1, body) => {
                let (proof, json) = body.split_first_chunk::<WORD>()?;
                Some(Self::Hello { json: json.to_vec(), proof: *proof })
            }
            (2, line) => Some(Self::Line(Stream::Output, line.to_vec())),
            (3, line) => Some(Self::Line(Stream::Error, line.to_vec())),
            (4, [how, rest @ ..]) => {
                let (value, clock) = rest.split_first_chunk::<4>()?;
                let value = i32::from_le_bytes(*value);
                let ending = match how {
                    0 => Ending::Exited(value),
                    1 => Ending::Signaled(value),
                    2 if value == 0 => Ending::Lost,
                    _ => return None,
                };
                Some(Self::Ended { ending, clock: u64::from_le_bytes(clock.try_into().ok()?) })
            }
            (5, []) => Some(Self::Drained),
            (6, json) => Some(Self::Bound(json.to_vec())),
            _ => None,
        }
    }
}

impl Message for FromLauncher {
    fn encode(&self, frames: &mut Vec<u8>) {
        match self {
            Self::Challenge(random) => frame(frames, 16, &[random]),
            Self::Welcome { json, proof } => frame(frames, 17, &[proof, json]),
            Self::Start { local, ranks } => frame(frames, 18, &[&local.to_le_bytes(), &ranks.to_le_bytes()]),
            Self::Forward(signal) => frame(frames, 19, &[&signal.to_le_bytes()]),
            Self::Terminate => frame(frames, 20, &[]),
            Self::Kill => frame(frames, 21, &[]),
            Self::Goodbye => frame(frames, 22, &[]),
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        match (kind, body) {
            (16, random) => Some(Self::Challenge(random.try_into().ok()?)),
            (17, body) => {
                let (proof, json) = body.split_first_chunk::<WORD>()?;
                Some(Self::Welcome { json: json.to_vec(), proof: *proof })
            }
            (18, &[a, b, c, d, e, f, g, h]) => {
                Some(Self::Start { local: u32::from_le_bytes([a, b, c, d]), ranks: u32::from_le_bytes([e, f, g, h]) })
            }
            (19, signal) => Some(Self::Forward(i32::from_le_bytes(signal.try_into().ok()?))),
            (20, []) => Some(Self::Terminate),
            (21, []) => Some(Self::Kill),
            (22, []) => Some(Self::Goodbye),
            _ => None,
        }
    }
}

/// The secret of one job's launcher; shows nothing when printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct LauncherKey(Word);

impl std::fmt::Debug for LauncherKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("LauncherKey(hidden)")
    }
}

/// Random bits of the operating system.
pub(crate) fn random_word() -> Result<Word, getrandom::Error> {
    let mut word = [0; WORD];
    getrandom::fill(&mut word)?;
    Ok(word)
}

impl LauncherKey {
    /// A fresh key.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        random_word().map(Self)
    }

    /// Its text for the agents' environment.
    pub(crate) fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads [`Self::to_hex`].
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 2 * WORD || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut word = [0; WORD];
        for (byte, digits) in word.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(word))
    }

    /// Proof of an agent.
    pub(crate) fn prove_agent(&self, challenge: &Word, json: &[u8]) -> Word {
        self.mac(&[b"agent", challenge, json]).finalize().into_bytes().into()
    }

    /// Whether `proof` is [`Self::prove_agent`], compared in constant time.
    pub(crate) fn accepts_agent(&self, challenge: &Word, json: &[u8], proof: &Word) -> bool {
        self.mac(&[b"agent", challenge, json]).verify_slice(proof).is_ok()
    }

    /// Proof of the launcher.
    pub(crate) fn prove_launcher(&self, challenge: &Word, random: &Word, json: &[u8]) -> Word {
        self.mac(&[b"launcher", challenge, random, json]).finalize().into_bytes().into()
    }

    /// Whether `proof` is [`Self::prove_launcher`], compared in constant time.
    pub(crate) fn accepts_launcher(&self, challenge: &Word, random: &Word, json: &[u8], proof: &Word) -> bool {
        self.mac(&[b"launcher", challenge, random, json]).verify_slice(proof).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes keys of any length, so this construction cannot fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<M: Message + PartialEq + std::fmt::Debug>(messages: &[M]) {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        let mut rest = &bytes[..];
        for expected in messages {
            for cut in 0..HEADER.min(rest.len()) {
                assert!(next_message::<M>(&rest[..cut]).unwrap().is_none());
            }
            let (message, length) = next_message::<M>(rest).unwrap().unwrap();
            assert_eq!(&message, expected);
            assert!(next_message::<M>(&rest[..length - 1]).unwrap().is_none());
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn frames_round_trip() {
        round_trip(&[
            FromAgent::Hello { json: b"{}".to_vec(), proof: [7; WORD] },
            FromAgent::Line(Stream::Output, Vec::new()),
            FromAgent::Line(Stream::Error, b"text".to_vec()),
            FromAgent::Ended { ending: Ending::Exited(-1), clock: u64::MAX },
            FromAgent::Ended { ending: Ending::Signaled(9), clock: 0 },
            FromAgent::Ended { ending: Ending::Lost, clock: 1 },
            FromAgent::Drained,
            FromAgent::Bound(b"{}".to_vec()),
        ]);
        round_trip(&[
            FromLauncher::Challenge([3; WORD]),
            FromLauncher::Welcome { json: Vec::new(), proof: [9; WORD] },
            FromLauncher::Start { local: 3, ranks: u32::MAX },
            FromLauncher::Forward(2),
            FromLauncher::Terminate,
            FromLauncher::Kill,
            FromLauncher::Goodbye,
        ]);
    }

    #[test]
    fn wrong_frames_are_errors() {
        let frames: [&[u8]; 7] = [
            &[255, 255, 255, 255, 1],
            &[1, 0, 1, 0, 2],
            &[0, 0, 0, 0, 99],
            &[0, 0, 0, 0, 1],
            &[1, 0, 0, 0, 5, 0],
            &[2, 0, 0, 0, 4, 0, 0],
            &[13, 0, 0, 0, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        for bytes in frames {
            assert!(next_message::<FromAgent>(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn keys_prove_and_hide_themselves() {
        let key = LauncherKey::random().unwrap();
        let hex = key.to_hex();
        assert_eq!(LauncherKey::from_hex(&hex), Some(key.clone()));
        assert!(!format!("{key:?}").contains(&hex[..8]));
        for text in ["", "00", &hex[1..], &format!("{}zz", &hex[2..]), &format!("+{}", &hex[1..])] {
            assert_eq!(LauncherKey::from_hex(text), None);
        }
        let (challenge, random) = ([1; WORD], [2; WORD]);
        let proof = key.prove_agent(&challenge, b"hello");
        assert!(key.accepts_agent(&challenge, b"hello", &proof));
        assert!(!key.accepts_agent(&random, b"hello", &proof));
        assert!(!key.accepts_agent(&challenge, b"hullo", &proof));
        assert!(!LauncherKey::random().unwrap().accepts_agent(&challenge, b"hello", &proof));
        let proof = key.prove_launcher(&challenge, &random, b"welcome");
        assert!(key.accepts_launcher(&challenge, &random, b"welcome", &proof));
        assert!(!key.accepts_launcher(&random, &challenge, b"welcome", &proof));
    }
}
