//! Hosts: their ids, what they sign about themselves, and what they sign about each other.
use core::fmt;
use core::net::SocketAddr;

use pandacore_trust::{AgentId, KeyPair};
use serde::{Deserialize, Serialize};

const HOST_DOMAIN: &[u8] = b"pandacore/host/v1";
const CLAIM_DOMAIN: &[u8] = b"pandacore/claim/v1";

/// A host's id: its 32-byte Ed25519 public key.
#[derive(Clone, Copy, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct HostId(pub [u8; 32]);

impl HostId {
    /// The first eight bytes, which name the host in vectors and pulls.
    #[must_use]
    pub fn short(&self) -> Short {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[..8]);
        Short(u64::from_le_bytes(bytes))
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        AgentId(self.0).fmt(f)
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "host:{:02x}{:02x}{:02x}{:02x}",
            self.0[0], self.0[1], self.0[2], self.0[3]
        )
    }
}

/// The first eight bytes of a host id. A collision makes the later host invisible to vectors, never wrong.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Short(pub u64);

// Fixed width: a varint of random 64-bit numbers takes ten bytes, not eight.
impl Serialize for Short {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.to_le_bytes().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Short {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <[u8; 8]>::deserialize(deserializer).map(|bytes| Self(u64::from_le_bytes(bytes)))
    }
}

/// A 64-byte signature.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Sig(pub [[u8; 32]; 2]);

impl Sig {
    /// A signature of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 64]) -> Self {
        let mut halves = [[0; 32]; 2];
        halves[0].copy_from_slice(&bytes[..32]);
        halves[1].copy_from_slice(&bytes[32..]);
        Self(halves)
    }

    /// The 64 bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&self.0[0]);
        bytes[32..].copy_from_slice(&self.0[1]);
        bytes
    }
}

/// How a host signs, and how it checks what others signed.
pub trait Crypto: Send + Sync {
    /// This host's id.
    fn id(&self) -> HostId;
    /// This host's signature of `message`.
    fn sign(&self, message: &[u8]) -> Sig;
    /// Whether `sig` is one of `message` by `signer`.
    fn verify(&self, signer: &HostId, message: &[u8], sig: &Sig) -> bool;
}

/// The real thing; everything but the simulator uses it.
pub struct Ed25519(pub KeyPair);

impl Crypto for Ed25519 {
    fn id(&self) -> HostId {
        HostId(self.0.id().0)
    }

    fn sign(&self, message: &[u8]) -> Sig {
        Sig::new(self.0.sign(message))
    }

    fn verify(&self, signer: &HostId, message: &[u8], sig: &Sig) -> bool {
        AgentId(signer.0).verify(message, &sig.bytes()).is_ok()
    }
}

/// What a host says about itself. A higher `(epoch, incarnation)` replaces a lower one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HostRecord {
    /// Who speaks.
    pub host: HostId,
    /// Counts the starts of this host; persisted before it is used.
    pub epoch: u32,
    /// Counts the refutations and other changes within the epoch.
    pub incarnation: u32,
    /// A random number of this start: two processes with one key show two of them.
    pub instance: u64,
    /// Where to dial it.
    pub address: SocketAddr,
    /// A second address, if there is one.
    pub other: Option<SocketAddr>,
    /// Whether the host leaves for good (until a higher epoch).
    pub left: bool,
    /// The host's signature of all that.
    pub sig: Sig,
}

impl HostRecord {
    /// What orders records of one host.
    #[must_use]
    pub fn stamp(&self) -> (u32, u32) {
        (self.epoch, self.incarnation)
    }

    fn message(&self, collective: &[u8; 32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(160);
        bytes.extend_from_slice(HOST_DOMAIN);
        bytes.extend_from_slice(collective);
        let body = (
            &self.host,
            self.epoch,
            self.incarnation,
            self.instance,
            self.address,
            self.other,
            self.left,
        );
        postcard::to_extend(&body, bytes).expect("a vector takes any record")
    }

    /// Signs the record as it stands.
    #[must_use]
    pub fn signed(mut self, collective: &[u8; 32], crypto: &dyn Crypto) -> Self {
        self.sig = crypto.sign(&self.message(collective));
        self
    }

    /// Whether the host itself signed this, in this collective.
    #[must_use]
    pub fn verify(&self, collective: &[u8; 32], crypto: &dyn Crypto) -> bool {
        crypto.verify(&self.host, &self.message(collective), &self.sig)
    }
}

/// A signed observation: "I could not reach this host at this stamp". Not a verdict: verdicts need several.
///
/// It travels often, so it names hosts by their short ids; what is signed are the whole ids.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Claim {
    /// Who could not be reached.
    pub target: Short,
    /// The target's epoch at that time.
    pub epoch: u32,
    /// The target's incarnation at that time.
    pub incarnation: u32,
    /// Who tried.
    pub accuser: Short,
    /// The accuser's signature.
    pub sig: Sig,
}

impl Claim {
    fn message(collective: &[u8; 32], target: &HostId, stamp: (u32, u32), accuser: &HostId) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(CLAIM_DOMAIN);
        bytes.extend_from_slice(collective);
        bytes.extend_from_slice(&target.0);
        bytes.extend_from_slice(&accuser.0);
        bytes.extend_from_slice(&stamp.0.to_le_bytes());
        bytes.extend_from_slice(&stamp.1.to_le_bytes());
        bytes
    }

    /// A claim of this host.
    #[must_use]
    pub fn by(crypto: &dyn Crypto, collective: &[u8; 32], target: &HostId, stamp: (u32, u32)) -> Self {
        let accuser = crypto.id();
        let sig = crypto.sign(&Self::message(collective, target, stamp, &accuser));
        let (epoch, incarnation) = stamp;
        Self {
            target: target.short(),
            epoch,
            incarnation,
            accuser: accuser.short(),
            sig,
        }
    }

    /// Whether this accuser signed this about this target, in this collective.
    #[must_use]
    pub fn verify(
        &self,
        collective: &[u8; 32],
        crypto: &dyn Crypto,
        target: &HostId,
        accuser: &HostId,
    ) -> bool {
        let message = Self::message(collective, target, (self.epoch, self.incarnation), accuser);
        self.target == target.short()
            && self.accuser == accuser.short()
            && crypto.verify(accuser, &message, &self.sig)
    }
}
