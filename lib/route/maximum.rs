//! Maximum flow through a small network (Dinic's algorithm). In: edges with capacities. Out: the flow on every edge, and
//! which nodes can still be reached. Guarantee: exact in 128-bit integers; the same result on every machine.

/// An edge and what is left of its capacity; its reverse stands at the number with the lowest bit flipped.
#[derive(Debug, Clone, Copy)]
struct Edge {
    to: usize,
    left: u128,
}

/// A network.
#[derive(Debug, Clone)]
pub(super) struct Network {
    edges: Vec<Edge>,
    leaving: Vec<Vec<usize>>,
}

impl Network {
    pub(super) fn new(nodes: usize) -> Self {
        Self { edges: Vec::new(), leaving: vec![Vec::new(); nodes] }
    }

    /// Adds an edge; its number.
    pub(super) fn join(&mut self, from: usize, to: usize, capacity: u128) -> usize {
        let number = self.edges.len();
        self.edges.push(Edge { to, left: capacity });
        self.edges.push(Edge { to: from, left: 0 });
        self.leaving[from].push(number);
        self.leaving[to].push(number + 1);
        number
    }

    /// Flow on an edge.
    pub(super) fn flow(&self, edge: usize) -> u128 {
        self.edges[edge ^ 1].left
    }

    /// Sends as much as fits.
    pub(super) fn fill(&mut self, source: usize, sink: usize) -> u128 {
        let mut sent = 0;
        loop {
            let levels = self.levels(source);
            if levels[sink].is_none() {
                return sent;
            }
            let mut tried = vec![0; self.leaving.len()];
            loop {
                let more = self.push(source, sink, u128::MAX, &levels, &mut tried);
                if more == 0 {
                    break;
                }
                sent += more;
            }
        }
    }

    /// Distance of every node from `source` over edges with room.
    fn levels(&self, source: usize) -> Vec<Option<u32>> {
        let mut levels = vec![None; self.leaving.len()];
        levels[source] = Some(0);
        let mut queue = vec![source];
        let mut at = 0;
        while let Some(&node) = queue.get(at) {
            at += 1;
            for &edge in &self.leaving[node] {
                let Edge { to, left } = self.edges[edge];
                if left > 0 && levels[to].is_none() {
                    levels[to] = levels[node].map(|level| level + 1);
                    queue.push(to);
                }
            }
        }
        levels
    }

    /// Sends up to `most` along one path of rising levels; paths are at most as long as the network has kinds of nodes,
    /// but for those that take flow back.
    fn push(&mut self, node: usize, sink: usize, most: u128, levels: &[Option<u32>], tried: &mut [usize]) -> u128 {
        if node == sink {
            return most;
        }
        while let Some(&edge) = self.leaving[node].get(tried[node]) {
            let Edge { to, left } = self.edges[edge];
            if left > 0 && levels[to] == levels[node].map(|level| level + 1) {
                let sent = self.push(to, sink, most.min(left), levels, tried);
                if sent > 0 {
                    self.edges[edge].left -= sent;
                    self.edges[edge ^ 1].left += sent;
                    return sent;
                }
            }
            tried[node] += 1;
        }
        0
    }

    /// Nodes that `source` still reaches.
    pub(super) fn reached(&self, source: usize) -> Vec<bool> {
        self.levels(source).iter().map(Option::is_some).collect()
    }

    /// Nodes that still reach `sink`.
    pub(super) fn reaching(&self, sink: usize) -> Vec<bool> {
        let mut found = vec![false; self.leaving.len()];
        found[sink] = true;
        let mut open = vec![sink];
        while let Some(node) = open.pop() {
            for &edge in &self.leaving[node] {
                // The reverse edge leads from its end to this node.
                let from = self.edges[edge].to;
                if self.edges[edge ^ 1].left > 0 && !found[from] {
                    found[from] = true;
                    open.push(from);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_cut_decides() {
        // Two ways of 3 and 5 into a node that leaves with 6; 2 more go around it.
        let mut network = Network::new(4);
        let around = network.join(0, 3, 2);
        let (narrow, wide) = (network.join(0, 1, 3), network.join(0, 2, 5));
        network.join(1, 2, 9);
        let last = network.join(2, 3, 6);
        assert_eq!(network.fill(0, 3), 8);
        assert_eq!((network.flow(around), network.flow(last), network.flow(narrow) + network.flow(wide)), (2, 6, 6));
        assert_eq!(network.reached(0), [true, true, true, false]);
        assert_eq!(network.reaching(3), [false, false, false, true]);
    }
}
