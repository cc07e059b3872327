"""What every node of a star is below the orchestration: a worker, and a holder of the hub's state.

The state is kept by the hub and its stand-ins. A commit takes effect once a majority of them has it; a
stand-in that takes over needs the word of a majority and goes on from the newest copy among them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from pandacore import errors
from pandacore.patterns.base import (
    RUN,
    Action,
    ClearTimer,
    Contract,
    Execute,
    Finish,
    Limits,
    Machine,
    Received,
    Send,
    SetTimer,
    StopExecution,
    error_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pandacore.errors import PandacoreError
    from pandacore.patterns.base import Event
    from pandacore.plan import Plan

__all__ = ["StarNode", "as_message", "flight_key"]

MAX_CACHED_RESULTS: Final = 256
"""Finished results that a member keeps until the hub acknowledges them; then the oldest goes."""


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
                "work": action.work,
            }
            return Send(agent, message)
        case StopExecution(agent=str() as agent):
            return Send(
                agent,
                {"kind": "CANCEL", "run": run, "subtask": action.subtask_id, "attempt": action.attempt},
            )
        case _:
            return None


def flight_key(subtask_id: str, attempt: int) -> str:
    return f"{attempt}:{subtask_id}"


class StarNode(Machine):
    """Worker and holder of copies; whoever owns the epoch leads.

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
        self._ending = False
        self._reformed = False
        self._cancelled = False
        self._watches = 0
        self._claim: dict[str, Any] | None = None
        self._final_tries = 0
        self._told_answers: dict[str, Any] = {}

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
        return self._majority(self._holders())

    def _majority(self, holders: Sequence[str]) -> int:
        return len(holders) // 2 + ("quorum_off_by_one" not in self.planted)

    @property
    def _busy(self) -> bool:
        hub = self.state.get("hub")
        return not (hub is None or self.done or self.state.get("owner") != self.me or "ended" in hub)

    # -- what the orchestration adds -------------------------------------------------------------------

    @abstractmethod
    def _take(self, event: Event) -> None:
        """Handle one event, now that nothing awaits a quorum."""

    @abstractmethod
    def _members(self) -> list[str]:
        """All members of the team."""

    @abstractmethod
    def _ask_plan(self, reason: str, stuck: dict[str, PandacoreError]) -> None:
        """Have a plan made."""

    @abstractmethod
    def _go_on(self) -> None:
        """Dispatch again what was in flight, then everything else that is ready."""

    @abstractmethod
    def _conclude(self) -> None:
        """Tell the caller and the members that the run is over."""

    # -- the checkpoint's holders ------------------------------------------------------------------------

    def flush(self) -> list[Action]:
        """As :meth:`Machine.flush`; with stand-ins, a commit's effects wait for a quorum of copies."""
        hub = self.state.get("hub")
        if hub is not None and hub["stand_ins"]:
            actions = self._replicated()
        else:
            self._commit = False
            actions = super().flush()
        if self._ending and not self.done:
            self.done = any(isinstance(a, Finish) for a in actions)
        return actions

    def finish(self, value: Any, failed: Mapping[str, PandacoreError] | None = None) -> None:
        """As :meth:`Machine.finish`; a held one has not happened, and is dropped if this node is deposed."""
        self._ending = True
        self.do(Finish(value, dict(failed or {})))

    def _replicated(self) -> list[Action]:
        others = [h for h in self._holders() if h != self.me]
        touched = any(p[0] == "hub" for p in (*self._sets, *self._drops))
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
        best = self._newest(self._claim["grants"].values())
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

    def _newest(self, copies: Iterable[dict[str, Any]]) -> dict[str, Any]:
        choose = min if "stale_copy" in self.planted else max
        return choose(copies, key=lambda h: (h["epoch"], h["seq"]))

    def _check_claim(self) -> None:
        claim = self._claim
        if claim is None:
            return
        best = self._newest(claim["grants"].values())
        # The newest copy says who the holders are: an older list could miss a commit.
        holders = [*best["stand_ins"], best["origin"]]
        if sum(h in claim["grants"] for h in holders) < self._majority(holders):
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
        if key in self._results and "work_again" not in self.planted:
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
            self.do(Execute(key[0], key[1], m["inputs"], self.me, (), epoch, contract, work=m.get("work")))

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
