//! Frames on the wire.
//!
//! In: puts, words, signals, the goodbye. Out: headers of 32 bytes, little endian; a put's payload follows its
//! header. Guarantee: decoding takes any 32 bytes and gives a frame or the fault in it.
//!
//! ```text
//! byte   0     1      2..4  4..8   8..16  16..24  24..32
//!        kind  epoch  0     index  key    offset  length of a put, value of a word
//! ```

use crate::transport::{FrameFault, RemotePlace, Signal};

/// Size of a header.
pub(super) const HEADER: usize = 32;

const PUT: u8 = 1;
const WORD: u8 = 2;
const SIGNAL: u8 = 3;
const GOODBYE: u8 = 4;

/// One frame, without a put's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// Payload of `length` bytes into a region.
    Put { key: u64, offset: u64, length: u64 },
    /// A word into a region.
    Word { key: u64, offset: u64, word: u64 },
    /// An arrival notice.
    Signal(Signal),
    /// The sender will post nothing more.
    Goodbye,
}

impl Frame {
    /// A put of `length` bytes to `place`.
    pub(super) fn put(place: RemotePlace, length: u64) -> Self {
        Frame::Put { key: place.region.key, offset: place.offset, length }
    }

    /// A word to `place`.
    pub(super) fn word(place: RemotePlace, word: u64) -> Self {
        Frame::Word { key: place.region.key, offset: place.offset, word }
    }

    /// Its header.
    pub(super) fn encode(self) -> [u8; HEADER] {
        let (kind, epoch, index, words) = match self {
            Frame::Put { key, offset, length } => (PUT, 0, 0, [key, offset, length]),
            Frame::Word { key, offset, word } => (WORD, 0, 0, [key, offset, word]),
            Frame::Signal(Signal { epoch, index }) => (SIGNAL, epoch, index, [0; 3]),
            Frame::Goodbye => (GOODBYE, 0, 0, [0; 3]),
        };
        let mut header = [0; HEADER];
        header[0] = kind;
        header[1] = epoch;
        header[4..8].copy_from_slice(&index.to_le_bytes());
        for (bytes, word) in header[8..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        header
    }

    /// The frame of a header.
    pub(super) fn decode(header: &[u8; HEADER]) -> Result<Self, FrameFault> {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let [key, offset, last] = [word(8), word(16), word(24)];
        match header[0] {
            PUT => Ok(Frame::Put { key, offset, length: last }),
            WORD => Ok(Frame::Word { key, offset, word: last }),
            SIGNAL => {
                let index = (word(0) >> 32) as u32;
                if index >= Signal::INDICES {
                    return Err(FrameFault::Signal(u64::from(index)));
                }
                Ok(Frame::Signal(Signal { epoch: header[1], index }))
            }
            GOODBYE => Ok(Frame::Goodbye),
            kind => Err(FrameFault::UnknownKind(kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let words = any::<(u64, u64, u64)>();
        prop_oneof![
            words.prop_map(|(key, offset, length)| Frame::Put { key, offset, length }),
            words.prop_map(|(key, offset, word)| Frame::Word { key, offset, word }),
            (any::<u8>(), 0..Signal::INDICES).prop_map(|(epoch, index)| Frame::Signal(Signal { epoch, index })),
            Just(Frame::Goodbye),
        ]
    }

    proptest! {
        #[test]
        fn frames_come_back(frame in frames()) {
            prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }

        #[test]
        fn any_bytes_decode_or_name_the_fault(header: [u8; HEADER]) {
            match Frame::decode(&header) {
                Ok(_) => prop_assert!((PUT..=GOODBYE).contains(&header[0])),
                Err(FrameFault::UnknownKind(kind)) => prop_assert_eq!(kind, header[0]),
                Err(FrameFault::Signal(index)) => prop_assert!(index >= u64::from(Signal::INDICES)),
                Err(fault) => prop_assert!(false, "{}", fault),
            }
        }
    }

    #[test]
    fn the_layout_is_fixed() {
        let put = Frame::Put { key: 0x0102, offset: 0x0304, length: 0x0506 }.encode();
        assert_eq!((put[0], put[8], put[9], put[16], put[17], put[24], put[25]), (1, 2, 1, 4, 3, 6, 5));
        let signal = Frame::Signal(Signal { epoch: 7, index: 0x030201 }).encode();
        assert_eq!(signal[..8], [3, 7, 0, 0, 1, 2, 3, 0]);
    }
}
