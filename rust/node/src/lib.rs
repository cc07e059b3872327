//! The collective plane on real sockets: one UDP port, QUIC with pinned Ed25519 host keys, a thread of its own.
//!
//! [`start`] binds the port and returns a [`Handle`]; everything else happens on the node's thread, which never takes
//! the Python interpreter's lock. All protocol decisions are those of `pandacore_gossip`.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where time and sockets enter"
)]

mod certificate;
mod driver;
mod feed;
pub mod measure;
mod peer;
mod state;
mod tls;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pandacore_gossip::{Command, Config, HostId, Node, Sig, StopReason};
use pandacore_trust::{AgentId, KeyPair};
use tokio::sync::mpsc;

pub use certificate::{TEAM_NAME, TeamIdentity, anchor, team_identity};
pub use feed::{Fed, Feed};
pub use state::StateError;

/// A host to start with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seed {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whose key it must have, if that is known.
    pub host: Option<HostId>,
}

/// How a node is started.
pub struct Options {
    /// The host's key.
    pub key: KeyPair,
    /// The collective.
    pub collective: [u8; 32],
    /// Where to listen; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Under which address others dial it; default: the bound one, or if that is none in particular, the one from
    /// which this machine reaches its first seed, or the world.
    pub advertise: Option<SocketAddr>,
    /// Hosts that may already be there.
    pub seeds: Vec<Seed>,
    /// Where the start counter and known addresses are kept. Without it a restart learns its counter from others.
    pub state_dir: Option<PathBuf>,
    /// The key that signs join tickets; hosts without a ticket are then refused.
    pub admission: Option<AgentId>,
    /// This host's join ticket: last second of validity, and the admission key's signature.
    pub ticket: Option<(u64, Sig)>,
    /// Seed of random choices; default: the operating system's entropy.
    pub seed: Option<u64>,
    /// Protocol parameters.
    pub config: Config,
}

/// Why a node could not be started.
#[derive(Debug)]
pub enum StartError {
    /// The port cannot be bound.
    Bind(SocketAddr, std::io::Error),
    /// The state folder cannot be used.
    State(StateError),
    /// TLS, the runtime or the thread could not be set up.
    Setup(String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::State(error) => error.fmt(f),
            Self::Setup(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for StartError {}

/// Why a host that was dialled refused, or was refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refused {
    /// It belongs to another collective.
    Collective {
        /// Where it listens.
        address: SocketAddr,
        /// This host's collective.
        ours: [u8; 32],
        /// The other one's.
        theirs: [u8; 32],
    },
    /// It wants a join ticket, and this host has none that is valid.
    Ticket(SocketAddr),
    /// Another key answers at that address.
    Key {
        /// Where it listens.
        address: SocketAddr,
        /// The key that was expected.
        expected: HostId,
        /// The key that answered.
        found: HostId,
    },
    /// It speaks another version, or breaks the protocol.
    Protocol(SocketAddr, String),
}

/// What was counted on the sockets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Traffic {
    /// UDP datagrams sent, handshakes and acknowledgements included.
    pub udp_out: u64,
    /// Their bytes.
    pub udp_bytes_out: u64,
    /// Connections that are open.
    pub connections: usize,
    /// Frames dropped because a peer's queue was full.
    pub dropped: u64,
    /// Datagrams that were too long for their path and went on a stream instead.
    pub rerouted: u64,
    /// Dials begun.
    pub dials: u64,
}

pub(crate) struct Shared {
    pub(crate) node: Mutex<Node>,
    pub(crate) signal: Signal,
    pub(crate) refused: Mutex<Option<Refused>>,
    pub(crate) stopped: Mutex<Option<StopReason>>,
    pub(crate) traffic: Mutex<Traffic>,
    pub(crate) started: Instant,
}

impl Shared {
    pub(crate) fn node(&self) -> MutexGuard<'_, Node> {
        lock(&self.node)
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells waiting threads and event loops that the version grew.
pub(crate) struct Signal {
    version: Mutex<u64>,
    grown: std::sync::Condvar,
    /// One byte waits here from the first change after the last drain.
    write: std::os::unix::net::UnixStream,
    read: std::os::unix::net::UnixStream,
}

impl Signal {
    fn new() -> std::io::Result<Self> {
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self {
            version: Mutex::new(0),
            grown: std::sync::Condvar::new(),
            write,
            read,
        })
    }

    pub(crate) fn raise(&self, version: u64) {
        let mut known = lock(&self.version);
        if version > *known {
            *known = version;
            self.grown.notify_all();
            // Full means that the reader has not drained yet: it will see the version then.
            let _ = std::io::Write::write(&mut &self.write, &[1]);
        }
    }
}

pub(crate) enum Order {
    Do(Command),
    /// Say goodbye, wait for it to be sent, end.
    Leave,
    /// End at once, without a goodbye.
    Close,
}

/// A running node.
pub struct Handle {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Mutex<Option<JoinHandle<()>>>,
    bound: SocketAddr,
    pid: u32,
}

/// Binds the port, raises the start counter and starts the node's thread.
///
/// # Errors
/// [`StartError`]; nothing runs then.
pub fn start(options: Options) -> Result<Handle, StartError> {
    let (driver, shared, orders, bound) = driver::prepare(options)?;
    let thread = std::thread::Builder::new()
        .name("pandacore-node".into())
        .spawn(move || driver.run())
        .map_err(|error| StartError::Setup(format!("cannot start a thread: {error}")))?;
    Ok(Handle {
        shared,
        orders,
        thread: Mutex::new(Some(thread)),
        bound,
        pid: std::process::id(),
    })
}

impl Handle {
    /// Where others reach it; it follows the machine when that gets another address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.read(|node| node.record().address)
    }

    /// Where it listens.
    #[must_use]
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Whether this process started it. A fork has a copy of the handle, but not of the thread.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The process that started it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Reads the node's state. The node waits meanwhile: keep it short.
    pub fn read<R>(&self, work: impl FnOnce(&Node) -> R) -> R {
        work(&self.shared.node())
    }

    /// Hands a command to the node. Returns false when it has ended.
    pub fn command(&self, command: Command) -> bool {
        self.orders.send(Order::Do(command)).is_ok()
    }

    /// The newest version.
    #[must_use]
    pub fn version(&self) -> u64 {
        *lock(&self.shared.signal.version)
    }

    /// Waits until the version is above `after`, the time is over, or the node has ended; returns the version.
    #[must_use]
    pub fn wait(&self, after: u64, timeout: Duration) -> u64 {
        let signal = &self.shared.signal;
        let deadline = Instant::now() + timeout;
        let mut version = lock(&signal.version);
        while *version <= after {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            version = signal
                .grown
                .wait_timeout(version, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *version
    }

    /// A descriptor that is readable when the version grew since [`Self::drain`].
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.shared.signal.read)
    }

    /// Empties the descriptor.
    pub fn drain(&self) {
        let mut bytes = [0; 64];
        while matches!(std::io::Read::read(&mut &self.shared.signal.read, &mut bytes), Ok(n) if n > 0) {}
    }

    /// The last refusal by a host that was dialled as a seed.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        lock(&self.shared.refused).clone()
    }

    /// Why the node stopped by itself, if it did.
    #[must_use]
    pub fn stopped(&self) -> Option<StopReason> {
        *lock(&self.shared.stopped)
    }

    /// Whether the node's thread has ended, or is about to: it has stopped itself.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.orders.is_closed() || self.stopped().is_some()
    }

    /// What was counted on the sockets.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        *lock(&self.shared.traffic)
    }

    /// Says goodbye and ends; waits until the thread is gone.
    pub fn leave(&self) {
        self.end(Order::Leave);
    }

    /// Ends at once, as if the process had been killed; waits until the thread is gone.
    pub fn close(&self) {
        self.end(Order::Close);
    }

    fn end(&self, order: Order) {
        if !self.is_own() {
            return;
        }
        let _ = self.orders.send(order);
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        self.shared.signal.raise(u64::MAX);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_own() {
            self.close();
        } else if let Some(thread) = lock(&self.thread).take() {
            // The thread does not exist in a fork: there is nothing to join or detach.
            std::mem::forget(thread);
        }
    }
}

/// What an admission key signs to let `host` in.
#[must_use]
pub fn ticket_message(collective: &[u8; 32], host: &HostId, not_after: u64) -> Vec<u8> {
    let mut bytes = b"pandacore/ticket/v1".to_vec();
    bytes.extend_from_slice(collective);
    bytes.extend_from_slice(&host.0);
    bytes.extend_from_slice(&not_after.to_le_bytes());
    bytes
}

/// Measures how long something took.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
