//! The registry: what one host knows about every agent, and the writer's side of the store.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::RegistryError;
use crate::hint::prefetch;
use crate::index::{Id, IdIndex};
use crate::rcu::{Garbage, next_capacity};
use crate::rng::mix;
use crate::store::{
    ALIVE, Attributes, Block, DRAINING, Head, LANES, Line, PRESENT, Pool, PoolHead, PoolRest, Store, TRUSTED,
    View, eligible, entry, entry_slot, posting,
};
use crate::vocabulary::{NONE, TAG, Vocabulary};

/// The most capabilities of one agent, parents and tags included.
pub const MAX_HELD: usize = 128;
/// Tombstones kept at least; beyond that, one for every four registered agents.
pub const MIN_TOMBSTONES: usize = 65_536;
/// Signature bits that belong to one capability each. Of the rest every other capability has two, chosen by hash: an
/// agent rarely has both by chance.
const EXACT_BITS: u32 = 24;
/// Bits shared by the other capabilities.
const SHARED_BITS: u32 = 64 - EXACT_BITS;
/// A pool of this many agents gets a bit of its own, while there are any.
const PROMOTE_AT: u32 = 32;
/// New entries land among so many eligible ones at the end of a pool; a power of two.
const SPREAD: u32 = 512;
/// Changes applied under one hold of the lock by the batch calls, so that nobody waits longer than that.
const CHUNK: usize = 256;

/// How a registry is set up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Seed of every random choice.
    pub seed: u64,
    /// Keep signatures (8 bytes a posting), which make consolidated assembly fast.
    pub signatures: bool,
    /// Whether a newly announced agent is trusted until told otherwise.
    pub trust_by_default: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            signatures: true,
            trust_by_default: true,
        }
    }
}

/// What an agent says about itself.
#[derive(Clone, Copy, Debug)]
pub struct Announcement<'a> {
    /// The agent's public key.
    pub id: Id,
    /// Handles of its capabilities; parents are added.
    pub capabilities: &'a [u32],
    /// Version; `None` is one more than the last known.
    pub version: Option<u64>,
    /// Group for anti-affinity (issuer, model family, host); 0 means none.
    pub domain: u16,
    /// Load, speed and price.
    pub attributes: Attributes,
}

/// What became of an announcement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Placed {
    /// The agent's slot.
    pub slot: u32,
    /// False when a version at least as new was known already: nothing changed.
    pub accepted: bool,
}

/// All that is known about one agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// The agent's public key.
    pub id: Id,
    /// Its slot.
    pub slot: u32,
    /// Version of its last announcement.
    pub version: u64,
    /// Handles it holds, parents and tags included.
    pub held: Vec<u32>,
    /// Group for anti-affinity.
    pub domain: u16,
    /// Load, speed and price.
    pub attributes: Attributes,
    /// `ALIVE`, `TRUSTED` and `DRAINING` bits.
    pub flags: u8,
}

/// Bytes in use, by part.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Memory {
    /// Agent lines and their overflow.
    pub lines: usize,
    /// Pool headers and entries.
    pub pools: usize,
    /// Signatures.
    pub signatures: usize,
    /// Ids, versions and slot generations.
    pub ids: usize,
    /// Id lookup table.
    pub index: usize,
    /// Left behind by arrays that have grown, for others to come.
    pub spare: usize,
}

#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) index: IdIndex,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) garbage: Garbage,
    free: Vec<u32>,
    /// Withdrawn slots, oldest first, with the stamp they were withdrawn under.
    tombstones: VecDeque<(u32, u32)>,
    buried: usize,
    /// Free overflow pieces by size class (powers of two).
    pieces: Vec<Vec<u32>>,
    extra_used: u32,
    pub(crate) exact_bits: u32,
}

/// Every agent a host knows, indexed by capability.
///
/// All methods take `&self`. Readers (assembly, views) never wait; writers take turns.
#[derive(Debug)]
pub struct Registry {
    pub(crate) store: Store,
    pub(crate) config: Config,
    writer: Mutex<Writer>,
    stream: AtomicU64,
}

/// Marks a change of membership for readers.
pub(crate) struct Change<'s>(&'s AtomicU64);

impl<'s> Change<'s> {
    pub(crate) fn begin(sequence: &'s AtomicU64) -> Self {
        sequence.store(sequence.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        Self(sequence)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0
            .store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

/// The writer's view: the store's current arrays, while the lock is held.
pub(crate) struct Work<'r> {
    pub(crate) store: &'r Store,
    pub(crate) config: Config,
    pub(crate) writer: MutexGuard<'r, Writer>,
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            store: Store::default(),
            config,
            writer: Mutex::new(Writer {
                index: IdIndex::new(config.seed),
                vocabulary: Vocabulary::default(),
                garbage: Garbage::default(),
                free: Vec::new(),
                tombstones: VecDeque::new(),
                buried: 0,
                pieces: vec![Vec::new(); 8],
                extra_used: 0,
                exact_bits: 0,
            }),
            stream: AtomicU64::new(config.seed),
        }
    }

    /// How this registry was set up.
    #[must_use]
    pub fn config(&self) -> Config {
        self.config
    }

    /// A seed for a call that brought none: the next of a fixed stream.
    pub fn next_seed(&self) -> u64 {
        self.stream.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed)
    }

    pub(crate) fn work(&self) -> Work<'_> {
        // A panic while the lock is held is a bug, but it leaves only words of atomics: go on.
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        Work {
            store: &self.store,
            config: self.config,
            writer,
        }
    }

    /// Number of registered agents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.present.load(Ordering::Relaxed) as usize
    }

    /// Whether no agent is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of slots handed out so far: the length of a bitmap over slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.store.slots.load(Ordering::Acquire)
    }

    /// Number of capability handles given out, tags and parents included.
    #[must_use]
    pub fn known_capabilities(&self) -> u32 {
        self.store.known.load(Ordering::Acquire)
    }

    /// Interns a capability name and its parents (`search.web` brings `search`).
    ///
    /// # Errors
    /// [`RegistryError::InvalidName`].
    pub fn intern(&self, name: &str) -> Result<u32, RegistryError> {
        let mut work = self.work();
        let handle = work.writer.vocabulary.intern(name)?;
        work.publish_vocabulary();
        Ok(handle)
    }

    /// The handle of a known name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<u32> {
        self.work().writer.vocabulary.find(name)
    }

    /// The name of a handle.
    #[must_use]
    pub fn name(&self, handle: u32) -> Option<String> {
        self.work().writer.vocabulary.name(handle).map(str::to_owned)
    }

    /// Names of all capabilities (or of all tags, without their `#`), in the order they became known.
    #[must_use]
    pub fn vocabulary(&self, tags: bool) -> Vec<String> {
        let work = self.work();
        let names = work.writer.vocabulary.names();
        names
            .filter(|n| n.starts_with(TAG) == tags)
            .map(|n| n.trim_start_matches(TAG).to_owned())
            .collect()
    }

    /// Takes an announcement in. An older or equal version changes nothing.
    ///
    /// # Errors
    /// Unknown handles, too many capabilities, or a full registry; nothing changes then.
    pub fn announce(&self, announcement: &Announcement<'_>) -> Result<Placed, RegistryError> {
        self.work().announce(announcement)
    }

    /// Withdraws an agent. `version` must not be older than the last announcement; `None` is that version.
    /// Returns whether it was registered and is gone now. A withdrawal that comes first is remembered, so that a
    /// late announcement of that version or an older one does not win.
    ///
    /// # Errors
    /// [`RegistryError::UnknownAgent`] when the id is unknown and no version is given.
    pub fn withdraw(&self, id: &Id, version: Option<u64>) -> Result<bool, RegistryError> {
        self.work().withdraw(id, version)
    }

    /// The slot of a registered agent.
    #[must_use]
    pub fn slot_of(&self, id: &Id) -> Option<u32> {
        let work = self.work();
        let slot = work.find(id)?;
        work.is_present(slot).then_some(slot)
    }

    /// The id in a slot, if an agent is registered there.
    #[must_use]
    pub fn id_of(&self, slot: u32) -> Option<Id> {
        let view = self.store.view();
        if slot >= self.slots() || view.lines().get(slot as usize)?.head().flags & PRESENT == 0 {
            return None;
        }
        Some(view.ids().get(slot as usize)?.load())
    }

    /// The id a slot had when the reuse counter stood at `reuses`; `None` if the slot changed hands since.
    #[must_use]
    pub fn id_at(&self, slot: u32, reuses: u32) -> Option<Id> {
        let view = self.store.view();
        let id = view.ids().get(slot as usize)?.load();
        fence(Ordering::Acquire);
        (view.born().get(slot as usize)?.load(Ordering::Relaxed) <= reuses).then_some(id)
    }

    /// How often a slot was given to another agent, in total.
    #[must_use]
    pub fn reuses(&self) -> u32 {
        self.store.reuses.load(Ordering::Acquire)
    }

    /// Everything known about the agent in a slot.
    #[must_use]
    pub fn record(&self, slot: u32) -> Option<Record> {
        let work = self.work();
        if !work.is_present(slot) {
            return None;
        }
        let line = work.line(slot);
        let head = line.head();
        Some(Record {
            id: work.id(slot),
            slot,
            version: work.version(slot).load(Ordering::Relaxed),
            held: work.held(slot).collect(),
            domain: head.domain,
            attributes: line.attributes(),
            flags: head.flags & !PRESENT,
        })
    }

    /// Load, speed and price of the agent in a slot; `None` when it is empty.
    #[must_use]
    pub fn attributes(&self, slot: u32) -> Option<Attributes> {
        let view = self.store.view();
        let line = view.lines().get(slot as usize)?;
        (line.head().flags & PRESENT != 0).then(|| line.attributes())
    }

    /// Slots of the agents that hold a capability, those that may be chosen first.
    #[must_use]
    pub fn holders(&self, capability: u32) -> Vec<u32> {
        let work = self.work();
        if capability >= work.store.heads.capacity() {
            return Vec::new();
        }
        let pool = work.pool(capability);
        (0..pool.len())
            .map(|i| entry_slot(work.entry(pool.head, i).load(Ordering::Relaxed)))
            .collect()
    }

    /// Number of agents that hold a capability and may be chosen now.
    #[must_use]
    pub fn available(&self, capability: u32) -> u32 {
        self.store.view().pool(capability).live()
    }

    /// Sets the load of one agent.
    ///
    /// # Errors
    /// [`RegistryError::UnknownSlot`].
    pub fn set_load(&self, slot: u32, load: u16) -> Result<(), RegistryError> {
        let work = self.work();
        work.check(slot)?;
        work.update(slot, |a| a.load = load);
        Ok(())
    }

    /// Changes load, speed or price of one agent.
    ///
    /// # Errors
    /// [`RegistryError::UnknownSlot`].
    pub fn update(&self, slot: u32, change: impl FnOnce(&mut Attributes)) -> Result<(), RegistryError> {
        let work = self.work();
        work.check(slot)?;
        work.update(slot, change);
        Ok(())
    }

    /// Sets the load of many agents; the later of two updates of one slot wins.
    ///
    /// # Errors
    /// Different lengths, or a slot without an agent: then nothing changes.
    pub fn set_loads(&self, slots: &[u32], loads: &[u16]) -> Result<(), RegistryError> {
        if slots.len() != loads.len() {
            let text = format!("{} slots but {} loads", slots.len(), loads.len());
            return Err(RegistryError::Shape(text));
        }
        self.check_all(slots)?;
        for (slots, loads) in slots.chunks(CHUNK).zip(loads.chunks(CHUNK)) {
            let work = self.work();
            for at in 0..slots.len() {
                if let Some(&next) = slots.get(at + 12) {
                    prefetch(work.line(next));
                }
                if let Some(&next) = slots.get(at + 4) {
                    work.prefetch_postings(next);
                }
                // Withdrawn since the check: its load no longer matters.
                if work.is_present(slots[at]) {
                    work.update(slots[at], |a| a.load = loads[at]);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn check_all(&self, slots: &[u32]) -> Result<(), RegistryError> {
        let view = self.store.view();
        let lines = view.lines();
        for (at, &slot) in slots.iter().enumerate() {
            if let Some(&next) = slots.get(at + 16)
                && let Some(line) = lines.get(next as usize)
            {
                prefetch(line);
            }
            if lines
                .get(slot as usize)
                .is_none_or(|line| line.head().flags & PRESENT == 0)
            {
                return Err(RegistryError::UnknownSlot(slot));
            }
        }
        Ok(())
    }

    /// Sets or clears flags (`ALIVE`, `TRUSTED`, `DRAINING`) of one agent.
    ///
    /// # Errors
    /// [`RegistryError::UnknownSlot`].
    pub fn set_flags(&self, slot: u32, flags: u8, on: bool) -> Result<(), RegistryError> {
        let mut work = self.work();
        work.check(slot)?;
        work.set_flags(slot, flags, on);
        Ok(())
    }

    /// Sets or clears flags of many agents.
    ///
    /// # Errors
    /// Different lengths, or a slot without an agent: then nothing changes.
    pub fn set_flags_many(&self, slots: &[u32], flags: u8, on: &[bool]) -> Result<(), RegistryError> {
        if slots.len() != on.len() {
            return Err(RegistryError::Shape(format!(
                "{} slots but {} values",
                slots.len(),
                on.len()
            )));
        }
        self.check_all(slots)?;
        for (slots, on) in slots.chunks(CHUNK).zip(on.chunks(CHUNK)) {
            let mut work = self.work();
            for at in 0..slots.len() {
                if let Some(&next) = slots.get(at + 12) {
                    prefetch(work.line(next));
                }
                if let Some(&next) = slots.get(at + 6) {
                    work.prefetch_moves(next);
                }
                if let Some(&next) = slots.get(at + 2) {
                    work.prefetch_movers(next);
                }
                if work.is_present(slots[at]) {
                    work.set_flags(slots[at], flags, on[at]);
                }
            }
        }
        Ok(())
    }

    /// Makes exactly the agents whose bit is set trusted: bit `slot & 63` of word `slot >> 6`. Slots beyond the
    /// bitmap are not trusted.
    pub fn set_trusted_bitmap(&self, bitmap: &[u64]) {
        let slots = self.slots();
        for first in (0..slots).step_by(CHUNK) {
            let mut work = self.work();
            for slot in first..slots.min(first + CHUNK as u32) {
                if work.is_present(slot) {
                    let on = bitmap
                        .get(slot as usize >> 6)
                        .is_some_and(|word| word >> (slot & 63) & 1 == 1);
                    work.set_flags(slot, TRUSTED, on);
                }
            }
        }
    }

    /// Bytes in use.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let work = self.work();
        let store = work.store;
        let mut memory = Memory {
            lines: store.lines.capacity() as usize * 64 + store.extra.capacity() as usize * 8,
            pools: store.heads.capacity() as usize * size_of::<PoolHead>()
                + store.rests.capacity() as usize * size_of::<PoolRest>(),
            signatures: 0,
            ids: store.ids.capacity() as usize * (32 + 8 + 4),
            index: work.writer.index.bytes(),
            spare: work.writer.garbage.idle(),
        };
        for pool in work.pools() {
            memory.pools += pool.head.blocks().capacity() as usize * 64;
            memory.signatures += pool.signatures().capacity() as usize * 8;
        }
        memory
    }

    pub(crate) fn view(&self) -> View<'_> {
        self.store.view()
    }

    /// Checks every invariant of the store; for tests.
    ///
    /// # Panics
    /// When one is broken.
    pub fn verify(&self) {
        let work = self.work();
        let mut present = 0;
        let mut postings = 0usize;
        for slot in 0..work.store.slots.load(Ordering::Relaxed) {
            if !work.is_present(slot) {
                continue;
            }
            present += 1;
            assert_eq!(
                work.find(&work.id(slot)),
                Some(slot),
                "the index finds slot {slot}"
            );
            let line = work.line(slot);
            let head = line.head();
            assert_eq!(head.stamp & 1, 0);
            for k in 0..head.held as usize {
                let word = work.word(slot, k).load(Ordering::Relaxed);
                let (capability, at) = ((word >> 32) as u32, word as u32);
                let pool = work.pool(capability);
                assert!(at < pool.len());
                assert_eq!(
                    at < pool.live(),
                    eligible(head.flags),
                    "slot {slot} is in the right part"
                );
                let expected = entry(line.attributes().score(), head.domain, slot);
                assert_eq!(work.entry(pool.head, at).load(Ordering::Relaxed), expected);
                if self.config.signatures {
                    assert_eq!(
                        work.signature_cell(pool, at).load(Ordering::Relaxed),
                        work.signature(slot)
                    );
                }
                postings += 1;
            }
        }
        assert_eq!(present, self.len());
        let total: usize = work.pools().map(|p| p.len() as usize).sum();
        assert_eq!(total, postings, "no entry without an agent");
        assert!(work.pools().all(|p| p.live() <= p.len()));
    }
}

impl Work<'_> {
    // The arrays are looked up at each use: a `grow` in between replaces them.

    pub(crate) fn lines(&self) -> &[Line] {
        // SAFETY: the lock is held by `self`, and slices borrow `self`, which every growing method needs mutably.
        unsafe { self.store.lines.owned() }
    }

    pub(crate) fn line(&self, slot: u32) -> &Line {
        &self.lines()[slot as usize]
    }

    pub(crate) fn heads(&self) -> &[PoolHead] {
        // SAFETY: as in `lines`.
        unsafe { self.store.heads.owned() }
    }

    pub(crate) fn rests(&self) -> &[PoolRest] {
        // SAFETY: as in `lines`.
        unsafe { self.store.rests.owned() }
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = Pool<'_>> {
        self.heads()
            .iter()
            .zip(self.rests())
            .map(|(head, rest)| Pool { head, rest })
    }

    pub(crate) fn pool(&self, capability: u32) -> Pool<'_> {
        Pool {
            head: &self.heads()[capability as usize],
            rest: &self.rests()[capability as usize],
        }
    }

    pub(crate) fn blocks<'p>(&self, head: &'p PoolHead) -> &'p [Block] {
        // SAFETY: as in `lines`; `head` borrows `self` too.
        unsafe { head.blocks().owned() }
    }

    pub(crate) fn entry<'p>(&self, head: &'p PoolHead, at: u32) -> &'p AtomicU64 {
        &self.blocks(head)[(at / LANES) as usize].0[(at % LANES) as usize]
    }

    fn signature_cells<'p>(&self, pool: Pool<'p>) -> &'p [AtomicU64] {
        // SAFETY: as in `blocks`.
        unsafe { pool.signatures().owned() }
    }

    pub(crate) fn signature_cell<'p>(&self, pool: Pool<'p>, at: u32) -> &'p AtomicU64 {
        &self.signature_cells(pool)[at as usize]
    }

    pub(crate) fn extra(&self) -> &[AtomicU64] {
        // SAFETY: as in `lines`.
        unsafe { self.store.extra.owned() }
    }

    pub(crate) fn id(&self, slot: u32) -> Id {
        // SAFETY: as in `lines`.
        let ids = unsafe { self.store.ids.owned() };
        ids[slot as usize].load()
    }

    pub(crate) fn version(&self, slot: u32) -> &AtomicU64 {
        // SAFETY: as in `lines`.
        let versions: &[AtomicU64] = unsafe { self.store.versions.owned() };
        &versions[slot as usize]
    }

    pub(crate) fn word(&self, slot: u32, k: usize) -> &AtomicU64 {
        let line = self.line(slot);
        line.word(k, line.head().held as usize, self.extra())
            .expect("the writer's words are in range")
    }

    pub(crate) fn held(&self, slot: u32) -> impl Iterator<Item = u32> + '_ {
        let held = self.line(slot).head().held as usize;
        (0..held).map(move |k| (self.word(slot, k).load(Ordering::Relaxed) >> 32) as u32)
    }

    pub(crate) fn find(&self, id: &Id) -> Option<u32> {
        self.writer.index.find(id, |slot| self.id(slot))
    }

    pub(crate) fn is_present(&self, slot: u32) -> bool {
        self.lines()
            .get(slot as usize)
            .is_some_and(|line| line.head().flags & PRESENT != 0)
    }

    fn check(&self, slot: u32) -> Result<(), RegistryError> {
        if self.is_present(slot) {
            Ok(())
        } else {
            Err(RegistryError::UnknownSlot(slot))
        }
    }

    /// Gives every known name a pool, and lets readers see it.
    pub(crate) fn publish_vocabulary(&mut self) {
        let known = self.writer.vocabulary.len() as u32;
        let store = self.store;
        // Each array rounds its capacity up in its own way.
        let have = store.heads.capacity().min(store.rests.capacity());
        if known > have {
            let capacity = next_capacity(known.max(16), have);
            store.rests.grow(capacity, &mut self.writer.garbage);
            store.heads.grow(capacity, &mut self.writer.garbage);
        }
        store.known.store(known, Ordering::Release);
        self.writer.garbage.collect(&store.domain);
    }

    /// The capabilities with their parents, each once.
    pub(crate) fn closure(&self, capabilities: &[u32], out: &mut Vec<u32>) -> Result<(), RegistryError> {
        out.clear();
        for &capability in capabilities {
            if capability as usize >= self.writer.vocabulary.len() {
                return Err(RegistryError::UnknownCapability(capability));
            }
            let mut next = capability;
            while next != NONE && !out.contains(&next) {
                out.push(next);
                if out.len() > MAX_HELD {
                    return Err(RegistryError::TooManyCapabilities {
                        have: capabilities.len(),
                        max: MAX_HELD,
                    });
                }
                next = self.writer.vocabulary.parent(next);
            }
        }
        Ok(())
    }

    pub(crate) fn announce(&mut self, a: &Announcement<'_>) -> Result<Placed, RegistryError> {
        let mut held = Vec::with_capacity(16);
        self.closure(a.capabilities, &mut held)?;
        self.place(a, &held, self.find(&a.id))
    }

    /// Takes an announcement in whose capabilities are complete and whose slot, if it has one, is `known`.
    pub(crate) fn place(
        &mut self,
        a: &Announcement<'_>,
        held: &[u32],
        known: Option<u32>,
    ) -> Result<Placed, RegistryError> {
        if let Some(slot) = known {
            let last = self.version(slot).load(Ordering::Relaxed);
            let version = a.version.unwrap_or(last.saturating_add(1));
            if version <= last {
                return Ok(Placed {
                    slot,
                    accepted: false,
                });
            }
        }
        let slot = match known {
            Some(slot) => slot,
            None => self.take_slot(&a.id)?,
        };
        let last = if known.is_some() {
            self.version(slot).load(Ordering::Relaxed)
        } else {
            0
        };
        let version = a.version.unwrap_or(last.saturating_add(1));
        self.version(slot).store(version, Ordering::Relaxed);
        let mut flags = ALIVE | PRESENT;
        let before = self.line(slot).head();
        if before.flags & PRESENT != 0 {
            flags |= before.flags & (TRUSTED | DRAINING);
        } else {
            if self.config.trust_by_default {
                flags |= TRUSTED;
            }
            if known.is_some() {
                self.writer.buried -= 1;
            }
            self.store.present.fetch_add(1, Ordering::Relaxed);
        }
        let same = before.flags & PRESENT != 0
            && eligible(before.flags) == eligible(flags)
            && before.held as usize == held.len()
            && self.held(slot).eq(held.iter().copied());
        if same {
            // The usual renewal: nothing moves, only numbers change.
            self.line(slot).set_head(Head {
                domain: a.domain,
                flags,
                ..before
            });
            self.update(slot, |attributes| *attributes = a.attributes);
            return Ok(Placed { slot, accepted: true });
        }
        self.rewrite(
            slot,
            Head {
                domain: a.domain,
                flags,
                held: held.len() as u8,
                stamp: 0,
            },
            a.attributes,
            held,
        );
        Ok(Placed { slot, accepted: true })
    }

    /// Replaces head, attributes and postings of a slot in one change.
    fn rewrite(&mut self, slot: u32, head: Head, attributes: Attributes, held: &[u32]) {
        self.make_room(held);
        let change = Change::begin(&self.store.sequence);
        let before = self.line(slot).head();
        self.line(slot).set_head(Head {
            stamp: before.stamp | 1,
            ..before
        });
        fence(Ordering::Release);
        if before.flags & PRESENT != 0 {
            self.unpost(slot);
        }
        self.resize(slot, before.held as usize, held.len());
        let line = self.line(slot);
        line.set_attributes(attributes);
        // The head must be in place before the words: where they are depends on its count.
        let stamp = (before.stamp | 1).wrapping_add(1);
        line.set_head(Head {
            stamp: stamp | 1,
            ..head
        });
        for (k, &capability) in held.iter().enumerate() {
            self.word(slot, k)
                .store(posting(capability, 0), Ordering::Relaxed);
        }
        self.post(slot);
        self.line(slot).set_head(Head { stamp, ..head });
        drop(change);
        self.promote(held);
        self.writer.garbage.collect(&self.store.domain);
    }

    pub(crate) fn withdraw(&mut self, id: &Id, version: Option<u64>) -> Result<bool, RegistryError> {
        let Some(slot) = self.find(id) else {
            let Some(version) = version else {
                return Err(RegistryError::UnknownAgent(*id));
            };
            let slot = self.take_slot(id)?;
            self.version(slot).store(version, Ordering::Relaxed);
            self.bury(slot);
            return Ok(false);
        };
        let present = self.is_present(slot);
        let last = self.version(slot).load(Ordering::Relaxed);
        let version = match version {
            None if !present => return Err(RegistryError::UnknownAgent(*id)),
            None => last,
            Some(version) => version,
        };
        if version < last {
            return Ok(false);
        }
        self.version(slot).store(version, Ordering::Relaxed);
        if !present {
            return Ok(false);
        }
        let before = self.line(slot).head();
        {
            let _change = Change::begin(&self.store.sequence);
            self.line(slot).set_head(Head {
                stamp: before.stamp | 1,
                ..before
            });
            fence(Ordering::Release);
            self.unpost(slot);
            self.resize(slot, before.held as usize, 0);
            self.line(slot).set_head(Head {
                flags: 0,
                held: 0,
                stamp: (before.stamp | 1).wrapping_add(1),
                domain: 0,
            });
        }
        self.store.present.fetch_sub(1, Ordering::Relaxed);
        self.bury(slot);
        Ok(true)
    }

    /// Keeps a withdrawn slot as tombstone, and forgets the oldest ones beyond the bound.
    fn bury(&mut self, slot: u32) {
        let stamp = self.line(slot).head().stamp;
        self.writer.tombstones.push_back((slot, stamp));
        self.writer.buried += 1;
        let bound = MIN_TOMBSTONES.max(self.store.present.load(Ordering::Relaxed) as usize / 4);
        // Entries of agents that came back are stale and only skipped; count those too, or the queue would grow.
        while self.writer.buried > bound || self.writer.tombstones.len() > 2 * bound {
            let Some((slot, stamp)) = self.writer.tombstones.pop_front() else {
                break;
            };
            let head = self.line(slot).head();
            if head.flags & PRESENT == 0 && head.stamp == stamp {
                let id = self.id(slot);
                let store = self.store;
                // SAFETY: the lock is held; `ids` is not grown while the slice lives.
                let ids = unsafe { store.ids.owned() };
                self.writer.index.remove(&id, |s| ids[s as usize].load());
                self.writer.free.push(slot);
                self.writer.buried -= 1;
            }
        }
    }

    /// A slot for a new id, entered in the index.
    pub(crate) fn take_slot(&mut self, id: &Id) -> Result<u32, RegistryError> {
        let store = self.store;
        let slot = if let Some(slot) = self.writer.free.pop() {
            let reuses = store.reuses.load(Ordering::Relaxed).wrapping_add(1);
            // SAFETY: the lock is held; nothing grows here.
            let born = unsafe { store.born.owned() };
            born[slot as usize].store(reuses, Ordering::Relaxed);
            fence(Ordering::Release);
            store.reuses.store(reuses, Ordering::Release);
            slot
        } else {
            let slot = store.slots.load(Ordering::Relaxed);
            if slot >= u32::MAX - 1 {
                return Err(RegistryError::Full);
            }
            self.reserve_slots(1);
            store.slots.store(slot + 1, Ordering::Release);
            slot
        };
        // SAFETY: the lock is held; nothing grows below.
        let ids = unsafe { store.ids.owned() };
        ids[slot as usize].store(id);
        self.version(slot).store(0, Ordering::Relaxed);
        self.writer.index.insert(id, slot, |s| ids[s as usize].load());
        Ok(slot)
    }

    /// Makes room for `more` new slots.
    pub(crate) fn reserve_slots(&mut self, more: u32) {
        let needed = self.store.slots.load(Ordering::Relaxed).saturating_add(more);
        let have = self.store.lines.capacity();
        if needed <= have {
            return;
        }
        let capacity = next_capacity(needed.max(64), have);
        let (store, garbage) = (self.store, &mut self.writer.garbage);
        store.lines.grow(capacity, garbage);
        let capacity = store.lines.capacity();
        store.ids.grow(capacity, garbage);
        store.versions.grow(capacity, garbage);
        store.born.grow(capacity, garbage);
    }

    /// Makes room for one more entry in each pool.
    fn make_room(&mut self, held: &[u32]) {
        for &capability in held {
            let len = self.pool(capability).len();
            self.reserve_entries(capability, len + 1);
        }
    }

    /// Makes room for so many entries in a pool: just as many if that is much more than it has.
    pub(crate) fn reserve_entries(&mut self, capability: u32, entries: u32) {
        let store = self.store;
        // SAFETY: the lock is held, and neither array is grown while the references live.
        let (heads, rests) = unsafe { (store.heads.owned(), store.rests.owned()) };
        let (head, rest): (&PoolHead, &PoolRest) = (&heads[capability as usize], &rests[capability as usize]);
        let needed = entries.div_ceil(LANES);
        let have = head.blocks().capacity();
        if needed <= have {
            return;
        }
        let blocks = next_capacity(needed, have);
        head.blocks().grow(blocks, &mut self.writer.garbage);
        if self.config.signatures {
            rest.signatures().grow(blocks * LANES, &mut self.writer.garbage);
        }
    }

    /// Moves a slot's overflow words to a piece that fits its new number of postings.
    pub(crate) fn resize(&mut self, slot: u32, old: usize, new: usize) {
        let class = |words: usize| words.next_power_of_two().trailing_zeros() as usize;
        let (before, after) = (Line::overflowing(old), Line::overflowing(new));
        if before > 0 {
            let base = self.line(slot).overflow();
            self.writer.pieces[class(before)].push(base);
        }
        if after == 0 {
            return;
        }
        let class = class(after);
        let base = if let Some(base) = self.writer.pieces[class].pop() {
            base
        } else {
            let base = self.writer.extra_used;
            self.writer.extra_used += 1 << class;
            self.reserve_extra(0);
            base
        };
        self.line(slot).set_overflow(base);
    }

    /// Makes room for so many more overflow words than are used.
    pub(crate) fn reserve_extra(&mut self, words: u32) {
        let needed = self.writer.extra_used + words;
        let have = self.store.extra.capacity();
        if needed > have {
            let capacity = next_capacity(needed.max(64), have);
            self.store.extra.grow(capacity, &mut self.writer.garbage);
        }
    }

    /// Signature of a slot: the bits of all its capabilities.
    pub(crate) fn signature(&self, slot: u32) -> u64 {
        self.held(slot)
            .map(|c| self.pool(c).signature_bits())
            .fold(0, |a, b| a | b)
    }

    /// Puts the slot's entries into its pools.
    fn post(&mut self, slot: u32) {
        let line = self.line(slot);
        let head = line.head();
        let word = entry(line.attributes().score(), head.domain, slot);
        let ready = eligible(head.flags);
        let mut signature = 0;
        for capability in self.held(slot) {
            let pool = self.pool(capability);
            if pool.signature_bits() == 0 {
                pool.set_bits(shared_bits(capability));
            }
            signature |= pool.signature_bits();
        }
        for k in 0..head.held as usize {
            let place = self.word(slot, k);
            let capability = (place.load(Ordering::Relaxed) >> 32) as u32;
            let pool = self.pool(capability);
            let (live, len) = (pool.live(), pool.len());
            let mut gap = len;
            if ready {
                let to = self.spread(slot, capability, live);
                self.relocate(pool, capability, live, gap);
                self.relocate(pool, capability, to, live);
                gap = to;
            }
            self.entry(pool.head, gap).store(word, Ordering::Relaxed);
            if self.config.signatures {
                self.signature_cell(pool, gap).store(signature, Ordering::Relaxed);
            }
            place.store(posting(capability, gap), Ordering::Relaxed);
            pool.set_len(len + 1);
            if ready {
                pool.set_live(live + 1);
            }
        }
    }

    /// Where among `live` eligible entries a new one goes: a place near the end that looks random but depends on
    /// slot and capability only.
    ///
    /// Near the end, because that is what changes touch anyway, so it is in the cache; random, because a burst of
    /// similar agents must not share a block; and known beforehand, so that it can be asked for.
    fn spread(&self, slot: u32, capability: u32, live: u32) -> u32 {
        let key = u64::from(slot) << 32 | u64::from(capability);
        let draw = mix(key ^ self.config.seed, 0x9E37_79B9_7F4A_7C15) as u32;
        if live < SPREAD {
            return ((u64::from(draw) * u64::from(live + 1)) >> 32) as u32;
        }
        // The last place of its residue class: the same even if the pool changes a little meanwhile.
        live - (live.wrapping_sub(draw) & (SPREAD - 1))
    }

    /// Takes the slot's entries out of its pools.
    fn unpost(&mut self, slot: u32) {
        let head = self.line(slot).head();
        let ready = eligible(head.flags);
        for k in 0..head.held as usize {
            let place = self.word(slot, k).load(Ordering::Relaxed);
            let (capability, mut gap) = ((place >> 32) as u32, place as u32);
            let pool = self.pool(capability);
            if ready {
                let live = pool.live() - 1;
                self.relocate(pool, capability, live, gap);
                pool.set_live(live);
                gap = live;
            }
            let last = pool.len() - 1;
            self.relocate(pool, capability, last, gap);
            pool.set_len(last);
        }
    }

    /// Moves the entry at `from`, if there is one, to the free place `to`.
    fn relocate(&self, pool: Pool<'_>, capability: u32, from: u32, to: u32) {
        if from == to {
            return;
        }
        let word = self.entry(pool.head, from).load(Ordering::Relaxed);
        self.entry(pool.head, to).store(word, Ordering::Relaxed);
        if self.config.signatures {
            let signature = self.signature_cell(pool, from).load(Ordering::Relaxed);
            self.signature_cell(pool, to).store(signature, Ordering::Relaxed);
        }
        self.moved(entry_slot(word), capability, to);
    }

    /// Exchanges two entries of a pool and corrects both agents' positions.
    fn swap(&self, capability: u32, i: u32, j: u32) {
        if i == j {
            return;
        }
        let pool = self.pool(capability);
        let (a, b) = (self.entry(pool.head, i), self.entry(pool.head, j));
        let (at_i, at_j) = (a.load(Ordering::Relaxed), b.load(Ordering::Relaxed));
        a.store(at_j, Ordering::Relaxed);
        b.store(at_i, Ordering::Relaxed);
        if self.config.signatures {
            let (a, b) = (self.signature_cell(pool, i), self.signature_cell(pool, j));
            let at_i = a.load(Ordering::Relaxed);
            a.store(b.load(Ordering::Relaxed), Ordering::Relaxed);
            b.store(at_i, Ordering::Relaxed);
        }
        self.moved(entry_slot(at_i), capability, j);
        self.moved(entry_slot(at_j), capability, i);
    }

    /// Notes that the slot's entry for `capability` is at `to` now.
    pub(crate) fn moved(&self, slot: u32, capability: u32, to: u32) {
        let held = self.line(slot).head().held as usize;
        for k in 0..held {
            let word = self.word(slot, k);
            if (word.load(Ordering::Relaxed) >> 32) as u32 == capability {
                word.store(posting(capability, to), Ordering::Relaxed);
                return;
            }
        }
    }

    pub(crate) fn set_flags(&mut self, slot: u32, flags: u8, on: bool) {
        let head = self.line(slot).head();
        let flags = if on {
            head.flags | flags
        } else {
            head.flags & !flags
        };
        let (was, is) = (eligible(head.flags), eligible(flags));
        if flags == head.flags {
            return;
        }
        if was == is {
            self.line(slot).set_head(Head { flags, ..head });
            return;
        }
        let _change = Change::begin(&self.store.sequence);
        self.line(slot).set_head(Head { flags, ..head });
        for k in 0..head.held as usize {
            let place = self.word(slot, k).load(Ordering::Relaxed);
            let (capability, at) = ((place >> 32) as u32, place as u32);
            let pool = self.pool(capability);
            let live = pool.live();
            if was {
                self.swap(capability, at, live - 1);
                pool.set_live(live - 1);
            } else {
                self.swap(capability, at, live);
                pool.set_live(live + 1);
            }
        }
    }

    fn update(&self, slot: u32, change: impl FnOnce(&mut Attributes)) {
        let line = self.line(slot);
        let mut attributes = line.attributes();
        change(&mut attributes);
        line.set_attributes(attributes);
        let head = line.head();
        let word = entry(attributes.score(), head.domain, slot);
        let held = head.held as usize;
        let (extra, heads) = (self.extra(), self.heads());
        for k in 0..held {
            if let Some(place) = line.word(k, held, extra) {
                let place = place.load(Ordering::Relaxed);
                let head = &heads[(place >> 32) as usize];
                self.entry(head, place as u32).store(word, Ordering::Relaxed);
            }
        }
    }

    /// Asks for the slot's entries.
    pub(crate) fn prefetch_postings(&self, slot: u32) {
        self.each_posting(slot, |pool, at| self.prefetch_entry(pool, at, false));
    }

    /// Asks for what is read when the slot's entries change places: they, and the ends of both parts of their pools.
    pub(crate) fn prefetch_moves(&self, slot: u32) {
        let signatures = self.config.signatures;
        self.each_posting(slot, |pool, at| {
            self.prefetch_entry(pool, at, signatures);
            self.prefetch_entry(pool, pool.live().saturating_sub(1), signatures);
            self.prefetch_entry(pool, pool.len().saturating_sub(1), signatures);
        });
    }

    /// Asks for the lines of the agents whose entries make way then.
    pub(crate) fn prefetch_movers(&self, slot: u32) {
        self.each_posting(slot, |pool, _| {
            let live = pool.live();
            self.prefetch_agent(pool, live.wrapping_sub(1));
            self.prefetch_agent(pool, live);
            self.prefetch_agent(pool, pool.len().wrapping_sub(1));
        });
    }

    /// The same for the pools that the slot is about to enter.
    pub(crate) fn prefetch_entries_of(&self, slot: u32, next: &[u32]) {
        let signatures = self.config.signatures;
        for &capability in next {
            let pool = self.pool(capability);
            let live = pool.live();
            self.prefetch_entry(pool, self.spread(slot, capability, live), signatures);
            self.prefetch_entry(pool, live, signatures);
            self.prefetch_entry(pool, pool.len(), signatures);
        }
    }

    /// The lines of the agents that make way there.
    pub(crate) fn prefetch_displaced(&self, slot: u32, next: &[u32]) {
        for &capability in next {
            let pool = self.pool(capability);
            let live = pool.live();
            self.prefetch_agent(pool, self.spread(slot, capability, live));
            self.prefetch_agent(pool, live);
        }
    }

    #[inline]
    fn each_posting(&self, slot: u32, ask: impl Fn(Pool<'_>, u32)) {
        let line = self.line(slot);
        let held = line.head().held as usize;
        let (extra, heads, rests) = (self.extra(), self.heads(), self.rests());
        for k in 0..held {
            if let Some(place) = line.word(k, held, extra) {
                let place = place.load(Ordering::Relaxed);
                let capability = (place >> 32) as usize;
                if let (Some(head), Some(rest)) = (heads.get(capability), rests.get(capability)) {
                    ask(Pool { head, rest }, place as u32);
                }
            }
        }
    }

    #[inline]
    fn prefetch_entry(&self, pool: Pool<'_>, at: u32, signature: bool) {
        prefetch(
            self.blocks(pool.head)
                .as_ptr()
                .wrapping_add((at / LANES) as usize),
        );
        if signature {
            prefetch(self.signature_cells(pool).as_ptr().wrapping_add(at as usize));
        }
    }

    #[inline]
    fn prefetch_agent(&self, pool: Pool<'_>, at: u32) {
        if at < pool.len() {
            prefetch(self.line(entry_slot(self.entry(pool.head, at).load(Ordering::Relaxed))));
        }
    }

    /// Gives an empty pool that is about to get `agents` a signature bit of its own. False when none is left or the
    /// pool is too small to deserve one.
    pub(crate) fn take_exact_bit(&mut self, agents: u32, capability: u32) -> bool {
        if agents < PROMOTE_AT || self.writer.exact_bits == EXACT_BITS {
            return false;
        }
        self.pool(capability).set_bits(1 << self.writer.exact_bits);
        self.writer.exact_bits += 1;
        true
    }

    /// Gives pools that have grown large enough a signature bit of their own.
    pub(crate) fn promote(&mut self, held: &[u32]) {
        if !self.config.signatures || self.writer.exact_bits == EXACT_BITS {
            return;
        }
        for &capability in held {
            let pool = self.pool(capability);
            if pool.len() < PROMOTE_AT || pool.signature_bits().count_ones() == 1 {
                continue;
            }
            pool.set_bits(1 << self.writer.exact_bits);
            // Until every copy is rewritten a reader may overlook a holder: signatures are only hints.
            for i in 0..pool.len() {
                let slot = entry_slot(self.entry(pool.head, i).load(Ordering::Relaxed));
                let signature = self.signature(slot);
                for k in 0..self.line(slot).head().held as usize {
                    let place = self.word(slot, k).load(Ordering::Relaxed);
                    let pool = self.pool((place >> 32) as u32);
                    self.signature_cell(pool, place as u32)
                        .store(signature, Ordering::Relaxed);
                }
            }
            self.writer.exact_bits += 1;
            if self.writer.exact_bits == EXACT_BITS {
                return;
            }
        }
    }
}

/// The two signature bits that a capability shares with others.
pub(crate) fn shared_bits(capability: u32) -> u64 {
    let draw = capability.wrapping_mul(0x9E37_79B1) >> 16;
    let first = draw % SHARED_BITS;
    let second = (first + 1 + draw / SHARED_BITS % (SHARED_BITS - 1)) % SHARED_BITS;
    (1 << first | 1 << second) << EXACT_BITS
}
