"""Sets of accepted agents that are kept right, and why somebody is in one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pandacore import _core
from pandacore.errors import ConfigError
from pandacore.trust.checks import UNREACHED, as_words, column
from pandacore.trust.policy import TrustPolicy, walk_depth, walk_flags

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from pandacore.trust.store import TrustStore

__all__ = ["Explanation", "LiveCertificate", "TrustedSet"]


@dataclass(frozen=True, slots=True)
class LiveCertificate:
    """A certificate that counts at the reference time."""

    issuer: bytes
    id: bytes
    not_before: int
    not_after: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an agent is, or is not, accepted, at one reference time.

    Attributes
    ----------
    reason : str
        ``accepted``, ``anchor``, ``unknown``, ``compromised``, ``expelled``, ``retired``, ``not a member``,
        ``too few certificates``, ``over quota`` (too few count, and enough would if no budget was used up, or
        if all lived long enough to take a place in one) or ``too far``.
    layer : int, optional
        Layer or distance; None if it is not reached within the depth.
    path : tuple of bytes
        Rule ``path``: the shortest chain from an anchor, ties by agent id.
    support : tuple of (issuer, subject)
        Rule ``threshold``: certificates, anchors first, that alone give the agent this layer.
    certificates : tuple of LiveCertificate
        Everything on the agent that counts now.
    needed : int
        Certificates needed (t).
    uncounted : tuple of LiveCertificate
        For ``not a member``, ``too few certificates`` and ``over quota``: what does not count only because of
        its issuer's quota.
    """

    agent: bytes
    trusted: bool
    reason: str
    reference_time_s: int
    rule: str
    layer: int | None
    path: tuple[bytes, ...]
    support: tuple[tuple[bytes, bytes], ...]
    certificates: tuple[LiveCertificate, ...]
    needed: int
    uncounted: tuple[LiveCertificate, ...] = ()


class TrustedSet:
    """The agents that one policy accepts, kept right while statements arrive, expire and are revoked.

    Made by `TrustStore.trusted` (agents are public keys) or `TrustGraph.trusted` (agents are nodes). Close
    it, or use it as a context manager, when it is no longer needed: each costs a little with every event.
    """

    def __init__(
        self, core: _core.TrustCore, policy: TrustPolicy, anchors: list[int], store: TrustStore | None
    ) -> None:
        t = policy.threshold if policy.rule == "threshold" else 1
        if t > len(set(anchors)) * policy.anchor_weight:
            raise ConfigError(
                f"{len(set(anchors))} anchor(s) of weight {policy.anchor_weight} never reach {t} votes",
                where="anchor_weight",
                hint=f"use anchor_weight={t}, or more anchors",
            )
        self.policy = policy
        self._core = core
        self._store = store
        self._anchors = sorted(set(anchors))
        self._id: int | None = core.add_set(
            self._anchors, t, policy.anchor_weight, policy.max_depth, policy.reading == "mutual",
            policy.rule == "path",
        )  # fmt: skip
        self._snapshot: tuple[tuple[int, int, int], NDArray[np.uint64]] | None = None

    def close(self) -> None:
        """Stop to maintain the set; asking it afterwards raises StateError."""
        if self._id is not None:
            self._core.drop_set(self._id)
            self._id = None

    def __enter__(self) -> TrustedSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> TrustStore:
        """The store behind the set; only for sets of a `TrustStore`."""
        return self._keys()

    @property
    def version(self) -> tuple[int, int, int]:
        """Count of changes, reference time and number of nodes: equal means that nothing changed."""
        return self._core.set_version(self._handle())

    def __len__(self) -> int:
        """Return the number of accepted agents, anchors included, retired keys not taken off."""
        return self._core.set_len(self._handle())

    def contains(self, agent: bytes | int) -> bool:
        """Tell whether the set holds an agent (and its key is not retired)."""
        node = self._node(agent)
        return node is not None and self._core.trusts(self._handle(), node)

    def contains_many(self, nodes: ArrayLike) -> NDArray[np.bool_]:
        """Tell it for many nodes at once; uint32, shape (n,) to bool, shape (n,)."""
        return self._core.trusts_many(self._handle(), column("nodes", nodes, np.uint32))

    def layer(self, agent: bytes | int) -> int | None:
        """Return the layer of an agent (0 for anchors; under ``path`` the distance), None if outside."""
        node = self._node(agent)
        layer = -1 if node is None else self._core.layer(self._handle(), node)
        return None if layer < 0 else layer

    def layers(self) -> NDArray[np.uint32]:
        """Return all layers by node; `UNREACHED` outside. Retired keys are not taken off."""
        return self._core.set_layers(self._handle())

    def bitmap(self, nodes: ArrayLike | None = None) -> NDArray[np.uint64]:
        """Return the set as bits, 64 a word, lowest first, as ``Registry.set_trusted_bitmap`` takes it.

        Parameters
        ----------
        nodes : uint32, shape (n,), optional
            Node of each slot of a registry (`TrustStore.number`); the bits are then by slot. Without it they
            are by node, and the same read-only array is returned until something changes.
        """
        version = self.version
        if self._snapshot is None or self._snapshot[0] != version:
            words = self._core.bitmap(self._handle())
            words.flags.writeable = False
            self._snapshot = (version, words)
        words = self._snapshot[1]
        if nodes is None:
            return words
        slots = column("nodes", nodes, np.uint32)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        inside = np.zeros(len(slots), np.bool_)
        known = slots < len(bits)
        inside[known] = bits[slots[known]] != 0
        return as_words(inside)

    def agents(self) -> list[bytes]:
        """Return the accepted agents' public keys, sorted; only for sets of a `TrustStore`."""
        store = self._keys()
        bits = np.unpackbits(self.bitmap().view(np.uint8), bitorder="little")
        return sorted(store.agent(int(node)) for node in np.flatnonzero(bits))

    def nodes(self) -> NDArray[np.uint32]:
        """Return the accepted nodes, in order."""
        bits = np.unpackbits(self.bitmap().view(np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.uint32)

    def witness(self, agent: bytes | int) -> tuple[bytes, ...] | tuple[int, ...] | None:
        """Return the shortest chain from an anchor to the agent, ties by agent id; None without one.

        Only for rule ``path``; `explain` gives the support under ``threshold``.
        """
        node = self._node(agent)
        if node is None or self.policy.rule != "path":
            return None
        path = self._core.witness(self._anchors, node, walk_depth(self.policy), walk_flags(self.policy))
        if path is None:
            return None
        if self._store is None:
            return tuple(path)
        return tuple(self._core.agent(step) for step in path)

    def explain(self, agent: bytes) -> Explanation:
        """Say why an agent is, or is not, in the set; only for sets of a `TrustStore`."""
        store = self._keys()
        node = store.node(agent)
        policy = self.policy
        layer = self.layer(agent)
        path: tuple[bytes, ...] = ()
        support: tuple[tuple[bytes, bytes], ...] = ()
        certificates = store.certificates(agent)
        state = "" if node is None else self._core.key_state(node)
        if node is None:
            reason = "unknown"
        elif state:
            reason = state
        elif layer == 0:
            reason = "anchor"
        elif layer is not None:
            reason = "accepted"
        elif policy.rule == "path" and not store.is_member(agent):
            reason = "not a member"
        elif policy.rule == "threshold" and not self._reached_by_enough(certificates):
            reason = "too few certificates"
        else:
            reason = "too far"
        uncounted: tuple[LiveCertificate, ...] = ()
        if reason in ("not a member", "too few certificates"):
            uncounted = store.beyond_budget(agent)
            if uncounted and len(certificates) + len(uncounted) >= policy.threshold:
                reason = "over quota"
        if layer is not None and node is not None:
            if policy.rule == "path":
                found = self._core.witness(self._anchors, node, walk_depth(policy), walk_flags(policy)) or []
                path = tuple(self._core.agent(step) for step in found)
            else:
                support = self._support(store, agent)
        return Explanation(
            agent, layer is not None, reason, store.now_s, policy.rule, layer, path, support, certificates,
            policy.threshold, uncounted,
        )  # fmt: skip

    def _reached_by_enough(self, certificates: Iterable[LiveCertificate]) -> bool:
        layers = [self._live_layer(certificate.issuer) for certificate in certificates]
        votes = sum(self.policy.anchor_weight if layer == 0 else 1 for layer in layers if layer is not None)
        return votes >= self.policy.threshold

    def _live_layer(self, agent: bytes) -> int | None:
        """Layer of an agent, also with a retired key: what it certified before still counts."""
        node = self._node(agent)
        layers = self.layers()
        if node is None or node >= len(layers) or layers[node] == UNREACHED:
            return None
        return int(layers[node])

    def _support(self, store: TrustStore, agent: bytes) -> tuple[tuple[bytes, bytes], ...]:
        found: dict[tuple[bytes, bytes], int] = {}
        pending, seen = [agent], {agent}
        while pending:
            subject = pending.pop()
            layer = self._live_layer(subject)
            if not layer:
                continue
            voters = [(self._live_layer(c.issuer), c.issuer) for c in store.certificates(subject)]
            votes = 0
            for level, issuer in sorted((level, issuer) for level, issuer in voters if level is not None):
                if votes >= self.policy.threshold:
                    break
                votes += self.policy.anchor_weight if level == 0 else 1
                found[(issuer, subject)] = layer
                if issuer not in seen:
                    seen.add(issuer)
                    pending.append(issuer)
        return tuple(sorted(found, key=lambda edge: (found[edge], edge)))

    def _handle(self) -> int:
        # A dropped id is free for another set: never ask with it.
        return 2**63 - 1 if self._id is None else self._id

    def _node(self, agent: bytes | int) -> int | None:
        return self._core.node(agent) if isinstance(agent, bytes) else agent

    def _keys(self) -> TrustStore:
        if self._store is None:
            raise ConfigError("a set of a TrustGraph has no keys", where="TrustedSet", hint="use nodes()")
        return self._store
