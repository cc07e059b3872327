//! Sets of accepted agents that are kept up to date while the graph changes.
//!
//! Every rule here is a least fixed point of "the layer of a node is one more than the t-th smallest layer among
//! those who vouch for it": t = 1 gives distances, t > 1 the threshold rule.
//! These functions are superior in the sense of Ramalingam and Reps, "An incremental algorithm for a
//! generalization of the shortest-path problem" (1996); their algorithm repairs a set after any batch of
//! insertions and removals in time bounded by what changed.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::certificate::UNLIMITED;
use crate::graph::{COMPROMISED, Graph, MEMBER, Seen, VOID};
use crate::hint::spread;
use crate::search::{Scratch, Threshold, Walk, reach, reach_threshold};

/// Layer of a node that is not reached.
pub const UNREACHED: u32 = u32::MAX;
/// The limit of a set without one. Far above any real layer, far below [`UNREACHED`].
const DEEPEST: u32 = u32::MAX / 4;

/// What a set holds.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SetSpec {
    /// Nodes of layer 0, sorted.
    pub anchors: Vec<u32>,
    /// Certifiers needed (t).
    pub threshold: u32,
    /// Votes of an anchor.
    pub anchor_weight: u32,
    /// Largest layer (n); `None` for no limit.
    pub max_depth: Option<u32>,
    /// Also follow certificates from subject to issuer.
    pub mutual: bool,
    /// Only members are reached.
    pub members_only: bool,
}

/// The layers of one set.
pub struct LayerSet {
    spec: SetSpec,
    /// Ended certificates count for the graph's grace period, depth limits do not apply, and expelled nodes count
    /// as if they were not.
    electorate: bool,
    limit: u32,
    layers: Vec<u32>,
    reached: usize,
    version: u64,
    heap: BinaryHeap<Reverse<(u32, u32)>>,
    votes: Vec<(u32, u32)>,
    behind: Vec<u32>,
    changed: Vec<u32>,
}

impl LayerSet {
    /// Computes the set from scratch. Time: about one look at each reached node's arcs.
    #[must_use]
    pub fn new(graph: &Graph, spec: SetSpec) -> Self {
        Self::make(graph, spec, false)
    }

    /// The layers of members as they would be if nobody was expelled.
    pub(crate) fn electorate(graph: &Graph, spec: SetSpec) -> Self {
        Self::make(graph, spec, true)
    }

    fn make(graph: &Graph, mut spec: SetSpec, electorate: bool) -> Self {
        spec.anchors.sort_unstable();
        spec.anchors.dedup();
        let mut set = Self {
            limit: spec.max_depth.map_or(DEEPEST, |depth| depth.min(DEEPEST)),
            spec,
            electorate,
            layers: Vec::new(),
            reached: 0,
            version: 0,
            heap: BinaryHeap::new(),
            votes: Vec::new(),
            behind: Vec::new(),
            changed: Vec::new(),
        };
        if set.plain(graph) {
            set.fill(graph);
        } else {
            let anchors = set.spec.anchors.clone();
            set.repair(graph, anchors.into_iter());
        }
        set
    }

    /// True when a search in order of layers gives the set: nothing depends on more than counting certificates.
    fn plain(&self, graph: &Graph) -> bool {
        let spec = &self.spec;
        let counts = !spec.mutual && !spec.members_only && spec.threshold <= 255 && spec.anchor_weight <= 255;
        (self.electorate || !graph.has_limits()) && (counts || spec.threshold <= 1)
    }

    /// Computes the set by a search; several times faster than repairing an empty one.
    fn fill(&mut self, graph: &Graph) {
        let mut scratch = Scratch::default();
        let mut ends = Vec::new();
        let spec = &self.spec;
        let nodes = if spec.threshold <= 1 && !self.electorate {
            let walk = Walk {
                max_depth: spec.max_depth,
                mutual: spec.mutual,
                members_only: spec.members_only,
            };
            reach(graph, &mut scratch, &spec.anchors, walk, Some(&mut ends))
        } else {
            let rule = if self.electorate {
                Threshold::for_membership(spec.threshold, self.hidden())
            } else {
                Threshold::new(spec.threshold, spec.anchor_weight, spec.max_depth)
            };
            reach_threshold(graph, &mut scratch, &spec.anchors, rule, Some(&mut ends))
        };
        self.layers = spread(graph.nodes(), UNREACHED);
        let mut start = 0;
        for (layer, &end) in (0u32..).zip(&ends) {
            for &node in &nodes[start..end] {
                self.layers[node as usize] = layer;
            }
            start = end;
        }
        self.reached = nodes.len();
        self.version += 1;
    }

    fn hidden(&self) -> u8 {
        if self.electorate { COMPROMISED } else { VOID }
    }

    /// What the set holds.
    #[must_use]
    pub fn spec(&self) -> &SetSpec {
        &self.spec
    }

    /// Layer of a node, [`UNREACHED`] if it is outside.
    #[inline]
    #[must_use]
    pub fn layer(&self, node: u32) -> u32 {
        self.layers.get(node as usize).copied().unwrap_or(UNREACHED)
    }

    /// All layers; nodes that came after the last change are missing at the end.
    #[must_use]
    pub fn layers(&self) -> &[u32] {
        &self.layers
    }

    /// Number of nodes inside, anchors included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reached
    }

    /// True when nothing is inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reached == 0
    }

    /// Rises with every change of a layer.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Nodes that entered or left at the last repair.
    #[must_use]
    pub fn flips(&self) -> &[u32] {
        &self.changed
    }

    /// Makes the layers right again after the given nodes' inputs changed.
    pub(crate) fn repair(&mut self, graph: &Graph, dirty: impl Iterator<Item = u32>) {
        self.layers.resize(graph.nodes(), UNREACHED);
        self.changed.clear();
        for node in dirty {
            self.touch(graph, node);
        }
        while let Some(Reverse((key, node))) = self.heap.pop() {
            let old = self.layers[node as usize];
            let new = self.target(graph, node);
            if new == old {
                continue;
            }
            if new.min(old) != key {
                self.heap.push(Reverse((new.min(old), node)));
                continue;
            }
            // A layer that must rise is first given up: others may have rested on it, and on them this one.
            let settled = if new < old { new } else { UNREACHED };
            self.reached = self.reached + usize::from(old == UNREACHED) - usize::from(settled == UNREACHED);
            if (settled == UNREACHED) != (old == UNREACHED) {
                self.changed.push(node);
            }
            self.layers[node as usize] = settled;
            self.version += 1;
            if settled == UNREACHED && new != UNREACHED {
                self.heap.push(Reverse((new, node)));
            }
            self.touch_behind(graph, node, old, settled);
        }
        // Who left and came back within one repair is where it was: only odd counts are flips.
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        self.changed = changed
            .chunk_by(|a, b| a == b)
            .filter(|run| run.len() % 2 == 1)
            .map(|run| run[0])
            .collect();
    }

    fn touch(&mut self, graph: &Graph, node: u32) {
        let (old, new) = (self.layers[node as usize], self.target(graph, node));
        if old != new {
            self.heap.push(Reverse((old.min(new), node)));
        }
    }

    /// Touches the nodes whose layer may rest on `node`, which moved from `old` to `new`.
    fn touch_behind(&mut self, graph: &Graph, node: u32, old: u32, new: u32) {
        let mut behind = std::mem::take(&mut self.behind);
        behind.clear();
        {
            let layers = &self.layers;
            // Through `node` a layer can be no better than one more than the better of the two.
            let reach = old.min(new) + 1;
            let mut see = |seen: Seen| {
                let layer = layers[seen.node as usize];
                let concerned = if new < old {
                    reach < layer
                } else {
                    reach <= layer && layer != UNREACHED
                };
                if concerned {
                    behind.push(seen.node);
                }
            };
            graph.each_out(node, &mut see);
            if self.spec.mutual {
                graph.each_in(node, &mut see);
            }
        }
        for &node in &behind {
            self.touch(graph, node);
        }
        self.behind = behind;
    }

    /// The layer that the nodes around `node` give it.
    fn target(&mut self, graph: &Graph, node: u32) -> u32 {
        let flags = graph.flags(node);
        if flags & self.hidden() != 0 {
            return UNREACHED;
        }
        if self.spec.anchors.binary_search(&node).is_ok() {
            return 0;
        }
        if self.spec.members_only && flags & MEMBER == 0 {
            return UNREACHED;
        }
        if self.spec.threshold <= 1 {
            let mut best = UNREACHED;
            self.each_vote(graph, node, |_, vote| best = best.min(vote));
            best
        } else {
            self.threshold_layer(graph, node)
        }
    }

    fn threshold_layer(&mut self, graph: &Graph, node: u32) -> u32 {
        let mut votes = std::mem::take(&mut self.votes);
        votes.clear();
        self.each_vote(graph, node, |voter, vote| votes.push((voter, vote)));
        if self.spec.mutual || (self.electorate && graph.grace() > 0) {
            // Two agents that certified each other are one voter, as is one whose certificate was renewed in grace.
            votes.sort_unstable();
            votes.dedup_by_key(|vote| vote.0);
        }
        votes.sort_unstable_by_key(|vote| vote.1);
        let mut counted = 0;
        let mut layer = UNREACHED;
        for &(voter, vote) in &votes {
            counted += if self.layers[voter as usize] == 0 {
                self.spec.anchor_weight.max(1)
            } else {
                1
            };
            if counted >= self.spec.threshold {
                layer = vote;
                break;
            }
        }
        self.votes = votes;
        layer
    }

    /// Calls `visit` with every voter and the layer that its certificate offers.
    fn each_vote(&self, graph: &Graph, node: u32, mut visit: impl FnMut(u32, u32)) {
        let grace = if self.electorate { graph.grace() } else { 0 };
        let now = graph.now();
        let mut see = |seen: Seen| {
            let layer = self.layers[seen.node as usize];
            if layer >= self.limit || !seen.live_with_grace(now, grace) {
                return;
            }
            let (depth, _) = graph.weight(&seen);
            let free = depth == UNLIMITED || self.electorate;
            let floor = if free {
                0
            } else {
                self.limit.saturating_sub(u32::from(depth))
            };
            visit(seen.node, floor.max(layer + 1));
        };
        graph.each_in(node, &mut see);
        if self.spec.mutual {
            graph.each_out(node, &mut see);
        }
    }
}
