//! Open addressing from keys to row numbers: four bytes a slot, the keys stay where the rows are.

const EMPTY: u32 = u32::MAX;

/// Row numbers by a hash that the caller computes. Linear probing, at most 3/4 full, no tombstones.
#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<u32>,
    len: usize,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * 4
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// The row with this hash that `same` accepts.
    pub(crate) fn find(&self, hash: u64, mut same: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = hash as usize & self.mask();
        loop {
            match self.slots[at] {
                EMPTY => return None,
                row if same(row) => return Some(row),
                _ => at = (at + 1) & self.mask(),
            }
        }
    }

    /// Adds a row whose key is not in the table; `hash_of` gives the hash of any row in it.
    pub(crate) fn insert(&mut self, hash: u64, row: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            let bigger = vec![EMPTY; (self.slots.len() * 2).max(16)];
            let old = core::mem::replace(&mut self.slots, bigger);
            for row in old.into_iter().filter(|&row| row != EMPTY) {
                self.place(hash_of(row), row);
            }
        }
        self.place(hash, row);
        self.len += 1;
    }

    fn place(&mut self, hash: u64, row: u32) {
        let mask = self.mask();
        let mut at = hash as usize & mask;
        while self.slots[at] != EMPTY {
            at = (at + 1) & mask;
        }
        self.slots[at] = row;
    }

    /// Puts `new` where `old` is; both have the same key.
    pub(crate) fn replace(&mut self, hash: u64, old: u32, new: u32) {
        let mask = self.mask();
        let mut at = hash as usize & mask;
        while self.slots[at] != old {
            at = (at + 1) & mask;
        }
        self.slots[at] = new;
    }

    /// Takes a row out and moves later ones up, so that no marker is left behind.
    pub(crate) fn remove(&mut self, hash: u64, row: u32, hash_of: impl Fn(u32) -> u64) {
        let mask = self.mask();
        let mut at = hash as usize & mask;
        while self.slots[at] != row {
            at = (at + 1) & mask;
        }
        let mut hole = at;
        loop {
            at = (at + 1) & mask;
            let moved = self.slots[at];
            if moved == EMPTY {
                break;
            }
            let home = hash_of(moved) as usize & mask;
            // Move it up unless its home lies between the hole and here.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = moved;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pandacore_matching::Rng;

    use super::*;

    #[test]
    fn it_agrees_with_a_map_under_random_changes() {
        let mut rng = Rng::new(5);
        let hash = |row: u32| u64::from(row).wrapping_mul(0x9E37_79B9) >> 3;
        let mut table = Table::default();
        let mut map = BTreeMap::new();
        for _ in 0..20_000 {
            let row = rng.below(500);
            if map.remove(&row).is_some() {
                table.remove(hash(row), row, hash);
            } else {
                map.insert(row, ());
                table.insert(hash(row), row, hash);
            }
            assert_eq!(table.len(), map.len());
            let probe = rng.below(500);
            assert_eq!(
                table.find(hash(probe), |r| r == probe).is_some(),
                map.contains_key(&probe)
            );
        }
    }
}
