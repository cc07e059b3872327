//! The inner loops, once per instruction set, with the same results bit for bit.
//!
//! Integer results are exact, so any order of additions will do. Float results are the same because every version
//! adds in the same order: component i goes to lane i mod 32 by a fused multiply-add, and the lanes are folded in
//! halves (`fold`). Which version runs is decided once, from what the processor says it can do.
use std::sync::OnceLock;

use super::memory::ByteSlab;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

/// Components that all loops take at a time; widths are multiples of it.
pub(super) const BLOCK: usize = 64;
/// Queries of a panel come in multiples of this.
pub(super) const LANE: usize = 32;
/// Rows that a panel takes at most.
pub(super) const ROWS: usize = 64;
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

/// Some queries in the form the batch loop takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Panel {
    /// The queries, in an order that stays.
    pub(super) queries: Vec<Query>,
    /// Their number, rounded up to [`LANE`]s: the products of a row are that far from those of the next.
    pub(super) stride: usize,
    /// What `Kernels::pack` makes of the queries, if the version has need of it.
    tiles: Vec<Block>,
    offsets: Vec<i32>,
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
type Products = unsafe fn(&Panel, *const u8, usize, &mut [i32]);
type Sift = unsafe fn(&[i32], &[i32], &mut Vec<(u32, u32)>);
type Ones = unsafe fn(&[u64]) -> usize;

/// One version of every loop.
///
/// All have the same contract. **Safety**: the processor has the instruction set; every id names a cell that
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
    /// Queries that a panel is best made of.
    pub(super) together: usize,
    /// Makes a panel ready whose queries have changed; they must be equally wide.
    pub(super) pack: fn(&mut Panel),
    /// Products of a packed panel with the first of 64 codes that lie one after the other and can all be read. Output
    /// row by row, `stride` apart, with room for [`ROWS`] of them; what lies behind the last query or row means
    /// nothing. Arguments: panel, codes, rows, output.
    pub(super) panel: Products,
    /// Appends row and column of the products that are above the bar of their column. Arguments: whole rows of
    /// products, bars (a multiple of [`LANE`]s of them), output.
    pub(super) sift: Sift,
    /// The number of bits that are set.
    pub(super) ones: Ones,
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
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
        {
            if amx::usable() {
                found.push(amx::KERNELS);
            }
            found.push(avx512::KERNELS);
        }
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("popcnt")
        {
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

impl Panel {
    /// Takes up to so many queries; the caller fills them in and packs the panel.
    pub(super) fn resize(&mut self, queries: usize) {
        self.queries.resize_with(queries, Query::default);
        self.stride = queries.next_multiple_of(LANE);
    }
}

/// For versions that take queries as they are.
fn unpacked(_: &mut Panel) {}

/// `Kernels::sift`, for any instruction set.
#[inline(always)]
fn sift_rows(keys: &[i32], bars: &[i32], hits: &mut Vec<(u32, u32)>) {
    for (row, keys) in (0..).zip(keys.chunks_exact(bars.len())) {
        for (part, (keys, bars)) in keys.chunks_exact(LANE).zip(bars.chunks_exact(LANE)).enumerate() {
            let any = keys
                .iter()
                .zip(bars)
                .fold(0, |any, (key, bar)| any | i32::from(key > bar));
            if any != 0 {
                let columns = (0..)
                    .zip(keys.iter().zip(bars))
                    .filter(|(_, (key, bar))| key > bar);
                hits.extend(columns.map(|(column, _): (u32, _)| (row, (part * LANE) as u32 + column)));
            }
        }
    }
}

/// `Kernels::ones`; a processor with the instruction does a word in one step.
#[inline(always)]
fn count_ones(words: &[u64]) -> usize {
    words.iter().map(|word| word.count_ones() as usize).sum()
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

    fn random_block(rng: &mut Rng, blocks: usize) -> Vec<Block> {
        (0..blocks)
            .map(|_| Block(std::array::from_fn(|_| rng.next_u64() as i8)))
            .collect()
    }

    /// The product of a query with codes, which are unsigned and have an offset.
    fn product(query: &Query, cell: &[Block]) -> i32 {
        let codes = cell
            .iter()
            .flat_map(|block| block.0)
            .map(|code| i32::from(code as u8) - 128);
        let query = query.codes.iter().flat_map(|block| block.0).map(i32::from);
        codes.zip(query).map(|(code, query)| code * query).sum()
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
                let queries: Vec<Query> = (0..if extreme { 5 } else { 70 })
                    .map(|_| random_query(&mut rng, width, extreme))
                    .collect();
                let query = &queries[0];
                let block: Vec<Block> = random_block(&mut rng, ROWS * width / BLOCK);
                for count in [0, 1, 3, 4, 7, 16, 41] {
                    let ids: Vec<u32> = (0..count).map(|_| rng.below(cells as u32)).collect();
                    let results: Vec<_> = available()
                        .into_iter()
                        .map(|kernels| {
                            let mut dots = vec![0; ids.len()];
                            let mut kept = Vec::new();
                            let mut tails = Vec::new();
                            let mut panel = Panel::default();
                            panel.resize(queries.len());
                            panel.queries.clone_from_slice(&queries);
                            (kernels.pack)(&mut panel);
                            let stride = panel.stride;
                            let mut wide = vec![0; ROWS * stride];
                            let mut hits = Vec::new();
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
                                (kernels.panel)(&panel, block.as_ptr().cast(), count.max(1), &mut wide);
                                for row in wide.chunks_exact_mut(stride) {
                                    row[queries.len()..].fill(0);
                                }
                                wide.truncate(count.max(1) * stride);
                                (kernels.sift)(&wide, &vec![2000; stride], &mut hits);
                                hits.sort_unstable();
                                let words: Vec<u64> = ids.iter().map(|&id| u64::from(id) << id).collect();
                                assert_eq!((kernels.ones)(&words), count_ones(&words));
                            }
                            (dots, kept, tails, wide, hits)
                        })
                        .collect();
                    for result in &results[1..] {
                        assert_eq!(result, &results[0], "width {width}, {count} ids");
                    }
                    // And the panel is what the single products are.
                    for (row, cell) in block.chunks_exact(width / BLOCK).take(count.max(1)).enumerate() {
                        for (column, query) in queries.iter().enumerate() {
                            assert_eq!(
                                results[0].3[row * LANE * queries.len().div_ceil(LANE) + column],
                                product(query, cell)
                            );
                        }
                    }
                    let above = results[0].3.iter().filter(|&&key| key > 2000).count();
                    assert_eq!(results[0].4.len(), above);
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
