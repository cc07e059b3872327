//! Dedicated teams: different agents for every requirement.
//!
//! Facts used, with `R` the agents wanted in total and pools sorted by size:
//! * F1. If the k-th smallest pool has at least as many agents as the k smallest requirements want together, then
//!   serving scarce requirements first cannot fail, whatever agents are picked: before the k-th is served at most
//!   the others' wants are used up. Requirements that satisfy this from the top are *peeled*; the rest is the core.
//! * F2. Any `min(size, R)` candidates of a pool are enough to decide feasibility, the `R` best to find the optimum.
//! * F4. On failure the requirements reachable by alternating paths want more agents than exist for them.
use crate::assembly::{
    Filter, Hall, MAX_REQUIREMENTS, Pick, Quality, Request, Scratch, Shortage, Team, TeamSpec, scan,
};
use crate::exact::Candidate;
use crate::quick::{self, Want};
use crate::rng::{Rng, mix};
use crate::store::{View, entry_score, entry_slot};

pub(crate) fn assemble(
    view: &View<'_>,
    request: &Request<'_>,
    filter: &Filter<'_>,
    rng: &mut Rng,
    scratch: &mut Scratch,
    team: &mut Team,
) {
    let spec = request.spec;
    if let Some((wants, total)) = request.plain
        && spec.quality == Quality::Fast
        && !spec.constrained()
    {
        let done = match (filter.passes_all(), spec.probes, wants.len()) {
            (true, 9..=16, ..=16) => quick::<2, 16>(view, wants, total, |_| true, rng, team),
            (true, 0..=8, _) => quick::<1, MAX_REQUIREMENTS>(view, wants, total, |_| true, rng, team),
            (true, 9..=16, _) => quick::<2, MAX_REQUIREMENTS>(view, wants, total, |_| true, rng, team),
            (true, _, _) => quick::<4, MAX_REQUIREMENTS>(view, wants, total, |_| true, rng, team),
            (false, 0..=16, _) => {
                quick::<2, MAX_REQUIREMENTS>(view, wants, total, |s| filter.accepts(view, s), rng, team)
            }
            (false, _, _) => {
                quick::<4, MAX_REQUIREMENTS>(view, wants, total, |s| filter.accepts(view, s), rng, team)
            }
        };
        if done {
            scratch.counters[0] += 1;
            team.lower_bound = total;
            return;
        }
        team.clear();
    }
    scratch.counters[1] += 1;
    exact(view, spec, filter, rng, scratch, team);
    team.lower_bound = spec.total();
}

#[inline(always)]
fn quick<const B: usize, const T: usize>(
    view: &View<'_>,
    wants: &[Want],
    total: u32,
    accepts: impl Fn(u32) -> bool,
    rng: &mut Rng,
    team: &mut Team,
) -> bool {
    let heads = view.heads();
    quick::announce(heads, wants);
    let seed = rng.clone();
    let Some(sample) = quick::draw::<B, T>(view, heads, wants, seed) else {
        return false;
    };
    // What the exact path draws, should it be needed, must not repeat the sample's numbers.
    rng.next_u64();
    quick::choose(view, heads, wants, total, sample, accepts, &mut team.picks)
}

/// Decides exactly.
fn exact(
    view: &View<'_>,
    spec: &TeamSpec,
    filter: &Filter<'_>,
    rng: &mut Rng,
    scratch: &mut Scratch,
    team: &mut Team,
) {
    let by_score = |c: &Candidate| u64::from(c.score);
    attempt(view, spec, filter, rng, scratch, team, &by_score, None);
    let Some(cap) = spec.cost_cap else { return };
    if team.complete() && scratch.solver.cost <= cap {
        return;
    }
    // The best loaded team is too dear, or there is none: the cheapest tells whether one is within the cap, and
    // its prefixes are the cheapest partial teams.
    team.clear();
    let by_cost = |c: &Candidate| u64::from(c.cost) << 16 | u64::from(c.score);
    attempt(view, spec, filter, rng, scratch, team, &by_cost, Some(cap));
}

#[expect(clippy::too_many_arguments, reason = "the parts of one decision, used twice")]
fn attempt(
    view: &View<'_>,
    spec: &TeamSpec,
    filter: &Filter<'_>,
    rng: &mut Rng,
    scratch: &mut Scratch,
    team: &mut Team,
    weight: &dyn Fn(&Candidate) -> u64,
    budget: Option<u64>,
) {
    let required = &spec.required[..];
    let t = required.len();
    let wanted = spec.total();
    let limit = 2 * wanted as usize + 16;
    let whole = spec.quality != Quality::Fast || spec.cost_cap.is_some();
    let plain = filter.passes_all() && spec.domain_cap.is_none() && required.iter().all(|r| r.any.len() <= 1);
    let salt = rng.next_u64();

    // How many agents each requirement can count on, and their list where that takes looking.
    let mut lists: Vec<Vec<u64>> = vec![Vec::new(); t];
    let mut sizes = vec![0u32; t];
    for (i, r) in required.iter().enumerate() {
        if plain && !whole {
            sizes[i] = r.any.first().map_or(0, |&c| view.pool(c).live());
        } else {
            sizes[i] = collect(
                view,
                spec,
                i,
                filter,
                rng,
                if whole { usize::MAX } else { limit },
                &mut lists[i],
            );
        }
    }
    let mut order: Vec<usize> = (0..t).collect();
    order.sort_by_key(|&i| sizes[i]);
    let mut core = t;
    if !whole {
        let mut before = wanted;
        while core > 0 && sizes[order[core - 1]] >= before {
            core -= 1;
            if spec.must_include.is_empty() {
                before -= required[order[core]].count;
            }
        }
        // A requirement that a forced agent may serve takes part in the decision about it.
        let may = |i: usize| {
            spec.must_include
                .iter()
                .any(|&slot| view.holds(slot, &required[i].any))
        };
        let (taking_part, rest): (Vec<usize>, Vec<usize>) = order[core..].iter().partition(|&&i| may(i));
        order.truncate(core);
        core += taking_part.len();
        order.extend(taking_part);
        order.extend(rest);
    }

    let solver = &mut scratch.solver;
    solver.candidates.clear();
    let needs_line = spec.domain_cap.is_some() || spec.cost_cap.is_some();
    let lines = view.lines();
    let add = |candidates: &mut Vec<Candidate>, entry: u64, mask: u64, forced: bool| {
        let slot = entry_slot(entry);
        let mut c = Candidate {
            weight: 0,
            tie: mix(salt ^ u64::from(slot), 0x9E37_79B9_7F4A_7C15),
            slot,
            mask,
            score: entry_score(entry),
            cost: 0,
            domain: 0,
            forced,
        };
        if needs_line && let Some(line) = lines.get(slot as usize) {
            c.cost = line.attributes().cost;
            c.domain = line.head().domain;
        }
        c.weight = weight(&c);
        candidates.push(c);
    };
    for (k, &i) in order[..core].iter().enumerate() {
        if plain && !whole {
            collect(view, spec, i, filter, rng, limit, &mut lists[i]);
        }
        let first = solver.candidates.len();
        if required[i].any.len() > 1 {
            // Once each, or the cut below would keep fewer agents than it seems.
            lists[i].sort_unstable_by_key(|&e| entry_slot(e));
            lists[i].dedup_by_key(|e| entry_slot(*e));
        }
        for &entry in &lists[i] {
            add(&mut solver.candidates, entry, 1 << k, false);
        }
        // F2: the best R agents of a pool decide, or of each domain if those are capped.
        let here = &mut solver.candidates[first..];
        let keep = wanted as usize;
        if whole && here.len() > keep {
            let mut kept = keep;
            if spec.domain_cap.is_none() {
                here.select_nth_unstable_by_key(keep, |c| (c.weight, c.tie));
            } else {
                here.sort_unstable_by_key(|c| (c.domain, c.weight, c.tie));
                let mut run = 0;
                kept = 0;
                for at in 0..here.len() {
                    run = if at > 0 && here[at].domain == here[at - 1].domain {
                        run + 1
                    } else {
                        0
                    };
                    if run < keep {
                        here.swap(kept, at);
                        kept += 1;
                    }
                }
            }
            solver.candidates.truncate(first + kept);
        }
    }
    let mut stranded = false;
    for &slot in &spec.must_include {
        let mut mask = 0;
        for (k, &i) in order[..core].iter().enumerate() {
            mask |= u64::from(view.holds(slot, &required[i].any)) << k;
        }
        stranded |= mask == 0 || !filter.accepts(view, slot);
        if mask != 0
            && filter.accepts(view, slot)
            && let Some(line) = lines.get(slot as usize)
        {
            let entry = crate::store::entry(line.attributes().score(), line.head().domain, slot);
            add(&mut solver.candidates, entry, mask, true);
        }
    }
    solver.merge();
    let wants: Vec<u32> = order[..core].iter().map(|&i| required[i].count).collect();
    let core_total: u32 = wants.iter().sum();
    let served = solver.solve(&wants, spec.domain_cap, budget);
    let over_budget = solver.over_budget;
    let forced_in = solver.forced_in() && !stranded;
    let mut domains: Vec<u16> = Vec::new();
    let mut missing = vec![0u32; t];
    for (k, &i) in order[..core].iter().enumerate() {
        let mut have = 0;
        for c in solver.members(k) {
            team.picks.push(Pick {
                slot: c.slot,
                score: c.score,
                serves: 1 << i,
            });
            domains.push(c.domain);
            have += 1;
        }
        missing[i] = required[i].count - have;
    }
    if served < core_total && !over_budget {
        let hall = solver.hall(&wants, spec.domain_cap);
        let mut requirements = 0;
        for (k, &i) in order[..core].iter().enumerate() {
            requirements |= (hall.requirements >> k & 1) << i;
        }
        team.hall = Some(Hall { requirements, ..hall });
    }

    // The peeled requirements, scarcest first: an unused agent exists for each of their slots.
    for &i in &order[core..] {
        if plain {
            collect(view, spec, i, filter, rng, limit, &mut lists[i]);
        }
        let list = &mut lists[i];
        list.sort_unstable_by_key(|&e| (entry_score(e), mix(salt ^ e & 0xFFFF_FFFF, 0x9E37_79B9_7F4A_7C15)));
        let mut need = required[i].count;
        for &entry in &*list {
            if need == 0 {
                break;
            }
            let slot = entry_slot(entry);
            if team.picks.iter().any(|p| p.slot == slot) {
                continue;
            }
            if let Some(cap) = spec.domain_cap {
                let domain = lines.get(slot as usize).map_or(0, |l| l.head().domain);
                if domain != 0 && domains.iter().filter(|&&d| d == domain).count() as u32 >= cap {
                    continue;
                }
                domains.push(domain);
            }
            team.picks.push(Pick {
                slot,
                score: entry_score(entry),
                serves: 1 << i,
            });
            need -= 1;
        }
        missing[i] = need;
    }
    team.picks.sort_by_key(|p| p.serves);
    team.missing = missing
        .iter()
        .enumerate()
        .filter(|m| *m.1 > 0)
        .map(|(i, &m)| (i as u32, m))
        .collect();
    team.shortage = if over_budget {
        Some(Shortage::Cost)
    } else if !team.missing.is_empty() {
        Some(Shortage::Agents)
    } else if !forced_in {
        Some(Shortage::MustInclude)
    } else {
        None
    };
    team.optimal = team.complete() && whole && budget.is_none();
}

/// Fills `list` with candidates of a requirement and returns how many slots it can count on: agents, or with a
/// domain cap the sum over domains of what the cap leaves. Up to `limit` agents from a random place, or with no
/// limit the best of the whole pool.
fn collect(
    view: &View<'_>,
    spec: &TeamSpec,
    i: usize,
    filter: &Filter<'_>,
    rng: &mut Rng,
    limit: usize,
    list: &mut Vec<u64>,
) -> u32 {
    let requirement = &spec.required[i];
    let several = requirement.any.len() > 1;
    let wanted = spec.total();
    list.clear();
    let lines = view.lines();
    let mut per_domain: std::collections::BTreeMap<u16, u32> = std::collections::BTreeMap::new();
    let mut units = 0;
    scan(view, requirement, filter, rng, |entry| {
        // Agents with several of the capabilities must count once, or the sizes would promise too much.
        if several && limit != usize::MAX && list.iter().any(|&e| entry_slot(e) == entry_slot(entry)) {
            return true;
        }
        list.push(entry);
        let domain = match spec.domain_cap {
            Some(_) => lines
                .get(entry_slot(entry) as usize)
                .map_or(0, |l| l.head().domain),
            None => 0,
        };
        match spec.domain_cap {
            Some(cap) if domain != 0 => {
                let used = per_domain.entry(domain).or_default();
                if *used < cap {
                    *used += 1;
                    units += 1;
                } else if limit != usize::MAX && *used >= wanted {
                    list.pop();
                } else {
                    *used += 1;
                }
            }
            _ => units += 1,
        }
        (units as usize) < limit
    });
    units
}
