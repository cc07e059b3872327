//! From ids to slots: an open-addressing table of slot numbers; the ids themselves are with the slots.
use crate::rng::mix;

const EMPTY: u32 = u32::MAX;

/// The table. `label` in its functions is the caller's way from a slot to its id.
#[derive(Debug, Default)]
pub(super) struct Ids {
    table: Vec<u32>,
    len: usize,
}

fn place(label: u64, mask: usize) -> usize {
    mix(label ^ 0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db) as usize & mask
}

impl Ids {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn find(&self, id: u64, label: impl Fn(u32) -> u64) -> Option<u32> {
        let mask = self.table.len().checked_sub(1)?;
        let mut at = place(id, mask);
        loop {
            match self.table[at] {
                EMPTY => return None,
                slot if label(slot) == id => return Some(slot),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Sets the slot of an id; returns the one it had.
    pub(super) fn set(&mut self, id: u64, slot: u32, label: impl Fn(u32) -> u64) -> Option<u32> {
        // At most seven eighths full: runs stay short, and the table takes four to nine bytes an id.
        if 8 * (self.len + 1) > 7 * self.table.len() {
            self.grow(&label);
        }
        let mask = self.table.len() - 1;
        let mut at = place(id, mask);
        loop {
            match self.table[at] {
                EMPTY => {
                    self.table[at] = slot;
                    self.len += 1;
                    return None;
                }
                old if label(old) == id => {
                    self.table[at] = slot;
                    return Some(old);
                }
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Takes an id out; returns its slot.
    pub(super) fn remove(&mut self, id: u64, label: impl Fn(u32) -> u64) -> Option<u32> {
        let mask = self.table.len().checked_sub(1)?;
        let mut at = place(id, mask);
        let slot = loop {
            match self.table[at] {
                EMPTY => return None,
                slot if label(slot) == id => break slot,
                _ => at = (at + 1) & mask,
            }
        };
        // Moves later members of the run back, so that no tombstone is needed.
        let mut hole = at;
        loop {
            at = (at + 1) & mask;
            let next = self.table[at];
            if next == EMPTY {
                break;
            }
            let home = place(label(next), mask);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = next;
                hole = at;
            }
        }
        self.table[hole] = EMPTY;
        self.len -= 1;
        Some(slot)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.table.iter().copied().filter(|&slot| slot != EMPTY)
    }

    fn grow(&mut self, label: &impl Fn(u32) -> u64) {
        let old = std::mem::take(&mut self.table);
        self.table = vec![EMPTY; (2 * old.len()).max(8)];
        let mask = self.table.len() - 1;
        for slot in old.into_iter().filter(|&slot| slot != EMPTY) {
            let mut at = place(label(slot), mask);
            while self.table[at] != EMPTY {
                at = (at + 1) & mask;
            }
            self.table[at] = slot;
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn the_table_is_a_map() {
        let mut rng = Rng::new(9);
        let mut labels = Vec::new();
        let mut ids = Ids::default();
        let mut truth = BTreeMap::new();
        for _ in 0..20_000 {
            let id = u64::from(rng.below(500));
            if rng.below(3) == 0 {
                assert_eq!(ids.remove(id, |slot| labels[slot as usize]), truth.remove(&id));
            } else {
                labels.push(id);
                let slot = labels.len() as u32 - 1;
                assert_eq!(
                    ids.set(id, slot, |slot| labels[slot as usize]),
                    truth.insert(id, slot)
                );
            }
            let probe = u64::from(rng.below(500));
            assert_eq!(
                ids.find(probe, |slot| labels[slot as usize]),
                truth.get(&probe).copied()
            );
            assert_eq!(ids.len(), truth.len());
        }
    }
}
