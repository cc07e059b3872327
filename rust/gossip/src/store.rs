//! The replica: the live rows of every host's log, kept as the signed bytes they came in.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sha2::{Digest as _, Sha256};

use crate::announcement::Announcement;
use crate::batch::{BatchView, Entry, Leaf, Record, RecordKind, encode, entry_at};
use crate::host::{HostId, Short, Sig};
use crate::table::Table;

const NONE: u32 = u32::MAX;
/// Changes that readers can still fetch one by one; older ones need a full read.
const RING: usize = 1 << 16;
/// Batches below this size are not rewritten to save memory.
const MIN_REWRITE: usize = 4096;

/// A sum of row hashes, modulo 2^64 in four lanes: rows come and go in any order.
///
/// A sum of hashes does not withstand a host that searches for rows with equal sums, but such a host can only make
/// replicas disagree about its own rows.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digest(pub [u64; 4]);

impl Digest {
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part);
        }
        let bytes: [u8; 32] = hash.finalize().into();
        let mut lanes = [0; 4];
        for (lane, chunk) in lanes.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *lane = u64::from_le_bytes(*chunk);
        }
        Self(lanes)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (lane, more) in self.0.iter_mut().zip(other.0) {
            *lane = lane.wrapping_add(more);
        }
    }

    pub(crate) fn sub(&mut self, other: &Self) {
        for (lane, less) in self.0.iter_mut().zip(other.0) {
            *lane = lane.wrapping_sub(less);
        }
    }

    /// The 32 bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (chunk, lane) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *chunk = lane.to_le_bytes();
        }
        bytes
    }
}

/// The part of a leaf that a row keeps: enough that two records never share it.
type Mark = [u8; 16];

fn mark(leaf: &Leaf) -> Mark {
    *leaf.0.first_chunk().expect("32 bytes")
}

fn row_hash(seq: u64, mark: &Mark) -> Digest {
    Digest::of(&[b"pandacore/row/v1", &seq.to_le_bytes(), mark])
}

/// Clocks may differ by this much: seconds for which an announcement still counts when its validity is over.
const TOLERANCE: u64 = 300;

/// How far a log is known.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LogPosition {
    /// The host's start.
    pub epoch: u32,
    /// Everything up to this number is applied.
    pub applied: u64,
}

/// One changed row.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct RowChange {
    /// Kind of the record.
    pub kind: RecordKind,
    /// Its key.
    pub key: [u8; 32],
}

/// An agent that a live host announces.
#[derive(Clone, Copy, Debug)]
pub struct Agent<'a> {
    /// Its id.
    pub id: [u8; 32],
    /// The host that runs it.
    pub host: HostId,
    /// Start of the host and number in its log: what orders announcements of one host.
    pub epoch: u32,
    /// Number in the host's log.
    pub seq: u64,
    /// What it says.
    pub announcement: Announcement<'a>,
}

/// Bytes in use, by part.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StoreMemory {
    /// Records as signed.
    pub bodies: usize,
    /// Where they are in their batches.
    pub entries: usize,
    /// Rows.
    pub rows: usize,
    /// Lookup by key.
    pub table: usize,
}

#[derive(Debug)]
struct Log {
    host: HostId,
    position: LogPosition,
    floor: u64,
    batches: BTreeMap<u64, u32>,
    digest: Digest,
    visible: bool,
    rows: usize,
}

#[derive(Debug)]
struct Batch {
    log: u32,
    first: u64,
    floor: u64,
    sig: Sig,
    body: Box<[u8]>,
    offsets: Box<[u32]>,
    rows: Box<[u32]>,
    live: u32,
    live_bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    batch: u32,
    entry: u16,
    /// Whether it is an announcement with an end.
    ends: bool,
    /// Kept, because the record may be anywhere in memory by the time the row goes.
    mark: Mark,
    /// The next claim of the same key by another host.
    next: u32,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Applied {
    /// The log is longer now.
    Advanced,
    /// Nothing new.
    Duplicate,
    /// Something before it is missing.
    Gap,
    /// It is of an earlier start of the host.
    Stale,
}

/// All logs of a collective, as one host knows them.
#[derive(Debug)]
pub struct Replica {
    seed: u64,
    logs: Vec<Log>,
    by_host: BTreeMap<HostId, u32>,
    by_short: BTreeMap<Short, u32>,
    batches: Vec<Option<Batch>>,
    free_batches: Vec<u32>,
    rows: Vec<Row>,
    free_rows: Vec<u32>,
    table: Table,
    version: u64,
    ring: VecDeque<(u64, RowChange)>,
    /// The wall clock in seconds; 0 while nobody told it, and then nothing ends.
    wall: u64,
    /// Rows that end, by their last second.
    ending: BTreeSet<(u64, u32)>,
}

impl Replica {
    /// An empty replica; `seed` spreads the lookup table.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            logs: Vec::new(),
            by_host: BTreeMap::new(),
            by_short: BTreeMap::new(),
            batches: Vec::new(),
            free_batches: Vec::new(),
            rows: Vec::new(),
            free_rows: Vec::new(),
            table: Table::default(),
            version: 0,
            ring: VecDeque::new(),
            wall: 0,
            ending: BTreeSet::new(),
        }
    }

    fn log_of(&mut self, host: &HostId) -> u32 {
        if let Some(&log) = self.by_host.get(host) {
            return log;
        }
        let log = self.logs.len() as u32;
        self.logs.push(Log {
            host: *host,
            position: LogPosition::default(),
            floor: 1,
            batches: BTreeMap::new(),
            digest: Digest::default(),
            visible: false,
            rows: 0,
        });
        self.by_host.insert(*host, log);
        self.by_short.entry(host.short()).or_insert(log);
        log
    }

    fn log(&self, host: &HostId) -> Option<&Log> {
        self.by_host.get(host).map(|&log| &self.logs[log as usize])
    }

    /// The host with this short id.
    #[must_use]
    pub fn host(&self, short: Short) -> Option<HostId> {
        self.by_short.get(&short).map(|&log| self.logs[log as usize].host)
    }

    /// How far the log of `host` is known.
    #[must_use]
    pub fn position(&self, host: &HostId) -> LogPosition {
        self.log(host)
            .map_or_else(LogPosition::default, |log| log.position)
    }

    /// Hash of the live rows of `host`.
    #[must_use]
    pub fn digest(&self, host: &HostId) -> Digest {
        self.log(host).map_or_else(Digest::default, |log| log.digest)
    }

    /// Number of rows of `host`, withdrawals included.
    #[must_use]
    pub fn rows_of(&self, host: &HostId) -> usize {
        self.log(host).map_or(0, |log| log.rows)
    }

    pub(crate) fn floor(&self, host: &HostId) -> u64 {
        self.log(host).map_or(1, |log| log.floor)
    }

    /// Number of rows of all hosts, withdrawals included.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows.len() - self.free_rows.len()
    }

    /// Grows by one with every change of a row or of a host's visibility.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Bytes in use.
    #[must_use]
    pub fn memory(&self) -> StoreMemory {
        let mut memory = StoreMemory {
            rows: self.rows.capacity() * size_of::<Row>() + self.free_rows.capacity() * 4,
            table: self.table.bytes(),
            ..StoreMemory::default()
        };
        for batch in self.batches.iter().flatten() {
            memory.bodies += batch.body.len();
            memory.entries += size_of::<Batch>() + batch.offsets.len() * 4 + batch.rows.len() * 4;
        }
        memory
    }

    fn hash(&self, kind: RecordKind, key: &[u8; 32]) -> u64 {
        let words = key.as_chunks::<8>().0;
        let a = u64::from_le_bytes(words[0]) ^ self.seed;
        let b = u64::from_le_bytes(words[1]) ^ u64::from(kind.0) ^ 0x9E37_79B9_7F4A_7C15;
        let product = u128::from(a) * u128::from(b);
        ((product >> 64) as u64) ^ (product as u64)
    }

    fn record(&self, row: u32) -> Record<'_> {
        let row = self.rows[row as usize];
        let batch = self.batches[row.batch as usize]
            .as_ref()
            .expect("a row has a batch");
        let at = batch.offsets[usize::from(row.entry)] as usize;
        match entry_at(&batch.body, at) {
            Some((Entry::Full(record), _)) => record,
            _ => unreachable!("a live row points to a record that was read before"),
        }
    }

    fn log_of_row(&self, row: u32) -> &Log {
        let batch = self.batches[self.rows[row as usize].batch as usize]
            .as_ref()
            .expect("a row has a batch");
        &self.logs[batch.log as usize]
    }

    fn seq(&self, row: u32) -> u64 {
        let row = self.rows[row as usize];
        let batch = self.batches[row.batch as usize]
            .as_ref()
            .expect("a row has a batch");
        batch.first + u64::from(row.entry)
    }

    fn first_claim(&self, kind: RecordKind, key: &[u8; 32]) -> Option<u32> {
        self.table.find(self.hash(kind, key), |row| {
            let record = self.record(row);
            record.kind == kind && record.key == *key
        })
    }

    fn claims(&self, kind: RecordKind, key: &[u8; 32]) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.first_claim(kind, key);
        std::iter::from_fn(move || {
            let row = at?;
            let next = self.rows[row as usize].next;
            at = (next != NONE).then_some(next);
            Some(row)
        })
    }

    /// Tells the wall clock. Announcements whose validity is over do not count any more; should the clock go back,
    /// they count again.
    pub(crate) fn set_wall(&mut self, seconds: u64) {
        if seconds == self.wall {
            return;
        }
        let (old, new) = (
            self.wall.saturating_sub(TOLERANCE),
            seconds.saturating_sub(TOLERANCE),
        );
        self.wall = seconds;
        let changed: Vec<u32> = self
            .ending
            .range((old.min(new), 0)..(old.max(new), 0))
            .map(|(_, row)| *row)
            .collect();
        for row in changed {
            if self.log_of_row(row).visible {
                let Record { kind, key, .. } = self.record(row);
                self.touch(kind, key);
            }
        }
    }

    /// Whether the row's validity is over.
    fn over(&self, row: u32) -> bool {
        self.rows[row as usize].ends
            && Announcement::end_of(self.record(row).payload) < self.wall.saturating_sub(TOLERANCE)
    }

    fn touch(&mut self, kind: RecordKind, key: [u8; 32]) {
        self.version += 1;
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back((self.version, RowChange { kind, key }));
    }

    /// Rows that changed after `version`, each once; `None`: too many, read everything.
    #[must_use]
    pub fn changes(&self, version: u64) -> Option<Vec<RowChange>> {
        let missed = self.version.saturating_sub(version);
        if missed > self.ring.len() as u64 {
            return None;
        }
        let mut changes: Vec<RowChange> = self
            .ring
            .iter()
            .rev()
            .take(missed as usize)
            .map(|&(_, change)| change)
            .collect();
        changes.sort_unstable();
        changes.dedup();
        Some(changes)
    }

    // -- writing -------------------------------------------------------------------------------------

    /// Applies a batch whose signature was checked. With `pulled`, numbers may be missing before it: the sender
    /// leaves out what is void.
    pub(crate) fn apply(&mut self, view: &BatchView<'_>, leaves: &[Leaf], pulled: bool) -> Applied {
        let log = self.log_of(&view.host);
        let position = self.logs[log as usize].position;
        if view.epoch < position.epoch {
            return Applied::Stale;
        }
        let newer = view.epoch > position.epoch;
        let applied = if newer { 0 } else { position.applied };
        if view.next() <= applied + 1 {
            return Applied::Duplicate;
        }
        if view.first > applied.max(view.floor - 1) + 1 && !pulled {
            return Applied::Gap;
        }
        if newer {
            self.clear(log);
            self.logs[log as usize].position = LogPosition {
                epoch: view.epoch,
                applied: 0,
            };
        }
        self.insert(log, view, leaves);
        let entry = &mut self.logs[log as usize];
        entry.position.applied = view.next() - 1;
        if view.floor > entry.floor {
            entry.floor = view.floor;
            self.raise(log, view.floor);
        }
        Applied::Advanced
    }

    /// Fills in rows that are missing below the applied number, from a batch whose signature was checked.
    /// Returns how many.
    pub(crate) fn repair(&mut self, view: &BatchView<'_>, leaves: &[Leaf]) -> usize {
        let log = self.log_of(&view.host);
        let entry = &self.logs[log as usize];
        let position = entry.position;
        if view.epoch != position.epoch || view.next() > position.applied + 1 || view.next() <= entry.floor {
            return 0;
        }
        let before = self.rows();
        if let Some(&old) = entry.batches.get(&view.first) {
            // Merge: rows this replica has, and rows that the sender has.
            let batch = self.batches[old as usize].as_ref().expect("the log points to it");
            let mut merged = Vec::with_capacity(batch.rows.len());
            let mut theirs = Vec::with_capacity(batch.rows.len());
            view.for_each(|_, entry| theirs.push(entry));
            for (i, &row) in batch.rows.iter().enumerate() {
                merged.push(if row == NONE {
                    theirs[i]
                } else {
                    Entry::Full(self.record(row))
                });
            }
            let bytes = encode(
                &view.host,
                view.epoch,
                view.first,
                view.floor,
                &view.sig(),
                merged.into_iter(),
            );
            let merged = BatchView::read(&bytes).expect("made of two that were read");
            self.drop_batch(old);
            self.insert(log, &merged, leaves);
        } else {
            self.insert(log, view, leaves);
        }
        self.rows().saturating_sub(before)
    }

    fn insert(&mut self, log: u32, view: &BatchView<'_>, leaves: &[Leaf]) {
        let number = self.free_batches.pop().unwrap_or_else(|| {
            self.batches.push(None);
            self.batches.len() as u32 - 1
        });
        let mut offsets = Vec::with_capacity(leaves.len());
        view.for_each(|at, _| offsets.push(at as u32));
        self.batches[number as usize] = Some(Batch {
            log,
            first: view.first,
            floor: view.floor,
            sig: view.sig(),
            body: view.body().into(),
            offsets: offsets.into_boxed_slice(),
            rows: vec![NONE; leaves.len()].into_boxed_slice(),
            live: 0,
            live_bytes: 0,
        });
        self.logs[log as usize].batches.insert(view.first, number);
        let floor = self.logs[log as usize].floor;
        let mut entry = 0u16;
        view.for_each(|_, item| {
            let seq = view.first + u64::from(entry);
            if let Entry::Full(record) = item
                && seq >= floor
            {
                self.insert_row(log, number, entry, seq, &record, &leaves[usize::from(entry)]);
            }
            entry += 1;
        });
        let batch = self.batches[number as usize].as_ref().expect("inserted above");
        if batch.live == 0 {
            self.drop_batch(number);
        } else {
            self.maybe_rewrite(number);
        }
    }

    fn insert_row(&mut self, log: u32, batch: u32, entry: u16, seq: u64, record: &Record<'_>, leaf: &Leaf) {
        let (kind, key) = (record.kind, record.key);
        let hash = self.hash(kind, &key);
        let own = self.claims(kind, &key).find(|&row| {
            self.batches[self.rows[row as usize].batch as usize]
                .as_ref()
                .is_some_and(|b| b.log == log)
        });
        if let Some(own) = own {
            if self.seq(own) > seq {
                return;
            }
            // The row stays where it is in the table, and only points elsewhere.
            let old = self.leave(own, kind, &key);
            self.enter(own, batch, entry, seq, record, leaf);
            self.tidy(old, batch);
            return;
        }
        let head = self.first_claim(kind, &key);
        let row = Row {
            batch,
            entry,
            ends: false,
            mark: [0; 16],
            next: head.unwrap_or(NONE),
        };
        let number = match self.free_rows.pop() {
            Some(free) => {
                self.rows[free as usize] = row;
                free
            }
            None => {
                self.rows.push(row);
                self.rows.len() as u32 - 1
            }
        };
        self.enter(number, batch, entry, seq, record, leaf);
        match head {
            Some(head) => self.table.replace(hash, head, number),
            None => {
                let mut table = core::mem::take(&mut self.table);
                table.insert(hash, number, |row| {
                    let record = self.record(row);
                    self.hash(record.kind, &record.key)
                });
                self.table = table;
            }
        }
    }

    /// Puts a row into a batch, its log's digest and the rows that end.
    fn enter(&mut self, row: u32, batch: u32, entry: u16, seq: u64, record: &Record<'_>, leaf: &Leaf) {
        let end = match record {
            Record {
                kind: RecordKind::ANNOUNCEMENT,
                withdrawn: false,
                payload,
                ..
            } => Announcement::end_of(payload),
            _ => 0,
        };
        if end > 0 {
            self.ending.insert((end, row));
        }
        let mark = mark(leaf);
        let slot = &mut self.rows[row as usize];
        (slot.batch, slot.entry, slot.ends, slot.mark) = (batch, entry, end > 0, mark);
        let target = self.batches[batch as usize]
            .as_mut()
            .expect("the row goes into it");
        target.rows[usize::from(entry)] = row;
        target.live += 1;
        target.live_bytes += record.len() as u32;
        let log = &mut self.logs[target.log as usize];
        log.digest.add(&row_hash(seq, &mark));
        log.rows += 1;
        if log.visible {
            self.touch(record.kind, record.key);
        }
    }

    /// Undoes `enter`; returns the batch, which may need tidying.
    fn leave(&mut self, row: u32, kind: RecordKind, key: &[u8; 32]) -> u32 {
        let seq = self.seq(row);
        let Row {
            batch,
            entry,
            ends,
            mark,
            ..
        } = self.rows[row as usize];
        let record = self.record(row);
        let len = record.len();
        if ends {
            let end = Announcement::end_of(record.payload);
            self.ending.remove(&(end, row));
        }
        let source = self.batches[batch as usize].as_mut().expect("the row was in it");
        source.rows[usize::from(entry)] = NONE;
        source.live -= 1;
        source.live_bytes -= len as u32;
        let log = &mut self.logs[source.log as usize];
        log.digest.sub(&row_hash(seq, &mark));
        log.rows -= 1;
        if log.visible {
            self.touch(kind, *key);
        }
        batch
    }

    /// Drops or shortens a batch that rows have left, unless it is `keep`.
    fn tidy(&mut self, batch: u32, keep: u32) {
        if batch == keep {
            return;
        }
        match &self.batches[batch as usize] {
            Some(left) if left.live == 0 => self.drop_batch(batch),
            _ => self.maybe_rewrite(batch),
        }
    }

    /// Takes a row out. Its batch is dropped with its last row, unless it is `keep`.
    fn kill(&mut self, row: u32, keep: u32) {
        let record = self.record(row);
        let (kind, key) = (record.kind, record.key);
        let hash = self.hash(kind, &key);
        let next = self.rows[row as usize].next;
        let head = self.first_claim(kind, &key).expect("the row is in the table");
        if head != row {
            let before = self
                .claims(kind, &key)
                .find(|&r| self.rows[r as usize].next == row);
            self.rows[before.expect("the chain leads to it") as usize].next = next;
        } else if next != NONE {
            self.table.replace(hash, row, next);
        } else {
            let mut table = core::mem::take(&mut self.table);
            table.remove(hash, row, |row| {
                let record = self.record(row);
                self.hash(record.kind, &record.key)
            });
            self.table = table;
        }
        let batch = self.leave(row, kind, &key);
        self.free_rows.push(row);
        self.tidy(batch, keep);
    }

    fn drop_batch(&mut self, number: u32) {
        let Some(batch) = &self.batches[number as usize] else {
            return;
        };
        let (log, first) = (batch.log, batch.first);
        let rows: Vec<u32> = batch.rows.iter().copied().filter(|&row| row != NONE).collect();
        for row in rows {
            self.kill(row, number);
        }
        self.batches[number as usize] = None;
        self.free_batches.push(number);
        self.logs[log as usize].batches.remove(&first);
    }

    /// Replaces dead records by their leaves when they are more than half of the bytes.
    fn maybe_rewrite(&mut self, number: u32) {
        let Some(batch) = &self.batches[number as usize] else {
            return;
        };
        let dead = batch.rows.len() - batch.live as usize;
        if batch.body.len() < MIN_REWRITE || batch.live_bytes as usize * 2 + dead * 66 > batch.body.len() {
            return;
        }
        let bytes = self.batch_bytes(number);
        let view = BatchView::read(&bytes).expect("written by this replica");
        let mut offsets = Vec::with_capacity(batch.rows.len());
        view.for_each(|at, _| offsets.push(at as u32));
        let body = view.body().into();
        let batch = self.batches[number as usize].as_mut().expect("checked above");
        batch.body = body;
        batch.offsets = offsets.into_boxed_slice();
    }

    fn raise(&mut self, log: u32, floor: u64) {
        let low: Vec<u32> = self.logs[log as usize]
            .batches
            .range(..floor)
            .map(|(_, &batch)| batch)
            .collect();
        for number in low {
            let batch = self.batches[number as usize]
                .as_ref()
                .expect("the log points to it");
            let below = (floor - batch.first).min(batch.rows.len() as u64) as usize;
            if below == batch.rows.len() {
                self.drop_batch(number);
                continue;
            }
            let rows: Vec<u32> = batch.rows[..below]
                .iter()
                .copied()
                .filter(|&row| row != NONE)
                .collect();
            for row in rows {
                self.kill(row, number);
            }
            if self.batches[number as usize]
                .as_ref()
                .is_some_and(|batch| batch.live == 0)
            {
                self.drop_batch(number);
            } else {
                self.maybe_rewrite(number);
            }
        }
    }

    fn clear(&mut self, log: u32) {
        let batches: Vec<u32> = self.logs[log as usize].batches.values().copied().collect();
        for batch in batches {
            self.drop_batch(batch);
        }
        self.logs[log as usize].floor = 1;
        debug_assert_eq!(self.logs[log as usize].digest, Digest::default());
    }

    /// Drops the rows of a host that is gone; its position stays, so that nothing old comes back.
    pub(crate) fn forget(&mut self, host: &HostId) {
        if let Some(&log) = self.by_host.get(host) {
            self.clear(log);
            self.logs[log as usize].position.applied = 0;
        }
    }

    /// Starts the log of a new epoch.
    pub(crate) fn begin(&mut self, host: &HostId, epoch: u32) {
        let log = self.log_of(host);
        if epoch > self.logs[log as usize].position.epoch {
            self.clear(log);
            self.logs[log as usize].position = LogPosition { epoch, applied: 0 };
        }
    }

    /// Shows or hides all rows of a host: those of a dead host are kept for a while, unseen.
    pub(crate) fn show(&mut self, host: &HostId, visible: bool) {
        let log = self.log_of(host);
        if self.logs[log as usize].visible == visible {
            return;
        }
        self.logs[log as usize].visible = visible;
        if self.logs[log as usize].rows > RING {
            // Readers must read everything anyway.
            self.version += RING as u64;
            self.ring.clear();
            return;
        }
        let mut keys = Vec::new();
        for &number in self.logs[log as usize].batches.values() {
            let batch = self.batches[number as usize]
                .as_ref()
                .expect("the log points to it");
            keys.extend(batch.rows.iter().filter(|&&row| row != NONE).map(|&row| {
                let record = self.record(row);
                (record.kind, record.key)
            }));
        }
        for (kind, key) in keys {
            self.touch(kind, key);
        }
        self.version += 1;
        self.ring.push_back((
            self.version,
            RowChange {
                kind: RecordKind(0),
                key: host.0,
            },
        ));
        if self.ring.len() > RING {
            self.ring.pop_front();
        }
    }

    // -- reading -------------------------------------------------------------------------------------

    fn batch_bytes(&self, number: u32) -> Vec<u8> {
        let batch = self.batches[number as usize]
            .as_ref()
            .expect("asked for by number");
        let log = &self.logs[batch.log as usize];
        let entries = batch.rows.iter().enumerate().map(|(i, &row)| {
            if row != NONE {
                return Entry::Full(self.record(row));
            }
            match entry_at(&batch.body, batch.offsets[i] as usize) {
                Some((entry, _)) => Entry::Dead(entry.leaf()),
                None => unreachable!("the body was read before"),
            }
        });
        encode(
            &log.host,
            log.position.epoch,
            batch.first,
            batch.floor,
            &batch.sig,
            entries,
        )
    }

    /// Batches of `host` after the number `after`, oldest first, until `budget` bytes are passed. The flag says
    /// whether there are more.
    #[must_use]
    pub(crate) fn serve(&self, host: &HostId, after: u64, budget: usize) -> (Vec<Vec<u8>>, bool) {
        let Some(log) = self.log(host) else {
            return (Vec::new(), false);
        };
        let mut batches = Vec::new();
        let mut bytes = 0;
        for &number in log.batches.values() {
            let batch = self.batches[number as usize]
                .as_ref()
                .expect("the log points to it");
            if batch.first + batch.rows.len() as u64 - 1 <= after {
                continue;
            }
            if bytes >= budget {
                return (batches, true);
            }
            let encoded = self.batch_bytes(number);
            bytes += encoded.len();
            batches.push(encoded);
        }
        (batches, false)
    }

    /// Batches that hold these numbers.
    pub(crate) fn serve_rows(&self, host: &HostId, seqs: &[u64]) -> Vec<Vec<u8>> {
        let Some(log) = self.log(host) else {
            return Vec::new();
        };
        let mut numbers: Vec<u32> = seqs
            .iter()
            .filter_map(|&seq| {
                let (&first, &number) = log.batches.range(..=seq).next_back()?;
                let batch = self.batches[number as usize].as_ref()?;
                (seq < first + batch.rows.len() as u64).then_some(number)
            })
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
            .into_iter()
            .map(|number| self.batch_bytes(number))
            .collect()
    }

    /// Items for reconciliation of one host's rows: number and start of the leaf.
    pub(crate) fn items(&self, host: &HostId) -> Vec<[u8; 16]> {
        let Some(log) = self.log(host) else {
            return Vec::new();
        };
        let mut items = Vec::with_capacity(log.rows);
        for &number in log.batches.values() {
            let batch = self.batches[number as usize]
                .as_ref()
                .expect("the log points to it");
            for (i, &row) in batch.rows.iter().enumerate().filter(|(_, row)| **row != NONE) {
                let mut item = [0; 16];
                item[..8].copy_from_slice(&(batch.first + i as u64).to_le_bytes());
                item[8..].copy_from_slice(&self.record(row).leaf().0[..8]);
                items.push(item);
            }
        }
        items
    }

    /// Live rows of `host` from the oldest on, at most `max`: number, kind, key, whether withdrawn, payload.
    #[expect(
        clippy::type_complexity,
        reason = "the fields of a row, taken apart at once by both callers"
    )]
    pub(crate) fn oldest(
        &self,
        host: &HostId,
        max: usize,
    ) -> Vec<(u64, RecordKind, [u8; 32], bool, Vec<u8>)> {
        let Some(log) = self.log(host) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for &number in log.batches.values() {
            let batch = self.batches[number as usize]
                .as_ref()
                .expect("the log points to it");
            for &row in batch.rows.iter().filter(|&&row| row != NONE) {
                if rows.len() == max {
                    return rows;
                }
                let record = self.record(row);
                rows.push((
                    self.seq(row),
                    record.kind,
                    record.key,
                    record.withdrawn,
                    record.payload.to_vec(),
                ));
            }
        }
        rows
    }

    /// The announcement of an agent by a live host, if there is one. Of several hosts that claim it, the one wins to
    /// which the agent agreed last.
    #[must_use]
    pub fn agent(&self, collective: &[u8; 32], id: &[u8; 32]) -> Option<Agent<'_>> {
        let mut live = self
            .claims(RecordKind::ANNOUNCEMENT, id)
            .filter_map(|row| self.live_agent(row));
        let first = live.next()?;
        let Some(second) = live.next() else {
            return Some(first);
        };
        [first, second]
            .into_iter()
            .chain(live)
            .filter(|agent| agent.announcement.agreed(collective, id, &agent.host))
            .max_by_key(|agent| (agent.announcement.since, agent.host))
    }

    fn live_agent(&self, row: u32) -> Option<Agent<'_>> {
        let log = self.log_of_row(row);
        let record = self.record(row);
        if !log.visible || record.withdrawn {
            return None;
        }
        if self.over(row) {
            return None;
        }
        let announcement = Announcement::read(record.payload).ok()?;
        Some(Agent {
            id: record.key,
            host: log.host,
            epoch: log.position.epoch,
            seq: self.seq(row),
            announcement,
        })
    }

    /// Agents of live hosts from a place on, about `max` of them, and the place to go on from. `None` is the start, and
    /// the end. Rows that change meanwhile may be left out or come twice; they are in [`Self::changes`].
    #[must_use]
    pub fn page(
        &self,
        collective: &[u8; 32],
        from: Option<(HostId, u64)>,
        max: usize,
    ) -> (Vec<Agent<'_>>, Option<(HostId, u64)>) {
        let mut agents = Vec::new();
        let (start, first) = from.unwrap_or((HostId([0; 32]), 0));
        for (host, &log) in self.by_host.range(start..) {
            let log = &self.logs[log as usize];
            if !log.visible {
                continue;
            }
            let first = if *host == start { first } else { 0 };
            for (&at, &number) in log.batches.range(first..) {
                if agents.len() >= max {
                    return (agents, Some((*host, at)));
                }
                let batch = self.batches[number as usize]
                    .as_ref()
                    .expect("the log points to it");
                for &row in batch.rows.iter().filter(|&&row| row != NONE) {
                    if self.record(row).kind != RecordKind::ANNOUNCEMENT {
                        continue;
                    }
                    let Some(agent) = self.live_agent(row) else {
                        continue;
                    };
                    let contested = self.claims(RecordKind::ANNOUNCEMENT, &agent.id).nth(1).is_some();
                    if !contested
                        || self
                            .agent(collective, &agent.id)
                            .is_some_and(|a| a.host == agent.host)
                    {
                        agents.push(agent);
                    }
                }
            }
        }
        (agents, None)
    }

    /// Payload of a record that a live host has in its log.
    #[must_use]
    pub fn payload(&self, kind: RecordKind, key: &[u8; 32]) -> Option<&[u8]> {
        self.claims(kind, key).find_map(|row| {
            let record = self.record(row);
            (self.log_of_row(row).visible && !record.withdrawn).then_some(record.payload)
        })
    }

    /// Calls `visit` with key and payload of every record of this kind that a live host has in its log.
    pub fn for_each_record<'s>(&'s self, kind: RecordKind, mut visit: impl FnMut([u8; 32], &'s [u8])) {
        for log in self.logs.iter().filter(|log| log.visible) {
            for &number in log.batches.values() {
                let batch = self.batches[number as usize]
                    .as_ref()
                    .expect("the log points to it");
                for &row in batch.rows.iter().filter(|&&row| row != NONE) {
                    let record = self.record(row);
                    if record.kind == kind && !record.withdrawn {
                        visit(record.key, record.payload);
                    }
                }
            }
        }
    }

    /// Number of agents in the log of `host`, seen or not.
    #[must_use]
    pub fn agents_of(&self, host: &HostId) -> usize {
        let mut count = 0;
        if let Some(log) = self.log(host) {
            for &number in log.batches.values() {
                let batch = self.batches[number as usize]
                    .as_ref()
                    .expect("the log points to it");
                count += batch
                    .rows
                    .iter()
                    .filter(|&&row| row != NONE)
                    .filter(|&&row| {
                        let record = self.record(row);
                        record.kind == RecordKind::ANNOUNCEMENT && !record.withdrawn && !self.over(row)
                    })
                    .count();
            }
        }
        count
    }

    /// Checks that everything that is kept twice agrees with a rebuild; for tests.
    ///
    /// # Panics
    /// When something differs.
    pub fn verify(&self) {
        let (mut rows, mut ends) = (0, 0);
        for log in &self.logs {
            let mut digest = Digest::default();
            let mut here = 0;
            for (&first, &number) in &log.batches {
                let batch = self.batches[number as usize]
                    .as_ref()
                    .expect("a log points to live batches");
                assert_eq!(batch.first, first);
                let live: Vec<u32> = batch.rows.iter().copied().filter(|&row| row != NONE).collect();
                assert_eq!(live.len(), batch.live as usize);
                assert!(!live.is_empty(), "a batch without rows is dropped");
                let bytes: usize = live.iter().map(|&row| self.record(row).len()).sum();
                assert_eq!(bytes, batch.live_bytes as usize);
                for row in live {
                    let (seq, record) = (self.seq(row), self.record(row));
                    assert!(seq >= log.floor && seq <= log.position.applied);
                    digest.add(&row_hash(seq, &mark(&record.leaf())));
                    if self.rows[row as usize].ends {
                        let end = Announcement::end_of(record.payload);
                        assert!(self.ending.contains(&(end, row)));
                        ends += 1;
                    }
                    assert!(
                        self.claims(record.kind, &record.key).any(|r| r == row),
                        "the table finds it"
                    );
                    here += 1;
                }
            }
            assert_eq!(digest, log.digest);
            assert_eq!(here, log.rows);
            rows += here;
        }
        assert_eq!(rows, self.rows());
        assert_eq!(ends, self.ending.len());
        assert!(self.table.len() <= rows);
    }
}

#[cfg(test)]
mod tests {
    use pandacore_matching::Rng;
    use pandacore_trust::KeyPair;

    use super::*;
    use crate::batch::sign;
    use crate::host::{Crypto, Ed25519};

    const HOME: [u8; 32] = [3; 32];

    struct Writer {
        crypto: Ed25519,
        next: u64,
        floor: u64,
    }

    impl Writer {
        fn new(seed: u8) -> Self {
            Self {
                crypto: Ed25519(KeyPair::from_seed(&[seed; 32])),
                next: 1,
                floor: 1,
            }
        }

        fn batch(&mut self, keys: &[(u8, bool, Vec<u8>)]) -> Vec<u8> {
            let records: Vec<Record<'_>> = keys
                .iter()
                .map(|(key, withdrawn, payload)| Record {
                    kind: RecordKind::ANNOUNCEMENT,
                    withdrawn: *withdrawn,
                    key: [*key; 32],
                    payload,
                })
                .collect();
            let bytes = sign(&self.crypto, &HOME, 1, self.next, self.floor, &records);
            self.next += keys.len() as u64;
            bytes
        }
    }

    fn apply(replica: &mut Replica, bytes: &[u8], pulled: bool) -> Applied {
        let view = BatchView::read(bytes).unwrap();
        let leaves = view
            .verify(&HOME, &Ed25519(KeyPair::from_seed(&[0; 32])))
            .unwrap();
        let applied = replica.apply(&view, &leaves, pulled);
        replica.verify();
        applied
    }

    fn payload(n: u32) -> Vec<u8> {
        let name = format!("agent {n}");
        Announcement {
            name: &name,
            ..Announcement::empty()
        }
        .encode(["a.b"])
        .unwrap()
    }

    #[test]
    fn replicas_that_saw_different_parts_end_equal() {
        let mut rng = Rng::new(11);
        let mut writer = Writer::new(1);
        let host = writer.crypto.id();
        let (mut pushed, mut late) = (Replica::new(1), Replica::new(2));
        pushed.show(&host, true);
        for round in 0..300u32 {
            if round % 40 == 39 {
                // The owner writes again what is old and still true, then voids the rest.
                let old = pushed.oldest(&host, 8);
                let again: Vec<_> = old
                    .iter()
                    .map(|(_, _, key, w, p)| (key[0], *w, p.clone()))
                    .collect();
                writer.floor = old.last().map_or(1, |row| row.0 + 1);
                let bytes = writer.batch(&again);
                assert_eq!(apply(&mut pushed, &bytes, false), Applied::Advanced);
            }
            let keys: Vec<_> = (0..=rng.below(5))
                .map(|_| (rng.below(40) as u8, rng.below(4) == 0, payload(round)))
                .collect();
            let bytes = writer.batch(&keys);
            assert_eq!(apply(&mut pushed, &bytes, false), Applied::Advanced);
            assert_eq!(apply(&mut pushed, &bytes, false), Applied::Duplicate);
            if round % 70 == 5 {
                let after = late.position(&host).applied;
                for bytes in pushed.serve(&host, after, usize::MAX).0 {
                    apply(&mut late, &bytes, true);
                }
                assert_eq!(late.digest(&host), pushed.digest(&host), "round {round}");
            }
        }
        let mut fresh = Replica::new(3);
        let mut after = 0;
        loop {
            let (batches, more) = pushed.serve(&host, after, 2_000);
            for bytes in batches {
                apply(&mut fresh, &bytes, true);
            }
            after = fresh.position(&host).applied;
            if !more {
                break;
            }
        }
        assert_eq!(fresh.digest(&host), pushed.digest(&host));
        assert_eq!(fresh.position(&host), pushed.position(&host));
    }

    #[test]
    fn a_hole_left_by_a_dishonest_relay_is_found_and_filled() {
        let mut writer = Writer::new(1);
        let host = writer.crypto.id();
        let keys: Vec<_> = (0..10).map(|k| (k, false, payload(u32::from(k)))).collect();
        let honest = writer.batch(&keys);
        let view = BatchView::read(&honest).unwrap();
        let mut entries = Vec::new();
        view.for_each(|_, entry| entries.push(entry));
        entries[4] = Entry::Dead(entries[4].leaf());
        let thinned = encode(&host, 1, 1, 1, &view.sig(), entries.into_iter());
        let (mut good, mut bad) = (Replica::new(1), Replica::new(1));
        apply(&mut good, &honest, false);
        apply(&mut bad, &thinned, false);
        assert_ne!(good.digest(&host), bad.digest(&host));
        let bytes = good.serve_rows(&host, &[5]).remove(0);
        let view = BatchView::read(&bytes).unwrap();
        let leaves = view.verify(&HOME, &writer.crypto).unwrap();
        assert_eq!(bad.repair(&view, &leaves), 1);
        bad.verify();
        assert_eq!(good.digest(&host), bad.digest(&host));
        assert_eq!(bad.repair(&view, &leaves), 0);
    }

    #[test]
    fn an_earlier_start_changes_nothing_and_a_later_one_replaces_all() {
        let mut writer = Writer::new(1);
        let host = writer.crypto.id();
        let mut replica = Replica::new(1);
        replica.show(&host, true);
        apply(
            &mut replica,
            &writer.batch(&[(1, false, payload(1)), (2, false, payload(2))]),
            false,
        );
        let kind = RecordKind::ANNOUNCEMENT;
        let next = sign(
            &writer.crypto,
            &HOME,
            2,
            1,
            1,
            &[Record {
                kind,
                withdrawn: false,
                key: [9; 32],
                payload: &payload(9),
            }],
        );
        assert_eq!(apply(&mut replica, &next, false), Applied::Advanced);
        assert_eq!(replica.rows(), 1);
        assert_eq!(
            apply(&mut replica, &writer.batch(&[(3, false, payload(3))]), false),
            Applied::Stale
        );
        assert!(replica.agent(&HOME, &[9; 32]).is_some());
    }

    #[test]
    fn two_hosts_that_claim_one_agent_are_judged_by_the_agents_agreement() {
        let (mut a, mut b) = (Writer::new(1), Writer::new(2));
        let agent = KeyPair::from_seed(&[5; 32]);
        let id = agent.id().0;
        let proof = |host: &HostId, since| {
            Sig::new(agent.sign(&crate::announcement::hosting_message(&HOME, &id, host, since)))
        };
        let stated = |host: &HostId, since, honest: bool| {
            let proof = if honest {
                proof(host, since)
            } else {
                Sig([[1; 32]; 2])
            };
            Announcement {
                since,
                proof,
                ..Announcement::empty()
            }
            .encode(["a"])
            .unwrap()
        };
        let kind = RecordKind::ANNOUNCEMENT;
        let write = |w: &mut Writer, payload: &[u8]| {
            let bytes = sign(
                &w.crypto,
                &HOME,
                1,
                w.next,
                1,
                &[Record {
                    kind,
                    withdrawn: false,
                    key: id,
                    payload,
                }],
            );
            w.next += 1;
            bytes
        };
        let mut replica = Replica::new(1);
        let (host_a, host_b) = (a.crypto.id(), b.crypto.id());
        replica.show(&host_a, true);
        replica.show(&host_b, true);
        let bytes = write(&mut a, &stated(&host_a, 1, true));
        apply(&mut replica, &bytes, false);
        let bytes = write(&mut b, &stated(&host_b, 99, false));
        apply(&mut replica, &bytes, false);
        assert_eq!(
            replica.agent(&HOME, &id).unwrap().host,
            host_a,
            "a thief has no agreement"
        );
        let bytes = write(&mut b, &stated(&host_b, 2, true));
        apply(&mut replica, &bytes, false);
        assert_eq!(replica.agent(&HOME, &id).unwrap().host, host_b);
        replica.show(&host_b, false);
        assert_eq!(replica.agent(&HOME, &id).unwrap().host, host_a);
        replica.show(&host_b, true);
        assert_eq!(replica.page(&HOME, None, 10).0.len(), 1);
    }

    #[test]
    fn changes_are_read_by_version_and_never_lost_silently() {
        let mut writer = Writer::new(1);
        let host = writer.crypto.id();
        let mut replica = Replica::new(1);
        replica.show(&host, true);
        let start = replica.version();
        apply(
            &mut replica,
            &writer.batch(&[(1, false, payload(1)), (2, false, payload(2))]),
            false,
        );
        apply(&mut replica, &writer.batch(&[(1, true, vec![])]), false);
        let keys: Vec<u8> = replica.changes(start).unwrap().iter().map(|c| c.key[0]).collect();
        assert_eq!(keys, [1, 2]);
        assert_eq!(replica.changes(replica.version()).unwrap(), []);
        for i in 0..140u32 {
            let keys: Vec<_> = (0..250).map(|k| (k, false, payload(i))).collect();
            let bytes = writer.batch(&keys);
            let view = BatchView::read(&bytes).unwrap();
            let leaves = view.verify(&HOME, &writer.crypto).unwrap();
            for _ in 0..2 {
                replica.apply(&view, &leaves, false);
            }
        }
        replica.apply(
            &BatchView::read(&writer.batch(&[(1, false, payload(1))])).unwrap(),
            &[Leaf([0; 32])],
            false,
        );
        let n = replica.changes(start).map(|changes| changes.len());
        assert!(n.is_none(), "70,000 changes pass the ring: {n:?}");
    }

    #[test]
    fn an_announcement_past_its_validity_does_not_count_and_its_end_is_a_change() {
        let mut writer = Writer::new(1);
        let host = writer.crypto.id();
        let mut replica = Replica::new(1);
        replica.show(&host, true);
        let until = |not_after| {
            Announcement {
                not_after,
                ..Announcement::empty()
            }
            .encode(["a.b"])
            .unwrap()
        };
        let rows = [
            (1, false, until(1_000)),
            (2, false, until(0)),
            (3, false, until(9_000)),
        ];
        apply(&mut replica, &writer.batch(&rows), false);
        let live = |replica: &Replica| -> Vec<u8> {
            (1..=3)
                .filter(|&k| replica.agent(&HOME, &[k; 32]).is_some())
                .collect()
        };
        assert_eq!(live(&replica), [1, 2, 3], "nobody told the time");
        // Clocks may differ by five minutes.
        replica.set_wall(1_300);
        let before = replica.version();
        assert_eq!(live(&replica), [1, 2, 3]);
        replica.set_wall(1_301);
        assert_eq!((live(&replica), replica.agents_of(&host)), (vec![2, 3], 2));
        assert_eq!(replica.page(&HOME, None, 10).0.len(), 2);
        let changed: Vec<[u8; 32]> = replica
            .changes(before)
            .unwrap()
            .iter()
            .map(|change| change.key)
            .collect();
        assert_eq!(changed, [[1; 32]]);
        // A clock that was ten years ahead does no lasting harm.
        replica.set_wall(400_000_000);
        assert_eq!(live(&replica), [2]);
        replica.set_wall(1_302);
        assert_eq!(live(&replica), [2, 3]);
        // Announced anew, it counts again, and nothing of the old one is left.
        apply(&mut replica, &writer.batch(&[(1, false, until(2_000))]), false);
        assert_eq!(live(&replica), [1, 2, 3]);
        assert_eq!(replica.ending.len(), 2);
        apply(
            &mut replica,
            &writer.batch(&[(1, true, Vec::new()), (3, true, Vec::new())]),
            false,
        );
        assert!(replica.ending.is_empty());
        assert_eq!(live(&replica), [2]);
    }
}
