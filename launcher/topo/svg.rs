//! `crossmesh topo --svg`. In: a cluster. Out: a picture: domains with their nodes, GPUs above the NICs that they use.
//! Guarantee: no overlapping boxes, whatever the numbers; every text from outside is escaped.

use super::gigabytes;
use crate::counted::counted;
use crate::markup::escape;
use crossmesh::base::DomainId;
use crossmesh::topology::Cluster;
use crossmesh::topology::cluster::{Node, Paths, nvlink_rate_of};
use std::fmt::Write;

/// Device boxes, in pixels.
const WIDTH: usize = 116;
const HEIGHT: usize = 44;
/// Space between boxes, and of text above them.
const GAP: usize = 10;
const TITLE: usize = 24;
/// Space between GPUs and NICs, for the lines.
const WIRES: usize = 56;
/// Fill of GPUs by domain, in turn.
const COLOURS: [&str; 6] = ["#cfe8c9", "#cfe0f5", "#f7e3bd", "#ecd3ea", "#d2efee", "#f5d0cb"];

/// The picture.
pub(super) fn render(cluster: &Cluster) -> String {
    let devices = |node: &Node| node.facts.gpus.len().max(node.facts.nics.len()).max(2);
    let widest = cluster.nodes.iter().map(devices).max().unwrap_or(2);
    let (width, height) = (widest * (WIDTH + GAP) + GAP, TITLE + 2 * HEIGHT + WIRES + 2 * GAP);
    // Columns, so that the picture is about as wide as high.
    let count = cluster.nodes.len().max(1);
    let columns = (1..=count).find(|columns| columns * width >= count.div_ceil(*columns) * height).unwrap_or(1);
    let rows = count.div_ceil(columns);
    let legend = TITLE * (cluster.domains.len().min(COLOURS.len()) + 1);
    let (full_width, full_height) = (columns * (width + GAP) + GAP, rows * (height + GAP) + GAP + legend);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {full_width} {full_height}\" width=\"{full_width}\" \
         height=\"{full_height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (number, domain) in cluster.domains.iter().take(COLOURS.len()).enumerate() {
        let y = GAP + number * TITLE;
        let _ = writeln!(text, "<rect x=\"{GAP}\" y=\"{y}\" width=\"16\" height=\"16\" fill=\"{}\"/>", COLOURS[number]);
        let label =
            format!("domain {number}: {}, by {}", counted(domain.gpus.len(), "GPU"), super::tree::key(&domain.key));
        label_at(&mut text, GAP + 24, y + 13, "start", &label);
    }
    for (position, node) in cluster.nodes.iter().enumerate() {
        let (x, y) = (position % columns * (width + GAP) + GAP, position / columns * (height + GAP) + legend);
        draw_node(&mut text, node, (x, y), (width, height));
    }
    text + "</svg>\n"
}

fn draw_node(text: &mut String, node: &Node, (x, y): (usize, usize), (width, height): (usize, usize)) {
    let facts = &node.facts;
    let paths = Paths::new(facts);
    rectangle(text, (x, y), (width, height), "#fafafa");
    let rate = facts.gpus.first().map(nvlink_rate_of).filter(|&rate| rate > 0);
    let nvlink = rate.map(|rate| format!(", NVLink {} GB/s a GPU", gigabytes(rate))).unwrap_or_default();
    label_at(text, x + GAP, y + 16, "start", &format!("{}{nvlink}", facts.host));
    // Each row is spread over the width, so that lines are short where there are more NICs than GPUs.
    let spread = |position: usize, count: usize| x + GAP / 2 + (2 * position + 1) * (width - GAP) / (2 * count.max(1));
    let (gpu_middle, nic_middle) = (|gpu| spread(gpu, facts.gpus.len()), |nic| spread(nic, facts.nics.len()));
    let (gpus, nics) = (y + TITLE, y + TITLE + HEIGHT + WIRES);
    for (position, gpu) in facts.gpus.iter().enumerate() {
        for &nic in &node.pairing.nics_of_gpu[position] {
            let kind = paths.gpu_to_nic(gpu, &facts.nics[nic]).kind;
            let (from, to) = (gpu_middle(position), nic_middle(nic));
            let (top, bottom) = (gpus + HEIGHT, nics);
            let _ = writeln!(
                text,
                "<line x1=\"{from}\" y1=\"{top}\" x2=\"{to}\" y2=\"{bottom}\" stroke=\"#555\" stroke-width=\"1.5\"/>"
            );
            label_at(text, to + 4, bottom - 4, "start", &kind.to_string());
        }
        let middle = gpu_middle(position);
        rectangle(text, (middle - WIDTH / 2, gpus), (WIDTH, HEIGHT), colour(node.domains[position]));
        label_at(text, middle, gpus + 18, "middle", &format!("GPU {}", gpu.index));
        label_at(text, middle, gpus + 34, "middle", &gpu.pci.to_string());
    }
    for (position, nic) in facts.nics.iter().enumerate() {
        let rail = node.rails.get(&position);
        let middle = nic_middle(position);
        let fill = if rail.is_some() { "#ffffff" } else { "#dddddd" };
        rectangle(text, (middle - WIDTH / 2, nics), (WIDTH, HEIGHT), fill);
        label_at(text, middle, nics + 18, "middle", &nic.device);
        let use_of = rail
            .map_or("not used".to_string(), |rail| format!("rail {rail}, {} GB/s", gigabytes(nic.bytes_per_second)));
        label_at(text, middle, nics + 34, "middle", &use_of);
    }
}

fn colour(domain: DomainId) -> &'static str {
    COLOURS[domain.index() % COLOURS.len()]
}

fn rectangle(text: &mut String, (x, y): (usize, usize), (width, height): (usize, usize), fill: &str) {
    let _ = writeln!(
        text,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{fill}\" stroke=\"#888\"/>"
    );
}

fn label_at(text: &mut String, x: usize, y: usize, anchor: &str, label: &str) {
    let escaped = escape(label);
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{escaped}</text>");
}
