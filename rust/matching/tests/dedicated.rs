//! Dedicated assembly against a plain minimum-cost flow.
mod common;

use common::{World, best_dedicated, request};
use pandacore_matching::{Mode, Quality, Rng, Scratch, Shortage, Team, TeamSpec};
use proptest::prelude::*;

fn assemble(world: &World, spec: &TeamSpec, seed: u64) -> Team {
    let registry = world.registry(seed);
    let mut team = Team::default();
    registry.assemble(spec, None, seed, &mut Scratch::default(), &mut team);
    team
}

/// Every rule that a returned team must obey, complete or not.
fn check(world: &World, spec: &TeamSpec, team: &Team) {
    let mut slots: Vec<u32> = team.picks.iter().map(|p| p.slot).collect();
    slots.sort_unstable();
    let n = slots.len();
    slots.dedup();
    assert_eq!(slots.len(), n, "an agent twice");
    let mut have = vec![0u32; spec.required.len()];
    for pick in &team.picks {
        assert_eq!(pick.serves.count_ones(), 1);
        let i = pick.serves.trailing_zeros() as usize;
        have[i] += 1;
        assert!(
            spec.required[i]
                .any
                .iter()
                .any(|&c| world.can(pick.slot as usize, c, spec))
        );
        assert_eq!(u64::from(pick.score), world.score(pick.slot as usize));
    }
    for (i, r) in spec.required.iter().enumerate() {
        let missing = team.missing.iter().find(|m| m.0 as usize == i).map_or(0, |m| m.1);
        assert_eq!(have[i] + missing, r.count);
    }
    if let Some(cap) = spec.domain_cap {
        for d in 1..8u16 {
            let used = team
                .picks
                .iter()
                .filter(|p| world.agents[p.slot as usize].domain == d)
                .count();
            assert!(used as u32 <= cap, "domain {d} has {used}");
        }
    }
    if let Some(cap) = spec.cost_cap {
        let cost: u64 = team
            .picks
            .iter()
            .map(|p| u64::from(world.agents[p.slot as usize].cost))
            .sum();
        assert!(cost <= cap, "cost {cost} over {cap}");
    }
    if let Some(hall) = team.hall {
        let subset = |i: usize| hall.requirements >> i & 1 == 1;
        let required: Vec<_> = spec
            .required
            .iter()
            .enumerate()
            .filter(|(i, _)| subset(*i))
            .map(|(_, r)| r.clone())
            .collect();
        let wanted: u32 = required.iter().map(|r| r.count).sum();
        let alone = TeamSpec {
            required,
            ..spec.clone()
        };
        let (available, _) = best_dedicated(world, &alone, |_| 0);
        assert_eq!(
            (hall.wanted, hall.available),
            (wanted, available),
            "Hall arithmetic"
        );
        assert!(hall.wanted > hall.available);
        let missing: u32 = team.missing.iter().map(|m| m.1).sum();
        assert_eq!(missing, hall.wanted - hall.available);
    }
    assert_eq!(
        team.complete(),
        team.missing.is_empty() && team.shortage.is_none()
    );
    if team.complete() {
        assert!(
            spec.must_include
                .iter()
                .all(|s| team.picks.iter().any(|p| p.slot == *s))
        );
    }
}

fn random_spec(rng: &mut Rng, world: &World) -> TeamSpec {
    let mut spec = request(rng, world.capabilities as u32, 3);
    let n = world.agents.len() as u32;
    if rng.below(3) == 0 {
        spec.exclude = (0..n).filter(|_| rng.below(6) == 0).collect();
    }
    if rng.below(4) == 0 {
        spec.domain_cap = Some(1 + rng.below(3));
    }
    if rng.below(5) == 0 {
        // Another name for the same need: any of two capabilities.
        let other = rng.below(world.capabilities as u32);
        let any = &mut spec.required[0].any;
        if !any.contains(&other) {
            any.push(other);
        }
    }
    spec
}

/// 10^5 tight instances: never refused when feasible, as large as possible when not, with a true certificate.
#[test]
fn no_feasible_request_is_refused_and_refusals_are_proved() {
    let mut rng = Rng::new(20_260);
    let (mut refused, mut complete) = (0, 0);
    for round in 0..20_000 {
        let world = World::random(&mut rng, 1..40, 9);
        let registry = world.registry(round);
        let mut scratch = Scratch::default();
        let mut team = Team::default();
        for _ in 0..5 {
            let mut spec = random_spec(&mut rng, &world);
            if rng.below(4) == 0 {
                spec.quality = Quality::Optimal;
            }
            registry.assemble(&spec, None, rng.next_u64(), &mut scratch, &mut team);
            check(&world, &spec, &team);
            let (most, _) = best_dedicated(&world, &spec, |_| 0);
            assert_eq!(team.picks.len() as u32, most, "round {round}: {spec:?}");
            assert_eq!(team.complete(), most == spec.total());
            if team.complete() {
                complete += 1
            } else {
                refused += 1
            }
            assert_eq!(team.hall.is_some(), !team.complete());
        }
    }
    assert!(
        refused > 10_000 && complete > 10_000,
        "{refused} refused, {complete} complete"
    );
}

#[test]
fn optimal_teams_have_the_least_total_score() {
    let mut rng = Rng::new(7);
    for round in 0..4_000 {
        let world = World::random(&mut rng, 1..60, 8);
        let mut spec = random_spec(&mut rng, &world);
        spec.quality = Quality::Optimal;
        let team = assemble(&world, &spec, round);
        check(&world, &spec, &team);
        let (most, least) = best_dedicated(&world, &spec, |a| world.score(a) as i64);
        let score: i64 = team.picks.iter().map(|p| i64::from(p.score)).sum();
        assert_eq!((team.picks.len() as u32, score), (most, least), "round {round}");
        assert_eq!(team.optimal, team.complete());
    }
}

#[test]
fn cost_caps_refuse_only_what_no_team_can_afford() {
    let mut rng = Rng::new(11);
    let mut refused = 0;
    for round in 0..6_000 {
        let world = World::random(&mut rng, 4..40, 7);
        let mut spec = random_spec(&mut rng, &world);
        spec.cost_cap = Some(u64::from(rng.below(80)));
        let team = assemble(&world, &spec, round);
        check(&world, &spec, &team);
        let (most, least) = best_dedicated(&world, &spec, |a| i64::from(world.agents[a].cost));
        let affordable = most == spec.total() && least as u64 <= spec.cost_cap.unwrap();
        assert_eq!(team.complete(), affordable, "round {round}: {spec:?} {team:?}");
        if most == spec.total() && !affordable {
            assert_eq!(team.shortage, Some(Shortage::Cost));
            refused += 1;
        }
    }
    assert!(refused > 300, "{refused}");
}

#[test]
fn must_include_agents_are_in_every_complete_team() {
    let mut rng = Rng::new(13);
    let mut complete = 0;
    for round in 0..6_000 {
        let world = World::random(&mut rng, 4..40, 7);
        let mut spec = random_spec(&mut rng, &world);
        let n = world.agents.len() as u32;
        spec.must_include = (0..1 + rng.below(3)).map(|_| rng.below(n)).collect();
        spec.must_include.sort_unstable();
        spec.must_include.dedup();
        let team = assemble(&world, &spec, round);
        check(&world, &spec, &team);
        // A team with all of them exists iff the cheapest full team takes them when they alone are free of charge.
        let forced = |a: usize| i64::from(spec.must_include.binary_search(&(a as u32)).is_err());
        let (most, outsiders) = best_dedicated(&world, &spec, forced);
        let possible = most == spec.total() && i64::from(most) - outsiders == spec.must_include.len() as i64;
        assert_eq!(team.complete(), possible, "round {round}: {spec:?} {team:?}");
        complete += usize::from(possible);
    }
    assert!(complete > 500, "{complete}");
}

#[test]
fn trusted_bitmap_of_the_call_is_obeyed() {
    let mut rng = Rng::new(17);
    for round in 0..3_000 {
        let world = World::random(&mut rng, 1..80, 6);
        let spec = random_spec(&mut rng, &world);
        let mut bitmap = vec![0u64; 1 + rng.below(2) as usize];
        bitmap
            .iter_mut()
            .for_each(|w| *w = rng.next_u64() | rng.next_u64());
        let mut narrowed = world.clone();
        for (n, agent) in narrowed.agents.iter_mut().enumerate() {
            agent.usable &= bitmap.get(n / 64).is_some_and(|w| w >> (n % 64) & 1 == 1);
        }
        let registry = world.registry(round);
        let mut team = Team::default();
        registry.assemble(&spec, Some(&bitmap), round, &mut Scratch::default(), &mut team);
        check(&narrowed, &spec, &team);
        assert_eq!(team.picks.len() as u32, best_dedicated(&narrowed, &spec, |_| 0).0);
    }
}

#[test]
fn equal_seeds_give_equal_teams_and_ties_are_broken_by_the_seed() {
    let mut rng = Rng::new(19);
    let mut world = World::random(&mut rng, 200..201, 4);
    world.agents.iter_mut().for_each(|a| a.load = 0);
    let required = vec![pandacore_matching::Requirement {
        any: vec![0],
        count: 3,
    }];
    let spec = TeamSpec {
        required,
        probes: 16,
        ..TeamSpec::default()
    };
    let registry = world.registry(1);
    let slots = |seed| {
        let mut team = Team::default();
        registry.assemble(&spec, None, seed, &mut Scratch::default(), &mut team);
        team.picks.iter().map(|p| p.slot).collect::<Vec<_>>()
    };
    assert_eq!(slots(5), slots(5));
    assert!((0..20).any(|seed| slots(seed) != slots(5)));
    assert_eq!(slots(3), {
        let again = world.registry(1);
        let mut team = Team::default();
        again.assemble(&spec, None, 3, &mut Scratch::default(), &mut team);
        team.picks.iter().map(|p| p.slot).collect::<Vec<_>>()
    });
}

#[test]
fn empty_registry_empty_request_and_unknown_capabilities_have_defined_answers() {
    let world = World {
        capabilities: 2,
        agents: Vec::new(),
    };
    let mut spec = TeamSpec {
        probes: 16,
        ..TeamSpec::default()
    };
    for mode in [Mode::Dedicated, Mode::Consolidated] {
        spec.mode = mode;
        spec.required.clear();
        assert!(assemble(&world, &spec, 1).complete());
        spec.required = vec![
            pandacore_matching::Requirement {
                any: vec![1],
                count: 2,
            },
            pandacore_matching::Requirement {
                any: vec![],
                count: 1,
            },
            pandacore_matching::Requirement {
                any: vec![99],
                count: 1,
            },
        ];
        let team = assemble(&world, &spec, 1);
        assert_eq!(team.missing, [(0, 2), (1, 1), (2, 1)]);
        assert!(team.picks.is_empty());
        spec.required = vec![pandacore_matching::Requirement {
            any: vec![0],
            count: 0,
        }];
        assert!(assemble(&world, &spec, 1).complete());
    }
}

#[test]
fn large_redundancy_takes_the_exact_way_and_is_complete() {
    let mut rng = Rng::new(23);
    let world = World::random(&mut rng, 900..901, 3);
    let registry = world.registry(1);
    let spec = TeamSpec {
        required: (0..3)
            .map(|c| pandacore_matching::Requirement {
                any: vec![c],
                count: 120,
            })
            .collect(),
        probes: 16,
        ..TeamSpec::default()
    };
    let mut team = Team::default();
    registry.assemble(&spec, None, 1, &mut Scratch::default(), &mut team);
    check(&world, &spec, &team);
    assert_eq!(team.picks.len() as u32, best_dedicated(&world, &spec, |_| 0).0);
}

fn worlds() -> impl Strategy<Value = World> {
    let agent = (1u32..64, 0u16..9, 0u16..9, 0u16..4, prop::bool::weighted(0.9));
    prop::collection::vec(agent, 0..24).prop_map(|agents| World {
        capabilities: 6,
        agents: agents
            .into_iter()
            .map(|(mask, load, cost, domain, usable)| common::Agent {
                mask,
                load,
                cost,
                domain,
                usable,
            })
            .collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_team_is_valid_and_maximal(world in worlds(), wants in prop::collection::vec((0u32..6, 1u32..4), 1..6),
                                     cap in prop::option::of(1u32..4), seed: u64) {
        let mut spec = TeamSpec { probes: 16, domain_cap: cap, ..TeamSpec::default() };
        for (capability, count) in wants {
            spec.required.push(pandacore_matching::Requirement { any: vec![capability], count });
        }
        let team = assemble(&world, &spec, seed);
        check(&world, &spec, &team);
        prop_assert_eq!(team.picks.len() as u32, best_dedicated(&world, &spec, |_| 0).0);
    }
}
