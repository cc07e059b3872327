//! Several viewers of one registry.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
mod common;

use common::{World, id, request};
use pandacore_matching::{
    Announcement, Attributes, Config, MIN_TOMBSTONES, Prepared, Registry, RegistryError, Requirement, Rng,
    Scratch, Team, TeamSpec, Viewer,
};

fn announce(registry: &Registry, n: usize, held: &[u32]) -> u32 {
    let announcement = Announcement {
        id: id(n),
        capabilities: held,
        version: None,
        domain: 0,
        attributes: Attributes::default(),
    };
    registry.announce(&announcement).unwrap().slot
}

/// A viewer's teams are those of a registry that holds nobody else but whom it trusts.
#[test]
fn each_viewer_sees_the_registry_without_the_agents_it_does_not_trust() {
    let mut rng = Rng::new(77);
    let mut scratch = Scratch::default();
    for round in 0..2_000 {
        let world = World::random(&mut rng, 1..40, 8);
        let registry = world.registry(round);
        let slots: Vec<u32> = (0..world.agents.len() as u32).collect();
        for _ in 0..3 {
            let verdicts: Vec<bool> = slots.iter().map(|_| rng.below(3) > 0).collect();
            let mut viewer = Viewer::new(&registry);
            viewer.set(&registry, &slots, &verdicts).unwrap();
            let mut narrowed = world.clone();
            for (agent, &trusted) in narrowed.agents.iter_mut().zip(&verdicts) {
                agent.usable &= trusted;
            }
            let spec = request(&mut rng, 8, 3);
            let mut team = Team::default();
            let prepared = Prepared::from(spec.clone());
            viewer.assemble(&registry, &prepared, round, &mut scratch, &mut team);
            assert!(
                team.picks.iter().all(|p| verdicts[p.slot as usize]),
                "round {round}"
            );
            let (most, _) = common::best_dedicated(&narrowed, &spec, |_| 0);
            assert_eq!(team.picks.len() as u32, most, "round {round}");
        }
    }
}

#[test]
fn a_slot_that_went_to_another_agent_is_not_trusted() {
    let registry = Registry::new(Config::default());
    let c = registry.intern("c").unwrap();
    let first = announce(&registry, 0, &[c]);
    let kept = announce(&registry, 1, &[c]);
    let mut viewer = Viewer::new(&registry);
    viewer.set(&registry, &[first, kept], &[true, true]).unwrap();
    registry.withdraw(&id(0), None).unwrap();
    // Remembered withdrawals keep their slots until there are too many of them.
    let reused = (2..MIN_TOMBSTONES + 10)
        .map(|n| {
            let slot = announce(&registry, n, &[c]);
            if slot != first {
                registry.withdraw(&id(n), None).unwrap();
            }
            slot
        })
        .find(|&slot| slot == first)
        .expect("the slot changes hands");
    assert!(!viewer.trusts(&registry, reused));
    assert!(viewer.trusts(&registry, kept));
    assert_eq!(viewer.count(&registry), 1);
    let spec = TeamSpec {
        required: vec![Requirement {
            any: vec![c],
            count: 2,
        }],
        probes: 16,
        ..TeamSpec::default()
    };
    let mut team = Team::default();
    viewer.assemble(
        &registry,
        &Prepared::from(spec),
        1,
        &mut Scratch::default(),
        &mut team,
    );
    assert_eq!(team.picks.len(), 1);
    assert_eq!(team.picks[0].slot, kept);
}

#[test]
fn verdicts_on_nobody_are_refused_and_change_nothing() {
    let registry = Registry::new(Config::default());
    let c = registry.intern("c").unwrap();
    let slot = announce(&registry, 0, &[c]);
    let mut viewer = Viewer::new(&registry);
    assert_eq!(
        viewer.set(&registry, &[slot, 9], &[true, true]),
        Err(RegistryError::UnknownSlot(9))
    );
    assert!(matches!(
        viewer.set(&registry, &[slot], &[]),
        Err(RegistryError::Shape(_))
    ));
    assert_eq!(viewer.count(&registry), 0);
}
