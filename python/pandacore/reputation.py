"""How reliable an agent has found its peers, from what it saw and from what credible witnesses saw.

Beta ratings after Buchegger and Le Boudec (2004), as RAPS uses them: in a rating ``(x, y)``, ``x`` counts
misbehaviour and ``y`` good behaviour, both from a prior of 1, and ``x / (x + y)`` estimates the rate of
misbehaviour. Whom an agent accepts at all is decided by `pandacore.trust`; reputation ranks those.

>>> store = Reputation()
>>> for bad in (False, False, True):
...     store.observe(0, 1, bad=bad, epoch=0)
>>> store.observe(0, 2, bad=False, epoch=0)
>>> store.rank(0, [1, 2, 3], epoch=0).tolist()
[2, 3, 1]
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pandacore import _core
from pandacore.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from pandacore.trust import KeyPair, TrustedSet, TrustStore

__all__ = ["Hearing", "Rating", "Report", "Reputation", "ReputationPolicy", "Standing"]

_FOREVER = 2**32 - 1
_MOST_PAIRS = 2**26 - 2


class Rating(NamedTuple):
    """A Beta rating: misbehaviour and good behaviour, prior included."""

    x: float
    y: float

    @property
    def mean(self) -> float:
        """Estimated rate of misbehaviour."""
        return self.x / (self.x + self.y)

    @property
    def mass(self) -> float:
        """How much evidence."""
        return self.x + self.y


@dataclass(frozen=True, slots=True, kw_only=True)
class ReputationPolicy:
    """How evidence becomes a rating, and a rating a decision.

    Use `robust` (the default everywhere) or `raps`, and change single fields with keyword arguments.

    Parameters
    ----------
    decay : float
        What an observation leaves of earlier ones (λ), above 0 to 1. RAPS: .9, a memory of ten observations.
    idle : float
        What an epoch without observation leaves of the evidence (μ), above 0 to 1. Below 1, who was excluded
        gets another chance once the evidence has faded.
    long_decay : float
        λ of a second, longer memory that peers are ranked by, 0 to below 1; 0 for none. Phases of good and
        bad behaviour average out in it, so alternating between them gains nothing.
    long_tolerated, long_certainty : float
        A peer is not routed to, either, if its rate in the long memory is above ``long_tolerated`` with at
        least this probability. Fades with ``idle`` like everything that excludes.
    aspiration : float
        Rate at which an unknown peer ranks. Who has done worse ranks after it, so better peers are found in
        its place; a newcomer never ranks before who has proved better.
    deviation : float
        Reports whose mean differs from the receiver's rating by as much disagree (δ).
    slack : float
        Standard deviations of the receiver's own rating by which ``deviation`` is widened: who has seen
        little cannot tell a liar from somebody who has seen more.
    weight : float
        Weight of a report (ω), above 0 and below 1.
    witness_limit : float
        A witness is credible while its rate of disagreement stays below this (τ_T).
    mean_limit : float, optional
        RAPS (10): a peer whose estimate reaches this is not routed to. None: by ``tolerated``.
    tolerated, certainty : float
        Without ``mean_limit``: a peer is not routed to if its rate is above ``tolerated`` with at least this
        probability, and the observer saw something itself.
    second_hand : "ignored", "merged" or "capped"
        ``merged`` (RAPS): whole ratings, each time, of witnesses that are credible or agree. ``capped``: what
        is new since the witness's last report, of witnesses that are credible and agree, at most ``share`` of
        the first-hand mass, and as much as the prior before anything was seen.
    share : float
        Bound on second-hand over first-hand mass (RAPS has none): hearsay is at most share / (1 + share) of a
        rating, a third by default.
    false_positive, false_negative : float
        Error rates of the watchdog; estimates are corrected for them.
    report_age : int
        Oldest report taken, in epochs.
    """

    decay: float = 0.9
    idle: float = 0.85
    long_decay: float = 0.98
    long_tolerated: float = 0.25
    long_certainty: float = 0.98
    aspiration: float = 0.2
    deviation: float = 0.25
    slack: float = 0.7
    weight: float = 0.5
    witness_limit: float = 0.5
    mean_limit: float | None = None
    tolerated: float = 0.5
    certainty: float = 0.85
    second_hand: Literal["ignored", "merged", "capped"] = "capped"
    share: float = 0.5
    false_positive: float = 0.0
    false_negative: float = 0.0
    report_age: int = 4

    def __post_init__(self) -> None:
        for name, low, high in (
            ("decay", 1e-9, 1.0),
            ("idle", 1e-9, 1.0),
            ("long_decay", 0.0, 1.0 - 1e-9),
            ("long_tolerated", 0.0, 1.0),
            ("long_certainty", 0.0, 1.0),
            ("aspiration", 0.0, 1.0),
            ("deviation", 0.0, 1.0),
            ("slack", 0.0, 10.0),
            ("weight", 1e-9, 1.0 - 1e-9),
            ("witness_limit", 0.0, 1.0),
            ("tolerated", 0.0, 1.0),
            ("certainty", 0.0, 1.0),
            ("share", 0.0, 1e6),
            ("false_positive", 0.0, 1.0),
            ("false_negative", 0.0, 1.0),
            ("report_age", 0, _FOREVER),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} is {getattr(self, name)}; it can be {low} to {high}", where=name)
        if self.mean_limit is not None and not 0 <= self.mean_limit <= 1:
            raise ConfigError(f"mean_limit is {self.mean_limit}; it can be 0 to 1", where="mean_limit")
        if self.second_hand not in ("ignored", "merged", "capped"):
            raise ConfigError(
                f"second_hand is {self.second_hand!r}; it can be 'ignored', 'merged' or 'capped'",
                where="second_hand",
            )
        if self.false_positive + self.false_negative >= 1:
            raise ConfigError("a watchdog that errs so often tells nothing", where="false_positive")

    @classmethod
    def robust(cls, **changes: object) -> ReputationPolicy:
        """Return the default, which closes the holes of the published scheme."""
        return _changed(cls(), changes)

    @classmethod
    def raps(cls, **changes: object) -> ReputationPolicy:
        """Return RAPS' equations (5) to (10) with its published λ = .9 and τ_rep = .7.

        It publishes neither δ, ω nor τ_T: .25, .1 and .5 are ours. A witness counts as trusted while its
        estimate is *below* τ_T, as in Buchegger and Le Boudec; the paper's text has the sign reversed.
        """
        base = cls(
            idle=1.0,
            long_decay=0.0,
            slack=0.0,
            weight=0.1,
            mean_limit=0.7,
            second_hand="merged",
            report_age=_FOREVER,
        )
        return _changed(base, changes)


def _changed(policy: ReputationPolicy, changes: dict[str, object]) -> ReputationPolicy:
    try:
        return replace(policy, **changes)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(
            f"unknown field of a reputation policy: {error}", where="ReputationPolicy"
        ) from None


@dataclass(frozen=True, slots=True)
class Standing:
    """Everything known about one peer in the eyes of one observer.

    Attributes
    ----------
    first_hand : Rating
        What the observer saw (F).
    second_hand : Rating
        What it was told; without a prior under ``capped``.
    combined : Rating
        What decides (P).
    observations : int
        Own observations, ever.
    estimate, long_estimate : float
        Rate of misbehaviour, corrected for watchdog errors, in the short and in the long memory.
    score : float
        What peers are ranked by; lower is better.
    certainty : float
        Probability that the tolerated rate is passed (0 or 1 under ``mean_limit``).
    excluded : bool
        Whether the peer is not routed to.
    """

    first_hand: Rating
    second_hand: Rating
    combined: Rating
    observations: int
    estimate: float
    long_estimate: float
    score: float
    certainty: float
    excluded: bool


@dataclass(frozen=True, slots=True)
class Hearing:
    """What became of a report: whether it counted, how far it deviated, and the witness's new rating."""

    merged: bool
    deviation: float
    witness: Rating


@dataclass(frozen=True, slots=True)
class Report:
    """A signed first-hand rating of a subject by a witness. Hearsay is never reported.

    ``counter`` is how many observations of the subject the rating rests on; it rises with each, so that a
    report cannot be replayed and the receiver knows what is new in it.
    """

    record: bytes
    witness: bytes
    subject: bytes
    epoch: int
    counter: int
    rating: Rating

    @classmethod
    def sign(
        cls, key: KeyPair, subject: bytes, collective_id: bytes, *, epoch: int, standing: Standing
    ) -> Report:
        """Sign what a standing says at first hand.

        Raises
        ------
        ConfigError
            Nothing was observed, so there is nothing to report.
        """
        if standing.observations == 0:
            raise ConfigError("nothing was observed at first hand", where="standing")
        x, y = standing.first_hand
        counter = standing.observations
        record = key._core.report(collective_id, subject, epoch, counter, x, y)
        return cls(record, key.public, subject, epoch, counter, Rating(x, y))

    @classmethod
    def open(cls, record: bytes, collective_id: bytes) -> Report:
        """Read a report and check its signature.

        Raises
        ------
        MalformedRecord, ForeignCollective, BadSignature
            What is wrong.
        """
        witness, subject, epoch, counter, x, y = _core.open_report(record, collective_id)
        return cls(bytes(record), witness, subject, epoch, counter, Rating(x, y))


class Reputation:
    """Ratings of (observer, peer) pairs, numbered as the caller likes (for instance `TrustStore.number`).

    One store serves all agents of a host; an observer's ratings are only changed by its own observations
    and by reports that it hears.

    Parameters
    ----------
    policy : ReputationPolicy, optional
        Default `ReputationPolicy.robust`.
    capacity : int
        Most rated pairs; the tables for reports have the same bound. `forget` makes room.

    Notes
    -----
    About 45 bytes a rated pair; updates take constant time. Safe to use from several threads. The calls over
    arrays let other Python threads run.
    """

    def __init__(self, policy: ReputationPolicy | None = None, *, capacity: int = 50_000_000) -> None:
        self.policy = policy or ReputationPolicy.robust()
        if not 1 <= capacity <= _MOST_PAIRS:
            raise ConfigError(f"capacity is {capacity}; it can be 1 to {_MOST_PAIRS}", where="capacity")
        p = self.policy
        self._core = _core.ReputationCore(
            p.decay,
            p.idle,
            p.long_decay,
            (p.long_tolerated, p.long_certainty),
            p.aspiration,
            p.deviation,
            p.slack,
            p.weight,
            p.witness_limit,
            p.mean_limit,
            (p.tolerated, p.certainty),
            p.second_hand,
            p.share,
            (p.false_positive, p.false_negative),
            p.report_age,
            capacity,
        )

    def __len__(self) -> int:
        """Return the number of rated pairs."""
        return len(self._core)

    @property
    def memory_bytes(self) -> int:
        """Bytes of ratings and their index."""
        return self._core.memory_bytes

    def observe(self, observer: int, peer: int, *, bad: bool, epoch: int) -> None:
        """Count one thing that ``observer`` saw ``peer`` do.

        Raises
        ------
        SelfStatement
            Observer and peer are the same.
        Overloaded
            The store is full.
        """
        self._core.observe(observer, peer, bad, epoch)

    def observe_many(self, observers: ArrayLike, peers: ArrayLike, bad: ArrayLike, *, epoch: int) -> None:
        """Count many observations of one epoch, in order.

        Parameters
        ----------
        observers, peers : uint32, shape (n,)
        bad : bool, shape (n,)

        Raises
        ------
        SelfStatement, Overloaded
            As in `observe`; what came before in the arrays is counted.
        ShapeError
            Wrong dtype, or different lengths.
        """
        first, second = _numbers("observers", observers), _numbers("peers", peers)
        events = np.asarray(bad)
        if events.dtype != np.bool_ or events.ndim != 1:
            raise ShapeError(f"bad has dtype {events.dtype}; it needs one dimension of bool", where="bad")
        self._core.observe_many(first, second, np.ascontiguousarray(events), epoch)

    def standing(self, observer: int, peer: int, *, epoch: int) -> Standing:
        """Return everything known about a peer; one never met has the prior."""
        first, second, combined, *rest = self._core.standing(observer, peer, epoch)
        return Standing(Rating(*first), Rating(*second), Rating(*combined), *rest)  # type: ignore[arg-type]

    def excluded(self, observer: int, peer: int, *, epoch: int) -> bool:
        """Tell whether ``observer`` does not route to ``peer``."""
        return self._core.standing(observer, peer, epoch)[8]

    def scores(
        self, observers: ArrayLike, peers: ArrayLike, *, epoch: int
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the score and whether it is excluded for many pairs; arrays of shape (n,)."""
        return self._core.scores(_numbers("observers", observers), _numbers("peers", peers), epoch)

    def rank(self, observer: int, candidates: ArrayLike, *, epoch: int) -> NDArray[np.uint32]:
        """Return the candidates that are not excluded, best first; ties go to the lower number.

        Filter first, choose then: take as many as are wanted from the front. An empty answer means that
        nobody is left, which is for the caller to escalate; an excluded peer is never routed to silently.
        """
        return self._core.rank(observer, _numbers("candidates", candidates), epoch)

    def probation(
        self, observer: int, candidates: ArrayLike, *, epoch: int, draw: float, rate: float = 0.02
    ) -> int | None:
        """Return an excluded candidate to try once more, or None, as it is nearly always.

        Besides fading evidence this is the other way back for who was excluded. Use it only for work whose
        result is checked.

        Parameters
        ----------
        draw : float
            A uniform random number in [0, 1), from the caller's generator.
        rate : float
            Share of decisions in which somebody excluded is tried.
        """
        if not draw < rate:
            return None
        peers = _numbers("candidates", candidates)
        scores, excluded = self.scores(np.full(len(peers), observer, np.uint32), peers, epoch=epoch)
        banned = peers[excluded]
        if not len(banned):
            return None
        return int(banned[np.lexsort((banned, scores[excluded]))[0]])

    def hear(
        self, receiver: int, report: Report | bytes, *, store: TrustStore, trusted: TrustedSet, epoch: int
    ) -> Hearing:
        """Take a witness's report into account for ``receiver``.

        Parameters
        ----------
        receiver : int
            Whose ratings it may change; numbered by ``store``, as are all pairs of this store then.
        report : Report or bytes
            Its signature is checked in either case.
        store : TrustStore
            Numbers the agents and names the collective.
        trusted : TrustedSet
            The receiver's trusted set: nobody else may testify.

        Raises
        ------
        RefusedStatement
            ``MalformedRecord``, ``ForeignCollective``, ``BadSignature``, ``UntrustedWitness``,
            ``SelfStatement``, ``StaleReport`` or ``ImpossibleReport``. All ratings are bit-identical then.
        Overloaded
            The tables for reports are full.
        """
        record = report if isinstance(report, bytes) else report.record
        opened = Report.open(record, store.genesis.collective_id)
        accepted = trusted.contains(opened.witness)
        # An unknown witness gets no number: the refusal must leave no trace.
        witness = store.node(opened.witness) if accepted else None
        subject = store.node(opened.subject)
        merged, deviation, rating = self._core.hear(
            receiver,
            _FOREVER if witness is None else witness,
            _FOREVER - 1 if subject is None else subject,
            accepted and subject is not None,
            opened.epoch,
            opened.counter,
            opened.rating.x,
            opened.rating.y,
            epoch,
        )
        return Hearing(merged, deviation, Rating(*rating))

    def hear_numbers(
        self,
        receiver: int,
        witness: int,
        subject: int,
        rating: tuple[float, float],
        *,
        counter: int,
        written: int,
        epoch: int,
        trusted: bool = True,
    ) -> Hearing:
        """As `hear`, for reports between numbered agents whose signatures were checked elsewhere."""
        x, y = rating
        merged, deviation, witness_rating = self._core.hear(
            receiver, witness, subject, trusted, written, counter, x, y, epoch
        )
        return Hearing(merged, deviation, Rating(*witness_rating))

    def witness(self, receiver: int, witness: int) -> Rating:
        """Return a witness's rating in the eyes of a receiver (T): x counts reports that disagreed."""
        return Rating(*self._core.witness(receiver, witness))

    def certifier_event(self, certifier: int, *, bad: bool) -> None:
        """Count whether somebody whom ``certifier`` vouched for had to be expelled."""
        self._core.certifier_event(certifier, bad)

    def certifier(self, certifier: int) -> Rating:
        """Return how reliable somebody is as a certifier; separate from how it works."""
        return Rating(*self._core.certifier(certifier))

    def forget(self, *, epoch: int, closeness: float = 0.01) -> int:
        """Drop ratings that have faded to within ``closeness`` of the prior; return how many."""
        return self._core.forget(epoch, closeness)


def _numbers(name: str, values: ArrayLike) -> NDArray[np.uint32]:
    array = np.asarray(values)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.uint32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ShapeError(
            f"{name} has dtype {array.dtype} and {array.ndim} dimensions; it needs one of whole numbers",
            where=name,
        )
    if array.dtype != np.uint32 and (int(array.min()) < 0 or int(array.max()) > _FOREVER):
        raise ShapeError(f"{name} holds numbers outside uint32", where=name)
    return np.ascontiguousarray(array, np.uint32)
