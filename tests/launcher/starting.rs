//! Arguments that cannot be, starters that fail, ranks that do not come.
//!
//! The failing starters are scripts that say they are Open MPI, so that these tests need none.

use crate::job::{crossmesh, finish, left_running, shell_ranks};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// `crossmesh run` of three ranks over an mpirun that does `script`.
fn over_fake_mpirun(directory: &Path, script: &str) -> Command {
    let path = directory.join("mpirun");
    let text = format!("#!/bin/sh\nif [ \"$1\" = --version ]; then echo 'mpirun (Open MPI) 4'; exit; fi\n{script}\n");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = shell_ranks("openmpi", &["-n", "3"], "exit 0");
    let inherited = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{inherited}", directory.display()));
    command
}

#[test]
fn a_starter_that_refuses_is_reported_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let script = "grep SigBlk /proc/self/status; echo 'not enough slots' >&2; exit 213";
    let job = finish(over_fake_mpirun(directory.path(), script));
    assert_eq!(job.code, Some(213));
    assert_eq!(
        job.error,
        "crossmesh run: Open MPI's mpirun ended with exit code 213 before ranks 0-2 had started; \
         last lines of Open MPI's mpirun:\n    SigBlk:\t0000000000000000\n    not enough slots\n"
    );
}

#[test]
fn ranks_that_do_not_come_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let pid = directory.path().join("pid");
    let script = format!("echo $$ > {}; echo 'waiting for n7'; exec sleep 1000", pid.display());
    let mut command = over_fake_mpirun(directory.path(), &script);
    command.env("CROSSMESH_INIT_TIMEOUT", "1");
    let job = finish(command);
    assert_eq!(job.code, Some(1));
    assert_eq!(
        job.error,
        "crossmesh run: ranks 0-2 did not start within 1 s (CROSSMESH_INIT_TIMEOUT); \
         last lines of Open MPI's mpirun:\n    waiting for n7\n"
    );
    let starter = fs::read_to_string(pid).unwrap().trim().to_string();
    assert_eq!(left_running(&[starter], Duration::from_secs(5)), [""; 0]);
}

#[test]
fn one_absent_rank_is_named_and_the_others_are_let_go() {
    let directory = tempfile::tempdir().unwrap();
    let script = r#"while [ "$1" != -x ]; do shift; done
        while [ "$1" = -x ]; do shift 2; done
        OMPI_COMM_WORLD_RANK=2 "$@" &
        OMPI_COMM_WORLD_RANK=0 "$@" &
        wait"#;
    let mut command = over_fake_mpirun(directory.path(), script);
    command.env("CROSSMESH_INIT_TIMEOUT", "2");
    let job = finish(command);
    assert_eq!(job.code, Some(1));
    assert_eq!(
        job.error,
        "crossmesh run: rank 1 did not start within 2 s (CROSSMESH_INIT_TIMEOUT); Open MPI's mpirun printed nothing\n"
    );
}

#[test]
fn programs_may_begin_late() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../slurm/small.model.json");
    let refit = format!("exec {} refit {model} --src tp=1 --dst tp=1 --verify", env!("CARGO_BIN_EXE_crossmesh"));
    let mut command = shell_ranks("local", &["-n", "2"], &format!("sleep 5.5; {refit}"));
    command.env("CROSSMESH_INIT_TIMEOUT", "5");
    let job = finish(command);
    assert_eq!(job.code, Some(0), "{}", job.error);
}

#[test]
fn what_cannot_be_is_refused_with_two() {
    let table: [(&[&str], &str); 8] = [
        (&["run", "--starter", "local", "--", "true"], "the number of ranks is missing"),
        (&["run", "--starter", "local", "-n", "3", "--role", "a=2", "--", "true"], "disagree"),
        (&["run", "--starter", "local", "-n", "0", "--", "true"], "a job of 0 ranks"),
        (&["run", "--starter", "local", "-n", "2", "--domains", "3", "--", "true"], "--domains 3 cannot cut 2 ranks"),
        (&["run", "--starter", "local", "-n", "2", "--host", "a", "--", "true"], "--host needs a starter"),
        (&["run", "--starter", "openmpi", "-n", "2", "--starter-args", "'x", "--", "true"], "open quote"),
        (&["run", "--starter", "local", "-n", "2", "--role", "a=x", "--", "true"], "is no role"),
        (&["run", "--starter", "local", "-n", "2"], "PROGRAM"),
    ];
    for (arguments, words) in table {
        let mut command = crossmesh();
        command.args(arguments);
        let job = finish(command);
        assert_eq!(job.code, Some(2), "{arguments:?}: {}", job.error);
        assert!(job.error.contains(words), "{arguments:?}: {}", job.error);
    }
    let mut command = shell_ranks("local", &["-n", "1"], "true");
    command.env("CROSSMESH_INIT_TIMEOUT", "soon");
    let job = finish(command);
    assert_eq!(job.code, Some(2));
    assert!(job.error.contains("CROSSMESH_INIT_TIMEOUT=\"soon\" cannot be used"), "{}", job.error);
}

#[test]
fn an_option_that_does_not_exist_is_no_program() {
    let mut command = crossmesh();
    command.args(["run", "-n", "2", "--doman", "2", "--", "true"]);
    let job = finish(command);
    assert_eq!(job.code, Some(2), "{}", job.error);
    assert!(job.error.contains("--doman") && job.error.contains("--domains"), "{}", job.error);
    // A program's own options are its own, with and without two hyphens before it.
    for before in [&[][..], &["--"]] {
        let mut command = crossmesh();
        command.args(["run", "-n", "1", "--starter", "local"]).args(before).args(["sh", "-c", "exit 3"]);
        let job = finish(command);
        assert_eq!(job.code, Some(3), "{before:?}: {}", job.error);
    }
}

/// Rank 0 alone tries, and so its words are the only ones.
#[test]
fn a_table_that_cannot_be_written_is_known_before_anything_is_measured() {
    for arguments in ["tune --output", "bench limits --json", "bench idle --json", "bench crossover --svg"] {
        let mut command = crossmesh();
        command.args(["run", "-n", "2", "--starter", "local", "--grace", "0.3", "--", env!("CARGO_BIN_EXE_crossmesh")]);
        command.args(arguments.split(' ')).arg("/nonexistent/table.json");
        let job = finish(command);
        assert_eq!(job.code, Some(2), "{}", job.error);
        let option = arguments.split(' ').next_back().unwrap_or_default();
        let words = format!(
            "crossmesh: {option}: cannot write /nonexistent/table.json: No such file or directory (os error 2)"
        );
        let (told, report): (Vec<_>, Vec<_>) = job.error.lines().partition(|line| line.starts_with('['));
        assert!(told.len() == 1 && told[0].starts_with("[0 ") && told[0].ends_with(&format!("] {words}")), "{told:?}");
        assert!(report[0].starts_with("crossmesh run: rank 0 on host "), "{report:?}");
        assert!(report[0].contains(" exited with code 2 after "), "{report:?}");
        assert_eq!(
            report[1..],
            [
                format!("    {words}"),
                "crossmesh run: others: 1 ended by the launcher after the grace time of 0.3 s".to_string()
            ]
        );
    }
}
