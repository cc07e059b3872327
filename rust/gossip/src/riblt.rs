//! Rateless set reconciliation: a stream of coded symbols whose length follows the difference, not the sets.
//!
//! Method: Yang, Gilad, Alizadeh, "Practical Rateless Set Reconciliation" (SIGCOMM 2024). Symbol `i` is in cell 0 and
//! then in cells whose density falls as 1/(1 + i/2). Items are 16 bytes; cells are linear, so a receiver subtracts its
//! own and peels what is left.
use std::collections::BTreeMap;

/// Bytes of an item.
pub const ITEM: usize = 16;
/// Bytes of a cell on the wire.
pub const CELL: usize = ITEM + 8 + 4;

/// One coded symbol: the sum of the items in it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cell {
    sum: u128,
    check: u64,
    count: i32,
}

impl Cell {
    fn add(&mut self, item: u128, check: u64, sign: i32) {
        self.sum ^= item;
        self.check ^= check;
        self.count = self.count.wrapping_add(sign);
    }

    /// The wire form.
    #[must_use]
    pub fn bytes(&self) -> [u8; CELL] {
        let mut bytes = [0; CELL];
        bytes[..16].copy_from_slice(&self.sum.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.check.to_le_bytes());
        bytes[24..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Reads a cell.
    #[must_use]
    pub fn read(bytes: &[u8; CELL]) -> Self {
        let (mut sum, mut check, mut count) = ([0; 16], [0; 8], [0; 4]);
        sum.copy_from_slice(&bytes[..16]);
        check.copy_from_slice(&bytes[16..24]);
        count.copy_from_slice(&bytes[24..]);
        Self {
            sum: u128::from_le_bytes(sum),
            check: u64::from_le_bytes(check),
            count: i32::from_le_bytes(count),
        }
    }
}

/// The check value of an item, which also seeds its places.
///
/// Both sides must agree on it, so it has no secret; a host can only confuse the repair of its own rows.
fn check_of(item: u128) -> u64 {
    let mut x = (item as u64) ^ 0x9E37_79B9_7F4A_7C15;
    for word in [(item >> 64) as u64, 0x1F83_D9AB_FB41_BD6B] {
        x = (x ^ (x >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ word;
        x = (x ^ (x >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
    }
    x ^ (x >> 32)
}

/// The cells that an item is in.
struct Places {
    at: u64,
    state: u64,
}

impl Places {
    fn new(check: u64) -> Self {
        Self {
            at: 0,
            state: check | 1,
        }
    }

    /// Moves to the next cell.
    fn step(&mut self) {
        self.state = self.state.wrapping_mul(0xDA94_2042_E4DD_58B5);
        let r = self.state;
        // Inverse of the survival function of the gap, as in the paper's section 4.2.
        let gap = (self.at as f64 + 1.5) * ((1u64 << 32) as f64 / ((r as f64) + 1.0).sqrt() - 1.0);
        self.at = self.at.saturating_add(gap.ceil().max(1.0) as u64);
    }
}

/// Cells `0..n` of a set of items.
#[must_use]
pub fn encode(items: impl IntoIterator<Item = [u8; ITEM]>, n: usize) -> Vec<Cell> {
    let mut cells = vec![Cell::default(); n];
    for item in items {
        let item = u128::from_le_bytes(item);
        let check = check_of(item);
        let mut places = Places::new(check);
        while (places.at as usize) < n {
            cells[places.at as usize].add(item, check, 1);
            places.step();
        }
    }
    cells
}

/// What two sets differ in.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Difference {
    /// Items that only the other side has.
    pub theirs: Vec<[u8; ITEM]>,
    /// Items that only this side has.
    pub ours: Vec<[u8; ITEM]>,
}

/// Peels the difference out of both sides' first cells; `None` when there are too few.
#[must_use]
pub fn decode(theirs: &[Cell], ours: &[Cell]) -> Option<Difference> {
    let mut cells: Vec<Cell> = theirs
        .iter()
        .zip(ours)
        .map(|(t, o)| Cell {
            sum: t.sum ^ o.sum,
            check: t.check ^ o.check,
            count: t.count.wrapping_sub(o.count),
        })
        .collect();
    let mut found = BTreeMap::new();
    let mut ready: Vec<usize> = (0..cells.len()).collect();
    while let Some(at) = ready.pop() {
        let cell = cells[at];
        if !matches!(cell.count, 1 | -1) || check_of(cell.sum) != cell.check {
            continue;
        }
        // A forged stream could name one item for ever.
        if found.insert(cell.sum, cell.count).is_some() || found.len() > cells.len() {
            return None;
        }
        let mut places = Places::new(cell.check);
        while (places.at as usize) < cells.len() {
            let place = places.at as usize;
            cells[place].add(cell.sum, cell.check, -cell.count);
            if matches!(cells[place].count, 1 | -1) {
                ready.push(place);
            }
            places.step();
        }
    }
    if cells.iter().any(|cell| *cell != Cell::default()) {
        return None;
    }
    let mut difference = Difference::default();
    for (item, side) in found {
        let list = if side == 1 {
            &mut difference.theirs
        } else {
            &mut difference.ours
        };
        list.push(item.to_le_bytes());
    }
    Some(difference)
}

#[cfg(test)]
mod tests {
    use pandacore_matching::Rng;
    use proptest::prelude::*;

    use super::*;

    fn item(n: u64) -> [u8; ITEM] {
        (u128::from(n) << 64 | u128::from(n.wrapping_mul(0xD134_2543_DE82_EF95))).to_le_bytes()
    }

    fn cells_needed(common: u64, ours: u64, theirs: u64) -> usize {
        let a: Vec<_> = (0..common + ours).map(item).collect();
        let b: Vec<_> = (0..common).chain(1 << 40..(1 << 40) + theirs).map(item).collect();
        let n = (ours + theirs) as usize * 2 + 16;
        let (all_a, all_b) = (encode(a, n), encode(b, n));
        let (mut low, mut high) = (1, n);
        while low < high {
            let middle = (low + high) / 2;
            if decode(&all_b[..middle], &all_a[..middle]).is_some() {
                high = middle
            } else {
                low = middle + 1
            }
        }
        let found = decode(&all_b[..low], &all_a[..low]).expect("enough cells");
        assert_eq!(
            (found.ours.len() as u64, found.theirs.len() as u64),
            (ours, theirs)
        );
        low
    }

    #[test]
    fn a_difference_costs_at_most_one_and_a_half_cells_each_from_hundred_on() {
        for d in [100, 200, 1_000, 4_000u64] {
            let runs = 8;
            let cells: usize = (0..runs)
                .map(|i| cells_needed(5_000 + i * 997, d / 2 - i, d / 2 + i))
                .sum();
            let each = cells as f64 / (runs * d) as f64;
            println!("{d}: {each:.3}");
            assert!(each <= 1.5, "{each} cells for each of {d}");
        }
    }

    #[test]
    fn equal_sets_need_one_cell() {
        assert_eq!(cells_needed(1_000, 0, 0), 1);
    }

    proptest! {
        #[test]
        fn small_sets_are_reconciled(a in proptest::collection::btree_set(0u64..200, 0..60),
                                     b in proptest::collection::btree_set(0u64..200, 0..60)) {
            let n = 400;
            let found = decode(&encode(b.iter().map(|&x| item(x)), n), &encode(a.iter().map(|&x| item(x)), n)).unwrap();
            let mut ours: Vec<_> = a.difference(&b).map(|&x| item(x)).collect();
            let mut theirs: Vec<_> = b.difference(&a).map(|&x| item(x)).collect();
            ours.sort_by_key(|bytes| u128::from_le_bytes(*bytes));
            theirs.sort_by_key(|bytes| u128::from_le_bytes(*bytes));
            prop_assert_eq!(found, Difference { theirs, ours });
        }

        #[test]
        fn forged_cells_end(seed in any::<u64>(), n in 0usize..64) {
            let mut rng = Rng::new(seed);
            let forged: Vec<Cell> = (0..n).map(|_| {
                let sum = u128::from(rng.below(4));
                Cell { sum, check: check_of(sum), count: rng.below(3) as i32 - 1 }
            }).collect();
            let _ = decode(&forged, &vec![Cell::default(); n]);
        }
    }
}
