//! The inner loops, once per instruction set, with the same results bit for bit.
//!
//! Integer results are exact, so any order of additions will do. Float results are the same because every version
//! adds in the same order: component i goes to lane i mod 32 by a fused multiply-add, and the lanes are folded in
//! halves (`fold`). Which version runs is decided once, from what the processor says it can do.
use std::sync::OnceLock;

use super::memory::ByteSlab;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

/// Components that all loops take at a time; widths are multiples of it.
pub(super) const BLOCK: usize = 64;
/// Independent sums of a float product.
pub(super) const LANES: usize = 32;

/// 64 components of a query, on a cache line of their own.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Block(pub(super) [i8; BLOCK]);

/// A query in the form the loops take.
#[derive(Clone, Debug, Default)]
pub(super) struct Query {
    /// Byte codes, signed.
    pub(super) codes: Vec<Block>,
    /// Their sum.
    pub(super) sum: i32,
    /// Length of the vector, by which similarities are multiplied; 1 if lengths do not matter.
    pub(super) norm: f32,
    /// How far a sketch may be wrong before it is believed, for a stored vector of norm 1; in units of a code
    /// product.
    pub(super) slack: f32,
    /// What is multiplied with the rerank vectors.
    pub(super) exact: Vec<f32>,
}

/// How the rerank vectors of a slab are stored.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Tail {
    F32,
    Bf16,
    /// The low bytes of 16-bit fixed-point numbers whose high bytes are the codes.
    Low,
}

/// Layout of a sketch: one bit a component, then the factor of the estimate, the norm and the sum of the codes, four
/// bytes each, padded to whole cache lines.
pub(super) const fn sketch_stride(width: usize) -> usize {
    (width / 8 + 12).next_multiple_of(64)
}

type Dots = unsafe fn(&Query, &ByteSlab, &[u32], &mut [i32]);
type Sieve = unsafe fn(&Query, &ByteSlab, &ByteSlab, &mut [u32], f32) -> usize;
type Tails = unsafe fn(Tail, &[f32], &ByteSlab, &ByteSlab, &[u32], &mut [f32]);
type Panel = unsafe fn(&[Query], *const u8, usize, &mut [i32]);

/// One version of every loop.
///
/// All four have the same contract. **Safety**: the processor has the instruction set; every id names a cell that
/// is initialised and that nobody writes meanwhile; the slabs have cells of the query's width; outputs are as long
/// as the ids.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// The instruction set, for people.
    pub(super) name: &'static str,
    /// Products of the query with byte codes.
    pub(super) dots: Dots,
    /// Keeps, in order, the ids whose sketch leaves a chance that their product is at least the bar; returns how
    /// many, and asks for the codes of those. Arguments: query, sketches, codes, ids, bar.
    pub(super) sieve: Sieve,
    /// Products of the exact query with rerank vectors. Arguments: kind, query, tails, codes, ids, output.
    pub(super) tails: Tails,
    /// Products of some queries with `rows` codes that lie one after the other; output row by row, one product
    /// for each query.
    pub(super) panel: Panel,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All versions this processor can run, the fastest first.
pub(super) fn available() -> Vec<Kernels> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
        {
            found.push(avx512::KERNELS);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            found.push(avx2::KERNELS);
        }
    }
    found.push(scalar::KERNELS);
    found
}

/// The fastest version.
pub(super) fn best() -> Kernels {
    static BEST: OnceLock<Kernels> = OnceLock::new();
    *BEST.get_or_init(|| available()[0])
}

/// Adds the lanes in halves: the fixed order of every version.
#[inline]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// What a sketch says about the product: the sum over the set bits is `set`, over all components `sum`.
#[inline(always)]
fn estimate(set: i32, sum: i32, factor: f32) -> f32 {
    (2 * set - sum) as f32 * factor
}

/// The two floats behind the bits of a sketch: the factor of the estimate, and the norm.
///
/// # Safety
/// `sketch` points to a whole sketch of `blocks` blocks.
#[inline(always)]
unsafe fn sketch_floats(sketch: *const u8, blocks: usize) -> (f32, f32) {
    // SAFETY: the floats follow the bits, says the layout (`sketch_stride`); a multiple of 8 aligns them.
    unsafe {
        let floats = sketch.add(blocks * (BLOCK / 8)).cast::<f32>();
        (floats.read(), floats.add(1).read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn random_slab(rng: &mut Rng, stride: usize, cells: usize) -> ByteSlab {
        let slab = ByteSlab::new(stride);
        slab.ensure(cells);
        for cell in 0..cells {
            let bytes: Vec<u8> = (0..stride).map(|_| rng.next_u64() as u8).collect();
            // SAFETY: nobody else has the slab.
            unsafe { slab.write(cell, &bytes) };
        }
        slab
    }

    /// Bytes of floats in [-1, 1): random bytes would hold NaN.
    fn float_slab(rng: &mut Rng, width: usize, cells: usize) -> ByteSlab {
        let slab = ByteSlab::new(4 * width);
        slab.ensure(cells);
        for cell in 0..cells {
            let bytes: Vec<u8> = (0..width)
                .flat_map(|_| (rng.unit() as f32 * 2.0 - 1.0).to_le_bytes())
                .collect();
            // SAFETY: nobody else has the slab.
            unsafe { slab.write(cell, &bytes) };
        }
        slab
    }

    fn sketch_slab(rng: &mut Rng, width: usize, cells: usize) -> ByteSlab {
        let slab = ByteSlab::new(sketch_stride(width));
        slab.ensure(cells);
        for cell in 0..cells {
            let mut bytes: Vec<u8> = (0..width / 8).map(|_| rng.next_u64() as u8).collect();
            bytes.extend((rng.unit() as f32 * 30.0 + 10.0).to_le_bytes());
            bytes.extend((rng.unit() as f32 + 0.5).to_le_bytes());
            // SAFETY: nobody else has the slab.
            unsafe { slab.write(cell, &bytes) };
        }
        slab
    }

    fn random_query(rng: &mut Rng, width: usize, extreme: bool) -> Query {
        let codes: Vec<Block> = (0..width / BLOCK)
            .map(|_| {
                Block(std::array::from_fn(|_| {
                    (if extreme {
                        127 - 254 * (rng.below(2) as i32)
                    } else {
                        rng.below(255) as i32 - 127
                    }) as i8
                }))
            })
            .collect();
        let sum = codes.iter().flat_map(|b| b.0).map(i32::from).sum();
        let exact = (0..width).map(|_| rng.unit() as f32 - 0.5).collect();
        Query {
            codes,
            sum,
            norm: 1.0,
            slack: 900.0,
            exact,
        }
    }

    #[test]
    fn every_version_gives_the_same_bits() {
        let mut rng = Rng::new(11);
        for width in [64, 128, 384, 448, 1024] {
            let cells = 41;
            let codes = random_slab(&mut rng, width, cells);
            let lows = random_slab(&mut rng, width, cells);
            let halves = random_slab(&mut rng, 2 * width, cells);
            for cell in 0..cells {
                // Exponents of all ones would be NaN or infinite.
                // SAFETY: nobody else has the slab.
                let mut bytes = unsafe { halves.read(cell) }.to_vec();
                bytes.chunks_exact_mut(2).for_each(|half| half[1] &= 0b1011_1111);
                // SAFETY: as above.
                unsafe { halves.write(cell, &bytes) };
            }
            let floats = float_slab(&mut rng, width, cells);
            let sketches = sketch_slab(&mut rng, width, cells);
            for extreme in [false, true] {
                let queries: Vec<Query> = (0..5).map(|_| random_query(&mut rng, width, extreme)).collect();
                let query = &queries[0];
                for count in [0, 1, 3, 4, 7, 16, 41] {
                    let ids: Vec<u32> = (0..count).map(|_| rng.below(cells as u32)).collect();
                    let results: Vec<_> = available()
                        .into_iter()
                        .map(|kernels| {
                            let mut dots = vec![0; ids.len()];
                            let mut kept = Vec::new();
                            let mut tails = Vec::new();
                            let mut panel = vec![0; cells * queries.len()];
                            // SAFETY: only versions that the processor has; the slabs have these cells and widths
                            // and nobody writes them.
                            unsafe {
                                (kernels.dots)(query, &codes, &ids, &mut dots);
                                for bar in [f32::MIN, -2000.0, 0.0, 5000.0] {
                                    let mut ids = ids.clone();
                                    let len = (kernels.sieve)(query, &sketches, &codes, &mut ids, bar);
                                    ids.truncate(len);
                                    kept.push(ids);
                                }
                                for (kind, slab) in
                                    [(Tail::F32, &floats), (Tail::Bf16, &halves), (Tail::Low, &lows)]
                                {
                                    let mut out = vec![0.0; ids.len()];
                                    (kernels.tails)(kind, &query.exact, slab, &codes, &ids, &mut out);
                                    tails.extend(out.into_iter().map(f32::to_bits));
                                }
                                (kernels.panel)(&queries, codes.start(0), cells, &mut panel);
                            }
                            (dots, kept, tails, panel)
                        })
                        .collect();
                    for result in &results[1..] {
                        assert_eq!(result, &results[0], "width {width}, {count} ids");
                    }
                    // And the panel is what the single products are.
                    for (&id, &dot) in ids.iter().zip(&results[0].0) {
                        assert_eq!(results[0].3[id as usize * queries.len()], dot);
                    }
                }
            }
        }
    }

    #[test]
    fn scalar_products_are_plain_sums() {
        let mut rng = Rng::new(3);
        let codes = random_slab(&mut rng, 128, 2);
        let query = random_query(&mut rng, 128, false);
        let mut out = [0];
        // SAFETY: as above.
        let cell = unsafe {
            (scalar::KERNELS.dots)(&query, &codes, &[1], &mut out);
            codes.read(1)
        };
        let flat = query.codes.iter().flat_map(|b| b.0);
        let plain: i32 = cell
            .iter()
            .zip(flat)
            .map(|(&c, q)| (i32::from(c) - 128) * i32::from(q))
            .sum();
        assert_eq!(out[0], plain);
    }
}
