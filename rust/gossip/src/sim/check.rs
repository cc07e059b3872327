//! What must hold after every step, and at the end.
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::network::{Network, Tamper};
use crate::announcement::Announcement;
use crate::node::Node;
use crate::swim::State;

/// A live host that is connected to another is dead to it for no longer than this.
const HEAL: Duration = Duration::from_secs(30);
/// Bounds of [`Node::sizes`].
const BOUNDS: [usize; 8] = [256, 64, 4096, 4096, 512, 10_000, 1 << 16, 3 << 12];

/// How a host sees another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Observation {
    /// Number of the other host.
    pub target: usize,
    /// Epoch and incarnation of its newest record.
    pub stamp: (u32, u32),
    /// Hash of that record, where it was looked at.
    pub contents: Option<u64>,
    /// What is thought of it.
    pub state: State,
}

/// How a host sees itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Own {
    /// Its epoch and incarnation.
    pub stamp: (u32, u32),
    /// Accusations that it answered.
    pub refutations: u64,
    /// Records under its key that it did not write.
    pub foreign: u64,
    /// Whether it said goodbye.
    pub left: bool,
    /// What it thinks of itself.
    pub state: Option<State>,
    /// See [`Node::sizes`].
    pub sizes: [usize; 8],
}

impl Own {
    pub(crate) fn of(node: &Node) -> Self {
        let (me, counters) = (node.record(), node.counters());
        Self {
            stamp: me.stamp(),
            refutations: counters.refutations,
            foreign: counters.own_key_seen,
            left: me.left,
            state: node.state(&me.host),
            sizes: node.sizes(),
        }
    }
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
    /// Start of each host, after which it knows nothing, and the epoch that it was last seen to use; 0: none yet.
    lives: Vec<(u64, u32)>,
    used: Vec<Vec<u32>>,
    records: BTreeMap<(usize, u32, u32), u64>,
    own: Vec<Option<Own>>,
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
            own: vec![None; hosts],
            deaths: Vec::new(),
            down_since: BTreeMap::new(),
        }
    }

    pub(crate) fn take_deaths(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.deaths)
    }

    /// Checks what `host` shows of itself now against what it showed before.
    ///
    /// # Errors
    /// A [`Violation`].
    pub fn own(&mut self, network: &Network, host: usize, own: &Own) -> Result<(), Violation> {
        let (epoch, incarnation) = own.stamp;
        let start = network.starts(host);
        if start != self.lives[host].0 {
            self.lives[host] = (start, 0);
            self.own[host] = None;
            self.seen[host].clear();
            self.down_since.retain(|(observer, _), _| *observer != host);
        }
        if epoch != self.lives[host].1 && !network.forgetful(host) {
            if self.used[host].iter().any(|&used| used >= epoch) {
                return network.broken(format!("host {host} uses epoch {epoch} again"));
            }
            self.used[host].push(epoch);
            self.lives[host].1 = epoch;
            self.own[host] = None;
        }
        if epoch > network.epoch(host) {
            return network.broken(format!(
                "host {host} uses epoch {epoch} before it is written down"
            ));
        }
        // G12: an answer to an accusation changes the incarnation by one, and nothing else does.
        if let Some(before) = self.own[host] {
            let answered = own.refutations.saturating_sub(before.refutations);
            let raised = u64::from(incarnation.saturating_sub(before.stamp.1));
            let goodbye = u64::from(own.left && !before.left);
            if raised > answered + goodbye && own.foreign == 0 {
                return network.broken(format!(
                    "host {host} raised its incarnation by {raised}, but answered {answered} accusations"
                ));
            }
        }
        self.own[host] = Some(*own);
        if !own.left && own.state != Some(State::Alive) {
            return network.broken(format!("host {host} takes itself for dead"));
        }
        for (size, bound) in own.sizes.into_iter().zip(BOUNDS) {
            if size > bound.max(network.len() * 8) {
                return network.broken(format!(
                    "host {host} holds {size} of something that is bounded by {bound}"
                ));
            }
        }
        Ok(())
    }

    /// Checks what `host` thinks of another now against what it thought before.
    ///
    /// # Errors
    /// A [`Violation`].
    pub fn see(&mut self, network: &Network, host: usize, now: Observation) -> Result<(), Violation> {
        if let Some(contents) = now.contents {
            let name = (now.target, now.stamp.0, now.stamp.1);
            if *self.records.entry(name).or_insert(contents) != contents {
                return network.broken(format!(
                    "two records of host {} have the stamp {:?}",
                    now.target, now.stamp
                ));
            }
        }
        if now.stamp.0 > network.epoch(now.target)
            && self.used[now.target].iter().all(|&used| used < now.stamp.0)
        {
            return network.broken(format!(
                "host {host} knows host {} in an epoch it never had",
                now.target
            ));
        }
        let before = self.seen[host].insert(now.target, now);
        if let Some(before) = before {
            if now.stamp < before.stamp {
                return network.broken(format!(
                    "host {host} went back from {:?} to {:?} of host {}",
                    before.stamp, now.stamp, now.target
                ));
            }
            if !before.state.live() && now.state.live() && now.stamp == before.stamp {
                return network.broken(format!(
                    "host {host} took host {} for {:?} and then for {:?} at the same stamp {:?}",
                    now.target, before.state, now.state, now.stamp
                ));
            }
        }
        if now.state != State::Down {
            self.down_since.remove(&(host, now.target));
        } else if before.is_none_or(|before| before.state != State::Down) {
            self.deaths.push(now.target);
            self.down_since.insert((host, now.target), network.now());
        }
        Ok(())
    }

    /// Checks that no live host that all can reach is dead to most for longer than it takes to heal.
    ///
    /// # Errors
    /// A [`Violation`].
    pub fn heals(&mut self, network: &Network) -> Result<(), Violation> {
        let mut dead_to = vec![0; network.len()];
        for ((observer, target), since) in &self.down_since {
            if *since + HEAL <= network.now() && network.steady(*observer, *target, HEAL) {
                dead_to[*target] += 1;
            }
        }
        let most = network.running().len() / 2;
        match dead_to.iter().position(|&count| count > most) {
            Some(host) => network.broken(format!(
                "host {host} lives and is reached, and is dead to {} others for {HEAL:?}",
                dead_to[host]
            )),
            None => Ok(()),
        }
    }

    /// Checks that all running hosts know the same, and that it is true.
    ///
    /// # Errors
    /// A [`Violation`].
    pub fn agreed(&mut self, network: &Network, tamper: &mut dyn Tamper) -> Result<(), Violation> {
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
                        contents: None,
                        state: m.state,
                    })
                })
                .collect();
            tamper.view(network.now(), host, &mut view);
            for &other in running.iter().filter(|other| **other != host) {
                match view.iter().find(|seen| seen.target == other) {
                    Some(seen) if seen.state == State::Alive => {}
                    Some(seen) => {
                        return network.broken(format!(
                            "at the end host {host} takes host {other} for {:?}",
                            seen.state
                        ));
                    }
                    None => {
                        return network.broken(format!("at the end host {host} does not know host {other}"));
                    }
                }
            }
            if let Some(ghost) = view
                .iter()
                .find(|seen| seen.state.live() && !running.contains(&seen.target))
            {
                return network.broken(format!(
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
                        return network.broken(format!(
                            "at the end host {host} has edition {since:?} of an agent of host {owner}, not {edition}"
                        ));
                    }
                }
            }
            let agents: usize = running.iter().map(|&h| network.agents(h).len()).sum();
            let listed = node.replica().page(node.collective(), None, usize::MAX).0.len();
            if listed != agents {
                return network.broken(format!(
                    "at the end host {host} lists {listed} agents, not {agents}"
                ));
            }
            roots.push((host, node.root()));
        }
        if let Some(pair) = roots.windows(2).find(|pair| pair[0].1 != pair[1].1) {
            return network.broken(format!(
                "at the end hosts {} and {} have different roots",
                pair[0].0, pair[1].0
            ));
        }
        Ok(())
    }
}
