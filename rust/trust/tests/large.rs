//! Searches of graphs large enough for the ways that only large searches take, against a plain search.
use std::collections::BTreeSet;

use pandacore_trust::{Membership, Scratch, Walk, Web, distance, reach, reach_sizes};

const AGENTS: u32 = 4_000;
const GENESIS: u32 = 3;
const NOW: u32 = 1_000;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

/// A web in which some certificates have ended, come later, were revoked or were added late, and some agents are
/// void; and the arcs that count.
fn web(seed: u64) -> (Web, Vec<BTreeSet<u32>>) {
    let mut rng = Rng(seed);
    let (mut issuers, mut subjects, mut begins, mut ends) = (vec![], vec![], vec![], vec![]);
    let mut seen = BTreeSet::new();
    for agent in GENESIS..AGENTS {
        for _ in 0..3 + rng.below(3) {
            // Half of all certificates are issued by few: frontiers become long.
            let below = if rng.below(2) == 0 { agent } else { agent.min(40) };
            let issuer = rng.below(below);
            if seen.insert((issuer, agent)) {
                let kind = rng.below(24);
                issuers.push(issuer);
                subjects.push(agent);
                begins.push(if kind == 0 { NOW + 5 } else { NOW - 100 });
                ends.push(if kind == 1 { NOW } else { NOW + 50 });
            }
        }
    }
    let membership = Membership {
        genesis: (0..GENESIS).collect(),
        threshold: 2,
        latched: false,
        grace: 0,
    };
    let mut web = Web::new(membership, NOW);
    web.grow(AGENTS as usize);
    assert!(web.load(&issuers, &subjects, &begins, &ends));
    web.need_members();
    let mut arcs = vec![BTreeSet::new(); AGENTS as usize];
    for ((&issuer, &subject), (&begin, &end)) in issuers.iter().zip(&subjects).zip(begins.iter().zip(&ends)) {
        if begin <= NOW && NOW < end {
            arcs[issuer as usize].insert(subject);
        }
    }
    for _ in 0..300 {
        let at = rng.below(issuers.len() as u32) as usize;
        web.end(issuers[at], subjects[at], NOW);
        arcs[issuers[at] as usize].remove(&subjects[at]);
        let (issuer, subject) = (rng.below(60), rng.below(AGENTS));
        if issuer != subject && seen.insert((issuer, subject)) {
            web.renew(issuer, subject, NOW, NOW + 50);
            arcs[issuer as usize].insert(subject);
        }
        // The founders stay, so that there is something to reach.
        let void = 100 + rng.below(AGENTS - 100);
        web.compromise(void);
        arcs[void as usize].clear();
        arcs.iter_mut().for_each(|to| {
            to.remove(&void);
        });
    }
    web.settle();
    let members = web.members().expect("membership is kept");
    // Only members are reached; who is none may still be an anchor.
    for to in &mut arcs {
        to.retain(|&node| members.contains(node));
    }
    (web, arcs)
}

fn plain(arcs: &[BTreeSet<u32>], anchor: u32, depth: u32) -> BTreeSet<u32> {
    let mut seen = BTreeSet::from([anchor]);
    let mut frontier = vec![anchor];
    for _ in 0..depth {
        let next: BTreeSet<u32> = frontier
            .iter()
            .flat_map(|&node| arcs[node as usize].iter().copied())
            .collect();
        frontier = next.into_iter().filter(|&node| seen.insert(node)).collect();
    }
    seen
}

fn walk(depth: u32) -> Walk {
    Walk {
        max_depth: Some(depth),
        mutual: false,
        members_only: true,
    }
}

#[test]
fn large_sets_equal_a_plain_search() {
    let mut scratch = Scratch::default();
    let mut most = 0;
    for seed in 0..3 {
        let (web, arcs) = web(seed);
        // Small sets between the large ones: nothing may be left behind in the scratch.
        for anchor in (0..200).rev() {
            for depth in [4, 3, 1] {
                if web.is_compromised(anchor) {
                    continue;
                }
                let found = reach(web.graph(), &mut scratch, &[anchor], walk(depth), None);
                let set: BTreeSet<u32> = found.iter().copied().collect();
                assert_eq!(
                    set.len(),
                    found.len(),
                    "seed {seed}: {anchor} reaches a node twice"
                );
                assert_eq!(
                    set,
                    plain(&arcs, anchor, depth),
                    "seed {seed}: {anchor} within {depth}"
                );
                most = most.max(set.len());
            }
            let target = (anchor * 17 + 5) % AGENTS;
            let within = |d: u32| plain(&arcs, anchor, d).contains(&target);
            let expected = (0..=3)
                .find(|&d| within(d))
                .filter(|_| !web.is_compromised(anchor));
            let void = web.is_compromised(target);
            let found = distance(web.graph(), &mut scratch, anchor, target, walk(3));
            assert_eq!(
                found,
                expected.filter(|_| !void),
                "seed {seed}: {anchor} to {target}"
            );
        }
    }
    assert!(most > 1_000, "sets of {most} are not large");
}

#[test]
fn sizes_of_all_sets_equal_the_sizes_of_each() {
    let everybody: Vec<u32> = (0..AGENTS).collect();
    let mask: Vec<u64> = (0..AGENTS.div_ceil(64))
        .map(|word| 0x5555_3333_0f0f_00ff << (word % 3))
        .collect();
    for seed in 0..2 {
        let (web, arcs) = web(seed);
        for depth in 0..=4 {
            for mask in [None, Some(&mask[..])] {
                let counts = |node: u32| mask.is_none_or(|m| m[node as usize / 64] >> (node % 64) & 1 == 1);
                for threads in [1, 3] {
                    let sizes = reach_sizes(web.graph(), &everybody, walk(depth), mask, threads);
                    for anchor in (0..AGENTS).step_by(7) {
                        let expected = if web.is_compromised(anchor) {
                            0
                        } else {
                            plain(&arcs, anchor, depth)
                                .into_iter()
                                .filter(|&node| counts(node))
                                .count()
                        };
                        assert_eq!(
                            sizes[anchor as usize] as usize, expected,
                            "seed {seed}: {anchor} within {depth}"
                        );
                    }
                }
            }
        }
    }
}
