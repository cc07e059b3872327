//! The index: one writer, readers without locks, and the way of a query through planner and executor.
//!
//! # Publication
//! Every write makes a version. A slot carries the versions at which it appears and disappears; the writer stamps
//! the slots of a write with the next version, and then publishes that version with one store. A reader takes the
//! published version once and sees exactly the slots that were live in it, so a replaced vector is found under its
//! old or its new form, never under both or neither.
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use super::epoch::{Epochs, Grace, Guard};
use super::error::BrokerError;
use super::graph::{Graph, Lane, MAX_M, TOGETHER, Through, Walk, Work, key_of, slot_of};
use super::ids::Ids;
use super::kernels::{self, LANE, Query};
use super::memory::ByteSlab;
use super::planner::{Costs, Executor, Situation};
use super::scan::{Batch, scan, scan_batch, scan_listed};
use super::store::{Metric, Rerank, Store, check_rows};

/// Largest dimension of a vector: products of byte codes must fit 32 bits.
pub const MAX_DIM: usize = 65_536;
/// Most flags an index can have.
pub const MAX_FLAGS: usize = 32;
/// Before a graph has this many slots, it grows on one thread: links need something to point at.
const SOLO: usize = 1_000;
/// Candidates of a scan that are ordered exactly, at least, and those of a walk. Codes of eight bits misplace a neighbour
/// by few ranks: at 10^5 vectors a walk has the same recall with 16 as with 32, to four digits. A scan promises
/// exactness and pays little for more.
const RERANKED_SCAN: usize = 32;
const RERANKED_WALK: usize = 16;
/// A subset has a list of its own if it holds at most one slot in so many.
const LISTED_SHARE: usize = 4;

/// Settings of an index, fixed at its creation.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Components of a vector: 1 to [`MAX_DIM`].
    pub dim: usize,
    /// How vectors are compared.
    pub metric: Metric,
    /// What the best candidates are ordered by.
    pub rerank: Rerank,
    /// Links of a slot on upper levels, half of those on the ground: 4 to 64. 16 suits most text embeddings.
    pub m: usize,
    /// Candidates an insertion looks at: at least `m`. More is a better graph and a slower build.
    pub ef_construction: usize,
    /// Names of the flags that filters go by; at most [`MAX_FLAGS`].
    pub flags: Vec<String>,
    /// Names the embedding model; empty if unknown.
    pub model: String,
    /// Seed of the levels.
    pub seed: u64,
    /// Share of dead slots at which a write takes them out of the graph: 0 to 1; 1 for never by itself.
    pub consolidate_at: f32,
}

impl Config {
    /// The defaults for vectors of that many components.
    #[must_use]
    pub fn new(dim: usize) -> Self {
        Self {
            dim,
            metric: Metric::Cosine,
            rerank: Rerank::Int16,
            m: 16,
            ef_construction: 200,
            flags: Vec::new(),
            model: String::new(),
            seed: 0,
            consolidate_at: 0.1,
        }
    }

    pub(super) fn check(&self) -> Result<(), BrokerError> {
        let refuse = |text: String| Err(BrokerError::OutOfRange(text));
        if !(1..=MAX_DIM).contains(&self.dim) {
            return refuse(format!("the dimension is {}; it can be 1 to {MAX_DIM}", self.dim));
        }
        if !(4..=MAX_M).contains(&self.m) {
            return refuse(format!("m is {}; it can be 4 to {MAX_M}", self.m));
        }
        if !(self.m..=4096).contains(&self.ef_construction) {
            return refuse(format!(
                "ef_construction is {}; it can be m to 4096",
                self.ef_construction
            ));
        }
        if self.flags.len() > MAX_FLAGS {
            return refuse(format!(
                "there are {} flags; at most {MAX_FLAGS} can be",
                self.flags.len()
            ));
        }
        if !(0.0..=1.0).contains(&self.consolidate_at) {
            return refuse(format!(
                "consolidate_at is {}; it can be 0 to 1",
                self.consolidate_at
            ));
        }
        Ok(())
    }
}

/// What to do about ids that are in the index already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Refuse them.
    Add,
    /// Refuse all others.
    Update,
    /// Replace their vectors.
    Put,
}

/// What a query asks for besides nearness.
#[derive(Clone, Debug)]
pub struct Params<'a> {
    /// Results wanted; at least 1. Fewer come back if fewer are allowed.
    pub k: usize,
    /// Candidates the graph search keeps: more is slower and finds more. At least `k` are kept.
    pub ef: usize,
    /// Wanted share of the true nearest; 1 makes the search exact, less only guides the planner.
    pub recall: f32,
    /// Results below this similarity are left out.
    pub threshold: Option<f32>,
    /// Flags a result must have, one bit each.
    pub require: u32,
    /// Flags a result must not have.
    pub forbid: u32,
    /// Results must be in this set.
    pub subset: Option<&'a Subset>,
    /// Ids that must not be among the results; unknown ones are ignored.
    pub exclude: &'a [u64],
    /// Overrides the planner.
    pub executor: Option<Executor>,
    /// Candidates that are ordered by their rerank vectors; 0 for max(32, 2k) of a scan and
    /// max(16, 1.5k) of a walk through the graph.
    pub rerank: usize,
    /// Whether the walks of a batch through all of the graph take turns, four at a time. Changes no result.
    pub interleave: bool,
}

impl Default for Params<'_> {
    fn default() -> Self {
        Self {
            k: 10,
            ef: 64,
            recall: 0.95,
            threshold: None,
            require: 0,
            forbid: 0,
            subset: None,
            exclude: &[],
            executor: None,
            rerank: 0,
            interleave: true,
        }
    }
}

/// The answer to one query, best first; equal scores in the order of their ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Ids of the results.
    pub ids: Vec<u64>,
    /// Similarities of the results.
    pub scores: Vec<f32>,
    /// The state of the index that the answer is true of.
    pub version: u64,
    /// Who answered.
    pub executor: Executor,
    /// Codes that were looked at.
    pub scored: usize,
}

/// A prepared set of ids for filters. Unknown ids in it are ignored until they are added.
#[derive(Debug)]
pub struct Subset {
    ids: Vec<u64>,
    /// The same as slots, of the last index and version that asked.
    slots: RwLock<Option<Arc<Slots>>>,
}

#[derive(Debug)]
struct Slots {
    /// `SemanticIndex::number`.
    index: u64,
    version: u64,
    words: Vec<u64>,
    used: AtomicBool,
    listed: OnceLock<Listed>,
}

/// The slots of a subset, with a copy of their sketches one after the other: a scan reads them without a gap.
#[derive(Debug)]
struct Listed {
    slots: Vec<u32>,
    sketches: ByteSlab,
}

impl Slots {
    /// The list, from the second time on that it is asked for; nothing if it would be long.
    fn listed(&self, store: &Store) -> Option<&Listed> {
        if !self.used.swap(true, Ordering::Relaxed) {
            return None;
        }
        let count: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        if count as usize > store.slots() / LISTED_SHARE {
            return None;
        }
        Some(self.listed.get_or_init(|| {
            let slots: Vec<u32> = each_bit(&self.words).collect();
            let sketches = store.sketches_of(&slots);
            Listed { slots, sketches }
        }))
    }
}

/// The places of the bits that are set.
fn each_bit(words: &[u64]) -> impl Iterator<Item = u32> {
    (0..).step_by(64).zip(words).flat_map(|(first, &word)| {
        std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)))
            .take_while(|&rest| rest != 0)
            .map(move |rest| first + rest.trailing_zeros())
    })
}

impl Subset {
    /// The set of these ids; repetitions do not matter.
    #[must_use]
    pub fn new(mut ids: Vec<u64>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        Self {
            ids,
            slots: RwLock::new(None),
        }
    }

    /// The number of different ids.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    fn slots(&self, index: &SemanticIndex) -> Arc<Slots> {
        let current = index.version();
        let cached = self.slots.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(slots) = cached.filter(|slots| (slots.index, slots.version) == (index.number, current)) {
            return slots;
        }
        // Versions are published under this lock, so that ids and version belong together.
        let ids = index.ids();
        let version = index.version();
        let mut words = vec![0u64; index.store.slots().div_ceil(64)];
        for &id in &self.ids {
            if let Some(slot) = ids.find(id, |slot| index.store.label(slot)) {
                words[slot as usize / 64] |= 1 << (slot % 64);
            }
        }
        drop(ids);
        let slots = Arc::new(Slots {
            index: index.number,
            version,
            words,
            used: AtomicBool::new(false),
            listed: OnceLock::new(),
        });
        *self.slots.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&slots));
        slots
    }
}

/// Memory of a searching thread, kept between queries.
#[derive(Debug, Default)]
pub struct SearchScratch {
    walk: Walk,
    query: Query,
    batch: Batch,
    lanes: Vec<Lane>,
    allowed: Vec<u64>,
    ids: Vec<u32>,
    scores: Vec<f32>,
    order: Vec<(f32, u64)>,
}

/// A query on its way: what it asks for, who answers, and in which version.
struct Asked<'a> {
    params: &'a Params<'a>,
    executor: Executor,
    version: u64,
}

/// Slots on their way from removed to free.
#[derive(Debug)]
struct Limbo {
    grace: Grace,
    slots: Vec<u32>,
    /// New readers do not find them any more.
    hidden: bool,
}

/// What only the writer touches.
#[derive(Debug, Default)]
pub(super) struct Writer {
    /// Slots without a vector, the smallest last.
    pub(super) free: Vec<u32>,
    /// Slots that are out of the graph but may still be looked at.
    limbo: Vec<Limbo>,
    /// Slots whose vectors were removed but are still in the graph.
    dead: Vec<u32>,
    work: Vec<Work>,
}

/// Vectors by id, searched by nearness. All methods take `&self` and may be called from any thread.
#[derive(Debug)]
pub struct SemanticIndex {
    pub(super) config: Config,
    /// Tells this index from all others of the process.
    number: u64,
    pub(super) store: Store,
    pub(super) graph: Graph,
    costs: Costs,
    epochs: Epochs,
    version: AtomicU64,
    live: AtomicUsize,
    buried: AtomicUsize,
    ids: RwLock<Ids>,
    writer: Mutex<Writer>,
}

fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|mine| *mine)
}

impl SemanticIndex {
    /// An empty index.
    ///
    /// # Errors
    /// [`BrokerError::OutOfRange`] for settings outside their range.
    pub fn new(config: Config, costs: Costs) -> Result<Self, BrokerError> {
        Self::with_kernels(config, costs, kernels::best())
    }

    fn with_kernels(config: Config, costs: Costs, kernels: kernels::Kernels) -> Result<Self, BrokerError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        config.check()?;
        Ok(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            store: Store::new(
                config.dim,
                config.metric,
                config.rerank,
                config.flags.len(),
                kernels,
            ),
            graph: Graph::new(config.m, config.seed),
            config,
            costs,
            epochs: Epochs::default(),
            version: AtomicU64::new(0),
            live: AtomicUsize::new(0),
            buried: AtomicUsize::new(0),
            ids: RwLock::new(Ids::default()),
            writer: Mutex::new(Writer::default()),
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The instruction set in use.
    #[must_use]
    pub fn instruction_set(&self) -> &'static str {
        self.store.kernels()
    }

    /// The number of vectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    /// Whether there are no vectors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of writes so far.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Removed or replaced vectors whose slots are still in the graph.
    #[must_use]
    pub fn buried(&self) -> usize {
        self.buried.load(Ordering::Relaxed)
    }

    /// Bytes of all slots ever used, with all that belongs to them.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.store.bytes() + self.graph.bytes(self.store.slots()) + self.ids().bytes()
    }

    fn ids(&self) -> RwLockReadGuard<'_, Ids> {
        self.ids.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write_lock(&self) -> Result<MutexGuard<'_, Writer>, BrokerError> {
        self.writer.lock().map_err(|_| BrokerError::HalfFailed)
    }

    pub(super) fn enter(&self) -> Guard<'_> {
        self.epochs.enter(stripe())
    }

    fn slot(&self, id: u64) -> Option<u32> {
        self.ids().find(id, |slot| self.store.label(slot))
    }

    /// Whether the id has a vector.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.slot(id).is_some()
    }

    /// The vector of an id as exactly as it is kept, or nothing.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<Vec<f32>> {
        let _guard = self.enter();
        self.slot(id).map(|slot| self.store.vector(slot))
    }

    /// The flags of an id, or nothing.
    #[must_use]
    pub fn flags(&self, id: u64) -> Option<u32> {
        let _guard = self.enter();
        self.slot(id).map(|slot| self.store.flags_of(slot))
    }

    /// All ids, in ascending order.
    #[must_use]
    pub fn all_ids(&self) -> Vec<u64> {
        let _guard = self.enter();
        let mut all: Vec<u64> = self.ids().slots().map(|slot| self.store.label(slot)).collect();
        all.sort_unstable();
        all
    }

    // -- writing

    fn check_vectors(&self, vectors: &[f32], dim: usize) -> Result<(), BrokerError> {
        if dim != self.config.dim {
            return Err(BrokerError::Dimension {
                expected: self.config.dim,
                got: dim,
                model: self.config.model.clone(),
            });
        }
        check_rows(vectors, dim, self.config.metric)
    }

    /// Adds or replaces vectors: `vectors` holds one row of `dim` components for each id. All of them become
    /// visible at once, or, if anything is refused, none.
    ///
    /// `flags` are those of new ids; replaced ones keep theirs. The work is spread over up to `threads` threads;
    /// with one, equal calls make equal graphs.
    ///
    /// # Errors
    /// See [`BrokerError`]; the index is unchanged.
    pub fn put(
        &self,
        ids: &[u64],
        vectors: &[f32],
        dim: usize,
        flags: u32,
        mode: Mode,
        threads: usize,
    ) -> Result<u64, BrokerError> {
        if dim == 0 || vectors.len() != ids.len() * dim {
            let expected = ids.len() * self.config.dim;
            return Err(BrokerError::Length {
                what: "the array of vectors",
                got: vectors.len(),
                expected,
            });
        }
        self.check_vectors(vectors, dim)?;
        unique(ids)?;
        let mut writer = self.write_lock()?;
        let known: Vec<Option<u32>> = {
            let map = self.ids();
            ids.iter()
                .map(|&id| map.find(id, |slot| self.store.label(slot)))
                .collect()
        };
        for (&id, slot) in ids.iter().zip(&known) {
            match (mode, slot) {
                (Mode::Add, Some(_)) => return Err(BrokerError::DuplicateId(id)),
                (Mode::Update, None) => return Err(BrokerError::UnknownId(id)),
                _ => {}
            }
        }
        if ids.is_empty() {
            return Ok(self.version());
        }
        let next = self.version() + 1;
        let slots = self.allocate(&mut writer, ids.len())?;
        let threads = threads.clamp(1, 64);
        let written = each(&mut [(); 64][..threads], slots.len(), 256, |(), at| {
            let slot = slots[at];
            let vector = &vectors[at * dim..(at + 1) * dim];
            // SAFETY: an allocated slot is in no bitmap, row or table, its last readers are gone, and it is given
            // to one thread.
            unsafe { self.store.write(slot as usize, vector) };
            self.store.set_label(slot, ids[at]);
            self.store.set_born(slot, next);
            let flags = known[at].map_or(flags, |old| self.store.flags_of(old));
            for flag in 0..self.store.flag_count() {
                self.store.set_flag(flag, slot, flags >> flag & 1 != 0);
            }
        });
        debug_assert_eq!(written, slots.len());
        let top = slots
            .iter()
            .max()
            .map_or(0, |&slot| slot as usize + 1)
            .max(self.store.slots());
        for &slot in &slots {
            self.store.set_present(slot, true);
        }
        self.store.set_slots(top);
        if writer.work.len() < threads {
            writer.work.resize_with(threads, Work::default);
        }
        let solo = SOLO.saturating_sub(self.len()).min(slots.len());
        let ef = self.config.ef_construction;
        for &slot in &slots[..solo] {
            self.graph.insert(&self.store, top, slot, ef, &mut writer.work[0]);
        }
        each(&mut writer.work[..threads], slots.len() - solo, 32, |work, at| {
            self.graph.insert(&self.store, top, slots[solo + at], ef, work);
        });
        if slots.len() > self.len() / 4 {
            self.graph.reinforce(&self.store, top, &mut writer.work[0]);
        }
        self.publish(&mut writer, next, |map, dead| {
            for (&id, &slot) in ids.iter().zip(&slots) {
                dead.extend(map.set(id, slot, |slot| self.store.label(slot)));
            }
        });
        self.tidy(&mut writer);
        Ok(next)
    }

    /// Removes vectors; they are in no answer from then on.
    ///
    /// # Errors
    /// [`BrokerError::UnknownId`] or [`BrokerError::DuplicateId`]; then nothing was removed.
    pub fn remove(&self, ids: &[u64]) -> Result<u64, BrokerError> {
        unique(ids)?;
        let mut writer = self.write_lock()?;
        {
            let map = self.ids();
            for &id in ids {
                map.find(id, |slot| self.store.label(slot))
                    .ok_or(BrokerError::UnknownId(id))?;
            }
        }
        if ids.is_empty() {
            return Ok(self.version());
        }
        let next = self.version() + 1;
        self.publish(&mut writer, next, |map, dead| {
            dead.extend(
                ids.iter()
                    .filter_map(|&id| map.remove(id, |slot| self.store.label(slot))),
            );
        });
        self.tidy(&mut writer);
        Ok(next)
    }

    /// Sets one flag of some ids, in place and at once.
    ///
    /// # Errors
    /// [`BrokerError::UnknownId`] (then nothing was set), [`BrokerError::OutOfRange`] for an unknown flag.
    pub fn set_flag(
        &self,
        flag: usize,
        ids: &[u64],
        values: impl Fn(usize) -> bool,
    ) -> Result<(), BrokerError> {
        if flag >= self.store.flag_count() {
            return Err(BrokerError::OutOfRange(format!("the index has no flag {flag}")));
        }
        // The lock keeps the slots from being replaced meanwhile.
        let _writer = self.write_lock()?;
        let map = self.ids();
        let slots = ids
            .iter()
            .map(|&id| {
                map.find(id, |slot| self.store.label(slot))
                    .ok_or(BrokerError::UnknownId(id))
            })
            .collect::<Result<Vec<u32>, _>>()?;
        for (at, slot) in slots.into_iter().enumerate() {
            self.store.set_flag(flag, slot, values(at));
        }
        Ok(())
    }

    /// Takes all removed vectors out of the graph now.
    ///
    /// # Errors
    /// [`BrokerError::HalfFailed`].
    pub fn consolidate(&self) -> Result<(), BrokerError> {
        self.consolidated().map(drop)
    }

    /// The writer's lock, with the graph free of removed vectors.
    pub(super) fn consolidated(&self) -> Result<MutexGuard<'_, Writer>, BrokerError> {
        let mut writer = self.write_lock()?;
        self.consolidate_with(&mut writer);
        Ok(writer)
    }

    /// Shows a write: `change` edits the table of ids and reports the slots that are dead from now on.
    fn publish(&self, writer: &mut Writer, version: u64, change: impl FnOnce(&mut Ids, &mut Vec<u32>)) {
        let mut map = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        let before = writer.dead.len();
        change(&mut map, &mut writer.dead);
        for &slot in &writer.dead[before..] {
            self.store.set_dead(slot, version);
        }
        self.live.store(map.len(), Ordering::Release);
        self.buried.store(writer.dead.len(), Ordering::Relaxed);
        self.version.store(version, Ordering::Release);
    }

    /// Slots nobody uses or looks at, with memory; not shown yet.
    fn allocate(&self, writer: &mut Writer, count: usize) -> Result<Vec<u32>, BrokerError> {
        self.reclaim(writer);
        let reused = writer.free.len().min(count);
        let (old, new) = (self.store.slots(), self.store.slots() + count - reused);
        self.store.ensure(new)?;
        self.graph.ensure(old, new);
        let mut slots: Vec<u32> = (0..reused).filter_map(|_| writer.free.pop()).collect();
        slots.extend(old as u32..new as u32);
        Ok(slots)
    }

    /// Takes back slots whose last readers have left.
    fn reclaim(&self, writer: &mut Writer) {
        let mut waiting = Vec::new();
        let mut freed = false;
        for mut limbo in std::mem::take(&mut writer.limbo) {
            if !limbo.hidden && self.epochs.over(&mut limbo.grace) {
                // Only now: until the last reader of a version that shows them left, they had to be in its bitmap.
                for &slot in &limbo.slots {
                    self.store.set_present(slot, false);
                }
                // And again: a reader that has come since may have them in its bitmap, and look at their codes.
                limbo.grace = self.epochs.begin();
                limbo.hidden = true;
            }
            if limbo.hidden && self.epochs.over(&mut limbo.grace) {
                for &slot in &limbo.slots {
                    self.graph.clear(slot);
                }
                writer.free.extend(limbo.slots);
                freed = true;
            } else {
                waiting.push(limbo);
            }
        }
        writer.limbo = waiting;
        if freed {
            writer.free.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    fn tidy(&self, writer: &mut Writer) {
        let dead = writer.dead.len();
        if dead >= 64
            && self.config.consolidate_at < 1.0
            && dead as f64 > f64::from(self.config.consolidate_at) * self.len() as f64
        {
            self.consolidate_with(writer);
        }
    }

    fn consolidate_with(&self, writer: &mut Writer) {
        let dead = std::mem::take(&mut writer.dead);
        if !dead.is_empty() {
            if writer.work.is_empty() {
                writer.work.push(Work::default());
            }
            self.graph
                .consolidate(&self.store, self.store.slots(), &mut writer.work[0]);
            writer.limbo.push(Limbo {
                grace: self.epochs.begin(),
                slots: dead,
                hidden: false,
            });
            self.buried.store(0, Ordering::Relaxed);
        }
        self.reclaim(writer);
    }

    /// Slots of live vectors with their ids, for the file; the caller holds the writer's lock.
    pub(super) fn restore(&self, slots: usize, free: Vec<u32>, writer: &mut Writer) {
        let mut map = self.ids.write().unwrap_or_else(PoisonError::into_inner);
        for slot in (0..slots as u32).filter(|&slot| self.store.present(slot)) {
            map.set(self.store.label(slot), slot, |slot| self.store.label(slot));
        }
        self.live.store(map.len(), Ordering::Release);
        writer.free = free;
        writer.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    pub(super) fn set_version(&self, version: u64) {
        self.version.store(version, Ordering::Release);
    }

    // -- searching

    fn check_query(&self, queries: &[f32], dim: usize, params: &Params<'_>) -> Result<(), BrokerError> {
        let refuse = |text: String| Err(BrokerError::OutOfRange(text));
        if params.k == 0 {
            return refuse("k is 0; at least 1 result must be wanted".into());
        }
        if params.ef == 0 {
            return refuse("ef is 0; at least 1 candidate must be kept".into());
        }
        if !(0.0..=1.0).contains(&params.recall) {
            return refuse(format!("recall is {}; it can be 0 to 1", params.recall));
        }
        if params.threshold.is_some_and(f32::is_nan) {
            return refuse("the threshold is NaN".into());
        }
        self.check_vectors(queries, dim)
    }

    /// Finds the nearest vectors to one query.
    ///
    /// # Errors
    /// See [`BrokerError`]: a query of the wrong length, with NaN or infinity, or zero; parameters out of range.
    pub fn search(
        &self,
        query: &[f32],
        params: &Params<'_>,
        scratch: &mut SearchScratch,
    ) -> Result<Found, BrokerError> {
        self.check_query(query, query.len(), params)?;
        let _guard = self.enter();
        if let Some(found) = self.search_listed(query, params, scratch) {
            return Ok(found);
        }
        let (version, count) = self.filter(params, &mut scratch.allowed);
        let executor = self.plan(params, count, 1);
        self.store.prepare(query, &mut scratch.query);
        Ok(self.answer(params, executor, version, scratch))
    }

    /// A scan of a subset that is used again and has no other filter beside it; nothing if something else is called for.
    fn search_listed(
        &self,
        query: &[f32],
        params: &Params<'_>,
        scratch: &mut SearchScratch,
    ) -> Option<Found> {
        let alone = params.require == 0 && params.forbid == 0 && params.exclude.is_empty();
        if !alone || params.executor.is_some() || params.recall >= 1.0 {
            return None;
        }
        let slots = params.subset?.slots(self);
        let listed = slots.listed(&self.store)?;
        let executor = self.plan(params, Some(listed.slots.len()), 1);
        if executor != Executor::Scan {
            return None;
        }
        let asked = Asked {
            params,
            executor,
            version: slots.version,
        };
        let mut query_form = std::mem::take(&mut scratch.query);
        self.store.prepare(query, &mut query_form);
        scratch.allowed.clear();
        scratch.walk.scored = scan_listed(
            &self.store,
            &query_form,
            self.depth(params, executor),
            (&listed.slots, &listed.sketches),
            slots.version,
            &mut scratch.walk.pool,
        );
        let found = self.conclude(&asked, &query_form, scratch);
        scratch.query = query_form;
        Some(found)
    }

    /// Finds the nearest vectors to each of some queries, all in the same version; `queries` holds one row of
    /// `dim` components for each.
    ///
    /// # Errors
    /// As [`search`](Self::search).
    pub fn search_batch(
        &self,
        queries: &[f32],
        dim: usize,
        params: &Params<'_>,
        threads: usize,
        scratch: &mut SearchScratch,
    ) -> Result<Vec<Found>, BrokerError> {
        if dim == 0 || !queries.len().is_multiple_of(dim) {
            return Err(BrokerError::Length {
                what: "the array of queries",
                got: queries.len(),
                expected: self.config.dim,
            });
        }
        self.check_query(queries, dim, params)?;
        let total = queries.len() / dim;
        if total == 0 {
            return Ok(Vec::new());
        }
        let _guard = self.enter();
        let mut allowed = std::mem::take(&mut scratch.allowed);
        let (version, count) = self.filter(params, &mut allowed);
        let executor = self.plan(params, count, total);
        if executor == Executor::Batch && count.is_none() {
            self.store.allowed(0, 0, None, &mut allowed);
        }
        let threads = threads.clamp(1, 64);
        let piece = if executor == Executor::Batch {
            total
                .div_ceil(threads)
                .next_multiple_of(LANE)
                .min(self.store.together())
        } else {
            8
        };
        let threads = threads.min(total.div_ceil(piece));
        let mut found: Vec<Mutex<Vec<Found>>> = Vec::new();
        found.resize_with(total.div_ceil(piece), Mutex::default);
        let mut own: Vec<SearchScratch> = Vec::new();
        own.resize_with(threads - 1, SearchScratch::default);
        let mut all: Vec<&mut SearchScratch> = std::iter::once(&mut *scratch).chain(&mut own).collect();
        each(&mut all, found.len(), 1, |scratch, at| {
            let rows = &queries[at * piece * dim..((at + 1) * piece).min(total) * dim];
            let answers = if executor == Executor::Batch {
                self.answer_batch(params, version, rows, &allowed, scratch)
            } else if executor == Executor::Graph && count.is_none() && params.interleave {
                self.answer_together(params, version, rows, scratch)
            } else {
                scratch.allowed.clear();
                scratch.allowed.extend_from_slice(&allowed);
                rows.chunks_exact(dim)
                    .map(|query| {
                        self.store.prepare(query, &mut scratch.query);
                        self.answer(params, executor, version, scratch)
                    })
                    .collect()
            };
            *found[at].lock().unwrap_or_else(PoisonError::into_inner) = answers;
        });
        scratch.allowed = allowed;
        Ok(found
            .into_iter()
            .flat_map(|part| part.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect())
    }

    /// Takes the version and, if there is a filter, writes its bitmap and counts it.
    fn filter(&self, params: &Params<'_>, allowed: &mut Vec<u64>) -> (u64, Option<usize>) {
        let subset = params.subset.map(|subset| subset.slots(self));
        let version = subset
            .as_ref()
            .map_or_else(|| self.version(), |slots| slots.version);
        allowed.clear();
        if params.require == 0 && params.forbid == 0 && subset.is_none() && params.exclude.is_empty() {
            return (version, None);
        }
        let words = subset.as_ref().map(|slots| &slots.words[..]);
        let mut count = self.store.allowed(params.require, params.forbid, words, allowed);
        if !params.exclude.is_empty() {
            let map = self.ids();
            for &id in params.exclude {
                let Some(slot) = map.find(id, |slot| self.store.label(slot)) else {
                    continue;
                };
                if let Some(word) = allowed.get_mut(slot as usize / 64) {
                    count -= (*word >> (slot % 64) & 1) as usize;
                    *word &= !(1 << (slot % 64));
                }
            }
        }
        (version, Some(count))
    }

    fn plan(&self, params: &Params<'_>, count: Option<usize>, queries: usize) -> Executor {
        let slots = self.len() + self.buried();
        let chosen = params.executor.unwrap_or_else(|| {
            self.costs.choose(Situation {
                slots,
                allowed: count.unwrap_or(slots),
                filtered: count.is_some(),
                queries,
                ef: params.ef.max(params.k),
                recall: params.recall,
            })
        });
        match chosen {
            Executor::Batch if queries == 1 => Executor::Scan,
            Executor::TwoHop if count.is_none() => Executor::Graph,
            chosen => chosen,
        }
    }

    /// How many candidates are ordered exactly.
    fn depth(&self, params: &Params<'_>, executor: Executor) -> usize {
        if params.rerank > 0 {
            return params.rerank.max(params.k);
        }
        match executor {
            Executor::Scan | Executor::Batch => RERANKED_SCAN.max(2 * params.k),
            Executor::Graph | Executor::TwoHop => RERANKED_WALK.max(params.k + params.k / 2),
        }
    }

    /// How many candidates a search must keep so that enough are left without the dead.
    fn room(&self, wanted: usize) -> usize {
        let (live, buried) = (self.len(), self.buried());
        if wanted >= live {
            wanted + buried
        } else {
            wanted + (wanted * buried).div_ceil(live.max(1))
        }
    }

    fn answer(
        &self,
        params: &Params<'_>,
        executor: Executor,
        version: u64,
        scratch: &mut SearchScratch,
    ) -> Found {
        let query = std::mem::take(&mut scratch.query);
        let walk = &mut scratch.walk;
        walk.scored = 0;
        let filtered = !scratch.allowed.is_empty();
        match executor {
            Executor::Scan | Executor::Batch => {
                if !filtered {
                    self.store.allowed(0, 0, None, &mut scratch.allowed);
                }
                walk.scored = scan(
                    &self.store,
                    &query,
                    self.depth(params, executor),
                    &scratch.allowed,
                    version,
                    // Whoever asked for a scan, or for a recall of 1, gets every code looked at.
                    params.executor.is_none() && params.recall < 1.0,
                    &mut walk.pool,
                );
                if !filtered {
                    scratch.allowed.clear();
                }
            }
            Executor::Graph if !filtered => {
                self.graph
                    .search(&self.store, &query, self.room(params.ef.max(params.k)), walk);
            }
            Executor::Graph | Executor::TwoHop => {
                let through = if executor == Executor::Graph {
                    Through::All
                } else {
                    Through::TwoHop
                };
                let ef = self.room(params.ef.max(params.k));
                self.graph
                    .search_among(&self.store, &query, ef, &scratch.allowed, through, walk);
            }
        }
        let asked = Asked {
            params,
            executor,
            version,
        };
        let found = self.conclude(&asked, &query, scratch);
        scratch.query = query;
        found
    }

    /// The same for some queries whose walks through all of the graph take turns.
    fn answer_together(
        &self,
        params: &Params<'_>,
        version: u64,
        rows: &[f32],
        scratch: &mut SearchScratch,
    ) -> Vec<Found> {
        let asked = Asked {
            params,
            executor: Executor::Graph,
            version,
        };
        let mut found = Vec::with_capacity(rows.len() / self.config.dim);
        let mut lanes = std::mem::take(&mut scratch.lanes);
        lanes.resize_with(TOGETHER, Lane::default);
        for rows in rows.chunks(TOGETHER * self.config.dim) {
            let rows = rows.chunks_exact(self.config.dim);
            let lanes = &mut lanes[..rows.len()];
            for (row, lane) in rows.zip(&mut *lanes) {
                self.store.prepare(row, &mut lane.query);
                lane.walk.scored = 0;
            }
            let ef = self.room(params.ef.max(params.k));
            self.graph.search_together(&self.store, ef, lanes);
            for lane in lanes {
                std::mem::swap(&mut scratch.walk, &mut lane.walk);
                found.push(self.conclude(&asked, &lane.query, scratch));
                std::mem::swap(&mut scratch.walk, &mut lane.walk);
            }
        }
        scratch.lanes = lanes;
        found
    }

    /// From the candidates of `scratch.walk` to results.
    fn conclude(&self, asked: &Asked<'_>, query: &Query, scratch: &mut SearchScratch) -> Found {
        let &Asked {
            params,
            executor,
            version,
        } = asked;
        let depth = self.depth(params, executor);
        let filtered = !scratch.allowed.is_empty();
        let walk = &mut scratch.walk;
        // What a write is about to show, or has just hidden, may have crowded out what this version shows.
        let shown = walk
            .pool
            .iter()
            .filter(|&&entry| self.store.visible(slot_of(entry), version))
            .count();
        if shown < walk.pool.len() && shown < depth {
            let mut all = std::mem::take(&mut scratch.allowed);
            if !filtered {
                self.store.allowed(0, 0, None, &mut all);
            }
            walk.scored += scan(&self.store, query, depth, &all, version, false, &mut walk.pool);
            if !filtered {
                all.clear();
            }
            scratch.allowed = all;
        }
        let scored = walk.scored;
        let pool = std::mem::take(&mut walk.pool);
        let found = self.finish(asked, query, &pool, scored, scratch);
        scratch.walk.pool = pool;
        found
    }

    fn answer_batch(
        &self,
        params: &Params<'_>,
        version: u64,
        rows: &[f32],
        allowed: &[u64],
        scratch: &mut SearchScratch,
    ) -> Vec<Found> {
        let count = rows.len() / self.config.dim;
        let mut batch = std::mem::take(&mut scratch.batch);
        batch.panel.resize(count);
        for (row, query) in rows.chunks_exact(self.config.dim).zip(&mut batch.panel.queries) {
            self.store.prepare(row, query);
        }
        let scored = scan_batch(
            &self.store,
            self.depth(params, Executor::Batch),
            allowed,
            version,
            &mut batch,
        );
        let found = batch
            .panel
            .queries
            .iter()
            .zip(&batch.pools)
            .map(|(query, pool)| {
                self.finish(
                    &Asked {
                        params,
                        executor: Executor::Batch,
                        version,
                    },
                    query,
                    pool,
                    scored,
                    scratch,
                )
            })
            .collect();
        scratch.batch = batch;
        found
    }

    /// From candidates to results: what this version shows, ordered exactly, cut to `k`.
    fn finish(
        &self,
        asked: &Asked<'_>,
        query: &Query,
        pool: &[u64],
        scored: usize,
        scratch: &mut SearchScratch,
    ) -> Found {
        let Asked {
            params,
            executor,
            version,
        } = *asked;
        let SearchScratch {
            ids, scores, order, ..
        } = scratch;
        let shown = pool
            .iter()
            .filter(|&&entry| self.store.visible(slot_of(entry), version));
        ids.clear();
        ids.extend(
            shown
                .clone()
                .map(|&entry| slot_of(entry))
                .take(self.depth(params, executor)),
        );
        scores.clear();
        scores.resize(ids.len(), 0.0);
        if !self.store.rerank(query, ids, scores) {
            for (score, &entry) in scores.iter_mut().zip(shown) {
                *score = self.store.similarity(query, key_of(entry));
            }
        }
        order.clear();
        order.extend(
            scores
                .iter()
                .copied()
                .zip(ids.iter().map(|&slot| self.store.label(slot))),
        );
        order.retain(|&(score, _)| params.threshold.is_none_or(|least| score >= least));
        order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        order.truncate(params.k);
        Found {
            ids: order.iter().map(|&(_, id)| id).collect(),
            scores: order.iter().map(|&(score, _)| score).collect(),
            version,
            executor,
            scored,
        }
    }
}

fn unique(ids: &[u64]) -> Result<(), BrokerError> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(BrokerError::DuplicateId(pair[0])),
        None => Ok(()),
    }
}

/// Does `work` for `0..count`, in pieces, with one thread for each state. Returns `count`.
fn each<S: Send>(states: &mut [S], count: usize, piece: usize, work: impl Fn(&mut S, usize) + Sync) -> usize {
    let next = AtomicUsize::new(0);
    let run = |state: &mut S| {
        loop {
            let start = next.fetch_add(piece, Ordering::Relaxed);
            if start >= count {
                return;
            }
            (start..(start + piece).min(count)).for_each(|at| work(state, at));
        }
    };
    let Some((first, others)) = states.split_first_mut() else {
        return 0;
    };
    if count <= piece {
        run(first);
        return count;
    }
    std::thread::scope(|scope| {
        for state in others {
            scope.spawn(|| run(state));
        }
        run(first);
    });
    count
}
