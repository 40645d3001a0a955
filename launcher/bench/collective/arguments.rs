//! Command line of the benches of collectives. In: texts. Out: a checked [`Request`]. Guarantee: equal on all ranks; options of
//! nccl-tests have its letters and meanings.

use super::chain::Form;
use crate::bench::error::{BenchError, byte_count};
use crate::bench::output;
use crossmesh::collective::{Algorithm, Kind, ReduceOperation};
use crossmesh::comm::ChannelOptions;
use crossmesh::layout::Dtype;
use std::path::PathBuf;

/// Time of a collective on GPUs, a process for each: crossmesh run -n 2 -- crossmesh bench allreduce
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Smallest size, in all: of the vector, of all-gather's output, of reduce-scatter's input, of the fused call's rows
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "8", allow_negative_numbers = true)]
    minbytes: String,
    /// Largest size
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "128M", allow_negative_numbers = true)]
    maxbytes: String,
    /// From a size to the next: times this
    #[arg(short = 'f', long, value_name = "FACTOR", default_value_t = 2, allow_negative_numbers = true)]
    stepfactor: i64,
    /// Calls in a chain, each reading what the one before wrote [default: 50, fewer of larger sizes]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    iters: Option<i64>,
    /// Chains that are not timed
    #[arg(short = 'w', long, value_name = "N", default_value_t = 2, allow_negative_numbers = true)]
    warmup_iters: i64,
    /// Whether results are checked: 0 or 1
    #[arg(short = 'c', long, value_name = "0|1", default_value_t = 1, allow_negative_numbers = true)]
    check: i64,
    /// Replays of the chain as a graph; 0 makes no graphs [default: 20, fewer of larger sizes]
    #[arg(short = 'G', long, value_name = "N", allow_negative_numbers = true)]
    cudagraph: Option<i64>,
    /// Element type, with commas: float, half, bfloat16, double, int32, int64, uint8, fp8_e4m3, fp8_e5m2, or all [default:
    /// float; bfloat16 for the fused call]
    #[arg(short = 'd', long, value_name = "LIST")]
    datatype: Option<String>,
    /// Reduction, with commas: sum, prod, min, max, avg, or all
    #[arg(short = 'o', long, value_name = "LIST", default_value = "sum")]
    op: String,
    /// Rank that broadcasts first; in a chain each passes on what it got
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0, allow_negative_numbers = true)]
    root: i64,
    /// Whether operands are registered, so that peers reach them: 0 or 1
    #[arg(short = 'R', long, value_name = "0|1", default_value_t = 0, allow_negative_numbers = true)]
    local_register: i64,
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
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    push_bytes: Option<String>,
    /// Staging of operands that are not registered [default: 16M]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    staging_bytes: Option<String>,
    /// Elements of a row of the fused call
    #[arg(long, value_name = "N", default_value_t = 8192, allow_negative_numbers = true)]
    hidden: i64,
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

/// Most calls of a chain, and most chains.
const MOST: u32 = 100_000;
/// Largest size.
const LARGEST: u64 = 1 << 40;
/// Elements of a row of the fused call.
const HIDDEN: &str = "a multiple of 4 above 0";

impl Request {
    /// Checks everything that does not need the job.
    pub(crate) fn parse(kind: Kind, arguments: &Arguments) -> Result<Self, BenchError> {
        let sizes = sizes((&arguments.minbytes, &arguments.maxbytes), arguments.stepfactor, 0)?;
        let flag = |option, value| number(option, value, (0, 1), "0 or 1").map(|value| value == 1);
        let count = |option, value, least: u32| number(option, value, (least, MOST), &format!("{least} to {MOST}"));
        let usual = if kind == Kind::AllReduceNorm { "bfloat16" } else { "float" };
        let types = list("datatype", arguments.datatype.as_deref().unwrap_or(usual), &TYPES)?;
        let size = |option, text: &Option<String>| text.as_deref().map(|text| byte_count(option, text)).transpose();
        let operations = ReduceOperation::ALL.map(|operation| (operation.name(), operation));
        let rivals = Rival::ALL.map(|rival| (rival.name(), rival));
        let against = arguments.against.as_deref().map_or(Ok(Vec::new()), |names| list("against", names, &rivals))?;
        let mut modes = list("modes", &arguments.modes, &[("graph", true), ("eager", false)])?;
        let replays = arguments.cudagraph.map(|value| count("cudagraph", value, 0)).transpose()?;
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
            root: number("root", arguments.root, (0, u32::MAX), "a rank of the job, from 0 on")?,
            iterations: arguments.iters.map(|value| count("iters", value, 1)).transpose()?,
            replays: replays.filter(|&replays| replays > 0),
            warmups: count("warmup-iters", arguments.warmup_iters, 0)?,
            checks: flag("check", arguments.check)?,
            registered: flag("local-register", arguments.local_register)?,
            modes,
            caches: list("l2", &arguments.l2, &[("warm", false), ("cold", true)])?,
            algorithm: arguments.algorithm.as_deref().map(algorithm).transpose()?,
            push_bytes: size("push-bytes", &arguments.push_bytes)?,
            staging_bytes: size("staging-bytes", &arguments.staging_bytes)?,
            hidden: number("hidden", arguments.hidden, (0, u32::MAX), HIDDEN)?,
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
            return Err(BenchError::refused("hidden", self.hidden, HIDDEN));
        }
        let other = self.dtypes.iter().find(|dtype| ![Dtype::F16, Dtype::BF16].contains(dtype));
        match (other, self.operations.as_slice()) {
            (Some(&other), _) => {
                Err(BenchError::refused("datatype", type_name(other), "half and bfloat16 in the fused call"))
            }
            (None, [ReduceOperation::Sum]) => Ok(()),
            (None, others) => Err(BenchError::refused("op", others[0].name(), "sum in the fused call")),
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

/// Sizes from `--minbytes`, or `floor` where that is less, to `--maxbytes`, each `factor` times the one before; at least one.
pub(super) fn sizes((minbytes, maxbytes): (&str, &str), factor: i64, floor: u64) -> Result<Vec<u64>, BenchError> {
    let least = byte_count("minbytes", minbytes)?.max(floor);
    let most = byte_count("maxbytes", maxbytes)?;
    let Some(factor) = u64::try_from(factor).ok().filter(|&factor| factor >= 2) else {
        return Err(BenchError::refused("stepfactor", factor, "2 or more"));
    };
    if !(floor..=LARGEST).contains(&most) {
        return Err(BenchError::refused("maxbytes", maxbytes, format!("{floor} bytes to 1T")));
    }
    if least > most {
        return Err(BenchError::refused("minbytes", minbytes, format!("at most --maxbytes, which is {maxbytes:?}")));
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
            BenchError::refused(option, word, format!("{}, all", names.join(", ")))
        })
    };
    text.split(',').map(one).collect()
}

/// The number that `--option` gives, refused unless it is from `least` to `most`; `allowed` says so in words.
fn number(option: &'static str, value: i64, (least, most): (u32, u32), allowed: &str) -> Result<u32, BenchError> {
    let found = u32::try_from(value).ok().filter(|value| (least..=most).contains(value));
    found.ok_or_else(|| BenchError::refused(option, value, allowed))
}

fn algorithm(name: &str) -> Result<Algorithm, BenchError> {
    name.trim().parse().map_err(|_| BenchError::refused("algorithm", name, Algorithm::names()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};
    use crossmesh::base::env;
    use std::error::Error;

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

    /// The message for `words`, with its cause; the option that it names is one.
    fn refusal(kind: Kind, words: &[&str]) -> String {
        let error = request(kind, words).unwrap_err();
        assert!(error.is_bad_input(), "{words:?}");
        let text = error.to_string() + &error.source().map_or(String::new(), |cause| format!(": {cause}"));
        let name = text.trim_start_matches("--").split([' ', ':']).next().unwrap();
        let known = Line::command().get_arguments().any(|argument| argument.get_long() == Some(name));
        assert!(known, "{words:?} give {text:?}, which names no option");
        text
    }

    #[test]
    fn bad_options_are_named() {
        let numbers = "0 to 100000";
        for (words, option, value, allowed) in [
            (["-f", "1"], "stepfactor", "1", "2 or more"),
            (["-f", "-2"], "stepfactor", "-2", "2 or more"),
            (["-c", "2"], "check", "2", "0 or 1"),
            (["-R", "3"], "local-register", "3", "0 or 1"),
            (["-n", "0"], "iters", "0", "1 to 100000"),
            (["-n", "-5"], "iters", "-5", "1 to 100000"),
            (["-w", "-1"], "warmup-iters", "-1", numbers),
            (["-G", "100001"], "cudagraph", "100001", numbers),
            (["-r", "-1"], "root", "-1", "a rank of the job, from 0 on"),
            (["-d", "float,bf16"], "datatype", "bf16", &TYPES.map(|(name, _)| name).join(", ")),
            (["-o", "mean"], "op", "mean", "sum, prod, min, max, avg, all"),
            (["--modes", "lazy"], "modes", "lazy", "graph, eager, all"),
            (["--l2", "hot"], "l2", "hot", "warm, cold, all"),
            (["--against", "mpi"], "against", "mpi", "nccl, torch, all"),
        ] {
            let text = refusal(Kind::AllReduce, &words);
            let allowed = if option == "datatype" { format!("{allowed}, all") } else { allowed.to_string() };
            assert_eq!(text, format!("--{option} {value:?} cannot be used; allowed: {allowed}"));
        }
        for (words, rest) in [
            (["-d", "float"], "--datatype \"float\" cannot be used; allowed: half and bfloat16 in the fused call"),
            (["--hidden", "7"], "--hidden \"7\" cannot be used; allowed: a multiple of 4 above 0"),
            (["--hidden", "-4"], "--hidden \"-4\" cannot be used; allowed: a multiple of 4 above 0"),
            (["-o", "max"], "--op \"max\" cannot be used; allowed: sum in the fused call"),
        ] {
            assert_eq!(refusal(Kind::AllReduceNorm, &words), rest);
        }
    }

    #[test]
    fn byte_counts_name_their_option() {
        let unreadable =
            |option: &str| format!("--{option}: \"1Q\" is no byte count; allowed: a number with an optional unit");
        for option in ["minbytes", "maxbytes", "push-bytes", "staging-bytes"] {
            let text = refusal(Kind::AllReduce, &[&format!("--{option}"), "1Q"]);
            assert!(text.starts_with(&unreadable(option)), "{text}");
        }
        for kind in [Kind::AllReduceNorm, Kind::Broadcast] {
            assert!(refusal(kind, &["-e", "-1"]).starts_with("--maxbytes: \"-1\" is no byte count"));
        }
        let refused = |words: [&str; 4]| refusal(Kind::AllReduce, &words);
        let above = "--minbytes \"64M\" cannot be used; allowed: at most --maxbytes, which is \"1K\"";
        assert_eq!(refused(["-b", "64M", "-e", "1K"]), above);
        let large = "--maxbytes \"2T\" cannot be used; allowed: 0 bytes to 1T";
        assert_eq!(refused(["-b", "8", "-e", "2T"]), large);
        assert_eq!(refused(["-b", "3T", "-e", "2T"]), large);
    }

    #[test]
    fn sizes_have_a_floor() {
        assert_eq!(sizes(("8", "1T"), 1 << 20, 16).unwrap(), [16, 16 << 20]);
        assert_eq!(sizes(("16", "16"), 2, 16).unwrap(), [16]);
        let error = sizes(("4", "8"), 2, 16).unwrap_err().to_string();
        assert_eq!(error, "--maxbytes \"8\" cannot be used; allowed: 16 bytes to 1T");
    }

    #[test]
    fn algorithms_are_offered_where_they_can_run() {
        let names = env::ALGORITHM.choices().collect::<Vec<_>>().join(", ");
        assert!(!names.contains("multicast"));
        for name in ["tree", "all", "ring,two-shot"] {
            let text = refusal(Kind::AllReduce, &["--algorithm", name]);
            assert_eq!(text, format!("--algorithm {name:?} cannot be used; allowed: {names}"));
        }
        let command = Line::command();
        let argument = command.get_arguments().find(|argument| argument.get_id() == "algorithm").unwrap();
        assert!(argument.get_help().unwrap().to_string().ends_with(&names), "{:?}", argument.get_help());
        // What is asked for by name says itself why it does not run.
        let asked = request(Kind::AllReduce, &["--algorithm", "multicast"]).unwrap();
        assert_eq!(asked.options().algorithm, Some(Algorithm::Multicast));
    }
}
