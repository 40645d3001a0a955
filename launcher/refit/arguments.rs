//! Command line of `crossmesh refit`. In: words. Out: [`Arguments`], texts as given. Guarantee: only the form is checked here;
//! what they mean is read in `sides`, where all ranks can say alike what is wrong.

use crate::whole_number::whole_number;
use std::path::PathBuf;

const EXAMPLE: &str = "\
Every rank runs this with the same arguments, started by crossmesh run, mpirun or srun:
  crossmesh run -n 8 -- crossmesh refit model.safetensors --src tp=4 --dst tp=2,dp=2 --verify

Exit codes: 0 done, 1 the job failed, 2 wrong arguments, model or environment";

/// Move a model's weights from one layout to another; run it under crossmesh run, mpirun or srun
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Arguments {
    /// A .safetensors file, a folder with a checkpoint and its index, a *.model.json or a layer file of NCCL M2N whose contents
    /// are synthesised, or the name of a built-in model such as qwen3-32b, synthesised too
    #[arg(required_unless_present = "case")]
    pub(crate) model: Option<PathBuf>,
    /// Layout of the source ranks, such as tp=4, tp=2,dp=2 or tp=2,ep=4,pp=2: sizes of tensor (tp), context (cp), expert
    /// (ep), fully sharded (fsdp), data (dp, replicas) and pipeline parallelism (pp, also as layers per stage, 8+8+7);
    /// their product is the number of ranks, the leftmost axis varies fastest; with etp, efsdp or edp, or megatron: in
    /// front, expert weights have a view of their own
    #[arg(long, value_name = "SPEC", required_unless_present = "case")]
    pub(crate) src: Option<String>,
    /// Layout of the destination ranks, in the same form
    #[arg(long, value_name = "SPEC", required_unless_present = "case")]
    pub(crate) dst: Option<String>,
    /// In place of a model: cases of one tensor each with explicit layouts, whose contents are synthesised; those that need
    /// more ranks than there are get listed as skipped, and a case's own domains override those of the job
    #[arg(long, value_name = "FILE[#NAME]", conflicts_with_all = ["model", "src", "dst", "src_ranks", "dst_ranks", "rules", "cast", "nic_rate", "out"])]
    pub(crate) case: Option<String>,
    /// Source ranks in mesh order, such as 0-3,8 [default: the first role, else the first ranks that --dst-ranks leaves]
    #[arg(long, value_name = "LIST")]
    pub(crate) src_ranks: Option<String>,
    /// Destination ranks in mesh order [default: the second role, else the first ranks that are no source]
    #[arg(long, value_name = "LIST")]
    pub(crate) dst_ranks: Option<String>,
    /// Type in which F32, F16 and BF16 tensors arrive: f32, f16 or bf16, rounded to nearest even; others keep theirs, as do
    /// those whose rule says cast = "never" [default: as in the model]
    #[arg(long, value_name = "DTYPE")]
    pub(crate) cast: Option<String>,
    /// How bytes travel: hierarchical, flat or gather-broadcast; CROSSMESH_ROUTE overrides it [default: hierarchical]
    #[arg(long, value_name = "ROUTE")]
    pub(crate) route: Option<String>,
    /// Which replicas of a source send: striped (all, a part each) or single; CROSSMESH_INJECTION overrides it
    /// [default: striped]
    #[arg(long, value_name = "HOW")]
    pub(crate) injection: Option<String>,
    /// TOML file with rules that decide how tensors are sharded and fused by name, before the built-in ones; or the name
    /// of rules that come with crossmesh, such as bert-fused-qkv
    #[arg(long, value_name = "RULES")]
    pub(crate) rules: Option<PathBuf>,
    /// JSON file that says which expert each slot of the sources holds: physical_to_logical_map, as expert load balancers
    /// write it, for each layer or for all; slots are dealt out to the ranks of ep in order, and an expert may have several
    #[arg(long, value_name = "FILE")]
    pub(crate) expert_map_src: Option<PathBuf>,
    /// The same for the destinations
    #[arg(long, value_name = "FILE")]
    pub(crate) expert_map_dst: Option<PathBuf>,
    /// Bytes per second of one network card and direction, such as 50GB, for the data-movement bound
    /// [default: measured]
    #[arg(long, value_name = "RATE")]
    pub(crate) nic_rate: Option<String>,
    /// Memory that tensors live in: shared (allocated by crossmesh) or private
    #[arg(long, value_name = "KIND", default_value = "shared")]
    pub(crate) memory: String,
    /// Times to run the transfer; the time shown is the median
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole_number, allow_negative_numbers = true)]
    pub(crate) repeat: u32,
    /// After the last run, compare every byte that arrived with the model, and digests between both sides
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write every destination rank's shards to this folder, as rank-N.safetensors and rank-N.layout.json
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write the results as JSON to this file; - writes them to standard output in one line, in place of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
