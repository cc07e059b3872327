"""Certificates between numbered nodes: bulk questions, searches, simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pandacore._core import TrustSearch
from pandacore.errors import ConfigError
from pandacore.trust.checks import FULL_TRUST, UNLIMITED, UNREACHED, as_words, check_range, column, columns
from pandacore.trust.policy import TrustPolicy, make_core, walk_depth, walk_flags
from pandacore.trust.sets import TrustedSet

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["TrustGraph", "choose_certifiers"]


class TrustGraph:
    """Certificates between numbered nodes, without keys: for simulations, studies and bulk questions.

    Nodes ``0 .. genesis - 1`` are the founding members. `TrustStore` is the same with keys and signatures.

    Parameters
    ----------
    nodes : int
        Number of nodes, founding members included; `grow` adds more.
    genesis : int
        Number of founding members.
    policy : TrustPolicy
        Quota, membership and grace apply to the whole graph; rule, anchors and depth to single sets.
    now_s : int
        Reference time of every answer, in seconds; `advance` moves it.

    Notes
    -----
    Safe to use from several threads. Searches and bulk changes let other Python threads run.
    """

    def __init__(
        self,
        nodes: int,
        *,
        genesis: int = 1,
        policy: TrustPolicy | None = None,
        now_s: int = 0,
        per_signer: int = 1 << 20,
    ) -> None:
        check_range("nodes", nodes, 1, 2**31 - 2)
        check_range("genesis", genesis, 1, nodes)
        self.policy = policy or TrustPolicy.strict()
        # Numbered keys: the store wants 32 bytes each, and their order is the order of the numbers.
        members = [n.to_bytes(32, "big") for n in range(genesis)]
        self._core = make_core(members, "", self.policy, now_s, per_signer)
        self._genesis = genesis
        self._named = genesis
        self._size = nodes
        self._default: tuple[TrustPolicy, TrustSearch] | None = None

    def _name(self) -> None:
        """Give every node the key that the store wants, before the first certificate of `add`."""
        if self._named < self._size:
            numbers = np.arange(self._named, self._size, dtype=">u8")
            keys = np.zeros((len(numbers), 32), np.uint8)
            keys[:, 24:] = numbers.view(np.uint8).reshape(-1, 8)
            self._core.intern_many(keys)
            self._named = self._size

    @property
    def now_s(self) -> int:
        """The reference time of every answer, in seconds."""
        return self._core.now

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self._size

    @property
    def memory_bytes(self) -> int:
        """Bytes of topology and validity."""
        return self._core.memory_bytes

    def grow(self, nodes: int) -> None:
        """Add nodes up to ``nodes`` (only before `load`, or for use with `add`)."""
        check_range("nodes", nodes, self._size, 2**31 - 2)
        self._size = nodes
        self._name()

    def load(
        self, issuers: ArrayLike, subjects: ArrayLike, *, not_before: ArrayLike, not_after: ArrayLike
    ) -> None:
        """Load a whole certificate graph at once; the fast way for millions of certificates.

        Parameters
        ----------
        issuers, subjects : uint32, shape (n,)
            Each pair at most once.
        not_before, not_after : uint32, shape (n,) or scalar
            Seconds.

        Raises
        ------
        ShapeError
            The arrays differ in length.
        UnknownAgent
            A number is not below the number of nodes.
        StateError
            Certificates were added with `add` before.
        """
        issuers, subjects, begins, ends = columns(issuers, subjects, not_before, not_after)
        self._core.load(self._size, issuers, subjects, begins, ends)

    def apply(
        self,
        kinds: ArrayLike,
        issuers: ArrayLike,
        subjects: ArrayLike,
        *,
        not_before: ArrayLike,
        not_after: ArrayLike,
    ) -> None:
        """Apply certificate events to a loaded graph, in order; all sets are right after each event.

        Parameters
        ----------
        kinds : uint8, shape (n,)
            0: issuer certifies subject for [not_before, not_after), replacing what the pair had. 1: what the
            pair has ends at ``not_before``. 2: the reference time moves to ``not_before``.
        """
        issuers, subjects, begins, ends = columns(issuers, subjects, not_before, not_after)
        kinds = np.ascontiguousarray(np.broadcast_to(np.asarray(kinds, np.uint8), issuers.shape))
        self._core.apply(kinds, issuers, subjects, begins, ends)

    def add(
        self,
        issuers: ArrayLike,
        subjects: ArrayLike,
        *,
        not_before: ArrayLike,
        not_after: ArrayLike,
        serial: ArrayLike = 0,
        max_depth: int | None = None,
        amount: int = FULL_TRUST,
    ) -> NDArray[np.bool_]:
        """Add certificates by all rules of the policy (quota, newest wins, ...).

        Returns
        -------
        bool, shape (n,)
            Which were taken; the others were expired, known already, or otherwise refused.
        """
        check_range("max_depth", max_depth, 0, 254)
        check_range("amount", amount, 0, FULL_TRUST)
        self._name()
        issuers, subjects, begins, ends = columns(issuers, subjects, not_before, not_after)
        serials = column("serial", serial, np.uint64, len(issuers))
        depth = UNLIMITED if max_depth is None else max_depth
        codes = self._core.admit(issuers, subjects, serials, begins, ends, depth, amount)
        return np.asarray(codes == 0)

    def end(self, issuers: ArrayLike, subjects: ArrayLike, *, at_s: int, serial: ArrayLike = 0) -> None:
        """Revoke certificates from ``at_s`` on."""
        issuers, subjects, _, _ = columns(issuers, subjects, 0, 0)
        self._core.end_many(issuers, subjects, column("serial", serial, np.uint64, len(issuers)), at_s)

    def void(self, nodes: ArrayLike) -> None:
        """Declare keys compromised: all certificates on and by these nodes are void, for good."""
        self._core.compromise_many(column("nodes", nodes, np.uint32))

    def advance(self, now_s: int) -> None:
        """Move the reference time forward.

        Raises
        ------
        StateError
            ``now_s`` lies in the past.
        """
        check_range("now_s", now_s, 0, UNREACHED - 1)
        self._core.advance(now_s)

    def trusted(
        self,
        anchors: int | Sequence[int] | NDArray[np.integer] | None = None,
        *,
        policy: TrustPolicy | None = None,
    ) -> TrustedSet:
        """Start to maintain a trusted set; ``anchors`` are nodes, by default the founding members."""
        chosen = range(self._genesis) if anchors is None else np.atleast_1d(anchors)
        return TrustedSet(self._core, policy or self.policy, [int(node) for node in chosen], None)

    def members(self) -> NDArray[np.bool_]:
        """Return which nodes are members, as bool by node."""
        self._core.need_members()
        return self._core.members()

    def search(self, policy: TrustPolicy | None = None) -> TrustSearch:
        """Return the path rule of a policy, resolved once, for questions of about a microsecond each.

        ``search.distance(anchor, target)``, ``search.reach_count(anchor)``, ``search.reach(anchor)``; over
        arrays, ``search.distances(anchors, targets)``. Depth limits of single certificates are obeyed by
        distances only. The answers follow all later changes of the graph.

        Raises
        ------
        ConfigError
            The policy's rule is not ``path``: the threshold rule has no chains between two nodes.
        """
        policy = policy or self.policy
        if policy.rule != "path":
            raise ConfigError("only the path rule searches chains", where="rule", hint="use trusted()")
        if self._default is None or self._default[0] is not policy:
            self._default = (policy, self._core.path_search(walk_depth(policy), walk_flags(policy)))
        return self._default[1]

    def distance(self, anchor: int, target: int, *, policy: TrustPolicy | None = None) -> int | None:
        """Return the length of the shortest chain of rule ``path`` from ``anchor``, or None.

        Notes
        -----
        Searches from both ends: about the square root of a search from one end.
        """
        return self.search(policy).distance(anchor, target)

    def distances(
        self, anchors: ArrayLike, targets: ArrayLike, *, policy: TrustPolicy | None = None
    ) -> NDArray[np.int32]:
        """Return `distance` of many pairs; -1 where there is no chain."""
        first, second = column("anchors", anchors, np.uint32), column("targets", targets, np.uint32)
        return self.search(policy).distances(first, second)

    def reach_count(self, anchor: int, *, policy: TrustPolicy | None = None) -> int:
        """Return how many nodes ``anchor`` accepts under rule ``path``, itself included."""
        return self.search(policy).reach_count(anchor)

    def reach(self, anchors: int | Sequence[int], *, policy: TrustPolicy | None = None) -> NDArray[np.uint32]:
        """Return the nodes that the anchors accept, anchors first, in order of layer."""
        policy = policy or self.policy
        nodes = [int(node) for node in np.atleast_1d(anchors)]
        if policy.rule == "path":
            return self._core.reach(nodes, walk_depth(policy), self._flags(policy))[0]
        return self._core.reach_threshold(nodes, policy.threshold, policy.anchor_weight, policy.max_depth)[0]

    def reach_sizes(
        self,
        anchors: ArrayLike,
        *,
        policy: TrustPolicy | None = None,
        among: ArrayLike | None = None,
        threads: int = 1,
    ) -> NDArray[np.uint32]:
        """Return for each anchor how many nodes it accepts on its own, itself included.

        Parameters
        ----------
        anchors : uint32, shape (n,)
        among : bool, shape (nodes,), optional
            Count only these nodes.
        threads : int
            Threads to split the anchors over.
        """
        policy = policy or self.policy
        nodes = column("anchors", anchors, np.uint32)
        mask = None if among is None else as_words(np.asarray(among))
        t = policy.threshold if policy.rule == "threshold" else 1
        flags = self._flags(policy)
        return self._core.reach_sizes(
            nodes, t, policy.anchor_weight, walk_depth(policy), flags, mask, threads
        )

    def flow(self, anchors: Sequence[int], target: int, *, limit: int = FULL_TRUST) -> int:
        """Return the trust amount that certificates among members carry to ``target``: maximum flow.

        For offline use: it looks at everything behind ``target``.
        """
        self._core.need_members()
        return self._core.flow(list(anchors), target, limit)

    def advogato(
        self, seeds: Sequence[int], capacities: Sequence[int] = (800, 200, 50, 12, 4, 2, 1)
    ) -> NDArray[np.uint32]:
        """Return the nodes that Advogato's network flow from the seeds accepts. For offline use."""
        return self._core.advogato(list(seeds), list(capacities))

    def issued(self, node: int) -> int:
        """Return how many subjects take a place in the issuer's budget now, revoked or not."""
        return self._core.issued(node)

    def _flags(self, policy: TrustPolicy) -> int:
        if policy.rule == "path":
            self._core.need_members()
        return walk_flags(policy)


def choose_certifiers(
    layers: NDArray[np.uint32],
    spare: NDArray[np.integer] | NDArray[np.bool_],
    count: int,
    *,
    random: Callable[[int, int], NDArray[np.integer]] | None = None,
) -> NDArray[np.int64]:
    """Choose whom a newcomer asks: the lowest layer that still has ``count`` members with spare quota.

    Filling the lowest layers first keeps the graph shallow, which gives the threshold rule its recall.

    Parameters
    ----------
    layers : uint32, shape (n,)
        Layer of each node; `UNREACHED` outside.
    spare : int or bool, shape (n,)
        Places left in each node's budget; 0 or less for none, also for nodes that are gone.
    count : int
        Certifiers wanted (t).
    random : callable, optional
        ``random(n, k)`` gives k different numbers below n; without it those with most places left, then the
        lowest numbers, are chosen.

    Returns
    -------
    int64, shape (count,)
        Nodes; empty if no layer has enough, not even together with the lower ones.
    """
    # Nodes that came after the last change of a set are missing at the end of its layers.
    known = min(len(layers), len(spare))
    open_nodes = np.flatnonzero((np.asarray(spare)[:known] > 0) & (layers[:known] != UNREACHED))
    depths = layers[open_nodes]
    for layer in np.unique(depths):
        pool = open_nodes[depths == layer]
        if len(pool) >= count:
            break
    else:
        # No single layer has enough: mix the lowest.
        pool = open_nodes[np.argsort(depths, kind="stable")][:count]
        return np.asarray(pool, np.int64) if len(pool) == count else np.empty(0, np.int64)
    if random is not None:
        return np.asarray(pool[random(len(pool), count)], np.int64)
    best = np.lexsort((pool, -np.asarray(spare)[pool].astype(np.int64)))
    return np.asarray(pool[best[:count]], np.int64)
