//! Facts of this host that starting a job depends on.
//!
//! In: `/sys`, the search path. Out: name, cores, programs. Guarantee: what cannot
//! be read is replaced by a value that is safe to go on with.

use crossmesh::topology::discover;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Name of this host, without its domain.
pub(crate) fn name() -> String {
    let name = discover::host_name();
    name.split('.').next().unwrap_or_default().to_string()
}

/// Cores, not hardware threads: what Open MPI counts as slots.
pub(crate) fn cores() -> u32 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_string());
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let cores: BTreeSet<_> = cpus
        .filter_map(|cpu| {
            let topology = cpu.path().join("topology");
            Some((read(topology.join("physical_package_id"))?, read(topology.join("core_id"))?))
        })
        .collect();
    let count = if cores.is_empty() { threads } else { threads.min(cores.len()) };
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Allows descriptors for so many ranks where the hard limit does; programs of few ranks see the limit unchanged.
pub(crate) fn raise_descriptor_limit(ranks: u32) {
    // A connection and two files for each rank, and some for everything else.
    let wanted = u64::from(ranks) * 3 + 256;
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let allowed = wanted.min(hard);
        if soft < allowed { setrlimit(Resource::RLIMIT_NOFILE, allowed, hard) } else { Ok(()) }
    });
    if let Err(error) = raised {
        log::warn!("cannot raise the limit of open files to {wanted}: {error}");
    }
}

/// The executable file `name` in the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let executable = |path: &Path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| executable(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_cores_and_a_shell() {
        assert!(cores() >= 1);
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("no-such-program-here"), None);
        assert!(!name().contains('.'));
    }
}
