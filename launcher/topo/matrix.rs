//! `crossmesh topo --matrix`. In: a cluster. Out: for every kind of node a table of GPUs by GPUs and NICs, as
//! nvidia-smi names the paths, with GB/s. Guarantee: nodes that are alike are shown once; a `*` marks the NICs of a GPU.

use super::gigabytes;
use super::tree::{alike, head, names, tail};
use crossmesh::topology::Cluster;
use crossmesh::topology::cluster::{Node, Path, Paths};
use std::fmt::Write;

const LEGEND: &str = "
NV#  so many NVLinks                    PHB   one PCI host bridge
PIX  one PCI switch                     NODE  host bridges of one NUMA node
PXB  several PCI switches               SYS   the link between sockets
P2C  PCI to the CPU, C2C to the GPU     *     a NIC that the GPU uses; numbers are GB/s one way
";

/// Summary, tables, legend.
pub(super) fn render(cluster: &Cluster) -> String {
    let mut text = head(cluster);
    for (hosts, table) in alike(cluster, table) {
        let _ = write!(text, "\n{}\n{table}", names(&hosts));
    }
    text.push_str(LEGEND);
    text.push_str(&tail(cluster));
    text
}

fn table(node: &Node) -> String {
    let facts = &node.facts;
    let paths = Paths::new(facts);
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut title = vec![String::new()];
    title.extend(facts.gpus.iter().map(|gpu| format!("GPU{}", gpu.index)));
    title.extend(facts.nics.iter().map(
        |nic| match facts.nics.iter().filter(|other| other.device == nic.device).count() {
            1 => nic.device.clone(),
            _ => format!("{}/{}", nic.device, nic.port),
        },
    ));
    title.extend(["CPUs".to_string(), "NUMA".to_string(), "domain".to_string()]);
    rows.push(title);
    for (position, gpu) in facts.gpus.iter().enumerate() {
        let mut row = vec![format!("GPU{}", gpu.index)];
        row.extend(facts.gpus.iter().enumerate().map(|(other, peer)| match other == position {
            true => "X".to_string(),
            false => cell(paths.gpu_to_gpu(gpu, peer), false),
        }));
        row.extend(
            facts.nics.iter().enumerate().map(|(nic, card)| {
                cell(paths.gpu_to_nic(gpu, card), node.pairing.nics_of_gpu[position].contains(&nic))
            }),
        );
        let near = facts.node_near(gpu.numa);
        row.push(near.map(|numa| numa.cpus.to_string()).unwrap_or_default());
        row.push(near.map(|numa| numa.index.to_string()).unwrap_or_default());
        row.push(node.domains[position].to_string());
        rows.push(row);
    }
    if facts.gpus.is_empty() {
        return "  no GPUs\n".to_string();
    }
    aligned(&rows)
}

fn cell(path: Path, used: bool) -> String {
    let rate = path.bytes_per_second.map(|rate| format!(" {}", gigabytes(rate))).unwrap_or_default();
    format!("{}{rate}{}", path.kind, if used { "*" } else { "" })
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| Some(row.get(column)?.len())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text.push_str(&format!("  {}\n", cells.join("  ").trim_end()));
    }
    text
}
