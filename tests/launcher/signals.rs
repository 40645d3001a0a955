//! Signals to the launcher. In: jobs that are interrupted, stopped, or lose their launcher. Out: nothing. Guarantee:
//! ranks get the signal, and nothing is left running.

use crate::job::{Job, left_running, shell_ranks, starters};
use nix::sys::signal::Signal;
use std::time::Duration;

#[test]
fn signals_are_forwarded_once_to_every_rank() {
    let script = r#"trap "echo got USR1" USR1
        trap "echo got INT; exit 5" INT
        trap "echo got TERM; exit 0" TERM
        echo ready
        while :; do sleep 0.05; done"#;
    for starter in starters() {
        for (signal, name, code) in [(Signal::SIGINT, "INT", 130), (Signal::SIGTERM, "TERM", 143)] {
            let mut job = Job::start(shell_ranks(starter, &["-n", "3"], script));
            job.wait_for(3, "ready");
            job.signal(Signal::SIGUSR1);
            job.wait_for(3, "got USR1");
            job.signal(signal);
            let job = job.finish();
            assert_eq!(job.code, Some(code), "{starter}: {}", job.error);
            for rank in 0..3 {
                assert_eq!(job.lines_of(rank), ["ready", "got USR1", &format!("got {name}")], "{starter}");
            }
            assert!(job.report()[0].contains(&format!("stopped by signal {} (SIG{name})", signal as i32)));
        }
    }
}

#[test]
fn the_second_interrupt_kills() {
    let script = r#"trap "echo got INT" INT
        echo ready
        while :; do sleep 0.05; done"#;
    let mut job = Job::start(shell_ranks("local", &["-n", "2", "--grace", "1000"], script));
    job.wait_for(2, "ready");
    job.signal(Signal::SIGINT);
    job.wait_for(2, "got INT");
    job.signal(Signal::SIGINT);
    let job = job.finish();
    assert_eq!(job.code, Some(130), "{}", job.error);
}

#[test]
fn nothing_outlives_a_killed_launcher() {
    // The shell, a child of it, and the agent.
    let script = r#"sleep 1000 &
        echo $! $$ $PPID are pids
        wait"#;
    for starter in starters() {
        let mut job = Job::start(shell_ranks(starter, &["-n", "3"], script));
        let lines = job.wait_for(3, " are pids");
        job.signal(Signal::SIGKILL);
        let pids: Vec<_> = lines.iter().flat_map(|line| line.split(' ').skip(2).take(3).map(String::from)).collect();
        assert_eq!(pids.len(), 9);
        assert_eq!(left_running(&pids, Duration::from_secs(5)), [""; 0], "{starter}");
        assert_eq!(job.finish().code, Some(-(Signal::SIGKILL as i32)));
    }
}

#[test]
fn programs_that_ignore_the_end_request_do_not_outlive_a_killed_launcher() {
    let script = r#"trap "" TERM
        sleep 1000 &
        echo $! $$ $PPID are pids
        wait; sleep 1000"#;
    let mut job = Job::start(shell_ranks("local", &["-n", "2", "--grace", "0.3"], script));
    let lines = job.wait_for(2, " are pids");
    job.signal(Signal::SIGKILL);
    let pids: Vec<_> = lines.iter().flat_map(|line| line.split(' ').skip(2).take(3).map(String::from)).collect();
    assert_eq!(left_running(&pids, Duration::from_secs(5)), [""; 0]);
}
