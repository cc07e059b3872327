//! What must hold after every step, and at the end.
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::network::{Network, Tamper};
use crate::announcement::Announcement;
use crate::swim::State;

/// How a host sees another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Observation {
    /// Number of the other host.
    pub target: usize,
    /// Epoch and incarnation of its newest record.
    pub stamp: (u32, u32),
    /// Hash of that record.
    pub contents: u64,
    /// What is thought of it.
    pub state: State,
}

/// A broken rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// When.
    pub at: Duration,
    /// Which rule, and how.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.3?}: {}", self.at, self.what)
    }
}

/// Remembers what was seen, and compares.
pub struct Checker {
    seen: Vec<BTreeMap<usize, Observation>>,
    /// Start and epoch of the observer when `seen` was written: a new start knows nothing.
    lives: Vec<(u64, u32)>,
    used: Vec<Vec<u32>>,
    records: BTreeMap<(usize, u32, u32), u64>,
    own: Vec<(u32, u32, u64)>,
    deaths: Vec<usize>,
    down_since: BTreeMap<(usize, usize), Duration>,
}

impl Checker {
    /// A checker for this many hosts.
    #[must_use]
    pub fn new(hosts: usize) -> Self {
        Self {
            seen: vec![BTreeMap::new(); hosts],
            lives: vec![(0, 0); hosts],
            used: vec![Vec::new(); hosts],
            records: BTreeMap::new(),
            own: vec![(0, 0, 0); hosts],
            deaths: Vec::new(),
            down_since: BTreeMap::new(),
        }
    }

    pub(crate) fn take_deaths(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.deaths)
    }

    /// Checks what `host` shows now against what was seen before.
    ///
    /// # Errors
    /// A [`Violation`].
    pub fn observe(&mut self, network: &Network, host: usize, view: &[Observation]) -> Result<(), Violation> {
        let broken = |what: String| {
            Err(Violation {
                at: network.now(),
                what,
            })
        };
        let Some(node) = network.node(host) else {
            return Ok(());
        };
        let me = node.record();

        let life = (network.starts(host), me.epoch);
        if life != self.lives[host] {
            if self.used[host].iter().any(|&used| used >= me.epoch) {
                return broken(format!("host {host} uses epoch {} again", me.epoch));
            }
            self.used[host].push(me.epoch);
            if life.0 != self.lives[host].0 {
                self.seen[host].clear();
            }
            self.lives[host] = life;
            self.own[host] = (me.epoch, me.incarnation, node.counters().refutations);
            self.down_since.retain(|(observer, _), _| *observer != host);
        }
        if me.epoch > network.epoch(host) {
            return broken(format!(
                "host {host} uses epoch {} before it is written down",
                me.epoch
            ));
        }
        // G12: an answer to an accusation changes the incarnation by one, and nothing else does.
        let (_, incarnation, refutations) = self.own[host];
        let answered = node.counters().refutations - refutations;
        let raised = u64::from(me.incarnation - incarnation.min(me.incarnation));
        if raised > answered + u64::from(me.left) && node.counters().own_key_seen == 0 {
            return broken(format!(
                "host {host} raised its incarnation by {raised}, but answered {answered} accusations"
            ));
        }
        self.own[host] = (me.epoch, me.incarnation, node.counters().refutations);
        if !me.left && node.state(&me.host) != Some(State::Alive) {
            return broken(format!("host {host} takes itself for dead"));
        }
        for (size, bound) in
            node.sizes()
                .into_iter()
                .zip([256, 64, 4096, 4096, 512, 10_000, 1 << 16, 3 << 12])
        {
            if size > bound.max(network.len() * 8) {
                return broken(format!(
                    "host {host} holds {size} of something that is bounded by {bound}"
                ));
            }
        }

        for now in view {
            let name = (now.target, now.stamp.0, now.stamp.1);
            if *self.records.entry(name).or_insert(now.contents) != now.contents {
                return broken(format!(
                    "two records of host {} have the stamp {:?}",
                    now.target, now.stamp
                ));
            }
            if !self.used[now.target].is_empty()
                && now.stamp.0 > *self.used[now.target].iter().max().unwrap_or(&0)
                && now.stamp.0 > network.epoch(now.target)
            {
                return broken(format!(
                    "host {host} knows host {} in an epoch it never had",
                    now.target
                ));
            }
            let Some(before) = self.seen[host].insert(now.target, *now) else {
                if now.state == State::Down {
                    self.deaths.push(now.target);
                }
                continue;
            };
            if now.stamp < before.stamp {
                return broken(format!(
                    "host {host} went back from {:?} to {:?} of host {}",
                    before.stamp, now.stamp, now.target
                ));
            }
            if !before.state.live() && now.state.live() && now.stamp == before.stamp {
                return broken(format!(
                    "host {host} took host {} for {:?} and then for {:?} at the same stamp {:?}",
                    now.target, before.state, now.state, now.stamp
                ));
            }
            if before.state != State::Down && now.state == State::Down {
                self.deaths.push(now.target);
                self.down_since.insert((host, now.target), network.now());
            } else if now.state != State::Down {
                self.down_since.remove(&(host, now.target));
            }
        }
        Ok(())
    }

    /// Checks that all running hosts know the same, and that it is true.
    ///
    /// # Errors
    /// A [`Violation`].
    pub fn agreed(&mut self, network: &Network, tamper: &mut dyn Tamper) -> Result<(), Violation> {
        let broken = |what: String| {
            Err(Violation {
                at: network.now(),
                what,
            })
        };
        let running = network.running();
        let mut roots = Vec::new();
        for &host in &running {
            let Some(node) = network.node(host) else { continue };
            let mut view: Vec<Observation> = node
                .members()
                .filter_map(|m| {
                    let target = network.number(&m.record.host)?;
                    Some(Observation {
                        target,
                        stamp: m.record.stamp(),
                        contents: 0,
                        state: m.state,
                    })
                })
                .collect();
            tamper.view(network.now(), host, &mut view);
            for &other in running.iter().filter(|other| **other != host) {
                match view.iter().find(|seen| seen.target == other) {
                    Some(seen) if seen.state == State::Alive => {}
                    Some(seen) => {
                        return broken(format!(
                            "at the end host {host} takes host {other} for {:?}",
                            seen.state
                        ));
                    }
                    None => return broken(format!("at the end host {host} does not know host {other}")),
                }
            }
            if let Some(ghost) = view
                .iter()
                .find(|seen| seen.state.live() && !running.contains(&seen.target))
            {
                return broken(format!(
                    "at the end host {host} takes host {} for live",
                    ghost.target
                ));
            }
            node.verify();
            node.replica().verify();
            for &owner in &running {
                for (key, edition) in network.agents(owner) {
                    let known = node.replica().agent(node.collective(), key);
                    let since = known
                        .map(|agent| agent.announcement)
                        .map(|a: Announcement<'_>| a.since);
                    if since != Some(u64::from(*edition)) {
                        return broken(format!(
                            "at the end host {host} has edition {since:?} of an agent of host {owner}, not {edition}"
                        ));
                    }
                }
            }
            let agents: usize = running.iter().map(|&h| network.agents(h).len()).sum();
            let listed = node.replica().page(node.collective(), None, usize::MAX).0.len();
            if listed != agents {
                return broken(format!(
                    "at the end host {host} lists {listed} agents, not {agents}"
                ));
            }
            roots.push((host, node.root()));
        }
        if let Some(pair) = roots.windows(2).find(|pair| pair[0].1 != pair[1].1) {
            return broken(format!(
                "at the end hosts {} and {} have different roots",
                pair[0].0, pair[1].0
            ));
        }
        Ok(())
    }
}
