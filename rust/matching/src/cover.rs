//! Consolidated teams: as few agents as possible, each serving all it can.
//!
//! The search takes the scarcest unmet capability, streams a window of its pool's signatures against what is still
//! needed, checks the best few on their lines and takes the one that helps most; then drops members that became
//! superfluous and tries to replace pairs by single agents. Exact answers come from a branch and bound over classes
//! of agents: only what an agent can do among the required capabilities matters.
use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::assembly::{Filter, Hall, Pick, Quality, Scratch, Shortage, Team, TeamSpec, scan};
use crate::hint::prefetch;
use crate::rng::{Rng, mix};
use crate::store::{LANES, View, entry_score, entry_slot};
use crate::window::{FOUND, WINDOW, Window};

/// Lines looked at per pick when there are no signatures.
const WITHOUT_SIGNATURES: usize = 64;
/// Bits of an entry below its score; mixed with a random number they break ties.
const TIES: u64 = (1 << 48) - 1;
/// Pairs that the exchange step tries to replace, and how many requirements one agent must take over at most.
const EXCHANGES: u32 = 8;
const LOST: u32 = 4;
/// Windows whose beginnings are asked for before the search: about the members of a common team.
const AHEAD: usize = 4;
/// Cache lines of a window asked for before the search, and while the one before it is read.
const ASKED: [usize; 2] = [4, 16];
/// Restarts of quality "best".
const RESTARTS: u32 = 16;
/// Nodes of the exact search: quality "best", and "optimal" or constrained.
const NODES: [u64; 2] = [20_000, 2_000_000];

/// One chosen agent.
#[derive(Clone, Copy, Debug)]
struct Member {
    slot: u32,
    score: u16,
    /// Requirements it can serve.
    mask: u64,
    forced: bool,
}

/// Agents that can do the same among the required capabilities.
#[derive(Clone, Debug)]
struct Class {
    mask: u64,
    domain: u16,
    /// The best agents, as (cost, score, slot), as many as a team could use.
    agents: Vec<(u16, u16, u32)>,
}

/// Reusable memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    masks: Masks,
    out: Vec<Member>,
    best: Vec<Member>,
    pairs: Vec<(u32, u32, u32, u64)>,
    look: Look,
}

/// A window, and where it will lie in each requirement's pool at the first look: known beforehand, so that it can be
/// asked for.
#[derive(Debug)]
struct Look {
    window: Window,
    starts: [u32; 64],
}

/// The place of a window that was not chosen yet.
const OPEN: u32 = u32::MAX;

impl Default for Look {
    fn default() -> Self {
        Self {
            window: Window::default(),
            starts: [OPEN; 64],
        }
    }
}

impl Look {
    /// Chooses the windows of the scarcest requirements and asks for their beginnings.
    fn prepare(&mut self, p: &Problem<'_>, rng: &mut Rng) {
        self.starts = [OPEN; 64];
        let mut left = p.open;
        for _ in 0..AHEAD {
            if left == 0 {
                return;
            }
            let i = scarcest(p, left, None);
            left &= !(1 << i);
            if p.spec.required[i].any.len() == 1 {
                self.starts[i] = place(p.sizes[i] as usize, WINDOW, rng) as u32;
                self.ask(p, i, 0..ASKED[0]);
            }
        }
    }

    /// Asks for some lines of the window of requirement `i`, if its place is known.
    fn ask(&self, p: &Problem<'_>, i: usize, lines: Range<usize>) {
        let (start, [capability]) = (self.starts[i], &p.spec.required[i].any[..]) else {
            return;
        };
        if start == OPEN {
            return;
        }
        let signatures = p.view.signatures(p.view.pool(*capability));
        let first = signatures.as_ptr().wrapping_add(start as usize);
        let all = (p.sizes[i] as usize).min(WINDOW).div_ceil(LANES as usize);
        for line in lines.start..lines.end.min(all) {
            prefetch(first.wrapping_add(line * LANES as usize));
        }
    }
}

/// A random place for a window of `length` among `live` entries, at the beginning of a cache line.
fn place(live: usize, length: usize, rng: &mut Rng) -> usize {
    match live.saturating_sub(length) {
        0 => 0,
        most => rng.below(most as u32 + 1) as usize & !(LANES as usize - 1),
    }
}

/// Capability to the requirements it serves: a small open-addressing table.
#[derive(Debug, Default)]
struct Masks {
    table: Vec<(u32, u64)>,
    shift: u32,
}

impl Masks {
    fn fill(&mut self, spec: &TeamSpec) {
        let capabilities: usize = spec.required.iter().map(|r| r.any.len()).sum();
        let size = (capabilities * 4).next_power_of_two().max(64);
        self.table.clear();
        self.table.resize(size, (u32::MAX, 0));
        self.shift = 32 - size.trailing_zeros();
        for (i, r) in spec.required.iter().enumerate() {
            for &capability in &r.any {
                let at = self.place(capability);
                self.table[at].0 = capability;
                self.table[at].1 |= 1 << i;
            }
        }
    }

    #[inline]
    fn place(&self, capability: u32) -> usize {
        let mut at = (capability.wrapping_mul(0x9E37_79B1) >> self.shift) as usize;
        while self.table[at].0 != capability && self.table[at].0 != u32::MAX {
            at = (at + 1) & (self.table.len() - 1);
        }
        at
    }

    /// Requirements that the agent in a slot can serve.
    #[inline]
    fn of(&self, view: &View<'_>, slot: u32) -> u64 {
        let mut mask = 0;
        view.capabilities(slot, |c| mask |= self.table[self.place(c)].1);
        mask
    }
}

/// What is searched for, unpacked.
struct Problem<'p> {
    view: &'p View<'p>,
    spec: &'p TeamSpec,
    filter: &'p Filter<'p>,
    /// Agents to find per requirement: what is wanted, or what exists if that is less.
    counts: [u32; 64],
    /// Agents that may be chosen, per requirement, for ordering.
    sizes: [u32; 64],
    /// Signature bits per requirement.
    bits: [u64; 64],
    open: u64,
    plain: bool,
}

pub(crate) fn assemble(
    view: &View<'_>,
    spec: &TeamSpec,
    filter: &Filter<'_>,
    rng: &mut Rng,
    scratch: &mut Scratch,
    team: &mut Team,
) {
    let t = spec.required.len();
    let plain = filter.passes_all() && spec.required.iter().all(|r| r.any.len() <= 1);
    let mut p = Problem {
        view,
        spec,
        filter,
        counts: [0; 64],
        sizes: [0; 64],
        bits: [0; 64],
        open: 0,
        plain,
    };
    for r in spec.required.iter().filter(|r| !r.any.is_empty()) {
        prefetch(view.heads().as_ptr().wrapping_add(r.any[0] as usize));
    }
    let mut hall = Hall {
        requirements: 0,
        wanted: 0,
        available: 0,
    };
    for (i, r) in spec.required.iter().enumerate() {
        let (mut live, mut largest) = (0, 0);
        for &capability in &r.any {
            let pool = view.pool(capability);
            live += pool.live();
            // Of several capabilities, the one most agents have: signatures are hints.
            if pool.live() > largest {
                largest = pool.live();
                p.bits[i] = pool.signature_bits();
            }
        }
        p.sizes[i] = live;
        let exist = if plain || live < r.count {
            live
        } else {
            count(&p, i, r.count, rng)
        };
        p.counts[i] = r.count.min(exist);
        if p.counts[i] < r.count {
            let exist = if plain { exist } else { count(&p, i, r.count, rng) };
            p.counts[i] = r.count.min(exist);
            team.missing.push((i as u32, r.count - exist));
            hall.requirements |= 1 << i;
            hall.wanted += r.count;
            hall.available += exist;
        }
        p.open |= u64::from(p.counts[i] > 0) << i;
    }
    if !team.missing.is_empty() {
        team.shortage = Some(Shortage::Agents);
        team.hall = Some(hall);
    }
    let memory = &mut scratch.cover;
    memory.masks.fill(spec);
    memory.best.clear();
    let mut found = false;
    let mut proved = false;
    let greedy_ok = spec.domain_cap.is_none() && spec.cost_cap.is_none();
    if greedy_ok {
        scratch.counters[0] += 1;
        let runs = if spec.quality == Quality::Fast {
            1
        } else {
            RESTARTS
        };
        for run in 0..runs {
            if !stream(&p, memory, rng, run > 0) {
                break;
            }
            if !found || memory.out.len() < memory.best.len() {
                std::mem::swap(&mut memory.out, &mut memory.best);
                found = true;
            }
        }
    }
    let forced_ok = spec
        .must_include
        .iter()
        .all(|&slot| usable(&p, &memory.masks, slot).is_some());
    if !forced_ok {
        found = false;
    }
    let mut floor = lower_bound(&p, memory, t);
    if forced_ok
        && (!greedy_ok || spec.quality != Quality::Fast)
        && !(found && memory.best.len() as u32 == floor)
    {
        scratch.counters[1] += 1;
        let budget = NODES[usize::from(spec.quality == Quality::Optimal || !greedy_ok)];
        let (better, complete) = branch_and_bound(&p, memory, rng, found, budget);
        proved = complete;
        found |= better;
        if proved && found {
            floor = memory.best.len() as u32;
        }
    }
    if !found {
        // Constrained beyond what exists: the largest part that a greedy choice reaches.
        partial(&p, memory, rng);
        let short = remaining(&p, &memory.best);
        team.missing.clear();
        for (i, r) in spec.required.iter().enumerate() {
            let lost = short[i] + (r.count - p.counts[i]);
            if lost > 0 {
                team.missing.push((i as u32, lost));
            }
        }
        if team.hall.is_none() {
            team.shortage = Some(if !forced_ok {
                Shortage::MustInclude
            } else if spec.cost_cap.is_some() {
                Shortage::Cost
            } else {
                Shortage::Agents
            });
        }
    }
    memory.best.sort_by_key(|m| (m.mask.trailing_zeros(), m.slot));
    for m in &memory.best {
        team.picks.push(Pick {
            slot: m.slot,
            score: m.score,
            serves: m.mask,
        });
    }
    team.lower_bound = floor;
    team.optimal = team.complete() && (proved || memory.best.len() as u32 == floor);
}

/// Distinct agents of a requirement that pass the filter, up to `enough`.
fn count(p: &Problem<'_>, i: usize, enough: u32, rng: &mut Rng) -> u32 {
    let mut seen: Vec<u32> = Vec::new();
    scan(p.view, &p.spec.required[i], p.filter, rng, |entry| {
        let slot = entry_slot(entry);
        if !seen.contains(&slot) {
            seen.push(slot);
        }
        (seen.len() as u32) < enough
    });
    seen.len() as u32
}

/// A must-include agent as a member, if it may be chosen and can serve anything.
fn usable(p: &Problem<'_>, masks: &Masks, slot: u32) -> Option<Member> {
    let line = p.view.lines().get(slot as usize)?;
    let mask = masks.of(p.view, slot);
    let serves = p.spec.required.iter().any(|r| p.view.holds(slot, &r.any));
    (serves && mask != 0 && p.filter.accepts(p.view, slot)).then(|| Member {
        slot,
        score: line.attributes().score(),
        mask,
        forced: true,
    })
}

fn lower_bound(p: &Problem<'_>, memory: &Memory, t: usize) -> u32 {
    let most = p.counts[..t].iter().copied().max().unwrap_or(0);
    // Nobody can serve more than all requirements; a larger coverage than any member's may exist unseen.
    let total: u32 = p.counts[..t].iter().sum();
    let width = p.open.count_ones().max(1);
    let forced = memory.best.iter().filter(|m| m.forced).count() as u32;
    most.max(total.div_ceil(width)).max(forced)
}

/// What a list of members leaves unserved.
fn remaining(p: &Problem<'_>, members: &[Member]) -> [u32; 64] {
    let mut left = p.counts;
    for m in members {
        let mut mask = m.mask & p.open;
        while mask != 0 {
            let i = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            left[i] = left[i].saturating_sub(1);
        }
    }
    left
}

fn take(member: Member, left: &mut [u32; 64], need: &mut u64, out: &mut Vec<Member>) {
    let mut mask = member.mask & *need;
    while mask != 0 {
        let i = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        left[i] -= 1;
        if left[i] == 0 {
            *need &= !(1 << i);
        }
    }
    out.push(member);
}

/// Scarcest first over signature windows, pruning, then two-for-one exchanges. False if a pool ran out.
fn stream(p: &Problem<'_>, memory: &mut Memory, rng: &mut Rng, vary: bool) -> bool {
    let Memory {
        masks,
        out,
        pairs,
        look,
        ..
    } = memory;
    look.prepare(p, rng);
    out.clear();
    let mut left = p.counts;
    let mut need = p.open;
    for &slot in &p.spec.must_include {
        match usable(p, masks, slot) {
            Some(member) => take(member, &mut left, &mut need, out),
            None => return false,
        }
    }
    while need != 0 {
        let i = scarcest(p, need, vary.then_some(&mut *rng));
        let others = need & !(1 << i);
        if others != 0 {
            look.ask(p, scarcest(p, others, None), ASKED[0]..ASKED[1]);
        }
        let chosen = best_in_window(p, masks, i, need, 0, out, look, rng)
            .or_else(|| first_unused(p, masks, i, out, rng));
        match chosen {
            Some(member) => take(member, &mut left, &mut need, out),
            None => return false,
        }
    }
    prune(p, out);
    let mut budget = EXCHANGES;
    while budget > 0 && exchange(p, masks, out, pairs, look, rng, &mut budget) {}
    true
}

/// The requirement of `need` with the fewest agents; with `vary`, sometimes another.
fn scarcest(p: &Problem<'_>, need: u64, vary: Option<&mut Rng>) -> usize {
    if let Some(rng) = vary
        && rng.below(3) == 0
    {
        let mut skip = rng.below(need.count_ones());
        let mut mask = need;
        while skip > 0 {
            mask &= mask - 1;
            skip -= 1;
        }
        return mask.trailing_zeros() as usize;
    }
    let mut mask = need;
    let mut best = (u32::MAX, 0);
    while mask != 0 {
        let i = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        if p.sizes[i] < best.0 {
            best = (p.sizes[i], i);
        }
    }
    best.1
}

/// The agent that serves most of `need` in a window of a pool of requirement `i`; with `must`, only one that serves
/// all of it. Ties go to the lower score.
#[expect(
    clippy::too_many_arguments,
    reason = "the state of one search, passed down its two callers"
)]
fn best_in_window(
    p: &Problem<'_>,
    masks: &Masks,
    i: usize,
    need: u64,
    must: u64,
    out: &[Member],
    look: &mut Look,
    rng: &mut Rng,
) -> Option<Member> {
    let Look { window, starts } = look;
    let any = &p.spec.required[i].any;
    let capability = if any.len() == 1 {
        any[0]
    } else {
        any[rng.below(any.len() as u32) as usize]
    };
    let pool = p.view.pool(capability);
    let live = pool.live() as usize;
    if live == 0 {
        return None;
    }
    let blocks = p.view.blocks(pool.head);
    let signatures = p.view.signatures(pool);
    let mut best: Option<Member> = None;
    let mut best_key = (0u32, u16::MAX);
    let at = |place: usize| {
        let block = blocks.get(place / LANES as usize)?;
        Some(block.0[place % LANES as usize].load(Ordering::Relaxed))
    };
    let mut check = |entry: u64| {
        let slot = entry_slot(entry);
        if out.iter().any(|m| m.slot == slot) || !(p.plain || p.filter.accepts(p.view, slot)) {
            return 0;
        }
        let mask = masks.of(p.view, slot);
        if mask & must != must {
            return 0;
        }
        let gain = (mask & need).count_ones();
        let score = entry_score(entry);
        if gain > best_key.0 || (gain == best_key.0 && gain > 0 && score < best_key.1) {
            best_key = (gain, score);
            best = Some(Member {
                slot,
                score,
                mask,
                forced: false,
            });
        }
        gain
    };
    if signatures.len() < live {
        let n = live.min(WITHOUT_SIGNATURES);
        let start = rng.below(live as u32) as usize;
        for k in 0..n {
            at((start + k) % live).map(&mut check);
        }
        return best;
    }
    let length = live.min(WINDOW);
    let known = std::mem::replace(&mut starts[i], OPEN) as usize;
    let start = if known.saturating_add(length) <= live {
        known
    } else {
        place(live, length, rng)
    };
    let slice = &signatures[start..start + length];
    let found = if must == 0 {
        let turn = rng.below(length as u32) as usize;
        window.most(slice, each(need).map(|i| p.bits[i]), turn)
    } else {
        window.all(slice, each(must).fold(0, |bits, i| bits | p.bits[i]))
    };
    for &k in &window.found[..found] {
        prefetch(
            blocks
                .as_ptr()
                .wrapping_add((start + k as usize) / LANES as usize),
        );
    }
    // The most promising first, among equals the least loaded: whoever keeps what its signature promises is taken.
    let (promise, sure) = if must == 0 {
        window.top
    } else {
        (must.count_ones(), found)
    };
    let mut entries = [u64::MAX; FOUND];
    for (entry, &k) in entries.iter_mut().zip(&window.found[..found]) {
        *entry = at(start + k as usize).unwrap_or(u64::MAX);
        p.view.prefetch_line(entry_slot(*entry));
    }
    let entries = &mut entries[..found];
    for &entry in &*entries {
        p.view.prefetch_overflow(entry_slot(entry));
    }
    let salt = rng.next_u64() & TIES;
    let (first, second) = entries.split_at_mut(sure);
    first.sort_unstable_by_key(|entry| entry ^ salt);
    second.sort_unstable_by_key(|entry| entry ^ salt);
    let mut most = 0;
    for (k, &entry) in entries.iter().enumerate() {
        // No later one promises more than that.
        if most >= promise - u32::from(k >= sure) {
            break;
        }
        most = most.max(check(entry));
    }
    best
}

/// Any agent of requirement `i` that is not chosen yet.
fn first_unused(p: &Problem<'_>, masks: &Masks, i: usize, out: &[Member], rng: &mut Rng) -> Option<Member> {
    let mut found = None;
    scan(p.view, &p.spec.required[i], p.filter, rng, |entry| {
        let slot = entry_slot(entry);
        if out.iter().any(|m| m.slot == slot) {
            return true;
        }
        let mask = masks.of(p.view, slot);
        // A changed line during a race: not an agent of this pool any more.
        if mask >> i & 1 == 0 {
            return true;
        }
        found = Some(Member {
            slot,
            score: entry_score(entry),
            mask,
            forced: false,
        });
        false
    });
    found
}

/// Drops members without whom every requirement is still met, later ones first.
fn prune(p: &Problem<'_>, out: &mut Vec<Member>) {
    let mut have = coverage(p, out);
    let mut at = out.len();
    while at > 0 {
        at -= 1;
        if out[at].forced {
            continue;
        }
        let mask = out[at].mask & p.open;
        if each(mask).all(|i| have[i] > p.counts[i]) {
            each(mask).for_each(|i| have[i] -= 1);
            out.remove(at);
        }
    }
}

fn coverage(p: &Problem<'_>, out: &[Member]) -> [u32; 64] {
    let mut have = [0u32; 64];
    for m in out {
        each(m.mask & p.open).for_each(|i| have[i] += 1);
    }
    have
}

fn each(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let i = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(i)
    })
}

/// Replaces two members by one agent that serves what would fall short without them. Returns whether it did.
fn exchange(
    p: &Problem<'_>,
    masks: &Masks,
    out: &mut Vec<Member>,
    pairs: &mut Vec<(u32, u32, u32, u64)>,
    look: &mut Look,
    rng: &mut Rng,
    budget: &mut u32,
) -> bool {
    let have = coverage(p, out);
    let (mut tight, mut nearly) = (0u64, 0u64);
    for i in each(p.open) {
        let spare = have[i].saturating_sub(p.counts[i]);
        tight |= u64::from(spare == 0) << i;
        nearly |= u64::from(spare <= 1) << i;
    }
    pairs.clear();
    for a in 0..out.len() {
        for b in a + 1..out.len() {
            let (x, y) = (out[a].mask & p.open, out[b].mask & p.open);
            if out[a].forced || out[b].forced || x & y & tight != 0 {
                continue;
            }
            let lost = (x ^ y) & tight | x & y & nearly;
            if lost.count_ones() <= LOST {
                pairs.push((lost.count_ones(), a as u32, b as u32, lost));
            }
        }
    }
    pairs.sort_unstable();
    for &(_, a, b, lost) in pairs.iter() {
        if *budget == 0 {
            return false;
        }
        *budget -= 1;
        let i = scarcest(p, lost, None);
        if let Some(member) = best_in_window(p, masks, i, lost, lost, out, look, rng) {
            out[a as usize] = member;
            out.remove(b as usize);
            prune(p, out);
            return true;
        }
    }
    false
}

/// Groups every agent that may be chosen by what it can serve (and its domain, if those are capped), keeping as many
/// of each group as a team could use.
fn classes(p: &Problem<'_>, masks: &Masks, rng: &mut Rng) -> Vec<Class> {
    let keep = p.counts.iter().copied().max().unwrap_or(0) as usize;
    let capped = p.spec.domain_cap.is_some();
    let by_cost = p.spec.cost_cap.is_some();
    let mut all: Vec<(u64, u16, u16, u64, u16, u32)> = Vec::new();
    let salt = rng.next_u64();
    for i in each(p.open) {
        scan(p.view, &p.spec.required[i], p.filter, rng, |entry| {
            let slot = entry_slot(entry);
            let mask = masks.of(p.view, slot) & p.open;
            // Each agent once: by its first requirement.
            if mask != 0
                && mask.trailing_zeros() as usize == i
                && p.spec.must_include.binary_search(&slot).is_err()
            {
                let line = p.view.lines().get(slot as usize);
                let domain = if capped {
                    line.map_or(0, |l| l.head().domain)
                } else {
                    0
                };
                let cost = if by_cost {
                    line.map_or(0, |l| l.attributes().cost)
                } else {
                    0
                };
                let tie = mix(salt ^ u64::from(slot), 0x9E37_79B9_7F4A_7C15);
                all.push((
                    mask,
                    domain,
                    cost,
                    u64::from(entry_score(entry)) << 48 | tie >> 16,
                    entry_score(entry),
                    slot,
                ));
            }
            true
        });
    }
    all.sort_unstable();
    let mut out: Vec<Class> = Vec::new();
    for (mask, domain, cost, _, score, slot) in all {
        match out.last_mut() {
            // The same agent comes twice if a requirement names several of its capabilities.
            Some(c) if c.mask == mask && c.domain == domain => {
                if c.agents.len() < keep && c.agents.iter().all(|a| a.2 != slot) {
                    c.agents.push((cost, score, slot));
                }
            }
            _ => out.push(Class {
                mask,
                domain,
                agents: vec![(cost, score, slot)],
            }),
        }
    }
    if !capped && !by_cost {
        // Whoever can do less than a group that is large enough for any team is never needed.
        let full: Vec<u64> = out
            .iter()
            .filter(|c| c.agents.len() == keep)
            .map(|c| c.mask)
            .collect();
        out.retain(|c| !full.iter().any(|&m| m != c.mask && m & c.mask == c.mask));
    }
    out.sort_by_key(|c| std::cmp::Reverse(c.mask.count_ones()));
    out
}

struct Search<'s> {
    p: &'s Problem<'s>,
    classes: Vec<Class>,
    used: Vec<u32>,
    banned: Vec<bool>,
    chosen: Vec<Member>,
    cost: u64,
    domains: Vec<(u16, u32)>,
    best: Vec<Member>,
    best_len: usize,
    found: bool,
    nodes: u64,
}

/// Looks for a team smaller than `memory.best` (or for any, if that is none yet). Returns whether one was found, and
/// whether the search was complete.
fn branch_and_bound(
    p: &Problem<'_>,
    memory: &mut Memory,
    rng: &mut Rng,
    have: bool,
    nodes: u64,
) -> (bool, bool) {
    let classes = classes(p, &memory.masks, rng);
    let mut s = Search {
        p,
        used: vec![0; classes.len()],
        banned: vec![false; classes.len()],
        classes,
        chosen: Vec::new(),
        cost: 0,
        domains: Vec::new(),
        best: Vec::new(),
        best_len: if have { memory.best.len() } else { usize::MAX },
        found: false,
        nodes,
    };
    let mut left = p.counts;
    let mut need = p.open;
    for &slot in &p.spec.must_include {
        let Some(member) = usable(p, &memory.masks, slot) else {
            return (false, true);
        };
        let Some(line) = p.view.lines().get(slot as usize) else {
            return (false, true);
        };
        s.cost += u64::from(line.attributes().cost);
        let domain = line.head().domain;
        if !s.enter_domain(domain) {
            return (false, true);
        }
        take(member, &mut left, &mut need, &mut s.chosen);
    }
    if p.spec.cost_cap.is_some_and(|cap| s.cost > cap) {
        return (false, true);
    }
    s.descend(left, need);
    let complete = s.nodes > 0;
    if s.found {
        memory.best = s.best;
    }
    (s.found, complete)
}

impl Search<'_> {
    fn enter_domain(&mut self, domain: u16) -> bool {
        let Some(cap) = self.p.spec.domain_cap else {
            return true;
        };
        if domain == 0 {
            return true;
        }
        match self.domains.iter_mut().find(|d| d.0 == domain) {
            Some(d) if d.1 >= cap => false,
            Some(d) => {
                d.1 += 1;
                true
            }
            None if cap == 0 => false,
            None => {
                self.domains.push((domain, 1));
                true
            }
        }
    }

    fn leave_domain(&mut self, domain: u16) {
        if let Some(d) = self.domains.iter_mut().find(|d| d.0 == domain) {
            d.1 -= 1;
        }
    }

    fn descend(&mut self, left: [u32; 64], need: u64) {
        if self.nodes == 0 {
            return;
        }
        self.nodes -= 1;
        if need == 0 {
            if self.chosen.len() < self.best_len {
                self.best = self.chosen.clone();
                self.best_len = self.best.len();
                self.found = true;
            }
            return;
        }
        // Bound: somebody for the neediest requirement, and nobody serves more than the widest class.
        let mut widest = 0;
        let mut choices = [0u32; 64];
        for (k, c) in self.classes.iter().enumerate() {
            let gain = c.mask & need;
            if gain == 0 || self.banned[k] || self.used[k] as usize == c.agents.len() {
                continue;
            }
            widest = widest.max(gain.count_ones());
            let more = c.agents.len() as u32 - self.used[k];
            each(gain).for_each(|i| choices[i] += more);
        }
        let mut total = 0;
        let mut most = 0;
        let mut pivot = (u32::MAX, 0);
        for i in each(need) {
            if choices[i] < left[i] {
                return;
            }
            total += left[i];
            most = most.max(left[i]);
            pivot = pivot.min((choices[i] - left[i], i));
        }
        let bound = most.max(total.div_ceil(widest.max(1))) as usize;
        if self.chosen.len() + bound >= self.best_len {
            return;
        }
        let i = pivot.1;
        let mut order: Vec<(std::cmp::Reverse<u32>, usize)> = (0..self.classes.len())
            .filter(|&k| {
                self.classes[k].mask >> i & 1 == 1
                    && !self.banned[k]
                    && (self.used[k] as usize) < self.classes[k].agents.len()
            })
            .map(|k| (std::cmp::Reverse((self.classes[k].mask & need).count_ones()), k))
            .collect();
        order.sort_unstable();
        let mut tried = Vec::with_capacity(order.len());
        for (_, k) in order {
            if self.nodes == 0 {
                break;
            }
            let (cost, score, slot) = self.classes[k].agents[self.used[k] as usize];
            let (mask, domain) = (self.classes[k].mask, self.classes[k].domain);
            if self
                .p
                .spec
                .cost_cap
                .is_none_or(|cap| self.cost + u64::from(cost) <= cap)
                && self.enter_domain(domain)
            {
                self.used[k] += 1;
                self.cost += u64::from(cost);
                let (mut left, mut need) = (left, need);
                take(
                    Member {
                        slot,
                        score,
                        mask,
                        forced: false,
                    },
                    &mut left,
                    &mut need,
                    &mut self.chosen,
                );
                self.descend(left, need);
                self.chosen.pop();
                self.cost -= u64::from(cost);
                self.used[k] -= 1;
                self.leave_domain(domain);
            }
            // Teams with this class are done: the siblings do without it.
            self.banned[k] = true;
            tried.push(k);
        }
        for k in tried {
            self.banned[k] = false;
        }
    }
}

/// A greedy team within the constraints when no complete one exists.
fn partial(p: &Problem<'_>, memory: &mut Memory, rng: &mut Rng) {
    let classes = classes(p, &memory.masks, rng);
    memory.best.clear();
    let mut s = Search {
        p,
        used: vec![0; classes.len()],
        banned: Vec::new(),
        classes,
        chosen: Vec::new(),
        cost: 0,
        domains: Vec::new(),
        best: Vec::new(),
        best_len: 0,
        found: false,
        nodes: 0,
    };
    let (mut left, mut need) = (p.counts, p.open);
    for &slot in &p.spec.must_include {
        let Some(member) = usable(p, &memory.masks, slot) else {
            continue;
        };
        let line = p.view.lines().get(slot as usize);
        let cost = line.map_or(0, |l| u64::from(l.attributes().cost));
        let fits = p.spec.cost_cap.is_none_or(|cap| s.cost + cost <= cap);
        if fits && s.enter_domain(line.map_or(0, |l| l.head().domain)) {
            s.cost += cost;
            take(member, &mut left, &mut need, &mut memory.best);
        }
    }
    loop {
        let pick = (0..s.classes.len())
            .filter(|&k| (s.used[k] as usize) < s.classes[k].agents.len() && s.classes[k].mask & need != 0)
            .max_by_key(|&k| ((s.classes[k].mask & need).count_ones(), std::cmp::Reverse(k)));
        let Some(k) = pick else { return };
        let (cost, score, slot) = s.classes[k].agents[s.used[k] as usize];
        s.used[k] += 1;
        let fits = p.spec.cost_cap.is_none_or(|cap| s.cost + u64::from(cost) <= cap);
        if fits && s.enter_domain(s.classes[k].domain) {
            s.cost += u64::from(cost);
            let mask = s.classes[k].mask;
            take(
                Member {
                    slot,
                    score,
                    mask,
                    forced: false,
                },
                &mut left,
                &mut need,
                &mut memory.best,
            );
        }
    }
}
