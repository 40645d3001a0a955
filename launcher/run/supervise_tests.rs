//! Courses of jobs, as tables of events and the actions they must cause.

use super::*;
use nix::libc::{SIGKILL, SIGUSR1};

const LIMITS: Limits =
    Limits { init: Duration::from_secs(120), grace: Duration::from_secs(10), timeout: Some(Duration::from_secs(1000)) };

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn ended(rank: u32, ending: Ending, milliseconds: u64) -> Event {
    Event::Ended { rank, ending, at: at(milliseconds) }
}

/// A job of `size` ranks that all joined at 1 ms.
fn running(size: u32) -> Supervisor {
    let mut supervisor = Supervisor::new(size, LIMITS);
    let actions: Vec<_> = (0..size).flat_map(|rank| supervisor.handle(Event::Joined(rank), at(1))).collect();
    assert_eq!(actions, [Action::Start]);
    supervisor
}

/// Feeds events at their times; the actions with the times at which they were taken.
fn course(supervisor: &mut Supervisor, events: &[(u64, Event)]) -> Vec<(u64, Action)> {
    let mut taken = Vec::new();
    let mut events = events.iter().peekable();
    while !supervisor.is_over() {
        let due = supervisor.next_deadline();
        match events.next_if(|(time, _)| due.is_none_or(|due| at(*time) <= due)) {
            Some((time, event)) => {
                taken.extend(supervisor.handle(event.clone(), at(*time)).into_iter().map(|action| (*time, action)));
            }
            None => {
                let due = due.expect("a job that is not over has events or a deadline");
                taken.extend(supervisor.tick(due).into_iter().map(|action| (due.as_millis() as u64, action)));
            }
        }
    }
    assert_eq!(events.next(), None, "over before the last event");
    taken
}

#[test]
fn success_takes_no_action() {
    let mut supervisor = running(2);
    let events = [
        (50, ended(0, Ending::Exited(0), 50)),
        (51, Event::Drained(0)),
        (90_000, ended(1, Ending::Exited(0), 90_000)),
        (90_001, Event::Drained(1)),
    ];
    assert_eq!(course(&mut supervisor, &events), []);
    assert_eq!(supervisor.record().cause, None);
}

#[test]
fn the_first_failure_is_first_by_time_not_by_arrival() {
    let mut supervisor = running(3);
    let events = [
        (100, ended(2, Ending::Exited(1), 99)),
        (101, ended(1, Ending::Signaled(SIGKILL), 95)),
        (102, ended(0, Ending::Exited(1), 101)),
        (103, Event::Drained(0)),
        (103, Event::Drained(1)),
        (103, Event::Drained(2)),
    ];
    assert_eq!(course(&mut supervisor, &events), []);
    let (rank, end) = supervisor.record().first_failure().unwrap();
    assert_eq!((rank, end.ending), (1, Ending::Signaled(SIGKILL)));
    assert_eq!(supervisor.record().cause, Some(Cause::RankFailed));
}

#[test]
fn a_struck_rank_goes_before_one_that_gave_up_earlier() {
    let first = |endings: [(Ending, u64); 3], signal: Option<i32>| {
        let mut supervisor = running(3);
        let mut events: Vec<_> = signal.map(|signal| (50, Event::Signal(signal))).into_iter().collect();
        events.extend((0u32..).zip(endings).map(|(rank, (ending, time))| (time, ended(rank, ending, time))));
        events.extend((0..3).map(|rank| (500, Event::Drained(rank))));
        course(&mut supervisor, &events);
        assert_eq!(supervisor.record().failed_at(), Some(at(100)));
        supervisor.record().first_failure().unwrap().0
    };
    let exited = |time| (Ending::Exited(1), time);
    for (signal, sent, rank) in [
        (SIGKILL, None, 2),
        (SIGTERM, None, 2),
        (SIGUSR1, None, 2),
        // The launcher passed it on; or what a rank does to itself when another has gone.
        (SIGUSR1, Some(SIGUSR1), 0),
        (SIGABRT, None, 0),
        (SIGPIPE, None, 0),
    ] {
        assert_eq!(first([exited(100), exited(101), (Ending::Signaled(signal), 300)], sent), rank, "{signal}");
    }
    let struck = (Ending::Signaled(SIGKILL), 200);
    assert_eq!(first([exited(100), struck, struck], None), 1);
}

#[test]
fn a_signal_after_the_grace_time_is_the_launchers() {
    let mut supervisor = running(2);
    let events = [
        (100, ended(0, Ending::Exited(7), 100)),
        (101, Event::Drained(0)),
        (10_200, ended(1, Ending::Signaled(SIGKILL), 10_150)),
        (10_201, Event::Drained(1)),
    ];
    assert_eq!(course(&mut supervisor, &events), [(10_100, Action::Terminate)]);
    assert_eq!(supervisor.record().first_failure().unwrap().0, 0);
}

#[test]
fn survivors_get_the_grace_then_the_end_request_then_the_kill() {
    let mut supervisor = running(3);
    let events = [
        (100, ended(0, Ending::Exited(7), 100)),
        (101, Event::Drained(0)),
        (11_000, ended(1, Ending::Signaled(SIGTERM), 11_000)),
        (11_001, Event::Drained(1)),
        (12_300, ended(2, Ending::Signaled(SIGKILL), 12_300)),
        (12_301, Event::Drained(2)),
    ];
    assert_eq!(course(&mut supervisor, &events), [(10_100, Action::Terminate), (12_100, Action::Kill)]);
    let by_launcher: Vec<_> = supervisor.record().ends.iter().map(|end| end.unwrap().by_launcher).collect();
    assert_eq!(by_launcher, [false, true, true]);
}

#[test]
fn a_killed_rank_that_never_answers_does_not_keep_the_job() {
    let mut supervisor = running(2);
    let events = [(100, ended(0, Ending::Exited(7), 100)), (101, Event::Drained(0))];
    assert_eq!(course(&mut supervisor, &events), [(10_100, Action::Terminate), (12_100, Action::Kill)]);
    assert_eq!(supervisor.record().ends[1], None);
}

#[test]
fn a_lost_agent_is_a_failure() {
    let mut supervisor = running(2);
    let events =
        [(500, Event::Disconnected(1)), (700, ended(0, Ending::Exited(1), 700)), (701, Event::Disconnected(0))];
    assert_eq!(course(&mut supervisor, &events), []);
    assert_eq!(supervisor.record().first_failure().unwrap().1.ending, Ending::Lost);
    // Its end was reported before the connection went: that is what counts.
    assert_eq!(supervisor.record().ends[0].unwrap().ending, Ending::Exited(1));
}

#[test]
fn the_time_limit_ends_all() {
    let mut supervisor = running(2);
    let events = [
        (100, ended(0, Ending::Exited(0), 100)),
        (101, Event::Drained(0)),
        (1_000_100, ended(1, Ending::Signaled(SIGTERM), 1_000_100)),
        (1_000_101, Event::Drained(1)),
    ];
    assert_eq!(course(&mut supervisor, &events), [(1_000_000, Action::Terminate)]);
    assert_eq!(supervisor.record().cause, Some(Cause::TimedOut { running: vec![1] }));
}

#[test]
fn interrupts_are_forwarded_and_the_second_kills() {
    let mut supervisor = running(1);
    let killed = [(300, ended(0, Ending::Signaled(SIGKILL), 300)), (301, Event::Drained(0))];
    let mut events = vec![(50, Event::Signal(SIGUSR1)), (100, Event::Signal(SIGINT)), (200, Event::Signal(SIGINT))];
    events.extend(killed);
    let actions = course(&mut supervisor, &events);
    let (usr1, int) = (Action::Forward(SIGUSR1), Action::Forward(SIGINT));
    assert_eq!(actions, [(50, usr1), (100, int), (200, int), (200, Action::Kill)]);
    assert_eq!(supervisor.record().cause, Some(Cause::Interrupted(SIGINT)));

    let mut supervisor = running(1);
    let actions = course(&mut supervisor, &[(100, Event::Signal(SIGTERM))]);
    let term = Action::Forward(SIGTERM);
    assert_eq!(actions, [(100, term), (10_100, Action::Terminate), (12_100, Action::Kill)]);
}

#[test]
fn before_the_start() {
    let starter = || Event::StarterEnded { how: "exit code 1".into(), code: 1 };
    let table: [(&[(u64, Event)], Cause); 5] = [
        (&[(1, Event::Joined(1))], Cause::Absent(vec![0, 2])),
        (&[(1, Event::Joined(1)), (2, Event::Joined(0)), (3, Event::Disconnected(1))], Cause::Absent(vec![1, 2])),
        (&[(1, Event::Signal(SIGUSR1)), (5, Event::Signal(SIGINT))], Cause::Interrupted(SIGINT)),
        (&[(5, Event::Signal(SIGHUP))], Cause::Interrupted(SIGHUP)),
        (
            &[(1, Event::Joined(0)), (5, starter())],
            Cause::StarterEnded { how: "exit code 1".into(), code: 1, ranks: vec![1, 2], started: false },
        ),
    ];
    for (events, cause) in table {
        let mut supervisor = Supervisor::new(3, LIMITS);
        assert_eq!(course(&mut supervisor, events), []);
        assert_eq!(supervisor.record().cause, Some(cause));
        assert_eq!(supervisor.record().started, None);
    }
}

#[test]
fn a_starter_that_ends_early_ends_the_job() {
    let mut supervisor = running(2);
    let events = [
        (100, ended(0, Ending::Exited(0), 100)),
        (101, Event::Drained(0)),
        (200, Event::StarterEnded { how: "signal 9 (SIGKILL)".into(), code: 137 }),
        (210, Event::Disconnected(1)),
    ];
    assert_eq!(course(&mut supervisor, &events), []);
    let Some(Cause::StarterEnded { ranks, started: true, code: 137, .. }) = &supervisor.record().cause else {
        panic!("{:?}", supervisor.record());
    };
    assert_eq!(ranks, &[1]);
}
