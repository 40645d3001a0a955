//! What is refused: too much, out of bounds, unknown, revoked.

use super::fabric::{Fabric, QUEUE};
use super::member::{Sizes, run};
use crate::base::Rank;
use crate::transport::{
    LocalSlice, MessageLink, Posted, RegionId, RemotePlace, RemoteRegion, Rights, SegmentPlace, Signal, Ticket,
    TransportError,
};

pub(super) fn a_full_queue_is_busy_and_recovers<F: Fabric>() {
    const ROUNDS: u32 = 50;
    run::<F>(2, Sizes { target: 0, source: 0 }, |mut member| {
        let peer = member.peers().next().unwrap();
        let mut index = 0;
        for _ in 0..ROUNDS {
            // Without a poll nothing leaves the queue, so that it fills up; injected refusals come on top.
            let before = index;
            for _ in 0..20 * QUEUE {
                let posted = member.link.signal(peer, Signal { epoch: 0, index }).unwrap();
                index += u32::from(posted == Posted::Queued);
            }
            assert!(index - before <= QUEUE as u32, "{} accepted", index - before);
            assert_eq!(member.link.signal(peer, Signal { epoch: 0, index }).unwrap(), Posted::Busy);
            member.signal(peer, 0, index);
            index += 1;
        }
        let counts = member.exchange(index.to_le_bytes().to_vec());
        let expected = u32::from_le_bytes(counts[peer.index()][..].try_into().unwrap());
        member.until("all signals", |member| member.signals().count() == expected as usize);
        assert!(member.signals().map(|(_, signal)| signal.index).eq(0..expected), "in order, each once");
        member.meet();
    });
}

pub(super) fn wrong_arguments_are_refused_here<F: Fabric>() {
    run::<F>(2, Sizes { target: 64, source: 64 }, |mut member| {
        let peer = member.peers().next().unwrap();
        let (own, local, remote) = (member.rank, member.source_region, member.targets[peer.index()]);
        let mut put = |peer, region, (offset, bytes), to| {
            let (local, remote) = (LocalSlice { region, offset, bytes }, RemotePlace { region: remote, offset: to });
            refusal(|| member.link.put(peer, local, remote, Ticket(1)))
        };
        let outside = put(peer, local, (60, 5), 0);
        assert_eq!(outside, TransportError::LocalRange { region: local, offset: 60, bytes: 5, limit: 64 });
        assert!(matches!(put(peer, local, (u64::MAX, 2), 0), TransportError::LocalRange { .. }));
        let outside = put(peer, local, (0, 5), 60);
        assert_eq!(outside, TransportError::RemoteRange { peer, offset: 60, bytes: 5, limit: 64 });
        assert!(matches!(put(peer, local, (0, 1), u64::MAX), TransportError::RemoteRange { .. }));
        let unknown = RegionId(77);
        assert_eq!(put(peer, unknown, (0, 1), 0), TransportError::UnknownRegion { region: unknown });
        assert_eq!(put(Rank(9), local, (0, 1), 0), TransportError::NotConnected { peer: Rank(9) });
        assert_eq!(put(own, local, (0, 1), 0), TransportError::NotConnected { peer: own });
        let target = member.region;
        let unreadable = LocalSlice { region: target, offset: 0, bytes: 1 };
        let place = |offset| RemotePlace { region: remote, offset };
        let right = |region, right| TransportError::MissingRight { region, right };
        let link = &mut member.link;
        assert_eq!(refusal(|| link.put(peer, unreadable, place(0), Ticket(1))), right(target, "LOCAL_READ"));
        assert_eq!(link.export(local), Err(right(local, "REMOTE_WRITE")));
        let misaligned = TransportError::MisalignedWord { peer, offset: 4 };
        assert_eq!(refusal(|| link.put_word(peer, 1, place(4))), misaligned);
        assert!(matches!(refusal(|| link.put_word(peer, 1, place(64))), TransportError::RemoteRange { .. }));
        let index = Signal::INDICES;
        let too_large = TransportError::SignalIndex { index };
        assert_eq!(refusal(|| link.signal(peer, Signal { epoch: 0, index })), too_large);
        assert!(link.flush_received(target).is_ok() && link.flush_received(unknown).is_err());
        assert!(link.deregister(unknown).is_err() && link.health(peer).is_ok());
        member.signal(peer, 0, 0);
        member.until("the only signal", |member| !member.events.is_empty());
        assert_eq!(member.signals().count(), 1, "nothing else was sent");
        assert_eq!(member.seen(), [0; 64]);
        member.meet();
    });
}

/// The error of a post, past injected refusals.
fn refusal(mut post: impl FnMut() -> Result<Posted, TransportError>) -> TransportError {
    loop {
        match post() {
            Ok(Posted::Busy) => {}
            outcome => return outcome.unwrap_err(),
        }
    }
}

/// Rank 0 puts what rank 1 must not take; both see the connection end, and nothing is written.
pub(super) fn forged_and_revoked_regions_are_refused_there<F: Fabric>() {
    type Forge = fn(RemoteRegion) -> (RemoteRegion, u64);
    let forged: [(&str, Forge); 5] = [
        ("longer than it is", |region| (RemoteRegion { bytes: 4096, ..region }, 60)),
        ("far beyond it", |region| (RemoteRegion { bytes: 1 << 60, ..region }, 1 << 59)),
        ("another nonce", |region| (RemoteRegion { key: region.key ^ 1 << 63, ..region }, 0)),
        ("another slot", |region| (RemoteRegion { key: region.key + 5, ..region }, 0)),
        ("another place", |region| {
            let segment = region.segment.map(|place| SegmentPlace { offset: 0, ..place });
            (RemoteRegion { key: region.key ^ 1 << 62, segment, ..region }, 0)
        }),
    ];
    for (what, forge) in forged {
        run::<F>(2, Sizes { target: 64, source: 64 }, |mut member| {
            if member.rank == Rank(0) {
                member.source.fill(0xff);
                let (region, offset) = forge(member.targets[1]);
                offend(&mut member, RemotePlace { region, offset });
            } else {
                member.until("the end of the connection", |member| member.lost(Rank(0)));
                assert!(member.link.health(Rank(0)).is_err(), "{what}");
            }
            member.meet();
            assert_eq!(member.seen(), [0; 64], "{what}");
        });
    }
    run::<F>(2, Sizes { target: 64, source: 64 }, |mut member| {
        member.source.fill(0xff);
        let place = RemotePlace { region: member.targets[1], offset: 0 };
        if member.rank == Rank(0) {
            member.put(Rank(1), 0, 32, 0, Ticket(5));
            member.signal(Rank(1), 0, 0);
            member.until("the legal put", |member| member.completed(Ticket(5)));
            member.meet();
            offend(&mut member, place);
        } else {
            member.until("the legal put", |member| member.signals().count() == 1);
            member.link.deregister(member.region).unwrap();
            assert!(member.link.export(member.region).is_err());
            member.meet();
            member.until("the end of the connection", |member| member.lost(Rank(0)));
            assert_eq!(member.seen(), [[0xff; 32], [0; 32]].concat());
        }
        member.meet();
    });
}

/// Puts to `place`, and words, until the connection ends; an error at once is as good.
fn offend<L: MessageLink>(member: &mut super::member::Member<L>, place: RemotePlace) {
    let local = LocalSlice { region: member.source_region, offset: 0, bytes: 5 };
    let word = RemotePlace { offset: place.offset.next_multiple_of(8), ..place };
    member.until("the end of the connection", |member| {
        let put = member.link.put(Rank(1), local, place, Ticket::SILENT);
        let word = member.link.put_word(Rank(1), u64::MAX, word);
        let refused = put.is_err() || word.is_err();
        // A region that cannot even be mapped is refused before anything is sent.
        if refused && member.link.health(Rank(1)).is_ok() {
            member.link.abort(Rank(1));
        }
        refused
    });
    assert!(member.link.health(Rank(1)).is_err());
}

pub(super) fn a_source_stays_registered_while_it_is_read<F: Fabric>() {
    run::<F>(2, Sizes { target: 64, source: 64 }, |mut member| {
        let peer = member.peers().next().unwrap();
        let mut own = vec![7u8; 64];
        // SAFETY: the vector outlives the registration, which ends below.
        let region = unsafe { member.link.register(own.as_mut_ptr(), 64, Rights::LOCAL_READ) }.unwrap();
        let local = LocalSlice { region, offset: 0, bytes: 64 };
        let remote = RemotePlace { region: member.targets[peer.index()], offset: 0 };
        let mut posted = Posted::Busy;
        while posted == Posted::Busy {
            posted = member.link.put(peer, local, remote, Ticket(3)).unwrap();
        }
        assert_eq!(member.link.deregister(region), Err(TransportError::RegionInUse { region, puts: 1 }));
        member.until("completion", |member| member.completed(Ticket(3)));
        assert_eq!(member.link.deregister(region), Ok(()));
        assert_eq!(member.link.deregister(region), Err(TransportError::UnknownRegion { region }));
        member.meet();
    });
}
