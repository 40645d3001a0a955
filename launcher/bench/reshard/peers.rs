//! Which programs crossmesh is compared with. In: a TOML file. Out: jobs with their commands and methods. Guarantee: a job
//! without a name, command or method is refused; an unknown key too.

use super::shape::Shape;
use crate::bench::error::BenchError;
use crate::plain_file;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Stands for the number of ranks in a command.
const RANKS: &str = "{ranks}";

/// A program that is started once for each shape and runs its methods when told to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerEntry {
    pub(super) name: String,
    command: Vec<String>,
    pub(super) methods: Vec<String>,
    /// Shapes that it takes part in; all when there are none.
    #[serde(default)]
    shapes: Vec<String>,
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerList {
    #[serde(default, rename = "job")]
    jobs: Vec<PeerEntry>,
}

impl PeerList {
    /// The list in a file; none for `none`.
    pub(super) fn read(path: &Path) -> Result<Self, BenchError> {
        if path.as_os_str() == "none" {
            return Ok(Self::default());
        }
        let text =
            plain_file::read_text(path).map_err(|source| BenchError::PeersFile { path: path.to_path_buf(), source })?;
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, BenchError> {
        let list: Self =
            toml::from_str(text).map_err(|source| BenchError::PeersText { path: path.to_path_buf(), source })?;
        for job in &list.jobs {
            let missing = match job {
                _ if job.name.is_empty() => "name",
                _ if job.command.is_empty() => "command",
                _ if job.methods.is_empty() => "methods",
                _ => continue,
            };
            return Err(BenchError::PeersIncomplete { path: path.to_path_buf(), job: job.name.clone(), what: missing });
        }
        Ok(list)
    }

    /// Those that take part in a shape.
    pub(super) fn of(&self, shape: &Shape) -> impl Iterator<Item = &PeerEntry> {
        let name = shape.name;
        self.jobs.iter().filter(move |job| job.shapes.is_empty() || job.shapes.iter().any(|listed| listed == name))
    }
}

impl PeerEntry {
    /// What to start: program and arguments.
    pub(super) fn command(&self, shape: &Shape) -> Vec<String> {
        let ranks = shape.ranks().to_string();
        let words = self.command.iter().map(|word| word.replace(RANKS, &ranks));
        words.chain([self.methods.join(",")]).chain(shape.words()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::reshard::shape::choose;

    #[test]
    fn jobs_of_a_shape() {
        let text = r#"
            [[job]]
            name = "tuned"
            command = ["mpirun", "-n", "{ranks}", "peers"]
            methods = ["alltoallw", "pull"]
            [[job]]
            name = "wide"
            command = ["x"]
            methods = ["pull"]
            shapes = ["single"]
            environment = { TUNABLE = "1" }
        "#;
        let list = PeerList::parse(text, Path::new("list")).unwrap();
        let shapes = choose("single,experts", 4, 4, None).unwrap();
        let names = |shape| list.of(shape).map(|job| job.name.as_str()).collect::<Vec<_>>();
        assert_eq!((names(&shapes[0]), names(&shapes[1])), (vec!["tuned", "wide"], vec!["tuned"]));
        let command = list.of(&shapes[1]).next().unwrap().command(&shapes[1]).join(" ");
        assert_eq!(command, "mpirun -n 8 peers alltoallw,pull 32 1024 4096 2 1 0 4 1 4 1");
        assert_eq!(list.jobs[1].environment["TUNABLE"], "1");
    }

    #[test]
    fn lists_in_the_repository_can_be_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/bench/peers.toml");
        let list = PeerList::read(&path).unwrap();
        for shape in choose("all", 4, 4, None).unwrap() {
            let methods: Vec<&String> = list.of(&shape).flat_map(|job| &job.methods).collect();
            assert!(methods.iter().any(|name| *name == "alltoallw"), "{}: {methods:?}", shape.name);
            assert!(methods.iter().filter(|name| **name == "pull").count() >= 2, "{}: {methods:?}", shape.name);
        }
        let known = choose("all", 4, 4, None).unwrap();
        for name in list.jobs.iter().flat_map(|job| &job.shapes) {
            assert!(known.iter().any(|shape| shape.name == name), "peers.toml names {name:?}, which is no shape");
        }
    }

    #[test]
    fn incomplete_jobs_are_refused() {
        let entry = |name: &str, command: &str, methods: &str| {
            format!("[[job]]\nname = {name:?}\ncommand = {command}\nmethods = {methods}\n")
        };
        for text in [
            entry("", "[\"x\"]", "[\"pull\"]"),
            entry("a", "[]", "[\"pull\"]"),
            entry("a", "[\"x\"]", "[]"),
            entry("a", "[\"x\"]", "[\"pull\"]") + "settings = 1\n",
            "[[job]]\nname = 'a'\n".into(),
            "job".into(),
        ] {
            assert!(PeerList::parse(&text, Path::new("list")).is_err(), "{text}");
        }
    }
}
