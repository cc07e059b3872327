//! Membership and failure detection between hosts.
//!
//! SWIM (Das, Gupta, Motivala 2002) with Lifeguard (Dadgar, Phillips, Currey 2018): suspicion shortened by independent
//! confirmations, timeouts scaled by local health, suspects told first. Departures from the papers:
//! - A death is never announced. What spreads is a signed *claim* ("I could not reach X at this stamp"); every host
//!   decides for itself, once claims of several different accusers are there, or after a failed probe of its own.
//! - Before a claim the target is also pinged over the reliable stream.
//! - A host that was not scheduled for a while blames itself: it drops its open probes and declares nobody down for one
//!   suspicion period.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pandacore_matching::Rng;

use crate::host::{Claim, Crypto, HostId, HostRecord, Short};
use crate::node::{Counters, Output, Reject, StopReason};
use crate::queue::Class;
use crate::wire::{Builder, FRAME_HEADER, Hint, Kind, Probe, Update};

/// Confirmations beyond the first accuser that shorten a suspicion to its minimum. Lifeguard's advice.
const CONFIRMATIONS: usize = 3;
/// Most relayed pings in progress, and of one asker.
const MAX_RELAYS: usize = 64;
const MAX_RELAYS_OF_ONE: usize = 8;
/// News remembered, so that a hint of it is no reason to ask; and news that was hinted at and is not here.
const MAX_RECENT: usize = 1 << 13;
const MAX_WANTED: usize = 1 << 12;
/// How long news is remembered and can be asked for.
const RECENT: Duration = Duration::from_secs(60);
/// How long an answer to an accusation is on its way to all; who has not heard of it then is told by itself.
const ANSWER_SPREADS: Duration = Duration::from_secs(2);
/// Most hints in one question.
pub(crate) const MAX_HINTS: usize = 256;
/// Most news in one datagram.
const MAX_NEWS: usize = 32;
/// Datagram bytes that fit every QUIC path, until the driver knows better.
const SAFE_DATAGRAM: usize = 1_100;

/// How the failure detector is set up.
#[derive(Clone, Debug)]
pub struct SwimConfig {
    /// Time between probes. SWIM's advice is 1 s; two probes a second make the first suspicion of a dead host
    /// twice as early for 20 bytes a second more.
    pub period: Duration,
    /// Shortest time to wait for a direct answer.
    pub direct: Duration,
    /// Further time for the helpers and the stream.
    pub indirect: Duration,
    /// Helpers asked.
    pub helpers: usize,
    /// Bounds of the shortest suspicion; within them it grows with log10 of the number of hosts.
    pub suspicion: (Duration, Duration),
    /// Longest suspicion, as a multiple of the shortest.
    pub stretch: u32,
    /// Highest local health score; 0 is healthy.
    pub worst_health: u32,
    /// Time between rounds of pure gossip while there is news.
    pub gossip: Duration,
    /// Hosts told in a round.
    pub fanout: usize,
    /// How often each host mentions a piece of news. The tree carries the news itself; this is for those whose branch
    /// is broken, who ask for it. Comparisons bring what was missed even so.
    pub retransmit: u32,
    /// How long news that was mentioned may take to come along the tree before it is asked for.
    pub patience: Duration,
    /// Time between attempts to reach a dead host or an unused seed.
    pub heal: Duration,
    /// How long rows of a dead host are kept.
    pub keep_rows: Duration,
    /// How long a dead or departed host is remembered.
    pub keep_dead: Duration,
    /// Most hosts remembered.
    pub max_hosts: usize,
}

impl Default for SwimConfig {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(500),
            direct: Duration::from_millis(200),
            indirect: Duration::from_millis(600),
            helpers: 3,
            suspicion: (Duration::from_secs(3), Duration::from_secs(5)),
            stretch: 6,
            worst_health: 8,
            gossip: Duration::from_millis(300),
            fanout: 3,
            retransmit: 2,
            patience: Duration::from_millis(150),
            heal: Duration::from_secs(5),
            keep_rows: Duration::from_secs(15 * 60),
            keep_dead: Duration::from_secs(7 * 24 * 3600),
            max_hosts: 1 << 16,
        }
    }
}

/// What this host thinks of another.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum State {
    /// It answers.
    Alive,
    /// Somebody could not reach it.
    Suspect,
    /// It is dead, until a higher stamp of its own.
    Down,
    /// It said goodbye.
    Left,
}

impl State {
    /// Whether its agents count.
    #[must_use]
    pub fn live(self) -> bool {
        matches!(self, Self::Alive | Self::Suspect)
    }
}

/// One host, as this host sees it.
#[derive(Clone, Debug)]
pub struct MemberView {
    /// The newest record of it.
    pub record: HostRecord,
    /// What this host thinks of it.
    pub state: State,
    /// Since when.
    pub since: Duration,
}

/// One change of how a host is seen. A step may make several: its last state alone could hide one that is not allowed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transition {
    /// The host.
    pub host: HostId,
    /// Epoch and incarnation of its newest record.
    pub stamp: (u32, u32),
    /// What is thought of it now.
    pub state: State,
}

struct Suspicion {
    claims: Vec<Claim>,
    own: bool,
    started: Duration,
    deadline: Duration,
    /// Number of the probe that decides, once the deadline has passed.
    deciding: bool,
}

struct Member {
    record: HostRecord,
    state: State,
    since: Duration,
    suspicion: Option<Box<Suspicion>>,
    /// Claims that brought it down, to tell it when it shows up.
    verdict: Vec<Claim>,
    rtt: Option<(Duration, Duration)>,
    told: Option<Duration>,
    corrected: Option<Duration>,
    forgotten: bool,
    datagram: usize,
}

struct Ping {
    target: u32,
    stamp: (u32, u32),
    started: Duration,
    helpers: u32,
    nacks: u32,
    direct: bool,
}

struct Relay {
    asker: HostId,
    number: u32,
    target: u32,
    answered: bool,
}

/// News that was here lately.
struct Recent {
    seen: Duration,
    /// What it was, when it was of use.
    update: Option<Update>,
    /// The neighbour that pushed it along the tree, if it came so.
    carrier: Option<HostId>,
}

/// What the rest of the node has to know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Seen {
    /// A host is live that was not, or in an earlier epoch.
    Up(HostId, u32),
    /// A host is dead or departed.
    Gone(HostId),
    /// Its rows may go.
    Forget(HostId),
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Timer {
    Period,
    Direct(u32),
    Final(u32),
    Relay(u32),
    Suspicion(u32),
    Verify(u32),
    Gossip,
    Heal,
    Sweep,
    Want,
    Flush,
    Sync,
    Lazy,
    Missing,
}

/// Timers by time; a number keeps equal times in the order they were set.
#[derive(Default)]
pub(crate) struct Timers {
    set: BTreeMap<(Duration, u64), Timer>,
    number: u64,
}

impl Timers {
    pub(crate) fn set(&mut self, at: Duration, timer: Timer) {
        self.number += 1;
        self.set.insert((at, self.number), timer);
    }

    pub(crate) fn next(&self) -> Option<Duration> {
        self.set.keys().next().map(|key| key.0)
    }

    pub(crate) fn due(&mut self, now: Duration) -> Option<(Duration, Timer)> {
        let key = *self.set.keys().next()?;
        (key.0 <= now).then(|| self.set.remove(&key).map(|timer| (key.0, timer)))?
    }

    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }
}

/// What a step works with.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Duration,
    pub(crate) rng: &'a mut Rng,
    pub(crate) out: &'a mut Vec<Output>,
    pub(crate) timers: &'a mut Timers,
    pub(crate) counters: &'a mut Counters,
}

pub(crate) struct Swim {
    config: SwimConfig,
    collective: [u8; 32],
    crypto: Arc<dyn Crypto>,
    me: HostRecord,
    /// A joining host may raise its epoch; an established one that sees its key elsewhere must decide who stops.
    established: bool,
    members: Vec<Member>,
    index: BTreeMap<HostId, u32>,
    live: usize,
    order: Vec<u32>,
    cursor: usize,
    health: u32,
    pings: BTreeMap<u32, Ping>,
    relays: BTreeMap<u32, Relay>,
    number: u32,
    /// News by times sent, then by age.
    news: BTreeMap<(u32, u64), Update>,
    recent: BTreeMap<Hint, Recent>,
    wanted: BTreeMap<Hint, (Duration, HostId)>,
    /// Neighbours that the tree does not use; the node keeps it true.
    pub(crate) lazy: Vec<HostId>,
    /// Who was asked for news since the node last looked: the tree did not bring it.
    pub(crate) asked: Vec<HostId>,
    news_of: BTreeMap<(Short, Option<Short>), (u32, u64)>,
    news_count: u64,
    gossiping: bool,
    accused_by: BTreeMap<Short, u32>,
    grace: Duration,
    /// When the own record was last changed.
    signed: Duration,
    heal_cursor: usize,
    free: Vec<u32>,
    pub(crate) seen: Vec<Seen>,
    /// News that came up since the node last pushed it along the tree.
    pub(crate) fresh: Vec<Update>,
    pub(crate) version: u64,
    /// For checks: every change, when they are asked for.
    pub(crate) transitions: Option<Vec<Transition>>,
}

impl Swim {
    pub(crate) fn new(
        config: SwimConfig,
        collective: [u8; 32],
        crypto: Arc<dyn Crypto>,
        me: HostRecord,
        established: bool,
    ) -> Self {
        let me = me.signed(&collective, &*crypto);
        Self {
            config,
            collective,
            crypto,
            me,
            established,
            members: Vec::new(),
            index: BTreeMap::new(),
            live: 0,
            order: Vec::new(),
            cursor: 0,
            health: 0,
            pings: BTreeMap::new(),
            relays: BTreeMap::new(),
            number: 0,
            news: BTreeMap::new(),
            recent: BTreeMap::new(),
            wanted: BTreeMap::new(),
            lazy: Vec::new(),
            asked: Vec::new(),
            news_of: BTreeMap::new(),
            news_count: 0,
            gossiping: false,
            accused_by: BTreeMap::new(),
            grace: Duration::ZERO,
            signed: Duration::ZERO,
            heal_cursor: 0,
            free: Vec::new(),
            seen: Vec::new(),
            fresh: Vec::new(),
            version: 1,
            transitions: None,
        }
    }

    pub(crate) fn start(&mut self, ctx: &mut Ctx<'_>) {
        // Spread over a period: hosts that were started together would otherwise probe in step.
        ctx.timers
            .set(ctx.now + jitter(ctx.rng, self.config.period), Timer::Period);
        ctx.timers
            .set(ctx.now + jitter(ctx.rng, self.config.heal), Timer::Heal);
        ctx.timers.set(ctx.now + Duration::from_secs(10), Timer::Sweep);
    }

    // -- reading -------------------------------------------------------------------------------------

    pub(crate) fn me(&self) -> &HostRecord {
        &self.me
    }

    pub(crate) fn establish(&mut self) {
        self.established = true;
    }

    pub(crate) fn state(&self, host: &HostId) -> Option<State> {
        self.member(host).map(|member| member.state)
    }

    pub(crate) fn record(&self, host: &HostId) -> Option<&HostRecord> {
        if *host == self.me.host {
            return Some(&self.me);
        }
        self.member(host).map(|member| &member.record)
    }

    fn member(&self, host: &HostId) -> Option<&Member> {
        self.index.get(host).map(|&at| &self.members[at as usize])
    }

    /// Hosts that are live, this one not included.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn health(&self) -> u32 {
        self.health
    }

    pub(crate) fn open(&self) -> (usize, usize, usize, usize) {
        let hints = self.recent.len() + self.wanted.len();
        (self.pings.len(), self.relays.len(), self.news.len(), hints)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = MemberView> + '_ {
        self.index.values().map(|&at| {
            let member = &self.members[at as usize];
            MemberView {
                record: member.record.clone(),
                state: member.state,
                since: member.since,
            }
        })
    }

    pub(crate) fn live_records(&self) -> impl Iterator<Item = &HostRecord> {
        let others = self.index.values().map(|&at| &self.members[at as usize]);
        others
            .filter(|member| member.state.live())
            .map(|member| &member.record)
            .chain((!self.me.left).then_some(&self.me))
    }

    /// Live and departed hosts, as news. Dead ones are left out: a host that has forgotten one must not learn of it
    /// again as of a live one.
    pub(crate) fn all_news(&self) -> impl Iterator<Item = Update> + '_ {
        let others = self.index.values().map(|&at| &self.members[at as usize]);
        others
            .filter(|member| member.state != State::Down)
            .map(|member| Update::Host(member.record.clone()))
            .chain([Update::Host(self.me.clone())])
    }

    pub(crate) fn short(&self, short: Short) -> Option<&HostRecord> {
        // Ids are ordered by bytes, so those of one short id are neighbours.
        let mut low = [0; 32];
        low[..8].copy_from_slice(&short.0.to_le_bytes());
        if self.me.host.short() == short {
            return Some(&self.me);
        }
        let (host, &at) = self.index.range(HostId(low)..).next()?;
        (host.short() == short).then(|| &self.members[at as usize].record)
    }

    /// Claims that brought a dead host down.
    pub(crate) fn verdict(&self, host: &HostId) -> Vec<Update> {
        match self.member(host) {
            Some(member) if member.state == State::Down => {
                member.verdict.iter().cloned().map(Update::Claim).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A random live host that `accept` takes.
    pub(crate) fn pick(&self, rng: &mut Rng, accept: impl Fn(&HostId) -> bool) -> Option<HostId> {
        if self.order.is_empty() {
            return None;
        }
        for _ in 0..8 {
            let host = self.members[self.order[rng.below(self.order.len() as u32) as usize] as usize]
                .record
                .host;
            if accept(&host) {
                return Some(host);
            }
        }
        let start = rng.below(self.order.len() as u32) as usize;
        (0..self.order.len())
            .map(|i| {
                self.members[self.order[(start + i) % self.order.len()] as usize]
                    .record
                    .host
            })
            .find(accept)
    }

    /// Fills the hosts that are told in a round with random live ones.
    fn pick_others(&self, rng: &mut Rng, told: &mut Vec<HostId>) {
        while told.len() < self.config.fanout.min(self.order.len()) {
            let Some(host) = self.pick(rng, |host| !told.contains(host)) else {
                break;
            };
            told.push(host);
        }
    }

    fn suspicion_min(&self) -> Duration {
        let (low, high) = self.config.suspicion;
        let grown =
            low + (high - low).mul_f64((f64::from(self.live as u32 + 1).log10() - 1.0).max(0.0) / 2.0);
        grown.min(high).mul_f64(1.0 + 0.25 * f64::from(self.health))
    }

    fn confirmations(&self) -> usize {
        CONFIRMATIONS.min(self.live.saturating_sub(1))
    }

    // -- sending -------------------------------------------------------------------------------------

    fn datagram(&mut self, ctx: &mut Ctx<'_>, to: HostId, probe: Probe, first: &[Update]) {
        let budget = self.member(&to).map_or(SAFE_DATAGRAM, |member| member.datagram);
        let mut frame = Builder::new(Kind::Probe).item(&probe);
        let bare = frame.len();
        for update in first {
            if frame.len() + update_len(update) <= budget {
                frame.push(update);
            }
        }
        let mut sent = Vec::new();
        for (&key, update) in &self.news {
            if frame.len() + HINT_LEN > budget || sent.len() == MAX_NEWS {
                break;
            }
            // A goodbye is said once, and whoever misses it would probe for nothing: it goes out as it is.
            if is_farewell(update) {
                if frame.len() + update_len(update) <= budget {
                    frame.push(update);
                    sent.push(key);
                }
            } else {
                frame.push(&Update::Hint(update.hint()));
                sent.push(key);
            }
        }
        for key in sent {
            let Some(update) = self.news.remove(&key) else {
                continue;
            };
            let name = news_name(&update);
            if key.0 + 1 >= self.config.retransmit * if is_farewell(&update) { 2 } else { 1 } {
                self.news_of.remove(&name);
            } else {
                let key = (key.0 + 1, key.1);
                self.news_of.insert(name, key);
                self.news.insert(key, update);
            }
        }
        debug_assert!(frame.len() <= budget);
        ctx.counters.datagrams_out += 1;
        ctx.counters.news_bytes_out += (frame.len() - bare) as u64;
        ctx.counters.datagram_bytes_out += frame.len() as u64;
        ctx.out.push(Output::Datagram {
            to,
            bytes: frame.done(),
        });
    }

    fn announce(&mut self, ctx: &mut Ctx<'_>, update: Update) {
        let name = news_name(&update);
        if let Some(old) = self.news_of.remove(&name) {
            self.news.remove(&old);
        }
        if let Update::Host(record) = &update {
            // A newer record settles all claims about the older one.
            self.drop_claims(record.host.short());
        }
        self.remember(ctx.now, update.hint(), Some(update.clone()));
        self.fresh.push(update.clone());
        self.news_count += 1;
        let key = (0, self.news_count);
        self.news_of.insert(name, key);
        self.news.insert(key, update);
        if !self.gossiping {
            self.gossiping = true;
            // The tree is on its way; what comes up meanwhile is mentioned together.
            ctx.timers.set(ctx.now + self.config.gossip / 2, Timer::Gossip);
        }
    }

    fn gossip(&mut self, ctx: &mut Ctx<'_>) {
        self.gossiping = false;
        if self.news.is_empty() || self.order.is_empty() {
            return;
        }
        // Neighbours that the tree does not use come first: a mention that helps one of them mends the tree as well. One
        // of all hosts is always among those told, for the neighbours may all be cut off together.
        let mut told: Vec<HostId> = Vec::with_capacity(self.config.fanout);
        for _ in 1..self.config.fanout.min(self.order.len()) {
            if self.lazy.is_empty() {
                break;
            }
            let host = self.lazy[ctx.rng.below(self.lazy.len() as u32) as usize];
            if !told.contains(&host) {
                told.push(host);
            }
        }
        self.pick_others(ctx.rng, &mut told);
        for host in told {
            self.datagram(ctx, host, Probe::Gossip, &[]);
        }
        if !self.news.is_empty() {
            self.gossiping = true;
            ctx.timers.set(ctx.now + self.config.gossip, Timer::Gossip);
        }
    }

    // -- probing -------------------------------------------------------------------------------------

    fn period(&mut self, ctx: &mut Ctx<'_>) {
        let period = self.config.period * (1 + self.health);
        ctx.timers.set(ctx.now + period, Timer::Period);
        if self.cursor >= self.order.len() {
            self.cursor = 0;
            shuffle(ctx.rng, &mut self.order);
        }
        while let Some(&target) = self.order.get(self.cursor) {
            self.cursor += 1;
            // Hosts that several others could not reach are looked after by those who verify it.
            let suspicion = &self.members[target as usize].suspicion;
            if suspicion.as_ref().is_none_or(|s| s.claims.len() < 2) {
                self.probe(ctx, target);
                break;
            }
        }
    }

    fn probe(&mut self, ctx: &mut Ctx<'_>, target: u32) {
        let member = &self.members[target as usize];
        if !member.state.live() {
            return;
        }
        let (host, stamp) = (member.record.host, member.record.stamp());
        // A suspect is told first that it is suspected, so that it can answer; it answers all claims at once.
        let claims: Vec<Update> = member
            .suspicion
            .iter()
            .filter_map(|s| s.claims.first())
            .cloned()
            .map(Update::Claim)
            .collect();
        let rtt = member
            .rtt
            .map_or(Duration::ZERO, |(mean, spread)| 3 * (mean + 2 * spread));
        let direct = self.config.direct.max(rtt.min(Duration::from_secs(2))) * (1 + self.health);
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        self.pings.insert(
            number,
            Ping {
                target,
                stamp,
                started: ctx.now,
                helpers: 0,
                nacks: 0,
                direct: true,
            },
        );
        ctx.counters.probes += 1;
        ctx.timers.set(ctx.now + direct, Timer::Direct(number));
        self.datagram(ctx, host, Probe::Ping(number), &claims);
    }

    fn direct_timeout(&mut self, ctx: &mut Ctx<'_>, number: u32) {
        let Some(ping) = self.pings.get_mut(&number) else {
            return;
        };
        ping.direct = false;
        let target = ping.target;
        let host = self.members[target as usize].record.host;
        ctx.timers.set(
            ctx.now + self.config.indirect * (1 + self.health),
            Timer::Final(number),
        );
        let mut helpers = Vec::with_capacity(self.config.helpers);
        for _ in 0..self.config.helpers {
            let accept = |candidate: &HostId| *candidate != host && !helpers.contains(candidate);
            if let Some(helper) = self.pick(ctx.rng, accept) {
                helpers.push(helper);
            }
        }
        if let Some(ping) = self.pings.get_mut(&number) {
            ping.helpers = helpers.len() as u32;
        }
        for helper in helpers {
            self.datagram(ctx, helper, Probe::PingReq(number, host), &[]);
        }
        // The stream repeats what is lost: most of what one lost datagram would start ends here.
        let frame = Builder::new(Kind::StreamPing).item(&number).done();
        ctx.counters.stream_pings += 1;
        ctx.out.push(Output::Stream {
            to: host,
            class: Class::Liveness,
            bytes: frame.into(),
        });
    }

    fn final_timeout(&mut self, ctx: &mut Ctx<'_>, number: u32) {
        let Some(ping) = self.pings.remove(&number) else {
            return;
        };
        let member = &self.members[ping.target as usize];
        if !member.state.live() || member.record.stamp() != ping.stamp {
            return;
        }
        // Helpers that did not even say no point at this host's own network.
        if ping.nacks < ping.helpers || ping.helpers == 0 {
            self.health = (self.health + 1).min(self.config.worst_health);
        }
        ctx.counters.failed_probes += 1;
        let claim = Claim::by(&*self.crypto, &self.collective, &member.record.host, ping.stamp);
        self.suspect(ctx, ping.target, claim, true);
        let decided = self.members[ping.target as usize]
            .suspicion
            .as_ref()
            .is_some_and(|s| s.deciding);
        if decided {
            self.declare_down(ctx, ping.target);
        }
    }

    pub(crate) fn acked(&mut self, ctx: &mut Ctx<'_>, from: &HostId, number: u32, stream: bool) {
        if let Some(relay) = self.relays.get_mut(&number) {
            let target = self.members[relay.target as usize].record.host;
            if target == *from && !relay.answered {
                relay.answered = true;
                let (asker, number) = (relay.asker, relay.number);
                self.datagram(ctx, asker, Probe::Ack(number), &[]);
            }
            return;
        }
        let Some(ping) = self.pings.get(&number) else {
            return;
        };
        let target = ping.target;
        if (stream || ping.direct) && self.members[target as usize].record.host != *from {
            // Before helpers were asked, only the target can answer.
            ctx.counters.reject(Reject::Unasked);
            return;
        }
        let elapsed = ctx.now.saturating_sub(ping.started);
        let was_direct = ping.direct;
        self.pings.remove(&number);
        self.health = self.health.saturating_sub(1);
        let member = &mut self.members[target as usize];
        if was_direct {
            member.rtt = Some(match member.rtt {
                None => (elapsed, elapsed / 2),
                Some((mean, spread)) => {
                    let off = elapsed.abs_diff(mean);
                    ((mean * 7 + elapsed) / 8, (spread * 3 + off) / 4)
                }
            });
        }
        if member.suspicion.as_ref().is_some_and(|s| s.deciding) {
            // Too few accusers, and it answers: the suspicion ends here.
            self.clear_suspicion(ctx, target);
        }
    }

    fn relay_timeout(&mut self, ctx: &mut Ctx<'_>, number: u32) {
        if let Some(relay) = self.relays.remove(&number)
            && !relay.answered
        {
            self.datagram(ctx, relay.asker, Probe::Nack(relay.number), &[]);
        }
    }

    // -- verdicts ------------------------------------------------------------------------------------

    fn suspect(&mut self, ctx: &mut Ctx<'_>, target: u32, claim: Claim, own: bool) {
        let (min, confirmations) = (self.suspicion_min(), self.confirmations());
        let max = min * self.config.stretch;
        let member = &mut self.members[target as usize];
        let first = member.suspicion.is_none();
        let suspicion = member.suspicion.get_or_insert_with(|| {
            Box::new(Suspicion {
                claims: Vec::new(),
                own: false,
                started: ctx.now,
                deadline: ctx.now + max,
                deciding: false,
            })
        });
        suspicion.own |= own;
        if suspicion
            .claims
            .iter()
            .any(|known| known.accuser == claim.accuser)
        {
            return;
        }
        if suspicion.claims.len() > CONFIRMATIONS {
            return;
        }
        suspicion.claims.push(claim.clone());
        *self.accused_by.entry(claim.accuser).or_default() += 1;
        let confirmed = (suspicion.claims.len() - 1).min(confirmations);
        let share = if confirmations == 0 {
            1.0
        } else {
            f64::from(confirmed as u32 + 1).ln() / f64::from(confirmations as u32 + 1).ln()
        };
        // What it saw itself and one other saw as well needs no third: claims may have passed this host by.
        let share = if suspicion.own && suspicion.claims.len() > 1 {
            1.0
        } else {
            share
        };
        let wait = max.saturating_sub((max - min).mul_f64(share.min(1.0)));
        suspicion.deadline = (suspicion.started + wait).max(ctx.now);
        ctx.timers
            .set(suspicion.deadline.max(self.grace), Timer::Suspicion(target));
        if member.state == State::Alive {
            self.set_state(ctx.now, target, State::Suspect);
            ctx.counters.suspicions += 1;
        }
        self.announce(ctx, Update::Claim(claim));
        if first && !own {
            // A few hosts look for themselves at once: confirmations come early if it is dead, an answer if not.
            let share = (2.0 * confirmations as f64 + 1.0) / f64::from(self.live.max(1) as u32);
            if ctx.rng.unit() < share {
                ctx.timers.set(
                    ctx.now + jitter(ctx.rng, Duration::from_millis(300)),
                    Timer::Verify(target),
                );
            }
            ctx.timers.set(
                ctx.now + min + jitter(ctx.rng, self.config.period),
                Timer::Verify(target),
            );
        }
    }

    /// Looks for itself: early, so that confirmations or an answer come soon, or after the shortest suspicion, when
    /// too few accusers are known here. Claims are not sent for ever, so this host may have missed some.
    fn verify(&mut self, ctx: &mut Ctx<'_>, target: u32) {
        let (min, needed) = (self.suspicion_min(), self.confirmations() + 1);
        let Some(suspicion) = &mut self.members[target as usize].suspicion else {
            return;
        };
        if suspicion.own || suspicion.claims.len() >= needed || suspicion.deciding {
            return;
        }
        let second = ctx.now >= suspicion.started + min;
        if second {
            if ctx.now < self.grace {
                ctx.timers.set(self.grace, Timer::Verify(target));
                return;
            }
            // Another host could not reach it, nothing was heard for so long: this probe decides.
            suspicion.deciding = true;
            self.pings.retain(|_, ping| ping.target != target);
            self.probe(ctx, target);
        } else if !self.pings.values().any(|ping| ping.target == target) {
            self.probe(ctx, target);
        }
    }

    fn suspicion_timeout(&mut self, ctx: &mut Ctx<'_>, target: u32) {
        let needed = self.confirmations() + 1;
        let Some(suspicion) = &mut self.members[target as usize].suspicion else {
            return;
        };
        if suspicion.deciding {
            return;
        }
        let due = suspicion.deadline.max(self.grace);
        if ctx.now < due {
            // Moved since; whoever moved it back set another timer.
            ctx.timers.set(due, Timer::Suspicion(target));
            return;
        }
        if suspicion.own || suspicion.claims.len() >= needed {
            self.declare_down(ctx, target);
        } else {
            // Few have seen it: look for yourself, and let that decide.
            suspicion.deciding = true;
            self.pings.retain(|_, ping| ping.target != target);
            self.probe(ctx, target);
        }
    }

    fn clear_suspicion(&mut self, ctx: &mut Ctx<'_>, target: u32) {
        let member = &mut self.members[target as usize];
        if let Some(suspicion) = member.suspicion.take() {
            for claim in &suspicion.claims {
                if let Some(open) = self.accused_by.get_mut(&claim.accuser) {
                    *open -= 1;
                    if *open == 0 {
                        self.accused_by.remove(&claim.accuser);
                    }
                }
            }
        }
        if self.members[target as usize].state == State::Suspect {
            self.set_state(ctx.now, target, State::Alive);
        }
    }

    /// The one place where what is thought of a host changes.
    fn set_state(&mut self, now: Duration, target: u32, state: State) {
        let member = &mut self.members[target as usize];
        if member.state != state || !state.live() {
            member.since = now;
        }
        member.state = state;
        self.version += 1;
        if let Some(transitions) = &mut self.transitions {
            transitions.push(Transition {
                host: member.record.host,
                stamp: member.record.stamp(),
                state,
            });
        }
    }

    fn drop_claims(&mut self, host: Short) {
        let stale: Vec<_> = self
            .news_of
            .range((host, Some(Short(0)))..=(host, Some(Short(u64::MAX))))
            .map(|(name, key)| (*name, *key))
            .collect();
        for (name, key) in stale {
            self.news_of.remove(&name);
            self.news.remove(&key);
        }
    }

    fn declare_down(&mut self, ctx: &mut Ctx<'_>, target: u32) {
        let claims = self.members[target as usize]
            .suspicion
            .as_ref()
            .map_or_else(Vec::new, |s| s.claims.clone());
        self.clear_suspicion(ctx, target);
        let member = &mut self.members[target as usize];
        member.verdict = claims;
        member.rtt = None;
        ctx.counters.deaths += 1;
        self.set_gone(ctx, target, State::Down);
    }

    fn set_gone(&mut self, ctx: &mut Ctx<'_>, target: u32, state: State) {
        let member = &mut self.members[target as usize];
        let was_live = member.state.live();
        member.forgotten = false;
        self.set_state(ctx.now, target, state);
        if was_live {
            self.live -= 1;
            if let Some(at) = self.order.iter().position(|&m| m == target) {
                self.order.remove(at);
                if at < self.cursor {
                    self.cursor -= 1;
                }
            }
            self.seen
                .push(Seen::Gone(self.members[target as usize].record.host));
        }
    }

    // -- news ----------------------------------------------------------------------------------------

    pub(crate) fn update(&mut self, ctx: &mut Ctx<'_>, from: &HostId, update: Update) {
        let hint = update.hint();
        let settled = match update {
            Update::Host(record) => self.learn(ctx, record),
            Update::Claim(claim) => self.accused(ctx, from, claim),
            Update::Hint(hint) => return self.hinted(ctx, from, hint),
        };
        // What was refused may be of use later, when more is known.
        if settled && !self.recent.contains_key(&hint) {
            self.remember(ctx.now, hint, None);
        }
    }

    /// The same for what `from` pushed along the tree. Whether it was all pushed by other neighbours before.
    pub(crate) fn pushed(&mut self, ctx: &mut Ctx<'_>, from: &HostId, updates: Vec<Update>) -> Vec<HostId> {
        let mut carriers = Vec::new();
        for update in updates {
            let hint = update.hint();
            match self.recent.get(&hint).map(|recent| recent.carrier) {
                Some(carrier) => carriers.extend(carrier),
                None => {
                    self.update(ctx, from, update);
                    if let Some(recent) = self.recent.get_mut(&hint) {
                        recent.carrier = Some(*from);
                    }
                }
            }
        }
        carriers
    }

    fn remember(&mut self, now: Duration, hint: Hint, update: Option<Update>) {
        self.wanted.remove(&hint);
        if self.recent.len() >= MAX_RECENT && !self.recent.contains_key(&hint) {
            // Hashes are in no order: any one goes.
            self.recent.pop_first();
        }
        self.recent.insert(
            hint,
            Recent {
                seen: now,
                update,
                carrier: None,
            },
        );
    }

    /// `from` has news; if it does not come along the tree soon, it is asked for.
    fn hinted(&mut self, ctx: &mut Ctx<'_>, from: &HostId, hint: Hint) {
        if self.recent.contains_key(&hint)
            || self.wanted.contains_key(&hint)
            || self.wanted.len() >= MAX_WANTED
            || !self.state(from).is_some_and(State::live)
        {
            return;
        }
        let at = ctx.now + self.config.patience;
        self.wanted.insert(hint, (at, *from));
        ctx.timers.set(at, Timer::Want);
    }

    fn ask_wanted(&mut self, ctx: &mut Ctx<'_>) {
        let due: Vec<(Hint, HostId)> = self
            .wanted
            .iter()
            .filter(|(_, (at, _))| *at <= ctx.now)
            .map(|(hint, (_, from))| (*hint, *from))
            .collect();
        let mut by_peer: BTreeMap<HostId, Vec<Hint>> = BTreeMap::new();
        for (hint, from) in due {
            self.wanted.remove(&hint);
            by_peer.entry(from).or_default().push(hint);
        }
        for (to, hints) in by_peer {
            self.asked.push(to);
            for part in hints.chunks(MAX_HINTS) {
                let mut frame = Builder::new(Kind::WantNews);
                for hint in part {
                    frame.push(hint);
                }
                ctx.out.push(Output::Stream {
                    to,
                    class: Class::Liveness,
                    bytes: frame.done().into(),
                });
            }
        }
    }

    /// The news that a peer was told of and has not.
    pub(crate) fn recent(&self, hint: &Hint) -> Option<&Update> {
        self.recent.get(hint)?.update.as_ref()
    }

    /// Takes a record in; whether that is settled, or may be tried again.
    fn learn(&mut self, ctx: &mut Ctx<'_>, record: HostRecord) -> bool {
        if record.host == self.me.host {
            self.learn_of_me(ctx, record);
            return true;
        }
        let known = self.index.get(&record.host).copied();
        if let Some(at) = known
            && record.stamp() <= self.members[at as usize].record.stamp()
        {
            return true;
        }
        if !record.verify(&self.collective, &*self.crypto) {
            ctx.counters.reject(Reject::Signature);
            return false;
        }
        let at = match known {
            Some(at) => at,
            None => {
                if self.index.len() >= self.config.max_hosts && !self.evict() {
                    ctx.counters.reject(Reject::TooManyHosts);
                    return false;
                }
                let member = Member {
                    record: record.clone(),
                    state: State::Left,
                    since: ctx.now,
                    suspicion: None,
                    verdict: Vec::new(),
                    rtt: None,
                    told: None,
                    corrected: None,
                    forgotten: true,
                    datagram: SAFE_DATAGRAM,
                };
                let at = match self.free.pop() {
                    Some(at) => {
                        self.members[at as usize] = member;
                        at
                    }
                    None => {
                        self.members.push(member);
                        self.members.len() as u32 - 1
                    }
                };
                self.index.insert(record.host, at);
                at
            }
        };
        self.clear_suspicion(ctx, at);
        let member = &mut self.members[at as usize];
        let (host, epoch, left) = (record.host, record.epoch, record.left);
        let new_epoch = epoch != member.record.epoch;
        let was_live = member.state.live();
        member.record = record.clone();
        member.verdict.clear();
        if new_epoch {
            member.rtt = None;
        }
        if left {
            self.set_gone(ctx, at, State::Left);
        } else {
            self.set_state(ctx.now, at, State::Alive);
            if !was_live {
                self.live += 1;
                // A random place keeps the probe order of different hosts apart.
                let place = ctx.rng.below(self.order.len() as u32 + 1) as usize;
                self.order.insert(place, at);
                if place < self.cursor {
                    self.cursor += 1;
                }
            }
            if !was_live || new_epoch {
                self.seen.push(Seen::Up(host, epoch));
            }
        }
        self.announce(ctx, Update::Host(record));
        true
    }

    fn learn_of_me(&mut self, ctx: &mut Ctx<'_>, record: HostRecord) {
        let mine = record.instance == self.me.instance;
        if record.stamp() < self.me.stamp() || (record.stamp() == self.me.stamp() && mine) || self.me.left {
            return;
        }
        if !record.verify(&self.collective, &*self.crypto) {
            ctx.counters.reject(Reject::Signature);
            return;
        }
        ctx.counters.own_key_seen += 1;
        if !self.established {
            // An earlier start whose counter was lost. If it still runs, it will see this and stop.
            self.raise_epoch(ctx, record.epoch);
        } else if (record.epoch, record.instance) > (self.me.epoch, self.me.instance) {
            ctx.out
                .push(Output::Stop(StopReason::KeyInUse { epoch: record.epoch }));
        } else if record.incarnation >= self.me.incarnation {
            self.me.incarnation = record.incarnation.saturating_add(1);
            self.sign_me(ctx);
        }
    }

    fn raise_epoch(&mut self, ctx: &mut Ctx<'_>, above: u32) {
        let Some(epoch) = above.checked_add(1) else {
            ctx.out.push(Output::Stop(StopReason::EpochsUsedUp));
            return;
        };
        self.me.epoch = epoch;
        self.me.incarnation = 0;
        // Written before anything that carries it is sent.
        ctx.out.push(Output::Persist { epoch });
        self.sign_me(ctx);
        self.seen.push(Seen::Up(self.me.host, epoch));
        // At once: a start that ends within a gossip round must not be forgotten, or the next would take its epoch.
        let mut told = Vec::with_capacity(self.config.fanout);
        self.pick_others(ctx.rng, &mut told);
        let me = [Update::Host(self.me.clone())];
        for host in told {
            self.datagram(ctx, host, Probe::Gossip, &me);
        }
    }

    fn sign_me(&mut self, ctx: &mut Ctx<'_>) {
        self.signed = ctx.now;
        self.me = self.me.clone().signed(&self.collective, &*self.crypto);
        self.version += 1;
        self.announce(ctx, Update::Host(self.me.clone()));
    }

    /// Takes a claim in; whether that is settled, or may be tried again.
    fn accused(&mut self, ctx: &mut Ctx<'_>, from: &HostId, claim: Claim) -> bool {
        let stamp = (claim.epoch, claim.incarnation);
        let me = self.me.host;
        let Some(accuser) = self.short(claim.accuser).map(|record| record.host) else {
            return false;
        };
        if claim.target == me.short() {
            if stamp > self.me.stamp() {
                ctx.counters.reject(Reject::FutureStamp);
                return false;
            } else if stamp == self.me.stamp() && accuser != me {
                if !claim.verify(&self.collective, &*self.crypto, &me, &accuser) {
                    ctx.counters.reject(Reject::Signature);
                    return false;
                }
                ctx.counters.refutations += 1;
                self.health = (self.health + 1).min(self.config.worst_health);
                self.me.incarnation += 1;
                self.sign_me(ctx);
            } else if stamp < self.me.stamp() {
                self.correct(ctx, from);
            }
            return true;
        }
        if claim.accuser == claim.target || accuser == me {
            return true;
        }
        let Some(record) = self.short(claim.target) else {
            return false;
        };
        let host = record.host;
        let Some(&target) = self.index.get(&host) else {
            return false;
        };
        let member = &self.members[target as usize];
        if !member.state.live() || stamp < member.record.stamp() {
            return true;
        }
        if stamp > member.record.stamp() {
            ctx.counters.reject(Reject::FutureStamp);
            return false;
        }
        if let Some(suspicion) = &member.suspicion
            && (suspicion.claims.len() > CONFIRMATIONS
                || suspicion
                    .claims
                    .iter()
                    .any(|known| known.accuser == claim.accuser))
        {
            return true;
        }
        // Whoever is dead to this host, or unknown, has no say; nor has one who accuses everybody.
        if !self.state(&accuser).is_some_and(State::live) {
            ctx.counters.reject(Reject::Accuser);
            return false;
        }
        let cap = (f64::from(self.live as u32 + 1).sqrt().ceil() as u32).max(4);
        if self
            .accused_by
            .get(&claim.accuser)
            .is_some_and(|&open| open >= cap)
        {
            ctx.counters.reject(Reject::TooManyClaims);
            return false;
        }
        if !claim.verify(&self.collective, &*self.crypto, &host, &accuser) {
            ctx.counters.reject(Reject::Signature);
            return false;
        }
        self.suspect(ctx, target, claim, false);
        true
    }

    /// Whoever takes this host for dead at an earlier stamp has missed the answer, behind a partition that has ended: it
    /// hears again, once a second at most. A connection from before may still be open, so that no hello tells it.
    fn correct(&mut self, ctx: &mut Ctx<'_>, from: &HostId) {
        if ctx.now < self.signed + ANSWER_SPREADS {
            return;
        }
        let Some(&at) = self.index.get(from) else { return };
        let member = &mut self.members[at as usize];
        if member
            .corrected
            .is_none_or(|last| ctx.now >= last + Duration::from_secs(1))
        {
            member.corrected = Some(ctx.now);
            let me = [Update::Host(self.me.clone())];
            self.datagram(ctx, *from, Probe::Gossip, &me);
        }
    }

    // -- input ---------------------------------------------------------------------------------------

    pub(crate) fn heard(&mut self, ctx: &mut Ctx<'_>, from: &HostId) {
        // A host that is dead here and talks: tell it, so that it can refute. Once a second at most.
        let Some(&at) = self.index.get(from) else { return };
        let member = &mut self.members[at as usize];
        if member.state == State::Down
            && member
                .told
                .is_none_or(|told| ctx.now >= told + Duration::from_secs(1))
        {
            member.told = Some(ctx.now);
            let mut verdict = member.verdict.clone();
            if verdict.is_empty() {
                verdict.push(Claim::by(
                    &*self.crypto,
                    &self.collective,
                    from,
                    member.record.stamp(),
                ));
            }
            let updates: Vec<Update> = verdict.into_iter().take(1).map(Update::Claim).collect();
            self.datagram(ctx, *from, Probe::Gossip, &updates);
        }
    }

    pub(crate) fn probe_in(&mut self, ctx: &mut Ctx<'_>, from: &HostId, probe: Probe) {
        match probe {
            Probe::Gossip => {}
            Probe::Ping(number) => self.datagram(ctx, *from, Probe::Ack(number), &[]),
            Probe::Ack(number) => self.acked(ctx, from, number, false),
            Probe::Nack(number) => {
                if let Some(ping) = self.pings.get_mut(&number) {
                    ping.nacks = (ping.nacks + 1).min(ping.helpers);
                }
            }
            Probe::PingReq(number, host) => {
                let Some(&target) = self.index.get(&host) else {
                    return;
                };
                if self.members[target as usize].state == State::Down {
                    // The asker has missed the claims.
                    let verdict = self.verdict(&host);
                    self.datagram(ctx, *from, Probe::Gossip, &verdict);
                    return;
                }
                let of_asker = self.relays.values().filter(|relay| relay.asker == *from).count();
                if self.relays.len() >= MAX_RELAYS
                    || of_asker >= MAX_RELAYS_OF_ONE
                    || !self.members[target as usize].state.live()
                {
                    return;
                }
                self.number = self.number.wrapping_add(1);
                let own = self.number;
                self.relays.insert(
                    own,
                    Relay {
                        asker: *from,
                        number,
                        target,
                        answered: false,
                    },
                );
                let wait = self.config.indirect.mul_f64(0.7);
                ctx.timers.set(ctx.now + wait, Timer::Relay(own));
                self.datagram(ctx, host, Probe::Ping(own), &[]);
            }
        }
    }

    pub(crate) fn set_budget(&mut self, host: &HostId, bytes: usize) {
        if let Some(&at) = self.index.get(host) {
            self.members[at as usize].datagram = bytes.clamp(256, crate::wire::MAX_FRAME);
        }
    }

    /// The own addresses changed: everybody is told under a higher incarnation.
    pub(crate) fn readdress(
        &mut self,
        ctx: &mut Ctx<'_>,
        address: core::net::SocketAddr,
        other: Option<core::net::SocketAddr>,
    ) {
        if (self.me.address, self.me.other) != (address, other) {
            (self.me.address, self.me.other) = (address, other);
            self.me.incarnation += 1;
            self.sign_me(ctx);
        }
    }

    pub(crate) fn leave(&mut self, ctx: &mut Ctx<'_>) {
        if self.me.left {
            return;
        }
        self.me.left = true;
        self.me.incarnation += 1;
        self.sign_me(ctx);
        let frame: Arc<[u8]> = Builder::new(Kind::Updates)
            .item(&Update::Host(self.me.clone()))
            .done()
            .into();
        let mut told = Vec::new();
        for _ in 0..8 {
            if let Some(to) = self.pick(ctx.rng, |host| !told.contains(host)) {
                told.push(to);
                ctx.out.push(Output::Stream {
                    to,
                    class: Class::Liveness,
                    bytes: Arc::clone(&frame),
                });
            }
        }
    }

    /// The machine was not run for `lag` when it should have been: what it did not hear proves nothing.
    pub(crate) fn lagged(&mut self, ctx: &mut Ctx<'_>, lag: Duration) {
        ctx.counters.lags += 1;
        let steps = (lag.as_millis() / 500).min(8) as u32;
        self.health = (self.health + steps.max(1)).min(self.config.worst_health);
        let abandoned: Vec<u32> = self.pings.keys().copied().collect();
        for number in abandoned {
            self.pings.remove(&number);
        }
        self.relays.clear();
        for member in &mut self.members {
            if let Some(suspicion) = &mut member.suspicion {
                suspicion.deciding = false;
            }
        }
        let min = self.suspicion_min();
        let grace = if lag >= min / 2 {
            ctx.now + min + self.config.period
        } else {
            ctx.now + lag
        };
        self.grace = self.grace.max(grace);
        let open: Vec<u32> = (0..self.members.len() as u32)
            .filter(|&at| self.members[at as usize].suspicion.is_some())
            .collect();
        for target in open {
            ctx.timers.set(self.grace, Timer::Suspicion(target));
        }
    }

    fn evict(&mut self) -> bool {
        let oldest = self
            .index
            .iter()
            .filter(|(_, at)| !self.members[**at as usize].state.live())
            .min_by_key(|(_, at)| self.members[**at as usize].since)
            .map(|(host, _)| *host);
        if let Some(host) = oldest {
            self.drop_member(&host);
        }
        oldest.is_some()
    }

    fn drop_member(&mut self, host: &HostId) {
        // A timer that still names the slot finds no suspicion there, or one with its own deadline.
        if let Some(at) = self.index.remove(host) {
            self.members[at as usize].state = State::Left;
            self.pings.retain(|_, ping| ping.target != at);
            self.relays.retain(|_, relay| relay.target != at);
            self.free.push(at);
            self.seen.push(Seen::Forget(*host));
            self.version += 1;
        }
    }

    fn sweep(&mut self, ctx: &mut Ctx<'_>) {
        ctx.timers.set(ctx.now + Duration::from_secs(10), Timer::Sweep);
        let mut forget = Vec::new();
        let mut expired = Vec::new();
        for (host, &at) in &self.index {
            let member = &mut self.members[at as usize];
            if member.state.live() {
                continue;
            }
            let age = ctx.now.saturating_sub(member.since);
            if age >= self.config.keep_dead {
                expired.push(*host);
            } else if age >= self.config.keep_rows && !member.forgotten {
                member.forgotten = true;
                forget.push(*host);
            }
        }
        self.seen.extend(forget.into_iter().map(Seen::Forget));
        for host in expired {
            self.drop_member(&host);
        }
        self.recent.retain(|_, recent| ctx.now < recent.seen + RECENT);
    }

    /// Tries a dead host; the caller adds its seeds. For ever: partitions end when they end.
    fn heal(&mut self, ctx: &mut Ctx<'_>) {
        let wait = if self.live == 0 {
            self.config.heal / 4
        } else {
            self.config.heal
        };
        ctx.timers
            .set(ctx.now + wait / 2 + jitter(ctx.rng, wait), Timer::Heal);
        let down: Vec<HostId> = self
            .index
            .values()
            .map(|&at| &self.members[at as usize])
            .filter(|m| m.state == State::Down)
            .map(|m| m.record.host)
            .collect();
        let tries = if self.live == 0 { 4 } else { 1 };
        for i in 0..tries.min(down.len()) {
            // A ping, not only a connection: one that was made before it died here may still be open. If it answers, it is
            // told that it is dead here.
            let host = down[(self.heal_cursor + i) % down.len()];
            self.number = self.number.wrapping_add(1);
            let frame = Builder::new(Kind::Probe).item(&Probe::Ping(self.number)).done();
            ctx.counters.datagrams_out += 1;
            ctx.counters.datagram_bytes_out += frame.len() as u64;
            ctx.out.push(Output::Datagram {
                to: host,
                bytes: frame,
            });
        }
        self.heal_cursor = self.heal_cursor.wrapping_add(tries);
    }

    pub(crate) fn timer(&mut self, ctx: &mut Ctx<'_>, timer: Timer) {
        match timer {
            Timer::Period => self.period(ctx),
            Timer::Direct(number) => self.direct_timeout(ctx, number),
            Timer::Final(number) => self.final_timeout(ctx, number),
            Timer::Relay(number) => self.relay_timeout(ctx, number),
            Timer::Suspicion(target) => self.suspicion_timeout(ctx, target),
            Timer::Verify(target) => self.verify(ctx, target),
            Timer::Gossip => self.gossip(ctx),
            Timer::Heal => self.heal(ctx),
            Timer::Sweep => self.sweep(ctx),
            Timer::Want => self.ask_wanted(ctx),
            Timer::Flush | Timer::Sync | Timer::Lazy | Timer::Missing => {}
        }
    }

    /// Checks that everything that is kept twice agrees with a rebuild; for tests.
    pub(crate) fn verify_state(&self) {
        let live = self
            .index
            .values()
            .filter(|at| self.members[**at as usize].state.live())
            .count();
        assert_eq!(live, self.live);
        assert_eq!(live, self.order.len());
        assert_eq!(self.news.len(), self.news_of.len());
        let mut open = BTreeMap::new();
        for &at in self.index.values() {
            let member = &self.members[at as usize];
            assert_eq!(member.suspicion.is_some(), member.state == State::Suspect);
            for claim in member.suspicion.iter().flat_map(|s| &s.claims) {
                *open.entry(claim.accuser).or_insert(0) += 1;
            }
        }
        assert_eq!(open, self.accused_by);
    }
}

fn update_len(update: &Update) -> usize {
    match update {
        Update::Host(record) => {
            32 + 5 + 5 + 10 + 19 + if record.other.is_some() { 20 } else { 1 } + 1 + 64 + 1
        }
        Update::Claim(_) => 8 + 5 + 5 + 8 + 64 + 1,
        Update::Hint(_) => HINT_LEN,
    }
}

const HINT_LEN: usize = 1 + 6;

fn is_farewell(update: &Update) -> bool {
    matches!(update, Update::Host(record) if record.left)
}

fn news_name(update: &Update) -> (Short, Option<Short>) {
    match update {
        Update::Host(record) => (record.host.short(), None),
        Update::Claim(claim) => (claim.target, Some(claim.accuser)),
        Update::Hint(_) => unreachable!("what is announced is known"),
    }
}

pub(crate) fn jitter(rng: &mut Rng, up_to: Duration) -> Duration {
    up_to.mul_f64(rng.unit())
}

fn shuffle(rng: &mut Rng, list: &mut [u32]) {
    for i in (1..list.len()).rev() {
        list.swap(i, rng.below(i as u32 + 1) as usize);
    }
}

/// The longest frame header and probe: what a datagram needs beside its updates.
const _: () = assert!(SAFE_DATAGRAM > FRAME_HEADER + 40 + 2 * 160);
