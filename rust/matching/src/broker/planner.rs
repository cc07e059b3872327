//! Which executor answers a query.
//!
//! The choice needs three numbers: how many slots the filter allows (a population count), how many there are, and
//! how many queries come together. What a step of each executor costs on this machine is measured once
//! ([`Costs::measure`]); without that, typical numbers stand in.
use std::time::Duration;

use super::kernels::{self, BLOCK, Block, LANE, Panel, Query, ROWS};
use super::memory::ByteSlab;
use crate::rng::Rng;

/// How a query is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Executor {
    /// Every allowed code is looked at: exact.
    Scan,
    /// The same for several queries at once, which read each code together: exact.
    Batch,
    /// Best-first search in the graph, through whatever slots lie on the way.
    Graph,
    /// Best-first search in the graph of the allowed slots, over the others.
    TwoHop,
}

/// Nanoseconds of the steps that executors are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Looking at one allowed code in order.
    pub scan: f64,
    /// Looking at one code for one of many queries.
    pub batch: f64,
    /// Looking at one code in random order.
    pub random: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            scan: 14.0,
            batch: 4.0,
            random: 28.0,
        }
    }
}

/// Codes that an expansion of a graph search looks at, sketches counted as the share of a code that they cost.
const PER_EXPANSION: f64 = 11.0;
/// What a sketch costs in a scan, as a share of a code. A guess: 0.3 to 0.8 at 10^6 on a busy machine.
const SIEVED: f64 = 0.6;
/// Expansions before the pool is good: the way down and in.
const WARM_UP: f64 = 30.0;

/// What the planner knows about a query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    pub(super) slots: usize,
    pub(super) allowed: usize,
    pub(super) filtered: bool,
    pub(super) queries: usize,
    pub(super) ef: usize,
    /// Wanted share of the true nearest, 1 for all of them.
    pub(super) recall: f32,
}

impl Costs {
    /// Measures the steps on this machine, in a few milliseconds.
    ///
    /// `clock` returns the time since any fixed moment. Width 384 and a working set beyond most second-level
    /// caches: the order of the executors depends little on either.
    pub fn measure(clock: impl Fn() -> Duration) -> Self {
        const WIDTH: usize = 384;
        const CELLS: u32 = 16_384;
        let kernels = kernels::best();
        let slab = ByteSlab::new(WIDTH);
        slab.ensure(CELLS as usize);
        let mut rng = Rng::new(1);
        for cell in 0..CELLS as usize {
            // SAFETY: nobody else has the slab.
            unsafe { slab.write(cell, &[rng.next_u64() as u8; WIDTH]) };
        }
        let query = Query {
            codes: vec![Block([1; BLOCK]); WIDTH / BLOCK],
            sum: WIDTH as i32,
            ..Query::default()
        };
        let mut panel = Panel::default();
        panel.resize(kernels.together);
        panel.queries.fill(query.clone());
        (kernels.pack)(&mut panel);
        let mut products = vec![0; ROWS * panel.stride];
        let bars = vec![i32::MAX; panel.stride];
        let ordered: Vec<u32> = (0..CELLS).collect();
        let random: Vec<u32> = (0..CELLS).map(|_| rng.below(CELLS)).collect();
        let mut keys = vec![0; CELLS as usize];
        let mut best = |codes: usize, work: &mut dyn FnMut(&mut [i32])| {
            let mut least = f64::MAX;
            for _ in 0..3 {
                let start = clock();
                work(&mut keys);
                least = least.min((clock().saturating_sub(start)).as_nanos() as f64);
            }
            // A clock without resolution must not make a step free.
            (least / codes as f64).max(0.1)
        };
        let mut pass = |ids: &[u32]| {
            best(ids.len(), &mut |keys| {
                for part in ids.chunks(32) {
                    // SAFETY: kernels of this processor; written cells that nobody changes.
                    unsafe { (kernels.dots)(&query, &slab, part, &mut keys[..part.len()]) };
                }
            })
        };
        let scan = pass(&ordered);
        let random = pass(&random);
        let batch = best(8 * products.len(), &mut |_| {
            for group in 0..8 {
                // SAFETY: as above; 64 cells of one chunk.
                unsafe {
                    (kernels.panel)(&panel, slab.start(group * ROWS), ROWS, &mut products);
                    (kernels.sift)(&products, &bars, &mut Vec::new());
                }
            }
        });
        // An offer to the pool and the bitmap come on top of the kernel.
        Self {
            scan: scan + 2.0,
            batch,
            random,
        }
    }

    pub(super) fn choose(&self, s: Situation) -> Executor {
        let allowed = s.allowed as f64;
        let scan = allowed * self.scan * if s.recall < 1.0 { SIEVED } else { 1.0 };
        // A batch reads every code once, and has room for whole lanes of queries.
        let lanes = s.queries.next_multiple_of(LANE) as f64;
        let batch = allowed * (self.scan + lanes * self.batch) / s.queries as f64;
        let exact = if s.queries >= 4 && batch < scan {
            (Executor::Batch, batch)
        } else {
            (Executor::Scan, scan)
        };
        if s.recall >= 1.0 || s.allowed <= 2 * s.ef {
            return exact.0;
        }
        let share = (allowed / (s.slots as f64).max(1.0)).clamp(1e-9, 1.0);
        let expansion = PER_EXPANSION * self.random;
        let ef = s.ef as f64;
        // Through everything: allowed slots come along in their share.
        let graph = (WARM_UP + ef / share) * expansion;
        let mut best = if graph < exact.1 {
            (Executor::Graph, graph)
        } else {
            exact
        };
        if s.filtered && (0.02..0.4).contains(&share) {
            // Over the others: more links are read for each expansion, but only allowed codes.
            let two_hop = (WARM_UP + 2.0 * ef) * expansion * 3.0;
            if two_hop < best.1 {
                best = (Executor::TwoHop, two_hop);
            }
        }
        best.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation(slots: usize, allowed: usize, queries: usize, recall: f32) -> Situation {
        Situation {
            slots,
            allowed,
            filtered: allowed < slots,
            queries,
            ef: 64,
            recall,
        }
    }

    #[test]
    fn few_allowed_slots_are_scanned_and_many_are_searched() {
        let costs = Costs::default();
        assert_eq!(costs.choose(situation(1_000_000, 1_000, 1, 0.95)), Executor::Scan);
        assert_eq!(
            costs.choose(situation(1_000_000, 1_000_000, 1, 0.95)),
            Executor::Graph
        );
        assert_eq!(
            costs.choose(situation(1_000_000, 500_000, 1, 0.95)),
            Executor::Graph
        );
        assert_eq!(costs.choose(situation(100, 100, 1, 0.95)), Executor::Scan);
    }

    #[test]
    fn a_recall_of_one_is_exact() {
        let costs = Costs::default();
        assert_eq!(
            costs.choose(situation(1_000_000, 1_000_000, 1, 1.0)),
            Executor::Scan
        );
        assert_eq!(
            costs.choose(situation(1_000_000, 1_000_000, 64, 1.0)),
            Executor::Batch
        );
    }

    #[test]
    fn measuring_ends_with_positive_costs_even_without_a_clock() {
        let costs = Costs::measure(|| Duration::ZERO);
        assert!(costs.scan > 0.0 && costs.batch > 0.0 && costs.random > 0.0);
    }
}
