//! The event loop: feeds the node, carries out what it asks.
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pandacore_gossip::{
    Class, Command, Crypto, Ed25519, Hello, HostId, HostRecord, Input, Node, Output, Pushed, Sig, StopReason,
};
use pandacore_matching::Rng;
use quinn::{Connection, Endpoint, VarInt};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::peer::{self, Door, Event, Link, Outbox};
use crate::state::StateDir;
use crate::{Options, Order, Shared, Signal, StartError, lock, tls};

const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
/// After a failed dial a host is left alone for this long.
const DIAL_PAUSE: Duration = Duration::from_millis(700);
/// Dials at once.
const MAX_DIALS: usize = 64;
/// Datagrams that wait for a dial.
const MAX_WAITING: usize = 8;
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// How often a host without an address of its own looks whether it is reached elsewhere now.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a goodbye may take to be sent.
const GOODBYE_TIME: Duration = Duration::from_millis(400);

struct Peer {
    outbox: Arc<Outbox>,
    connection: Option<Connection>,
    epoch: u32,
    /// Where its newest record said that it is, when the connection was made.
    address: SocketAddr,
    waiting: Vec<Vec<u8>>,
    dialling: bool,
    retry: Option<Instant>,
    datagram: usize,
}

pub(crate) struct Driver {
    runtime: Runtime,
    endpoint: Endpoint,
    shared: Arc<Shared>,
    rng: Rng,
    orders: mpsc::UnboundedReceiver<Order>,
    door: Arc<Door>,
    ticket: Option<(u64, Sig)>,
    state: Option<StateDir>,
    first: Vec<Output>,
    seeds: BTreeMap<SocketAddr, Option<HostId>>,
    follows: Option<Route>,
}

/// From what the address follows under which others reach a host that is bound to none in particular. It may change.
#[derive(Clone, Copy)]
struct Route {
    bound: SocketAddr,
    /// The first seed.
    toward: Option<SocketAddr>,
}

type Prepared = (Driver, Arc<Shared>, mpsc::UnboundedSender<Order>, SocketAddr);

fn local_address(Route { bound, toward }: Route) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    // Where there is no seed, the way to the world: an address for documentation, which nobody has.
    let far = match bound {
        SocketAddr::V4(_) => (Ipv4Addr::new(192, 0, 2, 1), 9).into(),
        SocketAddr::V6(_) => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into(),
    };
    // Connecting a UDP socket sends nothing; it only picks the route.
    let local = |seed: SocketAddr| {
        let any: SocketAddr = if seed.is_ipv4() {
            ([0, 0, 0, 0], 0).into()
        } else {
            ([0u16; 8], 0).into()
        };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(seed).ok()?;
        socket.local_addr().ok()
    };
    let ip = local(toward.unwrap_or(far)).map_or_else(|| Ipv4Addr::LOCALHOST.into(), |address| address.ip());
    SocketAddr::new(ip, bound.port())
}

pub(crate) fn prepare(options: Options) -> Result<Prepared, StartError> {
    let setup = |error: &dyn std::fmt::Display| StartError::Setup(error.to_string());
    let state = options
        .state_dir
        .as_deref()
        .map(StateDir::open)
        .transpose()
        .map_err(StartError::State)?;
    let epoch = state
        .as_ref()
        .map_or(Ok(1), StateDir::next_epoch)
        .map_err(StartError::State)?;
    let mut seeds: Vec<SocketAddr> = options.seeds.iter().map(|seed| seed.address).collect();
    let pinned: BTreeMap<SocketAddr, Option<HostId>> = options
        .seeds
        .iter()
        .map(|seed| (seed.address, seed.host))
        .collect();
    // Known from an earlier start: tried, but without seeds nobody waits for them.
    let mut known = state.as_ref().map_or_else(Vec::new, StateDir::addresses);
    known.retain(|address| !pinned.contains_key(address));
    if !seeds.is_empty() {
        seeds.append(&mut known);
    }

    let (server, client) = tls::configs(&options.key).map_err(|error| setup(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| setup(&error))?;
    let socket = UdpSocket::bind(options.bind).map_err(|error| StartError::Bind(options.bind, error))?;
    let bound = socket.local_addr().map_err(|error| setup(&error))?;
    let entered = runtime.enter();
    let mut endpoint = Endpoint::new(
        quinn::EndpointConfig::default(),
        Some(server),
        socket,
        Arc::new(quinn::TokioRuntime),
    )
    .map_err(|error| setup(&error))?;
    endpoint.set_default_client_config(client);
    drop(entered);

    let mut entropy = [0; 16];
    tls::provider()
        .secure_random
        .fill(&mut entropy)
        .map_err(|_| setup(&"no entropy"))?;
    let word = |at: usize| u64::from_le_bytes(*entropy[at..].first_chunk().expect("16 bytes"));
    let mut rng = Rng::new(options.seed.unwrap_or_else(|| word(0)));
    let crypto: Arc<dyn Crypto> = Arc::new(Ed25519(options.key));
    let me = crypto.id();
    let route = Route {
        bound,
        toward: seeds.first().copied(),
    };
    let reached = options.advertise.unwrap_or_else(|| local_address(route));
    let record = HostRecord {
        host: me,
        epoch,
        incarnation: 0,
        instance: word(8),
        address: reached,
        other: None,
        left: false,
        sig: Sig([[0; 32]; 2]),
    };
    let mut first = Vec::new();
    let started = Instant::now();
    seeds.retain(|address| ![bound, reached].contains(address));
    known.retain(|address| ![bound, reached].contains(address));
    let mut node = Node::new(
        options.config,
        options.collective,
        crypto,
        record,
        seeds,
        Duration::ZERO,
        &mut rng,
        &mut first,
    );
    if !known.is_empty() {
        let _ = node.step(
            Duration::ZERO,
            &mut rng,
            Input::Command(Command::Seeds(known)),
            &mut first,
        );
    }
    let shared = Arc::new(Shared {
        node: Mutex::new(node),
        signal: Signal::new().map_err(|error| setup(&error))?,
        refused: Mutex::default(),
        stopped: Mutex::default(),
        traffic: Mutex::default(),
        started,
    });
    let (sender, orders) = mpsc::unbounded_channel();
    let door = Arc::new(Door {
        collective: options.collective,
        admission: options.admission,
        me,
    });
    let driver = Driver {
        runtime,
        endpoint,
        shared: Arc::clone(&shared),
        rng,
        orders,
        door,
        ticket: options.ticket,
        state,
        first,
        seeds: pinned,
        follows: (options.advertise.is_none() && bound.ip().is_unspecified()).then_some(route),
    };
    Ok((driver, shared, sender, bound))
}

impl Driver {
    pub(crate) fn run(self) {
        let Self {
            runtime,
            endpoint,
            shared,
            rng,
            orders,
            door,
            ticket,
            state,
            first,
            seeds,
            follows,
        } = self;
        let (urgent, urgent_in) = mpsc::channel(1024);
        let (bulk, bulk_in) = mpsc::channel(8);
        let mut work = Loop {
            endpoint,
            shared,
            rng,
            door,
            ticket,
            state,
            seeds,
            follows,
            urgent,
            bulk,
            peers: BTreeMap::new(),
            dials: 0,
            out: first,
            ended: false,
        };
        runtime.block_on(async {
            work.carry_out();
            work.go(orders, urgent_in, bulk_in).await;
        });
        // Tasks that still hold connections end with the runtime.
        runtime.shutdown_timeout(Duration::from_millis(100));
    }
}

struct Loop {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    rng: Rng,
    door: Arc<Door>,
    ticket: Option<(u64, Sig)>,
    state: Option<StateDir>,
    seeds: BTreeMap<SocketAddr, Option<HostId>>,
    follows: Option<Route>,
    urgent: mpsc::Sender<Event>,
    bulk: mpsc::Sender<Event>,
    peers: BTreeMap<HostId, Peer>,
    dials: usize,
    out: Vec<Output>,
    ended: bool,
}

impl Loop {
    async fn go(
        &mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        mut urgent: mpsc::Receiver<Event>,
        mut bulk: mpsc::Receiver<Event>,
    ) {
        let mut save = tokio::time::interval(SAVE_EVERY);
        save.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let accepting = self.endpoint.clone();
        while !self.ended {
            let wake = self.shared.node().wake();
            let timer = async {
                match wake {
                    Some(at) => tokio::time::sleep_until((self.shared.started + at).into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // News and answers go before timeouts, and bulk data comes last.
                biased;
                order = orders.recv() => match order {
                    Some(Order::Do(command)) => self.step(Input::Command(command)),
                    Some(Order::Leave) => {
                        self.leave(&mut urgent).await;
                        break;
                    }
                    Some(Order::Close) | None => {
                        self.endpoint.close(VarInt::from_u32(0), b"");
                        break;
                    }
                },
                Some(event) = urgent.recv() => self.event(event),
                () = timer => self.step(Input::Tick),
                Some(incoming) = accepting.accept() => self.accept(incoming),
                _ = save.tick() => self.save(),
                _ = look.tick(), if self.follows.is_some() => self.follow(),
                Some(event) = bulk.recv() => self.event(event),
            }
        }
        orders.close();
        self.save();
        self.shared.signal.raise(u64::MAX);
        let _ = tokio::time::timeout(Duration::from_millis(100), self.endpoint.wait_idle()).await;
    }

    async fn leave(&mut self, urgent: &mut mpsc::Receiver<Event>) {
        self.step(Input::Command(Command::Leave));
        let until = tokio::time::Instant::now() + GOODBYE_TIME;
        loop {
            let wake = self.shared.node().wake().unwrap_or(Duration::MAX);
            let tick =
                tokio::time::Instant::from_std(self.shared.started) + wake.min(Duration::from_secs(1 << 30));
            tokio::select! {
                Some(event) = urgent.recv() => self.event(event),
                () = tokio::time::sleep_until(tick) => self.step(Input::Tick),
                () = tokio::time::sleep_until(until) => break,
            }
        }
        self.endpoint.close(VarInt::from_u32(peer::GOODBYE), b"goodbye");
    }

    fn step(&mut self, input: Input<'_>) {
        let version = {
            let mut node = self.shared.node();
            node.set_wall(peer::wall());
            // Refusals are counted by the node; a bad frame is no reason to end.
            let _ = node.step(self.shared.now(), &mut self.rng, input, &mut self.out);
            node.version()
        };
        self.carry_out();
        self.shared.signal.raise(version);
    }

    /// Tells everybody when this machine is reached under another address than before.
    fn follow(&mut self) {
        let Some(route) = self.follows else { return };
        let address = local_address(route);
        // Without a way to anybody it has no address at all for the moment: that is no news.
        if address.ip().is_loopback() || address == self.shared.node().record().address {
            return;
        }
        // Half of the connections lead to where it was. New ones are made as soon as there is something to send.
        for peer in self.peers.values_mut() {
            if let Some(connection) = peer.connection.take() {
                connection.close(VarInt::from_u32(peer::REPLACED), b"this host has moved");
            }
            peer.outbox = Arc::default();
        }
        self.traffic();
        self.step(Input::Command(Command::Readdress(address, None)));
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Datagram(from, bytes) => self.step(Input::Datagram { from, bytes: &bytes }),
            Event::Frame(from, bytes) => self.step(Input::Stream { from, bytes: &bytes }),
            Event::Up(link, record) => self.up(*link, record),
            Event::Down(host, stable) => {
                let Some(peer) = self.peers.get_mut(&host) else {
                    return;
                };
                if peer.connection.as_ref().is_some_and(|c| c.stable_id() == stable) {
                    peer.connection = None;
                    // What is left in the queue was for a peer that may not be the same any more.
                    let dropped = lock(&peer.outbox.queue).dropped();
                    peer.outbox = Arc::default();
                    lock(&self.shared.traffic).dropped += dropped;
                }
                self.traffic();
            }
            Event::DialFailed(host, address, refused) => {
                self.dials -= 1;
                if let Some(peer) = host.and_then(|host| self.peers.get_mut(&host)) {
                    peer.dialling = false;
                    peer.waiting.clear();
                    peer.retry = Some(Instant::now() + DIAL_PAUSE);
                    if peer.connection.is_none() {
                        peer.outbox = Arc::default();
                    }
                }
                if let Some(refused) = refused
                    && self.seeds.contains_key(&address)
                {
                    *lock(&self.shared.refused) = Some(refused);
                    self.shared.signal.raise(self.shared.node().version() + 1);
                }
            }
        }
    }

    fn up(&mut self, link: Link, record: HostRecord) {
        if link.dialled.is_some() {
            self.dials -= 1;
        }
        let Link { host, connection, .. } = link;
        // A host that was killed and kept no counter says less in its hello than is known of its earlier start.
        let address = match self.shared.node().record_of(&host) {
            Some(known) if known.stamp() >= record.stamp() => known.address,
            _ => record.address,
        };
        let datagram = connection.max_datagram_size().unwrap_or(1_100);
        let peer = self.peers.entry(host).or_insert_with(|| Peer {
            outbox: Arc::default(),
            connection: None,
            epoch: record.epoch,
            address,
            waiting: Vec::new(),
            dialling: false,
            retry: None,
            datagram,
        });
        peer.dialling = false;
        peer.retry = None;
        if let Some(old) = &peer.connection {
            // A lower epoch is no earlier start: a host that was killed and kept no counter begins at 1, and the
            // connection of the killed process looks alive until its idle timeout. It learns its epoch from us.
            if record.epoch > peer.epoch {
                old.close(VarInt::from_u32(peer::REPLACED), b"this host started again");
            }
            // Of two connections, the newer is used to send; the older ends by itself.
            peer.outbox = Arc::default();
        }
        peer.epoch = record.epoch;
        peer.address = address;
        peer.datagram = datagram;
        peer.connection = Some(connection.clone());
        for bytes in std::mem::take(&mut peer.waiting) {
            let _ = connection.send_datagram(bytes.into());
        }
        let outbox = Arc::clone(&peer.outbox);
        tokio::spawn(peer::serve(
            host,
            connection,
            outbox,
            self.urgent.clone(),
            self.bulk.clone(),
        ));
        self.traffic();
        self.step(Input::PeerUp {
            record,
            datagram: datagram.min(1_178),
        });
    }

    fn hello(&self) -> Hello {
        let record = self.shared.node().record().clone();
        Hello {
            collective: self.door.collective,
            record,
            ticket: self.ticket,
        }
    }

    fn accept(&mut self, incoming: quinn::Incoming) {
        let (door, hello, events) = (Arc::clone(&self.door), self.hello(), self.urgent.clone());
        tokio::spawn(async move {
            let handshake = async { incoming.accept().ok()?.await.ok() };
            if let Ok(Some(connection)) = tokio::time::timeout(DIAL_TIMEOUT, handshake).await {
                peer::greet(connection, door, hello, None, events).await;
            }
        });
    }

    fn dial(&mut self, address: SocketAddr, host: Option<HostId>) {
        if self.dials >= MAX_DIALS {
            if let Some(peer) = host.and_then(|host| self.peers.get_mut(&host)) {
                peer.dialling = false;
            }
            return;
        }
        self.dials += 1;
        lock(&self.shared.traffic).dials += 1;
        let (door, hello, events) = (Arc::clone(&self.door), self.hello(), self.urgent.clone());
        let connecting = self.endpoint.connect(address, "pandacore");
        tokio::spawn(async move {
            let handshake = async { connecting.ok()?.await.ok() };
            match tokio::time::timeout(DIAL_TIMEOUT, handshake).await {
                Ok(Some(connection)) => {
                    peer::greet(connection, door, hello, Some((address, host)), events).await
                }
                _ => {
                    let _ = events.send(Event::DialFailed(host, address, None)).await;
                }
            }
        });
    }

    /// The peer, connected or being dialled; `None` when it cannot be reached now.
    fn reach(&mut self, host: HostId) -> Option<&mut Peer> {
        let record = self
            .shared
            .node()
            .record_of(&host)
            .map(|record| (record.address, record.other, record.epoch));
        let (address, other, epoch) = record?;
        let peer = self.peers.entry(host).or_insert_with(|| Peer {
            outbox: Arc::default(),
            connection: None,
            epoch,
            address,
            waiting: Vec::new(),
            dialling: false,
            retry: None,
            datagram: 1_100,
        });
        if peer.address != address {
            // It has moved: what was sent there would be lost until the connection ends by itself.
            peer.address = address;
            if let Some(old) = peer.connection.take() {
                old.close(VarInt::from_u32(peer::REPLACED), b"this host has moved");
                peer.outbox = Arc::default();
            }
        }
        if peer.connection.is_none() && !peer.dialling {
            if peer.retry.is_some_and(|at| Instant::now() < at) {
                return None;
            }
            peer.dialling = true;
            self.dial(address, Some(host));
            if let Some(other) = other {
                self.dial(other, Some(host));
            }
        }
        self.peers.get_mut(&host)
    }

    fn carry_out(&mut self) {
        let mut traffic = (0, 0);
        for output in std::mem::take(&mut self.out) {
            match output {
                Output::Datagram { to, bytes } => {
                    let Some(peer) = self.reach(to) else { continue };
                    let Some(connection) = &peer.connection else {
                        if peer.waiting.len() < MAX_WAITING {
                            peer.waiting.push(bytes);
                        }
                        continue;
                    };
                    let size = connection.max_datagram_size().unwrap_or(0);
                    if bytes.len() > size {
                        // The path shrank: this one goes on a stream, the next ones are built to fit.
                        lock(&peer.outbox.queue).push(Class::Liveness, bytes.into());
                        peer.outbox.urgent.notify_one();
                        traffic.1 += 1;
                    } else {
                        let _ = connection.send_datagram(bytes.into());
                    }
                    let size = size.min(1_178);
                    if size >= 256 && size != peer.datagram {
                        peer.datagram = size;
                        let _ = self.shared.node().step(
                            self.shared.now(),
                            &mut self.rng,
                            Input::Path {
                                peer: to,
                                datagram: size,
                            },
                            &mut self.out,
                        );
                    }
                }
                Output::Stream { to, class, bytes } => {
                    let Some(peer) = self.reach(to) else { continue };
                    if lock(&peer.outbox.queue).push(class, bytes) != Pushed::Queued {
                        traffic.0 += 1;
                    }
                    if class == Class::Bulk {
                        peer.outbox.bulk.notify_one();
                    } else {
                        peer.outbox.urgent.notify_one();
                    }
                }
                Output::Contact { address } => {
                    let host = self.seeds.get(&address).copied().flatten();
                    let busy = host
                        .and_then(|host| self.peers.get(&host))
                        .is_some_and(|peer| peer.dialling || peer.connection.is_some());
                    if !busy {
                        self.dial(address, host);
                    }
                }
                Output::Persist { epoch } => {
                    if let Some(state) = &self.state
                        && state.write_epoch(epoch).is_err()
                    {
                        *lock(&self.shared.stopped) = Some(StopReason::CounterNotWritten);
                        self.endpoint.close(VarInt::from_u32(0), b"");
                        self.ended = true;
                        return;
                    }
                }
                Output::Close { peer } => {
                    if let Some(peer) = self.peers.get(&peer)
                        && let Some(connection) = &peer.connection
                    {
                        connection.close(VarInt::from_u32(peer::VIOLATION), b"too many malformed frames");
                    }
                }
                Output::Stop(reason) => {
                    *lock(&self.shared.stopped) = Some(reason);
                    self.endpoint.close(VarInt::from_u32(0), b"");
                    self.ended = true;
                    return;
                }
            }
        }
        if traffic != (0, 0) {
            let mut shared = lock(&self.shared.traffic);
            shared.dropped += traffic.0;
            shared.rerouted += traffic.1;
        }
    }

    fn traffic(&self) {
        lock(&self.shared.traffic).connections =
            self.peers.values().filter(|p| p.connection.is_some()).count();
    }

    fn save(&self) {
        if let Some(state) = &self.state {
            let addresses = self.shared.node().known_addresses();
            // Only a convenience for the next start: the seeds still work without it.
            let _ = state.write_addresses(&addresses);
        }
        let (mut packets, mut bytes) = (0, 0);
        for connection in self.peers.values().filter_map(|peer| peer.connection.as_ref()) {
            let stats = connection.stats().udp_tx;
            packets += stats.datagrams;
            bytes += stats.bytes;
        }
        let mut traffic = lock(&self.shared.traffic);
        (traffic.udp_out, traffic.udp_bytes_out) = (packets, bytes);
    }
}
