//! Measurements in virtual time.
use std::time::Duration;

use super::check::{Checker, Violation};
use super::network::{Network, Untouched};
use super::{Action, Weather};
use crate::node::Config;
use crate::swim::State;

/// A network whose hosts all know each other, and the time at which that was so.
fn settled(hosts: usize, seed: u64, limit: Duration) -> Result<(Network, Checker), Violation> {
    settle(Network::new(hosts, seed, Weather::calm()), limit)
}

fn settle(mut network: Network, limit: Duration) -> Result<(Network, Checker), Violation> {
    let hosts = network.len();
    let mut checker = Checker::new(hosts);
    for host in 0..hosts {
        network.act(Action::Start(host), &mut Untouched);
        if host < 3 {
            let next = network.now() + Duration::from_millis(500);
            network.until(next, &mut checker, &mut Untouched)?;
        }
    }
    while !network.agreed() {
        let next = network.now() + Duration::from_secs(1);
        if next > limit {
            return Err(Violation {
                at: network.now(),
                what: format!("{hosts} hosts do not find each other"),
            });
        }
        network.until(next, &mut checker, &mut Untouched)?;
    }
    // Every host has an agent, which also shapes the tree; old news has stopped after this.
    for host in 0..hosts {
        network.act(Action::Publish(host, 1), &mut Untouched);
    }
    let next = network.now() + Duration::from_secs(10);
    network.until(next, &mut checker, &mut Untouched)?;
    Ok((network, checker))
}

/// How fast a death is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detection {
    /// Seconds from each crash until the first host knew.
    pub first: Vec<f64>,
    /// Seconds from each crash until all hosts knew.
    pub all: Vec<f64>,
    /// Seconds from a goodbye until all hosts knew.
    pub goodbye: f64,
}

/// Crashes `crashes` hosts, one after the other.
///
/// # Errors
/// A [`Violation`], also when a death is not known by all within 60 s.
pub fn detection(hosts: usize, crashes: usize, loss: f64, seed: u64) -> Result<Detection, Violation> {
    let (mut network, mut checker) = settled(hosts, seed, Duration::from_secs(120))?;
    network.act(
        Action::Weather(Weather {
            loss,
            ..Weather::calm()
        }),
        &mut Untouched,
    );
    let mut found = Detection::default();
    for victim in (hosts - crashes..hosts).rev() {
        let at = network.now();
        network.act(Action::Crash(victim), &mut Untouched);
        let mut first = None;
        loop {
            let next = network.now() + Duration::from_millis(50);
            network.until(next, &mut checker, &mut Untouched)?;
            let running = network.running();
            let know = running
                .iter()
                .filter(|&&h| network.state(h, victim) == Some(State::Down))
                .count();
            let passed = (network.now() - at).as_secs_f64();
            if know > 0 && first.is_none() {
                first = Some(passed);
            }
            if know == running.len() {
                found.all.push(passed);
                break;
            }
            if passed > 60.0 {
                return Err(Violation {
                    at: network.now(),
                    what: format!("{know} of {} know", running.len()),
                });
            }
        }
        found.first.extend(first);
    }
    let at = network.now();
    network.act(Action::Leave(1), &mut Untouched);
    loop {
        let next = network.now() + Duration::from_millis(20);
        network.until(next, &mut checker, &mut Untouched)?;
        let running = network.running();
        if running.iter().all(|&h| network.state(h, 1) == Some(State::Left)) {
            found.goodbye = (network.now() - at).as_secs_f64();
            return Ok(found);
        }
        if network.now() > at + Duration::from_secs(30) {
            return Err(Violation {
                at: network.now(),
                what: "a goodbye is not known by all".into(),
            });
        }
    }
}

/// What a host sends when nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    /// Payload bytes a second that a host sends.
    pub bytes_per_second: f64,
    /// Datagrams and frames a second that a host sends.
    pub packets_per_second: f64,
}

fn sent(network: &Network) -> (u64, u64) {
    let (mut bytes, mut packets) = (0, 0);
    for counters in network
        .running()
        .iter()
        .filter_map(|&h| network.node(h))
        .map(|n| n.counters())
    {
        bytes += counters.datagram_bytes_out + counters.frame_bytes_out;
        packets += counters.datagrams_out + counters.frames_out;
    }
    (bytes, packets)
}

/// Watches a settled network with `agents` agents a host for `time`.
///
/// # Errors
/// A [`Violation`].
pub fn idle(hosts: usize, agents: u32, time: Duration, seed: u64) -> Result<Idle, Violation> {
    let (mut network, mut checker) = settled(hosts, seed, Duration::from_secs(120))?;
    for host in 0..hosts {
        network.act(Action::Publish(host, agents), &mut Untouched);
    }
    let start = network.now() + Duration::from_secs(60);
    network.until(start, &mut checker, &mut Untouched)?;
    let before = sent(&network);
    network.until(start + time, &mut checker, &mut Untouched)?;
    let after = sent(&network);
    let each = time.as_secs_f64() * hosts as f64;
    Ok(Idle {
        bytes_per_second: (after.0 - before.0) as f64 / each,
        packets_per_second: (after.1 - before.1) as f64 / each,
    })
}

/// Deaths that were none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FalseDeaths {
    /// Hosts times hours that were watched.
    pub host_hours: f64,
    /// Different hosts that somebody found dead, each counted once a minute.
    pub deaths: u64,
    /// Answers to accusations.
    pub refutations: u64,
    /// Suspicions held by any host.
    pub suspicions: u64,
    /// Changes of incarnation beyond the answers, and of epoch: must be 0.
    pub identity_changes: u64,
}

/// Watches a network under packet loss.
///
/// # Errors
/// A [`Violation`].
pub fn false_deaths(hosts: usize, hours: f64, loss: f64, seed: u64) -> Result<FalseDeaths, Violation> {
    let (mut network, mut checker) = settled(hosts, seed, Duration::from_secs(120))?;
    network.act(
        Action::Weather(Weather {
            loss,
            ..Weather::calm()
        }),
        &mut Untouched,
    );
    let start = network.now();
    network.until(
        start + Duration::from_secs_f64(hours * 3600.0),
        &mut checker,
        &mut Untouched,
    )?;
    let mut distinct: Vec<(u64, usize)> = network
        .deaths
        .iter()
        .map(|(at, _, target)| (at.as_secs() / 60, *target))
        .collect();
    distinct.sort_unstable();
    distinct.dedup();
    let mut figures = FalseDeaths {
        host_hours: hosts as f64 * hours,
        deaths: distinct.len() as u64,
        ..FalseDeaths::default()
    };
    for host in network.running() {
        if let Some(node) = network.node(host) {
            figures.refutations += node.counters().refutations;
            figures.suspicions += node.counters().suspicions;
            figures.identity_changes += u64::from(node.record().epoch - 1)
                + u64::from(node.record().incarnation).saturating_sub(node.counters().refutations);
        }
    }
    Ok(figures)
}

/// What paused hosts do to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pauses {
    /// Times a host that was not paused was found dead.
    pub wrong: u64,
    /// Payload sent, as a multiple of what is sent when nothing happens.
    pub times_idle: f64,
    /// Payload bytes a second that a host sends.
    pub bytes_per_second: f64,
}

/// Pauses `share` of the hosts for 10 s in every 20 s; counts deaths of the others, and traffic against idle.
///
/// # Errors
/// A [`Violation`].
pub fn pauses(hosts: usize, share: f64, rounds: u32, seed: u64) -> Result<Pauses, Violation> {
    let (mut network, mut checker) = settled(hosts, seed, Duration::from_secs(120))?;
    let quiet = network.now();
    let before = sent(&network);
    network.until(quiet + Duration::from_secs(20), &mut checker, &mut Untouched)?;
    let idle = sent(&network).0 - before.0;
    let sick = ((hosts as f64 * share).round() as usize).max(1);
    let start = network.now();
    let before = sent(&network);
    for round in 0..rounds {
        for i in 0..sick {
            network.act(
                Action::Pause(hosts - 1 - i, Duration::from_secs(10)),
                &mut Untouched,
            );
        }
        network.until(
            start + Duration::from_secs(20 * u64::from(round + 1)),
            &mut checker,
            &mut Untouched,
        )?;
    }
    let busy = sent(&network).0 - before.0;
    let wrong = network
        .deaths
        .iter()
        .filter(|(_, _, target)| *target < hosts - sick)
        .count() as u64;
    Ok(Pauses {
        wrong,
        times_idle: busy as f64 / f64::from(rounds) / idle as f64,
        bytes_per_second: busy as f64 / f64::from(rounds * 20) / hosts as f64,
    })
}

/// How a partition heals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Healing {
    /// Seconds from the end of the partition until all hosts know the same.
    pub seconds: f64,
}

/// Cuts a network in two for `time`, with changes on both sides, and heals it.
///
/// # Errors
/// A [`Violation`], also when hosts do not agree within 120 s.
pub fn healing(hosts: usize, time: Duration, seed: u64) -> Result<Healing, Violation> {
    let (mut network, mut checker) = settled(hosts, seed, Duration::from_secs(120))?;
    for host in 0..hosts {
        network.act(Action::Publish(host, 10), &mut Untouched);
    }
    let cut = network.now() + Duration::from_secs(10);
    network.until(cut, &mut checker, &mut Untouched)?;
    network.act(
        Action::Partition((0..hosts).map(|h| (h * 3 / hosts / 2) as u8).collect()),
        &mut Untouched,
    );
    network.until(cut + time / 2, &mut checker, &mut Untouched)?;
    for host in 0..hosts {
        network.act(Action::Publish(host, 5), &mut Untouched);
    }
    network.until(cut + time, &mut checker, &mut Untouched)?;
    network.act(Action::Heal, &mut Untouched);
    let healed = network.now();
    while !network.agreed() {
        if network.now() > healed + Duration::from_secs(120) {
            return Err(Violation {
                at: network.now(),
                what: "two halves do not come together".into(),
            });
        }
        let next = network.now() + Duration::from_millis(250);
        network.until(next, &mut checker, &mut Untouched)?;
    }
    let seconds = (network.now() - healed).as_secs_f64();
    // And nobody falls out again.
    let next = network.now() + Duration::from_secs(30);
    network.until(next, &mut checker, &mut Untouched)?;
    checker.agreed(&network, &mut Untouched)?;
    Ok(Healing { seconds })
}

/// How batches spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeFigures {
    /// Redundant pushes for each needed one.
    pub redundancy: f64,
    /// Share of deliveries that were pushed; the rest was pulled.
    pub pushed: f64,
    /// Share of deliveries within 10 s of the last change when hosts never compare what they know.
    pub alone: f64,
    /// Seconds from a change until all hosts had it, at most.
    pub slowest: f64,
}

/// Lets `senders` hosts change an agent `changes` times each, in turn, 100 times a second at most.
fn change(
    network: &mut Network,
    checker: &mut Checker,
    senders: usize,
    changes: u32,
    loss: f64,
) -> Result<(), Violation> {
    network.act(
        Action::Weather(Weather {
            loss,
            ..Weather::calm()
        }),
        &mut Untouched,
    );
    let pause = Duration::from_millis((200 / senders as u64).max(10));
    for _ in 0..changes {
        for sender in 0..senders {
            network.act(
                Action::Publish(sender * network.len() / senders, 1),
                &mut Untouched,
            );
            let next = network.now() + pause;
            network.until(next, checker, &mut Untouched)?;
        }
    }
    Ok(())
}

/// Share of hosts and senders so that the host has all that the sender wrote.
fn reached(network: &Network, senders: usize) -> f64 {
    let running = network.running();
    let (mut has, mut all) = (0, 0);
    for owner in (0..senders).map(|sender| sender * network.len() / senders) {
        let id = network.id(owner);
        let place = |host| network.node(host).map(|node| node.replica().position(&id));
        has += running
            .iter()
            .filter(|&&host| place(host) == place(owner))
            .count();
        all += running.len();
    }
    has as f64 / all.max(1) as f64
}

/// How changes spread along the tree; once with comparisons, as hosts are, and once without.
///
/// # Errors
/// A [`Violation`], also when a change is not everywhere after 60 s.
pub fn tree(
    hosts: usize,
    senders: usize,
    changes: u32,
    loss: f64,
    seed: u64,
) -> Result<TreeFigures, Violation> {
    let limit = Duration::from_secs(120);
    let never = Config {
        sync: Duration::from_secs(3_600),
        ..Config::default()
    };
    let alone = Network::with_config(hosts, seed, Weather::calm(), never);
    let (mut alone, mut checker) = settle(alone, limit)?;
    change(&mut alone, &mut checker, senders, changes, loss)?;
    let next = alone.now() + Duration::from_secs(10);
    alone.until(next, &mut checker, &mut Untouched)?;

    let (mut network, mut checker) = settled(hosts, seed, limit)?;
    let count = |network: &Network| {
        let mut sums = [0; 4];
        for counters in network
            .running()
            .iter()
            .filter_map(|&h| network.node(h))
            .map(|n| n.counters())
        {
            sums[0] += counters.pushed_new;
            sums[1] += counters.pushed_again;
            sums[2] += counters.grafted;
            sums[3] += counters.pulled;
        }
        sums
    };
    let before = count(&network);
    change(&mut network, &mut checker, senders, changes, loss)?;
    let last = network.now();
    while reached(&network, senders) < 1.0 {
        let next = network.now() + Duration::from_millis(20);
        network.until(next, &mut checker, &mut Untouched)?;
        if network.now() > last + Duration::from_secs(60) {
            return Err(Violation {
                at: network.now(),
                what: "a change is not everywhere".into(),
            });
        }
    }
    let slowest = (network.now() - last).as_secs_f64();
    let after = count(&network);
    let [new, again, grafted, pulled] = [0, 1, 2, 3].map(|i| (after[i] - before[i]) as f64);
    let needed = (new + grafted + pulled).max(1.0);
    Ok(TreeFigures {
        redundancy: again / needed,
        pushed: new / needed,
        alone: reached(&alone, senders),
        slowest,
    })
}
