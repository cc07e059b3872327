//! One host of a collective: membership, log, tree spread and repair, as one state machine.
use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pandacore_matching::Rng;

mod io;
mod log;
mod repair;
mod requests;
mod tree;

use crate::batch::{MAX_PAYLOAD, RecordKind};
use crate::host::{Crypto, HostId, HostRecord, Short, Sig};
use crate::queue::Class;
use crate::riblt::Cell;
use crate::store::{Digest, Replica};
use crate::swim::{Ctx, MAX_HINTS, MemberView, Seen, State, Swim, Timer, Timers, Transition, jitter};
use crate::wire::{
    Builder, CellsHead, Frame, Hint, Items, Kind, OfferBody, Place, Probe, RequestBody, RowsHead, Update,
    head, only,
};
pub use io::{
    Command, Config, Counters, Delta, Input, JoinState, Offer, Output, Reject, Request, StopReason,
};

/// Most items of one list on the wire.
const MAX_ITEMS: usize = 1 << 16;
/// Refused frames after which a peer's connection is closed.
const PATIENCE: u32 = 64;

struct Sync {
    /// What the peer has, and may still have to give; at most [`MAX_ITEMS`], whatever it claims.
    places: BTreeMap<Short, Place>,
    deadline: Duration,
    waiting: bool,
    /// The tree broke here: what comes is passed on, for the branches behind this host miss it too.
    graft: bool,
}

struct Heard {
    place: Place,
    from: HostId,
    at: Duration,
}

/// One host of a collective.
pub struct Node {
    config: Config,
    collective: [u8; 32],
    crypto: Arc<dyn Crypto>,
    swim: Swim,
    replica: Replica,
    timers: Timers,
    counters: Counters,
    wake: Option<Duration>,
    now: Duration,
    seeds: Vec<SocketAddr>,
    seed_cursor: usize,
    stopped: bool,
    // The own log.
    pending: BTreeMap<(RecordKind, [u8; 32]), Option<Vec<u8>>>,
    pending_bytes: usize,
    next: u64,
    flushing: bool,
    last_flush: Option<Duration>,
    // The tree.
    eager: BTreeSet<HostId>,
    lazy: BTreeSet<HostId>,
    picked: BTreeSet<HostId>,
    /// The neighbour that pushed the newest batch of a host; none when it was pulled.
    carriers: BTreeMap<HostId, HostId>,
    /// What neighbours are told of; whether also those that it should have been pushed to.
    news: BTreeMap<HostId, (Place, bool)>,
    heard: BTreeMap<HostId, Heard>,
    /// Of a host, the newest number that had to be pulled, from whom, and until when the tree may bring it.
    missed: BTreeMap<HostId, (u64, HostId, Duration)>,
    /// Batches and news that came, older ones for less, and when the last one did.
    came: f64,
    came_at: Duration,
    // Repair.
    syncs: BTreeMap<HostId, Sync>,
    repairing: BTreeMap<HostId, Duration>,
    decoding: BTreeMap<(HostId, Option<Short>), (u32, Vec<Cell>)>,
    join: JoinState,
    asked_in: Option<Duration>,
    target: Vec<Place>,
    // Requests.
    seen_requests: BTreeMap<(HostId, u64), Duration>,
    rates: BTreeMap<(HostId, u8), (Duration, u32)>,
    requests: VecDeque<Request>,
    request_arrivals: u64,
    waiting_offers: Vec<(Offer, u32, u64, Duration)>,
    offers: VecDeque<Offer>,
    offer_arrivals: u64,
    refused: BTreeMap<HostId, u32>,
}

impl Node {
    /// A node that starts with this record of itself; `record.epoch` must be written down already.
    ///
    /// `seeds` are addresses of hosts that may already be there. Without any, the node is complete at once.
    #[expect(clippy::too_many_arguments, reason = "what a host is made of")]
    pub fn new(
        config: Config,
        collective: [u8; 32],
        crypto: Arc<dyn Crypto>,
        record: HostRecord,
        seeds: Vec<SocketAddr>,
        now: Duration,
        rng: &mut Rng,
        out: &mut Vec<Output>,
    ) -> Self {
        let (host, epoch) = (record.host, record.epoch);
        let joining = !seeds.is_empty();
        let swim = Swim::new(
            config.swim.clone(),
            collective,
            Arc::clone(&crypto),
            record,
            !joining,
        );
        let mut replica = Replica::new(rng.next_u64());
        replica.begin(&host, epoch);
        replica.show(&host, true);
        let mut node = Self {
            config,
            collective,
            crypto,
            swim,
            replica,
            timers: Timers::default(),
            counters: Counters::default(),
            wake: None,
            now,
            seeds,
            seed_cursor: 0,
            stopped: false,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            next: 1,
            flushing: false,
            last_flush: None,
            eager: BTreeSet::new(),
            lazy: BTreeSet::new(),
            picked: BTreeSet::new(),
            carriers: BTreeMap::new(),
            news: BTreeMap::new(),
            heard: BTreeMap::new(),
            missed: BTreeMap::new(),
            came: 0.0,
            came_at: now,
            syncs: BTreeMap::new(),
            repairing: BTreeMap::new(),
            decoding: BTreeMap::new(),
            join: if joining {
                JoinState::Searching
            } else {
                JoinState::Complete
            },
            asked_in: None,
            target: Vec::new(),
            seen_requests: BTreeMap::new(),
            rates: BTreeMap::new(),
            requests: VecDeque::new(),
            request_arrivals: 0,
            waiting_offers: Vec::new(),
            offers: VecDeque::new(),
            offer_arrivals: 0,
            refused: BTreeMap::new(),
        };
        let mut ctx = Ctx {
            now,
            rng,
            out,
            timers: &mut node.timers,
            counters: &mut node.counters,
        };
        node.swim.start(&mut ctx);
        let first = if joining {
            Duration::from_millis(500)
        } else {
            node.config.sync
        };
        node.timers.set(now + jitter(rng, first), Timer::Sync);
        node.contact_seeds(node.seeds.len(), out);
        node.wake = node.timers.next();
        node
    }

    /// What this host says about itself.
    #[must_use]
    pub fn record(&self) -> &HostRecord {
        self.swim.me()
    }

    /// The collective.
    #[must_use]
    pub fn collective(&self) -> &[u8; 32] {
        &self.collective
    }

    /// All hosts it knows, this one not included, in order of their ids.
    pub fn members(&self) -> impl Iterator<Item = MemberView> + '_ {
        self.swim.members()
    }

    /// What it thinks of a host.
    #[must_use]
    pub fn state(&self, host: &HostId) -> Option<State> {
        if *host == self.swim.me().host {
            return Some(if self.swim.me().left {
                State::Left
            } else {
                State::Alive
            });
        }
        self.swim.state(host)
    }

    /// The newest record of a host.
    #[must_use]
    pub fn record_of(&self, host: &HostId) -> Option<&HostRecord> {
        self.swim.record(host)
    }

    /// The logs.
    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// Tells the node the wall clock, in seconds since 1970. It only judges how long announcements count, never order
    /// or membership; a node that is not told lets all count.
    pub fn set_wall(&mut self, seconds: u64) {
        self.replica.set_wall(seconds);
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Local health: 0 is healthy, 8 is worst.
    #[must_use]
    pub fn health(&self) -> u32 {
        self.swim.health()
    }

    /// How far its join has come.
    #[must_use]
    pub fn join_state(&self) -> JoinState {
        self.join
    }

    /// Grows with every change of membership, rows, requests or offers.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.swim.version
            + self.replica.version()
            + self.request_arrivals
            + self.offer_arrivals
            + u64::from(self.join == JoinState::Complete)
    }

    /// Grows with every change of membership.
    #[must_use]
    pub fn members_version(&self) -> u64 {
        self.swim.version
    }

    /// Rows that changed after a replica version.
    #[must_use]
    pub fn changes(&self, after: u64) -> Delta {
        let version = self.replica.version();
        match self.replica.changes(after) {
            Some(rows) => Delta {
                version,
                reset: false,
                rows,
            },
            None => Delta {
                version,
                reset: true,
                rows: Vec::new(),
            },
        }
    }

    /// Requests of others that arrived after the given arrival number and are still open.
    pub fn requests(&self, after: u64) -> impl Iterator<Item = &Request> {
        self.requests
            .iter()
            .filter(move |request| request.arrival > after && request.until > self.now)
    }

    /// Offers for a request of this host.
    pub fn offers(&self, number: u64) -> impl Iterator<Item = &Offer> {
        self.offers.iter().filter(move |offer| offer.number == number)
    }

    /// The number that the newest own record has or will have.
    #[must_use]
    pub fn last_seq(&self) -> u64 {
        self.next - 1 + self.pending.len() as u64
    }

    /// Bytes of own changes that wait for their batch.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of own changes that may wait.
    #[must_use]
    pub fn pending_limit(&self) -> usize {
        self.config.pending
    }

    /// Hash of what live hosts and their rows are; equal on equal replicas.
    #[must_use]
    pub fn root(&self) -> Digest {
        let mut root = Digest::default();
        for record in self.swim.live_records() {
            let position = self.replica.position(&record.host);
            let digest = self.replica.digest(&record.host);
            root.add(&Digest::of(&[
                b"pandacore/root/v1",
                &record.host.0,
                &record.epoch.to_le_bytes(),
                &record.incarnation.to_le_bytes(),
                &position.epoch.to_le_bytes(),
                &position.applied.to_le_bytes(),
                &digest.bytes(),
            ]));
        }
        root
    }

    /// Addresses of hosts that may be tried after a restart: live ones first, then dead ones.
    #[must_use]
    pub fn known_addresses(&self) -> Vec<SocketAddr> {
        let mut members: Vec<MemberView> = self.swim.members().filter(|m| m.state != State::Left).collect();
        members.sort_by_key(|member| (member.state, member.record.host));
        members.iter().map(|member| member.record.address).collect()
    }

    /// When the node wants to be run at the latest.
    #[must_use]
    pub fn wake(&self) -> Option<Duration> {
        if self.stopped { None } else { self.timers.next() }
    }

    /// Sizes that must stay bounded: pings, relays, news, timers, pulls, requests, places that are pulled, hints.
    #[must_use]
    pub fn sizes(&self) -> [usize; 8] {
        let (pings, relays, news, hints) = self.swim.open();
        [
            pings,
            relays,
            news,
            self.timers.len(),
            self.syncs.len(),
            self.seen_requests.len(),
            self.syncs.values().map(|sync| sync.places.len()).sum(),
            hints,
        ]
    }

    /// Neighbours that batches are pushed to, and neighbours that are only told.
    #[must_use]
    pub fn tree(&self) -> (usize, usize) {
        (self.eager.len(), self.lazy.len())
    }

    /// For checks: from now on every change of how a host is seen is kept, until it is taken.
    pub fn keep_transitions(&mut self) {
        self.swim.transitions = Some(Vec::new());
    }

    /// The changes of how hosts are seen since they were last taken, in order; none when they are not kept.
    pub fn take_transitions(&mut self) -> Vec<Transition> {
        self.swim
            .transitions
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Checks that everything that is kept twice agrees with a rebuild; for tests.
    ///
    /// # Panics
    /// When something differs.
    pub fn verify(&self) {
        self.swim.verify_state();
        for host in self.eager.union(&self.lazy) {
            assert!(
                self.swim.state(host).is_some_and(State::live),
                "neighbours are live"
            );
        }
        assert!(self.eager.is_disjoint(&self.lazy));
        let bytes: usize = self
            .pending
            .values()
            .map(|p| 64 + p.as_ref().map_or(0, Vec::len))
            .sum();
        assert_eq!(bytes, self.pending_bytes);
    }

    /// Feeds one event in and appends what the node wants done to `out`.
    ///
    /// `now` is time since any fixed moment and must not go backwards.
    ///
    /// # Errors
    /// [`Reject`] when what arrived was refused; the state is then unchanged, except that time has passed.
    pub fn step(
        &mut self,
        now: Duration,
        rng: &mut Rng,
        input: Input<'_>,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        if self.stopped {
            return Ok(());
        }
        let start = out.len();
        self.now = self.now.max(now);
        let now = self.now;
        if let Some(wake) = self.wake
            && now > wake + Duration::from_millis(500)
        {
            let mut ctx = Ctx {
                now,
                rng,
                out,
                timers: &mut self.timers,
                counters: &mut self.counters,
            };
            self.swim.lagged(&mut ctx, now - wake);
        }
        // What has arrived goes first: an answer that waited in the socket must not come after its timeout.
        let result = self.input(rng, input, out);
        // What is due within this step runs within it, but nothing can keep it here for ever.
        for _ in 0..10_000 {
            let Some((_, timer)) = self.timers.due(now) else {
                break;
            };
            self.timer(rng, timer, out);
        }
        self.react(rng, out);
        self.push_news(None, out);
        self.mend_tree(out);
        for output in &out[start..] {
            match output {
                Output::Stream { bytes, .. } => {
                    self.counters.frames_out += 1;
                    self.counters.frame_bytes_out += bytes.len() as u64;
                    *self.counters.frame_bytes_of.entry(bytes[1]).or_default() += bytes.len() as u64;
                }
                Output::Stop(_) => self.stopped = true,
                _ => {}
            }
        }
        self.wake = self.timers.next();
        if let Err(why) = result {
            self.counters.reject(why);
        }
        result
    }

    fn input(&mut self, rng: &mut Rng, input: Input<'_>, out: &mut Vec<Output>) -> Result<(), Reject> {
        let from = match &input {
            Input::Datagram { from, .. } | Input::Stream { from, .. } => Some(*from),
            _ => None,
        };
        let result = match input {
            Input::Tick => Ok(()),
            Input::Datagram { from, bytes } => self.datagram(rng, from, bytes, out),
            Input::Stream { from, bytes } => self.frame(rng, from, bytes, out),
            Input::PeerUp { record, datagram } => {
                self.peer_up(rng, record, datagram, out);
                Ok(())
            }
            Input::Path { peer, datagram } => {
                self.swim.set_budget(&peer, datagram);
                Ok(())
            }
            Input::Command(command) => {
                self.command(rng, command, out);
                Ok(())
            }
        };
        if let (Err(_), Some(from)) = (&result, from) {
            let refused = self.refused.entry(from).or_default();
            *refused += 1;
            if *refused >= PATIENCE {
                self.refused.remove(&from);
                out.push(Output::Close { peer: from });
            }
        }
        result
    }

    fn with_swim<R>(
        &mut self,
        rng: &mut Rng,
        out: &mut Vec<Output>,
        work: impl FnOnce(&mut Swim, &mut Ctx<'_>) -> R,
    ) -> R {
        let mut ctx = Ctx {
            now: self.now,
            rng,
            out,
            timers: &mut self.timers,
            counters: &mut self.counters,
        };
        work(&mut self.swim, &mut ctx)
    }

    fn peer_up(&mut self, rng: &mut Rng, record: HostRecord, datagram: usize, out: &mut Vec<Output>) {
        let peer = record.host;
        if peer == self.swim.me().host {
            return;
        }
        let was_live = self.swim.state(&peer).is_some_and(State::live);
        self.with_swim(rng, out, |swim, ctx| {
            swim.update(ctx, &peer, Update::Host(record));
            swim.set_budget(&peer, datagram);
            swim.heard(ctx, &peer);
        });
        self.react(rng, out);
        if self.join != JoinState::Complete {
            self.ask_in(peer, out);
        } else if !was_live {
            // A new host, or one from the other side of a partition.
            self.compare(peer, out);
        }
    }

    fn contact_seeds(&mut self, tries: usize, out: &mut Vec<Output>) {
        for _ in 0..tries.min(self.seeds.len()) {
            let address = self.seeds[self.seed_cursor % self.seeds.len()];
            self.seed_cursor += 1;
            let known = self
                .swim
                .live_records()
                .any(|r| r.address == address || r.other == Some(address));
            if !known {
                out.push(Output::Contact { address });
            }
        }
    }

    fn timer(&mut self, rng: &mut Rng, timer: Timer, out: &mut Vec<Output>) {
        match timer {
            Timer::Flush => self.flush(out),
            Timer::Sync => self.sync(rng, out),
            Timer::Lazy => self.tell_lazy(out),
            Timer::Missing => self.graft_missing(out),
            Timer::Heal => {
                self.with_swim(rng, out, |swim, ctx| swim.timer(ctx, timer));
                let tries = if self.swim.live() == 0 {
                    self.seeds.len()
                } else {
                    1
                };
                self.contact_seeds(tries, out);
            }
            other => self.with_swim(rng, out, |swim, ctx| swim.timer(ctx, other)),
        }
    }

    /// Brings rows and tree in line with membership.
    fn react(&mut self, rng: &mut Rng, out: &mut Vec<Output>) {
        if self.swim.seen.is_empty() {
            return;
        }
        for seen in std::mem::take(&mut self.swim.seen) {
            match seen {
                Seen::Up(host, epoch) if host == self.swim.me().host => self.restart_log(epoch),
                Seen::Up(host, epoch) => {
                    self.replica.begin(&host, epoch);
                    self.replica.show(&host, true);
                }
                Seen::Gone(host) => {
                    self.replica.show(&host, false);
                    self.lazy.remove(&host);
                    if self.eager.remove(&host) {
                        // Other branches that broke with it are mended where something is missed.
                        self.keep_branch(rng, None, out);
                    }
                    self.picked.remove(&host);
                    self.carriers.remove(&host);
                    self.syncs.remove(&host);
                    self.news.remove(&host);
                    self.heard.remove(&host);
                    self.missed.remove(&host);
                    self.heard.retain(|_, heard| heard.from != host);
                    self.decoding.retain(|(peer, _), _| *peer != host);
                    self.refused.remove(&host);
                }
                Seen::Forget(host) => self.replica.forget(&host),
            }
        }
        self.fill_neighbours(rng, out);
        self.check_join();
    }

    fn command(&mut self, rng: &mut Rng, command: Command, out: &mut Vec<Output>) {
        match command {
            Command::Publish(records) => {
                for (kind, key, payload) in records {
                    debug_assert!(payload.as_ref().is_none_or(|p| p.len() <= MAX_PAYLOAD));
                    self.enqueue(kind, key, payload);
                }
                // At once after a quiet time, else when the present collection ends.
                let earliest = self.last_flush.map_or(self.now, |last| last + self.config.flush);
                self.arm_flush(earliest.saturating_sub(self.now));
            }
            Command::Request {
                number,
                capabilities,
                patience_s,
            } => {
                let mut names = Vec::new();
                for name in &capabilities {
                    names = postcard::to_extend(name, names).expect("a vector takes any text");
                }
                let me = self.swim.me();
                let mut body = RequestBody {
                    origin: me.host,
                    epoch: me.epoch,
                    number,
                    patience_s,
                    capabilities: &names,
                    sig: Sig([[0; 32]; 2]),
                };
                body.sig = self.crypto.sign(&body.message(&self.collective));
                let frame: Arc<[u8]> = Builder::new(Kind::Request).item(&body).done().into();
                for to in self.eager.union(&self.lazy) {
                    out.push(Output::Stream {
                        to: *to,
                        class: Class::Team,
                        bytes: Arc::clone(&frame),
                    });
                }
            }
            Command::Offer {
                origin,
                number,
                agents,
            } => {
                while !self.pending.is_empty() {
                    self.flush(out);
                }
                let me = self.swim.me();
                let ids = agents.concat();
                let body = OfferBody {
                    number,
                    epoch: me.epoch,
                    applied: self.next - 1,
                    agents: &ids,
                };
                stream(out, origin, Class::Team, Builder::new(Kind::Offer).item(&body));
            }
            Command::Seeds(seeds) => {
                self.seeds = seeds;
                self.contact_seeds(self.seeds.len(), out);
            }
            Command::Readdress(address, other) => {
                self.with_swim(rng, out, |swim, ctx| swim.readdress(ctx, address, other));
            }
            Command::Leave => self.with_swim(rng, out, |swim, ctx| swim.leave(ctx)),
        }
    }

    fn datagram(
        &mut self,
        rng: &mut Rng,
        from: HostId,
        bytes: &[u8],
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let frame = Frame::read(bytes).map_err(|_| Reject::Malformed)?;
        if from == self.swim.me().host {
            return Err(Reject::Sender);
        }
        if frame.kind != Kind::Probe {
            return Err(Reject::Malformed);
        }
        let (probe, rest): (Probe, &[u8]) = head(frame.body).map_err(|_| Reject::Malformed)?;
        let updates = Items::<Update>::new(rest)
            .all(64)
            .map_err(|_| Reject::Malformed)?;
        self.with_swim(rng, out, |swim, ctx| {
            for update in updates {
                swim.update(ctx, &from, update);
            }
            swim.heard(ctx, &from);
            swim.probe_in(ctx, &from, probe);
        });
        Ok(())
    }

    fn frame(
        &mut self,
        rng: &mut Rng,
        from: HostId,
        bytes: &[u8],
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let frame = Frame::read(bytes).map_err(|_| Reject::Malformed)?;
        if from == self.swim.me().host {
            return Err(Reject::Sender);
        }
        let body = frame.body;
        if frame.kind != Kind::Request {
            // Requests are counted for who asks, not for who passes them on.
            self.within_rate(from, frame.kind)?;
        }
        self.with_swim(rng, out, |swim, ctx| swim.heard(ctx, &from));
        match frame.kind {
            Kind::Probe => return self.datagram(rng, from, bytes, out),
            Kind::StreamPing => {
                let number: u32 = only(body).map_err(|_| Reject::Malformed)?;
                stream(
                    out,
                    from,
                    Class::Liveness,
                    Builder::new(Kind::StreamAck).item(&number),
                );
            }
            Kind::StreamAck => {
                let number: u32 = only(body).map_err(|_| Reject::Malformed)?;
                self.with_swim(rng, out, |swim, ctx| swim.acked(ctx, &from, number, true));
            }
            Kind::Updates => {
                let updates = Items::<Update>::new(body)
                    .all(MAX_ITEMS)
                    .map_err(|_| Reject::Malformed)?;
                self.with_swim(rng, out, |swim, ctx| {
                    for update in updates {
                        swim.update(ctx, &from, update);
                    }
                });
                self.react(rng, out);
                self.pull_waiting(out);
                self.check_join();
            }
            Kind::News => {
                let updates = Items::<Update>::new(body)
                    .all(MAX_ITEMS)
                    .map_err(|_| Reject::Malformed)?;
                let (before, all) = (self.swim.fresh.len(), updates.len());
                let carriers = self.with_swim(rng, out, |swim, ctx| swim.pushed(ctx, &from, updates));
                self.react(rng, out);
                if self.swim.fresh.len() > before {
                    self.counters.news_new += 1;
                    self.something_came();
                    self.push_news(Some(from), out);
                } else {
                    self.counters.news_again += 1;
                    // As with batches: only what another branch brought shows that this one is not needed.
                    if all > 0
                        && carriers.len() == all
                        && carriers
                            .iter()
                            .all(|carrier| *carrier != from && self.eager.contains(carrier))
                    {
                        self.prune(rng, from, out);
                    }
                }
            }
            Kind::WantHosts => self.want_hosts(from, body, out)?,
            Kind::WantNews => {
                let hints = Items::<Hint>::new(body)
                    .all(MAX_HINTS)
                    .map_err(|_| Reject::Malformed)?;
                let mut frame = Builder::new(Kind::Updates);
                for update in hints.iter().filter_map(|hint| self.swim.recent(hint)) {
                    frame.push(update);
                }
                stream(out, from, Class::Liveness, frame);
            }
            kind @ (Kind::Batch | Kind::Passed) => self.pushed(rng, from, kind, body, out)?,
            Kind::Pulled => {
                self.pulled(from, body, out)?;
                self.settle_offers();
            }
            Kind::Have => self.have(from, body)?,
            Kind::Prune => {
                if self.eager.remove(&from) {
                    self.lazy.insert(from);
                    self.keep_branch(rng, Some(from), out);
                }
            }
            Kind::Graft => {
                if self.swim.state(&from).is_some_and(State::live) {
                    self.lazy.remove(&from);
                    self.eager.insert(from);
                }
            }
            Kind::Root => {
                if body.len() != 32 {
                    return Err(Reject::Malformed);
                }
                if body == self.root().bytes() {
                    self.counters.equal += 1;
                } else {
                    self.counters.unequal += 1;
                    if self.swim.live() >= self.config.coded_hosts {
                        self.send_cells(
                            from,
                            CellsHead {
                                host: None,
                                epoch: 0,
                                start: 0,
                            },
                            64,
                            out,
                        );
                    } else {
                        self.send_places(Kind::Vector, false, &self.places(), from, out);
                    }
                }
            }
            Kind::Vector => self.vector(from, body, true, out)?,
            Kind::VectorReply => self.vector(from, body, false, out)?,
            Kind::Pull => self.serve(from, body, out)?,
            Kind::PullEnd => {
                let _more: bool = only(body).map_err(|_| Reject::Malformed)?;
                let Some(sync) = self.syncs.get_mut(&from) else {
                    return Err(Reject::Unasked);
                };
                if !std::mem::take(&mut sync.waiting) {
                    // Of a pull that was given up meanwhile: looking through all places again would cost for nothing.
                    return Ok(());
                }
                self.pull(from, out);
                self.pull_waiting(out);
                self.check_join();
                self.settle_offers();
            }
            Kind::Digests => self.digests(from, body, out)?,
            Kind::Cells => self.cells(from, body, out)?,
            Kind::MoreCells => {
                let head: CellsHead = only(body).map_err(|_| Reject::Malformed)?;
                self.send_cells(from, head, (head.start as usize).max(32), out);
            }
            Kind::PullRows => {
                let (head, rest): (RowsHead, &[u8]) = head(body).map_err(|_| Reject::Malformed)?;
                let seqs = Items::<u64>::new(rest)
                    .all(MAX_ITEMS)
                    .map_err(|_| Reject::Malformed)?;
                if let Some(host) = self.swim.short(head.host).map(|record| record.host)
                    && self.replica.position(&host).epoch == head.epoch
                {
                    for bytes in self.replica.serve_rows(&host, &seqs) {
                        stream(out, from, Class::Bulk, Builder::new(Kind::Pulled).raw(&bytes));
                    }
                }
            }
            Kind::Request => self.request_in(from, body, out)?,
            Kind::Offer => self.offer_in(from, body, out)?,
            Kind::Hello => return Err(Reject::Malformed),
        }
        Ok(())
    }

    /// Counts a frame against what its kind may cost.
    fn within_rate(&mut self, from: HostId, kind: Kind) -> Result<(), Reject> {
        let Some(most) = most_in_span(kind) else {
            return Ok(());
        };
        let rate = self.rates.entry((from, kind as u8)).or_insert((self.now, 0));
        if self.now >= rate.0 + self.config.rate_span {
            *rate = (self.now, 0);
        }
        rate.1 += 1;
        if rate.1 > most {
            return Err(Reject::Rate);
        }
        Ok(())
    }
}

/// How many frames of a kind a peer may send in [`Config::rate_span`]: those that make this host work or answer at length.
/// An honest peer stays far below; a pull brings up to half a mebibyte, so that 2,000 of them do not hold up a join.
fn most_in_span(kind: Kind) -> Option<u32> {
    match kind {
        Kind::Pull => Some(2_000),
        Kind::Root | Kind::Vector | Kind::VectorReply => Some(500),
        Kind::Cells | Kind::MoreCells | Kind::PullRows | Kind::WantNews => Some(200),
        Kind::WantHosts | Kind::Digests | Kind::Request => Some(50),
        _ => None,
    }
}

/// Sends a frame on a stream.
fn stream(out: &mut Vec<Output>, to: HostId, class: Class, frame: Builder) {
    out.push(Output::Stream {
        to,
        class,
        bytes: frame.done().into(),
    });
}
