//! What a rank states about itself. In: nothing. Out: plain, serialisable data. Guarantee: no interpretation here.

use serde::{Deserialize, Serialize};

/// Facts of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFacts {
    /// Host name, for messages only.
    pub host: String,
    /// Equal exactly for ranks that share a kernel and its IPC namespaces: boot id and namespace inodes.
    pub host_token: String,
    /// `CROSSMESH_DOMAIN`, when set.
    pub domain: Option<u32>,
    /// `CROSSMESH_DOMAINS`, when set.
    pub domain_count: Option<u32>,
    /// Starts a new side of the job (first rank of a role); domains cut by count begin here where they can.
    pub starts_side: bool,
}
