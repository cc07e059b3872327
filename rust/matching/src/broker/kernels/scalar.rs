//! The plain version: what the others must equal, and what runs where nothing else does.
use super::{
    BLOCK, Kernels, LANES, Panel, Query, Tail, count_ones, estimate, fold, sift_rows, sketch_floats, unpacked,
};
use crate::broker::memory::ByteSlab;

pub(super) const KERNELS: Kernels = Kernels {
    name: "scalar",
    dots,
    sieve,
    tails,
    together: 32,
    pack: unpacked,
    panel,
    sift,
    ones,
};

/// # Safety
/// `cell` points to the codes of a vector as wide as the query.
unsafe fn dot(query: &Query, cell: *const u8) -> i32 {
    let mut sum = 0i32;
    for (at, block) in query.codes.iter().enumerate() {
        // SAFETY: block `at` of a cell that has as many blocks as the query.
        let codes = unsafe { std::slice::from_raw_parts(cell.add(at * BLOCK), BLOCK) };
        sum += codes
            .iter()
            .zip(&block.0)
            .map(|(&c, &q)| i32::from(c) * i32::from(q))
            .sum::<i32>();
    }
    sum - 128 * query.sum
}

unsafe fn dots(query: &Query, codes: &ByteSlab, ids: &[u32], out: &mut [i32]) {
    for (&id, out) in ids.iter().zip(out) {
        // SAFETY: the contract of `Kernels`.
        *out = unsafe { dot(query, codes.start_unchecked(id as usize)) };
    }
}

unsafe fn sieve(query: &Query, sketches: &ByteSlab, codes: &ByteSlab, ids: &mut [u32], bar: f32) -> usize {
    let mut kept = 0;
    for at in 0..ids.len() {
        let id = ids[at];
        // SAFETY: the contract of `Kernels`.
        let (set, (factor, norm)) = unsafe {
            let sketch = sketches.start_unchecked(id as usize);
            let mut set = 0;
            for (block, codes) in query.codes.iter().enumerate() {
                let bits = sketch.add(block * 8).cast::<u64>().read();
                let bits = u64::from_le(bits);
                for (bit, &code) in codes.0.iter().enumerate() {
                    set += i32::from(code) * (bits >> bit & 1) as i32;
                }
            }
            (set, sketch_floats(sketch, query.codes.len()))
        };
        if estimate(set, query.sum, factor) + query.slack * norm >= bar {
            crate::hint::prefetch(codes.start(id as usize));
            ids[kept] = id;
            kept += 1;
        }
    }
    kept
}

unsafe fn tails(kind: Tail, query: &[f32], tails: &ByteSlab, codes: &ByteSlab, ids: &[u32], out: &mut [f32]) {
    for (&id, out) in ids.iter().zip(out) {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the contract of `Kernels`: whole cells of the query's width.
        unsafe {
            let tail = tails.start_unchecked(id as usize);
            let code = codes.start_unchecked(id as usize);
            for (at, &q) in query.iter().enumerate() {
                let x = match kind {
                    Tail::F32 => f32::from_le_bytes(tail.add(4 * at).cast::<[u8; 4]>().read()),
                    Tail::Bf16 => {
                        let half = u16::from_le_bytes(tail.add(2 * at).cast::<[u8; 2]>().read());
                        f32::from_bits(u32::from(half) << 16)
                    }
                    Tail::Low => {
                        let high = i32::from(code.add(at).read()) - 128;
                        (high * 256 + i32::from(tail.add(at).cast::<i8>().read())) as f32
                    }
                };
                lanes[at % LANES] = x.mul_add(q, lanes[at % LANES]);
            }
        }
        *out = fold(lanes);
    }
}

unsafe fn panel(panel: &Panel, codes: *const u8, rows: usize, out: &mut [i32]) {
    let width = panel.queries.first().map_or(0, |query| query.codes.len() * BLOCK);
    for row in 0..rows {
        for (query, out) in panel.queries.iter().zip(&mut out[row * panel.stride..]) {
            // SAFETY: the contract of `Kernels`: `rows` cells one after the other.
            *out = unsafe { dot(query, codes.add(row * width)) };
        }
    }
}

unsafe fn sift(keys: &[i32], bars: &[i32], hits: &mut Vec<(u32, u32)>) {
    sift_rows(keys, bars, hits);
}

unsafe fn ones(words: &[u64]) -> usize {
    count_ones(words)
}
