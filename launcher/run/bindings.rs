//! Where ranks run: found by each agent for its rank, shown by the launcher as one table.
//!
//! In: the choice, the rank's place among those of its kernel; what agents report. Out: a [`Binding`], the table.
//! Guarantee: a rank that cannot be bound runs unbound and says why; the table comes once, in rank order.

use super::plan::JobPlan;
use super::starter::Bind;
use crossmesh::topology::{Binding, ClusterOptions, binding, discover};

/// Where number `local` of the `ranks` ranks on this kernel is to run; `None` for wherever the starter put it.
pub(crate) fn find(bind: Bind, local: u32, ranks: u32) -> Option<Binding> {
    let choose = match bind {
        Bind::None => return None,
        Bind::Near => binding::near,
        Bind::Core => binding::cores,
    };
    let facts = discover::this_host_by_sysfs().map_err(|error| error.to_string());
    let options = ClusterOptions::from_environment().map_err(|error| error.to_string());
    let (facts, options) = match (facts, options) {
        (Ok(facts), Ok(options)) => (facts, options),
        (Err(error), _) | (_, Err(error)) => {
            log::warn!("a rank runs unbound: {error}");
            return None;
        }
    };
    choose(&facts, ranks.max(1) as usize, &options).into_iter().nth(local as usize).filter(|own| !own.cpus.is_empty())
}

/// What agents reported so far.
#[derive(Debug)]
pub(crate) struct Bindings {
    of_rank: Vec<Option<Option<Binding>>>,
    wanted: bool,
}

impl Bindings {
    /// Of `size` ranks; the table is `wanted` or not.
    pub(crate) fn new(size: u32, wanted: bool) -> Self {
        Self { of_rank: vec![None; size as usize], wanted }
    }

    /// Takes the report of `rank`; the table once it was the last.
    pub(crate) fn take(&mut self, rank: u32, json: &[u8], plan: &JobPlan, hosts: &[String]) -> Option<String> {
        let binding = serde_json::from_slice(json).unwrap_or_else(|error| {
            log::warn!("rank {rank} reports a binding that cannot be read: {error}");
            None
        });
        *self.of_rank.get_mut(rank as usize)? = Some(binding);
        let complete = self.of_rank.iter().all(Option::is_some);
        (self.wanted && complete).then(|| self.table(plan, hosts))
    }

    fn table(&self, plan: &JobPlan, hosts: &[String]) -> String {
        let title = ["rank", "role", "host", "CPUs", "", "memory", "GPU", "NICs"].map(String::from);
        let row = |(rank, binding): (usize, &Option<Option<Binding>>)| {
            let host = hosts.get(rank).cloned().unwrap_or_default();
            let role = plan.role(rank as u32).unwrap_or_default().to_string();
            let [cpus, shared, memory, gpu, nics] = match binding.as_ref().and_then(Option::as_ref) {
                None => ["not bound".into(), String::new(), String::new(), String::new(), String::new()],
                Some(binding) => [
                    binding.cpus.to_string(),
                    if binding.shared { "shared".into() } else { String::new() },
                    binding.memory_node.map(|node| format!("node {node}")).unwrap_or_default(),
                    binding.gpu.map(|gpu| gpu.to_string()).unwrap_or_default(),
                    binding.nics.join(","),
                ],
            };
            [rank.to_string(), role, host, cpus, shared, memory, gpu, nics]
        };
        let rows: Vec<_> = [title].into_iter().chain(self.of_rank.iter().enumerate().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let filled = |column: usize| rows.iter().skip(1).any(|row| !row[column].is_empty());
        let columns: Vec<_> = (0..8).filter(|&column| filled(column)).map(|column| (column, width(column))).collect();
        let line = |row: &[String; 8]| {
            let cells: Vec<_> = columns.iter().map(|&(column, width)| format!("{:width$}", row[column])).collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_comes_with_the_last_report() {
        let plan = JobPlan::new(Some(3), Vec::new(), None).unwrap();
        let hosts = ["n1", "n1", "n2"].map(String::from);
        let mut bindings = Bindings::new(3, true);
        let json = |cpus: &str, memory_node, shared| {
            let cpus = cpus.parse().unwrap();
            let own = Binding { cpus, memory_node, shared, nics: vec!["mlx5_0".into()], ..Binding::default() };
            serde_json::to_vec(&Some(own)).unwrap()
        };
        assert_eq!(bindings.take(1, &json("36-71", Some(0), false), &plan, &hosts), None);
        assert_eq!(bindings.take(0, &json("0-35", Some(0), true), &plan, &hosts), None);
        let expected = "rank  host  CPUs               memory  NICs\n\
                        0     n1    0-35       shared  node 0  mlx5_0\n\
                        1     n1    36-71              node 0  mlx5_0\n\
                        2     n2    not bound\n";
        assert_eq!(bindings.take(2, b"null", &plan, &hosts).as_deref(), Some(expected));
        assert_eq!(Bindings::new(1, false).take(0, b"null", &plan, &hosts), None);
    }
}
