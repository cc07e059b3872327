//! The tree along which news and batches spread (Plumtree; Leitao, Pereira, Rodrigues 2007): some neighbours push, the
//! others only tell.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pandacore_matching::Rng;

use super::{Heard, JoinState, MAX_ITEMS, Node, Output, Reject, stream};
use crate::batch::{BatchError, BatchView};
use crate::host::HostId;
use crate::queue::Class;
use crate::store::Applied;
use crate::swim::{State, Timer};
use crate::wire::{Builder, Items, Kind, Place};

/// Most news pushed at once.
const MAX_NEWS: usize = 64;
/// Longest batch that a host which had to pull it pushes on, in bytes; of longer ones it only tells.
const PASSED_ON: usize = 32 << 10;
/// How long news is on its way to all, with what it takes for a cut to show.
const ON_ITS_WAY: Duration = Duration::from_millis(400);
/// How long the tree may still bring what had to be pulled, before it counts as broken here.
const SLOW: Duration = Duration::from_secs(2);

impl Node {
    pub(super) fn push(&mut self, kind: Kind, bytes: &[u8], from: Option<HostId>, out: &mut Vec<Output>) {
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
        self.came * (1.0 - passed.as_secs_f64() / ON_ITS_WAY.as_secs_f64()).max(0.0)
    }

    pub(super) fn something_came(&mut self) {
        self.came = self.on_its_way() + 1.0;
        self.came_at = self.now;
    }

    /// Cuts the branch to a neighbour that brings what another one has brought, with a chance that falls with the
    /// number of pieces on their way: each of them may meet itself at another place of the same circle, and one cut is
    /// enough for it. A second one would leave a part without a branch.
    pub(super) fn prune(&mut self, rng: &mut Rng, from: HostId, out: &mut Vec<Output>) {
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
    pub(super) fn keep_branch(&mut self, rng: &mut Rng, cut: Option<HostId>, out: &mut Vec<Output>) {
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
    pub(super) fn push_news(&mut self, from: Option<HostId>, out: &mut Vec<Output>) {
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
    pub(super) fn mend_tree(&mut self, out: &mut Vec<Output>) {
        for peer in std::mem::take(&mut self.swim.asked) {
            if self.lazy.remove(&peer) && self.eager.insert(peer) {
                stream(out, peer, Class::Control, Builder::new(Kind::Graft));
            }
        }
        if self.swim.lazy.len() != self.lazy.len() || !self.swim.lazy.iter().eq(&self.lazy) {
            self.swim.lazy = self.lazy.iter().copied().collect();
        }
    }

    pub(super) fn note(&mut self, host: HostId, place: Place, all: bool) {
        if self.news.is_empty() {
            self.timers.set(self.now + self.config.graft / 2, Timer::Lazy);
        }
        let noted = self.news.entry(host).or_insert((place, false));
        *noted = (place, noted.1 | all);
    }

    pub(super) fn tell_lazy(&mut self, out: &mut Vec<Output>) {
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

    pub(super) fn graft_missing(&mut self, out: &mut Vec<Output>) {
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

    pub(super) fn fill_neighbours(&mut self, rng: &mut Rng, out: &mut Vec<Output>) {
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

    pub(super) fn pushed(
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

    pub(super) fn pulled(&mut self, from: HostId, body: &[u8], out: &mut Vec<Output>) -> Result<(), Reject> {
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

    pub(super) fn have(&mut self, from: HostId, body: &[u8]) -> Result<(), Reject> {
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
}
