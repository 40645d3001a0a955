//! Memory that this process may still take. In: `/proc/meminfo`, its cgroups. Out: [`MemoryPool`]s. Guarantee: what is not
//! limited, or not told, is no pool; processes that take from one pool give it one identity, and no other.

use super::limits;
use super::tree::Tree;
use serde::{Deserialize, Serialize};

/// What memory is taken from: all of a host's, or the part that a cgroup grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPool {
    /// Equal exactly for processes that share it.
    pub identity: String,
    /// The cgroup's folder; `None` for the memory of the host.
    pub cgroup: Option<String>,
    /// What is left, counting what the kernel gives up for it: the cache of files.
    pub available_bytes: u64,
}

/// The pools of this process, the host's first. `reserved_pages` says whether it takes the huge pages that the
/// administrator reserved, too, which no other count includes.
pub fn memory_pools(tree: &Tree, reserved_pages: bool) -> Vec<MemoryPool> {
    let told = |name: &str| tree.text(name).map(|text| text.trim().to_string()).filter(|text| !text.is_empty());
    let kernel =
        told("proc/sys/kernel/random/boot_id").or_else(|| told("proc/sys/kernel/hostname")).unwrap_or_default();
    let facts = tree.text("proc/meminfo").unwrap_or_default();
    let fact = |key: &str| {
        let line = facts.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let page = || Some(fact("HugePages_Free")?.saturating_mul(fact("Hugepagesize")?));
    let reserved = if reserved_pages { page().unwrap_or(0) } else { 0 };
    let host = fact("MemAvailable").map(|kibibytes| MemoryPool {
        identity: kernel.clone(),
        cgroup: None,
        available_bytes: kibibytes.saturating_add(reserved).saturating_mul(1024),
    });
    let group = |folder: String| {
        let available = left_of(tree, &folder)?.saturating_add(reserved.saturating_mul(1024));
        // Containers see their own cgroup under one and the same name.
        let identity = format!("{kernel} {}", tree.inode(&folder)?);
        Some(MemoryPool { identity, cgroup: Some(format!("/{folder}")), available_bytes: available })
    };
    host.into_iter().chain(limits::cgroups(tree, "memory").into_iter().filter_map(group)).collect()
}

/// What a cgroup of either version has left; `None` where it has no limit.
fn left_of(tree: &Tree, group: &str) -> Option<u64> {
    let value = |name: &str| tree.value::<u64>(&format!("{group}/{name}"));
    let (limit, used, files) = match value("memory.current") {
        Some(used) => (value("memory.max")?, used, ["inactive_file", "active_file"]),
        None => {
            // Without a limit it is the greatest number of whole pages.
            let limit = value("memory.limit_in_bytes").filter(|&limit| limit < i64::MAX as u64 - (1 << 20))?;
            (limit, value("memory.usage_in_bytes")?, ["total_inactive_file", "total_active_file"])
        }
    };
    let facts = tree.text(&format!("{group}/memory.stat")).unwrap_or_default();
    let cached = facts.lines().filter_map(|line| {
        let (key, bytes) = line.split_once(' ')?;
        bytes.trim().parse::<u64>().ok().filter(|_| files.contains(&key))
    });
    Some(limit.saturating_sub(used.saturating_sub(cached.sum())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The cgroup and the bytes of every pool.
    fn pools(root: &Path, reserved_pages: bool) -> Vec<(Option<String>, u64)> {
        let pools = memory_pools(&Tree::at(root), reserved_pages);
        pools.into_iter().map(|pool| (pool.cgroup, pool.available_bytes)).collect()
    }

    #[test]
    fn the_host_and_every_limited_cgroup_above_are_pools() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(pools(root, false), []);
        let meminfo = "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:   700 kB\nHugePages_Total: 5\nHugePages_Free: 3\n\
                       Hugepagesize: 100 kB\n";
        write(root, "proc/meminfo", meminfo);
        write(root, "proc/sys/kernel/random/boot_id", "boot\n");
        write(root, "proc/self/cgroup", "0::/job/step\n");
        assert_eq!(pools(root, false), [(None, 700 << 10)]);
        assert_eq!(pools(root, true), [(None, 1000 << 10)]);
        write(root, "sys/fs/cgroup/job/step/memory.max", "max\n");
        write(root, "sys/fs/cgroup/job/step/memory.current", "10\n");
        write(root, "sys/fs/cgroup/job/memory.max", "5000\n");
        write(root, "sys/fs/cgroup/job/memory.current", "4000\n");
        let job = |bytes| (Some("/sys/fs/cgroup/job".to_string()), bytes);
        assert_eq!(pools(root, false), [(None, 700 << 10), job(1000)]);
        // The cache of files is given up; shared memory, which is no file's, is not.
        write(root, "sys/fs/cgroup/job/memory.stat", "anon 500\nshmem 900\ninactive_file 300\nactive_file 200\n");
        assert_eq!(pools(root, false), [(None, 700 << 10), job(1500)]);
        write(root, "sys/fs/cgroup/job/memory.current", "6000\n");
        assert_eq!(pools(root, false)[1], job(0));
        assert_eq!(pools(root, true)[1], job(300 << 10));
    }

    #[test]
    fn cgroups_of_the_first_version_have_limits_too() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root, "proc/self/cgroup", "4:cpu,cpuacct:/other\n3:memory:/job\n0::/\n");
        let group = "sys/fs/cgroup/memory/job";
        for (name, value) in [("limit_in_bytes", "8000"), ("usage_in_bytes", "3000")] {
            write(root, &format!("{group}/memory.{name}"), value);
        }
        write(
            root,
            &format!("{group}/memory.stat"),
            "inactive_file 1\ntotal_inactive_file 700\ntotal_active_file 300\n",
        );
        assert_eq!(pools(root, false), [(Some(format!("/{group}")), 6000)]);
        write(root, &format!("{group}/memory.limit_in_bytes"), "9223372036854771712");
        assert_eq!(pools(root, false), []);
    }

    #[test]
    fn pools_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root, "proc/meminfo", "MemAvailable: 700 kB\n");
        write(root, "proc/sys/kernel/random/boot_id", "boot\n");
        for group in ["one", "two"] {
            write(root, &format!("sys/fs/cgroup/{group}/memory.max"), "5000\n");
            write(root, &format!("sys/fs/cgroup/{group}/memory.current"), "0\n");
        }
        let identities = |group: &str| {
            write(root, "proc/self/cgroup", &format!("0::/{group}\n"));
            memory_pools(&Tree::at(root), false).into_iter().map(|pool| pool.identity).collect::<Vec<_>>()
        };
        let (one, two) = (identities("one"), identities("two"));
        assert_eq!((one[0].as_str(), &one[0]), ("boot", &two[0]));
        assert_eq!((one.len(), two.len()), (2, 2));
        assert_ne!(one[1], two[1]);
        assert_eq!(one, identities("one"));
    }

    #[test]
    fn this_host_tells_its_memory() {
        let pools = memory_pools(&Tree::at("/"), false);
        assert!(pools.first().is_some_and(|pool| pool.cgroup.is_none() && pool.available_bytes > 0), "{pools:?}");
    }
}
