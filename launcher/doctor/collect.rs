//! Reads the settings of this host and process. In: the root of the file system, limits, environment. Out: [`State`].
//! Guarantee: nothing is changed, nothing panics, and no library that has side effects is started: libraries are
//! opened and closed.

use super::system::{DeviceFile, Limit, Space, State, System};
use crossmesh::base::env;
use crossmesh::topology::discover::{self, Tree};
use crossmesh::topology::{HostFacts, interface};
use nix::sys::resource::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Capability 19, in the mask of `/proc/self/status`.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// Libraries that are loaded where they are there, by the beginning of their name; what they are for stands in
/// docs/doctor.md.
const LIBRARIES: [&str; 4] = ["libcuda.so.1", "libnvidia-ml.so.1", "libnvrtc.so", "libibverbs.so.1"];

/// Where the loader looks, beside `LD_LIBRARY_PATH` and what `/etc/ld.so.conf.d` names.
const LIBRARY_FOLDERS: [&str; 7] = [
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/cuda/lib64",
];

/// Kernel modules that decide how GPUs and NICs work together.
const MODULES: [&str; 6] = ["nvidia", "nvidia_peermem", "nv_peer_mem", "ib_uverbs", "mlx5_ib", "gdrdrv"];

/// Variables of others that change what GPUs, NICs and starters do.
const FOREIGN_VARIABLES: [&str; 14] = [
    "CUDA_VISIBLE_DEVICES",
    "NCCL_CUMEM_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RDMAV_FORK_SAFE",
    "SLURM_JOB_ID",
    "SLURM_KILL_BAD_EXIT",
    "SLURM_STEP_GPUS",
    "SLURM_GPUS_PER_TASK",
    "UCX_TLS",
];

/// Error counters of a port, below `ports/N/`.
const COUNTERS: [&str; 7] = [
    "counters/symbol_error",
    "counters/link_downed",
    "counters/link_error_recovery",
    "counters/port_rcv_errors",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/packet_seq_err",
    "hw_counters/out_of_sequence",
];

/// All that this process knows, outside of a job, beside the `facts` of its host.
pub(super) fn state(facts: HostFacts) -> Result<State, env::EnvError> {
    Ok(State {
        rank: None,
        ranks: 1,
        ranks_here: 0,
        host_token: discover::this_rank(false)?.host_token,
        gpu: None,
        facts,
        system: system(Path::new("/")),
    })
}

fn system(root: &Path) -> System {
    let tree = Tree::at(root);
    let first_line = |path: &str| tree.text(path)?.lines().next().map(String::from);
    System {
        crossmesh: crossmesh::BUILD.to_string(),
        kernel: first_line("proc/sys/kernel/osrelease").unwrap_or_default(),
        open_files: limit(Resource::RLIMIT_NOFILE),
        stack: limit(Resource::RLIMIT_STACK),
        shared_memory: space(&root.join("dev/shm")),
        port_range: tree.text("proc/sys/net/ipv4/ip_local_port_range").and_then(|text| pair(&text)),
        listen_backlog: tree.value("proc/sys/net/core/somaxconn"),
        ptrace_scope: tree.value("proc/sys/kernel/yama/ptrace_scope"),
        may_trace: tree.text("proc/self/status").is_some_and(|status| may_trace(&status)),
        device_files: device_files(root, &tree),
        libraries: libraries(root, &tree),
        modules: modules(&root.join("sys/module")),
        nvidia_driver: first_line("proc/driver/nvidia/version"),
        error_counters: error_counters(&tree),
        environment: environment(),
        unknown_variables: env::unknown(),
        addresses: addresses(),
        clock: clock(),
    }
}

/// The wall clock, in seconds since 1970.
pub(super) fn clock() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

fn limit(resource: Resource) -> Limit {
    match getrlimit(resource) {
        Ok((soft, _)) if soft == nix::libc::RLIM_INFINITY => Limit::Unlimited,
        Ok((soft, _)) => Limit::At(soft),
        Err(_) => Limit::Unknown,
    }
}

fn pair(text: &str) -> Option<(u32, u32)> {
    let mut words = text.split_whitespace().map(str::parse);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

fn may_trace(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & CAP_SYS_PTRACE != 0)
}

fn space(path: &Path) -> Option<Space> {
    let facts = nix::sys::statvfs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(facts.fragment_size());
    Some(Space { total_bytes: bytes(facts.blocks()), free_bytes: bytes(facts.blocks_available()) })
}

fn device_files(root: &Path, tree: &Tree) -> Vec<DeviceFile> {
    let mut files = Vec::new();
    for (folder, prefix) in [("dev/infiniband", "uverbs"), ("dev/nvidia-caps-imex-channels", "channel")] {
        for name in tree.names(folder).into_iter().filter(|name| name.starts_with(prefix)) {
            let path = root.join(folder).join(name);
            let opened = fs::OpenOptions::new().read(true).write(true).open(&path);
            files.push(DeviceFile {
                path: path.display().to_string(),
                error: opened.err().map(|error| error.to_string()),
            });
        }
    }
    files
}

/// Where each library is; nothing is loaded.
fn libraries(root: &Path, tree: &Tree) -> BTreeMap<String, Option<String>> {
    let mut folders: Vec<PathBuf> = std::env::var_os("LD_LIBRARY_PATH")
        .map(|path| std::env::split_paths(&path).filter(|path| path.is_absolute()).collect())
        .unwrap_or_default();
    for name in tree.names("etc/ld.so.conf.d") {
        let text = tree.text(&format!("etc/ld.so.conf.d/{name}")).unwrap_or_default();
        folders.extend(text.lines().filter_map(|line| line.trim().strip_prefix('/')).map(|line| root.join(line)));
    }
    folders.extend(LIBRARY_FOLDERS.iter().map(|folder| root.join(folder)));
    let found: Vec<(String, PathBuf)> = folders
        .iter()
        .flat_map(|folder| {
            tree.names(&folder.to_string_lossy()).into_iter().map(|name| (name.clone(), folder.join(name)))
        })
        .filter(|(name, _)| LIBRARIES.iter().any(|library| name.starts_with(library)))
        .collect();
    let place = |library: &str| found.iter().find(|(name, _)| name.starts_with(library));
    LIBRARIES
        .iter()
        .map(|&library| (library.to_string(), place(library).map(|(_, path)| path.display().to_string())))
        .collect()
}

fn modules(folder: &Path) -> Vec<String> {
    MODULES.iter().filter(|name| folder.join(name).is_dir()).map(|name| (*name).to_string()).collect()
}

fn error_counters(tree: &Tree) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for device in tree.names("sys/class/infiniband") {
        let ports = format!("sys/class/infiniband/{device}/ports");
        for port in tree.names(&ports) {
            for counter in COUNTERS {
                let count: u64 = tree.value(&format!("{ports}/{port}/{counter}")).unwrap_or(0);
                if count > 0 {
                    let name = counter.rsplit('/').next().unwrap_or(counter);
                    counters.insert(format!("{device}/{port}/{name}"), count);
                }
            }
        }
    }
    counters
}

/// Variables as set; those whose values let their holder join a job are left out.
fn environment() -> BTreeMap<String, String> {
    let hidden = [env::UNIQUE_ID, env::LAUNCHER_KEY, env::RANK, env::LAUNCHER];
    let own = env::VARIABLES.iter().filter(|variable| !hidden.contains(variable));
    let own = own.filter_map(|&variable| Some((variable.name.to_string(), env::text(variable)?)));
    let foreign = FOREIGN_VARIABLES.iter().filter_map(|&name| Some((name.to_string(), std::env::var(name).ok()?)));
    own.chain(foreign).collect()
}

fn addresses() -> Vec<String> {
    let chosen = env::text(env::INTERFACE);
    let found = interface::addresses(chosen.as_deref()).unwrap_or_default();
    found.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn settings_are_read_from_a_tree() {
        let tree = tempfile::tempdir().unwrap();
        let root = tree.path();
        write(root, "proc/sys/kernel/osrelease", "6.8.0-1\n");
        write(root, "proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        write(root, "proc/sys/net/core/somaxconn", "128\n");
        write(root, "proc/sys/kernel/yama/ptrace_scope", "1\n");
        write(root, "proc/self/status", "Name:\tx\nCapEff:\t0000000000080000\n");
        write(root, "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "7\n");
        write(root, "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "0\n");
        write(root, "sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err", "3\n");
        write(root, "sys/module/nvidia/version", "580\n");
        write(root, "dev/infiniband/uverbs0", "");
        write(root, "etc/ld.so.conf.d/cuda.conf", "# comment\n/opt/cuda/lib\n");
        write(root, "opt/cuda/lib/libnvrtc.so.13", "");
        let system = system(root);
        assert_eq!(system.kernel, "6.8.0-1");
        assert_eq!(system.port_range, Some((32768, 60999)));
        assert_eq!((system.listen_backlog, system.ptrace_scope, system.may_trace), (Some(128), Some(1), true));
        let counters: Vec<(&str, u64)> = system.error_counters.iter().map(|(name, &count)| (&**name, count)).collect();
        assert_eq!(counters, [("mlx5_0/1/packet_seq_err", 3), ("mlx5_0/1/symbol_error", 7)]);
        assert_eq!(system.modules, ["nvidia"]);
        let nvrtc = system.libraries["libnvrtc.so"].as_deref();
        assert!(nvrtc.is_some_and(|path| path.ends_with("opt/cuda/lib/libnvrtc.so.13")), "{nvrtc:?}");
        assert!(system.device_files.len() == 1 && system.device_files[0].error.is_none());
    }

    #[test]
    fn an_empty_tree_is_no_error() {
        let tree = tempfile::tempdir().unwrap();
        let system = system(tree.path());
        assert_eq!((system.port_range, system.listen_backlog, system.ptrace_scope), (None, None, None));
        assert!(!system.may_trace && system.error_counters.is_empty() && system.device_files.is_empty());
        assert!(system.libraries.len() == LIBRARIES.len());
    }

    #[test]
    fn capabilities_are_read_from_their_mask() {
        assert!(may_trace("CapInh:\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(!may_trace("CapEff:\t0000000000000000\n"));
        assert!(!may_trace("CapEff: not hex\n") && !may_trace(""));
    }
}
