//! Membership, kept right while the graph changes.
//!
//! Only who is a member matters here, not at which layer. So members bear ranks: each rests on t certifiers of
//! lower rank, and ranks need not be the lowest ones. While that holds nothing happens when a certificate goes
//! or comes; else exactly who lost too much is given up, with everybody that rested on it, and taken back in if
//! others still support it. A repair takes time in proportion to who was given up.
use crate::graph::{Graph, VOID};
use crate::hint::{prefetch, spread};
use crate::search::{Scratch, Threshold, reach_threshold};

/// Rank of who is no member.
const OUT: u64 = u64::MAX;

/// The members of a graph.
pub struct MemberSet {
    genesis: Vec<u32>,
    threshold: usize,
    latched: bool,
    ranks: Vec<u64>,
    pending: Vec<u32>,
    changed: Vec<u32>,
    voters: Vec<u32>,
    /// Who was given up though certifiers enough were left, of too high a rank.
    perhaps: Vec<u32>,
}

impl MemberSet {
    /// Computes the members from scratch.
    pub(crate) fn new(graph: &Graph, mut genesis: Vec<u32>, threshold: u32, latched: bool) -> Self {
        genesis.sort_unstable();
        let mut set = Self {
            genesis,
            threshold: threshold as usize,
            latched,
            ranks: spread(graph.nodes(), OUT),
            pending: Vec::new(),
            changed: Vec::new(),
            voters: Vec::new(),
            perhaps: Vec::new(),
        };
        set.fill(graph);
        set
    }

    /// True when the node is a member.
    #[inline]
    #[must_use]
    pub fn contains(&self, node: u32) -> bool {
        self.ranks.get(node as usize).is_some_and(|&rank| rank != OUT)
    }

    /// Whether each node is a member; nodes that came after the last change are missing at the end.
    pub fn flags(&self) -> impl ExactSizeIterator<Item = bool> + '_ {
        self.ranks.iter().map(|&rank| rank != OUT)
    }

    /// Nodes that became or ceased to be members at the last repair, in order.
    pub(crate) fn flips(&self) -> &[u32] {
        &self.changed
    }

    /// Ranks members so that as many of their certifiers as possible come before them: whoever is left with t
    /// of those keeps its place without a look at anybody else.
    fn fill(&mut self, graph: &Graph) {
        let rule = Threshold::for_membership(self.threshold as u32, VOID);
        let mut scratch = Scratch::default();
        let members = reach_threshold(graph, &mut scratch, &self.genesis, rule, None);
        let mut inside = vec![false; graph.nodes()];
        for &node in members {
            inside[node as usize] = true;
        }
        let (now, grace) = (graph.now(), graph.grace());
        let mut awaited = vec![0u32; graph.nodes()];
        for &node in members {
            graph.each_out(node, |seen| {
                awaited[seen.node as usize] += u32::from(seen.live_with_grace(now, grace));
            });
        }
        // Whose certifiers are all ranked comes first; who has enough waits until nobody is left of those.
        let mut ready: Vec<u32> = members
            .iter()
            .copied()
            .filter(|&node| self.founded(node))
            .collect();
        let mut enough: Vec<u32> = Vec::new();
        let mut votes = vec![0u8; graph.nodes()];
        let (mut next, mut next_enough) = (0, 0);
        let mut rank = 0;
        loop {
            let node = if next < ready.len() {
                next += 1;
                ready[next - 1]
            } else if next_enough < enough.len() {
                next_enough += 1;
                enough[next_enough - 1]
            } else {
                break;
            };
            if self.contains(node) {
                continue;
            }
            if self.founded(node) {
                self.ranks[node as usize] = 0;
            } else if self.backing(graph, node, OUT).highest.is_some() {
                rank += 1;
                self.ranks[node as usize] = rank;
            } else {
                // One certifier with two certificates, in grace, looked like two.
                continue;
            }
            graph.each_out(node, |seen| {
                let to = seen.node as usize;
                if !inside[to] || self.ranks[to] != OUT || !seen.live_with_grace(now, grace) {
                    return;
                }
                awaited[to] -= 1;
                votes[to] = votes[to].saturating_add(1);
                if awaited[to] == 0 {
                    ready.push(seen.node);
                } else if usize::from(votes[to]) >= self.threshold.min(255) {
                    enough.push(seen.node);
                }
            });
        }
    }

    fn founded(&self, node: u32) -> bool {
        self.genesis.binary_search(&node).is_ok()
    }

    /// Which members certify a node, and those of them whose rank is below `below`.
    fn backing(&mut self, graph: &Graph, node: u32, below: u64) -> Backing {
        let (now, grace) = (graph.now(), graph.grace());
        let mut count = 0;
        let mut total = 0;
        let mut highest = 0;
        let (ranks, voters) = (&self.ranks, &mut self.voters);
        voters.clear();
        graph.each_in(node, |seen| {
            let rank = ranks[seen.node as usize];
            if rank == OUT || !seen.live_with_grace(now, grace) {
                return;
            }
            total += 1;
            if rank < below {
                count += 1;
                highest = highest.max(rank);
                if grace > 0 {
                    voters.push(seen.node);
                }
            }
        });
        if grace > 0 {
            // A certificate that was renewed in grace is one voter's, not two.
            voters.sort_unstable();
            voters.dedup();
            count = voters.len();
        }
        Backing {
            highest: (count >= self.threshold).then_some(highest),
            enough_of_any_rank: total >= self.threshold,
        }
    }

    /// Makes the set right again after the certificates on the given nodes, or their keys, changed.
    pub(crate) fn repair(&mut self, graph: &Graph, dirty: impl Iterator<Item = u32>) {
        self.ranks.resize(graph.nodes(), OUT);
        self.changed.clear();
        let mut pending = std::mem::take(&mut self.pending);
        pending.clear();
        pending.extend(dirty);
        // First who lost its support is given up, then whoever has some is taken in.
        let given = pending.len();
        self.perhaps.clear();
        let mut next = 0;
        while next < pending.len() {
            let node = pending[next];
            next += 1;
            self.look_ahead(graph, &pending[next..]);
            let rank = self.ranks[node as usize];
            if rank == OUT {
                continue;
            }
            if graph.flags(node) & VOID == 0 {
                if self.latched || self.founded(node) {
                    continue;
                }
                let backing = self.backing(graph, node, rank);
                if backing.highest.is_some() {
                    continue;
                }
                if backing.enough_of_any_rank {
                    self.perhaps.push(node);
                }
            }
            self.ranks[node as usize] = OUT;
            self.changed.push(node);
            graph.each_out(node, |seen| {
                let resting = self.ranks[seen.node as usize];
                if resting > rank && resting != OUT {
                    pending.push(seen.node);
                }
            });
        }
        // Whoever else was given up can come back only with a certifier that does, which asks for it then.
        pending.truncate(given);
        pending.append(&mut self.perhaps);
        let mut next = 0;
        while next < pending.len() {
            let node = pending[next];
            next += 1;
            if self.contains(node) || graph.flags(node) & VOID != 0 {
                continue;
            }
            let rank = if self.founded(node) {
                0
            } else if let Some(highest) = self.backing(graph, node, OUT).highest {
                highest + 1
            } else {
                continue;
            };
            self.ranks[node as usize] = rank;
            self.changed.push(node);
            graph.each_out(node, |seen| {
                if self.ranks[seen.node as usize] == OUT {
                    pending.push(seen.node);
                }
            });
        }
        self.pending = pending;
        // Who was given up and taken back is where it was.
        self.changed.sort_unstable();
        let mut kept = 0;
        let mut at = 0;
        while at < self.changed.len() {
            let node = self.changed[at];
            let twice = self.changed.get(at + 1) == Some(&node);
            if !twice {
                self.changed[kept] = node;
                kept += 1;
            }
            at += 1 + usize::from(twice);
        }
        self.changed.truncate(kept);
    }

    /// Asks for what the next nodes of a cascade need, each a step of indirection later than the last.
    fn look_ahead(&self, graph: &Graph, pending: &[u32]) {
        if let Some(&node) = pending.get(8) {
            graph.call_ins(node);
            prefetch(&self.ranks, node as usize);
        }
        if let Some(&node) = pending.get(4) {
            graph.call_in_list(node);
        }
        if let Some(&node) = pending.get(2) {
            graph.call_sources(node, |source| prefetch(&self.ranks, source as usize));
        }
    }
}

/// What a node's membership rests on.
struct Backing {
    /// The highest rank among the certifiers asked for, if they are enough.
    highest: Option<u64>,
    /// True when the certifiers of any rank are enough.
    enough_of_any_rank: bool,
}
