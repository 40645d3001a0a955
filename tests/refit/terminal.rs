//! A refit that a person watches. In: a pseudo-terminal. Out: nothing. Guarantee: the progress bar comes and goes
//! without harm to what is printed; under the launcher progress comes in whole lines.

use crate::job::{CROSSMESH, Job, clean_command, in_repository, read_json};
use crate::process;
use std::process::Command;
use std::time::Duration;

/// What is written to a terminal by `line`, a command; `None` where no terminal can be made.
fn on_a_terminal(line: &str) -> Option<process::Finished> {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("not run: script, which makes a terminal, is missing (package bsdutils)");
        return None;
    }
    let arguments = ["-q", "-e", "-c", line, "/dev/null"].map(String::from);
    let term = [("TERM".to_string(), "xterm".to_string())];
    let ended = process::run(&mut clean_command("script", &arguments, &term), Duration::from_secs(100)).unwrap();
    Some(ended.expect_success())
}

#[test]
fn the_bar_leaves_the_table_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let line = format!(
        "{CROSSMESH} refit {} --src tp=1 --dst tp=1 --src-ranks 0 --dst-ranks 0 --repeat 1000 --verify --json {}",
        in_repository("slurm/small.model.json").display(),
        json.display()
    );
    let Some(ended) = on_a_terminal(&line) else { return };
    assert!(ended.output.contains("chunks of this rank"), "the bar was never shown: {ended:#?}");
    // What is seen of a line is what follows its last return to the left.
    let seen: Vec<&str> = ended
        .output
        .lines()
        .map(|line| line.trim_end_matches('\r').rsplit(['\r', 'K']).next().unwrap_or_default())
        .collect();
    assert!(seen.iter().any(|line| line.ends_with("every byte and digest")), "{ended:#?}");
    let row = |name: &str| seen.iter().any(|line| line.trim_start_matches("\u{1b}[2").starts_with(name));
    assert!(row("tensors               39") && row("bytes                 7975936"), "{ended:#?}");
    assert_eq!(read_json(&json)["repeat"], 1000);
}

#[test]
fn under_the_launcher_rank_0_tells_how_far_it_is() {
    // Long enough for a line, also on a fast machine.
    let job = Job::new(2, &in_repository("slurm/small.model.json")).with("--src tp=1 --dst tp=1 --repeat 5000");
    let Some(ended) = on_a_terminal(&job.words().join(" ")) else { return };
    let told: Vec<_> = ended.output.lines().filter(|line| line.contains("moving")).collect();
    assert!(!told.is_empty(), "{ended:#?}");
    let whole =
        |line: &str| line.starts_with("[0 ") && line.contains(" % of the chunks of rank 0, ") && line.ends_with(" s");
    assert!(told.iter().all(|line| whole(line.trim_end())), "{told:?}");
}
