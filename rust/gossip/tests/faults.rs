//! Faults by name: what happens to many hosts at once, and a crash at every moment.
//!
//! `PANDACORE_SIM_LARGE=1` runs them at the size of the goals (`make soak`).
mod common;

use std::time::Duration;

use common::{agreed_within, bytes_out, large, pass, settled};
use pandacore_gossip::State;
use pandacore_gossip::sim::{Action, Checker, Network, Untouched, Violation, Weather};

/// A life with everything in it that a host writes down or tells: joining, a lost counter, announcements, an
/// accusation that it answers, a withdrawal, a goodbye. The last of three hosts lives it and dies once, before the
/// `boundary`-th thing that it does; it is started again within a second and a half.
fn life(boundary: u32) -> (Result<(), Violation>, u64) {
    const VICTIM: usize = 2;
    let (mut network, mut checker) = (Network::new(3, 11, Weather::calm()), Checker::new(3));
    for host in [0, 1] {
        network.act(Action::Start(host), &mut Untouched);
    }
    network.act(Action::CrashAfter(VICTIM, boundary), &mut Untouched);
    let mut actions = vec![
        (300, Action::Publish(VICTIM, 3)),
        (1_000, Action::Publish(0, 3)),
        (2_000, Action::Crash(VICTIM)),
        (2_010, Action::Forget(VICTIM)),
        (3_500, Action::Publish(VICTIM, 4)),
        (5_000, Action::Mute(VICTIM)),
        (6_600, Action::Heal),
        (8_000, Action::Withdraw(VICTIM)),
        (9_000, Action::Publish(VICTIM, 2)),
        (10_600, Action::Leave(VICTIM)),
    ];
    actions.extend((0..10).map(|i| (1_500 * i, Action::Start(VICTIM))));
    actions.sort_by_key(|(at, _)| *at);
    let result = (|| {
        for (at, action) in actions {
            // A heal would also take the coming crash back.
            let keep = matches!(action, Action::Heal) && network.done(VICTIM) < u64::from(boundary);
            network.until(Duration::from_millis(at), &mut checker, &mut Untouched)?;
            network.act(action, &mut Untouched);
            if keep {
                let left = u64::from(boundary).saturating_sub(network.done(VICTIM));
                network.act(Action::CrashAfter(VICTIM, left as u32), &mut Untouched);
            }
        }
        network.until(Duration::from_secs(40), &mut checker, &mut Untouched)?;
        network.act(Action::Start(VICTIM), &mut Untouched);
        network.until(Duration::from_secs(60), &mut checker, &mut Untouched)?;
        checker.agreed(&network, &mut Untouched)
    })();
    (result, network.done(VICTIM))
}

#[test]
fn a_crash_at_every_boundary_loses_nothing_that_was_promised() {
    // Without a crash, to know how many boundaries there are.
    let (result, count) = life(u32::MAX);
    result.unwrap();
    assert!(count > 100, "{count}");
    let mut died = 0;
    for boundary in 0..count as u32 {
        let (result, _) = life(boundary);
        if let Err(violation) = result {
            panic!("crash before thing {boundary} of {count}: {violation}");
        }
        died += 1;
    }
    println!("{died} boundaries");
}

#[test]
fn half_of_the_hosts_start_again_within_five_seconds_and_nobody_stays_out() {
    let hosts = if large() { 500 } else { 80 };
    let (mut network, mut checker) = settled(hosts, hosts, 5, 21);
    let victims: Vec<usize> = (0..hosts).filter(|host| host % 2 == 0).collect();
    for (i, &host) in victims.iter().enumerate() {
        network.act(Action::Crash(host), &mut Untouched);
        if let Some(back) = i.checked_sub(victims.len() / 5) {
            network.act(Action::Start(victims[back]), &mut Untouched);
        }
        pass(
            &mut network,
            &mut checker,
            Duration::from_secs(4) / victims.len() as u32,
        );
    }
    for &host in &victims {
        network.act(Action::Start(host), &mut Untouched);
    }
    let took = agreed_within(&mut network, &mut checker, 60);
    println!(
        "{} restarts of {hosts} hosts: one view after {took:?} s",
        victims.len()
    );
    assert!(took.is_some_and(|seconds| seconds <= 30.0), "{took:?}");
    checker.agreed(&network, &mut Untouched).unwrap();
}

#[test]
fn many_hosts_join_at_once() {
    let (base, new) = if large() { (20, 1_000) } else { (10, 120) };
    let (mut network, mut checker) = settled(base + new, base, 100, 22);
    let before: Vec<u64> = (0..base).map(|host| bytes_out(&network, host)).collect();
    for host in base..base + new {
        network.act(Action::Start(host), &mut Untouched);
        network.act(Action::Publish(host, 1), &mut Untouched);
    }
    let took = agreed_within(&mut network, &mut checker, 120);
    let most = (0..base)
        .map(|host| bytes_out(&network, host) - before[host])
        .max()
        .unwrap();
    println!("{new} hosts join {base}: one view after {took:?} s, at most {most} B sent by one of them");
    assert!(took.is_some_and(|seconds| seconds <= 30.0), "{took:?}");
    checker.agreed(&network, &mut Untouched).unwrap();
}

#[test]
fn most_hosts_say_goodbye_at_once() {
    let hosts = if large() { 1_000 } else { 100 };
    let (mut network, mut checker) = settled(hosts, hosts, 2, 23);
    for host in 0..hosts * 3 / 5 {
        network.act(Action::Leave(host), &mut Untouched);
        pass(&mut network, &mut checker, Duration::from_secs(1) / hosts as u32);
    }
    let took = agreed_within(&mut network, &mut checker, 60);
    println!(
        "{} of {hosts} hosts leave: one view after {took:?} s",
        hosts * 3 / 5
    );
    assert!(took.is_some_and(|seconds| seconds <= 10.0), "{took:?}");
    for seen in network.node(hosts - 1).unwrap().members() {
        let gone = network.number(&seen.record.host).unwrap() < hosts * 3 / 5;
        assert_eq!(seen.state == State::Left, gone, "{seen:?}");
    }
    checker.agreed(&network, &mut Untouched).unwrap();
}

#[test]
fn ten_thousand_changes_a_second_on_one_host_go_out_in_batches() {
    let (mut network, mut checker) = settled(10, 10, 1, 24);
    pass(&mut network, &mut checker, Duration::from_secs(20));
    let batches = |network: &Network| {
        (1..10)
            .map(|host| {
                let counters = network.node(host).unwrap().counters();
                counters.pushed_new + counters.grafted + counters.pulled
            })
            .sum::<u64>()
    };
    let before = batches(&network);
    for _ in 0..100 {
        network.act(Action::Publish(0, 1_000), &mut Untouched);
        pass(&mut network, &mut checker, Duration::from_millis(100));
    }
    let took = agreed_within(&mut network, &mut checker, 60);
    assert!(took.is_some_and(|seconds| seconds <= 10.0), "{took:?}");
    let each = (batches(&network) - before) as f64 / 9.0;
    println!("100,000 changes in 10 s arrive as {each} batches");
    assert!(each <= 300.0, "{each}");
    let rows = network.node(5).unwrap().replica().rows();
    assert_eq!(rows, 1_009, "old editions are gone");
    checker.agreed(&network, &mut Untouched).unwrap();
    // And afterwards it is as quiet as before.
    pass(&mut network, &mut checker, Duration::from_secs(30));
    let sent = bytes_out(&network, 0);
    pass(&mut network, &mut checker, Duration::from_secs(30));
    let rate = (bytes_out(&network, 0) - sent) / 30;
    assert!(rate <= 300, "{rate} B/s");
}

#[test]
fn with_all_seeds_dead_the_others_go_on_and_let_in_whom_they_reach() {
    let (mut network, mut checker) = settled(8, 6, 3, 25);
    for seed in 0..3 {
        network.act(Action::Crash(seed), &mut Untouched);
    }
    // It knows the three seeds only, and waits for one of them; nothing else goes wrong meanwhile.
    network.act(Action::Start(7), &mut Untouched);
    pass(&mut network, &mut checker, Duration::from_secs(60));
    assert_eq!(network.node(7).unwrap().members().count(), 0);
    network.act(Action::Start(2), &mut Untouched);
    let took = agreed_within(&mut network, &mut checker, 60);
    println!("one seed is back: one view after {took:?} s");
    assert!(took.is_some_and(|seconds| seconds <= 30.0), "{took:?}");
    checker.agreed(&network, &mut Untouched).unwrap();
}
