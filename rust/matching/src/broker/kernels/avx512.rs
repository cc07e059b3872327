//! 512-bit registers with the byte-product instruction (VNNI): four vectors at a time, so that one load of the
//! query serves four products and their horizontal sums are made together.
use std::arch::x86_64::*;

use super::{BLOCK, Kernels, LANE, LANES, Panel, Query, Tail, count_ones, fold, unpacked};
use crate::broker::memory::ByteSlab;

pub(super) const KERNELS: Kernels = Kernels {
    name: "avx512-vnni",
    dots,
    sieve,
    tails,
    together: 32,
    pack: unpacked,
    panel,
    sift,
    ones,
};

/// The sums of four registers, one in each lane.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn sums(x: [__m512i; 4]) -> __m128i {
    let ab = _mm512_add_epi32(
        _mm512_unpacklo_epi32(x[0], x[1]),
        _mm512_unpackhi_epi32(x[0], x[1]),
    );
    let cd = _mm512_add_epi32(
        _mm512_unpacklo_epi32(x[2], x[3]),
        _mm512_unpackhi_epi32(x[2], x[3]),
    );
    let all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    let half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1))
}

#[inline(always)]
fn request(cell: *const u8, lines: usize) {
    // Lines come in pairs on these processors.
    for line in (0..lines).step_by(2) {
        crate::hint::prefetch(cell.wrapping_add(line * 64));
    }
}

/// # Safety
/// All four point to codes of vectors as wide as the query.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
unsafe fn four(query: &Query, cells: [*const u8; 4]) -> __m128i {
    let mut acc = [_mm512_setzero_si512(); 4];
    for (at, block) in query.codes.iter().enumerate() {
        // SAFETY: block `at` of cells that have as many blocks as the query.
        unsafe {
            let q = _mm512_load_si512(block.0.as_ptr().cast());
            for (sum, cell) in acc.iter_mut().zip(cells) {
                *sum = _mm512_dpbusd_epi32(*sum, _mm512_loadu_si512(cell.add(at * BLOCK).cast()), q);
            }
        }
    }
    _mm_sub_epi32(sums(acc), _mm_set1_epi32(128 * query.sum))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn dots(query: &Query, codes: &ByteSlab, ids: &[u32], out: &mut [i32]) {
    let lines = query.codes.len();
    // SAFETY: the contract of `Kernels`.
    unsafe {
        let at = |k: usize| codes.start_unchecked(*ids.get_unchecked(k) as usize);
        for k in 0..ids.len().min(4) {
            request(at(k), lines);
        }
        let mut k = 0;
        while k < ids.len() {
            for ahead in k + 4..(k + 8).min(ids.len()) {
                request(at(ahead), lines);
            }
            // A group that is not full repeats its last member.
            let last = ids.len() - 1;
            let found = four(
                query,
                [
                    at(k),
                    at((k + 1).min(last)),
                    at((k + 2).min(last)),
                    at((k + 3).min(last)),
                ],
            );
            let mut four = [0i32; 4];
            _mm_storeu_si128(four.as_mut_ptr().cast(), found);
            let room = (ids.len() - k).min(4);
            out[k..k + room].copy_from_slice(&four[..room]);
            k += 4;
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn sieve(query: &Query, sketches: &ByteSlab, codes: &ByteSlab, ids: &mut [u32], bar: f32) -> usize {
    let blocks = query.codes.len();
    let ones = _mm512_set1_epi8(1);
    let mut kept = 0;
    let mut k = 0;
    while k < ids.len() {
        let last = ids.len() - 1;
        let group: [u32; 4] = std::array::from_fn(|j| ids[(k + j).min(last)]);
        let mut acc = [_mm512_setzero_si512(); 4];
        // SAFETY: the contract of `Kernels`.
        let hits = unsafe {
            let cells = group.map(|id| sketches.start_unchecked(id as usize));
            for (at, block) in query.codes.iter().enumerate() {
                let q = _mm512_load_si512(block.0.as_ptr().cast());
                for (sum, cell) in acc.iter_mut().zip(cells) {
                    let mask = cell.add(at * 8).cast::<u64>().read();
                    *sum = _mm512_dpbusd_epi32(*sum, _mm512_maskz_mov_epi8(mask, ones), q);
                }
            }
            // The same floats in the same order as `estimate`, for four at a time.
            let set = sums(acc);
            let signed = _mm_cvtepi32_ps(_mm_sub_epi32(_mm_add_epi32(set, set), _mm_set1_epi32(query.sum)));
            let pair = |j: usize| _mm_castpd_ps(_mm_load_sd(cells[j].add(blocks * 8).cast()));
            let low = _mm_unpacklo_ps(pair(0), pair(1));
            let high = _mm_unpacklo_ps(pair(2), pair(3));
            let (factor, norm) = (_mm_movelh_ps(low, high), _mm_movehl_ps(high, low));
            let best = _mm_add_ps(
                _mm_mul_ps(signed, factor),
                _mm_mul_ps(_mm_set1_ps(query.slack), norm),
            );
            _mm_movemask_ps(_mm_cmpge_ps(best, _mm_set1_ps(bar)))
        };
        for (j, &id) in group[..(ids.len() - k).min(4)].iter().enumerate() {
            if hits >> j & 1 != 0 {
                // SAFETY: as above.
                request(unsafe { codes.start_unchecked(id as usize) }, blocks);
                ids[kept] = id;
                kept += 1;
            }
        }
        k += 4;
    }
    kept
}

/// # Safety
/// The contract of `Kernels` for one id whose cells start at `tail` and `code`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
unsafe fn load(kind: Tail, tail: *const u8, code: *const u8, at: usize) -> __m512 {
    // SAFETY: 16 components inside the cells.
    unsafe {
        match kind {
            Tail::F32 => _mm512_loadu_ps(tail.cast::<f32>().add(at)),
            Tail::Bf16 => {
                let halves = _mm256_loadu_si256(tail.add(2 * at).cast());
                _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))
            }
            Tail::Low => {
                let high = _mm512_cvtepu8_epi32(_mm_loadu_si128(code.add(at).cast()));
                let high = _mm512_slli_epi32(_mm512_sub_epi32(high, _mm512_set1_epi32(128)), 8);
                let low = _mm512_cvtepi8_epi32(_mm_loadu_si128(tail.add(at).cast()));
                _mm512_cvtepi32_ps(_mm512_add_epi32(high, low))
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn tails(kind: Tail, query: &[f32], tails: &ByteSlab, codes: &ByteSlab, ids: &[u32], out: &mut [f32]) {
    let lines = query.len() / 64
        * match kind {
            Tail::F32 => 4,
            Tail::Bf16 => 2,
            Tail::Low => 1,
        };
    // SAFETY: the contract of `Kernels`: whole cells of the query's width, a multiple of 64.
    unsafe {
        let ahead = |k: usize| {
            if let Some(&id) = ids.get(k) {
                request(tails.start_unchecked(id as usize), lines);
            }
        };
        (0..3).for_each(ahead);
        for (k, (&id, out)) in ids.iter().zip(out).enumerate() {
            ahead(k + 3);
            let tail = tails.start_unchecked(id as usize);
            let code = codes.start_unchecked(id as usize);
            let mut even = _mm512_setzero_ps();
            let mut odd = _mm512_setzero_ps();
            for at in (0..query.len()).step_by(LANES) {
                let q = query.as_ptr().add(at);
                even = _mm512_fmadd_ps(load(kind, tail, code, at), _mm512_loadu_ps(q), even);
                odd = _mm512_fmadd_ps(load(kind, tail, code, at + 16), _mm512_loadu_ps(q.add(16)), odd);
            }
            let mut lanes = [0.0f32; LANES];
            _mm512_storeu_ps(lanes.as_mut_ptr(), even);
            _mm512_storeu_ps(lanes.as_mut_ptr().add(16), odd);
            *out = fold(lanes);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn panel(panel: &Panel, codes: *const u8, rows: usize, out: &mut [i32]) {
    let Panel { queries, stride, .. } = panel;
    let count = queries.len();
    let width = queries.first().map_or(0, |query| query.codes.len() * BLOCK);
    let mut row = 0;
    while row < rows {
        let last = rows - 1;
        // SAFETY: the contract of `Kernels`: `rows` cells one after the other. A group that is not full repeats
        // its last member.
        unsafe {
            let cell: [*const u8; 4] = std::array::from_fn(|j| codes.add((row + j).min(last) * width));
            let room = (rows - row).min(4);
            let mut put = |query: usize, found: __m128i| {
                let mut four = [0i32; 4];
                _mm_storeu_si128(four.as_mut_ptr().cast(), found);
                for (j, &value) in four[..room].iter().enumerate() {
                    out[(row + j) * stride + query] = value;
                }
            };
            let mut query = 0;
            // Four rows by four queries: sixteen sums in registers for eight loads.
            while query + 4 <= count {
                let group = &queries[query..query + 4];
                let mut acc = [[_mm512_setzero_si512(); 4]; 4];
                for at in 0..group[0].codes.len() {
                    let c = cell.map(|cell| _mm512_loadu_si512(cell.add(at * BLOCK).cast()));
                    for (acc, query) in acc.iter_mut().zip(group) {
                        let q = _mm512_load_si512(query.codes.get_unchecked(at).0.as_ptr().cast());
                        for (sum, c) in acc.iter_mut().zip(c) {
                            *sum = _mm512_dpbusd_epi32(*sum, c, q);
                        }
                    }
                }
                for (j, acc) in acc.into_iter().enumerate() {
                    put(
                        query + j,
                        _mm_sub_epi32(sums(acc), _mm_set1_epi32(128 * group[j].sum)),
                    );
                }
                query += 4;
            }
            while query < count {
                put(query, four(&queries[query], cell));
                query += 1;
            }
        }
        row += 4;
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn sift(keys: &[i32], bars: &[i32], hits: &mut Vec<(u32, u32)>) {
    const HALF: usize = LANE / 2;
    let stride = bars.len();
    let rows = keys.len() / stride;
    assert!(stride.is_multiple_of(LANE));
    for column in (0..stride).step_by(HALF) {
        // SAFETY: 16 numbers of a row, and of the bars.
        let (bar, at) = unsafe {
            let bar = _mm512_loadu_si512(bars.as_ptr().add(column).cast());
            (bar, |row: usize| {
                _mm512_loadu_si512(keys.as_ptr().add(row * stride + column).cast())
            })
        };
        let mut note = |row: usize| {
            let mut above = _mm512_cmpgt_epi32_mask(at(row), bar);
            while above != 0 {
                hits.push((row as u32, column as u32 + above.trailing_zeros()));
                above &= above - 1;
            }
        };
        // Products above the bar are rare: the largest of eight rows tells for all.
        let mut row = 0;
        while row + 8 <= rows {
            let pairs = [0, 2, 4, 6].map(|j| _mm512_max_epi32(at(row + j), at(row + j + 1)));
            let most = _mm512_max_epi32(
                _mm512_max_epi32(pairs[0], pairs[1]),
                _mm512_max_epi32(pairs[2], pairs[3]),
            );
            if _mm512_cmpgt_epi32_mask(most, bar) != 0 {
                (row..row + 8).for_each(&mut note);
            }
            row += 8;
        }
        (row..rows).for_each(&mut note);
    }
}

#[target_feature(enable = "popcnt")]
unsafe fn ones(words: &[u64]) -> usize {
    count_ones(words)
}
