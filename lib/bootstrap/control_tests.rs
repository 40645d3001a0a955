//! Ranks as threads of one process, joined through a rendezvous on loopback.

use super::super::tcp::{Rendezvous, TcpBootstrap};
use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

const SIZES: [u32; 6] = [1, 2, 3, 4, 7, 8];

fn limit() -> Deadline {
    Deadline::seconds(30)
}

fn cause(rank: Rank, message: &str) -> Cause {
    Cause { rank, host: format!("h{rank}"), phase: "test".into(), message: message.into() }
}

/// Runs `body` as each rank of a job of `size`; gives what each returned.
fn job<R: Send>(size: u32, body: impl Fn(Arc<Control>) -> R + Sync) -> Vec<R> {
    let (_rendezvous, id) = Rendezvous::serve("127.0.0.1:0".parse().unwrap(), size, limit()).unwrap();
    thread::scope(|scope| {
        let start = |rank: u32| {
            let (id, body) = (&id, &body);
            scope.spawn(move || {
                let mut bootstrap = TcpBootstrap::join(id, Rank(rank), size, limit()).unwrap();
                let control =
                    Control::connect_by(&mut bootstrap, &format!("h{rank}"), Some("127.0.0.1"), limit()).unwrap();
                Box::new(bootstrap).finish(true);
                body(control)
            })
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn everyone(control: &Control) -> Vec<Rank> {
    (0..control.size()).map(Rank).collect()
}

/// What `from` gives to `to`: `length` bytes, different for every pair and round.
fn string(from: Rank, to: Rank, round: u64, length: usize) -> Vec<u8> {
    let seed = u64::from(from.0) * 1_000_003 + u64::from(to.0) * 10_007 + round;
    (0..length as u64).map(|index| ((index ^ seed).wrapping_mul(0x9e37_79b9) >> 16) as u8).collect()
}

fn check_exchange(control: &Control, context: u64, members: &[Rank], round: u64, length: usize) {
    let outgoing: Vec<_> = members.iter().map(|&to| string(control.rank(), to, round, length)).collect();
    let incoming = control.exchange(context, members, &outgoing, limit()).unwrap();
    let expected: Vec<_> = members.iter().map(|&from| string(from, control.rank(), round, length)).collect();
    assert!(incoming == expected, "rank {} round {round} length {length}", control.rank());
}

#[test]
fn exchanges_of_all_sizes() {
    for size in SIZES {
        job(size, |control| {
            let members = everyone(&control);
            assert_eq!(control.host(Rank(size - 1)), format!("h{}", size - 1));
            for (round, length) in [0usize, 1, 4097, 1 << 20].into_iter().enumerate() {
                check_exchange(&control, 1, &members, round as u64, length);
                let mine = string(control.rank(), control.rank(), 99, length);
                let all = control.allgather(1, &members, &mine, limit()).unwrap();
                let expected: Vec<_> = members.iter().map(|&rank| string(rank, rank, 99, length)).collect();
                assert!(all == expected);
            }
            control.barrier(2, &members, limit()).unwrap();
            control.close(limit()).unwrap();
        });
    }
}

#[test]
fn contexts_and_subsets_are_independent() {
    job(7, |control| {
        let halves = if control.rank().0 % 2 == 0 { vec![6, 0, 2, 4] } else { vec![1, 3, 5] };
        let halves: Vec<Rank> = halves.into_iter().map(Rank).collect();
        let everyone = everyone(&control);
        thread::scope(|scope| {
            for context in 0..4 {
                let (control, members) = (&control, if context % 2 == 0 { &everyone } else { &halves });
                scope.spawn(move || {
                    (0..20).for_each(|round| {
                        check_exchange(control, context, members, round + 100 * context, 100 * round as usize);
                    });
                });
            }
        });
        control.close(limit()).unwrap();
    });
}

#[test]
fn barrier_waits_for_the_last() {
    let entered = Mutex::new(0);
    job(4, |control| {
        thread::sleep(Duration::from_millis(u64::from(control.rank().0) * 40));
        *entered.lock().unwrap() += 1;
        control.barrier(0, &everyone(&control), limit()).unwrap();
        assert_eq!(*entered.lock().unwrap(), 4);
        control.close(limit()).unwrap();
    });
}

#[test]
fn absent_members_are_named_at_the_deadline() {
    job(4, |control| {
        let members = everyone(&control);
        if control.rank() != Rank(2) {
            let start = Instant::now();
            let late = control.barrier(5, &members, Deadline::after(Duration::from_millis(400)));
            match late {
                Err(BootstrapError::Absent { absent, .. }) => assert_eq!(absent.named, [Rank(2)]),
                other => panic!("{other:?}"),
            }
            assert!(start.elapsed() < Duration::from_secs(3));
        }
        control.barrier(6, &members, limit()).unwrap();
        control.close(limit()).unwrap();
    });
}

#[test]
fn a_killed_rank_is_the_cause_for_all() {
    for (size, victim) in [(2, 1), (4, 2), (7, 6), (4, 0)] {
        let died = Mutex::new(None);
        let causes = job(size, |control| {
            let members = everyone(&control);
            control.barrier(0, &members, limit()).unwrap();
            if control.rank() == Rank(victim) {
                thread::sleep(Duration::from_millis(100));
                *died.lock().unwrap() = Some(Instant::now());
                drop(Arc::into_inner(control).unwrap());
                return None;
            }
            let ended = control.barrier(0, &members, limit()).unwrap_err();
            let noticed = died.lock().unwrap().unwrap().elapsed();
            assert!(noticed < Duration::from_secs(1), "{noticed:?}");
            let cause = control.abort_cause().unwrap();
            assert!(control.is_aborted());
            assert!(matches!(ended, BootstrapError::Aborted { cause: told } if told == cause));
            assert!(control.close(limit()).is_err());
            Some(cause)
        });
        let causes: Vec<_> = causes.into_iter().flatten().collect();
        assert_eq!(causes.len(), size as usize - 1);
        for cause in &causes {
            assert_eq!((cause.rank, &cause.message[..4]), (Rank(victim), "died"), "{cause}");
            assert_eq!(cause, &causes[0]);
        }
    }
}

#[test]
fn of_two_aborts_one_holds_everywhere() {
    for _ in 0..5 {
        let together = Barrier::new(4);
        let causes = job(4, |control| {
            together.wait();
            let rank = control.rank();
            match rank.0 {
                1 | 3 => control.abort(cause(rank, "failed")),
                _ => control.settle(cause(rank, "lost a peer"), Duration::from_secs(20)),
            }
        });
        assert!(causes[0].rank == Rank(1) || causes[0].rank == Rank(3));
        assert!(causes.iter().all(|cause| *cause == causes[0]), "{causes:?}");
    }
}

#[test]
fn an_abort_sets_off_an_alarm_given_before_or_after() {
    let alarms = job(3, |control| {
        let rung = Arc::new(AtomicU32::new(0));
        let alarm = rung.clone();
        let alarm = Box::new(move || {
            alarm.fetch_add(1, Ordering::SeqCst);
        });
        let (soon, late) = (limit(), control.rank() == Rank(2));
        let mut alarm = Some(alarm);
        if !late {
            alarm.take().into_iter().for_each(|alarm| control.on_abort(alarm));
        }
        control.barrier(0, &everyone(&control), soon).unwrap();
        if control.rank() == Rank(1) {
            control.abort(cause(Rank(1), "stopped"));
        }
        while !control.is_aborted() || !late && rung.load(Ordering::SeqCst) == 0 {
            assert!(!soon.expired(), "no abort, or no alarm");
            thread::sleep(Duration::from_millis(1));
        }
        if late {
            assert_eq!(rung.load(Ordering::SeqCst), 0, "nobody had it");
            alarm.take().into_iter().for_each(|alarm| control.on_abort(alarm));
        }
        rung.load(Ordering::SeqCst)
    });
    assert!(alarms.iter().all(|&rung| rung >= 1), "{alarms:?}");
}

#[test]
fn settle_without_a_verdict_makes_the_local_cause_hold() {
    let causes = job(3, |control| match control.rank() {
        Rank(2) => control.settle(cause(Rank(2), "lost a peer"), Duration::from_millis(50)),
        rank => control.settle(cause(rank, "unused"), Duration::from_secs(20)),
    });
    assert!(causes.iter().all(|held| **held == cause(Rank(2), "lost a peer")), "{causes:?}");
}

#[test]
fn a_rank_that_left_is_named() {
    let left_for_good = Barrier::new(3);
    job(3, |control| {
        let members = everyone(&control);
        if control.rank() == Rank(1) {
            let late = control.close(Deadline::after(Duration::from_millis(300)));
            assert!(matches!(late, Err(BootstrapError::Absent { absent, .. }) if absent.total == 2));
            left_for_good.wait();
            return;
        }
        let left = control.barrier(0, &members, limit());
        assert!(matches!(left, Err(BootstrapError::Left { rank: Rank(1), .. })), "{left:?}");
        left_for_good.wait();
        control.barrier(1, &[Rank(0), Rank(2)], limit()).unwrap();
        control.close(limit()).unwrap();
    });
}

#[test]
fn different_calls_are_an_error_that_names_both() {
    let causes = job(2, |control| {
        let members = everyone(&control);
        let ended = match control.rank() {
            Rank(0) => control.barrier(0, &members, limit()),
            _ => control.exchange(0, &members, &[vec![], vec![]], limit()).map(|_| ()),
        };
        assert!(matches!(ended, Err(BootstrapError::Aborted { .. })), "{ended:?}");
        control.abort_cause().unwrap()
    });
    assert_eq!(causes[0], causes[1]);
    assert!(causes[0].to_string().contains("rank 0") && causes[0].to_string().contains("rank 1"), "{}", causes[0]);
}

#[test]
fn impossible_arguments_are_refused_here() {
    job(2, |control| {
        for members in [&[][..], &[Rank(7)], &[Rank(0), Rank(1), Rank(1)], &[Rank(0), Rank(1), Rank(2)]] {
            let refused = control.barrier(0, members, limit());
            assert!(matches!(refused, Err(BootstrapError::Members { .. })), "{members:?}");
        }
        assert!(control.barrier(RESERVED, &everyone(&control), limit()).is_err());
        assert!(control.exchange(0, &everyone(&control), &[vec![]], limit()).is_err());
        control.close(limit()).unwrap();
        assert!(matches!(control.barrier(0, &everyone(&control), limit()), Err(BootstrapError::Closed)));
    });
}

#[test]
fn strays_are_dropped_and_counted() {
    let key = JobKey::generate().unwrap();
    let (near, hub, id) = open_hub("h0", 2, Some("127.0.0.1")).unwrap();
    let (key, wrong) = (id.key(), key);
    let address = id.addresses()[0];
    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(&[b'x'; 300]).unwrap();
    let silent = TcpStream::connect(address).unwrap();
    let forger = TcpStream::connect(address).unwrap();
    let party = Party { key: &wrong, purpose: PURPOSE, rank: Rank(1), size: 2 };
    assert!(party.dial(&forger, HUB, limit()).is_err());
    drop(forger);
    assert!(!matches!(garbage.read(&mut [0; 8]), Ok(1..)));
    // The silent one still holds its place; the job goes on beside it.
    let ended = cause(HUB, "died");
    thread::scope(|scope| {
        scope.spawn(|| {
            let member = Member::start(HUB, 2, near, ended.clone()).unwrap();
            member.meet("h0", limit()).unwrap();
            member.close(limit()).unwrap();
        });
        let party = Party { key, purpose: PURPOSE, rank: Rank(1), size: 2 };
        let destination = Destination { addresses: id.addresses(), peer: HUB, meant: "rank 0" };
        let stream = control_stream(dial(destination, party, limit()).unwrap()).unwrap();
        let member = Member::start(Rank(1), 2, stream, ended.clone()).unwrap();
        assert_eq!(member.meet("h1", limit()).unwrap(), ["h0", "h1"]);
        member.close(limit()).unwrap();
    });
    assert_eq!(hub.strays(), 2);
    drop(silent);
}

#[test]
fn a_slow_rank_does_not_hold_up_the_others() {
    job(3, |control| {
        let mine = vec![control.rank().0 as u8; 8 << 20];
        if control.rank() == Rank(2) {
            thread::sleep(Duration::from_millis(200));
        }
        let pair = [Rank(0), Rank(1)];
        if control.rank() != Rank(2) {
            control.allgather(9, &pair, &mine, limit()).unwrap();
        }
        let all = control.allgather(1, &everyone(&control), &mine, limit()).unwrap();
        assert!(all.iter().enumerate().all(|(rank, bytes)| bytes.len() == 8 << 20 && bytes[0] == rank as u8));
        control.close(limit()).unwrap();
    });
}
