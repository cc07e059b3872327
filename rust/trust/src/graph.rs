//! The certificate graph in compact form: who vouches for whom, and when that counts.
//!
//! Two compressed adjacency arrays hold what was known at the last compaction; what came later hangs in short
//! linked lists until the next one. An arc carries its validity, so every search checks liveness per arc.
//! Of one (issuer, subject) at most one arc is live at any time: the ledger cuts certificates into such spans.
//!
//! Time only moves forward, so of an arc that has begun only the end is kept: eight bytes an arc, and one
//! comparison. Until it begins its end reads 0, which no time is before, and the true one lies aside.
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use crate::certificate::{FULL, UNLIMITED};
use crate::hint::{prefetch, spread};

/// Set in `Arc::to` when depth or amount are not the default ones.
const LIMITED: u32 = 1 << 31;
/// Most nodes a graph can have.
pub const MAX_NODES: usize = LIMITED as usize - 1;
const NONE: u32 = u32::MAX;
/// `until` of an arc that was taken out or has not begun: no time is before it.
const NEVER: u32 = 0;

const HAS_OUT: u8 = 1;
const HAS_IN: u8 = 2;
/// The node is a member.
pub(crate) const MEMBER: u8 = 4;
/// The node's key is compromised, or the node was expelled: nothing it says or hears counts.
pub(crate) const VOID: u8 = 8;
/// The node's key was declared compromised.
pub(crate) const COMPROMISED: u8 = 16;

/// Validity and weight of one arc.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Span {
    /// First second at which it counts.
    pub from: u32,
    /// First second after.
    pub until: u32,
    /// Certificates a chain may have behind it; [`UNLIMITED`] for no limit.
    pub depth: u8,
    /// Trust amount, 1 to [`FULL`].
    pub amount: u8,
}

impl Span {
    /// Full trust without a depth limit.
    #[must_use]
    pub fn full(from: u32, until: u32) -> Self {
        Self {
            from,
            until,
            depth: UNLIMITED,
            amount: FULL,
        }
    }
}

/// One arc as it is stored.
#[derive(Clone, Copy)]
pub(crate) struct Arc {
    to: u32,
    until: u32,
}

impl Arc {
    /// Sets the bit of the node that the arc leads to if the arc is live; says which node, and whether its bit is
    /// new. Without a branch, which nobody could foretell.
    #[inline(always)]
    pub(crate) fn close(self, now: u32, closed: &mut [u64]) -> (u32, bool) {
        let to = self.to & !LIMITED;
        let word = &mut closed[to as usize / 64];
        let bit = u64::from(now < self.until) << (to % 64);
        let new = bit & !*word != 0;
        *word |= bit;
        (to, new)
    }
}

/// Arcs of a cache line.
const LINE: usize = 64 / size_of::<Arc>();

/// Validity of an arc that has not begun.
#[derive(Clone, Copy)]
struct Coming {
    from: u32,
    until: u32,
}

#[derive(Clone, Copy)]
struct Back {
    source: u32,
    arc: u32,
}

/// An arc that came after the last compaction.
struct Extra {
    source: u32,
    arc: Arc,
    next_out: u32,
    next_in: u32,
}

/// One arc as seen from one of its ends.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// The node at the other end.
    pub(crate) node: u32,
    /// Index of the arc, stable until the next compaction.
    pub(crate) arc: u32,
    until: u32,
    limited: bool,
}

impl Seen {
    #[inline]
    pub(crate) fn live(&self, now: u32) -> bool {
        now < self.until
    }

    #[inline]
    pub(crate) fn live_with_grace(&self, now: u32, grace: u32) -> bool {
        self.until != NEVER && now < self.until.saturating_add(grace)
    }
}

/// Multiplicative hashing of small integers: seeds are arguments here, and keys are our own indices.
#[derive(Default)]
pub(crate) struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

/// The graph with its clock.
pub struct Graph {
    out_start: Vec<u32>,
    outs: Vec<Arc>,
    in_start: Vec<u32>,
    ins: Vec<Back>,
    extras: Vec<Extra>,
    first_out: HashMap<u32, u32, BuildHasherDefault<IndexHasher>>,
    first_in: HashMap<u32, u32, BuildHasherDefault<IndexHasher>>,
    limits: HashMap<u32, (u8, u8), BuildHasherDefault<IndexHasher>>,
    coming: HashMap<u32, Coming, BuildHasherDefault<IndexHasher>>,
    flags: Vec<u8>,
    /// Nodes that are not void, as bits; a bit per node stays in the nearest cache where a byte would not.
    open: Vec<u64>,
    /// Members that are not void, as bits.
    open_members: Vec<u64>,
    retired: BTreeMap<u32, u32>,
    now: u32,
    /// Seconds for which an arc still supports membership after it ended; arcs are kept as long.
    grace: u32,
    agenda: Vec<(u32, u32)>,
    near: BinaryHeap<Reverse<(u32, u32)>>,
    /// Every boundary up to and including this time is in `agenda` or `near`.
    horizon: u32,
}

impl Graph {
    /// An empty graph whose reference time is `now`.
    #[must_use]
    pub fn new(now: u32, grace: u32) -> Self {
        Self {
            out_start: vec![0],
            outs: Vec::new(),
            in_start: vec![0],
            ins: Vec::new(),
            extras: Vec::new(),
            first_out: HashMap::default(),
            first_in: HashMap::default(),
            limits: HashMap::default(),
            coming: HashMap::default(),
            flags: Vec::new(),
            open: Vec::new(),
            open_members: Vec::new(),
            retired: BTreeMap::new(),
            now,
            grace,
            agenda: Vec::new(),
            near: BinaryHeap::new(),
            horizon: u32::MAX,
        }
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.flags.len()
    }

    /// Number of stored arcs, live or not.
    #[must_use]
    pub fn arcs(&self) -> usize {
        self.outs.len() + self.extras.len()
    }

    /// The reference time of every answer, in seconds.
    #[must_use]
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Seconds of grace for membership.
    #[must_use]
    pub fn grace(&self) -> u32 {
        self.grace
    }

    /// Bytes of topology and validity: adjacency, intervals, flags, what is due next.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.out_start.capacity() * 4
            + self.in_start.capacity() * 4
            + self.outs.capacity() * size_of::<Arc>()
            + self.ins.capacity() * size_of::<Back>()
            + self.extras.capacity() * size_of::<Extra>()
            + table_bytes(&self.first_out)
            + table_bytes(&self.first_in)
            + table_bytes(&self.limits)
            + table_bytes(&self.coming)
            + self.flags.capacity()
            + (self.open.capacity() + self.open_members.capacity()) * 8
            + self.agenda.capacity() * 8
            + self.near.capacity() * 8
            + self.retired.len() * 16
    }

    /// Adds nodes up to `count`.
    pub fn grow(&mut self, count: usize) {
        let old = self.flags.len();
        if count > old {
            self.flags.resize(count, 0);
            self.open.resize(count.div_ceil(64), 0);
            self.open_members.resize(count.div_ceil(64), 0);
            for node in old..count {
                self.open[node / 64] |= 1 << (node % 64);
            }
        }
    }

    #[inline]
    pub(crate) fn flags(&self, node: u32) -> u8 {
        self.flags[node as usize]
    }

    pub(crate) fn set_flag(&mut self, node: u32, flag: u8, on: bool) {
        let flags = &mut self.flags[node as usize];
        *flags = if on { *flags | flag } else { *flags & !flag };
        let (word, bit) = (node as usize / 64, 1 << (node % 64));
        let (open, member) = (*flags & VOID == 0, *flags & MEMBER != 0);
        self.open[word] = if open {
            self.open[word] | bit
        } else {
            self.open[word] & !bit
        };
        let both = &mut self.open_members[word];
        *both = if open && member { *both | bit } else { *both & !bit };
    }

    /// Nodes that a search may enter, as bits.
    #[inline]
    pub(crate) fn enterable(&self, members_only: bool) -> &[u64] {
        if members_only {
            &self.open_members
        } else {
            &self.open
        }
    }

    /// True when a depth limit below [`UNLIMITED`] or a partial amount is stored somewhere.
    #[must_use]
    pub fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// When the node's key is retired, if ever.
    #[must_use]
    pub fn retired_at(&self, node: u32) -> Option<u32> {
        self.retired.get(&node).copied()
    }

    /// Retires the node's key at `at`; the earliest time wins.
    pub(crate) fn retire(&mut self, node: u32, at: u32) {
        let slot = self.retired.entry(node).or_insert(at);
        *slot = at.min(*slot);
    }

    pub(crate) fn retired_now(&self) -> impl Iterator<Item = u32> + '_ {
        self.retired
            .iter()
            .filter(|&(_, &at)| at <= self.now)
            .map(|(&node, _)| node)
    }

    /// True when the node's key is retired at the reference time.
    #[inline]
    #[must_use]
    pub fn is_retired(&self, node: u32) -> bool {
        !self.retired.is_empty() && self.retired_at(node).is_some_and(|at| at <= self.now)
    }

    /// Depth limit and amount of an arc.
    #[inline]
    pub(crate) fn weight(&self, seen: &Seen) -> (u8, u8) {
        if seen.limited {
            self.limits[&seen.arc]
        } else {
            (UNLIMITED, FULL)
        }
    }

    /// Calls `visit` for every stored arc that `node` issued, live or not.
    #[inline]
    pub(crate) fn each_out(&self, node: u32, mut visit: impl FnMut(Seen)) {
        let (start, end) = self.stretch(node);
        for (arc, a) in (start as u32..).zip(&self.outs[start..end]) {
            visit(seen(a.to, arc, *a));
        }
        self.each_late_out(node, visit);
    }

    /// Brings what a search needs of these nodes closer. Their loads do not wait for one another, as they would
    /// behind the mispredicted branches of the search itself.
    pub(crate) fn warm(&self, nodes: &[u32]) {
        /// Longer lists are left to the processor, which sees the pattern by then.
        const LINES: usize = 6;
        for &node in nodes {
            let (start, end) = self.stretch(node);
            for line in 0..(end - start).div_ceil(LINE).min(LINES) {
                prefetch(&self.outs, start + line * LINE);
            }
        }
    }

    /// Where the arcs that `node` issued before the last compaction lie.
    #[inline]
    fn stretch(&self, node: u32) -> (usize, usize) {
        let at = node as usize;
        match self.out_start.get(at..at + 2) {
            Some(&[start, end]) => (start as usize, end as usize),
            _ => (0, 0),
        }
    }

    /// Calls `visit` with every arc that one of the nodes issued, in long lists. For many nodes: how long the list
    /// of each is would be a branch that nobody could foretell.
    pub(crate) fn spill(&self, nodes: &[u32], mut visit: impl FnMut(&[Arc])) {
        /// Lists up to this length are copied, at this length, to where they make one long list.
        const SHORT: usize = 16;
        const ROOM: usize = 512;
        /// How far ahead the place of a list, and the list itself, are asked for.
        const PLACE: usize = 24;
        const LIST: usize = 8;
        const LINES: usize = 3;
        let mut joined = [Arc { to: 0, until: NEVER }; ROOM + SHORT];
        let mut len = 0;
        for (at, &node) in nodes.iter().enumerate() {
            if let Some(&next) = nodes.get(at + PLACE) {
                prefetch(&self.out_start, next as usize);
            }
            if let Some(&next) = nodes.get(at + LIST) {
                let (start, _) = self.stretch(next);
                for line in 0..LINES {
                    prefetch(&self.outs, start + line * LINE);
                }
            }
            let (start, end) = self.stretch(node);
            if end - start <= SHORT
                && let Some(arcs) = self.outs.get(start..start + SHORT)
            {
                joined[len..len + SHORT].copy_from_slice(arcs);
                len += end - start;
                if len >= ROOM {
                    visit(&joined[..len]);
                    len = 0;
                }
            } else {
                visit(&self.outs[start..end]);
            }
            self.each_late_out(node, |seen| {
                let (to, until) = (seen.node, seen.until);
                visit(&[Arc { to, until }]);
            });
        }
        visit(&joined[..len]);
    }

    /// As `each_out`, of the arcs that came after the last compaction.
    #[inline]
    pub(crate) fn each_late_out(&self, node: u32, mut visit: impl FnMut(Seen)) {
        if !self.extras.is_empty() && self.flags[node as usize] & HAS_OUT != 0 {
            let mut next = self.first_out[&node];
            while next != NONE {
                let extra = &self.extras[next as usize];
                visit(seen(extra.arc.to, self.outs.len() as u32 + next, extra.arc));
                next = extra.next_out;
            }
        }
    }

    /// Calls `visit` for every stored arc on `node`, live or not.
    #[inline]
    pub(crate) fn each_in(&self, node: u32, mut visit: impl FnMut(Seen)) {
        let at = node as usize;
        if at + 1 < self.in_start.len() {
            for back in &self.ins[self.in_start[at] as usize..self.in_start[at + 1] as usize] {
                let a = self.outs[back.arc as usize];
                visit(Seen {
                    node: back.source,
                    ..seen(a.to, back.arc, a)
                });
            }
        }
        if !self.extras.is_empty() && self.flags[at] & HAS_IN != 0 {
            let mut next = self.first_in[&node];
            while next != NONE {
                let extra = &self.extras[next as usize];
                let arc = self.outs.len() as u32 + next;
                visit(Seen {
                    node: extra.source,
                    ..seen(extra.arc.to, arc, extra.arc)
                });
                next = extra.next_in;
            }
        }
    }

    /// Asks for the place where it says which arcs a node received, with its flags.
    #[inline]
    pub(crate) fn call_ins(&self, node: u32) {
        prefetch(&self.in_start, node as usize);
        prefetch(&self.flags, node as usize);
    }

    /// Asks for the list of arcs that a node received.
    #[inline]
    pub(crate) fn call_in_list(&self, node: u32) {
        if let Some(&start) = self.in_start.get(node as usize) {
            prefetch(&self.ins, start as usize);
        }
    }

    /// Asks for the first arcs that a node received, and names their sources.
    #[inline]
    pub(crate) fn call_sources(&self, node: u32, mut visit: impl FnMut(u32)) {
        const FIRST: usize = 4;
        if let Some(&[start, end]) = self.in_start.get(node as usize..node as usize + 2) {
            for back in self.ins[start as usize..end as usize].iter().take(FIRST) {
                prefetch(&self.outs, back.arc as usize);
                visit(back.source);
            }
        }
    }

    /// Number of stored arcs that `node` issued since the last compaction or before it, an upper bound of work.
    #[inline]
    pub(crate) fn out_degree(&self, node: u32) -> usize {
        let at = node as usize;
        let base = if at + 1 < self.out_start.len() {
            self.out_start[at + 1] - self.out_start[at]
        } else {
            0
        };
        let late = !self.extras.is_empty() && self.flags[at] & HAS_OUT != 0;
        base as usize + usize::from(late)
    }

    #[inline]
    pub(crate) fn in_degree(&self, node: u32) -> usize {
        let at = node as usize;
        let base = if at + 1 < self.in_start.len() {
            self.in_start[at + 1] - self.in_start[at]
        } else {
            0
        };
        let late = !self.extras.is_empty() && self.flags[at] & HAS_IN != 0;
        base as usize + usize::from(late)
    }

    /// Replaces the whole topology by the given arcs, all of full weight; returns false, without a change, if an
    /// end is not a node.
    pub fn load(&mut self, source: &[u32], subject: &[u32], from: &[u32], until: &[u32]) -> bool {
        let nodes = self.nodes() as u32;
        if source.iter().chain(subject).any(|&node| node >= nodes) {
            return false;
        }
        let arcs = (0..source.len()).map(|i| (source[i], subject[i], Span::full(from[i], until[i])));
        self.build(arcs);
        true
    }

    fn build(&mut self, arcs: impl Iterator<Item = (u32, u32, Span)> + Clone) {
        let nodes = self.nodes();
        let mut out_start = spread(nodes + 1, 0u32);
        let mut in_start = spread(nodes + 1, 0u32);
        let mut total = 0usize;
        for (source, to, _) in arcs.clone() {
            out_start[source as usize + 1] += 1;
            in_start[to as usize + 1] += 1;
            total += 1;
        }
        for node in 0..nodes {
            out_start[node + 1] += out_start[node];
            in_start[node + 1] += in_start[node];
        }
        let gone = Arc { to: 0, until: NEVER };
        let mut outs = spread(total, gone);
        self.limits = HashMap::default();
        self.coming = HashMap::default();
        // Each start is moved to its end while filling, then shifted back by one place: no second array.
        for (source, to, span) in arcs {
            let place = &mut out_start[source as usize];
            outs[*place as usize] = self.enter(*place, to, span);
            *place += 1;
        }
        shift_back(&mut out_start);
        let mut ins = spread(total, Back { source: 0, arc: 0 });
        for source in 0..nodes as u32 {
            for arc in out_start[source as usize]..out_start[source as usize + 1] {
                let place = &mut in_start[(outs[arc as usize].to & !LIMITED) as usize];
                ins[*place as usize] = Back { source, arc };
                *place += 1;
            }
        }
        shift_back(&mut in_start);
        (self.out_start, self.outs, self.in_start, self.ins) = (out_start, outs, in_start, ins);
        self.extras = Vec::new();
        self.first_out = HashMap::default();
        self.first_in = HashMap::default();
        for flags in &mut self.flags {
            *flags &= !(HAS_OUT | HAS_IN);
        }
        self.refill();
    }

    /// The arc with this index as it is stored; what does not fit in it is put aside.
    fn enter(&mut self, index: u32, to: u32, span: Span) -> Arc {
        let limited = (span.depth, span.amount) != (UNLIMITED, FULL);
        if limited {
            self.limits.insert(index, (span.depth, span.amount));
        }
        let mut until = span.until;
        if span.from > self.now {
            let (from, until) = (span.from, std::mem::replace(&mut until, NEVER));
            self.coming.insert(index, Coming { from, until });
        }
        let to = to | if limited { LIMITED } else { 0 };
        Arc { to, until }
    }

    /// When an arc counts; `from` is 0 if it has begun. None if it was taken out.
    fn span(&self, seen: &Seen) -> Option<Span> {
        let (depth, amount) = self.weight(seen);
        let Coming { from, until } = match self.coming.get(&seen.arc) {
            Some(&coming) => coming,
            None if seen.until == NEVER => return None,
            None => Coming {
                from: 0,
                until: seen.until,
            },
        };
        Some(Span {
            from,
            until,
            depth,
            amount,
        })
    }

    /// True when something may still rest on the span: membership does so while it is in grace.
    fn may_count(&self, span: Span) -> bool {
        self.now < span.until.saturating_add(self.grace)
    }

    /// Folds what came since the last compaction into the arrays, and forgets arcs that can never count again.
    fn compact(&mut self) {
        let mut kept = Vec::with_capacity(self.arcs());
        for source in 0..self.nodes() as u32 {
            self.each_out(source, |seen| {
                if let Some(span) = self.span(&seen)
                    && self.may_count(span)
                {
                    kept.push((source, seen.node, span));
                }
            });
        }
        self.build(kept.iter().copied());
    }

    /// The spans of (issuer, subject) that may still count, with their arcs.
    fn pair(&self, issuer: u32, subject: u32) -> Vec<(u32, Span)> {
        let mut spans = Vec::new();
        self.each_in(subject, |seen| {
            if seen.node == issuer
                && let Some(span) = self.span(&seen)
            {
                spans.push((seen.arc, span));
            }
        });
        spans
    }

    /// Makes `spans` the only ones of (issuer, subject). Returns false when nothing changed.
    pub(crate) fn set_pair(&mut self, issuer: u32, subject: u32, spans: &[Span]) -> bool {
        let old = self.pair(issuer, subject);
        // That an arc began is known, but no longer when.
        let begun = |span: Span| Span {
            from: if span.from <= self.now { 0 } else { span.from },
            ..span
        };
        let spans: Vec<Span> = spans
            .iter()
            .map(|&span| begun(span))
            .filter(|&span| self.may_count(span))
            .collect();
        let mut changed = false;
        for &(arc, span) in &old {
            if !spans.contains(&span) {
                self.take_out(arc);
                changed = true;
            }
        }
        for &span in &spans {
            if !old.iter().any(|&(_, known)| known == span) {
                self.insert(issuer, subject, span);
                changed = true;
            }
        }
        if self.extras.len() >= self.late_limit() {
            self.compact();
        }
        changed
    }

    /// Arcs that may come before the next compaction. More would cost searches and memory, fewer would cost events.
    fn late_limit(&self) -> usize {
        4096.max(self.outs.len() / 16)
    }

    fn take_out(&mut self, arc: u32) {
        self.coming.remove(&arc);
        self.arc_mut(arc).until = NEVER;
    }

    fn insert(&mut self, issuer: u32, subject: u32, span: Span) {
        let index = self.extras.len() as u32;
        let arc_index = self.outs.len() as u32 + index;
        let arc = self.enter(arc_index, subject, span);
        let next_out = self.first_out.insert(issuer, index).unwrap_or(NONE);
        let next_in = self.first_in.insert(subject, index).unwrap_or(NONE);
        self.flags[issuer as usize] |= HAS_OUT;
        self.flags[subject as usize] |= HAS_IN;
        if self.extras.capacity() == 0 {
            // Not the next power of two.
            self.extras.reserve_exact(self.late_limit() + 1);
        }
        self.extras.push(Extra {
            source: issuer,
            arc,
            next_out,
            next_in,
        });
        self.remind(arc_index);
    }

    /// Ends the live or coming spans of (issuer, subject) at `at`. Returns false when there was none.
    pub(crate) fn end_pair(&mut self, issuer: u32, subject: u32, at: u32) -> bool {
        let mut ended = false;
        for (arc, span) in self.pair(issuer, subject) {
            if at >= span.until {
                continue;
            }
            if at <= span.from {
                self.take_out(arc);
            } else if let Some(coming) = self.coming.get_mut(&arc) {
                coming.until = at;
            } else {
                self.arc_mut(arc).until = at;
            }
            self.remind(arc);
            ended = true;
        }
        ended
    }

    /// Notes when an arc begins and ends, if that is soon.
    fn remind(&mut self, arc: u32) {
        for time in self.boundaries(arc) {
            if time > self.now && time <= self.horizon {
                self.near.push(Reverse((time, arc)));
            }
        }
    }

    /// The times at which an arc begins, ends, and ends to support membership, or `u32::MAX`, which is never.
    fn boundaries(&self, arc: u32) -> [u32; 3] {
        let (from, until) = match self.arc(arc).until {
            NEVER => match self.coming.get(&arc) {
                Some(coming) => (coming.from, coming.until),
                None => return [u32::MAX; 3],
            },
            until => (u32::MAX, until),
        };
        let past = if self.grace == 0 {
            u32::MAX
        } else {
            until.saturating_add(self.grace)
        };
        [from, until, past]
    }

    fn arc(&self, arc: u32) -> Arc {
        let at = arc as usize;
        match self.outs.get(at) {
            Some(&stored) => stored,
            None => self.extras[at - self.outs.len()].arc,
        }
    }

    fn arc_mut(&mut self, arc: u32) -> &mut Arc {
        let at = arc as usize;
        if at < self.outs.len() {
            &mut self.outs[at]
        } else {
            &mut self.extras[at - self.outs.len()].arc
        }
    }

    fn source(&self, arc: u32) -> u32 {
        match (arc as usize).checked_sub(self.outs.len()) {
            Some(extra) => self.extras[extra].source,
            // The last start that is not past the arc belongs to its source.
            None => self.out_start.partition_point(|&start| start <= arc) as u32 - 1,
        }
    }

    /// Moves the reference time forward and reports the ends of every arc that began or ended meanwhile.
    pub(crate) fn advance(&mut self, to: u32, mut changed: impl FnMut(u32, u32)) {
        loop {
            let from_agenda = self.agenda.last().copied();
            let from_near = self.near.peek().map(|entry| entry.0);
            let due = match (from_agenda, from_near) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            match due {
                Some((time, arc)) if time <= to => {
                    if from_agenda == due {
                        self.agenda.pop();
                    }
                    if from_near == due {
                        self.near.pop();
                    }
                    if self.boundaries(arc).contains(&time) {
                        if let Some(&coming) = self.coming.get(&arc)
                            && coming.from == time
                        {
                            self.coming.remove(&arc);
                            self.arc_mut(arc).until = coming.until;
                        }
                        changed(self.source(arc), self.arc(arc).to & !LIMITED);
                    }
                    self.now = self.now.max(time);
                }
                _ if self.horizon < to => {
                    self.now = self.now.max(self.horizon);
                    self.refill();
                }
                _ => break,
            }
        }
        self.now = to;
    }

    /// Collects the next boundaries in time: of about one arc in 32, so that memory stays small.
    fn refill(&mut self) {
        const BUCKETS: u64 = 4096;
        let now = self.now;
        let (mut low, mut high, mut count) = (u32::MAX, 0u32, 0usize);
        self.each_boundary(|time, _| {
            low = low.min(time);
            high = high.max(time);
            count += 1;
        });
        self.near.clear();
        self.agenda = Vec::new();
        self.horizon = u32::MAX;
        let wanted = (self.arcs() / 32).max(1 << 14);
        if count > wanted {
            let width = (u64::from(high - low) / BUCKETS + 1) as u32;
            let mut histogram = vec![0usize; BUCKETS as usize + 1];
            self.each_boundary(|time, _| histogram[((time - low) / width) as usize] += 1);
            let mut sum = 0;
            let mut last = 0;
            for (bucket, &size) in histogram.iter().enumerate() {
                // At least one bucket, however full.
                if bucket > 0 && sum + size > wanted && sum > 0 {
                    break;
                }
                sum += size;
                last = bucket as u32;
            }
            self.horizon = low.saturating_add((last + 1).saturating_mul(width) - 1);
        }
        let horizon = self.horizon;
        let mut agenda = Vec::new();
        self.each_boundary(|time, arc| {
            if time <= horizon {
                agenda.push((time, arc));
            }
        });
        debug_assert!(agenda.iter().all(|&(time, _)| time > now));
        agenda.sort_unstable_by(|a, b| b.cmp(a));
        agenda.shrink_to_fit();
        self.agenda = agenda;
    }

    fn each_boundary(&self, mut visit: impl FnMut(u32, u32)) {
        for arc in 0..self.arcs() as u32 {
            for time in self.boundaries(arc) {
                if time > self.now && time != u32::MAX {
                    visit(time, arc);
                }
            }
        }
    }
}

#[inline]
fn seen(to: u32, arc: u32, a: Arc) -> Seen {
    Seen {
        node: to & !LIMITED,
        arc,
        until: a.until,
        limited: to & LIMITED != 0,
    }
}

/// Bytes of a hash table: seven of eight places are used, and each has a byte beside its entry.
fn table_bytes<V, S>(table: &HashMap<u32, V, S>) -> usize {
    table.capacity() / 7 * 8 * (size_of::<(u32, V)>() + 1)
}

fn shift_back(starts: &mut [u32]) {
    for at in (1..starts.len()).rev() {
        starts[at] = starts[at - 1];
    }
    if let Some(first) = starts.first_mut() {
        *first = 0;
    }
}
