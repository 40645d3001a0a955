//! Buffers: contents, kinds, and who may touch them when.

use crate::memory::{Buffer, MemoryError, MemoryKind};

const SIZES: [u64; 6] = [0, 1, 7, 4096, 65537, 5 << 20];

#[test]
fn are_zeroed_and_keep_what_is_written() {
    for bytes in SIZES {
        let mut own = vec![0u8; bytes as usize];
        // SAFETY: the vector outlives the buffer and is not used while it lives.
        let raw = unsafe { Buffer::from_raw(own.as_mut_ptr(), bytes) };
        for buffer in [Buffer::shared(bytes).unwrap(), Buffer::private(bytes).unwrap(), raw] {
            assert_eq!(buffer.bytes(), bytes);
            assert!(buffer.read().unwrap().iter().all(|&byte| byte == 0));
            let pattern = |index: usize| (index * 31 % 251) as u8;
            buffer.write().unwrap().iter_mut().enumerate().for_each(|(index, byte)| *byte = pattern(index));
            let read = buffer.clone();
            let guard = read.read().unwrap();
            assert_eq!(guard.len() as u64, bytes);
            assert!(guard.iter().enumerate().all(|(index, &byte)| byte == pattern(index)));
        }
    }
}

#[test]
fn a_null_buffer_without_bytes_is_empty() {
    // SAFETY: no bytes.
    let buffer = unsafe { Buffer::from_raw(std::ptr::null_mut(), 0) };
    assert!(buffer.read().unwrap().is_empty());
    assert!(buffer.write().unwrap().is_empty());
}

#[test]
fn kinds_say_where_the_memory_is() {
    let shared = Buffer::shared(10).unwrap();
    let segment = shared.segment().unwrap();
    assert_eq!(shared.kind(), MemoryKind::Shared { segment: segment.id(), offset: 0 });
    assert_eq!(shared.as_ptr(), segment.as_ptr());
    let private = Buffer::private(10).unwrap();
    assert_eq!(private.kind(), MemoryKind::Private { address: private.as_ptr() as u64 });
    assert!(private.segment().is_none());
    assert!(Buffer::private(1 << 62).is_err(), "more than any machine has");
    assert!(Buffer::shared(u64::MAX).is_err());
}

#[test]
fn overlaps_are_found() {
    let whole = Buffer::private(100).unwrap();
    // SAFETY: `whole` outlives the parts, and no guards are taken.
    let part = |offset, bytes| unsafe { Buffer::from_raw(whole.pointer(offset, bytes).unwrap(), bytes) };
    let cases = [(0, 100, 0, 100, true), (0, 50, 50, 50, false), (0, 51, 50, 50, true), (10, 0, 0, 100, false)];
    for (a, a_bytes, b, b_bytes, overlap) in cases {
        let (first, second) = (part(a, a_bytes), part(b, b_bytes));
        assert_eq!(first.overlaps(&second), overlap, "{a}+{a_bytes} {b}+{b_bytes}");
        assert_eq!(second.overlaps(&first), overlap);
    }
    assert!(whole.same_memory(&whole.clone()) && whole.same_memory(&part(0, 100)) && !whole.same_memory(&part(0, 99)));
    assert!(matches!(whole.pointer(1, 100), Err(MemoryError::Range { .. })));
    assert!(matches!(whole.pointer(u64::MAX, 2), Err(MemoryError::Range { .. })));
}

/// Everything that can be taken, and whether a second one is allowed beside it.
#[test]
fn many_readers_or_one_writer() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Taken {
        Read,
        Write,
        ReadHold,
        WriteHold,
    }
    use Taken::*;
    fn take(buffer: &'static Buffer, what: Taken) -> Result<Box<dyn std::any::Any>, MemoryError> {
        Ok(match what {
            Read => Box::new(buffer.read()?),
            Write => Box::new(buffer.write()?),
            ReadHold => Box::new(buffer.hold_for_read()?),
            WriteHold => Box::new(buffer.hold_for_write()?),
        })
    }
    let buffer: &'static Buffer = Box::leak(Box::new(Buffer::private(64).unwrap()));
    for first in [Read, Write, ReadHold, WriteHold] {
        for second in [Read, Write, ReadHold, WriteHold] {
            let reads = |what| matches!(what, Read | ReadHold);
            let held = take(buffer, first).unwrap();
            match take(buffer, second) {
                Ok(_) => assert!(reads(first) && reads(second), "{first:?} {second:?}"),
                Err(error) => {
                    assert!(!(reads(first) && reads(second)), "{first:?} {second:?}");
                    let by_transfer = matches!(first, ReadHold | WriteHold);
                    let text = error.to_string();
                    assert_eq!(text.contains("active transfer") && text.contains("wait"), by_transfer, "{text}");
                    assert_eq!(text.contains("drop the guard"), !by_transfer, "{text}");
                }
            }
            drop(held);
            drop(take(buffer, Write).expect("all was given back"));
        }
    }
}

#[test]
fn a_hold_outlives_the_handle_and_ends_on_release() {
    let buffer = Buffer::shared(8).unwrap();
    let other = buffer.clone();
    let hold = buffer.hold_for_write().unwrap();
    let second = other.hold_for_read();
    assert!(matches!(second, Err(MemoryError::InTransfer { .. })));
    drop(buffer);
    assert!(other.read().is_err());
    assert_eq!(hold.buffer().bytes(), 8);
    hold.release();
    assert!(other.write().is_ok());
}

#[test]
fn threads_exclude_each_other() {
    let buffer = Buffer::private(8).unwrap();
    let rounds = 2000u64;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut added = 0;
                while added < rounds {
                    if let Ok(mut guard) = buffer.write() {
                        let value = u64::from_le_bytes(guard[..8].try_into().unwrap()) + 1;
                        guard.copy_from_slice(&value.to_le_bytes());
                        added += 1;
                    } else {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let sum = u64::from_le_bytes(buffer.read().unwrap()[..8].try_into().unwrap());
    assert_eq!(sum, 3 * rounds);
}
