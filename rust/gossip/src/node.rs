//! One host of a collective: membership, log, tree spread and repair, as one state machine.
use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pandacore_matching::Rng;

use crate::batch::{self, BatchError, BatchView, MAX_PAYLOAD, Record, RecordKind};
use crate::host::{Crypto, HostId, HostRecord, Short, Sig};
use crate::queue::Class;
use crate::riblt::{self, CELL, Cell};
use crate::store::{Applied, Digest, Replica};
use crate::swim::{
    Ctx, MAX_HINTS, MemberView, Seen, State, Swim, SwimConfig, Timer, Timers, Transition, jitter,
};
use crate::wire::{
    Builder, CellsHead, Frame, Hint, HostDigest, Items, Kind, OfferBody, Place, Probe, RequestBody, RowsHead,
    Update, head, only,
};

/// Most items of one list on the wire.
const MAX_ITEMS: usize = 1 << 16;
/// Most bytes of news or places in one frame.
const CHUNK: usize = 64 << 10;
/// Most news pushed at once.
const MAX_NEWS: usize = 64;
/// Most hosts asked for in one pull.
const PULL_HOSTS: usize = 1024;
/// Most own records signed in one step: a step must not hold up the answers to pings.
const FLUSH_RECORDS: usize = 10_000;
/// Batches of one flush that are still pushed; more are announced and pulled.
const PUSH_BATCHES: usize = 4;
/// Longest batch that a host which had to pull it pushes on, in bytes; of longer ones it only tells.
const PASSED_ON: usize = 32 << 10;
/// How long news is on its way to all, with what it takes for a cut to show.
const ON_ITS_WAY: Duration = Duration::from_millis(400);
/// How long the tree may still bring what had to be pulled, before it counts as broken here.
const SLOW: Duration = Duration::from_secs(2);
/// Requests and offers kept for the application, and requests remembered against repetition.
const INBOX: usize = 1024;
const SEEN_REQUESTS: usize = 10_000;
/// Refused frames after which a peer's connection is closed.
const PATIENCE: u32 = 64;
/// Cells of one reconciliation that is kept in memory.
const MAX_CELLS: usize = 1 << 16;

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// The failure detector.
    pub swim: SwimConfig,
    /// How long own changes are collected into one batch.
    pub flush: Duration,
    /// Time between comparisons with a random host.
    pub sync: Duration,
    /// Neighbours that this host chooses for the tree; others choose it as well.
    pub neighbours: usize,
    /// How long a batch that was heard of may take to arrive before it is pulled.
    pub graft: Duration,
    /// Bytes that one pull brings.
    pub pull: usize,
    /// How long a pull may take before another peer is asked.
    pub pull_timeout: Duration,
    /// Bytes of own changes that may wait for their batch.
    pub pending: usize,
    /// Hosts from which on places are reconciled by coded symbols instead of being listed.
    pub coded_hosts: usize,
    /// The span over which a peer's frames are counted against what their kind may cost; zero: without a limit.
    pub rate_span: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            swim: SwimConfig::default(),
            flush: Duration::from_millis(100),
            sync: Duration::from_secs(5),
            neighbours: 3,
            graft: Duration::from_millis(400),
            pull: 512 << 10,
            pull_timeout: Duration::from_secs(10),
            pending: 1 << 30,
            coded_hosts: 10_000,
            rate_span: Duration::from_secs(10),
        }
    }
}

/// What the caller tells the node.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// Time has passed.
    Tick,
    /// A datagram from an authenticated peer.
    Datagram {
        /// The peer.
        from: HostId,
        /// One frame.
        bytes: &'a [u8],
    },
    /// A frame on a reliable stream from an authenticated peer.
    Stream {
        /// The peer.
        from: HostId,
        /// One frame.
        bytes: &'a [u8],
    },
    /// A connection is up and both sides have said hello.
    PeerUp {
        /// What the peer says about itself.
        record: HostRecord,
        /// Largest datagram of the path, in bytes.
        datagram: usize,
    },
    /// The path takes datagrams of another size now.
    Path {
        /// The peer.
        peer: HostId,
        /// Largest datagram of the path, in bytes.
        datagram: usize,
    },
    /// Something the application wants.
    Command(Command),
}

/// What the application wants.
#[derive(Clone, Debug)]
pub enum Command {
    /// Put these records into the log: kind, key, payload; an empty payload of `None` takes the key back.
    Publish(Vec<(RecordKind, [u8; 32], Option<Vec<u8>>)>),
    /// Ask the whole collective.
    Request {
        /// The caller's number for it; not used before by this host.
        number: u64,
        /// What is wanted.
        capabilities: Vec<String>,
        /// How long the asker waits, in seconds.
        patience_s: u16,
    },
    /// Answer a request with agents that were published.
    Offer {
        /// Who asked.
        origin: HostId,
        /// The request's number.
        number: u64,
        /// The agents.
        agents: Vec<[u8; 32]>,
    },
    /// Try these addresses now and whenever nobody is there.
    Seeds(Vec<SocketAddr>),
    /// The host's addresses changed.
    Readdress(SocketAddr, Option<SocketAddr>),
    /// Say goodbye.
    Leave,
}

/// What the node asks the caller to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a datagram; it may be lost.
    Datagram {
        /// To whom.
        to: HostId,
        /// One frame.
        bytes: Vec<u8>,
    },
    /// Send a frame reliably, in order within a class.
    Stream {
        /// To whom.
        to: HostId,
        /// How urgent it is.
        class: Class,
        /// One frame.
        bytes: Arc<[u8]>,
    },
    /// Open a connection, if there is none to that address.
    Contact {
        /// Who should be there, if that is known.
        host: Option<HostId>,
        /// Where.
        address: SocketAddr,
    },
    /// Write this down before anything that follows is sent.
    Persist {
        /// The epoch in use.
        epoch: u32,
    },
    /// Close the connections to a peer that breaks the protocol.
    Close {
        /// The peer.
        peer: HostId,
    },
    /// The node must not go on.
    Stop(StopReason),
}

/// Why a node must not go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StopReason {
    /// Another process runs with the same key.
    KeyInUse {
        /// Its epoch.
        epoch: u32,
    },
    /// The counter of starts has reached its end.
    EpochsUsedUp,
}

/// Why something that arrived was refused. The node's state is unchanged in every case.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Reject {
    /// The bytes are no frame, or its body does not decode.
    Malformed,
    /// A signature is not its signer's, or belongs to another collective.
    Signature,
    /// A stamp that its owner has not reached.
    FutureStamp,
    /// The accuser is unknown or dead.
    Accuser,
    /// The accuser has too many open claims.
    TooManyClaims,
    /// As many hosts are known as may be.
    TooManyHosts,
    /// An answer that nobody asked for.
    Unasked,
    /// It comes from this host itself, or from one that is not known.
    Sender,
    /// A batch of an earlier start of its host.
    StaleEpoch,
    /// Too many requests.
    Rate,
}

/// What was counted since the node was made.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Datagrams handed out.
    pub datagrams_out: u64,
    /// Their bytes.
    pub datagram_bytes_out: u64,
    /// Of these, bytes of news.
    pub news_bytes_out: u64,
    /// Stream frames handed out.
    pub frames_out: u64,
    /// Their bytes.
    pub frame_bytes_out: u64,
    /// Their bytes by the number of their kind.
    pub frame_bytes_of: BTreeMap<u8, u64>,
    /// Probes begun.
    pub probes: u64,
    /// Probes that ended without an answer.
    pub failed_probes: u64,
    /// Pings over streams.
    pub stream_pings: u64,
    /// Suspicions that this host began to hold.
    pub suspicions: u64,
    /// Times this host answered an accusation.
    pub refutations: u64,
    /// Hosts this host found dead.
    pub deaths: u64,
    /// Times this host was not run when it should have been.
    pub lags: u64,
    /// Signed records of this host's key that it did not write.
    pub own_key_seen: u64,
    /// News pushed along the tree that was new to this host.
    pub news_new: u64,
    /// News pushed along the tree that was not.
    pub news_again: u64,
    /// Batches pushed to this host that were new.
    pub pushed_new: u64,
    /// Batches pushed to this host that it had.
    pub pushed_again: u64,
    /// Batches pulled because a neighbour had them and the tree had not brought them.
    pub grafted: u64,
    /// Batches pulled after a comparison.
    pub pulled: u64,
    /// Rows filled in by reconciliation.
    pub repaired: u64,
    /// Comparisons that found both sides equal.
    pub equal: u64,
    /// Comparisons that did not.
    pub unequal: u64,
    /// What was refused, by reason.
    pub rejects: BTreeMap<Reject, u64>,
}

impl Counters {
    pub(crate) fn reject(&mut self, why: Reject) {
        *self.rejects.entry(why).or_default() += 1;
    }
}

/// How far a join has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JoinState {
    /// No host has answered yet.
    Searching,
    /// Somebody answered; what it has is being fetched.
    Fetching,
    /// Everything that the host that let it in had then is here, or is known to be gone.
    Complete,
}

/// A question of some host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Request {
    /// Counts the requests that arrived here.
    pub arrival: u64,
    /// Who asks.
    pub origin: HostId,
    /// The asker's number for it.
    pub number: u64,
    /// What is wanted.
    pub capabilities: Vec<String>,
    /// When the asker gives up, in this node's time.
    pub until: Duration,
}

/// An answer to a request of this host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Offer {
    /// The number of the request.
    pub number: u64,
    /// Who offers.
    pub host: HostId,
    /// Its agents; they are in the replica.
    pub agents: Vec<[u8; 32]>,
}

/// What changed after a version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// The version that this leads to.
    pub version: u64,
    /// Whether so much changed that everything must be read.
    pub reset: bool,
    /// Rows that changed.
    pub rows: Vec<crate::store::RowChange>,
}

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

    // -- reading -------------------------------------------------------------------------------------

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

    // -- the step ------------------------------------------------------------------------------------

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

    fn ask_in(&mut self, peer: HostId, out: &mut Vec<Output>) {
        stream(out, peer, Class::Control, Builder::new(Kind::WantHosts));
    }

    fn compare(&mut self, peer: HostId, out: &mut Vec<Output>) {
        stream(
            out,
            peer,
            Class::Control,
            Builder::new(Kind::Root).raw(&self.root().bytes()),
        );
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
                out.push(Output::Contact { host: None, address });
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

    // -- the own log ---------------------------------------------------------------------------------

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

    fn enqueue(&mut self, kind: RecordKind, key: [u8; 32], payload: Option<Vec<u8>>) {
        let size = |payload: &Option<Vec<u8>>| 64 + payload.as_ref().map_or(0, Vec::len);
        self.pending_bytes += size(&payload);
        if let Some(old) = self.pending.insert((kind, key), payload) {
            self.pending_bytes -= size(&old);
        }
    }

    fn arm_flush(&mut self, wait: Duration) {
        if !self.flushing && !self.pending.is_empty() {
            self.flushing = true;
            self.timers.set(self.now + wait, Timer::Flush);
        }
    }

    fn restart_log(&mut self, epoch: u32) {
        let host = self.swim.me().host;
        for (_, kind, key, withdrawn, payload) in self.replica.oldest(&host, usize::MAX) {
            if !withdrawn && !self.pending.contains_key(&(kind, key)) {
                self.enqueue(kind, key, Some(payload));
            }
        }
        self.replica.begin(&host, epoch);
        self.next = 1;
        self.arm_flush(self.config.flush);
    }

    fn flush(&mut self, out: &mut Vec<Output>) {
        self.flushing = false;
        self.last_flush = Some(self.now);
        let (host, epoch) = (self.swim.me().host, self.swim.me().epoch);
        if self.swim.me().left {
            return;
        }
        let mut floor = self.replica.floor(&host);
        let mut moved_floor = floor;
        // The span of numbers stays within twice the live rows: old rows that are still true are written again.
        if self.next - floor > 2 * self.replica.rows_of(&host) as u64 + 1024 {
            for (seq, kind, key, withdrawn, payload) in self
                .replica
                .oldest(&host, 256 + self.pending.len().min(FLUSH_RECORDS))
            {
                if !withdrawn && !self.pending.contains_key(&(kind, key)) {
                    self.enqueue(kind, key, Some(payload));
                }
                moved_floor = seq + 1;
            }
            if self.replica.rows_of(&host) == 0 {
                moved_floor = self.next;
            }
            if self.pending.len() > FLUSH_RECORDS {
                // The moved rows may not all fit into this flush: the floor waits.
                moved_floor = floor;
            }
        }
        let mut frames = Vec::new();
        let mut taken = 0;
        while !self.pending.is_empty() && taken < FLUSH_RECORDS {
            let mut parts = Vec::new();
            let mut bytes = 0;
            while let Some(entry) = self.pending.first_entry() {
                let len = entry.get().as_ref().map_or(0, Vec::len);
                if !batch::fits(bytes, parts.len(), len) {
                    break;
                }
                bytes += 37 + len;
                self.pending_bytes -= 64 + len;
                let (key, payload) = entry.remove_entry();
                parts.push((key, payload));
            }
            taken += parts.len();
            if self.pending.is_empty() {
                floor = moved_floor.min(self.next + parts.len() as u64);
            }
            let records: Vec<Record<'_>> = parts
                .iter()
                .map(|((kind, key), payload)| Record {
                    kind: *kind,
                    withdrawn: payload.is_none(),
                    key: *key,
                    payload: payload.as_deref().unwrap_or(&[]),
                })
                .collect();
            let bytes = batch::sign(&*self.crypto, &self.collective, epoch, self.next, floor, &records);
            let view = BatchView::read(&bytes).expect("written here");
            let leaves: Vec<_> = records.iter().map(Record::leaf).collect();
            let applied = self.replica.apply(&view, &leaves, false);
            debug_assert_eq!(applied, Applied::Advanced);
            self.next += records.len() as u64;
            frames.push(bytes);
        }
        if frames.is_empty() {
            return;
        }
        let place = self.place(&host);
        if frames.len() <= PUSH_BATCHES {
            for bytes in &frames {
                self.push(Kind::Batch, bytes, None, out);
            }
            self.note(host, place, false);
        } else {
            // A bulk load: everybody fetches it at its own speed.
            let frame: Arc<[u8]> = Builder::new(Kind::Have).item(&place).done().into();
            for to in self.eager.union(&self.lazy) {
                out.push(Output::Stream {
                    to: *to,
                    class: Class::Control,
                    bytes: Arc::clone(&frame),
                });
            }
        }
        self.arm_flush(Duration::from_millis(5));
    }

    fn place(&self, host: &HostId) -> Place {
        let position = self.replica.position(host);
        let (epoch, incarnation) = self
            .swim
            .record(host)
            .map_or((position.epoch, 0), HostRecord::stamp);
        Place {
            host: host.short(),
            epoch,
            incarnation,
            applied: if position.epoch == epoch {
                position.applied
            } else {
                0
            },
        }
    }

    // -- the tree ------------------------------------------------------------------------------------

    fn push(&mut self, kind: Kind, bytes: &[u8], from: Option<HostId>, out: &mut Vec<Output>) {
        let frame: Arc<[u8]> = Builder::new(kind).raw(bytes).done().into();
        for to in self.eager.iter().filter(|to| Some(**to) != from) {
            out.push(Output::Stream {
                to: *to,
                class: Class::Bulk,
                bytes: Arc::clone(&frame),
            });
        }
    }

    /// How much of what came lately is still on its way to others.
    fn on_its_way(&self) -> f64 {
        let passed = self.now.saturating_sub(self.came_at);
        self.came * (-passed.as_secs_f64() / ON_ITS_WAY.as_secs_f64()).exp()
    }

    fn something_came(&mut self) {
        self.came = self.on_its_way() + 1.0;
        self.came_at = self.now;
    }

    /// Cuts the branch to a neighbour that brings what another one has brought, with a chance that falls with the
    /// number of pieces on their way: each of them may meet itself at another place of the same circle, and one cut is
    /// enough for it. A second one would leave a part without a branch.
    fn prune(&mut self, rng: &mut Rng, from: HostId, out: &mut Vec<Output>) {
        if rng.unit() * (1.0 + self.on_its_way()) >= 1.0 {
            return;
        }
        if self.eager.remove(&from) {
            self.lazy.insert(from);
        }
        stream(out, from, Class::Control, Builder::new(Kind::Prune));
    }

    /// A host that no neighbour pushes to any more asks one of them to go on: neighbours may have cut a branch each,
    /// for different batches, at the same time. Better not the one that has just cut it.
    fn keep_branch(&mut self, rng: &mut Rng, cut: Option<HostId>, out: &mut Vec<Output>) {
        if !self.eager.is_empty() || self.lazy.is_empty() {
            return;
        }
        let start = rng.below(self.lazy.len() as u32) as usize;
        let mut others = self.lazy.iter().cycle().skip(start).take(self.lazy.len());
        let Some(&other) = others.find(|other| Some(**other) != cut).or(cut.as_ref()) else {
            return;
        };
        self.lazy.remove(&other);
        self.eager.insert(other);
        stream(out, other, Class::Control, Builder::new(Kind::Graft));
    }

    /// Passes news of hosts on along the tree.
    fn push_news(&mut self, from: Option<HostId>, out: &mut Vec<Output>) {
        if self.swim.fresh.is_empty() {
            return;
        }
        let mut frame = Builder::new(Kind::News);
        // A flood of news has its own ways: lists that are asked for, and gossip.
        for update in self.swim.fresh.drain(..).take(MAX_NEWS) {
            frame.push(&update);
        }
        let frame: Arc<[u8]> = frame.done().into();
        for to in self.eager.iter().filter(|to| Some(**to) != from) {
            out.push(Output::Stream {
                to: *to,
                class: Class::Liveness,
                bytes: Arc::clone(&frame),
            });
        }
    }

    /// Neighbours that had to be asked for news push from now on.
    fn mend_tree(&mut self, out: &mut Vec<Output>) {
        for peer in std::mem::take(&mut self.swim.asked) {
            if self.lazy.remove(&peer) && self.eager.insert(peer) {
                stream(out, peer, Class::Control, Builder::new(Kind::Graft));
            }
        }
        if self.swim.lazy.len() != self.lazy.len() || !self.swim.lazy.iter().eq(&self.lazy) {
            self.swim.lazy = self.lazy.iter().copied().collect();
        }
    }

    fn note(&mut self, host: HostId, place: Place, all: bool) {
        if self.news.is_empty() {
            self.timers.set(self.now + self.config.graft / 2, Timer::Lazy);
        }
        let noted = self.news.entry(host).or_insert((place, false));
        *noted = (place, noted.1 | all);
    }

    fn tell_lazy(&mut self, out: &mut Vec<Output>) {
        let news = std::mem::take(&mut self.news);
        let places = || news.values().take(MAX_ITEMS / 16);
        let some: Vec<&Place> = places().filter(|(_, all)| *all).map(|(place, _)| place).collect();
        let all: Vec<&Place> = places().map(|(place, _)| place).collect();
        for (to, told) in [(&self.lazy, all), (&self.eager, some)] {
            if told.is_empty() {
                continue;
            }
            let mut frame = Builder::new(Kind::Have);
            for place in told {
                frame.push(place);
            }
            let frame: Arc<[u8]> = frame.done().into();
            for to in to {
                out.push(Output::Stream {
                    to: *to,
                    class: Class::Control,
                    bytes: Arc::clone(&frame),
                });
            }
        }
    }

    fn graft_missing(&mut self, out: &mut Vec<Output>) {
        let due: Vec<HostId> = self
            .heard
            .iter()
            .filter(|(_, heard)| self.now >= heard.at + self.config.graft)
            .map(|(host, _)| *host)
            .collect();
        let mut by_peer: BTreeMap<HostId, Vec<Place>> = BTreeMap::new();
        for host in due {
            let Some(heard) = self.heard.remove(&host) else {
                continue;
            };
            let mine = self.place(&host);
            if (heard.place.epoch, heard.place.applied) > (mine.epoch, mine.applied) {
                by_peer.entry(heard.from).or_default().push(heard.place);
                self.missed
                    .entry(host)
                    .or_insert((heard.place.applied, heard.from, self.now + SLOW));
            }
        }
        for (peer, places) in by_peer {
            self.begin_sync(peer, places, true, out);
        }
        self.graft_broken(out);
        let heard = self.heard.values().map(|heard| heard.at + self.config.graft);
        let missed = self.missed.values().map(|(_, _, until)| *until);
        if let Some(next) = heard.chain(missed).min() {
            self.timers.set(next, Timer::Missing);
        }
    }

    /// What was pulled and did not come along the tree either shows that it is broken: one who had it pushes from now
    /// on. Late is not broken: on a lossy path a push may take longer than a pull.
    fn graft_broken(&mut self, out: &mut Vec<Output>) {
        let broken = self.missed.values().find(|(_, _, until)| *until <= self.now);
        let Some(&(_, peer, _)) = broken else { return };
        self.missed.retain(|_, (_, _, until)| *until > self.now);
        if self.swim.state(&peer).is_some_and(State::live) && self.eager.insert(peer) {
            self.lazy.remove(&peer);
            stream(out, peer, Class::Control, Builder::new(Kind::Graft));
        }
    }

    /// The tree brought what had to be pulled.
    fn not_missed(&mut self, host: &HostId, last: u64) {
        if self.missed.get(host).is_some_and(|(seq, _, _)| *seq <= last) {
            self.missed.remove(host);
        }
    }

    fn fill_neighbours(&mut self, rng: &mut Rng, out: &mut Vec<Output>) {
        if self.join != JoinState::Complete {
            // It fetches for itself; and of the first hosts that it hears of, which are the seeds, all others think as
            // well: they would be everybody's neighbours.
            return;
        }
        let want = self.config.neighbours.min(self.swim.live());
        while self.picked.len() < want {
            let accept = |host: &HostId| !self.picked.contains(host);
            let Some(host) = self.swim.pick(rng, accept) else {
                break;
            };
            self.picked.insert(host);
            if !self.lazy.contains(&host) && self.eager.insert(host) {
                stream(out, host, Class::Control, Builder::new(Kind::Graft));
            }
        }
    }

    // -- repair --------------------------------------------------------------------------------------

    fn sync(&mut self, rng: &mut Rng, out: &mut Vec<Output>) {
        let wait = if self.join == JoinState::Complete {
            self.config.sync
        } else {
            Duration::from_secs(1)
        };
        self.timers
            .set(self.now + wait / 2 + jitter(rng, wait), Timer::Sync);
        let now = self.now;
        self.syncs.retain(|_, sync| sync.deadline > now);
        self.repairing.retain(|_, until| *until > now);
        self.seen_requests.retain(|_, until| *until > now);
        let span = self.config.rate_span;
        self.rates.retain(|_, (start, _)| *start + span > now);
        self.requests.retain(|request| request.until > now);
        self.waiting_offers.retain(|(_, _, _, until)| *until > now);
        self.fill_neighbours(rng, out);
        let Some(peer) = self.swim.pick(rng, |_| true) else {
            return;
        };
        if self.join == JoinState::Complete {
            self.compare(peer, out);
        } else if self.syncs.is_empty() {
            self.ask_in(peer, out);
        }
    }

    fn places(&self) -> Vec<Place> {
        self.swim
            .live_records()
            .map(|record| self.place(&record.host))
            .collect()
    }

    fn send_places(&self, kind: Kind, partial: bool, places: &[Place], to: HostId, out: &mut Vec<Output>) {
        // Lists beyond one frame are sent as parts; only a whole list tells what is missing.
        let size = 4000;
        let partial = partial || places.len() > size;
        let mut chunks = places.chunks(size);
        let mut next = chunks.next().or(Some(&[]));
        while let Some(chunk) = next {
            let mut frame = Builder::new(kind).item(&partial);
            for place in chunk {
                frame.push(place);
            }
            stream(out, to, Class::Control, frame);
            next = chunks.next();
        }
    }

    fn begin_sync(&mut self, peer: HostId, places: Vec<Place>, graft: bool, out: &mut Vec<Output>) {
        let deadline = self.now + self.config.pull_timeout;
        let sync = self.syncs.entry(peer).or_insert(Sync {
            places: BTreeMap::new(),
            deadline,
            waiting: false,
            graft,
        });
        sync.graft |= graft;
        for place in places {
            if sync.places.len() >= MAX_ITEMS && !sync.places.contains_key(&place.host) {
                continue;
            }
            let known = sync.places.entry(place.host).or_insert(place);
            if (known.epoch, known.applied) < (place.epoch, place.applied) {
                *known = place;
            }
        }
        if !sync.waiting {
            self.pull(peer, out);
        }
    }

    /// Asks for the next piece of what `peer` has and this host has not.
    fn pull(&mut self, peer: HostId, out: &mut Vec<Output>) {
        let busy = self
            .syncs
            .iter()
            .filter(|(other, sync)| **other != peer && sync.waiting)
            .count();
        let Some(sync) = self.syncs.get(&peer) else { return };
        let mut unknown = false;
        let mut needs = Vec::new();
        for place in sync.places.values() {
            match self.swim.short(place.host) {
                None => unknown = true,
                Some(record) if record.epoch < place.epoch => unknown = true,
                Some(record) => {
                    let mine = self.place(&record.host);
                    let live = self.swim.state(&record.host).is_some_and(State::live);
                    if live && mine.epoch == place.epoch && mine.applied < place.applied {
                        needs.push(mine);
                    }
                }
            }
        }
        if needs.is_empty() {
            if !unknown {
                self.syncs.remove(&peer);
            }
            return;
        }
        if busy >= 2 {
            // Two at once; the others go on when one of them ends.
            return;
        }
        let mut frame = Builder::new(Kind::Pull);
        for place in needs.iter().take(PULL_HOSTS) {
            frame.push(place);
        }
        let deadline = self.now + self.config.pull_timeout;
        if let Some(sync) = self.syncs.get_mut(&peer) {
            sync.waiting = true;
            sync.deadline = deadline;
        }
        stream(out, peer, Class::Control, frame);
    }

    fn pull_waiting(&mut self, out: &mut Vec<Output>) {
        let idle: Vec<HostId> = self
            .syncs
            .iter()
            .filter(|(_, sync)| !sync.waiting)
            .map(|(peer, _)| *peer)
            .collect();
        for peer in idle {
            self.pull(peer, out);
        }
    }

    fn check_join(&mut self) {
        if self.join != JoinState::Fetching {
            return;
        }
        let done = self.target.iter().all(|place| match self.swim.short(place.host) {
            None => false,
            Some(record) => {
                let mine = self.place(&record.host);
                let me = record.host == self.swim.me().host;
                let live = me || self.swim.state(&record.host).is_some_and(State::live);
                me || !live || (mine.epoch, mine.applied) >= (place.epoch, place.applied)
            }
        });
        if done {
            self.join = JoinState::Complete;
            self.target = Vec::new();
            self.swim.establish();
        }
    }

    fn vector(
        &mut self,
        from: HostId,
        body: &[u8],
        answer: bool,
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let (partial, rest): (bool, &[u8]) = head(body).map_err(|_| Reject::Malformed)?;
        let places = Items::<Place>::new(rest)
            .all(MAX_ITEMS)
            .map_err(|_| Reject::Malformed)?;
        let mut want = Builder::new(Kind::WantHosts);
        let mut tell = Builder::new(Kind::Updates);
        let (mut wanted, mut telling, mut needs) = (0, 0, Vec::new());
        let mut newer = Vec::new();
        let mut listed = BTreeSet::new();
        for place in &places {
            listed.insert(place.host);
            let Some(record) = self.swim.short(place.host) else {
                want.push(&place.host);
                wanted += 1;
                continue;
            };
            let host = record.host;
            if (place.epoch, place.incarnation) > record.stamp() {
                want.push(&place.host);
                wanted += 1;
                continue;
            }
            if (place.epoch, place.incarnation) < record.stamp()
                || self.swim.state(&host).is_some_and(|state| state == State::Left)
            {
                tell.push(&Update::Host(record.clone()));
                telling += 1;
            } else {
                for update in self.swim.verdict(&host) {
                    tell.push(&update);
                    telling += 1;
                }
            }
            let mine = self.place(&host);
            let live = host == self.swim.me().host || self.swim.state(&host).is_some_and(State::live);
            if live && mine.epoch == place.epoch && mine.applied < place.applied {
                needs.push(*place);
            } else if live && (mine.epoch, mine.applied) > (place.epoch, place.applied) {
                newer.push(mine);
            }
        }
        if !partial {
            newer.extend(
                self.places()
                    .into_iter()
                    .filter(|place| !listed.contains(&place.host)),
            );
        }
        if wanted > 0 {
            stream(out, from, Class::Control, want);
        }
        if telling > 0 {
            stream(out, from, Class::Liveness, tell);
        }
        if self.join != JoinState::Complete && !answer {
            self.join = JoinState::Fetching;
            if partial {
                let room = MAX_ITEMS.saturating_sub(self.target.len());
                self.target.extend_from_slice(&places[..places.len().min(room)]);
            } else {
                self.target.clone_from(&places);
            }
        }
        let idle = wanted == 0 && telling == 0 && needs.is_empty() && newer.is_empty();
        if !needs.is_empty() || wanted > 0 {
            let all = if wanted > 0 { places } else { needs };
            self.begin_sync(from, all, false, out);
        }
        if answer && !newer.is_empty() {
            self.send_places(Kind::VectorReply, true, &newer, from, out);
        }
        if answer && idle && !partial {
            // The same places, another root: rows differ. Compare them host by host.
            let mut frame = Builder::new(Kind::Digests);
            let records: Vec<HostId> = self.swim.live_records().map(|record| record.host).collect();
            for host in records.into_iter().take(MAX_ITEMS / 2) {
                let mut digest = [0; 8];
                digest.copy_from_slice(&self.replica.digest(&host).bytes()[..8]);
                frame.push(&HostDigest {
                    host: host.short(),
                    digest,
                });
            }
            stream(out, from, Class::Control, frame);
        }
        self.check_join();
        Ok(())
    }

    fn digests(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
        let digests = Items::<HostDigest>::new(body)
            .all(MAX_ITEMS)
            .map_err(|_| Reject::Malformed)?;
        let mut started = 0;
        for entry in digests {
            let Some(host) = self.swim.short(entry.host).map(|record| record.host) else {
                continue;
            };
            if self.replica.digest(&host).bytes()[..8] != entry.digest && started < 4 {
                started += 1;
                self.repairing.insert(host, self.now + Duration::from_secs(30));
                let epoch = self.replica.position(&host).epoch;
                self.send_cells(
                    from,
                    CellsHead {
                        host: Some(entry.host),
                        epoch,
                        start: 0,
                    },
                    32,
                    out,
                );
            }
        }
        Ok(())
    }

    fn items(&self, scope: Option<Short>) -> Option<Vec<[u8; 16]>> {
        match scope {
            Some(short) => {
                let host = self.swim.short(short)?.host;
                Some(self.replica.items(&host))
            }
            None => Some(self.places().iter().map(place_item).collect()),
        }
    }

    fn send_cells(&self, to: HostId, head: CellsHead, count: usize, out: &mut Vec<Output>) {
        let Some(items) = self.items(head.host) else {
            return;
        };
        let start = head.start as usize;
        let count = count.min(CHUNK / CELL).min(MAX_CELLS.saturating_sub(start));
        if count == 0 {
            return;
        }
        let cells = riblt::encode(items, start + count);
        let mut frame = Builder::new(Kind::Cells).item(&head);
        for cell in &cells[start..] {
            frame = frame.raw(&cell.bytes());
        }
        stream(out, to, Class::Control, frame);
    }

    fn cells(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
        let (head, rest): (CellsHead, &[u8]) = head(body).map_err(|_| Reject::Malformed)?;
        let (chunks, tail) = rest.as_chunks::<CELL>();
        if !tail.is_empty() || chunks.is_empty() || chunks.len() > MAX_CELLS {
            return Err(Reject::Malformed);
        }
        let host = head
            .host
            .and_then(|short| self.swim.short(short))
            .map(|record| record.host);
        if let Some(host) = host {
            if self.replica.position(&host).epoch != head.epoch {
                return Ok(());
            }
            self.repairing.insert(host, self.now + Duration::from_secs(30));
        } else if head.host.is_some() {
            return Ok(());
        }
        let key = (from, head.host);
        if head.start == 0 {
            if self.decoding.len() >= 8 && !self.decoding.contains_key(&key) {
                self.decoding.pop_first();
            }
            self.decoding.insert(key, (head.epoch, Vec::new()));
        }
        let Some((epoch, got)) = self.decoding.get_mut(&key) else {
            return Err(Reject::Unasked);
        };
        if *epoch != head.epoch || got.len() != head.start as usize || got.len() + chunks.len() > MAX_CELLS {
            self.decoding.remove(&key);
            return Err(Reject::Unasked);
        }
        got.extend(chunks.iter().map(Cell::read));
        let got = got.clone();
        let ours = riblt::encode(self.items(head.host).unwrap_or_default(), got.len());
        let Some(difference) = riblt::decode(&got, &ours) else {
            let more = CellsHead {
                start: got.len() as u32,
                ..head
            };
            stream(
                out,
                from,
                Class::Control,
                Builder::new(Kind::MoreCells).item(&more),
            );
            return Ok(());
        };
        self.decoding.remove(&key);
        match (host, head.host) {
            (Some(host), Some(short)) => {
                let seq = |item: &[u8; 16]| u64::from_le_bytes(*item.first_chunk().expect("16 bytes"));
                let mut frame = Builder::new(Kind::PullRows).item(&RowsHead {
                    host: short,
                    epoch: head.epoch,
                });
                for item in &difference.theirs {
                    frame.push(&seq(item));
                }
                if !difference.theirs.is_empty() {
                    stream(out, from, Class::Control, frame);
                }
                let missing: Vec<u64> = difference.ours.iter().map(seq).collect();
                for bytes in self.replica.serve_rows(&host, &missing) {
                    stream(out, from, Class::Bulk, Builder::new(Kind::Pulled).raw(&bytes));
                }
            }
            _ => {
                // Places that differ, as they are here; unknown hosts as nothing.
                let mut shorts: BTreeSet<Short> = BTreeSet::new();
                for item in difference.theirs.iter().chain(&difference.ours) {
                    shorts.insert(Short(u64::from_le_bytes(*item.first_chunk().expect("16 bytes"))));
                }
                let places: Vec<Place> = shorts
                    .into_iter()
                    .map(|short| match self.swim.short(short) {
                        Some(record) => self.place(&record.host),
                        None => Place {
                            host: short,
                            epoch: 0,
                            incarnation: 0,
                            applied: 0,
                        },
                    })
                    .collect();
                self.send_places(Kind::Vector, true, &places, from, out);
            }
        }
        Ok(())
    }

    // -- what arrives --------------------------------------------------------------------------------

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

    fn want_hosts(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
        let shorts = Items::<Short>::new(body)
            .all(MAX_ITEMS)
            .map_err(|_| Reject::Malformed)?;
        let joiner = shorts.is_empty();
        let news: Vec<Update> = if joiner {
            self.swim.all_news().collect()
        } else {
            shorts
                .iter()
                .filter_map(|&short| self.swim.short(short))
                .cloned()
                .map(Update::Host)
                .collect()
        };
        let mut frame = Builder::new(Kind::Updates);
        for update in &news {
            frame.push(update);
            if frame.len() > CHUNK {
                stream(
                    out,
                    from,
                    Class::Liveness,
                    std::mem::replace(&mut frame, Builder::new(Kind::Updates)),
                );
            }
        }
        stream(out, from, Class::Liveness, frame);
        if joiner {
            self.send_places(Kind::VectorReply, false, &self.places(), from, out);
        }
        Ok(())
    }

    /// The batch, when it is of a live host in its present epoch and news; counted in either case.
    fn current<'a>(&self, body: &'a [u8]) -> Result<(BatchView<'a>, bool), Reject> {
        let view = BatchView::read(body).map_err(|_| Reject::Malformed)?;
        if view.host == self.swim.me().host {
            // Around a circle of neighbours.
            let own = view.epoch == self.swim.me().epoch && view.next() <= self.next;
            return if own {
                Ok((view, true))
            } else {
                Err(Reject::Sender)
            };
        }
        let Some(record) = self.swim.record(&view.host) else {
            return Err(Reject::Sender);
        };
        if view.epoch < record.epoch {
            return Err(Reject::StaleEpoch);
        }
        if view.epoch > record.epoch || !self.swim.state(&view.host).is_some_and(State::live) {
            return Err(Reject::Sender);
        }
        let position = self.replica.position(&view.host);
        let old = view.epoch == position.epoch && view.next() <= position.applied + 1;
        Ok((view, old))
    }

    fn pushed(
        &mut self,
        rng: &mut Rng,
        from: HostId,
        kind: Kind,
        body: &[u8],
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let (view, old) = self.current(body)?;
        let along = kind == Kind::Batch;
        if along {
            self.not_missed(&view.host, view.next() - 1);
        }
        if old {
            self.counters.pushed_again += 1;
            if !along {
                return Ok(());
            }
            // What was pulled says nothing about the tree: no branch may be cut for it.
            let carrier = self.carriers.get(&view.host);
            if view.host == self.swim.me().host
                || carrier.is_some_and(|carrier| *carrier != from && self.eager.contains(carrier))
            {
                self.prune(rng, from, out);
            }
            return Ok(());
        }
        let leaves = view
            .verify(&self.collective, &*self.crypto)
            .map_err(|error| match error {
                BatchError::Malformed => Reject::Malformed,
                BatchError::Signature => Reject::Signature,
            })?;
        match self.replica.apply(&view, &leaves, false) {
            Applied::Advanced => {
                self.counters.pushed_new += 1;
                self.something_came();
                if along {
                    self.carriers.insert(view.host, from);
                } else {
                    self.carriers.remove(&view.host);
                }
                if self.swim.state(&from).is_some_and(State::live) {
                    self.lazy.remove(&from);
                    self.eager.insert(from);
                }
                self.push(kind, body, Some(from), out);
                let place = self.place(&view.host);
                self.note(view.host, place, false);
                self.settle_offers();
            }
            Applied::Gap => {
                let mut place = self.place(&view.host);
                place.applied = view.next() - 1;
                self.begin_sync(from, vec![place], true, out);
            }
            Applied::Duplicate | Applied::Stale => {}
        }
        Ok(())
    }

    fn pulled(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
        let (view, old) = self.current(body)?;
        if old && !self.repairing.contains_key(&view.host) {
            return Ok(());
        }
        let leaves = view
            .verify(&self.collective, &*self.crypto)
            .map_err(|error| match error {
                BatchError::Malformed => Reject::Malformed,
                BatchError::Signature => Reject::Signature,
            })?;
        if old {
            self.counters.repaired += self.replica.repair(&view, &leaves) as u64;
        } else if self.replica.apply(&view, &leaves, true) == Applied::Advanced {
            let graft = self.syncs.get(&from).is_some_and(|sync| sync.graft);
            if graft {
                self.counters.grafted += 1;
            } else {
                self.counters.pulled += 1;
            }
            self.something_came();
            self.carriers.remove(&view.host);
            let small = body.len() <= PASSED_ON;
            if graft && small {
                self.push(Kind::Passed, body, Some(from), out);
            }
            let place = self.place(&view.host);
            self.note(view.host, place, graft && !small);
        }
        Ok(())
    }

    fn have(&mut self, from: HostId, body: &[u8]) -> Result<(), Reject> {
        let places = Items::<Place>::new(body)
            .all(MAX_ITEMS)
            .map_err(|_| Reject::Malformed)?;
        for place in places {
            let Some(host) = self.swim.short(place.host).map(|record| record.host) else {
                continue;
            };
            let mine = self.place(&host);
            if host == self.swim.me().host || (place.epoch, place.applied) <= (mine.epoch, mine.applied) {
                continue;
            }
            match self.heard.get_mut(&host) {
                // The first who told is asked first; a newer number only raises what is asked for.
                Some(heard) if (heard.place.epoch, heard.place.applied) < (place.epoch, place.applied) => {
                    heard.place = place;
                    heard.from = from;
                }
                Some(_) => {}
                None => {
                    if self.heard.is_empty() {
                        self.timers.set(self.now + self.config.graft, Timer::Missing);
                    }
                    self.heard.insert(
                        host,
                        Heard {
                            place,
                            from,
                            at: self.now,
                        },
                    );
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
        let places = Items::<Place>::new(body)
            .all(PULL_HOSTS)
            .map_err(|_| Reject::Malformed)?;
        let mut budget = self.config.pull;
        let mut more = false;
        for place in places {
            let Some(host) = self.swim.short(place.host).map(|record| record.host) else {
                continue;
            };
            let position = self.replica.position(&host);
            if position.epoch != place.epoch {
                continue;
            }
            if budget == 0 {
                more = true;
                break;
            }
            let (batches, rest) = self.replica.serve(&host, place.applied, budget);
            more |= rest;
            for bytes in batches {
                budget = budget.saturating_sub(bytes.len());
                stream(out, from, Class::Bulk, Builder::new(Kind::Pulled).raw(&bytes));
            }
        }
        // In the same class as the batches: it must not overtake them.
        stream(out, from, Class::Bulk, Builder::new(Kind::PullEnd).item(&more));
        Ok(())
    }

    // -- requests ------------------------------------------------------------------------------------

    fn request_in(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
        let request: RequestBody<'_> = only(body).map_err(|_| Reject::Malformed)?;
        let key = (request.origin, request.number);
        if request.origin == self.swim.me().host || self.seen_requests.contains_key(&key) {
            return Ok(());
        }
        let epoch = self.swim.record(&request.origin).map(|record| record.epoch);
        if epoch != Some(request.epoch) || !self.swim.state(&request.origin).is_some_and(State::live) {
            return Err(Reject::Sender);
        }
        self.within_rate(request.origin, Kind::Request)?;
        let capabilities: Vec<String> = Items::<&str>::new(request.capabilities)
            .all(crate::announcement::MAX_CAPABILITIES)
            .map_err(|_| Reject::Malformed)?
            .into_iter()
            .map(str::to_owned)
            .collect();
        if !self
            .crypto
            .verify(&request.origin, &request.message(&self.collective), &request.sig)
        {
            return Err(Reject::Signature);
        }
        let patience = Duration::from_secs(u64::from(request.patience_s).min(600));
        if self.seen_requests.len() >= SEEN_REQUESTS {
            self.seen_requests.pop_first();
        }
        self.seen_requests
            .insert(key, self.now + patience + Duration::from_secs(60));
        self.request_arrivals += 1;
        if self.requests.len() == INBOX {
            self.requests.pop_front();
        }
        self.requests.push_back(Request {
            arrival: self.request_arrivals,
            origin: request.origin,
            number: request.number,
            capabilities,
            until: self.now + patience,
        });
        let frame: Arc<[u8]> = Builder::new(Kind::Request).raw(body).done().into();
        for to in self.eager.union(&self.lazy).filter(|to| **to != from) {
            out.push(Output::Stream {
                to: *to,
                class: Class::Team,
                bytes: Arc::clone(&frame),
            });
        }
        Ok(())
    }

    fn offer_in(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
        let offer: OfferBody<'_> = only(body).map_err(|_| Reject::Malformed)?;
        let (ids, tail) = offer.agents.as_chunks::<32>();
        if !tail.is_empty() || ids.is_empty() || ids.len() > INBOX || self.waiting_offers.len() >= INBOX {
            return Err(Reject::Malformed);
        }
        let got = Offer {
            number: offer.number,
            host: from,
            agents: ids.to_vec(),
        };
        let until = self.now + Duration::from_secs(60);
        self.waiting_offers.push((got, offer.epoch, offer.applied, until));
        let mut place = self.place(&from);
        place.applied = offer.applied;
        if place.epoch == offer.epoch && self.place(&from).applied < offer.applied {
            self.begin_sync(from, vec![place], false, out);
        }
        self.settle_offers();
        Ok(())
    }

    /// Offers count once their agents are here, verified like every other announcement.
    fn settle_offers(&mut self) {
        if self.waiting_offers.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting_offers);
        waiting.retain(|(offer, epoch, applied, _)| {
            let position = self.replica.position(&offer.host);
            let here = (position.epoch, position.applied) >= (*epoch, *applied);
            if here {
                if self.offers.len() == INBOX {
                    self.offers.pop_front();
                }
                self.offers.push_back(offer.clone());
                self.offer_arrivals += 1;
            }
            !here
        });
        self.waiting_offers = waiting;
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

fn place_item(place: &Place) -> [u8; 16] {
    let mut item = [0; 16];
    item[..8].copy_from_slice(&place.host.0.to_le_bytes());
    let state = Digest::of(&[
        &place.epoch.to_le_bytes(),
        &place.incarnation.to_le_bytes(),
        &place.applied.to_le_bytes(),
    ]);
    item[8..].copy_from_slice(&state.bytes()[..8]);
    item
}

fn stream(out: &mut Vec<Output>, to: HostId, class: Class, frame: Builder) {
    out.push(Output::Stream {
        to,
        class,
        bytes: frame.done().into(),
    });
}
