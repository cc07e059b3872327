//! Requests of the whole collective, and offers.
use std::sync::Arc;
use std::time::Duration;

use super::{Node, Offer, Output, Reject, Request};
use crate::host::HostId;
use crate::queue::Class;
use crate::swim::State;
use crate::wire::{Builder, Items, Kind, OfferBody, RequestBody, only};

/// Requests and offers kept for the application, and requests remembered against repetition.
const INBOX: usize = 1024;
const SEEN_REQUESTS: usize = 10_000;

impl Node {
    pub(super) fn request_in(
        &mut self,
        from: HostId,
        body: &[u8],
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let request: RequestBody<'_> = only(body).map_err(|_| Reject::Malformed)?;
        let key = (request.origin, request.number);
        if request.origin == self.swim.me().host || self.seen_requests.contains_key(&key) {
            return Ok(());
        }
        let epoch = self.swim.record(&request.origin).map(|record| record.epoch);
        if epoch != Some(request.epoch) || !self.swim.state(&request.origin).is_some_and(State::live) {
            return Err(Reject::Sender);
        }
        self.within_rate(request.origin, Kind::Request)?;
        let capabilities: Vec<String> = Items::<&str>::new(request.capabilities)
            .all(crate::announcement::MAX_CAPABILITIES)
            .map_err(|_| Reject::Malformed)?
            .into_iter()
            .map(str::to_owned)
            .collect();
        if !self
            .crypto
            .verify(&request.origin, &request.message(&self.collective), &request.sig)
        {
            return Err(Reject::Signature);
        }
        let patience = Duration::from_secs(u64::from(request.patience_s).min(600));
        if self.seen_requests.len() >= SEEN_REQUESTS {
            self.seen_requests.pop_first();
        }
        self.seen_requests
            .insert(key, self.now + patience + Duration::from_secs(60));
        self.request_arrivals += 1;
        if self.requests.len() == INBOX {
            self.requests.pop_front();
        }
        self.requests.push_back(Request {
            arrival: self.request_arrivals,
            origin: request.origin,
            number: request.number,
            capabilities,
            until: self.now + patience,
        });
        let frame: Arc<[u8]> = Builder::new(Kind::Request).raw(body).done().into();
        for to in self.eager.union(&self.lazy).filter(|to| **to != from) {
            out.push(Output::Stream {
                to: *to,
                class: Class::Team,
                bytes: Arc::clone(&frame),
            });
        }
        Ok(())
    }

    pub(super) fn offer_in(
        &mut self,
        from: HostId,
        body: &[u8],
        out: &mut Vec<Output>,
    ) -> Result<(), Reject> {
        let offer: OfferBody<'_> = only(body).map_err(|_| Reject::Malformed)?;
        let (ids, tail) = offer.agents.as_chunks::<32>();
        if !tail.is_empty() || ids.is_empty() || ids.len() > INBOX || self.waiting_offers.len() >= INBOX {
            return Err(Reject::Malformed);
        }
        let got = Offer {
            number: offer.number,
            host: from,
            agents: ids.to_vec(),
        };
        let until = self.now + Duration::from_secs(60);
        self.waiting_offers.push((got, offer.epoch, offer.applied, until));
        let mut place = self.place(&from);
        place.applied = offer.applied;
        if place.epoch == offer.epoch && self.place(&from).applied < offer.applied {
            self.begin_sync(from, vec![place], false, out);
        }
        self.settle_offers();
        Ok(())
    }

    /// Offers count once their agents are here, verified like every other announcement.
    pub(super) fn settle_offers(&mut self) {
        if self.waiting_offers.is_empty() {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting_offers);
        waiting.retain(|(offer, epoch, applied, _)| {
            let position = self.replica.position(&offer.host);
            let here = (position.epoch, position.applied) >= (*epoch, *applied);
            if here {
                if self.offers.len() == INBOX {
                    self.offers.pop_front();
                }
                self.offers.push_back(offer.clone());
                self.offer_arrivals += 1;
            }
            !here
        });
        self.waiting_offers = waiting;
    }
}
