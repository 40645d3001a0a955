//! Command line of `crossmesh plan`. In: words. Out: [`Arguments`], texts as given. Guarantee: only the form is checked
//! here.

use crate::whole_number::whole_number;
use std::path::PathBuf;

const EXAMPLE: &str =
    "  crossmesh plan --model deepseek-v3 --src ep=16,pp=8 --dst tp=16,dp=8 --topology gb200-nvl72:4/64 --simulate
  crossmesh plan --case cases.json#NAME --json -

Exit codes: 0 done, 1 the plan is not what a case expects, or a result cannot be written, 2 wrong arguments or files";

/// Say what a transfer costs before a byte moves: bytes of every link, times, the best route; needs no ranks
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["model", "case", "load"])))]
pub(crate) struct Arguments {
    /// Model, as refit takes it: a .safetensors file, a folder with a checkpoint and its index, a *.model.json or a layer
    /// file (JSON) of NCCL M2N, or the name of a built-in model such as qwen3-32b or deepseek-v3
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<PathBuf>,
    /// Cases of one tensor each with explicit layouts: a JSON file, or one case of it
    #[arg(long, value_name = "FILE[#NAME]", conflicts_with_all = ["system", "src", "dst", "rules", "cast", "expert_map_src",
        "expert_map_dst"])]
    pub(super) case: Option<String>,
    /// A plan that --save wrote: it is verified, and shown on the cluster that it was made for, by its route
    #[arg(long, value_name = "FILE", conflicts_with_all = ["system", "src", "dst", "rules", "cast", "expert_map_src",
        "expert_map_dst", "route", "injection", "save"])]
    pub(super) load: Option<PathBuf>,
    /// Both sides as NCCL M2N's model bench describes them: a JSON file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["src", "dst"])]
    pub(super) system: Option<PathBuf>,
    /// Layout of the source ranks, such as tp=2,pp=4,dp=2
    #[arg(long, value_name = "SPEC", requires = "dst")]
    pub(super) src: Option<String>,
    /// Layout of the destination ranks, which follow those of the source
    #[arg(long, value_name = "SPEC", requires = "src")]
    pub(super) dst: Option<String>,
    /// Rules before the built-in ones, as for refit
    #[arg(long, value_name = "RULES", requires = "model")]
    pub(super) rules: Option<PathBuf>,
    /// Which expert each slot of the source ranks holds, as for refit: a JSON file
    #[arg(long, value_name = "FILE", requires = "model")]
    pub(super) expert_map_src: Option<PathBuf>,
    /// The same for the destination
    #[arg(long, value_name = "FILE", requires = "model")]
    pub(super) expert_map_dst: Option<PathBuf>,
    /// Type in which F32, F16 and BF16 tensors arrive: f32, f16 or bf16, as for refit [default: as in the model]
    #[arg(long, value_name = "DTYPE", requires = "model")]
    pub(super) cast: Option<String>,
    /// The cluster: gb200-nvl72, hgx-h100 or dgx-a100, :DOMAINS behind it, /USED for the GPUs used of each domain; or a
    /// shape such as 4x[8gpu,8nic@50GB,nvlink450GB]. Each side starts in a new domain; a case's own domains override it
    #[arg(long, value_name = "TOPOLOGY", default_value = "gb200-nvl72")]
    pub(super) topology: String,
    /// Route to choose: auto takes the one with the least predicted time; CROSSMESH_ROUTE overrides it [default: auto]
    #[arg(long, value_name = "ROUTE")]
    pub(super) route: Option<String>,
    /// Injection to choose: striped or single; CROSSMESH_INJECTION overrides it [default: the better]
    #[arg(long, value_name = "HOW")]
    pub(super) injection: Option<String>,
    /// Simulate every route by events
    #[arg(long)]
    pub(super) simulate: bool,
    /// Say what this rank does: in the tables, the JSON and the page
    #[arg(long, value_name = "RANK", value_parser = whole_number, allow_negative_numbers = true)]
    pub(super) explain: Option<u32>,
    /// Write the plan by the chosen route to this file, for --load and for programs
    #[arg(long, value_name = "FILE", requires = "model", conflicts_with = "case")]
    pub(super) save: Option<PathBuf>,
    /// Write the results as JSON to this file; - writes them to standard output in one line, in place of the tables
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write a page with pictures of meshes, flows and loads to this file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}
