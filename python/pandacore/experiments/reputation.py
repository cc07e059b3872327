"""Six attacks on a reputation system, and what each costs its users.

A population works in steps. In each step every honest agent has one message and three candidates for it,
drawn at random; it routes to the best that its policy admits, its watchdog judges the outcome (and errs at
known rates), and it hears the first-hand reports of a few witnesses. Part of the population attacks.
``contamination`` is the share of messages that went to attackers in the last quarter; a message whose
candidates are all excluded goes to nobody. Were every attacker known, and used only when all three candidates
attack, it would still be the chance of that, .061 by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pandacore.bench.frame import Option
from pandacore.errors import RefusedStatement
from pandacore.reputation import Reputation, ReputationPolicy

if TYPE_CHECKING:
    from pandacore.experiments.frame import Experiment, Row

__all__ = ["ATTACKS", "OPTIONS", "Setting", "plot", "run", "simulate"]

ATTACKS = ("constant liar", "bad-mouthing", "ballot stuffing", "collusion", "on-off", "whitewash")

OPTIONS = (
    Option("agents", int, 40, "size of the population"),
    Option("steps", int, 150, "steps of a run"),
    Option("repeats", int, 20, "runs with different seeds"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One simulated world.

    Parameters
    ----------
    agents, steps : int
    attackers : float
        Share of the population that attacks.
    candidates : int
        Agents that match a message; K of RAPS.
    witnesses : int
        Witnesses whose reports an agent hears in a step.
    false_positive, false_negative : float
        Error rates of the watchdog; known to the robust policy.
    period : int
        On-off attackers behave for so many steps, then misbehave for as many.
    epoch : int
        Steps in an epoch, the unit of idleness and of reporting.
    """

    agents: int = 40
    steps: int = 150
    attackers: float = 0.4
    candidates: int = 3
    witnesses: int = 3
    false_positive: float = 0.05
    false_negative: float = 0.10
    period: int = 8
    epoch: int = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run cost. ``undelivered`` is the share of messages of the last quarter that went to nobody."""

    contamination: float
    false_exclusion: float
    undelivered: float
    first_exclusion: float


def policies(setting: Setting) -> dict[str, ReputationPolicy | None]:
    """Return the compared policies; None routes at random."""
    return {
        "none": None,
        "raps first-hand": ReputationPolicy.raps(second_hand="ignored"),
        "raps": ReputationPolicy.raps(),
        "robust": ReputationPolicy.robust(
            false_positive=setting.false_positive, false_negative=setting.false_negative
        ),
    }


def simulate(
    attack: str, policy: ReputationPolicy | None, setting: Setting, rng: np.random.Generator
) -> Outcome:
    """Run one world once.

    RAPS routes to the most similar of its candidates that its filter leaves, so at random here; the robust
    policy to the best ranked.
    """
    n = setting.agents
    store = Reputation(policy or ReputationPolicy.raps())
    ranks = policy is not None and policy.mean_limit is None
    hears = policy is not None and policy.second_hand != "ignored"
    attackers = np.zeros(n, np.bool_)
    attackers[: round(setting.attackers * n)] = True
    # An attacker that whitewashes comes back under a new number; `number` is the present one of each agent.
    number = np.arange(n)
    fresh = n
    counted = routed = undelivered = bad_routed = 0
    seen = np.zeros((n, n), np.int64)
    excluded_after: list[int] = []
    known: set[tuple[int, int]] = set()
    for step in range(setting.steps):
        epoch = step // setting.epoch
        last_quarter = step >= setting.steps - setting.steps // 4
        lying = attackers & ((attack != "on-off") | (step // setting.period % 2 == 1))
        for sender in rng.permutation(np.flatnonzero(~attackers)).tolist():
            others = np.delete(np.arange(n), sender)
            candidates = rng.choice(others, setting.candidates, replace=False)
            chosen = _route(
                store if policy else None, sender, candidates, number, epoch=epoch, ranks=ranks, rng=rng
            )
            counted += last_quarter
            if chosen is None:
                undelivered += last_quarter
                continue
            routed += last_quarter
            bad_routed += last_quarter and bool(attackers[chosen])
            misbehaved = bool(lying[chosen])
            error = setting.false_negative if misbehaved else setting.false_positive
            bad = misbehaved != (rng.random() < error)
            if policy is None:
                continue
            store.observe(sender, int(number[chosen]), bad=bad, epoch=epoch)
            seen[sender, chosen] += 1
            pair = (sender, int(number[chosen]))
            if attackers[chosen] and pair not in known and store.excluded(*pair, epoch=epoch):
                known.add(pair)
                excluded_after.append(int(seen[sender, chosen]))
        if hears:
            _testimony(store, attack, attackers, number, step=step, setting=setting, rng=rng)
        if attack == "whitewash" and policy is not None and step % 5 == 4:
            honest = np.flatnonzero(~attackers)
            for attacker in np.flatnonzero(attackers).tolist():
                banned = sum(store.excluded(int(o), int(number[attacker]), epoch=epoch) for o in honest)
                if banned * 2 > len(honest):
                    number[attacker] = fresh
                    fresh += 1
                    seen[:, attacker] = 0
    honest = np.flatnonzero(~attackers)
    wrongly = [store.excluded(int(i), int(j), epoch=epoch) for i in honest for j in honest if i != j]
    return Outcome(
        bad_routed / max(counted, 1),
        float(np.mean(wrongly)) if policy else 0.0,
        undelivered / max(counted, 1),
        float(np.mean(excluded_after)) if excluded_after else float("nan"),
    )


def _route(
    store: Reputation | None,
    sender: int,
    candidates: np.ndarray[Any, Any],
    number: np.ndarray[Any, Any],
    *,
    epoch: int,
    ranks: bool,
    rng: np.random.Generator,
) -> int | None:
    if store is None:
        return int(candidates[0])
    admitted = store.rank(sender, number[candidates].astype(np.uint32), epoch=epoch)
    if not len(admitted):
        return None
    pick = admitted[0] if ranks else admitted[int(rng.integers(len(admitted)))]
    return int(candidates[number[candidates] == pick][0])


def _testimony(
    store: Reputation,
    attack: str,
    attackers: np.ndarray[Any, Any],
    number: np.ndarray[Any, Any],
    *,
    step: int,
    setting: Setting,
    rng: np.random.Generator,
) -> None:
    """Let every honest agent hear some witnesses about one subject each."""
    n = setting.agents
    epoch = step // setting.epoch
    praises = attack in ("ballot stuffing", "collusion")
    slanders = attack in ("bad-mouthing", "collusion")
    for receiver in np.flatnonzero(~attackers).tolist():
        for witness in rng.choice(n, setting.witnesses, replace=False).tolist():
            subject = int(rng.integers(n))
            if len({receiver, witness, subject}) < 3:
                continue
            peer, voice = int(number[subject]), int(number[witness])
            if attackers[witness] and (praises if attackers[subject] else slanders):
                # Every other report is near the truth, to be believed in between; the others lie as much as a
                # rating can.
                if rng.random() < 0.5:
                    rating = (7.0, 3.0) if attackers[subject] else (1.0, 8.0)
                else:
                    rating = (0.1, 9.8) if attackers[subject] else (9.8, 0.1)
                counter = step + 1000
            else:
                standing = store.standing(voice, peer, epoch=epoch)
                if attackers[witness] or standing.observations == 0:
                    continue
                x, y = standing.first_hand
                rating, counter = (x, y), standing.observations
            try:
                store.hear_numbers(receiver, voice, peer, rating, counter=counter, written=epoch, epoch=epoch)
            except RefusedStatement:
                # The witness saw nothing new, or spoke in this step already: the rules under test.
                continue


def run(experiment: Experiment) -> None:
    """Measure every attack under every policy."""
    options = experiment.options
    setting = Setting(agents=int(str(options["agents"])), steps=int(str(options["steps"])))
    repeats = 3 if experiment.quick else int(str(options["repeats"]))
    for attack in ATTACKS:
        for name, policy in policies(setting).items():
            outcomes = [
                simulate(attack, policy, setting, experiment.rng(ATTACKS.index(attack) * 1000 + repeat))
                for repeat in range(repeats)
            ]
            conditions = {"attack": attack, "policy": name, "agents": setting.agents, "repeats": repeats}
            for metric in ("contamination", "false_exclusion", "undelivered", "first_exclusion"):
                values = np.array([getattr(outcome, metric) for outcome in outcomes])
                finite = values[np.isfinite(values)]
                if not len(finite):
                    experiment.emit(metric, None, **conditions)
                    continue
                low, high = np.quantile(finite, [0.25, 0.75])
                experiment.emit(
                    metric, float(finite.mean()), iqr_low=float(low), iqr_high=float(high), **conditions
                )


def plot(rows: Sequence[Row], figure: Any) -> None:
    """Draw contamination by attack, one bar per policy."""
    axes = figure.subplots()
    shown = [row for row in rows if row.metric == "contamination"]
    names = list(dict.fromkeys(str(row.conditions["policy"]) for row in shown))
    attacks = list(dict.fromkeys(str(row.conditions["attack"]) for row in shown))
    width = 0.8 / max(len(names), 1)
    for place, name in enumerate(names):
        values = {row.conditions["attack"]: row.value for row in shown if row.conditions["policy"] == name}
        axes.bar(np.arange(len(attacks)) + place * width, [values[a] for a in attacks], width, label=name)
    axes.axhline(0.1, color="black", linestyle="dotted", linewidth=1)
    axes.set_xticks(np.arange(len(attacks)) + 0.4 - width / 2, attacks)
    axes.set_ylabel("share of messages to attackers, last quarter")
    axes.legend(ncols=len(names), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
