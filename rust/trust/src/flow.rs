//! The flow rule, for offline use: how much trust the anchors' certificates carry to an agent.
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use crate::graph::{Graph, IndexHasher, MEMBER, VOID};

/// A residual network; arc 2k and 2k + 1 are each other's reverse.
struct Network {
    arcs: Vec<(u32, u32)>,
    first: Vec<Vec<u32>>,
}

impl Network {
    fn new(nodes: usize) -> Self {
        Self {
            arcs: Vec::new(),
            first: vec![Vec::new(); nodes],
        }
    }

    fn add(&mut self, from: usize, to: usize, capacity: u32) {
        self.first[from].push(self.arcs.len() as u32);
        self.arcs.push((to as u32, capacity));
        self.first[to].push(self.arcs.len() as u32);
        self.arcs.push((from as u32, 0));
    }

    /// Shortest augmenting paths (Edmonds and Karp, 1972), until no more or `limit` is reached.
    fn maximum(&mut self, source: usize, sink: usize, limit: u32) -> u32 {
        let mut total = 0;
        let mut via = vec![u32::MAX; self.first.len()];
        while total < limit {
            via.fill(u32::MAX);
            let mut queue = VecDeque::from([source]);
            while let Some(node) = queue.pop_front() {
                for &arc in &self.first[node] {
                    let (to, capacity) = self.arcs[arc as usize];
                    if capacity > 0 && via[to as usize] == u32::MAX && to as usize != source {
                        via[to as usize] = arc;
                        queue.push_back(to as usize);
                    }
                }
                if via[sink] != u32::MAX {
                    break;
                }
            }
            if via[sink] == u32::MAX {
                break;
            }
            let mut amount = limit - total;
            let mut node = sink;
            while node != source {
                let arc = via[node] as usize;
                amount = amount.min(self.arcs[arc].1);
                node = self.arcs[arc ^ 1].0 as usize;
            }
            node = sink;
            while node != source {
                let arc = via[node] as usize;
                self.arcs[arc].1 -= amount;
                self.arcs[arc ^ 1].1 += amount;
                node = self.arcs[arc ^ 1].0 as usize;
            }
            total += amount;
        }
        total
    }
}

/// Trust amount that live certificates among members carry from `anchors` to `target`, at most `limit`.
///
/// Maximum flow with the certificates' amounts as capacities; an anchor has `limit`. With `limit` = 120 an answer
/// of 120 is full trust. Every certificate that may carry something is looked at: use [`crate::distance`] online.
#[must_use]
pub fn flow(graph: &Graph, anchors: &[u32], target: u32, limit: u32, members_only: bool) -> u32 {
    let needs = if members_only { MEMBER } else { 0 };
    let usable = |node: u32| graph.flags(node) & (needs | VOID) == needs || anchors.contains(&node);
    if graph.flags(target) & VOID != 0 || !usable(target) {
        return 0;
    }
    if anchors.contains(&target) {
        return limit;
    }
    // Only what lies behind the target can carry anything to it.
    let mut places: HashMap<u32, usize, BuildHasherDefault<IndexHasher>> = HashMap::default();
    let mut nodes = vec![target];
    places.insert(target, 0);
    let mut arcs = Vec::new();
    let mut at = 0;
    while at < nodes.len() {
        let node = nodes[at];
        graph.each_in(node, |seen| {
            if seen.live(graph.now()) && graph.flags(seen.node) & VOID == 0 && usable(seen.node) {
                let next = nodes.len();
                let place = *places.entry(seen.node).or_insert(next);
                if place == next {
                    nodes.push(seen.node);
                }
                arcs.push((place, at, u32::from(graph.weight(&seen).1)));
            }
        });
        at += 1;
    }
    let source = nodes.len();
    let mut network = Network::new(source + 1);
    for (from, to, amount) in arcs {
        network.add(from, to, amount);
    }
    for anchor in anchors {
        if let Some(&place) = places.get(anchor) {
            network.add(source, place, limit);
        }
    }
    network.maximum(source, 0, limit)
}

/// Advogato's rule: the nodes that unit flow from the seeds reaches when a node at distance d forwards at most
/// `capacities[d]` (the last entry beyond; classic: 800, 200, 50, 12, 4, 2, 1).
///
/// Bounds what a successful attack gains by the capacity of the nodes it confuses: Levien and Aiken, "Attack-resistant
/// trust metrics for public key certification" (1998). Time grows with accepted nodes × certificates: offline only.
#[must_use]
pub fn advogato(graph: &Graph, seeds: &[u32], capacities: &[u32]) -> Vec<u32> {
    let mut scratch = crate::search::Scratch::default();
    let walk = crate::search::Walk {
        max_depth: None,
        mutual: false,
        members_only: false,
    };
    let mut ends = Vec::new();
    let nodes = crate::search::reach(graph, &mut scratch, seeds, walk, Some(&mut ends)).to_vec();
    let mut places = vec![u32::MAX; graph.nodes()];
    for (place, &node) in nodes.iter().enumerate() {
        places[node as usize] = place as u32;
    }
    let (source, sink) = (2 * nodes.len(), 2 * nodes.len() + 1);
    let mut network = Network::new(sink + 1);
    let mut distance = 0;
    for (place, &node) in nodes.iter().enumerate() {
        while place >= ends[distance] {
            distance += 1;
        }
        let capacity = capacities
            .get(distance)
            .or(capacities.last())
            .copied()
            .unwrap_or(1)
            .max(1);
        // A node first accepts itself with one unit, then forwards the rest.
        network.add(2 * place, sink, 1);
        network.add(2 * place, 2 * place + 1, capacity - 1);
        if distance == 0 {
            network.add(source, 2 * place, capacity);
        }
        graph.each_out(node, |seen| {
            let to = places[seen.node as usize];
            if seen.live(graph.now()) && to != u32::MAX {
                network.add(2 * place + 1, 2 * to as usize, capacity - 1);
            }
        });
    }
    let _ = network.maximum(source, sink, u32::MAX);
    // The sink arc of a place was the first one added there.
    let mut accepted: Vec<u32> = (0..nodes.len())
        .filter(|&place| network.arcs[sink_arc(&network, place, sink)].1 == 0)
        .map(|place| nodes[place])
        .collect();
    accepted.sort_unstable();
    accepted
}

fn sink_arc(network: &Network, place: usize, sink: usize) -> usize {
    let arcs = &network.first[2 * place];
    arcs.iter()
        .map(|&arc| arc as usize)
        .find(|&arc| network.arcs[arc].0 as usize == sink)
        .unwrap_or(0)
}
