//! The network: an event queue, connections, weather.
use core::net::{Ipv4Addr, SocketAddr};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pandacore_matching::Rng;

use super::check::{Checker, Observation, Own, Violation};
use super::{Action, Happened, Report, Weather};
use crate::announcement::Announcement;
use crate::batch::RecordKind;
use crate::host::{Crypto, HostId, HostRecord, Sig};
use crate::node::{Command, Config, Input, JoinState, Node, Output};
use crate::swim::{State, Transition};
use crate::wire::{Kind, VERSION};

/// A connection that carries nothing for so long is lost.
const IDLE: Duration = Duration::from_secs(30);
/// A dial that does not succeed for so long fails.
const DIAL: Duration = Duration::from_secs(2);
const MAX_QUEUED: usize = 4096;
/// The group of hosts that reach all groups.
pub const BRIDGE: u8 = u8::MAX;

/// A planted fault: changes what a host sends, stores or shows. For tests of the checks.
pub trait Tamper {
    /// The epoch a host starts with, when its stored counter says `epoch`.
    fn epoch(&mut self, _host: usize, epoch: u32) -> u32 {
        epoch
    }

    /// What a host asks to be done.
    fn outputs(&mut self, _host: usize, _outputs: &mut Vec<Output>) {}

    /// What a host shows of others.
    fn view(&mut self, _now: Duration, _host: usize, _view: &mut Vec<Observation>) {}

    /// What a host shows of itself.
    fn own(&mut self, _now: Duration, _host: usize, _own: &mut Own) {}
}

/// No planted fault.
pub struct Untouched;

impl Tamper for Untouched {}

/// Signatures for the simulator: as fast as a hash, and no secret.
struct SimCrypto(HostId);

fn fold(bytes: &[u8], mut hash: u64) -> u64 {
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^= hash >> 29;
    }
    hash
}

impl SimCrypto {
    fn sig(signer: &HostId, message: &[u8]) -> Sig {
        let hash = fold(message, fold(&signer.0, 0x1234_5678));
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        Sig::new(bytes)
    }
}

impl Crypto for SimCrypto {
    fn id(&self) -> HostId {
        self.0
    }

    fn sign(&self, message: &[u8]) -> Sig {
        Self::sig(&self.0, message)
    }

    fn verify(&self, signer: &HostId, message: &[u8], sig: &Sig) -> bool {
        Self::sig(signer, message) == *sig
    }
}

struct Host {
    id: HostId,
    node: Option<Node>,
    rng: Rng,
    epoch: u32,
    scheduled: Option<Duration>,
    paused: Duration,
    /// Things done for its steps so far, and the number of them at which it ends.
    done: u64,
    crash_at: Option<u64>,
    /// Its counter was lost, and it may have learnt of it only by joining.
    forgot: bool,
    muted: bool,
    agents: BTreeMap<[u8; 32], u32>,
    edition: u32,
    refutations: u64,
    left: bool,
    starts: u64,
    unreachable_until: Duration,
    /// When something last happened to it or to its paths.
    touched: Duration,
    wall: u64,
    members_version: u64,
}

#[derive(Clone)]
enum Payload {
    Datagram(Vec<u8>),
    Stream(Arc<[u8]>),
}

enum Event {
    Wake(usize),
    Datagram {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
        sent: u64,
    },
    /// The head of the stream between two hosts arrives, or is sent again.
    Stream {
        from: usize,
        to: usize,
        link: u64,
        tries: u32,
    },
    Dial {
        from: usize,
        to: usize,
        since: Duration,
    },
}

struct Queued {
    at: Duration,
    number: u64,
    event: Event,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[derive(Default)]
struct Link {
    up: bool,
    dialling: bool,
    waiting: VecDeque<Payload>,
    stream: VecDeque<Arc<[u8]>>,
    moving: bool,
    /// Changes when the connection is lost: what was on the way is gone.
    number: u64,
    used: Duration,
    bad_until: Duration,
}

/// Hosts and what is between them.
pub struct Network {
    hosts: Vec<Host>,
    by_id: BTreeMap<HostId, usize>,
    links: BTreeMap<(usize, usize), Link>,
    queue: BinaryHeap<Reverse<Queued>>,
    numbers: u64,
    now: Duration,
    rng: Rng,
    weather: Weather,
    groups: Vec<u8>,
    cuts: BTreeSet<(usize, usize)>,
    trace: u64,
    events: u64,
    last_datagram: BTreeMap<(usize, usize), u64>,
    config: Config,
    /// What happened so far.
    pub happened: Happened,
    /// When which host found which other dead.
    pub deaths: Vec<(Duration, usize, usize)>,
    collective: [u8; 32],
}

fn address(host: usize) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from(0x0A00_0000 + host as u32 + 1).into(), 7000)
}

impl Network {
    /// A network of hosts that do not run yet.
    #[must_use]
    pub fn new(hosts: usize, seed: u64, weather: Weather) -> Self {
        Self::with_config(hosts, seed, weather, Config::default())
    }

    /// The same, with protocol parameters.
    #[must_use]
    pub fn with_config(hosts: usize, seed: u64, weather: Weather, config: Config) -> Self {
        let mut rng = Rng::new(seed);
        let hosts: Vec<Host> = (0..hosts)
            .map(|_| {
                let mut id = [0; 32];
                for chunk in id.as_chunks_mut::<8>().0 {
                    *chunk = rng.next_u64().to_le_bytes();
                }
                Host {
                    id: HostId(id),
                    node: None,
                    rng: Rng::new(rng.next_u64()),
                    epoch: 0,
                    scheduled: None,
                    paused: Duration::ZERO,
                    done: 0,
                    crash_at: None,
                    forgot: false,
                    muted: false,
                    agents: BTreeMap::new(),
                    edition: 0,
                    refutations: 0,
                    left: false,
                    starts: 0,
                    unreachable_until: Duration::ZERO,
                    touched: Duration::ZERO,
                    wall: 0,
                    members_version: 0,
                }
            })
            .collect();
        let by_id = hosts.iter().enumerate().map(|(at, host)| (host.id, at)).collect();
        Self {
            groups: vec![0; hosts.len()],
            cuts: BTreeSet::new(),
            hosts,
            by_id,
            links: BTreeMap::new(),
            queue: BinaryHeap::new(),
            numbers: 0,
            now: Duration::ZERO,
            rng,
            weather,
            trace: 0xCBF2_9CE4_8422_2325,
            events: 0,
            last_datagram: BTreeMap::new(),
            config,
            happened: Happened::default(),
            deaths: Vec::new(),
            collective: [7; 32],
        }
    }

    pub(crate) fn broken<T>(&self, what: String) -> Result<T, Violation> {
        Err(Violation { at: self.now, what })
    }

    /// Virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Number of hosts, running or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there are no hosts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// A host's node, when it runs.
    #[must_use]
    pub fn node(&self, host: usize) -> Option<&Node> {
        self.hosts[host].node.as_ref()
    }

    /// The number of a host.
    #[must_use]
    pub fn number(&self, id: &HostId) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// A host's id.
    #[must_use]
    pub fn id(&self, host: usize) -> HostId {
        self.hosts[host].id
    }

    /// A host's stored start counter.
    #[must_use]
    pub fn epoch(&self, host: usize) -> u32 {
        self.hosts[host].epoch
    }

    /// How often a host was started.
    #[must_use]
    pub fn starts(&self, host: usize) -> u64 {
        self.hosts[host].starts
    }

    /// Agents a running host should be known for, with their edition.
    #[must_use]
    pub fn agents(&self, host: usize) -> &BTreeMap<[u8; 32], u32> {
        &self.hosts[host].agents
    }

    /// Whether a host runs, is not paused, and could be reached by all for a while.
    #[must_use]
    pub fn healthy(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        it.node.is_some()
            && !it.left
            && it.paused <= self.now
            && it.unreachable_until <= self.now
            && !it.muted
            && self.cuts.is_empty()
            && self.groups.iter().all(|group| *group == self.groups[0])
    }

    /// Whether two hosts have run, and could reach each other, for at least `time`.
    #[must_use]
    pub fn steady(&self, a: usize, b: usize, time: Duration) -> bool {
        [a, b].iter().all(|&host| {
            let it = &self.hosts[host];
            it.node.is_some() && !it.left && it.paused.max(it.touched) + time <= self.now
        }) && self.reachable(a, b)
            && self.reachable(b, a)
    }

    /// How many things a host has done for its steps: a crash may come before each of them.
    #[must_use]
    pub fn done(&self, host: usize) -> u64 {
        self.hosts[host].done
    }

    /// Whether a host lost its counter of starts and has not joined since.
    #[must_use]
    pub(crate) fn forgetful(&self, host: usize) -> bool {
        let it = &self.hosts[host];
        it.forgot
            && it
                .node
                .as_ref()
                .is_some_and(|node| node.join_state() != JoinState::Complete)
    }

    /// How the run went so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut happened = self.happened.clone();
        for host in &self.hosts {
            happened.refutations += host.refutations;
        }
        Report {
            trace: self.trace,
            events: self.events,
            happened,
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.numbers += 1;
        self.queue.push(Reverse(Queued {
            at,
            number: self.numbers,
            event,
        }));
    }

    fn reachable(&self, from: usize, to: usize) -> bool {
        let (a, b) = (self.groups[from], self.groups[to]);
        (a == b || a == BRIDGE || b == BRIDGE)
            && !self.hosts[from].muted
            && (self.cuts.is_empty() || !self.cuts.contains(&(from, to)))
    }

    /// Whether the weather takes a packet on its way.
    fn taken(&mut self, from: usize, to: usize) -> bool {
        let lost = self.weather.loss > 0.0 && self.rng.unit() < self.weather.loss;
        if self.weather.burst <= 0.0 {
            return lost;
        }
        let now = self.now;
        if self.rng.unit() < self.weather.burst {
            let until = now + Duration::from_secs_f64(0.1 + 0.9 * self.rng.unit());
            self.links.entry((from, to)).or_default().bad_until = until;
        }
        let burst = self
            .links
            .get(&(from, to))
            .is_some_and(|link| link.bad_until > now);
        self.happened.in_bursts += u64::from(burst);
        lost || burst
    }

    fn delay(&mut self) -> Duration {
        let range = self.weather.most.saturating_sub(self.weather.least);
        self.weather.least + range.mul_f64(self.rng.unit())
    }

    /// Runs until a moment, checking after every step.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn until(
        &mut self,
        end: Duration,
        checker: &mut Checker,
        tamper: &mut dyn Tamper,
    ) -> Result<(), Violation> {
        while let Some(Reverse(next)) = self.queue.peek() {
            if next.at > end {
                break;
            }
            let Some(Reverse(Queued { at, event, .. })) = self.queue.pop() else {
                break;
            };
            if at.as_secs() > self.now.as_secs() {
                self.now = at;
                checker.heals(self)?;
            }
            self.now = at;
            self.events += 1;
            self.happen(event, checker, tamper)?;
        }
        self.now = end;
        Ok(())
    }

    fn note(&mut self, parts: &[u64]) {
        for part in parts {
            self.trace = (self.trace ^ part).wrapping_mul(0x0000_0100_0000_01B3);
            self.trace ^= self.trace >> 31;
        }
    }

    fn happen(
        &mut self,
        event: Event,
        checker: &mut Checker,
        tamper: &mut dyn Tamper,
    ) -> Result<(), Violation> {
        let target = match &event {
            Event::Wake(host) => *host,
            Event::Datagram { to, .. } | Event::Stream { to, .. } => *to,
            Event::Dial { from, .. } => *from,
        };
        if self.hosts[target].paused > self.now {
            // It all waits in the sockets.
            let until = self.hosts[target].paused;
            self.schedule(until, event);
            return Ok(());
        }
        match event {
            Event::Wake(host) => {
                if self.hosts[host].scheduled == Some(self.now) {
                    self.hosts[host].scheduled = None;
                    self.step(host, Input::Tick, checker, tamper)?;
                } else if self.hosts[host].scheduled.is_some_and(|at| at < self.now) {
                    // It was paused when it should have been run.
                    self.hosts[host].scheduled = None;
                    self.step(host, Input::Tick, checker, tamper)?;
                }
            }
            Event::Datagram {
                from,
                to,
                bytes,
                sent,
            } => {
                if !self.reachable(from, to) {
                    self.happened.cut += 1;
                    return Ok(());
                }
                let last = self.last_datagram.entry((from, to)).or_default();
                if sent < *last {
                    self.happened.overtaken += 1;
                }
                *last = sent.max(*last);
                self.happened.delivered += 1;
                self.note(&[
                    self.now.as_micros() as u64,
                    from as u64,
                    to as u64,
                    fold(&bytes, 1),
                ]);
                if self.hosts[to].node.is_some() {
                    let from = self.hosts[from].id;
                    self.step(to, Input::Datagram { from, bytes: &bytes }, checker, tamper)?;
                }
            }
            Event::Stream {
                from,
                to,
                link,
                tries,
            } => self.stream(from, to, link, tries, checker, tamper)?,
            Event::Dial { from, to, since } => self.dial(from, to, since, checker, tamper)?,
        }
        Ok(())
    }

    fn stream(
        &mut self,
        from: usize,
        to: usize,
        number: u64,
        tries: u32,
        checker: &mut Checker,
        tamper: &mut dyn Tamper,
    ) -> Result<(), Violation> {
        let open = self
            .links
            .get(&(from, to))
            .is_some_and(|link| link.up && link.number == number);
        if !open {
            return Ok(());
        }
        let lost = !self.reachable(from, to) || self.taken(from, to);
        let used = self.links[&(from, to)].used;
        if lost || self.hosts[to].node.is_none() {
            if self.now >= used + IDLE {
                self.disconnect(from, to);
                return Ok(());
            }
            self.happened.repeated += 1;
            // Probe timeouts double, from a few round trips.
            let wait = (3 * self.weather.most).max(Duration::from_millis(50)) * 2u32.pow(tries.min(6));
            self.schedule(
                self.now + wait.min(Duration::from_secs(5)),
                Event::Stream {
                    from,
                    to,
                    link: number,
                    tries: tries + 1,
                },
            );
            return Ok(());
        }
        let now = self.now;
        let Some(link) = self.links.get_mut(&(from, to)) else {
            return Ok(());
        };
        link.used = now;
        let Some(bytes) = link.stream.pop_front() else {
            link.moving = false;
            return Ok(());
        };
        if link.stream.is_empty() {
            link.moving = false;
        } else {
            // The next one is right behind.
            self.schedule(
                self.now,
                Event::Stream {
                    from,
                    to,
                    link: number,
                    tries: 0,
                },
            );
        }
        self.happened.delivered += 1;
        self.note(&[
            self.now.as_micros() as u64,
            from as u64,
            to as u64,
            fold(&bytes, 2),
        ]);
        let from = self.hosts[from].id;
        self.step(to, Input::Stream { from, bytes: &bytes }, checker, tamper)
    }

    fn dial(
        &mut self,
        from: usize,
        to: usize,
        since: Duration,
        checker: &mut Checker,
        tamper: &mut dyn Tamper,
    ) -> Result<(), Violation> {
        let dialling = self.links.get(&(from, to)).is_some_and(|link| link.dialling);
        if !dialling || self.hosts[from].node.is_none() {
            return Ok(());
        }
        let up = self.hosts[to].node.is_some()
            && self.hosts[to].paused <= self.now
            && self.reachable(from, to)
            && self.reachable(to, from);
        // Three flights, any of which can be lost; lost ones are repeated.
        if up && !self.taken(from, to) && !self.taken(to, from) && !self.taken(from, to) {
            let (a, b) = (self.hosts[from].node.as_ref(), self.hosts[to].node.as_ref());
            let (Some(a), Some(b)) = (a.map(|n| n.record().clone()), b.map(|n| n.record().clone())) else {
                return Ok(());
            };
            for (x, y) in [(from, to), (to, from)] {
                let now = self.now;
                let link = self.links.entry((x, y)).or_default();
                link.dialling = false;
                if !link.up {
                    link.up = true;
                    link.number += 1;
                }
                link.used = now;
            }
            self.note(&[self.now.as_micros() as u64, from as u64, to as u64, 3]);
            self.step(
                from,
                Input::PeerUp {
                    record: b,
                    datagram: 1_178,
                },
                checker,
                tamper,
            )?;
            if self.hosts[to].node.is_some() {
                self.step(
                    to,
                    Input::PeerUp {
                        record: a,
                        datagram: 1_178,
                    },
                    checker,
                    tamper,
                )?;
            }
            for (x, y) in [(from, to), (to, from)] {
                let waiting = self
                    .links
                    .get_mut(&(x, y))
                    .map(|link| std::mem::take(&mut link.waiting));
                for payload in waiting.unwrap_or_default() {
                    self.send(x, y, payload);
                }
            }
            return Ok(());
        }
        if self.now >= since + DIAL {
            if let Some(link) = self.links.get_mut(&(from, to)) {
                link.dialling = false;
                link.waiting.clear();
            }
            return Ok(());
        }
        self.schedule(
            self.now + Duration::from_millis(300),
            Event::Dial { from, to, since },
        );
        Ok(())
    }

    fn disconnect(&mut self, a: usize, b: usize) {
        for (x, y) in [(a, b), (b, a)] {
            if let Some(link) = self.links.get_mut(&(x, y))
                && link.up
            {
                self.happened.disconnected += 1;
                let number = link.number + 1;
                *link = Link {
                    number,
                    ..Link::default()
                };
            }
        }
    }

    /// Whether a connection has carried nothing for so long that its ends have given it up: one of them ended or stands
    /// still, or packets do not arrive. Else it is kept alive.
    fn expired(&self, from: usize, to: usize) -> bool {
        let (a, b) = (&self.hosts[from], &self.hosts[to]);
        let carries = [a, b]
            .iter()
            .all(|host| host.node.is_some() && host.paused <= self.now)
            && self.reachable(from, to)
            && self.reachable(to, from)
            && self.links.get(&(to, from)).is_some_and(|link| link.up);
        !carries && a.touched.max(b.touched) + IDLE <= self.now
    }

    /// Gives up connections that have carried nothing for too long; before paths change, for it is not seen afterwards.
    fn expire(&mut self) {
        let links = self.links.iter().filter(|(_, link)| link.up);
        let gone: Vec<(usize, usize)> = links
            .map(|(ends, _)| *ends)
            .filter(|&(from, to)| self.expired(from, to))
            .collect();
        for (from, to) in gone {
            self.disconnect(from, to);
        }
    }

    fn connect(&mut self, from: usize, to: usize) -> bool {
        let now = self.now;
        if self.links.get(&(from, to)).is_some_and(|link| link.up) && self.expired(from, to) {
            self.disconnect(from, to);
        }
        let link = self.links.entry((from, to)).or_default();
        if link.up {
            return true;
        }
        if !link.dialling {
            link.dialling = true;
            let wait = self.delay() * 3;
            self.schedule(now + wait, Event::Dial { from, to, since: now });
        }
        false
    }

    fn send(&mut self, from: usize, to: usize, payload: Payload) {
        if !self.connect(from, to) {
            if let Some(link) = self.links.get_mut(&(from, to))
                && link.waiting.len() < MAX_QUEUED
            {
                link.waiting.push_back(payload);
            }
            return;
        }
        match payload {
            Payload::Datagram(mut bytes) => {
                self.numbers += 1;
                let sent = self.numbers;
                if self.taken(from, to) {
                    self.happened.lost += 1;
                    return;
                }
                if self.weather.corrupt > 0.0 && self.rng.unit() < self.weather.corrupt {
                    self.corrupt(&mut bytes);
                }
                if self.weather.duplicate > 0.0 && self.rng.unit() < self.weather.duplicate {
                    for _ in 0..1 + self.rng.below(self.weather.copies.max(1)) {
                        self.happened.duplicated += 1;
                        let at = self.now + self.delay();
                        self.schedule(
                            at,
                            Event::Datagram {
                                from,
                                to,
                                bytes: bytes.clone(),
                                sent,
                            },
                        );
                    }
                }
                let at = self.now + self.delay();
                self.schedule(
                    at,
                    Event::Datagram {
                        from,
                        to,
                        bytes,
                        sent,
                    },
                );
            }
            Payload::Stream(bytes) => {
                let at = self.now + self.delay();
                let now = self.now;
                let Some(link) = self.links.get_mut(&(from, to)) else {
                    return;
                };
                if link.stream.len() >= MAX_QUEUED {
                    return;
                }
                if link.stream.is_empty() && !link.moving {
                    // An unanswered stream is given up this long after it was last of use.
                    link.used = link.used.max(now);
                }
                link.stream.push_back(bytes);
                if !link.moving {
                    link.moving = true;
                    let link = link.number;
                    self.schedule(
                        at,
                        Event::Stream {
                            from,
                            to,
                            link,
                            tries: 0,
                        },
                    );
                }
            }
        }
    }

    fn corrupt(&mut self, bytes: &mut Vec<u8>) {
        let at = self.rng.below(bytes.len() as u32) as usize;
        match self.rng.below(3) {
            0 => {
                self.happened.truncated += 1;
                bytes.truncate(at);
            }
            1 => {
                self.happened.versions += 1;
                bytes[0] = self.rng.below(256) as u8;
            }
            _ => {
                self.happened.corrupted += 1;
                bytes[at] ^= 1 << self.rng.below(8);
            }
        }
    }

    fn step(
        &mut self,
        host: usize,
        input: Input<'_>,
        checker: &mut Checker,
        tamper: &mut dyn Tamper,
    ) -> Result<(), Violation> {
        let now = self.now;
        let it = &mut self.hosts[host];
        let Some(node) = &mut it.node else { return Ok(()) };
        let mut outputs = Vec::new();
        if node.step(now, &mut it.rng, input, &mut outputs).is_err() {
            self.happened.rejected += 1;
        }
        let changed = node.members_version() != it.members_version;
        it.members_version = node.members_version();
        let transitions = node.take_transitions();
        self.carry_out(host, outputs, tamper);
        self.check(host, &transitions, changed, checker, tamper)
    }

    fn check(
        &mut self,
        host: usize,
        transitions: &[Transition],
        changed: bool,
        checker: &mut Checker,
        tamper: &mut dyn Tamper,
    ) -> Result<(), Violation> {
        let Some(node) = &self.hosts[host].node else {
            return Ok(());
        };
        if self.events.is_multiple_of(512) {
            node.verify();
        }
        let mut own = Own::of(node);
        tamper.own(self.now, host, &mut own);
        checker.own(self, host, &own)?;
        for transition in transitions {
            let Some(target) = self.number(&transition.host) else {
                continue;
            };
            // Its contents are compared where the whole view is looked at: the record may have changed since.
            let seen = Observation {
                target,
                stamp: transition.stamp,
                contents: None,
                state: transition.state,
            };
            checker.see(self, host, seen)?;
        }
        if changed || self.events.is_multiple_of(512) {
            let mut view: Vec<Observation> = node
                .members()
                .filter_map(|member| {
                    Some(Observation {
                        target: *self.by_id.get(&member.record.host)?,
                        stamp: member.record.stamp(),
                        contents: Some(fold(&member.record.sig.bytes(), 5)),
                        state: member.state,
                    })
                })
                .collect();
            tamper.view(self.now, host, &mut view);
            for seen in view {
                checker.see(self, host, seen)?;
            }
        }
        for target in checker.take_deaths() {
            self.happened.deaths += 1;
            if self.healthy(target) {
                self.happened.false_deaths += 1;
            }
            self.deaths.push((self.now, host, target));
        }
        Ok(())
    }

    fn carry_out(&mut self, host: usize, mut outputs: Vec<Output>, tamper: &mut dyn Tamper) {
        tamper.outputs(host, &mut outputs);
        let (first, count) = (self.hosts[host].done, outputs.len() as u64);
        for output in outputs {
            let it = &mut self.hosts[host];
            if it.crash_at.is_some_and(|at| it.done >= at) {
                self.happened.crashes += 1;
                self.happened.unsent += u64::from(it.done > first && it.done < first + count);
                self.crash(host);
                return;
            }
            it.done += 1;
            match output {
                Output::Datagram { to, bytes } => {
                    if let Some(to) = self.number(&to) {
                        self.send(host, to, Payload::Datagram(bytes));
                    }
                }
                Output::Stream { to, bytes, .. } => {
                    if let Some(to) = self.number(&to) {
                        self.send(host, to, Payload::Stream(bytes));
                    }
                }
                Output::Contact { address: to } => {
                    let number = (0..self.hosts.len()).find(|&h| address(h) == to);
                    if let Some(to) = number
                        && to != host
                    {
                        self.connect(host, to);
                    }
                }
                Output::Close { peer } => {
                    if let Some(peer) = self.number(&peer) {
                        self.disconnect(host, peer);
                    }
                }
                Output::Persist { epoch } => {
                    it.epoch = epoch;
                    it.forgot = false;
                }
                Output::Stop(_) => {
                    self.crash(host);
                    return;
                }
            }
        }
        self.rearm(host);
    }

    fn rearm(&mut self, host: usize) {
        let now = self.now;
        let it = &mut self.hosts[host];
        let Some(wake) = it.node.as_ref().and_then(Node::wake) else {
            return;
        };
        let at = wake.max(now);
        if it
            .scheduled
            .is_none_or(|scheduled| at < scheduled || scheduled < now)
        {
            it.scheduled = Some(at);
            self.schedule(at, Event::Wake(host));
        }
    }

    fn crash(&mut self, host: usize) {
        self.hosts[host].refutations += self.hosts[host]
            .node
            .as_ref()
            .map_or(0, |n| n.counters().refutations);
        self.hosts[host].node = None;
        self.hosts[host].crash_at = None;
        self.hosts[host].touched = self.now;
        self.hosts[host].scheduled = None;
        for other in 0..self.hosts.len() {
            // The other side does not know: its packets vanish, until it gives up.
            if let Some(link) = self.links.get_mut(&(host, other)) {
                let number = link.number + 1;
                *link = Link {
                    number,
                    ..Link::default()
                };
            }
        }
    }

    fn payload(edition: u32, host: usize) -> Vec<u8> {
        let name = format!("host {host} edition {edition}");
        Announcement {
            name: &name,
            since: u64::from(edition),
            ..Announcement::empty()
        }
        .encode(["sim.agent"])
        .expect("within the limits")
    }

    fn publish(&mut self, host: usize, keys: Vec<[u8; 32]>) {
        self.hosts[host].edition += 1;
        let edition = self.hosts[host].edition;
        for key in &keys {
            self.hosts[host].agents.insert(*key, edition);
        }
        let payload = Self::payload(edition, host);
        let records = keys
            .into_iter()
            .map(|key| (RecordKind::ANNOUNCEMENT, key, Some(payload.clone())))
            .collect();
        self.command(host, Command::Publish(records));
    }

    /// Hands a command to a host, if it runs.
    pub fn command(&mut self, host: usize, command: Command) {
        let now = self.now;
        let it = &mut self.hosts[host];
        if let Some(node) = &mut it.node {
            let mut outputs = Vec::new();
            let _ = node.step(now, &mut it.rng, Input::Command(command), &mut outputs);
            self.carry_out(host, outputs, &mut Untouched);
        }
    }

    /// Sets the weather, a partition, or does something to a host.
    pub fn act(&mut self, action: Action, tamper: &mut dyn Tamper) {
        let far = self.now + Duration::from_secs(60);
        match action {
            Action::Weather(weather) => self.weather = weather,
            Action::Partition(groups) => {
                self.expire();
                self.happened.partitions += 1;
                self.happened.bridges += u64::from(groups.contains(&BRIDGE));
                for host in 0..self.hosts.len() {
                    self.groups[host] = groups.get(host).copied().unwrap_or(0);
                    self.hosts[host].touched = self.now;
                }
            }
            Action::Mute(host) => {
                self.happened.one_way += 1;
                self.hosts[host].muted = true;
                self.hosts[host].touched = self.now;
            }
            Action::Cut(from, to) => {
                self.happened.one_way += 1;
                self.cuts.insert((from, to));
                for host in [from, to] {
                    self.hosts[host].touched = self.now;
                }
            }
            Action::Heal => {
                self.expire();
                let cut = self.groups.iter().any(|group| *group != self.groups[0]) || !self.cuts.is_empty();
                for host in &mut self.hosts {
                    // Suspicions of the time before may still ripen.
                    if cut || host.muted {
                        host.unreachable_until = far;
                    }
                    host.muted = false;
                    host.crash_at = None;
                    host.touched = self.now;
                }
                self.groups.fill(0);
                self.cuts.clear();
            }
            Action::Pause(host, time) => {
                if self.hosts[host].node.is_some() {
                    self.happened.pauses += 1;
                    let until = self.now + time;
                    self.hosts[host].touched = self.now;
                    self.hosts[host].paused = self.hosts[host].paused.max(until);
                    self.hosts[host].unreachable_until = self.hosts[host]
                        .unreachable_until
                        .max(until + Duration::from_secs(30));
                }
            }
            Action::Crash(host) => {
                if self.hosts[host].node.is_some() {
                    self.happened.crashes += 1;
                    self.crash(host);
                }
            }
            Action::CrashAfter(host, count) => {
                self.hosts[host].crash_at = Some(self.hosts[host].done + u64::from(count));
            }
            Action::Forget(host) => {
                if self.hosts[host].node.is_none() {
                    self.hosts[host].epoch = 0;
                    self.hosts[host].forgot = true;
                }
            }
            Action::Clock(host, seconds) => {
                self.happened.clocks += 1;
                self.hosts[host].wall = seconds;
                if let Some(node) = &mut self.hosts[host].node {
                    node.set_wall(seconds);
                }
            }
            Action::Start(host) => self.start(host, tamper),
            Action::Leave(host) => {
                if self.hosts[host].node.is_some() {
                    self.happened.leaves += 1;
                    self.command(host, Command::Leave);
                    self.hosts[host].left = true;
                }
            }
            Action::Publish(host, count) => {
                let keys = (0..count)
                    .map(|i| {
                        let mut key = [0; 32];
                        key[..8].copy_from_slice(&(host as u64 * 1_000 + u64::from(i)).to_le_bytes());
                        key
                    })
                    .collect();
                if self.hosts[host].node.is_some() {
                    self.publish(host, keys);
                }
            }
            Action::Withdraw(host) => {
                if self.hosts[host].node.is_some() {
                    let keys = std::mem::take(&mut self.hosts[host].agents);
                    let records = keys
                        .into_keys()
                        .map(|key| (RecordKind::ANNOUNCEMENT, key, None))
                        .collect();
                    self.command(host, Command::Publish(records));
                }
            }
            Action::Garbage(host, seed) => {
                self.happened.garbage += 1;
                let mut rng = Rng::new(seed);
                let from = self.hosts[rng.below(self.hosts.len() as u32) as usize].id;
                let now = self.now;
                for stream in [false, true] {
                    let kind = rng.below(Kind::ALL.len() as u32 + 2) as u8;
                    let len = rng.below(200);
                    let mut bytes = vec![VERSION, kind, 0, 0];
                    bytes.extend_from_slice(&len.to_le_bytes());
                    bytes.extend((0..len).map(|_| rng.below(256) as u8));
                    let it = &mut self.hosts[host];
                    let Some(node) = &mut it.node else { return };
                    let input = if stream {
                        Input::Stream { from, bytes: &bytes }
                    } else {
                        Input::Datagram { from, bytes: &bytes }
                    };
                    let mut outputs = Vec::new();
                    if node.step(now, &mut it.rng, input, &mut outputs).is_err() {
                        self.happened.rejected += 1;
                    }
                    self.carry_out(host, outputs, tamper);
                }
            }
        }
    }

    fn start(&mut self, host: usize, tamper: &mut dyn Tamper) {
        if self.hosts[host].left {
            // Its process has ended by now.
            self.hosts[host].left = false;
            self.crash(host);
        }
        if self.hosts[host].node.is_some() {
            return;
        }
        self.expire();
        self.happened.starts += 1;
        let others = self.hosts.iter().any(|host| host.node.is_some());
        self.happened.late += u64::from(others && self.hosts[host].starts == 0 && self.now > Duration::ZERO);
        // Written down before anything is sent; a crash in between only skips a number.
        self.hosts[host].epoch = tamper.epoch(host, self.hosts[host].epoch + 1);
        let now = self.now;
        let seeds: Vec<SocketAddr> = (0..self.hosts.len().min(3))
            .filter(|&h| h != host)
            .map(address)
            .collect();
        // The very first host waits for nobody.
        let seeds = if host == 0 && self.happened.starts == 1 {
            Vec::new()
        } else {
            seeds
        };
        let it = &mut self.hosts[host];
        let record = HostRecord {
            host: it.id,
            epoch: it.epoch,
            incarnation: 0,
            instance: it.rng.next_u64(),
            address: address(host),
            other: None,
            left: false,
            sig: Sig([[0; 32]; 2]),
        };
        let mut outputs = Vec::new();
        let crypto = Arc::new(SimCrypto(it.id));
        let config = self.config.clone();
        it.node = Some(Node::new(
            config,
            self.collective,
            crypto,
            record,
            seeds,
            now,
            &mut it.rng,
            &mut outputs,
        ));
        if let Some(node) = &mut it.node {
            node.keep_transitions();
            node.set_wall(it.wall);
        }
        it.starts += 1;
        it.touched = now;
        it.members_version = 0;
        it.paused = Duration::ZERO;
        it.unreachable_until = now + Duration::from_secs(5);
        let keys: Vec<[u8; 32]> = it.agents.keys().copied().collect();
        self.carry_out(host, outputs, tamper);
        if !keys.is_empty() {
            self.publish(host, keys);
        }
    }

    /// Hosts that run and have not said goodbye.
    #[must_use]
    pub fn running(&self) -> Vec<usize> {
        (0..self.hosts.len())
            .filter(|&h| self.hosts[h].node.is_some() && !self.hosts[h].left)
            .collect()
    }

    /// Whether all running hosts see all running hosts, no others, and the same rows.
    #[must_use]
    pub fn agreed(&self) -> bool {
        let running = self.running();
        let mut roots = running.iter().filter_map(|&h| self.node(h)).map(Node::root);
        let first = roots.next();
        roots.all(|root| Some(root) == first)
            && running.iter().all(|&h| {
                self.node(h).is_some_and(|node| {
                    let live = node.members().filter(|m| m.state.live()).count();
                    live + 1 == running.len()
                })
            })
    }

    /// How `observer` sees `target`.
    #[must_use]
    pub fn state(&self, observer: usize, target: usize) -> Option<State> {
        self.node(observer)?.state(&self.hosts[target].id)
    }
}
