//! What this process may use. In: `/proc/self`, its cgroup, `CUDA_VISIBLE_DEVICES`. Out: [`Limits`]. Guarantee: what is
//! not limited, or not told, is `None` or empty.

use super::tree::Tree;
use crate::topology::CpuSet;
use crate::topology::facts::Limits;

/// Limits of this process; which GPUs are hidden is known once NVML was asked.
pub(super) fn limits(tree: &Tree) -> Limits {
    let status = tree.text("proc/self/status").unwrap_or_default();
    let set = |key: &str| -> CpuSet {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|list| list.parse().ok()).unwrap_or_default()
    };
    Limits {
        cpus: set("Cpus_allowed_list:"),
        memory_nodes: set("Mems_allowed_list:"),
        cpu_quota_thousandths: quota(tree),
        // Whether it is set matters also when it is empty: then no GPU is visible.
        cuda_visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok().filter(|_| tree.is_live()),
        hidden_gpus: Vec::new(),
        locked_memory_bytes: locked_memory(&tree.text("proc/self/limits").unwrap_or_default()),
    }
}

/// The smallest quota on the way from this process's cgroup to the root.
fn quota(tree: &Tree) -> Option<u64> {
    cgroups(tree, "cpu").iter().filter_map(|group| quota_of(tree, group)).min()
}

/// Folders of the cgroups, of either version, that bind this process by `controller`: from the root of all down to its own.
pub(super) fn cgroups(tree: &Tree, controller: &str) -> Vec<String> {
    let groups = tree.text("proc/self/cgroup").unwrap_or_default();
    let paths = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        match controllers {
            "" => Some(("sys/fs/cgroup".to_string(), path)),
            _ if controllers.split(',').any(|name| name == controller) => {
                Some((format!("sys/fs/cgroup/{controller}"), path))
            }
            _ => None,
        }
    });
    let steps = paths.flat_map(|(root, path)| {
        let mut step = path.trim_matches('/').to_string();
        let mut found = Vec::new();
        while !step.is_empty() && step.split('/').all(|part| part != "..") {
            found.push(format!("{root}/{step}"));
            step.truncate(step.rfind('/').unwrap_or(0));
        }
        found.push(root);
        found.into_iter().rev()
    });
    steps.collect()
}

fn quota_of(tree: &Tree, group: &str) -> Option<u64> {
    let (quota, period) = match tree.text(&format!("{group}/cpu.max")) {
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            (quota.parse::<i64>().ok()?, period.trim().parse::<i64>().ok()?)
        }
        None => {
            let value = |name: &str| tree.value::<i64>(&format!("{group}/{name}"));
            (value("cpu.cfs_quota_us")?, value("cpu.cfs_period_us")?)
        }
    };
    let (quota, period) = (u64::try_from(quota).ok()?, u64::try_from(period).ok().filter(|&period| period > 0)?);
    Some(quota.saturating_mul(1000) / period)
}

/// The soft limit of `Max locked memory`; `None` for `unlimited`.
fn locked_memory(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_both_kinds_of_cgroups() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let tree = Tree::at(folder.path());
        write("proc/self/cgroup", "0::/a/b\n");
        assert_eq!(quota(&tree), None);
        write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
        assert_eq!(quota(&tree), None);
        write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        assert_eq!(quota(&tree), Some(1500));
        write("proc/self/cgroup", "3:cpuset:/\n2:cpu,cpuacct:/job\n");
        write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
        write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota(&tree), None);
        write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n");
        assert_eq!(quota(&tree), Some(500));
    }

    #[test]
    fn locked_memory_is_a_number_or_unlimited() {
        assert_eq!(
            locked_memory("Max locked memory         8388608              8388608              bytes"),
            Some(8 << 20)
        );
        assert_eq!(locked_memory("Max locked memory         unlimited            unlimited            bytes"), None);
        assert_eq!(locked_memory(""), None);
    }
}
