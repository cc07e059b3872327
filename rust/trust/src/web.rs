//! The graph together with everything that is derived from it and kept right: membership, expulsions, trusted sets.
use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{COMPROMISED, Graph, MEMBER, Span, VOID};
use crate::layers::{LayerSet, SetSpec, UNREACHED};
use crate::members::MemberSet;

/// How membership is decided.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Membership {
    /// Founding nodes; members without a certificate.
    pub genesis: Vec<u32>,
    /// Certifiers, themselves members, that make a member (t); at least 1.
    pub threshold: u32,
    /// Once a member, always a member, unless compromised or expelled. Such membership depends on what was seen.
    pub latched: bool,
    /// Seconds for which an ended certificate still supports membership, so that renewal may be late.
    pub grace: u32,
}

/// A certificate graph whose derived sets are right after every event.
pub struct Web {
    graph: Graph,
    membership: Membership,
    /// Kept only once somebody asks, since the threshold rule does not need it.
    members: Option<MemberSet>,
    /// Membership as it would be without expulsions: it decides whose votes count.
    electorate: Option<LayerSet>,
    votes: BTreeMap<u32, BTreeMap<u32, u32>>,
    expelled: BTreeSet<u32>,
    sets: Vec<Option<LayerSet>>,
    dirty_arcs: Vec<(u32, u32)>,
    dirty_nodes: Vec<u32>,
}

impl Web {
    /// An empty web at the reference time `now`, in seconds.
    #[must_use]
    pub fn new(mut membership: Membership, now: u32) -> Self {
        membership.threshold = membership.threshold.max(1);
        let mut graph = Graph::new(now, membership.grace);
        graph.grow(
            membership
                .genesis
                .iter()
                .map(|&node| node as usize + 1)
                .max()
                .unwrap_or(0),
        );
        Self {
            graph,
            membership,
            members: None,
            electorate: None,
            votes: BTreeMap::new(),
            expelled: BTreeSet::new(),
            sets: Vec::new(),
            dirty_arcs: Vec::new(),
            dirty_nodes: Vec::new(),
        }
    }

    /// The graph, for searches.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How membership is decided.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Adds nodes up to `count`.
    pub fn grow(&mut self, count: usize) {
        self.graph.grow(count);
    }

    /// Replaces the topology by arcs of full weight and recomputes every set; false, without a change, if an end
    /// is not a node.
    pub fn load(&mut self, source: &[u32], subject: &[u32], from: &[u32], until: &[u32]) -> bool {
        if !self.graph.load(source, subject, from, until) {
            return false;
        }
        self.dirty_arcs.clear();
        if self.members.take().is_some() {
            for node in 0..self.graph.nodes() as u32 {
                self.graph.set_flag(node, MEMBER, false);
            }
            self.need_members();
        }
        for set in self.sets.iter_mut().flatten() {
            *set = LayerSet::new(&self.graph, set.spec().clone());
        }
        if self.electorate.take().is_some() {
            self.need_electorate();
        }
        self.settle();
        true
    }

    /// Makes `spans` all that (issuer, subject) has. Takes effect at the next [`Self::settle`].
    pub fn put(&mut self, issuer: u32, subject: u32, spans: &[Span]) {
        if self.graph.set_pair(issuer, subject, spans) {
            self.dirty_arcs.push((issuer, subject));
        }
    }

    /// Adds one span of full weight unless the pair has one that lasts as long; the later one wins.
    pub fn renew(&mut self, issuer: u32, subject: u32, from: u32, until: u32) {
        self.put(issuer, subject, &[Span::full(from, until)]);
    }

    /// Ends what (issuer, subject) has at `at`. Returns false when there was nothing to end.
    pub fn end(&mut self, issuer: u32, subject: u32, at: u32) -> bool {
        let ended = self.graph.end_pair(issuer, subject, at);
        if ended {
            self.dirty_arcs.push((issuer, subject));
        }
        ended
    }

    /// Retires a node's key at `at`: what it issued earlier stays, it is itself no longer trusted.
    pub fn retire(&mut self, node: u32, at: u32) {
        self.graph.retire(node, at);
    }

    /// Declares a node's key compromised: nothing it issued counts, nor ever did.
    pub fn compromise(&mut self, node: u32) {
        self.graph.set_flag(node, COMPROMISED | VOID, true);
        self.dirty_nodes.push(node);
    }

    /// Records a vote to expel, effective from `at`; the earliest vote of a voter counts.
    pub fn vote(&mut self, voter: u32, subject: u32, at: u32) {
        let slot = self.votes.entry(subject).or_default().entry(voter).or_insert(at);
        *slot = at.min(*slot);
        self.need_electorate();
    }

    /// True when at least t members of lower layers voted to expel the node.
    #[must_use]
    pub fn is_expelled(&self, node: u32) -> bool {
        self.expelled.contains(&node)
    }

    /// True when the node's key was declared compromised.
    #[must_use]
    pub fn is_compromised(&self, node: u32) -> bool {
        self.graph.flags(node) & COMPROMISED != 0
    }

    /// Nodes that are expelled now, in order.
    pub fn expelled(&self) -> impl Iterator<Item = u32> + '_ {
        self.expelled.iter().copied()
    }

    /// Moves the reference time forward and settles. Returns false, without a change, if `to` lies in the past.
    pub fn advance(&mut self, to: u32) -> bool {
        if to < self.graph.now() {
            return false;
        }
        let dirty = &mut self.dirty_arcs;
        self.graph
            .advance(to, |source, subject| dirty.push((source, subject)));
        self.settle();
        true
    }

    /// Keeps membership from now on.
    pub fn need_members(&mut self) {
        if self.members.is_none() {
            let Membership {
                genesis,
                threshold,
                latched,
                ..
            } = &self.membership;
            let members = MemberSet::new(&self.graph, genesis.clone(), *threshold, *latched);
            for (node, inside) in (0..).zip(members.flags()) {
                self.graph.set_flag(node, MEMBER, inside);
            }
            self.members = Some(members);
        }
    }

    fn need_electorate(&mut self) {
        if self.electorate.is_none() {
            let spec = SetSpec {
                anchors: self.membership.genesis.clone(),
                threshold: self.membership.threshold,
                anchor_weight: 1,
                max_depth: None,
                mutual: false,
                members_only: false,
            };
            self.electorate = Some(LayerSet::electorate(&self.graph, spec));
        }
    }

    /// The members, once [`Self::need_members`] was called.
    #[must_use]
    pub fn members(&self) -> Option<&MemberSet> {
        self.members.as_ref()
    }

    /// Starts to maintain a set; the answer names it.
    pub fn add_set(&mut self, spec: SetSpec) -> usize {
        if spec.members_only {
            self.need_members();
        }
        let set = LayerSet::new(&self.graph, spec);
        let free = self.sets.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.sets.len());
        if free.is_none() {
            self.sets.push(None);
        }
        self.sets[slot] = Some(set);
        slot
    }

    /// Stops to maintain a set.
    pub fn drop_set(&mut self, id: usize) {
        if let Some(slot) = self.sets.get_mut(id) {
            *slot = None;
        }
    }

    /// A maintained set.
    #[must_use]
    pub fn set(&self, id: usize) -> Option<&LayerSet> {
        self.sets.get(id).and_then(Option::as_ref)
    }

    /// True when the set holds the node and its key is not retired.
    #[must_use]
    pub fn trusts(&self, id: usize, node: u32) -> bool {
        self.set(id).is_some_and(|set| set.layer(node) != UNREACHED) && !self.graph.is_retired(node)
    }

    /// The trusted nodes of a set as bits, 64 a word, lowest first.
    #[must_use]
    pub fn bitmap(&self, id: usize) -> Vec<u64> {
        let mut words = vec![0u64; self.graph.nodes().div_ceil(64)];
        if let Some(set) = self.set(id) {
            for (word, layers) in words.iter_mut().zip(set.layers().chunks(64)) {
                for (bit, &layer) in layers.iter().enumerate() {
                    *word |= u64::from(layer != UNREACHED) << bit;
                }
            }
        }
        for node in self.graph.retired_now() {
            words[node as usize / 64] &= !(1 << (node % 64));
        }
        words
    }

    /// Makes every derived set right. Cheap when nothing happened.
    pub fn settle(&mut self) {
        if self.dirty_arcs.is_empty() && self.dirty_nodes.is_empty() && self.votes.is_empty() {
            return;
        }
        let arcs = std::mem::take(&mut self.dirty_arcs);
        let mut nodes = std::mem::take(&mut self.dirty_nodes);
        if let Some(electorate) = &mut self.electorate {
            let subjects = arcs.iter().map(|arc| arc.1);
            electorate.repair(&self.graph, subjects.chain(nodes.iter().copied()));
            self.count_votes(&mut nodes);
        }
        if let Some(members) = &mut self.members {
            members.repair(
                &self.graph,
                arcs.iter().map(|arc| arc.1).chain(nodes.iter().copied()),
            );
            for &node in members.flips() {
                self.graph.set_flag(node, MEMBER, members.contains(node));
            }
        }
        let flips = self.members.as_ref().map_or(&[][..], MemberSet::flips);
        for set in self.sets.iter_mut().flatten() {
            let (mutual, members_only) = (set.spec().mutual, set.spec().members_only);
            let flips = if members_only { flips } else { &[] };
            let issuers = arcs.iter().filter(|_| mutual).map(|arc| arc.0);
            let dirty = arcs.iter().map(|arc| arc.1).chain(issuers);
            set.repair(&self.graph, dirty.chain(nodes.iter().chain(flips).copied()));
        }
        // Keep the buffers: settling after every event must not allocate.
        (self.dirty_arcs, self.dirty_nodes) = (arcs, nodes);
        self.dirty_arcs.clear();
        self.dirty_nodes.clear();
    }

    /// Decides who is expelled. A voter needs a lower layer than the subject, so deciding in order of layers
    /// decides every voter before it is counted.
    fn count_votes(&mut self, nodes: &mut Vec<u32>) {
        let Some(electorate) = &self.electorate else {
            return;
        };
        let now = self.graph.now();
        let mut subjects: Vec<(u32, u32)> = self
            .votes
            .keys()
            .map(|&subject| (electorate.layer(subject), subject))
            .collect();
        subjects.sort_unstable();
        let mut expelled = BTreeSet::new();
        for (layer, subject) in subjects {
            let counts = |&(&voter, &at): &(&u32, &u32)| {
                at <= now
                    && electorate.layer(voter) < layer
                    && !expelled.contains(&voter)
                    && self.graph.retired_at(voter).is_none_or(|retired| at < retired)
            };
            let votes = self.votes[&subject].iter().filter(counts).count();
            if votes >= self.membership.threshold as usize {
                expelled.insert(subject);
            }
        }
        for &node in self.expelled.symmetric_difference(&expelled) {
            let void = expelled.contains(&node) || self.graph.flags(node) & COMPROMISED != 0;
            self.graph.set_flag(node, VOID, void);
            nodes.push(node);
        }
        self.expelled = expelled;
    }
}
