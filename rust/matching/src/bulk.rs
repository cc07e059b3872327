//! Announcing many agents at once: sizes are counted first, then every entry is written where it stays.
use std::sync::atomic::Ordering;

use crate::error::RegistryError;
use crate::hint::prefetch;
use crate::index::Id;
use crate::registry::{Announcement, Change, MAX_HELD, Placed, Registry, Work, shared_bits};
use crate::store::{
    ALIVE, Attributes, Head, LANES, Line, PRESENT, TRUSTED, eligible, entry, entry_slot, posting,
};

/// Rows whose memory is asked for before the first of them is written.
const GROUP: usize = 16;

/// A batch of announcements in columns. Every given column has one value per id.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch<'a> {
    /// Public keys, all different.
    pub ids: &'a [Id],
    /// Row `i` has the capabilities `offsets[i]..offsets[i + 1]`; one more than there are ids, from 0 up.
    pub offsets: &'a [i64],
    /// Capability handles of all rows.
    pub capabilities: &'a [u32],
    /// Versions; absent: one more than the last known.
    pub versions: Option<&'a [u64]>,
    /// Loads; absent: 0.
    pub loads: Option<&'a [u16]>,
    /// Domains; absent: 0.
    pub domains: Option<&'a [u16]>,
    /// Costs; absent: 0.
    pub costs: Option<&'a [u16]>,
    /// Service codes; absent: 0.
    pub services: Option<&'a [u16]>,
    /// Round-trip codes; absent: 0.
    pub rtts: Option<&'a [u8]>,
    /// Concurrency limits; absent: 1.
    pub concurrency: Option<&'a [u8]>,
    /// Whether the agents answer; absent: they do.
    pub alive: Option<&'a [bool]>,
    /// This viewer's verdicts; absent: unchanged, or the default for new agents.
    pub trusted: Option<&'a [bool]>,
}

impl Batch<'_> {
    fn check(&self) -> Result<(), RegistryError> {
        let n = self.ids.len();
        let lengths = [
            ("versions", self.versions.map(<[u64]>::len)),
            ("loads", self.loads.map(<[u16]>::len)),
            ("domains", self.domains.map(<[u16]>::len)),
            ("costs", self.costs.map(<[u16]>::len)),
            ("services", self.services.map(<[u16]>::len)),
            ("rtts", self.rtts.map(<[u8]>::len)),
            ("concurrency", self.concurrency.map(<[u8]>::len)),
            ("alive", self.alive.map(<[bool]>::len)),
            ("trusted", self.trusted.map(<[bool]>::len)),
        ];
        for (name, length) in lengths {
            if length.is_some_and(|length| length != n) {
                let text = format!("{name} has {} rows, ids {n}", length.unwrap_or(0));
                return Err(RegistryError::Shape(text));
            }
        }
        if self.offsets.len() != n + 1 {
            let text = format!(
                "offsets has {} entries; {n} ids need {}",
                self.offsets.len(),
                n + 1
            );
            return Err(RegistryError::Shape(text));
        }
        let ends = (self.offsets[0], self.offsets[n]);
        if ends != (0, self.capabilities.len() as i64) || !self.offsets.is_sorted() {
            let text = format!(
                "offsets must ascend from 0 to {}, the number of capabilities; they go from {} to {}",
                self.capabilities.len(),
                ends.0,
                ends.1
            );
            return Err(RegistryError::Shape(text));
        }
        Ok(())
    }

    fn attributes(&self, row: usize) -> Attributes {
        Attributes {
            load: self.loads.map_or(0, |c| c[row]),
            service: self.services.map_or(0, |c| c[row]),
            cost: self.costs.map_or(0, |c| c[row]),
            rtt: self.rtts.map_or(0, |c| c[row]),
            concurrency: self.concurrency.map_or(1, |c| c[row]),
        }
    }
}

/// Where the new entries of one pool go.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    ready: u32,
    idle: u32,
    first_ready: u32,
    next_ready: u32,
    next_idle: u32,
}

impl Plan {
    /// The place of the next eligible entry. Neighbouring rows go to different blocks: a burst of agents of one kind
    /// must not fill a block of its own.
    fn place(&mut self) -> u32 {
        let k = self.next_ready;
        self.next_ready += 1;
        let blocks = self.ready / LANES;
        if k >= blocks * LANES {
            return self.first_ready + k;
        }
        let (lane, block) = (k / blocks, k % blocks);
        // Each lane starts elsewhere, so that rows of one period do not meet again in one block.
        let turn = ((u64::from(lane.wrapping_mul(0x9E37_79B1)) * u64::from(blocks)) >> 32) as u32;
        let block = if block + turn >= blocks {
            block + turn - blocks
        } else {
            block + turn
        };
        self.first_ready + block * LANES + lane
    }
}

impl Registry {
    /// Takes many announcements in and returns the slot of each row. Rows whose version is not newer than what is
    /// known change nothing.
    ///
    /// # Errors
    /// Columns of different lengths, unknown handles, too many capabilities, or one id twice; nothing changes then.
    pub fn announce_many(&self, batch: &Batch<'_>) -> Result<Vec<u32>, RegistryError> {
        batch.check()?;
        let mut work = self.work();
        let expanded = work.expand(batch)?;
        let expanded = expanded.as_ref().map(|(offsets, capabilities)| Batch {
            offsets: &offsets[..],
            capabilities: &capabilities[..],
            ..*batch
        });
        work.load(expanded.as_ref().unwrap_or(batch))
    }
}

impl Work<'_> {
    /// The batch's capabilities with parents and without repetitions, if that differs from what is given.
    #[expect(
        clippy::type_complexity,
        reason = "offsets and capabilities of the batch, or nothing to change"
    )]
    fn expand(&self, batch: &Batch<'_>) -> Result<Option<(Vec<i64>, Vec<u32>)>, RegistryError> {
        let known = self.writer.vocabulary.len();
        if let Some(&bad) = batch.capabilities.iter().find(|&&c| c as usize >= known) {
            return Err(RegistryError::UnknownCapability(bad));
        }
        let row = |i: usize| &batch.capabilities[batch.offsets[i] as usize..batch.offsets[i + 1] as usize];
        let flat = !self.writer.vocabulary.has_parents();
        let plain = flat
            && (0..batch.ids.len()).all(|i| {
                let row = row(i);
                row.len() <= MAX_HELD && row.iter().enumerate().all(|(k, c)| !row[..k].contains(c))
            });
        if plain {
            return Ok(None);
        }
        let mut offsets = Vec::with_capacity(batch.offsets.len());
        let mut capabilities = Vec::with_capacity(batch.capabilities.len());
        let mut held = Vec::new();
        offsets.push(0);
        for i in 0..batch.ids.len() {
            self.closure(row(i), &mut held)?;
            capabilities.extend_from_slice(&held);
            offsets.push(capabilities.len() as i64);
        }
        Ok(Some((offsets, capabilities)))
    }

    fn load(&mut self, batch: &Batch<'_>) -> Result<Vec<u32>, RegistryError> {
        let n = batch.ids.len();
        let base = self.store.slots.load(Ordering::Relaxed);
        if u64::from(base) + n as u64 > u64::from(u32::MAX - 1) {
            return Err(RegistryError::Full);
        }
        let (slots, fresh, known) = self.enter_ids(batch, base)?;
        if !fresh.is_empty() {
            self.write_fresh(batch, base, &fresh);
        }
        let row = |row: u32| {
            &batch.capabilities
                [batch.offsets[row as usize] as usize..batch.offsets[row as usize + 1] as usize]
        };
        for (at, &(slot, r)) in known.iter().enumerate() {
            // Four steps ahead of each other, so that each finds what it follows in the cache: the agent's own line,
            // the entries it leads to, the agents in those entries.
            if let Some(&(next, r)) = known.get(at + 12) {
                prefetch(self.line(next));
                prefetch(self.version(next));
                for &capability in row(r) {
                    let pool = self.pool(capability);
                    prefetch(pool.head);
                    prefetch(pool.rest);
                }
            }
            if let Some(&(next, r)) = known.get(at + 7) {
                self.prefetch_moves(next);
                self.prefetch_entries_of(next, row(r));
            }
            if let Some(&(next, r)) = known.get(at + 3) {
                self.prefetch_movers(next);
                self.prefetch_displaced(next, row(r));
            }
            self.update_known(batch, slot, r)?;
        }
        self.writer.garbage.collect(&self.store.domain);
        Ok(slots)
    }

    /// Gives new ids slots from `base` on. Returns the slot of each row, the rows that are new, and the (slot, row)
    /// of those that were known.
    #[expect(clippy::type_complexity, reason = "three lists of one pass")]
    fn enter_ids(
        &mut self,
        batch: &Batch<'_>,
        base: u32,
    ) -> Result<(Vec<u32>, Vec<u32>, Vec<(u32, u32)>), RegistryError> {
        let n = batch.ids.len();
        self.reserve_slots(n as u32);
        // SAFETY: the lock is held, and nothing below grows `ids`.
        let ids = unsafe { self.store.ids.owned() };
        let id_of = |slot: u32| ids[slot as usize].load();
        self.writer.index.reserve(n, id_of);
        let mut slots = Vec::with_capacity(n);
        let mut fresh: Vec<u32> = Vec::with_capacity(n);
        let mut known: Vec<(u32, u32)> = Vec::new();
        let mut twice = None;
        for (row, id) in batch.ids.iter().enumerate() {
            if let Some(next) = batch.ids.get(row + 24) {
                prefetch(self.writer.index.place(next));
            }
            if let Some(next) = batch.ids.get(row + 12)
                && let Some(slot) = self.writer.index.guess(next)
                && let Some(cell) = ids.get(slot as usize)
            {
                prefetch(cell);
            }
            let next = base + fresh.len() as u32;
            match self.writer.index.find_or_insert(id, next, id_of) {
                None => {
                    ids[next as usize].store(id);
                    fresh.push(row as u32);
                    slots.push(next);
                }
                Some(slot) if slot >= base => {
                    twice = Some((fresh[(slot - base) as usize] as usize, row));
                    break;
                }
                Some(slot) => {
                    known.push((slot, row as u32));
                    slots.push(slot);
                }
            }
        }
        known.sort_unstable();
        if twice.is_none()
            && let Some(pair) = known.windows(2).find(|pair| pair[0].0 == pair[1].0)
        {
            twice = Some((pair[0].1 as usize, pair[1].1 as usize));
        }
        if let Some((first, second)) = twice {
            for &row in fresh.iter().rev() {
                self.writer.index.remove(&batch.ids[row as usize], id_of);
            }
            return Err(RegistryError::DuplicateId { first, second });
        }
        Ok((slots, fresh, known))
    }

    fn write_fresh(&mut self, batch: &Batch<'_>, base: u32, fresh: &[u32]) {
        let row = |row: u32| {
            &batch.capabilities
                [batch.offsets[row as usize] as usize..batch.offsets[row as usize + 1] as usize]
        };
        let by_default = self.config.trust_by_default;
        let flags_of = |row: u32| {
            let trusted = batch.trusted.map_or(by_default, |c| c[row as usize]);
            let alive = batch.alive.is_none_or(|c| c[row as usize]);
            PRESENT | if alive { ALIVE } else { 0 } | if trusted { TRUSTED } else { 0 }
        };

        // Count, and make room.
        let mut plans = vec![Plan::default(); self.writer.vocabulary.len()];
        let mut extra = 0;
        for &r in fresh {
            let ready = eligible(flags_of(r));
            let capabilities = row(r);
            for &c in capabilities {
                let plan = &mut plans[c as usize];
                if ready { plan.ready += 1 } else { plan.idle += 1 }
            }
            let overflow = Line::overflowing(capabilities.len());
            if overflow > 0 {
                extra += overflow.next_power_of_two() as u32;
            }
        }
        if extra > 0 {
            self.reserve_extra(extra);
        }
        for (c, plan) in plans.iter_mut().enumerate() {
            let added = plan.ready + plan.idle;
            if added == 0 {
                continue;
            }
            let (live, len) = (self.pool(c as u32).live(), self.pool(c as u32).len());
            self.reserve_entries(c as u32, len + added);
            plan.first_ready = live;
            // Entries that may not be chosen make way to the end.
            let border = (live + plan.ready).max(len);
            plan.next_idle = border;
            for at in live..len.min(live + plan.ready) {
                let to = plan.next_idle;
                plan.next_idle += 1;
                let pool = self.pool(c as u32);
                let word = self.entry(pool.head, at).load(Ordering::Relaxed);
                self.entry(pool.head, to).store(word, Ordering::Relaxed);
                if self.config.signatures {
                    let signature = self.signature_cell(pool, at).load(Ordering::Relaxed);
                    self.signature_cell(pool, to).store(signature, Ordering::Relaxed);
                }
                self.moved(entry_slot(word), c as u32, to);
            }
        }
        self.assign_bits(&plans);

        // Write. Readers see none of it before the counts below.
        // In groups, so that the cache misses of a group overlap: places first, then contents.
        let mut places: Vec<u32> = Vec::new();
        for (g, group) in fresh.chunks(GROUP).enumerate() {
            let first = base + (g * GROUP) as u32;
            places.clear();
            for (k, &r) in group.iter().enumerate() {
                let capabilities = row(r);
                self.resize(first + k as u32, 0, capabilities.len());
                let ready = eligible(flags_of(r));
                for &c in capabilities {
                    let plan = &mut plans[c as usize];
                    let at = if ready {
                        plan.place()
                    } else {
                        plan.next_idle += 1;
                        plan.next_idle - 1
                    };
                    let pool = self.pool(c);
                    prefetch(self.entry(pool.head, at));
                    if self.config.signatures {
                        prefetch(self.signature_cell(pool, at));
                    }
                    places.push(at);
                }
            }
            let mut next = places.iter();
            for (k, &r) in group.iter().enumerate() {
                let slot = first + k as u32;
                let capabilities = row(r);
                let line = self.line(slot);
                let attributes = batch.attributes(r as usize);
                let domain = batch.domains.map_or(0, |c| c[r as usize]);
                let held = capabilities.len();
                line.set_attributes(attributes);
                line.set_head(Head {
                    domain,
                    flags: flags_of(r),
                    held: held as u8,
                    stamp: 2,
                });
                self.version(slot)
                    .store(batch.versions.map_or(1, |c| c[r as usize]), Ordering::Relaxed);
                let word = entry(attributes.score(), domain, slot);
                let signatures = self.config.signatures;
                let signature = match signatures {
                    true => capabilities
                        .iter()
                        .map(|&c| self.pool(c).signature_bits())
                        .fold(0, |a, b| a | b),
                    false => 0,
                };
                let extra = self.extra();
                for ((k, &c), &at) in capabilities.iter().enumerate().zip(&mut next) {
                    let pool = self.pool(c);
                    self.entry(pool.head, at).store(word, Ordering::Relaxed);
                    if signatures {
                        self.signature_cell(pool, at).store(signature, Ordering::Relaxed);
                    }
                    if let Some(place) = line.word(k, held, extra) {
                        place.store(posting(c, at), Ordering::Relaxed);
                    }
                }
            }
        }
        let _change = Change::begin(&self.store.sequence);
        for (c, plan) in plans.iter().enumerate() {
            if plan.ready + plan.idle > 0 {
                let pool = self.pool(c as u32);
                pool.set_len(pool.len() + plan.ready + plan.idle);
                pool.set_live(pool.live() + plan.ready);
            }
        }
        self.store
            .slots
            .store(base + fresh.len() as u32, Ordering::Release);
        self.store
            .present
            .fetch_add(fresh.len() as u32, Ordering::Relaxed);
    }

    /// Signature bits for pools that have none, the largest first.
    fn assign_bits(&mut self, plans: &[Plan]) {
        let mut by_size: Vec<(u32, u32)> = Vec::new();
        for (c, plan) in plans.iter().enumerate() {
            let added = plan.ready + plan.idle;
            let pool = self.pool(c as u32);
            if added > 0 && pool.signature_bits() == 0 {
                pool.set_bits(shared_bits(c as u32));
                // Pools with agents keep their bit: those agents' signatures say so. They are promoted later.
                by_size.push((added, c as u32));
            }
        }
        by_size.sort_unstable_by_key(|&(added, c)| (std::cmp::Reverse(added), c));
        for (added, c) in by_size {
            if !self.take_exact_bit(added, c) {
                break;
            }
        }
    }

    fn update_known(&mut self, batch: &Batch<'_>, slot: u32, row: u32) -> Result<(), RegistryError> {
        let at = row as usize;
        let held = &batch.capabilities[batch.offsets[at] as usize..batch.offsets[at + 1] as usize];
        let announcement = Announcement {
            id: batch.ids[at],
            capabilities: held,
            version: batch.versions.map(|c| c[at]),
            domain: batch.domains.map_or(0, |c| c[at]),
            attributes: batch.attributes(at),
        };
        let Placed { accepted, .. } = self.place(&announcement, held, Some(slot))?;
        if accepted {
            if let Some(alive) = batch.alive {
                self.set_flags(slot, ALIVE, alive[at]);
            }
            if let Some(trusted) = batch.trusted {
                self.set_flags(slot, TRUSTED, trusted[at]);
            }
        }
        Ok(())
    }
}
