//! The own log: what the application announces goes out in signed batches.
use std::sync::Arc;
use std::time::Duration;

use super::{Node, Output};
use crate::batch::{self, BatchView, Record, RecordKind};
use crate::host::{HostId, HostRecord};
use crate::queue::Class;
use crate::store::Applied;
use crate::swim::Timer;
use crate::wire::{Builder, Kind, Place};

/// Most own records signed in one step: a step must not hold up the answers to pings.
const FLUSH_RECORDS: usize = 10_000;
/// Batches of one flush that are still pushed; more are announced and pulled.
const PUSH_BATCHES: usize = 4;

impl Node {
    pub(super) fn enqueue(&mut self, kind: RecordKind, key: [u8; 32], payload: Option<Vec<u8>>) {
        let size = |payload: &Option<Vec<u8>>| 64 + payload.as_ref().map_or(0, Vec::len);
        self.pending_bytes += size(&payload);
        if let Some(old) = self.pending.insert((kind, key), payload) {
            self.pending_bytes -= size(&old);
        }
    }

    pub(super) fn arm_flush(&mut self, wait: Duration) {
        if !self.flushing && !self.pending.is_empty() {
            self.flushing = true;
            self.timers.set(self.now + wait, Timer::Flush);
        }
    }

    pub(super) fn restart_log(&mut self, epoch: u32) {
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

    pub(super) fn flush(&mut self, out: &mut Vec<Output>) {
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

    pub(super) fn place(&self, host: &HostId) -> Place {
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
}
