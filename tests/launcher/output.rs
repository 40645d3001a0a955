//! What ranks print. In: shells that write much, long lines, or nothing. Out: nothing. Guarantee: lines come whole, in
//! order and marked, whatever their number and length and whoever reads them.

use crate::job::{Job, finish, shell_ranks, split, starters};
use std::io::{BufRead, BufReader};

#[test]
fn lines_of_many_ranks_stay_whole() {
    let padding = "x".repeat(300);
    let script = format!(
        r#"i=0
        while [ $i -lt 2000 ]; do
            echo "rank $CROSSMESH_RANK line $i {padding}"
            i=$((i+1))
        done
        echo "error of rank $CROSSMESH_RANK" >&2
        printf "no newline""#
    );
    for starter in starters() {
        let job = finish(shell_ranks(starter, &["-n", "8"], &script));
        assert_eq!(job.code, Some(0), "{starter}: {}", job.error);
        assert_eq!(job.output.lines().count(), 8 * 2001, "{starter}");
        for rank in 0..8 {
            let mut expected: Vec<_> = (0..2000).map(|line| format!("rank {rank} line {line} {padding}")).collect();
            expected.push("no newline".to_string());
            assert_eq!(job.lines_of(rank), expected, "{starter}");
        }
        let mut errors: Vec<_> = job.error.lines().filter_map(split).collect();
        errors.sort_unstable();
        let expected: Vec<_> = (0..8).map(|rank| (rank, format!("error of rank {rank}"))).collect();
        assert_eq!(errors.len(), expected.len(), "{starter}: {}", job.error);
        assert!(errors.iter().zip(&expected).all(|(seen, wanted)| seen.0 == wanted.0 && seen.1 == wanted.1));
    }
}

#[test]
fn very_long_lines_come_in_pieces_and_nothing_is_lost() {
    // 100,000 digits without a newline, then a line.
    let script = r#"printf "%0100000d" 7; echo; echo end"#;
    let job = finish(shell_ranks("local", &["-n", "2"], script));
    assert_eq!(job.code, Some(0), "{}", job.error);
    for rank in 0..2 {
        let lines = job.lines_of(rank);
        assert_eq!(lines.last(), Some(&"end"));
        let digits = lines[..lines.len() - 1].concat();
        assert_eq!(digits, "0".repeat(99_999) + "7");
        assert!(lines.iter().all(|line| line.len() <= 16 * 1024));
    }
}

#[test]
fn a_reader_that_closes_early_does_not_end_the_job() {
    for starter in starters() {
        let directory = tempfile::tempdir().unwrap();
        let done = directory.path().display();
        let script =
            format!("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done; : > {done}/done-$CROSSMESH_RANK");
        let (job, output) = Job::start_unread(shell_ranks(starter, &["-n", "3"], &script));
        let mut first = String::new();
        BufReader::new(output).read_line(&mut first).unwrap();
        assert!(split(first.trim_end()).is_some());
        let job = job.finish();
        assert_eq!(job.code, Some(0), "{starter}: {}", job.error);
        let said = job.error.lines().filter(|line| line.contains("standard output was closed")).count();
        assert_eq!(said, 1, "{starter}: {}", job.error);
        for rank in 0..3 {
            assert!(directory.path().join(format!("done-{rank}")).exists(), "{starter}: rank {rank} did not end");
        }
    }
}

#[test]
fn each_rank_has_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let logs = directory.path().join("logs");
    let options = ["-n", "2", "--log-dir", logs.to_str().unwrap()];
    let job = finish(shell_ranks("local", &options, "echo out $CROSSMESH_RANK; echo err $CROSSMESH_RANK >&2"));
    assert_eq!(job.code, Some(0), "{}", job.error);
    for rank in 0..2 {
        for (ending, word) in [("out", "out"), ("err", "err")] {
            let text = std::fs::read_to_string(logs.join(format!("rank-{rank}.{ending}"))).unwrap();
            assert_eq!(text, format!("{word} {rank}\n"));
        }
    }
}

#[test]
fn lines_come_as_they_are_when_asked_for() {
    let job = finish(shell_ranks("local", &["-n", "2", "--prefix", "never"], "echo '[a]'; echo b >&2"));
    assert_eq!((job.code, job.output.as_str(), job.error.as_str()), (Some(0), "[a]\n[a]", "b\nb\n"));
}
