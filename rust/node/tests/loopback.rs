//! Nodes on real sockets, over loopback.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests wait for real sockets, with a deadline"
)]
#![expect(clippy::unwrap_used, reason = "a failure here fails the test")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use pandacore_gossip::{
    Announcement, Command, Config, HostId, JoinState, RecordKind, Sig, State, StopReason,
};
use pandacore_node::{Handle, Options, Refused, Seed, start, ticket_message};
use pandacore_trust::KeyPair;

const HOME: [u8; 32] = [7; 32];

fn options(key: u8, seeds: &[SocketAddr]) -> Options {
    Options {
        key: KeyPair::from_seed(&[key; 32]),
        collective: HOME,
        bind: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        seeds: seeds
            .iter()
            .map(|&address| Seed { address, host: None })
            .collect(),
        state_dir: None,
        admission: None,
        ticket: None,
        seed: Some(u64::from(key)),
        config: Config::default(),
    }
}

fn eventually(what: &str, seconds: u64, mut check: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !check() {
        assert!(
            start.elapsed() < Duration::from_secs(seconds),
            "not in {seconds} s: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    start.elapsed()
}

fn id(key: u8) -> HostId {
    HostId(KeyPair::from_seed(&[key; 32]).id().0)
}

fn payload(name: &str) -> Vec<u8> {
    Announcement {
        name,
        endpoint: "127.0.0.1:1",
        ..Announcement::empty()
    }
    .encode(["a.b"])
    .unwrap()
}

fn publish(node: &Handle, agents: &[([u8; 32], &str)]) {
    let records = agents
        .iter()
        .map(|(id, name)| (RecordKind::ANNOUNCEMENT, *id, Some(payload(name))))
        .collect();
    assert!(node.command(Command::Publish(records)));
}

fn name_of(node: &Handle, agent: &[u8; 32]) -> Option<String> {
    node.read(|n| {
        n.replica()
            .agent(&HOME, agent)
            .map(|a| a.announcement.name.to_owned())
    })
}

fn complete(node: &Handle) -> bool {
    node.read(|n| n.join_state() == JoinState::Complete)
}

#[test]
fn three_hosts_find_each_other_and_share_their_agents() {
    let a = start(options(1, &[])).unwrap();
    publish(&a, &[([11; 32], "first"), ([12; 32], "second")]);
    eventually("a has written it", 5, || name_of(&a, &[12; 32]).is_some());
    let b = start(options(2, &[a.address()])).unwrap();
    eventually("b is complete", 5, || complete(&b));
    assert_eq!(
        name_of(&b, &[11; 32]).as_deref(),
        Some("first"),
        "a joiner is complete when it says so"
    );
    let c = start(options(3, &[b.address()])).unwrap();
    eventually("c is complete", 5, || complete(&c));
    publish(&c, &[([13; 32], "third")]);
    for node in [&a, &b, &c] {
        eventually("all agents everywhere", 5, || {
            [11, 12, 13].iter().all(|&k| name_of(node, &[k; 32]).is_some())
                && node.read(|n| n.members().filter(|m| m.state == State::Alive).count() == 2)
        });
    }
    eventually("one root", 5, || {
        a.read(|n| n.root()) == b.read(|n| n.root()) && b.read(|n| n.root()) == c.read(|n| n.root())
    });
    assert!(a.command(Command::Publish(vec![(RecordKind::ANNOUNCEMENT, [11; 32], None)])));
    eventually("a withdrawal arrives", 5, || name_of(&c, &[11; 32]).is_none());
    assert_eq!(a.traffic().rerouted, 0);
}

#[test]
fn a_goodbye_is_known_at_once_and_a_silent_end_within_seconds() {
    let a = start(options(1, &[])).unwrap();
    let b = start(options(2, &[a.address()])).unwrap();
    let c = start(options(3, &[a.address()])).unwrap();
    eventually("all know each other", 5, || {
        [&a, &b, &c]
            .iter()
            .all(|n| n.read(|n| n.members().filter(|m| m.state == State::Alive).count() == 2))
    });
    publish(&b, &[([21; 32], "b's")]);
    eventually("b's agent is known", 5, || name_of(&a, &[21; 32]).is_some());
    b.leave();
    let took = eventually("b has left", 3, || {
        a.read(|n| n.state(&id(2))) == Some(State::Left)
    });
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(name_of(&a, &[21; 32]).is_none(), "a host takes its agents along");
    c.close();
    let took = eventually("c is dead", 15, || {
        a.read(|n| n.state(&id(3))) == Some(State::Down)
    });
    assert!(
        took > Duration::from_secs(2),
        "a death needs a suspicion first: {took:?}"
    );
}

#[test]
fn a_restart_with_the_same_key_replaces_the_earlier_start() {
    let folder = std::env::temp_dir().join(format!("pandacore-node-test-{}", std::process::id()));
    let a = start(options(1, &[])).unwrap();
    let with_state = || Options {
        state_dir: Some(folder.clone()),
        ..options(2, &[a.address()])
    };
    for round in 1..=5u32 {
        let b = start(with_state()).unwrap();
        assert!(start(with_state()).is_err(), "one process owns the folder");
        eventually("b is complete", 5, || complete(&b));
        publish(&b, &[([31; 32], &format!("start {round}"))]);
        eventually("the agent of this start is known", 5, || {
            name_of(&a, &[31; 32]).as_deref() == Some(&format!("start {round}"))
        });
        let epochs: Vec<u32> = a.read(|n| n.members().map(|m| m.record.epoch).collect());
        assert_eq!(epochs, [round]);
        b.close();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_key_in_two_processes_stops_the_earlier_one() {
    let a = start(options(1, &[])).unwrap();
    let b = start(options(2, &[a.address()])).unwrap();
    eventually("b is complete", 5, || complete(&b));
    let clone = start(options(2, &[a.address()])).unwrap();
    eventually("the earlier one stops", 10, || {
        matches!(b.stopped(), Some(StopReason::KeyInUse { .. }))
    });
    eventually("the later one goes on", 5, || {
        complete(&clone) && a.read(|n| n.state(&id(2))) == Some(State::Alive)
    });
    assert_eq!(clone.stopped(), None);
}

#[test]
fn another_collective_is_refused_with_both_ids() {
    let a = start(options(1, &[])).unwrap();
    let stranger = start(Options {
        collective: [8; 32],
        ..options(2, &[a.address()])
    })
    .unwrap();
    eventually("the refusal is reported", 5, || stranger.refused().is_some());
    assert_eq!(
        stranger.refused(),
        Some(Refused::Collective {
            address: a.address(),
            ours: [8; 32],
            theirs: HOME
        })
    );
    assert_eq!(a.read(|n| n.members().count()), 0);
}

#[test]
fn tickets_and_pinned_keys_are_checked() {
    let admission = KeyPair::from_seed(&[99; 32]);
    let closed = |key: u8, seeds: &[SocketAddr], ticket| Options {
        admission: Some(admission.id()),
        ticket,
        ..options(key, seeds)
    };
    let ticket = |key: u8, until: u64| {
        Some((
            until,
            Sig::new(admission.sign(&ticket_message(&HOME, &id(key), until))),
        ))
    };
    let far = 4_000_000_000;
    let a = start(closed(1, &[], ticket(1, far))).unwrap();
    for bad in [None, ticket(3, far), ticket(2, 1_000)] {
        let b = start(closed(2, &[a.address()], bad)).unwrap();
        eventually("refused", 5, || b.refused() == Some(Refused::Ticket(a.address())));
    }
    let b = start(closed(2, &[a.address()], ticket(2, far))).unwrap();
    eventually("let in", 5, || complete(&b));
    let pinned = Options {
        seeds: vec![Seed {
            address: a.address(),
            host: Some(id(9)),
        }],
        ..closed(4, &[], ticket(4, far))
    };
    let d = start(pinned).unwrap();
    eventually(
        "another key answers",
        5,
        || matches!(d.refused(), Some(Refused::Key { found, .. }) if found == id(1)),
    );
}

#[test]
fn waiting_ends_with_a_change_with_time_or_with_the_node() {
    let a = start(options(1, &[])).unwrap();
    let version = a.version();
    let start_time = Instant::now();
    assert_eq!(a.wait(version + 1000, Duration::from_millis(50)), a.version());
    assert!(start_time.elapsed() >= Duration::from_millis(50));
    publish(&a, &[([1; 32], "x")]);
    assert!(a.wait(version, Duration::from_secs(5)) > version);
    a.leave();
    assert_eq!(a.wait(u64::MAX - 1, Duration::from_secs(5)), u64::MAX);
    assert!(a.ended());
}

#[test]
fn a_registry_follows_the_replica() {
    use pandacore_matching::Registry;

    let a = start(options(1, &[])).unwrap();
    let b = start(options(2, &[a.address()])).unwrap();
    let (registry, mut feed) = (
        Registry::new(pandacore_matching::Config::default()),
        pandacore_node::Feed::default(),
    );
    let agents: Vec<([u8; 32], &str)> = (0..100u8).map(|k| ([k; 32], "agent")).collect();
    publish(&b, &agents);
    eventually("all agents are fed", 5, || {
        feed.apply(&a, &registry).unwrap();
        registry.len() == 100
    });
    assert_eq!(registry.available(registry.find("a.b").unwrap()), 100);
    assert!(b.command(Command::Publish(vec![(RecordKind::ANNOUNCEMENT, [5; 32], None)])));
    eventually("one is gone", 5, || {
        feed.apply(&a, &registry).unwrap();
        registry.len() == 99
    });
    assert_eq!(
        feed.apply(&a, &registry).unwrap(),
        pandacore_node::Fed::default(),
        "nothing is left to do"
    );
    b.leave();
    eventually("all are gone", 5, || {
        feed.apply(&a, &registry).unwrap();
        registry.is_empty()
    });
}
