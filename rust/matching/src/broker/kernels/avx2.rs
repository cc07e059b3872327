//! 256-bit registers, without the byte-product instructions of later processors.
use std::arch::x86_64::*;

use super::{
    BLOCK, Kernels, LANES, Panel, Query, Tail, count_ones, estimate, fold, sift_rows, sketch_floats, unpacked,
};
use crate::broker::memory::ByteSlab;

pub(super) const KERNELS: Kernels = Kernels {
    name: "avx2",
    dots,
    sieve,
    tails,
    together: 32,
    pack: unpacked,
    panel,
    sift,
    ones,
};

#[target_feature(enable = "avx2,fma")]
#[inline]
fn sum_i32(x: __m256i) -> i32 {
    let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    let x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0b01_00_11_10));
    _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0b10_11_00_01)))
}

/// # Safety
/// `cell` points to the codes of a vector as wide as the query.
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn dot(query: &Query, cell: *const u8) -> i32 {
    let mut sums = [_mm256_setzero_si256(); 2];
    for (at, block) in query.codes.iter().enumerate() {
        for part in 0..4 {
            // SAFETY: 16 bytes inside block `at` of cell and query.
            let (c, q) = unsafe {
                let c = _mm_loadu_si128(cell.add(at * BLOCK + part * 16).cast());
                let q = _mm_loadu_si128(block.0.as_ptr().add(part * 16).cast());
                (c, q)
            };
            // Widened to 16 bits: the byte products of this instruction set saturate.
            let product = _mm256_madd_epi16(_mm256_cvtepu8_epi16(c), _mm256_cvtepi8_epi16(q));
            sums[part % 2] = _mm256_add_epi32(sums[part % 2], product);
        }
    }
    sum_i32(_mm256_add_epi32(sums[0], sums[1])) - 128 * query.sum
}

#[target_feature(enable = "avx2,fma")]
unsafe fn dots(query: &Query, codes: &ByteSlab, ids: &[u32], out: &mut [i32]) {
    for (at, (&id, out)) in ids.iter().zip(out).enumerate() {
        // SAFETY: the contract of `Kernels`.
        unsafe {
            if let Some(&next) = ids.get(at + 4) {
                request(codes.start_unchecked(next as usize), query.codes.len());
            }
            *out = dot(query, codes.start_unchecked(id as usize));
        }
    }
}

#[inline(always)]
fn request(cell: *const u8, lines: usize) {
    for line in 0..lines {
        crate::hint::prefetch(cell.wrapping_add(line * 64));
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn sieve(query: &Query, sketches: &ByteSlab, codes: &ByteSlab, ids: &mut [u32], bar: f32) -> usize {
    // Byte k of each half looks at bit k mod 8 of byte k / 8.
    let spread = _mm256_setr_epi8(
        0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3,
    );
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201u64 as i64);
    let ones = _mm256_set1_epi8(1);
    let wide_ones = _mm256_set1_epi16(1);
    let mut kept = 0;
    for at in 0..ids.len() {
        let id = ids[at];
        // SAFETY: the contract of `Kernels`.
        let (set, (factor, norm)) = unsafe {
            let sketch = sketches.start_unchecked(id as usize);
            let mut sum = _mm256_setzero_si256();
            for (block, part) in query.codes.iter().enumerate() {
                for half in 0..2 {
                    let bits = sketch.add(block * 8 + half * 4).cast::<i32>().read();
                    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread);
                    let mask = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
                    let q = _mm256_loadu_si256(part.0.as_ptr().add(half * 32).cast());
                    let pairs = _mm256_maddubs_epi16(ones, _mm256_and_si256(q, mask));
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, wide_ones));
                }
            }
            (sum_i32(sum), sketch_floats(sketch, query.codes.len()))
        };
        if estimate(set, query.sum, factor) + query.slack * norm >= bar {
            request(codes.start(id as usize), query.codes.len());
            ids[kept] = id;
            kept += 1;
        }
    }
    kept
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tails(kind: Tail, query: &[f32], tails: &ByteSlab, codes: &ByteSlab, ids: &[u32], out: &mut [f32]) {
    for (&id, out) in ids.iter().zip(out) {
        let mut sums = [_mm256_setzero_ps(); 4];
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the contract of `Kernels`: whole cells of the query's width, a multiple of 64.
        unsafe {
            let tail = tails.start_unchecked(id as usize);
            let code = codes.start_unchecked(id as usize);
            for start in (0..query.len()).step_by(LANES) {
                for (part, sum) in sums.iter_mut().enumerate() {
                    let at = start + part * 8;
                    let x = match kind {
                        Tail::F32 => _mm256_loadu_ps(tail.cast::<f32>().add(at)),
                        Tail::Bf16 => {
                            let halves = _mm_loadu_si128(tail.add(2 * at).cast());
                            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))
                        }
                        Tail::Low => {
                            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(code.add(at).cast()));
                            let high = _mm256_slli_epi32(_mm256_sub_epi32(high, _mm256_set1_epi32(128)), 8);
                            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(tail.add(at).cast()));
                            _mm256_cvtepi32_ps(_mm256_add_epi32(high, low))
                        }
                    };
                    *sum = _mm256_fmadd_ps(x, _mm256_loadu_ps(query.as_ptr().add(at)), *sum);
                }
            }
            for (part, sum) in sums.iter().enumerate() {
                _mm256_storeu_ps(lanes.as_mut_ptr().add(part * 8), *sum);
            }
        }
        *out = fold(lanes);
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn panel(panel: &Panel, codes: *const u8, rows: usize, out: &mut [i32]) {
    let width = panel.queries.first().map_or(0, |query| query.codes.len() * BLOCK);
    for row in 0..rows {
        for (query, out) in panel.queries.iter().zip(&mut out[row * panel.stride..]) {
            // SAFETY: the contract of `Kernels`: `rows` cells one after the other.
            *out = unsafe { dot(query, codes.add(row * width)) };
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn sift(keys: &[i32], bars: &[i32], hits: &mut Vec<(u32, u32)>) {
    sift_rows(keys, bars, hits);
}

#[target_feature(enable = "popcnt")]
unsafe fn ones(words: &[u64]) -> usize {
    count_ones(words)
}
