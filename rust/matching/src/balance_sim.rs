//! A discrete-event simulation of load balancing: open arrivals, FIFO agents, several entry points, stale loads.
//!
//! Times are in mean service times. The policies of [`crate::probing`] run as shipped; the others are what they are
//! compared with.
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::probing::{Advice, Candidate, Policy, Probing, queue_limit};
use crate::rng::Rng;

/// How jobs find an agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Balancer {
    /// [`Probing`] on two random blocks of eight.
    Probing(Probing),
    /// The shortest of `d` random queues, as known (stale if loads are).
    Choices(u32),
    /// The shortest of all queues, as known.
    Shortest,
    /// Join an idle queue: agents that become idle tell one entry point; random if it knows none.
    IdleQueue,
    /// Prequal: a pool of 16 reused probes, three a job; hot ones avoided, else the least latency.
    Prequal,
}

/// One simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// How jobs find an agent.
    pub balancer: Balancer,
    /// Number of agents.
    pub agents: u32,
    /// Number of entry points, each with its own knowledge.
    pub entries: u32,
    /// Offered load over capacity, below 1.
    pub load: f64,
    /// Fastest over slowest agent.
    pub spread: f64,
    /// Service times lognormal with this sigma; 0 is exponential.
    pub sigma: f64,
    /// How often each agent reports its load; 0 is always fresh.
    pub refresh: f64,
    /// Jobs; the first quarter is not counted.
    pub jobs: u32,
    /// Seed.
    pub seed: u64,
}

/// What came out, in mean service times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Mean wait before service.
    pub mean_wait: f64,
    /// 99th percentile of the wait.
    pub p99_wait: f64,
    /// 99.9th percentile of the wait.
    pub p999_wait: f64,
    /// Mean wait and service.
    pub mean_response: f64,
    /// Longest queue seen, the running job included.
    pub longest_queue: u32,
    /// Jain's index of the agents' busy time over their speed-proportional share.
    pub fairness: f64,
    /// Messages per job.
    pub messages: f64,
    /// Jobs that every tried agent refused, so that the sample was drawn again.
    pub resampled: f64,
}

struct Agent {
    queue: VecDeque<(f64, f64, u32)>,
    length: u32,
    speed: f64,
    estimate: f64,
    busy: f64,
    current: f64,
    known: u32,
    reported: f64,
}

#[derive(Clone, Copy)]
struct Probe {
    agent: u32,
    length: u32,
    latency: f64,
    at: f64,
    uses: i32,
}

struct Time(f64);

impl PartialEq for Time {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Weight of a new service time in an agent's estimate: small, or noise makes agents look fast.
const LEARNING: f64 = 0.02;

struct Simulation {
    s: Setting,
    rng: Rng,
    agents: Vec<Agent>,
    own: Vec<u16>,
    messages: f64,
    resampled: f64,
    idle: Vec<Vec<u32>>,
    pools: Vec<Vec<Probe>>,
    recent: Vec<VecDeque<u32>>,
}

fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - rng.unit()).ln()
}

fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

/// Runs one simulation; equal settings give equal outcomes.
#[must_use]
pub fn simulate(setting: &Setting) -> Outcome {
    let s = *setting;
    let mut rng = Rng::new(s.seed);
    let root = s.spread.max(1.0).sqrt();
    let n = s.agents.max(1);
    let agents: Vec<Agent> = (0..n)
        .map(|_| {
            let speed = (1.0 / root) * (root * root).powf(rng.unit());
            Agent {
                queue: VecDeque::new(),
                length: 0,
                speed,
                estimate: 1.0 / speed,
                busy: 0.0,
                current: 0.0,
                known: 0,
                reported: 0.0,
            }
        })
        .collect();
    let capacity: f64 = agents.iter().map(|a| a.speed).sum();
    let entries = s.entries.max(1);
    let idle = if s.balancer == Balancer::IdleQueue {
        let mut idle = vec![Vec::new(); entries as usize];
        (0..n).for_each(|a| idle[rng.below(entries) as usize].push(a));
        idle
    } else {
        Vec::new()
    };
    let own = if s.refresh > 0.0 {
        vec![0; (n * entries) as usize]
    } else {
        Vec::new()
    };
    let mut sim = Simulation {
        s,
        rng,
        agents,
        own,
        messages: 0.0,
        resampled: 0.0,
        idle,
        pools: vec![Vec::new(); entries as usize],
        recent: vec![VecDeque::new(); entries as usize],
    };
    sim.run(s.load * capacity)
}

impl Simulation {
    fn run(&mut self, rate: f64) -> Outcome {
        let warm = self.s.jobs / 4;
        let mut waits: Vec<f64> = Vec::with_capacity((self.s.jobs - warm) as usize);
        let mut response = 0.0;
        let mut longest = 0;
        let mut events: BinaryHeap<Reverse<(Time, u32)>> = BinaryHeap::new();
        let mut arrival = exponential(&mut self.rng) / rate;
        let (mut job, mut reporter, mut reports) = (0u32, 0usize, 0.0f64);
        loop {
            let departure = events.peek().map_or(f64::INFINITY, |e| e.0.0.0);
            if arrival > departure {
                let Some(Reverse((Time(now), agent))) = events.pop() else {
                    break;
                };
                let a = &mut self.agents[agent as usize];
                a.length -= 1;
                a.estimate += LEARNING * (a.current - a.estimate);
                if let Some((came, work, id)) = a.queue.pop_front() {
                    a.current = work;
                    a.busy += work;
                    events.push(Reverse((Time(now + work), agent)));
                    if id > warm {
                        waits.push(now - came);
                        response += now - came + work;
                    }
                } else if !self.idle.is_empty() {
                    let to = self.rng.below(self.s.entries.max(1)) as usize;
                    self.idle[to].push(agent);
                    self.messages += 1.0;
                }
                continue;
            }
            let now = arrival;
            arrival += exponential(&mut self.rng) / rate;
            job += 1;
            if job > self.s.jobs {
                break;
            }
            if self.s.refresh > 0.0 {
                // Agents report in turn, so each one every `refresh`.
                let n = self.agents.len();
                while reports < now {
                    let a = &mut self.agents[reporter];
                    a.known = a.length;
                    a.reported = reports;
                    for entry in 0..self.s.entries.max(1) as usize {
                        self.own[entry * n + reporter] = 0;
                    }
                    reporter = if reporter + 1 == n { 0 } else { reporter + 1 };
                    reports += self.s.refresh / n as f64;
                }
            }
            let entry = self.rng.below(self.s.entries.max(1)) as usize;
            let size = if self.s.sigma > 0.0 {
                (self.s.sigma * normal(&mut self.rng) - self.s.sigma * self.s.sigma / 2.0).exp()
            } else {
                exponential(&mut self.rng)
            };
            let agent = self.place(entry, now);
            if !self.own.is_empty() {
                let n = self.agents.len();
                let own = &mut self.own[entry * n + agent as usize];
                *own = own.saturating_add(1);
            }
            let a = &mut self.agents[agent as usize];
            a.length += 1;
            longest = longest.max(a.length);
            let work = size / a.speed;
            if a.length == 1 {
                a.current = work;
                a.busy += work;
                events.push(Reverse((Time(now + work), agent)));
                if job > warm {
                    waits.push(0.0);
                    response += work;
                }
            } else {
                a.queue.push_back((now, work, job));
            }
        }
        let count = waits.len().max(1) as f64;
        waits.sort_by(f64::total_cmp);
        let quantile = |q: f64| waits.get((q * (count - 1.0)) as usize).copied().unwrap_or(0.0);
        let (mut sum, mut squares) = (0.0, 0.0);
        for a in &self.agents {
            sum += a.busy;
            squares += a.busy * a.busy;
        }
        Outcome {
            mean_wait: waits.iter().sum::<f64>() / count,
            p99_wait: quantile(0.99),
            p999_wait: quantile(0.999),
            mean_response: response / count,
            longest_queue: longest,
            fairness: if squares > 0.0 {
                sum * sum / (self.agents.len() as f64 * squares)
            } else {
                1.0
            },
            messages: self.messages / f64::from(self.s.jobs.max(1)),
            resampled: self.resampled / f64::from(self.s.jobs.max(1)),
        }
    }

    fn any(&mut self) -> u32 {
        self.rng.below(self.agents.len() as u32)
    }

    /// The load that an entry point believes in.
    fn believed(&self, entry: usize, agent: u32) -> u32 {
        let a = &self.agents[agent as usize];
        if self.own.is_empty() {
            a.length
        } else {
            a.known + u32::from(self.own[entry * self.agents.len() + agent as usize])
        }
    }

    fn place(&mut self, entry: usize, now: f64) -> u32 {
        match self.s.balancer {
            Balancer::Probing(probing) => self.probing(&probing, entry, now),
            Balancer::Choices(d) => {
                let mut best = self.any();
                for _ in 1..d {
                    let other = self.any();
                    if self.believed(entry, other) < self.believed(entry, best) {
                        best = other;
                    }
                }
                if self.own.is_empty() {
                    self.messages += 2.0 * f64::from(d);
                }
                best
            }
            Balancer::Shortest => {
                let n = self.agents.len() as u32;
                let start = self.any();
                let mut best = (u32::MAX, start);
                for k in 0..n {
                    let agent = if start + k >= n { start + k - n } else { start + k };
                    let load = self.believed(entry, agent);
                    if load < best.0 {
                        best = (load, agent);
                        if load == 0 {
                            break;
                        }
                    }
                }
                best.1
            }
            Balancer::IdleQueue => {
                while let Some(agent) = self.idle[entry].pop() {
                    if self.agents[agent as usize].length == 0 {
                        return agent;
                    }
                }
                self.any()
            }
            Balancer::Prequal => self.prequal(entry, now),
        }
    }

    fn candidate(&self, entry: usize, agent: u32, now: f64, fresh: bool) -> Candidate {
        let a = &self.agents[agent as usize];
        let fresh = fresh || self.own.is_empty();
        Candidate {
            agent,
            load: if fresh {
                a.length
            } else {
                self.believed(entry, agent)
            },
            concurrency: 1,
            service_s: a.estimate,
            rtt_s: 0.0,
            age_s: if fresh { 0.0 } else { now - a.reported },
        }
    }

    fn probing(&mut self, probing: &Probing, entry: usize, now: f64) -> u32 {
        let n = self.agents.len() as u32;
        let limit = queue_limit(1);
        let mut last = 0;
        for _ in 0..8 {
            let mut sample: Vec<Candidate> = Vec::with_capacity(probing.sample);
            while sample.len() < probing.sample.min(n as usize) {
                let block = self.any() & !7;
                for agent in block..(block + 8).min(n) {
                    if sample.iter().all(|c| c.agent != agent) {
                        sample.push(self.candidate(entry, agent, now, false));
                    }
                }
            }
            let order: Vec<u32> = match probing.advise(&sample, 1.0, &mut self.rng) {
                Advice::Reserve(order) => order.iter().map(|&i| sample[i].agent).collect(),
                Advice::Probe { which, .. } => {
                    self.messages += 2.0 * which.len() as f64;
                    let answered: Vec<Candidate> = which
                        .iter()
                        .map(|&i| self.candidate(entry, sample[i].agent, now, true))
                        .collect();
                    probing
                        .choose(&answered, &mut self.rng)
                        .iter()
                        .map(|&i| answered[i].agent)
                        .collect()
                }
            };
            for agent in order {
                last = agent;
                if self.agents[agent as usize].length < limit || probing.policy == Policy::Random {
                    return agent;
                }
                self.messages += 2.0;
            }
            self.resampled += 1.0;
        }
        // Everybody asked is full: the caller would wait; the last one stands for that.
        last
    }

    fn prequal(&mut self, entry: usize, now: f64) -> u32 {
        let mut sorted: Vec<u32> = self.recent[entry].iter().copied().collect();
        sorted.sort_unstable();
        let hot = sorted
            .get((sorted.len() as f64 * 0.84) as usize)
            .copied()
            .unwrap_or(u32::MAX)
            .max(1);
        let mut pool = std::mem::take(&mut self.pools[entry]);
        pool.retain(|p| now - p.at < 1.0 && p.uses > 0);
        let cold = (0..pool.len()).filter(|&i| pool[i].length < hot);
        let chosen = cold
            .min_by(|&a, &b| pool[a].latency.total_cmp(&pool[b].latency))
            .or_else(|| (0..pool.len()).min_by_key(|&i| pool[i].length));
        let agent = match chosen {
            Some(i) if pool.len() >= 2 => {
                pool[i].length += 1;
                pool[i].uses -= 1;
                pool[i].agent
            }
            _ => self.any(),
        };
        if pool.len() > 2 {
            let drop = if self.rng.below(2) == 0 {
                (0..pool.len()).min_by(|&a, &b| pool[a].at.total_cmp(&pool[b].at))
            } else {
                (0..pool.len()).max_by_key(|&i| pool[i].length)
            };
            drop.map(|i| pool.swap_remove(i));
        }
        for _ in 0..3 {
            let agent = self.any();
            let a = &self.agents[agent as usize];
            self.messages += 2.0;
            if pool.len() >= 16
                && let Some(oldest) = (0..pool.len()).min_by(|&a, &b| pool[a].at.total_cmp(&pool[b].at))
            {
                pool.swap_remove(oldest);
            }
            let latency = f64::from(a.length + 1) * a.estimate;
            pool.push(Probe {
                agent,
                length: a.length,
                latency,
                at: now,
                uses: 1 + (self.rng.below(2) as i32),
            });
            self.recent[entry].push_back(a.length);
            if self.recent[entry].len() > 64 {
                self.recent[entry].pop_front();
            }
        }
        self.pools[entry] = pool;
        agent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(balancer: Balancer, refresh: f64) -> Setting {
        Setting {
            balancer,
            agents: 500,
            entries: 16,
            load: 0.9,
            spread: 4.0,
            sigma: 1.0,
            refresh,
            jobs: 120_000,
            seed: 3,
        }
    }

    #[test]
    fn the_default_policy_beats_two_choices_at_every_staleness() {
        for refresh in [0.0, 0.05, 0.5, 2.0, 10.0] {
            let ours = simulate(&setting(Balancer::Probing(Probing::default()), refresh));
            let two = simulate(&setting(Balancer::Choices(2), refresh));
            assert!(
                ours.p99_wait < two.p99_wait,
                "refresh {refresh}: {ours:?} {two:?}"
            );
            assert!(
                ours.mean_response < two.mean_response,
                "refresh {refresh}: {ours:?} {two:?}"
            );
            assert!(ours.longest_queue <= 6, "refresh {refresh}: {ours:?}");
        }
    }

    #[test]
    fn fresh_and_slightly_stale_loads_meet_their_targets() {
        let fresh = simulate(&setting(Balancer::Probing(Probing::default()), 0.0));
        assert!(fresh.p99_wait <= 3.2 && fresh.mean_response <= 1.2, "{fresh:?}");
        let stale = simulate(&setting(Balancer::Probing(Probing::default()), 0.5));
        assert!(stale.p99_wait <= 5.0, "{stale:?}");
    }

    #[test]
    fn equal_settings_give_equal_outcomes_and_queues_obey_known_formulas() {
        let random = Balancer::Probing(Probing {
            policy: Policy::Random,
            ..Probing::default()
        });
        let mm1 = Setting {
            load: 0.5,
            spread: 1.0,
            sigma: 0.0,
            jobs: 400_000,
            ..setting(random, 0.0)
        };
        let outcome = simulate(&mm1);
        assert_eq!(outcome, simulate(&mm1));
        // M/M/1 at half load: mean wait 1, mean response 2.
        assert!((outcome.mean_wait - 1.0).abs() < 0.1, "{outcome:?}");
        assert!((outcome.mean_response - 2.0).abs() < 0.15, "{outcome:?}");
    }
}
