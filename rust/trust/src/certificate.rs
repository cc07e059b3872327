//! Signed statements: certificates, revocations, expulsion votes, and the collective they belong to.
//!
//! The signed bytes start with a domain and the collective id, so that no signature can be used for another
//! purpose or in another collective. Records have a fixed length per kind: there is nothing to parse twice.
use std::fmt;

use sha2::{Digest, Sha256};

use crate::keys::{AgentId, KeyError, KeyPair, SIGNATURE_LEN};

const CERT_DOMAIN: &[u8] = b"pandacore/cert/v1";
const CONSENT_DOMAIN: &[u8] = b"pandacore/consent/v1";
const REVOKE_DOMAIN: &[u8] = b"pandacore/revoke/v1";
const GENESIS_DOMAIN: &[u8] = b"pandacore/genesis/v1";
const CERT_TAG: u8 = 1;
const REVOKE_TAG: u8 = 2;
const CERT_BODY: usize = 32 * 3 + 8 * 3 + 3;
const REVOKE_BODY: usize = 32 * 4 + 1 + 8 * 2;
/// Length of an encoded certificate in bytes.
pub const CERTIFICATE_LEN: usize = 1 + CERT_BODY + 2 * SIGNATURE_LEN;
/// Length of an encoded revocation in bytes.
pub const REVOCATION_LEN: usize = 1 + REVOKE_BODY + SIGNATURE_LEN;
/// `max_depth` of a certificate that does not limit the chain behind it.
pub const UNLIMITED: u8 = 255;
/// Trust amount of full trust (OpenPGP's scale: 60 is partial).
pub const FULL: u8 = 120;

/// Why a record was refused. The receiver's state is unchanged in every case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The length fits no kind of record; in bytes.
    Malformed {
        /// The length received.
        len: usize,
    },
    /// The first byte, the revocation kind or a flag is unknown.
    UnknownKind(u8),
    /// A key is not an Ed25519 public key.
    NotAKey,
    /// The record belongs to another collective.
    ForeignCollective,
    /// Issuer and subject are the same agent.
    SelfStatement,
    /// `not_before` is not before `not_after`, or a time passes 2^32 seconds.
    BadInterval,
    /// The lifetime passes the limit; in seconds.
    LifetimeTooLong {
        /// The limit.
        max: u64,
    },
    /// The certificate's `not_after` has passed at the reference time.
    Expired,
    /// The statement lies further in the future than clocks may differ.
    NotYetValid,
    /// The issuer's signature is not one of these bytes.
    BadSignature,
    /// The subject's consent is not one of these bytes.
    BadConsent,
    /// The signer may not make this statement.
    NotAuthorised,
    /// The record, or one that says the same or more, is already known.
    Duplicate,
    /// The signer already has as many statements stored as one signer may.
    QuotaExceeded {
        /// The limit.
        max: usize,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { len } => write!(f, "{len} bytes are no record"),
            Self::UnknownKind(kind) => write!(f, "unknown kind or flag {kind}"),
            Self::NotAKey => f.write_str("a key is not an Ed25519 public key"),
            Self::ForeignCollective => f.write_str("the record belongs to another collective"),
            Self::SelfStatement => f.write_str("issuer and subject are the same agent"),
            Self::BadInterval => f.write_str("the validity interval is empty or out of range"),
            Self::LifetimeTooLong { max } => write!(f, "the lifetime is longer than {max} s"),
            Self::Expired => f.write_str("the certificate has expired"),
            Self::NotYetValid => f.write_str("the statement lies in the future"),
            Self::BadSignature => f.write_str("the signature is not the signer's"),
            Self::BadConsent => f.write_str("the consent is not the subject's"),
            Self::NotAuthorised => f.write_str("the signer may not make this statement"),
            Self::Duplicate => f.write_str("the statement is already known"),
            Self::QuotaExceeded { max } => write!(f, "the signer already has {max} statements stored"),
        }
    }
}

impl std::error::Error for Refusal {}

/// What a collective was founded with. Its hash is the collective id.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Genesis {
    members: Vec<AgentId>,
    threshold: u8,
    label: String,
}

impl Genesis {
    /// A descriptor; the order of `members` and repetitions do not matter.
    ///
    /// `threshold` is the number of certifiers that make a member (t); `label` names the policy and the purpose.
    #[must_use]
    pub fn new(mut members: Vec<AgentId>, threshold: u8, label: String) -> Self {
        members.sort_unstable();
        members.dedup();
        Self {
            members,
            threshold: threshold.max(1),
            label,
        }
    }

    /// The founding members, sorted.
    #[must_use]
    pub fn members(&self) -> &[AgentId] {
        &self.members
    }

    /// Certifiers that make a member.
    #[must_use]
    pub fn threshold(&self) -> u8 {
        self.threshold
    }

    /// SHA-256 of the descriptor.
    #[must_use]
    pub fn collective(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(GENESIS_DOMAIN);
        hash.update([self.threshold]);
        hash.update((self.label.len() as u64).to_le_bytes());
        hash.update(self.label.as_bytes());
        hash.update((self.members.len() as u64).to_le_bytes());
        for member in &self.members {
            hash.update(member.0);
        }
        hash.finalize().into()
    }
}

/// A signed statement, issuer → subject: "this agent belongs here".
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Certificate {
    /// The collective it is valid in.
    pub collective: [u8; 32],
    /// Who vouches.
    pub issuer: AgentId,
    /// Who is vouched for, and consents.
    pub subject: AgentId,
    /// Names the certificate among those of this issuer and subject.
    pub serial: u64,
    /// First second of validity.
    pub not_before: u64,
    /// First second after validity.
    pub not_after: u64,
    /// How many more certificates a chain may have behind this one; [`UNLIMITED`] for no limit.
    pub max_depth: u8,
    /// Trust amount, 0 to [`FULL`]; 0 withdraws older certificates.
    pub amount: u8,
    /// The issuer's signature.
    pub signature: [u8; SIGNATURE_LEN],
    /// The subject's signature: nobody is drafted into a graph.
    pub consent: [u8; SIGNATURE_LEN],
}

impl Certificate {
    /// Issues a certificate that still lacks the subject's consent.
    #[must_use]
    #[expect(clippy::too_many_arguments, reason = "the fields of the signed statement")]
    pub fn issue(
        collective: [u8; 32],
        issuer: &KeyPair,
        subject: AgentId,
        serial: u64,
        not_before: u64,
        not_after: u64,
        max_depth: u8,
        amount: u8,
    ) -> Self {
        let mut cert = Self {
            collective,
            issuer: issuer.id(),
            subject,
            serial,
            not_before,
            not_after,
            max_depth,
            amount,
            signature: [0; SIGNATURE_LEN],
            consent: [0; SIGNATURE_LEN],
        };
        cert.signature = issuer.sign(&cert.signed(CERT_DOMAIN));
        cert
    }

    /// The subject's agreement.
    #[must_use]
    pub fn consented(mut self, subject: &KeyPair) -> Self {
        self.consent = subject.sign(&self.signed(CONSENT_DOMAIN));
        self
    }

    /// SHA-256 of the signed bytes.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        Sha256::digest(self.signed(CERT_DOMAIN)).into()
    }

    /// Checks both signatures.
    ///
    /// # Errors
    /// [`Refusal::NotAKey`], [`Refusal::BadSignature`] or [`Refusal::BadConsent`].
    pub fn verify(&self) -> Result<(), Refusal> {
        check(
            self.issuer,
            &self.signed(CERT_DOMAIN),
            &self.signature,
            Refusal::BadSignature,
        )?;
        check(
            self.subject,
            &self.signed(CONSENT_DOMAIN),
            &self.consent,
            Refusal::BadConsent,
        )
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CERTIFICATE_LEN);
        bytes.push(CERT_TAG);
        self.body(&mut bytes);
        bytes.extend_from_slice(&self.signature);
        bytes.extend_from_slice(&self.consent);
        bytes
    }

    fn body(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.collective);
        bytes.extend_from_slice(&self.issuer.0);
        bytes.extend_from_slice(&self.subject.0);
        for number in [self.serial, self.not_before, self.not_after] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        // The last byte holds flags; none is defined in version 1.
        bytes.extend_from_slice(&[self.max_depth, self.amount, 0]);
    }

    fn signed(&self, domain: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(domain.len() + CERT_BODY);
        bytes.extend_from_slice(domain);
        self.body(&mut bytes);
        bytes
    }
}

/// What a revocation does.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum RevocationKind {
    /// Issuer or subject ends one certificate.
    Certificate = 1,
    /// The signer's key is retired or superseded: what it certified earlier stays (soft).
    Retired = 2,
    /// The signer's key is compromised: everything it ever certified is void (hard).
    Compromised = 3,
    /// The signer votes to expel the subject.
    Expel = 4,
}

/// A signed statement that ends something. It holds for ever, in whatever order it arrives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Revocation {
    /// The collective it is valid in.
    pub collective: [u8; 32],
    /// Who states it.
    pub signer: AgentId,
    /// What it does.
    pub kind: RevocationKind,
    /// Issuer of the certificate; else the signer.
    pub issuer: AgentId,
    /// Subject of the certificate; agent to expel; else the signer.
    pub subject: AgentId,
    /// Serial of the certificate; else 0.
    pub serial: u64,
    /// From when on it holds, in seconds.
    pub at: u64,
    /// The signer's signature.
    pub signature: [u8; SIGNATURE_LEN],
}

impl Revocation {
    /// Ends the certificate (issuer, subject, serial); `signer` must be its issuer or its subject.
    #[must_use]
    pub fn certificate(
        collective: [u8; 32],
        signer: &KeyPair,
        issuer: AgentId,
        subject: AgentId,
        serial: u64,
        at: u64,
    ) -> Self {
        Self::signed_by(
            collective,
            signer,
            RevocationKind::Certificate,
            issuer,
            subject,
            serial,
            at,
        )
    }

    /// Retires the signer's own key at `at`, which may lie in the future: that is the key's expiry.
    #[must_use]
    pub fn retire(collective: [u8; 32], signer: &KeyPair, at: u64) -> Self {
        let own = signer.id();
        Self::signed_by(collective, signer, RevocationKind::Retired, own, own, 0, at)
    }

    /// Declares the signer's own key compromised.
    #[must_use]
    pub fn compromised(collective: [u8; 32], signer: &KeyPair, at: u64) -> Self {
        let own = signer.id();
        Self::signed_by(collective, signer, RevocationKind::Compromised, own, own, 0, at)
    }

    /// Votes to expel `subject`.
    #[must_use]
    pub fn expel(collective: [u8; 32], signer: &KeyPair, subject: AgentId, at: u64) -> Self {
        Self::signed_by(
            collective,
            signer,
            RevocationKind::Expel,
            signer.id(),
            subject,
            0,
            at,
        )
    }

    fn signed_by(
        collective: [u8; 32],
        signer: &KeyPair,
        kind: RevocationKind,
        issuer: AgentId,
        subject: AgentId,
        serial: u64,
        at: u64,
    ) -> Self {
        let signature = [0; SIGNATURE_LEN];
        let mut record = Self {
            collective,
            signer: signer.id(),
            kind,
            issuer,
            subject,
            serial,
            at,
            signature,
        };
        record.signature = signer.sign(&record.signed());
        record
    }

    /// Checks the signature and that the signer may say this.
    ///
    /// # Errors
    /// [`Refusal::NotAuthorised`], [`Refusal::SelfStatement`], [`Refusal::NotAKey`] or [`Refusal::BadSignature`].
    pub fn verify(&self) -> Result<(), Refusal> {
        self.authorised()?;
        check(
            self.signer,
            &self.signed(),
            &self.signature,
            Refusal::BadSignature,
        )
    }

    pub(crate) fn authorised(&self) -> Result<(), Refusal> {
        let own = self.signer == self.issuer && self.signer == self.subject && self.serial == 0;
        match self.kind {
            RevocationKind::Certificate if self.issuer == self.subject => Err(Refusal::SelfStatement),
            RevocationKind::Certificate if [self.issuer, self.subject].contains(&self.signer) => Ok(()),
            RevocationKind::Retired | RevocationKind::Compromised if own => Ok(()),
            RevocationKind::Expel if own => Err(Refusal::SelfStatement),
            RevocationKind::Expel if self.signer == self.issuer && self.serial == 0 => Ok(()),
            _ => Err(Refusal::NotAuthorised),
        }
    }

    /// SHA-256 of the signed bytes.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        Sha256::digest(self.signed()).into()
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REVOCATION_LEN);
        bytes.push(REVOKE_TAG);
        self.body(&mut bytes);
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    fn body(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.collective);
        bytes.extend_from_slice(&self.signer.0);
        bytes.push(self.kind as u8);
        bytes.extend_from_slice(&self.issuer.0);
        bytes.extend_from_slice(&self.subject.0);
        bytes.extend_from_slice(&self.serial.to_le_bytes());
        bytes.extend_from_slice(&self.at.to_le_bytes());
    }

    fn signed(&self) -> Vec<u8> {
        let mut bytes = REVOKE_DOMAIN.to_vec();
        self.body(&mut bytes);
        bytes
    }
}

/// One record of the collective plane.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Record {
    /// A certificate.
    Certificate(Certificate),
    /// A revocation or an expulsion vote.
    Revocation(Revocation),
}

impl Record {
    /// Reads a record. Signatures are not checked here.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] or [`Refusal::UnknownKind`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let malformed = Refusal::Malformed { len: bytes.len() };
        let (&tag, rest) = bytes.split_first().ok_or(malformed)?;
        match (tag, bytes.len()) {
            (CERT_TAG, CERTIFICATE_LEN) => decode_certificate(rest).map(Self::Certificate),
            (REVOKE_TAG, REVOCATION_LEN) => decode_revocation(rest).map(Self::Revocation),
            (CERT_TAG | REVOKE_TAG, _) => Err(malformed),
            (tag, _) => Err(Refusal::UnknownKind(tag)),
        }
    }

    /// Checks all signatures of the record.
    ///
    /// # Errors
    /// As of [`Certificate::verify`] and [`Revocation::verify`].
    pub fn verify(&self) -> Result<(), Refusal> {
        match self {
            Self::Certificate(cert) => cert.verify(),
            Self::Revocation(revocation) => revocation.verify(),
        }
    }

    /// SHA-256 of the signed bytes.
    #[must_use]
    pub fn id(&self) -> [u8; 32] {
        match self {
            Self::Certificate(cert) => cert.id(),
            Self::Revocation(revocation) => revocation.id(),
        }
    }
}

/// Reads fields from a slice whose length was checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_at(N);
        self.0 = tail;
        let mut array = [0; N];
        array.copy_from_slice(head);
        array
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

fn decode_certificate(body: &[u8]) -> Result<Certificate, Refusal> {
    let mut fields = Fields(body);
    let collective = fields.array();
    let issuer = AgentId(fields.array());
    let subject = AgentId(fields.array());
    let (serial, not_before, not_after) = (fields.number(), fields.number(), fields.number());
    let [max_depth, amount, flags] = fields.array();
    if flags != 0 || amount > FULL {
        return Err(Refusal::UnknownKind(if flags != 0 { flags } else { amount }));
    }
    let (signature, consent) = (fields.array(), fields.array());
    Ok(Certificate {
        collective,
        issuer,
        subject,
        serial,
        not_before,
        not_after,
        max_depth,
        amount,
        signature,
        consent,
    })
}

fn decode_revocation(body: &[u8]) -> Result<Revocation, Refusal> {
    let mut fields = Fields(body);
    let collective = fields.array();
    let signer = AgentId(fields.array());
    let [kind] = fields.array();
    let kind = match kind {
        1 => RevocationKind::Certificate,
        2 => RevocationKind::Retired,
        3 => RevocationKind::Compromised,
        4 => RevocationKind::Expel,
        other => return Err(Refusal::UnknownKind(other)),
    };
    let issuer = AgentId(fields.array());
    let subject = AgentId(fields.array());
    let (serial, at) = (fields.number(), fields.number());
    let signature = fields.array();
    Ok(Revocation {
        collective,
        signer,
        kind,
        issuer,
        subject,
        serial,
        at,
        signature,
    })
}

fn check(key: AgentId, message: &[u8], signature: &[u8], refusal: Refusal) -> Result<(), Refusal> {
    key.verify(message, signature).map_err(|error| match error {
        KeyError::NotAPublicKey => Refusal::NotAKey,
        _ => refusal,
    })
}
