//! How connections end, on purpose and otherwise.

use super::fabric::Fabric;
use super::member::{Member, Sizes, run};
use crate::base::{Deadline, Rank};
use crate::transport::{Event, LocalSlice, MessageLink, RemotePlace, Ticket, TransportError};
use std::time::Duration;

fn soon() -> Deadline {
    Deadline::seconds(30)
}

/// Puts without end; `false` once the connection has ended.
fn flood<L: MessageLink>(member: &mut Member<L>, peer: Rank, bytes: u64, round: u8) -> bool {
    let local = LocalSlice { region: member.source_region, offset: 0, bytes };
    let remote = RemotePlace { region: member.targets[peer.index()], offset: 0 };
    if member.link.health(peer).is_err() {
        return false;
    }
    // The source may change under a queued put; what lands is of no interest, only when.
    member.source.fill(round);
    let alive = member.link.put(peer, local, remote, Ticket::SILENT).is_ok();
    member.link.poll(&mut member.events).unwrap();
    alive
}

pub(super) fn nothing_lands_after_an_abort<F: Fabric>() {
    const BYTES: u64 = 3 << 20;
    for wait in [0, 3, 20] {
        run::<F>(3, Sizes { target: BYTES, source: BYTES }, |mut member| {
            if member.rank == Rank(0) {
                let (mut round, deadline) = (0u8, soon());
                while flood(&mut member, Rank(2), BYTES, round) {
                    round = round.wrapping_add(1);
                    assert!(!deadline.expired());
                }
                member.until("news of the end", |member| member.link.health(Rank(2)).is_err());
            } else if member.rank == Rank(2) {
                let begin = Deadline::after(Duration::from_millis(wait));
                member.until("some traffic", |_| begin.expired());
                member.link.abort(Rank(0));
                let seen = member.seen();
                assert_eq!(member.link.health(Rank(0)), Err(TransportError::Aborted { peer: Rank(0) }));
                let end = Deadline::after(Duration::from_millis(30));
                member.until("late writes", |_| end.expired());
                assert!(seen == member.seen(), "written after the abort");
                member.link.abort(Rank(0));
                assert!(!member.lost(Rank(0)), "an abort of one's own is no loss");
            }
            // The third rank's connections are untouched.
            let other = if member.rank == Rank(1) { vec![Rank(0), Rank(2)] } else { vec![Rank(1)] };
            for &peer in &other {
                member.signal(peer, 1, 1);
            }
            member.until("signals of the others", |member| member.signals().count() == other.len());
            member.meet();
        });
    }
}

pub(super) fn a_lost_peer_is_seen<F: Fabric>() {
    run::<F>(3, Sizes { target: 64, source: 64 }, |mut member| {
        let gone = Rank(1);
        if member.rank == gone {
            for peer in member.peers() {
                member.put(peer, 0, 64, 0, Ticket(u64::from(peer.0)));
                member.signal(peer, 0, 5);
            }
            member
                .until("all is sent", |member| member.peers().all(|peer| member.completed(Ticket(u64::from(peer.0)))));
            let sent = Deadline::after(Duration::from_millis(100));
            member.until("signals are sent", |_| sent.expired());
            drop(member.link);
            return;
        }
        member.until("the loss", |member| member.lost(gone));
        let position = |find: fn(&Event) -> bool| member.events.iter().position(find);
        let signal = position(|event| matches!(event, Event::Signalled { peer: Rank(1), .. }));
        let loss = position(|event| matches!(event, Event::Lost { .. }));
        assert!(signal.is_some() && signal < loss, "what came before is reported before: {:?}", member.events);
        let cause = member.link.health(gone).unwrap_err();
        assert!(cause.to_string().contains("rank 1"), "{cause}");
        assert!(member.link.signal(gone, crate::transport::Signal { epoch: 0, index: 0 }).is_err());
        let other = Rank(2 - member.rank.0);
        member.signal(other, 0, 6);
        member.until("the other survivor", |member| member.signals().any(|(peer, _)| peer == other));
        let losses = member.events.iter().filter(|event| matches!(event, Event::Lost { .. })).count();
        assert_eq!(losses, 1);
        // The survivors part in an orderly way.
        member.link.close(soon()).unwrap();
    });
}

pub(super) fn closing_flushes_what_was_posted<F: Fabric>() {
    const SIGNALS: u32 = 100;
    const BYTES: u64 = 700_000;
    run::<F>(2, Sizes { target: BYTES, source: BYTES }, |mut member| {
        member.source.fill(0x5a);
        let peer = member.peers().next().unwrap();
        if member.rank == Rank(0) {
            for index in 0..SIGNALS {
                member.signal(peer, 0, index);
            }
            member.put(peer, 0, BYTES, 0, Ticket(1));
            member.signal(peer, 0, SIGNALS);
            member.link.close(soon()).unwrap();
            assert!(member.link.health(peer).is_err());
            assert!(member.link.signal(peer, crate::transport::Signal { epoch: 0, index: 0 }).is_err());
            member.link.close(soon()).unwrap();
            member.meet();
            return;
        }
        member.until("all signals", |member| member.signals().count() == SIGNALS as usize + 1);
        assert!(member.signals().map(|(_, signal)| signal.index).eq(0..=SIGNALS));
        assert!(member.seen().iter().all(|&byte| byte == 0x5a));
        member.until("the goodbye", |member| member.link.health(peer) == Err(TransportError::PeerLeft { peer }));
        member.meet();
        assert!(!member.lost(peer), "a goodbye is no loss");
        member.link.close(soon()).unwrap();
    });
}

pub(super) fn absent_peers_are_named<F: Fabric>() {
    let (mut link, _published) = F::link(Rank(3));
    let (first, _first) = F::link(Rank(1));
    let (last, _last) = F::link(Rank(5));
    let peers = [(Rank(1), first.address()), (Rank(5), last.address())];
    let deadline = Deadline::after(Duration::from_millis(200));
    let error = link.connect(&peers, deadline).unwrap_err();
    let TransportError::ConnectDeadline { missing, limit, .. } = &error else { panic!("{error:?}") };
    assert_eq!((&missing[..], *limit), (&[Rank(1), Rank(5)][..], Duration::from_millis(200)));
    assert!(error.to_string().contains("ranks 1, 5"), "{error}");
    assert_eq!(link.health(Rank(1)), Err(TransportError::NotConnected { peer: Rank(1) }));
    let error = link.connect(&[(Rank(1), b"nonsense".to_vec())], deadline).unwrap_err();
    assert!(matches!(error, TransportError::Address { peer: Rank(1), .. }));
}
