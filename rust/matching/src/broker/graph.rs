//! The graph: hierarchical navigable small worlds (Malkov and Yashunin, arXiv 1603.09320), on byte codes.
//!
//! Departures from the paper, each for a reason:
//! * A candidate is looked at in two steps: its one-line sketch first, and its codes (six lines at 384 components)
//!   only if the sketch leaves a chance that it gets into the pool (the idea of RaBitQ, arXiv 2405.12497).
//! * The level of a slot follows from its number, so that a slot used again keeps its rows.
//! * Rows have a little more room than the degree: they are pruned when full, not at every new link.
//! * Links are changed in place under readers. Every word is atomic, so a reader sees a mixture of old and new
//!   links at worst, all of them to slots that were once linked here.
//! * A search that has seen all that is reachable and still has room looks at the rest too (`complete`): what the
//!   graph has lost, or a filter has cut off, is found all the same.
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::kernels::Query;
use super::memory::AtomicSlab;
use super::store::Store;
use crate::rng::mix;

/// Extra links of a row on the ground level.
const SLACK: usize = 2;
const MAX_LEVEL: usize = 12;
const LOCKS: usize = 1024;
/// Slots of the highest levels that every search looks at first, at most. Greedy descent from one entry ends in the
/// wrong region when regions lie far apart and churn has taken the early, far-reaching links between them.
const HUBS: usize = 64;
/// Candidates that are expanded together once the pool is full. All of a pool are expanded sooner or later, so this
/// costs little, and the waits for their neighbours overlap (DiskANN's beam).
const BEAM: usize = 3;
/// Walks that take turns.
pub(super) const TOGETHER: usize = 4;
/// Candidates for new links that a repair looks at, at least. Fewer leave no choice: after three turnovers of 20,000 vectors
/// recall was below a fresh graph's by up to 0.0125 with 16, 0.0057 with 48 and 0.0047 with 96.
const REPAIR_AMONG: usize = 96;
/// Widest row there can be, with room for the second hop of a filtered search.
pub(super) const MAX_M: usize = 64;
/// Candidates that a filtered expansion collects over two hops.
const TWO_HOP: usize = 64;

/// A candidate in a sorted pool: smaller is better. Key upside down on top, then the slot, then a mark.
#[inline(always)]
pub(super) fn pack(key: i32, slot: u32) -> u64 {
    u64::from(!(key as u32 ^ 0x8000_0000)) << 32 | u64::from(slot << 1)
}

#[inline(always)]
pub(super) fn key_of(entry: u64) -> i32 {
    (!((entry >> 32) as u32) ^ 0x8000_0000) as i32
}

#[inline(always)]
pub(super) fn slot_of(entry: u64) -> u32 {
    entry as u32 >> 1
}

/// Inserts into a sorted pool of at most `limit`; returns the position, or `usize::MAX` if it is too bad.
#[inline(always)]
pub(super) fn offer(pool: &mut Vec<u64>, limit: usize, entry: u64) -> usize {
    if pool.len() >= limit {
        if pool.last().is_none_or(|&worst| entry >= worst) {
            return usize::MAX;
        }
        pool.pop();
    }
    let at = pool.partition_point(|&other| other < entry);
    pool.insert(at, entry);
    at
}

#[inline(always)]
fn has(bits: &[u64], slot: u32) -> bool {
    bits.get(slot as usize / 64)
        .is_some_and(|word| word >> (slot % 64) & 1 != 0)
}

/// Memory of one walk; kept between walks.
#[derive(Debug, Default)]
pub(super) struct Walk {
    visited: Vec<u64>,
    /// Words of `visited` that are not zero; the first `noted` count.
    dirty: Vec<u32>,
    noted: usize,
    /// The best candidates so far, sorted.
    pub(super) pool: Vec<u64>,
    ids: Vec<u32>,
    keys: Vec<i32>,
    heap: BinaryHeap<Reverse<u64>>,
    /// Codes that were looked at since the last `start`.
    pub(super) scored: usize,
    /// Slots that were seen since the last `start`.
    seen: usize,
}

impl Walk {
    fn start(&mut self, slots: usize) {
        for &word in &self.dirty[..self.noted] {
            self.visited[word as usize] = 0;
        }
        self.noted = 0;
        let words = slots.div_ceil(64);
        if self.visited.len() < words {
            self.visited.resize(words, 0);
        }
        self.pool.clear();
        self.seen = 0;
        let room = 12 * MAX_M + TWO_HOP;
        self.ids.resize(room, 0);
        self.keys.resize(room, 0);
    }

    /// Marks a slot; false if it was marked, or is too new for this walk.
    #[inline(always)]
    fn visit(&mut self, slot: u32) -> bool {
        let at = slot as usize / 64;
        let Some(word) = self.visited.get_mut(at) else {
            return false;
        };
        let bit = 1 << (slot % 64);
        if *word & bit != 0 {
            return false;
        }
        if self.dirty.len() <= self.noted {
            self.dirty.resize(2 * self.noted + 64, 0);
        }
        self.dirty[self.noted] = at as u32;
        self.noted += 1;
        *word |= bit;
        self.seen += 1;
        true
    }

    /// Appends the links of a row that were not seen before to the first `found` of `ids`; returns how many there
    /// are then.
    #[inline(always)]
    fn collect(&mut self, row: &[AtomicU32], mut found: usize) -> usize {
        let row = links(row);
        let before = found;
        if self.dirty.len() < self.noted + row.len() {
            self.dirty.resize(2 * (self.noted + row.len()), 0);
        }
        let (dirty, ids) = (
            &mut self.dirty[self.noted..],
            &mut self.ids[found..found + row.len()],
        );
        let (mut noted, mut new) = (0, 0);
        // Whether a link was seen is a coin toss, so nothing here branches on it.
        for link in row {
            let slot = link.load(Ordering::Acquire);
            let at = slot as usize / 64;
            // Slots that are too new for this walk count as seen.
            let Some(word) = self.visited.get_mut(at) else {
                continue;
            };
            let fresh = (*word >> (slot % 64) & 1 ^ 1) as usize;
            *word |= 1 << (slot % 64);
            ids[new] = slot;
            new += fresh;
            dirty[noted] = at as u32;
            noted += fresh;
        }
        self.noted += noted;
        self.seen += new;
        found += new;
        debug_assert!(found >= before);
        found
    }
}

/// The links of a row.
#[inline(always)]
fn links(row: &[AtomicU32]) -> &[AtomicU32] {
    let (len, rest) = row.split_first().expect("a row has a length");
    let len = (len.load(Ordering::Acquire) as usize).min(rest.len());
    &rest[..len]
}

/// Where a walk stands between the parts of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// Candidates before this one are expanded.
    at: usize,
    /// Slots in `Walk::ids` that the step is about.
    count: usize,
    /// Whether the pool was full, so that a slot must beat its last.
    full: bool,
}

/// A query and its walk, one of several that take turns.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) query: Query,
    pub(super) walk: Walk,
}

/// Middle of a step: drops the slots that have no chance by their sketches, and asks for the codes of the others.
#[inline(always)]
fn sieve(store: &Store, query: &Query, ef: usize, walk: &mut Walk, step: &mut Step) {
    if step.full {
        let bar = key_of(walk.pool[ef - 1]);
        step.count = store.sieve(query, &mut walk.ids[..step.count], bar);
    }
}

/// Memory of an insertion; kept between insertions.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) walk: Walk,
    query: Query,
    near: Query,
    candidates: Vec<(i32, u32)>,
    chosen: Vec<u32>,
    row: Vec<u32>,
    keys: Vec<i32>,
}

/// How a filtered search treats slots that are not allowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Through {
    /// It walks through them like through any other.
    All,
    /// It looks over them to their neighbours, and scores allowed slots only.
    TwoHop,
}

#[derive(Debug)]
pub(super) struct Graph {
    m: usize,
    /// Links, after their number. Ground level.
    base: AtomicSlab<AtomicU32>,
    /// The same for upper levels, one row a level.
    upper: AtomicSlab<AtomicU32>,
    /// The row of level 1 of each slot that has one.
    upper_at: AtomicSlab<AtomicU32>,
    upper_rows: AtomicU32,
    /// 0, or (level + 1) << 32 | slot.
    entry: AtomicU64,
    /// The slots of the highest levels, the first `hub_count` of them.
    hubs: [AtomicU32; HUBS],
    hub_count: AtomicUsize,
    /// The lowest level in `hubs`; only slots above level 0 get there.
    hub_level: AtomicUsize,
    hub_lock: Mutex<()>,
    locks: Box<[Mutex<()>]>,
    seed: u64,
}

impl Graph {
    pub(super) fn new(m: usize, seed: u64) -> Self {
        Self {
            m,
            base: AtomicSlab::new(1 + 2 * m + SLACK),
            upper: AtomicSlab::new(1 + m),
            upper_at: AtomicSlab::new(1),
            upper_rows: AtomicU32::new(0),
            entry: AtomicU64::new(0),
            hubs: [const { AtomicU32::new(0) }; HUBS],
            hub_count: AtomicUsize::new(0),
            hub_level: AtomicUsize::new(1),
            hub_lock: Mutex::new(()),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            seed,
        }
    }

    fn level(&self, slot: u32) -> usize {
        let draw = mix(
            u64::from(slot) ^ self.seed ^ 0x2d35_8dcc_aa6c_78a5,
            0x8bb8_4b93_962e_acc9,
        );
        let unit = ((draw >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        ((-unit.ln() / (self.m as f64).ln()) as usize).min(MAX_LEVEL)
    }

    /// Makes room for slots `[old, new)`, which were never used before.
    pub(super) fn ensure(&self, old: usize, new: usize) {
        self.base.ensure(new);
        self.upper_at.ensure(new);
        let mut rows = self.upper_rows.load(Ordering::Relaxed);
        for slot in old..new {
            self.upper_at.cell(slot)[0].store(rows, Ordering::Release);
            rows += self.level(slot as u32) as u32;
        }
        self.upper.ensure(rows as usize);
        self.upper_rows.store(rows, Ordering::Relaxed);
    }

    #[inline(always)]
    fn row(&self, level: usize, slot: u32) -> &[AtomicU32] {
        if level == 0 {
            return self.base.cell(slot as usize);
        }
        let at = self.upper_at.cell(slot as usize)[0].load(Ordering::Acquire) as usize;
        self.upper.cell(at + level - 1)
    }

    fn lock(&self, slot: u32) -> MutexGuard<'_, ()> {
        self.locks[slot as usize % LOCKS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self) -> Option<(u32, usize)> {
        match self.entry.load(Ordering::Acquire) {
            0 => None,
            packed => Some((packed as u32, (packed >> 32) as usize - 1)),
        }
    }

    /// Bytes of the rows of all slots ever used.
    pub(super) fn bytes(&self, slots: usize) -> usize {
        self.base.bytes_for(slots)
            + self
                .upper
                .bytes_for(self.upper_rows.load(Ordering::Relaxed) as usize)
            + self.upper_at.bytes_for(slots)
    }

    // -- searching

    /// Walks down greedily to just above `floor`; returns the best slot found.
    fn descend(&self, store: &Store, query: &Query, floor: usize, walk: &mut Walk) -> Option<(u32, i32)> {
        let (mut slot, mut top) = self.entry()?;
        let mut key = [0];
        store.score(query, &[slot], &mut key);
        let mut key = key[0];
        if let Some((hub, found)) = self
            .nearest_hub(store, query, floor + 1, walk)
            .filter(|&(_, found)| found > key)
        {
            (slot, key, top) = (hub, found, self.level(hub));
        }
        for level in (floor + 1..=top).rev() {
            loop {
                let mut count = 0;
                for link in links(self.row(level, slot)) {
                    let next = link.load(Ordering::Acquire);
                    store.prefetch_sketch(next);
                    walk.ids[count] = next;
                    count += 1;
                }
                count = store.sieve(query, &mut walk.ids[..count], key);
                store.score(query, &walk.ids[..count], &mut walk.keys[..count]);
                walk.scored += count;
                let before = slot;
                for (&id, &found) in walk.ids[..count].iter().zip(&walk.keys[..count]) {
                    if found > key {
                        (slot, key) = (id, found);
                    }
                }
                if slot == before {
                    break;
                }
            }
        }
        Some((slot, key))
    }

    /// The nearest of the hubs that are on `level`.
    fn nearest_hub(&self, store: &Store, query: &Query, level: usize, walk: &mut Walk) -> Option<(u32, i32)> {
        let count = self.hub_count.load(Ordering::Acquire).min(HUBS);
        let checked = self.hub_level.load(Ordering::Relaxed) < level;
        let mut kept = 0;
        for hub in &self.hubs[..count] {
            let slot = hub.load(Ordering::Acquire);
            if !checked || self.level(slot) >= level {
                walk.ids[kept] = slot;
                kept += 1;
            }
        }
        store.score(query, &walk.ids[..kept], &mut walk.keys[..kept]);
        walk.scored += kept;
        let pairs = walk.ids[..kept]
            .iter()
            .copied()
            .zip(walk.keys[..kept].iter().copied());
        pairs.max_by_key(|&(slot, key)| (key, slot))
    }

    /// Takes a linked slot among the hubs if its level is high enough.
    fn offer_hub(&self, slot: u32, level: usize) {
        if level < self.hub_level.load(Ordering::Relaxed) {
            return;
        }
        let _guard = self.hub_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut least = self.hub_level.load(Ordering::Relaxed);
        if level < least {
            return;
        }
        let count = self.hub_count.load(Ordering::Relaxed);
        if count < HUBS {
            self.hubs[count].store(slot, Ordering::Release);
            self.hub_count.store(count + 1, Ordering::Release);
            return;
        }
        // Full: the lowest level goes, and this one stays if it is above that.
        let mut kept: Vec<u32> = self
            .hubs
            .iter()
            .map(|hub| hub.load(Ordering::Relaxed))
            .chain([slot])
            .collect();
        while kept.len() > HUBS {
            least += 1;
            kept.retain(|&hub| self.level(hub) >= least);
        }
        self.set_hubs(&kept, least);
    }

    fn set_hubs(&self, hubs: &[u32], level: usize) {
        // A reader in between sees some hub twice or misses one.
        self.hub_count.store(
            hubs.len().min(self.hub_count.load(Ordering::Relaxed)),
            Ordering::Release,
        );
        for (place, &hub) in self.hubs.iter().zip(hubs) {
            place.store(hub, Ordering::Release);
        }
        self.hub_level.store(level, Ordering::Relaxed);
        self.hub_count.store(hubs.len(), Ordering::Release);
    }

    /// Finds the hubs anew among the live slots.
    fn find_hubs(&self, store: &Store, slots: usize) {
        let mut found: Vec<(usize, u32)> = (0..slots as u32)
            .filter(|&slot| store.present(slot) && !store.dead(slot))
            .map(|slot| (self.level(slot), slot))
            .filter(|&(level, _)| level > 0)
            .collect();
        let mut least = 1;
        while found.len() > HUBS {
            least += 1;
            found.retain(|&(level, _)| level >= least);
        }
        let hubs: Vec<u32> = found.into_iter().map(|(_, slot)| slot).collect();
        self.set_hubs(&hubs, least);
    }

    /// Best-first search on one level from what is in the pool.
    fn beam(&self, store: &Store, query: &Query, ef: usize, level: usize, walk: &mut Walk) {
        let mut step = Step::default();
        while self.expand(store, ef, level, walk, &mut step) {
            sieve(store, query, ef, walk, &mut step);
            self.settle(store, query, ef, level, walk, &mut step);
        }
    }

    /// First third of a step: collects the neighbours of the nearest candidates and asks for their sketches. False
    /// if there is none left to expand.
    #[inline(always)]
    fn expand(&self, store: &Store, ef: usize, level: usize, walk: &mut Walk, step: &mut Step) -> bool {
        let full = walk.pool.len() >= ef;
        let (mut at, mut count, mut taken) = (step.at, 0, 0);
        while at < walk.pool.len() && taken < if full { BEAM } else { 1 } {
            if walk.pool[at] & 1 == 0 {
                walk.pool[at] |= 1;
                taken += 1;
                let row = self.row(level, slot_of(walk.pool[at]));
                count = walk.collect(row, count);
            }
            at += 1;
        }
        if taken == 0 {
            return false;
        }
        if level == 0 {
            // What comes next unless something nearer turns up.
            let next = walk.pool[at..].iter().filter(|&&entry| entry & 1 == 0);
            next.take(BEAM)
                .for_each(|&entry| self.base.prefetch(slot_of(entry) as usize));
        }
        if full {
            walk.ids[..count].iter().for_each(|&id| store.prefetch_sketch(id));
        }
        *step = Step { at, count, full };
        true
    }

    /// Last third of a step: scores what is left and offers it to the pool.
    #[inline(always)]
    fn settle(
        &self,
        store: &Store,
        query: &Query,
        ef: usize,
        level: usize,
        walk: &mut Walk,
        step: &mut Step,
    ) {
        let count = step.count;
        store.score(query, &walk.ids[..count], &mut walk.keys[..count]);
        walk.scored += count;
        for k in 0..count {
            let position = offer(&mut walk.pool, ef, pack(walk.keys[k], walk.ids[k]));
            if position < step.at + BEAM && level == 0 {
                self.base.prefetch(walk.ids[k] as usize);
            }
            step.at = step.at.min(position);
        }
    }

    /// Starts a walk on the ground level; false if the graph is empty.
    fn land(&self, store: &Store, query: &Query, walk: &mut Walk) -> bool {
        walk.start(store.slots());
        let Some((slot, key)) = self.descend(store, query, 0, walk) else {
            return false;
        };
        if walk.visit(slot) {
            walk.pool.push(pack(key, slot));
        }
        true
    }

    /// Fills `walk.pool` with the up to `ef` slots nearest to the query.
    pub(super) fn search(&self, store: &Store, query: &Query, ef: usize, walk: &mut Walk) {
        if !self.land(store, query, walk) {
            return;
        }
        self.beam(store, query, ef, 0, walk);
        if walk.pool.len() < ef {
            complete(store, query, ef, None, walk);
        }
    }

    /// The same for up to [`TOGETHER`] queries, whose walks take turns: while one waits for memory, the others go on.
    pub(super) fn search_together(&self, store: &Store, ef: usize, lanes: &mut [Lane]) {
        debug_assert!(lanes.len() <= TOGETHER);
        let mut steps = [Step::default(); TOGETHER];
        let mut going = [0; TOGETHER];
        let mut count = 0;
        for (at, Lane { query, walk }) in lanes.iter_mut().enumerate() {
            if self.land(store, query, walk) {
                going[count] = at;
                count += 1;
            }
        }
        while count > 0 {
            let mut left = 0;
            for turn in 0..count {
                let at = going[turn];
                if self.expand(store, ef, 0, &mut lanes[at].walk, &mut steps[at]) {
                    going[left] = at;
                    left += 1;
                }
            }
            count = left;
            for &at in &going[..count] {
                let Lane { query, walk } = &mut lanes[at];
                sieve(store, query, ef, walk, &mut steps[at]);
            }
            for &at in &going[..count] {
                let Lane { query, walk } = &mut lanes[at];
                self.settle(store, query, ef, 0, walk, &mut steps[at]);
            }
        }
        for Lane { query, walk } in lanes {
            if walk.pool.len() < ef {
                complete(store, query, ef, None, walk);
            }
        }
    }

    /// Fills `walk.pool` with the up to `ef` allowed slots nearest to the query.
    pub(super) fn search_among(
        &self,
        store: &Store,
        query: &Query,
        ef: usize,
        allowed: &[u64],
        through: Through,
        walk: &mut Walk,
    ) {
        walk.start(store.slots());
        let Some((slot, key)) = self.descend(store, query, 0, walk) else {
            return;
        };
        if walk.visit(slot) {
            if has(allowed, slot) {
                walk.pool.push(pack(key, slot));
            }
            match through {
                Through::All => self.through_all(store, query, ef, allowed, pack(key, slot), walk),
                Through::TwoHop => self.two_hop(store, query, ef, allowed, slot, walk),
            }
        }
        if walk.pool.len() < ef {
            complete(store, query, ef, Some(allowed), walk);
        }
    }

    fn through_all(
        &self,
        store: &Store,
        query: &Query,
        ef: usize,
        allowed: &[u64],
        first: u64,
        walk: &mut Walk,
    ) {
        walk.heap.clear();
        walk.heap.push(Reverse(first));
        while let Some(Reverse(entry)) = walk.heap.pop() {
            let full = walk.pool.len() >= ef;
            if full && entry > walk.pool[ef - 1] {
                break;
            }
            let mut count = walk.collect(self.row(0, slot_of(entry)), 0);
            if full {
                walk.ids[..count].iter().for_each(|&id| store.prefetch_sketch(id));
                let bar = key_of(walk.pool[ef - 1]);
                count = store.sieve(query, &mut walk.ids[..count], bar);
            }
            store.score(query, &walk.ids[..count], &mut walk.keys[..count]);
            walk.scored += count;
            for k in 0..count {
                let entry = pack(walk.keys[k], walk.ids[k]);
                if walk.pool.len() < ef || entry < walk.pool[ef - 1] {
                    walk.heap.push(Reverse(entry));
                    if has(allowed, walk.ids[k]) {
                        offer(&mut walk.pool, ef, entry);
                    }
                }
            }
            if let Some(Reverse(next)) = walk.heap.peek() {
                self.base.prefetch(slot_of(*next) as usize);
            }
        }
    }

    /// ACORN-1 (arXiv 2403.04871): the graph of the allowed slots, where a slot that is not allowed stands for its
    /// neighbours.
    fn two_hop(&self, store: &Store, query: &Query, ef: usize, allowed: &[u64], first: u32, walk: &mut Walk) {
        let mut at = 0;
        let mut seed = walk.pool.is_empty().then_some(first);
        loop {
            let slot = if let Some(slot) = seed.take() {
                slot
            } else if at >= walk.pool.len() {
                return;
            } else if walk.pool[at] & 1 != 0 {
                at += 1;
                continue;
            } else {
                walk.pool[at] |= 1;
                slot_of(walk.pool[at])
            };
            let mut count = 0;
            let row = links(self.row(0, slot));
            for link in row {
                let next = link.load(Ordering::Acquire);
                self.base.prefetch(next as usize);
                if has(allowed, next) && walk.visit(next) {
                    walk.ids[count] = next;
                    count += 1;
                }
            }
            for link in row {
                if count >= TWO_HOP {
                    break;
                }
                let over = link.load(Ordering::Acquire);
                if has(allowed, over) {
                    continue;
                }
                for link in links(self.row(0, over)) {
                    let next = link.load(Ordering::Acquire);
                    if has(allowed, next) && walk.visit(next) {
                        walk.ids[count] = next;
                        count += 1;
                    }
                }
            }
            if walk.pool.len() >= ef {
                count = store.sieve(query, &mut walk.ids[..count], key_of(walk.pool[ef - 1]));
            }
            store.score(query, &walk.ids[..count], &mut walk.keys[..count]);
            walk.scored += count;
            let mut next = at;
            for k in 0..count {
                next = next.min(offer(&mut walk.pool, ef, pack(walk.keys[k], walk.ids[k])));
            }
            at = next;
        }
    }

    // -- writing

    /// Links a written slot into the graph. Several threads may do so for different slots.
    pub(super) fn insert(&self, store: &Store, slots: usize, slot: u32, ef: usize, work: &mut Work) {
        store.recall(slot, &mut work.query);
        let level = self.level(slot);
        work.walk.start(slots);
        let query = std::mem::take(&mut work.query);
        if let Some((mut from, mut key)) = self.descend(store, &query, level, &mut work.walk) {
            let top = self.entry().map_or(0, |(_, top)| top);
            for level in (0..=level.min(top)).rev() {
                work.walk.start(slots);
                work.walk.visit(slot);
                if work.walk.visit(from) {
                    work.walk.pool.push(pack(key, from));
                }
                if let Some((hub, key)) = self.nearest_hub(store, &query, level, &mut work.walk)
                    && work.walk.visit(hub)
                {
                    offer(&mut work.walk.pool, ef, pack(key, hub));
                }
                self.beam(store, &query, ef, level, &mut work.walk);
                let Some(&best) = work.walk.pool.first() else {
                    continue;
                };
                (from, key) = (slot_of(best), key_of(best));
                work.candidates.clear();
                let alive = work
                    .walk
                    .pool
                    .iter()
                    .map(|&entry| (key_of(entry), slot_of(entry)));
                work.candidates
                    .extend(alive.filter(|&(_, id)| id != slot && !store.dead(id)));
                self.select(store, slot, self.m, work);
                let chosen = std::mem::take(&mut work.chosen);
                for &other in &chosen {
                    self.link(store, level, slot, other, work);
                }
                for &other in &chosen {
                    self.link(store, level, other, slot, work);
                }
                work.chosen = chosen;
            }
        }
        work.query = query;
        self.entry
            .fetch_max((level as u64 + 1) << 32 | u64::from(slot), Ordering::AcqRel);
        self.offer_hub(slot, level);
    }

    /// Adds a link; a full row is pruned.
    fn link(&self, store: &Store, level: usize, from: u32, to: u32, work: &mut Work) {
        let row = self.row(level, from);
        let guard = self.lock(from);
        let old = links(row);
        if old.iter().any(|link| link.load(Ordering::Relaxed) == to) {
            return;
        }
        let len = old.len();
        if len + 1 < row.len() {
            row[len + 1].store(to, Ordering::Release);
            row[0].store(len as u32 + 1, Ordering::Release);
            return;
        }
        work.row.clear();
        work.row.extend(
            old.iter()
                .map(|link| link.load(Ordering::Relaxed))
                .filter(|&id| !store.dead(id)),
        );
        work.row.push(to);
        self.rank(store, from, work);
        let degree = if level == 0 { 2 * self.m } else { self.m };
        let chosen = std::mem::take(&mut work.chosen);
        self.select(store, from, degree, work);
        rewrite(row, &work.chosen);
        work.chosen = chosen;
        drop(guard);
    }

    /// Sorts `work.row` by nearness to `base` into `work.candidates`.
    fn rank(&self, store: &Store, base: u32, work: &mut Work) {
        store.recall(base, &mut work.near);
        work.keys.resize(work.row.len(), 0);
        store.score(&work.near, &work.row, &mut work.keys);
        work.candidates.clear();
        work.candidates
            .extend(work.keys.iter().copied().zip(work.row.iter().copied()));
        work.candidates
            .sort_unstable_by_key(|&(key, id)| (Reverse(key), id));
    }

    /// The paper's heuristic: the nearest candidates, without those that are nearer to a chosen one than to `base`.
    fn select(&self, store: &Store, base: u32, degree: usize, work: &mut Work) {
        work.chosen.clear();
        self.add_diverse(store, base, degree, work);
    }

    /// The same, with what is chosen already.
    fn add_diverse(&self, store: &Store, base: u32, degree: usize, work: &mut Work) {
        for at in 0..work.candidates.len() {
            if work.chosen.len() >= degree {
                break;
            }
            let (key, id) = work.candidates[at];
            if let Some(&(_, next)) = work.candidates.get(at + 2) {
                store.prefetch(next);
            }
            if self.diverse(store, base, key, id, &work.chosen, &mut work.near) {
                work.chosen.push(id);
            }
        }
    }

    fn diverse(&self, store: &Store, base: u32, key: i32, id: u32, chosen: &[u32], near: &mut Query) -> bool {
        if chosen.is_empty() {
            return true;
        }
        store.recall(id, near);
        let limit = store.mirrored(key, id, base);
        let mut keys = [0; 4];
        chosen.chunks(4).all(|group| {
            let keys = &mut keys[..group.len()];
            store.score(near, group, keys);
            keys.iter().all(|&key| key <= limit)
        })
    }

    /// Takes dead slots out of the graph: rows that link to them get the neighbours of the dead as candidates, and
    /// are filled up to their old degree (FreshDiskANN, arXiv 2105.09613, with the refill that keeps recall from
    /// rotting). Readers go on meanwhile. Afterwards no row of a live slot has a link to a dead one.
    pub(super) fn consolidate(&self, store: &Store, slots: usize, work: &mut Work) {
        for slot in 0..slots as u32 {
            if !store.present(slot) || store.dead(slot) {
                continue;
            }
            self.repair(store, 0, slot, work);
            for level in 1..=self.level(slot) {
                self.repair(store, level, slot, work);
            }
        }
        self.reinforce(store, slots, work);
        self.find_hubs(store, slots);
        if self.entry().is_some_and(|(slot, _)| store.dead(slot)) {
            let best = (0..slots as u32)
                .filter(|&slot| store.present(slot) && !store.dead(slot))
                .map(|slot| (self.level(slot) as u64 + 1) << 32 | u64::from(slot))
                .max();
            self.entry.store(best.unwrap_or(0), Ordering::Release);
        }
    }

    /// Gives slots that few others link to more links from their own neighbours. Pruning and deletion leave such
    /// slots behind, and what nothing links to is never found (hnswlib's "unreachable points").
    pub(super) fn reinforce(&self, store: &Store, slots: usize, work: &mut Work) {
        let least = (self.m / 3).max(2) as u16;
        let live = |slot: u32| store.present(slot) && !store.dead(slot);
        let mut incoming = vec![0u16; slots];
        for slot in (0..slots as u32).filter(|&slot| live(slot)) {
            for link in links(self.row(0, slot)) {
                let count = &mut incoming[link.load(Ordering::Relaxed) as usize];
                *count = count.saturating_add(1);
            }
        }
        for slot in (0..slots as u32).filter(|&slot| live(slot)) {
            if incoming[slot as usize] >= least {
                continue;
            }
            work.row.clear();
            work.row.extend(
                links(self.row(0, slot))
                    .iter()
                    .map(|link| link.load(Ordering::Relaxed)),
            );
            self.rank(store, slot, work);
            for at in 0..work.candidates.len() {
                if incoming[slot as usize] >= least {
                    break;
                }
                let row = self.row(0, work.candidates[at].1);
                let old = links(row);
                if old.iter().any(|link| link.load(Ordering::Relaxed) == slot) {
                    continue;
                }
                if old.len() + 1 < row.len() {
                    row[old.len() + 1].store(slot, Ordering::Release);
                    row[0].store(old.len() as u32 + 1, Ordering::Release);
                } else {
                    // The link whose end can spare it best.
                    let spare = old
                        .iter()
                        .max_by_key(|link| incoming[link.load(Ordering::Relaxed) as usize]);
                    let Some(spare) = spare else { continue };
                    let end = &mut incoming[spare.load(Ordering::Relaxed) as usize];
                    if *end <= 2 * least {
                        continue;
                    }
                    *end -= 1;
                    spare.store(slot, Ordering::Release);
                }
                incoming[slot as usize] += 1;
            }
        }
    }

    fn repair(&self, store: &Store, level: usize, slot: u32, work: &mut Work) {
        let row = self.row(level, slot);
        let old = links(row);
        if !old.iter().any(|link| store.dead(link.load(Ordering::Relaxed))) {
            return;
        }
        // What is left of the row stays: choosing anew among all costs twice as much and finds less afterwards. One
        // more comes for each lost, up to the full degree: rows that shrink a little at every repair end up thin.
        work.chosen.clear();
        work.row.clear();
        for link in old {
            let id = link.load(Ordering::Relaxed);
            if !store.dead(id) {
                work.chosen.push(id);
                continue;
            }
            for link in links(self.row(level, id)) {
                let next = link.load(Ordering::Relaxed);
                if next != slot && !store.dead(next) {
                    work.row.push(next);
                }
            }
        }
        let kept = work.chosen.len();
        let most = if level == 0 { 2 * self.m } else { self.m };
        let degree = (2 * old.len() - kept).min(most).max(kept);
        work.row.sort_unstable();
        work.row.dedup();
        let chosen = &work.chosen;
        work.row.retain(|id| !chosen.contains(id));
        self.rank(store, slot, work);
        // What is farther hardly ever stays, and each costs a look at all that is chosen.
        work.candidates.truncate((2 * (degree - kept)).max(REPAIR_AMONG));
        self.add_diverse(store, slot, degree, work);
        for at in 0..work.candidates.len() {
            if work.chosen.len() >= degree {
                break;
            }
            let id = work.candidates[at].1;
            if !work.chosen[kept..].contains(&id) {
                work.chosen.push(id);
            }
        }
        rewrite(row, &work.chosen);
    }

    // -- the file

    pub(super) fn packed_entry(&self) -> u64 {
        self.entry.load(Ordering::Acquire)
    }

    pub(super) fn set_packed_entry(
        &self,
        store: &Store,
        entry: u64,
        present: impl Fn(u32) -> bool,
    ) -> Result<(), String> {
        let slot = entry as u32;
        if entry != 0 && (!present(slot) || (entry >> 32) as usize != self.level(slot) + 1) {
            return Err("the entry of the graph is no vector".into());
        }
        self.entry.store(entry, Ordering::Release);
        self.find_hubs(store, store.slots());
        Ok(())
    }

    /// Appends the rows of a slot, each after its length.
    pub(super) fn write_rows(&self, slot: u32, out: &mut Vec<u8>) {
        for level in 0..=self.level(slot) {
            let row = links(self.row(level, slot));
            out.extend((row.len() as u32).to_le_bytes());
            row.iter()
                .for_each(|link| out.extend(link.load(Ordering::Relaxed).to_le_bytes()));
        }
    }

    /// Reads what [`write_rows`](Self::write_rows) wrote, number by number; links must lead to slots that are
    /// `present` and have the level.
    pub(super) fn read_rows(
        &self,
        slot: u32,
        mut next: impl FnMut() -> Result<u32, String>,
        present: impl Fn(u32) -> bool,
    ) -> Result<(), String> {
        for level in 0..=self.level(slot) {
            let row = self.row(level, slot);
            let len = next()?;
            if len as usize >= row.len() {
                return Err(format!("a row has {len} links"));
            }
            for link in &row[1..=len as usize] {
                let to = next()?;
                if to == slot || !present(to) || self.level(to) < level {
                    return Err(format!("a link leads to {to}, which is no vector of its level"));
                }
                link.store(to, Ordering::Relaxed);
            }
            row[0].store(len, Ordering::Release);
        }
        Ok(())
    }

    /// Empties the rows of a slot that no row links to any more.
    pub(super) fn clear(&self, slot: u32) {
        for level in 0..=self.level(slot) {
            self.row(level, slot)[0].store(0, Ordering::Release);
        }
    }
}

/// Replaces the links of a row under its readers.
fn rewrite(row: &[AtomicU32], new: &[u32]) {
    for (link, &id) in row[1..].iter().zip(new) {
        link.store(id, Ordering::Release);
    }
    row[0].store(new.len() as u32, Ordering::Release);
}

/// Looks at every present slot that a walk has not seen: the walk could reach no more of them.
fn complete(store: &Store, query: &Query, ef: usize, allowed: Option<&[u64]>, walk: &mut Walk) {
    let groups = store.slots().div_ceil(64);
    for group in 0..groups {
        let word = match allowed {
            Some(allowed) => allowed.get(group).copied().unwrap_or(0),
            None => store.present_word(group),
        };
        let mut rest = word & !walk.visited.get(group).copied().unwrap_or(u64::MAX);
        let mut count = 0;
        while rest != 0 {
            walk.ids[count] = group as u32 * 64 + rest.trailing_zeros();
            rest &= rest - 1;
            count += 1;
        }
        if count > 0 {
            store.score(query, &walk.ids[..count], &mut walk.keys[..count]);
            walk.scored += count;
            for k in 0..count {
                offer(&mut walk.pool, ef, pack(walk.keys[k], walk.ids[k]));
            }
        }
    }
}
