//! Facts of this process. In: `/proc`, the environment. Out: [`RankFacts`]. Guarantee: a missing source is
//! replaced by one that never claims a shared host wrongly.

use super::RankFacts;
use crate::base::env;
use std::fs;

/// Facts of this process; `starts_side` as the caller knows it.
pub fn this_rank(starts_side: bool) -> Result<RankFacts, env::EnvError> {
    Ok(RankFacts {
        host: host_name(),
        host_token: host_token(),
        domain: env::value(env::DOMAIN)?,
        domain_count: env::value(env::DOMAINS)?,
        starts_side,
        seat: None,
    })
}

/// The host's name, `unknown` when it has none.
pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "unknown".into())
}

/// Equal for processes that can share descriptors and read each other's memory, never merely by pid.
///
/// The boot id names the kernel; the pid namespace must be shared for `process_vm_readv`, the UTS and IPC
/// namespaces tell emulated hosts on one kernel apart.
fn host_token() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_string())
        .unwrap_or_else(|_| format!("no-boot-id-{}-{}", host_name(), std::process::id()));
    let namespace = |name: &str| {
        fs::read_link(format!("/proc/self/ns/{name}")).map(|link| link.display().to_string()).unwrap_or_default()
    };
    format!("{boot} {} {} {}", namespace("pid"), namespace("uts"), namespace("ipc"))
}
