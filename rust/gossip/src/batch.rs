//! Batches: what a host appends to its log at once, under one signature.
//!
//! ```text
//! batch  = host[32] epoch:u32 first:u64 floor:u64 count:u16 sig[64] entry*        little endian
//! entry  = 1 kind:u8 withdrawn:u8 key[32] len:u16 payload | 0 leaf[32]
//! leaf   = SHA-256("pandacore/leaf/v1" kind withdrawn key len payload)
//! signed = "pandacore/batch/v1" SHA-256(collective host epoch first floor count leaf*)
//! ```
//! The signature covers leaves, so an entry that a later one replaced can be passed on as its leaf. Entry `i` has the
//! number `first + i`. Everything numbered below `floor` is void: the host wrote again what is still true.
use core::fmt;

use sha2::{Digest as _, Sha256};

use crate::host::{Crypto, HostId, Sig};

const LEAF_DOMAIN: &[u8] = b"pandacore/leaf/v1";
const BATCH_DOMAIN: &[u8] = b"pandacore/batch/v1";
const HEADER: usize = 32 + 4 + 8 + 8 + 2 + 64;
const RECORD_HEADER: usize = 1 + 1 + 1 + 32 + 2;
const LEAF_ENTRY: usize = 1 + 32;
/// Most bytes of one record's payload.
pub const MAX_PAYLOAD: usize = 1024;
/// Most entries of one batch.
pub const MAX_BATCH_RECORDS: usize = 1000;
/// Most bytes of one batch.
pub const MAX_BATCH_BYTES: usize = 256 << 10;
/// Highest number in a log: jumps beyond are refused long before numbers can wrap.
const MAX_SEQ: u64 = 1 << 48;

/// What a record is about. Unknown kinds are kept and passed on.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RecordKind(pub u8);

impl RecordKind {
    /// An agent's announcement; the key is the agent's id.
    pub const ANNOUNCEMENT: Self = Self(1);
    /// A certificate or revocation of `pandacore_trust`; the key is its hash.
    pub const TRUST: Self = Self(2);
}

/// One record as its host wrote it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Record<'a> {
    /// What it is about.
    pub kind: RecordKind,
    /// Whether it takes back the record of this key.
    pub withdrawn: bool,
    /// What it is about, within its kind.
    pub key: [u8; 32],
    /// What it says.
    pub payload: &'a [u8],
}

impl Record<'_> {
    /// Bytes of its entry.
    #[must_use]
    pub fn len(&self) -> usize {
        RECORD_HEADER + self.payload.len()
    }

    /// Never: a record has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its leaf.
    #[must_use]
    pub fn leaf(&self) -> Leaf {
        let mut head = [0; RECORD_HEADER - 1];
        head[0] = self.kind.0;
        head[1] = u8::from(self.withdrawn);
        head[2..34].copy_from_slice(&self.key);
        head[34..].copy_from_slice(&(self.payload.len() as u16).to_le_bytes());
        let mut hash = Sha256::new();
        hash.update(LEAF_DOMAIN);
        hash.update(head);
        hash.update(self.payload);
        Leaf(hash.finalize().into())
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&[1, self.kind.0, u8::from(self.withdrawn)]);
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&(self.payload.len() as u16).to_le_bytes());
        bytes.extend_from_slice(self.payload);
    }
}

/// The hash of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leaf(pub [u8; 32]);

/// One entry of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Entry<'a> {
    /// The record.
    Full(Record<'a>),
    /// Only its hash: it was replaced or taken back later.
    Dead(Leaf),
}

impl Entry<'_> {
    /// The hash that the signature covers.
    #[must_use]
    pub fn leaf(&self) -> Leaf {
        match self {
            Self::Full(record) => record.leaf(),
            Self::Dead(leaf) => *leaf,
        }
    }
}

/// Why a batch was refused. Nothing of it was used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BatchError {
    /// The bytes are no batch, or break a limit.
    Malformed,
    /// The signature is not the host's.
    Signature,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the bytes are no batch",
            Self::Signature => "the signature is not the host's",
        })
    }
}

impl std::error::Error for BatchError {}

/// A batch, borrowed from the bytes it came in.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    /// Whose log it belongs to.
    pub host: HostId,
    /// The host's start.
    pub epoch: u32,
    /// Number of its first entry; numbers start at 1.
    pub first: u64,
    /// Numbers below are void.
    pub floor: u64,
    /// How many entries it has.
    pub count: u16,
    sig: Sig,
    entries: &'a [u8],
}

impl<'a> BatchView<'a> {
    /// Reads the header and walks the entries once. The signature is not checked here.
    ///
    /// # Errors
    /// [`BatchError::Malformed`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, BatchError> {
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(BatchError::Malformed);
        }
        let (head, entries) = bytes.split_first_chunk::<HEADER>().ok_or(BatchError::Malformed)?;
        let mut at = 0;
        let batch = Self {
            host: HostId(take(head, &mut at)),
            epoch: u32::from_le_bytes(take(head, &mut at)),
            first: u64::from_le_bytes(take(head, &mut at)),
            floor: u64::from_le_bytes(take(head, &mut at)),
            count: u16::from_le_bytes(take(head, &mut at)),
            sig: Sig::new(take(head, &mut at)),
            entries,
        };
        let in_range = batch.first >= 1
            && batch.floor >= 1
            && batch.first <= MAX_SEQ
            && batch.floor <= batch.next()
            && usize::from(batch.count) <= MAX_BATCH_RECORDS;
        if !in_range || walk(entries, |_, _| ())? != usize::from(batch.count) {
            return Err(BatchError::Malformed);
        }
        Ok(batch)
    }

    /// The number after its last entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// Calls `visit` with the offset behind the header and the entry, in order.
    pub fn for_each(&self, mut visit: impl FnMut(usize, Entry<'a>)) {
        // `read` walked the same bytes.
        let _ = walk(self.entries, &mut visit);
    }

    /// The bytes behind the header.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.entries
    }

    /// The signature.
    #[must_use]
    pub fn sig(&self) -> Sig {
        self.sig
    }

    /// Checks the signature and returns the leaves.
    ///
    /// # Errors
    /// [`BatchError::Signature`].
    pub fn verify(&self, collective: &[u8; 32], crypto: &dyn Crypto) -> Result<Vec<Leaf>, BatchError> {
        let mut leaves = Vec::with_capacity(usize::from(self.count));
        self.for_each(|_, entry| leaves.push(entry.leaf()));
        let message = signed(
            collective, &self.host, self.epoch, self.first, self.floor, &leaves,
        );
        if crypto.verify(&self.host, &message, &self.sig) {
            Ok(leaves)
        } else {
            Err(BatchError::Signature)
        }
    }
}

fn take<const N: usize>(bytes: &[u8], at: &mut usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[*at..*at + N]);
    *at += N;
    array
}

/// Reads the entry that starts at `at`, and where the next one starts.
pub(crate) fn entry_at(bytes: &[u8], at: usize) -> Option<(Entry<'_>, usize)> {
    let rest = bytes.get(at..)?;
    match rest.first()? {
        0 => {
            let leaf = rest.get(1..LEAF_ENTRY)?.try_into().ok()?;
            Some((Entry::Dead(Leaf(leaf)), at + LEAF_ENTRY))
        }
        1 => {
            let head = rest.first_chunk::<RECORD_HEADER>()?;
            let withdrawn = match head[2] {
                0 => false,
                1 => true,
                _ => return None,
            };
            let len = usize::from(u16::from_le_bytes([head[35], head[36]]));
            if len > MAX_PAYLOAD {
                return None;
            }
            let mut key = [0; 32];
            key.copy_from_slice(&head[3..35]);
            let payload = rest.get(RECORD_HEADER..RECORD_HEADER + len)?;
            let record = Record {
                kind: RecordKind(head[1]),
                withdrawn,
                key,
                payload,
            };
            Some((Entry::Full(record), at + RECORD_HEADER + len))
        }
        _ => None,
    }
}

fn walk<'a>(bytes: &'a [u8], mut visit: impl FnMut(usize, Entry<'a>)) -> Result<usize, BatchError> {
    let (mut at, mut count) = (0, 0);
    while at < bytes.len() {
        let (entry, next) = entry_at(bytes, at).ok_or(BatchError::Malformed)?;
        count += 1;
        if count > MAX_BATCH_RECORDS {
            return Err(BatchError::Malformed);
        }
        visit(at, entry);
        at = next;
    }
    Ok(count)
}

fn signed(
    collective: &[u8; 32],
    host: &HostId,
    epoch: u32,
    first: u64,
    floor: u64,
    leaves: &[Leaf],
) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(collective);
    hash.update(host.0);
    hash.update(epoch.to_le_bytes());
    hash.update(first.to_le_bytes());
    hash.update(floor.to_le_bytes());
    hash.update((leaves.len() as u16).to_le_bytes());
    for leaf in leaves {
        hash.update(leaf.0);
    }
    let mut message = BATCH_DOMAIN.to_vec();
    message.extend_from_slice(&hash.finalize());
    message
}

/// The bytes of a batch with these entries and a known signature.
pub(crate) fn encode<'a>(
    host: &HostId,
    epoch: u32,
    first: u64,
    floor: u64,
    sig: &Sig,
    entries: impl ExactSizeIterator<Item = Entry<'a>>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + entries.len() * 64);
    bytes.extend_from_slice(&host.0);
    bytes.extend_from_slice(&epoch.to_le_bytes());
    bytes.extend_from_slice(&first.to_le_bytes());
    bytes.extend_from_slice(&floor.to_le_bytes());
    bytes.extend_from_slice(&(entries.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&sig.bytes());
    for entry in entries {
        match entry {
            Entry::Full(record) => record.write(&mut bytes),
            Entry::Dead(leaf) => {
                bytes.push(0);
                bytes.extend_from_slice(&leaf.0);
            }
        }
    }
    bytes
}

/// Signs a batch of this host.
pub(crate) fn sign(
    crypto: &dyn Crypto,
    collective: &[u8; 32],
    epoch: u32,
    first: u64,
    floor: u64,
    records: &[Record<'_>],
) -> Vec<u8> {
    let host = crypto.id();
    let leaves: Vec<Leaf> = records.iter().map(Record::leaf).collect();
    let sig = crypto.sign(&signed(collective, &host, epoch, first, floor, &leaves));
    encode(
        &host,
        epoch,
        first,
        floor,
        &sig,
        records.iter().map(|&record| Entry::Full(record)),
    )
}

/// Whether a record of this payload length still fits into a batch that is `bytes` long.
pub(crate) fn fits(bytes: usize, count: usize, payload: usize) -> bool {
    count < MAX_BATCH_RECORDS && HEADER + bytes + RECORD_HEADER + payload <= MAX_BATCH_BYTES
}

#[cfg(test)]
mod tests {
    use pandacore_trust::KeyPair;
    use proptest::prelude::*;

    use super::*;
    use crate::host::Ed25519;

    const HOME: [u8; 32] = [9; 32];

    fn records(payloads: &[Vec<u8>]) -> Vec<Record<'_>> {
        payloads
            .iter()
            .enumerate()
            .map(|(i, payload)| Record {
                kind: RecordKind::ANNOUNCEMENT,
                withdrawn: i % 3 == 2,
                key: [i as u8; 32],
                payload,
            })
            .collect()
    }

    #[test]
    fn entries_may_become_leaves_and_nothing_else_may_change() {
        let crypto = Ed25519(KeyPair::from_seed(&[1; 32]));
        let payloads: Vec<Vec<u8>> = (0..4).map(|i| vec![i; 40]).collect();
        let records = records(&payloads);
        let bytes = sign(&crypto, &HOME, 3, 10, 5, &records);
        let view = BatchView::read(&bytes).unwrap();
        assert_eq!((view.epoch, view.first, view.floor, view.next()), (3, 10, 5, 14));
        assert!(view.verify(&HOME, &crypto).is_ok());
        assert_eq!(view.verify(&[8; 32], &crypto), Err(BatchError::Signature));
        let thinned = encode(
            &view.host,
            3,
            10,
            5,
            &view.sig(),
            records.iter().enumerate().map(|(i, r)| {
                if i == 1 {
                    Entry::Dead(r.leaf())
                } else {
                    Entry::Full(*r)
                }
            }),
        );
        assert!(BatchView::read(&thinned).unwrap().verify(&HOME, &crypto).is_ok());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            if let Ok(view) = BatchView::read(&changed) {
                assert_eq!(
                    view.verify(&HOME, &crypto),
                    Err(BatchError::Signature),
                    "byte {at}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = BatchView::read(&bytes);
            let _ = entry_at(&bytes, 0);
        }

        #[test]
        fn a_cut_batch_is_refused_or_differs_in_count(cut in 1usize..300) {
            let crypto = Ed25519(KeyPair::from_seed(&[1; 32]));
            let payloads: Vec<Vec<u8>> = (0..4).map(|i| vec![i; 40]).collect();
            let bytes = sign(&crypto, &HOME, 1, 1, 1, &records(&payloads));
            let cut = cut.min(bytes.len());
            prop_assert!(BatchView::read(&bytes[..bytes.len() - cut]).is_err());
        }
    }
}
