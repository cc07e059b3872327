"""Star: a hub dispatches every dependency-free subtask in parallel and collects (PANDA, appendix B.2).

The hub is :class:`StarHub`; every member runs a :class:`StarMember`. Members named as stand-ins keep a copy
of the hub's state; the first of them that is alive goes on when the hub is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.patterns.base import (
    RUN,
    Answered,
    Asked,
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
    Judged,
    Limits,
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
    hop_cap,
    is_wall,
    repetition,
    short_hash,
    subtask_digests,
)
from pandacore.patterns.questions import answered, loop_of, open_questions, paused, resumption, waiting
from pandacore.patterns.star_node import StarNode, as_message, flight_key
from pandacore.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pandacore.errors import PandacoreError
    from pandacore.patterns.base import Event

__all__ = ["StarHub", "StarMember", "as_message"]
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
        "ANSWER_ACK",
    }
)


class _Star(StarNode):
    """The orchestration: plan, dispatch, results, judgement, swap, the end. Members have it too: a stand-in
    may become the hub."""

    takes_questions = True

    @property
    def questions(self) -> list[dict[str, Any]]:
        """See :attr:`Machine.questions`; a caller that does not lead knows them by its copy."""
        hub = self.state.get("hub", {})
        if self.done or "ended" in hub:
            return []
        found = open_questions(hub.get("pauses", {}).values())
        return [q for q in found if q["id"] not in self._told_answers]

    @property
    def waits(self) -> bool:
        """See :attr:`Machine.waits`."""
        hub = self.state.get("hub", {})
        return self._busy and self._await is None and not hub["flights"] and bool(self.questions)

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
            case (
                Executed(subtask_id, attempt)
                | ExecutionFailed(subtask_id, attempt)
                | Asked(subtask_id, attempt)
            ):
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
                    self._result(flight_key(subtask_id, attempt), output)
            case ExecutionFailed(subtask_id, attempt, error, executed):
                if (subtask_id, attempt) in self._running:
                    failure = {"error": error_to_json(error), "executed": executed}
                    self._worked(subtask_id, attempt, failure)
                elif self._busy:
                    self._failure(flight_key(subtask_id, attempt), error, executed)
            case Asked(subtask_id, attempt):
                if (subtask_id, attempt) in self._running:
                    self._worked(subtask_id, attempt, {"asked": event.to_dict()})
                elif self._busy:
                    self._asked(flight_key(subtask_id, attempt), event)
            case Answered(question, value) if not self.leads and not self.done:
                # Another node leads by now: it is told until it says that it knows.
                self._told_answers[question] = value
                self._tell_answers()
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

    def _lead(self, event: Event) -> None:
        match event:
            case Assigned(subtask_id, attempt, agent, memory):
                self._assigned(flight_key(subtask_id, attempt), agent, memory)
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
                self._judged(flight_key(subtask_id, attempt), ok, reason)
            case Answered(question, value):
                self._answered(question, value)
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
            case "ANSWER":
                if self._busy:
                    self._answered(str(m["question"]), m["value"])
                    self.send(sender, "ANSWER_ACK", question=m["question"])
            case "ANSWER_ACK":
                self._told_answers.pop(str(m["question"]), None)
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
            case ("answers", _, _):
                self._tell_answers()
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
        hub.setdefault("pauses", {})
        self.limits = Limits.from_dict(hub["limits"])
        self._open, self._load = {}, {}
        if hub["plan"] is not None:
            self._index(Plan.from_dict(hub["plan"]))
        for key, flight in hub["flights"].items():
            self._opened(key, flight)

    @property
    def peers(self) -> Sequence[str]:
        """See :attr:`Machine.peers`."""
        return list(dict.fromkeys([*self._members(), *self._hub["stand_ins"]]))

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
        kept = set(digests.values())
        self.put("hub", "pauses", value={d: p for d, p in hub["pauses"].items() if d in kept})
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
        pause = hub["pauses"].get(digest)
        if waiting(pause):
            return
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
        if pause is not None and pause["agent"] in free and wanted > 0:
            # Who asked goes on, if it is there: it may know more than it wrote into its state.
            self._launch(digest, pause["agent"], ())
            free.remove(pause["agent"])
            wanted -= 1
        if hub["late_binding"]:
            for _ in range(min(wanted, len(free))):
                self._launch(digest, None, tuple(free))
            return
        for peer in sorted(free, key=lambda p: self._load.get(p, 0))[: max(wanted, 0)]:
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
        attempt = hub["attempts"].get(subtask_id, 0) + 1
        pause = hub["pauses"].get(digest)
        if not revise and (hub["fails"].get(digest) or hub["swaps"].get(digest)):
            if (cap := hop_cap(self.limits, hub.get("hops", 0), subtask_id)) is not None:
                self._end(None, {subtask_id: cap})
                return
            self.put("hub", "hops", value=hub.get("hops", 0) + 1)
        self._commit = True  # a new attempt is no business of a hub that was deposed (S4)
        self.put("hub", "steps", value=hub["steps"] + 1)
        self.put("hub", "attempts", subtask_id, value=attempt)
        flight: dict[str, Any] = {"d": digest, "a": peer, "c": list(candidates)}
        if revise:
            flight["revise"] = dict(revise)
        if pause is not None:
            flight["given"] = list(pause["answers"])
        key = flight_key(subtask_id, attempt)
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
        if (pause := self._hub["pauses"].get(digest)) is not None:
            inputs["_answers"] = resumption(pause)
        execute = Execute(
            subtask_id,
            int(attempt),
            inputs,
            flight["a"],
            tuple(flight["c"]),
            self.epoch,
            self._contract(digest),
            # Who is asked is written down first: where nobody is named, nobody was asked.
            again and flight["a"] is not None and not self._hub["idempotent"],
            flight.get("m", ""),
            None
            if self.limits.retransmit_s is None
            else {"capability": subtask.capability, "instruction": subtask.instruction},
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

    def _assigned(self, key: str, agent: str, memory: str) -> None:
        self._ticks[key] = 0
        flight = self._hub["flights"].get(key)
        if flight is None or flight["a"] == agent:
            return
        if flight["a"] is not None:  # it had no room
            self._load[flight["a"]] = self._load.get(flight["a"], 1) - 1
        self.put("hub", "flights", key, value={**flight, "a": agent, "c": [], "m": memory})
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
        key = flight_key(str(m["subtask"]), int(m["attempt"]))
        flight = self._hub["flights"].get(key) or self._late.get(key)
        if flight is None or flight["a"] != sender:
            if m["kind"] == "RESULT":  # settled long ago: let the member forget it
                self.send(sender, "RESULT_ACK", subtask=m["subtask"], attempt=m["attempt"])
            return
        self._ticks[key] = 0
        if m["kind"] == "WORKING":
            return
        if "asked" in m:
            self.send(sender, "RESULT_ACK", subtask=m["subtask"], attempt=m["attempt"])
            questions, state = m["asked"]["questions"], m["asked"]["state"]
            self._asked(key, Asked(str(m["subtask"]), int(m["attempt"]), questions, state))
        elif "error" in m:
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
        settled = digest in hub["done"] and "commit_twice" not in self.planted
        if settled or digest not in self._id:
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
        self.drop("hub", "pauses", digest)
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
            case errors.NoTeam():
                return False
            case _ if is_wall(error):
                return False
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

    # -- questions ---------------------------------------------------------------------------------------

    def _asked(self, key: str, asked: Asked) -> None:
        """The subtask needs answers first; its place in the plan stays open until they are there."""
        hub = self._hub
        flight = hub["flights"].get(key)
        if flight is None:
            return
        digest, agent = flight["d"], flight["a"]
        self._close(key)
        if digest in hub["done"] or digest not in self._id:
            return
        old = hub["pauses"].get(digest)
        loop = loop_of(flight.get("given", ()), asked)
        if loop is not None:
            self._stuck_at(digest, loop)
            return
        self._commit = True
        self.put("hub", "pauses", digest, value=paused(old, asked, agent))
        self.note("asked", subtask=self._id[digest], agent=agent, questions=[*asked.questions])
        if not waiting(hub["pauses"][digest]):
            self._assign(digest)

    def _answered(self, question: str, value: Any) -> None:
        hub = self._hub
        found = answered(hub["pauses"], question)
        if found is None:
            return
        digest, own = found
        self._commit = True
        self.put("hub", "pauses", digest, "answers", own, value=value)
        self.note("answered", subtask=self._id[digest], question=question)
        if not waiting(hub["pauses"][digest]):
            self._assign(digest)

    def _tell_answers(self) -> None:
        owner = str(self.state.get("owner", ""))
        if self.done or not self._told_answers:
            return
        for question, value in list(self._told_answers.items()):
            if self._busy:  # this node leads again
                del self._told_answers[question]
                self._answered(question, value)
            elif owner:
                self.send(owner, "ANSWER", question=question, value=value)
        if self._told_answers:
            self.do(SetTimer("answers", self.limits.retransmit_s or 1.0))

    # -- judgement ---------------------------------------------------------------------------------------

    def _judged(self, key: str, ok: bool, reason: str) -> None:
        hub = self._hub
        flight = hub["flights"].get(key)
        if flight is None:
            record = next(
                (r for r in hub["done"].values() if flight_key(r["id"], r["attempt"]) == key and not ok), None
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
        self.note("drift", subtask=self._id[digest], agent=agent, reason=reason)
        if (loop := repetition(self._id[digest], rejected, reason)) is not None:
            self._close(key)
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


class StarHub(_Star):
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
            "pauses": {},
            "replans": 0,
            "steps": 0,
        }
        self.put("promised", value=1)
        self.put("owner", value=me)
        self.put("hub", value=hub)
        if plan is not None:
            self._index(plan)
            hub["plans"].append([short_hash(sorted(self._digest.values())), 0])


class StarMember(_Star):
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
