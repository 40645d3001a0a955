//! NVLink domains. In: facts of one host. Out: a key for every GPU; equal keys reach each other by NVLink, on whatever
//! host they are. Guarantee: pure; a GPU that states a fabric and has no NVLink, unlike its neighbours, is alone.

use super::path::{direct_nvlinks, is_switched};
use crate::topology::facts::{FabricState, Gpu, HostFacts};
use serde::{Deserialize, Serialize};

/// Why GPUs are in one domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DomainKey {
    /// One clique of one fabric: cluster uuid and clique.
    Fabric(String, u32),
    /// NVLinks inside a host: host, and which island of it.
    Island(String, usize),
    /// A host without NVLink.
    Host(String),
    /// A GPU that reaches no other: host, and its position.
    Alone(String, usize),
}

/// Whether NVLinks of `gpu` are up. Files that know none of any GPU say nothing either way.
pub(super) fn has_nvlinks(gpu: &Gpu) -> bool {
    !gpu.mig && gpu.nvlinks.iter().any(|links| links.links > 0)
}

/// The domain of every GPU of a host; `host` tells it from other hosts.
pub(super) fn keys(facts: &HostFacts, host: &str) -> Vec<DomainKey> {
    let any = facts.gpus.iter().any(has_nvlinks);
    let islands = islands(&facts.gpus);
    let key = |(position, gpu): (usize, &Gpu)| {
        if gpu.mig || (any && !has_nvlinks(gpu)) {
            return DomainKey::Alone(host.to_string(), position);
        }
        match &gpu.fabric {
            Some(fabric) if fabric.is_set() && fabric.state == FabricState::Completed => {
                DomainKey::Fabric(fabric.cluster.clone(), fabric.clique)
            }
            _ if any => DomainKey::Island(host.to_string(), islands[position]),
            _ => DomainKey::Host(host.to_string()),
        }
    };
    facts.gpus.iter().enumerate().map(key).collect()
}

/// Islands in which every GPU reaches every other: each GPU joins the first island that takes it.
fn islands(gpus: &[Gpu]) -> Vec<usize> {
    let mut islands: Vec<Vec<&Gpu>> = Vec::new();
    let reaches = |one: &Gpu, other: &Gpu| {
        (is_switched(one) && is_switched(other) && !one.mig && !other.mig) || direct_nvlinks(one, other).0 > 0
    };
    gpus.iter()
        .map(|gpu| {
            let fits = islands.iter().position(|island| island.iter().all(|member| reaches(member, gpu)));
            match fits {
                Some(position) => {
                    islands[position].push(gpu);
                    position
                }
                None => {
                    islands.push(vec![gpu]);
                    islands.len() - 1
                }
            }
        })
        .collect()
}
