//! What programs find in their environment, and what nobody finds anywhere.

use crate::job::{Job, crossmesh, finish, shell_ranks, starters};
use std::io::Write;
use std::net::TcpStream;

#[test]
fn ranks_know_their_place() {
    let script = "echo $CROSSMESH_RANK $CROSSMESH_SIZE $CROSSMESH_ROLE $CROSSMESH_ROLES $CROSSMESH_DOMAINS; \
                  env | grep -c -E '^CROSSMESH_LAUNCHER(_KEY)?='; test -n \"$CROSSMESH_UNIQUE_ID\" && echo has an id";
    for starter in starters() {
        let options = ["--role", "trainer=2", "--role", "generator=1", "--domains", "3"];
        let mut command = shell_ranks(starter, &options, script);
        // Of an outer job: not for these ranks.
        command.env("CROSSMESH_RANK", "77").env("CROSSMESH_ROLE", "outer");
        let job = finish(command);
        assert_eq!(job.code, Some(0), "{starter}: {}", job.error);
        for (rank, role) in [(0, "trainer"), (1, "trainer"), (2, "generator")] {
            let place = format!("{rank} 3 {role} trainer=2,generator=1 3");
            assert_eq!(job.lines_of(rank), [&place, "0", "has an id"], "{starter}");
            assert!(job.output.contains(&format!("[{role}:{rank} ")), "{starter}");
        }
    }
}

#[test]
fn settings_of_the_caller_reach_every_rank() {
    for starter in starters() {
        let mut command = shell_ranks(starter, &["-n", "2"], "echo $CROSSMESH_CHUNK");
        command.env("CROSSMESH_CHUNK", "2MiB");
        let job = finish(command);
        assert_eq!((job.lines_of(0), job.lines_of(1)), (vec!["2MiB"], vec!["2MiB"]), "{starter}: {}", job.error);
    }
}

#[test]
fn the_key_is_in_no_command_line_and_strangers_are_dropped() {
    let script = r#"tr '\0' '\n' < /proc/$PPID/environ | sed -n 's/^CROSSMESH_LAUNCHER_KEY=\(.*\)/\1 is the key/p
        s/^CROSSMESH_LAUNCHER=\(.*\)/\1 is the address/p'
        trap "exit 0" USR1
        echo ready
        while :; do sleep 0.05; done"#;
    for starter in starters() {
        let mut job = Job::start(shell_ranks(starter, &["-n", "2"], script));
        job.wait_for(2, "ready");
        let word = |line: &String| line.split(' ').nth(2).unwrap().to_string();
        let key = word(&job.wait_for(2, " is the key")[0]);
        let address = word(&job.wait_for(2, " is the address")[0]);
        assert_eq!(key.len(), 64, "{starter}");
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            assert!(!String::from_utf8_lossy(&line).contains(&key), "{starter}: {}", String::from_utf8_lossy(&line));
        }
        let mut stranger = TcpStream::connect(&address).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let _silent = TcpStream::connect(&address).unwrap();
        job.signal(nix::sys::signal::Signal::SIGUSR1);
        let job = job.finish();
        assert_eq!(job.code, Some(0), "{starter}: {}", job.error);
        assert!(!job.error.contains(&key), "{starter}");
    }
}

#[test]
fn a_dry_run_shows_all_but_secrets() {
    for starter in starters() {
        let mut command = crossmesh();
        command.args(["run", "--starter", starter, "--role", "a=2", "--role", "b=2", "--domains", "2", "--dry-run"]);
        command.args(["--", "/no/such/program", "two words"]).env("CROSSMESH_UNIQUE_ID", "secret-of-an-outer-job");
        let job = finish(command);
        assert_eq!((job.code, job.error.as_str()), (Some(0), ""), "{starter}");
        let lines: Vec<_> = job.output.lines().collect();
        assert!(lines[0].starts_with(&format!("starter: {starter}")), "{lines:?}");
        assert!(
            lines[1].starts_with("command: ") && lines[1].ends_with("-- /no/such/program 'two words'"),
            "{lines:?}"
        );
        assert!(lines[2].contains("CROSSMESH_LAUNCHER_KEY") && !job.output.contains("secret"), "{lines:?}");
        let longest_hex = job.output.split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max();
        assert!(longest_hex < Some(32), "{starter}: {}", job.output);
        let rows: Vec<Vec<_>> = lines[3..].iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows,
            [["rank", "role", "domain"], ["0", "a", "0"], ["1", "a", "0"], ["2", "b", "1"], ["3", "b", "1"]]
        );
    }
}

#[test]
fn the_table_of_variables_hides_keys() {
    for arguments in [&["env"][..], &["env", "--json"]] {
        let mut command = crossmesh();
        command.args(arguments).env("CROSSMESH_LAUNCHER_KEY", "0123456789").env("CROSSMESH_CHUNK", "3MiB");
        let shown = finish(command);
        assert_eq!((shown.code, shown.error.as_str()), (Some(0), ""));
        assert!(shown.output.contains("CROSSMESH_INIT_TIMEOUT") && shown.output.contains("3MiB"));
        assert!(!shown.output.contains("0123456789"));
    }
}

#[test]
fn values_that_cannot_be_used_are_told() {
    let of = |arguments: &[&str]| {
        let mut command = crossmesh();
        command.args(arguments).env("CROSSMESH_ROUTE", "falt").env("CROSSMESH_MAPPED", "staged");
        finish(command)
    };
    let shown = of(&["env"]);
    assert_eq!((shown.code, shown.output.matches("    wrong: ").count()), (Some(0), 1), "{}", shown.output);
    assert!(shown.output.contains("CROSSMESH_ROUTE = falt\n    wrong: CROSSMESH_ROUTE="), "{}", shown.output);
    let found = of(&["doctor"]);
    assert_eq!(found.code, Some(2), "{}", found.output);
    assert!(found.output.contains("CROSSMESH_ROUTE=VALUE") && found.output.contains("falt"), "{}", found.output);
}

#[test]
fn programs_start_with_no_signal_blocked() {
    for starter in starters() {
        let job = finish(shell_ranks(starter, &["-n", "2"], "grep SigBlk /proc/self/status"));
        for rank in 0..2 {
            assert_eq!(job.lines_of(rank), ["SigBlk:\t0000000000000000"], "{starter}: {}", job.error);
        }
    }
}
