"""Chain: a linear plan is handed down; every holder keeps its payload until the end is known (PANDA, B.3).

The entrypoint is :class:`ChainRoot`, position -1; every member runs a :class:`ChainMember`. Each hand-off has
a generation (counter, rank, issuer), larger for newer ones and, among equals, for issuers nearer the root.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pandacore import errors
from pandacore.patterns.base import (
    RUN,
    Answered,
    Asked,
    AskJudgement,
    AskPlan,
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
    from collections.abc import Mapping, Sequence

    from pandacore.errors import PandacoreError
    from pandacore.patterns.base import Event

__all__ = ["ChainMember", "ChainRoot"]

ROOT = -1
"""The position of the entrypoint."""


def _newer(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return tuple(a) > tuple(b)


class _ChainNode(Machine):
    """What the root and the members share: custody of payloads, hand-off, suspicion, splice.

    Durable state: ``seen`` (highest generation), ``holds`` (per position: generation, payload, phase, its
    predecessor and successor), ``made`` (outputs by work and inputs), ``attempts``.

    A hold's phase is ``run`` (the step is executed), ``fin`` (handed on, or about to be; its successor is
    watched), ``refused`` (given back to the predecessor), ``asking`` (given back to the root with questions)
    or ``passive`` (a newer generation exists: kept, but nothing is started from it).
    """

    takes_questions = True

    def __init__(self, run: str, me: str, *, limits: Limits) -> None:
        super().__init__(run, me)
        self.limits = limits
        self._down: set[str] = set()
        self._running: dict[tuple[str, int], int] = {}
        self._judging: dict[int, Any] = {}
        self._resends: dict[int, int] = {}
        self._asking: dict[str, int] = {}
        self._rounds: dict[int, int] = {}
        self._plans: dict[str, tuple[int, PandacoreError]] = {}

    # -- state -------------------------------------------------------------------------------------------

    @property
    def seen(self) -> tuple[Any, ...]:
        """The highest generation this node knows (C2: it never goes back)."""
        return tuple(self.state.get("seen", (0, 0, "")))

    def _see(self, generation: Sequence[Any]) -> None:
        if _newer(generation, self.seen):
            self.put("seen", value=list(generation))

    def _pause(self, payload: Mapping[str, Any], k: int) -> dict[str, Any] | None:
        pause: dict[str, Any] | None = payload.get("pauses", {}).get(self._steps(payload)[k]["id"])
        return pause

    def _hold(self, k: int) -> dict[str, Any] | None:
        hold: dict[str, Any] | None = self.state.get("holds", {}).get(str(k))
        return hold

    def _keep(self, k: int, **fields: Any) -> None:
        for name, value in fields.items():
            self.put("holds", str(k), name, value=value)

    def _active(self) -> list[int]:
        holds = self.state.get("holds", {})
        return sorted(int(k) for k, h in holds.items() if h["phase"] == "fin")

    def _steps(self, payload: Mapping[str, Any]) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = payload["plan"]["subtasks"]
        return steps

    def _next(self, k: int, payload: Mapping[str, Any]) -> int | None:
        """The first step after ``k`` that has no output yet."""
        steps, outputs = self._steps(payload), payload["outputs"]
        return next((n for n in range(k + 1, len(steps)) if steps[n]["id"] not in outputs), None)

    @property
    def _root(self) -> str:
        return str(self.state.get("root", self.me))

    # -- events ------------------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """See :meth:`Machine.on`."""
        match event:
            case Start():
                self._start()
            case Received(sender, message):
                self._received(sender, message)
            case PeerDown(peer):
                self._down.add(peer)
                if not self.ended:
                    for k in self._active():
                        hold = self._hold(k)
                        if hold is not None and hold["phase"] == "fin" and hold["succ"] == peer:
                            self._suspect(k, Reason.CRASH)
            case PeerUp(peer):
                self._down.discard(peer)
            case TimerFired(name):
                self._timer(name)
            case _ if self.ended:
                pass
            case Executed(subtask_id, attempt, output):
                self._executed((subtask_id, attempt), output)
            case ExecutionFailed(subtask_id, attempt, error, executed):
                self._failed((subtask_id, attempt), error, executed)
            case Asked():
                self._asked(event)
            case Answered(question, value):
                self._answered(question, value)
            case Judged(subtask_id, attempt, ok, reason):
                self._judged((subtask_id, attempt), ok, reason)
            case Replacement(capability, peer):
                self._replacement(capability, peer)
            case Planned(plan, request):
                if request in self._plans:
                    self._planned(*self._plans.pop(request), plan)
            case PlanningFailed(_, request):
                if request in self._plans:
                    k, cause = self._plans.pop(request)
                    self._fail(k, cause)
            case CancelRequested():
                self._cancel()
            case _:
                pass

    def _start(self) -> None:
        """After a restart: run again what ran, and watch again what was handed on."""
        for k in sorted(int(k) for k in self.state.get("holds", {})):
            hold = self._hold(k)
            assert hold is not None
            if hold["phase"] == "run":
                # Somebody else may have it by now: ask before the work is done twice.
                self._resends[k] = 0
                self._ask_on(k)
            elif hold["phase"] == "fin":
                self._watch(k)
        if self.state.get("holds") and self._root != self.me:
            self.do(SetTimer("custody", self.limits.patience_s))

    def _ask_on(self, k: int) -> None:
        hold = self._hold(k)
        if hold is None or hold["phase"] != "run" or k in self._running.values():
            return
        self._resends[k] = tries = self._resends.get(k, 0) + 1
        if hold["pred"] == self.me or tries > self.limits.retransmits:
            self._run_step(k)
            return
        self.send(hold["pred"], "MINE", g=hold["g"], k=k)
        self.do(SetTimer(f"mine:{k}", self.limits.retransmit_s or 1.0))

    def _mine(self, sender: str, g: Sequence[Any], step: int) -> None:
        """A restarted successor asks whether the step is still its own."""
        for k in self._active():
            hold = self._hold(k)
            if hold is not None and hold["succ"] == sender and list(hold["g"]) == list(g):
                self.send(sender, "GO", g=list(g), k=step)
                return
        if _newer(self.seen, g):
            self.send(sender, "STALE", g=list(self.seen), k=step)

    def _watch(self, k: int) -> None:
        hold = self._hold(k)
        assert hold is not None
        if hold.get("failing"):
            self._send_fail(k)
        elif self._next(k, hold["payload"]) is None:
            self._finale(k)
        elif hold["succ"] is None:
            self._forward(k)
        elif not hold["accepted"]:
            self._send_hand(k)

    def _received(self, sender: str, m: Mapping[str, Any]) -> None:
        kind = m.get("kind")
        if self.ended:
            if kind in {"HANDOFF", "FINAL", "FAIL", "ASK", "QUERY", "PROGRESS", "MINE"}:
                self._over(sender, m)
            elif kind == "DONE_ACK":
                self._done_acked(sender)
            return
        match kind:
            case "ACCEPT":
                self._accepted(sender, tuple(m["g"]), int(m["k"]))
            case "HOLDS":
                for k in self._active():
                    hold = self._hold(k)
                    if hold is not None and hold["succ"] == m["pred"] and not _newer(hold["g"], m["g"]):
                        self._keep(k, beyond=[sender, list(m["g"]), m["k"]])
            case "STALE":
                self._stale(sender, tuple(m["g"]), int(m["k"]))
            case "REFUSE":
                self._refused(sender, m)
            case "MINE":
                self._mine(sender, m["g"], int(m["k"]))
            case "GO":
                k = int(m["k"])
                hold = self._hold(k)
                if hold is not None and hold["phase"] == "run" and list(hold["g"]) == list(m["g"]):
                    self.do(ClearTimer(f"mine:{k}"))
                    if k not in self._running.values():
                        self._run_step(k)
            case _:
                self._more(sender, m)

    def _more(self, sender: str, m: Mapping[str, Any]) -> None:
        self.note("ignored", kind=str(m.get("kind")), sender=sender)

    def _over(self, sender: str, m: Mapping[str, Any]) -> None:
        """This node's part is over; what a late message of the run is told."""

    def _done_acked(self, sender: str) -> None:
        pass

    def _cancel(self) -> None:
        pass

    def _timer(self, name: str) -> None:
        kind, _, rest = name.partition(":")
        if self.done and kind != "done":
            return
        match kind:
            case "hand":
                self._hand_again(int(rest))
            case "final":
                hold = self._hold(int(rest))
                if hold is not None and hold["phase"] == "fin":
                    self._finale(int(rest))
            case "fail":
                self._send_fail(int(rest))
            case "ask":
                self._send_ask(int(rest))
            case "mine":
                self._ask_on(int(rest))
            case "seek":
                for k in self._active():
                    hold = self._hold(k)
                    if hold is not None and hold["succ"] is None and not hold.get("failing"):
                        self._forward(k)
            case _:
                self._tick(name)

    def _tick(self, name: str) -> None:
        pass

    # -- handing on --------------------------------------------------------------------------------------

    def _forward(self, k: int) -> None:
        """Give the payload to a holder of the next step: one that was not tried, else somebody new, else one
        that was tried and lives."""
        hold = self._hold(k)
        assert hold is not None
        payload = hold["payload"]
        step = self._next(k, payload)
        if step is None:
            self._finale(k)
            return
        capability = self._steps(payload)[step]["capability"]
        pause = self._pause(payload, step)
        if waiting(pause):
            return  # the root keeps it until it is answered
        pool = payload["team"].get(capability, [])
        evicted = payload["evicted"]
        fit = [p for p in pool if evicted.get(p) != Reason.FAULTY and p not in self._down]
        if pause is not None and pause["agent"] in fit:
            fit.sort(key=lambda p: p != pause["agent"])  # who asked goes on, if it is there
        fresh = next((p for p in fit if p not in hold["tried"]), None)
        if fresh is not None:
            self._hand(k, step, fresh)
        elif capability not in self._asking:
            self._asking[capability] = k
            exclude = dict.fromkeys([*pool, *evicted, *hold["tried"], *sorted(self._down)])
            self.do(AskReplacement(capability, tuple(exclude)))

    def _replacement(self, capability: str, peer: str | None) -> None:
        k = self._asking.pop(capability, None)
        for other in self._active():
            kept = self._hold(other)
            if other != k and kept is not None and kept["succ"] is None and not kept.get("failing"):
                self._forward(other)  # it may have waited for the same answer
        hold = None if k is None else self._hold(k)
        if k is None or hold is None or hold["phase"] != "fin" or hold["succ"] is not None:
            return
        payload = hold["payload"]
        step = self._next(k, payload)
        if step is None or self._steps(payload)[step]["capability"] != capability:
            self._forward(k)
            return
        pool = payload["team"].get(capability, [])
        if peer is not None and payload["evicted"].get(peer) != Reason.FAULTY:
            if peer not in pool:
                self.put("holds", str(k), "payload", "team", capability, value=[*pool, peer])
            self.note("joined", peer=peer, capability=capability)
            self._hand(k, step, peer)
            return
        fit = [p for p in pool if payload["evicted"].get(p) != Reason.FAULTY and p not in self._down]
        tries = len(hold["refused"]) < self.limits.attempts * len(fit)
        if fit and (tries or "forget_cap" in self.planted):
            # Tried before, and alive: suspected wrongly, or back.
            last = {p: n for n, p in enumerate(hold["tried"])}
            longest_ago = min(fit, key=lambda p: last.get(p, -1))
            self.note("readmitted", peer=longest_ago, capability=capability)
            self._hand(k, step, longest_ago)
            return
        self._rounds[k] = rounds = self._rounds.get(k, 0) + 1
        if rounds < self.limits.rounds and not hold["refused"]:
            self.do(SetTimer("seek", self.limits.retransmit_s or 1.0))
            return
        self._rounds.pop(k, None)
        subtask = self._steps(payload)[step]
        cause: PandacoreError
        if hold["refused"]:
            cause = error_from_json(hold["refused"][-1])
        else:
            cause = errors.NoReplacement(
                f"no agent is left for {capability!r}; tried: {', '.join(hold['tried']) or 'none'}",
                missing={capability: 1},
                where=f"subtask {subtask['id']!r}",
                hint="add a second agent with this capability",
            )
        self._replan(k, cause)

    def _hand(self, k: int, step: int, peer: str) -> None:
        hold = self._hold(k)
        assert hold is not None
        hops = int(hold["payload"].get("hops", 0))
        if (cap := hop_cap(self.limits, hops, self._steps(hold["payload"])[step]["id"])) is not None:
            self._fail(k, cap)
            return
        if k != ROOT or hold["tried"]:  # the first step is given to an agent, not passed on
            self.put("holds", str(k), "payload", "hops", value=hops + 1)
        self._keep(k, succ=peer, accepted=False, beyond=None, tried=[*hold["tried"], peer])
        self._resends[k] = 0
        self.note("hand", step=step, to=peer, generation=hold["g"])
        self._send_hand(k)

    def _send_hand(self, k: int) -> None:
        hold = self._hold(k)
        assert hold is not None
        step = self._next(k, hold["payload"])
        pools = hold["payload"]["team"].items()
        payload = {
            **hold["payload"],
            "path": {**hold["payload"]["path"], str(k): self.me},
            # Nobody further down can know who was lost before; whoever comes back is found in the registry.
            "team": {c: [p for p in pool if p not in self._down] for c, pool in pools},
        }
        fields = {"g": hold["g"], "k": step, "payload": payload, "before": hold["pred"], "root": self._root}
        if hold["succ"] == self.me:
            self._handed(self.me, fields)
            return
        self.send(hold["succ"], "HANDOFF", **fields)
        self.do(SetTimer(f"hand:{k}", self.limits.retransmit_s or 1.0))

    def _handed(self, sender: str, m: Mapping[str, Any]) -> None:
        """Only members take hand-offs."""

    def _hand_again(self, k: int) -> None:
        hold = self._hold(k)
        if hold is None or hold["phase"] != "fin" or hold["succ"] is None or hold["accepted"]:
            return
        self._resends[k] = tries = self._resends.get(k, 0) + 1
        if "no_retransmission" in self.planted:
            return
        if tries > self.limits.retransmits:
            self._suspect(k, Reason.CRASH)
        else:
            self._send_hand(k)

    def _accepted(self, sender: str, g: tuple[Any, ...], step: int) -> None:
        for k in self._active():
            hold = self._hold(k)
            assert hold is not None
            if tuple(hold["g"]) == g and hold["succ"] == sender and not hold["accepted"]:
                if self._next(k, hold["payload"]) != step:
                    continue
                self.do(ClearTimer(f"hand:{k}"))
                self._keep(k, accepted=True)
                if "forget_at_handon" in self.planted and k != ROOT:
                    self.drop("holds", str(k))
                    self.drop("made")

    def _suspect(self, k: int, reason: Reason, error: PandacoreError | None = None) -> None:
        """The successor is lost, or refused: splice to what lives beyond it, or hand the payload out anew."""
        hold = self._hold(k)
        assert hold is not None
        peer, payload = hold["succ"], hold["payload"]
        self.do(ClearTimer(f"hand:{k}"))
        beyond = hold["beyond"]
        if (
            reason == Reason.CRASH
            and error is None
            and beyond is not None
            and beyond[0] not in self._down
            and not _newer(hold["g"], beyond[1])
        ):
            self.note("splice", lost=peer, to=beyond[0])
            self._keep(k, succ=beyond[0], accepted=True, beyond=None)
            self.send(beyond[0], "PRED", k=beyond[2])
            return
        self.put("holds", str(k), "payload", "evicted", peer, value=str(reason))
        self.do(Evict(peer, reason))
        self.note("evict", peer=peer, reason=str(reason), why=str(error or "lost"))
        if reason == Reason.CRASH and error is None and not payload["idempotent"]:
            step = self._next(k, payload)
            lost = errors.UnknownOutcome(
                f"{peer} was lost while it may have been at work",
                where=f"subtask {self._steps(payload)[step or 0]['id']!r}",
                hint="set idempotent=True if it is safe to do it twice",
            )
            self._fail(k, lost)
            return
        self._reissue(k)

    def _reissue(self, k: int) -> None:
        hold = self._hold(k)
        assert hold is not None
        counter = max(self.seen[0], hold["g"][0]) + 1
        questions = int(hold["payload"].get("asks", 0))  # each takes a generation, and is no failure
        if counter > self.limits.generations + questions and "forget_cap" not in self.planted:
            cap = errors.BudgetExceeded(
                f"the payload was handed out anew {self.limits.generations} times",
                kind="generations",
                limit=self.limits.generations,
                used=counter - 1,
                asked=1,
                where="Limits.generations",
                hint="raise Limits(generations=…), or see why members fail",
            )
            self._fail(k, cap)
            return
        g = [counter, -k, self.me]
        self._see(g)
        self._keep(k, g=g, succ=None, accepted=False, beyond=None)
        self._forward(k)

    def _stale(self, sender: str, g: tuple[Any, ...], step: int) -> None:
        """A newer generation is under way: keep the payload until DONE, start nothing from it."""
        own = self._hold(step)
        if own is not None and own["phase"] == "run" and own["pred"] == sender and _newer(g, own["g"]):
            self.do(ClearTimer(f"mine:{step}"))
            self._keep(step, phase="passive")
        for k in self._active():
            hold = self._hold(k)
            if hold is None or hold["succ"] != sender or not _newer(g, hold["g"]):
                continue
            self.do(ClearTimer(f"hand:{k}"))
            if k == ROOT:
                self._keep(k, accepted=True)  # the progress timer watches over that generation
            else:
                self._keep(k, phase="passive")
        self._see(g)

    def _refused(self, sender: str, m: Mapping[str, Any]) -> None:
        for k in self._active():
            hold = self._hold(k)
            assert hold is not None
            # An agent may hold several steps in a row: only the one before the refused step is meant.
            before = self._next(k, hold["payload"]) == m["k"]
            if before and tuple(hold["g"]) == tuple(m["g"]) and hold["succ"] == sender:
                self._keep(k, refused=[*hold["refused"], m["error"]])
                if m.get("rejected"):
                    self.put("holds", str(k), "payload", "rejected", value=m["rejected"])
                error = error_from_json(m["error"])
                if not m["again"]:
                    self.send(sender, "REFUSE_ACK", k=m["k"])
                    self._evict_for(k, sender, m)
                    self._fail(k, error)
                    return
                self.send(sender, "REFUSE_ACK", k=m["k"])
                if m["faulty"]:
                    self._suspect(k, Reason.FAULTY, error)
                else:
                    self._reissue(k)
                return
        self.send(sender, "REFUSE_ACK", k=m["k"])

    def _evict_for(self, k: int, peer: str, m: Mapping[str, Any]) -> None:
        if m["faulty"]:
            self.put("holds", str(k), "payload", "evicted", peer, value=str(Reason.FAULTY))
            self.do(Evict(peer, Reason.FAULTY))

    # -- the way on is closed ----------------------------------------------------------------------------

    def _replan(self, k: int, cause: PandacoreError) -> None:
        hold = self._hold(k)
        assert hold is not None
        payload = hold["payload"]
        left = self.limits.replans - payload["replans"]
        if left <= 0 and "forget_cap" not in self.planted:
            self._fail(k, cause, capped=self.limits.replans > 0)
            return
        request = f"replan:{self.me}:{k}:{payload['version'] + 1}"
        self._plans[request] = (k, cause)
        step = self._next(k, payload)
        assert step is not None
        self.note("replan", error=str(cause))
        context = {
            "reason": "replan",
            "outputs": payload["outputs"],
            "plan": payload["plan"],
            "errors": {self._steps(payload)[step]["id"]: error_to_json(cause)},
            "team": payload["team"],
            "replans_left": left,
        }
        self.do(AskPlan(request, context))

    def _planned(self, k: int, cause: PandacoreError, plan: Plan) -> None:
        hold = self._hold(k)
        if hold is None or hold["phase"] != "fin":
            return
        payload = hold["payload"]
        old = subtask_digests(Plan.from_dict(payload["plan"]), payload["inputs"])
        new = subtask_digests(plan, payload["inputs"])
        kept = {old[i]: o for i, o in payload["outputs"].items()}
        name, finished = short_hash(sorted(new.values())), len(payload["outputs"])
        seen = payload["plans"]
        stale = [n for n, (digest, count) in enumerate(seen) if digest == name and count == finished]
        if stale:
            cycle = [d for d, _ in seen[stale[-1] :]] + [name]
            loop = errors.LoopDetected(
                f"plan {name} came back with no step finished since: {' -> '.join(cycle)}",
                cycle=cycle,
                where="replan",
                hint="give the planner the error of the stuck step, or add an agent that can do it",
            )
            self._fail(k, loop)
            return
        order = {s: n for n, s in enumerate(plan.order)}
        subtasks = sorted(plan.to_dict()["subtasks"], key=lambda s: order[s["id"]])
        fresh = {
            **payload,
            "plan": {"subtasks": subtasks},
            "outputs": {i: kept[d] for i, d in new.items() if d in kept},
            "version": payload["version"] + 1,
            "replans": payload["replans"] + 1,
            "plans": [*seen, [name, finished]],
            "path": {},
        }
        self._keep(k, payload=fresh, tried=[], refused=[])
        self.note("plan", version=fresh["version"], plan=fresh["plan"])
        # Steps are counted anew: this holder stands before the first that has no output.
        self._reissue(k)

    def _fail(self, k: int, error: PandacoreError, *, capped: bool = False) -> None:
        """Tell the root that there is no way on from here; retransmitted until it is acknowledged."""
        hold = self._hold(k)
        assert hold is not None
        step = self._next(k, hold["payload"])
        where = RUN if step is None else self._steps(hold["payload"])[step]["id"]
        self._keep(k, failing={"error": error_to_json(error), "where": where, "capped": capped}, succ=None)
        self._send_fail(k)

    def _send_fail(self, k: int) -> None:
        hold = self._hold(k)
        if hold is None or hold["phase"] != "fin" or not hold.get("failing"):
            return
        fields = {"g": hold["g"], "k": k, **hold["failing"]}
        fields |= {n: hold["payload"][n] for n in ("outputs", "plan", "replans", "version")}
        if self._root == self.me:
            self._failed_run(fields)
            return
        self.send(self._root, "FAIL", **fields)
        self.do(SetTimer(f"fail:{k}", self.limits.retransmit_s or 1.0))

    def _failed_run(self, m: Mapping[str, Any]) -> None:
        """Only the root ends a run."""

    def _finale(self, k: int) -> None:
        """The last step is done: the outputs go to the root, again and again until it says DONE."""
        hold = self._hold(k)
        assert hold is not None
        fields = {n: hold["payload"][n] for n in ("outputs", "plan")}
        if self._root == self.me:
            self._final(self.me, {"g": hold["g"], **fields})
            return
        if "no_retransmission" in self.planted and self._resends.get(k, 0) > 0:
            return
        self._resends[k] = self._resends.get(k, 0) + 1
        self.send(self._root, "FINAL", g=hold["g"], **fields)
        self.do(SetTimer(f"final:{k}", self.limits.retransmit_s or 1.0))

    def _final(self, sender: str, m: Mapping[str, Any]) -> None:
        """Only the root takes results."""

    # -- one step ----------------------------------------------------------------------------------------

    def _run_step(self, k: int, revise: Mapping[str, Any] | None = None) -> None:
        hold = self._hold(k)
        assert hold is not None
        payload = hold["payload"]
        subtask = self._steps(payload)[k]
        inputs = self._inputs(payload, subtask)
        made = self.state.get("made", {}).get(self._work_key(subtask, inputs))
        if made is not None and revise is None:
            self.note("reused", subtask=subtask["id"])
            self._made(k, made["output"])
            return
        if payload["steps"] >= self.limits.steps and "forget_cap" not in self.planted:
            cap = errors.BudgetExceeded(
                f"{payload['steps']} executions were started, {subtask['id']!r} would be one more",
                kind="steps",
                limit=self.limits.steps,
                used=payload["steps"],
                asked=1,
                where="Limits.steps",
                hint="raise Limits(steps=…); the finished outputs are kept",
            )
            self._refuse(k, cap, faulty=False, again=False)
            return
        attempt = int(self.state.get("attempts", {}).get(subtask["id"], 0)) + 1
        self.put("attempts", subtask["id"], value=attempt)
        self.put("holds", str(k), "payload", "steps", value=payload["steps"] + 1)
        if revise is not None:
            inputs["_revise"] = dict(revise)
        if (pause := self._pause(payload, k)) is not None:
            inputs["_answers"] = resumption(pause)
        self._running[(subtask["id"], attempt)] = k
        contract = self._contract(payload, subtask["id"])
        work = {n: subtask[n] for n in ("capability", "instruction")}
        self.do(Execute(subtask["id"], attempt, inputs, self.me, (), hold["g"][0], contract, work=work))

    def _inputs(self, payload: Mapping[str, Any], subtask: Mapping[str, Any]) -> dict[str, Any]:
        needs = subtask["depends_on"]
        return {d: payload["outputs"][d] for d in needs} if needs else dict(payload["inputs"])

    def _work_key(self, subtask: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
        core = {n: v for n, v in subtask.items() if n not in {"id", "depends_on"}}
        return short_hash([core, dict(inputs)])

    def _contract(self, payload: Mapping[str, Any], subtask_id: str) -> Contract | None:
        found = payload["contracts"].get(subtask_id)
        return None if found is None else Contract.from_dict(found)

    def _executed(self, key: tuple[str, int], output: Any) -> None:
        k = self._running.get(key)
        hold = None if k is None else self._hold(k)
        if k is None or hold is None or hold["phase"] != "run":
            self._running.pop(key, None)
            return
        contract = self._contract(hold["payload"], key[0])
        if contract is None:
            del self._running[key]
            self._made(k, output)
        elif k not in self._judging:
            self._judging[k] = output
            size = len(canonical(output).encode())
            if size > contract.max_bytes:
                reason = f"the output has {size} bytes, the contract allows {contract.max_bytes}"
                self._judged(key, False, reason)
            else:
                self.do(AskJudgement(key[0], key[1], output, contract))

    def _judged(self, key: tuple[str, int], ok: bool, reason: str) -> None:
        k = self._running.get(key)
        hold = None if k is None else self._hold(k)
        if k is None or hold is None or hold["phase"] != "run":
            return
        under_judgement = k in self._judging
        output = self._judging.pop(k, None)
        del self._running[key]
        if ok and under_judgement:
            self._made(k, output)
            return
        loop = None
        if under_judgement:
            # Goes along with the payload, so that whoever gets it next knows what was rejected before.
            known = hold["payload"].get("rejected", {}).get(key[0], [])
            rejected = [*known, [short_hash(output), self.me]]
            self.put("holds", str(k), "payload", "rejected", key[0], value=rejected)
            loop = repetition(key[0], rejected, reason)
        if loop is not None:
            self._refuse(k, loop, faulty=False, again=False)
        elif under_judgement and not hold.get("revised"):
            self._keep(k, revised=True)
            self.note("drift", subtask=key[0], agent=self.me, reason=reason)
            previous = output if len(canonical(output)) <= 4_096 else None
            self._run_step(k, {"reason": reason, "previous": previous})
        else:
            if not under_judgement:
                self.do(StopExecution(*key, self.me))
            self._refuse(
                k, errors.InvalidOutput(reason, where=f"subtask {key[0]!r}"), faulty=True, again=True
            )

    def _failed(self, key: tuple[str, int], error: PandacoreError, executed: bool) -> None:
        k = self._running.pop(key, None)
        hold = None if k is None else self._hold(k)
        if k is None or hold is None or hold["phase"] != "run":
            return
        self.note("attempt_failed", subtask=key[0], agent=self.me, error=str(error))
        again = not is_wall(error) and (not executed or hold["payload"]["idempotent"])
        self._refuse(k, error, faulty=False, again=again)

    def _asked(self, asked: Asked) -> None:
        """The step needs answers first: the payload goes to the root, where they come in."""
        k = self._running.pop((asked.subtask_id, asked.attempt), None)
        hold = None if k is None else self._hold(k)
        if k is None or hold is None or hold["phase"] != "run":
            return
        self._keep(k, phase="asking", ask={"attempt": asked.attempt, **asked.to_dict()})
        self._send_ask(k)

    def _send_ask(self, k: int) -> None:
        hold = self._hold(k)
        if hold is None or hold["phase"] != "asking":
            return
        subtask = self._steps(hold["payload"])[k]["id"]
        payload = {**hold["payload"], "path": {}}
        self.send(self._root, "ASK", g=hold["g"], k=k, subtask=subtask, payload=payload, **hold["ask"])
        self.do(SetTimer(f"ask:{k}", self.limits.retransmit_s or 1.0))

    def _answered(self, question: str, value: Any) -> None:
        """Only the root takes answers."""

    def _refuse(self, k: int, error: PandacoreError, *, faulty: bool, again: bool) -> None:
        """Give the payload back to its predecessor, which still has it: somebody else shall do it."""
        hold = self._hold(k)
        assert hold is not None
        rejected = hold["payload"].get("rejected", {})
        refusal = {"error": error_to_json(error), "faulty": faulty, "again": again, "rejected": rejected}
        self._keep(k, phase="refused", refusal=refusal)
        self._send_refusal(k)

    def _send_refusal(self, k: int) -> None:
        hold = self._hold(k)
        if hold is None or hold["phase"] != "refused":
            return
        fields = {"g": hold["g"], "k": k, **hold["refusal"]}
        if hold["pred"] == self.me:
            self.drop("holds", str(k))
            self._refused(self.me, fields)
            return
        self.send(hold["pred"], "REFUSE", **fields)
        self.do(SetTimer(f"refuse:{k}", self.limits.retransmit_s or 1.0))

    def _made(self, k: int, output: Any) -> None:
        """The step has its output: keep it, then hand on."""
        hold = self._hold(k)
        assert hold is not None
        payload = hold["payload"]
        subtask = self._steps(payload)[k]
        work = self._work_key(subtask, self._inputs(payload, subtask))
        self.put("made", work, value={"output": output})
        self.put("holds", str(k), "payload", "outputs", subtask["id"], value=output)
        self._keep(k, phase="fin", succ=None, accepted=False, tried=[], refused=[], beyond=None)
        self._resends.pop(k, None)
        self.note("step", k=k, subtask=subtask["id"], generation=hold["g"])
        self._forward(k)


class ChainMember(_ChainNode):
    """A member of a chain.

    Custody is end to end: a payload is forgotten only on the DONE that comes back from the root, or when the
    root stays silent for ``retransmits`` times ``patience_s``. C2: ``seen`` never goes back and at most one
    step runs; C3: a step runs only with the outputs that came with its payload.

    Parameters
    ----------
    run, me : str
        See :class:`Machine`.
    limits : Limits
        Times until the first hand-off brings the root's limits.
    """

    def __init__(self, run: str, me: str, *, limits: Limits | None = None) -> None:
        super().__init__(run, me, limits=limits or Limits())
        self._silent = 0

    def resume(self) -> None:
        """Take the root's limits from a payload."""
        for hold in self.state.get("holds", {}).values():
            self.limits = Limits.from_dict(hold["payload"]["limits"])

    def _more(self, sender: str, m: Mapping[str, Any]) -> None:
        match m.get("kind"):
            case "HANDOFF":
                self._handed(sender, m)
            case "RESUME":
                self._resumed(tuple(m["g"]), int(m["k"]))
            case "PRED":
                if self._hold(int(m["k"])) is not None:
                    self._keep(int(m["k"]), pred=sender)
            case "PING":
                self._pinged(sender)
            case "REFUSE_ACK":
                self.do(ClearTimer(f"refuse:{m['k']}"))
                hold = self._hold(int(m["k"]))
                if hold is not None and hold["phase"] == "refused":
                    self.drop("holds", str(m["k"]))
            case "FAIL_ACK":
                k = int(m["k"])
                hold = self._hold(k)
                if hold is not None and hold.get("failing") and tuple(hold["g"]) == tuple(m["g"]):
                    self.do(ClearTimer(f"fail:{k}"))
                    self._keep(k, phase="passive", failing=None)
            case "DONE":
                self.send(sender, "DONE_ACK")
                self._leave()
            case "WAIT":
                self._silent = 0
            case "PAUSED":
                self._stand_back(tuple(m["g"]))
            case _:
                super()._more(sender, m)

    def _over(self, sender: str, m: Mapping[str, Any]) -> None:
        if m["kind"] in {"HANDOFF", "MINE"}:
            self.send(sender, "DONE")

    def _handed(self, sender: str, m: Mapping[str, Any]) -> None:
        g, k = tuple(m["g"]), int(m["k"])
        hold = self._hold(k)
        if hold is not None and tuple(hold["g"]) == g:
            self._say_accepted(k)
            return
        if g < self.seen and "no_generation_check" not in self.planted:
            self.send(sender, "STALE", g=list(self.seen), k=k)
            return
        payload = m["payload"]
        self.limits = Limits.from_dict(payload["limits"])
        for key in list(self._running):  # at most one run: the newer generation's
            del self._running[key]
            self.do(StopExecution(*key, self.me))
        self._judging.clear()
        for other, kept in list(self.state.get("holds", {}).items()):
            mine = payload["path"].get(other) == self.me and kept["phase"] == "fin"
            if int(other) != k and not mine and kept["phase"] != "passive":
                self._keep(int(other), phase="passive")
        self._see(g)
        self.put("root", value=m["root"])
        fresh = {
            "g": list(g),
            "phase": "run",
            "payload": json.loads(json.dumps(payload)),  # it may be this node's own, of an earlier step
            "pred": sender,
            "before": m["before"],
            "succ": None,
            "accepted": False,
            "tried": [],
            "refused": [],
            "beyond": None,
        }
        self.put("holds", str(k), value=fresh)
        self._say_accepted(k)
        self.do(SetTimer("custody", self.limits.patience_s))
        self._run_step(k)

    def _stand_back(self, g: tuple[Any, ...]) -> None:
        """The root has the payload now: keep what there is, start nothing from it."""
        self._see(g)
        old = {int(k) for k, hold in self.state.get("holds", {}).items() if _newer(g, hold["g"])}
        for key in [key for key, k in self._running.items() if k in old]:
            self._judging.pop(self._running.pop(key), None)
            self.do(StopExecution(*key, self.me))
        for k in sorted(old):
            self.do(ClearTimer(f"ask:{k}"), ClearTimer(f"hand:{k}"))
            self._keep(k, phase="passive")

    def _say_accepted(self, k: int) -> None:
        hold = self._hold(k)
        assert hold is not None
        fields = {"g": hold["g"], "k": k}
        if hold["pred"] == self.me:
            self._accepted(self.me, tuple(hold["g"]), k)
        else:
            self.send(hold["pred"], "ACCEPT", **fields)
        if self._root != hold["pred"]:
            self.send(self._root, "PROGRESS", **fields)
        before = hold["before"]
        if before is not None and before not in {self._root, self.me}:
            self.send(before, "HOLDS", pred=hold["pred"], **fields)

    def _resumed(self, g: tuple[Any, ...], k: int) -> None:
        """The root lost sight of the run: go on from here under its generation."""
        hold = self._hold(k)
        if hold is None or not _newer(g, self.seen):
            self.send(self._root, "PROGRESS", g=list(self.seen), k=k if hold else ROOT, gone=hold is None)
            return
        self._see(g)
        if hold["phase"] == "run":
            self._keep(k, g=list(g))
        else:
            self._keep(k, g=list(g), phase="fin", succ=None, accepted=False, beyond=None, failing=None)
            subtask = self._steps(hold["payload"])[k]
            if subtask["id"] in hold["payload"]["outputs"]:
                self._forward(k)
            else:
                self._keep(k, phase="run")
                self._run_step(k)
        self.send(self._root, "PROGRESS", g=list(g), k=k)

    def _pinged(self, sender: str) -> None:
        for k, hold in sorted(self.state.get("holds", {}).items()):
            waits = hold["phase"] == "fin" and hold["accepted"]
            if hold["phase"] in {"run", "fin", "refused", "asking"} and not waits:
                self.send(sender, "PROGRESS", g=hold["g"], k=int(k))
                return

    def _tick(self, name: str) -> None:
        kind, _, rest = name.partition(":")
        if kind == "refuse":
            self._send_refusal(int(rest))
        elif kind == "custody" and self.state.get("holds"):
            self._silent += 1
            if self._silent > self.limits.retransmits:
                self.note("abandoned", silent=self._root)
                self._leave()
                return
            self.send(self._root, "QUERY")
            self.do(SetTimer("custody", self.limits.patience_s))

    def _leave(self) -> None:
        if self.done:
            return
        for key in list(self._running):
            del self._running[key]
            self.do(StopExecution(*key, self.me))
        self.drop("holds")
        self.drop("made")
        self.put("ended", value=True)
        self.do(ClearTimer("custody"))
        self.finish(None)

    def _start(self) -> None:
        if self.state.get("ended"):
            self.finish(None)
        else:
            super()._start()
            for k, hold in self.state.get("holds", {}).items():
                if hold["phase"] == "refused":
                    self._send_refusal(int(k))
                self._send_ask(int(k))


class ChainRoot(_ChainNode):
    """The entrypoint of a chain: hands the plan to the first step, takes the result, says DONE.

    Invariants: C1 at most one FINAL is accepted; C4 no counter passes ``limits.generations``; C5 no step is
    executed again unless its output was lost with its holder, or a suspicion was wrong.

    Parameters
    ----------
    run, me : str
        See :class:`Machine`.
    plan : Plan, optional
        Executed in its topological order, one step after the other. None: asked for by ``AskPlan``.
    team : mapping of str to sequence of str
        Peers per capability, preferred first.
    inputs : mapping
        JSON values that the task brought; every step without dependencies gets them.
    idempotent : bool
        True: a step whose holder was lost may be executed again. False ends the run with ``UnknownOutcome``.
    contracts : mapping of str to Contract
        Per subtask id; judged where the step was executed.
    limits : Limits
        Caps and times.
    """

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
        limits: Limits | None = None,
    ) -> None:
        super().__init__(run, me, limits=limits or Limits())
        self._progressed = True
        self._pinging = False
        self._done_tries = 0
        payload = {
            "plan": {"subtasks": []},
            "plans": [],
            "inputs": dict(inputs or {}),
            "outputs": {},
            "version": 0,
            "team": {c: list(p) for c, p in (team or {}).items()},
            "evicted": {},
            "replans": 0,
            "steps": 0,
            "path": {},
            "pauses": {},
            "asks": 0,
            "limits": self.limits.to_dict(),
            "idempotent": idempotent,
            "contracts": {k: c.to_dict() for k, c in (contracts or {}).items()},
        }
        hold = {
            "g": [1, 1, me],
            "phase": "fin",
            "payload": payload,
            "pred": None,
            "before": None,
            "succ": None,
            "accepted": False,
            "tried": [],
            "refused": [],
            "beyond": None,
        }
        self.put("seen", value=[1, 1, me])
        self.put("holds", value={str(ROOT): hold})
        self.put("team", value=[])  # every node that ever took part, for DONE
        self.put("at", value={})  # the deepest positions heard of
        if plan is not None:
            self._set_plan(plan)

    def _set_plan(self, plan: Plan) -> None:
        hold = self._hold(ROOT)
        assert hold is not None
        order = {s: n for n, s in enumerate(plan.order)}
        subtasks = sorted(plan.to_dict()["subtasks"], key=lambda s: order[s["id"]])
        digests = subtask_digests(plan, hold["payload"]["inputs"])
        name = short_hash(sorted(digests.values()))
        fresh = {**hold["payload"], "plan": {"subtasks": subtasks}, "version": 1, "plans": [[name, 0]]}
        self._keep(ROOT, payload=fresh)

    def resume(self) -> None:
        """The limits and partial outputs as they were."""
        hold = self._hold(ROOT)
        if hold is not None:
            self.limits = Limits.from_dict(hold["payload"]["limits"])
            self.outputs = dict(hold["payload"]["outputs"])

    @property
    def questions(self) -> list[dict[str, Any]]:
        """See :attr:`Machine.questions`."""
        return [] if self.done else open_questions(self._payload.get("pauses", {}).values())

    @property
    def waits(self) -> bool:
        """See :attr:`Machine.waits`."""
        return bool(self.questions)

    @property
    def peers(self) -> Sequence[str]:
        """See :attr:`Machine.peers`."""
        pools = (p for pool in self._payload["team"].values() for p in pool)
        return list(dict.fromkeys([*self.state["team"], *pools]))

    def _start(self) -> None:
        ended = self.state.get("ended")
        if ended is not None:
            self.outputs = dict(ended["outputs"])
            self.finish(ended["value"], {k: error_from_json(e) for k, e in ended["failed"].items()})
            self._send_done()
            return
        hold = self._hold(ROOT)
        assert hold is not None
        if not hold["payload"]["plan"]["subtasks"]:
            self._plans["plan"] = (ROOT, errors.StateError("no plan was made"))
            team = hold["payload"]["team"]
            context = {"reason": "plan", "outputs": {}, "plan": None, "errors": {}, "team": team}
            self.do(AskPlan("plan", context))
        else:
            super()._start()
        self.do(SetTimer("progress", self.limits.patience_s))

    def _planned(self, k: int, cause: PandacoreError, plan: Plan) -> None:
        hold = self._hold(ROOT)
        assert hold is not None
        if hold["payload"]["plan"]["subtasks"]:
            super()._planned(k, cause, plan)
        else:
            self._set_plan(plan)
            self._forward(ROOT)

    def _more(self, sender: str, m: Mapping[str, Any]) -> None:
        match m.get("kind"):
            case "PROGRESS":
                self._progress(sender, m)
            case "FINAL":
                self._final(sender, m)
            case "FAIL":
                self._failed_run(m, sender)
            case "ASK":
                self._paused(sender, m)
            case "QUERY":
                self.send(sender, "WAIT")
            case _:
                super()._more(sender, m)

    def _over(self, sender: str, m: Mapping[str, Any]) -> None:
        if m["kind"] == "FAIL":
            self.send(sender, "FAIL_ACK", g=m["g"], k=m["k"])
        self.send(sender, "DONE")

    def _accepted(self, sender: str, g: tuple[Any, ...], step: int) -> None:
        super()._accepted(sender, g, step)
        self._progress(sender, {"g": list(g), "k": step})

    def _progress(self, sender: str, m: Mapping[str, Any]) -> None:
        self._progressed = True
        self._pinging = False
        if sender not in self.state["team"]:
            self.put("team", value=[*self.state["team"], sender])
        if m.get("gone"):
            for k in [k for k, (peer, _) in self.state["at"].items() if peer == sender]:
                self.drop("at", k)
            return
        self._see(m["g"])
        self.put("at", str(m["k"]), value=[sender, list(m["g"])])

    def _tick(self, name: str) -> None:
        if name == "done":
            self._send_done()
        elif name == "progress":
            self._check_progress()

    def _check_progress(self) -> None:
        """No result and no sign of life for two periods: go on from the deepest payload that lives."""
        self.do(SetTimer("progress", self.limits.patience_s))
        if self.waits:  # whoever did not hear of it must not go on by itself
            self._say_paused()
            return
        if self._progressed or self._plans or self._asking:
            self._progressed = False
            return
        if not self._pinging:
            self._pinging = True
            for peer in self.state["team"]:
                if peer not in self._down:
                    self.send(peer, "PING")
            return
        self._pinging = False
        self._restart()

    def _restart(self) -> None:
        hold = self._hold(ROOT)
        assert hold is not None
        at = sorted(((int(k), v[0]) for k, v in self.state["at"].items()), reverse=True)
        deepest = next(((k, peer) for k, peer in at if peer not in self._down and k != ROOT), None)
        self.note("root_timer", deepest=None if deepest is None else list(deepest))
        counter = self.seen[0] + 1
        if deepest is not None and counter <= self.limits.generations:
            k, peer = deepest
            g = [counter, 1, self.me]
            self._see(g)
            self.drop("at", str(k))  # asked once; it says so if it still holds it
            self.send(peer, "RESUME", g=g, k=k)
        else:
            self._keep(ROOT, tried=[])
            self._reissue(ROOT)

    # -- questions ---------------------------------------------------------------------------------------

    def _paused(self, sender: str, m: Mapping[str, Any]) -> None:
        """A step needs answers: the root takes the payload over, under a generation of its own, and gives it
        out again when they are there. So nothing is lost with a member meanwhile, however long it takes."""
        if _newer(self.seen, m["g"]):
            self.send(sender, "PAUSED", g=list(self.seen))
            return
        payload = json.loads(json.dumps(m["payload"]))
        subtask = str(m["subtask"])
        asked = Asked(subtask, int(m["attempt"]), m["questions"], m["state"])
        given = payload["pauses"].get(subtask)
        loop = loop_of(() if given is None else given["answers"], asked)
        if loop is not None:
            self._end(None, {subtask: loop}, dict(payload["outputs"]))
            return
        # A member that went on from an older payload may not know what was answered since.
        payload["pauses"] = {**payload["pauses"], **self._payload["pauses"]}
        payload["pauses"][subtask] = paused(payload["pauses"].get(subtask), asked, sender)
        payload["asks"] = max(payload["asks"], self._payload["asks"]) + 1
        g = [self.seen[0] + 1, 1, self.me]
        self._see(g)
        if sender not in self.state["team"]:
            self.put("team", value=[*self.state["team"], sender])
        self.put("at", value={})
        self.do(ClearTimer(f"hand:{ROOT}"))
        self._keep(ROOT, g=g, payload=payload, succ=None, accepted=False, tried=[], refused=[], beyond=None)
        self.outputs = dict(payload["outputs"])
        self.note("asked", subtask=subtask, agent=sender, questions=[*asked.questions])
        self._say_paused()
        self._forward(ROOT)

    def _say_paused(self) -> None:
        hold = self._hold(ROOT)
        assert hold is not None
        for peer in self.state["team"]:
            if peer not in self._down:
                self.send(peer, "PAUSED", g=hold["g"])

    def _answered(self, question: str, value: Any) -> None:
        found = answered(self._payload["pauses"], question)
        if found is None:
            return
        subtask, own = found
        self.put("holds", str(ROOT), "payload", "pauses", subtask, "answers", own, value=value)
        self.note("answered", subtask=subtask, question=question)
        if not self.waits:
            self._progressed = True
            self._forward(ROOT)

    def _final(self, sender: str, m: Mapping[str, Any]) -> None:
        outputs = dict(m["outputs"])
        plan = Plan.from_dict(m["plan"])
        sinks = plan.sinks
        value = outputs[sinks[0]] if len(sinks) == 1 else {s: outputs[s] for s in sinks}
        if sender != self.me and sender not in self.state["team"]:
            self.put("team", value=[*self.state["team"], sender])
        self._end(value, {}, outputs)

    def _failed_run(self, m: Mapping[str, Any], sender: str | None = None) -> None:
        if sender is not None:
            self.send(sender, "FAIL_ACK", g=m["g"], k=m["k"])
            if _newer(self.seen, m["g"]):
                return  # a newer generation is under way; its end counts
            if m["version"] == self._payload["version"]:
                merged = {**self._payload["outputs"], **m["outputs"]}
                self.put("holds", str(ROOT), "payload", "outputs", value=merged)
        failed = {m["where"]: error_from_json(m["error"])}
        if m["capped"]:
            failed[RUN] = errors.BudgetExceeded(
                f"the plan was changed {m['replans']} times and is stuck again",
                kind="replans",
                limit=self.limits.replans,
                used=m["replans"],
                asked=1,
                where="Limits.replans",
                hint="raise Limits(replans=…); the finished outputs are kept",
            )
        self._end(None, failed, dict(m["outputs"]))

    @property
    def _payload(self) -> dict[str, Any]:
        hold = self._hold(ROOT)
        assert hold is not None
        payload: dict[str, Any] = hold["payload"]
        return payload

    def _cancel(self) -> None:
        cancelled = errors.Cancelled("the run was cancelled")
        self._end(None, {RUN: cancelled}, dict(self._payload["outputs"]))

    def _end(self, value: Any, failed: Mapping[str, PandacoreError], outputs: dict[str, Any]) -> None:
        self.outputs = outputs
        record = {"value": value, "failed": {k: error_to_json(e) for k, e in failed.items()}}
        self.put("ended", value={**record, "outputs": outputs})
        self.do(ClearTimer("progress"))
        self.finish(value, failed)
        self._send_done()

    def _send_done(self) -> None:
        """DONE to everybody who took part, until all have said so or the tries are used up."""
        pools = [p for pool in self._payload["team"].values() for p in pool]
        told = dict.fromkeys([*self.state["team"], *pools])
        left = [p for p in told if p not in self.state.get("told", []) and p != self.me]
        if not left or self._done_tries > self.limits.retransmits:
            return
        self._done_tries += 1
        for peer in left:
            self.send(peer, "DONE")
        self.do(SetTimer("done", self.limits.retransmit_s or 1.0))

    def _done_acked(self, sender: str) -> None:
        if sender not in self.state.get("told", []):
            self.put("told", value=[*self.state.get("told", []), sender])
