//! 32-byte ids to slots: an open-addressing table of slot numbers, keyed by the registry's seed.
//!
//! Ids are public keys, which strangers choose: without the seed they could all be made to collide.
use crate::rng::mix;

pub(crate) type Id = [u8; 32];

const EMPTY: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(crate) struct IdIndex {
    slots: Vec<u32>,
    used: usize,
    seed: u64,
}

impl IdIndex {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            slots: Vec::new(),
            used: 0,
            seed: mix(seed ^ 0x2545_F491_4F6C_DD1D, 0x9E37_79B9_7F4A_7C15),
        }
    }

    fn hash(&self, id: &Id) -> u64 {
        let word = |at: usize| u64::from_le_bytes(id[at..at + 8].try_into().expect("eight bytes"));
        mix(
            mix(word(0) ^ self.seed, word(8) ^ 0xa076_1d64_78bd_642f) ^ word(16),
            word(24) ^ self.seed.rotate_left(32),
        )
    }

    fn home(&self, id: &Id) -> usize {
        ((u128::from(self.hash(id)) * self.slots.len() as u128) >> 64) as usize
    }

    /// The slot of `id`; `id_of` tells the id in a slot.
    pub(crate) fn find(&self, id: &Id, id_of: impl Fn(u32) -> Id) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(id);
        loop {
            match self.slots[at] {
                EMPTY => return None,
                slot if id_of(slot) == *id => return Some(slot),
                _ => at = if at + 1 == self.slots.len() { 0 } else { at + 1 },
            }
        }
    }

    /// The place in the table where a lookup of `id` starts, for prefetching.
    pub(crate) fn place(&self, id: &Id) -> *const u32 {
        if self.slots.is_empty() {
            std::ptr::null()
        } else {
            &raw const self.slots[self.home(id)]
        }
    }

    /// The slot where a lookup of `id` starts; most often the right one, if the id is known.
    pub(crate) fn guess(&self, id: &Id) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        match self.slots[self.home(id)] {
            EMPTY => None,
            slot => Some(slot),
        }
    }

    /// Adds an id that is not in the table.
    pub(crate) fn insert(&mut self, id: &Id, slot: u32, id_of: impl Fn(u32) -> Id) {
        self.reserve(1, id_of);
        self.place_in(id, slot);
        self.used += 1;
    }

    /// The slot of `id`; if there is none, enters it with `slot`. Room must have been reserved.
    pub(crate) fn find_or_insert(&mut self, id: &Id, slot: u32, id_of: impl Fn(u32) -> Id) -> Option<u32> {
        let mut at = self.home(id);
        loop {
            match self.slots[at] {
                EMPTY => {
                    self.slots[at] = slot;
                    self.used += 1;
                    return None;
                }
                known if id_of(known) == *id => return Some(known),
                _ => at = if at + 1 == self.slots.len() { 0 } else { at + 1 },
            }
        }
    }

    fn place_in(&mut self, id: &Id, slot: u32) {
        let mut at = self.home(id);
        while self.slots[at] != EMPTY {
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
        self.slots[at] = slot;
    }

    /// Makes room for `more` ids at a fill of at most 4/5.
    pub(crate) fn reserve(&mut self, more: usize, id_of: impl Fn(u32) -> Id) {
        let needed = (self.used + more) * 5 / 4 + 8;
        if needed <= self.slots.len() {
            return;
        }
        // A large batch is sized exactly, growth one by one by a half.
        let size = needed.max(if more > self.used / 2 {
            0
        } else {
            self.slots.len() * 3 / 2
        });
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; size]);
        for slot in old.into_iter().filter(|&slot| slot != EMPTY) {
            self.place_in(&id_of(slot), slot);
        }
    }

    /// Removes an id and closes the gap, so that lookups need no tombstones.
    pub(crate) fn remove(&mut self, id: &Id, id_of: impl Fn(u32) -> Id) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let size = self.slots.len();
        let mut at = self.home(id);
        let found = loop {
            match self.slots[at] {
                EMPTY => return None,
                slot if id_of(slot) == *id => break slot,
                _ => at = (at + 1) % size,
            }
        };
        let mut hole = at;
        loop {
            at = (at + 1) % size;
            if self.slots[at] == EMPTY {
                break;
            }
            let home = self.home(&id_of(self.slots[at]));
            // Move back unless its home lies cyclically in (hole, at].
            let stays = if hole <= at {
                hole < home && home <= at
            } else {
                hole < home || home <= at
            };
            if !stays {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        self.used -= 1;
        Some(found)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn behaves_like_a_map_under_random_inserts_and_removals() {
        let mut rng = Rng::new(3);
        let mut index = IdIndex::new(9);
        let mut ids: Vec<Id> = Vec::new();
        let mut model = BTreeMap::new();
        for _ in 0..20_000 {
            let mut id = [0u8; 32];
            id[0] = rng.below(200) as u8;
            id[31] = rng.below(4) as u8;
            let known = model.get(&id).copied();
            assert_eq!(index.find(&id, |s| ids[s as usize]), known);
            if known.is_some() {
                assert_eq!(index.remove(&id, |s| ids[s as usize]), known);
                model.remove(&id);
            } else {
                let slot = ids.len() as u32;
                ids.push(id);
                index.insert(&id, slot, |s| ids[s as usize]);
                model.insert(id, slot);
            }
        }
    }
}
