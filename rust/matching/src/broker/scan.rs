//! The exact executors: every allowed code is looked at.
use super::graph::{offer, pack, slot_of};
use super::kernels::Query;
use super::store::Store;

/// Codes between two looks at the pool.
const STEP: usize = 64;

/// Fills `pool` with the up to `limit` slots nearest to the query that are allowed and that `version` shows; returns
/// how many were looked at.
pub(super) fn scan(
    store: &Store,
    query: &Query,
    limit: usize,
    allowed: &[u64],
    version: u64,
    pool: &mut Vec<u64>,
) -> usize {
    pool.clear();
    let mut ids = [0u32; 2 * STEP];
    let mut keys = [0i32; 2 * STEP];
    let (mut count, mut scored) = (0, 0);
    let mut flush = |ids: &[u32], pool: &mut Vec<u64>| {
        let keys = &mut keys[..ids.len()];
        store.score(query, ids, keys);
        for (&key, &id) in keys.iter().zip(ids) {
            take(store, pool, limit, pack(key, id), version);
        }
    };
    for (group, &word) in allowed.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            ids[count] = group as u32 * 64 + rest.trailing_zeros();
            rest &= rest - 1;
            count += 1;
        }
        if count >= STEP {
            flush(&ids[..count], pool);
            scored += count;
            count = 0;
        }
    }
    flush(&ids[..count], pool);
    scored + count
}

/// Offers a candidate, if it is good enough to look whether the version shows it.
#[inline(always)]
fn take(store: &Store, pool: &mut Vec<u64>, limit: usize, entry: u64, version: u64) {
    if (pool.len() < limit || pool.last().is_some_and(|&worst| entry < worst))
        && store.visible(slot_of(entry), version)
    {
        offer(pool, limit, entry);
    }
}

/// The same for several queries at once; `pools` has one pool for each.
pub(super) fn scan_batch(
    store: &Store,
    queries: &[Query],
    limit: usize,
    allowed: &[u64],
    version: u64,
    pools: &mut [Vec<u64>],
) -> usize {
    pools.iter_mut().for_each(Vec::clear);
    let count = queries.len();
    let mut keys = vec![0i32; 64 * count];
    let mut scored = 0;
    for (group, &word) in allowed.iter().enumerate() {
        let mut rest = word;
        let mut base = group as u32 * 64;
        // Runs of allowed slots: the others may be in the hands of the writer.
        while rest != 0 {
            let skip = rest.trailing_zeros();
            rest >>= skip;
            base += skip;
            let rows = rest.trailing_ones() as usize;
            let keys = &mut keys[..rows * count];
            store.panel(queries, base, rows, keys);
            for (row, keys) in keys.chunks_exact(count).enumerate() {
                for (&key, pool) in keys.iter().zip(pools.iter_mut()) {
                    take(store, pool, limit, pack(key, base + row as u32), version);
                }
            }
            scored += rows;
            rest = if rows == 64 { 0 } else { rest >> rows };
            base += rows as u32;
        }
    }
    scored
}
