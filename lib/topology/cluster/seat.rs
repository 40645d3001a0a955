//! The GPU of a rank and the NICs that it uses. In: nothing. Out: plain data. Guarantee: small, as every rank sends its own.

use serde::{Deserialize, Serialize};

/// Where a rank with a GPU sits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// PCI address of the GPU; empty for a rank without one.
    pub gpu: String,
    /// Equal for GPUs that reach each other by NVLink, on any host.
    pub nvlink: Option<String>,
    /// NICs, nearest first; bytes are striped over them.
    pub nics: Vec<NicSeat>,
}

/// A NIC of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicSeat {
    /// Device, such as `mlx5_0`.
    pub device: String,
    /// Port, from 1.
    pub port: u32,
    /// Its rail: NICs of the same rail are on the same leaf switch.
    pub rail: u32,
    /// Rate one way; 0 when not told.
    pub bytes_per_second: u64,
    /// Ranks of this host that use it.
    pub sharers: u32,
}
