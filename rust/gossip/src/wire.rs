//! Frames: `u8 version | u8 kind | u16 flags | u32 body length | body`, little endian, on streams and datagrams.
//!
//! A body is a row of postcard items that ends where the body ends: no count is declared, so none can be trusted
//! by mistake. Byte strings are borrowed from the frame. Nothing is allocated from a declared length.
use core::fmt;
use core::marker::PhantomData;

use serde::{Deserialize, Serialize};

use crate::host::{Claim, HostId, HostRecord, Short, Sig};
use crate::store::Digest;

/// Version of the frames.
pub const VERSION: u8 = 1;
/// Bytes before the body.
pub const FRAME_HEADER: usize = 8;
/// Longest frame in bytes, header included.
pub const MAX_FRAME: usize = 1 << 20;

/// Why bytes are no frame. Nothing of them was used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WireError {
    /// Shorter than a header, or than the header says; in bytes.
    Short {
        /// Bytes there are.
        len: usize,
        /// Bytes that would be needed.
        need: usize,
    },
    /// Longer than the limit, or than the header says; in bytes.
    Long {
        /// The length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Another version of the protocol.
    Version(u8),
    /// A kind or flag this version does not know.
    Kind(u8),
    /// An item does not decode, or is out of its range.
    Item,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { len, need } => write!(f, "{len} bytes, {need} needed"),
            Self::Long { len, max } => write!(f, "{len} bytes, at most {max} allowed"),
            Self::Version(v) => write!(f, "protocol version {v}, this host speaks {VERSION}"),
            Self::Kind(k) => write!(f, "unknown kind {k}"),
            Self::Item => f.write_str("an item of the body is malformed"),
        }
    }
}

impl std::error::Error for WireError {}

/// What a frame is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Kind {
    /// Datagram: a [`Probe`], then [`Update`]s.
    Probe = 1,
    /// Stream: `seq: u32`.
    StreamPing = 2,
    /// Stream: `seq: u32`.
    StreamAck = 3,
    /// Stream: [`Update`]s.
    Updates = 4,
    /// Stream: nothing (all hosts), or [`Short`]s.
    WantHosts = 5,
    /// Stream: a signed batch, raw.
    Batch = 6,
    /// Stream: a signed batch that was pulled, raw.
    Pulled = 7,
    /// Stream: [`Place`]s that the sender has.
    Have = 8,
    /// Stream: nothing; the sender wants no batches pushed.
    Prune = 9,
    /// Stream: nothing; the sender wants batches pushed.
    Graft = 10,
    /// Stream: 32 bytes.
    Root = 11,
    /// Stream: [`Place`]s of all live hosts; the receiver answers with its own if it has newer ones.
    Vector = 12,
    /// Stream: the same as an answer, which is not answered.
    VectorReply = 13,
    /// Stream: [`Place`]s to send batches after.
    Pull = 14,
    /// Stream: `more: bool`.
    PullEnd = 15,
    /// Stream: [`HostDigest`]s.
    Digests = 16,
    /// Stream: a [`CellsHead`], then cells.
    Cells = 17,
    /// Stream: a [`CellsHead`]; the sender could not decode yet.
    MoreCells = 18,
    /// Stream: a [`RowsHead`], then `seq: u64`s.
    PullRows = 19,
    /// Stream: a [`RequestBody`].
    Request = 20,
    /// Stream: an [`OfferBody`].
    Offer = 21,
    /// Stream, first on every connection: a [`Hello`].
    Hello = 22,
    /// Stream: [`Update`]s that are pushed along the tree.
    News = 23,
    /// Stream: [`Hint`]s of news that the sender wants.
    WantNews = 24,
    /// Stream: a signed batch that was pulled and is passed on, raw: its way says nothing about the tree.
    Passed = 25,
}

impl Kind {
    /// All kinds, in the order of their numbers, which begin at 1.
    pub(crate) const ALL: [Self; 25] = [
        Self::Probe,
        Self::StreamPing,
        Self::StreamAck,
        Self::Updates,
        Self::WantHosts,
        Self::Batch,
        Self::Pulled,
        Self::Have,
        Self::Prune,
        Self::Graft,
        Self::Root,
        Self::Vector,
        Self::VectorReply,
        Self::Pull,
        Self::PullEnd,
        Self::Digests,
        Self::Cells,
        Self::MoreCells,
        Self::PullRows,
        Self::Request,
        Self::Offer,
        Self::Hello,
        Self::News,
        Self::WantNews,
        Self::Passed,
    ];

    pub(crate) fn of(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

/// A frame, borrowed from the bytes it came in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: Kind,
    /// What it says.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Length of the frame that starts with `header`, in bytes.
    ///
    /// # Errors
    /// [`WireError`]: too short a header, a wrong version, or too long a frame.
    pub fn len_of(header: &[u8]) -> Result<usize, WireError> {
        let Some(header) = header.first_chunk::<FRAME_HEADER>() else {
            return Err(WireError::Short {
                len: header.len(),
                need: FRAME_HEADER,
            });
        };
        if header[0] != VERSION {
            return Err(WireError::Version(header[0]));
        }
        let body = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if body > MAX_FRAME - FRAME_HEADER {
            return Err(WireError::Long {
                len: body,
                max: MAX_FRAME - FRAME_HEADER,
            });
        }
        Ok(FRAME_HEADER + body)
    }

    /// Reads one frame that fills `bytes`.
    ///
    /// # Errors
    /// [`WireError`]; also when bytes are left over.
    pub fn read(bytes: &'a [u8]) -> Result<Self, WireError> {
        let need = Self::len_of(bytes)?;
        if bytes.len() < need {
            return Err(WireError::Short {
                len: bytes.len(),
                need,
            });
        }
        if bytes.len() > need {
            return Err(WireError::Long {
                len: bytes.len(),
                max: need,
            });
        }
        if bytes[2] != 0 || bytes[3] != 0 {
            return Err(WireError::Kind(bytes[2]));
        }
        let kind = Kind::of(bytes[1]).ok_or(WireError::Kind(bytes[1]))?;
        Ok(Self {
            kind,
            body: &bytes[FRAME_HEADER..],
        })
    }
}

/// Builds a frame.
pub(crate) struct Builder(Vec<u8>);

impl Builder {
    pub(crate) fn new(kind: Kind) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&[VERSION, kind as u8, 0, 0, 0, 0, 0, 0]);
        Self(bytes)
    }

    pub(crate) fn item(mut self, item: &impl Serialize) -> Self {
        self.push(item);
        self
    }

    pub(crate) fn push(&mut self, item: &impl Serialize) {
        self.0 = postcard::to_extend(item, core::mem::take(&mut self.0)).expect("a vector takes any item");
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn done(mut self) -> Vec<u8> {
        let body = (self.0.len() - FRAME_HEADER) as u32;
        self.0[4..8].copy_from_slice(&body.to_le_bytes());
        self.0
    }
}

/// Iterates over the items of a body; the first malformed one ends it with an error.
pub(crate) struct Items<'a, T> {
    rest: &'a [u8],
    item: PhantomData<T>,
}

impl<'a, T: Deserialize<'a>> Items<'a, T> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self {
            rest: body,
            item: PhantomData,
        }
    }

    /// All items, at most `max` of them.
    pub(crate) fn all(self, max: usize) -> Result<Vec<T>, WireError> {
        let mut items = Vec::new();
        for item in self {
            if items.len() == max {
                return Err(WireError::Item);
            }
            items.push(item?);
        }
        Ok(items)
    }
}

impl<'a, T: Deserialize<'a>> Iterator for Items<'a, T> {
    type Item = Result<T, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match postcard::take_from_bytes(self.rest) {
            // An item of no bytes would never end.
            Ok((item, rest)) if rest.len() < self.rest.len() => {
                self.rest = rest;
                Some(Ok(item))
            }
            _ => {
                self.rest = &[];
                Some(Err(WireError::Item))
            }
        }
    }
}

/// Reads the first item of a body.
pub(crate) fn head<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<(T, &'a [u8]), WireError> {
    postcard::take_from_bytes(body).map_err(|_| WireError::Item)
}

/// Reads the only item of a body.
pub(crate) fn only<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, WireError> {
    match head(body)? {
        (item, []) => Ok(item),
        _ => Err(WireError::Item),
    }
}

/// The probe of a datagram.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Probe {
    /// Only updates.
    Gossip,
    /// Answer with the same number.
    Ping(u32),
    /// The answer.
    Ack(u32),
    /// Ping this host for me.
    PingReq(u32, HostId),
    /// I asked, and heard nothing in time: you do hear me.
    Nack(u32),
}

/// News about a host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Update {
    Host(HostRecord),
    Claim(Claim),
    /// The sender has this news; whoever has not asks for it.
    Hint(Hint),
}

impl Update {
    /// What stands for it where it is only mentioned.
    pub(crate) fn hint(&self) -> Hint {
        let bytes = postcard::to_extend(self, Vec::with_capacity(192)).expect("a vector takes any update");
        let digest = Digest::of(&[b"pandacore/news/v1", &bytes]);
        Hint(*digest.bytes().first_chunk().expect("32 bytes"))
    }
}

/// The start of the hash of an update.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct Hint([u8; 6]);

/// How far somebody has a host's log, and which record of the host it knows.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Place {
    pub(crate) host: Short,
    pub(crate) epoch: u32,
    pub(crate) incarnation: u32,
    /// Everything up to this number is applied.
    pub(crate) applied: u64,
}

/// What a host's rows hash to.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct HostDigest {
    pub(crate) host: Short,
    pub(crate) digest: [u8; 8],
}

/// Coded symbols of one host's rows from a position on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct CellsHead {
    /// The host whose rows are coded; `None`: the places of all hosts.
    pub(crate) host: Option<Short>,
    pub(crate) epoch: u32,
    pub(crate) start: u32,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct RowsHead {
    pub(crate) host: Short,
    pub(crate) epoch: u32,
}

/// A question to the whole collective.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct RequestBody<'a> {
    pub(crate) origin: HostId,
    pub(crate) epoch: u32,
    pub(crate) number: u64,
    /// Seconds the asker waits.
    pub(crate) patience_s: u16,
    /// Capability names, as postcard strings one after the other.
    #[serde(borrow)]
    pub(crate) capabilities: &'a [u8],
    pub(crate) sig: Sig,
}

impl RequestBody<'_> {
    pub(crate) fn message(&self, collective: &[u8; 32]) -> Vec<u8> {
        let mut bytes = b"pandacore/request/v1".to_vec();
        bytes.extend_from_slice(collective);
        bytes.extend_from_slice(&self.origin.0);
        bytes.extend_from_slice(&self.epoch.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.patience_s.to_le_bytes());
        bytes.extend_from_slice(self.capabilities);
        bytes
    }
}

/// An answer to a request: agents that the answering host has in its log by `applied`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct OfferBody<'a> {
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) applied: u64,
    /// Agent ids, 32 bytes each.
    #[serde(borrow)]
    pub(crate) agents: &'a [u8],
}

/// The first frame on a connection, both ways.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Hello {
    /// The collective the sender belongs to.
    pub collective: [u8; 32],
    /// Its record.
    pub record: HostRecord,
    /// Its join ticket: last second of validity, and the admission key's signature.
    pub ticket: Option<(u64, Sig)>,
}

/// The frame of a hello.
#[must_use]
pub fn hello_bytes(hello: &Hello) -> Vec<u8> {
    Builder::new(Kind::Hello).item(hello).done()
}

/// Reads a hello.
///
/// # Errors
/// [`WireError`] when the bytes are none.
pub fn read_hello(bytes: &[u8]) -> Result<Hello, WireError> {
    let frame = Frame::read(bytes)?;
    match frame.kind {
        Kind::Hello => only(frame.body),
        other => Err(WireError::Kind(other as u8)),
    }
}

/// Bytes of the body of a comparison that finds both sides equal, and of a list of the places of `hosts` hosts.
#[must_use]
pub fn comparison_sizes(hosts: u32) -> (usize, usize) {
    let root = Builder::new(Kind::Root).raw(&[0; 32]).len() - FRAME_HEADER;
    let mut vector = Builder::new(Kind::Vector).item(&false);
    for host in 0..hosts {
        let host = Short(u64::from(host) << 32 | 0xFFFF_FFFF);
        vector.push(&Place {
            host,
            epoch: 3,
            incarnation: 2,
            applied: 1_000_000,
        });
    }
    (root, vector.len() - FRAME_HEADER)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_bytes_never_panic_and_never_read_past_the_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(frame) = Frame::read(&bytes) {
                prop_assert_eq!(frame.body.len() + FRAME_HEADER, bytes.len());
            }
            let _ = read_hello(&bytes);
            let _ = Items::<Update>::new(&bytes).all(64);
            let _ = Items::<Place>::new(&bytes).all(64);
            let _ = head::<Probe>(&bytes);
            let _ = only::<RequestBody<'_>>(&bytes);
            let _ = only::<OfferBody<'_>>(&bytes);
        }

        #[test]
        fn a_declared_length_beyond_the_bytes_is_refused(len in 0u32.., tail in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut bytes = vec![VERSION, Kind::Updates as u8, 0, 0];
            bytes.extend_from_slice(&len.to_le_bytes());
            bytes.extend_from_slice(&tail);
            prop_assert_eq!(Frame::read(&bytes).is_ok(), len as usize == tail.len());
        }
    }

    #[test]
    fn a_byte_string_longer_than_the_body_allocates_nothing() {
        // 2^32 - 1 bytes declared, three there.
        let body = [0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3];
        assert_eq!(only::<&[u8]>(&body), Err(WireError::Item));
    }

    #[test]
    fn a_place_takes_about_fourteen_bytes() {
        let place = Place {
            host: Short(u64::MAX),
            epoch: 3,
            incarnation: 1,
            applied: 1_000_000,
        };
        let frame = Builder::new(Kind::Vector).item(&place).done();
        assert!(frame.len() - FRAME_HEADER <= 14, "{}", frame.len() - FRAME_HEADER);
    }
}
