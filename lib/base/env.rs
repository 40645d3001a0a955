//! Every environment variable that crossmesh reads, in one table.
//!
//! In: the process environment. Out: typed values. Guarantee: nothing else in the project reads a
//! `CROSSMESH_` variable; `crossmesh env` prints this table; an unreadable value is an error, never ignored.

use crate::base::bytes;
use std::time::Duration;
use thiserror::Error;

/// One environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What holds when it is not set.
    pub default: &'static str,
    /// What values it takes.
    pub values: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

impl Variable {
    /// The values of a fixed list, `a|b|c` in the table; none where others are possible.
    pub fn choices(self) -> impl Iterator<Item = &'static str> {
        self.values.split('|').filter(move |_| self.values.contains('|'))
    }

    fn takes(self, value: &str) -> bool {
        // The reader of log levels takes them in letters of either case, no other reader does.
        let same = |choice: &str| if self == LOG { choice.eq_ignore_ascii_case(value) } else { choice == value };
        self.choices().next().is_none() || self.choices().any(same)
    }
}

macro_rules! variables {
    ($($ident:ident = $name:literal, $default:literal, $values:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $ident: Variable =
            Variable { name: $name, default: $default, values: $values, meaning: $meaning };)*
        /// All variables, in the order of the table.
        pub const VARIABLES: &[Variable] = &[$($ident),*];
    };
}

variables! {
    LOG = "CROSSMESH_LOG", "warn", "off|error|warn|info|debug|trace", "what is logged to standard error";
    BOOTSTRAP = "CROSSMESH_BOOTSTRAP", "auto", "auto|mpi|tcp", "how ranks find each other";
    UNIQUE_ID = "CROSSMESH_UNIQUE_ID", "", "text of a unique id", "rendezvous address and job key for launch without MPI; erased from the environment once read";
    RANK = "CROSSMESH_RANK", "from the starter", "integer", "this process's rank, for launch without MPI";
    SIZE = "CROSSMESH_SIZE", "from the starter", "integer", "number of processes, for launch without MPI";
    MPI_ADAPTER = "CROSSMESH_MPI_ADAPTER", "beside the binary", "path", "the adapter library for the MPI that started the process";
    DOMAIN = "CROSSMESH_DOMAIN", "same host", "integer", "NVLink domain of this rank; set on all ranks or on none";
    ROLE = "CROSSMESH_ROLE", "", "name", "role of this rank, set by crossmesh run --role";
    ROLES = "CROSSMESH_ROLES", "", "name=count,...", "all roles in rank order, set by crossmesh run --role";
    DOMAINS = "CROSSMESH_DOMAINS", "", "integer", "cut the ranks into so many contiguous domains";
    ROUTE = "CROSSMESH_ROUTE", "hierarchical", "hierarchical|flat|gather-broadcast", "route of every reshard";
    INJECTION = "CROSSMESH_INJECTION", "striped", "striped|single", "which source replicas inject";
    ALGORITHM = "CROSSMESH_ALGORITHM", "by size", "one-shot-push|line-push|one-shot-pull|two-shot-push|two-shot|shard-push|ring|host-ordered", "algorithm of every collective on GPUs";
    TUNING = "CROSSMESH_TUNING", "the build's own", "path", "table by which collectives on GPUs choose, as crossmesh tune writes it";
    STAGING = "CROSSMESH_STAGING", "64MiB", "byte count", "staging memory of one rank";
    CHUNK = "CROSSMESH_CHUNK", "1MiB", "byte count", "largest chunk of a message link";
    MAPPED = "CROSSMESH_MAPPED", "auto", "auto|shared|staged", "how private buffers are read inside a domain: auto probes process_vm_readv, shared never uses it for private buffers, staged maps nothing";
    CACHE = "CROSSMESH_CACHE", "crossmesh in the user's cache folder", "path", "folder of compiled GPU kernels and tested GPU links";
    NVRTC = "CROSSMESH_NVRTC", "libnvrtc.so of the system", "path", "run-time compiler of CUDA";
    PEER_ACCESS = "CROSSMESH_PEER_ACCESS", "tested", "off|tested|trusted", "whether GPUs have access to each other's memory: tested where a test of their links has passed, trusted without one; off takes all bytes of transfers through memory of the hosts and refuses channels of collectives; the most careful setting of any rank holds";
    GPU_HANDLES = "CROSSMESH_GPU_HANDLES", "auto", "local|auto|fabric", "by which handles GPUs map each other's memory: auto takes fabric handles between hosts of one NVLink domain, fabric also on one host, local none: bytes between hosts then go through memory of the hosts";
    PAGES = "CROSSMESH_PAGES", "huge", "huge|reserved|small", "pages of the shared memory that tensors lie in: huge makes huge pages (twice the time to allocate), reserved takes those of vm.nr_hugepages first, small uses ordinary pages";
    INTERFACE = "CROSSMESH_INTERFACE", "every address of the host", "interface name or address", "network interface that TCP binds to";
    TOPOLOGY = "CROSSMESH_TOPOLOGY", "this machine", "path", "topology file that stands for this host: JSON of crossmesh topo --json, hwloc XML or NCCL topology XML";
    NICS = "CROSSMESH_NICS", "those that together are fastest", "NAME,... with *, ^NAME to leave one out", "RDMA devices that carry tensors";
    RAILS = "CROSSMESH_RAILS", "from their places on PCI", "DEVICE=RAIL,...", "rail of every RDMA device: those of one rail are on the same leaf switches";
    HWLOC_ADAPTER = "CROSSMESH_HWLOC_ADAPTER", "beside the binary", "path", "the adapter library for hwloc, asked where the kernel does not tell a device's NUMA node";
    TIMEOUT = "CROSSMESH_TIMEOUT", "600", "whole seconds, 1 to 10^9", "longest wait of a call without an explicit deadline";
    INIT_TIMEOUT = "CROSSMESH_INIT_TIMEOUT", "120", "whole seconds, 1 to 10^9", "longest wait for all ranks at start";
    LAUNCHER = "CROSSMESH_LAUNCHER", "", "address", "set by crossmesh run for its per-rank agents";
    TERMINAL = "CROSSMESH_TERMINAL", "", "0|1", "whether crossmesh run writes to a terminal, set by it: a job of some length then tells how far it is";
    LAUNCHER_KEY = "CROSSMESH_LAUNCHER_KEY", "", "hex", "key of the launcher connection; erased from the environment once read";
}

/// A variable whose value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name}={value:?} cannot be used; allowed: {allowed}; correct it or unset {name}")]
pub struct EnvError {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What it may be.
    pub allowed: &'static str,
}

/// The value of `variable`, `None` when unset or empty.
pub fn text(variable: Variable) -> Option<String> {
    std::env::var(variable.name).ok().filter(|value| !value.is_empty())
}

fn parsed<T>(variable: Variable, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, EnvError> {
    let Some(value) = text(variable) else { return Ok(None) };
    match read(&value) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(EnvError { name: variable.name, value, allowed: variable.values }),
    }
}

/// An integer.
pub fn integer(variable: Variable) -> Result<Option<u64>, EnvError> {
    parsed(variable, |value| value.parse().ok())
}

/// A limit in seconds, for which 0 would be no time for anything and more than 10^9 none that ends.
pub fn seconds(variable: Variable) -> Result<Option<Duration>, EnvError> {
    parsed(variable, |value| value.parse().ok().filter(|seconds| (1..=1_000_000_000).contains(seconds)))
        .map(|seconds| seconds.map(Duration::from_secs))
}

/// The variables that are set and look like crossmesh's, but are not: misspelt, most likely.
pub fn unknown() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<String> = names.filter(|name| is_unknown(name)).collect();
    unknown.sort_unstable();
    unknown
}

/// The variables with a fixed list of values for which `read` gives something else, in the order of the table.
pub fn wrongly_set(read: impl Fn(Variable) -> Option<String>) -> Vec<EnvError> {
    let wrong = |&variable: &Variable| {
        let value = read(variable).filter(|value| !value.is_empty() && !variable.takes(value))?;
        Some(EnvError { name: variable.name, value, allowed: variable.values })
    };
    VARIABLES.iter().filter_map(wrong).collect()
}

fn is_unknown(name: &str) -> bool {
    name.starts_with("CROSSMESH_")
        && !name.starts_with("CROSSMESH_TEST_")
        && VARIABLES.iter().all(|variable| variable.name != name)
}

/// A byte count such as `64MiB`.
pub fn byte_count(variable: Variable) -> Result<Option<u64>, EnvError> {
    parsed(variable, |value| bytes::parse(value).ok())
}

/// Anything that reads itself from text; `None` when unset.
pub fn value<T: std::str::FromStr>(variable: Variable) -> Result<Option<T>, EnvError> {
    parsed(variable, |value| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_prefixed() {
        let mut names: Vec<_> = VARIABLES.iter().map(|variable| variable.name).collect();
        assert!(names.iter().all(|name| name.starts_with("CROSSMESH_")));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), VARIABLES.len());
    }

    #[test]
    fn misspelt_names_are_told_from_others() {
        for name in ["CROSSMESH_ROUT", "CROSSMESH_", "CROSSMESH_ROUTES"] {
            assert!(is_unknown(name), "{name}");
        }
        for name in ["CROSSMESH_ROUTE", "CROSSMESH_TEST_LARGE", "PATH", "crossmesh_route"] {
            assert!(!is_unknown(name), "{name}");
        }
    }

    #[test]
    fn only_values_of_a_fixed_list_can_be_wrong() {
        let of = |set: &[(Variable, &str)]| {
            let read =
                |variable| set.iter().find(|(other, _)| *other == variable).map(|(_, value)| (*value).to_string());
            wrongly_set(read)
        };
        let wrong = of(&[(ROUTE, "falt"), (STAGING, "much"), (MAPPED, "staged"), (PAGES, ""), (TERMINAL, "yes")]);
        let allowed = "hierarchical|flat|gather-broadcast";
        assert_eq!(
            wrong,
            [
                EnvError { name: "CROSSMESH_ROUTE", value: "falt".into(), allowed },
                EnvError { name: "CROSSMESH_TERMINAL", value: "yes".into(), allowed: "0|1" },
            ]
        );
        assert_eq!(of(&[(LOG, "INFO"), (ROUTE, "flat")]), []);
        assert_eq!(of(&[(LOG, "loud"), (ROUTE, "FLAT")]).len(), 2);
        assert!(wrongly_set(|variable| variable.choices().last().map(String::from)).is_empty());
        assert_eq!(wrongly_set(|_| Some("a|b".into())).len(), 10);
    }
}
