//! The registry against a plain map, and under several threads.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use common::id;
use pandacore_matching::{
    ALIVE, Announcement, Attributes, Batch, Config, DRAINING, Registry, RegistryError, Requirement, Rng,
    Scratch, TRUSTED, Team, TeamSpec,
};

#[derive(Clone, Debug, PartialEq)]
struct Known {
    held: Vec<u32>,
    version: u64,
    load: u16,
    flags: u8,
    present: bool,
}

fn announce(registry: &Registry, n: usize, held: &[u32], version: Option<u64>, load: u16) -> bool {
    let attributes = Attributes {
        load,
        concurrency: 1,
        ..Attributes::default()
    };
    let announcement = Announcement {
        id: id(n),
        capabilities: held,
        version,
        domain: 0,
        attributes,
    };
    registry.announce(&announcement).unwrap().accepted
}

/// 10^5 random operations on a registry and a map; equal after each.
#[test]
fn behaves_like_a_map() {
    let mut rng = Rng::new(43);
    let registry = Registry::new(Config::default());
    let capabilities = 40u32;
    for c in 0..capabilities {
        registry.intern(&format!("c{c}")).unwrap();
    }
    let mut model: BTreeMap<usize, Known> = BTreeMap::new();
    let population = 400;
    for step in 0..100_000 {
        let n = rng.below(population) as usize;
        let slot = registry.slot_of(&id(n));
        assert_eq!(
            slot.is_some(),
            model.get(&n).is_some_and(|k| k.present),
            "step {step}"
        );
        let mut held: Vec<u32> = (0..1 + rng.below(10)).map(|_| rng.below(capabilities)).collect();
        held.sort_unstable();
        held.dedup();
        match rng.below(8) {
            0 | 1 => {
                let version = (rng.below(3) > 0).then(|| u64::from(rng.below(30)) + step / 2_000);
                let load = rng.below(50) as u16;
                let last = model.get(&n).map_or(0, |k| k.version);
                let accepted = announce(&registry, n, &held, version, load);
                let version = version.unwrap_or(last + 1);
                assert_eq!(accepted, !model.contains_key(&n) || version > last);
                if accepted {
                    let flags = match model.get(&n) {
                        Some(k) if k.present => k.flags | ALIVE,
                        _ => ALIVE | TRUSTED,
                    };
                    model.insert(
                        n,
                        Known {
                            held,
                            version,
                            load,
                            flags,
                            present: true,
                        },
                    );
                }
            }
            2 => {
                let version = (rng.below(2) == 0).then(|| u64::from(rng.below(30)) + step / 2_000);
                let answer = registry.withdraw(&id(n), version);
                match (model.get_mut(&n), version) {
                    (None, None) => assert!(answer.is_err()),
                    (None, Some(version)) => {
                        assert_eq!(answer, Ok(false));
                        let gone = Known {
                            held: Vec::new(),
                            version,
                            load: 0,
                            flags: 0,
                            present: false,
                        };
                        model.insert(n, gone);
                    }
                    (Some(k), None) if !k.present => assert!(answer.is_err()),
                    (Some(k), version) => {
                        let version = version.unwrap_or(k.version);
                        assert_eq!(answer, Ok(k.present && version >= k.version));
                        if version >= k.version {
                            k.version = version;
                            k.present = false;
                        }
                    }
                }
            }
            3 | 4 => {
                let load = rng.below(70_000).min(65_535) as u16;
                if let Some(slot) = slot {
                    registry.set_load(slot, load).unwrap();
                    model.get_mut(&n).unwrap().load = load;
                }
            }
            _ => {
                let flag = [ALIVE, TRUSTED, DRAINING][rng.below(3) as usize];
                let on = rng.below(2) == 0;
                if let Some(slot) = slot {
                    registry.set_flags(slot, flag, on).unwrap();
                    let known = model.get_mut(&n).unwrap();
                    known.flags = if on {
                        known.flags | flag
                    } else {
                        known.flags & !flag
                    };
                }
            }
        }
        if let Some(k) = model.get(&n)
            && k.present
        {
            let record = registry.record(registry.slot_of(&id(n)).unwrap()).unwrap();
            let mut held = record.held.clone();
            held.sort_unstable();
            let mut wanted = k.held.clone();
            wanted.sort_unstable();
            assert_eq!(
                (held, record.version, record.attributes.load),
                (wanted, k.version, k.load)
            );
            assert_eq!(record.flags, k.flags);
        }
        if step % 5_000 == 0 {
            registry.verify();
            for c in 0..capabilities {
                let holds = |k: &&Known| k.present && k.held.contains(&c);
                let ready = |k: &&Known| k.flags & (ALIVE | TRUSTED | DRAINING) == ALIVE | TRUSTED;
                assert_eq!(registry.holders(c).len(), model.values().filter(holds).count());
                assert_eq!(
                    registry.available(c) as usize,
                    model.values().filter(holds).filter(ready).count()
                );
            }
            assert_eq!(registry.len(), model.values().filter(|k| k.present).count());
        }
    }
}

#[test]
fn late_and_duplicate_messages_never_win() {
    let registry = Registry::new(Config::default());
    let (a, b) = (registry.intern("a").unwrap(), registry.intern("b").unwrap());
    assert!(announce(&registry, 1, &[a], Some(5), 0));
    assert!(!announce(&registry, 1, &[b], Some(5), 0), "a duplicate");
    assert!(!announce(&registry, 1, &[b], Some(4), 0), "a late one");
    assert_eq!(registry.holders(b), []);
    assert_eq!(registry.withdraw(&id(1), Some(4)), Ok(false), "a late withdrawal");
    assert_eq!(registry.withdraw(&id(1), Some(6)), Ok(true));
    assert_eq!(registry.withdraw(&id(1), Some(6)), Ok(false));
    assert!(
        !announce(&registry, 1, &[a], Some(6), 0),
        "older than the withdrawal"
    );
    assert_eq!(registry.len(), 0);
    assert!(announce(&registry, 1, &[b], Some(7), 0));
    assert_eq!(registry.holders(a), []);
    assert_eq!(registry.holders(b).len(), 1);
    // The withdrawal arrives first.
    assert_eq!(registry.withdraw(&id(2), Some(3)), Ok(false));
    assert!(!announce(&registry, 2, &[a], Some(3), 0));
    assert!(announce(&registry, 2, &[a], Some(4), 0));
}

#[test]
fn announced_again_after_withdrawal_is_visible_at_once_with_the_new_capabilities_only() {
    let registry = Registry::new(Config::default());
    let handles: Vec<u32> = (0..3)
        .map(|c| registry.intern(&format!("c{c}")).unwrap())
        .collect();
    for round in 0..1_000usize {
        assert!(announce(&registry, 3, &[handles[round % 3]], None, 0));
        for (c, &handle) in handles.iter().enumerate() {
            assert_eq!(registry.holders(handle).len(), usize::from(c == round % 3));
        }
        assert_eq!(registry.len(), 1);
        assert_eq!(registry.withdraw(&id(3), None), Ok(true));
        assert_eq!(registry.len(), 0);
    }
    registry.verify();
    assert_eq!(registry.slots(), 1);
}

#[test]
fn tombstones_are_bounded_and_slots_are_reused_with_a_new_generation() {
    let registry = Registry::new(Config::default());
    let a = registry.intern("a").unwrap();
    let many = pandacore_matching::MIN_TOMBSTONES + 500;
    for n in 0..many {
        announce(&registry, n, &[a], Some(1), 0);
        registry.withdraw(&id(n), None).unwrap();
    }
    let (slots, reuses) = (registry.slots(), registry.reuses());
    assert!(
        slots as usize <= pandacore_matching::MIN_TOMBSTONES + 1,
        "{slots} slots"
    );
    assert!(reuses > 0);
    let mut scratch = Scratch::default();
    let mut team = Team::default();
    announce(&registry, many, &[a], Some(1), 0);
    let spec = TeamSpec {
        required: vec![Requirement {
            any: vec![a],
            count: 1,
        }],
        probes: 16,
        ..TeamSpec::default()
    };
    let before = registry.reuses();
    registry.assemble(&spec, None, 1, &mut scratch, &mut team);
    let slot = team.picks[0].slot;
    registry.withdraw(&id(many), None).unwrap();
    assert_eq!(
        registry.id_at(slot, before),
        Some(id(many)),
        "a tombstone still knows its id"
    );
    for n in many + 1..2 * many + 10 {
        announce(&registry, n, &[a], Some(1), 0);
        registry.withdraw(&id(n), None).unwrap();
    }
    assert_eq!(registry.id_at(slot, before), None, "the slot changed hands");
    registry.verify();
}

#[test]
fn parents_are_held_and_siblings_are_not() {
    let registry = Registry::new(Config::default());
    let web = registry.intern("search.web.news").unwrap();
    let files = registry.intern("search.files").unwrap();
    announce(&registry, 1, &[web], None, 0);
    announce(&registry, 2, &[files], None, 0);
    let count = |name: &str| registry.holders(registry.find(name).unwrap()).len();
    assert_eq!(
        (
            count("search"),
            count("search.web"),
            count("search.web.news"),
            count("search.files")
        ),
        (2, 1, 1, 1)
    );
    assert_eq!(registry.find("searc"), None);
}

#[test]
fn refusals_name_the_fault_and_change_nothing() {
    let registry = Registry::new(Config::default());
    let a = registry.intern("a").unwrap();
    let attributes = Attributes::default();
    let bad = Announcement {
        id: id(1),
        capabilities: &[a, 99],
        version: None,
        domain: 0,
        attributes,
    };
    assert_eq!(registry.announce(&bad), Err(RegistryError::UnknownCapability(99)));
    for c in 0..200 {
        registry.intern(&format!("x{c}")).unwrap();
    }
    let many: Vec<u32> = (0..200).collect();
    let bad = Announcement {
        capabilities: &many,
        ..bad
    };
    assert!(matches!(
        registry.announce(&bad),
        Err(RegistryError::TooManyCapabilities { .. })
    ));
    assert_eq!(registry.set_load(0, 1), Err(RegistryError::UnknownSlot(0)));
    assert_eq!(
        registry.set_load(u32::MAX, 1),
        Err(RegistryError::UnknownSlot(u32::MAX))
    );
    assert_eq!(
        registry.withdraw(&id(1), None),
        Err(RegistryError::UnknownAgent(id(1)))
    );
    assert!(registry.is_empty());
    assert_eq!(
        (registry.id_of(0), registry.record(7), registry.slot_of(&id(1))),
        (None, None, None)
    );
}

#[test]
fn bulk_and_single_announcements_agree() {
    let mut rng = Rng::new(47);
    for round in 0..60 {
        let one = Registry::new(Config::default());
        let bulk = Registry::new(Config {
            signatures: round % 2 == 0,
            ..Config::default()
        });
        let capabilities = 12u32;
        for c in 0..capabilities {
            let name = if round % 3 == 0 {
                format!("p{}.c{c}", c % 3)
            } else {
                format!("c{c}")
            };
            one.intern(&name).unwrap();
            bulk.intern(&name).unwrap();
        }
        let known = one.known_capabilities();
        for wave in 0..3usize {
            let n = 1 + rng.below(300) as usize;
            // Some of the wave are known from the one before.
            let first = wave * 150;
            let ids: Vec<[u8; 32]> = (first..first + n).map(id).collect();
            let (mut offsets, mut flat) = (vec![0i64], Vec::new());
            for _ in 0..n {
                for _ in 0..rng.below(9) {
                    flat.push(rng.below(known));
                }
                offsets.push(flat.len() as i64);
            }
            let loads: Vec<u16> = (0..n).map(|_| rng.below(9) as u16).collect();
            let trusted: Vec<bool> = (0..n).map(|_| rng.below(4) > 0).collect();
            let batch = Batch {
                ids: &ids,
                offsets: &offsets,
                capabilities: &flat,
                loads: Some(&loads),
                trusted: Some(&trusted),
                ..Batch::default()
            };
            let slots = bulk.announce_many(&batch).unwrap();
            bulk.verify();
            for i in 0..n {
                let held = &flat[offsets[i] as usize..offsets[i + 1] as usize];
                announce(&one, first + i, held, None, loads[i]);
                let slot = one.slot_of(&ids[i]).unwrap();
                one.set_flags(slot, TRUSTED, trusted[i]).unwrap();
                assert_eq!(bulk.slot_of(&ids[i]), Some(slots[i]));
                let mut a = one.record(slot).unwrap();
                let mut b = bulk.record(slots[i]).unwrap();
                a.held.sort_unstable();
                b.held.sort_unstable();
                assert_eq!(
                    (a.held, a.version, a.attributes.load, a.flags),
                    (b.held, b.version, b.attributes.load, b.flags)
                );
            }
            for c in 0..known {
                assert_eq!(
                    (one.holders(c).len(), one.available(c)),
                    (bulk.holders(c).len(), bulk.available(c))
                );
            }
        }
        one.verify();
    }
}

#[test]
fn a_batch_with_one_id_twice_is_refused_whole() {
    let registry = Registry::new(Config::default());
    let a = registry.intern("a").unwrap();
    announce(&registry, 0, &[a], Some(1), 0);
    for ids in [vec![id(5), id(6), id(5)], vec![id(0), id(7), id(0)]] {
        let batch = Batch {
            ids: &ids,
            offsets: &[0, 1, 2, 3],
            capabilities: &[a, a, a],
            ..Batch::default()
        };
        assert_eq!(
            registry.announce_many(&batch),
            Err(RegistryError::DuplicateId { first: 0, second: 2 })
        );
        assert_eq!(registry.len(), 1);
        assert_eq!(registry.slot_of(&id(6)), None);
        registry.verify();
    }
    for (offsets, capabilities) in [
        (vec![0, 1], vec![a]),
        (vec![0, 2, 1], vec![a]),
        (vec![1, 1, 1], vec![a]),
    ] {
        let ids = [id(8), id(9)];
        let batch = Batch {
            ids: &ids,
            offsets: &offsets,
            capabilities: &capabilities,
            ..Batch::default()
        };
        assert!(
            matches!(registry.announce_many(&batch), Err(RegistryError::Shape(_))),
            "{offsets:?}"
        );
    }
    registry.verify();
}

fn sample(seed: u64) -> Registry {
    let mut rng = Rng::new(seed);
    let registry = Registry::new(Config {
        seed,
        ..Config::default()
    });
    let handles: Vec<u32> = (0..20)
        .map(|c| registry.intern(&format!("p{}.c{c}", c % 4)).unwrap())
        .collect();
    for n in 0..120 {
        let held: Vec<u32> = (0..rng.below(10))
            .map(|_| handles[rng.below(20) as usize])
            .collect();
        let attributes = Attributes {
            load: rng.below(9) as u16,
            service: 9_000,
            cost: 3,
            rtt: 7,
            concurrency: 2,
        };
        let announcement = Announcement {
            id: id(n),
            capabilities: &held,
            version: Some(5),
            domain: rng.below(9) as u16,
            attributes,
        };
        let slot = registry.announce(&announcement).unwrap().slot;
        registry
            .set_flags(
                slot,
                [ALIVE, TRUSTED, DRAINING][rng.below(3) as usize],
                rng.below(2) == 0,
            )
            .unwrap();
        if rng.below(5) == 0 {
            registry.withdraw(&id(n), Some(7)).unwrap();
        }
    }
    registry
}

#[test]
fn snapshots_restore_everything_but_slots() {
    let registry = sample(3);
    let bytes = registry.snapshot();
    let other = Registry::restore(&bytes).unwrap();
    other.verify();
    assert_eq!(other.len(), registry.len());
    assert_eq!(other.config(), registry.config());
    assert_eq!(other.vocabulary(false), registry.vocabulary(false));
    for n in 0..120 {
        let record = |r: &Registry| {
            r.slot_of(&id(n)).map(|slot| {
                let mut record = r.record(slot).unwrap();
                record.slot = 0;
                record.held.sort_unstable();
                record
            })
        };
        assert_eq!(record(&other), record(&registry));
        // Tombstones came along: a late announcement still loses.
        if registry.slot_of(&id(n)).is_none() {
            assert!(!announce(&other, n, &[0], Some(7), 0));
        }
    }
    let empty = Registry::restore(&Registry::new(Config::default()).snapshot()).unwrap();
    assert!(empty.is_empty());
}

#[test]
fn damaged_snapshots_are_refused() {
    let bytes = sample(4).snapshot();
    let mut rng = Rng::new(6);
    for k in 0..100 {
        let cut = bytes.len() * k / 100;
        assert!(
            matches!(Registry::restore(&bytes[..cut]), Err(RegistryError::Corrupt(_))),
            "cut at {cut}"
        );
    }
    for _ in 0..1_000 {
        let mut damaged = bytes.clone();
        let at = rng.below(bytes.len() as u32) as usize;
        damaged[at] ^= 1 << rng.below(8);
        assert!(
            matches!(Registry::restore(&damaged), Err(RegistryError::Corrupt(_))),
            "flip at {at}"
        );
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Registry::restore(&longer).is_err());
    // Sections in another order have other checksums.
    assert!(Registry::restore(b"").is_err());
}

/// Readers on some threads, writers of every kind on others: no team ever has an agent that lacks the capability
/// for good, and when all is quiet the registry equals a serial one.
/// A registry of agents that arrive in batches of `size`, with few common and many rare capabilities.
fn grown(agents: usize, size: usize) -> Registry {
    let registry = Registry::new(Config::default());
    let kinds = 2_000u32;
    for c in 0..kinds {
        registry.intern(&format!("c{c}")).expect("a valid name");
    }
    let mut rng = Rng::new(11);
    let ids: Vec<[u8; 32]> = (0..agents).map(id).collect();
    for part in ids.chunks(size) {
        let mut offsets = vec![0i64];
        let mut capabilities = Vec::new();
        for _ in part {
            let first = capabilities.len();
            for _ in 0..=rng.below(8) {
                // Low handles are drawn far more often.
                let held = (f64::from(kinds).powf(rng.unit()) - 1.0) as u32;
                if !capabilities[first..].contains(&held) {
                    capabilities.push(held);
                }
            }
            offsets.push(capabilities.len() as i64);
        }
        if let ([id], held) = (part, &capabilities) {
            let announcement = Announcement {
                id: *id,
                capabilities: held,
                version: None,
                domain: 0,
                attributes: Attributes::default(),
            };
            registry.announce(&announcement).expect("valid");
            continue;
        }
        let batch = Batch {
            ids: part,
            offsets: &offsets,
            capabilities: &capabilities,
            ..Batch::default()
        };
        registry.announce_many(&batch).expect("valid");
    }
    registry
}

#[test]
fn agents_that_come_one_by_one_take_little_more_memory_than_all_at_once() {
    const AGENTS: usize = 100_000;
    let bytes = |registry: &Registry| {
        let m = registry.memory();
        m.lines + m.pools + m.signatures + m.ids + m.index + m.spare
    };
    let bulk = bytes(&grown(AGENTS, AGENTS));
    for size in [1, 512] {
        let slow = bytes(&grown(AGENTS, size));
        assert!(
            slow * 2 < bulk * 3,
            "in batches of {size}: {slow} bytes, {bulk} at once"
        );
    }
}

#[test]
fn readers_and_writers_at_once() {
    let registry = Registry::new(Config::default());
    let handles: Vec<u32> = (0..8)
        .map(|c| registry.intern(&format!("c{c}")).unwrap())
        .collect();
    // Agent n always has capability n % 8, and others that change.
    let fixed = |n: usize| handles[n % 8];
    for n in 0..2_000 {
        announce(&registry, n, &[fixed(n)], None, 0);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (registry, stop, handles) = (&registry, &stop, &handles);
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                let mut team = Team::default();
                let mut rng = Rng::new(thread);
                let mut complete = 0u32;
                while !stop.load(Ordering::Relaxed) {
                    let spec = TeamSpec {
                        required: (0..4)
                            .map(|k| Requirement {
                                any: vec![handles[(k + rng.below(2)) as usize * 2 % 8]],
                                count: 2,
                            })
                            .collect(),
                        probes: 16,
                        mode: if rng.below(2) == 0 {
                            pandacore_matching::Mode::Dedicated
                        } else {
                            pandacore_matching::Mode::Consolidated
                        },
                        ..TeamSpec::default()
                    };
                    registry.assemble(&spec, None, rng.next_u64(), &mut scratch, &mut team);
                    complete += u32::from(team.complete());
                    assert!(
                        team.picks
                            .iter()
                            .all(|p| (p.slot as usize) < registry.slots() as usize)
                    );
                }
                assert!(complete > 100, "{complete} complete teams");
            });
        }
        let registry = &registry;
        let handles = &handles;
        let writers: Vec<_> = (0..2u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut rng = Rng::new(100 + thread);
                    for _ in 0..60_000 {
                        let n = rng.below(2_500) as usize;
                        match rng.below(6) {
                            0 => {
                                let other = handles[rng.below(8) as usize];
                                announce(registry, n, &[fixed(n), other], None, rng.below(5) as u16);
                            }
                            1 if n >= 2_000 => drop(registry.withdraw(&id(n), None)),
                            2 => {
                                if let Some(slot) = registry.slot_of(&id(n)) {
                                    let _ = registry.set_flags(slot, ALIVE, rng.below(3) > 0);
                                }
                            }
                            3 => drop(registry.intern(&format!("new{}", rng.below(3_000)))),
                            _ => {
                                if let Some(slot) = registry.slot_of(&id(n)) {
                                    let _ = registry.set_load(slot, rng.below(9) as u16);
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    registry.verify();
    for n in 0..2_000 {
        let record = registry.record(registry.slot_of(&id(n)).unwrap()).unwrap();
        assert!(record.held.contains(&fixed(n)));
    }
}
