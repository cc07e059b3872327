//! Repair: comparisons with other hosts, and pulls of what is missing.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pandacore_matching::Rng;

use super::{JoinState, MAX_ITEMS, Node, Output, Reject, Sync, stream};
use crate::host::{HostId, Short};
use crate::queue::Class;
use crate::riblt::{self, CELL, Cell};
use crate::store::Digest;
use crate::swim::{State, Timer, jitter};
use crate::wire::{Builder, CellsHead, HostDigest, Items, Kind, Place, RowsHead, Update, head};

/// Most bytes of news or places in one frame.
const CHUNK: usize = 64 << 10;
/// Most hosts asked for in one pull.
const PULL_HOSTS: usize = 1024;
/// How long the host that is asked to let this one in may take to begin.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Cells of one reconciliation that is kept in memory.
const MAX_CELLS: usize = 1 << 16;

impl Node {
    /// Asks one host to let this one in, and another one only when that takes long: lists of all hosts are costly, and
    /// many may join at once.
    pub(super) fn ask_in(&mut self, peer: HostId, out: &mut Vec<Output>) {
        if self.asked_in.is_none_or(|asked| self.now >= asked + ASK_AGAIN) {
            self.asked_in = Some(self.now);
            stream(out, peer, Class::Control, Builder::new(Kind::WantHosts));
        }
    }

    pub(super) fn compare(&mut self, peer: HostId, out: &mut Vec<Output>) {
        stream(
            out,
            peer,
            Class::Control,
            Builder::new(Kind::Root).raw(&self.root().bytes()),
        );
    }

    pub(super) fn sync(&mut self, rng: &mut Rng, out: &mut Vec<Output>) {
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

    pub(super) fn places(&self) -> Vec<Place> {
        self.swim
            .live_records()
            .map(|record| self.place(&record.host))
            .collect()
    }

    pub(super) fn send_places(
        &self,
        kind: Kind,
        partial: bool,
        places: &[Place],
        to: HostId,
        out: &mut Vec<Output>,
    ) {
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

    pub(super) fn begin_sync(
        &mut self,
        peer: HostId,
        places: Vec<Place>,
        graft: bool,
        out: &mut Vec<Output>,
    ) {
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
    pub(super) fn pull(&mut self, peer: HostId, out: &mut Vec<Output>) {
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

    pub(super) fn pull_waiting(&mut self, out: &mut Vec<Output>) {
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

    pub(super) fn check_join(&mut self) {
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

    pub(super) fn vector(
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

    pub(super) fn digests(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
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

    pub(super) fn send_cells(&self, to: HostId, head: CellsHead, count: usize, out: &mut Vec<Output>) {
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

    pub(super) fn cells(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
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

    pub(super) fn want_hosts(
        &mut self,
        from: HostId,
        body: &[u8],
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
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

    pub(super) fn serve(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
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
