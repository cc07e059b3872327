//! Which of the candidates to probe, and which of those that answered to take.
//!
//! A policy without I/O: the caller samples candidates, sends the probes, and reserves. What to do depends on how old
//! the known loads are, in units of the service time: fresh ones are used as they are; older ones shortlist whom to
//! probe; very old ones are not used at all, because ordering by stale loads sends everybody to the same agents.
use std::collections::{BTreeMap, BTreeSet};

use crate::rng::Rng;

/// How candidates are chosen.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Policy {
    /// Idle agents first (the fastest of them), else the shortest expected wait; probes as staleness demands.
    #[default]
    IdleFirstTwoStage,
    /// Any candidate, no probe.
    Random,
    /// Probe so many random candidates and take the shortest queue.
    PowerOfD(u32),
    /// The shortest known queue, no probe. Herds when loads are stale.
    LeastLoaded,
}

/// The policy and its numbers. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probing {
    /// How candidates are chosen.
    pub policy: Policy,
    /// Candidates to sample per slot; 16 are two blocks of the registry.
    pub sample: usize,
    /// Probes to the best of the sample.
    pub shortlist: usize,
    /// Probes to random others of the sample.
    pub extra: usize,
    /// Random probes when loads are too old to be of use.
    pub fresh: usize,
    /// Below this age, in service times, no probe is sent.
    pub local_below: f64,
    /// From this age on known loads are ignored.
    pub ignore_from: f64,
    /// Candidates to try to reserve before sampling again.
    pub tries: usize,
    /// Bounds of the probe timeout.
    pub timeout_s: (f64, f64),
}

impl Default for Probing {
    fn default() -> Self {
        Self {
            policy: Policy::IdleFirstTwoStage,
            sample: 16,
            shortlist: 4,
            extra: 1,
            fresh: 8,
            local_below: 0.05,
            ignore_from: 1.0,
            tries: 3,
            timeout_s: (0.02, 0.25),
        }
    }
}

/// What is known about one agent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Its slot.
    pub agent: u32,
    /// Queued and running tasks, own unreported reservations included.
    pub load: u32,
    /// Tasks it works on at the same time.
    pub concurrency: u32,
    /// Estimated service time.
    pub service_s: f64,
    /// Round-trip time.
    pub rtt_s: f64,
    /// Age of the load; infinite if never reported.
    pub age_s: f64,
}

impl Candidate {
    /// What candidates are ordered by: idle ones first, the fastest of them; then the expected wait.
    #[must_use]
    pub fn rank(&self) -> (bool, f64) {
        let slots = self.concurrency.max(1);
        let busy = self.load >= slots;
        let work = if busy {
            f64::from(self.load + 1) / f64::from(slots)
        } else {
            1.0
        };
        (busy, work * self.service_s.max(1e-6) + self.rtt_s)
    }
}

/// What to do with a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Advice {
    /// Reserve in this order, without a probe.
    Reserve(Vec<usize>),
    /// Probe these, wait so long for the last of them, and [`choose`](Probing::choose) among those that answered.
    Probe {
        /// Indices into the sample.
        which: Vec<usize>,
        /// When to go on with the answers that came.
        timeout_s: f64,
    },
}

impl Probing {
    /// What to do with a sample whose agents take about `service_s` for a task of this capability.
    #[must_use]
    pub fn advise(&self, sample: &[Candidate], service_s: f64, rng: &mut Rng) -> Advice {
        match self.policy {
            Policy::Random => Advice::Reserve(shuffled(sample.len(), self.tries, rng)),
            Policy::PowerOfD(d) => self.probe(sample, shuffled(sample.len(), d as usize, rng)),
            Policy::LeastLoaded => {
                let mut order = shuffled(sample.len(), sample.len(), rng);
                order.sort_by_key(|&i| sample[i].load);
                order.truncate(self.tries);
                Advice::Reserve(order)
            }
            Policy::IdleFirstTwoStage => {
                let age = median_age(sample) / service_s.max(1e-6);
                if age >= self.ignore_from || age.is_nan() {
                    return self.probe(sample, shuffled(sample.len(), self.fresh, rng));
                }
                let mut order = self.order(sample, rng);
                if age < self.local_below {
                    order.truncate(self.tries);
                    return Advice::Reserve(order);
                }
                let rest = order.split_off(self.shortlist.min(order.len()));
                for k in shuffled(rest.len(), self.extra, rng) {
                    order.push(rest[k]);
                }
                self.probe(sample, order)
            }
        }
    }

    /// The order in which to reserve among candidates with fresh loads; at most `tries`.
    #[must_use]
    pub fn choose(&self, answered: &[Candidate], rng: &mut Rng) -> Vec<usize> {
        let mut order = match self.policy {
            Policy::IdleFirstTwoStage => self.order(answered, rng),
            _ => {
                let mut order = shuffled(answered.len(), answered.len(), rng);
                order.sort_by_key(|&i| answered[i].load);
                order
            }
        };
        order.truncate(self.tries);
        order
    }

    fn order(&self, sample: &[Candidate], rng: &mut Rng) -> Vec<usize> {
        let mut order = shuffled(sample.len(), sample.len(), rng);
        order.sort_by(|&a, &b| {
            let (a, b) = (sample[a].rank(), sample[b].rank());
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        });
        order
    }

    fn probe(&self, sample: &[Candidate], which: Vec<usize>) -> Advice {
        // Twice the slowest round trip of those asked, within bounds: never wait for a dead one.
        let slowest = which.iter().map(|&i| sample[i].rtt_s).fold(0.0, f64::max);
        Advice::Probe {
            which,
            timeout_s: (2.0 * slowest).clamp(self.timeout_s.0, self.timeout_s.1),
        }
    }
}

fn median_age(sample: &[Candidate]) -> f64 {
    let mut ages: Vec<f64> = sample.iter().map(|c| c.age_s).collect();
    ages.sort_by(f64::total_cmp);
    ages.get(ages.len() / 2).copied().unwrap_or(f64::INFINITY)
}

/// `n` of the numbers below `of`, in random order.
fn shuffled(of: usize, n: usize, rng: &mut Rng) -> Vec<usize> {
    let mut all: Vec<usize> = (0..of).collect();
    let n = n.min(of);
    for k in 0..n {
        let other = k + rng.below((of - k) as u32) as usize;
        all.swap(k, other);
    }
    all.truncate(n);
    all
}

/// The largest queue an agent takes; beyond it refuses, and the caller tries the next candidate.
#[must_use]
pub fn queue_limit(concurrency: u32) -> u32 {
    (2 * concurrency).max(4)
}

/// One piece of work queued at several agents: the first that is free for it gets it, the others drop it.
///
/// Queues are better judges than loads: whoever is free first is the shortest queue, however stale the numbers were.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LateBinding {
    queued: BTreeSet<u32>,
    bound: Option<u32>,
}

/// Answer to an agent that is free for work it has queued.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Claim {
    /// It is the agent's; these others should drop it.
    Granted(Vec<u32>),
    /// The agent has it already: its claim or our answer was repeated.
    Held,
    /// Another agent has it, or this one was not asked: drop it.
    Refused,
}

impl LateBinding {
    /// Work that waits at these agents.
    #[must_use]
    pub fn new(agents: impl IntoIterator<Item = u32>) -> Self {
        Self {
            queued: agents.into_iter().collect(),
            bound: None,
        }
    }

    /// Who has it.
    #[must_use]
    pub fn bound(&self) -> Option<u32> {
        self.bound
    }

    /// Where it may still wait; after a claim those are the agents that can take over.
    #[must_use]
    pub fn queued(&self) -> Vec<u32> {
        self.queued.iter().copied().collect()
    }

    /// An agent is free for it.
    pub fn claim(&mut self, agent: u32) -> Claim {
        match self.bound {
            Some(holder) if holder == agent => Claim::Held,
            None if self.queued.remove(&agent) => {
                self.bound = Some(agent);
                Claim::Granted(self.queued())
            }
            _ => Claim::Refused,
        }
    }

    /// An agent refused, was lost or gave up. If it had the work, returns the agents to queue it at again; with
    /// nobody left the work has to be placed anew.
    pub fn lost(&mut self, agent: u32) -> Vec<u32> {
        self.queued.remove(&agent);
        if self.bound != Some(agent) {
            return Vec::new();
        }
        self.bound = None;
        self.queued()
    }
}

/// Own reservations that an agent's reports do not show yet.
///
/// Bounded by the agents this entry point has sent work to within `horizon_s`.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    open: BTreeMap<u32, Vec<(u64, f64)>>,
}

impl InFlight {
    /// A reservation was made after the agent's report number `report`.
    pub fn reserved(&mut self, agent: u32, report: u64, now_s: f64) {
        self.open.entry(agent).or_default().push((report, now_s));
    }

    /// A report arrived: it shows every reservation made before it.
    pub fn reported(&mut self, agent: u32, report: u64) {
        if let Some(open) = self.open.get_mut(&agent) {
            open.retain(|r| r.0 >= report);
            if open.is_empty() {
                self.open.remove(&agent);
            }
        }
    }

    /// Forgets reservations older than `horizon_s` (three service times): their report may be lost.
    pub fn expire(&mut self, now_s: f64, horizon_s: f64) {
        self.open.retain(|_, open| {
            open.retain(|r| now_s - r.1 < horizon_s);
            !open.is_empty()
        });
    }

    /// What to add to the agent's reported load.
    #[must_use]
    pub fn count(&self, agent: u32) -> u32 {
        self.open.get(&agent).map_or(0, |open| open.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(agent: u32, load: u32, service_s: f64, age_s: f64) -> Candidate {
        Candidate {
            agent,
            load,
            concurrency: 1,
            service_s,
            rtt_s: 0.01,
            age_s,
        }
    }

    fn sample(age_s: f64) -> Vec<Candidate> {
        (0..16)
            .map(|k| candidate(k, k % 5, 1.0 + f64::from(k) / 10.0, age_s))
            .collect()
    }

    #[test]
    fn staleness_decides_between_local_choice_shortlist_and_random_probes() {
        let probing = Probing::default();
        let mut rng = Rng::new(1);
        match probing.advise(&sample(0.01), 1.0, &mut rng) {
            Advice::Reserve(order) => assert_eq!(order, [0, 5, 10]),
            other => panic!("{other:?}"),
        }
        match probing.advise(&sample(0.5), 1.0, &mut rng) {
            Advice::Probe { which, timeout_s } => {
                assert_eq!(which[..4], [0, 5, 10, 15]);
                assert_eq!(which.len(), 5);
                assert!((timeout_s - 0.02).abs() < 1e-9);
            }
            other => panic!("{other:?}"),
        }
        for age in [1.0, 50.0, f64::INFINITY] {
            match probing.advise(&sample(age), 1.0, &mut rng) {
                Advice::Probe { which, .. } => assert_eq!(which.len(), 8),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn idle_agents_are_taken_before_faster_busy_ones() {
        let answered = [
            candidate(0, 1, 0.1, 0.0),
            candidate(1, 0, 5.0, 0.0),
            candidate(2, 0, 3.0, 0.0),
            candidate(3, 9, 0.1, 0.0),
        ];
        assert_eq!(Probing::default().choose(&answered, &mut Rng::new(1)), [2, 1, 0]);
        let shortest = Probing {
            policy: Policy::PowerOfD(2),
            ..Probing::default()
        };
        assert_eq!(shortest.choose(&answered, &mut Rng::new(1))[2], 0);
    }

    #[test]
    fn empty_samples_have_empty_advice() {
        for policy in [
            Policy::IdleFirstTwoStage,
            Policy::Random,
            Policy::PowerOfD(2),
            Policy::LeastLoaded,
        ] {
            let probing = Probing {
                policy,
                ..Probing::default()
            };
            match probing.advise(&[], 1.0, &mut Rng::new(1)) {
                Advice::Reserve(which) | Advice::Probe { which, .. } => assert!(which.is_empty()),
            }
            assert!(probing.choose(&[], &mut Rng::new(1)).is_empty());
        }
    }

    #[test]
    fn work_queued_at_several_agents_runs_at_one_of_them() {
        let mut work = LateBinding::new([3, 1, 2]);
        assert_eq!(work.claim(9), Claim::Refused, "was never asked");
        assert_eq!(work.claim(2), Claim::Granted(vec![1, 3]));
        assert_eq!(work.claim(2), Claim::Held, "the answer was lost");
        assert_eq!(work.claim(1), Claim::Refused);
        assert_eq!(work.lost(1), [0; 0], "it did not have it");
        assert_eq!(work.lost(2), [3], "the rest may take over");
        assert_eq!((work.bound(), work.claim(2)), (None, Claim::Refused));
        assert_eq!(work.claim(3), Claim::Granted(vec![]));
        assert_eq!(work.lost(3), [0; 0]);
        assert_eq!((work.bound(), work.queued()), (None, vec![]));
    }

    /// Agents that serve their queues in order, one piece at a time. Returns the mean wait.
    fn wait(redundancy: usize, late: bool) -> f64 {
        const AGENTS: usize = 20;
        let mut rng = Rng::new(8);
        let (mut free_at, mut now, mut waited) = ([0.0f64; AGENTS], 0.0, 0.0);
        let jobs = 20_000;
        for _ in 0..jobs {
            now += -(1.0 - rng.unit()).ln() / (0.9 * AGENTS as f64);
            let chosen = shuffled(AGENTS, redundancy, &mut rng);
            let first = |a: &&usize, b: &&usize| free_at[**a].total_cmp(&free_at[**b]);
            // Bound late, the first agent to come free gets it; bound at once, the one that was drawn first.
            let mut work = LateBinding::new(chosen.iter().map(|&a| a as u32));
            let agent = if late {
                chosen.iter().min_by(first)
            } else {
                chosen.first()
            };
            let agent = *agent.unwrap_or(&0);
            assert_eq!(work.claim(agent as u32), Claim::Granted(work.queued()));
            let start = free_at[agent].max(now);
            waited += start - now;
            free_at[agent] = start - (1.0 - rng.unit()).ln();
        }
        waited / f64::from(jobs)
    }

    #[test]
    fn binding_late_waits_less_than_binding_at_once() {
        assert!(wait(2, true) < wait(2, false) / 2.0);
        assert!(wait(4, true) < wait(2, true));
    }

    #[test]
    fn reports_and_time_clear_own_reservations() {
        let mut flying = InFlight::default();
        flying.reserved(3, 7, 0.0);
        flying.reserved(3, 8, 1.0);
        flying.reserved(4, 1, 1.0);
        assert_eq!(flying.count(3), 2);
        flying.reported(3, 8);
        assert_eq!(flying.count(3), 1, "the second was made after report 8");
        flying.expire(4.5, 3.0);
        assert_eq!((flying.count(3), flying.count(4), flying.open.len()), (0, 0, 0));
    }
}
