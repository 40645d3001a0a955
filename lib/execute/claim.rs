//! Chunks that two ranks share out between them. In: an atomic word. Out: chunk numbers, each handed out once.
//! Guarantee: the sender takes from the front, the receiver from the back, until they meet; a claim of another epoch
//! is refused.
//!
//! The word: 16 bits of epoch, 24 bits taken from the front, 24 bits taken from the back.

use std::sync::atomic::{AtomicU64, Ordering};

/// Most chunks that one word can share out.
pub(super) const MOST: u32 = (1 << 24) - 1;

/// End from which chunks are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum From {
    Front,
    Back,
}

/// The word of an epoch in which nothing was taken.
pub(super) fn open(epoch: u32) -> u64 {
    u64::from(epoch as u16) << 48
}

/// Takes one of `count` chunks.
pub(super) fn take(word: &AtomicU64, epoch: u32, count: u32, from: From) -> Option<u32> {
    let step = match from {
        From::Front => 1 << 24,
        From::Back => 1,
    };
    let mut value = word.load(Ordering::Acquire);
    loop {
        let (front, back) = ((value >> 24) as u32 & MOST, value as u32 & MOST);
        if value >> 48 != u64::from(epoch as u16) || front + back >= count {
            return None;
        }
        // The word carries no data: who takes a chunk has seen both ends start by other words.
        match word.compare_exchange_weak(value, value + step, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) if from == From::Front => return Some(front),
            Ok(_) => return Some(count - 1 - back),
            Err(now) => value = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_share_out_every_chunk_once() {
        let count = 5000;
        let word = AtomicU64::new(open(0x1_0007));
        assert_eq!(take(&word, 8, count, From::Front), None, "another epoch");
        let claim = |from| {
            let mut taken = Vec::new();
            while let Some(chunk) = take(&word, 0x1_0007, count, from) {
                taken.push(chunk);
            }
            taken
        };
        let mut all = std::thread::scope(|scope| {
            let back = scope.spawn(|| claim(From::Back));
            let mut all = claim(From::Front);
            all.extend(back.join().unwrap());
            all
        });
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>());
        assert_eq!(take(&AtomicU64::new(open(1)), 1, 0, From::Back), None);
    }
}
