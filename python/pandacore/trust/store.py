"""All statements a host knows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pandacore.errors import (
    BadConsent,
    BadInterval,
    BadSignature,
    ConfigError,
    DuplicateStatement,
    Expired,
    ForeignCollective,
    InvalidKey,
    MalformedRecord,
    NotAuthorised,
    NotYetValid,
    QuotaExceeded,
    RefusedStatement,
    SelfStatement,
    UnknownAgent,
)
from pandacore.trust.checks import DAY_S, UNREACHED, check_range
from pandacore.trust.keys import did_of
from pandacore.trust.policy import Genesis, TrustPolicy, make_core
from pandacore.trust.sets import LiveCertificate, TrustedSet
from pandacore.trust.statements import Certificate, Revocation

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TrustStore"]

_REFUSALS: dict[int, tuple[type[RefusedStatement | InvalidKey], str]] = {
    1: (MalformedRecord, "the bytes are no record"),
    2: (InvalidKey, "a key is not an Ed25519 public key"),
    3: (ForeignCollective, "the record belongs to another collective"),
    4: (SelfStatement, "issuer and subject are the same agent"),
    5: (BadInterval, "the validity interval is empty, too long or out of range"),
    6: (Expired, "the certificate has expired"),
    7: (NotYetValid, "the statement lies in the future"),
    8: (BadSignature, "the signature is not the signer's"),
    9: (BadConsent, "the consent is not the subject's"),
    10: (NotAuthorised, "the signer may not make this statement"),
    11: (DuplicateStatement, "the statement is already known"),
    12: (QuotaExceeded, "the signer has too many statements stored"),
}


class TrustStore:
    """Everything a host knows about who vouches for whom, verified once, and whom it therefore accepts.

    Parameters
    ----------
    genesis : Genesis
        The collective. Statements of another one are refused.
    now_s : int
        Reference time of every answer, in seconds since 1970 (or of a simulation); `advance` moves it.
    policy : TrustPolicy, optional
        Default `TrustPolicy.strict`. Its quota, membership, grace and clock skew hold for the whole store;
        `trusted` takes others for the rest. ``genesis.threshold`` decides membership.
    me : bytes, optional
        The deciding agent, for the anchor ``self``.
    max_lifetime_s : int
        Certificates that live longer are refused.
    per_signer, capacity : int
        Most statements stored of one signer, and in all. Beyond the first the answers of two hosts may
        depend on what arrived first.

    Notes
    -----
    Up to those bounds the answers depend on what is known and on the time, not on the order of arrival.
    Safe to use from several threads; signature checks, searches and bulk changes let other threads run.
    """

    def __init__(
        self,
        genesis: Genesis,
        *,
        now_s: int,
        policy: TrustPolicy | None = None,
        me: bytes | None = None,
        max_lifetime_s: int = 400 * DAY_S,
        per_signer: int = 4096,
        capacity: int = 8_000_000,
    ) -> None:
        self.genesis = genesis
        self.policy = policy or TrustPolicy.strict()
        self.me = me
        self._core = make_core(
            list(genesis.members),
            genesis.label,
            replace(self.policy, threshold=genesis.threshold),
            now_s,
            per_signer,
            capacity=capacity,
            max_lifetime_s=max_lifetime_s,
        )

    @property
    def now_s(self) -> int:
        """The reference time of every answer, in seconds."""
        return self._core.now

    def __len__(self) -> int:
        """Return the number of stored statements."""
        return self._core.statements

    def advance(self, now_s: int) -> None:
        """Move the reference time forward; what expired meanwhile is forgotten, all sets are right.

        Raises
        ------
        StateError
            ``now_s`` lies in the past.
        """
        check_range("now_s", now_s, 0, UNREACHED - 1)
        self._core.advance(now_s)

    def ingest(self, statement: Certificate | Revocation | bytes) -> None:
        """Verify a statement and take it in; all sets are right when this returns.

        Raises
        ------
        RefusedStatement
            Which subclass says why. The store is unchanged then.
        InvalidKey
            A key in it is no public key.
        """
        self._core.ingest(statement if isinstance(statement, bytes) else statement.record)

    def ingest_many(
        self, statements: Iterable[Certificate | Revocation | bytes], *, threads: int | None = None
    ) -> list[RefusedStatement | InvalidKey | None]:
        """Verify many statements on all cores and take them in; return None or the refusal for each.

        Parameters
        ----------
        threads : int, optional
            Threads for the signature checks; by default one per core.
        """
        records = [s if isinstance(s, bytes) else s.record for s in statements]
        codes = self._core.ingest_many(records, threads or os.cpu_count() or 1)
        answers: list[RefusedStatement | InvalidKey | None] = []
        for code in codes.tolist():
            kind = _REFUSALS.get(code)
            answers.append(None if kind is None else kind[0](kind[1]))
        return answers

    def export(self) -> list[bytes]:
        """Return every stored statement; `ingest_many` of another store takes them in."""
        return self._core.export()

    def digest(self) -> bytes:
        """Return 32 bytes that are equal on hosts that know the same statements."""
        return self._core.digest()

    def trusted(
        self, *, policy: TrustPolicy | None = None, anchor: bytes | Iterable[bytes] | None = None
    ) -> TrustedSet:
        """Start to maintain the set of agents that ``policy`` accepts.

        Parameters
        ----------
        policy : TrustPolicy, optional
            Default: the store's.
        anchor : bytes or iterable of bytes, optional
            Agents to start from instead of the policy's anchor.

        Raises
        ------
        ConfigError
            The anchors together have fewer votes than the threshold, or ``self`` is asked for without ``me``.
        """
        policy = policy or self.policy
        anchors: Iterable[bytes]
        if anchor is not None:
            anchors = [anchor] if isinstance(anchor, bytes) else anchor
        elif policy.anchor == "genesis":
            anchors = self.genesis.members
        elif policy.anchor == "self":
            if self.me is None:
                raise ConfigError(
                    "the policy's anchor is 'self', but the store does not know who that is",
                    where="anchor",
                    hint="pass me=... to TrustStore or anchor=... here",
                )
            anchors = [self.me]
        else:
            anchors = policy.anchor
        return TrustedSet(self._core, policy, [self._core.intern(agent) for agent in anchors], self)

    def number(self, agents: Iterable[bytes]) -> NDArray[np.uint32]:
        """Return the nodes of agents, which get one if they have none.

        A registry whose slots are to share the numbering announces agents in this order: the founding
        members sorted by key, then as numbered here; `TrustedSet.bitmap` then needs no reordering.
        """
        return np.fromiter((self._core.intern(agent) for agent in agents), np.uint32)

    def agent(self, node: int) -> bytes:
        """Return the agent of a node."""
        return self._core.agent(node)

    def node(self, agent: bytes) -> int | None:
        """Return the node of an agent, None if no statement names it."""
        return self._core.node(agent) if len(agent) == 32 else None

    def is_member(self, agent: bytes) -> bool:
        """Tell whether an agent is a member: t certificates of members, up from the founding members."""
        self._core.need_members()
        node = self.node(agent)
        return node is not None and self._core.is_member(node)

    def certificates(self, agent: bytes) -> tuple[LiveCertificate, ...]:
        """Return the certificates on an agent that count now, by issuer."""
        return self._certificates(agent, beyond_budget=False)

    def beyond_budget(self, agent: bytes) -> tuple[LiveCertificate, ...]:
        """Return the certificates on an agent that do not count only because of a quota, by issuer.

        Either the issuer certified ``quota`` others first, or the lifetime is below ``quota_window_s``.
        Looks at all certificates: for explanations.
        """
        return self._certificates(agent, beyond_budget=True)

    def _certificates(self, agent: bytes, *, beyond_budget: bool) -> tuple[LiveCertificate, ...]:
        node = self.node(agent)
        if node is None:
            return ()
        live = [
            LiveCertificate(self._core.agent(issuer), certificate_id, begin, end)
            for issuer, certificate_id, begin, end in self._core.live_certificates(node, beyond_budget)
        ]
        return tuple(sorted(live, key=lambda certificate: certificate.issuer))

    def due_for_renewal(self, agent: bytes) -> tuple[LiveCertificate, ...]:
        """Return the certificates on an agent that have passed the policy's share of their lifetime."""
        now = self.now_s
        live = self.certificates(agent)
        return tuple(c for c in live if self.policy.is_due(c.not_before, c.not_after, now))

    def issued(self, agent: bytes) -> int:
        """Return how many subjects take a place in the agent's budget as an issuer now, revoked or not."""
        node = self.node(agent)
        return 0 if node is None else self._core.issued(node)

    def chain(self, path: Sequence[bytes]) -> list[Certificate]:
        """Return the certificates along a witness path, for `verify_chain` elsewhere.

        Raises
        ------
        UnknownAgent
            Two neighbours have no live certificate between them.
        """
        found = []
        for first, second in itertools.pairwise(path):
            nodes = [self.node(first), self.node(second)]
            record = None
            if nodes[0] is not None and nodes[1] is not None:
                # A mutual reading also walks from subject to issuer.
                record = self._core.live_record(nodes[0], nodes[1])
                record = record or self._core.live_record(nodes[1], nodes[0])
            if record is None:
                raise UnknownAgent("no live certificate between two neighbours", where=did_of(second))
            found.append(Certificate.parse(record))
        return found
