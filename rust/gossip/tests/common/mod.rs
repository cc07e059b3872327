//! What tests with simulated hosts share.
#![allow(dead_code, reason = "every test uses a part of it")]
use std::time::Duration;

use pandacore_gossip::sim::{Action, Checker, Network, Untouched, Weather};

/// Whether tests run at the size of the goals: `PANDACORE_SIM_LARGE=1`, as `make soak` sets it.
pub(crate) fn large() -> bool {
    std::env::var("PANDACORE_SIM_LARGE").is_ok_and(|value| value == "1")
}

/// A calm network in which the first `running` of `hosts` hosts know each other and have `agents` agents each.
pub(crate) fn settled(hosts: usize, running: usize, agents: u32, seed: u64) -> (Network, Checker) {
    settle(Network::new(hosts, seed, Weather::calm()), running, agents)
}

/// The same with a network of one's own.
pub(crate) fn settle(mut network: Network, running: usize, agents: u32) -> (Network, Checker) {
    let mut checker = Checker::new(network.len());
    for host in 0..running {
        network.act(Action::Start(host), &mut Untouched);
        network.act(Action::Publish(host, agents), &mut Untouched);
    }
    let took = agreed_within(&mut network, &mut checker, 60);
    assert!(took.is_some(), "{running} hosts find each other");
    (network, checker)
}

/// Lets time pass; no rule may be broken in it.
pub(crate) fn pass(network: &mut Network, checker: &mut Checker, time: Duration) {
    let until = network.now() + time;
    network
        .until(until, checker, &mut Untouched)
        .expect("no rule is broken");
}

/// Seconds until all running hosts know the same, when that is within `seconds`.
pub(crate) fn agreed_within(network: &mut Network, checker: &mut Checker, seconds: u64) -> Option<f64> {
    let start = network.now();
    while network.now() < start + Duration::from_secs(seconds) {
        pass(network, checker, Duration::from_millis(250));
        if network.agreed() {
            return Some((network.now() - start).as_secs_f64());
        }
    }
    None
}

/// Payload bytes that a host has sent.
pub(crate) fn bytes_out(network: &Network, host: usize) -> u64 {
    network.node(host).map_or(0, |node| {
        node.counters().datagram_bytes_out + node.counters().frame_bytes_out
    })
}
