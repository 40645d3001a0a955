//! Command line of `crossmesh bench p2p`. In: texts. Out: a checked [`Request`]. Guarantee: equal on both ranks.

use crate::bench::error::{BenchError, byte_count};
use crate::bench::output;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Rate and latency of each link between two ranks; run it under crossmesh run -n 2
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Sizes of a transfer, with commas
    #[arg(long, value_name = "LIST", default_value = "8,256,4KiB,64KiB,1MiB,16MiB,64MiB")]
    bytes: String,
    /// Links, with commas: tcp (two domains), shm (CROSSMESH_MAPPED=staged), mapped, process [default: what joins the ranks]
    #[arg(long, value_name = "LIST")]
    link: Option<String>,
    /// Transfers in flight while the rate is measured
    #[arg(long, value_name = "N", default_value_t = 4)]
    depth: u32,
    /// Transfers of each size [default: fewer of larger sizes]
    #[arg(long, value_name = "N")]
    iterations: Option<u32>,
    /// Write the results as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// Puts over TCP, between domains.
    Tcp,
    /// Puts through staging memory that both ranks map.
    Shm,
    /// The receiver copies out of the sender's shared segment.
    Mapped,
    /// The receiver copies out of the sender's private memory by process_vm_readv.
    Process,
}

impl fmt::Display for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Mapped => "mapped",
            Self::Process => "process",
        })
    }
}

impl FromStr for Link {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "shm" => Ok(Self::Shm),
            "mapped" => Ok(Self::Mapped),
            "process" => Ok(Self::Process),
            _ => Err(()),
        }
    }
}

/// A bench to run.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(super) bytes: Vec<u64>,
    /// As asked for; what joins the ranks when empty.
    pub(super) links: Vec<Link>,
    pub(super) depth: u32,
    iterations: Option<u32>,
    pub(super) json: Option<PathBuf>,
}

/// Bytes that are moved at most to find the rate of one size, and transfers at least and at most.
const RATE: (u64, u64, u64) = (512 << 20, 8, 2000);
/// The same for the latency.
const LATENCY: (u64, u64, u64) = (128 << 20, 8, 1000);

impl Request {
    /// Checks everything that does not need the job.
    pub(crate) fn parse(arguments: &Arguments) -> Result<Self, BenchError> {
        let sizes: Result<Vec<u64>, _> = arguments.bytes.split(',').map(|text| byte_count("bytes", text)).collect();
        let sizes = sizes?;
        if let Some(size) = sizes.iter().find(|&&size| size == 0 || size > 1 << 40) {
            return Err(BenchError::refused("bytes", size, "sizes from 1 byte to 1 TiB"));
        }
        let links = arguments.link.iter().flat_map(|list| list.split(',')).map(|word| {
            word.trim().parse().map_err(|()| BenchError::refused("link", word, "tcp, shm, mapped, process"))
        });
        if !(1..=64).contains(&arguments.depth) {
            return Err(BenchError::refused("depth", arguments.depth, "1 to 64 transfers"));
        }
        if arguments.iterations == Some(0) {
            return Err(BenchError::refused("iterations", 0, "1 or more"));
        }
        Ok(Self {
            bytes: sizes,
            links: links.collect::<Result<_, _>>()?,
            depth: arguments.depth,
            iterations: arguments.iterations,
            json: output::place("json", arguments.json.as_deref())?,
        })
    }

    /// Transfers of a size to find the rate.
    pub(super) fn rate_iterations(&self, bytes: u64) -> u64 {
        self.count(bytes, RATE)
    }

    /// Transfers there and back of a size to find the latency.
    pub(super) fn latency_iterations(&self, bytes: u64) -> u64 {
        self.count(bytes, LATENCY)
    }

    fn count(&self, bytes: u64, (total, least, most): (u64, u64, u64)) -> u64 {
        self.iterations.map_or((total / bytes).clamp(least, most), u64::from)
    }
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
    fn larger_sizes_run_less_often() {
        let request = request(&["--bytes", "1, 1MiB,1TiB", "--link", "tcp,process"]).unwrap();
        assert_eq!(request.links, [Link::Tcp, Link::Process]);
        let counts: Vec<u64> = request.bytes.iter().map(|&bytes| request.rate_iterations(bytes)).collect();
        assert_eq!(counts, [2000, 512, 8]);
        assert_eq!(request.latency_iterations(1 << 20), 128);
    }

    #[test]
    fn bad_options_are_named() {
        for words in [
            ["--bytes", "0"],
            ["--bytes", ""],
            ["--bytes", "2TiB"],
            ["--link", "rope"],
            ["--depth", "0"],
            ["--iterations", "0"],
        ] {
            let error = request(&words).unwrap_err();
            assert!(error.is_bad_input() && error.to_string().starts_with(words[0]), "{words:?}: {error}");
            assert!(words[1].is_empty() || error.to_string().contains(" cannot be used; allowed: "), "{error}");
        }
    }
}
