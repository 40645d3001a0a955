//! Command line of `crossmesh bench reshard`. In: texts. Out: a checked [`Request`]. Guarantee: equal on all ranks.

use super::peers::PeerList;
use super::shape::{self, Shape};
use crate::bench::error::{BenchError, byte_count};
use crate::bench::output;
use crossmesh::base::env;
use crossmesh::route::{Injection, RouteKind, RouteOptions};
use std::fmt;
use std::path::PathBuf;

/// Tensors of several shapes between two layouts, beside MPI_Alltoallw and others; run it under crossmesh run or mpirun
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Shapes, with commas: contiguous, columns-256, columns-1k, columns-14k, replicated, experts, small-1k, small-256, single
    #[arg(long, value_name = "LIST", default_value = "all")]
    shapes: String,
    /// Source ranks
    #[arg(long, value_name = "N", default_value_t = 4)]
    sources: u32,
    /// Destination ranks
    #[arg(long, value_name = "N", default_value_t = 4)]
    destinations: u32,
    /// Bytes of each shape's tensors [default: 256MiB; 10,000 tensors of 4 KiB; 1GiB for single]
    #[arg(long, value_name = "N")]
    bytes: Option<String>,
    /// Rounds that count; one more warms up
    #[arg(long, value_name = "N", default_value_t = 10)]
    repeat: u32,
    /// Memory that tensors live in: shared, private
    #[arg(long, value_name = "LIST", default_value = "shared,private")]
    memory: String,
    /// Routes: hierarchical, flat, gather-broadcast
    #[arg(long, value_name = "LIST", default_value = "hierarchical")]
    routes: String,
    /// What to compare with: a list as in tests/bench/peers.toml, or none
    #[arg(long, value_name = "FILE", default_value = "none")]
    peers: PathBuf,
    /// Cores of ranks: in-turn (rank r on core r, over and over) or none (as the starter left them)
    #[arg(long, value_name = "HOW", default_value = "in-turn")]
    bind: String,
    /// Write every sample as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the rates as bars into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Where tensors of crossmesh live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    Shared,
    Private,
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Shared => "shared",
            Self::Private => "private",
        })
    }
}

impl std::str::FromStr for Memory {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "shared" => Ok(Self::Shared),
            "private" => Ok(Self::Private),
            _ => Err(()),
        }
    }
}

/// One way of crossmesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) route: RouteOptions,
    pub(crate) memory: Memory,
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "crossmesh {} {}", self.memory, self.route.kind)
    }
}

/// A bench to run.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(super) shapes: Vec<Shape>,
    pub(super) variants: Vec<Variant>,
    pub(super) repeat: u32,
    pub(super) peers: PeerList,
    pub(super) bind: bool,
    pub(super) json: Option<PathBuf>,
    pub(super) svg: Option<PathBuf>,
    sources: u32,
}

impl Request {
    /// Checks everything that does not need the job.
    pub(crate) fn parse(arguments: &Arguments) -> Result<Self, BenchError> {
        for (option, count) in [("sources", arguments.sources), ("destinations", arguments.destinations)] {
            if !(1..=1 << 16).contains(&count) {
                return Err(BenchError::refused(option, count, "1 to 65536 ranks"));
            }
        }
        if arguments.repeat == 0 {
            return Err(BenchError::refused("repeat", 0, "1 or more, since a round must count"));
        }
        let bytes = arguments.bytes.as_deref().map(|text| byte_count("bytes", text)).transpose()?;
        let routes: Vec<RouteKind> = list("routes", &arguments.routes, env::ROUTE.choices())?;
        let kinds: Vec<Memory> = list("memory", &arguments.memory, ["shared", "private"])?;
        let variants = kinds.iter().flat_map(|&memory| {
            let route = |&kind| RouteOptions { kind, injection: Injection::default() };
            routes.iter().map(route).map(move |route| Variant { route, memory })
        });
        let bind = match arguments.bind.as_str() {
            "in-turn" => true,
            "none" => false,
            text => return Err(BenchError::refused("bind", text, "in-turn, none")),
        };
        Ok(Self {
            shapes: shape::choose(&arguments.shapes, arguments.sources, arguments.destinations, bytes)?,
            variants: variants.collect(),
            repeat: arguments.repeat,
            peers: PeerList::read(&arguments.peers)?,
            bind,
            json: output::place("json", arguments.json.as_deref())?,
            svg: output::place("svg", arguments.svg.as_deref())?,
            sources: arguments.sources,
        })
    }

    /// Number of source ranks.
    pub(crate) fn sources(&self) -> u32 {
        self.sources
    }
}

/// A list with commas, nothing twice.
fn list<T: std::str::FromStr + PartialEq>(
    option: &'static str,
    text: &str,
    names: impl IntoIterator<Item = &'static str>,
) -> Result<Vec<T>, BenchError> {
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let mut items = Vec::new();
    for word in text.split(',').map(str::trim) {
        let refuse = |allowed: String| BenchError::refused(option, word, allowed);
        let item = word.parse().map_err(|_| refuse(names.clone()))?;
        if items.contains(&item) {
            return Err(refuse(format!("{names}, each once")));
        }
        items.push(item);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn request(words: &[&str]) -> Result<Request, BenchError> {
        Request::parse(&Line::parse_from([&["bench"], words].concat()).arguments)
    }

    #[test]
    fn every_combination_is_measured() {
        let request = request(&["--routes", "hierarchical, flat", "--shapes", "single,contiguous"]).unwrap();
        let names: Vec<String> = request.variants.iter().map(Variant::to_string).collect();
        assert_eq!(
            names,
            [
                "crossmesh shared hierarchical",
                "crossmesh shared flat",
                "crossmesh private hierarchical",
                "crossmesh private flat"
            ]
        );
        assert_eq!(request.shapes.iter().map(|shape| shape.name).collect::<Vec<_>>(), ["single", "contiguous"]);
        assert_eq!((request.sources(), request.repeat, request.bind), (4, 10, true));
    }

    #[test]
    fn bad_options_are_named() {
        for words in [
            ["--routes", "flat,flat"],
            ["--routes", "straight"],
            ["--memory", ""],
            ["--shapes", "round"],
            ["--shapes", "single,single"],
            ["--bytes", "much"],
            ["--repeat", "0"],
            ["--sources", "0"],
            ["--destinations", "70000"],
            ["--bind", "core"],
            ["--peers", "/no/such/list"],
        ] {
            let error = request(&words).unwrap_err();
            assert!(error.is_bad_input(), "{words:?}: {error}");
            let named = words[1] == "/no/such/list" || error.to_string().starts_with(words[0]);
            assert!(named, "{words:?}: {error}");
        }
    }

    #[test]
    fn what_is_allowed_is_said_once() {
        let error = |words: [&str; 2]| request(&words).unwrap_err().to_string();
        let routes = "cannot be used; allowed: hierarchical, flat, gather-broadcast";
        assert_eq!(error(["--routes", "flat,straight"]), format!("--routes \"straight\" {routes}"));
        assert_eq!(error(["--routes", "flat,flat"]), format!("--routes \"flat\" {routes}, each once"));
        assert_eq!(error(["--memory", "far"]), "--memory \"far\" cannot be used; allowed: shared, private");
        assert_eq!(error(["--bind", "core"]), "--bind \"core\" cannot be used; allowed: in-turn, none");
    }
}
