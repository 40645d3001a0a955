//! Connections that are no peer's, and peers that come at odd times.

use super::TrustingPeers;
use crate::base::{Backoff, Deadline, Rank};
use crate::transport::tcp::address::Address;
use crate::transport::{
    Authenticate, AuthenticateError, Event, MessageLink, Posted, Signal, TcpLink, TcpOptions, TransportError,
};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn link(rank: u32) -> TcpLink {
    TcpLink::new(Rank(rank), TcpOptions::new(Arc::new(TrustingPeers(Rank(rank))))).unwrap()
}

fn soon() -> Deadline {
    Deadline::seconds(30)
}

fn place(link: &TcpLink) -> std::net::SocketAddr {
    *Address::decode(Rank(0), &link.address()).unwrap().places.last().unwrap()
}

/// Connects two links, and proves that a signal crosses each way.
fn connect_and_use(low: &mut TcpLink, high: &mut TcpLink) {
    let (low_rank, high_rank) = (low.rank, high.rank);
    let (low_address, high_address) = (low.address(), high.address());
    std::thread::scope(|scope| {
        scope.spawn(|| low.connect(&[(high_rank, high_address)], soon()).unwrap());
        high.connect(&[(low_rank, low_address)], soon()).unwrap();
    });
    signal_crosses(low, high);
    signal_crosses(high, low);
}

fn signal_crosses(from: &mut TcpLink, to: &mut TcpLink) {
    let sent = Signal { epoch: 1, index: from.rank.0 };
    assert_eq!(from.signal(to.rank, sent), Ok(Posted::Queued));
    let (mut events, mut backoff, deadline) = (Vec::new(), Backoff::new(), soon());
    while events.is_empty() {
        from.poll(&mut events).unwrap();
        to.poll(&mut events).unwrap();
        assert!(!deadline.expired());
        backoff.snooze();
    }
    let own = from.rank;
    assert!(matches!(events[..], [Event::Signalled { peer, signal }] if peer == own && signal == sent), "{events:?}");
}

#[test]
fn strays_are_dropped_and_counted_and_delay_nobody() {
    let (mut low, mut high) = (link(0), link(1));
    let at = place(&high);
    // One that says nothing, one that says nonsense, one that leaves at once, one that claims to be a peer but
    // means another link, one that claims to be a rank that must be dialled.
    let silent = TcpStream::connect(at).unwrap();
    let mut loud = TcpStream::connect(at).unwrap();
    loud.write_all(&[b'x'; 4096]).unwrap();
    drop(TcpStream::connect(at).unwrap());
    let mut liar = TcpStream::connect(at).unwrap();
    liar.write_all(&[0; 36]).unwrap();
    let begin = Instant::now();
    connect_and_use(&mut low, &mut high);
    assert!(begin.elapsed() < Duration::from_secs(8), "the silent one was waited for");
    assert_eq!((low.strays(), high.strays()), (0, 4));
    drop(silent);
}

#[test]
fn a_peer_that_dials_before_it_is_asked_for_is_kept() {
    let [mut first, mut second, mut third] = [link(0), link(1), link(2)];
    let addresses: Vec<_> = [&first, &second, &third].map(|link| link.address()).into();
    let with = |ranks: &[u32]| ranks.iter().map(|&rank| (Rank(rank), addresses[rank as usize].clone())).collect();
    let (for_first, for_second): (Vec<_>, Vec<_>) = (with(&[2]), with(&[2]));
    std::thread::scope(|scope| {
        let early = scope.spawn(|| {
            first.connect(&for_first, soon()).unwrap();
            first
        });
        // Rank 2 asks for rank 1 alone, which comes late; rank 0 is heard meanwhile.
        let late = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            second.connect(&for_second, soon()).unwrap();
            second
        });
        third.connect(&with(&[1]), soon()).unwrap();
        let mut first = early.join().unwrap();
        assert!(third.health(Rank(0)).is_err());
        third.connect(&with(&[0, 1, 2]), soon()).unwrap();
        signal_crosses(&mut first, &mut third);
        signal_crosses(&mut late.join().unwrap(), &mut third);
    });
    assert_eq!(third.strays(), 0);
}

/// Refuses everybody at the accepting end.
struct Distrust;

impl Authenticate for Distrust {
    fn dial(&self, _stream: &TcpStream, _peer: Rank, _deadline: Deadline) -> Result<(), AuthenticateError> {
        Ok(())
    }

    fn accept(&self, _stream: &TcpStream, _deadline: Deadline) -> Result<Rank, AuthenticateError> {
        Err("wrong key".into())
    }
}

#[test]
fn a_peer_that_fails_to_authenticate_is_refused_and_named() {
    let (mut low, mut high) = (link(0), TcpLink::new(Rank(1), TcpOptions::new(Arc::new(Distrust))).unwrap());
    let deadline = Deadline::after(Duration::from_millis(300));
    let (low_address, high_address) = (low.address(), high.address());
    let (dialled, accepted) = std::thread::scope(|scope| {
        let dialling = scope.spawn(|| low.connect(&[(Rank(1), high_address)], deadline));
        let accepted = high.connect(&[(Rank(0), low_address)], deadline);
        (dialling.join().unwrap(), accepted)
    });
    for (result, rank) in [(dialled, 1), (accepted, 0)] {
        let error = result.unwrap_err();
        assert!(matches!(&error, TransportError::ConnectDeadline { missing, .. } if missing == &[Rank(rank)]));
    }
    assert!(high.strays() > 0);
}

#[test]
fn the_next_place_is_tried_when_one_does_not_answer() {
    let (mut low, mut high) = (link(0), link(1));
    // A listener that never answers, and a place where nobody listens, come first.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut address = Address::decode(Rank(1), &high.address()).unwrap();
    address.places.splice(0..0, [mute.local_addr().unwrap(), closed]);
    let low_address = low.address();
    std::thread::scope(|scope| {
        scope.spawn(|| low.connect(&[(Rank(1), address.encode())], soon()).unwrap());
        high.connect(&[(Rank(0), low_address)], soon()).unwrap();
    });
    signal_crosses(&mut low, &mut high);
}

#[test]
fn a_wait_ends_when_something_comes() {
    let (mut low, mut high) = (link(0), link(1));
    connect_and_use(&mut low, &mut high);
    let mut events = Vec::new();
    while high.wait(Duration::ZERO).unwrap() {
        high.poll(&mut events).unwrap();
    }
    let begin = Instant::now();
    assert_eq!(high.wait(Duration::from_millis(30)), Ok(false));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(low.signal(Rank(1), Signal { epoch: 0, index: 9 }), Ok(Posted::Queued));
            low.poll(&mut Vec::new()).unwrap();
        });
        let begin = Instant::now();
        assert_eq!(high.wait(Duration::from_secs(20)), Ok(true));
        assert!(begin.elapsed() < Duration::from_secs(10));
    });
    high.poll(&mut events).unwrap();
    assert!(matches!(events[..], [Event::Signalled { .. }]));
}

#[test]
fn sixteen_ranks_connect_at_once() {
    let mut links: Vec<_> = (0..16).map(link).collect();
    let peers: Vec<_> = links.iter().map(|link| (link.rank, link.address())).collect();
    std::thread::scope(|scope| {
        for link in &mut links {
            let peers = &peers;
            scope.spawn(move || link.connect(peers, soon()).unwrap());
        }
    });
    let own = |link: &TcpLink, peer: &Rank| link.rank == *peer;
    assert!(links.iter().all(|link| peers.iter().all(|(peer, _)| own(link, peer) || link.health(*peer).is_ok())));
    assert!(links.iter().all(|link| link.strays() == 0));
}

#[test]
fn an_aborted_peer_can_be_connected_again() {
    let (mut low, mut high) = (link(0), link(1));
    connect_and_use(&mut low, &mut high);
    high.abort(Rank(0));
    let (mut events, mut backoff, deadline) = (Vec::new(), Backoff::new(), soon());
    while low.health(Rank(1)).is_ok() {
        low.poll(&mut events).unwrap();
        assert!(!deadline.expired());
        backoff.snooze();
    }
    connect_and_use(&mut low, &mut high);
    assert_eq!((low.close(Deadline::after(Duration::ZERO)).is_err(), low.health(Rank(1)).is_err()), (true, true));
}
