"""Star: a hub dispatches every dependency-free subtask in parallel and collects (PANDA, appendix B.2).

The hub is :class:`StarHub`; every member runs a :class:`StarMember`. Members named as stand-ins keep a copy
of the hub's state; the first of them that is alive goes on when the hub is lost.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.patterns.base import (
    RUN,
    Action,
    AskJudgement,
    AskPlan,
    AskReplacement,
    Assigned,
    CancelRequested,
    ClearTimer,
    Contract,
    Evict,
    Execute,
    Executed,
    ExecutionFailed,
    Finish,
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
    Send,
    SetTimer,
    Start,
    StopExecution,
    TimerFired,
    canonical,
    error_from_json,
    error_to_json,
    short_hash,
    subtask_digests,
)
from pandacore.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pandacore.errors import PandacoreError
    from pandacore.patterns.base import Event

__all__ = ["StarHub", "StarMember", "as_message"]

MAX_CACHED_RESULTS: Final = 256
"""Finished results that a member keeps until the hub acknowledges them; then the oldest goes."""
MAX_LATE: Final = 4_096
"""Executions of suspected members whose late result is still welcome."""

_REPLICATION: Final = frozenset(
    {
        "CHECKPOINT",
        "CHECKPOINT_ACK",
        "FENCED",
        "CLAIM",
        "GRANT",
        "EPOCH",
        "FINAL",
        "FINAL_ACK",
        "END",
        "WHO",
        "RETIRED",
        "STOP",
        "DISPATCH",
        "CANCEL",
        "RESULT_ACK",
    }
)


def as_message(action: Action, run: str) -> Send | None:
    """An :class:`Execute` or :class:`StopExecution` for another node as a message to that node's machine.

    For drivers whose members run a :class:`StarMember`; None for every other action.
    """
    match action:
        case Execute(agent=str() as agent):
            message = {
                "kind": "DISPATCH",
                "run": run,
                "epoch": action.epoch,
                "subtask": action.subtask_id,
                "attempt": action.attempt,
                "inputs": dict(action.inputs),
                "again": action.again,
                "contract": action.contract.to_dict() if action.contract else None,
            }
            return Send(agent, message)
        case StopExecution(agent=str() as agent):
            return Send(
                agent,
                {"kind": "CANCEL", "run": run, "subtask": action.subtask_id, "attempt": action.attempt},
            )
        case _:
            return None


def _key(subtask_id: str, attempt: int) -> str:
    return f"{attempt}:{subtask_id}"


class _StarNode(Machine):
    """Both roles: a member works for the hub and may keep its copy; whoever owns the epoch leads.

    Durable state: ``promised`` (highest epoch granted), ``owner`` (who leads it), ``hub`` (the replicated
    state of the run), ``ended``.
    """

    def __init__(self, run: str, me: str, *, limits: Limits, works: bool) -> None:
        super().__init__(run, me)
        self.limits = limits
        self._works = works  # this node has an agent of its own
        # As a worker.
        self._running: set[tuple[str, int]] = set()
        self._results: dict[tuple[str, int], dict[str, Any]] = {}
        self._unacked: dict[tuple[str, int], int] = {}
        # As a leader.
        self._plan: Plan | None = None
        self._digest: dict[str, str] = {}
        self._id: dict[str, str] = {}
        self._missing: dict[str, int] = {}
        self._open: dict[str, list[str]] = {}
        self._load: dict[str, int] = {}
        self._late: dict[str, dict[str, Any]] = {}
        self._ticks: dict[str, int] = {}
        self._judging: dict[str, Any] = {}
        self._seeking: dict[str, dict[str, Any]] = {}
        self._back: set[str] = set()
        self._request = ""
        self._stuck: dict[str, PandacoreError] = {}
        self._retrying = False
        # As a holder of the checkpoint.
        self._gone: set[str] = set()
        self._acked: dict[str, int] = {}
        self._await: int | None = None
        self._tries = 0
        self._held: list[Action] = []
        self._queue: deque[Event] = deque()
        self._commit = False
        self._reformed = False
        self._cancelled = False
        self._watches = 0
        self._claim: dict[str, Any] | None = None
        self._final_tries = 0

    # -- roles -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The highest epoch this node has seen; it obeys none below."""
        return int(self.state.get("promised", 1))

    @property
    def leads(self) -> bool:
        """True if this node is the orchestrator of its epoch."""
        return self.state.get("owner") == self.me and "hub" in self.state

    @property
    def plan(self) -> Plan | None:
        """The plan in force, where this node leads."""
        return self._plan

    @property
    def _hub(self) -> dict[str, Any]:
        hub: dict[str, Any] = self.state["hub"]
        return hub

    def _holders(self) -> list[str]:
        """All that keep the checkpoint, in the order of succession."""
        hub = self.state.get("hub")
        return [*hub["stand_ins"], hub["origin"]] if hub else []

    def _quorum(self) -> int:
        """A majority of the holders, whatever the failure detector says: any two share a holder."""
        return len(self._holders()) // 2 + 1

    # -- events ------------------------------------------------------------------------------------------

    def on(self, event: Event) -> None:
        """See :meth:`Machine.on`. While a commit awaits its quorum, the run's events queue."""
        if isinstance(event, PeerDown):
            self._gone.add(event.peer)
            self._holder_down(event.peer)
        elif isinstance(event, PeerUp):
            self._gone.discard(event.peer)
            caller = self.state.get("hub", {}).get("origin") == self.me
            if event.peer == self.state.get("owner") and not caller:
                self.do(ClearTimer("succeed"))
        if self._await is not None and not self._urgent(event):
            self._queue.append(event)
            return
        self._take(event)

    def _urgent(self, event: Event) -> bool:
        match event:
            case Received(_, message):
                return message.get("kind") in _REPLICATION
            case TimerFired(name):
                return name in {"replicate", "claim", "succeed", "final", "result"}
            case CancelRequested() | Start():
                return True
            case Executed(subtask_id, attempt) | ExecutionFailed(subtask_id, attempt):
                return (subtask_id, attempt) in self._running
            case _:
                return False

    def _take(self, event: Event) -> None:
        match event:
            case Start():
                self._start()
            case Received(sender, message):
                self._received(sender, message)
            case TimerFired(name):
                self._timer(name)
            case Executed(subtask_id, attempt, output):
                if (subtask_id, attempt) in self._running:
                    self._worked(subtask_id, attempt, {"output": output})
                elif self._busy:
                    self._result(_key(subtask_id, attempt), output)
            case ExecutionFailed(subtask_id, attempt, error, executed):
                if (subtask_id, attempt) in self._running:
                    failure = {"error": error_to_json(error), "executed": executed}
                    self._worked(subtask_id, attempt, failure)
                elif self._busy:
                    self._failure(_key(subtask_id, attempt), error, executed)
            case _ if self._busy:
                self._lead(event)
            case CancelRequested() if (
                "hub" in self.state and self._hub["origin"] == self.me and not self.done
            ):
                # Another node leads by now: tell it, and answer the caller at once.
                cancelled = errors.Cancelled("the run was cancelled")
                self.send(str(self.state["owner"]), "STOP")
                failed = {RUN: error_to_json(cancelled)}
                self.put("final", value={"value": None, "failed": failed, "outputs": {}})
                self.finish(None, {RUN: cancelled})
            case _:
                pass

    @property
    def _busy(self) -> bool:
        return self.leads and not self.done and "ended" not in self._hub

    def _lead(self, event: Event) -> None:
        match event:
            case Assigned(subtask_id, attempt, agent):
                self._assigned(_key(subtask_id, attempt), agent)
            case PeerDown(peer):
                self._refill()
                self._lose(peer)
            case PeerUp(peer):
                self._refill()
                if self._hub["evicted"].get(peer) == Reason.CRASH:
                    self._back.add(peer)
            case Planned(plan, request):
                if request == self._request:
                    self._request = ""
                    self._replanned(plan)
            case PlanningFailed(error, request):
                if request == self._request:
                    self._request = ""
                    self._end(None, self._stuck or {RUN: error})
            case Replacement(capability, peer):
                self._replacement(capability, peer)
            case Judged(subtask_id, attempt, ok, reason):
                self._judged(_key(subtask_id, attempt), ok, reason)
            case CancelRequested():
                self._cancel()
            case _:
                pass

    def _cancel(self) -> None:
        self._await, self._held = None, []
        self._queue.clear()
        self._cancelled = True  # the caller is answered without waiting for a quorum
        self._end(None, {RUN: errors.Cancelled("the run was cancelled")})

    def _received(self, sender: str, m: Mapping[str, Any]) -> None:
        match m.get("kind"):
            case "DISPATCH":
                self._dispatched(sender, m)
            case "CANCEL":
                self._stop_work((str(m["subtask"]), int(m["attempt"])))
            case "RESULT_ACK":
                self._unacked.pop((str(m["subtask"]), int(m["attempt"])), None)
                self._results.pop((str(m["subtask"]), int(m["attempt"])), None)
            case "RESULT" | "WORKING":
                if self._busy:
                    self._reported(sender, m)
            case "REPLAN":
                if self._busy and sender in self._members():
                    self._replan({RUN: errors.AgentFailed(str(m.get("reason", "")), kind="Replan")})
            case "CHECKPOINT":
                self._copied(sender, m)
            case "CHECKPOINT_ACK":
                self._copy_acked(sender, m)
            case "CLAIM":
                self._claimed(sender, int(m["epoch"]), (int(m["at"][0]), int(m["at"][1])))
            case "GRANT":
                self._granted(sender, m)
            case "RETIRED":
                at = (self._hub["epoch"], self._hub["seq"]) if "hub" in self.state else (0, 0)
                if not self.leads and at < (int(m["at"][0]), int(m["at"][1])):
                    self._claim = None
                    self.drop("hub")
                    self.do(ClearTimer("claim"), ClearTimer("succeed"))
            case "FENCED":
                self._fenced(int(m["epoch"]))
            case "EPOCH":
                if int(m["epoch"]) >= self.epoch:
                    self._obey(sender, int(m["epoch"]))
                    for key in self._unacked:  # the new hub may never have heard of them
                        self.do(Send(sender, self._results[key]))
            case "WHO":
                if self.leads and "ended" in self._hub:
                    self._final_tries = 0
                    self._send_final(even_done=True)
                elif self.leads:
                    self.do(self._copy_for(sender, None))
                elif self.done:
                    self.send(sender, "END", epoch=self.epoch)
            case "STOP":
                if self._busy and sender == self._hub["origin"]:
                    self._cancel()
            case "FINAL":
                self._finalled(sender, m)
            case "FINAL_ACK":
                if self.leads and "ended" in self._hub and not self.done:
                    self.do(ClearTimer("final"))
                    self._close_run()
            case "END":
                origin = self.state.get("hub", {}).get("origin") == self.me
                if int(m["epoch"]) >= self.epoch and not (self.done or self.leads or origin):
                    self._leave()
            case kind:
                self.note("ignored", kind=str(kind), sender=sender)

    def _timer(self, name: str) -> None:
        match name.partition(":"):
            case ("retry", _, _) if self._busy:
                self._retry()
            case ("seek", _, capability) if self._busy:
                self._seek(capability)
            case ("result", _, _):
                self._resend_results()
            case ("replicate", _, _):
                self._replicate_again()
            case ("succeed", _, _):
                owner = str(self.state.get("owner", ""))
                if self.done or self.leads or "hub" not in self.state:
                    return
                if owner in self._gone or not owner:
                    self._make_claim()
                elif self._hub["origin"] == self.me:  # the caller must not wait for nothing
                    for peer in self._holders():
                        if peer != self.me:
                            self.send(peer, "WHO")
                    self._watch()
            case ("claim", _, _):
                self._claim_again()
            case ("final", _, _):
                self._send_final()
            case _:
                pass

    def _start(self) -> None:
        if not self.leads:
            self._rejoin()
            return
        self._commit = True  # with stand-ins: hear from a quorum that no later epoch exists
        self.put("hub", "started", value=int(self._hub.get("started", 0)) + 1)
        if "ended" in self._hub:
            self._conclude()
        elif self._plan is None:
            self._ask_plan("plan", {})
        else:
            self._go_on()

    def _rejoin(self) -> None:
        """After a restart: a holder of the checkpoint that does not lead asks who does."""
        if "final" in self.state:
            final = self.state["final"]
            self.outputs = dict(final["outputs"])
            self.finish(final["value"], {k: error_from_json(e) for k, e in final["failed"].items()})
        elif "hub" in self.state and "ended" not in self.state:
            for peer in self._holders():
                if peer != self.me:
                    self.send(peer, "WHO")
            self._watch()

    def _go_on(self) -> None:
        """Dispatch again what was in flight, then everything else that is ready."""
        for key, flight in list(self._hub["flights"].items()):
            self._execute(key, flight, again=True)
        self._assign_ready()
        if self._plan is not None and len(self.outputs) == len(self._plan):
            self._complete()

    # -- plan --------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Rebuild what follows from the durable state."""
        self.outputs = {}
        self._judging, self._late, self._ticks = {}, {}, {}
        self._seeking.clear()
        if not self.leads:
            return
        hub = self._hub
        self.limits = Limits.from_dict(hub["limits"])
        self._open, self._load = {}, {}
        if hub["plan"] is not None:
            self._index(Plan.from_dict(hub["plan"]))
        for key, flight in hub["flights"].items():
            self._opened(key, flight)

    def _index(self, plan: Plan) -> None:
        self._plan = plan
        self._digest = subtask_digests(plan, self._hub["inputs"])
        self._id = {d: i for i, d in self._digest.items()}
        done = self._hub["done"]
        self._missing = {
            d: sum(self._digest[n] not in done for n in plan[i].depends_on) for i, d in self._digest.items()
        }
        self.outputs = {i: done[d]["output"] for i, d in self._digest.items() if d in done}

    def _ask_plan(self, reason: str, stuck: dict[str, PandacoreError]) -> None:
        hub = self._hub
        self._request = f"{reason}:{hub['version'] + 1}"
        self._stuck = stuck
        context = {
            "reason": reason,
            "outputs": dict(self.outputs),
            "plan": hub["plan"],
            "errors": {k: error_to_json(e) for k, e in stuck.items()},
            "team": hub["team"],
            "replans_left": self.limits.replans - hub["replans"],
        }
        self.do(AskPlan(self._request, context))

    def _replan(self, stuck: dict[str, PandacoreError]) -> None:
        """The way on is closed: ask for another plan, or end with what is done."""
        if self._request:
            self._stuck.update(stuck)
            return
        hub = self._hub
        if hub["replans"] >= self.limits.replans and "forget_cap" not in self.planted:
            if self.limits.replans:
                stuck[RUN] = errors.BudgetExceeded(
                    f"the plan was changed {hub['replans']} times and is stuck again",
                    kind="replans",
                    limit=self.limits.replans,
                    used=hub["replans"],
                    asked=1,
                    where="Limits.replans",
                    hint="raise Limits(replans=…); the finished outputs are kept",
                )
            self._end(None, stuck)
            return
        self.put("hub", "replans", value=hub["replans"] + 1)
        self.note("replan", errors={k: str(e) for k, e in stuck.items()})
        self._ask_plan("replan", stuck)

    def _replanned(self, plan: Plan) -> None:
        """Adopt a plan; what is done or in flight under the same digest stays."""
        hub = self._hub
        digests = subtask_digests(plan, hub["inputs"])
        name = short_hash(sorted(digests.values()))
        seen = hub["plans"]
        finished = len(hub["done"])
        stale = [n for n, (digest, count) in enumerate(seen) if digest == name and count == finished]
        if stale:
            cycle = [d for d, _ in seen[stale[-1] :]] + [name]
            loop = errors.LoopDetected(
                f"plan {name} came back with no subtask finished since: {' -> '.join(cycle)}",
                cycle=cycle,
                where="replan",
                hint="give the planner the error of the stuck subtask, or add an agent that can do it",
            )
            self._end(None, {**self._stuck, RUN: loop})
            return
        self._stuck = {}
        self._commit = True
        self.put("hub", "plans", value=[*seen, [name, finished]])
        self.put("hub", "version", value=hub["version"] + 1)
        self.put("hub", "plan", value=plan.to_dict())
        for field in ("fails", "swaps", "blamed", "drifted"):
            self.put("hub", field, value={})
        self._seeking.clear()
        self._index(plan)
        for key, flight in list(hub["flights"].items()):
            if flight["d"] not in self._id:
                self._close(key, stop=True)
        self.note("plan", version=hub["version"], plan=hub["plan"])
        self._assign_ready()
        if len(self.outputs) == len(plan):
            self._complete()

    # -- dispatch ----------------------------------------------------------------------------------------

    def _assign_ready(self) -> None:
        assert self._plan is not None
        for subtask_id in self._plan.order:
            digest = self._digest[subtask_id]
            if not self._missing[digest] and digest not in self._hub["done"] and not self._open.get(digest):
                self._assign(digest)
                if not self._busy:
                    return

    def _assign(self, digest: str) -> None:
        """Give a ready subtask to as many members as it needs; look for one where there is none."""
        assert self._plan is not None
        hub = self._hub
        subtask_id = self._id[digest]
        capability = self._plan[subtask_id].capability
        flying = [hub["flights"][k]["a"] for k in self._open.get(digest, ())]
        wanted = self._copies(subtask_id) - len(flying)
        pool = hub["team"].get(capability)
        if pool is None:  # the driver keeps the team
            for _ in range(wanted):
                self._launch(digest, None, ())
            return
        blamed = hub["blamed"].get(digest, ())
        free = [p for p in pool if p not in blamed and p not in flying]
        if not free and not flying:
            seek = self._seeking.setdefault(capability, {"digests": {}, "round": 0, "asked": False})
            seek["digests"][digest] = True
            self._seek(capability)
            return
        if hub["late_binding"]:
            for _ in range(min(wanted, len(free))):
                self._launch(digest, None, tuple(free))
            return
        for peer in sorted(free, key=lambda p: self._load.get(p, 0))[:wanted]:
            self._launch(digest, peer, ())

    def _copies(self, subtask_id: str) -> int:
        assert self._plan is not None
        subtask = self._plan[subtask_id]
        own = getattr(subtask, "redundancy", None)
        return int(own or self._hub["redundancy"].get(subtask.capability, 1))

    def _launch(
        self,
        digest: str,
        peer: str | None,
        candidates: tuple[str, ...],
        revise: Mapping[str, Any] | None = None,
    ) -> None:
        hub = self._hub
        subtask_id = self._id[digest]
        if hub["steps"] >= self.limits.steps and "forget_cap" not in self.planted:
            steps = errors.BudgetExceeded(
                f"{hub['steps']} executions were started, {subtask_id!r} would be one more",
                kind="steps",
                limit=self.limits.steps,
                used=hub["steps"],
                asked=1,
                where="Limits.steps",
                hint="raise Limits(steps=…); the finished outputs are kept",
            )
            self._end(None, {subtask_id: steps})
            return
        self._commit = True  # a new attempt is no business of a hub that was deposed (S4)
        attempt = hub["attempts"].get(subtask_id, 0) + 1
        self.put("hub", "steps", value=hub["steps"] + 1)
        self.put("hub", "attempts", subtask_id, value=attempt)
        flight: dict[str, Any] = {"d": digest, "a": peer, "c": list(candidates)}
        if revise:
            flight["revise"] = dict(revise)
        key = _key(subtask_id, attempt)
        self.put("hub", "flights", key, value=flight)
        self._opened(key, flight)
        self._execute(key, flight)

    def _opened(self, key: str, flight: Mapping[str, Any]) -> None:
        self._open.setdefault(flight["d"], []).append(key)
        if flight["a"] is not None:
            self._load[flight["a"]] = self._load.get(flight["a"], 0) + 1

    def _execute(self, key: str, flight: Mapping[str, Any], *, again: bool = False) -> None:
        assert self._plan is not None
        attempt, _, subtask_id = key.partition(":")
        digest = flight["d"]
        subtask = self._plan[self._id[digest]]
        inputs: dict[str, Any]
        if subtask.depends_on:
            inputs = {d: self.outputs[d] for d in subtask.depends_on}
        else:
            inputs = dict(self._hub["inputs"])
        if "revise" in flight:
            inputs["_revise"] = flight["revise"]
        execute = Execute(
            subtask_id,
            int(attempt),
            inputs,
            flight["a"],
            tuple(flight["c"]),
            self.epoch,
            self._contract(digest),
            again and not self._hub["idempotent"],
        )
        self._ticks[key] = 0
        if self._works and flight["a"] == self.me:
            message = as_message(execute, self.run)
            assert message is not None
            self._dispatched(self.me, message.message)
        else:
            self.do(execute)
        if self.limits.retransmit_s is not None and not self._retrying:
            self._retrying = True
            self.do(SetTimer("retry", self.limits.retransmit_s))

    def _retry(self) -> None:
        """Send again what was not heard of for a whole period; a member that never answers is lost."""
        self._retrying = False
        silent: list[str] = []
        for key, flight in list(self._hub["flights"].items()):
            self._ticks[key] = ticks = self._ticks.get(key, 0) + 1
            if ticks > self.limits.retransmits:
                silent.append(flight["a"])
            elif "no_retransmission" not in self.planted:
                self._execute(key, flight, again=True)
                self._ticks[key] = ticks
        for peer in dict.fromkeys(p for p in silent if p is not None):
            if self._busy:
                self._lose(peer)
        if self._busy and self._hub["flights"] and not self._retrying:
            assert self.limits.retransmit_s is not None
            self._retrying = True
            self.do(SetTimer("retry", self.limits.retransmit_s))

    def _assigned(self, key: str, agent: str) -> None:
        self._ticks[key] = 0
        flight = self._hub["flights"].get(key)
        if flight is not None and flight["a"] is None:
            self.put("hub", "flights", key, value={**flight, "a": agent})
            self._load[agent] = self._load.get(agent, 0) + 1

    def _close(self, key: str, *, stop: bool = False, late: bool = False) -> None:
        flight = self._hub["flights"][key]
        self.drop("hub", "flights", key)
        self._ticks.pop(key, None)
        self._judging.pop(key, None)
        keys = self._open.get(flight["d"], [])
        if key in keys:
            keys.remove(key)
        if not keys:
            self._open.pop(flight["d"], None)
        if flight["a"] is not None:
            self._load[flight["a"]] = self._load.get(flight["a"], 1) - 1
        if late:
            if len(self._late) >= MAX_LATE:
                del self._late[next(iter(self._late))]
            self._late[key] = flight
        if stop:
            attempt, _, subtask_id = key.partition(":")
            if self._works and flight["a"] == self.me:
                self._stop_work((subtask_id, int(attempt)))
            else:
                self.do(StopExecution(subtask_id, int(attempt), flight["a"]))

    # -- results -----------------------------------------------------------------------------------------

    def _reported(self, sender: str, m: Mapping[str, Any]) -> None:
        key = _key(str(m["subtask"]), int(m["attempt"]))
        flight = self._hub["flights"].get(key) or self._late.get(key)
        if flight is None or flight["a"] != sender:
            if m["kind"] == "RESULT":  # settled long ago: let the member forget it
                self.send(sender, "RESULT_ACK", subtask=m["subtask"], attempt=m["attempt"])
            return
        self._ticks[key] = 0
        if m["kind"] == "WORKING":
            return
        if "error" in m:
            self.send(sender, "RESULT_ACK", subtask=m["subtask"], attempt=m["attempt"])
            if key in self._hub["flights"]:
                self._failure(key, error_from_json(m["error"]), bool(m["executed"]))
        else:
            self._result(key, m["output"])

    def _result(self, key: str, output: Any) -> None:
        """The result rule: once per subtask, of the current plan, and never from a faulty member."""
        hub = self._hub
        flight = hub["flights"].get(key) or self._late.get(key)
        if flight is None:
            return
        digest, agent = flight["d"], flight["a"]
        faulty = agent is not None and hub["evicted"].get(agent) == Reason.FAULTY
        if faulty and "accept_faulty" not in self.planted:
            return
        if digest in hub["done"] or digest not in self._id:
            if key in hub["flights"]:
                self._close(key)
            return
        contract = self._contract(digest)
        if contract is None or key not in hub["flights"]:
            if contract is None:
                self._accept(key, flight, output)
            return
        if key in self._judging:
            return  # a repeated result of one under judgement
        size = len(canonical(output).encode())
        self._judging[key] = output
        if size > contract.max_bytes:
            reason = f"the output has {size} bytes, the contract allows {contract.max_bytes}: use artifacts"
            self._drift(key, reason)
            return
        attempt, _, subtask_id = key.partition(":")
        self.do(AskJudgement(subtask_id, int(attempt), output, contract))

    def _contract(self, digest: str) -> Contract | None:
        assert self._plan is not None
        subtask_id = self._id[digest]
        own = getattr(self._plan[subtask_id], "contract", None)
        if isinstance(own, Contract):
            return own
        found = self._hub["contracts"].get(subtask_id)
        return None if found is None else Contract.from_dict(found)

    def _accept(self, key: str, flight: Mapping[str, Any], output: Any) -> None:
        assert self._plan is not None
        hub = self._hub
        digest, agent = flight["d"], flight["a"]
        subtask_id = self._id[digest]
        attempt = int(key.partition(":")[0])
        self._commit = True
        record = {"id": subtask_id, "output": output, "agent": agent, "attempt": attempt}
        self.put("hub", "done", digest, value=record)
        self.outputs[subtask_id] = output
        for other in list(self._open.get(digest, ())):
            self._close(other, stop=other != key)
        self._late.pop(key, None)
        for seek in self._seeking.values():
            seek["digests"].pop(digest, None)
        self.note("commit", digest=digest, subtask=subtask_id, agent=agent, attempt=attempt)
        if agent is not None and self.limits.retransmit_s is not None:
            self.send(agent, "RESULT_ACK", subtask=key.partition(":")[2], attempt=attempt)
        if len(self.outputs) == len(self._plan):
            self._complete()
            return
        for dependent in self._plan.dependents(subtask_id):
            digest = self._digest[dependent]
            self._missing[digest] -= 1
            # A kept output of an older plan may stand behind one that is missing.
            if self._missing[digest] == 0 and digest not in hub["done"] and not self._open.get(digest):
                self._assign(digest)
                if not self._busy:
                    return

    def _failure(self, key: str, error: PandacoreError, executed: bool) -> None:
        hub = self._hub
        flight = hub["flights"].get(key)
        if flight is None:
            return
        digest, agent = flight["d"], flight["a"]
        self._close(key)
        if digest in hub["done"] or digest not in self._id:
            return
        if agent is not None:
            self.put("hub", "blamed", digest, value=[*hub["blamed"].get(digest, ()), agent])
        lost = isinstance(error, errors.ConnectionLost | errors.UnknownOutcome)
        count, cap = ("swaps", self.limits.swaps) if lost else ("fails", self.limits.attempts - 1)
        used = hub[count].get(digest, 0) + 1
        self.put("hub", count, digest, value=used)
        self.note("attempt_failed", subtask=self._id[digest], agent=agent, error=str(error))
        if self._open.get(digest):
            return  # another copy is still at it
        if self._may_repeat(error, executed) and (used <= cap or "forget_cap" in self.planted):
            self._assign(digest)
        else:
            self._stuck_at(digest, error)

    def _may_repeat(self, error: PandacoreError, executed: bool) -> bool:
        match error:
            case errors.BudgetExceeded() | errors.PayloadTooLarge() | errors.Cancelled() | errors.NoTeam():
                return False  # another agent would meet the same wall
            case errors.UnknownOutcome():
                return bool(self._hub["idempotent"])
            case _:
                # A typed failure after execution is an answer: the agent says that it did not succeed. It is
                # repeated only where repeating is harmless.
                return not executed or bool(self._hub["idempotent"])

    def _stuck_at(self, digest: str, error: PandacoreError) -> None:
        stuck = {self._id[digest]: error}
        match error:
            case (
                errors.BudgetExceeded() | errors.Cancelled() | errors.UnknownOutcome() | errors.LoopDetected()
            ):
                self._end(None, stuck)
            case _:
                self._replan(stuck)

    # -- judgement ---------------------------------------------------------------------------------------

    def _judged(self, key: str, ok: bool, reason: str) -> None:
        hub = self._hub
        flight = hub["flights"].get(key)
        if flight is None:
            record = next(
                (r for r in hub["done"].values() if _key(r["id"], r["attempt"]) == key and not ok), None
            )
            if record is not None and record["agent"] is not None:
                # Too late for this output, which stays; its author gets no further work.
                self._evict(record["agent"], Reason.FAULTY, reason)
            return
        if key in self._judging:
            output = self._judging[key]
            if ok:
                self._accept(key, flight, output)
            else:
                self._drift(key, reason)
        elif not ok:
            self._faulty(key, reason)

    def _drift(self, key: str, reason: str) -> None:
        """An output broke its contract: send it back once, then swap its author."""
        hub = self._hub
        flight = hub["flights"][key]
        digest, agent = flight["d"], flight["a"]
        output = self._judging.pop(key)
        mark = short_hash(output)
        rejected = [*hub["rejected"].get(digest, ()), [mark, agent or ""]]
        self.put("hub", "rejected", digest, value=rejected)
        same = [author for other, author in rejected if other == mark]
        self.note("drift", subtask=self._id[digest], agent=agent, reason=reason)
        if len(same) >= 3:
            self._close(key)
            loop = errors.LoopDetected(
                f"the same rejected output came {len(same)} times: {reason}",
                cycle=[f"{self._id[digest]} by {author}" for author in same],
                where=f"subtask {self._id[digest]!r}",
                hint="change the instruction or the contract",
            )
            self._stuck_at(digest, loop)
        elif agent is not None and hub["drifted"].get(digest) != agent:
            self.put("hub", "drifted", digest, value=agent)
            self._close(key)
            previous = output if len(canonical(output)) <= 4_096 else None
            self._launch(digest, agent, (), {"reason": reason, "previous": previous})
        else:
            self._faulty(key, reason)

    def _faulty(self, key: str, reason: str) -> None:
        flight = self._hub["flights"][key]
        if flight["a"] is not None:
            self._evict(flight["a"], Reason.FAULTY, reason)
        else:
            self._failure(key, errors.InvalidOutput(reason, where=key.partition(":")[2]), False)

    # -- swap --------------------------------------------------------------------------------------------

    def _members(self) -> list[str]:
        return list(dict.fromkeys(p for pool in self._hub["team"].values() for p in pool))

    def _lose(self, peer: str) -> None:
        hub = self._hub
        flies = any(f["a"] == peer for f in hub["flights"].values())
        if peer in hub["evicted"] or not (flies or peer in self._members()):
            return
        if flies and not hub["idempotent"]:
            if self.limits.retransmit_s is None:
                flies = False  # each call reports for itself whether the agent had begun
            else:
                for key, flight in list(hub["flights"].items()):
                    if flight["a"] == peer and self._busy and key in hub["flights"]:
                        lost = errors.UnknownOutcome(
                            f"{peer} was lost while it may have been at work",
                            where=f"subtask {self._id[flight['d']]!r}",
                            hint="set idempotent=True if it is safe to do it twice",
                        )
                        self._failure(key, lost, True)
                if not self._busy:
                    return
        self._evict(peer, Reason.CRASH, "lost", reassign=flies or bool(hub["idempotent"]))

    def _evict(self, peer: str, reason: Reason, why: str, *, reassign: bool = True) -> None:
        """One step: out of the team, its unfinished work back to be assigned (S1, S2)."""
        hub = self._hub
        if hub["evicted"].get(peer) == Reason.FAULTY:
            return
        self._commit = True
        self._back.discard(peer)
        held = [c for c, pool in hub["team"].items() if peer in pool] or hub["held"].get(peer, [])
        self.put("hub", "held", peer, value=held)
        self.put("hub", "evicted", peer, value=str(reason))
        self.put("hub", "view", value=hub["view"] + 1)
        for capability, pool in hub["team"].items():
            if peer in pool:
                self.put("hub", "team", capability, value=[p for p in pool if p != peer])
        self.do(Evict(peer, reason))
        self.note("evict", peer=peer, reason=str(reason), why=why)
        if not reassign or "swap_keeps_assignment" in self.planted:
            return
        orphans: dict[str, None] = {}
        for key, flight in list(hub["flights"].items()):
            if flight["a"] == peer:
                # A crashed member may have been suspected wrongly: its late result is still welcome.
                late = reason == Reason.CRASH or "accept_faulty" in self.planted
                self._close(key, stop=reason == Reason.FAULTY, late=late)
                orphans[flight["d"]] = None
        for digest in orphans:
            used = hub["swaps"].get(digest, 0) + 1
            self.put("hub", "swaps", digest, value=used)
            if used > self.limits.swaps and "forget_cap" not in self.planted:
                cap = errors.BudgetExceeded(
                    f"{used} members were lost under {self._id[digest]!r}",
                    kind="swaps",
                    limit=self.limits.swaps,
                    used=used,
                    asked=1,
                    where="Limits.swaps",
                    hint="raise Limits(swaps=…), or see why members of this capability fail",
                )
                self._replan({self._id[digest]: cap})
            elif not self._open.get(digest):
                self._assign(digest)
            if not self._busy:
                return

    def _seek(self, capability: str) -> None:
        seek = self._seeking.get(capability)
        if seek is None or seek["asked"]:
            return
        seek["asked"] = True
        hub = self._hub
        exclude = dict.fromkeys([*hub["team"].get(capability, ()), *hub["evicted"]])
        self.do(AskReplacement(capability, tuple(exclude)))

    def _replacement(self, capability: str, peer: str | None) -> None:
        """The ladder of a swap: somebody new, else a crashed one that is back, else ask again, else fail."""
        hub = self._hub
        seek = self._seeking.get(capability)
        if seek is None or not seek["asked"]:
            return
        seek["asked"] = False
        if peer is not None and (peer in hub["evicted"] or peer in hub["team"].get(capability, ())):
            peer = None
        if peer is None and "no_readmission" not in self.planted:
            peer = next((p for p in sorted(self._back) if capability in hub["held"].get(p, ())), None)
            if peer is not None:
                self._back.discard(peer)
                self.drop("hub", "evicted", peer)
                self.note("readmitted", peer=peer, capability=capability)
        waiting = [d for d in seek["digests"] if d in self._id and d not in hub["done"]]
        if peer is not None:
            del self._seeking[capability]
            self._commit = True
            self.put("hub", "view", value=hub["view"] + 1)
            self.put("hub", "team", capability, value=[*hub["team"].get(capability, ()), peer])
            self.note("joined", peer=peer, capability=capability)
            for digest in waiting:
                blamed = hub["blamed"].get(digest, ())
                if peer in blamed:
                    self.put("hub", "blamed", digest, value=[p for p in blamed if p != peer])
                self._assign(digest)
                if not self._busy:
                    return
            return
        if hub["team"].get(
            capability
        ):  # nobody new: those that failed at it once may try again, up to the cap
            del self._seeking[capability]
            for digest in waiting:
                self.drop("hub", "blamed", digest)
                self._assign(digest)
                if not self._busy:
                    return
            return
        seek["round"] += 1
        if seek["round"] < self.limits.rounds and waiting:
            self.do(SetTimer(f"seek:{capability}", self.limits.retransmit_s or 1.0))
            return
        del self._seeking[capability]
        if waiting:
            missing = errors.NoReplacement(
                f"no agent is left for {capability!r}; lost: {', '.join(sorted(hub['evicted'])) or 'none'}",
                missing={capability: 1},
                where=f"subtask {self._id[waiting[0]]!r}",
                hint="add a second agent with this capability",
            )
            self._replan({self._id[d]: missing for d in waiting})

    # -- the end -----------------------------------------------------------------------------------------

    def _complete(self) -> None:
        assert self._plan is not None
        sinks = self._plan.sinks
        value = self.outputs[sinks[0]] if len(sinks) == 1 else {s: self.outputs[s] for s in sinks}
        self._end(value, {})

    def _end(self, value: Any, failed: Mapping[str, PandacoreError]) -> None:
        hub = self._hub
        if "ended" in hub:
            return
        for key in list(hub["flights"]):
            self._close(key, stop=True)
        self._commit = True
        record = {"value": value, "failed": {k: error_to_json(e) for k, e in failed.items()}}
        self.put("hub", "ended", value=record)
        self._seeking.clear()
        self._request = ""
        self.do(ClearTimer("retry"))
        self._conclude()

    def _ended_errors(self) -> dict[str, PandacoreError]:
        return {k: error_from_json(e) for k, e in self._hub["ended"]["failed"].items()}

    def _conclude(self) -> None:
        hub = self._hub
        if self.limits.retransmit_s is not None:
            told = dict.fromkeys([*self._members(), *hub["evicted"]])
            for peer in told:
                if peer != self.me and peer not in self._holders():
                    self.send(peer, "END", epoch=self.epoch)
        for key in list(self._running):
            self._stop_work(key)
        if hub["origin"] == self.me:
            self._close_run()
        else:
            self._final_tries = 0
            self._send_final()

    def _close_run(self) -> None:
        """The caller has its result: only now may the holders of the checkpoint forget."""
        self.finish(self._hub["ended"]["value"], self._ended_errors())
        for peer in self._holders():
            if peer not in {self.me, self._hub["origin"]}:
                self.send(peer, "END", epoch=self.epoch)

    def _send_final(self, *, even_done: bool = False) -> None:
        if (self.done and not even_done) or not self.leads or "ended" not in self._hub:
            return
        if self._final_tries > self.limits.retransmits:
            # The caller is gone; the result stays in the checkpoint for when it comes back.
            self.finish(self._hub["ended"]["value"], self._ended_errors())
            return
        self._final_tries += 1
        ended = self._hub["ended"]
        self.send(
            self._hub["origin"],
            "FINAL",
            epoch=self.epoch,
            value=ended["value"],
            failed=ended["failed"],
            outputs=dict(self.outputs),
        )
        if not self.done:
            self.do(SetTimer("final", self.limits.retransmit_s or 1.0))

    def _finalled(self, sender: str, m: Mapping[str, Any]) -> None:
        """The caller's side: the first result stands."""
        if int(m["epoch"]) < self.epoch and "no_fencing" not in self.planted:
            self.send(sender, "FENCED", epoch=self.epoch)
            return
        self.send(sender, "FINAL_ACK")
        if self.done or "hub" not in self.state or self._hub["origin"] != self.me:
            return
        self._obey(sender, int(m["epoch"]))
        self.outputs = dict(m["outputs"])
        self.put("final", value={k: m[k] for k in ("value", "failed", "outputs")})
        self.do(ClearTimer("succeed"), ClearTimer("claim"))
        self.finish(m["value"], {k: error_from_json(e) for k, e in m["failed"].items()})

    def _leave(self) -> None:
        for key in list(self._running):
            self._stop_work(key)
        self.put("ended", value=True)
        self._unacked.clear()
        self.do(ClearTimer("result"), ClearTimer("succeed"), ClearTimer("claim"))
        self.finish(None)

    # -- the checkpoint's holders ------------------------------------------------------------------------

    def flush(self) -> list[Action]:
        """As :meth:`Machine.flush`; with stand-ins, a commit's effects wait for a quorum of copies."""
        actions = self._flush()
        self.done = self.done or any(isinstance(a, Finish) for a in actions)
        return actions

    def finish(self, value: Any, failed: Mapping[str, PandacoreError] | None = None) -> None:
        """As :meth:`Machine.finish`; a held one has not happened, and is dropped if this node is deposed."""
        self.do(Finish(value, dict(failed or {})))

    def _flush(self) -> list[Action]:
        touched = any(p[0] == "hub" for p in (*self._sets, *self._drops))
        others = [h for h in self._holders() if h != self.me]
        if not (self.leads and touched and others):
            self._commit = False
            return super().flush()
        self.put("hub", "seq", value=self._hub["seq"] + 1)
        patch = {
            "set": [[list(p[1:]), v] for p, v in self._sets.items() if p[0] == "hub" and len(p) > 1],
            "drop": [list(p[1:]) for p in self._drops if p[0] == "hub"],
        }
        whole = ("hub",) in self._sets or not self._stored
        effects, self._effects = self._effects, []
        actions: list[Action] = [self.checkpoint()]
        actions += [self._copy_for(peer, None if whole else patch) for peer in others]
        commit, self._commit = self._commit, False
        if not commit or self._cancelled:
            return [*actions, *effects]
        self._await, self._tries = self._hub["seq"], 0
        self._held = effects
        return [*actions, SetTimer("replicate", self.limits.retransmit_s or 1.0)]

    def _refill(self) -> None:
        """Replace a lost stand-in: first a member joins, then the lost one leaves.

        Each by a commit of its own, so that any two majorities in a row share a holder, and never fewer than
        before count. Only the loss of a majority at once is not survived.
        """
        hub = self._hub
        names = hub["stand_ins"]
        if self._reformed or not names:
            return
        lost = [n for n in names if n in self._gone]
        spare = (m for m in self._members() if m not in {*names, hub["origin"]} and m not in self._gone)
        if len(names) > hub["copies"]:
            leaver = lost[0] if lost else names[-1]
            self.put("hub", "stand_ins", value=[n for n in names if n != leaver])
            self.note("stand_in_lost", peer=leaver)
        elif lost and (new := next(spare, None)) is not None:
            self.put("hub", "stand_ins", value=[*names, new])
            self.note("stand_in", peer=new)
        else:
            return
        self._reformed = self._commit = True

    def _copy_for(self, peer: str, patch: dict[str, Any] | None) -> Send:
        message = {"kind": "CHECKPOINT", "run": self.run, "epoch": self.epoch, "seq": self._hub["seq"]}
        return Send(peer, {**message, "patch": patch} if patch else {**message, "hub": self._hub})

    def _copy_acked(self, sender: str, m: Mapping[str, Any]) -> None:
        if not self.leads or int(m["epoch"]) != self.epoch or sender not in self._holders():
            return
        self._acked[sender] = max(self._acked.get(sender, 0), int(m["seq"]))
        if m["behind"]:
            self.do(self._copy_for(sender, None))
        self._check_quorum()

    def _check_quorum(self) -> None:
        if self._await is None:
            return
        copies = 1 + sum(self._acked.get(h, 0) >= self._await for h in self._holders() if h != self.me)
        if copies < self._quorum():
            return
        self._await, self._reformed = None, False
        self.do(ClearTimer("replicate"), *self._held)
        self._held = []
        if self._busy:
            self._refill()
        while self._queue:
            self._take(self._queue.popleft())

    def _replicate_again(self) -> None:
        if self._await is None:
            return
        self._tries += 1
        for peer in self._holders():
            if peer != self.me and self._acked.get(peer, 0) < self._await:
                self.do(self._copy_for(peer, None))
        if self._tries <= self.limits.retransmits:
            self.do(SetTimer("replicate", self.limits.retransmit_s or 1.0))
            return
        self.note("no_quorum", holders=self._holders())
        self._step_down()
        self.put("owner", value="")
        if self._hub["origin"] == self.me:
            self._no_quorum()
        else:
            self._watch()

    def _no_quorum(self) -> None:
        holders = self._holders()
        lost = errors.NoQuorum(
            f"no majority of {len(holders)} holders of the checkpoint answers: {', '.join(holders)}",
            where="StarHub.stand_ins",
            hint="keep the stand-ins on different hosts",
        )
        done = {d: r["output"] for d, r in self._hub["done"].items()}
        self.outputs = {r["id"]: done[d] for d, r in self._hub["done"].items()}
        self.put(
            "final", value={"value": None, "failed": {RUN: error_to_json(lost)}, "outputs": self.outputs}
        )
        self.finish(None, {RUN: lost})

    def _copied(self, sender: str, m: Mapping[str, Any]) -> None:
        epoch, seq = int(m["epoch"]), int(m["seq"])
        if epoch < self.epoch and "no_fencing" not in self.planted:
            self.send(sender, "FENCED", epoch=self.epoch)
            return
        if self.done:
            # The caller has its result, or this member has left: nothing of the run goes on.
            self.send(sender, "CHECKPOINT_ACK", epoch=epoch, seq=seq, behind=False)
            return
        self._obey(sender, epoch)
        self._watches = 0
        hub = self.state.get("hub")
        at = (hub["epoch"], hub["seq"]) if hub else (0, 0)
        behind = False
        if "hub" in m:
            if (epoch, seq) > at or "no_fencing" in self.planted:
                self.put("hub", value={**m["hub"]})
        elif at == (epoch, seq - 1):
            for path, value in m["patch"]["set"]:
                self.put("hub", *path, value=value)
            for path in m["patch"]["drop"]:
                self.drop("hub", *path)
        elif (epoch, seq) > at:
            behind = True
        hub = self.state.get("hub")
        self.send(
            sender,
            "CHECKPOINT_ACK",
            epoch=epoch,
            seq=hub["seq"] if hub and hub["epoch"] == epoch else 0,
            behind=behind,
        )
        if sender in self._gone:
            self._holder_down(sender)

    def _obey(self, sender: str, epoch: int) -> None:
        """Follow the hub of this epoch, durably where this node keeps a copy."""
        if self.leads and sender != self.me:
            self._step_down()
        if epoch > self.epoch or self.state.get("owner") != sender:
            self.put("promised", value=epoch)
            self.put("owner", value=sender)
            self._claim = None

    def _step_down(self) -> None:
        self.note("deposed", epoch=self.epoch)
        for action in self._held:  # of what never took effect, only this node's own work matters
            if isinstance(action, Execute) and action.agent == self.me:
                self._running.discard((action.subtask_id, action.attempt))
            elif isinstance(action, StopExecution) and action.agent == self.me:
                self.do(action)
        self._await, self._held, self._commit = None, [], False
        self._queue.clear()
        self._seeking.clear()
        self._open.clear()
        self._request = ""
        self._retrying = False
        self.do(ClearTimer("retry"), ClearTimer("replicate"), ClearTimer("final"))
        if self._hub["origin"] == self.me:
            self._watch()

    def _fenced(self, epoch: int) -> None:
        if epoch <= self.epoch and self._claim is None:
            return
        if self.leads:
            if "no_fencing" in self.planted:
                return
            self._step_down()
        if epoch > self.epoch:
            self.put("promised", value=epoch)
            self.put("owner", value="")  # whoever it is will say so
        self._claim = None
        # If the one that took this epoch fails as well, somebody must go on.
        self._watch()

    def _watch(self) -> None:
        holders = self._holders()
        if self.me not in holders or self.done:
            return
        self._watches += 1
        if self._watches > self.limits.retransmits and self._hub["origin"] == self.me:
            self._no_quorum()
            return
        self.do(SetTimer("succeed", self.limits.patience_s * (1 + holders.index(self.me))))

    def _holder_down(self, peer: str) -> None:
        self._check_quorum()
        holders = self._holders()
        if self.done or peer != self.state.get("owner") or self.me not in holders or peer == self.me:
            return
        alive = [h for h in holders if h not in self._gone or h == self.me]
        place = alive.index(self.me)
        if place == 0:
            self._make_claim()
        else:
            self.do(SetTimer("succeed", self.limits.patience_s * place))

    def _make_claim(self) -> None:
        if self.leads or self.done or self._claim is not None:
            return
        epoch = self.epoch + 1
        self.put("promised", value=epoch)
        self.put("owner", value="")
        self._claim = {"epoch": epoch, "grants": {self.me: self.state["hub"]}, "tries": 0}
        self.note("claim", epoch=epoch)
        self._send_claims()

    def _send_claims(self) -> None:
        assert self._claim is not None
        best = max(self._claim["grants"].values(), key=lambda h: (h["epoch"], h["seq"]))
        for peer in dict.fromkeys([*best["stand_ins"], best["origin"], *self._holders()]):
            if peer not in self._claim["grants"]:
                own = self._hub
                self.send(peer, "CLAIM", epoch=self._claim["epoch"], at=[own["epoch"], own["seq"]])
        self.do(SetTimer("claim", self.limits.retransmit_s or 1.0))
        self._check_claim()

    def _claim_again(self) -> None:
        if self._claim is None:
            return
        self._claim["tries"] += 1
        if self._claim["tries"] > self.limits.retransmits:
            self._claim = None
            self._watch()
            return
        self._send_claims()

    def _claimed(self, sender: str, epoch: int, at: tuple[int, int]) -> None:
        if self.done:
            self.send(sender, "END", epoch=max(epoch, self.epoch))  # the run is over; so is the succession
            return
        if "hub" not in self.state:
            return
        if sender not in self._holders() and at < (self._hub["epoch"], self._hub["seq"]):
            # It was replaced while it was away; its list of holders could outvote nobody rightly.
            self.send(sender, "RETIRED", at=[self._hub["epoch"], self._hub["seq"]])
            return
        fresh = epoch > self.epoch
        if not fresh and not (epoch == self.epoch and self.state.get("owner") == sender):
            self.send(sender, "FENCED", epoch=self.epoch)
            return
        if fresh:
            self._obey(sender, epoch)
        self.send(sender, "GRANT", epoch=epoch, hub=self._hub)

    def _granted(self, sender: str, m: Mapping[str, Any]) -> None:
        if self._claim is not None and int(m["epoch"]) == self._claim["epoch"]:
            self._claim["grants"][sender] = m["hub"]
            self._send_claims()

    def _check_claim(self) -> None:
        claim = self._claim
        if claim is None:
            return
        best = max(claim["grants"].values(), key=lambda h: (h["epoch"], h["seq"]))
        # The newest copy says who the holders are: an older list could miss a commit.
        holders = [*best["stand_ins"], best["origin"]]
        if sum(h in claim["grants"] for h in holders) < len(holders) // 2 + 1:
            return
        self._claim = None
        self.do(ClearTimer("claim"), ClearTimer("succeed"))
        self.put("hub", value={**best, "epoch": claim["epoch"]})
        self.put("owner", value=self.me)
        self.note("leads", epoch=claim["epoch"], after=best["epoch"])
        self._commit = True
        self.resume()
        if "ended" in self._hub:
            self._conclude()
            return
        told = dict.fromkeys([*self._members(), *self._hub["evicted"]])
        for peer in told:
            if peer not in {self.me, *self._holders()}:
                self.send(peer, "EPOCH", epoch=self.epoch)
        if self._plan is None:
            self._ask_plan("plan", {})
        else:
            self._go_on()

    # -- work for the hub --------------------------------------------------------------------------------

    def _dispatched(self, sender: str, m: Mapping[str, Any]) -> None:
        epoch = int(m["epoch"])
        key = (str(m["subtask"]), int(m["attempt"]))
        if epoch < self.epoch and "no_fencing" not in self.planted:
            self.send(sender, "FENCED", epoch=self.epoch)
            return
        if self.done:
            return
        if sender != self.me:
            self._obey(sender, epoch)
        if key in self._results:
            self._report(sender, key)
        elif key in self._running:
            if sender != self.me:
                self.send(sender, "WORKING", subtask=key[0], attempt=key[1])
        elif m["again"]:
            # Sent before, and this node knows nothing of it: it may have lost its memory after the effect.
            lost = errors.UnknownOutcome(
                "the agent does not know whether it began", where=f"subtask {key[0]!r}, attempt {key[1]}"
            )
            self._running.add(key)
            self._worked(*key, {"error": error_to_json(lost), "executed": True})
        else:
            self._running.add(key)
            contract = None if m["contract"] is None else Contract.from_dict(m["contract"])
            self.do(Execute(key[0], key[1], m["inputs"], self.me, (), epoch, contract))

    def _worked(self, subtask_id: str, attempt: int, result: dict[str, Any]) -> None:
        key = (subtask_id, attempt)
        self._running.discard(key)
        while len(self._results) >= MAX_CACHED_RESULTS:
            oldest = next(iter(self._results))
            del self._results[oldest]
            self._unacked.pop(oldest, None)
        message = {"kind": "RESULT", "run": self.run, "subtask": subtask_id, "attempt": attempt}
        self._results[key] = {**message, **result}
        self._unacked[key] = 0
        self._report(str(self.state.get("owner", "")), key)
        if self.limits.retransmit_s is not None:
            self.do(SetTimer("result", self.limits.retransmit_s))

    def _report(self, hub: str, key: tuple[str, int]) -> None:
        if hub == self.me and self.leads:
            event = Received(self.me, self._results[key])
            if self._await is None:
                self._take(event)
            else:
                self._queue.append(event)
        elif hub:
            self.do(Send(hub, self._results[key]))

    def _resend_results(self) -> None:
        if self.done or "no_retransmission" in self.planted:
            return
        for key, tries in list(self._unacked.items()):
            if tries >= self.limits.retransmits:
                del self._unacked[key]  # the hub will ask again if it still wants it
            else:
                self._unacked[key] = tries + 1
                self._report(str(self.state.get("owner", "")), key)
        if self._unacked and self.limits.retransmit_s is not None:
            self.do(SetTimer("result", self.limits.retransmit_s))

    def _stop_work(self, key: tuple[str, int]) -> None:
        if key in self._running:
            self._running.discard(key)
            self.do(StopExecution(key[0], key[1], self.me))
        self._unacked.pop(key, None)
        self._results.pop(key, None)


class StarHub(_StarNode):
    """The orchestrator at the entrypoint.

    Invariants: S1 an assigned unfinished subtask's agent is in the team, not evicted, and holds the
    capability; S2 nobody evicted is in the team; S3 a completed output never changes; S4 nothing that is
    completed in the checkpoint is dispatched; S5 views strictly increase. One event costs O(dependents of
    the subtask).

    A failed execution goes to another member, up to the caps, if the agent's code never began, if the agent
    is at fault rather than the task, or if the task is idempotent; an unknown outcome of any other task ends
    the run. When no member is left the plan is changed, up to its cap; then the run ends with what is done.

    Parameters
    ----------
    run, me : str
        See :class:`Machine`.
    plan : Plan, optional
        What is to be done. None: asked for by ``AskPlan``.
    team : mapping of str to sequence of str, optional
        Peers per capability of the plan, preferred first. A capability that is missing here is left to the
        driver (``Execute.agent`` is None).
    inputs : mapping
        JSON values that the task brought; every first subtask gets them.
    idempotent : bool
        True: an execution with an unknown outcome may be repeated.
    redundancy : mapping of str to int
        Agents that work on each subtask of a capability at once; the first output counts.
    contracts : mapping of str to Contract
        Per subtask id; its output is judged before it counts.
    stand_ins : sequence of str
        Members that keep the checkpoint, in the order of succession; two make every single loss survivable.
    late_binding : bool
        True: the driver chooses the agent among ``Execute.candidates``.
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
        redundancy: Mapping[str, int] | None = None,
        contracts: Mapping[str, Contract] | None = None,
        stand_ins: Sequence[str] = (),
        late_binding: bool = False,
        limits: Limits | None = None,
    ) -> None:
        if len(stand_ins) == 1 or len({me, *stand_ins}) <= len(stand_ins):
            raise errors.ConfigError(
                f"stand_ins is {list(stand_ins)!r}: one alone could never be a majority without the hub",
                where="StarHub.stand_ins",
                hint="name two or more members, or none",
            )
        limits = limits or Limits()
        super().__init__(run, me, limits=limits, works=False)
        hub: dict[str, Any] = {
            "epoch": 1,
            "seq": 0,
            "origin": me,
            "stand_ins": list(stand_ins),
            "copies": len(stand_ins),
            "limits": limits.to_dict(),
            "idempotent": idempotent,
            "redundancy": dict(redundancy or {}),
            "contracts": {k: c.to_dict() for k, c in (contracts or {}).items()},
            "late_binding": late_binding,
            "inputs": dict(inputs or {}),
            "team": {c: list(p) for c, p in (team or {}).items()},
            "held": {},
            "evicted": {},
            "view": 1,
            "version": 0 if plan is None else 1,
            "plan": None if plan is None else plan.to_dict(),
            "plans": [],
            "done": {},
            "flights": {},
            "attempts": {},
            "fails": {},
            "swaps": {},
            "blamed": {},
            "drifted": {},
            "rejected": {},
            "replans": 0,
            "steps": 0,
        }
        self.put("promised", value=1)
        self.put("owner", value=me)
        self.put("hub", value=hub)
        if plan is not None:
            self._index(plan)
            hub["plans"].append([short_hash(sorted(self._digest.values())), 0])


class StarMember(_StarNode):
    """A member's part: works for the hub of the highest epoch, and may become it.

    A finished result is kept, and sent again, until the hub acknowledges it; a repeated dispatch of finished
    work is answered from there, without a second execution.

    Parameters
    ----------
    run, me : str
        See :class:`Machine`.
    limits : Limits
        Times of the retransmissions; a stand-in that takes over uses the hub's.
    """

    def __init__(self, run: str, me: str, *, limits: Limits | None = None) -> None:
        super().__init__(run, me, limits=limits or Limits(), works=True)
