//! Handshakes over loopback: agreement, each way to disagree, strangers, and time limits.

use super::*;
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialer, listener.accept().unwrap().0)
}

fn party<'a>(key: &'a JobKey, purpose: &'a str, rank: u32, size: u32) -> Party<'a> {
    Party { key, purpose, rank: Rank(rank), size }
}

/// Both results of a handshake between `dialer`, which means rank `peer`, and `acceptor`.
fn shake(
    dialer: Party<'_>,
    peer: u32,
    acceptor: Party<'_>,
) -> (Result<(), HandshakeError>, Result<Rank, HandshakeError>) {
    let (dialed, accepted) = pair();
    let deadline = Deadline::seconds(5);
    thread::scope(|scope| {
        let accepting = scope.spawn(move || acceptor.accept(&accepted, deadline));
        let result = dialer.dial(&dialed, Rank(peer), deadline);
        // A caller that is refused hangs up.
        drop(dialed);
        (result, accepting.join().unwrap())
    })
}

#[test]
fn same_key_agrees() {
    let key = JobKey::generate().unwrap();
    let (dialed, accepted) = shake(party(&key, "test", 3, 4), 1, party(&key, "test", 1, 4));
    assert!(dialed.is_ok(), "{dialed:?}");
    assert_eq!(accepted.unwrap(), Rank(3));
}

#[test]
fn another_key_is_seen_by_the_dialer_first() {
    let (key, other) = (JobKey::generate().unwrap(), JobKey::generate().unwrap());
    let (dialed, accepted) = shake(party(&key, "test", 3, 4), 1, party(&other, "test", 1, 4));
    assert!(matches!(dialed, Err(HandshakeError::WrongKey)), "{dialed:?}");
    assert!(accepted.is_err());
}

#[test]
fn contradictions_are_told_to_both_sides() {
    let key = JobKey::generate().unwrap();
    let here = party(&key, "test", 1, 4);
    let cases = [
        (party(&key, "test", 3, 5), 1, Refusal::Size { accepted: 4, claimed: 5 }),
        (party(&key, "test", 4, 4), 1, Refusal::Range { rank: Rank(4), size: 4 }),
        (party(&key, "test", 3, 4), 2, Refusal::Peer { reached: Rank(1), meant: Rank(2) }),
        (party(&key, "other", 3, 4), 1, Refusal::Purpose),
    ];
    for (dialer, peer, refusal) in cases {
        let (dialed, accepted) = shake(dialer, peer, here);
        assert!(matches!(dialed, Err(HandshakeError::Refused(told)) if told == refusal), "{dialed:?}");
        assert!(matches!(accepted, Err(HandshakeError::Refused(told)) if told == refusal), "{accepted:?}");
    }
}

#[test]
fn another_version_names_both() {
    let key = JobKey::generate().unwrap();
    let (mut dialed, accepted) = pair();
    let mut hello = prefix();
    hello[8..].copy_from_slice(&77u32.to_le_bytes());
    dialed.write_all(&hello).unwrap();
    let refused = thread::scope(|scope| {
        let accepting = scope.spawn(|| party(&key, "test", 0, 2).accept(&accepted, Deadline::seconds(5)));
        let mut answer = [0; PREFIX];
        dialed.read_exact(&mut answer).unwrap();
        assert_eq!(word(&answer, 8), PROTOCOL_VERSION);
        accepting.join().unwrap()
    });
    assert!(matches!(refused, Err(HandshakeError::Version { ours: PROTOCOL_VERSION, theirs: 77 })), "{refused:?}");

    let (dialed, mut accepted) = pair();
    accepted.write_all(&hello).unwrap();
    let refused = party(&key, "test", 1, 2).dial(&dialed, Rank(0), Deadline::seconds(5));
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("version 77") && text.contains(&format!("version {PROTOCOL_VERSION}")), "{text}");
}

#[test]
fn strangers_and_replays_are_dropped() {
    let key = JobKey::generate().unwrap();
    let here = party(&key, "test", 0, 2);
    let (mut dialed, accepted) = pair();
    dialed.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(here.accept(&accepted, Deadline::seconds(5)), Err(HandshakeError::Stranger)));

    // A hello without the key, answered with the acceptor's own proof sent back.
    let (mut dialed, accepted) = pair();
    let mut hello = [0; HELLO];
    hello[..PREFIX].copy_from_slice(&prefix());
    hello[PREFIX..][..12].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    hello[PREFIX + 12..][..4].copy_from_slice(b"test");
    dialed.write_all(&hello).unwrap();
    let refused = thread::scope(|scope| {
        let accepting = scope.spawn(|| here.accept(&accepted, Deadline::seconds(5)));
        let mut answer = [0; ANSWER];
        dialed.read_exact(&mut answer).unwrap();
        dialed.write_all(&answer[ANSWER - KEY_BYTES..]).unwrap();
        accepting.join().unwrap()
    });
    assert!(matches!(refused, Err(HandshakeError::WrongKey)), "{refused:?}");
}

#[test]
fn silence_and_trickles_end_by_the_deadline() {
    let key = JobKey::generate().unwrap();
    let (mut dialed, accepted) = pair();
    let start = Instant::now();
    let refused = thread::scope(|scope| {
        scope.spawn(|| {
            for byte in prefix() {
                thread::sleep(Duration::from_millis(50));
                let _ = dialed.write_all(&[byte]);
            }
        });
        party(&key, "test", 0, 2).accept(&accepted, Deadline::after(Duration::from_millis(300)))
    });
    assert!(matches!(refused, Err(HandshakeError::Timeout)), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(2));
}
