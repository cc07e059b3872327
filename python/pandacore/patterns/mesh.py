"""Mesh: members propose plans, vote, and work on what they can; everybody sees every output (PANDA, B.4).

The entrypoint is :class:`MeshRoot`: it keeps the team, commits the first output of each subtask, tells all.
Every member runs a :class:`MeshMember`; a covering subset of them votes, led by a convener per epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pandacore import errors
from pandacore.patterns.base import (
    RUN,
    Answered,
    Asked,
    AskJudgement,
    AskPlan,
    AskRanking,
    AskReplacement,
    CancelRequested,
    ClearTimer,
    Contract,
    Evict,
    Execute,
    Executed,
    ExecutionFailed,
    Judged,
    Limits,
    Machine,
    PeerDown,
    PeerUp,
    Planned,
    PlanningFailed,
    Ranked,
    Reason,
    Received,
    Replacement,
    SetTimer,
    Start,
    StopExecution,
    TimerFired,
    canonical,
    error_from_json,
    error_to_json,
    hop_cap,
    is_wall,
    repetition,
    short_hash,
    subtask_digests,
)
from pandacore.patterns.questions import answered, loop_of, open_questions, paused, resumption, waiting
from pandacore.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pandacore.errors import PandacoreError
    from pandacore.patterns.base import Event

__all__ = ["MeshMember", "MeshRoot", "covering_subset", "instant_runoff"]


def covering_subset(team: Mapping[str, Sequence[str]], *, least: int = 3) -> list[str]:
    """The voters: few members that hold every capability together, and at least ``least`` where there are as
    many. Greedy, ties in the order of the pools, so every node finds the same."""
    holds: dict[str, set[str]] = {}
    for capability, pool in team.items():
        for peer in pool:
            holds.setdefault(peer, set()).add(capability)
    chosen: list[str] = []
    missing = {c for c, pool in team.items() if pool}
    order = list(holds)
    while missing:
        best = max(order, key=lambda p: (len(holds[p] & missing), -order.index(p)))
        chosen.append(best)
        missing -= holds[best]
    chosen += [p for p in order if p not in chosen][: max(least - len(chosen), 0)]
    return chosen


def instant_runoff(ballots: Mapping[str, Sequence[str]], candidates: Iterable[str]) -> tuple[str, int]:
    """The winner by instant-runoff voting, and how many ballots named it first at the start.

    The candidate with the fewest first places among those left goes out; among equals the one with the larger
    sum of ranks, then the larger name. Integers only, so that every node counts the same.
    """
    left = sorted(set(candidates))
    rank_sum = {c: sum(list(b).index(c) if c in b else len(left) for b in ballots.values()) for c in left}
    cleaned = [[c for c in dict.fromkeys(b) if c in rank_sum] for b in ballots.values()]
    first = {c: sum(b[:1] == [c] for b in cleaned) for c in left}
    while len(left) > 1:
        tops = dict.fromkeys(left, 0)
        for ballot in cleaned:
            top = next((c for c in ballot if c in tops), None)
            if top is not None:
                tops[top] += 1
        left.remove(min(left, key=lambda c: (tops[c], -rank_sum[c], [-ord(x) for x in c])))
    return left[0], first[left[0]]


def _quorum(voters: Sequence[str]) -> int:
    return len(voters) // 2 + ("quorum_off_by_one" not in Machine.planted)


def _order(plan: Mapping[str, Any]) -> list[str]:
    return list(Plan.from_dict(plan).order)


class _Work:
    """A plan with its digests, and what of it is ready."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Any], done: Mapping[str, Any]) -> None:
        self.plan = plan
        self.digest = subtask_digests(plan, inputs)
        self.id = {d: i for i, d in self.digest.items()}
        self.place: dict[str, int] = {}
        counts: dict[str, int] = {}
        for subtask_id in plan.order:
            capability = plan[subtask_id].capability
            self.place[self.digest[subtask_id]] = counts.get(capability, 0)
            counts[capability] = counts.get(capability, 0) + 1
        self._missing = {
            d: sum(self.digest[n] not in done for n in plan[i].depends_on) for i, d in self.digest.items()
        }
        self.ready = {self.digest[i]: None for i in plan.order}
        self.ready = {d: None for d in self.ready if not self._missing[d] and d not in done}

    def finish(self, digest: str, done: Mapping[str, Any]) -> None:
        """Take note of an output."""
        self.ready.pop(digest, None)
        if digest not in self.id:
            return
        for dependent in self.plan.dependents(self.id[digest]):
            waiting = self.digest[dependent]
            self._missing[waiting] -= 1
            if self._missing[waiting] == 0 and waiting not in done:
                self.ready[waiting] = None


class _MeshNode(Machine):
    """What root and members share: the team's state, the plan in force, who works on what."""

    takes_questions = True

    def __init__(self, run: str, me: str, *, limits: Limits) -> None:
        super().__init__(run, me)
        self.limits = limits
        self._down: set[str] = set()
        self._work: _Work | None = None

    @property
    def _pause(self) -> float:
        return self.limits.retransmit_s or 1.0

    @property
    def shared(self) -> dict[str, Any]:
        """What the root tells all: view, voters, team, who is blamed for what, the election, the plan."""
        shared: dict[str, Any] = self.state.get("shared", {})
        return shared

    @property
    def adopted(self) -> dict[str, Any] | None:
        """The plan in force here: ``view``, ``version``, ``epoch``, ``plan``."""
        adopted: dict[str, Any] | None = self.state.get("adopted")
        return adopted

    def _pause_of(self, digest: str) -> dict[str, Any] | None:
        pause: dict[str, Any] | None = self.shared["pauses"].get(digest)
        return pause

    def _outputs(self) -> dict[str, Any]:
        done = self.state.get("done", {})
        if self._work is None:
            return {}
        return {i: done[d]["output"] for i, d in self._work.digest.items() if d in done}

    def _index(self) -> None:
        adopted = self.adopted
        if adopted is None:
            self._work = None
        else:
            done = self.state.get("done", {})
            self._work = _Work(Plan.from_dict(adopted["plan"]), self.shared["inputs"], done)

    def _workers(self, digest: str) -> list[str]:
        """Who works on a subtask: holders that did not fail at it, in turns, as many as wanted."""
        assert self._work is not None
        shared = self.shared
        capability = self._work.plan[self._work.id[digest]].capability
        pool = shared["team"].get(capability, [])
        fit = [p for p in pool if p not in shared["blamed"].get(digest, [])]
        if not fit:
            return []
        start = self._work.place[digest] % len(fit)
        wanted = shared["redundancy"].get(capability, 1)
        return [*fit[start:], *fit[:start]][:wanted]

    def _elected(self, m: Mapping[str, Any]) -> bool:
        """Whether the evidence of an ADOPT holds: one ballot each of a quorum of voters, counted again."""
        voters = self.shared["voters"]
        if self.shared["certified"]:
            acks = set(m["acks"])
            return acks <= set(voters) and len(acks) >= _quorum(voters)
        ballots = m["ballots"]
        if not set(ballots) <= set(voters) or len(ballots) < _quorum(voters):
            return False
        return bool(instant_runoff(ballots, m["candidates"])[0] == m["digest"])

    def _rank(self, view: int, version: int, epoch: int) -> tuple[int, int, int]:
        return (view, version, epoch)

    def _adopted_rank(self) -> tuple[int, int, int]:
        adopted = self.adopted
        if adopted is None:
            return (0, 0, -1)
        return (adopted["view"], adopted["version"], adopted["epoch"])


class MeshMember(_MeshNode):
    """A member of a mesh: proposes, votes, convenes when it is its turn, and executes what it holds.

    Invariants: M1 one epoch adopts one plan; M2 (certified) no two members ever adopt different plans for one
    version; M3 only voters vote, one ballot per round; M4 rounds are capped.

    Durable state: ``shared`` (the root's word), ``epoch`` (highest obeyed), ``opened`` (highest convened),
    ``decided`` (per epoch that this node convened), ``accepted`` (certified), ``ballots``, ``adopted``,
    ``done``, ``mine`` (own outputs that the root has not confirmed).

    Parameters
    ----------
    run, me : str
        See :class:`Machine`.
    limits : Limits
        Times until the root's limits are known.
    """

    def __init__(self, run: str, me: str, *, limits: Limits | None = None) -> None:
        super().__init__(run, me, limits=limits or Limits())
        self._running: dict[tuple[str, int], str] = {}
        self._vote: dict[str, Any] | None = None
        self._planning: dict[str, dict[str, Any]] = {}
        self._ranking: dict[str, dict[str, Any]] = {}
        self._giveups: dict[str, dict[str, Any]] = {}
        self._given: dict[str, list[str]] = {}
        self._root = ""

    def resume(self) -> None:
        """Rebuild the index of the plan."""
        self._root = self.state.get("root", "")
        if self.shared:
            self.limits = Limits.from_dict(self.shared["limits"])
            self._index()

    def on(self, event: Event) -> None:
        """See :meth:`Machine.on`."""
        match event:
            case Received(sender, message):
                self._received(sender, message)
            case PeerDown(peer):
                self._down.add(peer)
                if not self.ended and self._electing() and self._convener(self._epoch) == peer:
                    self._next_epoch()
                elif self._vote is not None:
                    self._advance()
            case PeerUp(peer):
                self._down.discard(peer)
            case _ if self.done:
                pass
            case Start():
                self._start()
            case TimerFired(name):
                self._timer(name)
            case Planned(plan, request):
                self._proposed(request, plan.to_dict())
            case PlanningFailed(error, request):
                self._proposed(request, None, error)
            case Ranked(request, ranking):
                if (m := self._ranking.pop(request, None)) is not None:
                    self._cast(m, list(ranking))
            case Executed(subtask_id, attempt, output):
                self._executed((subtask_id, attempt), output)
            case ExecutionFailed(subtask_id, attempt, error, executed):
                self._failed((subtask_id, attempt), error, executed)
            case Asked():
                self._asked(event)
            case _:
                pass

    def _start(self) -> None:
        if self.state.get("ended"):
            self.finish(None)
            return
        self._go_to_work()
        if self._electing():
            self.do(SetTimer("conv", self.limits.patience_s))
        if self.state.get("mine") or self.state.get("asks"):
            self._tell()

    def _received(self, sender: str, m: Mapping[str, Any]) -> None:
        kind = m.get("kind")
        if self.ended:
            if kind == "END":
                self.send(sender, "END_ACK")
            return
        match kind:
            case "STATE":
                self._told(sender, m)
            case "COMMIT":
                self.send(sender, "COMMIT_ACK", digest=m["digest"])
                self._committed(str(m["digest"]), m["output"])
            case "DEBATE" | "REVISE":
                self._again(m)
            case "STUCK":
                agree = m["digest"] not in self.state.get("done", {})
                self.send(sender, "REPLAN", version=m["version"], digest=m["digest"], agree=agree)
            case "END":
                self.send(sender, "END_ACK")
                self._leave()
            case "OPEN" | "BALLOT" | "PROP" | "PROPOSE" | "RANK" | "ACK" | "ADOPT" | "ADOPT_ACK":
                if self.shared and m["view"] == self.shared["view"] and sender in self._peers():
                    self._election(str(kind), sender, m)
            case _:
                self.note("ignored", kind=str(kind), sender=sender)

    def _peers(self) -> list[str]:
        return [*self.shared["voters"], self._root]

    def _timer(self, name: str) -> None:
        match name:
            case "conv" if self._electing():
                self._next_epoch()
            case "round":
                self._tick()
            case "tell":
                self._tell()
            case _:
                pass

    def _told(self, sender: str, m: Mapping[str, Any]) -> None:
        """The root's word; the higher sequence number counts."""
        self.send(sender, "STATE_ACK", seq=m["seq"])
        if m["seq"] <= self.state.get("seq", 0):
            return
        old = self.shared
        self.put("seq", value=m["seq"])
        self.put("root", value=sender)
        self.put("shared", value=m["shared"])
        self._root = sender
        shared = self.shared
        self.limits = Limits.from_dict(shared["limits"])
        for digest in [d for d in self._giveups if self.me in shared["blamed"].get(d, [])]:
            del self._giveups[digest]
        for digest, ask in list(self.state.get("asks", {}).items()):
            if shared["pauses"].get(digest, {}).get("attempts", {}).get(self.me, 0) >= ask["attempt"]:
                self.drop("asks", digest)  # the root has it
        fresh = not old or (old["view"], old["elect"]) != (shared["view"], shared["elect"])
        if not old or old["view"] != shared["view"]:
            self.put("epoch", value=0)
            self.put("opened", value=0)
        if fresh:
            self._vote = None
            self._planning.clear()
            self._ranking.clear()
        adopted = shared["adopted"]
        if adopted is not None:
            self._adopt(adopted)
        else:
            self._index()
        if fresh and self._electing():
            self.do(SetTimer("conv", self.limits.patience_s))
            if self._epoch == 0:
                self._enter(1)
        elif not self._electing():
            self.do(ClearTimer("conv"))
        self._go_to_work()

    # -- elections ---------------------------------------------------------------------------------------

    def _electing(self) -> bool:
        shared = self.shared
        if not shared or shared["elect"] is None or self.me not in shared["voters"]:
            return False
        return self._adopted_rank()[:2] < (shared["view"], shared["elect"])

    @property
    def _epoch(self) -> int:
        return int(self.state.get("epoch", 0))

    def _convener(self, epoch: int) -> str:
        voters = self.shared["voters"]
        return str(voters[(epoch - 1) % len(voters)])

    def _enter(self, epoch: int) -> None:
        """Take part in an epoch; convene it if it is this node's."""
        self.put("epoch", value=epoch)
        self._vote = None
        self.do(SetTimer("conv", self.limits.patience_s))
        if self._convener(epoch) == self.me and self.state.get("opened", 0) < epoch:
            # Once per epoch, also after a restart: two tallies of one epoch could differ.
            self.put("opened", value=epoch)
            self.note("convenes", epoch=epoch, view=self.shared["view"])
            self._open(1, None)

    def _next_epoch(self) -> None:
        """The convener is silent or lost: on to the next one that is not."""
        voters = self.shared["voters"]
        epoch = self._epoch + 1
        for _ in voters:
            if self._convener(epoch) not in self._down:
                break
            epoch += 1
        self._enter(epoch)

    def _open(self, turn: int, lead: Mapping[str, Any] | None) -> None:
        shared = self.shared
        self._vote = {
            "view": shared["view"],
            "e": self._epoch,
            "p": shared["elect"],
            "turn": turn,
            "phase": "open",
            "lead": lead,
            "plans": {},
            "ballots": {},
            "acks": {},
            "ticks": 0,
            "accepted": {},
        }
        self._say_open()

    def _head(self) -> dict[str, Any]:
        assert self._vote is not None
        return {k: self._vote[k] for k in ("view", "e", "p", "turn")}

    def _to_voters(self, kind: str, answered: Iterable[str], **fields: Any) -> None:
        have = set(answered)
        for voter in self.shared["voters"]:
            if voter == self.me and voter not in have:
                self._election(kind, self.me, {**self._head(), **fields})
            elif voter not in have:
                self.send(voter, kind, **self._head(), **fields)

    def _say_open(self) -> None:
        assert self._vote is not None
        self._to_voters("OPEN", self._vote["plans"], lead=self._vote["lead"])
        self.do(SetTimer("round", self._pause))

    def _tick(self) -> None:
        """Ask again who has not answered; after the patience go on with those who have."""
        vote = self._vote
        if vote is None or vote["phase"] == "over":
            return
        vote["ticks"] += 1
        if "no_retransmission" not in self.planted or vote["ticks"] * self._pause >= self.limits.patience_s:
            match vote["phase"]:
                case "open":
                    self._to_voters("OPEN", vote["plans"], lead=vote["lead"])
                case "rank":
                    self._to_voters("BALLOT", vote["ballots"], proposals=vote["proposals"])
                case "prop":
                    self._to_voters("PROP", vote["acks"], digest=vote["digest"], plan=vote["plan"])
                case "adopt":
                    self._send_adopt()
        self._advance()
        if self._vote is not None and self._vote["phase"] != "over":
            self.do(SetTimer("round", self._pause))

    def _election(self, kind: str, sender: str, m: Mapping[str, Any]) -> None:
        shared = self.shared
        if kind == "ADOPT":
            self.send(sender, "ADOPT_ACK", **{k: m[k] for k in ("view", "e", "p", "turn")})
            if self._elected(m):
                self._adopt({"view": m["view"], "version": m["p"], "epoch": m["e"], "plan": m["plan"]})
                self._go_to_work()
            else:
                self.note("no_evidence", sender=sender)
            return
        if kind in {"OPEN", "BALLOT", "PROP"}:
            if m["p"] != shared["elect"] or self.me not in shared["voters"] or m["e"] < self._epoch:
                return
            if sender != self._convener(m["e"]):
                return
            if m["e"] > self._epoch:
                self.put("epoch", value=m["e"])
                self._vote = None
            self.do(SetTimer("conv", self.limits.patience_s))
        match kind:
            case "OPEN":
                self._asked_plan(m)
            case "BALLOT":
                self._asked_ballot(m)
            case "PROP":
                self.put("accepted", str(m["p"]), value=[m["e"], m["digest"], m["plan"]])
                self._reply("ACK", m)
            case _:
                vote = self._vote
                head = ("view", "e", "p", "turn")
                if vote is None or any(vote[k] != m[k] for k in head) or sender not in self._peers():
                    return
                if kind == "PROPOSE":
                    vote["plans"].setdefault(sender, m["plan"])
                    vote["accepted"][sender] = m["accepted"]
                    if m.get("error"):
                        vote["error"] = m["error"]
                elif kind == "RANK" and vote["phase"] == "rank":
                    vote["ballots"].setdefault(sender, list(m["ranking"]))  # M3: the first ballot stands
                elif (kind, vote["phase"]) in {("ACK", "prop"), ("ADOPT_ACK", "adopt")}:
                    vote["acks"][sender] = True
                self._advance()

    def _reply(self, kind: str, m: Mapping[str, Any], **fields: Any) -> None:
        head = {k: m[k] for k in ("view", "e", "p", "turn")}
        convener = self._convener(m["e"])
        if convener == self.me:
            self._election(kind, self.me, {**head, **fields})
        else:
            self.send(convener, kind, **head, **fields)

    def _asked_plan(self, m: Mapping[str, Any]) -> None:
        request = f"{m['view']}:{m['e']}:{m['p']}:{m['turn']}"
        known = self.state.get("proposed", {}).get(request)
        if known is not None:
            self._reply("PROPOSE", m, plan=known["plan"], accepted=self._accepted_for(m["p"]))
        elif request not in self._planning:
            self._planning[request] = dict(m)
            shared = self.shared
            context = {
                "reason": "propose" if m["lead"] is None else "revise",
                "outputs": self._outputs(),
                "plan": None if self.adopted is None else self.adopted["plan"],
                "lead": m["lead"],
                "errors": shared["errors"],
                "team": shared["team"],
            }
            self.do(AskPlan(request, context))

    def _accepted_for(self, version: int) -> Any:
        return self.state.get("accepted", {}).get(str(version))

    def _proposed(
        self, request: str, plan: dict[str, Any] | None, error: PandacoreError | None = None
    ) -> None:
        m = self._planning.pop(request, None)
        if m is None:
            return
        self.put("proposed", request, value={"plan": plan})
        fields: dict[str, Any] = {"plan": plan, "accepted": self._accepted_for(m["p"])}
        if error is not None:
            fields["error"] = error_to_json(error)
        self._reply("PROPOSE", m, **fields)

    def _asked_ballot(self, m: Mapping[str, Any]) -> None:
        request = f"{m['view']}:{m['e']}:{m['p']}:{m['turn']}"
        known = self.state.get("ballots", {}).get(request)
        if known is not None:
            self._reply("RANK", m, ranking=known)
        elif request not in self._ranking:
            if self.shared["ranking"] == "driver":
                self._ranking[request] = dict(m)
                self.do(AskRanking(request, m["proposals"]))
            else:
                self._cast(m, self._by_rule(m["proposals"]))

    def _by_rule(self, proposals: Mapping[str, Any]) -> list[str]:
        """The default ballot: plans that the team can do first, then fewer subtasks, then the digest."""
        team = self.shared["team"]

        def key(digest: str) -> tuple[int, int, str]:
            subtasks = proposals[digest]["subtasks"]
            return (sum(not team.get(s["capability"]) for s in subtasks), len(subtasks), digest)

        return sorted(proposals, key=key)

    def _cast(self, m: Mapping[str, Any], ranking: list[str]) -> None:
        request = f"{m['view']}:{m['e']}:{m['p']}:{m['turn']}"
        ranking = [d for d in dict.fromkeys(ranking) if d in m["proposals"]]
        self.put("ballots", request, value=ranking)
        self._reply("RANK", m, ranking=ranking)

    def _advance(self) -> None:
        """The convener's next move, once all that are alive, or enough of them, have answered."""
        vote = self._vote
        if vote is None:
            return
        voters = self.shared["voters"]
        waited = vote["ticks"] * self._pause >= self.limits.patience_s / 2

        def enough(answered: Mapping[str, Any], least: int) -> bool:
            missing = [v for v in voters if v not in answered and v not in self._down]
            return len(answered) >= least and (not missing or waited)

        match vote["phase"]:
            case "open":
                certified = self.shared["certified"]
                if enough(vote["plans"], _quorum(voters) if certified else 1):
                    self._publish()
            case "rank":
                if enough(vote["ballots"], _quorum(voters)):
                    self._tally()
            case "prop":
                if len(vote["acks"]) >= _quorum(voters):
                    self._decide({"acks": sorted(vote["acks"])})
            case "adopt":
                told = {*voters, self._root}
                if told <= {*vote["acks"], *self._down, self.me}:
                    vote["phase"] = "over"
                    self.do(ClearTimer("round"))
            case _:
                pass

    def _publish(self) -> None:
        vote = self._vote
        assert vote is not None
        accepted = [a for a in vote["accepted"].values() if a is not None]
        if self.shared["certified"] and accepted and "no_promise" not in self.planted:
            # A quorum may have adopted it already: nothing else can be proposed for this version.
            _, digest, plan = max(accepted, key=lambda a: (a[0], a[1]))
            self._prop(digest, plan)
            return
        plans = [p for p in vote["plans"].values() if p is not None]
        if not plans:
            if all(v in vote["plans"] or v in self._down for v in self.shared["voters"]):
                vote["phase"] = "over"
                self.send(self._root, "NO_PLAN", version=vote["p"], error=vote.get("error"))
            return
        vote["proposals"] = {short_hash(p): p for p in plans}
        vote["phase"], vote["ticks"] = "rank", 0
        self._to_voters("BALLOT", (), proposals=vote["proposals"])

    def _tally(self) -> None:
        vote = self._vote
        assert vote is not None
        winner, first = instant_runoff(vote["ballots"], vote["proposals"])
        agreed = first >= _quorum(self.shared["voters"])
        self.note("tally", turn=vote["turn"], winner=winner, first=first, ballots=len(vote["ballots"]))
        if not agreed and vote["turn"] < self.limits.rounds:
            self._open(vote["turn"] + 1, vote["proposals"][winner])
        elif self.shared["certified"]:
            self._prop(winner, vote["proposals"][winner])
        else:
            vote["digest"], vote["plan"] = winner, vote["proposals"][winner]
            self._decide({"ballots": vote["ballots"], "candidates": sorted(vote["proposals"])})

    def _prop(self, digest: str, plan: Mapping[str, Any]) -> None:
        vote = self._vote
        assert vote is not None
        vote["phase"], vote["ticks"], vote["digest"], vote["plan"] = "prop", 0, digest, plan
        self._to_voters("PROP", (), digest=digest, plan=plan)

    def _decide(self, evidence: dict[str, Any]) -> None:
        vote = self._vote
        assert vote is not None
        vote["phase"], vote["ticks"], vote["acks"] = "adopt", 0, {}
        vote["evidence"] = evidence
        self.note("decided", view=vote["view"], epoch=vote["e"], version=vote["p"], digest=vote["digest"])
        self._send_adopt()
        self._adopt({"view": vote["view"], "version": vote["p"], "epoch": vote["e"], "plan": vote["plan"]})
        self._go_to_work()
        self.do(SetTimer("round", self._pause))

    def _send_adopt(self) -> None:
        vote = self._vote
        assert vote is not None
        for peer in dict.fromkeys([*self.shared["voters"], self._root]):
            if peer != self.me and peer not in vote["acks"]:
                fields = {"digest": vote["digest"], "plan": vote["plan"], **vote["evidence"]}
                self.send(peer, "ADOPT", **self._head(), **fields)
        if vote["ticks"] > self.limits.retransmits:
            vote["phase"] = "over"

    def _adopt(self, new: Mapping[str, Any]) -> None:
        """Higher (view, version, epoch) replaces lower; running work that the new plan needs goes on."""
        if self._rank(new["view"], new["version"], new["epoch"]) <= self._adopted_rank():
            if self._work is None:
                self._index()
            return
        self.put("adopted", value=dict(new))
        self.note("adopted", view=new["view"], version=new["version"], epoch=new["epoch"])
        self._index()
        assert self._work is not None
        for key, digest in list(self._running.items()):
            if digest not in self._work.id:
                del self._running[key]
                self.do(StopExecution(*key, self.me))
        if not self._electing():
            self.do(ClearTimer("conv"))

    # -- work --------------------------------------------------------------------------------------------

    def _go_to_work(self) -> None:
        """Start every ready subtask that is this node's."""
        work = self._work
        if work is None or not self.shared:
            return
        busy = set(self._running.values())
        for digest in list(work.ready):
            if digest in busy or digest in self._giveups or digest in self.state.get("mine", {}):
                continue
            if digest in self.state.get("asks", {}) or waiting(self._pause_of(digest)):
                continue
            if self.me in self._workers(digest):
                self._execute(digest, {})

    def _execute(self, digest: str, extra: Mapping[str, Any]) -> None:
        work = self._work
        assert work is not None
        subtask = work.plan[work.id[digest]]
        outputs = self._outputs()
        inputs: dict[str, Any] = (
            {d: outputs[d] for d in subtask.depends_on} if subtask.depends_on else dict(self.shared["inputs"])
        )
        if (pause := self._pause_of(digest)) is not None:
            inputs["_answers"] = resumption(pause)
            self._given[digest] = list(pause["answers"])
        attempt = int(self.state.get("attempts", {}).get(subtask.id, 0)) + 1
        self.put("attempts", subtask.id, value=attempt)
        self._running[(subtask.id, attempt)] = digest
        found = self.shared["contracts"].get(subtask.id)
        contract = None if found is None else Contract.from_dict(found)
        epoch = max(self._adopted_rank()[2], 1)
        told = {"capability": subtask.capability, "instruction": subtask.instruction}
        self.do(Execute(subtask.id, attempt, {**inputs, **extra}, self.me, (), epoch, contract, work=told))

    def _executed(self, key: tuple[str, int], output: Any) -> None:
        digest = self._running.pop(key, None)
        if digest is None or digest in self.state.get("done", {}):
            return
        turn = int(self.state.get("turns", {}).get(digest, 1))
        mine = {"output": output, "id": key[0], "attempt": key[1], "turn": turn}
        self.put("mine", digest, value=mine)
        self.send(self._root, "OUTPUT", digest=digest, **mine)
        self.do(SetTimer("tell", self._pause))

    def _failed(self, key: tuple[str, int], error: PandacoreError, executed: bool) -> None:
        digest = self._running.pop(key, None)
        if digest is None:
            return
        again = not is_wall(error) and (not executed or self.shared["idempotent"])
        giveup = {"id": key[0], "error": error_to_json(error), "again": again}
        self._giveups[digest] = giveup
        self.send(self._root, "GIVEUP", digest=digest, **giveup)
        self.do(SetTimer("tell", self._pause))

    def _asked(self, asked: Asked) -> None:
        """A subtask needs answers first: they come in at the root, which tells all."""
        digest = self._running.pop((asked.subtask_id, asked.attempt), None)
        if digest is None or digest in self.state.get("done", {}):
            return
        given = self._given.get(digest, [])
        ask = {"id": asked.subtask_id, "attempt": asked.attempt, "given": given, **asked.to_dict()}
        self.put("asks", digest, value=ask)
        self.send(self._root, "ASK", digest=digest, **ask)
        self.do(SetTimer("tell", self._pause))

    def _tell(self) -> None:
        """Say again what the root has not confirmed."""
        if "no_retransmission" in self.planted:
            return
        for digest, mine in self.state.get("mine", {}).items():
            self.send(self._root, "OUTPUT", digest=digest, **mine)
        for digest, giveup in self._giveups.items():
            self.send(self._root, "GIVEUP", digest=digest, **giveup)
        for digest, ask in self.state.get("asks", {}).items():
            self.send(self._root, "ASK", digest=digest, **ask)
        if self.state.get("mine") or self.state.get("asks") or self._giveups:
            self.do(SetTimer("tell", self._pause))

    def _again(self, m: Mapping[str, Any]) -> None:
        """Answer once more: knowing the others' answers, or why the last one was sent back."""
        digest, turn = str(m["digest"]), int(m["turn"])
        work = self._work
        if work is None or digest not in work.ready or digest in self._running.values():
            return
        if turn <= int(self.state.get("turns", {}).get(digest, 1)):
            return
        self.put("turns", digest, value=turn)
        self.drop("mine", digest)
        if m["kind"] == "DEBATE":
            self._execute(digest, {"_debate": {"round": turn, "answers": m["answers"]}})
        else:
            self._execute(digest, {"_revise": {"reason": m["reason"], "previous": m["previous"]}})

    def _committed(self, digest: str, output: Any) -> None:
        done = self.state.get("done", {})
        if digest in done:
            return
        self.put("done", digest, value={"output": output})
        self.drop("mine", digest)
        self.drop("asks", digest)
        self._giveups.pop(digest, None)
        for key in [k for k, d in self._running.items() if d == digest]:
            del self._running[key]
            self.do(StopExecution(*key, self.me))
        if self._work is not None:
            self._work.finish(digest, self.state["done"])
            self._go_to_work()

    def _leave(self) -> None:
        for key in list(self._running):
            del self._running[key]
            self.do(StopExecution(*key, self.me))
        self.put("ended", value=True)
        self.do(ClearTimer("conv"), ClearTimer("round"), ClearTimer("tell"))
        self.finish(None)


class MeshRoot(_MeshNode):
    """The entrypoint of a mesh: keeps the team and the voters, commits outputs, ends the run.

    It has no vote. The first output of a subtask is committed and told to all, so a subtask's dependents see
    one and the same output everywhere; an output made under a superseded plan counts if its digest is needed.

    Parameters
    ----------
    run, me : str
        See :class:`Machine`.
    plan : Plan, optional
        A ready plan; None: the members propose and vote.
    team : mapping of str to sequence of str
        Peers per capability, preferred first.
    inputs : mapping
        JSON values that the task brought.
    idempotent : bool
        True: a subtask whose worker was lost may be executed again. False ends the run with
        ``UnknownOutcome``.
    contracts : mapping of str to Contract
        Per subtask id; judged before an output is committed.
    redundancy : mapping of str to int
        Members that work on each subtask of a capability at once.
    debate : bool
        True: where several work on a subtask they see each other's answers, up to ``limits.debates`` rounds,
        and the answer of most counts; False: the first answer counts.
    certified : bool
        True: a plan is adopted only once a quorum has accepted it, at the price of one more round trip.
        False: a higher epoch's plan replaces a lower one's; outputs survive by their digests.
    ranking : str
        ``rule``: ballots by the members' own rule; ``driver``: asked for by ``AskRanking``.
    limits : Limits
        Caps and times.
    """

    votes_on_plans = True

    def __init__(
        self,
        run: str,
        me: str,
        plan: Plan | None = None,
        team: Mapping[str, Sequence[str]] | None = None,
        *,
        inputs: Mapping[str, Any] | None = None,
        idempotent: bool = False,
        contracts: Mapping[str, Contract] | None = None,
        redundancy: Mapping[str, int] | None = None,
        debate: bool = False,
        certified: bool = False,
        ranking: str = "rule",
        limits: Limits | None = None,
    ) -> None:
        super().__init__(run, me, limits=limits or Limits())
        self._acked: dict[str, int] = {}
        self._heard: dict[str, set[str]] = {}
        self._back: set[str] = set()
        self._seeking: dict[str, int] = {}
        self._judging: dict[tuple[str, int], tuple[str, str, Any]] = {}
        self._stuck: dict[str, Any] | None = None
        self._reforming = ""
        self._ticks = 0
        self._end_tries = 0
        pools = {c: list(p) for c, p in (team or {}).items()}
        adopted = None
        if plan is not None:
            adopted = {"view": 1, "version": 1, "epoch": 0, "plan": plan.to_dict()}
        shared = {
            "view": 1,
            "voters": covering_subset(pools),
            "team": pools,
            "blamed": {},
            "elect": 1 if plan is None else None,
            "errors": {},
            "adopted": adopted,
            "inputs": dict(inputs or {}),
            "idempotent": idempotent,
            "contracts": {k: c.to_dict() for k, c in (contracts or {}).items()},
            "pauses": {},
            "redundancy": dict(redundancy or {}),
            "debate": debate,
            "certified": certified,
            "ranking": ranking,
            "limits": self.limits.to_dict(),
        }
        self.put("shared", value=shared)
        self.put("seq", value=1)
        self.put("done", value={})
        self.put("evicted", value={})
        self.put("held", value={})
        self.put("answers", value={})
        self.put("drifted", value={})
        self.put("plans", value=[])
        self.put("replans", value=0)
        self.put("steps", value=0)
        if adopted is not None:
            self.put("adopted", value=adopted)
            self._index()
            self._remember()

    def resume(self) -> None:
        """Rebuild the index of the plan."""
        self.limits = Limits.from_dict(self.shared["limits"])
        self._index()
        self.outputs = self._outputs()

    @property
    def questions(self) -> list[dict[str, Any]]:
        """See :attr:`Machine.questions`."""
        if self.done:
            return []
        return open_questions(p for d, p in self.shared["pauses"].items() if d not in self.state["done"])

    @property
    def waits(self) -> bool:
        """See :attr:`Machine.waits`."""
        work = self._work
        if self.done or work is None or self.shared["elect"] is not None or self._seeking:
            return False
        return bool(work.ready) and all(waiting(self._pause_of(d)) for d in work.ready)

    @property
    def peers(self) -> Sequence[str]:
        """See :attr:`Machine.peers`."""
        return self._everybody()

    # -- events ------------------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """See :meth:`Machine.on`."""
        match event:
            case Received(sender, message):
                self._received(sender, message)
            case PeerDown(peer):
                self._down.add(peer)
                if not self.ended:
                    self._lose(peer)
            case PeerUp(peer):
                self._down.discard(peer)
                if self.state["evicted"].get(peer) == Reason.CRASH:
                    self._back.add(peer)
            case TimerFired(name) if name == "end":
                self._send_end()
            case _ if self.done:
                pass
            case Start():
                self._start()
            case TimerFired(name):
                self._timer(name)
            case Replacement(capability, peer):
                self._replacement(capability, peer)
            case Judged(subtask_id, attempt, ok, reason):
                self._judged((subtask_id, attempt), ok, reason)
            case Answered(question, value):
                self._answered(question, value)
            case CancelRequested():
                self._end(None, {RUN: errors.Cancelled("the run was cancelled")})
            case _:
                pass

    def _start(self) -> None:
        ended = self.state.get("ended")
        if ended is not None:
            self.outputs = dict(ended["outputs"])
            self.finish(ended["value"], {k: error_from_json(e) for k, e in ended["failed"].items()})
            self._send_end()
            return
        if "started" in self.state:
            self.put("seq", value=self.state["seq"] + 1)
        self.put("started", value=True)
        self._say_state()
        self.do(SetTimer("sync", self._pause))
        self._provide()
        self._check_done()

    def _received(self, sender: str, m: Mapping[str, Any]) -> None:
        kind = m.get("kind")
        if self.ended:
            if kind == "END_ACK":
                if sender not in self.state.get("told", []):
                    self.put("told", value=[*self.state.get("told", []), sender])
            elif sender != self.me:
                self.send(sender, "END")
            return
        match kind:
            case "STATE_ACK":
                self._acked[sender] = max(self._acked.get(sender, 0), int(m["seq"]))
            case "COMMIT_ACK":
                self._heard.setdefault(sender, set()).add(str(m["digest"]))
            case "ADOPT":
                self.send(sender, "ADOPT_ACK", **{k: m[k] for k in ("view", "e", "p", "turn")})
                self._adopt_plan(m)
            case "NO_PLAN":
                if self.shared["elect"] == m["version"]:
                    error = errors.InvalidPlan("no member has a valid plan")
                    if m["error"]:
                        error = error_from_json(m["error"])  # type: ignore[assignment]
                    failed = {k: error_from_json(e) for k, e in self.shared["errors"].items()}
                    self._end(None, failed or {RUN: error})
            case "OUTPUT":
                self._output(sender, m)
            case "GIVEUP":
                self._giveup(sender, m)
            case "ASK":
                self._paused(sender, m)
            case "REPLAN":
                self._vote_replan(sender, m)
            case _:
                self.note("ignored", kind=str(kind), sender=sender)

    def _timer(self, name: str) -> None:
        kind, _, rest = name.partition(":")
        match kind:
            case "sync":
                self._sync()
            case "seek":
                self._seek(rest)
            case _:
                pass

    # -- telling all -------------------------------------------------------------------------------------

    def _everybody(self) -> list[str]:
        shared = self.shared
        pools = [p for pool in shared["team"].values() for p in pool]
        return list(dict.fromkeys([*shared["voters"], *pools]))

    def _change(self, **fields: Any) -> None:
        """Change what all share; it goes out with the next sequence number."""
        for name, value in fields.items():
            self.put("shared", name, value=value)
        self.put("seq", value=self.state["seq"] + 1)
        self._say_state()

    def _say_state(self) -> None:
        for peer in self._everybody():
            self.send(peer, "STATE", seq=self.state["seq"], shared=self.shared)

    def _sync(self) -> None:
        """Send again what was not acknowledged; see whether the election gets anywhere."""
        if "no_retransmission" not in self.planted:
            for peer in self._everybody():
                if peer in self._down:
                    continue
                if self._acked.get(peer, 0) < self.state["seq"]:
                    self.send(peer, "STATE", seq=self.state["seq"], shared=self.shared)
                heard = self._heard.get(peer, set())
                for digest, record in self.state["done"].items():
                    if digest not in heard:
                        self.send(peer, "COMMIT", digest=digest, output=record["output"])
            for digest, questions in self.state.get("asked", {}).items():
                for peer, question in questions.items():
                    if peer not in self._down and peer not in self.state["evicted"]:
                        self.send(peer, digest=digest, **question)
            self._ask_again()
        if self.shared["debate"]:
            for digest in list(self.state["answers"]):  # answers may have come before the plan did
                self._debate(digest)
        if self.done:
            return
        self.do(SetTimer("sync", self._pause))
        self._ticks += 1
        period = max(1, round(self.limits.patience_s / self._pause))
        if self._ticks % period:
            return
        if self._stuck is not None:
            self._stuck["periods"] = self._stuck.get("periods", 0) + 1
            if self._stuck["periods"] > 2:
                self._no_majority()
        elif self.shared["elect"] is not None:
            self.put("waited", value=int(self.state.get("waited", 0)) + 1)
            if self.state["waited"] >= 4 * len(self.shared["voters"]):
                self._reform("the election takes too long")

    # -- plans -------------------------------------------------------------------------------------------

    def _remember(self) -> None:
        assert self._work is not None
        name = short_hash(sorted(self._work.id))
        self.put("plans", value=[*self.state["plans"], [name, len(self.state["done"])]])

    def _adopt_plan(self, m: Mapping[str, Any]) -> None:
        shared = self.shared
        version = int(m["p"])
        current = self._adopted_rank()
        expected = shared["elect"] if shared["elect"] is not None else current[1]
        if m["view"] != shared["view"] or version != expected or not self._elected(m):
            return
        if self._rank(m["view"], version, m["e"]) <= current:
            return
        adopted = {"view": m["view"], "version": version, "epoch": m["e"], "plan": m["plan"]}
        try:
            plan = Plan.from_dict(m["plan"])
        except errors.InvalidPlan:
            return
        digests = subtask_digests(plan, shared["inputs"])
        name, finished = short_hash(sorted(digests.values())), len(self.state["done"])
        stale = [n for n, (d, c) in enumerate(self.state["plans"]) if d == name and c == finished]
        if stale and version > current[1]:
            cycle = [d for d, _ in self.state["plans"][stale[-1] :]] + [name]
            loop = errors.LoopDetected(
                f"plan {name} was voted for again with no subtask finished since: {' -> '.join(cycle)}",
                cycle=cycle,
                where="replan",
                hint="give the planner the error of the stuck subtask, or add an agent that can do it",
            )
            failed = {k: error_from_json(e) for k, e in shared["errors"].items()}
            self._end(None, {**failed, RUN: loop})
            return
        self.put("adopted", value=adopted)
        self.put("waited", value=0)
        self._index()
        self._remember()
        self.outputs = self._outputs()
        self.note("plan", version=version, epoch=m["e"], plan=m["plan"])
        self._change(adopted=adopted, elect=None, errors={})
        self._provide()
        self._check_done()

    def _hop(self, subtask_id: str) -> bool:
        """Work passes to another member: False, and the end of the run, if it may not."""
        hops = int(self.state.get("hops", 0))
        if (cap := hop_cap(self.limits, hops, subtask_id)) is not None:
            self._end(None, {subtask_id: cap})
            return False
        self.put("hops", value=hops + 1)
        return True

    def _provide(self) -> None:
        """Look for members where a capability that is needed has none."""
        if self._work is None or self._reforming:
            for capability, pool in self.shared["team"].items():
                if all(p in self._down for p in pool):
                    self._seek_for(capability)
        if self._work is None:
            return
        for digest in self._work.id:
            if digest not in self.state["done"] and not self._workers(digest):
                self._seek_for(self._work.plan[self._work.id[digest]].capability)

    def _stuck_at(self, digest: str | None, error: PandacoreError) -> None:
        """No way on: the voters decide whether the plan is changed."""
        work = self._work
        if self.done or self._stuck is not None:
            return
        where = RUN if work is None or digest is None else work.id[digest]
        final = errors.UnknownOutcome | errors.BudgetExceeded | errors.Cancelled | errors.LoopDetected
        if work is None or isinstance(error, final) or not self.limits.replans:
            self._end(None, {where: error})
            return
        if self.state["replans"] >= self.limits.replans and "forget_cap" not in self.planted:
            cap = errors.BudgetExceeded(
                f"the plan was changed {self.state['replans']} times and is stuck again",
                kind="replans",
                limit=self.limits.replans,
                used=self.state["replans"],
                asked=1,
                where="Limits.replans",
                hint="raise Limits(replans=…); the finished outputs are kept",
            )
            self._end(None, {where: error, RUN: cap})
            return
        self._stuck = {"digest": digest or "", "where": where, "error": error, "votes": {}}
        if any(v in self._down for v in self.shared["voters"]):
            self._reform("a voter is lost")
        self._ask_again()

    def _ask_again(self) -> None:
        if self._stuck is None:
            return
        for voter in self.shared["voters"]:
            if voter not in self._stuck["votes"]:
                digest = self._stuck["digest"]
                self.send(voter, "STUCK", version=self._adopted_rank()[1], digest=digest)

    def _vote_replan(self, sender: str, m: Mapping[str, Any]) -> None:
        stuck, voters = self._stuck, self.shared["voters"]
        if stuck is None or sender not in voters or m["version"] != self._adopted_rank()[1]:
            return
        if m["digest"] != stuck["digest"]:
            return
        stuck["votes"][sender] = bool(m["agree"])
        agreed = sum(stuck["votes"].values())
        if agreed >= -(-2 * len(voters) // 3):
            self._stuck = None
            self.put("replans", value=self.state["replans"] + 1)
            self.put("waited", value=0)
            self.note("replan", error=str(stuck["error"]), votes=agreed)
            errors_json = {stuck["where"]: error_to_json(stuck["error"])}
            self._change(elect=self._adopted_rank()[1] + 1, errors=errors_json, blamed={})

    def _no_majority(self) -> None:
        assert self._stuck is not None
        lost = errors.NoQuorum(
            f"{sum(self._stuck['votes'].values())} of {len(self.shared['voters'])} voters want another plan; "
            "two thirds are needed",
            where="replan",
        )
        self._end(None, {self._stuck["where"]: self._stuck["error"], RUN: lost})

    def _reform(self, why: str) -> None:
        """Choose the voters anew among those alive; the next view."""
        shared = self.shared
        pools = {c: [p for p in pool if p not in self._down] for c, pool in shared["team"].items()}
        voters = covering_subset(pools)
        if not all(pools.values()):
            # Nobody alive holds some capability: first find somebody, then vote.
            self._reforming = why
            self._provide()
            return
        self._reforming = ""
        if shared["view"] > self.limits.views and "forget_cap" not in self.planted:
            lost = errors.NoQuorum(
                f"no voters are left after {shared['view']} views: {why}",
                where="Limits.views",
                hint="add members, or raise Limits(views=…)",
            )
            self._end(None, {RUN: lost})
            return
        self.note("reform", view=shared["view"] + 1, voters=voters, why=why)
        self.put("waited", value=0)
        if self._stuck is not None:
            self._stuck["votes"] = {}
        adopted = self.adopted
        if adopted is not None:
            adopted = {**adopted, "view": shared["view"] + 1}
            self.put("adopted", value=adopted)
        elect = shared["elect"]
        if elect is not None and shared["certified"]:
            elect += 1  # M2: what the old voters may have accepted keeps its version
        self._change(view=shared["view"] + 1, voters=voters, adopted=adopted, elect=elect)

    # -- outputs -----------------------------------------------------------------------------------------

    def _output(self, sender: str, m: Mapping[str, Any]) -> None:
        digest = str(m["digest"])
        if digest in self.state["done"]:
            self.send(sender, "COMMIT", digest=digest, output=self.state["done"][digest]["output"])
            return
        if self.state["evicted"].get(sender) == Reason.FAULTY and "accept_faulty" not in self.planted:
            return
        answers = self.state["answers"].get(digest, {})
        key = f"{m['turn']}:{sender}"
        if key in answers:
            return
        self.put("answers", digest, key, value={"output": m["output"], "attempt": m["attempt"]})
        question = self.state.get("asked", {}).get(digest, {}).get(sender)
        if question is not None and m["turn"] >= question["turn"] and question["kind"] == "REVISE":
            self.drop("asked", digest, sender)
        if not self._count_step(str(m["id"])):
            return
        found = self.shared["contracts"].get(str(m["id"]))
        if found is not None:
            contract = Contract.from_dict(found)
            self._judging[(str(m["id"]), int(m["attempt"]))] = (digest, sender, m["output"])
            size = len(canonical(m["output"]).encode())
            if size > contract.max_bytes:
                reason = f"the output has {size} bytes, the contract allows {contract.max_bytes}"
                self._judged((str(m["id"]), int(m["attempt"])), False, reason)
            else:
                self.do(AskJudgement(str(m["id"]), int(m["attempt"]), m["output"], contract))
        elif self.shared["debate"]:
            self._debate(digest)
        else:
            self._commit(digest, m["output"], sender)

    def _count_step(self, subtask_id: str) -> bool:
        steps = self.state["steps"] + 1
        self.put("steps", value=steps)
        if steps <= self.limits.steps or "forget_cap" in self.planted:
            return True
        cap = errors.BudgetExceeded(
            f"{steps} executions were reported, the last of {subtask_id!r}",
            kind="steps",
            limit=self.limits.steps,
            used=steps - 1,
            asked=1,
            where="Limits.steps",
            hint="raise Limits(steps=…); the finished outputs are kept",
        )
        self._end(None, {subtask_id: cap})
        return False

    def _debate(self, digest: str) -> None:
        """Collect one round's answers; unanimous or the last round: the answer of most counts."""
        if self._work is None or digest not in self._work.id or digest in self.state["done"]:
            return
        answers = self.state["answers"].get(digest, {})
        workers = self._workers(digest)
        asked = self.state.get("asked", {}).get(digest, {})
        turn = max([1, *(int(k.partition(":")[0]) for k in answers), *(a["turn"] for a in asked.values())])
        heard = {p: answers[f"{turn}:{p}"]["output"] for p in workers if f"{turn}:{p}" in answers}
        if not workers or len(heard) < len(workers):
            for peer in workers:  # one that joined in a later round still has to see the others' answers
                joined = turn > 1 and peer not in heard and f"1:{peer}" in answers
                if joined and asked.get(peer, {}).get("turn") != turn:
                    last = {p: answers[k]["output"] for k in answers if (p := k.partition(":")[2]) != peer}
                    self._ask(digest, peer, {"kind": "DEBATE", "turn": turn, "answers": last})
            return
        groups: dict[str, list[str]] = {}
        for peer in workers:
            groups.setdefault(canonical(heard[peer]), []).append(peer)
        best = max(groups.values(), key=lambda peers: (len(peers), -workers.index(peers[0])))
        if len(groups) == 1 or turn >= self.limits.debates:
            self.note("debated", digest=digest, rounds=turn, votes=len(best), of=len(workers))
            self._commit(digest, heard[best[0]], best[0])
            return
        for peer in workers:
            others = {p: o for p, o in heard.items() if p != peer}
            self._ask(digest, peer, {"kind": "DEBATE", "turn": turn + 1, "answers": others})

    def _ask(self, digest: str, peer: str, question: dict[str, Any]) -> None:
        """Have a member answer again; asked until it does."""
        self.put("asked", digest, peer, value=question)
        self.send(peer, digest=digest, **question)

    def _commit(self, digest: str, output: Any, agent: str) -> None:
        work = self._work
        subtask_id = work.id.get(digest, "") if work is not None else ""
        self.put("done", digest, value={"output": output, "id": subtask_id, "agent": agent})
        self.drop("answers", digest)
        self.drop("asked", digest)
        self.note("commit", digest=digest, subtask=subtask_id, agent=agent)
        for peer in self._everybody():
            self.send(peer, "COMMIT", digest=digest, output=output)
        if self._stuck is not None and self._stuck["digest"] == digest:
            self._stuck = None
        if work is not None:
            work.finish(digest, self.state["done"])
            if subtask_id:
                self.outputs[subtask_id] = output
        self._check_done()

    def _check_done(self) -> None:
        work = self._work
        if work is None or self.done or self.shared["elect"] is not None:
            return
        if all(d in self.state["done"] for d in work.id):
            self.outputs = self._outputs()
            sinks = work.plan.sinks
            value = self.outputs[sinks[0]] if len(sinks) == 1 else {s: self.outputs[s] for s in sinks}
            self._end(value, {})

    def _judged(self, key: tuple[str, int], ok: bool, reason: str) -> None:
        digest, sender, output = self._judging.pop(key, ("", "", None))
        if not digest or digest in self.state["done"]:
            return
        if ok:
            if self.shared["debate"]:
                self._debate(digest)
            else:
                self._commit(digest, output, sender)
            return
        drifts = self.state["drifted"].get(digest, {})
        self.note("drift", subtask=key[0], agent=sender, reason=reason)
        rejected = [*self.state.get("rejected", {}).get(digest, []), [short_hash(output), sender]]
        self.put("rejected", digest, value=rejected)
        if (loop := repetition(key[0], rejected, reason)) is not None:
            self._stuck_at(digest, loop)
            return
        if sender in drifts:
            self._evict(sender, Reason.FAULTY, reason)
            return
        self.put("drifted", digest, sender, value=True)
        previous = output if len(canonical(output)) <= 4_096 else None
        turn = max(int(k.partition(":")[0]) for k in self.state["answers"][digest]) + 1
        self._ask(digest, sender, {"kind": "REVISE", "turn": turn, "reason": reason, "previous": previous})

    def _giveup(self, sender: str, m: Mapping[str, Any]) -> None:
        digest = str(m["digest"])
        blamed = self.shared["blamed"].get(digest, [])
        work = self._work
        if digest in self.state["done"] or sender in blamed or work is None or digest not in work.id:
            return
        error = error_from_json(m["error"])
        self.note("attempt_failed", subtask=work.id[digest], agent=sender, error=str(error))
        if not self._count_step(work.id[digest]):
            return
        fails = int(self.state.get("fails", {}).get(digest, 0)) + 1
        self.put("fails", digest, value=fails)
        self._change(blamed={**self.shared["blamed"], digest: [*blamed, sender]})
        if not m["again"] or (fails >= self.limits.attempts and "forget_cap" not in self.planted):
            self._stuck_at(digest, error)
        elif not self._hop(work.id[digest]):
            pass
        elif not self._workers(digest):
            self._seek_for(work.plan[work.id[digest]].capability)
        elif self.shared["debate"]:
            self._debate(digest)

    # -- questions ---------------------------------------------------------------------------------------

    def _paused(self, sender: str, m: Mapping[str, Any]) -> None:
        """A subtask needs answers: nobody works on it until they are there, in whoever's hands it is then."""
        digest, attempt, work = str(m["digest"]), int(m["attempt"]), self._work
        if digest in self.state["done"]:
            self.send(sender, "COMMIT", digest=digest, output=self.state["done"][digest]["output"])
            return
        if work is None or digest not in work.id or self.state["evicted"].get(sender) == Reason.FAULTY:
            return
        old = self._pause_of(digest)
        attempts = {} if old is None else old["attempts"]
        if attempts.get(sender, 0) >= attempt:
            self.send(sender, "STATE", seq=self.state["seq"], shared=self.shared)
            return
        if not self._count_step(work.id[digest]):
            return
        asked = Asked(work.id[digest], attempt, m["questions"], m["state"])
        loop = loop_of(m["given"], asked)
        if loop is not None:
            self._stuck_at(digest, loop)
            return
        pause = {**paused(old, asked, sender), "attempts": {**attempts, sender: attempt}}
        self.note("asked", subtask=asked.subtask_id, agent=sender, questions=[*asked.questions])
        self._change(pauses={**self.shared["pauses"], digest: pause})

    def _answered(self, question: str, value: Any) -> None:
        pauses = self.shared["pauses"]
        found = answered(pauses, question)
        if found is None:
            return
        digest, own = found
        pause = pauses[digest]
        self.note("answered", subtask=pause["id"], question=question)
        answers = {**pause["answers"], own: value}
        self._change(pauses={**pauses, digest: {**pause, "answers": answers}})

    # -- swap --------------------------------------------------------------------------------------------

    def _lose(self, peer: str) -> None:
        shared, work = self.shared, self._work
        if peer in self.state["evicted"] or peer not in self._everybody():
            return
        if work is not None and not shared["idempotent"]:
            ready = (d for d in work.ready if not waiting(self._pause_of(d)))
            busy = next((d for d in ready if peer in self._workers(d)), None)
            if busy is not None:
                lost = errors.UnknownOutcome(
                    f"{peer} was lost while it may have been at work",
                    where=f"subtask {work.id[busy]!r}",
                    hint="set idempotent=True if it is safe to do it twice",
                )
                self._end(None, {work.id[busy]: lost})
                return
        held = [] if work is None else [d for d in work.ready if peer in self._workers(d)]
        if work is not None and held and not self._hop(work.id[held[0]]):
            return
        self._evict(peer, Reason.CRASH, "lost")
        if self.done or shared["elect"] is None:
            return
        alive = [v for v in self.shared["voters"] if v not in self._down]
        if len(alive) < _quorum(self.shared["voters"]):
            self._reform("too few voters are alive")

    def _evict(self, peer: str, reason: Reason, why: str) -> None:
        if self.state["evicted"].get(peer) == Reason.FAULTY:
            return
        self._back.discard(peer)
        shared = self.shared
        held = [c for c, pool in shared["team"].items() if peer in pool]
        self.put("held", peer, value=held or self.state["held"].get(peer, []))
        self.put("evicted", peer, value=str(reason))
        self.do(Evict(peer, reason))
        self.note("evict", peer=peer, reason=str(reason), why=why)
        self._change(team={c: [p for p in pool if p != peer] for c, pool in shared["team"].items()})
        self._provide()
        if shared["debate"] and self._work is not None:
            for digest in list(self._work.ready):
                self._debate(digest)

    def _seek_for(self, capability: str) -> None:
        if capability not in self._seeking:
            self._seeking[capability] = 0
            self._seek(capability)

    def _seek(self, capability: str) -> None:
        if capability in self._seeking:
            pool = self.shared["team"].get(capability, [])
            exclude = dict.fromkeys([*pool, *self.state["evicted"], *sorted(self._down)])
            self.do(AskReplacement(capability, tuple(exclude)))

    def _replacement(self, capability: str, peer: str | None) -> None:
        if capability not in self._seeking:
            return
        shared = self.shared
        pool = shared["team"].get(capability, [])
        if peer is not None and (peer in self.state["evicted"] or peer in pool):
            peer = None
        if peer is None:
            peer = next((p for p in sorted(self._back) if capability in self.state["held"].get(p, [])), None)
            if peer is not None:
                self._back.discard(peer)
                self.drop("evicted", peer)
                self.note("readmitted", peer=peer, capability=capability)
        if peer is not None:
            del self._seeking[capability]
            self.note("joined", peer=peer, capability=capability)
            self._change(team={**shared["team"], capability: [*pool, peer]})
            # What it builds on; without it the newcomer would wait for the next retransmission.
            for digest, record in self.state["done"].items():
                self.send(peer, "COMMIT", digest=digest, output=record["output"])
            if self._reforming:
                self._reform(self._reforming)
            return
        work = self._work
        waiting: list[str] = []
        if work is not None:
            waiting = [
                d
                for d, i in work.id.items()
                if d not in self.state["done"]
                and work.plan[i].capability == capability
                and not self._workers(d)
            ]
        if work is not None and not waiting and not self._reforming:
            del self._seeking[capability]
            return
        if pool and waiting:
            # Nobody new: those that failed at it once may try again, up to the cap.
            del self._seeking[capability]
            self._change(blamed={d: p for d, p in shared["blamed"].items() if d not in waiting})
            return
        self._seeking[capability] += 1
        if self._seeking[capability] < self.limits.rounds:
            self.do(SetTimer(f"seek:{capability}", self._pause))
            return
        del self._seeking[capability]
        missing = errors.NoReplacement(
            f"no agent is left for {capability!r}; lost: {', '.join(self.state['evicted']) or 'none'}",
            missing={capability: 1},
            where=None if not waiting or work is None else f"subtask {work.id[waiting[0]]!r}",
            hint="add a second agent with this capability",
        )
        self._stuck_at(waiting[0] if waiting else None, missing)

    # -- the end -----------------------------------------------------------------------------------------

    def _end(self, value: Any, failed: Mapping[str, PandacoreError]) -> None:
        if self.done:
            return
        self.outputs = self._outputs()
        record = {"value": value, "failed": {k: error_to_json(e) for k, e in failed.items()}}
        self.put("ended", value={**record, "outputs": dict(self.outputs)})
        self.do(ClearTimer("sync"))
        self.finish(value, failed)
        self._send_end()

    def _send_end(self) -> None:
        told = dict.fromkeys([*self._everybody(), *self.state["evicted"]])
        left = [p for p in told if p not in self.state.get("told", [])]
        if not left or self._end_tries > self.limits.retransmits:
            return
        self._end_tries += 1
        for peer in left:
            self.send(peer, "END")
        self.do(SetTimer("end", self._pause))
