//! The vectors: byte codes, sketches, rerank vectors, and what is known about each slot.
//!
//! # Who may touch a slot
//! A slot is written only while no reader can reach it: before the version that shows it is published, or, for a
//! slot used before, after its last reader has left ([`epoch`](super::epoch)). From then on its codes, sketch and
//! rerank vector never change. Stamps, labels and bitmaps are atomics. Ids that reach [`Store::score`] and its
//! like come from links and bitmaps, which are stored with release order after the slot was written.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::error::BrokerError;
use super::kernels::{BLOCK, Block, Kernels, Panel, Query, ROWS, Tail, sketch_stride};
use super::memory::{AtomicSlab, ByteSlab, MAX_SLOTS};
use super::rotate::Rotation;

/// How vectors are compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Metric {
    /// Cosine of the angle; lengths do not matter.
    Cosine,
    /// Inner product; longer vectors score higher.
    InnerProduct,
}

/// What is kept besides the byte codes to order the best candidates exactly.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rerank {
    /// The vector as given (normalised if the metric is cosine): four bytes a component, exact.
    F32,
    /// Rotated, and rounded to eight bits of mantissa: two bytes a component.
    Bf16,
    /// The low byte of a 16-bit fixed-point number whose high byte is the code: one byte a component, and closer
    /// than `Bf16`.
    Int16,
    /// Nothing: scores are those of the codes.
    None,
}

impl Rerank {
    fn tail(self) -> Option<Tail> {
        match self {
            Self::F32 => Some(Tail::F32),
            Self::Bf16 => Some(Tail::Bf16),
            Self::Int16 => Some(Tail::Low),
            Self::None => None,
        }
    }

    pub(super) fn bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => 4 * width,
            Self::Bf16 => 2 * width,
            Self::Int16 => width,
            Self::None => 0,
        }
    }
}

/// Components of a rotated unit vector beyond this many standard deviations are clipped in the codes.
const CLIP: f32 = 4.9;
/// The relative error of a one-bit sketch has this standard deviation, times 1 / sqrt(width): the cosine between
/// a Gaussian vector and its signs is sqrt(2 / pi), hence sqrt(pi / 2 - 1).
const SKETCH_ERROR: f32 = 0.7555;
/// Standard deviations of that error that a candidate gets as a benefit of the doubt.
pub(super) const DOUBT: f32 = 1.1;

const DEAD: usize = 1;
const BORN: usize = 0;
/// The stamp of what has not happened.
pub(super) const NEVER: u64 = u64::MAX;

/// The slots of an index.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) dim: usize,
    /// `dim` rounded up to whole blocks.
    pub(super) width: usize,
    pub(super) metric: Metric,
    pub(super) rerank: Rerank,
    kernels: Kernels,
    rotation: Rotation,
    /// Code units of 1.0 in a rotated unit vector.
    scale: f32,
    codes: ByteSlab,
    sketches: ByteSlab,
    tails: ByteSlab,
    /// Versions at which a slot appears and disappears.
    stamps: AtomicSlab<AtomicU64>,
    labels: AtomicSlab<AtomicU64>,
    /// Slots that hold a vector, live or dead but not yet taken out of the graph: one bit each.
    present: AtomicSlab<AtomicU64>,
    flags: Vec<AtomicSlab<AtomicU64>>,
    /// Slots ever used; slots from here on were never written.
    slots: AtomicU32,
}

/// A float as an integer of the same order; its own inverse.
#[inline(always)]
pub(super) fn ordered(bits: i32) -> i32 {
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

impl Store {
    pub(super) fn new(dim: usize, metric: Metric, rerank: Rerank, flags: usize, kernels: Kernels) -> Self {
        let width = dim.next_multiple_of(BLOCK);
        Self {
            dim,
            width,
            metric,
            rerank,
            kernels,
            rotation: Rotation::new(width),
            scale: 127.0 * (width as f32).sqrt() / CLIP,
            codes: ByteSlab::new(width),
            sketches: ByteSlab::new(sketch_stride(width)),
            tails: ByteSlab::new(rerank.bytes(width)),
            stamps: AtomicSlab::new(2),
            labels: AtomicSlab::new(1),
            present: AtomicSlab::new(1),
            flags: (0..flags).map(|_| AtomicSlab::new(1)).collect(),
            slots: AtomicU32::new(0),
        }
    }

    pub(super) fn kernels(&self) -> &'static str {
        self.kernels.name
    }

    #[inline]
    pub(super) fn slots(&self) -> usize {
        self.slots.load(Ordering::Acquire) as usize
    }

    /// Makes room for slots `[0, slots)` without showing them.
    pub(super) fn ensure(&self, slots: usize) -> Result<(), BrokerError> {
        if slots > MAX_SLOTS {
            return Err(BrokerError::Full { max: MAX_SLOTS });
        }
        self.codes.ensure(slots);
        self.sketches.ensure(slots);
        if self.rerank != Rerank::None {
            self.tails.ensure(slots);
        }
        self.stamps.ensure(slots);
        self.labels.ensure(slots);
        let groups = slots.div_ceil(64);
        self.present.ensure(groups);
        for flag in &self.flags {
            flag.ensure(groups);
        }
        Ok(())
    }

    /// Shows that slots `[0, slots)` may be looked at. They must be written or absent.
    pub(super) fn set_slots(&self, slots: usize) {
        self.slots.store(slots as u32, Ordering::Release);
    }

    // -- vectors

    /// Turns a checked vector into a query.
    pub(super) fn prepare(&self, vector: &[f32], query: &mut Query) {
        let norm = norm(vector);
        let mut unit = vec![0.0f32; self.width];
        for (unit, &x) in unit.iter_mut().zip(vector) {
            *unit = (f64::from(x) / norm) as f32;
        }
        query.exact.clear();
        if self.rerank == Rerank::F32 {
            match self.metric {
                Metric::Cosine => query.exact.extend_from_slice(&unit),
                Metric::InnerProduct => {
                    query.exact.extend_from_slice(vector);
                    query.exact.resize(self.width, 0.0);
                }
            }
        }
        self.rotation.apply(&mut unit);
        if matches!(self.rerank, Rerank::Bf16 | Rerank::Int16) {
            query.exact.extend_from_slice(&unit);
        }
        query.norm = match self.metric {
            Metric::Cosine => 1.0,
            Metric::InnerProduct => norm as f32,
        };
        query.codes.clear();
        query.codes.extend(unit.chunks_exact(BLOCK).map(|part| {
            Block(std::array::from_fn(|at| {
                nearest((part[at] * self.scale).clamp(-127.0, 127.0)) as i8
            }))
        }));
        self.measure(query);
    }

    /// Fills in what follows from the codes.
    fn measure(&self, query: &mut Query) {
        let (mut sum, mut square) = (0i32, 0i32);
        for block in &query.codes {
            for &code in &block.0 {
                sum += i32::from(code);
                square += i32::from(code) * i32::from(code);
            }
        }
        query.sum = sum;
        let length = (square as f32).sqrt();
        query.slack = DOUBT * SKETCH_ERROR / (self.width as f32).sqrt() * length * self.scale;
    }

    /// Takes a stored vector as the query.
    ///
    /// The caller must be allowed to read the slot (module documentation).
    #[inline]
    pub(super) fn recall(&self, slot: u32, query: &mut Query) {
        // SAFETY: the slot is written and reachable, so nobody writes it (module documentation).
        let cell = unsafe { self.codes.read(slot as usize) };
        query.codes.clear();
        query.codes.extend(cell.chunks_exact(BLOCK).map(|part| {
            let mut block = Block([0; BLOCK]);
            for (code, &byte) in block.0.iter_mut().zip(part) {
                *code = (byte ^ 0x80) as i8;
            }
            block
        }));
        let sum = self
            .sketches
            .start(slot as usize)
            .wrapping_add(self.width / 8 + 8)
            .cast::<i32>();
        // SAFETY: the third number behind the bits of the sketch; nobody writes the slot, as above.
        query.sum = unsafe { sum.read() };
        query.norm = 1.0;
        // Stored unit vectors all have about the length of the scale.
        query.slack = DOUBT * SKETCH_ERROR / (self.width as f32).sqrt() * self.scale * self.scale;
    }

    /// Writes a vector into a slot that nobody can reach.
    ///
    /// # Safety
    /// No reader can reach the slot, and no other thread writes it.
    pub(super) unsafe fn write(&self, slot: usize, vector: &[f32]) {
        let norm = norm(vector);
        let mut unit = vec![0.0f32; self.width];
        for (unit, &x) in unit.iter_mut().zip(vector) {
            *unit = (f64::from(x) / norm) as f32;
        }
        let kept: Vec<f32> = match self.metric {
            Metric::Cosine => unit.clone(),
            Metric::InnerProduct => {
                let mut kept = vector.to_vec();
                kept.resize(self.width, 0.0);
                kept
            }
        };
        self.rotation.apply(&mut unit);
        let limit = 127.0 * 256.0;
        let fine: Vec<i32> = unit
            .iter()
            .map(|x| nearest((x * self.scale * 256.0).clamp(-limit, limit)))
            .collect();
        let codes: Vec<u8> = fine
            .iter()
            .map(|fine| (((fine + 128) >> 8) + 128) as u8)
            .collect();
        let tail: Vec<u8> = match self.rerank {
            Rerank::F32 => kept.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Rerank::Bf16 => unit.iter().flat_map(|&x| bf16(x).to_le_bytes()).collect(),
            Rerank::Int16 => fine
                .iter()
                .zip(&codes)
                .map(|(fine, &code)| (fine - (i32::from(code) - 128) * 256) as u8)
                .collect(),
            Rerank::None => Vec::new(),
        };
        let norm = match self.metric {
            Metric::Cosine => 1.0,
            Metric::InnerProduct => norm as f32,
        };
        // SAFETY: exclusive, says the caller.
        unsafe { self.write_parts(slot, &codes, &tail, norm) };
    }

    /// Writes the stored parts of a vector; the sketch follows from the codes.
    ///
    /// # Safety
    /// As [`write`](Self::write).
    pub(super) unsafe fn write_parts(&self, slot: usize, codes: &[u8], tail: &[u8], norm: f32) {
        let mut sketch = vec![0u8; sketch_stride(self.width)];
        let (mut square, mut absolute, mut sum) = (0i64, 0i64, 0i32);
        for (at, &code) in codes.iter().enumerate() {
            let code = i64::from(code) - 128;
            sketch[at / 8] |= u8::from(code >= 0) << (at % 8);
            square += code * code;
            absolute += code.abs();
            sum += code as i32;
        }
        let factor = square as f32 / absolute.max(1) as f32 * norm;
        let floats = self.width / 8;
        sketch[floats..floats + 4].copy_from_slice(&factor.to_ne_bytes());
        sketch[floats + 4..floats + 8].copy_from_slice(&norm.to_ne_bytes());
        sketch[floats + 8..floats + 12].copy_from_slice(&sum.to_ne_bytes());
        // SAFETY: exclusive, says the caller.
        unsafe {
            self.codes.write(slot, codes);
            self.sketches.write(slot, &sketch);
            if !tail.is_empty() {
                self.tails.write(slot, tail);
            }
        }
    }

    /// The stored parts of a vector, as [`write_parts`](Self::write_parts) takes them.
    pub(super) fn parts(&self, slot: u32) -> (&[u8], &[u8], f32) {
        let slot = slot as usize;
        // SAFETY: the slot is written and reachable, so nobody writes it (module documentation).
        unsafe {
            let tail: &[u8] = if self.rerank == Rerank::None {
                &[]
            } else {
                self.tails.read(slot)
            };
            (self.codes.read(slot), tail, self.norm(slot as u32))
        }
    }

    /// The vector of a slot, as exactly as it is kept.
    pub(super) fn vector(&self, slot: u32) -> Vec<f32> {
        let (codes, tail, norm) = self.parts(slot);
        let mut vector: Vec<f32> = match self.rerank {
            Rerank::F32 => tail
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect(),
            Rerank::Bf16 => {
                let half = |&b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16);
                tail.as_chunks::<2>().0.iter().map(half).collect()
            }
            Rerank::Int16 | Rerank::None => {
                let mut vector: Vec<f32> = codes
                    .iter()
                    .map(|&c| (f32::from(c) - 128.0) / self.scale)
                    .collect();
                for (x, &low) in vector.iter_mut().zip(tail) {
                    *x += f32::from(low as i8) / (256.0 * self.scale);
                }
                vector
            }
        };
        if self.rerank != Rerank::F32 {
            self.rotation.undo(&mut vector);
            vector.iter_mut().for_each(|x| *x *= norm);
        }
        vector.truncate(self.dim);
        vector
    }

    // -- scores

    /// The norm of a vector; 1 if the metric is cosine.
    #[inline(always)]
    fn norm(&self, slot: u32) -> f32 {
        let floats = self
            .sketches
            .start(slot as usize)
            .wrapping_add(self.width / 8)
            .cast::<f32>();
        // SAFETY: the sketch holds two floats behind its bits; the slot is not being written (module
        // documentation).
        unsafe { floats.add(1).read() }
    }

    #[inline(always)]
    fn check(&self, ids: &[u32]) {
        // The writer looks at slots above `slots()` while it fills them, so the bound is the memory's.
        let top = ids.iter().fold(0, |top, &id| top.max(id)) as usize;
        assert!(ids.is_empty() || top < MAX_SLOTS);
        debug_assert!(ids.iter().all(|&id| !self.codes.start(id as usize).is_null()));
    }

    /// Keys of stored vectors: the larger, the nearer the query.
    #[inline]
    pub(super) fn score(&self, query: &Query, ids: &[u32], keys: &mut [i32]) {
        self.check(ids);
        // SAFETY: the kernels are for this processor; the slots are written and reachable (module
        // documentation).
        unsafe { (self.kernels.dots)(query, &self.codes, ids, keys) };
        if self.metric == Metric::InnerProduct {
            for (key, &id) in keys.iter_mut().zip(ids) {
                *key = ordered((*key as f32 * self.norm(id)).to_bits() as i32);
            }
        }
    }

    /// The key of `base` for the query `id`, given the key of `id` for the query `base`.
    #[inline]
    pub(super) fn mirrored(&self, key: i32, id: u32, base: u32) -> i32 {
        match self.metric {
            Metric::Cosine => key,
            Metric::InnerProduct => {
                let product = f32::from_bits(ordered(key) as u32) / self.norm(id) * self.norm(base);
                ordered(product.to_bits() as i32)
            }
        }
    }

    /// Keeps the ids that may reach the key `bar`, going by their sketches, and asks for their codes.
    #[inline]
    pub(super) fn sieve(&self, query: &Query, ids: &mut [u32], bar: i32) -> usize {
        self.sieve_in(query, &self.sketches, ids, bar)
    }

    /// As [`sieve`](Self::sieve), for places in a copy of sketches that is no longer than the index. The codes that it asks
    /// for are then not those of the slots: in vain, for the few that are kept.
    #[inline(always)]
    pub(super) fn sieve_in(&self, query: &Query, sketches: &ByteSlab, ids: &mut [u32], bar: i32) -> usize {
        self.check(ids);
        let bar = match self.metric {
            Metric::Cosine => bar as f32,
            Metric::InnerProduct => f32::from_bits(ordered(bar) as u32),
        };
        // SAFETY: as in `score`.
        unsafe { (self.kernels.sieve)(query, sketches, &self.codes, ids, bar) }
    }

    /// A copy of the sketches of some slots, in their order.
    ///
    /// The caller must be allowed to read them (module documentation).
    pub(super) fn sketches_of(&self, slots: &[u32]) -> ByteSlab {
        let copies = ByteSlab::new(sketch_stride(self.width));
        copies.ensure(slots.len());
        for (place, &slot) in slots.iter().enumerate() {
            // SAFETY: the slot is written and reachable, so nobody writes it (module documentation); nobody else has
            // the copies yet.
            unsafe { copies.write(place, self.sketches.read(slot as usize)) };
        }
        copies
    }

    /// Asks for a sketch.
    #[inline(always)]
    pub(super) fn prefetch_sketch(&self, slot: u32) {
        crate::hint::prefetch(self.sketches.start(slot as usize));
    }

    /// Asks for all that [`recall`](Self::recall) reads of a slot.
    #[inline(always)]
    pub(super) fn prefetch(&self, slot: u32) {
        let codes = self.codes.start(slot as usize);
        self.prefetch_sketch(slot);
        for line in (0..self.width).step_by(2 * BLOCK) {
            crate::hint::prefetch(codes.wrapping_add(line));
        }
    }

    /// The similarity that a key stands for, for a query of that norm.
    pub(super) fn similarity(&self, query: &Query, key: i32) -> f32 {
        let product = match self.metric {
            Metric::Cosine => key as f32,
            Metric::InnerProduct => f32::from_bits(ordered(key) as u32),
        };
        product / (self.scale * self.scale) * query.norm
    }

    /// Similarities from the rerank vectors; none are kept if this returns false.
    pub(super) fn rerank(&self, query: &Query, ids: &[u32], out: &mut [f32]) -> bool {
        let Some(tail) = self.rerank.tail() else {
            return false;
        };
        self.check(ids);
        // SAFETY: as in `score`; a rerank kind other than none has tails of its width.
        unsafe { (self.kernels.tails)(tail, &query.exact, &self.tails, &self.codes, ids, out) };
        let unit = match self.rerank {
            Rerank::F32 | Rerank::None => return true,
            Rerank::Bf16 => 1.0,
            Rerank::Int16 => 1.0 / (256.0 * self.scale),
        };
        for (score, &id) in out.iter_mut().zip(ids) {
            *score = *score * unit * (self.norm(id) * query.norm);
        }
        true
    }

    /// Queries that are best taken together.
    pub(super) fn together(&self) -> usize {
        self.kernels.together
    }

    /// Makes a panel of queries ready for [`panel`](Self::panel).
    pub(super) fn pack(&self, panel: &mut Panel) {
        (self.kernels.pack)(panel);
    }

    /// Keys of up to 64 present slots for each query of a panel, row by row; `room` is for the codes of slots that
    /// are not one after the other.
    pub(super) fn panel(&self, panel: &Panel, ids: &[u32], room: &mut Vec<Block>, keys: &mut [i32]) {
        let (first, rows) = (ids[0], ids.len());
        assert!(rows <= ROWS && keys.len() >= ROWS * panel.stride);
        let codes = if first.is_multiple_of(ROWS as u32) && ids[rows - 1] - first == ROWS as u32 - 1 {
            // All of a group of 64, which lie one after the other in one chunk.
            self.codes.start(first as usize)
        } else {
            let blocks = self.width / BLOCK;
            room.resize(ROWS * blocks, Block([0; BLOCK]));
            for (cell, &id) in room.chunks_exact_mut(blocks).zip(ids) {
                // SAFETY: as in `score`.
                let codes = unsafe { self.codes.read(id as usize) };
                for (block, part) in cell.iter_mut().zip(codes.as_chunks::<BLOCK>().0) {
                    block.0 = part.map(|code| code as i8);
                }
            }
            room.as_ptr().cast()
        };
        // SAFETY: as in `score`; 64 codes one after the other, of which the first `rows` count.
        unsafe { (self.kernels.panel)(panel, codes, rows, keys) };
        if self.metric == Metric::InnerProduct {
            for (&id, keys) in ids.iter().zip(keys.chunks_exact_mut(panel.stride)) {
                let norm = self.norm(id);
                for key in keys {
                    *key = ordered((*key as f32 * norm).to_bits() as i32);
                }
            }
        }
    }

    /// Appends row and column of the keys that are above the bars.
    pub(super) fn sift(&self, keys: &[i32], bars: &[i32], hits: &mut Vec<(u32, u32)>) {
        // SAFETY: the kernels are for this processor.
        unsafe { (self.kernels.sift)(keys, bars, hits) };
    }

    // -- slots

    /// Whether a reader of `version` sees the slot.
    #[inline(always)]
    pub(super) fn visible(&self, slot: u32, version: u64) -> bool {
        let stamps = self.stamps.cell(slot as usize);
        // The other way round than they are written: who sees that the slot is used again also sees since when.
        version < stamps[DEAD].load(Ordering::Acquire) && stamps[BORN].load(Ordering::Acquire) <= version
    }

    pub(super) fn set_born(&self, slot: u32, version: u64) {
        let stamps = self.stamps.cell(slot as usize);
        stamps[BORN].store(version, Ordering::Release);
        stamps[DEAD].store(NEVER, Ordering::Release);
    }

    pub(super) fn set_dead(&self, slot: u32, version: u64) {
        self.stamps.cell(slot as usize)[DEAD].store(version, Ordering::Release);
    }

    /// Whether the slot holds a vector that was removed.
    #[inline(always)]
    pub(super) fn dead(&self, slot: u32) -> bool {
        self.stamps.cell(slot as usize)[DEAD].load(Ordering::Acquire) != NEVER
    }

    #[inline(always)]
    pub(super) fn label(&self, slot: u32) -> u64 {
        self.labels.cell(slot as usize)[0].load(Ordering::Relaxed)
    }

    pub(super) fn set_label(&self, slot: u32, label: u64) {
        self.labels.cell(slot as usize)[0].store(label, Ordering::Relaxed);
    }

    pub(super) fn set_present(&self, slot: u32, present: bool) {
        set_bit(&self.present, slot, present);
    }

    #[inline(always)]
    pub(super) fn present_word(&self, group: usize) -> u64 {
        self.present.cell(group)[0].load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn present(&self, slot: u32) -> bool {
        self.present_word(slot as usize / 64) >> (slot % 64) & 1 != 0
    }

    pub(super) fn set_flag(&self, flag: usize, slot: u32, value: bool) {
        set_bit(&self.flags[flag], slot, value);
    }

    pub(super) fn flag_count(&self) -> usize {
        self.flags.len()
    }

    pub(super) fn flags_of(&self, slot: u32) -> u32 {
        let bit = |flag: &AtomicSlab<AtomicU64>| {
            flag.cell(slot as usize / 64)[0].load(Ordering::Relaxed) >> (slot % 64) & 1
        };
        self.flags
            .iter()
            .enumerate()
            .map(|(at, flag)| (bit(flag) as u32) << at)
            .sum()
    }

    /// Writes the bitmap of the present slots that have all flags of `require` and none of `forbid`, and are in
    /// `subset`. Returns the number of bits.
    pub(super) fn allowed(
        &self,
        require: u32,
        forbid: u32,
        subset: Option<&[u64]>,
        out: &mut Vec<u64>,
    ) -> usize {
        let groups = self.slots().div_ceil(64);
        out.clear();
        out.resize(groups, 0);
        self.present.zip(out, |out, present| {
            for (word, present) in out.iter_mut().zip(present) {
                *word = present.load(Ordering::Acquire);
            }
        });
        if let Some(subset) = subset {
            let (both, beyond) = out.split_at_mut(subset.len().min(groups));
            both.iter_mut()
                .zip(subset)
                .for_each(|(word, &only)| *word &= only);
            beyond.fill(0);
        }
        for (at, flag) in self.flags.iter().enumerate() {
            let turn = match (require >> at & 1, forbid >> at & 1) {
                (0, 0) => continue,
                (1, 0) => 0,
                (0, _) => u64::MAX,
                _ => {
                    out.fill(0);
                    break;
                }
            };
            flag.zip(out, |out, flag| {
                for (word, flag) in out.iter_mut().zip(flag) {
                    *word &= flag.load(Ordering::Relaxed) ^ turn;
                }
            });
        }
        // SAFETY: the kernels are for this processor.
        unsafe { (self.kernels.ones)(out) }
    }

    /// Bytes of the cells of all slots ever used.
    pub(super) fn bytes(&self) -> usize {
        let slots = self.slots();
        let tails = if self.rerank == Rerank::None {
            0
        } else {
            self.tails.bytes_for(slots)
        };
        self.codes.bytes_for(slots)
            + self.sketches.bytes_for(slots)
            + tails
            + self.stamps.bytes_for(slots)
            + self.labels.bytes_for(slots)
            + (1 + self.flags.len()) * self.present.bytes_for(slots.div_ceil(64))
    }
}

fn set_bit(bits: &AtomicSlab<AtomicU64>, slot: u32, value: bool) {
    let word = &bits.cell(slot as usize / 64)[0];
    let bit = 1 << (slot % 64);
    if value {
        word.fetch_or(bit, Ordering::Release);
    } else {
        word.fetch_and(!bit, Ordering::Release);
    }
}

/// The nearest integer, ties to even, of a number below 2^22 in size: what lies beyond the point is lost in the sum.
/// `f32::round_ties_even` is a call where the build's baseline has no instruction for it.
#[inline(always)]
fn nearest(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

fn norm(vector: &[f32]) -> f64 {
    vector
        .iter()
        .map(|&x| f64::from(x) * f64::from(x))
        .sum::<f64>()
        .sqrt()
}

/// Rounds to the nearest, ties to even.
fn bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

/// Row numbers of the vectors that cannot be indexed.
pub(super) fn check_rows(vectors: &[f32], dim: usize, metric: Metric) -> Result<(), BrokerError> {
    let (mut not_finite, mut zero, mut count) = (Vec::new(), Vec::new(), 0);
    for (row, vector) in vectors.chunks_exact(dim).enumerate() {
        // Inner products of vectors as long as that would overflow.
        let overflows = || metric == Metric::InnerProduct && norm(vector) > 1e18;
        let list = if !vector.iter().all(|x| x.is_finite()) || overflows() {
            &mut not_finite
        } else if vector.iter().all(|&x| x == 0.0) {
            &mut zero
        } else {
            continue;
        };
        count += 1;
        if list.len() < BrokerError::ROWS {
            list.push(row);
        }
    }
    if count > 0 {
        Err(BrokerError::BadRows {
            not_finite,
            zero,
            count,
        })
    } else {
        Ok(())
    }
}
