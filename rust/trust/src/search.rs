//! Questions about any pair or any anchor, answered by bounded search at the graph's reference time.
use std::cmp::Ordering;
use std::ops::Range;

use crate::certificate::UNLIMITED;
use crate::graph::{Graph, MEMBER, Seen, VOID};

/// How far and along what a search goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Walk {
    /// Longest chain; `None` for no limit.
    pub max_depth: Option<u32>,
    /// Also follow certificates from subject to issuer.
    pub mutual: bool,
    /// Only members are reached (the path rule).
    pub members_only: bool,
}

impl Walk {
    fn needs(self) -> u8 {
        if self.members_only { MEMBER } else { 0 }
    }

    fn limit(self) -> u32 {
        self.max_depth.unwrap_or(u32::MAX)
    }
}

/// Working memory of searches, reused between them: 8 bytes a node, plus 2 once a threshold search is made.
#[derive(Default)]
pub struct Scratch {
    epoch: u32,
    ahead: Vec<u32>,
    behind: Vec<u32>,
    votes: Vec<u16>,
    queue: Vec<u32>,
    back_queue: Vec<u32>,
}

impl Scratch {
    fn begin(&mut self, nodes: usize) {
        if self.ahead.len() < nodes {
            self.ahead.resize(nodes, 0);
            self.behind.resize(nodes, 0);
        }
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.ahead.fill(0);
            self.behind.fill(0);
            self.epoch = 1;
        }
        self.queue.clear();
        self.back_queue.clear();
    }
}

/// Nodes reached from `anchors` (which come first), in order of distance, with the end of each layer.
///
/// Depth limits of single certificates are obeyed.
pub fn reach<'a>(
    graph: &Graph,
    scratch: &'a mut Scratch,
    anchors: &[u32],
    walk: Walk,
) -> (&'a [u32], Vec<usize>) {
    scratch.begin(graph.nodes());
    let (now, needs, epoch) = (graph.now(), walk.needs(), scratch.epoch);
    let Scratch { ahead, queue, .. } = scratch;
    for &anchor in anchors {
        if graph.flags(anchor) & VOID == 0 && ahead[anchor as usize] != epoch {
            ahead[anchor as usize] = epoch;
            queue.push(anchor);
        }
    }
    let mut ends = vec![queue.len()];
    let mut start = 0;
    while start < queue.len() && (ends.len() as u32) <= walk.limit() {
        let end = queue.len();
        for at in start..end {
            let node = queue[at];
            let mut see = |seen: Seen| {
                if seen.live(now) && ahead[seen.node as usize] != epoch {
                    let flags = graph.flags(seen.node);
                    if flags & needs == needs && flags & VOID == 0 {
                        ahead[seen.node as usize] = epoch;
                        queue.push(seen.node);
                    }
                }
            };
            graph.each_out(node, &mut see);
            if walk.mutual {
                graph.each_in(node, &mut see);
            }
        }
        if queue.len() == end {
            break;
        }
        start = end;
        ends.push(queue.len());
    }
    (&scratch.queue, ends)
}

/// Nodes that the threshold rule accepts from `anchors`, in order of layer, with the end of each layer.
///
/// Only for graphs without depth limits on single certificates; [`crate::LayerSet`] has the general rule.
pub fn reach_threshold<'a>(
    graph: &Graph,
    scratch: &'a mut Scratch,
    anchors: &[u32],
    threshold: u32,
    anchor_weight: u32,
    max_depth: Option<u32>,
) -> (&'a [u32], Vec<usize>) {
    scratch.begin(graph.nodes());
    scratch.votes.resize(scratch.ahead.len(), 0);
    let (now, epoch, limit) = (graph.now(), scratch.epoch, max_depth.unwrap_or(u32::MAX));
    let Scratch {
        ahead,
        behind,
        votes,
        queue,
        ..
    } = scratch;
    for &anchor in anchors {
        if graph.flags(anchor) & VOID == 0 && ahead[anchor as usize] != epoch {
            ahead[anchor as usize] = epoch;
            queue.push(anchor);
        }
    }
    let mut ends = vec![queue.len()];
    let mut start = 0;
    while start < queue.len() && (ends.len() as u32) <= limit {
        let end = queue.len();
        let weight = if start == 0 { anchor_weight.max(1) } else { 1 };
        for at in start..end {
            let node = queue[at];
            graph.each_out(node, |seen| {
                let to = seen.node as usize;
                if seen.live(now) && ahead[to] != epoch && graph.flags(seen.node) & VOID == 0 {
                    if behind[to] != epoch {
                        behind[to] = epoch;
                        votes[to] = 0;
                    }
                    votes[to] = votes[to].saturating_add(weight.min(u32::from(u16::MAX)) as u16);
                    if u32::from(votes[to]) >= threshold {
                        ahead[to] = epoch;
                        queue.push(seen.node);
                    }
                }
            });
        }
        if queue.len() == end {
            break;
        }
        start = end;
        ends.push(queue.len());
    }
    (&scratch.queue, ends)
}

/// Length of the shortest accepted chain from `anchor` to `target`, if there is one.
///
/// Searches from both ends, each time from the end with less work ahead: about the square root of a one-sided
/// search. With depth limits in the graph it searches back from the target only, because whether a certificate
/// may be used depends on how many follow.
#[must_use]
pub fn distance(graph: &Graph, scratch: &mut Scratch, anchor: u32, target: u32, walk: Walk) -> Option<u32> {
    let needs = walk.needs();
    if (graph.flags(anchor) | graph.flags(target)) & VOID != 0 {
        return None;
    }
    if anchor == target {
        return Some(0);
    }
    if graph.flags(target) & needs != needs {
        return None;
    }
    if graph.has_limits() {
        let ends = search_back(graph, scratch, |node| node == anchor, target, walk)?;
        return Some(ends.len() as u32);
    }
    scratch.begin(graph.nodes());
    let (now, epoch) = (graph.now(), scratch.epoch);
    let Scratch {
        ahead,
        behind,
        queue,
        back_queue,
        ..
    } = scratch;
    ahead[anchor as usize] = epoch;
    behind[target as usize] = epoch;
    queue.push(anchor);
    back_queue.push(target);
    let (mut front, mut back) = (0, 0);
    let mut walked = 0;
    while walked < walk.limit() {
        let ahead_work: usize = work(graph, &queue[front..], walk.mutual, false);
        let back_work: usize = work(graph, &back_queue[back..], walk.mutual, true);
        if ahead_work == 0 || back_work == 0 {
            return None;
        }
        walked += 1;
        let forward = ahead_work <= back_work;
        let (frontier, mine, other, pending) = if forward {
            (front..queue.len(), &mut *ahead, &*behind, &mut *queue)
        } else {
            (back..back_queue.len(), &mut *behind, &*ahead, &mut *back_queue)
        };
        let end = frontier.end;
        let mut met = false;
        for at in frontier {
            let node = pending[at];
            let mut see = |seen: Seen| {
                let to = seen.node as usize;
                if seen.live(now) && mine[to] != epoch {
                    if other[to] == epoch {
                        met = true;
                    } else if graph.flags(seen.node) & (needs | VOID) == needs {
                        mine[to] = epoch;
                        pending.push(seen.node);
                    }
                }
            };
            if forward || walk.mutual {
                graph.each_out(node, &mut see);
            }
            if !forward || walk.mutual {
                graph.each_in(node, &mut see);
            }
            if met {
                return Some(walked);
            }
        }
        if forward {
            front = end;
        } else {
            back = end;
        }
    }
    None
}

fn work(graph: &Graph, frontier: &[u32], mutual: bool, back: bool) -> usize {
    frontier
        .iter()
        .map(|&node| {
            let outs = if mutual || !back {
                graph.out_degree(node)
            } else {
                0
            };
            outs + if mutual || back { graph.in_degree(node) } else { 0 }
        })
        .sum()
}

/// Searches back from `target` until a whole layer holds an anchor. Afterwards `scratch.queue` holds the nodes
/// by distance to the target, and the answer the layers' ranges, the last one with an anchor in it.
fn search_back(
    graph: &Graph,
    scratch: &mut Scratch,
    is_anchor: impl Fn(u32) -> bool,
    target: u32,
    walk: Walk,
) -> Option<Vec<Range<usize>>> {
    scratch.begin(graph.nodes());
    let (now, needs, epoch) = (graph.now(), walk.needs(), scratch.epoch);
    let Scratch { behind, queue, .. } = scratch;
    behind[target as usize] = epoch;
    queue.push(target);
    let mut layers = Vec::new();
    let mut layer = 0..1;
    let mut steps = 0;
    while !layer.is_empty() && steps < walk.limit() {
        let mut met = false;
        for at in layer.clone() {
            let node = queue[at];
            let mut see = |seen: Seen| {
                let to = seen.node as usize;
                if !seen.live(now) || behind[to] == epoch {
                    return;
                }
                let (depth, _) = graph.weight(&seen);
                // A chain has `steps` certificates behind this one. A node reached later would have more behind
                // it, so the first time is also the most permissive one.
                if depth != UNLIMITED && u32::from(depth) < steps {
                    return;
                }
                let anchor = is_anchor(seen.node);
                if graph.flags(seen.node) & VOID == 0 && (anchor || graph.flags(seen.node) & needs == needs) {
                    behind[to] = epoch;
                    queue.push(seen.node);
                    met |= anchor;
                }
            };
            graph.each_in(node, &mut see);
            if walk.mutual {
                graph.each_out(node, &mut see);
            }
        }
        steps += 1;
        let next = layer.end..queue.len();
        layers.push(next.clone());
        if met {
            return Some(layers);
        }
        layer = next;
    }
    None
}

/// The shortest accepted chain from one of `anchors` to `target`, both included.
///
/// Of several, the one whose nodes come first in `order`, compared from the anchor on; so the answer does not
/// depend on the order in which certificates arrived.
#[must_use]
pub fn witness(
    graph: &Graph,
    scratch: &mut Scratch,
    anchors: &[u32],
    target: u32,
    walk: Walk,
    order: impl Fn(u32, u32) -> Ordering,
) -> Option<Vec<u32>> {
    let mut anchors = anchors.to_vec();
    anchors.sort_unstable();
    let is_anchor = |node: u32| anchors.binary_search(&node).is_ok();
    let flags = graph.flags(target);
    if flags & VOID != 0 {
        return None;
    }
    if is_anchor(target) {
        return Some(vec![target]);
    }
    if flags & walk.needs() != walk.needs() {
        return None;
    }
    let layers = search_back(graph, scratch, is_anchor, target, walk)?;
    let now = graph.now();
    let nearest = |range: &Range<usize>| scratch.queue[range.clone()].to_vec();
    let last = nearest(&layers[layers.len() - 1]);
    let mut node = last
        .into_iter()
        .filter(|&node| is_anchor(node))
        .min_by(|&a, &b| order(a, b))?;
    let mut path = vec![node];
    for steps in (0..layers.len()).rev() {
        let mut layer = if steps == 0 {
            vec![target]
        } else {
            nearest(&layers[steps - 1])
        };
        layer.sort_unstable();
        let mut best: Option<u32> = None;
        let mut see = |seen: Seen| {
            let (depth, _) = graph.weight(&seen);
            let usable = seen.live(now) && (depth == UNLIMITED || u32::from(depth) >= steps as u32);
            if usable
                && layer.binary_search(&seen.node).is_ok()
                && best.is_none_or(|known| order(seen.node, known) == Ordering::Less)
            {
                best = Some(seen.node);
            }
        };
        graph.each_out(node, &mut see);
        if walk.mutual {
            graph.each_in(node, &mut see);
        }
        node = best?;
        path.push(node);
    }
    Some(path)
}

/// Sizes of the sets that each of `anchors` reaches on its own, the anchor included; only nodes whose bit in
/// `mask` is set are counted. Split over `threads` threads.
#[must_use]
pub fn reach_sizes(
    graph: &Graph,
    anchors: &[u32],
    walk: Walk,
    mask: Option<&[u64]>,
    threads: usize,
) -> Vec<u32> {
    per_anchor(anchors, threads, |scratch, anchor| {
        let (nodes, _) = reach(graph, scratch, &[anchor], walk);
        masked(nodes, mask)
    })
}

/// As [`reach_sizes`], for the threshold rule.
#[must_use]
pub fn reach_threshold_sizes(
    graph: &Graph,
    anchors: &[u32],
    rule: (u32, u32, Option<u32>),
    mask: Option<&[u64]>,
    threads: usize,
) -> Vec<u32> {
    let (threshold, anchor_weight, max_depth) = rule;
    per_anchor(anchors, threads, |scratch, anchor| {
        let (nodes, _) = reach_threshold(graph, scratch, &[anchor], threshold, anchor_weight, max_depth);
        masked(nodes, mask)
    })
}

fn masked(nodes: &[u32], mask: Option<&[u64]>) -> u32 {
    let inside = |&&node: &&u32| {
        mask.is_none_or(|mask| {
            mask.get(node as usize / 64)
                .is_some_and(|word| word >> (node % 64) & 1 == 1)
        })
    };
    nodes.iter().filter(inside).count() as u32
}

fn per_anchor(anchors: &[u32], threads: usize, one: impl Fn(&mut Scratch, u32) -> u32 + Sync) -> Vec<u32> {
    let mut sizes = vec![0; anchors.len()];
    let share = anchors.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for (anchors, sizes) in anchors.chunks(share).zip(sizes.chunks_mut(share)) {
            let one = &one;
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                for (&anchor, size) in anchors.iter().zip(sizes) {
                    *size = one(&mut scratch, anchor);
                }
            });
        }
    });
    sizes
}
