//! All statements a host knows, verified once, and the web that follows from them.
//!
//! The statements form two grow-only sets in which revocation wins, so the web at a reference time depends on
//! what is known, not on the order or the number of deliveries. What is refused changes nothing.
use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};

use crate::certificate::{Certificate, FULL, Genesis, Record, Refusal, Revocation, RevocationKind};
use crate::graph::{MAX_NODES, Span};
use crate::keys::{AgentId, SIGNATURE_LEN};
use crate::web::{Membership, Web};

/// An issuer's budget.
///
/// At any time at most `subjects` subjects of one issuer count: those whose oldest unexpired certificate began
/// first, ties by certificate id. A certificate takes its place until it expires even if it is revoked, and one
/// with a shorter lifetime than `window` does not count; so nobody frees places by revoking or by short lifetimes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quota {
    /// Subjects that count at once (q).
    pub subjects: usize,
    /// Shortest lifetime that counts, in seconds.
    pub window: u32,
}

/// What the ledger accepts, and how much of it it stores.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Longest lifetime of a certificate, in seconds.
    pub max_lifetime: u64,
    /// How far ahead a statement may lie, in seconds.
    pub clock_skew: u64,
    /// Statements stored of one signer. Beyond it the answer may depend on the order of arrival.
    pub per_signer: usize,
    /// Statements stored in all.
    pub total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_lifetime: 400 * 86_400,
            clock_skew: 60,
            per_signer: 4096,
            total: 8_000_000,
        }
    }
}

/// A stored certificate, without what the key of its map says.
#[derive(Clone)]
struct Held {
    from: u32,
    until: u32,
    serial: u64,
    depth: u8,
    amount: u8,
    id: [u8; 32],
    signatures: Option<Box<[u8; 2 * SIGNATURE_LEN]>>,
}

/// One certificate that counts now, as [`Ledger::live_certificates`] reports it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Live {
    /// The issuer's node.
    pub issuer: u32,
    /// Hash of the signed bytes.
    pub id: [u8; 32],
    /// First second of validity.
    pub from: u32,
    /// First second after validity.
    pub until: u32,
}

/// The statements of one collective and the web that follows from them.
pub struct Ledger {
    genesis: Genesis,
    collective: [u8; 32],
    quota: Option<Quota>,
    limits: Limits,
    nodes: BTreeMap<AgentId, u32>,
    agents: Vec<AgentId>,
    certs: BTreeMap<(u32, u32), Vec<Held>>,
    /// Ended certificates by issuer, subject, serial and signer.
    ended: BTreeMap<(u32, u32, u64, u32), Option<Revocation>>,
    ended_at: BTreeMap<(u32, u32, u64), u32>,
    /// Retirements, compromises and votes by kind, signer and subject.
    keys: BTreeMap<(RevocationKind, u32, u32), Revocation>,
    statements: BTreeMap<u32, usize>,
    total: usize,
    /// Sorted by expiry, so that forgetting costs only what is forgotten.
    expiries: BTreeSet<(u32, u32, u32)>,
    web: Web,
}

impl Ledger {
    /// An empty ledger at the reference time `now`, in seconds.
    #[must_use]
    pub fn new(
        genesis: Genesis,
        latched: bool,
        grace: u32,
        quota: Option<Quota>,
        limits: Limits,
        now: u32,
    ) -> Self {
        let agents = genesis.members().to_vec();
        let founders = (0..agents.len() as u32).collect();
        let membership = Membership {
            genesis: founders,
            threshold: u32::from(genesis.threshold()),
            latched,
            grace,
        };
        Self {
            collective: genesis.collective(),
            nodes: agents
                .iter()
                .zip(0..)
                .map(|(&agent, node)| (agent, node))
                .collect(),
            agents,
            genesis,
            quota,
            limits,
            certs: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_at: BTreeMap::new(),
            keys: BTreeMap::new(),
            statements: BTreeMap::new(),
            total: 0,
            expiries: BTreeSet::new(),
            web: Web::new(membership, now),
        }
    }

    /// The web that follows from the statements.
    #[must_use]
    pub fn web(&self) -> &Web {
        &self.web
    }

    /// The web, to maintain sets in it. Its arcs belong to the ledger.
    pub fn web_mut(&mut self) -> &mut Web {
        &mut self.web
    }

    /// What the collective was founded with.
    #[must_use]
    pub fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// The collective's id.
    #[must_use]
    pub fn collective(&self) -> [u8; 32] {
        self.collective
    }

    /// The node of an agent that some statement, or the genesis, names.
    #[must_use]
    pub fn node(&self, agent: &AgentId) -> Option<u32> {
        self.nodes.get(agent).copied()
    }

    /// The agent of a node.
    #[must_use]
    pub fn agent(&self, node: u32) -> Option<AgentId> {
        self.agents.get(node as usize).copied()
    }

    /// All agents by node.
    #[must_use]
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }

    /// Number of stored statements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.total
    }

    /// True when no statement is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Gives an agent a node before any statement names it, so that a registry can share the numbering.
    ///
    /// # Errors
    /// [`Refusal::QuotaExceeded`] when the graph is full.
    pub fn intern(&mut self, agent: AgentId) -> Result<u32, Refusal> {
        if let Some(node) = self.node(&agent) {
            return Ok(node);
        }
        if self.agents.len() >= MAX_NODES {
            return Err(Refusal::QuotaExceeded { max: MAX_NODES });
        }
        let node = self.agents.len() as u32;
        self.agents.push(agent);
        self.nodes.insert(agent, node);
        self.web.grow(self.agents.len());
        Ok(node)
    }

    /// Moves the reference time forward; false, without a change, if `to` lies in the past.
    ///
    /// Certificates that can count no more are forgotten.
    pub fn advance(&mut self, to: u32) -> bool {
        if !self.web.advance(to) {
            return false;
        }
        let grace = self.web.membership().grace;
        while let Some(&(until, issuer, subject)) = self.expiries.first() {
            if until.saturating_add(grace) > to {
                break;
            }
            self.expiries.pop_first();
            if let Some(held) = self.certs.get_mut(&(issuer, subject)) {
                let before = held.len();
                held.retain(|cert| cert.until.saturating_add(grace) > to);
                let gone = before - held.len();
                if held.is_empty() {
                    self.certs.remove(&(issuer, subject));
                }
                self.total -= gone;
                if let Some(count) = self.statements.get_mut(&issuer) {
                    *count -= gone;
                    if *count == 0 {
                        self.statements.remove(&issuer);
                    }
                }
            }
        }
        true
    }

    /// Takes one record in. On success the web is right again when this returns.
    ///
    /// # Errors
    /// Why the record was refused; nothing has changed then.
    pub fn ingest(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        let record = Record::decode(bytes)?;
        self.admissible(&record)?;
        record.verify()?;
        self.accept(&record)?;
        self.web.settle();
        Ok(())
    }

    /// Takes many records in, verifying signatures on `threads` threads; the answers are in the records' order.
    ///
    /// The web is right again when this returns; it is settled once.
    pub fn ingest_all(&mut self, records: &[&[u8]], threads: usize) -> Vec<Result<(), Refusal>> {
        // What is refused for a cheap reason costs no signature check.
        let mut verdicts: Vec<Result<Record, Refusal>> = records
            .iter()
            .map(|bytes| {
                let record = Record::decode(bytes)?;
                self.admissible(&record).map(|()| record)
            })
            .collect();
        let share = verdicts.len().div_ceil(threads.max(1)).max(1);
        std::thread::scope(|scope| {
            for part in verdicts.chunks_mut(share) {
                scope.spawn(move || {
                    for verdict in part {
                        if let Ok(record) = verdict
                            && let Err(refusal) = record.verify()
                        {
                            *verdict = Err(refusal);
                        }
                    }
                });
            }
        });
        let answers = verdicts
            .into_iter()
            .map(|verdict| {
                let record = verdict?;
                // Again: an earlier record of the batch may be the same one, or may have filled a quota.
                self.admissible(&record)?;
                self.accept(&record)
            })
            .collect();
        self.web.settle();
        answers
    }

    /// Takes a certificate between known nodes whose signatures were checked elsewhere, as simulations do.
    ///
    /// Call [`Web::settle`] afterwards.
    ///
    /// # Errors
    /// As of [`Self::ingest`], less what concerns signatures.
    #[expect(clippy::too_many_arguments, reason = "the fields of a certificate")]
    pub fn admit(
        &mut self,
        issuer: u32,
        subject: u32,
        serial: u64,
        from: u32,
        until: u32,
        depth: u8,
        amount: u8,
    ) -> Result<(), Refusal> {
        if issuer.max(subject) as usize >= self.agents.len() {
            return Err(Refusal::NotAKey);
        }
        if issuer == subject {
            return Err(Refusal::SelfStatement);
        }
        if amount > FULL {
            return Err(Refusal::UnknownKind(amount));
        }
        self.check_interval(u64::from(from), u64::from(until))?;
        let mut hash = Sha256::new();
        hash.update(self.agents[issuer as usize].0);
        hash.update(self.agents[subject as usize].0);
        hash.update(serial.to_le_bytes());
        hash.update(from.to_le_bytes());
        hash.update(until.to_le_bytes());
        hash.update([depth, amount]);
        let held = Held {
            from,
            until,
            serial,
            depth,
            amount,
            id: hash.finalize().into(),
            signatures: None,
        };
        if self.holds(issuer, subject, &held.id) {
            return Err(Refusal::Duplicate);
        }
        self.check_room(issuer)?;
        self.store(issuer, subject, held);
        Ok(())
    }

    /// Ends certificates between nodes without a signature, as simulations do. Call [`Web::settle`] afterwards.
    ///
    /// # Errors
    /// [`Refusal::NotAKey`], [`Refusal::Duplicate`] or [`Refusal::QuotaExceeded`].
    pub fn end(&mut self, issuer: u32, subject: u32, serial: u64, at: u32) -> Result<(), Refusal> {
        if issuer.max(subject) as usize >= self.agents.len() {
            return Err(Refusal::NotAKey);
        }
        self.end_known(issuer, subject, serial, issuer, at, None)
    }

    /// True when the certificate with this id is stored.
    #[must_use]
    pub fn knows(&self, record: &Record) -> bool {
        match record {
            Record::Certificate(cert) => match (self.node(&cert.issuer), self.node(&cert.subject)) {
                (Some(issuer), Some(subject)) => self.holds(issuer, subject, &cert.id()),
                _ => false,
            },
            Record::Revocation(revocation) => self.known_revocation(revocation).is_some(),
        }
    }

    /// The certificates on a node that count at the reference time, by issuer.
    #[must_use]
    pub fn live_certificates(&self, subject: u32) -> Vec<Live> {
        let now = self.web.graph().now();
        let mut live = Vec::new();
        self.web.graph().each_in(subject, |seen| {
            if seen.live(now) && self.web.graph().flags(seen.node) & crate::graph::VOID == 0 {
                live.push(seen.node);
            }
        });
        live.sort_unstable();
        live.dedup();
        live.into_iter()
            .filter_map(|issuer| self.newest(issuer, subject))
            .collect()
    }

    /// The certificates on a node that would count now if their issuers' budgets had room for them, or if they
    /// lived long enough to take a place; by issuer. Looks at every pair: for explanations.
    #[must_use]
    pub fn beyond_budget(&self, subject: u32) -> Vec<Live> {
        if self.quota.is_none() {
            return Vec::new();
        }
        let (graph, now) = (self.web.graph(), self.web.graph().now());
        let counted = self.live_certificates(subject);
        let issuers = self.certs.keys().filter(|pair| pair.1 == subject);
        issuers
            .map(|pair| pair.0)
            .filter(|&issuer| graph.flags(issuer) & crate::graph::VOID == 0)
            .filter(|&issuer| counted.iter().all(|live| live.issuer != issuer))
            .filter(|&issuer| {
                let mut spans = self.spans(issuer, subject).into_iter();
                spans.any(|span| span.from <= now && now < span.until)
            })
            .filter_map(|issuer| self.newest(issuer, subject))
            .collect()
    }

    /// The newest certificate of a pair that has not ended.
    fn newest(&self, issuer: u32, subject: u32) -> Option<Live> {
        let now = self.web.graph().now();
        let held = self.certs.get(&(issuer, subject))?;
        let counts =
            |cert: &&Held| cert.from <= now && now < self.end_of(issuer, subject, cert) && cert.amount > 0;
        let newest = held
            .iter()
            .filter(counts)
            .max_by_key(|cert| (cert.from, cert.id))?;
        Some(Live {
            issuer,
            id: newest.id,
            from: newest.from,
            until: self.end_of(issuer, subject, newest),
        })
    }

    /// The certificate issuer → subject that counts now, encoded, if it is signed.
    #[must_use]
    pub fn live_record(&self, issuer: u32, subject: u32) -> Option<Vec<u8>> {
        let live = self
            .live_certificates(subject)
            .into_iter()
            .find(|live| live.issuer == issuer)?;
        let held = self
            .certs
            .get(&(issuer, subject))?
            .iter()
            .find(|cert| cert.id == live.id)?;
        self.certificate(issuer, subject, held).map(|cert| cert.encode())
    }

    /// How many subjects take a place in the issuer's budget now, revoked or not.
    #[must_use]
    pub fn issued(&self, issuer: u32) -> usize {
        let now = self.web.graph().now();
        let window = self.quota.map_or(0, |quota| quota.window);
        let takes = |cert: &Held| cert.from <= now && now < cert.until && cert.until - cert.from >= window;
        self.certs
            .range((issuer, 0)..=(issuer, u32::MAX))
            .filter(|(_, held)| held.iter().any(takes))
            .count()
    }

    /// SHA-256 over the ids of all stored statements in order: equal on hosts that know the same.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut ids: Vec<[u8; 32]> = self.certs.values().flatten().map(|cert| cert.id).collect();
        ids.extend(self.ended.values().flatten().map(Revocation::id));
        ids.extend(self.keys.values().map(Revocation::id));
        ids.sort_unstable();
        let mut hash = Sha256::new();
        for id in ids {
            hash.update(id);
        }
        hash.finalize().into()
    }

    /// Every signed record, encoded, certificates first; [`Self::ingest_all`] takes them in again.
    #[must_use]
    pub fn export(&self) -> Vec<Vec<u8>> {
        let certs = self.certs.iter().flat_map(|(&(issuer, subject), held)| {
            held.iter()
                .filter_map(move |cert| self.certificate(issuer, subject, cert))
        });
        let revocations = self.ended.values().flatten().chain(self.keys.values());
        certs
            .map(|cert| cert.encode())
            .chain(revocations.map(Revocation::encode))
            .collect()
    }

    fn certificate(&self, issuer: u32, subject: u32, held: &Held) -> Option<Certificate> {
        let signatures = held.signatures.as_ref()?;
        let (mut signature, mut consent) = ([0; SIGNATURE_LEN], [0; SIGNATURE_LEN]);
        signature.copy_from_slice(&signatures[..SIGNATURE_LEN]);
        consent.copy_from_slice(&signatures[SIGNATURE_LEN..]);
        Some(Certificate {
            collective: self.collective,
            issuer: self.agents[issuer as usize],
            subject: self.agents[subject as usize],
            serial: held.serial,
            not_before: u64::from(held.from),
            not_after: u64::from(held.until),
            max_depth: held.depth,
            amount: held.amount,
            signature,
            consent,
        })
    }

    /// Everything that needs no signature check.
    fn admissible(&self, record: &Record) -> Result<(), Refusal> {
        match record {
            Record::Certificate(cert) => {
                if cert.collective != self.collective {
                    return Err(Refusal::ForeignCollective);
                }
                if cert.issuer == cert.subject {
                    return Err(Refusal::SelfStatement);
                }
                self.check_interval(cert.not_before, cert.not_after)?;
                if let (Some(issuer), Some(subject)) = (self.node(&cert.issuer), self.node(&cert.subject))
                    && self.holds(issuer, subject, &cert.id())
                {
                    return Err(Refusal::Duplicate);
                }
                self.node(&cert.issuer)
                    .map_or(Ok(()), |issuer| self.check_room(issuer))?;
            }
            Record::Revocation(revocation) => {
                if revocation.collective != self.collective {
                    return Err(Refusal::ForeignCollective);
                }
                revocation.authorised()?;
                let at = u32::try_from(revocation.at).map_err(|_| Refusal::BadInterval)?;
                // A retirement may lie ahead: it is the key's expiry.
                if revocation.kind != RevocationKind::Retired && self.is_ahead(u64::from(at)) {
                    return Err(Refusal::NotYetValid);
                }
                if self.known_revocation(revocation).is_some_and(|known| known <= at) {
                    return Err(Refusal::Duplicate);
                }
                self.node(&revocation.signer)
                    .map_or(Ok(()), |signer| self.check_room(signer))?;
            }
        }
        if self.total >= self.limits.total {
            return Err(Refusal::QuotaExceeded {
                max: self.limits.total,
            });
        }
        Ok(())
    }

    fn check_interval(&self, from: u64, until: u64) -> Result<(), Refusal> {
        // The last second is kept for "never".
        if from >= until || until >= u64::from(u32::MAX) {
            return Err(Refusal::BadInterval);
        }
        if until - from > self.limits.max_lifetime {
            return Err(Refusal::LifetimeTooLong {
                max: self.limits.max_lifetime,
            });
        }
        // While it is in grace, a certificate still supports membership.
        if until + u64::from(self.web.membership().grace) <= u64::from(self.web.graph().now()) {
            return Err(Refusal::Expired);
        }
        if self.is_ahead(from) {
            return Err(Refusal::NotYetValid);
        }
        Ok(())
    }

    fn is_ahead(&self, time: u64) -> bool {
        time > u64::from(self.web.graph().now()) + self.limits.clock_skew
    }

    fn check_room(&self, signer: u32) -> Result<(), Refusal> {
        let max = self.limits.per_signer;
        if self.statements.get(&signer).is_some_and(|&count| count >= max) {
            return Err(Refusal::QuotaExceeded { max });
        }
        Ok(())
    }

    fn holds(&self, issuer: u32, subject: u32, id: &[u8; 32]) -> bool {
        self.certs
            .get(&(issuer, subject))
            .is_some_and(|held| held.iter().any(|cert| cert.id == *id))
    }

    /// Since when the same statement of the same signer is known to hold.
    fn known_revocation(&self, revocation: &Revocation) -> Option<u32> {
        let signer = self.node(&revocation.signer)?;
        let (issuer, subject) = (self.node(&revocation.issuer)?, self.node(&revocation.subject)?);
        let known = if revocation.kind == RevocationKind::Certificate {
            self.ended
                .get(&(issuer, subject, revocation.serial, signer))?
                .as_ref()
        } else {
            self.keys.get(&(revocation.kind, signer, subject))
        };
        known.and_then(|known| u32::try_from(known.at).ok())
    }

    /// Stores an admissible, verified record and brings the web up to date, but does not settle it.
    fn accept(&mut self, record: &Record) -> Result<(), Refusal> {
        match record {
            Record::Certificate(cert) => {
                let issuer = self.intern(cert.issuer)?;
                let subject = self.intern(cert.subject)?;
                let mut signatures = Box::new([0; 2 * SIGNATURE_LEN]);
                signatures[..SIGNATURE_LEN].copy_from_slice(&cert.signature);
                signatures[SIGNATURE_LEN..].copy_from_slice(&cert.consent);
                let held = Held {
                    from: cert.not_before as u32,
                    until: cert.not_after as u32,
                    serial: cert.serial,
                    depth: cert.max_depth,
                    amount: cert.amount,
                    id: cert.id(),
                    signatures: Some(signatures),
                };
                self.store(issuer, subject, held);
                Ok(())
            }
            Record::Revocation(revocation) => self.accept_revocation(revocation),
        }
    }

    fn accept_revocation(&mut self, revocation: &Revocation) -> Result<(), Refusal> {
        let at = revocation.at as u32;
        let signer = self.intern(revocation.signer)?;
        let issuer = self.intern(revocation.issuer)?;
        let subject = self.intern(revocation.subject)?;
        if revocation.kind == RevocationKind::Certificate {
            return self.end_known(issuer, subject, revocation.serial, signer, at, Some(*revocation));
        }
        if self
            .keys
            .insert((revocation.kind, signer, subject), *revocation)
            .is_none()
        {
            self.count(signer);
        }
        match revocation.kind {
            RevocationKind::Certificate => {}
            RevocationKind::Retired => {
                self.web.retire(signer, at);
                self.compile_issuer(signer);
            }
            RevocationKind::Compromised => self.web.compromise(signer),
            RevocationKind::Expel => self.web.vote(signer, subject, at),
        }
        Ok(())
    }

    fn end_known(
        &mut self,
        issuer: u32,
        subject: u32,
        serial: u64,
        signer: u32,
        at: u32,
        revocation: Option<Revocation>,
    ) -> Result<(), Refusal> {
        let earliest = self.ended_at.get(&(issuer, subject, serial)).copied();
        if revocation.is_none() && earliest.is_some_and(|known| known <= at) {
            return Err(Refusal::Duplicate);
        }
        if self
            .ended
            .insert((issuer, subject, serial, signer), revocation)
            .is_none()
        {
            self.count(signer);
        }
        if earliest.is_none_or(|known| at < known) {
            self.ended_at.insert((issuer, subject, serial), at);
            self.compile_pair(issuer, subject);
        }
        Ok(())
    }

    fn count(&mut self, signer: u32) {
        *self.statements.entry(signer).or_default() += 1;
        self.total += 1;
    }

    fn store(&mut self, issuer: u32, subject: u32, held: Held) {
        self.expiries.insert((held.until, issuer, subject));
        let place = self.certs.entry((issuer, subject)).or_default();
        place.push(held);
        // By id, so that nothing depends on the order of arrival.
        place.sort_unstable_by_key(|cert| cert.id);
        self.count(issuer);
        if self.quota.is_some() {
            self.compile_issuer(issuer);
        } else {
            self.compile_pair(issuer, subject);
        }
    }

    /// When a certificate stops to count: at its end, or when it was revoked.
    fn end_of(&self, issuer: u32, subject: u32, cert: &Held) -> u32 {
        let ended = self.ended_at.get(&(issuer, subject, cert.serial)).copied();
        ended.map_or(cert.until, |at| at.min(cert.until))
    }

    fn compile_pair(&mut self, issuer: u32, subject: u32) {
        if self.quota.is_some() {
            // A revocation changes no other pair: the certificate keeps its place in the budget.
            let places = self.places(issuer);
            self.compile_within(issuer, subject, places.as_ref());
        } else {
            self.compile_within(issuer, subject, None);
        }
    }

    fn compile_issuer(&mut self, issuer: u32) {
        let subjects: Vec<u32> = self
            .certs
            .range((issuer, 0)..=(issuer, u32::MAX))
            .map(|(key, _)| key.1)
            .collect();
        let places = self.places(issuer);
        for subject in subjects {
            self.compile_within(issuer, subject, places.as_ref());
        }
    }

    /// The intervals in which each subject has a place in the issuer's budget; `None` if all have one always.
    fn places(&self, issuer: u32) -> Option<BTreeMap<u32, Vec<(u32, u32)>>> {
        let quota = self.quota?;
        let all = || self.certs.range((issuer, 0)..=(issuer, u32::MAX));
        let counts = |cert: &&Held| cert.until - cert.from >= quota.window;
        if all().count() <= quota.subjects && all().all(|(_, held)| held.iter().all(|cert| counts(&cert))) {
            return None;
        }
        let mut begins: BTreeMap<u32, Vec<(u32, [u8; 32], u32)>> = BTreeMap::new();
        let mut ends: BTreeMap<u32, Vec<(u32, [u8; 32], u32)>> = BTreeMap::new();
        for (&(_, subject), held) in all() {
            for cert in held.iter().filter(counts) {
                begins
                    .entry(cert.from)
                    .or_default()
                    .push((cert.from, cert.id, subject));
                ends.entry(cert.until)
                    .or_default()
                    .push((cert.from, cert.id, subject));
            }
        }
        let mut places: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        let mut active: BTreeSet<(u32, [u8; 32], u32)> = BTreeSet::new();
        let times: BTreeSet<u32> = begins.keys().chain(ends.keys()).copied().collect();
        let times: Vec<u32> = times.into_iter().collect();
        for window in times.windows(2) {
            for entry in ends.get(&window[0]).into_iter().flatten() {
                active.remove(entry);
            }
            active.extend(begins.get(&window[0]).into_iter().flatten());
            let mut counted = BTreeSet::new();
            for &(_, _, subject) in &active {
                if counted.len() == quota.subjects {
                    break;
                }
                counted.insert(subject);
            }
            for subject in counted {
                let spans = places.entry(subject).or_default();
                match spans.last_mut() {
                    Some(last) if last.1 == window[0] => last.1 = window[1],
                    _ => spans.push((window[0], window[1])),
                }
            }
        }
        Some(places)
    }

    fn compile_within(&mut self, issuer: u32, subject: u32, places: Option<&BTreeMap<u32, Vec<(u32, u32)>>>) {
        let mut spans = self.spans(issuer, subject);
        if let Some(places) = places {
            let inside = places.get(&subject).map_or(&[][..], Vec::as_slice);
            let cut = |span: Span| {
                inside.iter().filter_map(move |&(from, until)| {
                    let cut = Span {
                        from: span.from.max(from),
                        until: span.until.min(until),
                        ..span
                    };
                    (cut.from < cut.until).then_some(cut)
                })
            };
            spans = spans.into_iter().flat_map(cut).collect();
        }
        self.web.put(issuer, subject, &spans);
    }

    /// Cuts the certificates of one pair into spans: at each time only the newest live one counts; of several
    /// with the same start, a withdrawal, else the most generous.
    fn spans(&self, issuer: u32, subject: u32) -> Vec<Span> {
        let retired = self.web.graph().retired_at(issuer).unwrap_or(u32::MAX);
        let Some(held) = self.certs.get(&(issuer, subject)) else {
            return Vec::new();
        };
        let certs: Vec<(Span, u8)> = held
            .iter()
            // A key certifies only before it is retired.
            .filter(|cert| cert.from < retired)
            .map(|cert| {
                let until = self.end_of(issuer, subject, cert);
                (
                    Span {
                        from: cert.from,
                        until,
                        depth: cert.depth,
                        amount: cert.amount,
                    },
                    cert.amount,
                )
            })
            .filter(|(span, _)| span.from < span.until)
            .collect();
        if let [(span, amount)] = certs[..] {
            return if amount > 0 { vec![span] } else { Vec::new() };
        }
        let mut times: Vec<u32> = certs
            .iter()
            .flat_map(|(span, _)| [span.from, span.until])
            .collect();
        times.sort_unstable();
        times.dedup();
        let mut spans: Vec<Span> = Vec::new();
        for window in times.windows(2) {
            let (from, until) = (window[0], window[1]);
            let live = certs
                .iter()
                .filter(|(span, _)| span.from <= from && from < span.until);
            let Some(newest) = live.clone().map(|(span, _)| span.from).max() else {
                continue;
            };
            let tied: Vec<Span> = live
                .filter(|(span, _)| span.from == newest)
                .map(|(span, _)| *span)
                .collect();
            if tied.iter().any(|span| span.amount == 0) {
                continue;
            }
            let depth = tied.iter().map(|span| span.depth).max().unwrap_or(0);
            let amount = tied.iter().map(|span| span.amount).max().unwrap_or(0);
            match spans.last_mut() {
                Some(last) if last.until == from && (last.depth, last.amount) == (depth, amount) => {
                    last.until = until;
                }
                _ => spans.push(Span {
                    from,
                    until,
                    depth,
                    amount,
                }),
            }
        }
        spans
    }
}
