//! What goes into a node, what comes out of it, and how it is set up.
use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::batch::RecordKind;
use crate::host::{HostId, HostRecord};
use crate::queue::Class;
use crate::store::RowChange;
use crate::swim::SwimConfig;

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
    /// The counter of starts could not be written down: going on would allow an epoch to be used twice.
    CounterNotWritten,
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
    pub rows: Vec<RowChange>,
}
