//! Command line of `crossmesh refit`.

use std::path::PathBuf;

/// Move a model's weights from one layout to another; run it under crossmesh run, mpirun or srun
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A .safetensors file, a folder with a checkpoint and its index, or a *.model.json whose contents are synthesised
    pub(crate) model: PathBuf,
    /// Layout of the source ranks, such as tp=4 or tp=2,dp=2; the leftmost axis varies fastest
    #[arg(long, value_name = "SPEC")]
    pub(crate) src: String,
    /// Layout of the destination ranks
    #[arg(long, value_name = "SPEC")]
    pub(crate) dst: String,
    /// Source ranks in mesh order, such as 0-3,8 [default: the first role, else the first ranks]
    #[arg(long, value_name = "LIST")]
    pub(crate) src_ranks: Option<String>,
    /// Destination ranks in mesh order [default: the second role, else the ranks behind the source ranks]
    #[arg(long, value_name = "LIST")]
    pub(crate) dst_ranks: Option<String>,
    /// hierarchical, flat or gather-broadcast [default: hierarchical, or CROSSMESH_ROUTE]
    #[arg(long, value_name = "ROUTE")]
    pub(crate) route: Option<String>,
    /// Which source replicas inject: striped or single [default: striped, or CROSSMESH_INJECTION]
    #[arg(long, value_name = "HOW")]
    pub(crate) injection: Option<String>,
    /// Rules file that overrides how tensors are sharded by name
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
    /// Bytes per second of one NIC and direction, such as 50GB, for the bound [default: measured]
    #[arg(long, value_name = "RATE")]
    pub(crate) nic_rate: Option<String>,
    /// Memory that tensors live in: shared (allocated by crossmesh) or private
    #[arg(long, value_name = "KIND", default_value = "shared")]
    pub(crate) memory: String,
    /// Times to run the transfer
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) repeat: u32,
    /// Compare every byte that arrived with the model, and digests between both sides
    #[arg(long)]
    pub(crate) verify: bool,
    /// Write every destination rank's shards to this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write the results as JSON to this file, - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
