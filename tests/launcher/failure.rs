//! What happens when a rank fails, hangs, or never was.

use crate::job::{Job, finish, left_running, shell_ranks, starters};
use std::time::{Duration, Instant};

/// Survivors that wait for rank 2 to be about to fail, then take a moment to report.
fn survivors(directory: &std::path::Path, failure: &str) -> String {
    let flag = directory.join("flag");
    let flag = flag.display();
    format!(
        r#"echo working
        if [ $CROSSMESH_RANK = 2 ]; then
            sleep 0.1; : > {flag}; {failure}
        fi
        while [ ! -e {flag} ]; do sleep 0.02; done
        sleep 0.4; echo "peer is dead" >&2; exit 1"#
    )
}

#[test]
fn the_first_failure_is_named_and_gives_the_exit_code() {
    let failures = [("exit 7", 7, "exited with code 7"), ("kill -9 $$", 137, "ended with signal 9 (SIGKILL)")];
    for starter in starters() {
        for (failure, code, words) in failures {
            let directory = tempfile::tempdir().unwrap();
            let script = survivors(directory.path(), failure);
            let job = finish(shell_ranks(starter, &["--role", "trainer=2", "--role", "generator=2"], &script));
            assert_eq!(job.code, Some(code), "{starter}: {}", job.error);
            let report = job.report();
            assert_eq!(report.len(), 2, "{starter}: {}", job.error);
            assert!(report[0].starts_with("crossmesh run: rank 2 (generator) on host "), "{starter}: {report:?}");
            assert!(report[0].contains(words), "{starter}: {report:?}");
            assert!(job.error.contains("its last lines:\n    working\n"), "{starter}: {}", job.error);
            assert_eq!(report[1], "crossmesh run: others: 3 reported an error and exited 1", "{starter}");
        }
    }
}

#[test]
fn a_rank_that_ignores_the_end_request_is_killed_with_what_it_started() {
    let script = r#"trap "" TERM
        echo $$ is a pid
        if [ $CROSSMESH_RANK = 0 ]; then sleep 0.1; exit 3; fi
        sleep 1000 & echo $! is a pid
        while :; do sleep 1000; done"#;
    for starter in starters() {
        let mut job = Job::start(shell_ranks(starter, &["-n", "3", "--grace", "0.3"], script));
        let lines = job.wait_for(5, " is a pid");
        let job = job.finish();
        assert_eq!(job.code, Some(3), "{starter}: {}", job.error);
        let others = "crossmesh run: others: 2 ended by the launcher after the grace time of 0.3 s";
        assert_eq!(job.report().last(), Some(&others), "{starter}: {}", job.error);
        let pids: Vec<_> = lines.iter().map(|line| line.split(' ').nth(2).unwrap().to_string()).collect();
        assert_eq!(left_running(&pids, Duration::from_secs(5)), [""; 0], "{starter}");
    }
}

#[test]
fn the_time_limit_ends_the_job() {
    for starter in starters() {
        let began = Instant::now();
        let script = "if [ $CROSSMESH_RANK = 1 ]; then exit 0; fi; sleep 1000";
        let job = finish(shell_ranks(starter, &["-n", "3", "--timeout", "1.5"], script));
        assert_eq!(job.code, Some(124), "{starter}: {}", job.error);
        assert!(job.report()[0].ends_with("limit of 1.5 s (--timeout); still running: ranks 0, 2"), "{}", job.error);
        assert!(began.elapsed() < Duration::from_secs(20), "{starter}");
    }
}

#[test]
fn an_agent_that_dies_takes_its_program_along_and_fails_the_job() {
    for starter in starters() {
        let directory = tempfile::tempdir().unwrap();
        let pid_files = directory.path().display();
        let script = format!(
            r#"echo $$ > {pid_files}/$CROSSMESH_RANK
            while [ ! -e {pid_files}/0 ]; do sleep 0.02; done
            if [ $CROSSMESH_RANK = 1 ]; then kill -9 $PPID; sleep 1000; fi
            trap "exit 4" TERM
            while :; do sleep 0.05; done"#
        );
        let job = finish(shell_ranks(starter, &["-n", "2", "--grace", "0.2"], &script));
        let pid = |rank| std::fs::read_to_string(directory.path().join(rank)).unwrap().trim().to_string();
        let pids = [pid("0"), pid("1")];
        assert_eq!(job.code, Some(1), "{starter}: {}", job.error);
        assert!(job.report()[0].contains("rank 1 on host "), "{starter}: {}", job.error);
        assert!(job.report()[0].contains(" was lost after "), "{starter}: {}", job.error);
        assert_eq!(left_running(&pids, Duration::from_secs(5)), [""; 0], "{starter}");
    }
}

#[test]
fn a_missing_program_is_said() {
    for starter in starters() {
        let mut command = crate::job::crossmesh();
        command.args(["run", "--starter", starter, "-n", "2", "--", "/no/such/program", "argument"]);
        let job = finish(command);
        assert_eq!(job.code, Some(127), "{starter}: {}", job.error);
        let said = job.error.lines().filter(|line| line.contains("crossmesh: cannot start /no/such/program; ")).count();
        // Each rank says it, and the report repeats the first.
        assert_eq!(said, 3, "{starter}: {}", job.error);
    }
}
