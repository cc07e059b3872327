"""Who is accepted, and who should not be: recall, precision and Sybils under the two trust policies.

Members join one after another. How a newcomer finds its certifiers (the attachment), how many founders
there are and in which directions certificates are read decide the figures as much as the policy does, so
each row names them. ``panda``: t certifiers drawn uniformly from the members. ``strict``: t certifiers from
the lowest layer that still has room in its quota, and renewal when a layer is lost or a certificate has
passed two thirds of its lifetime.

``recall``: share of the live members that an agent accepts. ``precision``: share of the accepted agents that
are live; it depends on how many departures are not known yet (``unknown``). With churn the population turns
over three times; a departed member's certificates are void, or stay in use where churn is ``kept``. PANDA
does not say whether a member whose certifiers leave stays one: ``membership`` is given with each row.
``sybils``: how many identities of an attacker are accepted of many tries, when some members collude.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pandacore.bench.frame import Option
from pandacore.trust import TrustGraph, TrustPolicy, choose_certifiers

if TYPE_CHECKING:
    from pandacore.experiments.frame import Experiment, Row

__all__ = ["OPTIONS", "plot", "run"]

OPTIONS = (
    Option("repeats", int, 5, "runs with different seeds"),
    Option("turnover_days", int, 90, "days in which as many members leave as there are"),
)

_DAY_S = 86_400
_DEPTHS: tuple[int | None, ...] = (1, 2, 3, None)
_TURNOVERS = 3
_TRIES = 2_000
# A departure is known to everybody within so many further departures.
_UNKNOWN = (5, 20, 100)
_FOREVER_S = 2**31


class World:
    """A collective that grows and changes by the rules of one policy.

    Parameters
    ----------
    policy : TrustPolicy
        Decides attachment and renewal as the module says.
    founders, agents : int
        Founding members, and members after `grow`.
    room : int
        Nodes for everybody who will ever join.
    """

    def __init__(
        self, policy: TrustPolicy, founders: int, room: int, rng: np.random.Generator, lifetime_s: int
    ) -> None:
        self.policy = policy
        self.rng = rng
        self.graph = TrustGraph(room, genesis=founders, policy=policy, now_s=1)
        self.trusted = self.graph.trusted()
        self.live = np.zeros(room, np.bool_)
        self.live[:founders] = True
        self.founders = founders
        self.count = founders
        self.lifetime_s = lifetime_s
        self.renewals = 0
        self._taken = np.zeros(room, np.int64)
        self._ends: dict[tuple[int, int], int] = {}
        self._expiries: list[tuple[int, int, int]] = []
        self._due: list[tuple[int, int, int]] = []
        self._serial = 0

    @property
    def spare(self) -> NDArray[np.int64]:
        """Places left in each member's budget; 0 for whoever is gone."""
        quota = _FOREVER_S if self.policy.quota is None else self.policy.quota
        return np.where(self.live, quota - self._taken, 0)

    def certify(self, issuers: Sequence[int], subjects: Sequence[int]) -> None:
        """Issue certificates now."""
        now, self._serial = self.graph.now_s, self._serial + 1
        end = now + self.lifetime_s
        self.graph.add(issuers, subjects, not_before=now, not_after=end, serial=self._serial)
        for pair in zip(issuers, subjects, strict=True):
            if pair not in self._ends:
                self._taken[pair[0]] += 1
            self._ends[pair] = end
            heapq.heappush(self._expiries, (end, *pair))
            heapq.heappush(self._due, (now + int(self.lifetime_s * self.policy.renew_at), *pair))

    def attach(self, node: int) -> bool:
        """Find t certifiers for a node; False if there are none."""
        t = self.policy.threshold
        if self.policy.rule == "path":
            members = np.flatnonzero(self.live)
            members = members[members != node]
            # The first newcomers find fewer members than certifiers are wanted.
            chosen = members[self._draw(len(members), min(t, len(members)))]
        else:
            spare = self.spare
            spare[node] = 0
            chosen = choose_certifiers(self.trusted.layers(), spare, t, random=self._draw)
        if len(chosen):
            self.certify(chosen.tolist(), [node] * len(chosen))
        return len(chosen) > 0

    def _draw(self, below: int, count: int) -> NDArray[np.int64]:
        return np.asarray(self.rng.choice(below, count, replace=False), np.int64)

    def join(self) -> None:
        """Let the next newcomer in."""
        node = self.count
        self.count += 1
        self.attach(node)
        self.live[node] = True

    def grow(self, agents: int) -> None:
        """Let newcomers in until there are so many members."""
        while self.count < agents:
            self.join()

    def advance(self, seconds: int) -> None:
        """Let time pass: renew what is due between living members, and free what has expired."""
        now = self.graph.now_s + seconds
        self.graph.advance(now)
        issuers, subjects = [], []
        while self._due and self._due[0][0] <= now:
            _, issuer, subject = heapq.heappop(self._due)
            fresh = self._ends.get((issuer, subject), 0) - self.lifetime_s * (1 - self.policy.renew_at)
            if self.live[issuer] and self.live[subject] and fresh <= now:
                issuers.append(issuer)
                subjects.append(subject)
        if issuers:
            self.certify(issuers, subjects)
        while self._expiries and self._expiries[0][0] <= now:
            _, issuer, subject = heapq.heappop(self._expiries)
            if self._ends.get((issuer, subject), _FOREVER_S) <= now:
                del self._ends[issuer, subject]
                self._taken[issuer] -= 1

    def leave(self, *, known: bool, void: bool) -> int:
        """Let a random member go that is no founder; its certificates become void if that is known."""
        node = int(self.rng.choice(np.flatnonzero(self.live[: self.count])[self.founders :]))
        self.live[node] = False
        if known and void:
            self.graph.void([node])
        return node

    def mend(self, most: int) -> None:
        """Let up to so many members that lost their layer ask for new certificates."""
        layers = self.trusted.layers()[: self.count]
        lost = np.flatnonzero(self.live[: self.count] & (layers == np.iinfo(np.uint32).max))
        for node in self.rng.permutation(lost)[:most].tolist():
            self.renewals += self.attach(node)

    def recall(self, policy: TrustPolicy, *, own: bool) -> NDArray[np.float64]:
        """Return the share of live members that is accepted; one figure per anchor."""
        live = self.live[: self.count]
        total = int(live.sum())
        if not own:
            with self.graph.trusted(policy=policy) as trusted:
                return np.array([int(self.live[trusted.nodes()].sum()) / total])
        anchors = np.flatnonzero(live).astype(np.uint32)
        sizes = self.graph.reach_sizes(anchors, policy=policy, among=self.live)
        return np.asarray(sizes / total)


def run(experiment: Experiment) -> None:
    """Measure recall without and with churn, precision, and Sybils."""
    repeats = 1 if experiment.quick else int(str(experiment.options["repeats"]))
    sizes = (200,) if experiment.quick else (1_000, 2_000)
    for agents in sizes:
        for t in (1, 2, 3):
            for founders in (1, 5) if t == 1 else (5,):
                _still(experiment, "panda", agents, t=t, founders=founders, repeats=repeats)
            _still(experiment, "strict", agents, t=t, founders=5 if t < 3 else 6, repeats=repeats)
        _churn(experiment, agents, repeats)
    _sybils(experiment, sizes[0], repeats)


def _policy(name: str, t: int) -> TrustPolicy:
    if name == "panda":
        # Nothing expires in these worlds unless time passes, and what is void is so at once.
        return TrustPolicy.panda(threshold=t, grace_s=0)
    return TrustPolicy.strict(threshold=t)


def _emit(
    experiment: Experiment, metric: str, values: list[NDArray[np.float64]], **conditions: object
) -> None:
    flat = np.concatenate(values)
    low, high = np.quantile(flat, [0.25, 0.75])
    experiment.emit(metric, float(flat.mean()), iqr_low=float(low), iqr_high=float(high), **conditions)


def _attachment(name: str) -> str:
    return "uniform" if name == "panda" else "lowest layer"


def _still(experiment: Experiment, name: str, agents: int, *, t: int, founders: int, repeats: int) -> None:
    """Recall of a collective that only grew."""
    worlds = []
    for repeat in range(repeats):
        policy = _policy(name, t)
        rng = experiment.rng(agents * 100 + t * 10 + repeat)
        world = World(policy, founders, agents, rng, policy.lifetime_s)
        world.grow(agents)
        worlds.append(world)
    readings = ("directed", "mutual") if name == "panda" else ("directed",)
    for reading in readings:
        for anchor in ("genesis", "self"):
            for depth in _DEPTHS:
                own = anchor == "self"
                changes: dict[str, object] = {"max_depth": depth, "reading": reading}
                if name == "strict" and own:
                    changes["anchor_weight"] = t
                policy = TrustPolicy.panda(threshold=t, grace_s=0) if name == "panda" else worlds[0].policy
                asked = _with(policy, changes)
                values = [world.recall(asked, own=own) for world in worlds]
                _emit(
                    experiment,
                    "recall",
                    values,
                    policy=name,
                    agents=agents,
                    t=t,
                    n="inf" if depth is None else depth,
                    anchor=anchor,
                    churn="none",
                    genesis=founders,
                    reading=reading,
                    attachment=_attachment(name),
                )


def _with(policy: TrustPolicy, changes: dict[str, object]) -> TrustPolicy:
    return replace(policy, **changes)  # type: ignore[arg-type]


def _churn(experiment: Experiment, agents: int, repeats: int) -> None:
    """Recall and precision after the population has turned over three times."""
    mending = 5 if agents <= 1_000 else 10
    turnover_s = int(str(experiment.options["turnover_days"])) * _DAY_S
    for name, churn, membership in (
        ("panda", "void", "latched"),
        ("panda", "void", "continuous"),
        ("panda", "kept", "continuous"),
        ("strict", "void", "continuous"),
    ):
        # Mending asks for all layers again and again: strict worlds take minutes each.
        runs = repeats if name == "panda" else min(repeats, 2)
        recalls, lowest, renewals = [], [], 0
        precisions: dict[int, list[NDArray[np.float64]]] = {unknown: [] for unknown in _UNKNOWN}
        for repeat in range(runs):
            policy = _with(_policy(name, 2), {"membership": membership, "reading": "directed"})
            rng = experiment.rng(agents * 100 + 77 + repeat)
            # PANDA has neither expiry nor renewal: its certificates outlive the study.
            lifetime_s = policy.lifetime_s if name == "strict" else _FOREVER_S
            steps = _TURNOVERS * agents
            world = World(policy, 5, agents + steps, rng, lifetime_s)
            world.grow(agents)
            worst = 1.0
            late = max(_UNKNOWN) if agents > max(_UNKNOWN) else agents // 10
            gone: list[int] = []
            for step in range(steps):
                if name == "strict":
                    world.advance(turnover_s // agents)
                # The last departures are not known to anybody yet.
                known = step < steps - late
                node = world.leave(known=known, void=churn == "void")
                if not known:
                    gone.append(node)
                world.join()
                if name == "strict":
                    world.mend(mending)
                if step % 50 == 49:
                    worst = min(worst, float(world.recall(policy, own=False)[0]))
            for unknown in sorted(_UNKNOWN, reverse=True):
                if unknown > late:
                    continue
                # Learning of the older departures leaves the given number unknown.
                learned, gone = gone[: len(gone) - unknown], gone[len(gone) - unknown :]
                if learned and churn == "void":
                    world.graph.void(learned)
                if name == "strict":
                    for _ in learned:
                        world.mend(mending)
                inside = world.trusted.nodes()
                precisions[unknown].append(np.array([world.live[inside].mean()]))
            recalls.append(world.recall(policy, own=False))
            lowest.append(np.array([worst]))
            renewals += world.renewals
        conditions: dict[str, object] = {
            "policy": name,
            "agents": agents,
            "t": 2,
            "n": 3,
            "anchor": "genesis",
            "churn": churn,
            "genesis": 5,
            "reading": "directed",
            "attachment": _attachment(name),
            "membership": membership,
            "renewals_per_leave": renewals / (runs * _TURNOVERS * agents),
        }
        _emit(experiment, "recall", recalls, **conditions)
        _emit(experiment, "recall_lowest", lowest, **conditions)
        if churn == "void":
            for unknown, values in precisions.items():
                if values:
                    _emit(experiment, "precision", values, unknown=unknown, **conditions)


def _sybils(experiment: Experiment, agents: int, repeats: int) -> None:
    """Sybils accepted when c random members collude, with an attacker that spends budgets greedily."""
    tries = 200 if experiment.quick else _TRIES
    for name in ("panda", "panda with quota", "strict"):
        for colluders in (1, 2, 5, 10):
            accepted = []
            recalls = []
            for repeat in range(repeats):
                policy = _policy("strict" if name == "strict" else "panda", 2)
                if name == "panda with quota":
                    policy = _with(policy, {"quota": 20, "reading": "directed"})
                rng = experiment.rng(agents * 100 + 991 + repeat)
                world = World(policy, 5, agents + tries, rng, policy.lifetime_s)
                world.grow(agents)
                recalls.append(world.recall(policy, own=False))
                accepted.append(_attack(world, colluders, tries))
            counts = np.array(accepted, np.float64)
            experiment.emit(
                "sybils",
                float(counts.mean()),
                most=float(counts.max()),
                policy=name,
                agents=agents,
                t=2,
                n=3,
                anchor="genesis",
                churn="none",
                colluders=colluders,
                tries=tries,
                genesis=5,
                reading=policy.reading,
                attachment=_attachment("strict" if name == "strict" else "panda"),
                honest_recall=float(np.concatenate(recalls).mean()),
            )


def _attack(world: World, colluders: int, tries: int) -> int:
    """Mint identities with the budgets of colluders and of what they minted; return how many pass."""
    members = np.flatnonzero(world.live)[world.founders :]
    ring = world.rng.choice(members, colluders, replace=False).tolist()
    first = world.count
    t = world.policy.threshold
    limit = world.policy.max_depth or _FOREVER_S
    for _ in range(tries):
        node = world.count
        layers = world.trusted.layers()
        spare = world.spare
        able = [a for a in ring if spare[a] > 0]
        deep = {a: int(layers[a]) for a in able}
        # Whoever can still make somebody near comes first, then whoever has most places left, so that no
        # budget is stranded for want of a second certifier.
        near = sorted(
            (a for a in able if deep[a] < limit), key=lambda a: (deep[a] + 1 >= limit, -spare[a], a)
        )
        if world.policy.rule == "path":
            # One certifier must be near; the others may be anybody that is a member, the farther the cheaper.
            far = sorted((a for a in able if a not in near[:1]), key=lambda a: -deep[a])
            chosen = near[:1] + far[: t - 1]
        else:
            # All must be near.
            chosen = near[:t]
        if len(chosen) < t:
            break
        world.count += 1
        world.live[node] = True
        world.certify(chosen, [node] * t)
        if world.trusted.contains(node):
            ring.append(node)
    return sum(world.trusted.contains(node) for node in range(first, world.count))


def plot(rows: Sequence[Row], figure: Any) -> None:
    """Draw recall by depth for each policy and threshold, and Sybils by colluders."""
    left, right = figure.subplots(1, 2)
    still = [r for r in rows if r.metric == "recall" and r.conditions["churn"] == "none"]
    largest = max((int(str(r.conditions["agents"])) for r in still), default=0)
    lines: dict[tuple[str, int, int], list[tuple[str, float]]] = {}
    for row in still:
        c = row.conditions
        if c["agents"] == largest and c["anchor"] == "genesis" and c["reading"] == "directed":
            line = (str(c["policy"]), int(str(c["t"])), int(str(c["genesis"])))
            lines.setdefault(line, []).append((str(c["n"]), row.value or 0.0))
    for (policy, t, founders), points in sorted(lines.items()):
        left.plot(
            [p[0] for p in points],
            [p[1] for p in points],
            color=f"C{t - 1}" if founders > 1 else "grey",
            linestyle="solid" if policy == "strict" else "dashed",
            marker="o",
            label=f"{policy}, t = {t}, {founders} founder{'s' if founders > 1 else ''}",
        )
    left.set_xlabel("depth n")
    left.set_ylabel(f"recall, {largest} agents, founders' anchor")
    left.legend(fontsize=7, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    sybils = [r for r in rows if r.metric == "sybils"]
    for name in dict.fromkeys(str(r.conditions["policy"]) for r in sybils):
        mine = [r for r in sybils if r.conditions["policy"] == name]
        right.plot(
            [r.conditions["colluders"] for r in mine],
            [(r.value or 0.0) + 1 for r in mine],
            marker="o",
            label=name,
        )
    right.set_yscale("log")
    right.set_xlabel("colluding members")
    right.set_ylabel("1 + Sybils accepted")
    right.legend(fontsize=7)
