//! Command line of the benches of collectives. In: texts. Out: a checked [`Request`]. Guarantee: equal on all ranks; options of
//! nccl-tests have its letters and meanings.

use super::chain::Form;
use crate::bench::error::BenchError;
use crate::bench::output;
use crossmesh::base::bytes;
use crossmesh::collective::{Algorithm, Kind, ReduceOperation};
use crossmesh::comm::ChannelOptions;
use crossmesh::layout::Dtype;
use std::path::PathBuf;

/// Time of a collective on GPUs, a process for each: crossmesh run -n 2 -- crossmesh bench allreduce
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Smallest size, in all: of the vector, of all-gather's output, of reduce-scatter's input, of the fused call's rows
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "8")]
    minbytes: String,
    /// Largest size
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "128M")]
    maxbytes: String,
    /// From a size to the next: times this
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 2)]
    stepfactor: u64,
    /// Calls in a chain, each reading what the one before wrote [default: 50, fewer of larger sizes]
    #[arg(short = 'n', long, value_name = "N")]
    iters: Option<u32>,
    /// Chains that are not timed
    #[arg(short = 'w', long, value_name = "N", default_value_t = 2)]
    warmup_iters: u32,
    /// Whether results are checked: 0 or 1
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1)]
    check: u32,
    /// Replays of the chain as a graph; 0 makes no graphs [default: 20, fewer of larger sizes]
    #[arg(short = 'G', long, value_name = "N")]
    cudagraph: Option<u32>,
    /// Element type, with commas: float, half, bfloat16, double, int32, int64, uint8, fp8_e4m3, fp8_e5m2, or all [default:
    /// float; bfloat16 for the fused call]
    #[arg(short = 'd', long, value_name = "LIST")]
    datatype: Option<String>,
    /// Reduction, with commas: sum, prod, min, max, avg, or all
    #[arg(short = 'o', long, value_name = "LIST", default_value = "sum")]
    op: String,
    /// Rank that broadcasts first; in a chain each passes on what it got
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    root: u32,
    /// Whether operands are registered, so that peers reach them: 0 or 1
    #[arg(short = 'R', long, value_name = "0|1", default_value_t = 0)]
    local_register: u32,
    /// How calls are made, with commas: graph, eager
    #[arg(long, value_name = "LIST", default_value = "graph,eager")]
    modes: String,
    /// State of the GPU's cache, with commas: warm, cold (operands in turn, and the cache is emptied before each chain)
    #[arg(long, value_name = "LIST", default_value = "warm")]
    l2: String,
    /// Algorithm, in place of the table's: one-shot-push, line-push, one-shot-pull, two-shot-push, two-shot,
    /// shard-push, ring, host-ordered
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// Largest message that goes by words with flags [default: 1M]
    #[arg(long, value_name = "BYTES")]
    push_bytes: Option<String>,
    /// Staging of operands that are not registered [default: 16M]
    #[arg(long, value_name = "BYTES")]
    staging_bytes: Option<String>,
    /// Elements of a row of the fused call
    #[arg(long, value_name = "N", default_value_t = 8192)]
    hidden: u32,
    /// What to compare with in the same run, with commas: nccl, torch (needs python3 with PyTorch)
    #[arg(long, value_name = "LIST")]
    against: Option<String>,
    /// Write the results as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Who else is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rival {
    /// NCCL, as PyTorch calls it.
    Nccl,
    /// PyTorch's symmetric memory: the best of its one-shot and two-shot.
    Torch,
}

impl Rival {
    const ALL: [Self; 2] = [Self::Nccl, Self::Torch];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Torch => "torch",
        }
    }
}

/// A bench to run.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(super) kind: Kind,
    sizes: Vec<u64>,
    pub(super) dtypes: Vec<Dtype>,
    pub(super) operations: Vec<ReduceOperation>,
    pub(super) root: u32,
    iterations: Option<u32>,
    replays: Option<u32>,
    pub(super) warmups: u32,
    pub(super) checks: bool,
    pub(super) registered: bool,
    modes: Vec<bool>,
    caches: Vec<bool>,
    algorithm: Option<Algorithm>,
    push_bytes: Option<u64>,
    staging_bytes: Option<u64>,
    pub(super) hidden: u32,
    pub(super) against: Vec<Rival>,
    pub(super) json: Option<PathBuf>,
}

/// Names of element types, as nccl-tests has them.
const TYPES: [(&str, Dtype); 9] = [
    ("float", Dtype::F32),
    ("half", Dtype::F16),
    ("bfloat16", Dtype::BF16),
    ("double", Dtype::F64),
    ("int32", Dtype::I32),
    ("int64", Dtype::I64),
    ("uint8", Dtype::U8),
    ("fp8_e4m3", Dtype::F8E4M3),
    ("fp8_e5m2", Dtype::F8E5M2),
];

/// Name of a type in nccl-tests.
pub(super) fn type_name(dtype: Dtype) -> &'static str {
    TYPES.iter().find(|(_, known)| *known == dtype).map_or(dtype.name(), |(name, _)| name)
}

/// Calls of a chain, and chains, up to so many bytes; beyond the last, [`LARGE`].
const COUNTS: [(u64, u32, u32); 3] = [(1 << 20, 50, 20), (16 << 20, 20, 15), (64 << 20, 10, 10)];
const LARGE: (u32, u32) = (4, 8);

/// Calls of a chain, and chains, for `bytes` bytes.
pub(super) fn counts(bytes: u64) -> (u32, u32) {
    let found = COUNTS.iter().find(|(up_to, ..)| bytes <= *up_to);
    found.map_or(LARGE, |&(_, calls, samples)| (calls, samples))
}

impl Request {
    /// Checks everything that does not need the job.
    pub(crate) fn parse(kind: Kind, arguments: &Arguments) -> Result<Self, BenchError> {
        let least = bytes::parse(&arguments.minbytes).map_err(BenchError::Bytes)?;
        let most = bytes::parse(&arguments.maxbytes).map_err(BenchError::Bytes)?;
        let sizes = sizes(least, most, arguments.stepfactor)?;
        let flag = |option, value: u32| match value {
            0 | 1 => Ok(value == 1),
            _ => Err(refused(option, &value.to_string(), "0 or 1")),
        };
        let number = |option, value: Option<u32>, least: u32| match value {
            Some(value) if !(least..=100_000).contains(&value) => {
                Err(refused(option, &value.to_string(), &format!("{least} to 100000")))
            }
            _ => Ok(value),
        };
        let usual = if kind == Kind::AllReduceNorm { "bfloat16" } else { "float" };
        let types = list("datatype", arguments.datatype.as_deref().unwrap_or(usual), &TYPES)?;
        let size = |text: &Option<String>| text.as_deref().map(bytes::parse).transpose().map_err(BenchError::Bytes);
        let operations = ReduceOperation::ALL.map(|operation| (operation.name(), operation));
        let algorithms = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
        let algorithm = arguments.algorithm.iter().map(|name| list("algorithm", name, &algorithms));
        let rivals = Rival::ALL.map(|rival| (rival.name(), rival));
        let against = arguments.against.as_deref().map_or(Ok(Vec::new()), |names| list("against", names, &rivals))?;
        let mut modes = list("modes", &arguments.modes, &[("graph", true), ("eager", false)])?;
        let replays = number("cudagraph", arguments.cudagraph, 0)?;
        if replays == Some(0) {
            modes.retain(|captured| !captured);
        }
        let request = Self {
            kind,
            sizes,
            dtypes: types,
            operations: if kind.reduces() {
                list("op", &arguments.op, &operations)?
            } else {
                vec![ReduceOperation::Sum]
            },
            root: arguments.root,
            iterations: number("iters", arguments.iters, 1)?,
            replays: replays.filter(|&replays| replays > 0),
            warmups: number("warmup_iters", Some(arguments.warmup_iters), 0)?.unwrap_or(0),
            checks: flag("check", arguments.check)?,
            registered: flag("local_register", arguments.local_register)?,
            modes,
            caches: list("l2", &arguments.l2, &[("warm", false), ("cold", true)])?,
            algorithm: algorithm.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().next(),
            push_bytes: size(&arguments.push_bytes)?,
            staging_bytes: size(&arguments.staging_bytes)?,
            hidden: arguments.hidden,
            against,
            json: output::place("json", arguments.json.as_deref())?,
        };
        request.expect_fused()?;
        Ok(request)
    }

    /// What only the fused call asks for.
    fn expect_fused(&self) -> Result<(), BenchError> {
        if self.kind != Kind::AllReduceNorm {
            return Ok(());
        }
        if self.hidden == 0 || !self.hidden.is_multiple_of(4) {
            return Err(refused("hidden", &self.hidden.to_string(), "a multiple of 4"));
        }
        let other = self.dtypes.iter().find(|dtype| ![Dtype::F16, Dtype::BF16].contains(dtype));
        match (other, self.operations.as_slice()) {
            (Some(&other), _) => Err(refused("datatype", type_name(other), "the fused call takes half and bfloat16")),
            (None, [ReduceOperation::Sum]) => Ok(()),
            (None, others) => Err(refused("op", others[0].name(), "the fused call sums")),
        }
    }

    /// Elements of a rank's part, for each size; those that come out equal once.
    pub(super) fn elements(&self, dtype: Dtype, ranks: u32) -> Vec<u64> {
        let unit = match self.kind {
            Kind::AllGather | Kind::ReduceScatter => dtype.bytes() * u64::from(ranks),
            Kind::AllReduceNorm => dtype.bytes() * u64::from(self.hidden),
            _ => dtype.bytes(),
        };
        let least = u64::from(self.kind == Kind::AllReduceNorm);
        let rows = if self.kind == Kind::AllReduceNorm { u64::from(self.hidden) } else { 1 };
        let mut counts: Vec<u64> = self.sizes.iter().map(|size| (size / unit).max(least) * rows).collect();
        counts.dedup();
        counts
    }

    /// How the channel is made.
    pub(super) fn options(&self) -> ChannelOptions {
        let Self { algorithm, push_bytes, staging_bytes, .. } = *self;
        ChannelOptions { algorithm, push_bytes, staging_bytes, ..ChannelOptions::default() }
    }

    /// Calls of a chain, and timed chains.
    pub(super) fn counts(&self, bytes: u64) -> (u32, u32) {
        let (calls, samples) = counts(bytes);
        (self.iterations.unwrap_or(calls), self.replays.unwrap_or(samples))
    }

    /// Ways to make calls, without the place of operands.
    pub(super) fn forms(&self) -> Vec<Form> {
        let of = |&captured: &bool| {
            self.caches.iter().map(move |&cold| Form {
                captured,
                cold: cold && self.kind != Kind::AllReduceNorm,
                in_place: false,
            })
        };
        let mut forms: Vec<Form> = self.modes.iter().flat_map(of).collect();
        forms.dedup();
        forms
    }
}

/// Sizes from `least` to `most`, each `factor` times the one before.
pub(super) fn sizes(least: u64, most: u64, factor: u64) -> Result<Vec<u64>, BenchError> {
    if factor < 2 {
        return Err(refused("stepfactor", &factor.to_string(), "2 or more"));
    }
    if least > most || most > 1 << 40 {
        let allowed = "a smallest size that is not above the largest, and 1 TiB at most";
        return Err(refused("minbytes", &format!("{least} to {most}"), allowed));
    }
    let next = |size: &u64| Some(size.checked_mul(factor)?.max(1)).filter(|&next| next <= most);
    Ok(std::iter::successors(Some(least), next).collect())
}

/// Values by their names, with commas; `all` stands for all.
fn list<T: Copy>(option: &'static str, text: &str, known: &[(&str, T)]) -> Result<Vec<T>, BenchError> {
    if text.trim() == "all" {
        return Ok(known.iter().map(|&(_, value)| value).collect());
    }
    let one = |word: &str| {
        let found = known.iter().find(|(name, _)| *name == word.trim()).map(|&(_, value)| value);
        found.ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|&(name, _)| name).collect();
            refused(option, word, &format!("allowed are {}, all", names.join(", ")))
        })
    };
    text.split(',').map(one).collect()
}

pub(super) fn refused(option: &'static str, value: &str, allowed: &str) -> BenchError {
    BenchError::Option { option, value: value.to_string(), allowed: allowed.to_string() }
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

    fn request(kind: Kind, words: &[&str]) -> Result<Request, BenchError> {
        Request::parse(kind, &Line::parse_from([&["bench"], words].concat()).arguments)
    }

    #[test]
    fn options_are_those_of_nccl_tests() {
        let words = "-b 1K -e 1M -f 4 -n 7 -w 3 -c 0 -G 9 -d bfloat16,half -o max -R 1".split(' ').collect::<Vec<_>>();
        let request = request(Kind::AllReduce, &words).unwrap();
        assert_eq!(request.elements(Dtype::BF16, 2), [512, 2048, 8192, 32768, 131_072, 524_288]);
        assert_eq!(request.counts(1 << 30), (7, 9));
        assert_eq!((request.warmups, request.checks, request.registered), (3, false, true));
        assert_eq!(request.dtypes, [Dtype::BF16, Dtype::F16]);
        assert_eq!(request.operations, [ReduceOperation::Maximum]);
        assert_eq!(request.forms().len(), 2);
    }

    #[test]
    fn sizes_are_of_the_whole() {
        let gather = request(Kind::AllGather, &["-b", "8", "-e", "64"]).unwrap();
        assert_eq!(gather.elements(Dtype::F32, 4), [0, 1, 2, 4]);
        assert_eq!(gather.operations, [ReduceOperation::Sum]);
        let norm = request(Kind::AllReduceNorm, &["-b", "8", "-e", "64K", "-d", "half", "--l2", "warm,cold"]).unwrap();
        assert_eq!(norm.elements(Dtype::F16, 2), [8192, 16384, 32768]);
        assert_eq!(norm.forms().len(), 2);
    }

    #[test]
    fn graphs_can_be_left_out() {
        let forms = request(Kind::Broadcast, &["-G", "0", "--l2", "warm,cold"]).unwrap().forms();
        assert_eq!(
            forms.iter().map(|form| (form.captured, form.cold)).collect::<Vec<_>>(),
            [(false, false), (false, true)]
        );
    }

    #[test]
    fn larger_sizes_run_less_often() {
        let counts: Vec<(u32, u32)> = [8, 1 << 20, 1 << 24, 1 << 28].map(counts).to_vec();
        assert_eq!(counts, [(50, 20), (50, 20), (20, 15), LARGE]);
    }

    #[test]
    fn bad_options_are_named() {
        for words in [
            ["-f", "1"],
            ["-b", "1G"],
            ["-c", "2"],
            ["-R", "3"],
            ["-n", "0"],
            ["-d", "bf16"],
            ["-o", "mean"],
            ["--modes", "lazy"],
            ["--l2", "hot"],
            ["--algorithm", "tree"],
            ["--against", "mpi"],
        ] {
            let error = request(Kind::AllReduce, &words).unwrap_err();
            assert!(error.is_bad_input(), "{words:?}");
        }
        for words in [["-d", "float"], ["--hidden", "6"], ["-o", "max"], ["--staging-bytes", "much"]] {
            assert!(request(Kind::AllReduceNorm, &words).unwrap_err().is_bad_input(), "{words:?}");
        }
    }
}
