//! The way of a flow. In: a root, what it adds up, domains with a leader each, where their chain begins. Out: the tree, whole or
//! as one rank sees it. Guarantee: both come from the same description, which flows of a class share; a place is found
//! without building the tree.

use super::{DomainSum, Node};
use crate::base::{DomainId, Rank};
use crate::topology::Topology;
use std::sync::Arc;

/// Ranks of one domain that a flow reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) domain: DomainId,
    /// Ascending.
    pub(super) ranks: Vec<Rank>,
}

/// A tree: the root, its own readers, then a chain of leaders with their neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    root: Rank,
    /// Ranks that get the bytes from the root itself, beside the first leader.
    readers: Arc<[Rank]>,
    /// Domains in the order of the ring.
    domains: Arc<[Members]>,
    /// One for each of them.
    leaders: Arc<[Rank]>,
    /// Where the chain begins.
    first: usize,
    /// Who keeps the bytes, ascending; `None` for everybody but the root.
    wanters: Option<Arc<[Rank]>>,
    /// What the root adds up; `None` where its source tensors hold what it sends.
    sums: Option<Arc<[DomainSum]>>,
    /// Whether the root's destination tensors hold what it sends, which came there before.
    landed: bool,
}

/// Where a rank stands in a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Number of edges from the root, behind the steps in which that adds up what it sends.
    pub hop: u32,
    /// Who it gets the bytes from; `None` for the root, whose source tensors hold them or terms of them, and for a rank
    /// beside the tree, which only adds to the root's sums.
    pub parent: Option<Neighbour>,
    /// Whether its destination tensors want the bytes.
    pub wants: bool,
    /// Who gets them from it, in the order of the tree.
    pub children: Vec<Neighbour>,
}

/// The other end of an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Its rank.
    pub rank: Rank,
    /// Whether it is the root.
    pub is_root: bool,
    /// Whether it adds up what it sends.
    pub adds: bool,
    /// Whether it is the root, and its destination tensors hold what it sends.
    pub landed: bool,
    /// Whether its destination tensors want the bytes.
    pub wants: bool,
    /// Whether it passes them to nobody.
    pub is_leaf: bool,
}

impl Path {
    /// A root that copies from its source tensors to its destination tensors.
    pub(super) fn own_copy(rank: Rank) -> Self {
        Self::keeping(rank, Arc::new([]), Some(Arc::new([rank])))
    }

    /// A root with readers that keep what they get, or those of them that are `wanters`.
    pub(super) fn keeping(root: Rank, readers: Arc<[Rank]>, wanters: Option<Arc<[Rank]>>) -> Self {
        let (domains, leaders) = (Arc::new([]), Arc::new([]));
        Self { root, readers, domains, leaders, first: 0, wanters, sums: None, landed: false }
    }

    /// The same with a chain behind it.
    pub(super) fn through(self, domains: Arc<[Members]>, leaders: Arc<[Rank]>, first: usize) -> Self {
        Self { domains, leaders, first, ..self }
    }

    /// The same where the root adds up what it sends.
    pub(super) fn adding(self, sums: Arc<[DomainSum]>) -> Self {
        Self { sums: Some(sums), ..self }
    }

    /// What is left of it where domains that are `cut` off pass bytes on by themselves: inside those nothing but the leader.
    pub(super) fn outside(&self, topology: &Topology, cut: impl Fn(DomainId) -> bool) -> Option<Self> {
        let home = topology.domain(self.root);
        let trim = |(members, &leader): (&Members, &Rank)| match cut(members.domain) {
            true => Members { domain: members.domain, ranks: vec![leader] },
            false => members.clone(),
        };
        let mut path = self.clone();
        if self.domains.iter().any(|members| cut(members.domain)) {
            path.domains = self.domains.iter().zip(self.leaders.iter()).map(trim).collect();
        }
        if cut(home) {
            let is_far = |&&reader: &&Rank| topology.domain(reader) != home;
            path.readers = self.readers.iter().filter(is_far).copied().collect();
            path.wanters = self.wanters_without(self.root);
        }
        let goes_on = !path.readers.is_empty() || !path.domains.is_empty() || path.wants(path.root);
        goes_on.then_some(path)
    }

    /// What of it is inside `domain`: from the root to its neighbours, or from the leader, who got the bytes before.
    pub(super) fn inside(&self, topology: &Topology, domain: DomainId) -> Option<Self> {
        if topology.domain(self.root) == domain {
            let is_near = |&&reader: &&Rank| topology.domain(reader) == domain;
            let readers: Arc<[Rank]> = self.readers.iter().filter(is_near).copied().collect();
            let is_any = !readers.is_empty() || self.wants(self.root);
            return is_any.then(|| Self::keeping(self.root, readers, self.wanters.clone()));
        }
        let index = self.domains.binary_search_by_key(&domain, |members| members.domain).ok()?;
        let (leader, followers) = (self.leaders[index], self.followers(index).collect::<Arc<[Rank]>>());
        let path = Self::keeping(leader, followers, self.wanters_without(leader));
        (!path.readers.is_empty()).then_some(Self { landed: true, ..path })
    }

    /// The same bytes by way of reader number `index`, who passes them to the other readers, all of its root's domain.
    pub(super) fn by_reader(&self, topology: &Topology, index: usize) -> Self {
        let members = Members { domain: topology.domain(self.root), ranks: self.readers.to_vec() };
        let leader = self.readers[index];
        Self { readers: Arc::new([]), ..self.clone() }.through(Arc::new([members]), Arc::new([leader]), 0)
    }

    /// Those who keep the bytes, but for one.
    fn wanters_without(&self, rank: Rank) -> Option<Arc<[Rank]>> {
        self.wanters.as_ref().map(|wanters| wanters.iter().copied().filter(|&wanter| wanter != rank).collect())
    }

    /// Whether the root's destination tensors hold what it sends.
    pub(crate) fn has_landed(&self) -> bool {
        self.landed
    }

    /// Ranks that get the bytes from the root itself, beside the first leader.
    pub(super) fn readers(&self) -> &[Rank] {
        &self.readers
    }

    /// What the root adds up.
    pub fn sums(&self) -> Option<&Arc<[DomainSum]>> {
        self.sums.as_ref()
    }

    /// Steps before the tree: terms and the root's sum; with other domains, their sums' way to the root between them.
    fn stages(&self) -> u32 {
        match self.sums.as_deref() {
            None => 0,
            Some([_]) => 1,
            Some(_) => 3,
        }
    }

    /// Whether `rank` gets the bytes by way of `child`, which gets them from the root, or is it.
    pub(crate) fn reaches(&self, topology: &Topology, child: Rank, rank: Rank) -> bool {
        let leads = self.leaders.get(self.first) == Some(&child);
        rank == child || (leads && !self.is_reader(rank) && self.delivers(topology, rank))
    }

    /// Whether `rank` gets the bytes from another one. Holders may have flows of their own beside this one.
    pub(crate) fn delivers(&self, topology: &Topology, rank: Rank) -> bool {
        rank != self.root && (self.is_reader(rank) || self.domain_of(topology, rank).is_some())
    }

    fn is_reader(&self, rank: Rank) -> bool {
        self.readers.binary_search(&rank).is_ok()
    }

    /// The rank that holds the bytes, or adds them up.
    pub fn root(&self) -> Rank {
        self.root
    }

    /// The first rank that gets them, if any does.
    pub fn first_receiver(&self) -> Option<Rank> {
        self.receivers_of_root().next()
    }

    /// Ranks that get them from the root.
    pub fn receivers_of_root(&self) -> impl Iterator<Item = Rank> + '_ {
        self.readers.iter().chain(self.leaders.get(self.first)).copied()
    }

    fn wants(&self, rank: Rank) -> bool {
        self.wanters.as_ref().map_or(rank != self.root, |wanters| wanters.binary_search(&rank).is_ok())
    }

    /// Index of the domain at a step of the chain.
    fn at(&self, step: usize) -> usize {
        (self.first + step) % self.domains.len()
    }

    /// Neighbours of the leader of a domain.
    fn followers(&self, domain: usize) -> impl Iterator<Item = Rank> + '_ {
        let leader = self.leaders[domain];
        self.domains[domain].ranks.iter().copied().filter(move |&rank| rank != leader && rank != self.root)
    }

    /// The whole tree: root, its readers, then domain after domain the leader and its neighbours.
    pub fn nodes(&self) -> Vec<Node> {
        let node = |rank, parent| Node { rank, parent, wants: self.wants(rank) };
        let mut nodes = vec![node(self.root, None)];
        nodes.extend(self.readers.iter().map(|&reader| node(reader, Some(0))));
        let mut last = 0;
        for step in 0..self.domains.len() {
            let domain = self.at(step);
            nodes.push(node(self.leaders[domain], Some(last)));
            last = nodes.len() as u32 - 1;
            nodes.extend(self.followers(domain).map(|follower| node(follower, Some(last))));
        }
        nodes
    }

    /// Whether all edges, each from parent to child, are of a kind; stops at the first that is not.
    pub fn all_edges(&self, is: impl Fn(&Neighbour, &Neighbour) -> bool) -> bool {
        let root = self.neighbour(self.root, false);
        let mut before = root;
        self.readers.iter().all(|&reader| is(&root, &self.neighbour(reader, true)))
            && (0..self.domains.len()).all(|step| {
                let leader = self.leader(step);
                let fine = is(&before, &leader);
                before = leader;
                fine && self.followers(self.at(step)).all(|follower| is(&leader, &self.neighbour(follower, true)))
            })
    }

    /// The domain of the chain that `rank` is in, by index.
    fn domain_of(&self, topology: &Topology, rank: Rank) -> Option<usize> {
        let home = topology.domain(rank);
        let found = self.domains.binary_search_by_key(&home, |members| members.domain).ok();
        found.filter(|&index| self.domains[index].ranks.binary_search(&rank).is_ok())
    }

    /// Where `rank` stands; `None` when the flow does not pass it.
    pub fn place(&self, topology: &Topology, rank: Rank) -> Option<Place> {
        let count = self.domains.len();
        let wants = self.wants(rank);
        if rank == self.root {
            let leaf = |&rank: &Rank| self.neighbour(rank, true);
            let mut children: Vec<Neighbour> = self.readers.iter().map(leaf).collect();
            children.extend((count > 0).then(|| self.leader(0)));
            return Some(Place { hop: self.stages(), parent: None, wants, children });
        }
        if self.is_reader(rank) {
            let parent = Some(self.neighbour(self.root, false));
            return Some(Place { hop: self.stages() + 1, parent, wants, children: Vec::new() });
        }
        let Some(domain) = self.domain_of(topology, rank) else { return self.beside(rank) };
        let step = (domain + count - self.first) % count;
        if self.leaders[domain] != rank {
            let parent = Some(self.neighbour(self.leaders[domain], false));
            return Some(Place { hop: self.stages() + step as u32 + 2, parent, wants, children: Vec::new() });
        }
        let before = if step == 0 { self.root } else { self.leaders[self.at(step - 1)] };
        let mut children: Vec<Neighbour> = self.followers(domain).map(|rank| self.neighbour(rank, true)).collect();
        children.extend((step + 1 < count).then(|| self.leader(step + 1)));
        let parent = Some(self.neighbour(before, false));
        Some(Place { hop: self.stages() + step as u32 + 1, parent, wants, children })
    }

    /// The place of a rank that has a term and is not on the tree; a sum of its domain is one step away from the terms.
    fn beside(&self, rank: Rank) -> Option<Place> {
        let adds = self.sums.iter().flat_map(|sums| sums.iter()).any(|sum| sum.terms.contains(&rank));
        adds.then(|| Place { hop: 1, parent: None, wants: false, children: Vec::new() })
    }

    fn neighbour(&self, rank: Rank, is_leaf: bool) -> Neighbour {
        let is_root = rank == self.root;
        let (adds, landed) = (is_root && self.sums.is_some(), is_root && self.landed);
        Neighbour { rank, is_root, adds, landed, wants: self.wants(rank), is_leaf }
    }

    /// The leader at a step of the chain.
    fn leader(&self, step: usize) -> Neighbour {
        let domain = self.at(step);
        let is_last = step + 1 == self.domains.len();
        self.neighbour(self.leaders[domain], is_last && self.followers(domain).next().is_none())
    }
}
