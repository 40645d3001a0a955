//! A refit that a person watches. In: a pseudo-terminal. Out: nothing. Guarantee: the progress bar comes and goes
//! without harm to what is printed.

use crate::job::{CROSSMESH, clean_command, in_repository, read_json};
use crate::process;
use std::process::Command;
use std::time::Duration;

#[test]
fn the_bar_leaves_the_table_as_it_is() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("not run: script, which makes a terminal, is missing (package bsdutils)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let line = format!(
        "{CROSSMESH} refit {} --src tp=1 --dst tp=1 --src-ranks 0 --dst-ranks 0 --repeat 1000 --verify --json {}",
        in_repository("slurm/small.model.json").display(),
        json.display()
    );
    let arguments = ["-q", "-e", "-c", &line, "/dev/null"].map(String::from);
    let term = [("TERM".to_string(), "xterm".to_string())];
    let ended = process::run(&mut clean_command("script", &arguments, &term), Duration::from_secs(60)).unwrap();
    let ended = ended.expect_success();
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
