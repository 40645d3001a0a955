//! A refit job. In: ranks, domains, arguments, environment. Out: how it ended, what every rank said, the results.
//! Guarantee: nothing of the caller's `CROSSMESH_` variables reaches the job.

use crate::process::{self, Finished};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longest job; generous, because a machine may run many tests at once.
const LIMIT: Duration = Duration::from_secs(60);

/// The command under test.
pub(crate) const CROSSMESH: &str = env!("CARGO_BIN_EXE_crossmesh");

/// A job that is about to start.
pub(crate) struct Job {
    ranks: Vec<String>,
    count: usize,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Job {
    /// A refit of `model` on `count` ranks.
    pub(crate) fn new(count: usize, model: &Path) -> Self {
        let ranks = vec!["-n".into(), count.to_string()];
        Self { ranks, count, arguments: vec![model.display().to_string()], environment: Vec::new() }
    }

    /// A refit of cases, `FILE` or `FILE#NAME`, on `count` ranks.
    pub(crate) fn of_case(count: usize, cases: &str) -> Self {
        let mut job = Self::new(count, Path::new("--case"));
        job.arguments.push(cases.into());
        job
    }

    /// Arguments of `crossmesh run`, such as `--domains 2`.
    pub(crate) fn run_with(mut self, text: &str) -> Self {
        self.ranks.extend(text.split_whitespace().map(String::from));
        self
    }

    /// Arguments of `crossmesh refit`, separated by blanks.
    pub(crate) fn with(mut self, text: &str) -> Self {
        self.arguments.extend(text.split_whitespace().map(String::from));
        self
    }

    /// An option with a path.
    pub(crate) fn path(mut self, option: &str, path: &Path) -> Self {
        self.arguments.extend([option.to_string(), path.display().to_string()]);
        self
    }

    /// `--rules` with a file of this text beside the model.
    pub(crate) fn rules(self, text: &str) -> Self {
        let file = Path::new(&self.arguments[0]).with_file_name("my.toml");
        std::fs::write(&file, text).unwrap();
        self.path("--rules", &file)
    }

    /// An environment variable of the job.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The whole command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let run = [CROSSMESH, "run", "--starter", "local"].map(String::from);
        let refit = ["--", CROSSMESH, "refit"].map(String::from);
        [&run, self.ranks.as_slice(), &refit, self.arguments.as_slice()].concat()
    }

    /// The whole command.
    pub(crate) fn command(&self) -> Command {
        let words = self.words();
        clean_command(&words[0], &words[1..], &self.environment)
    }

    /// Runs the job to its end.
    pub(crate) fn run(self) -> Ended {
        let finished = process::run(&mut self.command(), LIMIT).unwrap();
        Ended { finished, count: self.count }
    }

    /// Runs the job, which must succeed; its results.
    #[track_caller]
    pub(crate) fn results(self) -> Value {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        self.path("--json", &path).run().finished.expect_success();
        read_json(&path)
    }

    /// Runs the job with `--verify`, which must succeed; its results.
    #[track_caller]
    pub(crate) fn verified(self) -> Value {
        let results = self.with("--verify").results();
        assert_eq!(results["verified"], true, "{results:#}");
        results
    }

    /// Runs the job, which must be refused on every rank with exit code 2; rank 0's error must have all of `parts`.
    #[track_caller]
    pub(crate) fn refused(self, parts: &[&str]) {
        let ended = self.run();
        assert_eq!(ended.finished.code(), Some(2), "{ended:#?}");
        let errors = ended.errors();
        assert_eq!(errors.len(), ended.count, "every rank has an error: {ended:#?}");
        assert!(parts.iter().all(|part| errors[&0].contains(part)), "{parts:?} in {:?}", errors[&0]);
        assert!(!format!("{ended:?}").contains("panicked"), "{ended:#?}");
    }
}

/// A command in an environment without the caller's `CROSSMESH_` variables.
pub(crate) fn clean_command(program: &str, arguments: &[String], environment: &[(String, String)]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CROSSMESH_")) {
        command.env_remove(name);
    }
    command.envs(environment.iter().cloned());
    command
}

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) finished: Finished,
    count: usize,
}

impl Ended {
    /// The last error line of every rank that has one, without the launcher's prefix.
    pub(crate) fn errors(&self) -> BTreeMap<u32, String> {
        let rank_and_line = |line: &str| {
            let (rank, text) = line.strip_prefix('[')?.split_once("] ")?;
            let rank = rank.split_once(' ')?.0;
            let rank = rank.rsplit_once(':').map_or(rank, |(_, number)| number);
            Some((rank.parse().ok()?, text.strip_prefix("crossmesh: ")?.to_string()))
        };
        self.finished.errors.lines().filter_map(rank_and_line).collect()
    }

    /// Standard output without the launcher's prefixes.
    pub(crate) fn output(&self) -> String {
        let plain = |line: &str| line.split_once("] ").map_or_else(|| line.to_string(), |(_, text)| text.to_string());
        self.finished.output.lines().map(|line| plain(line) + "\n").collect()
    }
}

/// A JSON file.
#[track_caller]
pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Names in a folder, sorted.
pub(crate) fn entries(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

/// A path in the repository.
pub(crate) fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
