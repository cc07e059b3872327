//! What readers see: agent lines, capability pools and their signatures, all of atomics.
//!
//! Protocol. One writer at a time (the lock in `registry`) changes the store; readers take no lock.
//! * Every word is atomic, so a race reads an old or a new word, never a torn one.
//! * Load updates only overwrite the score bits of entries: no reader can see an inconsistency in that.
//! * Changes of membership (announce, withdraw, flips) make `sequence` odd while they last. A reader that saw an
//!   even, unchanged number around its work saw one consistent state; otherwise it checks every agent it chose
//!   on the agent's own line ([`View::holds`]) and starts again if one fails.
//! * Arrays that outgrow their room are replaced and freed when no reader can hold them (`rcu`).
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::hint::prefetch;
use crate::rcu::{Domain, Element, Guard, RcuArray};
use crate::score::score;

/// The agent answers.
pub const ALIVE: u8 = 1;
/// This viewer trusts the agent.
pub const TRUSTED: u8 = 2;
/// The agent takes no new tasks.
pub const DRAINING: u8 = 4;
/// The slot holds a registered agent.
pub(crate) const PRESENT: u8 = 8;

const ELIGIBLE: u8 = ALIVE | TRUSTED | PRESENT;

/// Whether an agent with these flags may be chosen.
#[inline]
pub(crate) fn eligible(flags: u8) -> bool {
    flags & (ELIGIBLE | DRAINING) == ELIGIBLE
}

/// Postings in a block: one cache line.
pub(crate) const LANES: u32 = 8;
/// Capability words in the agent line itself.
const INLINE: usize = 6;

/// The numbers of an agent that its line keeps, in the line's own codes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Attributes {
    /// Tasks queued or running at the agent.
    pub load: u16,
    /// Expected service time, see [`service_code`](crate::score::service_code).
    pub service: u16,
    /// Price of a task in the caller's unit.
    pub cost: u16,
    /// Round-trip time, see [`rtt_code`](crate::score::rtt_code).
    pub rtt: u8,
    /// Tasks the agent works on at the same time; 0 counts as 1.
    pub concurrency: u8,
}

impl Attributes {
    fn pack(self) -> u64 {
        u64::from(self.load)
            | u64::from(self.service) << 16
            | u64::from(self.cost) << 32
            | u64::from(self.rtt) << 48
            | u64::from(self.concurrency) << 56
    }

    fn unpack(word: u64) -> Self {
        Self {
            load: word as u16,
            service: (word >> 16) as u16,
            cost: (word >> 32) as u16,
            rtt: (word >> 48) as u8,
            concurrency: (word >> 56) as u8,
        }
    }

    /// The 16 bits by which candidates are ordered.
    #[must_use]
    pub fn score(self) -> u16 {
        score(self.load, self.service, self.rtt, self.concurrency)
    }
}

/// Identity word of a line: who may choose the agent, and how many postings it has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) domain: u16,
    pub(crate) flags: u8,
    pub(crate) held: u8,
    /// Odd while the line is being rewritten.
    pub(crate) stamp: u32,
}

impl Head {
    fn pack(self) -> u64 {
        u64::from(self.domain)
            | u64::from(self.flags) << 16
            | u64::from(self.held) << 24
            | u64::from(self.stamp) << 32
    }

    fn unpack(word: u64) -> Self {
        Self {
            domain: word as u16,
            flags: (word >> 16) as u8,
            held: (word >> 24) as u8,
            stamp: (word >> 32) as u32,
        }
    }
}

/// One agent in one cache line: attributes, head, then six words of (capability, position in its pool). An
/// agent with more keeps five here and the rest in the overflow array, to which the last word points.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line([AtomicU64; 8]);

// SAFETY: atomics; zero bytes are a valid, absent agent.
unsafe impl Element for Line {
    fn relocate(&self) -> Self {
        Self(std::array::from_fn(|k| self.0[k].relocate()))
    }
}

impl Line {
    #[inline]
    pub(crate) fn attributes(&self) -> Attributes {
        Attributes::unpack(self.0[0].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_attributes(&self, attributes: Attributes) {
        self.0[0].store(attributes.pack(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn head(&self) -> Head {
        Head::unpack(self.0[1].load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn set_head(&self, head: Head) {
        self.0[1].store(head.pack(), Ordering::Release);
    }

    /// The word of posting `k` of `held`, in the line or in `extra`. Out of range only in a race.
    #[inline]
    pub(crate) fn word<'t>(&'t self, k: usize, held: usize, extra: &'t [AtomicU64]) -> Option<&'t AtomicU64> {
        if k < INLINE - 1 || (k == INLINE - 1 && held <= INLINE) {
            return Some(&self.0[2 + k]);
        }
        let base = self.overflow() as usize;
        extra.get(base + (k - (INLINE - 1)))
    }

    /// Where the overflow of an agent with more than six postings begins.
    #[inline]
    pub(crate) fn overflow(&self) -> u32 {
        self.0[7].load(Ordering::Relaxed) as u32
    }

    pub(crate) fn set_overflow(&self, base: u32) {
        self.0[7].store(u64::from(base), Ordering::Relaxed);
    }

    /// Number of overflow words for an agent with `held` postings.
    pub(crate) fn overflowing(held: usize) -> usize {
        if held > INLINE { held - (INLINE - 1) } else { 0 }
    }
}

/// A posting word: capability in the upper half, position in the lower.
#[inline]
pub(crate) fn posting(capability: u32, position: u32) -> u64 {
    u64::from(capability) << 32 | u64::from(position)
}

/// An entry of a pool: score on top so that the smallest word is the best candidate, then the low bits of the
/// domain, eight free bits, and the slot.
#[inline]
pub(crate) fn entry(score: u16, domain: u16, slot: u32) -> u64 {
    u64::from(score) << 48 | u64::from(domain & 0xFF) << 40 | u64::from(slot)
}

/// The slot of an entry.
#[inline]
pub(crate) fn entry_slot(entry: u64) -> u32 {
    entry as u32
}

/// The score of an entry.
#[inline]
pub(crate) fn entry_score(entry: u64) -> u16 {
    (entry >> 48) as u16
}

/// Eight entries in one cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Block(pub(crate) [AtomicU64; LANES as usize]);

// SAFETY: atomics; zero bytes are valid entries, which nobody reads before they are written.
unsafe impl Element for Block {
    fn relocate(&self) -> Self {
        Self(std::array::from_fn(|k| self.0[k].relocate()))
    }
}

// SAFETY: zero is a valid value; nothing to drop.
unsafe impl Element for AtomicU64 {
    fn relocate(&self) -> Self {
        Self::new(self.load(Ordering::Relaxed))
    }
}

// SAFETY: zero is a valid value; nothing to drop.
unsafe impl Element for AtomicU32 {
    fn relocate(&self) -> Self {
        Self::new(self.load(Ordering::Relaxed))
    }
}

/// A public key.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct IdCell([AtomicU64; 4]);

// SAFETY: atomics; zero bytes are a valid id.
unsafe impl Element for IdCell {
    fn relocate(&self) -> Self {
        Self(std::array::from_fn(|k| self.0[k].relocate()))
    }
}

impl IdCell {
    pub(crate) fn load(&self) -> [u8; 32] {
        let mut id = [0u8; 32];
        for (word, bytes) in self.0.iter().zip(id.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        id
    }

    pub(crate) fn store(&self, id: &[u8; 32]) {
        for (word, bytes) in self.0.iter().zip(id.chunks_exact(8)) {
            word.store(
                u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
                Ordering::Relaxed,
            );
        }
    }
}

/// The part of a pool that every assembly reads: its entries, of which `[0, live)` may be chosen.
///
/// Four to a cache line: a block can only be asked for when its head has come, and the heads of ten thousand
/// capabilities have room in the second-level cache. (Against heads of a line each no gain could be shown on a machine
/// whose speed changes by a third between minutes.)
#[derive(Debug, Default)]
#[repr(C, align(16))]
pub(crate) struct PoolHead {
    blocks: RcuArray<Block>,
}

const _: () = assert!(size_of::<PoolHead>() == 16);

// SAFETY: a null pointer and zero counts are an empty pool. The relocated original gives its array to the copy and is
// not dropped.
unsafe impl Element for PoolHead {
    fn relocate(&self) -> Self {
        Self {
            blocks: self.blocks.duplicate(),
        }
    }
}

impl PoolHead {
    #[inline]
    pub(crate) fn live(&self) -> u32 {
        self.blocks.count.load(Ordering::Acquire)
    }

    pub(crate) fn blocks(&self) -> &RcuArray<Block> {
        &self.blocks
    }
}

/// The rest of a pool.
#[derive(Debug, Default)]
pub(crate) struct PoolRest {
    signatures: RcuArray<AtomicU64>,
    /// Bits of this capability in signatures; 0 before the first agent.
    bits: AtomicU64,
}

// SAFETY: as for `PoolHead`.
unsafe impl Element for PoolRest {
    fn relocate(&self) -> Self {
        Self {
            signatures: self.signatures.duplicate(),
            bits: self.bits.relocate(),
        }
    }
}

impl PoolRest {
    pub(crate) fn signatures(&self) -> &RcuArray<AtomicU64> {
        &self.signatures
    }
}

/// The agents of one capability: entries `[0, live)` may be chosen, `[live, len)` may not now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'p> {
    pub(crate) head: &'p PoolHead,
    pub(crate) rest: &'p PoolRest,
}

impl<'p> Pool<'p> {
    #[inline]
    pub(crate) fn live(self) -> u32 {
        self.head.live()
    }

    pub(crate) fn set_live(self, live: u32) {
        self.head.blocks.count.store(live, Ordering::Release);
    }

    pub(crate) fn len(self) -> u32 {
        self.rest.signatures.count.load(Ordering::Relaxed)
    }

    pub(crate) fn set_len(self, len: u32) {
        self.rest.signatures.count.store(len, Ordering::Relaxed);
    }

    pub(crate) fn signatures(self) -> &'p RcuArray<AtomicU64> {
        self.rest.signatures()
    }

    /// This capability's bits in signatures: one of its own, or two that it shares. 0 before the first agent.
    #[inline]
    pub(crate) fn signature_bits(self) -> u64 {
        self.rest.bits.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bits(self, bits: u64) {
        self.rest.bits.store(bits, Ordering::Relaxed);
    }
}

/// Everything readers reach.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) domain: Domain,
    pub(crate) sequence: AtomicU64,
    /// One element a capability in both. `rests` grows first: a capability with a head has the rest too.
    pub(crate) heads: RcuArray<PoolHead>,
    pub(crate) rests: RcuArray<PoolRest>,
    /// Handles given out so far.
    pub(crate) known: AtomicU32,
    pub(crate) lines: RcuArray<Line>,
    pub(crate) extra: RcuArray<AtomicU64>,
    pub(crate) ids: RcuArray<IdCell>,
    pub(crate) versions: RcuArray<AtomicU64>,
    /// Number of slot reuses when the slot got its present id.
    pub(crate) born: RcuArray<AtomicU32>,
    pub(crate) reuses: AtomicU32,
    /// Slots used so far, present or not.
    pub(crate) slots: AtomicU32,
    /// Registered agents.
    pub(crate) present: AtomicU32,
}

impl Store {
    pub(crate) fn view(&self) -> View<'_> {
        View {
            store: self,
            guard: self.domain.enter(),
        }
    }
}

/// A read section over the store.
#[derive(Debug)]
pub(crate) struct View<'s> {
    pub(crate) store: &'s Store,
    guard: Guard<'s>,
}

static EMPTY_HEAD: PoolHead = PoolHead {
    blocks: RcuArray::EMPTY,
};
static EMPTY_REST: PoolRest = PoolRest {
    signatures: RcuArray::EMPTY,
    bits: AtomicU64::new(0),
};

impl View<'_> {
    /// The pool of a capability; an empty one for a handle without agents.
    #[inline]
    pub(crate) fn pool(&self, capability: u32) -> Pool<'_> {
        let (heads, rests) = (self.heads(), self.store.rests.get(&self.guard));
        match (heads.get(capability as usize), rests.get(capability as usize)) {
            (Some(head), Some(rest)) => Pool { head, rest },
            _ => Pool {
                head: &EMPTY_HEAD,
                rest: &EMPTY_REST,
            },
        }
    }

    #[inline]
    pub(crate) fn heads(&self) -> &[PoolHead] {
        self.store.heads.get(&self.guard)
    }

    #[inline]
    pub(crate) fn blocks(&self, head: &PoolHead) -> &[Block] {
        head.blocks.get(&self.guard)
    }

    #[inline]
    pub(crate) fn signatures(&self, pool: Pool<'_>) -> &[AtomicU64] {
        pool.rest.signatures.get(&self.guard)
    }

    #[inline]
    pub(crate) fn lines(&self) -> &[Line] {
        self.store.lines.get(&self.guard)
    }

    #[inline]
    pub(crate) fn extra(&self) -> &[AtomicU64] {
        self.store.extra.get(&self.guard)
    }

    pub(crate) fn ids(&self) -> &[IdCell] {
        self.store.ids.get(&self.guard)
    }

    pub(crate) fn born(&self) -> &[AtomicU32] {
        self.store.born.get(&self.guard)
    }

    /// Asks for the line of a slot.
    #[inline]
    pub(crate) fn prefetch_line(&self, slot: u32) {
        prefetch(self.lines().as_ptr().wrapping_add(slot as usize));
    }

    /// Asks for the words that the line of a slot, which must be there already, has no room for.
    #[inline]
    pub(crate) fn prefetch_overflow(&self, slot: u32) {
        if let Some(line) = self.lines().get(slot as usize)
            && Line::overflowing(line.head().held as usize) > 0
        {
            prefetch(self.extra().as_ptr().wrapping_add(line.overflow() as usize));
        }
    }

    /// Calls `found` with each capability of a slot.
    #[inline]
    pub(crate) fn capabilities(&self, slot: u32, mut found: impl FnMut(u32)) {
        let Some(line) = self.lines().get(slot as usize) else {
            return;
        };
        let held = line.head().held as usize;
        let extra = self.extra();
        for k in 0..held {
            if let Some(word) = line.word(k, held, extra) {
                found((word.load(Ordering::Relaxed) >> 32) as u32);
            }
        }
    }

    /// Whether the slot holds an eligible agent with one of `capabilities`, read without a race.
    pub(crate) fn holds(&self, slot: u32, capabilities: &[u32]) -> bool {
        let Some(line) = self.lines().get(slot as usize) else {
            return false;
        };
        for _ in 0..8 {
            let head = line.head();
            if head.stamp & 1 == 1 {
                std::hint::spin_loop();
                continue;
            }
            let mut has = false;
            self.capabilities(slot, |c| has |= capabilities.contains(&c));
            fence(Ordering::Acquire);
            if line.head().stamp == head.stamp {
                return has && eligible(head.flags);
            }
        }
        false
    }

    /// The sequence number to compare with [`unchanged`](Self::unchanged) later.
    #[inline]
    pub(crate) fn sequence(&self) -> u64 {
        self.store.sequence.load(Ordering::Acquire)
    }

    /// Whether no membership change overlapped the work since `sequence` was read.
    #[inline]
    pub(crate) fn unchanged(&self, sequence: u64) -> bool {
        fence(Ordering::Acquire);
        sequence & 1 == 0 && self.store.sequence.load(Ordering::Relaxed) == sequence
    }
}
