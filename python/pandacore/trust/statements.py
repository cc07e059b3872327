"""Certificates, revocations, and chains of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pandacore import _core
from pandacore.errors import (
    InvalidKey,
    MalformedRecord,
    NotAuthorised,
    RefusedStatement,
)
from pandacore.trust.checks import FULL_TRUST, UNLIMITED, check_range, collective_id_bytes
from pandacore.trust.keys import KeyPair, did_of, public_key

__all__ = ["Certificate", "Revocation", "verify_chain"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A signed statement, issuer → subject: "this agent belongs here". ``record`` is its wire form.

    It counts only with the subject's consent, so that nobody is drafted into a graph.

    Examples
    --------
    >>> founder, newcomer = KeyPair.from_seed(b"f" * 32), KeyPair.from_seed(b"n" * 32)
    >>> genesis = Genesis([founder.public], threshold=1)
    >>> offer = Certificate.issue(founder, newcomer.public, genesis.collective_id, not_before=0, not_after=9)
    >>> certificate = offer.consented(newcomer)
    >>> store = TrustStore(genesis, now_s=0, policy=TrustPolicy.strict(threshold=1, quota=None))
    >>> store.ingest(certificate)
    >>> store.trusted().contains(newcomer.public)
    True
    """

    record: bytes
    id: bytes
    collective_id: bytes
    issuer: bytes
    subject: bytes
    serial: int
    not_before: int
    not_after: int
    max_depth: int | None
    amount: int

    @classmethod
    def issue(
        cls,
        issuer: KeyPair,
        subject: bytes,
        collective_id: bytes,
        *,
        not_before: int,
        not_after: int,
        serial: int = 0,
        max_depth: int | None = None,
        amount: int = FULL_TRUST,
    ) -> Certificate:
        """Sign a certificate; it still lacks the subject's consent.

        Parameters
        ----------
        issuer : KeyPair
            Who vouches.
        subject : bytes
            Public key of whom is vouched for.
        collective_id : bytes
            The collective it is valid in.
        not_before, not_after : int
            First second of validity and first second after it.
        serial : int
            Tells certificates of this issuer and subject apart; a revocation names it.
        max_depth : int, optional
            How many certificates a chain may have behind this one, 0 to 254; None for no limit.
        amount : int
            Trust amount, 0 to 120. 0 withdraws older certificates for the interval.

        Raises
        ------
        ConfigError
            A number is out of range.
        InvalidKey
            ``subject`` is not a public key.
        """
        check_range("max_depth", max_depth, 0, 254)
        check_range("amount", amount, 0, FULL_TRUST)
        for name, value in (("not_before", not_before), ("not_after", not_after), ("serial", serial)):
            check_range(name, value, 0, 2**64 - 1)
        depth = UNLIMITED if max_depth is None else max_depth
        core = issuer._core
        record = core.certify(
            collective_id_bytes(collective_id),
            public_key(subject),
            serial,
            not_before,
            not_after,
            depth,
            amount,
        )
        return cls.parse(record)

    def consented(self, subject: KeyPair) -> Certificate:
        """Return the certificate with the subject's consent.

        Raises
        ------
        NotAuthorised
            ``subject`` is not the certificate's subject.
        """
        if subject.public != self.subject:
            raise NotAuthorised("only the subject can consent", where=did_of(self.subject))
        return Certificate.parse(subject._core.consent(self.record))

    @classmethod
    def parse(cls, record: bytes) -> Certificate:
        """Read a certificate; signatures are not checked here.

        Raises
        ------
        MalformedRecord
            The bytes are no certificate.
        """
        kind, record_id, collective, _, issuer, subject, serial, begin, end, depth, amount = (
            _core.decode_record(record)
        )
        if kind != "certificate":
            raise MalformedRecord(f"the record is a revocation ({kind}), not a certificate")
        limit = None if depth == UNLIMITED else depth
        return cls(bytes(record), record_id, collective, issuer, subject, serial, begin, end, limit, amount)

    def verify(self) -> None:
        """Check both signatures.

        Raises
        ------
        BadSignature, BadConsent, InvalidKey
            What is wrong.
        """
        _core.verify_record(self.record)


@dataclass(frozen=True, slots=True)
class Revocation:
    """A signed statement that ends something; it holds for ever, in whatever order it arrives."""

    record: bytes
    kind: Literal["revoked", "retired", "compromised", "expel"]
    id: bytes
    collective_id: bytes
    signer: bytes
    subject: bytes
    at: int

    @classmethod
    def of(cls, certificate: Certificate, signer: KeyPair, *, at: int) -> Revocation:
        """End one certificate from ``at`` on; its issuer and its subject (resignation) may do so.

        Raises
        ------
        NotAuthorised
            ``signer`` is neither.
        """
        if signer.public not in (certificate.issuer, certificate.subject):
            raise NotAuthorised("only issuer and subject can revoke a certificate", where=signer.did)
        core = signer._core
        collective, serial = certificate.collective_id, certificate.serial
        return cls.parse(core.revoke(collective, certificate.issuer, certificate.subject, serial, at))

    @classmethod
    def retire(cls, key: KeyPair, collective_id: bytes, *, at: int) -> Revocation:
        """Retire the signer's own key at ``at`` (soft): what it certified before stays.

        ``at`` may lie ahead: that is the key's expiry.
        """
        return cls.parse(key._core.retire(collective_id_bytes(collective_id), at))

    @classmethod
    def compromised(cls, key: KeyPair, collective_id: bytes, *, at: int) -> Revocation:
        """Declare the signer's own key compromised (hard): nothing it certified counts, nor ever did."""
        return cls.parse(key._core.compromised(collective_id_bytes(collective_id), at))

    @classmethod
    def expel(cls, voter: KeyPair, subject: bytes, collective_id: bytes, *, at: int) -> Revocation:
        """Vote to expel ``subject``; t such votes of members at lower layers expel it."""
        return cls.parse(voter._core.expel(collective_id_bytes(collective_id), public_key(subject), at))

    @classmethod
    def parse(cls, record: bytes) -> Revocation:
        """Read a revocation; the signature is not checked here.

        Raises
        ------
        MalformedRecord
            The bytes are no revocation.
        """
        kind, record_id, collective_id, signer, _, subject, _, at, _, _, _ = _core.decode_record(record)
        if kind == "certificate":
            raise MalformedRecord("the record is a certificate, not a revocation")
        return cls(bytes(record), kind, record_id, collective_id, signer, subject, at)


def verify_chain(
    certificates: Sequence[Certificate],
    *,
    anchors: Iterable[bytes],
    collective_id: bytes,
    now_s: int,
    max_depth: int | None,
    mutual: bool = False,
) -> bool:
    """Re-verify a witness path elsewhere, from its certificates alone.

    Checks the signatures, the collective, that each is valid at ``now_s``, that they join up from an anchor,
    the length, each certificate's own depth limit, and that no agent occurs twice. Revocations and membership
    cannot be seen in a chain: only a store that knows them can rule them out.

    Parameters
    ----------
    mutual : bool
        Also accept certificates from subject to issuer.
    """
    if not certificates or (max_depth is not None and len(certificates) > max_depth):
        return False
    first = certificates[0]
    starts = [agent for agent in (first.issuer, first.subject)[: 2 if mutual else 1] if agent in set(anchors)]
    return any(
        _joins(certificates, start, collective_id=collective_id, now_s=now_s, mutual=mutual)
        for start in starts
    )


def _joins(
    certificates: Sequence[Certificate], start: bytes, *, collective_id: bytes, now_s: int, mutual: bool
) -> bool:
    at, seen = start, {start}
    for place, certificate in enumerate(certificates):
        behind = len(certificates) - 1 - place
        usable = (
            certificate.collective_id == collective_id
            and certificate.not_before <= now_s < certificate.not_after
            and certificate.amount > 0
            and (certificate.max_depth is None or certificate.max_depth >= behind)
        )
        if certificate.issuer == at:
            at = certificate.subject
        elif mutual and certificate.subject == at:
            at = certificate.issuer
        else:
            return False
        try:
            certificate.verify()
        except (RefusedStatement, InvalidKey):
            return False
        if not usable or at in seen:
            return False
        seen.add(at)
    return True
