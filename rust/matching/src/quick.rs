//! The quick path of dedicated teams: a few blocks per capability, least loaded candidates, scarce capabilities first.
//!
//! Split in two so that a batch can overlap them: [`draw`] reads pool headers and asks for the blocks, [`choose`]
//! decides. Two dependent cache misses in all, each kind overlapping over the capabilities.
use std::sync::atomic::Ordering;

use crate::assembly::{Pick, TeamSpec};
use crate::hint::prefetch;
use crate::rng::Rng;
use crate::store::{Block, LANES, PoolHead, View, entry_score, entry_slot};

/// The largest team this path serves; larger ones go the exact way.
pub(crate) const QUICK_TEAM: u32 = 128;
/// The most agents of one capability it serves.
pub(crate) const QUICK_COUNT: u32 = (KEYS / 2) as u32;
/// Keys of one requirement.
const KEYS: usize = 64;
/// Extra blocks looked at when a sample runs dry.
const TOP_UPS: u32 = 4;
/// Ties are broken by these bits of an entry, mixed with a random number.
const SALT: u64 = 0x0000_FFFF_FFFF_FFFF;

/// One capability and the number of agents wanted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Want {
    pub(crate) capability: u32,
    pub(crate) count: u32,
}

/// The plain form of a specification: one capability a line and few agents.
pub(crate) fn plain(spec: &TeamSpec) -> Option<(Vec<Want>, u32)> {
    let total = spec.total();
    let simple = total <= QUICK_TEAM
        && spec
            .required
            .iter()
            .all(|r| r.any.len() == 1 && r.count <= QUICK_COUNT);
    simple.then(|| {
        (
            spec.required
                .iter()
                .map(|r| Want {
                    capability: r.any[0],
                    count: r.count,
                })
                .collect(),
            total,
        )
    })
}

/// What [`draw`] prepared for at most `T` requirements with `B` blocks each.
pub(crate) struct Sample<const B: usize, const T: usize> {
    live: [u32; T],
    blocks: [[u32; B]; T],
    fewest: u32,
    rng: Rng,
}

/// Reads how many agents each pool has, chooses `B` random blocks in each and asks for them.
#[inline(always)]
pub(crate) fn draw<const B: usize, const T: usize>(
    view: &View<'_>,
    heads: &[PoolHead],
    wants: &[Want],
    mut rng: Rng,
) -> Option<Sample<B, T>> {
    let mut sample = Sample {
        live: [0; T],
        blocks: [[0; B]; T],
        fewest: u32::MAX,
        rng: Rng::new(0),
    };
    if wants.len() > T {
        return None;
    }
    for ((want, live), places) in wants.iter().zip(&mut sample.live).zip(&mut sample.blocks) {
        let head = heads.get(want.capability as usize)?;
        let here = head.live();
        *live = here;
        sample.fewest = sample.fewest.min(here);
        let blocks = view.blocks(head).as_ptr();
        let draw = rng.next_u64();
        let mut low = draw as u32;
        for place in places {
            // A random agent's block, not a random block: the last one may be partly filled.
            let block = ((u64::from(low) * u64::from(here)) >> 32) as u32 / LANES;
            *place = block;
            prefetch(blocks.wrapping_add(block as usize));
            low = low.wrapping_mul(0x9E37_79B1) ^ (draw >> 32) as u32;
        }
    }
    sample.rng = rng;
    Some(sample)
}

/// Asks for the pool headers of a request that is decided later.
#[inline(always)]
pub(crate) fn announce(heads: &[PoolHead], wants: &[Want]) {
    for want in wants {
        prefetch(heads.as_ptr().wrapping_add(want.capability as usize));
    }
}

/// Decides on a sample. Writes the chosen agents, in the order of `wants`, to `picks`. False when a sample ran dry,
/// which proves nothing.
#[inline(always)]
pub(crate) fn choose<const B: usize, const T: usize>(
    view: &View<'_>,
    heads: &[PoolHead],
    wants: &[Want],
    total: u32,
    mut sample: Sample<B, T>,
    accepts: impl Fn(u32) -> bool,
    picks: &mut Vec<Pick>,
) -> bool {
    picks.clear();
    if sample.fewest >= total {
        // No pool can be exhausted by the others: any order serves, so the given one.
        picks.reserve(total as usize);
        let salt = sample.rng.next_u64() & SALT;
        for i in 0..wants.len() {
            if !serve(view, heads, wants, total, &mut sample, i, salt, &accepts, picks) {
                return false;
            }
        }
        return true;
    }
    // Only a pool smaller than the team can be a bottleneck: those first, ascending.
    let mut order = [0u8; T];
    let mut scarce = 0;
    for (i, &live) in sample.live[..wants.len()].iter().enumerate() {
        if live < total {
            let mut at = scarce;
            while at > 0 && sample.live[order[at - 1] as usize] > live {
                order[at] = order[at - 1];
                at -= 1;
            }
            order[at] = i as u8;
            scarce += 1;
        }
    }
    let mut filled = scarce;
    for (i, &live) in sample.live[..wants.len()].iter().enumerate() {
        if live >= total {
            order[filled] = i as u8;
            filled += 1;
        }
    }
    let salt = sample.rng.next_u64() & SALT;
    for &i in &order[..filled] {
        if !serve(
            view,
            heads,
            wants,
            total,
            &mut sample,
            i as usize,
            salt,
            &accepts,
            picks,
        ) {
            return false;
        }
    }
    picks.sort_by_key(|p| p.serves);
    true
}

/// Takes the best unused candidates of requirement `i`.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the loop body of `choose`")]
fn serve<const B: usize, const T: usize>(
    view: &View<'_>,
    heads: &[PoolHead],
    wants: &[Want],
    total: u32,
    sample: &mut Sample<B, T>,
    i: usize,
    salt: u64,
    accepts: &impl Fn(u32) -> bool,
    picks: &mut Vec<Pick>,
) -> bool {
    let Want { capability, count } = wants[i];
    let live = sample.live[i];
    let Some(head) = heads.get(capability as usize) else {
        return false;
    };
    let blocks = view.blocks(head);
    if B == 2 && count == 1 && live >= total && live >= LANES {
        // The common case by itself: the best of sixteen, in registers.
        let [first, second] = [sample.blocks[i][0], sample.blocks[i][B - 1]];
        let last = live / LANES;
        if first < last
            && second < last
            && let (Some(first), Some(second)) = (blocks.get(first as usize), blocks.get(second as usize))
        {
            let best = least(first, salt).min(least(second, salt)) ^ salt;
            let slot = entry_slot(best);
            if !used(picks, slot) && accepts(slot) {
                picks.push(Pick {
                    slot,
                    score: entry_score(best),
                    serves: 1 << i,
                });
                return true;
            }
        }
    }
    let mut keys = [u64::MAX; KEYS];
    let mut n = 0;
    if live as usize <= KEYS && live < total {
        for block in 0..live.div_ceil(LANES) {
            n += gather(blocks, block, live, salt, &mut keys[n..]);
        }
    } else if live > 0 {
        for b in 0..B {
            let block = sample.blocks[i][b];
            if !sample.blocks[i][..b].contains(&block) {
                n += gather(blocks, block, live, salt, &mut keys[n..]);
            }
        }
    }
    let mut need = count;
    let mut tries = 0;
    while need > 0 {
        let mut best = u64::MAX;
        let mut at = 0;
        for (k, &key) in keys[..n].iter().enumerate() {
            if key < best {
                best = key;
                at = k;
            }
        }
        if best == u64::MAX {
            if tries == TOP_UPS || n + LANES as usize > KEYS || live == 0 {
                return false;
            }
            tries += 1;
            let block = sample.rng.below(live) / LANES;
            n += gather(blocks, block, live, salt, &mut keys[n..]);
            continue;
        }
        keys[at] = u64::MAX;
        let entry = best ^ salt;
        let slot = entry_slot(entry);
        if used(picks, slot) || !accepts(slot) {
            continue;
        }
        picks.push(Pick {
            slot,
            score: entry_score(entry),
            serves: 1 << i,
        });
        need -= 1;
    }
    true
}

#[inline(always)]
fn used(picks: &[Pick], slot: u32) -> bool {
    let mut hit = false;
    for pick in picks {
        hit |= pick.slot == slot;
    }
    hit
}

/// The least key of a full block, as a tree so that the comparisons overlap.
#[inline(always)]
fn least(block: &Block, salt: u64) -> u64 {
    let key = |lane: usize| block.0[lane].load(Ordering::Relaxed) ^ salt;
    let (a, b) = (key(0).min(key(1)), key(2).min(key(3)));
    let (c, d) = (key(4).min(key(5)), key(6).min(key(7)));
    a.min(b).min(c.min(d))
}

/// Copies the keys of the eligible entries of a block; returns how many.
#[inline(always)]
fn gather(blocks: &[Block], block: u32, live: u32, salt: u64, keys: &mut [u64]) -> usize {
    let filled = (live - block * LANES).min(LANES) as usize;
    let Some(block) = blocks.get(block as usize) else {
        return 0;
    };
    for (key, entry) in keys.iter_mut().zip(&block.0[..filled]) {
        *key = entry.load(Ordering::Relaxed) ^ salt;
    }
    filled
}
