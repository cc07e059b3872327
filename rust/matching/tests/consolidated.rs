//! Consolidated assembly against all subsets of small worlds.
mod common;

use common::{World, fewest, request, serves_all};
use pandacore_matching::{Mode, Quality, Rng, Scratch, Team, TeamSpec};

fn assemble(world: &World, spec: &TeamSpec, seed: u64) -> Team {
    let registry = world.registry(seed);
    let mut team = Team::default();
    registry.assemble(spec, None, seed, &mut Scratch::default(), &mut team);
    team
}

fn members(team: &Team) -> Vec<usize> {
    let mut members: Vec<usize> = team.picks.iter().map(|p| p.slot as usize).collect();
    members.sort_unstable();
    members.dedup();
    assert_eq!(members.len(), team.picks.len(), "an agent twice");
    members
}

fn random_spec(rng: &mut Rng, world: &World) -> TeamSpec {
    let mut spec = request(rng, world.capabilities as u32, 3);
    spec.mode = Mode::Consolidated;
    let n = world.agents.len() as u32;
    if rng.below(3) == 0 {
        spec.exclude = (0..n).filter(|_| rng.below(6) == 0).collect();
    }
    spec
}

#[test]
fn teams_are_complete_whenever_possible_and_bounds_hold() {
    let mut rng = Rng::new(31);
    let (mut total, mut optimum, mut refused) = (0, 0, 0);
    for round in 0..4_000 {
        let world = World::random(&mut rng, 1..13, 8);
        let mut spec = random_spec(&mut rng, &world);
        spec.quality = [Quality::Fast, Quality::Best, Quality::Optimal][round as usize % 3];
        let team = assemble(&world, &spec, round);
        let chosen = members(&team);
        let best = fewest(&world, &spec);
        assert_eq!(team.complete(), best.is_some(), "round {round}: {spec:?}");
        if let Some(best) = best {
            assert!(serves_all(&world, &spec, &chosen));
            assert!(chosen.len() >= best && team.lower_bound as usize <= best);
            if team.optimal || spec.quality == Quality::Optimal {
                assert_eq!(chosen.len(), best, "round {round}");
            }
            if spec.quality == Quality::Optimal {
                assert!(team.optimal);
            }
            total += chosen.len();
            optimum += best;
        } else {
            refused += 1;
            // The largest part: every requirement is served as far as its agents go.
            for (i, r) in spec.required.iter().enumerate() {
                let exist = (0..world.agents.len())
                    .filter(|&a| world.can(a, r.any[0], &spec))
                    .count() as u32;
                let missing = team.missing.iter().find(|m| m.0 as usize == i).map_or(0, |m| m.1);
                assert_eq!(missing, r.count.saturating_sub(exist));
                let have = chosen.iter().filter(|&&a| world.can(a, r.any[0], &spec)).count() as u32;
                assert!(have >= r.count.min(exist));
            }
            let hall = team.hall.expect("a refusal is proved");
            assert!(hall.wanted > hall.available);
        }
    }
    assert!(refused > 500, "{refused}");
    assert!(
        (total as f64) < 1.02 * optimum as f64,
        "{total} members, {optimum} would do"
    );
}

#[test]
fn constrained_teams_are_complete_whenever_possible() {
    let mut rng = Rng::new(37);
    let (mut complete, mut refused) = (0, 0);
    for round in 0..3_000 {
        let world = World::random(&mut rng, 2..12, 6);
        let mut spec = random_spec(&mut rng, &world);
        let n = world.agents.len() as u32;
        match rng.below(3) {
            0 => spec.domain_cap = Some(1 + rng.below(2)),
            1 => spec.cost_cap = Some(u64::from(rng.below(50))),
            _ => spec.must_include = vec![rng.below(n)],
        }
        let team = assemble(&world, &spec, round);
        let chosen = members(&team);
        // An agent that must be included has to serve something.
        let useful = spec.must_include.iter().all(|&a| {
            spec.required
                .iter()
                .any(|r| r.count > 0 && world.can(a as usize, r.any[0], &spec))
        });
        let possible = useful && fewest(&world, &spec).is_some();
        assert_eq!(
            team.complete(),
            possible,
            "round {round}: {spec:?} {world:?} {team:?}"
        );
        if possible {
            assert!(
                serves_all(&world, &spec, &chosen),
                "round {round}: {spec:?} {team:?}"
            );
            complete += 1;
        } else {
            refused += 1;
        }
    }
    assert!(complete > 300 && refused > 300, "{complete} {refused}");
}

#[test]
fn serves_tells_exactly_what_each_member_can_do() {
    let mut rng = Rng::new(41);
    for round in 0..500 {
        let world = World::random(&mut rng, 1..200, 12);
        let spec = random_spec(&mut rng, &world);
        let team = assemble(&world, &spec, round);
        for pick in &team.picks {
            for (i, r) in spec.required.iter().enumerate() {
                assert_eq!(
                    pick.serves >> i & 1 == 1,
                    world.can(pick.slot as usize, r.any[0], &spec)
                );
            }
        }
    }
}
