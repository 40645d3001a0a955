//! Rendezvous on loopback: joining, contradictions, absence.

use super::super::handshake::{HandshakeError, Refusal};
use super::*;
use std::thread;
use std::time::{Duration, Instant};

fn serve(size: u32) -> (Rendezvous, UniqueId) {
    Rendezvous::serve("127.0.0.1:0".parse().unwrap(), size, Deadline::seconds(30)).unwrap()
}

#[test]
fn every_rank_gets_the_broadcasts_of_rank_0() {
    for size in [1, 2, 3, 4, 7, 8] {
        let (rendezvous, id) = serve(size);
        let id: UniqueId = id.to_string().parse().unwrap();
        thread::scope(|scope| {
            for rank in 0..size {
                let id = &id;
                scope.spawn(move || {
                    let deadline = Deadline::seconds(30);
                    let mut joined = TcpBootstrap::join(id, Rank(rank), size, deadline).unwrap();
                    for length in [0usize, 1, 5000, 1 << 20] {
                        let mine = vec![rank as u8 + 1; length];
                        assert!(joined.broadcast(&mine, deadline).unwrap() == vec![1; length]);
                    }
                    Box::new(joined).finish(true);
                });
            }
        });
        assert!(rendezvous.wait(Deadline::seconds(10)));
        assert_eq!(rendezvous.stray_connections(), 0);
    }
}

#[test]
fn contradictions_are_told_to_the_rank_that_makes_them() {
    let (_rendezvous, id) = serve(2);
    let deadline = Deadline::seconds(30);
    thread::scope(|scope| {
        let id = &id;
        let first = scope.spawn(move || TcpBootstrap::join(id, Rank(0), 2, deadline).map(|_| ()));
        thread::sleep(Duration::from_millis(200));
        let refused = |rank, size| match TcpBootstrap::join(id, Rank(rank), size, deadline) {
            Err(BootstrapError::Handshake { reason: HandshakeError::Refused(refusal), .. }) => refusal,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(1, 3), Refusal::Size { accepted: 2, claimed: 3 });
        assert_eq!(refused(0, 2), Refusal::Duplicate { rank: Rank(0) });
        assert!(matches!(TcpBootstrap::join(id, Rank(2), 2, deadline), Err(BootstrapError::World { .. })));
        let second = TcpBootstrap::join(id, Rank(1), 2, deadline);
        assert!(first.join().unwrap().is_ok());
        assert!(second.is_ok());
    });
}

#[test]
fn absent_ranks_are_named_to_all_who_came() {
    let (_rendezvous, id) = serve(5);
    let start = Instant::now();
    thread::scope(|scope| {
        for rank in [0, 2, 3] {
            let id = &id;
            scope.spawn(move || {
                let deadline = Deadline::after(Duration::from_millis(600));
                let text = TcpBootstrap::join(id, Rank(rank), 5, deadline).unwrap_err().to_string();
                assert!(text.contains("ranks 1 and 4"), "{text}");
            });
        }
    });
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_deadline_of_the_rendezvous_names_absent_ranks_too() {
    let deadline = Deadline::after(Duration::from_millis(300));
    let (_rendezvous, id) = Rendezvous::serve("127.0.0.1:0".parse().unwrap(), 2, deadline).unwrap();
    let text = TcpBootstrap::join(&id, Rank(0), 2, Deadline::seconds(30)).unwrap_err().to_string();
    assert!(text.contains("rank 1") && text.contains("absent"), "{text}");
}

#[test]
fn a_rendezvous_that_ends_is_named() {
    let (rendezvous, id) = serve(2);
    thread::scope(|scope| {
        let joining = scope.spawn(|| TcpBootstrap::join(&id, Rank(0), 2, Deadline::seconds(30)).map(|_| ()));
        thread::sleep(Duration::from_millis(200));
        drop(rendezvous);
        let text = joining.join().unwrap().unwrap_err().to_string();
        assert!(text.contains("rendezvous") && text.contains("ended"), "{text}");
    });
}

#[test]
fn another_jobs_key_does_not_join() {
    let (rendezvous, id) = serve(1);
    let forged = UniqueId::new(id.addresses().to_vec(), JobKey::generate().unwrap());
    let refused = TcpBootstrap::join(&forged, Rank(0), 1, Deadline::seconds(30));
    let wrong_key = matches!(refused, Err(BootstrapError::Handshake { reason: HandshakeError::WrongKey, .. }));
    assert!(wrong_key, "{refused:?}");
    assert!(TcpBootstrap::join(&id, Rank(0), 1, Deadline::seconds(30)).is_ok());
    assert_eq!(rendezvous.stray_connections(), 1);
}

#[test]
fn a_job_of_no_ranks_is_refused() {
    let refused = Rendezvous::serve("127.0.0.1:0".parse().unwrap(), 0, Deadline::seconds(1));
    assert!(matches!(refused, Err(BootstrapError::World { .. })));
}
