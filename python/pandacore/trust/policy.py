"""What a collective was founded with, and whom an agent accepts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from pandacore import _core
from pandacore.errors import ConfigError
from pandacore.trust.checks import DAY_S, UNREACHED, check_range
from pandacore.trust.keys import public_key

__all__ = ["Genesis", "TrustPolicy", "make_core", "walk_depth", "walk_flags"]


@dataclass(frozen=True, slots=True)
class Genesis:
    """What a collective was founded with; its hash is the collective id that every statement is bound to.

    Parameters
    ----------
    members : sequence of bytes
        Public keys of the founding members; order and repetitions do not matter.
    threshold : int
        Certifiers, themselves members, that make a member (t), 1 to 255.
    label : str
        Names the purpose and the policy, so that two collectives of the same founders differ.
    """

    members: tuple[bytes, ...]
    threshold: int = 2
    label: str = ""

    def __init__(self, members: Iterable[bytes], threshold: int = 2, label: str = "") -> None:
        checked = tuple(sorted({public_key(member) for member in members}))
        if not checked:
            raise ConfigError("a collective needs a founding member", where="members")
        if not 1 <= threshold <= 255:
            raise ConfigError(f"threshold is {threshold}; it can be 1 to 255", where="threshold")
        object.__setattr__(self, "members", checked)
        object.__setattr__(self, "threshold", threshold)
        object.__setattr__(self, "label", label)

    @property
    def collective_id(self) -> bytes:
        """SHA-256 of the descriptor, 32 bytes."""
        return _core.collective_id(list(self.members), self.threshold, self.label)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustPolicy:
    """Whom an agent accepts. The policy belongs to the agent that decides, not to the network.

    Use `strict` (the default everywhere) or `panda`, and change single fields with keyword arguments.

    Parameters
    ----------
    rule : "path" or "threshold"
        ``path`` (PANDA): the agent is a member, and a chain of certificates between members leads to it.
        ``threshold``: t certifiers, each itself accepted at a lower layer; the layer is one more than the
        t-th smallest of the certifiers' layers.
    threshold : int
        Certifiers needed (t).
    max_depth : int, optional
        Longest chain, or deepest layer, from an anchor (n); None for no limit.
    anchor : "genesis", "self" or tuple of bytes
        Where trust starts: the founding members, the deciding agent itself, or these agents.
    anchor_weight : int
        Votes of an anchor under ``threshold``; t lets one anchor accept alone (GnuPG).
    reading : "directed" or "mutual"
        Whether a certificate also leads from its subject to its issuer. Only for ``path``.
    membership : "continuous" or "latched"
        Whether who loses its certifiers stops being a member. Only for ``path``; latched membership depends
        on what was seen when.
    grace_s : int
        Seconds for which an ended certificate still supports membership, so that renewal may be late.
    quota : int, optional
        Subjects of one issuer that count at once (q): the oldest certificates win. A certificate takes its
        place until it expires, revoked or not, so places cannot be freed by revoking.
    quota_window_s : int
        Shortest lifetime that counts under a quota, so that places cannot be freed by short lifetimes either.
    lifetime_s : int
        Lifetime of new certificates. Short, because it bounds the harm of a revocation that never arrives.
    renew_at : float
        Share of the lifetime after which a certificate is due for renewal.
    clock_skew_s : int
        How far ahead a statement may lie.
    """

    rule: Literal["path", "threshold"] = "threshold"
    threshold: int = 2
    max_depth: int | None = 3
    anchor: Literal["genesis", "self"] | tuple[bytes, ...] = "genesis"
    anchor_weight: int = 1
    reading: Literal["directed", "mutual"] = "directed"
    membership: Literal["continuous", "latched"] = "continuous"
    grace_s: int = 0
    quota: int | None = 20
    quota_window_s: int = 7 * DAY_S
    lifetime_s: int = 7 * DAY_S
    renew_at: float = 2 / 3
    clock_skew_s: int = 60

    def __post_init__(self) -> None:
        for name, allowed in (
            ("rule", ("path", "threshold")),
            ("reading", ("directed", "mutual")),
            ("membership", ("continuous", "latched")),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it can be one of {allowed}", where=name
                )
        for name, least, most in (
            ("threshold", 1, 255),
            ("anchor_weight", 1, 255),
            ("grace_s", 0, UNREACHED),
            ("quota_window_s", 0, UNREACHED),
            ("lifetime_s", 1, UNREACHED),
            ("clock_skew_s", 0, UNREACHED),
        ):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} is {getattr(self, name)}; it can be {least} to {most}", where=name)
        for name in ("max_depth", "quota"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} is {value}; it must not be negative", where=name)
        if not 0 < self.renew_at <= 1:
            raise ConfigError(
                f"renew_at is {self.renew_at}; it must be above 0 and at most 1", where="renew_at"
            )
        if isinstance(self.anchor, str) and self.anchor not in ("genesis", "self"):
            raise ConfigError(
                f"anchor is {self.anchor!r}; it can be 'genesis', 'self' or a tuple of public keys",
                where="anchor",
            )

    @classmethod
    def strict(cls, **changes: object) -> TrustPolicy:
        """Return the default: threshold rule, directed, quota of 20 subjects per issuer and week.

        A self anchor is one voter, so ``strict(anchor="self")`` gives it the weight t.
        """
        policy = _changed(cls(), changes)
        if policy.anchor == "self" and "anchor_weight" not in changes:
            return replace(policy, anchor_weight=policy.threshold)
        return policy

    @classmethod
    def panda(cls, **changes: object) -> TrustPolicy:
        """Return PANDA's rule: path between members, read in both directions, no quota.

        It accepts any number of Sybils once t members collude (see ``pandacore experiment governance``):
        meant for comparison and for small closed collectives.
        """
        lifetime_s = 7 * DAY_S
        base = cls(rule="path", reading="mutual", quota=None, grace_s=lifetime_s // 3, lifetime_s=lifetime_s)
        return _changed(base, changes)

    def is_due(self, not_before: int, not_after: int, now_s: int) -> bool:
        """Tell whether a certificate with this validity is due for renewal at ``now_s``."""
        return now_s >= not_before + self.renew_at * (not_after - not_before)


def _changed(policy: TrustPolicy, changes: dict[str, object]) -> TrustPolicy:
    try:
        return replace(policy, **changes)  # type: ignore[arg-type]
    except TypeError as error:
        raise ConfigError(f"unknown field of a trust policy: {error}", where="TrustPolicy") from None


def make_core(
    members: list[bytes],
    label: str,
    policy: TrustPolicy,
    now_s: int,
    per_signer: int,
    *,
    capacity: int = 2**32,
    max_lifetime_s: int = UNREACHED,
) -> _core.TrustCore:
    check_range("now_s", now_s, 0, UNREACHED - 1)
    quota = None if policy.quota is None else (policy.quota, policy.quota_window_s)
    return _core.TrustCore(
        members,
        policy.threshold,
        label,
        policy.membership == "latched",
        policy.grace_s,
        quota,
        max_lifetime_s,
        policy.clock_skew_s,
        per_signer,
        capacity,
        now_s,
    )


def walk_depth(policy: TrustPolicy) -> int:
    return -1 if policy.max_depth is None else policy.max_depth


def walk_flags(policy: TrustPolicy) -> int:
    return (policy.reading == "mutual") + 2 * (policy.rule == "path")
