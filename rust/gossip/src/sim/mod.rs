//! A deterministic network of nodes: virtual time, seeded faults, checks after every step.
//!
//! A run is a pure function of its [`Plan`]: the same plan has the same trace hash on every machine. A plan has a chaos
//! phase, in which only safety is checked, and then a calm phase, at whose end all hosts must know the same.
mod check;
mod figures;
mod network;

use std::fmt;
use std::time::Duration;

use pandacore_matching::Rng;

pub use check::{Checker, Observation, Own, Violation};
pub use figures::{
    Detection, FalseDeaths, Healing, Idle, Pauses, TreeFigures, detection, false_deaths, healing, idle,
    pauses, tree,
};
pub use network::{BRIDGE, Network, Tamper, Untouched};

/// What goes wrong with packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// Share of packets lost.
    pub loss: f64,
    /// Share of packets with which a burst begins (Gilbert): up to a second in which its path carries nothing.
    pub burst: f64,
    /// Shortest delay of a packet.
    pub least: Duration,
    /// Longest delay; packets overtake each other within these bounds.
    pub most: Duration,
    /// Share of datagrams that arrive several times.
    pub duplicate: f64,
    /// How often such a datagram arrives again, at most.
    pub copies: u32,
    /// Share of datagrams that are cut short, have a bit changed or another version (QUIC would drop them; a faulty
    /// host might send them).
    pub corrupt: f64,
}

impl Weather {
    /// A local network on a good day.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            loss: 0.0,
            burst: 0.0,
            least: Duration::from_micros(300),
            most: Duration::from_millis(3),
            duplicate: 0.0,
            copies: 1,
            corrupt: 0.0,
        }
    }
}

/// One thing that is done to the network. Hosts are numbered from 0.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Change the weather.
    Weather(Weather),
    /// Let only hosts of equal group numbers talk, and those of the group [`BRIDGE`] with all.
    Partition(Vec<u8>),
    /// Let nothing of what this host sends arrive.
    Mute(usize),
    /// Let nothing of what the first host sends to the second arrive.
    Cut(usize, usize),
    /// Undo partitions, mutes and cuts, and crashes that are still to come.
    Heal,
    /// Do not run a host for a while.
    Pause(usize, Duration),
    /// End a host without a goodbye.
    Crash(usize),
    /// End a host once it has done this many more of the things that its steps ask for: writing its counter down,
    /// sending, connecting. With 0, what it does next is lost; between two of them lies every moment at which a process
    /// can die. A host that does not run dies so in its next start.
    CrashAfter(usize, u32),
    /// Lose the counter of starts of a host that does not run.
    Forget(usize),
    /// Start a host, if it does not run.
    Start(usize),
    /// Let a host say goodbye and end.
    Leave(usize),
    /// Announce this many agents of a host, with changed contents.
    Publish(usize, u32),
    /// Take back all agents of a host.
    Withdraw(usize),
    /// Hand a host a frame that nobody sent: random bytes, as a datagram and on a stream.
    Garbage(usize, u64),
    /// Set the wall clock of a host, in seconds since 1970.
    Clock(usize, u64),
}

/// What is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Seed of everything random.
    pub seed: u64,
    /// Number of hosts.
    pub hosts: usize,
    /// How many of them, the last ones, are new: they are started by an action, or when calm begins.
    pub late: usize,
    /// What happens when.
    pub actions: Vec<(Duration, Action)>,
    /// Length of the chaos phase.
    pub chaos: Duration,
    /// Length of the calm phase; everything is healed and running in it.
    pub calm: Duration,
}

impl Plan {
    /// A random plan: every kind of fault, some of the time.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x6A09_E667_F3BC_C908);
        let hosts = 3 + rng.below(10) as usize;
        let late = rng.below(hosts as u32 / 2) as usize;
        let chaos = 40 + u64::from(rng.below(40));
        let mut actions = Vec::new();
        let when =
            |rng: &mut Rng| Duration::from_millis(2_000 + u64::from(rng.below(chaos as u32 * 1000 - 2_000)));
        for host in 0..hosts {
            actions.push((
                Duration::from_millis(u64::from(rng.below(3_000))),
                Action::Publish(host, 1 + rng.below(20)),
            ));
        }
        for _ in 0..8 + rng.below(24) {
            let host = rng.below(hosts as u32) as usize;
            let at = when(&mut rng);
            let action = match rng.below(16) {
                0 | 1 => Action::Weather(Weather {
                    loss: [0.0, 0.05, 0.1, 0.2, 0.3][rng.below(5) as usize],
                    burst: [0.0, 0.0, 0.01][rng.below(3) as usize],
                    least: Duration::from_micros(200),
                    most: Duration::from_millis([1, 5, 50, 500][rng.below(4) as usize]),
                    duplicate: [0.0, 0.1, 0.5][rng.below(3) as usize],
                    copies: [1, 1, 10][rng.below(3) as usize],
                    corrupt: [0.0, 0.01][rng.below(2) as usize],
                }),
                2 => {
                    let groups = 2 + rng.below(2);
                    let mut of: Vec<u8> = (0..hosts).map(|_| rng.below(groups) as u8).collect();
                    if rng.below(3) == 0 {
                        of[host] = BRIDGE;
                    }
                    Action::Partition(of)
                }
                3 => Action::Mute(host),
                4 => Action::Heal,
                5 | 6 => {
                    let most = [2_000, 20_000, 60_000][rng.below(3) as usize];
                    Action::Pause(host, Duration::from_millis(200 + u64::from(rng.below(most))))
                }
                7 => Action::Crash(host),
                8 => Action::CrashAfter(host, rng.below(12)),
                9 => Action::Start(host),
                10 => Action::Leave(host),
                11 => Action::Publish(host, 1 + rng.below(30)),
                12 => Action::Withdraw(host),
                13 => Action::Cut(host, (host + 1 + rng.below(hosts as u32 - 1) as usize) % hosts),
                14 => Action::Clock(host, clock(&mut rng)),
                _ => Action::Garbage(host, rng.next_u64()),
            };
            // What ends a host is mostly followed by a start.
            if matches!(
                action,
                Action::Crash(_) | Action::CrashAfter(..) | Action::Leave(_)
            ) && rng.below(4) > 0
            {
                actions.push((
                    at + Duration::from_millis(u64::from(rng.below(15_000))),
                    Action::Start(host),
                ));
            }
            actions.push((at, action));
        }
        actions.sort_by_key(|(at, _)| *at);
        Self {
            seed,
            hosts,
            late,
            actions,
            chaos: Duration::from_secs(chaos),
            calm: Duration::from_secs(75),
        }
    }
}

/// A wall clock that is right, an hour off, at its beginning, or ten years ahead.
fn clock(rng: &mut Rng) -> u64 {
    const RIGHT: u64 = 1_800_000_000;
    [RIGHT, RIGHT - 3_600, RIGHT + 3_600, 0, RIGHT + 315_576_000][rng.below(5) as usize]
}

/// What really happened in a run.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Happened {
    /// Packets delivered.
    pub delivered: u64,
    /// Packets lost to weather.
    pub lost: u64,
    /// Packets lost to a partition or mute.
    pub cut: u64,
    /// Of the lost ones, in a burst.
    pub in_bursts: u64,
    /// Datagrams delivered again.
    pub duplicated: u64,
    /// Datagrams with a bit changed on the way.
    pub corrupted: u64,
    /// Datagrams cut short.
    pub truncated: u64,
    /// Datagrams whose version was changed.
    pub versions: u64,
    /// Datagrams that arrived before one that was sent earlier.
    pub overtaken: u64,
    /// Stream packets that were sent again.
    pub repeated: u64,
    /// Connections that were lost.
    pub disconnected: u64,
    /// Times a host was paused.
    pub pauses: u64,
    /// Times a host was ended without a goodbye.
    pub crashes: u64,
    /// Of these, in the middle of a step: with something done and something not.
    pub unsent: u64,
    /// Starts, first ones included.
    pub starts: u64,
    /// First starts while others were running already.
    pub late: u64,
    /// Goodbyes.
    pub leaves: u64,
    /// Partitions.
    pub partitions: u64,
    /// Of these, with a host that reaches all.
    pub bridges: u64,
    /// Hosts of which nothing arrives, and paths that carry nothing one way.
    pub one_way: u64,
    /// Wall clocks set.
    pub clocks: u64,
    /// Frames that nobody sent.
    pub garbage: u64,
    /// Frames that nodes refused.
    pub rejected: u64,
    /// Times a host that ran and was reachable was found dead by somebody.
    pub false_deaths: u64,
    /// Times a host was found dead by somebody.
    pub deaths: u64,
    /// Times a host answered an accusation.
    pub refutations: u64,
}

impl Happened {
    /// Every fault by name, and how often it occurred.
    #[must_use]
    pub fn faults(&self) -> [(&'static str, u64); 22] {
        [
            ("lost", self.lost),
            ("in bursts", self.in_bursts),
            ("cut", self.cut),
            ("duplicated", self.duplicated),
            ("corrupted", self.corrupted),
            ("truncated", self.truncated),
            ("versions", self.versions),
            ("overtaken", self.overtaken),
            ("repeated", self.repeated),
            ("disconnected", self.disconnected),
            ("pauses", self.pauses),
            ("crashes", self.crashes),
            ("unsent", self.unsent),
            ("late", self.late),
            ("leaves", self.leaves),
            ("partitions", self.partitions),
            ("bridges", self.bridges),
            ("one way", self.one_way),
            ("clocks", self.clocks),
            ("garbage", self.garbage),
            ("rejected", self.rejected),
            ("refutations", self.refutations),
        ]
    }
}

/// How a run ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Report {
    /// Hash of everything that was delivered and when.
    pub trace: u64,
    /// Number of events.
    pub events: u64,
    /// What happened.
    pub happened: Happened,
}

/// A run that broke a rule, with the smallest plan found that still does.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What broke.
    pub violation: Violation,
    /// The plan.
    pub plan: Plan,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {} with {} hosts, {} of them late: {}",
            self.plan.seed, self.plan.hosts, self.plan.late, self.violation
        )?;
        for (at, action) in &self.plan.actions {
            writeln!(f, "  {at:>10.3?} {action:?}")?;
        }
        Ok(())
    }
}

/// Runs a plan to its end.
///
/// # Errors
/// The first [`Violation`].
pub fn run(plan: &Plan, tamper: &mut dyn Tamper) -> Result<Report, Violation> {
    let mut network = Network::new(plan.hosts, plan.seed, Weather::calm());
    let mut checker = Checker::new(plan.hosts);
    for host in 0..plan.hosts - plan.late.min(plan.hosts) {
        network.act(Action::Start(host), tamper);
    }
    for (at, action) in &plan.actions {
        network.until(*at, &mut checker, tamper)?;
        network.act(action.clone(), tamper);
    }
    network.until(plan.chaos, &mut checker, tamper)?;
    network.act(Action::Heal, tamper);
    network.act(Action::Weather(Weather::calm()), tamper);
    for host in 0..plan.hosts {
        network.act(Action::Start(host), tamper);
    }
    network.until(plan.chaos + plan.calm, &mut checker, tamper)?;
    checker.agreed(&network, tamper)?;
    Ok(network.report())
}

/// Runs a plan and, when it breaks a rule, looks for a smaller plan that breaks one too.
///
/// # Errors
/// [`Failure`], to be printed.
pub fn run_or_shrink(
    plan: &Plan,
    mut tamper: impl FnMut() -> Box<dyn Tamper>,
) -> Result<Report, Box<Failure>> {
    let mut violation = match run(plan, &mut *tamper()) {
        Ok(report) => return Ok(report),
        Err(violation) => violation,
    };
    let mut smallest = plan.clone();
    let mut size = smallest.actions.len().div_ceil(2).max(1);
    let mut tries = 0;
    while tries < 60 && !smallest.actions.is_empty() {
        let mut shrunk = false;
        let mut at = 0;
        while at < smallest.actions.len() && tries < 60 {
            let mut candidate = smallest.clone();
            let end = (at + size).min(candidate.actions.len());
            candidate.actions.drain(at..end);
            tries += 1;
            if let Err(again) = run(&candidate, &mut *tamper()) {
                violation = again;
                smallest = candidate;
                shrunk = true;
            } else {
                at += size;
            }
        }
        if !shrunk && size == 1 {
            break;
        }
        size = (size / 2).max(1);
    }
    Err(Box::new(Failure {
        violation,
        plan: smallest,
    }))
}
