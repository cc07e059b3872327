//! Exact matching of agents to requirements on small candidate sets.
//!
//! Without domain caps the assignable sets of agents form a transversal matroid, so taking agents in ascending
//! weight and keeping each that an augmenting path can accommodate gives the least total weight. With domain caps
//! it is a minimum-cost flow, solved by shortest augmenting paths.
use std::collections::VecDeque;

use crate::assembly::Hall;

/// An agent that can serve some of the requirements at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// What is minimised.
    pub(crate) weight: u64,
    /// Orders candidates of equal weight.
    pub(crate) tie: u64,
    pub(crate) slot: u32,
    /// Requirements it can serve, one bit each.
    pub(crate) mask: u64,
    pub(crate) score: u16,
    pub(crate) cost: u16,
    pub(crate) domain: u16,
    /// Must be part of the team.
    pub(crate) forced: bool,
}

const NOBODY: u32 = u32::MAX;
/// Makes every forced agent cheaper than any set of others: scores and costs are below 2^16, teams below 2^17.
const FORCED: i64 = 1 << 40;

/// Reusable memory, and the last solution.
#[derive(Debug, Default)]
pub(crate) struct Solver {
    pub(crate) candidates: Vec<Candidate>,
    /// Requirement of each candidate.
    assigned: Vec<u32>,
    /// Candidates of each requirement.
    members: Vec<Vec<u32>>,
    /// Sum of the costs of all assigned candidates.
    pub(crate) cost: u64,
    /// Stopped because the next agent would pass the budget.
    pub(crate) over_budget: bool,
    // Flow only.
    domain_of: Vec<u32>,
    domains: Vec<Vec<u32>>,
    distance: Vec<i64>,
    parent: Vec<u32>,
    queued: Vec<bool>,
    queue: VecDeque<u32>,
}

impl Solver {
    /// Makes one candidate of all entries for the same agent, and sorts by weight.
    pub(crate) fn merge(&mut self) {
        let all = &mut self.candidates;
        all.sort_unstable_by_key(|c| c.slot);
        all.dedup_by(|next, kept| {
            let same = next.slot == kept.slot;
            if same {
                kept.mask |= next.mask;
                kept.forced |= next.forced;
            }
            same
        });
        all.sort_unstable_by_key(|c| (!c.forced, c.weight, c.tie, c.slot));
    }

    /// Serves as many of the `wanted` slots as possible at the least total weight; returns how many.
    pub(crate) fn solve(&mut self, wanted: &[u32], domain_cap: Option<u32>, budget: Option<u64>) -> u32 {
        self.assigned.clear();
        self.assigned.resize(self.candidates.len(), NOBODY);
        self.members
            .resize_with(wanted.len().max(self.members.len()), Vec::new);
        self.members.iter_mut().for_each(Vec::clear);
        self.cost = 0;
        self.over_budget = false;
        match domain_cap {
            None => self.greedy(wanted, budget.unwrap_or(u64::MAX)),
            Some(cap) => self.flow(wanted, cap, budget.unwrap_or(u64::MAX)),
        }
    }

    /// Assigned candidates of a requirement.
    pub(crate) fn members(&self, requirement: usize) -> impl Iterator<Item = &Candidate> + '_ {
        self.members[requirement]
            .iter()
            .map(|&c| &self.candidates[c as usize])
    }

    /// Whether every forced candidate is assigned.
    pub(crate) fn forced_in(&self) -> bool {
        self.candidates
            .iter()
            .zip(&self.assigned)
            .all(|(c, &a)| !c.forced || a != NOBODY)
    }

    fn greedy(&mut self, wanted: &[u32], budget: u64) -> u32 {
        let total: u32 = wanted.iter().sum();
        let mut open = 0u64;
        for (i, &w) in wanted.iter().enumerate() {
            open |= u64::from(w > 0) << i;
        }
        let all = if wanted.len() == 64 {
            u64::MAX
        } else {
            (1u64 << wanted.len()) - 1
        };
        // Requirements from which no open one can be reached. They stay so: paths only ever lead to open ones.
        let mut dead = 0u64;
        let mut matched = 0;
        let mut from = [(0u8, 0u32); 64];
        for a in 0..self.candidates.len() {
            if matched == total {
                break;
            }
            let Candidate { mask, cost, .. } = self.candidates[a];
            let starts = mask & all & !dead;
            if starts == 0 {
                continue;
            }
            if self.cost + u64::from(cost) > budget {
                self.over_budget = true;
                break;
            }
            let mut seen = starts;
            let mut frontier = starts;
            let mut found = None;
            if starts & open != 0 {
                found = Some((starts & open).trailing_zeros() as usize);
            }
            while found.is_none() && frontier != 0 {
                let i = frontier.trailing_zeros() as usize;
                frontier &= frontier - 1;
                for &c in &self.members[i] {
                    let mut next = self.candidates[c as usize].mask & all & !seen & !dead;
                    seen |= next;
                    frontier |= next;
                    if next & open != 0 {
                        let j = (next & open).trailing_zeros() as usize;
                        from[j] = (i as u8, c);
                        found = Some(j);
                        break;
                    }
                    while next != 0 {
                        from[next.trailing_zeros() as usize] = (i as u8, c);
                        next &= next - 1;
                    }
                }
            }
            let Some(last) = found else {
                dead |= seen;
                continue;
            };
            let mut j = last;
            while starts >> j & 1 == 0 {
                let (i, c) = from[j];
                let list = &mut self.members[i as usize];
                let place = list
                    .iter()
                    .position(|&x| x == c)
                    .expect("the path follows assignments");
                list.swap_remove(place);
                self.members[j].push(c);
                self.assigned[c as usize] = j as u32;
                j = i as usize;
            }
            self.members[j].push(a as u32);
            self.assigned[a] = j as u32;
            self.cost += u64::from(cost);
            matched += 1;
            if self.members[last].len() as u32 == wanted[last] {
                open &= !(1 << last);
            }
        }
        matched
    }

    fn flow(&mut self, wanted: &[u32], cap: u32, budget: u64) -> u32 {
        // Nodes: requirements, then candidates, then domains. Domain 0 is no domain: a node of its own each.
        let (t, n) = (wanted.len(), self.candidates.len());
        let mut names: Vec<u16> = self
            .candidates
            .iter()
            .map(|c| c.domain)
            .filter(|&d| d != 0)
            .collect();
        names.sort_unstable();
        names.dedup();
        self.domain_of.clear();
        for c in &self.candidates {
            self.domain_of
                .push(names.binary_search(&c.domain).map_or(NOBODY, |d| d as u32));
        }
        self.domains
            .resize_with(names.len().max(self.domains.len()), Vec::new);
        self.domains.iter_mut().for_each(Vec::clear);
        let nodes = t + n + names.len();
        let total: u32 = wanted.iter().sum();
        let mut matched = 0;
        while matched < total {
            let Some((end, _)) = self.shortest(wanted, cap, nodes) else {
                break;
            };
            // Walk back from the end: candidate, or full-or-not domain after a candidate.
            let mut path = vec![end];
            while self.parent[path[path.len() - 1] as usize] != NOBODY {
                path.push(self.parent[path[path.len() - 1] as usize]);
            }
            path.reverse();
            let cost = self.cost as i64 + self.added_cost(&path, t, n);
            if cost as u64 > budget {
                self.over_budget = true;
                break;
            }
            self.cost = cost as u64;
            self.apply(&path, t, n);
            matched += 1;
        }
        matched
    }

    /// What a path adds to the cost of the team: unused candidates come in, those reached through their domain
    /// go out, those reached from a requirement only change hands.
    fn added_cost(&self, path: &[u32], t: usize, n: usize) -> i64 {
        let mut added = 0;
        for step in path.windows(2) {
            let (before, at) = (step[0] as usize, step[1] as usize);
            if at < t || at >= t + n {
                continue;
            }
            let cost = i64::from(self.candidates[at - t].cost);
            if self.assigned[at - t] == NOBODY {
                added += cost;
            } else if before >= t + n {
                added -= cost;
            }
        }
        added
    }

    /// The cheapest way to serve one more slot: its last node, and the weight it adds.
    fn shortest(&mut self, wanted: &[u32], cap: u32, nodes: usize) -> Option<(u32, i64)> {
        let (t, n) = (wanted.len(), self.candidates.len());
        self.distance.clear();
        self.distance.resize(nodes, i64::MAX);
        self.parent.clear();
        self.parent.resize(nodes, NOBODY);
        self.queued.clear();
        self.queued.resize(nodes, false);
        self.queue.clear();
        for (i, &w) in wanted.iter().enumerate() {
            if (self.members[i].len() as u32) < w {
                self.distance[i] = 0;
                self.queue.push_back(i as u32);
                self.queued[i] = true;
            }
        }
        let mut best: Option<(u32, i64)> = None;
        while let Some(node) = self.queue.pop_front() {
            let at = node as usize;
            self.queued[at] = false;
            let so_far = self.distance[at];
            if at < t {
                for c in 0..n {
                    if self.candidates[c].mask >> at & 1 == 1 && self.assigned[c] != at as u32 {
                        self.relax(node, (t + c) as u32, so_far);
                    }
                }
            } else if at < t + n {
                let c = at - t;
                if self.assigned[c] == NOBODY {
                    let after = so_far + self.weight(c);
                    match self.domain_of[c] {
                        NOBODY => {
                            if best.is_none_or(|(_, w)| after < w) {
                                best = Some((node, after));
                            }
                        }
                        d => self.relax(node, (t + n) as u32 + d, after),
                    }
                } else {
                    self.relax(node, self.assigned[c], so_far);
                }
            } else {
                let d = at - t - n;
                if (self.domains[d].len() as u32) < cap {
                    if best.is_none_or(|(_, w)| so_far < w) {
                        best = Some((node, so_far));
                    }
                } else {
                    for k in 0..self.domains[d].len() {
                        let c = self.domains[d][k] as usize;
                        self.relax(node, (t + c) as u32, so_far - self.weight(c));
                    }
                }
            }
        }
        best
    }

    fn weight(&self, c: usize) -> i64 {
        let candidate = &self.candidates[c];
        candidate.weight as i64 - if candidate.forced { FORCED } else { 0 }
    }

    fn relax(&mut self, from: u32, to: u32, distance: i64) {
        let at = to as usize;
        if distance < self.distance[at] {
            self.distance[at] = distance;
            self.parent[at] = from;
            if !self.queued[at] {
                self.queued[at] = true;
                self.queue.push_back(to);
            }
        }
    }

    fn apply(&mut self, path: &[u32], t: usize, n: usize) {
        // First free what the path gives up, then take what it takes; the two can concern the same agent.
        let mut takes = Vec::new();
        for (k, &node) in path.iter().enumerate() {
            let at = node as usize;
            if at < t || at >= t + n {
                continue;
            }
            let c = at - t;
            let before = path[k - 1] as usize;
            if self.assigned[c] != NOBODY {
                let i = self.assigned[c] as usize;
                self.members[i].retain(|&x| x != c as u32);
                self.assigned[c] = NOBODY;
                if before >= t {
                    // Reached through its domain: it leaves the team.
                    let d = self.domain_of[c] as usize;
                    self.domains[d].retain(|&x| x != c as u32);
                    continue;
                }
            } else if self.domain_of[c] != NOBODY {
                self.domains[self.domain_of[c] as usize].push(c as u32);
            }
            takes.push((before, c));
        }
        for (i, c) in takes {
            self.members[i].push(c as u32);
            self.assigned[c] = i as u32;
        }
    }

    /// The requirements that alternating paths reach from a short one: together they want `missing` more agents
    /// than can serve them.
    pub(crate) fn hall(&self, wanted: &[u32], domain_cap: Option<u32>) -> Hall {
        let mut reached = 0u64;
        for (i, &w) in wanted.iter().enumerate() {
            reached |= u64::from((self.members[i].len() as u32) < w) << i;
        }
        let mut full = vec![false; self.domains.len()];
        loop {
            let before = reached;
            for (c, candidate) in self.candidates.iter().enumerate() {
                if candidate.mask & reached == 0 {
                    continue;
                }
                if self.assigned[c] != NOBODY {
                    reached |= 1 << self.assigned[c];
                } else if domain_cap.is_some() && self.domain_of[c] != NOBODY {
                    // Unused, so its domain must be full: everyone used there could make way.
                    let d = self.domain_of[c] as usize;
                    if !full[d] {
                        full[d] = true;
                        for &used in &self.domains[d] {
                            reached |= 1 << self.assigned[used as usize];
                        }
                    }
                }
            }
            if reached == before {
                break;
            }
        }
        let in_set = |i: &usize| reached >> i & 1 == 1;
        let want: u32 = (0..wanted.len()).filter(in_set).map(|i| wanted[i]).sum();
        let have: u32 = (0..wanted.len())
            .filter(in_set)
            .map(|i| self.members[i].len() as u32)
            .sum();
        Hall {
            requirements: reached,
            wanted: want,
            available: have,
        }
    }
}
