//! Questions about any pair or any anchor, answered by bounded search at the graph's reference time.
use std::cmp::Ordering;
use std::ops::Range;

use crate::certificate::UNLIMITED;
use crate::graph::{Graph, MEMBER, Seen, VOID};
use crate::hint::{prefetch, spread};

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

/// A set of nodes as bits that is emptied by naming what was put in.
#[derive(Default)]
struct Marks(Vec<u64>);

impl Marks {
    #[inline]
    fn has(&self, node: u32) -> bool {
        self.0[node as usize / 64] >> (node % 64) & 1 == 1
    }

    #[inline]
    fn add(&mut self, node: u32) {
        self.0[node as usize / 64] |= 1 << (node % 64);
    }

    fn clear(&mut self, nodes: &[u32]) {
        if nodes.len() > self.0.len() {
            self.0.fill(0);
        } else {
            for &node in nodes {
                self.0[node as usize / 64] = 0;
            }
        }
    }
}

/// Working memory of searches, reused between them: two bits a node and what a search reached; one byte a node
/// more once a threshold search is made.
#[derive(Default)]
pub struct Scratch {
    ahead: Marks,
    behind: Marks,
    votes: Vec<u8>,
    asked: Vec<u32>,
    queue: Vec<u32>,
    back_queue: Vec<u32>,
    /// More bits are set in `ahead` than `queue` names.
    crowded: bool,
}

impl Scratch {
    fn begin(&mut self, nodes: usize) {
        if std::mem::take(&mut self.crowded) {
            self.ahead.0.fill(0);
        } else {
            self.ahead.clear(&self.queue);
        }
        self.behind.clear(&self.back_queue);
        self.queue.clear();
        self.back_queue.clear();
        let words = nodes.div_ceil(64);
        if self.ahead.0.len() < words {
            self.ahead.0.resize(words, 0);
            self.behind.0.resize(words, 0);
        }
    }
}

/// How many nodes a search brings closer at once.
const WARMED: usize = 32;

fn is_open(bits: &[u64], node: u32) -> bool {
    bits[node as usize / 64] >> (node % 64) & 1 == 1
}

/// Nodes reached from `anchors` (which come first), in order of distance; `ends` gets the end of each layer.
///
/// Depth limits of single certificates are not looked at: for graphs that have some, use [`crate::LayerSet`].
pub fn reach<'a>(
    graph: &Graph,
    scratch: &'a mut Scratch,
    anchors: &[u32],
    walk: Walk,
    ends: Option<&mut Vec<usize>>,
) -> &'a [u32] {
    search(graph, scratch, anchors, walk, ends, false);
    &scratch.queue
}

/// Number of nodes that [`reach`] gives; a large last layer is only counted.
#[must_use]
pub fn reach_count(graph: &Graph, scratch: &mut Scratch, anchors: &[u32], walk: Walk) -> usize {
    let uncounted = search(graph, scratch, anchors, walk, None, true);
    scratch.queue.len() + uncounted
}

/// Fills the queue with what is reached, but for a large last layer if it is only to be counted: the answer.
fn search(
    graph: &Graph,
    scratch: &mut Scratch,
    anchors: &[u32],
    walk: Walk,
    ends: Option<&mut Vec<usize>>,
    only_count: bool,
) -> usize {
    scratch.begin(graph.nodes());
    let now = graph.now();
    let enterable = graph.enterable(walk.members_only);
    let Scratch {
        ahead,
        queue,
        crowded,
        ..
    } = scratch;
    for &anchor in anchors {
        if graph.flags(anchor) & VOID == 0 && !ahead.has(anchor) {
            ahead.add(anchor);
            queue.push(anchor);
        }
    }
    let mut layers = Layers::new(ends, queue.len());
    let mut start = 0;
    let mut steps = 0;
    while start < queue.len() && steps < walk.limit() {
        let end = queue.len();
        if end - start >= DENSE && !walk.mutual {
            // From here on nodes that may not be entered count as reached: one look instead of two.
            if !std::mem::replace(crowded, true) {
                for (seen, open) in ahead.0.iter_mut().zip(enterable) {
                    *seen |= !open;
                }
            }
            let frontier = queue[start..].to_vec();
            if only_count && steps + 1 == walk.limit() {
                let mut count = 0;
                graph.spill(&frontier, |arcs| {
                    for arc in arcs {
                        count += usize::from(arc.close(now, &mut ahead.0).1);
                    }
                });
                return count;
            }
            let mut len = end;
            graph.spill(&frontier, |arcs| {
                // Each is written down before it is known whether it counts.
                if queue.len() < len + arcs.len() {
                    queue.resize(len + arcs.len() + ROOM, 0);
                }
                for arc in arcs {
                    let (to, new) = arc.close(now, &mut ahead.0);
                    queue[len] = to;
                    len += usize::from(new);
                }
            });
            queue.truncate(len);
            start = end;
            steps += 1;
            layers.close(queue.len());
            continue;
        }
        for at in start..end {
            if (at - start).is_multiple_of(WARMED) {
                graph.warm(&queue[at..end.min(at + WARMED)]);
            }
            let node = queue[at];
            let mut see = |seen: Seen| {
                if seen.live(now) && is_open(enterable, seen.node) && !ahead.has(seen.node) {
                    ahead.add(seen.node);
                    queue.push(seen.node);
                }
            };
            graph.each_out(node, &mut see);
            if walk.mutual {
                graph.each_in(node, &mut see);
            }
        }
        start = end;
        steps += 1;
        layers.close(queue.len());
    }
    0
}

/// Frontiers at least as long are followed without branches.
const DENSE: usize = 256;
/// Places that a queue grows by then.
const ROOM: usize = 4096;

/// Collects the ends of layers, if anybody wants them.
struct Layers<'a>(Option<&'a mut Vec<usize>>);

impl<'a> Layers<'a> {
    fn new(mut ends: Option<&'a mut Vec<usize>>, anchors: usize) -> Self {
        if let Some(ends) = &mut ends {
            ends.clear();
            ends.push(anchors);
        }
        Self(ends)
    }

    fn close(&mut self, end: usize) {
        if let Some(ends) = &mut self.0
            && ends.last().is_none_or(|&last| last < end)
        {
            ends.push(end);
        }
    }
}

/// Nodes that the threshold rule accepts from `anchors`, in order of layer; `ends` gets the end of each layer.
///
/// Depth limits of single certificates are not looked at: for graphs that have some, use [`crate::LayerSet`].
pub fn reach_threshold<'a>(
    graph: &Graph,
    scratch: &'a mut Scratch,
    anchors: &[u32],
    rule: Threshold,
    ends: Option<&mut Vec<usize>>,
) -> &'a [u32] {
    scratch.begin(graph.nodes());
    let Scratch {
        ahead,
        votes,
        asked,
        queue,
        ..
    } = scratch;
    votes.resize(graph.nodes().max(votes.len()), 0);
    let now = graph.now();
    let grace = if rule.grace { graph.grace() } else { 0 };
    // A pair's spans are disjoint, but with grace an ended one and its successor may both count: one voter.
    let mut last_voter = if grace > 0 {
        vec![u32::MAX; graph.nodes()]
    } else {
        Vec::new()
    };
    for &anchor in anchors {
        if graph.flags(anchor) & rule.hidden == 0 && !ahead.has(anchor) {
            ahead.add(anchor);
            queue.push(anchor);
        }
    }
    let needed = rule.certifiers.clamp(1, 255) as u8;
    let limit = rule.max_depth.unwrap_or(u32::MAX);
    let mut layers = Layers::new(ends, queue.len());
    let (mut start, mut steps) = (0, 0);
    while start < queue.len() && steps < limit {
        let end = queue.len();
        let weight = if steps == 0 {
            rule.anchor_weight.clamp(1, 255) as u8
        } else {
            1
        };
        for at in start..end {
            let node = queue[at];
            graph.each_out(node, |seen| {
                let to = seen.node as usize;
                if seen.live_with_grace(now, grace) && !ahead.has(seen.node) {
                    if let Some(last) = last_voter.get_mut(to)
                        && std::mem::replace(last, node) == node
                    {
                        return;
                    }
                    if votes[to] == 0 {
                        asked.push(seen.node);
                    }
                    votes[to] = votes[to].saturating_add(weight);
                    if votes[to] >= needed && graph.flags(seen.node) & rule.hidden == 0 {
                        ahead.add(seen.node);
                        queue.push(seen.node);
                    }
                }
            });
        }
        start = end;
        steps += 1;
        layers.close(queue.len());
    }
    for node in asked.drain(..) {
        votes[node as usize] = 0;
    }
    queue
}

/// The threshold rule as a search follows it: only along certificates, at most 255 certifiers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Threshold {
    /// Certifiers needed (t), 1 to 255.
    pub certifiers: u32,
    /// Votes of an anchor.
    pub anchor_weight: u32,
    /// Largest layer; `None` for no limit.
    pub max_depth: Option<u32>,
    grace: bool,
    hidden: u8,
}

impl Threshold {
    /// The rule for trusted sets.
    #[must_use]
    pub fn new(certifiers: u32, anchor_weight: u32, max_depth: Option<u32>) -> Self {
        Self {
            certifiers,
            anchor_weight,
            max_depth,
            grace: false,
            hidden: VOID,
        }
    }

    /// As membership has it: with grace, and blind to some flags only.
    pub(crate) fn for_membership(certifiers: u32, hidden: u8) -> Self {
        Self {
            certifiers,
            anchor_weight: 1,
            max_depth: None,
            grace: true,
            hidden,
        }
    }
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
    let now = graph.now();
    let enterable = graph.enterable(walk.members_only);
    let Scratch {
        ahead,
        behind,
        queue,
        back_queue,
        ..
    } = scratch;
    ahead.add(anchor);
    behind.add(target);
    queue.push(anchor);
    back_queue.push(target);
    let (mut front, mut back) = (0, 0);
    let mut walked = 0;
    while walked < walk.limit() {
        let ahead_work = work(graph, &queue[front..], walk.mutual, false);
        let back_work = work(graph, &back_queue[back..], walk.mutual, true);
        if ahead_work == 0 || back_work == 0 {
            return None;
        }
        walked += 1;
        let forward = ahead_work <= back_work;
        let last = walked == walk.limit();
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
                if other.has(seen.node) {
                    met |= seen.live(now);
                } else if !last && !mine.has(seen.node) && seen.live(now) && is_open(enterable, seen.node) {
                    mine.add(seen.node);
                    pending.push(seen.node);
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
    let now = graph.now();
    let enterable = graph.enterable(walk.members_only);
    let Scratch { ahead, queue, .. } = scratch;
    ahead.add(target);
    queue.push(target);
    let mut layers = Vec::new();
    let mut layer = 0..1;
    let mut steps = 0;
    while !layer.is_empty() && steps < walk.limit() {
        let mut met = false;
        for at in layer.clone() {
            let node = queue[at];
            let mut see = |seen: Seen| {
                if !seen.live(now) || ahead.has(seen.node) {
                    return;
                }
                let (depth, _) = graph.weight(&seen);
                // A chain has `steps` certificates behind this one. A node reached later would have more behind
                // it, so the first time is also the most permissive one.
                if depth != UNLIMITED && u32::from(depth) < steps {
                    return;
                }
                let anchor = is_anchor(seen.node);
                if is_open(enterable, seen.node) || (anchor && graph.flags(seen.node) & VOID == 0) {
                    ahead.add(seen.node);
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
    // For a large part of all nodes it is faster to count from the other end: hardly anybody has many
    // certifiers, while some certify thousands.
    let shallow = walk.max_depth.is_some_and(|depth| depth <= 4);
    if shallow && !walk.mutual && anchors.len() >= graph.nodes() / 4 {
        let sizes = all_sizes(graph, walk, mask, threads);
        return anchors.iter().map(|&anchor| sizes[anchor as usize]).collect();
    }
    per_anchor(graph, anchors, threads, |scratch, anchor| {
        masked(reach(graph, scratch, &[anchor], walk, None), mask)
    })
}

/// Sizes of the sets of all nodes: each node adds one to everybody that reaches it.
fn all_sizes(graph: &Graph, walk: Walk, mask: Option<&[u64]>, threads: usize) -> Vec<u32> {
    let nodes = graph.nodes();
    let counted = |node: u32| mask.is_none_or(|mask| in_mask(mask, node));
    let behind = Lists::behind(graph, walk);
    // With everybody's second certifiers beside the first, a search has one step less to wait for.
    let further = if walk.limit() >= 3 {
        behind.twice(FURTHEST)
    } else {
        None
    };
    let (last, steps) = match &further {
        Some(lists) => (lists, walk.limit() - 2),
        None => (&behind, walk.limit().saturating_sub(1)),
    };
    let enterable = graph.enterable(walk.members_only);
    let count_part = |targets: Range<u32>| {
        let mut sizes = spread(nodes, 0u32);
        let mut marks = Marks(vec![0; nodes.div_ceil(64)]);
        let mut ball: Vec<u32> = Vec::new();
        if walk.limit() == 0 {
            return sizes;
        }
        for target in targets.clone() {
            if (target - targets.start).is_multiple_of(WARMED as u32) {
                let next =
                    (target + WARMED as u32).min(targets.end)..(target + 2 * WARMED as u32).min(targets.end);
                for &source in behind.stretch(next.clone()) {
                    prefetch(&last.starts, source as usize);
                }
                for &source in behind.stretch(target..next.start) {
                    last.call(source);
                }
            }
            if !is_open(enterable, target) || !counted(target) {
                continue;
            }
            ball.clear();
            ball.push(target);
            marks.add(target);
            let mut start = 0;
            for _ in 0..steps {
                let end = ball.len();
                for at in start..end {
                    // Who is no member may be an anchor, but nobody trusts through it: nobody is behind it here.
                    for &source in behind.of(ball[at]) {
                        if !marks.has(source) {
                            marks.add(source);
                            ball.push(source);
                        }
                    }
                }
                start = end;
            }
            let frontier = start..ball.len();
            let mut len = frontier.end;
            for at in frontier {
                let sources = last.of(ball[at]);
                // Written down before it is known whether they are new: nobody could foretell that branch.
                ball.resize(len + sources.len(), 0);
                for &source in sources {
                    let new = !marks.has(source);
                    marks.add(source);
                    ball[len] = source;
                    len += usize::from(new);
                }
                ball.truncate(len);
            }
            for &source in &ball[1..] {
                sizes[source as usize] += 1;
            }
            marks.clear(&ball);
        }
        sizes
    };
    let share = (nodes as u32).div_ceil(threads.max(1) as u32).max(1);
    let mut sizes = spread(nodes, 0u32);
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..nodes as u32)
            .step_by(share as usize)
            .map(|first| {
                let count_part = &count_part;
                scope.spawn(move || count_part(first..first.saturating_add(share).min(nodes as u32)))
            })
            .collect();
        for part in parts {
            // A panic of a thread is one of this function.
            let part = part
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (size, more) in sizes.iter_mut().zip(part) {
                *size += more;
            }
        }
    });
    for (node, size) in (0u32..).zip(&mut sizes) {
        *size = if graph.flags(node) & VOID == 0 {
            *size + u32::from(counted(node))
        } else {
            0
        };
    }
    sizes
}

/// Entries a node for which lists of certifiers' certifiers are still worth their memory.
const FURTHEST: usize = 16;

/// A list of nodes for each node.
struct Lists {
    starts: Vec<u32>,
    nodes: Vec<u32>,
}

impl Lists {
    /// Issuers of the certificates that count: each is checked once here instead of in every search.
    fn behind(graph: &Graph, walk: Walk) -> Self {
        let enterable = graph.enterable(walk.members_only);
        let mut starts = spread(graph.nodes() + 1, 0u32);
        let mut nodes = spread(graph.arcs(), 0u32);
        let mut len = 0;
        for node in 0..graph.nodes() as u32 {
            if is_open(enterable, node) {
                graph.each_in(node, |seen| {
                    nodes[len] = seen.node;
                    len += usize::from(seen.live(graph.now()) && graph.flags(seen.node) & VOID == 0);
                });
            }
            starts[node as usize + 1] = len as u32;
        }
        nodes.truncate(len);
        Self { starts, nodes }
    }

    #[inline]
    fn of(&self, node: u32) -> &[u32] {
        self.stretch(node..node + 1)
    }

    /// The lists of nodes in a row.
    #[inline]
    fn stretch(&self, of: Range<u32>) -> &[u32] {
        &self.nodes[self.starts[of.start as usize] as usize..self.starts[of.end as usize] as usize]
    }

    /// Brings the list of a node closer.
    #[inline]
    fn call(&self, node: u32) {
        let start = self.starts[node as usize] as usize;
        prefetch(&self.nodes, start);
        prefetch(&self.nodes, start + 16);
    }

    /// Each node's list, and the lists of those on it; None if there would be more than `most` entries a node.
    fn twice(&self, most: usize) -> Option<Self> {
        let count = self.starts.len() - 1;
        let total: usize = self.nodes.iter().map(|&node| 1 + self.of(node).len()).sum();
        if total > most * count {
            return None;
        }
        let mut starts = spread(count + 1, 0u32);
        let mut nodes = spread(total, 0u32);
        let mut len = 0;
        for node in 0..count as u32 {
            if node.is_multiple_of(WARMED as u32) {
                let ahead = |n: u32| (node + n * WARMED as u32).min(count as u32);
                for &near in self.stretch(ahead(2)..ahead(3)) {
                    prefetch(&self.starts, near as usize);
                }
                for &near in self.stretch(ahead(1)..ahead(2)) {
                    self.call(near);
                }
            }
            for &near in self.of(node) {
                nodes[len] = near;
                len += 1;
                let far = self.of(near);
                nodes[len..len + far.len()].copy_from_slice(far);
                len += far.len();
            }
            starts[node as usize + 1] = len as u32;
        }
        Some(Self { starts, nodes })
    }
}

/// As [`reach_sizes`], for the threshold rule.
#[must_use]
pub fn reach_threshold_sizes(
    graph: &Graph,
    anchors: &[u32],
    rule: Threshold,
    mask: Option<&[u64]>,
    threads: usize,
) -> Vec<u32> {
    per_anchor(graph, anchors, threads, |scratch, anchor| {
        masked(reach_threshold(graph, scratch, &[anchor], rule, None), mask)
    })
}

fn masked(nodes: &[u32], mask: Option<&[u64]>) -> u32 {
    let Some(mask) = mask else {
        return nodes.len() as u32;
    };
    nodes.iter().filter(|&&node| in_mask(mask, node)).count() as u32
}

fn in_mask(mask: &[u64], node: u32) -> bool {
    mask.get(node as usize / 64)
        .is_some_and(|word| word >> (node % 64) & 1 == 1)
}

fn per_anchor(
    graph: &Graph,
    anchors: &[u32],
    threads: usize,
    one: impl Fn(&mut Scratch, u32) -> u32 + Sync,
) -> Vec<u32> {
    let mut sizes = vec![0; anchors.len()];
    let share = anchors.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        for (anchors, sizes) in anchors.chunks(share).zip(sizes.chunks_mut(share)) {
            let one = &one;
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                for (anchors, sizes) in anchors.chunks(WARMED).zip(sizes.chunks_mut(WARMED)) {
                    graph.warm(anchors);
                    for (&anchor, size) in anchors.iter().zip(sizes) {
                        *size = one(&mut scratch, anchor);
                    }
                }
            });
        }
    });
    sizes
}
