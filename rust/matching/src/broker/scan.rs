//! The executors that look at every allowed slot.
use super::graph::{key_of, offer, pack, slot_of};
use super::kernels::{Block, Panel, Query, ROWS};
use super::memory::ByteSlab;
use super::store::Store;

/// Codes between two looks at the pool.
const STEP: usize = 64;
/// Sketches between two of them. Few, so that the next ones are asked for at the pace at which they are looked at.
const SKETCHES: usize = 16;
/// Sketches on their way while others are looked at: as many as keep the memory busy.
const AHEAD: usize = 64;
/// Slots that are collected before any is looked at.
const ROOM: usize = 512;

/// Fills `pool` with the up to `limit` slots nearest to the query that are allowed and that `version` shows; returns
/// how many codes were looked at: all, or, if `sieved`, those whose sketches, of a sixth of the size, leave a chance.
pub(super) fn scan(
    store: &Store,
    query: &Query,
    limit: usize,
    allowed: &[u64],
    version: u64,
    sieved: bool,
    pool: &mut Vec<u64>,
) -> usize {
    pool.clear();
    let mut ids = [0u32; ROOM + AHEAD + 64];
    let mut keys = [0i32; STEP];
    let step = if sieved { SKETCHES } else { STEP };
    let mut scored = 0;
    let mut look = |ids: &mut [u32], pool: &mut Vec<u64>| {
        let mut count = ids.len();
        if sieved && pool.len() >= limit {
            count = store.sieve(query, ids, key_of(pool[limit - 1]));
        }
        if count == 0 {
            return;
        }
        scored += count;
        let keys = &mut keys[..count];
        store.score(query, &ids[..count], keys);
        for (&key, &id) in keys.iter().zip(&*ids) {
            take(store, pool, limit, pack(key, id), version);
        }
    };
    let mut count = 0;
    for (group, &word) in allowed.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            ids[count] = group as u32 * 64 + rest.trailing_zeros();
            rest &= rest - 1;
            count += 1;
        }
        if count >= ROOM + AHEAD {
            let mut at = 0;
            while at + step + AHEAD <= count {
                if sieved {
                    let ahead = &ids[at + AHEAD..at + AHEAD + step];
                    ahead.iter().for_each(|&id| store.prefetch_sketch(id));
                }
                look(&mut ids[at..at + step], pool);
                at += step;
            }
            ids.copy_within(at..count, 0);
            count -= at;
        }
    }
    ids[..count].chunks_mut(step).for_each(|ids| look(ids, pool));
    scored
}

/// The same, sieved, for a list of slots whose sketches lie one after the other.
pub(super) fn scan_listed(
    store: &Store,
    query: &Query,
    limit: usize,
    (slots, sketches): (&[u32], &ByteSlab),
    version: u64,
    pool: &mut Vec<u64>,
) -> usize {
    pool.clear();
    let mut ids = [0u32; SKETCHES];
    let mut keys = [0i32; SKETCHES];
    let mut scored = 0;
    for (part, slots) in slots.chunks(SKETCHES).enumerate() {
        let ids = &mut ids[..slots.len()];
        let count = if pool.len() >= limit {
            let first = (part * SKETCHES) as u32;
            ids.iter_mut().zip(first..).for_each(|(id, place)| *id = place);
            let count = store.sieve_in(query, sketches, ids, key_of(pool[limit - 1]));
            ids[..count]
                .iter_mut()
                .for_each(|id| *id = slots[(*id - first) as usize]);
            count
        } else {
            ids.copy_from_slice(slots);
            slots.len()
        };
        if count == 0 {
            continue;
        }
        scored += count;
        store.score(query, &ids[..count], &mut keys[..count]);
        for (&key, &id) in keys[..count].iter().zip(&*ids) {
            take(store, pool, limit, pack(key, id), version);
        }
    }
    scored
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

/// Memory of a batch scan, kept between scans.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The queries.
    pub(super) panel: Panel,
    /// Their candidates.
    pub(super) pools: Vec<Vec<u64>>,
    room: Vec<Block>,
    keys: Vec<i32>,
    /// What a key must be above to get into a pool; nothing gets into those behind the last.
    bars: Vec<i32>,
    hits: Vec<(u32, u32)>,
}

/// The same for all queries of a batch at once.
pub(super) fn scan_batch(
    store: &Store,
    limit: usize,
    allowed: &[u64],
    version: u64,
    batch: &mut Batch,
) -> usize {
    let count = batch.panel.queries.len();
    batch.pools.resize_with(count, Vec::new);
    batch.pools.iter_mut().for_each(Vec::clear);
    batch.keys.resize(ROWS * batch.panel.stride, 0);
    batch.bars.clear();
    batch.bars.resize(count, i32::MIN);
    batch.bars.resize(batch.panel.stride, i32::MAX);
    store.pack(&mut batch.panel);
    let mut ids = [0u32; 2 * ROWS];
    let (mut held, mut scored) = (0, 0);
    for (group, &word) in allowed.iter().enumerate() {
        let mut rest = word;
        // A full group goes by itself: its codes lie one after the other.
        if rest == u64::MAX && held > 0 && held < ROWS {
            take_rows(store, &ids[..held], limit, version, batch);
            held = 0;
        }
        while rest != 0 {
            ids[held] = group as u32 * 64 + rest.trailing_zeros();
            rest &= rest - 1;
            held += 1;
        }
        while held >= ROWS {
            take_rows(store, &ids[..ROWS], limit, version, batch);
            ids.copy_within(ROWS.., 0);
            held -= ROWS;
        }
        scored += word.count_ones() as usize;
    }
    if held > 0 {
        take_rows(store, &ids[..held], limit, version, batch);
    }
    scored
}

fn take_rows(store: &Store, ids: &[u32], limit: usize, version: u64, batch: &mut Batch) {
    let Batch {
        panel,
        pools,
        room,
        keys,
        bars,
        hits,
    } = batch;
    store.panel(panel, ids, room, keys);
    hits.clear();
    store.sift(&keys[..ids.len() * panel.stride], bars, hits);
    for &(row, column) in hits.iter() {
        let (row, column) = (row as usize, column as usize);
        let pool = &mut pools[column];
        take(
            store,
            pool,
            limit,
            pack(keys[row * panel.stride + column], ids[row]),
            version,
        );
        if pool.len() == limit {
            bars[column] = key_of(pool[limit - 1]);
        }
    }
}
