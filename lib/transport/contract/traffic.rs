//! Bytes, words and signals that arrive.

use super::fabric::Fabric;
use super::member::{MARGIN, Member, Sizes, run};
use crate::base::Rank;
use crate::transport::{MessageLink, RemotePlace, Ticket};
use std::sync::atomic::{AtomicBool, Ordering};

/// What `writer` puts for `reader` at byte `index`.
fn value(writer: Rank, reader: Rank, index: u64) -> u8 {
    (u64::from(writer.0) * 151 + u64::from(reader.0) * 59 + index * 7 + index / 251) as u8
}

/// Fills a part of the source with what this rank puts for `reader`.
fn fill<L>(member: &mut Member<L>, reader: Rank, from: u64, index: u64, bytes: u64) {
    let rank = member.rank;
    let part = &mut member.source[from as usize..(from + bytes) as usize];
    part.iter_mut().zip(index..).for_each(|(byte, index)| *byte = value(rank, reader, index));
}

pub(super) fn puts_of_all_sizes_arrive_before_their_signal<F: Fabric>() {
    for size in [2u32, 3, 4, 8] {
        let all = [0u64, 1, 7, 8, 4096, 65537, 5 << 20];
        let puts = if size > 3 { &all[..6] } else { &all[..] };
        let lane: u64 = puts.iter().sum();
        let sizes = Sizes { target: lane * u64::from(size), source: lane * u64::from(size) };
        run::<F>(size, sizes, |mut member| {
            let lane_of = |rank: Rank| lane * u64::from(rank.0);
            for peer in member.peers() {
                fill(&mut member, peer, lane_of(peer), 0, lane);
            }
            let (mut at, own) = (0, member.rank);
            for (index, &bytes) in puts.iter().enumerate() {
                for peer in member.peers() {
                    member.put(peer, lane_of(peer) + at, bytes, lane_of(own) + at, Ticket::SILENT);
                    member.signal(peer, size as u8, index as u32);
                }
                at += bytes;
            }
            let mut checked = 0;
            let total = puts.len() * (size as usize - 1);
            member.until("all signals", |member| {
                let seen: Vec<_> = member.signals().skip(checked).collect();
                for (peer, signal) in seen {
                    assert_eq!(signal.epoch, size as u8);
                    let before: u64 = puts[..signal.index as usize].iter().sum();
                    let bytes = puts[signal.index as usize];
                    let start = member.target.pointer(MARGIN + lane_of(peer) + before, bytes).unwrap();
                    // SAFETY: the put before the signal has landed, and no other writes these bytes.
                    let landed = unsafe { std::slice::from_raw_parts(start, bytes as usize) };
                    let wrong = landed.iter().zip(before..).position(|(byte, at)| *byte != value(peer, own, at));
                    assert_eq!(wrong, None, "{size} ranks, {bytes} bytes of rank {peer}");
                    checked += 1;
                }
                checked == total
            });
            member.meet();
            assert_eq!(member.signals().count(), total);
        });
    }
}

pub(super) fn interleaved_puts_land_where_they_should<F: Fabric>() {
    const LANE: u64 = 200_000;
    for size in [2u32, 3] {
        let sizes = Sizes { target: LANE * u64::from(size), source: LANE * u64::from(size) };
        run::<F>(size, sizes, |mut member| {
            let lane_of = |rank: Rank| LANE * u64::from(rank.0);
            let own = member.rank;
            let mut places = Vec::new();
            for peer in member.peers() {
                fill(&mut member, peer, lane_of(peer), 0, LANE);
                // Pieces of uneven length, every second one skipped and put later.
                let (mut at, mut length) = (0, 1 + u64::from(own.0));
                while at < LANE {
                    let bytes = length.min(LANE - at);
                    places.push((at / 7 % 2, at, bytes, peer));
                    at += bytes;
                    length = length * 5 % 9973 + 1;
                }
            }
            places.sort_by_key(|(half, at, ..)| (*half, *at));
            for (index, (_, at, bytes, peer)) in places.into_iter().enumerate() {
                member.put(peer, lane_of(peer) + at, bytes, lane_of(own) + at, Ticket(index as u64));
            }
            for peer in member.peers() {
                member.signal(peer, 0, 0);
            }
            let expected = size as usize - 1;
            member.until("the last signals", |member| member.signals().count() == expected);
            let seen = member.seen();
            for peer in member.peers() {
                let lane = &seen[lane_of(peer) as usize..][..LANE as usize];
                assert!(lane.iter().zip(0..).all(|(byte, at)| *byte == value(peer, own, at)), "{peer} to {own}");
            }
            member.meet();
        });
    }
}

pub(super) fn a_signal_is_never_ahead_of_its_put<F: Fabric>() {
    const COUNT: u32 = 3000;
    run::<F>(2, Sizes { target: 8, source: 8 * u64::from(COUNT) }, |mut member| {
        let peer = member.peers().next().unwrap();
        for (chunk, number) in member.source.chunks_exact_mut(8).zip(1u64..) {
            chunk.copy_from_slice(&number.to_ne_bytes());
        }
        let mut next = 0;
        for number in 0..COUNT {
            member.put(peer, u64::from(number) * 8, 8, 0, Ticket::SILENT);
            member.signal(peer, 9, number);
            check(&mut member, &mut next);
        }
        member.until("all signals", |member| {
            check(member, &mut next);
            next == COUNT
        });
        member.meet();
    });

    fn check<L: MessageLink>(member: &mut Member<L>, next: &mut u32) {
        let seen: Vec<_> = member.signals().collect();
        member.events.clear();
        for (_, signal) in seen {
            assert_eq!((signal.epoch, signal.index), (9, *next), "in order, each once");
            let word = member.target.words(MARGIN, 1).unwrap()[0].load(Ordering::Relaxed);
            assert!(word > u64::from(*next), "signal {next} came before its put, {word}");
            *next += 1;
        }
    }
}

pub(super) fn completed_sources_may_be_reused<F: Fabric>() {
    const BYTES: u64 = 30_000;
    const ROUNDS: u64 = 40;
    run::<F>(2, Sizes { target: BYTES * ROUNDS, source: BYTES }, |mut member| {
        let peer = member.peers().next().unwrap();
        let own = member.rank;
        for round in 0..ROUNDS {
            fill(&mut member, peer, 0, round * BYTES, BYTES);
            member.put(peer, 0, BYTES, round * BYTES, Ticket(round));
            member.until("completion", |member| member.completed(Ticket(round)));
            member.source.fill(0xee);
        }
        member.signal(peer, 0, 1);
        member.until("the last signal", |member| member.signals().count() == 1);
        let seen = member.seen();
        assert!(seen.iter().zip(0..).all(|(byte, at)| *byte == value(peer, own, at)));
        let completions = (0..ROUNDS).filter(|round| member.completed(Ticket(*round))).count();
        assert_eq!(completions as u64, ROUNDS);
        member.meet();
    });
}

pub(super) fn words_are_never_torn<F: Fabric>() {
    const COUNT: u64 = 2000;
    run::<F>(2, Sizes { target: 16, source: 0 }, |mut member| {
        let peer = member.peers().next().unwrap();
        let (target, stop) = (member.target.clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let word = &target.words(MARGIN + 8, 1).unwrap()[0];
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    let seen = word.load(Ordering::Acquire);
                    assert_eq!(seen >> 32, seen & 0xffff_ffff, "torn");
                    assert!(seen >= last, "back in time");
                    last = seen;
                    std::thread::yield_now();
                }
            });
            let remote = RemotePlace { region: member.targets[peer.index()], offset: 8 };
            for number in 1..=COUNT {
                member.post(|link| link.put_word(peer, number << 32 | number, remote).unwrap());
            }
            let word = &target.words(MARGIN + 8, 1).unwrap()[0];
            member.until("the last word", |_| word.load(Ordering::Acquire) == COUNT << 32 | COUNT);
            stop.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
        });
        member.meet();
        assert_eq!(member.seen()[..8], [0; 8]);
    });
}
