//! How reliable an agent has found its peers: Beta ratings from what it saw and from what credible witnesses saw.
//!
//! The scheme is that of Buchegger and Le Boudec, "A robust reputation system for peer-to-peer and mobile ad-hoc
//! networks" (2004), as used by RAPS (2026). Throughout, an event s = 1 is *misbehaviour*, x counts it, y counts
//! good behaviour, and x / (x + y) estimates the probability of misbehaviour.
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::BuildHasherDefault;

use sha2::{Digest, Sha256};

use crate::beta::upper_tail;
use crate::graph::IndexHasher;
use crate::hint::{ask_for_huge_pages, spread};
use crate::keys::{AgentId, KeyPair, SIGNATURE_LEN};

const REPORT_DOMAIN: &[u8] = b"pandacore/report/v1";
const REPORT_BODY: usize = 32 * 3 + 8 * 4;
/// Length of an encoded report in bytes.
pub const REPORT_LEN: usize = REPORT_BODY + SIGNATURE_LEN;
const NO_LINK: u32 = u32::MAX;

/// A Beta rating.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rating {
    /// Misbehaviour, prior included.
    pub x: f64,
    /// Good behaviour, prior included.
    pub y: f64,
}

impl Rating {
    /// What is held of an unknown peer: Beta(1, 1).
    pub const PRIOR: Self = Self { x: 1.0, y: 1.0 };
    const NOTHING: Self = Self { x: 0.0, y: 0.0 };

    /// Estimated probability of misbehaviour.
    #[must_use]
    pub fn mean(self) -> f64 {
        self.x / (self.x + self.y)
    }

    /// How much evidence, prior included.
    #[must_use]
    pub fn mass(self) -> f64 {
        self.x + self.y
    }

    /// Equation (6): decays by `decay`, then counts one event.
    #[must_use]
    pub fn observed(self, bad: bool, decay: f64) -> Self {
        let event = f64::from(u8::from(bad));
        Self {
            x: decay * self.x + event,
            y: decay * self.y + (1.0 - event),
        }
    }

    /// Equation (9): adds a witness's rating with a weight.
    #[must_use]
    pub fn merged(self, other: Self, weight: f64) -> Self {
        Self {
            x: self.x + weight * other.x,
            y: self.y + weight * other.y,
        }
    }

    /// Moves towards the prior, keeping the share `kept` of what differs from it.
    #[must_use]
    pub fn towards_prior(self, kept: f64) -> Self {
        Self {
            x: 1.0 + kept * (self.x - 1.0),
            y: 1.0 + kept * (self.y - 1.0),
        }
    }

    /// Standard deviation of the misbehaviour rate.
    #[must_use]
    pub fn doubt(self) -> f64 {
        let mass = self.mass();
        (self.x * self.y / (mass * mass * (mass + 1.0))).sqrt()
    }

    /// Probability that the misbehaviour rate is above `rate`.
    #[must_use]
    pub fn probability_above(self, rate: f64) -> f64 {
        upper_tail(self.x, self.y, rate)
    }
}

/// When a peer is not routed to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exclusion {
    /// RAPS (10): the estimate reaches the limit.
    Mean(f64),
    /// The rate is above `rate` with at least `probability`, and something was seen at first hand.
    Confident {
        /// The tolerated rate of misbehaviour.
        rate: f64,
        /// How sure one must be.
        probability: f64,
    },
}

/// How reports are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SecondHand {
    /// Not at all.
    Ignored,
    /// RAPS (9): whole ratings, again and again, of witnesses that are trusted *or* agree.
    Merged,
    /// Only what a witness saw since its last report, of witnesses that are trusted *and* agree, in a ledger of
    /// its own that weighs at most `share` of the first hand.
    Capped {
        /// Bound on second-hand over first-hand mass (ρ).
        share: f64,
    },
}

/// The parameters of a rating scheme. Defaults and reasons: `ReputationPolicy` in Python.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReputationPolicy {
    /// λ in (0, 1]: what an observation leaves of the earlier ones.
    pub decay: f64,
    /// μ in (0, 1]: what an idle epoch leaves of the evidence; 1 never forgets.
    pub idle: f64,
    /// λ of the long memory in (0, 1) that ranks peers besides the short one; 0 for none.
    pub long_decay: f64,
    /// What the long memory tolerates: a peer whose rate there is above `rate` with at least `probability` is
    /// not routed to either. Ignored without a long memory.
    pub long_exclusion: (f64, f64),
    /// Rate at which a peer that nothing is known of ranks: better known ones come first, worse ones after it.
    pub aspiration: f64,
    /// δ: reports that deviate this much disagree.
    pub deviation: f64,
    /// Standard deviations of the receiver's own rating by which δ is widened: who knows little cannot tell.
    pub slack: f64,
    /// ω in (0, 1): weight of a report.
    pub weight: f64,
    /// A witness is credible while its estimate stays below this (τ_T).
    pub witness_limit: f64,
    /// When a peer is not routed to.
    pub exclusion: Exclusion,
    /// How reports are used.
    pub second_hand: SecondHand,
    /// Rate at which the watchdog calls good behaviour bad.
    pub false_positive: f64,
    /// Rate at which the watchdog calls bad behaviour good.
    pub false_negative: f64,
    /// Oldest report taken, in epochs.
    pub report_age: u32,
}

impl ReputationPolicy {
    /// The true rate that makes the watchdog report `rate`, within [0, 1].
    fn corrected(&self, rate: f64) -> f64 {
        let (a, b) = (self.false_positive, self.false_negative);
        ((rate - a) / (1.0 - a - b)).clamp(0.0, 1.0)
    }

    /// What the watchdog reports at the true rate `rate`.
    fn reported(&self, rate: f64) -> f64 {
        rate * (1.0 - self.false_negative) + (1.0 - rate) * self.false_positive
    }
}

/// Why an observation or a report was refused. Nothing has changed in every case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReputationError {
    /// The store holds as many pairs as it may.
    Full {
        /// The limit.
        max: usize,
    },
    /// Observer and peer, or witness and subject, are the same.
    AboutItself,
    /// The report is about its receiver, or the receiver's own.
    AboutReceiver,
    /// The witness is no trusted member.
    NotTrusted,
    /// A report of this witness about this subject with this counter or a higher one was seen: a replay.
    Stale,
    /// There was a report of this witness about this subject in this epoch already.
    TooSoon,
    /// The report is older than reports may be, or from a coming epoch.
    NotFresh,
    /// The rating could not have come from observations: not finite, not positive, or too much evidence.
    Impossible,
    /// The length fits no report; in bytes.
    Malformed {
        /// The length received.
        len: usize,
    },
    /// The report belongs to another collective.
    ForeignCollective,
    /// The signature is not one of these bytes by the witness.
    BadSignature,
}

impl fmt::Display for ReputationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { max } => write!(f, "the store already holds {max} entries"),
            Self::AboutItself => f.write_str("nobody rates itself"),
            Self::AboutReceiver => f.write_str("the report is about its receiver or by it"),
            Self::NotTrusted => f.write_str("the witness is no trusted member"),
            Self::Stale => f.write_str("a report with this or a later counter was already taken"),
            Self::TooSoon => f.write_str("the witness already reported on this subject in this epoch"),
            Self::NotFresh => f.write_str("the report's epoch is too old or lies ahead"),
            Self::Impossible => f.write_str("no observations lead to this rating"),
            Self::Malformed { len } => write!(f, "{len} bytes are no report"),
            Self::ForeignCollective => f.write_str("the report belongs to another collective"),
            Self::BadSignature => f.write_str("the signature is not the witness's"),
        }
    }
}

impl std::error::Error for ReputationError {}

/// What a witness signs: its own first-hand rating of a subject, never what it heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The collective it is valid in.
    pub collective: [u8; 32],
    /// Who saw it.
    pub witness: AgentId,
    /// Who was seen.
    pub subject: AgentId,
    /// When it was written.
    pub epoch: u64,
    /// How many observations of the subject the rating rests on; rises with each.
    pub counter: u64,
    /// The first-hand rating.
    pub rating: Rating,
    /// The witness's signature.
    pub signature: [u8; SIGNATURE_LEN],
}

impl Report {
    /// Signs a report.
    #[must_use]
    pub fn sign(
        collective: [u8; 32],
        witness: &KeyPair,
        subject: AgentId,
        epoch: u64,
        counter: u64,
        rating: Rating,
    ) -> Self {
        let signature = [0; SIGNATURE_LEN];
        let mut report = Self {
            collective,
            witness: witness.id(),
            subject,
            epoch,
            counter,
            rating,
            signature,
        };
        report.signature = witness.sign(&[REPORT_DOMAIN, &report.body()].concat());
        report
    }

    /// Checks the signature and the collective.
    ///
    /// # Errors
    /// [`ReputationError::ForeignCollective`] or [`ReputationError::BadSignature`].
    pub fn verify(&self, collective: &[u8; 32]) -> Result<(), ReputationError> {
        if self.collective != *collective {
            return Err(ReputationError::ForeignCollective);
        }
        let signed = [REPORT_DOMAIN, &self.body()].concat();
        self.witness
            .verify(&signed, &self.signature)
            .map_err(|_| ReputationError::BadSignature)
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [self.body(), self.signature.to_vec()].concat()
    }

    /// SHA-256 of the signed bytes.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        Sha256::digest([REPORT_DOMAIN, &self.body()].concat()).into()
    }

    /// Reads a report. The signature is not checked here.
    ///
    /// # Errors
    /// [`ReputationError::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ReputationError> {
        if bytes.len() != REPORT_LEN {
            return Err(ReputationError::Malformed { len: bytes.len() });
        }
        let key = |at: usize| {
            let mut key = [0; 32];
            key.copy_from_slice(&bytes[at..at + 32]);
            key
        };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut signature = [0; SIGNATURE_LEN];
        signature.copy_from_slice(&bytes[REPORT_BODY..]);
        Ok(Self {
            collective: key(0),
            witness: AgentId(key(32)),
            subject: AgentId(key(64)),
            epoch: word(96),
            counter: word(104),
            rating: Rating {
                x: f64::from_bits(word(112)),
                y: f64::from_bits(word(120)),
            },
            signature,
        })
    }

    fn body(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REPORT_LEN);
        bytes.extend_from_slice(&self.collective);
        bytes.extend_from_slice(&self.witness.0);
        bytes.extend_from_slice(&self.subject.0);
        for word in [
            self.epoch,
            self.counter,
            self.rating.x.to_bits(),
            self.rating.y.to_bits(),
        ] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// One rated pair. Kept small: a host holds one for every peer that each of its agents has met.
#[derive(Clone, Copy)]
struct Pair {
    first: Rating,
    /// Misbehaviour in the long memory, without the prior.
    long_bad: f32,
    /// Own observations, ever.
    seen: u32,
    observer: u32,
    peer: u32,
    /// Epoch of the last own observation or merged report.
    epoch: u32,
    link: u32,
}

/// Everything known about one pair at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// First-hand rating (F).
    pub first: Rating,
    /// What was merged of reports (RAPS), or the second-hand ledger without prior (Q).
    pub second: Rating,
    /// The rating that decides (P).
    pub combined: Rating,
    /// Own observations, ever.
    pub observations: u32,
    /// Estimated rate of misbehaviour after correction for watchdog errors.
    pub estimate: f64,
    /// As `estimate`, in the long memory.
    pub long_estimate: f64,
    /// What peers are ranked by, lowest first.
    pub score: f64,
    /// Probability that the tolerated rate is passed; 0 or 1 where the policy compares means.
    pub certainty: f64,
    /// True when the peer is not routed to.
    pub excluded: bool,
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hearing {
    /// The report counted.
    pub merged: bool,
    /// |E(F_kj) − E(P_ij)|.
    pub deviation: f64,
    /// The witness's rating afterwards (T); low is credible.
    pub witness: Rating,
}

/// Ratings of pairs (observer, peer), numbered as the caller likes.
pub struct Reputation {
    policy: ReputationPolicy,
    pairs: Vec<Pair>,
    /// Positions in `pairs`, plus one; open addressing with linear probing.
    table: Vec<u32>,
    second: Vec<Rating>,
    witnesses: HashMap<u64, Rating, BuildHasherDefault<IndexHasher>>,
    /// Last report of (witness, subject): counter and epoch.
    heard: HashMap<u64, (u64, u64), BuildHasherDefault<IndexHasher>>,
    /// Last merged report of (witness, subject) by receiver: counter and rating.
    merged: BTreeMap<(u32, u32, u32), (u64, Rating)>,
    certifiers: BTreeMap<u32, Rating>,
    capacity: usize,
}

fn key(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

/// A full 64-bit mix (SplitMix64): linear probing needs all bits to depend on all bits.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Reputation {
    /// An empty store for at most `capacity` pairs, 67 million if that is less; the tables for reports are bounded by the same number.
    #[must_use]
    pub fn new(policy: ReputationPolicy, capacity: usize) -> Self {
        Self {
            policy,
            pairs: Vec::new(),
            table: vec![0; 16],
            second: Vec::new(),
            witnesses: HashMap::default(),
            heard: HashMap::default(),
            merged: BTreeMap::new(),
            certifiers: BTreeMap::new(),
            capacity: capacity.min(MAX_PAIRS),
        }
    }

    /// The parameters.
    #[must_use]
    pub fn policy(&self) -> &ReputationPolicy {
        &self.policy
    }

    /// Number of rated pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// True when nothing is rated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Bytes of pairs, their index and second-hand ledgers.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<Pair>()
            + self.table.capacity() * 4
            + self.second.capacity() * size_of::<Rating>()
    }

    /// Counts one observation of `observer` about `peer`. Epochs of a pair never go back.
    ///
    /// # Errors
    /// [`ReputationError::AboutItself`] or [`ReputationError::Full`].
    pub fn observe(
        &mut self,
        observer: u32,
        peer: u32,
        bad: bool,
        epoch: u32,
    ) -> Result<(), ReputationError> {
        if observer == peer {
            return Err(ReputationError::AboutItself);
        }
        let at = self.place(observer, peer, epoch)?;
        self.count(at, bad, epoch);
        Ok(())
    }

    /// Counts many observations in order; stops at the first that is refused and says how many were counted.
    ///
    /// # Errors
    /// As of [`Self::observe`], with the number counted before.
    pub fn observe_all(
        &mut self,
        observers: &[u32],
        peers: &[u32],
        bad: &[bool],
        epoch: u32,
    ) -> Result<(), (usize, ReputationError)> {
        const BLOCK: usize = 32;
        let mut places = [0usize; BLOCK];
        for start in (0..observers.len()).step_by(BLOCK) {
            let end = observers.len().min(start + BLOCK);
            self.warm(&observers[start..end], &peers[start..end]);
            for i in start..end {
                if observers[i] == peers[i] {
                    for (place, &bad) in places.iter().zip(&bad[start..i]) {
                        self.count(*place, bad, epoch);
                    }
                    return Err((i, ReputationError::AboutItself));
                }
                match self.place(observers[i], peers[i], epoch) {
                    Ok(at) => places[i - start] = at,
                    Err(error) => {
                        for (place, &bad) in places.iter().zip(&bad[start..i]) {
                            self.count(*place, bad, epoch);
                        }
                        return Err((i, error));
                    }
                }
            }
            for (place, &bad) in places.iter().zip(&bad[start..end]) {
                self.count(*place, bad, epoch);
            }
        }
        Ok(())
    }

    /// Brings pairs closer, all at once: their loads do not wait for one another.
    fn warm(&self, observers: &[u32], peers: &[u32]) {
        let mut sum = 0u32;
        for (&observer, &peer) in observers.iter().zip(peers) {
            sum = sum.wrapping_add(self.table[first_slot(mix(key(observer, peer)), self.table.len())]);
        }
        for (&observer, &peer) in observers.iter().zip(peers) {
            let entry = self.table[first_slot(mix(key(observer, peer)), self.table.len())];
            if let Some(pair) = self.pairs.get(position(entry.max(1))) {
                sum = sum.wrapping_add(pair.peer);
            }
        }
        std::hint::black_box(sum);
    }

    fn count(&mut self, at: usize, bad: bool, epoch: u32) {
        let policy = self.policy;
        let pair = &mut self.pairs[at];
        let kept = if policy.idle < 1.0 && epoch > pair.epoch.saturating_add(1) {
            policy.idle.powf(f64::from(epoch - pair.epoch - 1))
        } else {
            1.0
        };
        if kept < 1.0 {
            pair.first = pair.first.towards_prior(kept);
        }
        pair.first = pair.first.observed(bad, policy.decay);
        pair.epoch = epoch.max(pair.epoch);
        pair.seen = pair.seen.saturating_add(1);
        let event = f32::from(u8::from(bad));
        pair.long_bad = policy.long_decay as f32 * pair.long_bad + event;
        if pair.link != NO_LINK {
            let second = &mut self.second[pair.link as usize];
            *second = match policy.second_hand {
                SecondHand::Merged => second.towards_prior(kept).observed(bad, policy.decay),
                _ => Rating {
                    x: policy.decay * kept * second.x,
                    y: policy.decay * kept * second.y,
                },
            };
        }
    }

    /// Everything known about a pair at `epoch`. A peer never met has the prior.
    #[must_use]
    pub fn standing(&self, observer: u32, peer: u32, epoch: u32) -> Standing {
        let policy = &self.policy;
        let pair = self.find(observer, peer).map(|at| self.pairs[at]);
        let kept = pair.map_or(1.0, |pair| {
            let idle = epoch.saturating_sub(pair.epoch).saturating_sub(1);
            if idle == 0 {
                1.0
            } else {
                policy.idle.powf(f64::from(idle))
            }
        });
        let first = pair.map_or(Rating::PRIOR, |pair| pair.first.towards_prior(kept));
        let linked = pair
            .filter(|pair| pair.link != NO_LINK)
            .map(|pair| self.second[pair.link as usize]);
        let observations = pair.map_or(0, |pair| pair.seen);
        let (second, combined) = match (policy.second_hand, linked) {
            (SecondHand::Merged, Some(merged)) => (merged.towards_prior(kept), merged.towards_prior(kept)),
            (SecondHand::Capped { share }, Some(ledger)) => {
                let ledger = Rating {
                    x: kept * ledger.x,
                    y: kept * ledger.y,
                };
                // Before anything was seen, others may weigh as much as the prior.
                let most = if observations > 0 {
                    share * first.mass()
                } else {
                    Rating::PRIOR.mass()
                };
                let weight = if ledger.mass() > 0.0 {
                    (most / ledger.mass()).min(1.0)
                } else {
                    0.0
                };
                (ledger, first.merged(ledger, weight))
            }
            _ => (Rating::NOTHING, first),
        };
        let estimate = policy.corrected(combined.mean());
        let long = pair
            .filter(|_| policy.long_decay > 0.0)
            .map_or(Rating::PRIOR, |pair| long_rating(pair, policy));
        let long_estimate = policy.corrected(long.mean());
        let (excluded, certainty) = match policy.exclusion {
            Exclusion::Mean(limit) => {
                let excluded = combined.mean() >= limit;
                (excluded, f64::from(u8::from(excluded)))
            }
            Exclusion::Confident { rate, probability } => {
                let certainty = combined.probability_above(policy.reported(rate));
                let (limit, sure) = policy.long_exclusion;
                // No exclusion rests on more evidence than the short memory could hold, so all fade equally fast.
                let evidence = pair.map_or(Rating::NOTHING, |pair| long_evidence(pair, policy));
                let most = if policy.decay < 1.0 {
                    1.0 / (1.0 - policy.decay)
                } else {
                    f64::MAX
                };
                let weight = kept * (most / evidence.mass().max(f64::MIN_POSITIVE)).min(1.0);
                let faded = Rating::PRIOR.merged(evidence, weight);
                let habitual =
                    policy.long_decay > 0.0 && faded.probability_above(policy.reported(limit)) >= sure;
                (
                    observations > 0 && (certainty >= probability || habitual),
                    certainty,
                )
            }
        };
        let score = if policy.long_decay > 0.0 {
            self.score(pair, combined, first)
        } else {
            estimate
        };
        Standing {
            first,
            second,
            combined,
            observations,
            estimate,
            long_estimate,
            score,
            certainty,
            excluded,
        }
    }

    /// What a peer is ranked by: the long memory, and what was heard, on top of the aspired rate.
    ///
    /// In the long memory phases of good and bad behaviour average out, so alternating gains nothing; and who has
    /// done worse than is aspired to ranks after somebody unknown, so that better peers are found in its place.
    fn score(&self, pair: Option<Pair>, combined: Rating, first: Rating) -> f64 {
        let policy = &self.policy;
        let aspired = Rating::PRIOR.mass() * policy.reported(policy.aspiration);
        let own = pair.map_or(Rating::NOTHING, |pair| long_evidence(pair, policy));
        let x = aspired + own.x + (combined.x - first.x);
        let y = Rating::PRIOR.mass() - aspired + own.y + (combined.y - first.y);
        policy.corrected(x / (x + y))
    }

    /// The candidates that are not excluded, best first; ties go to the lower number. Empty means: escalate.
    #[must_use]
    pub fn rank(&self, observer: u32, candidates: &[u32], epoch: u32) -> Vec<u32> {
        let mut admitted: Vec<(f64, u32)> = candidates
            .iter()
            .map(|&peer| (self.standing(observer, peer, epoch), peer))
            .filter(|(standing, _)| !standing.excluded)
            .map(|(standing, peer)| (standing.score, peer))
            .collect();
        admitted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        admitted.dedup_by_key(|entry| entry.1);
        admitted.into_iter().map(|(_, peer)| peer).collect()
    }

    /// Takes a witness's first-hand rating of a subject into account for `receiver`.
    ///
    /// The caller has verified the signature; `trusted` says that the witness is in the receiver's trusted set.
    ///
    /// # Errors
    /// Why the report was refused; every rating is bit-identical then.
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of a report and its circumstances"
    )]
    pub fn hear(
        &mut self,
        receiver: u32,
        witness: u32,
        subject: u32,
        trusted: bool,
        written: u64,
        counter: u64,
        rating: Rating,
        epoch: u32,
    ) -> Result<Hearing, ReputationError> {
        if witness == subject {
            return Err(ReputationError::AboutItself);
        }
        if receiver == subject || receiver == witness {
            return Err(ReputationError::AboutReceiver);
        }
        if !trusted {
            return Err(ReputationError::NotTrusted);
        }
        if written > u64::from(epoch) || written + u64::from(self.policy.report_age) < u64::from(epoch) {
            return Err(ReputationError::NotFresh);
        }
        // No sequence of observations gathers more evidence than this, and none leaves nothing of either kind.
        let most = if self.policy.decay < 1.0 {
            (1.0 / (1.0 - self.policy.decay)).max(2.0)
        } else {
            f64::MAX
        };
        if !(rating.x > 0.0 && rating.y > 0.0 && rating.mass() <= most + 1e-9) || counter == 0 {
            return Err(ReputationError::Impossible);
        }
        let before = self.merged.get(&(receiver, witness, subject)).copied();
        if before.is_some_and(|(known, _)| counter <= known) {
            return Err(ReputationError::Stale);
        }
        let heard = self.heard.get(&key(witness, subject)).copied();
        match heard {
            Some((known, _)) if counter < known => return Err(ReputationError::Stale),
            Some((known, last)) if counter > known && written <= last => {
                return Err(ReputationError::TooSoon);
            }
            _ => {}
        }
        let full = ReputationError::Full { max: self.capacity };
        let tables = [
            self.merged.len(),
            self.heard.len(),
            self.witnesses.len(),
            self.second.len(),
        ];
        if tables.iter().any(|&len| len >= self.capacity) {
            return Err(full);
        }
        let standing = self.standing(receiver, subject, epoch);
        let deviation = (rating.mean() - standing.combined.mean()).abs();
        let tolerance = self.policy.deviation + self.policy.slack * standing.combined.doubt();
        let disagrees = deviation >= tolerance;
        let known = self
            .witnesses
            .get(&key(receiver, witness))
            .copied()
            .unwrap_or(Rating::PRIOR);
        let after = known.observed(disagrees, self.policy.decay);
        let credible = after.mean() < self.policy.witness_limit;
        let merged = match self.policy.second_hand {
            SecondHand::Ignored => false,
            SecondHand::Merged => credible || !disagrees,
            SecondHand::Capped { .. } => credible && !disagrees,
        };
        if merged {
            // First, because it may refuse.
            let at = self.place(receiver, subject, epoch)?;
            self.merge(at, rating, counter, before, epoch);
            self.merged
                .insert((receiver, witness, subject), (counter, rating));
        }
        self.witnesses.insert(key(receiver, witness), after);
        self.heard.insert(key(witness, subject), (counter, written));
        Ok(Hearing {
            merged,
            deviation,
            witness: after,
        })
    }

    fn merge(&mut self, at: usize, rating: Rating, counter: u64, before: Option<(u64, Rating)>, epoch: u32) {
        let policy = self.policy;
        let pair = &mut self.pairs[at];
        let idle = epoch.saturating_sub(pair.epoch).saturating_sub(1);
        let kept = if idle == 0 {
            1.0
        } else {
            policy.idle.powf(f64::from(idle))
        };
        pair.first = pair.first.towards_prior(kept);
        pair.epoch = epoch.max(pair.epoch);
        if pair.link == NO_LINK {
            pair.link = self.second.len() as u32;
            // Until something is merged, RAPS' P is its F.
            let merged = policy.second_hand == SecondHand::Merged;
            self.second
                .push(if merged { pair.first } else { Rating::NOTHING });
        } else if kept < 1.0 {
            let second = &mut self.second[pair.link as usize];
            *second = match policy.second_hand {
                SecondHand::Merged => second.towards_prior(kept),
                _ => Rating {
                    x: kept * second.x,
                    y: kept * second.y,
                },
            };
        }
        let second = &mut self.second[pair.link as usize];
        if policy.second_hand == SecondHand::Merged {
            *second = second.merged(rating, policy.weight);
            return;
        }
        // What the witness saw since: its last report has decayed once per observation made meanwhile.
        let since = match before {
            Some((known, old)) => {
                let kept = policy.decay.powf((counter - known) as f64);
                Rating {
                    x: (rating.x - kept * old.x).max(0.0),
                    y: (rating.y - kept * old.y).max(0.0),
                }
            }
            None => {
                let kept = policy.decay.powf(counter as f64);
                Rating {
                    x: (rating.x - kept).max(0.0),
                    y: (rating.y - kept).max(0.0),
                }
            }
        };
        let decayed = Rating {
            x: policy.decay * second.x,
            y: policy.decay * second.y,
        };
        *second = decayed.merged(since, policy.weight);
    }

    /// The rating of a witness in the eyes of a receiver (T): events are reports that disagreed.
    #[must_use]
    pub fn witness(&self, receiver: u32, witness: u32) -> Rating {
        self.witnesses
            .get(&key(receiver, witness))
            .copied()
            .unwrap_or(Rating::PRIOR)
    }

    /// Counts an event of a certifier: whether somebody it certified had to be expelled.
    ///
    /// # Errors
    /// [`ReputationError::Full`].
    pub fn certifier_event(&mut self, certifier: u32, bad: bool) -> Result<(), ReputationError> {
        if self.certifiers.len() >= self.capacity && !self.certifiers.contains_key(&certifier) {
            return Err(ReputationError::Full { max: self.capacity });
        }
        let rating = self.certifiers.entry(certifier).or_insert(Rating::PRIOR);
        *rating = rating.observed(bad, self.policy.decay);
        Ok(())
    }

    /// How reliable somebody is as a certifier; separate from how it works.
    #[must_use]
    pub fn certifier(&self, certifier: u32) -> Rating {
        self.certifiers.get(&certifier).copied().unwrap_or(Rating::PRIOR)
    }

    /// Drops what has come so close to the prior that it tells nothing, and reports on it; returns how many pairs.
    pub fn forget(&mut self, epoch: u32, closeness: f64) -> usize {
        let before = self.pairs.len();
        let idle = self.policy.idle;
        let (pairs, second) = (std::mem::take(&mut self.pairs), std::mem::take(&mut self.second));
        for mut pair in pairs {
            let kept = idle.powf(f64::from(epoch.saturating_sub(pair.epoch).saturating_sub(1)));
            let first = pair.first.towards_prior(kept);
            let told = if pair.link == NO_LINK {
                0.0
            } else {
                kept * second[pair.link as usize].mass()
            };
            if (first.x - 1.0).abs().max((first.y - 1.0).abs()) > closeness || told > closeness {
                if pair.link != NO_LINK {
                    self.second.push(second[pair.link as usize]);
                    pair.link = self.second.len() as u32 - 1;
                }
                self.pairs.push(pair);
            }
        }
        self.rehash(self.pairs.len());
        let table = &self.table;
        let pairs = &self.pairs;
        self.merged
            .retain(|&(receiver, _, subject), _| probe(table, pairs, receiver, subject).is_ok());
        before - self.pairs.len()
    }

    fn find(&self, observer: u32, peer: u32) -> Option<usize> {
        probe(&self.table, &self.pairs, observer, peer).ok()
    }

    /// Position of a pair, which is added if it is new.
    fn place(&mut self, observer: u32, peer: u32, epoch: u32) -> Result<usize, ReputationError> {
        match probe(&self.table, &self.pairs, observer, peer) {
            Ok(at) => Ok(at),
            Err(_) if self.pairs.len() >= self.capacity => Err(ReputationError::Full { max: self.capacity }),
            Err(slot) => {
                let at = self.pairs.len();
                if at == self.pairs.capacity() {
                    // By a sixteenth, not by doubling: the slack counts as memory.
                    self.pairs.reserve_exact((at / 16).max(64));
                    ask_for_huge_pages(&mut self.pairs);
                }
                let first = Rating::PRIOR;
                self.pairs.push(Pair {
                    first,
                    long_bad: 0.0,
                    seen: 0,
                    observer,
                    peer,
                    epoch,
                    link: NO_LINK,
                });
                self.table[slot] = entry(at, tag(mix(key(observer, peer))));
                if self.pairs.len() * 8 > self.table.len() * 7 {
                    self.rehash(self.pairs.len());
                }
                Ok(at)
            }
        }
    }

    fn rehash(&mut self, count: usize) {
        let size = (count + count * 3 / 10).max(16);
        // The old one goes first: never both at once.
        self.table = Vec::new();
        self.table = spread(size, 0);
        for (at, pair) in self.pairs.iter().enumerate() {
            if let Err(slot) = probe(&self.table, &[], pair.observer, pair.peer) {
                self.table[slot] = entry(at, tag(mix(key(pair.observer, pair.peer))));
            }
        }
    }
}

/// Bits of a table entry that hold a position plus one; the others hold a part of the hash, so that other pairs are
/// passed over without looking at them.
const POSITION_BITS: u32 = 26;
/// Most pairs a store can hold.
const MAX_PAIRS: usize = (1 << POSITION_BITS) - 2;

fn tag(hash: u64) -> u32 {
    (hash as u32) >> POSITION_BITS
}

fn entry(at: usize, tag: u32) -> u32 {
    tag << POSITION_BITS | (at as u32 + 1)
}

fn position(entry: u32) -> usize {
    (entry & ((1 << POSITION_BITS) - 1)) as usize - 1
}

fn first_slot(hash: u64, size: usize) -> usize {
    ((u128::from(hash) * size as u128) >> 64) as usize
}

/// Position of the pair, or the empty slot that it belongs in. With no pairs given, every taken slot is another's.
fn probe(table: &[u32], pairs: &[Pair], observer: u32, peer: u32) -> Result<usize, usize> {
    let hash = mix(key(observer, peer));
    let tag = tag(hash);
    let mut slot = first_slot(hash, table.len());
    loop {
        let entry = table[slot];
        if entry == 0 {
            return Err(slot);
        }
        if entry >> POSITION_BITS == tag
            && let Some(pair) = pairs.get(position(entry))
            && (pair.observer, pair.peer) == (observer, peer)
        {
            return Ok(position(entry));
        }
        slot += 1;
        if slot == table.len() {
            slot = 0;
        }
    }
}

/// The evidence of the long memory: its mass follows from the number of observations.
fn long_evidence(pair: Pair, policy: &ReputationPolicy) -> Rating {
    let mass = (1.0 - policy.long_decay.powf(f64::from(pair.seen))) / (1.0 - policy.long_decay);
    let bad = f64::from(pair.long_bad).min(mass);
    Rating {
        x: bad,
        y: mass - bad,
    }
}

/// The long memory as a rating with a prior.
fn long_rating(pair: Pair, policy: &ReputationPolicy) -> Rating {
    Rating::PRIOR.merged(long_evidence(pair, policy), 1.0)
}
